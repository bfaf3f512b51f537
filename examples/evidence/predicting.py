"""What to predict with after learning while training: the network, the posterior, or the posterior tuned once more.

    python examples/evidence/predicting.py [--out DIR] [--data DIR]

Handwritten digits of scikit-learn and, with a folder of data sets, the UCI sets concrete and energy, each with several
splits and seeds. NLL on test data, less is better.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from common import options
from readers import Pair
from relevance import mean, standardised
from runs import save, table
from torch import nn
from torch.nn import functional as F

import peewit as pw

Split = tuple[Pair, Pair]


def digits(seed: int) -> Split:
    """Images of 8 x 8 pixels as vectors."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    inputs, labels = torch.from_numpy(x).float()[order] / 16, torch.from_numpy(y).long()[order]
    return (inputs[:600], labels[:600]), (inputs[600:], labels[600:])


def uci(base: Path, name: str, seed: int) -> Split:
    """One of the standard splits."""
    content = np.load(base / "uci" / f"{name}.npz")
    x, y = torch.from_numpy(content["X"]).float(), torch.from_numpy(content["y"]).float().reshape(-1, 1)
    held = torch.from_numpy(content["test_mask"][seed]).bool()
    return standardised((x[~held], y[~held]), (x[held], y[held]))


def learn(train: Pair, outputs: int, seed: int, steps: int) -> pw.learning.Training:
    """A network with 50 hidden units, its precisions by tensor and its noise learnt."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(train[0].shape[1], 50), nn.Tanh(), nn.Linear(50, outputs))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    epochs = -(-64 * steps // len(train[0]))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs, 1e-4)
    return pw.learning.train(
        model,
        train,
        "regression" if outputs == 1 else "classification",
        optimiser,
        scheduler=schedule,
        epochs=epochs,
        every=max(epochs // 20, 1),
        prior=pw.Prior.layerwise(),
    ).finish()


def surprise(la: pw.Laplace, test: Pair) -> float:
    """The test NLL of a posterior's predictions."""
    return pw.validation_nll(la, test)


def network_surprise(la: pw.Laplace, test: Pair) -> float:
    """That of the network alone, in regression with the noise that was learnt."""
    with torch.no_grad():
        f = la.model(test[0])
    if isinstance(la.likelihood, pw.Gaussian):
        return float(-torch.distributions.Normal(f, float(la.likelihood.noise)).log_prob(test[1]).mean())
    return float(F.cross_entropy(f, test[1]))


def scores(split: Split, seed: int, steps: int) -> dict[str, float]:
    """The three ways after one run."""
    train, test = split
    outputs = 10 if train[1].dim() == 1 else 1
    la = learn(train, outputs, seed, steps).posterior()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pw.PeewitWarning)
        tuned = la.tune(train=train)
    return {
        "the network": network_surprise(la, test),
        "run.posterior()": surprise(la, test),
        "run.posterior().tune(train=...)": surprise(tuned, test),
        "raised by": float((tuned.prior.precision / la.prior.precision).log().mean().exp()),
    }


def tasks(data: str) -> Iterator[tuple[str, Callable[[int], Split]]]:
    """Those whose data are there."""
    yield "digits", digits
    if data and Path(data, "uci").is_dir():
        for name in ("concrete", "energy"):
            yield name, lambda seed, name=name: uci(Path(data), name, seed)


def main(arguments: list[str] | None = None) -> dict[str, list[dict[str, float]]]:
    """All tasks, each with its table."""
    parser = options(__doc__)
    parser.add_argument("--splits", type=int, default=5)
    asked = parser.parse_args(arguments)
    results: dict[str, list[dict[str, float]]] = {}
    for name, split in tasks("" if asked.quick else asked.data):
        count, steps = (1, 100) if asked.quick else (asked.splits, 1_500)
        results[name] = [scores(split(seed), seed, steps) for seed in range(count)]
        rows = [(way, mean([each[way] for each in results[name]])) for way in results[name][0]]
        table(f"{name}: NLL on test data, {count} splits", ("predictions of", "NLL"), rows)
    save(asked.out, "predicting", None, results)
    return results


if __name__ == "__main__":
    main()
