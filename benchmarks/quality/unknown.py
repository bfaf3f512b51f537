"""The tables on unknown inputs: the area under the ROC curve by task and way, and its means."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.quality.board import (
    DROPOUT,
    ENSEMBLE,
    PLAIN,
    RECIPE,
    TEMPERATURE,
    TRAININGS,
    VALIDATED,
    Board,
    TaskInfo,
    auroc,
    average,
    mean_over,
    score_of,
)
from benchmarks.quality.cells import absent, mean_of, number, signed
from benchmarks.quality.goals import MUTUAL, detection
from benchmarks.tables import Table

EVIDENCE, PEER = "evidence", "laplace-torch"
WAYS = (PLAIN, TEMPERATURE, DROPOUT, ENSEMBLE, PEER, EVIDENCE, VALIDATED, RECIPE)
MUTUAL_WAYS = (DROPOUT, ENSEMBLE, EVIDENCE, VALIDATED, RECIPE)  # plain networks and laplace-torch give none
BY_SCORE, BY_MUTUAL, IN_SHORT = (
    "AUROC against unknown inputs",
    "AUROC by mutual information, classes",
    "AUROC, means over the tasks",
)
BY_TRAINING = "AUROC of early-stopped and of fixed networks"
EXPLAINED = {
    IN_SHORT: "Means over the tasks that have all of these ways, in the columns by mutual information those that give "
    "one; `> ensemble` counts the tasks on which the AUROC is above the deep ensemble's, by entropy or variance.",
    BY_SCORE: "By the entropy of the predictive for classes, and by the epistemic variance for numbers. Tasks with two "
    "classes have no class to leave out: [reasons](#what-was-measured).",
    BY_MUTUAL: "An ensemble and MC dropout have a mutual information too.",
    BY_TRAINING: "Early / fixed, by entropy or variance.",
}


def tables(board: Board) -> list[Table]:
    """By task and over the tasks."""
    return [in_short(board), by_score(board), by_mutual(board)]


def detected(board: Board, task: TaskInfo, way: str, score: str, training: str | None = None) -> float | None:
    """The mean over splits and sets of unknown inputs."""
    return mean_of(board, task, way, auroc(score), None, training)


def by_score(board: Board) -> Table:
    """The score that all ways have."""
    validated = {gap.task.name: gap for gap in detection(board, board.tasks, VALIDATED, (PLAIN, TEMPERATURE))}
    recipe = {gap.task.name: gap for gap in detection(board, board.tasks, RECIPE, (PLAIN,))}
    rows = []
    for task in board.tasks:
        cells = {way: detected(board, task, way, score_of(task)) for way in WAYS}
        if cells[PLAIN] is None:
            continue
        gaps = [signed(gaps[task.name].difference if task.name in gaps else None) for gaps in (validated, recipe)]
        shown = [absent(board, task, way) if cell is None else number(cell) for way, cell in cells.items()]
        rows.append((task.name, task.half, *shown, *gaps))
    columns = ("task", "half", *WAYS, "validation - best of plain and temperature", "recipe - plain")
    return Table(BY_SCORE, columns, tuple(rows))


def by_mutual(board: Board) -> Table:
    """What a posterior knows beside the entropy."""
    rows = []
    for task in (task for task in board.tasks if task.classes):
        cells = {way: detected(board, task, way, MUTUAL) for way in MUTUAL_WAYS}
        if any(cell is not None for cell in cells.values()):
            shown = [absent(board, task, way) if cell is None else number(cell) for way, cell in cells.items()]
            rows.append((task.name, task.half, *shown))
    return Table(BY_MUTUAL, ("task", "half", *MUTUAL_WAYS), tuple(rows))


def compared(board: Board, likelihood: str, ways: Sequence[str] = WAYS) -> list[TaskInfo]:
    """The tasks of one likelihood that have an AUROC for all of the ways."""
    return [
        task
        for task in board.tasks
        if task.likelihood == likelihood
        if all(detected(board, task, way, score_of(task)) is not None for way in ways)
    ]


def above(board: Board, way: str, base: str = ENSEMBLE) -> tuple[int, int]:
    """On how many tasks the AUROC of a way is above another one's, and how many tasks have both."""
    gaps = [
        gap.mean
        for task in board.tasks
        if (gap := average(board.differences(task.name, way, base, auroc(score_of(task)), variant=None)))
    ]
    return sum(gap > 0 for gap in gaps), len(gaps)


def in_short(board: Board) -> Table:
    """Each way over the tasks."""
    classes, numbers = (compared(board, likelihood) for likelihood in ("classification", "regression"))
    parts = (("entropy", classes), (MUTUAL, classes), ("variance", numbers))
    rows = []
    for way in WAYS:
        means = [mean_over(board, tasks, (way,), auroc(score), None).get(way) for score, tasks in parts]
        if means[0] is None and means[2] is None:
            continue
        count, both = above(board, way)
        cells = ["" if mean is None else number(mean) for mean in means]
        rows.append((way, *cells, "" if way == ENSEMBLE or not both else f"{count} of {both}"))
    columns = (
        "way",
        f"{len(classes)} tasks of classes, entropy",
        "the same, mutual information",
        f"{len(numbers)} tasks of numbers, variance",
        "> ensemble",
    )
    return Table(IN_SHORT, columns, tuple(rows))


def by_training(board: Board) -> Table:
    """Networks that were stopped early, and those that were trained for a fixed number of steps."""
    rows = []
    for task in board.tasks:
        cells = []
        for way in WAYS:
            both = [detected(board, task, way, score_of(task), training) for training in TRAININGS[:2]]
            cells.append(" / ".join(number(cell) for cell in both) if None not in both else "")
        if any(cells):
            rows.append((task.name, task.half, *cells))
    return Table(BY_TRAINING, ("task", "half", *WAYS), tuple(rows))
