"""Some examples of a data set, held in one order: they are scored by every recipe, and half of them may tune some."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..evaluation.gathering import evenly, pick, share_of
from ..network.batches import Batches
from ..network.nests import Inputs, count

EVERY = "Every recipe passes over the data"


@dataclass(frozen=True, eq=False)
class HeldExamples:
    """Examples in batches, on the CPU; a pass over them is always the same."""

    batches: list[tuple[Inputs, Tensor]]
    whole: bool = True  # whether these are all that the data has

    @staticmethod
    def of(data: Any, most: int, name: str) -> HeldExamples:
        """At most so many, evenly spread where the data can be counted beforehand, else the first."""
        batches = Batches(data, torch.device("cpu"), name)
        batches.refuse_one_shot(EVERY)
        share = share_of(batches, most)
        held: list[tuple[Inputs, Tensor]] = []
        seen, taken = 0, 0
        for inputs, targets in batches:
            number = count(inputs)
            chosen = evenly(seen, number, share)[: most - taken]
            if len(chosen) == number and batches.stored:
                held.append((inputs, targets))
            elif chosen:  # a loader may write its next batch over this one
                held.append((pick(inputs, chosen), targets[chosen]))
            seen, taken = seen + number, taken + len(chosen)
            if taken >= most:
                break
        return HeldExamples(held, whole=taken == seen and taken < most)

    def __len__(self) -> int:
        """N."""
        return sum(len(targets) for _, targets in self.batches)

    def part(self, chosen: Tensor) -> HeldExamples:
        """Those of a mask (N,)."""
        parts: list[tuple[Inputs, Tensor]] = []
        for (inputs, targets), mask in zip(
            self.batches, chosen.split([len(targets) for _, targets in self.batches]), strict=True
        ):
            places = mask.nonzero()[:, 0].tolist()
            if places:
                parts.append((pick(inputs, places), targets[places]))
        return HeldExamples(parts, whole=False)

    def halves(self, seed: int) -> tuple[HeldExamples, HeldExamples]:
        """Two halves at random: examples may stand in an order, by class say."""
        order = torch.randperm(len(self), generator=torch.Generator("cpu").manual_seed(seed), device="cpu")
        first = order < len(self) // 2
        return self.part(first), self.part(~first)
