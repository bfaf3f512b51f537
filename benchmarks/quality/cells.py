"""Numbers as they stand in tables, and the rows and columns that several tables share."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.quality.board import (
    DROPOUT,
    ENSEMBLE,
    HALVES,
    PLAIN,
    TRAININGS,
    Board,
    Estimate,
    Reader,
    TaskInfo,
    average,
    figure,
    mean_over,
)
from benchmarks.quality.ways import WAYS
from benchmarks.tables import Row

MISSING, NONE = "not measured", "-"
OF_THEIR_OWN = (DROPOUT, ENSEMBLE)  # ways with networks of their own


def number(value: float | None, digits: int = 3) -> str:
    """Three decimals; fewer for what is large."""
    if value is None:
        return MISSING
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.{digits}f}"


def absent(board: Board, task: TaskInfo, way: str) -> str:
    """Why a way has no number on a task: there are no such networks, or nobody measured it."""
    return NONE if way in OF_THEIR_OWN and pretrained(board, task) else MISSING


def pretrained(board: Board, task: TaskInfo) -> bool:
    """Whether the networks come from elsewhere, so that there is no second one and none with dropout."""
    cases = board.cases(task.name, PLAIN)
    return bool(cases) and all(key.startswith("pretrained/") for key in cases)


def signed(estimate: Estimate | None) -> str:
    """A difference with two standard errors."""
    if estimate is None:
        return MISSING
    error = "" if math.isnan(estimate.error) else f" ± {number(estimate.error)}"
    return f"{change(estimate.mean)}{error}"


def change(value: float) -> str:
    return f"{value:+,.0f}" if abs(value) >= 100 else f"{value:+.3f}"


def ordered(board: Board) -> list[str]:
    """The measured ways, in the order of the table of ways."""
    return [way for way in WAYS if way in board.ways] + sorted(board.ways - set(WAYS))


def mean_of(
    board: Board,
    task: TaskInfo,
    way: str,
    read: Reader,
    variant: str | None = "whole",
    training: str | None = None,
) -> float | None:
    """The mean over splits, and over trainings where none is named."""
    estimate = average(board.values(task.name, way, read, variant, training))
    return None if estimate is None else estimate.mean


def by_training(board: Board, task: TaskInfo, way: str, base: str) -> list[str]:
    """Differences of the NLL for early stopping and for a fixed number of steps; a pretrained network has one."""
    cells = []
    for training in TRAININGS[:2]:
        estimate = average(board.differences(task.name, way, base, figure("nll"), training=training))
        cells.append("" if estimate is None else signed(estimate))
    return cells


def halves(board: Board) -> list[tuple[str, list[TaskInfo]]]:
    """The tasks by half, and all of them."""
    own = [(half, [task for task in board.tasks if task.half == half]) for half in HALVES]
    return [*own, ("all", board.tasks)]


def means_rows(board: Board, ways: Sequence[str], width: int) -> tuple[Row, ...]:
    """The means over the tasks of each half, and over all."""
    rows = []
    for half, tasks in halves(board):
        means = mean_over(board, tasks, ways, figure("nll"))
        if means:
            cells = [f"**mean**, {half}", half, *(number(means[way]) for way in ways)]
            rows.append((*cells, *[""] * (width - len(cells))))
    return tuple(rows)
