"""What cannot be used, and what fails: one line and an exit status."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import peewit as pw

pytest.importorskip("typer", reason="no typer")

from commands import classifier, data, furnished, leftovers, run
from peewit.cli import posteriors
from reports import classification

FIT = "fit -m NET:classifier -w weights.safetensors -l classification --train train.npz"


POSTERIOR = "-m NET:classifier -w weights.pt -p made.safetensors"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from furnished(tmp_path, monkeypatch)


def fitted() -> pw.Laplace:
    return pw.fit(classifier(), data(), "classification")


@pytest.mark.parametrize(
    "given, words",
    [
        ("fit -l classification --train train.npz", "No model was given; use --model"),
        ("fit -m NET:classifier --train train.npz", "No likelihood was given"),
        ("fit -m NET:classifier -l classification", "No train was given"),
        ("fit -m NET:clasifier -l classification --train train.npz", "did you mean 'classifier'?"),
        ("fit -m nowhere:net -l classification --train train.npz", "there is no module 'nowhere'"),
        ("fit -m lenet -l classification --train train.npz", "expected package.module:function"),
        ("fit -m net.pt2 -l classification --train train.npz", "Exported networks"),
        ("fit -m NET:broken -l classification --train train.npz", "raised RuntimeError: no such thing"),
        ("fit -m NET:number -l classification --train train.npz", "expected a torch.nn.Module"),
        ("fit -m NET:classifier -l clasification --train train.npz", "did you mean 'classification'?"),
        ("fit -m NET:classifier -l classification --train train.npz -s krn", "did you mean 'kron'?"),
        (
            "fit -m NET:classifier --weights weights.pt -l classification --train train.npz",
            "is --checkpoint weights.pt",
        ),
        ("fit -m NET:classifier --weights gone.pt -l classification --train train.npz", "or -w gone.pt. --weights"),
        ("fit -m NET:classifier --select 2 -l classification --train train.npz", "--select is now --weights"),
        ("predict -m NET:classifier --weights weights.pt -p made.safetensors -x train.npz", "is --checkpoint FILE"),
        ("fit -m NET:classifier --set weights=weights.pt -l classification --train train.npz", "is checkpoint = "),
        ("fit -m NET:classifier -w gone.pt -l classification --train train.npz", "There is no file gone.pt"),
        ("fit -m NET:classifier -w junk.pt -l classification --train train.npz", "cannot be read as weights"),
        ("fit -m NET:classifier -w other.safetensors -l classification --train train.npz", "has shape (5, 2)"),
        ("fit -m NET:regressor -w weights.pt -l regression --train numbers.csv", "does not fit the network"),
        ("fit -m NET:classifier -l classification --train gone.npz", "There is no file or folder gone.npz"),
        ("fit -m NET:classifier -l classification --train run.toml", "has the suffix '.toml'"),
        ("fit -m NET:classifier -l classification --train four.npz", "3"),
        ("fit -m NET:classifier -l classification --train named.csv --classes a,b", "has the class 'low'"),
        ("fit -m NET:classifier -l classification --train named.csv --classes low,middle,top,more", "3 outputs"),
        ("fit -m NET:classifier -l classification --train named.csv --target b", "holds 'low'; expected a number"),
        ("fit -m NET:classifier -l classification --train named.csv --target no", "no column 'no'"),
        ("fit -m NET:classifier -l classification --train inputs.npz", "no targets"),
        ("fit -c run.toml --train ragged.csv", "row 2 has 2 cells; expected 3"),
        ("fit -c run.toml --train bytes.csv", "is not text in UTF-8"),
        ("fit -c run.toml --train cut.npz", "cannot be read as .npz"),
        ("fit -c run.toml --train objects.npz", "cannot be read as .npz"),
        ("fit -c run.toml --train holes.npz", "NaN"),
        ("fit -c run.toml --train data", "no folders with images"),
        ("fit -c run.toml --train head.csv", "has a header (a, b, c) and no rows"),
        ("fit -c run.toml --train twice.csv", "has 2 columns 'a'; expected distinct names"),
        ("fit -c run.toml --train semicolons.csv", "has semicolons between its cells; expected commas"),
        ("fit -c run.toml --train words.npz", "y holds <U3; expected numbers, with classes as 0, 1, 2"),
        ("fit -c run.toml --train one.npz", "it is one array, as numpy.save writes it"),
        ("fit -c run.toml --train objects.npz", "it holds Python objects, which are not read"),
        ("fit -c run.toml --classes a,a,b", "expected distinct names"),
        ("fit -c run.toml -w module.pt", "which may run code and are not loaded"),
        ("fit -c run.toml -o run.toml/p.safetensors", "run.toml is a file; expected a folder"),
        (f"predict {POSTERIOR} --data NET:number -o p.csv", "returned a int; expected a tensor"),
        (f"predict {POSTERIOR} --data named.csv -o p.csv", "name it with --target"),
        ("report hollow.json", "a report without methods"),
        ("report hollow.json --test train.npz", "and --test; expected a report in JSON, or what to measure"),
        ("report train.npz", "is not text; expected a report in JSON"),
        ("fit -c gone.toml", "There is no file gone.toml"),
        ("fit -c weights.pt", "is not TOML"),
        ("fit -c run.toml --set size=3", "expected a list"),
        ("fit -c run.toml --set noise=3", "noise = 3 is for --likelihood regression"),
        ("fit -c run.toml --device tpu9", "--device tpu9 cannot be used"),
        ("fit -c run.toml -o here.txt", "expected .safetensors"),
        ("fit -c run.toml -o no/such/p.safetensors", "does not exist; make it first"),
        ("fit -c run.toml -o data", "expected .safetensors"),
        ("fit -c run.toml --prior -1", "-1"),
        ("fit -c run.toml --prior much", "'--prior'"),
        (f"tune {POSTERIOR} --method validation", "--validation DATA"),
        (f"tune {POSTERIOR} --method evidense", "did you mean 'evidence'?"),
        ("tune -m NET:classifier -p gone.safetensors", "gone.safetensors does not exist"),
        ("tune -m NET:classifier -p other.safetensors", "without a posterior of peewit"),
        ("tune -m NET:regressor -p made.safetensors", "The network is not the one that was saved"),
        (f"predict {POSTERIOR} --data inputs.npz", "Nowhere to write"),
        (f"predict {POSTERIOR} --data inputs.npz -o p.xls", "expected .csv, .npz or .json"),
        (f"predict {POSTERIOR} --data numbers.csv -o p.csv", ""),  # three columns for two inputs
        (f"predict {POSTERIOR} --data inputs.npz -o p.csv --classes a,b", "3 outputs"),
        (f"predict {POSTERIOR} --data inputs.npz -o p.csv --link probitt", "did you mean 'probit'?"),
        (f"predict {POSTERIOR} -o p.csv", "--data"),
        (f"evaluate {POSTERIOR}", "No test was given"),
        (f"evaluate {POSTERIOR} --test train.npz -o report.pdf", "expected .html, .json or .md"),
        (f"evaluate {POSTERIOR} --test train.npz --ood far.npz", "expected NAME=DATA"),
        ("report gone.json", "There is no file gone.json"),
        ("report run.toml", "not JSON"),
        ("compare made.safetensors gone.safetensors -m NET:classifier", "gone.safetensors does not exist"),
        ("compare run.toml", "No posterior was given"),
        ("landscape -m NET:classifier -p made.safetensors", "No train was given"),
        (f"evaluate {POSTERIOR} --test train.npz --shifts noize", "did you mean 'noise'?"),
        ("tune -m NET:classifier -p data", "is a folder"),
        ("demo --report no/such/demo.html", "does not exist"),
        ("demo --report demo.pdf", "expected .html"),
        ("fitt", "'fitt' is not a command; did you mean 'fit'?"),
        ("fit --modle x", "--model"),
    ],
)
def test_bad_input_gets_one_line(
    given: str, words: str, place: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    fitted().save("made.safetensors")
    replace(classification(), methods=()).to_json("hollow.json")
    before = sorted(each.name for each in tmp_path.rglob("*") if "__pycache__" not in str(each))
    assert run(given, place) == 2
    told = capfd.readouterr()
    lines = [line for line in told.err.splitlines() if not line.startswith(("  ", "note: "))]
    assert len(lines) == 1 and lines[0].startswith("peewit: ")
    assert words in lines[0] and "Traceback" not in told.err and told.out == ""
    assert sorted(each.name for each in tmp_path.rglob("*") if "__pycache__" not in str(each)) == before


def test_a_computation_that_fails_is_told_from_bad_input(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA out of memory.\nTried to allocate much.")

    monkeypatch.setattr(posteriors.pw, "fit", failing)
    assert run(FIT, place) == 1
    assert "peewit: RuntimeError: CUDA out of memory. Tried to allocate much.\n" in capsys.readouterr().err
    assert run(f"{FIT} --debug", place) == 1
    assert "Traceback" in capsys.readouterr().err


def test_interruption_leaves_nothing(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(posteriors.pw, "fit", interrupted)
    path = list(sys.path)
    assert run(f"{FIT} -o made.safetensors", place) == 130
    assert capsys.readouterr().err == "Interrupted; nothing was written.\n"
    assert not Path("made.safetensors").exists() and leftovers(tmp_path) == [] and sys.path == path
