"""The mode of the linear model by its definition: dense Jacobians, Newton's method with dense solves, float64.

`f(theta_hat) + J (theta - theta_hat)` has the loss
`sum_n nll(f_n + J_n e, y_n) / T + 1/2 |theta_hat + e - mu|^2_delta`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Definition = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, kw_only=True)
class Linear:
    """Outputs (N, ...), Jacobian (N, F, D), targets, the negative log-likelihood of one example, and the prior."""

    f: Tensor
    jacobian: Tensor
    y: Sequence[Tensor]
    nll: Definition
    theta: Tensor  # (D,)
    delta: Tensor  # (D,)
    mean: Tensor | float = 0.0
    temperature: float = 1.0

    def outputs(self, e: Tensor) -> Tensor:
        """(N, ...)."""
        return self.f + (self.jacobian @ e).reshape(self.f.shape)

    def energy(self, e: Tensor) -> Tensor:
        """The negative log-likelihood of all data."""
        return sum(self.nll(f, y) for f, y in zip(self.outputs(e), self.y, strict=True))

    def distance(self, e: Tensor) -> Tensor:
        """From the prior's mean, squared."""
        return (self.delta * (self.theta + e - self.mean).square()).sum()

    def loss(self, e: Tensor) -> Tensor:
        """What is minimised."""
        return self.energy(e) / self.temperature + 0.5 * self.distance(e)

    def gradient(self, e: Tensor) -> Tensor:
        """(D,)."""
        variable = e.detach().clone().requires_grad_()
        return torch.autograd.grad(self.loss(variable), variable)[0]

    def hessian(self, e: Tensor) -> Tensor:
        """(D, D): exact, so with the curvature of the outputs where they are in the linear model."""
        total = torch.diag(self.delta)
        for f, y, j in zip(self.outputs(e.detach()), self.y, self.jacobian, strict=True):
            made = torch.autograd.functional.hessian(lambda out, y=y: self.nll(out, y), f)
            total = total + j.T @ made.reshape(f.numel(), f.numel()) @ j / self.temperature
        return total

    def mode(self) -> Tensor:
        """(D,): Newton's method with halved steps, to rounding."""
        e = torch.zeros_like(self.theta)
        for _ in range(100):
            g = self.gradient(e)
            step = torch.linalg.solve(self.hessian(e), g)
            if float(g @ step) < 1e-22:
                return e
            length, here = 1.0, float(self.loss(e))
            while not float(self.loss(e - length * step)) <= here + 1e-13 * abs(here):
                length /= 2
                if length < 1e-9:
                    return e
            e = e - length * step
        raise AssertionError("the reference did not converge")
