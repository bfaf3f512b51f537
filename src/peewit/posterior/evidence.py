"""The log marginal likelihood of the Laplace approximation, with all constants, and its parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..curvature.contracts import Curvature
from ..curvature.totals import Totals
from ..likelihoods import Likelihood, WithNoise
from ..likelihoods.contract import as_noise
from ..messages.errors import PeewitError
from ..network.values import change_tensors
from ..priors.prior import Prior
from ..weights.space import Space
from .linear_mode import LinearMode

TRAINED, LINEAR = "the trained weights", "the mode of the linear model"


def noise_precision_at(likelihood: Likelihood, noise: float | Tensor | None) -> Tensor:
    """The likelihood's noise precision, or that of another noise (which may require gradients)."""
    if noise is None:
        return likelihood.noise_precision
    if not isinstance(likelihood, WithNoise):
        raise PeewitError(f"noise={noise!r} was given, but {type(likelihood).__name__} has no noise; leave it out.")
    value = as_noise(noise, "log_evidence")
    if value.numel() != 1:
        raise PeewitError(
            f"noise has {value.numel()} numbers; expected one: the standard deviation, or the common factor of those "
            "of all outputs, whose ratios are fixed at the fit."
        )
    return value.reshape(()).pow(-2)


def data_weight(noise_precision: Tensor, degree: int, temperature: float, like: Tensor) -> Tensor:
    """(): what multiplies H, `noise_precision^degree / T`, if the weights' dtype can hold it."""
    weight = noise_precision.pow(degree) / temperature
    narrow = weight.detach().to(like.dtype)
    if not bool(torch.isfinite(narrow)) or not bool(narrow > 0):
        raise PeewitError(
            f"The noise {float(noise_precision.detach()) ** -0.5:.3g} multiplies the curvature by "
            f"{float(weight.detach()):.3g}, outside the range of {like.dtype}; use another noise, "
            "rescale the targets, or use a network in float64."
        )
    return weight.to(like.device)


def shared_numbers(curvature: Curvature, prior: Prior, space: Space, device: torch.device) -> Tensor | None:
    """(D,): which weights share a precision, where several inside a block do and gradients in them are wanted."""
    if curvature.elementwise or not prior.precision.requires_grad or prior.precision.numel() == 1:
        return None
    if prior.grouping.one_per_weight:
        raise PeewitError(
            "A gradient in one prior precision per weight was asked for, which Kronecker blocks do not have; "
            "use a scalar or layerwise prior, or structure='diag', 'block' or 'full'."
        )
    return prior.group(space).to(device)


@dataclass(frozen=True, kw_only=True)
class EvidenceProblem:
    """Everything that the evidence depends on, except the prior and the noise."""

    curvature: Curvature
    degree: int
    weights: Tensor  # (D,)
    space: Space
    likelihood: Likelihood
    totals: Totals
    temperature: float = 1.0
    linear_mode: LinearMode | None = None  # weights and totals are then those of the linear model

    def data_weight(self, noise_precision: Tensor) -> Tensor:
        """(): what multiplies H at this noise precision."""
        return data_weight(noise_precision, self.degree, self.temperature, self.weights)

    def parts(self, prior: Prior, noise: float | Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """`log p(D | theta)`, `|theta - mu|^2_delta` and `log |P| - log |delta|`, differentiable in both."""
        weights, curvature = self.weights, self.curvature
        noise_precision = noise_precision_at(self.likelihood, noise).to(weights.device)
        delta = prior.delta(self.space, weights)
        totals = self.totals
        constants = self.likelihood.log_z(totals.scalars, noise_precision) + totals.rest
        fit = -(noise_precision * totals.energy + constants) / self.temperature
        # Sums over millions of weights, whose large parts cancel: in float32 they would be off by whole nats.
        distance = (delta * (weights - prior.centre(self.space, weights)).square()).sum(dtype=torch.float64)
        numbers = shared_numbers(curvature, prior, self.space, weights.device)
        precision = curvature.precision(delta, self.data_weight(noise_precision), numbers)
        volume = precision.logdet() - delta.double().log().sum()
        return fit, distance, volume

    def log_evidence(self, prior: Prior, noise: float | Tensor | None = None) -> Tensor:
        """`log p(D | theta) - 1/2 |theta - mu|^2_delta + 1/2 log |delta| - 1/2 log |P|`."""
        fit, distance, volume = self.parts(prior, noise)
        return fit - 0.5 * (volume + distance)

    def evidence(self, prior: Prior, noise: float | Tensor | None = None) -> Evidence:
        """Its parts as numbers, with the effective dimensions."""
        with torch.no_grad():
            fit, distance, volume = (float(part) for part in self.parts(prior, noise))
            gamma = self.effective_dimensions(prior, noise)
        return Evidence(
            log_likelihood=fit,
            distance=distance,
            log_volume=volume,
            effective_dimensions=gamma,
            note=self.note(),
            prior=prior,
            space=self.space,
            where=self.where(prior, noise),
        )

    def effective_dimensions(self, prior: Prior, noise: float | Tensor | None = None) -> Tensor:
        """(groups,): `gamma_g = P_g - sum_{i in g} delta_i Sigma_ii`."""
        noise_precision = noise_precision_at(self.likelihood, noise).to(self.weights.device)
        if not self.curvature.elementwise:
            shares = self._shares(prior, self.data_weight(noise_precision).detach())
            if shares is not None:
                return sum_by_group(shares, prior, self.space)
        delta = prior.delta(self.space, self.weights).detach().double()
        # `1 - delta Sigma` cancels for all weights that the data do not determine: millions, in float32, add up.
        variance = in_float64(self.curvature).precision(delta, self.data_weight(noise_precision).detach()).variance()
        return sum_by_group(1 - delta * variance, prior, self.space)

    def _shares(self, prior: Prior, data_weight: Tensor) -> Tensor | None:
        """(D,): `data_weight l / (data_weight l + p)` by eigenvalues alone; summed by group, the effective dimensions.

        Eigenvectors in float32 are not quite of length one, on a GPU less so. None where there is no such form.
        """
        base = None if prior.base is None else prior.base.to(self.weights)
        values = self.curvature.spectrum(prior.stretches(self.space), base)
        if values is None:
            return None
        scaled = data_weight.double() * values.double()
        plain = prior if base is None else Prior.scalar(prior.precision)  # the ratios are in the eigenvalues
        return scaled / (scaled + plain.delta(self.space, self.weights).detach().double())

    def where(self, prior: Prior, noise: float | Tensor | None = None) -> str:
        """In words: at which weights the evidence is taken."""
        if self.linear_mode is None:
            return TRAINED
        noise_precision = float(noise_precision_at(self.likelihood, noise))
        if self.linear_mode.under(prior, noise_precision, self.temperature, self.space):
            return LINEAR
        return f"{LINEAR}, found under another prior, noise or temperature; find it again by at_linear_mode"

    def note(self) -> str:
        """Why the evidence is not a marginal likelihood, or nothing."""
        reasons = []
        if self.temperature != 1:
            reasons.append(
                f"at temperature {self.temperature:g} the likelihood is raised to 1/{self.temperature:g} and does not "
                "sum to one"
            )
        caveat = self.likelihood.caveat
        return "; ".join([*reasons, caveat] if caveat else reasons)


def sum_by_group(values: Tensor, prior: Prior, space: Space) -> Tensor:
    """(D,) -> (groups,) on the CPU in float64, the same every time (no sums in an order that varies)."""
    return prior.stretches(space).sums(values)


def in_float64(curvature: Curvature) -> Curvature:
    """The same with every floating point tensor inside it in float64."""
    return change_tensors(curvature, lambda tensor: tensor.detach().double() if tensor.is_floating_point() else tensor)


@dataclass(frozen=True, eq=False, kw_only=True)
class Evidence:
    """The log evidence in parts: the data fit, and the complexity with its two parts.

    `la.evidence()` returns it. `total` is `log_likelihood - 1/2 (distance + log_volume)`.

    Attributes:
        log_likelihood: `log p(D | theta)`, over the temperature.
        distance: `|theta - mu|^2` in the prior's precisions.
        log_volume: `log |P| - log |delta|`: posterior precision P, prior precision delta.
        effective_dimensions: Effective dimensions (groups,): how many weights of each group of the prior the data
            determine.
        note: Why the evidence is not a marginal likelihood; "" where it is one.
        prior: The prior.
        space: The uncertain weights.
        where: In words, the weights at which the evidence was taken: the trained ones, or the mode of the linear model,
            and whether that mode belongs to another prior, noise or temperature.
        total: The log evidence.
        complexity: `-1/2 (distance + log_volume)`: the price of the weights in the evidence.
        gamma: Effective dimensions of all groups together.
        groups: Names of the prior's groups.
        is_marginal_likelihood: Whether the evidence can compare models; `note` gives the reason where it cannot.

    Example:
        >>> evidence = la.evidence()
        >>> abs(evidence.total - (evidence.log_likelihood + evidence.complexity)) < 1e-9
        True
        >>> evidence.where, evidence.is_marginal_likelihood
        ('the trained weights', True)
    """

    log_likelihood: float
    distance: float
    log_volume: float
    effective_dimensions: Tensor
    note: str
    prior: Prior
    space: Space
    where: str = TRAINED

    @property
    def complexity(self) -> float:
        """`-1/2 (distance + log_volume)`: the price of the weights in the evidence."""
        return -0.5 * (self.distance + self.log_volume)

    @property
    def total(self) -> float:
        """The log evidence."""
        return self.log_likelihood + self.complexity

    @property
    def gamma(self) -> float:
        """Effective dimensions of all groups: how many weights the data determine."""
        return float(self.effective_dimensions.sum())

    @cached_property
    def groups(self) -> Sequence[str]:
        """The names of the prior's groups."""
        return self.prior.names(self.space)

    @property
    def is_marginal_likelihood(self) -> bool:
        """Whether the evidence can compare models; `note` gives the reason where it cannot."""
        return not self.note

    def __repr__(self) -> str:
        """A few lines: the parts, and the groups."""
        lines = [
            f"log evidence          {self.total:>14.4f}",
            f"  log likelihood      {self.log_likelihood:>14.4f}",
            f"  complexity          {self.complexity:>14.4f}   -1/2 (distance {self.distance:.4f} + "
            f"log volume {self.log_volume:.4f})",
            f"effective dimensions  {self.gamma:>14.4f}   of {self.space.size:,} weights",
        ]
        if self.where != TRAINED:
            lines.insert(1, f"  at {self.where}")
        if 1 < len(self.effective_dimensions) <= 40:
            width = max(len(name) for name in self.groups)
            sizes = self.prior.stretches(self.space).sizes.tolist()
            lines += [
                f"  {name:<{width}}  {gamma:>12.4f}   of {size:,}"
                for name, gamma, size in zip(self.groups, self.effective_dimensions.tolist(), sizes, strict=True)
            ]
        return "\n".join([*lines, f"not a marginal likelihood: {self.note}"] if self.note else lines)
