"""The table of what was measured: splits and ways of each task, and why some are missing."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.quality.board import PLAIN, TRAININGS, Board, TaskInfo
from benchmarks.quality.cells import OF_THEIR_OWN, pretrained
from benchmarks.quality.tasks import BY_NAME, TASKS
from benchmarks.quality.ways import WAYS
from benchmarks.tables import Table

TITLE = "Splits and ways of each task"
TWO_CLASSES = ("australian", "breast cancer", "ionosphere", "sst2", "subj")  # of which none can be left out
ONLY_BY_NAME = tuple(task.name for task in TASKS if task.by_name)
EXPLAINED = {
    TITLE: "Splits are measured from the first on; where there are fewer than asked for, the measuring got that far. "
    "`left out` are splits for which networks were also trained without a class, or without a range of a feature. Ways "
    "are those that are measured on this kind of task. In other tables, `not measured` and a dash in the tables of all "
    "ways are what this table says is missing. Elsewhere a dash is what cannot be: a pretrained network has no "
    f"ensemble, and no twin with dropout. Measured only where `--tasks` names it: {', '.join(ONLY_BY_NAME)}."
}


def tables(board: Board) -> list[Table]:
    """The one table."""
    return [Table(TITLE, COLUMNS, tuple(row(board, task) for task in board.tasks))]


COLUMNS = ("task", "kind", "half", "splits asked for", *TRAININGS, "left out", "ways", "missing")


def splits(board: Board, task: TaskInfo, way: str, training: str, variant: str = "whole") -> int:
    """How many were measured."""
    return sum(key.startswith(f"{training}/{variant}/") for key in board.cases(task.name, way))


def row(board: Board, task: TaskInfo) -> tuple[str, ...]:
    """Of one task."""
    known = BY_NAME.get(task.name)
    counts = [splits(board, task, PLAIN, training) for training in TRAININGS]
    out = max(splits(board, task, PLAIN, training, "left out") for training in TRAININGS)
    ways = [way for way in meant(board, task) if board.cases(task.name, way)]
    return (
        task.name,
        task.kind,
        task.half,
        str(known.splits) if known else "",
        *(str(count) if count else "" for count in counts),
        str(out) if out else "",
        f"{len(ways)} of {len(meant(board, task))}",
        "; ".join(missing(board, task)),
    )


def meant(board: Board, task: TaskInfo) -> list[str]:
    """The ways that a task is measured with."""
    return [
        name
        for name, way in WAYS.items()
        if task.kind in way.kinds and task.likelihood in way.likelihoods
        if not (name in OF_THEIR_OWN and pretrained(board, task))
    ]


def quoted(names: Sequence[str]) -> str:
    """Some names have commas."""
    return ", ".join(f"`{name}`" for name in names)


def missing(board: Board, task: TaskInfo) -> list[str]:
    """What a reader may look for, and why it is not there."""
    reasons = []
    if task.name in TWO_CLASSES:
        reasons.append("two classes: none can be left out")
    if pretrained(board, task):
        reasons.append("trained on all classes by others: none is left out")
    elif not splits(board, task, PLAIN, "fixed"):
        reasons.append("fixed networks: not measured yet")
    main = [way for way in meant(board, task) if WAYS[way].main]
    if absent := [way for way in main if not board.cases(task.name, way)]:
        reasons.append(f"not measured yet: {quoted(absent)}")
    cases = len(board.cases(task.name, PLAIN))
    counts = {way: len(board.cases(task.name, way)) for way in main}
    reasons += [f"`{way}`: {count} of {cases} cases" for way, count in counts.items() if 0 < count < cases]
    return reasons
