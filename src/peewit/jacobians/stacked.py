"""Jacobians of several weights side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Union

import torch
from torch import Tensor

from ..runtime.memory import Budget
from .explicit import Explicit
from .factored import Matrix
from .layout import Layout, join

if TYPE_CHECKING:
    from .output_layer import OutputLayerJacobian


@dataclass(frozen=True)
class Stacked:
    """Several weights' Jacobians side by side, made a slice of examples at a time; an absent one is zero."""

    pieces: tuple[Matrix | Explicit | OutputLayerJacobian | None, ...]
    sizes: tuple[int, ...]
    mask: Tensor | None = None
    joint: Layout | None = None  # the weight's, where weight and bias are one matrix (O, I + 1)

    @property
    def _some(self) -> Matrix | Explicit | OutputLayerJacobian:
        return next(piece for piece in self.pieces if piece is not None)

    @property
    def probes(self) -> int:
        """K."""
        return self._some.probes

    @property
    def examples(self) -> int:
        """B."""
        return self._some.examples

    @property
    def size(self) -> int:
        """P."""
        return sum(self.sizes) if self.mask is None else int(self.mask.sum())

    @property
    def budget(self) -> Budget:
        """The budget of its pieces."""
        return self._some.budget

    def rows(self, examples: slice) -> Tensor:
        """(K, b, P)."""
        pieces = [None if piece is None else piece.rows(examples) for piece in self.pieces]
        some = next(piece for piece in pieces if piece is not None)
        filled = [
            some.new_zeros(*some.shape[:2], size) if piece is None else piece
            for piece, size in zip(pieces, self.sizes, strict=True)
        ]
        if self.joint is not None:
            return join(filled[0], filled[1], self.joint)
        value = torch.cat(filled, -1)
        return value if self.mask is None else value[..., self.mask]

    def apply(self, vectors: Tensor) -> Tensor:
        """(S, P) -> (S, K, B)."""
        return torch.einsum("kbp,sp->skb", self.rows(slice(0, self.examples)), vectors)


Jacobian = Union[Matrix, Explicit, Stacked, "OutputLayerJacobian"]
