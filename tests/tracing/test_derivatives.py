"""Products with the Jacobian are those of the network's backward pass, which training used and every fit has."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

import peewit as pw
from environment import DEVICE
from fitting import built, classes, normal
from peewit.priors.invariance import invariant_sets
from tables import moved, relative

EXACT = 1e-8


class Once(torch.autograd.Function):
    """A ReLU that can be differentiated once, and has no forward mode."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return z.relu()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (ctx.saved_tensors[0] > 0)


class Straight(torch.autograd.Function):
    """Rounding whose backward pass says that it is the identity, and whose forward mode says that it is flat."""

    generate_vmap_rule = True

    @staticmethod
    def forward(z: Tensor) -> Tensor:
        return z.round(decimals=1)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def jvp(ctx: Any, t: Tensor) -> Tensor:
        return torch.zeros_like(t)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g


class Call(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Gated(nn.Module):
    """A gate that training does not see: forward mode looks through `torch.no_grad`."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, outputs)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        with torch.no_grad():
            gate = torch.sigmoid(self.first(x))
        return self.last(hidden * gate)


class Saved(nn.Module):
    """Weights that the forward pass takes from a list beside the layers: no module's attribute leads to them."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 5), nn.Linear(5, outputs)
        self.held = [self.first.weight, self.first.bias]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(nn.functional.linear(x, *self.held)))


def distances(hidden: Tensor) -> Tensor:
    """To three fixed points, summed."""
    points = torch.arange(9, dtype=hidden.dtype, device=hidden.device).reshape(3, 3).sin()
    return torch.cdist(hidden, points).sum(1, keepdim=True)


def padded(outputs: int, **options: Any) -> nn.Module:
    return nn.Sequential(nn.Embedding(7, 3, **options), nn.Flatten(), nn.Tanh(), nn.Linear(15, outputs))


def between(function: Callable[[Tensor], Tensor], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), Call(function), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, outputs))


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "padding": lambda outputs: padded(outputs, padding_idx=0),
    "padding from the end": lambda outputs: padded(outputs, padding_idx=-2),
    "scaled by frequency": lambda outputs: padded(outputs, scale_grad_by_freq=True),
    "bag": lambda outputs: nn.Sequential(nn.EmbeddingBag(7, 3, padding_idx=1), nn.Tanh(), nn.Linear(3, outputs)),
    "once": lambda outputs: between(Once.apply, outputs),
    "straight": lambda outputs: between(Straight.apply, outputs),
    "gated": Gated,
    "saved references": Saved,
}


def network(name: str, outputs: int = 1) -> tuple[nn.Module, Tensor]:
    """A network with inputs; tokens of the first examples are without padding."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = built(NETWORKS[name](outputs) if name != "cdist" else nn.Sequential(nn.Linear(4, 3), Call(distances)))
    if name not in ("padding", "padding from the end", "scaled by frequency", "bag"):
        return model.to(DEVICE), moved(normal(12, 4))
    tokens = classes(7, 12, 5)
    tokens[:6] = 2 + tokens[:6] % 3
    return model.to(DEVICE), moved(tokens)


def jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """(N, F, D): one backward pass per number of the outputs, whose rows are of the examples one by one."""
    rows = []
    for example in x:
        output = model(example[None]).flatten()
        for number in output:
            found = torch.autograd.grad(number, list(model.parameters()), retain_graph=True)
            rows.append(torch.cat([gradient.flatten() for gradient in found]))
    return torch.stack(rows).reshape(len(x), -1, len(rows[0]))


def plain(model: nn.Module) -> nn.Module:
    """The same network with the derivative of its function: a step size per row is no part of it."""
    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.scale_grad_by_freq = False
    return model


@pytest.mark.parametrize("name", [*NETWORKS, "cdist"])
def test_products_have_the_jacobian_of_the_backward_pass(name: str) -> None:
    """As a matrix from all unit vectors at once, and one by one; also where the first batch shows no difference."""
    model, x = network(name)
    y = moved(normal(12, 1))
    products = pw.products(model, [(x[:5], y[:5]), (x[5:], y[5:])], "regression")
    size = products.space.size
    whole = products.mv(torch.eye(size, dtype=torch.float64))
    single = torch.stack([products.mv(unit) for unit in torch.eye(size, dtype=torch.float64)[:6]])
    rows = jacobian(plain(model), x).flatten(0, 1)
    assert relative(whole, rows.T @ rows) < EXACT
    assert relative(single, (rows.T @ rows)[:6]) < EXACT


@pytest.mark.parametrize("name", ["padding", "once", "straight", "gated"])
def test_products_of_several_outputs(name: str) -> None:
    """The curvature of classes has a root with as many probes as there are classes."""
    model, x = network(name, 3)
    y = moved(classes(3, 12))
    made = pw.products(model, (x, y), "classification").mv(torch.eye(sum(p.numel() for p in model.parameters())))
    rows, p = jacobian(model, x), model(x).softmax(1).detach()
    expected = torch.einsum("nfd,nfg,nge->de", rows, torch.diag_embed(p) - p[:, :, None] * p[:, None], rows)
    assert relative(made, expected) < EXACT


@pytest.mark.parametrize("name", [*NETWORKS, "cdist"])
def test_the_mode_of_the_linear_model(name: str) -> None:
    """It solves the normal equations of the same Jacobian."""
    model, x = network(name)
    y = moved(normal(12, 1))
    la = pw.fit(model, (x, y), "regression", structure="full", curvature="ggn")
    made = la.at_linear_mode((x, y))
    rows = jacobian(plain(model), x).flatten(0, 1)
    theta = torch.cat([p.detach().flatten() for p in model.parameters()])
    matrix = rows.T @ rows + torch.eye(len(theta)).to(rows)
    expected = torch.linalg.solve(matrix, rows.T @ (y - model(x).detach()).flatten() - theta)
    assert made.linear_mode is not None
    assert relative(made.linear_mode.displacement, expected) < 1e-6
    shifted = model(x).detach() + torch.einsum("nfd,d->nf", rows.reshape(12, 1, -1), expected)
    assert relative(made.functional(x, at="linear_mode").mean, shifted) < 1e-6


@pytest.mark.parametrize("name", ["once", "cdist"])
@pytest.mark.filterwarnings("ignore::peewit.TuningWarning")
def test_tuning_at_the_mode_of_the_linear_model(name: str) -> None:
    """The mode that belongs to the precisions found is where they were found."""
    model, x = network(name)
    data = x, moved(normal(12, 1))
    tuned = pw.fit(model, data, "regression", structure="full", curvature="ggn").tune(at="linear_mode", train=data)
    again = pw.fit(model, data, "regression", structure="full", curvature="ggn", prior=tuned.prior)
    again = again.with_noise(float(tuned.likelihood.noise_precision) ** -0.5).at_linear_mode(data)
    assert float(tuned.log_evidence()) == pytest.approx(float(again.log_evidence()), abs=0.05)


@pytest.mark.parametrize("name", ["padding", "once", "straight"])
def test_samples_of_many_outputs(name: str) -> None:
    """Above 256 outputs samples are products with the Jacobian."""
    model, x = network(name, 260)
    x = x[11:]
    y = moved(classes(260, 1))
    la = pw.fit(model, (x, y), "classification", curvature="empirical")
    generator = torch.Generator().manual_seed(0)
    made = la.functional_samples(x, 2, generator) - model(x).detach()
    draws = la.sample(2, torch.Generator().manual_seed(0)) - la.weights
    assert relative(made, torch.einsum("nfd,sd->snf", jacobian(model, x), draws)) < EXACT


def by_differences(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """(D, D): the Hessian of half the squared errors, from gradients at moved weights."""
    parameters = list(model.parameters())

    def gradient() -> Tensor:
        found = torch.autograd.grad((model(x) - y).square().sum() / 2, parameters)
        return torch.cat([each.flatten() for each in found])

    columns = []
    for parameter in parameters:
        for place in range(parameter.numel()):
            made = []
            for step in (1e-5, -2e-5):
                parameter.data.view(-1)[place] += step
                made.append(gradient())
            parameter.data.view(-1)[place] += 1e-5
            columns.append((made[0] - made[1]) / 2e-5)
    return torch.stack(columns)


def has_second_derivatives(model: nn.Module, x: Tensor) -> bool:
    """Whether torch has them: those of torch.cdist came with a version between 2.13 and 2.15."""
    first = torch.autograd.grad(model(x).sum(), next(model.parameters()), create_graph=True)[0]
    try:
        torch.autograd.grad(first.sum(), next(model.parameters()))
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("name", ["once", "cdist", "bag"])
def test_a_hessian_without_second_derivatives(name: str) -> None:
    """It is refused, as products and as a matrix; it was half right, or torch's own error."""
    model, x = network(name)
    y = moved(normal(12, 1))
    products = pw.products(model, (x, y), "regression", curvature="hessian")
    if name == "cdist" and has_second_derivatives(model, x):
        identity = torch.eye(products.space.size).to(x)
        assert relative(products.mv(identity), by_differences(model, x, y)) < 1e-6
        return
    with pytest.raises(ValueError, match=r"second derivatives.*curvature='ggn'"):
        products.mv(torch.ones(products.space.size))
    with pytest.raises(ValueError, match=r"second derivatives.*curvature='ggn'"):
        pw.fit(model, (x, y), "regression", structure="full", curvature="hessian")


@pytest.mark.parametrize("how", ["parametrisation", "hook"])
def test_the_hessian_of_weight_norms(how: str) -> None:
    """Equal to differences of gradients; torch's own second derivatives of weight norms are wrong."""
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        torch.manual_seed(1)
        norm: Any = nn.utils.parametrizations.weight_norm if how == "parametrisation" else nn.utils.weight_norm
        model = nn.Sequential(norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 1)).double()
    x, y = (
        normal(12, 4),
        normal(12, 1),
    )  # on the CPU: on a GPU torch keeps these norms in float32, and differences show it
    expected = by_differences(model, x, y)
    data = (moved(x), moved(y))
    la = pw.fit(model.to(DEVICE), data, "regression", structure="full", curvature="hessian", prior=100.0)
    identity = torch.eye(la.D).to(la.weights)
    assert relative(la.precision.mv(identity) - 100 * identity, expected) < (1e-6 if DEVICE == "cpu" else 1e-4)


def test_data_that_are_others_in_every_pass() -> None:
    """Data that are not kept, and drawn anew, have no linear model."""

    class Drawn:
        def __init__(self) -> None:
            self.generator = torch.Generator().manual_seed(0)

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            yield torch.randn(12, 4, generator=self.generator, dtype=torch.float64), normal(12, 1)

    model = built(nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))).to(DEVICE)
    la = pw.fit(model, (moved(normal(12, 4)), moved(normal(12, 1))), "regression")
    with pytest.raises(ValueError, match=r"in one pass and .* in another"):
        la.at_linear_mode(Drawn(), memory=1)


def test_sets_that_ignore_their_scale_in_a_network_without_forward_mode() -> None:
    """Derivatives along scales are then differences."""

    class Stream(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.norm = nn.Linear(4, 6), nn.Linear(4, 6), nn.LayerNorm(6)
            self.last = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return distances(self.last(self.norm(self.one(x) + self.two(x))))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = built(Stream()).to(DEVICE)
    found = invariant_sets(model, (moved(normal(12, 4)), moved(normal(12, 1))))
    assert ("one.weight", "one.bias", "two.weight", "two.bias") in found
