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
from .profile import Hyperparameters, Profile, profile_of

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState


NOISES = 1e6  # how far the noise may be from the residuals' root mean square, either way
OFF = 1e-3  # effective dimensions below which a group is switched off


def noise_limits(la: PosteriorState) -> tuple[float, float]:
    """From the residuals, so that units do not matter; the best noise is never below their root mean square."""
    middle = residual_noise(la) or float(la.likelihood.noise_precision) ** -0.5
    return middle / NOISES, middle * NOISES


def residual_noise(la: PosteriorState) -> float:
    """The root mean square of the network's residuals on its training data."""
    return math.sqrt(2 * la.totals.energy / max(la.totals.scalars, 1.0))


def bounds(la: PosteriorState, settings: TuningSettings, profile: Profile) -> tuple[TuningRange, Tensor]:
    """What may change and how far, and the groups about which the data say nothing."""
    groups = len(profile.sizes)
    empty = profile.sizes == 0
    without = profile.flat & ~empty & settings.prior
    low, high = (
        torch.full((groups + 1,), math.log(limit), dtype=torch.float64, device="cpu") for limit in settings.ends
    )
    if settings.noise:
        quiet, loud = noise_limits(la)
        low[-1], high[-1] = -2 * math.log(loud), -2 * math.log(quiet)
    free = torch.cat([settings.prior & ~empty & ~without, torch.tensor([settings.noise], device="cpu")])
    return TuningRange(free, low, high), without


def by_evidence(la: PosteriorState, settings: TuningSettings) -> PosteriorState:
    """Newton's method or MacKay's updates on the evidence, in logarithms."""
    profile = profile_of(la.problem, la.prior)
    initial = profile.at(profile.start())
    if not initial.finite:
        la.log_evidence()  # says what is wrong
    allowed, without = bounds(la, settings, profile)
    free = allowed.free
    climb = ascend if settings.method == "evidence" else fixed_point
    if bool(free.any()):
        path = climb(profile, allowed, settings.steps, settings.tolerance)
    else:
        path = Path([initial]).end(True, "nothing may change")
    last = path.points[-1]
    names = profile.prior.names(la.space)
    warnings = complaints(names, last.hyperparameters, last.gamma, free, without, settings)
    if not path.converged:
        warnings.append(f"Tuning did not converge: {path.stopped}.")
    steps = [
        TuningStep(
            value=point.value,
            precision=point.hyperparameters.log_precision.exp(),
            noise=noise_of(la, point.hyperparameters.noise),
            temperature=la.temperature,
            gamma=point.gamma,
        )
        for point in path.points
    ]
    trace = Trace.of(settings.method, "log evidence", names, steps, path.stopped, path.converged, warnings)
    return tuned_posterior(la, profile, last.hyperparameters, settings, trace)


def noise_of(la: PosteriorState, noise: float) -> float | None:
    """The noise; None for a likelihood without one."""
    return noise if isinstance(la.likelihood, WithNoise) else None


def complaints(
    names: Sequence[str],
    hyperparameters: Hyperparameters,
    gamma: Tensor,
    free: Tensor,
    without: Tensor,
    settings: TuningSettings,
) -> list[str]:
    """Warnings about groups that are switched off or have a precision at its limit."""
    warnings = []
    low, high = (math.log(limit) for limit in settings.ends)
    at, tuned = hyperparameters.log_precision, free[:-1]
    off = tuned & (gamma < OFF)
    if bool(without.any()):
        warnings.append(
            f"The data say nothing about {list_groups(names, without)}: no curvature; the precision was left as it is."
        )
    if bool(off.any()):
        warnings.append(
            f"{list_groups(names, off)} switched off: less than {OFF:g} effective dimensions, so the prior alone holds "
            "it."
        )
    edges = {"largest": tuned & ~off & (at >= high - 1e-9), "smallest": tuned & ~off & (at <= low + 1e-9)}
    for word, edge in edges.items():
        if bool(edge.any()):
            limit = settings.ends[word == "largest"]
            warnings.append(f"The precision of {list_groups(names, edge)} is at the {word} allowed, {limit:g}.")
    return warnings


def list_groups(names: Sequence[str], chosen: Tensor) -> str:
    """Some names and how many more."""
    numbers = chosen.nonzero()[:, 0].tolist()
    words = ", ".join(repr(names[number]) for number in numbers[:3])
    return words if len(numbers) <= 3 else f"{words} and {len(numbers) - 3} more groups"


def noise_at_its_limit(la: PosteriorState, hyperparameters: Hyperparameters, settings: TuningSettings) -> list[str]:
    """Warnings about a noise at its limit."""
    if not settings.noise:
        return []
    quiet, loud = noise_limits(la)
    return [
        f"The noise is at the {word} allowed, {limit:.3g}: "
        + ("the residuals are zero, or nearly." if limit == quiet else "the weights explain all targets.")
        for limit, word in ((quiet, "smallest"), (loud, "largest"))
        if abs(math.log(hyperparameters.noise / limit)) < 1e-6
    ]


def tuned_posterior(
    la: PosteriorState, profile: Profile, hyperparameters: Hyperparameters, settings: TuningSettings, trace: Trace
) -> PosteriorState:
    """The posterior with the best precisions and noise, and the trace."""
    for text in noise_at_its_limit(la, hyperparameters, settings):
        trace = trace.with_warning(text)
    return replace(posterior_at(la, profile, hyperparameters, settings), trace=trace)


def posterior_at(
    la: PosteriorState, profile: Profile, hyperparameters: Hyperparameters, settings: TuningSettings
) -> PosteriorState:
    """The posterior with these precisions and this noise; what is not tuned stays."""
    prior = profile.prior.with_precision(hyperparameters.log_precision.exp()) if settings.prior else la.prior
    likelihood = la.likelihood
    if settings.noise and isinstance(likelihood, WithNoise):
        likelihood = likelihood.with_noise(hyperparameters.noise)
    return replace(la, prior=prior, likelihood=likelihood, trace=None)
