"""Predictions of Gaussian observations, in closed form."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, distributions

from ..messages.arguments import check_samples
from ..messages.errors import PeewitError
from .lazy_values import isolate
from .numbers import Moments, Numbers
from .outputs import GaussianOutputs, normals
from .prediction import check_level, normal_quantile


@isolate
@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
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
        std: Standard deviation of a new observation (N, ...): the root of `variance`.
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

    source: GaussianOutputs  # the Gaussian over the mean of y
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
        flat, known = self._targets(y)
        densities = self._log_density(flat.to(self.source.mean.dtype))
        return torch.where(known[..., 0], densities, 0.0).sum(1)

    def _log_density(self, flat: Tensor) -> Tensor:
        """(N, T, K) -> (N, T): some inputs at a time where their covariances are not there yet."""
        if self.source.deviation is None:
            log_density: Tensor = self._density().log_prob(flat)
            return log_density
        parts = []
        for chosen in self.source.budget.slices(len(flat), 4.0 * flat[0].numel() * flat.shape[-1] * flat.itemsize):
            piece = replace(self, source=self.source.some(chosen), noise=self.noise[chosen])
            parts.append(piece._density().log_prob(flat[chosen]))
        return torch.cat(parts)

    def joint_log_prob(self, y: Tensor) -> Tensor:
        """Compute the log density of the targets of all inputs together; needs `joint=True`.

        Args:
            y: Targets, as the network was trained on: one per input. They are never broadcast.

        Returns:
            One log density (), in nats.

        Raises:
            PeewitError: The targets do not fit the outputs, or the prediction was made without `joint=True`.
            ArgumentTypeError: `y` is not a tensor.

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

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        mean, epistemic, aleatoric = self._moments
        width = normal_quantile(check_level(level)) * (epistemic + aleatoric).sqrt()
        return self._restore(mean - width), self._restore(mean + width)

    def sample(self, samples: int, generator: torch.Generator | None = None) -> Tensor:
        values = self.source.random(check_samples(samples), generator)
        return self._restore(values + self.noise.sqrt() * normals(tuple(values.shape), values, generator))
