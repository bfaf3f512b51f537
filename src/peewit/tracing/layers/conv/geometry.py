"""Which pixels the taps of a kernel see, cut where taps that are otherwise alike begin to differ, and what that saves.

A tap `i` of a kernel sees, from output place `t`, the pixel `stride * t + dilation * i - before`. Pixels fall into
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

# What else takes time, in multiplications and additions of a large product, as measured on a CPU.
COPIED = 80  # a number copied to another order
FINISHED = 300  # a number of the result: summed over windows, mirrored, put in order
CALL = 5e5  # of torch


def per_axis(value: Any, dims: int) -> tuple[int, ...]:
    """A whole number for each axis, from one for all or one each, of whatever kind torch takes."""
    if not isinstance(value, list | tuple):
        return (operator.index(value),) * dims
    made = tuple(operator.index(each) for each in value)
    return made * dims if len(made) == 1 else made


@dataclass(frozen=True)
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
        """How many output places there are."""
        return max(0, (self.size + self.before + self.after - self.reach - 1) // self.stride + 1)

    @property
    def reach(self) -> int:
        """Pixels from the first tap to the last."""
        return self.dilation * (self.kernel - 1)

    def phase(self, tap: int) -> int:
        """Which pixels the tap sees: those with this remainder."""
        return (self.dilation * tap - self.before) % self.stride

    def start(self, tap: int) -> int:
        """What it sees from the first place, as an index into its phase (negative in the padding)."""
        return (self.dilation * tap - self.before) // self.stride

    def count(self, phase: int) -> int:
        """How many pixels are in a phase."""
        return max(0, -(-(self.size - phase) // self.stride))

    def pixels(self, tap: int) -> slice:
        """All pixels that a tap sees."""
        low, high = self.window(tap, tap)
        first = self.phase(tap) + self.stride * low
        return slice(first, first + self.stride * (high - low), self.stride)

    def window(self, tap: int, partner: int) -> Interval:
        """The pixels, as a range in the tap's phase, that it sees while its partner sees a pixel of the image too."""
        starts = self.start(tap), self.start(partner)
        counts = self.count(self.phase(tap)), self.count(self.phase(partner))
        low = max(0, *(-start for start in starts))
        high = min(self.places, *(count - start for count, start in zip(counts, starts, strict=True)))
        return (low + starts[0], high + starts[0]) if low < high else (0, 0)


@dataclass(frozen=True)
class TapGroup:
    """Taps of one phase with partners `offset` taps on: what they see differs by where their windows end alone.

    Windows are unions of `intervals`; `runs` says of which, for each tap.
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
        """How many pixels the windows hold together."""
        return sum(stop - start for start, stop in self.intervals)

    def batches(self) -> list[tuple[int, int, int]]:
        """Neighbouring intervals of equal length as (start, length, number): each is one batched product."""
        made: list[tuple[int, int, int]] = []
        for start, stop in self.intervals:
            if made and made[-1][1] == stop - start and made[-1][0] + made[-1][1] * made[-1][2] == start:
                made[-1] = (*made[-1][:2], made[-1][2] + 1)
            else:
                made.append((start, stop - start, 1))
        return made


def group_taps(phase: int, offset: int, taps: tuple[int, ...], windows: list[Interval]) -> TapGroup:
    """Cut the union of the windows at every end of one of them."""
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
    return TapGroup(phase, offset, taps, intervals, runs)


def taps_by_phase(axis: Axis, taps: range) -> dict[int, tuple[int, ...]]:
    """The taps of every phase."""
    made: dict[int, tuple[int, ...]] = {}
    for tap in taps:
        made[axis.phase(tap)] = (*made.get(axis.phase(tap), ()), tap)
    return made


@lru_cache(maxsize=1024)
def tap_pairs(axis: Axis) -> tuple[TapGroup, ...]:
    """Pairs of a tap and one that is not before it, by phase and offset."""
    return tuple(
        group_taps(phase, offset, taps, [axis.window(tap, tap + offset) for tap in taps])
        for offset in range(axis.kernel)
        for phase, taps in taps_by_phase(axis, range(axis.kernel - offset)).items()
    )


@lru_cache(maxsize=1024)
def single_taps(axis: Axis) -> tuple[TapGroup, ...]:
    """Taps by phase, whatever their partners see: zeros stand for what is outside of the image."""
    return tuple(
        group_taps(phase, 0, taps, [axis.window(tap, tap) for tap in taps])
        for phase, taps in taps_by_phase(axis, range(axis.kernel)).items()
    )


def with_rows(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """Two axes at least: before a single one stands that of a single row."""
    return tuple(axes) if len(axes) > 1 else (Axis(1, 1, 1, 0, 0, 1), *axes)


def phases_together(inner: Sequence[Axis]) -> Iterable[tuple[TapGroup, ...]]:
    """The phases of all inner axes together."""
    return itertools.product(*(single_taps(axis) for axis in inner))


def taps_of(inner: Sequence[Axis]) -> list[int]:
    """How many taps each axis has."""
    return [axis.kernel for axis in inner]


def cells_of(bases: Sequence[TapGroup]) -> list[Cell]:
    """Intervals of all inner axes together, the last running fastest."""
    return list(itertools.product(*(base.intervals for base in bases)))


def centre_of(inner: Sequence[Axis], bases: Sequence[TapGroup]) -> tuple[int, int]:
    """Where the offset zero is among those of the inner axes; where those begin that are not before it in the first."""
    made = first = 0
    for place, (axis, base) in enumerate(zip(inner, bases, strict=True)):
        least, number = base.offsets(axis)
        made = made * number - least
        first = first * number - (least if place == 0 else 0)
    return made, first


def count_copies(axes: Sequence[Axis], channels: int) -> int:
    """How many numbers are copied per example at a time: the image with its margins, and that moved by offsets."""
    outer, *inner = with_rows(axes)
    image = outer.size * math.prod(axis.size + 2 * axis.reach for axis in inner)
    moved = max(
        math.prod(base.pixels * base.offsets(axis)[1] for axis, base in zip(inner, bases, strict=True))
        for bases in phases_together(inner)
    )
    return (image + outer.size * moved) * channels


@lru_cache(maxsize=1024)
def count_costs(axes: tuple[Axis, ...]) -> tuple[int, int, int, int]:
    """Per image and pair of channels multiplications and sums kept; copies per image and channel; and calls."""
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
    """Whether offsets take less time than unfolded patches, for `channels` per group."""
    taps = math.prod(axis.kernel for axis in axes)
    if taps == 1 or channels == 1:  # nothing to share; or products of vectors, which sum less exactly
        return False
    if cuda:  # large products run on the tensor cores at ten times the rate, which no count of operations here knows
        return False
    operations, _, moved, calls = count_costs(axes)
    width, rows = channels * taps, images * math.prod(axis.places for axis in axes)
    # Large symmetric products are done by their lower blocks.
    share = 0.65 if width >= 512 and rows >= width else 1.0
    unfolded = groups * rows * width * (share * width + COPIED)
    pixels = math.prod(axis.size for axis in axes)
    offsets = images * groups * channels * (operations * channels + COPIED * (moved + 3 * pixels))
    return offsets + FINISHED * groups * width**2 + CALL * calls < unfolded
