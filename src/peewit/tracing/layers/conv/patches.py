"""The patches of images that a convolution sees, in the weight's order: as they are, in a basis, or in 16 bits."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ....jacobians.inputs import Acts
from ....kernels import operands
from .geometry import Axis
from .moments import PatchMoments

LAST = {3: torch.contiguous_format, 4: torch.channels_last, 5: torch.channels_last_3d}  # by the number of axes


@dataclass(frozen=True, kw_only=True)
class Window:
    """The options of a convolution."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...] | str
    dilation: tuple[int, ...]
    groups: int
    output_padding: tuple[int, ...] = ()

    def pads(self) -> list[int]:
        """Padding as `F.pad` takes it: last axis first, before and after."""
        pads: list[int] = []
        for axis in reversed(range(len(self.kernel))):
            if self.padding == "same":  # the larger half goes behind
                total = self.dilation[axis] * (self.kernel[axis] - 1)
                pads += [total // 2, total - total // 2]
            elif isinstance(self.padding, str):
                pads += [0, 0]
            else:
                pads += [self.padding[axis]] * 2
        return pads

    def axes(self, sizes: tuple[int, ...]) -> tuple[Axis, ...]:
        """The convolution along each axis of an image."""
        pads = self.pads()
        pairs = list(zip(pads[::2], pads[1::2], strict=True))[::-1]
        return tuple(
            Axis(kernel=kernel, stride=stride, dilation=dilation, before=before, after=after, size=size)
            for kernel, stride, dilation, (before, after), size in zip(
                self.kernel, self.stride, self.dilation, pairs, sizes, strict=True
            )
        )


@dataclass(frozen=True)
class PatchInputs:
    """The inputs (B, [fold], C, spatial...) of a convolution as patches, made for some examples at a time."""

    images: Tensor
    window: Window
    transposed: bool

    def acts(self, width: int, positions: int) -> Acts:
        """The patches as inputs of a linear map, by the fastest ways that there are."""
        images, window, dims = self.images, self.window, len(self.window.kernel)
        acts = Acts(make=self.make, width=width, positions=positions, scratch=2 * window.groups * positions * width)
        if self.transposed:
            return acts
        axes = window.axes(tuple(images.shape[images.dim() - dims :]))
        acts = replace(acts, moments=PatchMoments(images, axes, window.groups))
        if images.dim() == dims + 2:
            acts = replace(acts, make_operand=self.make_operand)
        plain = dims == 2 and window.groups == 1 and images.dtype == torch.float32 and not images.is_cuda
        if plain and is_large(axes, width, images.shape[-3]):
            acts = replace(acts, make_in_basis=self.make_in_basis)
        return acts

    def make(self, examples: slice) -> Tensor:
        """(b, G, folds * L, width)."""
        images = self._images(examples)
        unfolded = (unfold_transposed if self.transposed else unfold)(images, self.window)
        unfolded = unfolded.reshape(len(self.images[examples]), -1, *unfolded.shape[1:])  # (b, folds, G, L, width)
        return unfolded.transpose(1, 2).flatten(2, 3)

    def make_in_basis(self, examples: slice, basis: Tensor) -> Tensor:
        """(b, 1, folds * L, width) in a basis (1, width, width)."""
        rotated = rotate_patches(self._images(examples), self.window, basis)
        return rotated.reshape(len(self.images[examples]), 1, -1, rotated.shape[-1])

    def make_operand(self, examples: slice, basis: Tensor, two: bool, half: torch.dtype) -> operands.Operand:
        """The patches in a basis (G, width, width) as an operand of 16 bits."""
        if two and operands.worth_parts(self.images, basis):  # there is no fast convolution in float32
            return operands.rotate(self.make(examples).float(), basis, 0, two, half)
        return rotate_operand(self.images[examples], self.window, basis, two, half)

    def _images(self, examples: slice) -> Tensor:
        """(b * folds, C, spatial...)."""
        images = self.images[examples]
        return images.reshape(-1, *images.shape[images.dim() - len(self.window.kernel) - 1 :])


def is_large(axes: tuple[Axis, ...], width: int, channels: int) -> bool:
    """Whether images are large beside what one position sees: rotating by a convolution is faster."""
    return 4 * math.prod(axis.places for axis in axes) >= width > channels


def unfold(images: Tensor, window: Window) -> Tensor:
    """(n, C, spatial...) -> (n, G, T, C / G * kernel): what each output position sees, in the weight's order."""
    padded = F.pad(images, window.pads()) if any(window.pads()) else images
    count, width = padded.shape[:2]
    groups, dims = window.groups, len(window.kernel)
    places = [
        (padded.shape[2 + axis] - window.dilation[axis] * (window.kernel[axis] - 1) - 1) // window.stride[axis] + 1
        for axis in range(dims)
    ]
    stride = padded.stride()
    steps = [stride[2 + axis] * window.stride[axis] for axis in range(dims)]
    taps = [stride[2 + axis] * window.dilation[axis] for axis in range(dims)]
    views = padded.as_strided(
        (count, groups, *places, width // groups, *window.kernel),
        (stride[0], stride[1] * (width // groups), *steps, stride[1], *taps),
        padded.storage_offset(),
    )
    return views.flatten(2 + dims).flatten(2, 1 + dims)


def unfold_transposed(images: Tensor, window: Window) -> Tensor:
    """(n, C, spatial...) -> (n, G, T, C / G * kernel): which inputs land on each output position."""
    count, width = images.shape[:2]
    dims, taps = len(window.kernel), math.prod(window.kernel)
    # One kernel per tap, which is one there and zero elsewhere, spreads every channel on its own.
    single = torch.eye(taps, dtype=images.dtype, device=images.device).reshape(1, taps, *window.kernel)
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[dims - 1]
    assert not isinstance(window.padding, str)
    spread = function(
        images.reshape(count * width, 1, *images.shape[2:]),
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


def rotate_patches(images: Tensor, window: Window, basis: Tensor, last: bool = True) -> Tensor:
    """(n, C, spatial...) -> (n, G, T, C / G * kernel) in a basis (G, I, I): a convolution with the basis as kernels."""
    groups, width = basis.shape[:2]
    kernels = basis.mT.reshape(groups * width, -1, *window.kernel)
    padding: Any = window.padding
    if isinstance(padding, str):  # torch warns of "same" where the two sides differ
        images, padding = F.pad(images, window.pads()), 0
    if last:
        images, kernels = (each.contiguous(memory_format=LAST[images.dim()]) for each in (images, kernels))
    function: Any = (F.conv1d, F.conv2d, F.conv3d)[len(window.kernel) - 1]
    rotated = function(images, kernels, None, window.stride, padding, window.dilation, groups)
    return rotated.reshape(len(rotated), groups, width, -1).transpose(-1, -2)  # type: ignore[no-any-return]  # one of three


def rotate_operand(images: Tensor, window: Window, basis: Tensor, two: bool, half: torch.dtype) -> operands.Operand:
    """The same as an operand of 16 bits; on a GPU computed from numbers of 16 bits if one part is enough."""
    if two or not images.is_cuda:
        return operands.split(rotate_patches(images.float(), window, basis, last=False), 0, two, half)
    part = operands.split(images, 0, False, half, operands.rotation_top(basis.shape[1]))
    short, factor = operands.shorten(basis, half)
    rotated = rotate_patches(part.high, window, short)
    return operands.Operand(rotated, rotated, part.scale * factor, False)
