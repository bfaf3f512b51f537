"""Links from Gaussian outputs to labels: each against its formula written anew, and against integrals where exact."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy import integrate, special
from torch import Tensor

from fitting import normal, seeded
from peewit.predictions import links
from tables import moved, relative

EXACT = 1e-12


def gaussian(places: int, outputs: int, scale: float = 1.0, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Means (M, C) and full covariances (M, C, C)."""
    factor = normal(places, outputs, outputs, seed=seed) * scale / math.sqrt(outputs)
    return normal(places, outputs, seed=seed + 1), factor @ factor.mT


def expected(function: Callable[[float], float], mean: float, variance: float) -> float:
    """`E function(f)` for Gaussian f, by adaptive quadrature."""
    deviation = math.sqrt(variance)

    def integrand(z: float) -> float:
        return function(mean + deviation * z) * math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)

    return integrate.quad(integrand, -12, 12, points=[-mean / deviation], limit=500, epsabs=1e-12)[0]


def test_probit_of_classes() -> None:
    """The softmax of logits over `sqrt(1 + pi/8 variance)`."""
    mean, cov = gaussian(4, 3, 2.0)
    made = links.probit(moved(mean), moved(cov.diagonal(dim1=-2, dim2=-1)))
    for place in range(4):
        grown = [
            math.exp(float(mean[place, c]) / math.sqrt(1 + math.pi * float(cov[place, c, c]) / 8)) for c in range(3)
        ]
        assert relative(made[place], torch.tensor([each / sum(grown) for each in grown], dtype=torch.float64)) < EXACT


@pytest.mark.parametrize("mean", [-3.0, -0.4, 0.0, 1.2, 6.0])
@pytest.mark.parametrize("variance", [1e-6, 0.3, 4.0, 100.0])
def test_probit_of_two_labels(mean: float, variance: float) -> None:
    """Within .02 of the integral everywhere, and exact by symmetry and without variance."""
    made = float(links.probit_logits(*torch.tensor([mean, variance], dtype=torch.float64)).sigmoid())
    assert made == pytest.approx(1 / (1 + math.exp(-mean / math.sqrt(1 + math.pi * variance / 8))), rel=1e-12)
    exact = expected(special.expit, mean, variance)
    assert abs(made - exact) < (1e-6 if variance < 1e-3 or mean == 0 else 0.02)


@pytest.mark.parametrize("outputs", [2, 3, 10])
@pytest.mark.parametrize("normalised", [False, True])
def test_bridge(outputs: int, normalised: bool) -> None:
    """The concentrations by loops over classes."""
    mean, cov = gaussian(3, outputs, 1.5)
    made = links.bridge(moved(mean), moved(cov), normalised)
    for place in range(3):
        mu = [float(each) for each in mean[place]]
        s = [[float(each) for each in row] for row in cov[place]]
        every = range(outputs)
        row = [sum(s[k]) for k in every]
        whole = sum(row)
        total = sum(mu)
        mu = [mu[k] - row[k] * total / whole for k in every]
        variance = [s[k][k] - row[k] ** 2 / whole for k in every]
        if normalised:
            factor = sum(variance) / outputs / math.sqrt(outputs / 2)
            mu = [each / math.sqrt(factor) for each in mu]
            variance = [each / factor for each in variance]
        opposite = sum(math.exp(-each) for each in mu)
        alpha = [(1 - 2 / outputs + math.exp(mu[k]) * opposite / outputs**2) / variance[k] for k in every]
        assert relative(made[place], torch.tensor(alpha, dtype=torch.float64)) < 1e-9
        assert abs(sum(mu)) < 1e-9  # the projection does what it is for


def test_bridge_without_uncertainty() -> None:
    """No variance and far logits give finite concentrations."""
    mean = torch.tensor([[1.0, 2.0, 3.0], [-200.0, 0.0, 200.0]])
    alpha = links.bridge(mean, torch.zeros(2, 3, 3))
    assert bool(torch.isfinite(alpha).all()) and bool((alpha > 0).all())
    total, expected_entropy = links.dirichlet_entropies(alpha.log())
    assert bool(torch.isfinite(total).all()) and bool((total - expected_entropy > -1e-6).all())


@pytest.mark.parametrize("outputs", [2, 3, 10])
@pytest.mark.parametrize("normalised", [False, True])
def test_bridge_of_logits_far_apart(outputs: int, normalised: bool) -> None:
    """Concentrations overflow, their logarithms do not: probabilities and entropies are those of a point."""
    mean, cov = gaussian(3, outputs)
    log_alpha = links.log_bridge(moved(mean * 1e4), moved(cov), normalised)
    p = log_alpha.softmax(-1)
    assert bool(torch.isfinite(log_alpha).all())
    assert float((p.sum(-1) - 1).abs().max()) < EXACT
    for each in links.dirichlet_entropies(log_alpha):
        assert bool(torch.isfinite(each).all()) and float(each.abs().max()) < 1e-9


def lognormal_poisson(y: float, mean: float, variance: float) -> float:
    """`log E Poisson(y; exp f)` by a million equal steps, wide enough for every case."""
    deviation = math.sqrt(variance)
    reach = max(40 * deviation, 2 * abs(math.log(max(y, 1)) - mean))
    f = torch.linspace(mean - reach, mean + reach, 1_000_001, dtype=torch.float64, device="cpu")
    each = y * f - f.exp() - math.lgamma(y + 1) - (f - mean).square() / (2 * variance)
    return float(each.logsumexp(0)) + math.log(2 * reach / 1e6) - 0.5 * math.log(2 * math.pi * variance)


@pytest.mark.parametrize("y", [0.0, 1.0, 7.0, 300.0, 1e5])
@pytest.mark.parametrize("mean", [-4.0, 0.0, 3.0, 20.0])
@pytest.mark.parametrize("variance", [1e-4, 0.25, 9.0, 100.0])
def test_counts_far_from_what_is_expected(y: float, mean: float, variance: float) -> None:
    """Outliers lie many deviations from the outputs, where a line around those has no points."""
    given = [moved(torch.tensor([each], dtype=torch.float64)) for each in (mean, variance, y)]
    made = float(links.poisson_log_density(*given))
    assert made == pytest.approx(lognormal_poisson(y, mean, variance), rel=1e-7, abs=1e-7)


def test_counts_sum_to_one_without_uncertainty_too() -> None:
    """Over all counts, and with the plain probabilities where the variance is zero."""
    y = torch.arange(400, dtype=torch.float64)
    for variance in (0.0, 1e-9, 0.3):
        at = [moved(torch.full_like(y, each)) for each in (1.5, variance)]
        made = links.poisson_log_density(*at, moved(y))
        assert float(made.exp().sum()) == pytest.approx(1, abs=1e-6)
    plain = torch.distributions.Poisson(math.exp(1.5)).log_prob(y[:30])
    exact = links.poisson_log_density(moved(torch.full((30,), 1.5)), moved(torch.zeros(30)), moved(y[:30]))
    assert relative(exact, plain) < 1e-6


def test_counts_have_gradients_in_mean_and_variance() -> None:
    """By central differences."""
    y = torch.tensor([0.0, 3.0, 500.0], dtype=torch.float64)
    at = [torch.tensor(each, dtype=torch.float64).requires_grad_() for each in ([0.3, 1.0, -1.0], [0.5, 0.1, 2.0])]
    assert torch.autograd.gradcheck(lambda mean, variance: links.poisson_log_density(mean, variance, y), at)


def test_entropies_of_a_dirichlet() -> None:
    """Closed forms against a large sample, with its error."""
    alpha = torch.tensor([[0.3, 1.0, 4.0], [20.0, 30.0, 5.0]], dtype=torch.float64)
    total, mean_entropy = links.dirichlet_entropies(alpha.log())
    with torch.random.fork_rng():
        torch.manual_seed(0)
        p = torch.distributions.Dirichlet(alpha).sample((200_000,))
    entropy = torch.distributions.Categorical(p).entropy()
    error = entropy.std(0) / math.sqrt(len(entropy))
    assert bool(((mean_entropy - entropy.mean(0)).abs() < 4 * error).all())
    mean = torch.distributions.Dirichlet(alpha).mean
    assert relative(total, torch.distributions.Categorical(mean).entropy()) < EXACT


def test_moments_of_a_lognormal() -> None:
    """Those of torch's distribution."""
    mean, variance = normal(5), normal(5, seed=2).square()
    first, second = links.lognormal(mean, variance)
    reference = torch.distributions.LogNormal(mean, variance.sqrt())
    assert relative(first, reference.mean) < EXACT and relative(second, reference.variance) < 1e-10


def raw_head(f: Tensor) -> tuple[Tensor, Tensor]:
    """`eta1 = o1`, `eta2 = -(softplus(o2) + 1e-8) / 2`."""
    first, second = f.chunk(2, -1)
    return first, -0.5 * (torch.nn.functional.softplus(second) + 1e-8)


@pytest.mark.parametrize("of", ["natural", "mean"])
def test_delta_rule(of: str) -> None:
    """Written out for the raw head: precision `p = softplus(o2) + 1e-8`, mean `o1 / p`."""
    mean, cov = gaussian(4, 4)
    made, covariance, noise = links.delta_rule(raw_head, moved(mean), moved(cov), of)
    for place in range(4):
        o, s = mean[place].tolist(), cov[place]
        p = [math.log1p(math.exp(each)) + 1e-8 for each in o[2:]]
        rows = torch.zeros(2, 4, dtype=torch.float64)
        for k in range(2):
            rows[k, k] = 1 / p[k]
            if of == "mean":
                rows[k, 2 + k] = -o[k] / p[k] ** 2 / (1 + math.exp(-o[2 + k]))
        assert relative(made[place], torch.tensor([o[k] / p[k] for k in range(2)], dtype=torch.float64)) < EXACT
        assert relative(noise[place], torch.tensor([1 / each for each in p], dtype=torch.float64)) < EXACT
        assert relative(covariance[place], rows @ s @ rows.T) < EXACT
    assert not made.requires_grad and not covariance.requires_grad


def test_roots() -> None:
    """`L L^T = cov` for definite, semidefinite and zero covariances, also side by side."""
    thin = normal(2, 4, 2)
    cov = torch.cat([gaussian(2, 4)[1], thin @ thin.mT, torch.zeros(1, 4, 4).double(), torch.ones(1, 4, 4).double()])
    made = links.root(moved(cov))
    assert float((made @ made.mT - moved(cov)).abs().max()) < 1e-12
    slightly = cov - 1e-17 * torch.eye(4).double()  # rounding below zero
    made = links.root(moved(slightly))
    assert float((made @ made.mT - moved(cov)).abs().max()) < 1e-12
    single = links.root(moved(cov.float()))
    assert float((single @ single.mT - moved(cov.float())).abs().max()) < 1e-5


def test_roots_have_gradients() -> None:
    """Finite ones, also where a covariance is singular: of the variance that the root stands for."""
    thin = normal(3, 4, 2).requires_grad_()
    cov = thin @ thin.mT
    made = links.root(cov)
    assert relative((made @ made.mT).detach(), cov.detach()) < 1e-9
    weights = normal(4, 4, seed=7)
    (found,) = torch.autograd.grad((made @ made.mT * weights).sum(), thin, retain_graph=True)
    (direct,) = torch.autograd.grad((cov * weights).sum(), thin)
    assert relative(found, direct) < 1e-5


@pytest.mark.parametrize("dimensions", [1, 3, 10, 64])
def test_points_are_normal(dimensions: int) -> None:
    """Mean zero and covariance one to the rate of the set; fixed, and without the global generator."""
    state = torch.get_rng_state()
    points = links.normal_points(4096, dimensions, 3)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(points, links.normal_points.__wrapped__(4096, dimensions, 3))
    assert not torch.equal(points, links.normal_points(4096, dimensions, 4))
    assert float(points.mean(0).abs().max()) < 2e-3
    cov = points.T @ points / 4096
    assert float((cov - torch.eye(dimensions)).abs().max()) < (0.02 if dimensions < 64 else 0.08)


@pytest.mark.parametrize("mean", [-2.0, 0.3])
@pytest.mark.parametrize("deviation", [0.01, 1.0, 5.0, 20.0])
def test_line_rule(mean: float, deviation: float) -> None:
    """Sigmoids of any steepness and entropies against adaptive quadrature, and moments."""
    nodes, log_weights = links.line_points()
    weights = log_weights.exp()
    f = mean + deviation * nodes
    assert float(weights @ f) == pytest.approx(mean, abs=1e-12)
    assert float(weights @ (f - mean).square()) == pytest.approx(deviation**2, rel=1e-10)
    assert float(weights @ f.sigmoid()) == pytest.approx(expected(special.expit, mean, deviation**2), abs=1e-6)

    def entropy(value: float) -> float:
        p = special.expit(value)
        return float(special.entr(p) + special.entr(special.expit(-value)))

    made = weights @ (torch.special.entr(f.sigmoid()) + torch.special.entr((-f).sigmoid()))
    assert float(made) == pytest.approx(expected(entropy, mean, deviation**2), abs=1e-6)


def test_the_factor_is_not_transposed_as_published() -> None:
    """Averages over `mean + L eps` see the covariance `L L^T`; those over `z L` another one."""
    mean, cov = gaussian(1, 3, 3.0)
    root = links.root(cov)
    points = links.normal_points(4096, 3, 1)
    right = mean + torch.einsum("mcr,sr->smc", root, points)[:, 0]
    wrong = mean + points @ root[0]
    assert relative(torch.cov(right.T, correction=0), cov[0]) < 0.02
    assert relative(torch.cov(wrong.T, correction=0), cov[0]) > 0.2
    draws = torch.randn(400_000, 3, generator=seeded(1), dtype=torch.float64)
    exact = torch.distributions.MultivariateNormal(mean[0], cov[0])
    p = (exact.loc + draws @ exact.scale_tril.T).softmax(-1)
    error = float(p.std(0).max() / math.sqrt(len(p)))
    assert float((right.softmax(-1).mean(0) - p.mean(0)).abs().max()) < 4 * error + 1e-3
    assert float((wrong.softmax(-1).mean(0) - p.mean(0)).abs().max()) > 20 * error
