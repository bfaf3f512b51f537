"""Whether probabilities are what they say: binned calibration errors, reliability, and the risk-coverage curve.

A bin's gap is its summed confidence less its right answers. Each metric is one function of sums over the examples, for
the data themselves and for drawn sets of them alike.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..messages.arguments import is_count
from ..messages.errors import PeewitError
from .bootstrap import MetricDraws, Ranking, Resampling, by_ranking, one_set, sums_by
from .labels import check_probs
from .positions import Positions
from .results import Curve, Reliability

BINS = 15
CLASSWISE = 1 << 33  # products that the intervals of class-wise errors may take
POINTS = 200  # of a risk-coverage curve


def equal_width(confidence: Tensor, bins: int) -> Tensor:
    """(P,): the bin of every confidence; bin k ends below (k + 1) / bins, the last one holds 1 too."""
    return (confidence * bins).long().clamp(max=bins - 1)


def equal_mass(confidence: Tensor, bins: int) -> Tensor:
    """(P,): bins of equally many confidences, in their order; equal ones stay together."""
    _, distinct_of_value, counts = confidence.unique(sorted=True, return_inverse=True, return_counts=True)
    before = counts.cumsum(0) - counts
    return torch.div(before * bins, len(confidence), rounding_mode="floor")[distinct_of_value]


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
        PeewitError: `bins` is not a positive whole number, or see `accuracy`.

    Example:
        >>> probs, labels = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), torch.tensor([0, 1, 1])
        >>> pw.metrics.reliability(probs, labels, bins=4).count
        (0, 0, 1, 2)
    """
    positions = _positions(probs, labels, bins)
    return reliability_of(positions["confidence"], positions["correct"], bins)


def reliability_of(confidence: Tensor, correct: Tensor, bins: int = BINS) -> Reliability:
    """(P,), (P,)."""
    bin_numbers = equal_width(confidence, bins)
    sums = sums_by(bin_numbers, torch.stack([confidence, correct, torch.ones_like(confidence)], -1), bins)
    means = sums[:, :2] / sums[:, 2:].clamp(min=1)
    edges = tuple(number / bins for number in range(bins + 1))
    count = tuple(int(number) for number in sums[:, 2].tolist())
    return Reliability(edges, tuple(means[:, 0].tolist()), tuple(means[:, 1].tolist()), count)


def ece(probs: Tensor, labels: Tensor, bins: int = BINS) -> float:
    """Compute the expected calibration error: the mean gap between confidence and accuracy over bins of equal width.

    The confidence is the largest probability. Bin k holds the confidences from k / bins to below (k + 1) / bins; the
    last bin holds 1 too. Each bin counts by its share of the examples.

    Args:
        probs: Class probabilities (..., C), classes last. Positions count like examples.
        labels: Class numbers (...), whole numbers from 0 to C - 1. Leave out positions without a label.
        bins: Number of bins between 0 and 1.

    Returns:
        A number from 0 to 1; lower is better.

    Raises:
        PeewitError: `bins` is not a positive whole number, or see `accuracy`.

    Example:
        >>> probs, labels = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), torch.tensor([0, 1, 1])
        >>> round(pw.metrics.ece(probs, labels, bins=4), 4)  # (|1.7 - 1| + |0.7 - 1|) / 3
        0.3333
    """
    return width_errors(_positions(probs, labels, bins), one_set(labels.numel()), bins)[0].value


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
        PeewitError: `bins` is not a positive whole number, or see `accuracy`.

    Example:
        >>> probs, labels = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), torch.tensor([0, 1, 1])
        >>> round(pw.metrics.ece_adaptive(probs, labels, bins=3), 4)
        0.4
    """
    return adaptive(_positions(probs, labels, bins), one_set(labels.numel()), bins).value


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
        PeewitError: `bins` is not a positive whole number, or see `accuracy`.

    Example:
        >>> probs, labels = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), torch.tensor([0, 1, 1])
        >>> round(pw.metrics.ece_classwise(probs, labels, bins=3), 4)
        0.3333
    """
    return classwise(_positions(probs, labels, bins), one_set(labels.numel()), bins).value


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
        PeewitError: `bins` is not a positive whole number, or see `accuracy`.

    Example:
        >>> probs, labels = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), torch.tensor([0, 1, 1])
        >>> round(pw.metrics.mce(probs, labels, bins=4), 4)  # |1.7 - 1| / 2
        0.35
    """
    return width_errors(_positions(probs, labels, bins), one_set(labels.numel()), bins)[1].value


def aurc(probs: Tensor, labels: Tensor) -> float:
    """Compute the area under the risk-coverage curve: the error rate of the k most confident examples, mean over k.

    The confidence is the largest probability. Examples of equal confidence share their errors evenly.

    Args:
        probs: Class probabilities (..., C), classes last. Positions count like examples.
        labels: Class numbers (...), whole numbers from 0 to C - 1. Leave out positions without a label.

    Returns:
        A number from 0 to 1; lower is better.

    Raises:
        PeewitError: See `accuracy`.

    Example:
        >>> probs, labels = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), torch.tensor([0, 1, 1])
        >>> round(pw.metrics.aurc(probs, labels), 4)  # (0 / 1 + 1 / 2 + 1 / 3) / 3
        0.2778
    """
    return risk_area(_positions(probs, labels, BINS), one_set(labels.numel())).value


def _positions(probs: Tensor, labels: Tensor, bins: int) -> Positions:
    """Every position is an example of its own here."""
    if not is_count(bins):
        raise PeewitError(f"bins={bins!r} was given; expected a positive whole number.")
    rows, flat = (tensor.cpu() for tensor in check_probs(probs, labels))
    confidence, predicted = rows.max(-1)
    values = {"confidence": confidence, "correct": (predicted == flat).double()}
    owner = torch.arange(len(flat), device="cpu")
    return Positions(owner=owner, examples=len(flat), values=values, probs=rows, labels=flat)


def width_errors(positions: Positions, drawn: Resampling, bins: int = BINS) -> tuple[MetricDraws, MetricDraws]:
    """ECE and MCE."""
    bin_numbers = equal_width(positions["confidence"], bins)
    gaps, counts = _gaps(positions, drawn, bin_numbers, bins)
    ece = gaps.abs().sum(-1) / counts.sum(-1)
    return MetricDraws.of(ece), MetricDraws.of((gaps.abs() / counts.clamp(min=1)).amax(-1))


def adaptive(positions: Positions, drawn: Resampling, bins: int = BINS) -> MetricDraws:
    """The adaptive ECE, its bins those of the whole data."""
    gaps, counts = _gaps(positions, drawn, equal_mass(positions["confidence"], bins), bins)
    return MetricDraws.of(gaps.abs().sum(-1) / counts.sum(-1))


def _gaps(positions: Positions, drawn: Resampling, bin_numbers: Tensor, bins: int) -> tuple[Tensor, Tensor]:
    """(1 + R, bins) twice: gaps, and how many there are."""
    cell = positions.owner * bins + bin_numbers
    excess = positions["confidence"] - positions["correct"]
    parts = torch.stack([excess, torch.ones_like(excess)], -1)
    sums = drawn.sums(sums_by(cell, parts, positions.examples * bins).reshape(positions.examples, 2 * bins))
    return sums[:, 0::2], sums[:, 1::2]


def classwise(positions: Positions, drawn: Resampling, bins: int = BINS) -> MetricDraws:
    """The class-wise ECE; with very many classes and examples its interval is of fewer draws."""
    probs, labels = positions.probs, positions.labels
    assert probs is not None and labels is not None
    classes = probs.shape[-1]
    most = max(100, CLASSWISE // (positions.examples * bins * classes))
    drawn = drawn if drawn.draws <= most else Resampling(positions.examples, most, drawn.seed)
    total = torch.zeros(1 + drawn.draws, dtype=torch.float64, device="cpu")
    for number in range(classes):
        probability = probs[:, number].double()
        cell = positions.owner * bins + equal_width(probability, bins)
        excess = probability - (labels == number).double()
        parts = sums_by(cell, excess, positions.examples * bins).reshape(positions.examples, bins)
        total += drawn.sums(parts).abs().sum(-1)
    counts = drawn.sums(positions.counts[:, None])[:, 0]
    return MetricDraws.of(total / counts / classes)


def doubt_and_risk(positions: Positions) -> tuple[Tensor, Tensor]:
    """(P,) twice: less confidence and errors, or the standard deviation and squared errors."""
    if "correct" in positions:
        return -positions["confidence"], 1 - positions["correct"]
    return positions["deviation"], positions.values.get("squared", torch.zeros_like(positions["nll"]))


def risk_area(positions: Positions, drawn: Resampling) -> MetricDraws:
    """The area under the risk-coverage curve: mean risk of the k positions of least doubt, averaged over k.

    Equal doubts have no order: their risks are spread evenly, which is the mean over all orders.
    """
    doubt, risk = doubt_and_risk(positions)

    def area(ranking: Ranking, drawn: Resampling) -> Tensor:
        counts = drawn.sum_by_group(ranking.group, positions.owner, None, ranking.groups)
        return _area(counts, drawn.sum_by_group(ranking.group, positions.owner, risk, ranking.groups))

    return by_ranking(area, doubt, drawn)


def _area(counts: Tensor, risks: Tensor) -> Tensor:
    """(1 + R, G) twice -> (1 + R,).

    Of `(E + e j / w) / (K + j)` over j = 1 ... w, with K examples and risk E before a group of w and e, the sum is
    `e + (E - K e / w) (H(K + w) - H(K))` with the harmonic numbers H.
    """
    after = counts.cumsum(-1)
    before, past = after - counts, risks.cumsum(-1) - risks
    share = risks / counts.clamp(min=1)
    harmonic = torch.special.digamma(after + 1) - torch.special.digamma(before + 1)
    return torch.sum(risks + (past - before * share) * harmonic, -1) / after[:, -1]


def risk_coverage(positions: Positions) -> Curve:
    """Mean risk of the share x of the positions that have least doubt, at 200 shares up to all."""
    doubt, risk = doubt_and_risk(positions)
    _, distinct_of_value, counts = doubt.unique(sorted=True, return_inverse=True, return_counts=True)
    spread = (sums_by(distinct_of_value, risk, len(counts)) / counts)[distinct_of_value[doubt.argsort()]]
    number = torch.arange(1, len(doubt) + 1, dtype=torch.float64, device="cpu")
    means = spread.cumsum(0) / number
    points = torch.linspace(0, len(doubt) - 1, min(POINTS, len(doubt)), dtype=torch.float64, device="cpu")
    shown = points.round().long()
    return Curve(tuple((number[shown] / len(doubt)).tolist()), tuple(means[shown].tolist()))
