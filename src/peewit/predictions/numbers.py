"""Predictions of numbers: a Gaussian in closed form, a mixture over the outputs, or the outputs alone."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor, distributions

from ..messages.arguments import checked_samples
from ..messages.errors import PeewitError
from . import links
from .outputs import Normal, normals
from .prediction import SHOWN, Prediction, checked_level, normal_quantile, shown, target_form, uniforms
from .steady import steady

HALVINGS = 46  # of the bracket of a quantile
MANY = 1e12  # a rate from which counts are drawn as Gaussian ones


class Moments(NamedTuple):
    """Of a new observation, (N, T, K): its mean, the variance of that mean, and the mean variance of the noise."""

    mean: Tensor
    epistemic: Tensor
    aleatoric: Tensor


@steady
@dataclass(frozen=True, eq=False, repr=False)
class Numbers(Prediction):
    """Predictions with a mean, and a variance in two parts by the law of total variance; abstract."""

    @property
    @abstractmethod
    def _moments(self) -> Moments:
        """In flat form."""

    def _restore(self, flat: Tensor) -> Tensor:
        """(..., N, T, K) -> (..., N, ...)."""
        form = self.belief.form
        if form.whole and flat.shape[-1] != form.outputs:  # targets that are not shaped like the outputs
            return flat[..., 0, :]
        return target_form(form, flat.shape[-1]).restore(flat)

    @property
    def mean(self) -> Tensor:
        """(N, ...): of a new observation."""
        return self._restore(self._moments.mean)

    @property
    def epistemic(self) -> Tensor:
        """(N, ...): the variance of the mean, from not knowing the weights."""
        return self._restore(self._moments.epistemic)

    @property
    def aleatoric(self) -> Tensor:
        """(N, ...): the variance of the noise."""
        return self._restore(self._moments.aleatoric)

    @property
    def variance(self) -> Tensor:
        """(N, ...): of a new observation, `epistemic + aleatoric`."""
        return self._restore(self._moments.epistemic + self._moments.aleatoric)

    def _lines(self) -> list[str]:
        mean, epistemic, aleatoric = self._moments
        deviation = (epistemic + aleatoric).sqrt()
        first = zip(mean.flatten()[:SHOWN].tolist(), deviation.flatten()[:SHOWN].tolist(), strict=True)
        more = " ..." if mean.numel() > SHOWN else ""
        return [
            "mean ± deviation " + ", ".join(f"{m:.3g} ± {d:.2g}" for m, d in first) + more,
            f"mean variance {float((epistemic + aleatoric).mean()):.3g}: "
            f"epistemic {float(epistemic.mean()):.3g}, aleatoric {float(aleatoric.mean()):.3g}",
        ]


@steady
@dataclass(frozen=True, eq=False, repr=False)
class Regression(Numbers):
    """A prediction of Gaussian observations, in closed form.

    `la.predict(x)` returns it for `pw.Gaussian`, which is "regression", and for `pw.HeteroscedasticGaussian` with
    `link="natural"` or `link="mean"`. Uncertainties are variances, and their square roots standard deviations.

    Attributes:
        belief: Distribution of the network's outputs, from which all else is computed.
        likelihood: The likelihood of the posterior.
        link: How outputs became labels, such as "exact".
        source: The Gaussian over the mean of y.
        noise: Variances of the noise, positions flattened (N, T, K); `aleatoric` has them in the targets' shape.
        mean: Mean of a new observation (N, ...).
        epistemic: Variance of that mean (N, ...), from not knowing the weights. As a rule it is higher at inputs
            unlike the training data.
        aleatoric: Variance of the noise (N, ...).
        variance: Variance of a new observation (N, ...): `epistemic + aleatoric`.
        output_mean: Mean of the network's outputs (N, ...).
        output_variance: Variance of the network's outputs (N, ...), from not knowing the weights.
        covariance: Covariance of the network's outputs (N, *positions, C, C); (N, F, N, F) over all inputs and their F
            flattened outputs with `joint=True`.

    Example:
        >>> pred = line.predict(t[:5])
        >>> pred.mean.shape, pred.epistemic.shape
        (torch.Size([5, 1]), torch.Size([5, 1]))
        >>> torch.allclose(pred.aleatoric, torch.tensor(0.1**2))
        True
        >>> deviation = pred.variance.sqrt()
    """

    source: Normal  # the Gaussian over the mean of y
    noise: Tensor  # (N, T, K): variances

    @property
    def _moments(self) -> Moments:
        return Moments(self.source.mean, self.source.variance, self.noise)

    def _density(self) -> distributions.Distribution:
        """Over the K outputs of every place together, (N, T)."""
        mean, noise = self.source.mean, self.noise
        if mean.shape[-1] == 1:
            deviation = (self.source.variance + noise).sqrt()
            return distributions.Independent(distributions.Normal(mean, deviation, validate_args=False), 1)
        if self.source.factor is not None:
            return distributions.LowRankMultivariateNormal(mean, self.source.root, noise, validate_args=False)
        cov = self.source.covariance + torch.diag_embed(noise)
        return distributions.MultivariateNormal(mean, cov, validate_args=False)

    def log_prob(self, y: Tensor) -> Tensor:
        """Compute the log density of targets: the outputs of a position together, positions summed.

        Args:
            y: Targets, as the network was trained on: one per input. They are never broadcast.

        Returns:
            Log densities (N,), noise included, in nats.

        Raises:
            PeewitError: The targets do not fit the outputs.
            ArgumentTypeError: `y` is no tensor.

        Example:
            >>> line.predict(t).log_prob(z).shape
            torch.Size([40])
        """
        flat, known = self._targets(y)
        each = self._log_density(flat.to(self.source.mean.dtype))
        return torch.where(known[..., 0], each, 0.0).sum(1)

    def _log_density(self, flat: Tensor) -> Tensor:
        """(N, T, K) -> (N, T): some inputs at a time where their covariances are not there yet."""
        if self.source.deviation is None:
            made: Tensor = self._density().log_prob(flat)
            return made
        parts = []
        for chosen in self.source.budget.slices(len(flat), 4.0 * flat[0].numel() * flat.shape[-1] * flat.itemsize):
            own = replace(self, source=self.source.some(chosen), noise=self.noise[chosen])
            parts.append(own._density().log_prob(flat[chosen]))
        return torch.cat(parts)

    def joint_log_prob(self, y: Tensor) -> Tensor:
        """Compute the log density of the targets of all inputs together; needs `joint=True`.

        Args:
            y: Targets, as the network was trained on: one per input. They are never broadcast.

        Returns:
            One log density (), in nats.

        Raises:
            PeewitError: The targets do not fit the outputs, or the prediction was made without `joint=True`.
            ArgumentTypeError: `y` is no tensor.

        Example:
            >>> line.predict(t, joint=True).joint_log_prob(z).shape
            torch.Size([])
        """
        joint, form = self.source.joint, self.belief.form
        if joint is None:
            raise PeewitError("joint_log_prob needs the covariance between inputs; use predict(x, joint=True).")
        flat, known = self._targets(y)
        size = joint.shape[0] * joint.shape[1]
        noise = form.restore(self.noise).reshape(size)
        residual = form.restore(flat.to(noise.dtype) - self.source.mean).reshape(size)
        kept = form.restore(known.expand(flat.shape)).reshape(size)
        cov = (joint.reshape(size, size).to(noise.dtype) + torch.diag(noise))[kept][:, kept]
        density = distributions.MultivariateNormal(torch.zeros_like(residual[kept]), cov, validate_args=False)
        value: Tensor = density.log_prob(residual[kept])
        return value

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Find the central interval of a new observation, noise included.

        Args:
            level: A probability strictly between 0 and 1.

        Returns:
            The lower and the upper ends, (N, ...) each.

        Raises:
            PeewitError: `level` is not between 0 and 1.

        Example:
            >>> lower, upper = line.predict(t).interval(0.9)
            >>> lower.shape, bool((lower < upper).all())
            (torch.Size([40, 1]), True)
        """
        mean, epistemic, aleatoric = self._moments
        width = normal_quantile(checked_level(level)) * (epistemic + aleatoric).sqrt()
        return self._restore(mean - width), self._restore(mean + width)

    def sample(self, samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw new observations, noise included.

        With `joint=True` or `method="sampled"` each draw belongs to one function at all inputs.

        Args:
            samples: Number of draws.
            generator: Source of random numbers. None for torch's global generator.

        Returns:
            Observations (S, N, ...).

        Raises:
            PeewitError: `samples` is no positive whole number.
            ArgumentTypeError: `generator` is no torch.Generator.

        Example:
            >>> line.predict(t).sample(10).shape
            torch.Size([10, 40, 1])
        """
        made = self.source.random(checked_samples(samples), generator)
        return self._restore(made + self.noise.sqrt() * normals(tuple(made.shape), made, generator))


@dataclass(frozen=True)
class Given:
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
        given = self.distribution
        if not isinstance(given, distributions.Normal):
            return torch.ones((), dtype=torch.bool, device=self.prior_weight.device)
        return self._flat(torch.isfinite(given.loc) & (given.scale > 0)).all(-1, keepdim=True)

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
        each = self._flat(self.distribution.log_prob(self._value(rows)))
        # Overflowing rates have no density at any count.
        each = torch.nan_to_num(each, nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        each = each.masked_fill(~self.valid, -torch.inf)
        if elementwise:
            return (each + self.log_weight).logsumexp(0).sum(-1)
        return (each.sum(-1, keepdim=True) + self.log_weight).logsumexp(0)[:, 0]

    def below(self, rows: Tensor) -> Tensor:
        """(m, K): P(y <= rows)."""
        given = self.distribution
        if isinstance(given, distributions.Poisson):  # which torch gives no distribution function
            found = torch.special.gammaincc((self._value(rows) + 1).expand(given.rate.shape), given.rate)
            return self.average(self._flat(torch.where(torch.isfinite(given.rate), found, 0.0)))
        while isinstance(given, distributions.Independent):  # of whose parts the function is known
            given = given.base_dist
        try:
            return self.average(self._flat(given.cdf(self._value(rows))))
        except NotImplementedError:
            raise PeewitError(
                f"interval needs the distribution function of {type(given).__name__}, which torch does not have; take "
                "quantiles of sample(samples)."
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


@steady
@dataclass(frozen=True, eq=False, repr=False)
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

    def _given(self, f: Tensor, weight: Tensor) -> Given:
        made = self.likelihood.distribution(f.unsqueeze(-2))
        assert made is not None  # or this class would not have been chosen
        return Given(made, weight)

    @cached_property
    def _moments(self) -> Moments:
        if self.exact is not None:
            return self.exact

        def moments(f: Tensor, weight: Tensor, _: slice) -> Tensor:
            given = self._given(f, weight)
            mean = given.average(given.mean)
            between = given.average((given.mean - mean).square())
            return torch.stack([mean, between, given.average(given.variance)], -1)

        return Moments(*self.belief.gathered(moments, self.elementwise).unbind(-1))

    def log_prob(self, y: Tensor) -> Tensor:
        """Compute the log probability (density) of targets, positions summed.

        Args:
            y: Targets, as the network was trained on: one per input. They are never broadcast.

        Returns:
            Log probabilities (N,), in nats: of the outputs of a position together, or of each by itself where they are
            independent.

        Raises:
            PeewitError: The targets do not fit the outputs.
            ArgumentTypeError: `y` is no tensor.

        Example:
            >>> line.predict(t, link="mc").log_prob(z).shape
            torch.Size([40])
        """
        flat, known = self._targets(y)
        dtype = self.belief.mean.dtype
        wide = self._wide or dtype
        rows = flat.flatten(0, 1)
        if self._line is not None:
            return torch.where(known[..., 0], self._line(self, rows), 0.0).sum(1)
        rows = rows.to(wide) if rows.is_floating_point() else rows

        def density(f: Tensor, weight: Tensor, chosen: slice) -> Tensor:
            return self._given(f.to(wide), weight.to(wide)).log_prob(rows[chosen], self.elementwise).to(dtype)

        return torch.where(known[..., 0], self.belief.gathered(density, self.elementwise), 0.0).sum(1)

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Find the central interval of a new observation, by quantiles of the mixture.

        Args:
            level: A probability strictly between 0 and 1.

        Returns:
            The lower and the upper ends, (N, ...) each.

        Raises:
            PeewitError: `level` is not between 0 and 1, or torch does not have the distribution function of
                the likelihood's distribution.

        Example:
            >>> lower, upper = line.predict(t, link="mc").interval(0.9)
            >>> lower.shape, bool((lower < upper).all())
            (torch.Size([40, 1]), True)
        """
        tail = (1 - checked_level(level)) / 2

        def bounds(f: Tensor, weight: Tensor, _: slice) -> Tensor:
            given = self._given(f.detach().double(), weight.double())
            return torch.stack([given.quantile(tail), given.quantile(1 - tail)], -1)

        lower, upper = self.belief.gathered(bounds, self.elementwise).to(self.belief.mean.dtype).unbind(-1)
        return self._restore(lower), self._restore(upper)

    def sample(self, samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw new observations.

        With `joint=True` or `method="sampled"` each draw belongs to one function at all inputs.

        Args:
            samples: Number of draws.
            generator: Source of random numbers. None for torch's global generator.

        Returns:
            Observations (S, N, ...).

        Raises:
            PeewitError: `samples` is no positive whole number.
            ArgumentTypeError: `generator` is no torch.Generator.

        Example:
            >>> line.predict(t, link="mc").sample(10).shape
            torch.Size([10, 40, 1])
        """
        f = self.belief.random(checked_samples(samples), generator)
        given = self.likelihood.distribution(f)
        if isinstance(given, distributions.Normal):  # where the head has no valid variance, the mean's stands in
            valid = (torch.isfinite(given.loc) & (given.scale > 0)).all(-1, keepdim=True)
            given = self.likelihood.distribution(
                torch.where(valid.reshape(*f.shape[:3], -1)[..., :1], f, self.belief.mean)
            )
        assert given is not None
        made = drawn(given, generator)
        return self._restore(made.reshape(*f.shape[:3], -1))


def along_second(prediction: Mixture, rows: Tensor) -> Tensor:
    """(M, 1) numbers -> (N, T): Gaussian in the first output, so that a line along the second is left."""
    belief, likelihood = prediction.belief, prediction.likelihood
    centre, cov = belief.mean.double(), belief.covariance.double()

    def head(f: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance (..., m) of y at outputs (..., m, 2); NaN where the head has no variance."""
        given = likelihood.distribution(f.unsqueeze(-2))
        assert isinstance(given, distributions.Normal)
        variance = torch.where(given.scale > 0, given.scale, torch.nan).square()
        return given.loc[..., 0, 0], variance[..., 0, 0]

    made = []
    for some in belief.budget.slices(len(rows), 192.0 * links.NODES):
        mean, variance, weight = links.along_second(head, centre.flatten(0, 1)[some], cov.flatten(0, 1)[some])
        density = distributions.Normal(mean, variance.sqrt(), validate_args=False).log_prob(rows[some, 0].double())
        made.append((density + weight).logsumexp(0))
    return torch.cat(made).reshape(centre.shape[:2]).to(belief.mean.dtype)


def along_counts(prediction: Mixture, rows: Tensor) -> Tensor:
    """(M, K) counts -> (N, T): each with a line of its own, for outliers are far from where the outputs are."""
    mean, variance = prediction.belief.mean, prediction.belief.variance
    parts = prediction.belief.budget.slices(len(rows), 48.0 * links.NODES * rows.shape[-1])
    made = [
        links.poisson_log_density(mean.flatten(0, 1)[some], variance.flatten(0, 1)[some], rows[some]).sum(-1)
        for some in parts
    ]
    return torch.cat(made).reshape(mean.shape[:2]).to(mean.dtype)


@steady
@dataclass(frozen=True, eq=False, repr=False)
class Outputs(Prediction):
    """Outputs of a likelihood that does not say how y is distributed: their mean and variance, and no more.

    `la.predict(x)` returns it for `pw.Custom` without `predictive`. `log_prob`, `interval` and `sample` raise a
    ValueError.

    Attributes:
        belief: Distribution of the network's outputs, from which all else is computed.
        likelihood: The likelihood of the posterior.
        link: How outputs became labels, such as "mc".
        mean: Mean of the outputs (N, ...), the same as `output_mean`.
        epistemic: Variance of the outputs (N, ...) from not knowing the weights, the same as `output_variance`.
        output_mean: Mean of the network's outputs (N, ...).
        output_variance: Variance of the network's outputs (N, ...), from not knowing the weights.
        covariance: Covariance of the network's outputs (N, *positions, C, C); (N, F, N, F) over all inputs and their F
            flattened outputs with `joint=True`.

    Example:
        >>> squared = pw.Custom(lambda f, y: (f - y).square().sum(-1) / 2)
        >>> pred = pw.fit(line_model, (t, z), squared).predict(t[:5])
        >>> type(pred).__name__, pred.mean.shape, pred.epistemic.shape
        ('Outputs', torch.Size([5, 1]), torch.Size([5, 1]))
    """

    @property
    def mean(self) -> Tensor:
        """(N, ...): of the outputs."""
        return self.output_mean

    @property
    def epistemic(self) -> Tensor:
        """(N, ...): the variance of the outputs."""
        return self.output_variance

    def _refuse(self, what: str) -> NoReturn:
        raise PeewitError(
            f"{what} needs the distribution of y given the outputs, which {type(self.likelihood).__name__} does not "
            "give; use mean, epistemic and covariance, which are those of the outputs."
        )

    def log_prob(self, y: Tensor) -> Tensor:
        """Refuse: the distribution of y is not known.

        Raises:
            PeewitError: Always; use `mean`, `epistemic` and `covariance`.
        """
        self._refuse("log_prob")

    def interval(self, level: float = 0.95) -> tuple[Tensor, Tensor]:
        """Refuse: the distribution of y is not known.

        Raises:
            PeewitError: Always; use `mean`, `epistemic` and `covariance`.
        """
        self._refuse("interval")

    def sample(self, samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Refuse: the distribution of y is not known.

        Raises:
            PeewitError: Always; use `mean`, `epistemic` and `covariance`.
        """
        self._refuse("sample")

    def _lines(self) -> list[str]:
        return [
            f"mean of the outputs {shown(self.belief.mean)}",
            f"their variance {float(self.belief.variance.mean()):.3g} on average",
        ]


def drawn(given: distributions.Distribution, generator: torch.Generator | None) -> Tensor:
    """A draw of every element, from any generator."""
    if isinstance(given, distributions.Normal):
        return given.loc + given.scale * normals(tuple(given.loc.shape), given.loc, generator)
    if isinstance(given, distributions.Poisson):
        rate = given.rate.detach()
        device = rate.device if generator is None else generator.device
        counts = torch.poisson(rate.clamp(max=MANY).to(device), generator=generator).to(rate.device)
        if not bool((rate > MANY).any()):
            return counts
        # torch's own draws overflow.
        large = (rate + rate.sqrt() * normals(tuple(rate.shape), rate, generator)).round()
        return torch.where(rate > MANY, torch.where(torch.isfinite(rate), large, rate), counts)
    if isinstance(given, distributions.Bernoulli):
        return (uniforms(given.probs.shape, given.probs, generator) < given.probs).to(given.probs.dtype)
    made: Tensor
    if generator is None:
        made = given.sample()
        return made
    seed = int(torch.randint(1 << 62, (1,), generator=generator, device=generator.device))
    with torch.random.fork_rng():  # other distributions draw from the global generator only
        torch.manual_seed(seed)
        made = given.sample()
    return made
