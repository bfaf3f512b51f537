"""The evidence as a function of log precisions and log scale alone: what tuning climbs.

It is concave in both together for every curvature without negative eigenvalues: `|scale H + sum_g p_g D_g|` is a
polynomial with no negative coefficients, so the logarithm of it is convex in the logarithms of its arguments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..evidence import Question, doubled, summed
from ..priors import Prior


@dataclass(frozen=True)
class Place:
    """Log precisions (groups,) and the log scale, on the CPU in float64."""

    precision: Tensor
    scale: float

    @property
    def noise(self) -> float:
        """The standard deviation."""
        return math.exp(-0.5 * self.scale)


@dataclass(frozen=True)
class Point:
    """The evidence at a place, with what its derivatives are made of."""

    place: Place
    value: float
    gamma: Tensor  # (groups,): effective dimensions
    spread: Tensor  # (groups,): `sum r (1 - r)` over shares r = scale l / (scale l + p), or no less than it
    pull: Tensor  # (groups,): p |theta - mu|^2
    surprise: float  # scale * energy / temperature

    @property
    def finite(self) -> bool:
        """Whether there is a posterior here."""
        return math.isfinite(self.value) and bool(torch.isfinite(self.gamma).all())


@dataclass(frozen=True)
class Profile:
    """A question about the evidence, reduced to eigenvalues where the prior allows it."""

    question: Question
    prior: Prior  # with all its precisions
    sizes: Tensor  # (groups,): weights
    squares: Tensor  # (groups,): |theta - mu|^2, in the prior's fixed ratios
    eigenvalues: Tensor | None  # in float64, sorted by group, without zeros; None where there is no such form
    lengths: Tensor  # (groups,): how many eigenvalues each group has

    @property
    def flat(self) -> Tensor:
        """(groups,) booleans: groups without curvature, about which the data say nothing at any precision."""
        found = summed(self.question.curvature.diag(), self.prior, self.question.space) / self.sizes.clamp(min=1)
        return found <= 1e-14 * found.max()

    @property
    def exact(self) -> bool:
        """Whether the spread, and so the second derivative, is exact."""
        return self.eigenvalues is not None

    def start(self) -> Place:
        """The prior's own precisions and the likelihood's own scale."""
        scale = math.log(float(self.question.likelihood.scale))
        return Place(self.prior.precision.detach().cpu().double().log(), scale)

    def at(self, place: Place) -> Point:
        """Never touches the data."""
        question = self.question
        scale = torch.tensor(place.scale, dtype=torch.float64, device="cpu").exp()
        strength = scale.pow(question.degree) / question.temperature  # on the CPU: the device is asked once a step
        spectral = self.eigenvalues is not None
        gamma, spread, volume = (self._spectral if spectral else self._general)(place, strength)
        energy = float(scale * question.totals.energy) / question.temperature
        constant = float(question.likelihood.log_z(question.totals.scalars, scale)) + question.totals.rest
        constant = constant / question.temperature
        pull = place.precision.exp() * self.squares
        value = -energy - constant - 0.5 * (float(pull.sum()) + volume)
        return Point(place, value, gamma, spread, pull, energy)

    def _spectral(self, place: Place, strength: Tensor) -> tuple[Tensor, Tensor, float]:
        """`r = scale l / (scale l + p)`: gamma is its sum, the volume `- sum log(1 - r)`."""
        values = self.eigenvalues
        assert values is not None
        factors = (strength.log() - place.precision).exp().to(values.device)
        many = len(factors) > 1
        ratio = values * (factors.repeat_interleave(self.lengths) if many else factors)
        volume = ratio.log1p().sum()
        share = ratio.div_(1 + ratio)
        gamma = segments(share, self.lengths) if many else share.sum()[None]
        squares = segments(share.square(), self.lengths) if many else share.dot(share)[None]
        gathered = torch.cat([gamma, gamma - squares, volume[None]]).cpu()
        gamma, spread = gathered[:-1].reshape(2, -1)
        return gamma, spread, float(gathered[-1])

    def _general(self, place: Place, strength: Tensor) -> tuple[Tensor, Tensor, float]:
        """By the posterior precision itself; spreads are those of shares that are equal within each group."""
        question, mode = self.question, self.question.mode
        delta = self.prior.with_precision(place.precision.exp()).delta(question.space, mode)
        try:
            precision = question.curvature.precision(delta, strength.to(mode.device))
            volume = float(precision.logdet() - delta.log().sum())
            shares = 1 - delta.double() * precision.variance().double()
        except ValueError:  # not positive definite to rounding: no posterior here
            nothing = torch.zeros_like(self.squares)
            return nothing, nothing, math.inf
        gamma = summed(shares, self.prior, question.space)
        gamma = gamma.minimum(self.sizes.double()).clamp(min=0)
        return gamma, gamma * (1 - gamma / self.sizes.clamp(min=1)), volume


def segments(values: Tensor, lengths: Tensor) -> Tensor:
    """Numbers sorted by group -> (groups,): their sums, in an order that does not vary."""
    return torch.segment_reduce(values, "sum", lengths=lengths)


def profile(question: Question, prior: Prior) -> Profile:
    """Prepare tuning: eigenvalues once where the prior has one precision per block, else the operators themselves."""
    space, mode = question.space, question.mode
    groups = prior.count(space)
    prior = prior.with_precision(prior.precision.detach().cpu().double().expand(groups).clone())
    numbers = prior.group(space)
    sizes = numbers.bincount(minlength=groups) if groups > 1 else torch.tensor([space.size], device="cpu")
    squares = (mode - prior.centre(space, mode)).detach().double().square()
    if prior.base is not None:
        squares = squares * prior.base.to(squares)
    with torch.no_grad():
        values = question.curvature.spectrum(numbers, None if prior.base is None else prior.base.to(mode))
        lengths = sizes
        if values is None:
            ones = torch.ones((), dtype=torch.float64, device=mode.device)
            question.curvature.precision(prior.delta(space, mode), ones, numbers.to(mode.device))  # or refused here
            # Climbing to the top takes differences of evidences, which float32 loses.
            question = replace(question, curvature=doubled(question.curvature), mode=mode.double())
        else:
            values = rounded(values.detach().double())
            lengths, values = sorted_by_group(values, numbers, groups)
    return Profile(question, prior, sizes, summed(squares, prior, space), values, lengths)


def sorted_by_group(values: Tensor, numbers: Tensor, groups: int) -> tuple[Tensor, Tensor]:
    """How many eigenvalues other than zero each group has, and these, one group after the other."""
    kept = values != 0
    if groups == 1:
        values = values[kept]
        return torch.tensor([len(values)], device=values.device), values
    numbers = numbers.to(values.device)[kept]
    order = numbers.argsort(stable=True)
    return numbers.bincount(minlength=groups), values[kept][order]


def rounded(values: Tensor) -> Tensor:
    """Eigenvalues without those that are negative by rounding alone."""
    slack = 1e-6 * float(values.abs().max())
    return torch.where((values < 0) & (values > -slack), torch.zeros_like(values), values)
