"""Inputs changed on purpose so that the plain network errs: by the sign of its loss' gradient, in one or ten steps."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..likelihoods import Form, Labelled, Likelihood
from ..messages.errors import PeewitError
from ..network.buffers import restore_buffers
from ..network.calling import call
from ..network.isolation import isolated
from .corruptions import InputRange

EPSILONS = (1 / 255, 2 / 255, 4 / 255, 8 / 255, 16 / 255)
STEPS = 10
STRIDE = 2.5  # all steps together reach this many times as far as the limit
ATTACKS = ("fgsm", "pgd")


@dataclass(frozen=True, eq=False)
class Attack:
    """On the plain network's loss; epsilons are shares of the inputs' range."""

    model: nn.Module
    likelihood: Likelihood
    form: Form
    limits: InputRange

    def gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """The gradient of the loss of all labels in the inputs."""
        with isolated(self.model, []), torch.enable_grad():
            variable = x.detach().clone().requires_grad_()
            f = call(self.model, variable)
            labels = Labelled.of(self.likelihood, f, y, self.form).check(numbered=False)
            energy = labels.energy(labels.flat(f)).sum()
            gradient = torch.autograd.grad(energy, variable, allow_unused=True)[0] if energy.requires_grad else None
            restore_buffers(self.model)
        if gradient is None:
            raise PeewitError("attacks: the network's loss has no gradient in its inputs; expected one that has.")
        return gradient

    def fgsm(self, x: Tensor, y: Tensor, epsilons: tuple[float, ...]) -> Iterator[tuple[float, Tensor]]:
        """One step along the sign of the gradient (Goodfellow and others, 2015)."""
        sign = self.gradient(x, y).sign()
        for epsilon in epsilons:
            yield epsilon, self.limits.clip(x + epsilon * self.limits.span * sign)

    def pgd(self, x: Tensor, y: Tensor, epsilons: tuple[float, ...]) -> Iterator[tuple[float, Tensor]]:
        """Ten smaller steps, each brought back to within epsilon of the input (Madry and others, 2018)."""
        for epsilon in epsilons:
            reach = epsilon * self.limits.span
            moved = x
            for _ in range(STEPS):
                moved = moved + STRIDE * reach / STEPS * self.gradient(moved, y).sign()
                moved = self.limits.clip(torch.minimum(torch.maximum(moved, x - reach), x + reach))
            yield epsilon, moved
