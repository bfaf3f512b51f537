"""The least prior precision that validation data cannot tell from the best one."""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor

import peewit as pw
from benchmarks.quality.cases import Examples
from peewit.tuning.by_validation import LEAST
from peewit.tuning.options import LIMITS

NEAR = 0.1  # in the logarithm of the precision: how exactly the least one is found

Allowed = Callable[[Tensor], bool]  # of (N,): losses of a setting in nats, less those of the best one
Choice = Callable[[pw.Laplace, Examples], pw.Laplace]


def within(nats: float) -> Allowed:
    """Mean losses of at most so much."""
    return lambda losses: float(losses.mean()) <= nats


def within_error(losses: Tensor) -> bool:
    """A mean loss of at most its own standard error over the examples."""
    return float(losses.mean()) <= float(losses.std()) / math.sqrt(len(losses))


def least_precision(allowed: Allowed) -> Choice:
    """The least precision that is allowed, each with the noise that validation data choose for it.

    Between the least one that tuning tries and the best one, losses are taken to fall as the precision grows.
    """

    def choose(la: pw.Laplace, validation: Examples) -> pw.Laplace:
        best, high = log_probs(la, validation), log_mean(la)
        low = min(math.log(least_tried(la)), high)
        chosen, tried = la, low  # the least one first, which ends the search where it is allowed
        while high - low > NEAR:
            posterior = at_precision(la, tried, validation)
            if allowed(best - log_probs(posterior, validation)):
                chosen, high = posterior, tried
            else:
                low = tried
            tried = (low + high) / 2
        return chosen

    return choose


def log_mean(la: pw.Laplace) -> float:
    """The logarithm of the geometric mean of the precisions."""
    return float(la.prior.precision.double().log().mean())


def least_tried(la: pw.Laplace) -> float:
    """The least mean precision that tuning tries."""
    prior = la.prior.with_precision(la.prior.precision.double() / math.exp(log_mean(la)))
    size = float((prior.delta(la.space, la.weights) * la.weights.double().square()).sum())
    return max(LIMITS[0], LEAST * la.D / size)


def at_precision(la: pw.Laplace, log: float, validation: Examples) -> pw.Laplace:
    """With another mean precision, and the noise that validation data choose for it."""
    precision = la.prior.precision * math.exp(log - log_mean(la))
    other = la.with_prior(la.prior.with_precision(precision))
    if not isinstance(la.likelihood, pw.Gaussian):
        return other
    return other.tune(method="validation", parameters=["noise"], validation=validation)


def log_probs(la: pw.Laplace, data: Examples) -> Tensor:
    """(N,): log probabilities of the targets."""
    probs: Tensor = la.predict(data[0]).log_prob(data[1])
    return probs.double().flatten()
