"""Gradients through two-dimensional convolutions on a GPU: on the tensor cores, and within a budget.

A float32 number is the sum of two of 11 bits, `x = h + l`; of the products of two such sums `h h' + l h' + h l'` is all
that float32 would keep, and three convolutions in TF32 are faster than one in float32: 2 to 9 times on an H200. Those
that cuDNN has for float32 also take room of their own, many times that of the gradients.
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
from ....runtime.arithmetic import convolutions_rounded, switched
from ..contract import Recorder
from ..pulling import apply_to_probes

NARROWEST = 64  # channels on either side, below which tensor cores gain nothing
# Bytes of gradients that are split at a time, and the share of all of them: of small pieces only, the host is slower
# than the GPU; of one piece only, the parts would take five times the gradients' own room.
LEAST, PIECE, PIECES = 1 << 26, 1 << 29, 4
SHARE = 32  # of a budget for a piece: it takes five times its size in parts, and cuDNN's own room up to nine times
ROOMY = 4 << 30  # bytes of a budget for which that room is no matter


class GradientGeometry(NamedTuple):
    """Of a convolution with one group, the shape (C, H, W) of what it is given, and how its gradients are done."""

    given: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    parts: bool = True  # in parts of 11 bits, or as torch's switches say
    piece: int = PIECE  # bytes of gradients at a time

    def back(self, grad: Tensor, weight: Tensor, like: Tensor) -> Tensor:
        """(n, O, H', W') -> (n, C, H, W), as torch's switches say; in the layout of `like`, whose numbers none reads.

        Torch takes the layout from what the convolution was given, and copies the gradients where theirs is another.
        """
        options = (self.stride, self.padding, self.dilation, False, (0, 0), 1, (True, False, False))
        made: Tensor = torch.ops.aten.convolution_backward(grad, like, weight, None, *options)[0]
        return made

    def pieces(self, grad: Tensor, made: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Gradients and where they lead to, some examples at a time."""
        each = grad.element_size() * grad[0].numel()
        step = max(1, min(self.piece, max(LEAST, each * len(grad) // PIECES)) // each)
        yield from zip(grad.split(step), made.split(step), strict=True)


def channels_last(x: Tensor) -> Tensor:
    """The same memory as if its channels came last: a layout, with numbers that mean nothing."""
    channels, height, width = x.shape[1:]
    return x.as_strided(x.shape, (channels * height * width, 1, width * channels, channels))


def gradient_in_parts(grad: Tensor, weight: Tensor, geometry: GradientGeometry) -> Tensor:
    """(n, O, H', W') -> (n, C, H, W): three convolutions of numbers of 11 bits."""
    made = grad.new_empty(grad.shape[0], *geometry.given)
    high, low = kernel_products.rounded(weight)
    with switched("tf32"):
        for some, place in geometry.pieces(grad, made):
            head, rest = kernel_products.rounded(some)
            like = channels_last(place)
            pairs = ((head, high), (rest, high), (head, low))
            kernel_products.summed([geometry.back(*pair, like) for pair in pairs], place)
    return made


def gradient_as_it_is(grad: Tensor, weight: Tensor, geometry: GradientGeometry) -> Tensor:
    """(n, O, H', W') -> (n, C, H, W): one convolution, whose own room is bounded by the size of pieces."""
    made = grad.new_empty(grad.shape[0], *geometry.given)
    for some, place in geometry.pieces(grad, made):
        place.copy_(geometry.back(some, weight, place))
    return made


def input_gradient(grad: Tensor, weight: Tensor, geometry: GradientGeometry) -> Tensor:
    """The gradients in parts where they are to be, or in one where kernels do not run."""
    if not grad.numel():
        return grad.new_zeros(grad.shape[0], *geometry.given)
    made = None
    if geometry.parts and grad.dtype == torch.float32 and not available.broken:
        made = available.attempted(lambda: gradient_in_parts(grad, weight, geometry))
    return gradient_as_it_is(grad, weight, geometry) if made is None else made


def gradient_of_probes(grad: Tensor, weight: Tensor, geometry: GradientGeometry) -> Tensor:
    """(K, B, O, H', W') -> (K, B, C, H, W): probes are more examples."""
    made = input_gradient(grad.flatten(0, 1), weight, geometry)
    return made.reshape(*grad.shape[:2], *made.shape[1:])


class Convolution(torch.autograd.Function):
    """Torch's convolution with such gradients; its weight and bias are recorded and need none here."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, bias: Tensor | None, geometry: GradientGeometry) -> Tensor:
        """(B, C, H, W) -> (B, O, H', W')."""
        ctx.save_for_backward(weight)
        ctx.geometry = geometry
        return F.conv2d(given, weight, bias, geometry.stride, geometry.padding, geometry.dilation)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Through the input alone."""
        (weight,) = ctx.saved_tensors
        return apply_to_probes(gradient_of_probes, grads[0], weight, ctx.geometry), None, None, None


def on_gpu(x: Tensor) -> bool:
    """Whether cuDNN would do its convolutions."""
    return x.is_cuda


def choose_geometry(
    recorder: Recorder, given: Tensor, weight: Tensor, geometry: GradientGeometry
) -> GradientGeometry | None:
    """The geometry with how its gradients are done; None where torch's own are as good."""
    if not on_gpu(given):
        return None
    operations = given.shape[0] * math.prod(given.shape[2:]) * weight.numel()
    wide = min(weight.shape[:2]) >= NARROWEST and kernel_products.in_parts(weight.detach(), operations)
    piece = max(1, int(min(PIECE, recorder.room / SHARE)))
    if recorder.exact and wide and not convolutions_rounded():
        return geometry._replace(parts=True, piece=piece)
    return geometry._replace(parts=False, piece=piece) if recorder.room < ROOMY else None
