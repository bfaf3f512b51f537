"""Max pooling with a gradient for all probes at once; torch's copies the input and the indices for every probe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .contract import Handler, Recorder
from .conv.geometry import per_axis
from .pulling import apply_to_probes


class TiledMaxPool(torch.autograd.Function):
    """Max pooling over windows side by side; a gradient goes to the first largest number, as torch's does."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, high: int, wide: int) -> Tensor:
        """(..., H, W) -> (..., H / high, W / wide)."""
        output, index = F.max_pool2d(images, (high, wide), return_indices=True)
        ctx.save_for_backward(index)
        ctx.sizes = high, wide, images.shape[-1]
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """A product with ones and zeros, without scattering."""
        (index,) = ctx.saved_tensors
        high, wide, width = ctx.sizes
        row = index // width % high
        column = index % width % wide
        rows = torch.arange(high, device=index.device)[:, None, None]
        columns = torch.arange(wide, device=index.device)
        # (..., h, high, w, wide)
        chosen = (row[..., :, None, :, None] == rows) & (column[..., :, None, :, None] == columns)
        spread = grads[0][..., :, None, :, None] * chosen.to(grads[0].dtype)  # mixed dtypes multiply more slowly
        return spread.flatten(-2).flatten(-3, -2), None, None


def scatter_gradients(grad: Tensor, index: Tensor, sizes: tuple[int, int], apart: bool) -> Tensor:
    """Gradients (K, ..., h, w) -> (K, ..., H, W): each to its index (..., h, w); windows overlap unless `apart`."""
    pixels = grad.new_zeros(*grad.shape[:-2], sizes[0] * sizes[1])
    index = index.flatten(-2).expand(*grad.shape[:-2], -1)
    values = grad.flatten(-2)
    pixels = pixels.scatter_(-1, index, values) if apart else pixels.scatter_add_(-1, index, values)
    return pixels.reshape(*grad.shape[:-2], *sizes)


class ScatteredMaxPool(torch.autograd.Function):
    """Max pooling over any windows, by scattering: on a CPU that is faster."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, apart: bool, options: dict[str, Any]) -> Tensor:
        """(..., H, W) -> (..., h, w)."""
        output, index = F.max_pool2d(images, **options, return_indices=True)
        ctx.save_for_backward(index)
        ctx.sizes, ctx.apart = (images.shape[-2], images.shape[-1]), apart
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """All probes with the same indices."""
        (index,) = ctx.saved_tensors
        return apply_to_probes(scatter_gradients, grads[0], index, ctx.sizes, ctx.apart), None, None


def max_pool(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`F.max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)`."""
    names = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    values = dict(zip(names, args, strict=False)) | kwargs
    images = values.get("input")
    indices = values.pop("return_indices", False)
    if not isinstance(images, Tensor) or not images.requires_grad or indices or recorder.second:
        return func(*args, **kwargs)
    kernel, stride = per_axis(values["kernel_size"], 2), values.get("stride")
    step = kernel if stride is None or (isinstance(stride, list | tuple) and not stride) else per_axis(stride, 2)
    dilation = per_axis(values.get("dilation", 1), 2)
    if images.is_cuda:
        side_by_side = (
            images.dim() == 4
            and step == kernel
            and per_axis(values.get("padding", 0), 2) == (0, 0)
            and dilation == (1, 1)
            and images.shape[-2] % kernel[0] == 0
            and images.shape[-1] % kernel[1] == 0
        )
        return TiledMaxPool.apply(images, *kernel) if side_by_side else func(*args, **kwargs)  # type: ignore[no-untyped-call]  # torch's
    if not recorder.probes or not images.numel() or images.device.type != "cpu":
        return func(*args, **kwargs)
    apart = all(step[axis] > dilation[axis] * (kernel[axis] - 1) for axis in range(2))
    options = {name: value for name, value in values.items() if name != "input"}
    return ScatteredMaxPool.apply(images, apart, options)  # type: ignore[no-untyped-call]  # torch does not annotate it


HANDLERS: dict[Any, Handler] = {F.max_pool2d: max_pool}
