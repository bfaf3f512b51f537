"""The data of training and of the curvature: how many examples there are, and passes over a share of them."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
)

from ..messages.arguments import is_count
from ..messages.errors import PeewitError
from ..network.batches import Batches
from ..network.nests import count, map_tensors
from .randomness import seed_all


def count_examples(data: Any, batches: Batches, examples: int | None) -> int:
    """N: as it was given, else as many as the data say that they have."""
    if examples is not None:
        if not is_count(examples):
            raise PeewitError(f"examples={examples!r} was given; expected a positive whole number.")
        return examples
    if batches.pair:
        return count(batches.data[0])
    number = known_number(batches.data)
    if number is None:
        raise PeewitError(
            f"The number of training examples is not known: a {type(data).__name__} does not say it. The prior counts "
            "beside all of them, so give examples=N."
        )
    return number


def known_number(data: Any) -> int | None:
    """How many examples a loader or a list of batches has, where that can be told without a pass."""
    if isinstance(data, DataLoader):
        inner = getattr(data.batch_sampler, "sampler", None)  # which `data.sampler` is not where batches are sampled
        for owner in (inner, data.sampler, data.dataset):  # a sampler may take some examples alone
            if isinstance(owner, Sized):
                return len(owner)
        return None
    if isinstance(data, list | tuple):
        return sum(len(targets) for _, targets in Batches(data, torch.device("cpu")))
    return None


def apart(data: Any) -> Any:
    """The same data, whose passes do not begin a pass of training anew.

    All passes of a loader whose workers persist share one iterator: a second pass would turn the first one back.
    """
    if not isinstance(data, DataLoader) or not data.persistent_workers:
        return data
    other = copy.copy(data)
    other.__dict__.update(persistent_workers=False, _iterator=None)
    return other


@dataclass(frozen=True, eq=False)
class Drawn:
    """Some of the batches of a loader, drawn anew for every seed, and the same in every pass with one seed."""

    data: Any
    batches: int | None  # None: all
    seed: int

    def __iter__(self) -> Iterator[Any]:
        seed_all(self.seed, self.data)
        return itertools.islice(iter(self.data), self.batches)

    def __len__(self) -> int:
        return len(self.data) if self.batches is None else self.batches


def share_of(data: Any, model: nn.Module, share: float, seed: int) -> Any:
    """Data for one measurement: all, or a share that the seed draws."""
    batches = Batches(data, model)
    if batches.pair:
        inputs, targets = batches.data
        if share == 1:
            return data
        chosen = drawn_numbers(len(targets), share, seed).to(targets.device)
        return chosen_rows(inputs, chosen), targets[chosen]
    batches.refuse_one_shot("Learning while training passes over the data many times")
    source = batches.data
    if isinstance(source, list | tuple) and share < 1:
        return [source[number] for number in drawn_numbers(len(source), share, seed).tolist()]
    if isinstance(source, DataLoader):
        source = in_whole(source, share, seed)
        if source is not batches.data:
            return Drawn(source, None, seed)
    if share == 1:
        return Drawn(source, None, seed)
    if not len(batches):
        raise PeewitError(
            f"share={share} of data without a length: a {type(data).__name__} does not say how many batches it has. "
            "Give share=1, or curvature_data= with a length."
        )
    return Drawn(source, math.ceil(share * len(batches)), seed)


def drawn_numbers(count: int, share: float, seed: int) -> Tensor:
    """Some of the numbers below a count, in order."""
    chosen = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    return chosen[: math.ceil(share * count)].sort().values


def in_whole(loader: DataLoader[Any], share: float, seed: int) -> DataLoader[Any]:
    """A loader without the batch that it drops, and one that does not shuffle with a share drawn; else as it is."""
    fixed = type(loader.sampler) is SequentialSampler
    if type(loader.batch_sampler) is not BatchSampler or not (loader.drop_last or (fixed and share < 1)):
        return loader
    numbers = drawn_numbers(len(loader.sampler), share, seed).tolist() if fixed and share < 1 else None  # type: ignore[arg-type]
    return DataLoader(
        loader.dataset if numbers is None else Subset(loader.dataset, numbers),
        batch_size=loader.batch_size,
        sampler=loader.sampler if numbers is None else None,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        worker_init_fn=loader.worker_init_fn,
        generator=loader.generator,
    )


@dataclass(frozen=True, eq=False)
class Shuffled:
    """Tensors in batches, in another order every time, which torch's global generator draws."""

    inputs: Any
    targets: Tensor
    batch_size: int

    def __iter__(self) -> Iterator[Any]:
        for chosen in torch.randperm(len(self.targets)).split(self.batch_size):
            yield chosen_rows(self.inputs, chosen), self.targets[chosen.to(self.targets.device)]

    def __len__(self) -> int:
        return -(-len(self.targets) // self.batch_size)


def in_batches(data: Any, model: nn.Module, batch_size: int) -> Any:
    """Training data in batches: what has none is shuffled anew in every epoch."""
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset | TensorDataset):
        return DataLoader(data, batch_size=batch_size, shuffle=True)
    batches = Batches(data, model)
    return Shuffled(batches.data[0], batches.data[1], batch_size) if batches.pair else data


def chosen_rows(inputs: Any, chosen: Tensor) -> Any:
    """Some examples of inputs in any form."""
    return map_tensors(lambda each: each[chosen.to(each.device)], inputs)
