"""Products on the tensor cores that are as exact as in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from . import available, operands
from .operands import Operand, split_rows

TILE = 32  # channels and places that are brought into another order at a time
LONGEST = 16_384  # numbers summed on the tensor cores at a time: they cut off what float32 would round
WORTH_PARTS = 1e9  # products from which parts of 16 bits are faster than float32


def in_parts(x: Tensor, operations: float) -> bool:
    """Whether a product of this size with x is done in two parts of 16 bits each."""
    return operations >= WORTH_PARTS and available.usable(x)


def split_matrix(x: Tensor) -> Operand:
    """A tensor in two parts with one scale for all of it."""
    operand = operands.split(x.unsqueeze(0), 0, True, torch.float16)
    return Operand(operand.high[0], operand.low[0], operand.scale, True)


def multiply(left: Tensor, right: Tensor) -> Tensor:
    """`left @ right` of 16-bit matrices, or of as many of them, in float32."""
    if not left.is_cuda:
        return left.float() @ right.float()
    return (torch.mm if left.dim() == 2 else torch.bmm)(left, right, out_dtype=torch.float32)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """(..., n) @ (n, m), as exact as in float32 and on the tensor cores."""
    first, second = split_rows(x.reshape(-1, x.shape[-1]).float()), split_matrix(weight)
    result = multiply(first.high, second.high)
    if result.is_cuda:
        result = torch.addmm(result, first.low, second.high, out_dtype=torch.float32, out=result)
        result = torch.addmm(result, first.high, second.low, out_dtype=torch.float32, out=result)
    else:
        result = result + multiply(first.low, second.high) + multiply(first.high, second.low)
    result *= (first.scale * second.scale).reciprocal()[:, None]
    return result.reshape(*x.shape[:-1], weight.shape[-1])


BITS = 0x1000, ~0x1FFF  # half of the last of 11 bits, and the mask that leaves these


def round_to_eleven_bits(x: Tensor) -> tuple[Tensor, Tensor]:
    """(n, C, H, W) in float32 -> its numbers rounded to 11 bits, and what that loses, both with the channels last."""
    if not x.is_cuda:
        half, kept = BITS
        high = ((x.contiguous().view(torch.int32) + half) & kept).view(torch.float32)
        return high, x - high
    x = x.contiguous()
    high, low = (torch.empty_like(x, memory_format=torch.channels_last) for _ in range(2))
    channels, places = x.shape[1], x.shape[2] * x.shape[3]
    grid = (x.shape[0] * -(-channels // TILE), -(-places // TILE))
    available.launch("round_parts", grid, x, high, low, channels, places, BLOCK=TILE)
    return high, low


def add_parts(parts: list[Tensor], result: Tensor) -> None:
    """The sum of three (n, C, H, W), written to `result` with the places last."""
    if not result.is_cuda:
        result.copy_(parts[0] + (parts[1] + parts[2]))
        return
    parts = [each.contiguous(memory_format=torch.channels_last) for each in parts]
    channels, places = result.shape[1], result.shape[2] * result.shape[3]
    grid = (result.shape[0] * -(-channels // TILE), -(-places // TILE))
    available.launch("sum_parts", grid, *parts, result, channels, places, BLOCK=TILE)


def outer(rows: Tensor) -> Tensor:
    """(n, width) -> (width, width): `rows^T rows`, as exact as in float32 and on the tensor cores.

    With `rows = high + low`, the products `high^T low` and `low^T high` are each other's transposes.
    """
    number, width = rows.shape
    total = torch.zeros(width, width, device=rows.device)
    cross = torch.zeros_like(total)
    operand = split_matrix(rows)
    even = number - number % LONGEST
    if even:
        high, low = (each[:even].reshape(-1, LONGEST, width) for each in (operand.high, operand.low))
        total += multiply(high.mT, high).sum(0)
        cross += multiply(high.mT, low).sum(0)
    if even < number:
        total += multiply(operand.high[even:].mT, operand.high[even:])
        cross += multiply(operand.high[even:].mT, operand.low[even:])
    return (total + cross + cross.mT) * operand.scale.square().reciprocal()
