"""Predictions as objects: every number against torch's distributions, quadrature, or draws with their error."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from scipy import integrate
from torch import Tensor, distributions

import peewit as pw
from fitting import classes, covered, normal, seeded
from peewit.likelihoods import Form
from peewit.predictions import families, links, options
from peewit.predictions.outputs import GaussianOutputs, Samples
from peewit.runtime.memory import Budget
from tables import moved, relative

EXACT = 1e-10
LIKELIHOODS: dict[str, Any] = {
    "classes": pw.Categorical(),
    "binary": pw.Bernoulli(),
    "regression": pw.Gaussian(0.5),
    "heteroscedastic": pw.HeteroscedasticGaussian(),
    "count": pw.Poisson(),
}
SHAPES: dict[str, tuple[int | None, tuple[int, ...]]] = {  # of one example's output, with its axis of outputs
    "(N,)": (None, ()),
    "(N,C)": (0, (4,)),
    "(N,T,C)": (1, (3, 4)),
    "(N,C,H,W)": (0, (4, 2, 3)),
}
SINGLE = ("binary", "count", "regression")  # can have outputs (N,)
KINDS = [(family, shape) for family in LIKELIHOODS for shape in SHAPES if shape != "(N,)" or family in SINGLE]


def believed(
    axis: int | None = 0, shape: tuple[int, ...] = (3,), examples: int = 5, scale: float = 0.7, **more: Any
) -> GaussianOutputs:
    """A Gaussian over outputs with full covariances."""
    form = Form(axis, shape)
    size = examples, form.positions, form.outputs
    factor = normal(*size, form.outputs, seed=3) * scale / math.sqrt(form.outputs)
    more = {"points": 4096, "seed": 7, **more}
    return GaussianOutputs(
        form, Budget(1 << 22), centre=moved(normal(*size, seed=4)), blocks=moved(factor @ factor.mT), **more
    )


def made(belief: Any, likelihood: Any, link: str | None = None, method: str = "linearised") -> Any:
    """A prediction from what is known of the outputs."""
    question = options.PredictOptions.of(likelihood, method, link)
    return families.make_prediction(belief, likelihood, question.link)


def draws_of(belief: GaussianOutputs, number: int, seed: int = 5) -> Tensor:
    """(S, N, T, C) on the CPU, by torch's own distribution."""
    exact = distributions.MultivariateNormal(belief.mean.cpu(), belief.covariance.cpu())
    eps = torch.randn(number, *belief.mean.shape, generator=seeded(seed), dtype=torch.float64)
    return exact.loc + (exact.scale_tril @ eps[..., None])[..., 0]


def targets_for(family: str, shape: tuple[int, ...], axis: int | None, examples: int = 5) -> Tensor:
    """Targets that fit outputs of a shape."""
    if family == "classes":
        assert axis is not None
        return classes(shape[axis], examples, *shape[:axis], *shape[axis + 1 :])
    if family == "heteroscedastic":
        assert axis is not None
        return normal(examples, *shape[:axis], shape[axis] // 2, *shape[axis + 1 :], seed=9)
    if family == "regression":
        return normal(examples, *shape, seed=9)
    return classes(2 if family == "binary" else 6, examples, *shape)


@pytest.mark.parametrize(("family", "shape"), KINDS)
@pytest.mark.parametrize("method", ["linearised", "sampled"])
def test_shapes_follow_the_outputs(family: str, shape: str, method: str) -> None:
    """Every attribute, for every form of outputs; nothing requires gradients; parts add up."""
    axis, one = SHAPES[shape]
    belief: Any = believed(axis, one)
    if method == "sampled":
        belief = Samples(belief.form, belief.budget, belief.random(20, seeded(1)))
    pred = made(belief, LIKELIHOODS[family], method=method)
    y = targets_for(family, one, axis)
    assert pred.output_mean.shape == pred.output_variance.shape == (5, *one) and len(pred) == 5
    positions = () if axis is None else one[:axis] + one[axis + 1 :]
    assert pred.covariance.shape == (5, *positions, *(2 * one[axis : axis + 1] if axis is not None else (1, 1)))
    assert pred.log_prob(y).shape == (5,) and bool(torch.isfinite(pred.log_prob(y)).all())
    assert pred.sample(7, seeded(2)).shape == (7, *y.shape)
    assert torch.equal(pred.sample(2, seeded(2)), pred.sample(2, seeded(2)))
    assert not torch.equal(pred.sample(9, seeded(2)), pred.sample(9, seeded(3)))
    if family in ("classes", "binary"):
        small = (5, *positions) if family == "classes" else (5, *one)
        assert pred.probs.shape == (5, *one) and pred.mode.shape == small
        assert pred.entropy.shape == pred.aleatoric.shape == pred.epistemic.shape == small
        assert relative(pred.aleatoric + pred.epistemic, pred.entropy.cpu()) < EXACT
        assert pred.interval(0.9).shape == ((5, *one) if family == "classes" else (5, *one, 2))
        assert not hasattr(pred, "variance") and not hasattr(pred, "mean")
    else:
        lower, upper = pred.interval(0.9)
        assert pred.mean.shape == pred.variance.shape == lower.shape == upper.shape == y.shape
        assert relative(pred.epistemic + pred.aleatoric, pred.variance.cpu()) < EXACT
        assert bool((lower < pred.mean).all()) and bool((pred.mean < upper).all())
        assert not hasattr(pred, "probs")
    assert not any(value.requires_grad for value in (pred.log_prob(y), pred.epistemic, pred.output_mean))
    assert type(pred).__name__ in repr(pred) and len(repr(pred).splitlines()) <= 4


# Regression


def test_regression_in_closed_form() -> None:
    """Densities, variances and intervals of `N(mean, covariance + noise)`, with one noise per output."""
    noise = torch.tensor([0.3, 0.5, 0.8], dtype=torch.float64)
    belief = believed(1, (2, 3))
    pred = made(belief, pw.Gaussian(noise))
    y = normal(5, 2, 3, seed=8)
    exact = distributions.MultivariateNormal(belief.mean.cpu(), belief.covariance.cpu() + torch.diag(noise.square()))
    assert relative(pred.log_prob(moved(y)), exact.log_prob(y).sum(1)) < EXACT
    assert relative(pred.variance, exact.variance) < EXACT
    assert relative(pred.aleatoric, noise.square().expand(5, 2, 3)) < EXACT
    marginal = distributions.Normal(exact.mean, exact.variance.sqrt())
    for level in (0.5, 0.95):
        lower, upper = pred.interval(level)
        tail = torch.tensor((1 - level) / 2, dtype=torch.float64)
        assert relative(lower, marginal.icdf(tail)) < EXACT and relative(upper, marginal.icdf(1 - tail)) < EXACT


def test_regression_samples() -> None:
    """Their covariance over outputs is the exact one, within error bars; with and without correlations."""
    belief = believed(0, (3,), examples=2, scale=2.0)
    pred = made(belief, pw.Gaussian(0.2))
    draws = pred.sample(20_000, seeded(6))
    for place in range(2):
        cov = belief.covariance[place, 0].cpu()
        assert covered(draws[:, place], cov + 0.04 * torch.eye(3))
        assert not covered(draws[:, place], torch.diag(cov.diagonal() + 0.04))
    between = torch.cov(torch.cat([draws[:, 0], draws[:, 1]], 1).T.cpu())[:3, 3:]
    assert float(between.abs().max()) < 0.2  # marginal predictions are drawn input by input


def test_regression_as_a_mixture() -> None:
    """`link="mc"` tends to the closed form: density of all outputs together, moments and quantiles."""
    belief = believed(0, (2,))
    exact, mixed = made(belief, pw.Gaussian(0.5)), made(belief, pw.Gaussian(0.5), "mc")
    y = moved(normal(5, 2, seed=8))
    assert float((mixed.log_prob(y) - exact.log_prob(y)).abs().max()) < 2e-2
    assert relative(mixed.variance, exact.variance.cpu()) < 5e-3
    for ours, theirs in zip(mixed.interval(0.9), exact.interval(0.9), strict=True):
        assert float((ours - theirs).abs().max()) < 5e-3


def test_a_factor_in_place_of_blocks() -> None:
    """A covariance known by samples gives what its blocks give."""
    belief = believed(0, (4,))
    thin = normal(5, 1, 4, 2, seed=11)
    factored = GaussianOutputs(
        belief.form, belief.budget, centre=belief.mean, blocks=None, points=4096, seed=7, factor=moved(thin)
    )
    blocks = GaussianOutputs(
        belief.form, belief.budget, centre=belief.mean, blocks=moved(thin @ thin.mT), points=4096, seed=7
    )
    y = moved(normal(5, 4, seed=8))
    left, right = (made(each, pw.Gaussian(0.5)) for each in (factored, blocks))
    assert relative(left.log_prob(y), right.log_prob(y).cpu()) < 1e-8
    assert relative(left.variance, right.variance.cpu()) < EXACT
    left, right = (made(each, pw.Categorical(), "mc") for each in (factored, blocks))
    assert float((left.probs - right.probs).abs().max()) < 3e-3
    assert float((left.entropy - right.entropy).abs().max()) < 5e-3
    left, right = (made(each, pw.Categorical()) for each in (factored, blocks))
    assert relative(left.probs, right.probs.cpu()) < EXACT


# Classes


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_class_probabilities_and_entropies(scale: float) -> None:
    """Averages over the full covariance, against many independent draws."""
    belief = believed(0, (3,), scale=scale)
    p = draws_of(belief, 200_000).softmax(-1)
    exact = p.mean(0)[:, 0]
    error = 4 * float(p.std(0).max()) / math.sqrt(len(p)) + 1e-3
    for link in ("mc", "probit"):
        pred = made(belief, pw.Categorical(), link)
        total = distributions.Categorical(exact).entropy()
        inner = torch.special.entr(p).sum(-1).mean(0)[:, 0]
        assert float((pred.entropy.cpu() - total).abs().max()) < error
        assert float((pred.aleatoric.cpu() - inner).abs().max()) < error
        assert float((pred.epistemic.cpu() - (total - inner)).abs().max()) < error
        assert bool((pred.epistemic > 0).all())
    assert float((made(belief, pw.Categorical(), "mc").probs.cpu() - exact).abs().max()) < error
    expected = links.probit(belief.mean, belief.variance)[:, 0]
    assert relative(made(belief, pw.Categorical()).probs, expected.cpu()) < EXACT


@pytest.mark.parametrize("link", ["bridge", "bridge_normalised"])
def test_the_bridge_is_a_dirichlet(link: str) -> None:
    """Probabilities and entropies of one distribution, in closed form."""
    belief = believed(0, (3,))
    pred = made(belief, pw.Categorical(), link)
    alpha = links.bridge(belief.mean[:, 0], belief.covariance[:, 0], link == "bridge_normalised").cpu()
    exact = distributions.Dirichlet(alpha)
    assert relative(pred.probs, exact.mean) < EXACT
    assert relative(pred.entropy, distributions.Categorical(exact.mean).entropy()) < EXACT
    with torch.random.fork_rng():
        inner = distributions.Categorical(exact.sample((100_000,))).entropy().mean(0)
    assert float((pred.aleatoric.cpu() - inner).abs().max()) < 5e-3


@pytest.mark.parametrize("link", ["probit", "bridge", "bridge_normalised", "mc"])
def test_log_probabilities_of_labels(link: str) -> None:
    """Sums over positions of log probabilities; ignored labels add nothing; soft targets their cross entropy."""
    belief = believed(1, (4, 3))
    pred = made(belief, pw.Categorical(), link)
    y = classes(3, 5, 4)
    y[0, 1] = y[2] = -100
    p = pred.probs.cpu()
    assert relative(pred.probs.sum(-1), torch.ones(5, 4).double()) < EXACT
    for example in range(5):
        expected = sum(math.log(p[example, t, y[example, t]]) for t in range(4) if y[example, t] >= 0)
        assert float(pred.log_prob(y)[example]) == pytest.approx(expected, rel=1e-10, abs=1e-12)
    soft = normal(5, 4, 3, seed=6).softmax(-1)
    assert relative(pred.log_prob(moved(soft)), (soft * p.log()).sum((1, 2))) < EXACT


def test_sets_of_classes() -> None:
    """The smallest set whose probability reaches the level, by trying all of them."""
    pred = made(believed(0, (4,)), pw.Categorical())
    for level in (0.3, 0.6, 0.95):
        mask = pred.interval(level)
        for p, inside in zip(pred.probs.tolist(), mask.tolist(), strict=True):
            held = sum(each for each, kept in zip(p, inside, strict=True) if kept)
            assert held >= level
            assert sum(inside) == next(k for k in range(1, 5) if sum(sorted(p)[::-1][:k]) >= level)
            assert min(each for each, kept in zip(p, inside, strict=True) if kept) >= max(
                [each for each, kept in zip(p, inside, strict=True) if not kept], default=0.0
            )


@pytest.mark.parametrize("family", ["classes", "binary"])
def test_drawn_labels(family: str) -> None:
    """Their frequencies are the probabilities, within binomial error."""
    pred = made(believed(0, (3,)), LIKELIHOODS[family], "mc")
    draws = pred.sample(20_000, seeded(3)).cpu()
    p = pred.probs.cpu()
    found = torch.nn.functional.one_hot(draws, 3).double().mean(0) if family == "classes" else draws.double().mean(0)
    assert bool(((found - p).abs() < 5 * (p * (1 - p) / 20_000).sqrt()).all())


# Yes or no


def test_binary_by_quadrature() -> None:
    """Probabilities and entropies of single labels against adaptive quadrature, however uncertain."""
    belief = believed(0, (3,), examples=3, scale=3.0)
    pred = made(belief, pw.Bernoulli(), "mc")
    probit = made(belief, pw.Bernoulli())
    for place in range(9):
        mean, variance = float(belief.mean.flatten()[place]), float(belief.variance.flatten()[place])
        exact = distributions.Normal(mean, math.sqrt(variance))

        def averaged(function: Any, exact: Any = exact) -> float:
            def integrand(f: float) -> float:
                value = torch.tensor(f, dtype=torch.float64)
                return float(function(value) * exact.log_prob(value).exp())

            low, high = exact.mean - 10 * exact.stddev, exact.mean + 10 * exact.stddev
            return integrate.quad(integrand, float(low), float(high), epsabs=1e-9, limit=200)[0]

        p = averaged(torch.sigmoid)
        inner = averaged(lambda f: distributions.Bernoulli(logits=f).entropy())
        total = float(distributions.Bernoulli(torch.tensor(p, dtype=torch.float64)).entropy())
        assert float(pred.probs.flatten()[place]) == pytest.approx(p, abs=1e-6)
        for each in (pred, probit):
            assert float(each.entropy.flatten()[place]) == pytest.approx(total, abs=1e-6)
            assert float(each.aleatoric.flatten()[place]) == pytest.approx(inner, abs=1e-6)
        assert abs(float(probit.probs.flatten()[place]) - p) < 0.02


def test_log_probabilities_of_several_labels() -> None:
    """The sum over labels, missing ones left out; sets of labels."""
    pred = made(believed(0, (3,)), pw.Bernoulli(ignore_index=-1))
    y = classes(2, 5, 3)
    y[1, 2] = y[4] = -1
    each = distributions.Bernoulli(pred.probs.cpu()).log_prob(y.clamp(min=0).double())
    assert relative(pred.log_prob(y), (each * (y >= 0)).sum(1)) < EXACT
    mask = pred.interval(0.7)
    assert torch.equal(mask[..., 1].cpu(), pred.probs.cpu() > 0.3) and torch.equal(
        mask[..., 0].cpu(), pred.probs.cpu() < 0.7
    )


# Counts


def test_counts() -> None:
    """Moments of a lognormal rate; probabilities that sum to one; quantiles and draws."""
    belief = believed(0, (2,), examples=3)
    pred = made(belief, pw.Poisson())
    rate = distributions.LogNormal(belief.mean[:, 0].cpu(), belief.variance[:, 0].cpu().sqrt())
    assert relative(pred.mean, rate.mean) < EXACT and relative(pred.aleatoric, rate.mean) < EXACT
    assert relative(pred.epistemic, rate.variance) < 1e-8
    other = made(belief, pw.Poisson(), "mc")
    assert relative(other.mean, rate.mean) < 1e-6 and relative(other.epistemic, rate.variance) < 1e-4

    counts = torch.arange(400)
    grid = counts[:, None, None].expand(400, 3, 2)
    single = [made(replaced(belief, k), pw.Poisson()) for k in range(2)]
    logs = torch.stack(
        [torch.stack([one.log_prob(moved(row[:, k])) for row in grid]) for k, one in enumerate(single)], -1
    )
    assert relative(logs.exp().sum(0), torch.ones(3, 2).double()) < 1e-5
    y = classes(5, 3, 2)
    expected = logs.cpu().gather(0, y[None])[0].sum(1)
    assert relative(pred.log_prob(y), expected) < EXACT
    mean = (logs.exp() * moved(grid)).sum(0)
    assert relative(mean, pred.mean.cpu()) < 1e-3
    below = logs.exp().cumsum(0).cpu()
    lower, upper = (each.cpu() for each in pred.interval(0.8))
    for bound, tail in ((lower, 0.1), (upper, 0.9)):
        assert torch.equal(bound, (below < tail).sum(0).double())
    draws = pred.sample(40_000, seeded(5)).cpu()
    error = 5 * (pred.variance.cpu() / 40_000).sqrt()
    assert bool(((draws.mean(0) - pred.mean.cpu()).abs() < error).all())


def replaced(belief: GaussianOutputs, output: int) -> GaussianOutputs:
    """One output of a belief as a network (N,) would have it."""
    pick = slice(output, output + 1)
    return GaussianOutputs(
        Form(None, ()),
        belief.budget,
        centre=belief.mean[..., pick],
        blocks=belief.covariance[..., pick, pick],
        points=64,
        seed=1,
    )


def test_counts_that_overflow() -> None:
    """Rates that have no float still leave a density and bounds."""
    form = Form(None, ())
    belief = GaussianOutputs(
        form, Budget(1 << 20), centre=torch.tensor([[[2.0]]]), blocks=torch.tensor([[[[300.0]]]]), points=64, seed=1
    )
    pred = made(belief, pw.Poisson())
    assert bool(torch.isfinite(pred.log_prob(torch.tensor([3]))).all())
    lower, upper = pred.interval(0.5)
    assert float(lower) >= 0 and math.isfinite(float(upper))


# Noise that depends on the input


@pytest.mark.parametrize("parameters", ["raw", "natural", "mean_variance", "mean_log_variance"])
def test_heteroscedastic(parameters: str) -> None:
    """The mixture over outputs: moments, densities, quantiles and draws against independent draws."""
    likelihood = pw.HeteroscedasticGaussian(parameters)
    belief = believed(0, (2,), examples=3, scale=0.3)
    centre = belief.mean.clone()
    centre[..., 1] = {"natural": -2.0, "mean_variance": 1.5}.get(parameters, 0.5)
    belief = GaussianOutputs(belief.form, belief.budget, centre=centre, blocks=belief.covariance, points=4096, seed=7)
    pred = made(belief, likelihood)
    f = draws_of(belief, 200_000)[:, :, 0]
    first, second = f.unbind(-1)
    variance = {
        "raw": lambda: 1 / (torch.nn.functional.softplus(second) + 1e-8),
        "natural": lambda: -0.5 / second,
        "mean_variance": lambda: second,
        "mean_log_variance": second.exp,
    }[parameters]()
    mean = first if parameters.startswith("mean") else first * variance
    assert float((pred.mean[:, 0].cpu() - mean.mean(0)).abs().max()) < 5e-3
    assert float((pred.epistemic[:, 0].cpu() - mean.var(0)).abs().max()) < 1e-2
    assert float((pred.aleatoric[:, 0].cpu() - variance.mean(0)).abs().max()) < 5e-3
    y = normal(3, 1, seed=8)
    density = distributions.Normal(mean, variance.sqrt()).log_prob(y[:, 0]).logsumexp(0) - math.log(len(f))
    assert float((pred.log_prob(moved(y)).cpu() - density).abs().max()) < 5e-3
    assert relative(pred.log_prob(moved(y[:, 0])), pred.log_prob(moved(y)).cpu()) < EXACT  # without the axis
    drawn = mean + variance.sqrt() * torch.randn(mean.shape, generator=seeded(8), dtype=torch.float64)
    own = pred.sample(100_000, seeded(9))[..., 0].cpu()
    for values in (drawn, own):
        lower, upper = (bound[:, 0].cpu() for bound in pred.interval(0.8))
        assert float(((values < lower).double().mean(0) - 0.1).abs().max()) < 5e-3
        assert float(((values > upper).double().mean(0) - 0.1).abs().max()) < 5e-3


@pytest.mark.parametrize("link", ["natural", "mean"])
def test_heteroscedastic_in_closed_form(link: str) -> None:
    """Gaussian predictives by the delta rule, with the noise added."""
    belief = believed(0, (4,))
    pred = made(belief, pw.HeteroscedasticGaussian(), link)
    mean, cov, noise = links.delta_rule(pw.HeteroscedasticGaussian().natural, belief.mean, belief.covariance, link)
    exact = distributions.MultivariateNormal(mean[:, 0].cpu(), (cov + torch.diag_embed(noise))[:, 0].cpu())
    y = normal(5, 2, seed=8)
    assert relative(pred.log_prob(moved(y)), exact.log_prob(y)) < EXACT
    assert relative(pred.variance, exact.variance) < EXACT and relative(pred.mean, exact.mean) < EXACT
    assert relative(pred.epistemic, cov[:, 0].diagonal(dim1=-2, dim2=-1).cpu()) < EXACT
    assert pred.sample(3, seeded(1)).shape == (3, 5, 2)


def test_heads_without_a_valid_variance() -> None:
    """Outputs at which a variance would be negative are left out; everything stays finite."""
    belief = believed(0, (2,), examples=3)
    centre = torch.full_like(belief.mean, 0.3)
    wide = GaussianOutputs(
        belief.form,
        belief.budget,
        centre=centre,
        blocks=2 * torch.eye(2).to(centre).expand(3, 1, 2, 2),
        points=4096,
        seed=7,
    )
    pred = made(wide, pw.HeteroscedasticGaussian("mean_variance"))
    for value in (pred.mean, pred.variance, *pred.interval(0.9), pred.sample(50, seeded(1)), pred.log_prob(pred.mean)):
        assert bool(torch.isfinite(value).all())


# Any energy


def laplace_energy(f: Tensor, y: Tensor) -> Tensor:
    """Of a Laplace distribution."""
    return (f - y).abs().flatten(1).sum(1)


@pytest.mark.parametrize(
    ("parameters", "far"),  # farther out a natural head has variances without bound
    [*itertools.product(["raw", "mean_variance"], [0.0, 3.0, 10.0]), ("natural", 0.0), ("natural", 3.0)],
)
def test_densities_of_one_noisy_target_far_out(parameters: str, far: float) -> None:
    """Against a sum over a fine grid of both outputs, also where no quasi-random point comes near."""
    likelihood = pw.HeteroscedasticGaussian(parameters=parameters)
    centre = torch.tensor([[[0.4, 1.0]], [[-0.3, 2.0]]], dtype=torch.float64)
    centre[..., 1] *= -1 if parameters == "natural" else 1
    cov = torch.tensor([[0.05, 0.02], [0.02, 0.03]], dtype=torch.float64).expand(2, 1, 2, 2)
    belief = GaussianOutputs(
        Form(0, (2,)), Budget(1 << 22), centre=moved(centre), blocks=moved(cov.clone()), points=4096, seed=7
    )
    y = torch.tensor([[far], [0.5 - far]], dtype=torch.float64)
    z = torch.linspace(-16, 16, 801, dtype=torch.float64, device="cpu")
    first, second = torch.meshgrid(z, z, indexing="ij")
    weight = (-0.5 * (first.square() + second.square())).flatten().log_softmax(0)
    root = torch.linalg.cholesky(cov[0, 0])
    f = centre + torch.stack([first.flatten(), second.flatten()], -1)[:, None, None] @ root.T
    mean, variance = (each[:, :, 0, 0] for each in likelihood.moments(f))
    valid = variance > 0
    density = distributions.Normal(mean, variance.clamp(min=1e-300).sqrt()).log_prob(y[:, 0])
    inner = torch.where(valid, density + weight[:, None], -torch.inf).logsumexp(0)
    exact = inner - torch.where(valid, weight[:, None], -torch.inf).logsumexp(0)
    assert relative(made(belief, likelihood).log_prob(moved(y)), exact) < 1e-6


def test_intervals_of_wrapped_and_of_unknown_distributions() -> None:
    """`Independent` has the function of its parts; what torch has not is refused with another way."""
    belief = believed(0, (2,))
    plain, wrapped, heavy = (
        made(belief, pw.Custom(laplace_energy, predictive=make, shape=(2,)))
        for make in (
            lambda f: distributions.Normal(f, 0.5),
            lambda f: distributions.Independent(distributions.Normal(f, 0.5), 1),
            lambda f: distributions.StudentT(5.0, f),
        )
    )
    for one, other in zip(plain.interval(0.9), wrapped.interval(0.9), strict=True):
        assert relative(other, one.cpu()) < 1e-6
    with pytest.raises(ValueError, match=r"distribution function of StudentT.*quantiles of sample"):
        heavy.interval(0.9)


@pytest.mark.parametrize("shape", [(2,), (3, 2), (2, 3, 2)])
def test_custom_likelihoods(shape: tuple[int, ...]) -> None:
    """Outputs alone without a distribution, and its mixture with one."""
    belief = believed(len(shape) - 1 if len(shape) < 3 else 0, shape)
    plain = made(belief, pw.Custom(laplace_energy))
    assert plain.mean.shape == plain.epistemic.shape == (5, *shape)
    for ask in (lambda: plain.log_prob(plain.mean), lambda: plain.interval(0.9), lambda: plain.sample(2)):
        with pytest.raises(ValueError, match="distribution of y"):
            ask()
    likelihood = pw.Custom(laplace_energy, predictive=lambda f: distributions.Laplace(f, 1.0), shape=shape)
    draws = belief.random(50, seeded(1))
    pred = made(Samples(belief.form, belief.budget, draws), likelihood, method="sampled")
    f = belief.form.restore(draws).cpu()
    y = normal(5, *shape, seed=3)
    density = distributions.Laplace(f, 1.0).log_prob(y).flatten(2).sum(2).logsumexp(0) - math.log(50)
    assert relative(pred.log_prob(moved(y)), density) < EXACT
    assert (
        relative(pred.mean, f.mean(0)) < EXACT
        and relative(pred.aleatoric, torch.full((5, *shape), 2.0).double()) < EXACT
    )
    assert pred.sample(4, seeded(3)).shape == (4, 5, *shape)
    if len(shape) == 1:
        assert made(belief, likelihood).log_prob(moved(y)).shape == (5,)
    else:
        with pytest.raises(ValueError, match="method='sampled'"):
            made(belief, likelihood)


# What can go wrong


def test_targets_are_checked() -> None:
    """Never broadcast; out of range, of the wrong dtype or number: a message."""
    pred = made(believed(0, (3,)), pw.Gaussian())
    for y in (torch.zeros(5, 1), torch.zeros(5), torch.zeros(1, 3), torch.zeros(3), torch.zeros(())):
        with pytest.raises(ValueError, match="expected"):
            pred.log_prob(y)
    with pytest.raises(ValueError, match="NaN"):
        pred.log_prob(torch.full((5, 3), math.nan))
    with pytest.raises(TypeError, match="expected a tensor"):
        pred.log_prob({"y": 1.0})
    labels = made(believed(0, (3,)), pw.Categorical())
    with pytest.raises(ValueError, match=r"outside 0\.\.2"):
        labels.log_prob(torch.tensor([0, 1, 2, 3, 0]))
    with pytest.raises(ValueError, match="expected whole numbers"):
        made(believed(0, (3,)), pw.Poisson()).log_prob(torch.full((5, 3), -1))


@pytest.mark.parametrize("level", [0, 1, -0.1, 95, True, "0.9", math.nan])
def test_levels_are_checked(level: Any) -> None:
    """A probability between 0 and 1."""
    with pytest.raises(ValueError, match="between 0 and 1"):
        made(believed(), pw.Categorical()).interval(level)


@pytest.mark.parametrize("n", [0, -1, 2.0, True])
def test_numbers_of_samples_are_checked(n: Any) -> None:
    """A positive whole number."""
    for family in ("classes", "binary", "regression", "count"):
        with pytest.raises(ValueError, match="positive whole number"):
            made(believed(), LIKELIHOODS[family]).sample(n)


@pytest.mark.parametrize(
    ("likelihood", "method", "link", "samples", "message"),
    [
        ("classes", "linearized", None, None, "did you mean 'linearised'"),
        ("classes", "linearised", "prbit", None, "did you mean 'probit'"),
        ("binary", "linearised", "bridge", None, "Known there: probit, mc"),
        ("regression", "linearised", "probit", None, "Known there: exact, mc"),
        ("classes", "sampled", "probit", None, "Known there: mc"),
        ("classes", "linearised", "mc", 0, "positive whole number"),
        ("classes", "linearised", "mc", 2.5, "positive whole number"),
    ],
)
def test_names_are_checked(likelihood: str, method: str, link: Any, samples: Any, message: str) -> None:
    """With the nearest right one, and those that the likelihood has."""
    with pytest.raises(ValueError, match=message):
        options.PredictOptions.of(LIKELIHOODS[likelihood], method, link, samples)


def test_memory_changes_nothing() -> None:
    """Averages in parts of any size are the same numbers."""
    belief = believed(1, (4, 3), examples=40)
    small = GaussianOutputs(belief.form, Budget(1), centre=belief.mean, blocks=belief.covariance, points=256, seed=7)
    large = GaussianOutputs(
        belief.form, Budget(1 << 30), centre=belief.mean, blocks=belief.covariance, points=256, seed=7
    )
    for family, link in (("classes", "mc"), ("binary", "mc"), ("count", "mc"), ("regression", "mc")):
        left, right = (made(each, LIKELIHOODS[family], link) for each in (small, large))
        assert relative(left.epistemic, right.epistemic.cpu()) < EXACT
        assert relative(left.aleatoric, right.aleatoric.cpu()) < EXACT


def test_reprs_can_be_read() -> None:
    """How many inputs, how, the first values, the mean uncertainty."""
    assert repr(made(believed(), pw.Gaussian(0.5))).splitlines()[0] == "Regression for 5 inputs (exact)"
    assert "epistemic" in repr(made(believed(), pw.Gaussian(0.5)))
    one = believed(examples=1)
    assert repr(made(one, pw.Categorical())).startswith("Classes for 1 input (probit)\n  probs [")
    draws = Samples(one.form, one.budget, one.random(3, seeded(1)))
    assert "3 draws of the weights" in repr(made(draws, pw.Categorical(), method="sampled"))
    with pytest.raises(AttributeError, match="it has aleatoric"):
        _ = made(one, pw.Gaussian()).probs
    for name, meant in {"var": "variance", "stddev": "std", "deviation": "std"}.items():
        with pytest.raises(AttributeError, match=f"no '{name}'; did you mean '{meant}'"):
            getattr(made(one, pw.Gaussian()), name)
