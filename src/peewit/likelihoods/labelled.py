"""A batch under a likelihood: targets in its form, outputs beside them, and which example is wrong."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..messages.errors import PeewitError
from ..network.finite import InExample
from .contract import Likelihood
from .form import Form, hold_one_each


@dataclass(frozen=True)
class Labelled:
    """Targets of a batch in the form of its likelihood, which knows the outputs' shape."""

    likelihood: Likelihood
    form: Form
    y: Tensor  # (N, T) or (N, T, ...)

    @staticmethod
    def of(likelihood: Likelihood, f: Tensor, targets: Tensor, like: Form | None = None) -> Labelled:
        """From outputs (N, ...), of which only the shape matters, and targets (N, ...), which are not yet checked."""
        targets = likelihood.prepare(f, targets)
        form = likelihood.form(f, targets, like)
        bound = likelihood.bind(form)
        if not form.whole and hold_one_each(f, targets):
            targets = targets.reshape(f.shape)
        return Labelled(bound, form, bound.targets(targets, form))

    def some(self, chosen: slice) -> Labelled:
        """The labels of some of the examples."""
        return replace(self, y=self.y[chosen])

    def valid(self) -> Tensor:
        """() boolean, on its way from the device."""
        return self.likelihood.valid(self.y, self.form)

    def wrong(self) -> InExample:
        """The first target that is not valid."""
        first = next(number for number in range(len(self.y)) if not bool(self.some(slice(number, number + 1)).valid()))
        return InExample(first, self.likelihood.complaint(self.y, self.form))

    def check(self, numbered: bool = True) -> Labelled:
        """The same, once an answer has come; raises where a target is wrong, with the example's number or without."""
        if not bool(self.valid()):
            raise self.wrong() if numbered else PeewitError(self.likelihood.complaint(self.y, self.form))
        return self

    def flat(self, f: Tensor) -> Tensor:
        """Outputs (N, ...) -> (N, T, C), in float32 at least: sums and exponentials overflow in lower precision."""
        return self.form.flatten(f).to(torch.promote_types(f.dtype, torch.float32))

    def energy(self, f: Tensor) -> Tensor:
        """(N,), at outputs (N, T, C)."""
        return self.likelihood.energy(f, self.y)
