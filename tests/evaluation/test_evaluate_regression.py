"""Evaluations of numbers against scipy, intervals of predictions, and draws."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from evaluating import numbers, regression, regressor
from fitting import built, normal
from peewit.metrics import auroc, crps_gaussian

scipy_stats = pytest.importorskip("scipy.stats")
optimize = pytest.importorskip("scipy.optimize")


def values(scores: Any) -> dict[str, float]:
    return {name: each.value for name, each in scores.metrics.items()}


def gaussian(mean: Tensor, deviation: Tensor, y: Tensor) -> dict[str, float]:
    """All metrics of Gaussian predictions, by scipy."""
    m, s, t = (each.detach().double().cpu().flatten().numpy() for each in (mean, deviation, y))
    law = scipy_stats.norm(m, s)
    rows = (m.reshape(len(y), -1), t.reshape(len(y), -1))
    made = {
        "rmse": math.sqrt(((m - t) ** 2).mean()),
        "r2": 1 - ((rows[0] - rows[1]) ** 2).sum() / ((rows[1] - rows[1].mean(0)) ** 2).sum(),
        "nll": -law.logpdf(t).mean() * mean[0].numel(),
        "crps": float(crps_gaussian(mean, deviation, y).mean()),
        "sharpness": s.mean(),
        "pit_deviation": scipy_stats.kstest(law.cdf(t), "uniform").statistic,
    }
    for level in (0.5, 0.9, 0.95):
        low, high = law.interval(level)
        made[f"coverage{round(100 * level)}"] = ((low <= t) & (t <= high)).mean()
    return made


@pytest.mark.parametrize("outputs", [1, 2])
def test_gaussian_predictions_have_the_metrics_of_scipy(outputs: int) -> None:
    la, (x, y), held = regression(outputs), numbers(50, outputs, 4), numbers(30, outputs, 8)
    members = [regressor(outputs), regressor(outputs)]
    found = pw.evaluate(la, (x, y), validation=held, ensemble=members, intervals=25, ood=5 * x)
    assert found.task == "regression" and found.methods[0].reliability is None
    prediction = la.predict(x)
    own = gaussian(prediction.mean, prediction.variance.sqrt(), y)
    own["nll"] = -float(prediction.log_prob(y).mean())  # outputs of one place together
    with torch.no_grad():
        mean, held_mean = la.model(x), la.model(held[0])

    def loss(noise: float) -> float:
        return float(-torch.distributions.Normal(held_mean, noise).log_prob(held[1]).mean())

    best = optimize.minimize_scalar(loss, bounds=(0.01, 20), method="bounded", options={"xatol": 1e-10}).x
    wanted = {"Laplace": own, "Plain network": gaussian(mean, torch.full_like(mean, best), y)}
    assert [each.name for each in found.methods] == ["Laplace", "Plain network", "Deep ensemble"]
    for name, each in wanted.items():
        got = values(found[name])
        area = got.pop("aurc")
        assert got == pytest.approx(each, rel=1e-5), name
        assert area == pytest.approx(sum(found[name].risk_coverage.y) / 50 if outputs == 1 else area)
        assert sum(found[name].pit) == pytest.approx(1) and len(found[name].pit) == 20
        assert all(e.low <= e.value <= e.high for e in found[name].metrics.values())
    law = found.methods[0].detection["ood"]
    far = la.predict(5 * x)
    assert law["epistemic_variance"].auroc.value == pytest.approx(
        auroc(prediction.epistemic.mean(-1), far.epistemic.mean(-1))
    )
    assert law["variance"].auroc.value == pytest.approx(auroc(prediction.variance.mean(-1), far.variance.mean(-1)))
    assert set(found["Plain network"].detection["ood"]) == {"variance"}


@pytest.mark.parametrize("noise", [0.7, torch.tensor([0.2, 1.8])])
def test_the_noise_of_the_plain_network_is_that_of_its_residuals(noise: Any) -> None:
    """Whatever noise was tuned for the posterior; of several outputs their common factor."""
    (train, targets), (x, y), held = numbers(40, 2), numbers(30, 2, 4), numbers(20, 2, 8)
    la = pw.fit(regressor(2), (train, targets), pw.Gaussian(noise), prior=5.0)
    ratios = noise / noise.log().mean().exp() if isinstance(noise, Tensor) else torch.ones(2)

    def expected(data: Tensor, wanted: Tensor) -> dict[str, float]:
        with torch.no_grad():
            residual = (la.model(data) - wanted).cpu() / ratios
            mean = la.model(x)
        deviation = residual.square().mean().sqrt() * ratios
        return gaussian(mean, deviation.expand(mean.shape), y)

    without = pw.evaluate(la.with_noise(9.0), (x, y), intervals=0)
    within = pw.evaluate(la, (x, y), validation=iter([held]), baselines=["plain", "temperature"], intervals=0)
    for scores, wanted, data in (
        (without["Plain network"], expected(train, targets), "training"),
        (within["Plain network"], expected(*held), "validation"),
    ):
        got = values(scores)
        assert {name: got[name] for name in wanted} == pytest.approx(wanted, rel=1e-5)
        assert f"residuals on the {data} data" in scores.description
    assert values(within["Temperature scaling"]) == pytest.approx(values(within["Plain network"]), rel=1e-9)


def test_a_network_alone_keeps_the_noise_that_it_was_given() -> None:
    model, (x, y) = regressor(), numbers(30, 1, 4)
    found = pw.evaluate(model, (x, y), likelihood=pw.Gaussian(0.5), validation=numbers(20, 1, 8), intervals=0)
    with torch.no_grad():
        assert values(found.methods[0])["nll"] == pytest.approx(
            -float(torch.distributions.Normal(model(x), 0.5).log_prob(y).mean())
        )
    assert [each.name for each in found.methods] == ["Plain network", "Temperature scaling"]


@pytest.mark.parametrize("outputs", [1, 2])
def test_the_best_constant_is_the_mean_and_deviation_of_the_targets(outputs: int) -> None:
    la, (x, y) = regression(outputs), numbers(50, outputs, 4)
    found = pw.evaluate(la, (x, y), intervals=20).constant
    mean, deviation = y.mean(0), y.std(0, correction=0)
    nll = -torch.distributions.Normal(mean, deviation).log_prob(y).sum(-1).mean()
    assert found.keys() == {"rmse", "nll"}
    assert found["rmse"].value == pytest.approx(float((y - mean).square().mean().sqrt()))
    assert found["nll"].value == pytest.approx(float(nll))
    assert found["rmse"].low < found["rmse"].value < found["rmse"].high


def test_numbers_that_are_sure_and_wrong_are_many_deviations_off() -> None:
    la, (x, y) = regression(), numbers(40, 1, 4)
    found = pw.evaluate(la, [(x[:25], y[:25]), (x[25:], y[25:])], ood=5 * x, intervals=0, columns=["size", "age"])
    prediction, far = la.predict(x), la.predict(5 * x)
    off = ((prediction.mean - y).square() / prediction.variance)[:, 0]
    assert [each.index for each in found.sure_wrong] == off.argsort(descending=True).tolist()[:8]
    unknown = found.unknown_surest["ood"]
    assert [each.index for each in unknown] == far.variance[:, 0].argsort().tolist()[:8]
    one = unknown[0]
    assert one.label is None and one.predicted == pytest.approx(float(far.mean[one.index]))
    assert one.uncertainty == pytest.approx(float(far.variance[one.index].sqrt()))
    for each, inputs in ((found.sure_wrong[0], x), (found.surest[0], x), (one, 5 * x)):
        row = inputs[each.index]
        z = (row - x.mean(0)) / x.std(0, correction=0)
        assert [feature.name for feature in each.features] == ["size", "age"]
        assert [feature.value for feature in each.features] == pytest.approx(row.tolist(), rel=1e-5)
        assert [feature.deviations for feature in each.features] == pytest.approx(z.tolist(), rel=1e-4, abs=1e-5)


def test_coverage_is_that_of_the_predictions_own_intervals() -> None:
    la, (x, y) = regression(), numbers(60, 1, 4)
    found = values(pw.evaluate(la, (x, y), intervals=0, baselines=()).methods[0])
    for level in (0.5, 0.9, 0.95):
        low, high = la.predict(x).interval(level)
        assert found[f"coverage{round(100 * level)}"] == float(((low <= y) & (y <= high)).double().mean())


def test_ensembles_of_numbers_are_mixtures() -> None:
    members, (x, y) = [regressor(2), regressor(2), regressor(2)], numbers(30, 2, 4)
    found = pw.evaluate(members[0], (x, y), likelihood=pw.Gaussian(noise=0.5), ensemble=members, intervals=0)
    with torch.no_grad():
        means = torch.stack([member(x) for member in members])
    normal_law = torch.distributions.Normal(means, 0.5)
    own = values(found["Deep ensemble"])
    joint = normal_law.log_prob(y).sum(-1).logsumexp(0) - math.log(3)
    assert own["nll"] == pytest.approx(-float(joint.mean()))
    assert own["rmse"] == pytest.approx(float((means.mean(0) - y).square().mean().sqrt()))
    spread = means.var(0, correction=0)
    assert own["sharpness"] == pytest.approx(float((spread + 0.25).sqrt().mean()))
    pit = normal_law.cdf(y).mean(0)
    assert own["coverage90"] == pytest.approx(float(((pit > 0.05) & (pit < 0.95)).double().mean()))
    draws = (means[:, None] + 0.5 * torch.randn(3, 4000, *y.shape, dtype=torch.float64, device=DEVICE)).flatten(0, 1)
    apart = (draws - draws[torch.randperm(len(draws))]).abs().mean(0)
    assert own["crps"] == pytest.approx(float(((draws - y).abs().mean(0) - apart / 2).mean()), rel=0.02)
    assert found["Deep ensemble"].uncertainty["test"]["epistemic_variance"] == pytest.approx(
        spread.mean(-1).tolist(), rel=1e-5
    )


def test_noise_that_depends_on_the_input() -> None:
    """The plain network in closed form, the posterior against its own intervals and densities."""
    x, y = numbers(40, 1, 4)
    model = built(nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 2))).to(DEVICE)
    la = pw.fit(model, (x, y), "heteroscedastic", prior=20.0)
    found = pw.evaluate(la, (x, y), validation=numbers(30, 1, 8), intervals=10)
    with torch.no_grad():
        first, second = model(x).unbind(-1)
    precision = nn.functional.softplus(second) + 1e-8
    plain = gaussian((first / precision)[:, None], precision.rsqrt()[:, None], y)
    got = values(found["Plain network"])
    got.pop("aurc")
    assert got == pytest.approx(plain, rel=1e-6)
    own, prediction = values(found["Laplace"]), la.predict(x)
    assert own["nll"] == pytest.approx(-float(prediction.log_prob(y).mean()))
    for level in (0.5, 0.9, 0.95):
        low, high = prediction.interval(level)
        inside = float(((low <= y) & (y <= high)).double().mean())
        assert own[f"coverage{round(100 * level)}"] == pytest.approx(inside, rel=1e-12)
    draws = prediction.sample(20000)
    apart = (draws - draws.flip(0)).abs().mean(0)
    assert own["crps"] == pytest.approx(float(((draws - y).abs().mean(0) - apart / 2).mean()), rel=0.03)
    assert own["sharpness"] == pytest.approx(float(prediction.variance.sqrt().mean()))
    scaled, before = values(found["Temperature scaling"]), values(found["Plain network"])
    assert scaled["rmse"] == before["rmse"] and scaled["sharpness"] != before["sharpness"]


def test_noise_of_several_outputs_that_depends_on_the_input() -> None:
    x, y = numbers(20, 2, 4)
    la = pw.fit(regressor(4), (x, y), "heteroscedastic", prior=20.0)
    found = pw.evaluate(la, (x, y), intervals=0)
    own, prediction = values(found["Laplace"]), la.predict(x)
    assert own["nll"] == pytest.approx(-float(prediction.log_prob(y).mean()))
    low, high = prediction.interval(0.9)
    assert own["coverage90"] == pytest.approx(float(((low <= y) & (y <= high)).double().mean()), rel=1e-12)
    draws = prediction.sample(20000)
    apart = (draws - draws.flip(0)).abs().mean(0)
    assert own["crps"] == pytest.approx(float(((draws - y).abs().mean(0) - apart / 2).mean()), rel=0.03)
    assert own["rmse"] == pytest.approx(float((prediction.mean - y).square().mean().sqrt()))


def test_draws_of_the_weights_are_a_mixture() -> None:
    la, (x, y) = regression(2), numbers(20, 2, 4)
    options = {"method": "sampled", "samples": 6}
    found = values(pw.evaluate(la, (x, y), intervals=0, baselines=(), predict=options).methods[0])
    prediction = la.predict(x, method="sampled", samples=6)
    assert found["nll"] == pytest.approx(-float(prediction.log_prob(y).mean()))
    assert found["rmse"] == pytest.approx(float((prediction.mean - y).square().mean().sqrt()))
    low, high = prediction.interval(0.9)
    assert found["coverage90"] == float(((low <= y) & (y <= high)).double().mean())


def test_other_likelihoods_have_their_density_and_a_note() -> None:
    x = normal(30, 2).to(DEVICE)
    y = torch.poisson(torch.ones(30, 1)).double().to(DEVICE)
    model = built(nn.Linear(2, 1)).to(DEVICE)
    la = pw.fit(model, (x, y), "count", prior=5.0)
    found = pw.evaluate(la, (x, y), intervals=10, validation=(x, y))
    assert values(found.methods[0]).keys() == {"nll", "rmse", "r2"} and found.constant.keys() == {"rmse"}
    assert values(found.methods[0])["nll"] == pytest.approx(-float(la.predict(x).log_prob(y).mean()))
    rate = model(x).detach().exp()
    expected = -torch.distributions.Poisson(rate).log_prob(y).mean()
    assert values(found["Plain network"])["nll"] == pytest.approx(float(expected), rel=1e-6)
    assert any("no calibration" in note for note in found.notes)
    assert any("Temperature scaling is not known" in note for note in found.notes)
    assert "Poisson" in found.to_markdown()


def test_a_likelihood_of_ones_own_has_its_density() -> None:
    """A Laplace distribution of two numbers, from the network and from its posterior."""

    def energy(f: Tensor, y: Tensor) -> Tensor:
        return ((f - y).square() + 0.1).sqrt().sum(-1)

    def law(f: Tensor) -> torch.distributions.Distribution:
        return torch.distributions.Independent(torch.distributions.Laplace(f, torch.ones_like(f)), 1)

    own, model, (x, y) = pw.Custom(energy, predictive=law), regressor(2), numbers(20, 2, 4)
    expected = -float(law(model(x).detach()).log_prob(y).mean())
    plain = pw.evaluate(model, (x, y), likelihood=own, intervals=5)
    assert values(plain.methods[0])["nll"] == pytest.approx(expected, rel=1e-6)
    la = pw.fit(model, (x, y), own, prior=20.0)
    found = pw.evaluate(la, (x, y), intervals=5)
    assert values(found["Laplace"])["nll"] == pytest.approx(-float(la.predict(x).log_prob(y).mean()), rel=1e-6)
    assert values(found["Plain network"])["nll"] == pytest.approx(expected, rel=1e-6)


def test_a_likelihood_of_ones_own_gets_outputs_in_their_shape() -> None:
    def law(f: Tensor) -> torch.distributions.Distribution:
        return torch.distributions.MultivariateNormal(
            f[..., 0, :], f[..., 1:, :] @ f[..., 1:, :].mT + torch.eye(2).to(f)
        )

    model = nn.Sequential(regressor(6), nn.Unflatten(1, (3, 2)))
    own, (x, y) = pw.Custom(lambda f, y: -law(f).log_prob(y), predictive=law), numbers(20, 2, 4)
    found = pw.evaluate(model, (x, y), likelihood=own, intervals=0)
    assert values(found.methods[0])["nll"] == pytest.approx(-float(law(model(x).detach()).log_prob(y).mean()))


def test_shifts_of_numbers_have_their_error_and_deviation() -> None:
    la, (x, y) = regression(), numbers(30, 1, 4)
    found = pw.evaluate(la, (x, y), shifts={"more": (lambda inputs, s: inputs + s, [2])}, intervals=10).methods[0]
    there = la.predict(x + 2)
    metrics = found.shifts["more"].metrics
    assert set(metrics) == {"rmse", "nll", "uncertainty"}
    assert metrics["rmse"][1].value == pytest.approx(float((there.mean - y).square().mean().sqrt()))
    assert metrics["nll"][1].value == pytest.approx(-float(there.log_prob(y).mean()))
    assert metrics["uncertainty"][1].value == pytest.approx(float(there.variance.sqrt().mean()))
    assert metrics["rmse"][0] == found.metrics["rmse"]


def test_numbers_worth_looking_at() -> None:
    la, (x, y) = regression(), numbers(30, 1, 4)
    found = pw.evaluate(la, (x, y), intervals=0)
    prediction = la.predict(x)
    order = prediction.variance[:, 0].argsort().tolist()
    assert [each.index for each in found.surest] == order[:8]
    one = found.least_sure[0]
    assert one.index == order[-1] and one.image is None and math.isnan(one.confidence)
    assert (one.label, one.predicted, one.uncertainty) == pytest.approx(
        (float(y[one.index]), float(prediction.mean[one.index]), float(prediction.variance[one.index].sqrt()))
    )


def test_positions_of_numbers() -> None:
    """A field of numbers (N, K, rows, columns): every one of them counts."""
    model = built(nn.Conv2d(1, 2, 3, padding=1)).to(DEVICE)
    x, y = normal(6, 1, 3, 4).to(DEVICE), normal(6, 2, 3, 4, seed=5).to(DEVICE)
    la = pw.fit(model, (x, y), "regression", prior=10.0)
    found = pw.evaluate(la, (x, y), intervals=10)
    prediction = la.predict(x)
    own = values(found.methods[0])
    assert own["rmse"] == pytest.approx(float((prediction.mean - y).square().mean().sqrt()))
    assert own["nll"] == pytest.approx(-float(prediction.log_prob(y).mean()) / 12)  # per place
    assert own["crps"] == pytest.approx(float(crps_gaussian(prediction.mean, prediction.variance.sqrt(), y).mean()))
    with torch.no_grad():
        noise = (model(x) - y).square().mean().sqrt()
        plain = -torch.distributions.Normal(model(x), noise).log_prob(y).sum() / 72
    assert values(found["Plain network"])["nll"] == pytest.approx(float(plain))
    assert found.settings["labelled positions"] == 144 and found.surest == ()
