"""Numbers in float64 that tests of structures are made of, and the comparison with what comes out."""

from __future__ import annotations

import torch
from torch import Tensor

from fitting import normal
from peewit.weights.space import Space


def close(one: Tensor, other: Tensor) -> None:
    """Equal but for rounding in float64."""
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def positive(groups: int, size: int, seed: int = 1) -> Tensor:
    """(G, n, n): positive definite."""
    rows = normal(groups, size + 2, size, seed=seed)
    return rows.mT @ rows


def space_of(**sizes: int) -> Space:
    """Vectors by name; two underscores stand for a dot."""
    return Space(tuple(name.replace("__", ".") for name in sizes), tuple(torch.Size([size]) for size in sizes.values()))
