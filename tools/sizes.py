"""Count the lines of every room, and the tests about it, for the table in docs/design.md: `python tools/sizes.py`."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "design.md"
TABLE = re.compile(r"(?<=\n)\| room \| files \|.*?\n(?=\n)", re.S)
EMPTY = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
OUTSIDE = "the root"  # files of the package that stand in no room


def docstring_lines(tree: ast.Module) -> set[int]:
    """Numbers of the lines that docstrings take."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return lines


def count(source: str) -> tuple[int, int, int]:
    """Lines, those with code, and those of docstrings; the rest are comments and empty."""
    documented, code = docstring_lines(ast.parse(source)), set[int]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in EMPTY:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(source.splitlines()), len(code - documented), len(documented)


def tests_in(source: str) -> int:
    """Functions that are tests; each may run for many cases."""
    return sum(
        isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in ast.walk(ast.parse(source))
    )


def rooms(page: str) -> list[str]:
    """The folders right below the package, in the order of the page."""
    return list(dict.fromkeys(re.findall(r"^\| `([a-z_]+)/", page, re.M)))


def table(root: Path, order: list[str]) -> str:
    """The table, with a row for every room, one for what stands in none, and the sum."""
    sizes: defaultdict[str, list[int]] = defaultdict(lambda: [0] * 5)
    for path in sorted((root / "src" / "peewit").rglob("*.py")):
        parts = path.relative_to(root / "src" / "peewit").parts
        for row in (parts[0] if len(parts) > 1 else OUTSIDE, "all"):
            sizes[row] = [old + new for old, new in zip(sizes[row], (1, *count(path.read_text()), 0), strict=True)]
    for path in sorted((root / "tests").rglob("test_*.py")):
        for row in (path.relative_to(root / "tests").parts[0], "all"):
            sizes[row][4] += tests_in(path.read_text())
    lines = ["| room | files | lines | code | docstrings | tests |", "|---|---|---|---|---|---|"]
    for name in [*order, OUTSIDE, "system", "all"]:
        shown = "tests of several rooms, in `tests/system`" if name == "system" else name
        lines.append(f"| {shown} | " + " | ".join(f"{number:,}" if number else "" for number in sizes.pop(name)) + " |")
    if sizes:
        raise SystemExit(f"{', '.join(sizes)}: not in the table of rooms of {PAGE.name}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the table into the page."""
    page = PAGE.read_text()
    written, found = TABLE.subn(lambda _: table(ROOT, rooms(page)), page)
    if found != 1:
        raise SystemExit(f"{PAGE.name} has {found} tables that begin with '| room | files |'; expected one")
    PAGE.write_text(written)


if __name__ == "__main__":
    main()
