"""`peewit predict`: the predictions of the library, in rows."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch

import peewit as pw

pytest.importorskip("typer", reason="no typer")

from commands import classifier, data, furnished, run


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from furnished(tmp_path, monkeypatch)


def fitted() -> pw.Laplace:
    return pw.fit(classifier(), data(), "classification")


def predictions(extra: str, place: str) -> int:
    return run(f"predict -m NET:classifier -w weights.pt -p made.safetensors --data inputs.npz {extra}", place)


def test_predictions_are_those_of_the_library(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    fitted().save("made.safetensors")
    wanted = fitted().predict(data()[0][:5])
    for ending in ("csv", "json", "npz"):
        assert predictions(f"-o found.{ending} --classes a,b,c --set batch=2 -q", place) == 0
    with open("found.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["predicted"] for row in rows] == ["abc"[each] for each in wanted.argmax.tolist()]
    for name, tensor in (
        ("entropy", wanted.entropy),
        ("epistemic", wanted.epistemic),
        ("aleatoric", wanted.aleatoric),
        ("p_b", wanted.probs[:, 1]),
        ("confidence", wanted.probs.amax(-1)),
    ):
        assert [float(row[name]) for row in rows] == pytest.approx(tensor.tolist(), rel=1e-4, abs=1e-5)
    read = json.loads(Path("found.json").read_text())
    assert [row["index"] for row in read] == list(range(5))
    assert [row["p_c"] for row in read] == pytest.approx(wanted.probs[:, 2].tolist(), rel=1e-4)
    with numpy.load("found.npz") as arrays:
        assert arrays["classes"].tolist() == ["a", "b", "c"]
        assert numpy.allclose(arrays["probability"], wanted.probs.numpy(), rtol=1e-4)
    capsys.readouterr()
    assert predictions("--json", place) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["examples"] == 5 and told["rows"][0]["predicted"] == int(wanted.argmax[0])


def test_regression_has_intervals(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    common = "-m NET:regressor"
    assert (
        run(f"fit {common} -l regression --noise 0.5 --train numbers.csv --target sum -o made.safetensors -q", place)
        == 0
    )
    capsys.readouterr()
    given = f"predict {common} -p made.safetensors --data numbers.csv --target sum"
    assert run(f"{given} --json", place) == 0
    told = json.loads(capsys.readouterr().out)
    row = told["rows"][0]
    assert told["level"] == row["level"] == 0.9
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    x = data()[0]
    wanted = pw.fit(net, (x, x.sum(1, keepdim=True)), pw.Gaussian(0.5)).predict(x[:1])
    low, high = wanted.interval(0.9)
    for name, value in (("mean", wanted.mean), ("lower", low), ("upper", high), ("deviation", wanted.variance.sqrt())):
        assert row[name] == pytest.approx(float(value), rel=1e-3, abs=1e-4)
    assert run(f"{given} --level 0.8 -o found.csv", place) == 0
    assert "lower and upper are the ends of 80 % intervals" in capsys.readouterr().out
    with open("found.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["level"] for row in rows} == {"0.8"}
    assert float(rows[0]["upper"]) == pytest.approx(float(wanted.interval(0.8)[1]), rel=1e-3)


def test_the_seed_of_drawn_labels_and_weights(place: str) -> None:
    """One seed gives one posterior and one set of sampled predictions, and another seed gives others."""
    kept = []
    for seed in (3, 3, 4):
        common = f"-m NET:classifier --seed {seed} -q"
        assert run(f"fit {common} -l classification --train train.npz --curvature fisher -o a.safetensors", place) == 0
        assert run(f"predict {common} -p a.safetensors --data inputs.npz --method sampled -o a.csv", place) == 0
        torch.manual_seed(0)
        net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        kept.append((float(pw.load("a.safetensors", net).log_evidence()), Path("a.csv").read_text()))
    assert kept[0] == kept[1]
    assert kept[1][0] != kept[2][0] and kept[1][1] != kept[2][1]
