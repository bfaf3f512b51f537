"""Single inputs worth looking at, by the first method: surest, least sure, and those that it is wrongly sure of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.nn import functional as F

from ..metrics.positions import Positions
from ..metrics.results import Feature, Specimen
from ..network.nests import Inputs
from .corruptions import InputRange
from .scorers import ClassScorer, Scorer

MOST = 8
SIDE = 64  # pixels that an image is shown with at most
FEATURES = 30  # of a row of a table that are kept


@dataclass(frozen=True, kw_only=True)
class Kept:
    """An input that may be shown: kept are those with the smallest `order`."""

    order: float
    index: int
    specimen: Specimen
    row: Tensor | None  # (D,) of a table


@dataclass(eq=False, kw_only=True)
class Columns:
    """Names, means and deviations of the columns of a table (N, D), which comes in batches."""

    names: Sequence[str] | None = None
    count: int = 0
    mean: Tensor | None = None  # (D,)
    squares: Tensor | None = None  # (D,): squared distances from the mean, summed

    def add(self, inputs: Inputs) -> None:
        """One more batch, where it is one of a table."""
        if not is_table(inputs):
            return
        rows = inputs.detach().double().cpu()
        mean, number = rows.mean(0), len(rows)
        squares = (rows - mean).square().sum(0)
        if self.mean is None or self.squares is None:
            self.count, self.mean, self.squares = number, mean, squares
        elif mean.shape == self.mean.shape:
            total, step = self.count + number, mean - self.mean
            self.squares = self.squares + squares + step.square() * (self.count * number / total)
            self.mean, self.count = self.mean + step * (number / total), total

    def features(self, row: Tensor | None) -> tuple[Feature, ...]:
        """The values of a row (D,), in their order; of many columns those that are furthest from their means."""
        if row is None or self.mean is None or self.squares is None or len(row) != len(self.mean):
            return ()
        spread = (self.squares / self.count).sqrt()
        distance = torch.where(spread > 0, (row - self.mean) / spread, torch.zeros_like(row))
        chosen = sorted(distance.abs().argsort(descending=True, stable=True)[:FEATURES].tolist())
        names = self.names or [f"column {number}" for number in range(len(row))]
        return tuple(
            Feature(name=names[column], value=short(row[column]), deviations=short(distance[column]))
            for column in chosen
        )


def is_table(inputs: Inputs) -> TypeGuard[Tensor]:
    """Whether inputs are rows of numbers (N, D)."""
    return isinstance(inputs, Tensor) and inputs.dim() == 2 and inputs.is_floating_point() and inputs.shape[1] > 0


def short(value: Tensor) -> float:
    """Numbers with six digits."""
    return float(f"{float(value):.6g}")


@dataclass(eq=False, kw_only=True)
class Gallery:
    """The surest, the least sure and the surest wrong inputs so far; empty where an input has several labels."""

    limits: InputRange
    columns: Columns = field(default_factory=Columns)
    surest: list[Kept] = field(default_factory=list)
    least: list[Kept] = field(default_factory=list)
    wrong: list[Kept] = field(default_factory=list)
    unknown: dict[str, list[Kept]] = field(default_factory=dict)
    examples: int = 0
    several: bool = False

    def visit(self, inputs: Inputs, targets: Tensor, positions: Positions, first: int) -> None:
        """Look at one batch; `first` is the number of its first example."""
        self.examples = first + positions.examples
        self.columns.add(inputs)
        self.several |= len(positions) > positions.examples or len(positions.owner.unique()) != len(positions)
        if self.several or not len(positions):
            return
        classes = "entropy" in positions
        doubt = positions["entropy" if classes else "deviation"]
        unsure = 1 - positions["confidence"] if classes else doubt
        everywhere = torch.ones_like(unsure, dtype=torch.bool)
        if classes:
            missed, surprise = positions["correct"] == 0, unsure
        elif "squared" in positions:  # numbers are sure and wrong where they are many deviations off
            missed, surprise = everywhere, -positions["squared"] / positions["deviation"].square().clamp(min=1e-300)
        else:
            missed, surprise = ~everywhere, unsure
        # Where most are equally sure the first ones are both: twice as many are kept, to leave those out.
        for specimens, order, among, most in (
            (self.surest, unsure, everywhere, MOST),
            (self.least, -unsure, everywhere, 2 * MOST),
            (self.wrong, surprise, missed, MOST),
        ):
            places = among.nonzero()[:, 0]
            for position in places[order[places].argsort(stable=True)[:most]].tolist():
                row = int(positions.owner[position])
                label, predicted, confidence = _labels(positions, targets, position, row)
                specimen = Specimen(
                    index=first + row,
                    label=label,
                    predicted=predicted,
                    confidence=confidence,
                    uncertainty=float(doubt[position]),
                    image=self._image(inputs, row),
                )
                self._keep(specimens, float(order[position]), specimen, inputs, row, most)

    def visit_unknown(
        self, name: str, inputs: Inputs, scorer: Scorer, scores: Mapping[str, Tensor], first: int
    ) -> None:
        """Look at one batch of unknown inputs, for those that the method is surest of."""
        specimens, predicted = self.unknown.setdefault(name, []), scorer.point_predictions()
        if predicted is None:
            return
        classes = isinstance(scorer, ClassScorer)
        doubt = scores["entropy"] if classes else scores["variance"].sqrt()
        order = 1 - scores["confidence"] if classes else doubt
        for row in order.argsort(stable=True)[:MOST].tolist():
            specimen = Specimen(
                index=first + row,
                label=None,
                predicted=int(predicted[row]) if classes else float(predicted[row]),
                confidence=float(scores["confidence"][row]) if classes else float("nan"),
                uncertainty=float(doubt[row]),
                image=self._image(inputs, row),
            )
            self._keep(specimens, float(order[row]), specimen, inputs, row, MOST)

    def _image(self, inputs: Inputs, row: int) -> Any:
        return pixels_of(inputs[row], self.limits) if isinstance(inputs, Tensor) else None

    def _keep(
        self, specimens: list[Kept], order: float, specimen: Specimen, inputs: Inputs, row: int, most: int
    ) -> None:
        values = inputs[row].detach().double().cpu() if is_table(inputs) else None
        specimens.append(Kept(order=order, index=specimen.index, specimen=specimen, row=values))
        specimens.sort(key=lambda entry: (entry.order, entry.index))
        del specimens[most:]

    def _specimens(self, kept: Sequence[Kept]) -> tuple[Specimen, ...]:
        return tuple(replace(entry.specimen, features=self.columns.features(entry.row)) for entry in kept)

    def pick(self) -> tuple[tuple[Specimen, ...], tuple[Specimen, ...]]:
        """The surest and the least sure, no input in both; none where all are equally sure."""
        equal = self.examples > 1 and bool(self.surest) and self.surest[0].order == -self.least[0].order
        if self.several or equal:
            return (), ()
        many = min(MOST, (self.examples + 1) // 2)
        surest = self.surest[:many]
        known = {entry.index for entry in surest}
        least = [entry for entry in self.least if entry.index not in known][:many]
        return self._specimens(surest), self._specimens(least)

    def pick_wrong(self) -> tuple[Specimen, ...]:
        """Wrong predictions, the surest first; numbers by how many deviations they are off."""
        return () if self.several else self._specimens(self.wrong)

    def pick_unknown(self) -> dict[str, tuple[Specimen, ...]]:
        """Unknown inputs by the name of their data, the surest first."""
        return {name: self._specimens(kept) for name, kept in self.unknown.items() if kept}


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
