"""What a task is, and one case of it: data in their parts, and networks trained on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

Likelihood = Literal["classification", "regression"]
Half = Literal["choose", "confirm"]
Kind = Literal["table", "image", "text"]
Training = Literal["early", "fixed", "pretrained"]
Examples = tuple[Tensor, Tensor]  # inputs and targets

MEMBERS = 5  # networks of a deep ensemble; the first is the network itself
DROPOUT = 0.1  # of the network for MC dropout, which is trained with it


@dataclass(frozen=True, eq=False, kw_only=True)
class Parts:
    """The data of one split, scaled by the training part."""

    train: Examples
    stop: Examples  # for early stopping
    validation: Examples  # for tuning
    test: Examples
    unknown: Mapping[str, Tensor]  # inputs unlike the training data, by name
    shifted: Mapping[str, Examples]  # changed test inputs, by name

    def to(self, device: torch.device) -> Parts:
        """The same on a device."""

        def moved(examples: Examples) -> Examples:
            return examples[0].to(device), examples[1].to(device)

        return Parts(
            train=moved(self.train),
            stop=moved(self.stop),
            validation=moved(self.validation),
            test=moved(self.test),
            unknown={name: inputs.to(device) for name, inputs in self.unknown.items()},
            shifted={name: moved(examples) for name, examples in self.shifted.items()},
        )


@dataclass(frozen=True, eq=False)
class Networks:
    """What was trained on the same data in the same way."""

    members: tuple[nn.Module, ...]  # of the ensemble, the first is the plain network; it may be alone
    dropout: nn.Module | None

    @property
    def plain(self) -> nn.Module:
        """The network that all posteriors are of."""
        return self.members[0]


@dataclass(frozen=True, eq=False, kw_only=True)
class Case:
    """One split of a task under one way of training."""

    task: str
    likelihood: Likelihood
    training: Training
    variant: str  # "whole", or "left out": trained without a class or a range, which is what is unknown
    split: int
    parts: Parts
    networks: Networks

    @property
    def key(self) -> str:
        """Its name among the cases of its task."""
        return f"{self.training}/{self.variant}/{self.split}"


@dataclass(frozen=True, kw_only=True)
class Task:
    """Data, networks for them and how these are trained."""

    name: str
    likelihood: Likelihood
    kind: Kind
    half: Half  # on "choose" defaults are chosen, on "confirm" they are confirmed
    splits: int
    reduced: bool  # whether it is part of the reduced run
    make: Make
    make_small: Make | None = None  # with fewer examples, for the reduced run
    trainings: tuple[Training, ...] = ("early", "fixed")
    by_name: bool = False  # whether it is measured only where it is named

    def cases(self, data: Path | None, splits: range, device: torch.device, reduced: bool = False) -> Iterator[Case]:
        """Networks are trained for all splits at once where that is faster."""
        make = self.make_small if reduced and self.make_small is not None else self.make
        return make(self, data, splits, device)


Make = Callable[[Task, Path | None, range, torch.device], Iterator[Case]]
