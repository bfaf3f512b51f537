"""Steps of prior precisions and noise up the evidence, with the curvature held, by Adam in their logarithms."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..messages.warnings import TuningWarning, warn
from ..posterior.state import PosteriorState
from ..priors.prior import Prior
from ..tuning.ascent import TuningRange, gradient_of, hyperparameters_of
from ..tuning.by_evidence import noise_limits
from ..tuning.options import LIMITS
from ..tuning.profile import EvidencePoint, Profile, profile_of
from ..weights.space import Space
from .options import Ascending


class HyperOptimizer:
    """Adam on log precisions (groups,) and the log noise precision, which keeps its moments between hyper-steps."""

    def __init__(self, z: Tensor) -> None:
        self.z = z.detach().clone().requires_grad_()
        self.adam = torch.optim.Adam([self.z], lr=0.0, maximize=True, foreach=False)
        self.taken = 0

    @classmethod
    def of(cls, prior: Prior, space: Space, noise_precision: float) -> HyperOptimizer:
        """At the beginning."""
        precision = prior.precision.detach().cpu().double().expand(prior.count(space))
        noise = torch.tensor([math.log(noise_precision)], dtype=torch.float64, device="cpu")
        return cls(torch.cat([precision.log(), noise]))

    def copy(self) -> HyperOptimizer:
        """Another one in the same state."""
        other = HyperOptimizer(self.z)
        other.load_state_dict(self.state_dict())
        return other

    def climb(self, state: PosteriorState, numbers: Tensor, ascending: Ascending) -> EvidencePoint:
        """Some steps from a posterior's own prior and noise; `numbers` are its groups among those of all weights."""
        profile = profile_of(state.problem, state.prior)
        places = torch.cat([numbers, numbers.new_tensor([len(self.z) - 1])])
        allowed = allowed_range(state, profile, ascending)
        point = self._point(profile, places)
        for _ in range(ascending.steps):
            before = self.z.detach().clone()
            self._step(places, gradient_of(profile, point), allowed, ascending.rate_at(self.taken))
            trial = self._point(profile, places)
            if not trial.finite:
                warn("A hyper-step left the range in which there is a posterior, and ends before it.", TuningWarning)
                self.z.data.copy_(before)
                break
            point = trial
        return point

    def _point(self, profile: Profile, places: Tensor) -> EvidencePoint:
        return profile.at(hyperparameters_of(self.z.detach()[places]))

    def _step(self, places: Tensor, slope: Tensor, allowed: TuningRange, rate: float) -> None:
        """One step of Adam; what is not free stays, also where earlier steps have left it momentum."""
        before = self.z.detach()[places]
        self.z.grad = torch.zeros_like(self.z).index_put_((places,), torch.where(allowed.free, slope, 0.0))
        self.adam.param_groups[0]["lr"] = rate
        self.adam.step()
        self.taken += 1
        with torch.no_grad():
            self.z[places] = torch.where(allowed.free, allowed.clip(self.z[places]), before)

    @property
    def precision(self) -> Tensor:
        """(groups,)."""
        return self.z.detach()[:-1].exp()

    @property
    def noise(self) -> float:
        """The standard deviation."""
        return hyperparameters_of(self.z.detach()).noise

    def state_dict(self) -> dict[str, Any]:
        """All of it, in tensors of its own."""
        return {"z": self.z.detach().clone(), "adam": copy.deepcopy(self.adam.state_dict()), "taken": self.taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self.z.data.copy_(state["z"])
        self.adam.load_state_dict(copy.deepcopy(state["adam"]))
        self.taken = state["taken"]


def allowed_range(state: PosteriorState, profile: Profile, ascending: Ascending) -> TuningRange:
    """What may change and how far: not groups about which the data say nothing."""
    groups = len(profile.sizes)
    free = ascending.prior & (profile.sizes > 0) & ~profile.flat
    low, high = (torch.full((groups + 1,), math.log(limit), dtype=torch.float64) for limit in LIMITS)
    if ascending.noise:
        quiet, loud = noise_limits(state)
        low[-1], high[-1] = -2 * math.log(loud), -2 * math.log(quiet)
    return TuningRange(torch.cat([free, torch.tensor([ascending.noise])]), low, high)
