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

    log_precision: Tensor
    log_noise_precision: float

    @property
    def noise(self) -> float:
        """The standard deviation."""
        return math.exp(-0.5 * self.log_noise_precision)


@dataclass(frozen=True, kw_only=True)
class EvidencePoint:
    """The evidence at some hyperparameters, with what its derivatives are made of."""

    hyperparameters: Hyperparameters
    value: float
    gamma: Tensor  # (groups,): effective dimensions
    spread: Tensor  # (groups,): `sum r (1 - r)` over shares r = w l / (w l + p), w the data weight; or no less than it
    pull: Tensor  # (groups,): p |theta - mu|^2
    surprise: float  # noise_precision * energy / temperature
    log_likelihood: float = math.nan  # the data fit, over the temperature

    @property
    def finite(self) -> bool:
        """Whether there is a posterior here."""
        return math.isfinite(self.value) and bool(torch.isfinite(self.gamma).all())


@dataclass(frozen=True, kw_only=True)
class Profile:
    """What the evidence depends on, reduced to eigenvalues where the prior allows it."""

    problem: EvidenceProblem
    prior: Prior  # with all its precisions
    sizes: Tensor  # (groups,): weights
    squares: Tensor  # (groups,): |theta - mu|^2, in the prior's fixed ratios
    eigenvalues: GroupRows | None  # in float64; None where there is no such form

    @property
    def flat(self) -> Tensor:
        """(groups,) booleans: groups without curvature, about which the data say nothing at any precision."""
        if self.eigenvalues is None:
            total = sum_by_group(self.problem.curvature.diag(), self.prior, self.problem.space)
        else:
            total = self.eigenvalues.sums(self.eigenvalues.values.abs().sum(1).cpu())
        means = total / self.sizes.clamp(min=1)
        return means <= 1e-14 * means.max()

    @property
    def exact(self) -> bool:
        """Whether the spread, and so the second derivative, is exact."""
        return self.eigenvalues is not None

    def start(self) -> Hyperparameters:
        """The prior's own precisions and the likelihood's own noise precision."""
        noise_precision = math.log(float(self.problem.likelihood.noise_precision))
        return Hyperparameters(self.prior.precision.detach().cpu().double().log(), noise_precision)

    def at(self, hyperparameters: Hyperparameters) -> EvidencePoint:
        """Never touches the data."""
        problem = self.problem
        noise_precision = torch.tensor(hyperparameters.log_noise_precision, dtype=torch.float64, device="cpu").exp()
        # On the CPU: the device is asked once a step.
        data_weight = noise_precision.pow(problem.degree) / problem.temperature
        spectral = self.eigenvalues is not None
        gamma, spread, volume = (self._spectral if spectral else self._general)(hyperparameters, data_weight)
        energy = float(noise_precision * problem.totals.energy) / problem.temperature
        constant = float(problem.likelihood.log_z(problem.totals.scalars, noise_precision)) + problem.totals.rest
        constant = constant / problem.temperature
        pull = hyperparameters.log_precision.exp() * self.squares
        fit = -energy - constant
        return EvidencePoint(
            hyperparameters=hyperparameters,
            value=fit - 0.5 * (float(pull.sum()) + volume),
            log_likelihood=fit,
            gamma=gamma,
            spread=spread,
            pull=pull,
            surprise=energy,
        )

    def _spectral(self, hyperparameters: Hyperparameters, data_weight: Tensor) -> tuple[Tensor, Tensor, float]:
        """`r = data_weight l / (data_weight l + p)`: gamma is its sum, the volume `- sum log(1 - r)`."""
        rows = self.eigenvalues
        assert rows is not None
        parts = []
        for ratio in rows.parts((data_weight.log() - hyperparameters.log_precision).exp()):
            volume = ratio.log1p().sum(1)
            share = ratio.div_(1 + ratio)
            parts.append(torch.stack([share.sum(1), share.mul_(share).sum(1), volume]))
        sums = rows.sums(torch.cat(parts, 1).cpu())  # of all sums at once: the device is asked one time
        return sums[0], sums[0] - sums[1], float(sums[2].sum())

    def _general(self, hyperparameters: Hyperparameters, data_weight: Tensor) -> tuple[Tensor, Tensor, float]:
        """By the posterior precision itself; spreads are those of shares that are equal within each group."""
        problem, weights = self.problem, self.problem.weights
        delta = self.prior.with_precision(hyperparameters.log_precision.exp()).delta(problem.space, weights)
        try:
            precision = problem.curvature.precision(delta, data_weight.to(weights.device))
            volume = float(precision.logdet() - delta.log().sum())
            shares = 1 - delta.double() * precision.variance().double()
        except ValueError:  # not positive definite to rounding: no posterior here
            nothing = torch.zeros_like(self.squares)
            return nothing, nothing, math.inf
        gamma = sum_by_group(shares, self.prior, problem.space)
        gamma = gamma.minimum(self.sizes.double()).clamp(min=0)
        return gamma, gamma * (1 - gamma / self.sizes.clamp(min=1)), volume


def profile_of(problem: EvidenceProblem, prior: Prior) -> Profile:
    """Prepare tuning: eigenvalues once where the prior has one precision per block, else the operators themselves."""
    space, weights = problem.space, problem.weights
    groups = prior.stretches(space)
    prior = prior.with_precision(prior.precision.detach().cpu().double().expand(groups.count).clone())
    squares = (weights - prior.centre(space, weights)).detach().double().square()
    if prior.base is not None:
        squares = squares * prior.base.to(squares)
    with torch.no_grad():
        values = problem.curvature.spectrum(groups, None if prior.base is None else prior.base.to(weights))
        if values is None:
            ones = torch.ones((), dtype=torch.float64, device=weights.device)
            numbers = groups.vector().to(weights.device)
            problem.curvature.precision(
                prior.delta(space, weights), ones, numbers
            )  # raises if it cannot hold the prior
            # Climbing to the top takes differences of evidences, which float32 loses.
            problem = replace(problem, curvature=in_float64(problem.curvature), weights=weights.double())
        rows = None if values is None else GroupRows.of(clip_rounding(values.detach().double()), groups)
    return Profile(problem=problem, prior=prior, sizes=groups.sizes, squares=groups.sums(squares), eigenvalues=rows)


def clip_rounding(values: Tensor) -> Tensor:
    """Eigenvalues without those that are negative by rounding alone."""
    slack = 1e-6 * float(values.abs().max())
    return torch.where((values < 0) & (values > -slack), torch.zeros_like(values), values)
