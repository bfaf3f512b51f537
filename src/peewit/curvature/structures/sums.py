"""Sums of Kronecker factors from several measurements put together, and sums from a file checked."""

from __future__ import annotations

import math

from torch import Tensor

from ...jacobians.layout import Layout
from ...messages.errors import PeewitError
from ...weights.space import Space
from .common import add_to, check_parts, check_shape
from .factors import Key, KronFactors, KronSums


def join_sums(earlier: KronSums, later: KronSums, space: Space) -> KronSums:
    """Add the sums over earlier and later data; this writes to the later ones, and never to the earlier."""
    joined = KronSums(
        layouts=earlier.layouts | later.layouts,
        weights=earlier.weights | later.weights,
        factors=dict(earlier.factors),
        others=dict(earlier.others),
        corrected=dict(earlier.corrected),
        bases=earlier.bases | later.bases,
    )
    refuse_other_use(earlier, later, space)
    for key, new in later.factors.items():
        old = earlier.factors.get(key)
        joined.factors[key] = new if old is None else new.plus(old)
    for part, value in later.others.items():
        joined.others[part] = add_to(value, earlier.others[part]) if part in earlier.others else value
    for block, value in later.corrected.items():
        joined.corrected[block] = earlier.corrected[block] + value if block in earlier.corrected else value
    return joined


def refuse_other_use(earlier: KronSums, later: KronSums, space: Space) -> None:
    """Blocks must be the same ones: a network may apply a weight in other ways to other data."""
    changed = {key[0].name for key, layout in later.layouts.items() if earlier.layouts.get(key, layout) != layout}
    for key, new in later.factors.items():
        old = earlier.factors.get(key)
        if old is not None and (old.inputs.shape, old.gradients.shape) != (new.inputs.shape, new.gradients.shape):
            changed.add(key[0][0].name)
    blocks = earlier.layouts | later.layouts
    try:
        check_parts([*(part for key in blocks for part in key), *(earlier.others | later.others)], space)
    except ValueError as error:
        changed.add(str(error))
    if changed:
        raise PeewitError(
            f"The network applies weights to this data in another way than to the data before ({', '.join(changed)}), "
            "so that their Kronecker factors cannot be added; fit on all data at once, or use structure='diag'."
        )


def check_sums(sums: KronSums, space: Space, corrected: bool) -> None:
    """Refuse sums that are not of these weights, or whose parts do not fit each other."""
    check_parts([*(part for key in sums.layouts for part in key), *sums.others], space)
    blocks = set(sums.layouts)
    measured = {key for key, _ in sums.factors}
    expected = (set(), blocks, blocks) if corrected else (blocks, set(), set())
    if (measured, set(sums.bases), set(sums.corrected)) != expected:
        raise PeewitError("The factors are not those of the blocks")
    if set(sums.weights) != {key for key in blocks if len(key) == 2}:
        raise PeewitError("The layouts of joint blocks are not those of the blocks")
    for key, layout in sums.layouts.items():
        check_layout(key, layout, sums.weights.get(key))
        for flipped, factors in sums.of(key).items():
            check_factors(key, layout, flipped, factors)
    for part, value in sums.others.items():
        size = part.stop - part.start
        check_shape(value, f"The curvature of {part.name!r}", (size,), (size, size))
        refuse_negative(value if value.dim() == 1 else value.diagonal(), part.name)
    for key, value in sums.corrected.items():
        check_corrected(key, sums.layouts[key], value, *sums.bases[key])


def check_layout(key: Key, layout: Layout, weight: Layout | None) -> None:
    """A view of the weight as matrices holds each of its elements once."""
    name = key[0].name
    sizes = [part.stop - part.start for part in key]
    for view, size in ((layout, sum(sizes)), (weight, sizes[0])):
        if view is None:
            continue
        if min(view.matrix) < 1 or min(view.split, default=0) < 1 or len(key) > 2:
            raise PeewitError(f"The layout of {name!r} has an empty side")
        if math.prod(view.matrix) != size or math.prod(view.split) != size:
            raise PeewitError(f"The layout of {name!r} holds {math.prod(view.matrix)} weights; expected {size}")
        if sorted(view.order) != list(range(len(view.split))):
            raise PeewitError(f"The layout of {name!r} has axes {view.order}")
    if weight is not None:
        groups, rows, columns = weight.matrix
        if layout.matrix != (groups, rows, columns + 1):
            raise PeewitError(f"The layout of {name!r} with its bias is {layout.matrix}")


def check_factors(key: Key, layout: Layout, flipped: bool, factors: KronFactors) -> None:
    """Sides have the matrix's sizes."""
    groups, rows, columns = layout.matrix
    wide, tall = (rows, columns) if flipped else (columns, rows)
    name = key[0].name
    check_shape(factors.inputs, f"The input factor of {name!r}", (groups, wide), (groups, wide, wide))
    check_shape(factors.gradients, f"The gradient factor of {name!r}", (groups, tall), (groups, tall, tall))
    for side in (factors.inputs, factors.gradients):
        refuse_negative(side if side.dim() == 2 else side.diagonal(dim1=-2, dim2=-1), name)
    if not 0 <= factors.count < math.inf:
        raise PeewitError(f"The input factor of {name!r} has {factors.count} positions")


def check_corrected(key: Key, layout: Layout, value: Tensor, left: Tensor | None, right: Tensor | None) -> None:
    """Second moments and their bases have the matrix's sizes."""
    groups, rows, columns = layout.matrix
    name = key[0].name
    check_shape(value, f"The second moments of {name!r}", (groups, rows, columns))
    refuse_negative(value, name)
    for basis, size in ((left, rows), (right, columns)):
        if basis is not None:
            check_shape(basis, f"A basis of {name!r}", (groups, size, size))


def refuse_negative(value: Tensor, name: str) -> None:
    """Sums of squares are not negative."""
    if bool((value < 0).any()):
        raise PeewitError(f"The curvature of {name!r} has negative numbers on its diagonal")
