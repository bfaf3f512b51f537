"""Four architectures with random weights, each fitted in one call: time, memory and results.

Run it with `python examples/architectures.py`. It takes less than a minute on two cores.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw


class Residual(nn.Module):
    """Two convolutions with BatchNorm, and a short cut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.first_norm = nn.BatchNorm2d(outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.second_norm = nn.BatchNorm2d(outputs)
        same = stride == 1 and inputs == outputs
        short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        self.short = nn.Identity() if same else short

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.first_norm(self.first(x)), inplace=True)
        return F.relu(self.second_norm(self.second(y)) + self.short(x), inplace=True)


def resnet18(width: int = 64, classes: int = 10) -> nn.Sequential:
    """ResNet-18 for small images (B, 3, H, W); a smaller `width` makes all of its layers narrower."""
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    blocks = []
    for stage, (inputs, outputs) in enumerate(pairwise(widths)):
        blocks += [Residual(inputs, outputs, 1 if stage == 0 else 2), Residual(outputs, outputs, 1)]
    stem = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], classes))


class VisionTransformer(nn.Module):
    """Patches, a class token, a position parameter, and transformer blocks with LayerNorm."""

    def __init__(self, width: int = 64, depth: int = 2, side: int = 32, patch: int = 8, classes: int = 10) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1, (side // patch) ** 2 + 1, width))
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, activation="gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.position
        return self.head(self.blocks(tokens)[:, 0])


class Forecaster(nn.Module):
    """An LSTM over a series (B, T, 1) that predicts its next value (B, 1)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.lstm = nn.LSTM(1, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(x)
        return self.head(states[:, -1])


class GPT(nn.Module):
    """A causal transformer over tokens (B, T) to logits (B, T, V); its head is its token embedding."""

    def __init__(self, vocabulary: int = 24, width: int = 32, depth: int = 2, length: int = 10) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(length, width)
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, activation="gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, depth, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, x.device)
        x = self.tokens(x) + self.positions(torch.arange(length, device=x.device))
        return self.head(self.blocks(x, mask=mask, is_causal=True))


@dataclass(frozen=True, kw_only=True)
class Example:
    """A network with data to fit it to, and inputs to predict at."""

    name: str
    model: nn.Module
    x: Tensor
    y: Tensor
    likelihood: str


def examples() -> list[Example]:
    """Random weights and random data: they show that the networks run, and how long they take."""
    torch.manual_seed(0)
    series = torch.sin(torch.rand(256, 1, 1) * 6 + 0.3 * torch.arange(21)[None, :, None])
    tokens = torch.randint(24, (64, 11))
    return [
        Example(
            name="ResNet-18 / 4",
            model=resnet18(16),
            x=torch.randn(64, 3, 32, 32),
            y=torch.randint(10, (64,)),
            likelihood="classification",
        ),
        Example(
            name="ViT",
            model=VisionTransformer(),
            x=torch.randn(64, 3, 32, 32),
            y=torch.randint(10, (64,)),
            likelihood="classification",
        ),
        Example(name="LSTM", model=Forecaster(), x=series[:, :-1], y=series[:, -1], likelihood="regression"),
        Example(name="GPT, tied", model=GPT(), x=tokens[:, :-1], y=tokens[:, 1:], likelihood="classification"),
    ]


def main() -> None:
    """Fit each, compute the covariance of 8 outputs, and print the results."""
    console = Console()
    table = Table(title="structure='kron' over all weights, CPU")
    for column in ("network", "weights", "N", "curvature", "fit", "cov of 8 inputs", "in"):
        table.add_column(column, justify="left" if column in ("network", "curvature") else "right")
    for each in track(examples(), "fitting", console=console, transient=True):
        began = time.perf_counter()
        la = pw.fit(each.model, (each.x, each.y), each.likelihood, structure="kron", prior=10.0)
        fitted = time.perf_counter()
        mean, cov = la.functional(each.x[:8])
        asked = time.perf_counter()
        assert bool(torch.isfinite(cov).all()) and mean.shape[0] == cov.shape[0] == 8
        table.add_row(
            each.name,
            f"{la.D:,}",
            str(la.N),
            la.curvature.name,
            f"{fitted - began:.1f} s",
            "×".join(map(str, cov.shape)),
            f"{asked - fitted:.2f} s",
        )
    console.print(table)
    console.print("ResNet-18 / 4 has a quarter of the channels of ResNet-18. Weights and data are random.")


if __name__ == "__main__":
    main()
