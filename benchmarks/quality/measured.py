"""The tables of what was measured: splits and ways of each task, why some are missing, and of which revisions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.quality.board import PLAIN, TRAININGS, Board, Record, TaskInfo
from benchmarks.quality.cells import OF_THEIR_OWN, pretrained
from benchmarks.quality.tasks import BY_NAME, TASKS
from benchmarks.quality.ways import WAYS
from benchmarks.tables import Table

TITLE, WITHOUT, REVISIONS = "Splits and ways of each task", "Ways without results", "Revisions of the library"
UNKNOWN = "not recorded"
TWO_CLASSES = ("australian", "breast cancer", "ionosphere", "sst2", "subj")  # of which none can be left out
ONLY_BY_NAME = tuple(task.name for task in TASKS if task.by_name)
EXPLAINED = {
    TITLE: "Splits are measured from the first on; where there are fewer than asked for, the measuring got that far. "
    "`left out` are splits for which networks were also trained without a class, or without a range of a feature. Ways "
    "are those that are measured on this kind of task. In other tables, `not measured` and a dash in the tables of all "
    "ways are what this table says is missing. Elsewhere a dash is what cannot be: a pretrained network has no "
    f"ensemble, and no twin with dropout. Measured only where `--tasks` names it: {', '.join(ONLY_BY_NAME)}. `Older` "
    "counts cases of all ways that an earlier revision of the library measured than the latest one in the files, or "
    "one that is not recorded.",
    WITHOUT: "Declared in `benchmarks/quality/ways.py` for tasks of these kinds, and not measured on them yet.",
    REVISIONS: "Version, time of the commit, and commit; `+` where there were changes beside it.",
}


def tables(board: Board) -> list[Table]:
    """By task, by way and by revision."""
    latest = max((revision for _, _, revision in revisions(board)), key=date_of, default=UNKNOWN)
    splits = Table(TITLE, COLUMNS, tuple(row(board, task, latest) for task in board.tasks))
    return [splits, without_results(board), by_revision(board)]


COLUMNS = ("task", "kind", "half", "splits asked for", *TRAININGS, "left out", "ways", "missing", "older")


def revision_of(record: Record) -> str:
    """Older files do not say."""
    return str(record.get("revision", UNKNOWN))


def date_of(revision: str) -> str:
    """By what revisions are put in order: what is not recorded is oldest."""
    return "" if revision == UNKNOWN else revision.partition(" ")[2]


def revisions(board: Board) -> Iterator[tuple[str, str, str]]:
    """Task, way and revision of every case."""
    for (task, way), content in board.contents.items():
        for record in content["cases"].values():
            yield task, way, revision_of(record)


def by_revision(board: Board) -> Table:
    """How much each revision measured, the oldest first."""
    every = list(revisions(board))
    rows = []
    for revision in sorted({each for _, _, each in every}, key=date_of):
        own = [case for case in every if case[2] == revision]
        counts = (len(own), len({task for task, _, _ in own}), len({way for _, way, _ in own}))
        rows.append((revision, *(f"{count:,}" for count in counts)))
    return Table(REVISIONS, ("revision", "cases", "tasks", "ways"), tuple(rows))


def without_results(board: Board) -> Table:
    """Declared ways that some tasks, or all, have no results of."""
    rows = []
    for way in WAYS:
        tasks = [task for task in board.tasks if way in meant(board, task)]
        absent = [task.name for task in tasks if not board.cases(task.name, way)]
        if absent:
            names = "all of them" if len(absent) == len(tasks) else ", ".join(absent)
            rows.append((way, f"{len(absent)} of {len(tasks)}", names))
    return Table(WITHOUT, ("way", "tasks without results", "which"), tuple(rows))


def older(board: Board, task: TaskInfo, latest: str) -> str:
    """How many cases an earlier revision measured."""
    own = [revision for name, _, revision in revisions(board) if name == task.name]
    counts = {"earlier": sum(each not in (UNKNOWN, latest) for each in own), UNKNOWN: own.count(UNKNOWN)}
    return ", ".join(f"{count:,} {word}" for word, count in counts.items() if count)


def splits(board: Board, task: TaskInfo, way: str, training: str, variant: str = "whole") -> int:
    """How many were measured."""
    return sum(key.startswith(f"{training}/{variant}/") for key in board.cases(task.name, way))


def row(board: Board, task: TaskInfo, latest: str) -> tuple[str, ...]:
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
        older(board, task, latest),
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
