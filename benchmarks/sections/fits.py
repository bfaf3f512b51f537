"""Fits of all weights: `kron` and `ekfac` beside a plain pass and beside laplace-torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from benchmarks import count, ours, peer
from benchmarks.cases import Batches, Bench, Case
from benchmarks.measure import Measurement, Timing
from benchmarks.networks import NETWORKS

EXACT_CLASSES = 10  # outputs up to which the exact GGN is measured: it takes a backward pass each


def measure(bench: Bench) -> None:
    """A record per network, library, structure and curvature, and one of the plain pass."""
    for case in bench.cases(NETWORKS):
        bench.journal.add(case.unit, section="fits", task="forward and backward", library="torch", **case.about())
        noted(bench, case, "fits", kinds(case), "kron", partial(theirs_measured, case))


def noted(
    bench: Bench,
    case: Case,
    section: str,
    own: list[tuple[str, str]],
    structure: str,
    theirs: Callable[[str], dict[str, Any]],
) -> None:
    """Fits of ours, by structure and curvature, and one of laplace-torch."""
    for made, curvature in own:
        measured = partial(ours_measured, case, made, curvature)
        bench.note(case, section, measured, library=ours.NAME, structure=made, curvature=curvature, task="fit")
    if bench.settings.peer:
        curvature = "exact" if case.classes <= EXACT_CLASSES else "MC(1)"
        measured = partial(theirs, curvature)
        bench.note(case, section, measured, library=peer.NAME, structure=structure, curvature=curvature, task="fit")


def kinds(case: Case) -> list[tuple[str, str]]:
    """Structures and curvatures to fit with."""
    if case.classes <= EXACT_CLASSES:
        made = [("kron", "exact"), ("kron", "MC(1)"), ("ekfac", "exact")]
    else:
        made = [("kron", "MC(1)"), ("ekfac", "MC(1)")]
    return [each for each in made if each[0] in case.settings.structures]


def ours_measured(case: Case, structure: str, curvature: str, weights: Any = "all") -> dict[str, Any]:
    """A fit of ours with its decompositions, and the operations that it needs."""
    found = fit_measured(case, lambda data: ours.fit(case.model, data, curvature, structure, weights))
    if weights == "all" and structure in ("kron", "ekfac", "diag"):
        probes = case.classes - 1 if curvature == "exact" else 1  # probabilities sum to one
        operations = count.fit(case.shapes, case.examples, probes, structure)
        found = {**found, "operations": operations.as_dict(), **case.against_unit()}
    return found


def fit_measured(case: Case, fit: Callable[[Batches], Any]) -> dict[str, Any]:
    """Times of the whole fit, of its decompositions where they are known, and the memory of one fit."""
    decompositions: list[float] = []

    def once() -> None:
        timings = getattr(fit(case.batches), "timings", None)
        if isinstance(timings, Mapping) and "decompose" in timings:
            decompositions.append(float(timings["decompose"]))

    fit(case.batches[:1])  # warm up: kernels are chosen and libraries loaded
    found = case.settings.measured(once)
    return {**found.as_dict(), **decomposition_times(decompositions, found)}


def theirs_measured(case: Case, curvature: str, structure: str = "kron") -> dict[str, Any]:
    """The same for laplace-torch, whose decompositions are timed from outside."""
    model = peer.freeze_unsupported(case.model)
    peer.fit(model, case.batches[:1], curvature, structure)
    with peer.decomposition_seconds(case.settings.device) as seconds:
        found = case.settings.measured(lambda: peer.fit(model, case.batches, curvature, structure), repeats=2)
    return {**found.as_dict(), **decomposition_times(seconds, found), **case.against_unit()}


def decomposition_times(seconds: list[float], found: Measurement) -> dict[str, Any]:
    """The timed repeats, without the call whose memory was measured."""
    if not seconds:
        return {}
    return {"decompositions": Timing(tuple(seconds[-len(found.timing.seconds) :])).as_dict()}
