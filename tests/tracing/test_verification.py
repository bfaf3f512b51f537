"""Networks whose weights are easily misread, against dense loops; what is learnt wrongly is found out and repaired."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import peewit as pw
import reference_dense as dense
from cases import CASES
from environment import DEVICE
from fitting import built, classes, cut, fitted, names_of, normal
from networks import Network, parameter
from peewit.posterior.network import network_of
from peewit.tracing import generic
from peewit.tracing.layers import linear
from peewit.tracing.tape import Tape
from tables import curvature_of, moved, relative, table


def table_of(forward: Callable[..., Tensor]) -> nn.Module:
    """A layer, a table of five positions, and a head."""
    return Network(forward, a=nn.Linear(4, 10), e=nn.Embedding(5, 2), b=nn.Linear(10, 3))


def positions(net: Any) -> Tensor:
    return net.e(torch.arange(5, device=net.b.weight.device))


def scaled(net: Any, x: Tensor) -> Tensor:
    table = positions(net)
    table *= 3.0
    return net.b(torch.tanh(net.a(x).view(-1, 5, 2) + table).flatten(1))


def zeroed(net: Any, x: Tensor) -> Tensor:
    table = positions(net)
    table[0] = 0
    return net.b(torch.tanh(net.a(x).view(-1, 5, 2) * table).flatten(1))


def turned(net: Any, x: Tensor) -> Tensor:
    return net.b(torch.tanh(net.a(x).view(-1, 2, 5) + positions(net).T).flatten(1))


def time_major(net: Any, x: Tensor) -> Tensor:
    hidden = net.a(x).view(-1, 5, 2).transpose(0, 1) + positions(net).unsqueeze(1)
    return net.b(torch.tanh(hidden).transpose(0, 1).flatten(1))


def twice(net: Any, x: Tensor) -> Tensor:
    """Lifted twice, with a change in between."""
    table = positions(net)
    hidden = torch.tanh(net.a(x).view(-1, 5, 2) + table)
    table = table.mul_(2.0)
    return net.b((hidden * table.expand(len(x), 5, 2)).flatten(1))


def on_grid(forward: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    """Positions from a small network on a grid, with an activation that overwrites its input."""

    def run(net: Any, x: Tensor) -> Tensor:
        grid = torch.linspace(-1, 1, 5, dtype=x.dtype, device=x.device)[:, None]
        table = net.second(F.relu(net.first(grid), inplace=True))
        return net.b(torch.tanh(forward(net.a(x), table)).flatten(1))

    return Network(run, a=nn.Linear(4, 10), first=nn.Linear(1, 6), second=nn.Linear(6, 2), b=nn.Linear(10, 3))


def repeated(net: Any, x: Tensor) -> Tensor:
    table = net.p.repeat(5, 1).mul_(2) + (net.p + net.offset).mul_(2)
    return net.b(torch.tanh(net.a(x).view(-1, 5, 2) - table).flatten(1))


def sliced(write: Callable[[Tensor, Tensor], Any]) -> nn.Module:
    """A parameter added in place to a view of a layer's output."""

    def run(net: Any, x: Tensor) -> Tensor:
        hidden = net.a(x)
        write(hidden, net.p)
        return net.b(torch.tanh(hidden).flatten(1))

    return Network(run, a=nn.Linear(4, 6), p=parameter(3), b=nn.Linear(6, 3))


def permuted(net: Any, x: Tensor) -> Tensor:
    hidden = (net.a(x).view(-1, 2, 3).transpose(1, 2) * 1.5).transpose(1, 2)
    hidden += net.p
    return net.b(torch.tanh(hidden).flatten(1))


def force(both: bool) -> nn.Module:
    """The derivative of an energy in the inputs, alone or beside the energy."""

    def run(net: Any, x: Tensor) -> Tensor:
        with torch.enable_grad():
            given = x.detach().requires_grad_()
            energy = net.b(torch.tanh(net.norm(net.a(given))))
            found = torch.autograd.grad(energy.sum(), given, create_graph=True)[0]
        return torch.cat([energy, found[:, :2]], 1) if both else found[:, :3]

    return Network(run, a=nn.Linear(4, 6), norm=nn.LayerNorm(6), b=nn.Linear(6, 1))


def spectrum(net: Any, x: Tensor) -> Tensor:
    hidden = torch.fft.irfft(torch.fft.rfft(net.a(x)) * torch.view_as_complex(net.gain), n=6)
    return net.b(torch.fft.irfft(torch.fft.rfft(hidden) * net.real, n=6))


def mapped(net: Any, x: Tensor) -> Tensor:
    return net.b(torch.tanh(torch.vmap(net.a)(x)))


def pushed(net: Any, x: Tensor) -> Tensor:
    return net.b(torch.func.jvp(lambda given: torch.tanh(net.a(given)), (x,), (torch.ones_like(x),))[1])


def cancelling(net: Any, x: Tensor) -> Tensor:
    return net.b(torch.tanh(net.a(x))) * net.t.exp() / net.t


def saved_references() -> nn.Module:
    """A list beside the layers holds a weight, and the forward pass takes it from there."""
    network = Network(lambda net, x: net.b(torch.tanh(F.linear(x, *net.held[0]))), a=nn.Linear(4, 6), b=nn.Linear(6, 3))
    network.held = ([network.a.weight, network.a.bias],)
    return network


MISREAD: dict[str, Callable[[], nn.Module]] = {
    "a table scaled in place": lambda: table_of(scaled),
    "a table with a row set to zero": lambda: table_of(zeroed),
    "a transposed table": lambda: table_of(turned),
    "a table with time first": lambda: table_of(time_major),
    "a table used, changed and used again": lambda: table_of(twice),
    "a network on a grid": lambda: on_grid(lambda hidden, table: hidden.view(-1, 5, 2) + table),
    "a network on a grid, transposed": lambda: on_grid(lambda hidden, table: hidden.view(-1, 2, 5) / (3 + table.T)),
    "two weights multiplied and transposed": lambda: Network(
        lambda net, x: net.b(torch.tanh(net.a(x).view(-1, 2, 5) + (net.p @ net.q).T).flatten(1)),
        **{"a": nn.Linear(4, 10), "p": parameter(5, 1), "q": parameter(1, 2), "b": nn.Linear(10, 3)},
    ),
    "repeated and summed": lambda: Network(
        repeated, a=nn.Linear(4, 10), p=parameter(1, 2), offset=nn.Parameter(torch.randn(5, 2)), b=nn.Linear(10, 3)
    ),
    "added to a slice": lambda: sliced(lambda hidden, p: hidden[:, :3].add_(p)),
    "added to a column": lambda: sliced(lambda hidden, p: hidden[:, 0].add_(p[1])),
    "multiplied into a transpose": lambda: sliced(
        lambda hidden, p: hidden.view(-1, 2, 3).transpose(1, 2).mul_(p[:, None])
    ),
    "subtracted twice its size": lambda: sliced(lambda hidden, p: hidden.view(-1, 2, 3).sub_(p, alpha=2)),
    "added to a permuted base": lambda: Network(permuted, a=nn.Linear(4, 6), p=parameter(3), b=nn.Linear(6, 3)),
    "a force": lambda: force(False),
    "an energy and its force": lambda: force(True),
    "distances": lambda: Network(
        lambda net, x: torch.cdist(net.a(x), net.c[:3]), a=nn.Linear(4, 3), c=nn.Parameter(torch.randn(5, 3))
    ),
    "gains on a spectrum": lambda: Network(
        spectrum, a=nn.Linear(4, 6), gain=parameter(4, 2), real=parameter(4), b=nn.Linear(6, 3)
    ),
    "a mapped layer": lambda: Network(mapped, a=nn.Linear(4, 6), b=nn.Linear(6, 3)),
    "a derivative by forward mode": lambda: Network(pushed, a=nn.Linear(4, 6), b=nn.Linear(6, 3)),
    "derivatives that cancel": lambda: Network(
        cancelling, a=nn.Linear(4, 6), b=nn.Linear(6, 3), t=nn.Parameter(torch.ones(()))
    ),
    "a shift that the outputs lose": lambda: Network(
        lambda net, x: F.log_softmax(net.b(torch.tanh(net.a(x))) - net.t.exp(), -1),
        **{"a": nn.Linear(4, 6), "b": nn.Linear(6, 3), "t": nn.Parameter(torch.ones(()))},
    ),
    "saved references": saved_references,
    "slopes of channels": lambda: Network(
        lambda net, x: net.b(net.one(net.channels(net.a(x).view(-1, 3, 2)).flatten(1))),
        **{"a": nn.Linear(4, 6), "channels": nn.PReLU(3), "one": nn.PReLU(), "b": nn.Linear(6, 3)},
    ),
    "a slope that is computed": lambda: Network(
        lambda net, x: net.b(F.prelu(net.a(x), net.slope.exp())),
        a=nn.Linear(4, 6),
        slope=parameter(6),
        b=nn.Linear(6, 3),
    ),
}


def used_ggn(model: nn.Module, x: Any, y: Tensor, la: pw.Laplace) -> tuple[Tensor, Tensor]:
    """The dense curvature and Jacobian of the weights that a posterior holds."""
    kept = [name for name in names_of(model) if name in la.space.names]
    return dense.ggn(model, x, y, "classification", kept), dense.jacobian(model, x, kept)


@pytest.mark.parametrize("name", MISREAD)
def test_curvature_and_covariances(name: str) -> None:
    """Exact curvature, its diagonal, covariances of several inputs, of one alone and of split batches."""
    torch.manual_seed(1)
    model = built(MISREAD[name]())
    x, y = normal(7, 4), classes(3, 7)
    full = fitted(model, x, y, "classification", "full")
    exact, jacobian = used_ggn(model, x, y, full)
    unused = set(names_of(model)) - set(full.space.names)
    assert float(dense.jacobian(model, x, sorted(unused)).abs().max() if unused else 0.0) == 0.0
    assert relative(curvature_of(full), exact) < 1e-8
    diagonal = fitted(model, x, y, "classification", "diag")
    assert relative(curvature_of(diagonal).diagonal(), exact.diagonal()) < 1e-8
    split = pw.fit(
        copy.deepcopy(model).to(DEVICE), cut(x, y, [4, 1, 2]), "classification", structure="full", curvature="ggn"
    )
    assert relative(curvature_of(split), exact) < 1e-8
    expected = dense.functional_covariance(jacobian, torch.linalg.inv(exact + torch.eye(len(exact)).double()))
    assert relative(full.functional(moved(x)).cov, expected) < 1e-8
    for place in range(3):
        assert relative(full.functional(moved(x[place : place + 1])).cov[0], expected[place]) < 1e-8


@pytest.mark.parametrize(
    "name", [name for name in MISREAD if any(word in name for word in ("table", "grid", "added", "channels"))]
)
def test_they_need_no_generic_rule(name: str) -> None:
    """Tables changed or turned before they are added, and sums in place, are recognised."""
    torch.manual_seed(1)
    la = fitted(built(MISREAD[name]()), normal(7, 4), classes(3, 7), "classification")
    assert not [row.name for row in la.coverage() if row.rule == "generic"]


def test_layouts_that_depend_on_the_length() -> None:
    """Examples slowest for odd lengths and fastest for even ones; and a layer called once more for longer inputs."""

    def either(net: Any, x: Tensor) -> Tensor:
        number, length, width = x.shape
        if length % 2:
            hidden = net.a(x.reshape(-1, width)).view(number, length, -1)
        else:
            hidden = net.a(x.transpose(0, 1).reshape(-1, width)).view(length, number, -1).transpose(0, 1)
        return net.b(torch.tanh(hidden).mean(1))

    def counted(net: Any, x: Tensor) -> Tensor:
        hidden = torch.stack([torch.tanh(net.a(each)) for each in x.unbind(1)])
        return net.b(torch.tanh(net.a(hidden)).mean(0))

    for forward in (either, counted):
        model = built(Network(forward, a=nn.Linear(2, 2), b=nn.Linear(2, 3)))
        data = [(normal(5, 3, 2), classes(3, 5)), (normal(2, 2, 2), classes(3, 2)), (normal(4, 4, 2), classes(3, 4))]
        la = pw.fit(model.to(DEVICE), moved(tuple(data)), "classification", structure="full", curvature="ggn")
        model = model.cpu()
        exact = sum(dense.ggn(model, x, y, "classification", names_of(model)) for x, y in data)
        assert relative(curvature_of(la), exact) < 1e-8
        model.to(DEVICE)
        x = normal(3, 6, 2, seed=5)
        covariance = torch.linalg.inv(exact + torch.eye(len(exact)).double())
        expected = dense.functional_covariance(dense.jacobian(model.cpu(), x, names_of(model)), covariance)
        model.to(DEVICE)
        assert relative(la.functional(moved(x)).cov, expected) < 1e-8


@pytest.mark.parametrize("how", ["inputs", "detached"])
def test_examples_that_meet_without_gradients_are_refused(how: str) -> None:
    """Statistics of the batch's inputs, or detached ones, leave no example with an output of its own."""

    def forward(net: Any, x: Tensor) -> Tensor:
        if how == "inputs":
            return net.b(torch.tanh(net.a(x - x.mean(0))))
        hidden = net.a(x)
        return net.b(torch.tanh(hidden / (1 + hidden.detach().abs().amax(0))))

    model = built(Network(forward, a=nn.Linear(4, 6), b=nn.Linear(6, 3)))
    with pytest.raises(ValueError, match="depends on the other examples"):
        fitted(model, normal(6, 4), classes(3, 6), "classification")


def test_random_networks_are_not_taken_for_dependent_ones() -> None:
    """Noise in every forward pass is no dependence between examples; the table says that nothing was verified."""
    model = built(Network(lambda net, x: net.b(F.dropout(net.a(x), 0.5, True)), a=nn.Linear(4, 6), b=nn.Linear(6, 3)))
    la = fitted(model, normal(6, 4), classes(3, 6), "classification")
    assert "not the same for the same inputs" in la.coverage().verified


def simple() -> nn.Module:
    """Two layers."""
    return built(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))


def exactly_right(model: nn.Module) -> pw.Laplace:
    """A fit that is the dense one."""
    x, y = normal(7, 4), classes(3, 7)
    la = fitted(model, x, y, "classification", "full")
    assert relative(curvature_of(la), used_ggn(model, x, y, la)[0]) < 1e-8
    return la


def test_a_wrong_rule_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights whose recorded derivative is off take the generic rule, and the table names them."""
    own = linear.LinearRule.contributions

    def wrong(self: Any, use: Any, inputs: Any, grad: Tensor) -> Iterator[Any]:
        return own(self, use, inputs, grad * (1.2 if "0.weight" in use.names else 1.0))

    monkeypatch.setattr(linear.LinearRule, "contributions", wrong)
    la = exactly_right(simple())
    rules = {row.name: row.rule for row in la.coverage()}
    assert rules == {"0.weight": "generic", "0.bias": "generic", "2.weight": "linear", "2.bias": "linear"}
    assert "0.weight, 0.bias took the generic rule" in str(la.coverage())


class Uneven(torch.autograd.Function):
    """The identity, whose gradient is 5 % off in batches of two, in some dtypes: as where derivatives cancel."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, dtypes: tuple[torch.dtype, ...]) -> Tensor:
        ctx.dtypes = dtypes
        return z.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] * (1.05 if grads[0].dtype in ctx.dtypes and len(grads[0]) == 2 else 1.0), None


@pytest.mark.parametrize("dtypes", [(torch.float32,), (torch.float32, torch.float64)])
def test_plain_derivatives_that_round_themselves(dtypes: tuple[torch.dtype, ...]) -> None:
    """What plain derivatives in float32 are off from those in float64 is no mistake of the recorded ones."""

    def forward(net: Any, x: Tensor) -> Tensor:
        return net.b(torch.tanh(Uneven.apply(net.a(x), dtypes)))

    model = Network(forward, a=nn.Linear(4, 6), b=nn.Linear(6, 3)).float().to(DEVICE)
    x, y = normal(7, 4).float(), classes(3, 7)
    if len(dtypes) > 1:
        with pytest.raises(
            ValueError, match=r"^a\.weight, a\.bias: the derivatives of single examples are not those of plain"
        ):
            fitted(model, x, y, "classification", "kron")
    else:
        la = fitted(model, x, y, "classification", "kron")
        assert not la.state.knowledge.corrections and la.coverage()["a.weight"].rule == "linear"


class Lucky(torch.autograd.Function):
    """The identity, whose gradient in float32 is 5 % off: of the first in batches of two, of the second in others."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        return z.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        made = grads[0].clone()
        if made.dtype == torch.float32 and len(made) > 1:
            made[0 if len(made) == 2 else 1] *= 1.05
        return made


def test_derivatives_that_round_for_one_of_the_examples() -> None:
    """What is left of terms that cancel is nothing for some examples, by luck: the other one tells how much."""

    def forward(net: Any, x: Tensor) -> Tensor:
        return net.b(torch.tanh(Lucky.apply(net.a(x))))

    model = Network(forward, a=nn.Linear(4, 6), b=nn.Linear(6, 3)).float().to(DEVICE)
    la = fitted(model, normal(7, 4).float(), classes(3, 7), "classification", "kron")
    assert not la.state.knowledge.corrections and la.coverage()["a.weight"].rule == "linear"


@pytest.mark.parametrize("single", [False, True])
def test_networks_that_are_hard_to_copy_in_float64(single: bool) -> None:
    """One keeps a tensor with its graph, which torch does not copy; one refuses float64 by an assertion."""

    def forward(net: Any, x: Tensor) -> Tensor:
        assert not single or x.dtype == torch.float32
        hidden = torch.tanh(Uneven.apply(net.a(x), (torch.float32,)))
        net.last = None if single else hidden
        return net.b(hidden)

    model = Network(forward, a=nn.Linear(4, 6), b=nn.Linear(6, 3)).float().to(DEVICE)
    x, y = moved(normal(7, 4).float()), moved(classes(3, 7))
    model(x)
    if single:  # then plain derivatives count as exact
        with pytest.raises(ValueError, match=r"^a\.weight, a\.bias: the derivatives of single examples are not those"):
            pw.fit(model, (x, y), "classification")
    else:
        la = pw.fit(model, (x, y), "classification")
        assert not la.state.knowledge.corrections and la.coverage()["a.weight"].rule == "linear"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_examples_that_meet_where_the_others_are_alike(dtype: torch.dtype) -> None:
    """The second and the third do the same to the first, and that is little."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = net.a(x)
        return h / (20 + h.detach().square().mean(0))

    model = built(Network(forward, a=nn.Linear(4, 3, bias=False))).to(dtype)
    x = normal(3, 4).to(dtype)
    x[2] = -x[1]
    with pytest.raises(ValueError, match="expected examples to be independent"):
        fitted(model, x, classes(3, 3), "classification", "kron")


def test_a_wrong_batching_of_probes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where many probes pulled back at once come out wrong, they go one by one, and rules stay as they are."""
    own = Tape._map_probes

    def wrong(self: Tape, *args: Any) -> list[Any]:
        return [None if each is None else each.flip(0) for each in own(self, *args)]

    monkeypatch.setattr(Tape, "_map_probes", wrong)
    la = exactly_right(simple())
    assert not la.state.knowledge.batched
    assert {row.rule for row in la.coverage()} == {"linear"}


def test_a_wrong_generic_rule_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where mapping over examples comes out wrong, they are taken one by one."""
    own = generic._map_examples
    monkeypatch.setattr(generic, "_map_examples", lambda *args: {name: 1.5 * rows for name, rows in own(*args).items()})
    model = built(Network(lambda net, x: net.b(torch.tanh(x @ net.w.exp())), w=parameter(4, 6), b=nn.Linear(6, 3)))
    la = exactly_right(model)
    assert not la.state.knowledge.vectorised and la.coverage()["w"].rule == "generic"


def test_a_network_that_no_rule_gets_right_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """What disagrees even one example at a time is refused by name."""
    own = generic._one_by_one
    monkeypatch.setattr(generic, "_one_by_one", lambda *args: {k: 1.5 * rows for k, rows in own(*args).items()})
    monkeypatch.setattr(generic, "_map_examples", lambda *args: {k: 1.5 * v for k, v in own(*args[:4], False).items()})
    model = built(Network(lambda net, x: net.b(torch.tanh(x @ net.w.exp())), w=parameter(4, 6), b=nn.Linear(6, 3)))
    with pytest.raises(ValueError, match=r"^w: the derivatives of single examples"):
        fitted(model, normal(7, 4), classes(3, 7), "classification")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_rounding_is_no_reason_for_distrust(name: str, dtype: torch.dtype) -> None:
    """No weight of any network in the table loses its rule, in any precision."""
    own = table(name)
    model = own.case.make()[0].to(device=DEVICE, dtype=dtype)
    x = pw.network.nests.map_tensors(lambda each: each.to(dtype) if each.is_floating_point() else each, moved(own.x))
    y = moved(own.y)
    try:
        la = pw.fit(model, (x, y.to(dtype) if y.is_floating_point() else y), own.likelihood, structure="diag")
    except RuntimeError as error:
        assert dtype == torch.bfloat16 and "not implemented" in str(error)
        return
    assert not la.state.knowledge.corrections
    assert la.coverage().verified.startswith("derivatives of 2 examples")


def test_lengths_are_looked_at_a_few_times() -> None:
    """Each of the first lengths is verified, later ones are not; another number of axes is."""
    model = built(
        Network(lambda net, x: net.b(torch.tanh(net.a(x)).flatten(1, -2).mean(1)), a=nn.Linear(2, 4), b=nn.Linear(4, 3))
    )
    data = [(normal(3, length, 2), classes(3, 3)) for length in range(2, 9)]
    la = pw.fit(model.to(DEVICE), moved(tuple(data)), "classification")
    assert len(la.state.knowledge.verified) == 3
    la = pw.fit(model, moved((*data, (normal(3, 2, 2, 2), classes(3, 3)))), "classification")
    assert len(la.state.knowledge.verified) == 4


def test_distances_whose_gradient_looks_right_at_first() -> None:
    """Of shares that add up to one, distances along the axes have no gradient for some examples, mapped or not."""

    def shares(net: Any, x: Tensor) -> Tensor:
        return net.b(torch.cdist(torch.softmax(net.a(x), -1), net.c, p=1.0))

    torch.manual_seed(1)
    model = built(Network(shares, a=nn.Linear(4, 2), c=nn.Parameter(torch.randn(3, 2)), b=nn.Linear(3, 3)))
    with torch.no_grad():
        model.c.copy_(torch.tensor([[0.5, 2.0], [2.0, 0.5], [0.5, -1.0]]))
        model.a.weight.copy_(torch.tensor([[1.0, 0, 0, 0], [0, 0, 0, 0]]))
        model.a.bias.zero_()
    x, y = normal(7, 4), classes(3, 7)
    x[:, 0] = torch.tensor([9.0, 8.0, -1.0, 1.0, -2.0, 2.0, 0.5])
    la = fitted(model, x, y, "classification", "full")
    assert relative(curvature_of(la), used_ggn(model, x, y, la)[0]) < 1e-8


def test_saved_references_that_matter_at_other_weights_alone() -> None:
    """A path without derivatives at the trained weights, behind a gate that is shut there, is open at sampled ones."""

    def gated(net: Any, x: Tensor) -> Tensor:
        return net.b(x) + F.relu(net.gate) * F.linear(x, net.held[0])

    model = built(Network(gated, a=nn.Linear(4, 3, bias=False), b=nn.Linear(4, 3), gate=nn.Parameter(torch.zeros(1))))
    with torch.no_grad():
        model.gate.fill_(-0.5)
    plain = copy.deepcopy(model)
    model.held, plain.held = [model.a.weight], [plain.a.weight]
    plain.body = lambda net, x: net.b(x) + F.relu(net.gate) * net.a(x)
    x, y = normal(7, 4), classes(3, 7)
    given, expected = (pw.fit(each.to(DEVICE), (moved(x), moved(y)), "classification") for each in (model, plain))
    one, other = (each.predict(moved(x), method="sampled", samples=20) for each in (given, expected))
    assert relative(one.epistemic, other.epistemic) < 1e-8


def test_saved_references_follow_the_sampled_weights() -> None:
    """Outputs at sampled weights are those of a network that holds them, also where it saved references to its own."""
    torch.manual_seed(1)
    model = built(saved_references())
    plain = built(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))
    plain[0].load_state_dict(model.a.state_dict())
    plain[2].load_state_dict(model.b.state_dict())
    x, y = normal(7, 4), classes(3, 7)
    given, expected = (fitted(each, x, y, "classification", "full") for each in (model, plain))
    for la, direct in ((given, {"b.weight", "b.bias"}), (expected, set(expected.space.names))):
        network, jacobian = (
            network_of(la.state, None),
            dense.jacobian(copy.deepcopy(la.model).cpu(), x, [*la.space.names]),
        )
        for _ in range(2):  # references that were not found are not looked for again
            with pw.network.isolation.isolated(la.model, network.selected), torch.no_grad():
                _, found = network.push(moved(x), torch.eye(la.D, dtype=torch.float64, device=DEVICE))
            assert relative(found.permute(1, 2, 0), jacobian) < 1e-8
        assert [*la.state.knowledge.questions.knowledge.direct.values()] == [direct]
    one, other = (each.predict(moved(x), method="sampled", samples=20) for each in (given, expected))
    assert relative(one.probs, other.probs) < 1e-8
    assert relative(one.epistemic, other.epistemic) < 1e-8


class Caching(nn.Module):
    """A table of biases that is looked up once in evaluation mode, and kept in an attribute and in a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.table = nn.Linear(4, 6), nn.Linear(6, 3), parameter(2)
        self.kept: dict[str, Tensor] = {}
        self.register_buffer("places", torch.tensor([0, 1, 1, 0, 0, 1]))

    def forward(self, x: Tensor) -> Tensor:
        if "biases" not in self.kept:
            self.kept["biases"] = self.table[self.places]
            self.gain = 1 + self.table.sum()
        return self.b(torch.tanh(self.a(x) + self.kept["biases"])) * self.gain


def test_what_a_network_keeps_does_not_go_stale() -> None:
    """Outputs at sampled weights are those of a network that keeps nothing, and nothing is left behind."""
    torch.manual_seed(1)
    model = built(Caching())

    def fresh(net: Any, x: Tensor) -> Tensor:
        return net.b(torch.tanh(net.a(x) + net.table[net.places])) * (1 + net.table.sum())

    plain = Network(fresh, a=model.a, b=model.b, table=model.table)
    plain.register_buffer("places", model.places)
    x, y = normal(7, 4), classes(3, 7)
    given, expected = (fitted(each, x, y, "classification", "full") for each in (model, plain))
    order = torch.cat(
        [torch.arange(each.D)[each.space.slices()[name]] for each in (expected,) for name in given.space.names]
    )
    assert relative(curvature_of(given), curvature_of(expected)[order][:, order]) < 1e-8
    assert given.coverage()["table"].rule != "unused"
    one, two = (given.predict(moved(x), method="sampled", samples=50) for _ in range(2))
    assert float(one.epistemic.mean()) > 0 and relative(one.probs, two.probs) < 1e-12
    held = given.model
    deviation = given.sample(1, generator=torch.Generator(DEVICE).manual_seed(0))[0]
    weights = dict(zip(given.space.names, deviation.split([s.numel() for s in given.space.shapes]), strict=True))
    weights = {name: own.reshape(held.get_parameter(name).shape) for name, own in weights.items()}
    for scale in (1.0, 2.0):  # one after the other: the second is not to see what the first kept
        at = {name: scale * own for name, own in weights.items()}
        with pw.network.isolation.isolated(held):
            found = pw.network.calling.call(pw.network.calling.with_weights(held, at), moved(x))
            pw.network.buffers.restore_buffers(held)
        wanted = torch.func.functional_call(expected.model, at, (moved(x),))
        assert relative(found.detach(), wanted.detach()) < 1e-12
    assert held.kept == {} and not hasattr(held, "gain")


def test_what_a_network_kept_after_the_fit_does_not_go_stale() -> None:
    """A pass of the network itself between the fit and sampled predictions changes nothing, and keeps what it kept."""
    torch.manual_seed(1)
    model, x, y = built(Caching()), normal(7, 4), classes(3, 7)
    la = fitted(model, x, y, "classification", "full")
    before = la.predict(moved(x), method="sampled", samples=20)
    with torch.no_grad():
        la.model.eval()(moved(x))
    kept, gain = la.model.kept["biases"], la.model.gain
    after = la.predict(moved(x), method="sampled", samples=20)
    assert relative(after.probs, before.probs) < 1e-12
    assert la.model.kept["biases"] is kept and la.model.gain is gain


def test_a_warning_for_what_a_network_kept_before_the_fit() -> None:
    """With its graph it would be wrong at other weights; without it hides the weight that it was computed from."""
    x, y = moved(normal(7, 4)), moved(classes(3, 7))
    model = built(Caching()).to(DEVICE).eval()
    model(x)
    with pytest.raises(ValueError, match=r"output takes '(gain|kept)', which an earlier pass computed"):
        pw.fit(model, (x, y), "classification")
    model = built(Caching()).to(DEVICE).eval()
    with torch.no_grad():
        model(x)
    with pytest.warns(UserWarning, match=r"^table has no gradient, and beside it '(gain|kept)' holds a tensor"):
        la = pw.fit(model, (x, y), "classification")
    assert la.coverage()["table"].rule == "unused"


def test_what_is_kept_of_weights_that_are_not_asked_for_is_no_obstacle() -> None:
    """The last layer is asked for, and what an earlier pass kept was computed from others."""
    x, y = moved(normal(7, 4)), moved(classes(3, 7))
    model = built(Caching()).to(DEVICE).eval()
    expected = pw.fit(copy.deepcopy(model), (x, y), "classification", weights=["b.weight", "b.bias"], structure="full")
    model(x)
    la = pw.fit(model, (x, y), "classification", weights=["b.weight", "b.bias"], structure="full")
    assert relative(curvature_of(la), curvature_of(expected)) < 1e-12
    with pytest.raises(ValueError, match=r"output takes 'gain', which an earlier pass computed"):
        pw.fit(model, (x, y), "classification", weights=["table"])


class Growing(nn.Module):
    """A table that grows with the longest input so far, which a number beside it says."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.longest = nn.Linear(4, 3), 0

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] > self.longest:
            self.longest, self.table = x.shape[1], torch.arange(1.0, x.shape[1] + 1).to(x)
        return self.a((x * self.table[: x.shape[1], None]).mean(1))


def test_numbers_that_say_what_is_kept() -> None:
    """The network is called between the fit and a prediction, and fitted again: the number goes with the table."""
    x, y = moved(normal(7, 5, 4)), moved(classes(3, 7))
    model = built(Growing()).to(DEVICE)
    la = pw.fit(model, (x, y), "classification")
    before = la.predict(x).probs
    assert model.longest == 0
    model(x)
    table = model.table
    assert relative(la.predict(x).probs, before) < 1e-12
    assert relative(pw.fit(model, (x, y), "classification").predict(x).probs, before) < 1e-12
    assert model.longest == 5 and model.table is table


class Sharing(nn.Module):
    """Keeps a table in a dictionary that other modules have too, and what it last saw."""

    def __init__(self, kept: dict[str, Tensor]) -> None:
        super().__init__()
        self.kept, self.last = kept, None

    def forward(self, x: Tensor) -> Tensor:
        if "table" not in self.kept:
            self.kept["table"] = torch.arange(1.0, 5.0).to(x)
        self.last = x
        return x * self.kept["table"]


def test_what_modules_share_is_there_after_a_fit() -> None:
    """A dictionary of several modules holds after each fit what it held before."""
    kept: dict[str, Tensor] = {}
    x, y = moved(normal(7, 4)), moved(classes(3, 7))
    model = built(nn.Sequential(Sharing(kept), nn.Linear(4, 4), Sharing(kept), nn.Linear(4, 3))).to(DEVICE)
    kept = model[0].kept
    assert model[2].kept is kept
    pw.fit(model, (x, y), "classification")
    assert kept == {}
    model(x)
    table, last = kept["table"], model[2].last
    pw.fit(model, (x, y), "classification")
    assert kept["table"] is table and model[2].last is last


def test_what_a_network_shows_is_no_cache() -> None:
    """A tensor that every pass writes anew, and none reads, is neither refused nor changed."""

    def showing(net: Any, x: Tensor) -> Tensor:
        net.shown = torch.tanh(net.a(x))
        return net.b(net.shown)

    model = built(Network(showing, a=nn.Linear(4, 6), b=nn.Linear(6, 3))).to(DEVICE)
    model(moved(normal(7, 4)))
    shown = model.shown
    la = pw.fit(model, (moved(normal(7, 4)), moved(classes(3, 7))), "classification")
    assert la.coverage().verified.startswith("derivatives of 2 examples") and model.shown is shown


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("structure", ["kron", "full"])
def test_parameters_without_elements_are_left_out(structure: str) -> None:
    """A layer without outputs, one without inputs, and a parameter of nothing."""

    def forward(net: Any, x: Tensor) -> Tensor:
        return net.a(x) + net.b(net.c(x)) + net.none.sum()

    layers = {"a": nn.Linear(4, 3), "c": nn.Linear(4, 0, bias=False), "b": nn.Linear(0, 3)}
    model = built(Network(forward, **layers, none=nn.Parameter(torch.zeros(0))))
    la = fitted(model, normal(7, 4), classes(3, 7), "classification", structure)
    assert la.space.names == ("a.weight", "a.bias", "b.bias")


@pytest.mark.parametrize("equal", [2, 3, 5])
def test_examples_that_meet_behind_equal_ones(equal: int) -> None:
    """An example that differs is looked for where the first are equal."""
    x = normal(8, 4)
    x[:equal] = x[0]
    model = built(Network(lambda net, x: net.b(torch.tanh(net.a(x - x.mean(0)))), a=nn.Linear(4, 6), b=nn.Linear(6, 3)))
    with pytest.raises(ValueError, match="depends on the other examples"):
        fitted(model, x, classes(3, 8), "classification")


MEETINGS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "inputs": lambda net, x: net.b(torch.tanh(net.a(x - x.mean(0)))),
    "layers": lambda net, x: net.b(torch.tanh(net.a(x) - net.a(x).mean(0))),
    "detached": lambda net, x: net.b(torch.tanh(net.a(x) / (1 + net.a(x).detach().abs().amax(0)))),
    "attention": lambda net, x: net.b(torch.softmax(net.a(x) @ net.a(x).T, -1) @ net.a(x)),
}


@pytest.mark.parametrize("merged", [2048, 1])
@pytest.mark.parametrize("sizes", [[5, 4], [5, 1, 3], [1, 5, 3]])
@pytest.mark.parametrize("how", MEETINGS)
def test_examples_that_meet_behind_batches_of_equal_ones(
    how: str, sizes: list[int], merged: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are found with the first batch that has two examples that differ, put together with others or not."""
    monkeypatch.setattr("peewit.curvature.pieces.MERGED_EXAMPLES", merged)
    x, y = normal(9, 4), classes(3, 9)
    x[:6] = x[0]
    model = built(Network(MEETINGS[how], a=nn.Linear(4, 6), b=nn.Linear(6, 3))).to(DEVICE)
    outputs = [model(moved(x[each]))[0].detach() for each in (slice(0, 5), slice(0, 9))]
    assert float((outputs[0] - outputs[1]).abs().max()) > 1e-3
    with pytest.raises(ValueError, match="depends on the other examples"):
        pw.fit(model, cut(x, y, sizes), "classification")
    la = pw.fit(model, (moved(x[:5]), moved(y[:5])), "classification")
    assert la.coverage().verified.endswith("; no batch had two examples that differ")
    with pytest.raises(ValueError, match="depends on the other examples"):
        la.predict(moved(x))


@pytest.mark.parametrize("sizes", [[5, 4], [1] * 9])
def test_words_once_examples_differ(sizes: list[int]) -> None:
    """Batches of equal examples come first; what is said is of those that differ."""
    x, y = normal(9, 4), classes(3, 9)
    x[:5] = x[0]
    model = simple()
    expected = fitted(model, normal(9, 4), y, "classification").coverage().verified
    exact = dense.ggn(model, x, y, "classification", names_of(model))
    la = pw.fit(model.to(DEVICE), cut(x, y, sizes), "classification", structure="full", curvature="ggn")
    assert la.coverage().verified == expected
    assert relative(curvature_of(la), exact) < 1e-8


@pytest.mark.parametrize("equal", [1, 2, 3, 5])
def test_statistics_of_equal_examples(equal: int) -> None:
    """A standard deviation of equal examples is zero, and what it divides is NaN: the reason is that examples meet."""

    def forward(net: Any, x: Tensor) -> Tensor:
        return net.b(torch.tanh(net.a((x - x.mean(0)) / x.std(0, correction=0))))

    x, y = normal(8, 4), classes(3, 8)
    x[:equal] = x[0]
    model = built(Network(forward, a=nn.Linear(4, 6), b=nn.Linear(6, 3)))
    assert bool(torch.isfinite(model(x)).all())
    with pytest.raises(ValueError, match="depends on the other examples"):
        fitted(model, x, y, "classification")


def test_outputs_that_are_nan_at_equal_examples() -> None:
    """Also beside other ones: nothing depends on these."""
    x, y = normal(8, 4), classes(3, 8)
    x[:5] = -x[0].abs()
    model = built(Network(lambda net, x: net.b(x[:, :2].sqrt()), b=nn.Linear(2, 3)))
    with pytest.raises(ValueError, match=r"At example 0.*output is NaN, although the input is finite"):
        fitted(model, x, y, "classification")


def test_weights_that_are_too_small_to_tell_are_named() -> None:
    """Behind units that are dead at both examples nothing was compared, which the table says."""

    def dead(net: Any, x: Tensor) -> Tensor:
        return net.c(x) + net.b(F.relu(net.a(x) - 100))

    la = fitted(
        built(Network(dead, a=nn.Linear(4, 6), b=nn.Linear(6, 3), c=nn.Linear(4, 3))),
        *(normal(7, 4), classes(3, 7), "classification"),
    )
    assert la.coverage().verified.endswith("; too small there to tell: a.weight, a.bias, b.weight")
    assert "too small" not in exactly_right(simple()).coverage().verified


UNDONE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index_select along another axis": lambda h, back: h.index_select(1, back)[0],
    "gather along another axis": lambda h, back: h.gather(1, back[None, :, None].expand(h.shape))[0],
    "scattered": lambda h, back: torch.zeros_like(h).scatter(1, back.argsort()[None, :, None].expand(h.shape), h)[0],
    "looked up": lambda h, back: F.embedding(back, h[0]),
    "stacked in Python": lambda h, back: torch.stack([h[0, place] for place in back.tolist()]),
    "a matrix of zeros and ones": lambda h, back: F.one_hot(back, len(back)).to(h) @ h[0],
}


@pytest.mark.parametrize("name", UNDONE)
def test_examples_that_are_sorted_inside_in_many_ways(name: str) -> None:
    """An order that the first examples do not show, undone by operations that do not look like it."""

    def forward(net: Any, x: Tensor) -> Tensor:
        order = x[:, 0].argsort(descending=True, stable=True)
        hidden = torch.tanh(net.a(x[order]))[None]
        return net.b(UNDONE[name](hidden, order.argsort()))

    model = built(Network(forward, a=nn.Linear(4, 6), b=nn.Linear(6, 3)))
    x, y = normal(9, 4), classes(3, 9)
    x[:, 0] = torch.tensor([3.0, 3, 3, 1, 3, 2, 5, 1, 4])
    la = fitted(model, x, y, "classification", "full")
    exact, jacobian = used_ggn(model, x, y, la)
    assert relative(curvature_of(la), exact) < 1e-8
    expected = dense.functional_covariance(jacobian, torch.linalg.inv(exact + torch.eye(len(exact)).double()))
    assert relative(la.functional(moved(x)).cov, expected) < 1e-8


@pytest.mark.parametrize("limit", [None, 1.0])
def test_tables_of_single_tokens_and_of_limited_norms(limit: float | None) -> None:
    """One token per example without an axis of its own; rows above `max_norm` have the derivative that torch has."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Embedding(6, 3, max_norm=limit), nn.Tanh(), nn.Linear(3, 3)).double()
    with torch.no_grad():
        model[0].weight.mul_(2.0)
    x, y = torch.arange(9) % 6, classes(3, 9)
    la = fitted(model, x, y, "classification", "full")
    assert la.coverage()["0.weight"].rule == "embedding" and not la.state.knowledge.corrections
    plain = copy.deepcopy(model)
    plain(x)  # which shrinks its table, as training did
    plain[0].max_norm = None
    exact, _ = used_ggn(plain, x, y, la)
    assert relative(curvature_of(la), exact) < 1e-6  # torch divides by the norm plus 1e-7


@pytest.mark.parametrize("noise", [1e-7, 1e-3, 0.1])
def test_noise_is_no_dependence_between_examples(noise: float) -> None:
    """However small: the same inputs have other outputs."""
    model = built(
        Network(
            lambda net, x: net.b(net.a(x + noise * torch.randn_like(x)).tanh()), a=nn.Linear(4, 6), b=nn.Linear(6, 3)
        )
    )
    la = fitted(model, normal(6, 4), classes(3, 6), "classification")
    assert la.D == 51


def test_an_offset_of_the_outputs_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong rule is found out beside a logit that is masked."""
    own = linear.LinearRule.contributions

    def wrong(self: Any, use: Any, inputs: Any, grad: Tensor) -> Iterator[Any]:
        return own(self, use, inputs, grad * (1.2 if "a.weight" in use.names else 1.0))

    monkeypatch.setattr(linear.LinearRule, "contributions", wrong)

    def masked(net: Any, x: Tensor) -> Tensor:
        return net.b(net.a(x).tanh()) + torch.tensor([0.0, 0.0, -1e9], dtype=x.dtype, device=x.device)

    la = fitted(
        built(Network(masked, a=nn.Linear(4, 6), b=nn.Linear(6, 3))), normal(7, 4), classes(2, 7), "classification"
    )
    assert la.coverage()["a.weight"].rule == "generic"


def normalised_mean(size: float, coupling: float = 0.0) -> nn.Module:
    """Zero in exact arithmetic, but for a layer of the given size, and for what examples have of their mean."""

    def forward(net: Any, x: Tensor) -> Tensor:
        mean = F.layer_norm(net.l(x), (8,)).mean(-1, keepdim=True)
        return mean + size * net.c(x) + coupling * x.mean(0).sum()

    return Network(forward, l=nn.Linear(4, 8), c=nn.Linear(4, 1))


@pytest.mark.parametrize("size", [0.0, 1e-12, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_of_what_cancels_is_no_dependence(dtype: torch.dtype, size: float) -> None:
    """Outputs and derivatives that are rounding are neither refused nor taken for wrong ones."""
    for seed in range(12):
        torch.manual_seed(seed)
        model = normalised_mean(size).to(DEVICE, dtype)
        x, y = moved(torch.randn(7, 4).to(dtype)), moved(torch.randn(7, 1).to(dtype))
        la = pw.fit(model, (x, y), "regression", structure="full")
        assert not la.state.knowledge.corrections
        said = la.coverage().verified
        assert "too small there to tell: l.weight, l.bias" in said or "zero but for rounding" in said
        # The norm's mean has no derivative: all that is uncertain is the layer beside it, in closed form.
        given = size * torch.cat([x, torch.ones_like(x[:, :1])], 1).double()
        expected = given @ torch.linalg.inv(torch.eye(5).to(given) + given.T @ given) @ given.T
        found = la.functional(x).cov[:, 0, 0].double()
        torch.testing.assert_close(found, expected.diagonal(), rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize(
    ("dtype", "size", "coupling"),
    [
        *((torch.float64, size, coupling) for size in (0.0, 1e-6, 1.0) for coupling in (1e-7, 1e-3, 1.0)),
        *((torch.float32, size, coupling) for size in (0.0, 1e-3) for coupling in (1e-4, 1.0)),
        (torch.float32, 1.0, 1e-2),
    ],
)
def test_couplings_show_beside_what_cancels(dtype: torch.dtype, size: float, coupling: float) -> None:
    """However small the outputs are: a share in other examples beyond rounding is refused as before."""
    for seed in range(5):
        torch.manual_seed(seed)
        model = normalised_mean(size, coupling).to(DEVICE, dtype)
        x, y = moved(torch.randn(7, 4).to(dtype)), moved(torch.randn(7, 1).to(dtype))
        with pytest.raises(ValueError, match="depends on the other examples"):
            pw.fit(model, (x, y), "regression")


class ZeroHead(nn.Module):
    """Examples that meet, in one of several ways, before a head that begins with zeros."""

    def __init__(self, meet: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.a, self.b, self.meet = nn.Linear(3, 5), nn.Linear(5, 1), meet
        nn.init.zeros_(self.b.weight)
        nn.init.zeros_(self.b.bias)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3) -> (N, 1)."""
        return self.b(self.meet(torch.tanh(self.a(x))))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "meet",
    [lambda h: h - h.mean(0), lambda h: (h @ h.T).softmax(1) @ h],
    ids=["mean", "attention"],
)
def test_outputs_of_zero_are_not_taken_for_rounding(meet: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    """A head of zeros has derivatives: they show that its examples depend on each other."""
    torch.manual_seed(0)
    x, y = moved(torch.randn(20, 3).to(dtype)), moved(torch.randn(20, 1).to(dtype))
    with pytest.raises(ValueError, match=r"depend on|plain reverse mode"):
        pw.fit(ZeroHead(meet).to(DEVICE, dtype), (x, y), "regression", structure="full")
    la = pw.fit(ZeroHead(torch.sin).to(DEVICE, dtype), (x, y), "regression", structure="full")
    assert "agree with plain reverse mode" in str(la.coverage())
