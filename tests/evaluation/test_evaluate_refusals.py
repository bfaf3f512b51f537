"""Evaluations that cannot be made: one clear error each, and the network is as it was."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import peewit as pw
from environment import DEVICE
from evaluating import classifier, images, network, numbers, regression, regressor
from fitting import built, normal
from snapshots import changed, snapshot

V, T = ValueError, TypeError


def ask(test: Any = None, **options: Any) -> Any:
    """The posterior of classes, quickly."""
    return pw.evaluate(classifier(), images(10, 5) if test is None else test, **{"intervals": 0, **options})


def sweep(**options: Any) -> Any:
    return pw.sweep(classifier(), options.pop("validation", images(10, 5)), trials=4, **options)


def plain(model: Any, test: Any, likelihood: Any = "classification", **options: Any) -> Any:
    return pw.evaluate(model, test, likelihood=likelihood, intervals=0, **options)


def x() -> torch.Tensor:
    return images(10, 5)[0]


def y() -> torch.Tensor:
    return images(10, 5)[1]


def infinite() -> nn.Module:
    model = network()
    with torch.no_grad():
        model[-1].bias.fill_(math.inf)
    return model


def one_label(labels: Any) -> Any:
    return torch.as_tensor(labels, device=DEVICE)


class Unsaid:
    """A likelihood that does not say how targets are distributed."""

    @staticmethod
    def fitted() -> pw.Laplace:
        def energy(f: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return 0.5 * (f - targets).square().flatten(1).sum(1)

        return pw.fit(regressor(), numbers(), pw.Custom(energy))


TABLE: dict[str, tuple[Callable[[], Any], type[Exception], tuple[str, ...]]] = {
    "no posterior": (lambda: pw.evaluate(3, images()), T, ("given a int", "Laplace", "torch.nn.Module")),
    "no likelihood": (lambda: pw.evaluate(network(), images()), V, ("without its likelihood", "'classification'")),
    "two likelihoods": (lambda: ask(likelihood="classification"), V, ("has its own", "leave it out")),
    "unknown likelihood": (lambda: plain(network(), images(), "classes"), V, ("likelihood='classes'", "Known:")),
    "changed network": (lambda: pw.evaluate(trained_on(), images()), V, ("no longer those", "fit again")),
    "options of a network": (
        lambda: plain(network(), images(), predict={"link": "mc"}),
        V,
        ("predict=", "plain network"),
    ),
    "predict": (lambda: ask(predict="mc"), T, ("predict is a str", "dict")),
    "unknown link": (lambda: ask(predict={"link": "prob"}), V, ("link='prob'", "did you mean 'probit'")),
    "option": (lambda: ask(shift="noise"), T, ("no option 'shift'", "did you mean 'shifts'")),
    "no labels": (lambda: ask(x()), T, ("data is one tensor", "expected (inputs, targets)")),
    "no labels in batches": (lambda: ask(DataLoader(TensorDataset(x()))), T, ("A batch is a list of 1", "(x, y)")),
    "empty": (lambda: ask((x()[:0], y()[:0])), V, ("test", "no examples")),
    "empty loader": (lambda: ask([]), V, ("test", "no examples")),
    "used up": (lambda: ask(iter(())), V, ("test", "no examples", "used up")),
    "all ignored": (lambda: ask((x(), torch.full_like(y(), -100))), V, ("no position has a label",)),
    "class count": (lambda: ask((x(), y() + 2)), V, ("outside 0..2", "3 outputs")),
    "labels between two classes": (lambda: ask((x(), y() + 0.5)), T, ("dtype torch.float32", "class numbers")),
    "soft labels": (
        lambda: ask((x(), torch.full((10, 3), 1 / 3, dtype=torch.float64, device=DEVICE))),
        T,
        ("class probabilities", "expected class numbers"),
    ),
    "soft yes or no": (
        lambda: plain(built(nn.Linear(2, 1)).to(DEVICE), (normal(4, 2).to(DEVICE), one_label([[0.5]] * 4)), "binary"),
        V,
        ("between 0 and 1", "expected 0 or 1"),
    ),
    "label shape": (lambda: ask((x(), y()[:, None].repeat(1, 2))), V, ("(10, 3)", "(10, 2)")),
    "lengths": (lambda: ask((x(), y()[:4])), V, ("10 inputs", "(4,)")),
    "words": (lambda: ask((x(), ["a"] * 10)), T, ("holds words", "pandas.factorize")),
    "one logit": (lambda: plain(regressor(), (numbers()[0], y().repeat(4))), V, ("one output", "binary")),
    "targets of numbers": (
        lambda: pw.evaluate(regression(), (numbers()[0], numbers()[1].repeat(1, 2))),
        V,
        ("(40, 1)", "nothing is broadcast"),
    ),
    "noise unknown": (lambda: plain(regressor(), numbers(), pw.Gaussian(noise="residuals")), V, ("no value before",)),
    "no distribution": (lambda: pw.evaluate(Unsaid.fitted(), numbers()), V, ("Custom", "how targets are distributed")),
    "infinite outputs": (lambda: plain(infinite(), images()), V, ("NaN or Inf", "finite")),
    "intervals": (lambda: ask(intervals=-1), V, ("intervals=-1", "1000")),
    "intervals as text": (lambda: ask(intervals="many"), V, ("intervals='many'",)),
    "seed": (lambda: ask(seed=3), T, ("no option 'seed'", "did you mean 'generator'")),
    "generator": (lambda: ask(generator=3), T, ("generator is a int", "torch.Generator")),
    "shift examples": (lambda: ask(shift_examples=0), V, ("shift_examples=0", "or None")),
    "unknown shift": (
        lambda: ask(shifts="blurr"),
        V,
        ("'blurr'", "did you mean 'blur'", "noise, blur", "(x, strength)"),
    ),
    "unknown shift by name": (lambda: ask(shifts={"fog": (1, 2)}), V, ("'fog'", "Known:")),
    "shift of another kind": (lambda: ask(shifts=3), T, ("shifts is a int", "noise")),
    "shift without a name": (lambda: ask(shifts=[3]), T, ("3 is a int", "a name")),
    "strengths": (lambda: ask(shifts={"noise": "strong"}), V, ("'strong'", "positive numbers")),
    "negative strength": (lambda: ask(shifts={"noise": (-1, 2)}), V, ("(-1, 2)", "positive numbers")),
    "strength nought": (lambda: ask(shifts={"noise": 0}), V, ("no strength above 0",)),
    "strength of ready data": (lambda: ask(shifts={"a": {"hard": images()}}), V, ("positive numbers",)),
    "ready data without labels": (lambda: ask(shifts={"a": {1: x()}}), T, ("expected (inputs, targets)",)),
    "ready data empty": (lambda: ask(shifts={"a": {1: []}}), V, ("'a' at strength 1", "has no examples")),
    "no images": (
        lambda: pw.evaluate(regression(), numbers(), shifts="rotation"),
        V,
        ("'rotation'", "(N, channels, rows, columns)", "(40, 2)", "your own"),
    ),
    "whole numbers": (
        lambda: plain(
            Bytes(), (torch.zeros(3, 2, dtype=torch.uint8, device=DEVICE), one_label([0, 1, 0])), shifts="noise"
        ),
        T,
        ("floating point inputs", "torch.uint8"),
    ),
    "several inputs": (
        lambda: plain(Two(), ((normal(3, 2).to(DEVICE),) * 2, one_label([0, 1, 0])), attacks="fgsm"),
        T,
        ("attacks: 'fgsm'", "one tensor", "a tuple"),
    ),
    "a function that loses inputs": (
        lambda: ask(shifts={"cut": lambda inputs, strength: inputs[:3]}),
        V,
        ("'cut'", "returned 3 inputs for 10"),
    ),
    "unknown attack": (lambda: ask(attacks="fgms"), V, ("'fgms'", "did you mean 'fgsm'", "(model, x, y, epsilon)")),
    "unknown baseline": (lambda: ask(baselines="map"), V, ("'map'", "auto, plain, temperature, ensemble, dropout")),
    "baselines of another kind": (lambda: ask(baselines=3), T, ("baselines is a int", "'auto'")),
    "no validation": (lambda: ask(baselines=["temperature"]), V, ("'temperature'", "needs validation=")),
    "no ensemble": (lambda: ask(baselines="ensemble"), V, ("needs ensemble=",)),
    "no dropout": (lambda: plain(network(), images(), baselines="dropout"), V, ("dropout layers", "has none")),
    "no temperature": (
        lambda: counts(baselines="temperature"),
        V,
        ("not known for Poisson", "leave 'temperature' out"),
    ),
    "validation ignored": (lambda: ask(validation=(x(), torch.full_like(y(), -100))), V, ("validation", "labelled")),
    "one in an ensemble": (lambda: ask(ensemble=[network()]), V, ("1 networks", "two or more")),
    "a network as ensemble": (lambda: ask(ensemble=network()), T, ("ensemble is a Sequential", "a list")),
    "no networks": (lambda: ask(ensemble=[1, 2]), T, ("ensemble[0] is a int",)),
    "other classes": (
        lambda: ask(ensemble=[network(), nn.Sequential(nn.Flatten(), nn.Linear(36, 5)).double().to(DEVICE)]),
        V,
        ("Deep ensemble", "(10, 3) and (10, 5)"),
    ),
    "an ensemble of other classes": (
        lambda: ask(ensemble=[five(), five()]),
        V,
        ("Deep ensemble", "expected 3 outputs"),
    ),
    "elsewhere": (lambda: ask(ensemble=[network(), network().to("meta")]), V, ("meta",)),
    "names of classes": (lambda: ask(classes=["a", "b"]), V, ("2 names", "3 classes")),
    "one text of classes": (lambda: ask(classes="abc"), T, ("classes='abc'", "one name per class")),
    "classes of numbers": (lambda: pw.evaluate(regression(), numbers(), classes=["a"]), V, ("has no classes",)),
    "ood empty": (lambda: ask(ood={"a": x()[:0]}), V, ("ood: 'a'", "no examples")),
    "ood named test": (lambda: ask(ood={"test": x()}), V, ("'test'", "other than 'test'")),
    "ood triple": (lambda: ask(ood=[(x(), y(), y())]), T, ("a tuple of 3", "(inputs, labels)")),
    "ood text": (lambda: ask(ood={"a": "svhn"}), T, ("the text 'svhn'",)),
    "sweep of a network": (lambda: pw.sweep(network(), images()), T, ("expected a Laplace",)),
    "sweep method": (lambda: sweep(method="bayes"), V, ("method='bayes'", "did you mean 'bayesian'")),
    "sweep metric": (lambda: sweep(metric="loss"), V, ("metric='loss'", "accuracy, nll")),
    "sweep metric of another kind": (lambda: sweep(metric=3), T, ("metric is a int",)),
    "sweep range": (lambda: sweep(data_weight=(10, 1)), V, ("data_weight=(10, 1)", "lower number first")),
    "sweep negative": (lambda: sweep(prior_precision=(-1, 1)), V, ("prior_precision=(-1, 1)", "two positive numbers")),
    "sweep number": (lambda: sweep(prior_precision=3), V, ("prior_precision=3",)),
    "sweep trials": (
        lambda: pw.sweep(classifier(), images(), trials=3),
        V,
        ("trials=3", "4 or more"),
    ),
    "sweep generator": (lambda: sweep(generator=1.5), T, ("generator is a float",)),
    "sweep without data": (lambda: sweep(validation=[]), V, ("validation data has no examples",)),
    "sweep once": (lambda: sweep(validation=iter([images()])), V, ("one-shot iterator",)),
}


class Bytes(nn.Module):
    """Takes whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2).to(DEVICE)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.inner(inputs.float())


class Two(nn.Module):
    """Takes two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2).double().to(DEVICE)

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return self.inner(first + second)


def five() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 5)).double().to(DEVICE)


def trained_on() -> pw.Laplace:
    model = network()
    la = pw.fit(model, images(), "classification")
    with torch.no_grad():
        model[0].weight.add_(1.0)
    return la


def counts(**options: Any) -> Any:
    inputs = numbers()[0]
    targets = torch.ones(40, 1, dtype=torch.float64, device=DEVICE)
    return plain(regressor(), (inputs, targets), "count", validation=(inputs, targets), **options)


@pytest.mark.parametrize("name", TABLE)
def test_a_clear_error_and_nothing_lost(name: str) -> None:
    provoke, error, says = TABLE[name]
    model = classifier().model
    before = snapshot(model)
    with pytest.raises(error) as caught:
        provoke()
    message = str(caught.value)
    assert [part for part in says if part not in message] == [], message
    assert not isinstance(caught.value, AssertionError | NotImplementedError)
    after = changed(model, before)
    assert [each for each in after if each != "random"] == []  # the table itself makes networks


def test_optuna_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(ImportError, match="pip install optuna"):
        pw.sweep(classifier(), images(), method="bayesian", trials=4)
