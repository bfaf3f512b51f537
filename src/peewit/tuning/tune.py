"""Choosing prior precisions, noise and temperature: by the evidence, by validation data, or on a grid."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..messages.warnings import TuningWarning, warn
from ..posterior.resolution import warn_of_rounding
from ..priors.prior import Number, Prior
from ..runtime.progress import Progress
from .by_evidence import by_evidence
from .by_grid import by_grid
from .by_validation import by_validation
from .options import TuningSettings

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState


def tune(la: PosteriorState, settings: TuningSettings, start: Prior | Number | None) -> PosteriorState:
    """Tune from the prior it has or from another start, and warn of what was odd on the way."""
    posterior = dispatch(la, settings, start)
    assert posterior.trace is not None
    for text in posterior.trace.warnings:
        warn(text, TuningWarning)
    warn_of_rounding(posterior)
    return posterior


def dispatch(la: PosteriorState, settings: TuningSettings, start: Prior | Number | None) -> PosteriorState:
    """Tune by the method that the settings name."""
    if start is not None:
        chosen = start if isinstance(start, Prior) else la.prior.with_precision(start)
        la = la.with_prior(chosen)
    if settings.passing.at == "linear_mode":
        from .alternate import alternate  # which needs this file

        return alternate(la, settings, start)
    if settings.validation is None:
        la = replace(la, linear_mode=None)  # the evidence at the trained weights
    if settings.validation is not None or settings.method == "validation":
        return by_grid(la, settings) if settings.method == "grid" else by_validation(la, settings)
    with Progress(settings.passing.progress).working("evidence"):
        return by_grid(la, settings) if settings.method == "grid" else by_evidence(la, settings)
