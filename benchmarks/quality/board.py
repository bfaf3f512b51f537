"""What was measured, read from the files: numbers by case, means over splits, and paired differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.quality.store import Content, read_all

Record = dict[str, Any]
Values = dict[str, float]  # by case
Reader = Callable[[Record], float | None]

PLAIN, TEMPERATURE, DROPOUT, ENSEMBLE = "plain", "temperature", "dropout", "ensemble"
RECIPE, VALIDATED = "recipe", "validation"
HALVES = ("confirm", "choose")
KINDS = ("table", "text", "image")
TRAININGS = ("early", "fixed", "pretrained")
ERRORS = 2  # standard errors that are shown and allowed


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over splits with two standard errors, which are NaN for one split."""

    mean: float
    error: float
    splits: int


@dataclass(frozen=True, kw_only=True)
class TaskInfo:
    """What holds for all cases of a task."""

    name: str
    likelihood: str
    kind: str
    half: str

    @property
    def classes(self) -> bool:
        return self.likelihood == "classification"


def figure(name: str) -> Reader:
    """A figure on the test data."""
    return lambda record: record["figures"].get(name)


def shifted(name: str) -> Reader:
    """A figure on changed test inputs, the mean over the changes."""

    def read(record: Record) -> float | None:
        values = [figures[name] for figures in record["shifted"].values() if name in figures]
        return statistics.fmean(values) if values else None

    return read


def auroc(score: str) -> Reader:
    """The area under the ROC curve of a score, the mean over the sets of unknown inputs."""

    def read(record: Record) -> float | None:
        values = [scores[score] for scores in record["unknown"].values() if score in scores]
        return statistics.fmean(values) if values else None

    return read


def cost(name: str) -> Reader:
    """A cost in plain passes."""
    return lambda record: record["cost"][name]


def average(values: Values) -> Estimate | None:
    """The mean over splits, each of them the mean over what it was measured in; splits with gaps are left out."""
    cases: dict[str, dict[str, float]] = {}
    for key, value in values.items():
        setting, split = key.rsplit("/", 1)
        cases.setdefault(split, {})[setting] = value
    settings = {setting for found in cases.values() for setting in found}
    means = [statistics.fmean(found.values()) for found in cases.values() if set(found) == settings]
    if not means:
        return None
    error = ERRORS * statistics.stdev(means) / math.sqrt(len(means)) if len(means) > 1 else math.nan
    return Estimate(mean=statistics.fmean(means), error=error, splits=len(means))


class Board:
    """All files of a folder."""

    def __init__(self, contents: Mapping[tuple[str, str], Content]) -> None:
        self.contents = contents

    @classmethod
    def read(cls, folder: Path) -> Board:
        """From the files of a folder."""
        return cls(read_all(folder))

    @property
    def tasks(self) -> list[TaskInfo]:
        """Those to confirm on first, numbers after classes, then by kind and name."""
        found = {
            task: TaskInfo(name=task, likelihood=content["likelihood"], kind=content["kind"], half=content["half"])
            for (task, _), content in self.contents.items()
        }
        return sorted(
            found.values(),
            key=lambda task: (HALVES.index(task.half), task.likelihood, KINDS.index(task.kind), task.name),
        )

    @property
    def ways(self) -> set[str]:
        return {way for _, way in self.contents}

    @property
    def reduced(self) -> bool:
        """Whether some of it is of a reduced run."""
        return any(content["reduced"] for content in self.contents.values())

    def header(self, way: str) -> Content:
        """What holds for a way in any task."""
        return next(content for (_, name), content in self.contents.items() if name == way)

    def cases(self, task: str, way: str) -> dict[str, Record]:
        """Records by case, failures among them."""
        content = self.contents.get((task, way))
        return {} if content is None else content["cases"]

    def failures(self, task: str, way: str) -> list[str]:
        """Reasons."""
        return [record["failure"] for record in self.cases(task, way).values() if "failure" in record]

    def values(
        self, task: str, way: str, read: Reader, variant: str | None = "whole", training: str | None = None
    ) -> Values:
        """Numbers of the cases that did not fail."""
        found = {}
        for key, record in self.cases(task, way).items():
            own_training, own_variant, _ = key.split("/")
            wanted = variant in (None, own_variant) and training in (None, own_training)
            if wanted and "failure" not in record and (value := read(record)) is not None:
                found[key] = value
        return found

    def differences(
        self,
        task: str,
        way: str,
        base: str,
        read: Reader,
        base_read: Reader | None = None,
        variant: str | None = "whole",
        training: str | None = None,
    ) -> Values:
        """A way less another one, where both were measured on the same network."""
        own = self.values(task, way, read, variant, training)
        other = self.values(task, base, base_read or read, variant, training)
        return {key: own[key] - other[key] for key in own if key in other and self.same(task, way, base, key)}

    def same(self, task: str, way: str, base: str, key: str) -> bool:
        """Whether a case of two ways is of the same network."""
        return bool(self.cases(task, way)[key]["network"] == self.cases(task, base)[key]["network"])

    def strangers(self) -> int:
        """Cases of another network than the plain one's, which are in no difference."""
        return sum(
            not self.same(task, way, PLAIN, key)
            for task, way in self.contents
            for key in self.cases(task, way)
            if key in self.cases(task, PLAIN)
        )


def score_of(task: TaskInfo) -> str:
    """The score of unknown inputs that every way has."""
    return "entropy" if task.classes else "variance"


def better_base(board: Board, task: TaskInfo) -> str | None:
    """The better of the plain network and the scaled one by NLL; None where one of them was not measured."""
    means = {way: average(board.values(task.name, way, figure("nll"))) for way in (PLAIN, TEMPERATURE)}
    known = {way: estimate.mean for way, estimate in means.items() if estimate is not None}
    return min(known, key=lambda way: known[way]) if len(known) == 2 else None


def mean_over(
    board: Board,
    tasks: Sequence[TaskInfo],
    ways: Sequence[str],
    read: Reader,
    variant: str | None = "whole",
    training: str | None = None,
) -> dict[str, float]:
    """Means over the tasks that have all of the ways; without any such task, nothing."""
    rows = []
    for task in tasks:
        estimates = [average(board.values(task.name, way, read, variant, training)) for way in ways]
        known = [estimate.mean for estimate in estimates if estimate is not None]
        if len(known) == len(ways):
            rows.append(known)
    return dict(zip(ways, (statistics.fmean(column) for column in zip(*rows, strict=True)), strict=False))
