"""How good predictions are: `peewit.evaluate` and `peewit.sweep`, and the values that they return."""

from .call import evaluate
from .report import Report
from .sweeps import Point, Sweep, sweep

__all__ = ["Point", "Report", "Sweep", "evaluate", "sweep"]
