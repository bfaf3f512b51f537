"""A finished recording, and output gradients pulled back to every use of the selected weights."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..jacobians.explicit import Explicit
from ..jacobians.factored import Matrix, Term
from ..jacobians.layout import Layout
from ..jacobians.output_layer import OutputLayerJacobian, Piece, identity_probes
from ..messages.warnings import Silence
from ..network.nests import Inputs
from ..runtime.memory import Budget
from ..weights.ranges import WeightRange
from .generic import generic_rows
from .knowledge import KnowledgeLearner, Signature, signature
from .layers.contract import Contribution, Lift, Use, is_reshaped, output_edge
from .layers.conv.rule import ConvRule
from .layers.elementwise import pad_shape, sum_broadcast
from .layers.examples import BatchAxis, OwnedRows
from .layers.linear import BilinearRule, LinearRule

WHOLE = BatchAxis(0, "whole")
# An operation without a batching rule is looped over inside torch: slower, and the same numbers. And autograd's own
# thread meets the GPU for the first time here; torch sets it up and says so.
SILENCE = Silence("There is a performance drop", "Attempting to run cu")
AFFINE = (LinearRule, BilinearRule, ConvRule)  # each number of their output is one row of the weight at one position


@dataclass(kw_only=True)
class Tape:
    """A finished recording: the outputs, and everything needed to pull gradients back to the weights."""

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    inputs: Inputs
    examples: int
    output: Tensor  # (B, ...)
    uses: list[Use]
    lifts: list[Lift]
    generic: tuple[str, ...]
    learner: KnowledgeLearner
    budget: Budget
    dtype: torch.dtype  # of all products: float32 at least, since sums in half precision lose all small terms
    create_graph: bool = False
    owned: dict[str, OwnedRows] = field(default_factory=dict)  # by key: uses whose rows are this or that example's

    @property
    def direct(self) -> list[Use]:
        """Uses whose outputs have examples."""
        return [use for use in self.uses if not use.lifted]

    @cached_property
    def signature(self) -> Signature:
        """The signature of the inputs."""
        return signature(self.inputs)

    def numbers_per_probe(self) -> int:
        """Numbers that one pulled-back probe makes over all uses."""
        shapes = [*(lift.shape for lift in self.lifts), *(use.shape for use in self.direct)]
        return sum(torch.Size(shape).numel() for shape in shapes) + self.output.numel()

    def gradients(self, probes: Tensor) -> dict[str, Tensor]:
        """(K, B, ...) probes -> (K, B, ...) gradients of the outputs of uses that matter, by key."""
        direct = self.direct
        edges, final_edge = [*(use.edge for use in direct), *(lift.edge for lift in self.lifts)], self._own_edge()
        # What is the output itself has the probes for its gradients: nothing is passed backward to it.
        inner = [edge for edge in edges if not same_edge(edge, final_edge)]
        pulled = iter(self.pull_back(self.output, probes, inner))
        gradients = iter([probes if same_edge(edge, final_edge) else next(pulled) for edge in edges])
        by_key: dict[str, Tensor] = {}
        for use, gradient in zip(direct, gradients, strict=False):
            if gradient is not None:
                by_key[use.key] = self._split(gradient, use.key, use.shape)
        for lift, gradient in zip(self.lifts, gradients, strict=True):
            for use, value in zip(lift.uses, self._below(lift, gradient), strict=True):
                if value is not None:
                    by_key[use.key] = by_key[use.key] + value if use.key in by_key else value
        return by_key

    def _split(self, gradient: Tensor, key: str, shape: tuple[int, ...]) -> Tensor:
        """(K, ...) -> (K, B, ...)."""
        axis = self.axis(key)
        assert axis is not None
        return axis.split(self._wide(gradient).reshape(gradient.shape[0], *shape), self.examples, 1)

    def _below(self, lift: Lift, gradient: Tensor | None) -> list[Tensor | None]:
        """Gradients (K, B, ...) of the uses below a tensor that was broadcast to the examples."""
        if gradient is None:
            return [None] * len(lift.uses)
        lifted = self._split(gradient, lift.key, lift.shape)
        aligned, axis = pad_shape(lift.small, len(lift.shape)), self.axis(lift.key)
        if axis is not None and axis.fold == "none":
            aligned = aligned[: axis.axis] + aligned[axis.axis + 1 :]
        lifted = sum_broadcast(lifted, aligned, 2).reshape(*lifted.shape[:2], *lift.small)
        if all(same_edge(use.edge, lift.source) for use in lift.uses):
            return [lifted]
        probes = lifted.to(lift.dtype).flatten(0, 1)
        gradients = self.pull_back(lift.source, probes, [use.edge for use in lift.uses])
        return [
            None if value is None else self._wide(value).reshape(*lifted.shape[:2], *use.shape)
            for value, use in zip(gradients, lift.uses, strict=True)
        ]

    def _own_edge(self) -> Any:
        """The gradient edge of the network's output, where its numbers are in the order of that edge's."""
        if not self.output.requires_grad:
            return None
        return output_edge(self.output) if self.output._base is None or is_reshaped(self.output) else None

    def pull_back(self, source: Any, probes: Tensor, edges: list[Any]) -> list[Tensor | None]:
        """(K, ...) probes of a tensor or edge -> one (K, ...) gradient per edge, None where it does not matter."""
        if not edges:
            return []
        if probes.shape[0] == 1:
            return [
                None if gradient is None else gradient.unsqueeze(0) for gradient in self._grad(source, probes[0], edges)
            ]
        if self.learner.knowledge.batched:
            try:
                with SILENCE.hold():
                    if self.create_graph:
                        return list(self._grad(source, probes, edges, is_grads_batched=True))
                    return self._map_probes(source, probes, edges)
            except RuntimeError as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                self.learner.learn(batched=False)
        by_probe = [self._grad(source, one, edges) for one in probes]
        return [
            None if gradients[0] is None else torch.stack([one for one in gradients if one is not None])
            for gradients in zip(*by_probe, strict=True)
        ]

    def _grad(self, source: Any, probe: Tensor, edges: list[Any], **options: Any) -> tuple[Tensor | None, ...]:
        return torch.autograd.grad(
            source, edges, probe, retain_graph=True, create_graph=self.create_graph, allow_unused=True, **options
        )

    def _map_probes(self, source: Any, probes: Tensor, edges: list[Any]) -> list[Tensor | None]:
        """All probes as one batch through every operation.

        Autograd's own `is_grads_batched` does so only for some, and goes through convolutions and norms one by one.
        """
        reached: list[bool] = []

        def back(probe: Tensor) -> tuple[Tensor, ...]:
            gradients = self._grad(source, probe, edges)
            reached[:] = [each is not None for each in gradients]
            return tuple(each for each in gradients if each is not None)

        gradients = iter(torch.vmap(back)(probes))
        return [next(gradients) if hit else None for hit in reached]

    def reached_uses(self) -> set[str]:
        """Keys of the uses that the output depends on."""
        return set(self.gradients(torch.ones_like(self.output)[None])) if self.output.requires_grad else set()

    @cached_property
    def reached_generic(self) -> tuple[str, ...]:
        """Weights with the generic rule that the output depends on; behind `detach()` they are as unused as others.

        Those that were used in an earlier batch are not asked about again.
        """
        names = [name for name in self.generic if name not in self.learner.knowledge.used]
        if not names or not self.output.requires_grad:
            return tuple(name for name in self.generic if name not in names)
        parameters, ones = [self.parameters[name] for name in names], torch.ones_like(self.output)
        gradients = torch.autograd.grad(self.output, parameters, ones, retain_graph=True, allow_unused=True)
        none = {name for name, gradient in zip(names, gradients, strict=True) if gradient is None}
        return tuple(name for name in self.generic if name not in none)

    @cached_property
    def outermost(self) -> Use | None:
        """The use whose output is the network's own, where its weights have no other use: its Jacobian is known."""
        final_edge = self._own_edge()
        for use in self.uses:
            if use.lifted or not isinstance(use.rule, AFFINE) or not same_edge(use.edge, final_edge):
                continue
            others = {name for each in self.uses if each is not use for name in each.names}
            axis = self.axis(use.key)
            leading = axis is not None and axis.axis == 0 and axis.fold not in ("minor", "owned")
            if len(set(use.names)) < len(use.names):  # weight and bias of one parameter: their Jacobians add up
                continue
            if leading and not others.intersection(use.names) and not set(self.generic).intersection(use.names):
                return use
        return None

    @property
    def closed(self) -> bool:
        """Whether all selected weights are in the outermost use."""
        return self.outermost is not None and len(self.uses) == 1 and not self.generic

    def pull_outputs(self) -> dict[WeightRange, Piece]:
        """The Jacobian of every number of the outputs, per range of each weight."""
        use = self.outermost
        if use is None:
            return dict(self.pull(identity_probes(self.output)))
        jacobians: dict[WeightRange, Piece] = {}
        inputs, number = self._inputs(use), self.output[0].numel()
        shape = use.shape  # of one example
        if self.examples > 1:
            rows = use.shape[0] // self.examples
            shape = use.shape[1:] if rows == 1 else (rows, *use.shape[1:])
        # The rule is shown the outputs' numbers in place of gradients: they come out where the gradients would.
        numbers = torch.arange(number, device="cpu").reshape(1, 1, *shape)
        like = self.output.new_empty((), dtype=self.dtype)
        for part, term, layout in use.rule.contributions(use, inputs, numbers):
            assert isinstance(term, Term)
            jacobians[part] = OutputLayerJacobian.of(term, layout, self.examples, like, self.budget)
        if not self.closed:
            rest = replace(self, uses=[each for each in self.uses if each is not use])
            jacobians.update(rest.pull(identity_probes(self.output)))
        return jacobians

    def pull(self, probes: Tensor) -> dict[WeightRange, Matrix | Explicit]:
        """(K, B, ...) probes -> the Jacobian rows `probe^T df/dweight`, per range of each weight."""
        contributions_by_name: dict[str, list[Contribution]] = {}
        rules: dict[str, set[str]] = {}
        gradients = self.gradients(probes)
        for use in self.uses:
            if use.key not in gradients:
                continue
            for contribution in use.rule.contributions(use, self._inputs(use), gradients[use.key]):
                if use.key in self.owned and isinstance(contribution.value, Term):
                    contribution = contribution._replace(value=self.owned[use.key].mask(contribution.value))
                contributions_by_name.setdefault(contribution.part.name, []).append(contribution)
                rules.setdefault(contribution.part.name, set()).add(use.rule.name)
        self.learner.note_rules(rules)
        jacobians: dict[WeightRange, Matrix | Explicit] = {}
        for name, contributions in contributions_by_name.items():
            jacobians.update(merge(name, contributions, self._size(name), self.budget, self.create_graph))
        if self.reached_generic:
            rows = generic_rows(
                self.model, self.inputs, self.reached_generic, probes, self.budget, self.learner, self.create_graph
            )
            self.learner.note_generic_rules(rows)
            for name, value in rows.items():
                jacobians[WeightRange(name, 0, value.shape[-1])] = Explicit(value.to(self.dtype), self.budget)
        return jacobians

    def pairs(self) -> dict[WeightRange, WeightRange]:
        """Weights with the bias that is applied in exactly the same calls: they can form one block."""
        # With whether the weight is the transpose.
        partners: dict[WeightRange, set[tuple[WeightRange, bool] | None]] = {}
        for use in self.uses:
            if not use.rule.matrix:
                continue
            weight, bias = use.views.get("weight"), use.views.get("bias")
            parts = [None if view is None else view.part for view in (weight, bias)]
            turned = weight is not None and weight.transposed
            for member, other in (parts, parts[::-1]):
                if member is not None:
                    partners.setdefault(member, set()).add(None if other is None else (other, turned))
        weights = {use.views["weight"].part for use in self.uses if "weight" in use.views}
        pairs: dict[WeightRange, WeightRange] = {}
        for part in weights:
            (partner,) = partners[part] if len(partners.get(part, ())) == 1 else (None,)
            if partner is not None and partners[partner[0]] == {(part, partner[1])}:
                pairs[part] = partner[0]
        return pairs

    def _wide(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def _size(self, name: str) -> int:
        return self.parameters[name].numel()

    def axis(self, key: str) -> BatchAxis | OwnedRows | None:
        """Where the examples are in a use's output, or in what was broadcast."""
        if key in self.owned:
            return self.owned[key]
        return WHOLE if self.examples == 1 else self.learner.knowledge.axis(key, self.signature)

    def _inputs(self, use: Use) -> tuple[Tensor, ...]:
        """The use's inputs with the examples in front, made once."""
        if "inputs" not in use.cache:
            axis = self.axis(use.key)
            with torch.set_grad_enabled(self.create_graph):
                inputs = use.inputs if self.create_graph else tuple(each.detach() for each in use.inputs)
                prepared = tuple(self._wide(each) for each in use.rule.prepare(use, inputs))
            if axis is None:
                use.cache["inputs"] = tuple(each.expand(self.examples, *each.shape) for each in prepared)
            else:
                use.cache["inputs"] = tuple(axis.split(each, self.examples) for each in prepared)
            use.cache["axis"] = axis.axis if axis is not None and axis.fold == "none" else None
        cached: tuple[Tensor, ...] = use.cache["inputs"]
        return cached


def same_edge(edge: Any, other: Any) -> bool:
    """Whether two gradient edges are one."""
    return other is not None and edge.node is other.node and edge.output_nr == other.output_nr


def cut(contributions: list[Contribution]) -> list[Contribution]:
    """Overlapping ranges of rows, cut where any of them begins or ends: a packed weight used whole and in slices."""
    parts = {contribution.part for contribution in contributions}
    bounds = sorted({bound for part in parts for bound in (part.start, part.stop)})
    if len(parts) == 1:
        return contributions
    pieces = []
    for part, value, layout in contributions:
        _, rows, width = layout.matrix
        inside = [bound for bound in bounds if part.start <= bound <= part.stop]
        plain = isinstance(value, Term) and not value.flipped and layout == Layout.plain(1, rows, width)
        if not isinstance(value, Term) or not plain or any((bound - part.start) % width for bound in inside):
            return contributions
        for start, stop in itertools.pairwise(inside):
            chosen = slice((start - part.start) // width, (stop - part.start) // width)
            term = replace(value, grad=value.grad[..., chosen])
            pieces.append(
                Contribution(WeightRange(part.name, start, stop), term, Layout.plain(1, (stop - start) // width, width))
            )
    return pieces


def merge(
    name: str, contributions: list[Contribution], size: int, budget: Budget, graph: bool = False
) -> dict[WeightRange, Matrix | Explicit]:
    """Put the uses of one weight together: positions of all uses are summed; unlike kinds become explicit rows."""
    contributions = cut(contributions)
    parts = sorted({contribution.part for contribution in contributions})
    apart = all(first.stop <= second.start for first, second in itertools.pairwise(parts))
    jacobians: dict[WeightRange, Matrix | Explicit] = {}
    factored = all(isinstance(contribution.value, Term) for contribution in contributions)
    same = all(len({c.layout for c in contributions if c.part == part}) == 1 for part in parts)
    if apart and factored and same:
        for part in parts:
            uses = [contribution for contribution in contributions if contribution.part == part]
            terms = tuple(contribution.value for contribution in uses if isinstance(contribution.value, Term))
            jacobians[part] = Matrix(terms, uses[0].layout, budget, graph)
        return jacobians
    total: Tensor | None = None
    for part, value, layout in contributions:
        if isinstance(value, Term):
            value = Matrix((value,), layout, budget).rows(slice(0, value.grad.shape[1]))
        if part.stop - part.start != size:
            value = torch.nn.functional.pad(value, (part.start, size - part.stop))
        total = value if total is None else total + value
    assert total is not None
    return {WeightRange(name, 0, size): Explicit(total, budget)}
