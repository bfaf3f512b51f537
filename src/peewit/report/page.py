"""A report as one self-contained page: figures, texts, style and script in a single file."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from ..figures.plotly_source import basic_source
from ..metrics.results import Results
from ..storage.atomic import writable, writing
from . import sections
from .markup import Markup, element, fold, safe, section
from .plots import Plot, Variant, plots
from .words import examples

LARGEST = 4_000_000  # bytes of a page, of which plotly's script takes 1.2 million
TITLES = {
    "calibration": "Can its confidence be trusted?",
    "unknown": "Inputs of a kind it never saw",
    "strain": "Corrupted and adversarial inputs",
    "handing": "If a person decides the uncertain ones",
    "examples": "Single inputs worth a look",
    "posterior": "The posterior",
}
NAMES = {
    "summary": "In short",
    "methods": "Methods",
    "calibration": "Confidence",
    "unknown": "Unknown",
    "strain": "Disturbed",
    "handing": "Hand over",
    "examples": "Examples",
    "posterior": "Posterior",
    "coverage": "Weights",
    "settings": "Settings",
    "glossary": "Words",
}
LEADING = ("detection", "shifts", "attacks", "reliability", "pit", "risk-coverage")  # one of them stands on top


def write(report: Results, path: str | os.PathLike[str]) -> Path:
    """Write the page, whole or not at all, and return its path."""
    target = writable(path, "report.html")
    content = render(report).encode()
    with writing(target) as temporary:
        temporary.write_bytes(content)
    return target


def render(report: Results) -> str:
    """The page's text. Beyond 4 MB the largest figures are left out, and their numbers kept."""
    all_plots = plots(report)
    library = basic_source()
    text = assemble(report, all_plots, library)
    while len(text.encode()) > LARGEST:
        sizes = {plot.name: sum(map(size, plot.variants)) for plot in all_plots}
        largest = max(sizes, key=lambda name: sizes[name])
        if not sizes[largest]:
            break  # only tables are left
        all_plots = [without_drawing(plot) if plot.name == largest else plot for plot in all_plots]
        text = assemble(report, all_plots, library)
    return text


def size(variant: Variant) -> int:
    """Characters of a drawing and its images."""
    return len(variant.drawing) + (0 if variant.images is None else len(variant.images.text))


def without_drawing(plot: Plot) -> Plot:
    """The plot without its drawings, with its numbers."""
    return replace(
        plot,
        caption=f"{plot.caption} The figure is left out: it would make the page too large.",
        variants=tuple(replace(each, drawing="", alt="", images=None) for each in plot.variants),
    )


def assemble(report: Results, all_plots: list[Plot], library: str) -> str:
    """Fill the template with all sections."""
    drawings: list[str] = []
    by_section: dict[str, list[Markup]] = {}
    names = [plot.name for plot in all_plots]
    top = {"compare", *[name for name in LEADING if name in names][:1]}
    for plot in sorted(all_plots, key=lambda plot: plot.name not in top):
        by_section.setdefault("summary" if plot.name in top else plot.section, []).append(figure(plot, drawings))
    if (slider := sections.handing_over(report)) is not None:
        by_section.setdefault("handing", []).append(slider)
    parts = {
        "summary": sections.summary(report, element("div", *by_section.get("summary", []), class_="plots")),
        "methods": sections.methods(report),
        **{
            name: section(name, title, element("div", *by_section[name], class_="plots"))
            for name, title in TITLES.items()
            if name in by_section
        },
        "coverage": sections.coverage(report),
        "settings": sections.settings(report),
        "glossary": sections.glossary(report),
    }
    shown = {name: part for name, part in parts.items() if part is not None}
    links = [element("li", element("a", NAMES[name], href=f"#{name}")) for name in shown]
    folder = files(__package__)
    texts = {name: (folder / file).read_text(encoding="utf-8") for name, file in FILES.items()}
    return Template(texts["template"]).substitute(
        title=safe(report.title),
        subtitle=safe(subtitle(report)),
        navigation=safe(element("ul", links)),
        content="\n".join(map(safe, shown.values())),
        style=texts["style"],
        script=texts["script"],
        library=library,
        drawings=embed(drawings),
        curve=escape_script(json.dumps(curve(report))),
        versions=safe(", ".join(f"{name} {each}" for name, each in report.versions.items())),
    )


FILES = {"template": "template.html", "style": "style.css", "script": "script.js"}


def subtitle(report: Results) -> str:
    """The task, how many inputs, and the methods compared."""
    names, count = [each.name for each in report.methods], examples(report)
    over = f", {count:,} test input{'s' if count != 1 else ''}" if count else ""
    return (
        f"{report.task.capitalize()}{over}: {' and '.join([', '.join(names[:-1]), names[-1]] if names[1:] else names)}"
    )


def embed(drawings: list[str]) -> str:
    """JSON inside a script element."""
    return escape_script(f"[{', '.join(drawings)}]")


def escape_script(text: str) -> str:
    """JSON that cannot end the script element it stands in."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def curve(report: Results) -> dict[str, Any]:
    """The numbers behind the slider."""
    risk_coverage = report.methods[0].risk_coverage
    return {"share": risk_coverage.x, "error": risk_coverage.y}


def figure(plot: Plot, drawings: list[str]) -> Markup:
    """One figure: how to read it, its menu, its variants, and their numbers to unfold."""
    parts: list[Any] = [element("figcaption", element("h3", plot.title), element("p", plot.caption))]
    if len(plot.variants) > 1:
        choices = [
            element("option", each.label, value=number, selected=number == plot.first)
            for number, each in enumerate(plot.variants)
        ]
        chooser = element("select", choices, id=f"{plot.name}-menu", data_menu=plot.name, data_first=plot.first)
        parts.append(element("p", element("label", f"{plot.menu}: ", for_=f"{plot.name}-menu"), chooser, class_="menu"))
    parts += [shape(each, number != plot.first, drawings) for number, each in enumerate(plot.variants)]
    return element("figure", *parts, id=f"figure-{plot.name}", class_="plot")


def shape(variant: Variant, hidden: bool, drawings: list[str]) -> Markup:
    """One variant; all but one are hidden until they are chosen."""
    if not variant.drawing:
        numbers = variant.numbers if variant.images is None else fold("As a table", variant.numbers)
        return element("div", variant.images, numbers, class_="variant", hidden=hidden)
    drawings.append(variant.drawing)
    return element(
        "div",
        element("div", class_="chart", role="img", aria_label=variant.alt, data_drawing=len(drawings) - 1),
        element("p", variant.note, class_="note") if variant.note else None,
        fold("Numbers and description", element("p", variant.alt), variant.numbers),
        class_="variant",
        hidden=hidden,
    )
