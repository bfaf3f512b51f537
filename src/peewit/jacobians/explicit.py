"""Jacobians as rows."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..runtime.memory import Budget
from .layout import Layout


@dataclass(frozen=True)
class Explicit:
    """The Jacobian of a small or unusual weight as rows (K, B, P)."""

    value: Tensor
    budget: Budget

    @property
    def probes(self) -> int:
        """K."""
        return self.value.shape[0]

    @property
    def examples(self) -> int:
        """B."""
        return self.value.shape[1]

    @property
    def size(self) -> int:
        """P."""
        return self.value.shape[2]

    @property
    def layout(self) -> Layout:
        """A column: (1, P, 1)."""
        return Layout.plain(1, self.size, 1)

    def square_sum(self, left: Tensor | None = None, right: Tensor | None = None) -> Tensor:
        """(1, P, 1): squares summed over probes and examples."""
        return self.value.square().sum((0, 1)).reshape(1, -1, 1)

    def quad(self, weight: Tensor, left: Tensor | None = None, right: Tensor | None = None) -> Tensor:
        """(B, K, K)."""
        rows = self.value.transpose(0, 1)
        return (rows * weight.reshape(-1)) @ rows.mT

    def variance(self, weight: Tensor, left: Tensor | None = None, right: Tensor | None = None) -> Tensor:
        """(B, K)."""
        return (self.value.square() @ weight.reshape(-1)).T

    def apply(self, vectors: Tensor) -> Tensor:
        """(S, P) -> (S, K, B)."""
        return torch.einsum("kbp,sp->skb", self.value, vectors)

    def rows(self, examples: slice) -> Tensor:
        """(K, b, P)."""
        return self.value[:, examples]
