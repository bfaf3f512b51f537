"""Scores of predicted class probabilities (..., C) against labels (...), each one number.

Positions count like examples; leave out those without a label before you ask.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..messages.arguments import is_count
from ..messages.errors import ArgumentTypeError, NotFiniteError, PeewitError


def accuracy(probs: Tensor, labels: Tensor) -> float:
    """Compute the share of examples whose likeliest class is the label; higher is better.

    Args:
        probs: Class probabilities (..., C), classes last. Positions count like examples.
        labels: Class numbers (...), whole numbers from 0 to C - 1. Leave out positions without a label.

    Returns:
        A number from 0 to 1.

    Raises:
        PeewitError: The shapes do not fit, there are no labels, a label is outside 0 to C - 1, or `probs` has negative
            or infinite entries or does not sum to 1 within 0.02 (logits need a softmax first).
        ArgumentTypeError: `labels` is not of whole numbers.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
        >>> labels = torch.tensor([0, 1, 1])
        >>> round(pw.metrics.accuracy(probs, labels), 4)
        0.6667
    """
    probs, labels = checked(probs, labels)
    return (probs.argmax(-1) == labels).double().mean().item()


def nll(probs: Tensor, labels: Tensor) -> float:
    """Compute the mean negative log-probability of the label, in nats; lower is better.

    Args:
        probs: Class probabilities (..., C), classes last. Positions count like examples.
        labels: Class numbers (...), whole numbers from 0 to C - 1. Leave out positions without a label.

    Returns:
        A number from 0 on; infinite if a label has probability 0.

    Raises:
        PeewitError: The shapes do not fit, there are no labels, a label is outside 0 to C - 1, or `probs` has negative
            or infinite entries or does not sum to 1 within 0.02 (logits need a softmax first).
        ArgumentTypeError: `labels` is not of whole numbers.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
        >>> labels = torch.tensor([0, 1, 1])
        >>> round(pw.metrics.nll(probs, labels), 4)
        0.6905
    """
    probs, labels = checked(probs, labels)
    return -probs.gather(-1, labels[:, None]).log().mean().item()


def brier(probs: Tensor, labels: Tensor) -> float:
    """Compute the Brier score: the mean squared distance, summed over classes, of `probs` from the label.

    Args:
        probs: Class probabilities (..., C), classes last. Positions count like examples.
        labels: Class numbers (...), whole numbers from 0 to C - 1. Leave out positions without a label.

    Returns:
        A number from 0 to 2; lower is better.

    Raises:
        PeewitError: The shapes do not fit, there are no labels, a label is outside 0 to C - 1, or `probs` has negative
            or infinite entries or does not sum to 1 within 0.02 (logits need a softmax first).
        ArgumentTypeError: `labels` is not of whole numbers.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
        >>> labels = torch.tensor([0, 1, 1])
        >>> round(pw.metrics.brier(probs, labels), 4)
        0.4933
    """
    probs, labels = checked(probs, labels)
    right = torch.nn.functional.one_hot(labels, probs.shape[-1])
    return (probs - right).square().sum(-1).mean().item()


def ece(probs: Tensor, labels: Tensor, bins: int = 15) -> float:
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
        PeewitError: `bins` is no positive whole number, the shapes do not fit, there are no labels, a label is outside
            0 to C - 1, or `probs` has negative or infinite entries or does not sum to 1 within 0.02 (logits need a
            softmax first).
        ArgumentTypeError: `labels` is not of whole numbers.

    Example:
        >>> probs = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
        >>> labels = torch.tensor([0, 1, 1])
        >>> round(pw.metrics.ece(probs, labels, bins=4), 4)  # (|1.7 - 1| + |0.7 - 1|) / 3
        0.3333
    """
    checked_bins(bins)
    probs, labels = checked(probs, labels)
    confidence, predicted = probs.max(-1)
    # Without the clamp a confidence of 1 would fall out of the last bin, and with it the surest predictions.
    place = (confidence * bins).long().clamp(max=bins - 1)
    excess = torch.zeros(bins, dtype=probs.dtype, device=probs.device)
    excess.index_add_(0, place, confidence - (predicted == labels).to(probs.dtype))
    return excess.abs().sum().item() / len(labels)


def auroc(known: Tensor, unknown: Tensor) -> float:
    """Compute the area under the ROC curve of a score that detects unknown inputs; higher is better.

    It is the probability that an unknown input scores higher than a known one; ties count half.

    Args:
        known: Scores (n,) of known inputs; another shape is flattened.
        unknown: Scores (m,) of unknown inputs, higher for inputs that seem unknown; another shape is flattened.

    Returns:
        A number from 0 to 1; 0.5 is chance.

    Raises:
        PeewitError: `known` or `unknown` is empty or holds NaN.

    Example:
        >>> known, unknown = torch.tensor([0.1, 0.2, 0.6]), torch.tensor([0.5, 0.9])
        >>> round(pw.metrics.auroc(known, unknown), 4)
        0.8333
    """
    known, unknown = checked_scores(known, unknown)
    ordered = known.sort().values
    below = torch.searchsorted(ordered, unknown, right=False)
    not_above = torch.searchsorted(ordered, unknown, right=True)
    return (below + not_above).double().mean().item() / (2 * known.numel())


def checked_scores(known: Tensor, unknown: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) and (m,) in float64; refuses none, and what cannot be ordered."""
    known, unknown = known.detach().double().flatten(), unknown.detach().double().flatten().to(known.device)
    if known.numel() == 0 or unknown.numel() == 0:
        raise PeewitError(
            f"{known.numel()} known and {unknown.numel()} unknown scores were given; expected some of each."
        )
    if bool(known.isnan().any()) or bool(unknown.isnan().any()):
        raise NotFiniteError("Scores hold NaN; expected numbers.")
    return known, unknown


def checked_bins(bins: int) -> None:
    """A positive whole number."""
    if not is_count(bins):
        raise PeewitError(f"bins={bins!r} was given; expected a positive whole number.")


def checked(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(N, C) in float64 and (N,); refuses what does not fit."""
    if probs.dim() < 2 or labels.shape != probs.shape[:-1]:
        raise PeewitError(
            f"Probabilities {tuple(probs.shape)} and labels {tuple(labels.shape)}; expected (..., C) and (...), "
            "with the classes last."
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ArgumentTypeError(f"Labels have dtype {labels.dtype}; expected whole numbers.")
    if labels.numel() == 0:
        raise PeewitError("No labels were given; expected at least one.")
    made, flat = probs.detach().double().flatten(0, -2), labels.to(probs.device).flatten().long()
    if bool((flat < 0).any()) or bool((flat >= made.shape[-1]).any()):
        raise PeewitError(
            f"Labels range from {int(flat.min())} to {int(flat.max())}; expected 0 to {made.shape[-1] - 1}. "
            "Leave out positions without a label."
        )
    # Half-precision softmaxes miss 1 by some thousandths; logits miss it by far. NaN fails the comparison.
    if not (bool((made >= 0).all()) and bool(((made.sum(-1) - 1).abs() < 0.02).all())):
        raise PeewitError("Probabilities are not all finite, positive and of sum 1; logits need a softmax first.")
    return made, flat
