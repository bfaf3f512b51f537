"""A LeNet-style CNN without normalisation on MNIST: the prior that the evidence chooses, and its predictions.

python examples/evidence/lenet.py --data DIR
"""

from __future__ import annotations

import torch
from common import BASIC, Row, cross_entropy, finish, folder, options, train
from readers import digits
from torch import nn


def network() -> nn.Sequential:
    """Two convolutions and three linear layers."""
    convolutions = [nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
    convolutions += [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(
        *convolutions, nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)
    )


def main(arguments: list[str] | None = None) -> list[Row]:
    """Train, compare, print and draw."""
    asked = options(__doc__).parse_args(arguments)
    task = digits(folder(asked, "mnist"), "mnist")
    task = (task.cut(30, 30) if asked.quick else task.cut(asked.images or 800, 2_000 if asked.images else 1_000)).to(
        asked.device
    )
    torch.manual_seed(asked.seed)
    model = network().to(asked.device)
    train(model, task.train, cross_entropy, epochs=15 if asked.quick else 30)
    return finish(asked, "lenet", model, task, "LeNet", ways=BASIC)


if __name__ == "__main__":
    main()
