"""Log-log figures of cost against size."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.goals import OURS, PEER, growth
from benchmarks.journal import Record, Run

# Okabe and Ito's colours, told apart by the colour-blind; markers and dashes differ too.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
AXES = {
    "weights": "weights D",
    "outputs": "outputs C",
    "examples": "examples N",
    "batch": "batch size",
    "positions": "positions T",
}


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a curve looks."""

    library: str
    curvature: str
    label: str
    colour: str
    marker: str
    dashes: str


STYLES = (
    Style(library=OURS, curvature="exact", label="peewit", colour=BLUE, marker="o", dashes="-"),
    Style(library=OURS, curvature="MC(1)", label="peewit, MC(1)", colour=GREEN, marker="s", dashes="--"),
    Style(library=PEER, curvature="exact", label="laplace-torch", colour=ORANGE, marker="^", dashes="-."),
)


def growth_figures(run: Run, folder: Path) -> list[tuple[str, Path]]:
    """A picture (title, path) for each measured axis."""
    made = []
    for axis, label in AXES.items():
        tasks = [task for task in ("fit", "predictive") if any(curves(run, axis, task))]
        if not tasks:
            continue
        header = run.header
        path = folder / f"{axis}-{header['device']}-{header['precision']}.png"
        title = f"Cost against {label}: {header['machine']}, {header['precision']}"
        draw(run, axis, label, tasks, title, path)
        made.append((title, path))
    return made


def curves(run: Run, axis: str, task: str) -> list[tuple[Style, list[Record]]]:
    """The curves with at least two points."""
    found = [(style, growth(run, axis, task, style.library, style.curvature)) for style in STYLES]
    return [(style, points) for style, points in found if len(points) > 1]


def draw(run: Run, axis: str, label: str, tasks: list[str], title: str, path: Path) -> None:
    """Time on the left, memory on the right; a row per task."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2 * len(tasks) + 0.5), layout="constrained", dpi=110)
    FigureCanvasAgg(figure)  # not pyplot: nothing global, no window
    panels = figure.subplots(len(tasks), 2, squeeze=False, sharex=True)
    for row, task in zip(panels, tasks, strict=True):
        found = curves(run, axis, task)
        panel(row[0], [(style, times(points)) for style, points in found], f"{task}: seconds")
        panel(row[1], [(style, memory(points)) for style, points in found], f"{task}: peak memory, MiB")
    sizes = [each["size"] for task in tasks for _, points in curves(run, axis, task) for each in points]
    low, high = min(sizes), max(sizes)
    for each in panels[-1]:
        each.set_xlabel(label)
        each.set_xlim(low / (high / low) ** 0.05, high * (high / low) ** 0.35)  # shared; with room for the names
    figure.suptitle(title, fontsize=10)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})


def times(points: list[Record]) -> list[tuple[float, float]]:
    return [(each["size"], each["time"]["median"]) for each in points]


def memory(points: list[Record]) -> list[tuple[float, float]]:
    """MiB beyond what was held before; zero has no place on a logarithmic axis."""
    return [(each["size"], each["extra_bytes"] / 2**20) for each in points if each["extra_bytes"] > 0]


def panel(axes: Any, found: list[tuple[Style, list[tuple[float, float]]]], label: str) -> None:
    """Curves with their names at their ends, and a dotted line of slope 1 to compare with."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylabel(label)
    axes.grid(True, which="major", color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    ends = []
    for style, points in found:
        if not points:
            continue
        x, y = zip(*points, strict=True)
        axes.plot(x, y, color=style.colour, marker=style.marker, linestyle=style.dashes, linewidth=1.6, markersize=5)
        ends.append((style, x[-1], y[-1]))
    if not ends:
        return
    linear(axes, [points for _, points in found if points])
    for (style, x, y), shift in zip(ends, spread([y for _, _, y in ends], axes), strict=True):
        named(axes, style.label, (x, y), (7, shift), style.colour, 8)


def named(axes: Any, text: str, point: tuple[float, float], shift: tuple[float, float], colour: str, size: int) -> None:
    """A name beside a point, readable where it lies on a curve."""
    behind = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.5}
    axes.annotate(text, point, shift, textcoords="offset points", color=colour, fontsize=size, va="center", bbox=behind)


def linear(axes: Any, curves: list[list[tuple[float, float]]]) -> None:
    """A line of slope 1 through the first point of the lowest curve, named, within the panel."""
    x, y = min((points[0] for points in curves), key=lambda point: point[1])
    low, high = axes.get_ylim()
    end = max(point[0] for points in curves for point in points)
    top = max(high, min(high * 3, 1.5 * y * end / x))
    axes.plot([x, end], [y, y * end / x], color=GREY, linestyle=":", linewidth=1)
    half = math.sqrt(x * min(end, top / y * x))
    named(axes, "linear", (half, y * half / x), (4, -7), GREY, 7)
    axes.set_ylim(low, top)


def spread(heights: list[float], axes: Any) -> list[float]:
    """Shifts in points that keep names at nearly the same height apart."""
    low, high = axes.get_ylim()
    scale = 150 / (math.log(high) - math.log(low))  # points per unit of the logarithm, about
    places = [scale * math.log(height) for height in heights]
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved = list(places)
    for before, after in itertools.pairwise(order):
        moved[after] = max(moved[after], moved[before] + 10)
    return [new - old for new, old in zip(moved, places, strict=True)]
