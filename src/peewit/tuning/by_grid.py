"""Every combination of a grid, and the best of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..messages.errors import PeewitError
from ..posterior.trace import TuningStep
from .by_evidence import noise_of
from .by_validation import CERTAIN, NONE, Coordinates, best_posterior
from .options import TuningSettings, listable, positive
from .profile import Hyperparameters, profile_of
from .validation import mean_nlls, no_finite_score, shared_predictions

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState


def axes(la: PosteriorState, settings: TuningSettings, mean: float) -> dict[str, list[float]]:
    """The values of each axis of a grid; what has none stays as it is."""
    grid = settings.grid
    if grid is None and not settings.prior:
        raise PeewitError("A grid without the prior needs the values of what is tuned: grid={'noise': [...]}.")
    if grid is None:
        grid = {"prior": [10 ** (place / 5 - 4) for place in range(41)]}
    named = dict(grid) if isinstance(grid, Mapping) else {"prior": grid}
    unknown = set(named) - {"prior", "noise", "temperature"}
    if unknown:
        raise PeewitError(f"grid has values for {sorted(unknown)}; expected 'prior', 'noise' and 'temperature'.")
    if settings.noise and "noise" not in named:
        raise PeewitError("The noise on a grid needs its values: grid={'prior': [...], 'noise': [...]}.")
    levels = {"prior": [mean], "noise": [float(la.likelihood.noise_precision) ** -0.5], "temperature": [la.temperature]}
    for name, values in named.items():
        numbers = [positive(value) for value in values] if listable(values) else []
        positives = [value for value in numbers if value is not None]
        if not positives or len(positives) < len(numbers):
            raise PeewitError(f"grid: the values for {name!r} are {values!r}; expected positive numbers.")
        levels[name] = positives
    return levels


def by_grid(la: PosteriorState, settings: TuningSettings) -> PosteriorState:
    """Every combination is scored, and the best of all is taken."""
    coordinates, mean = Coordinates.of(la)
    tried = axes(la, settings, mean)
    points = list(itertools.product(*tried.values()))
    if settings.validation is not None and settings.prior:  # the network itself
        points += itertools.product([CERTAIN], tried["noise"], tried["temperature"])
    if settings.validation is None:
        profile = profile_of(la.problem, coordinates.prior)
        middle = profile.prior.precision.log()
        scores = [
            -profile.at(Hyperparameters(middle + math.log(mean), -2 * math.log(noise))).value
            for mean, noise, _ in points
        ]
    else:
        posteriors = [coordinates.setting(settings, point) for point in points]
        scores = mean_nlls(shared_predictions(la, settings), posteriors)
    sign = -1.0 if settings.validation is None else 1.0
    steps = [
        TuningStep(
            value=sign * value,
            precision=coordinates.precisions(point[0]),
            noise=noise_of(la, point[1]),
            temperature=point[2],
            gamma=None,
        )
        for value, point in zip(scores, points, strict=True)
    ]
    finite = [number for number, value in enumerate(scores) if math.isfinite(value)]
    if not finite:
        raise no_finite_score("of the grid")
    best = min(finite, key=lambda number: scores[number])
    chosen = points[best]
    certain = chosen[0] == CERTAIN and CERTAIN not in tried["prior"]
    warnings = [f"The network itself is best, a precision of {CERTAIN:.3g}: {NONE}."] if certain else []
    warnings += [
        f"The best {name} is at the {'largest' if value == max(axis) else 'smallest'} value of its grid, {value:.3g}."
        for (name, axis), value in zip(tried.items(), chosen, strict=True)
        if len(axis) > 1 and value in (min(axis), max(axis))
    ]
    if len(finite) < len(scores):
        warnings.append(f"{len(scores) - len(finite)} settings of the grid have no finite score and were left out.")
    return best_posterior(la, coordinates, settings, chosen, steps, "every setting was scored", True, warnings)
