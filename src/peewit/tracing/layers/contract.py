"""The contract of a layer rule, which turns gradients into Jacobians, and of the handler that records its calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ...jacobians.factored import Term
from ...jacobians.layout import Layout
from ...weights.ranges import WeightRange
from .weight_views import Sizes, WeightView

Tensors = tuple[Tensor, ...]
Views = dict[str, WeightView]  # by role: "weight" or "bias"


@dataclass(kw_only=True)
class Use:
    """A recorded call: its parameters, its inputs, and the gradient edge of its output."""

    key: str
    rule: Rule
    views: Views
    inputs: Tensors
    options: Any
    edge: GradientEdge
    shape: Sizes
    axes: Sizes  # output axes that may hold the examples
    dtype: torch.dtype  # of the output
    below: tuple[Any, ...]  # autograd nodes of the inputs
    versions: Sizes
    lifted: bool  # whether its output has no examples, and gradients per example where it is broadcast to them
    cache: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters in this call."""
        return tuple(view.name for view in self.views.values())


@dataclass(frozen=True, kw_only=True)
class Lift:
    """A tensor without examples, broadcast into one that has them: there its gradient is per example."""

    key: str
    source: GradientEdge  # of the tensor
    small: Sizes  # its shape
    dtype: torch.dtype
    edge: GradientEdge  # of the tensor as it was broadcast
    shape: Sizes
    axes: Sizes
    uses: tuple[Use, ...]  # that the tensor depends on

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters that the tensor depends on."""
        return tuple(name for use in self.uses for name in use.names)


class Contribution(NamedTuple):
    """What one use adds to the Jacobian of a range of a parameter: a factored term or explicit rows (K, B, P)."""

    part: WeightRange
    value: Term | Tensor
    layout: Layout


class Rule(Protocol):
    """The rule of a family of layers: its `name` in the table of coverage, and whether its weight is a `matrix`."""

    name: str
    matrix: bool

    def prepare(self, use: Use, inputs: Tensors) -> Tensors:
        """Compute what the rule needs of the recorded inputs, in their own shapes."""
        ...

    def contributions(self, use: Use, inputs: Tensors, grad: Tensor) -> Iterator[Contribution]:
        """The Jacobians from inputs (B, ...) and output gradients (K, B, ...), examples first."""
        ...


class PlainInputs:
    """The base of rules that need their inputs unchanged."""

    def prepare(self, use: Use, inputs: Tensors) -> Tensors:
        """The recorded inputs."""
        return inputs


class Recorder(Protocol):
    """What handlers use of the recording."""

    exact: bool  # whether products are to be as exact as in float32
    probes: bool  # whether several gradients will be pulled back at once
    room: float  # bytes of the budget
    second: bool  # whether gradients will be differentiated again
    open: bool  # whether some output has no examples

    def resolve(self, tensor: Any) -> WeightView | None:
        """The selected parameter that a tensor is, or is a view of."""
        ...

    def alias(self, tensor: Tensor) -> Tensor:
        """The same values behind a node of their own, at which the search for unrecorded uses stops."""
        ...

    def record(
        self, rule: Rule, output: Tensor, views: Views, inputs: Tensors, axes: Sizes, options: Any = None
    ) -> Tensor:
        """Note a call and return its output; the examples may be along any of `axes`."""
        ...

    def broadcast(self, rule: Rule, view: WeightView, shape: Sizes) -> Tensor:
        """Broadcast a parameter to a shape, and note the result as a use."""
        ...

    def lift(self, tensor: Tensor, shape: Sizes) -> Tensor | None:
        """Broadcast a tensor without examples to a shape, and note it; None where the tensor has examples."""
        ...

    def refuse_mapping(self) -> None:
        """Note that `torch.vmap` is wrong for an operation of the network, so that the generic rule avoids it."""
        ...

    def show_result(self, output: Tensor) -> None:
        """Keep the result of an operation whose operands were just broadcast, if the recording is watched."""
        ...

    def __enter__(self) -> Any:
        """Record again inside a handler."""
        ...

    def __exit__(self, *error: Any) -> Any:
        """Stop again."""
        ...


Handler = Callable[[Any, Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]


def is_reshaped(output: Tensor) -> bool:
    """Whether a tensor is a view with the numbers of a computed one, in the same order."""
    base = output._base
    if base is None or base.grad_fn is None or base.numel() != output.numel():
        return False
    return base.is_contiguous() and output.is_contiguous()


def output_edge(output: Tensor) -> GradientEdge:
    """The gradient edge of a call's output that survives in-place changes to it.

    An in-place operation on a view rewrites the view's own node, so this is the edge of what it is a view of.
    """
    return get_gradient_edge(output._base if output._base is not None and is_reshaped(output) else output)


def copy_if_fragile(output: Tensor) -> Tensor:
    """Copy an output if it is a view whose edge would not survive in-place changes; else return it."""
    base = output._base
    return output if base is None or base.grad_fn is None or is_reshaped(output) else output.clone()


def positions_last(tensor: Tensor, lead: int, width: int) -> Tensor:
    """(lead..., positions..., rest) -> (lead..., T, width); `width` may cover several trailing axes."""
    positions = math.prod(tensor.shape[lead:]) // width
    return tensor.reshape(*tensor.shape[:lead], positions, width)


def split_channels(tensor: Tensor, lead: int, spatial: int, groups: int) -> Tensor:
    """(lead..., [fold], C, spatial...) -> (lead..., G, T, C / G): positions are folds and places."""
    shape = tensor.shape
    width = shape[len(shape) - spatial - 1]
    folded = tensor.reshape(*shape[:lead], -1, groups, width // groups, math.prod(shape[len(shape) - spatial :]))
    # (lead, F, G, W, L) -> (lead, G, F, L, W)
    order = [*range(lead), lead + 1, lead, lead + 3, lead + 2]
    return folded.permute(order).reshape(*shape[:lead], groups, -1, width // groups)
