"""Scale and shift of normalisation layers: elementwise, so their Jacobian is small and explicit."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ...jacobians.layout import Layout
from ...kernels import available
from ...kernels import gradients as kernel_gradients
from ...messages.errors import PeewitError
from .contract import Contribution, Handler, Recorder, Use, positions_last, split_channels
from .linear import usable_views
from .pulling import apply_to_probes


class NormRule:
    """`y = weight * normalised + bias`, over trailing axes or over channels."""

    matrix = False

    def __init__(self, name: str, per_channel: bool) -> None:
        self.name = name
        self.per_channel = per_channel

    def prepare(self, use: Use, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The normalised input, computed again: keeping it would double the memory of a forward pass."""
        return (use.options[1](inputs[0]),) if "weight" in use.views else ()

    def contributions(self, use: Use, inputs: tuple[Tensor, ...], grad: Tensor) -> Iterator[Contribution]:
        """Normalised inputs (B, ...), gradients (K, B, ...)."""
        size = next(iter(use.views.values())).tensor.numel()
        spatial = use.options[0]

        def rows(tensor: Tensor, lead: int) -> Tensor:  # (lead, T, P)
            if self.per_channel:
                return split_channels(tensor, lead, spatial, 1).squeeze(lead)
            return positions_last(tensor, lead, size)

        gradient = rows(grad, 2)
        layout = Layout.plain(1, size, 1)
        normalised = rows(inputs[0], 1).to(gradient.dtype) if "weight" in use.views else None
        of_weight, of_bias = sum_positions(gradient, normalised, "bias" in use.views)
        for role, value in (("weight", of_weight), ("bias", of_bias)):
            if value is not None:
                yield Contribution(use.views[role].part, value, layout)


def sum_positions(grad: Tensor, normalised: Tensor | None, sums: bool) -> tuple[Tensor | None, Tensor | None]:
    """(K, B, T, P), (B, T, P) -> (K, B, P): sums over T of their products, and of the gradients if `sums`."""
    if available.usable(grad) and (normalised is None or not normalised.requires_grad):
        moments = available.attempt(lambda: kernel_gradients.moments(grad, normalised, sums))
        if moments is not None:
            return moments
    return None if normalised is None else (grad * normalised).sum(2), grad.sum(2) if sums else None


class FrozenBatchNorm(torch.autograd.Function):
    """Batch norm with running statistics, whose gradient is one product; torch's passes over it several times."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, slope: Tensor, values: dict[str, Any]) -> Tensor:
        """Torch's own output; `slope` multiplies each channel."""
        ctx.save_for_backward(slope)
        output: Tensor = F.batch_norm(**{**values, "input": inputs})
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradient of the input; channels are the second axis."""
        (slope,) = ctx.saved_tensors
        return grads[0] * slope.reshape(-1, *[1] * (grads[0].dim() - 2)), None, None


def frozen_batch_norm(values: dict[str, Any]) -> Tensor:
    """`F.batch_norm`; its weight and bias are recorded, and need no gradient here."""
    inputs, mean, variance = values["input"], values["running_mean"], values["running_var"]
    if not inputs.requires_grad or mean is None or variance is None or mean.requires_grad or variance.requires_grad:
        output: Tensor = F.batch_norm(**values)
        return output
    weight = values.get("weight")
    slope = (variance + values.get("eps", 1e-5)).rsqrt()
    if weight is not None:
        slope = slope * weight.detach()
    fixed = {role: value.detach() if isinstance(value, Tensor) else value for role, value in values.items()}
    normalised: Tensor = FrozenBatchNorm.apply(inputs, slope.to(inputs.dtype), fixed)  # type: ignore[no-untyped-call]  # torch does not annotate it
    return normalised


def layer_norm_gradient(
    grad: Tensor, inputs: Tensor, mean: Tensor, slope: Tensor, weight: Tensor | None, width: int
) -> Tensor:
    """Gradients (K, ..., width) of a layer norm's output -> of its input; `slope` is 1 / standard deviation."""
    rows, flat = inputs.reshape(-1, width), grad.reshape(grad.shape[0], -1, width)
    mean, slope = mean.reshape(-1, 1), slope.reshape(-1, 1)
    scale = None if weight is None else weight.reshape(-1)
    gradient = None
    if available.usable(grad):
        gradient = available.attempt(lambda: kernel_gradients.layer_norm(flat, rows, mean, slope, scale))
    if gradient is None:
        normalised = (rows - mean) * slope
        scaled = flat if scale is None else flat * scale
        along = (scaled * normalised).mean(-1, keepdim=True)
        gradient = (scaled - scaled.mean(-1, keepdim=True) - along * normalised) * slope
    return gradient.reshape(grad.shape)


class FrozenLayerNorm(torch.autograd.Function):
    """Torch's layer norm with such a gradient; its weight and bias are recorded, and need none here."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, shape: list[int], weight: Any, bias: Any, eps: float) -> Tensor:
        """Torch's own output."""
        output, mean, slope = torch.native_layer_norm(inputs, shape, weight, bias, eps)
        ctx.save_for_backward(inputs, mean, slope, weight)
        ctx.width = math.prod(shape)
        return output

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """The gradient of the input alone."""
        return apply_to_probes(layer_norm_gradient, grads[0], *ctx.saved_tensors, ctx.width), None, None, None, None


def layer_norm(recorder: Recorder, values: dict[str, Any]) -> Tensor:
    """`F.layer_norm`, with a gradient of our own on a GPU that pulls back several probes."""
    inputs, weight, bias = (values.get(role) for role in ("input", "weight", "bias"))
    shape = list(values["normalized_shape"])
    faster = (
        isinstance(inputs, Tensor)
        and recorder.probes
        and not recorder.second
        and inputs.requires_grad
        and not torch.is_autocast_enabled(inputs.device.type)
        and all(tensor is None or tensor.dtype == inputs.dtype for tensor in (weight, bias))
        and math.prod(shape) <= kernel_gradients.WIDEST_ROW
        and available.usable(inputs.detach())
    )
    if not faster:
        output: Tensor = F.layer_norm(**values)
        return output
    fixed = [None if tensor is None else tensor.detach() for tensor in (weight, bias)]
    normalised: Tensor = FrozenLayerNorm.apply(inputs, shape, *fixed, values.get("eps", 1e-5))  # type: ignore[no-untyped-call]  # torch's
    return normalised


def is_weight(tensor: Tensor) -> bool:
    """Whether a tensor is a parameter or a view of one, selected or not."""
    return isinstance(tensor, nn.Parameter) or isinstance(tensor._base, nn.Parameter)


def norm_handler(name: str, function: Callable[..., Any], per_channel: bool) -> Handler:
    """A handler for a normalising function of `torch.nn.functional`."""
    rule = NormRule(name, per_channel)
    names = tuple(inspect.signature(function).parameters)

    def handler(recorder: Recorder, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values = dict(zip(names, args, strict=False)) | kwargs
        views = usable_views(recorder, values)
        if name == "batch norm" and values.get("training", False):
            if is_weight(values["input"]):  # as standardised convolutions do: a function of weights, left to others
                return func(*args, **kwargs)
            whose = next((view.name for view in views.values()), "a batch norm without scale and shift")
            raise PeewitError(
                f"{whose!r} normalises with the statistics of the batch in evaluation mode, so that examples depend on "
                "each other and none has a likelihood of its own; expected running statistics "
                "(track_running_stats=True)."
            )
        if not views:
            return func(*args, **kwargs)
        aliased = {**values, **{role: recorder.alias(values[role]) for role in views}}
        computed = any(
            role not in views and isinstance(values.get(role), Tensor) and values[role].requires_grad
            for role in ("weight", "bias")
        )
        # A scale that is a function of weights has a path of its own.
        if name == "batch norm" and not computed and not recorder.second:
            output = frozen_batch_norm(aliased)
        elif name == "layer norm" and not computed:
            output = layer_norm(recorder, aliased)
        else:
            output = function(**aliased)
        without = {"weight": None, **({"bias": None} if "bias" in names else {})}

        def normalise(inputs: Tensor) -> Tensor:
            normalised: Tensor = function(**{**values, **without, "input": inputs})
            if normalised.requires_grad:
                # torch's backward of batch norm misreads a permuted gradient of a single example.
                normalised.register_hook(Tensor.contiguous)
            return normalised

        trailing = len(values.get("normalized_shape", ()))
        axes = (0,) if per_channel else tuple(range(output.dim() - trailing))
        return recorder.record(rule, output, views, (values["input"],), axes, (output.dim() - 2, normalise))

    return handler


HANDLERS: dict[Any, Handler] = {
    F.layer_norm: norm_handler("layer norm", F.layer_norm, False),
    F.rms_norm: norm_handler("RMS norm", F.rms_norm, False),
    F.group_norm: norm_handler("group norm", F.group_norm, True),
    F.instance_norm: norm_handler("instance norm", F.instance_norm, True),
    F.batch_norm: norm_handler("batch norm", F.batch_norm, True),
}
