"""Minimise the loss over a few directions, by Newton's method on their coefficients, without the network."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..likelihoods import Likelihood
from ..runtime.arithmetic import use_rounding

STEPS = 40
ENOUGH = 1e-6  # share of the first step's promised gain below which the descent stops
SUFFICIENT = 1e-4  # the share of its promised gain that a step must reach
NUMBERS = 1 << 20  # elements of all vectors in one batch
MANY = 4  # vectors from which on second derivatives are batched


@dataclass(eq=False)
class Terms:
    """A function of k numbers: its value, gradient (k,) and second derivative (k, k), on the CPU in float64."""

    value: float
    gradient: Tensor
    curve: Callable[[], Tensor]  # as expensive as many gradients, so computed only where a step begins

    @cached_property
    def hessian(self) -> Tensor:
        """(k, k)."""
        return self.curve()

    @property
    def finite(self) -> bool:
        """Whether the value and the gradient are finite."""
        return math.isfinite(self.value) and bool(torch.isfinite(self.gradient).all())

    def step(self) -> Tensor:
        """Newton's step, downhill even if the function is not convex; zero along directions without curvature."""
        diagonal = self.hessian.diagonal().abs()
        scale = torch.where(diagonal > 0, diagonal, 1.0).rsqrt() * (diagonal > 0)
        values, vectors = torch.linalg.eigh(scale[:, None] * self.hessian * scale)
        size = values.abs()
        inverse = torch.where(size > 1e-12 * size.max(), 1 / size.clamp(min=1e-300), 0.0)
        step: Tensor = -scale * (vectors @ (inverse * (vectors.T @ (scale * self.gradient))))
        return step


def energy_terms(
    likelihood: Likelihood,
    u: Tensor,
    vectors: Sequence[Tensor],
    y: Tensor,
    c: Tensor,
    more: Sequence[Tensor] = (),
    second: bool = True,
) -> Tensor:
    """(1 + k + k k,) in float64: value, gradient and Hessian of `sum energy(u + c_i v_i)` in c.

    Only derivatives in the outputs (N, T, C) are taken. `more` has further vectors, (R, N, T, C) each. Without `second`
    the result is (1 + k,).
    """
    number = len(vectors) + sum(map(len, more))
    total = torch.zeros(1 + number + number * number * second, dtype=torch.float64, device=u.device)
    step = max(1, NUMBERS // max(number * u[0].numel(), 1))
    for start in range(0, len(u), step):
        chosen = slice(start, start + step)
        together = torch.cat([*(vector[None, chosen] for vector in vectors), *(each[:, chosen] for each in more)])
        total += _energy_terms(likelihood, u[chosen], together, y[chosen], c.to(u), second)
    return total


def _energy_terms(likelihood: Likelihood, u: Tensor, vectors: Tensor, y: Tensor, c: Tensor, second: bool) -> Tensor:
    """The same for one batch, with all vectors in one tensor (k, N, T, C)."""
    flat = vectors.flatten(1)
    with torch.enable_grad(), use_rounding("ieee"):
        f = (u + (c @ flat).view_as(u)).requires_grad_()
        energy = likelihood.energy(f, y)
        (slope,) = torch.autograd.grad(energy.sum(), f, create_graph=second)
        terms = [energy.detach().sum(dtype=torch.float64)[None], flat.double() @ slope.detach().flatten().double()]
        if second:  # errors in these change only the length of a step
            terms.append((flat @ second_derivatives(slope, f, vectors).flatten(1).T).flatten().double())
    return torch.cat(terms)


def second_derivatives(slope: Tensor, f: Tensor, vectors: Tensor) -> Tensor:
    """(k, N, T, C): second derivatives of an energy at f, times vectors; `slope` has the first derivatives."""
    if not slope.requires_grad:  # linear in the outputs
        return torch.zeros_like(vectors)
    if len(vectors) >= MANY:
        try:
            batched: tuple[Tensor, ...] = torch.autograd.grad(
                slope, f, vectors, retain_graph=True, is_grads_batched=True, materialize_grads=True
            )
            return batched[0]
        except (RuntimeError, NotImplementedError):  # a user's energy may have no batching rule
            pass
    rows = [torch.autograd.grad(slope, f, each, retain_graph=True, materialize_grads=True)[0] for each in vectors]
    return torch.stack(rows)


def descend(terms: Callable[[Tensor], Terms], number: int, slack: float) -> tuple[Tensor, Terms, Terms]:
    """The minimiser (k,), and the function at the start and there; the value never rises beyond rounding."""
    c = torch.zeros(number, dtype=torch.float64, device="cpu")
    first = point = terms(c)
    promised = 0.0
    for _ in range(STEPS):
        if not bool(torch.isfinite(point.hessian).all()):
            break
        step = point.step()
        slope = float(point.gradient @ step)
        promised = promised or -slope
        if not slope < 0 or -slope <= ENOUGH * promised:
            break
        following = _shorten(terms, c, point, step, slope, slack)
        if following is None:
            break
        c, point = following
    return c, first, point


def _shorten(
    terms: Callable[[Tensor], Terms], c: Tensor, point: Terms, step: Tensor, slope: float, slack: float
) -> tuple[Tensor, Terms] | None:
    """Halve the step until it reaches enough of its promised gain, or, within rounding, flattens the slope."""
    length = 1.0
    for _ in range(60):
        moved = c + length * step
        ahead = terms(moved)
        if ahead.finite:
            if ahead.value <= point.value + SUFFICIENT * length * slope:
                return moved, ahead
            level = -slope * length < 1e3 * slack and ahead.value <= point.value + slack
            if level and float((ahead.gradient @ step).abs()) < 0.9 * -slope:
                return moved, ahead
        length /= 2
        if -slope * length < 1e-3 * slack:
            return None
    return None
