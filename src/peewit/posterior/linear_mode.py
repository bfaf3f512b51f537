"""What was found: the mode of the linear model, and how it was come by."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..priors.prior import Prior
from ..weights.space import Space


@dataclass(frozen=True, eq=False)
class LinearMode:
    """The minimum of the linear model's regularised loss under one prior, noise and temperature, and the way there.

    `losses`, `decrements`, `gradients` and `passes` have one number for each time that the gradient was taken.
    """

    displacement: Tensor  # (D,): theta* - theta~
    energy: float  # of the linear model there, as `Totals` has the network's
    rest: float
    prior: Prior  # it was found under
    scale: float  # of the likelihood: 1 / noise variance
    temperature: float
    losses: tuple[float, ...]  # strength * energy + 1/2 |theta - mu|^2
    decrements: tuple[float, ...]  # 1/2 g^T P^-1 g: about how far the loss is above its minimum, in nats
    gradients: tuple[float, ...]  # |g|
    passes: tuple[float, ...]  # products taken until then
    products: float  # pairs of one product with J and one with J^T over all data
    converged: bool
    stopped: str

    @property
    def decrement(self) -> float:
        """The last one."""
        return self.decrements[-1]

    def under(self, prior: Prior, scale: float, temperature: float, space: Space) -> bool:
        """Whether it was found under this prior, noise and temperature, to rounding."""
        numbers = torch.tensor([self.scale, self.temperature], dtype=torch.float64, device="cpu")
        asked = torch.tensor([scale, temperature], dtype=torch.float64, device="cpu")
        if not torch.allclose(numbers, asked, rtol=1e-5, atol=0.0):
            return False
        if prior is self.prior:
            return True
        like = self.displacement
        with torch.no_grad():
            precisions = prior.delta(space, like).detach(), self.prior.delta(space, like)
            means = prior.centre(space, like).detach(), self.prior.centre(space, like)
            return torch.allclose(*precisions, rtol=1e-5, atol=0.0) and torch.equal(*means)

    def __repr__(self) -> str:
        """Two lines: how far, how exact, how dear."""
        state = "converged" if self.converged else "not converged"
        return (
            f"LinearMode({len(self.losses) - 1} steps, {self.products:g} products, {state}: {self.stopped})\n"
            f"  loss {self.losses[0]:.6g} -> {self.losses[-1]:.6g}, decrement {self.decrements[0]:.3g} -> "
            f"{self.decrement:.3g}, |theta* - theta~| {float(self.displacement.norm()):.4g}"
        )
