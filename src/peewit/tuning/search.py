"""Choosing prior precisions, noise and temperature: by the evidence, by validation data, or on a grid."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..priors import Number, Prior
from .ascent import Path, Range, ascend, fixed_point
from .profile import Place, Profile, profile
from .scores import Scores, Setting
from .settings import TEMPERATURES, Settings, listable, positive
from .trace import Step, Trace, TuningWarning
from .validation import minimise, repeated, scan

if TYPE_CHECKING:
    from ..laplace import Laplace

NOISES = 1e6  # how far the noise may be from the residuals' root mean square, either way
OFF = 1e-3  # effective dimensions below which a group is switched off


def tune(la: Laplace, asked: Settings, start: Prior | Number | None) -> Laplace:
    """Dispatch, from the prior it has or from another start."""
    if start is not None:
        chosen = start if isinstance(start, Prior) else la.prior.with_precision(start)
        la = la.with_prior(chosen)
    if asked.passing.mode == "linear":
        from .alternate import alternate  # which needs this file

        return alternate(la, asked, start)
    if asked.data is None:
        la = replace(la, linear=None)  # the evidence at the trained weights
    made = {"evidence": by_evidence, "fixed_point": by_evidence, "validation": by_validation, "grid": by_grid}
    return made[asked.method](la, asked)


def noise_limits(la: Laplace) -> tuple[float, float]:
    """From the residuals, so that units do not matter; the best noise is never below their root mean square."""
    energy, scalars = la.totals.energy, max(la.totals.scalars, 1.0)
    middle = math.sqrt(2 * energy / scalars) or float(la.likelihood.scale) ** -0.5
    return middle / NOISES, middle * NOISES


def bounds(la: Laplace, asked: Settings, problem: Profile) -> tuple[Range, Tensor]:
    """What may change and how far, and the groups about which the data say nothing."""
    groups = len(problem.sizes)
    empty = problem.sizes == 0
    without = problem.flat & ~empty & asked.prior
    low, high = (
        torch.full((groups + 1,), math.log(limit), dtype=torch.float64, device="cpu") for limit in asked.limits
    )
    if asked.noise:
        quiet, loud = noise_limits(la)
        low[-1], high[-1] = -2 * math.log(loud), -2 * math.log(quiet)
    free = torch.cat([asked.prior & ~empty & ~without, torch.tensor([asked.noise], device="cpu")])
    return Range(free, low, high), without


def by_evidence(la: Laplace, asked: Settings) -> Laplace:
    """Newton's method or MacKay's updates on the evidence, in logarithms."""
    problem = profile(la._question, la.prior)
    here = problem.at(problem.start())
    if not here.finite:
        la.log_evidence()  # says what is wrong
    allowed, without = bounds(la, asked, problem)
    free = allowed.free
    climb = ascend if asked.method == "evidence" else fixed_point
    if bool(free.any()):
        path = climb(problem, allowed, asked.steps, asked.tolerance)
    else:
        path = Path([here]).end(True, "nothing may change")
    last = path.points[-1]
    names = problem.prior.names(la.space)
    told = complaints(names, last.place, last.gamma, free, without, asked)
    if not path.converged:
        told.append(f"Tuning did not converge: {path.stopped}.")
    steps = [
        Step(point.value, point.place.precision.exp(), noise_of(la, point.place.noise), la.temperature, point.gamma)
        for point in path.points
    ]
    trace = Trace.of(asked.method, "log evidence", names, steps, path.stopped, path.converged, told)
    return settled(la, problem, last.place, asked, trace)


def noise_of(la: Laplace, noise: float) -> float | None:
    """None for a likelihood without."""
    return noise if hasattr(la.likelihood, "with_noise") else None


def complaints(
    names: Sequence[str], place: Place, gamma: Tensor, free: Tensor, without: Tensor, asked: Settings
) -> list[str]:
    """What a user should know about where it ended."""
    told = []
    low, high = (math.log(limit) for limit in asked.limits)
    own, at = free[:-1], place.precision
    off = own & (gamma < OFF)
    if bool(without.any()):
        told.append(
            f"The data say nothing about {listed(names, without)}: no curvature; the precision was left as it is."
        )
    if bool(off.any()):
        told.append(
            f"{listed(names, off)} switched off: less than {OFF:g} effective dimensions, so the prior alone holds it."
        )
    for edge, word in ((own & ~off & (at >= high - 1e-9), "largest"), (own & ~off & (at <= low + 1e-9), "smallest")):
        if bool(edge.any()):
            told.append(
                f"The precision of {listed(names, edge)} is at the {word} allowed, {asked.limits[word == 'largest']:g}."
            )
    return told


def listed(names: Sequence[str], chosen: Tensor) -> str:
    """Some names and how many more."""
    places = chosen.nonzero()[:, 0].tolist()
    words = ", ".join(repr(names[place]) for place in places[:3])
    return words if len(places) <= 3 else f"{words} and {len(places) - 3} more groups"


def noise_at_its_limit(la: Laplace, place: Place, asked: Settings) -> list[str]:
    """What a user should know about a noise that ended at an edge of its range."""
    if not asked.noise:
        return []
    quiet, loud = noise_limits(la)
    return [
        f"The noise is at the {word} allowed, {limit:.3g}: "
        + ("the residuals are zero, or nearly." if limit == quiet else "the weights explain all targets.")
        for limit, word in ((quiet, "smallest"), (loud, "largest"))
        if abs(math.log(place.noise / limit)) < 1e-6
    ]


def settled(la: Laplace, problem: Profile, place: Place, asked: Settings, trace: Trace) -> Laplace:
    """The posterior at what was found, with the way there; warnings are given now."""
    for text in noise_at_its_limit(la, place, asked):
        trace = trace.warned(text)
    prior = problem.prior.with_precision(place.precision.exp()) if asked.prior else la.prior
    likelihood = la.likelihood.with_noise(place.noise) if asked.noise else la.likelihood  # type: ignore[attr-defined]  # see settings
    return warned(replace(la, prior=prior, likelihood=likelihood, trace=trace), 8)


def warned(la: Laplace, level: int) -> Laplace:
    """The same; what tuning found odd is said now."""
    for text in la.trace.warnings if la.trace is not None else ():
        warnings.warn(text, TuningWarning, stacklevel=level)
    return la


@dataclass(frozen=True)
class Coordinates:
    """Geometric mean of the precisions, noise and temperature as settings of one posterior."""

    la: Laplace
    prior: Prior  # with ratios whose geometric mean is one

    @staticmethod
    def of(la: Laplace) -> tuple[Coordinates, float]:
        """And where it stands: the geometric mean of its precisions."""
        precision = la.prior.precision.detach().cpu().double()
        mean = float(precision.log().mean().exp())
        return Coordinates(la, la.prior.with_precision(precision / mean)), mean

    def precisions(self, mean: float) -> Tensor:
        """(groups,), or one for all."""
        return self.prior.precision * mean

    def at(self, mean: float, noise: float | None, temperature: float | None) -> Laplace:
        """The posterior there; what is None stays."""
        made = self.la.with_prior(self.prior.with_precision(self.precisions(mean)))
        made = made if noise is None else made.with_noise(noise)
        return made if temperature is None else made.with_temperature(temperature)

    def setting(self, asked: Settings, values: Sequence[float]) -> Setting:
        """The posterior at a mean precision, a noise and a temperature, to be made later; what is not tuned stays."""
        mean, noise, temperature = values
        return lambda: self.at(mean, noise if asked.noise else None, temperature if asked.temperature else None)


def by_validation(la: Laplace, asked: Settings) -> Laplace:
    """The least NLL of the predictive that will be used, over a factor of the prior, the noise and the temperature."""
    scores = Scores(la, repeated(asked.data, la.mode.device), asked.predict)
    coordinates, mean = Coordinates.of(la)
    own = [asked.prior, asked.noise, asked.temperature]
    noise = float(la.likelihood.scale) ** -0.5
    ends = [asked.limits, noise_limits(la) if asked.noise else (noise, noise), TEMPERATURES]
    begin = [math.log(value) for value in (mean, noise, la.temperature)]
    places = [place for place, free in enumerate(own) if free]
    steps: list[Step] = []
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
        for key, each, value in zip(keys, tried, scores.of(made) if made else [], strict=True):
            seen[key] = value if math.isfinite(value) else math.inf
            steps.append(Step(seen[key], coordinates.precisions(each[0]), noise_of(la, each[1]), each[2], None))

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
    return chosen(la, coordinates, asked, [math.exp(value) for value in found], steps, stopped, converged, told)


def chosen(
    la: Laplace,
    coordinates: Coordinates,
    asked: Settings,
    values: Sequence[float],
    steps: Sequence[Step],
    stopped: str,
    converged: bool,
    told: Sequence[str],
) -> Laplace:
    """The posterior at a mean precision, a noise and a temperature, with the trace of all that were tried."""
    made = coordinates.setting(asked, values)()
    made = made if asked.prior else replace(made, prior=la.prior)
    objective = "log evidence" if asked.data is None else "validation NLL"
    names = la.prior.names(la.space) if la.prior.precision.numel() > 1 else ("all",)
    trace = Trace.of(asked.method, objective, names, steps, stopped, converged, told)
    for text in trace.warnings:
        warnings.warn(text, TuningWarning, stacklevel=7)
    return replace(made, trace=trace)


def axes(la: Laplace, asked: Settings, mean: float) -> dict[str, list[float]]:
    """The values of each axis of a grid; what has none stays as it is."""
    given = asked.grid
    if given is None and not asked.prior:
        raise ValueError("prior=False on a grid needs the values of what is left: grid={'noise': [...]}.")
    if given is None:
        given = {"prior": [10 ** (place / 5 - 4) for place in range(41)]}
    named = dict(given) if isinstance(given, Mapping) else {"prior": given}
    unknown = set(named) - {"prior", "noise", "temperature"}
    if unknown:
        raise ValueError(f"grid has values for {sorted(unknown)}; expected 'prior', 'noise' and 'temperature'.")
    if asked.noise and "noise" not in named:
        raise ValueError("noise=True on a grid needs its values: grid={'prior': [...], 'noise': [...]}.")
    made = {"prior": [mean], "noise": [float(la.likelihood.scale) ** -0.5], "temperature": [la.temperature]}
    for name, values in named.items():
        found = [positive(value) for value in values] if listable(values) else []
        own = [value for value in found if value is not None]
        if not own or len(own) < len(found):
            raise ValueError(f"grid: the values for {name!r} are {values!r}; expected positive numbers.")
        made[name] = own
    return made


def by_grid(la: Laplace, asked: Settings) -> Laplace:
    """Every combination is scored, and the best of all is taken."""
    coordinates, mean = Coordinates.of(la)
    tried = axes(la, asked, mean)
    places = list(itertools.product(*tried.values()))
    if asked.data is None:
        problem = profile(la._question, coordinates.prior)
        middle = problem.prior.precision.log()
        scores = [-problem.at(Place(middle + math.log(mean), -2 * math.log(noise))).value for mean, noise, _ in places]
    else:
        made = [coordinates.setting(asked, place) for place in places]
        scores = Scores(la, repeated(asked.data, la.mode.device), asked.predict).of(made)
    sign = -1.0 if asked.data is None else 1.0
    steps = [
        Step(sign * value, coordinates.precisions(place[0]), noise_of(la, place[1]), place[2], None)
        for value, place in zip(scores, places, strict=True)
    ]
    finite = [number for number, value in enumerate(scores) if math.isfinite(value)]
    if not finite:
        raise ValueError("No setting of the grid has a finite score.")
    best = min(finite, key=lambda number: scores[number])
    told = [
        f"The best {name} is at the {'largest' if value == max(own) else 'smallest'} value of its grid, {value:.3g}."
        for (name, own), value in zip(tried.items(), places[best], strict=True)
        if len(own) > 1 and value in (min(own), max(own))
    ]
    if len(finite) < len(scores):
        told.append(f"{len(scores) - len(finite)} settings of the grid have no finite score and were left out.")
    return chosen(la, coordinates, asked, places[best], steps, "every setting was scored", True, told)
