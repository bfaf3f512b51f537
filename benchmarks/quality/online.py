"""Networks that were trained with online evidence, beside other ways to train: tables."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.quality.board import (
    ENSEMBLE,
    PLAIN,
    RECIPE,
    TEMPERATURE,
    Board,
    Estimate,
    Reader,
    TaskInfo,
    average,
    figure,
)
from benchmarks.quality.cells import by_training, number, signed
from benchmarks.quality.goals import ONLINE, online_gaps
from benchmarks.tables import Table

NETWORK, POSTERIOR = "online evidence", "online evidence, posterior"
DECAY = "weight decay, temperature"
SHOWN = (PLAIN, TEMPERATURE, DECAY, ENSEMBLE, RECIPE, NETWORK, POSTERIOR, ONLINE)
BASES = (PLAIN, TEMPERATURE, DECAY, ENSEMBLE, RECIPE)
NLL, LESS, TIMES = "NLL of training with online evidence", "The same, less other ways", "What its training took"
EXPLAINED = {
    NLL: "Means over the splits that it was measured on; fewer are in parentheses. One network with online evidence "
    f"stands beside two plain ones, early and fixed. `{DECAY}` trains with eight weight decays; validation data choose "
    "one of them, and a temperature or a noise.",
    LESS: f"The NLL of `{ONLINE}` less that of each way; `holds` is for `{TEMPERATURE}`, by two paired standard "
    "errors.",
    TIMES: "Medians over the runs: seconds with all hyper-steps and the last fit, in units of as many plain steps.",
}


def tables(board: Board) -> list[Table]:
    """NLL, paired differences, and what training took."""
    tasks = [task for task in board.tasks if board.cases(task.name, ONLINE)]
    return [nll(board, tasks), differences(board, tasks), times(board, tasks)]


def of_same_splits(board: Board, task: TaskInfo, way: str) -> Estimate | None:
    """The NLL of a way in the cases that training with online evidence has."""
    values = board.values(task.name, way, figure("nll"))
    own = board.cases(task.name, ONLINE)
    return average({key: value for key, value in values.items() if key in own})


def nll(board: Board, tasks: Sequence[TaskInfo]) -> Table:
    """Of every way to train, and how many splits."""
    rows = []
    for task in tasks:
        means = [of_same_splits(board, task, way) for way in SHOWN]
        splits = max(mean.splits for mean in means if mean is not None)
        rows.append((task.name, task.half, str(splits), *(cell(mean, splits) for mean in means)))
    return Table(NLL, ("task", "half", "splits", *SHOWN), tuple(rows))


def cell(mean: Estimate | None, splits: int) -> str:
    """A mean; with the number of its splits where others have more."""
    if mean is None:
        return number(None)
    return number(mean.mean) + (f" ({mean.splits})" if mean.splits < splits else "")


def differences(board: Board, tasks: Sequence[TaskInfo]) -> Table:
    """By the way that it is compared with; from temperature scaling by training, too."""
    rows = []
    for task in tasks:
        means = [average(board.differences(task.name, ONLINE, base, figure("nll"))) for base in BASES]
        holds = ["yes" if gap.holds else "**no**" for gap in online_gaps(board, [task], TEMPERATURE)]
        apart = by_training(board, task, ONLINE, TEMPERATURE)
        rows.append((task.name, task.half, *(signed(mean) for mean in means), *apart, *holds))
    columns = ("task", "half", *BASES, f"{TEMPERATURE}, early", f"{TEMPERATURE}, fixed", "holds")
    return Table(LESS, columns, tuple(rows))


def setting(name: str) -> Reader:
    """What a way chose, or noted."""
    return lambda record: record["settings"].get(name)


def times(board: Board, tasks: Sequence[TaskInfo]) -> Table:
    """In units of plain training."""
    rows = []
    for task in tasks:
        cells = []
        for name, digits in (("training", 1), ("hyper-steps", 0), ("kept at", 2)):
            values = board.values(task.name, ONLINE, setting(name)).values()
            cells.append(number(statistics.median(values) if values else None, digits))
        rows.append((task.name, task.half, *cells))
    columns = ("task", "half", "seconds", "hyper-steps", "best evidence after this share of the epochs")
    return Table(TIMES, columns, tuple(rows))
