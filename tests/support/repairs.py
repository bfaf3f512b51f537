"""Misreadings of weights that were repaired, each of which can be put back: what finds mistakes is tried with them.

Every function puts back one of them, as near as today's code allows, and nothing else. The verification heals most of
them and says so; `unverified` takes it away, and numbers are wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from peewit.tracing import graph, tracer
from peewit.tracing.layers import contractions, elementwise, linear, weight_views
from peewit.tracing.layers.contract import Lift
from peewit.tracing.recording import HANDLERS, Recording, walk
from peewit.tracing.tape import Tape

Patch = pytest.MonkeyPatch


def unverified(patch: Patch) -> None:
    """Nothing that was learnt is compared with plain derivatives."""
    patch.setattr(tracer, "verify", lambda *_: None)


def ways_around_a_use(patch: Patch) -> None:
    """A weight that a gradient inside the forward pass applies once more counts as recorded."""

    def find_unrecorded(output: Tensor, recording: Recording) -> tuple[set[str], set[Any]]:
        above = set(walk([output.grad_fn], recording.aliases.__contains__))
        below = walk([lift.source.node for lift in recording.lifts], recording.aliases.__contains__)
        return graph.owners(above, recording.names) | graph.owners(below, recording.names), above

    patch.setattr(tracer, "find_unrecorded", find_unrecorded)


def weights_in_other_strides(patch: Patch) -> None:
    """A weight that is not contiguous has no rows, and so no Kronecker form."""
    own, matrix_layout = weight_views.WeightView.is_rows.fget, linear.matrix_layout
    patch.setattr(
        weight_views.WeightView, "is_rows", property(lambda view: view.parameter.is_contiguous() and own(view))
    )
    for module in (linear, contractions):
        patch.setattr(
            module,
            "matrix_layout",
            lambda view, *args: matrix_layout(view, *args) if view.parameter.is_contiguous() else None,
        )


def mapped_distances(patch: Patch) -> None:
    """Probes are mapped over gradients that `torch.vmap` has wrong."""
    patch.setattr(tracer, "MISMAPPED", ())


def _as_the_output(patch: Patch, turned: bool) -> None:
    """A tensor with as many numbers is taken for the output of the use that it comes from, its axes turned or not."""
    own = Tape._below

    def below(tape: Tape, lift: Lift, gradient: Tensor | None) -> list[Tensor | None]:
        last = lift.uses[0]
        turns = lift.source.node.name() in ("TBackward0", "TransposeBackward0", "PermuteBackward0")
        if gradient is None or turns != turned or math.prod(lift.small) != math.prod(last.shape):
            return own(tape, lift, gradient)
        (each,) = own(tape, replace(lift, uses=(replace(last, edge=lift.source),)), gradient)
        assert each is not None
        flat = each.reshape(-1, *last.shape).to(lift.dtype)
        made = tape.pull_back(last.edge, flat, [use.edge for use in lift.uses])
        return [
            None if value is None else tape._wide(value).reshape(*each.shape[:2], *use.shape)
            for value, use in zip(made, lift.uses, strict=True)
        ]

    patch.setattr(Tape, "_below", below)


def tables_changed_in_place(patch: Patch) -> None:
    """What happened to a table between its use and the examples is not looked at."""
    _as_the_output(patch, turned=False)


def tables_turned(patch: Patch) -> None:
    """The numbers of a table with its axes in another order are read as if they were in their own."""
    _as_the_output(patch, turned=True)


def _edge_of_the_result(patch: Patch, edge: Callable[[Tensor, Tensor], Any]) -> None:
    """A parameter added in place to a view of something computed is noted at the result."""
    own = Recording.show_result

    def show_result(recording: Recording, output: Tensor) -> None:
        whole = output._base
        if whole is not None and whole.grad_fn is not None:
            for use in recording.uses:
                if use.key in recording.fresh and use.rule is elementwise.ADD:
                    use.edge = edge(output, whole) or use.edge
        own(recording, output)

    patch.setattr(Recording, "show_result", show_result)


def sums_in_parts(patch: Patch) -> None:
    """Gradients are taken at a view of a part, which no output leads to: the network goes on with the whole."""

    def edge(view: Tensor, whole: Tensor) -> Any:
        return get_gradient_edge(view) if view.numel() < whole.numel() or not view.is_contiguous() else None

    _edge_of_the_result(patch, edge)


def sums_in_another_order(patch: Patch) -> None:
    """Gradients are taken at what the sum is a view of, whatever the order of its numbers."""

    def edge(view: Tensor, whole: Tensor) -> Any:
        return get_gradient_edge(whole) if view.numel() == whole.numel() and view.is_contiguous() else None

    _edge_of_the_result(patch, edge)


def places_in_memory(patch: Patch) -> None:
    """Numbers of an added or multiplied weight are placed as they lie in memory."""
    own = elementwise.ElementwiseRule.contributions

    def contributions(rule: Any, use: Any, inputs: Any, grad: Tensor) -> Iterator[Any]:
        for each in own(rule, use, inputs, grad):
            weight = use.views["weight"].parameter
            every = torch.arange(weight.numel(), device=weight.device)
            places = every.as_strided(weight.shape, weight.stride()).flatten()
            yield each._replace(value=torch.zeros_like(each.value).index_copy(2, places, each.value))

    patch.setattr(elementwise.ElementwiseRule, "contributions", contributions)


def complex_views(patch: Patch) -> None:
    """Real weights that are seen as complex numbers are taken for a view like any other."""
    own = weight_views.WeightView.of

    def of(name: str, tensor: Tensor, parameter: Tensor) -> weight_views.WeightView | None:
        if tensor.dtype == parameter.dtype:
            return own(name, tensor, parameter)
        steps = tuple(tensor.stride())
        return weight_views.WeightView(name=name, tensor=tensor, parameter=parameter, start=0, steps=steps)

    patch.setattr(weight_views.WeightView, "of", staticmethod(of))


class Product(elementwise.ElementwiseRule):
    """A multiplied parameter whose gradient is taken at the product, which may be complex."""

    def contributions(self, use: Any, inputs: Any, grad: Tensor) -> Iterator[Any]:
        """Of a real weight, in complex numbers."""
        return super().contributions(use, (), grad * inputs[0].to(grad.dtype))


def complex_products(patch: Patch) -> None:
    """Real gains of a spectrum have the products of its numbers and complex gradients."""
    own = HANDLERS[torch.mul]

    def multiply(recorder: Any, func: Any, args: Any, kwargs: Any) -> Any:
        view = recorder.resolve(args[1])
        if view is None or not args[0].is_complex():
            return own(recorder, func, args, kwargs)
        output = func(args[0], recorder.alias(args[1]))
        axes = elementwise.broadcast_axes(tuple(args[1].shape), tuple(output.shape))
        inputs = (args[0].expand(output.shape),)
        return recorder.record(Product("multiplied parameter"), output, {"weight": view}, inputs, axes)

    for function in (torch.mul, torch.Tensor.mul, torch.Tensor.__mul__):
        patch.setitem(HANDLERS, function, multiply)
