"""Tuning on the training data alone, and the warnings where the evidence alone chose the precision."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from fitting import built, normal
from peewit.tuning.by_training import CLOSE, DOUBT, EXAMPLES, SLACK, spread

quiet = pytest.mark.filterwarnings("ignore::peewit.TuningWarning")


def trained(model: nn.Module, x: Tensor, y: Tensor, steps: int = 300) -> nn.Module:
    """By Adam, in float64."""
    loss = nn.CrossEntropyLoss() if y.dtype == torch.int64 else nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.autograd.backward([loss(model(x), y)])
        optimizer.step()
    return model.eval()


def separated(steps: int = 300) -> tuple[nn.Module, Tensor, Tensor]:
    """Three clouds that a network tells apart without an error."""
    torch.manual_seed(0)
    y = torch.arange(45) % 3
    x = 0.5 * normal(45, 2) + 3 * torch.eye(3, 2).double()[y]
    model = trained(nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 3)).double(), x, y, steps)
    return model.to(DEVICE), x.to(DEVICE), y.to(DEVICE)


def dense_loss(model: nn.Module, x: Tensor, y: Tensor, precision: float) -> float:
    """What the predictive loses on labels against the network: from Jacobians, curvature and probit by hand."""
    parameters = list(model.parameters())
    outputs = model(x)
    rows = []
    for output in outputs.flatten():
        gradient = torch.autograd.grad(output, parameters, retain_graph=True)
        rows.append(torch.cat([part.flatten() for part in gradient]))
    jacobians = torch.stack(rows).view(*outputs.shape, -1)
    probs = outputs.softmax(1).detach()
    fisher = torch.diag_embed(probs) - probs[:, :, None] * probs[:, None, :]
    curvature = torch.einsum("ncd,nck,nke->de", jacobians, fisher, jacobians)
    covariance = torch.linalg.inv(curvature + precision * torch.eye(len(curvature), dtype=x.dtype, device=x.device))
    variances = torch.einsum("ncd,de,nce->nc", jacobians, covariance, jacobians)
    scaled = outputs.detach() / (1 + math.pi / 8 * variances).sqrt()
    picked = [values.log_softmax(1).gather(1, y[:, None]).mean() for values in (outputs.detach(), scaled)]
    return float(picked[0] - picked[1])


def test_the_least_precision_that_explains_the_training_data() -> None:
    """By dense matrices: the loss is within the slack and near it, and at a smaller precision it is above."""
    model, x, y = separated()
    la = pw.fit(model, (x, y), "classification", structure="full", curvature="ggn")
    by_evidence, tuned = la.tune(), la.tune(train=(x, y))
    precision = float(tuned.prior.precision)
    assert dense_loss(model, x, y, float(by_evidence.prior.precision)) > 10 * SLACK
    assert CLOSE * SLACK <= dense_loss(model, x, y, precision) <= SLACK * (1 + 1e-6)
    assert dense_loss(model, x, y, 0.7 * precision) > SLACK
    assert tuned.trace is not None and tuned.trace.method == "training"
    assert tuned.trace.raised == pytest.approx(precision / float(by_evidence.prior.precision))
    assert "raised" in repr(tuned.trace) and tuned.trace.warnings == ()
    assert tuned.linear_mode is None


def test_a_precision_that_explains_them_already_stays() -> None:
    """Then it is that of the evidence, to the last digit."""
    torch.manual_seed(0)
    x, y = normal(400, 3), (normal(400, 2, seed=5) + normal(400, 3) @ normal(3, 2, seed=9)).argmax(1)
    x, y = x.to(DEVICE), y.to(DEVICE)
    model = trained(nn.Linear(3, 2).double(), x.cpu(), y.cpu()).to(DEVICE)
    la = pw.fit(model, (x, y), "classification")
    by_evidence, tuned = la.tune(), la.tune("training", train=(x, y))
    assert torch.equal(tuned.prior.precision, by_evidence.prior.precision)
    assert tuned.trace is not None and tuned.trace.raised == 1 and "raised" not in repr(tuned.trace)


def test_a_likelihood_with_noise_is_tuned_at_the_linear_mode() -> None:
    """As the evidence there, and no precision is raised."""
    x = normal(60, 2)
    y = x[:, :1].sin() + 0.1 * normal(60, 1, seed=4)
    model = trained(built(nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 1))), x, y).to(DEVICE)
    data = (x.to(DEVICE), y.to(DEVICE))
    la = pw.fit(model, data, "regression")
    tuned, expected = la.tune(train=data), la.tune("evidence", at="linear_mode", train=data)
    assert torch.equal(tuned.prior.precision, expected.prior.precision)
    assert tuned.likelihood.noise == expected.likelihood.noise
    assert tuned.linear_mode is not None and tuned.state.has_own_linear_mode


def test_a_linear_mode_is_kept() -> None:
    """A posterior that has one gets that of the raised precision."""
    model, x, y = separated()
    tuned = pw.fit(model, (x, y), "classification", at="linear_mode").tune(train=(x, y))
    assert tuned.trace is not None and tuned.trace.raised > 1 and tuned.state.has_own_linear_mode
    left = tuned.tune("training", train=(x, y), at="trained_weights")
    assert left.linear_mode is None


@pytest.mark.parametrize(
    "likelihood", ["binary", "count", "heteroscedastic", "positions", "custom"], ids=lambda name: str(name)
)
@quiet
def test_every_likelihood(likelihood: str) -> None:
    """Each is scored by its own density, per label; one without a density is not raised, and says so."""
    x = normal(50, 3)
    widths = {"binary": 2, "count": 1, "heteroscedastic": 2, "positions": 6, "custom": 2}
    model: Any = built(nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, widths[likelihood])))
    noisy = model(x).detach() + normal(50, widths[likelihood], seed=3)
    given: Any = likelihood
    y = (noisy > 0).double()
    if likelihood == "count":
        y = noisy.exp().round()
    if likelihood == "heteroscedastic":
        y = noisy[:, :1]
    if likelihood == "positions":
        model, given = nn.Sequential(model, nn.Unflatten(1, (3, 2))), "classification"
        y = (noisy[:, ::2] > 0).long()
    if likelihood == "custom":
        given, y = pw.Custom(lambda f, y: 0.5 * (f - y).square().sum(-1)), noisy
    model, data = model.to(DEVICE), (x.to(DEVICE), y.to(DEVICE))
    la = pw.fit(model, data, given, prior=1e-4)
    tuned = la.tune(train=data)
    assert tuned.trace is not None
    if likelihood == "custom":
        assert any("does not say how targets are distributed" in text for text in tuned.trace.warnings)
        return
    certain = pw.validation_nll(la.with_prior(1e14), data)
    labels = y.numel() / len(y)
    assert (pw.validation_nll(tuned, data) - certain) / labels <= SLACK + 1e-4


def loader(x: Tensor, y: Tensor) -> Iterator[dict[str, Tensor]]:
    """Batches of one class each, of two lengths, in one buffer that is written over."""
    buffer = torch.empty(8, 2, dtype=x.dtype, device=x.device)
    for label in range(3):
        for rows in (y == label).nonzero()[:, 0].split(8):
            buffer[: len(rows)] = x[rows]
            yield {"input": buffer[: len(rows)], "labels": y[rows]}


class Loader:
    """Passes over the same data again and again."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """A pass, which draws from the global generator as shuffled loaders do."""
        torch.rand(1)
        return loader(self.x, self.y)


class Named(nn.Module):
    """Takes what a mapping holds by its name."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input: Tensor) -> Tensor:
        """(B, 2) -> (B, 3)."""
        return self.model(input)


def test_any_batches_and_nothing_changed() -> None:
    """The answer is that of the tensors; the global generator and the weights stay as they were."""
    model, x, y = separated()
    expected = pw.fit(model, (x, y), "classification").tune(train=(x, y))
    named, data = Named(model), Loader(x, y)
    before = {name: value.clone() for name, value in named.state_dict().items()}
    state = torch.get_rng_state()
    tuned = pw.fit(named, data, "classification").tune(train=data)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(before[name], value) for name, value in named.state_dict().items())
    assert float(tuned.prior.precision) == pytest.approx(float(expected.prior.precision), rel=1e-6)
    small = pw.fit(named, data, "classification").tune(train=data, memory=1e5)
    assert float(small.prior.precision) == pytest.approx(float(expected.prior.precision), rel=1e-6)


def test_examples_are_spread_evenly() -> None:
    """Over all of the data, whatever the batches are; others than those of the fit are refused."""
    x = torch.arange(5 * EXAMPLES + 3, dtype=torch.float64)[:, None]
    batches = [(x[start : start + 7], x[start : start + 7]) for start in range(0, len(x), 7)]
    for data in ((x, x), batches):
        pieces = spread(data, len(x), torch.device("cpu"))
        chosen = torch.cat([inputs for inputs, _ in pieces])[:, 0]  # type: ignore[misc, call-overload]
        assert torch.equal(chosen, torch.arange(0, len(x), 6, dtype=torch.float64))
        assert torch.equal(chosen, torch.cat([targets for _, targets in pieces])[:, 0])
        assert max(len(targets) for _, targets in pieces) <= EXAMPLES // 4
    with pytest.raises(pw.PeewitError, match=r"train has 2563 examples, and the posterior was fitted to 10"):
        spread((x, x), 10, torch.device("cpu"))


def test_separated_classes_are_warned_about() -> None:
    """Where the evidence alone chose; not with a say of the data, and the class of the warning can be filtered."""
    model, x, y = separated(2000)
    la = pw.fit(model, (x, y), "classification")
    with pytest.warns(pw.UnderconfidenceWarning, match=r"almost perfectly.*tune\(validation=\.\.\.\).*tune\(train="):
        tuned = la.tune()
    (text,) = [text for text in tuned.trace.warnings if "almost perfectly" in text]
    assert "last_layer" not in text, "no way out: see What is missed, and why, in docs/quality.md"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pw.TuningWarning)
        warnings.simplefilter("error", pw.UnderconfidenceWarning)
        la.tune(train=(x, y))
        la.tune(parameters=["prior"], validation=(x, y), limits=(1e-3, 1e3), start=1.0)


def test_effective_dimensions_and_noise_are_warned_about() -> None:
    """More than half of the labels; a noise of several times the residuals; one above the targets' deviation."""
    x = normal(24, 2)
    y = (2 * x[:, :1]).sin() + 0.3 * normal(24, 1, seed=4)
    model = trained(built(nn.Sequential(nn.Linear(2, 60), nn.Tanh(), nn.Linear(60, 1))), x, y, 3000).to(DEVICE)
    data = (x.to(DEVICE), y.to(DEVICE))
    la = pw.fit(model, data, "regression")
    with pytest.warns(pw.UnderconfidenceWarning, match=r"effective dimensions for 24 labels; the noise .* times the"):
        la.tune()
    la = pw.fit(model, data, pw.Gaussian(2.0))
    words = r"^Validation data would narrow the intervals: the noise 2 exceeds the deviation .*, 0\.\d+"
    with pytest.warns(pw.TuningWarning, match=words):
        la.tune(train=data, parameters=["prior"])


def test_the_network_itself_is_a_candidate() -> None:
    """Validation data that the network fits perfectly leave nothing to be unsure of, however far the start is."""
    model, x, y = separated()
    la = pw.fit(model, (x, y), "classification", prior=1e-3)
    labels = model(x).argmax(1)
    with pytest.warns(pw.TuningWarning, match="best without uncertainty of the weights"):
        tuned = la.tune(validation=(x, labels))
    assert float(tuned.prior.precision) == pytest.approx(1e10, rel=1e-2)
    assert torch.allclose(tuned.predict(x).probs, model(x).softmax(1), atol=1e-6)


def test_the_noise_is_never_below_the_training_residuals() -> None:
    """A few validation targets that happen to be met cannot make it so."""
    x = normal(40, 2)
    y = x[:, :1] + 0.3 * normal(40, 1, seed=4)
    model = trained(built(nn.Linear(2, 1)), x, y).to(DEVICE)
    data = (x.to(DEVICE), y.to(DEVICE))
    residual = float((model(data[0]).detach() - data[1]).square().mean().sqrt())
    la = pw.fit(model, data, "regression")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pw.TuningWarning)
        tuned = la.tune(validation=(data[0][:3], model(data[0][:3]).detach()))
    assert float(tuned.likelihood.noise) == pytest.approx(residual, rel=1e-6)


def test_validation_after_training() -> None:
    """The mode that "training" took the evidence at needs no training data afterwards; one that was asked for does."""
    x = normal(40, 2)
    y = (2 * x[:, :1]).sin() + 0.3 * normal(40, 1, seed=4)
    model = trained(built(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1))), x, y).to(DEVICE)
    data, held = (x.to(DEVICE), y.to(DEVICE)), (normal(20, 2, seed=7).to(DEVICE), normal(20, 1, seed=8).to(DEVICE))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        la = pw.fit(model, data, "regression")
        expected = la.tune(validation=held)
        tuned = la.tune(train=data)
        assert tuned.linear_mode is not None
        after = tuned.tune(validation=held)
        assert after.linear_mode is None
        assert float(after.prior.precision) == pytest.approx(float(expected.prior.precision), rel=0.05)
        assert tuned.tune(validation=held, train=data).linear_mode is not None
        asked = la.tune(at="linear_mode", train=data)
        with pytest.raises(pw.PeewitError, match="train= is missing: the posterior is at its linear mode"):
            asked.tune(validation=held)


@pytest.mark.parametrize("start", [1.0, 2e-5, 50.0])
def test_no_uncertainty_is_told_from_every_start(start: float) -> None:
    """Where the search comes near a precision that is as good as infinite, rounding decides which is best."""
    model, x, y = separated()
    model, x = model.float(), x.float()
    la = pw.fit(model, (x, y), "classification", prior=start)
    with pytest.warns(
        pw.TuningWarning, match=r"precisions is [\d.]+e\+\d+: on these data predictions are best without"
    ):
        tuned = la.tune(validation=(x, model(x).argmax(1)))
    assert torch.allclose(tuned.predict(x).probs, model(x).softmax(1), atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*switched off:peewit.TuningWarning")
def test_the_evidence_at_the_linear_mode_is_checked_on_the_training_data() -> None:
    """Predictions that doubt labels which the network knows; a noise above the targets' deviation."""
    model, x, y = separated(300)
    la = pw.fit(model, (x, y), "classification", prior=pw.Prior.layerwise(1.0))
    words = r"predictions explain the training labels worse than the network does, by [\d.]+ nats per label"
    with pytest.warns(pw.UnderconfidenceWarning, match=words) as told:
        tuned = la.tune(at="linear_mode", train=(x, y))
    network = nn.functional.cross_entropy(model(x).detach(), y)
    lost = -float(tuned.predict(x).log_prob(y).mean()) - float(network)
    assert lost > DOUBT and any(f"by {lost:.2g} nats" in str(warning.message) for warning in told)
    with warnings.catch_warnings():
        warnings.simplefilter("error", pw.UnderconfidenceWarning)
        la.tune(train=(x, y), at="linear_mode", parameters=["prior"], method="training")
    data = (normal(24, 2).to(DEVICE), 0.1 * normal(24, 1, seed=4).to(DEVICE))
    line = built(nn.Linear(2, 1)).to(DEVICE)
    la = pw.fit(line, data, pw.Gaussian(2.0), at="linear_mode")
    with pytest.warns(pw.UnderconfidenceWarning, match="the noise 2 exceeds the deviation of the training targets"):
        la.tune(train=data, parameters=["prior"], method="evidence")
