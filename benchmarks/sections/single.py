"""One input at a time: how long its prediction takes, from the input to probabilities, beside a plain forward pass."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from benchmarks import ours, peer
from benchmarks.cases import Bench, Case
from benchmarks.measure import Failure, attempt, synchronise
from benchmarks.networks import NETWORKS
from benchmarks.sections.predictives import curvature_of

FORWARD, PREDICT, PREDICTOR = "forward pass", "la.predict", "la.predictor"
REPEATS = 500
PATIENCE = 4.0  # seconds for all calls of one way
FEWEST = 5
WARM = 5

Way = Callable[[], Any]


def measure(bench: Bench) -> None:
    """A record per network and weights: all ways by turns, so that what disturbs one disturbs all."""
    for case in bench.cases(NETWORKS):
        if not case.network.tokens:  # which laplace-torch refuses
            for weights in ("last_layer", "all"):
                bench.note(
                    case,
                    "single",
                    partial(latencies, case, weights, bench.settings.peer),
                    library=ours.NAME,
                    structure="kron",
                    weights=weights,
                    task=f"one input at a time, {weights}",
                )


def latencies(case: Case, weights: str, beside: bool) -> dict[str, Any]:
    """Percentiles of each way in seconds, and how the predictor predicts."""
    x = case.inputs(1)
    posterior = ours.fit(case.model, case.batches[:2], curvature_of(case), "kron", weights)
    started = time.perf_counter()
    predictor = posterior.predictor(x)
    synchronise(case.settings.device)
    found: dict[str, Any] = {"prepared": time.perf_counter() - started, "how": predictor.how}

    def forward() -> Any:
        with torch.no_grad():
            return case.model(x)

    ways: dict[str, Way | Failure] = {
        FORWARD: forward,
        PREDICT: lambda: posterior.predict(x).probs,
        PREDICTOR: lambda: predictor(x).probs,
    }
    if beside:
        ways[peer.NAME] = attempt(partial(theirs, case, weights, x))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        measured = by_turns(ways, case)
    expected = predictor(x).probs
    found["difference"] = float((posterior.predict(x).probs - expected).abs().max())
    return {**found, "ways": measured}


def theirs(case: Case, weights: str, x: torch.Tensor) -> Way | Failure:
    """laplace-torch's call for probabilities, with its default link, which is the probit."""
    model = peer.freeze_unsupported(case.model) if weights == "all" else case.model
    refused = peer.too_large(model, 1, case.classes, case.settings.device) if weights == "all" else None
    if refused:
        return refused
    posterior = peer.fit(model, case.batches[:2], curvature_of(case), "kron", weights)
    return lambda: posterior(x)


@dataclass
class Clock:
    """The calls of one way."""

    call: Way
    seconds: list[float] = field(default_factory=list)
    spent: float = 0.0

    def tick(self, device: torch.device) -> None:
        """One call, until its result is there."""
        synchronise(device)
        start = time.perf_counter()
        self.call()
        synchronise(device)
        self.seconds.append(time.perf_counter() - start)
        self.spent += self.seconds[-1]

    def wants(self, repeats: int) -> bool:
        """Whether there is time for another call."""
        return len(self.seconds) < repeats and (self.spent < PATIENCE or len(self.seconds) < FEWEST)


def by_turns(ways: Mapping[str, Way | Failure], case: Case) -> dict[str, dict[str, Any]]:
    """Percentiles by the name of the way; each is warmed up."""
    repeats = FEWEST if case.settings.quick else REPEATS
    device = case.settings.device
    found: dict[str, dict[str, Any]] = {}
    clocks: dict[str, Clock] = {}
    for name, way in ways.items():
        warmed = way if isinstance(way, Failure) else attempt(partial(warm, way))
        if isinstance(warmed, Failure):
            found[name] = warmed.as_dict()
        else:
            clocks[name] = Clock(way)  # type: ignore[arg-type]
    while waiting := [clock for clock in clocks.values() if clock.wants(repeats)]:
        for clock in waiting:
            clock.tick(device)
    return {name: found[name] if name in found else percentiles(clocks[name].seconds) for name in ways}


def warm(way: Way) -> None:
    """A few calls, fewer where they take long."""
    start = time.perf_counter()
    for _ in range(WARM):
        way()
        if time.perf_counter() - start > PATIENCE / 4:
            return


def percentiles(seconds: list[float]) -> dict[str, Any]:
    """The median and how slow the slowest are."""
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {"p50": statistics.median(seconds), "p90": cuts[89], "p99": cuts[98], "repeats": len(seconds)}
