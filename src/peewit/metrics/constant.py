"""The first check of any network: what a prediction that is the same for all inputs would reach."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from .bootstrap import Resampling, estimate
from .positions import Positions
from .regression import constant_squares
from .results import Estimate


def constant_scores(positions: Positions, drawn: Resampling, gaussian: bool) -> dict[str, Estimate]:
    """Metrics of the best constant, made from the test targets themselves, which favours it.

    `gaussian`: whether numbers have a density, so that their NLL can be compared.
    """
    if positions.labels is not None:
        return _classes(positions, positions.labels, drawn)
    return _numbers(positions, drawn, gaussian) if "target" in positions else {}


def _classes(positions: Positions, labels: Tensor, drawn: Resampling) -> dict[str, Estimate]:
    """The class frequencies."""
    assert positions.probs is not None  # labels are kept with them
    frequencies = torch.bincount(labels, minlength=positions.probs.shape[-1]).double() / len(labels)
    of_label = frequencies[labels]
    values = {
        "accuracy": (labels == int(frequencies.argmax())).double(),
        "nll": -of_label.log(),
        "brier": 1 - 2 * of_label + frequencies.square().sum(),
    }
    means = replace(positions, values=values, probs=None, labels=None).draw([*values], drawn)
    return {name: each.estimate for name, each in means.items()}


def _numbers(positions: Positions, drawn: Resampling, gaussian: bool) -> dict[str, Estimate]:
    """The mean target of each output, with the deviation of the targets as its noise."""
    squares, output = constant_squares(positions), positions["output"].long()
    variances = (torch.bincount(output, squares) / torch.bincount(output).clamp(min=1))[output].clamp(min=1e-300)
    nll = 0.5 * (math.log(2 * math.pi) + variances.log() + squares / variances) * (int(output.max()) + 1)
    means = replace(positions, values={"squares": squares, "nll": nll}).means(("squares", "nll"), drawn)
    scores = {"rmse": estimate(means[:, 0].sqrt())}
    return scores | ({"nll": estimate(means[:, 1])} if gaussian else {})
