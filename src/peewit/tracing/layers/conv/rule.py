"""Convolutions and transposed convolutions in one to three dimensions, with every option they have."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ....jacobians.factored import Term
from ....jacobians.inputs import Acts
from ....jacobians.layout import Layout
from ....kernels import operands
from ..contract import Contribution, Handler, PlainInputs, Recorder, Use, split_channels
from ..linear import bias_contribution, only_input_gradient, usable_range
from ..weight_views import WeightView
from .geometry import Axis, per_axis
from .gradients import Convolution, GradientGeometry, choose_geometry
from .moments import PatchMoments


@dataclass(frozen=True)
class Window:
    """The geometry of a convolution."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int
    output_padding: tuple[int, ...] = ()

    def pads(self) -> list[int]:
        """Padding as `F.pad` takes it: last axis first, before and after."""
        made: list[int] = []
        for axis in reversed(range(len(self.kernel))):
            if self.padding == "same":  # the larger half goes behind
                total = self.dilation[axis] * (self.kernel[axis] - 1)
                made += [total // 2, total - total // 2]
            elif isinstance(self.padding, str):
                made += [0, 0]
            else:
                made += [self.padding[axis]] * 2
        return made

    def axes(self, sizes: tuple[int, ...]) -> tuple[Axis, ...]:
        """What it does along each axis of an image."""
        pads = self.pads()
        pairs = list(zip(pads[::2], pads[1::2], strict=True))[::-1]
        each = zip(self.kernel, self.stride, self.dilation, pairs, sizes, strict=True)
        return tuple(
            Axis(kernel, stride, dilation, before, after, size)
            for kernel, stride, dilation, (before, after), size in each
        )


def patches(given: Tensor, window: Window) -> Tensor:
    """(n, C, spatial...) -> (n, G, T, C / G * kernel): what each output position sees, in the weight's order."""
    padded = F.pad(given, window.pads()) if any(window.pads()) else given
    count, width = padded.shape[:2]
    groups, dims = window.groups, len(window.kernel)
    places = [
        (padded.shape[2 + axis] - window.dilation[axis] * (window.kernel[axis] - 1) - 1) // window.stride[axis] + 1
        for axis in range(dims)
    ]
    stride = padded.stride()
    steps = [stride[2 + axis] * window.stride[axis] for axis in range(dims)]
    taps = [stride[2 + axis] * window.dilation[axis] for axis in range(dims)]
    seen = padded.as_strided(
        (count, groups, *places, width // groups, *window.kernel),
        (stride[0], stride[1] * (width // groups), *steps, stride[1], *taps),
        padded.storage_offset(),
    )
    return seen.flatten(2 + dims).flatten(2, 1 + dims)


def transposed_patches(given: Tensor, window: Window) -> Tensor:
    """(n, C, spatial...) -> (n, G, T, C / G * kernel): which inputs land on each output position."""
    count, width = given.shape[:2]
    dims = len(window.kernel)
    taps = 1
    for size in window.kernel:
        taps *= size
    # One kernel per tap, with a single one in it, spreads every channel by itself.
    single = torch.eye(taps, dtype=given.dtype, device=given.device).reshape(1, taps, *window.kernel)
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[dims - 1]
    assert not isinstance(window.padding, str)
    spread = function(
        given.reshape(count * width, 1, *given.shape[2:]),
        single,
        None,
        window.stride,
        window.padding,
        window.output_padding,
        1,
        window.dilation,
    )
    spread = spread.reshape(count, window.groups, width // window.groups, taps, -1)
    return spread.permute(0, 1, 4, 2, 3).flatten(3)


LAST = {3: torch.contiguous_format, 4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of axes


def rotated_patches(given: Tensor, window: Window, basis: Tensor, last: bool = True) -> Tensor:
    """(n, C, spatial...) -> (n, G, T, C / G * kernel) in a basis (G, I, I): a convolution with the basis as kernels."""
    groups, width = basis.shape[:2]
    kernels = basis.mT.reshape(groups * width, -1, *window.kernel)
    padding: Any = window.padding
    if isinstance(padding, str):  # torch warns of "same" where the two sides differ
        given, padding = F.pad(given, window.pads()), 0
    if last:
        given, kernels = (each.contiguous(memory_format=LAST[given.dim()]) for each in (given, kernels))
    function: Any = (F.conv1d, F.conv2d, F.conv3d)[len(window.kernel) - 1]
    made = function(given, kernels, None, window.stride, padding, window.dilation, groups)
    return made.reshape(made.shape[0], groups, width, -1).transpose(-1, -2)  # type: ignore[no-any-return]  # one of three


def rotated_operand(given: Tensor, window: Window, basis: Tensor, two: bool, half: torch.dtype) -> operands.Operand:
    """The same as a 16-bit operand, made of numbers of 16 bits where one part is asked for on a GPU."""
    if two or not given.is_cuda:
        return operands.split(rotated_patches(given.float(), window, basis, last=False), 0, two, half)
    part = operands.split(given, 0, False, half, operands.rotation_top(basis.shape[1]))
    short, factor = operands.shortened(basis, half)
    made = rotated_patches(part.high, window, short)
    return operands.Operand(made, made, part.scale * factor, False)


def is_large(axes: tuple[Axis, ...], width: int, channels: int) -> bool:
    """Whether images are large beside the number of what one position sees: rotating by a convolution is faster."""
    return 4 * math.prod(axis.places for axis in axes) >= width > channels


class ConvRule(PlainInputs):
    """`y_t = W a_t + b` with a_t the patch under output position t, one matrix per group."""

    matrix = True

    def __init__(self, name: str, transposed: bool) -> None:
        self.name = name
        self.transposed = transposed

    def contributions(self, use: Use, inputs: tuple[Tensor, ...], grad: Tensor) -> Iterator[Contribution]:
        """Inputs (B, [fold], C, spatial...), gradients (K, B, [fold], O, spatial...)."""
        window: Window = use.options
        dims = len(window.kernel)
        grad = split_channels(grad, 2, dims, window.groups)
        if "weight" in use.views:
            weight = use.views["weight"]
            given = inputs[0]
            see = transposed_patches if self.transposed else patches
            _, _, groups, positions, rows = grad.shape
            width = weight.tensor.numel() // (groups * rows)

            def act(examples: slice) -> Tensor:
                part = given[examples]
                count = part.shape[0]
                seen = see(part.reshape(-1, *part.shape[part.dim() - dims - 1 :]), window)
                # (count * folds, G, L, width) -> (count, G, folds * L, width)
                seen = seen.reshape(count, -1, *seen.shape[1:])
                return seen.transpose(1, 2).reshape(count, groups, -1, width)

            def turned(examples: slice, basis: Tensor, two: bool, half: torch.dtype) -> operands.Operand:
                if two and operands.worth_parts(given, basis):  # there is no fast convolution in float32
                    return operands.rotated(act(examples).float(), basis, 0, two, half)
                return rotated_operand(given[examples], window, basis, two, half)

            def rotated(examples: slice, basis: Tensor) -> Tensor:
                part = given[examples]
                seen = rotated_patches(part.reshape(-1, *part.shape[part.dim() - 3 :]), window, basis)
                # (count * folds, 1, L, width) -> (count, 1, folds * L, width)
                return seen.reshape(part.shape[0], 1, -1, seen.shape[-1])

            acts = Acts(act, width, positions, scratch=2 * groups * positions * width)
            if not self.transposed:
                axes = window.axes(tuple(given.shape[given.dim() - dims :]))
                acts = replace(acts, moments=PatchMoments(given, axes, groups))
                if given.dim() == dims + 2:
                    acts = replace(acts, turned=turned)
                if dims == 2 and groups == 1 and given.dtype == torch.float32 and not given.is_cuda:
                    acts = replace(acts, rotated=rotated) if is_large(axes, width, given.shape[-3]) else acts
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
    recorder: Recorder, func: Callable[..., Any], values: dict[str, Any], window: Window, found: dict[str, WeightView]
) -> Tensor:
    """The convolution itself; where its gradients are done otherwise, with those."""
    given, weight, bias = values["input"], values["weight"], values.get("bias")
    plain = len(window.kernel) == 2 and window.groups == 1 and not isinstance(window.padding, str)
    if plain and only_input_gradient(recorder, given, weight, bias, found):
        assert not isinstance(window.padding, str)
        own = GradientGeometry(tuple(given.shape[1:]), window.stride, window.padding, window.dilation)
        geometry = choose_geometry(recorder, given, weight, own)
        if geometry is not None:
            made: Tensor = Convolution.apply(given, weight, bias, geometry)  # type: ignore[no-untyped-call]  # torch's
            return made
    output: Tensor = func(**values)
    return output


NAMES = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
NAMES_TRANSPOSED = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")


def convolution_handler(dims: int, transposed: bool) -> Handler:
    """A handler for `F.convNd` or `F.conv_transposeNd`."""

    def handler(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        names = NAMES_TRANSPOSED if transposed else NAMES
        values = dict(zip(names, args, strict=False)) | kwargs
        weight, bias, given = values["weight"], values.get("bias"), values["input"]
        views = {"weight": usable_range(recorder.resolve(weight)), "bias": usable_range(recorder.resolve(bias))}
        found = {role: view for role, view in views.items() if view is not None}
        if not found or given.dim() != dims + 2:
            return func(*args, **kwargs)
        for role in found:
            values[role] = recorder.alias(values[role])
        padding = values.get("padding", 0)
        window = Window(
            kernel=tuple(weight.shape[2:]),
            stride=per_axis(values.get("stride", 1), dims),
            padding=padding if isinstance(padding, str) else per_axis(padding, dims),
            dilation=per_axis(values.get("dilation", 1), dims),
            groups=values.get("groups", 1),
            output_padding=per_axis(values.get("output_padding", 0), dims),
        )
        output = func(**values) if transposed else apply_convolution(recorder, func, values, window, found)
        return recorder.record(CONV_TRANSPOSED if transposed else CONV, output, found, (given,), (0,), window)

    return handler


HANDLERS: dict[Any, Handler] = {
    F.conv1d: convolution_handler(1, False),
    F.conv2d: convolution_handler(2, False),
    F.conv3d: convolution_handler(3, False),
    F.conv_transpose1d: convolution_handler(1, True),
    F.conv_transpose2d: convolution_handler(2, True),
    F.conv_transpose3d: convolution_handler(3, True),
}
