"""The table of likelihoods: each with a network, data, and its own definition by torch, one example at a time.

A definition takes one example's outputs and targets in the network's own shape and returns the negative log-likelihood
with all constants. Curvature in the outputs is its Hessian, or, where that is not what a likelihood promises, written
out anew. Nothing of the library's own likelihoods is used here, except the values under test.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.distributions import Poisson as PoissonDistribution
from torch.nn import functional as F

import peewit as pw
import reference
import reference_dense as dense
from fitting import built, classes, names_of, normal, seeded
from networks import Network

EXAMPLES = 4
IGNORED = -100
SHAPES = {"scalar": None, "row": 0, "tokens": 1, "image": 0}  # where the outputs are in one example's output
POSITIONS = {"scalar": (), "row": (), "tokens": (3,), "image": (2, 2)}

Definition = Callable[[Tensor, Tensor], Tensor]


def squeezed(self: Network, x: Tensor) -> Tensor:
    """(N,): one output without an axis."""
    return self.head(torch.tanh(self.first(x)))[:, 0]


@functools.cache
def network(kind: str, outputs: int) -> tuple[nn.Module, Tensor]:
    """A small network with outputs (N,), (N, C), (N, 3, C) or (N, C, 2, 2), and its inputs."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(outputs)
        if kind == "scalar":
            return built(Network(squeezed, first=nn.Linear(3, 4), head=nn.Linear(4, 1))), normal(EXAMPLES, 3)
        if kind == "row":
            return built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs))), normal(EXAMPLES, 3)
        if kind == "tokens":
            layers = [nn.Embedding(5, 3), nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, outputs)]
            return built(nn.Sequential(*layers)), classes(5, EXAMPLES, 3)
        layers = [nn.Conv2d(2, 3, 2), nn.Tanh(), nn.Conv2d(3, outputs, 1)]
        return built(nn.Sequential(*layers)), normal(EXAMPLES, 2, 3, 3)


@dataclass(frozen=True, kw_only=True)
class LikelihoodCase:
    """A likelihood with data, its definition, and what the table compares it with."""

    name: str
    kind: str  # of the network
    outputs: int
    likelihood: Any
    y: Tensor
    nll: Definition
    curvature: Definition | None = None  # (F, F) where it is not the Hessian of the definition
    drawn: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None  # (F,): gradient at a drawn target
    ignoring: Callable[[Tensor], bool] = lambda y: False  # whether an example has positions without any label

    @property
    def axis(self) -> int | None:
        """Of the outputs, in one example's output."""
        return SHAPES[self.kind]

    @functools.cached_property
    def model(self) -> nn.Module:
        """On the CPU, in float64."""
        return network(self.kind, self.outputs)[0]

    @property
    def x(self) -> Tensor:
        """(N, ...)."""
        return network(self.kind, self.outputs)[1]

    @property
    def names(self) -> list[str]:
        """Trainable parameters."""
        return names_of(self.model)

    @functools.cached_property
    def observations(self) -> list[reference.Observation]:
        """One per example, with Jacobians and what every layer saw."""
        return reference.observe(self.model, self.x, self.names)

    @functools.cached_property
    def f(self) -> Tensor:
        """(N, ...): outputs."""
        return torch.cat([each.output for each in self.observations])

    @functools.cached_property
    def jacobian(self) -> Tensor:
        """(N, F, D)."""
        return torch.stack([each.jacobian for each in self.observations])

    @functools.cached_property
    def total(self) -> Tensor:
        """The negative log-likelihood of all data."""
        return sum(self.nll(f, y) for f, y in zip(self.f, self.y, strict=True))

    def hessians(self, f: Tensor) -> Tensor:
        """(N, F, F): curvature in outputs (N, ...)."""
        made = []
        for one, y in zip(f, self.y, strict=True):
            if self.curvature is not None:
                made.append(self.curvature(one, y))
            else:
                found = torch.autograd.functional.hessian(functools.partial(self._at, y), one)
                made.append(found.reshape(one.numel(), one.numel()))
        return torch.stack(made)

    def _at(self, y: Tensor, f: Tensor) -> Tensor:
        return self.nll(f, y)

    def gradient(self, f: Tensor, y: Tensor) -> Tensor:
        """(F,): of the definition, for one example."""
        variable = f.detach().requires_grad_()
        return torch.autograd.grad(self.nll(variable, y), variable)[0].flatten()

    def probes(self, kind: str, labels: list[Tensor] | None = None) -> Tensor:
        """(N, F, K): of the output curvature; the Fisher takes lists of drawn targets."""
        if kind == "ggn":
            return torch.stack([root(each) for each in self.hessians(self.f)])
        if kind == "empirical":
            return torch.stack([self.gradient(f, y) for f, y in zip(self.f, self.y, strict=True)])[..., None]
        every = []
        for drawn in labels or []:
            rows = zip(self.f, self.y, drawn, strict=True)
            every.append(
                torch.stack(
                    [self.gradient(f, new) if self.drawn is None else self.drawn(f, y, new) for f, y, new in rows]
                )
            )
        return torch.stack(every, -1) / math.sqrt(len(every))

    def blocks(self, probes: Tensor, **settings: Any) -> tuple[list[reference.Block], Tensor]:
        """Dense factors of every block, and the gradients of all probes."""
        ignoring = [self.ignoring(y) for y in self.y]
        return reference.blocks_of(self.model, self.observations, probes, ignoring, self.names, **settings)

    def full(self, probes: Tensor) -> Tensor:
        """(D, D)."""
        rows = torch.cat([s.T @ j for s, j in zip(probes, self.jacobian, strict=True)])
        return rows.T @ rows

    @functools.cached_property
    def hessian(self) -> Tensor:
        """(D, D): of the negative log-likelihood in the weights."""
        model = dense.prepared(self.model)
        weights = dense.selected(model, self.names)
        pairs = ((dense.apply(model, dense.example(self.x, n))[0], self.y[n]) for n in range(EXAMPLES))
        first = torch.autograd.grad(sum(self.nll(f, y) for f, y in pairs), weights, create_graph=True)
        return torch.stack([dense.flat_gradient(entry, weights) for each in first for entry in each.reshape(-1)])


def root(matrix: Tensor) -> Tensor:
    """(F, F): S with S S^T a positive matrix, and rows exactly zero where the matrix has them."""
    alive = (matrix != 0).any(0).nonzero().squeeze(-1)
    values, vectors = torch.linalg.eigh(matrix[alive][:, alive])
    assert not len(alive) or float(values.min()) > -1e-10 * float(values.max()), "the reference is not convex"
    made = torch.zeros_like(matrix)
    made[alive[:, None], alive] = vectors * values.clamp(min=0).sqrt()
    return made


def shaped(kind: str, outputs: int) -> tuple[int, ...]:
    """The shape of one example's targets with `outputs` numbers per position."""
    if kind == "scalar":
        return ()
    return (outputs, *POSITIONS[kind]) if kind == "image" else (*POSITIONS[kind], outputs)


# Classes


def as_batch(kind: str, f: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """One example with its classes on axis 1, as torch's cross entropy takes them: tokens are its examples."""
    return (f, y) if kind == "tokens" else (f[None], y[None])


def cross_entropy(kind: str, weight: Tensor | None = None, smoothing: float = 0.0) -> Definition:
    """Torch's own, summed."""

    def nll(f: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(*as_batch(kind, f, y), weight, reduction="sum", label_smoothing=smoothing)

    return nll


def drawn_class(kind: str, weight: Tensor | None, smoothing: float) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The gradient at a drawn class, as strong as the observed target's curvature is."""

    def gradient(f: Tensor, y: Tensor, drawn: Tensor) -> Tensor:
        logits, observed = as_batch(kind, f, y)
        logits = logits.movedim(1, -1)
        number = logits.shape[-1]
        if observed.is_floating_point():
            shares = observed.movedim(1, -1)
        else:
            shares = torch.eye(number + 1, dtype=torch.float64)[:, :number][torch.where(observed < 0, number, observed)]
        shares = (1 - smoothing) * shares + smoothing / number * shares.sum(-1, keepdim=True)
        strength = (shares * (torch.ones(number) if weight is None else weight)).sum(-1)
        labels = torch.eye(number)[as_batch(kind, f, drawn)[1].clamp(min=0)]
        made = (logits.softmax(-1) - labels) * strength.sqrt()[..., None]
        return made.movedim(-1, 1).flatten()

    return gradient


def soft(kind: str, outputs: int) -> Tensor:
    """(N, ...): probabilities in the outputs' shape."""
    axis = SHAPES[kind]
    assert axis is not None
    return (2 * normal(EXAMPLES, *shaped(kind, outputs), seed=8)).softmax(axis + 1)


def some_ignored(y: Tensor) -> Tensor:
    """The same labels, with some ignored in one example and all in another."""
    y = y.clone()
    y[1].view(-1)[:1] = IGNORED
    y[2] = IGNORED
    return y


def categorical(
    name: str,
    kind: str,
    y: Tensor | None = None,
    weight: list[float] | None = None,
    label_smoothing: float = 0.0,
) -> LikelihoodCase:
    """Three classes."""
    y = classes(3, EXAMPLES, *POSITIONS[kind]) if y is None else y
    weights = None if weight is None else torch.tensor(weight, dtype=torch.float64)
    axis = 2 if kind == "tokens" else None  # there are as many positions as classes
    value = pw.Categorical(axis=axis, weight=weights, label_smoothing=label_smoothing)
    return LikelihoodCase(
        name=f"categorical {name}",
        kind=kind,
        outputs=3,
        likelihood=value,
        y=y,
        nll=cross_entropy(kind, weights, label_smoothing),
        drawn=drawn_class(kind, weights, label_smoothing),
        ignoring=lambda y: bool((y == IGNORED).any()),
    )


# Yes or no


def binary(name: str, kind: str, y: Tensor, ignore_index: int | None = None) -> LikelihoodCase:
    """A logit per label; missing labels are left out one by one."""
    outputs = 1 if kind == "scalar" else y.shape[1 + (SHAPES[kind] or 0)]

    def known(y: Tensor) -> Tensor:
        return y != (math.nan if ignore_index is None else ignore_index)

    def nll(f: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(f[known(y)], y[known(y)].double(), reduction="sum")

    def drawn(f: Tensor, y: Tensor, new: Tensor) -> Tensor:
        variable = f.detach().requires_grad_()
        value = F.binary_cross_entropy_with_logits(variable[known(y)], new[known(y)].double(), reduction="sum")
        return torch.autograd.grad(value, variable)[0].flatten()

    axis = SHAPES[kind]
    return LikelihoodCase(
        name=f"binary {name}",
        kind=kind,
        outputs=outputs,
        likelihood=pw.Bernoulli(ignore_index=ignore_index),
        y=y,
        nll=nll,
        drawn=drawn,
        ignoring=lambda y: bool((~(known(y) if axis is None else known(y).any(axis))).any()),
    )


def yes_or_no(*shape: int, missing: int | None = None) -> Tensor:
    """(N, ...): zeros and ones; where `missing` is given, one example lacks some labels and another all."""
    y = classes(2, EXAMPLES, *shape, seed=4)
    if missing is not None:
        y[0].view(-1)[0] = missing
        y[3] = missing
        y[1].select(-1 if len(shape) == 2 else 0, 0).fill_(missing)
    return y


# Regression


def regression(name: str, kind: str, outputs: int, noise: float | list[float]) -> LikelihoodCase:
    """One standard deviation or one per output; labels are drawn at a common factor of one."""
    y = normal(EXAMPLES, *shaped(kind, outputs), seed=3)
    sigma = torch.tensor(noise, dtype=torch.float64)
    factor = sigma.log().mean().exp()
    wide = sigma.reshape(-1, 1, 1) if kind == "image" and sigma.dim() else sigma

    def nll(f: Tensor, y: Tensor) -> Tensor:
        return -Normal(f, wide.expand(f.shape)).log_prob(y).sum()

    def drawn(f: Tensor, y: Tensor, new: Tensor) -> Tensor:
        variable = f.detach().requires_grad_()
        return torch.autograd.grad(nll(variable, f + factor * (new - f)), variable)[0].flatten()

    value = pw.Gaussian(noise if isinstance(noise, float) else sigma)
    return LikelihoodCase(
        name=f"regression {name}", kind=kind, outputs=outputs, likelihood=value, y=y, nll=nll, drawn=drawn
    )


def natural_parameters(parameters: str, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Eta of a head's two numbers."""
    if parameters == "raw":
        return first, -(torch.log1p(second.exp()) + 1e-8) / 2
    if parameters == "natural":
        return first, second
    variance = second if parameters == "mean_variance" else second.exp()
    return first / variance, -1 / (2 * variance)


class Negative(nn.Module):
    """Outputs whose second halves are below zero (or above), as two of the heads need them."""

    def __init__(self, axis: int, sign: int) -> None:
        super().__init__()
        self.axis = axis
        self.sign = sign

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        first, second = x.chunk(2, self.axis)
        return torch.cat([first, self.sign * (F.softplus(second) + 0.3)], self.axis)


def heteroscedastic(name: str, kind: str, targets: int, parameters: str, flat: bool = False) -> LikelihoodCase:
    """Two numbers per target; `flat` targets have no axis for them."""
    axis = SHAPES[kind]
    assert axis is not None
    y = normal(EXAMPLES, *(POSITIONS[kind] if flat else shaped(kind, targets)), seed=3)

    def eta(f: Tensor) -> Tensor:
        """(2, ...)."""
        return torch.stack(natural_parameters(parameters, *f.chunk(2, axis)))

    def nll(f: Tensor, y: Tensor) -> Tensor:
        first, second = eta(f)
        variance = -1 / (2 * second)
        return -Normal(first * variance, variance.sqrt()).log_prob(y.reshape(first.shape)).sum()

    def log_partition(eta: Tensor) -> Tensor:
        return (-eta[0].square() / (4 * eta[1]) - 0.5 * torch.log(-2 * eta[1])).sum()

    def curvature(f: Tensor, y: Tensor) -> Tensor:
        at = eta(f).detach()
        slope = torch.autograd.functional.jacobian(eta, f).reshape(-1, f.numel())
        inner = torch.autograd.functional.hessian(log_partition, at).reshape(at.numel(), at.numel())
        return slope.T @ inner @ slope

    value = pw.HeteroscedasticGaussian(parameters)
    return LikelihoodCase(
        name=f"heteroscedastic {name}",
        kind=kind,
        outputs=2 * targets,
        likelihood=value,
        y=y,
        nll=nll,
        curvature=curvature,
    )


@dataclass(frozen=True, kw_only=True)
class HeadedCase(LikelihoodCase):
    """A case whose network ends in a head that keeps its outputs where the likelihood is defined."""

    @functools.cached_property
    def model(self) -> nn.Module:
        """On the CPU, in float64."""
        assert self.axis is not None
        sign = -1 if self.likelihood.parameters == "natural" else 1
        return nn.Sequential(*network(self.kind, self.outputs)[0], Negative(self.axis + 1, sign))


def headed(case: LikelihoodCase) -> HeadedCase:
    """The same case with that head."""
    names = ("name", "kind", "outputs", "likelihood", "y", "nll", "curvature")
    return HeadedCase(**{name: getattr(case, name) for name in names})


# Counts


def counts(name: str, kind: str, outputs: int) -> LikelihoodCase:
    """Rates `exp(f)`."""
    y = classes(6, EXAMPLES, *shaped(kind, outputs), seed=6)

    def nll(f: Tensor, y: Tensor) -> Tensor:
        return -PoissonDistribution(f.exp()).log_prob(y.double()).sum()

    return LikelihoodCase(name=f"count {name}", kind=kind, outputs=outputs, likelihood=pw.Poisson(), y=y, nll=nll)


# Custom


def sphere(f: Tensor, y: Tensor) -> Tensor:
    """(N,): `sqrt(1 + |f - y|^2)`, which ties all outputs of an example."""
    return (1 + (f - y).square().reshape(len(f), -1).sum(1)).sqrt()


def sphere_definition(f: Tensor, y: Tensor) -> Tensor:
    """The same for one example."""
    return torch.linalg.vector_norm(torch.cat([torch.ones(1, dtype=f.dtype), (f - y).flatten()]))


PRECISION = torch.tensor([[2.0, 0.6, -0.3], [0.6, 1.0, 0.2], [-0.3, 0.2, 0.5]], dtype=torch.float64)


def correlated(f: Tensor, y: Tensor) -> Tensor:
    """(N,): Gaussian noise that is correlated between the outputs."""
    return 0.5 * torch.einsum("nc,cd,nd->n", f - y, PRECISION.to(f), f - y)


def correlated_sample(f: Tensor, uniform: Tensor) -> Tensor:
    """Targets drawn with that noise."""
    lower = torch.linalg.cholesky(torch.linalg.inv(PRECISION)).to(f)
    return f + torch.special.ndtri(uniform).to(f) @ lower.T


def custom(name: str, kind: str, outputs: int) -> LikelihoodCase:
    """A convex energy without a sampler."""
    y = normal(EXAMPLES, *shaped(kind, outputs), seed=3)
    return LikelihoodCase(
        name=f"custom {name}", kind=kind, outputs=outputs, likelihood=pw.Custom(sphere), y=y, nll=sphere_definition
    )


def custom_gaussian() -> LikelihoodCase:
    """One with a sampler."""
    made = normal(EXAMPLES, 3, seed=3)
    value = pw.Custom(correlated, sample=correlated_sample)
    return LikelihoodCase(
        name="custom correlated",
        kind="row",
        outputs=3,
        likelihood=value,
        y=made,
        nll=lambda f, y: 0.5 * (f - y) @ PRECISION @ (f - y),
    )


CASES = [
    categorical("row", "row"),
    categorical("tokens, ignored", "tokens", some_ignored(classes(3, EXAMPLES, 3))),
    categorical("image, ignored", "image", some_ignored(classes(3, EXAMPLES, 2, 2))),
    categorical("weights", "row", weight=[0.5, 2.0, 1.2]),
    categorical("weights, ignored", "tokens", some_ignored(classes(3, EXAMPLES, 3)), weight=[0.5, 2.0, 1.2]),
    categorical("smoothing", "row", label_smoothing=0.2),
    categorical(
        "weights, smoothing, ignored",
        "image",
        some_ignored(classes(3, EXAMPLES, 2, 2)),
        weight=[0.5, 2.0, 1.2],
        label_smoothing=0.3,
    ),
    categorical("soft", "row", soft("row", 3)),
    categorical("soft image", "image", soft("image", 3)),
    categorical("soft tokens, weights, smoothing", "tokens", soft("tokens", 3), [0.5, 2.0, 1.2], 0.1),
    binary("one logit", "scalar", yes_or_no()),
    binary("one logit with an axis", "row", yes_or_no(1)),
    binary("labels, missing", "row", yes_or_no(3, missing=-1), -1),
    binary("tokens, missing", "tokens", yes_or_no(3, 2, missing=-100), -100),
    binary("image", "image", yes_or_no(2, 2, 2)),
    binary("image, missing", "image", yes_or_no(2, 2, 2, missing=-100), -100),
    binary("probabilities", "row", torch.rand(EXAMPLES, 3, generator=seeded(5), dtype=torch.float64)),
    regression("scalar", "scalar", 1, 0.7),
    regression("row", "row", 3, 0.4),
    regression("row, each", "row", 3, [0.4, 1.5, 0.9]),
    regression("tokens, each", "tokens", 2, [0.4, 1.5]),
    regression("image, each", "image", 2, [0.4, 1.5]),
    heteroscedastic("raw", "row", 2, "raw"),
    heteroscedastic("raw, one flat target", "row", 1, "raw", flat=True),
    heteroscedastic("raw tokens", "tokens", 2, "raw"),
    heteroscedastic("raw tokens, flat", "tokens", 1, "raw", flat=True),
    heteroscedastic("raw image", "image", 2, "raw"),
    heteroscedastic("raw image, flat", "image", 1, "raw", flat=True),
    headed(heteroscedastic("natural", "row", 2, "natural")),
    headed(heteroscedastic("natural image", "image", 1, "natural")),
    headed(heteroscedastic("mean and variance", "row", 2, "mean_variance")),
    heteroscedastic("mean and log variance", "row", 2, "mean_log_variance"),
    heteroscedastic("mean and log variance, tokens", "tokens", 1, "mean_log_variance"),
    counts("scalar", "scalar", 1),
    counts("row", "row", 3),
    counts("tokens", "tokens", 2),
    counts("image", "image", 2),
    custom("scalar", "scalar", 1),
    custom("row", "row", 3),
    custom("tokens", "tokens", 2),
    custom("image", "image", 2),
    custom_gaussian(),
]
BY_NAME = {case.name: case for case in CASES}
