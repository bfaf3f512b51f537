"""Figures of the page: differences of the NLL by task, and coverage of intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.figures import BLUE, GREEN, GREY, ORANGE
from benchmarks.quality.board import PLAIN, RECIPE, TEMPERATURE, VALIDATED, Board, Estimate, TaskInfo, average, figure
from benchmarks.quality.goals import EACH_COVERAGE, MEAN_COVERAGE

LINEAR = 0.01  # nats: the axis is linear within, and logarithmic outside
STEP = 0.22  # between the dots of a task, where tasks are 1 apart


@dataclass(frozen=True, kw_only=True)
class Dots:
    """How the dots of a way look."""

    way: str
    label: str
    colour: str
    marker: str


PLAIN_DOTS = Dots(way=PLAIN, label="plain network", colour=GREY, marker="o")
DOTS = (
    Dots(way=TEMPERATURE, label="temperature scaling (validation data)", colour=ORANGE, marker="^"),
    Dots(way=VALIDATED, label="recipe with validation data", colour=GREEN, marker="s"),
    Dots(way=RECIPE, label="recipe without validation data", colour=BLUE, marker="D"),
)


def figures(board: Board, folder: Path) -> list[tuple[str, Path]]:
    """Titles and paths of the pictures."""
    made = []
    for likelihood, name in (("classification", "classes"), ("regression", "numbers")):
        tasks = [task for task in board.tasks if task.likelihood == likelihood]
        if tasks:
            path, title = (
                folder / f"nll-{name}.png",
                f"NLL less the plain network's, tasks of {name}: means with two paired standard errors",
            )
            draw_nll(board, tasks, title, path)
            made.append((title, path))
    numbers = [task for task in board.tasks if not task.classes]
    if numbers:
        path, title = folder / "coverage.png", "Share of the targets in 90 % intervals"
        draw_coverage(board, numbers, title, path)
        made.append((title, path))
    return made


def panels(tasks: Sequence[TaskInfo], titles: Sequence[str]) -> tuple[Any, Sequence[Any]]:
    """A figure with panels side by side, and a row for each task."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    size = (6 + 2.5 * len(titles), 1.6 + 0.48 * len(tasks))
    drawing = Figure(figsize=size, layout="constrained", dpi=110)
    FigureCanvasAgg(drawing)  # not pyplot: nothing global, no window
    every = drawing.subplots(1, len(titles), squeeze=False, sharey=True)[0]
    for axes, title in zip(every, titles, strict=True):
        axes.set_title(title, fontsize=9, loc="left")
        axes.set_yticks(range(len(tasks)), [f"{task.name} ({task.half})" for task in tasks], fontsize=8)
        axes.set_ylim(len(tasks) - 0.5, -0.5)
        axes.grid(True, axis="x", color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.tick_params(axis="x", labelsize=8)
        for row in range(1, len(tasks)):
            axes.axhline(row - 0.5, color="#eeeeee", linewidth=0.8)
    return drawing, every


def place(axes: Any, dots: Dots, found: Sequence[Estimate | None], shift: float) -> None:
    """The dots of a way with two standard errors."""
    points = [(row + shift, each.mean, each.error) for row, each in enumerate(found) if each is not None]
    if not points:
        return
    rows, means, errors = zip(*points, strict=True)
    bars = [0.0 if error != error else error for error in errors]  # NaN: one split
    axes.errorbar(
        means,
        rows,
        xerr=bars,
        fmt=dots.marker,
        color=dots.colour,
        markersize=4.5,
        elinewidth=1.1,
        linestyle="none",
        label=dots.label,
    )


def draw_nll(board: Board, tasks: Sequence[TaskInfo], title: str, path: Path) -> None:
    """Dots left of the line are better than the plain network."""
    drawing, every = panels(tasks, ("stopped early, or pretrained", "a fixed number of steps"))
    for axes, trainings in zip(every, (("early", "pretrained"), ("fixed",)), strict=True):
        axes.axvline(0, color=GREY, linewidth=1)
        for index, dots in enumerate(DOTS):
            found = [difference(board, task, dots.way, trainings) for task in tasks]
            place(axes, dots, found, STEP * (index - 1))
        axes.set_xscale("symlog", linthresh=LINEAR, linscale=0.6)
        thin_ticks(axes)
        axes.set_xlabel(f"nats, left is better; linear within ±{LINEAR:g}", fontsize=8)
    save(drawing, every[0], title, path)


def difference(board: Board, task: TaskInfo, way: str, trainings: Sequence[str]) -> Estimate | None:
    """Under those ways of training that the task has."""
    values = [board.differences(task.name, way, PLAIN, figure("nll"), training=training) for training in trainings]
    return average({key: value for found in values for key, value in found.items()})


def thin_ticks(axes: Any) -> None:
    """Powers of ten of which no two names touch."""
    low, high = axes.get_xlim()
    reach = [power for power in range(-2, 6) if 10.0**power <= max(-low, high)]
    powers = [10.0**power for power in (reach if len(reach) < 4 else reach[1::2])]
    ticks = [tick for tick in (*(-power for power in powers), 0.0, *powers) if low <= tick <= high]
    axes.set_xticks(ticks, [f"{tick:+g}" if tick else "0" for tick in ticks])
    axes.minorticks_off()


def draw_coverage(board: Board, tasks: Sequence[TaskInfo], title: str, path: Path) -> None:
    """The wide band is asked of each task, the narrow one of the mean."""
    drawing, every = panels(tasks, ("mean over splits and both ways of training, with two standard errors",))
    axes = every[0]
    axes.axvspan(*EACH_COVERAGE, color="#f0f0f0", linewidth=0, label="asked of each task")
    axes.axvspan(*MEAN_COVERAGE, color="#dddddd", linewidth=0, label="asked of the mean")
    axes.axvline(0.9, color=GREY, linewidth=1)
    for index, dots in enumerate((PLAIN_DOTS, *DOTS)):
        found = [average(board.values(task.name, dots.way, figure("coverage"))) for task in tasks]
        place(axes, dots, found, STEP * (index - 1.5))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    save(drawing, axes, title, path)


def save(drawing: Any, axes: Any, title: str, path: Path) -> None:
    """With the names of the ways below."""
    drawing.suptitle(title, fontsize=10)
    drawing.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    drawing.savefig(path, metadata={"Software": None})
