"""Which model to choose: `peewit.compare` ranks posteriors by their evidence, beside what they predict on test data."""

from .call import compare
from .result import ComparedPosterior, Comparison

__all__ = ["ComparedPosterior", "Comparison", "compare"]
