"""Drawn labels: the same however data are batched, with the right distribution, and the right curvature on average."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.distributions import Categorical, Normal, Poisson

import peewit as pw
from environment import DEVICE
from fitting import cut
from likelihood_cases import BY_NAME, LikelihoodCase
from likelihood_fits import DRAWABLE, fit, form_of
from peewit.likelihoods import NAMES
from peewit.runtime.random import Hashed
from tables import curvature_of, relative

DRAWN = pytest.mark.parametrize("name", DRAWABLE)


def hashed(count: int, positions: int = 1, seed: int = 3) -> Hashed:
    """Draws for so many examples."""
    return Hashed(seed, torch.arange(count), positions)


@DRAWN
def test_draws_do_not_depend_on_batches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, in parts, and by one example at a time: the same curvature; another generator gives another one."""
    monkeypatch.setattr("peewit.curvature.pieces.MERGED_EXAMPLES", 1)  # small batches are not put together
    case = BY_NAME[name]
    whole = curvature_of(fit(case, "full", pw.MonteCarlo(8)))
    assert torch.equal(curvature_of(fit(case, "full", pw.MonteCarlo(8))), whole)
    for sizes in ([1, 3], [2, 1, 1], [1, 1, 1, 1]):
        data = cut(case.x, case.y, sizes)
        model = copy.deepcopy(case.model).to(DEVICE)
        made = pw.fit(model, data, case.likelihood, structure="full", curvature=pw.MonteCarlo(8))
        assert relative(curvature_of(made), whole) < 1e-12
    other = curvature_of(fit(case, "full", pw.MonteCarlo(8), generator=torch.Generator().manual_seed(2)))
    assert relative(other, whole) > 1e-3


def scores(case: LikelihoodCase, copies: int, seed: int) -> tuple[Tensor, Tensor]:
    """(N, F, F): the mean outer product of gradients at drawn labels, and what it tends to."""
    form = form_of(case)
    likelihood, f = case.likelihood.bind(form), form.flatten(case.f)
    y = likelihood.targets(case.y, form)
    many_f, many_y = (each.repeat_interleave(copies, 0) for each in (f, y))
    made = likelihood.drawn_score(many_f, many_y, hashed(len(many_f), form.positions, seed))
    flat = made.reshape(len(f), copies, -1)
    root = likelihood.root(f, y)
    exact = torch.stack([torch.block_diag(*each) for each in root @ root.mT])
    return flat.mT @ flat / copies, exact


@DRAWN
def test_draws_tend_to_the_exact_curvature(name: str) -> None:
    """The error falls with one over the root of the draws, four by four: positions and outputs are independent."""
    case = BY_NAME[name]
    errors = []
    for copies in (40, 160, 640):
        pairs = [scores(case, copies, seed) for seed in range(20)]
        squares = [float((made - exact).square().sum()) for made, exact in pairs]
        errors.append(math.sqrt(sum(squares) / len(squares)))
    for few, many in itertools.pairwise(errors):
        assert 2 * 0.6 < few / many < 2 * 1.6
    assert 4 * 0.6 < errors[0] / errors[-1] < 4 * 1.6
    mean = torch.stack([made for made, _ in pairs]).mean(0)  # of 12,800 draws
    assert float((mean - pairs[0][1]).norm()) < 0.05 * float(pairs[0][1].norm())


def uniform_distance(values: Tensor) -> float:
    """Kolmogorov's distance from uniform, times the root of the count: one in a thousand is above 1.95."""
    ordered = values.flatten().sort().values
    count = len(ordered)
    steps = torch.arange(count + 1, dtype=torch.float64) / count
    distance = torch.maximum((ordered - steps[:-1]).abs().max(), (ordered - steps[1:]).abs().max())
    return float(distance) * math.sqrt(count)


@pytest.mark.parametrize("rate", [0.02, 0.7, 3.0, 40.0, 900.0])
def test_drawn_counts(rate: float) -> None:
    """Frequencies of counts are those of a Poisson distribution, for small and large rates."""
    count = 20_000
    f = torch.full((count, 1, 1), math.log(rate), dtype=torch.float64)
    drawn = pw.Poisson().sample(f, torch.zeros_like(f), hashed(count)).flatten()
    assert bool((drawn == drawn.floor()).all()) and float(drawn.min()) >= 0
    probability = (
        Poisson(torch.tensor(rate, dtype=torch.float64))
        .log_prob(torch.arange(rate + 20 * math.sqrt(rate) + 20, dtype=torch.float64))
        .exp()
    )
    below = torch.cat([torch.zeros(1, dtype=torch.float64), probability.cumsum(0)])
    # Spread evenly over its step of the distribution function a count is uniform.
    inside = torch.rand(count, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    place = drawn.long()
    assert uniform_distance(below[place] + inside * probability[place]) < 1.95
    expected = probability * count
    common = expected > 5
    observed = torch.bincount(place, minlength=len(expected))[: len(expected)].double()
    rare = observed[~common].sum() - expected[~common].sum()
    chi = ((observed - expected).square() / expected)[common].sum() + rare.square() / expected[~common].sum().clamp(1)
    freedom = int(common.sum())
    assert float(chi) < freedom + 4 * math.sqrt(2 * freedom) + 4


def test_drawn_counts_of_huge_rates() -> None:
    """A million a piece: normal to three digits."""
    count = 20_000
    f = torch.full((count, 1, 1), math.log(1e6), dtype=torch.float64)
    drawn = pw.Poisson().sample(f, torch.zeros_like(f), hashed(count)).flatten()
    assert uniform_distance(Normal(1e6, 1e3).cdf(drawn + 0.5)) < 1.95
    again = pw.Poisson().sample(f.float(), f, hashed(count)).flatten()
    assert again.dtype == torch.float32 and relative(again.double(), drawn) < 1e-5


def test_drawn_classes_and_labels() -> None:
    """Frequencies of classes, and of yes and no, are the network's probabilities; positions draw their own."""
    count = 20_000
    f = torch.tensor([[0.2, -1.0, 1.5], [2.0, 0.0, -3.0]], dtype=torch.float64).expand(count, 2, 3)
    y = torch.zeros(count, 2, dtype=torch.long)
    y[:, 1] = torch.where(torch.arange(count) % 2 == 0, 1, -100)
    drawn = pw.Categorical().sample(f, y, hashed(count, 2))
    assert bool((drawn[:, 1][y[:, 1] == -100] == -100).all())
    for position in (0, 1):
        own = drawn[:, position][y[:, position] >= 0]
        expected = Categorical(logits=f[0, position]).probs * len(own)
        chi = ((torch.bincount(own, minlength=3) - expected).square() / expected).sum()
        assert float(chi) < 13.8  # once in a thousand with two degrees of freedom
    chosen = pw.Bernoulli().sample(f, f, hashed(count, 2)).flatten(1)
    p = f[0].sigmoid().flatten()
    assert float(((chosen.mean(0) - p) / (p * (1 - p) / count).sqrt()).abs().max()) < 3.5
    correlation = torch.corrcoef(chosen.T) - torch.eye(6)
    assert float(correlation.abs().max()) < 4.5 / math.sqrt(count)


def test_drawn_numbers() -> None:
    """Normal with one noise, one per output, and one per input; outputs and positions draw their own."""
    count = 20_000
    f = torch.tensor([[0.2, -1.0, 1.5, 0.4], [2.0, 0.0, -3.0, 1.0]], dtype=torch.float64).expand(count, 2, 4)
    noise = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=torch.float64)
    each = pw.Gaussian(noise)
    drawn = each.sample(f, f, hashed(count, 2))
    spread = noise / float(each.factor)  # at a common factor of one
    values: list[tuple[Tensor, Any]] = [(drawn, Normal(f, spread.expand(f.shape)))]
    values.append((pw.Gaussian(0.3).sample(f, f, hashed(count, 2)), Normal(f, torch.ones_like(f))))
    for parameters in ("raw", "mean_log_variance"):
        likelihood = pw.HeteroscedasticGaussian(parameters)
        values.append((likelihood.sample(f, f[..., :2], hashed(count, 2)), likelihood.distribution(f)))
    for made, distribution in values:
        places = distribution.cdf(made).flatten(1)
        assert all(uniform_distance(column) < 2.1 for column in places.T)
        correlation = torch.corrcoef(places.T) - torch.eye(places.shape[1])
        assert float(correlation.abs().max()) < 4.5 / math.sqrt(count)


RATES = torch.tensor([[1e-9, 0.02, 0.7], [3.0, 40.0, 900.0], [1e5, 1.0, 12.0]], dtype=torch.float64)


def test_drawn_counts_are_quantiles() -> None:
    """Small rates beside large ones: each has the count that it would have alone."""
    f = RATES.log().repeat(20, 1, 1)
    draws = hashed(20, 3)
    expected = torch.as_tensor(stats.poisson.ppf(draws.uniform(3).numpy(), f.exp().numpy()))
    assert torch.equal(pw.Poisson().sample(f, f, draws), expected)
    assert bool((expected == 0).any()) and bool((expected > 1e4).any())
    for place in ((0, 0), (0, 2), (2, 0)):
        alone = f[:, place[0] : place[0] + 1, place[1] : place[1] + 1]
        again = Fixed(draws.uniform(3)[:, place[0] : place[0] + 1, place[1] : place[1] + 1])
        assert torch.equal(pw.Poisson().sample(alone, alone, again)[:, 0, 0], expected[:, place[0], place[1]])


def test_counts_of_rates_beyond_all_numbers() -> None:
    """Huge rates are their own counts to rounding, and infinite ones no error."""
    f = torch.tensor([[[70.0, 800.0]]], dtype=torch.float64)
    huge, infinite = pw.Poisson().sample(f, f, hashed(1))[0, 0].tolist()
    assert huge == pytest.approx(math.exp(70.0), rel=1e-12) and not math.isfinite(infinite)


class Fixed:
    """Uniform numbers that are given, whatever their width; and normal ones."""

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers

    def uniform(self, width: int) -> Tensor:
        assert width == self.numbers.shape[-1]
        return self.numbers

    normal = uniform


def test_draws_at_given_numbers() -> None:
    """By the distribution function's inverse, and by means and deviations."""
    torch.manual_seed(0)
    f = torch.randn(6, 4, 2, dtype=torch.float64)
    u = torch.rand(6, 4, 2, dtype=torch.float64)
    assert torch.equal(pw.Bernoulli().sample(f, f, Fixed(u)), (u < 1 / (1 + (-f).exp())).double())
    noise = torch.tensor([0.5, 2.0], dtype=torch.float64)  # whose geometric mean is one
    torch.testing.assert_close(pw.Gaussian(noise).sample(f, f, Fixed(u)), f + u * noise)
    torch.testing.assert_close(pw.Gaussian(3.0).sample(f, f, Fixed(u)), f + u)
    own = u[..., :1]
    found = pw.HeteroscedasticGaussian("mean_log_variance").sample(f, own, Fixed(own))
    torch.testing.assert_close(found, f[..., :1] + (f[..., 1:] / 2).exp() * own)
    f = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64).log().expand(6, 1, 3)
    u = torch.tensor([0.1, 0.49, 0.51, 0.69, 0.71, 1.0], dtype=torch.float64).reshape(6, 1, 1)
    y = torch.tensor([0, 1, 2, 0, -7, 1])[:, None]
    likelihood = pw.Categorical(ignore_index=-7)
    assert likelihood.sample(f, y, Fixed(u)).flatten().tolist() == [0, 0, 1, 1, -7, 2]
    score = likelihood.drawn_score(f, y, Fixed(u))[:, 0]
    expected = f[:, 0].exp() - torch.eye(3, dtype=torch.float64)[[0, 0, 1, 1, 2, 2]]
    expected[4] = 0
    torch.testing.assert_close(score, expected)


def test_a_class_is_drawn_where_probabilities_end_below_one() -> None:
    """By rounding their sum may be less than the number that is drawn: the last class is meant."""
    f = torch.zeros(1, 2, 7, dtype=torch.float64)
    beyond = Fixed(torch.full((1, 2, 1), 1.0 + 1e-9, dtype=torch.float64))
    assert pw.Categorical().sample(f, torch.zeros(1, 2, dtype=torch.long), beyond).tolist() == [[6, 6]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_custom_samplers_get_numbers_inside(dtype: torch.dtype) -> None:
    """Neither 0 nor 1, one for each output, in the outputs' dtype."""
    seen: list[Tensor] = []

    def sample(f: Tensor, uniform: Tensor) -> Tensor:
        seen.extend((f, uniform))
        return f + uniform.reshape(f.shape)

    likelihood = pw.Custom(lambda f, y: (f - y).square().sum((1, 2)) / 2, sample, shape=(2, 2))
    f = torch.randn(3, 1, 4, dtype=dtype).requires_grad_()
    u = torch.tensor([0.0, 0.25, 1.0 - 1e-17, 1.0], dtype=torch.float64).expand(3, 1, 4)
    score = likelihood.drawn_score(f, torch.zeros(3, 1, 2, 2), Fixed(u))
    half = torch.finfo(dtype).eps / 2
    assert not seen[0].requires_grad and torch.equal(seen[0], f.detach().reshape(3, 2, 2))
    assert seen[1].dtype == dtype and torch.equal(
        seen[1], torch.tensor([half, 0.25, 1 - half, 1 - half], dtype=dtype).expand(3, 4)
    )
    torch.testing.assert_close(score, -seen[1].reshape(3, 1, 4), rtol=1e-4, atol=1e-6)


@DRAWN
def test_scores_are_differentiated_where_that_is_asked_for(name: str) -> None:
    """Otherwise they have no graph; the numbers are the same."""
    case = BY_NAME[name]
    form = form_of(case)
    likelihood, f = case.likelihood.bind(form), form.flatten(case.f).clone().requires_grad_()
    y = likelihood.targets(case.y, form)
    draws = hashed(len(f), form.positions)
    assert not likelihood.drawn_score(f, y, draws).requires_grad
    made = likelihood.drawn_score(f, y, draws, create_graph=True)
    torch.testing.assert_close(made, likelihood.drawn_score(f.detach(), y, draws))
    assert made.requires_grad


def test_every_likelihood_is_drawn_from() -> None:
    """Every name that says so has a case above, and so has a sampler of one's own."""
    drawn = {type(BY_NAME[name].likelihood) for name in DRAWABLE}
    named = {cls for cls in NAMES.values() if cls().draws}
    assert drawn == {pw.Custom, *named} - {pw.Preference}  # that draws as Bernoulli does
    assert len(drawn) >= 6
