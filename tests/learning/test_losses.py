"""The factor between a loss and the energy under the likelihood, up to the rounding of the outputs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw


def learner_with(dtype: torch.dtype, loss: object) -> pw.learning.Learner:
    torch.manual_seed(0)
    model = nn.Linear(3, 4).to(dtype)
    x, y = torch.randn(16, 3, dtype=dtype), torch.arange(16) % 4
    return pw.learning.Learner(model, (x, y), "classification", torch.optim.SGD(model.parameters(), lr=0.1), loss=loss)


def in_own_rounding(outputs: Tensor, targets: Tensor) -> Tensor:
    """Three times the cross-entropy, from probabilities in the dtype of the outputs."""
    return -3 * outputs.softmax(1).gather(1, targets[:, None]).log().mean()


@pytest.mark.parametrize(("dtype", "rounding"), [(torch.float64, 1e-9), (torch.float32, 1e-5), (torch.bfloat16, 0.03)])
def test_the_factor_is_found_up_to_rounding(dtype: torch.dtype, rounding: float) -> None:
    assert learner_with(dtype, in_own_rounding).loss_factor == pytest.approx(3, rel=rounding)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_smoothed_labels_are_noticed_before_training(dtype: torch.dtype) -> None:
    """With logits of about 1e-3, at which the gradient is nearly a multiple of the plain one."""
    torch.manual_seed(0)
    model = nn.Linear(3, 4).to(dtype)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1e-3)
    data = torch.randn(16, 3, dtype=dtype), torch.arange(16) % 4
    with pytest.raises(pw.PeewitError, match="not a multiple of the energy"):
        pw.learning.Learner(
            model,
            data,
            "classification",
            torch.optim.SGD(model.parameters(), lr=0.1),
            loss=nn.CrossEntropyLoss(label_smoothing=0.3),
        )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_little_of_another_loss_is_noticed(dtype: torch.dtype) -> None:
    with pytest.raises(pw.PeewitError, match="not a multiple of the energy"):
        learner_with(dtype, lambda f, y: F.cross_entropy(f, y, label_smoothing=0.02))
