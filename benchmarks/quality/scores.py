"""Figures of predictions: how good they are, and how well scores tell unknown inputs from known ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

BINS = 15  # of the calibration error
LEVEL, WIDTH = 0.9, 1.6448536269514722  # of intervals, and half of their width in standard deviations
SMALLEST = 1e-30


@dataclass(frozen=True, eq=False, kw_only=True)
class Answer:
    """What a way says of some inputs: probabilities, or a mean and a variance; and scores of how unknown they are."""

    probs: Tensor | None = None  # (N, C)
    mean: Tensor | None = None  # (N, 1)
    variance: Tensor | None = None  # (N, 1), noise included
    scores: dict[str, Tensor] = field(default_factory=dict)  # (N,) by name, higher where inputs are more unknown


def joined(answers: list[Answer]) -> Answer:
    """Answers to the pieces of some inputs as one."""

    def together(name: str) -> Tensor | None:
        values = [getattr(answer, name) for answer in answers]
        return None if values[0] is None else torch.cat(values).cpu()

    scores = {name: torch.cat([answer.scores[name] for answer in answers]).cpu() for name in answers[0].scores}
    return Answer(probs=together("probs"), mean=together("mean"), variance=together("variance"), scores=scores)


def figures(answer: Answer, targets: Tensor) -> dict[str, float]:
    """Means over the examples; lower is better for all but accuracy, and `coverage` should be .9."""
    targets = targets.cpu()
    for values in (answer.probs, answer.mean, answer.variance):
        if values is not None and not bool(values.isfinite().all()):
            raise ValueError("predictions are not finite")
    if answer.probs is not None:
        return class_figures(answer.probs.double(), targets)
    assert answer.mean is not None and answer.variance is not None
    return normal_figures(answer.mean.double(), answer.variance.double(), targets.double())


def nlls(answer: Answer, targets: Tensor) -> Tensor:
    """(N,) negative log probabilities of the targets, in nats."""
    targets = targets.cpu()
    if answer.probs is not None:
        return -answer.probs.double().gather(1, targets[:, None])[:, 0].clamp(min=SMALLEST).log()
    assert answer.mean is not None and answer.variance is not None
    variance = answer.variance.double()
    z = (targets.double() - answer.mean.double()).square() / variance
    return (0.5 * (z + variance.log() + math.log(2 * math.pi))).sum(1)


def paired_error(own: Tensor, other: Tensor) -> float:
    """The standard error over the examples of the mean of differences."""
    return float((own - other).std()) / math.sqrt(len(own)) if len(own) > 1 else math.nan


def class_figures(probs: Tensor, labels: Tensor) -> dict[str, float]:
    """NLL in nats, Brier score, calibration error of the likeliest class in bins of equal width, and accuracy."""
    picked = probs.gather(1, labels[:, None])[:, 0]
    confidence, chosen = probs.max(1)
    right = (chosen == labels).double()
    place = (confidence * BINS).long().clamp(max=BINS - 1)
    gaps = torch.zeros(BINS, dtype=torch.float64).index_add_(0, place, right - confidence)
    brier = probs.square().sum(1) - 2 * picked + 1
    return {
        "nll": float(-picked.clamp(min=SMALLEST).log().mean()),
        "brier": float(brier.mean()),
        "ece": float(gaps.abs().sum() / len(labels)),
        "accuracy": float(right.mean()),
    }


def normal_figures(mean: Tensor, variance: Tensor, targets: Tensor) -> dict[str, float]:
    """NLL in nats, CRPS, root mean squared error, and how many targets 90 % intervals hold at which width."""
    deviation = variance.sqrt()
    z = (targets - mean) / deviation
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    crps = deviation * (z * (2 * torch.special.ndtr(z) - 1) + 2 * density - 1 / math.sqrt(math.pi))
    return {
        "nll": float((0.5 * z.square() + deviation.log() + 0.5 * math.log(2 * math.pi)).mean()),
        "crps": float(crps.mean()),
        "rmse": float((targets - mean).square().mean().sqrt()),
        "coverage": float((z.abs() <= WIDTH).double().mean()),
        "width": float((2 * WIDTH * deviation).mean()),
    }


def detection(known: Tensor, unknown: Tensor) -> float:
    """Area under the ROC curve: how often an unknown input has the higher score; half for scores that are equal."""
    values = torch.cat([known, unknown]).double()
    _, place, counts = values.unique(return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts.double() - 1) / 2)[place]  # from 1; the mean rank where values are equal
    wins = ranks[len(known) :].sum() - len(unknown) * (len(unknown) + 1) / 2
    return float(wins / (len(known) * len(unknown)))


def entropy(probs: Tensor) -> Tensor:
    """(N, C) -> (N,), in nats."""
    return torch.special.entr(probs).sum(-1)
