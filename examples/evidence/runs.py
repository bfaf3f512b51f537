"""What the scripts about learning while training share: plain runs, scores, a clock, pictures, and files of results."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from common import CONSOLE, outputs
from readers import Pair
from rich.box import SIMPLE_HEAD
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw

Epoch = Callable[[int], None]


def now(device: str) -> float:
    """Seconds: of this process on a CPU, which others may use too; of the wall where a GPU works."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def plain(
    model: nn.Module, pair: Pair, precision: float, epochs: int, rate: float = 1e-3, each: Epoch | None = None
) -> None:
    """Train by Adam with a weight decay that is fixed: the prior precision over the number of examples."""
    x, y = pair
    optimiser = torch.optim.Adam(model.parameters(), lr=rate, weight_decay=precision / len(x))
    for epoch in range(1, epochs + 1):
        model.train()
        for chosen in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            F.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimiser.step()
        model.eval()
        if each is not None:
            each(epoch)


def surprise(model: nn.Module, pair: Pair) -> float:
    """The mean negative log-likelihood of labels, of the network alone."""
    model.eval()
    return float(F.cross_entropy(outputs(model, pair[0]), pair[1]))


def fresh(make: Callable[[], nn.Module], device: str, seed: int) -> nn.Module:
    """A network whose weights and batches follow from a seed."""
    torch.manual_seed(seed)
    return make().to(device)


def learn(
    run: pw.learning.Training, device: str, each: Callable[[pw.learning.LearningRecord], None]
) -> tuple[pw.Laplace, float]:
    """Run all epochs, call `each` beside the clock, and return the posterior and the seconds."""
    spent, records = 0.0, iter(run)
    while True:
        began = now(device)
        record = next(records, None)
        spent += now(device) - began
        if record is None:
            break
        each(record)
    began = now(device)
    posterior = run.posterior()
    return posterior, spent + now(device) - began


def spearman(a: Sequence[float], b: Sequence[float]) -> float:
    """Rank correlation of numbers without ties."""
    ranks = [torch.tensor(each, dtype=torch.float64).argsort().argsort().double() for each in (a, b)]
    return float(torch.corrcoef(torch.stack(ranks))[0, 1])


def figure(width: float, height: float, columns: int) -> tuple[Any, Any] | None:
    """A picture with panels, or None where matplotlib is missing."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        CONSOLE.print("No picture was made: pip install matplotlib.")
        return None
    made = Figure(figsize=(width, height), layout="constrained", dpi=110)
    FigureCanvasAgg(made)  # not pyplot, which opens windows and keeps global state
    panels = made.subplots(1, columns, squeeze=False)[0]
    for panel in panels:
        panel.grid(alpha=0.25)
    return made, panels


def save(out: Path, name: str, made: Any, content: dict[str, Any]) -> None:
    """Write the results, and the picture if there is one."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    if made is not None:
        made.savefig(out / f"{name}.png")
        CONSOLE.print(f"Picture: {out / f'{name}.png'}", highlight=False)


def table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows, the first column to the left."""
    made = Table(title=title, box=SIMPLE_HEAD)
    for number, name in enumerate(head):
        made.add_column(name, justify="right" if number else "left", no_wrap=True)
    for row in rows:
        made.add_row(*row)
    CONSOLE.print(made, highlight=False)


def flat(pair: Pair) -> Pair:
    """Images as vectors."""
    return pair[0].flatten(1), pair[1]


def folds(count: int, parts: int) -> list[tuple[Tensor, Tensor]]:
    """Indices to train on and to hold out, several times: each example is held out once."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    held = [order[part::parts] for part in range(parts)]
    return [(torch.cat(held[:part] + held[part + 1 :]), held[part]) for part in range(parts)]
