"""Predictions by the likelihood's own distribution of targets, averaged over the outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, distributions

from ..messages.arguments import check_samples
from . import links
from .lazy_values import isolate
from .numbers import Moments, Numbers
from .prediction import check_level
from .target_distribution import TargetDistribution, draw


@isolate
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Mixture(Numbers):
    """A prediction by the likelihood's own distribution of y, averaged over the outputs.

    `la.predict(x)` returns it for `pw.HeteroscedasticGaussian`, `pw.Poisson`, `pw.Custom` with `predictive`, and
    `pw.Gaussian` with `link="mc"` or `method="sampled"`. Uncertainties are variances.

    Attributes:
        belief: Distribution of the network's outputs, from which all else is computed.
        likelihood: The likelihood of the posterior.
        link: How outputs became labels, such as "mc".
        elementwise: Whether every output has its own target, independent of the other outputs, as counts have.
        exact: Mean and variances where they have a closed form, positions flattened; None where they are averages.
        mean: Mean of a new observation (N, ...).
        epistemic: Variance of that mean (N, ...), from not knowing the weights. As a rule it is higher at inputs
            unlike the training data.
        aleatoric: Variance of the noise (N, ...), averaged over the distribution of the outputs.
        variance: Variance of a new observation (N, ...): `epistemic + aleatoric`.
        std: Standard deviation of a new observation (N, ...): the root of `variance`.
        output_mean: Mean of the network's outputs (N, ...).
        output_variance: Variance of the network's outputs (N, ...), from not knowing the weights.
        covariance: Covariance of the network's outputs (N, *positions, C, C); (N, F, N, F) over all inputs and their F
            flattened outputs with `joint=True`.

    Example:
        >>> pred = line.predict(t[:5], method="sampled")
        >>> type(pred).__name__, pred.mean.shape, pred.epistemic.shape
        ('Mixture', torch.Size([5, 1]), torch.Size([5, 1]))
    """

    elementwise: bool  # whether every output has its own target, independent of the other outputs
    exact: Moments | None = None  # where they have a closed form
    _line: Callable[[Mixture, Tensor], Tensor] | None = None  # (M, K) targets -> (N, T) log densities, along a line
    _wide: torch.dtype | None = None  # of other densities, where it is not the outputs'

    def _targets_at(self, f: Tensor, weight: Tensor) -> TargetDistribution:
        distribution = self.likelihood.distribution(f.unsqueeze(-2))
        assert distribution is not None  # or this class would not have been chosen
        return TargetDistribution(distribution, weight)

    @cached_property
    def _moments(self) -> Moments:
        if self.exact is not None:
            return self.exact

        def moments(f: Tensor, weight: Tensor, _: slice) -> Tensor:
            target = self._targets_at(f, weight)
            mean = target.average(target.mean)
            between = target.average((target.mean - mean).square())
            return torch.stack([mean, between, target.average(target.variance)], -1)

        return Moments(*self.belief.gather(moments, self.elementwise).unbind(-1))

    def log_prob(self, y: Tensor) -> Tensor:
        flat, known = self._targets(y)
        dtype = self.belief.mean.dtype
        wide = self._wide or dtype
        rows = flat.flatten(0, 1)
        if self._line is not None:
            return torch.where(known[..., 0], self._line(self, rows), 0.0).sum(1)
        rows = rows.to(wide) if rows.is_floating_point() else rows

        def density(f: Tensor, weight: Tensor, chosen: slice) -> Tensor:
            return self._targets_at(f.to(wide), weight.to(wide)).log_prob(rows[chosen], self.elementwise).to(dtype)

        return torch.where(known[..., 0], self.belief.gather(density, self.elementwise), 0.0).sum(1)

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        tail = (1 - check_level(level)) / 2

        def bounds(f: Tensor, weight: Tensor, _: slice) -> Tensor:
            target = self._targets_at(f.detach().double(), weight.double())
            return torch.stack([target.quantile(tail), target.quantile(1 - tail)], -1)

        lower, upper = self.belief.gather(bounds, self.elementwise).to(self.belief.mean.dtype).unbind(-1)
        return self._restore(lower), self._restore(upper)

    def sample(self, samples: int, generator: torch.Generator | None = None) -> Tensor:
        f = self.belief.random(check_samples(samples), generator)
        distribution = self.likelihood.distribution(f)
        if isinstance(distribution, distributions.Normal):  # where the head has no valid variance, the mean's stands in
            valid = (torch.isfinite(distribution.loc) & (distribution.scale > 0)).all(-1, keepdim=True)
            distribution = self.likelihood.distribution(
                torch.where(valid.reshape(*f.shape[:3], -1)[..., :1], f, self.belief.mean)
            )
        assert distribution is not None
        values = draw(distribution, generator)
        return self._restore(values.reshape(*f.shape[:3], -1))


def along_second(prediction: Mixture, rows: Tensor) -> Tensor:
    """(M, 1) numbers -> (N, T): Gaussian in the first output, so that a line along the second is left."""
    belief, likelihood = prediction.belief, prediction.likelihood
    centre, cov = belief.mean.double(), belief.covariance.double()

    def head(f: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (..., m) of y at outputs (..., m, 2); NaN where the head has no variance."""
        distribution = likelihood.distribution(f.unsqueeze(-2))
        assert isinstance(distribution, distributions.Normal)
        variance = torch.where(distribution.scale > 0, distribution.scale, torch.nan).square()
        return distribution.loc[..., 0, 0], variance[..., 0, 0]

    densities = []
    for some in belief.budget.slices(len(rows), 192.0 * links.NODES):
        mean, variance, weight = links.along_second(head, centre.flatten(0, 1)[some], cov.flatten(0, 1)[some])
        density = distributions.Normal(mean, variance.sqrt(), validate_args=False).log_prob(rows[some, 0].double())
        densities.append((density + weight).logsumexp(0))
    return torch.cat(densities).reshape(centre.shape[:2]).to(belief.mean.dtype)


def along_counts(prediction: Mixture, rows: Tensor) -> Tensor:
    """(M, K) counts -> (N, T): each with a line of its own, for outliers are far from where the outputs are."""
    mean, variance = prediction.belief.mean, prediction.belief.variance
    parts = prediction.belief.budget.slices(len(rows), 48.0 * links.NODES * rows.shape[-1])
    densities = [
        links.poisson_log_density(mean.flatten(0, 1)[some], variance.flatten(0, 1)[some], rows[some]).sum(-1)
        for some in parts
    ]
    return torch.cat(densities).reshape(mean.shape[:2]).to(mean.dtype)
