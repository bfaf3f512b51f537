"""Products `rows^T rows`, which are symmetric: sums of factors and of dense blocks are made of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ...kernels import available
from ...kernels import products as kernel_products
from ...runtime.memory import Budget
from .common import add_to

LARGEST_SIDE = 16_384  # a factor with a longer side keeps its diagonal
WIDE, MANY = 128, 512  # columns and rows from which a product is made by its lower part alone: below, calls cost more
WIDE_CUDA, SPLIT_CUDA = 512, 3e10  # columns and rows, and operations, on a GPU
CHUNK = 2_048  # rows of a product in float32 on a CPU, summed in float64: more of them round more, fewer take longer
NARROW = 128  # sides whose products of all chunks are no larger than the rows
CHUNK_CUDA, CHUNKS_CUDA = 8_192, 16  # on a GPU, and at most so many of them
STRIPES, STRIPE = 4, 128  # in how many stripes a sum in place is made, and how wide they are at least


def too_long(size: int) -> bool:
    """Whether a side of so many numbers keeps its diagonal alone."""
    return size > LARGEST_SIDE


def rows_at_once(rows: Tensor, number: int) -> int:
    """How many of the rows are multiplied in one dtype before they are summed in float64."""
    return max(CHUNK_CUDA, -(-number // CHUNKS_CUDA)) if rows.is_cuda else CHUNK


def outer(rows: Tensor, budget: Budget, dtype: torch.dtype = torch.float32) -> Tensor:
    """(G, n, width) -> (G, width, width), or (G, width) for a side too long to square; products in a dtype at least.

    Many rows are summed in float64, some at a time.
    """
    dtype = torch.promote_types(rows.dtype, dtype)
    number, width = rows.shape[1:]
    if too_long(width):
        return rows.to(dtype).square().sum(1)
    step = rows_at_once(rows, number)
    if dtype != rows.dtype:
        step = min(step, budget.count(2 * dtype.itemsize * rows.shape[0] * width, step, 0.5))
    if number <= step:
        return product(rows.to(dtype), budget)
    if width <= NARROW and dtype == rows.dtype:  # all chunks in one call
        whole = number // CHUNK * CHUNK
        chunks = rows[:, :whole].unflatten(1, (-1, CHUNK))
        grams = (chunks.mT @ chunks).sum(1, dtype=torch.float64)
        return grams if whole == number else add_to(grams, product(rows[:, whole:], budget))
    total = rows.new_zeros(rows.shape[0], width, width, dtype=torch.float64)
    for some in rows.split(step, 1):
        total = add_to(total, product(some.to(dtype), budget))
    return total


def product(rows: Tensor, budget: Budget) -> Tensor:
    """(G, n, width) -> (G, width, width): `rows^T rows`, in one piece."""
    number, width = rows.shape[1:]
    exact = budget.arithmetic.parts(predicting=False) == 2
    if exact and rows.shape[0] == 1 and width >= 128 and kernel_products.in_parts(rows, number * width**2):
        fused = available.attempt(lambda: kernel_products.outer(rows[0]).unsqueeze(0))
        if fused is not None:
            return fused
    if rows.is_cuda:
        striped = min(width, number) >= WIDE_CUDA and number * width**2 >= SPLIT_CUDA
    else:
        striped = width >= WIDE and number >= MANY
    if not striped or rows.requires_grad:
        return rows.mT @ rows
    return symmetric(rows, 3 if rows.is_cuda else 4)


def stripes(width: int, step: int) -> Iterator[slice]:
    """Rows of a matrix, some at a time, from the top."""
    for start in range(0, width, step):
        yield slice(start, min(start + step, width))


def stripe(width: int) -> int:
    """Rows at a time of a sum in place."""
    return max(STRIPE, -(-width // STRIPES))


def symmetric(rows: Tensor, number: int) -> Tensor:
    """`rows^T rows` by its lower stripes alone (with four of them 10 products of 16): the rest is their transpose.

    On a GPU three were the fastest at widths from 576 to 2,304; with more, products no longer fill it.
    """
    width = rows.shape[-1]
    step = -(-width // number)
    total = rows.new_empty(*rows.shape[:-2], width, width)
    for columns in stripes(width, step):
        total[..., columns, : columns.stop] = rows[..., columns].mT @ rows[..., : columns.stop]
    return mirror(total, step)


def add_outer(total: Tensor, rows: Tensor) -> Tensor:
    """`total + rows^T rows`, in place where no gradient flows: several matrices (P, P) at a time may be too many.

    In place only the lower stripes are summed; `mirror` fills in the rest.
    """
    if total.requires_grad or rows.requires_grad:
        return mirror(total) + rows.T @ rows
    width = rows.shape[1]
    for columns in stripes(width, stripe(width)):
        total[columns, : columns.stop] += rows[:, columns].T @ rows[:, : columns.stop]
    return total


def mirror(total: Tensor, step: int | None = None) -> Tensor:
    """(..., P, P): numbers below the diagonal above it too, in place; `step` is that of the stripes at most."""
    if total.requires_grad:
        return total
    width = total.shape[-1]
    for columns in stripes(width, stripe(width) if step is None else step):
        total[..., : columns.start, columns] = total[..., columns, : columns.start].mT
    return total
