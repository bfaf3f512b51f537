"""Linear maps over the last axis: `F.linear`, `x @ W` and `F.bilinear`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .. import fused
from ..jacobians import Acts, Layout, Term
from .base import Contribution, Handler, PlainInputs, Recorder, Ref, Use, positions_last
from .columns import pulled


def bias_term(grad: Tensor) -> Term:
    """A bias is a weight whose input is one: gradients (K, B, G, T, O)."""
    _, _, groups, positions, _ = grad.shape

    def ones(examples: slice) -> Tensor:
        return grad.new_ones(len(range(grad.shape[1])[examples]), groups, positions, 1)

    return Term(Acts(ones, 1, positions, constant=True), grad)


def bias_contribution(ref: Ref, grad: Tensor) -> Contribution:
    """The Jacobian of a bias from gradients (K, B, G, T, O): one vector, groups or not."""
    whole = grad if grad.shape[2] == 1 else grad.transpose(2, 3).flatten(3).unsqueeze(2)
    return Contribution(ref.part, bias_term(whole), Layout.plain(1, whole.shape[-1], 1))


class LinearRule(PlainInputs):
    """`y_t = W a_t + b`; a transposed weight swaps the roles of rows and columns."""

    name = "linear"
    matrix = True

    def contributions(self, use: Use, inputs: tuple[Tensor, ...], grad: Tensor) -> Iterator[Contribution]:
        """Inputs (B, ..., I), gradients (K, B, ..., O)."""
        grad = positions_last(grad, 2, grad.shape[-1]).unsqueeze(2)
        weight = use.refs.get("weight")
        if weight is not None:
            act = positions_last(inputs[0], 1, inputs[0].shape[-1]).unsqueeze(1)
            acts = Acts(lambda examples: act[examples], act.shape[-1], act.shape[-2])
            if weight.transposed:  # the parameter is (I, O)
                layout = Layout.plain(1, act.shape[-1], grad.shape[-1])
                yield Contribution(weight.part, Term(acts, grad, flipped=True), layout)
            else:
                yield Contribution(weight.part, Term(acts, grad), Layout.plain(1, grad.shape[-1], act.shape[-1]))
        if "bias" in use.refs:
            yield bias_contribution(use.refs["bias"], grad)


class BilinearRule(PlainInputs):
    """`y_o = x1^T W_o x2 + b_o`: linear in the outer product of its inputs."""

    name = "bilinear"
    matrix = True

    def contributions(self, use: Use, inputs: tuple[Tensor, ...], grad: Tensor) -> Iterator[Contribution]:
        """Inputs (B, ..., I1) and (B, ..., I2), gradients (K, B, ..., O)."""
        grad = positions_last(grad, 2, grad.shape[-1]).unsqueeze(2)
        if "weight" in use.refs:
            first, second = (positions_last(each, 1, each.shape[-1]) for each in inputs)
            width = first.shape[-1] * second.shape[-1]

            def outer(examples: slice) -> Tensor:
                made = first[examples].unsqueeze(-1) * second[examples].unsqueeze(-2)
                return made.flatten(-2).unsqueeze(1)

            acts = Acts(outer, width, first.shape[1], scratch=first.shape[1] * width)
            yield Contribution(use.refs["weight"].part, Term(acts, grad), Layout.plain(1, grad.shape[-1], width))
        if "bias" in use.refs:
            yield bias_contribution(use.refs["bias"], grad)


def exactly(grad: Tensor, weight: Tensor) -> Tensor:
    """`grad @ weight` in parts, or in one where kernels do not run."""
    made = None if grad.dtype != torch.float32 or fused.broken else fused.attempted(lambda: fused.product(grad, weight))
    return grad @ weight if made is None else made


class Exact(torch.autograd.Function):
    """Torch's linear map with such gradients; its weight and bias are recorded and need none here."""

    @staticmethod
    def forward(ctx: Any, given: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """(..., I) -> (..., O)."""
        ctx.save_for_backward(weight)
        return F.linear(given, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Through the input alone."""
        (weight,) = ctx.saved_tensors
        return pulled(exactly, grads[0], weight), None, None


LINEAR = LinearRule()
BILINEAR = BilinearRule()


def usable_matrix(ref: Ref | None) -> Ref | None:
    """The reference, if it is a whole matrix, its transpose, or a range of its rows."""
    if ref is None or ref.tensor.dim() != 2:
        return None
    return ref if ref.transposed or ref.is_rows else None


def usable_range(ref: Ref | None) -> Ref | None:
    """The reference, if it is a contiguous range of its parameter."""
    return ref if ref is not None and ref.is_rows else None


def linear(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`F.linear(input, weight, bias)`."""
    values = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
    given, weight = values["input"], values["weight"]
    bias: Any = values.get("bias")
    refs = {"weight": usable_matrix(recorder.resolve(weight)), "bias": usable_range(recorder.resolve(bias))}
    found = {role: ref for role, ref in refs.items() if ref is not None}
    if not found or weight.dim() != 2:
        return func(*args, **kwargs)
    weight = recorder.alias(weight) if "weight" in found else weight
    bias = recorder.alias(bias) if "bias" in found else bias
    apply: Any = Exact.apply if recorded_alone(recorder, given, weight, bias, found) else func
    output = apply(given, weight, bias)
    return recorder.record(LINEAR, output, found, (given,), tuple(range(output.dim() - 1)))


def recorded_alone(recorder: Recorder, given: Tensor, weight: Tensor, bias: Any, found: dict[str, Ref]) -> bool:
    """Whether a large linear map in float32 on a GPU is asked for no more than gradients through its input."""
    if not recorder.exact or not input_alone(recorder, given, weight, bias, found):
        return False
    return fused.in_parts(weight.detach(), math.prod(given.shape[:-1]) * weight.numel())


def input_alone(recorder: Recorder, given: Tensor, weight: Tensor, bias: Any, found: dict[str, Ref]) -> bool:
    """Whether gradients through the input, once, are all that is asked of a layer, in the dtype of its weight."""
    if recorder.second or not given.requires_grad or weight.dtype != given.dtype:
        return False
    if torch.is_autocast_enabled(given.device.type):
        return False
    others = [each for role, each in (("weight", weight), ("bias", bias)) if role not in found and each is not None]
    return not any(each.requires_grad for each in others)


def matmul(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`x @ W` with a two-dimensional parameter, or its transpose, on the right."""
    if len(args) != 2 or kwargs:
        return func(*args, **kwargs)
    given, weight = args
    ref = usable_matrix(recorder.resolve(weight))
    if ref is None or not isinstance(given, Tensor) or given.dim() < 2:
        return func(*args, **kwargs)
    output = func(given, recorder.alias(weight))
    # x @ W is F.linear with the transpose of W.
    return recorder.record(LINEAR, output, {"weight": ref.permuted((1, 0))}, (given,), tuple(range(output.dim() - 1)))


def bilinear(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`F.bilinear(input1, input2, weight, bias)`."""
    values = dict(zip(("input1", "input2", "weight", "bias"), args, strict=False)) | kwargs
    weight = values["weight"]
    bias: Any = values.get("bias")
    refs = {"weight": usable_range(recorder.resolve(weight)), "bias": usable_range(recorder.resolve(bias))}
    found = {role: ref for role, ref in refs.items() if ref is not None}
    if not found:
        return func(*args, **kwargs)
    weight = recorder.alias(weight) if "weight" in found else weight
    bias = recorder.alias(bias) if "bias" in found else bias
    output = func(values["input1"], values["input2"], weight, bias)
    inputs = (values["input1"], values["input2"])
    return recorder.record(BILINEAR, output, found, inputs, tuple(range(output.dim() - 1)))


HANDLERS: dict[Any, Handler] = {
    F.linear: linear,
    F.bilinear: bilinear,
    torch.matmul: matmul,
    torch.mm: matmul,
    torch.Tensor.matmul: matmul,
    torch.Tensor.mm: matmul,
    torch.Tensor.__matmul__: matmul,
}
