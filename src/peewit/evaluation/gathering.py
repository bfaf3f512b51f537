"""One pass over a data set: every method predicts every batch, as it is and changed, and numbers are kept."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..messages.errors import ArgumentTypeError, PeewitError
from ..metrics.columns import Columns
from ..network.batches import Batches, split_batch
from ..network.nests import Inputs, count, map_tensors, tensors
from ..runtime.device import wait
from ..runtime.progress import Progress
from .answers import Answer, Part, joined
from .methods import Method
from .specimens import Gallery
from .variations import Asked, Make

PROBABILITIES = 1 << 28  # that are kept of one method, for class-wise calibration


@dataclass(eq=False)
class Gathered:
    """Of one method: numbers of all positions, scores of all inputs, and the same at every strength."""

    parts: list[Part] = field(default_factory=list)
    scores: dict[str, list[Tensor]] = field(default_factory=dict)
    changed: dict[tuple[str, str, float], list[Part]] = field(default_factory=dict)
    ready: set[tuple[str, str]] = field(default_factory=set)  # those with data sets of their own
    clean: list[Part] = field(default_factory=list)  # of the examples that were changed, as they are
    seconds: float = 0.0

    @property
    def examples(self) -> int:
        """N."""
        return sum(part.examples for part in self.parts)

    def columns(self) -> Columns:
        """All batches."""
        return joined(self.parts)

    def values(self) -> dict[str, Tensor]:
        """(N,) each."""
        return {name: torch.cat(each) for name, each in self.scores.items()}

    def trim(self) -> None:
        """Forget probabilities of all classes where they are too many."""
        if sum(part.probs.numel() for part in self.parts if part.probs is not None) > PROBABILITIES:
            self.parts = [replace(part, probs=None) for part in self.parts]

    def keep(self, scores: Mapping[str, Tensor]) -> None:
        """Those of one batch."""
        for name, each in scores.items():
            self.scores.setdefault(name, []).append(each)


def labelled(
    batches: Batches,
    methods: Sequence[Method],
    makers: Mapping[tuple[str, str], Make],
    progress: Progress,
    gallery: Gallery,
    share: float,
) -> list[Gathered]:
    """Of every method, on data with labels; `makers`, by kind and name, change a share of the examples."""
    made = [Gathered() for _ in methods]
    seen = 0
    for inputs, targets in progress.track(batches, len(batches), batches.name):
        for method, own in zip(methods, made, strict=True):
            predicted, part, seconds = timed(method, inputs, targets, batches.device)
            own.parts.append(part)
            own.seconds += seconds
            own.keep(predicted.scores(targets))
            if own is made[0]:
                gallery.visit(inputs, targets, part, seen)
            own.trim()
        chosen = evenly(seen, count(inputs), share) if makers else []
        if chosen:
            for own in made:
                own.clean.append(own.parts[-1].some(chosen))
            change(picked(inputs, chosen), targets[chosen], methods, made, makers)
        seen += count(inputs)
    if not sum(len(part.owner) for part in made[0].parts):
        raise PeewitError(f"{batches.name}: no position has a label; expected some that are not ignored.")
    return made


def change(
    inputs: Inputs,
    targets: Tensor,
    methods: Sequence[Method],
    made: Sequence[Gathered],
    makers: Mapping[tuple[str, str], Make],
) -> None:
    """One batch at every strength."""
    first = sum(part.examples for part in made[0].clean) - count(inputs)
    for (kind, name), make in makers.items():
        for strength, changed in make(inputs, targets, first):
            for method, own in zip(methods, made, strict=True):
                part = method.predict(changed).part(targets, full=False)
                own.changed.setdefault((kind, name, strength), []).append(part)


def picked(inputs: Inputs, chosen: list[int]) -> Inputs:
    """Some of the examples."""
    return map_tensors(lambda each: each[chosen], inputs)


def evenly(first: int, number: int, share: float) -> list[int]:
    """Which of the examples from `first` on belong to an evenly spread share of all."""
    return [
        place
        for place in range(number)
        if math.floor((first + place + 1) * share) > math.floor((first + place) * share)
    ]


def share_of(batches: Batches, most: int | None) -> float:
    """Of the examples, so that there are about `most`; all where it cannot be told how many there are."""
    if most is None:
        return 1.0
    total = total_of(batches)
    return 1.0 if total is None else min(1.0, most / max(1, total))


def total_of(batches: Batches) -> int | None:
    """How many examples a pass has; None where it cannot be told before."""
    if batches.pair:
        return count(batches.data[0])
    if isinstance(batches.data, list | tuple):
        return sum(count(split_batch(batch)[0]) for batch in batches.data)
    # A sampler may draw fewer than the data set has, or some of them twice.
    sampler = getattr(getattr(batches.data, "batch_sampler", None), "sampler", None)
    for counted in (sampler, getattr(batches.data, "dataset", None)):
        try:
            return len(counted)  # type: ignore[arg-type]  # not all can be counted
        except TypeError:
            continue
    return None


def timed(method: Method, inputs: Inputs, targets: Tensor, device: torch.device) -> tuple[Answer, Part, float]:
    """A prediction, its numbers, and how long both took."""
    wait(device)
    began = time.perf_counter()
    predicted = method.predict(inputs)
    part = predicted.part(targets)
    wait(device)
    return predicted, part, time.perf_counter() - began


def ready(one: Asked, device: torch.device, methods: Sequence[Method], made: Sequence[Gathered], what: str) -> None:
    """Data sets by strength, each with a pass of its own."""
    assert one.ready is not None
    by_strength = {float(strength): data for strength, data in one.ready.items()}
    for strength in one.strengths:
        found: list[list[Part]] = [[] for _ in methods]
        for inputs, targets in Batches(by_strength[strength], device, f"{what} at strength {strength:g}"):
            for method, parts in zip(methods, found, strict=True):
                parts.append(method.predict(inputs).part(targets, full=False))
        if not sum(len(part.owner) for part in found[0]):
            raise PeewitError(f"{what} at strength {strength:g}: the data has no labelled examples; expected some.")
        for own, parts in zip(made, found, strict=True):
            own.changed[one.kind, one.name, strength] = parts
            own.ready.add((one.kind, one.name))


def unlabelled(
    data: Any, device: torch.device, methods: Sequence[Method], progress: Progress, what: str
) -> list[dict[str, Tensor]]:
    """Scores of all inputs, by method: name -> (N,)."""
    made = [Gathered() for _ in methods]
    batches = inputs_of(data, device, what)
    for inputs, _ in progress.track(batches, len(batches), what):
        for method, own in zip(methods, made, strict=True):
            own.keep(method.predict(inputs).scores())
    return [own.values() for own in made]


class Bare:
    """Batches without the labels that they may have."""

    def __init__(self, data: Iterable[Any], what: str) -> None:
        self.data = data
        self.what = what

    def __len__(self) -> int:
        """As many as the data says."""
        return len(self.data)  # type: ignore[arg-type]  # asked by `Batches`, which knows that it may fail

    def __iter__(self) -> Iterator[tuple[Inputs, Tensor]]:
        """Inputs, each with a stand-in for the labels."""
        for batch in self.data:
            inputs = batch
            if isinstance(batch, Mapping):
                inputs = split_batch(batch)[0] if {"labels", "label", "targets", "target", "y"} & set(batch) else batch
            elif isinstance(batch, list | tuple):
                if len(batch) not in (1, 2):
                    raise ArgumentTypeError(
                        f"{self.what}: a batch is a {type(batch).__name__} of {len(batch)}; expected inputs, or "
                        "(inputs, labels)."
                    )
                inputs = batch[0]
            yield inputs, torch.zeros(count(inputs), device="cpu")


def inputs_of(data: Any, device: torch.device, what: str) -> Batches:
    """Inputs with or without labels, in all forms that data have."""
    if isinstance(data, Tensor):
        return Batches((data, torch.zeros(count(data), device="cpu")), device, what)
    pair = isinstance(data, tuple) and len(data) == 2 and isinstance(data[1], Tensor) and bool(tensors(data[0]))
    if pair:
        return Batches((data[0], torch.zeros(count(data[0]), device="cpu")), device, what)
    Batches(data, device)  # refuses what is no data
    return Batches(Bare(data, what), device, what)
