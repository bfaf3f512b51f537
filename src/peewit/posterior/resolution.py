"""Whether rounding shows beside the prior: after a fit, and at any prior and noise that it is asked about later."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..messages.warnings import RoundingWarning, warn

if TYPE_CHECKING:
    from .state import PosteriorState


SUMS = {torch.float32: 1e-7, torch.float64: 1e-16}  # rounding of sums and eigenvalues, of the largest eigenvalue


# A network's own rounding is that of its activations and gradients: sums of squares have its square.
NETWORK = {torch.float32: 3e-14, torch.float64: 0.0}


@dataclass(frozen=True)
class RoundingShare:
    """A block's rounding as a share of its prior precision."""

    name: str
    share: float
    sums: bool  # whether it is that of float32 sums, which another fit can do without

    @property
    def sentence(self) -> str:
        """What is wrong, as a sentence."""
        return (
            f"Rounding is about {self.share:.2g} times the prior precision of {self.name!r}, so that variances and "
            "evidence are partly rounding: its inputs or gradients are far from zero, of very different sizes, or "
            "nearly dependent."
        )

    @property
    def advice(self) -> str:
        """What to do, as a sentence."""
        if self.sums:
            return (
                "Fit again with this prior and noise, or with arithmetic='float64'; inputs with mean zero and variance "
                "one avoid it."
            )
        return (
            "Standardise the inputs to mean zero and variance one and train on them, convert network and inputs by "
            ".double(), or use a larger prior precision."
        )


def worst_rounding(la: PosteriorState) -> RoundingShare | None:
    """The block whose rounding is the most beside its prior."""
    dtypes = [torch.promote_types(la.model.get_parameter(name).dtype, torch.float32) for name in la.space.names]
    precision = NETWORK[max(dtypes, key=lambda dtype: NETWORK[dtype])]
    shares = [
        RoundingShare(peak.parts[0].name, condition * max(SUMS[peak.dtype], precision), SUMS[peak.dtype] > precision)
        for peak, condition in la.conditions
    ]
    return max(shares, key=lambda share: share.share, default=None)


def ill_conditioned(la: PosteriorState) -> bool:
    """Whether products of 11 bits lose what the prior decides: their squares are as small as rounding in float32."""
    return any(condition * SUMS[torch.float32] > 1 for _, condition in la.conditions)


def warn_of_rounding(la: PosteriorState) -> None:
    """Warn where rounding shows beside the prior."""
    worst = worst_rounding(la)
    if worst is not None and worst.share > 1:
        warn(f"{worst.sentence} {worst.advice}", RoundingWarning)
