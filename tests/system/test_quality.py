"""The benchmark of quality scores and stores as it says."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import scipy.stats
import sklearn.metrics
import torch
import torchmetrics
from torch import nn

from benchmarks.quality import baselines, run, scores, store

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


# --- scores


@pytest.mark.parametrize("digits", [0, 1, 6])
def test_area_under_the_curve_with_ties(digits: int) -> None:
    torch.manual_seed(digits)
    known, unknown = torch.randn(50).round(decimals=digits), (torch.randn(70) + 0.5).round(decimals=digits)
    labels = [0] * 50 + [1] * 70
    expected = sklearn.metrics.roc_auc_score(labels, torch.cat([known, unknown]).numpy())
    assert scores.detection(known, unknown) == pytest.approx(expected, abs=1e-12)


def test_a_score_that_is_the_same_everywhere_tells_nothing() -> None:
    assert scores.detection(torch.zeros(5), torch.zeros(7)) == 0.5


def test_each_example_has_its_share_of_the_nll() -> None:
    torch.manual_seed(0)
    probs, labels = torch.randn(50, 4).softmax(1), torch.randint(0, 4, (50,))
    mean, variance, y = torch.randn(50, 1), torch.rand(50, 1) + 0.1, torch.randn(50, 1)
    for answer, targets in ((scores.Answer(probs=probs), labels), (scores.Answer(mean=mean, variance=variance), y)):
        own = scores.nlls(answer, targets)
        assert own.shape == (50,)
        assert float(own.mean()) == pytest.approx(scores.figures(answer, targets)["nll"], rel=1e-9)
    first, second = torch.randn(9), torch.randn(9)
    expected = scipy.stats.sem((first - second).double().numpy())
    assert scores.paired_error(first, second) == pytest.approx(expected, rel=1e-5)
    assert math.isnan(scores.paired_error(first[:1], second[:1]))


def test_figures_of_classes() -> None:
    torch.manual_seed(0)
    probs, labels = torch.randn(200, 4, dtype=torch.float64).mul(2).softmax(1), torch.randint(0, 4, (200,))
    figures = scores.figures(scores.Answer(probs=probs), labels)
    calibration = torchmetrics.classification.MulticlassCalibrationError(4, n_bins=scores.BINS, norm="l1")
    brier = sum((row - torch.eye(4)[label]).square().sum() for row, label in zip(probs, labels, strict=True)) / 200
    assert figures == pytest.approx(
        {
            "nll": sklearn.metrics.log_loss(labels, probs),
            "brier": float(brier),
            "ece": float(calibration(probs, labels)),
            "accuracy": sklearn.metrics.accuracy_score(labels, probs.argmax(1)),
        },
        abs=1e-6,
    )


def test_figures_of_numbers() -> None:
    torch.manual_seed(0)
    mean, variance, targets = torch.randn(300, 1), torch.rand(300, 1) + 0.5, torch.randn(300, 1)
    figures = scores.figures(scores.Answer(mean=mean, variance=variance), targets)
    normal = torch.distributions.Normal(mean.double(), variance.double().sqrt())
    places = torch.linspace(-15, 15, 6001, dtype=torch.float64)
    gaps = normal.cdf(places) - (targets <= places).double()
    assert figures["nll"] == pytest.approx(-float(normal.log_prob(targets.double()).mean()), abs=1e-9)
    assert figures["crps"] == pytest.approx(float(torch.trapezoid(gaps.square(), places, dim=1).mean()), abs=1e-3)
    low, high = (normal.icdf(torch.tensor(level, dtype=torch.float64)) for level in (0.05, 0.95))
    assert figures["coverage"] == float(((targets >= low) & (targets <= high)).double().mean())
    assert figures["width"] == pytest.approx(float((high - low).mean()), rel=1e-9)
    assert figures["rmse"] == pytest.approx(float((mean - targets).square().mean().sqrt()), rel=1e-5)


@pytest.mark.parametrize("scale", [0.4, 1.0, 5.0])
def test_temperature_against_a_dense_search(scale: float) -> None:
    torch.manual_seed(1)
    logits = torch.randn(400, 3)
    labels = torch.distributions.Categorical(logits=logits).sample()
    grid = torch.logspace(math.log10(0.25), math.log10(20), 4001, dtype=torch.float64)
    losses = [nn.functional.cross_entropy(scale * logits.double() / t, labels) for t in grid]
    expected = grid[int(torch.stack(losses).argmin())]
    assert baselines.best_temperature(scale * logits, labels) == pytest.approx(float(expected), rel=3e-3)


def test_temperatures_stay_within_their_limits() -> None:
    logits, right = 3 * torch.eye(4), torch.arange(4)
    assert baselines.best_temperature(logits, right) == pytest.approx(baselines.TEMPERATURES[0])
    assert baselines.best_temperature(logits, right.roll(1)) == pytest.approx(baselines.TEMPERATURES[1])


# --- files


def test_files_are_merged(tmp_path: Path) -> None:
    store.add(tmp_path, "red wine", "linear mode, own", {"half": "choose"}, {"early/whole/10": {"nll": 1 / 3}})
    store.add(
        tmp_path, "red wine", "linear mode, own", {"half": "choose"}, {"early/whole/9": {"nll": 2.0}}, ["early/9"]
    )
    replaced = {"early/whole/9": {"nll": 1234567.0, "warned": ["so"]}}
    store.add(tmp_path, "red wine", "linear mode, own", {"half": "confirm"}, replaced, ["early/10"])
    path = tmp_path / "red-wine" / "linear-mode-own.json"
    content = json.loads(path.read_text())
    assert list(content["cases"]) == ["early/whole/9", "early/whole/10"]
    assert content["cases"] == {
        "early/whole/10": {"nll": 0.33333},
        "early/whole/9": {"nll": 1234600.0, "warned": ["so"]},
    }
    assert (content["done"], content["half"], content["way"]) == (
        ["early/9", "early/10"],
        "confirm",
        "linear mode, own",
    )
    assert store.read_all(tmp_path) == {("red wine", "linear mode, own"): content}
    assert list(path.parent.iterdir()) == [path]


def test_folders_are_merged(tmp_path: Path) -> None:
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    store.add(here, "wine", "plain", {"half": "choose"}, {"early/whole/0": {"nll": 1.0}}, ["early/0"])
    store.add(elsewhere, "wine", "plain", {"half": "choose"}, {"early/whole/1": {"nll": 2.0}}, ["early/1"])
    store.add(elsewhere, "wine", "dropout", {"half": "choose"}, {"early/whole/1": {"nll": 3.0}})
    with pytest.raises(SystemExit):
        run.main(["--merge", str(elsewhere), "--out", str(here)])
    contents = store.read_all(here)
    assert set(contents) == {("wine", "plain"), ("wine", "dropout")}
    assert contents["wine", "plain"]["done"] == ["early/0", "early/1"]
    assert set(contents["wine", "plain"]["cases"]) == {"early/whole/0", "early/whole/1"}


def test_files_of_another_format_are_refused(tmp_path: Path) -> None:
    path = store.path_of(tmp_path, "wine", "plain")
    path.parent.mkdir()
    path.write_text('{"format": 0}')
    with pytest.raises(SystemExit, match="format 0, expected 1"):
        store.add(tmp_path, "wine", "plain", {}, {})
