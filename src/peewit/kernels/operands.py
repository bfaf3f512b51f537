"""Operands of the kernels: float32 tensors as one or two tensors in 16 bits.

Operands are brought to 16 bits, scaled to the range of the dtype by a power of two per example, so that an example with
NaN or a large gradient changes no other. In two parts their products are as exact as float32's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from . import available
from .available import power_of_two

TOP = 12  # scaled numbers stay below 2^TOP: sums of squares of rotated ones then stay in range
BLOCK = 2048  # numbers that are brought to 16 bits at a time
WORTH_SPLITTING = 256  # length of vectors from which rotations are faster in parts than in float32


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
    powers = torch.empty_like(largest)
    available.launch("scale", (-(-largest.numel() // 1024),), largest, powers, largest.numel(), top, BLOCK=1024)
    return powers


def parts(x: Tensor, flat: Tensor, scale: Tensor, inner: int, two: bool, half: torch.dtype) -> Operand:
    """The numbers of x in memory's order, in 16 bits."""
    numbers, examples = flat.numel(), scale.numel()
    high = torch.empty(numbers, dtype=half, device=x.device)
    low = torch.empty_like(high) if two else high
    units, wide = numbers // inner, min(BLOCK, power_of_two(inner))
    rows, chunks = BLOCK // wide, -(-inner // wide)
    grid = (-(-units // rows) * chunks,)
    available.launch(
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
    available.launch(
        "split_rows", grid, x, high, low, scale, number, width, top, TWO=True, ROWS=rows, WIDE=wide, num_warps=8
    )
    return Operand(high, low, scale, True)


def dense(x: Tensor) -> bool:
    """Whether the numbers are side by side in memory, in some order."""
    expected = 1
    for stride, count in sorted(zip(x.stride(), x.shape, strict=True)):
        if count > 1 and stride != expected:
            return False
        expected *= count
    return True


def rotate(x: Tensor, basis: Tensor | None, axis: int, two: bool, half: torch.dtype) -> Operand:
    """(..., G, T, n) in a basis (G, n, n) as a 16-bit operand; in one part the product itself is in 16 bits."""
    if basis is None:
        return split(x, axis, two, half)
    if x.device.type != "cuda" or basis.shape[0] > 1 or (two and not worth_parts(x, basis)):
        return split(multiply_basis(x, basis), axis, two, half)
    part = split(x, axis, two, half, rotation_top(x.shape[-1]))
    if not two:
        short, factor = shorten(basis, half)
        product = multiply_basis(part.high, short)
        return Operand(product, product, part.scale * factor, False)
    turn = split(basis, 0, True, torch.float16, 0)  # numbers below one, scaled by one
    product = multiply_basis(part.high, turn.high, torch.float32)
    product = multiply_basis(part.low, turn.high, torch.float32, product)
    product = multiply_basis(part.high, turn.low, torch.float32, product)
    again = split(product, axis, True, half)
    return Operand(again.high, again.low, again.scale * part.scale * turn.scale, True)


def worth_parts(x: Tensor, basis: Tensor) -> bool:
    """Whether a rotation on the device of x is faster in two parts than in float32."""
    return x.device.type == "cuda" and basis.shape[0] == 1 and basis.shape[-1] >= WORTH_SPLITTING


def rotation_top(width: int) -> int:
    """The `top` with which rotated vectors stay in range: no number gets larger than the length of its vector."""
    return 14 - math.ceil(math.log2(width) / 2)


shorter: Any = WeakTensorKeyDictionary()  # of bases that are in use: they never change


def shorten(basis: Tensor, half: torch.dtype) -> tuple[Tensor, Tensor]:
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


def multiply_basis(x: Tensor, basis: Tensor, dtype: Any = None, earlier: Tensor | None = None) -> Tensor:
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
            product = torch.baddbmm(held, spread, flat, out_dtype=dtype, out=held)
        else:
            product = torch.bmm(spread, flat) if dtype is None else torch.bmm(spread, flat, out_dtype=dtype)
        return product.reshape(*batch, 1, width, positions).transpose(-1, -2)
    side, flat = basis[0].mT, x.reshape(-1, width).mT
    if earlier is not None:
        held = earlier.movedim(-1, 0).reshape(width, -1)
        product = torch.addmm(held, side, flat, out_dtype=dtype, out=held)
    else:
        product = torch.mm(side, flat) if dtype is None else torch.mm(side, flat, out_dtype=dtype)
    return product.reshape(width, *batch, 1, positions).movedim(0, -1)
