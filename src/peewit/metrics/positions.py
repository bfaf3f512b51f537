"""Numbers of every labelled position of some examples, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .bootstrap import MetricDraws, Resampling, sums_by


@dataclass(frozen=True, kw_only=True)
class Positions:
    """P labelled positions of N examples, on the CPU."""

    owner: Tensor  # (P,): the number of the example
    examples: int
    values: dict[str, Tensor]  # (P,) each
    probs: Tensor | None = None  # (P, C), in the network's own precision
    labels: Tensor | None = None  # (P,)

    def __getitem__(self, name: str) -> Tensor:
        """(P,)."""
        return self.values[name]

    def __contains__(self, name: object) -> bool:
        """Whether there are such numbers, or probabilities."""
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

    def draw(self, names: Sequence[str], drawn: Resampling) -> dict[str, MetricDraws]:
        """The means by their names."""
        return {name: MetricDraws.of(rows) for name, rows in zip(names, self.means(names, drawn).T, strict=True)}

    def of_examples(self, chosen: Sequence[int]) -> Positions:
        """The positions of some of the examples, without probabilities and labels."""
        number = torch.full((self.examples,), -1, device="cpu")
        number[list(chosen)] = torch.arange(len(chosen), device="cpu")
        owner = number[self.owner]
        kept = owner >= 0
        values = {name: numbers[kept] for name, numbers in self.values.items()}
        return Positions(owner=owner[kept], values=values, examples=len(chosen))

    @staticmethod
    def join(batches: Sequence[Positions]) -> Positions:
        """Batches one after the other; probabilities and labels where all batches have them."""
        starts = [0]
        for batch in batches:
            starts.append(starts[-1] + batch.examples)
        probs = [batch.probs for batch in batches if batch.probs is not None]
        labels = [batch.labels for batch in batches if batch.labels is not None]
        complete = len(probs) == len(labels) == len(batches)
        return Positions(
            owner=torch.cat([batch.owner + start for batch, start in zip(batches, starts, strict=False)]),
            examples=starts[-1],
            values={name: torch.cat([batch[name] for batch in batches]) for name in batches[0].values},
            probs=torch.cat(probs) if complete else None,
            labels=torch.cat(labels) if complete else None,
        )
