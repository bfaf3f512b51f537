"""Sweeps of prior precision and data count: every point is a posterior that is asked afresh."""

from __future__ import annotations

import math

import pytest
import torch

import peewit as pw
from environment import DEVICE
from evaluating import classifier, images, numbers, regression
from peewit.evaluation import Sweep, SweepPoint
from peewit.evaluation.sweeps import SweepOptions, bayesian


def sweep(**options: object) -> Sweep:
    return pw.sweep(classifier(), images(30, 6), **options)


@pytest.mark.parametrize("method", ["grid", "random", "bayesian"])
def test_sweeps_score_the_settings_they_say(method: str) -> None:
    """Each point is the posterior at that prior and temperature, asked afresh; the network stays as it was."""
    if method == "bayesian":
        pytest.importorskip("optuna")
    la, (x, y) = classifier(), images(30, 6)
    state = torch.get_rng_state()
    found = sweep(
        method=method,
        trials=9,
        data_weight=(4, 400),
        prior_precision=(0.5, 50),
        generator=torch.Generator().manual_seed(2),
    )
    assert torch.equal(torch.get_rng_state(), state)
    assert len(found.points) == 9 and found.examples == 40 and found.method == method
    for point in found.points[::3]:
        there = la.with_prior(point.prior_precision).with_temperature(40 / point.data_weight)
        probs = there.predict(x).probs
        assert point.temperature == pytest.approx(40 / point.data_weight)
        assert point.metrics["nll"] == pytest.approx(pw.metrics.nll(probs, y), rel=1e-6)
        assert point.metrics["nll"] == pytest.approx(pw.validation_nll(there, (x, y)), rel=1e-6)
        assert point.metrics["ece"] == pytest.approx(pw.metrics.ece(probs, y), rel=1e-5)
        assert 3.999 <= point.data_weight <= 400.001 and 0.499 <= point.prior_precision <= 50.001
    assert found.best.metrics["nll"] == min(point.metrics["nll"] for point in found.points)
    assert (
        sweep(
            method=method,
            trials=9,
            data_weight=(4, 400),
            prior_precision=(0.5, 50),
            generator=torch.Generator().manual_seed(2),
        )
        == found
    )
    assert Sweep.from_json(found.to_json()) == found and "best nll" in repr(found)


def test_sweeps_cover_their_ranges() -> None:
    found = sweep(trials=16, data_weight=(4, 400), prior_precision=(0.5, 50))
    assert sorted({round(point.data_weight, 6) for point in found.points}) == pytest.approx(
        [4, 18.566355, 86.177388, 400]
    )
    assert len({round(point.prior_precision, 6) for point in found.points}) == 4
    usual = sweep(trials=4)
    assert usual.data_weight == pytest.approx((0.04, 40000)) and usual.prior_precision == pytest.approx((0.005, 5000))
    best = sweep(metric="accuracy", method="random", trials=6)
    assert best.best.metrics["accuracy"] == max(point.metrics["accuracy"] for point in best.points)


def test_coverage_is_best_at_what_it_should_be() -> None:
    points = tuple(SweepPoint(1.0, 1.0, 1.0, {"coverage90": value}) for value in (0.2, 0.88, 1.0))
    made = Sweep(
        points=points,
        metric="coverage90",
        method="grid",
        examples=1,
        data_weight=(1.0, 2.0),
        prior_precision=(1.0, 2.0),
    )
    assert made.best == points[1]


def test_usual_ranges_are_around_the_posteriors_own() -> None:
    warm = classifier().with_temperature(4.0)
    assert pw.sweep(warm, images(10, 6), trials=4).data_weight == pytest.approx((0.01, 10000))


def test_sweeps_of_numbers_and_of_many_outputs() -> None:
    la, (x, y) = regression(), numbers(20, 1, 6)
    found = pw.sweep(la, (x, y), trials=4, metric="crps")
    for point in found.points:
        there = la.with_prior(point.prior_precision).with_temperature(point.temperature).predict(x)
        expected = pw.metrics.crps_gaussian(there.mean, there.variance.sqrt(), y).mean()
        assert point.metrics["crps"] == pytest.approx(float(expected), rel=1e-6)
    wide = torch.nn.Linear(3, 300).double()
    inputs, labels = torch.randn(4, 3).double(), torch.randint(300, (4,))
    many = pw.fit(wide.to(DEVICE), (inputs.to(DEVICE), labels.to(DEVICE)), "classification")
    made = pw.sweep(many, [(inputs.to(DEVICE), labels.to(DEVICE))], trials=4)
    expected = pw.validation_nll(
        many.with_prior(made.best.prior_precision).with_temperature(made.best.temperature),
        (inputs.to(DEVICE), labels.to(DEVICE)),
    )
    assert made.best.metrics["nll"] == pytest.approx(expected, rel=1e-6)


def test_bayesian_search_goes_where_the_metric_is_better() -> None:
    """Up for accuracy and down for the NLL, both of which are best at scale 3 and precision 3 here."""
    pytest.importorskip("optuna")

    def attempt(scale: float, precision: float) -> SweepPoint:
        far = math.log(scale / 3) ** 2 + math.log(precision / 3) ** 2
        return SweepPoint(scale, precision, 1.0, {"nll": far, "accuracy": -far})

    for metric in ("nll", "accuracy"):
        options = SweepOptions(data_weight=(1e-3, 1e3), prior_precision=(1e-3, 1e3), trials=40, metric=metric, seed=0)
        far = [point.metrics["nll"] for point in bayesian(attempt, options)]
        assert sum(far[20:]) < 0.8 * sum(far[:20]), metric


def test_optuna_stays_as_talkative_as_it_was() -> None:
    optuna = pytest.importorskip("optuna")
    before = optuna.logging.get_verbosity()
    sweep(method="bayesian", trials=2)
    assert optuna.logging.get_verbosity() == before
