"""Which rows of a table train the network, which of them stop its training, and which tune its noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

RowNumbers = NDArray[np.intp]
LEAST_STOPPING = 5  # rows: fewer cannot tell one epoch from another
LEAST_TUNING = 10  # rows: the noise is then known to about a quarter of itself


@dataclass(frozen=True)
class TableSplit:
    """Numbers of rows; no row is in two of them, and those that are held out may be none."""

    train: RowNumbers
    stopping: RowNumbers
    tuning: RowNumbers

    @property
    def held(self) -> RowNumbers:
        """All that the network is not trained on."""
        return np.concatenate([self.stopping, self.tuning])


def split_table(classes: NDArray[Any], fraction: float, stop: bool, tune: bool, random: Any) -> TableSplit:
    """Hold out a share of every class, half of it for each of two uses; a class keeps rows to train on.

    `classes` (N,) are numbers of classes, all zero for regression. Where the rows are too few for both uses, all of
    them stop the training; where they are too few for that, none is held out.
    """
    places, halves = np.empty(len(classes)), np.empty(len(classes), dtype=int)
    for name in np.unique(classes):
        rows = random.permutation(np.flatnonzero(classes == name))
        places[rows] = (np.arange(len(rows)) + 0.5) / len(rows)
        halves[rows] = (np.arange(len(rows)) + random.randint(2)) % 2
    held = places < fraction
    number = int(held.sum())
    stop, tune = stop and number >= LEAST_STOPPING, tune and number >= LEAST_TUNING * (1 + stop)
    if not (stop or tune):
        held[:] = False
    first = halves == 0 if stop and tune else np.full(len(classes), stop)
    return TableSplit(np.flatnonzero(~held), np.flatnonzero(held & first), np.flatnonzero(held & ~first))
