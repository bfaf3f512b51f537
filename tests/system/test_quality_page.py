"""The page of the benchmark of quality: means, paired differences, goals and tables, from files made up here."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.quality import board, by_task, cells, goals, measured, online, overview, page, sections, store, unknown

Record = dict[str, Any]
SPLITS, TRAININGS = range(3), ("early", "fixed")
MACHINE = {"device": "abacus", "torch": "2", "python": "3", "laplace-torch": None}


def classes(nll: float, auroc: float = 0.7, mutual: float | None = None, **more: Any) -> Record:
    """A record of a task of classes."""
    score = {"entropy": auroc} | ({} if mutual is None else {"mutual information": mutual})
    figures = {"nll": nll, "brier": 0.2, "ece": 0.05, "accuracy": 0.9}
    return {"figures": figures, "unknown": {"far": score}, "shifted": {"noise": figures}, **common(more)}


def numbers(nll: float, coverage: float = 0.9, auroc: float = 0.5, **more: Any) -> Record:
    """A record of a task of numbers."""
    figures = {"nll": nll, "crps": 0.3, "rmse": 0.5, "coverage": coverage, "width": 2.0}
    return {"figures": figures, "unknown": {"far": {"variance": auroc}}, "shifted": {}, **common(more)}


def common(more: dict[str, Any]) -> dict[str, Any]:
    return {"network": "abc", "cost": {"fit": 2.0, "predict": 3.0, "seconds": 0.5}, "settings": {}, **more}


def write(
    folder: Path, task: str, way: str, half: str, make: Callable[[int, str], Record], kind: str = "table"
) -> None:
    """All cases of a way."""
    cases = {f"{training}/whole/{split}": make(split, training) for training in TRAININGS for split in SPLITS}
    first = next(iter(cases.values()))
    likelihood = "regression" if "figures" in first and "crps" in first["figures"] else "classification"
    validated = way.startswith(("validation", "temperature"))
    header = {"likelihood": likelihood, "kind": kind, "half": half, "validated": validated, "reduced": False}
    store.add(folder, task, way, {**header, "machine": MACHINE}, cases)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A task of classes on each half, and one of numbers to choose on."""
    for task, half in (("first", "choose"), ("second", "confirm")):
        harm = 0.1 if task == "first" else 0.0
        write(tmp_path, task, "plain", half, lambda split, _: classes(0.5 + 0.1 * split))
        write(tmp_path, task, "temperature", half, lambda split, _: classes(0.45 + 0.1 * split, 0.72))
        write(tmp_path, task, "temperature, stop data", half, lambda split, _: classes(0.46 + 0.1 * split, 0.72))
        write(tmp_path, task, "validation", half, lambda split, _: classes(0.44 + 0.1 * split, 0.75, 0.8))
        write(tmp_path, task, "recipe", half, recipe_of(harm))
        write(tmp_path, task, "evidence", half, lambda split, how: failing(split, how))
    write(tmp_path, "third", "plain", "choose", lambda *_: numbers(150.0, 0.5))
    write(tmp_path, "third", "temperature", "choose", lambda *_: numbers(1.0))
    write(tmp_path, "third", "validation", "choose", lambda *_: numbers(1.2, 0.99, 0.6))
    return tmp_path


def recipe_of(harm: float) -> Callable[[int, str], Record]:
    """Better without a warning, but for the harm in networks of a fixed number of steps, which was warned of once."""

    def make(split: int, training: str) -> Record:
        if training == "fixed" and harm:
            told = {"warned": ["TuningWarning: effective dimensions 12.5 of 30"]} if split == 0 else {}
            return classes(0.5 + 0.1 * split + harm, 0.55, 0.9, **told)
        return classes(0.5 + 0.1 * split - 0.02 * (1 + split), 0.8, 0.9)

    return make


def failing(split: int, training: str) -> Record:
    if training == "fixed" and split == 1:
        return {"network": "abc", "failure": "RuntimeError: out of | memory"}
    return classes(0.9)


def task_of(read: board.Board, name: str) -> board.TaskInfo:
    return next(task for task in read.tasks if task.name == name)


def test_means_and_errors_are_over_splits(folder: Path) -> None:
    read = board.Board.read(folder)
    values = read.differences("second", "recipe", "plain", board.figure("nll"))
    estimate = board.average(values)
    expected = [-0.02, -0.04, -0.06]
    assert estimate is not None and estimate.splits == 3
    assert estimate.mean == pytest.approx(-0.04)
    assert estimate.error == pytest.approx(2 * statistics.stdev(expected) / math.sqrt(3))
    mixed = board.average(read.differences("first", "recipe", "plain", board.figure("nll")))
    assert mixed is not None and mixed.mean == pytest.approx((0.1 - 0.04) / 2)


def test_splits_with_gaps_are_left_out_of_means(folder: Path) -> None:
    read = board.Board.read(folder)
    estimate = board.average(read.values("first", "evidence", board.figure("nll")))
    assert estimate is not None and estimate.splits == 2
    single = board.average({"early/whole/0": 1.0})
    assert single is not None and math.isnan(single.error)
    assert board.average({}) is None


def test_only_the_same_networks_are_compared(folder: Path) -> None:
    write(folder, "second", "validation", "confirm", lambda *_: classes(0.1, network="other"))
    read = board.Board.read(folder)
    assert read.differences("second", "validation", "plain", board.figure("nll")) == {}
    assert read.strangers() == 6
    assert "6 cases are of networks that were trained elsewhere" in page.page(read)


def test_goals(folder: Path) -> None:
    read = board.Board.read(folder)
    by_half = dict(cells.halves(read))
    assert [task.name for task in read.tasks] == ["second", "first", "third"]

    def judge(number: int, half: str) -> goals.Verdict:
        return goals.GOALS[number].judge(read, by_half[half])

    assert judge(0, "confirm") == goals.Verdict(True, "1 of 1 tasks")
    assert judge(0, "choose") == goals.Verdict(
        False, "1 of 2 tasks (classes 1 of 1, numbers 0 of 1); missed: third +0.200"
    )
    assert judge(1, "confirm").met is True
    assert judge(1, "confirm").text == (
        "validation 0.540, plain 0.600, temperature 0.550 (-0.010); the median difference from temperature over the "
        "tasks is -0.010"
    )
    assert judge(1, "all") == goals.Verdict(
        False,
        "validation 0.760, plain 50.400, temperature 0.700 (+0.060); the median difference from temperature over the "
        "tasks is -0.010; on the mean over tasks of classes validation 0.540, plain 0.600, temperature 0.550 (-0.010)",
    )  # the first mean is over all three
    assert judge(2, "confirm") == goals.NOTHING
    assert judge(2, "choose") == goals.Verdict(False, "mean 99.0% (tasks: 1); outside: third 99.0%")
    assert judge(3, "all") == goals.Verdict(True, "3 of 3 tasks (classes 2 of 2, numbers 1 of 1)")
    assert judge(4, "all") == goals.Verdict(True, "3 of 3 tasks (classes 2 of 2, numbers 1 of 1)")
    assert judge(5, "confirm") == goals.Verdict(True, "1 of 1 tasks")
    assert judge(5, "choose") == goals.Verdict(False, "0 of 1 tasks; missed: first +0.030")
    assert judge(6, "choose") == goals.Verdict(False, "0 of 1 tasks; missed: first -0.025")
    assert judge(7, "choose") == goals.Verdict(True, "1 of 1 tasks")
    assert judge(8, "choose").text == "1 of 3 runs that got worse; the largest harm without a warning: first +0.100"
    assert judge(8, "confirm") == goals.Verdict(True, "no run got worse")
    assert judge(9, "all") == goals.Verdict(True, "0 of 9 runs that improved (0.0%)")


def test_runs_that_surely_got_worse(folder: Path) -> None:
    """By more than two of their own errors, of those that have one."""
    content = store.read(store.path_of(folder, "first", "recipe"))
    for key, error in (("fixed/whole/0", 0.04), ("fixed/whole/1", 0.06)):  # the harm is .1
        content["cases"][key]["error"] = error
    store.add(folder, "first", "recipe", {}, content["cases"])
    read = board.Board.read(folder)
    verdict = goals.every_worse_run_warned(read, read.tasks)
    assert verdict.text.endswith("of 2 whose own error is known, 1 got worse by more than two errors")


def test_two_standard_errors_are_allowed() -> None:
    few = board.Estimate(mean=0.1, error=0.2, splits=3)
    assert goals.allowed(few) == 0.2
    assert goals.allowed(board.Estimate(mean=0.1, error=0.001, splits=3)) == goals.ALLOWED
    assert goals.allowed(board.Estimate(mean=0.1, error=math.nan, splits=1)) == goals.ALLOWED


def test_tables(folder: Path) -> None:
    read = board.Board.read(folder)
    rows = {row[0]: row for row in sections.validated_nll(read).rows}
    assert rows["third"] == (
        *("third", "choose", "150", "1.000", "1.200", "+0.200 ± 0.000", "+0.200 ± 0.000", "+0.200 ± 0.000"),
        *("temperature", "0.005", "**no**"),
    )
    assert rows["second"][7:] == ("-0.010 ± 0.000", "temperature", "0.005", "yes")
    assert sections.misses_by_way(read).rows == (
        ("third", "validation", "+0.200 ± 0.000", "+0.200 ± 0.000", "+0.200 ± 0.000"),
    )
    unvalidated = {row[0]: row for row in sections.unvalidated_nll(read).rows}
    assert unvalidated["first"][4:] == ("-0.040 ± 0.023", "+0.100 ± 0.000", "+0.030 ± 0.012", "**no**")
    assert sections.intervals(read).rows[0][2:] == (
        "50.0%, 2.00",
        "90.0%, 2.00",
        "99.0%, 2.00",
        "not measured",
        "**no**",
    )
    assert ("choose", "worse", "3", "1", "33.3%") in sections.warnings_by_run(read).rows
    assert sections.warnings_by_text(read).rows == (("TuningWarning: effective dimensions # of #", "0", "0", "1"),)
    assert [row[:3] + row[4:] for row in sections.warnings_by_way(read).rows] == [
        ("recipe", "1 of 3", "33%", "0 of 9"),
        ("evidence", "0 of 10", "0%", "0 of 0"),
        ("validation", "0 of 0", "", "0 of 18"),
    ]
    stopped = {row[0]: row for row in overview.on_stopping_data(read).rows}
    assert stopped["first"][4:] == ("+0.010 ± 0.000", "", "", "not measured")
    ways = {row[0]: row for row in overview.all_ways(read, "choose", "classification").rows}
    assert ways["evidence"] == ("evidence", "+0.300 / +0.300 / failed 1 of 6")
    assert overview.costs(read).rows[0] == ("plain", *("2", "-", "-"), *("3", "-", "-"), *("0.5", "-", "-"))


def test_tables_on_unknown_inputs(folder: Path) -> None:
    write(folder, "second", "ensemble", "confirm", lambda *_: classes(0.4, 0.78, 0.7))
    write(folder, "third", "ensemble", "choose", lambda *_: numbers(0.9, auroc=0.65))
    read = board.Board.read(folder)
    rows = {row[0]: row[2:] for row in unknown.by_score(read).rows}
    assert rows["second"] == (
        *("0.700", "0.720", "not measured", "0.780", "not measured", "0.700", "0.750", "0.800"),
        *("+0.030 ± 0.000", "+0.100 ± 0.000"),
    )
    assert rows["third"][3:8] == ("0.650", "not measured", "not measured", "0.600", "not measured")
    rows = {row[0]: row[2:] for row in unknown.by_mutual(read).rows}
    assert rows == {
        "second": ("not measured", "0.700", "not measured", "0.800", "0.900"),
        "first": ("not measured", "not measured", "not measured", "0.800", "0.900"),
    }
    assert unknown.above(read, "validation") == (0, 2) and unknown.above(read, "recipe") == (1, 1)
    rows = {row[0]: row[2:] for row in unknown.by_training(read).rows}
    assert rows["first"][0] == "0.700 / 0.700" and rows["first"][-1] == "0.800 / 0.550"


def test_means_on_unknown_inputs_are_over_the_same_tasks(folder: Path) -> None:
    for way in unknown.WAYS:
        write(folder, "second", way, "confirm", lambda *_: classes(0.4, 0.8, 0.7))
    table = unknown.in_short(board.Board.read(folder))
    assert table.columns[1] == "1 tasks of classes, entropy"
    assert table.rows[0] == ("plain", "0.800", "0.700", "", "0 of 1")


def test_long_tables_by_task(folder: Path) -> None:
    write(folder, "second", "ensemble", "confirm", lambda *_: classes(0.4))
    read = board.Board.read(folder)
    brier = {row[0]: row[2:] for row in by_task.by_figure(read, "brier").rows}
    assert brier["second"] == ("0.200 / 0.200",) * 5 == brier["**mean**, tasks with all"]
    assert brier["first"][2] == "not measured"
    assert by_task.by_figure(read, "crps").rows == (
        ("third", "choose", "0.300", "0.300", "not measured", "0.300", "not measured"),
    )
    assert [row[0] for row in by_task.shifted_nll(read).rows] == ["second", "first"]
    assert by_task.coverage(read).rows[0][2:6] == ("50.0% / 50.0%", "90.0% / 90.0%", "", "99.0% / 99.0%")


def test_what_was_measured(folder: Path) -> None:
    write(folder, "wine", "plain", "choose", lambda *_: classes(0.4))
    write(folder, "wine", "recipe", "choose", lambda *_: classes(0.4))
    content = store.read(store.path_of(folder, "wine", "recipe"))
    del content["cases"]["early/whole/2"]
    store.path_of(folder, "wine", "recipe").write_text(json.dumps(content))
    figures = {"pretrained/whole/0": classes(0.1)}
    header = {"likelihood": "classification", "kind": "image", "half": "choose", "validated": False, "reduced": False}
    store.add(folder, "net", "plain", {**header, "machine": MACHINE}, figures)
    read = board.Board.read(folder)
    rows = {row[0]: row[1:] for row in measured.tables(read)[0].rows}
    assert rows["wine"][:7] == ("table", "choose", "20", "3", "3", "", "")
    assert rows["wine"][7].startswith("2 of ")
    assert "`recipe`: 5 of 6 cases" in rows["wine"][8] and "not measured yet: `temperature`" in rows["wine"][8]
    assert rows["net"][2:6] == ("", "", "", "1") and "`ensemble`" not in rows["net"][8]
    assert rows["wine"][9] == "11 not recorded" and rows["net"][9] == "1 not recorded"
    without = {row[0]: row[1:] for row in measured.without_results(read).rows}
    assert without["diagonal, recipe"] == ("4 of 4", "all of them") and "plain" not in without
    assert without["evidence"] == ("3 of 5", "wine, net, third") and without["recipe"] == ("2 of 5", "net, third")
    net = task_of(read, "net")
    assert [cells.absent(read, net, way) for way in ("ensemble", "recipe")] == ["-", "not measured"]


def test_revisions_that_were_measured(folder: Path) -> None:
    """The latest is told by the time of its commit; files that do not say are read as before."""
    first, second, third = (
        "0.9.0 2026-01-02T10:00 ffff",
        "0.10.0 2026-01-02T11:00 aaaa",
        "0.10.0 2026-02-01T09:00 1234+",
    )
    of_split = (first, second, third)
    write(folder, "first", "recipe", "choose", lambda split, _: classes(0.4, revision=of_split[split]))
    write(folder, "second", "recipe", "confirm", lambda *_: classes(0.4, revision=third))
    splits, _, by_revision = measured.tables(board.Board.read(folder))
    older = {row[0]: row[-1] for row in splits.rows}
    assert older["first"] == "4 earlier, 30 not recorded" and older["second"] == "30 not recorded"
    assert by_revision.rows == (
        ("not recorded", "78", "3", "5"),
        (first, "2", "1", "1"),
        (second, "2", "1", "1"),
        (third, "8", "2", "1"),
    )


def test_a_page_from_files(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "FINDINGS", tmp_path / "findings.md")
    (tmp_path / "findings.md").write_text("## What we found\n\nThis.\n", encoding="utf-8")
    target = tmp_path / "docs" / "quality.md"
    page.main(["--results", str(folder), "--markdown", str(target), "--figures", str(tmp_path / "docs" / "figures")])
    text = target.read_text(encoding="utf-8")
    assert text.index("## The goals") < text.index("## What we found") < text.index("## How it was measured")
    assert "| third | choose | 150 |" in text
    assert "- choose: **missed**, 1 of 2 tasks (classes 1 of 1, numbers 0 of 1); missed: third +0.200." in text
    longer = target.with_name("quality_tables.md").read_text(encoding="utf-8")
    assert "not measured" in longer and "failed 1 of 6" in longer
    assert "## What was measured" in longer and "## What was measured" not in text
    assert "[One table](quality_tables.md#what-was-measured)" in text and "](#" not in longer.partition("## By task")[2]
    for name in ("nll-classes", "nll-numbers", "coverage"):
        assert f"](figures/{name}.png)" in text
        assert (tmp_path / "docs" / "figures" / f"{name}.png").stat().st_size > 5000


def test_a_reduced_page_has_no_findings_of_others(folder: Path) -> None:
    whole = page.page(board.Board.read(folder))
    store.add(folder, "first", "plain", {"reduced": True}, {})
    text = page.page(board.Board.read(folder))
    for words in ("## What is missed, and why", "## What training data tell of harm"):
        assert words in whole and words not in text
    assert "results of a reduced run" in text


def test_a_page_needs_results(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="measure first"):
        page.main(["--results", str(tmp_path)])


def test_training_with_online_evidence(folder: Path) -> None:
    """One network beside two plain ones; above temperature scaling by .03 or .07 nats on the first task."""
    settings = {"training": 2.5, "hyper-steps": 20.0, "kept at": 0.75}
    write(folder, "second", goals.ONLINE, "confirm", lambda split, _: classes(0.44 + 0.1 * split, settings=settings))
    write(folder, "first", goals.ONLINE, "choose", above_temperature(0.03, 0.07))
    read = board.Board.read(folder)
    gaps = {gap.task.name: gap for gap in goals.online_gaps(read, read.tasks, "temperature")}
    assert set(gaps) == {"first", "second"} and gaps["second"].holds and not gaps["first"].holds
    assert gaps["first"].difference.mean == pytest.approx(0.05)
    assert gaps["first"].difference.error == pytest.approx(0, abs=1e-12)
    temperature, plain = (goal.judge(read, read.tasks) for goal in goals.GOALS[-2:])
    assert temperature == goals.Verdict(False, "1 of 2 tasks; missed: first +0.050")
    assert plain == goals.Verdict(False, "1 of 2 tasks; missed: first +0.000")
    nll, less, times = online.tables(read)
    rows = {row[0]: dict(zip(nll.columns, row, strict=True)) for row in nll.rows}
    assert rows["second"]["plain"] == "0.600" and rows["second"][goals.ONLINE] == "0.540"
    assert rows["second"]["splits"] == "3" and rows["second"]["ensemble"] == "not measured"
    rows = {row[0]: dict(zip(less.columns, row, strict=True)) for row in less.rows}
    assert rows["first"]["temperature, early"] == "+0.030 ± 0.000" and rows["first"]["holds"] == "**no**"
    assert rows["second"]["plain"] == "-0.060 ± 0.000" and rows["second"]["holds"] == "yes"
    assert dict(zip(times.columns, times.rows[0], strict=True))["seconds"] == "2.5"
    assert times.rows[1][2:] == ("not measured",) * 3


def test_training_with_online_evidence_may_be_above_by_two_errors(folder: Path) -> None:
    """Over three splits that differ by much; other ways are shown for the same splits."""
    write(
        folder, "first", goals.ONLINE, "choose", lambda split, _: classes(0.45 + 0.1 * split + (-0.05, 0.0, 0.1)[split])
    )
    read = board.Board.read(folder)
    (gap,) = goals.online_gaps(read, [task_of(read, "first")], "temperature")
    assert gap.difference.mean == pytest.approx(0.05 / 3) and gap.difference.error > gap.difference.mean and gap.holds
    content = store.read(store.path_of(folder, "first", goals.ONLINE))
    content["cases"] = {key: case for key, case in content["cases"].items() if key.endswith("/0")}
    store.path_of(folder, "first", goals.ONLINE).write_text(json.dumps(content))
    rows = online.nll(board.Board.read(folder), [task_of(read, "first")]).rows
    assert dict(zip(online.nll(read, []).columns, rows[0], strict=True))["plain"] == "0.500"
    assert [online.cell(board.average({"early/whole/0": 0.25}), splits) for splits in (1, 2)] == ["0.250", "0.250 (1)"]


def above_temperature(early: float, fixed: float) -> Callable[[int, str], Record]:
    """By so much, in every split."""
    return lambda split, how: classes(0.45 + 0.1 * split + (early if how == "early" else fixed))
