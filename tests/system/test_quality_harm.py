"""The study of harm: what it measures of a network, and its tables."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn

import peewit as pw
from benchmarks.quality import harm
from benchmarks.quality.cases import Likelihood
from benchmarks.quality.harm import CLASSES, NUMBERS, Record
from quality_tables import table_of


@pytest.mark.parametrize("likelihood", ["classification", "regression"])
def test_what_is_measured(likelihood: Likelihood) -> None:
    """Harm and gain are differences of means that `validation_nll` gives too; all signals are finite."""
    parts, outputs = harm.split_of(table_of(likelihood), likelihood, 0)
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, outputs))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record = harm.measure(network, parts, likelihood)
        fitted = pw.fit(network, parts.train, likelihood)
        recipe = fitted.tune(train=parts.train)
        tuned = {"recipe": recipe, "validated": fitted.tune("validation", validation=parts.validation)}
    nll = {name: pw.validation_nll(la, parts.test) for name, la in tuned.items()}
    plain = float(harm.plain_nlls(network, parts, parts.test, likelihood).mean())
    assert record["harm"] == pytest.approx(nll["recipe"] - plain, abs=1e-5)
    assert record["gain"] == pytest.approx(nll["recipe"] - nll["validated"], abs=1e-5)
    assert record["error"] > 0 and all(math.isfinite(value) for value in record["signals"].values())
    with torch.no_grad():
        residual = (network(parts.train[0]) - parts.train[1]).square().mean().sqrt() if outputs == 1 else None
    if residual is not None:
        assert isinstance(recipe.likelihood, pw.Gaussian)
        ratio = float(recipe.likelihood.noise) / float(residual)
        assert record["signals"]["noise over residuals"] == pytest.approx(ratio, rel=1e-5)


def test_leaving_one_out_of_a_linear_regression() -> None:
    """The shortcut by leverages is what fitting to the others gives, where the noise is that of the posterior."""
    torch.manual_seed(0)
    x = torch.randn(12, 2, dtype=torch.float64)
    y = x @ torch.tensor([[1.0], [-1.0]], dtype=torch.float64) + 0.3 * torch.randn(12, 1, dtype=torch.float64)
    ridge = 0.3**2 * 0.5 * torch.eye(2, dtype=torch.float64)

    def fit(rows: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(x[rows].T @ x[rows] + ridge, x[rows].T @ y[rows])

    model = nn.Linear(2, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(fit(torch.arange(12)).T)
    la = pw.fit(model, (x, y), pw.Gaussian(0.3), structure="full", prior=0.5)
    parts = harm.Parts(train=(x, y), stop=(x, y), validation=(x, y), test=(x, y), unknown={}, shifted={})
    size = float((model(x) - y).detach().square().mean().sqrt())
    expected = []
    for left in range(12):
        others = torch.arange(12) != left
        mean = float(x[left] @ fit(others)[:, 0])
        covariance = torch.linalg.inv((x[others].T @ x[others]) / 0.3**2 + 0.5 * torch.eye(2, dtype=torch.float64))
        deviation = math.sqrt(float(x[left] @ covariance @ x[left]) + 0.3**2)
        target = y[left, 0]
        own = torch.distributions.Normal(mean, deviation).log_prob(target)
        expected.append(float(torch.distributions.Normal(mean, size).log_prob(target) - own))
    found = harm.signs_of_numbers(la, parts)["leave-one-out NLL less the network's"]
    assert found == pytest.approx(sum(expected) / 12, rel=1e-4)


def record_of(likelihood: Likelihood, harm_: float, signal: float, gain: float = 0.0, told: bool = False) -> Record:
    signals = {"one": signal, "noise over residuals": 3.0 if gain > harm.GAIN else 1.0}
    warned = ["The noise 1 exceeds"] if told else []
    return {
        "likelihood": likelihood,
        "harm": harm_,
        "error": 0.1,
        "gain": gain,
        "warned": warned,
        "signals": signals,
    }


def results_of(likelihood: Likelihood) -> dict[str, Record]:
    """Two runs that got worse and ten that improved on each half; on the one to choose on, the signal tells."""
    tasks = {"choose": "diabetes", "confirm": "boston"}
    found: dict[str, Record] = {}
    for half, task in tasks.items():
        for number in range(10):
            found[f"{task}/early/{number}"] = record_of(likelihood, -1.0, number, gain=0.5, told=number == 0)
        found[f"{task}/fixed/0"] = record_of(likelihood, 0.3, 20.0 if half == "choose" else -20.0)
        found[f"{task}/fixed/1"] = record_of(likelihood, 0.1, 8.5)
    return found


def test_sizes() -> None:
    rows = {row[1]: row for row in harm.size_table(results_of(NUMBERS)).rows}
    assert rows["choose"] == ("numbers", "choose", "12", "2", "1", "0.300", "-0.800", "0", "10", "1", "10")
    assert rows["all"][2:5] == ("24", "4", "2")


@pytest.mark.parametrize("likelihood", [CLASSES, NUMBERS])
def test_signals(likelihood: Likelihood) -> None:
    """Direction and limit come from the half to choose on; the other half says what they are worth."""
    table = harm.signal_table(results_of(likelihood), likelihood, "Signals")
    (row,) = [row for row in table.rows if row[0] == "one"]
    # the limit is 8: one of ten improved runs is beyond
    assert row[1:4] == ("high", "0.95", "0.45")
    assert row[4:7] == ("2 of 2 (100%)", "1 of 2 (25%)", "10.0%")
    (row,) = [row for row in table.rows if row[0] == "noise over residuals"]
    assert row[-1] == "1.00" and row[1] == "low"
    assert table.rows[-1][0] == harm.ALL and table.rows[-1][2] == "1.00"


def test_nothing_measured() -> None:
    assert all(not table.rows for table in harm.harm_tables({}))
