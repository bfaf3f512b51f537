"""Published figures of heteroscedastic regression by empirical Bayes on UCI sets, and what comes out here.

    python examples/noise/published.py --data DIR [--rows yacht:1 boston:3] [--out DIR]

DIR (or PEEWIT_DATA) holds `uci/`. Each row trains a network with 50 hidden units for 5,000 epochs, and every 50 epochs
the evidence with the full GGN learns a prior precision for each parameter tensor (Immer et al., "Effective Bayesian
Heteroscedastic Regression with Deep Neural Networks", NeurIPS 2023). A row takes one to ten minutes on one core.

The published evaluation standardises the test rows with the statistics of a further 90 % of the training data, while
the network was trained with those of all of them. The script computes that and the consistent evaluation beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from sets import Task, uci
from ways import Learned, Settings, laplace, learned

CONSOLE = Console(width=150)
SETTINGS = Settings(epochs=5000)
FIGURES = ("-log evidence / N", "LL, plug-in", "LL, natural", "LL, mean", "test MSE")
# In the order of FIGURES, with as many digits as were published.
PUBLISHED: dict[str, tuple[str, str, str, str, str]] = {
    "yacht:1": ("-1.539057", "-0.468997", "-1.114761", "-0.475240", "0.001781"),
    "yacht:3": ("-1.480035", "-0.198442", "-1.115538", "-0.484952", "0.000865"),
    "boston:3": ("0.531492", "-2.252370", "-2.264619", "-2.219907", "0.060315"),
    "boston:6": ("0.493578", "-2.371610", "-2.344324", "-2.274736", "0.154005"),
    "concrete:3": ("0.455051", "-3.054112", "-3.048274", "-3.017343", "0.086298"),
    "concrete:6": ("0.462039", "-2.831049", "-2.892164", "-2.858560", "0.070929"),
    "energy:1": ("-1.106006", "-0.630552", "-1.205464", "-0.700192", "0.002413"),
    "energy:3": ("-1.073364", "-0.642360", "-1.180148", "-0.715033", "0.002049"),
    "wine:1": ("1.480200", "-0.887098", "-0.839643", "-0.835916", "0.498388"),
    "power:1": ("-0.029509", "-2.694583", "-2.703465", "-2.696988", "0.045202"),
    "kin8nm:1": ("0.109706", "1.354119", "1.355193", "1.356723", "0.059908"),
}


def evaluate(run: Learned, task: Task) -> list[float]:
    """The last four figures of a row, with the test data of the task."""
    ways = (run.plug_in, laplace(run.la, "natural"), laplace(run.la, "mean"))
    x, y = task.test
    scores = [predict(x).scores(y, task.scale.y_deviation) for predict in ways]
    return [*(score["ll"] for score in scores), scores[0]["mse"]]


def distance(value: float, published: str) -> float:
    """The relative difference beyond the rounding of the published figure."""
    digits = len(published.partition(".")[2])
    rounding = 0.5 * 10.0**-digits
    return max(abs(value - float(published)) - rounding, 0.0) / abs(float(published))


def measure(folder: Path, row: str, settings: Settings) -> dict[str, Any]:
    """Train, and evaluate in both ways."""
    name, _, seed = row.partition(":")
    task = uci(folder, name, int(seed))
    began = time.perf_counter()
    run = learned(task.train, settings, seed=int(seed))
    first = -(run.history[-1].log_evidence or 0.0) / run.history[-1].examples
    as_published = replace(task, test=task.published_test, scale=task.published_scale)
    return {
        "row": row,
        "published": [float(value) for value in PUBLISHED[row]],
        "here": (here := [first, *evaluate(run, as_published)]),
        "difference": [distance(value, told) for value, told in zip(here, PUBLISHED[row], strict=True)],
        "consistent": [first, *evaluate(run, task)],
        "seconds": time.perf_counter() - began,
    }


def table(rows: Sequence[dict[str, Any]]) -> Table:
    """Published figures, ours with the relative difference, and ours with consistent test data."""
    made = Table(box=SIMPLE_HEAD)
    for title in ("set:seed", "", *FIGURES):
        made.add_column(title, justify="left" if title in ("set:seed", "") else "right", no_wrap=True)
    for row in rows:
        made.add_row(row["row"], "published", *PUBLISHED[row["row"]])
        made.add_row("", "here", *(f"{value:.6f}" for value in row["here"]))
        made.add_row("", "relative difference", *(f"{value:.1e}" for value in row["difference"]))
        made.add_row("", "here, consistent scale", *(f"{value:.6f}" for value in row["consistent"]), end_section=True)
    return made


def main(arguments: Sequence[str] | None = None, settings: Settings = SETTINGS) -> list[dict[str, Any]]:
    """Run the rows that are asked for; returns and writes their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("PEEWIT_DATA", ""), help="folder with uci/")
    parser.add_argument("--rows", nargs="+", default=list(PUBLISHED), choices=list(PUBLISHED), metavar="SET:SEED")
    parser.add_argument("--out", type=Path, default=Path("noise-results"), help="folder for published.json")
    asked = parser.parse_args(arguments)
    if not Path(asked.data, "uci").is_dir():
        parser.error("No uci/ in --data or PEEWIT_DATA.")
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / "published.json"
    known = {row["row"]: row for row in json.loads(file.read_text(encoding="utf-8"))} if file.is_file() else {}
    for name in asked.rows:
        known[name] = measure(Path(asked.data), name, settings)
        CONSOLE.print(table([known[name]]), highlight=False)
        kept = [known[row] for row in PUBLISHED if row in known]
        file.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return [known[name] for name in asked.rows]


if __name__ == "__main__":
    main()
