"""Scores on data that was not trained on, and a search that needs scores alone."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from ..messages.errors import PeewitError
from ..messages.names import check_options
from ..network.batches import Batches
from ..network.isolation import entry_point
from ..predictions.predict import predict
from ..predictions.prediction import Prediction
from ..predictions.shared import Setting, SharedPredictions, read_predictions
from ..runtime.progress import QUIET, Progress
from .options import TuningSettings

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

PREDICT = tuple(inspect.signature(predict).parameters)[2:]  # its options, after the posterior and the inputs
Score = Callable[[Sequence[float]], float]
Ahead = Callable[[Sequence[Sequence[float]]], None]  # scores that are about to be asked for, all at once


@entry_point
def validation_nll(la: PosteriorState, data: Any, options: Mapping[str, Any], progress: Progress = QUIET) -> float:
    """The mean negative log probability per example of the predictive, over all batches of `data`."""
    others = ", ".join(name for name in PREDICT if name not in ("memory", "progress"))
    check_options(options, PREDICT, "validation_nll", f"memory, progress and the options of la.predict: {others}")
    batches = Batches(data, la.model, "The validation data")
    return mean(read_predictions(la, batches, options, summed_nll, progress))


def mean_nlls(shared: SharedPredictions, settings: Sequence[Setting]) -> list[float]:
    """The same for every setting of a posterior, on the same data; infinite where the precision has no factor."""
    try:
        return [mean(sums) for sums in shared.read(settings, summed_nll)]
    except PeewitError:
        sound = [has_factor(setting()) for setting in settings]
        if all(sound):
            raise
    scores = iter(mean_nlls(shared, list(itertools.compress(settings, sound))) if any(sound) else [])
    return [next(scores) if factored else math.inf for factored in sound]


def has_factor(la: PosteriorState) -> bool:
    """Whether the posterior precision is positive definite and finite."""
    try:
        la.precision.logdet()
    except PeewitError:
        return False
    return True


def no_finite_score(settings: str) -> PeewitError:
    """The error where no setting can be chosen."""
    return PeewitError(
        f"No setting {settings} has a finite score: the posterior precision is not positive definite there, or "
        "the scores are NaN or infinite. Use a larger prior precision; where the curvature is a Hessian, "
        "`curvature='ggn'` or `Hessian(clip=True)`."
    )


def summed_nll(prediction: Prediction, targets: Tensor) -> tuple[float, int]:
    """The negative log probability of targets, summed over examples, and how many these are."""
    return -float(prediction.log_prob(targets).double().sum()), len(targets)


def mean(sums: Sequence[tuple[float, int]]) -> float:
    """Per example, of sums over some examples each."""
    return sum(total for total, _ in sums) / sum(examples for _, examples in sums)


def shared_predictions(la: PosteriorState, settings: TuningSettings) -> SharedPredictions:
    """Those that `tune` scores."""
    batches, passing = validation_batches(settings.validation, la.model), settings.passing
    return SharedPredictions(
        la=la,
        batches=batches,
        options={**settings.predict, "memory": passing.memory},
        progress=Progress(passing.progress),
    )


def validation_batches(data: Any, model: nn.Module) -> Batches:
    """Validation data, which is passed over once per score."""
    if data is None:
        raise PeewitError(
            "method='validation' scores predictions on data that was not trained on; give it as validation=(x, y) or a "
            "DataLoader, or use method='evidence', which needs none."
        )
    batches = Batches(data, model, "The validation data")
    batches.refuse_one_shot("Every score passes over the data")
    return batches


def scan(score: Score, start: Sequence[float], offsets: Mapping[int, Sequence[float]], ahead: Ahead) -> list[float]:
    """A start for the search: the best of some values of each coordinate, one after the other."""
    best, value = list(start), math.inf
    for axis, tried in offsets.items():
        line = [[*best[:axis], best[axis] + offset, *best[axis + 1 :]] for offset in tried]
        ahead([best, *line])
        value = min(value, score(best))
        for point in line:
            candidate = score(point)
            if candidate < value:
                best, value = point, candidate
    return best


def minimise(
    score: Score, start: Sequence[float], size: float, tolerance: float, steps: int, ahead: Ahead = lambda _: None
) -> bool:
    """Nelder and Mead's simplex, which needs no gradient; says whether it became as small as the tolerance."""
    simplex = [list(start)]
    simplex += [[v + size * (i == j) for j, v in enumerate(start)] for i in range(len(start))]
    ahead(simplex)
    corners = [(score(corner), corner) for corner in simplex]

    def towards(centre: list[float], worst: list[float], share: float) -> tuple[float, list[float]]:
        point = [c + share * (w - c) for c, w in zip(centre, worst, strict=True)]
        return score(point), point

    for _ in range(steps):
        corners.sort(key=lambda corner: corner[0])
        best, worst = corners[0], corners[-1]
        extent = max(abs(a - b) for _, other in corners[1:] for a, b in zip(best[1], other, strict=True))
        if extent <= tolerance:
            return True
        centre = [sum(values) / (len(corners) - 1) for values in zip(*(c for _, c in corners[:-1]), strict=True)]
        mirrored = towards(centre, worst[1], -1.0)
        if mirrored[0] < best[0]:
            further = towards(centre, worst[1], -2.0)
            corners[-1] = min(further, mirrored, key=lambda corner: corner[0])
        elif mirrored[0] < corners[-2][0]:
            corners[-1] = mirrored
        else:
            nearer = towards(centre, worst[1], 0.5 if mirrored[0] >= worst[0] else -0.5)
            if nearer[0] < min(worst[0], mirrored[0]):
                corners[-1] = nearer
            else:
                shrunk = [[0.5 * (a + b) for a, b in zip(best[1], other, strict=True)] for _, other in corners[1:]]
                ahead(shrunk)
                corners = [best, *((score(corner), corner) for corner in shrunk)]
    return False
