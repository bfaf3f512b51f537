"""Two separable classes and one weight: the exact posterior beside the Gaussian, before and after its prior is raised.

    python examples/evidence/separable.py [--out DIR]

The likelihood is flat above the trained weight and falls below it. The Gaussian of the evidence is as wide on both
sides, so a part of it stands for the opposite prediction. The script prints the probabilities of the right label and
writes separable.png.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import BLUE, CONSOLE, GREEN, GREY, ORANGE, options
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw

INPUTS = (0.5, 0.8, 1.2, 1.5, 2.0)  # of the class 1; those of the class 0 are the same with a minus
STEPS = 2000
REACH = (-50.0, 250.0)  # of the weight: every posterior is zero outside
ASKED = (0.1, 0.5, 1.0, 2.0)


@dataclass(frozen=True, eq=False, kw_only=True)
class Comparison:
    """Densities of the weight, and the probability of the class 1 at new inputs."""

    weights: Tensor  # (S,)
    likelihood: Tensor  # (S,), with the maximum one
    densities: dict[str, Tensor]  # (S,) each
    inputs: Tensor  # (N,)
    probabilities: dict[str, Tensor]  # (N,) each
    trained: float


def data() -> tuple[Tensor, Tensor]:
    """Inputs (10, 1), and labels that their sign decides."""
    side = torch.tensor(INPUTS, dtype=torch.float64)[:, None]
    x = torch.cat([-side, side])
    return x, (x > 0).double()


def network(x: Tensor, y: Tensor, steps: int) -> nn.Module:
    """One weight, trained without weight decay."""
    model = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(model.weight, 0.1)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        optimiser.zero_grad()
        F.binary_cross_entropy_with_logits(model(x), y).backward()
        optimiser.step()
    return model


def compare(steps: int, count: int) -> Comparison:
    """The exact posterior under the prior of the evidence on a grid, and both Gaussians."""
    x, y = data()
    model = network(x, y, steps)
    la = pw.fit(model, (x, y), "binary", structure="full")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pw.UnderconfidenceWarning)  # which is what is shown
        gaussians = {"evidence": la.tune(), "training": la.tune(train=(x, y))}
    weights = torch.linspace(*REACH, count, dtype=torch.float64)
    log_likelihood = F.logsigmoid(weights[:, None] * ((2 * y - 1) * x)[:, 0]).sum(1)
    precision = float(gaussians["evidence"].prior.precision)
    exact = (log_likelihood - 0.5 * precision * weights.square()).softmax(0)
    inputs = torch.linspace(0.0, 2.0, 201, dtype=torch.float64)
    probabilities = {
        "network": torch.sigmoid(model(inputs[:, None]).detach()[:, 0]),
        "exact": torch.stack([exact @ torch.sigmoid(new * weights) for new in inputs]),
    }
    densities = {"exact": exact / (weights[1] - weights[0])}
    trained = float(la.weights)
    for name, posterior in gaussians.items():
        deviation = float(posterior.precision.variance()) ** 0.5
        densities[name] = torch.distributions.Normal(trained, deviation).log_prob(weights).exp()
        predicted = posterior.predict(inputs[:, None])
        assert isinstance(predicted, pw.Binary)
        probabilities[name] = predicted.probs[:, 0]
    return Comparison(
        weights=weights,
        likelihood=log_likelihood.exp(),
        densities=densities,
        inputs=inputs,
        probabilities=probabilities,
        trained=trained,
    )


LOOKS: dict[str, dict[str, Any]] = {
    "network": {"color": GREY, "ls": ":", "lw": 2.2, "label": "the network"},
    "exact": {"color": "black", "label": "exact, the evidence's prior"},
    "evidence": {"color": ORANGE, "ls": "--", "label": "Gaussian, tune()"},
    "training": {"color": BLUE, "ls": "-.", "label": "Gaussian, tune(train=...)"},
}


def draw(made: Comparison, path: Path) -> None:
    """Densities of the weight beside probabilities."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        CONSOLE.print("No picture was made: pip install matplotlib.")
        return
    figure = Figure(figsize=(11, 4.2), layout="constrained", dpi=100)
    FigureCanvasAgg(figure)  # not pyplot, which opens windows and keeps global state
    left, right = figure.subplots(1, 2)
    shown = (made.weights > -25) & (made.weights < 50)
    top = 1.1 * max(float(density.max()) for density in made.densities.values())
    left.fill_between(
        made.weights[shown], top * made.likelihood[shown], color=GREEN, alpha=0.15, lw=0, label="likelihood, scaled"
    )
    for name, density in made.densities.items():
        left.plot(made.weights[shown], density[shown], lw=1.6, **without_label(name))
    left.axvline(made.trained, color=GREY, lw=1, ls=":")
    left.text(made.trained + 0.6, 0.97 * top, "trained", fontsize=9, va="top")
    left.set(ylim=(0, top), xlabel="weight", ylabel="density", title="the posterior of the weight")
    left.legend(loc="upper right", fontsize=9)
    for name, values in made.probabilities.items():
        right.plot(made.inputs, values, **{"lw": 1.6, **LOOKS[name]})
    right.set(ylim=(0.5, 1.01), xlabel="input", ylabel="probability of class 1", title="predictions")
    right.legend(loc="lower right", fontsize=9)
    for panel in (left, right):
        panel.grid(alpha=0.25)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    CONSOLE.print(f"Figure: {path}", highlight=False)


def without_label(name: str) -> dict[str, Any]:
    """How a line looks where the other panel names it."""
    return {key: value for key, value in LOOKS[name].items() if key not in ("label", "lw")}


def main(arguments: list[str] | None = None) -> Comparison:
    """Train, integrate, tune, draw."""
    asked = options(__doc__).parse_args(arguments)
    made = compare(STEPS, 3_001 if asked.quick else 300_001)
    CONSOLE.print("  ".join(["   x", *(f"{name:>8}" for name in made.probabilities)]), highlight=False)
    for new in ASKED:
        place = int((made.inputs - new).abs().argmin())
        row = [f"{new:4.1f}", *(f"{float(values[place]):8.4f}" for values in made.probabilities.values())]
        CONSOLE.print("  ".join(row), highlight=False)
    draw(made, asked.out / "separable.png")
    return made


if __name__ == "__main__":
    main()
