"""The loss that a network computes itself from labels, beside the energy under the likelihood.

Networks of some libraries return a `loss` where they are given `labels`. It tells what the network was trained on:
whether labels are shifted by one position, and whether the likelihood is the right one.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..messages.warnings import FitWarning, warn
from ..network.buffers import restore_buffers
from ..network.calling import output_in, run
from ..network.isolation import isolated
from ..network.nests import Inputs, map_tensors, take, tensors
from .bernoulli import Bernoulli
from .categorical import Categorical
from .contract import Likelihood
from .gaussian import Gaussian
from .labelled import Labelled

EXAMPLES = 4  # of the first batch, on which losses are compared
NEARER = 10.0  # times: a loss so much nearer than another is the network's, though both are near
NOTED = "problem_type"  # what the loss of a text classifier writes into its settings
CAUSAL = ("ForCausalLM", "LMHeadModel")  # ends of the names of classes that predict the next token
FURTHER = ("aux_loss", "z_loss", "router_aux_loss", "encoder_z_loss", "decoder_z_loss")  # terms that no label is in


@dataclass(frozen=True)
class OwnLoss:
    """What a network said of a few examples."""

    value: float
    f: Tensor  # (N, ...), the outputs
    y: Tensor  # (N, ...), the labels
    inputs: Inputs

    def is_near(self, value: float) -> bool:
        """Whether another loss is the same but for rounding: that of the outputs' dtype."""
        return abs(value - self.value) <= (1e-3 if self.f.dtype.itemsize > 2 else 3e-2) * max(abs(self.value), 1e-2)

    def has_next_tokens(self, likelihood: Likelihood) -> bool:
        """Whether the label of every position is the input at the next one, and not that at its own."""
        if not isinstance(likelihood, Categorical) or self.y.dim() != 2 or self.y.shape[1] < 2:
            return False
        labels, ignored = self.y[:, :-1], likelihood.ignore_index  # nobody knows what follows the last token
        same = map_tensors(lambda each: each[:, :-1] if each.dim() > 1 else each, self.inputs)
        following = map_tensors(lambda each: each[:, 1:] if each.dim() > 1 else each, self.inputs)
        return are_inputs(labels, following, ignored) and not are_inputs(labels, same, ignored)

    def nearest(self, likelihood: Likelihood) -> float:
        """The mean or sum of energies under a likelihood that is nearest to the network's own loss."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on class axes: the fit says it
            values = [value for version in versions(likelihood) for value in averages(version, self.f, self.y)]
        values = [value for value in values if math.isfinite(value)]
        return min(values, key=lambda value: abs(value - self.value), default=math.inf)


def like_own_loss(model: nn.Module, likelihood: Likelihood, first: Callable[[], tuple[Inputs, Tensor]]) -> Likelihood:
    """The likelihood, with labels shifted where the network's own loss shifts them; warns where losses differ.

    `first` returns the first batch, which is asked for where the network may have a loss.
    """
    if type(likelihood) not in (Categorical, Bernoulli, Gaussian) or not takes_labels(model):
        return likelihood
    loss = own_loss(model, *first())
    if loss is None:
        return likelihood
    try:
        chosen = with_shift(likelihood, loss, predicts_next(model))
        energy = loss.nearest(chosen)
    except Exception:  # outputs and labels that do not fit: the fit itself says so
        return likelihood
    # Labels that are the next tokens already: the network's own loss would shift them once more.
    twice = getattr(chosen, "shift", None) is False and energy < loss.value and loss.has_next_tokens(chosen)
    if not loss.is_near(energy) and not twice:
        warn(
            f"The network's own loss on its first examples is {loss.value:.4g}, and the mean energy under "
            f"{type(likelihood).__name__} is {energy:.4g}; expected the same. The posterior belongs to the energy: "
            "check that the likelihood and its options are those of the training, and that labels stand where it "
            "expects them. pw.Custom takes any other loss.",
            FitWarning,
        )
    return chosen


def with_shift(likelihood: Likelihood, loss: OwnLoss, causal: bool) -> Likelihood:
    """The likelihood with labels shifted or not, whichever gives the network's own loss; itself where none can be.

    Where both are near, as with outputs that are all alike, it is the much nearer one; else `causal` says it.
    """
    shiftable = loss.f.dim() == 3 and loss.y.dim() == 2 and loss.y.shape[1] > 1 and not loss.y.is_floating_point()
    if not isinstance(likelihood, Categorical) or likelihood.shift is not None or not shiftable:
        return likelihood
    plain, shifted = (replace(likelihood, shift=shift) for shift in (False, True))
    if loss.has_next_tokens(likelihood):
        return plain
    rounding = 4 * torch.finfo(loss.f.dtype).eps * abs(loss.value)
    distances = [max(abs(loss.nearest(each) - loss.value), rounding) for each in (plain, shifted)]
    alike = all(loss.is_near(loss.value + distance) for distance in distances)
    if alike and NEARER * min(distances) >= max(distances):
        if not are_inputs(loss.y, loss.inputs, likelihood.ignore_index):
            return plain
        return shifted if causal else likelihood  # of which the fit warns
    return shifted if distances[1] < distances[0] else plain


def predicts_next(model: nn.Module) -> bool:
    """Whether the network, or one inside it, is of a class of causal language models by its name."""
    return any(type(module).__name__.endswith(CAUSAL) for module in model.modules())


@contextmanager
def keeping_problem_types(model: nn.Module) -> Iterator[None]:
    """Restore what a loss of `transformers` writes into the network's settings."""
    settings = {id(each): each for module in model.modules() if hasattr(each := getattr(module, "config", None), NOTED)}
    before = [(each, getattr(each, NOTED)) for each in settings.values()]
    try:
        yield
    finally:
        for each, value in before:
            if getattr(each, NOTED) is not value:
                setattr(each, NOTED, value)


def takes_labels(model: nn.Module) -> bool:
    """Whether a forward takes `labels`: the network's own, or that of a module inside one that passes all on."""
    parameters = inspect.signature(model.forward).parameters
    if "labels" in parameters:
        return True
    if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values()):
        return False
    kinds = {type(module) for module in model.modules()}
    return any("labels" in inspect.signature(kind.forward).parameters for kind in kinds)


def own_loss(model: nn.Module, inputs: Inputs, targets: Tensor) -> OwnLoss | None:
    """The loss of the first examples; None where the network has none, or it has further terms."""
    some = slice(0, EXAMPLES)
    inputs, targets = take(inputs, some), targets[some]
    try:
        with isolated(model, []), keeping_problem_types(model), torch.no_grad():
            result = run(partial(model, labels=targets.clone()), inputs)
            restore_buffers(model)
        loss, output = entry(result, "loss"), output_in(result)
    except Exception:  # it does not take these labels: the fit goes without its loss
        return None
    further = any(entry(result, name) is not None for name in FURTHER)
    if further or not isinstance(loss, Tensor) or loss.numel() != 1 or not bool(torch.isfinite(loss).all()):
        return None
    return OwnLoss(float(loss), output.detach(), targets, inputs)


def entry(result: Any, name: str) -> Any:
    """An entry of what a network returned, by key or attribute."""
    return result.get(name) if isinstance(result, Mapping) else getattr(result, name, None)


def versions(likelihood: Likelihood) -> list[Likelihood]:
    """The likelihood as it is, and without what losses of networks seldom have: weights, smoothing, ratios of noise."""
    if isinstance(likelihood, Categorical):
        return [likelihood, replace(likelihood, weight=None, label_smoothing=0.0)]
    return [Gaussian()] if isinstance(likelihood, Gaussian) else [likelihood]


def averages(likelihood: Likelihood, f: Tensor, y: Tensor) -> list[float]:
    """The energy per label, per weight of a label, per example and summed; that of numbers is half of a square."""
    labels = Labelled.of(likelihood, f, y).check(numbered=False)
    total = float(labels.energy(labels.flat(f)).double().sum())
    counts = [float(labels.likelihood.scalars(labels.y)), float(len(f)), 1.0]
    if isinstance(likelihood, Categorical) and likelihood.weight is not None and not labels.y.is_floating_point():
        counts.append(float(likelihood.weight.to(y.device)[labels.y[likelihood.known(labels.y)]].double().sum()))
    factors = (1.0, 2.0) if isinstance(likelihood, Gaussian) else (1.0,)
    return [factor * total / count for count in counts if count for factor in factors]


def are_inputs(y: Tensor, inputs: Inputs, ignore_index: int) -> bool:
    """Whether labels (N, T) are one of the inputs wherever there is a label; some are, in every second example."""
    known = y != ignore_index
    if 2 * int(known.any(1).sum()) < len(y) or int(known.sum()) < 2 * int(known.any(1).sum()):
        return False
    same = [each for each in tensors(inputs) if each.shape == y.shape and not each.is_floating_point()]
    return any(bool((each[known] == y[known]).all()) for each in same)


def warn_of_copied_labels(likelihood: Likelihood, inputs: Inputs, labels: Labelled) -> None:
    """Warn where the labels of tokens are the tokens themselves, and nobody said whether they are shifted."""
    if not isinstance(likelihood, Categorical) or likelihood.shift is not None or labels.y.is_floating_point():
        return
    y = labels.y.reshape(len(labels.y), -1)
    if y.shape[1] > 1 and are_inputs(y, inputs, likelihood.ignore_index):
        warn(
            "The labels are the inputs themselves, and every output is scored by the token at its own position. If the "
            "network predicts the next token, as causal language models do, fit with pw.Categorical(shift=True); "
            "shift=False says that the labels are meant so.",
            FitWarning,
        )
