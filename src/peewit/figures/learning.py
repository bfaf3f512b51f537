"""A figure of a whole run in which precisions and noise were learnt while a network trained."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..learning import History, Learner, LearningRecord, Training
from ..messages.errors import ArgumentTypeError, PeewitError
from . import style
from .style import BLUE, GREEN, GREY, ORANGE, PURPLE, brief

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

FEW = 8  # groups up to which each has a line
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)  # quantiles of more groups
LEAST = 1e-3  # effective dimensions below which a group counts as switched off, and which a logarithmic axis shows
PANELS = {"loss": 190, "evidence": 210, "precision": 210, "dimensions": 190, "noise": 130}  # pixels of each


@dataclass(frozen=True, kw_only=True)
class GroupLines:
    """Numbers of groups over hyper-steps: a line per group, or quantiles over many; effective dimensions in a sum."""

    names: tuple[str, ...]
    values: Tensor  # (lines, hyper-steps)
    groups: int
    banded: bool  # whether the lines are the quantiles at LEVELS


@dataclass(frozen=True, kw_only=True)
class Course:
    """The numbers of a run, in order."""

    unit: str  # "epoch" or "hyper-step", on the axis of all panels
    places: tuple[float, ...]  # of the records
    loss: tuple[float | None, ...]
    steps: tuple[float, ...]  # the places of the hyper-steps
    evidence: tuple[float, ...]
    fit: tuple[float, ...]
    complexity: tuple[float, ...]
    noise: tuple[float, ...]
    precision: GroupLines | None
    dimensions: GroupLines | None
    kept: int | None  # the hyper-step whose weights are kept
    curves: Mapping[str, tuple[tuple[float, ...], tuple[float | None, ...]]]  # places and values


def course_of(history: History, curves: Mapping[str, Sequence[float | None]]) -> Course:
    """What a figure shows of a history, with further curves of the caller's."""
    records, steps = list(history), list(history.hyper_steps)
    in_epochs = all(record.epoch is not None for record in records)
    numbered = [number for number, record in enumerate(records) if record.log_evidence is not None]
    places = tuple(float(record.epoch if in_epochs else number + 1) for number, record in enumerate(records))  # type: ignore[arg-type]
    at_steps = tuple(places[number] for number in numbered)
    kept_steps = [number for number, record in enumerate(steps) if record.kept]
    return Course(
        unit="epoch" if in_epochs else "hyper-step" if len(steps) == len(records) else "record",
        places=places,
        loss=tuple(record.loss for record in records),
        steps=at_steps,
        evidence=tuple(number(record.log_evidence) for record in steps),
        fit=tuple(number(record.log_likelihood) for record in steps),
        complexity=tuple(number(record.complexity) for record in steps),
        noise=tuple(record.noise for record in steps if record.noise is not None),
        precision=precision_lines(steps, history.groups),
        dimensions=dimension_lines(steps, history.groups),
        kept=kept_steps[-1] if kept_steps else None,
        curves={name: placed(name, curve, places, at_steps) for name, curve in curves.items()},
    )


def number(value: float | None) -> float:
    """NaN where there is none."""
    return math.nan if value is None else value


def placed(
    name: str, curve: Sequence[float | None], places: tuple[float, ...], steps: tuple[float, ...]
) -> tuple[tuple[float, ...], tuple[float | None, ...]]:
    """A curve with its places: those of all records, or of the hyper-steps."""
    values = tuple(None if value is None else float(value) for value in curve)
    for known in (places, steps):
        if len(values) == len(known):
            return known, values
    raise PeewitError(
        f"The curve {name!r} has {len(values)} numbers; expected one per record ({len(places)}) or one per hyper-step "
        f"({len(steps)})."
    )


def precision_lines(steps: Sequence[LearningRecord], groups: tuple[str, ...]) -> GroupLines | None:
    """Each group's precision, or quantiles over many groups; None where records leave them out."""
    vectors = [record.precision for record in steps if record.precision is not None]
    if not vectors or len(vectors) < len(steps):
        return None
    values = torch.stack(vectors).double().T
    if len(values) <= FEW:
        return GroupLines(names=groups, values=values, groups=len(values), banded=False)
    quantiles = torch.quantile(values.log(), torch.tensor(LEVELS, dtype=torch.float64), dim=0).exp()
    names = tuple(f"{level:.0%}" for level in LEVELS)
    return GroupLines(names=names, values=quantiles, groups=len(values), banded=True)


def dimension_lines(steps: Sequence[LearningRecord], groups: tuple[str, ...]) -> GroupLines | None:
    """Each group's effective dimensions, or the sum over many groups."""
    vectors = [record.effective_dimensions for record in steps if record.effective_dimensions is not None]
    if not vectors:
        return None
    values = torch.stack(vectors).double().T
    if len(values) <= FEW and len(values) == len(groups):
        return GroupLines(names=groups, values=values, groups=len(values), banded=False)
    return GroupLines(names=("all",), values=values.sum(0, keepdim=True), groups=1, banded=False)


def learning_curves(
    source: History | Training | Learner, curves: Mapping[str, Sequence[float | None]] | None = None
) -> Figure:
    """Draw a whole run of learning while training: loss, evidence, precisions, effective dimensions and noise.

    Args:
        source: The run: a `pw.learning.History`, or the `pw.learning.Training` or `Learner` that has one.
        curves: Further lines beside the loss, by their names, such as the test NLL: one number per record of the
            history, or one per hyper-step; None where there is none.

    Returns:
        A plotly figure with a panel for each, over the epochs. Up to 8 groups of the prior have a line each; of more,
        the ranges of 50 % and 90 % of the precisions are drawn, with their median, and the sum of effective dimensions.
        A star and dotted lines mark the weights that are kept.

    Raises:
        ArgumentTypeError: `source` is none of these.
        PeewitError: There are no records yet, or a curve has another number of values.

    Example:
        >>> figure = pw.figures.learning_curves(learner, {"test NLL": [0.4] * len(learner.history)})
        >>> figure.layout.meta["title"]
        'How the prior was learnt while training'
    """
    history = getattr(source, "history", source)
    if not isinstance(history, History):
        raise ArgumentTypeError(
            f"learning_curves was given a {type(source).__name__}; expected a run, such as pw.learning.train returns, "
            "or its history."
        )
    if not len(history):
        raise PeewitError("The history has no records yet; iterate over the run first, or call learner.step().")
    course = course_of(history, {} if curves is None else curves)
    shown = shown_panels(course)
    heights = [PANELS[name] for name in shown]
    figure = style.panels(
        len(shown),
        1,
        shared_xaxes=True,
        vertical_spacing=26 / sum(heights),
        row_heights=[each / sum(heights) for each in heights],
    )
    for row, name in enumerate(shown, 1):
        DRAWERS[name](figure, course, row)
    described = description(course)
    style.finish(figure, "How the prior was learnt while training", described, height=sum(heights) + 150)
    for row, name in enumerate(shown, 1):
        figure.update_yaxes(row=row, col=1, **AXES[name](course))
    figure.update_xaxes(title_text=course.unit, row=len(shown), col=1)
    room = 0.02 * (course.places[-1] - course.places[0]) + 0.1
    figure.update_xaxes(range=[course.places[0] - room, course.places[-1] + room])
    if course.kept is not None:
        line = {"color": GREY, "width": 1.5, "dash": "dot"}
        for row in range(1, len(shown) + 1):
            figure.add_vline(x=course.steps[course.kept], line=line, row=row, col=1)
    return figure


def shown_panels(course: Course) -> list[str]:
    """Those that have numbers."""
    held = {
        "loss": any(value is not None for value in course.loss) or bool(course.curves),
        "evidence": bool(course.steps),
        "precision": course.precision is not None,
        "dimensions": course.dimensions is not None,
        "noise": bool(course.noise),
    }
    return [name for name, there in held.items() if there] or ["loss"]


def description(course: Course) -> str:
    """The run in a sentence or two."""
    text = f"A training run over {len(course.places)} {course.unit}s with {len(course.steps)} hyper-steps."
    if course.kept is not None:
        text += (
            f" The log evidence goes from {brief(course.evidence[0])} to {brief(course.evidence[course.kept])} at "
            f"{course.unit} {course.steps[course.kept]:g}, whose weights are kept."
        )
    if course.precision is not None:
        ends = course.precision.values[:, -1]
        text += f" In the end precisions are between {brief(float(ends.min()))} and {brief(float(ends.max()))}."
    return text


def draw_loss(figure: Figure, course: Course, row: int) -> None:
    """The training loss, and curves of the caller's."""
    lines = {"training loss": (course.places, course.loss)} | dict(course.curves)
    for number, (name, (x, y)) in enumerate(lines.items()):
        if any(value is not None for value in y):
            add(figure, row, name, x, y, {"color": style.colour(number), "dash": style.dash(number), "width": 2.5})


def draw_evidence(figure: Figure, course: Course, row: int) -> None:
    """The evidence and its two parts."""
    parts = {"log evidence": course.evidence, "data fit": course.fit, "complexity": course.complexity}
    for (name, values), colour, dash in zip(
        parts.items(), (BLUE, GREEN, ORANGE), ("solid", "dash", "dot"), strict=True
    ):
        add(figure, row, name, course.steps, values, {"color": colour, "width": 2.5, "dash": dash})
    if course.kept is not None:
        mark = {"color": BLUE, "symbol": "star", "size": 14}
        place, value = course.steps[course.kept], course.evidence[course.kept]
        figure.add_scatter(
            x=[place], y=[value], mode="markers", name="kept", marker=mark, hoverinfo="name", row=row, col=1
        )


def draw_precision(figure: Figure, course: Course, row: int) -> None:
    """Lines of groups, or a band with its median."""
    lines = course.precision
    assert lines is not None
    if not lines.banded:
        draw_groups(figure, course, lines, row, "precision")
        return
    for low, high, opacity, share in ((0, 4, 0.15, "90 %"), (1, 3, 0.3, "half")):
        x, below, above = [*course.steps], lines.values[low].tolist(), lines.values[high].tolist()
        fill = {"fill": "toself", "fillcolor": style.fade(PURPLE, opacity), "line": {"width": 0}, "hoverinfo": "skip"}
        name = f"{share} of {lines.groups:,} precisions"
        figure.add_scatter(x=x + x[::-1], y=above + below[::-1], mode="lines", name=name, **fill, row=row, col=1)
    add(figure, row, "their median", course.steps, lines.values[2].tolist(), {"color": PURPLE, "width": 2.5})


def draw_dimensions(figure: Figure, course: Course, row: int) -> None:
    """Lines of groups in the colours of their precisions, or one for all."""
    assert course.dimensions is not None
    draw_groups(figure, course, course.dimensions, row, "effective dimensions")


def draw_groups(figure: Figure, course: Course, lines: GroupLines, row: int, what: str) -> None:
    """A line per group, which has one entry in the legend for all panels."""
    several = course.precision is not None and not course.precision.banded
    for group, (name, values) in enumerate(zip(lines.names, lines.values.tolist(), strict=True)):
        first = what == "precision" or not several
        name = style.literal(name)
        title = f"prior: {name}" if several else what
        line = {"color": style.colour(group + 2), "dash": style.dash(group), "width": 2}
        drawn = [max(value, LEAST) for value in values] if what == "effective dimensions" else values
        hover = f"{name}: {what} %{{customdata:.4g}}<extra></extra>"
        figure.add_scatter(
            x=list(course.steps), y=drawn, customdata=values, mode="lines+markers", name=title, line=line, row=row,
            col=1, marker={"size": 4}, legendgroup=title, showlegend=first, hovertemplate=hover,
        )  # fmt: skip


def draw_noise(figure: Figure, course: Course, row: int) -> None:
    """The noise's deviation."""
    add(figure, row, "noise", course.steps[: len(course.noise)], course.noise, {"color": GREY, "width": 2.5})


def add(
    figure: Figure, row: int, name: str, x: Sequence[float], y: Sequence[float | None], line: dict[str, Any]
) -> None:
    """One line."""
    name = style.literal(name)
    mode = "lines+markers" if len(x) <= 60 else "lines"
    hover = f"{name} %{{y:.6g}}<extra></extra>"
    figure.add_scatter(
        x=list(x), y=list(y), mode=mode, name=name, line=line, marker={"size": 4}, hovertemplate=hover, row=row, col=1
    )


DRAWERS = {
    "loss": draw_loss,
    "evidence": draw_evidence,
    "precision": draw_precision,
    "dimensions": draw_dimensions,
    "noise": draw_noise,
}


def loss_axis(course: Course) -> dict[str, Any]:
    """Of the first panel."""
    return {"title_text": "loss" if len(course.curves) != 1 else f"loss, {style.literal(next(iter(course.curves)))}"}


def evidence_axis(course: Course) -> dict[str, Any]:
    """Of the second panel."""
    return {"title_text": "log evidence"}


def precision_axis(course: Course) -> dict[str, Any]:
    """Logarithmic."""
    assert course.precision is not None
    return {"title_text": "prior precision", **style.logarithmic(course.precision.values.flatten().tolist())}


def dimension_axis(course: Course) -> dict[str, Any]:
    """Logarithmic, from where a group is switched off."""
    assert course.dimensions is not None
    values = course.dimensions.values.clamp(min=LEAST).flatten().tolist()
    return {"title_text": "effective<br>dimensions", **style.logarithmic(values)}


def noise_axis(course: Course) -> dict[str, Any]:
    """Of the last panel."""
    return {"title_text": "noise"}


AXES = {
    "loss": loss_axis,
    "evidence": evidence_axis,
    "precision": precision_axis,
    "dimensions": dimension_axis,
    "noise": noise_axis,
}
