"""Which rule and which approximation every parameter got, as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One parameter."""

    name: str
    shape: tuple[int, ...]
    rule: str
    approximation: str


@dataclass(frozen=True)
class Coverage:
    """All parameters of a network, with what was chosen for them and why."""

    rows: tuple[Row, ...]
    curvature: str

    def __iter__(self) -> Iterator[Row]:
        """Rows in the network's order."""
        return iter(self.rows)

    def __len__(self) -> int:
        """How many parameters there are."""
        return len(self.rows)

    def __getitem__(self, name: str) -> Row:
        """The row of a parameter."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"{name!r} is no parameter of this network.")

    def __str__(self) -> str:
        """A table that fits a terminal."""
        cells = [("parameter", "shape", "rule", "approximation")]
        cells += [(row.name, "x".join(map(str, row.shape)) or "()", row.rule, row.approximation) for row in self.rows]
        widths = [max(len(line[column]) for line in cells) for column in range(4)]
        lines = ["  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in cells]
        return "\n".join(["curvature: " + self.curvature, *(line.rstrip() for line in lines)])
