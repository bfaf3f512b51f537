"""What `shifts=` and `attacks=` ask for: test inputs changed at rising strengths, or data sets that are ready."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..messages.errors import ArgumentTypeError, PeewitError
from ..messages.names import nearest
from ..network.nests import Inputs, count, map_tensors
from .attacks import ATTACKS, EPSILONS, Attack
from .corruptions import CORRUPTIONS, STRENGTHS, check_images, corrupted

Make = Callable[[Inputs, Tensor, int], Iterator[tuple[float, Inputs]]]


@dataclass(frozen=True)
class Asked:
    """One corruption or attack: known by its name, the user's own, or ready data sets by strength."""

    kind: str  # "shifts" or "attacks"
    name: str
    strengths: tuple[float, ...]
    own: Callable[..., Any] | None = None
    ready: Mapping[float, Any] | None = None

    def check(self, inputs: Inputs) -> None:
        """Refuse inputs that it has no meaning for."""
        if self.own is None and self.ready is None:
            check_images(self.name, inputs, self.kind)

    def made(self, attack: Attack, seed: int) -> Make:
        """A function of inputs, targets and the number of the first example: inputs at every strength."""
        if self.own is not None:
            return self._own(attack)
        if self.kind == "attacks":
            by_name = {"fgsm": attack.fgsm, "pgd": attack.pgd}[self.name]
            return lambda x, y, first: by_name(x, y, self.strengths)

        def corrupt(x: Inputs, y: Tensor, first: int) -> Iterator[tuple[float, Inputs]]:
            self.check(x)
            for strength in self.strengths:
                yield strength, corrupted(self.name, x, strength, attack.limits, first, seed)

        return corrupt

    def _own(self, attack: Attack) -> Make:
        def make(x: Inputs, y: Tensor, first: int) -> Iterator[tuple[float, Inputs]]:
            for strength in self.strengths:
                copy = map_tensors(torch.clone, x)
                assert self.own is not None
                made = self.own(copy, strength) if self.kind == "shifts" else self.own(attack.model, copy, y, strength)
                if count(made) != count(x):
                    raise PeewitError(
                        f"{self.kind}: the function for {self.name!r} returned {count(made)} inputs for {count(x)}; "
                        "expected as many."
                    )
                yield strength, map_tensors(Tensor.detach, made)

        return make


def asked(value: Any, kind: str) -> list[Asked]:
    """The corruptions or attacks of an argument, checked."""
    if value is None:
        return []
    if isinstance(value, str):
        value = [value]
    if isinstance(value, Mapping):
        return [_one(kind, name, given) for name, given in value.items()]
    if isinstance(value, Sequence):
        return [_one(kind, name, None) for name in value]
    raise ArgumentTypeError(
        f"{kind} is a {type(value).__name__}; expected names ({', '.join(_known(kind))}), or a mapping from names to "
        "strengths or functions."
    )


def _known(kind: str) -> Sequence[str]:
    return tuple(CORRUPTIONS) if kind == "shifts" else ATTACKS


def _one(kind: str, name: Any, given: Any) -> Asked:
    if not isinstance(name, str):
        raise ArgumentTypeError(f"{kind}: {name!r} is a {type(name).__name__}; expected a name.")
    usual = STRENGTHS if kind == "shifts" else EPSILONS
    if callable(given):
        return Asked(kind, name, usual, own=given)
    if isinstance(given, Mapping):
        return Asked(kind, name, _strengths(kind, name, tuple(given)), ready=dict(given))
    if isinstance(given, tuple) and len(given) == 2 and callable(given[0]):
        return Asked(kind, name, _strengths(kind, name, given[1]), own=given[0])
    if name not in _known(kind):
        own = "(x, strength)" if kind == "shifts" else "(model, x, y, epsilon)"
        raise PeewitError(
            f"{kind}: {name!r} is not known; {nearest(name, _known(kind))}Known: {', '.join(_known(kind))}. Your own "
            f"are given as {{{name!r}: function of {own}}}."
        )
    return Asked(kind, name, usual if given is None else _strengths(kind, name, given))


def _strengths(kind: str, name: str, given: Any) -> tuple[float, ...]:
    """Rising positive numbers; 0 is the test set itself, which is always there."""
    found = [given] if isinstance(given, int | float) else given
    if isinstance(found, Tensor):
        found = found.tolist()
    good = isinstance(found, Sequence) and not isinstance(found, str)
    if not good or not all(
        isinstance(each, int | float) and not isinstance(each, bool) and 0 <= each < math.inf for each in found
    ):
        raise PeewitError(
            f"{kind}: {name!r} has strengths {given!r}; expected positive numbers, such as {STRENGTHS[:3]}."
        )
    made = tuple(sorted({float(each) for each in found if each > 0}))
    if not made:
        raise PeewitError(f"{kind}: {name!r} has no strength above 0; expected some.")
    return made
