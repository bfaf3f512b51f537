"""Figures of the uncertainty on known and unknown inputs, and of how well it separates them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..messages.arguments import is_count
from ..messages.errors import PeewitError
from ..messages.names import nearest
from . import style
from .scores import require_scores, whiskers, with_interval
from .style import GREY, brief, graph_objects

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..metrics.results import MethodScores

ScoreName: TypeAlias = Literal["confidence", "entropy", "mutual_information", "epistemic_variance", "variance"]
"""A measure of uncertainty that tells unknown inputs apart."""
SCORES: dict[ScoreName, str] = {
    "confidence": "confidence",
    "entropy": "entropy (nats)",
    "mutual_information": "mutual information (nats)",
    "epistemic_variance": "epistemic variance",
    "variance": "variance",
}


def uncertainty_histogram(scores: MethodScores, score: ScoreName | None = None, bins: int = 30) -> Figure:
    """Draw histograms of a method's uncertainty on test inputs and unknown ones: the less they overlap, the better.

    Args:
        scores: Scores of one method, such as `report.methods[0]`.
        score: Name of the score, such as "confidence", "mutual_information" or "epistemic_variance". None for the
            entropy for classes, or the variance for numbers.
        bins: Number of bins.

    Returns:
        A plotly figure, with one histogram per data set.

    Raises:
        ArgumentTypeError: `scores` is not a `MethodScores`.
        PeewitError: `bins` is not a positive whole number, or the score is unknown.

    Example:
        >>> [trace.name for trace in pw.figures.uncertainty_histogram(report.methods[0]).data]
        ['test', 'far']
    """
    if not is_count(bins):
        raise PeewitError(f"bins={bins!r} was given; expected a positive whole number.")
    require_scores([scores], "uncertainty_histogram")
    if score is None:
        score = "variance" if any("variance" in each for each in scores.uncertainty.values()) else "entropy"
    by_data = {name: each[score] for name, each in scores.uncertainty.items() if each.get(score)}
    known = sorted({name for each in scores.uncertainty.values() for name in each})
    if not by_data:
        raise PeewitError(f"score={score!r} is unknown here; {nearest(str(score), known)}Known: {', '.join(known)}.")
    finite = {name: [value for value in values if math.isfinite(value)] for name, values in by_data.items()}
    all_values = [value for values in finite.values() for value in values] or [0.0]
    low, high = min(0.0, *all_values), max(all_values)
    width = (high - low) / bins or 1.0
    figure = graph_objects().Figure()
    medians = []
    words = SCORES.get(score, score.replace("_", " "))
    for number, (name, values) in enumerate(finite.items()):
        shares, edges = histogram(values, low, width, bins)
        medians.append(f"{name} {brief(sorted(values)[len(values) // 2]) if values else 'none'}")
        hover = f"{style.literal(name)}: %{{y:.1%}} from %{{x:.3g}} on<extra></extra>"
        line = {"color": style.colour(number), "dash": style.dash(number), "width": 2.5, "shape": "hv"}
        figure.add_scatter(
            x=edges, y=[*shares, shares[-1]], mode="lines", name=style.literal(name), fill="tozeroy", line=line,
            hovertemplate=hover, fillcolor=style.fade(style.colour(number), 0.25),
        )  # fmt: skip
    alt = f"Histograms of {words} by {scores.name}, one per data set. Medians: {style.join(medians)}."
    style.finish(figure, f"How unsure: {scores.name}", alt, x=words, y="share of inputs")
    figure.update_yaxes(tickformat=".0%", rangemode="tozero")
    return figure


def histogram(values: Sequence[float], low: float, width: float, bins: int) -> tuple[list[float], list[float]]:
    """Shares in bins of equal width, and the edges of the bins; the last bin includes its end."""
    counts = [0] * bins
    for value in values:
        counts[min(max(int((value - low) / width), 0), bins - 1)] += 1
    return [count / max(len(values), 1) for count in counts], [low + number * width for number in range(bins + 1)]


def row_label(method: MethodScores, data: str, several: bool) -> str:
    """A method, and below it the data where there are several sets."""
    return f"{method.name}<br>{style.literal(data)}" if several else method.name


def detection(*scores: MethodScores) -> Figure:
    """Draw the AUROC of detecting unknown inputs, by method and by score; 0.5 is chance.

    Args:
        *scores: Scores to compare, as in `detection(*report.methods)`, of a report with unknown inputs (`ood`).

    Returns:
        A plotly figure with intervals.

    Raises:
        ArgumentTypeError: An argument is not a `MethodScores`.
        PeewitError: There are no scores, or none has unknown inputs.

    Example:
        >>> [trace.name for trace in pw.figures.detection(*report.methods).data][:2]
        ['confidence', 'entropy']
    """
    kinds = list(
        dict.fromkeys(
            kind
            for method in require_scores(scores, "detection")
            for detections in method.detection.values()
            for kind in detections
        )
    )
    sets = list(dict.fromkeys(name for method in scores for name in method.detection))
    if not kinds:
        raise PeewitError("None of the scores has unknown inputs; evaluate with ood={'name': inputs}.")
    figure = graph_objects().Figure()
    best: tuple[float, str] = (-1.0, "")
    several = len(sets) > 1
    for number, kind in enumerate(kinds):
        rows = [
            (method, method.detection[name][kind], name)
            for name in sets
            for method in scores
            if kind in method.detection.get(name, {})
        ]
        score = kind.replace("_", " ")
        places = [(value.auroc.value, f"{each.name}{f', {name}' if several else ''}") for each, value, name in rows]
        best = max([best, *((value, f"{method_name} by {score}") for value, method_name in places)])
        texts = [
            f"{style.literal(name)} by {score}<br>AUROC {with_interval(value.auroc)}"
            f"<br>AUPR {with_interval(value.aupr)}<br>wrongly alarmed at 95 % caught {with_interval(value.fpr95)}"
            for _, value, name in rows
        ]
        figure.add_scatter(
            y=[row_label(method, name, several) for method, _, name in rows],
            x=[value.auroc.value for _, value, _ in rows],
            error_x=whiskers([value.auroc for _, value, _ in rows]),
            mode="markers",
            orientation="h",
            name=score,
            text=texts,
            hovertemplate="%{text}<extra></extra>",
            marker={"color": style.colour(number), "symbol": style.symbol(number), "size": 10},
        )
    figure.add_vline(x=0.5, line={"color": GREY, "dash": "dot"})
    alt = (
        f"AUROC of detecting unknown inputs ({style.join(sets)}), with intervals, by method and by score; the dotted "
        f"line is chance. Best: {best[1]}, {best[0]:.3f}."
    )
    title = f"Unknown inputs noticed: {sets[0]}" if not several else "Unknown inputs noticed"
    lines = len({label for trace in figure.data for label in trace.y})
    style.finish(figure, title, alt, x="AUROC", height=130 + max(36, 12 * len(kinds)) * lines)
    style.category_rows(figure)
    figure.update_yaxes(categoryorder="array", categoryarray=[row_label(method, name, several)
                                                              for name in sets for method in scores])  # fmt: skip
    figure.update_layout(scattermode="group", scattergap=0.4)
    lows = [
        value.auroc.low
        for method in scores
        for detections in method.detection.values()
        for value in detections.values()
    ]
    figure.update_xaxes(range=[min([0.45, *(low - 0.02 for low in lows if math.isfinite(low))]), 1.01])
    return figure
