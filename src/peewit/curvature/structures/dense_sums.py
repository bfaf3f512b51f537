"""Sums of outer products over groups of weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...jacobians.explicit import Explicit
from ...jacobians.factored import Matrix
from ...jacobians.stacked import Stacked
from ...messages.errors import PeewitError
from ...network.finite import NotFiniteCurvature
from ...weights.ranges import WeightRange
from ...weights.space import Space
from ..batch import KeptChunks
from ..blocks import rows_of
from ..stream import Source
from .common import add_to, check_shape
from .grams import add_outer, mirror, rows_at_once
from .rounding import Rounding, in_float64

Group = tuple[WeightRange, ...]


@dataclass(frozen=True)
class DenseSums:
    """Dense matrices over groups of weights, or over those of their elements that a mask selects."""

    matrices: dict[Group, Tensor]
    mask: Tensor | None = None

    def after(self, earlier: DenseSums) -> DenseSums:
        """The sums of earlier data and of this, which are added to in place."""
        matrices = dict(earlier.matrices)
        for group, matrix in self.matrices.items():
            matrices[group] = add_to(matrix, matrices[group]) if group in matrices else matrix
        return DenseSums(matrices, self.mask)

    def clip(self) -> DenseSums:
        """Without negative eigenvalues."""
        matrices = {}
        for group, matrix in self.matrices.items():
            values, vectors = torch.linalg.eigh(matrix)
            matrices[group] = (vectors * values.clamp(min=0)) @ vectors.T
        return DenseSums(matrices, self.mask)

    def check(self, groups: list[Group], space: Space) -> None:
        """Refuse matrices over other groups of weights or of other sizes."""
        mask = space.mask
        if (self.mask is None) != (mask is None) or (
            self.mask is not None and mask is not None and not torch.equal(self.mask.cpu(), mask.cpu())
        ):
            raise PeewitError("The curvature was measured over other elements of the weights")
        for group, matrix in self.matrices.items():
            names = ", ".join(part.name for part in group)
            if group not in groups:
                raise PeewitError(f"{names!r} is not a block of this network")
            size = sum(part.stop - part.start for part in group) if mask is None else space.size
            check_shape(matrix, f"The curvature of {names!r}", (size, size))

    def of_used(self, space: Space) -> dict[Group, Tensor]:
        """Without the rows and columns of weights that were never used."""
        self._finite()
        matrices = {}
        for group, matrix in self.matrices.items():
            parts = tuple(part for part in group if part.name in space.names)
            if parts and len(parts) < len(group):
                flags = [
                    torch.full((part.stop - part.start,), part.name in space.names, device="cpu") for part in group
                ]
                left = torch.cat(flags) if self.mask is None else torch.cat(flags)[self.mask.cpu()]
                keep = left.nonzero()[:, 0].to(matrix.device)
                matrix = matrix[keep][:, keep]
            if parts:
                matrices[parts] = matrix
        return matrices

    def _finite(self) -> None:
        """Name the weights whose rows hold NaN or Inf."""
        for group, matrix in self.matrices.items():
            if bool(torch.isfinite(torch.linalg.vector_norm(matrix.detach(), torch.inf))):
                continue
            sizes = torch.tensor([part.stop - part.start for part in group], device="cpu")
            owners = torch.arange(len(group), device="cpu").repeat_interleave(sizes)
            owners = owners if self.mask is None else owners[self.mask.cpu()]
            diagonal = ~torch.isfinite(matrix.detach().diagonal().cpu())
            rows = diagonal if bool(diagonal.any()) else ~torch.isfinite(matrix.detach()).all(1).cpu()
            raise NotFiniteCurvature([group[number].name for number in owners[rows].unique().tolist()])


def measure_groups(
    source: Source, groups: list[Group], mask: Tensor | None = None, earlier: DenseSums | None = None
) -> DenseSums:
    """Sums of outer products for each group of weights; in float64 where that shows, or earlier ones are."""
    rounding: Rounding[Group] = Rounding(source=source)
    sums: dict[Group, Tensor] = {}
    for batch in source:
        first = rounding.begins(batch)
        probes = KeptChunks(batch, source.task.budget) if first else batch.probes()
        chosen = None if mask is None else mask.to(batch.tape.output.device)
        measure_chunks(probes, groups, chosen, rounding, sums)
        refined = judge(sums, rounding) if rounding.due(batch) else set()
        if first and refined:
            sums = {group: value for group, value in sums.items() if group not in refined}
            again = [group for group in groups if group in refined]
            measure_chunks(probes, again, chosen, rounding, sums)
        del probes  # memory, before the next batch needs it
    rounding.ended = True
    if rounding.over():
        judge(sums, rounding)
    known = {} if earlier is None else earlier.matrices
    fine = rounding.find_visible(sizes(sums)) | {group for group, value in known.items() if in_float64([value])}
    for group in sums:
        sums[group] = sums[group] if group in fine - rounding.lost else sums[group].float()
    return DenseSums(sums, mask)


def judge(sums: dict[Group, Tensor], rounding: Rounding[Group]) -> set[Group]:
    """Matrices that need products in float64 from now on, of those in which float32 would show."""
    shown = {group: sums[group].unsqueeze(0) for group in rounding.find_visible(sizes(sums))}
    ridge = 1 / rounding.strength
    return rounding.judge({group: (value, value.new_full((1,), ridge)) for group, value in shown.items()})


def sizes(sums: dict[Group, Tensor]) -> dict[Group, Tensor]:
    """About the largest eigenvalues, never less."""
    return {group: torch.linalg.vector_norm(mirror(value.detach())) for group, value in sums.items()}


def measure_chunks(
    chunks: Iterable[Mapping[WeightRange, Matrix | Explicit]],
    groups: list[Group],
    mask: Tensor | None,
    rounding: Rounding[Group],
    sums: dict[Group, Tensor],
) -> None:
    """Add a batch's matrices to the sums."""
    for chunk in chunks:
        for group in groups:
            dtype = torch.float64 if group in rounding.exact else torch.float32
            total = add_gram(sums.get(group), chunk, group, mask, dtype)
            if total is not None:
                sums[group] = total


def add_gram(
    total: Tensor | None,
    chunk: Mapping[WeightRange, Matrix | Explicit],
    group: Group,
    mask: Tensor | None,
    dtype: torch.dtype,
) -> Tensor | None:
    """(P, P) in float64 and `sum J^T J` over probes and examples for a group of weights, some rows at a time."""
    pieces = tuple(chunk[part] if part in chunk else rows_of(chunk, part) for part in group)
    if all(piece is None for piece in pieces):
        return total
    stacked = Stacked(pieces, tuple(part.stop - part.start for part in group), mask)
    bytes_per_example = 3 * stacked.probes * sum(stacked.sizes) * 8
    for examples in stacked.budget.slices(stacked.examples, bytes_per_example):
        rows = stacked.rows(examples).flatten(0, 1)
        if total is None:
            total = rows.new_zeros(rows.shape[1], rows.shape[1], dtype=torch.float64)
        for some in rows.split(rows_at_once(rows, len(rows))):
            total = add_outer(total, some.to(torch.promote_types(rows.dtype, dtype)))
    return total
