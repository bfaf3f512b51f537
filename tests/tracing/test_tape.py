"""Pulling back: shares of one weight, the outermost layer, and what every pass starts from."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

import reference_dense as dense
from environment import DEVICE
from jacobian_cases import EXAMPLES, PROBES, normal, places, term_of, written_out
from networks import parameter
from peewit.jacobians.explicit import Explicit
from peewit.jacobians.factored import Matrix, Term
from peewit.jacobians.layout import Layout
from peewit.jacobians.output_layer import OutputLayerJacobian
from peewit.network.isolation import isolated
from peewit.runtime.memory import Budget
from peewit.tracing.knowledge import KnowledgeLearner
from peewit.tracing.layers.contract import Contribution
from peewit.tracing.layers.examples import BatchAxis
from peewit.tracing.tape import merge
from peewit.weights.ranges import WeightRange
from peewit.weights.space import make_space
from tracing_parts import jacobian_of, network, push_of, rows_at, tracer_of

close = torch.testing.assert_close


def test_jacobians_of_another_form() -> None:
    """Weights whose ranges overlap earlier ones without being the same, or are held otherwise, become generic."""
    learner = KnowledgeLearner()
    assert learner.note_forms(rows_at((0, 4), (4, 8))) == [] and learner.note_forms(rows_at((4, 8), (8, 12))) == []
    assert learner.knowledge.forms == {
        "weight": {(0, 4): "Explicit (1, 4, 1)", (4, 8): "Explicit (1, 4, 1)", (8, 12): "Explicit (1, 4, 1)"}
    }
    for spans in (((0, 8),), ((3, 5),), ((5, 7),), ((0, 3),), ((11, 13),), ((0, 4), (2, 6))):
        other = KnowledgeLearner(learner.knowledge)
        assert other.note_forms(rows_at(*spans) | rows_at((0, 2), name="bias")) == ["weight"]
        assert other.knowledge.generic == {"weight"} and set(other.knowledge.forms) == {"bias"}
    matrix = Matrix((), Layout.plain(1, 4, 1), Budget(1))
    assert learner.note_forms({WeightRange("weight", 12, 16): matrix}) == []
    assert learner.note_forms({WeightRange("weight", 0, 4): matrix}) == ["weight"]


def piece(start: int, rows: int, width: int = 4, **kind: Any) -> Contribution:
    """One use's share in rows of a weight (6, 4), from an element on."""
    layout = kind.pop("layout", None) or Layout.plain(1, rows, width)
    seed = kind.pop("seed", start)
    value: Any = term_of(layout, 2, seed, **kind)
    if kind.get("explicit"):
        value = normal(PROBES, EXAMPLES, rows * width, seed=seed)
    return Contribution(WeightRange("weight", start, start + rows * width), value, layout)


TURNED_LAYOUT = Layout((4, 6), (1, 0), (1, 6, 4))


# Shares in a weight of 24 numbers, and the ranges that are kept apart; rows of all of it where there are none.
SHARES: dict[str, tuple[list[Contribution], list[tuple[int, int]]]] = {
    "one": ([piece(0, 6)], [(0, 24)]),
    "twice": ([piece(0, 6), piece(0, 6, seed=9)], [(0, 24)]),
    "part of it": ([piece(8, 2)], [(8, 16)]),
    "side by side": ([piece(0, 2), piece(8, 4)], [(0, 8), (8, 24)]),
    "with a gap": ([piece(16, 2), piece(0, 2)], [(0, 8), (16, 24)]),
    "whole and first rows": ([piece(0, 6), piece(0, 2, seed=9)], [(0, 8), (8, 24)]),
    "whole and middle rows": ([piece(8, 2), piece(0, 6, seed=9)], [(0, 8), (8, 16), (16, 24)]),
    "overlapping": ([piece(0, 4), piece(8, 4)], [(0, 8), (8, 16), (16, 24)]),
    "not whole rows": ([piece(0, 6), piece(2, 2)], []),
    "other rows": ([piece(0, 6), piece(0, 4, 2)], []),
    "whole, and turned in part": ([piece(0, 6), piece(0, 2, flipped=True)], []),
    "turned layout in part": ([piece(0, 6, layout=TURNED_LAYOUT), piece(0, 2, seed=9)], []),
    "two layouts": ([piece(0, 6), piece(0, 6, layout=TURNED_LAYOUT, seed=9)], []),
    "rows made": ([piece(0, 6, explicit=True)], []),
    "rows made of some": ([piece(4, 3, explicit=True)], []),
    "rows and a product": ([piece(0, 6), piece(0, 6, explicit=True, seed=9)], []),
    "rows of some and a product": ([piece(0, 6), piece(8, 2, explicit=True)], []),
    "both ways": ([piece(0, 6), piece(0, 6, flipped=True, seed=9)], [(0, 24)]),
}


@pytest.mark.parametrize("kind", SHARES)
def test_shares_of_one_weight_add_up(kind: str) -> None:
    """Factored where ranges are the same or can be cut at whole rows; as rows of all the weight otherwise."""
    shares, expected = SHARES[kind]
    whole = torch.zeros(PROBES, EXAMPLES, 24, dtype=torch.float64, device=DEVICE)
    for part, value, layout in shares:
        if isinstance(value, Term):
            rows = torch.empty(PROBES, EXAMPLES, part.stop - part.start, dtype=torch.float64, device=DEVICE)
            rows[..., places(layout).flatten()] = written_out((value,)).flatten(2).transpose(0, 1)
        else:
            rows = value
        whole[..., part.start : part.stop] += rows
    made = merge("weight", shares, 24, Budget(1 << 20))
    assert [part[1:] for part in made] == (expected or [(0, 24)])
    found = torch.zeros_like(whole)
    for part, jacobian in made.items():
        assert isinstance(jacobian, Matrix if expected else Explicit) and part.name == "weight"
        found[..., part.start : part.stop] += jacobian.rows(slice(0, EXAMPLES))
        assert not isinstance(jacobian, Matrix) or not jacobian.graph
    close(found, whole)
    for jacobian in merge("weight", shares, 24, Budget(1 << 20), graph=True).values():
        assert not isinstance(jacobian, Matrix) or jacobian.graph


class Unheeded(nn.Module):
    """A table that is added to what examples have, and of which the output takes nothing."""

    def __init__(self, heeded: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.table, self.heeded = nn.Linear(4, 10), nn.Embedding(5, 2), heeded

    def forward(self, x: Tensor) -> Tensor:
        """(B, 4) -> (B, 10)."""
        hidden = self.layer(x).view(-1, 5, 2)
        table = self.table(torch.arange(5, device=x.device))
        first, second = (hidden + table).tanh(), (hidden.sin() + table.sin()).cos()
        return (first if self.heeded else hidden.tanh()).flatten(1) + 0 * second.detach().flatten(1)


@pytest.mark.parametrize("heeded", [True, False])
def test_sums_that_the_output_does_not_take(heeded: bool) -> None:
    """Have no share in the Jacobian; others of the same table have theirs."""
    model, x = Unheeded(heeded).double().to(DEVICE), normal(6, 4)
    tape = tracer_of(model).trace(x)
    assert tape.lifts and not tape.generic
    close(jacobian_of(tape).cpu(), dense.jacobian(model.cpu(), x.cpu(), list(tape.parameters)))
    expected = {"layer.weight", "table.weight"} if heeded else {"layer.weight"}
    assert {name for use in tape.uses if use.key in tape.reached_uses() for name in use.names} == {
        *expected,
        "layer.bias",
    }


def tied(net: Any, x: Tensor) -> Tensor:
    return net.a(nn.functional.linear(x, net.a.weight).tanh())


# Networks on four numbers; the outermost layer, if any; whether it is all of them; weights with their biases.
OUTER: dict[str, tuple[Callable[[], nn.Module], str | None, bool, list[tuple[str, str]]]] = {
    "one layer": (lambda: network(lambda net, x: net.a(x), a=nn.Linear(4, 4)), "a", True, [("a.weight", "a.bias")]),
    "without a bias": (lambda: network(lambda net, x: net.a(x), a=nn.Linear(4, 4, bias=False)), "a", True, []),
    "two layers": (
        lambda: network(lambda net, x: net.b(net.a(x).tanh()), a=nn.Linear(4, 4), b=nn.Linear(4, 4)),
        "b",
        False,
        [("a.weight", "a.bias"), ("b.weight", "b.bias")],
    ),
    "a step at the end": (
        lambda: network(lambda net, x: net.a(x).tanh(), a=nn.Linear(4, 4)),
        None,
        False,
        [("a.weight", "a.bias")],
    ),
    "seen otherwise": (
        lambda: network(lambda net, x: net.a(x).reshape(len(x), -1, 2), a=nn.Linear(4, 4)),
        "a",
        True,
        [("a.weight", "a.bias")],
    ),
    "positions as rows": (
        lambda: network(lambda net, x: net.a(x.reshape(-1, 4)).reshape(len(x), -1), a=nn.Linear(4, 4)),
        "a",
        True,
        [("a.weight", "a.bias")],
    ),
    "a vector": (
        lambda: network(lambda net, x: x.reshape(len(x), -1, 2) @ net.a.weight[0], a=nn.Linear(2, 1, bias=False)),
        "a",
        True,
        [],
    ),
    "from the left": (
        lambda: network(lambda net, x: net.a.weight @ x.reshape(len(x), 4, -1), a=nn.Linear(4, 3, bias=False)),
        "a",
        True,
        [],
    ),
    "a convolution": (
        lambda: network(lambda net, x: net.a(x.reshape(len(x), 1, -1)), a=nn.Conv1d(1, 2, 2)),
        "a",
        True,
        [("a.weight", "a.bias")],
    ),
    "turned": (
        lambda: network(lambda net, x: net.a(x).reshape(len(x), -1, 2).mT, a=nn.Linear(4, 4)),
        None,
        False,
        [("a.weight", "a.bias")],
    ),
    "one weight twice": (lambda: network(tied, a=nn.Linear(4, 4)), None, False, []),
    "one bias for two": (
        lambda: network(
            lambda net, x: nn.functional.linear(nn.functional.linear(x, net.v, net.c).tanh(), net.w, net.c),
            v=parameter(4, 4),
            w=parameter(4, 4),
            c=parameter(4),
        ),
        None,
        False,
        [],
    ),
    "two biases for one": (
        lambda: network(
            lambda net, x: nn.functional.linear(nn.functional.linear(x, net.v, net.b).tanh(), net.v, net.c),
            v=parameter(4, 4),
            b=parameter(4),
            c=parameter(4),
        ),
        None,
        False,
        [],
    ),
    "weights that no rule knows beside": (
        lambda: network(lambda net, x: net.a(x + net.p.cumsum(0).sin().sum()), a=nn.Linear(4, 4), p=parameter(3)),
        "a",
        False,
        [("a.weight", "a.bias")],
    ),
    "a bias that is also met otherwise": (
        lambda: network(lambda net, x: net.a(x + net.a.bias.cumsum(0).sin().sum()), a=nn.Linear(4, 4)),
        "a",
        False,
        [],
    ),
}


@pytest.mark.parametrize("shape", [(5, 4), (5, 3, 4), (1, 4), (1, 3, 4), (2, 4), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("kind", OUTER)
def test_the_layer_whose_output_is_the_networks(kind: str, shape: tuple[int, ...]) -> None:
    """Its Jacobian is known; those of others are pulled back beside it."""
    make, outer, closed, pairs = OUTER[kind]
    model, x = make(), normal(*shape)
    tape = tracer_of(model).trace(x)
    used = tape.outermost
    assert (None if used is None else used.views["weight"].name) == (None if outer is None else f"{outer}.weight")
    assert tape.closed is closed
    assert sorted((weight.name, bias.name) for weight, bias in tape.pairs().items()) == pairs
    expected = dense.jacobian(copy.deepcopy(model).cpu(), x.cpu(), list(tape.parameters)).to(DEVICE)
    starts = {name: place.start for name, place in make_space(model, tape.parameters).slices().items()}
    found = torch.zeros_like(expected)
    for part, jacobian in tape.pull_outputs().items():
        assert isinstance(jacobian, OutputLayerJacobian) is (used is not None and part.name in used.names)
        rows = jacobian.rows(slice(0, len(x))).transpose(0, 1)
        found[..., starts[part.name] + part.start : starts[part.name] + part.stop] += rows
    close(found, expected)
    close(jacobian_of(tape), expected)


def test_rows_of_a_layer_in_half_precision() -> None:
    """They are those of the inputs, in float32, where sums of many of them are."""
    model, x = nn.Linear(4, 3).to(DEVICE, torch.bfloat16), normal(5, 4).bfloat16()
    rows = {part.name: each.rows(slice(0, 5)) for part, each in tracer_of(model).trace(x).pull_outputs().items()}
    eye = torch.eye(3, device=DEVICE)
    close(rows["weight"], torch.einsum("ko,bi->kboi", eye, x.float()).flatten(2))
    close(rows["bias"], eye[:, None].expand(3, 5, 3))


class Itemised(torch.autograd.Function):
    """The identity, whose gradient looks at a number: it cannot be mapped over."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """As it is."""
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Likewise."""
        return gradients[0] * (2 if gradients[0].flatten()[0].item() > 1e9 else 1)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("batched", [True, False, "not at all"])
def test_probes_pulled_back(batched: Any, count: int, graph: bool) -> None:
    """At once or one by one, with a graph or without; None for what does not matter."""
    model, x = nn.Linear(3, 2).double().to(DEVICE), normal(4, 3).requires_grad_()
    tracer = tracer_of(model, graph=graph)
    tape = tracer.trace(x)
    tape.learner.learn(batched=bool(batched))
    other = nn.Linear(1, 1).to(DEVICE)
    hidden = model(x)
    made = (Itemised.apply(hidden) if batched == "not at all" else hidden.clone()) * 2
    probes = normal(count, 4, 2, seed=5)
    edges = [get_gradient_edge(each) for each in (model.weight, other.weight, hidden)]
    weight, unused, inside = tape.pull_back(made, probes, edges)
    assert unused is None and weight is not None and inside is not None
    close(weight, 2 * torch.einsum("kbo,bi->koi", probes, x))
    close(inside, 2 * probes)
    assert weight.requires_grad is graph
    assert tape.learner.knowledge.batched is (batched is True or (batched == "not at all" and count == 1))
    assert tape.pull_back(made, probes, []) == []


class Numbered(nn.Module):
    """A network that counts its passes in a buffer, and adds the count to its outputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)
        self.count: Tensor
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 2)."""
        with torch.no_grad():
            self.count += 1
        return self.layer(x) + self.count.clone()


def test_every_pass_starts_from_the_same_network() -> None:
    """Whichever pass it is, and also where it fails: what it changed is put back before the next."""
    model, x = Numbered().double().to(DEVICE), normal(4, 3)
    tracer, push = tracer_of(model), push_of(model)
    vectors = normal(2, 8)
    with isolated(model, list(model.parameters())):
        for step in (
            lambda: tracer.trace(x),
            lambda: tracer.watch(x),
            lambda: push._pull(x),
            lambda: push._by(0, x, vectors, None),
            lambda: push._by(2, x, vectors, None),
        ):
            step()
            assert float(model.count) == 0
        with pytest.raises(RuntimeError):
            tracer.trace(x[:, :2])
        assert float(model.count) == 0


@pytest.mark.parametrize("finite", [0, 1])
def test_gradients_that_are_not_finite_say_nothing(finite: int) -> None:
    """About which example they reach: where the examples are is told by the rows alone."""
    model = network(lambda net, x: net.a(x).abs().sqrt(), a=nn.Linear(3, 2))
    x = normal(3, 3)  # as few as are not looked at again
    x[finite:, 0] = 0
    with torch.no_grad():
        model.a.weight[:, 1:], model.a.bias[:] = 0, 0
    tape = tracer_of(model).trace(x)
    (use,) = tape.uses
    assert tape.axis(use.key) == BatchAxis(0, "none") and not tape.generic
