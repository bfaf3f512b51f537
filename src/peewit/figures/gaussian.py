"""A Gaussian over two weights, with sliders for its covariance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..messages.errors import PeewitError
from . import style
from .style import BLUE, GREEN, ORANGE, graph_objects

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

DEVIATIONS = (0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0)
CORRELATIONS = (-0.95, -0.8, -0.6, -0.4, -0.2, 0.0, 0.2, 0.4, 0.6, 0.8, 0.95)
GRID = 61
REACH = 3.0  # deviations that are drawn


def grid() -> Tensor:
    """(GRID,): coordinates in standard deviations."""
    return torch.linspace(-REACH, REACH, GRID, dtype=torch.float64)


def relative_density(correlation: float) -> Tensor:
    """(GRID, GRID): the density over its peak, rows along the second coordinate, both in standard deviations.

    It depends only on the correlation; variances stretch the axes. So three sliders do not need a table per setting.
    """
    u = grid()
    form = u[None, :].square() - 2 * correlation * u[None, :] * u[:, None] + u[:, None].square()
    return (-0.5 * form / (1 - correlation**2)).exp()


def check_rising(values: Sequence[float], what: str, low: float, high: float) -> tuple[float, ...]:
    """Check that numbers rise and lie in a range."""
    numbers = tuple(float(value) for value in values)
    if not numbers or any(not low < value < high for value in numbers) or list(numbers) != sorted(numbers):
        raise PeewitError(f"{what}={values!r} was given; expected rising numbers between {low:g} and {high:g}.")
    return numbers


def nearest_place(values: Sequence[float], wanted: float) -> int:
    """The place of the value that is nearest to `wanted`, where a slider starts."""
    return min(range(len(values)), key=lambda place: abs(values[place] - wanted))


def gaussian_sliders(deviations: Sequence[float] = DEVIATIONS, correlations: Sequence[float] = CORRELATIONS) -> Figure:
    """Draw a Gaussian over two weights, with sliders for both variances and the correlation.

    Args:
        deviations: Standard deviations that the sliders offer for each weight: rising positive numbers below 1e9. The
            sliders show their squares.
        correlations: Correlations that the slider offers: rising numbers between -1 and 1.

    Returns:
        A plotly figure.

    Raises:
        PeewitError: Either is empty, does not rise, or leaves its range.

    Example:
        >>> len(pw.figures.gaussian_sliders().layout.sliders)
        3
    """
    sizes = check_rising(deviations, "deviations", 0.0, 1e9)
    bonds = check_rising(correlations, "correlations", -1.0, 1.0)
    start, middle = nearest_place(sizes, 1.0), nearest_place(bonds, 0.6)
    go = graph_objects()
    u = grid()
    bell = (-0.5 * u.square()).exp()
    figure = style.panels(
        2, 2, column_widths=[0.8, 0.2], row_heights=[0.2, 0.8], shared_xaxes=True, shared_yaxes=True,
        horizontal_spacing=0.02, vertical_spacing=0.02,
    )  # fmt: skip
    places = style.short_lists(u * sizes[start])
    contour = go.Contour(
        x=places,
        y=places,
        z=style.short_lists(relative_density(bonds[middle]), 3),
        colorscale=[[0.0, style.fade(GREEN, 0.0)], [1.0, GREEN]],  # transparent at zero
        zmin=0.0,
        zmax=1.0,
        contours={"start": 0.1, "end": 0.9, "size": 0.1},
        line={"width": 1, "color": style.fade(GREEN, 0.7)},
        showscale=False,
        hovertemplate="weights (%{x:.2f}, %{y:.2f})<br>density %{z:.2f} of its peak<extra></extra>",
    )
    line = {"mode": "lines", "fill": "tozeroy", "showlegend": False}
    hover = "density %{y:.2f} of its peak at %{x:.2f}<extra>weight 1 alone</extra>"
    first = go.Scatter(x=places, y=bell.tolist(), line={"color": BLUE}, hovertemplate=hover, **line)
    hover = "density %{x:.2f} of its peak at %{y:.2f}<extra>weight 2 alone</extra>"
    line["fill"] = "tozerox"
    second = go.Scatter(x=bell.tolist(), y=places, line={"color": ORANGE}, hovertemplate=hover, **line)
    for trace, row, column in ((contour, 2, 1), (first, 1, 1), (second, 2, 2)):
        figure.add_trace(trace, row, column)
    alt = (
        "Contours of a Gaussian over two weights, with the density of each weight alone above and beside it. Sliders "
        "change the two variances and the correlation: the ellipse grows, shrinks and turns."
    )
    style.finish(figure, "A Gaussian over two weights", alt, height=710, bottom=245)
    edge = REACH * sizes[-1]
    figure.update_xaxes(range=[-edge, edge], title_text="weight 1", row=2, col=1)
    figure.update_yaxes(range=[-edge, edge], title_text="weight 2", row=2, col=1)
    figure.update_yaxes(visible=False, row=1, col=1)
    figure.update_xaxes(visible=False, row=2, col=2)
    figure.update_layout(sliders=sliders(sizes, bonds, start, middle))
    return figure


def sliders(sizes: Sequence[float], bonds: Sequence[float], start: int, middle: int) -> list[dict[str, Any]]:
    """Three sliders: variances stretch the axes of the contours and of one marginal, correlation turns the contours."""
    u = grid()
    across = [step(f"{size**2:.3g}", {"x": [style.short_lists(u * size)] * 2}, [0, 1]) for size in sizes]
    along = [step(f"{size**2:.3g}", {"y": [style.short_lists(u * size)] * 2}, [0, 2]) for size in sizes]
    turned = [step(f"{bond:g}", {"z": [style.short_lists(relative_density(bond), 3)]}, [0]) for bond in bonds]
    return [
        style.slider("variance of weight 1", across, start, y=0.0, pad=50),
        style.slider("variance of weight 2", along, start, y=0.0, pad=130),
        style.slider("correlation", turned, middle, y=0.0, pad=210),
    ]


def step(label: str, values: dict[str, Any], traces: list[int]) -> dict[str, Any]:
    """One place of a slider."""
    return {"label": label, "method": "restyle", "args": [values, traces]}
