"""Ranges of one weight."""

from __future__ import annotations

from typing import NamedTuple


class WeightRange(NamedTuple):
    """A contiguous range of one parameter's flattened values: a packed projection is several."""

    name: str
    start: int
    stop: int
