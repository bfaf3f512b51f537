"""Seven ways to predict mean and noise, on a toy curve and on CRISPR-Cas13 screens, with tables and figures.

    python examples/noise/compare.py [--data DIR] [--sets toy flow-cytometry-HEK293] [--seeds 3] [--out DIR]

Two parametrisations (mean and variance, or natural parameters), each trained with prior precisions by the evidence, and
each predicted from with the weights alone ("plug-in") and with their uncertainty ("Laplace"). Beside them networks
whose weight decay is chosen on validation data: by the likelihood, beta-NLL and faithful training. The toy curve takes
minutes; a screen needs `crispr_cas13/` in DIR (or PEEWIT_DATA) and takes about a quarter of an hour per seed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pictures import draw_screen, draw_toy
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from sets import SCREENS, Task, crispr, toy
from torch import nn
from ways import Predict, Settings, beta_nll, decayed, faithful, laplace, learned, nll

CONSOLE = Console(width=130)
TOY = Settings(activation=nn.Tanh, epochs=3000, hyper_rate=0.05, last_hyper_rate=0.005)
SCREEN = Settings(
    activation=nn.ReLU, epochs=200, structure="kron", begin=20, every=10, hyper_rate=0.05, last_hyper_rate=0.005
)
QUICK = {"epochs": 40, "begin": 10, "every": 10, "steps": 5}
HEADS = {"natural": "natural parameters", "mean_variance": "mean and variance"}
LOSSES = {"NLL": nll, "beta-NLL": beta_nll, "faithful": faithful}
SCORES = {"ll": "log likelihood", "rmse": "RMSE", "covered": "in 90 %"}


@dataclass(frozen=True)
class Result:
    """What a way predicts, and what it chose."""

    predict: Predict
    notes: dict[str, float]


def ways(task: Task, settings: Settings, seed: int) -> Iterator[tuple[str, Result]]:
    """Train and yield every way."""
    for head, title in HEADS.items():
        began = time.perf_counter()
        run = learned(task.train, settings, head, seed)
        assert run.history.best is not None and run.history.best.log_evidence is not None
        notes = {"evidence": run.history.best.log_evidence, "seconds": time.perf_counter() - began}
        yield f"{title}, Laplace", Result(laplace(run.la, "mean"), notes)
        yield f"{title}, plug-in", Result(run.plug_in, notes)
    for name, energy in LOSSES.items():
        began = time.perf_counter()
        predict, decay = decayed(task, settings, energy, seed)
        yield f"{name}, decay by validation", Result(predict, {"decay": decay, "seconds": time.perf_counter() - began})


def measure(task: Task, settings: Settings, seed: int) -> tuple[dict[str, Result], dict[str, dict[str, float]]]:
    """The ways and their scores on the test data, in the order of the table."""
    results, scores = {}, {}
    x, y = task.test
    for name, result in ways(task, settings, seed):
        results[name] = result
        scores[name] = result.predict(x).scores(y, task.scale.y_deviation) | result.notes
        told = ", ".join(f"{title} {scores[name][score]:.4f}" for score, title in SCORES.items())
        CONSOLE.print(f"  {task.name}, seed {seed}, {name}: {told}", highlight=False)
    return results, scores


def spread(values: Sequence[float]) -> str:
    """Mean and standard error."""
    mean = statistics.fmean(values)
    return f"{mean:.3f}" + (f" ± {statistics.stdev(values) / math.sqrt(len(values)):.3f}" if len(values) > 1 else "")


def table(name: str, runs: Sequence[Mapping[str, Mapping[str, float]]]) -> Table:
    """A row per way: means and standard errors over seeds."""
    made = Table(title=f"{name}, {len(runs)} seeds", box=SIMPLE_HEAD)
    for title in ("", *SCORES.values()):
        made.add_column(title, justify="right" if title else "left", no_wrap=True)
    for way in runs[0]:
        made.add_row(way, *(spread([run[way][score] for run in runs]) for score in SCORES))
    return made


def prepare(asked: argparse.Namespace, name: str, seed: int) -> tuple[Task, Settings]:
    """The data of a set and how to train on them."""
    changes: dict[str, Any] = QUICK if asked.quick else {}
    if name == "toy":
        return toy(seed, tests=200 if asked.quick else 2000), replace(TOY, **changes)
    return crispr(Path(asked.data), name, seed, rows=400 if asked.quick else 0), replace(SCREEN, **changes)


def compare(asked: argparse.Namespace, name: str) -> dict[str, Any]:
    """Measure all seeds of a set, write its figures and numbers."""
    runs = []
    for seed in range(asked.seeds):
        task, settings = prepare(asked, name, seed)
        results, scores = measure(task, settings, seed)
        runs.append(scores)
        if seed == 0:
            predicts = {way: result.predict for way, result in results.items()}
            (draw_toy if name == "toy" else draw_screen)(task, predicts, asked.out / f"{name}.png")
    CONSOLE.print(table(name, runs), highlight=False)
    content = {"set": name, "runs": runs}
    (asked.out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return content


def main(arguments: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Compare the ways on the sets that are asked for; returns and writes their scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("PEEWIT_DATA", ""), help="folder with crispr_cas13/")
    parser.add_argument("--sets", nargs="+", default=["toy"], choices=["toy", *SCREENS], metavar="SET")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a few examples and epochs, to see that it runs")
    parser.add_argument("--out", type=Path, default=Path("noise-results"), help="folder for figures and numbers")
    asked = parser.parse_args(arguments)
    if set(asked.sets) != {"toy"} and not Path(asked.data, "crispr_cas13").is_dir():
        parser.error("No crispr_cas13/ in --data or PEEWIT_DATA.")
    asked.out.mkdir(parents=True, exist_ok=True)
    return [compare(asked, name) for name in asked.sets]


if __name__ == "__main__":
    main()
