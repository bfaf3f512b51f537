"""Notebooks are made from the pages: they have the same code, which runs, and their links lead to the pages."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from environment import ROOT
from tools import notebooks


def test_a_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cells of a page's notebook run in their order."""
    tool, page = ROOT / "tools" / "notebooks.py", ROOT / "docs" / "structures.md"
    subprocess.run([sys.executable, tool, "--out", tmp_path, page], check=True, capture_output=True)
    written = json.loads((tmp_path / "structures.ipynb").read_text(encoding="utf-8"))
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    code = ["".join(cell["source"]) for cell in written["cells"] if cell["cell_type"] == "code"]
    assert len(code) == page.read_text(encoding="utf-8").count("```python\n")
    for cell in code:
        exec(compile(cell, "cell", "exec"), names)
    assert "la" in names


def test_text_and_code_are_told_apart() -> None:
    """Blocks that do not run, and their output, stay text; links lead to the page's folder."""
    page = "# A\n\nSee [b](b.md#c), [d](https://d.org).\n\n```python\nx = 1\nx\n```\n\n```python no-run\ny\n```\nend\n"
    first, second, third = notebooks.cells(page, "../docs")
    assert "".join(first["source"]) == "# A\n\nSee [b](../docs/b.md#c), [d](https://d.org)."
    assert (second["cell_type"], "".join(second["source"])) == ("code", "x = 1\nx")
    assert "".join(third["source"]) == "```python no-run\ny\n```\nend"
    assert len({cell["id"] for cell in (first, second, third)}) == 3


def test_every_page_with_code_has_one() -> None:
    """The quickstart has one, and a page of tables has none."""
    names = {page.name for page in notebooks.pages_with_code()}
    assert {"quickstart.md", "priors.md"} <= names
    assert "benchmarks.md" not in names
