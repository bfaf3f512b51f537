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
    """The area under the precision-recall curve, as average precision: (n,), (m,); m / (n + m) is chance."""
    return float(_average_precision(*_counts(known, unknown))[0])


def fpr95(known: Tensor, unknown: Tensor) -> float:
    """The share of known inputs that are taken for unknown where at least 95 % of the unknown ones are: (n,), (m,)."""
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
