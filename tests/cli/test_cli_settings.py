"""Settings of a run: a file, `--set` and options, and what they are called."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import peewit as pw
from environment import ROOT

pytest.importorskip("typer", reason="no typer")

from commands import classifier, data, furnished, run
from peewit.cli import settings
from peewit.cli.output import Problem
from peewit.cli.settings import KNOWN, assignment, gather_settings
from peewit.messages.names import nearest


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from furnished(tmp_path, monkeypatch)


def test_settings_come_from_the_file_then_from_set_then_from_options(place: str) -> None:
    for extra, options in (
        ("", {}),
        ("--set fit.prior=3", {"prior": 3.0}),
        ("--set fit.prior=3 --prior 7", {"prior": 7.0}),
        ("--set fit.weights=last_layer", {"weights": "last_layer"}),
        ("--set arguments.width=8 --weights 2", {"weights": "2"}),
    ):
        expected = pw.fit(classifier(), data(), "classification", structure="diag", **options)
        assert run(f"fit -c run.toml {extra} -o made.safetensors -q", place) == 0
        made = pw.load("made.safetensors", classifier())
        assert (made.D, type(made.structure)) == (expected.D, pw.Diag)
        torch.testing.assert_close(made.log_evidence(), expected.log_evidence(), rtol=1e-4, atol=1e-3)


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
        ("fit.prior=[1, 2", "not TOML"),
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


def test_every_setting_is_on_the_page() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    for name in KNOWN:
        table, dot, key = name.partition(".")
        row = next((line for line in page.splitlines() if line.startswith(f"| `{table}.")), "") if dot else page
        assert f".{key}`" in row if dot else f"`{name}`" in row or f"`{name}.*`" in row, name


def test_unknown_inputs_are_gathered_from_everywhere(place: str) -> None:
    Path("more.toml").write_text('[ood]\nnear = "near.npz"\n')
    found = gather_settings(Path("more.toml"), ["ood.far=far.npz"], {"ood": {"odd": "odd.npz"}, "title": None})
    assert {name: Path(each).name for name, each in found["ood"].items()} == {
        "near": "near.npz",
        "far": "far.npz",
        "odd": "odd.npz",
    }
    assert "title" not in found


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
