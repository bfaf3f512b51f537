"""One step of prior precisions and noise at the linear mode: Newton's, its pace, and the groups that have none."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from .by_evidence import OFF
from .profile import EvidencePoint, Profile

SMALL = 0.5  # effective dimensions below which precisions matter little to anything
LOOSE = 0.1  # what an inexact mode may change log precisions by, or a share of their last change where that is less
FASTER, SLOWER, FASTEST = 1.6, 0.5, 8.0  # how the pace changes, and its largest factor; its least is SLOWER
EVEN = 0.9  # of gamma over pull from which a group that is as good as switched off gains nothing by coming back
CONCAVE = 0.2  # the share of the second derivative at a mode held fixed that has to be left where it follows


@dataclass
class Pace:
    """How far each logarithm goes: further with every turn in one direction, less far where it turns back."""

    factors: Tensor | None = None
    last: Tensor | None = None  # the step before

    def of(self, step: Tensor) -> Tensor:
        """A step at this pace."""
        if self.factors is None or self.last is None:
            self.factors = torch.ones_like(step)
        else:
            turn = step * self.last
            changed = torch.where(turn > 0, FASTER, torch.where(turn < 0, SLOWER, 1.0))
            self.factors = (self.factors * changed).clamp(SLOWER, FASTEST)
        self.last = step
        return step * self.factors

    @property
    def steady(self) -> Tensor | bool:
        """(groups,) booleans: those that have kept their direction for so long that they go no faster."""
        return False if self.factors is None else self.factors[:-1] >= FASTEST

    def slow(self) -> None:
        """A step was too long."""
        if self.factors is not None:
            self.factors = (SLOWER * self.factors).clamp(min=SLOWER)


def switched_off(point: EvidencePoint) -> Tensor:
    """(groups,) booleans: without effect, and with nothing to gain by coming back."""
    return (point.gamma < OFF) & (point.gamma >= EVEN * point.pull)


def prior_dominated(point: EvidencePoint, answers: Tensor, steady: Tensor | bool) -> Tensor:
    """(groups,) booleans: those that the prior holds already, and for which the evidence wants still more of it.

    There `gamma` and `pull` both fall as 1 / delta, so nothing turns that on the way to being switched off. Where other
    groups explain the same, the answer of the mode does not show it, and many turns in one direction do.
    """
    held = (point.spread > 0.9 * point.gamma) & ((answers > 0.9 * point.pull) | steady)
    return held & (point.gamma > point.pull) & (point.gamma < 1)


def newton(profile: Profile, point: EvidencePoint, answers: Tensor, gradient: Tensor, open_: Tensor) -> Tensor:
    """(groups + 1,): Newton's step on the evidence with a mode that follows; NaN where that does not go uphill.

    `-d2 / dz_g^2 = (spread_g + pull_g) / 2 - c_g`, with the noise precision beta `c_g - degree spread_g / 2`, in beta
    twice `beta energy / T - sum c + degree^2 sum spread / 2`.
    """
    degree = profile.problem.degree
    magnitude = 0.5 * (point.spread + point.pull)
    curvature = magnitude - answers
    curvature = torch.where(curvature > CONCAVE * magnitude, curvature, math.nan)
    first = torch.where(open_[:-1], gradient[:-1], 0.0)
    if not bool(open_[-1]):
        return torch.cat([first / curvature, torch.zeros_like(gradient[-1:])])
    cross = torch.where(open_[:-1] & torch.isfinite(curvature), answers - 0.5 * degree * point.spread, 0.0)
    corner = point.surprise + 0.5 * degree**2 * float(point.spread.sum())
    known = curvature.nan_to_num(1.0)
    left = corner - float(answers.sum()) - float((cross.square() / known).sum())
    last = math.nan
    if left > CONCAVE * corner:
        last = (float(gradient[-1]) - float((cross * first / known).sum())) / left
    return torch.cat([(first - cross * (last if last == last else 0.0)) / curvature, gradient.new_tensor([last])])


def exactness(gamma: Tensor, free: Tensor, error: float) -> float:
    """Nats that the mode may be away from its own by, so that log precisions are wrong by no more than an error.

    An error of `t` nats that is spread as the effective dimensions are changes `log |theta - mu|^2` of a group by about
    `2 sqrt(2 t / gamma)`, with the sum of all.
    """
    total = float(gamma[free[:-1]].sum())
    return max(0.125 * max(total, SMALL) * min(error, LOOSE) ** 2, 1e-14)
