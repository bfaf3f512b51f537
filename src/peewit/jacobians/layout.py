"""How a weight is seen as matrices, and bases of their rows and columns."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Layout:
    """How a weight tensor is seen as `groups` matrices (G, O, I): reshape to `split`, permute, merge."""

    split: tuple[int, ...]
    order: tuple[int, ...]
    matrix: tuple[int, int, int]

    def to_matrix(self, flat: Tensor) -> Tensor:
        """(..., P) in the tensor's own order -> (..., G, O, I)."""
        lead = flat.shape[:-1]
        shift = len(lead)
        tensor = flat.reshape(*lead, *self.split)
        return tensor.permute(*range(shift), *(shift + axis for axis in self.order)).reshape(*lead, *self.matrix)

    def to_flat(self, matrix: Tensor) -> Tensor:
        """(..., G, O, I) -> (..., P) in the tensor's own order."""
        lead = matrix.shape[:-3]
        shift = len(lead)
        inverse = sorted(range(len(self.order)), key=self.order.__getitem__)
        tensor = matrix.reshape(*lead, *(self.split[axis] for axis in self.order))
        return tensor.permute(*range(shift), *(shift + axis for axis in inverse)).reshape(*lead, -1)

    def transpose(self) -> Layout:
        """The same with the columns (G, I, O) for rows."""
        groups, rows, columns = self.matrix
        sizes = [self.split[axis] for axis in self.order]
        first = next(number for number in range(len(sizes) + 1) if math.prod(sizes[:number]) == groups)
        second = next(number for number in range(first, len(sizes) + 1) if math.prod(sizes[first:number]) == rows)
        order = (*self.order[:first], *self.order[second:], *self.order[first:second])
        return Layout(self.split, order, (groups, columns, rows))

    @staticmethod
    def plain(groups: int, rows: int, columns: int) -> Layout:
        """The tensor's own order is already (G, O, I)."""
        return Layout((groups, rows, columns), (0, 1, 2), (groups, rows, columns))


def rotate(rows: Tensor, basis: Tensor) -> Tensor:
    """(..., G, T, n) rows in a basis (G, n, n): one large product where there is one group, not one per example."""
    return rows @ (basis[0] if basis.shape[0] == 1 else basis)


def rotate_columns(columns: Tensor, basis: Tensor) -> Tensor:
    """(b, G, K, O, n) in a basis (G, n, n) of its columns."""
    return columns @ (basis[0] if basis.shape[0] == 1 else basis.unsqueeze(1))


def join(weight: Tensor, bias: Tensor, layout: Layout) -> Tensor:
    """Weight (..., G*O*I) and bias (..., G*O) -> (..., G*O*(I+1)), as the matrix of a joint block."""
    matrix = layout.to_matrix(weight)
    return torch.cat([matrix, bias.reshape(*matrix.shape[:-1], 1)], -1).flatten(-3)


def part_ways(v: Tensor, layout: Layout) -> tuple[Tensor, Tensor]:
    """(..., G*O*(I+1)) -> weight (..., G*O*I) and bias (..., G*O)."""
    groups, rows, columns = layout.matrix
    matrix = v.reshape(*v.shape[:-1], groups, rows, columns + 1)
    return layout.to_flat(matrix[..., :-1]), matrix[..., -1].flatten(-2)
