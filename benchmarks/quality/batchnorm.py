"""The linear mode with BatchNorm: `python -m benchmarks.quality.batchnorm --data DIR`; without --data it prints.

Perceptrons as those of the benchmark's tables, with BatchNorm after each hidden layer. The ways are those of
docs/evidence.md: where the evidence is taken, with which groups and with which mean. The numbers are in
`batchnorm.json`; a case that is there with all ways is not measured again.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import peewit as pw
from benchmarks.quality.answers import noise_of, outputs
from benchmarks.quality.cases import Examples, Likelihood, Parts
from benchmarks.quality.cells import change, number
from benchmarks.quality.store import natural, rounded
from benchmarks.quality.tables import Table as Rows
from benchmarks.quality.tables import parts_of, shipped, uci, uci_classes
from benchmarks.quality.training import EVERY, Recipe, losses
from benchmarks.tables import Row, Table, markdown

RESULTS = Path(__file__).with_name("batchnorm.json")
SPLITS = 2
PLAIN, BASE, RECIPE = "plain", "evidence", "recipe"
ONE, G_PRIOR = "linear mode", "linear mode, g-prior"
SETS, TENSORS = "linear mode, one per normalised set", "linear mode, one per tensor"
OWN_MEAN = ", its own mean"
WAYS = (PLAIN, BASE, ONE, G_PRIOR, SETS, TENSORS, ONE + OWN_MEAN, SETS + OWN_MEAN, RECIPE)
Read = Callable[[Path | None], Rows]
TABLES: Mapping[Likelihood, Mapping[str, Read]] = {
    "classification": {
        **{name.replace("_", " "): shipped(name) for name in ("digits", "breast_cancer", "wine")},
        **{name: uci_classes(name) for name in ("glass", "ionosphere", "vehicle", "waveform", "australian")},
    },
    "regression": {
        "diabetes": shipped("diabetes"),
        **{name: uci(name) for name in ("boston", "concrete", "energy", "yacht")},
        "red wine": uci("wine"),
    },
}
Record = dict[str, Any]


def perceptron(inputs: int, outputs: int, recipe: Recipe) -> nn.Sequential:
    """Linear layers with BatchNorm and ReLU between them."""
    layers: list[nn.Module] = []
    for width in recipe.hidden:
        layers += [nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


def train(parts: Parts, likelihood: Likelihood, classes: int, recipe: Recipe, seed: int) -> dict[str, nn.Module]:
    """Train by Adam: the network where the stopping data are fitted best, and the one after all steps."""
    torch.manual_seed(seed)
    x, y = parts.train
    model = perceptron(x.shape[1], classes, recipe)
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.rate)
    best, kept = float("inf"), copy.deepcopy(model)
    for step in range(recipe.steps):
        if step % EVERY == 0 and step > 0:
            value = stopping_loss(model, parts.stop, likelihood)
            if value < best:
                best, kept = value, copy.deepcopy(model)
            model.train()
        rows = torch.randint(len(x), (min(recipe.batch, len(x)),))
        optimizer.zero_grad()
        torch.autograd.backward([losses(model(x[rows])[None], y[rows][None], likelihood).mean()])
        optimizer.step()
    return {"early": kept.eval(), "fixed": model.eval()}


def stopping_loss(model: nn.Module, stop: Examples, likelihood: Likelihood) -> float:
    """The mean loss of the network as it predicts."""
    return float(losses(outputs(model.eval(), stop[0])[None], stop[1][None], likelihood).mean())


def plain_nll(model: nn.Module, parts: Parts, likelihood: Likelihood) -> float:
    """Of the test data by the network itself; for numbers with the noise of its training residuals."""
    answers = outputs(model, parts.test[0])
    if likelihood == "classification":
        return float(F.cross_entropy(answers, parts.test[1]))
    density = torch.distributions.Normal(answers, noise_of(model, parts.train))
    return -float(density.log_prob(parts.test[1]).mean())


def measure(model: nn.Module, parts: Parts, likelihood: Likelihood) -> Record:
    """The NLL of the test data by way, and the ways whose tuning switched groups off."""
    data, test = parts.train, parts.test
    la = pw.fit(model, data, likelihood)

    def at_mode(prior: pw.Prior) -> pw.Laplace:
        return la.with_prior(prior).tune(at="linear_mode", train=data)

    posteriors = {
        BASE: la.tune(),
        ONE: la.tune(at="linear_mode", train=data),
        G_PRIOR: at_mode(pw.Prior.g_prior(1.0)),
        SETS: at_mode(pw.Prior.scale_invariant(model, data, merge=True)),
        TENSORS: at_mode(pw.Prior.scale_invariant(model, data)),
        RECIPE: la.tune(train=data),
    }
    nll = {PLAIN: plain_nll(model, parts, likelihood)}
    nll |= {way: pw.validation_nll(posterior, test) for way, posterior in posteriors.items()}
    nll |= {way + OWN_MEAN: pw.validation_nll(posteriors[way], test, at="linear_mode") for way in (ONE, SETS)}
    off = [way for way, posterior in posteriors.items() if switched_off(posterior)]
    return {"likelihood": likelihood, "nll": {way: nll[way] for way in WAYS}, "switched off": off}


def switched_off(posterior: pw.Laplace) -> bool:
    """Whether tuning switched groups off."""
    assert posterior.trace is not None
    return any("switched off" in text for text in posterior.trace.warnings)


def split_of(table: Rows, likelihood: Likelihood, split: int) -> tuple[Parts, int]:
    """The data of one split, and how many outputs a network for them has."""
    inputs, targets, tested = table
    classes = likelihood == "classification"
    if classes:
        targets = np.unique(targets, return_inverse=True)[1]
    parts = parts_of(inputs, targets, tested, split, "whole", classes)
    assert parts is not None
    return parts, int(targets.max()) + 1 if classes else 1


def cases(data: Path, splits: int, done: Mapping[str, Record]) -> Iterator[tuple[str, Record]]:
    """Train and measure what is not done, split by split."""
    for split in range(splits):
        for likelihood, tables in TABLES.items():
            for task, read in tables.items():
                if all(is_done(done, f"{task}/{training}/{split}") for training in ("early", "fixed")):
                    continue
                parts, classes = split_of(read(data), likelihood, split)
                for training, model in train(parts, likelihood, classes, Recipe(), split).items():
                    yield f"{task}/{training}/{split}", measure(model, parts, likelihood)


def is_done(done: Mapping[str, Record], key: str) -> bool:
    """Whether a case was measured with all ways."""
    return key in done and set(WAYS) <= set(done[key]["nll"])


def read_results(path: Path) -> dict[str, Record]:
    """What was measured so far."""
    results: dict[str, Record] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return results


def lines(results: Mapping[str, Record]) -> str:
    """A case to a line."""
    rows = ",\n".join(f" {json.dumps(key)}: {json.dumps(results[key])}" for key in sorted(results, key=natural))
    return f"{{\n{rows}\n}}\n"


def table(results: Mapping[str, Record]) -> Table:
    """A row per way: tasks and runs with a lower NLL than the evidence at the trained weights has."""
    counts = [len(by_task(results, likelihood)) for likelihood in TABLES]
    columns = (
        "way",
        f"{counts[0]} tasks of classes: below",
        "mean NLL",
        f"{counts[1]} tasks of numbers: below",
        "median NLL",
        "runs below",
        "largest harm in a run",
    )
    return Table("With BatchNorm", columns, tuple(row(results, way) for way in WAYS))


def by_task(results: Mapping[str, Record], likelihood: str) -> dict[str, list[Mapping[str, float]]]:
    """The NLLs of the runs of each task."""
    tasks: dict[str, list[Mapping[str, float]]] = {}
    for key, record in results.items():
        if record["likelihood"] == likelihood:
            tasks.setdefault(key.split("/")[0], []).append(record["nll"])
    return tasks


def row(results: Mapping[str, Record], way: str) -> Row:
    """Of one way."""
    cells = [way]
    for likelihood, over in (("classification", statistics.fmean), ("regression", statistics.median)):
        tasks = by_task(results, likelihood).values()
        below = sum(statistics.fmean(run[way] - run[BASE] for run in runs) < 0 for runs in tasks)
        mean = over([statistics.fmean(run[way] for run in runs) for runs in tasks]) if tasks else None
        cells += ["" if way == BASE else str(below), number(mean)]
    if way == BASE:
        return (*cells, "", "")
    gaps = [record["nll"][way] - record["nll"][BASE] for record in results.values()]
    return (*cells, f"{sum(gap < 0 for gap in gaps)} of {len(gaps)}", change(max(gaps)))


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the folder with data sets; without it nothing is measured")
    parser.add_argument("--splits", type=int, default=SPLITS, help=f"of each table; {SPLITS} if not given")
    parser.add_argument("--out", type=Path, default=RESULTS, help="the file with the numbers")
    options = parser.parse_args()
    results = read_results(options.out)
    if options.data is not None:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        for key, record in cases(options.data, options.splits, results):
            results[key] = rounded(record)
            options.out.write_text(lines(results), encoding="utf-8")
            print(key, results[key]["nll"], flush=True)
    print("\n".join(markdown(table(results))))
    for way in WAYS:
        off = sum(way in record["switched off"] for record in results.values())
        if off:
            print(f"{way}: groups switched off in {off} of {len(results)} runs")


if __name__ == "__main__":
    main()
