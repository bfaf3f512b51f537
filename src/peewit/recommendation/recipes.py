"""The recipes that `recommend` tries: the table `RECIPES`, cheap ones first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..evaluation.subject import Baseline
from ..messages.python_code import keywords

VALIDATED = ("validation", "grid")  # methods of tuning that look at validation data
TRAINED = ("training",)  # and at training data; the evidence does so at the linear mode alone
IMPLIED = ("evidence", "training", "validation")  # by the data that `la.tune` is given


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One way to predict: what is fitted and how it is tuned; or a baseline of `evaluate`, which has no posterior.

    `fit`, `tune` and `predict` are options of `pw.fit`, `la.tune` and `la.predict`, without data: these are put in.
    """

    name: str
    passes: float  # about how long it takes, in passes of the plain network over the training data
    baseline: Baseline | None = None
    fit: Mapping[str, Any] = field(default_factory=dict)
    tune: Mapping[str, Any] | None = None  # None: prior and noise stay as they are
    predict: Mapping[str, Any] = field(default_factory=dict)

    @property
    def explains_training(self) -> bool:
        """Whether tuning keeps predictions of the training data near the network's own."""
        return (self.tune or {}).get("method") in TRAINED

    @property
    def validated(self) -> bool:
        """Whether something in it is chosen on validation data."""
        return self.baseline == "temperature" or (self.tune or {}).get("method") in VALIDATED

    def data_of_tuning(self, train: Any, validation: Any) -> dict[str, Any]:
        """The data that its tuning takes, by the names of the arguments."""
        tune = self.tune or {}
        passes = "linear_mode" in (tune.get("at"), self.fit.get("at")) or tune.get("method") in TRAINED
        taken = {"train": train} if passes else {}
        return taken | ({"validation": validation} if self.validated else {})

    def code(self, likelihood: str) -> str:
        """Python that makes the posterior, from `model`, `train`, `validation` and `x`."""
        lines = [f"la = pw.fit({', '.join(['model', 'train', likelihood, *keywords(self.fit)])})"]
        if self.tune is not None:
            options = dict(self.tune)
            method = options.pop("method", "evidence")
            data = [f"{name}={name}" for name in self.data_of_tuning(None, None)]
            first = [] if method in IMPLIED else [repr(method).replace("'", '"')]
            lines.append(f"la = la.tune({', '.join([*first, *keywords(options), *data])})")
        return "\n".join([*lines, f"prediction = la.predict({', '.join(['x', *keywords(self.predict)])})"])


RECIPES: tuple[Recipe, ...] = (
    Recipe(name="plain network", passes=1, baseline="plain"),
    Recipe(name="temperature scaling", passes=1, baseline="temperature"),
    Recipe(
        name="last layer, validation",
        passes=8,
        fit={"weights": "last_layer", "structure": "kron"},
        tune={"method": "validation"},
    ),
    Recipe(
        name="last layer, training",
        passes=10,
        fit={"weights": "last_layer", "structure": "kron"},
        tune={"method": "training"},
    ),
    Recipe(
        name="all weights, validation",
        passes=60,
        fit={"weights": "all", "structure": "kron"},
        tune={"method": "validation"},
    ),
    Recipe(
        name="all weights, training",
        passes=100,
        fit={"weights": "all", "structure": "kron"},
        tune={"method": "training"},
    ),
)
