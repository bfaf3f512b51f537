"""Small images inside the page, as PNG files made without a library."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from typing import Any

from ..metrics.results import Results, Specimen
from .markup import Markup, element
from .words import number

Pixels = Sequence[Sequence[Sequence[float]]]  # rows, columns, channels, 0 to 1


def png(pixels: Pixels) -> bytes:
    """A PNG file: grey from the first channel, or red, green and blue from the first three."""
    grey = len(pixels[0][0]) < 3
    rows = [
        bytes(
            [
                0,
                *(
                    round(255 * min(max(value, 0.0), 1.0))
                    for pixel in row
                    for value in (pixel[:1] if grey else pixel[:3])
                ),
            ]
        )
        for row in pixels
    ]  # each row begins with its filter, none
    size = struct.pack(">IIBBBBB", len(pixels[0]), len(pixels), 8, 0 if grey else 2, 0, 0, 0)
    parts = ((b"IHDR", size), (b"IDAT", zlib.compress(b"".join(rows), 9)), (b"IEND", b""))
    image = b"\x89PNG\r\n\x1a\n"
    for name, content in parts:
        image += struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
    return image


SpecimenGroups = Sequence[tuple[str, Sequence[Specimen]]]


def groups_of(report: Results) -> SpecimenGroups:
    """The single inputs of a report under their headings, what teaches most first."""
    wrong = "Sure, and wrong" if report.task == "classification" else "Off by the most deviations"
    unknown = [(f"Unknown (“{name}”), the surest", shown) for name, shown in report.unknown_surest.items()]
    groups = [(wrong, report.sure_wrong), *unknown, ("The least sure", report.least_sure),
              ("The surest", report.surest)]  # fmt: skip
    return [(name, shown) for name, shown in groups if shown]


def gallery(report: Results, groups: SpecimenGroups) -> Markup | None:
    """The images of the groups, each with its prediction."""
    parts: list[Any] = []
    for title, specimens in groups:
        shown = [card(report, each) for each in specimens if each.image is not None]
        if shown:
            parts += [element("h4", title), element("ul", shown, class_="gallery")]
    return element("div", *parts) if parts else None


def card(report: Results, specimen: Specimen) -> Markup:
    """One image with its caption."""
    predicted = label_text(report, specimen.predicted)
    right = specimen.label is None or specimen.label == specimen.predicted
    if report.task == "classification":
        text = f"{predicted}, {number(specimen.confidence, True)}"
        truth = "" if specimen.label is None else "right" if right else f"wrong: {label_text(report, specimen.label)}"
    else:
        text = f"{predicted} ± {number(specimen.uncertainty)}"
        truth = "" if specimen.label is None else f"truth {label_text(report, specimen.label)}"
    assert specimen.image is not None
    source = "data:image/png;base64," + base64.b64encode(png(specimen.image)).decode()
    picture = element("img", src=source, alt=f"Input {specimen.index}")
    mood = "" if report.task != "classification" or specimen.label is None else "right" if right else "wrong"
    return element("li", picture, element("span", text), element("span", truth, class_=mood or None))


def label_text(report: Results, label: float) -> str:
    """A class by its name, a number as it is."""
    if report.task == "classification" and report.classes is not None and 0 <= label < len(report.classes):
        return report.classes[int(label)]
    return str(label) if isinstance(label, int) else number(label)
