"""Arguments `shifts=` and `attacks=`: test inputs changed at rising strengths, or data sets that are ready."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

import torch
from torch import Tensor

from ..messages.errors import ArgumentTypeError, PeewitError
from ..messages.names import nearest
from ..network.nests import Inputs, count, map_tensors
from .attacks import ATTACKS, EPSILONS, Attack
from .corruptions import CORRUPTIONS, STRENGTHS, check_images, corrupt_images

ShiftName: TypeAlias = Literal["noise", "blur", "contrast", "rotation"]
"""A corruption of images; "noise" is one of any numbers."""
AttackName: TypeAlias = Literal["fgsm", "pgd"]
"""A way to change inputs on purpose: one step along the sign of the loss' gradient, or ten."""
Levels: TypeAlias = float | Sequence[float] | Tensor
"""One strength or several."""
Change: TypeAlias = Callable[..., Any]
"""A function that changes inputs: of (x, strength) for a corruption, of (model, x, y, epsilon) for an attack."""
ByName: TypeAlias = Mapping[str, Levels | Change | tuple[Change, Levels] | Mapping[float, Any] | None]
"""By name: strengths, a function, a pair of both, or ready data by strength. None for the usual strengths."""
Shifts: TypeAlias = ShiftName | Sequence[ShiftName] | ByName
"""Corruptions: their names, or a mapping with strengths and functions of your own."""
Attacks: TypeAlias = AttackName | Sequence[AttackName] | ByName
"""Attacks: their names, or a mapping with epsilons and functions of your own."""
Make = Callable[[Inputs, Tensor, int], Iterator[tuple[float, Inputs]]]


@dataclass(frozen=True, kw_only=True)
class Variation:
    """One corruption or attack: known by its name, the user's own, or ready data sets by strength."""

    kind: str  # "shifts" or "attacks"
    name: str
    strengths: tuple[float, ...]
    change: Callable[..., Any] | None = None
    ready: Mapping[float, Any] | None = None

    @property
    def known(self) -> bool:
        """Whether its name says what it does."""
        return self.change is None and self.ready is None

    @property
    def plain(self) -> bool:
        """Whether its name says all: its strengths are the usual ones."""
        return self.known and self.strengths == (STRENGTHS if self.kind == "shifts" else EPSILONS)

    def check(self, inputs: Inputs) -> None:
        """Refuse inputs that it has no meaning for."""
        if self.known:
            check_images(self.name, inputs, self.kind)

    def maker(self, attack: Attack, seed: int) -> Make:
        """A function of inputs, targets and the number of the first example: inputs at every strength."""
        if self.change is not None:
            return self._custom(attack)
        if self.kind == "attacks":
            by_name = {"fgsm": attack.fgsm, "pgd": attack.pgd}[self.name]
            return lambda x, y, first: by_name(cast("Tensor", x), y, self.strengths)

        def corrupt(x: Inputs, y: Tensor, first: int) -> Iterator[tuple[float, Inputs]]:
            self.check(x)
            for strength in self.strengths:
                yield strength, corrupt_images(self.name, cast("Tensor", x), strength, attack.limits, first, seed)

        return corrupt

    def _custom(self, attack: Attack) -> Make:
        def make(x: Inputs, y: Tensor, first: int) -> Iterator[tuple[float, Inputs]]:
            for strength in self.strengths:
                copy = map_tensors(torch.clone, x)
                assert self.change is not None
                arguments = (copy, strength) if self.kind == "shifts" else (attack.model, copy, y, strength)
                changed = self.change(*arguments)
                if count(changed) != count(x):
                    raise PeewitError(
                        f"{self.kind}: the function for {self.name!r} returned {count(changed)} inputs for {count(x)}; "
                        "expected as many."
                    )
                yield strength, map_tensors(Tensor.detach, changed)

        return make


def variations_of(value: Any, kind: str) -> list[Variation]:
    """The corruptions or attacks of an argument, checked."""
    if value is None:
        return []
    if isinstance(value, str):
        value = [value]
    if isinstance(value, Mapping):
        return [_one(kind, name, entry) for name, entry in value.items()]
    if isinstance(value, Sequence):
        return [_one(kind, name, None) for name in value]
    raise ArgumentTypeError(
        f"{kind} is a {type(value).__name__}; expected names ({', '.join(_known_names(kind))}), or a mapping from "
        "names to strengths or functions."
    )


def _known_names(kind: str) -> Sequence[str]:
    return tuple(CORRUPTIONS) if kind == "shifts" else ATTACKS


def _one(kind: str, name: Any, value: Any) -> Variation:
    if not isinstance(name, str):
        raise ArgumentTypeError(f"{kind}: {name!r} is a {type(name).__name__}; expected a name.")
    defaults = STRENGTHS if kind == "shifts" else EPSILONS
    if callable(value):
        return Variation(kind=kind, name=name, strengths=defaults, change=value)
    if isinstance(value, Mapping):
        return Variation(kind=kind, name=name, strengths=_strengths(kind, name, tuple(value)), ready=dict(value))
    if isinstance(value, tuple) and len(value) == 2 and callable(value[0]):
        return Variation(kind=kind, name=name, strengths=_strengths(kind, name, value[1]), change=value[0])
    if name not in _known_names(kind):
        arguments = "(x, strength)" if kind == "shifts" else "(model, x, y, epsilon)"
        raise PeewitError(
            f"{kind}: {name!r} is not known; {nearest(name, _known_names(kind))}Known: "
            f"{', '.join(_known_names(kind))}. Your own are given as {{{name!r}: function of {arguments}}}."
        )
    return Variation(kind=kind, name=name, strengths=defaults if value is None else _strengths(kind, name, value))


def _strengths(kind: str, name: str, levels: Any) -> tuple[float, ...]:
    """Rising positive numbers; 0 is the test set itself, which is always there."""
    values = [levels] if isinstance(levels, int | float) else levels.tolist() if isinstance(levels, Tensor) else levels
    good = isinstance(values, Sequence) and not isinstance(values, str)
    if not good or not all(
        isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < math.inf for value in values
    ):
        raise PeewitError(
            f"{kind}: {name!r} has strengths {levels!r}; expected positive numbers, such as {STRENGTHS[:3]}."
        )
    strengths = tuple(sorted({float(value) for value in values if value > 0}))
    if not strengths:
        raise PeewitError(f"{kind}: {name!r} has no strength above 0; expected some.")
    return strengths
