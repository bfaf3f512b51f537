"""Which sums of the curvature are kept in float64, and which of their products are made in it.

Sums of products in float32, and their eigenvalues, are off by about 1e-7 of the largest eigenvalue. Directions below
that are rounding alone, and they have the largest variances of all as soon as the prior is smaller still. So all sums
are in float64 while they grow. Products of float32 numbers, some thousand rows at a time, are off by much less: by a
share of the entries on the diagonal, each row and column by its own. That is enough unless columns are nearly
dependent, and then products are in float64 too.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ..batch import Batch
from ..restart import PassRestart
from ..stream import Source

EPS = 1e-7  # of the largest eigenvalue: rounding of sums and eigenvectors in float32
SHOWS = 0.03  # of the prior precision: rounding above it is avoided, so that a tuned prior may be much smaller
SMALL = 32  # sides with one position up to which products in float64 take no longer
PRODUCTS = 4e-8  # of the roots of the diagonal, times the root of the width: rounding of products in float32
TENSOR_CORES = 2e-4  # the same where they round to 11 bits
NEAR = 0.03  # of a variance, at worst; mostly a tenth of that: more is avoided by products in float64
LATE = 0.1  # the same, in what was summed before: the data are passed over again
LOST = 0.3  # the same, where they cannot be
LESS = 1e-3  # of the prior precision: how much smaller it may be when it is tuned
MORE = 1_000  # times the data so far are expected, where it is not known how many come
LOOKS = 4  # each time there are so many times the data
AnyKey = TypeVar("AnyKey", bound=Hashable)
AnyOwner = TypeVar("AnyOwner", bound=Hashable)


@dataclass(kw_only=True)
class Rounding(Generic[AnyKey]):
    """Which matrices have products in float64, decided as the data come.

    Results depend on it no more than on rounding, so that it may look at the prior and the noise of the fit.
    """

    source: Source
    exact: set[AnyKey] = field(default_factory=set)  # products are in float64 from now on
    rounded_diagonals: dict[AnyKey, Tensor] = field(default_factory=dict)  # and the diagonal of what was summed before
    lost: set[AnyKey] = field(default_factory=set)  # that came too late: their numbers have jumped meanwhile
    seen: int = 0
    judged: int = 0  # examples seen when last asked
    first: bool = True  # whether that was the first time
    wide: bool = False  # whether the network is in float64, as all products and sums then are
    ended: bool = False  # whether all data were seen

    def __post_init__(self) -> None:
        self.exact = self.exact | self.source.exact

    def begins(self, batch: Batch) -> bool:
        """Whether this is the first batch, of which some may be made again."""
        return not self.judged and batch.tape.dtype != torch.float64

    def due(self, batch: Batch) -> bool:
        """Count a batch: whether to look at the sums now, which waits for a GPU.

        In the second half of the data that can wait: the end is looked at anyway.
        """
        self.seen += batch.examples
        self.wide = batch.tape.dtype == torch.float64
        near = self.judged and 2 * self.seen > self.source.task.data.expected > 0
        return not self.wide and self.seen >= LOOKS * self.judged and not near

    def over(self) -> bool:
        """Whether to look again at the end: data came since the last look, or what it found may have come too late."""
        return not self.wide and (self.seen > self.judged or bool(self.rounded_diagonals))

    def judge(self, matrices: Mapping[AnyKey, tuple[Tensor, Tensor]]) -> set[AnyKey]:
        """Decide which matrices (G, n, n) need products in float64 from now on; each comes with its ridge (G,).

        Those of the first batch are made again. Where it comes too late the data are passed over again. If they cannot
        be, the sums count as float32 at the end, where the error would show beside a somewhat smaller prior.
        """
        self.first, self.judged = not self.judged, self.seen
        watched = {key: value for key, value in matrices.items() if self.watches(key)}
        if not watched:
            return set()
        sizes = torch.stack([self._error(key, *value) for key, value in watched.items()]).tolist()
        worst = dict(zip(watched, sizes, strict=True))
        needed = {key for key, error in worst.items() if error > NEAR and key not in self.exact}
        late = set() if self.first else {key for key, error in worst.items() if error > LATE}
        if late and not self.source.task.data.one_shot:
            raise PassRestart("A weight turned out to need products in float64", self.exact | needed | late)
        if self.ended:
            self.lost |= {key for key in late if float(self._error(key, *matrices[key], less=SHOWS)) > LOST}
        self.take(needed, matrices)
        return needed

    def take(self, needed: set[AnyKey], matrices: Mapping[AnyKey, tuple[Tensor, Tensor]]) -> None:
        """Products of these are in float64 from now on, and those of the first batch too."""
        self.exact |= needed
        if not self.first:
            self.rounded_diagonals |= {key: diagonal(matrices[key][0]).clone() for key in needed}

    def watches(self, key: AnyKey) -> bool:
        """Whether some of its products were in float32 and it still counts as exact."""
        return (key not in self.exact or key in self.rounded_diagonals) and key not in self.lost

    def _error(self, key: AnyKey, matrix: Tensor, ridge: Tensor, less: float = LESS) -> Tensor:
        """How far variances may be off when all data are summed and the prior precision is `less` times as large."""
        coarse = self.source.task.budget.arithmetic.parts(predicting=False) == 1
        error_per_unit = (TENSOR_CORES if coarse else PRODUCTS) * matrix.shape[-1] ** 0.5
        ridge = less * ridge / self.growth
        error: Tensor = error_per_unit * amplification(matrix.detach(), ridge, self.rounded_diagonals.get(key)).double()
        return error

    @property
    def growth(self) -> float:
        """All data over those seen so far: exact where their number is known, else a guess that is rather too large."""
        if self.ended:
            return 1.0
        expected = self.source.task.data.expected
        return max(1.0, expected / max(self.seen, 1)) if expected else float(MORE)

    @property
    def strength(self) -> float:
        """The likelihood's noise precision over the prior precision."""
        return float(self.source.task.likelihood.noise_precision) ** self.source.kind.degree / self.source.task.least

    def find_visible(self, largest: Mapping[AnyOwner, Tensor]) -> set[AnyOwner]:
        """Blocks whose rounding in float32 would show beside the prior after all data, from their norms so far."""
        if self.wide or not largest:
            return set(largest)
        values = torch.stack([value.detach().double() for value in largest.values()]).tolist()
        shares = {key: EPS * self.strength * self.growth * value for key, value in zip(largest, values, strict=True)}
        return {key for key, share in shares.items() if SHOWS < share < float("inf")}


def amplification(matrix: Tensor, ridge: Tensor, rounded_diagonal: Tensor | None) -> Tensor:
    """The largest eigenvalue of `D^1/2 (A + ridge)^-1 D^1/2` for A (G, n, n), ridge (G,) and D (G, n), or little less.

    Errors `D^1/2 E D^1/2` in A change variances by as many times the norm of E, as a share of them. D is A's own
    diagonal where none is given; then float32 is enough, and what it cannot decompose is infinite.
    """
    size = diagonal(matrix) + ridge[:, None]
    root = size.rsqrt()
    scaled = matrix * root[:, :, None] * root[:, None, :]
    scaled.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    weight = None if rounded_diagonal is None else (rounded_diagonal / size).sqrt()[:, :, None]
    factor, failed = torch.linalg.cholesky_ex(scaled.float() if weight is None else scaled)
    width = factor.shape[-1]
    vectors = torch.cos(torch.arange(2 * width, device=factor.device, dtype=factor.dtype).square_())  # any numbers
    vectors = vectors.reshape(width, 2).expand(len(factor), -1, -1)
    for _ in range(3):
        before = vectors
        vectors = torch.cholesky_solve(vectors if weight is None else weight * vectors, factor)
        vectors = vectors if weight is None else weight * vectors
    largest = torch.linalg.vector_norm(vectors, dim=1) / torch.linalg.vector_norm(before, dim=1)
    return torch.where(failed[:, None] > 0, torch.inf, largest).amax()


def diagonal(matrix: Tensor) -> Tensor:
    """(G, n) of (G, n, n)."""
    return matrix.detach().diagonal(dim1=-2, dim2=-1)


def norm(side: Tensor) -> Tensor:
    """(G,): about the largest eigenvalue of matrices (G, n, n), never less; of diagonals (G, n) itself."""
    flat = side.detach().flatten(1)
    return flat.amax(1) if side.dim() == 2 else torch.linalg.vector_norm(flat, dim=1)


def in_float64(values: Iterable[Tensor]) -> bool:
    """Whether sums hold more than float32 does."""
    return any(value.dtype == torch.float64 for value in values)
