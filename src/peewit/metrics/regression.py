"""Scores of predicted numbers: CRPS in closed form and by samples, and the probability integral transform (PIT)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .bootstrap import Draws, Ranking, Resampling
from .columns import Columns

LEVELS = (0.5, 0.9, 0.95)  # of intervals whose coverage is counted
PIT_BINS = 20


def normal_cdf(z: Tensor) -> Tensor:
    """The standard normal distribution function; accurate in both tails."""
    made: Tensor = torch.special.ndtr(z)
    return made


def _half_moment(difference: Tensor, deviation: Tensor) -> Tensor:
    """`E |X|` of a Gaussian X: `2 s phi(m / s) + m (2 Phi(m / s) - 1)`; |m| where s is 0."""
    z = difference / torch.where(deviation > 0, deviation, 1.0)
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    made = 2 * deviation * density + difference * (2 * normal_cdf(z) - 1)
    return torch.where(deviation > 0, made, difference.abs())


def crps_gaussian(mean: Tensor, deviation: Tensor, y: Tensor) -> Tensor:
    """Compute the continuous ranked probability score (CRPS) of Gaussian predictions; lower is better.

    `E |Y - y| - 1/2 E |Y - Y'|` with Y and Y' independent draws from the prediction. It is the absolute error where the
    standard deviation is 0.

    Args:
        mean: Predicted means (...).
        deviation: Predicted standard deviations (...), at least 0.
        y: Observed numbers (...), floating point.

    Returns:
        A tensor (...): one score for each observation, in the unit of `y`.

    Example:
        >>> mean, deviation = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
        >>> [round(each, 4) for each in pw.metrics.crps_gaussian(mean, deviation, torch.tensor([0.0, 3.0])).tolist()]
        [0.2337, 2.0]
    """
    return crps_mixture(mean[None], deviation[None], y)


def crps_mixture(means: Tensor, deviations: Tensor, y: Tensor) -> Tensor:
    """(S, ...), (S, ...), (...) -> (...): the same of equally likely Gaussians, in closed form."""
    near = _half_moment(y - means, deviations).mean(0)
    apart = torch.zeros_like(y)
    for mean, deviation in zip(means, deviations, strict=True):  # S at a time: S^2 would not fit
        apart += _half_moment(mean - means, (deviation.square() + deviations.square()).sqrt()).mean(0)
    return near - 0.5 * apart / len(means)


def crps_samples(samples: Tensor, y: Tensor) -> Tensor:
    """Estimate the continuous ranked probability score (CRPS) from S draws, without bias; lower is better.

    `E |Y - y| - 1/2 E |Y - Y'|` with Y and Y' independent draws from the prediction. With one draw it is the absolute
    error.

    Args:
        samples: Draws (S, ...) from the predicted distributions.
        y: Observed numbers (...).

    Returns:
        A tensor (...): one score for each observation, in the unit of `y`.

    Example:
        >>> samples = torch.tensor([[0.0], [1.0], [2.0]])
        >>> [round(each, 4) for each in pw.metrics.crps_samples(samples, torch.tensor([1.0])).tolist()]
        [0.0]
    """
    number = len(samples)
    ordered = samples.sort(0).values
    weight = torch.arange(1, number + 1, dtype=ordered.dtype, device=ordered.device) * 2 - number - 1
    apart = 2 * (weight.reshape(-1, *[1] * y.dim()) * ordered).sum(0) / (number * max(1, number - 1))
    return (samples - y).abs().mean(0) - 0.5 * apart


def covered_share(columns: Columns, drawn: Resampling, level: float) -> Draws:
    """The share of targets in the central interval of that probability."""
    inside = ((columns["pit"] - 0.5).abs() <= 0.5 * level).double()
    return Columns(columns.owner, columns.examples, {"inside": inside}).drawn(("inside",), drawn)["inside"]


def pit_shares(pit: Tensor, bins: int = PIT_BINS) -> tuple[float, ...]:
    """The share of the transforms (P,) in each of some bins of equal width; all alike where the prediction is right."""
    place = (pit * bins).long().clamp(0, bins - 1)
    return tuple((torch.bincount(place, minlength=bins).double() / len(pit)).tolist())


def pit_deviation(columns: Columns, drawn: Resampling) -> Draws:
    """The largest gap between how many transforms are below u and u itself, over all u (Kolmogorov and Smirnov)."""
    ranking = Ranking.of(columns["pit"])
    value = None
    if not ranking.exact:
        alone = Ranking.of(columns["pit"], len(columns))
        value = float(_deviation(columns, alone, Resampling(columns.examples, 0, 0))[0])
    return Draws.of(_deviation(columns, ranking, drawn), value)


def _deviation(columns: Columns, ranking: Ranking, drawn: Resampling) -> Tensor:
    """(1 + R,)."""
    counts = drawn.grouped(ranking.place, columns.owner, None, ranking.groups)
    after = counts.cumsum(-1)
    total = after[:, -1:]
    above = (after / total - ranking.last).amax(-1)
    below = (ranking.first - (after - counts) / total).amax(-1)
    return torch.maximum(above, below)
