"""Choosing the prior precision by the evidence, after a fit."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

from benchmarks import ours, peer
from benchmarks.cases import Bench, Case
from benchmarks.networks import NETWORKS

BATCHES = 8  # the data's size changes nothing: no data are passed over


def measure(bench: Bench) -> None:
    """A record per network and library, one prior precision for all weights."""
    for case in bench.cases(NETWORKS):
        bench.note(case, "tuning", partial(ours_measured, case), library=ours.NAME, structure="kron", task="tune")
        if bench.settings.peer:
            bench.note(
                case,
                "tuning",
                partial(theirs_measured, case),
                library=peer.NAME,
                structure="kron",
                task="tune",
            )


def ours_measured(case: Case) -> dict[str, Any]:
    """`la.tune()` from precision 1 to its own tolerance."""
    posterior = ours.fit(case.model, case.batches[:BATCHES], "MC(1)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # untrained networks are odd
        chosen = posterior.tune()
        found = case.settings.measured(lambda: posterior.tune(), 5)
    return {**found.as_dict(), "precision": float(chosen.prior.precision), "steps": chosen.trace and len(chosen.trace)}


def theirs_measured(case: Case) -> dict[str, Any]:
    """A hundred steps of Adam from precision 1."""
    posterior = peer.fit(peer.freeze_unsupported(case.model), case.batches[:BATCHES], "MC(1)")
    chosen = peer.tune(posterior)
    found = case.settings.measured(lambda: peer.tune(posterior), 2)
    return {**found.as_dict(), "precision": chosen, "steps": 100}
