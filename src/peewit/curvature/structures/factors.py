"""Sums of Kronecker factors: inputs and gradients of every matrix-shaped weight."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from ...jacobians.layout import Layout
from ...weights.ranges import WeightRange
from .common import add_to
from .rounding import in_float64

Key = tuple[WeightRange, ...]  # one weight, or weight and bias of a joint block
Bases = dict[Key, tuple[Tensor | None, Tensor | None]]  # eigenvectors of the row side and the column side
Own = tuple[Key, bool]  # a block, and whether it is used with its columns for rows
Side = tuple[Own | WeightRange, Literal["inputs", "gradients", "other"]]  # a matrix that is summed


@dataclass
class KronFactors:
    """Sums for one orientation of one weight: inputs (.., width, width), gradients, and positions counted.

    They are in float64 while data come, and rounded to float32 in the end where that does not show. A side that is
    diagonal (one-hot inputs, or too long) is kept as a vector.
    """

    inputs: Tensor
    gradients: Tensor
    count: float = 0.0

    def plus(self, earlier: KronFactors) -> KronFactors:
        """Both, and the positions counted; these are added to in place."""
        return KronFactors(
            add_to(self.inputs, earlier.inputs), add_to(self.gradients, earlier.gradients), self.count + earlier.count
        )


@dataclass(kw_only=True)
class KronSums:
    """Additive sums: factors of matrix-shaped weights, dense or diagonal curvature of the others."""

    layouts: dict[Key, Layout] = field(default_factory=dict)
    weights: dict[Key, Layout] = field(default_factory=dict)  # of joint blocks: the weight's layout alone
    factors: dict[tuple[Key, bool], KronFactors] = field(default_factory=dict)
    others: dict[WeightRange, Tensor] = field(default_factory=dict)
    corrected: dict[Key, Tensor] = field(default_factory=dict)
    bases: Bases = field(default_factory=dict)

    def of(self, key: Key) -> dict[bool, KronFactors]:
        """The factors of one weight, by orientation."""
        return {flipped: self.factors[key, flipped] for flipped in (False, True) if (key, flipped) in self.factors}

    def scale(self, factor: float) -> KronSums:
        """Sums that make `factor` times the curvature `inputs x gradients / count`; bases are no sums."""
        return replace(
            self,
            factors={
                block: KronFactors(each.inputs * factor, each.gradients * factor, each.count * factor)
                for block, each in self.factors.items()
            },
            others={part: value * factor for part, value in self.others.items()},
            corrected={key: value * factor for key, value in self.corrected.items()},
        )

    def fine(self) -> set[Own | WeightRange]:
        """Blocks whose sums are in float64."""
        fine: set[Own | WeightRange] = set()
        fine.update(key for key, value in self.factors.items() if in_float64([value.inputs]))
        for key, bases in self.bases.items():
            if in_float64(basis for basis in bases if basis is not None):
                fine |= {(key, False), (key, True)}
        return fine | {part for part, value in self.others.items() if in_float64([value])}

    def narrow(self, fine: set[Own | WeightRange]) -> None:
        """Round all but these to float32."""
        for block, value in self.factors.items():
            if block not in fine:
                value.inputs, value.gradients = value.inputs.float(), value.gradients.float()
        self.others.update({part: value.float() for part, value in self.others.items() if part not in fine})

    def drop(self, chosen: set[Side]) -> None:
        """Set the sums of these sides back to zero."""
        for block, side in chosen:
            if isinstance(block, WeightRange):
                del self.others[block]
                continue
            factors = self.factors[block]
            if side == "inputs":
                factors.inputs, factors.count = torch.zeros_like(factors.inputs), 0.0
            else:
                factors.gradients = torch.zeros_like(factors.gradients)
