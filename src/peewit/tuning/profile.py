"""The evidence as a function of log precisions and log noise precision alone: what tuning climbs.

It is concave in both together for every curvature without negative eigenvalues: `|beta H + sum_g p_g D_g|` is a
polynomial in the noise precision beta and in p with no negative coefficients, so the logarithm of it is convex in the
logarithms of its arguments.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..posterior.evidence import EvidenceProblem, in_float64, sum_by_group
from ..priors.prior import Prior
from ..weights.groups import GroupRows


@dataclass(frozen=True)
class Hyperparameters:
    """Log precisions (groups,) and the log noise precision, on the CPU in float64."""

    precision: Tensor
    noise_precision: float

    @property
    def noise(self) -> float:
        """The standard deviation."""
        return math.exp(-0.5 * self.noise_precision)


@dataclass(frozen=True, kw_only=True)
class EvidencePoint:
    """The evidence at a place, with what its derivatives are made of."""

    place: Hyperparameters
    value: float
    gamma: Tensor  # (groups,): effective dimensions
    spread: Tensor  # (groups,): `sum r (1 - r)` over shares r = w l / (w l + p), w the data weight; or no less than it
    pull: Tensor  # (groups,): p |theta - mu|^2
    surprise: float  # noise_precision * energy / temperature

    @property
    def finite(self) -> bool:
        """Whether there is a posterior here."""
        return math.isfinite(self.value) and bool(torch.isfinite(self.gamma).all())


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A question about the evidence, reduced to eigenvalues where the prior allows it."""

    question: EvidenceProblem
    prior: Prior  # with all its precisions
    sizes: Tensor  # (groups,): weights
    squares: Tensor  # (groups,): |theta - mu|^2, in the prior's fixed ratios
    eigenvalues: GroupRows | None  # in float64; None where there is no such form

    @property
    def flat(self) -> Tensor:
        """(groups,) booleans: groups without curvature, about which the data say nothing at any precision."""
        if self.eigenvalues is None:
            total = sum_by_group(self.question.curvature.diag(), self.prior, self.question.space)
        else:
            total = self.eigenvalues.sums(self.eigenvalues.values.abs().sum(1).cpu())
        found = total / self.sizes.clamp(min=1)
        return found <= 1e-14 * found.max()

    @property
    def exact(self) -> bool:
        """Whether the spread, and so the second derivative, is exact."""
        return self.eigenvalues is not None

    def start(self) -> Hyperparameters:
        """The prior's own precisions and the likelihood's own noise precision."""
        noise_precision = math.log(float(self.question.likelihood.noise_precision))
        return Hyperparameters(self.prior.precision.detach().cpu().double().log(), noise_precision)

    def at(self, place: Hyperparameters) -> EvidencePoint:
        """Never touches the data."""
        question = self.question
        noise_precision = torch.tensor(place.noise_precision, dtype=torch.float64, device="cpu").exp()
        # On the CPU: the device is asked once a step.
        data_weight = noise_precision.pow(question.degree) / question.temperature
        spectral = self.eigenvalues is not None
        gamma, spread, volume = (self._spectral if spectral else self._general)(place, data_weight)
        energy = float(noise_precision * question.totals.energy) / question.temperature
        constant = float(question.likelihood.log_z(question.totals.scalars, noise_precision)) + question.totals.rest
        constant = constant / question.temperature
        pull = place.precision.exp() * self.squares
        value = -energy - constant - 0.5 * (float(pull.sum()) + volume)
        return EvidencePoint(place=place, value=value, gamma=gamma, spread=spread, pull=pull, surprise=energy)

    def _spectral(self, place: Hyperparameters, data_weight: Tensor) -> tuple[Tensor, Tensor, float]:
        """`r = data_weight l / (data_weight l + p)`: gamma is its sum, the volume `- sum log(1 - r)`."""
        rows = self.eigenvalues
        assert rows is not None
        made = []
        for ratio in rows.parts((data_weight.log() - place.precision).exp()):
            volume = ratio.log1p().sum(1)
            share = ratio.div_(1 + ratio)
            made.append(torch.stack([share.sum(1), share.mul_(share).sum(1), volume]))
        gathered = rows.sums(torch.cat(made, 1).cpu())  # of all sums at once: the device is asked one time
        return gathered[0], gathered[0] - gathered[1], float(gathered[2].sum())

    def _general(self, place: Hyperparameters, data_weight: Tensor) -> tuple[Tensor, Tensor, float]:
        """By the posterior precision itself; spreads are those of shares that are equal within each group."""
        question, mode = self.question, self.question.mode
        delta = self.prior.with_precision(place.precision.exp()).delta(question.space, mode)
        try:
            precision = question.curvature.precision(delta, data_weight.to(mode.device))
            volume = float(precision.logdet() - delta.log().sum())
            shares = 1 - delta.double() * precision.variance().double()
        except ValueError:  # not positive definite to rounding: no posterior here
            nothing = torch.zeros_like(self.squares)
            return nothing, nothing, math.inf
        gamma = sum_by_group(shares, self.prior, question.space)
        gamma = gamma.minimum(self.sizes.double()).clamp(min=0)
        return gamma, gamma * (1 - gamma / self.sizes.clamp(min=1)), volume


def profile(question: EvidenceProblem, prior: Prior) -> Profile:
    """Prepare tuning: eigenvalues once where the prior has one precision per block, else the operators themselves."""
    space, mode = question.space, question.mode
    groups = prior.stretches(space)
    prior = prior.with_precision(prior.precision.detach().cpu().double().expand(groups.count).clone())
    squares = (mode - prior.centre(space, mode)).detach().double().square()
    if prior.base is not None:
        squares = squares * prior.base.to(squares)
    with torch.no_grad():
        values = question.curvature.spectrum(groups, None if prior.base is None else prior.base.to(mode))
        if values is None:
            ones = torch.ones((), dtype=torch.float64, device=mode.device)
            question.curvature.precision(prior.delta(space, mode), ones, groups.vector().to(mode.device))  # or refused
            # Climbing to the top takes differences of evidences, which float32 loses.
            question = replace(question, curvature=in_float64(question.curvature), mode=mode.double())
        rows = None if values is None else GroupRows.of(clip_rounding(values.detach().double()), groups)
    return Profile(question=question, prior=prior, sizes=groups.sizes, squares=groups.sums(squares), eigenvalues=rows)


def clip_rounding(values: Tensor) -> Tensor:
    """Eigenvalues without those that are negative by rounding alone."""
    slack = 1e-6 * float(values.abs().max())
    return torch.where((values < 0) & (values > -slack), torch.zeros_like(values), values)
