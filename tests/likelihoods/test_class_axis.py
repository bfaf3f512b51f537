"""Which axis of the outputs holds the classes: the one that fits the labels, in every batch the same."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from fitting import built, classes, normal
from peewit.likelihoods import Form
from peewit.likelihoods.categorical import fitting_axes
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
        la = pw.fit(model, data, "classification", structure="full", curvature="ggn")
    whole = expected(model, data)
    identity = torch.eye(la.D).to(la.weights)
    assert relative(la.precision.mv(identity) - identity, whole) < 1e-8
    assert relative(pw.products(model, data, "classification").mv(identity), whole) < 1e-8
    p = la.predict(data[-1][0]).probs
    assert p.shape == data[-1][0].shape[:1] + (CLASSES, lengths[-1])
    assert torch.allclose(p.sum(1), torch.ones((), dtype=torch.float64, device=DEVICE))


def test_images_of_one_pixel() -> None:
    """Of (N, C, 1, 1) and labels (N, 1, 1) too."""
    model = built(nn.Conv2d(2, CLASSES, 1)).to(DEVICE)
    la = pw.fit(model, (moved(normal(4, 2, 1, 1)), moved(classes(CLASSES, 4, 1, 1))), "classification")
    assert la.predict(moved(normal(4, 2, 1, 1))).probs.shape == (4, CLASSES, 1, 1)


def test_one_output_is_still_refused() -> None:
    """Where no axis with several classes fits."""
    model = built(nn.Linear(2, 1)).to(DEVICE)
    for inputs, labels in (((4, 5, 2), (4, 5)), ((4, 1, 2), (4, 1)), ((4, 2), (4,))):
        with pytest.raises(ValueError, match=r"one output.*always 1.*binary"):
            pw.fit(model, (moved(normal(*inputs)), moved(classes(1, *labels))), "classification")


def test_as_many_positions_as_classes() -> None:
    """Both axes fit, and torch's loss takes the other one: a warning, unless the axis is said or known."""
    model, data = network(), [batch(4, CLASSES, 1)]
    with pytest.warns(UserWarning, match=r"on axis 1.*CrossEntropyLoss.*and on axis 2, which is taken.*axis=") as said:
        last = pw.fit(model, data, "classification")
    assert len(said) == 1
    asked: dict[str, Any] = {"1": pw.Categorical(axis=1), "2": pw.Categorical(axis=2)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        by_axis = {name: pw.fit(model, data, likelihood).log_evidence() for name, likelihood in asked.items()}
        longer = pw.fit(model, [batch(4, 5, 2), *data], "classification", structure="full", curvature="ggn")
    assert last.log_evidence() == by_axis["2"] != by_axis["1"]
    identity = torch.eye(longer.D).to(longer.weights)
    data = [batch(4, 5, 2), *data]
    assert relative(longer.precision.mv(identity) - identity, expected(model, data)) < 1e-8
    assert relative(pw.products(model, data, "classification").mv(identity), expected(model, data)) < 1e-8


def test_images_with_as_many_pixels_as_classes() -> None:
    """From four axes on torch's own axis is taken, and nothing is said."""
    model = built(nn.Conv2d(2, CLASSES, 1)).to(DEVICE)
    x, y = moved(normal(4, 2, CLASSES, CLASSES)), moved(classes(CLASSES, 4, CLASSES, CLASSES))
    la = pw.fit(model, (x, y), "classification")
    assert la.log_evidence() == pw.fit(model, (x, y), pw.Categorical(axis=1)).log_evidence()


FORMS: list[tuple[tuple[int, ...], tuple[int, ...], int | None, int]] = [
    # outputs, labels, the axis that is asked for, and the one of an example's outputs that is taken
    ((5, 3), (5,), None, 0),
    ((5, 4, 3), (5, 4), None, 1),
    ((5, 3, 4), (5, 4), None, 0),
    ((5, 3, 3), (5, 3), 1, 0),
    ((5, 3, 3), (5, 3), -2, 0),
    ((5, 3, 3), (5, 3), -1, 1),
    ((5, 2, 1), (5, 1), None, 0),
    ((5, 3, 1), (5, 3), 2, 1),
    ((5, 1, 2), (5, 1), None, 1),
    ((5, 3, 4, 6), (5, 4, 6), None, 0),
    ((5, 4, 3, 6), (5, 4, 6), None, 1),
    ((5, 4, 6, 3), (5, 4, 6), None, 2),
    ((5, 3, 3, 6), (5, 3, 6), None, 0),
    ((5, 4, 3, 3), (5, 4, 3), None, 1),
    ((5, 3, 3, 6), (5, 3, 6), 2, 1),
]


@pytest.mark.parametrize(("shape", "labels", "axis", "taken"), FORMS)
def test_forms_of_class_numbers(shape: tuple[int, ...], labels: tuple[int, ...], axis: int | None, taken: int) -> None:
    """Without a warning: no two axes fit, or the one is meant."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        form = pw.Categorical(axis=axis).form(torch.zeros(shape), torch.zeros(labels, dtype=torch.long))
        assert form == Form(taken, shape[1:])
        again = pw.Categorical(axis=axis).form(torch.zeros(shape), torch.zeros(labels, dtype=torch.long), like=form)
    assert again == form and form.outputs == shape[taken + 1] and form.positions * form.outputs * 5 == math.prod(shape)


@pytest.mark.parametrize(
    ("shape", "axis", "taken"),
    [
        ((5, 3), None, 0),
        ((5, 4, 3), None, 1),
        ((5, 4, 3), 1, 0),
        ((5, 4, 3), -2, 0),
        ((5, 3, 4, 6), None, 0),
        ((5, 3, 4, 6), -1, 2),
        ((5, 3, 4, 6), 2, 1),
    ],
)
def test_forms_of_class_probabilities(shape: tuple[int, ...], axis: int | None, taken: int) -> None:
    """The last axis of rows and tokens, the first of images, or the one that is asked for."""
    assert pw.Categorical(axis=axis).form(torch.zeros(shape), torch.zeros(shape)) == Form(taken, shape[1:])


def test_the_axis_of_an_earlier_batch() -> None:
    """Is kept where it fits, and missed by its number where it does not."""
    square, labels = torch.zeros(5, 3, 3), torch.zeros(5, 3, dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for axis in (0, 1):
            assert pw.Categorical().form(square, labels, like=Form(axis, (3, 3))).axis == axis
        assert pw.Categorical(axis=1).form(square, labels, like=Form(1, (3, 3))).axis == 0
    for like in (None, Form(None, ())):
        with pytest.warns(UserWarning, match=r"\(5, 3, 3\) and labels \(5, 3\) fit.*on axis 2, which is taken") as said:
            assert pw.Categorical()._hard_form((5, 3, 3), labels, like).axis == 1
        assert [each.filename for each in said] == [__file__]
    other = r"\(5, 3, 4\) and labels \(5, 4\) have their classes on axis 1, those of an earlier batch on axis 2 as"
    with pytest.raises(ValueError, match=other):
        pw.Categorical().form(torch.zeros(5, 3, 4), torch.zeros(5, 4, dtype=torch.long), like=Form(1, (3, 3)))


@pytest.mark.parametrize(
    ("shape", "labels", "axis", "words"),
    [
        ((5, 3), (6,), None, r"outputs \(5, 3\) and labels \(6,\) do not fit"),
        ((5, 4, 3), (5, 4), 1, "do not fit"),
        ((5, 3, 3), (5, 3), 3, "do not fit"),
        ((5, 1), (5,), None, "one output"),
        ((5, 3, 1), (5, 3), None, "one output"),
        ((5, 1, 1), (5, 1), None, "one output"),
        ((5,), (5,), None, "expected logits"),
    ],
)
def test_labels_that_do_not_fit(shape: tuple[int, ...], labels: tuple[int, ...], axis: int | None, words: str) -> None:
    """By their own sentence, in a first batch and in a later one."""
    for like in (None, Form(0, (3,))):
        with pytest.raises(ValueError, match=words):
            pw.Categorical(axis=axis).form(torch.zeros(shape), torch.zeros(labels, dtype=torch.long), like)


@pytest.mark.parametrize("lead", [(2,), (2, 4)])
@pytest.mark.parametrize(
    ("form", "positions", "outputs"),
    [
        (Form(None, ()), 1, 1),
        (Form(0, (3,)), 1, 3),
        (Form(0, (3, 5)), 5, 3),
        (Form(1, (3, 5)), 3, 5),
        (Form(1, (3, 5, 2)), 6, 5),
        (Form(1, (3, 5), whole=True), 1, 15),
        (Form(None, (), whole=True), 1, 1),
    ],
)
def test_outputs_are_flattened_and_restored(form: Form, positions: int, outputs: int, lead: tuple[int, ...]) -> None:
    """Positions in their order, then classes, behind any leading axes."""
    assert (form.positions, form.outputs) == (positions, outputs)
    f = torch.arange(math.prod((*lead, *form.shape))).reshape(*lead, *form.shape)
    flat = form.flatten(f)
    assert flat.shape == (*lead, positions, outputs) and torch.equal(form.restore(flat), f)
    one = f.reshape(-1, *form.shape)[-1]
    rows = [one] if form.axis is None or form.whole else list(one.movedim(form.axis, -1).reshape(-1, outputs))
    assert torch.equal(flat.reshape(-1, positions, outputs)[-1], torch.stack([row.reshape(-1) for row in rows]))


def test_axes_of_classes() -> None:
    """Never the examples'; and one output is none, whatever the labels' shape."""
    assert fitting_axes((3, 3), torch.zeros(3)) == [1]
    assert fitting_axes((3, 3, 3), torch.zeros(3, 3)) == [1, 2]
    for labels in (torch.zeros(5, 1), torch.zeros(5)):
        with pytest.raises(ValueError, match="the network has one output"):
            pw.Categorical().form(torch.zeros(5, 1), labels.long())
