"""Tables in .csv files: whether the first row is a header, and which columns are inputs and targets."""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor

from ..messages.names import first_names, nearest
from ..messages.warnings import warn
from ..posterior.schema import Schema
from .output import Problem

SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
MISSING = ("", "-", "?", "na", "nan", "n/a", "null", "none")
LOOKED_AT = 20  # rows from which separators are told
WHOLE = re.compile(r"[+-]?\d+")
SHOWN, LONG = 12, 100  # names in a message, and characters of them as an option
# Rows below a first row of numbers that stands out, from which on it may be a header although the fit had none.
ENOUGH = 10


@dataclass(frozen=True)
class Table:
    """Names of the columns, and the rows below them, as text."""

    path: Path
    names: tuple[str, ...]
    rows: list[list[str]]
    header: bool

    def column(self, name: str) -> list[str]:
        """The cells of a column."""
        column = self.names.index(name)
        return [row[column] for row in self.rows]

    def numbers(self, names: Sequence[str], targets: bool = False) -> Tensor:
        """(rows, names): columns in float64."""
        for name in names:
            if not all(map(is_number, self.column(name))):
                self.refuse_words(name, targets)
        columns = [list(map(float, self.column(name))) for name in names]
        return torch.tensor(columns, dtype=torch.float64).T.contiguous()

    def refuse_words(self, name: str, target: bool) -> NoReturn:
        """Name the first cell of a column that is not a number, and what to do about it."""
        others = {number: cell for number, cell in enumerate(self.column(name), 1) if not is_number(cell)}
        number, cell = next(iter(others.items()))
        many = f" ({len(others)} of {len(self.rows)} rows have none)" if len(others) > 1 else ""
        if is_missing(cell):
            advice = "Fill in missing cells as for the training, or remove their rows."
        elif is_number(cell.replace(",", "")):
            advice = "Write numbers with a decimal point and no other marks, such as 1234.5."
        elif is_infinite(cell):
            advice = "Leave such rows out, or put a number in."
        elif target:
            advice = "Classes that are words need --likelihood classification; or name another --target."
        else:
            advice = (
                "Write words as numbers as for the training, such as one column of 0 and 1 for each; leave the column "
                "out, --inputs A,B,...; or, if it is the target, name it with --target."
            )
        raise Problem(f"{self.path}: row {number}, column {name!r} holds {cell!r}; expected a number{many}. {advice}")

    def words(self, name: str) -> list[str]:
        """The cells of a column of classes; refuse empty ones, and missing ones among numbers."""
        cells = self.column(name)
        numeric = any(map(is_number, cells)) and all(is_number(cell) or is_missing(cell) for cell in cells)
        for number, cell in enumerate(cells, 1):
            if cell == "" or (numeric and is_missing(cell)):
                what = f"holds {cell!r}" if cell else "is empty"
                raise Problem(f"{self.path}: row {number}, column {name!r} {what}; expected a class.")
        return cells


def read(path: Path, header: bool | None, labels: bool, known: Schema) -> Table:
    """Read a table; `header` overrides the guess from the first row, and `known` is the schema of the fit."""
    rows = cells(path)
    has = begins_with_names(path, rows, known) if header is None else header
    names = tuple(rows[0]) if has else tuple(map(str, range(len(rows[0]))))
    rows = rows[1:] if has else rows
    if twice := [name for name in names if names.count(name) > 1]:
        raise Problem(f"{path} has {names.count(twice[0])} columns {twice[0]!r}; expected distinct names.")
    if not rows:
        raise Problem(f"{path} has a header ({list_names(names)}) and no rows; expected examples.")
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise Problem(f"{path}: row {number} has {len(row)} cells; expected {len(names)}, as in the first.")
    if known.columns and not (has and known.header):
        names = by_place(path, len(names), labels, known)
        if has != known.header:
            warn(f"{path}: columns are read in the order {list_names(names)}, not by name.")
    return Table(path, names, rows, has)


def cells(path: Path) -> list[list[str]]:
    """All rows that are not blank."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    except UnicodeDecodeError as error:
        raise Problem(f"{path} is not text in UTF-8 ({error}); save it as CSV in UTF-8.") from error
    except csv.Error as error:
        raise Problem(f"{path} cannot be read as a table of text: {error}.") from error
    if not rows:
        raise Problem(f"{path} is empty; expected a table.")
    refuse_separators(path, rows[:LOOKED_AT])
    return rows


def refuse_separators(path: Path, rows: Sequence[Sequence[str]]) -> None:
    """Refuse rows that have other marks between their cells than commas, which may be decimal ones then."""
    for mark, word in SEPARATORS.items():
        split_rows = [",".join(row).split(mark) for row in rows]
        width = len(split_rows[0])
        if width == 1 or any(len(row) != width for row in split_rows):
            continue
        with_commas = [cell.strip() for row in split_rows[1:] or split_rows for cell in row if "," in cell]
        decimal = bool(with_commas) and all(is_number(cell.replace(",", ".")) for cell in with_commas)
        if decimal or all(len(row) == 1 for row in rows):
            options = f"sep={mark!r}" + (", decimal=','" if decimal else "")
            raise Problem(
                f"{path} has {word} between its cells{' and decimal commas' if decimal else ''}; expected commas "
                f"between cells and decimal points, as pandas.read_csv({path.name!r}, {options}).to_csv('commas.csv', "
                "index=False) writes them."
            )


def begins_with_names(path: Path, rows: Sequence[Sequence[str]], known: Schema) -> bool:
    """Whether the first row is a header, judged by the names of the fit or by its cells; refuse unclear rows."""
    first, below = rows[0], rows[1:]
    numeric = [is_number(cell) for cell in first]
    if known.header:
        names_in_both = set(known.inputs) & set(first)
        if len(names_in_both) == len(known.inputs) or not any(numeric) or (names_in_both and not all(numeric)):
            return True
        raise Problem(
            f"{path} begins with {list_names(first)}; the table of the fit had the header "
            f"{list_names(known.columns)}. Add that header, or use --no-header if the columns are in that order."
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
            f"{path} begins with {list_names(first)}, which may be a header or an example; use --header or --no-header."
        )
    if has and known.columns:
        raise Problem(
            f"{path} has the header {list_names(first)}; the table of the fit had none, so names cannot identify "
            "columns. Remove the header, or use --header if the columns are in the order of that table."
        )
    return has


def stands_out(first: Sequence[str], below: Sequence[Sequence[str]]) -> bool:
    """Whether a row of numbers could be names: they are distinct, and written differently from all other rows."""
    if len(set(first)) < len(first):  # names are distinct
        return False
    return any(alike(first) and not any(map(alike, below)) for alike in (are_whole_numbers, rising))


def are_whole_numbers(row: Sequence[str]) -> bool:
    """Whether all cells are whole numbers, such as years."""
    return all(WHOLE.fullmatch(cell) for cell in row)


def rising(row: Sequence[str]) -> bool:
    """Whether numbers rise in equal steps, such as 0, 1, 2, or many numbers rise, such as wavelengths."""
    if len(row) < 3 or not all(is_number(cell) for cell in row):
        return False
    values = [float(cell) for cell in row]
    steps = [after - before for before, after in itertools.pairwise(values)]
    return min(steps) > 0 and (max(steps) - min(steps) < 1e-6 * max(steps) or len(row) >= 8)


def find_header(first: Sequence[str], below: Sequence[Sequence[str]], classes: Collection[str]) -> tuple[bool, bool]:
    """Whether a row of numbers and words is a header, and whether that is unclear."""
    words = {column: cell for column, cell in enumerate(first) if not is_number(cell) and not is_missing(cell)}
    others = {column: [row[column] for row in below if column < len(row)] for column in words}
    if any(cell in classes or cell in others[column] for column, cell in words.items()):
        return False, False  # a class that other rows have too
    has = any(column_cells and all(map(is_number, column_cells)) for column_cells in others.values())
    return has, not has


def by_place(path: Path, width: int, labels: bool, known: Schema) -> tuple[str, ...]:
    """The names of the fit, for columns without names, by their order."""
    if width == len(known.columns):
        return known.columns
    if width == len(known.inputs) and not labels:
        return known.inputs
    inputs, targets = len(known.inputs), len(known.targets)
    others = len(known.columns) - inputs - targets
    raise Problem(
        f"{path} has {width} columns; expected {inputs} inputs and {targets} {'target' if targets == 1 else 'targets'}"
        f"{f' and {others} others' if others else ''}"
        f"{'' if labels else ', or the inputs alone'}, as in the table of the fit."
    )


def split(
    table: Table, named: Sequence[str], chosen: Sequence[str], labels: bool, known: Schema
) -> tuple[Sequence[str], Sequence[str]]:
    """Names of the input columns, and of the target columns; no targets if no labels are needed."""
    if not known.columns:
        targets = list(chosen) or list(table.names[-1:] if labels else ())
        require(table, [*named, *(targets if labels else ())])
        if both := [name for name in targets if name in named]:
            raise Problem(f"{both[0]!r} is among the --inputs and is the target; name another with --target.")
        inputs = list(named) or [name for name in table.names if name not in targets]
        if not inputs:
            raise Problem(f"{table.path} has the columns {list_names(table.names)}; expected inputs beside the target.")
        return inputs, targets if labels else ()
    inputs, targets = list(known.inputs), list(chosen)
    if named and list(named) != inputs:
        raise Problem(
            f"--inputs {','.join(named)} was given; the posterior was fitted with {list_names(inputs)}. "
            "Leave --inputs out."
        )
    if not chosen or set(chosen) == set(known.targets):
        targets = list(known.targets)  # in the order of the outputs
    if both := [name for name in targets if name in inputs]:
        raise Problem(f"--target {both[0]} was given; the posterior was fitted with {both[0]!r} as an input.")
    require(table, [*inputs, *(targets if labels else ())], ", which the posterior was fitted with")
    spare = [name for name in table.names if name not in (*inputs, *(targets if labels else ()))]
    if not named and (unknown := [name for name in spare if name not in (*targets, *known.columns)]):
        option = ",".join(inputs)
        raise Problem(
            f"{table.path} has the column {unknown[0]!r}, which the posterior was not fitted with; expected "
            f"{list_names(inputs)}. Remove the other columns, or leave them out with --inputs "
            f"{option if len(option) <= LONG else 'A,B,...'}."
        )
    if unasked := [name for name in spare if name in known.targets and name not in chosen]:
        warn(f"{table.path}: the target column {list_names(unasked)} is not used.")
    return inputs, targets if labels else ()


def require(table: Table, names: Sequence[str], why: str = "") -> None:
    """Refuse a table that lacks a column."""
    for name in names:
        if name not in table.names:
            near = nearest(name, table.names)
            raise Problem(f"{table.path} has no column {name!r}{why}; {near}it has {list_names(table.names)}.")


def list_names(names: Sequence[str]) -> str:
    """The first of many names."""
    return first_names([name or "''" for name in names], SHOWN)


def is_missing(cell: str) -> bool:
    """Whether a cell is empty or says so."""
    return cell.lower() in MISSING


def is_number(word: str) -> bool:
    """Whether a cell holds a finite number; underscores, which Python accepts, do not count."""
    try:
        return math.isfinite(float(word)) and "_" not in word
    except ValueError:
        return False


def is_infinite(word: str) -> bool:
    """Whether a cell says infinity, or a number that is too large."""
    try:
        return math.isinf(float(word))
    except ValueError:
        return False
