"""Weights whose scale does not matter: which are found, and what that means for priors and variances."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from cases import randomise
from environment import DEVICE
from invariant_networks import NETWORKS, Cosine, cnn, mlp
from peewit.priors.groupings import ScaleInvariant
from peewit.priors.invariance import invariant_sets, nonnegative
from tables import moved


def found(model: nn.Module, x: Any) -> set[frozenset[str]]:
    """As sets, on the device under test."""
    sets = invariant_sets(model.to(DEVICE), (moved(x), torch.zeros(len(x))))
    assert len({name for own in sets for name in own}) == sum(map(len, sets))
    return {frozenset(own) for own in sets}


def state(model: nn.Module) -> dict[str, Any]:
    """Everything that must come back: values, identities, modes, hooks and attributes."""
    made: dict[str, Any] = {
        name: (id(t), t.detach().clone(), t._version) for name, t in model.state_dict(keep_vars=True).items()
    }
    for name, module in model.named_modules():
        made[f"{name} training"] = module.training
        made[f"{name} hooks"] = len(module._forward_hooks)
        made[f"{name} eps"] = getattr(module, "eps", None), getattr(module, "track_running_stats", None)
        made[f"{name} weight"] = vars(module).get("weight")
    return made


def same(first: Any, second: Any) -> bool:
    """Bit for bit."""
    if isinstance(first, Tensor):
        return torch.equal(first, second)
    if isinstance(first, tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return bool(first == second)


@pytest.mark.parametrize("name", NETWORKS)
def test_sets_that_are_known(name: str) -> None:
    """All of them and no others, whatever the biases' size; nothing of the network changes."""
    known = NETWORKS[name]
    model, x = known.build().to(DEVICE), known.inputs()
    model.train()
    before, drawn = state(model), torch.random.get_rng_state()
    assert found(model, x) == known.sets
    after = state(model)
    assert before.keys() == after.keys() and all(same(before[key], after[key]) for key in before)
    assert torch.equal(drawn, torch.random.get_rng_state())


@pytest.mark.parametrize("name", ["transformer", "resnet", "batch norm", "weight norm, layer norm"])
def test_sets_are_those_of_the_function_and_not_of_its_weights(name: str) -> None:
    """Zeros, large weights, float64 and half precision give the same ones."""
    known = NETWORKS[name]
    model, x = known.build(), known.inputs()
    zeros = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in [*zeros.parameters()]:
            if parameter.dim() == 1 and (parameter != 1).any():
                parameter.zero_()
    large = copy.deepcopy(model)
    with torch.no_grad():
        for own in known.sets:
            for key in own:
                large.get_parameter(key).mul_(30.0)
    assert found(zeros, x) == known.sets
    assert found(large, x) == known.sets
    assert found(copy.deepcopy(model).bfloat16(), x if x.dtype == torch.long else x.bfloat16()) == known.sets
    assert found(model.double(), x if x.dtype == torch.long else x.double()) == known.sets


def test_what_does_next_to_nothing_is_no_set() -> None:
    """A branch that is scaled down, and weights that are not used, pass the test of scales."""

    class Faint(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.main, self.branch = nn.Linear(4, 3), nn.Linear(4, 3)
            self.scale = nn.Parameter(torch.full((3,), 1e-4))

        def forward(self, x: Tensor) -> Tensor:
            return self.main(x) + self.scale * self.branch(x)

    x = torch.randn(20, 4)
    assert found(Faint(), x) == set()
    assert not any("unused" in name for own in found(Cosine(), x) for name in own)


def test_the_network_comes_back_after_an_exception() -> None:
    """Buffers, eps, hooks and modes."""

    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.calls = cnn(nn.BatchNorm2d), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls > 4:
                raise ArithmeticError("no more")
            return self.body(x)

    model = Fails().train().to(DEVICE)
    before = state(model)
    with pytest.raises(ArithmeticError, match="no more"):
        found(model, torch.randn(8, 2, 7, 7))
    after = state(model)
    assert all(same(before[key], after[key]) for key in before)


def test_data_in_every_form() -> None:
    """A pair of tensors, a list of batches and a loader; one example is too few."""
    model, x = mlp(nn.LayerNorm).to(DEVICE), torch.randn(100, 4).to(DEVICE)
    y = torch.zeros(100)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x.cpu(), y), batch_size=32, shuffle=True)
    first = pw.Prior.scale_invariant(model, (x, y)).sets
    assert first == (("0.weight", "0.bias"), ("3.weight", "3.bias"))
    assert pw.Prior.scale_invariant(model, [(x[:20], y[:20])]).sets == first
    assert pw.Prior.scale_invariant(model, loader).sets == first
    with pytest.raises(ValueError, match=r"first batch has 1 example; expected 2"):
        pw.Prior.scale_invariant(model, (x[:1], y[:1]))


def test_nonnegative_least_squares() -> None:
    """As scipy's, on problems with and without an exact solution."""
    optimize = pytest.importorskip("scipy.optimize")
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        matrix = torch.randn(12, 8, generator=generator, dtype=torch.float64)
        exact = (torch.rand(8, generator=generator) > 0.5).double()
        target = matrix @ exact if seed % 2 else torch.randn(12, generator=generator, dtype=torch.float64)
        made = nonnegative(matrix.T @ matrix, matrix.T @ target)
        expected = torch.from_numpy(optimize.nnls(matrix.numpy(), target.numpy())[0])
        assert torch.allclose(made, expected, atol=1e-8)


@pytest.fixture
def small() -> tuple[nn.Module, Tensor, Tensor]:
    """A network with two sets, an unused layer in front of its weights, and data."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.aside = nn.Linear(2, 2)
            self.body = mlp(nn.LayerNorm)

        def forward(self, x: Tensor) -> Tensor:
            return self.body(x)

    x = torch.randn(30, 4, dtype=torch.float64)
    model = Network().double()
    randomise(model)
    return model.to(DEVICE), x.to(DEVICE), torch.randint(3, (30,)).to(DEVICE)


def test_one_precision_per_tensor_or_per_set(small: tuple[nn.Module, Tensor, Tensor]) -> None:
    """The groups, their names and numbers, also without the weights that turn out to be unused."""
    model, x, y = small
    each = pw.Prior.scale_invariant(model, (x, y), precision=2.0)
    assert each.grouping.name == "layerwise" and each.sets == (
        ("body.0.weight", "body.0.bias"),
        ("body.3.weight", "body.3.bias"),
    )
    la = pw.fit(model, (x, y), "classification", prior=each)
    plain = pw.fit(model, (x, y), "classification", prior=pw.Prior.layerwise(2.0))
    assert torch.equal(la.log_evidence(), plain.log_evidence())
    merged = pw.Prior.scale_invariant(model, (x, y), merge=True, precision=2.0)
    la = pw.fit(model, (x, y), "classification", prior=merged)
    names = ["body.0.weight + body.0.bias", "body.1.weight", "body.1.bias", "body.3.weight + body.3.bias"]
    assert [*la.prior.names(la.space)] == [*names, "body.4.weight", "body.4.bias", "body.6.weight", "body.6.bias"]
    numbers = la.prior.group(la.space)
    expected = [
        number
        for number, shape in zip([0, 0, 1, 2, 3, 3, 4, 5, 6, 7], la.space.shapes, strict=True)
        for _ in range(shape.numel())
    ]
    assert numbers.tolist() == expected
    tuned = la.tune("fixed_point")
    assert tuned.prior.precision.numel() == 8 and tuned.prior.sets == merged.sets
    gamma = tuned.evidence().effective_dimensions
    theta = [tuned.weights[numbers == number].square().sum() for number in range(8)]
    assert torch.allclose(tuned.prior.precision * torch.stack(theta).cpu(), gamma, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block", "full"])
def test_merged_sets_in_every_structure(small: tuple[nn.Module, Tensor, Tensor], structure: str) -> None:
    """As the same groups given by name."""
    model, x, y = small
    values = [2.0, 0.3, 0.7, 1.3, 5.0, 0.9, 1.1, 4.0]
    merged = pw.Prior.scale_invariant(model, (x, y), merge=True)
    la = pw.fit(model, (x, y), "classification", structure=structure, prior=merged)
    la = la.with_prior(la.prior.with_precision(torch.tensor(values)))
    keys = [
        "body.0",
        "body.1.weight",
        "body.1.bias",
        "body.3",
        "body.4.weight",
        "body.4.bias",
        "body.6.weight",
        "body.6.bias",
    ]
    named = pw.Prior.groups(dict(zip(keys, torch.tensor(values).tolist(), strict=True)))
    assert torch.allclose(la.log_evidence(), la.log_evidence(prior=named), rtol=1e-12)


def test_precisions_follow_their_sets_when_weights_are_unused() -> None:
    """A set whose first tensor is not used keeps its own precision, although it now is named later."""

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.c(torch.tanh(self.b(x)))

    sets = (("a.weight", "c.weight"), ("b.weight", "b.bias"))
    prior = pw.Prior(ScaleInvariant(sets), torch.tensor([1.0, 2.0, 3.0, 4.0]))  # a.w + c.w, a.b, b, c.b
    la = pw.fit(
        Network().to(DEVICE), (torch.randn(9, 3).to(DEVICE), torch.randint(2, (9,))), "classification", prior=prior
    )
    assert [*la.prior.names(la.space)] == ["b.weight + b.bias", "c.weight", "c.bias"]
    assert la.prior.precision.tolist() == [3.0, 1.0, 4.0]


def test_sets_are_shown_and_saved(small: tuple[nn.Module, Tensor, Tensor], tmp_path: Path) -> None:
    """In the table of weights only where there are some; in files always."""
    model, x, y = small
    for merge in (False, True):
        prior = pw.Prior.scale_invariant(model, (x, y), merge=merge)
        la = pw.fit(model, (x, y), "classification", prior=prior).tune("fixed_point", steps=200, tolerance=1e-3)
        table = la.coverage()
        assert table["body.0.weight"].invariance == "invariant with body.0.bias"
        assert table["body.1.bias"].invariance == ""
        assert str(table).splitlines()[2].split() == ["parameter", "shape", "rule", "approximation", "invariance"]
        la.save(tmp_path / "posterior.safetensors")
        again = pw.load(tmp_path / "posterior.safetensors", model)
        assert again.prior.sets == prior.sets and again.prior.grouping == prior.grouping
        assert torch.equal(again.log_evidence(), la.log_evidence())
    bare = la.with_prior(1.0).coverage()
    assert "invariance" not in str(bare) and not any(row.invariance for row in bare)


def test_groups_that_straddle_a_set(small: tuple[nn.Module, Tensor, Tensor]) -> None:
    """Of one precision all sets, of named groups those with a precision in common with others, else none."""
    model, x, y = small
    first, second = (("body.0.weight", "body.0.bias"), ("body.3.weight", "body.3.bias"))
    space = pw.fit(model, (x, y), "classification").space
    sets = pw.Prior.scale_invariant(model, (x, y)).sets
    assert pw.Prior.scalar().straddling(space, sets) == [first, second]
    assert pw.Prior.groups({"body.0": 1.0, "*": 2.0}).straddling(space, sets) == [second]
    assert pw.Prior.groups({"*.weight": 1.0, "*": 2.0}).straddling(space, sets) == [first, second]
    fine: list[pw.Prior] = [pw.Prior.layerwise(), pw.Prior.unitwise(), pw.Prior.diagonal(), pw.Prior.g_prior()]
    for prior in [*fine, pw.Prior(ScaleInvariant(sets), torch.ones(1))]:
        assert prior.straddling(space, sets) == []
    other = pw.Prior(ScaleInvariant((("body.0.bias", "body.1.bias"),)), torch.ones(1))
    assert other.straddling(space, sets) == [first] and other.straddling(space) == []
