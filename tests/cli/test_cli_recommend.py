"""`peewit recommend`: the table, the reasons and the code, and the best posterior in a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch

import peewit as pw

pytest.importorskip("typer", reason="no typer")

from commands import classifier, data, furnished, run
from peewit.recommendation.recipes import RECIPES

RECOMMEND = "recommend -m NET:classifier -w weights.safetensors -l classification --train train.npz"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from furnished(tmp_path, monkeypatch)


def held_out() -> tuple[torch.Tensor, torch.Tensor]:
    """Other examples than those of `data()`, also in a file."""
    x, y = (part[60:] for part in data(100))
    numpy.savez("held.npz", x=x.numpy(), y=y.numpy())
    return x, y


def test_the_best_posterior_is_written(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The one that the library recommends, with the table, the reasons and the code beside it."""
    wanted = pw.recommend(classifier(), data(), "classification", validation=held_out())
    assert run(f"{RECOMMEND} --validation held.npz -o best.safetensors", place) == 0
    told = capsys.readouterr().out
    la = pw.load("best.safetensors", classifier())
    assert float(la.prior.precision) == pytest.approx(float(wanted.posterior.prior.precision), rel=1e-3)
    assert all(each.name in told for each in RECIPES)
    assert f"use {wanted.recipe}:" in told and wanted.code.splitlines()[0] in told
    assert "- " in told and told.endswith("written to best.safetensors\n")


def test_the_result_in_json(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With every metric; nothing is written unasked."""
    held_out()
    before = sorted(Path().iterdir())
    given = f"{RECOMMEND} --validation held.npz --ood far=far.npz --seed 3 --seconds 1000 --json"
    assert run(given, place) == 0
    told = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in told["table"]] == [each.name for each in RECIPES]
    assert told["recipe"] in {row["name"] for row in told["table"]} and told["scored"] == "validation"
    for row in told["table"]:
        assert row["problem"] == "" and row["metrics"]["nll"]["low"] <= row["metrics"]["nll"]["value"]
        assert 0 <= row["auroc"]["value"] <= 1
    assert told["code"].startswith("la = pw.fit(model, train, ") and told["reasons"] and told["posterior"] is None
    assert [each for each in sorted(Path().iterdir()) if each not in before and each.name != "__pycache__"] == []


def test_settings_of_a_file(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without validation data, and with next to no time: one posterior is made."""
    assert run("recommend -c run.toml --set recommend.seconds=1e-9 --json", place) == 0
    told = json.loads(capsys.readouterr().out)
    states = [row["problem"].partition(":")[0] for row in told["table"]]
    assert states == ["", "", "not tried"] and told["scored"] == "training"


def test_names_of_columns_and_classes_are_kept(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And match those of the validation data, whose columns may stand in another order."""
    lines = Path("named.csv").read_text().splitlines()
    turned = [",".join([b, a, word]) for a, b, word in (line.split(",") for line in lines)]
    Path("turned.csv").write_text("\n".join(turned) + "\n")
    given = "recommend -m NET:classifier -l classification --train named.csv -o best.safetensors --validation"
    tables = []
    for name in ("named.csv", "turned.csv"):
        assert run(f"{given} {name} --json", place) == 0
        tables.append([row["metrics"]["nll"]["value"] for row in json.loads(capsys.readouterr().out)["table"]])
    assert tables[0] == pytest.approx(tables[1])
    schema = pw.load("best.safetensors", classifier()).schema
    assert schema is not None and schema.classes == ("low", "middle", "top") and schema.inputs == ("a", "b")


def test_random_weights_are_named(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(f"{place}_random.py").write_text("from torch import nn\n\ndef net():\n    return nn.Linear(2, 3)\n")
    given = f"recommend -m {place}_random:net -l classification --train train.npz"
    assert run(given, place, anyway=False) == 2
    assert "peewit: No weights were given" in capsys.readouterr().err
    assert run(given, place) == 0
    assert "problem, weights: No weights were given" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (f"{RECOMMEND} --seconds -1", "expected a positive number"),
        (f"{RECOMMEND} -o best.txt", "expected .safetensors"),
        (f"{RECOMMEND} --validation gone.npz", "There is no file or folder gone.npz"),
        (f"{RECOMMEND} --ood far.npz", "expected NAME=DATA"),
        ("recommend -m NET:classifier -l classification", "No train was given"),
        (f"{RECOMMEND} --train four.npz", "label 3 is outside 0..2"),
    ],
)
def test_refusals(given: str, words: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(given, place) == 2
    told = capsys.readouterr()
    assert words in told.err and told.out == "" and not list(Path().glob("best*"))
