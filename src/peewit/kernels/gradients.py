"""Gradients of all probes in one pass over memory: attention, layer norms, sums over positions."""

from __future__ import annotations

import torch
from torch import Tensor

from . import available
from .available import PROGRAMS, power_of_two

LONGEST_HEAD = 64  # positions and widths of a head up to which it is worked on as a whole: what fits on the chip


def attends(grad: Tensor, positions: int, width: int) -> bool:
    """Whether there is a kernel for gradients (..., T, e) of attention to so many positions, of this width."""
    return max(*grad.shape[-2:], positions, width) <= LONGEST_HEAD and available.usable(grad)


def attention(
    query: Tensor, key: Tensor, value: Tensor, shares: Tensor, scale: float, grad: Tensor, exact: bool
) -> tuple[Tensor, ...]:
    """(B, H, T, d), (B, H, S, d), (B, H, S, e), (B, H, T, S), gradients (K, B, H, T, e) -> (K, B, H, ...) of three."""
    probes, examples, heads, positions, width = grad.shape
    seen, depth = key.shape[2:]
    results = [
        grad.new_empty(probes, examples, rows, heads, wide)
        for rows, wide in ((positions, depth), (seen, depth), (seen, width))
    ]
    programs = examples * heads
    splits = min(probes, max(1, -(-PROGRAMS // programs)))
    padded = [max(16, power_of_two(each)) for each in (positions, seen, depth, width)]
    strides = [step for each in (query, key, value, shares, grad) for step in each.stride()]
    available.launch(
        "attention", (programs, splits),
        query, key, value, shares, grad, *results, float(scale), heads, probes, positions, seen, depth, width, *strides,
        -(-probes // splits), EXACT=exact, TB=padded[0], SB=padded[1], DB=padded[2], EB=padded[3],
        num_warps=8 if max(padded) > 64 else 4, num_stages=1,
    )  # fmt: skip
    return tuple(each.transpose(2, 3) for each in results)


def with_dense_axis(x: Tensor) -> Tensor:
    """One of the last two axes dense in memory: behind Fourier transforms none is, and Triton adds up wrongly."""
    return x if 1 in x.stride()[-2:] else x.contiguous()


def moments(grad: Tensor, other: Tensor | None, sums: bool) -> tuple[Tensor | None, Tensor | None]:
    """(K, B, T, P) and (B, T, P) -> (K, B, P): sums over T of products with the other, and of gradients alone."""
    probes, examples, positions, width = grad.shape
    grad, other = with_dense_axis(grad), None if other is None else with_dense_axis(other)
    beside = grad.stride(3) == 1  # widths are side by side in memory, and positions otherwise
    wide = min(128, power_of_two(width)) if beside else max(1, 1024 // min(1024, power_of_two(positions)))
    long = min(16, power_of_two(positions)) if beside else min(1024, power_of_two(positions))
    results = [grad.new_empty(probes, examples, width) if needed else None for needed in (other is not None, sums)]
    some = [grad if each is None else each for each in (other, *results)]
    steps = (0, 0, 0) if other is None else other.stride()
    available.launch(
        "moments", (probes * examples, -(-width // wide)),
        grad, *some, examples, positions, width, *grad.stride(), *steps,
        PRODUCTS=other is not None, SUMS=sums, TB=long, PB=wide, num_warps=4,
    )  # fmt: skip
    return results[0], results[1]


WIDEST_ROW = 8192  # numbers that one program norms


def layer_norm(grad: Tensor, rows: Tensor, mean: Tensor, slope: Tensor, weight: Tensor | None) -> Tensor:
    """(K, R, P) gradients of `(rows - mean) slope weight`, with rows (R, P), mean and slope (R, 1) -> of the rows."""
    grad, rows = grad.contiguous(), rows.contiguous()
    probes, number, width = grad.shape
    result = torch.empty_like(grad)
    splits = min(probes, max(1, -(-8 * PROGRAMS // number)))
    block = power_of_two(width)
    available.launch(
        "layer_norm", (number, splits),
        grad, rows, mean.contiguous(), slope.contiguous(), rows if weight is None else weight.contiguous(), result,
        probes, width, -(-probes // splits), WEIGHT=weight is not None, BLOCK=block,
        num_warps=max(1, min(8, block // 256)),
    )  # fmt: skip
    return result
