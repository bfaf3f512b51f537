"""Prior, noise and temperature by the NLL on validation data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..linear_model.objective import chunks
from ..posterior.trace import Trace, TuningStep
from ..predictions.shared import Setting, SharedPredictions
from ..priors.prior import Prior
from .by_evidence import noise_limits, noise_of, residual_noise
from .options import LIMITS, TEMPERATURES, TuningSettings
from .validation import mean_nlls, minimise, no_finite_score, scan, shared_predictions

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

# Of the precision that the size of the weights suggests. Validation data do not tell smaller ones apart: the variance
# is that of units which these data never switch on, and has no bound for other inputs (docs/quality.md).
LEAST = 1e-3
CERTAIN = LIMITS[1]  # a precision under which the weights are as good as certain
OFFSETS = ((-6.9, -4.6, -2.3, 2.3, 4.6, 6.9), (-1.4, -0.7, 0.7, 1.4), (-2.3, -1.1, 1.1, 2.3))
TIE = 1e-6  # nats: which of two such settings is the better is rounding
AT_LEAST = (
    f"; the precision is the least that is tried, {LEAST:g} of what the size of the weights suggests (see limits=)"
)
WORDS = ("The geometric mean of the precisions", "The noise", "The temperature")
NONE = "on these data predictions are best without uncertainty of the weights: they are the network's own"


@dataclass(frozen=True)
class Coordinates:
    """Geometric mean of the precisions, noise and temperature as settings of one posterior."""

    la: PosteriorState
    prior: Prior  # with ratios whose geometric mean is one

    @staticmethod
    def of(la: PosteriorState) -> tuple[Coordinates, float]:
        """And where it stands: the geometric mean of its precisions."""
        precision = la.prior.precision.detach().cpu().double()
        mean = float(precision.log().mean().exp())
        return Coordinates(la, la.prior.with_precision(precision / mean)), mean

    def precisions(self, mean: float) -> Tensor:
        """(groups,), or one for all."""
        return self.prior.precision * mean

    def at(self, mean: float, noise: float | None, temperature: float | None) -> PosteriorState:
        """The posterior there; what is None stays."""
        posterior = self.la.with_prior(self.prior.with_precision(self.precisions(mean)))
        posterior = posterior if noise is None else posterior.with_noise(noise)
        return posterior if temperature is None else posterior.with_temperature(temperature)

    def setting(self, settings: TuningSettings, values: Sequence[float]) -> Setting:
        """The posterior at a mean precision, a noise and a temperature, to be made later; what is not tuned stays."""
        mean, noise, temperature = values
        return lambda: self.at(mean, noise if settings.noise else None, temperature if settings.temperature else None)


def noise_range(la: PosteriorState) -> tuple[float, float]:
    """No less than the training residuals: on few data a smaller noise is an accident, and fails on the next ones."""
    quiet, loud = noise_limits(la)
    return max(quiet, residual_noise(la)), loud


def usual_precision(la: PosteriorState, prior: Prior) -> float:
    """The factor of the precisions under which the prior expects weights of the size of the trained ones."""
    weights, size = la.weights, 0.0
    with torch.no_grad():
        delta, centre = prior.parts(la.space, weights), prior.centre(la.space, weights)
        for chosen in chunks(len(weights)):
            displacement = weights[chosen] - centre[chosen]
            size += float((delta(chosen) * displacement.square()).sum(dtype=torch.float64))
    return la.space.size / size if size > 0 else 0.0


def precision_range(la: PosteriorState, settings: TuningSettings, prior: Prior) -> tuple[float, float]:
    """The limits that were given, or else no less than a share of the usual precision."""
    if settings.limits is not None:
        return settings.limits
    low, high = LIMITS
    return min(max(low, LEAST * usual_precision(la, prior)), 0.1 * high), high


@dataclass(frozen=True, eq=False, kw_only=True)
class Search:
    """Scores of settings by the logarithms of mean precision, noise and temperature, each taken once."""

    shared: SharedPredictions
    coordinates: Coordinates
    settings: TuningSettings
    ends: Sequence[tuple[float, float]]  # of the three
    scores: dict[tuple[float, ...], float] = field(default_factory=dict)
    steps: list[TuningStep] = field(default_factory=list)

    def score(self, keys: Iterable[tuple[float, ...]]) -> None:
        """Score what has no score yet, all at once."""
        new = [key for key in dict.fromkeys(keys) if key not in self.scores]
        values = [tuple(map(math.exp, key)) for key in new]
        tried = [self.coordinates.setting(self.settings, value) for value in values]
        nlls = mean_nlls(self.shared, tried) if tried else []
        for key, (mean, noise, temperature), nll in zip(new, values, nlls, strict=True):
            self.scores[key] = nll if math.isfinite(nll) else math.inf
            self.steps.append(
                TuningStep(
                    value=self.scores[key],
                    precision=self.coordinates.precisions(mean),
                    noise=noise_of(self.coordinates.la, noise),
                    temperature=temperature,
                    gamma=None,
                )
            )

    def walk(self, origin: Sequence[float], axes: Sequence[int]) -> bool:
        """From one point along some axes; says whether it converged."""

        def place(z: Sequence[float]) -> tuple[float, ...]:
            whole = list(origin)
            for axis, value in zip(axes, z, strict=True):
                whole[axis] = min(max(value, math.log(self.ends[axis][0])), math.log(self.ends[axis][1]))
            return tuple(whole)

        def ahead(points: Sequence[Sequence[float]]) -> None:
            self.score(map(place, points))

        def score(z: Sequence[float]) -> float:
            ahead([z])
            return self.scores[place(z)]

        offsets = {number: OFFSETS[axis] for number, axis in enumerate(axes)}
        first = scan(score, [origin[axis] for axis in axes], offsets, ahead)
        score(first)
        return not axes or minimise(score, first, 0.7, self.settings.tolerance, self.settings.steps, ahead)


def by_validation(la: PosteriorState, settings: TuningSettings) -> PosteriorState:
    """The least NLL of the predictive that will be used, over a factor of the prior, the noise and the temperature."""
    coordinates, mean = Coordinates.of(la)
    noise = float(la.likelihood.noise_precision) ** -0.5
    precisions = precision_range(la, settings, coordinates.prior) if settings.prior else (mean, mean)
    search = Search(
        shared=shared_predictions(la, settings),
        coordinates=coordinates,
        settings=settings,
        ends=[precisions, noise_range(la) if settings.noise else (noise, noise), TEMPERATURES],
    )
    begin = [math.log(value) for value in (mean, noise, la.temperature)]
    tuned = [settings.prior, settings.noise, settings.temperature]
    axes = [axis for axis, free in enumerate(tuned) if free]
    converged = search.walk(begin, axes)
    if settings.prior:  # predictions of the network itself, with the noise that suits them
        converged &= search.walk([math.log(CERTAIN), *begin[1:]], axes[1:])
    scores = search.scores
    if not math.isfinite(min(scores.values())):
        raise no_finite_score("that the search begins with")
    best = min(scores, key=lambda key: scores[key])
    networks = [score for key, score in scores.items() if is_at(key[0], CERTAIN)]
    certain = settings.prior and min(networks) - scores[best] < TIE
    warnings = at_limits(best, search.ends, axes, settings, certain)
    stopped = (
        f"its steps are smaller than {settings.tolerance:g}, in logarithms of what is tuned"
        if converged
        else f"{settings.steps} steps were not enough"
    )
    if not converged:
        warnings.append(f"Tuning did not converge: {stopped}.")
    if settings.prior and settings.limits is None and is_at(best[0], precisions[0]):
        stopped += AT_LEAST
    values = [math.exp(value) for value in best]
    return best_posterior(la, coordinates, settings, values, search.steps, stopped, converged, warnings)


def is_at(log: float, end: float) -> bool:
    """Whether a logarithm is that of an end of its range."""
    return abs(log - math.log(end)) < 1e-2


def at_limits(
    best: Sequence[float],
    ends: Sequence[tuple[float, float]],
    axes: Sequence[int],
    settings: TuningSettings,
    certain: bool,
) -> list[str]:
    """Warnings about what is at an end of its range, and where the network itself is as good."""
    warnings = []
    for axis in axes:
        if axis == 0 and certain:
            warnings.append(f"The geometric mean of the precisions is {math.exp(best[0]):.3g}: {NONE}.")
            continue
        for top in (0, 1):
            # Nothing odd: a noise as small as the training residuals, and the least precision unless it was given. A
            # warning of the latter would come in runs that improved alone: docs/quality.md has how often.
            usual = (axis, top) == (1, 0) or ((axis, top) == (0, 0) and settings.limits is None)
            if not usual and is_at(best[axis], ends[axis][top]):
                end = "largest" if top else "smallest"
                warnings.append(f"{WORDS[axis]} is at the {end} allowed, {ends[axis][top]:.3g}.")
    return warnings


def best_posterior(
    la: PosteriorState,
    coordinates: Coordinates,
    settings: TuningSettings,
    values: Sequence[float],
    steps: Sequence[TuningStep],
    stopped: str,
    converged: bool,
    warnings: Sequence[str],
) -> PosteriorState:
    """The posterior at a mean precision, a noise and a temperature, with the trace of all that were tried."""
    posterior = coordinates.setting(settings, values)()
    posterior = posterior if settings.prior else replace(posterior, prior=la.prior)
    objective = "log evidence" if settings.validation is None else "validation NLL"
    names = la.prior.names(la.space) if la.prior.precision.numel() > 1 else ("all",)
    trace = Trace.of(settings.method, objective, names, steps, stopped, converged, warnings)
    return replace(posterior, trace=trace)
