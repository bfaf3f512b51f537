"""A network that overfits under a fixed prior and not under a learnt one, and what other ways to choose it cost.

    python examples/evidence/overfitting.py [--out DIR] [--cifar --data DIR --device cuda]

Two runs have the same network, data and seed. One has a tiny weight decay; in the other the evidence learns the prior
precision every few epochs. Beside them: a grid of precisions on a fifth of the data held out, and five-fold
cross-validation on the same grid, each with its cost in units of one plain training.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from common import BLUE, CONSOLE, GREEN, GREY, ORANGE, folder, options
from readers import Pair, Task, colour, digits
from resnets import network as resnet
from runs import figure, flat, folds, fresh, learn, now, plain, save, surprise, table
from torch import nn

import peewit as pw
from peewit.metrics import nll

TINY = 0.01  # prior precision of the run that overfits
GRID = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
PARTS = 5  # of the data; the first is the validation set
LIMIT = 10.0  # up to which a picture shows the NLL


@dataclass(frozen=True, eq=False, kw_only=True)
class Setup:
    """What all runs have in common."""

    task: Task
    make: Callable[[], nn.Module]
    epochs: int
    every: int
    rate: float
    device: str
    seed: int
    curvature: str
    grid: tuple[float, ...]

    def train(self, pair: Pair, precision: float) -> tuple[nn.Module, float]:
        """A network under a fixed precision, and what it took."""
        model, began = fresh(self.make, self.device, self.seed), now(self.device)
        plain(model, pair, precision, self.epochs, self.rate)
        return model, now(self.device) - began


@dataclass(frozen=True, eq=False)
class Curves:
    """Over epochs: train and test NLL; over hyper-steps: the log evidence per example."""

    train: list[float]
    test: list[float]
    epochs: list[int]
    evidence: list[float]
    kept: int  # the epoch of the weights that were kept


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A way to choose the prior."""

    name: str
    precision: str
    nll: float
    seconds: float
    trainings: str


def follow(setup: Setup, prior: pw.Prior, rate: float) -> tuple[Curves, pw.Laplace, float]:
    """A run with the evidence beside it: learnt, or only looked at where the rate is zero."""
    model = fresh(setup.make, setup.device, setup.seed)
    run = pw.learning.train(
        model,
        setup.task.train,
        "classification",
        torch.optim.Adam(model.parameters(), lr=setup.rate),
        epochs=setup.epochs,
        every=setup.every,
        prior=prior,
        rate=rate,
        curvature=setup.curvature,
    )
    train: list[float] = []
    test: list[float] = []

    def each(record: pw.learning.LearningRecord) -> None:
        train.append(surprise(model, setup.task.train))
        test.append(surprise(model, setup.task.test))

    posterior, seconds = learn(run, setup.device, each)
    steps = run.history.hyper_steps
    evidence = [float(record.log_evidence or 0.0) / record.examples for record in steps]
    best = run.history.best
    assert best is not None and best.epoch is not None
    epochs = [record.epoch or 0 for record in steps]
    return Curves(train, test, epochs, evidence, best.epoch), posterior, seconds


def searches(setup: Setup) -> tuple[list[Choice], dict[str, list[float]]]:
    """The grid on held-out data, the same with five folds, and the NLL on the test data of every precision."""
    x, y = setup.task.train
    held_out = torch.zeros(PARTS, len(setup.grid))
    seconds = torch.zeros(PARTS, len(setup.grid))
    for part, (kept, held) in enumerate(folds(len(x), PARTS)):
        kept, held = kept.to(x.device), held.to(x.device)
        for place, precision in enumerate(setup.grid):
            model, spent = setup.train((x[kept], y[kept]), precision)
            held_out[part, place], seconds[part, place] = surprise(model, (x[held], y[held])), spent
        CONSOLE.print(f"  fold {part + 1} of {PARTS}: {float(seconds[part].sum()):.0f} s", highlight=False)
    last = [setup.train(setup.task.train, precision) for precision in setup.grid]
    test = [surprise(model, setup.task.test) for model, _ in last]

    def choice(name: str, place: int, searched: float, trainings: str) -> Choice:
        text = f"{setup.grid[place]:g}"
        spent = searched + last[place][1]
        return Choice(name=name, precision=text, nll=test[place], seconds=spent, trainings=trainings)

    count, single, all_parts = len(setup.grid), int(held_out[0].argmin()), int(held_out.mean(0).argmin())
    best, tiny = min(range(count), key=test.__getitem__), setup.grid.index(TINY)
    choices = [
        choice("tiny weight decay", tiny, 0.0, "1"),
        choice("a fifth held out", single, float(seconds[0].sum()), f"{count} + 1"),
        choice("five-fold cross-validation", all_parts, float(seconds.sum()), f"{PARTS * count} + 1"),
        choice("the test data themselves", best, sum(spent for _, spent in last[:best] + last[best + 1 :]), f"{count}"),
    ]
    curves = {"validation": held_out[0].tolist(), "folds": held_out.mean(0).tolist(), "test": test}
    return choices, curves


def learnt(setup: Setup, name: str, prior: pw.Prior) -> tuple[Curves, list[Choice], pw.Laplace]:
    """The evidence's own choice, as the network at the kept weights and as predictions of its posterior."""
    curves, la, seconds = follow(setup, prior, 0.1)
    values = sorted(la.prior.precision.tolist())
    text = f"{values[0]:.3g}" if len(values) == 1 else f"{values[0]:.3g} to {values[-1]:.3g}"
    x, y = setup.task.test
    made = {name: surprise(la.model, setup.task.test), f"{name}, posterior": nll(la.predict(x).probs, y)}
    choices = [
        Choice(name=each, precision=text, nll=value, seconds=seconds, trainings="1") for each, value in made.items()
    ]
    return curves, choices, la


def draw(
    fixed: Curves, free: Curves, scanned: dict[str, list[float]], precision: float, setup: Setup, title: str
) -> Any:
    """NLL over epochs, evidence over epochs, and NLL against the precision."""
    made = figure(13, 4.2, 3)
    if made is None:
        return None
    picture, (left, middle, right) = made
    for curves, colour_, name in ((fixed, ORANGE, f"precision {TINY:g}, fixed"), (free, BLUE, "precision learnt")):
        epochs = range(1, len(curves.test) + 1)
        left.plot(epochs, curves.test, color=colour_, label=f"test, {name}")
        left.plot(epochs, curves.train, color=colour_, ls=":", label=f"train, {name}")
        middle.plot(curves.epochs, curves.evidence, color=colour_, marker="o", ms=3, label=name)
    place = free.epochs.index(free.kept)
    middle.plot([free.kept], [free.evidence[place]], "*", color=BLUE, ms=14, label="kept")
    left.axvline(free.kept, color=BLUE, lw=0.8, ls="--")
    left.set(xlabel="epoch", ylabel="NLL", title="the network alone", ylim=(0, min(LIMIT, 1.05 * max(fixed.test))))
    middle.set(xlabel="epoch", ylabel="log evidence / N", title="the evidence needs no test data")
    middle.set_yscale("symlog", linthresh=1)
    looks = {
        "validation": (GREEN, "--", "a fifth held out"),
        "folds": (GREEN, "-", "five folds"),
        "test": ("k", "-", "test"),
    }
    for key, (colour_, dashes, name) in looks.items():
        right.semilogx(setup.grid, scanned[key], color=colour_, ls=dashes, marker="o", ms=3, label=name)
    right.axvline(precision, color=BLUE, label="chosen by the evidence")
    right.axhline(free.test[free.kept - 1], color=GREY, lw=0.8, ls=":")
    right.set(xlabel="prior precision, fixed", ylabel="NLL after the last epoch", title="what a search would choose")
    for panel in (left, middle, right):
        panel.legend(fontsize=8)
    picture.suptitle(title, fontsize=11)
    return picture


def clothes(images: int) -> Task:
    """Images of clothes as vectors: some to train on, and the shipped test images."""
    task = digits(None)
    x, y = task.train
    train = flat((x[:images], y[:images]))
    return Task(f"Fashion-MNIST, {images:,} images", train, flat(task.validation), flat(task.test))


def perceptron() -> nn.Module:
    """Two hidden layers of 100."""
    return nn.Sequential(nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 100), nn.ReLU(), nn.Linear(100, 10))


def setup_of(asked: argparse.Namespace) -> Setup:
    """Clothes and an MLP, or CIFAR-10 and a ResNet; with `--quick` a few examples and epochs."""
    if asked.cifar:
        task = colour(folder(asked, "cifar10"), train=asked.images or 10_000)
        make, epochs, curvature = lambda: resnet("batchnorm", (4, 8, 16) if asked.quick else (16, 32, 64)), 60, "fisher"
    else:
        task = clothes(asked.images or (200 if asked.quick else 2_000))
        make, epochs, curvature = perceptron, 100, "auto"
    if asked.quick:
        task, epochs = task.cut(*(64, 64) if asked.cifar else (200, 200)), 4
    return Setup(
        task=task.to(asked.device),
        make=make,
        epochs=asked.epochs or epochs,
        every=2 if asked.quick else 5,
        rate=1e-3,
        device=asked.device,
        seed=asked.seed,
        curvature=curvature,
        grid=(TINY, 10.0) if asked.quick else GRID,
    )


def main(arguments: list[str] | None = None) -> list[Choice]:
    """Train under both priors, search in both other ways, and compare."""
    parser = options(__doc__)
    parser.add_argument("--cifar", action="store_true", help="CIFAR-10 and a ResNet, meant for a GPU")
    parser.add_argument("--epochs", type=int, default=0, help="of every training; 0: 100, or 60 with --cifar")
    asked = parser.parse_args(arguments)
    setup = setup_of(asked)
    fixed, _, _ = follow(setup, pw.Prior.scalar(TINY), 0.0)
    free, own, la = learnt(setup, "evidence, one precision", pw.Prior.scalar())
    _, several, _ = learnt(setup, "evidence, one per tensor", pw.Prior.layerwise())
    choices, scanned = searches(setup)
    unit = choices[0].seconds
    choices = [choices[0], *own, *several, *choices[1:]]
    rows = [
        (
            each.name,
            each.precision,
            f"{each.nll:.3f}",
            each.trainings,
            f"{each.seconds:.1f}",
            f"{each.seconds / unit:.1f}",
        )
        for each in choices
    ]
    weights = sum(parameter.numel() for parameter in la.model.parameters())
    title = f"{setup.task.name}, {weights:,} weights, {setup.epochs} epochs"
    table(title, ("chosen by", "precision", "test NLL", "trainings", "seconds", "x plain"), rows)
    name = "overfitting_cifar" if asked.cifar else "overfitting"
    picture = draw(fixed, free, scanned, float(la.prior.precision), setup, title)
    curves = {"fixed": asdict(fixed), "learnt": asdict(free), "grid": list(setup.grid), **scanned}
    save(asked.out, name, picture, {"title": title, "choices": [asdict(each) for each in choices], "curves": curves})
    return choices


if __name__ == "__main__":
    main()
