"""Does the evidence rank architectures as test data do? MLPs over depth and width, by each way to take the evidence.

    python examples/evidence/architectures.py --data DIR

On tables of the UCI repository (in DIR/uci) and on scikit-learn's digits, the evidence of every MLP is taken at its
trained weights and at the linear mode, each with the prior that is best there, under the whole curvature and under
KFAC. Beside it stands the test log-likelihood of the same posterior. A row of the table has the rank correlation of
both over the MLPs, and the test log-likelihood of the MLP that the evidence chooses, of the best one, and of all on the
mean; all are means over the splits. With plotly there is a figure for each data set, of its first split. Without DIR
there are digits and scikit-learn's diabetes. `--sets concrete,yacht` and `--splits 1` make it shorter.
"""

from __future__ import annotations

import importlib.util
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import CONSOLE, options
from readers import Pair
from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw

DEPTHS, WIDTHS = (1, 2, 3), (2, 5, 20)
SPLITS, STEPS, DECAY = 3, 1000, 1e-4
UCI = ("concrete", "yacht", "boston", "energy")


@dataclass(frozen=True, kw_only=True)
class Split:
    """Training and test data of one split of a data set."""

    likelihood: str
    train: Pair
    test: Pair

    @property
    def outputs(self) -> int:
        """Of a network."""
        return 1 if self.likelihood == "regression" else int(self.train[1].max()) + 1


def trained(model: nn.Module, split: Split, steps: int) -> nn.Module:
    """Train all parameters with one weight decay."""
    x, y = split.train
    loss = F.mse_loss if split.likelihood == "regression" else F.cross_entropy
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(model(x), y).backward()
        optimiser.step()
        schedule.step()
    return model


@dataclass(frozen=True, eq=False, kw_only=True)
class Case:
    """One architecture on one split."""

    split: Split
    depth: int
    width: int
    seed: int
    steps: int

    def network(self) -> nn.Sequential:
        """An MLP with `depth` hidden layers, untrained: the same each time."""
        torch.manual_seed(1000 * self.seed + 10 * self.width + self.depth)
        sizes = [self.split.train[0].shape[1], *[self.width] * self.depth]
        layers = [layer for a, b in pairwise(sizes) for layer in (nn.Linear(a, b), nn.Tanh())]
        return nn.Sequential(*layers, nn.Linear(self.width, self.split.outputs)).double()

    @cached_property
    def trained(self) -> nn.Module:
        """The network after plain training."""
        return trained(self.network(), self.split, self.steps)

    @cached_property
    def full(self) -> pw.Laplace:
        """The whole curvature at the trained weights."""
        return pw.fit(self.trained, self.split.train, self.split.likelihood, structure="full", curvature="ggn")

    @cached_property
    def kron(self) -> pw.Laplace:
        """Its approximation by Kronecker products."""
        return pw.fit(self.trained, self.split.train, self.split.likelihood, structure="kron", curvature="ggn")


@dataclass(frozen=True, kw_only=True)
class Way:
    """How the posterior of an architecture is made, and how it predicts."""

    posterior: Callable[[Case], pw.Laplace]
    predict: dict[str, Any] = field(default_factory=dict)


# By the name in the table: another way to make a posterior is one more row. The evidence at the linear mode is that of
# the linear model, whose predictions stand around its own mode.
THERE = {"at": "linear_mode"}
WAYS = {
    "trained weights": Way(posterior=lambda case: case.full.tune(at="trained_weights")),
    "trained weights, kron": Way(posterior=lambda case: case.kron.tune(at="trained_weights")),
    "linear mode": Way(posterior=lambda case: case.full.tune(at="linear_mode", train=case.split.train), predict=THERE),
    "linear mode, kron": Way(
        posterior=lambda case: case.kron.tune(at="linear_mode", train=case.split.train), predict=THERE
    ),
}


def scaled(inputs: np.ndarray, targets: np.ndarray, tested: np.ndarray, classes: bool) -> Split:
    """Columns, and targets that are numbers, standardised by the training data."""
    middle, spread = inputs[~tested].mean(0), inputs[~tested].std(0)
    x = torch.tensor((inputs - middle) / np.where(spread > 1e-8, spread, 1.0))
    numbers = (targets - targets[~tested].mean()) / targets[~tested].std()
    y: Tensor = torch.tensor(targets) if classes else torch.tensor(numbers)[:, None]
    known = torch.tensor(tested)
    return Split(
        likelihood="classification" if classes else "regression",
        train=(x[~known], y[~known]),
        test=(x[known], y[known]),
    )


def split_of(name: str, number: int, folder: Path | None) -> Split:
    """The n-th split of a data set: the standard one of a table of the UCI repository, else a third at random."""
    if folder is not None and name in UCI:
        content = np.load(folder / "uci" / f"{name}.npz")
        return scaled(content["X"], content["y"], content["test_mask"][number], False)
    from sklearn import datasets  # shipped with scikit-learn

    bunch = getattr(datasets, f"load_{name}")()
    tested = np.random.RandomState(number).permutation(len(bunch.data)) < len(bunch.data) // 3
    return scaled(bunch.data, bunch.target, tested, name == "digits")


def compared(cases: dict[str, Case], test: Pair) -> dict[str, pw.Comparison]:
    """A comparison of all architectures for each way."""
    return {
        name: pw.compare(
            {architecture: way.posterior(case) for architecture, case in cases.items()}, test=test, predict=way.predict
        )
        for name, way in WAYS.items()
    }


@dataclass(frozen=True, kw_only=True)
class Line:
    """One way on one data set: means over the splits."""

    data: str
    way: str
    correlation: float
    chosen: str  # by the evidence, split by split
    chosen_fit: float  # test log-likelihood per example of what the evidence chooses
    best_fit: float  # of the best MLP
    mean_fit: float  # of all MLPs


def line(data: str, way: str, comparisons: list[pw.Comparison]) -> Line:
    """What the evidence was worth."""

    def mean(values: list[float]) -> float:
        return sum(values) / len(values)

    fits = [[row.test_log_likelihood for row in comparison] for comparison in comparisons]
    return Line(
        data=data,
        way=way,
        correlation=mean(
            [math.nan if each.rank_correlation is None else each.rank_correlation for each in comparisons]
        ),
        chosen=", ".join(dict.fromkeys(comparison.best.name for comparison in comparisons)),
        chosen_fit=mean([values[0] for values in fits]),
        best_fit=mean([max(values) for values in fits]),
        mean_fit=mean([mean(values) for values in fits]),
    )


def show(lines: list[Line]) -> None:
    """Print the table."""
    head = ("data", "evidence at", "rank correlation", "chosen (depth x width)", "its test LL", "best", "mean of all")
    table = Table(title="Evidence against test log-likelihood per example, over depth and width", box=SIMPLE_HEAD)
    for place, name in enumerate(head):
        table.add_column(name, justify="left" if place in (0, 1, 3) else "right", no_wrap=True)
    for each in lines:
        numbers = [f"{value:.3f}" for value in (each.chosen_fit, each.best_fit, each.mean_fit)]
        table.add_row(each.data, each.way, f"{each.correlation:.2f}", each.chosen, *numbers)
    CONSOLE.print(table, highlight=False)


def main(arguments: list[str] | None = None) -> list[Line]:
    """Compare on every data set, and print the table."""
    parser = options(__doc__)
    parser.add_argument("--sets", default="", help="data sets, joined by commas")
    parser.add_argument("--splits", type=int, default=SPLITS)
    asked = parser.parse_args(arguments)
    folder = Path(asked.data) if asked.data and Path(asked.data, "uci").is_dir() else None
    known = (*UCI, "digits") if folder is not None else ("diabetes", "digits")
    names = asked.sets.split(",") if asked.sets else known[-2:] if asked.quick else known
    depths, widths, steps = ((1, 2), (2, 4), 40) if asked.quick else (DEPTHS, WIDTHS, STEPS)
    lines = []
    for name in names:
        by_way: dict[str, list[pw.Comparison]] = {way: [] for way in WAYS}
        for number in range(1 if asked.quick else asked.splits):
            split = split_of(name, number, folder)
            cases = {
                f"{depth} x {width}": Case(split=split, depth=depth, width=width, seed=asked.seed + number, steps=steps)
                for depth in depths
                for width in widths
            }
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", pw.PeewitWarning)  # of predictions: here the evidence compares
                for way, comparison in compared(cases, split.test).items():
                    by_way[way].append(comparison)
        for way, comparisons in by_way.items():
            CONSOLE.print(f"{name}, evidence at {way}\n{comparisons[0]}\n", highlight=False, soft_wrap=True)
        lines += [line(name, way, comparisons) for way, comparisons in by_way.items()]
        if importlib.util.find_spec("plotly") is not None:
            asked.out.mkdir(parents=True, exist_ok=True)
            figure = pw.figures.evidence_against_test({way: each[0] for way, each in by_way.items()})
            pw.figures.save(figure, asked.out / f"architectures-{name}.html")
    show(lines)
    return lines


if __name__ == "__main__":
    main()
