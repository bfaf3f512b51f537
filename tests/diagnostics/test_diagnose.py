"""What `la.diagnose` says of networks that were made to be ill, and of one that is well."""

from __future__ import annotations

import copy
import itertools
import re
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from cases import randomise
from environment import DEVICE
from fitting import normal
from peewit.diagnostics.constant import constant_energy, join_batches
from peewit.diagnostics.gradients import examine
from reference_dense import ggn


def inputs(n: int = 120) -> Tensor:
    return normal(n, 3).to(DEVICE)


def network(outputs: int = 1, norm: bool = False) -> nn.Module:
    torch.manual_seed(3)
    middle = [nn.LayerNorm(6)] if norm else []
    return nn.Sequential(nn.Linear(3, 6), *middle, nn.Tanh(), nn.Linear(6, outputs)).double().to(DEVICE)


def trained(model: nn.Module, loss: Any, precision: float, rounds: int = 500) -> nn.Module:
    """To the mode of `loss(model) + precision / 2 |theta|^2`, or part of the way."""
    search = torch.optim.LBFGS(model.parameters(), max_iter=rounds, tolerance_grad=1e-9, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        search.zero_grad()
        value = loss(model) + 0.5 * precision * sum(p.square().sum() for p in model.parameters())
        value.backward()
        return value

    search.step(closure)
    return model


def curve(noise: float = 0.3, n: int = 120) -> tuple[Tensor, Tensor]:
    x = inputs(n)
    y = torch.sin(2 * x[:, :1]) + 0.5 * x[:, 1:2] + noise * normal(n, 1, seed=5).to(DEVICE)
    return x, y


def squares(data: tuple[Tensor, Tensor], noise: float) -> Any:
    return lambda model: 0.5 * (model(data[0]) - data[1]).square().sum() / noise**2


def labels(x: Tensor) -> Tensor:
    logits = torch.stack([3 * x[:, 0], 3 * x[:, 1], torch.zeros_like(x[:, 0])], 1)
    draws = torch.rand(len(x), 1, generator=torch.Generator().manual_seed(8), dtype=torch.float64).to(DEVICE)
    return (logits.softmax(1).cumsum(1) < draws).sum(1)


@pytest.fixture(scope="module")
def healthy() -> tuple[pw.Laplace, tuple[Tensor, Tensor]]:
    """A regression at the mode of its regularised loss, with the noise of its data."""
    data = curve()
    model = trained(network(), squares(data, 0.3), 0.5)
    return pw.fit(model, data, pw.Gaussian(0.3), structure="full", prior=0.5), data


def test_a_healthy_network_has_no_complaints(healthy: tuple[pw.Laplace, tuple[Tensor, Tensor]]) -> None:
    """Nothing but fine answers, by a loader too, and nothing of the posterior or the generator changes."""
    la, data = healthy
    before, drawn = la.log_evidence(), torch.random.get_rng_state()
    said = la.diagnose(data)
    assert said.healthy and not said.complaints, str(said)
    assert [each.topic for each in said] == ["fit", "mode", "residuals", "evidence", "rounding"]
    assert said["mode"].numbers["decrement"] < 1e-6 and said["fit"].numbers["share"] > 0.8
    assert torch.equal(la.log_evidence(), before) and torch.equal(drawn, torch.random.get_rng_state())
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*(each.cpu() for each in data)), batch_size=10)
    again = la.diagnose(loader)
    assert again.healthy and abs(again["fit"].numbers["energy"] - said["fit"].numbers["energy"]) < 1e-9
    assert "[fine] mode: The network is near a mode" in str(said)
    with pytest.raises(KeyError, match="'teeth' is not a topic"):
        said["teeth"]


def test_gradients_and_decrements_are_those_of_the_definition() -> None:
    """Against autograd and a dense GGN, by groups; noise from per-piece gradients."""
    x, y = curve(n=64)
    model = network()
    la = pw.fit(
        model,
        (x, y),
        pw.Gaussian(0.5),
        structure="full",
        curvature="ggn",
        prior=pw.Prior.layerwise([1.0, 2.0, 3.0, 4.0]),
    )
    la = la.with_temperature(2.0)
    said = la.diagnose((x, y))
    theta = [p.detach() for p in model.parameters()]
    strength = 1 / 0.5**2 / 2.0
    delta = torch.cat(
        [torch.full((p.numel(),), d, dtype=p.dtype) for p, d in zip(theta, (1.0, 2.0, 3.0, 4.0), strict=True)]
    )
    flat = torch.cat([p.flatten() for p in theta]).cpu()

    def gradient(part: slice) -> Tensor:
        energy = 0.5 * (model(x[part]) - y[part]).square().sum()
        return torch.cat([g.flatten() for g in torch.autograd.grad(energy, [*model.parameters()])]).cpu()

    slope = strength * gradient(slice(None)) + delta * flat
    names = [name for name, _ in model.named_parameters()]
    matrix = strength * ggn(copy.deepcopy(model).cpu(), x.cpu(), y.cpu(), "regression", names) + torch.diag(delta)
    newton = torch.linalg.solve(matrix, slope)
    pieces = torch.stack([gradient(slice(start, start + 4)) for start in range(0, 64, 4)])  # 16 of equal size
    noise = strength**2 * 16 * pieces.var(0)  # of their sum
    sizes = [p.numel() for p in theta]
    for number, (g, s, n, t) in enumerate(
        zip(slope.split(sizes), newton.split(sizes), noise.split(sizes), flat.split(sizes), strict=True)
    ):
        assert abs(float(said.decrements[number]) / float(0.5 * (g * s).sum()) - 1) < 1e-9
        assert abs(float(said.gradients[number]) / float(g.norm() / n.sum().sqrt()) - 1) < 1e-9
        assert abs(float(said.ratios[number]) / float(t.square().sum() / (t - s).square().sum()) - 1) < 1e-9
    table = str(said).splitlines()[-5:]
    assert table[0].split()[0] == "group" and [line.split()[0] for line in table[1:]] == names


def test_noise_of_uneven_pieces() -> None:
    """Unbiased for examples that are alike whatever the pieces: compared with the variance over single examples."""
    x, y = curve(n=400)
    la = pw.fit(network(), (x, y), pw.Gaussian(0.5), structure="diag")
    groups = la.prior.stretches(la.space)
    single = examine(la.state, [(x[i : i + 1], y[i : i + 1]) for i in range(400)]).noise(groups)
    sizes = [3, 17] * 20
    cuts = torch.tensor([0, *sizes]).cumsum(0).tolist()
    uneven = examine(la.state, [(x[a:b], y[a:b]) for a, b in itertools.pairwise(cuts)]).noise(groups)
    assert 0.6 < float(uneven / single) < 1.6


def test_a_network_that_stopped_early(healthy: tuple[pw.Laplace, tuple[Tensor, Tensor]]) -> None:
    """Not at a mode, with gradients far above their noise, and with evidences that disagree."""
    _, data = healthy
    model = trained(network(), squares(data, 0.3), 0.5, rounds=8)
    la = pw.fit(model, data, pw.Gaussian(0.3), structure="full", prior=0.5)
    said = la.diagnose(data)
    assert said["mode"].severity == "warning" and said["evidence"].severity == "warning"
    assert "not at a mode" in said["mode"].sentence
    for topic in ("mode", "evidence"):
        assert "For predictions, la.tune(train=...), or la.tune('validation', validation=...)" in said[topic].advice
        assert "To compare models by the evidence, la.tune(at='linear_mode', train=...)" in said[topic].advice
    assert said["mode"].numbers["gradient"] > 1
    exact = la.at_linear_mode(data)
    known = exact.diagnose(data)["evidence"]
    expected = float(exact.log_evidence()) - float(la.log_evidence())
    assert abs(known.numbers["nats"] - expected) < 1e-9 and known.severity == "warning"
    # For squared errors one step of Newton's method with the exact curvature is the mode itself.
    assert abs(said["evidence"].numbers["nats"] - expected) < 1e-3 * expected
    assert abs(said["evidence"].numbers["ratio"] / known.numbers["ratio"] - 1) < 1e-3


@pytest.mark.filterwarnings("ignore::UserWarning")  # of what the advice leads to
def test_advice_after_tuning_does_no_harm() -> None:
    """On digits, what the findings say to type costs no new examples much; the evidence's own way is a note alone."""
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    x, y = torch.tensor(digits.data / 16, device=DEVICE), torch.tensor(digits.target, device=DEVICE)
    train, held, test = ((x[part], y[part]) for part in (slice(300), slice(300, 500), slice(500, None)))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).double().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(500):
        optimizer.zero_grad()
        torch.autograd.backward([nn.functional.cross_entropy(model(train[0]), train[1])])
        optimizer.step()
    la = pw.fit(model, train, "classification")

    def nll(posterior: pw.Laplace) -> float:
        return -float(posterior.predict(test[0]).log_prob(test[1]).mean())

    for tuned, source in ((la.tune(train=train), "training"), (la.tune(validation=held), "validation")):
        said = tuned.diagnose(train)
        for topic in ("mode", "evidence"):
            assert said[topic].severity == "note" and not said[topic].advice
            assert f"The {source} data chose the precisions" in said[topic].sentence
        for finding in said:
            if finding.severity in ("warning", "problem"):
                for call in re.findall(r"la\.tune\([^)]*\)", finding.advice):
                    followed = eval(filled_in(call), {"la": tuned, "train": train, "held": held})
                    assert nll(followed) < nll(tuned) + 0.05, (call, finding)
        assert nll(tuned.tune(at="linear_mode", train=train)) > nll(tuned) + 0.05  # what it is not to say
        certain = la.tune(validation=(x, model(x).argmax(1)))  # the network's own predictions: nothing is uncertain
        (groups,) = [finding for finding in certain.diagnose(train) if finding.topic == "groups"]
        assert not groups.advice and groups.sentence.endswith("as the validation data chose.")
        untouched = tuned.with_prior(tuned.prior).diagnose(train)  # as if the precisions had been given
        assert untouched["mode"].severity == "warning" and untouched["evidence"].severity == "warning"


def filled_in(call: str) -> str:
    """A call of advice with data where it has dots."""
    return call.replace("train=...", "train=train").replace("validation=...", "validation=held")


def test_a_network_that_was_never_trained() -> None:
    """Worse than the mean of the targets, a problem in the first place; or no better, or hardly."""
    data = curve()
    untrained = network()
    with torch.no_grad():
        untrained[-1].bias += 3.0
    said = pw.fit(untrained, data, "regression").diagnose(data)
    first = said.complaints[0]
    assert first is said.findings[0] is said["fit"] and not said.healthy
    assert first.severity == "problem" and "worse than a constant" in first.sentence
    assert str(said).startswith("[problem] fit: The network is worse than a constant: R^2 is -")
    for cause in ("weights are loaded", "scaled as in training", "labels"):
        assert cause in first.advice
    assert first.numbers["r2"] == pytest.approx(r_squared(untrained, data), rel=1e-6)
    other = (data[0], normal(120, 1, seed=9).to(DEVICE))  # nothing to learn
    dull = trained(network(), squares(other, 1.0), 50.0)
    said = pw.fit(dull, other, "regression", prior=50.0).diagnose(other)
    assert said["fit"].severity == "problem" and "no better than a constant" in said["fit"].sentence
    assert said["mode"].severity == "fine"
    slow = trained(network(), squares(data, 0.3), 0.5)
    with torch.no_grad():  # a hundredth of the way from the mean
        slow[-1].weight *= 0.01
        slow[-1].bias += (data[1] - slow(data[0])).mean()
    said = pw.fit(slow, data, "regression").diagnose(data)["fit"]
    assert 0 < said.numbers["r2"] < 0.05 and said.severity == "warning" and "hardly better" in said.sentence


def r_squared(model: nn.Module, data: tuple[Tensor, Tensor]) -> float:
    x, y = data
    left = float((model(x).detach() - y).square().sum())
    return 1 - left / float((y - y.mean(0)).square().sum())


def test_one_output_of_two_that_is_no_better_than_its_mean() -> None:
    """The other may hide it in the sum; it is named."""
    x, y = curve()
    both = torch.cat([0.01 * y, y], 1)
    model = trained(network(2), squares((x, both), 0.01), 0.5)
    with torch.no_grad():
        model[-1].bias[0] += 0.05
    said = pw.fit(model, (x, both), pw.Gaussian("residuals")).diagnose((x, both))
    assert said["fit"].severity == "warning" and "1 of its outputs (0, counted from 0)" in said["fit"].sentence
    left = (model(x).detach() - both).square().sum(0) / (both - both.mean(0)).square().sum(0)
    assert said["fit"].numbers["worst_r2"] == pytest.approx(1 - float(left.max()), rel=1e-6)


def sure(model: nn.Module, factor: float) -> nn.Module:
    """With its logits scaled up."""
    with torch.no_grad():
        for parameter in model[-1].parameters():
            parameter *= factor
    return model


def test_classes_beside_their_frequencies() -> None:
    """NLL and accuracy by hand; wrong labels are a problem, as is a network that only decides well."""
    x = inputs(200)
    y = labels(x)
    loss = nn.CrossEntropyLoss(reduction="sum")
    model = trained(network(3), lambda m: loss(m(x), y), 0.1)
    said = pw.fit(model, (x, y), "classification").diagnose((x, y))["fit"]
    shares = y.bincount() / 200
    assert said.severity == "fine"
    assert said.numbers["nll"] == pytest.approx(float(loss(model(x), y).detach()) / 200, rel=1e-6)
    assert said.numbers["constant_nll"] == pytest.approx(-float((shares * shares.log()).sum()), rel=1e-6)
    assert said.numbers["accuracy"] == pytest.approx(float((model(x).argmax(1) == y).double().mean()))
    assert said.numbers["constant_accuracy"] == pytest.approx(float(shares.max()))
    assert f"accuracy {said.numbers['accuracy']:.1%}" in said.sentence and "class frequencies" in said.sentence
    wrong = (y + 1) % 3
    said = pw.fit(model, (x, wrong), "classification").diagnose((x, wrong))["fit"]
    assert said.severity == "problem" and "in the order of the outputs" in said.advice
    said = pw.fit(sure(model, 30.0), (x, y), "classification").diagnose((x, y))["fit"]
    assert said.severity == "problem" and "scale of the logits" in said.advice


def test_other_likelihoods_beside_a_constant() -> None:
    """Labels that do not exclude each other, counts and variances, each by its own measure."""
    x = inputs(200)
    yes = torch.cat([(x[:, :1] > 0), (x[:, 1:2] > 1)], 1).double()
    yes[:3] = -1.0
    given = pw.Bernoulli(ignore_index=-1)
    said = pw.fit(network(2), (x, yes), given).diagnose((x, yes))["fit"]
    shares = yes[3:].mean(0)
    assert said.numbers["constant_accuracy"] == pytest.approx(float(torch.maximum(shares, 1 - shares).mean()))
    expected = -float((shares * shares.log() + (1 - shares) * (1 - shares).log()).mean())
    assert said.numbers["constant_nll"] == pytest.approx(expected, rel=1e-6)
    counts = torch.poisson(3 * (0.5 * x[:, :1]).exp().cpu(), generator=torch.Generator().manual_seed(1)).to(DEVICE)

    def deviance(rate: Tensor) -> float:
        return float((torch.xlogy(counts, counts / rate) - counts + rate).sum())

    net = trained(network(), lambda m: (m(x).exp() - counts * m(x)).sum(), 0.5)
    said = pw.fit(net, (x, counts), "count").diagnose((x, counts))["fit"]
    expected = 1 - deviance(net(x).detach().exp()) / deviance(counts.mean())
    assert said.severity == "fine" and said.numbers["share"] == pytest.approx(expected, rel=1e-6)
    assert "mean rate" in said.sentence
    assert pw.fit(network(), (x, counts), "count").diagnose((x, counts))["fit"].severity == "problem"
    x, y = curve(n=200)
    for factor in (1.0, 1e-4):  # in any unit
        said = pw.fit(network(2), (x, factor * y), "heteroscedastic").diagnose((x, factor * y))["fit"]
        variance = (factor * y).var(correction=0)
        expected = 0.5 * float((2 * torch.pi * variance).log() + 1)
        assert said.numbers["constant_nll"] == pytest.approx(expected, abs=1e-3)
    same = torch.ones_like(y)
    said = pw.fit(network(), (x, same), "regression").diagnose((x, same))["fit"]
    assert said.severity == "warning" and "All targets are the same" in said.sentence


def test_a_constant_of_sorted_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not all outputs are kept, those that are come from everywhere."""
    x = inputs(200)
    y = labels(x).sort().values
    la = pw.fit(network(3), (x, y), "classification")
    whole = la.diagnose((x, y))["fit"].numbers
    monkeypatch.setattr("peewit.diagnostics.gradients.ROWS", 50)
    batches = [(x[start : start + 7], y[start : start + 7]) for start in range(0, 200, 7)]
    found = la.diagnose(batches)["fit"].numbers
    assert found["constant_nll"] == pytest.approx(whole["constant_nll"], abs=0.02)
    f, kept = join_batches(examine(la.state, batches).kept)
    assert len(f) == 50 and torch.equal(kept[:, 0], y[::4])


@pytest.mark.parametrize(
    ("noise", "severity"), [(0.08, "problem"), (0.13, "warning"), (0.5, "warning"), (1.0, "problem")]
)
def test_a_wrong_noise(noise: float, severity: str, healthy: tuple[pw.Laplace, tuple[Tensor, Tensor]]) -> None:
    """By which factor, against the network's own residuals and corrected ones, what it means and what to do."""
    la, data = healthy
    said = la.with_noise(noise).diagnose(data)["residuals"]
    small = noise < 0.3
    assert said.severity == severity and ("too small" if small else "too large") in said.sentence
    assert f"Intervals are too {'narrow' if small else 'wide'}." in said.sentence
    squares = float((la.model(data[0]) - data[1]).detach().square().sum())
    gamma = float(la.with_noise(noise).evidence().gamma)
    raw, corrected = (squares / 120) ** 0.5, (squares / (120 - gamma)) ** 0.5
    assert said.numbers["residual"] == pytest.approx(raw, rel=1e-6)
    assert said.numbers["corrected"] == pytest.approx(corrected, rel=1e-6)
    assert said.numbers["factor"] == pytest.approx(noise / raw, rel=1e-6)
    assert f"{raw:.3g}" in said.sentence and f"{corrected:.3g}" in said.sentence
    assert f"{max(noise / raw, raw / noise):.3g} times" in said.sentence
    assert "la.tune('validation', validation=...)" in said.advice and f"la.with_noise({corrected:.3g})" in said.advice


def test_a_noise_that_effective_dimensions_explain() -> None:
    """The evidence's fixed point corrects residuals by them: a noise four times as large is still a problem."""
    x, y = curve(n=30)
    model = nn.Sequential(nn.Linear(3, 60), nn.Tanh(), nn.Linear(60, 1)).double().to(DEVICE)
    la = pw.fit(trained(model, squares((x, y), 0.1), 0.02, 300), (x, y), "regression", structure="full", prior=0.02)
    residual = float((model(x) - y).square().mean().sqrt().detach())
    said = la.with_noise(4 * residual).diagnose((x, y))["residuals"]
    assert said.severity == "problem" and "it is 4 times the network's residuals" in said.sentence
    assert "too wide, unless the network is closer to its training targets than to new ones" in said.sentence
    assert "la.tune('validation', validation=...)" in said.advice
    at = la.with_noise(4 * residual).at_linear_mode((x, y)).diagnose((x, y))["residuals"]
    assert "la.tune('validation', validation=..., train=...)" in at.advice
    tuned = la.tune()  # the fixed point
    factor = float(tuned.likelihood.factor) / residual
    assert factor > 2.5 and tuned.diagnose((x, y))["residuals"].severity == "problem"


def test_a_noise_that_tuning_chose() -> None:
    """Training residuals of a network that follows its targets are no noise to set; validation data know better."""
    x, y = curve(n=160)
    data, held = (x[:30], y[:30]), (x[30:], y[30:])
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(3, 60), nn.Tanh(), nn.Linear(60, 1)).double().to(DEVICE)
    model = trained(model, squares(data, 0.1), 0.02, 300)
    residual = float((model(data[0]) - data[1]).square().mean().sqrt().detach())
    la = pw.fit(model, data, "regression")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pw.TuningWarning)
        tuned, validated = la.tune(train=data), la.tune(validation=held)
    assert float(tuned.likelihood.noise) > 2.5 * residual and float(validated.likelihood.noise) > 2.5 * residual
    said = tuned.diagnose(data)["residuals"]
    assert said.severity == "problem" and "unless the network is closer to its training targets" in said.sentence
    assert "a noise that is known otherwise" in said.advice and f"{residual:.3g}" not in said.advice
    said = validated.diagnose(data)["residuals"]
    assert said.severity == "note" and "Validation data chose it" in said.sentence
    assert "with_noise" not in said.advice
    fixed = validated.with_noise(float(validated.likelihood.noise)).diagnose(data)["residuals"]
    assert fixed.severity == "problem"


def test_a_noise_of_outputs_of_different_sizes() -> None:
    """Together they fit, one by one they do not; few of many outputs do not matter."""
    x = inputs(200)
    y = torch.cat([0.3 * normal(200, 1, seed=5), 10 * normal(200, 1, seed=6)], 1).to(DEVICE)
    model = nn.Sequential(nn.Linear(3, 2)).double().to(DEVICE)
    with torch.no_grad():
        model[0].weight.zero_(), model[0].bias.zero_()
    together = float(y.square().mean().sqrt())
    said = pw.fit(model, (x, y), pw.Gaussian(together)).diagnose((x, y))["residuals"]
    assert said.severity == "problem" and "pw.Gaussian(noise='residuals')" in said.advice
    assert said.numbers["factor"] == pytest.approx(1.0, abs=1e-6)
    expected = together / float(y[:, 0].square().mean().sqrt())
    assert said.numbers["factor of output 0"] == pytest.approx(expected, rel=1e-6)
    assert f"{expected:.3g} times in 0" in said.sentence
    own = pw.fit(model, (x, y), pw.Gaussian("residuals")).diagnose((x, y))["residuals"]
    assert own.severity == "fine"
    many = torch.cat([0.01 * y[:, :1], normal(200, 39, seed=7).to(DEVICE)], 1)
    wide = nn.Sequential(nn.Linear(3, 40)).double().to(DEVICE)
    with torch.no_grad():
        wide[0].weight.zero_(), wide[0].bias.zero_()
    assert pw.fit(wide, (x, many), pw.Gaussian(1.0)).diagnose((x, many))["residuals"].severity == "fine"


def test_residuals_that_are_zero_or_of_a_given_distribution() -> None:
    """A network that fits exactly; a likelihood of one's own with a normal predictive."""
    x = inputs(50)
    model = nn.Linear(3, 1).double().to(DEVICE)
    y = model(x).detach()
    said = pw.fit(model, (x, y), pw.Gaussian(1.0)).diagnose((x, y))["residuals"]
    assert said.severity == "problem" and "over a million times" in said.sentence and said.numbers["residual"] == 0
    noisy = y + 2 * normal(50, 1, seed=3).to(DEVICE)
    own = pw.Custom(
        lambda f, y: 0.5 * (f - y).square().sum(1),
        predictive=lambda f: torch.distributions.Normal(f, torch.ones_like(f)),
    )
    said = pw.fit(model, (x, noisy), own).diagnose((x, noisy))["residuals"]
    assert said.numbers["factor"] == pytest.approx(1 / float((noisy - y).square().mean().sqrt()), rel=1e-6)
    assert said.severity == "warning" and said.numbers["count"] == 50


def test_heavy_tails() -> None:
    """A few outliers."""
    x, y = curve()
    y = y.clone()
    y[:3] += 5.0
    model = trained(network(), squares((x, y), 0.8), 0.5)
    said = pw.fit(model, (x, y), pw.Gaussian(0.8), prior=0.5).diagnose((x, y))
    assert said["tails"].severity == "note" and said["tails"].numbers["kurtosis"] > 9


@pytest.mark.parametrize(
    ("smoothing", "scale", "words"), [(0.0, 1.0, ""), (0.3, 1.0, "less sure"), (0.0, 6.0, "too sure")]
)
def test_confidence(smoothing: float, scale: float, words: str) -> None:
    """Trained by the cross entropy it is fine; by a smoothed one, or with its logits scaled up, it is not."""
    x = inputs(200)
    y = labels(x)
    loss = nn.CrossEntropyLoss(reduction="sum", label_smoothing=smoothing)
    model = trained(network(3), lambda model: loss(model(x), y), 0.1)
    with torch.no_grad():
        for parameter in model[-1].parameters():
            parameter *= scale
    la = pw.fit(model, (x, y), "classification", prior=0.1)
    said = la.diagnose((x, y))["confidence"]
    assert (said.severity == "warning") == bool(words) and words in said.sentence
    probabilities = model(x).detach().softmax(1)
    surprise = -probabilities.gather(1, y[:, None]).log().mean()
    entropy = -(probabilities * probabilities.log()).sum(1).mean()
    assert (
        abs(said.numbers["surprise"] - float(surprise)) < 1e-9 and abs(said.numbers["entropy"] - float(entropy)) < 1e-9
    )
    if smoothing:
        given = pw.fit(model, (x, y), pw.Categorical(label_smoothing=smoothing), prior=0.1).diagnose((x, y))
        assert given["likelihood"].severity == "note" and given["mode"].severity == "fine"


def test_counts_and_other_likelihoods() -> None:
    """Too spread counts; variances that do not fit; labels that are missing; an energy of one's own."""
    x = inputs(200)
    rate = (0.5 * x[:, :1]).exp() * 3
    wild = torch.poisson((rate * 8).cpu(), generator=torch.Generator().manual_seed(1)).to(DEVICE) * torch.randint(
        0, 2, (200, 1), generator=torch.Generator().manual_seed(2)
    ).to(DEVICE)
    tame = torch.poisson(rate.cpu(), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    for y, severity in ((wild, "problem"), (tame, "fine")):
        model = trained(network(), lambda m, y=y: (m(x).exp() - y * m(x)).sum(), 0.5)
        said = pw.fit(model, (x, y), "count", prior=0.5).diagnose((x, y))
        assert said["residuals"].severity == severity and said["mode"].severity == "fine"
    y = curve(n=200)[1]
    said = pw.fit(network(2), (x, y), "heteroscedastic").diagnose((x, y))
    assert {each.topic for each in said} >= {"fit", "mode", "residuals", "evidence"}
    yes = (x[:, :1] > 0).double()
    yes[::3] = -1.0
    said = pw.fit(network(), (x, yes), pw.Bernoulli(ignore_index=-1)).diagnose((x, yes))
    assert said["confidence"].numbers["surprise"] > 0
    own = pw.Custom(lambda f, y: (f - y).cosh().log().sum(1) + 0.5 * (f - y).square().sum(1))
    said = pw.fit(network(), (x, y), own).diagnose((x, y))
    assert {each.topic for each in said} >= {"fit", "mode", "evidence"} and "residuals" not in {
        each.topic for each in said
    }


def test_scales_and_groups() -> None:
    """One precision straddles a set; one per tensor does not; a group that is held by the prior is told."""
    data = curve()
    model = network(norm=True)
    randomise(model)
    la = pw.fit(model, data, pw.Gaussian(0.3))
    said = la.diagnose(data)["scales"]
    assert said.severity == "note" and "{0.weight + 0.bias}" in said.sentence and "scale_invariant" in said.advice
    prior = pw.Prior.scale_invariant(model, data)
    assert la.with_prior(prior).diagnose(data)["scales"].severity == "fine"
    assert la.with_prior(pw.Prior.g_prior()).diagnose(data)["scales"].severity == "fine"
    held = la.with_prior(pw.Prior.groups({"0": 1e12, "*": 1.0})).diagnose(data)
    assert held["groups"].numbers["off"] == 1 and "'0'" in held["groups"].sentence


def test_the_best_constant() -> None:
    """Class frequencies, and the mean."""
    y = torch.tensor([0, 0, 1, 2, 2, 2])
    f = torch.zeros(6, 1, 3)
    shares = torch.tensor([2, 1, 3]) / 6
    own, constant = constant_energy(pw.Categorical(), *join_batches([(f[:2], y[:2, None]), (f[2:], y[2:, None])]))
    assert abs(own - 6 * torch.log(torch.tensor(3.0))) < 1e-5
    assert abs(constant + 6 * float((shares * shares.log()).sum())) < 1e-5
    target = normal(20, 1, 2)
    own, constant = constant_energy(pw.Gaussian(), torch.zeros_like(target), target)
    assert abs(constant - 0.5 * float((target - target.mean(0)).square().sum())) < 1e-8


def test_data_that_are_not_the_training_data(healthy: tuple[pw.Laplace, tuple[Tensor, Tensor]]) -> None:
    """Others, and iterators, are refused."""
    la, (x, y) = healthy
    with pytest.raises(ValueError, match="data has 20 examples, and the posterior was fitted to 120"):
        la.diagnose((x[:20], y[:20]))
    with pytest.raises(ValueError, match="one-shot iterator"):
        la.diagnose(iter([(x, y)]))
