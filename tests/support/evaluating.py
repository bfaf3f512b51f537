"""Small networks, data and posteriors for tests of evaluations, on the device under test."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from fitting import built, classes, normal

C = 3


def network(dropout: float = 0.0) -> nn.Module:
    """(N, 1, 6, 6) -> (N, 3)."""
    layers: list[nn.Module] = [nn.Conv2d(1, 3, 3, 2, 1), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten()]
    return built(nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(27, C))).eval().to(DEVICE)


def images(examples: int = 40, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Pixels in 0 to 1, and labels."""
    x = torch.rand(examples, 1, 6, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x.to(DEVICE), classes(C, examples, seed=seed).to(DEVICE)


def numbers(examples: int = 40, outputs: int = 1, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Two inputs and some targets."""
    x = normal(examples, 2, seed=seed)
    return x.to(DEVICE), (x[:, :1] + 0.3 * normal(examples, outputs, seed=seed + 1)).to(DEVICE)


def regressor(outputs: int = 1) -> nn.Module:
    """(N, 2) -> (N, outputs)."""
    return built(nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, outputs))).to(DEVICE)


@functools.cache
def classifier() -> pw.Laplace:
    """A posterior of the network with dropout, which is fitted without it."""
    torch.manual_seed(0)
    return pw.fit(network(0.3), images(), "classification", prior=5.0)


@functools.cache
def regression(outputs: int = 1) -> pw.Laplace:
    """A posterior of numbers."""
    torch.manual_seed(0)
    return pw.fit(regressor(outputs), numbers(outputs=outputs), pw.Gaussian(noise=0.7), prior=5.0)


def timeless(report: Any) -> Any:
    """Without what differs from run to run."""
    return replace(report, methods=tuple(replace(each, seconds=0.0) for each in report.methods))


def agree(left: Any, right: Any) -> bool:
    """The same report twice; sums on a GPU may be taken in another order."""
    if DEVICE == "cpu":
        return bool(timeless(left).to_json() == timeless(right).to_json())
    for one, other in zip(left.methods, right.methods, strict=True):
        for name, each in one.metrics.items():
            if not math.isclose(each.value, other.metrics[name].value, rel_tol=1e-9, abs_tol=1e-12):
                return False
    return True
