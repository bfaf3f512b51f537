"""Test inputs worth looking at: those that the first method is surest of, and least sure of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from ..metrics.results import Specimen
from ..network.nests import Inputs
from .answers import Part
from .corruptions import Range

MOST = 8
SIDE = 64  # pixels that an image is shown with at most
Kept = tuple[float, int, Specimen]


@dataclass(eq=False)
class Gallery:
    """The surest and least sure inputs so far; empty where an input has several labels."""

    limits: Range
    surest: list[Kept] = field(default_factory=list)
    least: list[Kept] = field(default_factory=list)
    examples: int = 0
    several: bool = False

    def visit(self, inputs: Inputs, targets: Tensor, part: Part, first: int) -> None:
        """One batch."""
        self.examples = first + part.examples
        self.several |= len(part.owner) > part.examples or len(part.owner.unique()) != len(part.owner)
        if self.several or not len(part.owner):
            return
        doubt = part.values["entropy"] if "entropy" in part.values else part.values["deviation"]
        sure = 1 - part.values["confidence"] if "confidence" in part.values else part.values["deviation"]
        # Where most are equally sure the first ones are both: twice as many are kept, to leave those out.
        for kept, order, most in ((self.surest, sure, MOST), (self.least, -sure, 2 * MOST)):
            for place in order.argsort(stable=True)[:most].tolist():
                own = int(part.owner[place])
                kept.append((float(order[place]), first + own, self._one(inputs, targets, part, doubt, place, first)))
            kept.sort(key=lambda each: each[:2])
            del kept[most:]

    def _one(self, inputs: Inputs, targets: Tensor, part: Part, doubt: Tensor, place: int, first: int) -> Specimen:
        own = int(part.owner[place])
        image = shown(inputs[own], self.limits) if isinstance(inputs, Tensor) else None
        label, predicted, confidence = _labels(part, targets, place, own)
        return Specimen(first + own, label, predicted, confidence, float(doubt[place]), image)

    def chosen(self) -> tuple[tuple[Specimen, ...], tuple[Specimen, ...]]:
        """The surest and the least sure, no input in both; none where all are equally sure."""
        if self.several or (self.examples > 1 and self.surest and self.surest[0][0] == -self.least[0][0]):
            return (), ()
        many = min(MOST, (self.examples + 1) // 2)
        surest = self.surest[:many]
        known = {each[1] for each in surest}
        least = [each for each in self.least if each[1] not in known][:many]
        return tuple(each[2] for each in surest), tuple(each[2] for each in least)


def _labels(part: Part, targets: Tensor, place: int, own: int) -> tuple[int | float, int | float, float]:
    """The label, what was predicted, and the confidence (of numbers there is none)."""
    if part.labels is not None and part.probs is not None:
        predicted = int(part.probs[place].argmax())
        return int(part.labels[place]), predicted, float(part.values["confidence"][place])
    return float(targets[own].flatten()[0]), float(part.values["mean"][place]), float("nan")


def shown(x: Tensor, limits: Range) -> Any:
    """(channels, rows, columns) as nested tuples (rows, columns, channels) in 0 to 1; None for what is no image."""
    if x.dim() != 3 or x.shape[0] not in (1, 3) or not x.is_floating_point() or min(x.shape[1:]) < 2:
        return None
    image = x.detach().float().cpu()
    if (limits.low, limits.high) != (0.0, 1.0):  # normalised images: each by its own range
        image = (image - image.min()) / (image.max() - image.min()).clamp(min=1e-12)
    largest = max(image.shape[1:])
    if largest > SIDE:
        rows, columns = (max(1, round(side * SIDE / largest)) for side in image.shape[1:])
        image = F.adaptive_avg_pool2d(image, (rows, columns))
    rounded = (image.clamp(0, 1) * 255).round().div(255).mul(1e4).round().div(1e4)  # short numbers in files
    return tuple(
        tuple(tuple(round(value, 4) for value in pixel) for pixel in row) for row in rounded.permute(1, 2, 0).tolist()
    )


def finite_range(inputs: Inputs) -> Range:
    """Of inputs that are one tensor of numbers; 0 to 1 for all else."""
    if isinstance(inputs, Tensor) and inputs.is_floating_point() and bool(torch.isfinite(inputs).all()):
        return Range.of(inputs)
    return Range(0.0, 1.0)
