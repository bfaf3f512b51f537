"""Second moments of the patches of a convolution by offsets between its taps, without unfolding them.

`A[(c, d), (c', d')] = sum_t x[t + d, c] x[t + d', c']` depends on the offset `d' - d` alone, up to the border of the
image: a kernel of 3 x 3 has 81 pairs of taps and 13 offsets, those with the other sign being transposes. So inputs are
multiplied once per offset, over intervals of pixels that are cut where the windows of taps end. A pair of taps takes
the sum of the intervals in its window. Nothing is subtracted, so nothing is lost to cancellation.

Along the first axis an offset is another slice of the rows. Along the others, copies moved by each offset (E of them)
stand side by side as columns, which makes few and wide products.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ....runtime.memory import Budget
from .geometry import (
    Axis,
    Cell,
    Interval,
    TapGroup,
    cells_of,
    centre_of,
    count_copies,
    count_costs,
    is_worthwhile,
    phases_together,
    tap_pairs,
    taps_of,
    with_rows,
)

CPU_BLOCK = 16 << 20  # bytes of moved copies at a time: larger blocks do not fit the cache
TILE = 512  # side of the squares that a large matrix is mirrored by on a CPU


@dataclass(frozen=True)
class PatchMoments:
    """Sums of the patches of images (B, [fold], C, spatial...)."""

    images: Tensor
    axes: tuple[Axis, ...]
    groups: int

    @property
    def cheaper(self) -> bool:
        """Whether sums by offsets take less time than unfolded patches."""
        dims = len(self.axes)
        channels = self.images.shape[-dims - 1]
        number = math.prod(self.images.shape[: -dims - 1])
        return is_worthwhile(self.axes, number, channels // self.groups, self.groups, self.images.is_cuda)

    def first(self, examples: slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """(b, G, C / G * kernel): sums over places."""
        images = self.images[examples]
        dims = len(self.axes)
        sums = images.reshape(images.shape[0], -1, *images.shape[images.dim() - dims - 1 :])
        sums = sums.to(torch.promote_types(sums.dtype, dtype))
        for dim, axis in reversed(list(enumerate(self.axes, 3))):
            by_tap = [sums.movedim(dim, 0)[axis.pixels(tap)].sum(0) for tap in range(axis.kernel)]
            sums = torch.stack(by_tap, dim)
        return sums.sum(1).reshape(sums.shape[0], self.groups, -1)

    def second(self, budget: Budget, dtype: torch.dtype = torch.float32) -> Tensor:
        """(G, C / G, taps, C / G, taps): `sum a a^T` over all patches."""
        images = self.images.reshape(-1, *self.images.shape[self.images.dim() - len(self.axes) - 1 :])
        return second_moments(images, self.axes, self.groups, budget, dtype)


def second_moments(
    images: Tensor, axes: Sequence[Axis], groups: int, budget: Budget, dtype: torch.dtype = torch.float32
) -> Tensor:
    """(n, C, spatial...) -> (G, C / G, taps, C / G, taps): `sum a a^T` over all patches, exactly symmetric."""
    if len(axes) == 1:  # a row of its own, so that all offsets of the only axis are in one product
        images = images.unsqueeze(2)
    outer, *inner = with_rows(axes)
    channels = images.shape[1] // groups
    dtype = torch.promote_types(images.dtype, dtype)
    sums: dict[tuple[tuple[TapGroup, ...], TapGroup, Cell], Tensor] = {}
    for examples in example_blocks(images, axes, groups, budget, dtype):
        part = images[examples].to(dtype)
        split = part.reshape(part.shape[0], groups, channels, *part.shape[2:])
        order = (1, *range(3, split.dim()), 0, 2)  # (G, spatial..., n, C): moved images are then whole blocks
        margins = [size for axis in reversed(inner) for size in (axis.reach, axis.reach)]
        image = F.pad(split.permute(order), [0, 0, 0, 0, *margins])
        for bases in phases_together(inner):
            for cell in cells_of(bases):
                for pair, product in cell_products(image, outer, inner, bases, cell):
                    key = bases, pair, cell
                    sums[key] = product if key not in sums else sums[key].add_(product)
    side = (outer.kernel, *taps_of(inner), channels)
    moments = images.new_empty((groups, *side, *side), dtype=dtype)
    for bases in phases_together(inner):
        for pair in tap_pairs(outer):
            cells = {cell: sums.pop((bases, pair, cell)) for cell in cells_of(bases) if pair.intervals}
            fill_blocks(moments, inner, pair, bases, cells)
    taps = outer.kernel * math.prod(taps_of(inner))
    whole = mirror(moments.view(groups, taps * channels, taps * channels))
    return whole.view(groups, taps, channels, taps, channels).permute(0, 2, 1, 4, 3)


def example_blocks(
    images: Tensor, axes: Sequence[Axis], groups: int, budget: Budget, dtype: torch.dtype = torch.float32
) -> Iterable[slice]:
    """Slices of examples whose copies fit the budget; on a CPU also its cache, unless the sums are larger."""
    size = torch.promote_types(images.dtype, dtype).itemsize
    bytes_per_example = count_copies(axes, images.shape[1]) * size
    if images.is_cuda:
        return budget.slices(images.shape[0], bytes_per_example)
    sums = 2 * count_costs(tuple(axes))[1] * groups * (images.shape[1] // groups) ** 2 * size
    block = min(budget.bytes / 2, max(CPU_BLOCK, sums))
    return Budget(int(block)).slices(images.shape[0], bytes_per_example, 1.0)


def cell_products(
    image: Tensor, outer: Axis, inner: Sequence[Axis], bases: Sequence[TapGroup], cell: Cell
) -> Iterable[tuple[TapGroup, Tensor]]:
    """For each pair of outer taps, products (R, G, C, E, C) over intervals of rows, in one cell of the other axes."""
    centre, first = centre_of(inner, bases)
    phases = {outer.phase(tap) for tap in range(outer.kernel)}
    moved = {phase: moved_copies(image, outer, inner, bases, cell, phase) for phase in phases}
    for pair in tap_pairs(outer):
        if not pair.intervals:
            continue
        shift = outer.start(pair.taps[0] + pair.offset) - outer.start(pair.taps[0])
        partner = moved[outer.phase(pair.taps[0] + pair.offset)]
        right = partner[..., first:, :] if pair.offset == 0 else partner  # the others are transposes
        yield pair, interval_products(moved[pair.phase][..., centre, :], right, pair, shift)


def moved_copies(
    image: Tensor, outer: Axis, inner: Sequence[Axis], bases: Sequence[TapGroup], cell: Cell, phase: int
) -> Tensor:
    """(G, rows, pixels * n, E, C): the pixels of one cell moved by every offset, in all rows of one phase."""
    stride = image.stride()
    sizes, steps, offsets, jumps = [], [], [], []
    start = image.storage_offset() + phase * stride[1]
    for axis, base, (low, high), step in zip(inner, bases, cell, stride[2:-2], strict=True):
        least, number = base.offsets(axis)
        sizes.append(high - low)
        steps.append(axis.stride * step)
        offsets.append(number)
        jumps.append(axis.dilation * step)
        start += (axis.reach + base.phase + axis.stride * low + axis.dilation * least) * step
    groups, count, channels = image.shape[0], image.shape[-2], image.shape[-1]
    rows = outer.count(phase)
    copies = image.as_strided(
        (groups, rows, *sizes, count, *offsets, channels),
        (stride[0], outer.stride * stride[1], *steps, stride[-2], *jumps, stride[-1]),
        start if rows else 0,
    )
    # Contiguous: parts of a view would be copied for each product.
    return copies.contiguous().view(groups, rows, math.prod(sizes) * count, math.prod(offsets), channels)


def interval_products(left: Tensor, right: Tensor, pair: TapGroup, shift: int) -> Tensor:
    """(G, rows, m, C) and (G, rows, m, E, C) -> (R, G, C, E, C): one product per interval of rows."""
    groups, _, pixels, channels = left.shape
    width = right.shape[3]
    by_interval = []
    for start, length, number in pair.batches():
        inside = slice(start, start + length * number)
        moved = slice(inside.start + shift, inside.stop + shift)
        if groups == 1:
            rows = left[0, inside].reshape(number, length * pixels, channels)
            columns = right[0, moved].reshape(number, length * pixels, width * channels)
            by_interval.append(batched_products(rows, columns).unsqueeze(1))
        else:
            for first in range(start, start + number * length, length):
                rows = left[:, first : first + length].reshape(groups, length * pixels, channels)
                columns = right[:, first + shift : first + length + shift]
                columns = columns.reshape(groups, length * pixels, width * channels)
                by_interval.append(batched_products(rows, columns).unsqueeze(0))
    return torch.cat(by_interval).view(-1, groups, channels, width, channels)


def batched_products(left: Tensor, right: Tensor) -> Tensor:
    """(b, n, C) and (b, n, m) -> (b, C, m)."""
    batch, _, channels = left.shape
    if batch > 1:
        return left.mT @ right
    parts = count_pieces(left, right)
    if parts == 1:
        return (left[0].T @ right[0]).unsqueeze(0)
    return (left.reshape(parts, -1, channels).mT @ right.reshape(parts, -1, right.shape[-1])).sum(0, keepdim=True)


def count_pieces(left: Tensor, right: Tensor) -> int:
    """The number of equal parts of a long sum: on a GPU so many that all of it has work."""
    if not left.is_cuda:
        return 1
    _, long, channels = left.shape
    tiles = -(-channels // 64) * -(-right.shape[-1] // 64)
    wanted = min(256 // tiles, long // 512)
    return next((parts for parts in range(wanted, 1, -1) if long % parts == 0), 1)


def fill_blocks(
    moments: Tensor, inner: Sequence[Axis], pair: TapGroup, bases: Sequence[TapGroup], cells: dict[Cell, Tensor]
) -> None:
    """Write the blocks of the outer taps of `pair` and the inner taps of `bases`, from sums (R, G, C, E, C) by cell."""
    inner_runs = [dict(zip(base.taps, base.runs, strict=True)) for base in bases]
    rows: dict[Interval, dict[Cell, Tensor]] = {}
    for tap, run in zip(pair.taps, pair.runs, strict=True):
        if run not in rows:
            rows[run] = {cell: sum_interval(sums, run) for cell, sums in cells.items()}
        for taps in itertools.product(*inner_runs):
            # (G, C, inner..., C): the blocks of this tap with all that are `offset` on along the first axis.
            target = moments.select(1, tap)
            for inner_tap in taps:
                target = target.select(1, inner_tap)
            target = target.select(2, tap + pair.offset)
            runs = [by_tap[inner_tap] for by_tap, inner_tap in zip(inner_runs, taps, strict=True)]
            intervals = [base.intervals[low:high] for base, (low, high) in zip(bases, runs, strict=True)]
            values = [rows[run][cell] for cell in itertools.product(*intervals) if run[0] < run[1]]
            if pair.offset == 0:
                target = target.narrow(2, taps[0], inner[0].kernel - taps[0])
            if not values:
                target.zero_()
                continue
            target.copy_(partner_blocks(sum_tensors(values), inner, bases, taps, pair.offset == 0))


def sum_interval(sums: Tensor, run: Interval) -> Tensor:
    """The sum over a range of the first axis."""
    return sums[run[0]] if run[1] == run[0] + 1 else sums[run[0] : run[1]].sum(0)


def sum_tensors(values: Sequence[Tensor]) -> Tensor:
    """The sum of tensors of one shape."""
    total = values[0] if len(values) == 1 else values[0] + values[1]
    for value in values[2:]:
        total += value
    return total


def partner_blocks(
    sums: Tensor, inner: Sequence[Axis], bases: Sequence[TapGroup], taps: Sequence[int], half: bool
) -> Tensor:
    """(G, C, E, C) by offset -> (G, C, inner..., C) by the partners of the inner `taps`, a view."""
    spans = [base.offsets(axis) for axis, base in zip(inner, bases, strict=True)]
    if half:
        spans[0] = (0, sum(spans[0]))
    sums = sums.unflatten(2, [number for _, number in spans])
    for dim, (axis, (least, _), tap) in enumerate(zip(inner, spans, taps, strict=True)):
        first = tap if half and dim == 0 else 0
        sums = sums.narrow(2 + dim, first - tap - least, axis.kernel - first)
    return sums


def mirror(matrix: Tensor) -> Tensor:
    """Symmetric matrices (G, n, n) from their upper triangles."""
    width = matrix.shape[-1]
    if matrix.is_cuda or width <= 2 * TILE:
        return matrix.triu() + matrix.triu(1).mT
    # Reading a large matrix by columns misses the cache at every number; square tiles fit.
    cuts = [slice(start, min(start + TILE, width)) for start in range(0, width, TILE)]
    for group, (number, rows) in itertools.product(range(matrix.shape[0]), enumerate(cuts)):
        matrix[group, rows, rows] = matrix[group, rows, rows].triu() + matrix[group, rows, rows].triu(1).T
        for columns in cuts[number + 1 :]:
            matrix[group, columns, rows] = matrix[group, rows, columns].contiguous().T.contiguous()
    return matrix
