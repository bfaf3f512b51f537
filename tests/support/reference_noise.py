"""Heteroscedastic regression by empirical Bayes, as plain loops over examples and dense float64 matrices."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

DOUBLE = torch.float64
EPOCHS, BEGIN, EVERY, STEPS, BATCH = 40, 20, 10, 3, 16


def natural(weights: list[Tensor], x: Tensor) -> tuple[Tensor, Tensor]:
    """Natural parameters of an MLP with one hidden layer."""
    first, offset, last, shift = weights
    o = F.gelu(x @ first.T + offset) @ last.T + shift
    return o[..., 0], -0.5 * (torch.log1p(o[..., 1].exp()) + 1e-8)


def energy(eta: tuple[Tensor, Tensor], y: Tensor) -> Tensor:
    """Minus log likelihood of the natural parameters."""
    first, second = eta
    log_partition = -first.square() / (4 * second) - 0.5 * (-2 * second).log()
    return log_partition - first * y - second * y.square() + 0.5 * math.log(2 * math.pi)


def fisher(eta: tuple[Tensor, Tensor]) -> Tensor:
    """(2, 2, N): the Hessian of the log-partition function."""
    first, second = eta
    cross = 0.5 * first / second**2
    corner = 0.5 / second**2 - 0.5 * first**2 / second**3
    return torch.stack([torch.stack([-0.5 / second, cross]), torch.stack([cross, corner])])


def jacobian(weights: list[Tensor], x: Tensor) -> Tensor:
    """(N, 2, D), one row of one example at a time."""
    rows = []
    for one in x:
        eta = natural(weights, one)
        slopes = [torch.autograd.grad(each, weights, retain_graph=True) for each in eta]
        rows.append(torch.stack([torch.cat([slope.flatten() for slope in each]) for each in slopes]))
    return torch.stack(rows)


def half_cosine(first: float, last: float, step: int, steps: int) -> float:
    """A rate on its way from one to the other."""
    return last + (first - last) * (1 + math.cos(math.pi * step / steps)) / 2


class Adam:
    """Adam, written out."""

    def __init__(self) -> None:
        self.first: float | Tensor = 0.0
        self.second: float | Tensor = 0.0
        self.taken = 0

    def step(self, value: Tensor, slope: Tensor, rate: float) -> Tensor:
        """The value after one more step."""
        self.taken += 1
        self.first = 0.9 * self.first + 0.1 * slope
        self.second = 0.999 * self.second + 0.001 * slope.square()
        root = (self.second / (1 - 0.999**self.taken)).sqrt() + 1e-8
        return value - rate * self.first / (1 - 0.9**self.taken) / root


class EmpiricalBayes:
    """Training with a prior precision for each tensor, learnt by the evidence; the best weights are kept."""

    def __init__(self, x: Tensor, y: Tensor, start: list[Tensor]) -> None:
        self.x, self.y = x, y
        self.shapes = [each.shape for each in start]
        sizes = torch.tensor([each.numel() for each in start])
        self.groups = torch.repeat_interleave(torch.arange(len(start)), sizes)
        self.theta = torch.cat([each.flatten() for each in start])
        self.z = torch.zeros(len(start), dtype=DOUBLE)
        self.best: tuple[float, Tensor, Tensor, Tensor] | None = None

    def parts(self, theta: Tensor) -> list[Tensor]:
        """The weights in their shapes."""
        pieces = theta.split([shape.numel() for shape in self.shapes])
        return [piece.reshape(shape) for piece, shape in zip(pieces, self.shapes, strict=True)]

    def loss(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Of a batch."""
        prior = 0.5 * (self.z.exp()[self.groups] * theta.square()).sum()
        return energy(natural(self.parts(theta), x), y).mean() + prior / len(self.x)

    def curvature(self) -> Tensor:
        """(D, D): the generalised Gauss-Newton matrix."""
        weights = [each.clone().requires_grad_() for each in self.parts(self.theta)]
        slopes = jacobian(weights, self.x)
        return torch.einsum("ncp,ckn,nkq->pq", slopes, fisher(natural(self.parts(self.theta), self.x)), slopes)

    def evidence(self, z: Tensor, matrix: Tensor) -> Tensor:
        """The log marginal likelihood."""
        delta = z.exp()[self.groups]
        fit = -energy(natural(self.parts(self.theta), self.x), self.y).sum()
        ratio = torch.logdet(matrix + torch.diag(delta)) - delta.log().sum()
        return fit - 0.5 * (ratio + (delta * self.theta.square()).sum())

    def train(self) -> EmpiricalBayes:
        """All epochs and hyper-steps."""
        batches = list(zip(self.x.split(BATCH), self.y.split(BATCH), strict=True))
        inner, outer = Adam(), Adam()
        for epoch in range(1, EPOCHS + 1):
            for x, y in batches:
                theta = self.theta.clone().requires_grad_()
                (slope,) = torch.autograd.grad(self.loss(theta, x, y), theta)
                rate = half_cosine(1e-2, 1e-5, inner.taken, EPOCHS * len(batches))
                self.theta = inner.step(self.theta, slope, rate)
            if epoch >= BEGIN and epoch % EVERY == 0:
                self.learn(outer)
        return self

    def learn(self, outer: Adam) -> None:
        """Some steps of the log precisions."""
        matrix, steps = self.curvature(), (EPOCHS - BEGIN) // EVERY * STEPS
        for _ in range(STEPS):
            z = self.z.clone().requires_grad_()
            (slope,) = torch.autograd.grad(-self.evidence(z, matrix), z)
            self.z = outer.step(self.z, slope, half_cosine(1e-2, 1e-3, min(outer.taken, steps), steps))
        self.last = float(self.evidence(self.z, matrix))
        if self.best is None or self.last > self.best[0]:
            self.best = self.last, self.theta, self.z, matrix

    def figures(self, x: Tensor, y: Tensor, unit: float) -> list[float]:
        """Minus the last log evidence per example; log likelihoods of three predictions; squared error."""
        assert self.best is not None
        _, theta, z, matrix = self.best
        covariance = torch.linalg.inv(matrix + torch.diag(z.exp()[self.groups]))
        first, second = natural(self.parts(theta), x)
        slopes = jacobian([each.clone().requires_grad_() for each in self.parts(theta)], x)
        noise = -0.5 / second
        mean, by_first = first * noise, slopes[:, 0] * noise[:, None]
        of_mean = by_first + slopes[:, 1] * (first / (2 * second**2))[:, None]
        made = [-self.last / len(self.x)]
        for chosen in (0 * by_first, by_first, of_mean):
            variance = (noise + torch.einsum("np,pq,nq->n", chosen, covariance, chosen)) * unit**2
            density = -0.5 * (((y - mean) * unit) ** 2 / variance + (2 * math.pi * variance).log())
            made.append(float(density.mean()))
        return [*made, float((y - mean).square().mean())]
