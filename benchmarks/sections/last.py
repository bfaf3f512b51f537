"""The last layer alone: fits, and variances beside the network's own forward pass."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks import ours, peer
from benchmarks.cases import Bench, Case
from benchmarks.measure import Failure, Measurement, attempt
from benchmarks.networks import LAST
from benchmarks.sections.fits import fit_measured

FULL_OUTPUTS = 100
PEER_FULL_WEIGHTS = 6_000  # it multiplies with the identity, one column after the other


def measure(bench: Bench) -> None:
    """A record per network, library and structure: the fit, and the variances of a batch."""
    for case in bench.cases(LAST):
        curvature = "exact" if case.classes <= FULL_OUTPUTS else "MC(1)"
        structures = ("kron", "ekfac", "diag", "full") if case.classes <= FULL_OUTPUTS else ("kron", "ekfac", "diag")
        for structure in structures:
            bench.note(
                case,
                "last",
                partial(ours_measured, case, structure, curvature),
                library=ours.NAME,
                structure=structure,
                curvature=curvature,
                weights="last_layer",
                task="fit and variances",
            )
        if bench.settings.peer:
            for structure in structures:
                if structure == "ekfac":
                    continue  # it has none
                bench.note(
                    case,
                    "last",
                    partial(theirs_measured, case, structure, curvature),
                    library=peer.NAME,
                    structure=structure,
                    curvature=curvature,
                    weights="last_layer",
                    task="fit and variances",
                )


def batch_of(case: Case) -> int:
    """Inputs to predict at."""
    return 8 if case.settings.quick else 512 if case.settings.cuda else 64


def plain(case: Case, inputs: Tensor) -> Measurement:
    """The network's own forward pass."""

    def forward() -> None:
        with torch.no_grad():
            case.model(inputs)

    forward()
    return case.settings.measured(forward, 5)


def ours_measured(case: Case, structure: str, curvature: str) -> dict[str, Any]:
    """A fit of ours, and variances of a batch."""
    found = fit_measured(case, lambda data: ours.fit(case.model, data, curvature, structure, "last_layer"))
    posterior = ours.fit(case.model, case.batches[:2], curvature, structure, "last_layer")
    return {
        **found,
        "variances": variances(case, lambda x: posterior.functional(x, variance_only=True), (batch_of(case),)),
    }


def theirs_measured(case: Case, structure: str, curvature: str) -> dict[str, Any]:
    """The same of laplace-torch, at smaller batches where it runs out of memory."""
    weights = sum(parameter.numel() for parameter in list(case.model.parameters())[-2:])
    if structure == "full" and weights > PEER_FULL_WEIGHTS and not case.settings.cuda:
        return Failure(f"left out: {weights:,} products over the data").as_dict()

    def refuse(size: int) -> Failure | None:
        return peer.too_large(case.model, size, case.classes, case.settings.device, weights)

    # Its diagonal keeps Jacobians of a batch: on the host that ends the process.
    refused = refuse(len(case.batches[0][0]))
    if structure == "diag" and refused:
        return refused.as_dict()
    fit = partial(peer.fit, case.model, curvature=curvature, structure=structure, weights="last_layer")
    found = fit_measured(case, fit)
    posterior = fit(case.batches[:2])
    sizes = tuple(size for size in (batch_of(case), 64, 16, 4, 1) if size <= batch_of(case))
    return {**found, "variances": variances(case, lambda x: peer.functional(posterior, x, True), sizes, refuse)}


def variances(
    case: Case,
    functional: Callable[[Tensor], Any],
    sizes: tuple[int, ...],
    refuse: Callable[[int], Failure | None] = lambda size: None,
) -> dict[str, Any]:
    """Variances of the largest batch that runs, beside a forward pass over the same batch."""
    outcome: Any = Failure("no batch size")
    for size in sizes:
        inputs = case.inputs(size)

        def once(inputs: Tensor = inputs) -> Measurement:
            functional(inputs)
            return case.settings.measured(lambda: functional(inputs), 5)

        outcome = refuse(size) or attempt(once)
        if isinstance(outcome, Measurement):
            forward = plain(case, inputs)
            return {"batch": size, **outcome.as_dict(), "forward": forward.as_dict()}
    assert isinstance(outcome, Failure)
    return outcome.as_dict()
