"""What `la.diagnose` says of preferences, and of likelihoods that users write."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from fitting import normal
from peewit.likelihoods import ALL, Likelihood, WithNoise
from peewit.likelihoods.contract import diagonal_root


def network(outputs: int = 1) -> nn.Module:
    """Of two layers."""
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, outputs)).double().to(DEVICE)


def data() -> tuple[Tensor, Tensor]:
    """A curve with noise."""
    x = normal(120, 3).to(DEVICE)
    return x, torch.sin(2 * x[:, :1]) + 0.5 * x[:, 1:2] + 0.3 * normal(120, 1, seed=5).to(DEVICE)


def train(model: nn.Module, x: Tensor, y: Tensor) -> nn.Module:
    """By least squares, with a little decay."""
    search = torch.optim.LBFGS(model.parameters(), max_iter=200, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        search.zero_grad()
        value = 0.5 * (model(x) - y).square().sum() + 0.05 * sum(p.square().sum() for p in model.parameters())
        value.backward()
        return value

    search.step(closure)
    return model


def test_preferences_beside_equal_rewards() -> None:
    """Pairs whose first input was always chosen are no constant; a network that prefers at random is not fitted."""
    first, second = (normal(100, 3, seed=seed).to(DEVICE) for seed in (1, 2))
    better = first[:, 0] > second[:, 0]
    chosen, rejected = torch.where(better[:, None], first, second), torch.where(better[:, None], second, first)
    reward = nn.Linear(3, 1, bias=False).double().to(DEVICE)
    with torch.no_grad():
        reward.weight.copy_(torch.tensor([[1.0, 0.0, 0.0]]))
    for given in (pw.Pair(chosen, rejected), (pw.Pair(first, second), better.double())):
        said = pw.fit(reward, given, "preference").diagnose(given)["fit"]
        assert said.severity == "fine" and said.sentence.endswith("and 50.0% for the same reward for all inputs.")
        assert said.numbers["constant_nll"] == pytest.approx(math.log(2)) and said.numbers["accuracy"] == 1.0
        with torch.no_grad():
            reward.weight.neg_()
        assert pw.fit(reward, given, "preference").diagnose(given)["fit"].severity == "problem"
        with torch.no_grad():
            reward.weight.neg_()


class Scaled(Likelihood):
    """Numbers with a variance of four that nobody tunes; it states nothing that it need not."""

    def energy(self, f: Tensor, y: Tensor) -> Tensor:
        """Half the squares, over four."""
        return 0.125 * (f - y).square().sum((1, 2))

    def root(self, f: Tensor, y: Tensor, probes: slice = ALL) -> Tensor:
        """A half."""
        return diagonal_root(torch.full_like(f, 0.5), probes)

    def distribution(self, f: Tensor) -> torch.distributions.Normal:
        """Its deviation is two."""
        return torch.distributions.Normal(f, 2.0)


class Noisy(WithNoise):
    """A Gaussian of one's own."""

    link_family = "gaussian"

    def __init__(self, noise: float = 1.0) -> None:
        self._noise = noise

    def energy(self, f: Tensor, y: Tensor) -> Tensor:
        """Half the squares."""
        return 0.5 * (f - y).square().sum((1, 2))

    def root(self, f: Tensor, y: Tensor, probes: slice = ALL) -> Tensor:
        """The identity."""
        return diagonal_root(torch.ones_like(f), probes)

    @property
    def noise(self) -> float:
        """The standard deviation."""
        return self._noise

    def with_noise(self, noise: float | Tensor) -> Noisy:
        """Another one."""
        return Noisy(float(noise))

    @property
    def noise_precision(self) -> Tensor:
        """One over its square."""
        return torch.tensor(self._noise**-2, dtype=torch.float64)

    def distribution(self, f: Tensor) -> torch.distributions.Normal:
        """A normal one."""
        return torch.distributions.Normal(f, self._noise)


def test_a_likelihood_of_ones_own() -> None:
    """What it does not state, it inherits: its energy beside a constant's, and advice that it can follow."""
    x, y = data()
    model = train(network(), x, y)
    said = pw.fit(model, (x, y), Scaled()).diagnose((x, y))
    assert said["fit"].severity == "fine" and "energy" in said["fit"].sentence
    assert said["residuals"].sentence.startswith("The predicted deviation is too large")
    assert said["residuals"].advice.startswith("Give the likelihood a predictive distribution")
    residual = float((model(x) - y).detach().square().mean().sqrt())
    for factor, words in ((4.0, "The noise is too large"), (0.25, "The noise is too small")):
        found = pw.fit(model, (x, y), Noisy(factor * residual)).diagnose((x, y))["residuals"]
        assert found.severity == "problem" and found.sentence.startswith(words)
        assert found.numbers["residual"] == pytest.approx(residual)
        assert found.advice.startswith("Tune it on data that the network was not trained on, la.tune('validation'")
    wide, both = train(network(2), x, torch.cat([y, y], 1)), torch.cat([y, y], 1)
    both = both + torch.tensor([0.0, 5.0]).to(y) * normal(len(y), 1, seed=3).to(y)
    uneven = pw.fit(wide, (x, both), Noisy(5 * residual)).diagnose((x, both))["residuals"]
    assert uneven.advice.startswith("Scale the targets until their residuals are of one size, and tune the noise on")


class Graded(pw.Bernoulli):
    """A subclass of one of ours, with another name."""

    title = "graded"


def test_a_subclass_of_a_likelihood_of_ours() -> None:
    """It inherits the words."""
    x, _ = data()
    yes = (x[:, :1] > 0).double()
    model = network()
    said, expected = (pw.fit(model, (x, yes), given).diagnose((x, yes))["fit"] for given in (Graded(), pw.Bernoulli()))
    assert (said.sentence, said.numbers) == (expected.sentence, expected.numbers)
