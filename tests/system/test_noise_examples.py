"""The scripts on noise that depends on the input: numbers against plain loops, quick runs, and the page of results."""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from environment import ROOT
from reference_noise import EmpiricalBayes, half_cosine

FOLDER = ROOT / "examples" / "noise"
DOUBLE = torch.float64
Script = Callable[[str], ModuleType]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """Scripts as modules that find their common parts; without a folder of data sets."""
    monkeypatch.delenv("PEEWIT_DATA", raising=False)
    monkeypatch.syspath_prepend(str(FOLDER))
    with torch.random.fork_rng(devices=[]):
        yield importlib.import_module
    for path in FOLDER.glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_published_figures_are_those_of_a_plain_loop(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.RandomState(0)
    x = random.standard_normal((47, 2)) * [1.0, 30.0] + [2.0, 0.0]
    y = 3 * np.sin(2 * x[:, 0]) + (0.2 + 0.3 * np.abs(x[:, 0])) * random.standard_normal(47)
    (tmp_path / "uci").mkdir()
    np.savez(tmp_path / "uci" / "yacht.npz", X=x, y=y)
    published, ways = script("published"), script("ways")
    settings = ways.Settings(width=4, epochs=40, batch=16, begin=20, every=10, steps=3)
    asked = ["--data", str(tmp_path), "--rows", "yacht:3", "--out", str(tmp_path)]
    (row,) = published.main(asked, settings)

    order = np.random.RandomState(3).permutation(47)
    train, test = order[5:], order[:5]  # 42 of 47, and 37 of those
    inner = train[np.random.RandomState(3).permutation(42)[5:]]
    torch.manual_seed(3)
    start = [each.detach().double() for layer in (nn.Linear(2, 4), nn.Linear(4, 2)) for each in layer.parameters()]

    def scaled(rows: np.ndarray, by: np.ndarray) -> tuple[Tensor, Tensor]:
        inputs = (x[rows] - x[by].mean(0)) / x[by].std(0)
        return torch.from_numpy(inputs), torch.from_numpy((y[rows] - y[by].mean()) / y[by].std())

    for name, by in (("here", inner), ("consistent", train)):
        reference = EmpiricalBayes(*scaled(train, train), start)
        expected = reference.train().figures(*scaled(test, by), float(y[by].std()))
        assert row[name] == pytest.approx(expected, rel=1e-7)
    assert json.loads((tmp_path / "published.json").read_text()) == [row]


def test_distances_begin_beyond_the_rounding_of_what_was_published(script: Script) -> None:
    distance = script("published").distance
    assert distance(0.0017814, "0.001781") == 0.0
    assert distance(-2.0021, "-2.00") == pytest.approx(0.0)
    assert distance(2.025, "2.00") == pytest.approx(0.01)


def test_rows_are_split_as_by_scikit_learn(script: Script) -> None:
    selection = pytest.importorskip("sklearn.model_selection")
    sets = script("sets")
    for count, seed in ((308, 1), (506, 3), (47, 0)):
        expected = selection.train_test_split(np.arange(count), train_size=0.9, random_state=seed)
        for ours, theirs in zip(sets.split(count, seed), expected, strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_letters_become_zeros_and_ones(script: Script) -> None:
    made = script("sets").one_hot(np.array([[0, 1], [3, 2]]))
    np.testing.assert_array_equal(made, [[1, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 1]])


def test_losses_have_the_gradients_of_their_papers(script: Script) -> None:
    ways = script("ways")
    f = torch.tensor([[0.3, 0.5], [-1.0, 2.0]], dtype=DOUBLE, requires_grad=True)
    y = torch.tensor([1.0, 0.5], dtype=DOUBLE)
    mean, variance = (each.detach() for each in f.unbind(1))
    by_mean, by_variance = (mean - y) / variance, 0.5 / variance - 0.5 * ((y - mean) / variance).square()
    expected = {
        "nll": (by_mean, by_variance),
        "beta_nll": (by_mean * variance.sqrt(), by_variance * variance.sqrt()),
        "faithful": (mean - y, by_variance),
    }
    for name, columns in expected.items():
        (slope,) = torch.autograd.grad(getattr(ways, name)(f, y).sum(), f)
        torch.testing.assert_close(slope, torch.stack(columns, 1))


def test_the_variance_of_a_faithful_network_trains_nothing_that_the_mean_uses(script: Script) -> None:
    ways = script("ways")
    model = ways.network(2, ways.Settings(width=3), "faithful", 0)
    x = torch.randn(6, 2, dtype=DOUBLE)
    model(x)[:, 1].sum().backward()
    assert all(not bool(each.grad.any()) for each in model.body.parameters())
    assert float(model.head.weight.grad[0].abs().sum()) == 0
    plain = ways.network(2, ways.Settings(width=3), "mean_variance", 0)
    torch.testing.assert_close(model(x), plain(x))  # the same function


@pytest.mark.parametrize("kind", ["mean_variance", "faithful"])
def test_networks_that_train_together_train_as_if_alone(kind: str, script: Script) -> None:
    ways = script("ways")
    settings = ways.Settings(width=3, epochs=4, batch=8)
    loss = ways.faithful if kind == "faithful" else ways.beta_nll
    x, y = torch.randn(20, 2, dtype=DOUBLE), torch.randn(20, dtype=DOUBLE)
    decays = [0.1, 5.0]
    for decay, model in zip(decays, ways.trained((x, y), settings, kind, loss, decays, 7), strict=True):
        alone = ways.network(2, settings, kind, 7)
        optimizer = torch.optim.Adam(alone.parameters(), lr=settings.rate, weight_decay=decay / 20)
        for step in range(12):
            rows = slice(8 * (step % 3), 8 * (step % 3) + 8)
            optimizer.param_groups[0]["lr"] = half_cosine(settings.rate, settings.last_rate, step, 12)
            optimizer.zero_grad()
            loss(alone(x[rows]), y[rows]).mean().backward()
            optimizer.step()
        for ours, theirs in zip(model.parameters(), alone.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_ways_are_compared_on_the_toy_curve(script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (content,) = script("compare").main(["--quick", "--seeds", "2", "--out", str(tmp_path)])
    assert json.loads((tmp_path / "toy.json").read_text()) == content
    for run in content["runs"]:
        assert len(run) == 7
        assert all(math.isfinite(value) for scores in run.values() for value in scores.values())
        for head in ("natural parameters", "mean and variance"):
            whole, noise = run[f"{head}, Laplace"], run[f"{head}, plug-in"]
            assert whole["mse"] == noise["mse"] and whole["covered"] >= noise["covered"]  # wider intervals
    assert (tmp_path / "toy.png").is_file() == (importlib.util.find_spec("matplotlib") is not None)
    assert "faithful, decay by validation" in capsys.readouterr().out


@pytest.mark.data
def test_ways_are_compared_on_sequences(script: Script, tmp_path: Path, data_dir: Path) -> None:
    name = "flow-cytometry-HEK293"
    asked = ["--quick", "--seeds", "1", "--sets", name, "--data", str(data_dir), "--out", str(tmp_path)]
    (content,) = script("compare").main(asked)
    assert all(math.isfinite(scores["ll"]) for scores in content["runs"][0].values())
    assert (tmp_path / f"{name}.png").is_file() == (importlib.util.find_spec("matplotlib") is not None)


def test_the_page_has_the_numbers_that_were_measured(script: Script) -> None:
    page = script("page")
    text = page.PAGE.read_text(encoding="utf-8")
    made = page.tables()
    assert all(f"<!-- table {name} -->" in text for name in made)
    assert page.filled(text, made) == text  # otherwise run examples/noise/page.py


def test_published_rows_are_met(script: Script) -> None:
    module = script("published")
    rows = json.loads((FOLDER / "results" / "published.json").read_text(encoding="utf-8"))
    assert {row["row"] for row in rows} >= {"yacht:1", "yacht:3", "boston:3", "concrete:3"}
    for row in rows:
        told = module.PUBLISHED[row["row"]]
        assert row["published"] == [float(value) for value in told]
        assert row["difference"] == [
            module.distance(value, each) for value, each in zip(row["here"], told, strict=True)
        ]
        assert max(row["difference"]) < 1e-4
