"""A network with its data on the device, and what a plain pass over them costs: the unit of all fits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks import count
from benchmarks.journal import Journal, Record
from benchmarks.measure import Failure, Measurement, attempt, measured, tidy
from benchmarks.networks import Network

Batches = list[tuple[Tensor, Tensor]]
QUICK_BATCH = 16
CURVATURES = {"exact": "ggn", "MC(1)": "fisher"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of a run."""

    device: torch.device
    batch_size: int = 128
    repeats: int = 3
    patience: float = 8.0  # seconds for the repeats of one measurement
    quick: bool = False
    peer: bool = True
    structures: tuple[str, ...] = ("kron", "ekfac")  # of fits
    axes: tuple[str, ...] = ()  # of growth; all where none is named
    say: Callable[[str], None] = lambda line: None

    def measured(self, function: Callable[[], Any], repeats: int | None = None) -> Measurement:
        """Time and memory of a call."""
        return measured(function, self.device, repeats or self.repeats, self.patience)

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"


def synthetic(
    shape: tuple[int, ...], classes: int, count: int, device: torch.device, tokens: bool = False, seed: int = 0
) -> Any:
    """Inputs and labels on the device, the same in every run."""
    generator = torch.Generator().manual_seed(seed)
    if tokens:
        drawn = torch.randint(classes, (count, shape[0] + 1), generator=generator).to(device)
        return drawn[:, :-1].contiguous(), drawn[:, 1:].contiguous()
    inputs = torch.randn(count, *shape, generator=generator)
    targets = torch.randint(classes, (count,), generator=generator)
    return inputs.to(device), targets.to(device)


def batched(data: tuple[Tensor, Tensor], size: int) -> Batches:
    """Batches of a data set in its order."""
    return list(zip(data[0].split(size), data[1].split(size), strict=True))


def forward_backward(model: nn.Module, batches: Batches) -> None:
    """One plain pass over the data, gradients of all weights included."""
    for inputs, targets in batches:
        model.zero_grad(set_to_none=True)
        output = model(inputs)
        F.cross_entropy(output.flatten(0, -2), targets.flatten(), reduction="sum").backward()
    model.zero_grad(set_to_none=True)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network in evaluation mode with its data in batches."""

    name: str
    network: Network
    model: nn.Module
    batches: Batches
    settings: Settings
    units: dict[str, dict[str, Any]]  # by network: plain passes that were measured already

    @staticmethod
    def of(name: str, network: Network, settings: Settings, units: dict[str, dict[str, Any]] | None = None) -> Case:
        """The network and its data on the device, the same in every run."""
        torch.manual_seed(0)
        model = (network.quick if settings.quick else network.build)().to(settings.device).eval()
        examples, size, classes = network.examples, settings.batch_size, network.classes
        if settings.quick:
            examples, size, classes = 2 * QUICK_BATCH, QUICK_BATCH, network.quick_classes
        data = synthetic(network.shape, classes, examples, settings.device, network.tokens)
        return Case(
            name=name,
            network=network,
            model=model,
            batches=batched(data, size),
            settings=settings,
            units={} if units is None else units,
        )

    def inputs(self, count: int) -> Tensor:
        """Other inputs than the data's, to predict at."""
        network = self.network
        return synthetic(network.shape, self.classes, count, self.settings.device, network.tokens, seed=1)[0]

    @property
    def classes(self) -> int:
        return self.network.quick_classes if self.settings.quick else self.network.classes

    @property
    def examples(self) -> int:
        return sum(len(targets) for _, targets in self.batches)

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @property
    def title(self) -> str:
        return self.network.title

    @cached_property
    def shapes(self) -> list[count.LayerShape]:
        return count.layer_shapes(self.model, self.batches[0][0])

    def about(self) -> dict[str, Any]:
        """The fields that every record of this network has."""
        return {
            "network": self.name,
            "title": self.title,
            "parameters": self.parameters,
            "examples": self.examples,
            "classes": self.classes,
            "train_batch": len(self.batches[0][0]),
        }

    @property
    def unit(self) -> dict[str, Any]:
        """Seconds and operations of a plain pass; a failure where it does not run."""
        if self.name not in self.units:
            self.settings.say(f"{self.title}: forward and backward")
            outcome = attempt(self.measure_unit)
            self.units[self.name] = outcome.as_dict() if isinstance(outcome, Failure) else outcome
        return self.units[self.name]

    def measure_unit(self) -> dict[str, Any]:
        """The plain pass, warmed up."""
        forward_backward(self.model, self.batches[:2])
        patience = 3 * self.settings.patience  # all fits are divided by it
        found = measured(lambda: forward_backward(self.model, self.batches), self.settings.device, 5, patience)
        return {**found.as_dict(), "operations": count.plain_pass(self.shapes, self.examples).as_dict()}

    def against_unit(self) -> dict[str, Any]:
        """The unit as fits carry it, so that a record can be read alone."""
        if "time" not in self.unit:
            return {}
        return {
            "unit_seconds": self.unit["time"]["median"],
            "unit_operations": self.unit["operations"]["total"],
        }


@dataclass(frozen=True)
class Bench:
    """What a section receives: the settings, the journal, and the wanted networks."""

    settings: Settings
    journal: Journal
    networks: tuple[str, ...]
    units: dict[str, dict[str, Any]] = field(default_factory=dict)

    def cases(self, known: Mapping[str, Network]) -> Iterator[Case]:
        """The chosen networks of a table, one at a time, so that none takes memory from the next."""
        for name in self.networks:
            if name in known:
                tidy()
                yield Case.of(name, known[name], self.settings, self.units)

    def note(self, case: Case, section: str, function: Callable[[], Any], **identity: Any) -> Record:
        """Measure, and write the result or the failure."""
        words = [str(value) for key, value in identity.items() if key in ("library", "structure", "curvature", "task")]
        self.settings.say(f"{case.title}: {section}, {', '.join(words)}")
        return self.journal.add(attempt(function), section=section, **case.about(), **identity)
