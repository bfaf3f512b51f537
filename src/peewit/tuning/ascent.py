"""Climbing the evidence: Newton's method on log precisions and log noise precision, and MacKay's fixed point."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .profile import EvidencePoint, Hyperparameters, Profile

SUFFICIENT = 1e-4  # the share of a step's promised gain that it has to keep
LONGEST = 6.0  # the longest step in a logarithm: a factor of 400
HISTORY = 20


@dataclass(frozen=True)
class TuningRange:
    """What may be changed, and how far: logarithms of precisions and of the noise precision."""

    free: Tensor  # (groups + 1,) booleans; the last is the noise precision
    low: Tensor
    high: Tensor

    def clip(self, z: Tensor) -> Tensor:
        """The nearest allowed numbers; what is not free stays as it is."""
        return torch.where(self.free, z.minimum(self.high).maximum(self.low), z)

    def open(self, z: Tensor, gradient: Tensor) -> Tensor:
        """(groups + 1,) booleans: what can still move uphill."""
        return self.free & ~((z <= self.low) & (gradient < 0)) & ~((z >= self.high) & (gradient > 0))


@dataclass
class Path:
    """The points that were passed, and why it ended."""

    points: list[EvidencePoint] = field(default_factory=list)
    stopped: str = ""
    converged: bool = False

    def end(self, converged: bool, why: str) -> Path:
        """The last word."""
        self.converged, self.stopped = converged, why
        return self


def vector(hyperparameters: Hyperparameters) -> Tensor:
    """(groups + 1,)."""
    return torch.cat(
        [
            hyperparameters.log_precision,
            torch.tensor([hyperparameters.log_noise_precision], dtype=torch.float64, device="cpu"),
        ]
    )


def hyperparameters_of(z: Tensor) -> Hyperparameters:
    """The other way round."""
    return Hyperparameters(z[:-1], float(z[-1]))


def gradient_of(profile: Profile, point: EvidencePoint) -> Tensor:
    """(groups + 1,): `1/2 (gamma_g - p_g |theta_g - mu_g|^2)`, and `n / 2T - beta energy / T - degree gamma / 2`."""
    problem = profile.problem
    slope = 0.5 * problem.totals.scalars / problem.temperature - point.surprise
    slope -= 0.5 * problem.degree * float(point.gamma.sum())
    return torch.cat([0.5 * (point.gamma - point.pull), torch.tensor([slope], dtype=torch.float64, device="cpu")])


def newton(profile: Profile, point: EvidencePoint, rhs: Tensor, open_: Tensor) -> Tensor:
    """Minus the inverse of the second derivative, times a vector: precisions meet in the noise precision alone.

    `-d2 / dz_g^2 = (spread_g + pull_g) / 2`, with the noise precision beta `- degree spread_g / 2`, in beta twice
    `beta energy / T + degree^2 sum spread / 2`.
    """
    degree = profile.problem.degree
    spread = torch.where(open_[:-1], point.spread, 0.0)
    curvature = 0.5 * (point.spread + point.pull) + 1e-12
    first = torch.where(open_[:-1], rhs[:-1], 0.0)
    if not bool(open_[-1]):
        return torch.cat([first / curvature, torch.zeros_like(rhs[-1:])])
    cross = -0.5 * degree * spread
    corner = point.surprise + 0.5 * degree**2 * float(point.spread.sum()) + 1e-12
    left = corner - float((cross.square() / curvature).sum())
    last = (float(rhs[-1]) - float((cross * first / curvature).sum())) / max(left, 1e-12 * corner)
    return torch.cat([(first - cross * last) / curvature, rhs.new_tensor([last])])


def quasi_newton(pairs: list[tuple[Tensor, Tensor]], gradient: Tensor, base: Callable[[Tensor], Tensor]) -> Tensor:
    """L-BFGS: the inverse second derivative by the last steps, on top of `base` as the first guess."""
    q, shares = gradient, []
    for step, change in reversed(pairs):
        share = float(step @ q) / float(step @ change)
        q = q - share * change
        shares.append(share)
    q = base(q)
    for (step, change), share in zip(pairs, reversed(shares), strict=True):
        q = q + (share - float(change @ q) / float(step @ change)) * step
    return q


def ascend(profile: Profile, allowed: TuningRange, steps: int, tolerance: float) -> Path:
    """To the top: exact Newton steps where the spectrum is known, else L-BFGS, with a line search inside the limits."""
    path = Path([profile.at(hyperparameters_of(allowed.clip(vector(profile.start()))))])
    _jump(profile, allowed, path)
    pairs: list[tuple[Tensor, Tensor]] = []
    for _ in range(steps):
        point = path.points[-1]
        z, gradient = vector(point.hyperparameters), gradient_of(profile, point)
        open_ = allowed.open(z, gradient)
        if not bool(open_.any()):
            return path.end(True, "everything that may change is at an edge of its range")
        uphill = torch.where(open_, gradient, 0.0)

        def base(rhs: Tensor, point: EvidencePoint = point, open_: Tensor = open_) -> Tensor:
            return newton(profile, point, rhs, open_)

        direction = base(uphill)
        if pairs:
            better = torch.where(open_, quasi_newton(pairs, uphill, base), 0.0)
            direction = better if float(better @ uphill) > 0 else direction
        if float(direction.abs().max()) <= tolerance and float(base(uphill).abs().max()) <= tolerance:
            final = profile.at(hyperparameters_of(allowed.clip(z + direction)))
            if final.finite and final.value >= point.value - rounding(point):
                path.points.append(final)
            return path.end(True, f"the next step would change no logarithm by more than {tolerance:g}")
        following = _search(profile, allowed, point, direction, uphill)
        if following is None:
            small = float(base(uphill).abs().max()) < math.sqrt(tolerance)
            return path.end(small, "no step improves the evidence beyond rounding")
        path.points.append(following)
        if not profile.exact:
            step = vector(following.hyperparameters) - z
            change = gradient - gradient_of(profile, following)
            if float(step @ change) > 1e-12 * float(step.norm() * change.norm()):
                pairs = [*pairs[-HISTORY + 1 :], (step, change)]
    return path.end(False, f"{steps} steps were not enough")


def _jump(profile: Profile, allowed: TuningRange, path: Path) -> None:
    """A few of MacKay's steps while they climb: from afar they are longer than Newton's."""
    for _ in range(4):
        point = path.points[-1]
        after = profile.at(hyperparameters_of(mackay(profile, allowed, point)))
        if not point.finite or not after.finite or after.value <= point.value:
            return
        path.points.append(after)


def _search(
    profile: Profile, allowed: TuningRange, point: EvidencePoint, direction: Tensor, uphill: Tensor
) -> EvidencePoint | None:
    """The first of ever shorter steps that keeps enough of the gain it promised, or flattens the slope at the top."""
    z = vector(point.hyperparameters)
    length = min(1.0, LONGEST / max(float(direction.abs().max()), 1e-300))
    slack = rounding(point)
    for _ in range(40):
        position = allowed.clip(z + length * direction)
        trial = profile.at(hyperparameters_of(position))
        promised = float(uphill @ (position - z))
        if trial.finite and trial.value > point.value + SUFFICIENT * promised:
            return trial
        if trial.finite and promised < 1e3 * slack and trial.value >= point.value - slack:
            slope = torch.where(uphill != 0, gradient_of(profile, trial), 0.0)
            if float(slope.norm()) < 0.9 * float(uphill.norm()):
                return trial
        length /= 2
        if promised < slack:
            return None
    return None


def rounding(point: EvidencePoint) -> float:
    """How far two evaluations of the same evidence may be apart."""
    return 1e-13 * (abs(point.value) + float(point.pull.sum()))


def mackay(profile: Profile, allowed: TuningRange, point: EvidencePoint) -> Tensor:
    """(groups + 1,): `p_g = gamma_g / |theta_g - mu_g|^2` and `noise^2 = SSE / (n - degree T gamma)`.

    Where gamma leaves less than half of n the latter runs away; `(SSE + degree T gamma noise^2) / n` has the same fixed
    point and does not.
    """
    problem = profile.problem
    precision = (point.gamma.clamp(min=0) / profile.squares).log()
    precision = torch.where(torch.isnan(precision), point.hyperparameters.log_precision, precision)
    number, errors = problem.totals.scalars, 2 * problem.totals.energy
    degrees = problem.degree * problem.temperature * float(point.gamma.sum())
    if degrees <= 0.5 * number:
        variance = errors / max(number - degrees, 1e-300)
    else:
        variance = (errors + degrees * math.exp(-point.hyperparameters.log_noise_precision)) / number
    noise_precision = precision.new_tensor([-math.log(max(variance, 1e-300))])
    z = torch.where(allowed.free, torch.cat([precision, noise_precision]), vector(point.hyperparameters))
    return allowed.clip(z)


def fixed_point(profile: Profile, allowed: TuningRange, steps: int, tolerance: float) -> Path:
    """MacKay's updates until what is left of them, at the rate they shrink, is below the tolerance."""
    path = Path([profile.at(hyperparameters_of(allowed.clip(vector(profile.start()))))])
    before = math.inf
    for _ in range(steps):
        point = path.points[-1]
        if not point.finite:
            return path.end(False, "the updates left the range in which there is a posterior")
        z = mackay(profile, allowed, point)
        path.points.append(profile.at(hyperparameters_of(z)))
        moved = float((z - vector(point.hyperparameters)).abs().max())
        # Of one step alone the rate is not known: it may be the first of many that hardly shrink.
        rate = 0.9999 if before == math.inf else min(moved / before, 0.9999)
        before = moved
        if moved * rate / (1 - rate) <= tolerance and moved <= math.sqrt(tolerance):
            return path.end(True, f"what is left of the updates changes no logarithm by more than {tolerance:g}")
    return path.end(False, f"{steps} steps were not enough")
