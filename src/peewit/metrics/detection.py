"""How well a score tells unknown inputs from known ones: unknown inputs are the positives, higher scores mean unknown.

All three metrics are functions of how many known and unknown inputs have which score.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .bootstrap import Ranking, Resampling, estimate
from .labels import auroc, checked_scores
from .results import Detection

CAUGHT = 0.95  # the share of unknown inputs at which false alarms are counted
ROUNDING = 1e-12


def aupr(known: Tensor, unknown: Tensor) -> float:
    """Compute the area under the precision-recall curve of a score that detects unknown inputs, as average precision.

    Args:
        known: Scores (n,) of known inputs; another shape is flattened.
        unknown: Scores (m,) of unknown inputs, the positives, higher for inputs that seem unknown; another shape is
            flattened.

    Returns:
        A number up to 1, higher is better; m / (n + m) is chance.

    Raises:
        PeewitError: `known` or `unknown` is empty or holds NaN.

    Example:
        >>> known, unknown = torch.tensor([0.1, 0.2, 0.6]), torch.tensor([0.5, 0.9])
        >>> round(pw.metrics.aupr(known, unknown), 4)
        0.8333
    """
    return float(_average_precision(*_counts(known, unknown))[0])


def fpr95(known: Tensor, unknown: Tensor) -> float:
    """Compute the false positive rate at 95 % recall: the share of known inputs flagged as unknown.

    The threshold is the highest score that flags at least 95 % of the unknown inputs.

    Args:
        known: Scores (n,) of known inputs; another shape is flattened.
        unknown: Scores (m,) of unknown inputs, the positives, higher for inputs that seem unknown; another shape is
            flattened.

    Returns:
        A number from 0 to 1; lower is better.

    Raises:
        PeewitError: `known` or `unknown` is empty or holds NaN.

    Example:
        >>> known, unknown = torch.tensor([0.1, 0.2, 0.6]), torch.tensor([0.5, 0.9])
        >>> round(pw.metrics.fpr95(known, unknown), 4)
        0.3333
    """
    return float(_false_alarms(*_counts(known, unknown))[0])


def _counts(known: Tensor, unknown: Tensor) -> tuple[Tensor, Tensor]:
    """(1, G) twice: known and unknown inputs by distinct score."""
    both = [each.cpu() for each in checked_scores(known, unknown)]
    ranking = Ranking.of(torch.cat(both), len(both[0]) + len(both[1]))
    alone = (Resampling(len(both[0]), 0, 0), Resampling(len(both[1]), 0, 0))
    return _grouped(ranking, *alone)


def _grouped(ranking: Ranking, known: Resampling, unknown: Resampling) -> tuple[Tensor, Tensor]:
    """(1 + R, G) twice."""
    places = ranking.place[: known.examples], ranking.place[known.examples :]
    own = (
        drawn.grouped(place, torch.arange(drawn.examples, device="cpu"), None, ranking.groups)
        for drawn, place in zip((known, unknown), places, strict=True)
    )
    return next(own), next(own)


def detection(known: Tensor, unknown: Tensor, drawn: tuple[Resampling, Resampling]) -> Detection:
    """The three metrics with intervals from drawing both sets anew; beyond 2,048 scores these are of grouped ones."""
    known, unknown = (each.cpu() for each in checked_scores(known, unknown))
    ranking = Ranking.of(torch.cat([known, unknown]))
    counts = _grouped(ranking, *drawn)
    return Detection(
        estimate(_area(*counts), auroc(known, unknown)),
        estimate(_average_precision(*counts), aupr(known, unknown)),
        estimate(_false_alarms(*counts), fpr95(known, unknown)),
    )


def _area(known: Tensor, unknown: Tensor) -> Tensor:
    """(S, G) twice -> (S,): how often an unknown input scores higher, ties counting half."""
    below = known.cumsum(-1) - known
    return (unknown * (below + 0.5 * known)).sum(-1) / (known.sum(-1) * unknown.sum(-1))


def _from_above(counts: Tensor) -> Tensor:
    """(S, G): how many have this score or a higher one."""
    return counts.flip(-1).cumsum(-1).flip(-1)


def _average_precision(known: Tensor, unknown: Tensor) -> Tensor:
    """(S, G) twice -> (S,): precision averaged over the unknown inputs, each at its own score."""
    caught, alarms = _from_above(unknown), _from_above(known)
    precision = caught / (caught + alarms).clamp(min=1)
    return (unknown * precision).sum(-1) / unknown.sum(-1)


def _false_alarms(known: Tensor, unknown: Tensor) -> Tensor:
    """(S, G) twice -> (S,): at the highest score from which on at least 95 % of the unknown inputs are."""
    enough = _from_above(unknown) >= CAUGHT * unknown.sum(-1, keepdim=True) - ROUNDING
    alarms = torch.where(enough, _from_above(known), torch.inf).amin(-1)
    return alarms / known.sum(-1)
