"""More data, and other devices: an update equals a fit to all data, and a posterior moves without its network."""

from __future__ import annotations

import copy
import itertools
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
import reference_dense as dense
from environment import DEVICE
from fitting import Broken, built, classes, cut, fitted, names_of, normal, seeded
from peewit.network.nests import take
from saving import STRUCTURES, assert_same, content_of
from tables import curvature_of, moved, relative, table

EXACT = 1e-10
ADDITIVE = {name: value for name, value in STRUCTURES.items() if "ekfac" not in name}
CASES = [
    "mlp",
    "mlp_regression",
    "conv2d_groups",
    "batch_norm1d",
    "token_classifier",
    "tied_gpt",
    "lstm",
    "weight_norm",
]


def pieces(case: Any, *sizes: int) -> list[tuple[Any, Tensor]]:
    """The data of a case in parts, on the device under test."""
    return cut(case.x, case.y, list(sizes))


def assert_close(one: pw.Laplace, other: pw.Laplace, x: Any, bound: float = EXACT) -> None:
    """The same posterior, up to the order of sums."""
    assert one.space.names == other.space.names and one.state.measurement.rules == other.state.measurement.rules
    assert (one.N, one.state.totals.form) == (other.N, other.state.totals.form)
    assert one.state.totals.scalars == other.state.totals.scalars
    assert one.state.totals.energy == pytest.approx(other.state.totals.energy, rel=1e-12)
    assert float(one.log_evidence()) == pytest.approx(float(other.log_evidence()), rel=1e-10)
    for made, expected in zip(one.functional(x), other.functional(x), strict=True):
        assert relative(made, expected.cpu()) < bound
    assert relative(curvature_of(one), curvature_of(other)) < bound
    assert str(one.coverage()) == str(other.coverage())


@pytest.mark.parametrize("structure", ADDITIVE)
@pytest.mark.parametrize("curvature", ["ggn", pw.MonteCarlo(2), "empirical"])
@pytest.mark.parametrize("name", CASES)
def test_update_equals_fitting_on_both(name: str, curvature: Any, structure: str) -> None:
    """Drawn labels are those of one fit; the first posterior stays as it was."""
    case = table(name)
    first, second = pieces(case, 2, 3)
    whole = case.fit(ADDITIVE[structure], curvature)
    la = pw.fit(copy.deepcopy(whole.model), first, case.likelihood, structure=ADDITIVE[structure], curvature=curvature)
    before = curvature_of(la)
    la.update(second)  # leaves no trace in the next one
    made = la.update(second)
    assert_close(made, whole, moved(case.x))
    assert torch.equal(curvature_of(la.with_prior(1.0)), before)
    assert la.N == 2 and made.N == 5


@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_update_equals_the_definition(structure: str) -> None:
    """The dense reference over both data, not another path of ours."""
    case = table("token_classifier")
    first, second = pieces(case, 2, 3)
    expected = {"kron": case.kron(), "diag": torch.diag(case.ggn.diagonal()), "full": case.ggn}[structure]
    la = pw.fit(case.fit("diag").model, first, case.likelihood, structure=ADDITIVE[structure], curvature="ggn")
    assert relative(curvature_of(la.update(second)), expected) < EXACT


@pytest.mark.parametrize("structure", ADDITIVE)
def test_update_twice_and_after_loading(structure: str, tmp_path: Path) -> None:
    """Data in three parts, with a file between them."""
    case = table("conv2d_groups")
    parts = pieces(case, 1, 2, 2)
    whole = case.fit(ADDITIVE[structure], pw.MonteCarlo(2), prior=0.3, generator=seeded(4))
    la = pw.fit(
        whole.model,
        parts[0],
        case.likelihood,
        structure=ADDITIVE[structure],
        curvature=pw.MonteCarlo(2),
        prior=0.3,
        generator=seeded(4),
    )
    la = la.update(parts[1])
    la.save(tmp_path / "a.safetensors")
    loaded = pw.load(tmp_path / "a.safetensors", whole.model)
    assert_same(la, loaded, moved(case.x))
    made = loaded.update([parts[2]])
    assert_close(made, whole, moved(case.x))
    made.save(tmp_path / "a.safetensors")
    assert_same(made, pw.load(tmp_path / "a.safetensors", whole.model), moved(case.x))


@pytest.mark.parametrize("structure", ADDITIVE)
@pytest.mark.parametrize("curvature", ["ggn", pw.MonteCarlo(2), "empirical"])
def test_update_with_ignored_labels(structure: str, curvature: Any) -> None:
    """In the first part, in the second, and whole examples of them."""
    case = table("token_classifier")
    y = case.y.clone()
    y[0, 1] = y[2, 0] = y[4, 2] = -100
    y[3] = -100
    options: dict[str, Any] = {"structure": ADDITIVE[structure], "curvature": curvature}
    model = case.fit("diag").model
    whole = pw.fit(model, (moved(case.x), moved(y)), case.likelihood, **options)
    first, second = cut(case.x, y, [2, 3])
    assert_close(pw.fit(model, first, case.likelihood, **options).update(second), whole, moved(case.x))


@pytest.mark.parametrize("clip", [False, True])
def test_update_of_a_hessian(clip: bool) -> None:
    """Clipped after it was added, since negative parts of one cancel positive ones of the other."""
    case = table("mlp")
    first, second = pieces(case, 2, 3)
    whole = case.fit("full", pw.Hessian(clip), prior=50.0)
    la = pw.fit(whole.model, first, case.likelihood, structure="full", curvature=pw.Hessian(clip), prior=50.0)
    made = la.update(second)
    assert relative(curvature_of(made), curvature_of(whole)) < EXACT
    assert float(made.log_evidence()) == pytest.approx(float(whole.log_evidence()), rel=1e-10)
    with pytest.raises(ValueError, match="one-shot iterator"):
        la.update(iter([second]))


@pytest.mark.parametrize("structure", ["ekfac", "ekfac joint"])
@pytest.mark.parametrize("name", ["mlp", "conv2d_groups", "token_classifier", "layer_norm"])
def test_ekfac_keeps_its_basis(name: str, structure: str) -> None:
    """Second moments of all data along the first eigenvectors, by the dense matrix; the coverage says so."""
    case = table(name)
    first, second = pieces(case, 3, 2)
    la = pw.fit(case.fit("diag").model, first, case.likelihood, structure=STRUCTURES[structure], curvature="ggn")
    made = la.update(second).update(second)
    exact = case.ggn + dense.ggn(
        case.model, second[0].cpu(), second[1].cpu(), case.case.likelihood, case.names, case.case.axis
    )
    assert made.state.curvature.blocks
    for block, operator in zip(made.precision.blocks, la.precision.blocks, strict=True):
        if not hasattr(block.operator, "left"):
            continue
        for basis, kept in (
            (block.operator.left, operator.operator.left),
            (block.operator.right, operator.operator.right),
        ):
            assert basis is kept or torch.equal(basis, kept)
        size = sum(piece.stop - piece.start for piece in block.slices)
        # The eigenvectors as vectors over the weights: P (U e_i) = values_i U e_i.
        identity = torch.eye(size).to(la.weights)
        vectors = block.operator._spectral(identity, torch.ones_like(block.operator.values), forth=False)
        if block.joint is None:
            (place,) = block.slices
            moments = torch.einsum("ip,pq,iq->i", vectors.cpu(), exact[place, place], vectors.cpu())
            values = block.operator.layout.to_flat(block.operator.values) - 1
            assert relative(values, moments) < 1e-8
    assert str(made.coverage()).count("later data measured along the eigenvectors of the first") == 1
    assert "eigenvectors" not in str(la.coverage())
    assert made.N == 7


def test_ekfac_needs_two_passes() -> None:
    """As in a fit."""
    case = table("mlp")
    first, second = pieces(case, 3, 2)
    la = pw.fit(case.fit("diag").model, first, case.likelihood, structure="ekfac")
    with pytest.raises(ValueError, match="passes over the data twice, and the data is a one-shot iterator"):
        la.update(iter([second]))


@pytest.mark.parametrize("structure", ADDITIVE)
def test_one_shot_iterators(structure: str) -> None:
    """One pass is enough."""
    case = table("mlp")
    first, second = pieces(case, 3, 2)
    la = pw.fit(case.fit("diag").model, first, case.likelihood, structure=ADDITIVE[structure])
    assert_close(la.update(iter([second])), la.update(second), moved(case.x))


class Gated(nn.Module):
    """Uses its second branch only for inputs that ask for it."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = nn.Linear(3, 4), nn.Linear(3, 4)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """The sign of the first number decides, for a batch at a time."""
        hidden = self.always(x)
        if bool(x[0, 0] > 0):
            hidden = hidden + self.sometimes(x)
        return self.head(torch.tanh(hidden))


@pytest.mark.parametrize("structure", [*ADDITIVE, "ekfac"])
@pytest.mark.parametrize("late", [False, True])
def test_weights_that_only_some_data_use(structure: str, late: bool, tmp_path: Path) -> None:
    """They come into the posterior with the data that uses them, and stay in it."""
    model = built(Gated()).to(DEVICE)
    x, y = normal(8, 3), classes(2, 8)
    x[:, 0] = x[:, 0].abs() * torch.tensor([-1.0 if late else 1.0] * 4 + [1.0 if late else -1.0] * 4)
    first, second = cut(x, y, [4, 4])
    options: dict[str, Any] = {"structure": STRUCTURES[structure], "curvature": "ggn"}
    options["prior"] = pw.Prior.groups({"always": 0.5, "*": 2.0})
    la = pw.fit(model, first, "classification", **options)
    assert ("sometimes.weight" in la.space.names) is not late
    la.save(tmp_path / "a.safetensors")
    made = pw.load(tmp_path / "a.safetensors", model).update(second)
    assert "sometimes.weight" in made.space.names and la.state.measurement.asked.size == made.D
    assert made.state.measurement.rules["sometimes.weight"] == "linear"
    if structure != "ekfac":
        exact = dense.ggn(copy.deepcopy(model).cpu(), x[:4], y[:4], "classification", names_of(model))
        exact = exact + dense.ggn(copy.deepcopy(model).cpu(), x[4:], y[4:], "classification", names_of(model))
        found = curvature_of(made.with_prior(1.0))
        if structure in ("diag", "full"):
            assert relative(found, exact if structure == "full" else torch.diag(exact.diagonal())) < 1e-8
    made.save(tmp_path / "a.safetensors")
    assert_same(made, pw.load(tmp_path / "a.safetensors", model), moved(x[4:]))


def test_a_prior_that_does_not_know_new_weights() -> None:
    """One precision per tensor of those that were used says nothing of others."""
    model = built(Gated()).to(DEVICE)
    x, y = normal(8, 3), classes(2, 8)
    x[:, 0] = x[:, 0].abs() * torch.tensor([-1.0] * 4 + [1.0] * 4)
    first, second = cut(x, y, [4, 4])
    la = pw.fit(model, first, "classification", prior=pw.Prior.layerwise([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
    with pytest.raises(ValueError, match=r"sometimes.weight, sometimes.bias was not used by the earlier .*with_prior"):
        la.update(second)
    assert la.state.measurement.asked.size == la.with_prior(2.0).update(second).D


class Sliced(nn.Module):
    """Applies its weight whole to some data, and in another way to other."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(4, 3)), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """The sign of the first number decides."""
        if bool(x[0, 0] > 0):
            hidden = x @ self.weight.exp().T
        else:
            hidden = nn.functional.linear(x, self.weight)
        return self.head(torch.tanh(hidden))


@pytest.mark.parametrize("structure", STRUCTURES)
def test_a_network_that_treats_later_data_otherwise(structure: str) -> None:
    """Factors cannot be added to rows; exact structures do not mind."""
    model = built(Sliced()).to(DEVICE)
    x, y = normal(8, 3), classes(2, 8)
    x[:, 0] = x[:, 0].abs() * torch.tensor([-1.0] * 4 + [1.0] * 4)
    first, second = cut(x, y, [4, 4])
    la = pw.fit(model, first, "classification", structure=STRUCTURES[structure])
    known = copy.deepcopy(la.state.knowledge)
    if structure in ("diag", "block", "full"):
        exact = sum(
            dense.ggn(copy.deepcopy(model).cpu(), x[part], y[part], "classification", names_of(model))
            for part in (slice(0, 4), slice(4, 8))
        )
        found = curvature_of(la.update(second))
        assert relative(found.diagonal(), exact.diagonal()) < 1e-8
    else:
        with pytest.raises(ValueError, match=r"in another way than to the data before .*fit on all data at once"):
            la.update(second)
    assert la.state.knowledge == known


def test_an_update_keeps_the_class_axis() -> None:
    """Where later outputs have as many positions as classes, the earlier ones tell which axis is which."""
    model = built(nn.Conv1d(2, 3, 1)).to(DEVICE)
    batches = [(moved(normal(4, 2, t)), moved(classes(3, 4, t))) for t in (5, 3)]
    whole = pw.fit(model, batches, "classification", structure="full", curvature="ggn")
    made = pw.fit(model, batches[0], "classification", structure="full", curvature="ggn").update(batches[1])
    assert_close(made, whole, batches[0][0])


def test_an_update_keeps_prior_and_noise() -> None:
    """Those of the posterior that is updated, not those of the fit."""
    case = table("mlp_regression")
    first, second = pieces(case, 2, 3)
    model = case.fit("diag").model
    la = pw.fit(model, first, pw.Gaussian(0.5)).with_prior(pw.Prior.scalar(3.0, mean=0.2)).update(second)
    whole = pw.fit(model, (moved(case.x), moved(case.y)), pw.Gaussian(0.5), prior=pw.Prior.scalar(3.0, mean=0.2))
    assert float(la.log_evidence()) == pytest.approx(float(whole.log_evidence()), rel=1e-12)


def test_options_and_batches_of_an_update() -> None:
    """Any batching and budget give the same; bad data is refused as in a fit, and nothing is lost."""
    case = table("mlp")
    first, second = pieces(case, 2, 3)
    la = pw.fit(case.fit("diag").model, first, case.likelihood, curvature="fisher")
    made = la.update(second)
    single = [(take(second[0], slice(i, i + 1)), second[1][i : i + 1]) for i in range(3)]
    assert_close(la.update(single, memory=1e5, progress=False), made, moved(case.x))
    for bad, reason in (
        ([], "The data has no examples"),
        ((second[0], second[1] + 100), "is outside 0"),
        ((second[0] * torch.nan, second[1]), "not finite"),
        ((second[0], second[1][:1]), "inputs and targets of shape"),
    ):
        with pytest.raises(ValueError, match=reason):
            la.update(bad)
    with pytest.raises(ValueError, match="memory=0"):
        la.update(second, memory=0)
    with pytest.raises(KeyboardInterrupt):
        la.update(Broken([second], KeyboardInterrupt()))
    assert_close(la.update(second), made, moved(case.x))
    with torch.no_grad():
        next(la.model.parameters()).add_(1)
    with pytest.raises(pw.MismatchError, match="no longer those it was fitted with"):
        la.update(second)


def test_an_update_is_pure() -> None:
    """The network's mode and gradients, the random state, and what the posterior knows of the network."""
    case = table("batch_norm1d")
    first, second = pieces(case, 2, 3)
    la = pw.fit(case.fit("diag").model.train(), first, case.likelihood)
    state, kept = torch.get_rng_state(), {name: value.clone() for name, value in la.model.state_dict().items()}
    known = copy.deepcopy(la.state.knowledge)
    la.update(second)
    assert torch.equal(state, torch.get_rng_state()) and la.model.training and la.state.knowledge == known
    assert all(torch.equal(value, kept[name]) for name, value in la.model.state_dict().items())
    assert all(parameter.grad is None for parameter in la.model.parameters())


# Devices


@pytest.mark.parametrize("structure", STRUCTURES)
def test_to_the_same_device(structure: str) -> None:
    """A new value with the same answers, for the same network or for a copy."""
    case = table("conv2d_groups")
    la = case.fit(STRUCTURES[structure])
    made = la.to(la.weights.device)
    assert made is not la and made.model is la.model
    assert_same(la, made, moved(case.x))
    twin = copy.deepcopy(la.model)
    assert_same(la, la.to(DEVICE, model=twin), moved(case.x))
    assert_close(made.update((moved(case.x), moved(case.y))), la.update((moved(case.x), moved(case.y))), moved(case.x))


def test_to_a_device_where_the_network_is_not() -> None:
    """It is the user's, and not moved."""
    la = table("mlp").fit("kron")
    with pytest.raises(ValueError, match=r"move to meta, and its network is on .*model\.to\('meta'\) first"):
        la.to("meta")
    with pytest.raises(ValueError, match="device='nowhere' was given; expected a name such as 'cpu'"):
        la.to("nowhere")


def test_to_another_network_is_refused() -> None:
    """Other weights, buffers, names or shapes."""
    case = table("batch_norm1d")
    la = case.fit("kron")
    for change in itertools.chain(dict(la.model.named_parameters()), dict(la.model.named_buffers())):
        other = copy.deepcopy(la.model)
        with torch.no_grad():
            found = {**dict(other.named_parameters()), **dict(other.named_buffers())}[change]
            found.flatten()[-1:].add_(1 if not found.is_floating_point() else 1e-6)
        with pytest.raises(ValueError, match="are not those the posterior was fitted with"):
            la.to(DEVICE, model=other)
    with pytest.raises(ValueError, match="are not those the posterior was fitted with"):
        la.to(DEVICE, model=copy.deepcopy(la.model).float())
    with pytest.raises(ValueError, match="are not those the posterior was fitted with"):
        la.to(DEVICE, model=nn.Linear(2, 3).to(DEVICE))


@pytest.mark.cuda
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("name", ["mlp", "conv2d_groups", "batch_norm1d", "tied_gpt"])
def test_between_devices(name: str, structure: str, tmp_path: Path) -> None:
    """There and back, with a file and an update on the way."""
    case = table(name)
    la = case.fit(STRUCTURES[structure], prior=0.7)
    there = la.to("cpu", model=copy.deepcopy(la.model).cpu())
    assert there.weights.device.type == "cpu" and la.weights.device.type == "cuda"
    expected = la.functional(moved(case.x)).cov.cpu()
    assert relative(there.functional(case.x).cov, expected) < 1e-9
    assert float(there.log_evidence()) == pytest.approx(float(la.log_evidence()), rel=1e-9)
    assert str(there.coverage()) == str(la.coverage())
    la.save(tmp_path / "a.safetensors")
    loaded = pw.load(tmp_path / "a.safetensors", there.model)
    assert relative(loaded.functional(case.x).cov, expected) < 1e-9
    there.save(tmp_path / "b.safetensors")
    first, second = (content_of(tmp_path / f"{name}.safetensors")[1] for name in "ab")
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    back = there.to("cuda", model=la.model)
    assert relative(back.functional(moved(case.x)).cov, expected) < 1e-12
    data = (moved(case.x), moved(case.y))
    assert (
        relative(back.update(data).functional(moved(case.x)).cov, la.update(data).functional(moved(case.x)).cov.cpu())
        < 1e-9
    )
    la.model.cpu()
    assert relative(la.to("cpu").functional(case.x).cov, expected) < 1e-9
    with pytest.raises(pw.MismatchError, match="dtype or device are no longer those"):
        la.functional(case.x)


@pytest.mark.cuda
def test_to_a_device_before_the_network() -> None:
    """The message says what to do."""
    la = fitted(built(nn.Linear(3, 2)), normal(5, 3), classes(2, 5), "classification")
    with pytest.raises(ValueError, match=r"move to cpu, and its network is on cuda:0.*model\.to\('cpu'\) first"):
        la.to("cpu")


def test_nobody_writes_to_what_was_measured() -> None:
    """Rules and timings are read-only views; copies and pickled posteriors have them too."""
    case = table("mlp")
    la = fitted(case.model, case.x, case.y, case.likelihood)
    for posterior in (la, copy.deepcopy(la), pickle.loads(pickle.dumps(la)), la.update((case.x, case.y))):
        for name in ("rules", "timings"):
            values = getattr(posterior.state.measurement, name)
            with pytest.raises(TypeError, match="does not support item assignment"):
                values["x"] = 1
        assert posterior.state.measurement.rules == la.state.measurement.rules
        assert posterior.timings.keys() == {"measure", "decompose"}
