"""A small table for the benchmark of quality."""

from __future__ import annotations

import numpy as np

from benchmarks.quality.cases import Likelihood


def table_of(likelihood: Likelihood) -> tuple[np.ndarray, np.ndarray, None]:
    """100 examples of three features, with three classes or a number."""
    random = np.random.RandomState(0)
    x = random.randn(100, 3)
    y = x[:, 0] + 0.3 * random.randn(100)
    return x, np.digitize(y, [-0.5, 0.5]) * 10 if likelihood == "classification" else y, None
