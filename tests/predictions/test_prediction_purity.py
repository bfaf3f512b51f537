"""What a prediction answers does not depend on the mode in which it is asked, nor on what was asked before."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from fitting import normal, seeded
from tables import moved, relative

MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}
QUESTIONS = {
    "classification": ("probs", "entropy", "aleatoric", "epistemic", "output_mean", "output_variance", "covariance"),
    "binary": ("probs", "entropy", "epistemic"),
    "regression": ("mean", "variance", "epistemic", "covariance"),
    "count": ("mean", "variance", "aleatoric"),
    "heteroscedastic": ("mean", "variance", "aleatoric"),
}


def fitted(name: str) -> tuple[pw.Laplace, Tensor]:
    """A small posterior, and targets."""
    x = normal(12, 2, seed=1)
    y = {
        "classification": torch.arange(12) % 2,
        "binary": (normal(12, 2, seed=2) > 0).double(),
        "regression": normal(12, 2, seed=2),
        "count": normal(12, 2, seed=2).abs().floor(),
        "heteroscedastic": normal(12, 1, seed=2),
    }[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2)).double().to(DEVICE)
    return pw.fit(model, (moved(x), moved(y)), name), moved(y)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("method", ["linearised", "sampled"])
def test_graphs_in_every_mode(name: str, mode: str, method: str) -> None:
    """With `create_graph` all that is asked has gradients in x, also when asked without gradients at first."""
    la, y = fitted(name)
    x = moved(normal(3, 2, seed=5)).requires_grad_()
    fresh = la.predict(x, method=method, create_graph=True)
    with MODES[mode]():
        pred = la.predict(x, method=method, create_graph=True)
        inside = {question: getattr(pred, question) for question in QUESTIONS[name]}
        inside["log_prob"] = pred.log_prob(y[:3].clone())
    for question, value in inside.items():
        usual = fresh.log_prob(y[:3]) if question == "log_prob" else getattr(fresh, question)
        again = pred.log_prob(y[:3]) if question == "log_prob" else getattr(pred, question)
        (expected,) = torch.autograd.grad(usual.sum(), x, retain_graph=True)
        for made in (value, again):
            (found,) = torch.autograd.grad(made.sum(), x, retain_graph=True)
            assert relative(found, expected.cpu()) < 1e-12 or float(expected.abs().max()) < 1e-12


@pytest.mark.parametrize("name", QUESTIONS)
def test_no_graph_without_being_asked(name: str) -> None:
    """Nothing requires gradients, and what inference mode asked for can be used in a graph later."""
    la, _ = fitted(name)
    pred = la.predict(moved(normal(3, 2, seed=5)))
    for question in QUESTIONS[name]:
        with torch.inference_mode():
            getattr(pred, question)
        value = getattr(pred, question)
        assert not value.requires_grad
        assert not value.is_inference()


def test_autocast_changes_no_answer() -> None:
    """With many outputs the covariance is a product, which autocast would take in half precision."""
    x, y = normal(20, 2, seed=1).float(), normal(20, 300, seed=2).float()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(2, 300).to(DEVICE)
    la = pw.fit(model, (moved(x), moved(y)), pw.Gaussian(noise=0.1))
    pred = la.predict(moved(x[:3]))
    covariance, density = pred.covariance, pred.log_prob(moved(y[:3]))
    with torch.autocast(torch.device(DEVICE).type, dtype=torch.bfloat16):
        assert torch.equal(pred.covariance, covariance)
        assert torch.equal(pred.log_prob(moved(y[:3])), density)


@pytest.mark.parametrize("structure", ["kron", "full", "diag"])
def test_autocast_does_not_change_the_precision(structure: str) -> None:
    """Products with it are matrix products, which autocast would take in half precision, and its parts are kept."""
    x, y = normal(20, 3, seed=1).float(), normal(20, 2, seed=2).float()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2)).to(DEVICE)
    la, again = (
        pw.fit(model, (moved(x), moved(y)), "regression", structure=structure, prior=pw.Prior.layerwise(0.3))
        for _ in range(2)
    )
    v = moved(normal(3, la.D, seed=3).float())
    for name in ("mv", "solve", "root", "logdet", "variance"):
        given = (v,) if name in ("mv", "solve", "root") else ()
        with torch.autocast(torch.device(DEVICE).type, dtype=torch.bfloat16):
            inside = getattr(again.precision, name)(*given)
        assert torch.equal(inside, getattr(la.precision, name)(*given))


def test_the_precision_records_gradients_only_where_the_caller_does() -> None:
    """Leaving inference mode would turn them on."""
    la, _ = fitted("regression")
    weight = torch.tensor(2.0, dtype=torch.float64, device=DEVICE, requires_grad=True)
    precision = la.with_prior(weight).precision
    v = torch.ones_like(la.weights)
    assert precision.solve(v).requires_grad
    for mode in MODES.values():
        with mode():
            assert not precision.solve(v).requires_grad


def test_huge_rates_give_no_negative_counts() -> None:
    """Draws of rates beyond all whole numbers of a machine."""
    model = nn.Linear(1, 1).to(DEVICE)
    with torch.no_grad():
        model.weight.fill_(100.0)
        model.bias.zero_()
    x = torch.linspace(0, 0.01, 10)[:, None]
    la = pw.fit(model, (moved(x), moved(torch.ones(10, 1))), "count", prior=1e6)
    made = la.predict(moved(torch.tensor([[0.1], [0.5]]))).sample(50, seeded(1))
    assert bool((made >= 0).all())
    assert 4e20 < float(made[:, 1].median()) < 6e22
