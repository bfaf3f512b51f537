"""Convolutions and transposed convolutions in one to three dimensions, with every option they have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ....jacobians.factored import Term
from ....jacobians.layout import Layout
from ..contract import Contribution, Handler, PlainInputs, Recorder, Tensors, Use, Views, split_channels
from ..linear import bias_contribution, only_input_gradient, usable_views
from .geometry import per_axis
from .gradients import Convolution, GradientGeometry, choose_geometry
from .patches import PatchInputs, Window


class ConvRule(PlainInputs):
    """`y_t = W a_t + b` with a_t the patch under output position t, one matrix per group."""

    matrix = True

    def __init__(self, name: str, transposed: bool) -> None:
        self.name = name
        self.transposed = transposed

    def contributions(self, use: Use, inputs: Tensors, grad: Tensor) -> Iterator[Contribution]:
        """Inputs (B, [fold], C, spatial...), gradients (K, B, [fold], O, spatial...)."""
        window: Window = use.options
        grad = split_channels(grad, 2, len(window.kernel), window.groups)
        if "weight" in use.views:
            weight = use.views["weight"]
            _, _, groups, positions, rows = grad.shape
            width = weight.tensor.numel() // (groups * rows)
            acts = PatchInputs(inputs[0], window, self.transposed).acts(width, positions)
            yield Contribution(weight.part, Term(acts, grad), self._layout(weight.tensor, window, rows, width))
        if "bias" in use.views:
            yield bias_contribution(use.views["bias"], grad)

    def _layout(self, weight: Tensor, window: Window, rows: int, width: int) -> Layout:
        groups = window.groups
        if not self.transposed:
            return Layout.plain(groups, rows, width)
        split = (groups, weight.shape[0] // groups, rows, width * groups // weight.shape[0])
        return Layout(split, (0, 2, 1, 3), (groups, rows, width))


CONV = ConvRule("convolution", transposed=False)
CONV_TRANSPOSED = ConvRule("transposed convolution", transposed=True)


def apply_convolution(
    recorder: Recorder, func: Callable[..., Any], values: dict[str, Any], window: Window, views: Views
) -> Tensor:
    """The convolution, with gradients of our own where these are better than torch's."""
    images, weight, bias = values["input"], values["weight"], values.get("bias")
    two_dimensional = len(window.kernel) == 2 and window.groups == 1 and not isinstance(window.padding, str)
    if two_dimensional and only_input_gradient(recorder, images, weight, bias, views):
        assert not isinstance(window.padding, str)
        plain = GradientGeometry(tuple(images.shape[1:]), window.stride, window.padding, window.dilation)
        geometry = choose_geometry(recorder, images, weight, plain)
        if geometry is not None:
            convolved: Tensor = Convolution.apply(images, weight, bias, geometry)  # type: ignore[no-untyped-call]  # torch's
            return convolved
    output: Tensor = func(**values)
    return output


NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
NAMES_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")


def convolution_handler(dims: int, transposed: bool) -> Handler:
    """A handler for `F.convNd` or `F.conv_transposeNd`."""

    def handler(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = NAMES_TRANSPOSED if transposed else NAMES
        values = dict(zip(names, args, strict=False)) | kwargs
        images, views = values["input"], usable_views(recorder, values)
        if not views or images.dim() != dims + 2:
            return func(*args, **kwargs)
        padding = values.get("padding", 0)
        window = Window(
            kernel=tuple(values["weight"].shape[2:]),
            stride=per_axis(values.get("stride", 1), dims),
            padding=padding if isinstance(padding, str) else per_axis(padding, dims),
            dilation=per_axis(values.get("dilation", 1), dims),
            groups=values.get("groups", 1),
            output_padding=per_axis(values.get("output_padding", 0), dims),
        )
        values |= {role: recorder.alias(values[role]) for role in views}
        output = func(**values) if transposed else apply_convolution(recorder, func, values, window, views)
        return recorder.record(CONV_TRANSPOSED if transposed else CONV, output, views, (images,), (0,), window)

    return handler


HANDLERS: dict[Any, Handler] = {
    F.conv1d: convolution_handler(1, False),
    F.conv2d: convolution_handler(2, False),
    F.conv3d: convolution_handler(3, False),
    F.conv_transpose1d: convolution_handler(1, True),
    F.conv_transpose2d: convolution_handler(2, True),
    F.conv_transpose3d: convolution_handler(3, True),
}
