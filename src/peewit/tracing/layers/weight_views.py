"""Views of weights: tensors in a call that are selected parameters, or parts of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from ...weights.ranges import WeightRange


@dataclass(frozen=True, kw_only=True)
class WeightView:
    """A tensor in a call that is a selected parameter, or a view of one.

    Element (i, j, ...) of the view is number `start + i * steps[0] + j * steps[1] + ...` of the flattened parameter,
    whatever their order in memory.
    """

    name: str
    tensor: Tensor
    parameter: Tensor
    start: int
    steps: tuple[int, ...]

    @staticmethod
    def of(name: str, tensor: Tensor, parameter: Tensor) -> WeightView | None:
        """The view; None where its elements are not numbered so in the parameter."""
        if tensor is parameter:
            start, steps = 0, own_steps(tuple(tensor.shape))
            return WeightView(name=name, tensor=tensor, parameter=parameter, start=start, steps=steps)
        if tensor.dtype != parameter.dtype:  # real numbers seen as complex ones, or bits as other numbers
            return None
        offset = tensor.storage_offset() - parameter.storage_offset()
        sizes = tuple(tensor.shape), tensor.stride(), tuple(parameter.shape), parameter.stride()
        numbering = steps_of(offset, *sizes)
        if numbering is None:
            return None
        return WeightView(name=name, tensor=tensor, parameter=parameter, start=numbering[0], steps=numbering[1])

    @property
    def part(self) -> WeightRange:
        """The range that the view covers, if it is contiguous."""
        return WeightRange(self.name, self.start, self.start + self.tensor.numel())

    @property
    def is_rows(self) -> bool:
        """Whether the view is a contiguous range of the flattened parameter, in its own order."""
        return in_order(tuple(self.tensor.shape), self.steps)

    @property
    def transposed(self) -> bool:
        """Whether the parameter has the last two axes of the view in the other order."""
        if self.tensor.dim() < 2:
            return False
        # An axis of one fits either way: then the longer one is the first.
        first, second = list(zip(self.steps, self.tensor.shape, strict=True))[-2:]
        return second > first

    def permute(self, order: tuple[int, ...]) -> WeightView:
        """The same elements with the view's axes in another order."""
        steps = tuple(self.steps[axis] for axis in order)
        return replace(self, tensor=self.tensor.permute(order), steps=steps)

    def index(self) -> Tensor:
        """(view's shape): positions of the view's elements in the flattened parameter."""
        numbers = torch.arange(self.parameter.numel(), device=self.parameter.device)
        return numbers.as_strided(self.tensor.shape, self.steps, self.start)


Sizes = tuple[int, ...]


def own_steps(shape: Sizes) -> Sizes:
    """How far apart neighbours along each axis are in a flattened tensor."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def in_order(shape: Sizes, steps: Sizes) -> bool:
    """Whether elements this far apart are a contiguous range in the order of the axes; an axis of one has no steps."""
    pairs = zip(shape, steps, own_steps(shape), strict=True)
    return 0 in shape or all(size == 1 or step == own_step for size, step, own_step in pairs)


def reach(shape: Sizes, steps: Sizes) -> int:
    """How far the last element is from the first."""
    return sum((size - 1) * step for size, step in zip(shape, steps, strict=True))


@cache
def steps_of(offset: int, shape: Sizes, strides: Sizes, whole: Sizes, whole_strides: Sizes) -> tuple[int, Sizes] | None:
    """The start and steps of a view in the flattened parameter, from the strides of both in memory.

    None where the view leaves the parameter, where elements of the parameter share memory, or where neighbours in the
    view are not equally far apart in the flattened parameter.
    """
    if 0 in shape:
        return 0, own_steps(shape)
    if offset < 0 or offset + reach(shape, strides) > reach(whole, whole_strides):
        return None
    if in_order(whole, whole_strides):
        return offset, strides
    numbers = torch.arange(1 + max(reach(whole, whole_strides), math.prod(whole)), device="cpu")
    places = numbers.as_strided(whole, whole_strides).flatten()
    if places.unique().numel() < places.numel():
        return None
    memory = torch.full_like(numbers, -1).index_copy(0, places, numbers[: places.numel()])
    elements = memory.as_strided(shape, strides, offset)
    start = int(elements.flatten()[0])
    steps = tuple(int(elements.select(axis, min(1, size - 1)).flatten()[0]) - start for axis, size in enumerate(shape))
    if min(start, *steps, 0) < 0 or start + reach(shape, steps) >= len(numbers):
        return None
    return (start, steps) if torch.equal(elements, numbers.as_strided(shape, steps, start)) else None
