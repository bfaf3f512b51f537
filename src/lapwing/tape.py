"""A finished recording, and output gradients pulled back to every use of the selected weights."""

from __future__ import annotations

import itertools
import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from .batches import Inputs
from .jacobians import Explicit, Layout, Matrix, Term
from .layers.base import BatchAxis, Contribution, Part, Use, output_edge
from .layers.conv import ConvRule
from .layers.elementwise import align, reduce_to
from .layers.generic import generic_rows
from .layers.linear import BilinearRule, LinearRule
from .memory import Budget
from .outermost import Outermost, Piece, identity_cotangents
from .plan import Plan

WHOLE = BatchAxis(0, "whole")
AFFINE = (LinearRule, BilinearRule, ConvRule)  # each number of their output is one row of the weight at one position


@dataclass
class Tape:
    """A finished recording: the outputs, and everything needed to pull gradients back to the weights."""

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    inputs: Inputs
    examples: int
    output: Tensor  # (B, ...)
    uses: list[Use]
    generic: tuple[str, ...]
    plan: Plan
    budget: Budget
    dtype: torch.dtype  # of all products: float32 at least, since sums in half precision lose all small terms
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
        edges, own = self.edges(), self._own_edge()
        # What is the output itself has the cotangents for its gradients: nothing is passed backward to it.
        inner = [edge for edge in edges if not same_edge(edge, own)]
        pulled = iter(self._gradients(cotangents, inner))
        return [cotangents if same_edge(edge, own) else next(pulled) for edge in edges]

    def _own_edge(self) -> Any:
        """The gradient edge of the network's output, where its numbers are in the order of that edge's."""
        if not self.output.requires_grad:
            return None
        base = self.output._base
        plain = base is None or (base.is_contiguous() and self.output.is_contiguous())
        return output_edge(self.output) if plain else None

    def _gradients(self, cotangents: Tensor, edges: list[Any]) -> list[Tensor | None]:
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
                    if self.create_graph:
                        return list(
                            torch.autograd.grad(self.output, edges, cotangents, is_grads_batched=True, **options)
                        )
                    return self._at_once(edges, cotangents, options)
            except RuntimeError as error:
                if isinstance(error, torch.OutOfMemoryError):
                    raise
                self.plan.batched = False
        each = [torch.autograd.grad(self.output, edges, one, **options) for one in cotangents]
        if len(each) == 1:
            return [None if made is None else made.unsqueeze(0) for made in each[0]]
        return [None if made[0] is None else torch.stack(made) for made in zip(*each, strict=True)]

    def _at_once(self, edges: list[Any], cotangents: Tensor, options: dict[str, Any]) -> list[Tensor | None]:
        """All cotangents as one batch through every operation.

        Autograd's own `is_grads_batched` does so only for some, and goes through convolutions and norms one by one.
        """
        reached: list[bool] = []

        def back(cotangent: Tensor) -> tuple[Tensor, ...]:
            made = torch.autograd.grad(self.output, edges, cotangent, **options)
            reached[:] = [each is not None for each in made]
            return tuple(each for each in made if each is not None)

        found = iter(torch.vmap(back)(cotangents))
        return [next(found) if hit else None for hit in reached]

    def reached(self) -> set[str]:
        """Keys of the uses that the output depends on."""
        if not self.output.requires_grad:
            return set()
        gradients = iter(self.gradients(torch.ones_like(self.output)[None]))
        found = {use.key: [next(gradients) is not None for _ in self._edges_of(use)] for use in self.uses}
        return {key for key, hits in found.items() if any(hits)}

    @cached_property
    def outermost(self) -> Use | None:
        """The use whose output is the network's own, where its weights have no other use: its Jacobian is known."""
        own = self._own_edge()
        for use in self.uses:
            if use.lifts or not isinstance(use.rule, AFFINE) or not same_edge(use.edge, own):
                continue
            others = {name for each in self.uses if each is not use for name in each.names}
            axis = self._axis(use)
            leading = axis is not None and axis.axis == 0 and axis.fold != "minor"
            if len(set(use.names)) < len(use.names):  # weight and bias of one parameter: their Jacobians add up
                continue
            if leading and not others.intersection(use.names) and not set(self.generic).intersection(use.names):
                return use
        return None

    @property
    def closed(self) -> bool:
        """Whether all selected weights are in the outermost use."""
        return self.outermost is not None and len(self.uses) == 1 and not self.generic

    def pull_outputs(self) -> dict[Part, Piece]:
        """The Jacobian of every number of the outputs, per range of each weight."""
        use = self.outermost
        if use is None:
            return dict(self.pull(identity_cotangents(self.output)))
        made: dict[Part, Piece] = {}
        inputs, number = self._inputs(use), self.output[0].numel()
        shape = use.shape[1:] if use.shape[0] == self.examples else (use.shape[0] // self.examples, *use.shape[1:])
        # The rule is shown the outputs' numbers in place of gradients: they come out where the gradients would.
        numbers = torch.arange(number, device="cpu").reshape(1, 1, *shape)
        like = self.output.new_empty((), dtype=self.dtype)
        for part, term, layout in use.rule.contributions(use, inputs, numbers):
            assert isinstance(term, Term)
            made[part] = Outermost.of(term, layout, self.examples, like, self.budget)
        if not self.closed:
            rest = replace(self, uses=[each for each in self.uses if each is not use])
            made.update(rest.pull(identity_cotangents(self.output)))
        return made

    def pull(self, cotangents: Tensor) -> dict[Part, Matrix | Explicit]:
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
            made.update(merge(name, contributions, self._size(name), self.budget, self.create_graph))
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
                made[Part(name, 0, value.shape[-1])] = Explicit(value.to(self.dtype), self.budget)
                self.plan.used[name] = {"generic"}
        return made

    def pairs(self) -> dict[Part, Part]:
        """Weights with the bias that is applied in exactly the same calls: they can form one block."""
        partners: dict[Part, set[tuple[Part, bool] | None]] = {}  # with whether the weight is the transpose
        for use in self.uses:
            if not use.rule.matrix:
                continue
            weight, bias = use.refs.get("weight"), use.refs.get("bias")
            parts = [None if ref is None else ref.part for ref in (weight, bias)]
            turned = weight is not None and weight.transposed
            for own, other in (parts, parts[::-1]):
                if own is not None:
                    partners.setdefault(own, set()).add(None if other is None else (other, turned))
        weights = {use.refs["weight"].part for use in self.uses if "weight" in use.refs}
        made: dict[Part, Part] = {}
        for part in weights:
            (found,) = partners[part] if len(partners.get(part, ())) == 1 else (None,)
            if found is not None and partners[found[0]] == {(part, found[1])}:
                made[part] = found[0]
        return made

    def _wide(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype) if tensor.is_floating_point() else tensor

    def _size(self, name: str) -> int:
        return self.parameters[name].numel()

    def _axis(self, use: Use) -> BatchAxis | None:
        return WHOLE if self.examples == 1 else self.plan.axes[use.key]

    def _inputs(self, use: Use) -> tuple[Tensor, ...]:
        """The use's inputs with the examples in front, made once."""
        if "inputs" not in use.cache:
            axis = self._axis(use)
            with torch.set_grad_enabled(self.create_graph):
                given = use.inputs if self.create_graph else tuple(each.detach() for each in use.inputs)
                prepared = tuple(self._wide(each) for each in use.rule.prepare(use, given))
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
            gradient = self._wide(gradient)
            return axis.split(gradient.reshape(gradient.shape[0], *use.shape), self.examples, 1)
        total: Tensor | None = None
        for lift, gradient in zip(use.lifts, pulled, strict=True):
            if gradient is None:
                continue
            axis = WHOLE if self.examples == 1 else self.plan.axes[lift.key]
            assert axis is not None
            gradient = self._wide(gradient)
            gradient = axis.split(gradient.reshape(gradient.shape[0], *lift.shape), self.examples, 1)
            aligned = align(use.shape, len(lift.shape))
            if axis.fold == "none":
                aligned = aligned[: axis.axis] + aligned[axis.axis + 1 :]
            gradient = reduce_to(gradient, aligned, 2).reshape(gradient.shape[0], self.examples, *use.shape)
            total = gradient if total is None else total + gradient
        assert total is not None
        return total


def same_edge(edge: Any, other: Any) -> bool:
    """Whether two gradient edges are one."""
    return other is not None and edge.node is other.node and edge.output_nr == other.output_nr


def cut(contributions: list[Contribution]) -> list[Contribution]:
    """Overlapping ranges of rows, cut where any of them begins or ends: a packed weight used whole and in slices."""
    parts = {contribution.part for contribution in contributions}
    bounds = sorted({bound for part in parts for bound in (part.start, part.stop)})
    if len(parts) == 1 or len(bounds) == 2:
        return contributions
    made = []
    for part, value, layout in contributions:
        _, rows, width = layout.matrix
        inside = [bound for bound in bounds if part.start <= bound <= part.stop]
        plain = isinstance(value, Term) and not value.flipped and layout == Layout.plain(1, rows, width)
        if not isinstance(value, Term) or not plain or any((bound - part.start) % width for bound in inside):
            return contributions
        for start, stop in itertools.pairwise(inside):
            chosen = slice((start - part.start) // width, (stop - part.start) // width)
            own = replace(value, grad=value.grad[..., chosen])
            made.append(
                Contribution(Part(part.name, start, stop), own, Layout.plain(1, (stop - start) // width, width))
            )
    return made


def merge(
    name: str, contributions: list[Contribution], size: int, budget: Budget, graph: bool = False
) -> dict[Part, Matrix | Explicit]:
    """Put the uses of one weight together: positions of all uses are summed; unlike kinds become explicit rows."""
    contributions = cut(contributions)
    parts = sorted({contribution.part for contribution in contributions})
    apart = all(first.stop <= second.start for first, second in itertools.pairwise(parts))
    made: dict[Part, Matrix | Explicit] = {}
    factored = all(isinstance(contribution.value, Term) for contribution in contributions)
    same = all(len({c.layout for c in contributions if c.part == part}) == 1 for part in parts)
    if apart and factored and same:
        for part in parts:
            own = [contribution for contribution in contributions if contribution.part == part]
            terms = tuple(contribution.value for contribution in own if isinstance(contribution.value, Term))
            made[part] = Matrix(terms, own[0].layout, budget, graph)
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
