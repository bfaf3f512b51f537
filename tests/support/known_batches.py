"""What stands for a pass over the data where a single step of it is tested: batches whose probes are known."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from peewit.runtime.memory import Budget

ROOM = Budget(1 << 24)


class Known(SimpleNamespace):
    """A source with batches that are there already."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def source_of(*batches: Any, **options: Any) -> Any:
    """By default with the prior precision 1, and data that can be passed over again."""
    given = {"exact": frozenset(), "kind": SimpleNamespace(degree=1), "batches": batches}
    given = {name: options.pop(name, value) for name, value in given.items()}
    data = SimpleNamespace(one_shot=options.pop("one_shot", False), expected=options.pop("expected", 0))
    task = {"least": 1.0, "budget": ROOM, "likelihood": SimpleNamespace(noise_precision=1.0), "data": data, **options}
    return Known(**given, task=SimpleNamespace(**task))


class Probes:
    """Chunks of probes, and how often they were asked for."""

    def __init__(self, chunks: tuple[Any, ...]) -> None:
        self.chunks, self.calls = chunks, 0

    def __call__(self) -> Iterator[Any]:
        self.calls += 1
        return iter(self.chunks)


def batch_of(
    examples: int,
    *chunks: Any,
    dtype: torch.dtype = torch.float32,
    positions: int = 1,
    masked: Tensor | None = None,
    pairs: Any = None,
) -> Any:
    """A batch with chunks of probes, and a bias to each weight of `pairs`."""
    tape = SimpleNamespace(dtype=dtype, pairs=lambda: pairs or {}, output=torch.zeros(1))
    view = SimpleNamespace(form=SimpleNamespace(positions=positions))
    given = {"examples": examples, "tape": tape, "view": view, "masked": masked, "at_once": len(chunks) == 1}
    given["total"] = len(chunks)
    return SimpleNamespace(**given, probes=Probes(chunks))
