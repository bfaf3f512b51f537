"""Figures of `compare.py`: what each way learns on the toy curve, and how well it predicts the noise of a screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sets import TOY_RANGE, Task, toy_truth
from torch.distributions import Normal
from ways import Predict, Predicted

# Okabe and Ito's colours, which the colour-blind can tell apart.
GREY, ORANGE, BLUE, GREEN, PURPLE, BLACK = "#666666", "#D55E00", "#0072B2", "#009E73", "#CC79A7", "#000000"
QUANTILE = 1.6448536  # of 90 % intervals, in deviations
LEVELS = tuple(level / 20 for level in range(1, 20))


def figure(width: float, height: float) -> Any | None:
    """An empty figure, or None and a message without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        print("No figure was made: pip install matplotlib.")
        return None
    made = Figure(figsize=(width, height), layout="constrained", dpi=110)
    FigureCanvasAgg(made)  # not pyplot, which opens windows and keeps global state
    return made


def draw_toy(task: Task, ways: Mapping[str, Predict], path: Path) -> None:
    """A panel per way: the data, the truth, the mean and 90 % intervals, by noise alone and with the weights."""
    made = figure(13, 6)
    if made is None:
        return
    low, high = TOY_RANGE
    x = np.linspace(low - 3, high + 3, 400)
    columns = -(-len(ways) // 2)
    panels = made.subplots(2, columns, sharex=True, sharey=True).flatten()
    for panel, (name, predict) in zip(panels, ways.items(), strict=False):
        draw_curve(panel, task, x, predict(task.scale.inputs(x[:, None])))
        panel.set_title(name, fontsize=10)
    for panel in panels[len(ways) :]:
        panel.axis("off")
    handles, labels = panels[0].get_legend_handles_labels()
    panels[-1].legend(handles, labels, loc="center", fontsize=9, frameon=False)
    made.savefig(path)


def draw_curve(panel: Any, task: Task, x: np.ndarray, predicted: Predicted) -> None:
    """One panel of the toy curve, in the target's own unit."""
    unit, middle = task.scale.y_deviation, task.scale.y_mean
    mean = predicted.mean.numpy() * unit + middle
    noise, total = (QUANTILE * part.sqrt().numpy() * unit for part in (predicted.noise, predicted.variance))
    inputs, targets = task.train
    panel.fill_between(x, mean - noise, mean + noise, color=ORANGE, alpha=0.4, lw=0, label="90 %, noise alone")
    panel.fill_between(x, mean + noise, mean + total, color=BLUE, alpha=0.35, lw=0, label="more by uncertain weights")
    panel.fill_between(x, mean - total, mean - noise, color=BLUE, alpha=0.35, lw=0)
    panel.plot(
        inputs[:, 0].numpy() * task.scale.x_deviation[0] + task.scale.x_mean[0],
        targets.numpy() * unit + middle,
        ".",
        color=GREY,
        ms=3.5,
        label="training data",
    )
    known = (x >= TOY_RANGE[0]) & (x <= TOY_RANGE[1])
    true, deviation = toy_truth(x[known])
    for edge in (-QUANTILE, QUANTILE):
        panel.plot(x[known], true + edge * deviation, ":", color=BLACK, lw=1)
    panel.plot(x[known], true, "--", color=BLACK, lw=1, label="truth, and its 90 %")
    panel.plot(x, mean, color=BLUE, lw=1.6, label="predicted mean")
    panel.set_ylim(-22, 22)
    panel.grid(alpha=0.2)


def binned(by: np.ndarray, squares: np.ndarray, bins: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Root means of squared residuals in bins of equal size along another number, and the means of that number."""
    parts = np.array_split(np.argsort(by, kind="stable"), bins)
    return np.array([by[part].mean() for part in parts]), np.array([squares[part].mean() ** 0.5 for part in parts])


def coverage(predicted: Predicted, y: torch.Tensor) -> list[float]:
    """The share of targets inside central intervals of LEVELS."""
    place = Normal(predicted.mean, predicted.variance.sqrt()).cdf(y)
    outer = 2 * (place - 0.5).abs()
    return [float((outer <= level).double().mean()) for level in LEVELS]


def draw_screen(task: Task, ways: Mapping[str, Predict], path: Path) -> None:
    """Predicted mean against measurement, predicted noise against residuals, and coverage of intervals."""
    made = figure(13, 4.8)
    if made is None:
        return
    x, y = task.test
    unit, middle = task.scale.y_deviation, task.scale.y_mean
    predicted = {name: predict(x) for name, predict in ways.items()}
    left, centre, right = made.subplots(1, 3)
    first, best = next(iter(predicted.items()))
    deviation = best.variance.sqrt().numpy() * unit
    mean, measured = best.mean.numpy() * unit + middle, y.numpy() * unit + middle
    points = left.scatter(mean, measured, c=deviation, s=7, cmap="viridis", alpha=0.8, linewidths=0)
    made.colorbar(points, ax=left, label="predicted standard deviation")
    ends = [min(mean.min(), measured.min()), max(mean.max(), measured.max())]
    left.plot(ends, ends, "--", color=BLACK, lw=1)
    left.set(xlabel="predicted mean", ylabel="measurement (mean of replicates)", title=first)
    styles = dict(zip(predicted, styles_of(predicted), strict=True))
    for name, each in predicted.items():
        colour, line = styles[name]
        squares = (y - each.mean).square().numpy() * unit**2
        centre.plot(*binned(each.variance.sqrt().numpy() * unit, squares), line, color=colour, ms=3, marker="o")
        gaps = [found - level for found, level in zip(coverage(each, y), LEVELS, strict=True)]
        right.plot(LEVELS, gaps, line, color=colour, label=name)
    low, high = centre.get_xlim()
    centre.plot([low, high], [low, high], ":", color=BLACK, lw=1)
    centre.set(xlabel="predicted standard deviation", ylabel="RMS residual", title="residuals by predicted deviation")
    right.axhline(0, ls=":", color=BLACK, lw=1)
    right.set(xlabel="level of the interval", ylabel="share inside less the level", title="calibration of intervals")
    for panel in (left, centre, right):
        panel.grid(alpha=0.2)
    made.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8.5)
    made.suptitle(f"{task.name}, {len(y)} test sequences", fontsize=11)
    made.savefig(path)


def styles_of(names: Mapping[str, object]) -> Sequence[tuple[str, str]]:
    """A colour and a line per way; plug-in predictions have the colour of their network, dashed."""
    fixed = {"natural": BLUE, "mean and": ORANGE, "NLL": GREY, "beta": GREEN, "faithful": PURPLE}
    colours = [next(colour for start, colour in fixed.items() if name.startswith(start)) for name in names]
    return [(colour, "--" if "plug-in" in name else "-") for colour, name in zip(colours, names, strict=True)]
