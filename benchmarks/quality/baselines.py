"""Ways to predict that users have without us, and laplace-torch."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from benchmarks import peer
from benchmarks.quality.answers import BATCH, Prepared, WayOptions, noise_of, of_classes, of_numbers, outputs
from benchmarks.quality.cases import Case
from benchmarks.quality.scores import Answer, entropy

DRAWS = 32  # forward passes of MC dropout
TEMPERATURES = (0.25, 20.0)


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
