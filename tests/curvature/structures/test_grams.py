"""Products `rows^T rows`, exact whatever way they take."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fitting import normal
from peewit.curvature.structures import grams
from peewit.runtime.memory import budget


@pytest.mark.parametrize(("groups", "width"), [(1, 3), (2, 5), (1, 512), (2, 515)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_rows_with_themselves(
    dtype: torch.dtype, groups: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one product, by blocks, or some rows at a time in float64: `rows^T rows`, in the dtype that was asked for."""
    monkeypatch.setattr(grams, "MANY", 0)
    rows = (4 * normal(groups, width + 2, width)).round()  # sums of whole numbers are exact in any order
    room = replace(budget(None, torch.device("cpu")), bytes=16 * groups * width * (100 if width > 500 else 2))
    expected = rows.mT @ rows
    made = grams.outer(rows.to(dtype), room, dtype)
    assert made.dtype == dtype and torch.equal(made.double(), expected)
    wide = grams.outer(rows.float(), room, torch.float64)
    assert wide.dtype == torch.float64 and torch.equal(wide, expected)
    half = grams.outer(rows.half(), room)
    assert half.dtype == torch.float64 and torch.equal(half, expected)  # several pieces
    half = grams.outer(rows.half(), replace(room, bytes=1 << 27))
    assert half.dtype == torch.float32 and torch.equal(half.double(), expected)
    monkeypatch.setattr(grams, "LARGEST_SIDE", width - 1)
    long = grams.outer(rows.to(dtype), room, torch.float64)
    assert long.dtype == torch.float64 and torch.equal(long, expected.diagonal(dim1=-2, dim2=-1))
