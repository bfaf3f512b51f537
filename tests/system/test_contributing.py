"""CONTRIBUTING.md names files, folders and tables that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from environment import ROOT

PAGE = ROOT / "CONTRIBUTING.md"
PACKAGE = ROOT / "src" / "peewit"
FOLDERS = (ROOT, ROOT / "src", PACKAGE, ROOT / "benchmarks" / "quality")  # where paths on the page may begin
WRITTEN_BY_COMMANDS = frozenset({".mutants/report.txt", ".mutants/report.json", "site", "notebooks", "dist"})
OF_READERS = frozenset({"counting.py", "cli/counting.py", "run.toml"})  # which the example of a command has
CODE = re.compile(r"```.*?```|`[^`]+`", re.DOTALL)
PATH = re.compile(r"(?<![\w./*-])(?:[\w.-]+/)*(?:[\w-]+\.(?:py|md|json|toml|txt|yml|in)\b|[\w.-]+/(?=[\s`\"]))")
TABLE = re.compile(r"`([A-Z][A-Z_]+)` (?:of|in) `([\w/]+\.py)`")


def paths(text: str) -> set[str]:
    """Files and folders that a page names in its code."""
    return {match.group().rstrip("/") for code in CODE.findall(text) for match in PATH.finditer(code)}


def absent(text: str) -> set[str]:
    """Those that are neither there nor written by a command or a reader; a bare name may stand in any folder."""
    names = {
        path.name for folder in ("src", "tests", "tools", "docs", "benchmarks") for path in ROOT.glob(f"{folder}/**/*")
    }
    return {
        path
        for path in paths(text) - WRITTEN_BY_COMMANDS - OF_READERS
        if not any((folder / path).exists() for folder in FOLDERS) and ("/" in path or path not in names)
    }


def test_every_path_is_there() -> None:
    assert absent(PAGE.read_text()) == set()


@pytest.mark.parametrize(
    ("text", "missing"),
    [
        ("`tests/cli/test_cli.py`", {"tests/cli/test_cli.py"}),
        ("`cli/options.py`, `poisson.py` and `docs/`", set()),
        ('`make test ARGS="tests/cli tests/nowhere/ tests/gone.py"`', {"tests/nowhere", "tests/gone.py"}),
        ("`no_such_file.py`", {"no_such_file.py"}),
        ("no_such_file.py", set()),
    ],
)
def test_what_is_not_there_is_named(text: str, missing: set[str]) -> None:
    assert absent(text) == missing


def test_every_table_is_there() -> None:
    """A row is added to a name in capitals, in the file that the page says."""
    rows = TABLE.findall(PAGE.read_text())
    assert len(rows) > 15
    for name, path in rows:
        files = [folder / path for folder in FOLDERS if (folder / path).exists()]
        files = files or [file for file in ROOT.glob("**/" + Path(path).name) if ".venv" not in file.parts]
        assert any(re.search(rf"^{name}\b.*=", file.read_text(), re.M) for file in files), (name, path)
