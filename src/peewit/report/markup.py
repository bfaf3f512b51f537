"""Pieces of HTML. All texts become HTML here, where they are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any


@dataclass(frozen=True)
class Markup:
    """HTML that needs no escaping; all other texts are escaped."""

    text: str


def safe(value: Any) -> str:
    """HTML of a text, which is escaped, or of pieces that are HTML already."""
    if isinstance(value, Markup):
        return value.text
    if isinstance(value, list | tuple):
        return "".join(map(safe, value))
    return "" if value is None else escape(str(value), quote=True)


def element(name: str, *content: Any, **attributes: Any) -> Markup:
    """`<name attributes>content</name>`; in an attribute `_` stands for a dash, and at its end for nothing."""
    words = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        label = key.rstrip("_").replace("_", "-")
        words += f" {label}" if value is True else f' {label}="{escape(str(value), quote=True)}"'
    if name in ("input", "img"):
        return Markup(f"<{name}{words}>")
    return Markup(f"<{name}{words}>{safe(content)}</{name}>")


def cell(content: Any, label: str = "", heading: bool = False) -> Markup:
    """A cell with the name of its column, which phones show because they stack rows."""
    if heading:
        return element("th", content, scope="row", role="rowheader")
    return element("td", content, role="cell", data_label=label or None)


def table(caption: str, head: Sequence[Any], rows: Iterable[Sequence[Any]], stacked: bool = True) -> Markup:
    """A table whose first column names its rows.

    Phones stack the rows. Stacked tables lose their roles in some browsers, so the roles are written out.
    """
    names = [each if isinstance(each, str) else "" for each in head]
    columns = element("tr", [element("th", each, scope="col", role="columnheader") for each in head], role="row")
    lines = [
        element("tr", [cell(each, names[place], place == 0) for place, each in enumerate(row)], role="row")
        for row in rows
    ]
    grid = element(
        "table",
        element("caption", caption),
        element("thead", columns, role="rowgroup"),
        element("tbody", lines, role="rowgroup"),
        role="table",
        class_="stacked" if stacked else None,
    )
    return element("div", grid, class_="scroll", tabindex="0", role="region", aria_label=caption)


def section(name: str, title: str, *content: Any) -> Markup:
    """A section of the page with its heading."""
    return element(
        "section", element("h2", title, id=f"{name}-title"), *content, id=name, aria_labelledby=f"{name}-title"
    )


def paragraphs(texts: Iterable[str]) -> list[Markup]:
    """One paragraph each."""
    return [element("p", text) for text in texts]


def fold(title: str, *content: Any) -> Markup:
    """Content that the reader unfolds."""
    return element("details", element("summary", title), *content)
