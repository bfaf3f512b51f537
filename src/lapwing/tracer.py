"""Forward passes of one network, recorded; what has to be known about it is learnt on the way and kept in its plan.

Where the examples are in a layer's tensors is found by a batch that has each of them twice: equal examples have equal
rows. Weights whose use the recording does not see, or whose rows are no example's, take the generic rule.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from .batches import Inputs, call, count, map_tensors, restore_buffers
from .diagnosis import FAILURES, explained, refuse_empty, refuse_nan
from .layers.base import BatchAxis, Use, batch_axes
from .memory import Budget
from .plan import Plan, signature
from .recording import Recording
from .tape import Tape

# By how many examples there are: they, and they again in an order that no flip or roll turns into the first.
ORDERS = {1: ([0], []), 2: ([0, 1], [1, 0]), 3: ([0, 1, 2], [0, 2, 1])}
HALVES = 3  # looks at each batch of a network that may reorder its examples


def reached(output: Tensor, lifted: list[Tensor], stops: set[Any], names: dict[int, str]) -> tuple[set[str], set[Any]]:
    """Selected weights that the output depends on past the recorded uses, and all nodes passed on the way.

    The search stops where a use without examples is lifted to them, and goes on from what that use was given.
    """
    found = {names[id(each)] for each in lifted if id(each) in names}
    seen: set[Any] = set()
    stack = [each.grad_fn for each in (output, *lifted) if each.grad_fn is not None]
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


@cache
def _may_reorder(kind: str) -> bool:
    return kind.startswith(
        ("Flip", "Roll", "IndexSelect", "Gather", "Sort", "Topk", "Scatter", "IndexAdd", "IndexCopy", "IndexBackward")
        + ("IndexPut",)
    )


def reorders(node: Any, examples: int) -> bool:
    """Whether a step of the forward pass may change the order of examples.

    A network that reorders its examples has to put its outputs back in order: that step is seen from the output.
    """
    kind = node.name()
    if not _may_reorder(kind):
        return False
    if kind.startswith(("Flip", "Roll")):
        dims = getattr(node, "_saved_dims", ())
        return not dims or 0 in [dim if dim < 1 << 32 else dim - (1 << 64) for dim in dims]
    if kind.startswith(("IndexSelect", "Gather", "Sort", "Topk", "Scatter", "IndexAdd", "IndexCopy")):
        return bool(getattr(node, "_saved_dim", 0) == 0)
    sizes = getattr(node, "_saved_self_sym_sizes", None)
    for axis, index in enumerate(getattr(node, "_saved_indices", ())):
        if index is None or (sizes is not None and sizes[axis] % examples):
            continue
        every = torch.arange(index.numel(), device=index.device)
        if index.dtype == torch.bool or not torch.equal(index.flatten(), every):
            return True
    return False


def doubled(inputs: Inputs) -> Inputs:
    """The first examples twice, in another order the second time: equal rows then tell where the examples are."""
    first, second = ORDERS[min(count(inputs), 3)]
    return map_tensors(lambda tensor: torch.cat([tensor[each : each + 1] for each in (*first, *second)]), inputs)


def _equals(examples: int, device: torch.device) -> Tensor:
    """(examples / 2,): where the first examples of a `doubled` batch stand again."""
    first, second = ORDERS[examples // 2]
    return torch.tensor([len(first) + second.index(example) for example in first], device=device)


def _rows(place: BatchAxis, examples: int, tensor: Tensor) -> Tensor:
    """(B, numbers): what each example has of a tensor, if its examples are at this place."""
    rows = place.split(tensor, examples).reshape(examples, -1) if tensor.numel() else tensor.new_zeros(examples, 1)
    return rows if rows.is_floating_point() else rows.double()  # token numbers


def _repeats(asked: list[tuple[BatchAxis, Tensor]], examples: int, again: Tensor) -> Tensor:
    """(questions, 2): whether rows of equal examples in a `doubled` batch are equal at a place, and others differ.

    All questions in a few calls: a network has hundreds.
    """
    rows = [_rows(place, examples, tensor) for place, tensor in asked]
    first = [each[: examples // 2] for each in rows]
    gaps = torch._foreach_norm(torch._foreach_sub(first, [each.index_select(0, again) for each in rows]), math.inf)
    others = torch._foreach_norm(torch._foreach_sub([each[0] for each in rows], [each[1] for each in rows]), math.inf)
    sizes = torch._foreach_norm(rows, math.inf)
    bounds = [1e-2 if each.dtype in (torch.float16, torch.bfloat16) else 1e-4 for each in rows]
    gap, other, size = (torch.stack([each.double() for each in values]) for values in (gaps, others, sizes))
    return torch.stack([gap <= torch.tensor(bounds, dtype=size.dtype, device="cpu").to(size) * size, other != 0], 1)


def _reached(place: BatchAxis, gradient: Tensor | None, shape: tuple[int, ...], examples: int, like: Tensor) -> Tensor:
    """(B,): the largest gradient in each example's rows; zeros where there is none, and so nothing is said."""
    if gradient is None:
        return torch.zeros(examples, dtype=torch.float64, device=like.device)
    rows = _rows(place, examples, gradient.reshape(shape))
    sizes: Tensor = torch.linalg.vector_norm(rows, math.inf, 1)
    return sizes.double()


class Tracer:
    """Records forward passes of one network for one choice of weights, learning its plan on the way."""

    def __init__(
        self,
        model: nn.Module,
        names: tuple[str, ...],
        budget: Budget,
        plan: Plan | None = None,
        graph: bool = False,
        predicting: bool = False,
    ) -> None:
        self.model = model
        self.names = names
        self.budget = budget
        self.plan = plan if plan is not None else Plan()
        self.create_graph = graph
        self.exact = budget.arithmetic.parts(predicting) == 2
        self.columns = predicting  # whether several gradients will be pulled back at once
        wanted = set(names)
        self.parameters = {name: each for name, each in model.named_parameters() if name in wanted}
        self.dtype = budget.arithmetic.dtype
        for parameter in self.parameters.values():
            self.dtype = torch.promote_types(self.dtype, parameter.dtype)
        self._by_id = {id(parameter): name for name, parameter in self.parameters.items()}

    @property
    def selected(self) -> list[Tensor]:
        """The selected parameters."""
        return list(self.parameters.values())

    def cost(self, inputs: Inputs) -> int:
        """Bytes of one example's layer outputs, from a pass over a `doubled` batch the first time.

        That pass also learns where the examples are, so that larger batches need not ask.
        """
        if not self.plan.knows(inputs):
            some = doubled(inputs)
            try:
                tape = self.trace(some, watch=True)
            except torch.OutOfMemoryError:
                raise
            except FAILURES as error:
                reason = explained(self.model, inputs, count(some), error, list(self.plan.costs))
                if reason is None:
                    raise
                raise reason from error
            # Said at once: nothing can be learnt from numbers that are not equal to themselves.
            refuse_empty(tape.output)
            refuse_nan(tape.output, some)
            # The generic rule makes whole rows, for every example and column.
            rows = 3 * tape.examples * sum(self.parameters[name].numel() for name in tape.generic)
            bytes_all = (tape.numbers_per_column() + rows) * tape.output.element_size()
            self.plan.closed[signature(inputs)] = tape.closed
            self.plan.costs[signature(inputs)] = (-(-bytes_all // tape.examples), tuple(tape.output.shape[1:]))
        return self.plan.cost(inputs)

    def trace(self, inputs: Inputs, watch: bool = False) -> Tape:
        """Forward a batch; again where the first pass taught something about the network.

        A `doubled` batch may be watched: what is seen of it then tells where the examples are.
        """
        examples = count(inputs)
        for _ in range(8):
            recording = Recording(
                self._by_id,
                self.plan,
                examples,
                watch,
                self.create_graph,
                self.exact,
                self.columns,
                self.budget.bytes,
            )
            # Fused attention has no second derivative; its plain form does.
            kernels = sdpa_kernel([SDPBackend.MATH]) if self.create_graph else nullcontext()
            with recording, kernels:
                output = call(self.model, inputs)
            restore_buffers(self.model)
            if output.dim() == 0 or output.shape[0] != examples:
                raise ValueError(
                    f"The network returned shape {tuple(output.shape)} for {examples} examples; expected a leading "
                    f"axis of {examples}. A squeeze() without an axis drops it for single examples."
                )
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
        below = [given for use in uses if use.lifts for given in use.inputs]
        unseen, nodes = reached(output, below, recording.stops, self._by_id)
        known = len(plan.generic), len(plan.copied)
        plan.generic |= unseen
        plan.copied |= {use.key for use in uses if use.versions != tuple(each._version for each in use.inputs)}
        repeat = False
        if examples > 1:
            self._locate(tape, recording.seen, any(reorders(node, examples) for node in nodes))
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
        return Tape(
            self.model,
            self.parameters,
            inputs,
            examples,
            output,
            uses,
            generic,
            self.plan,
            self.budget,
            self.dtype,
            self.create_graph,
        )

    def _locate(self, tape: Tape, seen: dict[str, tuple[Tensor, ...]], shuffles: bool) -> None:
        """Find where the examples are in each use that is new: where equal examples have equal rows.

        Then make sure, by pulling one example's gradient back, that no other example depends on its rows.
        """
        places: list[tuple[Use, str, tuple[int, ...], tuple[int, ...], Any]] = []
        for use in tape.uses:
            places.append((use, use.key, use.shape, use.axes, use.edge))
            places += [(use, lift.key, lift.shape, lift.axes, lift.edge) for lift in use.lifts]
        self._distrust(tape)
        if shuffles:
            self._verify(tape)
        unknown = [place for place in places if not self._known(place[1], place[2], tape.examples)]
        if not unknown:
            return
        looked_at = tape.inputs if seen else doubled(tape.inputs)
        seen = seen or self._watch(looked_at)
        number = count(looked_at)
        again = _equals(number, tape.output.device)
        middle = torch.arange(tape.examples, device=tape.output.device) == tape.examples // 2
        gradients = self._gradients_of(tape, [place[4] for place in unknown], middle)
        asked: list[tuple[Use, str, list[BatchAxis], int]] = []
        questions: list[tuple[BatchAxis, Tensor]] = []
        reaches: list[Tensor] = []
        for (use, key, shape, axes, _), gradient in zip(unknown, gradients, strict=True):
            tensors = seen.get(key, ())
            candidates = [
                place
                for place in batch_axes(shape, axes, tape.examples)
                if tensors and all(place.fits(each.shape, number) for each in tensors)
            ]
            asked.append((use, key, candidates, len(tensors)))
            for place in candidates:
                questions += [(place, each) for each in tensors]
                reaches.append(_reached(place, gradient, shape, tape.examples, like=tape.output))
        # One answer for all: every question by itself would wait for the device.
        repeated = iter(_repeats(questions, number, again).tolist() if questions else [])
        reached_examples = iter(torch.stack(reaches).tolist() if reaches else [])
        for use, key, candidates, held in asked:
            fitting = []
            for place in candidates:
                equal, differ = map(all, zip(*(next(repeated) for _ in range(held)), strict=True))
                sizes = next(reached_examples)
                hits = [size != 0 for size in sizes] if all(map(math.isfinite, sizes)) else [False] * len(sizes)
                if equal:
                    fitting.append((place, differ, hits))
            self._settle(use, key, fitting, tape.examples // 2)

    def _settle(self, use: Use, key: str, fitting: list[tuple[BatchAxis, bool, list[bool]]], middle: int) -> None:
        """Take the place that follows the examples and that only its own example's gradient reaches."""
        own = [place for place, _, hits in fitting if not any(hits[:middle]) and not any(hits[middle + 1 :])]
        if not own and any(differ and sum(hits) > 1 for _, differ, hits in fitting):
            raise ValueError(
                f"{key.split('/')[1]!r}: the network's output for one example depends on the other examples of its "
                "batch there, as with batch statistics in evaluation mode; expected examples to be independent."
            )
        if len(own) > 1:  # nothing tells the places apart, such as inputs that are all equal: be slow and right
            self.plan.generic.update(use.names)
        self.plan.axes[key] = own[0] if own else None

    def _watch(self, inputs: Inputs) -> dict[str, tuple[Tensor, ...]]:
        """What a forward pass shows of every use, by key."""
        recording = Recording(self._by_id, self.plan, count(inputs), watch=True)
        with recording:
            call(self.model, inputs)
        restore_buffers(self.model)
        return recording.seen

    @staticmethod
    def _gradients_of(tape: Tape, edges: list[Any], chosen: Tensor) -> tuple[Tensor | None, ...]:
        """Gradients of some examples' outputs alone (B,), at the given edges.

        Outputs are weighted at random: their plain sum has no gradient behind a softmax.
        """
        generator = torch.Generator("cpu").manual_seed(0)
        weight = torch.rand(tape.output.shape[1:], generator=generator, dtype=torch.float64, device="cpu") + 0.5
        cotangent = weight.to(tape.output) * chosen.reshape(-1, *[1] * (tape.output.dim() - 1))
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

    def _verify(self, tape: Tape) -> None:
        """Look again, in this very batch: a network that reorders its examples may do so in some batches only.

        Gradients of a random half of the examples must not reach the rows of the other half.
        """
        uses = [use for use in tape.uses if not use.lifts and self._known(use.key, use.shape, tape.examples)]
        uses = [use for use in uses if self.plan.axes[use.key] is not None and not set(use.names) & self.plan.generic]
        generator = torch.Generator("cpu").manual_seed(tape.examples)
        for _ in range(HALVES if uses else 0):
            half = torch.rand(tape.examples, generator=generator, device="cpu") < 0.5
            half[0] = not half[-1]  # never all or none
            chosen = half.to(tape.output.device)
            for use, gradient in zip(uses, self._gradients_of(tape, [use.edge for use in uses], chosen), strict=True):
                place = self.plan.axes[use.key]
                if gradient is None or place is None:
                    continue
                other = place.split(gradient.reshape(use.shape), tape.examples)[~chosen]
                if bool((other != 0).any()):
                    self.plan.generic.update(use.names)

    def _known(self, key: str, shape: tuple[int, ...], examples: int) -> bool:
        if key not in self.plan.axes:
            return False
        place = self.plan.axes[key]
        return place is None or place.fits(shape, examples)
