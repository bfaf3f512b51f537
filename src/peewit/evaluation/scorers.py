"""From a prediction and its targets to numbers of every labelled position, whichever way the prediction was made."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, distributions

from ..likelihoods import Labelled, Likelihood
from ..messages.errors import ArgumentTypeError, PeewitError
from ..metrics.positions import Positions
from ..metrics.regression import crps_mixture, crps_of_draws, normal_cdf
from ..predictions.bare_outputs import Outputs
from ..predictions.binary import Binary
from ..predictions.classes import Classes
from ..predictions.mixture import Mixture
from ..predictions.numbers import Numbers
from ..predictions.outputs import Samples
from ..predictions.prediction import Prediction
from ..predictions.regression import Regression

DRAWS = 1000  # of observations, for the CRPS of what has no closed form
SEED = 0x1A9
MANY_CLASSES = 4096  # beyond which averages over thousands of outputs, as mutual information needs them, take too long
HARD = "expected {0}, which is what accuracy and calibration are counted of."


def flat_targets(prediction: Prediction, y: Tensor) -> Tensor:
    """(N, T) or (N, T, K): targets as the likelihood has them; refuses those that do not fit the outputs."""
    form = prediction.belief.form
    outputs = torch.empty(len(prediction), *form.shape, device="meta")
    return Labelled.of(prediction.likelihood, outputs, y, form).check(numbered=False).y


class Scorer(ABC):
    """A method's prediction for the inputs of a batch, and what it is worth."""

    task: str

    @abstractmethod
    def positions(self, y: Tensor, full: bool = True) -> Positions:
        """The numbers of all labelled positions; without `full`, those alone that curves need."""

    @abstractmethod
    def scores(self, y: Tensor | None = None) -> dict[str, Tensor]:
        """(N,) each: how sure the prediction of each input is, averaged over its (labelled) positions."""

    @abstractmethod
    def point_predictions(self) -> Tensor | None:
        """(N,): the likeliest class or the mean of each input; None where an input has several."""


def _average(values: Tensor, known: Tensor | None) -> Tensor:
    """(N, T), where known -> (N,); over all positions where none is."""
    if known is None:
        return values.mean(1)
    weight = torch.where(known.any(1, keepdim=True), known, True).to(values.dtype)
    return (values * weight).sum(1) / weight.sum(1)


@dataclass(frozen=True, eq=False)
class ClassScorer(Scorer):
    """Class probabilities; yes-or-no labels are two classes each."""

    prediction: Classes | Binary
    task = "classification"

    @property
    def log_probs(self) -> Tensor:
        """(N, T, C) in the network's precision."""
        log_probs = self.prediction._log_probs
        return log_probs if isinstance(self.prediction, Classes) else log_probs.movedim(0, -1).flatten(1, 2)

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
        """The device of the probabilities."""
        return self.prediction.belief.mean.device

    def labelled(self, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(P, C) log probabilities, (P,) labels and (P,) examples of the labelled positions."""
        labels, known = self.labels(y)
        return self.log_probs[known], labels[known], known.nonzero()[:, 0]

    def positions(self, y: Tensor, full: bool = True) -> Positions:
        """Whether right, the negative log probability, confidence, entropy, and the squared distance."""
        log_probs, labels, owner = self.labelled(y)
        wide = log_probs.double()
        probs = wide.exp()
        confidence, predicted = probs.max(-1)
        correct = (predicted == labels).double()
        values = {
            "correct": correct,
            "nll": -wide.gather(-1, labels[:, None])[:, 0],
            "confidence": confidence,
            "overconfidence": confidence - correct,
            "entropy": torch.special.entr(probs).sum(-1),
        }
        if full:
            values["brier"] = probs.scatter_add(-1, labels[:, None], torch.full_like(probs[:, :1], -1)).square().sum(-1)
        values = {name: numbers.cpu() for name, numbers in values.items()}
        scored = Positions(owner=owner.cpu(), values=values, examples=len(self.prediction))
        kept = probs if log_probs.dtype == torch.float64 else probs.float()
        return replace(scored, probs=kept.cpu(), labels=labels.cpu()) if full else scored

    def scores(self, y: Tensor | None = None) -> dict[str, Tensor]:
        """Confidence and entropy; with uncertain weights mutual information and the variance of the outputs."""
        probs = self.log_probs.double().exp()
        scores = {"confidence": probs.amax(-1), "entropy": torch.special.entr(probs).sum(-1)}
        belief = self.prediction.belief
        if not isinstance(belief, Samples) or belief.number > 1:
            if probs.shape[-1] <= MANY_CLASSES:
                total, expected = self.prediction._entropies.double()
                scores["mutual_information"] = (total - expected).clamp(min=0).flatten(1)
            variance = belief.variance.double()
            by_position = variance.mean(-1) if isinstance(self.prediction, Classes) else variance.flatten(1)
            scores["epistemic_variance"] = by_position
        known = None if y is None else self.labels(y)[1]
        return {name: _average(values, known).cpu() for name, values in scores.items()}

    def point_predictions(self) -> Tensor | None:
        """The likeliest class."""
        log_probs = self.log_probs
        return log_probs[:, 0].argmax(-1).cpu() if log_probs.shape[1] == 1 else None


@dataclass(frozen=True, eq=False)
class NumberScorer(Scorer, ABC):
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

    def positions(self, y: Tensor, full: bool = True) -> Positions:
        """Squared error, negative log density, standard deviation; and with `full` targets, CRPS and PIT."""
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
            if flat.shape == mean.shape:
                outputs = torch.arange(mean.shape[-1], dtype=torch.float64, device=mean.device)
                values |= {"target": flat.double(), "output": outputs.expand_as(mean)}
        owner = torch.arange(len(mean), device=mean.device).repeat_interleave(mean[0].numel())
        values = {name: numbers.flatten().cpu() for name, numbers in values.items()}
        return Positions(owner=owner.cpu(), values=values, examples=len(prediction))

    def scores(self, y: Tensor | None = None) -> dict[str, Tensor]:
        """The variance, and its part from not knowing the weights, averaged over outputs."""
        _, variance, epistemic = self.moments()
        scores = {"variance": variance} | ({} if epistemic is None else {"epistemic_variance": epistemic})
        return {name: values.flatten(1).mean(1).cpu() for name, values in scores.items()}

    def point_predictions(self) -> Tensor | None:
        """The mean."""
        mean = self.moments()[0].flatten(1)
        return mean[:, 0].cpu() if mean.shape[1] == 1 else None


@dataclass(frozen=True, eq=False)
class GaussianScorer(NumberScorer):
    """S equally likely Gaussians per target; one for a closed form."""

    means: Tensor  # (S, N, T, K)
    deviations: Tensor

    def moments(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The mean and both parts of the variance, by the law of total variance."""
        mean = self.means.mean(0)
        if isinstance(self.prediction, Regression):
            return mean, self.deviations[0].square(), self.prediction._moments.epistemic.double()
        between = (self.means - mean).square().mean(0)
        return mean, between + self.deviations.square().mean(0), between if len(self.means) > 1 else None

    def nll(self, y: Tensor, flat: Tensor) -> Tensor:
        """The closed form knows how outputs go together."""
        if isinstance(self.prediction, Regression):
            return -self.prediction.log_prob(y)
        noise = distributions.Normal(self.means, self.deviations, validate_args=False)
        log_density = noise.log_prob(flat.double()).sum(-1)
        return torch.neg((log_density.logsumexp(0) - math.log(len(log_density))).sum(-1))

    def shape(self, flat: Tensor, y: Tensor) -> dict[str, Tensor]:
        """CRPS and PIT in closed form."""
        pit = normal_cdf((flat - self.means) / self.deviations).mean(0)
        return {"crps": crps_mixture(self.means, self.deviations, flat), "pit": pit}


@dataclass(frozen=True, eq=False)
class MixtureScorer(NumberScorer):
    """A mixture over all outputs that a posterior holds possible."""

    def moments(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """The prediction's own."""
        mean, epistemic, aleatoric = (moment.double() for moment in self.prediction._moments)
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
            return prediction._targets_at(f.double(), weight.double()).below(rows[chosen])

        pit = prediction.belief.gather(below, prediction.elementwise)
        generator = torch.Generator("cpu").manual_seed(SEED)
        drawn = prediction.sample(DRAWS, generator).double().reshape(DRAWS, *y.shape)
        crps = crps_of_draws(drawn, y.double())
        return {"crps": prediction.likelihood.targets(crps, prediction.belief.form), "pit": pit.reshape(flat.shape)}


@dataclass(frozen=True, eq=False)
class DensityScorer(MixtureScorer):
    """Likelihoods whose predictions have a density and moments, and no more that is measured here."""

    def shape(self, flat: Tensor, y: Tensor) -> dict[str, Tensor]:
        """Nothing."""
        return {}


def gaussian_scorer(prediction: Regression | Mixture, stretch: float) -> Scorer:
    """For numbers with Gaussian noise, whose standard deviations are multiplied by `stretch`."""
    if isinstance(prediction, Regression):
        mean, epistemic, aleatoric = (moment.double() for moment in prediction._moments)
        return GaussianScorer(prediction, mean[None], (epistemic + aleatoric).sqrt()[None])
    if not isinstance(prediction.belief, Samples):
        return MixtureScorer(prediction)
    noise = prediction.likelihood.distribution(prediction.belief.values.double())
    assert isinstance(noise, distributions.Normal)
    return GaussianScorer(prediction, noise.loc, noise.scale * stretch)


def density_scorer(prediction: Mixture | Outputs, stretch: float) -> Scorer:
    """For numbers whose likelihood has another distribution."""
    if isinstance(prediction, Outputs):
        raise PeewitError(
            f"{type(prediction.likelihood).__name__} does not say how targets are distributed, so that its predictions "
            "have no metrics; expected a likelihood with a distribution."
        )
    return DensityScorer(prediction)


SCORERS: dict[str, Callable[[Any, float], Scorer]] = {  # by the names of `predictions.families`
    "categorical": lambda prediction, _: ClassScorer(prediction),
    "bernoulli": lambda prediction, _: ClassScorer(prediction),
    "gaussian": gaussian_scorer,
    "heteroscedastic": gaussian_scorer,
    "poisson": density_scorer,
    "other": density_scorer,
}


def scorer_of(prediction: Prediction, stretch: float = 1.0) -> Scorer:
    """The scorer of a prediction; `stretch` multiplies the standard deviations of numbers."""
    return SCORERS[prediction.likelihood.link_family](prediction, stretch)


def takes_temperature(likelihood: Likelihood) -> bool:
    """Whether a temperature can be chosen: of the logits of classes, or of the variances of Gaussian noise."""
    return SCORERS[likelihood.link_family] is not density_scorer
