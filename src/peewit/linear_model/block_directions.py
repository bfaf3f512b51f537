"""Directions within one block: outer products of a basis, or vectors of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..jacobians.layout import Layout


class BlockDirections(Protocol):
    """R directions (R, P) of one block, in a form that takes less room."""

    def coordinates(self, v: Tensor) -> Tensor:
        """(P,) -> (R,): their products with a vector."""
        ...

    def combine(self, c: Tensor) -> Tensor:
        """(R,) -> (P,): their sum with these weights."""
        ...

    def gram(self) -> Tensor:
        """(R, R): their products with each other."""
        ...

    def select(self, places: Tensor) -> BlockDirections:
        """Some of the directions."""
        ...

    def with_more(self, other: BlockDirections) -> BlockDirections:
        """These, then others of the same block."""
        ...


@dataclass(frozen=True, eq=False)
class OuterDirections:
    """`left_r right_r^T`, each in one of the block's G matrices."""

    layout: Layout
    groups: Tensor  # (R,)
    left: Tensor  # (R, O)
    right: Tensor  # (R, I)

    def coordinates(self, v: Tensor) -> Tensor:
        """(P,) -> (R,)."""
        matrix = self.layout.to_matrix(v)
        c = matrix.new_empty(len(self.left))
        for group, members in self._by_group():
            c[members] = ((self.left[members] @ matrix[group]) * self.right[members]).sum(-1)
        return c

    def combine(self, c: Tensor) -> Tensor:
        """(R,) -> (P,)."""
        matrix = self.left.new_zeros(self.layout.matrix)
        for group, members in self._by_group():
            matrix[group] = (c[members, None] * self.left[members]).T @ self.right[members]
        return self.layout.to_flat(matrix)

    def _by_group(self) -> Iterator[tuple[int, Tensor | slice]]:
        """Which are in which matrix: a block may have as many matrices as channels, and few that matter."""
        if self.layout.matrix[0] == 1:
            yield 0, slice(None)
            return
        for group in self.groups.unique().tolist():
            yield group, (self.groups == group).nonzero()[:, 0]

    def gram(self) -> Tensor:
        """(R, R)."""
        same = self.groups[:, None] == self.groups
        return (self.left @ self.left.T) * (self.right @ self.right.T) * same

    def select(self, places: Tensor) -> OuterDirections:
        """Some of the directions."""
        return OuterDirections(self.layout, self.groups[places], self.left[places], self.right[places])

    def with_more(self, other: BlockDirections) -> OuterDirections:
        """These, then others."""
        assert isinstance(other, OuterDirections)
        pairs = ((self.groups, other.groups), (self.left, other.left), (self.right, other.right))
        return OuterDirections(self.layout, *(torch.cat(pair) for pair in pairs))


@dataclass(frozen=True, eq=False)
class DenseDirections:
    """The directions themselves."""

    vectors: Tensor  # (R, P)

    def coordinates(self, v: Tensor) -> Tensor:
        """(P,) -> (R,)."""
        return self.vectors @ v

    def combine(self, c: Tensor) -> Tensor:
        """(R,) -> (P,)."""
        return c @ self.vectors

    def gram(self) -> Tensor:
        """(R, R)."""
        return self.vectors @ self.vectors.T

    def select(self, places: Tensor) -> DenseDirections:
        """Some of the directions."""
        return DenseDirections(self.vectors[places])

    def with_more(self, other: BlockDirections) -> DenseDirections:
        """These, then others."""
        assert isinstance(other, DenseDirections)
        return DenseDirections(torch.cat([self.vectors, other.vectors]))


def basis_columns(basis: Tensor | None, group: Tensor, index: Tensor, size: int, like: Tensor) -> Tensor:
    """(R, size): columns of a basis (G, size, size), or of the identity."""
    if basis is None:
        return torch.nn.functional.one_hot(index, size).to(like)
    return basis.detach()[group.clamp(max=len(basis) - 1), :, index]
