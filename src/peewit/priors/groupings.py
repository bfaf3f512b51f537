"""Which weights share a prior precision: one class per grouping, each with an entry in `NAMES`."""

from __future__ import annotations

import bisect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import ClassVar, overload

import torch
from torch import Tensor

from ..messages.errors import PeewitError
from ..messages.names import nearest
from ..weights.groups import Groups
from ..weights.space import Space

Sets = tuple[tuple[str, ...], ...]


class Grouping(ABC):
    """The groups of the weights, numbered from zero."""

    name: ClassVar[str]  # in messages, as in `Prior.layerwise`
    one_for_all: ClassVar[bool] = False  # all weights have the same precision, which every structure supports
    one_per_weight: ClassVar[bool] = False  # each weight is a group
    within_tensors: ClassVar[bool] = False  # each group is a part of one tensor
    by_curvature: ClassVar[bool] = False  # precisions multiply ratios from a curvature
    sets: Sets = ()  # scale-invariant sets of weights

    @abstractmethod
    def names(self, space: Space) -> Sequence[str]:
        """The names of the groups."""

    @abstractmethod
    def stretches(self, space: Space) -> Groups:
        """The group of each of the D weights."""

    def tensors(self, space: Space) -> dict[str, int]:
        """The group of each tensor, for groups of whole tensors; refuse a tensor without a group."""
        return {}

    def find_numbers(self, space: Space, remaining: Space) -> Tensor:
        """(groups of `remaining`,): their numbers in `space`, which has more tensors; those of empty groups stay."""
        if not self.one_per_weight:  # so groups can have no selected weight
            space, remaining = replace(space, mask=None), replace(remaining, mask=None)
        numbers = torch.arange(len(self.names(remaining)), device="cpu")
        numbers[self.stretches(remaining).vector()] = self.stretches(space).vector()[positions_among(space, remaining)]
        return numbers

    def carry_over(self, space: Space, more: Space) -> list[int] | None:
        """(groups of `more` weights,): their numbers in `space`; None if the numbers stay."""
        return None

    def refuse_unknown(self, names: Sequence[str]) -> None:  # noqa: B027 (few groupings refuse anything)
        """Refuse fields that do not fit a network with these parameters."""


class WholeTensors(Grouping):
    """Groups of whole tensors."""

    @abstractmethod
    def tensors(self, space: Space) -> dict[str, int]:
        """The group of each tensor, numbered by first occurrence unless `names` is overridden."""

    def names(self, space: Space) -> Sequence[str]:
        members: dict[int, list[str]] = {}
        for name, number in self.tensors(space).items():
            members.setdefault(number, []).append(name)
        return tuple(together(names) for names in members.values())

    def stretches(self, space: Space) -> Groups:
        sizes = [shape.numel() for shape in space.shapes]
        return select_stretches([*self.tensors(space).values()], sizes, len(self.names(space)), space)


class OneGroup(WholeTensors):
    """All weights in one group."""

    def tensors(self, space: Space) -> dict[str, int]:
        return dict.fromkeys(space.names, 0)

    def names(self, space: Space) -> Sequence[str]:
        return ("all",)


@dataclass(frozen=True)
class Scalar(OneGroup):
    """One precision for all weights."""

    name = "scalar"
    one_for_all = True


@dataclass(frozen=True)
class GPrior(OneGroup):
    """One factor for precisions in the ratios of a curvature."""

    name = "g_prior"
    by_curvature = True


@dataclass(frozen=True)
class Layerwise(WholeTensors):
    """One precision per tensor; `sets` is kept for users and changes nothing."""

    name = "layerwise"
    sets: Sets = ()

    def tensors(self, space: Space) -> dict[str, int]:
        return {name: number for number, name in enumerate(space.names)}


@dataclass(frozen=True)
class ScaleInvariant(WholeTensors):
    """One precision per set of tensors, and one for each other tensor."""

    name = "scale_invariant"
    sets: Sets = ()

    def tensors(self, space: Space) -> dict[str, int]:
        owners = {name: own[0] for own in self.sets for name in own}
        seen: dict[str, int] = {}  # sets by their first tensor, in the order of the weights
        return {name: seen.setdefault(owners.get(name, name), len(seen)) for name in space.names}

    def carry_over(self, space: Space, more: Space) -> list[int]:
        before, after = self.tensors(space), self.tensors(more)
        numbers = {number: before[name] for name, number in after.items() if name in before}
        missing = [name for name, number in after.items() if number not in numbers]
        if missing:
            raise PeewitError(
                f"Prior.{self.name} has no precision for {', '.join(missing)}, which earlier data did not use; "
                "use with_prior(...) with one precision before the update, or fit to all data at once."
            )
        return [numbers[number] for number in range(len(numbers))]


@dataclass(frozen=True)
class NamedGroups(WholeTensors):
    """One precision per pattern of names; the first pattern that fits counts."""

    name = "groups"
    patterns: tuple[str, ...] = ()

    def tensors(self, space: Space) -> dict[str, int]:
        return {name: self._fitting(name) for name in space.names}

    def _fitting(self, name: str) -> int:
        for number, pattern in enumerate(self.patterns):
            if fits(name, pattern):
                return number
        raise PeewitError(f"Prior.groups: no pattern of {list(self.patterns)} fits {name!r}; add '*' for the rest.")

    def names(self, space: Space) -> Sequence[str]:
        return self.patterns

    def refuse_unknown(self, names: Sequence[str]) -> None:
        """Refuse a pattern that fits no parameter: it is probably misspelt."""
        refuse_unfitting(self.patterns, names, "Prior.groups")


@dataclass(frozen=True)
class Unitwise(Grouping):
    """One precision per index along the first axis of each tensor."""

    name = "unitwise"
    within_tensors = True

    def names(self, space: Space) -> Sequence[str]:
        return NumberedNames(space, [rows(shape) for shape in space.shapes])

    def stretches(self, space: Space) -> Groups:
        lengths = [shape.numel() // rows(shape) for shape in space.shapes for _ in range(rows(shape))]
        return select_stretches([*range(len(lengths))], lengths, len(lengths), space)


@dataclass(frozen=True)
class Inputwise(Grouping):
    """One precision per index along the second axis of each tensor that a pattern fits; one per other tensor."""

    name = "inputwise"
    within_tensors = True
    patterns: tuple[str, ...] = ("*",)

    def names(self, space: Space) -> Sequence[str]:
        return ColumnNames(space, [self._columns(*each) for each in zip(space.names, space.shapes, strict=True)])

    def _columns(self, name: str, shape: torch.Size) -> int:
        """Number of groups of a tensor."""
        split = len(shape) > 1 and any(fits(name, pattern) for pattern in self.patterns)
        return shape[1] if split else 1

    def stretches(self, space: Space) -> Groups:
        numbers, lengths, count = [], [], 0
        for name, shape in zip(space.names, space.shapes, strict=True):
            columns = self._columns(name, shape)
            repeats, length = (shape[0], shape[2:].numel()) if columns > 1 else (1, shape.numel())
            numbers += [*range(count, count + columns)] * repeats
            lengths += [length] * columns * repeats
            count += columns
        return select_stretches(numbers, lengths, count, space)

    def refuse_unknown(self, names: Sequence[str]) -> None:
        """Refuse a pattern that fits no parameter: it is probably misspelt."""
        refuse_unfitting(self.patterns, names, "Prior.inputwise")


@dataclass(frozen=True)
class Diagonal(Grouping):
    """One precision per weight."""

    name = "diagonal"
    one_per_weight = within_tensors = True

    def names(self, space: Space) -> Sequence[str]:
        own = None if space.mask is None else space.mask.nonzero()[:, 0].cpu()
        return NumberedNames(space, [shape.numel() for shape in space.shapes], own)

    def stretches(self, space: Space) -> Groups:
        every = torch.arange(space.size, device="cpu")
        return Groups(every, torch.ones_like(every), space.size)


GROUPINGS = (Scalar, Layerwise, Unitwise, Inputwise, Diagonal, NamedGroups, GPrior, ScaleInvariant)
NAMES: dict[str, type[Grouping]] = {each.name: each for each in GROUPINGS}


class NumberedNames(Sequence[str]):
    """Names of units or single weights, such as `fc.weight[3]`, made on access: there can be millions."""

    def __init__(self, space: Space, counts: Iterable[int], own: Tensor | None = None) -> None:
        self.names, self.starts, self.own = space.names, [*itertools.accumulate(counts, initial=0)], own

    def __len__(self) -> int:
        """Number of groups."""
        return self.starts[-1] if self.own is None else len(self.own)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        """One name, or a list of names."""
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        number = number if self.own is None else int(self.own[number])
        tensor = bisect.bisect_right(self.starts, number) - 1
        return self._name(tensor, number - self.starts[tensor])

    def _name(self, tensor: int, number: int) -> str:
        return f"{self.names[tensor]}[{number}]"


class ColumnNames(NumberedNames):
    """Names of columns, such as `fc.weight[:, 3]`; a tensor with a single group keeps its own."""

    def __init__(self, space: Space, counts: Sequence[int]) -> None:
        super().__init__(space, counts)
        self.counts = counts

    def _name(self, tensor: int, number: int) -> str:
        return f"{self.names[tensor]}[:, {number}]" if self.counts[tensor] > 1 else self.names[tensor]


def together(names: Sequence[str]) -> str:
    """Several names as one text: up to three names, or the first and the number of the others."""
    return " + ".join(names) if len(names) <= 3 else f"{names[0]} and {len(names) - 1} more"


def refuse_unfitting(patterns: Iterable[str], names: Sequence[str], what: str) -> None:
    """Refuse a pattern that fits none of a network's parameters."""
    for pattern in patterns:
        if not any(fits(name, pattern) for name in names):
            raise PeewitError(
                f"{what}: {pattern!r} fits no parameter of the network; {nearest(pattern, names)}"
                f"Its parameters are {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}."
            )


def fits(name: str, pattern: str) -> bool:
    """Whether a pattern matches a parameter, or is the name of a module that holds it."""
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")


def rows(shape: torch.Size) -> int:
    """Length of the first axis; 1 for a tensor without axes."""
    return shape[0] if len(shape) else 1


def select_stretches(numbers: list[int], lengths: list[int], count: int, space: Space) -> Groups:
    """Stretches over all elements of the tensors, without those that are not selected."""
    stretches = torch.tensor([[0], [space.size]] if count == 1 else [numbers, lengths], device="cpu")
    stretches = stretches[:, stretches[1] > 0]
    groups = Groups(stretches[0], stretches[1], count)
    return groups if space.mask is None or count == 1 else Groups.of(groups.vector()[space.mask.cpu()], count)


def positions_among(space: Space, kept: Space) -> Tensor:
    """(D of `kept`,): the places of its weights among those of `space`."""
    counts = space.counts()
    owners = torch.tensor([name in kept.names for name in counts], device="cpu")
    return owners.repeat_interleave(torch.tensor([*counts.values()], device="cpu")).nonzero()[:, 0]
