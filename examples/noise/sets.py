"""Data for the scripts in this folder: UCI sets, CRISPR-Cas13 screens and a toy curve, split and standardised."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
SHARE = 0.9  # of the rows is for training
SCREENS = ("flow-cytometry-HEK293", "survival-screen-A375", "survival-screen-HEK293")
TOY_RANGE = (0.0, 10.0)


@dataclass(frozen=True)
class Scale:
    """Means and deviations of inputs and target; a constant input keeps its scale."""

    x_mean: np.ndarray
    x_deviation: np.ndarray
    y_mean: float
    y_deviation: float

    @staticmethod
    def of(x: np.ndarray, y: np.ndarray) -> Scale:
        """The scale of some rows."""
        deviation = x.std(0)
        return Scale(x.mean(0), np.where(deviation == 0, 1.0, deviation), float(y.mean()), float(y.std()))

    def inputs(self, x: np.ndarray) -> Tensor:
        """Standardised inputs (N, D), in float64."""
        return torch.from_numpy((x - self.x_mean) / self.x_deviation)

    def apply(self, x: np.ndarray, y: np.ndarray) -> Pair:
        """Standardised inputs (N, D) and targets (N,), in float64."""
        return self.inputs(x), torch.from_numpy((y - self.y_mean) / self.y_deviation)


@dataclass(frozen=True, kw_only=True)
class Task:
    """A regression with one target, standardised by the training data."""

    name: str
    train: Pair
    part: Pair  # of `train`, where the rest is validation data
    validation: Pair
    test: Pair
    scale: Scale
    published_test: Pair  # the test data by the statistics of `part`, as the published evaluation has them
    published_scale: Scale


def split(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train and to test on, those of scikit-learn's `train_test_split(train_size=0.9, random_state=seed)`."""
    order = np.random.RandomState(seed).permutation(count)
    tests = count - math.floor(SHARE * count)
    return order[tests:], order[:tests]


def assemble(name: str, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray], seed: int) -> Task:
    """Standardise, and hold out a tenth of the training data for validation."""
    x, y = train
    part, held = split(len(x), seed)
    scale, inner = Scale.of(x, y), Scale.of(x[part], y[part])
    return Task(
        name=name,
        train=scale.apply(x, y),
        part=scale.apply(x[part], y[part]),
        validation=scale.apply(x[held], y[held]),
        test=scale.apply(*test),
        scale=scale,
        published_test=inner.apply(*test),
        published_scale=inner,
    )


def split_task(name: str, x: np.ndarray, y: np.ndarray, seed: int) -> Task:
    """A tenth of the rows is test data."""
    train, test = split(len(x), seed)
    return assemble(name, (x[train], y[train]), (x[test], y[test]), seed)


def uci(folder: Path, name: str, seed: int) -> Task:
    """A UCI set, its rows in the order of the file."""
    with np.load(folder / "uci" / f"{name}.npz") as file:
        return split_task(name, file["X"], file["y"], seed)


def one_hot(letters: np.ndarray) -> np.ndarray:
    """(N, L) -> (N, 3 L): three zeros or ones per letter, all zero for the fourth."""
    return (letters[:, :, None] == np.unique(letters)[:-1]).reshape(len(letters), -1).astype(np.float64)


def crispr(folder: Path, name: str, seed: int, rows: int = 0) -> Task:
    """A CRISPR-Cas13 screen: sequences of 38 letters, and the mean of the replicates."""
    with np.load(folder / "crispr_cas13" / f"{name}.npz") as file:
        x, y = one_hot(file["x"]), file["ymean"][:, 0].astype(np.float64)
    return split_task(name, x[: rows or None], y[: rows or None], seed)


def toy_truth(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and deviation of the toy curve: a sine whose size and noise grow with x."""
    return x * np.sin(x), 0.1 + 0.4 * x


def toy(seed: int, points: int = 100, tests: int = 2000) -> Task:
    """The toy curve with `points` to train on."""
    random = np.random.RandomState(seed)

    def draw(count: int) -> tuple[np.ndarray, np.ndarray]:
        x = random.uniform(*TOY_RANGE, size=count)
        mean, deviation = toy_truth(x)
        return x[:, None], mean + deviation * random.standard_normal(count)

    return assemble("toy", draw(points), draw(tests), seed)
