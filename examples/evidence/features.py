"""Why the evidence at the linear mode switches groups off: features that were learned from the same labels, or not.

    python examples/evidence/features.py

A small MLP on scikit-learn's digits. The posterior is fitted to the images
that trained the network, to as many that it never saw, and, of a network that was never trained, to the latter. In each
case the evidence at the linear mode chooses one precision, and one per tensor. The table has the evidence, the groups
that were switched off, and the test NLL of predictions around the network's outputs and around the linear mode's.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from common import CONSOLE, options
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw

SEEDS, EXAMPLES, WIDTH, STEPS = 3, 500, 16, 300
OFF = 1e-3  # effective dimensions
PRIORS = {"one precision": pw.Prior.scalar(1.0), "one per tensor": pw.Prior.layerwise(1.0)}


@dataclass(frozen=True, kw_only=True)
class PriorOutcome:
    """What a prior came to on one set of data."""

    features: str
    prior: str
    evidence: float
    off: int  # of six tensors
    nll: float  # predictions around the network's outputs
    nll_at_mode: float  # around those of the linear model at its mode
    network: float  # the network itself


def network(width: int) -> nn.Sequential:
    """Two hidden layers."""
    layers = [nn.Linear(64, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 10)]
    return nn.Sequential(*layers).double()


def digits() -> tuple[Tensor, Tensor]:
    """Images (1797, 64) and labels."""
    from sklearn.datasets import load_digits  # shipped with scikit-learn

    table = load_digits()
    return torch.tensor(table.data / 16, dtype=torch.float64), torch.tensor(table.target)


def outcomes(seed: int, examples: int, width: int, steps: int) -> Iterator[PriorOutcome]:
    """Three kinds of features, each with both priors."""
    torch.manual_seed(seed)
    x, y = digits()
    order = torch.randperm(len(x))
    own, fresh, test = ((x[part], y[part]) for part in order.split([examples, examples, len(x) - 2 * examples]))
    model = network(width)
    untrained = copy.deepcopy(model)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(own[0]), own[1]).backward()
        optimiser.step()
    cases = {"of these labels": (model, own), "of other labels": (model, fresh), "untrained": (untrained, fresh)}
    for features, (chosen, data) in cases.items():
        plain = float(F.cross_entropy(chosen(test[0]), test[1]))
        for name, prior in PRIORS.items():
            la = pw.fit(chosen, data, "classification", prior=prior).tune(at="linear_mode", train=data)
            yield PriorOutcome(
                features=features,
                prior=name,
                evidence=float(la.log_evidence()),
                off=int((la.evidence().effective_dimensions < OFF).sum()),
                nll=-float(la.predict(test[0]).log_prob(test[1]).mean()),
                nll_at_mode=-float(la.predict(test[0], at="linear_mode").log_prob(test[1]).mean()),
                network=plain,
            )


def main(arguments: list[str] | None = None) -> list[PriorOutcome]:
    """Compare, and print the means over the seeds."""
    asked = options(__doc__).parse_args(arguments)
    settings = (60, 4, 30) if asked.quick else (EXAMPLES, WIDTH, STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of groups that are switched off: the table counts them
        found = [each for seed in range(1 if asked.quick else SEEDS) for each in outcomes(seed, *settings)]
    names = ("evidence", "off", "nll", "nll_at_mode", "network")
    CONSOLE.print("  ".join([f"{'features':16} {'prior':14}", *(f"{name:>11}" for name in names)]), highlight=False)
    for features, prior in dict.fromkeys((each.features, each.prior) for each in found):
        group = [each for each in found if (each.features, each.prior) == (features, prior)]
        means = [sum(float(getattr(each, name)) for each in group) / len(group) for name in names]
        CONSOLE.print("  ".join([f"{features:16} {prior:14}", *(f"{mean:11.3f}" for mean in means)]), highlight=False)
    return found


if __name__ == "__main__":
    main()
