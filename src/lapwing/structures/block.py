"""Dense curvature: one matrix over all weights, or one per module with its bias."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..curvature import Batch, Source
from ..diagnosis import NotFiniteCurvature
from ..groups import Groups
from ..jacobians import Explicit, Matrix, Stacked
from ..layers.base import Part
from ..operators import Block as OperatorBlock
from ..operators import Blocks, Dense, rows_of
from ..resolution import Peak
from ..space import Space
from .common import added, check_shape, cleared, filled, floored
from .rounding import Rounding, in_float64

Group = tuple[Part, ...]


def gram(
    found: Mapping[Part, Matrix | Explicit], group: Group, mask: Tensor | None, dtype: torch.dtype
) -> Tensor | None:
    """(P, P): `sum J^T J` over columns and examples for a group of weights, a chunk of rows at a time."""
    pieces = tuple(found[part] if part in found else rows_of(found, part) for part in group)
    if all(piece is None for piece in pieces):
        return None
    stacked = Stacked(pieces, tuple(part.stop - part.start for part in group), mask)
    total: Tensor | None = None
    for examples in stacked.budget.slices(stacked.examples, 3 * stacked.columns * sum(stacked.sizes) * 8):
        rows = stacked.rows(examples).flatten(0, 1)
        total = with_outer(total, rows.to(torch.promote_types(rows.dtype, dtype)))
    return total


def with_outer(total: Tensor | None, rows: Tensor) -> Tensor:
    """`total + rows^T rows`, in place where no gradient flows: several matrices (P, P) at a time may be too many."""
    if total is None:
        return rows.T @ rows
    if total.requires_grad or rows.requires_grad:
        return total + rows.T @ rows
    return total.addmm_(rows.T, rows)


def with_diagonal(matrix: Tensor, scale: Tensor, diagonal: Tensor) -> Tensor:
    """`scale matrix + diag(diagonal)`, as one new matrix where no gradient flows."""
    if matrix.requires_grad or scale.requires_grad or diagonal.requires_grad:
        return scale * matrix + torch.diag(diagonal)
    made = scale * matrix
    made.diagonal().add_(diagonal)
    return made


@dataclass(frozen=True)
class Block:
    """One dense matrix per module: its weight and bias together."""

    masks = False

    def groups(self, space: Space) -> list[Group]:
        """Weights by the module that owns them."""
        made: dict[str, list[Part]] = {}
        for part in space.parts():
            made.setdefault(part.name.rpartition(".")[0], []).append(part)
        return [tuple(parts) for parts in made.values()]

    def measure(self, source: Source) -> DenseSums:
        """(P, P) per module."""
        return measure_groups(source, self.groups(source.space))

    def more(self, source: Source, earlier: DenseSums) -> DenseSums:
        """Sums over earlier data and this."""
        return measure_groups(source, self.groups(source.space), None, earlier).after(earlier)

    def check(self, sums: DenseSums, space: Space) -> None:
        """Refuse sums that are not of these weights."""
        sums.check(self.groups(space), space)

    def curvature(self, sums: DenseSums, space: Space) -> DenseCurvature:
        """The sums are the matrices."""
        return DenseCurvature(sums.kept(space), space, "dense block of its module")


@dataclass(frozen=True)
class Full:
    """One dense matrix over all weights."""

    masks = True

    def measure(self, source: Source) -> DenseSums:
        """(D, D)."""
        return measure_groups(source, [tuple(source.space.parts())], source.space.mask)

    def more(self, source: Source, earlier: DenseSums) -> DenseSums:
        """Sums over earlier data and this."""
        return measure_groups(source, [tuple(source.space.parts())], source.space.mask, earlier).after(earlier)

    def check(self, sums: DenseSums, space: Space) -> None:
        """Refuse sums that are not of these weights."""
        sums.check([tuple(space.parts())], space)

    def curvature(self, sums: DenseSums, space: Space) -> DenseCurvature:
        """The sum is the matrix."""
        return DenseCurvature(sums.kept(space), space, "full matrix")


@dataclass(frozen=True)
class DenseSums:
    """Dense matrices over groups of weights, or over those of their elements that a mask selects."""

    matrices: dict[Group, Tensor]
    mask: Tensor | None = None

    def after(self, earlier: DenseSums) -> DenseSums:
        """The sums of earlier data and of this, which are added to in place."""
        made = dict(earlier.matrices)
        for group, matrix in self.matrices.items():
            made[group] = added(matrix, made[group]) if group in made else matrix
        return DenseSums(made, self.mask)

    def clipped(self) -> DenseSums:
        """Without negative eigenvalues."""
        made = {}
        for group, matrix in self.matrices.items():
            values, vectors = torch.linalg.eigh(matrix)
            made[group] = (vectors * values.clamp(min=0)) @ vectors.T
        return DenseSums(made, self.mask)

    def check(self, groups: list[Group], space: Space) -> None:
        """Refuse matrices over other groups of weights or of other sizes."""
        mask = space.mask
        if (self.mask is None) != (mask is None) or (
            self.mask is not None and mask is not None and not torch.equal(self.mask.cpu(), mask.cpu())
        ):
            raise ValueError("The curvature was measured over other elements of the weights")
        for group, matrix in self.matrices.items():
            names = ", ".join(part.name for part in group)
            if group not in groups:
                raise ValueError(f"{names!r} is no block of this network")
            size = sum(part.stop - part.start for part in group) if mask is None else space.size
            check_shape(matrix, f"The curvature of {names!r}", (size, size))

    def kept(self, space: Space) -> dict[Group, Tensor]:
        """Without the rows and columns of weights that were never used."""
        self._finite()
        made = {}
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
                made[parts] = matrix
        return made

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
            raise NotFiniteCurvature([group[place].name for place in owners[rows].unique().tolist()])


def measure_groups(
    source: Source, groups: list[Group], mask: Tensor | None = None, earlier: DenseSums | None = None
) -> DenseSums:
    """Sums of outer products for each group of weights; in float64 where earlier ones are."""
    known = {} if earlier is None else earlier.matrices
    rounding: Rounding[Group] = Rounding(source, {group for group, value in known.items() if in_float64([value])})
    sums: dict[Group, Tensor] = {}
    for batch in source:
        fresh = measure_batch(batch, groups, mask, rounding, sums)
        if rounding.due(batch.examples, bool(fresh)):
            largest = {group: size(group, sums, fresh) for group in {**sums, **fresh} if group not in rounding.fine}
            found = rounding.judge(largest)
            sums.update({group: sums[group].double() for group in found if group in sums})
            fresh = {group: value for group, value in fresh.items() if group not in found}
            measure_batch(batch, [group for group in groups if group in found], mask, rounding, sums)
        for group, value in fresh.items():
            put(sums, group, value)
        rounding.fine |= {group for group, value in sums.items() if in_float64([value])}
    if rounding.over():
        found = rounding.judge({group: size(group, sums) for group in sums if group not in rounding.fine})
        sums.update({group: sums[group].double() for group in found})
    return DenseSums(sums, mask)


def size(group: Group, *sums: dict[Group, Tensor]) -> Tensor:
    """About the largest eigenvalue of a matrix that is summed in several places, never less."""
    return torch.stack([torch.linalg.vector_norm(each[group].detach()) for each in sums if group in each]).sum()


def put(sums: dict[Group, Tensor], group: Group, value: Tensor) -> None:
    """Add to a matrix, in place."""
    sums[group] = added(sums[group], value) if group in sums else value


def measure_batch(
    batch: Batch, groups: list[Group], mask: Tensor | None, rounding: Rounding[Group], sums: dict[Group, Tensor]
) -> dict[Group, Tensor]:
    """Add a batch's matrices to the sums; those that may have to be made again in float64 are returned instead."""
    fresh: dict[Group, Tensor] = {}
    if not groups:
        return fresh
    chosen = None if mask is None else mask.to(batch.tape.output.device)
    for found in batch.columns():
        for group in groups:
            made = gram(found, group, chosen, torch.float64 if group in rounding.fine else torch.float32)
            if made is not None:
                put(sums if rounding.settled(group) else fresh, group, made)
    return fresh


@dataclass(frozen=True)
class DenseCurvature:
    """Dense matrices over groups of weights."""

    matrices: dict[Group, Tensor]
    space: Space
    words: str

    elementwise = True

    def precision(self, delta: Tensor, scale: Tensor, numbers: Tensor | None = None) -> Blocks:
        """`scale H + diag(delta)` per group."""
        space = self.space
        blocks = []
        for parts, matrix in self.matrices.items():
            mask = None if space.mask is None else space.mask.to(matrix.device)
            slices = self._slices(parts)
            own = torch.cat([delta[piece] for piece in slices])
            operator = Dense(with_diagonal(matrix, scale.to(matrix), own))
            blocks.append(OperatorBlock(parts, slices, operator, mask=mask))
        return Blocks(blocks, space.size)

    def _slices(self, parts: Group) -> tuple[slice, ...]:
        """Where a group's weights are in the vector of D."""
        masked = self.space.mask is not None
        return (slice(0, self.space.size),) if masked else tuple(self.space.place(part) for part in parts)

    def diag(self, floor: float = 0.0) -> Tensor:
        """(D,): the matrices' diagonals, each tensor with a floor of its own."""
        pieces: list[tuple[int, Tensor]] = []
        mask = self.space.mask
        for parts, matrix in self.matrices.items():
            places = self._slices(parts)
            if mask is not None:  # one range holds the selected elements of all tensors
                ends = list(itertools.accumulate(int(mask[self.space.place(part)].sum()) for part in parts))
                places = tuple(slice(start, stop) for start, stop in zip([0, *ends[:-1]], ends, strict=True))
            own = matrix.diagonal().split([place.stop - place.start for place in places])
            pieces += [(place.start, floored(each, floor)) for place, each in zip(places, own, strict=True)]
        ordered = [each for _, each in sorted(pieces, key=lambda piece: piece[0])]
        return filled(torch.cat(cleared(ordered) if floor else ordered), floor)

    def spectrum(self, groups: Groups, base: Tensor | None = None) -> Tensor | None:
        """Eigenvalues of every matrix, where all its weights share one precision."""
        pieces: list[tuple[int, Tensor]] = []
        for parts, matrix in self.matrices.items():
            places = self._slices(parts)
            if not groups.shared(*places):
                return None
            wide = matrix.detach().double()
            if base is not None:
                root = torch.cat([base[place] for place in places]).to(wide).rsqrt()
                wide = root[:, None] * wide * root
            own = torch.linalg.eigvalsh(wide).split([place.stop - place.start for place in places])
            pieces += [(place.start, each) for place, each in zip(places, own, strict=True)]
        return torch.cat([each for _, each in sorted(pieces, key=lambda piece: piece[0])])

    def peaks(self) -> list[Peak]:
        """Of every matrix, or little more."""
        return [
            Peak(parts, torch.linalg.vector_norm(matrix.detach()), matrix.dtype)
            for parts, matrix in self.matrices.items()
        ]

    def approximation(self, name: str) -> str:
        """For the coverage table."""
        return self.words
