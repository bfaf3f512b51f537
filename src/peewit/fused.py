"""What the kernels are asked for on a GPU, and whether they can be.

Squares and inner products of Jacobians with several positions, for `Matrix`; products in parts, for fits; gradients of
all columns gone over once, for the layers.

Operands are brought to 16 bits, scaled to the range of the dtype by a power of two per example, so that an example with
NaN or a large gradient changes no other. In two parts their products are as exact as float32's.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

if TYPE_CHECKING:
    from .jacobians import Acts

Made = TypeVar("Made")
TOP = 12  # scaled numbers stay below 2^TOP: sums of squares of rotated ones then stay in range
ROWS = 128  # of a tile
BLOCK = 2048  # numbers that are brought to 16 bits at a time
TILE = 32  # channels and places that are brought into another order at a time
WORTH_SPLITTING = 256  # length of vectors from which rotations are faster in parts than in float32
PROGRAMS = 528  # four on each of 132 processors
broken: list[str] = []  # why kernels are not used although they could be


@cache
def kernels() -> Any:
    """The kernels' module, or None where Triton is not there."""
    try:
        from . import kernels as made
    except Exception:  # not there, or not in working order
        return None
    return made


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on the CPU: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def usable(grad: Tensor, columns: int = 1) -> bool:
    """Whether there are kernels for such numbers, and so many columns of them."""
    if grad.dtype != torch.float32 or grad.requires_grad or broken or columns > 256 or not grad.numel():
        return False
    if not interpreted() and (not grad.is_cuda or torch.cuda.get_device_capability(grad.device)[0] < 8):
        return False
    return kernels() is not None


def partial_sums(columns: int, rows: int) -> int:
    """Numbers that an example's inner products take on the way, or more: columns and rows of the weight O."""
    padded = max(16, power_of_two(columns))
    return padded**2 * -(-rows // (1 if padded > 32 else max(1, ROWS // 2 // padded)))


def worthwhile(jacobian: int, operands: int) -> bool:
    """Whether an example's Jacobian has so many numbers, beside those it is made of, that it is better not made."""
    return 4 * jacobian >= operands


def attempted(compute: Callable[[], Made]) -> Made | None:
    """What the kernels give; None, and a warning once, where they do not run: then there is a slower way."""
    try:
        return compute()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        broken.append(f"{type(error).__name__}: {error}")
        warnings.warn(
            f"The fused GPU kernels do not run here ({type(error).__name__}: {str(error)[:200]}); slower ones are "
            "used. The numbers are the same.",
            stacklevel=2,
        )
        return None


@dataclass(frozen=True)
class Operand:
    """A float32 tensor times `scale` (B,) in 16 bits: `high`, and `low` for what `high` has lost."""

    high: Tensor
    low: Tensor
    scale: Tensor
    two: bool


def split(x: Tensor, axis: int, two: bool, half: torch.dtype, top: int = TOP) -> Operand:
    """A float32 tensor with its examples along `axis` -> 16 bits in the same layout."""
    if not dense(x):
        x = x.contiguous()
    numbers, examples = x.numel(), x.shape[axis]
    inner = x.stride(axis) if examples > 1 else numbers
    flat = x.as_strided((numbers,), (1,), x.storage_offset())
    if half == torch.float16:
        scale = power(torch.linalg.vector_norm(flat.view(-1, examples, inner), math.inf, (0, 2)), top)
    else:
        scale = torch.ones(examples, device=x.device)
    return parts(x, flat, scale, inner, two, half)


def power(largest: Tensor, top: int) -> Tensor:
    """Powers of two that bring numbers below 2^top: they round nothing."""
    made = torch.empty_like(largest)
    launch("scale", (-(-largest.numel() // 1024),), largest, made, largest.numel(), top, BLOCK=1024)
    return made


def launch(name: str, grid: tuple[int, ...], *given: Any, **options: Any) -> None:
    """Run a kernel on the device of its first tensor, whichever is the current one."""
    with torch.cuda.device_of(given[0]):
        getattr(kernels(), name)[grid](*given, **options)


def parts(x: Tensor, flat: Tensor, scale: Tensor, inner: int, two: bool, half: torch.dtype) -> Operand:
    """The numbers of x in memory's order, in 16 bits."""
    numbers, examples = flat.numel(), scale.numel()
    high = torch.empty(numbers, dtype=half, device=x.device)
    low = torch.empty_like(high) if two else high
    units, wide = numbers // inner, min(BLOCK, power_of_two(inner))
    rows, chunks = BLOCK // wide, -(-inner // wide)
    grid = (-(-units // rows) * chunks,)
    launch(
        "split", grid, flat, high, low, scale, units, inner, examples, chunks,
        TWO=two, ROWS=rows, WIDE=wide, num_warps=8,
    )  # fmt: skip
    shape, stride = x.shape, x.stride()
    return Operand(high.as_strided(shape, stride), low.as_strided(shape, stride), scale, two)


def split_rows(x: Tensor, top: int = TOP) -> Operand:
    """(n, width) in two parts, with a power of two for every row."""
    number, width = x.shape
    if width > BLOCK or not x.is_contiguous():
        return split(x, 0, True, torch.float16, top)
    high = torch.empty_like(x, dtype=torch.float16)
    low, scale = torch.empty_like(high), torch.empty(number, device=x.device)
    wide = power_of_two(width)
    rows = BLOCK // wide
    grid = (-(-number // rows),)
    launch("split_rows", grid, x, high, low, scale, number, width, top, TWO=True, ROWS=rows, WIDE=wide, num_warps=8)
    return Operand(high, low, scale, True)


def dense(x: Tensor) -> bool:
    """Whether the numbers are side by side in memory, in some order."""
    expected = 1
    for stride, count in sorted(zip(x.stride(), x.shape, strict=True)):
        if count > 1 and stride != expected:
            return False
        expected *= count
    return True


def rotated(x: Tensor, basis: Tensor | None, axis: int, two: bool, half: torch.dtype) -> Operand:
    """(..., G, T, n) in a basis (G, n, n) as a 16-bit operand; in one part the product itself is in 16 bits."""
    if basis is None:
        return split(x, axis, two, half)
    if x.device.type != "cuda" or basis.shape[0] > 1 or (two and not worth_parts(x, basis)):
        return split(turned(x, basis), axis, two, half)
    part = split(x, axis, two, half, rotation_top(x.shape[-1]))
    if not two:
        short, factor = shortened(basis, half)
        made = turned(part.high, short)
        return Operand(made, made, part.scale * factor, False)
    own = split(basis, 0, True, torch.float16, 0)  # numbers below one, scaled by one
    made = turned(part.high, own.high, torch.float32)
    made = turned(part.low, own.high, torch.float32, made)
    made = turned(part.high, own.low, torch.float32, made)
    again = split(made, axis, True, half)
    return Operand(again.high, again.low, again.scale * part.scale * own.scale, True)


def worth_parts(x: Tensor, basis: Tensor) -> bool:
    """Whether a rotation on the device of x is faster in two parts than in float32."""
    return x.device.type == "cuda" and basis.shape[0] == 1 and basis.shape[-1] >= WORTH_SPLITTING


def rotation_top(width: int) -> int:
    """The `top` with which rotated vectors stay in range: no number gets larger than the length of its vector."""
    return 14 - math.ceil(math.log2(width) / 2)


shorter: Any = WeakTensorKeyDictionary()  # of bases that are in use: they never change


def shortened(basis: Tensor, half: torch.dtype) -> tuple[Tensor, Tensor]:
    """A basis times a power of two, its vectors no longer than one, and that factor; kept as long as the basis is."""
    kept = shorter.get(basis)
    if kept is None or kept[0].dtype != half:
        plain = basis if dense(basis) else basis.contiguous()
        factor = power(torch.linalg.vector_norm(plain, dim=-2).amax().reshape(1), 0)
        flat = plain.as_strided((plain.numel(),), (1,), plain.storage_offset())
        kept = parts(plain, flat, factor, plain.numel(), False, half).high, factor
        shorter[basis] = kept
    high, factor = kept
    return high, factor


def turned(x: Tensor, basis: Tensor, dtype: Any = None, earlier: Tensor | None = None) -> Tensor:
    """`x @ basis`, added to `earlier`, with positions side by side in memory, as the kernels read them.

    Gradients of channels-first networks have their positions so already; others are written so by one large product.
    """
    if basis.shape[0] > 1:
        return x @ basis
    *batch, _, positions, width = x.shape
    if x.stride(-1) != 1 and x.stride(-2) == 1:
        flat = x.transpose(-1, -2).reshape(-1, width, positions)
        spread = basis.mT.expand(flat.shape[0], -1, -1)
        if earlier is not None:
            held = earlier.transpose(-1, -2).reshape(-1, width, positions)
            made = torch.baddbmm(held, spread, flat, out_dtype=dtype, out=held)
        else:
            made = torch.bmm(spread, flat) if dtype is None else torch.bmm(spread, flat, out_dtype=dtype)
        return made.reshape(*batch, 1, width, positions).transpose(-1, -2)
    side, flat = basis[0].mT, x.reshape(-1, width).mT
    if earlier is not None:
        held = earlier.movedim(-1, 0).reshape(width, -1)
        made = torch.addmm(held, side, flat, out_dtype=dtype, out=held)
    else:
        made = torch.mm(side, flat) if dtype is None else torch.mm(side, flat, out_dtype=dtype)
    return made.reshape(width, *batch, 1, positions).movedim(0, -1)


def power_of_two(number: int) -> int:
    """The next one."""
    return 1 << (number - 1).bit_length()


@dataclass(frozen=True)
class Tile:
    """Sizes of a tile, the fastest of those tried on an H200: padded columns K, rows O, columns I and positions."""

    padded: int
    rows: int
    width: int
    positions: int
    warps: int = 4
    stages: int = 3

    @staticmethod
    def of(grad: Operand, act: Operand, squares: bool) -> Tile:
        """For gradients (K, B, G, T, O) and inputs (B, G, T, I); `squares` need no products of columns."""
        columns, _, _, positions, rows = grad.high.shape
        width = act.high.shape[-1]
        padded = power_of_two(columns) if squares else max(16, power_of_two(columns))
        short = positions <= 16
        many = padded == ROWS and not squares
        wasteful = padded > ROWS or (not many and (width < 128 or (width <= 1024 and width % 128 != 0)))
        step = max(16, min(64 if (short and not many) or wasteful else 128, power_of_two(width)))
        tall = 64 if short and grad.two else ROWS
        # Products of more than 32 columns fill the tensor cores with one row of the weight.
        at_once = 1 if padded > 32 else max(1, tall // padded)
        if squares:
            at_once = max(1, min(power_of_two(rows), ROWS // padded))
            padded = max(padded, 16 // at_once)
        warps = 8 if padded * at_once > ROWS or (squares and at_once > 32) else 4
        if many and (grad.two or not short):  # sums of so many products do not fit into the registers of four
            warps = 8
        return Tile(padded, at_once, step, 16 if short else 32, warps, 2 if short else 3)


def tile_bits(grad: Operand) -> int:
    """Bits of products of Jacobians with each other: those of the numbers that they are made of, or twice eight."""
    if grad.two:
        return 16
    return 11 if grad.high.dtype == torch.float16 else 8


def inner_products(grad: Operand, act: Operand, weight: Tensor, diagonal: bool) -> Tensor:
    """(B, K, K), or (B, K): `sum_oi J[k] weight J[l]` with grad (K, B, G, T, O), act (B, G, T, I), weight (G, O, I)."""
    columns, examples, groups, positions, rows = grad.high.shape
    width = act.high.shape[-1]
    tile = Tile.of(grad, act, squares=False)
    padded = tile.padded
    row_blocks, column_blocks = -(-rows // tile.rows), -(-width // tile.width)
    splits = min(column_blocks, max(1, -(-PROGRAMS // (examples * groups * row_blocks))))
    blocks = -(-column_blocks // splits)
    splits = -(-column_blocks // blocks)
    shape = (padded,) if diagonal else (padded, padded)
    made = torch.empty((examples, groups * row_blocks * splits, *shape), device=weight.device)
    launch(
        "gram", (examples * groups, row_blocks, splits),
        grad.high, grad.low, act.high, act.low, grad.scale, act.scale, weight.sqrt().contiguous(), made,
        columns, groups, positions, rows, width, *grad.high.stride(), *act.high.stride(), blocks,
        TWO=grad.two, BITS=tile_bits(grad), DIAGONAL=diagonal, PLAIN=interpreted(),
        KP=padded, OB=tile.rows, IB=tile.width, TB=tile.positions, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    total = made.sum(1)
    return total[:, :columns] if diagonal else total[:, :columns, :columns]


def square_sums(grad: Operand, act: Operand) -> Tensor:
    """(G, O, I): squares of the Jacobian summed over columns and examples."""
    columns, examples, groups, positions, rows = grad.high.shape
    width = act.high.shape[-1]
    tile = Tile.of(grad, act, squares=True)
    row_blocks, column_blocks = -(-rows // tile.rows), -(-width // tile.width)
    splits = min(examples, max(1, PROGRAMS // (groups * row_blocks * column_blocks)))
    each = -(-examples // splits)
    splits = -(-examples // each)
    made = torch.empty((splits, groups, rows, width), device=grad.high.device)
    launch(
        "squares", (groups * row_blocks, column_blocks, splits),
        grad.high, grad.low, act.high, act.low, grad.scale, act.scale, made,
        columns, examples, positions, rows, width, *grad.high.stride(), *act.high.stride(), groups, each,
        TWO=grad.two, KP=tile.padded, OB=tile.rows, IB=tile.width, TB=tile.positions, num_warps=tile.warps,
        num_stages=tile.stages,
    )  # fmt: skip
    return made.sum(0)


def inputs(acts: Acts, examples: slice, basis: Tensor | None, two: bool, half: torch.dtype) -> Operand:
    """(b, G, T, I) layer inputs in a basis, as an operand."""
    if basis is not None and acts.turned is not None and not acts.ones:
        return acts.turned(examples, basis, two, half)
    return rotated(acts(examples).float(), basis, 0, two, half)


LONGEST = 16_384  # numbers summed on the tensor cores at a time: they cut off what float32 would round
WORTH_PARTS = 1e9  # products from which parts of 16 bits are faster than float32


def in_parts(x: Tensor, operations: float) -> bool:
    """Whether a product of this size with x is done in two parts of 16 bits each."""
    return operations >= WORTH_PARTS and usable(x)


def whole(x: Tensor) -> Operand:
    """A tensor in two parts with one scale for all of it."""
    made = split(x.unsqueeze(0), 0, True, torch.float16)
    return Operand(made.high[0], made.low[0], made.scale, True)


def multiplied(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` of 16-bit matrices, or of as many of them, in float32."""
    if not left.is_cuda:
        return left.float() @ right.float()
    return (torch.mm if left.dim() == 2 else torch.bmm)(left, right, out_dtype=torch.float32)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """(..., n) @ (n, m), as exact as in float32 and on the tensor cores."""
    first, second = split_rows(x.reshape(-1, x.shape[-1]).float()), whole(weight)
    made = multiplied(first.high, second.high)
    if made.is_cuda:
        made = torch.addmm(made, first.low, second.high, out_dtype=torch.float32, out=made)
        made = torch.addmm(made, first.high, second.low, out_dtype=torch.float32, out=made)
    else:
        made = made + multiplied(first.low, second.high) + multiplied(first.high, second.low)
    made *= (first.scale * second.scale).reciprocal()[:, None]
    return made.reshape(*x.shape[:-1], weight.shape[-1])


BITS = 0x1000, ~0x1FFF  # half of the last of 11 bits, and the mask that leaves these


def rounded(x: Tensor) -> tuple[Tensor, Tensor]:
    """(n, C, H, W) in float32 -> its numbers rounded to 11 bits, and what that loses, both with the channels last."""
    if not x.is_cuda:
        half, kept = BITS
        high = ((x.contiguous().view(torch.int32) + half) & kept).view(torch.float32)
        return high, x - high
    x = x.contiguous()
    high, low = (torch.empty_like(x, memory_format=torch.channels_last) for _ in range(2))
    channels, places = x.shape[1], x.shape[2] * x.shape[3]
    grid = (x.shape[0] * -(-channels // TILE), -(-places // TILE))
    launch("rounded", grid, x, high, low, channels, places, BLOCK=TILE)
    return high, low


def summed(parts: list[Tensor], made: Tensor) -> None:
    """The sum of three (n, C, H, W), written to `made` with the places last."""
    if not made.is_cuda:
        made.copy_(parts[0] + (parts[1] + parts[2]))
        return
    parts = [each.contiguous(memory_format=torch.channels_last) for each in parts]
    channels, places = made.shape[1], made.shape[2] * made.shape[3]
    grid = (made.shape[0] * -(-channels // TILE), -(-places // TILE))
    launch("summed", grid, *parts, made, channels, places, BLOCK=TILE)


def outer(rows: Tensor) -> Tensor:
    """(n, width) -> (width, width): `rows^T rows`, as exact as in float32 and on the tensor cores.

    With `rows = high + low`, the products `high^T low` and `low^T high` are each other's transposes.
    """
    number, width = rows.shape
    made = torch.zeros(width, width, device=rows.device)
    cross = torch.zeros_like(made)
    operand = whole(rows)
    even = number - number % LONGEST
    if even:
        high, low = (each[:even].reshape(-1, LONGEST, width) for each in (operand.high, operand.low))
        made += multiplied(high.mT, high).sum(0)
        cross += multiplied(high.mT, low).sum(0)
    if even < number:
        made += multiplied(operand.high[even:].mT, operand.high[even:])
        cross += multiplied(operand.high[even:].mT, operand.low[even:])
    return (made + cross + cross.mT) * operand.scale.square().reciprocal()


LONGEST_HEAD = 64  # positions and widths of a head up to which it is worked on as a whole: what fits on the chip


def attends(grad: Tensor, positions: int, width: int) -> bool:
    """Whether there is a kernel for gradients (..., T, e) of attention to so many positions, of this width."""
    return max(*grad.shape[-2:], positions, width) <= LONGEST_HEAD and usable(grad)


def attention(
    query: Tensor, key: Tensor, value: Tensor, shares: Tensor, scale: float, grad: Tensor, exact: bool
) -> tuple[Tensor, ...]:
    """(B, H, T, d), (B, H, S, d), (B, H, S, e), (B, H, T, S), gradients (K, B, H, T, e) -> (K, B, H, ...) of three."""
    columns, examples, heads, positions, width = grad.shape
    seen, own = key.shape[2:]
    made = [
        grad.new_empty(columns, examples, rows, heads, wide)
        for rows, wide in ((positions, own), (seen, own), (seen, width))
    ]
    programs = examples * heads
    splits = min(columns, max(1, -(-PROGRAMS // programs)))
    padded = [max(16, power_of_two(each)) for each in (positions, seen, own, width)]
    strides = [step for each in (query, key, value, shares, grad) for step in each.stride()]
    launch(
        "attention", (programs, splits),
        query, key, value, shares, grad, *made, float(scale), heads, columns, positions, seen, own, width, *strides,
        -(-columns // splits), EXACT=exact, TB=padded[0], SB=padded[1], DB=padded[2], EB=padded[3],
        num_warps=8 if max(padded) > 64 else 4, num_stages=1,
    )  # fmt: skip
    return tuple(each.transpose(2, 3) for each in made)


def with_dense_axis(x: Tensor) -> Tensor:
    """One of the last two axes dense in memory: behind Fourier transforms none is, and Triton adds up wrongly."""
    return x if 1 in x.stride()[-2:] else x.contiguous()


def moments(grad: Tensor, other: Tensor | None, sums: bool) -> tuple[Tensor | None, Tensor | None]:
    """(K, B, T, P) and (B, T, P) -> (K, B, P): sums over T of products with the other, and of gradients alone."""
    columns, examples, positions, width = grad.shape
    grad, other = with_dense_axis(grad), None if other is None else with_dense_axis(other)
    beside = grad.stride(3) == 1  # widths are side by side in memory, and positions otherwise
    wide = min(128, power_of_two(width)) if beside else max(1, 1024 // min(1024, power_of_two(positions)))
    long = min(16, power_of_two(positions)) if beside else min(1024, power_of_two(positions))
    made = [grad.new_empty(columns, examples, width) if asked else None for asked in (other is not None, sums)]
    some = [grad if each is None else each for each in (other, *made)]
    steps = (0, 0, 0) if other is None else other.stride()
    launch(
        "moments", (columns * examples, -(-width // wide)),
        grad, *some, examples, positions, width, *grad.stride(), *steps,
        PRODUCTS=other is not None, SUMS=sums, TB=long, PB=wide, num_warps=4,
    )  # fmt: skip
    return made[0], made[1]


WIDEST_ROW = 8192  # numbers that one program norms


def layer_norm(grad: Tensor, rows: Tensor, mean: Tensor, slope: Tensor, weight: Tensor | None) -> Tensor:
    """(K, R, P) gradients of `(rows - mean) slope weight`, with rows (R, P), mean and slope (R, 1) -> of the rows."""
    grad, rows = grad.contiguous(), rows.contiguous()
    columns, number, width = grad.shape
    made = torch.empty_like(grad)
    splits = min(columns, max(1, -(-8 * PROGRAMS // number)))
    block = power_of_two(width)
    launch(
        "layer_norm", (number, splits),
        grad, rows, mean.contiguous(), slope.contiguous(), rows if weight is None else weight.contiguous(), made,
        columns, width, -(-columns // splits), WEIGHT=weight is not None, BLOCK=block,
        num_warps=max(1, min(8, block // 256)),
    )  # fmt: skip
    return made
