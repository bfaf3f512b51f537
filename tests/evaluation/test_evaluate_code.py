"""What a report says about its making: the posterior in words, names of columns, and code that makes it again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import peewit as pw
from environment import DEVICE
from evaluating import C, images, network, numbers, regressor, timeless
from fitting import built, classes, normal
from peewit.posterior.schema import Schema

# Small data: tuning may end where the weights are certain.
pytestmark = pytest.mark.filterwarnings("ignore::peewit.TuningWarning")


def again(report: Any, **data: Any) -> Any:
    """The report that its own code makes; the page is not written."""
    lines = [line for line in report.code.splitlines() if not line.startswith("report.to_html")]
    space = dict(data)
    exec("\n".join(lines), space)
    return space["report"]


def test_the_code_makes_the_report_again() -> None:
    model, train, test, held = network(0.3), images(), images(30, 5), images(20, 9)
    la = pw.fit(model, train, "classification", weights=["5.weight", "5.bias"], structure="full")
    made = pw.evaluate(
        la.tune(validation=held),
        test,
        validation=held,
        ood={"Ankle boot": test[0] + 1, "2nd": test[0] / 2},
        shifts={"noise": [1, 2]},
        attacks=["fgsm"],
        classes=["a", 'b"', "c"],
        intervals=20,
        generator=torch.Generator().manual_seed(7),
        shift_examples=10,
        baselines=["plain", "dropout"],
        predict={"link": "bridge"},
        title='The "best" one',
    )
    data = {"ankle_boot": test[0] + 1, "data_2nd": test[0] / 2, "validation": held}
    found = again(made, model=model, train=train, test=test, **data)
    assert timeless(found).to_json() == timeless(made).to_json()
    assert 'weights=["5.weight", "5.bias"], structure="full"' in made.code
    assert "la.tune(validation=validation)" in made.code and 'title="The \\"best\\" one"' in made.code


@pytest.mark.parametrize(
    "fit, tune",
    [
        ({"structure": "diag", "prior": 3.0}, None),
        ({"curvature": "empirical", "prior": pw.Prior.layerwise(2.0)}, None),
        ({"prior": pw.Prior.layerwise()}, {}),
        ({}, {"train": True}),
        ({"at": "linear_mode"}, None),
    ],
)
def test_the_code_of_posteriors_of_numbers(fit: dict[str, Any], tune: dict[str, bool] | None) -> None:
    model, train, test = regressor(), numbers(), numbers(20, 1, 4)
    la = pw.fit(model, train, "regression" if tune is not None else pw.Gaussian(0.4), **fit)
    if tune is not None:
        la = la.tune(**({"train": train} if tune else {}))
    made = pw.evaluate(la, test, intervals=0)
    assert timeless(again(made, model=model, train=train, test=test)).to_json() == timeless(made).to_json()


def test_the_code_of_a_network_alone() -> None:
    model, test = network(), images(20, 5)
    made = pw.evaluate(model, test, likelihood="classification", intervals=5)
    assert timeless(again(made, model=model, test=test)).to_json() == timeless(made).to_json()


def test_the_posterior_in_words() -> None:
    model, train = network(), images()
    every = pw.fit(model, train, "classification").tune()
    last = pw.fit(model, train, "classification", weights="last_layer", structure="diag")
    some = pw.fit(model, train, "classification", weights=["0.weight", "1.weight", "5.bias"])
    total = sum(weight.numel() for weight in model.parameters())
    for la, parts in (
        (every, (f"over all {total} weights, fitted to 40 training examples", "KFAC", "by the evidence alone")),
        (last, (f"the {27 * C + C} weights of the last layer (5)", "one variance per weight", "was not tuned")),
        (some, (f"over {27 + 3 + C} of {total} weights",)),
        (last.tune(validation=images(20, 9)), ("tuned on validation data, la.tune(validation=...)",)),
    ):
        words = pw.evaluate(la, images(10, 5), intervals=0, baselines=()).methods[0].description
        assert all(part in words for part in parts), words


def table() -> tuple[pw.Laplace, Any]:
    x, y = normal(30, 3).to(DEVICE), classes(2, 30).to(DEVICE)
    return pw.fit(built(nn.Linear(3, 2)).to(DEVICE), (x, y), "classification"), (x, y)


def names(report: Any) -> list[str]:
    return [feature.name for feature in report.surest[0].features]


def test_names_of_columns() -> None:
    la, data = table()
    assert names(pw.evaluate(la, data, intervals=0)) == ["column 0", "column 1", "column 2"]
    assert names(pw.evaluate(la, data, intervals=0, columns=("a", "b", "c"))) == ["a", "b", "c"]
    schema = Schema(columns=("p", "q", "t", "r"), targets=("t",), header=True)
    fitted = pw.Laplace(replace(la.state, schema=schema))
    assert names(pw.evaluate(fitted, data, intervals=0)) == ["p", "q", "r"]
    assert names(pw.evaluate(fitted, data, intervals=0, columns=["a", "b", "c"])) == ["a", "b", "c"]


def test_names_of_columns_that_do_not_fit() -> None:
    la, data = table()
    with pytest.raises(ValueError, match="columns has 2 names, and inputs have 3 columns"):
        pw.evaluate(la, data, columns=["a", "b"])
    with pytest.raises(TypeError, match="expected one name per column"):
        pw.evaluate(la, data, columns="abc")
    with pytest.raises(ValueError, match="not rows of a table"):
        pw.evaluate(pw.fit(network(), images(), "classification"), images(), columns=["a"])


def test_of_many_columns_the_unusual_ones_are_kept() -> None:
    x, y = normal(30, 50).to(DEVICE), classes(2, 30).to(DEVICE)
    x[:, 4] = 1.0  # a column of one value is nowhere unusual
    la = pw.fit(built(nn.Linear(50, 2)).to(DEVICE), (x, y), "classification")
    one = pw.evaluate(la, [(x[:7], y[:7]), (x[7:], y[7:])], intervals=0).least_sure[0]
    z = ((x[one.index] - x.mean(0)) / x.std(0, correction=0).clamp(min=1e-300)).cpu()
    z[4] = 0.0
    expected = sorted(z.abs().argsort(descending=True)[:30].tolist())
    assert [feature.name for feature in one.features] == [f"column {number}" for number in expected]
    assert [feature.deviations for feature in one.features] == pytest.approx(z[expected].tolist(), rel=1e-4)
