"""Choosing prior precisions, noise and temperature: by the evidence, training or validation data, or on a grid."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..linear_model.find import STEPS, TOLERANCE, find
from ..messages.warnings import TuningWarning, UnderconfidenceWarning, warn
from ..posterior.resolution import warn_of_rounding
from ..priors.prior import Number, Prior
from ..runtime.progress import Progress
from .alternate import alternate
from .by_evidence import by_evidence
from .by_grid import by_grid
from .by_training import by_training, signs_on_training
from .by_validation import by_validation
from .cautions import by_evidence_alone, cautions
from .options import TuningSettings

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState


def tune(la: PosteriorState, settings: TuningSettings, start: Prior | Number | None) -> PosteriorState:
    """Tune from the prior it has or from another start, and warn of what was odd on the way."""
    posterior = dispatch(la, settings, start)
    assert posterior.trace is not None
    on_training = by_evidence_alone(settings) and settings.train is not None
    doubts = cautions(posterior, settings, signs_on_training(posterior, settings) if on_training else ())
    for text in posterior.trace.warnings:
        warn(text, TuningWarning)
    for text in doubts:
        warn(text, UnderconfidenceWarning)
        posterior = replace(posterior, trace=posterior.trace.with_warning(text))
    warn_of_rounding(posterior)
    return posterior


def dispatch(la: PosteriorState, settings: TuningSettings, start: Prior | Number | None) -> PosteriorState:
    """Tune by the method that the settings name."""
    if start is not None:
        chosen = start if isinstance(start, Prior) else la.prior.with_precision(start)
        la = la.with_prior(chosen)
    if settings.method == "training":
        return by_training(la, settings, start)
    if settings.linear and settings.by_evidence:
        return alternate(la, settings, start)
    tuned = at_trained_weights(replace(la, linear_mode=None), settings)
    if not settings.linear:
        return tuned
    # The scores do not depend on the mode, and it belongs to the new prior and noise; the old one is where it starts.
    passing, earlier_mode = settings.passing, replace(tuned, linear_mode=la.linear_mode)
    at_mode = find(earlier_mode, settings.train, TOLERANCE, STEPS, passing.memory, passing.progress)
    return replace(at_mode, trace=tuned.trace)


def at_trained_weights(la: PosteriorState, settings: TuningSettings) -> PosteriorState:
    """Tune by scores that do not depend on a linear mode."""
    if settings.validation is not None or settings.method == "validation":
        return by_grid(la, settings) if settings.method == "grid" else by_validation(la, settings)
    with Progress(settings.passing.progress).working("evidence"):
        return by_grid(la, settings) if settings.method == "grid" else by_evidence(la, settings)
