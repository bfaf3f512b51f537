"""What `peewit fit` says about the network that it was given."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch

import peewit as pw

pytest.importorskip("typer", reason="no typer")

from commands import furnished, run, write_csv
from peewit.cli import checking, main
from peewit.cli.checking import as_commands

MODULE = """
import torch
from torch import nn

def regressor():
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))

def seeded():
    torch.manual_seed(3)
    return regressor()

made = []

def once():
    made.append(seeded())
    if len(made) > 1:
        raise RuntimeError("it is made once")
    return made[0]

net = seeded()
"""
FIT = "fit -l regression -o made.safetensors -m"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A network that was trained on standardised columns, and these columns raw and standardised."""
    for module in furnished(tmp_path, monkeypatch):
        (tmp_path / f"{module}_raw.py").write_text(MODULE)
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        x = torch.randn(80, 2)
        y = x.sum(1, keepdim=True) + 0.1 * torch.randn(80, 1)
        optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(300):
            optimiser.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimiser.step()
        torch.save(model.state_dict(), "trained.pt")
        for name, scale in (("raw", 40.0), ("standardised", 1.0)):
            rows = torch.cat([scale * x + scale - 1, scale * y + 5 * (scale - 1)], 1).tolist()
            write_csv(Path(f"{name}.csv"), ["a", "b", "target"], [list(row) for row in rows])
        yield f"{module}_raw"


def test_raw_columns_for_a_network_of_standardised_ones(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The mistake of everyone: refused in one line with what to do, before anything is written; --anyway goes on."""
    for tuned in ("", "--tune"):
        assert run(f"{FIT} NET:regressor -w trained.pt --train raw.csv {tuned} -q", place, anyway=False) == 2
        told = capsys.readouterr()
        lines = [line for line in told.err.splitlines() if not line.startswith("note: ")]
        assert told.out == "" and len(lines) == 1 and not Path("made.safetensors").exists()
        assert lines[0].startswith("peewit: The network is worse than a constant: R^2 is -")
        assert "inputs and targets are scaled as in training" in lines[0]
        assert "fit it with --standardise. To go on with this network, give --anyway." in lines[0]
    assert run(f"{FIT} NET:regressor -w trained.pt --train raw.csv --anyway", place, anyway=False) == 0
    lines = capsys.readouterr().out.splitlines()
    found = [line for line in lines if line.startswith(("problem, ", "warning, ", "note, "))]
    assert found[0].startswith("problem, fit: The network is worse than a constant: R^2 is -")
    assert all(" What to do: " in line for line in found)
    assert [line for line in found if "la." in line] == [], "commands, and not calls"
    assert sum(line.startswith("fine: ") for line in lines) == 1
    assert Path("made.safetensors").is_file()
    assert run(f"{FIT} NET:regressor -w trained.pt --train raw.csv --standardise", place, anyway=False) == 0


def test_a_network_that_is_fine_takes_one_line(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = f"{FIT} NET:regressor -w trained.pt --train standardised.csv --at linear_mode --tune"
    assert run(given, place) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith(("problem", "warning", "note"))] == []
    assert [line for line in lines if line.startswith("fine: ")] == ["fine: fit, mode, residuals, evidence, rounding"]


def test_findings_in_json(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(f"{FIT} NET:regressor -w trained.pt --train raw.csv --json", place) == 0
    findings = json.loads(capsys.readouterr().out)["findings"]
    assert findings[0]["topic"] == "fit" and findings[0]["severity"] == "problem"
    assert findings[0]["numbers"]["share"] < 0
    assert "fine" in {each["severity"] for each in findings}


@pytest.mark.parametrize("extra", ["--no-diagnose", "--set diagnose=false"])
def test_the_diagnosis_can_be_left_out(extra: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = f"{FIT} NET:regressor -w trained.pt --train raw.csv {extra} --json"
    assert run(given, place, anyway=False) == 0
    told = capsys.readouterr()
    values = json.loads(told.out)
    assert values["findings"] == [] and values["not_diagnosed"] == "--no-diagnose was given"
    assert "diagnosis" not in told.err


def test_random_weights_are_refused(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where none were given, and the network has others each time; not where the function puts them in."""
    for net, given, random in (
        ("regressor", "", True),
        ("regressor", "-w trained.pt", False),
        ("seeded", "", False),
        ("net", "", False),
        ("once", "", False),
    ):
        common = f"{FIT} NET:{net} {given} --train standardised.csv --no-diagnose"
        assert run(common, place, anyway=False) == (2 if random else 0), net
        told = capsys.readouterr().err
        assert ("peewit: No weights were given, and " in told and "give --anyway" in told) == random, net
        assert Path("made.safetensors").is_file() != random
        Path("made.safetensors").unlink(missing_ok=True)
        if random:
            assert "--checkpoint FILE" in told and "no command can use the posterior" in told
            assert run(f"{common} --anyway", place) == 0
            assert "problem, weights: No weights were given" in capsys.readouterr().out
            Path("made.safetensors").unlink()


@pytest.mark.parametrize("command", ["evaluate", "report"])
def test_random_weights_are_not_evaluated(command: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = f"{command} -m NET:regressor -l regression --test standardised.csv --set evaluate.intervals=5"
    assert run(given, place, anyway=False) == 2
    assert "peewit: No weights were given" in capsys.readouterr().err
    if command == "evaluate":
        assert run(given, place, anyway=True) == 0


@pytest.mark.parametrize(
    ("command", "where"),
    [
        ("evaluate USE --test raw.csv --set evaluate.intervals=5", "test"),
        ("report USE --test raw.csv -o page.html", "test"),
        ("evaluate -m NET:regressor -w trained.pt -l regression --test raw.csv --set evaluate.intervals=5", "test"),
        ("tune USE --train raw.csv", "training"),
        ("tune USE --validation raw.csv", "validation"),
        ("recommend -m NET:regressor -w trained.pt -l regression --train raw.csv", "training"),
    ],
)
def test_columns_of_another_scale_are_refused_by_every_command(
    command: str, where: str, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the work, in one line; --anyway goes on."""
    assert run(f"{FIT} NET:regressor -w trained.pt --train standardised.csv -q", place, anyway=False) == 0
    capsys.readouterr()
    given = command.replace("USE", "-m NET:regressor -w trained.pt -p made.safetensors")
    with monkeypatch.context() as patch:
        for work in ("evaluate", "recommend"):
            patch.setattr(pw, work, lambda *_, **__: pytest.fail("it began"))
        patch.setattr(pw.Laplace, "tune", lambda *_, **__: pytest.fail("it began"))
        assert run(given, place, anyway=False) == 2
    told = capsys.readouterr()
    assert told.err.startswith("peewit: The network is worse than a constant: R^2 is -") and told.out == ""
    assert f"on the {where} data" in told.err and told.err.endswith("give --anyway.\n") and told.err.count("\n") == 1
    if given.startswith("evaluate"):
        assert run(given, place) == 0


def test_a_comparison_says_which_network_is_worse_than_a_constant(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"{FIT} NET:regressor -w trained.pt --train standardised.csv -q", place, anyway=False) == 0
    for table, worse in (("raw", True), ("standardised", False)):
        capsys.readouterr()
        assert run(f"compare made.safetensors -m NET:regressor -w trained.pt --test {table}.csv --json", place) == 0
        told = json.loads(capsys.readouterr().out)
        assert ("misfit" in told["posteriors"][0]) == worse
        assert [each[:44] for each in told["notes"]] == ["made: The network is worse than a constant: "] * worse


@pytest.mark.parametrize("shift", [0.0, 0.25])
def test_a_classifier_that_is_only_too_sure_is_evaluated(
    shift: float, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its NLL is that of no constant, and it decides better than one: on test data that is what evaluations are for."""
    numpy.savez("two.npz", x=numpy.linspace(-1, 1, 40)[:, None].astype("float32"), y=numpy.arange(40) // 20)
    Path(f"{place}_sure.py").write_text(
        "import torch\ndef net():\n    net = torch.nn.Linear(1, 2)\n    with torch.no_grad():\n"
        "        net.weight.copy_(torch.tensor([[-400.0], [400.0]]))\n"
        f"        net.bias.copy_(torch.tensor([400.0, -400.0]) * {shift})\n"
        "    return net\n"
    )
    given = f"-m {place}_sure:net -l classification"
    assert run(f"evaluate {given} --test two.npz --set evaluate.intervals=5 --json", place, anyway=False) == 0
    metrics = json.loads(capsys.readouterr().out)["methods"][0]["metrics"]
    assert (metrics["nll"]["value"] > 1) == (shift > 0) and metrics["accuracy"]["value"] > 0.8
    assert run(f"fit {given} --train two.npz --no-diagnose", place, anyway=False) == 0
    capsys.readouterr()
    assert run(f"fit {given} --train two.npz", place, anyway=False) == (2 if shift else 0)
    assert ("Its decisions are better than the constant's" in capsys.readouterr().err) == (shift > 0)


def test_diagnose_is_a_command(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what `la.diagnose` finds, with commands as advice."""
    given = f"{FIT} NET:regressor -w trained.pt --train standardised.csv -q"
    assert run(given, place) == 0
    capsys.readouterr()
    use = "diagnose -m NET:regressor -w trained.pt -p made.safetensors"
    assert run(f"{use} --train standardised.csv", place) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("[fine] fit: The network is better than a constant")
    assert "[fine] rounding" in shown and "la." not in shown
    assert run(f"{use} --train standardised.csv --json", place) == 0
    told = json.loads(capsys.readouterr().out)
    topics = [each["topic"] for each in told["findings"]]
    assert topics[:2] == ["fit", "mode"] and told["healthy"] is False and "residuals" in topics
    assert run(use, place) == 2
    assert "No train was given" in capsys.readouterr().err


def test_a_diagnosis_that_fails_loses_nothing(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The posterior is written, and a line says why there are no findings."""

    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("out of\nmemory")

    monkeypatch.setattr(pw.Laplace, "diagnose", failing)
    assert run(f"{FIT} NET:regressor -w trained.pt --train raw.csv", place) == 0
    assert "not diagnosed: out of memory\n" in capsys.readouterr().out and Path("made.safetensors").is_file()
    assert run(f"{FIT} NET:regressor -w trained.pt --train raw.csv --json", place) == 0
    assert json.loads(capsys.readouterr().out)["not_diagnosed"] == "out of memory"


def test_data_that_can_be_passed_over_once(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A generator is spent by the fit."""
    module = place.removesuffix("_raw")
    Path(f"{place}_once.py").write_text(f"from {module} import data\ndef stream():\n    yield data()\n")
    given = f"fit -m {module}:classifier -l classification --train {place}_once:stream -o made.safetensors"
    assert main(given.split()) == 0
    told = capsys.readouterr().out
    assert "not diagnosed: A diagnosis looks at the first batch twice" in told and Path("made.safetensors").is_file()


def test_advice_names_commands() -> None:
    assert as_commands("Use la.tune(at='linear_mode', train=...), or train.") == (
        "Use peewit tune --at linear_mode --train DATA, or train."
    )
    assert as_commands("For predictions, la.tune(train=...).") == "For predictions, peewit tune --train DATA."
    assert as_commands("set it, la.with_noise(0.3).") == "set it, peewit fit --noise 0.3."
    assert as_commands("la.tune('validation', validation=...)") == "peewit tune --validation DATA"
    assert len(checking.COMMANDS) == 5
