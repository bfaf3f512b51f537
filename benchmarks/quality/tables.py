"""Tables: scikit-learn's own, and those of the UCI repository."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.quality.cases import DROPOUT, MEMBERS, Case, Make, Networks, Parts, Task, Training
from benchmarks.quality.reading import folder
from benchmarks.quality.training import Recipe, train_perceptrons

Table = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # inputs, targets, (splits, N) booleans: what is tested
SHARES = (0.7, 0.15, 0.15)  # of what is not tested: for training, for stopping, for tuning
TRAININGS: tuple[Training, ...] = ("early", "fixed")
NOISE = 0.5  # of the shifted inputs, in standard deviations of each feature
RECIPES = {"protein": Recipe(steps=6000, batch=256), "kin8nm": Recipe(batch=128), "power": Recipe(batch=128)}


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """One split of a table, whole or with a part left out."""

    split: int
    variant: str
    parts: Parts


def shipped(name: str) -> Callable[[Path | None], Table]:
    """A table that comes with scikit-learn."""

    def read(_: Path | None) -> Table:
        import sklearn.datasets  # not on every machine that measures

        bunch = getattr(sklearn.datasets, f"load_{name}")()
        return bunch.data, bunch.target, None

    return read


def uci(name: str) -> Callable[[Path | None], Table]:
    """A table for regression with its standard splits."""

    def read(data: Path | None) -> Table:
        content = np.load(folder(data) / "uci" / f"{name}.npz")
        return content["X"], content["y"], content["test_mask"]

    return read


def uci_classes(name: str) -> Callable[[Path | None], Table]:
    """A table of classes."""

    def read(data: Path | None) -> Table:
        content = np.load(folder(data) / "uci_classification" / f"{name}.npz")
        if "X" in content:
            return content["X"], content["y"], None
        both = [np.concatenate([content[f"{axis}_tr"], content[f"{axis}_te"]]) for axis in ("X", "y")]
        return both[0], both[1], None

    return read


def table(name: str, read: Callable[[Path | None], Table]) -> Make:
    """Cases of a table: all splits are trained at once, with all data and with a part of them left out."""

    def make(task: Task, data: Path | None, splits: range, device: torch.device) -> Iterator[Case]:
        inputs, targets, tested = read(data)
        classes = task.likelihood == "classification"
        if classes:
            targets = np.unique(targets, return_inverse=True)[1]
        jobs = [
            Job(split=split, variant=variant, parts=parts)
            for split in splits
            for variant in ("whole", "left out")
            if (parts := parts_of(inputs, targets, tested, split, variant, classes)) is not None
        ]
        runs = [(job, member) for job in jobs for member in range(MEMBERS + 1)]
        trained = train_perceptrons(
            [job.parts.train for job, _ in runs],
            [job.parts.stop for job, _ in runs],
            [seed_of(job.split, job.variant) + member for job, member in runs],
            [DROPOUT * (member == MEMBERS) for _, member in runs],
            int(targets.max()) + 1 if classes else 1,
            task.likelihood,
            RECIPES.get(name, Recipe()),
        )
        for number, job in enumerate(jobs):
            first = number * (MEMBERS + 1)
            for training, networks in zip(TRAININGS, trained, strict=True):
                own = [trimmed(each, job.parts, classes) for each in networks[first : first + MEMBERS + 1]]
                yield Case(
                    task=name,
                    likelihood=task.likelihood,
                    training=training,
                    variant=job.variant,
                    split=job.split,
                    parts=job.parts.to(device),
                    networks=Networks(tuple(each.to(device) for each in own[:MEMBERS]), own[MEMBERS].to(device)),
                )

    return make


def seed_of(split: int, variant: str) -> int:
    """Of the plain network; the other members of its ensemble have the next ones."""
    return 1000 * split + 10 * (variant == "left out")


def trimmed(network: nn.Sequential, parts: Parts, classes: bool) -> nn.Sequential:
    """Without outputs of classes that were left out, which are the last ones."""
    head = network[-1]
    number = int(parts.train[1].max()) + 1 if classes else 1
    if not isinstance(head, nn.Linear) or head.out_features == number:
        return network
    smaller = nn.Linear(head.in_features, number)
    with torch.no_grad():
        smaller.weight.copy_(head.weight[:number])
        smaller.bias.copy_(head.bias[:number])
    return nn.Sequential(*list(network)[:-1], smaller).eval()


def parts_of(
    inputs: np.ndarray, targets: np.ndarray, tested: np.ndarray | None, split: int, variant: str, classes: bool
) -> Parts | None:
    """One split, scaled by its training part; None where no class can be left out."""
    random = np.random.RandomState(split)
    order = random.permutation(len(inputs))
    if tested is None:
        test, rest = np.split(order, [len(order) // 5])
    else:
        test, rest = order[tested[split][order]], order[~tested[split][order]]
    unknown = np.zeros(len(inputs), bool)
    labels = targets
    if variant == "left out":
        if classes:
            number = int(targets.max()) + 1
            if number < 3:
                return None
            out = split % number
            unknown = targets == out
            labels = targets - (targets > out)  # the classes that are left keep their order
        else:
            feature = spread_features(inputs)[split % len(spread_features(inputs))]
            low, high = np.quantile(inputs[:, feature], (1 / 3, 2 / 3))
            unknown = (inputs[:, feature] > low) & (inputs[:, feature] <= high)
    left = [len(rest) * share for share in np.cumsum(SHARES)[:2]]
    train, stop, validation = (own[~unknown[own]] for own in np.split(rest, [int(share) for share in left]))
    middle, scale = inputs[train].mean(0), inputs[train].std(0)
    scale = np.where(scale > 1e-8, scale, 1.0)

    def x(rows: np.ndarray) -> Tensor:
        return torch.tensor((inputs[rows] - middle) / scale, dtype=torch.float32)

    def y(rows: np.ndarray) -> Tensor:
        if classes:
            return torch.tensor(labels[rows], dtype=torch.int64)
        centre, width = targets[train].mean(), targets[train].std()
        return torch.tensor((targets[rows] - centre) / width, dtype=torch.float32)[:, None]

    known, strange = test[~unknown[test]], np.nonzero(unknown)[0]
    generator = torch.Generator().manual_seed(split)
    parts = Parts(
        train=(x(train), y(train)),
        stop=(x(stop), y(stop)),
        validation=(x(validation), y(validation)),
        test=(x(known), y(known)),
        unknown={"left out": x(random.permutation(strange)[:2000])} if variant == "left out" else {},
        shifted={},
    )
    moved = parts.test[0] + NOISE * torch.randn(parts.test[0].shape, generator=generator)
    return replace(parts, shifted={"noise": (moved, parts.test[1])})


def spread_features(inputs: np.ndarray) -> list[int]:
    """Features with values enough for a middle third between two others."""
    chosen = []
    for feature in range(inputs.shape[1]):
        low, high = np.quantile(inputs[:, feature], (1 / 3, 2 / 3))
        inside = ((inputs[:, feature] > low) & (inputs[:, feature] <= high)).mean()
        above = (inputs[:, feature] > high).mean()
        if 0.2 < inside < 0.5 and above > 0.15:
            chosen.append(feature)
    return chosen
