"""Gaussian priors over the weights: `delta = precision[group]`, whatever the grouping."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..messages.errors import ArgumentTypeError, PeewitError
from ..messages.names import nearest
from ..weights.groups import Groups
from ..weights.space import Space
from . import groupings
from .groupings import NAMES, Grouping, belonging
from .invariance import invariant_sets

Number = int | float | Tensor
FLOOR = 1e-4  # a g-prior's least precision, as a share of the mean over the tensor


def _tensor(value: object, what: str) -> Tensor:
    """Numbers as a tensor in floating point."""
    try:
        made = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")
        return made if made.is_floating_point() else made.double()
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentTypeError(f"{what} is a {type(value).__name__}, {value!r}; expected numbers.") from None


def _checked(value: Number | list[float], what: str) -> Tensor:
    # A Python number is exact in float64 alone: 0.7 in float32 is off by 2e-8.
    made = _tensor(value, f"{what}: prior precision")
    if made.numel() == 0 or not bool(torch.isfinite(made).all()) or not bool((made > 0).all()):
        raise PeewitError(f"{what}: prior precision {value!r} was given; expected positive finite numbers.")
    return made


class WithDiagonal(Protocol):
    """What a g-prior needs of a curvature."""

    def diag(self, floor: float = 0.0) -> Tensor:
        """(D,): its diagonal, at least a share `floor` of the mean over each tensor."""
        ...


@dataclass(frozen=True)
class Prior:
    """Independent Gaussians with precisions by group, and a mean."""

    grouping: Grouping  # or its name
    precision: Tensor
    mean: Number = 0.0
    base: Tensor | None = None  # (D,): fixed ratios, which the precisions multiply

    def __post_init__(self) -> None:
        if not isinstance(self.grouping, Grouping):
            if self.grouping not in [*NAMES]:
                near = nearest(self.grouping, NAMES)
                raise PeewitError(f"Prior(grouping={self.grouping!r}) is not known; {near}See Prior.scalar.")
            object.__setattr__(self, "grouping", NAMES[self.grouping]())
        if not bool(torch.isfinite(_tensor(self.mean, "The prior's mean").detach()).all()):
            raise PeewitError(f"The prior's mean {self.mean!r} was given; expected finite numbers.")

    @staticmethod
    def scalar(precision: Number = 1.0, mean: Number = 0.0) -> Prior:
        """One precision for all weights."""
        made = _checked(precision, "Prior.scalar")
        if made.numel() != 1:
            raise PeewitError(f"Prior.scalar: {made.numel()} precisions were given; expected one. See Prior.layerwise.")
        return Prior(groupings.Scalar(), made.reshape(1), mean)

    @staticmethod
    def layerwise(precision: Number | list[float] = 1.0, mean: Number = 0.0) -> Prior:
        """One precision per parameter tensor."""
        return Prior(groupings.Layerwise(), _checked(precision, "Prior.layerwise").reshape(-1), mean)

    @staticmethod
    def diagonal(precision: Number | list[float] = 1.0, mean: Number = 0.0) -> Prior:
        """One precision per weight."""
        return Prior(groupings.Diagonal(), _checked(precision, "Prior.diagonal").reshape(-1), mean)

    @staticmethod
    def unitwise(precision: Number | list[float] = 1.0, mean: Number = 0.0) -> Prior:
        """One precision per index along the first axis of each tensor: per output unit, and per element of a vector."""
        return Prior(groupings.Unitwise(), _checked(precision, "Prior.unitwise").reshape(-1), mean)

    @staticmethod
    def g_prior(precision: Number = 1.0, mean: Number = 0.0) -> Prior:
        """`delta_i = precision * diag(H)_i / N`, with H at scale 1: ratios fixed at the fit, one factor to tune."""
        made = _checked(precision, "Prior.g_prior")
        if made.numel() != 1:
            raise PeewitError(f"Prior.g_prior: {made.numel()} precisions were given; expected one factor.")
        return Prior(groupings.GPrior(), made.reshape(1), mean)

    @staticmethod
    def groups(precisions: Mapping[str, float], mean: Number = 0.0) -> Prior:
        """One precision per group of parameter tensors, named by patterns; the first that fits holds."""
        named = isinstance(precisions, Mapping) and all(isinstance(pattern, str) for pattern in precisions)
        if not named or not precisions:
            raise ArgumentTypeError(
                f"Prior.groups: {precisions!r} was given; expected a mapping from patterns of parameter names to "
                "precisions, such as {'head': 1.0, '*': 10.0}."
            )
        return Prior(groupings.NamedGroups(tuple(precisions)), _checked([*precisions.values()], "Prior.groups"), mean)

    @staticmethod
    def scale_invariant(
        model: nn.Module,
        data: Any,
        *,
        merge: bool = False,
        precision: Number | list[float] = 1.0,
        mean: Number = 0.0,
    ) -> Prior:
        """One precision per parameter tensor, with the sets of tensors whose common scale changes no output.

        The sets are found on the first batch of `data` and stand in `sets` and in `la.coverage()`. `merge`: one
        precision per set, and one for each other tensor.
        """
        made = _checked(precision, "Prior.scale_invariant").reshape(-1)
        sets = invariant_sets(model, data)
        return Prior(groupings.ScaleInvariant(sets) if merge else groupings.Layerwise(sets), made, mean)

    @property
    def sets(self) -> groupings.Sets:
        """Names of weights whose common scale does not matter, where the grouping has them."""
        return self.grouping.sets

    def group(self, space: Space) -> Tensor:
        """(D,): the number of each weight's group."""
        return self.stretches(space).vector()

    def stretches(self, space: Space) -> Groups:
        """The same, without a number for each weight."""
        self.count(space)
        return self.grouping.stretches(space)

    def known(self, names: Iterable[str]) -> None:
        """Refuse a pattern that fits none of a network's parameters, most likely misspelt, and sets of another's."""
        every = list(names)
        strange = [name for own in self.sets for name in own if name not in every]
        if strange:
            raise PeewitError(
                f"Prior.scale_invariant has sets with {', '.join(strange[:4])}, which the network does not have; find "
                "them on this network: Prior.scale_invariant(model, data)."
            )
        self.grouping.known(every)

    def count(self, space: Space) -> int:
        """How many groups the selected weights fall into; refuses precisions and means that do not fit them."""
        self.grouping.tensors(space)  # refuses a tensor that is in no group
        groups = len(self.grouping.names(space))
        if self.precision.numel() not in (1, groups):
            raise PeewitError(
                f"Prior.{self.grouping.name}: {self.precision.numel()} precisions were given; expected "
                f"{'1' if groups == 1 else f'1 or {groups}'} for the selected weights."
            )
        if isinstance(self.mean, Tensor) and self.mean.numel() not in (1, space.size):
            raise PeewitError(f"The prior's mean has {self.mean.numel()} numbers; expected 1 or {space.size}.")
        if self.base is not None and self.base.numel() != space.size:
            raise PeewitError(
                f"Prior.{self.grouping.name} was bound to the curvature of {self.base.numel()} weights, and "
                f"{space.size} are selected; give an unbound Prior.{self.grouping.name}(...)."
            )
        return groups

    def names(self, space: Space) -> Sequence[str]:
        """What each group is called."""
        return self.grouping.names(space)

    def straddling(self, space: Space, sets: Iterable[tuple[str, ...]] | None = None) -> list[tuple[str, ...]]:
        """Sets (its own, or others) whose precision some weights outside of the set share, not all by their curvature.

        Their scale then decides how large the precision of the others is.
        """
        numbers = {} if self.grouping.by_curvature else self.grouping.tensors(space)
        found = []
        for own in self.sets if sets is None else sets:
            inside = {numbers[name] for name in own if name in numbers}
            if any(number in inside for name, number in numbers.items() if name not in own):
                found.append(own)
        return found

    def bound(self, curvature: WithDiagonal, examples: int) -> Prior:
        """A g-prior with the ratios of a curvature; any other prior, or one already bound, is itself."""
        if not self.grouping.by_curvature or self.base is not None:
            return self
        return replace(self, base=(curvature.diag(FLOOR) / examples).detach())

    @property
    def least(self) -> float:
        """The precision beside which rounding must not show: the smallest, and at most one, for it may be tuned."""
        return min(1.0, float(self.precision.detach().min()))

    def delta(self, space: Space, like: Tensor) -> Tensor:
        """(D,): the precision of each weight, differentiable in `precision`."""
        groups = self.count(space)
        narrow = self.precision.to(like.dtype)
        if not bool(torch.isfinite(narrow.detach()).all()) or not bool((narrow.detach() > 0).all()):
            raise PeewitError(
                f"Prior.{self.grouping.name}: precisions from {float(self.precision.min()):.3g} to "
                f"{float(self.precision.max()):.3g} are outside the range of {like.dtype}; use others, or a network in "
                "float64."
            )
        precision = narrow.to(like.device)
        if self.grouping.by_curvature:
            if self.base is None:
                raise PeewitError("Prior.g_prior takes its ratios from a curvature; use la.with_prior, or prior.bound.")
            return precision * self.base.to(device=like.device, dtype=like.dtype)
        if precision.numel() == 1:
            return precision.expand(space.size)
        numbers = self.stretches(space)
        if not precision.requires_grad:
            return numbers.spread(precision.expand(groups))
        return precision.expand(groups)[numbers.vector().to(like.device)]  # whose gradient is the same every time

    def parts(self, space: Space, like: Tensor) -> Callable[[slice], Tensor]:
        """What `delta` has of some weights, without making all of it."""
        if self.grouping.by_curvature and self.base is not None:
            precision, base = self.precision.detach().to(like), self.base.to(like)
            return lambda chosen: precision * base[chosen]
        if self.precision.numel() == 1:
            return self.delta(space, like).detach().__getitem__  # one number, expanded
        numbers, values = self.stretches(space), self.precision.detach().to(like)
        return lambda chosen: numbers.part(values, chosen)

    def only(self, space: Space, kept: Space) -> Prior:
        """The prior of the weights that are left after unused ones were taken out."""
        if kept.names == space.names:
            return self
        left = belonging(space, kept)
        precision, mean, base = self.precision, self.mean, self.base
        if precision.numel() > 1:
            precision = precision[self.grouping.left(space, kept).to(precision.device)]
        if base is not None:
            base = base[left.to(base.device)]
        if isinstance(mean, Tensor) and mean.numel() > 1:
            mean = mean.reshape(-1)[left.to(mean.device)]
        return replace(self, precision=precision, mean=mean, base=base)

    def carried(self, space: Space, more: Space) -> Prior:
        """The prior of more weights: groups are numbered as weights come, so numbers go along with their names."""
        numbers = None if self.precision.numel() == 1 else self.grouping.carried(space, more)
        return self if numbers is None else replace(self, precision=self.precision[numbers])

    def centre(self, space: Space, like: Tensor) -> Tensor:
        """(D,): the prior's mean."""
        self.count(space)
        mean = torch.as_tensor(self.mean, dtype=None if isinstance(self.mean, Tensor) else torch.float64)
        return mean.to(device=like.device, dtype=like.dtype).reshape(-1).expand(space.size)

    def with_precision(self, precision: Number) -> Prior:
        """The same groups and mean with other precisions, which may require gradients."""
        return replace(self, precision=_checked(precision, f"Prior.{self.grouping.name}").reshape(-1))


def as_prior(value: Prior | Number, like: Prior | None = None) -> Prior:
    """A number is one precision for all weights; several take the groups of `like`, and both its mean."""
    if isinstance(value, Prior):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
        raise ArgumentTypeError(f"prior is a {type(value).__name__}; expected a positive number or a Prior.")
    if like is None:
        return Prior.scalar(value)
    if isinstance(value, Tensor) and value.numel() > 1:
        return like.with_precision(value)
    return Prior.scalar(value, like.mean)
