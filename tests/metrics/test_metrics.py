"""Scores of predictions against torchmetrics, torch.distributions and closed forms."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from environment import DEVICE
from peewit.metrics import accuracy, auroc, brier, ece, nll

oracle = pytest.importorskip("torchmetrics.functional.classification")

N, C = 400, 5


def predictions(sharpness: float = 2.0, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Probabilities (N, C) that are right more often than not, and labels (N,)."""
    labels = torch.randint(C, (N,))
    logits = sharpness * (torch.randn(N, C, dtype=torch.float64) + torch.nn.functional.one_hot(labels, C))
    return logits.softmax(-1).to(DEVICE, dtype), labels.to(DEVICE)


def test_accuracy_and_likelihood_are_those_of_torch() -> None:
    probs, labels = predictions()
    assert accuracy(probs, labels) == pytest.approx(
        oracle.multiclass_accuracy(probs, labels, C, average="micro").item()
    )
    expected = torch.distributions.Categorical(probs=probs).log_prob(labels).mean()
    assert nll(probs, labels) == pytest.approx(-expected.item(), rel=1e-12)


def test_brier_is_the_sum_over_classes() -> None:
    probs, labels = predictions()
    expected = sum(((probs[:, k] - (labels == k).double()) ** 2).mean() for k in range(C))
    assert brier(probs, labels) == pytest.approx(float(expected), rel=1e-12)
    sure = torch.tensor([[1.0, 0.0], [1.0, 0.0]], device=DEVICE)
    assert brier(sure, torch.tensor([0, 1], device=DEVICE)) == 1.0  # 0 where right, 2 where wrong


@pytest.mark.parametrize("bins", [1, 7, 15, 40])
@pytest.mark.parametrize("sharpness", [0.3, 2.0, 4.0])
def test_calibration_error_is_that_of_torchmetrics(bins: int, sharpness: float) -> None:
    probs, labels = predictions(sharpness)
    expected = oracle.multiclass_calibration_error(probs, labels, C, n_bins=bins, norm="l1")
    assert ece(probs, labels, bins) == pytest.approx(expected.item(), rel=1e-5)


def test_calibration_error_keeps_the_surest_predictions() -> None:
    """Confidences of .99 and above, 1 included, count: dropped, these would score 0."""
    probs = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.995, 0.005], [0.99, 0.01]], dtype=torch.float64, device=DEVICE)
    labels = torch.tensor([0, 1, 1, 1], device=DEVICE)
    # One bin holds all four: mean confidence .99625, one in four right.
    assert ece(probs, labels) == pytest.approx((1 + 1 + 0.995 + 0.99) / 4 - 0.25, rel=1e-12)
    assert ece(probs[:2], labels[:2]) == pytest.approx(0.5)
    assert ece(probs[:1], labels[:1]) == 0.0


def test_calibration_error_bins_by_confidence() -> None:
    """Two bins that are wrong in opposite directions do not cancel; within one bin they do."""
    probs = torch.tensor([[0.6, 0.4], [0.9, 0.1]], dtype=torch.float64, device=DEVICE)
    labels = torch.tensor([0, 1], device=DEVICE)
    assert ece(probs, labels, bins=10) == pytest.approx((0.4 + 0.9) / 2)
    assert ece(probs, labels, bins=2) == pytest.approx(abs(1.5 - 1) / 2)


@pytest.mark.parametrize("ties", [False, True])
def test_auroc_is_the_mann_whitney_statistic(ties: bool) -> None:
    known, unknown = torch.randn(N), torch.randn(N // 2) + 0.7
    if ties:
        known, unknown = known.round(), unknown.round()
    pairs = unknown[:, None] - known
    expected = ((pairs > 0).double() + 0.5 * (pairs == 0).double()).mean().item()
    assert auroc(known.to(DEVICE), unknown.to(DEVICE)) == pytest.approx(expected, rel=1e-12)
    scores, is_unknown = torch.cat([known, unknown]), torch.tensor([0] * len(known) + [1] * len(unknown))
    # torchmetrics squeezes scores outside of [0, 1] through a sigmoid in their own precision.
    curve = oracle.binary_auroc(scores.double().sigmoid(), is_unknown)
    assert auroc(known, unknown) == pytest.approx(curve.item(), rel=1e-5)


def test_auroc_at_its_ends() -> None:
    low, high = torch.zeros(3, device=DEVICE), torch.ones(2, device=DEVICE)
    assert (auroc(low, high), auroc(high, low), auroc(low, low)) == (1.0, 0.0, 0.5)


@pytest.mark.parametrize("metric", [accuracy, nll, brier, ece])
def test_positions_count_like_examples(metric: Callable[[Tensor, Tensor], float]) -> None:
    probs, labels = predictions(dtype=torch.float32)
    shaped = metric(probs.reshape(10, 8, 5, C), labels.reshape(10, 8, 5))
    assert shaped == metric(probs, labels)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_taken(dtype: torch.dtype) -> None:
    probs, labels = predictions()
    assert nll(probs.to(dtype), labels) == pytest.approx(nll(probs, labels), rel=0.01)


def test_a_label_of_probability_zero_costs_infinitely_much() -> None:
    assert nll(torch.tensor([[1.0, 0.0]]), torch.tensor([1])) == float("inf")


REFUSED = {
    "shapes": (torch.full((4, 2), 0.5), torch.zeros(3, dtype=torch.long), "(4, 2) and labels (3,)"),
    "columns": (torch.full((4, 2), 0.5), torch.zeros(4, 1, dtype=torch.long), "(4, 2) and labels (4, 1)"),
    "one axis": (torch.full((4,), 0.5), torch.zeros(4, dtype=torch.long), "expected (..., C)"),
    "float labels": (torch.full((4, 2), 0.5), torch.zeros(4), "torch.float32"),
    "empty": (torch.zeros(0, 2), torch.zeros(0, dtype=torch.long), "No labels"),
    "range": (torch.full((2, 2), 0.5), torch.tensor([0, 2]), "0 to 2; expected 0 to 1"),
    "ignored": (torch.full((2, 2), 0.5), torch.tensor([0, -100]), "Leave out positions"),
    "logits": (torch.tensor([[3.0, -2.0]]), torch.tensor([0]), "softmax"),
    "positive logits": (torch.tensor([[3.0, 2.0]]), torch.tensor([0]), "softmax"),
    "nan": (torch.full((2, 2), float("nan")), torch.tensor([0, 1]), "finite"),
}


@pytest.mark.parametrize("probs, labels, message", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("metric", [accuracy, nll, brier, ece])
def test_what_does_not_fit_is_refused(
    metric: Callable[[Tensor, Tensor], float], probs: Tensor, labels: Tensor, message: str
) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        metric(probs, labels)
    assert message in str(caught.value)


def test_bins_and_scores_are_checked() -> None:
    probs, labels = predictions()
    for bins in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="positive whole number"):
            ece(probs, labels, bins)  # type: ignore[arg-type]  # what is refused
    with pytest.raises(ValueError, match="some of each"):
        auroc(torch.zeros(0), torch.zeros(2))
    with pytest.raises(ValueError, match="NaN"):
        auroc(torch.tensor([float("nan")]), torch.zeros(2))
