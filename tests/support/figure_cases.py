"""Small networks with data that the tests of figures share, in float64 on the device under test."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from fitting import built, classes, normal


@dataclass(frozen=True, kw_only=True)
class Small:
    """A network in float64 with inputs and targets, all on the device under test."""

    model: nn.Module
    x: Tensor
    y: Tensor
    likelihood: Any
    words: str  # how the dense references call the likelihood

    @property
    def data(self) -> tuple[Tensor, Tensor]:
        """Both."""
        return self.x, self.y

    @property
    def names(self) -> list[str]:
        """All parameters."""
        return [name for name, _ in self.model.named_parameters()]

    @property
    def plain(self) -> nn.Module:
        """A copy on the CPU, for references."""
        return copy.deepcopy(self.model).cpu()

    def fit(self, structure: Any = "full", **settings: Any) -> pw.Laplace:
        """A posterior with exact curvature."""
        settings.setdefault("curvature", "ggn")
        return pw.fit(self.model, self.data, self.likelihood, structure=structure, **settings)


def put(model: nn.Module, x: Tensor, y: Tensor, likelihood: Any, words: str) -> Small:
    """On the device under test, in evaluation mode."""
    return Small(
        model=built(model).to(DEVICE).eval(), x=x.to(DEVICE), y=y.to(DEVICE), likelihood=likelihood, words=words
    )


@functools.cache
def case(name: str) -> Small:
    """By name; made once, since asking changes nothing."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name == "classes":
            model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 3))
            return put(model, normal(30, 2), classes(3, 30), "classification", "classification")
        if name == "batch_norm":
            model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.BatchNorm1d(3), nn.Tanh(), nn.Linear(3, 2))
            return put(model, normal(20, 2), classes(2, 20), "classification", "classification")
        if name == "regression":
            model = nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1))
            x = normal(25, 1)
            return put(model, x, torch.sin(2 * x) + 0.1 * normal(25, 1, seed=3), pw.Gaussian(noise=0.4), "regression")
        if name == "two_outputs":
            model = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 2))
            return put(model, normal(12, 1), normal(12, 2, seed=3), pw.Gaussian(noise=0.5), "regression")
        if name == "images":
            model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 16, 3))
            return put(model, normal(12, 1, 6, 6), classes(3, 12), "classification", "classification")
        if name == "binary":
            model = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
            return put(model, normal(20, 2), classes(2, 20, 1).double(), "binary", "binary")
        raise KeyError(name)
