"""The goals of both recipes, and by how much they are missed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.quality.board import (
    ERRORS,
    PLAIN,
    RECIPE,
    TEMPERATURE,
    VALIDATED,
    Board,
    Estimate,
    TaskInfo,
    auroc,
    average,
    better_base,
    figure,
    mean_over,
    score_of,
)

ALLOWED = 0.005  # nats above the better of the plain network and temperature scaling
EQUAL = 0.0005  # nats that count as none: they are not seen in three decimals
SHARE_NLL, SHARE_AUROC, SHARE_VALIDATED = 9 / 10, 4 / 5, 4 / 5  # of tasks
MEAN_COVERAGE, EACH_COVERAGE = (0.86, 0.94), (0.82, 0.97)  # of 90 % intervals
WARNED = 1 / 10  # of the runs that improved
MUTUAL = "mutual information"
ONLINE = "online evidence, recipe"  # the way to train that the goals are about; chosen on the half to choose on


@dataclass(frozen=True)
class Verdict:
    """Whether a goal is met, and the numbers; None where nothing was measured."""

    met: bool | None
    text: str


NOTHING = Verdict(None, "not measured")


@dataclass(frozen=True)
class Goal:
    """A goal, and how to see whether it is met on some tasks."""

    text: str
    judge: Callable[[Board, Sequence[TaskInfo]], Verdict]


@dataclass(frozen=True)
class Gap:
    """A task, how far a way is from another, and whether that is as it should be."""

    task: TaskInfo
    base: str
    difference: Estimate
    holds: bool


def worst(gaps: Sequence[Gap], sign: int = 1) -> str:
    """The tasks where a goal is missed, the worst first."""
    missed = sorted((gap for gap in gaps if not gap.holds), key=lambda gap: -sign * gap.difference.mean)
    names = [f"{gap.task.name} {gap.difference.mean:+.3f}" for gap in missed]
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"; missed: {', '.join(names[:4])}{more}" if names else ""


def share(gaps: Sequence[Gap], needed: float, sign: int = 1) -> Verdict:
    """Whether enough tasks are as they should be."""
    if not gaps:
        return NOTHING
    count = sum(gap.holds for gap in gaps)
    return Verdict(count >= needed * len(gaps) - 1e-9, f"{count} of {len(gaps)} tasks{split(gaps)}{worst(gaps, sign)}")


def split(gaps: Sequence[Gap]) -> str:
    """The same count for classes and for numbers, where there are both."""
    kinds = {"classes": [gap for gap in gaps if gap.task.classes], "numbers": [g for g in gaps if not g.task.classes]}
    counts = [f"{name} {sum(gap.holds for gap in own)} of {len(own)}" for name, own in kinds.items() if own]
    return f" ({', '.join(counts)})" if len(counts) == 2 else ""


def allowed(difference: Estimate) -> float:
    """How far the NLL may be above the better one: two paired standard errors if that is more."""
    return ALLOWED if math.isnan(difference.error) else max(ALLOWED, difference.error)


def against_both(board: Board, tasks: Sequence[TaskInfo]) -> list[Gap]:
    """The NLL of the recipe with validation data less the better of the plain network and temperature scaling."""
    gaps = []
    for task in tasks:
        base = better_base(board, task)
        if base is None:
            continue
        difference = average(board.differences(task.name, VALIDATED, base, figure("nll")))
        if difference is not None:
            gaps.append(Gap(task, base, difference, difference.mean <= allowed(difference)))
    return gaps


def against_plain(board: Board, tasks: Sequence[TaskInfo], way: str = RECIPE) -> list[Gap]:
    """The NLL of a way less the plain network's."""
    gaps = []
    for task in tasks:
        difference = average(board.differences(task.name, way, PLAIN, figure("nll")))
        if difference is not None:
            gaps.append(Gap(task, PLAIN, difference, difference.mean <= EQUAL))
    return gaps


def detection(
    board: Board, tasks: Sequence[TaskInfo], way: str, bases: Sequence[str], mutual: bool = False
) -> list[Gap]:
    """Areas under the ROC curve of a way less the best of other ways; `mutual`: of classes by mutual information."""
    gaps = []
    for task in tasks:
        score = score_of(task)
        own = auroc(MUTUAL if mutual and task.classes else score)
        options = []
        for base in bases:
            values = board.differences(task.name, way, base, own, auroc(score), variant=None)
            difference = average(values)
            if difference is not None:
                options.append((base, difference))
        if len(options) == len(bases):
            base, least = min(options, key=lambda option: option[1].mean)
            gaps.append(Gap(task, base, least, least.mean > 0))
    return gaps


def nll_on_each(board: Board, tasks: Sequence[TaskInfo]) -> Verdict:
    """With validation data, on every task."""
    return share(against_both(board, tasks), 1)


def nll_on_the_mean(board: Board, tasks: Sequence[TaskInfo]) -> Verdict:
    """With validation data, on the mean over tasks."""
    means = mean_over(board, tasks, (VALIDATED, PLAIN, TEMPERATURE), figure("nll"))
    if not means:
        return NOTHING
    best, text = better_of(means), beside(means)
    each = [mean_over(board, [task], (VALIDATED, best), figure("nll")) for task in tasks]
    gaps = [found[VALIDATED] - found[best] for found in each if found]
    text += f"; the median difference from {best} over the tasks is {statistics.median(gaps):+.3f}"
    classes = [task for task in tasks if task.classes]
    if 0 < len(classes) < len(tasks) and (own := mean_over(board, classes, tuple(means), figure("nll"))):
        text += f"; on the mean over tasks of classes {beside(own)}"
    return Verdict(means[VALIDATED] < means[best], text)


def better_of(means: Mapping[str, float]) -> str:
    """The plain network or temperature scaling."""
    return min((PLAIN, TEMPERATURE), key=lambda way: means[way])


def beside(means: Mapping[str, float]) -> str:
    """Means of the NLL, and how far that with validation data is from the better of the others."""
    text = ", ".join(f"{way} {value:.3f}" for way, value in means.items())
    return f"{text} ({means[VALIDATED] - means[better_of(means)]:+.3f})"


def coverage(board: Board, tasks: Sequence[TaskInfo]) -> Verdict:
    """Of 90 % intervals, with validation data."""
    found = {task.name: average(board.values(task.name, VALIDATED, figure("coverage"))) for task in tasks}
    known = {name: estimate.mean for name, estimate in found.items() if estimate is not None}
    if not known:
        return NOTHING
    mean = statistics.fmean(known.values())
    outside = [f"{name} {value:.1%}" for name, value in known.items() if not within(value, EACH_COVERAGE)]
    text = f"mean {mean:.1%} (tasks: {len(known)})" + (f"; outside: {', '.join(outside)}" if outside else "")
    return Verdict(within(mean, MEAN_COVERAGE) and not outside, text)


def within(value: float, limits: tuple[float, float]) -> bool:
    return limits[0] <= value <= limits[1]


def detection_verdict(
    way: str, bases: Sequence[str], mutual: bool = False
) -> Callable[[Board, Sequence[TaskInfo]], Verdict]:
    """By the score that all ways have, or by what only ours has for classes."""

    def judge(board: Board, tasks: Sequence[TaskInfo]) -> Verdict:
        return share(detection(board, tasks, way, bases, mutual), SHARE_AUROC, sign=-1)

    return judge


def not_above_plain(board: Board, tasks: Sequence[TaskInfo]) -> Verdict:
    """Without validation data."""
    return share(against_plain(board, tasks), SHARE_NLL)


@dataclass(frozen=True)
class Warned:
    """A run of the recipe without validation data: a split of a task under one way of training."""

    task: str
    key: str
    difference: float  # of the NLL from the plain network's
    warnings: tuple[str, ...]
    error: float | None = None  # of the difference, over the test examples; None where it was not measured

    @property
    def sure(self) -> bool:
        """Whether the difference is more than two errors above zero."""
        return self.error is not None and self.difference > ERRORS * self.error

    @property
    def worse(self) -> bool:
        return self.difference > EQUAL

    @property
    def improved(self) -> bool:
        return self.difference < 0


def runs(board: Board, tasks: Sequence[TaskInfo], way: str = RECIPE) -> list[Warned]:
    """Every run with what it warned of."""
    found = []
    for task in tasks:
        for key, difference in board.differences(task.name, way, PLAIN, figure("nll")).items():
            record = board.cases(task.name, way)[key]
            warned = tuple(record.get("warned", []))
            found.append(Warned(task.name, key, difference, warned, record.get("error")))
    return found


def every_worse_run_warned(board: Board, tasks: Sequence[TaskInfo]) -> Verdict:
    """Whoever was left worse off was told."""
    worse = [run for run in runs(board, tasks) if run.worse]
    if not worse:
        return Verdict(True, "no run got worse") if runs(board, tasks) else NOTHING
    silent = sorted((run for run in worse if not run.warnings), key=lambda run: -run.difference)
    text = f"{len(worse) - len(silent)} of {len(worse)} runs that got worse"
    if silent:
        text += f"; the largest harm without a warning: {silent[0].task} {silent[0].difference:+.3f}"
    if known := [run for run in worse if run.error is not None]:
        sure = sum(run.sure for run in known)
        text += f"; of {len(known)} whose own error is known, {sure} got worse by more than two errors"
    return Verdict(not silent, text)


def few_false_alarms(board: Board, tasks: Sequence[TaskInfo]) -> Verdict:
    """Whoever was better off was left in peace."""
    improved = [run for run in runs(board, tasks) if run.improved]
    if not improved:
        return NOTHING
    alarms = sum(bool(run.warnings) for run in improved)
    rate = alarms / len(improved)
    return Verdict(rate <= WARNED, f"{alarms} of {len(improved)} runs that improved ({rate:.1%})")


def online_gaps(board: Board, tasks: Sequence[TaskInfo], base: str) -> list[Gap]:
    """The NLL of training with online evidence less a way's; it holds unless above by two paired standard errors."""
    gaps = []
    for task in tasks:
        difference = average(board.differences(task.name, ONLINE, base, figure("nll")))
        if difference is not None:
            holds = difference.mean <= EQUAL or difference.mean <= difference.error
            gaps.append(Gap(task, base, difference, holds))
    return gaps


def online_beside_temperature(board: Board, tasks: Sequence[TaskInfo]) -> Verdict:
    """Whether training with online evidence is as good without validation data."""
    return share(online_gaps(board, tasks, TEMPERATURE), SHARE_VALIDATED)


def online_below_plain(board: Board, tasks: Sequence[TaskInfo]) -> Verdict:
    """Whether training with online evidence is better than plain training."""
    found = online_gaps(board, tasks, PLAIN)
    return share([replace(gap, holds=gap.difference.mean < 0) for gap in found], SHARE_NLL)


GOALS = (
    Goal(
        "With validation data, the NLL is at most .005 nats, or two paired standard errors if that is more, above the "
        "better of the plain network and temperature scaling, on every task",
        nll_on_each,
    ),
    Goal("With validation data, the mean NLL over the tasks is below both", nll_on_the_mean),
    Goal(
        "With validation data, 90 % intervals hold 86 to 94 % of the targets on the mean over regression tasks, and 82 "
        "to 97 % on each",
        coverage,
    ),
    Goal(
        "With validation data, the AUROC against unknown inputs is above both in four tasks of five: classes by "
        "entropy, numbers by epistemic variance",
        detection_verdict(VALIDATED, (PLAIN, TEMPERATURE)),
    ),
    Goal(
        "The same with classes by mutual information (`pred.epistemic`); the other two have no score but the entropy",
        detection_verdict(VALIDATED, (PLAIN, TEMPERATURE), mutual=True),
    ),
    Goal(
        "Without validation data, the mean NLL is not above the plain network's in nine tasks of ten", not_above_plain
    ),
    Goal(
        "Without validation data, the AUROC against unknown inputs is above the plain network's in four tasks of five: "
        "classes by entropy, numbers by epistemic variance",
        detection_verdict(RECIPE, (PLAIN,)),
    ),
    Goal(
        "The same with classes by mutual information; the plain network has no score but the entropy",
        detection_verdict(RECIPE, (PLAIN,), mutual=True),
    ),
    Goal(
        "Without validation data, every run whose NLL is above the plain network's was warned", every_worse_run_warned
    ),
    Goal("Without validation data, at most one in ten runs that improved was warned", few_false_alarms),
    Goal(
        f"Trained with online evidence (`{ONLINE}`), without validation data, the NLL is at most two paired standard "
        "errors above that of temperature scaling, which has them, in four tasks of five",
        online_beside_temperature,
    ),
    Goal("Trained with online evidence, the NLL is below the plain network's in nine tasks of ten", online_below_plain),
)
