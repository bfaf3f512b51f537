"""Whether a network fits data at all, by one pass forward: before a posterior is made, or on data of a test."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from .. import likelihoods
from ..curvature.pieces import labelled_outputs
from ..likelihoods import Likelihood, like_own_loss
from ..messages.names import resolve_name
from ..network.batches import Batches
from ..network.finite import Watch
from ..network.isolation import isolated
from .constant import TRAINING, check_fit
from .findings import Finding
from .gradients import NUMBERS, ROWS


def check_outputs(model: nn.Module, data: Any, likelihood: str | Likelihood, where: str = TRAINING) -> Finding | None:
    """The finding "fit" of a diagnosis, from some of the examples; None for data that a pass would use up."""
    batches = Batches(data, model)
    if batches.one_shot:
        return None
    family: Likelihood = resolve_name(likelihood, likelihoods.NAMES, "likelihood", Likelihood)
    family = like_own_loss(model, family, batches.first)
    sample, watch = Sample(), Watch()
    with isolated(model), torch.no_grad():
        for _, output, labels in labelled_outputs(model, watch.count_batches(batches), family, None, watch):
            family = labels.likelihood
            sample.add(labels.flat(output), labels.y)
    return check_fit(family, sample.kept, where)


@dataclass
class Sample:
    """Every example, and then every second, fourth, ... of them, so that outputs (n, T, C) stay few."""

    kept: list[tuple[Tensor, Tensor]] = field(default_factory=list)
    stride: int = 1
    seen: int = 0

    def add(self, f: Tensor, y: Tensor) -> None:
        """A batch: those of its examples whose number is a multiple of the stride."""
        chosen = slice(-self.seen % self.stride, None, self.stride)
        self.seen += len(f)
        self.kept.append((f[chosen].clone(), y[chosen].clone()))
        while self.count > 1 and self.too_many:
            self.halve()

    @property
    def count(self) -> int:
        """Examples that are kept."""
        return sum(len(f) for f, _ in self.kept)

    @property
    def too_many(self) -> bool:
        """Whether positions, or outputs at them, are more than a search for the best constant needs."""
        shapes = [f.shape for f, _ in self.kept]
        return sum(n * t for n, t, _ in shapes) > ROWS or sum(shape.numel() for shape in shapes) > NUMBERS

    def halve(self) -> None:
        """Leave out every second example."""
        thinned, number = [], 0
        for f, y in self.kept:
            chosen = slice(number % 2, None, 2)
            thinned.append((f[chosen].clone(), y[chosen].clone()))
            number += len(f)
        self.kept, self.stride = thinned, 2 * self.stride
