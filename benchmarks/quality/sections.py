"""The tables that the goals are about: every number of them comes from the files."""

from __future__ import annotations

import collections
import re
from collections.abc import Callable, Sequence

from benchmarks.quality.board import (
    PLAIN,
    RECIPE,
    TEMPERATURE,
    VALIDATED,
    Board,
    average,
    figure,
    mean_over,
)
from benchmarks.quality.cells import MISSING, by_training, halves, mean_of, means_rows, number, ordered, signed
from benchmarks.quality.goals import (
    EACH_COVERAGE,
    Gap,
    Warned,
    against_both,
    against_plain,
    allowed,
    runs,
    within,
)
from benchmarks.tables import Row, Table

MISSES = "Where the goal is missed: all ways with validation data, less the better of both"
BASES = (PLAIN, TEMPERATURE, f"{TEMPERATURE}, stop data")
EXPLAINED = {
    "What they said": "In the words of the revision that measured them; numbers are left out as `#`.",
    MISSES: "Tasks whose mean is farther above the better of the plain network and temperature scaling than allowed.",
}
TUNED = (RECIPE, "evidence", "last layer, evidence", "diagonal, evidence", "linear mode", VALIDATED)
MUCH = 0.1  # nats
LETTERS = 90  # of a warning in the table


def gap_rows(board: Board, gaps: Sequence[Gap], way: str, ways: Sequence[str]) -> tuple[Row, ...]:
    """A row per task: means of the NLL, differences by training and over both, and whether the goal holds."""
    return tuple(
        (
            gap.task.name,
            gap.task.half,
            *(number(mean_of(board, gap.task, each, figure("nll"))) for each in ways),
            *by_training(board, gap.task, way, gap.base),
            signed(gap.difference),
            gap.base,
            number(allowed(gap.difference)),
            "yes" if gap.holds else "**no**",
        )
        for gap in gaps
    )


def validation_tables(board: Board) -> list[Table]:
    """With validation data: NLL, where it misses its goal, and intervals."""
    return [validated_nll(board), misses_by_way(board), intervals(board)]


def validated_nll(board: Board) -> Table:
    """With validation data: NLL beside the better of both."""
    ways = (PLAIN, TEMPERATURE, VALIDATED)
    rows = gap_rows(board, against_both(board, board.tasks), VALIDATED, ways)
    columns = ("task", "half", *ways, "early", "fixed", "difference", "from", "allowed", "holds")
    return Table("NLL with validation data", columns, rows + means_rows(board, ways, len(columns)))


def misses_by_way(board: Board) -> Table:
    """Where the goal with validation data is missed: every way with validation data, less the same base."""
    missed = [gap for gap in against_both(board, board.tasks) if not gap.holds]
    ways = [way for way in ordered(board) if way not in BASES and board.header(way)["validated"]] if missed else []
    rows = []
    for gap in missed:
        for way in ways:
            whole = average(board.differences(gap.task.name, way, gap.base, figure("nll")))
            if whole is not None:
                rows.append((gap.task.name, way, *by_training(board, gap.task, way, gap.base), signed(whole)))
    return Table(MISSES, ("task", "way", "early", "fixed", "difference"), tuple(rows))


def unvalidated_nll(board: Board) -> Table:
    """Without validation data: NLL beside the plain network."""
    ways = (PLAIN, RECIPE)
    rows = tuple(
        (*row[:-3], row[-1]) for row in gap_rows(board, against_plain(board, board.tasks), RECIPE, ways)
    )  # without the base and what is allowed
    columns = ("task", "half", *ways, "early", "fixed", "difference", "not above")
    return Table("NLL without validation data", columns, rows + means_rows(board, ways, len(columns)))


def intervals(board: Board) -> Table:
    """Coverage and width of 90 % intervals."""
    ways = (PLAIN, TEMPERATURE, VALIDATED, RECIPE)
    rows = []
    for task in (task for task in board.tasks if not task.classes):
        cells = []
        for way in ways:
            held, width = (mean_of(board, task, way, figure(name)) for name in ("coverage", "width"))
            cells.append(MISSING if held is None else f"{held:.1%}, {number(width, 2)}")
        held = mean_of(board, task, VALIDATED, figure("coverage"))
        cells.append(MISSING if held is None else "yes" if within(held, EACH_COVERAGE) else "**no**")
        rows.append((task.name, task.half, *cells))
    for half, tasks in halves(board):
        means = mean_over(board, tasks, ways, figure("coverage"))
        if means:
            rows.append((f"**mean**, {half}", half, *(f"{means[way]:.1%}" for way in ways), ""))
    return Table("90 % intervals: coverage and width", ("task", "half", *ways, "validation in 82-97 %"), tuple(rows))


def warning_tables(board: Board) -> list[Table]:
    """Rates, and what was said; the rates of other ways of tuning."""
    return [warnings_by_run(board), warnings_by_text(board), warnings_by_way(board)]


def warnings_by_way(board: Board) -> Table:
    """How many runs were warned, of those that got worse or improved, and how much of the harm that is."""
    rows = []
    for way in (way for way in ordered(board) if way in TUNED):
        found = runs(board, board.tasks, way)
        groups = [
            [run for run in found if chosen(run)]
            for chosen in (lambda run: run.worse, lambda run: run.difference > MUCH, lambda run: run.improved)
        ]
        told = [[run for run in group if run.warnings] for group in groups]
        harm = sum(run.difference for run in groups[0])
        share = f"{sum(run.difference for run in told[0]) / harm:.0%}" if harm else ""
        counts = [f"{len(warned)} of {len(group)}" for warned, group in zip(told, groups, strict=True)]
        rows.append((way, counts[0], share, *counts[1:]))
    columns = ("way", "worse, warned", "of the summed harm", f"worse by {MUCH:g} nats, warned", "improved, warned")
    return Table("Warnings by way of tuning", columns, tuple(rows))


def warnings_by_run(board: Board) -> Table:
    """Runs by what happened to their NLL, and how many of them were warned."""
    rows = []
    for half, tasks in halves(board):
        found = runs(board, tasks)
        groups: dict[str, Callable[[Warned], bool]] = {
            "improved": lambda run: run.improved,
            "worse": lambda run: run.worse,
            "the same in three decimals": lambda run: not run.improved and not run.worse,
        }
        for name, chosen in groups.items():
            own = [run for run in found if chosen(run)]
            warned = sum(bool(run.warnings) for run in own)
            rate = f"{warned / len(own):.1%}" if own else ""
            rows.append((half, name, str(len(own)), str(warned), rate))
    return Table(
        "Warnings of the recipe without validation data", ("half", "NLL", "runs", "warned", "share"), tuple(rows)
    )


def warnings_by_text(board: Board) -> Table:
    """Which warnings came in runs that improved, and in those that got worse."""
    counts: dict[str, collections.Counter[str]] = {}
    for run in runs(board, board.tasks):
        group = "worse" if run.worse else "improved" if run.improved else "same"
        for text in {shape_of(text) for text in run.warnings}:
            counts.setdefault(text, collections.Counter())[group] += 1
    rows = sorted(
        ((text, *(str(own[group]) for group in ("improved", "same", "worse"))) for text, own in counts.items())
    )
    return Table("What they said", ("warning", "improved", "the same", "worse"), tuple(rows))


def shape_of(text: str) -> str:
    """The beginning of a warning, with its numbers left out."""
    return re.sub(r"\d[\d.,e+-]*\d|\d", "#", text)[:LETTERS]
