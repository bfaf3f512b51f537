"""The metrics that there are: how each is computed, what it is called, which way is better, and what it means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from . import calibration, regression
from .bootstrap import MetricDraws, Resampling
from .positions import Positions
from .regression import LEVELS

MetricName: TypeAlias = Literal[
    "rmse", "r2", "accuracy", "nll", "brier", "ece", "ece_adaptive", "ece_classwise", "mce", "crps", "coverage50",
    "coverage90", "coverage95", "sharpness", "pit_deviation", "aurc", "confidence", "overconfidence", "uncertainty",
    "auroc", "aupr", "fpr95",
]  # fmt: skip
"""A metric of a report."""
Measure = Callable[[Positions, Resampling], MetricDraws]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """How a metric is read: better upwards (+1), downwards (-1), or towards `ideal` (0); and how it is computed.

    `of` names the numbers of positions whose mean it is, or is a function of the positions, which needs one of `needs`.
    A metric without it is not computed for every method.
    """

    short: str  # in tables
    name: str  # in reports
    phrase: str  # in figures
    meaning: str = ""
    better: int = 0
    ideal: float | None = None
    percent: bool = False
    of: str | Measure | None = None
    needs: tuple[str, ...] = ()


def _coverage(level: float) -> Metric:
    """The share of targets inside an interval that should have so many."""
    percent = f"{100 * level:g} %"
    return Metric(
        short=f"in {percent} interval", name=f"In {percent} interval", phrase=f"share inside {percent} intervals",
        meaning=f"share of targets inside the {percent} interval", ideal=level, percent=True,
        of=lambda positions, drawn: regression.covered_share(positions, drawn, level), needs=("pit",),
    )  # fmt: skip


# In the order of reports.
METRICS = {
    "rmse": Metric(
        short="RMSE", name="RMSE", phrase="root mean squared error", better=-1,
        meaning="root of the mean squared error, in the units of the target",
        of=lambda positions, drawn: MetricDraws.of(positions.means(("squared",), drawn)[:, 0].sqrt()),
        needs=("squared",),
    ),
    "r2": Metric(
        short="R²", name="R²", phrase="R² (share of the variance explained)", better=1,
        meaning="the share of the targets' variance that is explained: 1 is perfect, 0 no better than a constant",
        of=regression.explained_share, needs=("target",),
    ),
    "accuracy": Metric(
        short="accuracy", name="Accuracy", phrase="accuracy", better=1, percent=True,
        meaning="the share of test inputs whose likeliest class is the right one", of="correct",
    ),
    "nll": Metric(
        short="NLL", name="NLL", phrase="NLL (surprise at the truth)", better=-1,
        meaning="negative log-likelihood: how surprised the prediction is by the right answer, on average", of="nll",
    ),
    "brier": Metric(
        short="Brier", name="Brier", phrase="Brier score (squared error of probabilities)", better=-1,
        meaning="squared distance between the probabilities and the right answer, 0 to 2", of="brier",
    ),
    "ece": Metric(
        short="ECE", name="Calibration error", phrase="calibration error (ECE)", better=-1, percent=True,
        meaning="by how much confidence and accuracy differ, on average (ECE)",
        of=lambda positions, drawn: calibration.width_errors(positions, drawn)[0], needs=("correct",),
    ),
    "ece_adaptive": Metric(
        short="adaptive ECE", name="Adaptive ECE", phrase="calibration error, bins of equal size", better=-1,
        percent=True, meaning="the same with as many predictions in every bin",
        of=calibration.adaptive, needs=("correct",),
    ),
    "ece_classwise": Metric(
        short="class-wise ECE", name="Class-wise ECE", phrase="calibration error, class by class", better=-1,
        percent=True, meaning="the same for the probabilities of every class",
        of=calibration.classwise, needs=("probs",),
    ),
    "mce": Metric(
        short="MCE", name="Largest error", phrase="largest calibration error of a bin", better=-1, percent=True,
        meaning="the same in the worst bin (MCE)",
        of=lambda positions, drawn: calibration.width_errors(positions, drawn)[1], needs=("correct",),
    ),
    "crps": Metric(
        short="CRPS", name="CRPS", phrase="CRPS (distance from the truth)", better=-1,
        meaning="distance between the predicted distribution and the target, in its units", of="crps",
    ),
    **{f"coverage{round(100 * level)}": _coverage(level) for level in LEVELS},
    "sharpness": Metric(
        short="sharpness", name="Sharpness", phrase="predicted standard deviation", better=-1,
        meaning="mean width of the prediction: its standard deviation", of="deviation", needs=("pit",),
    ),
    "pit_deviation": Metric(
        short="PIT deviation", name="PIT deviation", phrase="distance of quantiles from even", better=-1,
        meaning="how far predicted quantiles are from where the targets fall",
        of=regression.pit_deviation, needs=("pit",),
    ),
    "aurc": Metric(
        short="AURC", name="AURC", phrase="error, averaged over shares kept (AURC)", better=-1,
        meaning="the error rate, averaged over how many of the surest predictions are kept",
        of=calibration.risk_area, needs=("correct", "pit"),
    ),
    "confidence": Metric(
        short="confidence", name="Confidence", phrase="mean confidence", percent=True,
        meaning="mean probability of the likeliest class",
    ),
    "overconfidence": Metric(
        short="overconfidence", name="Confidence minus accuracy", phrase="confidence minus accuracy", ideal=0.0,
        percent=True, meaning="mean confidence less accuracy: above 0 it is too sure, below 0 not sure enough",
    ),
    "uncertainty": Metric(
        short="uncertainty", name="Uncertainty", phrase="mean uncertainty",
        meaning="mean uncertainty of the prediction",
    ),
    "auroc": Metric(
        short="AUROC", name="AUROC", phrase="AUROC", better=1, percent=True,
        meaning="how often an unknown input is the less sure one of a pair; 50 % is chance",
    ),
    "aupr": Metric(
        short="AUPR", name="AUPR", phrase="AUPR", better=1, percent=True,
        meaning="precision, averaged over how many of the unknown inputs are found",
    ),
    "fpr95": Metric(
        short="FPR95", name="FPR95", phrase="FPR95", better=-1, percent=True,
        meaning="share of known inputs that raise alarm where 95 % of unknown ones do",
    ),
}  # fmt: skip


def describe(name: str) -> Metric:
    """How to read a metric; unknown ones by their own name."""
    words = name.replace("_", " ")
    return METRICS.get(name, Metric(short=words, name=words, phrase=words))


def merit(name: str, value: float) -> float:
    """A number that is larger where the metric is better; less is better where nothing is said."""
    metric = describe(name)
    return -abs(value - metric.ideal) if metric.ideal is not None else (metric.better or -1) * value
