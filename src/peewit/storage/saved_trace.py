"""How tuning went, as files hold it: words for infinite numbers, and no names of single weights."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from ..messages.errors import PeewitError
from ..posterior.trace import Trace, TuneMethod

SavedNumber: TypeAlias = float | Literal["nan", "inf", "-inf"]  # JSON has no others


@dataclass(frozen=True, eq=False, kw_only=True)
class SavedTrace:
    """A `Trace` in values that files hold."""

    method: TuneMethod
    objective: str
    groups: tuple[str, ...] | None  # None: as the prior has them, for there can be millions
    values: tuple[SavedNumber, ...]
    precisions: Tensor
    noises: tuple[SavedNumber, ...]
    temperatures: tuple[SavedNumber, ...]
    effective_dimensions: Tensor | None
    stopped: str
    converged: bool
    warnings: tuple[str, ...]
    decrements: tuple[SavedNumber, ...]
    gradients: tuple[SavedNumber, ...]
    products: tuple[SavedNumber, ...]
    raised: float

    @staticmethod
    def of(trace: Trace) -> SavedTrace:
        """A trace for a file."""
        gamma = trace.effective_dimensions
        return SavedTrace(
            method=trace.method,
            objective=trace.objective,
            groups=trace.groups if isinstance(trace.groups, tuple) else None,
            values=to_file(trace.values),
            precisions=trace.precisions,
            noises=to_file(trace.noises),
            temperatures=to_file(trace.temperatures),
            effective_dimensions=None if gamma is None or not bool(torch.isfinite(gamma).all()) else gamma,
            stopped=trace.stopped,
            converged=trace.converged,
            warnings=trace.warnings,
            decrements=to_file(trace.decrements),
            gradients=to_file(trace.gradients),
            products=to_file(trace.products),
            raised=trace.raised,
        )

    def restore(self, names: Sequence[str]) -> Trace:
        """The trace again; `names` are those of the prior's groups."""
        trace = Trace(
            method=self.method,
            objective=self.objective,
            groups=names if self.groups is None else self.groups,
            values=from_file(self.values),
            precisions=self.precisions.cpu(),
            noises=from_file(self.noises),
            temperatures=from_file(self.temperatures),
            effective_dimensions=None if self.effective_dimensions is None else self.effective_dimensions.cpu(),
            stopped=self.stopped,
            converged=self.converged,
            warnings=self.warnings,
            decrements=from_file(self.decrements),
            gradients=from_file(self.gradients),
            products=from_file(self.products),
            raised=self.raised,
        )
        check_trace(trace)
        return trace


def to_file(numbers: Iterable[float]) -> tuple[SavedNumber, ...]:
    """Scores can be infinite, or not a number."""
    words: dict[bool, SavedNumber] = {True: "inf", False: "-inf"}
    return tuple(
        float(number) if math.isfinite(number) else "nan" if math.isnan(number) else words[number > 0]
        for number in numbers
    )


def from_file(numbers: Iterable[SavedNumber]) -> tuple[float, ...]:
    """The numbers again."""
    return tuple(float(number) for number in numbers)


def check_trace(trace: Trace) -> None:
    """Refuse columns of different lengths, and precisions that are not of its groups."""
    steps, few = len(trace.values), {len(trace.values), min(len(trace.values), 2)}
    tables = [trace.precisions, *([] if trace.effective_dimensions is None else [trace.effective_dimensions])]
    fits = all(
        table.is_floating_point() and table.dim() == 2 and len(table) in few and table.shape[1] == len(trace.groups)
        for table in tables
    )
    if not fits or len(trace.temperatures) != steps or len(trace.noises) not in (0, steps):
        raise PeewitError("its trace has columns of different lengths")
    if all(math.isnan(value) for value in trace.values):
        raise PeewitError("its trace has no score")
