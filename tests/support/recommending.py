"""Networks whose best recipe is known, and recipes and clocks for tests of `pw.recommend`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from fitting import normal, seeded
from peewit.recommendation import call, recipes, trials
from peewit.recommendation.recipes import Recipe

PLAIN = Recipe(name="plain", passes=1, baseline="plain")
TEMPERATURE = Recipe(name="temperature", passes=1, baseline="temperature")


def recipe(name: str, tune: dict[str, Any] | None = None, passes: float = 1, **fit: Any) -> Recipe:
    """A recipe with a posterior of the last layer."""
    return Recipe(name=name, passes=passes, fit={"weights": "last_layer", **fit}, tune=tune)


WIDE = recipe("wide", prior=1e-4)  # far too wide a prior
NARROW = recipe("narrow", prior=1e8)  # predicts what the network does
EVIDENCE = recipe("evidence", {"method": "evidence"})
VALIDATION = recipe("validation", {"method": "validation"})


def network(sharpness: float = 1.0) -> nn.Module:
    """(N, 2) -> (N, 3): hidden units that turn with the seed, and logits times a number."""
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3)).double().to(DEVICE)
    with torch.no_grad():
        model[2].weight.mul_(6 * sharpness)
        model[2].bias.mul_(6 * sharpness)
    return model


def labelled(examples: int, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Inputs, and labels drawn from what `network()` says of them: that network is the truth."""
    x = normal(examples, 2, seed=seed).to(DEVICE)
    with torch.no_grad():
        probs = network()(x).softmax(-1).cpu()
    return x, torch.multinomial(probs, 1, generator=seeded(seed + 100))[:, 0].to(DEVICE)


def use(monkeypatch: pytest.MonkeyPatch, *rows: Recipe) -> None:
    """These recipes, and no others."""
    monkeypatch.setattr(recipes, "RECIPES", rows)


class FakeClock:
    """Time that passes when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fit_seconds: float = 0.0, plain_seconds: float = 0.0) -> None:
        self.now = 0.0
        monkeypatch.setattr(call, "perf_counter", lambda: self.now)
        real = trials.fit

        def slow_fit(*given: Any, **options: Any) -> pw.Laplace:
            self.now += fit_seconds
            return real(*given, **options)

        monkeypatch.setattr(trials, "fit", slow_fit)
        monkeypatch.setattr(call, "time_plain_pass", lambda *_: plain_seconds)


def states(found: pw.Recommendation) -> dict[str, str]:
    """Row by name: its problem up to the colon, or what it is."""
    return {row.name: row.problem.partition(":")[0] if row.problem else "done" for row in found.table}


def passes(data: Sequence[Any]) -> Iterator[Any]:
    """A generator, which can be passed over once."""
    yield from data
