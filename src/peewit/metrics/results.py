"""What an evaluation found, as plain values: numbers, tuples and names alone, so that they go into JSON and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Estimate:
    """A number, and where 95 % of its bootstrap values are, from drawing the examples anew with replacement."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Reliability:
    """How often predictions were right where they were how sure, in B bins; 0 where a bin is empty."""

    edges: tuple[float, ...]  # (B + 1,)
    confidence: tuple[float, ...]  # (B,): its mean
    accuracy: tuple[float, ...]  # (B,)
    count: tuple[int, ...]  # (B,)


@dataclass(frozen=True)
class Curve:
    """y against x."""

    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Detection:
    """How well one score tells one set of unknown inputs from the test inputs; unknown ones are the positives."""

    auroc: Estimate
    aupr: Estimate
    fpr95: Estimate


@dataclass(frozen=True)
class Shift:
    """One corruption or attack: one entry per strength, strength 0 (clean) first."""

    strengths: tuple[float, ...]
    metrics: dict[str, tuple[Estimate, ...]]  # accuracy or rmse, nll, confidence, uncertainty


@dataclass(frozen=True)
class Scores:
    """Everything about one way to predict."""

    name: str
    description: str  # a plain sentence: what this method is
    metrics: dict[str, Estimate]
    reliability: Reliability | None  # of class probabilities
    risk_coverage: Curve  # the error among the surest share of the examples
    pit: tuple[float, ...] | None  # of numbers: shares of the probability integral transform in bins of equal width
    uncertainty: dict[str, dict[str, tuple[float, ...]]]  # data set ("test", unknown ones) -> score -> values of some
    detection: dict[str, dict[str, Detection]]  # unknown data set -> score -> how well it is told from the test set
    shifts: dict[str, Shift]
    attacks: dict[str, Shift]
    seconds: float  # to predict the test set
    differences: dict[str, Estimate] = field(default_factory=dict)  # metrics less those of the report's first method


@dataclass(frozen=True)
class Specimen:
    """One test input worth looking at."""

    index: int
    label: int | float | None
    predicted: int | float
    confidence: float
    uncertainty: float
    image: tuple[tuple[tuple[float, ...], ...], ...] | None  # (rows, columns, channels), 0 to 1


@dataclass(frozen=True)
class Results:
    """What a report says: every method with its scores, the one asked about first."""

    title: str
    task: str  # "classification" or "regression"
    methods: tuple[Scores, ...]
    surest: tuple[Specimen, ...]  # by the first method
    least_sure: tuple[Specimen, ...]
    classes: tuple[str, ...] | None
    coverage: tuple[dict[str, str], ...]  # which approximation each weight got
    posterior: dict[str, Any]  # groups, prior precisions, effective dimensions, variances by layer, evidence, its trace
    settings: dict[str, Any]
    versions: dict[str, str]
    notes: tuple[str, ...]

    def __getitem__(self, name: str) -> Scores:
        """The scores of a method by its name."""
        for each in self.methods:
            if each.name == name:
                return each
        raise KeyError(f"{name!r} is no method of this report; it has {', '.join(each.name for each in self.methods)}.")
