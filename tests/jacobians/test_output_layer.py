"""The layer whose output is the network's own: exact at any number of outputs, by the products that it takes.

Covariances are compared with dense Jacobians and dense curvatures; counts of backward passes and the largest tensor
that is made show that the short way was taken.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import peewit as pw
import reference
import reference_dense as dense
from environment import DEVICE
from fitting import built, classes, covered, fitted, normal, seeded
from peewit.predictions import links
from tables import moved, relative

EXACT = 1e-9


class Rows(nn.Module):
    """A head on all positions of all examples in a row, taken apart again by a view."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, 3) -> (N, T, 3)."""
        return self.head(torch.tanh(self.body(x)).reshape(-1, 4)).reshape(*x.shape[:2], 3)


class Product(nn.Module):
    """`h @ W` with a bare parameter (I, O)."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 4), nn.Parameter(torch.randn(4, 5))

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3) -> (N, 5)."""
        return torch.tanh(self.body(x)) @ self.head


class Pixels(nn.Module):
    """A convolution in channels-last memory, whose output is turned into a contiguous view in another order."""

    def __init__(self, turn: bool) -> None:
        super().__init__()
        self.body, self.head, self.turn = nn.Conv2d(2, 3, 2), nn.Conv2d(3, 3, 1), turn

    def forward(self, x: Tensor) -> Tensor:
        """(N, 2, 4, 4) -> (N, 3, 3, 3), classes last if turned."""
        hidden = torch.tanh(self.body(x)).to(memory_format=torch.channels_last)
        output = self.head.to(memory_format=torch.channels_last)(hidden)
        return output.permute(0, 2, 3, 1) if self.turn else output


class Tied(nn.Module):
    """Tokens whose table is the head's weight too."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.middle = nn.Embedding(6, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T) -> (N, T, 6)."""
        return nn.functional.linear(torch.tanh(self.middle(self.table(x))), self.table.weight)


@dataclass(frozen=True, kw_only=True)
class Head:
    """A network, the weights of its last layer, inputs and targets; whether that layer's output is the network's."""

    make: Callable[[], nn.Module]
    names: tuple[str, ...]
    x: tuple[int, ...]
    y: tuple[int, ...] | None = None  # labels; numbers shaped like the outputs where there are none
    axis: int = -1
    classes: int = 3
    closed: bool = True

    def built(self) -> tuple[nn.Module, Tensor, Tensor]:
        """Network, inputs and targets in float64 on the CPU."""
        torch.manual_seed(0)
        model, x = built(self.make()), normal(*self.x)
        return model, x, model(x).detach() + 0.3 if self.y is None else classes(self.classes, *self.y)

    @property
    def likelihood(self) -> Any:
        """Ours."""
        return pw.Gaussian() if self.y is None else pw.Categorical(axis=None if self.axis == -1 else self.axis)

    @property
    def words(self) -> str:
        """The reference's."""
        return "regression" if self.y is None else "classification"


def convolutional(head: nn.Module, body: int = 4) -> Callable[[], nn.Module]:
    """Images (2, 4, 4) to `body` channels of 3 x 3, and a head on them."""
    return lambda: nn.Sequential(nn.Conv2d(2, body, 2), nn.Tanh(), copy.deepcopy(head))


def dense_layers(*rest: nn.Module, outputs: int = 5, bias: bool = True) -> Callable[[], nn.Module]:
    """3 inputs to 4 features, a linear head, and what comes after it."""
    return lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs, bias=bias), *rest)


LAST = ("2.weight", "2.bias")
HEADS = {
    "plain": Head(make=dense_layers(), names=LAST, x=(7, 3), y=(7,), classes=5),
    "without bias": Head(make=dense_layers(bias=False), names=LAST[:1], x=(7, 3), y=(7,), classes=5),
    "bias alone": Head(make=dense_layers(), names=LAST[1:], x=(7, 3), y=(7,), classes=5),
    "one number": Head(make=dense_layers(nn.Flatten(0), outputs=1), names=LAST, x=(7, 3)),
    "positions": Head(make=dense_layers(outputs=3), names=LAST, x=(5, 4, 3), y=(5, 4)),
    "rows": Head(make=Rows, names=("head.weight", "head.bias"), x=(5, 4, 3), y=(5, 4)),
    "view": Head(make=dense_layers(nn.Unflatten(1, (2, 3)), outputs=6), names=LAST, x=(7, 3), y=(7, 2)),
    "product": Head(make=Product, names=("head",), x=(7, 3), y=(7,), classes=5),
    "convolution": Head(make=convolutional(nn.Conv2d(4, 3, 1)), names=LAST, x=(3, 2, 3, 3), y=(3, 2, 2), axis=1),
    "patches": Head(
        make=convolutional(nn.Conv2d(2, 3, 2, stride=2, padding=1), 2), names=LAST, x=(3, 2, 3, 3), y=(3, 2, 2), axis=1
    ),
    "groups": Head(
        make=convolutional(nn.Conv2d(4, 4, (1, 2), groups=2)),
        names=LAST,
        x=(3, 2, 3, 3),
        y=(3, 2, 1),
        axis=1,
        classes=4,
    ),
    "transposed": Head(
        make=convolutional(nn.ConvTranspose2d(2, 3, (1, 2)), 2), names=LAST, x=(3, 2, 2, 3), y=(3, 1, 3), axis=1
    ),
    "channels last": Head(
        make=lambda: Pixels(False), names=("head.weight", "head.bias"), x=(2, 2, 4, 4), y=(2, 3, 3), axis=1
    ),
    "channels turned": Head(
        make=lambda: Pixels(True), names=("head.weight", "head.bias"), x=(2, 2, 4, 4), y=(2, 3, 3), axis=3, closed=False
    ),
    "squashed": Head(make=dense_layers(nn.Tanh(), outputs=3), names=LAST, x=(7, 3), y=(7,), closed=False),
}
STRUCTURES = {
    "expand": (pw.Kron("expand"), {"approx": "expand"}),
    "reduce": (pw.Kron("reduce"), {"approx": "reduce"}),
    "joint": (pw.Kron("expand", "joint"), {"approx": "expand", "bias": "joint"}),
    "ekfac": (pw.EKFAC(), {}),
    "ekfac joint": (pw.EKFAC("expand", "joint"), {"bias": "joint"}),
    "diag": ("diag", {}),
    "block": ("block", {}),
    "full": ("full", {}),
}


def curvature(head: Head, name: str, model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(D, D): the dense definition of a structure's curvature."""
    names = list(head.names)
    if name in ("diag", "block", "full"):
        whole = dense.ggn(model, x, y, head.words, names, head.axis)
        return torch.diag(whole.diagonal()) if name == "diag" else whole
    made = reference.ekfac if name.startswith("ekfac") else reference.kron
    return made(model, x, y, head.words, names, axis=head.axis, **STRUCTURES[name][1])


def positions_of(cov: Tensor, shape: torch.Size, axis: int) -> Tensor:
    """(N, F, F) -> (N, T, C, C) blocks of the classes of each position, for outputs (N, *shape)."""
    places = dense.class_positions(shape, axis) if shape else torch.zeros(1, 1, dtype=torch.long)
    return torch.stack([cov[:, place][:, :, place] for place in places], 1)


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_covariances(name: str, structure: str) -> None:
    """Variances, blocks, joint covariances and predictions equal those of the dense Jacobian and curvature."""
    head = HEADS[name]
    model, x, y = head.built()
    la = fitted(model, x, y, head.likelihood, STRUCTURES[structure][0], weights=list(head.names))
    assert set(la.state.knowledge.closed.values()) == {head.closed}
    sigma = dense.posterior(curvature(head, structure, model, x, y), torch.ones(la.D, dtype=torch.float64))
    new = normal(*(2, *x.shape[1:]), seed=5)
    jacobian = dense.jacobian(model, new, list(head.names))
    cov = dense.functional_covariance(jacobian, sigma)
    mean = dense.outputs(model, new)
    variance = cov.diagonal(dim1=1, dim2=2).reshape(mean.shape)
    blocks = positions_of(cov, mean.shape[1:], head.axis)
    for memory in (None, 2000.0):
        found = la.functional(moved(new), variance_only=True, memory=memory)
        assert relative(found.mean, mean) < EXACT
        assert found.cov.shape == variance.shape
        assert relative(found.cov, variance) < EXACT
        found = la.functional(moved(new), memory=memory)
        assert relative(found.cov.reshape(blocks.shape), blocks) < EXACT
    one = la.functional(moved(new[1:2]))
    assert relative(one.cov.reshape(blocks[1:2].shape), blocks[1:2]) < EXACT
    joint = la.functional(moved(new), joint=True).cov.flatten(2).flatten(0, 1)
    assert relative(joint, dense.joint_functional_covariance(jacobian, sigma)) < EXACT
    pred = la.predict(moved(new))
    assert relative(pred.output_variance, variance) < EXACT
    assert relative(pred.covariance.reshape(blocks.shape), blocks) < EXACT


@pytest.mark.parametrize("name", ["plain", "positions", "product", "groups", "transposed", "convolution"])
def test_samples(name: str) -> None:
    """Samples of the outputs are the dense Jacobian times the same deviations of the weights."""
    head = HEADS[name]
    model, x, y = head.built()
    la = fitted(model, x, y, head.likelihood, weights=list(head.names))
    drawn = la.functional_samples(moved(x), 4, generator=torch.Generator(DEVICE).manual_seed(3))
    deviations = (la.sample(4, generator=torch.Generator(DEVICE).manual_seed(3)) - la.weights).cpu()
    expected = torch.einsum("nfd,sd->snf", dense.jacobian(model, x, list(head.names)), deviations)
    assert relative(drawn.flatten(2), expected + dense.outputs(model, x).flatten(1)) < EXACT


def priors(la: pw.Laplace) -> Iterator[tuple[pw.Prior, Tensor]]:
    """Priors and the precision of every weight (D,) under them, for a weight (5, 4) and a bias (5,)."""
    units = torch.rand(10, generator=seeded(4), dtype=torch.float64) + 0.5
    yield pw.Prior.scalar(0.7), torch.full((25,), 0.7, dtype=torch.float64)
    yield pw.Prior.layerwise([0.5, 2.0]), torch.tensor([0.5] * 20 + [2.0] * 5, dtype=torch.float64)
    yield pw.Prior.unitwise(units.to(DEVICE)), torch.cat([units[:5].repeat_interleave(4), units[5:]])


@pytest.mark.parametrize("structure", ["expand", "diag", "full"])
def test_priors(structure: str) -> None:
    """Covariances under scalar, layerwise and unitwise priors."""
    head = HEADS["plain"]
    model, x, y = head.built()
    la = fitted(model, x, y, head.likelihood, STRUCTURES[structure][0], weights=list(head.names))
    jacobian = dense.jacobian(model, x, list(head.names))
    for prior, delta in priors(la):
        own = la.with_prior(prior)
        sigma = dense.posterior(curvature(head, structure, model, x, y), delta)
        cov = dense.functional_covariance(jacobian, sigma)
        assert relative(own.functional(moved(x)).cov, cov) < EXACT
        assert relative(own.functional(moved(x), variance_only=True).cov, cov.diagonal(dim1=1, dim2=2)) < EXACT
        pred = own.predict(moved(x))
        assert relative(pred.covariance, cov) < EXACT
        assert relative(pred.output_variance, cov.diagonal(dim1=1, dim2=2)) < EXACT


def test_tied_weights() -> None:
    """A head whose weight is also the table of the tokens takes the usual way, with both of its uses."""
    model = built(Tied())
    x, y = classes(6, 5, 3), classes(6, 5, 3, seed=7)
    la = fitted(model, x, y, "classification", "full", weights=["table.weight"])
    sigma = dense.posterior(dense.ggn(model, x, y, "classification", ["table.weight"]), torch.ones(24).double())
    cov = dense.functional_covariance(dense.jacobian(model, x, ["table.weight"]), sigma)
    assert set(la.state.knowledge.closed.values()) == {False}
    found = la.functional(moved(x), variance_only=True).cov
    assert relative(found.flatten(1), cov.diagonal(dim1=1, dim2=2)) < EXACT


# Many outputs


MANY = 300


@contextmanager
def largest() -> Iterator[list[int]]:
    """The size in numbers of the largest memory that any operation gave back."""
    sizes = [0]

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            for each in tree_leaves(made):
                if isinstance(each, Tensor):
                    sizes[0] = max(sizes[0], each.untyped_storage().nbytes() // each.element_size())
            return made

    with Watching():
        yield sizes


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Calls of `torch.autograd.grad`."""
    calls: list[Any] = []
    original = torch.autograd.grad

    def grad(*args: Any, **kwargs: Any) -> Any:
        calls.append(args)
        return original(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(torch.autograd, "grad", grad)
        yield calls


def many(structure: Any, examples: int = 40, **options: Any) -> tuple[nn.Module, pw.Laplace]:
    """300 outputs on 6 features; the last layer alone is uncertain."""
    torch.manual_seed(0)
    model = built(nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, MANY)))
    options.setdefault("curvature", "fisher")
    la = fitted(
        model, normal(examples, 3), classes(MANY, examples), "classification", structure, weights="2", **options
    )
    return model, la


@pytest.mark.parametrize("structure", ["expand", "joint", "ekfac", "diag", "full"])
def test_many_outputs(structure: str) -> None:
    """300 outputs: exact covariances, the definition with dense Jacobians and the operator's own inverse."""
    model, la = many(STRUCTURES[structure][0], prior=2.0)
    x = normal(2, 3, seed=3)
    jacobian = dense.jacobian(model, x, ["2.weight", "2.bias"])
    solved = la.precision.solve(moved(jacobian)).cpu()
    cov = jacobian @ solved.mT
    variance = cov.diagonal(dim1=1, dim2=2)
    assert relative(la.functional(moved(x), variance_only=True).cov, variance) < EXACT
    assert relative(la.functional(moved(x)).cov, cov) < EXACT
    pred = la.predict(moved(x), samples=64)
    assert relative(pred.output_variance, variance) < EXACT
    assert relative(pred.covariance, cov) < EXACT
    assert relative(pred.probs, links.probit(dense.outputs(model, x), variance)) < EXACT
    for normalised in (False, True):
        link = "bridge_normalised" if normalised else "bridge"
        alpha = links.bridge(dense.outputs(model, x), cov, normalised)
        assert relative(la.predict(moved(x), link=link).probs, alpha / alpha.sum(-1, keepdim=True)) < EXACT
    with pytest.raises(ValueError, match="at most 256"):
        la.functional(moved(x), joint=True)


@pytest.mark.filterwarnings("ignore:Covariances of .* outputs per example are estimated")
def test_many_numbers_without_a_closed_covariance() -> None:
    """Rows that are two positions of 130 classes: exact. Groups at 81 positions: variances are, covariances sampled."""
    viewed = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 260), nn.Unflatten(1, (2, 130)))
    images = convolutional(nn.Conv2d(4, 4, 1, groups=2))()
    for network, shape, places, count, axis in (
        (viewed, (3,), (2,), 130, -1),
        (images, (2, 10, 10), (9, 9), 4, 1),
    ):
        model, x = built(network), moved(normal(1, *shape, seed=3))
        targets = classes(count, 5, *places)
        la = fitted(model, normal(5, *shape), targets, "classification", weights="2", curvature="fisher")
        jacobian = dense.jacobian(model, x.cpu(), ["2.weight", "2.bias"])
        cov = jacobian @ la.precision.solve(moved(jacobian)).cpu().mT
        found = la.functional(x, variance_only=True)
        assert relative(found.cov.flatten(1), cov.diagonal(dim1=1, dim2=2)) < EXACT
        blocks = positions_of(cov, found.mean.shape[1:], axis)
        error = relative(la.functional(x).cov.reshape(blocks.shape), blocks)
        assert error < EXACT if axis == -1 else 0.01 < error < 1


@pytest.mark.parametrize("structure", ["expand", "joint", "ekfac", "diag"])
def test_nothing_large_is_made(structure: str) -> None:
    """No (N, C, C), and nothing with a column per output: the largest tensors are a basis and a batch of outputs."""
    _, la = many(STRUCTURES[structure][0])
    x = moved(normal(50, 3, seed=3))
    la.predict(x[:1])
    with largest() as sizes:
        la.functional(x, variance_only=True)
        pred = la.predict(x)
        assert pred.probs.shape == (50, MANY)
        _ = pred.log_prob(moved(classes(MANY, 50))), pred.interval(0.9), pred.sample(3)
        _ = la.predict(x, link="bridge").entropy
        la.functional_samples(x, 2)
    assert sizes[0] <= 2 * MANY**2
    with largest() as sizes:
        _ = la.predict(x, link="mc", samples=16).probs, la.predict(x, samples=16).epistemic
    assert sizes[0] <= 3 * 16 * 50 * MANY


def test_memory_bounds_covariances() -> None:
    """With little memory the covariances of many outputs are made one input at a time."""
    _, la = many("kron")
    x = moved(normal(20, 3, seed=3))
    whole = la.functional(x)
    with largest() as sizes:
        parts = la.functional(x, memory=1e6)
    assert relative(parts.cov, whole.cov.cpu()) < EXACT
    assert sizes[0] == 20 * MANY**2  # what is returned, and no more at once
    with largest() as sizes:
        la.functional(x, variance_only=True, memory=1e5)
    assert sizes[0] <= 2 * MANY**2


@pytest.mark.parametrize("structure", ["expand", "ekfac", "diag"])
def test_no_backward_pass(structure: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither predictions nor the batches of a fit pass anything backward, where the last layer alone is uncertain."""
    passes = []
    for examples in (40, 400):
        with counted(monkeypatch) as calls:
            _, la = many(STRUCTURES[structure][0], examples, memory=3e5)
        passes.append(len(calls))
    assert passes[0] == passes[1]  # looking where the examples are, once
    with counted(monkeypatch) as calls:
        x = moved(normal(50, 3, seed=3))
        la.functional(x, variance_only=True, memory=1e5)
        la.functional(x)
        la.predict(x, samples=16).entropy.sum()
        la.functional_samples(x, 2)
    assert not calls


def test_a_body_that_is_selected_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """With other weights selected as well, one batched backward pass serves them all, and the head needs none."""
    model = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5)))
    la = fitted(model, normal(9, 3), classes(5, 9), "classification", prior=2.0)
    x = normal(4, 3, seed=6)
    jacobian = dense.jacobian(model, x, ["0.weight", "0.bias", "2.weight", "2.bias"])
    cov = jacobian @ la.precision.solve(moved(jacobian)).cpu().mT
    with counted(monkeypatch) as calls:
        found = la.functional(moved(x))
    assert len(calls) == 1
    assert len(calls[0][1]) == 1
    assert relative(found.cov, cov) < EXACT
    assert relative(la.functional(moved(x), variance_only=True).cov, cov.diagonal(dim1=1, dim2=2)) < EXACT


def test_random_draws() -> None:
    """Draws of regression outputs have the closed form's covariance, and its density is the dense Gaussian's."""
    model = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3)))
    x, y = normal(9, 3), normal(9, 3, seed=8)
    noise = torch.tensor([0.4, 0.7, 1.1], dtype=torch.float64)
    prior = pw.Prior.unitwise([0.5, 1.0, 2.0] * 2)
    la = fitted(model, x, y, pw.Gaussian(noise), weights="2", prior=prior, curvature="fisher")
    pred = la.predict(moved(x))
    cov = pred.covariance.cpu() + torch.diag(noise.square())
    expected = torch.distributions.MultivariateNormal(model(x).detach(), cov).log_prob(y)
    assert relative(pred.log_prob(moved(y)), expected) < EXACT
    assert relative(la.predict(moved(x), memory=100.0).log_prob(moved(y)), expected) < EXACT
    drawn = pred.sample(20_000, generator=torch.Generator(DEVICE).manual_seed(0)).cpu()
    assert covered(drawn[:, 2], cov[2])


def test_gradients_in_the_inputs() -> None:
    """With `create_graph` the exact variances of many outputs are differentiable, and equal finite differences."""
    _, la = many("kron")
    x = normal(2, 3, seed=3).to(DEVICE).requires_grad_()
    direction = normal(2, 3, seed=4).to(DEVICE)
    asks: list[Callable[..., Tensor]] = [
        lambda at, **options: la.functional(at, variance_only=True, **options).cov.sqrt().sum(),
        lambda at, **options: la.predict(at, **options).probs.square().sum(),
    ]
    for ask in asks:
        (gradient,) = torch.autograd.grad(ask(x, create_graph=True), x)
        step = 1e-5 * direction
        expected = (ask(x.detach() + step) - ask(x.detach() - step)) / 2e-5
        assert relative((gradient * direction).sum(), expected.cpu()) < 1e-6


def test_dense_curvature_in_single_precision() -> None:
    """Variances under an ill-conditioned dense precision are far better than its condition number allows for."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 30), nn.Tanh(), nn.Linear(30, 4))
    x, y = normal(2000, 3).float(), normal(2000, 4, seed=8).float()
    la = fitted(model, x, y, pw.Gaussian(0.1), "full", weights="2", prior=0.01)
    found = la.functional(moved(x[:20]), variance_only=True).cov.cpu()
    matrix = la.precision.blocks[0].operator.matrix.double().cpu()
    jacobian = dense.jacobian(model.double(), x[:20].double(), ["2.weight", "2.bias"])
    expected = (jacobian @ torch.linalg.solve(matrix, jacobian.mT)).diagonal(dim1=1, dim2=2)
    assert torch.finfo(torch.float32).eps * float(torch.linalg.cond(matrix)) > 0.1
    assert bool(((found / expected).log().abs() < 1e-2).all())


def test_weight_and_bias_of_one_parameter() -> None:
    """Where the bias is a row of the weight their Jacobians add up."""

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.matrix = nn.Parameter(torch.randn(3, 6))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(x, self.matrix, self.matrix[0, :3])

    torch.manual_seed(0)
    model = Shared().double().to(DEVICE)
    x = torch.randn(5, 6, dtype=torch.float64, device=DEVICE)
    la = pw.fit(model, (x, torch.arange(5, device=DEVICE) % 3), "classification", structure="full")
    rows = torch.stack(
        [
            torch.stack([torch.autograd.grad(each, model.matrix, retain_graph=True)[0].flatten() for each in output])
            for output in model(x)
        ]
    )
    covariance = torch.linalg.inv(la.precision.blocks[0].operator.matrix)
    torch.testing.assert_close(la.functional(x).cov, rows @ covariance @ rows.mT)
