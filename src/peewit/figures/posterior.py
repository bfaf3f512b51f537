"""Figures of a posterior: variances by layer, prior against posterior, effective dimensions, and tuning."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..messages.errors import PeewitError
from . import style
from .style import BLUE, GREY, ORANGE, brief, graph_objects
from .summary import TRACED, Summary, steps_of, summary_of

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..laplace import Laplace
    from ..metrics.results import Results

GROUPS = 40  # the most that fit into a figure


def height_for(count: int) -> int:
    """The height of a figure with `count` rows."""
    return 170 + 30 * min(count, GROUPS)


def cut(names: Sequence[Any], what: str) -> str:
    """A second line for the title of an axis, if rows are left out."""
    return f"<br>the first {GROUPS} of {len(names)} {what}" if len(names) > GROUPS else ""


def few(names: Sequence[Any], what: str) -> str:
    """A sentence for the description, if rows are left out."""
    return f" The first {GROUPS} of {len(names)} {what} are shown." if len(names) > GROUPS else ""


def marginal_variances(source: Laplace | Summary | Results) -> Figure:
    """Draw the posterior standard deviations of the weights, tensor by tensor, beside the prior's.

    Args:
        source: A posterior, or a report of `pw.evaluate` on one. The first 40 tensors are shown.

    Returns:
        A plotly figure: for each tensor, the ranges of 50 % and of 90 % of its weights, their median, and the prior.

    Raises:
        ArgumentTypeError: `source` is neither a posterior nor a report.
        PeewitError: The report has no variances by layer.

    Example:
        >>> pw.figures.marginal_variances(la).layout.meta["title"]
        'How sure each weight is'
    """
    numbers = summary_of(source)
    if not numbers.layers:
        raise PeewitError("The report has no variances by layer; give the posterior itself.")
    layers = numbers.layers[:GROUPS]
    names = [layer.name for layer in layers]
    roots = [[math.sqrt(max(value, 0.0)) for value in layer.quantiles] for layer in layers]
    figure = graph_objects().Figure()
    texts = [
        f"{layer.name}{f', {layer.size:,} weights' if layer.size else ''}<br>half of their deviations between "
        f"{brief(deviations[1])} and {brief(deviations[3])}, the middle {brief(deviations[2])}"
        for layer, deviations in zip(layers, roots, strict=True)
    ]
    spans = ((0, 4, 3, "90 % of the weights"), (1, 3, 9, "half of the weights"))
    for low, high, width, name in spans:
        x: list[float | None] = []
        y: list[str | None] = []
        for tensor, deviations in zip(names, roots, strict=True):
            x += [deviations[low], deviations[high], None]
            y += [tensor, tensor, None]
        line = {"color": BLUE, "width": width}
        figure.add_scatter(x=x, y=y, mode="lines", name=name, line=line, hoverinfo="skip")
    dot = {"color": "white", "size": 8, "line": {"color": BLUE, "width": 2}}
    middle = {"x": [deviations[2] for deviations in roots], "y": names, "text": texts}
    hover = "%{text}<extra></extra>"
    figure.add_scatter(**middle, mode="markers", name="the middle one", marker=dot, hovertemplate=hover)
    known = [layer for layer in layers if math.isfinite(layer.prior)]
    mark = {"color": ORANGE, "symbol": "line-ns-open", "size": 14, "line": {"width": 3}}
    prior = {"x": [math.sqrt(layer.prior) for layer in known], "y": [layer.name for layer in known]}
    hover = "%{y}: prior deviation %{x:.3g}<extra></extra>"
    figure.add_scatter(**prior, mode="markers", name="the prior's", marker=mark, hovertemplate=hover)
    alt = (
        f"Posterior standard deviations of the weights of {len(layers)} tensors, as ranges on a logarithmic axis, "
        f"beside the prior's. The further to the left, the more the data say.{few(numbers.layers, 'tensors')}"
    )
    title, x_name = "How sure each weight is", "standard deviation of a weight"
    x_name += cut(numbers.layers, "tensors")
    style.finish(figure, title, alt, x=x_name, height=height_for(len(layers)))
    ends = [value for deviations in roots for value in deviations] + [math.sqrt(layer.prior) for layer in known]
    figure.update_xaxes(**style.logarithmic(ends))
    style.category_rows(figure)
    return figure


def prior_posterior(source: Laplace | Summary | Results) -> Figure:
    """Draw prior and posterior precision (1 / variance) side by side: the larger the step, the more the data say.

    Args:
        source: A posterior, or a report of `pw.evaluate` on one. The first 40 tensors are shown.

    Returns:
        A plotly figure: for each tensor, its prior precision, the posterior precision of its median weight, and the
        range of 90 % of its weights.

    Raises:
        ArgumentTypeError: `source` is neither a posterior nor a report.
        PeewitError: The report has no prior precisions.

    Example:
        >>> pw.figures.prior_posterior(report).layout.meta["title"]
        'What the data added to the prior'
    """
    numbers = summary_of(source)
    if numbers.layers and all(math.isfinite(each.prior) for each in numbers.layers):
        layers = numbers.layers[:GROUPS]
        names = [each.name for each in layers]
        before = [1 / each.prior for each in layers]
        after = [1 / max(each.quantiles[2], 1e-300) for each in layers]
        ends = [[1 / max(each.quantiles[number], 1e-300) for number in (4, 0)] for each in layers]
    else:
        names, before = list(numbers.groups[:GROUPS]), list(numbers.precisions[:GROUPS])
        by_name = {each.name: each for each in numbers.layers}
        shown = [by_name.get(name) for name in names]
        after = [1 / max(each.quantiles[2], 1e-300) if each else math.nan for each in shown]
        ends = [[1 / max(each.quantiles[p], 1e-300) for p in (4, 0)] if each else [math.nan] * 2 for each in shown]
    if not names:
        raise PeewitError("The report has no prior precisions; give the posterior itself.")
    figure = graph_objects().Figure()
    for name, low, high in zip(names, before, after, strict=True):
        if math.isfinite(high):
            line = {"color": style.fade(GREY, 0.6), "width": 2}
            figure.add_scatter(x=[low, high], y=[name] * 2, mode="lines", line=line, showlegend=False, hoverinfo="skip")
    mark = {"color": ORANGE, "symbol": "diamond", "size": 11}
    hover = "%{y}: prior precision %{x:.4g}<extra></extra>"
    figure.add_scatter(x=before, y=names, mode="markers", name="prior", marker=mark, hovertemplate=hover)
    if any(math.isfinite(value) for value in after):
        bars = {
            "type": "data", "symmetric": False, "color": BLUE, "thickness": 1.5,
            "array": [high - value for (_, high), value in zip(ends, after, strict=True)],
            "arrayminus": [value - low for (low, _), value in zip(ends, after, strict=True)],
        }  # fmt: skip
        hover = "%{y}: posterior precision %{x:.4g} of the middle weight<extra></extra>"
        mark = {"color": BLUE, "size": 11}
        figure.add_scatter(
            x=after, y=names, mode="markers", name="posterior, with 90 % of the weights", marker=mark, error_x=bars,
            hovertemplate=hover,
        )  # fmt: skip
    alt = (
        f"Prior and posterior precision of {len(names)} groups of weights on a logarithmic axis. The data say much "
        f"where they are far apart, nothing where they are equal.{few(numbers.layers or numbers.groups, 'groups')}"
    )
    x_name = f"precision (1 / variance){cut(numbers.layers or numbers.groups, 'groups')}"
    style.finish(figure, "What the data added to the prior", alt, x=x_name, height=height_for(len(names)))
    figure.update_xaxes(**style.logarithmic([*before, *(value for shown in ends for value in shown)]))
    style.category_rows(figure)
    return figure


def effective_dimensions(source: Laplace | Summary | Results) -> Figure:
    """Draw how many weights of each group of the prior the data determine, beside the number of weights.

    Args:
        source: A posterior, or a report of `pw.evaluate` on one. The first 40 groups are shown.

    Returns:
        A plotly figure with a bar of each kind for each group.

    Raises:
        ArgumentTypeError: `source` is neither a posterior nor a report.
        PeewitError: The report has no effective dimensions.

    Example:
        >>> [trace.name for trace in pw.figures.effective_dimensions(la).data]
        ['weights', 'determined by data']
    """
    numbers = summary_of(source)
    if not numbers.dimensions:
        raise PeewitError("The report has no effective dimensions; give the posterior itself.")
    names, values = list(numbers.groups[:GROUPS]), list(numbers.dimensions[:GROUPS])
    figure = graph_objects().Figure()
    if numbers.sizes:
        sizes = list(numbers.sizes[:GROUPS])
        look = {"color": style.fade(GREY, 0.35)}
        hover = "%{y}: %{x:,} weights<extra></extra>"
        figure.add_bar(x=sizes, y=names, orientation="h", name="weights", marker=look, hovertemplate=hover)
    hover = "%{y}: %{x:.4g} determined by data<extra></extra>"
    look = {"color": BLUE}
    figure.add_bar(x=values, y=names, orientation="h", name="determined by data", marker=look, hovertemplate=hover)
    total = f" of {sum(numbers.sizes):,} weights" if numbers.sizes else ""
    alt = (
        f"Effective dimensions of {len(names)} groups of weights, in all {sum(numbers.dimensions):.1f}{total}: the "
        f"data determine this many directions, the prior the others.{few(numbers.groups, 'groups')}"
    )
    whole = sum(numbers.dimensions)
    title = f"{f'{whole:.0f}' if whole >= 10 else brief(whole)}{total} determined by data"
    x_name = f"number, logarithmic{cut(numbers.groups, 'groups')}"
    style.finish(figure, title, alt, x=x_name, height=height_for(len(names)))
    figure.update_layout(barmode="overlay")
    smallest = min([value for value in values if value > 0] or [1.0])
    # From below the smallest one, so that it has a bar too.
    figure.update_xaxes(**style.logarithmic([smallest / 2, *values, *numbers.sizes[:GROUPS]]))
    style.category_rows(figure)
    return figure


def evidence_trace(source: Any) -> Figure:
    """Draw the score at every step of tuning, and the prior precisions.

    Args:
        source: A tuned posterior, its `Trace`, or a report of `pw.evaluate` on one. The precisions of the first 8
            groups are drawn if the trace has them for all steps.

    Returns:
        A plotly figure, with a second panel for the precisions.

    Raises:
        PeewitError: The posterior was not tuned.

    Example:
        >>> pw.figures.evidence_trace(la.tune()).layout.meta["title"]
        'How the prior was chosen'
    """
    values, objective, precisions, groups = steps_of(source)
    two = bool(precisions)
    figure = style.panels(2, 1, shared_xaxes=True, vertical_spacing=0.08) if two else graph_objects().Figure()
    panel = {"row": 1, "col": 1} if two else {}
    pick = min if "nll" in objective.lower() else max
    finite = [number for number, value in enumerate(values) if math.isfinite(value)]
    best = pick(finite, key=lambda number: values[number]) if finite else 0
    numbers = list(range(len(values)))
    line = {"color": BLUE, "width": 2.5}
    hover = f"step %{{x}}: {objective} %{{y:.6g}}<extra></extra>"
    mode = "lines+markers" if len(values) <= 60 else "lines"
    figure.add_scatter(x=numbers, y=list(values), mode=mode, name=objective, line=line, hovertemplate=hover, **panel)
    mark = {"color": ORANGE, "symbol": "star", "size": 14}
    figure.add_scatter(x=[best], y=[values[best]], mode="markers", name="best", marker=mark, hoverinfo="name", **panel)
    for number, name in enumerate(groups[:TRACED] if two else ()):
        precision = [row[number] for row in precisions]
        look = {"color": style.colour(number + 2), "dash": style.dash(number)}
        hover = f"{name}: precision %{{y:.4g}}<extra></extra>"
        title = f"precision, {name}"
        figure.add_scatter(
            x=numbers, y=precision, mode="lines", name=title, line=look, hovertemplate=hover, row=2, col=1
        )
    alt = (
        f"The {objective} over {len(values)} steps of tuning, from {brief(values[0])} to {brief(values[best])} at its "
        f"best{', and the prior precisions at each step' if two else ''}."
    )
    style.finish(figure, "How the prior was chosen", alt, height=540 if two else 420)
    figure.update_yaxes(title_text=objective, **panel)
    figure.update_xaxes(title_text="step", row=2 if two else None, col=1 if two else None)
    if two:
        all_groups = len(precisions[0])
        title = "prior precision" if all_groups <= TRACED else f"precision, {TRACED} of {all_groups}"
        axis = style.logarithmic(value for row in precisions for value in row)
        figure.update_yaxes(title_text=title, row=2, col=1, **axis)
    return figure
