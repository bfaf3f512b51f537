"""Exported predictors predict what `la.predict` does: as programs of torch.export, and as files in onnxruntime."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from fitting import classes, fitted, normal
from peewit.network.nests import take
from peewit.predictions.families import FAMILIES
from peewit.serving import files
from peewit.serving.export import PROGRAMS
from peewit.serving.exported import average, cholesky, digamma
from snapshots import same, snapshot
from tables import moved

BOUND = 1e-5
LABELS = ("probs", "epistemic", "entropy")
VALUES = ("mean", "epistemic", "variance")
ONNX = all(importlib.util.find_spec(name) for name in ("onnx", "onnxscript", "onnxruntime"))
needs_onnx = pytest.mark.skipif(not ONNX, reason="no onnx, onnxscript or onnxruntime")


def single(*shape: int, seed: int = 1) -> Tensor:
    """Standard normal numbers in float32."""
    return normal(*shape, seed=seed).float()


def perceptron(outputs: int) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))


def lenet(outputs: int) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 5, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(20, 9), nn.ReLU(), nn.Linear(9, outputs),
    )  # fmt: skip


def normed(outputs: int) -> nn.Module:
    """Its running statistics are those of some data."""
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, outputs)
    )
    for _ in range(5):
        model(2 * single(20, 1, 10, 10, seed=5) + 1)
    return model


NETWORKS = {"mlp": (perceptron, (4,)), "lenet": (lenet, (1, 10, 10)), "batchnorm": (normed, (1, 10, 10))}


def posterior(network: str, likelihood: str, structure: Any = "kron", **options: Any) -> tuple[pw.Laplace, Tensor]:
    """A fit of the last layer in float32, with inputs that it has not seen."""
    make, shape = NETWORKS[network]
    targets = classes(3, 24) if likelihood == "classification" else single(24, 2, seed=3)
    model = make(3 if likelihood == "classification" else 2)
    family = pw.Gaussian(0.3) if likelihood == "regression" else likelihood
    la = fitted(model, single(24, *shape), targets, family, structure, weights="last_layer", **options)
    return la, moved(single(7, *shape, seed=8))


def assert_close(outputs: dict[str, Tensor], expected: pw.Prediction, names: tuple[str, ...]) -> None:
    """Every output, in its shape and dtype."""
    assert tuple(outputs) == names
    for name, value in outputs.items():
        wanted = getattr(expected, name)
        assert value.shape == wanted.shape and value.dtype == wanted.dtype, name
        assert float((value - wanted).abs().max()) < BOUND, name


def session(path: Path) -> Any:
    """A file in onnxruntime, on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def answers(path: Path, **inputs: Tensor) -> dict[str, Tensor]:
    """What onnxruntime says, by the names in the file."""
    model = session(path)
    assert [each.name for each in model.get_inputs()] == [*inputs]
    arrays = model.run(None, {name: tensor.cpu().numpy() for name, tensor in inputs.items()})
    names = [each.name for each in model.get_outputs()]
    return {name: torch.from_numpy(array).to(DEVICE) for name, array in zip(names, arrays, strict=True)}


@needs_onnx
@pytest.mark.parametrize("likelihood", ["classification", "regression"])
@pytest.mark.parametrize("network", NETWORKS)
def test_programs_and_files_of_every_network(network: str, likelihood: str, tmp_path: Path) -> None:
    """From one input, for one and for seven; the files too, read again. The network stays as it was."""
    la, x = posterior(network, likelihood)
    before = snapshot(la.model)
    predictor = la.predictor(x[:1])
    program = predictor.export(tmp_path / "model.pt2")
    predictor.export(tmp_path / "model.onnx")
    assert same(snapshot(la.model), before)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["model.onnx", "model.pt2"]
    read = torch.export.load(tmp_path / "model.pt2")
    names = LABELS if likelihood == "classification" else VALUES
    for number in (1, 7):
        expected = la.predict(x[:number])
        for outputs in (
            program.module()(x[:number]),
            read.module()(x[:number]),
            answers(tmp_path / "model.onnx", x=x[:number]),
        ):
            assert_close(outputs, expected, names)


@pytest.mark.parametrize(
    ("structure", "link"),
    [
        ("kron", "bridge"),
        (pw.Kron(bias="joint"), "probit"),
        ("diag", "bridge_normalised"),
        ("diag", "probit"),
        ("full", "probit"),
        ("block", "bridge"),
    ],
    ids=str,
)
def test_structures_and_links(structure: Any, link: Any) -> None:
    la, x = posterior("mlp", "classification", structure)
    program = la.predictor(x[:2], link=link).export()
    for number in (1, 7):
        assert_close(program.module()(x[:number]), la.predict(x[:number], link=link), LABELS)


@needs_onnx
@pytest.mark.parametrize(("structure", "link"), [("full", "probit"), ("kron", "bridge")])
def test_what_onnx_has_no_operation_for(structure: str, link: Any, tmp_path: Path) -> None:
    """Decompositions, and the digamma function."""
    la, x = posterior("mlp", "classification", structure)
    la.predictor(x[:1], link=link).export(tmp_path / "model.onnx")
    assert_close(answers(tmp_path / "model.onnx", x=x), la.predict(x, link=link), LABELS)


def counts(model: nn.Module, structure: str) -> pw.Laplace:
    return fitted(model, single(24, 4), classes(5, 24, 2).float(), "count", structure, weights="last_layer")


def yes_or_no(model: nn.Module, structure: str) -> pw.Laplace:
    return fitted(model, single(24, 4), classes(2, 24, 2).float(), "binary", structure, weights="last_layer")


@pytest.mark.parametrize("structure", ["kron", "full"])
@pytest.mark.parametrize(("fit", "names"), [(counts, VALUES), (yes_or_no, LABELS)])
def test_likelihoods_of_single_outputs(fit: Any, names: tuple[str, ...], structure: str) -> None:
    la, x = fit(perceptron(2), structure), moved(single(7, 4, seed=8))
    assert_close(la.predictor(x[:1]).export().module()(x), la.predict(x), names)


@pytest.mark.parametrize("weights", [["2.weight"], ["2.bias"]], ids=str)
@pytest.mark.parametrize("structure", ["diag", "full"])
def test_parts_of_the_last_layer(structure: str, weights: list[str]) -> None:
    la = fitted(perceptron(3), single(24, 4), classes(3, 24), "classification", structure, weights=weights)
    x = moved(single(7, 4, seed=8))
    assert_close(la.predictor(x[:1]).export().module()(x), la.predict(x), LABELS)


@pytest.mark.parametrize("weights", ["last_layer", ["2.weight"], ["2.bias"]], ids=str)
def test_the_linear_mode(weights: Any) -> None:
    """Its outputs are those of another last layer."""
    options: dict[str, Any] = {"weights": weights, "at": "linear_mode"}
    la = fitted(perceptron(3), single(24, 4), classes(3, 24), "classification", **options)
    x = moved(single(7, 4, seed=8))
    expected = la.predict(x, at="linear_mode")
    assert_close(la.predictor(x[:1], at="linear_mode").export().module()(x), expected, LABELS)
    assert float((expected.output_mean - la.predict(x).output_mean).abs().max()) > 100 * BOUND


def test_outputs_without_an_axis() -> None:
    """`squeeze` behind the last layer, as regressions have it; in float64."""
    model = nn.Sequential(*perceptron(1), nn.Flatten(0)).double()
    la = fitted(model, normal(24, 4), normal(24, seed=2), pw.Gaussian(0.3), weights="last_layer")
    x = moved(normal(7, 4, seed=8))
    outputs = la.predictor(x[:1]).export().module()(x)
    assert outputs["mean"].shape == (7,)
    assert_close(outputs, la.predict(x), VALUES)


class Sum(nn.Module):
    """Inputs by name; the output by name, too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.left, self.right, self.head = nn.Linear(4, 6), nn.Embedding(5, 6), nn.Linear(6, 3)

    def forward(self, token: Tensor, place: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(torch.tanh(self.left(place) + self.right(token)))}


@needs_onnx
def test_inputs_by_name(tmp_path: Path) -> None:
    """They keep their names in a file."""
    batch = {"token": classes(5, 24), "place": single(24, 4)}
    model = Sum().to(DEVICE)
    la = pw.fit(model, [moved({**batch, "labels": classes(3, 24)})], "classification", weights="last_layer")
    x: Any = moved(batch)
    program = la.predictor(take(x, slice(0, 1))).export(tmp_path / "model.onnx")
    assert_close(program.module()(x), la.predict(x), LABELS)
    assert_close(answers(tmp_path / "model.onnx", **x), la.predict(x), LABELS)


def test_tokens_through_attention() -> None:
    """Outputs with positions; torch's fused encoder is left alone, as everywhere."""
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.Sequential(nn.Embedding(11, 8), nn.TransformerEncoder(layer, 1), nn.Linear(8, 4)).eval()
    ids = classes(11, 24, 5)
    la = fitted(model, ids, classes(4, 24, 5, seed=3), "classification", weights="last_layer")
    x = moved(classes(11, 7, 5, seed=8))
    outputs = la.predictor(x[:1], samples=256).export().module()(x)
    assert outputs["probs"].shape == (7, 5, 4) and outputs["epistemic"].shape == (7, 5)
    assert_close(outputs, la.predict(x, samples=256), LABELS)


def test_a_fixed_number_of_inputs() -> None:
    la, x = posterior("mlp", "regression")
    program = la.predictor(x).export(batch=3)
    assert_close(program.module()(x[:3]), la.predict(x[:3]), VALUES)
    with pytest.raises(Exception, match="3"):
        program.module()(x[:4])


def test_a_program_has_weights_of_its_own() -> None:
    """Training the network further changes nothing, nor does writing into the inputs that a predictor was made for."""
    la, x = posterior("batchnorm", "regression")
    asked = x[:1].clone()
    predictor, expected = la.predictor(asked), la.predict(x)
    asked.fill_(torch.nan)
    program = predictor.export()
    with torch.no_grad():
        for tensor in (*la.model.parameters(), *la.model.buffers()):
            tensor.add_(1)
    assert_close(program.module()(x), expected, VALUES)
    with pytest.raises(pw.MismatchError):
        predictor.export()


@pytest.mark.skipif(DEVICE != "cpu", reason="the other process has no device")
def test_a_file_needs_no_peewit(tmp_path: Path) -> None:
    """Another process loads it with torch alone."""
    la, x = posterior("mlp", "classification")
    la.predictor(x[:1]).export(tmp_path / "model.pt2")
    torch.save(x, tmp_path / "x.pt")
    code = """
        import sys
        import torch
        sys.modules["peewit"] = None
        x = torch.load("x.pt")
        torch.save(torch.export.load("model.pt2").module()(x), "outputs.pt")
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, check=True, timeout=120)
    assert_close(torch.load(tmp_path / "outputs.pt"), la.predict(x), LABELS)


# What is refused


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "draws": ({"link": "mc"}, r"link='mc' averages over draws.*expected link='probit' or link='bridge'"),
    "sampled": ({"method": "sampled"}, r"works by sampled weights.*only the last layer in closed form.*'linearised'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_ways_without_a_closed_form(name: str, tmp_path: Path) -> None:
    options, words = REFUSED[name]
    la, x = posterior("mlp", "classification")
    with pytest.raises(pw.PeewitError, match=words):
        la.predictor(x, **options).export(tmp_path / "model.pt2")
    assert not list(tmp_path.iterdir())


def test_all_weights() -> None:
    la = fitted(perceptron(3), single(24, 4), classes(3, 24), "classification")
    with pytest.raises(pw.PeewitError, match=r"works by recorded passes; only the last layer.*weights='last_layer'"):
        la.predictor(moved(single(1, 4))).export()


def test_every_closed_link_has_a_program_or_none_on_purpose() -> None:
    """Two tables with one row for each family; the default link of a family is the first that is advised."""
    without = {"heteroscedastic": {"natural", "mean"}}
    for family, row in FAMILIES.items():
        closed = [link for link in row.links if link != "mc" and link not in without.get(family, ())]
        assert [*PROGRAMS.get(family, ())] == closed, f"a row for {family} in PROGRAMS of serving/export.py, or here"
    assert set(PROGRAMS) <= set(FAMILIES)


def test_likelihoods_without_a_closed_form() -> None:
    la = fitted(perceptron(2), single(24, 4), single(24, 1), "heteroscedastic", weights="last_layer")
    with pytest.raises(pw.PeewitError, match=r"Predictions of HeteroscedasticGaussian cannot.*Categorical, Bernoulli"):
        la.predictor(moved(single(1, 4))).export()
    pairs = pw.Pair(moved(single(9, 4)), moved(single(9, 4, seed=2)))
    rewards = pw.fit(perceptron(1).to(DEVICE), pairs, "preference", weights="last_layer")
    with pytest.raises(pw.PeewitError, match=r"Predictions of pairs of inputs cannot be exported"):
        rewards.predictor(pairs).export()


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("model.pt", pw.PeewitError, r"'model.pt' ends in '.pt'; expected a name that ends in .pt2.*.onnx"),
        ("none/model.pt2", FileNotFoundError, "does not exist; make it first"),
        ("folder.pt2", IsADirectoryError, "is a folder"),
    ],
)
def test_places_that_are_none(path: str, error: type[Exception], words: str, tmp_path: Path) -> None:
    la, x = posterior("mlp", "regression")
    (tmp_path / "folder.pt2").mkdir()
    with pytest.raises(error, match=words):
        la.predictor(x).export(tmp_path / path)


@pytest.mark.parametrize("batch", [0, True, 2.0, "any"])
def test_numbers_of_inputs_that_are_none(batch: Any) -> None:
    la, x = posterior("mlp", "regression")
    with pytest.raises(pw.PeewitError, match=rf"batch={batch!r} was given; expected None"):
        la.predictor(x).export(batch=batch)


@pytest.mark.parametrize("name", files.PACKAGES)
def test_packages_are_missed_before_the_work(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    la, x = posterior("mlp", "regression")
    predictor = la.predictor(x)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda each: None if each in files.PACKAGES[:1] + (name,) else find(each)
    )
    monkeypatch.setattr(torch.export, "export", lambda *_, **__: pytest.fail("it works"))
    with pytest.raises(pw.MissingPackageError, match=rf"needs onnx.*pip install .*{name}$"):
        predictor.export(tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@needs_onnx
def test_files_that_onnx_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    la, x = posterior("mlp", "regression")
    monkeypatch.setattr(files, "LARGEST", 100)
    with pytest.raises(pw.PeewitError, match=r"holds 0.0 GiB of numbers.*write a .pt2 file"):
        la.predictor(x).export(tmp_path / "model.onnx")


class Choosing(nn.Module):
    """A choice by the values of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = perceptron(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x if bool((x.abs() < 1e6).all()) else -x)


class Noticing(Choosing):
    """Other inputs where it is traced."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(2 * x if torch.compiler.is_exporting() else x)


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Choosing, r"torch.export cannot trace this network for any number of inputs: .*With batch=1"),
        (Noticing, r"gives another 'probs' than the predictor.*leaves out something"),
    ],
)
def test_networks_that_cannot_be_traced(model: type[nn.Module], words: str) -> None:
    la = fitted(model(), single(24, 4), classes(3, 24), "classification", weights="last_layer")
    with pytest.raises(pw.PeewitError, match=words):
        la.predictor(moved(single(1, 4))).export()


def test_too_many_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    la, x = posterior("mlp", "classification")
    monkeypatch.setattr("peewit.serving.export.DRAWS", 1000)
    with pytest.raises(pw.PeewitError, match=r"takes 4096 draws of 1 x 3 numbers.*samples=.*fewer draws, or link="):
        la.predictor(x).export()
    la.predictor(x, samples=100).export()


def test_too_many_classes_for_a_covariance(monkeypatch: pytest.MonkeyPatch) -> None:
    la, x = posterior("mlp", "classification", "full")
    monkeypatch.setattr("peewit.serving.export.DENSE_CLASSES", 2)
    with pytest.raises(pw.PeewitError, match=r"covariance of 3 classes.*takes up to 2 classes.*structure='kron'"):
        la.predictor(x).export()


# Functions that ONNX has no operations for, or less precise ones


@pytest.mark.parametrize("number", [1, 7, 12, 4096])
def test_averages_in_stages(number: int) -> None:
    """Of any number of draws."""
    draws = normal(number, 3, 2)
    torch.testing.assert_close(average(draws), draws.mean(0))


def test_the_digamma_function() -> None:
    x = torch.cat([torch.linspace(1, 20, 500, dtype=torch.float64), torch.logspace(0, 80, 500, dtype=torch.float64)])
    torch.testing.assert_close(digamma(x), torch.digamma(x), rtol=1e-10, atol=1e-11)


def test_cholesky_factors() -> None:
    """Of regular matrices torch's own; of singular ones a root."""
    roots = normal(3, 4, 5)
    matrices = roots @ roots.mT
    torch.testing.assert_close(cholesky(matrices), torch.linalg.cholesky(matrices))
    singular = roots[..., :2] @ roots[..., :2].mT
    factor = cholesky(singular)
    torch.testing.assert_close(factor @ factor.mT, singular, rtol=0.0, atol=1e-5)
