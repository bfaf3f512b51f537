"""Tuning: optima against dense definitions and closed forms, and what it must not do."""

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
from evidence_cases import EVERY, STRUCTURES, curvature, definition, fit
from fitting import built, cut, fitted, normal, weights_of
from peewit.tracing.tape import Tape
from peewit.tuning import profile as profiles
from peewit.tuning.ascent import gradient_of, newton, vector
from peewit.tuning.options import LIMITS
from peewit.tuning.validation import minimise
from tables import curvature_of, moved, relative, table

PRIORS: dict[str, Any] = {
    "scalar": pw.Prior.scalar(1.0, mean=0.05),
    "layerwise": pw.Prior.layerwise(1.0),
    "unitwise": pw.Prior.unitwise(1.0),
    "inputwise": pw.Prior.inputwise(1.0),
    "g_prior": pw.Prior.g_prior(1.0),
    "diagonal": pw.Prior.diagonal(1.0),
    "groups": pw.Prior.groups({"0": 2.0, "*": 0.5}),
}
HELD = {
    "kron": {"scalar", "layerwise", "unitwise", "inputwise", "g_prior", "groups"},
    "kron reduce": {"scalar", "layerwise", "unitwise", "inputwise", "g_prior", "groups"},
    "kron joint": {"scalar", "layerwise", "inputwise", "g_prior", "groups"},
    "ekfac": {"scalar", "layerwise", "groups"},
}
quiet = pytest.mark.filterwarnings("ignore::peewit.TuningWarning")


def held(structure: str, prior: str) -> bool:
    """Whether a structure has this prior exactly."""
    return prior in HELD.get(structure, PRIORS)


def regression_network() -> tuple[nn.Module, Tensor, Tensor]:
    """A small network with targets that it does not fit exactly."""
    model = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    x = normal(25, 3)
    y = model(x).detach() + 0.4 * normal(25, 2, seed=5)
    return model, x, y


def few_digits() -> tuple[nn.Module, Tensor]:
    """A network and inputs in whole numbers of eighths: outputs are exact on any device, in any order of sums."""
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        for place, parameter in enumerate(model.parameters()):
            parameter.copy_((4 * normal(*parameter.shape, seed=place)).round() / 8)
    return model, (8 * normal(25, 3)).round() / 8


@EVERY
@pytest.mark.parametrize("kind", ["ggn", "empirical"])
@pytest.mark.parametrize("prior", PRIORS)
@quiet
def test_the_optimum_is_a_maximum_of_the_dense_evidence(structure: str, kind: str, prior: str) -> None:
    """No precision and no noise can be moved to a better dense evidence, and the trace says what that is."""
    if not held(structure, prior) or (kind == "empirical" and structure.startswith("kron ")):
        return
    case = table("mlp_regression")
    la = fit(case, structure, kind, prior=PRIORS[prior])
    tuned = la.tune()
    assert tuned.trace is not None and tuned.trace.converged
    value = definition(case, structure, kind)
    mean = 0.05 if prior == "scalar" else 0.0
    group = la.prior.group(la.space)
    base = torch.ones(la.D, dtype=torch.float64) if tuned.prior.base is None else tuned.prior.base.cpu()

    def at(z: Tensor) -> Tensor:
        return value(z[:-1].exp()[group] * base, mean, float(z[-1].exp()))

    noise = float(tuned.likelihood.noise_precision) ** -0.5
    top = torch.cat([tuned.prior.precision, torch.tensor([noise], dtype=torch.float64)]).log()
    here = at(top)
    assert abs(float(here) - tuned.trace.values[-1]) < 1e-7 * abs(float(here))
    assert relative(tuned.log_evidence(), here) < 1e-9
    inside = torch.cat([(tuned.prior.precision < 0.99 * LIMITS[1]), torch.tensor([True])])
    for place in inside.nonzero()[:, 0].tolist()[:8] + [len(top) - 1]:
        for step in (-1e-2, 1e-2):
            there = top.clone()
            there[place] += step
            assert float(at(there)) < float(here) + 1e-9
        slope = differences_at(at, top, place)
        assert abs(slope) < 1e-5


def differences_at(function: Any, z: Tensor, place: int, step: float = 1e-4) -> float:
    """A central difference in one coordinate."""
    shift = torch.zeros_like(z)
    shift[place] = step
    return float(function(z + shift) - function(z - shift)) / (2 * step)


@EVERY
@pytest.mark.parametrize("prior", ["scalar", "layerwise", "g_prior", "groups"])
@pytest.mark.parametrize("kind", ["ggn", "empirical"])
def test_the_gradient_and_the_fixed_point_agree(structure: str, prior: str, kind: str) -> None:
    """Both end where `delta_g |theta_g - mu_g|^2 = gamma_g` and `noise^2 = SSE / (n - degree gamma)`."""
    if not held(structure, prior):
        return
    model, x, y = regression_network()
    la = fitted(model, x, y, pw.Gaussian(0.7), STRUCTURES[structure], curvature=kind, prior=PRIORS[prior])
    first, second = la.tune(), la.tune("fixed_point")
    assert first.trace is not None and second.trace is not None and first.trace.converged and second.trace.converged
    assert relative(second.prior.precision, first.prior.precision) < 2e-6
    assert abs(float(second.likelihood.noise_precision / first.likelihood.noise_precision) - 1) < 1e-6
    parts = first.evidence()
    group, theta = la.prior.group(la.space), weights_of(model) - (0.05 if prior == "scalar" else 0.0)
    delta = first.prior.delta(la.space, la.weights).cpu()
    pull = torch.zeros(len(parts.effective_dimensions), dtype=torch.float64)
    pull = pull.index_add(0, group, delta * theta.square())
    assert relative(parts.effective_dimensions, pull) < 1e-5
    residuals = float((model(x) - y).square().sum().detach())
    degree = 2 if kind == "empirical" else 1
    expected = residuals / (y.numel() - degree * parts.gamma)
    assert abs(1 / float(first.likelihood.noise_precision) / expected - 1) < 1e-6


@EVERY
@pytest.mark.parametrize("prior", PRIORS)
def test_effective_dimensions_are_their_definition(structure: str, prior: str) -> None:
    """`gamma_g = P_g - sum delta_i Sigma_ii`, and the parts of the evidence: from dense matrices."""
    if not held(structure, prior):
        return
    case = table("mlp")
    la = fit(case, structure, prior=PRIORS[prior])
    parts = la.evidence()
    delta, theta = la.prior.delta(la.space, la.weights).cpu(), weights_of(case.model)
    precision = curvature(case, structure, "ggn") + torch.diag(delta)
    inner = 1 - delta * torch.linalg.inv(precision).diagonal()
    expected = torch.zeros(len(parts.groups), dtype=torch.float64).index_add(0, la.prior.group(la.space), inner)
    assert relative(parts.effective_dimensions, expected) < 1e-8
    assert abs(parts.gamma - float(expected.sum())) < 1e-8
    shift = theta - (0.05 if prior == "scalar" else 0.0)
    assert abs(parts.distance - float((delta * shift.square()).sum())) < 1e-9
    assert abs(parts.log_volume - float(torch.logdet(precision) - delta.log().sum())) < 1e-8
    assert abs(parts.complexity + 0.5 * (parts.distance + parts.log_volume)) < 1e-12
    assert abs(parts.log_likelihood + la.state.totals.energy) < 1e-9
    assert abs(parts.total - float(la.log_evidence())) < 1e-9
    other = la.evidence(prior=la.prior.with_precision(3.0))
    assert abs(other.total - float(la.log_evidence(prior=la.prior.with_precision(3.0)))) < 1e-9
    assert parts.is_marginal_likelihood and parts.note == ""


def test_the_evidence_says_when_it_is_no_marginal_likelihood() -> None:
    """With a temperature, and with whatever the likelihood itself says."""

    class Odd(pw.Categorical):
        caveat = "an odd likelihood"

    case = table("mlp")
    la = case.fit("diag")
    warm = la.with_temperature(2.0).evidence()
    assert not warm.is_marginal_likelihood and "temperature 2" in warm.note
    model = case.case.make()[0].to(DEVICE)
    odd = pw.fit(model, (moved(case.x), moved(case.y)), Odd(), structure="diag").evidence()
    assert not odd.is_marginal_likelihood and odd.note == "an odd likelihood"
    assert "not a marginal likelihood: an odd likelihood" in repr(odd)


@pytest.mark.parametrize("structure", ["full", "block", pw.Kron(bias="joint")], ids=str)
@pytest.mark.parametrize("method", ["evidence", "fixed_point"])
def test_bayesian_linear_regression(structure: Any, method: Any) -> None:
    """Evidence, gamma and the optimum of precision and noise are those of the closed form."""
    x = torch.cat([normal(30, 3), torch.ones(30, 1, dtype=torch.float64)], 1)
    y = x @ torch.tensor([[1.0, -0.5, 0.0, 0.3]], dtype=torch.float64).T + 0.3 * normal(30, 1, seed=9)
    model = nn.Linear(3, 1).double()
    precision, noise = 1.0, 1.0
    for _ in range(40):  # weights at their mode, then both numbers at theirs, in turn
        matrix = x.T @ x / noise**2 + precision * torch.eye(4, dtype=torch.float64)
        mode = torch.linalg.solve(matrix, x.T @ y / noise**2)[:, 0]
        with torch.no_grad():
            model.weight.copy_(mode[None, :3])
            model.bias.copy_(mode[3:])
        la = fitted(model, x[:, :3], y, pw.Gaussian(noise), structure, prior=precision)
        covariance = noise**2 * torch.eye(30, dtype=torch.float64) + x @ x.T / precision
        marginal = torch.distributions.MultivariateNormal(torch.zeros(30, dtype=torch.float64), covariance)
        assert relative(la.log_evidence(), marginal.log_prob(y[:, 0])) < 1e-9
        gamma = float((torch.eye(4) - precision * torch.linalg.inv(matrix)).trace())
        assert abs(la.evidence().gamma - gamma) < 1e-8
        tuned = la.tune(method)
        precision, noise = float(tuned.prior.precision), float(tuned.likelihood.noise_precision) ** -0.5
    z = torch.tensor([precision, noise], dtype=torch.float64).log().requires_grad_()
    covariance = z[1].mul(2).exp() * torch.eye(30, dtype=torch.float64) + x @ x.T / z[0].exp()
    exact = torch.distributions.MultivariateNormal(torch.zeros(30, dtype=torch.float64), covariance).log_prob(y[:, 0])
    (slope,) = torch.autograd.grad(exact, z)
    assert float(slope.abs().max()) < 1e-5
    assert relative(tuned.log_evidence(), exact.detach()) < 1e-8


@pytest.mark.parametrize("which", ["prior", "noise"])
@pytest.mark.parametrize("method", ["evidence", "fixed_point"])
def test_prior_and_noise_apart(which: str, method: Any) -> None:
    """What is not asked for stays; what is, is at its own optimum."""
    model, x, y = regression_network()
    la = fitted(model, x, y, pw.Gaussian(0.7), "kron", prior=0.3)
    tuned = la.tune(method, parameters=[which])
    if which == "prior":
        assert float(tuned.likelihood.noise_precision) == float(la.likelihood.noise_precision)
        at = tuned.prior.precision.clone().requires_grad_()
        value = la.log_evidence(prior=at)
    else:
        assert torch.equal(tuned.prior.precision, la.prior.precision)
        at = tuned.likelihood.noise_precision.rsqrt().clone().requires_grad_()
        value = la.log_evidence(noise=at)
    (slope,) = torch.autograd.grad(value, at)
    assert float((slope * at).abs().max().detach()) < 1e-5
    assert float(value.detach()) > float(la.log_evidence())


@pytest.mark.parametrize("method", ["evidence", "fixed_point"])
def test_a_temperature_stays_while_others_are_tuned(method: Any) -> None:
    """The optimum is that of the tempered evidence."""
    model, x, y = regression_network()
    la = fitted(model, x, y, pw.Gaussian(0.7), "kron").with_temperature(3.0)
    tuned = la.tune(method)
    assert tuned.temperature == 3.0
    at = [
        tuned.prior.precision.clone().requires_grad_(),
        tuned.likelihood.noise_precision.rsqrt().clone().requires_grad_(),
    ]
    slopes = torch.autograd.grad(la.log_evidence(prior=at[0], noise=at[1]), at)
    assert all(float((slope * value).abs().max().detach()) < 1e-5 for slope, value in zip(slopes, at, strict=True))


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "block", "full"])
@pytest.mark.parametrize("prior", ["scalar", "layerwise", "g_prior", "unitwise"])
def test_derivatives_of_the_profile(structure: str, prior: str) -> None:
    """The first by differences of the evidence; the second, where it is exact, by differences of the first."""
    if not held(structure, prior):
        return
    model, x, y = regression_network()
    la = fitted(model, x, y, pw.Gaussian(0.7), structure, curvature="empirical", prior=PRIORS[prior]).with_temperature(
        1.6
    )
    problem = profiles.profile_of(la.state.problem, la.prior)
    z = vector(problem.start()) + 0.1 * torch.arange(len(problem.prior.precision) + 1, dtype=torch.float64)

    def point(z: Tensor) -> profiles.EvidencePoint:
        return problem.at(profiles.Hyperparameters(z[:-1], float(z[-1])))

    def value(z: Tensor) -> Tensor:
        chosen = problem.prior.with_precision(z[:-1].exp())
        return la.log_evidence(prior=chosen, noise=math.exp(-0.5 * float(z[-1]))).cpu()

    here = point(z)
    assert abs(here.value - float(value(z))) < 1e-9 * abs(here.value)
    gradient = gradient_of(problem, here)
    expected = torch.tensor([differences_at(value, z, place, 1e-5) for place in range(len(z))], dtype=torch.float64)
    assert relative(gradient, expected) < 1e-6
    if problem.exact:
        rows = []
        for place in range(len(z)):
            shift = torch.zeros_like(z)
            shift[place] = 1e-5
            change = gradient_of(problem, point(z + shift)) - gradient_of(problem, point(z - shift))
            rows.append(change / 2e-5)
        every = torch.ones(len(z), dtype=torch.bool)
        made = newton(problem, here, gradient, every)
        assert relative(made, torch.linalg.solve(-torch.stack(rows), gradient)) < 1e-5


class Watched:
    """Batches that may be passed over until the flag is set."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches
        self.closed = False

    def __iter__(self) -> Iterator[Any]:
        """All batches, or an error."""
        if self.closed:
            raise RuntimeError("the training data were read again")
        yield from self.batches


@pytest.mark.parametrize("structure", ["kron", "ekfac", "full"])
@pytest.mark.parametrize("method", ["evidence", "fixed_point", "grid"])
def test_tuning_is_pure(structure: str, method: Any) -> None:
    """The same every time, without the data, without the generator, and without a change to what it started from."""
    model, x, y = regression_network()
    data = Watched(cut(x, y, [10, 15]))
    model = model.to(DEVICE)
    la = pw.fit(model, data, pw.Gaussian(0.7), structure=structure, prior=pw.Prior.layerwise(1.0))
    data.closed = True
    before = la.log_evidence(), la.precision.variance(), la.prior.precision.clone(), torch.get_rng_state()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    first, second = la.tune(method), la.tune(method)
    after = la.log_evidence(), la.precision.variance(), la.prior.precision, torch.get_rng_state()
    assert all(torch.equal(left, right) for left, right in zip(before, after, strict=True))
    assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(first.prior.precision, second.prior.precision)
    assert torch.equal(first.likelihood.noise_precision, second.likelihood.noise_precision)
    assert first.trace is not None and second.trace is not None and first.trace.values == second.trace.values
    assert la.trace is None
    changed = first.with_prior(1.0), first.with_temperature(2.0), first.with_arithmetic("float64")
    assert all(other.trace is None for other in changed) and first.to(first.weights.device).trace is not None
    assert first.prior.grouping.name == "layerwise" and first.curvature is la.curvature
    # From another start it ends in the same place: the evidence has one top.
    if method == "evidence":
        far = la.tune(start=torch.tensor([1e-4, 1e3, 10.0, 0.1], dtype=torch.float64))
        assert relative(far.prior.precision, first.prior.precision) < 1e-6
        assert relative(la.tune(start=pw.Prior.layerwise(50.0)).prior.precision, first.prior.precision) < 1e-6


def test_a_trace_can_be_read_and_plotted() -> None:
    """Values, precisions, noises and effective dimensions for every step, with the names of the groups."""
    model, x, y = regression_network()
    la = fitted(model, x, y, pw.Gaussian(0.7), "kron", prior=pw.Prior.layerwise(1.0))
    trace = la.tune().trace
    assert trace is not None
    assert list(trace.groups) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    steps = len(trace)
    assert trace.precisions.shape == (steps, 4) == tuple(trace.effective_dimensions.shape)
    assert len(trace.noises) == len(trace.temperatures) == steps
    assert trace.values[-1] == pytest.approx(trace.values[trace.best], rel=1e-12)
    assert trace.values[0] == pytest.approx(float(la.log_evidence()))
    assert "converged" in repr(trace) and "0.weight" in repr(trace) and "noise" in repr(trace)
    assert table("mlp").fit("diag").tune("grid", grid=[0.1, 0.2, 1.0, 300.0]).trace.noises == ()


@quiet
def test_a_grid_shows_its_curve_and_takes_its_best() -> None:
    """Every value is scored by the evidence or on validation data, also over noise and temperature."""
    model, x, y = regression_network()
    la = fitted(model, x, y, pw.Gaussian(0.7), "kron")
    values = [10.0 ** (place / 4) for place in range(-12, 12)]
    tuned = la.tune("grid", grid=values)
    scores = [float(la.log_evidence(prior=value)) for value in values]
    assert tuned.trace.values == pytest.approx(scores, rel=1e-9)
    assert float(tuned.prior.precision) == values[scores.index(max(scores))]
    both = la.tune("grid", grid={"prior": values, "noise": [0.2, 0.4, 0.8]})
    scores = [float(la.log_evidence(prior=p, noise=n)) for p in values for n in (0.2, 0.4, 0.8)]
    assert both.trace.values == pytest.approx(scores, rel=1e-9)
    best = scores.index(max(scores))
    assert float(both.prior.precision) == values[best // 3]
    assert float(both.likelihood.noise_precision) ** -0.5 == pytest.approx([0.2, 0.4, 0.8][best % 3])
    new = moved(normal(12, 3, seed=8)), moved(normal(12, 2, seed=9))
    scored = la.tune("grid", grid={"prior": [0.1, 1.0, 10.0], "temperature": [0.5, 2.0]}, validation=new)
    expected = [
        pw.validation_nll(la.with_prior(p).with_temperature(t), new) for p in (0.1, 1.0, 10.0, 1e10) for t in (0.5, 2.0)
    ]  # the network itself is always among them
    assert scored.trace.values == pytest.approx(expected)
    assert pw.validation_nll(scored, new) == pytest.approx(min(expected))
    # Of several precisions the grid moves the geometric mean, and keeps the ratios.
    ratios = la.with_prior(pw.Prior.groups({"0": 4.0, "*": 1.0})).tune("grid", grid=[0.5, 3.0, 40.0])
    assert float(ratios.prior.precision[0] / ratios.prior.precision[1]) == pytest.approx(4.0)
    assert float(ratios.prior.precision.log().mean().exp()) in [pytest.approx(value) for value in (0.5, 3.0, 40.0)]


def test_validation_by_hand() -> None:
    """The NLL is that of the predictive: probit in classification, the Gaussian with all its variance in regression."""
    case = table("mlp")
    la = case.fit("full")
    x, y = moved(case.x), moved(case.y)
    probs = la.predict(x).probs
    expected = -probs.cpu()[torch.arange(len(y)), case.y].log().mean()
    assert pw.validation_nll(la, (x, y)) == pytest.approx(float(expected))
    assert pw.validation_nll(la, [(x[:2], y[:2]), (x[2:], y[2:])]) == pytest.approx(float(expected))
    case = table("mlp_regression")
    la = case.fit("full").with_noise(0.6)
    x, y = moved(case.x), moved(case.y)
    made = la.predict(x)
    # Outputs share weights, so their errors are correlated.
    spread = made.covariance + 0.36 * torch.eye(2, dtype=torch.float64, device=made.mean.device)
    normal_ = torch.distributions.MultivariateNormal(made.mean, spread)
    assert pw.validation_nll(la, (x, y)) == pytest.approx(float(-normal_.log_prob(y).sum() / len(y)))


@pytest.mark.parametrize("likelihood", ["classification", "regression"])
@quiet
def test_validation_finds_the_least_nll(likelihood: str) -> None:
    """Over the prior, and over noise or temperature with it: no neighbour is better, and no training data is read."""
    model, x, y = regression_network()
    family: Any = pw.Gaussian(0.7)
    new = normal(40, 3, seed=8)
    targets = model(new).detach() + 0.5 * normal(40, 2, seed=9)
    if likelihood == "classification":  # a network that is too sure for a fifth of wrong labels
        y, targets, family = y.argmax(-1), model(new).argmax(-1), "classification"
        targets[::5] = 1 - targets[::5]
        with torch.no_grad():
            for parameter in model[2].parameters():
                parameter *= 8
    data = Watched(cut(x, y, [25]))
    la = pw.fit(model.to(DEVICE), data, family, structure="kron", prior=pw.Prior.layerwise([1.0, 2.0, 1.0, 4.0]))
    data.closed = True
    held_out = moved(new), moved(targets)
    noise = [] if family == "classification" else ["noise"]
    for given in (None, ["prior", *noise, "temperature"], [*noise, "temperature"]):
        options = {} if given is None else {"parameters": given}
        tuned = la.tune("validation", validation=held_out, **options)
        again = la.tune("validation", validation=held_out, **options)
        assert torch.equal(tuned.prior.precision, again.prior.precision) and tuned.trace.values == again.trace.values
        assert tuned.trace.objective == "validation NLL"
        assert not any("allowed" in told for told in tuned.trace.warnings)  # inside all limits
        best = pw.validation_nll(tuned, held_out)
        assert best == pytest.approx(min(tuned.trace.values)) and best <= pw.validation_nll(la, held_out)
        ratio = tuned.prior.precision / la.prior.precision
        assert float(ratio.max() / ratio.min()) == pytest.approx(1.0)
        for factor in (0.8, 1.25):
            if given is None or "prior" in given:
                other = tuned.with_prior(tuned.prior.with_precision(tuned.prior.precision * factor))
                assert pw.validation_nll(other, held_out) > best + 1e-5
            if given is not None:
                other = tuned.with_temperature(tuned.temperature * factor)
                assert pw.validation_nll(other, held_out) > best + 1e-5
            else:
                assert tuned.temperature == 1.0
            if likelihood == "regression":
                other = tuned.with_noise(float(tuned.likelihood.noise_precision) ** -0.5 * factor)
                assert pw.validation_nll(other, held_out) > best + 1e-5


def test_validation_uses_the_predictive_that_will_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Options go to `predict`, and `log_prob` of what it returns is the score."""
    case = table("mlp")
    la = case.fit("diag")
    asked = []

    class Answer:
        def log_prob(self, y: Tensor) -> Tensor:
            return -2.0 * torch.ones(len(y))

    def predict(self: Any, x: Any, **options: Any) -> Answer:
        asked.append(options)
        return Answer()

    monkeypatch.setattr("peewit.predictions.shared.predict", predict)
    data = moved(case.x), moved(case.y)
    assert pw.validation_nll(la, data, link="mc") == 2.0
    with pytest.warns(pw.TuningWarning, match="smallest value"):
        la.tune("grid", grid=[0.5, 1.0], validation=data, predict={"method": "sampled"})
    assert asked == [{"memory": None, **options} for options in ({"link": "mc"}, *[{"method": "sampled"}] * 3)]


@pytest.mark.parametrize(
    "options",
    [{}, {"link": "mc", "samples": 64}, {"link": "bridge"}, {"memory": 1.0}, {"memory": 3e4}, {"joint": True}],
    ids=str,
)
@pytest.mark.parametrize(
    ("name", "structure", "prior"),
    [("mlp", "kron", "layerwise"), ("tied_gpt", "diag", "scalar")],
)
@quiet
def test_scores_are_those_of_predictions(name: str, structure: str, prior: str, options: Any) -> None:
    """Jacobians are pulled back once for all settings: the NLLs are those of one posterior after the other."""
    case = table(name)
    la = case.fit(structure, prior=PRIORS[prior])
    number = len(case.y)
    batches = [(moved(case.x[place]), moved(case.y[place])) for place in (slice(0, 2), slice(2, 3), slice(3, number))]
    own = {name: value for name, value in options.items() if name == "memory"}
    scored = {name: value for name, value in options.items() if name != "memory"}
    grid = {"prior": [0.3, 4.0], "temperature": [1.0, 5.0]}
    tuned = la.tune("grid", grid=grid, validation=batches, predict=scored, **own)
    tuned_by_search = la.tune("validation", validation=batches, predict=scored, steps=2, **own)
    for trace in (tuned.trace, tuned_by_search.trace):
        settings = list(zip(trace.values, trace.precisions, trace.temperatures, strict=True))
        for value, precision, temperature in settings[::3]:
            one = la.with_prior(la.prior.with_precision(precision)).with_temperature(temperature)
            right = -sum(float(one.predict(x, **options).log_prob(y).double().sum()) for x, y in batches) / number
            assert value == pytest.approx(right, rel=1e-10)


@quiet
@pytest.mark.parametrize("method", ["validation", "grid"])
def test_validation_data_in_buffers_that_are_written_over(method: Any) -> None:
    """A loader that yields the same tensors again and again, with other values, is like one that does not."""
    model, x, y = regression_network()
    la = fitted(model, x, y, pw.Gaussian(0.7), "kron")
    new, targets = normal(40, 3, seed=8), normal(40, 2, seed=9) * torch.arange(40).double()[:, None] / 40

    class Reused:
        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            held = moved(torch.empty(10, 3).double()), moved(torch.empty(10, 2).double())
            for start in range(0, 40, 10):
                held[0].copy_(new[start : start + 10])
                held[1].copy_(targets[start : start + 10])
                yield held

    options: Any = {"grid": [0.01, 0.1, 1.0, 10.0]} if method == "grid" else {}
    made = [la.tune(method, validation=data, **options) for data in (Reused(), cut(new, targets, [10] * 4))]
    assert torch.equal(made[0].prior.precision, made[1].prior.precision)
    assert made[0].trace.values == made[1].trace.values
    assert min(made[0].trace.values) == pytest.approx(pw.validation_nll(made[0], Reused()))


@quiet
def test_jacobians_are_pulled_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all settings of a search where they fit the budget, else for all settings that are known beforehand."""
    model, x, y = regression_network()
    la = fitted(model, x, y, pw.Gaussian(0.7), "kron")
    data = moved(normal(9, 3, seed=7)), moved(normal(9, 2, seed=6))
    passes, pull = [], Tape.pull
    monkeypatch.setattr(Tape, "pull", lambda self, *given: passes.append(self.examples) or pull(self, *given))
    la.tune("validation", validation=data)
    assert passes == [9]
    passes.clear()
    la.tune("grid", grid=[0.01, 0.1, 1.0], validation=data, memory=1.0)
    assert passes == [1] * 9
    passes.clear()
    la.tune("validation", validation=data, memory=1.0, steps=1)
    assert len(passes) > 18 and len(passes) % 9 == 0  # a pass for the first line, one for the simplex, and more


@quiet
def test_validation_of_many_outputs_and_of_none() -> None:
    """Covariances that are made of samples; data without examples."""
    model = built(nn.Linear(2, 300))
    la = fitted(model, normal(4, 2), torch.arange(4), "classification", "diag")
    data = moved(normal(3, 2, seed=2)), moved(torch.arange(3))
    tuned = la.tune("grid", grid=[0.5, 2.0], validation=data)
    for value, precision in zip(tuned.trace.values, (0.5, 2.0, 1e10), strict=True):
        assert value == pytest.approx(pw.validation_nll(la.with_prior(precision), data), rel=1e-12)
    with pytest.raises(ValueError, match="The validation data has no examples"):
        la.tune("grid", grid=[0.5, 2.0], validation=[])


def test_what_cannot_be_asked() -> None:
    """Each with what was wrong and what to do."""
    case = table("mlp_regression")
    data = moved(case.x), moved(case.y)
    la, other = case.fit("kron"), table("mlp").fit("kron")
    refused: list[tuple[Any, str]] = [
        (lambda: la.tune("evidense"), "method='evidense' is not known; did you mean 'evidence'. Known: evidence"),
        (lambda: la.tune(parameters=["temperature"]), "The evidence cannot choose a temperature.*method='validation'"),
        (
            lambda: la.tune("fixed_point", parameters=["prior", "temperature"]),
            "The evidence cannot choose a temperature",
        ),
        (lambda: la.tune("grid", grid={"temperature": [1.0, 2.0]}), "The evidence cannot choose a temperature"),
        (lambda: la.tune("validation"), r"data that was not trained on; give it as validation=\(x, y\)"),
        (lambda: la.tune("validation", validation=iter([data])), "one-shot iterator"),
        (lambda: la.tune("validation", validation=[]), "no examples"),
        (lambda: la.tune("evidence", validation=data), "validation= was given, but method='evidence' needs none"),
        (lambda: la.tune("evidence", grid=[1.0]), "grid= was given, but method='evidence' has none"),
        (lambda: la.tune("training"), r"method='training' passes over the training data; give it as train=\(x, y\)"),
        (lambda: la.tune("grid", grid=[1.0, -2.0]), "expected positive numbers"),
        (lambda: la.tune("grid", grid=[]), "expected positive numbers"),
        (lambda: la.tune("grid", grid={"precision": [1.0]}), "expected 'prior', 'noise' and 'temperature'"),
        (lambda: la.tune("grid", parameters=["prior", "noise"]), "needs its values"),
        (lambda: la.tune("grid", parameters=["noise"]), "needs the values"),
        (lambda: la.tune(parameters=[]), "nothing to tune"),
        (lambda: la.tune(limits=(1.0, 0.1)), "the smaller first"),
        (lambda: la.tune(start=-1.0), "positive finite"),
        (lambda: la.tune(start=torch.ones(3)), "3 precisions were given"),
        (lambda: other.tune(parameters=["noise"]), "parameters has 'noise', but Categorical has none"),
    ]
    for ask, words in refused:
        with pytest.raises(ValueError, match=words):
            ask()


def warned(la: pw.Laplace, words: str, *args: Any, **options: Any) -> pw.Laplace:
    """Tune, with a warning that is in the trace too; all numbers are finite."""
    with pytest.warns(pw.TuningWarning, match=words):
        tuned = la.tune(*args, **options)
    assert any(words.split(".*")[0] in text for text in tuned.trace.warnings)
    assert bool(torch.isfinite(tuned.prior.precision).all()) and bool(torch.isfinite(tuned.log_evidence()))
    assert all(math.isfinite(value) for value in tuned.trace.values)
    assert bool(torch.isfinite(tuned.precision.variance()).all())
    return tuned


@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
@pytest.mark.parametrize("method", ["evidence", "fixed_point"])
def test_hard_cases_are_finite_and_warned_about(structure: str, method: Any) -> None:
    """Weights that are zero, groups without curvature, residuals of zero, and starts far away."""
    model, x, y = regression_network()
    with torch.no_grad():
        model[2].bias.zero_()
    la = fitted(model, x, y, pw.Gaussian(0.7), structure, prior=pw.Prior.layerwise(1.0))
    tuned = warned(la, "'2.bias' switched off", method, limits=(1e-6, 1e6))
    assert float(tuned.prior.precision[3]) == pytest.approx(1e6)
    assert float(tuned.evidence().effective_dimensions[3]) < 1e-3

    dead = built(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))
    with torch.no_grad():
        dead[0].bias.fill_(-100.0)
    la = fitted(dead, x, y, pw.Gaussian(0.7), structure, prior=pw.Prior.layerwise(0.5))
    tuned = warned(la, "The data say nothing about '0.weight'", method)
    assert tuned.prior.precision[:3].tolist() == [0.5, 0.5, 0.5]

    simple, given = few_digits()
    exact = fitted(simple, given, simple(given).detach(), pw.Gaussian(0.7), structure)
    assert exact.state.totals.energy == 0
    tuned = warned(exact, "The noise is at the smallest allowed.*residuals are zero", method)
    assert 0 < float(tuned.likelihood.noise_precision) ** -0.5 < 1e-5

    la = fitted(model, x, y, pw.Gaussian(0.7), structure)
    warned(la, "The precision of 'all' is at the largest allowed", method, limits=(1e-4, 1e-3))
    warned(la, "The precision of 'all' is at the smallest allowed", method, limits=(1e4, 1e5))
    warned(la, "Tuning did not converge", method, steps=1)


@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
@pytest.mark.parametrize("start", [1e-9, 1e-3, 1e4, 1e9])
def test_far_starts(structure: str, start: float) -> None:
    """There is one top, and it is found from everywhere."""
    model, x, y = regression_network()
    la = fitted(model, x, y, pw.Gaussian(0.7), structure, prior=pw.Prior.layerwise(1.0))
    usual, far = la.tune(), la.with_noise(0.7 * start**0.3).tune(start=start)
    assert float((far.prior.precision / usual.prior.precision - 1).abs().max()) < 1e-5
    assert abs(float(far.likelihood.noise_precision / usual.likelihood.noise_precision) - 1) < 1e-6


def test_edges_of_grids_and_searches_are_warned_about() -> None:
    """The best value at an end of a grid, and a search that was stopped."""
    model, x, y = regression_network()
    la = fitted(model, x, y, pw.Gaussian(0.7), "kron")
    warned(la, "The best prior is at the smallest value of its grid", "grid", grid=[100.0, 1000.0])
    warned(la, "The best prior is at the largest value of its grid", "grid", grid=[1e-5, 1e-4])
    warned(la, "Tuning did not converge", "validation", validation=(x, y), steps=2, limits=(1e-6, 1e6))


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_the_least_precision_on_validation_data(scale: float) -> None:
    """A thousandth of D / |theta|^2, with ratios too; limits= allows less, and a prior centred there has none."""
    model, x, y = regression_network()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    far = moved(x), moved(model(x).detach() + 1e4 * normal(len(x), 2, seed=3).to(x))  # the wider the better
    la = fitted(model, x, y, pw.Gaussian(0.7), "kron")
    usual = la.D / float(la.weights.double().square().sum())
    words = "the precision is the least that is tried, 0.001 of what the size of the weights suggests (see limits=)"
    tuned = la.tune(validation=far, parameters=["prior"])
    assert words in tuned.trace.stopped and tuned.trace.warnings == ()
    assert float(tuned.prior.precision) == pytest.approx(1e-3 * usual, rel=1e-2)
    ratios = la.with_prior(pw.Prior.groups({"0": 4.0, "*": 1.0}))
    kept = ratios.tune(validation=far, parameters=["prior"]).prior.precision
    first = sum(p.numel() for p in model[0].parameters())
    squares = la.weights.double().square()
    unit = la.D / float(2.0 * squares[:first].sum() + 0.5 * squares[first:].sum())
    assert kept.tolist() == pytest.approx([2e-3 * unit, 0.5e-3 * unit], rel=1e-2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert float(la.tune(validation=far, parameters=["prior"], limits=(1e-7, 1.0)).prior.precision) < 1e-6
        centred = la.with_prior(pw.Prior.scalar(1.0, mean=la.weights))
        assert float(centred.tune(validation=far, parameters=["prior"]).prior.precision) < 1e-6 * usual


@pytest.mark.parametrize(("structure", "prior"), [("kron", "layerwise"), ("kron", "unitwise"), ("full", "layerwise")])
@quiet
def test_float32(structure: str, prior: str) -> None:
    """A network in float32 is tuned to the same place, and by small steps, not until rounding stops it."""
    model, x, y = regression_network()
    wide = fitted(model, x, y, pw.Gaussian(0.7), structure, prior=PRIORS[prior]).tune()
    narrow = fitted(model.float(), x.float(), y.float(), pw.Gaussian(0.7), structure, prior=PRIORS[prior]).tune()
    inside = wide.prior.precision < 1e3
    assert relative(narrow.prior.precision[inside], wide.prior.precision[inside]) < 1e-3
    assert narrow.trace.converged and "next step" in narrow.trace.stopped


def test_masks_are_tuned_by_unit() -> None:
    """Units without a selected weight keep their precision."""
    model, x, y = regression_network()
    mask = {"0.weight": torch.zeros(4, 3, dtype=torch.bool), "2.bias": torch.ones(2, dtype=torch.bool)}
    mask["0.weight"][1] = True
    for structure in ("diag", "full"):
        la = fitted(model, x, y, pw.Gaussian(0.7), structure, weights=mask, prior=pw.Prior.unitwise(0.5))
        tuned = la.tune()
        assert tuned.prior.precision[[0, 2, 3]].tolist() == [0.5, 0.5, 0.5]
        assert float(tuned.log_evidence()) > float(la.log_evidence())
        matrix = curvature_of(la.with_prior(1.0).with_noise(1.0))
        assert matrix.shape == (5, 5)


def test_the_simplex_finds_a_minimum() -> None:
    """Of a bent valley in two dimensions, and of a parabola in one."""
    seen: list[tuple[float, list[float]]] = []

    def valley(z: Any) -> float:
        seen.append(((1 - z[0]) ** 2 + 20 * (z[1] - z[0] ** 2) ** 2, list(z)))
        return seen[-1][0]

    assert minimise(valley, [-1.0, 1.0], 0.7, 1e-6, 500)
    assert min(seen)[1] == pytest.approx([1.0, 1.0], abs=1e-4)
    assert minimise(lambda z: (z[0] - 3) ** 2, [0.0], 0.7, 1e-6, 500)
    assert not minimise(valley, [-1.0, 1.0], 0.7, 1e-6, 3)


def test_settings_without_a_posterior() -> None:
    """They count as infinitely bad, on a grid and in a search; where no setting has one, the error says so."""
    model, x, y = regression_network()
    la = fitted(model, x, y + 8.0, pw.Gaussian(1.0), "full", curvature="hessian", prior=1e-3)
    held_out = x[:4], y[:4] + 8.0
    with pytest.raises(ValueError, match="not positive definite"):
        la.predict(x)
    with pytest.warns(pw.TuningWarning, match="2 settings of the grid have no finite score"):
        tuned = la.tune("grid", grid=[1e-3, 100.0, 1e4, 1e5], validation=held_out)
    scores = tuned.trace.values
    assert scores[:1] == (math.inf,) and math.isfinite(scores[2])
    for value, score in zip((1e4, 1e5), scores[2:4], strict=True):
        assert score == pytest.approx(pw.validation_nll(la.with_prior(value), held_out))
    assert pw.validation_nll(tuned, held_out) == pytest.approx(min(scores))
    with pytest.raises(pw.PeewitError, match=r"No setting of the grid has a finite score.*larger prior precision"):
        la.tune("grid", grid=[1e-3, 1e-2])
    # On validation data the network itself is always among the candidates.
    searches: list[tuple[float, dict[str, Any]]] = [(1.0, {}), (1e-6, {}), (1e-6, {"limits": (1e-7, 1e-3)})]
    for start, options in [*searches, (1.0, {"grid": [1e-3, 1e-2]})]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pw.TuningWarning)
            found = la.with_prior(start).tune(validation=held_out, **options)
        assert math.isfinite(min(found.trace.values)) and math.inf in found.trace.values
    with pytest.raises(pw.PeewitError, match=r"No setting .* has a finite score"):
        la.with_prior(1e-6).tune("validation", validation=held_out, limits=(1e-7, 1e-3), parameters=["temperature"])


def test_an_indefinite_hessian() -> None:
    """Where there is no posterior at the start, the error says so; with enough prior it is tuned or warned about."""
    model, x, y = regression_network()
    targets = y + 8.0
    la = fitted(model, x, targets, pw.Gaussian(1.0), "full", curvature="hessian", prior=1e-3)
    with pytest.raises(ValueError, match="not positive definite"):
        la.tune()
