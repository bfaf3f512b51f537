"""What an evaluation found, as plain values: numbers, tuples and names alone, so that they go into JSON and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

VariationName: TypeAlias = Literal["shifts", "attacks"]
"""Corruptions, or inputs changed on purpose."""
Task: TypeAlias = Literal["classification", "regression"]


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % bootstrap interval, from drawing the examples anew with replacement.

    The interval holds the number. Without draws (`intervals=0`), both ends are the number.

    Attributes:
        value: The number itself, from the data as they are.
        low: Lower end of the interval.
        high: Upper end of the interval.

    Example:
        >>> estimate = report.methods[0].metrics["accuracy"]
        >>> estimate.low <= estimate.value <= estimate.high
        True
    """

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Reliability:
    """Accuracy per confidence bin (B bins of equal width).

    Attributes:
        edges: Ends of the bins (B + 1,), from 0 to 1.
        confidence: Mean confidence in each bin (B,); 0 in an empty bin.
        accuracy: Share of right predictions in each bin (B,); 0 in an empty bin.
        count: Number of predictions in each bin (B,).

    Example:
        >>> bins = report.methods[0].reliability
        >>> len(bins.edges), len(bins.accuracy), sum(bins.count)
        (16, 15, 60)
    """

    edges: tuple[float, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[float, ...]
    count: tuple[int, ...]


@dataclass(frozen=True)
class Curve:
    """A curve: y against x, K points.

    Attributes:
        x: Coordinates (K,).
        y: Values (K,).

    Example:
        >>> curve = report.methods[0].risk_coverage
        >>> len(curve.x) == len(curve.y), curve.x[-1]
        (True, 1.0)
    """

    x: tuple[float, ...]
    y: tuple[float, ...]


@dataclass(frozen=True)
class Detection:
    """Detection metrics of one score for one set of unknown inputs (positives) against the test inputs (negatives).

    Attributes:
        auroc: Area under the ROC curve, see `auroc`; 0.5 is chance.
        aupr: Area under the precision-recall curve, see `aupr`.
        fpr95: False positive rate at 95 % recall, see `fpr95`.

    Example:
        >>> found = report.methods[0].detection["far"]["entropy"]
        >>> 0 <= found.auroc.low <= found.auroc.value <= 1
        True
    """

    auroc: Estimate
    aupr: Estimate
    fpr95: Estimate


@dataclass(frozen=True)
class Shift:
    """Metrics under one corruption or attack, at each of K strengths.

    Attributes:
        strengths: Strengths (K,), rising; strength 0, the clean inputs, comes first.
        metrics: For each metric, K estimates. Classes have "accuracy", "nll", "confidence", "overconfidence" (mean
            confidence less accuracy) and "uncertainty" (mean entropy); numbers have "rmse", "nll" and "uncertainty"
            (mean standard deviation).

    Example:
        >>> shift = report.methods[0].shifts["moved"]
        >>> shift.strengths, len(shift.metrics["accuracy"])
        ((0.0, 0.5, 1.0), 3)
    """

    strengths: tuple[float, ...]
    metrics: dict[str, tuple[Estimate, ...]]


@dataclass(frozen=True, kw_only=True)
class MethodScores:
    """All results of one method on the test data.

    Attributes:
        name: Name of the method, such as "Laplace".
        description: One plain sentence about the method.
        metrics: For each metric, its value and interval. Classes have "accuracy", "nll", "brier", "ece",
            "ece_adaptive", "ece_classwise", "mce" and "aurc"; numbers have "rmse", "r2", "nll", "crps", "coverage50",
            "coverage90", "coverage95", "sharpness", "pit_deviation" and "aurc". Metrics that the likelihood does not
            allow are missing.
        reliability: Accuracy per confidence bin; None where the method predicts numbers.
        risk_coverage: Error (y) among the most confident share (x) of the predictions; no points where there is no
            error to count.
        pit: Share of the observations in each of 20 bins of equal width of the probability integral transform (PIT);
            None where there is none, as for classes.
        uncertainty: For each data set ("test", and each set of unknown inputs), the values of each score, such as
            "entropy": at most 2,000, evenly spaced over the inputs, with six digits.
        detection: For each set of unknown inputs and each score, how well the score separates them from the test
            inputs.
        shifts: For each corruption, the metrics at each strength.
        attacks: For each attack, the metrics at each strength.
        seconds: Time to predict the test set.
        differences: For each metric, its value minus that of the report's first method, with an interval from the same
            draws of the examples. Of a coverage it is the distance from the share that intervals should hold.

    Example:
        >>> scores = report.methods[0]
        >>> scores.name, sorted(scores.metrics)[:3]
        ('Laplace', ['accuracy', 'aurc', 'brier'])
    """

    name: str
    description: str
    metrics: dict[str, Estimate]
    reliability: Reliability | None
    risk_coverage: Curve
    pit: tuple[float, ...] | None
    uncertainty: dict[str, dict[str, tuple[float, ...]]]
    detection: dict[str, dict[str, Detection]]
    shifts: dict[str, Shift]
    attacks: dict[str, Shift]
    seconds: float
    differences: dict[str, Estimate] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Feature:
    """The value of one column of a table.

    Attributes:
        name: Name of the column.
        value: Value of the input, with six digits.
        deviations: How far the value is from the mean of the test data, in standard deviations of the column.

    Example:
        >>> feature = report.surest[0].features[0]
        >>> feature.name, abs(feature.deviations) < 5
        ('column 0', True)
    """

    name: str
    value: float
    deviations: float


@dataclass(frozen=True, kw_only=True)
class Specimen:
    """One test input, or one unknown input, with its prediction.

    Attributes:
        index: Place of the input in the test data, from 0.
        label: Class number, or the target in regression; None where it is unknown.
        predicted: Predicted class number, or the predicted mean.
        confidence: Probability of the predicted class; NaN in regression.
        uncertainty: Entropy in nats, or the standard deviation in regression.
        image: Pixels (rows, columns, channels) from 0 to 1, at most 64 by 64; None where the input is not an image.
        features: Values of an input that is a row of a table, in the order of its columns; of more than 30 columns,
            those 30 that are furthest from their means. Empty for all other inputs.

    Example:
        >>> specimen = report.surest[0]
        >>> specimen.confidence > report.least_sure[0].confidence, specimen.image
        (True, None)
    """

    index: int
    label: int | float | None
    predicted: int | float
    confidence: float
    uncertainty: float
    image: tuple[tuple[tuple[float, ...], ...], ...] | None
    features: tuple[Feature, ...] = field(default_factory=tuple)


@dataclass(frozen=True, kw_only=True)
class Results:
    """What a report says: every method with its scores, the one asked about first."""

    title: str
    task: Task
    methods: tuple[MethodScores, ...]
    surest: tuple[Specimen, ...]  # by the first method
    least_sure: tuple[Specimen, ...]
    classes: tuple[str, ...] | None
    coverage: tuple[dict[str, str], ...]  # which approximation each weight got
    posterior: dict[str, Any]  # groups, prior precisions, effective dimensions, variances by layer, evidence, its trace
    settings: dict[str, Any]
    versions: dict[str, str]
    notes: tuple[str, ...]
    sure_wrong: tuple[Specimen, ...] = field(default_factory=tuple)  # wrong, and the first method was sure
    unknown_surest: dict[str, tuple[Specimen, ...]] = field(default_factory=dict)  # of each set of unknown inputs
    constant: dict[str, Estimate] = field(default_factory=dict)  # what the best constant prediction would reach
    code: str = field(default_factory=str)  # Python that makes the report again

    def __getitem__(self, name: str) -> MethodScores:
        """The scores of a method by its name."""
        for method in self.methods:
            if method.name == name:
                return method
        raise KeyError(
            f"{name!r} is not a method of this report; it has {', '.join(method.name for method in self.methods)}."
        )
