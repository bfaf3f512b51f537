"""The command line: what it does, and what it says where it cannot."""

from __future__ import annotations

import csv
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import save_file

import peewit as pw
from environment import ROOT

pytest.importorskip("typer", reason="no typer")

from commands import classifier, data, furnished, leftovers, run
from peewit import likelihoods
from peewit.cli import main, posteriors, settings
from peewit.cli import options as named
from peewit.cli.output import Problem, finite
from peewit.cli.settings import KNOWN, assignment, gather
from peewit.curvature import kinds, structures
from peewit.evaluation.attacks import ATTACKS
from peewit.evaluation.corruptions import CORRUPTIONS
from peewit.messages.names import nearest
from peewit.runtime.progress import Progress
from peewit.storage.atomic import writing
from reports import classification

FIT = "fit -m NET:classifier -w weights.safetensors -l classification --train train.npz"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from furnished(tmp_path, monkeypatch)


def fitted() -> pw.Laplace:
    return pw.fit(classifier(), data(), "classification")


@pytest.mark.parametrize(
    "given",
    [
        FIT,
        f"{FIT} --quiet",
        "fit -m NET:classifier -w weights.pt -l classification --train NET:batches",
        "fit -m NET:classifier -w checkpoint.pt -l classification --train data/train.safetensors",
        "fit -m NET:classifier -l classification --train named.csv",
        "fit -c run.toml --set fit.structure=kron",
        "fit -c run.toml --structure kron",
    ],
)
def test_fit_writes_the_posterior_that_the_library_makes(given: str, place: str) -> None:
    assert run(f"{given} -o made.safetensors", place) == 0
    made = pw.load("made.safetensors", classifier())
    torch.testing.assert_close(made.log_evidence(), fitted().log_evidence(), rtol=1e-4, atol=1e-3)
    x = data()[0]
    torch.testing.assert_close(made.predict(x).probs, fitted().predict(x).probs, rtol=1e-3, atol=1e-4)


def test_settings_come_from_the_file_then_from_set_then_from_options(place: str) -> None:
    for extra, options in (
        ("", {}),
        ("--set fit.prior=3", {"prior": 3.0}),
        ("--set fit.prior=3 --prior 7", {"prior": 7.0}),
        ("--set fit.weights=last_layer", {"weights": "last_layer"}),
        ("--set arguments.width=8 --select 2", {"weights": "2"}),
    ):
        expected = pw.fit(classifier(), data(), "classification", structure="diag", **options)
        assert run(f"fit -c run.toml {extra} -o made.safetensors -q", place) == 0
        made = pw.load("made.safetensors", classifier())
        assert (made.D, type(made.structure)) == (expected.D, pw.Diag)
        torch.testing.assert_close(made.log_evidence(), expected.log_evidence(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("ending", ["pt", "safetensors"])
def test_weights_are_those_of_the_file(ending: str, place: str) -> None:
    other = classifier()
    with torch.no_grad():
        other[0].weight.mul_(3)
    torch.save(other.state_dict(), "three.pt")
    save_file(other.state_dict(), "three.safetensors")
    given = f"fit -m NET:classifier -w three.{ending} -l classification --train train.npz -o made.safetensors -q"
    assert run(given, place) == 0
    made = pw.load("made.safetensors", other)  # which refuses other weights
    assert float(made.log_evidence()) == pytest.approx(float(pw.fit(other, data(), "classification").log_evidence()))


class Harmful:
    """A file with code in it: reading it carelessly would write another."""

    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return open, ("harmed", "w")


def test_weights_are_read_without_running_what_they_hold(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"0.weight": Harmful()}, "harmful.pt")
    assert run("fit -m NET:classifier -w harmful.pt -l classification --train train.npz", place) == 2
    assert "cannot be read as weights" in capsys.readouterr().err and not Path("harmed").exists()


def test_bars_leave_stdout_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert list(Progress(show=True).track([1, 2], 2, "counting")) == [1, 2]
    told = capsys.readouterr()
    assert told.out == "" and "counting" in told.err


def test_paths_in_a_file_start_at_its_folder(place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    before = list(sys.path)
    assert run("fit -c ../run.toml -q", place) == 0
    assert Path("posterior.safetensors").is_file()
    assert sys.path == before  # where modules beside the file were found


@pytest.mark.parametrize(
    "text, expected",
    [
        ("fit.prior=2", {"fit.prior": 2}),
        ("fit.prior=2.5", {"fit.prior": 2.5}),
        ("fit.structure=diag", {"fit.structure": "diag"}),
        ('fit.structure="diag"', {"fit.structure": "diag"}),
        ("train=a b.npz", {"train": "a b.npz"}),
        ('tune.parameters=["noise"]', {"tune.parameters": ["noise"]}),
        ('classes=["a", "b"]', {"classes": ["a", "b"]}),
        ("ood.far=far.npz", {"ood": {"far": "far.npz"}}),
        ("arguments.width=3", {"arguments": {"width": 3}}),
        ("title=", {"title": ""}),
    ],
)
def test_assignments_are_typed_as_toml(text: str, expected: dict[str, object]) -> None:
    found = assignment(text)
    assert found == expected and [type(each) for each in found.values()] == [type(each) for each in expected.values()]


@pytest.mark.parametrize(
    "text, words",
    [
        ("fit.prior", "expected key=value"),
        ("=3", "expected key=value"),
        ("fit.prior=[1, 2", "no TOML"),
        ("fit.prior=low", "expected a whole number or a number"),
        ("fit.prior=true", "expected a whole number or a number"),
        ("fit.structur=diag", "did you mean 'fit.structure'?"),
        ("fit=3", "expected a table"),
        ("ood.far=3", "ood is"),
        ("two words=3", "not a name of a setting"),
    ],
)
def test_bad_assignments_are_refused(text: str, words: str) -> None:
    with pytest.raises(Problem) as caught:
        assignment(text)
    assert words in str(caught.value)


def test_a_file_of_settings_may_begin_with_a_mark_of_its_encoding(place: str) -> None:
    Path("marked.toml").write_bytes(b"\xef\xbb\xbf" + Path("run.toml").read_bytes())
    assert run("fit -c marked.toml -q", place) == 0


@pytest.mark.parametrize("net", ["regressor", "squeezed"])
@pytest.mark.parametrize("source", ["numbers.csv", "flat.npz"])
def test_one_target_fits_outputs_with_and_without_an_axis(net: str, source: str, place: str) -> None:
    """Files do not tell (N,) from (N, 1)."""
    assert run(f"fit -m NET:{net} -l regression --train {source} -o made.safetensors -q", place) == 0
    assert run(f"evaluate -m NET:{net} -p made.safetensors --test {source} --set evaluate.intervals=5 -q", place) == 0


def test_what_networks_print_is_not_on_stdout(place: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run("fit -m NET:loud -l classification --train train.npz --json", place) == 0
    told = capfd.readouterr()
    assert json.loads(told.out)["weights"] == 51 and "I am being made" in told.err
    assert run("fit --json --help", place) == 0
    assert "Examples" in capfd.readouterr().out


def test_tables_are_whole_in_narrow_places(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fitted().save("made.safetensors")
    monkeypatch.setenv("COLUMNS", "30")
    assert run("compare made.safetensors -m NET:classifier -w weights.pt -q", place) == 0
    shown = capsys.readouterr().out
    assert "effective weights" in shown and f"{float(fitted().log_evidence()):.1f}" in shown and "…" not in shown


def test_every_setting_is_on_the_page() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name in KNOWN:
        table, dot, key = name.partition(".")
        row = next((line for line in page.splitlines() if line.startswith(f"| `{table}.")), "") if dot else page
        assert f".{key}`" in row if dot else f"`{name}`" in row or f"`{name}.*`" in row, name


def test_unknown_inputs_are_gathered_from_everywhere(place: str) -> None:
    Path("more.toml").write_text('[ood]\nnear = "near.npz"\n')
    found = gather(Path("more.toml"), ["ood.far=far.npz"], {"ood": {"odd": "odd.npz"}, "title": None})
    assert {name: Path(each).name for name, each in found["ood"].items()} == {
        "near": "near.npz",
        "far": "far.npz",
        "odd": "odd.npz",
    }
    assert "title" not in found


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
    given = f"predict {common} -p made.safetensors --data numbers.csv --target sum --level 0.9 --json"
    assert run(given, place) == 0
    row = json.loads(capsys.readouterr().out)["rows"][0]
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    x = data()[0]
    wanted = pw.fit(net, (x, x.sum(1, keepdim=True)), pw.Gaussian(0.5)).predict(x[:1])
    low, high = wanted.interval(0.9)
    for name, value in (("mean", wanted.mean), ("lower", low), ("upper", high), ("deviation", wanted.variance.sqrt())):
        assert row[name] == pytest.approx(float(value), rel=1e-3, abs=1e-4)


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


def test_the_linear_mode_of_a_fit_is_kept_in_tuning(place: str) -> None:
    """`fit --tune` tunes where the fit takes its evidence."""
    given = "-m NET:regressor -l regression --train numbers.csv --target sum --tune --set fit.at=linear_mode"
    assert run(f"fit {given} -o b.safetensors -q", place) == 0
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    assert pw.load("b.safetensors", net).linear_mode is not None


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


def test_folders_of_images(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    images = pytest.importorskip("PIL.Image", reason="no Pillow")
    drawn = numpy.random.default_rng(0).integers(0, 256, (6, 4, 4, 3), dtype=numpy.uint8)
    for number, pixels in enumerate(drawn):
        folder = tmp_path / "photos" / ("cat" if number < 4 else "dog")
        folder.mkdir(parents=True, exist_ok=True)
        images.fromarray(pixels).save(folder / f"{number}.png")
    assert run("fit -m NET:images -l classification --train photos -o made.safetensors --json", place) == 0
    assert json.loads(capsys.readouterr().out)["classes"] == ["cat", "dog"]
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 2))
    x = torch.from_numpy(drawn).permute(0, 3, 1, 2).float() / 255
    wanted = pw.fit(net, (x, torch.tensor([0, 0, 0, 0, 1, 1])), "classification")
    assert float(pw.load("made.safetensors", net).log_evidence()) == pytest.approx(
        float(wanted.log_evidence()), rel=1e-4
    )
    images.fromarray(drawn[0].repeat(2, 0)).save(tmp_path / "photos" / "dog" / "tall.png")
    assert run("fit -m NET:images -l classification --train photos -o b.safetensors", place) == 2
    assert "--size HEIGHT WIDTH" in capsys.readouterr().err
    assert run("fit -m NET:images -l classification --train photos -o b.safetensors --size 4 4 -q", place) == 0
    assert run("predict -m NET:images -p made.safetensors --data photos/cat -o p.csv -q", place) == 0
    assert len(Path("p.csv").read_text().splitlines()) == 5
    assert run("fit -m NET:images -l classification --train photos --classes dog,bird -o b.safetensors", place) == 2
    assert "a folder 'cat'" in capsys.readouterr().err


POSTERIOR = "-m NET:classifier -w weights.pt -p made.safetensors"


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
        ("fit -c run.toml --train bytes.csv", "cannot be read as a table"),
        ("fit -c run.toml --train cut.npz", "cannot be read as .npz"),
        ("fit -c run.toml --train objects.npz", "cannot be read as .npz"),
        ("fit -c run.toml --train holes.npz", "NaN"),
        ("fit -c run.toml --train data", "no folders with images"),
        ("fit -c run.toml --train head.csv", "has a header (a, b, c) and no rows"),
        ("fit -c run.toml --train twice.csv", "has 2 columns 'a'; expected distinct names"),
        ("fit -c run.toml --train semicolons.csv", "which contains semicolons; expected commas between cells"),
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
        ("fit -c weights.pt", "is no TOML"),
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
        ("report run.toml", "no JSON"),
        ("compare made.safetensors gone.safetensors -m NET:classifier", "gone.safetensors does not exist"),
        ("compare run.toml", "No posterior was given"),
        ("landscape -m NET:classifier -p made.safetensors", "No train was given"),
        (f"evaluate {POSTERIOR} --test train.npz --shifts noize", "did you mean 'noise'?"),
        ("tune -m NET:classifier -p data", "is a folder"),
        ("demo --report no/such/demo.html", "does not exist"),
        ("demo --report demo.pdf", "expected .html"),
        ("fitt", "'fitt' is no command; did you mean 'fit'?"),
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


def test_an_earlier_file_stays_until_the_new_one_is_whole(tmp_path: Path) -> None:
    kept = tmp_path / "kept.csv"
    kept.write_text("old")
    for error in (KeyboardInterrupt, OSError):
        with pytest.raises(error), writing(kept) as temporary:
            temporary.write_text("half")
            assert temporary.parent == kept.parent
            raise error
        assert kept.read_text() == "old" and leftovers(tmp_path) == []
    with writing(kept) as temporary:
        temporary.write_text("new")
    assert kept.read_text() == "new" and leftovers(tmp_path) == []


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="permissions do not bind this user")
def test_a_folder_without_permission(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "closed").mkdir(mode=0o500)
    assert run(f"{FIT} -o closed/made.safetensors", place) == 2
    assert "cannot be written: Permission denied" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "touch", denied)
    monkeypatch.setattr(posteriors.pw, "fit", lambda *_, **__: pytest.fail("it was fitted"))
    assert run(FIT, place) == 2
    assert "cannot be written: Permission denied" in capsys.readouterr().err


def test_json_has_words_for_numbers_that_it_lacks() -> None:
    assert finite({"a": [1.0, float("inf"), float("nan")], "b": "x"}) == {"a": [1.0, "inf", "nan"], "b": "x"}


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    for name in (
        "demo",
        "fit",
        "tune",
        "predict",
        "evaluate",
        "report",
        "compare",
        "recommend",
        "landscape",
        "--install-completion",
    ):
        assert name in shown
    assert "Exit status: 0" in " ".join(shown.split())
    for name in ("demo", "fit", "tune", "predict", "evaluate", "report", "compare", "recommend", "landscape"):
        assert main([name, "--help"]) == 0
        assert f"peewit {name} " in capsys.readouterr().out.split("Examples")[1]


# Real processes


def test_the_library_does_not_load_what_commands_and_figures_need(tmp_path: Path) -> None:
    heavy = "{'typer', 'plotly', 'kaleido', 'optuna', 'sklearn', 'torchmetrics', 'PIL'}"
    code = f"import sys, peewit; print(sorted({heavy} & set(sys.modules)))"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), cwd=tmp_path
    )
    assert found.stdout == "[]\n", found.stderr


@pytest.mark.parametrize(
    "given", ["--help", "--version", "fit --help", "evaluate --help", "", "fitt", "fit -c gone.toml"]
)
def test_help_does_not_wait_for_torch(given: str, tmp_path: Path) -> None:
    """Nor do refusals of commands and settings: torch is imported when a command begins its work."""
    code = (
        "import sys; from peewit_command import main; main()\n"
        "print(sorted({'torch', 'numpy', 'safetensors', 'plotly'} & set(sys.modules)), file=sys.stderr)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, *given.split()], capture_output=True, text=True, env=environment(), cwd=tmp_path
    )
    assert found.stderr.endswith("[]\n"), found.stderr


def test_importing_the_library_does_not_import_torch(tmp_path: Path) -> None:
    """Its names do when they are asked for; the function `fit` is itself whatever was imported before."""
    code = (
        "import sys, peewit as pw; assert 'torch' not in sys.modules and dir(pw) == sorted(pw.__all__)\n"
        "import peewit.recommendation, peewit.figures\n"
        "from peewit import Kron, fit, load\n"
        "assert callable(pw.fit) and pw.fit is fit and pw.load is load and pw.Kron is Kron and 'torch' in sys.modules"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment(), cwd=tmp_path
    )
    assert found.returncode == 0, found.stderr


def test_names_in_help_are_those_of_the_library() -> None:
    """They are written twice, since help does not load the library."""
    assert tuple(likelihoods.NAMES) == named.LIKELIHOODS
    assert tuple(structures.NAMES) == named.STRUCTURES and tuple(kinds.NAMES) == named.CURVATURES
    assert tuple(CORRUPTIONS) == named.SHIFTS and tuple(ATTACKS) == named.ATTACKS


def environment(**extra: str) -> dict[str, str]:
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **extra}


def interruptible() -> None:
    """As in a terminal: jobs in the background start with Ctrl-C ignored, and so does all that they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def process(*given: str, cwd: Path, **extra: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "peewit.cli", *given]
    return subprocess.Popen(
        command, cwd=cwd, env=environment(**extra), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=interruptible,
    )  # fmt: skip


def test_a_shell_completes_commands(tmp_path: Path) -> None:
    started = process(cwd=tmp_path, _PEEWIT_COMPLETE="complete_bash", COMP_WORDS="peewit pre", COMP_CWORD="1")
    assert started.communicate(timeout=60)[0].split() == ["predict"]


SLOW = """
import time
from {module} import *

def forever():
    x, y = data()
    yield x, y
    open("started", "w").close()
    time.sleep(60)
"""


def test_ctrl_c_while_the_library_is_imported(tmp_path: Path) -> None:
    code = "import sys; from peewit_command import main; print(flush=True); sys.exit(main())"
    started = subprocess.Popen(
        [sys.executable, "-c", code, "predict", "--data", "x.npz", "--json"], cwd=tmp_path, env=environment(),
        text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert started.stdout is not None and started.stdout.read(1) == "\n"
        time.sleep(0.5)  # in the midst of torch, which takes a second or more
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=60)
    finally:
        started.kill()
    assert (started.returncode, out, err) == (130, "", "Interrupted; nothing was written.\n")


def test_the_command_starts_where_it_is_said_to() -> None:
    import peewit_command

    page = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'peewit = "peewit_command:main"' in page
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["peewit", "--version"])
        before = signal.getsignal(signal.SIGINT)
        assert peewit_command.main() == 0 and signal.getsignal(signal.SIGINT) is before


def test_ctrl_c_during_a_fit(place: str, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW.format(module=place))
    before = {each.name for each in tmp_path.iterdir()}
    given = f"fit -m {place}:classifier -l classification --train slow:forever -o made.safetensors"
    started = process(*given.split(), cwd=tmp_path)
    try:
        for _ in range(600):
            if (tmp_path / "started").exists():
                break
            time.sleep(0.1)
        started.send_signal(signal.SIGINT)
        out, err = started.communicate(timeout=60)
    finally:
        started.kill()
        started.communicate()
    assert started.returncode == 130
    assert out == "" and err == "Interrupted; nothing was written.\n"
    assert {each.name for each in tmp_path.iterdir()} - before <= {"started", "__pycache__"}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("fit.mode", "fit.at"),
        ("tune.mode", "tune.at"),
        ("tune.noise", "tune.parameters"),
        ("tune.prior", "tune.parameters"),
    ],
)
def test_settings_of_another_name_lead_to_the_right_one(old: str, new: str) -> None:
    with pytest.raises(Problem, match=rf"no setting '{old}'; did you mean '{new}'"):
        settings.check(old, "x", "run.toml")


def test_several_names_that_may_be_meant() -> None:
    """All of them are said."""
    assert nearest("data", ["method", "train", "validation"]) == "did you mean 'train' or 'validation'? "
    assert nearest("data", ["test", "seed"]) == "did you mean 'test'? " and nearest("qqq", ["test"]) == ""


def test_settings_are_called_as_the_arguments_of_the_library() -> None:
    """Each setting of a table is an argument of its function; `predict.level` is that of `interval`."""
    functions = {
        "fit": pw.fit,
        "tune": pw.Laplace.tune,
        "predict": pw.Laplace.predict,
        "evaluate": pw.evaluate,
        "recommend": pw.recommend,
        "landscape": pw.figures.landscape,
    }
    assert tuple(functions) == settings.TABLES
    for name in KNOWN.keys() - {"predict.level"}:
        table, dot, argument = name.partition(".")
        assert not dot or argument in inspect.signature(functions[table]).parameters, name
