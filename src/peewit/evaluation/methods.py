"""Ways to predict: a posterior, the plain network, temperature scaling, a deep ensemble and MC dropout."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from ..likelihoods import Form, Likelihood
from ..messages.errors import ArgumentTypeError, NotFiniteError, PeewitError
from ..network.batches import Batches
from ..network.buffers import restore_buffers
from ..network.calling import call
from ..network.isolation import isolated
from ..network.modules import device_of, unwrap
from ..network.nests import Inputs
from ..predictions import options
from ..predictions.families import family_of, make_prediction
from ..predictions.outputs import Samples
from ..runtime.memory import Budget
from ..runtime.progress import Progress
from .describing import posterior_in_words
from .scorers import ClassScorer, GaussianScorer, Scorer, scorer_of

if TYPE_CHECKING:
    from ..laplace import Laplace

DROPOUT_SAMPLES = 32
TEMPERATURES = (0.25, 20.0)  # of classes: few validation labels, all of them right, would take one next to zero
QUIETEST = 1e-6  # the least factor of the noise's variance
HALVINGS = 60


class Method(Protocol):
    """One way to predict, with a name and a plain sentence about it."""

    @property
    def name(self) -> str:
        """For tables."""
        ...

    @property
    def description(self) -> str:
        """What the method does, in words."""
        ...

    def predict(self, inputs: Inputs) -> Scorer:
        """For the inputs of a batch."""
        ...


@dataclass(frozen=True, eq=False)
class Posterior:
    """A fitted posterior."""

    la: Laplace
    options: Mapping[str, Any]
    name: str = "Laplace"

    @property
    def description(self) -> str:
        """What was fitted to what, and how it was tuned."""
        return f"predictions averaged over a posterior: {posterior_in_words(self.la)}"

    def predict(self, inputs: Inputs) -> Scorer:
        """The prediction of the posterior."""
        return scorer_of(self.la.predict(inputs, **self.options))


@dataclass(frozen=True, eq=False, kw_only=True)
class Networks:
    """Networks as they are, all of one likelihood; several are averaged over."""

    name: str
    description: str
    models: tuple[nn.Module, ...]
    likelihood: Likelihood
    form: Form
    budget: Budget
    temperature: float = 1.0  # what logits are divided by; of numbers, what variances are multiplied by
    dropout: int = 0  # forward passes with dropout switched on, instead of one without
    seed: int = 0

    def outputs(self, inputs: Inputs) -> Tensor:
        """(S, N, ...)."""
        outputs = [output for model in self.models for output in self._passes(model, inputs)]
        shapes = list(dict.fromkeys(tuple(output.shape) for output in outputs))
        if len(shapes) > 1:
            raise PeewitError(f"{self.name}: its networks return {shapes[0]} and {shapes[1]}; expected one shape.")
        return torch.stack(outputs)

    def _passes(self, model: nn.Module, inputs: Inputs) -> list[Tensor]:
        outputs = []
        with isolated(model, []), torch.no_grad():
            if self.dropout:
                for module in dropouts(model):
                    module.__dict__["training"] = True  # `isolated` puts every module back
                _seed_generators(self.seed, next(model.parameters()).device)
            for _ in range(max(1, self.dropout)):
                outputs.append(call(model, inputs).detach())
                restore_buffers(model)
        return outputs

    def predict(self, inputs: Inputs) -> Scorer:
        """The average of the predictions."""
        values = self.outputs(inputs)
        form = replace(self.form, shape=tuple(values.shape[2:]))
        if len(form.shape) != len(self.form.shape) or form.outputs != self.form.outputs:
            raise PeewitError(
                f"{self.name}: outputs of shape (N, {', '.join(map(str, form.shape))}) were returned; expected "
                f"{self.form.outputs} outputs as in (N, {', '.join(map(str, self.form.shape))})."
            )
        if not bool(torch.isfinite(values).all()):
            raise NotFiniteError(f"{self.name}: the network's outputs hold NaN or Inf; expected finite numbers.")
        flat = replace(form, whole=False).flatten(values)
        flat = flat.to(torch.promote_types(flat.dtype, torch.float32))
        classes = family_of(self.likelihood).classes is not None
        scaled = flat / self.temperature if classes else flat
        belief = Samples(replace(form, whole=False), self.budget, scaled)
        question = options.PredictOptions.of(self.likelihood, "sampled")
        prediction = make_prediction(belief, self.likelihood, question.link)
        return scorer_of(prediction, 1.0 if classes else self.temperature**0.5)


def _seed_generators(seed: int, device: torch.device) -> None:
    """Of the CPU and the network's device, both of which `isolated` puts back."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.default_generators[device.index or 0].manual_seed(seed)


def dropouts(model: nn.Module) -> list[nn.Module]:
    """Layers that leave out units at random in training."""
    kind = nn.modules.dropout._DropoutNd
    return [module for module in model.modules() if isinstance(module, kind) and module.p > 0]


def fit_temperature(plain: Networks, batches: Batches, bars: Progress) -> float:
    """What to divide logits by, or multiply variances of the noise by, for the smallest NLL of validation data."""
    logits: list[Tensor] = []
    labels: list[Tensor] = []
    squares: list[Tensor] = []
    for inputs, targets in bars.track(batches, len(batches), batches.name):
        scorer = plain.predict(inputs)
        if isinstance(scorer, ClassScorer):
            log_probs, known, _ = scorer.labelled(targets)
            logits.append(log_probs.double().cpu())
            labels.append(known.cpu())
        elif isinstance(scorer, GaussianScorer):
            positions = scorer.positions(targets, full=False)
            squares.append(positions["squared"] / positions["deviation"].square())
    if squares:
        return max(float(torch.cat(squares).mean()), QUIETEST)
    if not sum(map(len, labels)):
        raise PeewitError("validation has no labelled examples; expected some, for the temperature.")
    return best_temperature(torch.cat(logits), torch.cat(labels))


def best_temperature(logits: Tensor, labels: Tensor) -> float:
    """What to divide logits (P, C) by for the smallest NLL of labels (P,): it is convex, its slope crosses 0 once."""
    observed = logits.gather(-1, labels[:, None])[:, 0].mean()
    low, high = (1 / temperature for temperature in reversed(TEMPERATURES))
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        slope = ((middle * logits).softmax(-1) * logits).nan_to_num(0.0).sum(-1).mean() - observed
        low, high = (low, middle) if bool(slope > 0) else (middle, high)
    return 1 / math.sqrt(low * high)


def members(ensemble: Sequence[nn.Module], device: torch.device) -> tuple[nn.Module, ...]:
    """The networks of an ensemble, checked."""
    if isinstance(ensemble, nn.Module) or not isinstance(ensemble, Sequence):
        raise ArgumentTypeError(f"ensemble is a {type(ensemble).__name__}; expected a list of networks trained apart.")
    if len(ensemble) < 2:
        raise PeewitError(f"ensemble has {len(ensemble)} networks; expected two or more.")
    for number, model in enumerate(ensemble):
        if not isinstance(model, nn.Module):
            raise ArgumentTypeError(f"ensemble[{number}] is a {type(model).__name__}; expected a torch.nn.Module.")
        if device_of(model) != device:
            raise PeewitError(f"ensemble[{number}] is on {device_of(model)} and the network on {device}; expected one.")
    return tuple(unwrap(model) for model in ensemble)
