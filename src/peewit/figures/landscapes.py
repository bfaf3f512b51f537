"""Figures of the loss around the trained weights: along a line, as contours with a menu, and as surfaces."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..laplace import Laplace
from ..messages.errors import PeewitError
from ..network.nests import Data
from . import style
from .directions import DirectionName
from .losses import EXAMPLES, Landscape, landscape
from .style import BLUE, GREEN, ORANGE, graph_objects

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

LandscapeSource = Laplace | Landscape
"""A posterior, or the numbers of `pw.figures.landscape`, which need no data."""
STEEP = 20.0  # ratio of the largest to the least loss above which the colour scale is logarithmic


def landscape_of(
    source: LandscapeSource, data: Data | None, dimensions: int, examples: int | None, **settings: Any
) -> Landscape:
    """The landscape behind a figure with one or two directions."""
    compute = functools.partial(landscape, dimensions=dimensions, examples=examples)
    chosen = None if examples == EXAMPLES else examples
    losses = style.numbers_of(source, Landscape, compute, data=data, examples=chosen, **settings)
    if losses.plane != (dimensions == 2):
        raise PeewitError(f"A Landscape with {len(losses.directions)} directions; expected {dimensions}.")
    return losses


def landscape_1d(
    source: LandscapeSource,
    data: Data | None = None,
    *,
    directions: DirectionName | Tensor | None = None,
    reach: float | None = None,
    points: int | None = None,
    examples: int | None = EXAMPLES,
    generator: torch.Generator | None = None,
    memory: float | None = None,
    progress: bool = False,
) -> Figure:
    """Draw the loss along a line through the trained weights, and `exp(-loss)` with the fitted Gaussian.

    Args:
        source: A posterior, or a `Landscape` with one direction, which takes no other argument.
        data: Training data: a loader, batches, or a pair (inputs, targets).
        directions: "eigen", "random" or a tensor, as in `landscape`. None for "eigen".
        reach: Distance to both sides, in units of the directions. None for that of `landscape`.
        points: Points along each direction. None for 101.
        examples: Number of examples to use, from the first on. None for all of them.
        generator: Source of random directions and of the start of the Lanczos method. None for a fixed seed.
        memory: Bytes for temporary results. None for the posterior's limit.
        progress: Whether to show a progress bar.

    Returns:
        A plotly figure with two panels.

    Raises:
        ArgumentTypeError: `source` is neither a posterior nor a `Landscape`.
        PeewitError: `data` is missing, arguments stand beside a `Landscape`, or the `Landscape` has two directions.

    Example:
        >>> pw.figures.landscape_1d(la, (x, y), points=11).layout.meta["title"]
        'The loss along one direction'
    """
    losses = landscape_of(
        source, data, 1, directions=directions, reach=reach, points=points, examples=examples, generator=generator,
        memory=memory, progress=progress,
    )  # fmt: skip
    go = graph_objects()
    figure = style.panels(2, 1, shared_xaxes=True, vertical_spacing=0.08, row_heights=[0.5, 0.5])
    x = losses.a.tolist()
    base = float(losses.loss.flatten()[len(x) // 2])
    quadratic = base + (losses.quadratic - losses.penalty + losses.penalty.flatten()[len(x) // 2]) / losses.data_weight
    lines = (
        ("network", BLUE, "solid", losses.loss, losses.density),
        ("linear model", ORANGE, "dash", losses.linear, losses.linear_density),
        ("Gaussian", GREEN, "dot", quadratic, losses.gaussian),
    )
    for name, colour, dash, loss, density in lines:
        look = {"name": name, "mode": "lines", "legendgroup": name, "line": {"color": colour, "dash": dash, "width": 3}}
        for row, values, hover in ((1, loss, f"mean {losses.words}"), (2, density, "share of its peak")):
            trace = go.Scatter(
                x=x,
                y=style.short_lists(values.flatten()),
                showlegend=row == 1,
                hovertemplate=f"{name}<br>%{{x:.2f}} along the direction<br>{hover} %{{y:.4g}}<extra></extra>",
                **look,
            )
            figure.add_trace(trace, row, 1)
    alt = (
        f"Above, the mean {losses.words} along a line through the trained weights: of the network, of its linear "
        "model, and the parabola that belongs to the Gaussian. Below, likelihood times prior along the same line, and "
        "the Gaussian: the closer they are, the better the approximation."
    )
    figure = style.finish(figure, "The loss along one direction", alt, height=560)
    top = limits(losses.loss, losses.linear)[1]
    low = limits(losses.loss, losses.linear, quadratic)[0]
    room = 0.05 * (top - low) or 1.0
    figure.update_yaxes(title_text=f"mean {losses.words}", range=[low - room, top + room], row=1, col=1)
    figure.update_yaxes(title_text="exp(-loss), share of peak", row=2, col=1)
    figure.update_xaxes(title_text=losses.axes[0], row=2, col=1)
    return figure


def limits(*tables: Tensor) -> tuple[float, float]:
    """The least and the largest finite number of all tables."""
    values = torch.cat([table.flatten() for table in tables])
    kept = values[torch.isfinite(values)]
    return (float(kept.min()), float(kept.max())) if len(kept) else (0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class LandscapeView:
    """One entry of the menu."""

    name: str
    values: Tensor
    words: str  # the name of the numbers
    centred: bool = False  # the colour scale is symmetric around zero
    reverse: bool = False
    least: float = 1e-12  # the smallest range of colours, above rounding

    @property
    def steep(self) -> bool:
        """Whether the colour scale is logarithmic: losses far away are many times those at the trained weights."""
        low, high = limits(self.values)
        return not self.centred and low > 0 and high > STEEP * low


def views(losses: Landscape) -> list[LandscapeView]:
    """The entries of the menu."""
    contrast = losses.contrast
    mean = f"mean {losses.words}"
    choices = [LandscapeView(name="loss", values=losses.loss, words=mean)]
    if losses.accuracy is not None:
        choices.append(LandscapeView(name="accuracy", values=losses.accuracy, words="accuracy", reverse=True))
    if contrast is not None:
        name, words = "loss less error, both scaled 0 to 1", "scaled loss less scaled error"
        choices.append(LandscapeView(name=name, values=contrast, words=words, centred=True))
    choices.append(LandscapeView(name="linear model's loss", values=losses.linear, words=mean))
    words = "network less linear model"
    low, high = limits(losses.loss)
    least = max(1e-3 * (high - low), 1e-12)  # so that rounding errors do not look like differences
    difference = losses.loss - losses.linear
    choices.append(LandscapeView(name=words, values=difference, words=words, centred=True, least=least))
    return choices


def contour(losses: Landscape, view: LandscapeView, visible: bool) -> Any:
    """One view as contours."""
    values = view.values.log10() if view.steep else view.values
    low, high = limits(values)
    if view.centred:
        high = max(abs(low), abs(high), view.least)
        low = -high
    elif high - low <= 1e-9 * max(abs(low), abs(high)):  # browsers hang at contours of a constant
        room = 0.01 * abs(low) or 1.0
        low, high = low - room, high + room
    size = max((high - low) / 14, 1e-12)
    bar = style.bar(view.words)
    if view.steep:
        ticks = [low + (high - low) * part / 5 for part in range(6)]
        bar |= {"tickvals": ticks, "ticktext": [style.brief(10**tick) for tick in ticks]}
    return graph_objects().Contour(
        x=losses.a.tolist(),
        y=losses.b.tolist(),
        z=style.short_lists(values),
        text=[[style.brief(value) for value in row] for row in view.values.tolist()],
        name=view.name,
        visible=visible,
        colorscale=style.DIVERGING if view.centred else style.SEQUENTIAL,
        reversescale=view.reverse,
        zmin=low,
        zmax=high,
        contours={"start": low, "end": high, "size": size, "coloring": "heatmap"},
        line={"width": 0.6, "color": "rgba(255, 255, 255, 0.6)"},
        colorbar=bar,
        hovertemplate=f"{view.words}: %{{text}}<br>at (%{{x:.2f}}, %{{y:.2f}})<extra></extra>",
    )


def landscape_2d(
    source: LandscapeSource,
    data: Data | None = None,
    *,
    directions: DirectionName | Tensor | None = None,
    reach: float | None = None,
    points: int | None = None,
    examples: int | None = EXAMPLES,
    generator: torch.Generator | None = None,
    memory: float | None = None,
    progress: bool = False,
) -> Figure:
    """Draw contours of the loss around the trained weights, in two directions.

    A menu offers the loss, the accuracy, their difference (both scaled 0 to 1), the linear model's loss, and its
    difference from the network's. Ellipses show the Gaussian at one and two standard deviations.

    Args:
        source: A posterior, or a `Landscape` with two directions, which takes no other argument.
        data: Training data: a loader, batches, or a pair (inputs, targets).
        directions: "eigen", "random" or a tensor, as in `landscape`. None for "eigen".
        reach: Distance to both sides, in units of the directions. None for that of `landscape`.
        points: Points along each direction. None for 31.
        examples: Number of examples to use, from the first on. None for all of them.
        generator: Source of random directions and of the start of the Lanczos method. None for a fixed seed.
        memory: Bytes for temporary results. None for the posterior's limit.
        progress: Whether to show a progress bar.

    Returns:
        A plotly figure.

    Raises:
        ArgumentTypeError: `source` is neither a posterior nor a `Landscape`.
        PeewitError: `data` is missing, arguments stand beside a `Landscape`, or the `Landscape` has one direction.

    Example:
        >>> losses = pw.figures.landscape(la, (x, y), points=5)
        >>> pw.figures.landscape_2d(losses).layout.meta["title"]
        'Around the trained weights'
    """
    losses = landscape_of(
        source, data, 2, directions=directions, reach=reach, points=points, examples=examples, generator=generator,
        memory=memory, progress=progress,
    )  # fmt: skip
    shown = views(losses)
    figure = graph_objects().Figure([contour(losses, view, visible=number == 0) for number, view in enumerate(shown)])
    for level, dash in ((1, "solid"), (2, "dash")):
        x, y = ring(losses, level)
        name = f"the Gaussian, {level} deviation{'s' if level > 1 else ''}"
        line = {"color": ORANGE, "dash": dash, "width": 2}
        figure.add_scatter(x=x, y=y, mode="lines", name=name, line=line, hoverinfo="name")
    mark = {"color": "white", "size": 11, "symbol": "star", "line": {"color": "black", "width": 1}}
    figure.add_scatter(x=[0], y=[0], mode="markers", name="trained weights", marker=mark, hoverinfo="name")
    always = len(figure.data) - len(shown)
    choices = [
        (view.name, [other == number for other in range(len(shown))] + [True] * always)
        for number, view in enumerate(shown)
    ]
    alt = (
        f"Contours around the trained weights, in two directions: the mean {losses.words}"
        f"{', the accuracy, how they differ,' if losses.accuracy is not None else ''} and the linear model's loss by "
        f"the menu.{' Ellipses show the fitted Gaussian at one and two standard deviations.' if x else ''}"
    )
    style.finish(figure, "Around the trained weights", alt, x=losses.axes[0], y=losses.axes[1], height=560, top=44)
    figure.update_layout(updatemenus=[style.visibility_menu(choices)])
    figure.update_xaxes(range=[float(losses.a[0]), float(losses.a[-1])])
    figure.update_yaxes(range=[float(losses.b[0]), float(losses.b[-1])])
    return figure


def ring(losses: Landscape, level: float) -> tuple[list[float], list[float]]:
    """The ellipse of the Gaussian in the plane at a number of standard deviations; empty if it has none."""
    shape = in_plane(losses)
    angle = torch.linspace(0, 2 * torch.pi, 121, dtype=torch.float64)
    around = torch.stack([angle.cos(), angle.sin()])
    values = torch.linalg.eigvalsh(shape)
    if not float(values[0]) > 1e-10 * float(values[1]):  # both directions are the same: there is no ellipse
        return [], []
    x, y = level * torch.linalg.solve_triangular(torch.linalg.cholesky(shape).mT, around, upper=True)
    return x.tolist(), y.tolist()


def in_plane(losses: Landscape) -> Tensor:
    """(2, 2): the posterior precision in the plane's coordinates, from the quadratic form at the plane's edges."""
    far, wide = float(losses.a[-1]), float(losses.b[-1])
    middle = len(losses.b) // 2, len(losses.a) // 2
    first = 2 * losses.quadratic[middle[0], -1] / far**2
    second = 2 * losses.quadratic[-1, middle[1]] / wide**2
    both = (2 * losses.quadratic[-1, -1] - first * far**2 - second * wide**2) / (2 * far * wide)
    return torch.stack([torch.stack([first, both]), torch.stack([both, second])])


def surface(losses: Landscape, values: Tensor, name: str, words: str, scene: str, visible: bool = True) -> Any:
    """A table as a surface."""
    return graph_objects().Surface(
        x=losses.a.tolist(),
        y=losses.b.tolist(),
        z=style.short_lists(values),
        name=name,
        scene=scene,
        visible=visible,
        colorscale=style.SEQUENTIAL,
        showscale=False,
        contours={"z": {"show": True, "color": "rgba(255, 255, 255, 0.35)", "width": 1}},
        hovertemplate=f"{name}<br>{words} %{{z:.4g}}<br>at (%{{x:.2f}}, %{{y:.2f}})<extra></extra>",
    )


def landscape_3d(
    source: LandscapeSource,
    data: Data | None = None,
    *,
    directions: DirectionName | Tensor | None = None,
    reach: float | None = None,
    points: int | None = None,
    examples: int | None = EXAMPLES,
    generator: torch.Generator | None = None,
    memory: float | None = None,
    progress: bool = False,
) -> Figure:
    """Draw `exp(-loss)`, likelihood times prior, as a surface beside the fitted Gaussian; readers can turn both.

    Args:
        source: A posterior, or a `Landscape` with two directions, which takes no other argument.
        data: Training data: a loader, batches, or a pair (inputs, targets).
        directions: "eigen", "random" or a tensor, as in `landscape`. None for "eigen".
        reach: Distance to both sides, in units of the directions. None for that of `landscape`.
        points: Points along each direction. None for 31.
        examples: Number of examples to use, from the first on. None for all of them.
        generator: Source of random directions and of the start of the Lanczos method. None for a fixed seed.
        memory: Bytes for temporary results. None for the posterior's limit.
        progress: Whether to show a progress bar.

    Returns:
        A plotly figure, with a menu for one surface alone and for the loss.

    Raises:
        ArgumentTypeError: `source` is neither a posterior nor a `Landscape`.
        PeewitError: `data` is missing, arguments stand beside a `Landscape`, or the `Landscape` has one direction.

    Example:
        >>> len(pw.figures.landscape_3d(la, (x, y), points=5).data)
        3
    """
    losses = landscape_of(
        source, data, 2, directions=directions, reach=reach, points=points, examples=examples, generator=generator,
        memory=memory, progress=progress,
    )  # fmt: skip
    words = "share of its peak"
    traces = [
        surface(losses, losses.density, "likelihood times prior, exp(-loss)", words, "scene"),
        surface(losses, losses.gaussian, "the fitted Gaussian", words, "scene2"),
        surface(losses, losses.loss, f"mean {losses.words}", "value", "scene", False),
    ]
    figure = graph_objects().Figure(traces)
    alt = (
        "Two surfaces over the same two directions from the trained weights: on the left likelihood times prior, "
        "exp(-loss), on the right the fitted Gaussian. The more alike they are, the better the approximation."
    )
    style.finish(figure, "Likelihood times prior, and the Gaussian", alt, height=470, top=44)
    axes = [name.partition(" (")[0] for name in losses.axes]
    scene = style.scene(axes[0], axes[1], "")
    for axis, places in (("xaxis", losses.a), ("yaxis", losses.b)):
        scene[axis] |= {"tickvals": style.inner_ticks(float(places[0]), float(places[-1])), "tickangle": 0}
    half = {"scene.domain.x": [0, 0.49], "scene2.domain.x": [0.51, 1]}
    left = {"scene.domain.x": [0, 1], "scene2.domain.x": [0.999, 1]}
    right = {"scene.domain.x": [0, 0.001], "scene2.domain.x": [0, 1]}
    entries = (
        ("exp(-loss) beside the Gaussian", [True, True, False], half),
        ("exp(-loss) alone", [True, False, False], left),
        ("the Gaussian alone", [False, True, False], right),
        ("the loss", [False, False, True], left),
    )
    buttons = [
        {"label": label, "method": "update", "args": [{"visible": visible}, layout]}
        for label, visible, layout in entries
    ]
    figure.update_layout(
        scene={**scene, "domain": {"x": [0, 0.49], "y": [0, 1]}},
        scene2={**scene, "domain": {"x": [0.51, 1], "y": [0, 1]}},
        updatemenus=[style.menu(buttons, y=1.0)],
    )
    return figure
