"""Scores of predicted numbers: CRPS in closed form and by samples, and the probability integral transform (PIT)."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ..messages.errors import NotFiniteError, PeewitError
from .bootstrap import MetricDraws, Ranking, Resampling, by_ranking
from .positions import Positions

LEVELS = (0.5, 0.9, 0.95)  # of intervals whose coverage is counted
PIT_BINS = 20


def normal_cdf(z: Tensor) -> Tensor:
    """The standard normal distribution function; accurate in both tails."""
    probability: Tensor = torch.special.ndtr(z)
    return probability


def _half_moment(difference: Tensor, deviation: Tensor) -> Tensor:
    """`E |X|` of a Gaussian X: `2 s phi(m / s) + m (2 Phi(m / s) - 1)`; |m| where s is 0."""
    z = difference / torch.where(deviation > 0, deviation, 1.0)
    density = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    moment = 2 * deviation * density + difference * (2 * normal_cdf(z) - 1)
    return torch.where(deviation > 0, moment, difference.abs())


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

    Raises:
        PeewitError: The shapes differ, or a standard deviation is negative.
        NotFiniteError: A number is NaN or infinite.

    Example:
        >>> mean, deviation = torch.tensor([0.0, 1.0]), torch.tensor([1.0, 0.0])
        >>> [round(score, 4) for score in pw.metrics.crps_gaussian(mean, deviation, torch.tensor([0.0, 3.0])).tolist()]
        [0.2337, 2.0]
    """
    for name, values in (("y", y), ("mean", mean), ("deviation", deviation)):
        _check_numbers(name, values, y.shape)
    if bool((deviation < 0).any()):
        raise PeewitError("deviation holds negative numbers; expected standard deviations.")
    return crps_mixture(mean[None], deviation[None], y)


def _check_numbers(name: str, values: Tensor, shape: tuple[int, ...]) -> None:
    """Refuse another shape, and numbers that are not finite."""
    if values.shape != shape:
        raise PeewitError(f"{name} has shape {tuple(values.shape)}; expected {tuple(shape)} to go with y.")
    if not bool(torch.isfinite(values).all()):
        raise NotFiniteError(f"{name} holds NaN or Inf; expected finite numbers.")


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

    Raises:
        PeewitError: There are no draws, or their shape is not that of `y`.
        NotFiniteError: A number is NaN or infinite.

    Example:
        >>> samples = torch.tensor([[0.0], [1.0], [2.0]])
        >>> [round(score, 4) for score in pw.metrics.crps_samples(samples, torch.tensor([1.0])).tolist()]
        [0.0]
    """
    draws = len(samples) if samples.dim() else 0
    _check_numbers("samples", samples, (max(1, draws), *y.shape))
    _check_numbers("y", y, y.shape)
    return crps_of_draws(samples, y)


def crps_of_draws(samples: Tensor, y: Tensor) -> Tensor:
    """(S, ...), (...) -> (...): the same without checks."""
    number = len(samples)
    ordered = samples.sort(0).values
    weight = torch.arange(1, number + 1, dtype=ordered.dtype, device=ordered.device) * 2 - number - 1
    apart = 2 * (weight.reshape(-1, *[1] * y.dim()) * ordered).sum(0) / (number * max(1, number - 1))
    return (samples - y).abs().mean(0) - 0.5 * apart


def covered_share(positions: Positions, drawn: Resampling, level: float) -> MetricDraws:
    """The share of targets in the central interval of that probability."""
    inside = ((positions["pit"] - 0.5).abs() <= 0.5 * level).double()
    return replace(positions, values={"inside": inside}).draw(("inside",), drawn)["inside"]


def constant_squares(positions: Positions) -> Tensor:
    """(P,): squared distances of targets from the mean target of their output, the best constant there is."""
    output, target = positions["output"].long(), positions["target"]
    sums, counts = torch.bincount(output, target), torch.bincount(output)
    return (target - (sums / counts.clamp(min=1))[output]).square()


def explained_share(positions: Positions, drawn: Resampling) -> MetricDraws:
    """R^2: one less the mean squared error over that of the best constant; NaN where targets are all the same."""
    values = {"squared": positions["squared"], "constant": constant_squares(positions)}
    error, constant = replace(positions, values=values).means(("squared", "constant"), drawn).T
    return MetricDraws.of(torch.where(constant > 0, 1 - error / constant, math.nan))


def pit_shares(pit: Tensor, bins: int = PIT_BINS) -> tuple[float, ...]:
    """The share of the transforms (P,) in each of some bins of equal width; all alike where the prediction is right."""
    bin_numbers = (pit * bins).long().clamp(0, bins - 1)
    return tuple((torch.bincount(bin_numbers, minlength=bins).double() / len(pit)).tolist())


def pit_deviation(positions: Positions, drawn: Resampling) -> MetricDraws:
    """The largest gap between how many transforms are below u and u itself, over all u (Kolmogorov and Smirnov)."""

    def deviation(ranking: Ranking, drawn: Resampling) -> Tensor:
        counts = drawn.sum_by_group(ranking.group, positions.owner, None, ranking.groups)
        after = counts.cumsum(-1)
        total = after[:, -1:]
        above = (after / total - ranking.last).amax(-1)
        below = (ranking.first - (after - counts) / total).amax(-1)
        return torch.maximum(above, below)

    return by_ranking(deviation, positions["pit"], drawn)
