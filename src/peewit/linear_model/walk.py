"""What both solvers keep while they walk to the mode of the linear model, and how they take a step."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .objective import Target
from .passes import Passes
from .stopping import DataFacts


@dataclass(eq=False, kw_only=True)
class Walk:
    """The weights so far and the last direction; to be used inside `passes.isolated`."""

    passes: Passes
    e: Tensor  # (D,): theta - theta_hat
    facts: DataFacts = field(default_factory=DataFacts)
    products: float = 0.0  # over all data, so far
    d: Tensor | None = None  # (D,)

    def _empty_gradient(self) -> Tensor:
        """Zeros for all elements of the named tensors, to which `passes.pull` adds."""
        return torch.zeros(self.passes.network.space.total, dtype=self.e.dtype, device=self.e.device)

    def _with_prior(self, target: Target, total: Tensor) -> Tensor:
        """(D,): the gradient of the loss, from that of the energy over all elements of the named tensors."""
        mask = self.passes.network.space.mask
        g = total if mask is None else total[mask.to(total.device)]
        target.add_gradient(self.e, g)
        return g

    def _turn(self, z: Tensor, numbers: list[float]) -> Tensor:
        """(D,): the next direction, `numbers[0] z + numbers[1] d`; z is used up."""
        self.d = z.mul_(numbers[0]) if self.d is None else self.d.mul_(numbers[1]).add_(z, alpha=numbers[0])
        return self.d
