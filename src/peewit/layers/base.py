"""What a layer rule is: it recognises a call that applies a selected weight, and turns gradients into Jacobians."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ..jacobians import Layout, Term


class Part(NamedTuple):
    """A contiguous range of one parameter's flattened values: a packed projection is several."""

    name: str
    start: int
    stop: int


@dataclass(frozen=True)
class Ref:
    """A tensor in a call, recognised as (a view of) a selected parameter.

    Element (i, j, ...) of the view is number `start + i * steps[0] + j * steps[1] + ...` of the flattened parameter,
    whatever their order in memory.
    """

    name: str
    tensor: Tensor
    parameter: Tensor
    start: int
    steps: tuple[int, ...]

    @staticmethod
    def of(name: str, tensor: Tensor, parameter: Tensor) -> Ref | None:
        """The reference; None where the view's elements are not such numbers of the parameter."""
        if tensor is parameter:
            return Ref(name, tensor, parameter, 0, own_steps(tuple(tensor.shape)))
        if tensor.dtype != parameter.dtype:  # real numbers seen as complex ones, or bits as other numbers
            return None
        offset = tensor.storage_offset() - parameter.storage_offset()
        sizes = tuple(tensor.shape), tensor.stride(), tuple(parameter.shape), parameter.stride()
        found = steps_of(offset, *sizes)
        return None if found is None else Ref(name, tensor, parameter, *found)

    @property
    def part(self) -> Part:
        """The range the view covers, when it is a contiguous one."""
        return Part(self.name, self.start, self.start + self.tensor.numel())

    @property
    def is_rows(self) -> bool:
        """Whether the view is a contiguous range of the flattened parameter, in its own order."""
        return in_order(tuple(self.tensor.shape), self.steps)

    @property
    def transposed(self) -> bool:
        """Whether the parameter has the last two axes of the view in the other order."""
        if self.tensor.dim() < 2:
            return False
        # An axis of one fits either way: then the longer one is the first.
        first, second = list(zip(self.steps, self.tensor.shape, strict=True))[-2:]
        return second > first

    def permuted(self, order: tuple[int, ...]) -> Ref:
        """The same elements with the view's axes in another order."""
        steps = tuple(self.steps[axis] for axis in order)
        return replace(self, tensor=self.tensor.permute(order), steps=steps)

    def index(self) -> Tensor:
        """(view's shape): positions of the view's elements in the flattened parameter."""
        every = torch.arange(self.parameter.numel(), device=self.parameter.device)
        return every.as_strided(self.tensor.shape, self.steps, self.start)


Sizes = tuple[int, ...]


def own_steps(shape: Sizes) -> Sizes:
    """How far apart neighbours along each axis are in a flattened tensor."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def in_order(shape: Sizes, steps: Sizes) -> bool:
    """Whether numbers this far apart are a contiguous range in the order of its axes; an axis of one has no steps."""
    pairs = zip(shape, steps, own_steps(shape), strict=True)
    return 0 in shape or all(size == 1 or step == own for size, step, own in pairs)


def reach(shape: Sizes, steps: Sizes) -> int:
    """How far the last element is from the first."""
    return sum((size - 1) * step for size, step in zip(shape, steps, strict=True))


@cache
def steps_of(offset: int, shape: Sizes, strides: Sizes, whole: Sizes, whole_strides: Sizes) -> tuple[int, Sizes] | None:
    """The start and steps, in the flattened parameter, of a view of it; both are given as they are in memory.

    None where the view leaves the parameter, where elements of the parameter share memory, or where neighbours in the
    view are not equally far apart in the flattened parameter.
    """
    if 0 in shape:
        return 0, own_steps(shape)
    if offset < 0 or offset + reach(shape, strides) > reach(whole, whole_strides):
        return None
    if in_order(whole, whole_strides):
        return offset, strides
    every = torch.arange(1 + max(reach(whole, whole_strides), math.prod(whole)), device="cpu")
    places = every.as_strided(whole, whole_strides).flatten()
    if places.unique().numel() < places.numel():
        return None
    memory = torch.full_like(every, -1).index_copy(0, places, every[: places.numel()])
    seen = memory.as_strided(shape, strides, offset)
    start = int(seen.flatten()[0])
    steps = tuple(int(seen.select(axis, min(1, size - 1)).flatten()[0]) - start for axis, size in enumerate(shape))
    if min(start, *steps, 0) < 0 or start + reach(shape, steps) >= len(every):
        return None
    return (start, steps) if torch.equal(seen, every.as_strided(shape, steps, start)) else None


@dataclass(frozen=True)
class BatchAxis:
    """Where the examples are in a tensor: an axis of their own, or folded into one before or after other positions."""

    axis: int
    # "none", "major" (example varies slowest), "minor" (fastest), "whole" (a single example, no axis), or "owned": rows
    # are found to be this or that example's in each batch, and split by `Owned`.
    fold: str

    def split(self, tensor: Tensor, examples: int, skip: int = 0) -> Tensor:
        """Move the examples to axis `skip`; a folded axis leaves its other part in its place."""
        if self.fold == "whole":
            return tensor.unsqueeze(skip)
        axis = self.axis + skip
        if self.fold == "none":
            return tensor.movedim(axis, skip)
        sizes = (examples, -1) if self.fold == "major" else (-1, examples)
        parted: Tensor = tensor.unflatten(axis, sizes)
        return parted.movedim(axis if self.fold == "major" else axis + 1, skip)

    def fits(self, shape: torch.Size | tuple[int, ...], examples: int) -> bool:
        """Whether a tensor of this shape can have its examples here."""
        if self.fold == "whole":
            return examples == 1
        if self.axis >= len(shape):
            return False
        if self.fold == "owned":
            return True
        size = shape[self.axis]
        return size == examples if self.fold == "none" else size % examples == 0 and size > examples


@dataclass(frozen=True)
class Owned:
    """Rows of one batch along an axis, each of one example: T places for each example, of which some are empty."""

    axis: int
    rows: Tensor  # (B, T): numbers of rows; how many rows there are, where a place is empty
    counted: Tensor  # (B, T): places that are not empty
    fold: ClassVar[str] = "owned"

    @staticmethod
    def of(axis: int, owners: Tensor, examples: int) -> Owned:
        """From each row's example (R,); at least one place, so that no product is empty."""
        order = owners.argsort(stable=True)
        counts = owners.bincount(minlength=examples)
        sorted_owners = owners[order]
        places = torch.arange(len(owners), device=owners.device) - (counts.cumsum(0) - counts)[sorted_owners]
        size = max(1, int(counts.max()))
        rows = owners.new_full((examples, size), len(owners)).index_put((sorted_owners, places), order)
        return Owned(axis, rows, rows < len(owners))

    def split(self, tensor: Tensor, examples: int, skip: int = 0) -> Tensor:
        """Move the examples to axis `skip`, and leave T places in place of the rows: zeros where they are empty."""
        axis = self.axis + skip
        shape = [*tensor.shape]
        shape[axis] = 1
        padded = torch.cat([tensor, tensor.new_zeros(shape)], axis)
        parted: Tensor = padded.index_select(axis, self.rows.flatten()).unflatten(axis, self.rows.shape)
        return parted.movedim(axis, skip)

    def counts(self, term: Term) -> Term:
        """The term, with empty places left out of its input factor; places vary slower than its other positions."""
        every = self.counted.repeat_interleave(term.acts.positions // self.counted.shape[1], 1)
        return replace(term, counted=every if term.counted is None else every & term.counted)


def batch_axes(shape: tuple[int, ...], axes: tuple[int, ...], examples: int) -> list[BatchAxis]:
    """All places where the examples could be, the likeliest first."""
    found = [BatchAxis(axis, "none") for axis in axes]
    found += [BatchAxis(axis, fold) for axis in axes for fold in ("major", "minor")]
    return [place for place in found if place.fits(shape, examples)]


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

    part: Part
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
    `columns` that several gradients will be pulled back at once, `room` is the budget in bytes, and `open` says that an
    output has no examples.
    """

    exact: bool
    columns: bool
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


def _product(sizes: torch.Size | tuple[int, ...]) -> int:
    made = 1
    for size in sizes:
        made *= size
    return made
