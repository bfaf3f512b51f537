"""What all ways to predict have in common: how they are prepared and asked, and what they answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from benchmarks.quality.cases import Case, Examples, Kind, Likelihood
from benchmarks.quality.scores import Answer, entropy, joined

BATCH = 500
SMALLEST = 1e-6  # a standard deviation of the noise, in those of the targets: networks that fit every target have none

LIKELIHOODS: tuple[Likelihood, ...] = ("classification", "regression")
KINDS: tuple[Kind, ...] = ("table", "text", "image")
SMALL: tuple[Kind, ...] = ("table", "text")  # networks with few weights

Ask = Callable[[Tensor], Answer]


@dataclass(frozen=True)
class Prepared:
    """A way that is ready to predict, and what it chose."""

    ask: Ask
    settings: Callable[[], Mapping[str, float]] = dict  # asked once the clock has stopped
    earlier: float = 0.0  # seconds of its work that were spent on another case, which it shares that work with


class Way(Protocol):
    """One way to predict."""

    @property
    def name(self) -> str:
        """Its name in files and tables."""
        ...

    @property
    def validated(self) -> bool:
        """Whether it uses validation data."""
        ...

    @property
    def main(self) -> bool:
        """Whether it is a baseline or one of the two recipes, which the reduced run measures too."""
        ...

    @property
    def needs(self) -> str:
        """The package that it cannot do without; empty where that is peewit."""
        ...

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of tasks on which it is measured unless it is asked for by name."""
        ...

    @property
    def likelihoods(self) -> tuple[Likelihood, ...]:
        """The likelihoods that it can do."""
        ...

    def fit(self, case: Case) -> Prepared | None:
        """Prepare it; None where the case has no networks for it."""
        ...


@dataclass(frozen=True, kw_only=True)
class WayOptions:
    """What ways have in common, with its defaults."""

    name: str
    validated: bool = False
    main: bool = True
    needs: str = ""
    kinds: tuple[Kind, ...] = KINDS
    likelihoods: tuple[Likelihood, ...] = LIKELIHOODS


def answer(ask: Ask, inputs: Tensor) -> Answer:
    """An answer to many inputs, piece by piece."""
    return joined([ask(piece) for piece in inputs.split(BATCH)])


def outputs(model: nn.Module, inputs: Tensor) -> Tensor:
    """(N, C)."""
    with torch.no_grad():
        return torch.cat([model(piece) for piece in inputs.split(4 * BATCH)])


def noise_of(model: nn.Module, examples: Examples) -> float:
    """The root mean squared residual."""
    return max(float((outputs(model, examples[0]) - examples[1]).square().mean().sqrt()), SMALLEST)


def of_classes(probs: Tensor, **scores: Tensor) -> Answer:
    return Answer(probs=probs, scores={"entropy": entropy(probs), **scores})


def of_numbers(mean: Tensor, noise: float, epistemic: Tensor | None = None) -> Answer:
    spread = torch.zeros_like(mean) if epistemic is None else epistemic
    scores = {"variance": spread.sum(1)}
    return Answer(mean=mean, variance=spread + noise**2, scores=scores)
