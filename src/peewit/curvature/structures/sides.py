"""Row and column sides of Kronecker blocks: made of the sums, and decomposed."""

from __future__ import annotations

import torch
from torch import Tensor

from .eigen import decompose_sides
from .factors import Key, KronFactors, KronSums


def eigenvectors_of(sums: KronSums) -> dict[Key, tuple[Tensor | None, Tensor | None, Tensor, Tensor]]:
    """Eigenvectors and eigenvalues of the row side and the column side of every weight."""
    matrices: list[tuple[str, Tensor]] = []
    places: dict[Key, tuple[int, int]] = {}
    known: dict[str, list[int]] = {}  # by module: a bias has the row side of its weight, or its columns' if transposed

    def number_of(name: str, side: Tensor) -> int:
        numbers = known.setdefault(name.rpartition(".")[0], [])
        alike = [each for each in numbers if same(matrices[each][1], side)]
        if not alike:
            numbers.append(len(matrices))
            matrices.append((name, side))
        return alike[0] if alike else numbers[-1]

    for key in sums.layouts:
        rows, columns = sides(sums.of(key))
        places[key] = (number_of(key[0].name, rows), number_of(key[0].name, columns))
    decomposed = decompose_sides(matrices)
    return {
        key: (decomposed[row][0], decomposed[column][0], decomposed[row][1], decomposed[column][1])
        for key, (row, column) in places.items()
    }


def same(side: Tensor, other: Tensor) -> bool:
    """Whether two sides are equal."""
    return side.shape == other.shape and side.dtype == other.dtype and torch.equal(side, other)


def sides(by_orientation: dict[bool, KronFactors]) -> tuple[Tensor, Tensor]:
    """Row-side and column-side factors with `block = rows (x) columns`."""
    pairs = []
    for flipped, factors in by_orientation.items():
        inputs = factors.inputs / max(factors.count, 1.0)
        pairs.append((inputs, factors.gradients) if flipped else (factors.gradients, inputs))
    if len(pairs) == 1:
        return pairs[0]
    # Used in both orientations: shapes are averaged by how much curvature each brings, strengths are added.
    tiny = torch.finfo(pairs[0][0].dtype).tiny
    traces = [trace(rows).clamp(min=tiny) for rows, _ in pairs]
    strengths = [trace(columns) * size for (_, columns), size in zip(pairs, traces, strict=True)]
    total = (strengths[0] + strengths[1]).clamp(min=tiny)
    shares = [strength / total / size for strength, size in zip(strengths, traces, strict=True)]
    return (blend([rows for rows, _ in pairs], shares), blend([columns for _, columns in pairs], traces))


def blend(parts: list[Tensor], weights: list[Tensor]) -> Tensor:
    """A weighted sum of two sides: diagonal where both are, for then they may be too long to be spread."""
    if any(side.dim() == 3 for side in parts):
        parts = [as_matrices(side) for side in parts]
    first, second = (
        side * weight.reshape(-1, *[1] * (side.dim() - 1)) for side, weight in zip(parts, weights, strict=True)
    )
    return first + second


def trace(side: Tensor) -> Tensor:
    """(G,)."""
    return side.sum(-1) if side.dim() == 2 else side.diagonal(dim1=-2, dim2=-1).sum(-1)


def as_matrices(side: Tensor) -> Tensor:
    """(G, n, n), from a diagonal where it is one."""
    return torch.diag_embed(side) if side.dim() == 2 else side
