"""Linear maps: `F.linear` and `F.bilinear`, and what `contractions` share with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
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
from .contract import Contribution, Handler, PlainInputs, Recorder, Use, Views, positions_last
from .pulling import apply_to_probes
from .weight_views import Sizes, WeightView, in_order


def bias_contribution(view: WeightView, grad: Tensor) -> Contribution:
    """The Jacobian of a bias from gradients (K, B, G, T, O): a weight whose input is one, a single group's."""
    grad = grad if grad.shape[2] == 1 else grad.transpose(2, 3).flatten(3).unsqueeze(2)
    _, count, _, positions, width = grad.shape

    def ones(examples: slice) -> Tensor:
        return grad.new_ones(len(range(count)[examples]), 1, positions, 1)

    term = Term(Acts(make=ones, width=1, positions=positions, constant=True), grad)
    return Contribution(view.part, term, Layout.plain(1, width, 1))


@dataclass(frozen=True)
class Axes:
    """Which axes of a linear map's output are groups and which are rows of its weight; the others are positions.

    Its input has the same axes, with ones in place of the rows, and then those that the weight is summed over.
    """

    groups: tuple[int, ...]
    rows: tuple[int, ...]

    def arrange(self, tensor: Tensor, lead: int, examples: int | None, dims: int) -> Tensor:
        """(lead..., `dims` axes without that of the examples, columns...) -> (lead..., G, T, rows or columns)."""
        axes = [axis for axis in range(dims) if axis != examples]
        positions = [axis for axis in axes if axis not in self.groups and axis not in self.rows]
        order = [lead + axes.index(axis) for axis in (*self.groups, *positions, *self.rows)]
        sizes = [tensor.shape[axis] for axis in order]
        groups, places = len(self.groups), len(self.groups) + len(positions)
        ordered = tensor.permute(*range(lead), *order, *range(lead + len(axes), tensor.dim()))
        width = math.prod(ordered.shape[lead + places :])
        return ordered.reshape(*tensor.shape[:lead], math.prod(sizes[:groups]), math.prod(sizes[groups:places]), width)


def matrix_layout(view: WeightView, groups: int = 0, rows: int = 1) -> tuple[Layout, bool] | None:
    """How the parameter holds a view (groups..., rows..., columns...), and whether its columns come first there.

    None where the view is not a contiguous range of the parameter, in some order of its axes.
    """
    return _matrix_layout(tuple(view.tensor.shape), view.steps, groups, rows)


@cache
def _matrix_layout(shape: Sizes, steps: Sizes, groups: int, rows: int) -> tuple[Layout, bool] | None:
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
            grad = axes.arrange(grad, 2, use.cache["axis"], len(use.shape))
        weight = use.views.get("weight")
        if weight is not None:
            if axes is None:
                act, held = positions_last(inputs[0], 1, inputs[0].shape[-1]).unsqueeze(1), matrix_layout(weight)
            else:
                act = axes.arrange(inputs[0], 1, use.cache["axis"], len(use.shape))
                held = matrix_layout(weight, len(axes.groups), len(axes.rows))
            assert held is not None
            layout, flipped = held
            acts = Acts(make=lambda examples: act[examples], width=act.shape[-1], positions=act.shape[-2])
            yield Contribution(weight.part, Term(acts, grad, flipped=flipped), layout)
        if "bias" in use.views:
            yield bias_contribution(use.views["bias"], grad)


class BilinearRule(PlainInputs):
    """`y_o = x1^T W_o x2 + b_o`: linear in the outer product of its inputs."""

    name = "bilinear"
    matrix = True

    def contributions(self, use: Use, inputs: tuple[Tensor, ...], grad: Tensor) -> Iterator[Contribution]:
        """Inputs (B, ..., I1) and (B, ..., I2), gradients (K, B, ..., O)."""
        grad = positions_last(grad, 2, grad.shape[-1]).unsqueeze(2)
        if "weight" in use.views:
            first, second = (positions_last(each, 1, each.shape[-1]) for each in inputs)
            width = first.shape[-1] * second.shape[-1]

            def outer(examples: slice) -> Tensor:
                products = first[examples].unsqueeze(-1) * second[examples].unsqueeze(-2)
                return products.flatten(-2).unsqueeze(1)

            acts = Acts(make=outer, width=width, positions=first.shape[1], scratch=first.shape[1] * width)
            yield Contribution(use.views["weight"].part, Term(acts, grad), Layout.plain(1, grad.shape[-1], width))
        if "bias" in use.views:
            yield bias_contribution(use.views["bias"], grad)


def exact_product(grad: Tensor, weight: Tensor) -> Tensor:
    """`grad @ weight` by a kernel that is as exact as float32; by torch where kernels do not run."""
    product = None
    if grad.dtype == torch.float32 and not available.broken:
        product = available.attempt(lambda: kernel_products.product(grad, weight))
    return grad @ weight if product is None else product


class ExactLinear(torch.autograd.Function):
    """Torch's linear map with such gradients; its weight and bias are recorded and need none here."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """(..., I) -> (..., O)."""
        ctx.save_for_backward(weight)
        return F.linear(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradient of the input alone."""
        (weight,) = ctx.saved_tensors
        return apply_to_probes(exact_product, grads[0], weight), None, None


LINEAR = LinearRule()
BILINEAR = BilinearRule()


def usable_matrix(view: WeightView | None) -> WeightView | None:
    """The view, if it is a whole matrix or a range of its rows, or the transpose of such."""
    return view if view is not None and view.tensor.dim() == 2 and matrix_layout(view) is not None else None


def usable_range(view: WeightView | None) -> WeightView | None:
    """The view, if it is a contiguous range of its parameter."""
    return view if view is not None and view.is_rows else None


def usable_views(
    recorder: Recorder,
    values: Mapping[str, Any],
    usable_weight: Callable[[WeightView | None], WeightView | None] = usable_range,
) -> Views:
    """The weight and the bias of a call, if they are selected parameters that the rule can use."""
    weight = usable_weight(recorder.resolve(values.get("weight")))
    bias = usable_range(recorder.resolve(values.get("bias")))
    return {role: view for role, view in (("weight", weight), ("bias", bias)) if view is not None}


def linear(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`F.linear(input, weight, bias)`."""
    values = dict(zip(("input", "weight", "bias"), args, strict=False)) | kwargs
    views = usable_views(recorder, values, usable_matrix)
    if not views or values["weight"].dim() != 2:
        return func(*args, **kwargs)
    return apply_linear(recorder, views, values["input"], values["weight"], values.get("bias"), func)


def apply_linear(
    recorder: Recorder, views: Views, inputs: Tensor, weight: Tensor, bias: Any, apply: Callable[..., Any]
) -> Any:
    """Record `apply(given, weight, bias)`, which is `F.linear` with a weight (O, I); `views` are of its weights."""
    weight = recorder.alias(weight) if "weight" in views else weight
    bias = recorder.alias(bias) if "bias" in views else bias
    if wants_exact_gradient(recorder, inputs, weight, bias, views):
        apply = ExactLinear.apply
    output = apply(inputs, weight, bias)
    return recorder.record(LINEAR, output, views, (inputs,), tuple(range(output.dim() - 1)))


def wants_exact_gradient(recorder: Recorder, inputs: Tensor, weight: Tensor, bias: Any, views: Views) -> bool:
    """Whether a large linear map in float32 on a GPU only needs the gradient of its input."""
    if not recorder.exact or not only_input_gradient(recorder, inputs, weight, bias, views):
        return False
    if bias is not None and bias.dim() != 1:
        return False
    return kernel_products.in_parts(weight.detach(), math.prod(inputs.shape[:-1]) * weight.numel())


def only_input_gradient(recorder: Recorder, inputs: Tensor, weight: Tensor, bias: Any, views: Views) -> bool:
    """Whether a layer only needs the gradient of its input, once, in the dtype of its weight."""
    if recorder.second or not inputs.requires_grad or weight.dtype != inputs.dtype:
        return False
    if torch.is_autocast_enabled(inputs.device.type):
        return False
    others = [
        tensor for role, tensor in (("weight", weight), ("bias", bias)) if role not in views and tensor is not None
    ]
    return not any(tensor.requires_grad for tensor in others)


def bilinear(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`F.bilinear(input1, input2, weight, bias)`."""
    values = dict(zip(("input1", "input2", "weight", "bias"), args, strict=False)) | kwargs
    views = usable_views(recorder, values)
    if not views:
        return func(*args, **kwargs)
    values |= {role: recorder.alias(values[role]) for role in views}
    output = func(**values)
    inputs = (values["input1"], values["input2"])
    return recorder.record(BILINEAR, output, views, inputs, tuple(range(output.dim() - 1)))


HANDLERS: dict[Any, Handler] = {F.linear: linear, F.bilinear: bilinear}
