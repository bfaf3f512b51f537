"""Max pooling over windows side by side: its gradient for all columns at once, without scattering."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .base import Handler


class Pool(torch.autograd.Function):
    """Torch's max pooling; a gradient goes to the first largest number of its window, as torch's does."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, high: int, wide: int) -> Tensor:
        """(..., H, W) -> (..., H / high, W / wide)."""
        made, index = F.max_pool2d(given, (high, wide), return_indices=True)
        ctx.save_for_backward(index)
        ctx.sizes = high, wide, given.shape[-1]
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """A product with ones and zeros."""
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


def max_pool(recorder: Any, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`F.max_pool2d(input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)`."""
    names = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
    values = dict(zip(names, args, strict=False)) | kwargs
    given, kernel = values["input"], _pair(values["kernel_size"])
    stride = values.get("stride")
    plain = (
        isinstance(given, Tensor)
        and given.is_cuda  # on a CPU scattering is faster
        and given.requires_grad
        and given.dim() == 4
        and (stride in (None, (), []) or _pair(stride) == kernel)
        and _pair(values.get("padding", 0)) == (0, 0)
        and _pair(values.get("dilation", 1)) == (1, 1)
        and not values.get("return_indices", False)
        and given.shape[-2] % kernel[0] == 0
        and given.shape[-1] % kernel[1] == 0
    )
    if not plain:
        return func(*args, **kwargs)
    return Pool.apply(given, *kernel)  # type: ignore[no-untyped-call]  # torch does not annotate it


def _pair(value: Any) -> tuple[int, int]:
    if isinstance(value, int):
        return value, value
    made = tuple(int(each) for each in value)
    return (made[0], made[0]) if len(made) == 1 else (made[0], made[1])


HANDLERS: dict[Any, Handler] = {F.max_pool2d: max_pool}
