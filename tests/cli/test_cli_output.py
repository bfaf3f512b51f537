"""Where commands speak and write: stdout, stderr, and files that are whole."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

import peewit as pw

pytest.importorskip("typer", reason="no typer")

from commands import classifier, data, furnished, leftovers, run
from peewit.cli import posteriors
from peewit.cli.output import finite
from peewit.cli.program import plain_warnings
from peewit.runtime.progress import Progress
from peewit.storage.atomic import writing

FIT = "fit -m NET:classifier -w weights.safetensors -l classification --train train.npz"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from furnished(tmp_path, monkeypatch)


def fitted() -> pw.Laplace:
    return pw.fit(classifier(), data(), "classification")


def test_bars_leave_stdout_alone(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert list(Progress(show=True).track([1, 2], 2, "counting")) == [1, 2]
    told = capsys.readouterr()
    assert told.out == "" and "counting" in told.err


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


def test_warnings_say_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """What a warning says to type is a command there."""
    with plain_warnings(quiet=False):
        warnings.simplefilter("always")
        warnings.warn("Ways out: tune(validation=...) with new data, or la.tune(train=...) without.", stacklevel=1)
    said = capsys.readouterr().err
    assert said == "note: Ways out: peewit tune --validation DATA with new data, or peewit tune --train DATA without.\n"
