"""The generic rule: rows of the Jacobian where no layer rule applies, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
import reference
import reference_dense as dense
from environment import DEVICE
from peewit.runtime.memory import budget
from peewit.tracing import generic
from peewit.tracing.forward_mode import Push
from peewit.tracing.knowledge import KnowledgeLearner
from tables import curvature_of, relative


class Switched(nn.Module):
    """A network in which the sign of an input decides on further weights, and a switch on any."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.waves = nn.Linear(3, 2), nn.Parameter(torch.randn(2))
        self.off = False

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 2); the inputs of a batch have the same sign."""
        made = self.layer(x)
        if float(x[0, 0]) > 0:
            made = made + torch.stack([self.waves.cos().prod(), self.waves.sin().sum()])
        return made.detach() if self.off else made


def test_a_later_batch_may_use_further_weights() -> None:
    """In a way that no rule knows; all batches count them."""
    model = Switched().double().to(DEVICE)
    x, y = torch.randn(6, 3).double().to(DEVICE), torch.randn(6, 2).double().to(DEVICE)
    x[:, 0] = x[:, 0].abs() * torch.tensor([-1, -1, 1, 1, -1, -1], device=DEVICE)
    batches = [(x[start : start + 2], y[start : start + 2]) for start in (0, 2, 4)]
    la = pw.fit(model, batches, "regression", structure="full")
    names = [name for name, _ in model.named_parameters()]
    place = torch.cat([torch.arange(*reference.ranges(model, names)[name]) for name in la.space.names])
    expected = dense.ggn(model.cpu(), x.cpu(), y.cpu(), "regression", names)[place][:, place]
    assert relative(curvature_of(la), expected) < 1e-8


def test_outputs_without_weights_do_not_move() -> None:
    """Row by row, as where a network has neither forward mode nor second derivatives."""
    model = Switched().double().to(DEVICE)
    x, y = torch.randn(4, 3).double().to(DEVICE), torch.randn(4, 2).double().to(DEVICE)
    x[:, 0] = x[:, 0].abs()
    la = pw.fit(model, (x, y), "regression")
    vectors = torch.randn(5, la.D).double().to(DEVICE)
    push = Push(model, la.space, KnowledgeLearner(), budget(None, x.device))
    jacobian = dense.jacobian(Switched().double(), x.cpu(), list(la.space.names))
    expected = torch.einsum("nfd,sd->snf", jacobian, vectors.cpu())
    torch.testing.assert_close(push._rows(x, vectors)[1].cpu(), expected)
    model.off = True
    output, pushed = Push(model, la.space, KnowledgeLearner(), budget(None, x.device))._rows(x, vectors)
    torch.testing.assert_close(output, model(x))
    assert torch.equal(pushed, torch.zeros_like(pushed)) and pushed.shape == (5, 4, 2)


class Scripted(nn.Module):
    """A scripted part without weights below a weight that needs the generic rule."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.part = nn.Parameter(torch.randn(3, 2)), torch.jit.script(nn.Tanh())

    def forward(self, x: Tensor) -> Tensor:
        return self.part(x @ self.w.exp())


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_the_generic_rule_says_what_it_cannot_look_into() -> None:
    """By names of weights and of the scripted part, or of the network itself."""
    model = Scripted().to(DEVICE)
    x, probes = torch.randn(4, 3, device=DEVICE), torch.randn(2, 4, 2, device=DEVICE)
    learner = KnowledgeLearner()
    for network, where in ((model, r"\('part'\)"), (torch.jit.script(nn.Linear(3, 2)), r"\('the network itself'\)")):
        with pytest.raises(ValueError, match=rf"^w, b can only be reached by the generic rule.*{where}; expected"):
            generic.generic_rows(network, x, ("w", "b"), probes, budget(None, x.device), learner)


def test_the_generic_rule_does_not_hide_that_memory_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other errors lead to one example at a time; that one would not be cured by it."""
    model = nn.Linear(3, 2).double().to(DEVICE)
    x, probes = torch.randn(4, 3).double().to(DEVICE), torch.randn(2, 4, 2).double().to(DEVICE)
    names, room = ("weight", "bias"), budget(None, x.device)
    expected = {"weight": torch.einsum("kbo,bi->kboi", probes, x).flatten(2), "bias": probes}

    def fails(error: Exception) -> Any:
        def raises(*_: Any) -> Any:
            raise error

        return raises

    learner = KnowledgeLearner()
    for own in (generic._map_examples, fails(TypeError("axes"))):
        monkeypatch.setattr(generic, "_map_examples", own)
        assert learner.knowledge.vectorised
        found = generic.generic_rows(model, x, names, probes, room, learner)
        for name in names:
            torch.testing.assert_close(found[name], expected[name])
    assert not learner.knowledge.vectorised
    monkeypatch.setattr(generic, "_map_examples", fails(torch.OutOfMemoryError("none left")))
    with pytest.raises(torch.OutOfMemoryError, match="none left"):
        generic.generic_rows(model, x, names, probes, room, KnowledgeLearner())


class Partly(nn.Module):
    """Of two weights one is used where the first input is positive, and none where it is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(3, 2))

    def forward(self, x: Tensor) -> Tensor:
        assert len(x) == 1
        if float(x[0, 0]) == 0:
            return x[:, :2].clone()
        return (x @ (self.one if float(x[0, 0]) > 0 else self.two)).square()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_generic_rule_one_example_at_a_time(dtype: torch.dtype) -> None:
    """What an example does not use has zeros; rows are in float32 at least, and differentiable where asked for."""
    torch.manual_seed(0)
    model = Partly().to(DEVICE, dtype)
    x = torch.tensor([[1.0, 2.0, -1.0], [-1.0, 0.5, 2.0], [0.0, 1.0, 1.0]], device=DEVICE, dtype=dtype)
    probes = torch.randn(2, 3, 2, device=DEVICE, dtype=dtype)
    learner = KnowledgeLearner()
    rows = generic.generic_rows(model, x, ("one", "two"), probes, budget(None, x.device), learner)
    assert not learner.knowledge.vectorised
    for place, (name, used) in enumerate((("one", 0), ("two", 1))):
        made = rows[name]
        assert made.shape == (2, 3, 6) and made.dtype == torch.promote_types(dtype, torch.float32)
        assert not made.requires_grad and not bool(made[:, [1 - place, 2]].any())
        output = x[used] @ model.get_parameter(name).detach()
        expected = torch.einsum("i,ko->kio", x[used], 2 * output * probes[:, used]).flatten(1)
        torch.testing.assert_close(
            made[:, used], expected.to(made.dtype), rtol=2e-2 if dtype == torch.bfloat16 else 1e-9, atol=0
        )
    again = generic.generic_rows(model, x, ("one",), probes, budget(None, x.device), learner, create_graph=True)
    (twice,) = torch.autograd.grad(again["one"].sum(), model.one)
    assert bool(twice.any())
