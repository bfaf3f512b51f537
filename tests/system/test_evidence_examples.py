"""The scripts that compare where the evidence is taken run in their quick form, and their tables say what they mean."""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import json
import lzma
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from environment import ROOT

FOLDER = ROOT / "examples" / "evidence"
NAMES = {
    "mnist_mlps": ["mlp-mnist"],
    "lenet": ["lenet"],
    "resnets": ["resnet-batchnorm", "resnet-fixup"],
    "transformer": ["transformer"],
    "unet": ["unet"],
    "large": ["large"],
    "normalised": ["normalised-none", "normalised-batchnorm"],
}
STRUCTURES = {"normalised": "kron, "}  # where a script has several, one of them


Script = Callable[[str], ModuleType]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """Scripts as modules that find their common parts; without a folder of data sets."""
    monkeypatch.delenv("PEEWIT_DATA", raising=False)
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for path in FOLDER.glob("*.py"):
        sys.modules.pop(path.stem, None)


def rows(folder: Path, name: str) -> dict[str, dict[str, Any]]:
    """What a script wrote, by row."""
    return {row["name"]: row for row in json.loads((folder / f"{name}.json").read_text())["rows"]}


@pytest.mark.filterwarnings("ignore:Covariances of .* outputs per example are estimated")  # of images
@pytest.mark.parametrize("name", list(NAMES))
def test_script_compares_the_ways(
    name: str, script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with torch.random.fork_rng(devices=[]):
        script(name).main(["--quick", "--out", str(tmp_path), *(["--groups"] if name == "large" else [])])
    for kept in NAMES[name]:
        made = rows(tmp_path, kept)
        assert next(iter(made)) == "MAP"
        ways = [
            f"{STRUCTURES.get(name, '')}evidence at {mode}, {groups}"
            for mode in ("theta_hat", "theta_lin")
            for groups in ("one precision", "one per tensor")
        ]
        for way in ways:
            scores = made[way]["scores"]
            assert all(math.isfinite(scores[each]) for each in ("nll", "evidence", "gamma", "seconds"))
        # One number for all is a special case of one per tensor, so the best of the latter have the larger evidence.
        assert made[ways[1]]["scores"]["evidence"] >= made[ways[0]]["scores"]["evidence"] - 1e-3
        assert (tmp_path / f"{kept}.png").is_file() == (importlib.util.find_spec("matplotlib") is not None)
    printed = capsys.readouterr().out
    assert ways[-1] in printed and "test NLL" in printed


def test_landscape_shows_a_mode_of_the_linear_model_alone(script: Script, tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        made = script("landscape").main(["--quick", "--out", str(tmp_path)])
    at_mode = made.linear[(made.b.abs()).argmin(), (made.a - made.plane.mode[0]).abs().argmin()]
    at_trained = made.linear[(made.b.abs()).argmin(), made.a.abs().argmin()]
    assert at_mode < at_trained
    assert at_mode <= made.linear.min() + 0.05 * (made.linear.max() - made.linear.min())  # to the grid's spacing
    # Both models agree where they touch.
    middle = made.b.abs().argmin(), made.a.abs().argmin()
    assert abs(float(made.a[middle[1]])) > 0.5 or torch.isclose(made.network[middle], made.linear[middle], rtol=0.2)
    assert torch.allclose(made.plane.axes @ made.plane.axes.T, torch.eye(2, dtype=torch.float64), atol=1e-6)


def test_separable_classes_are_doubted_by_the_evidence_alone(script: Script, tmp_path: Path) -> None:
    made = script("separable").main(["--quick", "--out", str(tmp_path)])
    probabilities = {name: float(values[-1]) for name, values in made.probabilities.items()}
    assert (
        probabilities["evidence"] < 0.9 < 0.99 < min(probabilities[name] for name in ("network", "exact", "training"))
    )
    step = made.weights[1] - made.weights[0]
    assert all(float(density.sum() * step) == pytest.approx(1, abs=1e-3) for density in made.densities.values())
    assert float(made.densities["exact"][made.weights < 0].sum() * step) < 1e-4
    assert (tmp_path / "separable.png").is_file() == (importlib.util.find_spec("matplotlib") is not None)


@pytest.mark.filterwarnings("ignore::peewit.TuningWarning")  # KFAC is to stop before the mode
def test_the_full_curvature_finds_the_mode_of_the_unet(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a few products, while KFAC gets nowhere near: it ignores what layers and positions share."""
    unet = script("unet")
    monkeypatch.setattr(unet, "SOLVE", 5)
    with torch.random.fork_rng(devices=[]):
        found = unet.main(["--quick", "--exact"])
    assert found["full"].converged and found["full"].passes[-1] < 5
    assert not found["kron"].converged and found["kron"].losses[-1] > found["full"].losses[-1] + 1


def test_groups_are_switched_off_whatever_the_features_were_learned_from(script: Script) -> None:
    """The evidence of one precision per tensor is the larger one, and most tensors are off, for fresh labels too."""
    pytest.importorskip("sklearn")
    with torch.random.fork_rng(devices=[]):
        found = script("features").main(["--quick"])
    by_case = {(each.features, each.prior): each for each in found}
    for features in ("of these labels", "of other labels", "untrained"):
        one, several = (by_case[features, f"one {prior}"] for prior in ("precision", "per tensor"))
        assert several.evidence > one.evidence and one.off == 0 and several.off >= 3
        assert all(math.isfinite(each) for each in (one.nll, several.nll, one.nll_at_mode, several.nll_at_mode))


def test_architectures_are_ranked_by_each_way(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row for each way on each data set, whose numbers are in order."""
    pytest.importorskip("sklearn")
    module = script("architectures")
    with torch.random.fork_rng(devices=[]):
        lines = module.main(["--quick", "--sets", "diabetes,digits", "--out", str(tmp_path)])
    assert [(each.data, each.way) for each in lines] == [
        (data, way) for data in ("diabetes", "digits") for way in module.WAYS
    ]
    for each in lines:
        assert -1 <= each.correlation <= 1 and each.chosen_fit <= each.best_fit and each.mean_fit <= each.best_fit
        assert each.chosen in ("1 x 2", "1 x 4", "2 x 2", "2 x 4")
    printed = capsys.readouterr().out
    assert "evidence at linear mode" in printed and "chosen (depth x width)" in printed
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == (
        {"architectures-diabetes.html", "architectures-digits.html"} if importlib.util.find_spec("plotly") else set()
    )


@pytest.mark.data
def test_architectures_read_the_tables_of_a_folder(script: Script, data_dir: Path) -> None:
    """The standard splits, standardised by the training part alone."""
    split = script("architectures").split_of("yacht", 1, data_dir)
    content = np.load(data_dir / "uci" / "yacht.npz")
    tested = content["test_mask"][1]
    assert len(split.train[0]) == int((~tested).sum()) and len(split.test[1]) == int(tested.sum())
    assert float(split.train[1].mean()) == pytest.approx(0, abs=1e-9)
    assert float(split.train[1].std(correction=0)) == pytest.approx(1)
    expected = (content["y"][tested] - content["y"][~tested].mean()) / content["y"][~tested].std()
    assert split.test[1][:, 0].tolist() == pytest.approx(expected.tolist())


def test_bytes_and_differences_are_read_as_they_were_written(script: Script, tmp_path: Path) -> None:
    readers = script("readers")
    images = torch.randint(256, (3, 5, 4), dtype=torch.uint8)
    head = bytes([0, 0, 8, 3]) + b"".join(size.to_bytes(4, "big") for size in images.shape)
    (tmp_path / "some.gz").write_bytes(gzip.compress(head + images.numpy().tobytes()))
    assert torch.equal(readers.idx(tmp_path / "some.gz"), images)
    pixels = np.random.default_rng(0).integers(256, size=(2, 4, 4, 3), dtype=np.uint8)
    planes = pixels.transpose(3, 0, 1, 2).copy()
    planes[0] -= planes[1]
    planes[2] -= planes[1]
    for axis in (2, 3):
        planes = np.diff(planes, axis=axis, prepend=np.uint8(0))
    with lzma.open(tmp_path / "some.xz", "wb") as file:
        np.save(file, planes)
    assert np.array_equal(readers.rgb(tmp_path / "some.xz"), pixels)


def test_a_learnt_prior_stops_overfitting(script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In the quick form there is little to stop; the costs are counted, and what is learnt beats the tiny precision."""
    with torch.random.fork_rng(devices=[]):
        choices = {each.name: each for each in script("overfitting").main(["--quick", "--out", str(tmp_path)])}
    content = json.loads((tmp_path / "overfitting.json").read_text())
    curves = content["curves"]
    assert len(curves["fixed"]["test"]) == len(curves["learnt"]["test"]) == 4
    # The evidence is looked at in both runs; a fixed precision that is far too small costs it much.
    assert max(curves["learnt"]["evidence"]) > max(curves["fixed"]["evidence"])
    assert choices["evidence, one precision"].trainings == "1"
    assert choices["a fifth held out"].trainings == "2 + 1"
    assert choices["five-fold cross-validation"].trainings == "10 + 1"
    single, several = (choices[name].seconds for name in ("a fifth held out", "five-fold cross-validation"))
    assert several > single > choices["tiny weight decay"].seconds
    assert choices["the test data themselves"].nll == min(curves["test"])
    assert "x plain" in capsys.readouterr().out
    assert (tmp_path / "overfitting.png").is_file() == (importlib.util.find_spec("matplotlib") is not None)


def test_a_network_on_colour_images_runs_too(script: Script, tmp_path: Path) -> None:
    """What `--cifar` does, with the shipped images in place of the data."""
    overfitting = script("overfitting")
    with torch.random.fork_rng(devices=[]):
        asked = ["--quick", "--cifar", "--epochs", "2", "--out", str(tmp_path)]
        assert len(overfitting.main(asked)) == 8
    assert (tmp_path / "overfitting_cifar.json").is_file()


def test_checkpoints_are_ranked(script: Script, tmp_path: Path) -> None:
    module = script("checkpoints")
    with torch.random.fork_rng(devices=[]):
        (run,) = module.main(["--quick", "--out", str(tmp_path)])
    assert [each.epoch for each in run] == [2, 4, 8]
    assert all(math.isfinite(value) for each in run for value in (each.trained, each.linear, each.test))
    assert run[0].train > run[-1].train
    made = [replace(each, trained=-each.test, linear=each.test) for each in run]
    assert module.ranked(made)["trained"] == (1.0, 0.0)  # a ranking by the truth, and one by its opposite
    assert module.ranked(made)["linear"] == (-1.0, max(each.test for each in run) - min(each.test for each in run))


def test_blocks_are_taken_out(script: Script, tmp_path: Path) -> None:
    module = script("layers")
    with torch.random.fork_rng(devices=[]):
        found = module.main(["--quick", "--out", str(tmp_path)])
    assert len(found.parts) == module.BLOCKS and all(part.precision[0] > 0 < part.precision[1] for part in found.parts)
    model = module.network()
    x = torch.randn(3, 196)
    by_hand = model[0](x)
    for block in [model[1], *model[3:7]]:
        by_hand = by_hand + block.outer(block.inner(by_hand).relu())
    assert torch.allclose(module.without(model, [2])(x), model[8](by_hand.relu()), atol=1e-6)


def test_noise_among_features_is_found(script: Script, tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        results = script("relevance").main(["--quick", "--out", str(tmp_path)])["friedman"]
    by_prior = {each.prior: each for each in results}
    found = by_prior["per input, learnt"]
    assert found.auroc > 0.7 and len(found.precision) == 20
    assert found.evidence > by_prior["one, learnt"].evidence > by_prior["one, fixed at 1"].evidence
    assert by_prior["one, fixed at 1"].precision == [1.0]


def test_three_ways_to_predict_after_learning(script: Script, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    with torch.random.fork_rng(devices=[]):
        (scores,) = script("predicting").main(["--quick", "--out", str(tmp_path)])["digits"]
    assert len(scores) == 4 and all(math.isfinite(value) for value in scores.values())
    # What was tuned on the training data explains them about as well as the network.
    assert scores["run.posterior().tune(train=...)"] < scores["the network"] + 0.2


def cells(heading: str) -> list[list[str]]:
    """The table under a heading of the page on learning while training, without its first two lines."""
    page = (ROOT / "docs" / "learning.md").read_text(encoding="utf-8")
    lines = [line for line in page.split(f"{heading}\n", 1)[1].split("\n#", 1)[0].splitlines() if line[:1] == "|"]
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines[2:]]


def number(cell: str) -> float:
    """What a cell says before its error."""
    return float(cell.split("±")[0].replace(",", ""))


def close(cell: str, value: float) -> bool:
    """Whether a cell has the digits of a value, to half of its last one."""
    digits = cell.split("±")[0].strip()
    return abs(number(cell) - value) <= 0.5001 * 10.0 ** -len(digits.partition(".")[2]) or (
        "." not in digits and abs(number(cell) / value - 1) < 5e-3
    )


def written(name: str) -> dict[str, Any]:
    """The results of a script that the page quotes."""
    found: dict[str, Any] = json.loads((ROOT / "docs" / "figures" / "learning" / f"{name}.json").read_text())
    return found


def test_the_page_on_learning_has_the_numbers_that_scripts_wrote() -> None:
    choices = [each for each in written("overfitting")["choices"] if "posterior" not in each["name"]]
    table = cells("### Overfitting stops")
    assert len(table) == len(choices)
    for row, each in zip(table, choices, strict=True):
        assert close(row[2], each["nll"]) and close(row[4], each["seconds"] / choices[0]["seconds"])
    for row in cells("### Features that say nothing"):
        prior = row[0].replace("one per", "per")
        for place, name in enumerate(("friedman", "concrete")):
            runs = [each for each in written("relevance")[name] if each["prior"] == prior]
            for cell, score in zip(row[1 + 3 * place :], ("network", "posterior", "evidence"), strict=False):
                assert close(cell, float(np.mean([each[score] for each in runs]))), (prior, name, score)
    for row, runs in zip(cells("## What to predict with"), written("predicting").values(), strict=True):
        for cell, way in zip(row[1:], runs[0], strict=False):
            assert close(cell, float(np.mean([each[way] for each in runs])))


def test_the_page_on_learning_has_the_numbers_of_blocks_and_checkpoints() -> None:
    whole, *blocks = cells("### Blocks that are not needed")
    assert close(whole[4], written("layers")["whole"]) and close(whole[5], written("layers")["whole_fixed"])
    for row, part in zip(blocks, written("layers")["parts"], strict=True):
        values = (*part["precision"], part["dimensions"], part["without"], part["without_fixed"])
        assert all(close(cell, value) for cell, value in zip(row[1:], values, strict=True)), row
    for row, way in zip(cells("### Checkpoints"), ("trained", "linear", "train"), strict=True):
        for place, both in enumerate(row[1:]):
            for cell, run in zip(both.split(" and "), written("checkpoints")["ranked"], strict=True):
                assert close(cell, run[way][place])
