"""A network for a table, and its training with early stopping."""

from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from ...messages.errors import ArgumentTypeError, PeewitError
from ...runtime.progress import Progress

Factory: TypeAlias = Callable[[int, int], nn.Module]
"""A function of (columns, outputs) that returns a network to train."""
LabelledTensors: TypeAlias = tuple[Tensor, Tensor]
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
NOTABLE = 1e-4  # nats, or squared deviations: stopping data that are told apart perfectly are fitted better forever


def build_network(network: nn.Module | Factory | None, hidden: Sequence[int], shape: tuple[int, int], seed: int) -> Any:
    """A copy of the user's network, what the user's factory makes, or a perceptron; for so many inputs and outputs."""
    if network is None:
        return perceptron([shape[0], *hidden, shape[1]], torch.Generator().manual_seed(seed))
    if isinstance(network, nn.Module):
        return copy.deepcopy(network)
    if not callable(network):
        raise ArgumentTypeError(
            f"network is a {type(network).__name__}; expected a torch.nn.Module, or a function that takes the numbers "
            "of inputs and outputs and returns one."
        )
    built = network(*shape)
    if not isinstance(built, nn.Module):
        raise ArgumentTypeError(f"network{shape} returned a {type(built).__name__}; expected a torch.nn.Module.")
    return built


def perceptron(widths: Sequence[int], generator: torch.Generator) -> nn.Sequential:
    """Linear layers with ReLU between them, in float64: rows are predicted the same alone and among others."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        linear = nn.utils.skip_init(nn.Linear, inputs, outputs, dtype=torch.float64)
        for parameter in linear.parameters():  # as torch does, from a generator of our own
            nn.init.uniform_(parameter, -(inputs**-0.5), inputs**-0.5, generator=generator)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def check_output(network: nn.Module, x: Tensor, outputs: int, what: str) -> None:
    """Refuse a network that does not take the table's columns, or does not have the outputs that it needs."""
    network.eval()
    try:
        with torch.no_grad():
            output = network(x[:2])
    except RuntimeError as error:
        raise PeewitError(f"The network does not take rows of {x.shape[1]} columns: {error}") from error
    shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
    if shape != (len(x[:2]), outputs):
        raise PeewitError(
            f"The network returns {shape} for {len(x[:2])} rows; expected {(len(x[:2]), outputs)}: {what}."
        )


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Torch's own random numbers from a seed, and afterwards as they were."""
    cuda = device.type == "cuda"
    with torch.random.fork_rng(devices=[device] if cuda else []):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reach every device
        if cuda:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How a network is trained."""

    epochs: int
    learning_rate: float
    batch_size: int
    weight_decay: float
    patience: int

    def check(self) -> None:
        """Refuse numbers that mean nothing."""
        for name in ("epochs", "batch_size", "patience"):
            check_number(name, getattr(self, name), whole=True, least=1)
        check_number("learning_rate", self.learning_rate, whole=False, least=0, above=True)
        check_number("weight_decay", self.weight_decay, whole=False, least=0)


def check_number(name: str, value: Any, *, whole: bool, least: float, above: bool = False) -> None:
    """A finite number of at least so much, or above it."""
    kinds = numbers.Integral if whole else numbers.Real
    number = float(value) if isinstance(value, kinds) and not isinstance(value, bool) else math.nan
    if not least <= number < math.inf or (above and number == least):
        kind = "whole number" if whole else "number"
        raise PeewitError(
            f"{name}={value!r} was given; expected a {kind} {'above' if above else 'of at least'} {least}."
        )


@dataclass(frozen=True)
class TrainingRun:
    """How the training went."""

    epochs: int  # that were trained
    best: int  # the epoch whose weights were kept
    stopped: bool  # by the stopping data


def train_network(
    network: nn.Module,
    train: LabelledTensors,
    stopping: LabelledTensors | None,
    loss: Loss,
    options: TrainingOptions,
    seed: int,
    progress: Progress,
) -> TrainingRun:
    """Train by AdamW; with stopping data, keep the weights of the epoch that fits them best."""
    trainable = [parameter for parameter in network.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=options.learning_rate, weight_decay=options.weight_decay)
    generator = torch.Generator().manual_seed(seed)
    least, best, best_state = math.inf, 0, copy.deepcopy(network.state_dict())
    reference, since, epoch = math.inf, 0, 0  # the loss that has to be undercut, and the epoch in which it was
    try:
        with torch.enable_grad():
            for epoch in progress.track(range(1, options.epochs + 1), options.epochs, "training"):
                network.train()
                for rows in batches(len(train[0]), options.batch_size, generator):
                    optimizer.zero_grad()
                    loss(network(train[0][rows]), train[1][rows]).backward()
                    optimizer.step()
                network.eval()
                value = mean_loss(network, stopping or train, loss, options.batch_size)
                if not math.isfinite(value):
                    raise PeewitError(
                        f"Training diverged in epoch {epoch}: the loss is {value}. Lower learning_rate, which is "
                        f"{options.learning_rate}."
                    )
                if stopping is None:
                    continue
                if value < least:
                    least, best, best_state = value, epoch, copy.deepcopy(network.state_dict())
                if value < reference - NOTABLE:
                    reference, since = value, epoch
                elif epoch - since >= options.patience:
                    break
    finally:
        progress.close()
    for parameter in trainable:
        parameter.grad = None
    if stopping is None:
        return TrainingRun(epoch, epoch, False)
    network.load_state_dict(best_state)
    return TrainingRun(epoch, best, epoch - since >= options.patience)


def batches(examples: int, size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Rows in another order every time; a single row that would be left over joins the last batch, for BatchNorm."""
    parts = list(torch.randperm(examples, generator=generator).split(size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [torch.cat(parts[-2:])]
    yield from parts


def mean_loss(network: nn.Module, data: LabelledTensors, loss: Loss, size: int) -> float:
    """Over all rows, in parts."""
    with torch.no_grad():
        parts = zip(*(each.split(max(size, 1024)) for each in data), strict=True)
        sums = [float(loss(network(x), y)) * len(x) for x, y in parts]
    return sum(sums) / len(data[0])
