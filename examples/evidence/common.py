"""Shared parts of the scripts in this folder: options, training, the comparison, its table and its figure."""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from readers import Pair, Task
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw
from peewit.metrics import accuracy, auroc, ece, nll

CONSOLE = Console(width=140)
TURNS = 100  # at most, between the linear mode and the precisions
# Okabe and Ito's colours, which the colour-blind can tell apart; markers differ too.
GREY, ORANGE, BLUE, GREEN = "#666666", "#D55E00", "#0072B2", "#009E73"
COLOURS = {"": GREY, "trained": ORANGE, "linear": BLUE, "validation": GREEN}
MARKERS = {"one": "o", "groups": "s", "g-prior": "^", "": "D"}
TITLES = {
    "nll": "test NLL",
    "ece": "ECE",
    "accuracy": "accuracy",
    "mse": "MSE",
    "covered": "in 90 %",
    "auroc": "OOD-AUROC",
    "evidence": "log evidence",
    "gamma": "eff. dim.",
    "products": "products",
    "seconds": "seconds",
}


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to choose the prior: where the evidence is taken, which weights share a precision, which weights."""

    name: str
    mode: str  # "trained", "linear" or "validation"
    prior: str  # "one", "groups" or "g-prior"
    structure: str = "kron"
    weights: str = "all"


WAYS = (
    Way(name="evidence at theta_hat, one precision", mode="trained", prior="one"),
    Way(name="evidence at theta_hat, one per tensor", mode="trained", prior="groups"),
    Way(name="evidence at theta_lin, one precision", mode="linear", prior="one"),
    Way(name="evidence at theta_lin, one per tensor", mode="linear", prior="groups"),
    Way(name="evidence at theta_lin, g-prior", mode="linear", prior="g-prior"),
    Way(name="validation data, one precision", mode="validation", prior="one"),
)
BASIC = tuple(way for way in WAYS if way.prior != "g-prior")


@dataclass(frozen=True, kw_only=True)
class Row:
    """The result of one way."""

    name: str
    mode: str
    prior: str
    fit: str  # which weights, which structure
    scores: dict[str, float]
    precisions: dict[str, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def options(description: str | None) -> argparse.ArgumentParser:
    """The options that all scripts have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("PEEWIT_DATA", ""), help="folder with the data sets")
    parser.add_argument("--quick", action="store_true", help="a few examples and steps, to see that it runs")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--images", type=int, default=0, help="examples to train on; 0: as few as two cores are up to")
    parser.add_argument("--turns", type=int, default=TURNS, help="between mode and precisions, at most")
    parser.add_argument("--out", type=Path, default=Path("evidence-results"), help="folder for the JSON and the figure")
    return parser


def folder(asked: argparse.Namespace, needed: str) -> Path | None:
    """The folder of data sets if it has `needed`; otherwise None, and a message that the shipped subset is used."""
    if asked.data and Path(asked.data, needed).is_dir():
        return Path(asked.data)
    CONSOLE.print(f"No {needed}/ in --data or PEEWIT_DATA: this is the cut of Fashion-MNIST that comes with peewit.")
    return None


def train(
    model: nn.Module,
    pair: Pair,
    loss: Callable[[Tensor, Tensor], Tensor],
    epochs: int,
    rate: float = 3e-3,
    batch: int = 64,
    decay: float = 0.0,
) -> float:
    """Train by Adam with one cycle of the learning rate; returns seconds."""
    began = time.perf_counter()
    x, y = pair
    steps = max(len(x) // batch, 1)
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=epochs * steps)
    model.train()
    for _ in range(epochs):
        for chosen in torch.randperm(len(x), device=x.device).split(batch)[:steps]:
            optimiser.zero_grad()
            loss(model(x[chosen]), y[chosen]).backward()
            optimiser.step()
            schedule.step()
    model.eval()
    return time.perf_counter() - began


def prior(kind: str, model: nn.Module, data: Pair) -> pw.Prior:
    """The prior that tuning starts from."""
    if kind == "groups":
        return pw.Prior.scale_invariant(model, (data[0][:64], data[1][:64]))
    return pw.Prior.g_prior(1.0) if kind == "g-prior" else pw.Prior.scalar(1.0)


def entropy(probs: Tensor) -> Tensor:
    """(N, C) -> (N,)."""
    return -torch.xlogy(probs, probs).sum(-1)


def classes(probs: Tensor, task: Task, unknown: Tensor | None) -> dict[str, float]:
    """Scores of probabilities on the test examples, and of detecting unknown inputs by entropy."""
    made = {"nll": nll(probs, task.test[1]), "ece": ece(probs, task.test[1]), "accuracy": accuracy(probs, task.test[1])}
    return made if unknown is None else made | {"auroc": auroc(entropy(probs), entropy(unknown))}


def outputs(model: nn.Module, x: Tensor, batch: int = 500) -> Tensor:
    """Outputs of the network."""
    with torch.no_grad():
        return torch.cat([model(part) for part in x.split(batch)])


def plain(model: nn.Module, task: Task, likelihood: str) -> Row:
    """The plain network; in regression with the noise of its training residuals."""
    began = time.perf_counter()
    f = outputs(model, task.test[0])
    if likelihood == "classification":
        unknown = None if task.unknown is None else outputs(model, task.unknown).softmax(-1)
        scores = classes(f.softmax(-1), task, unknown)
    else:
        noise = (outputs(model, task.train[0]) - task.train[1]).square().mean().sqrt()
        normal = torch.distributions.Normal(f, noise)
        scores = normals(normal.mean, normal.variance, task.test[1])
    return Row(name="MAP", mode="", prior="", fit="", scores=scores | {"seconds": time.perf_counter() - began})


def normals(mean: Tensor, variance: Tensor, y: Tensor) -> dict[str, float]:
    """Scores of independent normal predictions, per output."""
    density = torch.distributions.Normal(mean, variance.sqrt())
    inside = (y - mean).abs() <= 1.6449 * variance.sqrt()
    return {
        "nll": float(-density.log_prob(y).mean()),
        "covered": float(inside.double().mean()),
        "mse": float((mean - y).square().mean()),
    }


def judged(la: pw.Laplace, task: Task) -> dict[str, float]:
    """Scores of a posterior on the test examples."""
    predicted = la.predict(task.test[0])
    if isinstance(la.likelihood, pw.Categorical):
        unknown = None if task.unknown is None else la.predict(task.unknown).probs
        return classes(predicted.probs, task, unknown)
    return normals(predicted.mean, predicted.variance, task.test[1])


def tuned(la: pw.Laplace, way: Way, start: pw.Prior, task: Task, turns: int = TURNS) -> pw.Laplace:
    """The posterior with the prior that a way chooses; warnings are in its trace."""
    began = la.with_prior(start)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pw.TuningWarning)
        if way.mode == "validation":
            return began.tune("validation", validation=task.validation, limits=(1e-4, 1e8))
        if way.mode == "linear":
            # A tolerance of 0.05 in log precisions is enough here; a single turn only checks that it runs.
            tolerance = 0.05 if turns > 1 else 5.0
            return began.tune(at="linear_mode", train=task.train, tolerance=tolerance, steps=turns)
        return began.tune()


def compare(
    model: nn.Module,
    task: Task,
    likelihood: str = "classification",
    ways: Sequence[Way] = WAYS,
    turns: int = TURNS,
    **settings: Any,
) -> tuple[list[Row], dict[str, pw.Laplace]]:
    """Rows for the network and for every way, and the fits before tuning."""
    rows = [plain(model, task, likelihood)]
    fits: dict[str, pw.Laplace] = {}
    for way in ways:
        key = f"{way.weights}, {way.structure}"
        if key not in fits:
            began = time.perf_counter()
            chosen = {"weights": way.weights, "structure": way.structure} | settings
            fits[key] = pw.fit(model, task.train, likelihood, **chosen)
            CONSOLE.print(f"  fit of {fits[key]!r}: {time.perf_counter() - began:.1f} s", highlight=False)
        began = time.perf_counter()
        la = tuned(fits[key], way, prior(way.prior, model, task.train), task, turns)
        spent = time.perf_counter() - began
        scores = judged(la, task) | {"seconds": spent}
        if la.linear_mode is not None:
            scores["products"] = la.linear_mode.products
        if way.mode != "validation":
            parts = la.evidence()
            scores |= {"evidence": parts.total, "gamma": parts.gamma}
        names = [str(name) for name in la.prior.names(la.space)]
        precisions = dict(zip(names, la.prior.precision.detach().flatten().tolist(), strict=True))
        notes = () if la.trace is None else la.trace.warnings
        rows.append(
            Row(
                name=way.name,
                mode=way.mode,
                prior=way.prior,
                fit=key,
                scores=scores,
                precisions=precisions,
                notes=notes,
            )
        )
        told = ", ".join(f"{TITLES[score]} {shown(score, value)}" for score, value in scores.items())
        CONSOLE.print(f"  {way.name}: {told}", highlight=False)
    return rows, fits


@dataclass(frozen=True)
class Curve:
    """NLL on the first test examples for one precision, and the network's own on the same."""

    points: list[tuple[float, float]] = field(default_factory=list)
    network: float = 0.0


def curve(la: pw.Laplace, task: Task, low: float, high: float, count: int = 13) -> Curve:
    """NLL for precisions from 10^low to 10^high, each with its noise by the evidence."""
    x, y = task.test
    short = Task(task.name, task.train, task.validation, (x[:1000], y[:1000]))
    values = torch.logspace(low, high, count).tolist()
    kind = "classification" if isinstance(la.likelihood, pw.Categorical) else "regression"
    own = plain(la.model, short, kind).scores["nll"]
    noisy = isinstance(la.likelihood, pw.Gaussian)

    def at(value: float) -> pw.Laplace:
        made = la.with_prior(value)
        return made.tune(parameters=["noise"], at="trained_weights") if noisy else made

    return Curve([(value, judged(at(value), short)["nll"]) for value in values], own)


def table(rows: Sequence[Row], title: str) -> None:
    """Print a row per way."""
    columns = [name for name in TITLES if any(name in row.scores for row in rows)]
    made = Table(title=title, box=SIMPLE_HEAD)
    made.add_column("prior chosen by", no_wrap=True)
    for name in columns:
        made.add_column(TITLES[name], justify="right", no_wrap=True)
    for row in rows:
        made.add_row(row.name, *(shown(name, row.scores.get(name)) for name in columns))
    CONSOLE.print(made, highlight=False)
    for row in rows:
        for note in row.notes:
            CONSOLE.print(f"  {row.name}: {note}", highlight=False)


def shown(name: str, value: float | None) -> str:
    """A number with its significant digits."""
    if value is None:
        return "-"
    digits = {"evidence": ",.0f", "gamma": ",.0f", "products": ".0f", "seconds": ".1f", "mse": ".5f"}.get(name, ".4f")
    return f"{value:{digits}}"


def keep(out: Path, name: str, rows: Sequence[Row], title: str, swept: Curve | None = None, **more: Any) -> None:
    """Print the table, write the figures as JSON and the picture."""
    table(rows, title)
    out.mkdir(parents=True, exist_ok=True)
    content = {"title": title, "rows": [asdict(row) for row in rows], "curve": asdict(swept or Curve()), **more}
    (out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    picture(rows, title, swept, out / f"{name}.png")


def picture(rows: Sequence[Row], title: str, swept: Curve | None, path: Path) -> None:
    """NLL and calibration by way, and NLL against one precision with the choice of each way."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        CONSOLE.print("No figure was made: pip install matplotlib.")
        return
    second = "ece" if "ece" in rows[0].scores else "covered"
    figure = Figure(figsize=(11, 0.34 * len(rows) + 1.7), layout="constrained", dpi=100)
    FigureCanvasAgg(figure)  # not pyplot, which opens windows and keeps global state
    panels = figure.subplots(1, 3 if swept else 2, width_ratios=[1, 1, 1.3] if swept else [1, 1])
    for panel, score in zip(panels, ("nll", second), strict=False):
        dots(panel, rows, score, names=panel is panels[0])
    if second == "covered":
        panels[1].axvline(0.9, color=GREY, lw=0.8, ls=":")
    if swept:
        line(panels[2], rows, swept)
    figure.suptitle(title, fontsize=11)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    CONSOLE.print(f"Figure: {path}", highlight=False)


def symbols(text: str) -> str:
    """The names of weights in mathematical notation."""
    return text.replace("theta_hat", r"$\hat\theta$").replace("theta_lin", r"$\theta_\mathrm{lin}$")


def dots(panel: Any, rows: Sequence[Row], score: str, names: bool) -> None:
    """A dot per row, and a line at the network's score."""
    panel.axvline(rows[0].scores[score], color=GREY, lw=0.8, ls="--")
    for place, row in enumerate(rows):
        panel.plot(row.scores[score], -place, MARKERS[row.prior], color=COLOURS[row.mode], ms=7)
    panel.set_yticks(
        [-place for place in range(len(rows))], [symbols(row.name) for row in rows] if names else [], fontsize=9
    )
    panel.set_ylim(-len(rows) + 0.5, 0.5)
    panel.set_title({"covered": "targets inside 90 % intervals"}.get(score, TITLES[score]), fontsize=10)
    panel.tick_params(axis="x", labelsize=8)
    panel.locator_params(axis="x", nbins=5)
    panel.grid(alpha=0.25)


def line(panel: Any, rows: Sequence[Row], swept: Curve) -> None:
    """NLL against one precision, with the choice of each way."""
    points = swept.points
    panel.semilogx([x for x, _ in points], [y for _, y in points], "-", color="black", lw=1.2)
    panel.axhline(swept.network, color=GREY, lw=0.8, ls="--", label="MAP")
    styles = {
        "trained": (symbols("evidence at theta_hat"), "-"),
        "linear": (symbols("evidence at theta_lin"), "-"),
        "validation": ("validation data", ":"),
    }
    for row in rows:
        at = next(iter(row.precisions.values()), 0.0)
        if row.prior == "one" and row.fit == "all, kron" and points[0][0] <= at <= points[-1][0]:
            label, dashes = styles[row.mode]
            panel.axvline(at, color=COLOURS[row.mode], ls=dashes, label=label)
    panel.set_title("test NLL against one precision", fontsize=10)
    panel.tick_params(labelsize=8)
    panel.legend(fontsize=8)
    panel.grid(alpha=0.25)


def finish(
    asked: argparse.Namespace, name: str, model: nn.Module, task: Task, title: str, **settings: Any
) -> list[Row]:
    """Compare the ways, print the table and save the results."""
    rows, fits = compare(model, task, turns=1 if asked.quick else asked.turns, **settings)
    la = fits["all, kron"]
    ours = [row for row in rows if row.prior == "one" and row.fit == "all, kron" and row.mode != "validation"]
    spread = torch.tensor([value for row in ours for value in row.precisions.values()]).log10()
    swept = curve(la, task, float(spread.min()) - 1.5, float(spread.max()) + 1.5, 3 if asked.quick else 13)
    weights = sum(parameter.numel() for parameter in model.parameters())
    keep(asked.out, name, rows, f"{title}, {weights:,} weights, {task.name}", swept, weights=weights, seed=asked.seed)
    return rows


def cross_entropy(f: Tensor, y: Tensor) -> Tensor:
    """The mean cross entropy over examples."""
    return F.cross_entropy(f, y)
