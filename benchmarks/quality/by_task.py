"""The long tables: figures beside the NLL, task by task."""

from __future__ import annotations

from benchmarks.quality import unknown
from benchmarks.quality.board import (
    ENSEMBLE,
    PLAIN,
    RECIPE,
    TEMPERATURE,
    TRAININGS,
    VALIDATED,
    Board,
    figure,
    mean_over,
    shifted,
)
from benchmarks.quality.cells import absent, mean_of, number
from benchmarks.tables import Table

WAYS = (PLAIN, TEMPERATURE, ENSEMBLE, VALIDATED, RECIPE)
FIGURES = {
    "brier": ("Brier score", "classification"),
    "ece": ("Calibration error", "classification"),
    "accuracy": ("Accuracy", "classification"),
    "crps": ("CRPS", "regression"),
}
SHIFTED_NLL, COVERAGE = "NLL under shift", "Coverage of 90 % intervals of early-stopped and of fixed networks"
TWICE = "On the test inputs / on the shifted ones."
EXPLAINED = {
    **{title: TWICE for title, _ in FIGURES.values()},
    SHIFTED_NLL: "Shifted inputs are the test inputs with noise or, by the kind of task, turned, with less contrast, "
    "or with words dropped.",
    COVERAGE: "Early / fixed.",
}


def tables(board: Board) -> list[Table]:
    """Each figure, then what differs by training."""
    figures = [by_figure(board, name) for name in FIGURES]
    return [*figures, shifted_nll(board), coverage(board), unknown.by_training(board)]


def by_figure(board: Board, name: str) -> Table:
    """One figure, on the test inputs and on shifted ones."""
    title, likelihood = FIGURES[name]
    tasks = [task for task in board.tasks if task.likelihood == likelihood]
    rows = []
    for task in tasks:
        cells = []
        for way in WAYS:
            own = mean_of(board, task, way, figure(name))
            moved = mean_of(board, task, way, shifted(name))
            parts = [number(each) for each in (own, moved) if each is not None]
            cells.append(" / ".join(parts) or absent(board, task, way))
        rows.append((task.name, task.half, *cells))
    means = [mean_over(board, tasks, WAYS, read(name)) for read in (figure, shifted)]
    if means[0]:
        shown = [" / ".join(number(mean[way]) for mean in means if way in mean) for way in WAYS]
        rows.append(("**mean**, tasks with all", "", *shown))
    return Table(title, ("task", "half", *WAYS), tuple(rows))


def shifted_nll(board: Board) -> Table:
    """Of all tasks."""
    rows = []
    for task in board.tasks:
        cells = {way: mean_of(board, task, way, shifted("nll")) for way in WAYS}
        if cells[PLAIN] is not None:
            shown = [absent(board, task, way) if cell is None else number(cell) for way, cell in cells.items()]
            rows.append((task.name, task.half, *shown))
    return Table(SHIFTED_NLL, ("task", "half", *WAYS), tuple(rows))


def coverage(board: Board) -> Table:
    """Networks that were stopped early, and those that were trained for a fixed number of steps."""
    rows = []
    for task in (task for task in board.tasks if not task.classes):
        cells = []
        for way in WAYS:
            held = [mean_of(board, task, way, figure("coverage"), training=each) for each in TRAININGS[:2]]
            cells.append(" / ".join(f"{each:.1%}" for each in held if each is not None))
        rows.append((task.name, task.half, *cells))
    return Table(COVERAGE, ("task", "half", *WAYS), tuple(rows))
