"""A parameter that meets the examples element by element: positions, layer scales, class tokens.

Its gradient is taken where it is broadcast, so that neither the operation nor what happens to its result matters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...jacobians.layout import Layout
from ...weights.ranges import WeightRange
from .contract import Contribution, Handler, PlainInputs, Recorder, Use
from .weight_views import WeightView


def sum_broadcast(grad: Tensor, aligned: tuple[int, ...], lead: int) -> Tensor:
    """Sum gradients (lead..., shape...) over the axes along which `aligned` was broadcast, and keep these axes."""
    summed = [lead + axis for axis, size in enumerate(aligned) if size == 1 and grad.shape[lead + axis] > 1]
    return grad.sum(summed, keepdim=True) if summed else grad


def pad_shape(shape: tuple[int, ...], dims: int) -> tuple[int, ...]:
    """A shape with ones in front, as broadcasting adds them."""
    return (1,) * (dims - len(shape)) + tuple(shape)


def broadcast_axes(shape: tuple[int, ...], output: tuple[int, ...]) -> tuple[int, ...]:
    """Axes along which a shape is broadcast: the examples can only be there."""
    return tuple(axis for axis, size in enumerate(pad_shape(shape, len(output))) if size == 1)


class ElementwiseRule(PlainInputs):
    """A parameter broadcast over the examples: one row per example and probe."""

    matrix = False

    def __init__(self, name: str) -> None:
        self.name = name

    def contributions(self, use: Use, inputs: tuple[Tensor, ...], grad: Tensor) -> Iterator[Contribution]:
        """Gradients (K, B, shape of the output without its examples)."""
        view: WeightView = use.views["weight"]
        aligned = pad_shape(tuple(view.tensor.shape), len(use.shape))
        axis = use.cache["axis"]
        if axis is not None:  # the parameter has size one along the examples (checked when recorded)
            aligned = aligned[:axis] + aligned[axis + 1 :]
        value = sum_broadcast(grad, aligned, 2).reshape(*grad.shape[:2], -1)
        size = view.parameter.numel()
        if not (view.is_rows and view.tensor.numel() == size):
            whole = value.new_zeros(*value.shape[:2], size)
            value = whole.index_add(2, view.index().flatten(), value)
        yield Contribution(WeightRange(view.name, 0, size), value, Layout.plain(1, size, 1))


ADD = ElementwiseRule("added parameter")
MULTIPLY = ElementwiseRule("multiplied parameter")
EXPAND = ElementwiseRule("expanded parameter")


def binary_handler(rule: ElementwiseRule) -> Handler:
    """A handler for an operation of two tensors, element by element."""

    def handler(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if "out" in kwargs or len(args) != 2 or not all(isinstance(each, Tensor) for each in args):
            return func(*args, **kwargs)
        operands = list(args)
        for number, operand in enumerate(args):
            if number == 0 and func in IN_PLACE:
                continue  # what is changed in place is not a value to be recorded
            view = recorder.resolve(operand)
            if view is None and not recorder.open:
                continue
            shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
            broadcast = recorder.lift(operand, shape) if view is None else recorder.broadcast(rule, view, shape)
            operands[number] = operand if broadcast is None else broadcast
        output = func(*operands, **kwargs)
        recorder.show_result(output)
        return output

    return handler


def expand(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`p.expand(...)`, `p.expand_as(...)`, `p.repeat(...)` where it only repeats axes of size one."""
    tensor = args[0] if args else None
    view = recorder.resolve(tensor)
    if view is None and not (recorder.open and isinstance(tensor, Tensor)):
        return func(*args, **kwargs)
    assert isinstance(tensor, Tensor)
    with torch.no_grad():
        shape = tuple(func(tensor.detach(), *args[1:], **kwargs).shape)
    if any(old not in (1, new) for old, new in zip(pad_shape(tuple(tensor.shape), len(shape)), shape, strict=True)):
        return func(*args, **kwargs)
    expanded = recorder.lift(tensor, shape) if view is None else recorder.broadcast(EXPAND, view, shape)
    if expanded is None:
        return func(*args, **kwargs)
    recorder.show_result(expanded)
    # `repeat` gives memory of its own, which the network may write to.
    return expanded.clone() if func is torch.Tensor.repeat else expanded


def prelu(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`F.prelu(input, weight)`: one slope below zero, or one for each channel."""
    values = dict(zip(("input", "weight"), args, strict=False)) | kwargs
    inputs, weight = values["input"], values["weight"]
    if recorder.resolve(weight) is None or not inputs.dim() or weight.dtype != inputs.dtype:
        return func(*args, **kwargs)
    shaped = weight.view(-1, *[1] * max(inputs.dim() - 2, 0))  # channels are the second axis
    view = recorder.resolve(shaped)
    if view is None:
        return func(*args, **kwargs)
    recorder.refuse_mapping()
    output = torch.where(inputs > 0, inputs, inputs * recorder.broadcast(MULTIPLY, view, tuple(inputs.shape)))
    recorder.show_result(output)
    return output


IN_PLACE = {
    *(torch.Tensor.add_, torch.Tensor.sub_, torch.Tensor.mul_, torch.Tensor.div_, torch.Tensor.__iadd__),
    *(torch.Tensor.__isub__, torch.Tensor.__imul__, torch.Tensor.__itruediv__),
}
ADDING = (
    *(torch.add, torch.Tensor.add, torch.Tensor.add_, torch.Tensor.__add__, torch.Tensor.__radd__),
    *(torch.sub, torch.Tensor.sub, torch.Tensor.sub_, torch.Tensor.__sub__, torch.Tensor.__rsub__),
    *(torch.Tensor.__iadd__, torch.Tensor.__isub__),
)
MULTIPLYING = (
    *(torch.mul, torch.Tensor.mul, torch.Tensor.mul_, torch.Tensor.__mul__, torch.Tensor.__rmul__),
    *(torch.div, torch.Tensor.div, torch.Tensor.div_, torch.Tensor.__truediv__, torch.Tensor.__rtruediv__),
    *(torch.Tensor.__imul__, torch.Tensor.__itruediv__),
)
EXPANDING = (
    *(torch.Tensor.expand, torch.Tensor.expand_as, torch.Tensor.repeat),
    *(torch.broadcast_to, torch.Tensor.broadcast_to),
)
HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys(ADDING, binary_handler(ADD)),
    **dict.fromkeys(MULTIPLYING, binary_handler(MULTIPLY)),
    **dict.fromkeys(EXPANDING, expand),
    F.prelu: prelu,
    torch.prelu: prelu,
    torch.Tensor.prelu: prelu,
}
