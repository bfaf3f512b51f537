"""From predictions and targets to numbers of every labelled position, whichever way the predictions were made."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, distributions

from ..likelihoods import Labelled, Likelihood
from ..messages.errors import ArgumentTypeError, PeewitError
from ..metrics.columns import Columns
from ..metrics.regression import crps_mixture, crps_samples, normal_cdf
from ..predictions.labels import Binary, Classes
from ..predictions.numbers import Mixture, Numbers, Outputs, Regression
from ..predictions.outputs import Samples
from ..predictions.prediction import Prediction

DRAWS = 1000  # of observations, for the CRPS of what has no closed form
SEED = 0x1A9
MANY_CLASSES = 4096  # beyond which averages over thousands of outputs, as mutual information needs them, take too long
HARD = "expected {0}, which is what accuracy and calibration are counted of."


@dataclass(frozen=True)
class Part:
    """P labelled positions of one batch, on the CPU."""

    owner: Tensor  # (P,)
    values: dict[str, Tensor]
    examples: int
    probs: Tensor | None = None
    labels: Tensor | None = None

    def some(self, chosen: Sequence[int]) -> Part:
        """Of some of the examples, without what curves do not show."""
        number = torch.full((self.examples,), -1, device="cpu")
        number[list(chosen)] = torch.arange(len(chosen), device="cpu")
        owner = number[self.owner]
        kept = owner >= 0
        return Part(owner[kept], {name: each[kept] for name, each in self.values.items()}, len(chosen))


def joined(parts: Sequence[Part]) -> Columns:
    """Batches one after the other."""
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + part.examples)
    owner = torch.cat([part.owner + start for part, start in zip(parts, starts, strict=False)])
    values = {name: torch.cat([part.values[name] for part in parts]) for name in parts[0].values}
    probs = [part.probs for part in parts if part.probs is not None]
    labels = [part.labels for part in parts if part.labels is not None]
    whole = len(probs) == len(labels) == len(parts)  # probabilities of too many classes are forgotten on the way
    return Columns(owner, starts[-1], values, *((torch.cat(probs), torch.cat(labels)) if whole else (None, None)))


def flat_targets(prediction: Prediction, y: Tensor) -> Tensor:
    """(N, T) or (N, T, K): targets as the likelihood has them; refuses those that do not fit the outputs."""
    form = prediction.belief.form
    outputs = torch.empty(len(prediction), *form.shape, device="meta")
    return Labelled.of(prediction.likelihood, outputs, y, form).checked(numbered=False).y


class Answer(ABC):
    """What one method predicts for the inputs of a batch."""

    task: str

    @abstractmethod
    def part(self, y: Tensor, full: bool = True) -> Part:
        """The numbers of all labelled positions; not `full`: those of curves against the strength of a shift."""

    @abstractmethod
    def scores(self, y: Tensor | None = None) -> dict[str, Tensor]:
        """(N,) each: how sure each input's prediction is, averaged over its (labelled) positions."""


def _averaged(values: Tensor, known: Tensor | None) -> Tensor:
    """(N, T), where known -> (N,); over all positions where none is."""
    if known is None:
        return values.mean(1)
    weight = torch.where(known.any(1, keepdim=True), known, True).to(values.dtype)
    return (values * weight).sum(1) / weight.sum(1)


@dataclass(frozen=True, eq=False)
class Labels(Answer):
    """Class probabilities; yes-or-no labels are two classes each."""

    prediction: Classes | Binary
    task = "classification"

    @property
    def log_probs(self) -> Tensor:
        """(N, T, C) in the network's precision."""
        own = self.prediction._log_probs
        return own if isinstance(self.prediction, Classes) else own.movedim(0, -1).flatten(1, 2)

    def labels(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """(N, T) class numbers, and which of them are known."""
        prediction = self.prediction
        flat = flat_targets(prediction, y.to(self.device))
        if isinstance(prediction, Classes):
            if flat.is_floating_point():
                raise ArgumentTypeError(f"Targets are class probabilities; {HARD.format('class numbers')}")
            return flat, prediction.likelihood.labelled(flat)
        known = prediction.likelihood.known(flat)
        if bool((known & (flat != 0) & (flat != 1)).any()):
            raise PeewitError(f"Targets lie between 0 and 1; {HARD.format('0 or 1')}")
        return flat.long().flatten(1), known.flatten(1)

    @property
    def device(self) -> torch.device:
        """Of the probabilities."""
        return self.prediction.belief.mean.device

    def known(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(P, C) log probabilities, (P,) labels and (P,) examples of the labelled positions."""
        labels, known = self.labels(y)
        return self.log_probs[known], labels[known], known.nonzero()[:, 0]

    def part(self, y: Tensor, full: bool = True) -> Part:
        """Whether right, the negative log probability, confidence, entropy, and the squared distance."""
        own, labels, owner = self.known(y)
        wide = own.double()
        probs = wide.exp()
        confidence, predicted = probs.max(-1)
        values = {
            "correct": (predicted == labels).double(),
            "nll": -wide.gather(-1, labels[:, None])[:, 0],
            "confidence": confidence,
            "entropy": torch.special.entr(probs).sum(-1),
        }
        if full:
            values["brier"] = probs.scatter_add(-1, labels[:, None], torch.full_like(probs[:, :1], -1)).square().sum(-1)
        values = {name: each.cpu() for name, each in values.items()}
        if not full:
            return Part(owner.cpu(), values, len(self.prediction))
        kept = (probs if own.dtype == torch.float64 else probs.float()).cpu()
        return Part(owner.cpu(), values, len(self.prediction), kept, labels.cpu())

    def scores(self, y: Tensor | None = None) -> dict[str, Tensor]:
        """Confidence and entropy; with uncertain weights mutual information and the variance of the outputs."""
        probs = self.log_probs.double().exp()
        made = {"confidence": probs.amax(-1), "entropy": torch.special.entr(probs).sum(-1)}
        belief = self.prediction.belief
        if not isinstance(belief, Samples) or belief.number > 1:
            if probs.shape[-1] <= MANY_CLASSES:
                total, expected = self.prediction._entropies.double()
                made["mutual_information"] = (total - expected).clamp(min=0).flatten(1)
            variance = belief.variance.double()
            own = variance.mean(-1) if isinstance(self.prediction, Classes) else variance.flatten(1)
            made["epistemic_variance"] = own
        known = None if y is None else self.labels(y)[1]
        return {name: _averaged(each, known).cpu() for name, each in made.items()}


@dataclass(frozen=True, eq=False)
class Numeric(Answer, ABC):
    """Numbers with a mean and a variance; abstract."""

    prediction: Numbers
    task = "regression"

    @abstractmethod
    def moments(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """(N, T, K) each in float64: mean, variance, and the part of it from not knowing the weights."""

    @abstractmethod
    def nll(self, y: Tensor, flat: Tensor) -> Tensor:
        """(N,): the outputs of a place together, places summed."""

    def shape(self, flat: Tensor, y: Tensor) -> dict[str, Tensor]:
        """(N, T, K) each: CRPS and PIT, where there are such."""
        return {}

    def part(self, y: Tensor, full: bool = True) -> Part:
        """Squared error, negative log density, standard deviation; and with `full` CRPS and PIT."""
        prediction = self.prediction
        y = y.to(prediction.belief.mean.device)
        flat = flat_targets(prediction, y)
        mean, variance, _ = self.moments()
        nll = self.nll(y, flat).double() / mean.shape[1]
        values = {"nll": nll[:, None, None].expand_as(mean)}
        if flat.shape == mean.shape:
            values["squared"] = (flat.double() - mean).square()
        values |= {"deviation": variance.sqrt(), "mean": mean}
        if full:
            values |= self.shape(flat.double(), y)
        owner = torch.arange(len(mean), device=mean.device).repeat_interleave(mean[0].numel())
        return Part(owner.cpu(), {name: each.flatten().cpu() for name, each in values.items()}, len(prediction))

    def scores(self, y: Tensor | None = None) -> dict[str, Tensor]:
        """The variance, and its part from not knowing the weights, averaged over outputs."""
        _, variance, epistemic = self.moments()
        made = {"variance": variance}
        if epistemic is not None:
            made["epistemic_variance"] = epistemic
        return {name: each.flatten(1).mean(1).cpu() for name, each in made.items()}


@dataclass(frozen=True, eq=False)
class Gaussians(Numeric):
    """S equally likely Gaussians, one for a closed form."""

    means: Tensor  # (S, N, T, K)
    deviations: Tensor

    def moments(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """By the law of total variance."""
        mean = self.means.mean(0)
        if isinstance(self.prediction, Regression):
            return mean, self.deviations[0].square(), self.prediction._moments.epistemic.double()
        between = (self.means - mean).square().mean(0)
        return mean, between + self.deviations.square().mean(0), between if len(self.means) > 1 else None

    def nll(self, y: Tensor, flat: Tensor) -> Tensor:
        """The closed form knows how outputs go together."""
        if isinstance(self.prediction, Regression):
            return -self.prediction.log_prob(y)
        each = distributions.Normal(self.means, self.deviations, validate_args=False).log_prob(flat.double()).sum(-1)
        made: Tensor = -(each.logsumexp(0) - math.log(len(each))).sum(-1)
        return made

    def shape(self, flat: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Both in closed form."""
        pit = normal_cdf((flat - self.means) / self.deviations).mean(0)
        return {"crps": crps_mixture(self.means, self.deviations, flat), "pit": pit}


@dataclass(frozen=True, eq=False)
class Mixed(Numeric):
    """A mixture over all outputs that a posterior holds possible."""

    def moments(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The prediction's own."""
        mean, epistemic, aleatoric = (each.double() for each in self.prediction._moments)
        return mean, epistemic + aleatoric, epistemic

    def nll(self, y: Tensor, flat: Tensor) -> Tensor:
        """The prediction's own."""
        return -self.prediction.log_prob(y)

    def shape(self, flat: Tensor, y: Tensor) -> dict[str, Tensor]:
        """PIT by the mixture's distribution function, CRPS from draws."""
        prediction = self.prediction
        assert isinstance(prediction, Mixture)
        rows = flat.flatten(0, 1)

        def below(f: Tensor, weight: Tensor, chosen: slice) -> Tensor:
            return prediction._given(f.double(), weight.double()).below(rows[chosen])

        pit = prediction.belief.gathered(below, prediction.elementwise)
        generator = torch.Generator("cpu").manual_seed(SEED)
        drawn = prediction.sample(DRAWS, generator).double().reshape(DRAWS, *y.shape)
        crps = crps_samples(drawn, y.double())
        own = prediction.likelihood.targets(crps, prediction.belief.form)
        return {"crps": own, "pit": pit.reshape(flat.shape)}


@dataclass(frozen=True, eq=False)
class Other(Mixed):
    """Likelihoods whose predictions have a density and moments, and no more that is measured here."""

    def shape(self, flat: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Nothing."""
        return {}


def gaussians(prediction: Regression | Mixture, stretch: float) -> Answer:
    """Of numbers with Gaussian noise, whose standard deviations are multiplied by `stretch`."""
    if isinstance(prediction, Regression):
        mean, epistemic, aleatoric = (each.double() for each in prediction._moments)
        return Gaussians(prediction, mean[None], (epistemic + aleatoric).sqrt()[None])
    if not isinstance(prediction.belief, Samples):
        return Mixed(prediction)
    given = prediction.likelihood.distribution(prediction.belief.values.double())
    assert isinstance(given, distributions.Normal)
    return Gaussians(prediction, given.loc, given.scale * stretch)


def others(prediction: Mixture | Outputs, stretch: float) -> Answer:
    """Of numbers that a likelihood has its own distribution of."""
    if isinstance(prediction, Outputs):
        raise PeewitError(
            f"{type(prediction.likelihood).__name__} does not say how targets are distributed, so that its predictions "
            "have no metrics; expected a likelihood with a distribution."
        )
    return Other(prediction)


ANSWERS: dict[str, Callable[[Any, float], Answer]] = {  # by the names of `predictions.families`
    "categorical": lambda prediction, _: Labels(prediction),
    "bernoulli": lambda prediction, _: Labels(prediction),
    "gaussian": gaussians,
    "heteroscedastic": gaussians,
    "poisson": others,
    "other": others,
}


def answer(prediction: Prediction, stretch: float = 1.0) -> Answer:
    """Of a prediction; `stretch` multiplies the standard deviations of numbers."""
    return ANSWERS[prediction.likelihood.link_family](prediction, stretch)


def tempered(likelihood: Likelihood) -> bool:
    """Whether a temperature can be chosen: of the logits of classes, or of the variances of Gaussian noise."""
    return ANSWERS[likelihood.link_family] is not others
