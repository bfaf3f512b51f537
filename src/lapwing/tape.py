"""One forward pass under recording, and output gradients pulled back to every use of the selected weights.

The recording is a torch function mode: it sees the calls that apply weights (`F.linear`, `F.conv2d`, ...) whoever makes
them, so tied weights, layers called twice, `F.linear` on another module's weight and the projections inside attention
are all the same thing, a use. What it cannot recognise still leaves a path from the output to the parameter in the
autograd graph; such parameters take the generic rule.
"""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from .batches import Inputs, call, count, map_tensors, take, tensors
from .jacobians import Explicit, Matrix, Term
from .layers import HANDLERS
from .layers.base import BatchAxis, Contribution, Lift, Part, Ref, Rule, Use, batch_axes, output_edge
from .layers.elementwise import align, reduce_to
from .layers.generic import generic_rows
from .memory import Budget

WHOLE = BatchAxis(0, "whole")
PROBED = 3  # examples in the pass that learns about a network


@dataclass
class Plan:
    """What was learnt about a network: where examples are in each use, and which weights need the generic rule."""

    axes: dict[str, BatchAxis | None] = field(default_factory=dict)  # None: no examples in that output
    rows: dict[Any, float] = field(default_factory=dict)  # rows per example along that axis, by the inputs' shapes
    generic: set[str] = field(default_factory=set)
    copied: set[str] = field(default_factory=set)  # inputs that the network later changes in place
    used: dict[str, set[str]] = field(default_factory=dict)  # rules that each weight was seen with
    costs: dict[Any, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    batched: bool = True  # whether many cotangents can be pulled back at once
    independent: bool = False  # whether an example's output was seen not to depend on the others
    vectorised: bool = True  # whether the generic rule can map over examples

    def cost(self, inputs: Inputs) -> int:
        """Bytes of one example's layer outputs; known once `Tracer.cost` was asked."""
        return self.costs[signature(inputs)][0]

    def shape(self, inputs: Inputs) -> tuple[int, ...]:
        """The shape of one example's output; known likewise."""
        return self.costs[signature(inputs)][1]


def signature(inputs: Inputs) -> tuple[tuple[int, ...], ...]:
    """Shapes of one example."""
    return tuple(tuple(tensor.shape[1:]) for tensor in tensors(inputs))


class Recording(TorchFunctionMode):
    """Notes every recognised use of the selected weights during a forward pass."""

    def __init__(self, names: dict[int, str], plan: Plan, examples: int, watch: bool = False) -> None:
        super().__init__()
        self.watch = watch
        self.seen: dict[str, tuple[Tensor, ...]] = {}  # inputs and outputs of each use, where they are watched
        self.names = names
        self.plan = plan
        self.examples = examples
        self.uses: list[Use] = []
        self.stops: set[Any] = set()
        self.calls: Counter[tuple[str, ...]] = Counter()
        self.open: dict[int, Use] = {}  # outputs without examples, by identity; held so that it is not reused
        self.held: list[Tensor] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Hand recognised calls to their layer's handler."""
        handler = HANDLERS.get(func)
        # Without gradients nothing can be recorded: such a region is no function of the weights.
        if handler is None or not torch.is_grad_enabled():
            return func(*args, **(kwargs or {}))
        return handler(self, func, args, kwargs or {})

    def resolve(self, tensor: Any) -> Ref | None:
        """The selected parameter that a tensor is, or is a view of."""
        if not isinstance(tensor, Tensor) or not tensor.requires_grad:
            return None
        name = self.names.get(id(tensor))
        if name is not None:
            return None if name in self.plan.generic else Ref(name, tensor, tensor)
        base = tensor._base
        name = None if base is None else self.names.get(id(base))
        if base is None or name is None or name in self.plan.generic:
            return None
        turned = tensor.dim() == 2 and tensor.shape == base.shape[::-1] and tensor.stride() == base.stride()[::-1]
        return Ref(name, tensor, base, transposed=turned and tensor.storage_offset() == base.storage_offset())

    def alias(self, tensor: Tensor) -> Tensor:
        """The same values, behind a node at which the search for unrecorded uses stops."""
        made = tensor.view_as(tensor)
        self.stops.add(made.grad_fn)
        return made

    def _key(self, rule: Rule, refs: dict[str, Ref]) -> str:
        what = (rule.name, *(ref.name for ref in refs.values()))
        self.calls[what] += 1
        return "/".join((*what, str(self.calls[what])))

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
        key = self._key(rule, refs)
        if key in self.plan.copied:
            inputs = tuple(each.clone() for each in inputs)
        node = output.grad_fn
        use = Use(
            key=key,
            rule=rule,
            refs=refs,
            inputs=inputs,
            options=options,
            edge=output_edge(output),
            shape=tuple(output.shape),
            axes=axes,
            node=node,
            versions=tuple(each._version for each in inputs),
        )
        self.uses.append(use)
        if self.watch:
            self.seen[key] = tuple(each.detach().clone() for each in (*inputs, output))
        if self._without_examples(key, use.shape, axes):
            self.open[id(output)] = use
            self.held.append(output)
        return output

    def _without_examples(self, key: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> bool:
        if self.examples == 1:
            return False
        if key in self.plan.axes:
            return self.plan.axes[key] is None
        return not batch_axes(shape, axes, self.examples)

    def pending(self, tensor: Any) -> Use | None:
        """The earlier use whose output this tensor is, if that output has no examples of its own."""
        if not self.open or not isinstance(tensor, Tensor):
            return None
        use = self.open.get(id(tensor))
        if use is None and tensor._base is not None and tensor.numel() == tensor._base.numel():
            use = self.open.get(id(tensor._base))
        return use

    def lift(self, use: Use, tensor: Tensor, output: Tensor) -> Tensor:
        """Note that an output without examples was broadcast into one that has them."""
        key = f"{use.key}/lift{len(use.lifts) + 1}"
        aligned = align(tuple(tensor.shape), output.dim())
        axes = tuple(axis for axis, size in enumerate(aligned) if size == 1)
        use.lifts.append(Lift(key, output_edge(output), tuple(output.shape), axes))
        if self.watch:
            self.seen[key] = (output.detach().clone(),)
        return output


@dataclass
class Tape:
    """A finished recording: the outputs, and everything needed to pull gradients back to the weights."""

    model: nn.Module
    inputs: Inputs
    examples: int
    output: Tensor  # (B, ...)
    uses: list[Use]
    generic: tuple[str, ...]
    plan: Plan
    budget: Budget
    create_graph: bool = False

    def edges(self) -> list[Any]:
        """The gradient edges at which gradients are asked for, in the order of uses and their lifts."""
        return [edge for use in self.uses for edge in self._edges_of(use)]

    @staticmethod
    def _edges_of(use: Use) -> list[Any]:
        return [lift.edge for lift in use.lifts] if use.lifts else [use.edge]

    def numbers_per_column(self) -> int:
        """Numbers that one pulled-back cotangent makes over all uses."""
        shapes = [lift.shape for use in self.uses for lift in use.lifts]
        shapes += [use.shape for use in self.uses if not use.lifts]
        return sum(torch.Size(shape).numel() for shape in shapes) + self.output.numel()

    def gradients(self, cotangents: Tensor) -> list[Tensor | None]:
        """(K, B, ...) cotangents -> one (K, ...) gradient per edge, None where the output does not depend on it."""
        edges = self.edges()
        if not edges:
            return []
        options: dict[str, Any] = {"allow_unused": True, "create_graph": self.create_graph, "retain_graph": True}
        if self.plan.batched and cotangents.shape[0] > 1:
            try:
                with warnings.catch_warnings():
                    # An operation without a batching rule is looped over inside torch: slower, and the same numbers.
                    warnings.filterwarnings("ignore", message="There is a performance drop")
                    # Autograd's own thread meets the GPU for the first time here; torch sets it up and says so.
                    warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")
                    return list(torch.autograd.grad(self.output, edges, cotangents, is_grads_batched=True, **options))
            except RuntimeError as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                self.plan.batched = False
        each = [torch.autograd.grad(self.output, edges, one, **options) for one in cotangents]
        if len(each) == 1:
            return [None if made is None else made.unsqueeze(0) for made in each[0]]
        return [None if made[0] is None else torch.stack(made) for made in zip(*each, strict=True)]

    def pull(self, cotangents: Tensor, masked: Tensor | None = None) -> dict[Part, Matrix | Explicit]:
        """(K, B, ...) cotangents -> the Jacobian rows `cotangent^T df/dweight`, per range of each weight."""
        found: dict[str, list[Contribution]] = {}
        gradients = iter(self.gradients(cotangents))
        for use in self.uses:
            pulled = [next(gradients) for _ in self._edges_of(use)]
            if all(each is None for each in pulled):
                continue
            for contribution in use.rule.contributions(use, self._inputs(use), self._batched(use, pulled)):
                found.setdefault(contribution.part.name, []).append(contribution)
                self.plan.used.setdefault(contribution.part.name, set()).add(use.rule.name)
        made: dict[Part, Matrix | Explicit] = {}
        for name, contributions in found.items():
            made.update(merge(name, contributions, self._size(name), self.budget, masked))
        if self.generic:
            rows = generic_rows(
                self.model,
                self.inputs,
                self.generic,
                cotangents,
                self.budget,
                self.plan,
                self.output,
                self.create_graph,
            )
            for name, value in rows.items():
                made[Part(name, 0, value.shape[-1])] = Explicit(value, self.budget)
                self.plan.used[name] = {"generic"}
        return made

    def pairs(self) -> dict[Part, Part]:
        """Weights with the bias that is applied in exactly the same calls: they can form one block."""
        partners: dict[Part, set[Part | None]] = {}
        for use in self.uses:
            if not use.rule.matrix:
                continue
            weight, bias = use.refs.get("weight"), use.refs.get("bias")
            parts = [None if ref is None else ref.part for ref in (weight, bias)]
            if weight is not None and weight.transposed:
                parts = [parts[0], None]
            for own, other in (parts, parts[::-1]):
                if own is not None:
                    partners.setdefault(own, set()).add(other)
        weights = {use.refs["weight"].part for use in self.uses if "weight" in use.refs}
        made: dict[Part, Part] = {}
        for part in weights:
            (other,) = partners[part] if len(partners.get(part, ())) == 1 else (None,)
            if other is not None and partners[other] == {part}:
                made[part] = other
        return made

    def _size(self, name: str) -> int:
        return self.model.get_parameter(name).numel()

    def _axis(self, use: Use) -> BatchAxis | None:
        return WHOLE if self.examples == 1 else self.plan.axes[use.key]

    def _inputs(self, use: Use) -> tuple[Tensor, ...]:
        """The use's inputs with the examples in front, made once."""
        if "inputs" not in use.cache:
            axis = self._axis(use)
            with torch.set_grad_enabled(self.create_graph):
                given = use.inputs if self.create_graph else tuple(each.detach() for each in use.inputs)
                prepared = tuple(_at_least_single(each) for each in use.rule.prepare(use, given))
            if axis is None:
                use.cache["inputs"] = tuple(each.expand(self.examples, *each.shape) for each in prepared)
            else:
                use.cache["inputs"] = tuple(axis.split(each, self.examples) for each in prepared)
            use.cache["axis"] = axis.axis if axis is not None and axis.fold == "none" else None
        made: tuple[Tensor, ...] = use.cache["inputs"]
        return made

    def _batched(self, use: Use, pulled: list[Tensor | None]) -> Tensor:
        """Gradients of a use's output as (K, B, ...)."""
        if not use.lifts:
            gradient = pulled[0]
            assert gradient is not None
            axis = self._axis(use)
            assert axis is not None
            gradient = _at_least_single(gradient)
            return axis.split(gradient.reshape(gradient.shape[0], *use.shape), self.examples, 1)
        total: Tensor | None = None
        for lift, gradient in zip(use.lifts, pulled, strict=True):
            if gradient is None:
                continue
            axis = WHOLE if self.examples == 1 else self.plan.axes[lift.key]
            assert axis is not None
            gradient = _at_least_single(gradient)
            gradient = axis.split(gradient.reshape(gradient.shape[0], *lift.shape), self.examples, 1)
            aligned = align(use.shape, len(lift.shape))
            if axis.fold == "none":
                aligned = aligned[: axis.axis] + aligned[axis.axis + 1 :]
            gradient = reduce_to(gradient, aligned, 2).reshape(gradient.shape[0], self.examples, *use.shape)
            total = gradient if total is None else total + gradient
        assert total is not None
        return total


def _at_least_single(tensor: Tensor) -> Tensor:
    """Products of half-precision networks are taken in float32: their sums would lose all small terms."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def merge(
    name: str, contributions: list[Contribution], size: int, budget: Budget, masked: Tensor | None
) -> dict[Part, Matrix | Explicit]:
    """Put the uses of one weight together: positions of all uses are summed; unlike kinds become explicit rows."""
    parts = sorted({contribution.part for contribution in contributions})
    apart = all(first.stop <= second.start for first, second in itertools.pairwise(parts))
    made: dict[Part, Matrix | Explicit] = {}
    factored = all(isinstance(contribution.value, Term) for contribution in contributions)
    same = all(len({c.layout for c in contributions if c.part == part}) == 1 for part in parts)
    if apart and factored and same:
        for part in parts:
            own = [contribution for contribution in contributions if contribution.part == part]
            terms = tuple(contribution.value for contribution in own if isinstance(contribution.value, Term))
            made[part] = Matrix(terms, own[0].layout, budget, masked)
        return made
    total: Tensor | None = None
    for part, value, layout in contributions:
        if isinstance(value, Term):
            value = Matrix((value,), layout, budget).rows(slice(0, value.grad.shape[1]))
        if part.stop - part.start != size:
            value = torch.nn.functional.pad(value, (part.start, size - part.stop))
        total = value if total is None else total + value
    assert total is not None
    return {Part(name, 0, size): Explicit(total, budget)}


def reached(output: Tensor, stops: set[Any], names: dict[int, str]) -> tuple[set[str], set[Any]]:
    """Selected weights that the output depends on past the recorded uses, and all nodes passed on the way."""
    found: set[str] = set()
    seen: set[Any] = set()
    stack = [output.grad_fn] if output.grad_fn is not None else []
    while stack:
        node = stack.pop()
        if node in seen or node in stops:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and id(variable) in names:
            found.add(names[id(variable)])
        stack.extend(following for following, _ in node.next_functions if following is not None)
    return found, seen


def _moves(place: BatchAxis, examples: int, before: Tensor, after: Tensor) -> bool:
    """Whether the rows at a place follow the examples when these are rolled by one."""
    if before.shape != after.shape or not place.fits(before.shape, examples):
        return False
    expected, found = place.split(before, examples).roll(1, 0), place.split(after, examples)
    if not found.is_floating_point():
        return torch.equal(expected, found)
    bound = 1e-2 if found.dtype in (torch.float16, torch.bfloat16) else 1e-4
    scale = found.detach().abs().max().clamp(min=torch.finfo(found.dtype).tiny) if found.numel() else 0.0
    return bool(((expected - found).abs() <= bound * scale).all())


def _confined(place: BatchAxis, rows: Tensor | None, examples: int) -> bool:
    """Whether gradients of the middle example's output stay within its own rows."""
    if rows is None:
        return True
    split = place.split(rows, examples)
    own = examples // 2
    return not bool(split[:own].any()) and not bool(split[own + 1 :].any())


class Tracer:
    """Records forward passes of one network for one choice of weights, learning its plan on the way."""

    def __init__(
        self, model: nn.Module, names: tuple[str, ...], budget: Budget, plan: Plan | None = None, graph: bool = False
    ) -> None:
        self.model = model
        self.names = names
        self.budget = budget
        self.plan = plan if plan is not None else Plan()
        self.create_graph = graph
        wanted = set(names)
        self.parameters = {name: each for name, each in model.named_parameters() if name in wanted}
        self._by_id = {id(parameter): name for name, parameter in self.parameters.items()}

    @property
    def selected(self) -> list[Tensor]:
        """The selected parameters."""
        return list(self.parameters.values())

    def cost(self, inputs: Inputs) -> int:
        """Bytes of one example's layer outputs, from a forward pass of three examples the first time.

        With more than one, the pass also learns where the examples are, so that larger batches need not ask.
        """
        if signature(inputs) not in self.plan.costs:
            tape = self.trace(take(inputs, slice(0, PROBED)))
            bytes_all = tape.numbers_per_column() * tape.output.element_size()
            self.plan.costs[signature(inputs)] = (-(-bytes_all // tape.examples), tuple(tape.output.shape[1:]))
        return self.plan.cost(inputs)

    def trace(self, inputs: Inputs) -> Tape:
        """Forward a batch; again where the first pass taught something about the network."""
        examples = count(inputs)
        for _ in range(8):
            recording = Recording(self._by_id, self.plan, examples, watch=examples <= PROBED)
            # Fused attention has no second derivative; its plain form does.
            kernels = sdpa_kernel([SDPBackend.MATH]) if self.create_graph else nullcontext()
            with recording, kernels:
                output = call(self.model, inputs)
            tape = self._finish(recording, output, inputs, examples)
            if tape is not None:
                return tape
        raise RuntimeError(
            "The network applies its weights differently in every forward pass; expected it to be repeatable."
        )

    def _finish(self, recording: Recording, output: Tensor, inputs: Inputs, examples: int) -> Tape | None:
        """The tape, or None when the pass has to be repeated with a better plan."""
        plan, uses = self.plan, recording.uses
        tape = self._tape(uses, output, inputs, examples)
        if not output.requires_grad:
            return tape
        unseen, nodes = reached(output, recording.stops, self._by_id)
        known = len(plan.generic), len(plan.copied)
        plan.generic |= unseen
        plan.copied |= {use.key for use in uses if use.versions != tuple(each._version for each in use.inputs)}
        repeat = False
        if examples > 1:
            self._locate(tape, recording.seen)
            opened = {id(use) for use in recording.open.values()}
            for use in uses:
                if plan.axes[use.key] is not None:
                    continue
                # An output without examples has gradients per example only where it was lifted to them.
                lifted = bool(use.lifts) and all(plan.axes[lift.key] is not None for lift in use.lifts)
                if id(use) not in opened:
                    repeat = True  # it looked as if it had examples: the next pass knows to lift it
                elif not lifted or use.node in nodes:
                    plan.generic.update(use.names)
        return None if repeat or (len(plan.generic), len(plan.copied)) != known else tape

    def _tape(self, uses: list[Use], output: Tensor, inputs: Inputs, examples: int) -> Tape:
        generic = tuple(name for name in self.names if name in self.plan.generic)
        return Tape(self.model, inputs, examples, output, uses, generic, self.plan, self.budget, self.create_graph)

    def _locate(self, tape: Tape, seen: dict[str, tuple[Tensor, ...]]) -> None:
        """Find where the examples are in each use that is new: what moves along when the examples are rolled.

        Then make sure, by pulling one example's gradient back, that no other example depends on its rows.
        """
        places: list[tuple[Use, str, tuple[int, ...], tuple[int, ...], Any]] = []
        for use in tape.uses:
            places.append((use, use.key, use.shape, use.axes, use.edge))
            places += [(use, lift.key, lift.shape, lift.axes, lift.edge) for lift in use.lifts]
        self._distrust(tape)
        unknown = [place for place in places if not self._known(place[1], place[2], tape.examples)]
        if not unknown:
            return
        seen = seen or self._watch(tape.inputs)
        rolled = self._watch(map_tensors(lambda tensor: tensor.roll(1, 0), tape.inputs))
        gradients = self._gradients_of_one(tape, [place[4] for place in unknown])
        for (use, key, shape, axes, _), gradient in zip(unknown, gradients, strict=True):
            moving = [
                place
                for place in batch_axes(shape, axes, tape.examples)
                if all(map(partial(_moves, place, tape.examples), seen.get(key, ()), rolled.get(key, ())))
            ]
            reached_rows = None if gradient is None else gradient.reshape(shape) != 0
            own = [place for place in moving if _confined(place, reached_rows, tape.examples)]
            if moving and not own:
                raise ValueError(
                    f"{key.split('/')[1]!r}: the network's output for one example depends on the other examples of its "
                    "batch there, as with batch statistics in evaluation mode; expected examples to be independent."
                )
            if len(own) > 1:  # nothing tells the places apart, such as inputs that are all equal: be slow and right
                self.plan.generic.update(use.names)
            self.plan.axes[key] = own[0] if own else None

    def _watch(self, inputs: Inputs) -> dict[str, tuple[Tensor, ...]]:
        """Inputs and outputs of every use in a forward pass, by key."""
        recording = Recording(self._by_id, self.plan, count(inputs), watch=True)
        with recording:
            call(self.model, inputs)
        return recording.seen

    @staticmethod
    def _gradients_of_one(tape: Tape, edges: list[Any]) -> tuple[Tensor | None, ...]:
        """Gradients of one example's output alone, at the given edges."""
        generator = torch.Generator().manual_seed(0)
        weight = torch.rand(tape.output.shape[1:], generator=generator, dtype=torch.float64).to(tape.output) + 0.5
        cotangent = torch.zeros_like(tape.output)
        cotangent[tape.examples // 2] = weight
        return torch.autograd.grad(tape.output, edges, cotangent, retain_graph=True, allow_unused=True)

    def _distrust(self, tape: Tape) -> None:
        """Give the generic rule to weights applied to a selection of positions that depends on the data.

        Routing shows in a number of rows that changes although the inputs' shapes do not: then no axis holds the
        examples, even where the number happens to fit.
        """
        shapes = signature(tape.inputs)
        for use in tape.uses:
            place = self.plan.axes.get(use.key)
            if place is None or place.fold == "whole":
                continue
            rows = use.shape[place.axis] / tape.examples
            if self.plan.rows.setdefault((use.key, shapes), rows) != rows:
                self.plan.generic.update(use.names)

    def _known(self, key: str, shape: tuple[int, ...], examples: int) -> bool:
        if key not in self.plan.axes:
            return False
        place = self.plan.axes[key]
        return place is None or place.fits(shape, examples)
