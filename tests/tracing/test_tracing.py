"""One forward pass: what it costs, what it is seen to use, and what nothing can be learnt from."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import reference_dense as dense
from environment import DEVICE
from jacobian_cases import normal
from peewit.runtime.arithmetic import as_arithmetic
from peewit.runtime.memory import Budget
from peewit.tracing.doubling import double
from peewit.tracing.knowledge import Knowledge, KnowledgeLearner, signature
from peewit.tracing.recording import Again, Recording
from peewit.tracing.tracer import Tracer
from tracing_parts import jacobian_of, network, numbers, tracer_of

close = torch.testing.assert_close


class Counted(nn.Module):
    """A layer, with weights that no rule knows where they are asked for."""

    def __init__(self, further: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.passes = nn.Linear(3, 2), 0
        self.more = nn.Parameter(torch.randn(further)) if further else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 2)."""
        self.passes += 1
        made = self.layer(x)
        return made if self.more is None else made + self.more.cumsum(0).sin().sum()


@pytest.mark.parametrize(("examples", "doubled_to"), [(1, 1), (2, 4), (9, 6)])
def test_bytes_of_an_example(examples: int, doubled_to: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers in the layers and the output, and three rows of each weight that has the generic rule."""
    verified: list[Any] = []
    monkeypatch.setattr("peewit.tracing.tracer.verify", lambda *given: verified.append(given))
    model, x = Counted().double().to(DEVICE), normal(examples, 3)
    tracer = tracer_of(model)
    assert tracer.cost(x) == tracer.cost(x[:1]) == 8 * (2 + 2)
    assert model.passes == 1  # over what is learnt from, and none for another question
    assert tracer.learner.knowledge.shape(x) == (2,) and tracer.learner.knowledge.is_closed(x)
    ((several, given, _),) = verified
    assert several.probes and several.learner is tracer.learner and given is x and not tracer.probes
    other = tracer_of(Counted(5).double().to(DEVICE))
    assert other.cost(x) == 8 * (2 + 2 + 3 * 5) and not other.learner.knowledge.is_closed(x)
    assert other.trace(double(x)).examples == doubled_to


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (lambda net, x: net.a(x) / 0 * 0, r"output is NaN, although the input is finite"),
        (lambda net, x: net.a(x)[:, :0], r"^The network has no outputs: its shape is \(N, 0\)"),
    ],
)
def test_outputs_that_nothing_can_be_learnt_from(forward: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused before anything is compared."""
    compared: list[Any] = []
    monkeypatch.setattr("peewit.tracing.tracer.verify", lambda *given: compared.append(given))
    with pytest.raises(ValueError, match=words):
        tracer_of(network(forward, a=nn.Linear(4, 4))).cost(normal(5, 4))
    assert not compared


def sloped(net: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        given = x.detach().requires_grad_()
        return torch.autograd.grad(net.a(given).tanh().sum(), given, create_graph=True)[0]


@pytest.mark.parametrize(("forward", "second"), [(sloped, True), (lambda net, x: net.a(x).tanh(), False)])
def test_networks_that_differentiate_themselves(forward: Any, second: bool) -> None:
    """It is known after one pass, which was begun again."""
    model, x = network(forward, a=nn.Linear(4, 4)), normal(5, 4)
    tracer = tracer_of(model)
    found = jacobian_of(tracer.trace(x))
    assert tracer.learner.knowledge.second is second
    recording = Recording({}, KnowledgeLearner(Knowledge(second=second)), 5, signature(x), watch=False, probes=False)
    with nullcontext() if second else pytest.raises(Again):
        recording._begin_again()
    assert recording.learner.knowledge.second
    close(found, dense.jacobian(model.cpu(), x.cpu(), list(tracer.parameters)).to(DEVICE))


@pytest.mark.parametrize(
    ("step", "vectorised", "batched"),
    [
        (lambda x: x.tanh(), True, True),
        (lambda x: nn.functional.prelu(x, torch.tensor([0.3]).to(x)), False, True),
        (lambda x: torch.cdist(x[:, None], torch.ones(1, 2).to(x))[:, 0], False, False),
    ],
    ids=["tanh", "prelu", "cdist"],
)
def test_steps_that_torch_maps_wrongly(step: Callable[[Tensor], Tensor], vectorised: bool, batched: bool) -> None:
    """Are not mapped over, in this batch and later ones."""
    model, x = Counted().double().to(DEVICE), normal(6, 3)
    whole = nn.Sequential(model, nn.Identity())
    whole[1].forward = step  # type: ignore[method-assign]
    tracer = tracer_of(whole)
    close(jacobian_of(tracer.trace(x)).cpu(), dense.jacobian(whole.cpu(), x.cpu(), list(tracer.names)))
    whole.to(DEVICE)
    assert (tracer.learner.knowledge.vectorised, tracer.learner.knowledge.batched) == (vectorised, batched)
    whole[1].forward = lambda x: x  # type: ignore[method-assign]
    tracer.trace(x)
    assert (tracer.learner.knowledge.vectorised, tracer.learner.knowledge.batched) == (vectorised, batched)


def test_what_is_selected() -> None:
    """Parameters by name, in the network's order; products have the widest dtype, and float32 at least."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).to(DEVICE)
    tracer = Tracer(model, ("1.weight", "0.bias"), Budget(1 << 20))
    assert list(tracer.parameters) == ["0.bias", "1.weight"] and tracer.selected[0] is model[0].bias
    assert (tracer.create_graph, tracer.probes, tracer.dtype) == (False, False, torch.float32)
    model[1].weight.data = model[1].weight.data.double()
    model[0].bias.data = model[0].bias.data.half()
    assert Tracer(model, ("1.weight", "0.bias"), Budget(1 << 20)).dtype == torch.float64
    assert Tracer(model, ("0.bias",), Budget(1 << 20)).dtype == torch.float32
    learner = KnowledgeLearner()
    assert Tracer(model, ("0.bias",), Budget(1), learner).learner is learner
    for name, predicting, exact in (("float32", True, True), ("tf32", False, False), ("auto", True, False)):
        budget = Budget(1, as_arithmetic(name))
        assert Tracer(model, ("0.bias",), budget, predicting=predicting).exact is exact


class Varied(nn.Module):
    """A layer called twice and once without gradients, a parameter that is multiplied, and a table without examples."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.factor, self.table = nn.Linear(3, 3), nn.Parameter(torch.randn(3)), nn.Embedding(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 3)."""
        hidden = self.layer(self.layer(x).tanh()).tanh() * self.factor
        with torch.no_grad():
            self.layer(x)
        return hidden + self.table(torch.arange(2, device=x.device)).sum(0)


KEYS = ["linear/layer.weight/layer.bias/1", "linear/layer.weight/layer.bias/2"]


KEYS += ["multiplied parameter/factor/1", "embedding/table.weight/1"]


LIFTED = "lift/embedding/table.weight/1/1"


@pytest.mark.parametrize("examples", [1, 5])
def test_what_a_pass_is_seen_to_use(examples: int) -> None:
    """Each call by its rule, weights and number; not those without gradients, nor those of weights not selected."""
    model, x = Varied().double().to(DEVICE), normal(examples, 3)
    tape = tracer_of(model).trace(x)
    assert [use.key for use in tape.uses] == KEYS and not tape.generic and not tape.learner.knowledge.copied
    assert [use.lifted for use in tape.uses] == [False] * 3 + [examples > 1]
    assert [lift.key for lift in tape.lifts] == [LIFTED] * (examples > 1)
    assert [len(use.below) for use in tape.uses] == [0, 1, 0, 0]
    assert [use.shape for use in tape.uses] == [(examples, 3)] * 3 + [(2, 3)]
    assert {use.dtype for use in tape.uses} == {torch.float64}
    close(jacobian_of(tape).cpu(), dense.jacobian(model.cpu(), x.cpu(), list(tape.parameters)))
    model.to(DEVICE)
    fewer = Tracer(model, ("factor",), Budget(1 << 20)).trace(x)
    assert [use.key for use in fewer.uses] == KEYS[2:3]
    generic = tracer_of(model)
    generic.learner.make_generic(["layer.weight"])
    kept = [use.key for use in generic.trace(x).uses]
    assert not any("layer.weight" in key for key in kept) and KEYS[2] in kept


def test_what_a_pass_shows() -> None:
    """The inputs of each use; the results of steps whose operands were broadcast to the examples."""
    model, x = Varied().double().to(DEVICE), normal(5, 3)
    tracer = tracer_of(model)
    seen = tracer.watch(x)
    first = model.layer(x).tanh()
    scaled = model.layer(first).tanh() * model.factor
    expected = {KEYS[0]: x, KEYS[1]: first, KEYS[2]: scaled, KEYS[3]: numbers(0, 1)}
    expected[LIFTED] = model(x)
    assert set(seen) == set(expected)
    for key, (found,) in seen.items():
        close(found.double(), expected[key].detach().double())
        assert not found.requires_grad
    assert "lift" not in "".join(tracer.watch(x[:1]))
