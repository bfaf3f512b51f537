"""Metrics of predictions: functions of probabilities or numbers and targets, and the values that a report holds."""

from ..messages.names import spell_functions
from .calibration import aurc, ece, ece_adaptive, ece_classwise, mce, reliability
from .detection import aupr, auroc, fpr95
from .labels import accuracy, brier, nll
from .regression import crps_gaussian, crps_samples
from .results import Curve, Detection, Estimate, Feature, MethodScores, Reliability, Shift, Specimen

__all__ = [
    "Curve",
    "Detection",
    "Estimate",
    "Feature",
    "MethodScores",
    "Reliability",
    "Shift",
    "Specimen",
    "accuracy",
    "aupr",
    "aurc",
    "auroc",
    "brier",
    "crps_gaussian",
    "crps_samples",
    "ece",
    "ece_adaptive",
    "ece_classwise",
    "fpr95",
    "mce",
    "nll",
    "reliability",
]
spell_functions(globals())


def __dir__() -> list[str]:
    """What is for users."""
    return sorted(__all__)
