"""Some examples after their forward pass, and the rows of `S^T J` that structures measure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from ..jacobians.explicit import Explicit
from ..jacobians.factored import Matrix
from ..runtime.memory import Budget
from ..tracing.tape import Tape
from ..weights.ranges import WeightRange
from .kinds import CurvatureKind, OutputView
from .restart import PassRestart

Chunk = dict[WeightRange, Matrix | Explicit]  # rows of `S^T J` for some probes, per range of each weight


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Some examples after their forward pass: what structures measure."""

    tape: Tape
    view: OutputView
    kind: CurvatureKind
    masked: Tensor | None  # (N,): examples with ignored labels; None where there are none
    step: int  # probes at a time

    @property
    def examples(self) -> int:
        """N."""
        return self.tape.examples

    @property
    def total(self) -> int:
        """K: all probes."""
        return self.kind.count(self.view.form, self.view.likelihood)

    @property
    def at_once(self) -> bool:
        """Whether all probes are in one chunk."""
        return self.step >= self.total

    def probes(self) -> Iterator[Chunk]:
        """`S^T J`, a chunk of probes at a time, per range of each weight."""
        total = self.total
        for start in range(0, total, self.step):
            probes = self.kind.probes(self.view, start, min(start + self.step, total))
            jacobians = self.tape.pull(self.view.form.restore(probes).to(self.tape.output.dtype))
            changed = self.tape.learner.note_forms(jacobians)
            if changed:
                raise PassRestart(f"{', '.join(changed)} turned out to be applied in several ways")
            yield jacobians


class KeptChunks:
    """A batch's probes for several passes: kept where they fit into spare memory, else made again in each pass."""

    def __init__(self, batch: Batch, budget: Budget) -> None:
        self.batch, self.kept = batch, list[Chunk]()
        self.room = math.inf if batch.at_once else budget.spare

    def __iter__(self) -> Iterator[Chunk]:
        if self.kept:
            yield from self.kept
            return
        kept, room = list[Chunk](), self.room
        for chunk in self.batch.probes():
            room -= bytes_of(chunk)
            kept = [*kept, chunk] if room >= 0 else []
            yield chunk
        self.kept = kept


def bytes_of(chunk: Chunk) -> int:
    """Bytes of the gradients in a chunk of probes; a bias shares those of its weight."""
    matrices = [each for each in chunk.values() if isinstance(each, Matrix)]
    values = [each.value for each in chunk.values() if isinstance(each, Explicit)]
    once = {id(each): each for each in [*values, *(term.grad for matrix in matrices for term in matrix.terms)]}
    return sum(each.numel() * each.element_size() for each in once.values())
