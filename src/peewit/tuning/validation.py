"""Scores on data that was not trained on, and a search that needs scores alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..messages.errors import PeewitError
from ..network.batches import Batches
from ..network.nests import count
from ..predictions.predict import predict

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

Score = Callable[[Sequence[float]], float]
Ahead = Callable[[Sequence[Sequence[float]]], None]  # scores that are about to be asked for, all at once


def validation_nll(la: PosteriorState, data: Any, **options: Any) -> float:
    """The mean negative log probability per example of the predictive, over all batches of `data`."""
    batches = data if isinstance(data, Batches) else Batches(data, la.weights.device, "The validation data")
    total, examples = 0.0, 0
    with torch.random.fork_rng(devices=[]):  # a shuffled loader draws from the global generator
        for inputs, targets in batches:
            total -= float(predict(la, inputs, **options).log_prob(targets).double().sum())
            examples += count(inputs)
    return total / examples


def repeated(data: Any, device: torch.device) -> Batches:
    """Validation data, which is passed over once per score."""
    if data is None:
        raise PeewitError(
            "method='validation' scores predictions on data that was not trained on; give it as validation=(x, y) or a "
            "DataLoader, or use method='evidence', which needs none."
        )
    batches = Batches(data, device, "The validation data")
    if batches.one_shot:
        raise PeewitError(
            "validation is a one-shot iterator, and every score passes over it; expected a DataLoader, a list of "
            "batches or tensors."
        )
    return batches


def scan(score: Score, start: Sequence[float], offsets: Mapping[int, Sequence[float]], ahead: Ahead) -> list[float]:
    """A start for the search: the best of some values of each coordinate, one after the other."""
    best, value = list(start), math.inf
    for place, tried in offsets.items():
        line = [[*best[:place], best[place] + offset, *best[place + 1 :]] for offset in tried]
        ahead([best, *line])
        value = min(value, score(best))
        for there in line:
            found = score(there)
            if found < value:
                best, value = there, found
    return best


def minimise(
    score: Score, start: Sequence[float], size: float, tolerance: float, steps: int, ahead: Ahead = lambda _: None
) -> bool:
    """Nelder and Mead's simplex, which needs no gradient; says whether it became as small as the tolerance."""
    simplex = [list(start)]
    simplex += [[v + size * (i == j) for j, v in enumerate(start)] for i in range(len(start))]
    ahead(simplex)
    corners = [(score(corner), corner) for corner in simplex]

    def towards(centre: list[float], worst: list[float], share: float) -> tuple[float, list[float]]:
        there = [c + share * (w - c) for c, w in zip(centre, worst, strict=True)]
        return score(there), there

    for _ in range(steps):
        corners.sort(key=lambda corner: corner[0])
        best, worst = corners[0], corners[-1]
        extent = max(abs(a - b) for _, other in corners[1:] for a, b in zip(best[1], other, strict=True))
        if extent <= tolerance:
            return True
        centre = [sum(values) / (len(corners) - 1) for values in zip(*(c for _, c in corners[:-1]), strict=True)]
        mirrored = towards(centre, worst[1], -1.0)
        if mirrored[0] < best[0]:
            further = towards(centre, worst[1], -2.0)
            corners[-1] = min(further, mirrored, key=lambda corner: corner[0])
        elif mirrored[0] < corners[-2][0]:
            corners[-1] = mirrored
        else:
            nearer = towards(centre, worst[1], 0.5 if mirrored[0] >= worst[0] else -0.5)
            if nearer[0] < min(worst[0], mirrored[0]):
                corners[-1] = nearer
            else:
                shrunk = [[0.5 * (a + b) for a, b in zip(best[1], other, strict=True)] for _, other in corners[1:]]
                ahead(shrunk)
                corners = [best, *((score(corner), corner) for corner in shrunk)]
    return False
