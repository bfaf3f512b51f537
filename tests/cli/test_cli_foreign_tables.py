"""Tables as other programs write them and people mend them: read as they are, or refused with what to do."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy
import pytest
import torch

pytest.importorskip("typer", reason="no typer")

from commands import data, furnished, run
from peewit.cli import tables
from peewit.cli.output import Problem
from peewit.posterior.schema import Schema

pytestmark = pytest.mark.filterwarnings("default:.*not used:UserWarning")  # printed as notes

FIT = "fit -m NET:regressor -l regression -o made.safetensors -q"
USE = "-m NET:regressor -p made.safetensors"
ROWS = [["0.5", "1.25", "2.5"], ["-1.5", "2.75", "3.125"], ["0.75", "-0.5", "1.5"]]
HEAD = ["a", "b", "y"]
PLAIN = "".join(",".join(row) + "\n" for row in [HEAD, *ROWS])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    yield from furnished(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "change",
    [
        lambda text: b"\xef\xbb\xbf" + text.encode(),
        lambda text: text.replace("\n", "\r\n").encode(),
        lambda text: text.replace("\n", "\r").encode(),
        lambda text: text.replace("\n", "\n\n").encode(),
        lambda text: text.replace(",", " , ").encode(),
        lambda text: "".join(
            ",".join(f'"{cell}"' for cell in line.split(",")) + "\n" for line in text.splitlines()
        ).encode(),
        lambda text: text.rstrip("\n").encode(),
    ],
    ids=["a mark of the encoding", "Windows", "old Macs", "blank lines", "spaces", "quotes", "no end of the last line"],
)
def test_tables_that_are_read_as_they_are(change: Callable[[str], bytes], tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_bytes(change(PLAIN))
    found = tables.read(path, None, True, Schema())
    assert found.names == tuple(HEAD) and found.rows == ROWS


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize(("mark", "word"), [(";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
@pytest.mark.parametrize("decimal", [",", "."])
def test_other_separators_are_named(head: bool, mark: str, word: str, decimal: str, tmp_path: Path) -> None:
    """With the line of pandas that writes commas."""
    path = tmp_path / "table.csv"
    rows = [[cell.replace(".", decimal) for cell in row] for row in ROWS]
    path.write_text("".join(mark.join(row) + "\n" for row in ([HEAD] if head else []) + rows))
    with pytest.raises(Problem) as caught:
        tables.read(path, None, True, Schema())
    told = str(caught.value)
    assert f"has {word} between its cells" in told and f"sep={mark!r}" in told
    assert ("decimal=','" in told) == ("and decimal commas" in told) == (decimal == ",")


def test_marks_inside_words_are_no_separators(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("a,class\n1.5,x;y\n2.5,y;z\n0.5,x;y\n")
    assert tables.read(path, None, True, Schema()).column("class") == ["x;y", "y;z", "x;y"]


CELLS = {
    "nan": "Fill in missing cells",
    "NA": "Fill in missing cells",
    "": "Fill in missing cells",
    "inf": "Leave such rows out",
    "-1e999": "Leave such rows out",
    '"1,234.5"': "Write numbers with a decimal point",
    '"2,5"': "Write numbers with a decimal point",
    "red": "Write words as numbers as for the training",
    "12 %": "Write words as numbers as for the training",
}


@pytest.mark.parametrize("cell", CELLS)
def test_cells_that_are_no_numbers(cell: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In fits and in predictions: the row, the column, the cell and what to do, before anything is computed."""
    Path("plain.csv").write_text(PLAIN)
    Path("odd.csv").write_text(PLAIN.replace("2.75", cell))
    assert run(f"{FIT} --train plain.csv", place) == 0
    for given in (f"{FIT} --train odd.csv", f"predict {USE} --data odd.csv -o p.csv -q"):
        capsys.readouterr()
        assert run(given, place) == 2
        told, stripped = capsys.readouterr().err, cell.strip('"')
        assert told.startswith(f"peewit: odd.csv: row 2, column 'b' holds {stripped!r}; expected a number.")
        assert CELLS[cell] in told and told.count("\n") == 1


def test_targets_that_are_no_numbers(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("odd.csv").write_text(PLAIN.replace(",2.5", ",low").replace("3.125", "high"))
    assert run(f"{FIT} --train odd.csv", place) == 2
    told = capsys.readouterr().err
    assert "row 1, column 'y' holds 'low'; expected a number (2 of 3 rows have none)." in told
    assert "--likelihood classification; or name another --target" in told


def test_a_missing_class_among_numbers(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It would make words of all, in the order of words: 10 before 2."""
    Path("odd.csv").write_text("a,b,class\n1.5,2.5,0\n0.5,0.25,NA\n0.25,1.5,2\n1.25,0.75,1\n")
    assert run("fit -m NET:classifier -l classification --train odd.csv", place) == 2
    assert "row 2, column 'class' holds 'NA'; expected a class" in capsys.readouterr().err
    Path("words.csv").write_text("a,b,class\n1.5,2.5,low\n0.5,0.25,none\n0.25,1.5,top\n1.25,0.75,low\n")
    assert run("fit -m NET:classifier -l classification --train words.csv -q", place) == 0


def test_text_of_another_encoding(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    for encoding in ("utf-16", "latin-1"):
        Path("odd.csv").write_bytes(PLAIN.replace("a,", "ä,").encode(encoding))
        assert run(f"{FIT} --train odd.csv", place) == 2
        assert "odd.csv is not text in UTF-8" in capsys.readouterr().err


def test_columns_beside_the_inputs(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a fit and of predictions: refused with the option that leaves them out, which then does."""
    rows = [[str(number), *row] for number, row in enumerate(ROWS)]
    Path("index.csv").write_text("".join(",".join(row) + "\n" for row in [["", *HEAD], *rows]))
    Path("plain.csv").write_text(PLAIN)
    assert run(f"{FIT} --train index.csv", place) == 2
    told = capsys.readouterr().err
    assert "has the inputs '', a, b and the target y, and the network does not take 3 inputs (mat1 and mat2" in told
    assert "--inputs A,B,..." in told and told.count("\n") == 1
    assert run(f"{FIT} --train index.csv --inputs a,b", place) == 0
    assert run(f"{FIT} --train plain.csv", place) == 0
    assert run(f"predict {USE} --data index.csv -o p.csv -q", place) == 2
    assert "leave them out with --inputs a,b." in capsys.readouterr().err
    assert run(f"predict {USE} --data index.csv --inputs a,b -o p.csv -q", place) == 0
    assert run(f"predict {USE} --data plain.csv -o q.csv -q", place) == 0
    assert Path("p.csv").read_text() == Path("q.csv").read_text()
    assert run(f"predict {USE} --data index.csv --inputs b,a -o p.csv -q", place) == 2
    assert "--inputs b,a was given; the posterior was fitted with a, b" in capsys.readouterr().err


def test_a_network_that_fails_for_a_reason_of_its_own(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its words are in the message."""
    Path(f"{place}_broken.py").write_text(
        "from torch import nn\nclass net(nn.Linear):\n    def __init__(self): super().__init__(2, 1)\n"
        "    def forward(self, x): raise RuntimeError('the moon is full')\n"
    )
    assert run(f"fit -m {place}_broken:net -l regression --train numbers.csv", place) == 2
    assert "(the moon is full)" in capsys.readouterr().err


def stamps(spread: float) -> list[list[float]]:
    x, _ = data()
    return [[1.7e9 + spread * a, b, a + b + 3] for a, b in x.double().tolist()]


def test_numbers_that_the_network_cannot_tell_apart(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Times in seconds since 1970 in float32, 128 apart; days that differ by years are fine."""
    Path(f"{place}_double.py").write_text(
        f"from {place} import regressor\ndef net():\n    return regressor().double()\n"
    )
    for spread, net, fine in (
        (30.0, "NET:regressor", False),
        (1e7, "NET:regressor", True),
        (30.0, "NET_double:net", True),
    ):
        with open("times.csv", "w", newline="") as file:
            csv.writer(file).writerows([["time", "b", "y"], *stamps(spread)])
        given = f"fit -m {net} -l regression --train times.csv --standardise -o made.safetensors -q"
        assert run(given, place) == (0 if fine else 2)
        told = capsys.readouterr().err
        assert ("the numbers of column 'time', such as 1" in told and "for float32" in told) is not fine


def test_a_target_of_one_value_is_not_standardised(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("same.csv").write_text("a,b,y\n1.5,2.5,7\n0.5,0.25,7\n")
    assert run(f"{FIT} --train same.csv --standardise", place) == 2
    assert "the target 'y' of same.csv has one value in all 2 rows" in capsys.readouterr().err
    numpy.savez("same.npz", x=numpy.eye(2, dtype="float32"), y=numpy.full(2, 7.0))
    assert run(f"{FIT} --train same.npz --standardise", place) == 2
    assert "the target '0' of same.npz has one value" in capsys.readouterr().err
    assert run(f"{FIT} --train same.csv --set standardise=inputs", place) == 0


def test_an_input_of_one_value_is_named(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("same.csv").write_text("a,b,y\n1.5,4,7\n0.5,4,8\n")
    assert run(f"{FIT.removesuffix(' -q')} --train same.csv --standardise", place) == 0
    assert "note: same.csv: b has one value in all rows, and is only shifted by it.\n" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["x", "y"])
def test_holes_in_arrays_are_named(where: str, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = {"x": torch.randn(5, 2).numpy(), "y": torch.randn(5, 1).numpy()}
    arrays[where][3] = float("nan")
    numpy.savez("hole.npz", **arrays)
    assert run(f"{FIT} --train hole.npz --standardise", place) == 2
    what = {"x": "inputs", "y": "targets"}[where]
    assert f"the {what} of hole.npz hold NaN or Inf in 1 of 5 rows, first in row 4" in capsys.readouterr().err
