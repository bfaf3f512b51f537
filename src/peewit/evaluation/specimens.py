"""Test inputs worth looking at: those that the first method is surest of, and least sure of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..metrics.positions import Positions
from ..metrics.results import Specimen
from ..network.nests import Inputs
from .corruptions import InputRange

MOST = 8
SIDE = 64  # pixels that an image is shown with at most
Kept = tuple[float, int, Specimen]


@dataclass(eq=False, kw_only=True)
class Gallery:
    """The surest and least sure inputs so far; empty where an input has several labels."""

    limits: InputRange
    surest: list[Kept] = field(default_factory=list)
    least: list[Kept] = field(default_factory=list)
    examples: int = 0
    several: bool = False

    def visit(self, inputs: Inputs, targets: Tensor, positions: Positions, first: int) -> None:
        """Look at one batch; `first` is the number of its first example."""
        self.examples = first + positions.examples
        self.several |= len(positions) > positions.examples or len(positions.owner.unique()) != len(positions)
        if self.several or not len(positions):
            return
        classes = "entropy" in positions
        doubt = positions["entropy" if classes else "deviation"]
        unsure = 1 - positions["confidence"] if classes else doubt
        # Where most are equally sure the first ones are both: twice as many are kept, to leave those out.
        for kept, order, most in ((self.surest, unsure, MOST), (self.least, -unsure, 2 * MOST)):
            for position in order.argsort(stable=True)[:most].tolist():
                row = int(positions.owner[position])
                label, predicted, confidence = _labels(positions, targets, position, row)
                image = pixels_of(inputs[row], self.limits) if isinstance(inputs, Tensor) else None
                specimen = Specimen(
                    index=first + row,
                    label=label,
                    predicted=predicted,
                    confidence=confidence,
                    uncertainty=float(doubt[position]),
                    image=image,
                )
                kept.append((float(order[position]), first + row, specimen))
            kept.sort(key=lambda entry: entry[:2])
            del kept[most:]

    def chosen(self) -> tuple[tuple[Specimen, ...], tuple[Specimen, ...]]:
        """The surest and the least sure, no input in both; none where all are equally sure."""
        if self.several or (self.examples > 1 and self.surest and self.surest[0][0] == -self.least[0][0]):
            return (), ()
        many = min(MOST, (self.examples + 1) // 2)
        surest = self.surest[:many]
        known = {index for _, index, _ in surest}
        least = [entry for entry in self.least if entry[1] not in known][:many]
        return tuple(specimen for *_, specimen in surest), tuple(specimen for *_, specimen in least)


def _labels(positions: Positions, targets: Tensor, position: int, row: int) -> tuple[int | float, int | float, float]:
    """The label, what was predicted, and the confidence (of numbers there is none)."""
    if positions.labels is not None and positions.probs is not None:
        predicted = int(positions.probs[position].argmax())
        return int(positions.labels[position]), predicted, float(positions["confidence"][position])
    return float(targets[row].flatten()[0]), float(positions["mean"][position]), float("nan")


def pixels_of(x: Tensor, limits: InputRange) -> Any:
    """(channels, rows, columns) as nested tuples (rows, columns, channels) in 0 to 1; None for what is not an image."""
    if x.dim() != 3 or x.shape[0] not in (1, 3) or not x.is_floating_point() or min(x.shape[1:]) < 2:
        return None
    image = x.detach().float().cpu()
    if (limits.low, limits.high) != (0.0, 1.0):  # normalised images: each by its own range
        image = (image - image.min()) / (image.max() - image.min()).clamp(min=1e-12)
    largest = max(image.shape[1:])
    if largest > SIDE:
        rows, columns = (max(1, round(side * SIDE / largest)) for side in image.shape[1:])
        image = F.adaptive_avg_pool2d(image, (rows, columns))
    pixels = (image.clamp(0, 1) * 255).round().div(255).mul(1e4).round().div(1e4)  # short numbers in files
    return tuple(
        tuple(tuple(round(value, 4) for value in pixel) for pixel in row) for row in pixels.permute(1, 2, 0).tolist()
    )


def finite_range(inputs: Inputs) -> InputRange:
    """Of inputs that are one tensor of numbers; 0 to 1 for all else."""
    if isinstance(inputs, Tensor) and inputs.is_floating_point() and bool(torch.isfinite(inputs).all()):
        return InputRange.of(inputs)
    return InputRange(0.0, 1.0)
