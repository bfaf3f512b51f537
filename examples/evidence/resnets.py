"""A small ResNet with BatchNorm, and one without normalisation (FixUp), on images of 16 x 16 pixels.

    python examples/evidence/resnets.py --data DIR [--network batchnorm fixup]

BatchNorm removes the scale of the weights before it. So the norm of these weights says nothing about the right prior,
and one precision cannot fit all weights. FixUp keeps the scale: groups of weights should matter less there.
"""

from __future__ import annotations

import torch
from common import BASIC, Row, cross_entropy, finish, folder, options, train
from readers import Task, colour
from torch import Tensor, nn
from torch.nn import functional as F

WIDTHS = (8, 16, 32)


class Normalised(nn.Module):
    """Two convolutions with BatchNorm, and a short cut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, outputs // inputs, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, outputs // inputs) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H', W')."""
        return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.short(x))


class FixUp(nn.Module):
    """The same block without BatchNorm, with scalar biases and scale; the second convolution starts at zero."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, outputs // inputs, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(inputs, outputs, 1, outputs // inputs) if inputs != outputs else nn.Identity()
        self.before1, self.after1, self.before2, self.after2 = (nn.Parameter(torch.zeros(1)) for _ in range(4))
        self.scale = nn.Parameter(torch.ones(1))
        # He's initialisation over the square root of the number of blocks (three), as the residual branches add up.
        nn.init.normal_(self.conv1.weight, std=(2 / (9 * outputs)) ** 0.5 * len(WIDTHS) ** -0.5)
        nn.init.zeros_(self.conv2.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H', W')."""
        y = F.relu(self.conv1(x + self.before1) + self.after1)
        return F.relu(self.conv2(y + self.before2) * self.scale + self.after2 + self.short(x))


def network(kind: str, widths: tuple[int, int, int] = WIDTHS) -> nn.Sequential:
    """A stem, three blocks and a linear head; 20,000 weights."""
    first, second, third = widths
    block: type[Normalised] | type[FixUp] = Normalised if kind == "batchnorm" else FixUp
    stem: list[nn.Module] = [nn.Conv2d(3, first, 3, 1, 1, bias=kind == "fixup")]
    stem += [nn.BatchNorm2d(first)] if kind == "batchnorm" else []
    body = [block(first, first), block(first, second), block(second, third)]
    head = nn.Linear(third, 10)
    if kind == "fixup":
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
    return nn.Sequential(*stem, nn.ReLU(), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


def halved(task: Task) -> Task:
    """Images of half the size."""
    pairs = [(F.avg_pool2d(x, 2), y) for x, y in (task.train, task.validation, task.test)]
    return Task(task.name, *pairs, None if task.unknown is None else F.avg_pool2d(task.unknown, 2))


def main(arguments: list[str] | None = None) -> list[Row]:
    """Both networks, each from training to its figure."""
    parser = options(__doc__)
    parser.add_argument("--network", nargs="+", choices=["batchnorm", "fixup"], default=["batchnorm", "fixup"])
    asked = parser.parse_args(arguments)
    task = halved(colour(folder(asked, "cifar10"), train=asked.images or 1_500))
    task = (task.cut(60, 30) if asked.quick else task.cut(asked.images or 800, 2_000 if asked.images else 400)).to(
        asked.device
    )
    rows = []
    for kind in asked.network:
        torch.manual_seed(asked.seed)
        model = network(kind, (4, 8, 16) if asked.quick else WIDTHS).to(asked.device)
        train(model, task.train, cross_entropy, epochs=6 if asked.quick else 25, rate=5e-3)
        title = {"batchnorm": "ResNet with BatchNorm", "fixup": "ResNet with FixUp"}[kind]
        rows += finish(asked, f"resnet-{kind}", model, task, title, ways=BASIC)
    return rows


if __name__ == "__main__":
    main()
