"""The table of sizes in docs/design.md: what its tool counts, and that it has a row for every room."""

from __future__ import annotations

from environment import ROOT
from tools import sizes

SOURCE = '''"""About
a module."""

# a comment
import os


def f():
    """What it does."""
    return """a
text"""  # with code before


def test_f():
    x = "no docstring"


class C: "a docstring beside code"
'''


def test_what_counts() -> None:
    """A line is of a docstring, has code, or neither; what stands beside a docstring is left out."""
    assert sizes.count(SOURCE) == (18, 6, 4)
    assert sizes.tests_in(SOURCE) == 1


def test_every_room_has_a_row_and_rows_add_up() -> None:
    """The numbers are those of the last `make sizes`; later changes may have others."""
    page = sizes.PAGE.read_text()
    (found,) = sizes.TABLE.findall(page)
    fresh = sizes.table(ROOT, sizes.rooms(page))
    names, numbers = zip(
        *((cells[0], [int(cell.replace(",", "") or 0) for cell in cells[1:]]) for cells in map(cells_of, rows(found))),
        strict=True,
    )
    assert list(names) == [cells_of(row)[0] for row in rows(fresh)]
    assert [sum(column) for column in zip(*numbers[:-1], strict=True)] == numbers[-1]


def rows(table: str) -> list[str]:
    """Below the head."""
    return table.strip().splitlines()[2:]


def cells_of(row: str) -> list[str]:
    """Without the lines between them."""
    return [cell.strip() for cell in row.strip("|").split("|")]
