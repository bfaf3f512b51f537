"""What is minimised: `data_weight * energy(f + J e) + 1/2 |theta_hat + e - mu|^2_delta`, with a preconditioner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..curvature.blocks import Blocks
from ..priors.prior import Prior

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

CHUNK = 1 << 22  # weights at a time: sums are made in float64, and no vector of all weights is held for them


def chunks(size: int) -> Iterator[slice]:
    """Slices of the weights."""
    for start in range(0, size, CHUNK):
        yield slice(start, min(start + CHUNK, size))


@dataclass(frozen=True, eq=False, kw_only=True)
class Target:
    """One prior, noise and temperature."""

    data_weight: float  # noise_precision / temperature
    weights: Tensor  # (D,): theta_hat
    delta: Callable[[slice], Tensor]  # precisions of some weights: all of them would be one more vector
    centre: Tensor  # (D,): mu
    blocks: Blocks  # the posterior precision P
    prior: Prior
    noise_precision: float
    temperature: float

    @staticmethod
    def of(la: PosteriorState) -> Target:
        """Of a posterior, whose precision is the preconditioner."""
        noise_precision = float(la.likelihood.noise_precision)
        with torch.no_grad():
            delta = la.prior.parts(la.space, la.weights)
            centre = la.prior.centre(la.space, la.weights).detach()
        return Target(
            data_weight=noise_precision / la.temperature,
            weights=la.weights,
            delta=delta,
            centre=centre,
            blocks=la.precision,
            prior=la.prior,
            noise_precision=noise_precision,
            temperature=la.temperature,
        )

    def precondition(self, g: Tensor) -> float:
        """Overwrite g (D,) by `P^-1 g`, block by block, and return `g^T P^-1 g`."""
        total = torch.zeros((), dtype=torch.float64, device=g.device)
        with torch.no_grad():
            for block in self.blocks.blocks:
                part = block.take(g)
                solved = block.operator.solve(part).to(g.dtype)
                total += (part * solved).sum(dtype=torch.float64)
                for elements, value in block.split(solved):
                    g[elements] = value
        return float(total)

    def residual(self, e: Tensor, chosen: slice) -> Tensor:
        """`theta_hat + e - mu`, of some weights."""
        return self.weights[chosen] + e[chosen] - self.centre[chosen]

    def pull(self, e: Tensor, chosen: slice) -> Tensor:
        """`Lambda (theta_hat + e - mu)`, of some weights."""
        return self.delta(chosen) * self.residual(e, chosen)

    def weigh(self, v: Tensor, chosen: slice) -> Tensor:
        """`Lambda v`, of some weights."""
        return self.delta(chosen) * v[chosen]

    def add_gradient(self, e: Tensor, g: Tensor) -> None:
        """Add the prior's part."""
        for chosen in chunks(len(e)):
            g[chosen] += self.pull(e, chosen)

    def products(self, e: Tensor, vectors: Sequence[Tensor]) -> tuple[float, Tensor, Tensor]:
        """`1/2 |r|^2`, `r^T v_i` and `v_i^T v_j`, all weighted by the precisions, with `r = theta_hat + e - mu`."""
        number = len(vectors) + 1
        total = torch.zeros(number, number, dtype=torch.float64, device=e.device)
        for chosen in chunks(len(e)):
            delta = self.delta(chosen)
            rows = [self.residual(e, chosen), *(vector[chosen] for vector in vectors)]
            for i, row in enumerate(rows):
                weighted = row * delta
                for j, other in enumerate(rows[: i + 1]):
                    total[i, j] += (weighted * other).sum(dtype=torch.float64)
        sums = total.cpu()
        sums = sums + sums.tril(-1).T
        return 0.5 * float(sums[0, 0]), sums[0, 1:], sums[1:, 1:]


def norm(g: Tensor) -> float:
    """|g|."""
    return float(torch.linalg.vector_norm(g, dtype=torch.float64))
