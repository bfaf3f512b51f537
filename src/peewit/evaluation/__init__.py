"""How good predictions are: `peewit.evaluate` and `peewit.sweep`, and the values that they return."""

from .call import evaluate
from .report import Report
from .sweeps import Sweep, SweepPoint, sweep

__all__ = ["Report", "Sweep", "SweepPoint", "evaluate", "sweep"]
