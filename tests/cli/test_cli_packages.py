"""Packages that a command needs: looked for before the work begins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("typer", reason="no typer")

import peewit as pw
from commands import furnished, run
from peewit.cli import datasets, networks, output
from peewit.figures import style

FIT = "fit -m NET:classifier -w weights.safetensors -l classification"
USE = "-m NET:classifier -w weights.safetensors -p made.safetensors"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from furnished(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("given", "absent", "words"),
    [
        (f"evaluate {USE} --test train.npz -o page.html", "plotly", "Pages and pictures (.html, .png) need plotly"),
        (f"evaluate {USE} --test train.npz -o a.json -o page.html", "plotly", "pip install plotly"),
        (f"report {USE} --test train.npz -o page.html", "plotly", "pip install plotly"),
        ("report stored.json -o page.html", "plotly", "pip install plotly"),
        (f"landscape {USE} --train train.npz", "plotly", "pip install plotly"),
        (f"landscape {USE} --train train.npz -o l.png", "kaleido", "Pictures (.png) need kaleido"),
        (f"{FIT} --train photos", "PIL", "Folders of images need Pillow, which is not installed: pip install pillow."),
        (f"recommend {FIT.removeprefix('fit ')} --train photos", "PIL", "pip install pillow"),
        (f"tune {USE} --validation photos", "PIL", "pip install pillow"),
        (f"tune {USE} --train photos", "PIL", "pip install pillow"),
        (f"predict {USE} --data photos -o p.csv", "PIL", "pip install pillow"),
        (f"evaluate {USE} --test photos", "PIL", "pip install pillow"),
        (f"evaluate {USE} --test train.npz --ood odd=photos", "PIL", "pip install pillow"),
        (f"diagnose {USE} --train photos", "PIL", "pip install pillow"),
        ("compare made.safetensors -m NET:classifier --test photos", "PIL", "pip install pillow"),
    ],
)
def test_a_missing_package_is_found_before_the_work(
    given: str, absent: str, words: str, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither is the network made nor are data read."""
    Path("photos").mkdir()
    find = output.find_spec
    monkeypatch.setattr(output, "find_spec", lambda name: None if name == absent else find(name))
    for module, name in ((networks, "call_named"), (datasets, "load"), (pw, "load")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("the work began"))
    assert run(given, place) == 2
    told = capsys.readouterr()
    assert words in told.err and told.err.count("\n") == 1 and told.out == ""


def test_a_broken_package_is_found_before_the_work(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Plotly is there, and its import fails."""
    broken = tmp_path / "broken" / "plotly"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('no module narwhals')\n")
    monkeypatch.syspath_prepend(str(broken.parent))
    for name in [name for name in sys.modules if name.partition(".")[0] == "plotly"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(pw, "load", lambda *_, **__: pytest.fail("the work began"))
    assert run(f"report {USE} --test train.npz -o page.html", place) == 2
    assert "plotly, which is installed but cannot be imported: no module narwhals" in capsys.readouterr().err
    with pytest.raises(pw.MissingPackageError, match="cannot be imported: no module narwhals"):
        style.graph_objects()


def test_a_table_of_another_program_is_named(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They need packages of their own, and are not read."""
    for name in ("table.parquet", "table.xlsx", "table.tsv"):
        Path(name).write_bytes(b"PAR1")
        assert run(f"{FIT} --train {name}", place) == 2
        assert "expected .npz, .csv" in (told := capsys.readouterr().err)
        assert f"Write the table as .csv, such as pandas.read_{READ[name]}" in told


READ = {
    "table.parquet": "parquet('table.parquet').to_csv('table.csv', index=False)",
    "table.xlsx": "excel('table.xlsx').to_csv('table.csv', index=False)",
    "table.tsv": "table('table.tsv').to_csv('table.csv', index=False)",
}
