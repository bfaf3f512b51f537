"""`torch.unbind` with a gradient for all probes at once, in the order of the tensor's own memory.

Packed projections of attention are permuted and then taken apart. Torch stacks the gradients in the new order, and the
layer below has to copy them back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .contract import Handler, Recorder


def stack_in_order(parts: list[Tensor], axis: int, order: tuple[int, ...], lead: int = 0) -> Tensor:
    """Stack (lead..., ...) along an axis behind `lead` others; `order` is that of the axes in memory."""
    shape = list(parts[0].shape)
    shape.insert(lead + axis, len(parts))
    in_memory = (*range(lead), *(lead + each for each in order))
    memory = parts[0].new_empty([shape[each] for each in in_memory])
    stacked = memory.permute([in_memory.index(each) for each in range(len(shape))])
    for slot, part in zip(stacked.unbind(lead + axis), parts, strict=True):
        slot.copy_(part)
    return stacked


class StackInOrder(torch.autograd.Function):
    """Stacking as an operation for which `torch.vmap` hands over all probes at once."""

    @staticmethod
    def forward(axis: int, order: tuple[int, ...], *parts: Tensor) -> Tensor:
        """One probe."""
        return stack_in_order(list(parts), axis, order)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing: where gradients are differentiated, torch's own are used."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, axis: int, order: tuple[int, ...], *parts: Tensor) -> Any:
        """All probes; a part that no output depends on has zeros without an axis of probes."""
        size = info.batch_size
        whole = [
            part.expand(size, *part.shape) if dim is None else part.movedim(dim, 0)
            for part, dim in zip(parts, in_dims[2:], strict=True)
        ]
        return stack_in_order(whole, axis, order, 1), 0


class Unbind(torch.autograd.Function):
    """Torch's `unbind` with such a gradient."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, axis: int) -> tuple[Tensor, ...]:
        """Views of the parts."""
        ctx.axis = axis
        steps = tensor.stride()
        ctx.order = tuple(sorted(range(tensor.dim()), key=lambda dim: -steps[dim]))
        return tensor.unbind(axis)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradients of the parts, stacked."""
        return StackInOrder.apply(ctx.axis, ctx.order, *grads), None  # type: ignore[no-untyped-call]  # torch's


def unbind(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`x.unbind(dim)` of a computed tensor whose axes are not in the order of memory."""
    values = dict(zip(("input", "dim"), args, strict=False)) | kwargs
    tensor, axis = values.get("input"), values.get("dim", 0)
    plain = (
        recorder.second
        or not recorder.probes
        or not isinstance(tensor, Tensor)
        or not isinstance(axis, int)
        or tensor.grad_fn is None
        or (tensor._base is not None and tensor._base.is_leaf)  # a weight: its parts are recognised as such
        or not tensor.numel()
        or not -tensor.dim() <= axis < tensor.dim()
        or tensor.is_nested
        or not tensor.is_floating_point()
        or 0 in tensor.stride()  # expanded
        or tensor.stride(axis) == max(tensor.stride())  # torch's own is in order
    )
    if plain:
        return func(*args, **kwargs)
    assert isinstance(tensor, Tensor)
    return Unbind.apply(tensor, axis % tensor.dim())  # type: ignore[no-untyped-call]  # torch does not annotate it


HANDLERS: dict[Any, Handler] = {torch.unbind: unbind, torch.Tensor.unbind: unbind}
