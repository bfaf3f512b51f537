"""Pages and figures from measurements: `python -m benchmarks.report FILE... --markdown docs/benchmarks.md`.

The page has the goals, the main tables and the figures. A second one beside it, `benchmarks_tables.md`, has the other
tables.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.journal import Run, merge, read
from benchmarks.tables import NOTES, Table, goal_table, heading, main_tables, markdown, other_tables, show

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
OTHERS = "benchmarks_tables.md"
BEGINNING = """# Speed and memory: other tables

[Speed and memory](benchmarks.md) has the goals, the main tables, the figures, and how all of it was measured.
"""
ORDER = {"fp32": 0, "tf32": 1, "bf16": 2, "default": 3}


def by_machine(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs grouped by machine, with their precisions; GPUs first."""
    found: dict[tuple[str, bool], list[Run]] = {}
    for run in runs:
        found.setdefault((run.header["machine"], run.header["quick"]), []).append(run)
    for own in found.values():
        own.sort(key=lambda run: ORDER.get(run.header["precision"], len(ORDER)))
    return sorted(found.values(), key=lambda own: own[0].header["device"] != "cuda")


def measured_part(runs: Sequence[Run], figures: dict[int, list[tuple[str, str]]] | None = None) -> list[str]:
    """The lines between the markers; figures by the index of their machine, as (title, path)."""
    lines = [
        f"[Other tables]({OTHERS}) have fits, the last layer, tuning, learning while training, the linear mode, "
        "agreement and growth.",
        "",
    ]
    for index, own in enumerate(by_machine(runs)):
        lines += section(own, [goal_table(own), *main_tables(own)])
        for title, path in (figures or {}).get(index, []):
            lines += [f"![{title}]({path})", ""]
    return [*lines, *NOTED]


def second_page(runs: Sequence[Run]) -> str:
    """The other tables of every machine."""
    lines = [line for own in by_machine(runs) for line in section(own, other_tables(own))]
    return "\n".join([BEGINNING, *lines, *NOTED])


def section(runs: Sequence[Run], shown: Sequence[Table]) -> list[str]:
    """Tables of one machine."""
    return [f"## {heading(runs[0])}", "", *[line for table in shown for line in markdown(table)]]


NOTED = ["### What the columns mean", "", *[f"- {note}" for note in NOTES], ""]


def write_page(path: Path, lines: Sequence[str]) -> None:
    """Replace the lines between the markers alone; a page without markers gets them at its end."""
    text = path.read_text(encoding="utf-8") if path.is_file() else "# Benchmarks\n"
    if text.count(BEGIN) != text.count(END) or text.count(BEGIN) > 1:
        raise ValueError(
            f"{path} has {text.count(BEGIN)} times {BEGIN} and {text.count(END)} times {END}; expected one each."
        )
    if BEGIN not in text:
        text = f"{text.rstrip()}\n\n{BEGIN}\n{END}\n"
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([f"{before}{BEGIN}", "", *lines]) + f"{END}{after}", encoding="utf-8")


def draw(runs: Sequence[Run], folder: Path, page: Path | None) -> dict[int, list[tuple[str, str]]]:
    """Figures of every machine, with their paths as the page sees them."""
    from benchmarks.figures import growth_figures  # needs matplotlib, which measuring does not

    start = page.parent if page else Path(".")
    return {
        index: [
            (title, Path(os.path.relpath(path, start)).as_posix())
            for run in own
            for title, path in growth_figures(run, folder)
        ]
        for index, own in enumerate(by_machine(runs))
    }


def main(arguments: list[str] | None = None) -> None:
    """Merge, print, and write the wanted files."""
    parser = argparse.ArgumentParser(prog="benchmarks.report", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument(
        "--markdown", type=Path, help="the page whose measured part is replaced; beside it the other tables"
    )
    parser.add_argument("--figures", type=Path, help="the folder that figures are written to")
    options = parser.parse_args(arguments)
    runs = merge([read(path) for path in options.files])
    figures = draw(runs, options.figures, options.markdown) if options.figures else None
    if options.markdown:
        write_page(options.markdown, measured_part(runs, figures))
        options.markdown.with_name(OTHERS).write_text(second_page(runs), encoding="utf-8")
    if not options.markdown and not options.figures:
        console = Console(width=None if Console().is_terminal else 150)
        for own in by_machine(runs):
            for run in own:
                show(run, console)


if __name__ == "__main__":
    main()
