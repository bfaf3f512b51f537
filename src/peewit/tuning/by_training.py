"""Prior and noise from the training data alone: by the evidence, as far as the predictive explains those data.

The evidence of a network that separates its classes prefers a Gaussian which is too wide on the side of the wrong
class: the likelihood is flat on one side of the trained weights and falls on the other, and the curvature there is
nearly zero. Predictions then doubt labels that the network was trained on. So the prior precision is raised until the
predictive gives the training labels about the probability that the network itself gives them. A likelihood with noise
needs no such step: its noise, tuned at the mode of the linear model, is what widens or narrows its predictions.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..likelihoods import WithNoise
from ..linear_model.find import STEPS as SEARCH_STEPS
from ..linear_model.find import TOLERANCE, find
from ..messages.errors import PeewitError
from ..network.batches import Batches, merge_batches
from ..network.nests import Inputs, count, map_tensors, take
from ..posterior.trace import Trace
from ..predictions.bare_outputs import Outputs
from ..predictions.predict import predict
from ..predictions.shared import SharedPredictions
from ..priors.prior import Number, Prior
from ..runtime.progress import Progress
from .alternate import alternate
from .by_evidence import by_evidence
from .by_validation import Coordinates
from .cautions import noise_beyond_targets, sign_of_noise
from .options import TuningSettings
from .validation import mean_nlls

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

SLACK = 0.01  # nats per label that the predictive may lose on the training data: docs/quality.md
CLOSE = 0.8  # the search ends once this share of them is used
EXAMPLES = 512  # of the training data, spread evenly
CERTAIN = 1e12  # times the precision of the evidence: a posterior as good as none, which predicts what the network does
SEARCH = 16  # precisions that are tried at most
LONGEST = 3.0  # the longest step in the logarithm of the precision
DOUBT = 10 * SLACK  # lost by the evidence alone, from which on it is told: docs/quality.md
UNCHECKED = (
    "The likelihood does not say how targets are distributed, so nobody checked that predictions explain the training "
    "data; give Custom(..., predictive=...)."
)


def by_training(la: PosteriorState, settings: TuningSettings, start: Prior | Number | None) -> PosteriorState:
    """The posterior by the evidence; without noise, its prior precision is raised to explain the training data."""
    evidence = replace(settings, method="evidence", predict={})
    if settings.linear:
        tuned = alternate(la, evidence, start)
    else:
        with Progress(settings.passing.progress).working("evidence"):
            tuned = by_evidence(replace(la, linear_mode=None), evidence)
    assert tuned.trace is not None
    trace = replace(tuned.trace, method="training")
    if not settings.prior:
        return replace(tuned, trace=trace)
    pieces = spread(settings.train, tuned.N, tuned.model)
    if isinstance(tuned.likelihood, WithNoise):
        for text in noise_beyond_targets(tuned, torch.cat([targets for _, targets in pieces])):
            trace = trace.with_warning(text)
        return replace(tuned, trace=trace)
    return raise_precision(tuned, settings, trace, pieces)


def raise_precision(
    tuned: PosteriorState, settings: TuningSettings, trace: Trace, pieces: list[tuple[Inputs, Tensor]]
) -> PosteriorState:
    """The posterior with the least prior precision, from the evidence's on, that explains the training data."""
    search = search_of(tuned, settings, pieces)
    if search is None:
        return replace(tuned, trace=trace.with_warning(UNCHECKED))
    factor = search.run()
    if factor == 1:
        return replace(tuned, trace=trace)
    posterior, passing = search.coordinates.at(search.mean * factor, None, None), settings.passing
    if tuned.linear_mode is not None:
        posterior = find(posterior, settings.train, TOLERANCE, SEARCH_STEPS, passing.memory, passing.progress)
    return replace(posterior, trace=replace(trace, raised=factor))


def search_of(
    tuned: PosteriorState, settings: TuningSettings, pieces: list[tuple[Inputs, Tensor]]
) -> PrecisionSearch | None:
    """What predictions lose on some training examples; None where the likelihood cannot score predictions."""
    if isinstance(predict(tuned, take(pieces[0][0], slice(0, 1)), **settings.predict), Outputs):
        return None
    shared = SharedPredictions(
        la=tuned,
        batches=Batches(pieces, tuned.model, "The training data"),
        options={**settings.predict, "memory": settings.passing.memory},
        progress=Progress(settings.passing.progress),
    )
    coordinates, mean = Coordinates.of(tuned)
    labels = max(tuned.totals.scalars, 1.0) / tuned.N  # per example
    return PrecisionSearch(shared=shared, coordinates=coordinates, mean=mean, labels=labels)


def signs_on_training(tuned: PosteriorState, settings: TuningSettings) -> list[str]:
    """Signs in the predictions of training examples that a posterior by the evidence alone is not sure enough."""
    pieces = spread(settings.train, tuned.N, tuned.model)
    if isinstance(tuned.likelihood, WithNoise):
        return sign_of_noise(tuned, torch.cat([targets for _, targets in pieces]))
    search = search_of(tuned, settings, pieces)
    lost = 0.0 if search is None else search.lost(0.0)
    if lost <= DOUBT:
        return []
    return [f"predictions explain the training labels worse than the network does, by {lost:.2g} nats per label"]


@dataclass(eq=False, kw_only=True)
class PrecisionSearch:
    """The least factor of the prior precision at which predictions lose at most SLACK on the training data."""

    shared: SharedPredictions
    coordinates: Coordinates
    mean: float  # of the precisions that the evidence chose
    labels: float  # per example
    tried: dict[float, float] = field(default_factory=dict)  # log factors, and what is lost there

    def losses(self, logs: list[float]) -> list[float]:
        """NLL per label at some log factors."""
        settings = [self.setting(self.mean * math.exp(log)) for log in logs]
        return [value / self.labels for value in mean_nlls(self.shared, settings)]

    def lost(self, log: float) -> float:
        """NLL per label at a log factor, less that of the network."""
        network, posterior = self.losses([math.log(CERTAIN), log])
        return posterior - network

    def setting(self, mean: float) -> Any:
        """The posterior at a mean precision, made when it is asked."""
        return lambda: self.coordinates.at(mean, None, None)

    def run(self) -> float:
        """The loss falls with the precision, about as fast: a step in logarithms goes to where it would be SLACK."""
        network, first = self.losses([math.log(CERTAIN), 0.0])
        log, lost = 0.0, first - network
        if lost <= SLACK:
            return 1.0
        low, high = 0.0, math.log(CERTAIN)  # too much is lost at the one, nothing at the other
        for _ in range(SEARCH):
            step = math.log(lost / (0.9 * SLACK)) if lost > 0 and math.isfinite(lost) else LONGEST
            log = log + max(-LONGEST, min(step, LONGEST))
            if not low < log < high:
                log = 0.5 * (low + high)
            lost = self.losses([log])[0] - network
            if CLOSE * SLACK <= lost <= SLACK:
                return math.exp(log)
            low, high = (low, log) if lost <= SLACK else (log, high)
            if high - low < 0.01:
                break
        return math.exp(high)


def spread(data: Any, examples: int, model: nn.Module) -> list[tuple[Inputs, Tensor]]:
    """Some of the training examples, spread evenly over them: batches may hold one class each."""
    batches, step = Batches(data, model, "The training data"), -(-examples // EXAMPLES)

    def choose() -> Iterator[tuple[Inputs, Tensor]]:
        seen = 0
        for inputs, targets in batches:
            rows = slice(-seen % step, None, step)
            seen += count(inputs)
            if len(targets[rows]):
                yield map_tensors(torch.clone, take(inputs, rows)), targets[rows].clone()
        if seen != examples:
            raise PeewitError(
                f"train has {seen} examples, and the posterior was fitted to {examples}; expected the same data."
            )

    with torch.random.fork_rng(devices=[]):  # a shuffled loader draws from the global generator
        return list(merge_batches(choose(), lambda _: EXAMPLES // 4, True))
