"""The demo in its quick form, and the command line."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest
import torch
from rich.console import Console

import peewit as pw
from peewit import demo
from peewit.data import fashion_mnist


@pytest.fixture
def cli() -> ModuleType:
    return pytest.importorskip("peewit.cli", reason="no typer")


ROWS = (
    "the network as it is",
    "Peewit, tune(train=...)",
    "temperature scaling",
    "Peewit, tune(validation=...)",
)


@pytest.mark.filterwarnings("ignore:The geometric mean of the precisions:peewit.TuningWarning")
def test_quick_demo_prints_a_table(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: ModuleType
) -> None:
    """All rows and scores are there, the random state is left alone and nothing is written unasked."""
    monkeypatch.chdir(tmp_path)
    before = torch.get_rng_state()
    assert cli.main(["demo", "--quick", "--no-report"]) == 0
    assert torch.equal(torch.get_rng_state(), before)
    shown = capsys.readouterr().out
    for word in (*ROWS, "accuracy", "NLL", "ECE", "sure of", "AUROC", "bag, ankle boot", "The quick form"):
        assert word in shown
    assert shown.rstrip().endswith(demo.ADVICE.rstrip())  # what to type comes last
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:The geometric mean of the precisions:peewit.TuningWarning")
def test_quick_demo_writes_a_report(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: ModuleType
) -> None:
    """It says where the page is, which answers the three questions."""
    pytest.importorskip("plotly", reason="no plotly")
    monkeypatch.chdir(tmp_path)
    before = torch.get_rng_state()
    assert cli.main(["demo", "--quick"]) == 0
    assert torch.equal(torch.get_rng_state(), before)
    place = tmp_path / "peewit-demo.html"
    assert f"The report, to be opened in a browser: {place}\n" in capsys.readouterr().out
    text = place.read_text(encoding="utf-8")
    for word in (
        "Is the network calibrated?",
        "What did Laplace change?",
        "What does it not know",
        "“bag”",
        "rotation",
    ):
        assert word in text
    assert [each.name for each in tmp_path.iterdir()] == [place.name]


def test_without_plotly_the_demo_goes_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    monkeypatch.setattr(demo, "compare", lambda *_, **__: ([], {}))
    demo.run(quick=True, report=tmp_path / "no.html")
    assert "pip install plotly" in " ".join(capsys.readouterr().out.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.filterwarnings("ignore:The geometric mean of the precisions:peewit.TuningWarning")
def test_the_demo_is_the_same_for_the_same_seed(capsys: pytest.CaptureFixture[str], cli: ModuleType) -> None:
    assert cli.main(["demo", "--quick", "--seed", "3", "--no-report"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    scores, others = (demo.run(quick=True, seed=seed, console=Console(quiet=True)) for seed in (3, 4))
    assert [each.name for each in scores] == list(ROWS)
    for each in scores:
        first, last = (each.accuracy, each.nll, each.ece), each.auroc
        figures = [*(f"{value:.3f}" for value in first), demo.percent(each.sure), f"{last:.3f}"]
        assert " ".join([each.name, *figures]) in shown
        assert all(0 <= value <= 1 for value in (each.accuracy, each.ece, each.sure, each.auroc))
    assert [each.nll for each in scores] != [each.nll for each in others]


def test_the_demo_sees_eight_classes_and_tests_on_others() -> None:
    data = demo.load()
    (x, y), (x_validation, y_validation), (x_test, y_test) = data.train, data.validation, data.test
    assert set(y.tolist()) == set(y_validation.tolist()) == set(y_test.tolist()) == set(range(8))
    assert (len(x), len(x_validation), len(x_test), len(data.unknown)) == (4320, 480, 2400, 600)
    (all_train, labels), (all_test, test_labels) = fashion_mnist()
    assert list(data.unknown_by_class) == ["bag", "ankle boot"]
    assert torch.equal(data.unknown, torch.cat([all_test[test_labels == label] for label in (8, 9)]))
    whole = torch.cat([x, x_validation]).double().sum()
    torch.testing.assert_close(whole, all_train[labels < 8].double().sum(), rtol=1e-10, atol=0)


def test_the_code_that_the_demo_ends_with_runs() -> None:
    x, y = torch.randn(60, 4), torch.randint(3, (60,))
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    names = {"model": model, "train": (x[:40], y[:40]), "held": (x[40:], y[40:]), "x": x}
    exec(textwrap.dedent(demo.ADVICE), names)
    assert isinstance(names["la"], pw.Laplace)


def test_interruption_prints_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: ModuleType
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "train", interrupted)
    monkeypatch.chdir(tmp_path)
    before = torch.get_rng_state()
    assert cli.main(["demo", "--quick"]) == 130
    assert capsys.readouterr().err == "Interrupted; nothing was written.\n"
    assert torch.equal(torch.get_rng_state(), before) and list(tmp_path.iterdir()) == []


def test_version_and_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, cli: ModuleType) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"peewit {pw.__version__}\n"
    monkeypatch.setattr(sys, "argv", ["peewit"])
    assert cli.main() == 0
    assert "demo" in capsys.readouterr().out


@pytest.mark.parametrize(
    "given, message",
    [
        (["demmo"], "'demmo' is not a command; did you mean 'demo'? Known: demo, recommend, fit,"),
        (["zzz"], "'zzz' is not a command; Known: demo, recommend, fit, tune,"),
        (["demo", "--sed", "x"], "--sed"),
    ],
)
def test_what_is_unknown_is_refused(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str], cli: ModuleType
) -> None:
    assert cli.main(given) == 2
    assert message in capsys.readouterr().err
