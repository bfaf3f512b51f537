"""Which pixels the taps of a kernel see, which taps see nearly the same ones, and how much work that saves.

Tap `i` of a kernel sees, from output place `t`, the pixel `stride * t + dilation * i - before`. Pixels fall into
`stride` phases, and within its phase a tap sees a range of them, its window.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

Interval = tuple[int, int]
Cell = tuple[Interval, ...]  # one interval of every inner axis

# Costs of other work, as the number of multiply-adds of a large product that take as long on a CPU.
COPIED = 80  # to copy a number into another order
FINISHED = 300  # to finish a number of the result: sum it over windows, mirror it, put it in order
CALL = 5e5  # to call torch


def per_axis(value: Any, dims: int) -> tuple[int, ...]:
    """A whole number for each axis, from one for all or one each, in any form that torch takes."""
    if not isinstance(value, list | tuple):
        return (operator.index(value),) * dims
    numbers = tuple(operator.index(each) for each in value)
    return numbers * dims if len(numbers) == 1 else numbers


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A convolution along one axis: zeros `before` and `after`, then `kernel` taps with stride and dilation."""

    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    size: int

    @property
    def places(self) -> int:
        """The number of output places."""
        return max(0, (self.size + self.before + self.after - self.reach - 1) // self.stride + 1)

    @property
    def reach(self) -> int:
        """Pixels from the first tap to the last."""
        return self.dilation * (self.kernel - 1)

    def phase(self, tap: int) -> int:
        """The phase of the pixels that a tap sees: their remainder modulo the stride."""
        return (self.dilation * tap - self.before) % self.stride

    def start(self, tap: int) -> int:
        """The pixel that a tap sees from the first place, as an index into its phase (negative in the padding)."""
        return (self.dilation * tap - self.before) // self.stride

    def count(self, phase: int) -> int:
        """The number of pixels in a phase."""
        return max(0, -(-(self.size - phase) // self.stride))

    def pixels(self, tap: int) -> slice:
        """All pixels that a tap sees."""
        low, high = self.window(tap, tap)
        first = self.phase(tap) + self.stride * low
        return slice(first, first + self.stride * (high - low), self.stride)

    def window(self, tap: int, partner: int) -> Interval:
        """The pixels (a range in the tap's phase) that a tap sees while its partner sees a pixel of the image too."""
        starts = self.start(tap), self.start(partner)
        counts = self.count(self.phase(tap)), self.count(self.phase(partner))
        low = max(0, *(-start for start in starts))
        high = min(self.places, *(count - start for count, start in zip(counts, starts, strict=True)))
        return (low + starts[0], high + starts[0]) if low < high else (0, 0)


@dataclass(frozen=True, kw_only=True)
class TapGroup:
    """Taps of one phase with partners `offset` taps on: they see the same pixels but for the ends of their windows.

    Windows are unions of `intervals`; `runs` holds the range of intervals of each tap.
    """

    phase: int
    offset: int
    taps: tuple[int, ...]
    intervals: tuple[Interval, ...]
    runs: tuple[Interval, ...]

    def offsets(self, axis: Axis) -> Interval:
        """The least offset from one of these taps to any tap, and how many there are."""
        return -self.taps[-1], axis.kernel - self.taps[0] + self.taps[-1]

    @property
    def pixels(self) -> int:
        """The number of pixels in the union of the windows."""
        return sum(stop - start for start, stop in self.intervals)

    def batches(self) -> list[tuple[int, int, int]]:
        """Neighbouring intervals of equal length as (start, length, number): each is one batched product."""
        batches: list[tuple[int, int, int]] = []
        for start, stop in self.intervals:
            if batches and batches[-1][1] == stop - start and batches[-1][0] + batches[-1][1] * batches[-1][2] == start:
                batches[-1] = (*batches[-1][:2], batches[-1][2] + 1)
            else:
                batches.append((start, stop - start, 1))
        return batches


def group_taps(phase: int, offset: int, taps: tuple[int, ...], windows: list[Interval]) -> TapGroup:
    """A group whose intervals are the union of the windows, cut wherever one of them ends."""
    filled = [window for window in windows if window[0] < window[1]]
    bounds = sorted({bound for window in filled for bound in window})
    intervals = tuple(
        (start, stop)
        for start, stop in itertools.pairwise(bounds)
        if any(low <= start and stop <= high for low, high in filled)
    )
    runs = tuple(
        (sum(start < low for start, _ in intervals), sum(start < high for start, _ in intervals))
        for low, high in windows
    )
    return TapGroup(phase=phase, offset=offset, taps=taps, intervals=intervals, runs=runs)


def taps_by_phase(axis: Axis, taps: range) -> dict[int, tuple[int, ...]]:
    """The taps by their phase."""
    by_phase: dict[int, tuple[int, ...]] = {}
    for tap in taps:
        by_phase[axis.phase(tap)] = (*by_phase.get(axis.phase(tap), ()), tap)
    return by_phase


@lru_cache(maxsize=1024)
def tap_pairs(axis: Axis) -> tuple[TapGroup, ...]:
    """Pairs of a tap and one at or after it, by phase and offset."""
    return tuple(
        group_taps(phase, offset, taps, [axis.window(tap, tap + offset) for tap in taps])
        for offset in range(axis.kernel)
        for phase, taps in taps_by_phase(axis, range(axis.kernel - offset)).items()
    )


@lru_cache(maxsize=1024)
def single_taps(axis: Axis) -> tuple[TapGroup, ...]:
    """Taps by phase, whatever their partners see: zeros stand for pixels outside of the image."""
    return tuple(
        group_taps(phase, 0, taps, [axis.window(tap, tap) for tap in taps])
        for phase, taps in taps_by_phase(axis, range(axis.kernel)).items()
    )


ONE_ROW = Axis(kernel=1, stride=1, dilation=1, before=0, after=0, size=1)


def with_rows(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """At least two axes: a single one gets an axis of one row before it."""
    return tuple(axes) if len(axes) > 1 else (ONE_ROW, *axes)


def phases_together(inner: Sequence[Axis]) -> Iterable[tuple[TapGroup, ...]]:
    """Every combination of phases of the inner axes."""
    return itertools.product(*(single_taps(axis) for axis in inner))


def taps_of(inner: Sequence[Axis]) -> list[int]:
    """The number of taps of each axis."""
    return [axis.kernel for axis in inner]


def cells_of(bases: Sequence[TapGroup]) -> list[Cell]:
    """Every combination of intervals of the inner axes, the last axis fastest."""
    return list(itertools.product(*(base.intervals for base in bases)))


def centre_of(inner: Sequence[Axis], bases: Sequence[TapGroup]) -> tuple[int, int]:
    """The indices, among offsets of the inner axes, of zero and of the first one at or after it in the first axis."""
    centre = first = 0
    for number, (axis, base) in enumerate(zip(inner, bases, strict=True)):
        least, count = base.offsets(axis)
        centre = centre * count - least
        first = first * count - (least if number == 0 else 0)
    return centre, first


def count_copies(axes: Sequence[Axis], channels: int) -> int:
    """How many numbers are copied per example at a time: the image with margins, and its copies moved by offsets."""
    outer, *inner = with_rows(axes)
    image = outer.size * math.prod(axis.size + 2 * axis.reach for axis in inner)
    moved = max(
        math.prod(base.pixels * base.offsets(axis)[1] for axis, base in zip(inner, bases, strict=True))
        for bases in phases_together(inner)
    )
    return (image + outer.size * moved) * channels


@lru_cache(maxsize=1024)
def count_costs(axes: tuple[Axis, ...]) -> tuple[int, int, int, int]:
    """Multiplications and sums per image and pair of channels; copies per image and channel; and calls of torch."""
    outer, *inner = with_rows(axes)
    operations = kept = moved = calls = 0
    for bases in phases_together(inner):
        pixels = math.prod(base.pixels for base in bases)
        cells = len(cells_of(bases))
        taps = math.prod(len(base.taps) for base in bases)
        offsets = math.prod(base.offsets(axis)[1] for axis, base in zip(inner, bases, strict=True))
        moved += outer.size * pixels * offsets
        for pair in tap_pairs(outer):
            width = offsets - centre_of(inner, bases)[1] if pair.offset == 0 else offsets
            operations += pair.pixels * pixels * width
            kept += len(pair.intervals) * cells * width
            calls += len(pair.batches()) * cells + 2 * len(pair.taps) * taps
    return operations, kept, moved, calls


def is_worthwhile(axes: tuple[Axis, ...], images: int, channels: int, groups: int, cuda: bool) -> bool:
    """Whether sums by offsets take less time than unfolded patches, for `channels` per group."""
    taps = math.prod(axis.kernel for axis in axes)
    if taps == 1 or channels == 1:  # nothing to share; or products of vectors, which sum less exactly
        return False
    if cuda:  # large products run on tensor cores at ten times the rate, which these counts of operations leave out
        return False
    operations, _, moved, calls = count_costs(axes)
    width, rows = channels * taps, images * math.prod(axis.places for axis in axes)
    # Of a large symmetric product only the lower blocks are computed.
    share = 0.65 if width >= 512 and rows >= width else 1.0
    unfolded = groups * rows * width * (share * width + COPIED)
    pixels = math.prod(axis.size for axis in axes)
    offsets = images * groups * channels * (operations * channels + COPIED * (moved + 3 * pixels))
    return offsets + FINISHED * groups * width**2 + CALL * calls < unfolded
