"""How well a score tells unknown inputs from known ones: unknown inputs are the positives, higher scores mean unknown.

All three metrics are functions of how many known and unknown inputs have which score.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..messages.errors import NotFiniteError, PeewitError
from .bootstrap import Ranking, Resampling, estimate, one_set
from .results import Detection

CAUGHT = 0.95  # the share of unknown inputs at which false alarms are counted
ROUNDING = 1e-12


def auroc(known: Tensor, unknown: Tensor) -> float:
    """Compute the area under the ROC curve of a score that detects unknown inputs; higher is better.

    It is the probability that an unknown input scores higher than a known one; ties count half.

    Args:
        known: Scores of n known inputs, in any shape.
        unknown: Scores of m unknown inputs; higher for inputs that seem unknown.

    Returns:
        A number from 0 to 1; 0.5 is chance.

    Raises:
        PeewitError: `known` or `unknown` is empty or holds NaN.

    Example:
        >>> known, unknown = torch.tensor([0.1, 0.2, 0.6]), torch.tensor([0.5, 0.9])
        >>> round(pw.metrics.auroc(known, unknown), 4)
        0.8333
    """
    known, unknown = check_scores(known, unknown)
    ordered = known.sort().values
    below = torch.searchsorted(ordered, unknown, right=False)
    not_above = torch.searchsorted(ordered, unknown, right=True)
    return (below + not_above).double().mean().item() / (2 * known.numel())


def aupr(known: Tensor, unknown: Tensor) -> float:
    """Compute the area under the precision-recall curve of a score that detects unknown inputs, as average precision.

    Args:
        known: Scores of n known inputs, in any shape.
        unknown: Scores of m unknown inputs, the positives; higher for inputs that seem unknown.

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
        known: Scores of n known inputs, in any shape.
        unknown: Scores of m unknown inputs, the positives; higher for inputs that seem unknown.

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


def check_scores(known: Tensor, unknown: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) and (m,) in float64 on one device; refuses empty sets, and NaN, which has no order."""
    known, unknown = known.detach().double().flatten(), unknown.detach().double().flatten().to(known.device)
    if known.numel() == 0 or unknown.numel() == 0:
        raise PeewitError(
            f"{known.numel()} known and {unknown.numel()} unknown scores were given; expected some of each."
        )
    if bool(known.isnan().any()) or bool(unknown.isnan().any()):
        raise NotFiniteError("Scores hold NaN; expected numbers.")
    return known, unknown


def _counts(known: Tensor, unknown: Tensor) -> tuple[Tensor, Tensor]:
    """(1, G) twice: known and unknown inputs by distinct score."""
    both = [scores.cpu() for scores in check_scores(known, unknown)]
    ranking = Ranking.of(torch.cat(both), len(both[0]) + len(both[1]))
    return _sum_by_group(ranking, one_set(len(both[0])), one_set(len(both[1])))


def _sum_by_group(ranking: Ranking, known: Resampling, unknown: Resampling) -> tuple[Tensor, Tensor]:
    """(1 + R, G) twice."""
    places = ranking.group[: known.examples], ranking.group[known.examples :]
    first, second = (
        drawn.sum_by_group(group, torch.arange(drawn.examples, device="cpu"), None, ranking.groups)
        for drawn, group in zip((known, unknown), places, strict=True)
    )
    return first, second


def detection(known: Tensor, unknown: Tensor, drawn: tuple[Resampling, Resampling]) -> Detection:
    """The three metrics with intervals from drawing both sets anew; beyond 2,048 scores these are of grouped ones."""
    known, unknown = (scores.cpu() for scores in check_scores(known, unknown))
    ranking = Ranking.of(torch.cat([known, unknown]))
    counts = _sum_by_group(ranking, *drawn)
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
