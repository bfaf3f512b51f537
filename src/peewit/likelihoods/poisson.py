"""Counts: the network's output is the logarithm of their rate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Poisson as PoissonDistribution

from ..messages.errors import ArgumentTypeError
from ..messages.names import spelled_class
from ..runtime.random import Hashed
from .comparison import ConstantComparison, Energies, compare_deviances
from .contract import Likelihood, diagonal_root
from .form import ALL, Form

HALVINGS = 60  # of the interval in which a drawn count lies, at most


@spelled_class
@dataclass(frozen=True)
class Poisson(Likelihood):
    """Counts: the network's output f is the logarithm of their rate, and `y` is Poisson with rate `exp(f)`.

    `pw.fit(..., "count")` takes it. Targets are whole numbers from 0 on, of any dtype but boolean and complex, and
    have the outputs' shape. The loss is `torch.nn.PoissonNLLLoss(reduction="sum")`.

    Raises:
        PeewitError: By `pw.fit`, where a target is not a whole number from 0 on, or the rate overflows.

    Example:
        >>> counts = t.abs().round()
        >>> la = pw.fit(line_model, (t, counts), pw.Poisson())
        >>> la.predict(t).mean.shape
        torch.Size([40, 1])
    """

    title = "count"
    link_family = "poisson"
    draws = True
    domain = "rates `exp(f)` overflow: the outputs are logarithms of rates"

    def targets(self, y: Tensor, form: Form) -> Tensor:
        if y.is_complex() or y.dtype == torch.bool:
            raise ArgumentTypeError(f"count: targets have dtype {y.dtype}; expected whole numbers.")
        return form.flatten(y if y.is_floating_point() else y.double())

    @staticmethod
    def _wrong(y: Tensor) -> Tensor:
        return ~((y >= 0) & (y == y.floor()) & torch.isfinite(y))

    def valid(self, y: Tensor, form: Form) -> Tensor:
        # All targets are counts.
        return ~self._wrong(y).any()

    def complaint(self, y: Tensor, form: Form) -> str:
        return f"count: target {y[self._wrong(y)][0].item():g} was given; expected whole numbers from 0 on."

    def energy(self, f: Tensor, y: Tensor) -> Tensor:
        # `exp(f) - y f`, (N,).
        f = f.double()  # two large numbers nearly cancel where counts are large
        return (f.exp() - y.to(f.dtype) * f).sum((1, 2))

    def root(self, f: Tensor, y: Tensor, probes: slice = ALL) -> Tensor:
        # `exp(f / 2)` on the diagonal.
        return diagonal_root((f / 2).exp(), probes)

    def sample(self, f: Tensor, y: Tensor, draws: Hashed) -> Tensor:
        """(N, T, C): by bisection of the distribution function, `P(Y <= k) = Q(k + 1, rate)`."""
        rate = f.detach().double().exp()
        uniform = draws.uniform(f.shape[-1])
        low, high = torch.full_like(rate, -1), (rate + 12 * (rate + 1).sqrt() + 40).ceil()
        widest = float((high - low).max())
        for _ in range(HALVINGS if not widest < 2.0**HALVINGS else math.ceil(math.log2(widest))):
            middle = ((low + high) / 2).floor()
            enough = torch.special.gammaincc(middle.clamp(min=0) + 1, rate) >= uniform
            enough &= middle >= 0
            low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
        return high.to(f.dtype)

    def drawn_score(self, f: Tensor, y: Tensor, draws: Hashed, create_graph: bool = False) -> Tensor:
        # `exp(f) - drawn`.
        with torch.set_grad_enabled(create_graph):
            return f.exp() - self.sample(f, y, draws)

    def rest(self, y: Tensor) -> Tensor:
        # `log y!`.
        return torch.lgamma(y.double() + 1).sum()

    def distribution(self, f: Tensor) -> PoissonDistribution:
        return PoissonDistribution(f.exp(), validate_args=False)

    def beside_constant(self, f: Tensor, y: Tensor, energies: Energies, where: str) -> ConstantComparison:
        """By deviance."""
        return compare_deviances(energies, float((y - torch.xlogy(y, y)).sum()), where)
