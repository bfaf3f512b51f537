"""The mode of the linear model against its definition, for every network and likelihood of the tables."""

from __future__ import annotations

import copy
import functools
import math
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import likelihood_cases
import peewit as pw
from environment import DEVICE
from fitting import Broken, Gained, built, classes, cut, fitted, normal, weights_of
from linear_cases import (
    EXACT,
    NETWORKS,
    classifier,
    cross_entropy,
    dense_classifier,
    found,
    reference_of,
    simple,
)
from peewit.linear_model import data
from peewit.linear_model.find import open_solver
from peewit.linear_model.objective import Target
from peewit.linear_model.solver import Solver
from peewit.linear_model.streaming import StreamingSolver
from reference_linear import Linear
from snapshots import changed, same, snapshot
from tables import moved, table

STRUCTURES = ("kron", "ekfac", "diag", "block", "full")
WITHOUT = "heteroscedastic mean and variance"  # as a variance goes to zero its loss has no end
LIKELIHOODS = [case.name for case in likelihood_cases.CASES if case.name != WITHOUT]


# Against the definition


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network(name: str) -> None:
    """The gradient of the definition vanishes, which convexity makes the mode; energy and evidence are those there."""
    case = table(name)
    la = case.fit("diag", prior=pw.Prior.scalar(0.7, mean=0.1))
    mode = found(la, (moved(case.x), moved(case.y)), tolerance=1e-14)
    expected = reference_of(name, la)
    e = mode.displacement.cpu()
    loose = 1e-5 if name == "weight_norm" and DEVICE != "cpu" else 1e-6
    scale = expected.gradient(torch.zeros_like(e)).norm()
    assert float(expected.gradient(e).norm()) < loose * float(scale)
    parts = replace(la.state, linear_mode=mode).evidence()
    assert abs(parts.log_likelihood + float(expected.energy(e))) < 1e-6
    assert abs(parts.distance - float(expected.distance(e))) < 1e-6
    assert abs(parts.log_volume - la.evidence().log_volume) < 1e-9


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_every_likelihood(name: str) -> None:
    """Likewise, through the likelihood's own energy, with all constants; where it is not convex, at a minimum too."""
    case = next(each for each in likelihood_cases.CASES if each.name == name)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The energy of the custom likelihood is not convex")
        la = fitted(case.model, case.x, case.y, case.likelihood, "full", prior=pw.Prior.scalar(0.8))
        mode = found(la, (moved(case.x), moved(case.y)))
    expected = Linear(
        f=case.f,
        jacobian=case.jacobian,
        y=case.y,
        nll=case.nll,
        theta=la.weights.cpu(),
        delta=la.prior.delta(la.space, la.weights).cpu(),
    )
    e = mode.displacement.cpu()
    start = torch.zeros_like(e)
    assert float(expected.gradient(e).norm()) < 1e-6 * float(expected.gradient(start).norm())
    assert float(expected.loss(e)) < float(expected.loss(start))
    at = replace(la.state, linear_mode=mode).evidence()
    if not isinstance(case.likelihood, pw.Custom):
        assert abs(at.log_likelihood + float(expected.energy(e))) < 1e-7


def test_a_loss_without_a_minimum() -> None:
    """A linear variance can go to zero where the mean is right: the loss falls for ever, which is said."""
    case = likelihood_cases.BY_NAME[WITHOUT]
    la = fitted(case.model, case.x, case.y, case.likelihood, "full", prior=1e-3)
    with pytest.raises(ValueError, match=r"expected finite numbers.*may have no minimum"):
        la.at_linear_mode((moved(case.x), moved(case.y)), tolerance=EXACT, steps=300)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_structure_changes_the_way_and_not_the_mode(structure: str) -> None:
    """Every posterior is a preconditioner; Newton's method on dense matrices ends at the same weights."""
    la, data = classifier(structure)
    mode = found(la, data)
    expected = dense_classifier(la)
    assert torch.allclose(mode.displacement.cpu(), expected.mode(), atol=1e-7)
    assert abs(mode.losses[-1] - float(expected.loss(expected.mode()))) < 1e-10
    assert abs(mode.gradients[0] - float(expected.gradient(torch.zeros(la.D).double()).norm())) < 1e-9
    assert all(after <= before + 1e-11 for before, after in zip(mode.losses, mode.losses[1:], strict=False))


def test_the_decrement_is_the_gradient_in_the_posterior() -> None:
    """`1/2 g^T P^-1 g`, with P the fitted precision; for a Gaussian with full curvature, exactly the loss to gain."""
    la, data = classifier("full")
    mode = la.at_linear_mode(data).linear_mode
    g = dense_classifier(la).gradient(torch.zeros(la.D).double())
    expected = 0.5 * g @ torch.linalg.solve(la.precision.mv(torch.eye(la.D).to(la.weights)).cpu(), g)
    assert abs(mode.decrements[0] - float(expected)) < 1e-10
    x = data[0]
    exact = fitted(simple()[0], x.cpu(), normal(30, 3), pw.Gaussian(0.4), "full")
    mode = exact.at_linear_mode((x, moved(normal(30, 3)))).linear_mode
    assert abs(mode.losses[0] - mode.losses[-1] - mode.decrements[0]) < 1e-9
    assert len(mode.losses) == 2 and mode.products <= 2


@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_temperature(temperature: float) -> None:
    """It divides the likelihood and not the prior."""
    la, data = classifier("kron")
    la = la.with_temperature(temperature)
    assert torch.allclose(found(la, data).displacement.cpu(), dense_classifier(la).mode(), atol=1e-7)


def test_weights_that_cannot_move_end_at_the_priors_mean() -> None:
    """A unit that no example reaches has no curvature, and follows the prior alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = built(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)))
    with torch.no_grad():
        model[0].bias[2] = -100.0
    x, y = normal(12, 3), classes(2, 12)
    for structure in ("kron", "diag", "full"):
        la = fitted(model, x, y, "classification", structure, prior=pw.Prior.scalar(2.0, mean=0.25))
        made = found(la, (moved(x), moved(y)))
        after = (la.weights + made.displacement).cpu()
        assert torch.allclose(after[6:9], torch.full((3,), 0.25).double(), atol=1e-8)
        assert torch.allclose(after[17], torch.tensor(0.25).double(), atol=1e-8)


@pytest.mark.parametrize("weights", ["last_layer", ["0.weight"], "mask"])
def test_some_weights(weights: Any) -> None:
    """The linear model is of the selected weights alone."""
    model, x, y = simple()
    mask = torch.zeros(51, dtype=torch.bool)
    mask[::3] = True
    structure = "diag" if weights == "mask" else "kron"
    chosen = (
        {"last_layer": slice(30, 51), "mask": mask}.get(weights, slice(0, 24))
        if isinstance(weights, str)
        else (slice(0, 24))
    )
    la = fitted(model, x, y, "classification", structure, weights=mask if weights == "mask" else weights)
    whole = dense_classifier(fitted(model, x, y, "classification"))
    expected = Linear(
        f=whole.f,
        jacobian=whole.jacobian[..., chosen],
        y=y,
        nll=whole.nll,
        theta=whole.theta[chosen],
        delta=torch.ones(la.D).double(),
    )
    assert torch.allclose(found(la, (moved(x), moved(y))).displacement.cpu(), expected.mode(), atol=1e-7)


def test_a_network_without_forward_mode() -> None:
    """Products with J are then taken by two backward passes."""

    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.square()

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 2 * ctx.saved_tensors[0] * g

    class Squares(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Square.apply(x)

    class Plain(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.square()

    made = []
    for middle in (Squares(), Plain()):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(2)
            model = built(nn.Sequential(nn.Linear(4, 5), middle, nn.Linear(5, 3)))
        la = fitted(model, *simple()[1:], "classification")
        made.append(found(la, tuple(map(moved, simple()[1:]))).displacement)
    assert torch.allclose(*made, atol=1e-8)


# The data


@pytest.mark.parametrize("sizes", [[30], [1, 13, 16], [7, 7, 7, 7, 2]])
def test_batches_do_not_matter(sizes: list[int]) -> None:
    """Nor how many there are in a piece of the budget."""
    la, data = classifier("kron")
    expected = found(la, data).displacement
    x, y = simple()[1:]
    assert torch.allclose(found(la, cut(x, y, sizes)).displacement, expected, atol=1e-8)
    assert torch.allclose(found(la, cut(x, y, sizes), memory=40_000).displacement, expected, atol=1e-8)


def kept(la: pw.Laplace, data: Any, memory: float | None = None) -> type:
    """Which of the two ways is taken."""
    with open_solver(la.state, data, memory, False) as solver:
        return type(solver)


def test_a_shuffled_loader() -> None:
    """Its batches are kept in the order of one pass, and the global generator stays as it was."""
    la, data = classifier("kron")
    expected = found(la, data).displacement
    loader = DataLoader(TensorDataset(*simple()[1:]), batch_size=7, shuffle=True)
    before = torch.get_rng_state()
    assert torch.allclose(found(la, loader).displacement, expected, atol=1e-8)
    assert torch.equal(torch.get_rng_state(), before)
    assert kept(la, loader) is Solver


@pytest.mark.parametrize("structure", ["full", "kron"])
def test_data_that_cannot_be_kept(structure: str) -> None:
    """A loader that does not fit is read anew in every pass, in any order, and ends at the same mode."""
    la, data = classifier(structure)
    expected = found(la, data, tolerance=1e-12)
    loader = DataLoader(TensorDataset(*simple()[1:]), batch_size=7, shuffle=True)
    assert kept(la, loader, 1000) is StreamingSolver and kept(la, data, 1000) is StreamingSolver
    before = torch.get_rng_state()
    made = found(la, loader, memory=1000, tolerance=1e-10)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.allclose(made.displacement, expected.displacement, atol=1e-4)
    assert abs(made.energy - expected.energy) < 1e-4
    assert all(after <= early + 1e-11 for early, after in zip(made.losses, made.losses[1:], strict=False))


def test_streaming_halves_steps_that_go_too_far() -> None:
    """Counts grow as exponentials: Newton's step from far away is no step downhill."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = built(nn.Linear(3, 1))
    x = normal(20, 3)
    y = torch.poisson((1.5 * x[:, :1] + 2).exp(), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model.weight.fill_(-1.0)
        model.bias.fill_(-4.0)
    la = fitted(model, x, y, "count", "full", prior=1e-3)
    data = moved(x), moved(y)
    expected = found(la, data)
    made = found(la, data, memory=100, tolerance=1e-9)
    assert torch.allclose(made.displacement, expected.displacement, atol=1e-3)
    assert all(after <= before + 1e-9 for before, after in zip(made.losses, made.losses[1:], strict=False))


def test_an_iterator_is_kept_where_it_fits() -> None:
    """One pass is all that it has."""
    la, data = classifier("kron")
    _, x, y = simple()
    expected = found(la, data).displacement
    assert torch.allclose(found(la, iter(cut(x, y, [10, 20]))).displacement, expected, atol=1e-8)
    with pytest.raises(ValueError, match=r"one-shot iterator whose batches do not fit.*larger memory="):
        la.at_linear_mode(iter(cut(x, y, [10, 20])), memory=100)


class Reused:
    """A reader that writes each batch over the last one."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y
        self.held = x[:10].clone(), y[:10].clone()

    def __iter__(self) -> Iterator[Any]:
        for start in (0, 10, 20):
            self.held[0].copy_(self.x[start : start + 10])
            self.held[1].copy_(self.y[start : start + 10])
            yield self.held


def test_a_reader_that_reuses_its_memory() -> None:
    """What is kept is a copy."""
    la, data = classifier("kron")
    assert torch.allclose(found(la, Reused(*data)).displacement, found(la, data).displacement, atol=1e-8)


def test_other_data_are_refused_or_remarked_on() -> None:
    """The curvature is of the fit's data: another number of them is an error, another loss a warning."""
    la, (x, y) = classifier("kron")
    with pytest.raises(ValueError, match=r"data has 29 examples, and the posterior was fitted to 30; expected"):
        la.at_linear_mode((x[:29], y[:29]))
    with pytest.warns(pw.TuningWarning, match=r"energy is .* on this data and was .* other data, or augmentations"):
        la.at_linear_mode((x + 1, y))


def test_not_enough_steps() -> None:
    """It says how far it is, and starts there next time."""
    la, data = classifier("diag")
    with pytest.warns(pw.TuningWarning, match=r"was not reached: 2 steps were not enough.*nats above its minimum"):
        some = la.at_linear_mode(data, steps=2, tolerance=1e-10)
    assert some.linear_mode is not None and not some.linear_mode.converged
    rest = some.at_linear_mode(data, tolerance=1e-10).linear_mode
    whole = la.at_linear_mode(data, tolerance=1e-10).linear_mode
    assert rest.losses[0] == pytest.approx(some.linear_mode.losses[-1], rel=1e-12)
    assert torch.allclose(rest.displacement, whole.displacement, atol=1e-4)


def test_a_warm_start_takes_fewer_products() -> None:
    """Under the same prior none but the check, under a near one a few."""
    la, data = classifier("kron")
    first = la.at_linear_mode(data, tolerance=1e-8)
    again = first.at_linear_mode(data, tolerance=1e-8)
    assert again.linear_mode.products <= 1.5
    near = first.with_prior(1.001).at_linear_mode(data, tolerance=1e-8)
    cold = la.with_prior(1.001).at_linear_mode(data, tolerance=1e-8)
    assert near.linear_mode.products < cold.linear_mode.products
    assert torch.allclose(near.linear_mode.displacement, cold.linear_mode.displacement, atol=1e-3)


def test_outputs_are_made_anew_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every so many steps from the weights themselves; it changes nothing but roundings."""
    la, data = classifier("diag")
    expected = found(la, data)
    monkeypatch.setattr("peewit.linear_model.solver.REFRESH", 3)
    often = found(la, data)
    assert often.products > expected.products
    assert torch.allclose(often.displacement, expected.displacement, atol=1e-8)


def test_forward_mode_that_is_not_the_backward_pass() -> None:
    """The derivative is that of the backward pass, which training used and the fit has."""

    class Wrong(torch.autograd.Function):
        generate_vmap_rule = True

        @staticmethod
        def forward(x: Tensor) -> Tensor:
            return x.tanh()

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.save_for_backward(inputs[0])
            ctx.save_for_forward(inputs[0])

        @staticmethod
        def jvp(ctx: Any, t: Tensor) -> Tensor:
            return (1 - ctx.saved_tensors[0].tanh().square()) * t

        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Tensor:
            return 3 * g

    class Middle(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Wrong.apply(x)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = built(nn.Sequential(nn.Linear(4, 5), Middle(), nn.Linear(5, 3)))
    la = fitted(model, *simple()[1:], "classification")
    x, y = simple()[1:]
    made = found(la, (moved(x), moved(y)))
    rows = []
    for example in x:
        output = model(example[None])[0]
        grads = [torch.autograd.grad(each, list(model.parameters()), retain_graph=True) for each in output]
        rows.append(torch.stack([torch.cat([g.flatten() for g in each]) for each in grads]))
    nll = functools.partial(cross_entropy, -1)
    expected = Linear(
        f=model(x).detach(),
        jacobian=torch.stack(rows),
        y=y,
        nll=nll,
        theta=weights_of(model),
        delta=torch.ones(la.D).double(),
    )
    assert torch.allclose(made.displacement.cpu(), expected.mode(), atol=1e-7)


# What stays as it was


@pytest.mark.parametrize("name", ["train_mode", "batch_norm2d", "tied_gpt", "embedding_sparse", "lstm", "inplace_mlp"])
def test_the_network_is_untouched(name: str) -> None:
    """Also after an exception, in either way to pass over the data."""
    case = table(name)
    model = case.case.make()[0].to(DEVICE).train()
    x, y = moved(case.x), moved(case.y)
    la = pw.fit(model, (x, y), case.likelihood)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    before, inputs = snapshot(model), snapshot_of(x)
    la.at_linear_mode((x, y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pw.TuningWarning)
        la.at_linear_mode((x, y), memory=100, steps=3)
    assert changed(model, before) == [] and same(snapshot_of(x), inputs)
    with pytest.raises(KeyError, match="gone"):
        la.at_linear_mode(Broken([(x, y)], KeyError("gone")))
    assert changed(model, before) == []


def snapshot_of(x: Any) -> Any:
    """A copy of inputs."""
    return {key: value.clone() for key, value in x.items()} if isinstance(x, dict) else x.clone()


def test_the_posterior_is_a_new_value() -> None:
    """The old one answers as before; a new prior keeps the mode and says so; new data lose it."""
    la, data = classifier("kron")
    before = la.log_evidence()
    at = la.at_linear_mode(data)
    assert la.linear_mode is None and torch.equal(la.log_evidence(), before)
    assert at.log_evidence() != before
    assert "the trained weights" in la.evidence().where and "linear" not in repr(la.evidence())
    assert at.evidence().where == "the mode of the linear model"
    assert "at the mode of the linear model" in repr(at.evidence())
    for other in (at.with_prior(2.0), at.with_temperature(2.0)):
        assert other.state.linear_mode is at.state.linear_mode
        assert "found under another prior, noise or temperature" in repr(other.evidence())
    assert "found under another" in at.evidence(prior=3.0).where
    assert at.with_prior(2.0).at_linear_mode(data).evidence().where == "the mode of the linear model"
    assert at.update(data).linear_mode is None
    assert "converged" in repr(at.linear_mode) and "products" in repr(at.linear_mode)


def test_devices_and_arithmetic_keep_it() -> None:
    """As they keep the posterior."""
    la, data = classifier("kron")
    at = la.at_linear_mode(data)
    assert at.to(DEVICE).log_evidence() == at.log_evidence()
    model = simple()[0]
    narrow = pw.fit(copy.deepcopy(model).float().to(DEVICE), (data[0].float(), data[1]), "classification")
    made = narrow.at_linear_mode((data[0].float(), data[1]))
    wide = made.with_arithmetic("float64")
    assert wide.linear_mode.displacement.dtype == torch.float64 == wide.weights.dtype
    assert float(wide.log_evidence()) == pytest.approx(float(made.log_evidence()), rel=1e-4)
    assert made.linear_mode.displacement.dtype == torch.float32
    exact = la.at_linear_mode(data, tolerance=1e-8).log_evidence()
    assert float(made.log_evidence()) == pytest.approx(float(exact), abs=0.05)


def test_files(tmp_path: Path) -> None:
    """The mode with its report is read back as it was, and a file without one has none."""
    la, data = classifier("kron", prior=pw.Prior.layerwise(0.5))
    at = la.at_linear_mode(data)
    at.save(tmp_path / "at")
    back = pw.load(tmp_path / "at", la.model)
    assert torch.equal(back.log_evidence(), at.log_evidence())
    for name in (
        "energy",
        "rest",
        "noise_precision",
        "losses",
        "decrements",
        "gradients",
        "passes",
        "products",
        "stopped",
    ):
        assert getattr(back.linear_mode, name) == getattr(at.linear_mode, name), name
    assert torch.equal(back.linear_mode.displacement, at.linear_mode.displacement)
    assert back.evidence().where == "the mode of the linear model"
    la.save(tmp_path / "without")
    assert pw.load(tmp_path / "without", la.model).linear_mode is None


# The evidence


def test_the_partial_derivative_is_the_total_one() -> None:
    """By the envelope theorem: against differences of evidences whose modes are each found anew."""
    model, x, _ = simple()
    y = normal(30, 3)
    prior = pw.Prior.layerwise([0.5, 1, 2, 3])
    la = fitted(model, x, y, pw.Gaussian(torch.tensor([0.3, 0.5, 0.8])), "full", prior=prior)
    data = moved(x), moved(y)
    at = la.at_linear_mode(data, tolerance=EXACT)
    precision = la.prior.precision.clone().requires_grad_()
    noise = torch.tensor(float(la.likelihood.factor), dtype=torch.float64, requires_grad=True)
    value = at.log_evidence(prior=la.prior.with_precision(precision), noise=noise)
    slopes = torch.cat([each.reshape(-1) for each in torch.autograd.grad(value, (precision, noise))])
    start = torch.cat([la.prior.precision, noise.detach().reshape(1)])

    def total(z: Tensor) -> float:
        there = at.with_prior(la.prior.with_precision(z[:4])).with_noise(float(z[4]))
        return float(there.at_linear_mode(data, tolerance=EXACT).log_evidence())

    for place in range(5):
        step = torch.zeros(5, dtype=torch.float64)
        step[place] = 1e-4 * float(start[place])
        difference = (total(start + step) - total(start - step)) / (2 * float(step[place]))
        assert float(slopes[place]) == pytest.approx(difference, rel=1e-5, abs=1e-5)


def test_a_linear_models_evidence_does_not_depend_on_the_weights() -> None:
    """From any weights it is the exact marginal likelihood of Bayesian linear regression."""
    x, y, noise, delta = normal(15, 3), normal(15, 1, seed=3), 0.6, 1.7
    marginal = torch.distributions.MultivariateNormal(
        torch.zeros(15).double(), noise**2 * torch.eye(15).double() + x @ x.T / delta
    )
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = (nn.Linear(3, 1, bias=False)).double()
        with torch.no_grad():
            model.weight.mul_(10)
        for structure in ("full", "kron"):
            la = fitted(model, x, y, pw.Gaussian(noise), structure, prior=delta)
            at = la.at_linear_mode((moved(x), moved(y)), tolerance=EXACT)
            assert float(at.log_evidence()) == pytest.approx(float(marginal.log_prob(y[:, 0])), abs=1e-9)
            assert float(la.log_evidence()) < float(at.log_evidence())


def test_logistic_regression_from_two_starts() -> None:
    """The same mode, energy and distance; curvature is that of where each was trained."""
    x, y = normal(40, 3), classes(3, 40)
    made = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        la = fitted(nn.Linear(3, 3).double(), x, y, "classification", "full", prior=0.3)
        at = la.at_linear_mode((moved(x), moved(y)), tolerance=EXACT)
        made.append((at, (at.weights + at.linear_mode.displacement).cpu()))
    (first, left), (second, right) = made
    assert torch.allclose(left, right, atol=1e-7)
    assert first.evidence().log_likelihood == pytest.approx(second.evidence().log_likelihood, abs=1e-8)
    assert first.evidence().distance == pytest.approx(second.evidence().distance, abs=1e-7)


# Predictions


@pytest.mark.parametrize("name", ["mlp", "segmentation", "token_classifier", "unet", "scalar_output", "mapping_input"])
def test_the_linear_models_mean(name: str) -> None:
    """`f + J displacement`, with the covariance as it was."""
    case = table(name)
    data = moved(case.x), moved(case.y)
    la = case.fit("kron").at_linear_mode(data, tolerance=1e-6)
    expected = reference_of(name, la).outputs(la.linear_mode.displacement.cpu())
    plain, made = la.functional(data[0]), la.functional(data[0], at="linear_mode")
    assert torch.allclose(made.mean.cpu(), expected, atol=1e-10)
    assert not torch.allclose(made.mean, plain.mean, atol=1e-3)
    assert torch.equal(made.cov, plain.cov)
    assert torch.allclose(la.functional(data[0], at="linear_mode", variance_only=True).mean.cpu(), expected, atol=1e-10)
    draws = la.functional_samples(data[0], 3, torch.Generator(DEVICE).manual_seed(1), at="linear_mode")
    usual = la.functional_samples(data[0], 3, torch.Generator(DEVICE).manual_seed(1))
    assert torch.allclose((draws - usual).cpu(), (expected - plain.mean.cpu()).expand(draws.shape), atol=1e-9)


def test_predictions_around_the_linear_model() -> None:
    """By every path to a prediction: last layer alone, joint, differentiated, and with many outputs."""
    data = classifier("kron")[1]
    x = data[0][:4]
    for options in ({}, {"weights": "last_layer"}):
        at = classifier("kron", **options)[0].at_linear_mode(data, tolerance=1e-6)
        shift = at.functional(x, at="linear_mode").mean
        made, usual = at.predict(x, at="linear_mode"), at.predict(x)
        assert not torch.allclose(made.probs, usual.probs, atol=1e-3)
        cov = at.functional(x).cov.diagonal(dim1=-2, dim2=-1)
        probit = (shift / (1 + math.pi / 8 * cov).sqrt()).softmax(-1)
        assert torch.allclose(made.probs, probit, atol=1e-9)
        assert torch.allclose(at.predict(x, at="linear_mode", joint=True).probs, made.probs, atol=1e-9)
        variable = x.clone().requires_grad_()
        graph = at.functional(variable, at="linear_mode", create_graph=True)
        assert torch.allclose(graph.mean, shift, atol=1e-10)
        (slope,) = torch.autograd.grad(graph.mean[:, 1].sum(), variable)
        step = torch.zeros_like(x)
        step[:, 2] = 1e-5
        numeric = at.functional(x + step, at="linear_mode").mean - at.functional(x - step, at="linear_mode").mean
        assert torch.allclose(slope[:, 2], numeric[:, 1] / 2e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Covariances of .* outputs per example are estimated")
def test_many_outputs_around_the_linear_model() -> None:
    """Where the covariance is estimated from samples the mean is exact all the same."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        model = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 300)))
    x, y = normal(6, 3), normal(6, 300)
    la = fitted(model, x, y, "regression", "diag").at_linear_mode((moved(x), moved(y)), tolerance=1e-6)
    made = la.predict(moved(x), at="linear_mode")
    assert torch.allclose(made.mean, la.functional(moved(x), at="linear_mode").mean, atol=1e-9)
    assert not torch.allclose(made.mean, la.predict(moved(x)).mean, atol=1e-3)


def test_fit_at_once() -> None:
    """`fit(mode="linear")` is a fit and its mode."""
    model, x, y = simple()
    at = fitted(model, x, y, "classification", at="linear_mode")
    after = classifier("kron")[0].at_linear_mode((moved(x), moved(y)))
    assert torch.equal(at.linear_mode.displacement, after.linear_mode.displacement)
    assert at.linear_mode.decrement <= 1e-2 and at.linear_mode.converged


# What is refused


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tolerance": 0.0}, r"tolerance=0.0: expected a positive number of nats"),
        ({"tolerance": "low"}, r"tolerance='low': expected a positive number of nats"),
        ({"steps": 0}, r"steps=0: expected a positive whole number"),
        ({"steps": 2.5}, r"steps=2.5: expected a positive whole number"),
        ({"memory": -1}, r"memory=-1 was given; expected a positive number of bytes"),
    ],
)
def test_wrong_options(options: dict[str, Any], words: str) -> None:
    """Each with what was expected."""
    la, data = classifier("kron")
    with pytest.raises(ValueError, match=words):
        la.at_linear_mode(data, **options)


def test_wrong_questions() -> None:
    """Names that are not known, and a mode that was not found."""
    la, data = classifier("kron")
    x = data[0][:2]
    for ask in (la.functional, la.predict, lambda x, at: la.functional_samples(x, 2, at=at)):
        with pytest.raises(ValueError, match=r"without a mode of the linear model; find it by la.at_linear_mode"):
            ask(x, at="linear_mode")
        with pytest.raises(ValueError, match=r"at='liner' is not known; did you mean 'linear_mode'\?"):
            ask(x, at="liner")
    at = la.at_linear_mode(data)
    with pytest.raises(ValueError, match=r"at='linear_mode' with method='sampled'.*use method='linearised'"):
        at.predict(x, at="linear_mode", method="sampled")
    with pytest.raises(ValueError, match=r"at='liner' is not known; did you mean 'linear_mode'\?"):
        fitted(*simple(), "classification", at="liner")
    with pytest.raises(ValueError, match="passes over the data many times, and the data is a one-shot iterator"):
        pw.fit(la.model, iter([data]), "classification", at="linear_mode")
    with pytest.raises(ValueError, match=r"label 7 is outside 0..2"):
        la.at_linear_mode((data[0], torch.full_like(data[1], 7)))
    with pytest.raises(TypeError, match="data is a int"):
        la.at_linear_mode(3)


def test_room_is_a_share_of_what_is_free() -> None:
    """Or what `memory=` says."""
    assert data.room(123.0, torch.device("cpu")) == 123
    assert data.room(None, torch.device("cpu")) > 1 << 20


def test_the_preconditioner_is_the_posterior() -> None:
    """In place, block by block: the same as solving with the whole."""
    for structure in STRUCTURES:
        la, _ = classifier(structure, prior=pw.Prior.layerwise([0.5, 1.0, 2.0, 3.0]))
        g = moved(normal(la.D))
        expected = la.precision.solve(g)
        squared = Target.of(la.state).precondition(made := g.clone())
        assert torch.allclose(made, expected, atol=1e-12)
        assert squared == pytest.approx(float(g @ expected), rel=1e-12)


def test_a_single_number_is_a_weight_too() -> None:
    """At the mode the gradient of the linear model's loss, by a dense Jacobian, is zero."""
    model, x, y = built(Gained()), normal(20, 2), classes(3, 20)
    la = fitted(model, x, y, "classification", prior=2.0).at_linear_mode((moved(x), moved(y)), tolerance=EXACT)
    assert la.linear_mode is not None
    e = la.linear_mode.displacement.cpu().requires_grad_()
    with torch.no_grad():
        f = model(x)
    weights = dict(model.named_parameters())
    parts = torch.func.jacrev(lambda w: torch.func.functional_call(model, w, (x,)))(weights)
    jacobian = torch.cat([parts[name].detach().flatten(2) if parts[name].dim() > 2 else parts[name].detach()[..., None]
                          for name in la.space.names], 2)  # fmt: skip
    loss = F.cross_entropy(f + jacobian @ e, y, reduction="sum") + (la.weights.cpu() + e).square().sum()
    (gradient,) = torch.autograd.grad(loss, e)
    assert float(gradient.norm()) < 1e-7
