"""Tuning by the evidence at the mode of the linear model: exact laws, and what the trace says."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import peewit as pw
from fitting import built, classes, fitted, normal
from peewit.linear_model.solver import Solver
from peewit.tuning.ascent import gradient_of
from peewit.tuning.profile import EvidencePoint, Hyperparameters, profile_of
from peewit.tuning.steps import FASTER, FASTEST, SLOWER, Pace, newton, prior_dominated, switched_off
from snapshots import changed, snapshot
from tables import moved

METHODS = ("evidence", "fixed_point")


def regression_data() -> tuple[Tensor, Tensor]:
    """Thirty examples of a noisy linear law."""
    x = normal(30, 4)
    return x, x @ torch.tensor([[1.0], [-2.0], [0.5], [0.2]]).double() + 0.7 + 0.3 * normal(30, 1, seed=5)


def linear_network(seed: int, size: float = 1.0) -> nn.Module:
    """A linear model with whatever weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Linear(4, 1).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(size)
    return model


def marginal(x: Tensor, y: Tensor, weight: float, bias: float, noise: float) -> float:
    """The log marginal likelihood of Bayesian linear regression."""
    cov = x @ x.T / weight + torch.ones(len(x), len(x)).double() / bias + noise**2 * torch.eye(len(x)).double()
    return float(torch.distributions.MultivariateNormal(torch.zeros(len(x)).double(), cov).log_prob(y[:, 0]))


def best(x: Tensor, y: Tensor) -> Tensor:
    """(3,): logarithms of both precisions and of the noise at the top of the marginal likelihood, by LBFGS."""

    def value(z: Tensor) -> Tensor:
        cov = x @ x.T / z[0].exp() + torch.ones(len(x), len(x)).double() / z[1].exp()
        cov = cov + (2 * z[2]).exp() * torch.eye(len(x)).double()
        return torch.distributions.MultivariateNormal(torch.zeros(len(x)).double(), cov).log_prob(y[:, 0])

    z = torch.tensor([0.0, 0.0, -1.0], dtype=torch.float64, requires_grad=True)
    ends = {"max_iter": 200, "tolerance_grad": 1e-12, "tolerance_change": 0.0}
    search = torch.optim.LBFGS([z], lr=1.0, line_search_fn="strong_wolfe", **ends)

    def closure() -> Tensor:
        search.zero_grad()
        loss = -value(z)
        loss.backward()
        return loss

    search.step(closure)
    return z.detach()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("seed", [0, 1])
def test_a_linear_model_from_any_weights(method: str, seed: int) -> None:
    """Precisions, noise, mode and evidence are those of Bayesian linear regression, whatever the weights are."""
    x, y = regression_data()
    model = linear_network(seed, 10.0**seed)
    la = fitted(model, x, y, "regression", "full", prior=pw.Prior.layerwise(1.0))
    made = la.tune(method, at="linear_mode", train=(moved(x), moved(y)), tolerance=1e-9)
    top = best(x, y)
    assert made.trace.converged
    assert torch.allclose(made.prior.precision.log().cpu(), top[:2], atol=1e-6)
    assert math.log(made.likelihood.noise) == pytest.approx(float(top[2]), abs=1e-6)
    expected = marginal(x, y, *top.exp().tolist())
    assert float(made.log_evidence()) == pytest.approx(expected, abs=1e-8)
    assert made.trace.values[-1] == pytest.approx(expected, abs=1e-8)
    wide = torch.cat([x, torch.ones(30, 1).double()], 1)
    scale = math.exp(-2 * float(top[2]))
    delta = torch.diag(torch.cat([top[0].expand(4), top[1:2]]).exp())
    ridge = torch.linalg.solve(scale * wide.T @ wide + delta, scale * wide.T @ y)[:, 0]
    assert torch.allclose((made.weights + made.linear_mode.displacement).cpu(), ridge, atol=1e-6)
    assert made.linear_mode.converged and made.evidence().where == "the mode of the linear model"


@pytest.mark.parametrize("method", METHODS)
def test_where_it_ends_nothing_moves(method: str) -> None:
    """MacKay's fixed point holds at the mode that these precisions have, and the total derivative vanishes."""
    model, x, y = network()
    la = fitted(model, x, y, pw.Gaussian(0.02), "full", prior=pw.Prior.groups({"0": 1.0, "2": 1.0}))
    made = la.tune(method, at="linear_mode", train=(moved(x), moved(y)), tolerance=1e-5, parameters=["prior"])
    again = made.at_linear_mode((moved(x), moved(y)), tolerance=1e-12)
    assert torch.allclose(again.linear_mode.displacement, made.linear_mode.displacement, atol=1e-3)
    parts = again.evidence()
    theta = (again.weights + again.linear_mode.displacement).cpu()
    pull = torch.stack([piece.square().sum() for piece in theta.split([30, 21])]) * made.prior.precision.cpu()
    assert torch.allclose(parts.effective_dimensions, pull, rtol=1e-4)
    before = float(again.log_evidence())
    for factor in (0.8, 1.25):
        for place in (0, 1):
            precision = made.prior.precision.clone()
            precision[place] *= factor
            there = again.with_prior(made.prior.with_precision(precision))
            there = there.at_linear_mode((moved(x), moved(y)), tolerance=1e-6)
            assert float(there.log_evidence()) < before


@functools.cache
def network() -> tuple[nn.Module, Tensor, Tensor]:
    """A network near the one that made the targets of its 60 examples, with little noise: all weights have a use."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        model = built(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))
        x = normal(60, 4)
        y = model(x).detach() + 0.02 * normal(60, 3, seed=9)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model, x, y


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block"])
def test_every_structure(structure: str) -> None:
    """MacKay's fixed point at a mode that is found anew, with whatever curvature the posterior has."""
    x = normal(50, 4)
    y = (x[:, :3] + normal(50, 3, seed=6)).argmax(1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = built(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)))
    la = fitted(model, x, y, "classification", structure)
    made = la.tune(at="linear_mode", train=(moved(x), moved(y)), tolerance=1e-5)
    again = made.at_linear_mode((moved(x), moved(y)), tolerance=1e-12)
    theta = again.weights + again.linear_mode.displacement
    pull = float(made.prior.precision) * float(theta.square().sum())
    assert again.evidence().gamma == pytest.approx(pull, rel=1e-4)


def test_the_trace_and_the_start() -> None:
    """It begins at `P_g / |theta_g - mu_g|^2`, and every step has its decrement, gradient and products."""
    model, x, y = network()
    la = fitted(model, x, y, pw.Gaussian(0.02), "full", prior=pw.Prior.layerwise(1.0, mean=0.1))
    made = la.tune(at="linear_mode", train=(moved(x), moved(y)))
    weights = [parameter.detach() for parameter in model.parameters()]
    start = torch.stack([each.numel() / (each - 0.1).square().sum() for each in weights])
    assert torch.allclose(made.trace.precisions[0].cpu(), start)
    trace = made.trace
    assert len(trace) == len(trace.decrements) == len(trace.gradients) == len(trace.products) == len(trace.precisions)
    assert list(trace.products) == sorted(trace.products) and trace.products[-1] <= made.linear_mode.products
    assert trace.effective_dimensions.shape == trace.precisions.shape
    assert "products over the data" in repr(trace)
    assert trace.values[-1] == pytest.approx(max(trace.values), abs=1e-3)
    given = la.tune(at="linear_mode", train=(moved(x), moved(y)), start=3.0).trace
    assert torch.allclose(given.precisions[0], torch.full_like(given.precisions[0], 3.0))
    assert given.values[-1] == pytest.approx(trace.values[-1], abs=0.02)


def test_covariance_under_rescaling() -> None:
    """Inputs in other units: weights of a group times k have precisions over k^2, from the first step to the last."""
    x, y = regression_data()
    traces = []
    for k in (1.0, 7.0):
        model = linear_network(0)
        with torch.no_grad():
            model.weight.mul_(k)
        la = fitted(model, x / k, y, pw.Gaussian(0.4), "full", prior=pw.Prior.layerwise(1.0))
        traces.append(la.tune(at="linear_mode", train=(moved(x / k), moved(y)), tolerance=1e-8).trace)
    first, second = traces
    assert torch.allclose(first.precisions[:, 0], 49 * second.precisions[:, 0], rtol=1e-6)
    assert torch.allclose(first.precisions[:, 1], second.precisions[:, 1], rtol=1e-6)
    assert torch.allclose(torch.tensor(first.values), torch.tensor(second.values), atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_groups_without_a_use_are_switched_off(method: str) -> None:
    """Inputs that have nothing to say: their weights go to the prior's mean, and that is said."""
    x, y = normal(40, 6), normal(40, 1, seed=3)
    y = x[:, :1] + 0.1 * y

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(1)
                self.used, self.other = nn.Linear(1, 1, bias=False), nn.Linear(5, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.used(x[:, :1]) + self.other(x[:, 1:])

    model = Two().double()
    residual = x[:, 1:] - x[:, :1] * (x[:, :1] * x[:, 1:]).sum(0) / x[:, :1].square().sum()
    basis = torch.linalg.qr(residual).Q
    y = y - basis @ (basis.T @ y)  # nothing in the targets that the others could explain
    la = fitted(model, x, y, pw.Gaussian(0.02), "full", prior=pw.Prior.layerwise(1.0))
    with pytest.warns(pw.TuningWarning, match=r"'other.weight' switched off: less than 0.001 effective dimensions"):
        made = la.tune(method, at="linear_mode", train=(moved(x), moved(y)), parameters=["prior"])
    assert made.trace.converged
    assert float(made.evidence().effective_dimensions[1]) < 1e-3
    after = made.weights + made.linear_mode.displacement
    assert float(after[1:].abs().max()) < 1e-3 < float(after[0].abs())


@pytest.mark.parametrize("method", METHODS)
def test_weights_at_the_priors_mean_keep_their_precision_at_the_start(method: str) -> None:
    """`P / 0` is no precision to begin from."""
    x, y = regression_data()
    model = linear_network(0)
    with torch.no_grad():
        model.bias.zero_()
    la = fitted(model, x, y, "regression", "full", prior=pw.Prior.layerwise([2.0, 3.0]))
    made = la.tune(method, at="linear_mode", train=(moved(x), moved(y)), tolerance=1e-3)
    assert float(made.trace.precisions[0, 1]) == pytest.approx(3.0)
    assert torch.allclose(made.prior.precision.log().cpu(), best(x, y)[:2], atol=2e-3)


@pytest.mark.parametrize("prior", [pw.Prior.scalar(), pw.Prior.g_prior(), pw.Prior.unitwise()])
def test_other_priors(prior: pw.Prior) -> None:
    """One precision, ratios of the curvature, one per unit: total derivatives vanish."""
    model, x, y = network()
    la = fitted(model, x, y, pw.Gaussian(0.02), "full", prior=prior)
    with warnings.catch_warnings():
        if prior.grouping.name == "unitwise":
            warnings.filterwarnings("ignore", ".*switched off", pw.TuningWarning)
        made = la.tune(at="linear_mode", train=(moved(x), moved(y)), tolerance=1e-6, parameters=["prior"])
    precision = made.prior.precision.log().clone().requires_grad_()
    value = made.log_evidence(prior=made.prior.with_precision(precision.exp()))
    (slope,) = torch.autograd.grad(value, precision)
    live = made.evidence().effective_dimensions > 5e-3
    assert float(slope.cpu()[live].abs().max()) < 1e-4


def test_noise_alone_and_prior_alone() -> None:
    """What is not tuned stays as it is."""
    x, y = regression_data()
    data = moved(x), moved(y)
    la = fitted(linear_network(0), x, y, pw.Gaussian(0.9), "full", prior=1.5)
    alone = la.tune(at="linear_mode", train=data, parameters=["noise"], tolerance=1e-9)
    assert alone.state.prior is la.state.prior
    values = {noise: marginal(x, y, 1.5, 1.5, noise) for noise in (alone.likelihood.noise * f for f in (0.99, 1, 1.01))}
    assert max(values, key=lambda noise: values[noise]) == alone.likelihood.noise
    assert float(alone.log_evidence()) == pytest.approx(values[alone.likelihood.noise], abs=1e-8)
    held = la.tune(at="linear_mode", train=data, parameters=["prior"], tolerance=1e-9)
    assert held.likelihood.noise == 0.9
    p = float(held.prior.precision)
    assert marginal(x, y, p, p, 0.9) > max(marginal(x, y, p * f, p * f, 0.9) for f in (0.99, 1.01))


def test_a_loader_read_anew() -> None:
    """Shuffled and too large to keep: the same precisions; nothing of the user's is touched."""
    x, y = regression_data()
    la = fitted(linear_network(0), x, y, "regression", "full", prior=pw.Prior.layerwise(1.0))
    loader = DataLoader(TensorDataset(x, y), batch_size=8, shuffle=True)
    before = snapshot(la.model)
    made = la.tune(at="linear_mode", train=loader, memory=100, tolerance=1e-6)
    assert changed(la.model, before) == []
    assert torch.allclose(made.prior.precision.log().cpu(), best(x, y)[:2], atol=1e-4)


def test_the_trained_weights_again() -> None:
    """`at="trained_weights"` leaves the linear mode behind, whatever chooses."""
    model, x, y = network()
    la, data = fitted(model, x, y, pw.Gaussian(0.02)), (moved(x), moved(y))
    at = la.at_linear_mode(data)
    plain, after = la.tune(), at.tune(at="trained_weights")
    assert after.linear_mode is None and plain.linear_mode is None
    assert torch.allclose(after.prior.precision, plain.prior.precision)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pw.TuningWarning)
        scored = at.tune("grid", grid=[0.5, 1.0, 2.0], validation=data, at="trained_weights")
    assert scored.linear_mode is None


@pytest.mark.parametrize("method", ["evidence", "fixed_point"])
def test_a_posterior_at_its_linear_mode_is_tuned_there(method: Any) -> None:
    """Also where the mode is that of an earlier prior; the search starts from it."""
    model, x, y = network()
    la, data = fitted(model, x, y, pw.Gaussian(0.02)), (moved(x), moved(y))
    expected = la.tune(method, at="linear_mode", train=data, tolerance=1e-6)
    for held in (pw.fit(la.model, data, pw.Gaussian(0.02), at="linear_mode"), la.at_linear_mode(data).with_prior(3.0)):
        made = held.tune(method, train=data, tolerance=1e-6)
        assert made.linear_mode is not None and made.state.has_own_linear_mode
        assert made.evidence().where == expected.evidence().where == "the mode of the linear model"
        assert torch.allclose(made.prior.precision, expected.prior.precision, rtol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"method": "grid", "grid": [0.5, 1.0, 2.0, 4.0, 8.0], "validated": True},
        {"method": "grid", "grid": [0.5, 1.0, 2.0, 4.0, 8.0]},
        {"method": "validation", "validated": True},
    ],
    ids=["grid, validation", "grid, evidence", "validation"],
)
@pytest.mark.filterwarnings("ignore::peewit.TuningWarning")
def test_after_scores_the_mode_is_that_of_the_tuned_prior(options: dict[str, Any]) -> None:
    """They choose what they chose at the trained weights; the trace stays."""
    model, x, y = network()
    la, data = fitted(model, x, y, pw.Gaussian(0.02)), (moved(x), moved(y))
    given = {name: value for name, value in options.items() if name != "validated"}
    if "validated" in options:
        given["validation"] = (moved(x[::2] + 0.1), moved(y[::2]))
    plain, made = la.tune(**given), la.at_linear_mode(data).tune(train=data, **given)
    assert plain.linear_mode is None and made.state.has_own_linear_mode
    assert torch.equal(made.prior.precision, plain.prior.precision)
    assert made.trace is not None and made.trace.values == plain.trace.values
    expected = plain.at_linear_mode(data)
    assert float(made.log_evidence()) == pytest.approx(float(expected.log_evidence()), abs=0.1)  # stopped near it


@pytest.mark.parametrize("options", [{}, {"method": "fixed_point"}, {"method": "grid"}, {"method": "validation"}])
def test_a_posterior_at_its_linear_mode_needs_the_training_data(options: dict[str, Any]) -> None:
    """Both ways are named, before any work is done; without a mode `train` is refused as ever."""
    model, x, y = network()
    la, data = fitted(model, x, y, pw.Gaussian(0.02)), (moved(x), moved(y))
    scored = {"validation": data} if options.get("method") == "validation" else {}
    with pytest.raises(pw.PeewitError, match=r"linear mode.*use tune\(train=\.\.\.\), or at='trained_weights'"):
        la.at_linear_mode(data).tune(**options, **scored)
    if not options:  # what chooses the method "training", tested in test_training.py
        return
    with pytest.raises(pw.PeewitError, match=r"train= was given, but nothing here passes over the training data"):
        la.tune(train=data, **options, **scored)


def test_too_few_turns() -> None:
    """It says so, and precisions and mode still belong together."""
    model, x, y = network()
    la = fitted(model, x, y, pw.Gaussian(0.02), "full", prior=pw.Prior.layerwise(1.0))
    with pytest.warns(pw.TuningWarning, match=r"Tuning did not converge: 2 turns were not enough"):
        made = la.tune(at="linear_mode", train=(moved(x), moved(y)), steps=2, tolerance=1e-9)
    assert not made.trace.converged and not made.linear_mode.converged
    assert made.evidence().where == "the mode of the linear model"
    assert made.trace.values[-1] == pytest.approx(float(made.log_evidence()), abs=1e-6)


def test_newtons_step_is_that_of_the_marginal_likelihood() -> None:
    """In log precision and log noise precision, with a mode that follows: by second derivatives of the closed form."""
    x, y = regression_data()
    la = fitted(linear_network(0), x, y, pw.Gaussian(0.3), "full", prior=0.8)
    at = la.at_linear_mode((moved(x), moved(y)), tolerance=1e-17)
    problem = profile_of(at.state.problem, at.prior)
    point = problem.at(problem.start())
    pull = 0.8 * (at.weights + at.linear_mode.displacement)
    answers = (pull @ at.precision.solve(pull)).cpu()[None]
    step = newton(problem, point, answers, gradient_of(problem, point), torch.ones(2, dtype=torch.bool))
    wide = torch.cat([x, torch.ones(30, 1).double()], 1)

    def value(z: Tensor) -> Tensor:
        cov = wide @ wide.T / z[0].exp() + (-z[1]).exp() * torch.eye(30).double()
        return torch.distributions.MultivariateNormal(torch.zeros(30).double(), cov).log_prob(y[:, 0])

    here = torch.tensor([math.log(0.8), -2 * math.log(0.3)], dtype=torch.float64)
    gradient = torch.autograd.functional.jacobian(value, here)
    expected = -torch.linalg.solve(torch.autograd.functional.hessian(value, here), gradient)
    assert torch.allclose(step, expected, rtol=1e-6)


def test_pace_follows_the_direction() -> None:
    """Faster while a number keeps its direction, slower where it turns back, and a fixed point is found sooner."""
    pace = Pace()
    first = pace.of(torch.tensor([1.0, 1.0, 0.0]))
    second = pace.of(torch.tensor([1.0, -1.0, 0.0]))
    assert first.tolist() == [1.0, 1.0, 0.0] and second.tolist() == pytest.approx([FASTER, -SLOWER, 0.0])
    for _ in range(20):
        made = pace.of(torch.tensor([1.0, -1.0, 0.0]))
    assert made.tolist() == [FASTEST, -FASTEST, 0.0]
    pace.slow()
    assert pace.of(torch.tensor([1.0, -1.0, 0.0]))[0] == SLOWER * FASTER * FASTEST

    def turns(step: Callable[[Tensor], Tensor]) -> int:
        """Until steps that fall short by different factors have arrived."""
        short, z = torch.tensor([0.05, 0.3, 0.9], dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        for turn in range(1000):
            if float((z - 1).abs().max()) < 1e-2:
                return turn
            z = z + step(short * (1 - z))
        raise AssertionError(f"still at {z.tolist()}")

    assert turns(Pace().of) < 0.4 * turns(lambda step: step)


def test_groups_that_fall() -> None:
    """Held by the prior, wanting more of it, and either answering alone or of one mind for many turns."""
    gamma = torch.tensor([0.5, 0.5, 0.5, 0.5, 2.0], dtype=torch.float64)
    pull = torch.tensor([0.4, 0.4, 0.6, 0.4, 0.4], dtype=torch.float64)
    spread = torch.tensor([0.49, 0.49, 0.49, 0.3, 1.99], dtype=torch.float64)
    point = EvidencePoint(
        hyperparameters=Hyperparameters(torch.zeros(5), 1.0),
        value=0.0,
        gamma=gamma,
        spread=spread,
        pull=pull,
        surprise=0.0,
    )
    alone, shared = pull.clone(), 0.5 * pull
    assert prior_dominated(point, alone, False).tolist() == [True, True, False, False, False]
    assert prior_dominated(point, shared, False).tolist() == [False] * 5
    steady = torch.tensor([False, True, True, True, True])
    assert prior_dominated(point, shared, steady).tolist() == [False, True, False, False, False]


def test_who_is_switched_off() -> None:
    """Also where the evidence is even between more and less of the prior; not where it wants the weights back."""
    gamma = torch.tensor([5e-4, 5e-4, 5e-4, 5e-3], dtype=torch.float64)
    pull = torch.tensor([4e-4, 5.2e-4, 9e-4, 1e-3], dtype=torch.float64)
    point = EvidencePoint(
        hyperparameters=Hyperparameters(torch.zeros(4), 1.0),
        value=0.0,
        gamma=gamma,
        spread=gamma,
        pull=pull,
        surprise=0.0,
    )
    assert switched_off(point).tolist() == [True, True, False, False]


def test_who_is_steady() -> None:
    """Those that have gone in one direction until they could go no faster; the noise is no group."""
    pace, step = Pace(), torch.tensor([1.0, -1.0, 1.0])
    assert pace.steady is False
    for turn in range(7):
        pace.of(step * torch.tensor([1.0, (-1.0) ** turn, 1.0]))
    assert isinstance(pace.steady, Tensor)
    assert pace.steady.tolist() == [True, False]


def test_roundings_turn_nothing_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the evidence moves by less than its rounding, a turn that lowers it has not gone too far."""
    x, y = normal(40, 4), classes(3, 40)
    model = built(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)))
    la, data = fitted(model, x, y, "classification", prior=pw.Prior.layerwise(1.0)), (moved(x), moved(y))
    turned_back: list[int] = []
    own, place = Solver.energy, iter(range(10_000))
    monkeypatch.setattr(Pace, "slow", lambda self: turned_back.append(1))
    monkeypatch.setattr(Solver, "energy", lambda self: own(self) + 1e-3 * (next(place) % 2))

    def tune() -> int:
        turned_back.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            la.tune(at="linear_mode", train=data, tolerance=1e-5, steps=30)
        return len(turned_back)

    assert tune() > 0
    monkeypatch.setattr("peewit.linear_model.solver.rounding", lambda size, dtype: 2e-3)
    assert tune() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"at": "linear_mode"}, r"at='linear_mode' passes over the training data; give it as train="),
        ({"at": "liner_mode", "train": ()}, r"at='liner_mode' is not known; did you mean 'linear_mode'\?"),
        (
            {"at": "linear_mode", "method": "validation", "train": ()},
            r"at='linear_mode' with method='validation', whose score",
        ),
        ({"at": "linear_mode", "method": "grid"}, r"at='linear_mode' with method='grid'.*use method='evidence'"),
        ({"method": "evidence", "train": ()}, r"train= was given.*use at='linear_mode' with it"),
        ({"memory": 1e9}, r"memory= is for passes over data; use it with at=.linear_mode. or validation="),
        (
            {"at": "linear_mode", "train": (), "parameters": ["temperature"]},
            r"The evidence cannot choose a temperature",
        ),
        (
            {"method": "evidence", "at": "linear_mode", "train": (), "grid": [1.0]},
            r"grid= was given, but method='evidence' has none",
        ),
    ],
)
def test_what_is_refused(options: dict[str, Any], words: str) -> None:
    """With what to do instead."""
    x, y = normal(10, 4), classes(3, 10)
    la = fitted(built(nn.Linear(4, 3)), x, y, "classification")
    with pytest.raises(ValueError, match=words):
        la.tune(**options)
