"""Intervals by the bootstrap: what a number would have been on other examples of the same kind.

Examples are drawn anew with replacement, whole: positions of one example stay together, for they are alike. A drawn
set is N counts, so that sums over it are products with them, and every metric is a function of sums.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .results import Estimate

LEVEL = 0.95
KEPT = 1 << 27  # counts (one byte each) that are kept from one metric to the next
AT_ONCE = 1 << 22  # counts that are used at a time
GROUPS = 2048  # of equal or neighbouring values, which metrics of a ranking are made of


def sums_by(group: Tensor, values: Tensor, groups: int) -> Tensor:
    """(P,) places below `groups` and (P, ...) values -> (groups, ...): the values of each place summed."""
    sums = torch.zeros(groups, *values.shape[1:], dtype=torch.float64, device="cpu")
    return sums.index_add_(0, group, values.double())


@dataclass(frozen=True)
class Resampling:
    """R drawn sets of N examples; row 0 of every answer is the data themselves."""

    examples: int
    draws: int
    seed: int

    def sums(self, values: Tensor) -> Tensor:
        """(N, K) -> (1 + R, K): summed over the examples of every set; infinite where an infinite one was drawn."""
        values = values.double()
        finite = torch.isfinite(values)
        return torch.cat([_total(values, counts, finite) for counts in self._sets()])

    def sum_by_group(self, group: Tensor, owner: Tensor, values: Tensor | None, groups: int) -> Tensor:
        """(1 + R, groups): P values (or ones) of examples `owner` summed by their places."""
        rows = []
        for counts in self._sets():
            weighted = counts[owner] if values is None else counts[owner] * values.double()[:, None]
            rows.append(sums_by(group, weighted, groups).T)
        return torch.cat(rows)

    def _sets(self) -> Iterator[Tensor]:
        """(N, r): how often every set has every example; first the data themselves."""
        yield torch.ones(self.examples, 1, dtype=torch.float64, device="cpu")
        for counts in self._draw() if self._kept is None else self._kept:
            yield counts.double()

    @property
    def _step(self) -> int:
        return max(1, min(self.draws, AT_ONCE // self.examples))

    @cached_property
    def _kept(self) -> list[Tensor] | None:
        return list(self._draw()) if self.draws * self.examples <= KEPT else None

    def _draw(self) -> Iterator[Tensor]:
        """(N, r) bytes, the same every time: a count above 255 has a probability below 1e-500."""
        generator = torch.Generator("cpu").manual_seed(self.seed)
        for start in range(0, self.draws, self._step):
            width = min(self._step, self.draws - start)
            picked = torch.randint(self.examples, (self.examples, width), generator=generator, device="cpu")
            flat = picked * width + torch.arange(width, device="cpu")
            counts = torch.bincount(flat.flatten(), minlength=self.examples * width)
            yield counts.to(torch.uint8 if self.examples > 255 else torch.int16).reshape(self.examples, width)


def one_set(examples: int) -> Resampling:
    """The data themselves, without drawn sets."""
    return Resampling(examples, 0, 0)


def _total(values: Tensor, counts: Tensor, finite: Tensor) -> Tensor:
    """(N, K) values and (N, r) counts -> (r, K)."""
    if bool(finite.all()):
        return counts.T @ values
    total = counts.T @ torch.where(finite, values, 0.0)
    for infinity in (math.inf, -math.inf):
        total = total + torch.where(counts.T @ (values == infinity).double() > 0, infinity, 0.0)
    return torch.where(counts.T @ values.isnan().double() > 0, math.nan, total)


@dataclass(frozen=True, eq=False)
class MetricDraws:
    """A metric of the data and of R drawn sets of them."""

    value: float
    rows: Tensor  # (R,)

    @staticmethod
    def of(rows: Tensor, value: float | None = None) -> MetricDraws:
        """(1 + R,): of the data first; `value` where that one is known better."""
        return MetricDraws(float(rows[0]) if value is None else value, rows[1:])

    @property
    def estimate(self) -> Estimate:
        """The number and its interval, which holds the number."""
        value, rest = self.value, self.rows[~self.rows.isnan()]
        if not len(rest) or math.isnan(value):
            return Estimate(value, value, value)
        tail = (1 - LEVEL) / 2
        # Without interpolation: between a number and infinity there is none.
        ordered = rest.sort().values
        low, high = math.floor(tail * (len(rest) - 1)), math.ceil((1 - tail) * (len(rest) - 1))
        return Estimate(value, min(value, float(ordered[low])), max(value, float(ordered[high])))

    def distance(self, ideal: float) -> MetricDraws:
        """How far it is from the number that it should be, on the same sets."""
        return MetricDraws(abs(self.value - ideal), (self.rows - ideal).abs())

    def less(self, other: MetricDraws) -> MetricDraws | None:
        """How much more it is than another on the same sets; None where they are not the same."""
        if len(self.rows) != len(other.rows):
            return None
        return MetricDraws(self.value - other.value, self.rows - other.rows)


def estimate(rows: Tensor, value: float | None = None) -> Estimate:
    """(1 + R,): a metric of the data and of every set -> the number and its interval."""
    return MetricDraws.of(rows, value).estimate


@dataclass(frozen=True)
class Ranking:
    """Values in rising groups of equal ones, or of neighbouring ones where there are more than `GROUPS` of them."""

    group: Tensor  # (P,)
    first: Tensor  # (G,): the least value of a group
    last: Tensor  # (G,)
    exact: bool

    @staticmethod
    def of(values: Tensor, most: int = GROUPS) -> Ranking:
        """(P,) values."""
        distinct, distinct_of_value, counts = values.unique(sorted=True, return_inverse=True, return_counts=True)
        if len(distinct) <= most:
            return Ranking(distinct_of_value, distinct, distinct, True)
        group_of_distinct = ((counts.cumsum(0) - counts) * most).div(len(values), rounding_mode="floor")
        _, group_of_distinct = group_of_distinct.unique(return_inverse=True)
        starts = torch.cat(
            [torch.ones(1, dtype=torch.bool, device="cpu"), group_of_distinct[1:] != group_of_distinct[:-1]]
        )
        ends = torch.cat([starts[1:], torch.ones(1, dtype=torch.bool, device="cpu")])
        return Ranking(group_of_distinct[distinct_of_value], distinct[starts], distinct[ends], False)

    @property
    def groups(self) -> int:
        """G."""
        return len(self.first)


def by_ranking(metric: Callable[[Ranking, Resampling], Tensor], values: Tensor, drawn: Resampling) -> MetricDraws:
    """A metric (1 + R,) of a ranking; the value is exact, drawn sets may rank groups of values."""
    ranking = Ranking.of(values)
    value = None if ranking.exact else float(metric(Ranking.of(values, len(values)), one_set(drawn.examples))[0])
    return MetricDraws.of(metric(ranking, drawn), value)
