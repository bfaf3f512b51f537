"""Which sums of Kronecker factors have nearly dependent columns: told from a few rows, before any are summed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..jacobians import Explicit, Matrix, Term
from ..layers.base import Part
from .decorrelation import SAMPLE
from .factors import LARGEST_DENSE, Key, Own, Side, gradient_rows
from .rounding import Rounding

SOME = 16  # examples at least, of which rows are looked at


@dataclass(frozen=True)
class Sample:
    """A few examples' inputs and gradients of one block, as they will be summed."""

    own: Own
    terms: tuple[Term, ...]
    columns: int  # of the Jacobian of one example, in all chunks
    reduced: bool

    @property
    def examples(self) -> slice:
        """Those that are looked at."""
        return slice(0, max(SOME, -(-SAMPLE // max(term.acts.positions for term in self.terms))))

    @cached_property
    def gradients(self) -> Tensor:
        """(G, n, width)."""
        grads = [term.grad[:, self.examples].detach() for term in self.terms]
        if self.reduced:
            grads = [torch.stack([each.sum(3) for each in grads]).sum(0).unsqueeze(3)]
        return torch.cat([gradient_rows(each) for each in grads], 1)

    @cached_property
    def inputs(self) -> Tensor | None:
        """(G, n, width); None where they are tokens or a one."""
        if any(term.acts.constant or term.acts.index is not None for term in self.terms):
            return None
        acts = [term.acts(self.examples).detach() for term in self.terms]
        if self.reduced:
            acts = [torch.cat(acts, 2).mean(2, keepdim=True)]
        return torch.cat([each.transpose(0, 1).reshape(each.shape[1], -1, each.shape[3]) for each in acts], 1)

    @property
    def positions(self) -> int:
        """Of one example, that are summed."""
        return 1 if self.reduced else sum(term.acts.positions for term in self.terms)

    def input_size(self) -> Tensor:
        """(G,): the mean square of one position's inputs."""
        return self.gradients.new_ones(()) if self.inputs is None else squares(self.inputs)

    def gradient_size(self) -> Tensor:
        """(G,): the sum of squares of one example's gradients, on average."""
        return squares(self.gradients) * self.columns * self.positions

    @property
    def same(self) -> tuple[int, ...]:
        """Equal for a weight and its bias, whose gradients are the same."""
        return tuple(id(term.grad) for term in self.terms)

    @property
    def summed_by_rows(self) -> bool:
        """Whether sums of inputs are made of their rows: those of convolutions may be made in a shorter way."""
        moments = [term.acts.moments for term in self.terms]
        return self.reduced or not any(each is not None and each.cheaper for each in moments)


def squares(rows: Tensor) -> Tensor:
    """(G,): the mean sum of squares of rows (G, n, width)."""
    return rows.square().sum(2).mean(1)


def samples(matrices: Mapping[Key, Matrix], columns: int, reduced: bool) -> Iterator[Sample]:
    """Of every block, in each orientation."""
    for key, matrix in matrices.items():
        for flipped in sorted({term.flipped for term in matrix.terms}):
            terms = tuple(term for term in matrix.terms if term.flipped == flipped)
            yield Sample((key, flipped), terms, columns, reduced)


def take_apart(rounding: Rounding[Side], blocks: list[Sample], others: Mapping[Part, Explicit], number: int) -> None:
    """Find nearly dependent columns where float32 would show after `number` examples."""
    sizes = [(each.input_size(), each.gradient_size()) for each in blocks]
    largest: dict[Own | Part, Tensor] = {}
    for each, (inputs, gradients) in zip(blocks, sizes, strict=True):
        largest[each.own] = number * (inputs * gradients).amax()
    small = {part: own for part, own in others.items() if own.size <= LARGEST_DENSE}
    for part, own in small.items():
        largest[part] = number * own.value.detach().square().sum() / own.examples
    shown = rounding.shown(largest)
    same: dict[tuple[int, ...], Side] = {}
    for each, (inputs, gradients) in zip(blocks, sizes, strict=True):
        if each.own not in shown:
            continue
        if each.inputs is not None and each.summed_by_rows:
            ridge = 1 / (rounding.strength * number * gradients)
            rounding.take_apart((each.own, "inputs"), each.inputs, ridge)
        rows = number * each.columns * each.positions
        rounding.take_apart((each.own, "gradients"), each.gradients, 1 / (rounding.strength * rows * inputs))
        same[each.same] = each.own, "gradients"
    for each in blocks:
        alike = same.get(each.same)
        if alike in rounding.apart:
            rounding.apart[each.own, "gradients"] = rounding.apart[alike]
    for part, own in small.items():
        if part in shown:
            rows = number * own.columns
            rounding.take_apart((part, "other"), own.value.flatten(0, 1)[None], 1 / (rounding.strength * rows))
