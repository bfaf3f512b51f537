"""Passes over the data that have to begin again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class PassRestart(Exception):
    """A batch taught something that earlier batches of the pass were measured without.

    `exact` are the sums whose products have to be in float64 from the first batch on.
    """

    def __init__(self, reason: str, exact: Iterable[Any] = ()) -> None:
        super().__init__(reason)
        self.exact = frozenset(exact)
