"""Linear maps: `F.linear` and `F.bilinear`, and the rule that `contractions` share with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ...jacobians.factored import Term
from ...jacobians.inputs import Acts
from ...jacobians.layout import Layout
from ...kernels import available
from ...kernels import products as kernel_products
from .contract import Contribution, Handler, PlainInputs, Recorder, Use, positions_last
from .pulling import pulled
from .references import Ref, Sizes, in_order


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


@dataclass(frozen=True)
class Axes:
    """Which axes of a linear map's output are groups and which are rows of its weight; the others are positions.

    Its input has the same axes, with ones in place of the rows, and then those that the weight is summed over.
    """

    groups: tuple[int, ...]
    rows: tuple[int, ...]

    def arranged(self, tensor: Tensor, lead: int, examples: int | None, dims: int) -> Tensor:
        """(lead..., `dims` axes without that of the examples, columns...) -> (lead..., G, T, rows or columns)."""
        here = [axis for axis in range(dims) if axis != examples]
        positions = [axis for axis in here if axis not in self.groups and axis not in self.rows]
        order = [lead + here.index(axis) for axis in (*self.groups, *positions, *self.rows)]
        sizes = [tensor.shape[axis] for axis in order]
        groups, places = len(self.groups), len(self.groups) + len(positions)
        turned = tensor.permute(*range(lead), *order, *range(lead + len(here), tensor.dim()))
        width = math.prod(turned.shape[lead + places :])
        return turned.reshape(*tensor.shape[:lead], math.prod(sizes[:groups]), math.prod(sizes[groups:places]), width)


def matrices(ref: Ref, groups: int = 0, rows: int = 1) -> tuple[Layout, bool] | None:
    """How the parameter holds a view (groups..., rows..., columns...), and whether its columns come first there.

    None where the view is not a contiguous range of the parameter, in some order of its axes.
    """
    return _matrices(tuple(ref.tensor.shape), ref.steps, groups, rows)


@cache
def _matrices(shape: Sizes, steps: Sizes, groups: int, rows: int) -> tuple[Layout, bool] | None:
    count = len(shape)
    inside = sorted(range(count), key=lambda axis: (-steps[axis], -shape[axis]))
    if not in_order(tuple(shape[axis] for axis in inside), tuple(steps[axis] for axis in inside)):
        return None
    flipped = next(axis >= groups + rows for axis in inside if axis >= groups)
    sides = [range(groups), range(groups, groups + rows), range(groups + rows, count)]
    if flipped:
        sides[1:] = sides[:0:-1]
    count_groups, count_rows, count_columns = (math.prod(shape[axis] for axis in side) for side in sides)
    sizes = count_groups, count_rows, count_columns
    order = tuple(inside.index(axis) for side in sides for axis in side)
    if order == tuple(range(count)):
        return Layout.plain(*sizes), flipped
    return Layout(tuple(shape[axis] for axis in inside), order, sizes), flipped


class LinearRule(PlainInputs):
    """`y_t = W a_t + b`, for each group where there are several; the weight may be held as its transpose."""

    name = "linear"
    matrix = True

    def contributions(self, use: Use, inputs: tuple[Tensor, ...], grad: Tensor) -> Iterator[Contribution]:
        """Inputs (B, ..., I), gradients (K, B, ..., O); with `Axes` for options, as these have them."""
        axes: Axes | None = use.options
        if axes is None:
            grad = positions_last(grad, 2, grad.shape[-1]).unsqueeze(2)
        else:
            grad = axes.arranged(grad, 2, use.cache["axis"], len(use.shape))
        weight = use.refs.get("weight")
        if weight is not None:
            if axes is None:
                act, seen = positions_last(inputs[0], 1, inputs[0].shape[-1]).unsqueeze(1), matrices(weight)
            else:
                act = axes.arranged(inputs[0], 1, use.cache["axis"], len(use.shape))
                seen = matrices(weight, len(axes.groups), len(axes.rows))
            assert seen is not None
            acts = Acts(lambda examples: act[examples], act.shape[-1], act.shape[-2])
            yield Contribution(weight.part, Term(acts, grad, flipped=seen[1]), seen[0])
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
    made = (
        None
        if grad.dtype != torch.float32 or available.broken
        else available.attempted(lambda: kernel_products.product(grad, weight))
    )
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
    """The reference, if it is a whole matrix or a range of its rows, or the transpose of such."""
    return ref if ref is not None and ref.tensor.dim() == 2 and matrices(ref) is not None else None


def usable_range(ref: Ref | None) -> Ref | None:
    """The reference, if it is a contiguous range of its parameter."""
    return ref if ref is not None and ref.is_rows else None


def linear(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`F.linear(input, weight, bias)`."""
    values = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
    given, weight, bias = values["input"], values["weight"], values.get("bias")
    refs = {"weight": usable_matrix(recorder.resolve(weight)), "bias": usable_range(recorder.resolve(bias))}
    found = {role: ref for role, ref in refs.items() if ref is not None}
    if not found or weight.dim() != 2:
        return func(*args, **kwargs)
    return applied(recorder, found, given, weight, bias, func)


def applied(
    recorder: Recorder, found: dict[str, Ref], given: Tensor, weight: Tensor, bias: Any, apply: Callable[..., Any]
) -> Any:
    """`apply(given, weight, bias)`, which is `F.linear` with a weight (O, I), recorded; `found` are of its weights."""
    weight = recorder.alias(weight) if "weight" in found else weight
    bias = recorder.alias(bias) if "bias" in found else bias
    if recorded_alone(recorder, given, weight, bias, found):
        apply = Exact.apply
    output = apply(given, weight, bias)
    return recorder.record(LINEAR, output, found, (given,), tuple(range(output.dim() - 1)))


def recorded_alone(recorder: Recorder, given: Tensor, weight: Tensor, bias: Any, found: dict[str, Ref]) -> bool:
    """Whether a large linear map in float32 on a GPU is asked for no more than gradients through its input."""
    if not recorder.exact or not input_alone(recorder, given, weight, bias, found):
        return False
    if bias is not None and bias.dim() != 1:
        return False
    return kernel_products.in_parts(weight.detach(), math.prod(given.shape[:-1]) * weight.numel())


def input_alone(recorder: Recorder, given: Tensor, weight: Tensor, bias: Any, found: dict[str, Ref]) -> bool:
    """Whether gradients through the input, once, are all that is asked of a layer, in the dtype of its weight."""
    if recorder.second or not given.requires_grad or weight.dtype != given.dtype:
        return False
    if torch.is_autocast_enabled(given.device.type):
        return False
    others = [each for role, each in (("weight", weight), ("bias", bias)) if role not in found and each is not None]
    return not any(each.requires_grad for each in others)


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


HANDLERS: dict[Any, Handler] = {F.linear: linear, F.bilinear: bilinear}
