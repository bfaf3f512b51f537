"""The metrics that there are: what each is called, which way is better, and what it means."""

from __future__ import annotations

from dataclasses import dataclass

from .regression import LEVELS


@dataclass(frozen=True)
class Metric:
    """How a metric is read: better upwards (+1), downwards (-1), or towards `ideal` (0)."""

    short: str  # in tables
    name: str  # in reports
    phrase: str  # in figures
    better: int = 0
    meaning: str = ""
    ideal: float | None = None
    percent: bool = False


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
    )


METRICS = {
    "accuracy": Metric(
        "accuracy",
        "Accuracy",
        "accuracy",
        1,
        "the share of test inputs whose likeliest class is the right one",
        percent=True,
    ),
    "nll": Metric(
        "NLL",
        "NLL",
        "NLL (surprise at the truth)",
        -1,
        "negative log-likelihood: how surprised the prediction is by the right answer, on average",
    ),
    "brier": Metric(
        "Brier",
        "Brier",
        "Brier score (squared error of probabilities)",
        -1,
        "squared distance between the probabilities and the right answer, 0 to 2",
    ),
    "ece": Metric(
        "ECE",
        "Calibration error",
        "calibration error (ECE)",
        -1,
        "by how much confidence and accuracy differ, on average (ECE)",
        percent=True,
    ),
    "ece_adaptive": Metric(
        "adaptive ECE",
        "Adaptive ECE",
        "calibration error, bins of equal size",
        -1,
        "the same with as many predictions in every bin",
        percent=True,
    ),
    "ece_classwise": Metric(
        "class-wise ECE",
        "Class-wise ECE",
        "calibration error, class by class",
        -1,
        "the same for the probabilities of every class",
        percent=True,
    ),
    "mce": Metric(
        "MCE",
        "Largest error",
        "largest calibration error of a bin",
        -1,
        "the same in the worst bin (MCE)",
        percent=True,
    ),
    "aurc": Metric(
        "AURC",
        "AURC",
        "error, averaged over shares kept (AURC)",
        -1,
        "the error rate, averaged over how many of the surest predictions are kept",
    ),
    "rmse": Metric(
        "RMSE", "RMSE", "root mean squared error", -1, "root of the mean squared error, in the units of the target"
    ),
    "crps": Metric(
        "CRPS",
        "CRPS",
        "CRPS (distance from the truth)",
        -1,
        "distance between the predicted distribution and the target, in its units",
    ),
    **{f"coverage{round(100 * level)}": covered(level) for level in LEVELS},
    "sharpness": Metric(
        "sharpness",
        "Sharpness",
        "predicted standard deviation",
        -1,
        "mean width of the prediction: its standard deviation",
    ),
    "pit_deviation": Metric(
        "PIT deviation",
        "PIT deviation",
        "distance of quantiles from even",
        -1,
        "how far predicted quantiles are from where the targets fall",
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
