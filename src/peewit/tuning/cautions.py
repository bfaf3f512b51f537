"""Signs that predictions of a tuned posterior are less sure than the network deserves, with the ways out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from ..likelihoods import WithNoise
from .options import TuningSettings

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

# Bounds on what was seen on tables, images and sentences: docs/quality.md.
SHARE = 0.5  # effective dimensions per label
SEPARATED = 0.1  # NLL of the network on its training data, as a share of what the evidence takes it to lose
FAR = 2.5  # the noise over the residuals' root mean square
WAYS = (
    "Ways out: tune(validation=...) with data that the network was not trained on, or tune(train=...) without. The "
    "evidence still compares models."
)


def cautions(tuned: PosteriorState, settings: TuningSettings, seen: Sequence[str]) -> list[str]:
    """One text with all signs, those seen on the training data too, where the evidence alone chose the precision."""
    if not by_evidence_alone(settings):
        return []
    signs = [*signs_of(tuned), *seen]
    return [f"Predictions may be much less sure than they should be: {'; '.join(signs)}. {WAYS}"] if signs else []


def by_evidence_alone(settings: TuningSettings) -> bool:
    """Whether no data had a say in the prior precision."""
    return settings.prior and settings.validation is None and settings.method != "training"


def signs_of(tuned: PosteriorState) -> Iterator[str]:
    """What the posterior tells without its data."""
    totals = tuned.problem.totals  # at the linear mode where it is there
    labels, gamma = max(totals.scalars, 1.0), float(tuned.evidence().effective_dimensions.sum())
    if gamma > SHARE * labels:
        yield f"{gamma:.0f} effective dimensions for {labels:.0f} labels"
    if not isinstance(tuned.likelihood, WithNoise):
        lost = (totals.energy + totals.rest) / labels
        if lost < SEPARATED * 0.5 * gamma / labels:
            yield (
                f"the network explains its training labels almost perfectly (NLL {lost:.2g} per label), where the "
                "Gaussian is too wide on the side of the wrong classes"
            )
        return
    noise, residual = float(tuned.likelihood.noise_precision) ** -0.5, math.sqrt(2 * totals.energy / labels)
    if noise > FAR * residual > 0:
        yield f"the noise {noise:.3g} is {noise / residual:.1f} times the residuals' root mean square"


def sign_of_noise(tuned: PosteriorState, targets: torch.Tensor) -> list[str]:
    """Where the noise alone exceeds the deviation of some training targets, (n, ...), the network explains nothing."""
    if not isinstance(tuned.likelihood, WithNoise) or len(targets) < 2:
        return []
    noise = float(tuned.likelihood.noise_precision) ** -0.5
    deviation = float(targets.double().std(0).square().mean().sqrt())
    if noise <= deviation:
        return []
    return [f"the noise {noise:.3g} exceeds the deviation of the training targets, {deviation:.3g}"]


def noise_beyond_targets(tuned: PosteriorState, targets: torch.Tensor) -> list[str]:
    """The same as advice of its own: such runs improved on the network, and would gain more (docs/quality.md)."""
    return [
        f"Validation data would narrow the intervals: {sign}, so that they are wider than those of a constant. Type "
        "tune(validation=...) with data that the network was not trained on, if you have some."
        for sign in sign_of_noise(tuned, targets)
    ]
