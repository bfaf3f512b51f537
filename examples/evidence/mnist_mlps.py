"""The MLPs of a published comparison on MNIST and Fashion-MNIST, with the evidence at the linear mode added.

    python examples/evidence/mnist_mlps.py --data DIR [--set mnist fashion_mnist] [--training rate decay protocol]

MLP 784-200-200-10 with tanh and dropout, 20,000 steps of 100 images. Variational-LLA published NLL and ECE of the
network, of KFAC and a diagonal over all weights, and of the last layer, each with one precision by the evidence at the
trained weights. We add the evidence at the linear mode. That takes hundreds of passes over 55,000 images: minutes on a
GPU (--device cuda) or an hour on one core. There, --images 3000 --steps 2000 shows the same effect.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import torch
from common import CONSOLE, WAYS, Row, Way, cross_entropy, finish, folder, options
from readers import Pair, digits
from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import nn

OURS = (
    Way(name="diagonal, theta_hat, one precision", mode="trained", prior="one", structure="diag"),
    Way(name="last layer full, theta_hat, one", mode="trained", prior="one", structure="full", weights="last_layer"),
    Way(name="last layer KFAC, theta_hat, one", mode="trained", prior="one", structure="kron", weights="last_layer"),
)
# NLL, ECE and OOD-AUC by row, from the published result files.
PUBLISHED = {
    "mnist": {
        "MAP": (0.0759, 0.0078, 0.9047),
        "evidence at theta_hat, one precision": (0.0945, 0.0286, 0.9488),
        "diagonal, theta_hat, one precision": (0.1430, 0.0716, 0.9221),
        "last layer full, theta_hat, one": (0.0814, 0.0152, 0.9094),
        "last layer KFAC, theta_hat, one": (0.0811, 0.0147, 0.9087),
    },
    "fashion_mnist": {
        "MAP": (0.3733, 0.0085, 0.8737),
        "evidence at theta_hat, one precision": (0.3767, 0.0139, 0.9320),
        "diagonal, theta_hat, one precision": (0.3973, 0.0430, 0.9139),
        "last layer full, theta_hat, one": (0.3729, 0.0085, 0.8817),
        "last layer KFAC, theta_hat, one": (0.3728, 0.0077, 0.8805),
    },
}


@dataclass(frozen=True)
class Training:
    """How the network was trained: SGD with momentum .5."""

    rate: float
    decay: float


# With the learning rate of the protocol, .001, the network reaches an NLL of .31, far from the published .0759; with
# .03 it reaches .0750. The published result files name a weight decay of .001. With that and a rate of .1 we get the
# published precisions (28.8 for KFAC over all weights, 7.4 for the last layer), and an NLL of .0813.
TRAININGS = {"rate": Training(3e-2, 0.0), "decay": Training(1e-1, 1e-3), "protocol": Training(1e-3, 0.0)}


def network(seed: int, width: int = 200) -> nn.Sequential:
    """784-200-200-10 with tanh and a dropout of 0.1."""
    torch.manual_seed(seed)
    first = [nn.Linear(784, width), nn.Tanh(), nn.Dropout(0.1)]
    second = [nn.Linear(width, width), nn.Tanh(), nn.Dropout(0.1)]
    return nn.Sequential(nn.Flatten(), *first, *second, nn.Linear(width, 10))


def train(model: nn.Module, pair: Pair, how: Training, steps: int, batch: int = 100) -> float:
    """Train at a constant rate; returns seconds."""
    began = time.perf_counter()
    x, y = pair
    optimiser = torch.optim.SGD(model.parameters(), lr=how.rate, momentum=0.5, weight_decay=how.decay)
    model.train()
    done = 0
    while done < steps:
        for chosen in torch.randperm(len(x), device=x.device).split(batch)[: steps - done]:
            optimiser.zero_grad()
            cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimiser.step()
            done += 1
    model.eval()
    return time.perf_counter() - began


def beside(rows: list[Row], published: dict[str, tuple[float, float, float]]) -> None:
    """A table of the published results beside ours."""
    table = Table(box=SIMPLE_HEAD, title="published and here: NLL, ECE, OOD-AUC")
    for heading in ("row", "published", "here"):
        table.add_column(heading, no_wrap=True)
    for row in rows:
        if row.name in published:
            here = [row.scores[name] for name in ("nll", "ece", "auroc")]
            table.add_row(
                row.name, *("  ".join(f"{value:.4f}" for value in side) for side in (published[row.name], here))
            )
    CONSOLE.print(table, highlight=False)


def one(asked: argparse.Namespace, name: str, training: str) -> list[Row]:
    """One network, from training to the figure."""
    task = digits(folder(asked, name), name)
    if asked.quick:
        task = task.cut(100, 50)
    elif asked.images:
        task = task.cut(asked.images, asked.images)
    task = task.to(asked.device)
    model = network(asked.seed, 20 if asked.quick else 200).to(asked.device)
    spent = train(model, task.train, TRAININGS[training], 60 if asked.quick else asked.steps)
    CONSOLE.print(f"{task.name}, {TRAININGS[training]}: {spent:.1f} s", highlight=False)
    kept = f"mlp-{name}" if training == "rate" else f"mlp-{name}-{training}"
    kept += f"-{asked.images}" if asked.images else ""
    title = f"MLP 784-200-200-10, SGD of rate {TRAININGS[training].rate:g}, decay {TRAININGS[training].decay:g}"
    rows = finish(asked, kept, model, task, title, ways=WAYS + OURS)
    if not asked.quick and len(task.test[0]) == 10_000:
        beside(rows, PUBLISHED[name])
    return rows


def main(arguments: list[str] | None = None) -> list[Row]:
    """Run the networks of the options."""
    parser = options(__doc__)
    parser.add_argument("--set", nargs="+", choices=list(PUBLISHED), default=["mnist"])
    parser.add_argument("--training", nargs="+", choices=list(TRAININGS), default=["rate"])
    parser.add_argument("--steps", type=int, default=20_000)
    asked = parser.parse_args(arguments)
    return [row for name in asked.set for training in asked.training for row in one(asked, name, training)]


if __name__ == "__main__":
    main()
