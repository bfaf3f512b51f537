"""Ways to train a network that predicts mean and noise, and what each predicts.

- `learned`: the prior precisions are learned by the evidence while the network trains (Immer et al. 2023). It takes all
  training data and predicts with or without the uncertainty of the weights.
- `decayed`: the weight decay is chosen on validation data among nine, then all training data are used. The loss is the
  negative log likelihood, beta-NLL (Seitzer et al. 2022) or the faithful one (Stirn et al. 2023).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from sets import Pair, Task
from torch import Tensor, nn
from torch.distributions import Normal
from torch.func import functional_call
from torch.nn import functional as F

import peewit as pw

FLOOR = 1e-8  # keeps variances away from zero, as the natural head of the library does
DECAYS = tuple(10.0**power for power in range(-4, 5))  # prior precisions to choose from
Energy = Callable[[Tensor, Tensor], Tensor]  # outputs and targets to numbers (B,)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How networks are built and trained."""

    width: int = 50
    activation: type[nn.Module] = nn.GELU
    epochs: int = 1000
    batch: int = 256
    rate: float = 1e-2
    last_rate: float = 1e-5
    structure: str = "full"
    begin: int = 100  # the epoch of the first hyper-steps
    every: int = 50  # epochs between hyper-steps
    steps: int = 50  # of Adam on log precisions, each time
    hyper_rate: float = 1e-2
    last_hyper_rate: float = 1e-3


class MeanVariance(nn.Module):
    """The head of the mean-variance parametrisation: (B, 2) to mean and variance."""

    def forward(self, o: Tensor) -> Tensor:
        """(B, 2) -> (B, 2)."""
        return torch.stack([o[:, 0], F.softplus(o[:, 1]) + FLOOR], 1)


class Faithful(nn.Module):
    """A network whose variance trains no weights that it shares with the mean."""

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body, self.head = body, head

    def forward(self, x: Tensor) -> Tensor:
        """(B, D) -> (B, 2): mean and variance."""
        shared = self.body(x)
        mean = F.linear(shared, self.head.weight[:1], self.head.bias[:1])
        variance = F.linear(shared.detach(), self.head.weight[1:], self.head.bias[1:])
        return torch.cat([mean, F.softplus(variance) + FLOOR], 1)


def network(inputs: int, settings: Settings, kind: str, seed: int) -> nn.Module:
    """An MLP with one hidden layer and two outputs, its head by kind: "natural", "mean_variance" or "faithful"."""
    torch.manual_seed(seed)
    first, last = nn.Linear(inputs, settings.width), nn.Linear(settings.width, 2)
    body = [first, settings.activation()]
    if kind == "faithful":
        return Faithful(nn.Sequential(*body), last).double()
    return nn.Sequential(*body, last, *([MeanVariance()] if kind == "mean_variance" else [])).double()


def nll(f: Tensor, y: Tensor) -> Tensor:
    """Of mean and variance (B, 2), without the constant."""
    mean, variance = f.unbind(1)
    return 0.5 * ((y - mean).square() / variance + variance.log())


def beta_nll(f: Tensor, y: Tensor) -> Tensor:
    """The same, each example weighted by its predicted deviation, which takes no gradient: beta is a half."""
    return nll(f, y) * f[:, 1].detach().sqrt()


def faithful(f: Tensor, y: Tensor) -> Tensor:
    """Squared errors for the mean, and the NLL at that mean for the variance."""
    mean, variance = f.unbind(1)
    return 0.5 * (y - mean).square() + nll(torch.stack([mean.detach(), variance], 1), y)


@dataclass(frozen=True)
class Predicted:
    """Normal predictions of standardised targets, (N,) each, and the part of the variance that is noise."""

    mean: Tensor
    variance: Tensor
    noise: Tensor

    def scores(self, y: Tensor, unit: float) -> dict[str, float]:
        """Log likelihood and root mean square error in the target's unit, and the share inside 90 % intervals."""
        density = Normal(self.mean * unit, self.variance.sqrt() * unit)
        inside = (y - self.mean).abs() <= 1.6448536 * self.variance.sqrt()
        return {
            "ll": float(density.log_prob(y * unit).mean()),
            "mse": float((y - self.mean).square().mean()),
            "rmse": float((y - self.mean).square().mean().sqrt()) * unit,
            "covered": float(inside.double().mean()),
        }


Predict = Callable[[Tensor], Predicted]


def plug_in(model: nn.Module, likelihood: pw.HeteroscedasticGaussian) -> Predict:
    """Predictions of the network itself."""

    def predict(x: Tensor) -> Predicted:
        with torch.no_grad():
            mean, variance = likelihood.moments(model(x))
        return Predicted(mean[:, 0], variance[:, 0], variance[:, 0])

    return predict


def laplace(la: pw.Laplace, link: str) -> Predict:
    """Predictions with the uncertainty of the weights, by the delta rule."""

    def predict(x: Tensor) -> Predicted:
        pred: Any = la.predict(x, link=link)
        return Predicted(pred.mean[:, 0], pred.variance[:, 0], pred.aleatoric[:, 0])

    return predict


@dataclass(frozen=True, kw_only=True)
class Learned:
    """A network that was trained with learned precisions, and its posterior."""

    la: pw.Laplace
    history: pw.learning.History
    likelihood: pw.HeteroscedasticGaussian

    @property
    def plug_in(self) -> Predict:
        """Predictions at the kept weights."""
        return plug_in(self.la.model, self.likelihood)


def learned(data: Pair, settings: Settings, kind: str = "natural", seed: int = 0) -> Learned:
    """Train a network while the evidence chooses a prior precision for each of its tensors."""
    x, y = data
    model = network(x.shape[1], settings, kind, seed)
    likelihood = pw.HeteroscedasticGaussian("raw" if kind == "natural" else "mean_variance")
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.rate)
    batches = list(zip(x.split(settings.batch), y[:, None].split(settings.batch), strict=True))
    steps = settings.epochs * len(batches)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=settings.last_rate)
    hyper_steps = (settings.epochs - settings.begin) // settings.every * settings.steps
    learner = pw.learning.Learner(
        model,
        (x, y[:, None]),
        likelihood,
        optimizer,
        prior=pw.Prior.layerwise(1.0),
        structure=settings.structure,
        curvature="ggn",
        steps=settings.steps,
        rate=pw.learning.cosine(settings.hyper_rate, settings.last_hyper_rate, hyper_steps),
    )
    for epoch in range(1, settings.epochs + 1):
        for inputs, targets in batches:  # in the order of the rows, always the same
            optimizer.zero_grad()
            learner.loss(model(inputs), targets).backward()
            optimizer.step()
            scheduler.step()
        if epoch >= settings.begin and epoch % settings.every == 0:
            learner.step(epoch=epoch)
    return Learned(la=learner.posterior(), history=learner.history, likelihood=likelihood)


def trained(
    data: Pair, settings: Settings, kind: str, energy: Energy, decays: Sequence[float], seed: int
) -> list[nn.Module]:
    """A network for each of some prior precisions, which stay; all are trained at once, and none knows of another."""
    x, y = data
    models = [network(x.shape[1], settings, kind, seed) for _ in decays]
    weights, _ = torch.func.stack_module_state(models)
    shrink = torch.tensor(decays, dtype=torch.float64) / len(x)
    call = torch.func.vmap(lambda chosen, inputs: functional_call(models[0], chosen, (inputs,)), in_dims=(0, None))
    energies = torch.func.vmap(energy, in_dims=(0, None))
    optimizer = torch.optim.Adam(weights.values(), lr=settings.rate)
    batches = list(zip(x.split(settings.batch), y.split(settings.batch), strict=True))
    steps = settings.epochs * len(batches)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps, eta_min=settings.last_rate)
    for _ in range(settings.epochs):
        for inputs, targets in batches:
            optimizer.zero_grad()
            energies(call(weights, inputs), targets).mean(1).sum().backward()
            for weight in weights.values():
                assert weight.grad is not None
                weight.grad += shrink.view(-1, *[1] * (weight.dim() - 1)) * weight.detach()
            optimizer.step()
            scheduler.step()
    for place, model in enumerate(models):
        model.load_state_dict({name: weight[place].detach() for name, weight in weights.items()})
    return models


def decayed(task: Task, settings: Settings, energy: Energy, seed: int) -> tuple[Predict, float]:
    """Choose the decay by the NLL on validation data, and train on all data with it."""
    kind = "faithful" if energy is faithful else "mean_variance"
    x, y = task.validation
    models = trained(task.part, settings, kind, energy, DECAYS, seed)
    with torch.no_grad():
        scores = [nll(model(x), y).mean() for model in models]
    decay = DECAYS[int(torch.stack(scores).nan_to_num(math.inf).argmin())]
    (model,) = trained(task.train, settings, kind, energy, [decay], seed)
    return plug_in(model, pw.HeteroscedasticGaussian("mean_variance")), decay
