"""The table of docs/evidence.md on the linear mode, from the files: `python -m benchmarks.quality.linear_mode`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.quality.board import PLAIN, RECIPE, Board, TaskInfo, average, figure
from benchmarks.quality.cells import change, mean_of, number
from benchmarks.quality.store import RESULTS
from benchmarks.tables import Row, Table, markdown

BASE, ONE = "evidence", "linear mode"
WAYS = (PLAIN, BASE, ONE, "linear mode, layerwise", "linear mode, its own mean", RECIPE)
NLL = figure("nll")


def measured(board: Board, likelihood: str) -> list[TaskInfo]:
    """The tasks of one likelihood that have all of the ways."""
    return [
        task
        for task in board.tasks
        if task.likelihood == likelihood and all(board.cases(task.name, way) for way in WAYS)
    ]


def table(board: Board) -> Table:
    """A row per way: tasks and runs in which its NLL is below that of the evidence, and the NLL over the tasks."""
    kinds = {name: measured(board, name) for name in ("classification", "regression")}
    counts = [len(tasks) for tasks in kinds.values()]
    columns = (
        "way",
        f"{counts[0]} tasks of classes: below",
        "mean NLL",
        f"{counts[1]} tasks of numbers: below",
        "median NLL",
        "runs below",
        "largest harm in a run",
    )
    return Table("Beside the evidence at the trained weights", columns, tuple(row(board, kinds, way) for way in WAYS))


def row(board: Board, kinds: dict[str, list[TaskInfo]], way: str) -> Row:
    """Of one way."""
    cells = [way]
    for name, over in (("classification", statistics.fmean), ("regression", statistics.median)):
        means = [value for task in kinds[name] if (value := mean_of(board, task, way, NLL)) is not None]
        cells += [below(board, kinds[name], way), number(over(means) if means else None)]
    runs = [
        value
        for tasks in kinds.values()
        for task in tasks
        for value in board.differences(task.name, way, BASE, NLL).values()
    ]
    if way == BASE or not runs:
        return (*cells, "", "")
    return (*cells, f"{sum(value < 0 for value in runs)} of {len(runs)}", change(max(runs)))


def below(board: Board, tasks: Sequence[TaskInfo], way: str) -> str:
    """In how many tasks the mean difference from the evidence is negative."""
    if way == BASE:
        return ""
    found = [average(board.differences(task.name, way, BASE, NLL)) for task in tasks]
    return str(sum(each is not None and each.mean < 0 for each in found))


def switched_off(board: Board, way: str) -> tuple[int, int]:
    """Runs in which groups of the prior were switched off, and all runs."""
    records = [
        record
        for task in board.tasks
        for key, record in board.cases(task.name, way).items()
        if key.split("/")[1] == "whole"
    ]
    return sum(any("switched off" in text for text in record.get("warned", [])) for record in records), len(records)


def main() -> None:
    """Print it."""
    board = Board.read(RESULTS)
    print("\n".join(markdown(table(board))))
    for name in ("classification", "regression"):
        for task in measured(board, name):
            gap = average(board.differences(task.name, ONE, BASE, NLL))
            if gap is not None and gap.mean > 0:
                print(f"{ONE} is above {BASE} on {task.name}: {change(gap.mean)}, two standard errors {gap.error:.3f}")
    off, runs = switched_off(board, "linear mode, layerwise")
    print(f"groups switched off in {off} of {runs} runs of one precision per tensor")


if __name__ == "__main__":
    main()
