"""Ways to predict: what users have without us, laplace-torch, and posteriors of ours."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from unittest import mock

import torch
from torch import Tensor, nn

import peewit as pw
from benchmarks import peer
from benchmarks.quality.cases import Case, Examples, Kind, Likelihood
from benchmarks.quality.scores import Answer, entropy, joined
from peewit.tuning import by_training

BATCH = 500
DRAWS = 32  # forward passes of MC dropout
POINTS = 512  # quasi-random outputs that mutual information is averaged over; probabilities of the probit need none
TEMPERATURES = (0.25, 20.0)
SMALLEST = 1e-6  # a standard deviation of the noise, in those of the targets: networks that fit every target have none

LIKELIHOODS: tuple[Likelihood, ...] = ("classification", "regression")
KINDS: tuple[Kind, ...] = ("table", "text", "image")
SMALL: tuple[Kind, ...] = ("table", "text")  # networks with few weights

Ask = Callable[[Tensor], Answer]


@dataclass(frozen=True)
class Prepared:
    """A way that is ready to predict, and what it chose."""

    ask: Ask
    settings: Callable[[], Mapping[str, float]] = dict  # asked once the clock has stopped


class Way(Protocol):
    """One way to predict."""

    @property
    def name(self) -> str:
        """Its name in files and tables."""
        ...

    @property
    def validated(self) -> bool:
        """Whether it uses validation data."""
        ...

    @property
    def main(self) -> bool:
        """Whether it is a baseline or one of the two recipes, which the reduced run measures too."""
        ...

    @property
    def needs(self) -> str:
        """The package that it cannot do without; empty where that is peewit."""
        ...

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of tasks on which it is measured unless it is asked for by name."""
        ...

    @property
    def likelihoods(self) -> tuple[Likelihood, ...]:
        """The likelihoods that it can do."""
        ...

    def fit(self, case: Case) -> Prepared | None:
        """Prepare it; None where the case has no networks for it."""
        ...


@dataclass(frozen=True, kw_only=True)
class WayOptions:
    """What ways have in common, with its defaults."""

    name: str
    validated: bool = False
    main: bool = True
    needs: str = ""
    kinds: tuple[Kind, ...] = KINDS
    likelihoods: tuple[Likelihood, ...] = LIKELIHOODS


def answer(ask: Ask, inputs: Tensor) -> Answer:
    """An answer to many inputs, piece by piece."""
    return joined([ask(piece) for piece in inputs.split(BATCH)])


def outputs(model: nn.Module, inputs: Tensor) -> Tensor:
    """(N, C)."""
    with torch.no_grad():
        return torch.cat([model(piece) for piece in inputs.split(4 * BATCH)])


def noise_of(model: nn.Module, examples: Examples) -> float:
    """The root mean squared residual."""
    return max(float((outputs(model, examples[0]) - examples[1]).square().mean().sqrt()), SMALLEST)


def of_classes(probs: Tensor, **scores: Tensor) -> Answer:
    return Answer(probs=probs, scores={"entropy": entropy(probs), **scores})


def of_numbers(mean: Tensor, noise: float, epistemic: Tensor | None = None) -> Answer:
    spread = torch.zeros_like(mean) if epistemic is None else epistemic
    scores = {"variance": spread.sum(1)}
    return Answer(mean=mean, variance=spread + noise**2, scores=scores)


@dataclass(frozen=True, kw_only=True)
class Plain(WayOptions):
    """The network itself; for numbers with the noise of its training residuals."""

    name: str = "plain"

    def fit(self, case: Case) -> Prepared:
        """There is nothing to fit but the noise."""
        model = case.networks.plain
        if case.likelihood == "classification":
            return Prepared(lambda x: of_classes(outputs(model, x).softmax(1)))
        noise = noise_of(model, case.parts.train)
        return Prepared(lambda x: of_numbers(outputs(model, x), noise), lambda: {"noise": noise})


@dataclass(frozen=True, kw_only=True)
class Temperature(WayOptions):
    """Logits over a temperature that validation data chose; for numbers the noise of validation residuals."""

    name: str = "temperature"
    validated: bool = True
    data: str = "validation"  # or "stop", which training has seen when it stopped

    def fit(self, case: Case) -> Prepared:
        """Find the temperature, or the noise."""
        model, (x, y) = case.networks.plain, getattr(case.parts, self.data)
        if case.likelihood == "regression":
            noise = noise_of(model, (x, y))
            return Prepared(lambda inputs: of_numbers(outputs(model, inputs), noise), lambda: {"noise": noise})
        temperature = best_temperature(outputs(model, x), y)
        return Prepared(
            lambda inputs: of_classes((outputs(model, inputs) / temperature).softmax(1)),
            lambda: {"temperature": temperature},
        )


def best_temperature(logits: Tensor, labels: Tensor) -> float:
    """The temperature with the smallest NLL, which is convex in its inverse."""
    logits = logits.double()
    low, high = (math.log(end) for end in TEMPERATURES)

    def slope(place: float) -> float:
        steepness = math.exp(-place)
        expected = ((steepness * logits).softmax(1) * logits).sum(1)
        return float((expected - logits.gather(1, labels[:, None])[:, 0]).mean())

    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if slope(middle) > 0 else (low, middle)
    return math.exp((low + high) / 2)


@dataclass(frozen=True, kw_only=True)
class Dropout(WayOptions):
    """MC dropout: the average of passes with dropout switched on, of a network that was trained with it."""

    name: str = "dropout"

    def fit(self, case: Case) -> Prepared | None:
        """Switch dropout on."""
        if case.networks.dropout is None:
            return None
        model = copy.deepcopy(case.networks.dropout).eval()
        noise = noise_of(model, case.parts.train) if case.likelihood == "regression" else 0.0
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.train()

        def ask(x: Tensor) -> Answer:
            torch.manual_seed(0)
            with torch.no_grad():
                return averaged(torch.stack([model(x) for _ in range(DRAWS)]), case, noise)

        return Prepared(ask)


@dataclass(frozen=True, kw_only=True)
class Ensemble(WayOptions):
    """A deep ensemble: the average of networks that were trained apart."""

    name: str = "ensemble"

    def fit(self, case: Case) -> Prepared | None:
        """The networks are trained already."""
        models = case.networks.members
        if len(models) < 2:
            return None
        noise = 0.0
        if case.likelihood == "regression":
            noise = math.sqrt(sum(noise_of(model, case.parts.train) ** 2 for model in models) / len(models))
        return Prepared(lambda x: averaged(torch.stack([outputs(model, x) for model in models]), case, noise))


def averaged(values: Tensor, case: Case, noise: float) -> Answer:
    """(S, N, C) outputs as one answer; the deviation between them is what is not known."""
    if case.likelihood == "regression":
        return of_numbers(values.mean(0), noise, values.var(0, correction=0))
    probs = values.softmax(2)
    mean = probs.mean(0)
    return of_classes(mean, **{"mutual information": entropy(mean) - entropy(probs).mean(0)})


@dataclass(frozen=True, kw_only=True)
class LaplaceTorch(WayOptions):
    """laplace-torch as it comes: the last layer, Kronecker factors, its prior by the marginal likelihood, probit."""

    name: str = "laplace-torch"
    needs: str = "laplace"

    def fit(self, case: Case) -> Prepared:
        """Fit and tune as its documentation shows."""
        model = copy.deepcopy(case.networks.plain)
        loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*case.parts.train), batch_size=BATCH)
        classes = case.likelihood == "classification"
        posterior = peer.load()(model, case.likelihood)
        posterior.fit(loader)
        if classes:
            posterior.optimize_prior_precision()
        else:  # its regression example: precision and noise by the marginal likelihood
            device = case.parts.train[0].device
            log_prior, log_noise = (torch.zeros(1, device=device, requires_grad=True) for _ in range(2))
            optimizer = torch.optim.Adam([log_prior, log_noise], lr=0.1)
            for _ in range(200):
                optimizer.zero_grad()
                torch.autograd.backward([-posterior.log_marginal_likelihood(log_prior.exp(), log_noise.exp())])
                optimizer.step()

        def ask(x: Tensor) -> Answer:
            if classes:
                return of_classes(posterior(x).detach())
            mean, variance = posterior(x)
            noise = float(posterior.sigma_noise.detach())
            return of_numbers(mean.detach(), noise, variance.detach().reshape(len(mean), -1))

        return Prepared(ask, lambda: {"precision": float(posterior.prior_precision.detach().mean())})


@dataclass(frozen=True, kw_only=True)
class Ours(WayOptions):
    """A posterior of ours: how it is fitted, tuned and asked."""

    main: bool = False
    fitting: Mapping[str, Any] = field(default_factory=dict)
    tuning: Mapping[str, Any] | None = field(default_factory=dict)  # None for the posterior as it is fitted
    predicting: Mapping[str, Any] = field(default_factory=dict)
    trained: bool = False  # whether tune is given the training data
    slack: float = by_training.SLACK  # nats per label that the training data may lose
    data: str = ""  # validation data: "validation", or "stop", which training has seen when it stopped

    def fit(self, case: Case) -> Prepared:
        """Fit and tune."""
        la = pw.fit(case.networks.plain, case.parts.train, case.likelihood, **self.fitting)
        if self.tuning is not None:
            data: dict[str, Any] = {"validation": getattr(case.parts, self.data)} if self.data else {}
            if self.trained:
                data["train"] = case.parts.train
            with mock.patch.object(by_training, "SLACK", self.slack):
                la = la.tune(**data, **self.tuning)

        def ask(x: Tensor) -> Answer:
            prediction: Any = la.predict(x, **{"samples": POINTS, **self.predicting})
            if case.likelihood == "classification":
                return of_classes(prediction.probs, **{"mutual information": prediction.epistemic})
            scores = {"variance": prediction.epistemic.sum(1)}
            return Answer(mean=prediction.mean, variance=prediction.variance, scores=scores)

        return Prepared(ask, lambda: settings_of(la))


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


RECIPE, VALIDATED = "recipe", "validation"  # the two recipes: without and with validation data
LAST: Mapping[str, Any] = {"weights": "last_layer", "structure": "full"}
AT_MODE: Mapping[str, Any] = {"at": "linear_mode"}
BY_VALIDATION: Mapping[str, Any] = {"method": "validation"}


def by_validation(name: str, **options: Any) -> Ours:
    """A way of ours that is tuned on validation data."""
    return Ours(**{"name": name, "validated": True, "tuning": BY_VALIDATION, "data": "validation", **options})


BASELINES: tuple[Way, ...] = (
    Plain(),
    Temperature(),
    Temperature(name="temperature, stop data", data="stop"),
    Dropout(),
    Ensemble(),
    LaplaceTorch(),
)
# A row here is all that a new way needs. On images, whose networks are large, only the quick and the main ones run.
OURS: tuple[Way, ...] = (
    Ours(name=RECIPE, main=True, trained=True),
    Ours(name="recipe, slack 0.005", trained=True, slack=0.005, likelihoods=("classification",)),
    Ours(name="recipe, slack 0.02", trained=True, slack=0.02, likelihoods=("classification",)),
    Ours(name="recipe, slack 0.05", trained=True, slack=0.05, likelihoods=("classification",)),
    Ours(name="last layer, recipe, slack 0.02", fitting=LAST, trained=True, slack=0.02),
    Ours(name="diagonal, recipe, slack 0.02", fitting={"structure": "diag"}, trained=True, slack=0.02, kinds=SMALL),
    Ours(name="evidence"),
    Ours(name="evidence, mc", predicting={"link": "mc"}, kinds=SMALL),
    Ours(name="evidence, bridge", predicting={"link": "bridge"}, kinds=SMALL, likelihoods=("classification",)),
    Ours(name="last layer, evidence", fitting=LAST),
    Ours(name="diagonal, evidence", fitting={"structure": "diag"}, kinds=SMALL),
    Ours(name="linear mode", tuning=AT_MODE, trained=True, kinds=SMALL),
    Ours(
        name="linear mode, layerwise",
        fitting={"prior": pw.Prior.layerwise(1.0)},
        tuning=AT_MODE,
        trained=True,
        kinds=SMALL,
    ),
    Ours(name="linear mode, its own mean", tuning=AT_MODE, predicting=AT_MODE, trained=True, kinds=SMALL),
    Ours(name="last layer, linear mode", fitting=LAST, tuning=AT_MODE, trained=True),
    by_validation(VALIDATED, main=True),
    by_validation("validation, stop data", data="stop", main=True),
    by_validation("validation, mc", predicting={"link": "mc"}, kinds=SMALL),
    by_validation("last layer, validation", fitting=LAST),
    by_validation("diagonal, validation", fitting={"structure": "diag"}, kinds=SMALL),
    by_validation("ekfac, validation", fitting={"structure": "ekfac"}, kinds=SMALL),
)
WAYS: Mapping[str, Way] = {way.name: way for way in (*BASELINES, *OURS)}
