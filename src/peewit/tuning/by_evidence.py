"""Prior precisions and noise by the evidence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..likelihoods import WithNoise
from ..posterior.trace import Trace, TuningStep
from .ascent import Path, TuningRange, ascend, fixed_point
from .options import TuningSettings
from .profile import Hyperparameters, Profile, profile

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState


NOISES = 1e6  # how far the noise may be from the residuals' root mean square, either way
OFF = 1e-3  # effective dimensions below which a group is switched off


def noise_limits(la: PosteriorState) -> tuple[float, float]:
    """From the residuals, so that units do not matter; the best noise is never below their root mean square."""
    energy, scalars = la.totals.energy, max(la.totals.scalars, 1.0)
    middle = math.sqrt(2 * energy / scalars) or float(la.likelihood.noise_precision) ** -0.5
    return middle / NOISES, middle * NOISES


def bounds(la: PosteriorState, asked: TuningSettings, problem: Profile) -> tuple[TuningRange, Tensor]:
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
    return TuningRange(free, low, high), without


def by_evidence(la: PosteriorState, asked: TuningSettings) -> PosteriorState:
    """Newton's method or MacKay's updates on the evidence, in logarithms."""
    problem = profile(la.problem, la.prior)
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
        TuningStep(
            value=point.value,
            precision=point.place.precision.exp(),
            noise=noise_of(la, point.place.noise),
            temperature=la.temperature,
            gamma=point.gamma,
        )
        for point in path.points
    ]
    trace = Trace.of(asked.method, "log evidence", names, steps, path.stopped, path.converged, told)
    return tuned_posterior(la, problem, last.place, asked, trace)


def noise_of(la: PosteriorState, noise: float) -> float | None:
    """None for a likelihood without."""
    return noise if isinstance(la.likelihood, WithNoise) else None


def complaints(
    names: Sequence[str], place: Hyperparameters, gamma: Tensor, free: Tensor, without: Tensor, asked: TuningSettings
) -> list[str]:
    """What a user should know about where it ended."""
    told = []
    low, high = (math.log(limit) for limit in asked.limits)
    own, at = free[:-1], place.precision
    off = own & (gamma < OFF)
    if bool(without.any()):
        told.append(
            f"The data say nothing about {list_groups(names, without)}: no curvature; the precision was left as it is."
        )
    if bool(off.any()):
        told.append(
            f"{list_groups(names, off)} switched off: less than {OFF:g} effective dimensions, so the prior alone holds "
            "it."
        )
    for edge, word in ((own & ~off & (at >= high - 1e-9), "largest"), (own & ~off & (at <= low + 1e-9), "smallest")):
        if bool(edge.any()):
            told.append(
                f"The precision of {list_groups(names, edge)} is at the {word} allowed, "
                f"{asked.limits[word == 'largest']:g}."
            )
    return told


def list_groups(names: Sequence[str], chosen: Tensor) -> str:
    """Some names and how many more."""
    places = chosen.nonzero()[:, 0].tolist()
    words = ", ".join(repr(names[place]) for place in places[:3])
    return words if len(places) <= 3 else f"{words} and {len(places) - 3} more groups"


def noise_at_its_limit(la: PosteriorState, place: Hyperparameters, asked: TuningSettings) -> list[str]:
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


def tuned_posterior(
    la: PosteriorState, problem: Profile, place: Hyperparameters, asked: TuningSettings, trace: Trace
) -> PosteriorState:
    """The posterior at what was found, with the way there."""
    for text in noise_at_its_limit(la, place, asked):
        trace = trace.warned(text)
    prior = problem.prior.with_precision(place.precision.exp()) if asked.prior else la.prior
    own = la.likelihood
    likelihood = own.with_noise(place.noise) if asked.noise and isinstance(own, WithNoise) else own
    return replace(la, prior=prior, likelihood=likelihood, trace=trace)
