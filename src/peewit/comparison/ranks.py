"""Ranks, and how far two rankings agree."""

from __future__ import annotations

import math
from collections.abc import Sequence


def ranks(values: Sequence[float]) -> list[float]:
    """The rank of each value from 1, the smallest; equal values share the mean of theirs."""
    return [
        sum(other < value for other in values) + (1 + sum(other == value for other in values)) / 2 for value in values
    ]


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Spearman's correlation; None where there is nothing to rank: fewer than two values, NaN, or all of them equal."""
    if len(first) < 2 or any(math.isnan(value) for value in (*first, *second)):
        return None
    middle = (len(first) + 1) / 2
    left, right = ([rank - middle for rank in ranks(values)] for values in (first, second))
    scale = math.sqrt(sum(rank**2 for rank in left) * sum(rank**2 for rank in right))
    return sum(a * b for a, b in zip(left, right, strict=True)) / scale if scale else None
