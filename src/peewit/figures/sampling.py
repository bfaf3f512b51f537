"""Monte Carlo integration: weights drawn from the posterior, their predictions, and the running average."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor

from ..laplace import Laplace
from ..messages.arguments import check_samples
from ..messages.errors import PeewitError
from ..messages.names import check_name
from ..network.arrays import ready
from ..network.isolation import entry_point
from ..network.nests import Inputs, count
from ..posterior.network import network_of
from ..predictions import samples as engine
from ..predictions.families import family_of
from ..predictions.labels import Labels
from ..predictions.numbers import Numbers
from ..predictions.options import PredictMethod
from ..runtime.progress import Progress
from ..runtime.random import generator_of
from . import style
from .style import BLUE, GREY, ORANGE, graph_objects

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

NAMED = 20  # classes whose names fit along an axis


@dataclass(frozen=True, eq=False, kw_only=True)
class PredictionDraws:
    """Predictions at S draws of the weights: probabilities for classes, means for numbers.

    `pw.figures.prediction_draws` returns it. B counts inputs, and positions like inputs; tensors are in float64 on the
    CPU.

    Attributes:
        x: The inputs (B,); None if an input is not one number.
        weights: Drawn values (S, 2) of the two least certain weights.
        names: Names of these two weights, such as "0.weight[3, 1]".
        predictions: Predictions (S, B, C), one for each draw.
        exact: Prediction (B, C) of the linear model over all weights: for numbers in closed form, for classes by
            `link="mc"`.
        classes: Whether predictions are probabilities.
        method: "linearised" for the linear model, "sampled" for the network itself.
        averages: Averages (S, B, C) of the first prediction, of the first two, and so on.

    Example:
        >>> draws = pw.figures.prediction_draws(la, x[:4], samples=16)
        >>> draws.predictions.shape, draws.exact.shape, draws.weights.shape
        (torch.Size([16, 4, 3]), torch.Size([4, 3]), torch.Size([16, 2]))
    """

    x: Tensor | None
    weights: Tensor
    names: tuple[str, str]
    predictions: Tensor
    exact: Tensor
    classes: bool
    method: PredictMethod

    @property
    def averages(self) -> Tensor:
        """Averages (S, B, C) of the first draw, of the first two, and so on."""
        numbers = torch.arange(1, len(self.predictions) + 1, dtype=torch.float64)
        return self.predictions.cumsum(0) / numbers[:, None, None]


@entry_point
def prediction_draws(
    la: Laplace,
    x: Inputs,
    samples: int = 64,
    *,
    method: PredictMethod = "linearised",
    generator: torch.Generator | None = None,
    memory: float | None = None,
    progress: bool = False,
) -> PredictionDraws:
    """Predict at several draws of the weights from the posterior.

    Args:
        la: A posterior with classes, yes-or-no labels or Gaussian regression.
        x: Inputs (B, ...), as in `la.predictor`.
        samples: Number S of draws.
        method: "linearised" for outputs of the linear model, "sampled" for outputs of the network itself.
        generator: Source of the draws. None for a fixed seed.
        memory: Bytes for temporary results. None for the posterior's limit.
        progress: Whether to show a progress bar over the draws of "sampled".

    Returns:
        The `PredictionDraws`, with predictions (S, B, C).

    Raises:
        ArgumentTypeError: `la` is not a posterior, or `x` holds no tensors.
        PeewitError: `method` is unknown, `samples` is not a positive whole number, there are no inputs, or the
            likelihood is another one.
        MismatchError: The network has changed since the fit.

    Example:
        >>> pw.figures.prediction_draws(line, t, samples=8, method="sampled").averages.shape
        torch.Size([8, 40, 1])
    """
    style.expect_posterior(la)
    check_name(method, get_args(PredictMethod), "method")
    x = inputs_of(la, x)
    family = family_of(la.likelihood)
    if family.mean is None:
        raise PeewitError(
            f"The likelihood is {type(la.likelihood).__name__}; expected classification, binary or regression."
        )
    deviations = la.state.deviations(check_samples(samples), generator_of(generator))
    network = network_of(la.state, memory)
    if method == "linearised":
        outputs = engine.linearised_samples(network, x, deviations)
    else:
        with closing(Progress(progress)) as bars:
            steps = bars.track(deviations.split(1), len(deviations), "predictions at drawn weights")
            outputs = engine.network_samples(network, x, steps)
    classes = family.classes is not None
    form = network.form(outputs[0])
    flat = form.flatten(outputs.double().cpu()).flatten(1, 2)  # positions beside examples
    predicted = la.predict(x, link="mc" if classes else None, memory=memory)
    assert isinstance(predicted, Labels | Numbers)
    closed = form.flatten(
        (predicted.probs if isinstance(predicted, Labels) else predicted.mean).detach().double().cpu()
    ).flatten(0, 1)
    places, names = least_certain(la)
    weights = (la.state.weights + deviations)[:, places].double().cpu()
    return PredictionDraws(
        x=line_of(x),
        weights=weights,
        names=names,
        predictions=family.mean(flat),
        exact=closed,
        classes=classes,
        method=method,
    )


def least_certain(la: Laplace) -> tuple[list[int], tuple[str, str]]:
    """Places and names of the two weights with the largest posterior variance, the first of equal ones."""
    order = la.precision.variance().detach().argsort(descending=True, stable=True)
    places = [int(order[0]), int(order[min(1, la.D - 1)])]
    return places, (name_of(la, places[0]), name_of(la, places[1]))


def name_of(la: Laplace, number: int) -> str:
    """The name of a weight by its number, such as '0.weight[3, 1]'."""
    whole = number if la.space.mask is None else int(la.space.mask.nonzero()[number])
    for (name, elements), shape in zip(la.space.slices().items(), la.space.shapes, strict=True):
        if elements.start <= whole < elements.stop:
            inside = torch.unravel_index(torch.tensor(whole - elements.start), shape) if len(shape) else ()
            return f"{name}[{', '.join(str(int(axis)) for axis in inside)}]"
    raise IndexError(f"Weight {number} is none of {la.D}.")


def inputs_of(la: Laplace, x: Inputs | None) -> Inputs:
    """Inputs as tensors that the network takes."""
    inputs: Inputs | None = None if x is None else ready(la.model, la._in_order(x))
    if inputs is None or not count(inputs):
        raise PeewitError("x holds no inputs; give the inputs to predict at.")
    return inputs


def line_of(x: Inputs) -> Tensor | None:
    """(B,): the inputs if each is one number, else None."""
    if not isinstance(x, Tensor) or x.dim() == 0 or x[0].numel() != 1:
        return None
    return x.detach().reshape(-1).double().cpu()


def counts(samples: int) -> list[int]:
    """1, 2, 4, ... up to all samples."""
    tried = [1]
    while tried[-1] * 2 < samples:
        tried.append(tried[-1] * 2)
    return tried if tried[-1] == samples else [*tried, samples]


def monte_carlo(
    source: Laplace | PredictionDraws,
    x: Inputs | None = None,
    samples: int | None = None,
    *,
    method: PredictMethod | None = None,
    output: int = 0,
    classes: Sequence[str] | None = None,
    generator: torch.Generator | None = None,
    memory: float | None = None,
    progress: bool = False,
) -> Figure:
    """Draw weight samples, their predictions and the average prediction, with a slider for the number of samples.

    In regression with one number as input it shows curves over the inputs; otherwise the prediction at the first input.

    Args:
        source: A posterior, or the numbers of `prediction_draws`, which take none of its arguments.
        x: Inputs (B, ...), as in `la.predictor`.
        samples: Number of draws. None for 64.
        method: "linearised" or "sampled", see `prediction_draws`. None for "linearised".
        output: Number of the output whose curves are drawn, from 0.
        classes: Names of the classes; None for "class 0", "class 1", ... A yes-or-no label takes two.
        generator: Source of the draws. None for a fixed seed.
        memory: Bytes for temporary results. None for the posterior's limit.
        progress: Whether to show a progress bar over the draws of "sampled".

    Returns:
        A plotly figure with two panels: the two least certain weights, and the predictions.

    Raises:
        ArgumentTypeError: `source` is neither a posterior nor a `PredictionDraws`.
        PeewitError: There are no inputs, the network has no such `output`, `classes` has another number of names,
            arguments stand beside a `PredictionDraws`, or `prediction_draws` refuses an argument.

    Example:
        >>> pw.figures.monte_carlo(line, t, samples=8).layout.meta["title"]
        'Averaging over weights'
    """
    if isinstance(source, Laplace):
        x = inputs_of(source, x)
    draws = style.numbers_of(
        source, PredictionDraws, prediction_draws, x=x, samples=samples, method=method, generator=generator,
        memory=memory, progress=progress,
    )  # fmt: skip
    check_output(output, draws.predictions.shape[-1])
    curves = draws.x is not None and not draws.classes
    figure = style.panels(
        2, 1, row_heights=[0.34, 0.66], vertical_spacing=0.16,
        subplot_titles=("weights drawn from the posterior", "what they predict"),
    )  # fmt: skip
    steps = []
    tried = counts(len(draws.predictions))
    start = min(3, len(tried) - 1)
    for number in tried:
        steps.append({"label": str(number), "method": "restyle", "args": [content(draws, number, curves, output)]})
    for trace, row in traces(draws, tried[start], curves, output, classes):
        figure.add_trace(trace, row, 1)
    what = "curves of sampled networks over the inputs" if curves else "class probabilities at one input by each sample"
    if not draws.classes and not curves:
        what = "predictions at one input by each sample"
    shape = {
        "closed form": "the closed form",
        "all weights": "the average over all weights",
        "the linear model": "what the linear model predicts",
    }[whole_name(draws, curves)]
    alt = f"Above, weights drawn from the posterior, as points; below, {what}, their average, and {shape}."
    if draws.method == "linearised":
        alt += " A slider adds samples: the average comes closer to it."
    else:
        alt += " A slider adds samples: the average settles, for nonlinear networks at another value."
    style.finish(figure, "Averaging over weights", alt, height=720, bottom=90, top=16)
    figure.update_xaxes(title_text=draws.names[0], row=1, col=1, range=room(draws.weights[:, 0]))
    figure.update_yaxes(title_text=draws.names[1], row=1, col=1, range=room(draws.weights[:, 1]))
    figure.update_annotations(font={"size": 13})
    label(figure, draws, curves, output, classes)
    figure.update_layout(sliders=[style.slider("samples", steps, start, pad=60)])
    return figure


def whole_name(draws: PredictionDraws, curves: bool) -> str:
    """The name of the reference that the average is compared with."""
    if draws.method != "linearised":
        return "the linear model"
    return "closed form" if curves else "all weights"


def check_output(output: int, outputs: int) -> None:
    """Refuse a number that is not one of the outputs."""
    if isinstance(output, bool) or not isinstance(output, int) or not 0 <= output < outputs:
        raise PeewitError(f"output={output!r} was given; expected a whole number from 0 to {outputs - 1}.")


def label(figure: Figure, draws: PredictionDraws, curves: bool, output: int, classes: Sequence[str] | None) -> None:
    """Set the axes of the lower panel, the same for any number of samples."""
    if curves:
        values = torch.cat([draws.predictions[..., output].flatten(), draws.exact[:, output]])
        figure.update_xaxes(title_text="input", row=2, col=1)
        figure.update_yaxes(title_text="prediction", range=room(values), row=2, col=1)
    elif draws.classes:
        names = class_names(draws, classes)
        step = -(-len(names) // NAMED)
        places = list(range(0, len(names), step))
        texts = [style.literal(names[number]) for number in places]
        figure.update_xaxes(tickvals=places, ticktext=texts, row=2, col=1, range=[-0.6, len(names) - 0.4])
        figure.update_yaxes(title_text="probability", range=[-0.03, 1.03], row=2, col=1)
    else:
        figure.update_xaxes(title_text="output", dtick=1, row=2, col=1)
        figure.update_yaxes(title_text="prediction", range=room(draws.predictions[:, 0]), row=2, col=1)


def class_names(draws: PredictionDraws, classes: Sequence[str] | None) -> list[str]:
    """The names of the classes."""
    number = draws.predictions.shape[-1]
    if number == 1:  # yes or no, with the probability of yes
        return [str(classes[1]) if classes is not None and len(classes) == 2 else "class 1"]
    if classes is not None and len(classes) != number:
        raise PeewitError(f"classes has {len(classes)} names, and the network {number} outputs.")
    return [str(each) for each in classes] if classes else [f"class {label}" for label in range(number)]


def room(values: Tensor) -> list[float]:
    """A range of values with some space at both ends."""
    low, high = float(values.min()), float(values.max())
    more = 0.06 * (high - low) or 1.0
    return [low - more, high + more]


def traces(
    draws: PredictionDraws, number: int, curves: bool, output: int, classes: Sequence[str] | None
) -> list[tuple[Any, int]]:
    """Traces of the weights, the predictions, their average and the reference, each with its panel."""
    go = graph_objects()
    x, y = (content(draws, number, curves, output)[name] for name in ("x", "y"))
    look = {"mode": "markers", "marker": {"color": GREY, "size": 7, "opacity": 0.7}}
    hover = "one draw: (%{x:.3f}, %{y:.3f})<extra></extra>"
    points = go.Scatter(x=x[0], y=y[0], name="drawn weights", showlegend=False, hovertemplate=hover, **look)
    drawn = {"name": "one draw each", "hovertemplate": "one draw: %{y:.3f}<extra></extra>"}
    if curves:
        draws_trace = go.Scatter(
            x=x[1], y=y[1], mode="lines", line={"color": style.fade(GREY, 0.45), "width": 1}, **drawn
        )
        mean = go.Scatter(x=x[2], y=y[2], mode="lines", name="their average", line={"color": ORANGE, "width": 3})
        line = {"color": BLUE, "width": 2, "dash": "dash"}
        exact = go.Scatter(x=x[3], y=y[3], mode="lines", name=whole_name(draws, curves), line=line)
    else:
        draws_trace = go.Scatter(x=x[1], y=y[1], **drawn, **look)
        big = {"color": ORANGE, "size": 13, "symbol": "diamond"}
        mean = go.Scatter(x=x[2], y=y[2], mode="markers", name="their average", marker=big)
        wide = {"color": BLUE, "size": 22, "symbol": "line-ew-open", "line": {"width": 3}}
        exact = go.Scatter(x=x[3], y=y[3], mode="markers", name=whole_name(draws, curves), marker=wide)
    for trace in (mean, exact):
        trace.hovertemplate = f"{trace.name}: %{{y:.3f}}<extra></extra>"
    return [(points, 1), (draws_trace, 2), (mean, 2), (exact, 2)]


def content(draws: PredictionDraws, number: int, curves: bool, output: int) -> dict[str, list[Any]]:
    """Coordinates of all four traces with `number` samples."""
    weights = draws.weights[:number]
    average = draws.averages[number - 1]
    if curves:
        assert draws.x is not None
        order = draws.x.argsort()
        line = style.short_lists(draws.x[order], 4)
        gap: list[float | None] = [None]  # between the draws, which are one trace
        over = [value for _ in range(number) for value in line + gap]
        values = [
            value for draw in draws.predictions[:number, order, output] for value in style.short_lists(draw, 4) + gap
        ]
        x, y = (
            [over, line, line],
            [values, style.short_lists(average[order, output]), style.short_lists(draws.exact[order, output])],
        )
    else:
        size = draws.predictions.shape[-1]
        # Shift points sideways, always in the same way, so that equal points do not hide each other.
        shift = (torch.arange(number) * 0.618034) % 1.0 * 0.5 - 0.25
        spread = (torch.arange(size)[None, :] + shift[:, None]).flatten()
        single = list(range(size))
        x = [style.short_lists(spread, 3), single, single]
        y = [style.short_lists(each) for each in (draws.predictions[:number, 0].flatten(), average[0], draws.exact[0])]
    return {"x": [style.short_lists(weights[:, 0]), *x], "y": [style.short_lists(weights[:, 1]), *y]}
