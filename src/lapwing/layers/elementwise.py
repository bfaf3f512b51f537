"""A parameter added to, multiplied with or expanded over the examples: positions, layer scales, class tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..jacobians import Layout
from .base import Contribution, Handler, Part, PlainInputs, Recorder, Ref, Use


def reduce_to(grad: Tensor, aligned: tuple[int, ...], lead: int) -> Tensor:
    """Sum gradients (lead..., shape...) over the axes along which `aligned` was broadcast, and drop none."""
    summed = [lead + axis for axis, size in enumerate(aligned) if size == 1 and grad.shape[lead + axis] > 1]
    return grad.sum(summed, keepdim=True) if summed else grad


def align(shape: tuple[int, ...], dims: int) -> tuple[int, ...]:
    """A shape with ones in front, as broadcasting sees it."""
    return (1,) * (dims - len(shape)) + tuple(shape)


class ElementwiseRule(PlainInputs):
    """`y = x + p` or `y = x * p` with broadcasting: one row per example and column."""

    matrix = False

    def __init__(self, name: str) -> None:
        self.name = name

    def contributions(self, use: Use, inputs: tuple[Tensor, ...], grad: Tensor) -> Iterator[Contribution]:
        """Gradients (K, B, shape of the output without its examples)."""
        ref: Ref = use.refs["weight"]
        if inputs:
            grad = grad * inputs[0].to(grad.dtype)
        aligned = align(tuple(ref.tensor.shape), len(use.shape))
        axis = use.cache["axis"]
        if axis is not None:  # the parameter has size one along the examples (checked when recorded)
            aligned = aligned[:axis] + aligned[axis + 1 :]
        value = reduce_to(grad, aligned, 2).flatten(2)
        size = ref.parameter.numel()
        if not (ref.is_rows and ref.tensor.numel() == size):
            whole = value.new_zeros(*value.shape[:2], size)
            value = whole.index_add(2, ref.index().flatten(), value)
        yield Contribution(Part(ref.name, 0, size), value, Layout.plain(1, size, 1))


ADD = ElementwiseRule("added parameter")
MULTIPLY = ElementwiseRule("multiplied parameter")
EXPAND = ElementwiseRule("expanded parameter")


def _binary(rule: ElementwiseRule) -> Handler:
    def handler(recorder: Any, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs or len(args) != 2 or not all(isinstance(each, Tensor) for each in args):
            return func(*args, **kwargs)
        if any(each.is_complex() for each in args):  # gradients of real numbers and of complex ones differ
            return func(*args, **kwargs)
        first, second = args
        for own, other, swap in ((second, first, False), (first, second, True)):
            if swap and func in IN_PLACE:
                continue  # a parameter changed in place is not a value to be recorded
            ref = recorder.resolve(own)
            earlier = recorder.pending(own) if rule is ADD and ref is None else None
            if (ref is None and earlier is None) or recorder.resolve(other) is not None:
                continue
            alias = recorder.alias(own)
            output = func(alias, other) if swap else func(other, alias)
            if earlier is not None:
                return recorder.lift(earlier, own, output)
            axes = _broadcast_axes(tuple(own.shape), tuple(output.shape))
            inputs = (other.expand(output.shape),) if rule is MULTIPLY else ()
            return recorder.record(rule, output, {"weight": ref}, inputs, axes)
        return func(*args, **kwargs)

    return handler


def _broadcast_axes(shape: tuple[int, ...], made: tuple[int, ...]) -> tuple[int, ...]:
    """Axes along which a shape was stretched: the examples can only be there."""
    return tuple(axis for axis, size in enumerate(align(shape, len(made))) if size == 1)


def expand(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`p.expand(...)`, `p.expand_as(...)`, `p.repeat(...)` where it only repeats axes of size one."""
    ref = recorder.resolve(args[0]) if args else None
    if ref is None:
        return func(*args, **kwargs)
    alias = recorder.alias(args[0])
    output = func(alias, *args[1:], **kwargs)
    aligned = align(tuple(args[0].shape), output.dim())
    if any(old not in (1, new) for old, new in zip(aligned, output.shape, strict=True)):
        return func(*args, **kwargs)
    axes = _broadcast_axes(tuple(args[0].shape), tuple(output.shape))
    return recorder.record(EXPAND, output, {"weight": ref}, (), axes)


IN_PLACE = {torch.Tensor.add_, torch.Tensor.__iadd__}
HANDLERS: dict[Any, Handler] = {
    **dict.fromkeys(
        (torch.add, torch.Tensor.add, torch.Tensor.__add__, torch.Tensor.__radd__, torch.Tensor.add_), _binary(ADD)
    ),
    torch.Tensor.__iadd__: _binary(ADD),
    **dict.fromkeys((torch.mul, torch.Tensor.mul, torch.Tensor.__mul__, torch.Tensor.__rmul__), _binary(MULTIPLY)),
    torch.Tensor.expand: expand,
    torch.Tensor.expand_as: expand,
    torch.Tensor.repeat: expand,
    torch.broadcast_to: expand,
    torch.Tensor.broadcast_to: expand,
}
