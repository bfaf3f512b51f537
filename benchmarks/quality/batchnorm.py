"""The linear mode with BatchNorm: `python -m benchmarks.quality.batchnorm --data DIR`; without --data it prints.

Perceptrons as those of the benchmark's tables, with BatchNorm after each hidden layer. The ways are those of
docs/evidence.md: where the evidence is taken, with which groups and with which mean.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw
from benchmarks.quality.cells import change, number
from benchmarks.quality.store import rounded
from benchmarks.quality.tables import Table as Rows
from benchmarks.quality.tables import parts_of, shipped, uci, uci_classes
from benchmarks.quality.training import EVERY, Recipe
from benchmarks.tables import Row, Table, markdown

RESULTS = Path(__file__).with_name("batchnorm.json")
SPLITS = 2
BASE = "evidence"
CLASSES: Mapping[str, Callable[[Path | None], Rows]] = {
    "digits": shipped("digits"),
    "breast cancer": shipped("breast_cancer"),
    "wine": shipped("wine"),
    **{name: uci_classes(name) for name in ("glass", "ionosphere", "vehicle", "waveform", "australian")},
}
NUMBERS: Mapping[str, Callable[[Path | None], Rows]] = {
    "diabetes": shipped("diabetes"),
    **{name: uci(name) for name in ("boston", "concrete", "energy", "yacht", "wine")},
}
Networks = dict[str, nn.Module]


def network(inputs: int, outputs: int, recipe: Recipe) -> nn.Sequential:
    """Linear layers with BatchNorm and ReLU between them."""
    layers: list[nn.Module] = []
    for width in recipe.hidden:
        layers += [nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def trained(parts: Any, outputs: int, loss: Callable[[Tensor, Tensor], Tensor], seed: int) -> Networks:
    """By Adam: where the stopping data are fitted best, and after all steps."""
    recipe = Recipe()
    torch.manual_seed(seed)
    x, y = parts.train
    model = network(x.shape[1], outputs, recipe)
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.rate)
    best, kept = float("inf"), copy.deepcopy(model)
    for step in range(recipe.steps):
        if step % EVERY == 0 and step > 0:
            model.eval()
            with torch.no_grad():
                value = float(loss(model(parts.stop[0]), parts.stop[1]))
            if value < best:
                best, kept = value, copy.deepcopy(model)
            model.train()
        rows = torch.randint(len(x), (min(recipe.batch, len(x)),))
        optimizer.zero_grad()
        torch.autograd.backward([loss(model(x[rows]), y[rows])])
        optimizer.step()
    return {"early": kept.eval(), "fixed": model.eval()}


def measure(model: nn.Module, parts: Any, likelihood: Any) -> dict[str, float]:
    """The NLL of test data by way."""
    train, test = parts.train, parts.test
    with torch.no_grad():
        residual = (model(train[0]) - train[1]).square().mean().sqrt() if likelihood == "regression" else None
        if residual is None:
            plain = float(F.cross_entropy(model(test[0]), test[1]))
        else:
            density = torch.distributions.Normal(model(test[0]), residual.clamp(min=1e-6))
            plain = -float(density.log_prob(test[1]).mean())
    la = pw.fit(model, train, likelihood)
    tensors = pw.fit(model, train, likelihood, prior=pw.Prior.scale_invariant(model, train))
    sets = pw.fit(model, train, likelihood, prior=pw.Prior.scale_invariant(model, train, merge=True))
    at_mode = la.tune(at="linear_mode", train=train)
    made = {
        BASE: la.tune(),
        "linear mode": at_mode,
        "linear mode, one per normalised set": sets.tune(at="linear_mode", train=train),
        "linear mode, one per tensor": tensors.tune(at="linear_mode", train=train),
        "recipe": la.tune(train=train),
    }
    scores = {"plain": plain, **{name: pw.validation_nll(each, test) for name, each in made.items()}}
    scores["linear mode, its own mean"] = pw.validation_nll(at_mode, test, at="linear_mode")
    return scores


def run(data: Path) -> None:
    """What is not in the file yet."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for split in range(SPLITS):
        for likelihood, tables in (("classification", CLASSES), ("regression", NUMBERS)):
            classes = likelihood == "classification"
            loss = F.cross_entropy if classes else F.mse_loss
            for name, read in tables.items():
                task = "red wine" if name == "wine" and not classes else name
                if f"{task}/fixed/{split}" in found:
                    continue
                inputs, targets, tested = read(data)
                if classes:
                    _, targets = torch.unique(torch.as_tensor(targets), return_inverse=True)
                    targets = targets.numpy()
                parts = parts_of(inputs, targets, tested, split, "whole", classes)
                assert parts is not None
                outputs = int(targets.max()) + 1 if classes else 1
                for training, model in trained(parts, outputs, loss, split).items():
                    scores = measure(model, parts, likelihood)
                    found[f"{task}/{training}/{split}"] = {"likelihood": likelihood, "nll": rounded(scores)}
                    print(task, training, split, rounded(scores), flush=True)
                RESULTS.write_text(lines(found), encoding="utf-8")


def lines(found: Mapping[str, Any]) -> str:
    """A case to a line."""
    return "{\n" + ",\n".join(f" {json.dumps(key)}: {json.dumps(found[key])}" for key in sorted(found)) + "\n}\n"


def table(found: Mapping[str, Any]) -> Table:
    """A row per way: tasks and runs with a lower NLL than the evidence at the trained weights has."""
    ways = list(next(iter(found.values()))["nll"])
    counts = [len(tasks(found, likelihood)) for likelihood in ("classification", "regression")]
    columns = (
        "way",
        f"{counts[0]} tasks of classes: below",
        "mean NLL",
        f"{counts[1]} tasks of numbers: below",
        "median NLL",
        "runs below",
        "largest harm in a run",
    )
    return Table("With BatchNorm", columns, tuple(row(found, way) for way in ways))


def tasks(found: Mapping[str, Any], likelihood: str) -> dict[str, list[Mapping[str, float]]]:
    """The NLLs of the runs of each task."""
    by_task: dict[str, list[Mapping[str, float]]] = {}
    for key, record in found.items():
        if record["likelihood"] == likelihood:
            by_task.setdefault(key.split("/")[0], []).append(record["nll"])
    return by_task


def row(found: Mapping[str, Any], way: str) -> Row:
    """Of one way."""
    cells = [way]
    for likelihood, over in (("classification", statistics.fmean), ("regression", statistics.median)):
        runs = list(tasks(found, likelihood).values())
        gaps = [statistics.fmean(each[way] - each[BASE] for each in own) for own in runs]
        means = [statistics.fmean(each[way] for each in own) for own in runs]
        cells += ["" if way == BASE else str(sum(gap < 0 for gap in gaps)), number(over(means))]
    gaps = [record["nll"][way] - record["nll"][BASE] for record in found.values()]
    if way == BASE:
        return (*cells, "", "")
    return (*cells, f"{sum(gap < 0 for gap in gaps)} of {len(gaps)}", change(max(gaps)))


def main() -> None:
    """Measure, or print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder with data sets")
    asked = parser.parse_args()
    if asked.data is not None:
        run(asked.data)
    print("\n".join(markdown(table(json.loads(RESULTS.read_text(encoding="utf-8"))))))


if __name__ == "__main__":
    main()
