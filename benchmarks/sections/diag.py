"""Diagonal fits of all weights: time and peak memory."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks import peer
from benchmarks.cases import Bench, Case
from benchmarks.measure import Failure
from benchmarks.networks import NETWORKS
from benchmarks.sections.fits import EXACT_CLASSES, noted

PEER_BATCHES = 2  # it is slow, and its time grows with the examples


def measure(bench: Bench) -> None:
    """A record per network, library and curvature."""
    for case in bench.cases(NETWORKS):
        own = [("diag", "exact"), ("diag", "MC(1)")] if case.classes <= EXACT_CLASSES else [("diag", "MC(1)")]
        noted(bench, case, "diag", own, "diag", partial(theirs_measured, case))


def theirs_measured(case: Case, curvature: str) -> dict[str, Any]:
    """A fit of laplace-torch to a few batches, with the plain pass over as many; it keeps Jacobians of a batch."""
    model = peer.freeze_unsupported(case.model)
    batches = case.batches[:PEER_BATCHES]
    if case.network.tokens:
        return Failure("left out: it refuses outputs at several positions, after making all their Jacobians").as_dict()
    refused = peer.diagonal_too_large(model, len(batches[0][0]), case.classes, case.settings.device)
    if refused:
        return refused.as_dict()
    examples = sum(len(targets) for _, targets in batches)
    found = case.settings.measured(lambda: peer.fit(model, batches, curvature, "diag"), 2).as_dict()
    unit = case.against_unit()
    if unit:
        unit = {key: value * examples / case.examples for key, value in unit.items()}
    return {**found, **unit, "examples": examples}
