"""Numbers of every labelled position of a data set, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .bootstrap import Draws, Resampling, sums_by


@dataclass(frozen=True)
class Columns:
    """P labelled positions of N examples, on the CPU in float64."""

    owner: Tensor  # (P,): the number of the example
    examples: int
    values: dict[str, Tensor]  # (P,) each
    probs: Tensor | None = None  # (P, C), in the network's own precision
    labels: Tensor | None = None  # (P,)

    def __getitem__(self, name: str) -> Tensor:
        """(P,)."""
        return self.values[name]

    def __contains__(self, name: object) -> bool:
        """Whether there is such a column, or there are probabilities."""
        return name in self.values or (name == "probs" and self.probs is not None)

    def __len__(self) -> int:
        """P."""
        return len(self.owner)

    @cached_property
    def counts(self) -> Tensor:
        """(N,): positions of every example."""
        return sums_by(self.owner, torch.ones(len(self), dtype=torch.float64, device="cpu"), self.examples)

    def means(self, names: Sequence[str], drawn: Resampling) -> Tensor:
        """(1 + R, K): means over the positions of the data and of every drawn set."""
        values = torch.stack([self[name] for name in names], -1)
        sums = drawn.sums(torch.cat([sums_by(self.owner, values, self.examples), self.counts[:, None]], -1))
        return sums[:, :-1] / sums[:, -1:]

    def drawn(self, names: Sequence[str], drawn: Resampling) -> dict[str, Draws]:
        """The means by their names."""
        return {name: Draws.of(rows) for name, rows in zip(names, self.means(names, drawn).T, strict=True)}
