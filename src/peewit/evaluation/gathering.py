"""One pass over a data set: every method predicts every batch, as it is and changed, and numbers are kept."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..messages.errors import PeewitError
from ..metrics.positions import Positions
from ..network.arrays import as_tensors, holds_numbers
from ..network.batches import Batches, UnlabelledBatches, as_batches, split_batch
from ..network.nests import Inputs, count, map_tensors, tensors
from ..runtime.device import wait
from ..runtime.progress import Progress
from .methods import Method
from .scorers import Scorer
from .specimens import Gallery
from .variations import Make, Variation

PROBABILITIES = 1 << 28  # that are kept of one method, for class-wise calibration


@dataclass(eq=False, kw_only=True)
class MethodNumbers:
    """One method's numbers and scores, batch by batch, for the test data as they are and at every strength."""

    batches: list[Positions] = field(default_factory=list)
    scores: dict[str, list[Tensor]] = field(default_factory=dict)
    changed: dict[tuple[str, str, float], list[Positions]] = field(default_factory=dict)
    ready: set[tuple[str, str]] = field(default_factory=set)  # variations with data sets of their own
    clean: list[Positions] = field(default_factory=list)  # the examples that were changed, as they are
    seconds: float = 0.0

    @property
    def examples(self) -> int:
        """N."""
        return sum(batch.examples for batch in self.batches)

    def positions(self) -> Positions:
        """All batches."""
        return Positions.join(self.batches)

    def values(self) -> dict[str, Tensor]:
        """(N,) each."""
        return {name: torch.cat(batches) for name, batches in self.scores.items()}

    def trim(self) -> None:
        """Forget probabilities of all classes where they are too many."""
        if sum(batch.probs.numel() for batch in self.batches if batch.probs is not None) > PROBABILITIES:
            self.batches = [replace(batch, probs=None) for batch in self.batches]

    def keep(self, scores: Mapping[str, Tensor]) -> None:
        """The scores of one batch."""
        for name, values in scores.items():
            self.scores.setdefault(name, []).append(values)


def gather(
    batches: Batches,
    methods: Sequence[Method],
    makers: Mapping[tuple[str, str], Make],
    progress: Progress,
    gallery: Gallery,
    share: float,
) -> list[MethodNumbers]:
    """The numbers of every method on labelled data; `makers`, by kind and name, change a share of the examples."""
    numbers = [MethodNumbers() for _ in methods]
    seen = 0
    for inputs, targets in progress.track(batches, len(batches), batches.name):
        for method, method_numbers in zip(methods, numbers, strict=True):
            scorer, positions, seconds = measure_time(method, inputs, targets, batches.device)
            method_numbers.batches.append(positions)
            method_numbers.seconds += seconds
            method_numbers.keep(scorer.scores(targets))
            if method_numbers is numbers[0]:
                gallery.visit(inputs, targets, positions, seen)
            method_numbers.trim()
        chosen = evenly(seen, count(inputs), share) if makers else []
        if chosen:
            for method_numbers in numbers:
                method_numbers.clean.append(method_numbers.batches[-1].of_examples(chosen))
            change(pick(inputs, chosen), targets[chosen], methods, numbers, makers)
        seen += count(inputs)
    if not sum(map(len, numbers[0].batches)):
        raise PeewitError(f"{batches.name}: no position has a label; expected some that are not ignored.")
    return numbers


def change(
    inputs: Inputs,
    targets: Tensor,
    methods: Sequence[Method],
    numbers: Sequence[MethodNumbers],
    makers: Mapping[tuple[str, str], Make],
) -> None:
    """Predict one batch at every strength of every variation."""
    first = sum(batch.examples for batch in numbers[0].clean) - count(inputs)
    for (kind, name), make in makers.items():
        for strength, changed in make(inputs, targets, first):
            for method, method_numbers in zip(methods, numbers, strict=True):
                positions = method.predict(changed).positions(targets, full=False)
                method_numbers.changed.setdefault((kind, name, strength), []).append(positions)


def pick(inputs: Inputs, chosen: list[int]) -> Inputs:
    """Some of the examples."""
    part: Inputs = map_tensors(lambda tensor: tensor[chosen], inputs)
    return part


def evenly(first: int, number: int, share: float) -> list[int]:
    """Which of the examples from `first` on belong to an evenly spread share of all."""
    numbers = range(first, first + number)
    return [example - first for example in numbers if math.floor((example + 1) * share) > math.floor(example * share)]


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


def measure_time(
    method: Method, inputs: Inputs, targets: Tensor, device: torch.device
) -> tuple[Scorer, Positions, float]:
    """A prediction, its numbers, and how long both took."""
    wait(device)
    began = time.perf_counter()
    scorer = method.predict(inputs)
    positions = scorer.positions(targets)
    wait(device)
    return scorer, positions, time.perf_counter() - began


def gather_ready(
    variation: Variation,
    model: nn.Module,
    methods: Sequence[Method],
    numbers: Sequence[MethodNumbers],
    progress: Progress,
) -> None:
    """Predict data sets that are ready, one per strength."""
    assert variation.ready is not None
    by_strength = {float(strength): data for strength, data in variation.ready.items()}
    for strength in variation.strengths:
        what = f"{variation.kind}: {variation.name!r} at strength {strength:g}"
        positions_by_method: list[list[Positions]] = [[] for _ in methods]
        batches = Batches(by_strength[strength], model, what)
        for inputs, targets in progress.track(batches, len(batches), what):
            for method, positions in zip(methods, positions_by_method, strict=True):
                positions.append(method.predict(inputs).positions(targets, full=False))
        if not sum(map(len, positions_by_method[0])):
            raise PeewitError(f"{what}: the data has no labelled examples; expected some.")
        for method_numbers, positions in zip(numbers, positions_by_method, strict=True):
            method_numbers.changed[variation.kind, variation.name, strength] = positions
            method_numbers.ready.add((variation.kind, variation.name))


def gather_scores(
    data: Any, model: nn.Module, methods: Sequence[Method], progress: Progress, gallery: Gallery, name: str
) -> list[dict[str, Tensor]]:
    """The scores of all inputs of an unknown kind, by method: name -> (N,)."""
    numbers, seen, what = [MethodNumbers() for _ in methods], 0, f"ood: {name!r}"
    batches = inputs_of(data, model, what)
    for inputs, _ in progress.track(batches, len(batches), what):
        for method, method_numbers in zip(methods, numbers, strict=True):
            scorer = method.predict(inputs)
            scores = scorer.scores()
            method_numbers.keep(scores)
            if method_numbers is numbers[0]:
                gallery.visit_unknown(name, inputs, scorer, scores, seen)
        seen += count(inputs)
    return [method_numbers.values() for method_numbers in numbers]


def inputs_of(data: Any, model: nn.Module, what: str) -> Batches:
    """Inputs with or without labels, in all forms that data have."""
    inputs = as_batches(data, 256)
    inputs = as_tensors(inputs, what) if holds_numbers(inputs) else inputs
    if isinstance(inputs, Tensor):
        return Batches((inputs, torch.zeros(count(inputs), device="cpu")), model, what)
    pair = isinstance(inputs, tuple) and len(inputs) == 2 and isinstance(inputs[1], Tensor) and bool(tensors(inputs[0]))
    if pair:
        return Batches((inputs[0], torch.zeros(count(inputs[0]), device="cpu")), model, what)
    return Batches(UnlabelledBatches(Batches(inputs, model).data, what), model, what)
