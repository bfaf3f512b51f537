"""Random networks against plain loops in float64; `make test-random` takes thousands of them."""

from __future__ import annotations

import collections
from typing import Any

import pytest
import torch
from torch import nn

import random_checks
from environment import DEVICE
from random_cases import KEPT
from random_checks import Subject, failures, shrunk, some_checks
from random_count import COUNT
from random_grammar import Network, network_of, owners, random_network, stored_transposed

# On a GPU networks are in float32, as the kernels for it are, and a few of them will do: every call waits for it.
DTYPE = torch.float64 if DEVICE == "cpu" else torch.float32
LEAST = 0.02


@pytest.mark.parametrize("seed", range(COUNT))
def test_a_random_network(seed: int) -> None:
    """Jacobians, matrices, variances, draws and products of a network that nobody thought of."""
    network = random_network(seed)
    found = failures(network, DEVICE, DTYPE, some_checks(seed))
    assert not found, "\n".join([*found, str(network), f"shrink it by: make test-random SEED={seed} COUNT=1"])


@pytest.mark.parametrize("name", KEPT)
def test_a_network_that_was_wrong_once(name: str) -> None:
    """Every check, of what random networks or users found."""
    found = failures(KEPT[name], DEVICE, DTYPE)
    assert not found, "\n".join([*found, str(KEPT[name])])


def test_every_option_of_the_grammar_is_met() -> None:
    """Each in at least two of a hundred networks."""
    count = 1000
    met = collections.Counter(option for seed in range(count) for option in random_network(seed).options)
    rare = {option: met[option] for option in owners() if met[option] < LEAST * count}
    assert not rare


def test_a_network_is_a_function_of_its_seed() -> None:
    """Its program writes it down again, and its weights and inputs are drawn again."""
    for seed in (3, 50, 1234):
        network = random_network(seed)
        assert network_of(network.program, seed) == network
        one, two = network.model(), network.model()
        assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
        assert all(
            torch.equal(a, b) for a, b in zip(network.questions().values(), network.questions().values(), strict=True)
        )
        made: dict[str, Any] = {"Network": Network}
        exec(f"again = {network}", made)
        assert made["again"].source.strip() == network.source.strip()
        assert made["again"].inputs == network.inputs


def test_layouts_keep_the_numbers() -> None:
    """A transposed store has other strides and the same values."""
    model = nn.Sequential(nn.Conv2d(2, 3, 2), nn.Linear(4, 5)).double()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    stored_transposed(model)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert [parameter.is_contiguous() for parameter in model.parameters()] == [False, True, False, True]


PLAIN = Network(
    seed=1,
    inputs={"x": (3,)},
    examples=4,
    outputs=(2,),
    source="""
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))
""",
)


def test_the_comparison_sees_wrong_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are a thousandth off show in every check that compares with the dense references."""
    assert not failures(PLAIN)
    own = Subject.model

    def off(self: Subject, change: Any = lambda model: model) -> nn.Module:
        model = own(self, change)
        with torch.no_grad():
            model.b.weight.mul_(1.001)
        return model

    monkeypatch.setattr(Subject, "model", off)
    names = {each.partition(":")[0] for each in failures(PLAIN)}
    assert {"exact", "ekfac", "products", "draws", "variances"} <= names


def test_examples_that_meet_are_to_be_refused() -> None:
    """The reference tells them from others, and a refusal is right for them alone."""
    source = PLAIN.source.replace("self.a(x)", "self.a(x - x.mean(0))")
    assert Subject(Network(**{**vars(PLAIN), "source": source})).coupling > 0.01
    assert Subject(PLAIN).coupling < 1e-12


def test_failures_are_shrunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left is the step that fails, between an input and a head."""
    seed = next(seed for seed in range(1000) if "cdist to weights" in random_network(seed).options)
    monkeypatch.setattr(
        random_checks,
        "failures",
        lambda network, **_: ["distances: wrong"] if "cdist to weights" in network.options else [],
    )
    smallest, found = shrunk(random_network(seed))
    assert found == ["distances: wrong"]
    assert [step.name for step in smallest.program if step.name not in ("to_vector", "to_sequence")] == [
        "inputs",
        "distances",
        "head",
    ]
