"""The tables of all ways: differences from the plain network, other figures, costs, and stopping data."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.quality.board import (
    HALVES,
    KINDS,
    PLAIN,
    TEMPERATURE,
    TRAININGS,
    VALIDATED,
    Board,
    TaskInfo,
    average,
    cost,
    figure,
    mean_over,
    shifted,
)
from benchmarks.quality.cells import by_training, change, number, ordered, signed
from benchmarks.quality.goals import against_plain
from benchmarks.quality.ways import WAYS
from benchmarks.tables import Table

STOPPED = {TEMPERATURE: f"{TEMPERATURE}, stop data", VALIDATED: f"{VALIDATED}, stop data"}
LIKELIHOODS = ("classification", "regression")
PARTS = tuple((half, likelihood) for half in HALVES for likelihood in LIKELIHOODS)
IN_SHORT, COST = "Every way, over the tasks", "Cost, median over the cases"
COSTS = ("fit", "predict", "seconds")
EXPLAINED = {
    IN_SHORT: "The NLL less the plain network's: the median over the tasks, and the largest in parentheses. The tables "
    "below have each task: early / fixed, or one number for a pretrained network. A dash: [not "
    "measured](#what-was-measured).",
    COST: "Fit and predict are in plain passes, seconds are those of both together. The networks of tables are so "
    "small that a plain pass takes microseconds, and their columns show overhead more than work. Training is not in "
    "it: an ensemble costs five times the training, and MC dropout a network of its own.",
}


def all_ways(board: Board, half: str, likelihood: str) -> Table:
    """Ways by tasks: the NLL less the plain network's, early / fixed."""
    tasks = [task for task in board.tasks if task.half == half and task.likelihood == likelihood]
    rows = []
    for way in ordered(board):
        if way != PLAIN and any(board.cases(task.name, way) for task in tasks):
            rows.append((way, *(difference_cell(board, task, way) for task in tasks)))
    title = f"{'Classes' if likelihood == 'classification' else 'Numbers'}, {half}"
    return Table(title, ("way", *(task.name for task in tasks)), tuple(rows))


def difference_cell(board: Board, task: TaskInfo, way: str) -> str:
    """Differences by training, and how often it failed."""
    cells = []
    for training in TRAININGS:
        estimate = average(board.differences(task.name, way, PLAIN, figure("nll"), training=training))
        if estimate is not None:
            cells.append(change(estimate.mean))
    failed = len(board.failures(task.name, way))
    if failed:
        cells.append(f"failed {failed} of {len(board.cases(task.name, way))}")
    return " / ".join(cells) if cells else "-"


def ways_in_short(board: Board) -> Table:
    """Each way over the tasks: how far its NLL is from the plain network's, and on how many it is not above."""
    rows = []
    for way in ordered(board):
        if way == PLAIN:
            continue
        cells = [
            over_tasks(board, [task for task in board.tasks if task.half == half], way, training)
            for half in HALVES
            for training in TRAININGS
        ]
        failures = sum(len(board.failures(task.name, way)) for task in board.tasks)
        gaps = against_plain(board, board.tasks, way)
        not_above = f"{sum(gap.holds for gap in gaps)} of {len(gaps)}"
        validated = "yes" if board.header(way)["validated"] else ""
        rows.append((way, validated, *cells, not_above, str(failures) if failures else ""))
    columns = [f"{half}, {training}" for half in HALVES for training in TRAININGS]
    return Table(
        IN_SHORT,
        ("way", "validation data", *columns, "tasks not above plain", "failures"),
        tuple(rows),
    )


def over_tasks(board: Board, tasks: Sequence[TaskInfo], way: str, training: str) -> str:
    """The median over tasks, and the largest."""
    estimates = [average(board.differences(task.name, way, PLAIN, figure("nll"), training=training)) for task in tasks]
    known = [estimate.mean for estimate in estimates if estimate is not None]
    return f"{change(statistics.median(known))} ({change(max(known))})" if known else "-"


def other_figures(board: Board, likelihood: str) -> Table:
    """Means over the tasks that have all of the ways shown."""
    classes = likelihood == "classification"
    names = ("accuracy", "nll", "brier", "ece") if classes else ("rmse", "nll", "crps", "coverage", "width")
    changed = ("accuracy", "nll", "ece") if classes else ("nll", "crps", "coverage")
    tasks = [task for task in board.tasks if task.likelihood == likelihood]
    readers = [*(figure(name) for name in names), *(shifted(name) for name in changed)]
    rows = []
    for way in ordered(board):
        own = [task for task in tasks if board.values(task.name, way, figure("nll"))]
        if own and WAYS.get(way) is not None and WAYS[way].main:
            cells = [mean_over(board, own, (way,), read).get(way) for read in readers]
            rows.append((way, str(len(own)), *(number(cell) for cell in cells)))
    title = "Other figures, classes" if classes else "Other figures, numbers"
    return Table(title, ("way", "tasks", *names, *(f"{name}, shifted" for name in changed)), tuple(rows))


def costs(board: Board) -> Table:
    """Median costs over all cases."""
    rows = []
    for way in ordered(board):
        cells = []
        for name in COSTS:
            for kind in KINDS:
                values = [
                    value
                    for task in board.tasks
                    if task.kind == kind
                    for value in board.values(task.name, way, cost(name), variant=None).values()
                ]
                cells.append(f"{statistics.median(values):,.3g}" if values else "-")
        rows.append((way, *cells))
    columns = [f"{name}, {kind}" for name in COSTS for kind in KINDS]
    return Table(COST, ("way", *columns), tuple(rows))


def on_stopping_data(board: Board) -> Table:
    """The NLL when tuning uses the data that stopped training, less the NLL when it uses data of its own."""
    rows = []
    for task in board.tasks:
        cells = []
        for way, stopped in STOPPED.items():
            whole = average(board.differences(task.name, stopped, way, figure("nll")))
            cells += [*by_training(board, task, stopped, way), signed(whole)]
        rows.append((task.name, task.half, *cells))
    columns = [f"{way}, {training}" for way in STOPPED for training in (*TRAININGS[:2], "both")]
    return Table("Tuned on the data that stopped training", ("task", "half", *columns), tuple(rows))
