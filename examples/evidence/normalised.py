"""An MLP with and without BatchNorm, small enough for the full GGN: the priors that each evidence chooses.

    python examples/evidence/normalised.py --data DIR

MNIST at 7 x 7 pixels, with 2,000 training images. The full matrix beside KFAC shows the effect of the approximation.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
from common import CONSOLE, WAYS, Row, compare, cross_entropy, folder, keep, options, train
from readers import Task, digits
from torch import Tensor, nn
from torch.nn import functional as F


def network(normalised: bool, inputs: int, width: int) -> nn.Sequential:
    """Two hidden layers with tanh."""
    sizes = (inputs, width, width)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.BatchNorm1d(after), nn.Tanh()]
    layers = [layer for layer in layers if normalised or not isinstance(layer, nn.BatchNorm1d)]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def coarse(task: Task) -> Task:
    """Pixels averaged over squares of 4 x 4, in units of their deviation: (N, 49)."""
    mean, deviation = (getattr(F.avg_pool2d(task.train[0], 4), name)() for name in ("mean", "std"))

    def seen(x: Tensor) -> Tensor:
        return (F.avg_pool2d(x, 4).flatten(1) - mean) / deviation

    pairs = [(seen(x), y) for x, y in (task.train, task.validation, task.test)]
    return Task(task.name, *pairs, None if task.unknown is None else seen(task.unknown))


def main(arguments: list[str] | None = None) -> list[Row]:
    """Both networks with both structures."""
    asked = options(__doc__).parse_args(arguments)
    task = digits(folder(asked, "mnist"), "mnist")
    task = coarse(task.cut(60, 40) if asked.quick else task.cut(asked.images or 2_000, 3_000)).to(asked.device)
    made = []
    for normalised in (False, True):
        torch.manual_seed(asked.seed)
        model = network(normalised, task.train[0].shape[1], 6 if asked.quick else 30).to(asked.device)
        train(model, task.train, cross_entropy, epochs=5 if asked.quick else 100, rate=3e-3, batch=100)
        chosen = [way for way in WAYS if way.mode != "validation"]
        both = [replace(way, structure=kind, name=f"{kind}, {way.name}") for kind in ("full", "kron") for way in chosen]
        title = f"MLP {'with BatchNorm' if normalised else 'without normalisation'}, {task.name} at 7 x 7"
        CONSOLE.print(title, highlight=False)
        rows, _ = compare(model, task, ways=[*both, WAYS[-1]], turns=1 if asked.quick else asked.turns)
        keep(asked.out, f"normalised-{'batchnorm' if normalised else 'none'}", rows, title, seed=asked.seed)
        made += rows
    return made


if __name__ == "__main__":
    main()
