"""The test inputs that a method is surest and least sure of."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..messages.arguments import is_count
from ..messages.errors import PeewitError
from . import style
from .style import RIGHT, WRONG, brief, graph_objects

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

    from ..metrics.results import Results, Specimen

KEPT = 8  # of each kind
WIDTH = 16  # letters that fit into a line of a cell


def specimens(report: Results, most: int = KEPT, *, across: int = 4) -> Figure:
    """Show the test images of highest and of lowest confidence with their predictions; other inputs as a table.

    Args:
        report: A report of `pw.evaluate`.
        most: Most inputs of each kind to show; a report has up to 8.
        across: Images in a row. Four fit on a phone, eight fill a page.

    Returns:
        A plotly figure: images, or a table if some input is not an image. In regression they are the inputs with the
        smallest and the largest standard deviation.

    Raises:
        ArgumentTypeError: `report` is not a report.
        PeewitError: `most` or `across` is not a positive whole number, or the report has no single inputs.

    Example:
        >>> pw.figures.specimens(report, most=3).layout.meta["title"]
        'Surest and least sure test inputs'
    """
    style.expect_report(report)
    if not is_count(most):
        raise PeewitError(f"most={most!r} was given; expected a positive whole number of inputs of each kind.")
    if not is_count(across):
        raise PeewitError(f"across={across!r} was given; expected a positive whole number of images in a row.")
    rows = [
        (name, inputs[:most])
        for name, inputs in (("surest", report.surest), ("least sure", report.least_sure))
        if inputs
    ]
    if not rows:
        raise PeewitError("The report has no single inputs to show.")
    wrong = {
        name: sum(specimen.label is not None and specimen.label != specimen.predicted for specimen in inputs)
        for name, inputs in rows
    }
    pictured = all(specimen.image is not None for _, inputs in rows for specimen in inputs)
    if report.task == "classification":
        counts = style.join([f"{wrong[name]} of the {len(inputs)} {name}" for name, inputs in rows])
        ending = f"Wrong: {counts}."
    else:
        ending = ""
    kind = "images" if pictured else "inputs"
    alt = f"Test {kind} that {report.methods[0].name} is surest of, and that it is least sure of. {ending}".strip()
    title = f"Surest and least sure test {kind}"
    return draw_images(report, rows, title, alt, across) if pictured else draw_table(report, rows, title, alt)


def words(report: Results, value: float | None) -> str:
    """The name of a class, or a number."""
    if value is None:
        return "unknown"
    if report.task == "classification" and report.classes is not None and 0 <= value < len(report.classes):
        return report.classes[int(value)]
    return f"class {int(value)}" if report.task == "classification" else brief(value)


def draw_images(
    report: Results, rows: list[tuple[str, tuple[Specimen, ...]]], title: str, alt: str, across: int
) -> Figure:
    """Images in rows on one pair of axes."""
    figure = graph_objects().Figure()
    line, notes = 0.0, []
    for name, inputs in rows:
        notes.append(note(f"<b>{name}</b>", None, 0.0, line, "left"))
        line += 0.25
        for number, specimen in enumerate(inputs):
            column = number % across
            if number and not column:
                line += 1.55
            figure.add_trace(image(report, specimen, float(column), line))
            notes.append(note(*below(report, specimen), column + 0.5, line + 1.02, "center"))
        line += 1.7
    style.finish(figure, title, alt, height=70 + round(100 * line))
    figure.update_layout(annotations=notes)
    figure.update_xaxes(visible=False, range=[-0.05, across + 0.02], constrain="domain")
    figure.update_yaxes(
        visible=False, range=[line - 0.2, -0.3], scaleanchor="x", constrain="domain", constraintoward="top"
    )
    return figure


def cut_text(text: str, most: int = 12) -> str:
    """A name cut to fit under an image."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def below(report: Results, specimen: Specimen) -> tuple[str, str | None]:
    """The text under an image, and its colour if the prediction is right or wrong; numbers are neither."""
    predicted, real = (cut_text(words(report, value)) for value in (specimen.predicted, specimen.label))
    if report.task != "classification":
        return style.literal(f"{predicted} ± {brief(specimen.uncertainty)}") + f"<br>is {style.literal(real)}", None
    right = specimen.label is None or specimen.label == specimen.predicted
    text = f"{style.literal(predicted)}<br>{100 * specimen.confidence:.0f} %"
    return (text, RIGHT) if right else (f"{text}<br>is {style.literal(real)}", WRONG)


def note(text: str, colour: str | None, x: float, y: float, anchor: str) -> dict[str, Any]:
    """An annotation."""
    look: dict[str, Any] = {"showarrow": False, "xanchor": anchor, "yanchor": "top", "align": anchor}
    return {"text": text, "x": x, "y": y, **look, "font": {"size": 11, **({"color": colour} if colour else {})}}


def image(report: Results, specimen: Specimen, x: float, y: float) -> Any:
    """One image as a unit square with a corner at (x, y)."""
    assert specimen.image is not None
    size = max(len(specimen.image), len(specimen.image[0]))
    step = 0.94 / size
    pixels = [[colours(pixel) for pixel in row] for row in specimen.image]
    predicted, real = (style.literal(words(report, value)) for value in (specimen.predicted, specimen.label))
    sure = f", confidence {specimen.confidence:.3f}" if report.task == "classification" else ""
    hover = (
        f"test input {specimen.index}: {real}<br>predicted {predicted}{sure}"
        f"<br>uncertainty {brief(specimen.uncertainty)}<extra></extra>"
    )
    return graph_objects().Image(z=pixels, x0=x + step / 2, dx=step, y0=y + step / 2, dy=step, hovertemplate=hover)


def colours(pixel: tuple[float, ...]) -> list[int]:
    """Red, green and blue from 0 to 255; one channel is grey."""
    levels = [round(255 * min(max(value, 0.0), 1.0)) for value in pixel[:3]]
    return levels if len(levels) == 3 else [levels[0]] * 3


def draw_table(report: Results, rows: list[tuple[str, tuple[Specimen, ...]]], title: str, alt: str) -> Figure:
    """The inputs as a table."""
    go = graph_objects()
    cells = [(name, specimen) for name, inputs in rows for specimen in inputs]
    columns = {
        "": [name for name, _ in cells],
        "input": [str(specimen.index) for _, specimen in cells],
        "is": [style.literal(words(report, specimen.label)) for _, specimen in cells],
        "predicted": [style.literal(words(report, specimen.predicted)) for _, specimen in cells],
        "confidence" if report.task == "classification" else "uncertainty": [
            brief(specimen.confidence if report.task == "classification" else specimen.uncertainty)
            for _, specimen in cells
        ],
    }
    widest = [max(len(texts[row]) for texts in columns.values()) for row in range(len(cells))]
    lines = [1 + width // WIDTH for width in widest]
    fill = {"fill": {"color": style.CLEAR}, "line": {"color": style.LINES}, "align": "left"}
    table = go.Table(
        header={"values": list(columns), "font": {"color": style.TEXT, "size": 13}, **fill},
        cells={"values": list(columns.values()), "font": {"color": style.TEXT, "size": 12}, "height": 24, **fill},
    )
    return style.finish(go.Figure(table), title, alt, height=160 + 25 * sum(lines))
