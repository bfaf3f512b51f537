"""Metrics of class probabilities (..., C) against labels (...): one number each."""

from __future__ import annotations

import torch
from torch import Tensor

from ..messages.errors import ArgumentTypeError, PeewitError


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
        >>> probs, labels = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), torch.tensor([0, 1, 1])
        >>> round(pw.metrics.accuracy(probs, labels), 4)
        0.6667
    """
    probs, labels = check_probs(probs, labels)
    return (probs.argmax(-1) == labels).double().mean().item()


def nll(probs: Tensor, labels: Tensor) -> float:
    """Compute the mean negative log-probability of the label, in nats; lower is better.

    Args:
        probs: Class probabilities (..., C), classes last. Positions count like examples.
        labels: Class numbers (...), whole numbers from 0 to C - 1. Leave out positions without a label.

    Returns:
        A number from 0 on; infinite if a label has probability 0.

    Raises:
        PeewitError: See `accuracy`.

    Example:
        >>> probs, labels = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), torch.tensor([0, 1, 1])
        >>> round(pw.metrics.nll(probs, labels), 4)
        0.6905
    """
    probs, labels = check_probs(probs, labels)
    return -probs.gather(-1, labels[:, None]).log().mean().item()


def brier(probs: Tensor, labels: Tensor) -> float:
    """Compute the Brier score: the mean squared distance, summed over classes, of `probs` from the label.

    Args:
        probs: Class probabilities (..., C), classes last. Positions count like examples.
        labels: Class numbers (...), whole numbers from 0 to C - 1. Leave out positions without a label.

    Returns:
        A number from 0 to 2; lower is better.

    Raises:
        PeewitError: See `accuracy`.

    Example:
        >>> probs, labels = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]), torch.tensor([0, 1, 1])
        >>> round(pw.metrics.brier(probs, labels), 4)
        0.4933
    """
    probs, labels = check_probs(probs, labels)
    right = torch.nn.functional.one_hot(labels, probs.shape[-1])
    return (probs - right).square().sum(-1).mean().item()


def check_probs(probs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """(N, C) in float64 and (N,); refuses what is not a set of probabilities with a label each."""
    if probs.dim() < 2 or labels.shape != probs.shape[:-1]:
        raise PeewitError(
            f"Probabilities {tuple(probs.shape)} and labels {tuple(labels.shape)}; expected (..., C) and (...), "
            "with the classes last."
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ArgumentTypeError(f"Labels have dtype {labels.dtype}; expected whole numbers.")
    if labels.numel() == 0:
        raise PeewitError("No labels were given; expected at least one.")
    rows, flat = probs.detach().double().flatten(0, -2), labels.to(probs.device).flatten().long()
    if bool((flat < 0).any()) or bool((flat >= rows.shape[-1]).any()):
        raise PeewitError(
            f"Labels range from {int(flat.min())} to {int(flat.max())}; expected 0 to {rows.shape[-1] - 1}. "
            "Leave out positions without a label."
        )
    # Half-precision softmaxes miss 1 by some thousandths; logits miss it by far. NaN fails the comparison.
    if not (bool((rows >= 0).all()) and bool(((rows.sum(-1) - 1).abs() < 0.02).all())):
        raise PeewitError("Probabilities are not all finite, positive and of sum 1; logits need a softmax first.")
    return rows, flat
