"""The mode of the linear model, and the steps to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from ..messages.names import check_name
from ..priors.prior import Prior
from ..weights.space import Space

At: TypeAlias = Literal["trained_weights", "linear_mode"]
"""The weights at which evidence is taken, and around which predictions are made."""


def check_at(at: Any) -> None:
    """Refuse what is not one of them."""
    check_name(at, get_args(At), "at")


@dataclass(frozen=True, eq=False, kw_only=True)
class LinearMode:
    """The minimum of the linear model's regularised loss, for one prior, noise and temperature, with the steps to it.

    `la.at_linear_mode(data).linear_mode` is one. `losses`, `decrements`, `gradients` and `passes` have one number for
    each time that the gradient g was taken.

    Attributes:
        displacement: From the trained weights to the mode (D,): `theta_lin - theta_hat`.
        energy: Energy of the linear model at the mode, summed over the data.
        rest: Part of `-log p` that depends on the targets alone, summed over the data.
        prior: The prior that the mode belongs to.
        noise_precision: 1 / noise variance that the mode belongs to.
        temperature: The temperature that the mode belongs to.
        losses: Regularised losses, `data_weight * energy + 1/2 |theta - mu|^2`, in nats.
        decrements: `1/2 g^T P^-1 g`: about how far the loss is above its minimum, in nats.
        gradients: Lengths `|g|` of the gradient.
        passes: Products taken so far.
        products: Products taken in all: pairs of one with J and one with J^T, over all data.
        converged: Whether the minimum was reached within the tolerance.
        stopped: In words, why the search stopped.
        decrement: The last of `decrements`.

    Example:
        >>> mode = la.at_linear_mode((x, y)).linear_mode
        >>> mode.displacement.shape == (la.D,), mode.converged, mode.losses[-1] < mode.losses[0]
        (True, True, True)
    """

    displacement: Tensor
    energy: float
    rest: float
    prior: Prior
    noise_precision: float
    temperature: float
    losses: tuple[float, ...]
    decrements: tuple[float, ...]
    gradients: tuple[float, ...]
    passes: tuple[float, ...]
    products: float
    converged: bool
    stopped: str

    @property
    def decrement(self) -> float:
        """The last of `decrements`: about how far the loss is above its minimum, in nats."""
        return self.decrements[-1]

    def under(self, prior: Prior, noise_precision: float, temperature: float, space: Space) -> bool:
        """Whether the mode belongs to this prior, noise and temperature, to rounding."""
        numbers = torch.tensor([self.noise_precision, self.temperature], dtype=torch.float64, device="cpu")
        others = torch.tensor([noise_precision, temperature], dtype=torch.float64, device="cpu")
        if not torch.allclose(numbers, others, rtol=1e-5, atol=0.0):
            return False
        if prior is self.prior:
            return True
        like = self.displacement
        with torch.no_grad():
            precisions = prior.delta(space, like).detach(), self.prior.delta(space, like)
            means = prior.centre(space, like).detach(), self.prior.centre(space, like)
            return torch.allclose(*precisions, rtol=1e-5, atol=0.0) and torch.equal(*means)

    def __repr__(self) -> str:
        """Two lines: steps, products and why it stopped; losses, decrements and the length of the displacement."""
        state = "converged" if self.converged else "not converged"
        return (
            f"LinearMode({len(self.losses) - 1} steps, {self.products:g} products, {state}: {self.stopped})\n"
            f"  loss {self.losses[0]:.6g} -> {self.losses[-1]:.6g}, decrement {self.decrements[0]:.3g} -> "
            f"{self.decrement:.3g}, |theta_lin - theta_hat| {float(self.displacement.norm()):.4g}"
        )
