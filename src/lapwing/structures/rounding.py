"""Which sums of the curvature take float64: those whose rounding in float32 would show beside the prior.

Sums of products in float32, and their eigenvalues, are off by about 1e-7 of the largest eigenvalue. Directions below
that are rounding alone, and they have the largest variances of all as soon as the prior is smaller still.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ..curvature import PlanChanged, Source

EPS = 1e-7  # of the largest eigenvalue
SHOWS = 0.03  # of the prior precision: rounding above it is avoided, so that a tuned prior may be much smaller
SMALL = 32  # sides of a block with one position up to which float64 takes no longer
LATE = 0.3  # of it: rounding of what was summed in float32 before, beside all that came since
SAFE = 0.003  # of it: sums below need not be looked at again before the data have doubled
Key = TypeVar("Key", bound=Hashable)


@dataclass
class Rounding(Generic[Key]):
    """Which blocks are summed in float64, decided as the data come: float32 will do as long as sums are small.

    Results depend on it no more than on rounding, so that it may look at the prior and the noise of the fit.
    """

    source: Source
    fine: set[Key] = field(default_factory=set)  # summed in float64 from now on
    safe: set[Key] = field(default_factory=set)  # in float32, with room to spare
    lost: set[Key] = field(default_factory=set)  # float64 came too late: their numbers have jumped meanwhile
    seen: int = 0
    judged: int = 0  # examples seen when last asked

    def __post_init__(self) -> None:
        self.fine = self.fine | self.source.fine

    def settled(self, key: Key) -> bool:
        """Whether a batch's products go into the sums at once; others are first looked at, and perhaps made again."""
        return key in self.fine or key in self.safe

    def due(self, examples: int, waiting: bool) -> bool:
        """Count a batch: whether to look at the sums now. Each time a GPU is waited for."""
        self.seen += examples
        return waiting or self.seen >= 2 * self.judged

    def over(self) -> bool:
        """Whether data came since the sums were last looked at."""
        return self.seen > self.judged

    def judge(self, largest: Mapping[Key, Tensor]) -> set[Key]:
        """Blocks that need float64 from this batch on, from the largest eigenvalues of what is in float32 by now.

        Where that comes too late the data are passed over again, or, if they cannot be, the sums stay in float32.
        """
        self.judged = self.seen
        if not largest:
            return set()
        values = torch.stack([value.detach().double() for value in largest.values()]).tolist()
        shares = {key: value * self.unit for key, value in zip(largest, values, strict=True) if key not in self.lost}
        found = {key for key, share in shares.items() if share > SHOWS and key not in self.fine}
        late = (found & self.safe) | {key for key, share in shares.items() if share > LATE and key in self.fine}
        if late and not self.source.data.one_shot:
            self.source.fine |= late | self.fine | found
            raise PlanChanged("A weight turned out to need sums in float64")
        self.lost |= late
        self.fine -= late
        found -= late
        self.safe = {key for key, share in shares.items() if share < SAFE and key not in self.fine} | self.lost
        self.fine |= found
        return found

    @property
    def unit(self) -> float:
        """What an eigenvalue of one brings in rounding, as a share of the prior precision."""
        degree: int = getattr(self.source.kind, "degree", 1)
        return EPS * float(self.source.likelihood.scale) ** degree / self.source.least


def norm(side: Tensor) -> Tensor:
    """(G,): about the largest eigenvalue of matrices (G, n, n), never less; of diagonals (G, n) itself."""
    flat = side.detach().flatten(1)
    return flat.amax(1) if side.dim() == 2 else torch.linalg.vector_norm(flat, dim=1)


def in_float64(values: Iterable[Tensor]) -> bool:
    """Whether sums hold more than float32 does."""
    return any(value.dtype == torch.float64 for value in values)
