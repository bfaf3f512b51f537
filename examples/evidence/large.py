"""A network of 25 million weights with KFAC on a GPU: time and peak memory of every step, and the score of each prior.

    python examples/evidence/large.py --data DIR --device cuda

A residual network with BatchNorm on CIFAR-10, with most of its weights at 4 x 4 positions. `--images` is the number of
training images, 4,000 by default.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from common import CONSOLE, WAYS, Row, cross_entropy, folder, judged, keep, options, plain, prior, train, tuned
from readers import colour
from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw


class Block(nn.Module):
    """Two convolutions with BatchNorm beside a short cut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, width, H, W) -> (B, width, H, W)."""
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


def network(width: int, blocks: int) -> nn.Sequential:
    """Four convolutions down to an eighth of the size, residual blocks there, and a linear head."""
    layers: list[nn.Module] = []
    sizes = (3, width // 8, width // 4, width // 2, width)
    for place, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]
        layers += [nn.MaxPool2d(2)] if place else []
    layers += [Block(width) for _ in range(blocks)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


class Steps:
    """Seconds and peak memory of each step."""

    def __init__(self, device: str) -> None:
        self.cuda = device.startswith("cuda")
        self.made: list[tuple[str, float, float]] = []

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure the block inside."""
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        began = time.perf_counter()
        yield
        if self.cuda:
            torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() / 2**30 if self.cuda else float("nan")
        self.made.append((name, time.perf_counter() - began, peak))
        CONSOLE.print(f"  {name}: {self.made[-1][1]:.1f} s, peak {peak:.2f} GiB", highlight=False)

    def show(self) -> None:
        """The measurements as a table."""
        table = Table("step", "seconds", "peak GiB", box=SIMPLE_HEAD, title="time and memory")
        for name, seconds, peak in self.made:
            table.add_row(name, f"{seconds:.1f}", f"{peak:.2f}")
        CONSOLE.print(table, highlight=False)


def main(arguments: list[str] | None = None) -> list[Row]:
    """Measure training, fit, tuning and evaluation."""
    parser = options(__doc__)
    parser.add_argument("--test", type=int, default=2_000, help="images to test on")
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument(
        "--groups", action="store_true", help="also one precision per tensor at theta_lin, the longest step"
    )
    asked = parser.parse_args(arguments)
    steps, images = Steps(asked.device), asked.images or 4_000
    with steps.step("reading"):
        task = colour(folder(asked, "cifar10"), train=images, held=500)
        task = (task.cut(32, 8) if asked.quick else task.cut(images, asked.test)).to(asked.device)
    torch.manual_seed(asked.seed)
    model = network(*((16, 1) if asked.quick else (512, 5))).to(asked.device)
    with steps.step("training"):
        train(model, task.train, cross_entropy, epochs=6 if asked.quick else asked.epochs, rate=2e-3, batch=128)
    rows = [plain(model, task, "classification")]
    with steps.step("fit, KFAC"):
        la = pw.fit(model, task.train, "classification")
    for way in WAYS[: 4 if asked.groups else 3]:
        began = time.perf_counter()
        with steps.step(f"tuning: {way.name}"):
            made = tuned(la, way, prior(way.prior, model, task.train), task, 1 if asked.quick else asked.turns)
        spent = time.perf_counter() - began
        with steps.step(f"predictions of {len(task.test[0]):,}: {way.name}"):
            scores = judged(made, task)
        parts = made.evidence()
        scores |= {"seconds": spent, "evidence": parts.total, "gamma": parts.gamma}
        rows.append(Row(name=way.name, mode=way.mode, prior=way.prior, fit="all, kron", scores=scores))
    steps.show()
    title = f"ResNet with BatchNorm, {la.D:,} weights, {task.name}"
    keep(asked.out, "large", rows, title, steps=steps.made, device=asked.device, weights=la.D)
    return rows


if __name__ == "__main__":
    main()
