"""Batches that hold examples twice: equal rows tell where the examples are."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..network.nests import Inputs, count, map_tensors
from .layers.examples import BatchAxis

# By how many examples there are: they, and they again in an order that no flip or roll turns into the first.
ORDERS = {1: ([0], []), 2: ([0, 1], [1, 0]), 3: ([0, 1, 2], [0, 2, 1])}


def double(inputs: Inputs) -> Inputs:
    """The first examples twice, in another order the second time: equal rows then tell where the examples are."""
    first, second = ORDERS[min(count(inputs), 3)]
    doubled: Inputs = map_tensors(lambda tensor: torch.cat([tensor[i : i + 1] for i in (*first, *second)]), inputs)
    return doubled


def second_places(examples: int, device: torch.device) -> Tensor:
    """(examples / 2,): where the first examples of a doubled batch stand again."""
    first, second = ORDERS[examples // 2]
    return torch.tensor([len(first) + second.index(example) for example in first], device=device)


def rows_of_examples(axis: BatchAxis, examples: int, tensor: Tensor) -> Tensor:
    """(B, numbers): what each example has of a tensor, if its examples are at this place."""
    rows = axis.split(tensor, examples).reshape(examples, -1) if tensor.numel() else tensor.new_zeros(examples, 1)
    if rows.is_complex():
        return torch.view_as_real(rows).flatten(1)
    return rows if rows.is_floating_point() else rows.double()  # token numbers


def repeats(questions: list[tuple[BatchAxis, Tensor]], examples: int) -> list[list[bool]]:
    """For each question whether rows of equal examples in a doubled batch are equal at a place, and others differ.

    All questions in a few calls: a network has hundreds.
    """
    if not questions:
        return []
    again = second_places(examples, questions[0][1].device)
    rows = [rows_of_examples(axis, examples, tensor) for axis, tensor in questions]
    first = [matrix[: examples // 2] for matrix in rows]
    gaps = torch._foreach_norm(torch._foreach_sub(first, [matrix.index_select(0, again) for matrix in rows]), math.inf)
    others = torch._foreach_norm(
        torch._foreach_sub([matrix[0] for matrix in rows], [matrix[1] for matrix in rows]), math.inf
    )
    sizes = torch._foreach_norm(rows, math.inf)
    bounds = [1e-2 if matrix.dtype in (torch.float16, torch.bfloat16) else 1e-4 for matrix in rows]
    gap, other, size = (torch.stack([matrix.double() for matrix in values]) for values in (gaps, others, sizes))
    equal = gap <= torch.tensor(bounds, dtype=size.dtype, device="cpu").to(size) * size
    answers: list[list[bool]] = torch.stack([equal, other != 0], 1).tolist()
    return answers


def reach(axis: BatchAxis, gradient: Tensor | None, shape: tuple[int, ...], examples: int, like: Tensor) -> Tensor:
    """(B,): the largest gradient in each example's rows; zeros where there is none, and so nothing is said."""
    if gradient is None:
        return torch.zeros(examples, dtype=torch.float64, device=like.device)
    rows = rows_of_examples(axis, examples, gradient.reshape(shape))
    sizes: Tensor = torch.linalg.vector_norm(rows, math.inf, 1)
    return sizes.double()
