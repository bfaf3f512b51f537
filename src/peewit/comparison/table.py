"""A comparison as a table: the columns that the command and `print` share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..posterior.evidence import TRAINED
from .notes import RankedRows, place_of

if TYPE_CHECKING:
    from .result import ComparedPosterior, Comparison

SHORT = {True: "trained", False: "linear mode"}
# Each with its cell, and when it is shown.
COLUMNS: dict[str, tuple[Callable[[ComparedPosterior], str], Callable[[RankedRows], bool]]] = {
    "posterior": (lambda row: row.name, lambda _: True),
    "structure": (lambda row: row.structure, lambda rows: len({row.structure for row in rows}) > 1),
    "evidence at": (
        lambda row: SHORT[place_of(row) == TRAINED],
        lambda rows: any(place_of(row) != TRAINED for row in rows),
    ),
    "weights": (lambda row: f"{row.D:,}", lambda _: True),
    "log evidence": (lambda row: f"{row.log_evidence:.1f}", lambda _: True),
    "behind": (lambda row: f"{row.behind:.1f}", lambda _: True),
    "data fit": (lambda row: f"{row.log_likelihood:.1f}", lambda _: True),
    "complexity": (lambda row: f"{row.complexity:.1f}", lambda _: True),
    "effective weights": (lambda row: f"{row.effective_dimensions:.1f}", lambda _: True),
    "noise": (lambda row: noise_text(row.noise), lambda rows: any(row.noise is not None for row in rows)),
}
TESTED: dict[str, Callable[[ComparedPosterior], str]] = {
    "log evidence / N": lambda row: f"{row.log_evidence_per_example:.3f}",
    "test log-likelihood": lambda row: "" if row.test_log_likelihood is None else f"{row.test_log_likelihood:.3f}",
}


def noise_text(noise: float | Sequence[float] | None) -> str:
    """One number, or the range of several."""
    if noise is None:
        return ""
    return f"{noise:.3g}" if isinstance(noise, float) else f"{min(noise):.3g} to {max(noise):.3g}"


def cells(rows: RankedRows) -> tuple[list[str], list[list[str]]]:
    """The head, and one row per posterior, without test data."""
    shown = {name: cell for name, (cell, when) in COLUMNS.items() if when(rows)}
    return list(shown), [[cell(row) for cell in shown.values()] for row in rows]


def text(comparison: Comparison) -> str:
    """Aligned lines: names to the left, numbers to the right; then the correlation and the notes."""
    rows = comparison.rows
    head, body = cells(rows)
    if any(row.test_log_likelihood is not None for row in rows):
        head += TESTED
        body = [[*line, *(cell(row) for cell in TESTED.values())] for line, row in zip(body, rows, strict=True)]
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    left = {head.index(name) for name in ("posterior", "structure", "evidence at") if name in head}
    lines = [
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in (head, *body)
    ]
    if (correlation := comparison.rank_correlation) is not None:
        lines.append(f"rank correlation of evidence and test log-likelihood: {correlation:.2f}")
    return "\n".join([*lines, *(f"- {note}" for note in comparison.notes)])
