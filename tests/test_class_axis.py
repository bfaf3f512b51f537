"""Which axis of the outputs holds the classes: the one that fits the labels, in every batch the same."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from conftest import DEVICE
from fitting import built, classes, normal
from tables import moved, relative

CLASSES = 3


def network(seed: int = 5) -> nn.Module:
    """(N, 2, T) -> (N, C, T), whatever T is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return built(nn.Sequential(nn.Conv1d(2, 4, 1), nn.Tanh(), nn.Conv1d(4, CLASSES, 1))).to(DEVICE)


def batch(examples: int, length: int, seed: int) -> tuple[Tensor, Tensor]:
    return moved(normal(examples, 2, length, seed=seed)), moved(classes(CLASSES, examples, length, seed=seed))


def expected(model: nn.Module, data: list[tuple[Tensor, Tensor]]) -> Tensor:
    """(D, D): `sum J^T (diag p - p p^T) J` over examples and positions, by loops."""
    parameters = list(model.parameters())
    total = torch.zeros((), dtype=torch.float64, device=DEVICE)
    for x, _ in data:
        for output in model(x).movedim(1, 2).flatten(0, 1):  # (C,)
            found = [torch.autograd.grad(each, parameters, retain_graph=True) for each in output]
            rows = torch.stack([torch.cat([g.flatten() for g in each]) for each in found])
            p = output.detach().softmax(0)
            total = total + rows.T @ (torch.diag(p) - p[:, None] * p) @ rows
    return total


@pytest.mark.parametrize("lengths", [(1,), (1, 4), (4, 1), (2, 1, 5)])
def test_sequences_of_length_one(lengths: tuple[int, ...]) -> None:
    """Classes on axis 1 are the only fit; such a batch among longer ones is as good as any."""
    model, data = network(), [batch(4, length, place) for place, length in enumerate(lengths)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        la = lw.fit(model, data, "classification", structure="full", curvature="ggn")
    whole = expected(model, data)
    identity = torch.eye(la.D).to(la.mode)
    assert relative(la.precision.mv(identity) - identity, whole) < 1e-8
    assert relative(lw.products(model, data, "classification").mv(identity), whole) < 1e-8
    p = la.predict(data[-1][0]).probs
    assert p.shape == data[-1][0].shape[:1] + (CLASSES, lengths[-1])
    assert torch.allclose(p.sum(1), torch.ones((), dtype=torch.float64, device=DEVICE))


def test_images_of_one_pixel() -> None:
    """Of (N, C, 1, 1) and labels (N, 1, 1) too."""
    model = built(nn.Conv2d(2, CLASSES, 1)).to(DEVICE)
    la = lw.fit(model, (moved(normal(4, 2, 1, 1)), moved(classes(CLASSES, 4, 1, 1))), "classification")
    assert la.predict(moved(normal(4, 2, 1, 1))).probs.shape == (4, CLASSES, 1, 1)


def test_one_output_is_still_refused() -> None:
    """Where no axis with several classes fits."""
    model = built(nn.Linear(2, 1)).to(DEVICE)
    for inputs, labels in (((4, 5, 2), (4, 5)), ((4, 1, 2), (4, 1)), ((4, 2), (4,))):
        with pytest.raises(ValueError, match=r"one output.*always 1.*binary"):
            lw.fit(model, (moved(normal(*inputs)), moved(classes(1, *labels))), "classification")


def test_as_many_positions_as_classes() -> None:
    """Both axes fit, and torch's loss takes the other one: a warning, unless the axis is said or known."""
    model, data = network(), [batch(4, CLASSES, 1)]
    with pytest.warns(UserWarning, match=r"on axis 1.*CrossEntropyLoss.*and on axis 2, which is taken.*axis=") as said:
        last = lw.fit(model, data, "classification")
    assert len(said) == 1
    asked: dict[str, Any] = {"1": lw.Categorical(axis=1), "2": lw.Categorical(axis=2)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        by_axis = {name: lw.fit(model, data, likelihood).log_evidence() for name, likelihood in asked.items()}
        longer = lw.fit(model, [batch(4, 5, 2), *data], "classification", structure="full", curvature="ggn")
    assert last.log_evidence() == by_axis["2"] != by_axis["1"]
    identity = torch.eye(longer.D).to(longer.mode)
    data = [batch(4, 5, 2), *data]
    assert relative(longer.precision.mv(identity) - identity, expected(model, data)) < 1e-8
    assert relative(lw.products(model, data, "classification").mv(identity), expected(model, data)) < 1e-8


def test_images_with_as_many_pixels_as_classes() -> None:
    """From four axes on torch's own axis is taken, and nothing is said."""
    model = built(nn.Conv2d(2, CLASSES, 1)).to(DEVICE)
    x, y = moved(normal(4, 2, CLASSES, CLASSES)), moved(classes(CLASSES, 4, CLASSES, CLASSES))
    la = lw.fit(model, (x, y), "classification")
    assert la.log_evidence() == lw.fit(model, (x, y), lw.Categorical(axis=1)).log_evidence()
