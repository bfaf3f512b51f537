"""Gradients through two-dimensional convolutions on a GPU: on the tensor cores, and within a budget.

A float32 number is the sum of two numbers of 11 bits, `x = h + l`. Of the product of two such sums, float32 would keep
no more than `h h' + l h' + h l'`, and three convolutions in TF32 are 2 to 9 times as fast as one in float32 on an H200.
Those of cuDNN in float32 also take workspace, many times the size of the gradients.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ....kernels import available
from ....kernels import products as kernel_products
from ....runtime.arithmetic import convolutions_rounded, use_rounding
from ..contract import Recorder
from ..pulling import apply_to_probes

NARROWEST = 64  # channels on either side; with fewer, tensor cores gain nothing
# Bytes of gradients that are split at a time, and into how many pieces: with small pieces, the host is slower than the
# GPU; in one piece, the parts would take five times the room of the gradients.
LEAST, PIECE, PIECES = 1 << 26, 1 << 29, 4
SHARE = 32  # a piece takes this part of the budget: five times its size in parts, and up to nine in cuDNN's workspace
ROOMY = 4 << 30  # bytes of a budget from which that workspace does not matter


class GradientGeometry(NamedTuple):
    """A convolution with one group, and how its gradients are computed."""

    shape: tuple[int, ...]  # the shape (C, H, W) of its input
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    parts: bool = True  # in parts of 11 bits; else by torch, as its switches say
    piece: int = PIECE  # bytes of gradients at a time

    def back(self, grad: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        """(n, O, H', W') -> (n, C, H, W) by torch, in the memory layout of `like`, whose numbers are not read.

        Torch takes the layout from the convolution's input, and copies gradients that have another.
        """
        options = (self.stride, self.padding, self.dilation, False, (0, 0), 1, (True, False, False))
        gradient: Tensor = torch.ops.aten.convolution_backward(grad, like, weight, None, *options)[0]
        return gradient

    def pieces(self, grad: Tensor, result: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Gradients and the part of the result that they lead to, some examples at a time."""
        bytes_per_example = grad.element_size() * grad[0].numel()
        step = max(1, min(self.piece, max(LEAST, bytes_per_example * len(grad) // PIECES)) // bytes_per_example)
        yield from zip(grad.split(step), result.split(step), strict=True)


def channels_last(x: Tensor) -> Tensor:
    """The same memory with channels last: for its layout alone, since its numbers mean nothing."""
    channels, height, width = x.shape[1:]
    return x.as_strided(x.shape, (channels * height * width, 1, width * channels, channels))


def gradient_in_parts(grad: Tensor, weight: Tensor, geometry: GradientGeometry) -> Tensor:
    """(n, O, H', W') -> (n, C, H, W) by three convolutions of numbers of 11 bits."""
    result = grad.new_empty(grad.shape[0], *geometry.shape)
    high, low = kernel_products.round_to_eleven_bits(weight)
    with use_rounding("tf32"):
        for piece, target in geometry.pieces(grad, result):
            head, rest = kernel_products.round_to_eleven_bits(piece)
            like = channels_last(target)
            pairs = ((head, high), (rest, high), (head, low))
            kernel_products.add_parts([geometry.back(*pair, like) for pair in pairs], target)
    return result


def gradient_by_torch(grad: Tensor, weight: Tensor, geometry: GradientGeometry) -> Tensor:
    """(n, O, H', W') -> (n, C, H, W) by torch, in pieces that bound its workspace."""
    result = grad.new_empty(grad.shape[0], *geometry.shape)
    for piece, target in geometry.pieces(grad, result):
        target.copy_(geometry.back(piece, weight, target))
    return result


def input_gradient(grad: Tensor, weight: Tensor, geometry: GradientGeometry) -> Tensor:
    """(n, O, H', W') -> (n, C, H, W) in parts, or by torch where kernels do not run."""
    if not grad.numel():
        return grad.new_zeros(grad.shape[0], *geometry.shape)
    gradient = None
    if geometry.parts and grad.dtype == torch.float32 and not available.broken:
        gradient = available.attempt(lambda: gradient_in_parts(grad, weight, geometry))
    return gradient_by_torch(grad, weight, geometry) if gradient is None else gradient


def gradient_of_probes(grad: Tensor, weight: Tensor, geometry: GradientGeometry) -> Tensor:
    """(K, B, O, H', W') -> (K, B, C, H, W): probes are more examples."""
    gradient = input_gradient(grad.flatten(0, 1), weight, geometry)
    return gradient.reshape(*grad.shape[:2], *gradient.shape[1:])


class Convolution(torch.autograd.Function):
    """Torch's convolution with such gradients; its weight and bias are recorded, and need none here."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor | None, geometry: GradientGeometry) -> Tensor:
        """(B, C, H, W) -> (B, O, H', W')."""
        ctx.save_for_backward(weight)
        ctx.geometry = geometry
        return F.conv2d(images, weight, bias, geometry.stride, geometry.padding, geometry.dilation)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradient of the input alone."""
        (weight,) = ctx.saved_tensors
        return apply_to_probes(gradient_of_probes, grads[0], weight, ctx.geometry), None, None, None


def on_gpu(x: Tensor) -> bool:
    """Whether cuDNN would compute its convolutions."""
    return x.is_cuda


def choose_geometry(
    recorder: Recorder, images: Tensor, weight: Tensor, geometry: GradientGeometry
) -> GradientGeometry | None:
    """The geometry with how to compute gradients; None where torch's own are as good."""
    if not on_gpu(images):
        return None
    operations = images.shape[0] * math.prod(images.shape[2:]) * weight.numel()
    wide = min(weight.shape[:2]) >= NARROWEST and kernel_products.in_parts(weight.detach(), operations)
    piece = max(1, int(min(PIECE, recorder.room / SHARE)))
    if recorder.exact and wide and not convolutions_rounded():
        return geometry._replace(parts=True, piece=piece)
    return geometry._replace(parts=False, piece=piece) if recorder.room < ROOMY else None
