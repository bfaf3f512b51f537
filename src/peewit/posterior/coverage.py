"""Which rule and which approximation every parameter got, as a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from .state import PosteriorState


@dataclass(frozen=True, kw_only=True)
class CoverageRow:
    """One parameter."""

    name: str
    shape: tuple[int, ...]
    rule: str
    approximation: str
    invariance: str = ""  # of a weight whose scale does not matter: with which others


@dataclass(frozen=True)
class Coverage:
    """A table of all parameters of a network, with the layer rule and the approximation of each.

    `la.coverage()` returns it. `coverage["0.weight"]` is the row of a parameter, `len(coverage)` is the number of rows,
    and `print(coverage)` prints the table.

    Attributes:
        rows: One row per parameter, in the network's order. A row has `name`, `shape`, `rule`, `approximation` and
            `invariance`: for a weight whose scale does not change the output, the weights that share this; else "".
        curvature: The kind of curvature, and why it was chosen.
        verified: What was compared with plain derivatives, and how far off it was; "" where nothing was.

    Example:
        >>> coverage = la.coverage()
        >>> coverage["0.weight"].rule, coverage["0.weight"].approximation, len(coverage)
        ('linear', 'Kronecker (expand)', 4)
    """

    rows: tuple[CoverageRow, ...]
    curvature: str
    verified: str = ""

    def __iter__(self) -> Iterator[CoverageRow]:
        """Rows in the network's order."""
        return iter(self.rows)

    def __len__(self) -> int:
        """How many parameters there are."""
        return len(self.rows)

    def __getitem__(self, name: str) -> CoverageRow:
        """The row of a parameter."""
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"{name!r} is not a parameter of this network.")

    def __str__(self) -> str:
        """A table that fits a terminal."""
        cells = [("parameter", "shape", "rule", "approximation", "invariance")]
        cells += [
            (row.name, "x".join(map(str, row.shape)) or "()", row.rule, row.approximation, row.invariance)
            for row in self.rows
        ]
        columns = range(5 if any(row.invariance for row in self.rows) else 4)
        widths = [max(len(line[column]) for line in cells) for column in columns]
        lines = ["  ".join(line[column].ljust(widths[column]) for column in columns) for line in cells]
        head = ["curvature: " + self.curvature, *(["verified: " + self.verified] if self.verified else [])]
        return "\n".join([*head, *(line.rstrip() for line in lines)])


def describe_invariances(sets: Iterable[tuple[str, ...]], straddling: Iterable[tuple[str, ...]]) -> dict[str, str]:
    """By parameter: that its scale does not matter, together with which others."""
    words_by_name = {}
    shared = set(straddling)
    for invariant_set in sets:
        for name in invariant_set:
            others = [each for each in invariant_set if each != name]
            words = f" with {', '.join(others[:2])}" + (f" and {len(others) - 2} more" if len(others) > 2 else "")
            note = ", but its precision is shared with others" if invariant_set in shared else ""
            words_by_name[name] = "invariant" + (words if others else "") + note
    return words_by_name


def coverage_of(la: PosteriorState) -> Coverage:
    """For every parameter the rule and the approximation it got."""
    rows, rules = [], la.measurement.rules
    invariant = describe_invariances(la.prior.sets, la.prior.straddling(la.space))
    for name, parameter in la.model.named_parameters():
        if name in la.space.names:
            rule, words = rules[name], la.curvature.approximation(name) + la.space.describe_selection(name)
        elif name in rules:
            rule, words = "unused", "left out"
        else:
            rule, words = "not selected", "fixed"
        rows.append(
            CoverageRow(
                name=name,
                shape=tuple(parameter.shape),
                rule=rule,
                approximation=words,
                invariance=invariant.get(name, ""),
            )
        )
    return Coverage(tuple(rows), la.measurement.reason, la.knowledge.words())
