"""The distribution of targets at several outputs each: averages over these, quantiles and draws."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, distributions

from ..messages.errors import PeewitError
from .outputs import normals
from .prediction import uniforms

HALVINGS = 46  # of the bracket of a quantile
MANY = 1e12  # a rate from which counts are drawn as Gaussian ones


@dataclass(frozen=True)
class TargetDistribution:
    """The distribution of y at S outputs of m places, its values in rows of K."""

    distribution: distributions.Distribution  # (S, m, ...)
    prior_weight: Tensor  # (S, 1, 1), log

    def _flat(self, values: Tensor) -> Tensor:
        return values.reshape(*self.distribution.batch_shape[:2], -1)

    def _value(self, rows: Tensor) -> Tensor:
        shape = self.distribution.batch_shape[2:] + self.distribution.event_shape
        return rows.reshape(len(rows), *shape)

    @cached_property
    def valid(self) -> Tensor:
        """(S, m, 1): a head that returns a variance has none where it is not positive; such outputs are left out."""
        distribution = self.distribution
        if not isinstance(distribution, distributions.Normal):
            return torch.ones((), dtype=torch.bool, device=self.prior_weight.device)
        return self._flat(torch.isfinite(distribution.loc) & (distribution.scale > 0)).all(-1, keepdim=True)

    @cached_property
    def log_weight(self) -> Tensor:
        """(S, m, 1), or (S, 1, 1) where all outputs are valid; the weights sum to one."""
        if bool(self.valid.all()):
            return self.prior_weight
        return self.prior_weight.masked_fill(~self.valid, -torch.inf).log_softmax(0)

    def average(self, values: Tensor) -> Tensor:
        """(S, m, K) -> (m, K)."""
        return (self.log_weight.exp() * torch.where(self.valid, values, 0.0)).sum(0)

    @property
    def mean(self) -> Tensor:
        """(S, m, K)."""
        return self._flat(self.distribution.mean)

    @property
    def variance(self) -> Tensor:
        """(S, m, K)."""
        return self._flat(self.distribution.variance)

    def log_prob(self, rows: Tensor, elementwise: bool) -> Tensor:
        """(m, ...) targets -> (m,)."""
        densities = self._flat(self.distribution.log_prob(self._value(rows)))
        # Overflowing rates have no density at any count.
        densities = torch.nan_to_num(densities, nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        densities = densities.masked_fill(~self.valid, -torch.inf)
        if elementwise:
            return (densities + self.log_weight).logsumexp(0).sum(-1)
        return (densities.sum(-1, keepdim=True) + self.log_weight).logsumexp(0)[:, 0]

    def below(self, rows: Tensor) -> Tensor:
        """(m, K): P(y <= rows)."""
        distribution = self.distribution
        if isinstance(distribution, distributions.Poisson):  # which torch gives no distribution function
            probability = torch.special.gammaincc(
                (self._value(rows) + 1).expand(distribution.rate.shape), distribution.rate
            )
            return self.average(self._flat(torch.where(torch.isfinite(distribution.rate), probability, 0.0)))
        while isinstance(distribution, distributions.Independent):  # of whose parts the function is known
            distribution = distribution.base_dist
        try:
            return self.average(self._flat(distribution.cdf(self._value(rows))))
        except NotImplementedError:  # torch, of a distribution without such a function
            raise PeewitError(
                f"interval needs the distribution function of {type(distribution).__name__}, which torch does not "
                "have; take quantiles of sample(samples)."
            ) from None

    def quantile(self, level: float) -> Tensor:
        """(m, K): where the distribution function of the mixture reaches `level`, by halving a bracket."""
        counts = isinstance(self.distribution, distributions.Poisson)
        mean, reach = self.mean, 10 * self.variance.sqrt()
        low = (mean - reach).masked_fill(~self.valid, torch.inf).amin(0)
        high = (mean + reach).masked_fill(~self.valid, -torch.inf).amax(0)
        if counts:
            low, high = torch.full_like(low, -1.0), (high + 10).clamp(max=1e12).ceil()
        for _ in range(HALVINGS):
            middle = ((low + high) / 2).floor() if counts else (low + high) / 2
            reached = self.below(middle) >= level
            low, high = torch.where(reached, low, middle), torch.where(reached, middle, high)
        return high


def draw(distribution: distributions.Distribution, generator: torch.Generator | None) -> Tensor:
    """Draw every element, from any generator."""
    if isinstance(distribution, distributions.Normal):
        return distribution.loc + distribution.scale * normals(
            tuple(distribution.loc.shape), distribution.loc, generator
        )
    if isinstance(distribution, distributions.Poisson):
        rate = distribution.rate.detach()
        device = rate.device if generator is None else generator.device
        counts = torch.poisson(rate.clamp(max=MANY).to(device), generator=generator).to(rate.device)
        if not bool((rate > MANY).any()):
            return counts
        # torch's own draws overflow.
        large = (rate + rate.sqrt() * normals(tuple(rate.shape), rate, generator)).round()
        return torch.where(rate > MANY, torch.where(torch.isfinite(rate), large, rate), counts)
    if isinstance(distribution, distributions.Bernoulli):
        return (uniforms(distribution.probs.shape, distribution.probs, generator) < distribution.probs).to(
            distribution.probs.dtype
        )
    values: Tensor
    if generator is None:
        values = distribution.sample()
        return values
    seed = int(torch.randint(1 << 62, (1,), generator=generator, device=generator.device))
    with torch.random.fork_rng():  # other distributions draw from the global generator only
        torch.manual_seed(seed)
        values = distribution.sample()
    return values
