"""What to know before reading a comparison: which evidences do not compare, and which are next to equal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..messages.names import first_names
from ..posterior.evidence import LINEAR, TRAINED

if TYPE_CHECKING:
    from .result import ComparedPosterior

RankedRows = Sequence["ComparedPosterior"]
CLOSE = 3.0  # nats: a factor of 20 in probability


def notes_on(rows: RankedRows) -> tuple[str, ...]:
    """Sentences; those on single posteriors first. `rows` are ranked."""
    return tuple(
        note for find in (of_single_rows, of_fits, of_approximations, of_weights, of_ties) for note in find(rows)
    )


def place_of(row: ComparedPosterior) -> str:
    """The kind of weights at which the evidence was taken, whatever prior they belong to."""
    return LINEAR if row.where.startswith(LINEAR) else TRAINED


def differing(rows: RankedRows, value: Callable[[ComparedPosterior], Any]) -> str:
    """'60 (a, b), 40 (c)': the values with the names that have them; nothing where all have the same."""
    names: dict[Any, list[str]] = {}
    for row in rows:
        names.setdefault(value(row), []).append(row.name)
    if len(names) < 2:
        return ""
    return ", ".join(
        f"{f'{key:,}' if isinstance(key, int) else key} ({first_names(having)})" for key, having in names.items()
    )


def of_single_rows(rows: RankedRows) -> Iterator[str]:
    """What each posterior's own evidence lacks."""
    for row in rows:
        yield from (f"{row.name}: {note}" for note in row.notes)
    if broken := [row.name for row in rows if not math.isfinite(row.log_evidence)]:
        yield f"The log evidence of {first_names(broken)} is not finite, which ranks last."


def of_fits(rows: RankedRows) -> Iterator[str]:
    """Other data, or another likelihood."""
    if counts := differing(rows, lambda row: row.N):
        yield f"Fitted to different numbers of examples, {counts}: their evidences cannot be compared."
    if likelihoods := differing(rows, lambda row: row.likelihood):
        yield (
            f"Different likelihoods, {likelihoods}: evidences can be compared only where they are of the same targets."
        )


def of_approximations(rows: RankedRows) -> Iterator[str]:
    """Another approximation of the same integral."""
    if structures := differing(rows, lambda row: row.structure):
        yield (
            f"Different structures, {structures}: part of the difference is the approximation. Compare models under "
            "one structure."
        )
    if curvatures := differing(rows, lambda row: row.curvature):
        yield (
            f"Different curvatures, {curvatures}: part of the difference is the approximation. Compare models under "
            "one curvature."
        )
    if places := differing(rows, place_of):
        yield (
            f"Evidences at different kinds of weights, {places}: take all of them at the trained weights, or all at "
            "the linear mode by tune(at='linear_mode', train=...)."
        )


def of_weights(rows: RankedRows) -> Iterator[str]:
    """Other weights are uncertain; networks whose weights are all uncertain compare, however large they are."""
    choices = {(row.fixed, row.D) for row in rows}
    if len(choices) > 1 and any(row.fixed for row in rows):
        parts = first_names([f"{row.name} {row.D:,} of {row.D + row.fixed:,}" for row in rows])
        yield (
            f"Different weights are uncertain ({parts}): weights that are fixed count as certain, without a prior's "
            "price."
        )


def of_ties(rows: RankedRows) -> Iterator[str]:
    """The first ones, where none is surely the best."""
    first = [row.name for row in rows if row.rank == 1]
    if len(first) > 1:
        yield f"Equal evidence: {first_names(first)} share the first place."
    elif len(rows) > 1 and rows[1].behind < CLOSE:
        yield (f"The first two are within {CLOSE:g} nats, a factor of 20 in probability: weak grounds to prefer one.")
