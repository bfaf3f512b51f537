"""Questions about a whole batch: its labels are left out, and its inputs may come by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from fitting import built, classes, normal
from tables import moved


class Named(nn.Module):
    """Two inputs by name, and what else forwards have for arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 2)

    def forward(self, a: Tensor, b: Tensor, labels: Tensor | None = None, y: Tensor | None = None) -> Tensor:
        """(N, 2)."""
        assert labels is None
        logits: Tensor = self.net(a) * b
        return logits if y is None else logits + y


class Conditional(nn.Module):
    """Labels are an input."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(3, 2)

    def forward(self, a: Tensor, labels: Tensor) -> Tensor:
        """(N, 2)."""
        logits: Tensor = self.net(a) * labels[:, None]
        return logits


A, B, Y = moved(normal(6, 3)), moved(normal(6, 1)), moved(classes(2, 6))


@pytest.fixture
def la() -> pw.Laplace:
    """Fitted to a batch by name."""
    return pw.fit(built(Named()).to(DEVICE), [{"a": A, "b": B, "labels": Y}], "classification")


def test_labels_are_left_out(la: pw.Laplace) -> None:
    """By every question, whatever the mapping."""
    x, batch = {"a": A, "b": B}, {"a": A, "b": B, "labels": Y}
    assert torch.equal(la.predict(batch).probs, la.predict(x).probs)
    assert torch.equal(la.functional(batch).cov, la.functional(x).cov)
    draws = [la.functional_samples(each, 3, torch.Generator(DEVICE).manual_seed(0)) for each in (batch, x)]
    assert torch.equal(*draws)
    sampled = [la.predict(each, method="sampled", samples=3).probs for each in (batch, x)]
    assert torch.equal(*sampled)


def test_inputs_by_name(la: pw.Laplace) -> None:
    """As keywords beside the options."""
    assert torch.equal(la.predict(a=A, b=B, link="mc").probs, la.predict({"a": A, "b": B}, link="mc").probs)
    assert torch.equal(la.predict(a=A, b=B, labels=Y).probs, la.predict({"a": A, "b": B}).probs)


def test_arguments_of_the_network_are_inputs(la: pw.Laplace) -> None:
    """What forward needs or has an argument for is not taken for a target, but for `labels`."""
    y = moved(normal(6, 1))
    shifted = la.predict({"a": A, "b": B, "y": y}).output_mean
    assert torch.allclose(shifted, la.predict({"a": A, "b": B}).output_mean + y)
    model = built(Conditional()).to(DEVICE)
    conditional = pw.fit(model, ({"a": A, "labels": B[:, 0]}, Y), "classification")
    assert torch.equal(conditional.predict({"a": A, "labels": B[:, 0]}).output_mean, model(A, B[:, 0]))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, "no inputs by name; expected a tensor"),
        ({"x": A, "b": B}, "given x and also b"),
        ({"a": A, "b": B, "smaples": 3}, "no option 'smaples'; did you mean 'samples'"),
        ({"a": A, "c": B}, "got the entries as keywords|gets the entries as keywords"),
    ],
)
def test_mistakes(la: pw.Laplace, asked: dict[str, Any], words: str) -> None:
    """What is missing, twice there or misspelt."""
    with pytest.raises((pw.ArgumentTypeError, TypeError), match=words):
        la.predict(**asked)
