"""The loss that training minimises, beside the energy under the likelihood: a multiple of it, or another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from typing import TypeAlias

import torch
from torch import Tensor, nn

from ..likelihoods import Labelled, Likelihood, WithNoise
from ..messages.errors import ArgumentTypeError, NotFiniteError, PeewitError
from ..messages.warnings import FitWarning, warn
from ..network.calling import call
from ..network.isolation import isolated
from ..network.nests import Inputs

TrainingLoss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""A loss of outputs and targets, as training minimises it."""
# Of the gradients' difference, some times what rounding leaves. Where all logits are near zero, as at the beginning of
# training, the gradient of smoothed labels differs from a multiple of that of plain ones by no more than these logits.
SLACK = {torch.float64: 1e-10, torch.float32: 1e-5}
COARSE = 0.05  # the same in less precision, where outputs are rounded to three digits
BATCHES = 8  # of which the factor is the mean
VARIES = 0.02  # the share by which it may, without a word
APART = 3.0  # how far from the network's own outputs losses are compared once more


def mean_energy(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> Tensor:
    """(): the mean over examples of the energy under the likelihood, in float32 at least.

    Targets are not checked: a GPU would be waited for in every step.
    """
    labels = Labelled.of(likelihood, outputs, targets)
    return labels.energy(labels.flat(outputs)).mean()


def loss_factor(
    model: nn.Module,
    likelihood: Likelihood,
    batches: Iterable[tuple[Inputs, Tensor]],
    loss: TrainingLoss | float | None,
) -> float:
    """The factor c of `loss = c * mean energy per example`: the mean over a few batches; warns if it varies."""
    number = check_loss(loss)
    factors = []
    for inputs, targets in itertools.islice(batches, BATCHES):
        with isolated(model, []), torch.no_grad():
            outputs = call(model, likelihood.check_inputs(inputs)).detach()
        Labelled.of(likelihood, outputs, targets).check(numbered=False)
        if number is not None or not callable(loss):
            return 1.0 if number is None else number
        factors.append(factor_at(loss, likelihood, outputs, targets))
        if len(factors) == 1:
            refuse_other_losses(loss, likelihood, outputs, targets, factors[0])
    if max(factors) > (1 + VARIES) * min(factors):
        warn(
            f"The loss is {min(factors):.3g} to {max(factors):.3g} times the mean energy per example over the first "
            f"{len(factors)} batches: it averages over labels, and batches have different numbers of them. The prior "
            "counts by their mean; minimise learner.loss(outputs, targets) for one factor.",
            FitWarning,
        )
    return sum(factors) / len(factors)


def check_loss(loss: TrainingLoss | float | None) -> float | None:
    """The factor where it was given as a number; what is neither a number nor a function is refused."""
    if isinstance(loss, int | float) and not isinstance(loss, bool):
        if not 0 < loss < math.inf:
            raise PeewitError(f"loss={loss!r} was given; expected a function, or a positive factor of the mean energy.")
        return float(loss)
    if loss is not None and not callable(loss):
        raise ArgumentTypeError(
            f"loss is a {type(loss).__name__}; expected a function of outputs and targets, such as "
            "torch.nn.CrossEntropyLoss(), a positive factor of the mean energy per example, or None."
        )
    return None


def factor_at(loss: TrainingLoss, likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> float:
    """The factor from gradients at some outputs: they leave constants out, and tell a loss of another kind."""
    theirs = gradient(lambda f: called(loss, f, targets), outputs)
    ours = gradient(lambda f: mean_energy(likelihood, f, targets), outputs)
    return factor_between(theirs, ours, likelihood, len(targets), outputs.dtype)


def refuse_other_losses(
    loss: TrainingLoss, likelihood: Likelihood, outputs: Tensor, targets: Tensor, factor: float
) -> None:
    """Refuse losses that agree at the network's own outputs alone, and sums over the batch."""
    drawn = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    far = outputs.to(torch.promote_types(outputs.dtype, torch.float32)) + APART * drawn.to(outputs.device)
    factor_at(loss, likelihood, far.to(torch.promote_types(outputs.dtype, torch.float32)), targets)
    half = len(targets) // 2
    if half and 2 * half == len(targets):
        part = factor_at(loss, likelihood, outputs[:half], targets[:half])
        if abs(part / factor - 0.5) < 1e-3:
            raise PeewitError(
                "The loss is a sum over the batch, so that the prior's part in it depends on the batch's size; average "
                "over the batch, as reduction='mean' does, or give the factor as a number: loss=batch size for a sum "
                "of energies."
            )


def called(loss: TrainingLoss, outputs: Tensor, targets: Tensor) -> Tensor:
    """The value of a user's loss; its own exceptions say which line of training fails."""
    value = loss(outputs, targets)
    if not isinstance(value, Tensor) or value.numel() != 1:
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise ArgumentTypeError(f"The loss returned {what}; expected one number, the mean over the batch.")
    return value


def gradient(function: Callable[[Tensor], Tensor], outputs: Tensor) -> Tensor:
    """The gradient of a number in the outputs, in float64."""
    with torch.enable_grad():
        f = outputs.clone().requires_grad_()
        (slope,) = torch.autograd.grad(function(f), f, allow_unused=True)
    return torch.zeros_like(outputs).double() if slope is None else slope.double()


def factor_between(theirs: Tensor, ours: Tensor, likelihood: Likelihood, examples: int, dtype: torch.dtype) -> float:
    """The factor that makes both gradients the same, up to the rounding of a dtype; refused if there is none."""
    factor = float((theirs * ours).sum() / ours.square().sum())
    if not bool(torch.isfinite(theirs).all()):
        raise NotFiniteError("The loss has a gradient of NaN or Inf on the first batch; expected a finite loss.")
    size = float(theirs.norm())
    apart = float((theirs - factor * ours).norm()) / max(size, 1e-300) if math.isfinite(factor) else math.inf
    if size == 0 or apart > SLACK.get(dtype, COARSE) or factor <= 0:
        raise PeewitError(
            f"The loss is not a multiple of the energy under {type(likelihood).__name__}: on the first batch of "
            f"{examples} examples, its gradient at the outputs differs from every multiple by {min(apart, 9.99):.1%}. "
            "Give the likelihood that the loss belongs to (class weights, label smoothing, ignored labels and a noise "
            "per output too), or minimise learner.loss(outputs, targets) and leave loss= out."
        )
    return factor


def noise_precision_of(likelihood: Likelihood) -> float:
    """One over the squared noise; 1 for a likelihood without."""
    return float(likelihood.noise_precision) if isinstance(likelihood, WithNoise) else 1.0
