"""Learning hyperparameters while training: what a hyper-step costs beside an epoch of plain training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F

import peewit as pw
from benchmarks import ours
from benchmarks.cases import Bench, Case
from benchmarks.measure import Measurement
from benchmarks.networks import NETWORKS

EVERY = 5  # epochs between hyper-steps on all data
# Name, options of the learner, and epochs between its steps.
WAYS: dict[str, tuple[dict[str, Any], int]] = {
    "kron, MC(1)": ({"structure": "kron", "curvature": "fisher", "prior": "layerwise"}, EVERY),
    "kron, MC(1), a tenth of the data": (
        {"structure": "kron", "curvature": "fisher", "prior": "layerwise", "share": 0.1},
        1,
    ),
    "kron, exact": ({"structure": "kron", "curvature": "ggn", "prior": "layerwise"}, EVERY),
    "diag, exact": ({"structure": "diag", "curvature": "ggn", "prior": "diagonal"}, EVERY),
}


def measure(bench: Bench) -> None:
    """A record per network and way."""
    for case in bench.cases(NETWORKS):
        plain = case.settings.measured(epoch_of(case))
        for name in WAYS:
            bench.note(
                case, "learning", partial(way_measured, case, plain, name), library=ours.NAME, way=name, task="learn"
            )


def optimizer_of(case: Case) -> torch.optim.Optimizer:
    """With a rate that leaves the weights where they are."""
    return torch.optim.SGD(case.model.parameters(), lr=1e-12, momentum=0.9)


def epoch_of(case: Case, optimizer: torch.optim.Optimizer | None = None) -> Callable[[], None]:
    """A pass of training over the data: forward, backward, and a step per batch."""
    own = optimizer_of(case) if optimizer is None else optimizer

    def epoch() -> None:
        for inputs, targets in case.batches:
            own.zero_grad()
            output = case.model(inputs)
            F.cross_entropy(output.flatten(0, -2), targets.flatten()).backward()
            own.step()
        own.zero_grad()

    return epoch


def way_measured(case: Case, plain: Measurement, name: str) -> dict[str, Any]:
    """A hyper-step, and training with it over training without."""
    options, every = WAYS[name]
    prior = getattr(pw.Prior, options["prior"])(1.0)
    optimizer = optimizer_of(case)
    learner = pw.learning.Learner(
        case.model, case.batches, "classification", optimizer, **{**options, "prior": prior}, loss=factor_of(case)
    )
    epoch = case.settings.measured(epoch_of(case, optimizer))
    step = case.settings.measured(learner.step)
    learner.detach()
    seconds, unit = step.timing.median, plain.timing.median
    last = learner.history[-1]
    return {
        **step.as_dict(),
        "epoch_seconds": unit,
        "followed_seconds": epoch.timing.median,
        "every": every,
        "ratio": (epoch.timing.median + seconds / every) / unit,
        "decomposing": last.decomposing / last.seconds,
        "memory": max(step.peak, epoch.peak) / plain.peak if plain.peak else None,
    }


def factor_of(case: Case) -> float:
    """The mean cross entropy over tokens is one over their number times the energy of an example."""
    return 1.0 / case.network.shape[0] if case.network.tokens else 1.0
