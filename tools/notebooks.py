"""Write a notebook for every page of docs/ that has code: `python tools/notebooks.py --out notebooks [PAGE ...]`.

The pages are the source, and notebooks are never edited. A fenced block of Python that runs becomes a cell of code; all
else becomes text.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import textwrap
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent.parent / "docs"
FENCE = re.compile(r"^(?P<indent> *)```python(?P<info>[^\n]*)\n(?P<code>.*?)^(?P=indent)```[ ]*$\n?", re.M | re.S)
LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)\s]+\))")


def cells(text: str, to_docs: str) -> list[dict[str, Any]]:
    """The cells of a page, in its order; links lead to the folder of the page, which is at `to_docs`."""
    parts: list[dict[str, Any]] = []
    end = 0
    for match in FENCE.finditer(text):
        if "no-run" in match["info"].split():
            continue
        parts += [words_cell(text[end : match.start()], to_docs), code_cell(textwrap.dedent(match["code"]))]
        end = match.end()
    parts.append(words_cell(text[end:], to_docs))
    return [{**part, "id": f"cell-{number}"} for number, part in enumerate(parts) if part["source"]]


def words_cell(text: str, to_docs: str) -> dict[str, Any]:
    """A cell of text."""
    words = LINK.sub(rf"\g<1>{to_docs}/\g<2>", text.strip())
    return {"cell_type": "markdown", "metadata": {}, "source": words.splitlines(keepends=True)}


def code_cell(code: str) -> dict[str, Any]:
    """A cell of code that has not run."""
    lines = code.rstrip().splitlines(keepends=True)
    return {"cell_type": "code", "execution_count": None, "metadata": {}, "outputs": [], "source": lines}


def notebook(page: Path, folder: Path) -> dict[str, Any]:
    """A page as a notebook that will lie in a folder."""
    return {
        "cells": cells(page.read_text(encoding="utf-8"), Path(os.path.relpath(page.parent, folder)).as_posix()),
        "metadata": {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        },
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def pages_with_code() -> list[Path]:
    """The pages that have a block to run."""
    return [page for page in sorted(DOCS.glob("*.md")) if has_code(page.read_text(encoding="utf-8"))]


def has_code(text: str) -> bool:
    """Whether a page has a block to run."""
    return any("no-run" not in match["info"].split() for match in FENCE.finditer(text))


def main() -> None:
    """Write the notebooks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", type=Path, metavar="PAGE", help="pages (default: all with code)")
    parser.add_argument("--out", type=Path, required=True, help="the folder for the notebooks")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    for page in asked.pages or pages_with_code():
        path = asked.out / f"{page.stem}.ipynb"
        path.write_text(json.dumps(notebook(page.resolve(), asked.out.resolve()), indent=1) + "\n", encoding="utf-8")
    print(f"notebooks are in {asked.out}")


if __name__ == "__main__":
    main()
