"""A posterior is a value: what a caller does later to tensors that went in, or came out, changes no answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from fitting import classes, normal, seeded
from peewit.likelihoods import Gaussian, Likelihood
from peewit.network.values import change_tensors
from peewit.priors.groupings import Layerwise

D = 3 * 4 + 4 + 4 * 2 + 2


def network() -> nn.Module:
    """Two layers, 26 weights, the same every time."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double().to(DEVICE)


X, Y, LABELS = normal(20, 3).to(DEVICE), normal(20, 2, seed=2).to(DEVICE), classes(2, 20).to(DEVICE)


@dataclass(frozen=True)
class Scaled(Likelihood):
    """A likelihood of a user, which holds a tensor: squares with a weight for each output."""

    scale: Tensor

    def energy(self, f: Tensor, y: Tensor) -> Tensor:
        """Half the weighted squares."""
        return 0.5 * ((f - y).square() * self.scale.to(f)).sum((1, 2))

    def root(self, f: Tensor, y: Tensor, probes: slice = slice(None)) -> Tensor:
        """Roots of the weights."""
        return torch.diag_embed(self.scale.to(f).sqrt().expand(f.shape))[..., probes]


@dataclass(frozen=True)
class Logged(Scaled):
    """Turns what it was given into logarithms, once."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", self.scale.log().abs() + 1)


def regression(**options: Any) -> pw.Laplace:
    """A fit of the real targets."""
    options = {"likelihood": "regression", "structure": "diag"} | options
    return pw.fit(network(), (X, Y), **options)


def positive(*shape: int) -> Tensor:
    """Numbers around one, which the caller keeps."""
    return 0.5 + torch.rand(*shape, generator=seeded(3), dtype=torch.float64)


def mask() -> Tensor:
    """Half of the weights."""
    return torch.arange(D) % 2 == 0


# From a tensor of the caller's to a posterior that holds it.
GIVEN: dict[str, tuple[Tensor, Callable[[Tensor], pw.Laplace]]] = {
    "scalar prior": (positive(1), lambda t: regression(prior=pw.Prior.scalar(t))),
    "bare precision": (positive(1), lambda t: regression(prior=t)),
    "layerwise prior": (positive(4), lambda t: regression(prior=pw.Prior.layerwise(t))),
    "prior by its class": (positive(4), lambda t: regression(prior=pw.Prior(Layerwise(), t))),
    "diagonal prior": (positive(D), lambda t: regression(prior=pw.Prior.diagonal(t))),
    "unitwise prior": (positive(12), lambda t: regression(prior=pw.Prior.unitwise(t))),
    "mean of a prior": (positive(D), lambda t: regression(prior=pw.Prior.scalar(1.0, mean=t))),
    "ratios of a prior": (positive(D), lambda t: regression(prior=pw.Prior("g_prior", torch.ones(1), base=t))),
    "other precisions of a prior": (positive(4), lambda t: regression(prior=pw.Prior.layerwise().with_precision(t))),
    "another prior": (positive(1), lambda t: regression().with_prior(t)),
    "precisions for the same groups": (positive(4), lambda t: regression(prior=pw.Prior.layerwise()).with_prior(t)),
    "start of tuning": (positive(D), lambda t: regression().tune(start=pw.Prior.scalar(1.0, mean=t))),
    "noise": (positive(2), lambda t: regression(likelihood=Gaussian(t))),
    "another noise": (positive(1), lambda t: regression().with_noise(t)),
    "weights of classes": (
        positive(2),
        lambda t: pw.fit(network(), (X, LABELS), pw.Categorical(weight=t), structure="diag"),
    ),
    "likelihood of a user": (positive(2), lambda t: regression(likelihood=Scaled(t))),
    "mask": (mask(), lambda t: regression(weights=t)),
    "mask of one tensor": (mask()[:8].reshape(2, 4), lambda t: regression(weights={"2.weight": t})),
}


def answers(la: pw.Laplace) -> tuple[Tensor, ...]:
    """What a change inside of the posterior would change."""
    outputs = la.functional(X)
    roots = la.likelihood.root(outputs.mean[:, None], LABELS[:, None])
    return la.log_evidence().detach(), outputs.mean, outputs.cov, la.weights, roots


def assert_unchanged(la: pw.Laplace, before: tuple[Tensor, ...]) -> None:
    """Bit by bit: the same operations on the same numbers; whatever was kept is computed anew."""
    again = pw.Laplace(change_tensors(la.state, Tensor.clone))
    for now in (la, again):
        assert all(torch.equal(one, other) for one, other in zip(before, answers(now), strict=True))


def spoil(tensor: Tensor) -> Tensor:
    """Other numbers in the same memory."""
    with torch.no_grad():
        tensor.logical_not_() if tensor.dtype == torch.bool else tensor.add_(100)
    return tensor


@pytest.mark.parametrize("name", GIVEN)
def test_tensors_that_went_in(name: str) -> None:
    given, posterior = GIVEN[name]
    given = given.clone()
    la = posterior(given)
    before = answers(la)
    spoil(given)
    assert_unchanged(la, before)


def test_the_values_that_went_in() -> None:
    """Their tensors too, which are another's by then."""
    prior, likelihood = pw.Prior.layerwise(positive(4), mean=positive(D)), Gaussian(positive(2))
    la = regression(prior=prior, likelihood=likelihood)
    other = regression().with_prior(prior)
    before, others = answers(la), answers(other)
    for value in (prior, likelihood):
        change_tensors(value, spoil)
    assert_unchanged(la, before)
    assert_unchanged(other, others)


OUT = {
    "tuned": lambda: regression(likelihood=Gaussian(positive(2)), prior=pw.Prior.layerwise(mean=positive(D))).tune(),
    "ratios": lambda: regression(prior=pw.Prior.g_prior()),
    "mask": lambda: regression(weights=mask()),
    "linear mode": lambda: regression(prior=pw.Prior.scalar(mean=positive(D))).at_linear_mode((X, Y)),
    "user": lambda: regression(likelihood=Scaled(positive(2))),
    "class weights": lambda: pw.fit(network(), (X, LABELS), pw.Categorical(weight=positive(2)), structure="diag"),
}


@pytest.mark.parametrize("name", OUT)
def test_tensors_that_came_out(name: str) -> None:
    """Of every attribute, but the network, which is the caller's own, and the operator `precision`."""
    la = OUT[name]()
    before = answers(la)
    spoilt: list[Tensor] = []
    for attribute in set(dir(la)) - {"model", "precision"}:
        value = getattr(la, attribute)
        if not callable(value):
            change_tensors(value, lambda tensor: spoilt.append(tensor) or spoil(tensor))
    assert len(spoilt) >= 2  # the weights, and the precisions of the prior
    assert_unchanged(la, before)


def test_gradients_reach_the_caller() -> None:
    """Through copies: of precisions, of a mean and of a noise, as by a prior that is a number."""
    la = regression()
    precision, mean, noise = (tensor.clone().requires_grad_() for tensor in (positive(1), positive(D), positive(1)))
    by_value = torch.autograd.grad(
        la.log_evidence(prior=pw.Prior.scalar(precision, mean), noise=noise), [precision, mean, noise]
    )
    assert all(bool((gradient != 0).all()) for gradient in by_value)
    held = la.with_prior(pw.Prior.scalar(precision, mean)).with_noise(0.7)
    assert bool(torch.autograd.grad(held.log_evidence(), precision)[0] != 0)
    bare = torch.autograd.grad(la.log_evidence(prior=precision), precision)[0]
    slope = (la.log_evidence(prior=precision.detach() + 1e-6) - la.log_evidence(prior=precision.detach() - 1e-6)) / 2e-6
    assert float(bare) == pytest.approx(float(slope), rel=1e-5)


def test_questions_copy_no_vector_of_all_weights() -> None:
    """The library reads its own tensors: copies are made where a caller asks."""
    la = regression(prior=pw.Prior.g_prior(mean=positive(D)))
    prior = la.state.prior
    assert la.state.check_prior(prior) is prior
    tried = prior.with_precision(2.0)
    assert tried.mean is prior.mean and tried.base is prior.base
    assert la.weights is not la.state.weights and la.prior.base is not prior.base


def test_a_likelihood_that_changes_what_it_was_given_does_so_once() -> None:
    """Copies are those of the value that a user made."""
    own = Logged(torch.tensor(3.0))
    la = regression(likelihood=own)
    assert torch.equal(la.likelihood.scale, own.scale) and torch.equal(la.tune().likelihood.scale, own.scale)
    assert la.likelihood.scale is not own.scale
    assert torch.equal(change_tensors(own, Tensor.double).scale, own.scale.double())
