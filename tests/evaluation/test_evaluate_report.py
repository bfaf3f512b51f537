"""Reports as values: JSON and back, Markdown, files that are whole or not there."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

import peewit as pw
from evaluating import classifier, images, numbers, regression
from peewit.evaluation import Report
from peewit.evaluation.markdown import estimate
from peewit.metrics import Curve, Estimate
from peewit.report.words import number


def reports() -> dict[str, Report]:
    la, (x, y) = classifier(), images(20, 5)
    full = pw.evaluate(la, (x, y), ood={"a|b": x}, shifts="noise", attacks="fgsm", validation=(x, y), intervals=5)
    return {"classes": full, "numbers": pw.evaluate(regression(), numbers(20), intervals=5)}


@pytest.mark.parametrize("kind", ["classes", "numbers"])
def test_reports_come_back_from_json(kind: str, tmp_path: Path) -> None:
    report = reports()[kind]
    text = report.to_json(tmp_path / "report.json")
    for source in (text, tmp_path / "report.json", str(tmp_path / "report.json")):
        again = Report.from_json(source)
        assert again.to_json() == text
        assert again.methods == report.methods and again.settings == report.settings
        assert again.to_markdown() == report.to_markdown()
    json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))
    assert isinstance(again.methods, tuple) and isinstance(again.methods[0].risk_coverage, Curve)
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_numbers_that_are_not_finite_come_back() -> None:
    report = reports()["numbers"]
    own = replace(
        report.methods[0], metrics={"nll": Estimate(math.inf, -math.inf, math.nan)}, description="NaN", pit=None
    )
    again = Report.from_json(replace(report, methods=(own,), posterior={"x": [math.inf, 1]}).to_json())
    found = again.methods[0].metrics["nll"]
    assert (found.value, found.low) == (math.inf, -math.inf) and math.isnan(found.high)
    assert again.posterior == {"x": [math.inf, 1]} and again.methods[0].description == "NaN"


def test_markdown_has_a_table_for_everything(tmp_path: Path) -> None:
    report = reports()["classes"]
    text = report.to_markdown(tmp_path / "report.md")
    assert (tmp_path / "report.md").read_text(encoding="utf-8") == text
    for word in ("# ", "| Laplace |", "Temperature scaling", "a\\|b", "noise", "fgsm", "AUROC", "0.weight", "seed"):
        assert word in text, word
    tables = [block for block in text.split("\n\n") if block.startswith("|")]
    for table in tables:
        assert len({line.replace("\\|", "").count("|") for line in table.splitlines()}) == 1, table
    assert len(tables) > 10


def test_numbers_in_tables() -> None:
    assert [number(value) for value in (0.0, 0.12345, 1e-5, 1234.5, math.inf, -math.inf, math.nan)] == [
        "0.000", "0.123", "1e-05", "1.23e+03", "∞", "−∞", "–",
    ]  # fmt: skip
    assert estimate(Estimate(0.5, 0.4, 0.6)) == "0.500 (0.400 to 0.600)"
    assert estimate(Estimate(0.5, 0.5, 0.5)) == "0.500"


def test_methods_by_name() -> None:
    report = reports()["numbers"]
    assert report["Plain network"] is report.methods[1]
    with pytest.raises(KeyError, match="it has Laplace, Plain network"):
        report["plain"]
    assert "Laplace, Plain network" in repr(report) and len(repr(report)) < 200


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    report = pw.evaluate(classifier(), images(10), intervals=0)
    with pytest.raises(IsADirectoryError, match=r"such as 'report\.json'"):
        report.to_json(tmp_path)


def test_an_earlier_file_stays_where_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "report.json"
    target.write_text("earlier", encoding="utf-8")

    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="no space"):
        reports()["numbers"].to_json(target)
    assert target.read_text(encoding="utf-8") == "earlier" and len(list(tmp_path.iterdir())) == 1


WRONG = {
    "no json": ("{nonsense", "not JSON"),
    "no report": ("{}", "without a format number"),
    "a list": (' {"format": 1', "not JSON"),
    "newer": ('{"format": 99}', "format 99"),
    "incomplete": ('{"format": 1, "title": "t"}', "does not hold what it should"),
    "wrong types": ('{"format": 1, "title": 3}', "not of type str"),
}


@pytest.mark.parametrize("text, message", WRONG.values(), ids=WRONG)
def test_text_that_is_no_report_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        Report.from_json(text)
    assert message in str(caught.value)


def test_files_that_are_not_there(tmp_path: Path) -> None:
    report = reports()["numbers"]
    with pytest.raises(FileNotFoundError, match="expected the path of a report"):
        Report.from_json(tmp_path / "none.json")
    with pytest.raises(IsADirectoryError, match="expected the name of a file"):
        report.to_json(tmp_path)
    with pytest.raises(FileNotFoundError, match="make it first"):
        report.to_markdown(tmp_path / "none" / "report.md")
