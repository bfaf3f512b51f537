"""`peewit tune`, and `peewit fit --tune`: the tuning of the library."""

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
from peewit.evaluation.describing import posterior_in_words


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from furnished(tmp_path, monkeypatch)


def sure() -> torch.nn.Sequential:
    """A network that is surer than a third of wrong labels allows, so that the best prior for them is neither limit."""
    model = classifier()
    with torch.no_grad():
        for parameter in model[2].parameters():
            parameter *= 10
    return model


def test_tuning_is_that_of_the_library(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    x, _ = data()
    labels = sure()(x).argmax(-1)
    labels[::3] = (labels[::3] + 1) % 3
    torch.save(sure().state_dict(), "sure.pt")
    numpy.savez("validation.npz", x=x.numpy(), y=labels.numpy())
    common = "-m NET:classifier -w sure.pt"
    assert run(f"fit {common} -l classification --train train.npz -o made.safetensors -q", place) == 0
    capsys.readouterr()
    la = pw.fit(sure(), data(), "classification")
    expected = {
        "--method evidence": la.tune(),
        "--method validation --validation validation.npz": la.tune("validation", validation=(x, labels)),
        "--at linear_mode --train train.npz": la.tune(at="linear_mode", train=data()),
    }
    best = [float(wanted.prior.precision) for wanted in expected.values()]
    assert all(1e-2 < each < 1e2 for each in best) and min(best[1] / best[2], best[2] / best[0]) > 1.5
    for way, wanted in expected.items():
        assert run(f"tune {common} -p made.safetensors {way} -o tuned.safetensors --json", place) == 0
        told = json.loads(capsys.readouterr().out)
        tuned = pw.load("tuned.safetensors", sure())
        # In float32, precisions that are 0.2 % apart around the best one have the same score.
        torch.testing.assert_close(tuned.prior.precision, wanted.prior.precision, rtol=2e-2, atol=0)
        assert told["prior_precision"] == pytest.approx(float(tuned.prior.precision), rel=1e-6)
        assert told["log_evidence"] == pytest.approx(float(tuned.log_evidence()), rel=1e-4)
        assert told["tuning"]["converged"] is True


def test_no_evidence_is_advised_where_training_data_chose(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Tuned by `fit --tune`, findings on the evidence are notes that say what they mean; else they say what to type."""
    torch.save(sure().state_dict(), "sure.pt")
    given = "fit -m NET:classifier -w sure.pt -l classification --train train.npz -o made.safetensors"
    assert run(f"{given} --tune", place) == 0
    told = capsys.readouterr().out.splitlines()
    (mode,) = [line for line in told if line.startswith("note, mode: ")]
    assert mode.endswith("where models are compared by the evidence.") and "--at linear_mode" not in "".join(told)
    assert run("diagnose -m NET:classifier -w sure.pt --train train.npz -p made.safetensors", place) in (0, 1)
    told = capsys.readouterr().out.splitlines()
    assert any(line.startswith("[note] mode: ") for line in told) and "--at linear_mode" not in "".join(told)
    assert run(given, place) == 0
    (mode,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("warning, mode: ")]
    assert "For predictions, peewit tune --train DATA, or peewit tune --validation DATA with" in mode
    assert "To compare models by the evidence, peewit tune --at linear_mode --train DATA." in mode


def test_the_linear_mode_of_a_fit_is_kept_in_tuning(place: str) -> None:
    """`fit --tune` tunes where the fit takes its evidence."""
    given = "-m NET:regressor -l regression --train numbers.csv --target sum --tune --set fit.at=linear_mode"
    assert run(f"fit {given} -o b.safetensors -q", place) == 0
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    assert pw.load("b.safetensors", net).linear_mode is not None


@pytest.mark.filterwarnings("ignore::peewit.TuningWarning")
def test_a_file_that_fit_tuned_knows_it(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`diagnose` advises nothing that was done, and validation data need no training data, as in the library."""
    net = "-m NET:regressor"
    numbers = f"{net} --train numbers.csv -p a.safetensors"
    assert run(f"fit {net} -l regression --train numbers.csv --target sum --tune -o a.safetensors -q", place) == 0
    assert run(f"diagnose {numbers}", place) in (0, 1)
    told = capsys.readouterr().out
    assert "evidence" in told and "at='linear_mode'" not in told and "--at linear_mode" not in told
    tune = f"tune {net} -p a.safetensors --validation numbers.csv -o b.safetensors"
    assert run(f"{tune} --json", place) == 0
    assert json.loads(capsys.readouterr().out)["tuning"]["steps"] > 1
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    first, second = (pw.load(f"{name}.safetensors", model) for name in "ab")
    assert first.trace is not None and first.trace.method == "training" and first.linear_mode is not None
    assert second.trace is not None and second.trace.method == "validation" and second.linear_mode is None
    assert "Its prior was tuned on validation data" in posterior_in_words(second)


@pytest.mark.filterwarnings("ignore::peewit.TuningWarning")  # the training data are the validation data here
def test_tune_changes_the_parameters_that_are_named(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Names with commas between them, as a list in settings."""
    torch.save(classifier().state_dict(), "net.pt")
    common = "-m NET:classifier -w net.pt"
    assert run(f"fit {common} -l classification --train train.npz -o a.safetensors -q", place) == 0
    tune = f"tune {common} -p a.safetensors --validation train.npz -q"
    for extra, changed in (
        ("--parameters temperature", (False, True)),
        ("--parameters prior,temperature", (True, True)),
        ("--set tune.parameters=['prior']", (True, False)),
    ):
        assert run(f"{tune} {extra} -o b.safetensors", place) == 0
        tuned = pw.load("b.safetensors", classifier())
        assert (float(tuned.prior.precision) != 1.0, tuned.temperature != 1.0) == changed
    capsys.readouterr()
    assert run(f"{tune} --parameters tempreature", place) == 2
    assert "did you mean 'temperature'" in capsys.readouterr().err


def test_tune_keeps_the_linear_mode_of_a_posterior(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the training data are given; else both ways are named."""
    net = "-m NET:regressor"
    given = f"{net} -l regression --train numbers.csv --target sum --at linear_mode -q"
    assert run(f"fit {given} -o a.safetensors", place) == 0
    assert run(f"fit {given} --tune -o b.safetensors", place) == 0
    capsys.readouterr()
    tune = f"tune {net} -p a.safetensors -o c.safetensors"
    assert run(tune, place) == 2
    told = capsys.readouterr().err
    assert "--train DATA" in told and "--at trained_weights" in told and not Path("c.safetensors").exists()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    for way in ("", "--method validation --validation numbers.csv"):
        assert run(f"{tune} --train numbers.csv {way} -q", place) == 0
        assert pw.load("c.safetensors", model).state.has_own_linear_mode
    assert run(f"{tune} --at trained_weights -q", place) == 0
    assert pw.load("c.safetensors", model).linear_mode is None
