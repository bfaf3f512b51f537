"""Figures of curvature: matrices as coloured squares, and spectra."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..laplace import Laplace
from ..network.nests import Data
from . import style
from .curvature import (
    Approximations,
    CurvatureMatrices,
    KroneckerFactors,
    approximations,
    curvature_matrices,
    kronecker_factors,
    layer_spectra,
)
from .style import graph_objects

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

FADE = 0.03  # of the largest entry, above which the colour scale is logarithmic
BORDERS = 60  # tensors above which lines between them would hide the entries
NAMED = 16  # layers that fit into a legend
SIDE = 5  # rows and columns of a Kronecker factor whose product is readable
LEAST = 1e-4  # of the largest entry: what is smaller is drawn as zero


def colour_scale() -> list[list[Any]]:
    """A colour scale around zero on which small numbers show too."""
    stops = []
    for number in range(21):
        tone = number / 10 - 1
        value = FADE * math.sinh(tone * math.asinh(1 / FADE))
        stops.append([(min(max(value, -1.0), 1.0) + 1) / 2, blend(number / 20)])
    return stops


def blend(share: float) -> str:
    """A colour of the diverging scale."""
    stops = style.DIVERGING
    after = next(number for number, (end, _) in enumerate(stops) if end >= share) or 1
    (low, first), (high, second) = stops[after - 1], stops[after]
    weight = (share - low) / (high - low)
    sides = [[int(each[number : number + 2], 16) for number in (1, 3, 5)] for each in (first, second)]
    mixed = [round((1 - weight) * a + weight * b) for a, b in zip(*sides, strict=True)]
    return f"rgb({mixed[0]}, {mixed[1]}, {mixed[2]})"


def squares(matrix: Tensor, largest: float, name: str, bar: bool = False, **settings: Any) -> Any:
    """A matrix as coloured squares."""
    largest = largest or 1.0
    seen = torch.where(matrix.abs() < LEAST * largest, 0.0, matrix)
    return graph_objects().Heatmap(
        z=style.short_lists(seen, 3),
        name=name,
        zmin=-largest,
        zmax=largest,
        colorscale=colour_scale(),
        showscale=bar,
        colorbar=style.bar("entry") if bar else None,
        hovertemplate=f"{name}<br>row %{{y}}, column %{{x}}: %{{z:.3g}}<extra></extra>",
        **settings,
    )


def peak(*matrices: Tensor) -> float:
    """The largest absolute entry of all matrices, for a common colour scale."""
    return max(float(matrix.abs().max()) for matrix in matrices)


def square_axes(figure: Figure, rows: int = 1, columns: int = 1) -> None:
    """Axes for matrices: rows from the top, square entries, no grid."""
    for row in range(1, rows + 1):
        for column in range(1, columns + 1):
            panel = {"row": row, "col": column} if rows * columns > 1 else {}
            anchor = "" if (row, column) == (1, 1) else str((row - 1) * columns + column)
            figure.update_yaxes(
                autorange="reversed", scaleanchor=f"x{anchor}", constrain="domain", constraintoward="top",
                showgrid=False, zeroline=False, **panel,
            )  # fmt: skip
            figure.update_xaxes(constrain="domain", showgrid=False, zeroline=False, **panel)


def hessian_blocks(
    source: Laplace | CurvatureMatrices,
    data: Data | None = None,
    *,
    most: int | None = None,
    memory: float | None = None,
    progress: bool = False,
) -> Figure:
    """Draw the second derivatives of the loss between all weights, or some, with lines between tensors.

    A menu switches between the Hessian, the GGN that approximates it, and their difference.

    Args:
        source: A posterior, or the numbers of `curvature_matrices`, which take no other argument.
        data: Training data: a loader, batches, or a pair (inputs, targets).
        most: About how many weights to show, see `curvature_matrices`. None for 300.
        memory: Bytes for the vectors of one product. None for the posterior's limit.
        progress: Whether to show a progress bar.

    Returns:
        A plotly figure.

    Raises:
        ArgumentTypeError: `source` is neither a posterior nor a `CurvatureMatrices`.
        PeewitError: `data` is missing or a one-shot iterator, `most` is not a positive whole number, or arguments stand
            beside a `CurvatureMatrices`.
        MismatchError: The network has changed since the fit.

    Example:
        >>> [trace.name for trace in pw.figures.hessian_blocks(la, (x, y), most=20).data]
        ['Hessian', 'GGN', 'Hessian less GGN']
    """
    numbers = style.numbers_of(
        source, CurvatureMatrices, curvature_matrices, data=data, most=most, memory=memory, progress=progress
    )
    largest = peak(numbers.hessian, numbers.ggn)
    hessian, ggn = numbers.hessian, numbers.ggn
    shown_ones = (("Hessian", hessian), ("GGN", ggn), ("Hessian less GGN", hessian - ggn))
    figure = graph_objects().Figure()
    for number, (name, matrix) in enumerate(shown_ones):
        figure.add_trace(squares(matrix, largest, name, bar=True, visible=number == 0))
    few = len(numbers.names) <= BORDERS
    for end in numbers.ends[:-1] if few else ():
        line = {"color": "rgba(0, 0, 0, 0.35)", "width": 1}
        figure.add_shape(type="line", x0=end - 0.5, x1=end - 0.5, y0=-0.5, y1=numbers.ends[-1] - 0.5, line=line)
        figure.add_shape(type="line", y0=end - 0.5, y1=end - 0.5, x0=-0.5, x1=numbers.ends[-1] - 0.5, line=line)
    choices = [(name, [other == number for other in range(3)]) for number, (name, _) in enumerate(shown_ones)]
    lines = f", with lines between the {len(numbers.names)} tensors" if few else ""
    alt = (
        f"A square of {len(numbers.chosen)} by {len(numbers.chosen)} weights, coloured by the second derivative of the "
        f"loss in each pair{lines}. Layerwise approximations keep the blocks on the diagonal."
    )
    style.finish(figure, "Curvature between all weights", alt, height=600, top=44)
    square_axes(figure)
    starts = (0, *numbers.ends[:-1])
    middles = [(start + end - 1) / 2 for start, end in zip(starts, numbers.ends, strict=True)]
    wide = [end - start >= 0.04 * numbers.ends[-1] for start, end in zip(starts, numbers.ends, strict=True)]
    names = [name if room else "" for name, room in zip(numbers.names, wide, strict=True)]
    figure.update_xaxes(tickvals=middles, ticktext=names, tickangle=35)
    figure.update_yaxes(tickvals=middles, ticktext=names)
    figure.update_layout(updatemenus=[style.visibility_menu(choices)])
    return figure


def spectra(la: Laplace) -> Figure:
    """Draw the eigenvalues of every tensor's curvature, largest first, against the prior precision.

    The data decide in directions with eigenvalues above the prior precision; the prior decides in the others.

    Args:
        la: A posterior.

    Returns:
        A plotly figure with logarithmic axes.

    Raises:
        ArgumentTypeError: `la` is not a posterior.

    Example:
        >>> [trace.name for trace in pw.figures.spectra(la).data][:2]
        ['0.weight', '0.bias']
    """
    figure = graph_objects().Figure()
    spectra = layer_spectra(la)
    largest = max(float(spectrum.values[0]) for spectrum in spectra)
    floor = max(1e-12 * largest, 1e-300)
    for number, spectrum in enumerate(spectra):
        places = thin(len(spectrum.values))
        values = spectrum.values[places].clamp(min=floor)
        figure.add_scatter(
            x=(places + 1).tolist(),
            y=values.tolist(),
            mode="lines+markers" if len(places) <= 40 else "lines",
            name=spectrum.name,
            showlegend=len(spectra) <= NAMED,  # colours repeat if there are more
            line={"color": style.colour(number), "dash": style.dash(number // len(style.COLOURS))},
            marker={"symbol": style.symbol(number), "size": 6},
            hovertemplate=f"{spectrum.name}: {len(spectrum.values)} weights, about {spectrum.determined:.1f} "
            "determined by data<br>eigenvalue %{x}: %{y:.3g}<extra></extra>",
        )
    if len(spectra) > NAMED:
        words = f"{len(spectra)} tensors, named under the pointer"
        figure.add_scatter(x=[None], y=[None], mode="lines", line={"color": style.colour(0)}, name=words)
    priors = sorted({spectrum.prior for spectrum in spectra})
    for value in (priors[0], priors[-1]) if len(priors) > 1 else priors:
        figure.add_hline(y=value, line={"color": style.GREY, "dash": "dot", "width": 2})
    figure.add_scatter(
        x=[None], y=[None], mode="lines", line={"color": style.GREY, "dash": "dot"},
        name="prior precision" if len(priors) == 1 else "prior precision, least and largest",
    )  # fmt: skip
    total = sum(spectrum.determined for spectrum in spectra)
    alt = (
        f"Eigenvalues of the curvature of {len(spectra)} weight tensors, largest first, on logarithmic axes, with the "
        f"prior precision as a line. Above it the data decide, in about {total:.0f} directions."
    )
    x, y = "place of the eigenvalue", "eigenvalue of the curvature"
    style.finish(figure, "How much the data say, layer by layer", alt, height=500, x=x, y=y)
    low = max(min(*priors, *(float(spectrum.values[-1]) for spectrum in spectra)), 1e-8 * largest, 1e-300)
    span = [math.log10(low) - 0.3, math.log10(max(largest, priors[-1])) + 0.3]
    figure.update_yaxes(type="log", range=span, exponentformat="power", dtick=max(1, round((span[1] - span[0]) / 6)))
    figure.update_xaxes(type="log", dtick=1)
    return figure


def thin(size: int, most: int = 200) -> Tensor:
    """At most `most` places among `size`, dense at the start, for a logarithmic axis."""
    if size <= most:
        return torch.arange(size)
    places = torch.logspace(0, math.log10(size), most, dtype=torch.float64).round().long() - 1
    return torch.sort(places.clamp(max=size - 1).unique()).values


def kronecker(source: Laplace | KroneckerFactors, name: str | None = None, *, most: int | None = None) -> Figure:
    """Draw a weight's Kronecker block: each entry of the first factor times the second factor is a block of it.

    Args:
        source: A posterior with `structure="kron"`, or the numbers of `kronecker_factors`, which take no other
            argument.
        name: Name of the weight. None for the first one with two factors.
        most: Most rows and columns of each factor to show. None for 5.

    Returns:
        A plotly figure: both factors and their product, each scaled to a largest entry of 1.

    Raises:
        ArgumentTypeError: `source` is neither a posterior nor a `KroneckerFactors`.
        PeewitError: `most` is not a positive whole number, the posterior or the weight has no Kronecker factors, or
            arguments stand beside a `KroneckerFactors`.

    Example:
        >>> pw.figures.kronecker(la, "2.weight").layout.meta["title"]
        'The Kronecker product behind 2.weight'
    """
    compute = functools.partial(kronecker_factors, most=SIDE)
    numbers = style.numbers_of(source, KroneckerFactors, compute, name=name, most=most)
    titles = ("gradients", "times inputs", "makes the block")
    figure = style.panels(1, 3, subplot_titles=titles, column_widths=[0.22, 0.22, 0.56], horizontal_spacing=0.06)
    rows, columns = len(numbers.rows), len(numbers.columns)
    parts = tuple(matrix / (peak(matrix) or 1.0) for matrix in (numbers.rows, numbers.columns))
    figure.add_trace(squares(parts[0], 1.0, "gradients (scaled)"), 1, 1)
    figure.add_trace(squares(parts[1], 1.0, "inputs (scaled)"), 1, 2)
    product, labels = with_gaps(torch.kron(*parts), rows, columns)
    block = squares(product, 1.0, "block (scaled)")
    block.customdata = labels
    block.hovertemplate = "%{customdata}<br>%{z:.3g}<extra></extra>"
    figure.add_trace(block, 1, 3)
    cut = "" if (rows, columns) == numbers.shape else f", its first {rows} outputs and {columns} inputs"
    alt = (
        f"Two small squares and a large one for the weight {numbers.name}{cut}: the matrix of output gradients, the "
        "matrix of inputs, and their Kronecker product, a copy of the second for every entry of the first."
    )
    style.finish(figure, f"The Kronecker product behind {numbers.name}", alt, height=380, top=16)
    square_axes(figure, 1, 3)
    figure.update_xaxes(showticklabels=False)
    figure.update_yaxes(showticklabels=False)
    figure.update_annotations(font={"size": 12})
    return figure


def with_gaps(product: Tensor, rows: int, columns: int) -> tuple[Tensor, list[list[str]]]:
    """The product with an empty line between blocks, and a text for each entry."""
    size = rows * columns + rows - 1
    spaced = torch.full((size, size), math.nan, dtype=product.dtype)
    labels = [["" for _ in range(size)] for _ in range(size)]
    for i in range(rows * columns):
        for j in range(rows * columns):
            block, inner = (i // columns, j // columns), (i % columns, j % columns)
            at = i + block[0], j + block[1]
            spaced[at] = product[i, j]
            labels[at[0]][at[1]] = f"gradients {block} × inputs {inner}"
    return spaced, labels


def block_approximations(
    source: Laplace | Approximations,
    data: Data | None = None,
    name: str | None = None,
    *,
    memory: float | None = None,
    progress: bool = False,
) -> Figure:
    """Draw the exact curvature of one weight beside its diagonal, KFAC and EKFAC versions, with their errors.

    Args:
        source: A posterior over whole tensors, or the numbers of `approximations`, which take no other argument.
        data: Training data: a loader, batches, or a pair (inputs, targets).
        name: Name of the weight, see `approximations`. None for a small matrix.
        memory: Bytes for temporary results. None for a limit that fits the device.
        progress: Whether to show a progress bar.

    Returns:
        A plotly figure with four panels.

    Raises:
        ArgumentTypeError: `source` is neither a posterior nor an `Approximations`.
        PeewitError: `data` is missing, the posterior is over single elements, the weight is unknown or too large, or
            arguments stand beside an `Approximations`.
        MismatchError: The network has changed since the fit.

    Example:
        >>> pw.figures.block_approximations(la, (x, y), "0.weight").layout.meta["title"]
        'What is kept of 0.weight'
    """
    numbers = style.numbers_of(
        source, Approximations, approximations, data=data, name=name, memory=memory, progress=progress
    )
    titles = [f"exact, {len(numbers.true)} weights"]
    titles += [f"{version.name}: {100 * version.error:.0f} % off" for version in numbers.versions]
    figure = style.panels(2, 2, subplot_titles=titles, horizontal_spacing=0.06, vertical_spacing=0.1)
    matrices = [numbers.true, *(version.matrix for version in numbers.versions)]
    largest = peak(*matrices)
    for number, (title, matrix) in enumerate(zip(titles, matrices, strict=True)):
        trace = squares(matrix, largest, title.partition(":")[0].partition(",")[0], bar=number == 1)
        figure.add_trace(trace, number // 2 + 1, number % 2 + 1)
    errors = style.join(
        [
            f"{version.name} {100 * version.error:.0f} % ({100 * version.inverse_error:.0f} %)"
            for version in numbers.versions
        ]
    )
    alt = (
        f"Four squares: the exact curvature of the weight {numbers.weight}, and its diagonal, KFAC and EKFAC versions. "
        f"Relative errors, those of the posterior covariance in brackets: {errors}."
    )
    style.finish(figure, f"What is kept of {numbers.weight}", alt, height=640, top=16)
    square_axes(figure, 2, 2)
    figure.update_xaxes(showticklabels=False)
    figure.update_yaxes(showticklabels=False)
    figure.update_annotations(font={"size": 13})
    return figure
