"""Posteriors of ours as ways to predict: how they are fitted, tuned and asked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from torch import Tensor, nn

import peewit as pw
from benchmarks.quality.answers import Ask, Prepared, WayOptions, of_classes
from benchmarks.quality.cases import Case
from benchmarks.quality.least import Choice
from benchmarks.quality.scores import Answer
from peewit.tuning import by_training

POINTS = 512  # quasi-random outputs that mutual information is averaged over; probabilities of the probit need none
HALVINGS = 40  # of the logarithm of the factor that caps effective dimensions
FARTHEST = 60.0  # that logarithm at most
LARGEST, SHARE = 500, 0.1  # of single weights that are uncertain: so many, or that share of all if it is less

Changing = Callable[[pw.Laplace], pw.Laplace]


@dataclass(frozen=True, kw_only=True)
class Ours(WayOptions):
    """A posterior of ours: how it is fitted, tuned and asked."""

    main: bool = False
    fitting: Mapping[str, Any] = field(default_factory=dict)
    weights: Callable[[nn.Module], Any] | None = None  # which weights are uncertain, where that depends on the network
    before: Changing | None = None  # what changes between fitting and tuning
    tuning: Mapping[str, Any] | None = field(default_factory=dict)  # None for the posterior as it is fitted
    after: Changing | None = None  # what changes once it is tuned
    choice: Choice | None = None  # what changes then by the validation data
    predicting: Mapping[str, Any] = field(default_factory=dict)
    trained: bool = False  # whether tune is given the training data
    slack: float = by_training.SLACK  # nats per label that the training data may lose
    data: str = ""  # validation data: "validation", or "stop", which training has seen when it stopped

    def fit(self, case: Case) -> Prepared:
        """Fit and tune."""
        la = self.tuned(self.fitted(case), case)
        if self.after is not None:
            la = self.after(la)
        if self.choice is not None:
            la = self.choice(la, getattr(case.parts, self.data))
        return Prepared(asking(la, case, self.predicting), lambda: settings_of(la))

    def fitted(self, case: Case) -> pw.Laplace:
        """As tuning begins with it."""
        model = case.networks.plain
        chosen = {} if self.weights is None else {"weights": self.weights(model)}
        la = pw.fit(model, case.parts.train, case.likelihood, **{**self.fitting, **chosen})
        return la if self.before is None else self.before(la)

    def tuned(self, la: pw.Laplace, case: Case) -> pw.Laplace:
        """With the data that the way is given."""
        if self.tuning is None:
            return la
        data: dict[str, Any] = {"validation": getattr(case.parts, self.data)} if self.data else {}
        if self.trained:
            data["train"] = case.parts.train
        with mock.patch.object(by_training, "SLACK", self.slack):
            return la.tune(**data, **self.tuning)


def asking(la: pw.Laplace, case: Case, predicting: Mapping[str, Any]) -> Ask:
    """What asks a posterior."""

    def ask(x: Tensor) -> Answer:
        prediction: Any = la.predict(x, **{"samples": POINTS, **predicting})
        if case.likelihood == "classification":
            return of_classes(prediction.probs, **{"mutual information": prediction.epistemic})
        scores = {"variance": prediction.epistemic.sum(1)}
        return Answer(mean=prediction.mean, variance=prediction.variance, scores=scores)

    return ask


def settings_of(la: pw.Laplace) -> dict[str, float]:
    """What tuning chose, and the effective dimensions beside the number of examples."""
    settings = {
        "precision": float(la.prior.precision.log().mean().exp()),  # the geometric mean over its groups
        "effective dimensions": la.evidence().gamma,
        "examples": float(la.N),
        "weights": float(la.D),
    }
    if isinstance(la.likelihood, pw.Gaussian):
        settings["noise"] = float(la.likelihood.noise)
    return settings


def centred(share: float = 1.0) -> Changing:
    """A prior whose mean is this share of the trained weights.

    With all of them nothing pulls the weights: at the trained weights the evidence then grows with the precision
    without end, and tuning stops at the largest precision that it may try. Its warning is in the record.
    """

    def change(la: pw.Laplace) -> pw.Laplace:
        return la.with_prior(pw.Prior.scalar(1.0, mean=share * la.weights))

    return change


def capped(share: float) -> Changing:
    """The least prior precision, from the tuned one on, whose effective dimensions are that share of the examples.

    A noise is tuned again by the evidence under each precision that is tried.
    """

    def change(la: pw.Laplace) -> pw.Laplace:
        if la.evidence().gamma <= share * la.N:
            return la
        low, high = 0.0, FARTHEST
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            few = raised(la, middle).evidence().gamma <= share * la.N
            low, high = (low, middle) if few else (middle, high)
        return raised(la, high)

    return change


def raised(la: pw.Laplace, log: float) -> pw.Laplace:
    """With larger precisions, and the noise that belongs to them."""
    other = la.with_prior(la.prior.with_precision(la.prior.precision * math.exp(log)))
    return other.tune(parameters=["noise"]) if isinstance(la.likelihood, pw.Gaussian) else other


def but_the_last_layer(model: nn.Module) -> list[str]:
    """Names of the parameters before the last linear layer."""
    last = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)][-1]
    return [name for name, _ in model.named_parameters() if not name.startswith(f"{last}.")]


def some(total: int) -> int:
    """How many single weights are uncertain."""
    return min(LARGEST, round(SHARE * total))


def largest_variances(model: nn.Module) -> pw.Subnetwork:
    """The single weights with the largest variance under a diagonal fit, those that do nothing among them."""
    return pw.Subnetwork.largest_variance(some(sum(weight.numel() for weight in model.parameters())))


def largest_weights(model: nn.Module) -> pw.Subnetwork:
    """The single weights with the largest absolute value."""
    return pw.Subnetwork.largest_magnitude(some(sum(weight.numel() for weight in model.parameters())))
