"""A short tour: fit a Laplace approximation to two small networks, and look at its uncertainty.

Run it with `python examples/two_moons.py`. It takes a few seconds.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw

CONSOLE = Console()


def main() -> None:
    """Regression, then classification, then the results."""
    torch.manual_seed(0)
    inside, outside = regression()
    moons = classification()
    CONSOLE.print(
        f"\nWith kron the standard deviation of the regression is {inside:.2f} among the data and {outside:.2f} far "
        "from them, and on two moons the confidence far from the data goes from "
        + " and ".join(f"{plain.far:.0%} to {bayesian.far:.0%}" for plain, bayesian in moons)
        + ". The negative log-likelihood of new points near the data goes from "
        + " and ".join(f"{plain.loss:.3f} to {bayesian.loss:.3f}" for plain, bayesian in moons)
        + ": whether it gains there depends on the network and on the prior, which nothing has tuned here.",
        highlight=False,
    )


class Answers(NamedTuple):
    """The scores of one way to predict on new points near the data, and its confidence far from them."""

    accuracy: float
    loss: float
    far: float


def train(model: nn.Module, x: Tensor, y: Tensor, loss: nn.Module, decay: float, steps: int, what: str) -> None:
    """Train the weights that the approximation is centred at; `decay` is the prior precision over N."""
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in track(range(steps), f"training: {what}", console=CONSOLE, transient=True):
        optimiser.zero_grad()
        penalty = sum(parameter.square().sum() for parameter in model.parameters())
        (loss(model(x), y) + 0.5 * decay * penalty).backward()
        optimiser.step()
        schedule.step()


def mlp(inputs: int, outputs: int, width: int = 32, norm_first: bool = True) -> nn.Sequential:
    """Two hidden layers, with LayerNorm before or after the first activation."""
    middle = (nn.LayerNorm(width), nn.Tanh()) if norm_first else (nn.Tanh(), nn.LayerNorm(width))
    hidden = nn.Linear(width, width), nn.Tanh()
    return nn.Sequential(nn.Linear(inputs, width), *middle, *hidden, nn.Linear(width, outputs))


def regression() -> tuple[float, float]:
    """A sine with noise; returns the standard deviation inside and far outside the data."""
    CONSOLE.rule("1-D regression")
    noise, prior = 0.15, 1.0
    x = torch.cat([torch.rand(60, 1) * 2 - 4, torch.rand(60, 1) * 2 + 1])  # nothing between -2 and 1
    y = torch.sin(x) + noise * torch.randn_like(x)
    model = mlp(1, 1)
    train(model, x, y, nn.MSELoss(), 2 * prior * noise**2 / len(x), 1500, "regression")

    table = Table(title="epistemic standard deviation, by structure")
    for column in ("structure", "log evidence", "data (x = 2)", "gap (x = -0.5)", "far (x = 10)"):
        table.add_column(column, justify="right")
    asked = torch.tensor([[2.0], [-0.5], [10.0]])
    shown = {}
    for structure in ("diag", "kron", "full"):
        la = pw.fit(model, (x, y), pw.Gaussian(noise), structure=structure, prior=prior, progress=True)
        deviation = la.predict(asked).epistemic.sqrt()[:, 0].tolist()
        table.add_row(structure, f"{la.log_evidence():.1f}", *(f"{value:.3f}" for value in deviation))
        shown[structure] = deviation
    CONSOLE.print(table)
    CONSOLE.print(f"The noise has a standard deviation of {noise}; it is not part of these numbers.\n", highlight=False)
    return shown["kron"][0], shown["kron"][2]


def two_moons(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Points (n, 2) on two half circles with noise, and their classes (n,)."""
    labels = torch.arange(n) % 2
    angle = math.pi * torch.rand(n, generator=generator)
    x = torch.stack([angle.cos(), angle.sin()], 1)
    x = torch.where(labels[:, None] == 0, x, torch.tensor([1.0, 0.5]) - x)
    return x + 0.25 * torch.randn(n, 2, generator=generator), labels


def classification() -> list[tuple[Answers, Answers]]:
    """Two moons with two networks; returns the scores of each without and with the posterior."""
    CONSOLE.rule("two moons")
    generator = torch.Generator().manual_seed(1)
    x, y = two_moons(200, generator)
    new, labels = two_moons(2000, generator)
    circle = 2 * math.pi * torch.arange(64) / 64
    far = 20 * torch.stack([circle.cos(), circle.sin()], 1)
    prior = 1.0
    table = Table(title="2,000 new points, and a circle of radius 20")
    for column in ("network", "", "accuracy", "neg. log-lik.", "sure far away"):
        table.add_column(column)
    made = []
    for name, norm_first in (("norm first", True), ("norm after", False)):
        model = mlp(2, 2, norm_first=norm_first)
        train(model, x, y, nn.CrossEntropyLoss(), prior / len(x), 600, "classification")
        la = pw.fit(model, (x, y), "classification", structure="kron", prior=prior, progress=True)
        with torch.no_grad():
            plain = judged(model(new).softmax(1), labels, model(far).softmax(1))
        bayesian = judged(la.predict(new).probs, labels, la.predict(far).probs)
        for how, each in (("plain", plain), ("Laplace, kron", bayesian)):
            table.add_row(name, how, f"{each.accuracy:.1%}", f"{each.loss:.3f}", f"{each.far:.1%}")
        made.append((plain, bayesian))
    CONSOLE.print(table)

    coverage = la.coverage()
    table = Table(
        title="what every parameter of the second got: la.coverage()", caption=f"curvature: {coverage.curvature}"
    )
    for column in ("parameter", "shape", "rule", "approximation"):
        table.add_column(column)
    for row in coverage:
        table.add_row(row.name, " x ".join(map(str, row.shape)), row.rule, row.approximation)
    CONSOLE.print(table)
    return made


def judged(probs: Tensor, labels: Tensor, far: Tensor) -> Answers:
    """Accuracy and loss of probabilities (n, 2), and the mean confidence of `far` (m, 2)."""
    accuracy = (probs.argmax(1) == labels).float().mean().item()
    return Answers(accuracy, F.nll_loss(probs.log(), labels).item(), far.amax(1).mean().item())


if __name__ == "__main__":
    main()
