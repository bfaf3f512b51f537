"""The figure of a sweep: the effect of data weight and prior precision on calibration."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..messages.errors import ArgumentTypeError, PeewitError
from ..messages.names import check_name
from ..metrics import catalogue
from . import style
from .style import ORANGE, brief, graph_objects

if TYPE_CHECKING:
    from plotly.graph_objects import Figure


def sweep(source: Any, metric: str | None = None) -> Figure:
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
    title = "Scale, prior precision, and calibration"
    style.finish(figure, title, alt, x="examples that the data count for", y="prior precision", height=520, top=44)
    figure.update_xaxes(**style.logarithmic(point.data_weight for point in points))
    figure.update_yaxes(**style.logarithmic(point.prior_precision for point in points))
    figure.update_layout(updatemenus=[style.visibility_menu(choices)])
    return figure


def short(name: str) -> str:
    """A short name of a metric."""
    return catalogue.describe(name).phrase.partition(" (")[0]


def settings_trace(points: list[Any], name: str, visible: bool) -> Any:
    """Every setting as a square, coloured by one metric; the worst tenth shares a colour."""
    values = [point.metrics.get(name, math.nan) for point in points]
    finite = sorted(value for value in values if math.isfinite(value)) or [0.0]
    aside = len(finite) // 10  # outliers, which would stretch the colours
    low, high = finite[0], finite[-1 - aside]
    if catalogue.describe(name).better > 0:
        low, high = finite[aside], finite[-1]
    size = 34 if len(points) <= 36 else 24 if len(points) <= 100 else 14
    marker = {
        "color": values,
        "colorscale": style.SEQUENTIAL,
        "cmin": low,
        "cmax": high if high > low else low + 1e-9,
        "colorbar": style.bar(""),
        "showscale": True,
        "symbol": "square",
        "size": size,
        "line": {"color": style.LINES, "width": 1},
    }
    return graph_objects().Scatter(
        x=[point.data_weight for point in points],
        y=[point.prior_precision for point in points],
        mode="markers",
        name="settings that were tried",
        visible=visible,
        marker=marker,
        text=[brief(value) for value in values],
        hovertemplate="data count for %{x:.3g} examples, precision %{y:.3g}<br>"
        f"{catalogue.describe(name).phrase} %{{text}}<extra></extra>",
    )
