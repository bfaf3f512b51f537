"""Gaussian priors over the weights: `delta = exp(log_precision)[group]`, whatever the grouping is called."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Protocol, overload

import torch
from torch import Tensor, nn

from ..messages.names import nearest
from ..weights.groups import Groups
from ..weights.space import Space

Number = int | float | Tensor
FLOOR = 1e-4  # a g-prior's least precision, as a share of the mean over the tensor


def _tensor(value: object, what: str) -> Tensor:
    """Numbers as a tensor in floating point."""
    try:
        made = value if isinstance(value, Tensor) else torch.tensor(value, dtype=torch.float64, device="cpu")
        return made if made.is_floating_point() else made.double()
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{what} is a {type(value).__name__}, {value!r}; expected numbers.") from None


def _checked(value: Number | list[float], what: str) -> Tensor:
    # A Python number is exact in float64 alone: 0.7 in float32 is off by 2e-8.
    made = _tensor(value, f"{what}: prior precision")
    if made.numel() == 0 or not bool(torch.isfinite(made).all()) or not bool((made > 0).all()):
        raise ValueError(f"{what}: prior precision {value!r} was given; expected positive finite numbers.")
    return made


class WithDiagonal(Protocol):
    """What a g-prior needs of a curvature."""

    def diag(self, floor: float = 0.0) -> Tensor:
        """(D,): its diagonal, at least a share `floor` of the mean over each tensor."""
        ...


@dataclass(frozen=True)
class Prior:
    """Independent Gaussians with precisions by group, and a mean."""

    kind: str
    precision: Tensor
    patterns: tuple[str, ...] = ()
    mean: Number = 0.0
    base: Tensor | None = None  # (D,): fixed ratios, which the precisions multiply
    sets: tuple[tuple[str, ...], ...] = ()  # names of weights whose common scale does not matter

    def __post_init__(self) -> None:
        known = [name for name, each in vars(Prior).items() if isinstance(each, staticmethod)]
        if self.kind not in known:
            raise ValueError(f"Prior(kind={self.kind!r}) is not known; {nearest(self.kind, known)}See Prior.scalar.")
        if not bool(torch.isfinite(_tensor(self.mean, "The prior's mean").detach()).all()):
            raise ValueError(f"The prior's mean {self.mean!r} was given; expected finite numbers.")

    @staticmethod
    def scalar(precision: Number = 1.0, mean: Number = 0.0) -> Prior:
        """One precision for all weights."""
        made = _checked(precision, "Prior.scalar")
        if made.numel() != 1:
            raise ValueError(f"Prior.scalar: {made.numel()} precisions were given; expected one. See Prior.layerwise.")
        return Prior("scalar", made.reshape(1), mean=mean)

    @staticmethod
    def layerwise(precision: Number | list[float] = 1.0, mean: Number = 0.0) -> Prior:
        """One precision per parameter tensor."""
        return Prior("layerwise", _checked(precision, "Prior.layerwise").reshape(-1), mean=mean)

    @staticmethod
    def diagonal(precision: Number | list[float] = 1.0, mean: Number = 0.0) -> Prior:
        """One precision per weight."""
        return Prior("diagonal", _checked(precision, "Prior.diagonal").reshape(-1), mean=mean)

    @staticmethod
    def unitwise(precision: Number | list[float] = 1.0, mean: Number = 0.0) -> Prior:
        """One precision per index along the first axis of each tensor: per output unit, and per element of a vector."""
        return Prior("unitwise", _checked(precision, "Prior.unitwise").reshape(-1), mean=mean)

    @staticmethod
    def g_prior(precision: Number = 1.0, mean: Number = 0.0) -> Prior:
        """`delta_i = precision * diag(H)_i / N`, with H at scale 1: ratios fixed at the fit, one factor to tune."""
        made = _checked(precision, "Prior.g_prior")
        if made.numel() != 1:
            raise ValueError(f"Prior.g_prior: {made.numel()} precisions were given; expected one factor.")
        return Prior("g_prior", made.reshape(1), mean=mean)

    @staticmethod
    def groups(precisions: Mapping[str, float], mean: Number = 0.0) -> Prior:
        """One precision per group of parameter tensors, named by patterns; the first that fits holds."""
        named = isinstance(precisions, Mapping) and all(isinstance(pattern, str) for pattern in precisions)
        if not named or not precisions:
            raise TypeError(
                f"Prior.groups: {precisions!r} was given; expected a mapping from patterns of parameter names to "
                "precisions, such as {'head': 1.0, '*': 10.0}."
            )
        return Prior("groups", _checked([*precisions.values()], "Prior.groups"), tuple(precisions), mean)

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
        from .invariance import invariant_sets  # which needs much of the engine

        made = _checked(precision, "Prior.scale_invariant").reshape(-1)
        kind = "scale_invariant" if merge else "layerwise"
        return Prior(kind, made, mean=mean, sets=invariant_sets(model, data))

    def group(self, space: Space) -> Tensor:
        """(D,): the number of each weight's group."""
        return self.stretches(space).vector()

    def stretches(self, space: Space) -> Groups:
        """The same, without a number for each weight."""
        count = self.count(space)
        if self.kind in ("scalar", "g_prior"):
            numbers, lengths = [0], [space.size]
        elif self.kind == "diagonal":
            every = torch.arange(space.size, device="cpu")
            return Groups(every, torch.ones_like(every), count)
        elif self.kind == "unitwise":
            rows = [(_rows(shape), shape.numel() // max(_rows(shape), 1)) for shape in space.shapes]
            numbers, lengths = list(range(count)), [each for number, each in rows for _ in range(number)]
        else:
            lengths = [shape.numel() for shape in space.shapes]
            numbers = self._numbers(space)
        made = torch.tensor([numbers, lengths], device="cpu")
        made = made[:, made[1] > 0]
        groups = Groups(made[0], made[1], count)
        if space.mask is None or self.kind in ("scalar", "g_prior"):
            return groups
        return Groups.of(groups.vector()[space.mask.cpu()], count)

    def _numbers(self, space: Space) -> list[int]:
        """The group of each tensor, where tensors are not divided."""
        if self.kind == "layerwise":
            return [*range(len(space.names))]
        if self.kind == "groups":
            return [self._fitting(name) for name in space.names]
        if self.kind != "scale_invariant":
            return [0] * len(space.names)
        owners = {name: own[0] for own in self.sets for name in own}
        seen: dict[str, int] = {}  # sets by their first name, in the order of the weights
        return [seen.setdefault(owners.get(name, name), len(seen)) for name in space.names]

    def _fitting(self, name: str) -> int:
        for number, pattern in enumerate(self.patterns):
            if fnmatchcase(name, pattern) or name.startswith(f"{pattern}."):
                return number
        raise ValueError(f"Prior.groups: no pattern of {list(self.patterns)} fits {name!r}; add '*' for the rest.")

    def known(self, names: Iterable[str]) -> None:
        """Refuse a pattern that fits none of a network's parameters, most likely misspelt, and sets of another's."""
        every = list(names)
        strange = [name for own in self.sets for name in own if name not in every]
        if strange:
            raise ValueError(
                f"Prior.scale_invariant has sets with {', '.join(strange[:4])}, which the network does not have; find "
                "them on this network: Prior.scale_invariant(model, data)."
            )
        for pattern in self.patterns:
            if not any(fnmatchcase(name, pattern) or name.startswith(f"{pattern}.") for name in every):
                raise ValueError(
                    f"Prior.groups: {pattern!r} fits no parameter of the network; {nearest(pattern, every)}"
                    f"Its parameters are {', '.join(every[:4])}{', ...' if len(every) > 4 else ''}."
                )

    def count(self, space: Space) -> int:
        """How many groups the selected weights fall into; refuses precisions and means that do not fit them."""
        groups = {
            "scalar": 1,
            "g_prior": 1,
            "layerwise": len(space.names),
            "unitwise": sum(_rows(shape) for shape in space.shapes),
            "diagonal": space.size,
            "groups": len(self.patterns),
        }.get(self.kind)
        if groups is None:
            groups = max(self._numbers(space), default=-1) + 1
        if self.kind == "groups":
            for name in space.names:
                self._fitting(name)
        if self.precision.numel() not in (1, groups):
            raise ValueError(
                f"Prior.{self.kind}: {self.precision.numel()} precisions were given; expected "
                f"{'1' if groups == 1 else f'1 or {groups}'} for the selected weights."
            )
        if isinstance(self.mean, Tensor) and self.mean.numel() not in (1, space.size):
            raise ValueError(f"The prior's mean has {self.mean.numel()} numbers; expected 1 or {space.size}.")
        if self.base is not None and self.base.numel() != space.size:
            raise ValueError(
                f"Prior.{self.kind} was bound to the curvature of {self.base.numel()} weights, and {space.size} are "
                f"selected; give an unbound Prior.{self.kind}(...)."
            )
        return groups

    def names(self, space: Space) -> Sequence[str]:
        """What each group is called."""
        if self.kind in ("scalar", "g_prior"):
            return ("all",)
        if self.kind == "layerwise":
            return space.names
        if self.kind == "groups":
            return self.patterns
        if self.kind == "scale_invariant":
            return self._sets_by_name(space)
        return Names(space, self.kind == "unitwise")

    def _sets_by_name(self, space: Space) -> tuple[str, ...]:
        """The tensors of each group, in a few words."""
        members: dict[int, list[str]] = {}
        for name, number in zip(space.names, self._numbers(space), strict=True):
            members.setdefault(number, []).append(name)
        return tuple(together(names) for names in members.values())

    def straddling(self, space: Space, sets: Iterable[tuple[str, ...]] | None = None) -> list[tuple[str, ...]]:
        """Sets (its own, or others) whose precision some weights outside of the set share, not all by their curvature.

        Their scale then decides how large the precision of the others is.
        """
        if self.kind in ("unitwise", "diagonal", "g_prior"):
            return []
        numbers = dict(zip(space.names, self._numbers(space), strict=True))
        found = []
        for own in self.sets if sets is None else sets:
            inside = {numbers[name] for name in own if name in numbers}
            if any(number in inside for name, number in numbers.items() if name not in own):
                found.append(own)
        return found

    def bound(self, curvature: WithDiagonal, examples: int) -> Prior:
        """A g-prior with the ratios of a curvature; any other prior, or one already bound, is itself."""
        if self.kind != "g_prior" or self.base is not None:
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
            raise ValueError(
                f"Prior.{self.kind}: precisions from {float(self.precision.min()):.3g} to "
                f"{float(self.precision.max()):.3g} are outside the range of {like.dtype}; use others, or a network in "
                "float64."
            )
        precision = narrow.to(like.device)
        if self.kind == "g_prior":
            if self.base is None:
                raise ValueError("Prior.g_prior takes its ratios from a curvature; use la.with_prior, or prior.bound.")
            return precision * self.base.to(device=like.device, dtype=like.dtype)
        if precision.numel() == 1:
            return precision.expand(space.size)
        numbers = self.stretches(space)
        if not precision.requires_grad:
            return numbers.spread(precision.expand(groups))
        return precision.expand(groups)[numbers.vector().to(like.device)]  # whose gradient is the same every time

    def parts(self, space: Space, like: Tensor) -> Callable[[slice], Tensor]:
        """What `delta` has of some weights, without making all of it."""
        if self.kind == "g_prior" and self.base is not None:
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
        places = [torch.arange(piece.start, piece.stop, device="cpu") for piece in _selected_slices(space, kept.names)]
        left = torch.cat(places)
        precision, mean, base = self.precision, self.mean, self.base
        if self.kind in ("layerwise", "diagonal") and precision.numel() > 1:
            precision = precision[self.group(space)[left].unique().to(precision.device)]
        if self.kind == "scale_invariant" and precision.numel() > 1:
            # In the order in which they are met: a set may lose the tensor that it was numbered by.
            numbers = dict(zip(space.names, self._numbers(space), strict=True))
            met = dict.fromkeys(numbers[name] for name in kept.names)
            precision = precision[torch.tensor([*met], device=precision.device)]
        if self.kind == "unitwise" and precision.numel() > 1:
            owners = [
                name in kept.names
                for name, shape in zip(space.names, space.shapes, strict=True)
                for _ in range(_rows(shape))
            ]
            precision = precision[torch.tensor(owners, device=precision.device)]
        if base is not None:
            base = base[left.to(base.device)]
        if isinstance(mean, Tensor) and mean.numel() > 1:
            mean = mean.reshape(-1)[left.to(mean.device)]
        return replace(self, precision=precision, mean=mean, base=base)

    def carried(self, space: Space, more: Space) -> Prior:
        """The prior of more weights: groups are numbered as weights come, so numbers go along with their names."""
        if self.kind != "scale_invariant" or self.precision.numel() == 1:
            return self
        old = {name: self.precision[number] for name, number in zip(space.names, self._numbers(space), strict=True)}
        numbers = self._numbers(more)
        found = {number: old[name] for name, number in zip(more.names, numbers, strict=True) if name in old}
        missing = [name for name, number in zip(more.names, numbers, strict=True) if number not in found]
        if missing:
            raise ValueError(
                f"Prior.scale_invariant has no precision for {', '.join(missing)}, which the earlier data never used; "
                "use with_prior(...) with one precision before the update, or fit to all data at once."
            )
        return replace(self, precision=torch.stack([found[number] for number in range(max(numbers) + 1)]))

    def centre(self, space: Space, like: Tensor) -> Tensor:
        """(D,): the prior's mean."""
        self.count(space)
        mean = (
            torch.as_tensor(self.mean, dtype=None if isinstance(self.mean, Tensor) else torch.float64)
            .to(device=like.device, dtype=like.dtype)
            .reshape(-1)
        )
        return mean.expand(space.size)

    def with_precision(self, precision: Number) -> Prior:
        """The same groups and mean with other precisions, which may require gradients."""
        return replace(self, precision=_checked(precision, f"Prior.{self.kind}").reshape(-1))


class Names(Sequence[str]):
    """Names of units or single weights, such as `fc.weight[3]`, made when they are asked for: there can be millions."""

    def __init__(self, space: Space, units: bool) -> None:
        counts = [_rows(shape) if units else shape.numel() for shape in space.shapes]
        self.names, self.ends = space.names, list(itertools.accumulate(counts))
        self.own = None if units or space.mask is None else space.mask.nonzero()[:, 0].cpu()

    def __len__(self) -> int:
        """Groups."""
        return self.ends[-1] if self.own is None else len(self.own)

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        """One, or some."""
        if isinstance(place, slice):
            return [self[each] for each in range(*place.indices(len(self)))]
        number = range(len(self))[place]
        number = number if self.own is None else int(self.own[number])
        tensor = bisect.bisect_right(self.ends, number)
        start = self.ends[tensor - 1] if tensor else 0
        return f"{self.names[tensor]}[{number - start}]"


def together(names: Sequence[str]) -> str:
    """Several names as one: all of three, or the first and how many more."""
    return " + ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more"


def _rows(shape: torch.Size) -> int:
    """Indices along the first axis; a number without axes is one unit."""
    return shape[0] if len(shape) else 1


def _selected_slices(space: Space, names: tuple[str, ...]) -> list[slice]:
    """Where the selected elements of some tensors are in the vector of D weights."""
    made, start = [], 0
    for name, place in space.slices().items():
        size = place.stop - place.start if space.mask is None else int(space.mask[place].sum())
        if name in names:
            made.append(slice(start, start + size))
        start += size
    return made


def as_prior(value: Prior | Number, like: Prior | None = None) -> Prior:
    """A number is one precision for all weights; several take the groups of `like`, and both its mean."""
    if isinstance(value, Prior):
        return value
    if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
        raise TypeError(f"prior is a {type(value).__name__}; expected a positive number or a Prior.")
    if like is None:
        return Prior.scalar(value)
    if isinstance(value, Tensor) and value.numel() > 1:
        return like.with_precision(value)
    return Prior.scalar(value, like.mean)
