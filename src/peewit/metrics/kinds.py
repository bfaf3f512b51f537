"""The metrics that there are: how each is computed, what it is called, which way is better, and what it means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import calibration, regression
from .bootstrap import Draws, Resampling
from .columns import Columns
from .regression import LEVELS

Measure = Callable[[Columns, Resampling], Draws]


@dataclass(frozen=True)
class Metric:
    """How a metric is read: better upwards (+1), downwards (-1), or towards `ideal` (0); and how it is computed.

    `of` is the column whose mean it is, or a function of the columns, which needs one of `needs`. A metric without it
    is not computed for every method.
    """

    short: str  # in tables
    name: str  # in reports
    phrase: str  # in figures
    better: int = 0
    meaning: str = ""
    ideal: float | None = None
    percent: bool = False
    of: str | Measure | None = None
    needs: tuple[str, ...] = ()


def covered(level: float) -> Metric:
    """The share of targets inside an interval that should have so many."""
    percent = f"{100 * level:g} %"
    return Metric(
        f"in {percent} interval",
        f"In {percent} interval",
        f"share inside {percent} intervals",
        meaning=f"share of targets inside the {percent} interval",
        ideal=level,
        percent=True,
        of=lambda columns, drawn: regression.covered_share(columns, drawn, level),
        needs=("pit",),
    )


# In the order of reports.
METRICS = {
    "rmse": Metric(
        "RMSE",
        "RMSE",
        "root mean squared error",
        -1,
        "root of the mean squared error, in the units of the target",
        of=lambda columns, drawn: Draws.of(columns.means(("squared",), drawn)[:, 0].sqrt()),
        needs=("squared",),
    ),
    "accuracy": Metric(
        "accuracy",
        "Accuracy",
        "accuracy",
        1,
        "the share of test inputs whose likeliest class is the right one",
        percent=True,
        of="correct",
    ),
    "nll": Metric(
        "NLL",
        "NLL",
        "NLL (surprise at the truth)",
        -1,
        "negative log-likelihood: how surprised the prediction is by the right answer, on average",
        of="nll",
    ),
    "brier": Metric(
        "Brier",
        "Brier",
        "Brier score (squared error of probabilities)",
        -1,
        "squared distance between the probabilities and the right answer, 0 to 2",
        of="brier",
    ),
    "ece": Metric(
        "ECE",
        "Calibration error",
        "calibration error (ECE)",
        -1,
        "by how much confidence and accuracy differ, on average (ECE)",
        percent=True,
        of=lambda columns, drawn: calibration.width_errors(columns, drawn)[0],
        needs=("correct",),
    ),
    "ece_adaptive": Metric(
        "adaptive ECE",
        "Adaptive ECE",
        "calibration error, bins of equal size",
        -1,
        "the same with as many predictions in every bin",
        percent=True,
        of=calibration.adaptive,
        needs=("correct",),
    ),
    "ece_classwise": Metric(
        "class-wise ECE",
        "Class-wise ECE",
        "calibration error, class by class",
        -1,
        "the same for the probabilities of every class",
        percent=True,
        of=calibration.classwise,
        needs=("probs",),
    ),
    "mce": Metric(
        "MCE",
        "Largest error",
        "largest calibration error of a bin",
        -1,
        "the same in the worst bin (MCE)",
        percent=True,
        of=lambda columns, drawn: calibration.width_errors(columns, drawn)[1],
        needs=("correct",),
    ),
    "crps": Metric(
        "CRPS",
        "CRPS",
        "CRPS (distance from the truth)",
        -1,
        "distance between the predicted distribution and the target, in its units",
        of="crps",
    ),
    **{f"coverage{round(100 * level)}": covered(level) for level in LEVELS},
    "sharpness": Metric(
        "sharpness",
        "Sharpness",
        "predicted standard deviation",
        -1,
        "mean width of the prediction: its standard deviation",
        of="deviation",
        needs=("pit",),
    ),
    "pit_deviation": Metric(
        "PIT deviation",
        "PIT deviation",
        "distance of quantiles from even",
        -1,
        "how far predicted quantiles are from where the targets fall",
        of=regression.pit_deviation,
        needs=("pit",),
    ),
    "aurc": Metric(
        "AURC",
        "AURC",
        "error, averaged over shares kept (AURC)",
        -1,
        "the error rate, averaged over how many of the surest predictions are kept",
        of=lambda columns, drawn: calibration.risk_area(columns, *calibration.doubt_and_risk(columns), drawn),
        needs=("correct", "pit"),
    ),
    "confidence": Metric(
        "confidence", "Confidence", "mean confidence", meaning="mean probability of the likeliest class", percent=True
    ),
    "uncertainty": Metric(
        "uncertainty", "Uncertainty", "mean uncertainty", meaning="mean uncertainty of the prediction"
    ),
    "auroc": Metric(
        "AUROC",
        "AUROC",
        "AUROC",
        1,
        "how often an unknown input is the less sure one of a pair; 50 % is chance",
        percent=True,
    ),
    "aupr": Metric(
        "AUPR",
        "AUPR",
        "AUPR",
        1,
        "precision, averaged over how many of the unknown inputs are found",
        percent=True,
    ),
    "fpr95": Metric(
        "FPR95",
        "FPR95",
        "FPR95",
        -1,
        "share of known inputs that raise alarm where 95 % of unknown ones do",
        percent=True,
    ),
}


def metric(name: str) -> Metric:
    """How to read a metric; unknown ones by their own name."""
    words = name.replace("_", " ")
    return METRICS.get(name, Metric(words, words, words))


def merit(name: str, value: float) -> float:
    """A number that is larger where the metric is better; less is better where nothing is said."""
    kind = metric(name)
    return -abs(value - kind.ideal) if kind.ideal is not None else (kind.better or -1) * value
