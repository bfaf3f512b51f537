"""The look that all figures share: colours, fonts, axes, menus, and a title and a description for each."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from ..laplace import Laplace
from ..messages.arguments import is_count
from ..messages.errors import ArgumentTypeError, MissingPackageError, PeewitError

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

FigureNumbers = TypeVar("FigureNumbers")

# Okabe and Ito's colours: the colour-blind can tell them apart, and they show on light and on dark pages. Lines also
# differ in dashes and markers in shapes, for print.
BLUE, ORANGE, GREEN, PURPLE, SKY, GOLD = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"
GREY = "#808080"
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, GOLD, GREY)
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "cross", "x", "star", "triangle-down", "pentagon", "hexagon")
# Brightness rises evenly, so that it can be read without colours.
SEQUENTIAL = "Cividis"
DIVERGING = ((0.0, "#0B4F7D"), (0.25, "#5DA5D1"), (0.5, "#F5F5F5"), (0.75, "#E8935A"), (1.0, "#9E3D00"))
# Halfway between white and black in luminance: contrast 4.5 to 1 on both, for text that has to show on either.
TEXT, RIGHT, WRONG = "#757575", "#008560", "#C65300"
INK = "#3D3D3D"  # text of pictures, which have a white ground
LINES = "rgba(128, 128, 128, 0.25)"
CLEAR = "rgba(0, 0, 0, 0)"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def graph_objects() -> Any:
    """Plotly, imported when the first figure is made; an error says how to install it."""
    try:
        import plotly.graph_objects
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] == "plotly":
            raise MissingPackageError("Figures need plotly, which is not installed: pip install plotly") from error
        raise MissingPackageError(
            f"Figures need plotly, which is installed but cannot be imported: {error}. Try pip install -U plotly."
        ) from error
    return plotly.graph_objects


def expect_posterior(source: Any, alternative: str = "") -> None:
    """Refuse anything but a posterior; `alternative` names what else a figure takes."""
    if not isinstance(source, Laplace):
        raise ArgumentTypeError(
            f"A {type(source).__name__} was given; expected a posterior, which peewit.fit returns{alternative}."
        )


def expect_report(source: Any) -> None:
    """Refuse posteriors and scores where a whole report is needed."""
    if not hasattr(type(source), "to_markdown"):
        raise ArgumentTypeError(
            f"A {type(source).__name__} was given; expected a report, which peewit.evaluate returns."
        )


def numbers_of(
    source: Any, ready: type[FigureNumbers], compute: Callable[..., FigureNumbers], **arguments: Any
) -> FigureNumbers:
    """The numbers behind a figure: `source` itself, or computed from a posterior.

    Arguments that are None or False count as not given. Ready numbers take no arguments.
    """
    chosen = {name: value for name, value in arguments.items() if value is not None and value is not False}
    if isinstance(source, ready):
        if chosen:
            raise PeewitError(
                f"A {ready.__name__} was given, which already has its numbers; leave {join(list(chosen))} out."
            )
        return source
    expect_posterior(source, f", or a {ready.__name__}")
    if "data" in arguments and arguments["data"] is None:
        raise PeewitError("This figure needs data, and none was given; give the training data, (x, y) or a loader.")
    return compute(source, **chosen)


def check_points(points: Any) -> int:
    """Check a number of points along an axis, which has a middle and two ends."""
    if not is_count(points) or points < 3:
        raise PeewitError(f"points={points!r} was given; expected a whole number of at least 3.")
    return int(points)


def panels(*arguments: Any, **settings: Any) -> Figure:
    """A figure with several panels."""
    graph_objects()
    from plotly.subplots import make_subplots

    return make_subplots(*arguments, **settings)


def colour(number: int) -> str:
    """The colour of the n-th method, class or layer."""
    return COLOURS[number % len(COLOURS)]


def fade(colour: str, opacity: float) -> str:
    """A colour with an opacity."""
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {opacity})"


def dash(number: int) -> str:
    """The dashes of the n-th line; lines of the same colour get different dashes."""
    return DASHES[(number + number // len(COLOURS)) % len(DASHES)]


def symbol(number: int) -> str:
    """The marker of the n-th method, class or layer."""
    return SYMBOLS[number % len(SYMBOLS)]


def wrap(text: str, width: int = 46) -> str:
    """Break a text into lines that fit on a phone: plotly does not."""
    return "<br>".join(textwrap.wrap(text, width))


def literal(text: str) -> str:
    """Escape a name: plotly reads `<s>` and the like as markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


def brief(value: float) -> str:
    """A number with three significant digits."""
    return f"{value:.3g}"


def strength(value: float) -> str:
    """A strength with up to four digits; a few of the 255 levels of a pixel as a fraction."""
    levels, text = round(255 * value), f"{value:.4g}"
    return f"{levels}/255" if text != f"{value:g}" and levels <= 32 and math.isclose(levels, 255 * value) else text


def fractions(strengths: Iterable[float]) -> dict[str, Any]:
    """The ticks of an axis where all strengths are levels of a pixel: those that have room for their fractions."""
    values = sorted(set(strengths), reverse=True)
    if not values or any(value and not strength(value).endswith("/255") for value in values) or values[0] == 0:
        return {}
    ticks: list[float] = []
    for value in values:
        if not ticks or ticks[-1] - value > 0.14 * values[0]:
            ticks.append(value)
    return {"tickvals": ticks, "ticktext": [strength(value) for value in ticks]}


def short_lists(values: Tensor, digits: int = 5) -> list[Any]:
    """Nested lists of rounded numbers, which keep pages small; None for NaN and infinity."""
    if values.dim() > 1:
        return [short_lists(row, digits) for row in values]
    return [float(f"{value:.{digits}g}") if math.isfinite(value) else None for value in values.tolist()]


def join(words: Sequence[str]) -> str:
    """'a, b and c'."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def finish(
    figure: Figure,
    title: str,
    alt: str,
    *,
    x: str | None = None,
    y: str | None = None,
    height: int = 440,
    top: int = 0,
    bottom: int = 0,
) -> Figure:
    """Set the shared look; `alt` describes the figure in a sentence or two, `top` and `bottom` keep room for menus."""
    text = wrap(literal(title))
    lines = text.count("<br>") + 1
    legend = {"orientation": "h", "x": 0, "xanchor": "left", "yref": "container", "y": 0, "yanchor": "bottom"}
    figure.update_layout(
        title={"text": text, "x": 0, "xanchor": "left", "y": 1, "yanchor": "top", "pad": {"l": 12, "t": 2 + 12 * lines},
               "font": {"size": 16}},
        font={"family": FONT, "size": 13, "color": TEXT},
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        colorway=list(COLOURS),
        autosize=True,
        height=height,
        margin={"l": 12, "r": 12, "t": 24 + 22 * lines + top, "b": 50 + bottom},
        legend={**legend, "bgcolor": CLEAR},
        hoverlabel={"align": "left", "font": {"family": FONT}},
        hovermode="closest",
        modebar={"bgcolor": CLEAR, "color": fade(GREY, 0.6), "activecolor": BLUE},
        meta={"alt": alt, "title": title},
    )  # fmt: skip
    line = {"gridcolor": LINES, "zerolinecolor": LINES, "linecolor": LINES, "automargin": True, "title_font_size": 13}
    figure.update_xaxes(**line)
    figure.update_yaxes(**line)
    if x is not None:
        figure.update_xaxes(title_text=x)
    if y is not None:
        figure.update_yaxes(title_text=y)
    return figure


def inner_ticks(low: float, high: float) -> list[float]:
    """Round numbers away from the ends, where labels of two axes would meet."""
    middle, half = (low + high) / 2, (high - low) / 2
    return [tick for tick in even(low, high) if abs(tick - middle) <= 0.75 * half]


def scene(x: str, y: str, z: str) -> dict[str, Any]:
    """The axes of a 3-D panel."""
    line = {"gridcolor": LINES, "zerolinecolor": LINES, "backgroundcolor": CLEAR, "color": TEXT}
    names = {"xaxis": x, "yaxis": y, "zaxis": z}
    axes = {axis: {**line, "title": {"text": text, "font": {"size": 12}}} for axis, text in names.items()}
    return {
        **axes,
        "camera": {"eye": {"x": 1.55, "y": -1.55, "z": 0.8}, "center": {"x": 0, "y": 0, "z": -0.16}},
        "aspectmode": "cube",
    }


def menu(buttons: list[dict[str, Any]], y: float = 1.0) -> dict[str, Any]:
    """A dropdown above the panel."""
    look = {"bgcolor": "rgba(128, 128, 128, 0.15)", "bordercolor": LINES, "font": {"color": TEXT}, "pad": {"b": 6}}
    position = {"x": 0, "xanchor": "left", "y": y, "yanchor": "bottom", "showactive": True}
    return {"type": "dropdown", "buttons": buttons, **position, **look}


def visibility_menu(choices: Iterable[tuple[str, Sequence[bool]]]) -> dict[str, Any]:
    """A dropdown whose entries show some traces and hide the others."""
    return menu([{"label": name, "method": "restyle", "args": [{"visible": list(seen)}]} for name, seen in choices])


def category_rows(figure: Figure) -> None:
    """Names along the vertical axis, the first one on top."""
    figure.update_yaxes(autorange="reversed", type="category")


def sentence(words: str) -> str:
    """A text with a capital letter."""
    return words[:1].upper() + words[1:]


def slider(name: str, steps: list[dict[str, Any]], active: int, y: float = 0.0, pad: int = 40) -> dict[str, Any]:
    """A slider below the panel."""
    return {
        "active": active,
        "steps": steps,
        "x": 0.02,
        "len": 0.96,
        "y": y,
        "yanchor": "top",
        "pad": {"t": pad, "b": 4},
        "currentvalue": {"prefix": f"{name}: ", "font": {"size": 13, "color": TEXT}},
        "font": {"size": 11, "color": TEXT},
        "bgcolor": "rgba(128, 128, 128, 0.25)",
        "bordercolor": LINES,
        "tickcolor": LINES,
        "activebgcolor": BLUE,
    }


def logarithmic(values: Iterable[float]) -> dict[str, Any]:
    """A logarithmic axis over positive numbers, with few enough ticks for a phone."""
    kept = [value for value in values if math.isfinite(value) and value > 0] or [1.0]
    low, high = math.log10(min(kept)), math.log10(max(kept))
    room = 0.07 * (high - low) + 0.05
    places = range(math.floor(low - room), math.ceil(high + room) + 1)
    for digits in ((1, 2, 3, 5, 7), (1, 2, 5), (1, 3), (1,)):
        ticks = [digit * 10.0**exponent for exponent in places for digit in digits]
        ticks = [tick for tick in ticks if low - room <= math.log10(tick) <= high + room]
        if len(ticks) <= 7:
            break
    ticks = even(10 ** (low - room), 10 ** (high + room)) if len(ticks) < 2 else ticks[:: -(-len(ticks) // 7)]
    return {
        "type": "log",
        "range": [low - room, high + room],
        "tickvals": ticks,
        "ticktext": [f"{tick:,g}" for tick in ticks],
    }


def even(low: float, high: float) -> list[float]:
    """Three to six round numbers between two that are close together."""
    rough = (high - low) / 4
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(digit * unit for digit in (1, 2, 5, 10) if digit * unit >= rough * 0.8)
    first = math.ceil(low / step)
    return [float(f"{number * step:.6g}") for number in range(first, math.floor(high / step) + 1)]


def bar(title: str) -> dict[str, Any]:
    """A colour bar that leaves its width to the panel."""
    words = {"text": title, "font": {"size": 12}, "side": "right"}
    return {"title": words, "thickness": 12, "outlinewidth": 0, "tickformat": ".3~g", "x": 1.01, "xpad": 2}
