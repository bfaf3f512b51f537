"""What a layer rule is: it recognises a call that applies a selected weight, and turns gradients into Jacobians."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ...jacobians.factored import Term
from ...jacobians.layout import Layout
from ...weights.ranges import WeightRange
from .examples import _product
from .references import Ref


@dataclass
class Use:
    """One recorded call: which parameters, which inputs, and the gradient edge of its output."""

    key: str
    rule: Rule
    refs: dict[str, Ref]
    inputs: tuple[Tensor, ...]
    options: Any
    edge: GradientEdge
    shape: tuple[int, ...]
    axes: tuple[int, ...]  # output axes that may hold the examples
    dtype: torch.dtype  # of the output
    below: tuple[Any, ...]  # autograd nodes of the inputs
    versions: tuple[int, ...]
    lifted: bool  # whether its output has no examples, and gradients per example where it is broadcast to them
    cache: dict[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters in this call."""
        return tuple(ref.name for ref in self.refs.values())


@dataclass(frozen=True)
class Lift:
    """A tensor without examples, broadcast into one that has them: there its gradient is per example."""

    key: str
    source: GradientEdge  # of the tensor
    small: tuple[int, ...]  # its shape
    dtype: torch.dtype
    edge: GradientEdge  # of the tensor as it was broadcast
    shape: tuple[int, ...]
    axes: tuple[int, ...]
    uses: tuple[Use, ...]  # that the tensor depends on


class Contribution(NamedTuple):
    """One use's share in the Jacobian of a range of a parameter: a factored term or explicit rows (K, B, P)."""

    part: WeightRange
    value: Term | Tensor
    layout: Layout


class Rule(Protocol):
    """A layer family: `name` for the coverage table, `matrix` whether its weight has a Kronecker form."""

    name: str
    matrix: bool

    def prepare(self, use: Use, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """What the rule needs of the recorded inputs, in their own shapes."""
        ...

    def contributions(self, use: Use, inputs: tuple[Tensor, ...], grad: Tensor) -> Iterator[Contribution]:
        """Inputs (B, ...) and output gradients (K, B, ...), examples first, to Jacobians."""
        ...


class PlainInputs:
    """For rules that need their inputs as they came."""

    def prepare(self, use: Use, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The recorded inputs."""
        return inputs


class Recorder(Protocol):
    """What handlers need of the recording mode.

    `second` says that gradients will be differentiated again, `exact` that products are to be as exact as float32's,
    `probes` that several gradients will be pulled back at once, `room` is the budget in bytes, and `open` says that an
    output has no examples.
    """

    exact: bool
    probes: bool
    room: float
    second: bool
    open: bool

    def resolve(self, tensor: Any) -> Ref | None:
        """The selected parameter that a tensor is, or is a view of."""
        ...

    def alias(self, tensor: Tensor) -> Tensor:
        """The same values, behind a node at which the search for unrecorded uses stops."""
        ...

    def record(
        self,
        rule: Rule,
        output: Tensor,
        refs: dict[str, Ref],
        inputs: tuple[Tensor, ...],
        axes: tuple[int, ...],
        options: Any = None,
    ) -> Tensor:
        """Note a call and return its output."""
        ...

    def broadcast(self, rule: Rule, ref: Ref, shape: tuple[int, ...]) -> Tensor:
        """A parameter broadcast to a shape, noted there."""
        ...

    def lift(self, tensor: Tensor, shape: tuple[int, ...]) -> Tensor | None:
        """A tensor without examples, broadcast to a shape and noted; None where it is not such a tensor."""
        ...

    def refuse_mapping(self) -> None:
        """Note that `torch.vmap` is wrong for what the network calls here: the generic rule does without."""
        ...

    def show_result(self, output: Tensor) -> None:
        """Keep the result of an operation whose operands were just broadcast, where the recording is watched."""
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

    An in-place operation on a view rewrites the view's own node, so the edge of what it is a view of is taken.
    """
    return get_gradient_edge(output._base if output._base is not None and is_reshaped(output) else output)


def settled(output: Tensor) -> Tensor:
    """A call's output; a copy where it is a view that no edge of its own would survive in-place changes to."""
    base = output._base
    return output if base is None or base.grad_fn is None or is_reshaped(output) else output.clone()


def positions_last(tensor: Tensor, lead: int, width: int) -> Tensor:
    """(lead..., positions..., rest) -> (lead..., T, width); `width` may cover several trailing axes."""
    positions = _product(tensor.shape[lead:]) // width
    return tensor.reshape(*tensor.shape[:lead], positions, width)


def channels(tensor: Tensor, lead: int, spatial: int, groups: int) -> Tensor:
    """(lead..., [fold], C, spatial...) -> (lead..., G, T, C / G): positions are folds and places."""
    shape = tensor.shape
    width = shape[len(shape) - spatial - 1]
    folded = tensor.reshape(*shape[:lead], -1, groups, width // groups, _product(shape[len(shape) - spatial :]))
    # (lead, F, G, W, L) -> (lead, G, F, L, W)
    order = [*range(lead), lead + 1, lead, lead + 3, lead + 2]
    return folded.permute(order).reshape(*shape[:lead], groups, -1, width // groups)
