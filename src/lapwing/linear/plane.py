"""The least loss in the plane of two directions: Newton's method on two numbers, without a pass through the network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..likelihoods import Likelihood

STEPS = 40
ENOUGH = 1e-6  # the share of the first step's promised gain that is left to the next plane
SUFFICIENT = 1e-4  # the share of a step's promised gain that it has to keep


@dataclass(frozen=True)
class Terms:
    """A function of a few numbers: its value, gradient (k,) and second derivative (k, k), on the CPU in float64."""

    value: float
    gradient: Tensor
    hessian: Tensor

    @property
    def finite(self) -> bool:
        """Whether there is a likelihood here."""
        numbers = torch.cat([torch.tensor([self.value]), self.gradient, self.hessian.flatten()])
        return bool(torch.isfinite(numbers).all())

    def step(self) -> Tensor:
        """Newton's, downhill also where the function is not convex; directions without curvature are left alone."""
        diagonal = self.hessian.diagonal().abs()
        scale = torch.where(diagonal > 0, diagonal, 1.0).rsqrt() * (diagonal > 0)
        values, vectors = torch.linalg.eigh(scale[:, None] * self.hessian * scale)
        size = values.abs()
        inverse = torch.where(size > 1e-12 * size.max(), 1 / size.clamp(min=1e-300), 0.0)
        made: Tensor = -scale * (vectors @ (inverse * (vectors.T @ (scale * self.gradient))))
        return made


def energy_terms(likelihood: Likelihood, u: Tensor, vectors: Sequence[Tensor], y: Tensor, c: Tensor) -> Tensor:
    """(1 + k + k k,) in float64: of `sum energy(u + c_i v_i)` in c, by derivatives in the outputs (N, T, C) alone."""
    f = u
    for number, vector in zip(c.tolist(), vectors, strict=True):
        f = torch.add(f, vector, alpha=number)
    with torch.enable_grad():
        f = f.detach().requires_grad_()
        energy = likelihood.energy(f, y)
        (slope,) = torch.autograd.grad(energy.sum(), f, create_graph=True)
        along = [(slope * vector).sum(dtype=torch.float64) for vector in vectors]
        second = []
        for number, each in enumerate(along):
            if each.requires_grad:
                keep = number < len(along) - 1
                (row,) = torch.autograd.grad(each, f, retain_graph=keep, materialize_grads=True)
            else:  # linear in the outputs
                row = torch.zeros_like(u)
            second += [(row * vector).sum(dtype=torch.float64) for vector in vectors]
    return torch.stack([energy.detach().sum(dtype=torch.float64), *(each.detach() for each in along), *second])


def descend(terms: Callable[[Tensor], Terms], number: int, slack: float) -> tuple[Tensor, Terms, Terms]:
    """The numbers (k,) of the least value, with the function at the start and there; it never rises beyond rounding."""
    c = torch.zeros(number, dtype=torch.float64, device="cpu")
    first = here = terms(c)
    promised = 0.0
    for _ in range(STEPS):
        step = here.step()
        slope = float(here.gradient @ step)
        promised = promised or -slope
        if not slope < 0 or -slope <= ENOUGH * promised:
            break
        found = _shortened(terms, c, here, step, slope, slack)
        if found is None:
            break
        c, here = found
    return c, first, here


def _shortened(
    terms: Callable[[Tensor], Terms], c: Tensor, here: Terms, step: Tensor, slope: float, slack: float
) -> tuple[Tensor, Terms] | None:
    """The first of ever shorter steps that keeps enough of its promise, or flattens the slope below rounding."""
    length = 1.0
    for _ in range(60):
        there = c + length * step
        found = terms(there)
        if found.finite:
            if found.value <= here.value + SUFFICIENT * length * slope:
                return there, found
            level = -slope * length < 1e3 * slack and found.value <= here.value + slack
            if level and float((found.gradient @ step).abs()) < 0.9 * -slope:
                return there, found
        length /= 2
        if -slope * length < 1e-3 * slack:
            return None
    return None
