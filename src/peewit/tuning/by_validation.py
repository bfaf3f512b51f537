"""Prior, noise and temperature by the NLL on validation data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from torch import Tensor

from ..posterior.trace import Trace, TuningStep
from ..predictions.shared import Setting
from ..priors.prior import Prior
from .by_evidence import noise_limits, noise_of, residual_noise
from .options import TEMPERATURES, TuningSettings
from .validation import mean_nlls, minimise, no_finite_score, scan, shared_predictions

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

NONE = ": on these data no uncertainty of the weights is best, and predictions are the network's own"


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


def by_validation(la: PosteriorState, settings: TuningSettings) -> PosteriorState:
    """The least NLL of the predictive that will be used, over a factor of the prior, the noise and the temperature."""
    shared = shared_predictions(la, settings)
    coordinates, mean = Coordinates.of(la)
    free = [settings.prior, settings.noise, settings.temperature]
    noise = float(la.likelihood.noise_precision) ** -0.5
    ends = [settings.limits, noise_range(la) if settings.noise else (noise, noise), TEMPERATURES]
    begin = [math.log(value) for value in (mean, noise, la.temperature)]
    axes = [axis for axis, tuned in enumerate(free) if tuned]
    steps: list[TuningStep] = []
    scores: dict[tuple[float, ...], float] = {}

    def values_of(z: Sequence[float]) -> tuple[float, ...]:
        whole = list(begin)
        for axis, value in zip(axes, z, strict=True):
            whole[axis] = min(max(value, math.log(ends[axis][0])), math.log(ends[axis][1]))
        return tuple(whole)

    def ahead(points: Sequence[Sequence[float]]) -> None:
        keys = [key for key in dict.fromkeys(map(values_of, points)) if key not in scores]
        values = [tuple(map(math.exp, key)) for key in keys]
        tried = [coordinates.setting(settings, value) for value in values]
        nlls = mean_nlls(shared, tried) if tried else []
        for key, (mean, noise, temperature), nll in zip(keys, values, nlls, strict=True):
            scores[key] = nll if math.isfinite(nll) else math.inf
            steps.append(
                TuningStep(
                    value=scores[key],
                    precision=coordinates.precisions(mean),
                    noise=noise_of(la, noise),
                    temperature=temperature,
                    gamma=None,
                )
            )

    def score(z: Sequence[float]) -> float:
        ahead([z])
        return scores[values_of(z)]

    offsets = {0: (-6.9, -4.6, -2.3, 2.3, 4.6, 6.9), 1: (-1.4, -0.7, 0.7, 1.4), 2: (-2.3, -1.1, 1.1, 2.3)}
    chosen_offsets = {number: offsets[axis] for number, axis in enumerate(axes)}
    first = scan(score, [begin[axis] for axis in axes], chosen_offsets, ahead)
    converged = minimise(score, first, 0.7, settings.tolerance, settings.steps, ahead)
    if settings.prior:  # predictions of the network itself, with the noise that suits them
        certain = [math.log(ends[0][1]), *(begin[axis] for axis in axes[1:])]
        others = {number: tried for number, tried in chosen_offsets.items() if number > 0}
        second = scan(score, certain, others, ahead)
        converged &= minimise(score, second, 0.7, settings.tolerance, settings.steps, ahead)
    if not math.isfinite(min(scores.values())):
        raise no_finite_score("that the search begins with")
    best = min(scores, key=lambda key: scores[key])
    words = ["The geometric mean of the precisions", "The noise", "The temperature"]
    warnings = [
        f"{words[axis]} is at the {'largest' if top else 'smallest'} allowed, {ends[axis][top]:.3g}"
        f"{NONE if (axis, top) == (0, 1) else ''}."
        for axis in axes
        for top in (0, 1)
        if (axis, top) != (1, 0)  # a noise as small as the training residuals is nothing odd
        if abs(best[axis] - math.log(ends[axis][top])) < 1e-2
    ]
    stopped = (
        f"its steps are smaller than {settings.tolerance:g}, in logarithms of what is tuned"
        if converged
        else f"{settings.steps} steps were not enough"
    )
    if not converged:
        warnings.append(f"Tuning did not converge: {stopped}.")
    return best_posterior(
        la, coordinates, settings, [math.exp(value) for value in best], steps, stopped, converged, warnings
    )


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
