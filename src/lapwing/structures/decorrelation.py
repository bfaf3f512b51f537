"""Nearly dependent columns, taken apart before their products are summed.

The sum `rows^T rows` in float32 cannot tell nearly dependent columns apart: what distinguishes them is below the
rounding of what they share. Inputs far from zero have such columns, and so do gradients behind few outputs. Here a few
columns, the pivots, are subtracted from all others, and then from each column a multiple of the one that it resembles
most. What is left has sums that float32 can hold, for a few hundredths of the time of the products. The sums of the
original columns are then made of it in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

SAMPLE = 256  # rows that tell which columns are alike
WIDEST = 4_096  # columns: several matrices of their number squared are held at a time
PIVOTS, CANDIDATES, PIVOTED = 8, 64, 128  # at most so many, chosen from so many, where there are more columns than that
GAIN = 1.5  # columns that a pivot has to explain, itself included
FAINT = 1e-6  # of a column, in squares: what is left of it is rounding
DEPENDENT = 1e-3  # of a column, in squares: with more left of each of them float32 can tell them apart


@dataclass(frozen=True)
class Decorrelation:
    """A change of columns (G, n, P) that can be undone: new rows are old ones times a triangular matrix (G, P, P)."""

    pivots: Tensor  # (G, r)
    explained: Tensor  # (G, r, P): how much of each pivot is in every column; zero for pivots themselves
    parents: Tensor  # (G, P): the column that each resembles most, of those before it in some order
    shares: Tensor  # (G, P): how much of it; zero where there is none

    def rows(self, rows: Tensor) -> Tensor:
        """(G, n, P): columns less what the pivots, and then their parents, explain of them."""
        if self.pivots.shape[1]:
            rows = torch.baddbmm(rows, chosen(rows, self.pivots), self.explained.to(rows.dtype), alpha=-1)
        return torch.addcmul(rows, chosen(rows, self.parents), self.shares[:, None].to(rows.dtype), value=-1)

    @cached_property
    def ridge(self) -> Tensor:
        """(G, P, P) in float32: what the unit matrix over the old columns is over the new ones."""
        groups, width = self.parents.shape
        unit = torch.eye(width, device=self.parents.device).expand(groups, -1, -1)
        return self.rows(self.rows(unit).mT.contiguous())

    def restored(self, matrix: Tensor) -> Tensor:
        """(G, P, P) over the old columns, of one over the new ones."""
        return self._restored(self._restored(matrix).mT)

    def _restored(self, lines: Tensor) -> Tensor:
        """(G, P, n): a line is what was left of it and shares of its parent and of the pivots; parents come first."""
        groups, width = self.parents.shape
        flat = lines.reshape(groups * width, -1).clone()
        shares = self.shares.flatten().to(lines.dtype)[:, None]
        for own, parents in self._levels:
            flat.index_add_(0, own, shares[own] * flat[parents])
        made = flat.reshape(lines.shape)
        if not self.pivots.shape[1]:
            return made
        return torch.baddbmm(made, self.explained.mT.to(made.dtype), chosen(made.mT, self.pivots).mT)

    @cached_property
    def _levels(self) -> list[tuple[Tensor, Tensor]]:
        """Columns, numbered over all groups, by how many ancestors they have, and their parents."""
        groups, width = self.parents.shape
        first = width * torch.arange(groups, device=self.parents.device)[:, None]
        parents = (self.parents + first).flatten().tolist()
        depth = [-1 if share else 0 for share in self.shares.flatten().tolist()]
        for column in range(len(depth)):
            path = []
            while depth[column] < 0:
                path.append(column)
                column = parents[column]
            for place, each in enumerate(reversed(path), start=1):
                depth[each] = depth[column] + place
        levels: list[tuple[list[int], list[int]]] = [([], []) for _ in range(max(depth))]
        for column, own in enumerate(depth):
            if own:
                levels[own - 1][0].append(column)
                levels[own - 1][1].append(parents[column])
        device = self.parents.device
        return [(torch.tensor(own, device=device), torch.tensor(above, device=device)) for own, above in levels]


def chosen(rows: Tensor, columns: Tensor) -> Tensor:
    """(G, n, k): columns with numbers (G, k) of rows (G, n, P)."""
    if len(rows) == 1:  # twice as fast
        return rows[0].index_select(1, columns[0])[None]
    return rows.gather(2, columns[:, None].expand(-1, rows.shape[1], -1))


def decorrelation(rows: Tensor, ridge: Tensor) -> Decorrelation | None:
    """How to take apart the columns of rows (G, n, P); None where none of them are nearly dependent.

    `ridge` (G,): what the prior adds to the sums of their squares.
    """
    groups, _, width = rows.shape
    before = sizes(rows, ridge)
    columns = torch.zeros(groups, 0, dtype=torch.int64, device=rows.device)
    explained = rows.new_zeros(groups, 0, width, dtype=torch.float64)
    if width > PIVOTED:
        columns, explained, dependent = pivots(rows, before)
        if not bool(dependent):
            return None
        rows = torch.baddbmm(rows, chosen(rows, columns), explained.to(rows.dtype), alpha=-1)
    above, shares, left = parents(rows, sizes(rows, ridge))
    made = Decorrelation(columns, explained, above, shares)
    return made if width > PIVOTED or bool((left < DEPENDENT * before).any()) else None


def sizes(rows: Tensor, ridge: Tensor) -> Tensor:
    """(G, P): sums of squares with the prior's part."""
    found = rows.square().sum(1) + ridge[:, None].to(rows.dtype)
    return found.clamp(min=torch.finfo(rows.dtype).tiny)


def pivots(rows: Tensor, size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(G, r), and (G, r, P): columns that explain the most of all others, and how much of them they do.

    They are taken one after the other, from candidates of all sizes. And whether some of these are nearly dependent, on
    the pivots or on a column.
    """
    groups, width = size.shape
    places = torch.linspace(0, width - 1, CANDIDATES, device=rows.device).long()
    candidates = size.argsort(dim=1, descending=True, stable=True)[:, places]  # (G, c)
    scaled = rows * size.rsqrt()[:, None]
    every = left = chosen(scaled, candidates).mT @ scaled  # (G, c, P): correlations
    each, places = torch.arange(groups, device=rows.device), torch.arange(CANDIDATES, device=rows.device)
    alike = every.square()
    alike[each[:, None], places, candidates] = 0.0
    found, counted = [], []
    for _ in range(PIVOTS):
        own = left[each[:, None], places, candidates]
        gain = torch.where(own > FAINT, left.square().sum(2) / own.clamp(min=FAINT), 0.0)
        best, place = gain.max(1)
        found.append(place)
        counted.append(best > GAIN)
        line = left[each, place] * counted[-1][:, None]
        share = line.gather(1, candidates) / own[each, place].clamp(min=FAINT)[:, None]
        left = torch.baddbmm(left, share[:, :, None], line[:, None], alpha=-1)
        left[each, place] = torch.where(counted[-1][:, None], 0.0, left[each, place])
    place, valid = torch.stack(found, 1), torch.stack(counted, 1)
    columns = candidates.gather(1, place)
    own = torch.zeros_like(size).scatter_reduce_(1, columns, valid.to(size.dtype), "amax")  # (G, P): 1 for pivots
    rest = left[each[:, None], places, candidates] + own.gather(1, candidates)
    dependent = (rest < DEPENDENT).any() | (alike > 1 - DEPENDENT).any()
    lines = every.gather(1, place[:, :, None].expand(-1, -1, width)).double() * valid[:, :, None]
    between = chosen(lines, columns) * valid[:, None]
    between.diagonal(dim1=-2, dim2=-1).fill_(1.0 + FAINT)
    explained = torch.linalg.solve(between, lines) * size.sqrt()[:, None] * size.gather(1, columns).rsqrt()[:, :, None]
    return columns, (explained * (1 - own)[:, None]).float().double(), dependent


def parents(rows: Tensor, size: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(G, P) each: the larger column that a column resembles most, how much of it is in it, and what is left then."""
    rank = size.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
    matrix = rows.mT @ rows
    alike = torch.where(rank[:, None] < rank[:, :, None], matrix.square() / size[:, None], -1.0)  # (G, P, others)
    most, place = alike.max(2)
    share = matrix.gather(2, place[:, :, None])[:, :, 0] / size.gather(1, place)
    return place, torch.where(rank == 0, 0.0, share).float().double(), size - most.clamp(min=0.0)
