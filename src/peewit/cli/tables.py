"""Tables in .csv files: whether the first row is a header, and which column is which."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..messages.names import nearest
from ..messages.warnings import warn
from ..posterior.schema import Schema
from .output import Problem

SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
MISSING = ("", "-", "?", "na", "n/a", "null", "none")
WHOLE = re.compile(r"[+-]?\d+")
SHOWN = 12  # names in a message
# Rows below a first row that looks like a header of numbers, before that is held against a table whose like had none.
ENOUGH = 10


@dataclass(frozen=True)
class Table:
    """The names of the columns, and the rows below them, as text."""

    path: Path
    names: tuple[str, ...]
    rows: list[list[str]]
    header: bool

    def column(self, name: str) -> list[str]:
        """Its cells."""
        column = self.names.index(name)
        return [row[column] for row in self.rows]

    def numbers(self, names: Sequence[str]) -> Tensor:
        """(rows, names) in float64."""
        for name in names:
            for number, cell in enumerate(self.column(name), 1):
                if not is_number(cell):
                    raise Problem(
                        f"{self.path}: row {number}, column {name!r} holds {cell!r}; expected a number. "
                        "The column of the target is named by --target."
                    )
        columns = [list(map(float, self.column(name))) for name in names]
        return torch.tensor(columns, dtype=torch.float64).T.contiguous()

    def words(self, name: str) -> list[str]:
        """A column of classes, none of them empty."""
        cells = self.column(name)
        if "" in cells:
            raise Problem(f"{self.path}: row {cells.index('') + 1}, column {name!r} is empty; expected a class.")
        return cells


def read(path: Path, header: bool | None, labels: bool, known: Schema) -> Table:
    """A table; `header` overrides what the first row looks like, and `known` is the schema of the fit."""
    rows = cells(path)
    has = begins_with_names(path, rows, known) if header is None else header
    names = tuple(rows[0]) if has else tuple(map(str, range(len(rows[0]))))
    rows = rows[1:] if has else rows
    if twice := [name for name in names if names.count(name) > 1]:
        raise Problem(f"{path} has {names.count(twice[0])} columns {twice[0]!r}; expected a name of its own for each.")
    if not rows:
        raise Problem(f"{path} has the columns {list_names(names)} and no rows; expected examples.")
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise Problem(f"{path}: row {number} has {len(row)} cells; expected {len(names)} like the first.")
    if known.columns and not (has and known.header):
        names = by_place(path, len(names), labels, known)
        if has != known.header:
            warn(f"{path}: columns are taken in the order {list_names(names)}, not by name.")
    return Table(path, names, rows, has)


def cells(path: Path) -> list[list[str]]:
    """All rows that are not blank."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise Problem(f"{path} cannot be read as a table of text: {error}.") from error
    if not rows:
        raise Problem(f"{path} is empty; expected a table.")
    return rows


def begins_with_names(path: Path, rows: Sequence[Sequence[str]], known: Schema) -> bool:
    """Whether the first row is a header: by the names of the fit, else by its looks; refused where both may be."""
    first, below = rows[0], rows[1:]
    numeric = [is_number(cell) for cell in first]
    if known.header:
        names_in_both = set(known.inputs) & set(first)
        if len(names_in_both) == len(known.inputs) or not any(numeric) or (names_in_both and not all(numeric)):
            return True
        raise Problem(
            f"{path} begins with {list_names(first)}; the table of the fit had the header "
            f"{list_names(known.columns)}. Give this one a header too, "
            "or --no-header where it has none and its columns are in that order."
        )
    if all(numeric):
        has = False
        doubtful = len(below) >= (ENOUGH if known.columns else 1) and stands_out(first, below)
    elif any(numeric):
        has, doubtful = find_header(first, below, known.classes or ())
    else:
        has, doubtful = True, False
    if doubtful:
        raise Problem(
            f"{path} begins with {list_names(first)}, which may be a header or an example; say which by --header or "
            "--no-header."
        )
    if has and known.columns:
        raise Problem(
            f"{path} has the header {list_names(first)}; the table of the fit had none, so that names do not tell "
            "which column is which. Take the header away, or give --header where columns are in the same order as "
            "there."
        )
    return has


def stands_out(first: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Whether a row of numbers could be names, and is written as no other row is."""
    if len(set(first)) < len(first):  # names differ
        return False
    return any(alike(first) and not any(map(alike, below)) for alike in (whole, rising))


def whole(row: Sequence[str]) -> bool:
    """Whole numbers alone, such as years."""
    return all(WHOLE.fullmatch(cell) for cell in row)


def rising(row: Sequence[str]) -> bool:
    """Numbers in equal steps, such as 0, 1, 2, or many that rise, such as wavelengths."""
    if len(row) < 3 or not all(is_number(cell) for cell in row):
        return False
    values = [float(cell) for cell in row]
    steps = [after - before for before, after in itertools.pairwise(values)]
    return min(steps) > 0 and (max(steps) - min(steps) < 1e-6 * max(steps) or len(row) >= 8)


def find_header(first: Sequence[str], below: Sequence[Sequence[str]], classes: Collection[str]) -> tuple[bool, bool]:
    """Whether a row of numbers and words is a header, and whether that is doubtful."""
    words = {column: cell for column, cell in enumerate(first) if not is_number(cell) and cell.lower() not in MISSING}
    others = {column: [row[column] for row in below if column < len(row)] for column in words}
    if any(cell in classes or cell in others[column] for column, cell in words.items()):
        return False, False  # a class, which other rows have too
    has = any(column_cells and all(map(is_number, column_cells)) for column_cells in others.values())
    return has, not has


def by_place(path: Path, width: int, labels: bool, known: Schema) -> tuple[str, ...]:
    """The names of the fit for columns that have none of their own."""
    if width == len(known.columns):
        return known.columns
    if width == len(known.inputs) and not labels:
        return known.inputs
    inputs, targets = len(known.inputs), len(known.targets)
    raise Problem(
        f"{path} has {width} columns; expected {inputs} inputs and {targets} {'target' if targets == 1 else 'targets'}"
        f"{'' if labels else ', or the inputs alone'}, as in the table of the fit."
    )


def split(table: Table, chosen: Sequence[str], labels: bool, known: Schema) -> tuple[Sequence[str], Sequence[str]]:
    """Columns that are inputs, and those that are targets, none where no labels are needed."""
    if not known.columns:
        targets = list(chosen) or list(table.names[-1:] if labels else ())
        require(table, targets if labels else ())
        inputs = [name for name in table.names if name not in targets]
        if not inputs:
            raise Problem(f"{table.path} has the columns {describe(table)}; expected inputs beside the target.")
        return inputs, targets if labels else ()
    inputs, targets = list(known.inputs), list(chosen)
    if not chosen or set(chosen) == set(known.targets):
        targets = list(known.targets)  # whose order is that of the outputs
    if both := [name for name in targets if name in inputs]:
        raise Problem(f"--target {both[0]} was given; the posterior was fitted with {both[0]!r} as an input.")
    require(table, [*inputs, *(targets if labels else ())], ", which the posterior was fitted with")
    spare = [name for name in table.names if name not in (*inputs, *(targets if labels else ()))]
    if unknown := [name for name in spare if name not in (*targets, *known.targets)]:
        raise Problem(
            f"{table.path} has the column {unknown[0]!r}, which the posterior was not fitted with; "
            f"expected {list_names(inputs)}. Take the others away."
        )
    if unasked := [name for name in spare if name not in chosen]:
        warn(f"{table.path}: the target column {list_names(unasked)} is left out.")
    return inputs, targets if labels else ()


def require(table: Table, names: Sequence[str], why: str = "") -> None:
    """Refuse a table that lacks a column."""
    for name in names:
        if name not in table.names:
            near = nearest(name, table.names)
            raise Problem(f"{table.path} has no column {name!r}{why}; {near}it has {describe(table)}.")


def describe(table: Table) -> str:
    """The columns, and why there may be only one."""
    names = table.names
    mark = next((word for mark, word in SEPARATORS.items() if len(names) == 1 and mark in names[0]), None)
    return list_names(names) + (f", with {mark} in it; cells are separated by commas" if mark else "")


def list_names(names: Sequence[str]) -> str:
    """The first few of many names."""
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")


def is_number(word: str) -> bool:
    """Whether a cell holds a number; Python alone reads underscores in one."""
    try:
        float(word)
    except ValueError:
        return False
    return "_" not in word
