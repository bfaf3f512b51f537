"""Drawn labels: the same however data are batched, with the right distribution, and the right curvature on average."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Normal, Poisson

import lapwing as lw
from conftest import DEVICE
from fitting import cut
from lapwing.random import Hashed
from likelihood_cases import BY_NAME, CASES, LikelihoodCase
from tables import curvature_of, relative
from test_likelihoods import DRAWABLE, fit, form_of

DRAWN = pytest.mark.parametrize("name", DRAWABLE)


def hashed(count: int, positions: int = 1, seed: int = 3) -> Hashed:
    """Draws for so many examples."""
    return Hashed(seed, torch.arange(count), positions)


@DRAWN
def test_draws_do_not_depend_on_batches(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, in parts, and by one example at a time: the same curvature; another generator gives another one."""
    monkeypatch.setattr("lapwing.curvature.MERGED_EXAMPLES", 1)  # small batches are not put together
    case = BY_NAME[name]
    whole = curvature_of(fit(case, "full", lw.MonteCarlo(8)))
    assert torch.equal(curvature_of(fit(case, "full", lw.MonteCarlo(8))), whole)
    for sizes in ([1, 3], [2, 1, 1], [1, 1, 1, 1]):
        data = cut(case.x, case.y, sizes)
        model = copy.deepcopy(case.model).to(DEVICE)
        made = lw.fit(model, data, case.likelihood, structure="full", curvature=lw.MonteCarlo(8))
        assert relative(curvature_of(made), whole) < 1e-12
    other = curvature_of(fit(case, "full", lw.MonteCarlo(8), generator=torch.Generator().manual_seed(2)))
    assert relative(other, whole) > 1e-3


def scores(case: LikelihoodCase, copies: int, seed: int) -> tuple[Tensor, Tensor]:
    """(N, F, F): the mean outer product of gradients at drawn labels, and what it tends to."""
    form = form_of(case)
    likelihood, f = case.likelihood.bound(form), form.flatten(case.f)
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
    drawn = lw.Poisson().sample(f, torch.zeros_like(f), hashed(count)).flatten()
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
    drawn = lw.Poisson().sample(f, torch.zeros_like(f), hashed(count)).flatten()
    assert uniform_distance(Normal(1e6, 1e3).cdf(drawn + 0.5)) < 1.95
    again = lw.Poisson().sample(f.float(), f, hashed(count)).flatten()
    assert again.dtype == torch.float32 and relative(again.double(), drawn) < 1e-5


def test_drawn_classes_and_labels() -> None:
    """Frequencies of classes, and of yes and no, are the network's probabilities; positions draw their own."""
    count = 20_000
    f = torch.tensor([[0.2, -1.0, 1.5], [2.0, 0.0, -3.0]], dtype=torch.float64).expand(count, 2, 3)
    y = torch.zeros(count, 2, dtype=torch.long)
    y[:, 1] = torch.where(torch.arange(count) % 2 == 0, 1, -100)
    drawn = lw.Categorical().sample(f, y, hashed(count, 2))
    assert bool((drawn[:, 1][y[:, 1] == -100] == -100).all())
    for position in (0, 1):
        own = drawn[:, position][y[:, position] >= 0]
        expected = Categorical(logits=f[0, position]).probs * len(own)
        chi = ((torch.bincount(own, minlength=3) - expected).square() / expected).sum()
        assert float(chi) < 13.8  # once in a thousand with two degrees of freedom
    chosen = lw.Bernoulli().sample(f, f, hashed(count, 2)).flatten(1)
    p = f[0].sigmoid().flatten()
    assert float(((chosen.mean(0) - p) / (p * (1 - p) / count).sqrt()).abs().max()) < 3.5
    correlation = torch.corrcoef(chosen.T) - torch.eye(6)
    assert float(correlation.abs().max()) < 4.5 / math.sqrt(count)


def test_drawn_numbers() -> None:
    """Normal with one noise, one per output, and one per input; outputs and positions draw their own."""
    count = 20_000
    f = torch.tensor([[0.2, -1.0, 1.5, 0.4], [2.0, 0.0, -3.0, 1.0]], dtype=torch.float64).expand(count, 2, 4)
    noise = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=torch.float64)
    each = lw.Gaussian(noise)
    drawn = each.sample(f, f, hashed(count, 2))
    spread = noise / float(each.factor)  # at a common factor of one
    values: list[tuple[Tensor, Any]] = [(drawn, Normal(f, spread.expand(f.shape)))]
    values.append((lw.Gaussian(0.3).sample(f, f, hashed(count, 2)), Normal(f, torch.ones_like(f))))
    for parameters in ("raw", "mean_log_variance"):
        likelihood = lw.HeteroscedasticGaussian(parameters)
        values.append((likelihood.sample(f, f[..., :2], hashed(count, 2)), likelihood.distribution(f)))
    for made, distribution in values:
        places = distribution.cdf(made).flatten(1)
        assert all(uniform_distance(column) < 2.1 for column in places.T)
        correlation = torch.corrcoef(places.T) - torch.eye(places.shape[1])
        assert float(correlation.abs().max()) < 4.5 / math.sqrt(count)


def test_every_likelihood_is_drawn_from() -> None:
    """Only energies without a sampler are left out above."""
    left_out = {type(case.likelihood) for case in CASES if case.name not in DRAWABLE}
    assert left_out == {lw.Custom}
    assert {type(BY_NAME[name].likelihood) for name in DRAWABLE} == {type(case.likelihood) for case in CASES}
