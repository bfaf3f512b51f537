"""Predictions of networks: joint, at sampled weights, in parts of any size, and differentiable in the inputs."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, distributions, nn

import peewit as pw
import reference_dense as dense
from environment import DEVICE
from fitting import built, classes, covered, fitted, normal, seeded
from tables import Table, curvature_of, moved, relative, table

EXACT = 1e-8
STEP = 1e-5


def dense_joint(case: Table, la: pw.Laplace) -> Tensor:
    """(N F, N F): the covariance of all outputs from the dense Jacobian."""
    covariance = torch.linalg.inv(curvature_of(la) + torch.eye(la.D, dtype=torch.float64))
    made = dense.joint_functional_covariance(case.jacobian, covariance)
    size = len(case.y) * case.jacobian.shape[1]
    return made.reshape(size, size)


# Joint over inputs


@pytest.mark.parametrize("name", ["scalar_output", "mlp_regression", "token_regression", "unet"])
def test_joint_regression(name: str) -> None:
    """Covariance, density and draws over all inputs equal those of the dense joint Gaussian."""
    case = table(name)
    la = case.fit("kron")
    pred: Any = la.predict(moved(case.x), joint=True)
    cov = dense_joint(case, la)
    assert relative(pred.covariance.reshape(cov.shape), cov) < EXACT
    mean = dense.outputs(case.model, case.x).reshape(-1)
    exact = distributions.MultivariateNormal(mean, cov + torch.eye(len(cov), dtype=torch.float64))
    assert relative(pred.joint_log_prob(moved(case.y)), exact.log_prob(case.y.reshape(-1))) < EXACT
    draws = pred.sample(20_000, seeded(2)).flatten(1)
    assert covered(draws, cov + torch.eye(len(cov), dtype=torch.float64))
    plain: Any = la.predict(moved(case.x))
    assert relative(pred.variance, plain.variance.cpu()) < EXACT
    assert relative(pred.log_prob(moved(case.y)), plain.log_prob(moved(case.y)).cpu()) < EXACT
    with pytest.raises(ValueError, match="joint=True"):
        plain.joint_log_prob(moved(case.y))


@pytest.mark.parametrize("name", ["mlp", "token_classifier", "segmentation"])
def test_joint_classes(name: str) -> None:
    """Marginals are those of the plain prediction; labels drawn together are dependent between equal inputs."""
    case = table(name)
    la = case.fit("kron", prior=0.05)
    pred: Any = la.predict(moved(case.x), joint=True, link="mc")
    plain: Any = la.predict(moved(case.x), link="mc")
    assert relative(pred.probs, plain.probs.cpu()) < EXACT and relative(pred.entropy, plain.entropy.cpu()) < EXACT
    twice = moved(torch.cat([case.x[:1], case.x[:1]]))
    for joint in (True, False):
        asked: Any = la.predict(twice, joint=joint, link="mc")
        draws = asked.sample(20_000, seeded(2)).reshape(20_000, 2, -1)[..., 0]
        p = asked.belief.form.flatten(asked.probs)[0, 0]
        equal = float((draws[:, 0] == draws[:, 1]).double().mean())
        independent = float(p.square().sum())
        error = 5 * math.sqrt(0.25 / 20_000)
        assert (equal > independent + error) if joint else (abs(equal - independent) < error)


# Rows of the table of failures elsewhere


def test_labels_of_several_inputs_are_drawn_from_one_function() -> None:
    """The correlation between new observations is the posterior's: neither one nor zero."""
    case = table("scalar_output")
    la = case.fit("full")
    draws = la.predict(moved(case.x), joint=True).sample(20_000, seeded(1))
    expected = dense_joint(case, la) + torch.eye(5, dtype=torch.float64)
    scale = expected.diagonal().rsqrt()
    correlation = torch.corrcoef(draws.T).cpu()
    assert float((correlation - scale[:, None] * expected * scale).abs().max()) < 0.03
    off = correlation[~torch.eye(5, dtype=torch.bool)].abs()
    assert float(off.min()) < 0.9 and float(off.max()) > 0.05


@pytest.mark.parametrize("options", [{"link": "mc", "samples": 128}, {"method": "sampled", "samples": 16}], ids=str)
def test_generators_are_used_in_predictions(options: Any) -> None:
    """Predictions repeat by themselves and with the same seed, differ with another, and leave the global state."""
    case = table("mlp")
    la = case.fit("kron")
    x = moved(case.x)

    def asked(seed: int | None) -> Tensor:
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        return la.predict(x, generator=generator, **options).probs

    state = torch.get_rng_state()
    assert torch.equal(asked(None), asked(None)) and torch.equal(asked(1), asked(1))
    assert not torch.equal(asked(1), asked(2)) and not torch.equal(asked(1), asked(None))
    assert torch.equal(torch.get_rng_state(), state)


def test_monte_carlo_sees_the_covariance() -> None:
    """Class probabilities are averages over `mean + L eps`; the transposed factor gives others."""
    torch.manual_seed(0)
    model = nn.Linear(2, 3).double()
    la = fitted(model, normal(6, 2), classes(3, 6), "classification", "full", prior=0.02)
    x = moved(normal(4, 2, seed=5))
    made = la.functional(x)
    root = torch.linalg.cholesky(made.cov.cpu())
    eps = torch.randn(200_000, 3, generator=seeded(4), dtype=torch.float64)
    right = (made.mean.cpu() + torch.einsum("ncr,sr->snc", root, eps)).softmax(-1)
    wrong = (made.mean.cpu() + torch.einsum("ncr,sc->snr", root, eps)).softmax(-1)
    error = 4 * float(right.std(0).max()) / math.sqrt(len(eps)) + 2e-3
    probs = la.predict(x, link="mc").probs.cpu()
    assert float((probs - right.mean(0)).abs().max()) < error
    assert float((probs - wrong.mean(0)).abs().max()) > 3 * error


# Sampled weights


@pytest.mark.parametrize("name", ["mlp", "batch_norm2d", "encoder_layer", "lstm", "tied_gpt", "mapping_input"])
def test_sampled_weights(name: str) -> None:
    """Outputs at drawn weights equal those of copies that hold them; the same draws whatever the memory and inputs."""
    case = table(name)
    la = case.fit("diag", prior=50.0)
    before = [parameter.detach().clone() for parameter in la.model.parameters()]
    x = moved(case.x)
    pred: Any = la.predict(x, method="sampled", samples=5, generator=seeded(3))
    generator = seeded(3)
    eps = torch.stack([torch.randn(la.D, generator=generator, dtype=torch.float64) for _ in range(5)])
    weights = la.weights + la.precision.root(moved(eps))
    expected = []
    for vector in weights:
        # A copied LSTM has its weights in several places, of which cuDNN complains; moving it puts them in one.
        other = copy.deepcopy(la.model).eval().to(DEVICE)
        start = 0
        for parameter_name in la.space.names:
            parameter = other.get_parameter(parameter_name)
            parameter.data.copy_(vector[start : start + parameter.numel()].reshape(parameter.shape))
            start += parameter.numel()
        # Not under no_grad: torch's fused encoder layer, which then runs on a GPU, is good to 1e-4.
        expected.append((other(**x) if isinstance(x, dict) else other(x)).detach())
    outputs = torch.stack(expected)
    found = pred.belief.form.restore(pred.belief.values)
    assert relative(found, outputs.cpu()) < EXACT
    axis = -1 if outputs.dim() < 5 else 2
    assert relative(pred.probs, outputs.softmax(axis).mean(0).cpu()) < EXACT
    assert all(map(torch.equal, before, la.model.parameters()))
    tight: Any = la.predict(x, method="sampled", samples=5, generator=seeded(3), memory=1)
    assert relative(tight.belief.values, pred.belief.values.cpu()) < EXACT


def test_sampled_weights_of_a_subnetwork() -> None:
    """Weights outside a mask keep their values."""
    case = table("mlp")
    la = case.fit("diag", weights=pw.Subnetwork.largest_magnitude(3), prior=1.0)
    pred: Any = la.predict(moved(case.x), method="sampled", samples=200)
    linear: Any = la.predict(moved(case.x))
    assert float(pred.output_variance.max()) < 10 * float(linear.output_variance.max())
    assert float((pred.output_mean - linear.output_mean).abs().max()) < 1.0


def test_sampled_weights_agree_with_the_linear_model() -> None:
    """For a linear network both ways tend to the same Gaussian."""
    la = fitted(built(nn.Linear(3, 2)), normal(20, 3), normal(20, 2, seed=2), pw.Gaussian(0.3), "full")
    x = moved(normal(3, 3, seed=4))
    sampled: Any = la.predict(x, method="sampled", samples=4000)
    exact: Any = la.predict(x)
    error = 5 * math.sqrt(2 / 4000)
    assert relative(sampled.epistemic, exact.epistemic.cpu()) < error
    assert relative(sampled.variance, exact.variance.cpu()) < error
    for ours, theirs in zip(sampled.interval(0.9), exact.interval(0.9), strict=True):
        assert float((ours - theirs).abs().max()) < 0.05


# Parts


@pytest.mark.parametrize(
    "options", [{"samples": 64}, {"link": "mc", "samples": 64}, {"link": "bridge"}, {"method": "sampled"}], ids=str
)
@pytest.mark.parametrize("name", ["mlp", "conv2d"])
def test_parts_of_any_size(name: str, options: Any) -> None:
    """Single inputs, small budgets and 10,000 inputs at once give the same predictions, in single precision too."""
    case = table(name)
    model = copy.deepcopy(case.model).float().to(DEVICE)
    la = pw.fit(model, (moved(case.x.float()), moved(case.y)), "classification", prior=20.0)
    number = 10_000 if name == "mlp" else 300
    x = moved(normal(number, *case.x.shape[1:], seed=8).float())
    whole: Any = la.predict(x, **options)
    single: Any = [la.predict(x[place : place + 1], **options) for place in (0, 1, number - 1)]
    chosen = torch.tensor([0, 1, number - 1])
    parts: Any = [la.predict(part, memory=2e5, **options) for part in x.split(number // 3)]
    for what in ("probs", "output_mean", "output_variance"):
        value = getattr(whole, what)
        assert relative(torch.cat([getattr(each, what) for each in single]), value[chosen].cpu()) < 1e-4
        assert relative(torch.cat([getattr(each, what) for each in parts]), value.cpu()) < 1e-4
    assert relative(torch.cat([each.entropy for each in single]), whole.entropy[chosen].cpu()) < 1e-4


@pytest.mark.parametrize("outputs", [300, 40])
@pytest.mark.filterwarnings("ignore:Covariances of .* outputs per example are estimated")
def test_many_outputs(outputs: int) -> None:
    """Above 256 outputs the covariance is that of fixed samples, the same as `functional` has."""
    positions = 8 if outputs == 40 else 1
    model = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs * positions)))
    if positions > 1:
        model.append(nn.Unflatten(1, (positions, outputs)))
    y = classes(outputs, 6, positions) if positions > 1 else classes(outputs, 6)
    la = fitted(model, normal(6, 3), y, "classification", curvature="fisher", prior=5.0)
    x = moved(normal(2, 3, seed=3))
    pred: Any = la.predict(x)
    made = la.functional(x)
    assert relative(pred.covariance, made.cov.cpu()) < EXACT
    assert relative(pred.output_variance, la.functional(x, variance_only=True).cov.cpu()) < EXACT
    assert bool((pred.epistemic > 0).all())
    for options in ({"joint": True}, {"create_graph": True}):
        with pytest.raises(ValueError, match="at most 256"):
            la.predict(x.clone().requires_grad_(), **options)
        with pytest.raises(ValueError, match="at most 256"):
            la.functional(x.clone().requires_grad_(), **options)


@pytest.mark.parametrize("outputs", [257, 256])
def test_estimated_covariances_say_so(outputs: int) -> None:
    """A warning with the error, where covariances are made of samples, and none where they are exact."""
    model, x = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))), moved(normal(2, 3))
    la = fitted(model, normal(3, 3), classes(outputs, 3), "classification", curvature="fisher")
    for ask in (la.functional, la.predict):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            ask(x)
        words = [str(each.message) for each in said]
        assert len(words) == (outputs > 256)
        assert not words or ("257 outputs per example are estimated from 64 samples" in words[0] and "18%" in words[0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        last = fitted(model, normal(3, 3), classes(outputs, 3), "classification", weights="last_layer")
        last.functional(x)


def test_half_precision() -> None:
    """A bfloat16 network gets predictions in float32."""
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).to(DEVICE, torch.bfloat16)
    data = moved(normal(20, 4).bfloat16()), moved(classes(3, 20))
    la = pw.fit(model, data, "classification")
    for options in ({}, {"link": "mc"}, {"link": "bridge"}, {"method": "sampled"}):
        pred: Any = la.predict(data[0], **options)
        assert pred.probs.dtype == torch.float32
        assert bool(torch.isfinite(pred.entropy).all()) and bool(torch.isfinite(pred.log_prob(data[1])).all())


def some_targets(likelihood: str, number: int) -> Tensor:
    """For a network with two outputs."""
    if likelihood == "heteroscedastic":
        return normal(number, 1, seed=3)
    return classes(2 if likelihood == "binary" else 5, number, 2)


@pytest.mark.parametrize("name", ["binary", "count", "heteroscedastic"])
def test_other_likelihoods_end_to_end(name: str) -> None:
    """Fit and predict in two lines, for every link."""
    y = some_targets(name, 30)
    model = built(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)))
    la = fitted(model, normal(30, 3), y, name)
    every: dict[str, tuple[str | None, ...]] = {"heteroscedastic": (None, "natural", "mean")}
    for link in every.get(name, (None, "mc")):
        pred = la.predict(moved(normal(30, 3)), link=link)
        assert bool(torch.isfinite(pred.log_prob(moved(y))).all())
        assert pred.sample(2, seeded(1)).shape == (2, *y.shape)
    assert la.predict(moved(normal(4, 3)), method="sampled").log_prob(moved(y[:4])).shape == (4,)


# Gradients in the inputs

DIFFERENTIABLE = (
    "mlp",
    "mlp_regression",
    "batch_norm2d",
    "segmentation",
    "self_attention",
    "encoder_layer",
    "lstm",
    "gru",
)


def slopes(ask: Callable[[Tensor], Tensor], plain: Callable[[Tensor], Tensor], x: Tensor) -> None:
    """The derivative of what was asked along a random direction equals that of the plain answer's differences."""
    given = moved(x).detach().clone().requires_grad_()
    value = ask(given)
    weights = moved(normal(*value.shape, seed=13)) if value.dim() else value.new_ones(())
    (gradient,) = torch.autograd.grad((value * weights).sum(), given)
    direction = normal(*x.shape, seed=14)
    ahead, behind = (plain(moved(x + sign * STEP * direction)) for sign in (1, -1))
    assert not ahead.requires_grad
    expected = ((ahead - behind) * weights).sum() / (2 * STEP)
    assert relative(value.detach(), plain(moved(x)).cpu()) < EXACT
    assert relative((gradient.cpu() * direction).sum(), expected.cpu()) < 1e-5


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@pytest.mark.parametrize("structure", ["kron", "full", "diag"])
def test_functional_can_be_differentiated(name: str, structure: str) -> None:
    """Mean and covariances, per input, variances alone, and joint."""
    case = table(name)
    la = case.fit(structure)
    x = case.x[:3]
    slopes(lambda t: la.functional(t, create_graph=True).mean, lambda t: la.functional(t).mean, x)
    every: tuple[dict[str, Any], ...] = ({}, {"variance_only": True}, {"joint": True})
    for options in every if structure == "kron" else every[:1]:
        slopes(
            lambda t, o=options: la.functional(t, create_graph=True, **o).cov,
            lambda t, o=options: la.functional(t, **o).cov,
            x,
        )
    slopes(lambda t: la.functional(t, create_graph=True, memory=1).cov, lambda t: la.functional(t).cov, x)


QUESTIONS: dict[str, tuple[str, Any, Callable[[Any], Tensor]]] = {
    "probit": ("mlp", {}, lambda p: p.probs),
    "bridge": ("mlp", {"link": "bridge_normalised"}, lambda p: p.probs),
    "bridge entropy": ("mlp", {"link": "bridge"}, lambda p: p.epistemic),
    "monte carlo": ("mlp", {"link": "mc", "samples": 64}, lambda p: p.probs),
    "mutual information": ("batch_norm2d", {"samples": 64}, lambda p: p.epistemic),
    "log_prob": ("encoder_layer", {}, lambda p: p.log_prob(moved(classes(3, 3)))),
    "variance": ("mlp_regression", {}, lambda p: p.variance),
    "upper bound": ("mlp_regression", {}, lambda p: p.interval(0.9)[1]),
    "density": ("mlp_regression", {"joint": True}, lambda p: p.joint_log_prob(moved(normal(3, 2, seed=6)))),
    "recurrent": ("gru", {}, lambda p: p.variance),
    "joint draws": ("mlp_regression", {"joint": True}, lambda p: p.sample(3, seeded(5))),
    "sampled": ("mlp", {"method": "sampled", "samples": 4}, lambda p: p.entropy),
    "sampled recurrent": ("lstm", {"method": "sampled", "samples": 2}, lambda p: p.probs),
}


@pytest.mark.parametrize("what", list(QUESTIONS))
def test_predictions_can_be_differentiated(what: str) -> None:
    """Everything that is derived from the outputs, against finite differences."""
    name, options, ask = QUESTIONS[what]
    la = table(name).fit("kron", prior=4.0)
    x = table(name).x[:3]
    slopes(lambda t: ask(la.predict(t, create_graph=True, **options)), lambda t: ask(la.predict(t, **options)), x)


@pytest.mark.parametrize("likelihood", ["binary", "count", "heteroscedastic"])
def test_predictions_of_other_likelihoods_can_be_differentiated(likelihood: str) -> None:
    """Probabilities, moments and densities."""
    y = some_targets(likelihood, 9)
    model = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    la = fitted(model, normal(9, 3), y, likelihood, prior=3.0)
    x = normal(2, 3, seed=9)
    every = {"heteroscedastic": ("natural", "mean", "mc")}.get(likelihood, (None, "mc"))
    for link in every:
        for ask in (lambda p: p.epistemic, lambda p: p.log_prob(moved(y[:2]))):
            slopes(
                lambda t, a=ask, k=link: a(la.predict(t, link=k, create_graph=True, samples=256)),
                lambda t, a=ask, k=link: a(la.predict(t, link=k, samples=256)),
                x,
            )


def test_gradients_are_asked_for() -> None:
    """Without it nothing requires gradients; with it inputs have to; also under no_grad and inference_mode."""
    case = table("mlp")
    la = case.fit("kron")
    x = moved(case.x).clone().requires_grad_()
    for options in ({}, {"link": "mc"}, {"link": "bridge"}, {"method": "sampled"}, {"joint": True}):
        pred: Any = la.predict(x, **options)
        assert not pred.probs.requires_grad and not pred.entropy.requires_grad
    made = la.functional(x)
    assert not made.mean.requires_grad and not made.cov.requires_grad
    for ask in (la.functional, la.predict, lambda t, **o: la.predict(t, method="sampled", **o)):
        with pytest.raises(ValueError, match="requires gradients"):
            ask(moved(case.x), create_graph=True)
    exact = la.functional(x, create_graph=True).cov
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            found = la.functional(x, create_graph=True).cov
            pred = la.predict(x, create_graph=True)
            plain: Any = la.predict(x)
            assert plain.probs.shape == (5, 3) and plain.log_prob(moved(case.y)).shape == (5,)
            inside = moved(case.x) + 0
            assert relative(la.predict(inside, link="mc").probs, la.predict(x, link="mc").probs.cpu()) < EXACT
        assert found.requires_grad and pred.probs.requires_grad
        (left,), (right,) = (torch.autograd.grad(each.sum(), x, retain_graph=True) for each in (found, exact))
        assert relative(left, right.cpu()) < EXACT


# Thompson sampling


def test_thompson_sampling_picks_with_the_right_frequencies() -> None:
    """How often a sampled function is largest at each input is the exact probability, by enumeration of a Gaussian."""
    case = table("scalar_output")
    la = case.fit("full", prior=0.5)
    x = moved(case.x)
    samples = la.functional_samples(x, 40_000, generator=seeded(3)).cpu()
    found = torch.bincount(samples.argmax(1), minlength=5).double() / 40_000
    precision = la.precision.mv(torch.eye(la.D, dtype=torch.float64, device=DEVICE)).cpu()
    joint = dense.joint_functional_covariance(case.jacobian, torch.linalg.inv(precision))
    exact = distributions.MultivariateNormal(dense.outputs(case.model, case.x).reshape(-1), joint.reshape(5, 5))
    eps = torch.randn(400_000, 5, generator=seeded(9), dtype=torch.float64)
    drawn = exact.loc + eps @ exact.scale_tril.T
    expected = torch.bincount(drawn.argmax(1), minlength=5).double() / len(drawn)
    error = 5 * (expected * (1 - expected) / 40_000).sqrt() + 1e-4
    assert bool(((found - expected).abs() < error).all())
    alone = exact.loc + eps * joint.reshape(5, 5).diagonal().sqrt()
    independent = torch.bincount(alone.argmax(1), minlength=5).double() / len(alone)
    assert bool(((found - independent).abs() > error).any())  # independent draws pick otherwise


def test_a_bandit_with_thompson_sampling() -> None:
    """Regret grows slower than the number of rounds: a linear bandit with 8 arms, fitted anew every few rounds."""
    generator = seeded(5)
    arms = torch.randn(8, 3, generator=generator, dtype=torch.float64)
    truth = torch.randn(3, generator=generator, dtype=torch.float64)
    rewards = arms @ truth
    model = nn.Linear(3, 1, bias=False).double().to(DEVICE)
    seen_x, seen_y, regret = [arms[0]], [rewards[0]], []
    for _ in range(120):
        x, y = torch.stack(seen_x), torch.stack(seen_y)
        weights = torch.linalg.solve(x.T @ x / 0.25 + torch.eye(3, dtype=torch.float64), x.T @ y / 0.25)
        with torch.no_grad():
            model.weight.copy_(weights[None])
        la = pw.fit(model, (moved(x), moved(y[:, None])), pw.Gaussian(0.5), structure="full")
        chosen = int(la.functional_samples(moved(arms), 1, generator=generator)[0, :, 0].argmax())
        regret.append(float(rewards.max() - rewards[chosen]))
        noise = 0.5 * torch.randn((), generator=generator, dtype=torch.float64)
        seen_x.append(arms[chosen])
        seen_y.append(rewards[chosen] + noise)
    first, last = sum(regret[:40]), sum(regret[80:])
    assert last < 0.3 * first and sum(regret[80:]) / 40 < 0.1 * float(rewards.max() - rewards.mean())


class Flattened(nn.Module):
    """A head that sees the tokens of all examples in a row."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, 3) -> (B, T, 2)."""
        hidden = self.first(x).tanh()
        return self.head(hidden.reshape(-1, 4)).reshape(*x.shape[:2], 2)


@pytest.mark.parametrize("weights", ["all", "head.*"])
@pytest.mark.parametrize("structure", ["kron", "full"])
def test_output_covariances_of_a_head_on_tokens_in_a_row(structure: str, weights: str) -> None:
    """From the operator's own covariance and the dense Jacobian."""
    model = Flattened().double().to(DEVICE)
    x, y = torch.randn(5, 3, 3).double().to(DEVICE), torch.randn(5, 3, 2).double().to(DEVICE)
    la = pw.fit(model, (x, y), "regression", structure=structure, weights=weights)
    identity = torch.eye(la.D, dtype=torch.float64, device=DEVICE)
    covariance = torch.linalg.inv(la.precision.mv(identity).cpu())
    jacobian = dense.jacobian(Flattened().double(), x.cpu(), list(la.space.names))
    expected = dense.joint_functional_covariance(jacobian, covariance)
    assert relative(la.functional(x, joint=True).cov.reshape(30, 30), expected) < 1e-8
    variance = la.functional(x, variance_only=True).cov.reshape(-1)
    assert relative(variance, expected.diagonal()) < 1e-8
