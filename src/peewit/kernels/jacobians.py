"""Squares and inner products of Jacobians that are never made."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from . import available
from .available import PROGRAMS, is_interpreted, power_of_two
from .operands import Operand

ROWS = 128  # of a tile


def partial_sums(probes: int, rows: int) -> int:
    """Numbers that an example's inner products take on the way, or more: probes and rows of the weight O."""
    padded = max(16, power_of_two(probes))
    return padded**2 * -(-rows // (1 if padded > 32 else max(1, ROWS // 2 // padded)))


def worthwhile(jacobian: int, operands: int) -> bool:
    """Whether an example's Jacobian has so many numbers, beside those it is made of, that it is better not made."""
    return 4 * jacobian >= operands


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Sizes of a tile, the fastest of those tried on an H200: padded probes K, rows O, columns I and positions."""

    padded: int
    rows: int
    width: int
    positions: int
    warps: int = 4
    stages: int = 3

    @staticmethod
    def of(grad: Operand, act: Operand, squares: bool) -> Tile:
        """For gradients (K, B, G, T, O) and inputs (B, G, T, I); `squares` need no products of probes."""
        probes, _, _, positions, rows = grad.high.shape
        width = act.high.shape[-1]
        padded = power_of_two(probes) if squares else max(16, power_of_two(probes))
        short = positions <= 16
        many = padded == ROWS and not squares
        wasteful = padded > ROWS or (not many and (width < 128 or (width <= 1024 and width % 128 != 0)))
        step = max(16, min(64 if (short and not many) or wasteful else 128, power_of_two(width)))
        tall = 64 if short and grad.two else ROWS
        # Products of more than 32 probes fill the tensor cores with one row of the weight.
        at_once = 1 if padded > 32 else max(1, tall // padded)
        if squares:
            at_once = max(1, min(power_of_two(rows), ROWS // padded))
            padded = max(padded, 16 // at_once)
        warps = 8 if padded * at_once > ROWS or (squares and at_once > 32) else 4
        if many and (grad.two or not short):  # sums of so many products do not fit into the registers of four
            warps = 8
        return Tile(
            padded=padded,
            rows=at_once,
            width=step,
            positions=16 if short else 32,
            warps=warps,
            stages=2 if short else 3,
        )


def tile_bits(grad: Operand) -> int:
    """Bits of products of Jacobians with each other: those of the numbers that they are made of, or twice eight."""
    if grad.two:
        return 16
    return 11 if grad.high.dtype == torch.float16 else 8


def inner_products(grad: Operand, act: Operand, weight: Tensor, diagonal: bool) -> Tensor:
    """(B, K, K), or (B, K): `sum_oi J[k] weight J[l]` with grad (K, B, G, T, O), act (B, G, T, I), weight (G, O, I)."""
    probes, examples, groups, positions, rows = grad.high.shape
    width = act.high.shape[-1]
    tile = Tile.of(grad, act, squares=False)
    padded = tile.padded
    row_blocks, column_blocks = -(-rows // tile.rows), -(-width // tile.width)
    splits = min(column_blocks, max(1, -(-PROGRAMS // (examples * groups * row_blocks))))
    blocks = -(-column_blocks // splits)
    splits = -(-column_blocks // blocks)
    shape = (padded,) if diagonal else (padded, padded)
    partial = torch.empty((examples, groups * row_blocks * splits, *shape), device=weight.device)
    available.launch(
        "gram", (examples * groups, row_blocks, splits),
        grad.high, grad.low, act.high, act.low, grad.scale, act.scale, weight.sqrt().contiguous(), partial,
        probes, groups, positions, rows, width, *grad.high.stride(), *act.high.stride(), blocks,
        TWO=grad.two, BITS=tile_bits(grad), DIAGONAL=diagonal, PLAIN=is_interpreted(),
        KP=padded, OB=tile.rows, IB=tile.width, TB=tile.positions, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    total = partial.sum(1)
    return total[:, :probes] if diagonal else total[:, :probes, :probes]


def square_sums(grad: Operand, act: Operand) -> Tensor:
    """(G, O, I): squares of the Jacobian summed over probes and examples."""
    probes, examples, groups, positions, rows = grad.high.shape
    width = act.high.shape[-1]
    tile = Tile.of(grad, act, squares=True)
    row_blocks, column_blocks = -(-rows // tile.rows), -(-width // tile.width)
    splits = min(examples, max(1, PROGRAMS // (groups * row_blocks * column_blocks)))
    examples_each = -(-examples // splits)
    splits = -(-examples // examples_each)
    partial = torch.empty((splits, groups, rows, width), device=grad.high.device)
    available.launch(
        "squares", (groups * row_blocks, column_blocks, splits),
        grad.high, grad.low, act.high, act.low, grad.scale, act.scale, partial,
        probes, examples, positions, rows, width, *grad.high.stride(), *act.high.stride(), groups, examples_each,
        TWO=grad.two, KP=tile.padded, OB=tile.rows, IB=tile.width, TB=tile.positions, num_warps=tile.warps,
        num_stages=tile.stages,
    )  # fmt: skip
    return partial.sum(0)
