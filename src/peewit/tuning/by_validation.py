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
from .by_evidence import noise_limits, noise_of
from .options import TEMPERATURES, TuningSettings
from .validation import mean_nlls, minimise, scan, shared_predictions

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState


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
        made = self.la.with_prior(self.prior.with_precision(self.precisions(mean)))
        made = made if noise is None else made.with_noise(noise)
        return made if temperature is None else made.with_temperature(temperature)

    def setting(self, asked: TuningSettings, values: Sequence[float]) -> Setting:
        """The posterior at a mean precision, a noise and a temperature, to be made later; what is not tuned stays."""
        mean, noise, temperature = values
        return lambda: self.at(mean, noise if asked.noise else None, temperature if asked.temperature else None)


def by_validation(la: PosteriorState, asked: TuningSettings) -> PosteriorState:
    """The least NLL of the predictive that will be used, over a factor of the prior, the noise and the temperature."""
    shared = shared_predictions(la, asked)
    coordinates, mean = Coordinates.of(la)
    own = [asked.prior, asked.noise, asked.temperature]
    noise = float(la.likelihood.noise_precision) ** -0.5
    ends = [asked.limits, noise_limits(la) if asked.noise else (noise, noise), TEMPERATURES]
    begin = [math.log(value) for value in (mean, noise, la.temperature)]
    places = [place for place, free in enumerate(own) if free]
    steps: list[TuningStep] = []
    seen: dict[tuple[float, ...], float] = {}

    def values_of(z: Sequence[float]) -> tuple[float, ...]:
        whole = list(begin)
        for place, value in zip(places, z, strict=True):
            whole[place] = min(max(value, math.log(ends[place][0])), math.log(ends[place][1]))
        return tuple(whole)

    def ahead(settings: Sequence[Sequence[float]]) -> None:
        keys = [key for key in dict.fromkeys(map(values_of, settings)) if key not in seen]
        tried = [[math.exp(value) for value in key] for key in keys]
        made = [coordinates.setting(asked, each) for each in tried]
        for key, each, value in zip(keys, tried, mean_nlls(shared, made) if made else [], strict=True):
            seen[key] = value if math.isfinite(value) else math.inf
            steps.append(
                TuningStep(
                    value=seen[key],
                    precision=coordinates.precisions(each[0]),
                    noise=noise_of(la, each[1]),
                    temperature=each[2],
                    gamma=None,
                )
            )

    def score(z: Sequence[float]) -> float:
        ahead([z])
        return seen[values_of(z)]

    offsets = {0: (-6.9, -4.6, -2.3, 2.3, 4.6, 6.9), 1: (-1.4, -0.7, 0.7, 1.4), 2: (-2.3, -1.1, 1.1, 2.3)}
    chosen_offsets = {i: offsets[place] for i, place in enumerate(places)}
    first = scan(score, [begin[place] for place in places], chosen_offsets, ahead)
    converged = minimise(score, first, 0.7, asked.tolerance, asked.steps, ahead)
    found = min(seen, key=lambda key: seen[key])
    words = ["The geometric mean of the precisions", "The noise", "The temperature"]
    told = [
        f"{words[place]} is at the {'largest' if top else 'smallest'} allowed, {ends[place][top]:.3g}."
        for place in places
        for top in (0, 1)
        if abs(found[place] - math.log(ends[place][top])) < 1e-2
    ]
    stopped = (
        f"the simplex is smaller than {asked.tolerance:g}" if converged else f"{asked.steps} steps were not enough"
    )
    if not converged:
        told.append(f"Tuning did not converge: {stopped}.")
    return best_posterior(la, coordinates, asked, [math.exp(value) for value in found], steps, stopped, converged, told)


def best_posterior(
    la: PosteriorState,
    coordinates: Coordinates,
    asked: TuningSettings,
    values: Sequence[float],
    steps: Sequence[TuningStep],
    stopped: str,
    converged: bool,
    told: Sequence[str],
) -> PosteriorState:
    """The posterior at a mean precision, a noise and a temperature, with the trace of all that were tried."""
    made = coordinates.setting(asked, values)()
    made = made if asked.prior else replace(made, prior=la.prior)
    objective = "log evidence" if asked.validation is None else "validation NLL"
    names = la.prior.names(la.space) if la.prior.precision.numel() > 1 else ("all",)
    trace = Trace.of(asked.method, objective, names, steps, stopped, converged, told)
    return replace(made, trace=trace)
