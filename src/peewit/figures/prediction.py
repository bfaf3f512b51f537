"""Figures of predictions: bands over one input, maps over two."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..messages.errors import PeewitError
from ..messages.names import check_name
from ..network.batches import Batches
from ..network.isolation import entry_point
from ..network.nests import Data
from ..predictions.binary import Binary
from ..predictions.families import family_of
from ..predictions.labels import Labels
from ..predictions.numbers import Numbers
from ..predictions.prediction import check_level, normal_quantile
from ..runtime.progress import Progress
from . import style
from .sampling import check_output
from .style import BLUE, GREY, ORANGE, graph_objects

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..laplace import Laplace

KEPT = 500  # data points that are drawn
NAMED = 20  # classes that fit into a legend


@dataclass(frozen=True, eq=False, kw_only=True)
class Band:
    """Mean and half-widths of both bands over inputs (B,): all (B,), float64, on the CPU."""

    x: Tensor
    mean: Tensor
    epistemic: Tensor  # from not knowing the weights alone
    total: Tensor  # noise included
    level: float
    points: tuple[Tensor, Tensor]  # data (n,), (n,)


@dataclass(frozen=True, eq=False, kw_only=True)
class DataExtent:
    """Inputs (n, features) and targets (n, ...) of the first examples, the range of all inputs, and one raw input."""

    x: Tensor
    y: Tensor
    low: Tensor  # (features,)
    high: Tensor
    like: Tensor  # (1, ...)

    def ends(self, extend: float) -> tuple[Tensor, Tensor]:
        """(features,) twice: the range, extended by a share of it on both sides, or by 1 if it is a single value."""
        span = self.high - self.low
        more = torch.where(span > 0, extend * span, 1.0)
        return self.low - more, self.high + more

    def to_inputs(self, grid: Tensor) -> Tensor:
        """Points (B, features) shaped and typed like the data's inputs."""
        return grid.to(self.like).reshape(len(grid), *self.like.shape[1:])


def check_grid(points: int, extend: float) -> None:
    """Check the number of points and the extent of a grid."""
    style.check_points(points)
    if isinstance(extend, bool) or not isinstance(extend, int | float) or not 0 <= extend < math.inf:
        raise PeewitError(f"extend={extend!r} was given; expected a share of the data's range, from 0 on.")


def extent_of(data: Data, model: nn.Module, features: int, progress: bool) -> DataExtent:
    """Pass over the data once; refuse inputs with another number of features."""
    points: list[tuple[Tensor, Tensor]] = []
    ends: list[Tensor] = []
    like = None
    batches = Batches(data, model)
    # A shuffled loader draws from the global generator.
    with torch.random.fork_rng(devices=[]), closing(Progress(progress)) as bars:
        for inputs, y in bars.track(batches, len(batches), "data"):
            if not isinstance(inputs, Tensor) or inputs[0].numel() != features:
                description = (
                    f"shape {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else f"a {type(inputs).__name__}"
                )
                raise PeewitError(
                    f"The inputs are {description}; this figure expects {features} per example: (N, {features})."
                )
            flat = inputs.detach().reshape(len(inputs), features).double().cpu()
            ends += [flat.amin(0), flat.amax(0)]
            if sum(len(x) for x, _ in points) < KEPT:
                points.append((flat, y.detach().cpu()))
            like = inputs[:1].detach() if like is None else like
    assert like is not None
    x, y = (torch.cat(list(each))[:KEPT] for each in zip(*points, strict=True))
    return DataExtent(x=x, y=y, low=torch.stack(ends).amin(0), high=torch.stack(ends).amax(0), like=like)


@entry_point
def band(
    la: Laplace,
    data: Data,
    *,
    extend: float = 0.5,
    points: int = 201,
    level: float = 0.9,
    output: int = 0,
    memory: float | None = None,
    progress: bool = False,
) -> Band:
    """Predictions over the range of the data, and beyond it by a share `extend` of that range on both sides."""
    if family_of(la.likelihood).classes is not None:
        raise PeewitError("The posterior predicts classes, which have no bands; use decision_map.")
    check_level(level)
    check_grid(points, extend)
    extent = extent_of(data, la.model, 1, progress)
    low, high = (float(end) for end in extent.ends(extend))
    grid = torch.linspace(low, high, points, dtype=torch.float64)
    predicted = la.predict(extent.to_inputs(grid[:, None]), memory=memory)
    assert isinstance(predicted, Numbers)
    check_output(output, predicted.mean.reshape(points, -1).shape[1])
    mean, epistemic, variance = (
        value.detach().double().cpu().reshape(points, -1)[:, output]
        for value in (predicted.mean, predicted.epistemic, predicted.variance)
    )
    width = normal_quantile(level)
    targets = extent.y.double().reshape(len(extent.y), -1)
    return Band(
        x=grid,
        mean=mean,
        epistemic=width * epistemic.sqrt(),
        total=width * variance.sqrt(),
        level=level,
        points=(extent.x[:, 0], targets[:, min(output, targets.shape[1] - 1)]),
    )


def regression_band(
    source: Laplace | Band,
    data: Data | None = None,
    *,
    extend: float | None = None,
    points: int | None = None,
    level: float | None = None,
    output: int | None = None,
    memory: float | None = None,
    progress: bool = False,
) -> Figure:
    """Draw predictions over one input: the mean, its uncertainty, and the noise on top, with the data.

    Args:
        source: A posterior of a network with one input and numbers as outputs.
        data: Training data: a loader, batches, or a pair (inputs (N, 1), targets). The first 500 points are drawn.
        extend: Share of the data's range to add on both sides. None for 0.5.
        points: Points of the curve, at least 3. None for 201.
        level: Probability that each band holds, between 0 and 1. None for 0.9.
        output: Number of the output to draw, from 0. None for 0.
        memory: Bytes for temporary results. None for the posterior's limit.
        progress: Whether to show a progress bar over the data.

    Returns:
        A plotly figure with two bands: the inner one for the mean, the outer one for new observations.

    Raises:
        ArgumentTypeError: `source` is not a posterior.
        PeewitError: The likelihood is over classes, the inputs are not one number each, an argument is none of the
            above, or `data` is missing.

    Example:
        >>> [trace.name for trace in pw.figures.regression_band(line, (t, z), level=0.9).data]
        ['90 % of new observations', '90 % for the mean itself', 'mean', 'data']
    """
    numbers = style.numbers_of(
        source, Band, band, data=data, extend=extend, points=points, level=level, output=output, memory=memory,
        progress=progress,
    )  # fmt: skip
    x = numbers.x.tolist()
    around = x + x[::-1]
    figure = graph_objects().Figure()
    percent = f"{100 * numbers.level:g} %"
    for width, name, colour, opacity in (
        (numbers.total, f"{percent} of new observations", GREY, 0.3),
        (numbers.epistemic, f"{percent} for the mean itself", BLUE, 0.4),
    ):
        edge = (numbers.mean + width).tolist() + (numbers.mean - width).flip(0).tolist()
        figure.add_scatter(
            x=around, y=edge, fill="toself", fillcolor=style.fade(colour, opacity), name=name, mode="lines",
            line={"width": 0}, hoverinfo="skip",
        )  # fmt: skip
    hover = "at %{x:.3g}: %{y:.3g}<br>± %{customdata[0]:.3g} for the mean, ± %{customdata[1]:.3g} for new observations"
    figure.add_scatter(
        x=x, y=numbers.mean.tolist(), mode="lines", name="mean", line={"color": BLUE, "width": 3},
        customdata=torch.stack([numbers.epistemic, numbers.total], 1).tolist(),
        hovertemplate=hover + "<extra></extra>",
    )  # fmt: skip
    mark = {"color": ORANGE, "size": 6, "opacity": 0.8}
    coordinates = {"x": numbers.points[0].tolist(), "y": numbers.points[1].tolist()}
    hover = "data: (%{x:.3g}, %{y:.3g})<extra></extra>"
    figure.add_scatter(**coordinates, mode="markers", name="data", marker=mark, hovertemplate=hover)
    alt = (
        "Predictions over one input, with the data. The inner band is the uncertainty of the mean, which grows away "
        f"from the data; the outer band adds the noise and should hold {percent} of new observations."
    )
    return style.finish(figure, "What is known, and what is noise", alt, x="input", y="output")


@dataclass(frozen=True, eq=False, kw_only=True)
class Map:
    """Tables (len(b), len(a)) over a grid of two inputs, float64, on the CPU."""

    a: Tensor
    b: Tensor
    layers: dict[str, Tensor]  # by name: probability, entropy, ...
    classes: int
    points: tuple[Tensor, Tensor]  # data (n, 2), (n,)


@entry_point
def decisions(
    la: Laplace,
    data: Data,
    *,
    extend: float = 0.5,
    points: int = 61,
    memory: float | None = None,
    progress: bool = False,
) -> Map:
    """Class probabilities and uncertainties over the range of the data, and beyond it on all sides."""
    if family_of(la.likelihood).classes is None:
        raise PeewitError(f"The likelihood is {type(la.likelihood).__name__}; expected classification or binary.")
    check_grid(points, extend)
    extent = extent_of(data, la.model, 2, progress)
    low, high = extent.ends(extend)
    a, b = (torch.linspace(float(low[i]), float(high[i]), points, dtype=torch.float64) for i in (0, 1))
    predicted = la.predict(extent.to_inputs(torch.cartesian_prod(b, a).flip(1)), memory=memory)
    assert isinstance(predicted, Labels)
    probs, entropy, epistemic = (
        value.detach().double().cpu() for value in (predicted.probs, predicted.entropy, predicted.epistemic)
    )
    plain = predicted.output_mean.detach().double().cpu().reshape(len(probs), -1)
    probs = probs.reshape(len(probs), -1)
    if isinstance(predicted, Binary):
        if probs.shape[1] != 1:
            raise PeewitError(f"The network has {probs.shape[1]} labels; this figure expects one, or classes.")
        probs, plain = torch.cat([1 - probs, probs], 1), torch.cat([torch.zeros_like(plain), plain], 1)
    table = {
        "confidence": probs.amax(1),
        "confidence of the plain network": plain.softmax(1).amax(1),
        "entropy": entropy.reshape(-1),
        "what the weights leave open": epistemic.reshape(-1),
    }
    table |= {f"probability of class {number}": column for number, column in enumerate(probs.unbind(1))}
    shape = (points, points)
    layers = {name: values.reshape(shape) for name, values in table.items()}
    labels = extent.y.reshape(len(extent.y), -1)
    labels = labels.argmax(1) if labels.shape[1] > 1 else labels[:, 0]
    return Map(a=a, b=b, layers=layers, classes=probs.shape[1], points=(extent.x, labels.round().long()))


def decision_map(
    source: Laplace | Map,
    data: Data | None = None,
    *,
    extend: float | None = None,
    points: int | None = None,
    classes: Sequence[str] | None = None,
    layer: str = "confidence",
    memory: float | None = None,
    progress: bool = False,
) -> Figure:
    """Draw a map of confidence, uncertainty and class probabilities over two inputs, with the data.

    A menu offers the confidence of the prediction and of the plain network, the entropy, its part from not knowing the
    weights (both in nats), and the probability of each class.

    Args:
        source: A posterior of a classifier with two inputs: classes, or one yes-or-no label.
        data: Training data: a loader, batches, or a pair (inputs (N, 2), targets). The first 500 points are drawn.
        extend: Share of the data's range to add on all sides. None for 0.5.
        points: Points along each side of the map, at least 3. None for 61.
        classes: Names of the classes; None for "class 0", "class 1", ...
        layer: What of the menu is shown first: "confidence", "confidence of the plain network", "entropy", "what the
            weights leave open", or "probability of class 0", ...
        memory: Bytes for temporary results. None for the posterior's limit.
        progress: Whether to show a progress bar over the data.

    Returns:
        A plotly figure.

    Raises:
        ArgumentTypeError: `source` is not a posterior.
        PeewitError: The likelihood is not over classes, there are several yes-or-no labels, the inputs are not two
            numbers each, `classes` has another number of names, another argument is none of the above, or `data` is
            missing.

    Example:
        >>> figure = pw.figures.decision_map(la, (x, y), points=5, classes=("a", "b", "c"))
        >>> figure.data[-1].name
        'c'
    """
    numbers = style.numbers_of(
        source, Map, decisions, data=data, extend=extend, points=points, memory=memory, progress=progress
    )
    names = [str(each) for each in classes] if classes else [f"class {number}" for number in range(numbers.classes)]
    if len(names) != numbers.classes:
        raise PeewitError(f"classes has {len(names)} names, and the network {numbers.classes} classes.")
    check_name(layer, tuple(numbers.layers), "layer")
    first = list(numbers.layers).index(layer)
    class_titles = {f"probability of class {number}": f"probability of {name}" for number, name in enumerate(names)}
    titles = [style.literal(class_titles.get(name, name)) for name in numbers.layers]
    figure = graph_objects().Figure()
    for number, (key, values) in enumerate(numbers.layers.items()):
        name = titles[number]
        shares = key in class_titles or key.startswith("confidence")
        low = 1 / numbers.classes if shares and key not in class_titles else 0.0
        high = 1.0 if shares else max(float(values.max()), 1e-12)
        figure.add_heatmap(
            x=numbers.a.tolist(), y=numbers.b.tolist(), z=style.short_lists(values, 4),
            zmin=low, zmax=high, name=name, visible=number == first, zsmooth="best", colorscale=style.SEQUENTIAL,
            reversescale=not shares, colorbar=style.bar("" if shares else "nats"),
            hovertemplate=f"{name}: %{{z:.3f}}<br>at (%{{x:.3g}}, %{{y:.3g}})<extra></extra>",
        )  # fmt: skip
    for number, name in enumerate(names):
        members = numbers.points[0][numbers.points[1] == number]
        mark = {"color": style.colour(number), "symbol": style.symbol(number), "size": 8}
        mark["line"] = {"color": "white", "width": 1}
        figure.add_scatter(
            x=members[:, 0].tolist(),
            y=members[:, 1].tolist(),
            mode="markers",
            name=style.literal(name),
            marker=mark,
            hoverinfo="name",
            showlegend=len(names) <= NAMED,
        )
    number = len(numbers.layers)
    choices = [
        (name, [other == layer for other in range(number)] + [True] * numbers.classes)
        for layer, name in enumerate(titles)
    ]
    aims = {
        "confidence": "Confidence should be high near the data, and low between the classes and far from all data. ",
        "what the weights leave open": "It should be low near the data, and high far from them. ",
    }
    alt = (
        f"A map over two inputs, coloured by the {layer.replace('what', 'doubt that')}, with the data as points. "
        f"{aims.get(layer, '')}A menu shows the confidence, the plain network's, and the parts of the uncertainty."
    )
    style.finish(figure, "How sure, and where", alt, x="input 1", y="input 2", height=560, top=44)
    figure.update_layout(updatemenus=[style.visibility_menu(choices) | {"active": first}])
    return figure
