"""Data in every form that is accepted, what is refused and how, memory budgets, and lower precision."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, TensorDataset

import peewit as pw
import reference
import reference_dense as dense
from environment import DEVICE
from fitting import built, classes, cut, fitted, names_of, normal, seeded
from networks import Network
from peewit.curvature.structures import NAMES as STRUCTURES
from peewit.runtime.memory import Budget
from sequence_networks import gpt_positions, token_classifier
from tables import curvature_of, moved, relative, table

EXACT = 1e-9


def small() -> nn.Module:
    """(B, 4) to (B, 3)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        return built(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))


class Stream(IterableDataset):
    """A dataset without a length."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.rows = list(zip(x, y, strict=True))

    def __iter__(self) -> Any:
        """One example at a time."""
        return iter(self.rows)


@pytest.mark.parametrize("structure", ["kron", "full", "ekfac"])
def test_every_form_of_data_gives_the_same(structure: str) -> None:
    """Loaders, lists, generators, iterable datasets and pairs of tensors; N is what was seen."""
    x, y = normal(10, 4), classes(3, 10)
    model = small().to(DEVICE)
    batches = cut(x, y, [4, 4, 2])
    forms = {
        "pair": (x, y),
        "loader": DataLoader(TensorDataset(x, y), batch_size=3),
        "stream": DataLoader(Stream(x, y), batch_size=4),
        "list": batches,
        "tuple of batches": tuple(batches),
        "lists as batches": [list(batch) for batch in batches],
        "mappings": [OrderedDict(input=given, labels=labels) for given, labels in batches],
        "empty batches between": [batches[0], (x[:0], y[:0]), *batches[1:]],
        "generator": (batch for batch in batches),
        "iterator": iter(batches),
    }
    expected = reference.kron(small(), x, y, "classification", names_of(model))
    if structure == "full":
        expected = dense.ggn(small(), x, y, "classification", names_of(model))
    elif structure == "ekfac":
        expected = curvature_of(pw.fit(model, (x, y), "classification", structure="ekfac"))
    for form, data in forms.items():
        if structure == "ekfac" and form in ("generator", "iterator"):
            with pytest.raises(ValueError, match=r"twice.*one-shot.*DataLoader"):
                pw.fit(model, data, "classification", structure=structure)
            continue
        la = pw.fit(model, data, "classification", structure=structure)
        assert (form, la.N) == (form, 10)
        assert relative(curvature_of(la), expected) < EXACT, form


def test_one_shot_iterators() -> None:
    """A generator is read once, also where the last layer is looked for first; a second fit finds it empty."""
    x, y = normal(6, 4), classes(3, 6)
    model = small().to(DEVICE)
    data = (batch for batch in cut(x, y, [2, 4]))
    la = pw.fit(model, data, "classification", weights="last_layer", structure="full")
    assert la.N == 6
    expected = dense.ggn(small(), x, y, "classification", ["2.weight", "2.bias"])
    assert relative(curvature_of(la), expected) < EXACT
    with pytest.raises(ValueError, match="already used up"):
        pw.fit(model, data, "classification")
    for options in (
        {"weights": pw.Subnetwork.largest_variance(3), "structure": "diag"},
        {"structure": "full", "curvature": "hessian"},
    ):
        with pytest.raises(ValueError, match="one-shot"):
            pw.fit(model, iter(cut(x, y, [2, 4])), "classification", **options)
    with pytest.raises(ValueError, match="one-shot"):
        pw.products(model, iter(cut(x, y, [2, 4])), "classification")


@pytest.mark.parametrize("name", ["several_inputs", "mapping_input", "bilinear"])
def test_several_inputs(name: str) -> None:
    """Tuples are positions, mappings keywords; a mapping may hold its labels."""
    case = table(name)
    model = case.case.make()[0].to(DEVICE)
    forms: list[Any] = [(moved(case.x), moved(case.y)), cut(case.x, case.y, [2, 3])]
    if name == "mapping_input":
        for key in ("labels", "target", "y"):
            forms.append([{**given, key: labels} for given, labels in cut(case.x, case.y, [2, 3])])
    else:
        forms.append([(list(given), labels) for given, labels in cut(case.x, case.y, [2, 3])])
    for data in forms:
        la = pw.fit(model, data, case.likelihood, structure="full", curvature="ggn")
        assert la.N == 5 and relative(curvature_of(la), case.ggn) < EXACT


def test_examples_are_counted_as_they_come() -> None:
    """A sampler with replacement counts an example every time it is seen."""
    x, y = normal(5, 4), classes(3, 5)
    sampler = RandomSampler(range(5), replacement=True, num_samples=13, generator=seeded(1))
    seen = torch.tensor(list(RandomSampler(range(5), replacement=True, num_samples=13, generator=seeded(1))))
    la = pw.fit(
        small().to(DEVICE), DataLoader(TensorDataset(x, y), 4, sampler=sampler), "classification", structure="full"
    )
    assert la.N == 13
    assert relative(curvature_of(la), dense.ggn(small(), x[seen], y[seen], "classification", names_of(small()))) < EXACT


def test_passes_that_differ_are_refused() -> None:
    """Two passes of EKFAC that see different numbers of examples are told apart."""

    class Growing:
        """One batch more every time."""

        passes = 0

        def __iter__(self) -> Any:
            self.passes += 1
            return iter(cut(normal(6, 4), classes(3, 6), [2, 2, 2])[: self.passes])

    with pytest.raises(ValueError, match=r"first pass.*second"):
        pw.fit(small().to(DEVICE), Growing(), "classification", structure="ekfac")


class Noisy:
    """Two batches of the same examples in every pass: with other noise on them, or in another order."""

    def __init__(self, noise: float, dtype: torch.dtype, other: bool = False) -> None:
        self.noise, self.dtype, self.other, self.passes = noise, dtype, other, 0

    def __iter__(self) -> Any:
        self.passes += 1
        order = torch.randperm(40, generator=seeded(self.passes))
        x = normal(40, 4) + self.noise * normal(40, 4, seed=self.passes)
        y = classes(3, 40, seed=self.passes if self.other else 2)
        return iter(cut(x[order].to(self.dtype), y[order], [25, 15]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("noise", [0.5, 0.05, 0.0])
def test_data_that_are_drawn_anew_in_every_pass(noise: float, dtype: torch.dtype) -> None:
    """EKFAC, whose second pass sees other data, and the linear mode say so; another order is fine."""
    if noise == 0.05 and dtype == torch.float32 and DEVICE != "cpu":
        pytest.skip("so little is not told from the rounding of a GPU")
    model = small().to(DEVICE, dtype)

    def heard(ask: Callable[[], Any]) -> list[str]:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            ask()
        return [str(each.message) for each in said]

    found = heard(lambda: pw.fit(model, Noisy(noise, dtype), "classification", structure="ekfac"))
    assert len(found) == bool(noise)
    assert all("in the first pass" in each and "structure='kron'" in each for each in found)
    assert heard(lambda: pw.fit(model, Noisy(noise, dtype), "classification")) == []
    la = pw.fit(model, Noisy(noise, dtype), "classification")
    found = heard(lambda: la.at_linear_mode(Noisy(2 * noise, dtype)))
    assert len(found) == bool(noise) and all("augmentations drawn anew" in each for each in found)


def test_passes_with_other_labels() -> None:
    """The inputs are the same, and the labels are drawn anew."""
    with pytest.warns(UserWarning, match=r"in the first pass.*in the second"):
        pw.fit(small().to(DEVICE), Noisy(0.0, torch.float64, other=True), "classification", structure="ekfac")


@pytest.mark.parametrize("build", [token_classifier, gpt_positions])
@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("merge", [2048, 1])
def test_sequences_of_several_lengths(build: Any, structure: str, merge: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of different lengths in one loader, one of them as long as it has examples."""
    monkeypatch.setattr("peewit.curvature.pieces.MERGED_EXAMPLES", merge)
    model = built(build())
    shapes = [(3, 2), (3, 3), (2, 1), (4, 3), (1, 3)]
    batches = [(classes(5, *shape, seed=i), classes(3, *shape, seed=20 + i)) for i, shape in enumerate(shapes)]
    batches[1][1][0, 1] = -100
    names = names_of(model)
    data = [(moved(x), moved(y)) for x, y in batches]
    la = pw.fit(model.to(DEVICE), data, "classification", structure=structure, curvature="ggn")
    model.cpu()
    assert la.N == 13
    exact = sum(dense.ggn(model, x, y, "classification", names) for x, y in batches)
    made = curvature_of(la)
    if structure == "full":
        assert relative(made, exact) < EXACT
    elif structure == "diag":
        assert relative(made.diagonal(), exact.diagonal()) < EXACT
    elif structure in ("ekfac", "block"):
        assert relative(made.trace(), exact.trace()) < EXACT
    else:
        sums = [reference.blocks(model, x, y, "classification", names)[0] for x, y in batches]
        for block in sums[0]:
            if block.exact is None:
                row = sum(each.row_factor for part in sums for each in part if each.key == block.key)
                index = block.index.flatten()
                turned = made[index[:, None], index].reshape(*block.index.shape, *block.index.shape)
                # The trace over the inputs of G (x) A is G times A's trace, and traces are known.
                found = torch.einsum("aibi->ab", turned)
                assert relative(found / found.trace(), row / row.trace()) < 1e-8
    energy = sum(dense.energy(model, x, y, "classification") for x, y in batches)
    assert abs(la.state.totals.energy - float(energy)) < 1e-9 * float(energy)
    assert la.state.totals.scalars == sum(y.numel() for _, y in batches) - 1
    model.to(DEVICE)
    for x, _ in data[:3]:
        cov = la.functional(x).cov
        assert cov.shape == (*x.shape, 3, 3) and bool(torch.isfinite(cov).all())


@pytest.mark.parametrize(
    "name", ["conv2d", "token_classifier", "vision_transformer", "lstm", "tied_gpt", "segmentation"]
)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_memory_splits_work_and_changes_nothing(name: str, structure: str) -> None:
    """A tiny budget gives the numbers of a large one, in fits and in covariances."""
    case = table(name)
    for kind in ("ggn", pw.MonteCarlo(2)):
        whole = case.fit(structure, kind)
        for memory in (20_000, 1):
            la = case.fit(structure, kind, memory=memory)
            assert relative(curvature_of(la), curvature_of(whole)) < 1e-10
    x = moved(case.x)
    la = case.fit(structure)
    covariance = torch.linalg.inv(curvature_of(la) + torch.eye(la.D, dtype=torch.float64))
    marginal = dense.functional_covariance(case.jacobian[:, :, case.index(la)], covariance).diagonal(dim1=1, dim2=2)
    for memory in (None, 20_000, 1):
        variance = la.functional(x, variance_only=True, memory=memory).cov
        assert relative(variance.reshape(marginal.shape), marginal) < 1e-8
        assert relative(la.functional(x, memory=memory).cov, la.functional(x).cov.cpu()) < 1e-10
        joint = la.functional(x, joint=True, memory=memory).cov
        assert relative(joint, la.functional(x, joint=True).cov.cpu()) < 1e-10
    # The same draw of the weights at all inputs, also where the inputs do not fit together.
    tight = pw.Laplace(replace(la.state, budget=Budget(1)))
    draws = [each.functional_samples(x, 2, generator=torch.Generator().manual_seed(1)).cpu() for each in (la, tight)]
    assert relative(draws[1], draws[0]) < 1e-10


@pytest.mark.parametrize("memory", [0, -5, "2GB", True, float("nan")])
def test_memory_that_is_no_number_of_bytes(memory: Any) -> None:
    """Refused with what was given."""
    model, data = small().to(DEVICE), (normal(3, 4), classes(3, 3))
    with pytest.raises(ValueError, match=r"memory=.*positive number of bytes"):
        pw.fit(model, data, "classification", memory=memory)
    with pytest.raises(ValueError, match=r"memory=.*positive number of bytes"):
        pw.fit(model, data, "classification").functional(data[0], memory=memory)


REFUSED: dict[str, tuple[Any, str, type[Exception], str]] = {
    "empty loader": ([], "classification", ValueError, "no examples"),
    "empty tensors": ((normal(0, 4), classes(3, 0)), "classification", ValueError, "no examples"),
    "lengths of a pair": ((normal(4, 4), classes(3, 3)), "classification", ValueError, r"4 inputs.*\(3,\)"),
    "lengths of a batch": ([(normal(4, 4), classes(3, 3))], "classification", ValueError, r"4 inputs.*\(3,\)"),
    "float labels": ((normal(3, 4), normal(3)), "classification", TypeError, r"float64.*integers.*'regression'"),
    "label range": ((normal(3, 4), torch.tensor([0, 5, 1])), "classification", ValueError, "label 5 is outside"),
    "negative label": ((normal(3, 4), torch.tensor([0, -1, 1])), "classification", ValueError, "label -1 is outside"),
    "one-hot labels": ((normal(3, 4), torch.eye(3).long()), "classification", ValueError, r"\(3, 3\) do not fit"),
    "broadcast target": ((normal(5, 4), normal(5, 1)), "regression", ValueError, r"\(5, 3\).*\(5, 1\)"),
    "flat target": ((normal(5, 4), normal(5)), "regression", ValueError, r"\(5, 3\).*\(5,\)"),
    "class numbers": ((normal(5, 4), classes(3, 5)), "regression", ValueError, "'classification'"),
    "labels in a row": ((normal(5, 4), classes(3, 1, 5)), "classification", ValueError, r"Give y\[0\]"),
    "one tensor": (normal(5, 4), "classification", TypeError, "one tensor"),
    "a number": (3, "classification", TypeError, "int"),
    "three in a batch": ([(normal(2, 4), classes(3, 2), 1)], "classification", TypeError, "tuple of 3"),
    "no labels": ([{"input": normal(2, 4)}], "classification", ValueError, "'labels'"),
    "no batch axis": ([(torch.tensor(1.0), torch.tensor(1))], "classification", ValueError, "leading axis"),
    "unknown likelihood": ((normal(2, 4), classes(3, 2)), "classifcation", ValueError, "did you mean 'classification'"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_say_what_is_wrong(what: str) -> None:
    """Shapes, types and ranges that do not fit are refused with what was given and what was expected."""
    data, likelihood, error, message = REFUSED[what]
    with pytest.raises(error, match=message):
        pw.fit(small().to(DEVICE), data, likelihood)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("where", ["input", "target", "weight"])
def test_numbers_that_are_not_finite_are_named(structure: str, where: str) -> None:
    """NaN in an input, a target or a weight ends the fit with an error that says so, not with a result."""
    model = built(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)))
    x, y = normal(6, 4), normal(6, 2, seed=2)
    if where == "weight":
        model[2].weight.data[1, 2] = float("inf")
    else:
        (x if where == "input" else y)[3, 1] = float("nan")
    with pytest.raises(ValueError, match=r"(NaN|Inf)"):
        fitted(model, x, y, "regression", structure)


def named_output(self: Network, x: Tensor) -> dict[str, Tensor]:
    """Logits under a name, as model libraries return them."""
    return {"logits": self.head(x), "hidden": x}


def test_outputs_under_a_name() -> None:
    """Logits are found in a mapping; something without them is refused."""
    model = built(Network(named_output, head=nn.Linear(4, 3)))
    x, y = normal(5, 4), classes(3, 5)
    expected = dense.ggn(model.head, x, y, "classification", ["weight", "bias"])
    assert relative(curvature_of(fitted(model, x, y, "classification", "full")), expected) < EXACT
    wrong = built(Network(lambda self, given: (self.head(given), given), head=nn.Linear(4, 3)))
    with pytest.raises(TypeError, match="expected a tensor, or something with `logits`"):
        fitted(wrong, x, y, "classification")


# A GPU multiplies in TF32 and 16 bits where its user allows the first, as torch's convolutions do by default.
LOWER = {torch.float32: 2e-4 if DEVICE == "cpu" else 1e-3, torch.bfloat16: 0.15}


@pytest.mark.parametrize("dtype", LOWER, ids=str)
@pytest.mark.parametrize("name", ["mlp", "conv2d", "token_classifier", "vision_transformer", "batch_norm2d"])
@pytest.mark.parametrize("structure", ["kron", "diag", "ekfac", "full"])
def test_networks_of_lower_precision(name: str, structure: str, dtype: torch.dtype) -> None:
    """Sums, bases and results are float32 at least, and near those of the network in float64."""
    case = table(name)
    model, x, y = case.case.make(dtype=dtype)
    data = moved(x), moved(y)
    la = pw.fit(model.to(DEVICE), data, case.likelihood, structure=structure, curvature="ggn")
    assert la.weights.dtype == torch.float32
    made = curvature_of(la)
    assert made.dtype == torch.float32
    exact = curvature_of(case.fit(structure))
    assert float((made.double() - exact).norm() / exact.norm()) < LOWER[dtype]
    cov = la.functional(data[0]).cov
    expected = case.fit(structure).functional(moved(case.x)).cov
    assert bool(torch.isfinite(cov).all())
    assert float((cov.double() - expected).norm() / expected.norm()) < LOWER[dtype]
    assert bool(torch.isfinite(la.log_evidence()))
    samples = la.functional_samples(data[0], 2, generator=torch.Generator().manual_seed(0))
    assert bool(torch.isfinite(samples).all()) and bool(torch.isfinite(la.predict(data[0]).probs).all())
