"""One posterior of a comparison: its evidence in parts, and its predictions on test data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..evaluation.call import EvaluationOptions
from ..evaluation.describing import noise_of
from ..evaluation.gathering import MethodNumbers
from ..evaluation.scorers import scorer_of
from ..evaluation.scoring import metrics_of
from ..laplace import Laplace
from ..messages.errors import ArgumentTypeError, PeewitError
from ..messages.names import check_options
from ..metrics.bootstrap import Resampling
from ..metrics.results import Estimate
from ..network.batches import Batches
from ..network.isolation import entry_point
from ..posterior.evidence import Evidence
from ..posterior.state import PosteriorState
from ..predictions.prediction import Prediction
from ..predictions.shared import read_predictions
from ..runtime.progress import Progress
from ..tuning.validation import PREDICT, mean, summed_nll
from .result import ComparedPosterior


@entry_point
def assess(
    name: str,
    la: Laplace,
    test: Any,
    options: EvaluationOptions,
    memory: float | None = None,
    progress: bool = False,
) -> ComparedPosterior:
    """The row of one posterior, which does not know the others yet."""
    if not isinstance(la, Laplace):
        raise ArgumentTypeError(
            f"{name} is a {type(la).__name__}; expected a posterior, a Laplace, which peewit.fit returns."
        )
    evidence = la.evidence()
    metrics, log_likelihood = ({}, None) if test is None else predict(name, la, test, options, memory, progress)
    return ComparedPosterior(
        name=name,
        log_likelihood=evidence.log_likelihood,
        distance=evidence.distance,
        log_volume=evidence.log_volume,
        effective_dimensions=evidence.gamma,
        D=la.D,
        N=la.N,
        fixed=fixed_weights(la.state),
        likelihood=type(la.state.likelihood).__name__,
        structure=type(la.structure).__name__,
        curvature=la.curvature.name,
        noise=noise_of(la.state.likelihood),
        temperature=la.temperature,
        where=evidence.where,
        notes=notes_of(la.state, evidence),
        metrics=metrics,
        test_log_likelihood=log_likelihood,
    )


def predict(
    name: str, la: Laplace, test: Any, options: EvaluationOptions, memory: float | None, progress: bool
) -> tuple[Mapping[str, Estimate], float]:
    """Metrics on the test data, and the log-likelihood per example, all positions of an example together."""
    numbers = MethodNumbers()

    def read(prediction: Prediction, targets: Tensor) -> tuple[float, int]:
        numbers.batches.append(scorer_of(prediction).positions(targets))
        numbers.trim()
        return summed_nll(prediction, targets)

    check_options(options.predict, PREDICT, "predict", f"the options of la.predict: {', '.join(PREDICT)}")
    given = options.predict if memory is None else {"memory": memory, **options.predict}
    try:
        batches = Batches(test if la.schema is None else la.schema.in_order(test), la.model, "test")
        sums = read_predictions(la.state, batches, given, read, Progress(progress))
        positions = numbers.positions()
        if not len(positions):
            raise PeewitError("no position has a label; expected some that are not ignored.")
    except ValueError as error:  # of the network's own inputs too
        kind = type(error) if isinstance(error, PeewitError) else PeewitError
        raise kind(f"{name} on the test data: {error}") from error
    drawn = Resampling(positions.examples, options.intervals, options.seed)
    return {name: draws.estimate for name, draws in metrics_of(positions, drawn).items()}, -mean(sums)


def fixed_weights(state: PosteriorState) -> int:
    """How many weights that the network uses are held fixed: those not selected, whole tensors and elements."""
    space = state.space
    others = sum(
        parameter.numel()
        for name, parameter in state.model.named_parameters()
        if name not in space.names and name not in state.measurement.rules  # these were selected, and are unused
    )
    return others + space.total - space.size


def notes_of(state: PosteriorState, evidence: Evidence) -> tuple[str, ...]:
    """Why this evidence alone is not what it seems to be."""
    notes = []
    if evidence.note:
        notes.append(f"the evidence is not a marginal likelihood, and compares with no other: {evidence.note}.")
    linear = state.linear_mode
    if linear is not None and not state.has_own_linear_mode:
        notes.append(
            "the linear mode was found under another prior, noise or temperature; find it again by "
            "la.at_linear_mode(train)."
        )
    elif linear is not None and not linear.converged:
        notes.append(
            f"the search for the linear mode stopped about {linear.decrement:.2g} nats above the minimum: "
            f"{linear.stopped}."
        )
    return tuple(notes)
