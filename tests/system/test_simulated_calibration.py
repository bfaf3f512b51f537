"""The whole chain by simulation: truths drawn from the prior, data from them, and predictions that hold what they say.

Seeds are fixed, so that the tests are deterministic; bounds are those of the statistics at a level of 1e-3 or so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor, nn
from torch.func import functional_call, hessian, jacrev, vmap

import peewit as pw
from environment import DEVICE
from fitting import seeded
from tables import moved

SIMULATIONS = 400
LEAST = 1e-3  # probability of a test statistic


def uniform(ranks: Tensor, values: int) -> bool:
    """Whether whole numbers below `values` are equally frequent, by a chi-square test."""
    counts = torch.bincount(ranks.cpu(), minlength=values)
    return float(stats.chisquare(counts.numpy()).pvalue) > LEAST


def binned(shares: Tensor, bins: int = 10) -> Tensor:
    """Numbers in (0, 1) as bins."""
    return (shares.double() * bins).long().clamp(0, bins - 1)


def holds(hits: Tensor, level: float) -> bool:
    """Whether the number of hits is one that a coin with this probability gives."""
    return float(stats.binomtest(int(hits.sum()), hits.numel(), level).pvalue) > LEAST


def weights_into(model: nn.Module, vector: Tensor) -> None:
    """Put a vector of weights into a network."""
    nn.utils.vector_to_parameters(moved(vector), model.parameters())


# A linear model with Gaussian noise: exact


def linear_draws(simulations: int, points: int = 3, width: int = 2, noise: float = 0.6, precision: float = 1.5) -> Any:
    """Truths, designs, targets, and the posterior means by the closed form."""
    generator = seeded(11)
    draw = {"generator": generator, "dtype": torch.float64}
    truth = torch.randn(simulations, width, **draw) / precision**0.5
    x = torch.randn(simulations, points + 1, width, **draw)
    y = (x @ truth[..., None])[..., 0] + noise * torch.randn(simulations, points + 1, **draw)
    seen, target = x[:, :points], y[:, :points]
    matrix = seen.mT @ seen / noise**2 + precision * torch.eye(width, dtype=torch.float64)
    mean = torch.linalg.solve(matrix, (seen.mT @ target[..., None]) / noise**2)[..., 0]
    return truth, x, y, mean, noise, precision


def test_linear_models_are_calibrated_exactly() -> None:
    """Coverage of intervals, the place of a new observation in its predictive, and ranks of truths among samples."""
    truth, x, y, mean, noise, precision = linear_draws(SIMULATIONS)
    model = nn.Linear(2, 1, bias=False).double().to(DEVICE)
    generator = seeded(12)
    hits: dict[float, list[bool]] = {0.5: [], 0.9: []}
    places, function_ranks, weight_ranks, observed_ranks = [], [], [], []
    for s in range(SIMULATIONS):
        weights_into(model, mean[s])
        data = moved(x[s, :-1]), moved(y[s, :-1, None])
        la = pw.fit(model, data, pw.Gaussian(noise), structure="full", prior=precision)
        new, value = moved(x[s, -1:]), moved(y[s, -1:, None])
        pred: Any = la.predict(new)
        for level, found in hits.items():
            lower, upper = pred.interval(level)
            found.append(bool((lower <= value) & (value <= upper)))
        standard = (value - pred.mean) / pred.variance.sqrt()
        places.append(float(torch.special.ndtr(standard)))
        output = float(x[s, -1] @ truth[s])
        function_ranks.append(int((la.functional_samples(new, 9, generator=generator) < output).sum()))
        weight_ranks.append(int((la.sample(9, generator=generator)[:, 0] < truth[s, 0].item()).sum()))
        observed_ranks.append(int((pred.sample(9, generator) < value).sum()))
    for level, found in hits.items():
        assert holds(torch.tensor(found), level), level
    assert uniform(binned(torch.tensor(places)), 10)
    for ranks in (function_ranks, weight_ranks, observed_ranks):
        assert uniform(torch.tensor(ranks), 10)


def test_a_wrong_variance_would_be_seen() -> None:
    """The test above has the power to tell: without the epistemic part, or with twice the variance, it fails."""
    truth, x, y, mean, noise, precision = linear_draws(SIMULATIONS)
    seen = x[:, :-1]
    matrix = seen.mT @ seen / noise**2 + precision * torch.eye(2, dtype=torch.float64)
    new = x[:, -1]
    epistemic = (new * torch.linalg.solve(matrix, new[..., None])[..., 0]).sum(-1)
    residual = y[:, -1] - (new * mean).sum(-1)
    right = epistemic + noise**2
    assert uniform(binned(torch.special.ndtr(residual / right.sqrt())), 10)
    for variance in (torch.full_like(epistemic, noise**2), 2 * right, epistemic):
        assert not uniform(binned(torch.special.ndtr(residual / variance.sqrt())), 10)
    assert truth.shape == mean.shape


def test_joint_densities_are_calibrated() -> None:
    """Squared distances of several new observations together are chi-square with their number of degrees."""
    truth, x, _, mean, noise, precision = linear_draws(SIMULATIONS)
    generator = seeded(14)
    model = nn.Linear(2, 1, bias=False).double().to(DEVICE)
    new = torch.randn(3, 2, generator=generator, dtype=torch.float64)
    places = []
    for s in range(SIMULATIONS // 2):
        weights_into(model, mean[s])
        data = moved(x[s, :-1]), moved(torch.zeros(3, 1, dtype=torch.float64))  # the covariance asks for no targets
        la = pw.fit(model, data, pw.Gaussian(noise), structure="full", prior=precision)
        pred: Any = la.predict(moved(new), joint=True)
        y = new @ truth[s] + noise * torch.randn(3, generator=generator, dtype=torch.float64)
        at_mode, at_y = (pred.joint_log_prob(moved(each[:, None])) for each in (new @ mean[s], y))
        places.append(float(stats.chi2(3).cdf(2 * float(at_mode - at_y))))
    assert uniform(binned(torch.tensor(places)), 10)


# Models that are not linear: approximately


def batched_modes(energy: Callable[[Tensor, Tensor, Tensor], Tensor], start: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """(S, D): minima of `energy(weights, x, y)` for all data sets at once, by damped Newton steps."""
    weights = start.clone()
    damping = torch.full((len(start), 1, 1), 1e-2, dtype=torch.float64)
    value = vmap(energy)(weights, x, y)
    for _ in range(40):
        gradient, curvature = vmap(jacrev(energy))(weights, x, y), vmap(hessian(energy))(weights, x, y)
        values, vectors = torch.linalg.eigh(curvature)
        inverse = 1 / (values.abs() + damping[:, 0])
        step = (vectors @ (inverse[..., None] * (vectors.mT @ gradient[..., None])))[..., 0]
        moved_to = weights - step
        ahead = vmap(energy)(moved_to, x, y)
        better = ahead <= value
        weights, value = torch.where(better[:, None], moved_to, weights), torch.where(better, ahead, value)
        damping = torch.where(better[:, None, None], damping / 5, damping * 5).clamp(1e-10, 1e6)
    return weights


def outputs_of(model: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """The network as a function of one vector of weights."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}

    def call(vector: Tensor, x: Tensor) -> Tensor:
        pieces = vector.split([shape.numel() for shape in shapes.values()])
        weights = {name: piece.reshape(shape) for (name, shape), piece in zip(shapes.items(), pieces, strict=True)}
        made: Tensor = functional_call(model, weights, (x,))
        return made

    return call


def test_a_small_network_is_calibrated() -> None:
    """Intervals of an MLP with two hidden units hold what they say, within a few per cent."""
    simulations, points, noise = 80, 40, 0.3
    model = nn.Sequential(nn.Linear(1, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    size = sum(parameter.numel() for parameter in model.parameters())
    generator = seeded(21)
    draw = {"generator": generator, "dtype": torch.float64}
    truth = torch.randn(simulations, size, **draw)
    x = 2 * torch.randn(simulations, points + 20, 1, **draw)
    outputs = outputs_of(model)
    clean = vmap(outputs)(truth, x)
    y = clean + noise * torch.randn(clean.shape, **draw)

    def energy(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return 0.5 * (outputs(weights, x) - y).square().sum() / noise**2 + 0.5 * weights.square().sum()

    modes = batched_modes(energy, truth, x[:, :points], y[:, :points])
    model = model.to(DEVICE)
    hits: dict[float, list[Tensor]] = {0.5: [], 0.9: []}
    for s in range(simulations):
        weights_into(model, modes[s])
        data = moved(x[s, :points]), moved(y[s, :points])
        la = pw.fit(model, data, pw.Gaussian(noise), structure="full", prior=1.0)
        pred: Any = la.predict(moved(x[s, points:]))
        for level, found in hits.items():
            lower, upper = pred.interval(level)
            value = moved(y[s, points:])
            found.append((lower <= value) & (value <= upper))
    for level, found in hits.items():
        assert abs(float(torch.cat(found).double().mean()) - level) < 0.03, level


@pytest.mark.parametrize("kind", ["classes", "binary"])
@pytest.mark.parametrize("link", ["probit", "mc"])
def test_linear_classifiers_are_calibrated(kind: str, link: str) -> None:
    """Labels come as often as their probabilities say: altogether, where they are sure, and in sets of classes."""
    simulations, points, width = 100, 10, 2
    outputs = 3 if kind == "classes" else 1
    likelihood: Any = pw.Categorical() if kind == "classes" else pw.Bernoulli()
    model = nn.Linear(width, outputs, bias=False).double()
    generator = seeded(31)
    draw = {"generator": generator, "dtype": torch.float64}
    truth = 1.5 * torch.randn(simulations, outputs * width, **draw)
    x = torch.randn(simulations, points + 30, width, **draw)
    logits = vmap(outputs_of(model))(truth, x)
    p = logits.softmax(-1) if kind == "classes" else logits.sigmoid()
    chance = torch.rand(*p.shape[:2], 1, **draw)
    y = (p.cumsum(-1)[..., :-1] < chance).sum(-1) if kind == "classes" else (chance < p).long()

    def energy(weights: Tensor, x: Tensor, y: Tensor) -> Tensor:
        f = outputs_of(model)(weights, x)
        if kind == "classes":
            loss = torch.nn.functional.cross_entropy(f, y, reduction="sum")
        else:
            loss = (torch.nn.functional.softplus(f) - y * f).sum()
        return loss + 0.5 * weights.square().sum() / 1.5**2

    modes = batched_modes(energy, torch.zeros_like(truth), x[:, :points], y[:, :points])
    model = model.to(DEVICE)
    predicted, happened, inside, plain = [], [], [], []
    for s in range(simulations):
        weights_into(model, modes[s])
        data = moved(x[s, :points]), moved(y[s, :points])
        la = pw.fit(model, data, likelihood, structure="full", prior=1 / 1.5**2)
        new, label = moved(x[s, points:]), moved(y[s, points:])
        pred: Any = la.predict(new, link=link, samples=512)
        one = torch.nn.functional.one_hot(label, 3) if kind == "classes" else label
        predicted.append(pred.probs.flatten().cpu())
        happened.append(one.flatten().double().cpu())
        index = label[..., None]
        inside.append(pred.interval(0.9).gather(-1, index).flatten().cpu())
        plain.append((pred.log_prob(label) - likelihood_of(model, new, label, kind)).sum())
    probability, event = torch.cat(predicted), torch.cat(happened)
    for chosen in (probability >= 0, probability > 0.8, probability < 0.2, (probability > 0.4) & (probability < 0.6)):
        gap = float((event[chosen] - probability[chosen]).mean())
        assert abs(gap) < 0.06, (kind, link, gap)
    assert float(torch.cat(inside).double().mean()) > 0.88
    assert float(torch.stack(plain).sum()) > 0  # better than the most probable weights alone


def likelihood_of(model: nn.Module, x: Tensor, y: Tensor, kind: str) -> Tensor:
    """(N,): log probabilities of labels by the network's own outputs."""
    with torch.no_grad():
        f = model(x)
    if kind == "classes":
        return -torch.nn.functional.cross_entropy(f, y, reduction="none")
    return -(torch.nn.functional.softplus(f) - y * f).sum(-1)
