"""Checkpoints of plain training runs, ranked by the evidence at each, beside their test loss.

    python examples/evidence/checkpoints.py [--out DIR]

Runs without a weight decay overfit: the test loss falls, and then rises. At each checkpoint a posterior is fitted and
its prior tuned, at the trained weights and at the linear mode, from the training data alone. Would the evidence have
chosen a good checkpoint? The script prints rank correlations of evidence and test log-likelihood, and what a choice by
the evidence loses beside the best checkpoint.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import asdict, dataclass
from typing import Any

import torch
from common import BLUE, GREY, ORANGE, options
from readers import Pair, digits
from runs import figure, fresh, plain, save, spearman, surprise, table
from torch import nn
from torch.nn import functional as F

import peewit as pw

EPOCHS = (5, 10, 15, 20, 30, 40, 60, 80, 110, 150)
WAYS = {"trained": "evidence, trained weights", "linear": "evidence, linear mode", "train": "training loss"}


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A network during training: its losses, and the evidence at it."""

    epoch: int
    train: float  # NLL
    test: float
    trained: float  # log evidence per example, tuned at the trained weights
    linear: float  # and at the linear mode
    precision: float  # tuned at the trained weights
    precision_linear: float


def network() -> nn.Module:
    """Two hidden layers of 50."""
    return nn.Sequential(nn.Linear(196, 50), nn.ReLU(), nn.Linear(50, 50), nn.ReLU(), nn.Linear(50, 10))


def measured(model: nn.Module, epoch: int, data: Pair, test: Pair, turns: int) -> Checkpoint:
    """A posterior of a copy of the network, tuned in both ways."""
    model = copy.deepcopy(model)
    la = pw.fit(model, data, "classification")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pw.PeewitWarning)  # of predictions, which nobody asks for here
        trained = la.tune()
        linear = trained.tune(at="linear_mode", train=data, tolerance=0.1 if turns > 1 else 5.0, steps=turns)
    return Checkpoint(
        epoch=epoch,
        train=surprise(model, data),
        test=surprise(model, test),
        trained=float(trained.log_evidence()) / len(data[0]),
        linear=float(linear.log_evidence()) / len(data[0]),
        precision=float(trained.prior.precision),
        precision_linear=float(linear.prior.precision),
    )


def follow(seed: int, data: Pair, test: Pair, epochs: tuple[int, ...], turns: int) -> list[Checkpoint]:
    """A plain run, and what its checkpoints come to."""
    model = fresh(network, "cpu", seed)
    found: list[Checkpoint] = []

    def each(epoch: int) -> None:
        if epoch in epochs:
            with torch.random.fork_rng(devices=[]):
                found.append(measured(model, epoch, data, test, turns))

    plain(model, data, 0.0, max(epochs), 2e-3, each)
    return found


def ranked(run: list[Checkpoint]) -> dict[str, tuple[float, float]]:
    """For each way to rank: the correlation with the test log-likelihood, and the NLL that its choice loses."""
    scores = {name: [getattr(each, name) for each in run] for name in ("trained", "linear")}
    scores["train"] = [-each.train for each in run]
    test = [-each.test for each in run]
    best = max(test)
    return {
        name: (spearman(values, test), best - test[max(range(len(run)), key=values.__getitem__)])
        for name, values in scores.items()
    }


def draw(runs: list[list[Checkpoint]]) -> Any:
    """Losses over epochs, evidences over epochs, and test loss against evidence."""
    made = figure(12.5, 3.9, 3)
    if made is None:
        return None
    picture, (left, middle, right) = made
    for place, run in enumerate(runs):
        epochs = [each.epoch for each in run]
        shown = "" if place == 0 else "_"  # matplotlib leaves labels with a bar out: one entry for all runs
        left.semilogx(epochs, [each.test for each in run], "-o", ms=3, color="k", label=f"{shown}test")
        left.semilogx(epochs, [each.train for each in run], ":", color=GREY, label=f"{shown}train")
        for key, colour, marker in (("trained", ORANGE, "o"), ("linear", BLUE, "s")):
            values = [getattr(each, key) for each in run]
            label = shown + WAYS[key].removeprefix("evidence, ")
            middle.semilogx(epochs, values, "-", marker=marker, ms=3, color=colour, label=label)
            right.plot(values, [each.test for each in run], marker, ms=4, color=colour, alpha=0.7, label=label)
    left.set(xlabel="epoch", ylabel="NLL", title="plain training overfits")
    middle.set(xlabel="epoch", ylabel="log evidence / N", title="the evidence at each checkpoint")
    right.set(xlabel="log evidence / N", ylabel="test NLL", title="a checkpoint each")
    for panel in (left, middle, right):
        panel.legend(fontsize=8)
    return picture


def main(arguments: list[str] | None = None) -> list[list[Checkpoint]]:
    """Some runs, their rankings, and the picture."""
    parser = options(__doc__)
    parser.add_argument("--runs", type=int, default=2)
    asked = parser.parse_args(arguments)
    task = digits(None)
    count = asked.images or (150 if asked.quick else 600)
    data, test = (
        (F.avg_pool2d(x, 2).flatten(1), y) for x, y in ((task.train[0][:count], task.train[1][:count]), task.test)
    )
    epochs = (2, 4, 8) if asked.quick else EPOCHS
    number, turns = (1, 1) if asked.quick else (asked.runs, asked.turns)
    runs = [follow(asked.seed + each, data, test, epochs, turns) for each in range(number)]
    head = (
        "epoch",
        "train NLL",
        "test NLL",
        "evidence/N, trained",
        "evidence/N, linear",
        "precision",
        "precision, linear",
    )
    for place, run in enumerate(runs):
        numbers = [tuple(asdict(each).values()) for each in run]
        rows = [(str(epoch), *(f"{value:.4g}" for value in values)) for epoch, *values in numbers]
        table(f"run {place + 1}", head, rows)
    rankings = [ranked(run) for run in runs]
    lines = [
        (WAYS[way], *(f"{each[way][0]:.2f}" for each in rankings), *(f"{each[way][1]:.3f}" for each in rankings))
        for way in WAYS
    ]
    columns = [f"run {place + 1}" for place in range(number)]
    table(
        "rank correlation with the test log-likelihood; NLL lost by the choice",
        ("ranked by", *columns, *columns),
        lines,
    )
    save(
        asked.out,
        "checkpoints",
        draw(runs),
        {"runs": [[asdict(each) for each in run] for run in runs], "ranked": rankings},
    )
    return runs


if __name__ == "__main__":
    main()
