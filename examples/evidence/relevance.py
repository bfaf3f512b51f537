"""Precisions of inputs, learnt while training, tell features that matter from noise: automatic relevance determination.

    python examples/evidence/relevance.py [--out DIR] [--data DIR]

Friedman's function of five features gets fifteen features of noise beside them; with a folder of data sets, so do the
eight features of the UCI set concrete. `Prior.inputwise` has one precision for the weights that leave each feature.
Beside it: one precision for all weights, learnt too, and one that stays where it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from common import BLUE, GREEN, GREY, ORANGE, options
from readers import Pair
from runs import figure, save, table
from torch import Tensor, nn

import peewit as pw
from peewit.metrics import auroc

NOISE = 15  # planted features
FIRST = "0.weight"  # the weights that features enter by
PRIORS: dict[str, Callable[[], pw.Prior]] = {
    "one, fixed at 0.01": lambda: pw.Prior.scalar(0.01),
    "one, fixed at 1": lambda: pw.Prior.scalar(1.0),
    "one, learnt": lambda: pw.Prior.scalar(1.0),
    "per tensor, learnt": lambda: pw.Prior.layerwise(1.0),
    "per input, learnt": lambda: pw.Prior.inputwise(1.0, weights=FIRST),
}


@dataclass(frozen=True, eq=False, kw_only=True)
class Problem:
    """A regression some of whose features are noise."""

    name: str
    train: Pair
    test: Pair
    names: tuple[str, ...]
    planted: Tensor  # (features,): whether it is noise


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a prior came to with one seed."""

    prior: str
    seed: int
    network: float  # test NLL of the network with its noise
    posterior: float  # that of the posterior
    evidence: float
    auroc: float  # how well precisions tell planted features, where there is one per input
    precision: list[float]


def standardised(train: Pair, test: Pair) -> tuple[Pair, Pair]:
    """Zero mean and unit deviation on the training data."""
    (x, y), (x_test, y_test) = train, test
    shift, scale, low, spread = x.mean(0), x.std(0), y.mean(0), y.std(0)
    return ((x - shift) / scale, (y - low) / spread), ((x_test - shift) / scale, (y_test - low) / spread)


def friedman(seed: int, count: int) -> Problem:
    """Five features that matter: two by their product, one by its square, two in a line."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(count + 1_000, 5 + NOISE, generator=generator)
    signal = 10 * (math.pi * x[:, 0] * x[:, 1]).sin() + 20 * (x[:, 2] - 0.5).square() + 10 * x[:, 3] + 5 * x[:, 4]
    y = (signal + torch.randn(len(x), generator=generator))[:, None]
    train, test = standardised((x[:count], y[:count]), (x[count:], y[count:]))
    names = tuple(f"x{place + 1}" for place in range(5)) + tuple(f"noise {place + 1}" for place in range(NOISE))
    return Problem(name="Friedman", train=train, test=test, names=names, planted=torch.arange(5 + NOISE) >= 5)


def concrete(base: Path, seed: int) -> Problem:
    """The strength of concrete from its parts, with planted noise beside them."""
    content = np.load(base / "uci" / "concrete.npz")
    x, y = torch.from_numpy(content["X"]).float(), torch.from_numpy(content["y"]).float().reshape(-1, 1)
    held = torch.from_numpy(content["test_mask"][seed]).bool()
    x = torch.cat([x, torch.randn(len(x), NOISE, generator=torch.Generator().manual_seed(seed))], 1)
    train, test = standardised((x[~held], y[~held]), (x[held], y[held]))
    own = ("cement", "slag", "fly ash", "water", "plasticiser", "coarse", "fine", "age")
    names = own + tuple(f"noise {place + 1}" for place in range(NOISE))
    return Problem(name="concrete", train=train, test=test, names=names, planted=torch.arange(len(names)) >= len(own))


def one(problem: Problem, prior: str, seed: int, steps: int, quick: bool) -> Result:
    """A network under one of the priors, after some steps of Adam; its noise is learnt in any case."""
    epochs = -(-steps // math.ceil(len(problem.train[0]) / 64))
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(len(problem.names), 30), nn.Tanh(), nn.Linear(30, 1))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs, 1e-4)
    run = pw.learning.train(
        model,
        problem.train,
        "regression",
        optimiser,
        scheduler=schedule,
        epochs=epochs,
        every=max(epochs // (4 if quick else 30), 1),
        prior=PRIORS[prior](),
        parameters=("noise",) if "fixed" in prior else ("prior", "noise"),
    )
    la = run.finish().posterior()
    assert isinstance(la.likelihood, pw.Gaussian)
    x, y = problem.test
    with torch.no_grad():
        plain = torch.distributions.Normal(model(x), float(la.likelihood.noise))
    predicted = la.predict(x)
    precision = la.prior.precision[: len(problem.names)] if prior == "per input, learnt" else la.prior.precision
    told = math.nan
    if prior == "per input, learnt":
        told = auroc(precision[~problem.planted].log(), precision[problem.planted].log())
    return Result(
        prior=prior,
        seed=seed,
        network=float(-plain.log_prob(y).mean()),
        posterior=float(-torch.distributions.Normal(predicted.mean, predicted.variance.sqrt()).log_prob(y).mean()),
        evidence=float(la.log_evidence()),
        auroc=told,
        precision=precision.tolist(),
    )


def mean(values: list[float]) -> str:
    """With its standard error."""
    numbers = torch.tensor(values, dtype=torch.float64)
    if bool(numbers.isnan().any()):
        return "-"
    error = f" +- {float(numbers.std()) / len(values) ** 0.5:.3f}" if len(values) > 1 else ""
    return f"{float(numbers.mean()):.3f}{error}"


def compare(problems: list[Problem], steps: int, quick: bool) -> list[Result]:
    """Every prior on every draw of the data, and the table."""
    results = [one(problem, prior, seed, steps, quick) for seed, problem in enumerate(problems) for prior in PRIORS]
    rows = []
    for prior in PRIORS:
        own = [each for each in results if each.prior == prior]
        scores = [[getattr(each, name) for each in own] for name in ("network", "posterior", "evidence", "auroc")]
        rows.append((prior, *(mean(values) for values in scores)))
    title = f"{problems[0].name}: {len(problems[0].train[0])} examples, {len(problems)} draws"
    table(title, ("prior precisions", "NLL, network", "NLL, posterior", "log evidence", "AUROC of noise"), rows)
    return results


def draw(parts: dict[str, tuple[Problem, list[Result]]]) -> Any:
    """The precision of every feature, over the draws."""
    made = figure(6.5 * len(parts), 4.6, len(parts))
    if made is None:
        return None
    picture, panels = made
    for panel, (problem, results) in zip(panels, parts.values(), strict=True):
        own = torch.tensor([each.precision for each in results if each.prior == "per input, learnt"])
        scalar = [each.precision[0] for each in results if each.prior == "one, learnt"]
        rows = range(len(problem.names))
        colours = [ORANGE if planted else BLUE for planted in problem.planted.tolist()]
        for values in own:
            panel.scatter(values, rows, c=colours, s=12, alpha=0.5)
        panel.scatter(own.log().mean(0).exp(), rows, c=colours, s=60, marker="|", linewidths=2.5)
        panel.axvline(float(np.exp(np.mean(np.log(scalar)))), color=GREEN, ls="--", lw=1)
        panel.set(xscale="log", xlabel="prior precision, learnt", title=f"{problem.name}: noise is orange")
        panel.set_yticks([*rows], problem.names, fontsize=7)
        panel.invert_yaxis()
        panel.text(
            0.99, 0.01, "dashed: one for all weights", transform=panel.transAxes, ha="right", fontsize=8, color=GREY
        )
    return picture


def main(arguments: list[str] | None = None) -> dict[str, list[Result]]:
    """Both data sets, if both are there."""
    parser = options(__doc__)
    parser.add_argument("--draws", type=int, default=4, help="of the data, and of the first weights")
    asked = parser.parse_args(arguments)
    draws, steps = (1, 160) if asked.quick else (asked.draws, 1_500)
    sets = {"friedman": [friedman(seed, asked.images or 200) for seed in range(draws)]}
    if not asked.quick and asked.data and Path(asked.data, "uci").is_dir():
        sets["concrete"] = [concrete(Path(asked.data), seed) for seed in range(draws)]
    results = {name: compare(problems, steps, asked.quick) for name, problems in sets.items()}
    picture = draw({name: (problems[0], results[name]) for name, problems in sets.items()})
    save(asked.out, "relevance", picture, {name: [asdict(each) for each in own] for name, own in results.items()})
    return results


if __name__ == "__main__":
    main()
