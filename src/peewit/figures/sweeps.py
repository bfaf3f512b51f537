"""The figure of a sweep: the effect of data weight and prior precision on calibration."""

from __future__ import annotations

import math
from bisect import bisect
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..messages.errors import ArgumentTypeError, PeewitError
from ..messages.names import check_name
from ..metrics import catalogue
from ..metrics.catalogue import MetricName
from . import style
from .style import ORANGE, brief, graph_objects

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def sweep(source: Any, metric: MetricName | None = None) -> Figure:
    """Draw the settings of a sweep over data weight and prior precision, coloured by a metric.

    A menu switches between metrics. A circle marks the best setting by the sweep's own metric.

    Args:
        source: A sweep, which `pw.sweep` returns.
        metric: Name of the metric to show first. None for the sweep's own.

    Returns:
        A plotly figure with logarithmic axes.

    Raises:
        ArgumentTypeError: `source` is not a sweep.
        PeewitError: The sweep has no points, or the metric is unknown.

    Example:
        >>> tried = pw.sweep(la, (x, y), trials=4)
        >>> len(pw.figures.sweep(tried, "ece").data[0].x)
        4
    """
    if not hasattr(source, "points"):
        raise ArgumentTypeError(f"A {type(source).__name__} was given; expected a sweep, which peewit.sweep returns.")
    points = list(source.points)
    if not points:
        raise PeewitError("The sweep has no points.")
    known = list(dict.fromkeys(name for point in points for name in point.metrics))
    first = source.metric if metric is None else metric
    check_name(first, known, "metric")
    order = [first, *(name for name in known if name != first)]
    figure = graph_objects().Figure()
    for number, name in enumerate(order):
        figure.add_trace(settings_trace(points, name, number == 0))
    best, chosen = source.best, source.metric
    mark = {"color": ORANGE, "size": 26, "symbol": "circle-open", "line": {"width": 4}}
    figure.add_scatter(
        x=[best.data_weight], y=[best.prior_precision], mode="markers", name=f"best {short(chosen)}", marker=mark,
        hoverinfo="skip",
    )  # fmt: skip
    choices = [(short(name), [other == name for other in order] + [True]) for name in order]
    value = best.metrics[chosen]
    alt = (
        f"Squares for {len(points)} settings of the data weight, in examples, and of the prior precision, coloured "
        f"by {catalogue.describe(first).phrase}. Best {short(chosen)}: {brief(value)} at "
        f"{brief(best.data_weight)} examples and precision {brief(best.prior_precision)}."
    )
    title = "Data weight, prior precision, and calibration"
    style.finish(figure, title, alt, x="examples that the data count for", y="prior precision", height=520, top=44)
    figure.update_xaxes(**style.logarithmic(point.data_weight for point in points))
    figure.update_yaxes(**style.logarithmic(point.prior_precision for point in points))
    if (sides := cells(points)) is not None:
        for axis, edges in zip((figure.layout.xaxis, figure.layout.yaxis), sides, strict=True):
            axis.range = [math.log10(edges[0]), math.log10(edges[-1])]
    figure.update_layout(updatemenus=[style.visibility_menu(choices)], barmode="overlay")
    return figure


def short(name: str) -> str:
    """A short name of a metric."""
    return catalogue.describe(name).phrase.partition(" (")[0]


def settings_trace(points: list[Any], name: str, visible: bool) -> Any:
    """Every setting as a cell, or as a square where they are not a grid, coloured by one metric.

    The worst tenth shares a colour.
    """
    values = [point.metrics.get(name, math.nan) for point in points]
    finite = sorted(value for value in values if math.isfinite(value)) or [0.0]
    aside = len(finite) // 10  # outliers, which would stretch the colours
    low, high = finite[0], finite[-1 - aside]
    if catalogue.describe(name).better > 0:
        low, high = finite[aside], finite[-1]
    marker: dict[str, Any] = {
        "color": values,
        "colorscale": style.SEQUENTIAL,
        "cmin": low,
        "cmax": high if high > low else low + 1e-9,
        "colorbar": style.bar(""),
        "showscale": True,
        "line": {"color": style.LINES, "width": 1},
    }
    common = {
        "name": "settings that were tried",
        "visible": visible,
        "hovertext": [
            f"data count for {brief(point.data_weight)} examples, precision {brief(point.prior_precision)}<br>"
            f"{catalogue.describe(name).phrase} {brief(value)}"
            for point, value in zip(points, values, strict=True)
        ],
        "hoverinfo": "text",
    }
    if (sides := cells(points)) is not None:
        left, right = edges_around([point.data_weight for point in points], sides[0])
        low, high = edges_around([point.prior_precision for point in points], sides[1])
        return graph_objects().Bar(
            x=left, width=[b - a for a, b in zip(left, right, strict=True)], offset=0,
            base=low, y=[b - a for a, b in zip(low, high, strict=True)], marker=marker, **common,
        )  # fmt: skip
    marker |= {"symbol": "square", "size": 34 if len(points) <= 36 else 24 if len(points) <= 100 else 14}
    return graph_objects().Scatter(
        x=[point.data_weight for point in points],
        y=[point.prior_precision for point in points],
        mode="markers",
        marker=marker,
        **common,
    )


def cells(points: list[Any]) -> tuple[list[float], list[float]] | None:
    """The edges between the columns and rows of a grid; None if the points are not a whole grid."""
    settings = {(point.data_weight, point.prior_precision) for point in points}
    columns, rows = (sorted(set(values)) for values in zip(*settings, strict=True))
    if min(len(columns), len(rows)) < 2 or len(columns) * len(rows) != len(settings) or columns[0] <= 0 or rows[0] <= 0:
        return None
    return between(columns), between(rows)


def between(values: list[float]) -> list[float]:
    """Edges halfway between rising numbers on a logarithmic axis, and as far outside at both ends."""
    inner = [math.sqrt(a * b) for a, b in pairwise(values)]
    return [values[0] ** 2 / inner[0], *inner, values[-1] ** 2 / inner[-1]]


def edges_around(values: list[float], edges: list[float]) -> tuple[list[float], list[float]]:
    """The edges on both sides of each number."""
    places = [bisect(edges, value) for value in values]
    return [edges[place - 1] for place in places], [edges[place] for place in places]
