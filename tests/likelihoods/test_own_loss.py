"""The network's own loss beside the energy: a difference is said, and options that networks have not are none."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from fitting import built, classes, normal
from tables import moved

Loss = Callable[[Tensor, Tensor], Tensor]
WEIGHTS = torch.tensor([0.5, 2.0, 1.0])


class Own(nn.Module):
    """A network with a loss of its own, and how its outputs are returned."""

    def __init__(self, outputs: int, loss: Loss, extra: dict[str, Any] | None = None) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))
        self.loss, self.extra = loss, extra or {}
        self.passes = 0

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        """Logits, and the loss where there are labels."""
        logits = self.net(x)
        loss = None if labels is None else self.loss(logits, labels)
        return SimpleNamespace(logits=logits, loss=loss, **self.extra)


def network(outputs: int, loss: Loss, **extra: Any) -> Own:
    """In float64 with fixed weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return built(Own(outputs, loss, extra)).to(DEVICE)


X = normal(9, 3)
LABELS = classes(3, 9)
YES = (normal(9, 2, seed=8) > 0).double()
VALUES = normal(9, 2, seed=8)
SOME = torch.where(torch.arange(9) % 3 == 1, -100, LABELS)


def fit(model: nn.Module, y: Tensor, likelihood: Any, **options: Any) -> pw.Laplace:
    """A small fit."""
    return pw.fit(model, [{"x": moved(X), "labels": moved(y)}], likelihood, structure="diag", **options)


AGREE: dict[str, tuple[int, Loss, Tensor, Any]] = {
    "classes": (3, F.cross_entropy, LABELS, "classification"),
    "ignored labels": (3, F.cross_entropy, SOME, "classification"),
    "summed": (3, lambda f, y: F.cross_entropy(f, y, reduction="sum"), LABELS, "classification"),
    "per example": (3, lambda f, y: F.cross_entropy(f, y, reduction="sum") / len(y), SOME, "classification"),
    "smoothing outside": (3, F.cross_entropy, LABELS, pw.Categorical(label_smoothing=0.1)),
    "smoothing inside": (
        3,
        lambda f, y: F.cross_entropy(f, y, label_smoothing=0.1),
        LABELS,
        pw.Categorical(label_smoothing=0.1),
    ),
    "weights outside": (3, F.cross_entropy, LABELS, pw.Categorical(weight=WEIGHTS)),
    "weights inside": (
        3,
        lambda f, y: F.cross_entropy(f, y, WEIGHTS.to(f)),
        SOME,
        pw.Categorical(weight=WEIGHTS),
    ),
    "several labels": (2, F.binary_cross_entropy_with_logits, YES, "binary"),
    "regression": (2, F.mse_loss, VALUES, "regression"),
    "regression with noises": (2, F.mse_loss, VALUES, pw.Gaussian(torch.tensor([0.3, 2.0]))),
    "regression summed": (2, lambda f, y: F.mse_loss(f, y, reduction="sum"), VALUES, pw.Gaussian(0.1)),
    "another likelihood": (2, F.mse_loss, VALUES, pw.Custom(lambda f, y: (f - y).abs().sum(1))),
    "no number": (3, lambda f, y: torch.full((), torch.nan), LABELS, "classification"),
    "labels that it does not take": (3, lambda f, y: F.mse_loss(f, y.nope), LABELS, "classification"),
    "a loss for each": (3, lambda f, y: F.cross_entropy(f, y, reduction="none"), LABELS, "classification"),
}


@pytest.mark.parametrize("name", AGREE)
def test_nothing_is_said_where_losses_agree(name: str) -> None:
    """Reductions, options of training, and losses that cannot be compared."""
    outputs, loss, y, likelihood = AGREE[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        la = fit(network(outputs, loss), y, likelihood)
    assert getattr(la.likelihood, "shift", None) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rounding_is_no_difference(dtype: torch.dtype) -> None:
    """Networks in half precision round their own loss."""
    model = network(3, F.cross_entropy).to(dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pw.fit(model, [{"x": moved(X).to(dtype), "labels": moved(LABELS)}], "classification", structure="diag")


DIFFER: dict[str, tuple[int, Loss, Tensor, Any]] = {
    "weights": (3, lambda f, y: F.cross_entropy(f, y, WEIGHTS.to(f)), LABELS, "classification"),
    "another task": (2, F.mse_loss, YES, "binary"),
    "another label": (3, lambda f, y: F.cross_entropy(f, (y + 1) % 3), LABELS, "classification"),
    "a scale": (2, lambda f, y: F.mse_loss(3 * f, y), VALUES, "regression"),
}


@pytest.mark.parametrize("name", DIFFER)
def test_a_difference_is_said(name: str) -> None:
    """With both numbers, of the first examples."""
    outputs, loss, y, likelihood = DIFFER[name]
    model = network(outputs, loss)
    with torch.no_grad():
        own = float(model(moved(X)[:4], moved(y)[:4]).loss)
    with pytest.warns(UserWarning, match=rf"own loss on its first examples is {own:.4g}, and the mean energy under"):
        fit(model, y, likelihood)


def test_further_terms_are_none_of_the_likelihood() -> None:
    """A loss of routers beside that of the labels."""
    model = network(3, lambda f, y: F.cross_entropy(f, y) + 1, aux_loss=torch.ones(()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit(model, LABELS, "classification")


def test_one_look_at_few_examples() -> None:
    """One forward pass with labels, of four examples, and none where the network takes no labels."""
    seen: list[int] = []

    def loss(f: Tensor, y: Tensor) -> Tensor:
        seen.append(len(y))
        return F.cross_entropy(f, y)

    model = network(3, loss)
    before = copy.deepcopy(model.state_dict())
    fit(model.train(), LABELS, "classification")
    assert seen == [4] and model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_settings_that_a_loss_writes_are_restored() -> None:
    """As text classifiers of transformers note the kind of problem; a value that was there stays."""
    for before in (None, "regression"):
        config = SimpleNamespace(problem_type=before)

        def loss(f: Tensor, y: Tensor, config: SimpleNamespace = config) -> Tensor:
            config.problem_type = "single_label_classification"
            return F.cross_entropy(f, y)

        model = network(3, loss)
        model.config = config  # type: ignore[assignment]
        fit(model, LABELS, "classification")
        assert config.problem_type == before


class Tokens(nn.Module):
    """Logits of tokens, without a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(5, 3), nn.Linear(3, 5)

    def forward(self, ids: Tensor) -> Tensor:
        """(N, T, C)."""
        logits: Tensor = self.head(self.embed(ids).cumsum(1))
        return logits


def test_labels_that_are_the_inputs() -> None:
    """A network without a loss cannot tell: the user is asked."""
    ids, model = moved(classes(5, 6, 4)), built(Tokens()).to(DEVICE)
    with pytest.warns(UserWarning, match=r"labels are the inputs themselves.*Categorical\(shift=True\)"):
        pw.fit(model, (ids, ids), "classification", structure="diag")
    masked = torch.where(torch.arange(4, device=ids.device) == 1, ids, -100)
    others = torch.where(torch.arange(4, device=ids.device) == 1, (ids + 1) % 5, ids)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for labels in (ids.roll(1, 1), masked, others):
            pw.fit(model, (ids, labels), "classification", structure="diag")
        for shift in (True, False):
            pw.fit(model, (ids, ids), pw.Categorical(shift=shift), structure="diag")
