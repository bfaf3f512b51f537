"""How good predictions are: `peewit.evaluate(la, test)` is the whole report, the functions in here its metrics."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any

from .calibration import aurc, ece_adaptive, ece_classwise, mce, reliability
from .call import evaluate
from .detection import aupr, fpr95
from .metrics import accuracy, auroc, brier, ece, nll
from .regression import crps_gaussian, crps_samples
from .results import Curve, Detection, Estimate, Reliability, Report, Scores, Shift, Specimen
from .sweep import Point, Sweep, sweep

__all__ = [
    "Curve",
    "Detection",
    "Estimate",
    "Point",
    "Reliability",
    "Report",
    "Scores",
    "Shift",
    "Specimen",
    "Sweep",
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
    "evaluate",
    "fpr95",
    "mce",
    "nll",
    "reliability",
    "sweep",
]


class _Callable(ModuleType):
    """This module can be called: `peewit.evaluate(...)` and `from peewit.evaluate import ece` are both natural."""

    def __call__(self, *args: Any, **kwargs: Any) -> Report:
        return evaluate(*args, **kwargs)


__signature__ = inspect.signature(evaluate)  # for help and editors
_Callable.__call__.__doc__ = evaluate.__doc__
sys.modules[__name__].__class__ = _Callable
