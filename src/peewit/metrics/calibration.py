"""Whether probabilities are what they say: binned calibration errors, reliability, and the risk-coverage curve.

A bin's gap is its summed confidence less its right answers. Each metric is one function of sums over the examples, for
the data themselves and for drawn sets of them alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .bootstrap import Draws, Ranking, Resampling, sums_by
from .columns import Columns
from .labels import checked, checked_bins
from .results import Curve, Reliability

BINS = 15
CLASSWISE = 1 << 33  # products that the intervals of class-wise errors may take
POINTS = 200  # of a risk-coverage curve


def equal_width(confidence: Tensor, bins: int) -> Tensor:
    """(P,): the bin of every confidence; bin k ends below (k + 1) / bins, the last one holds 1 too."""
    return (confidence * bins).long().clamp(max=bins - 1)


def equal_mass(confidence: Tensor, bins: int) -> Tensor:
    """(P,): bins of equally many confidences, in their order; equal ones stay together."""
    _, place, counts = confidence.unique(sorted=True, return_inverse=True, return_counts=True)
    before = counts.cumsum(0) - counts
    made: Tensor = (before * bins).div(len(confidence), rounding_mode="floor")[place]
    return made


def reliability(probs: Tensor, labels: Tensor, bins: int = BINS) -> Reliability:
    """Compute the mean confidence and the accuracy in bins of equal width: the numbers of a reliability diagram.

    The confidence is the largest probability. Bin k holds the confidences from k / bins to below (k + 1) / bins; the
    last bin holds 1 too.

    Args:
        probs: Class probabilities (..., C), classes last. Positions count like examples.
        labels: Class numbers (...), whole numbers from 0 to C - 1. Leave out positions without a label.
        bins: Number B of bins between 0 and 1.

    Returns:
        A `Reliability` with B bins.

    Raises:
        PeewitError: `bins` is no positive whole number, the shapes do not fit, there are no labels, a label is outside
            0 to C - 1, or `probs` has negative or infinite entries or does not sum to 1 within 0.02 (logits need a
            softmax first).
        ArgumentTypeError: `labels` is not of whole numbers.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
        >>> labels = torch.tensor([0, 1, 1])
        >>> pw.metrics.reliability(probs, labels, bins=4).count
        (0, 0, 1, 2)
    """
    columns = _columns(probs, labels, bins)
    return reliability_of(columns["confidence"], columns["correct"], bins)


def reliability_of(confidence: Tensor, correct: Tensor, bins: int = BINS) -> Reliability:
    """(P,), (P,)."""
    place = equal_width(confidence, bins)
    sums = sums_by(place, torch.stack([confidence, correct, torch.ones_like(confidence)], -1), bins)
    means = sums[:, :2] / sums[:, 2:].clamp(min=1)
    edges = tuple(number / bins for number in range(bins + 1))
    count = tuple(int(each) for each in sums[:, 2].tolist())
    return Reliability(edges, tuple(means[:, 0].tolist()), tuple(means[:, 1].tolist()), count)


def ece_adaptive(probs: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Compute the adaptive calibration error: `ece` over bins of equally many examples instead of equal width.

    Equal confidences stay in one bin, so that bins can differ in size and some can be empty.

    Args:
        probs: Class probabilities (..., C), classes last. Positions count like examples.
        labels: Class numbers (...), whole numbers from 0 to C - 1. Leave out positions without a label.
        bins: Number of bins.

    Returns:
        A number from 0 to 1; lower is better.

    Raises:
        PeewitError: `bins` is no positive whole number, the shapes do not fit, there are no labels, a label is outside
            0 to C - 1, or `probs` has negative or infinite entries or does not sum to 1 within 0.02 (logits need a
            softmax first).
        ArgumentTypeError: `labels` is not of whole numbers.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
        >>> labels = torch.tensor([0, 1, 1])
        >>> round(pw.metrics.ece_adaptive(probs, labels, bins=3), 4)
        0.4
    """
    return adaptive(_columns(probs, labels, bins), Resampling(labels.numel(), 0, 0), bins).value


def ece_classwise(probs: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Compute the class-wise calibration error: `ece` of every class' own probability, averaged over classes.

    For each class, its probability is binned in bins of equal width and compared with how often the class is the label.

    Args:
        probs: Class probabilities (..., C), classes last. Positions count like examples.
        labels: Class numbers (...), whole numbers from 0 to C - 1. Leave out positions without a label.
        bins: Number of bins between 0 and 1.

    Returns:
        A number from 0 to 1; lower is better.

    Raises:
        PeewitError: `bins` is no positive whole number, the shapes do not fit, there are no labels, a label is outside
            0 to C - 1, or `probs` has negative or infinite entries or does not sum to 1 within 0.02 (logits need a
            softmax first).
        ArgumentTypeError: `labels` is not of whole numbers.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
        >>> labels = torch.tensor([0, 1, 1])
        >>> round(pw.metrics.ece_classwise(probs, labels, bins=3), 4)
        0.3333
    """
    return classwise(_columns(probs, labels, bins), Resampling(labels.numel(), 0, 0), bins).value


def mce(probs: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Compute the maximum calibration error: the largest gap between confidence and accuracy of any bin of equal width.

    The bins are those of `ece`; empty bins do not count.

    Args:
        probs: Class probabilities (..., C), classes last. Positions count like examples.
        labels: Class numbers (...), whole numbers from 0 to C - 1. Leave out positions without a label.
        bins: Number of bins between 0 and 1.

    Returns:
        A number from 0 to 1; lower is better.

    Raises:
        PeewitError: `bins` is no positive whole number, the shapes do not fit, there are no labels, a label is outside
            0 to C - 1, or `probs` has negative or infinite entries or does not sum to 1 within 0.02 (logits need a
            softmax first).
        ArgumentTypeError: `labels` is not of whole numbers.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
        >>> labels = torch.tensor([0, 1, 1])
        >>> round(pw.metrics.mce(probs, labels, bins=4), 4)  # |1.7 - 1| / 2
        0.35
    """
    return width_errors(_columns(probs, labels, bins), Resampling(labels.numel(), 0, 0), bins)[1].value


def aurc(probs: Tensor, labels: Tensor) -> float:
    """Compute the area under the risk-coverage curve: the error rate of the k most confident examples, mean over k.

    The confidence is the largest probability. Examples of equal confidence share their errors evenly.

    Args:
        probs: Class probabilities (..., C), classes last. Positions count like examples.
        labels: Class numbers (...), whole numbers from 0 to C - 1. Leave out positions without a label.

    Returns:
        A number from 0 to 1; lower is better.

    Raises:
        PeewitError: The shapes do not fit, there are no labels, a label is outside 0 to C - 1, or `probs` has negative
            or infinite entries or does not sum to 1 within 0.02 (logits need a softmax first).
        ArgumentTypeError: `labels` is not of whole numbers.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
        >>> labels = torch.tensor([0, 1, 1])
        >>> round(pw.metrics.aurc(probs, labels), 4)  # (0 / 1 + 1 / 2 + 1 / 3) / 3
        0.2778
    """
    columns = _columns(probs, labels, BINS)
    risk = 1 - columns["correct"]
    return risk_area(columns, -columns["confidence"], risk, Resampling(labels.numel(), 0, 0)).value


def _columns(probs: Tensor, labels: Tensor, bins: int) -> Columns:
    checked_bins(bins)
    made, flat = (each.cpu() for each in checked(probs, labels))
    confidence, predicted = made.max(-1)
    values = {"confidence": confidence, "correct": (predicted == flat).double()}
    return Columns(torch.arange(len(flat), device="cpu"), len(flat), values, made, flat)


def width_errors(columns: Columns, drawn: Resampling, bins: int = BINS) -> tuple[Draws, Draws]:
    """ECE and MCE."""
    place = equal_width(columns["confidence"], bins)
    gaps, counts = _gaps(columns, drawn, place, bins)
    ece = gaps.abs().sum(-1) / counts.sum(-1)
    return Draws.of(ece), Draws.of((gaps.abs() / counts.clamp(min=1)).amax(-1))


def adaptive(columns: Columns, drawn: Resampling, bins: int = BINS) -> Draws:
    """The adaptive ECE, its bins those of the whole data."""
    gaps, counts = _gaps(columns, drawn, equal_mass(columns["confidence"], bins), bins)
    return Draws.of(gaps.abs().sum(-1) / counts.sum(-1))


def _gaps(columns: Columns, drawn: Resampling, place: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """(1 + R, bins) twice: gaps, and how many there are."""
    cell = columns.owner * bins + place
    excess = columns["confidence"] - columns["correct"]
    parts = torch.stack([excess, torch.ones_like(excess)], -1)
    sums = drawn.sums(sums_by(cell, parts, columns.examples * bins).reshape(columns.examples, 2 * bins))
    return sums[:, 0::2], sums[:, 1::2]


def classwise(columns: Columns, drawn: Resampling, bins: int = BINS) -> Draws:
    """The class-wise ECE; with very many classes and examples its interval is of fewer draws."""
    probs, labels = columns.probs, columns.labels
    assert probs is not None and labels is not None
    classes = probs.shape[-1]
    most = max(100, CLASSWISE // (columns.examples * bins * classes))
    drawn = drawn if drawn.draws <= most else Resampling(columns.examples, most, drawn.seed)
    total = torch.zeros(1 + drawn.draws, dtype=torch.float64, device="cpu")
    for number in range(classes):
        own = probs[:, number].double()
        cell = columns.owner * bins + equal_width(own, bins)
        excess = own - (labels == number).double()
        parts = sums_by(cell, excess, columns.examples * bins).reshape(columns.examples, bins)
        total += drawn.sums(parts).abs().sum(-1)
    counts = drawn.sums(columns.counts[:, None])[:, 0]
    return Draws.of(total / counts / classes)


def doubt_and_risk(columns: Columns) -> tuple[Tensor, Tensor]:
    """(P,) twice: less confidence and errors, or the standard deviation and squared errors."""
    if "correct" in columns:
        return -columns["confidence"], 1 - columns["correct"]
    return columns["deviation"], columns.values.get("squared", torch.zeros_like(columns["nll"]))


def risk_area(columns: Columns, doubt: Tensor, risk: Tensor, drawn: Resampling) -> Draws:
    """The area under the risk-coverage curve: mean risk (P,) of the k examples of least doubt (P,), averaged over k.

    Equal doubts have no order: their risks are spread evenly, which is the mean over all orders.
    """
    ranking = Ranking.of(doubt)
    value = None
    if not ranking.exact:
        alone = Ranking.of(doubt, len(doubt))
        value = float(_area(*_risks(columns, alone, risk, Resampling(columns.examples, 0, 0)))[0])
    return Draws.of(_area(*_risks(columns, ranking, risk, drawn)), value)


def _risks(columns: Columns, ranking: Ranking, risk: Tensor, drawn: Resampling) -> tuple[Tensor, Tensor]:
    """(1 + R, G) twice: how many there are in every group, and their summed risk."""
    counts = drawn.grouped(ranking.place, columns.owner, None, ranking.groups)
    return counts, drawn.grouped(ranking.place, columns.owner, risk, ranking.groups)


def _area(counts: Tensor, risks: Tensor) -> Tensor:
    """(1 + R, G) twice -> (1 + R,).

    Of `(E + e j / w) / (K + j)` over j = 1 ... w, with K examples and risk E before a group of w and e, the sum is
    `e + (E - K e / w) (H(K + w) - H(K))` with the harmonic numbers H.
    """
    after = counts.cumsum(-1)
    before, past = after - counts, risks.cumsum(-1) - risks
    share = risks / counts.clamp(min=1)
    harmonic = torch.special.digamma(after + 1) - torch.special.digamma(before + 1)
    made: Tensor = (risks + (past - before * share) * harmonic).sum(-1) / after[:, -1]
    return made


def risk_coverage(doubt: Tensor, risk: Tensor) -> Curve:
    """Mean risk (P,) of the share x of the examples that have least doubt (P,), at some 200 shares up to all."""
    _, place, counts = doubt.unique(sorted=True, return_inverse=True, return_counts=True)
    spread = (sums_by(place, risk, len(counts)) / counts)[place[doubt.argsort()]]
    number = torch.arange(1, len(doubt) + 1, dtype=torch.float64, device="cpu")
    means = spread.cumsum(0) / number
    picked = (
        torch.linspace(0, len(doubt) - 1, min(POINTS, len(doubt)), dtype=torch.float64, device="cpu").round().long()
    )
    return Curve(tuple((number[picked] / len(doubt)).tolist()), tuple(means[picked].tolist()))
