"""Figures of an evaluation: calibration, risk against coverage, corrupted inputs, methods side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from ..messages.errors import ArgumentTypeError, PeewitError
from ..messages.names import check_name
from ..metrics import catalogue
from ..metrics.catalogue import MetricName
from ..metrics.results import VariationName
from . import style
from .style import GREY, brief, graph_objects

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..metrics.results import Estimate, MethodScores, Results, Shift


def require_scores(scores: Sequence[MethodScores], what: str) -> Sequence[MethodScores]:
    """Check that there are scores, and nothing else."""
    if not scores:
        raise PeewitError(f"{what} got no scores; use {what}(*report.methods).")
    for method in scores:
        if not hasattr(method, "risk_coverage"):
            raise ArgumentTypeError(
                f"{what} got a {type(method).__name__}; expected scores, as in {what}(*report.methods)."
            )
    return scores


def whiskers(values: Sequence[Estimate]) -> dict[str, Any]:
    """Intervals as error bars of plotly."""
    more = [max(each.high - each.value, 0.0) for each in values]
    less = [max(each.value - each.low, 0.0) for each in values]
    return {"type": "data", "symmetric": False, "array": more, "arrayminus": less, "thickness": 1.5, "color": GREY}


def with_interval(value: Estimate) -> str:
    """A number with its interval."""
    return f"{brief(value.value)} ({brief(value.low)} to {brief(value.high)})"


def look(number: int) -> dict[str, Any]:
    """The line and marker of the n-th method."""
    return {
        "line": {"color": style.colour(number), "dash": style.dash(number), "width": 2.5},
        "marker": {"color": style.colour(number), "symbol": style.symbol(number), "size": 8},
    }


def reliability(*scores: MethodScores) -> Figure:
    """Draw accuracy against confidence, in bins: on the diagonal, predictions are as accurate as they are confident.

    Args:
        *scores: Scores to compare, as in `reliability(*report.methods)`; scores for numbers are left out.

    Returns:
        A plotly figure, with the share of predictions in each bin below.

    Raises:
        ArgumentTypeError: An argument is not a `MethodScores`.
        PeewitError: There are no scores, or none for classes.

    Example:
        >>> [trace.name for trace in pw.figures.reliability(*report.methods).data][:2]
        ['ideal', 'Laplace']
    """
    shown = [method for method in require_scores(scores, "reliability") if method.reliability is not None]
    if not shown:
        raise PeewitError("None of the scores has a reliability curve: they are for numbers, not for classes; use pit.")
    figure = style.panels(2, 1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.75, 0.25])
    ideal = {"color": GREY, "dash": "dot"}
    figure.add_scatter(x=[0, 1], y=[0, 1], mode="lines", name="ideal", line=ideal, hoverinfo="name", row=1, col=1)
    gaps = []
    for number, method in enumerate(shown):
        bins = method.reliability
        assert bins is not None
        full = [number for number, count in enumerate(bins.count) if count]
        total = sum(bins.count)
        shares = [bins.count[number] / total for number in full]
        x, y = [bins.confidence[number] for number in full], [bins.accuracy[number] for number in full]
        gaps.append(f"{method.name} {sum(s * abs(b - a) for s, a, b in zip(shares, x, y, strict=True)):.3f}")
        rows = [[bins.count[number], bins.edges[number], bins.edges[number + 1]] for number in full]
        hover = (
            f"{method.name}<br>%{{customdata[0]}} predictions between %{{customdata[1]:.2f}} and %{{customdata[2]:.2f}}"
            "<br>mean confidence %{x:.3f}, right %{y:.3f} of the time<extra></extra>"
        )
        group = {"name": method.name, "legendgroup": method.name}
        figure.add_scatter(
            x=x, y=y, customdata=rows, mode="lines+markers", hovertemplate=hover, **group, **look(number), row=1, col=1
        )
        middles = [(bins.edges[number] + bins.edges[number + 1]) / 2 for number in range(len(bins.count))]
        bars = [count / total for count in bins.count]
        hover = f"{method.name}<br>%{{y:.1%}} of predictions<extra></extra>"
        colour = style.fade(style.colour(number), 0.65)
        figure.add_bar(
            x=middles, y=bars, marker={"color": colour}, showlegend=False, hovertemplate=hover, **group, row=2, col=1
        )
    alt = (
        "Accuracy against confidence, in bins, and below the share of predictions in each bin. Below the dotted "
        f"diagonal a method is too sure. Mean distance from the diagonal: {style.join(gaps)}."
    )
    style.finish(figure, "Is it right as often as it says?", alt, height=560)
    figure.update_yaxes(title_text="how often right", range=[-0.03, 1.03], row=1, col=1)
    figure.update_yaxes(title_text="share", tickformat=".0%", row=2, col=1)
    figure.update_xaxes(range=[-0.03, 1.03])
    figure.update_xaxes(title_text="confidence", row=2, col=1)
    return figure


def risk_coverage(*scores: MethodScores) -> Figure:
    """Draw the error among the most confident predictions: it falls as fewer are kept if confidence is useful.

    Args:
        *scores: Scores to compare, as in `risk_coverage(*report.methods)`.

    Returns:
        A plotly figure: the share of errors for classes, the mean squared error for numbers.

    Raises:
        ArgumentTypeError: An argument is not a `MethodScores`.
        PeewitError: There are no scores.

    Example:
        >>> [trace.name for trace in pw.figures.risk_coverage(*report.methods).data]
        ['Laplace', 'Plain network']
    """
    figure = graph_objects().Figure()
    kinds = set()
    for number, method in enumerate(require_scores(scores, "risk_coverage")):
        curve = method.risk_coverage
        risk = "mean squared error" if method.reliability is None else "share of errors"
        kinds.add(risk)
        hover = f"{method.name}<br>surest %{{x:.0%}} kept: {risk} %{{y:.4g}}<extra></extra>"
        line = look(number)["line"]
        figure.add_scatter(
            x=list(curve.x), y=list(curve.y), mode="lines", name=method.name, line=line, hovertemplate=hover
        )
    alt = (
        "Error among the surest predictions against the share that is kept, for "
        f"{style.join([method.name for method in scores])}. The lower a curve is on the left, the better the "
        "uncertainty finds errors."
    )
    y = kinds.pop() if len(kinds) == 1 else "error"
    style.finish(figure, "Errors if only the surest are kept", alt, x="share of predictions kept", y=y)
    figure.update_xaxes(tickformat=".0%", range=[0, 1.02])
    figure.update_yaxes(rangemode="tozero")
    return figure


def shift_curves(report: Results, variation: VariationName = "shifts", metric: MetricName | None = None) -> Figure:
    """Draw a metric against the strength of each corruption or attack, one line per method.

    Args:
        report: A report of `pw.evaluate` with `shifts` or `attacks`.
        variation: "shifts" for corruptions, or "attacks".
        metric: Name of the metric, such as "nll"; None for the first one, the accuracy or RMSE.

    Returns:
        A plotly figure, with a menu where there are several corruptions.

    Raises:
        ArgumentTypeError: `report` is not a report.
        PeewitError: `variation` is none of the two, the report has none of these, or the metric is unknown.

    Example:
        >>> pw.figures.shift_curves(report, metric="nll").data[0].x
        (0.0, 0.5, 1.0)
    """
    style.expect_report(report)
    check_name(variation, get_args(VariationName), "variation")
    shifts_by_name: dict[str, list[tuple[str, Shift]]] = {}
    for scores in report.methods:
        for name, shift in getattr(scores, variation).items():
            shifts_by_name.setdefault(name, []).append((scores.name, shift))
    known = list(
        dict.fromkeys(name for shifts in shifts_by_name.values() for _, shift in shifts for name in shift.metrics)
    )
    if not known:
        raise PeewitError(f"The report has no {variation}; evaluate with {variation}=...")
    drawn_metric = known[0] if metric is None else metric
    check_name(drawn_metric, known, "metric")
    figure = graph_objects().Figure()
    owners: list[str] = []
    order = {scores.name: number for number, scores in enumerate(report.methods)}
    for name, shifts in shifts_by_name.items():
        for method, shift in shifts:
            if drawn_metric in shift.metrics:
                figure.add_trace(
                    shift_line(method, order[method], shift, drawn_metric, name == next(iter(shifts_by_name)))
                )
                owners.append(name)
    words = catalogue.describe(drawn_metric).phrase
    names = list(dict.fromkeys(owners))
    alt = (
        f"{style.sentence(words)} against the strength of {'attacks' if variation == 'attacks' else 'corruptions'} "
        f"({style.join(names)}), with a line and intervals for each method; strength 0 is the clean test set."
    )
    title = style.sentence(words)
    style.finish(figure, title, alt, x="strength", y=words, top=44 if len(names) > 1 else 0)
    strengths = [strength for shifts in shifts_by_name.values() for _, shift in shifts for strength in shift.strengths]
    figure.update_xaxes(**style.fractions(strengths))
    if (ideal := catalogue.describe(drawn_metric).ideal) is not None:
        figure.add_hline(y=ideal, line={"color": GREY, "dash": "dot"})
    if len(names) > 1:
        choices = [(name, [owner == name for owner in owners]) for name in names]
        figure.update_layout(updatemenus=[style.visibility_menu(choices)])
    return figure


def shift_line(method: str, number: int, shift: Shift, metric: str, visible: bool) -> Any:
    """One method's line."""
    values = shift.metrics[metric]
    return graph_objects().Scatter(
        x=list(shift.strengths),
        y=[each.value for each in values],
        error_y=whiskers(values),
        text=[
            f"strength {style.strength(strength)}: {with_interval(each)}"
            for strength, each in zip(shift.strengths, values, strict=True)
        ],
        mode="lines+markers",
        name=method,
        visible=visible,
        hovertemplate=f"{method}<br>%{{text}}<extra></extra>",
        **look(number),
    )


def pit(*scores: MethodScores) -> Figure:
    """Draw a histogram of the predicted quantiles of observations: flat if predictions are calibrated.

    Args:
        *scores: Scores to compare, as in `pit(*report.methods)`; scores for classes are left out.

    Returns:
        A plotly figure: the share of observations in each bin of the probability integral transform (PIT), relative to
        a uniform distribution.

    Raises:
        ArgumentTypeError: An argument is not a `MethodScores`.
        PeewitError: There are no scores, or none for numbers.

    Example:
        >>> pw.figures.pit(*line_report.methods).data[0].name
        'Laplace'
    """
    shown = [method for method in require_scores(scores, "pit") if method.pit is not None]
    if not shown:
        raise PeewitError("None of the scores has quantiles: they are for classes, not for numbers; use reliability.")
    figure = graph_objects().Figure()
    for number, method in enumerate(shown):
        shares = list(method.pit or ())
        size = 1 / len(shares)
        line = {**look(number)["line"], "shape": "hv"}
        figure.add_scatter(
            x=[edge * size for edge in range(len(shares) + 1)],
            y=[share / size for share in [*shares, shares[-1]]],
            mode="lines",
            name=method.name,
            line=line,
            hovertemplate=f"{method.name}<br>from quantile %{{x:.2f}} on: %{{y:.2f}} times its share<extra></extra>",
        )
    figure.add_hline(y=1.0, line={"color": GREY, "dash": "dot"})
    alt = (
        f"Histogram of the predicted quantiles of observations, for {style.join([method.name for method in shown])}. "
        "Flat at one is calibrated; raised ends mean that predictions are too narrow, a raised middle too wide."
    )
    x, y = "predicted quantile of the observation", "observations, 1 is even"
    style.finish(figure, "Do observations fill the quantiles evenly?", alt, x=x, y=y)
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(range=[0, 1])
    return figure


def compare(report: Results, metric: MetricName) -> Figure:
    """Draw all methods of a report by one metric, with their intervals.

    Args:
        report: A report of `pw.evaluate`.
        metric: Name of the metric, such as "nll". Methods without it are left out.

    Returns:
        A plotly figure.

    Raises:
        ArgumentTypeError: `report` is not a report.
        PeewitError: No method has this metric.

    Example:
        >>> [trace.name for trace in pw.figures.compare(report, "nll").data]
        ['Laplace', 'Plain network']
    """
    style.expect_report(report)
    known = list(dict.fromkeys(name for method in report.methods for name in method.metrics))
    check_name(metric, known, "metric")
    figure = graph_objects().Figure()
    shown = [method for method in report.methods if metric in method.metrics]
    for number, method in enumerate(shown):
        value = method.metrics[metric]
        figure.add_scatter(
            x=[value.value],
            y=[method.name],
            error_x=whiskers([value]),
            mode="markers",
            name=method.name,
            showlegend=False,
            hovertemplate=f"{method.name}<br>{method.description}<br>{with_interval(value)}<extra></extra>",
            marker={"color": style.colour(number), "symbol": style.symbol(number), "size": 12},
        )
    kind = catalogue.describe(metric)
    words = kind.phrase
    finite = [method for method in shown if math.isfinite(method.metrics[metric].value)]
    if kind.ideal is not None:
        figure.add_vline(x=kind.ideal, line={"color": GREY, "dash": "dot"})
    hint = {1: ", more is better", -1: ", less is better", 0: ""}[kind.better]
    if kind.ideal is not None:
        hint = f", {kind.ideal:g} is right"
    alt = f"{style.sentence(words)} of {len(shown)} methods, with 95 % intervals{hint}."
    if finite:
        values = style.join([f"{method.name} {brief(method.metrics[metric].value)}" for method in finite])
        alt += f" Values: {values}."
    x = f"{kind.short}{hint}"
    if len(x) > 22:  # too long for a phone
        x = x.replace(", ", ",<br>")
    style.finish(figure, style.sentence(words), alt, x=x, height=150 + 40 * len(shown))
    style.category_rows(figure)
    return figure
