"""A script as a user writes it, on the common public calls.

tests/system/test_distribution.py runs it beside the installed wheel, and has `mypy --strict` check it there. It imports
nothing of the tests, so that it runs wherever the package is installed. `assert_type` fails in mypy where a call has
lost its type.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
from typing_extensions import assert_type  # torch requires this package; Python's own function came with 3.11

import peewit as pw
from peewit.evaluation import Report
from peewit.metrics import Estimate, ece


def data(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points (N, 2), and the stripe (N,) that each lies in."""
    x = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0] > 0).long() + (x[:, 0] > 1).long()


def trained(x: Tensor, y: Tensor) -> nn.Sequential:
    """A small classifier."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(100):
        optimiser.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(model(x), y))
        optimiser.step()
    return model


class Columns:
    """A frame as pandas and polars have them, to a type checker: these packages are not installed everywhere."""

    def __init__(self, numbers: numpy.ndarray[Any, Any]) -> None:
        self.numbers, self.shape = numbers, numbers.shape

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> numpy.ndarray[Any, Any]:
        return self.numbers


class Examples(Dataset[tuple[Tensor, Tensor]]):
    """A Dataset of single examples."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        return self.x[number], self.y[number]


def batches(x: Tensor, y: Tensor) -> Iterator[dict[str, Tensor]]:
    """Batches as those of a tokenizer."""
    for rows in (slice(0, 30), slice(30, 60)):
        yield {"input": x[rows], "labels": y[rows]}


def forms_of_data() -> None:
    """All that data and inputs can be."""
    x, y = data(60, seed=1)
    model = trained(x, y)
    arrays = x.numpy(), y.numpy()
    la = pw.fit(model, arrays, "classification")
    for again in (
        pw.fit(model, Examples(x, y), "classification"),
        pw.fit(model, (Columns(x.numpy()), Columns(y.numpy())), "classification"),
        pw.fit(model, (x.tolist(), y.tolist()), "classification"),
        pw.fit(model, [(x[:30], y[:30]), (x[30:], y[30:])], "classification"),
        pw.fit(model, batches(x, y), "classification"),
        la.tune(validation=arrays),
        la.tune(train=Examples(x, y)),
        la.tune(train=(x.tolist(), y.tolist())),
        la.update((Columns(x.numpy()), y)),
    ):
        assert_type(again, pw.Laplace)
    for test in (arrays, Examples(x, y), (x.tolist(), y.tolist())):
        assert_type(pw.evaluate(la, test, ood={"far": 10 * x.numpy()}, intervals=0), Report)
    probs = la.predict(x).probs
    for answer in (
        la.predict(x.numpy()),
        la.predict(Columns(x.numpy())),
        la.predict(x.tolist()),
        la.predict(DataLoader(Examples(x, y), batch_size=20)),
        la.predict(Examples(x, y)),
        la.predict([{"input": x}]),
        la.predict(input=x.numpy()),
        la.predictor(x[:1].numpy())(x.numpy()),
    ):
        assert torch.allclose(answer.probs, probs, atol=1e-5)
    assert_type(la.functional(x.numpy()).mean, Tensor)
    assert_type(la.functional_samples(Examples(x, y), 3), Tensor)


def predictions_without_isinstance() -> None:
    """What some class of predictions has can be asked of any prediction."""
    x, y = data(60, seed=1)
    classes = pw.fit(trained(x, y), (x, y), "classification").predict(x)
    for each in (classes.probs, classes.argmax, classes.mode, classes.entropy, classes.epistemic, classes.aleatoric):
        assert_type(each, Tensor)
    assert_type(classes.log_prob(y), Tensor)
    assert classes.interval(0.9).shape == (60, 3)
    numbers = pw.fit(nn.Linear(2, 1), (x, x[:, :1]), "regression").predict(x, joint=True)
    for each in (numbers.mean, numbers.std, numbers.variance, numbers.epistemic, numbers.aleatoric):
        assert_type(each, Tensor)
    lower, upper = numbers.interval()
    assert bool((lower < numbers.mean).all() and (numbers.mean < upper).all())
    assert_type(numbers.joint_log_prob(x[:, :1]), Tensor)


def classify() -> None:
    """Fit, tune, predict, save, load, evaluate."""
    x, y = data(60, seed=1)
    model = trained(x, y)
    la = pw.fit(model, DataLoader(TensorDataset(x, y), batch_size=20), "classification", structure="kron")
    assert_type(la, pw.Laplace)
    la = assert_type(la.tune(), pw.Laplace)
    la = assert_type(la.tune("validation", validation=data(30, seed=2)), pw.Laplace)
    assert_type(la.trace, pw.Trace | None)
    assert_type(la.D, int)
    assert_type(la.prior, pw.Prior)
    assert_type(la.sample(4), Tensor)
    assert_type(la.evidence(), pw.Evidence)
    assert_type(la.log_evidence(prior=pw.Prior.scalar(10.0)), Tensor)
    print(assert_type(la.coverage(), pw.Coverage))

    pred = assert_type(la.predict(x[:5], link="probit"), pw.Prediction)
    assert isinstance(pred, pw.Classes)  # so that type checkers know this class
    probs = assert_type(pred.probs, Tensor)
    assert_type(pred.epistemic, Tensor)
    assert_type(pred.interval(0.9), Tensor)
    assert_type(pred.sample(samples=3), Tensor)
    assert_type(pred.log_prob(y[:5]), Tensor)
    assert_type(ece(probs, y[:5]), float)
    assert probs.shape == (5, 3)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "posterior.safetensors"
        la.save(path)
        again = assert_type(pw.load(path, model), pw.Laplace)
    assert torch.equal(assert_type(again.log_evidence(), Tensor), la.log_evidence())

    report = assert_type(pw.evaluate(la, data(60, seed=3), intervals=0), Report)
    print(assert_type(report.methods[0].metrics["accuracy"], Estimate))


def regress() -> None:
    """Likelihood, structure, curvature and prior as values; and products with the curvature."""
    x = torch.linspace(-1, 1, 30)[:, None]
    y = x.sin()
    model = nn.Linear(1, 1)
    prior = assert_type(pw.Prior.layerwise([1.0, 2.0]), pw.Prior)
    la = pw.fit(model, (x, y), pw.Gaussian(noise=0.1), structure=pw.Full(), curvature=pw.GGN(), prior=prior)
    pred = la.predict(x, memory=1e9)
    assert isinstance(pred, pw.Regression)
    mean, (lower, upper) = assert_type(pred.mean, Tensor), assert_type(pred.interval(), tuple[Tensor, Tensor])
    assert_type(la.functional(x, variance_only=True), pw.Functional)
    assert_type(la.functional_samples(x, 3, torch.Generator().manual_seed(0), at="trained_weights"), Tensor)
    assert_type(pw.validation_nll(la, [(x, y)], link="exact"), float)
    assert_type(la.update(DataLoader(TensorDataset(x, y), batch_size=10)).N, int)
    moved = assert_type(la.at_linear_mode((x, y)), pw.Laplace)
    assert_type(moved.linear_mode, pw.LinearMode | None)
    la = assert_type(la.tune(parameters=["prior"], start=2.0).with_noise(0.2).with_temperature(0.9), pw.Laplace)
    assert_type(la.with_prior(3.0).with_arithmetic("float64").to("cpu"), pw.Laplace)
    product = assert_type(pw.products(model, (x, y), "regression", memory=1e9).mv(torch.ones(la.D)), Tensor)
    assert mean.shape == lower.shape == upper.shape == y.shape and product.shape == (la.D,)


if __name__ == "__main__":
    classify()
    forms_of_data()
    predictions_without_isinstance()
    regress()
    print("peewit", assert_type(pw.__version__, str))
