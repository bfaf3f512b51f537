"""Inputs of layers, made some examples at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from ..kernels import operands
from ..runtime.memory import Budget
from .layout import rotate


class InputMoments(Protocol):
    """Sums over the positions of layer inputs, by another way than making the inputs."""

    @property
    def cheaper(self) -> bool:
        """Whether `second` takes less time than from the inputs; `first` always does."""
        ...

    def first(self, examples: slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """(b, G, I): sums over positions, in this dtype at least."""
        ...

    def second(self, budget: Budget, dtype: torch.dtype = torch.float32) -> Tensor:
        """(G, I, I): `sum a a^T` over examples and positions, in this dtype at least, with I as several axes."""
        ...


@dataclass(frozen=True, kw_only=True)
class Acts:
    """Layer inputs (B, G, T, width), made for a slice of the examples at a time since patches are large."""

    make: Callable[[slice], Tensor]
    width: int
    positions: int
    index: Tensor | None = None  # (B, T): the inputs are one-hot vectors, never made unless rotated
    ones: bool = False  # a column of ones is appended: the bias of a joint block
    constant: bool = False  # the inputs are ones: a bias on its own
    scratch: int = 0  # numbers made on the way per example, beyond the result
    # The inputs in a basis as a 16-bit operand, where there is a shorter way than making them first.
    make_operand: Callable[[slice, Tensor, bool, torch.dtype], operands.Operand] | None = None
    # The same in their own precision, (b, G, T, I): slices and a basis (G, I, I).
    make_in_basis: Callable[[slice, Tensor], Tensor] | None = None
    moments: InputMoments | None = None  # of the inputs without a column of ones

    def __call__(self, examples: slice, basis: Tensor | None = None) -> Tensor:
        """(b, G, T, I), rotated by `basis` (G, I, I) where one is given."""
        if self.index is not None and basis is not None:
            return basis[0][self.index[examples]].unsqueeze(1)
        if basis is not None and self.make_in_basis is not None and not self.ones:
            return self.make_in_basis(examples, basis)
        act = self.make(examples)
        if self.ones:
            act = torch.cat([act, act.new_ones(*act.shape[:-1], 1)], -1)
        return act if basis is None else rotate(act, basis)

    def with_ones(self) -> Acts:
        """The inputs with a one appended."""
        return replace(self, ones=True, width=self.width + 1)

    def operand(self, examples: slice, basis: Tensor | None, two: bool, half: torch.dtype) -> operands.Operand:
        """The inputs in 16 bits, for the kernels."""
        if basis is not None and self.make_operand is not None and not self.ones:
            return self.make_operand(examples, basis, two, half)
        return operands.rotate(self(examples).float(), basis, 0, two, half)
