"""Dense curvature: one matrix over all weights, or one per module with its bias."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...jacobians.explicit import Explicit
from ...jacobians.factored import Matrix
from ...jacobians.stacked import Stacked
from ...messages.errors import PeewitError
from ...network.finite import NotFiniteCurvature
from ...weights.groups import Groups
from ...weights.ranges import WeightRange
from ...weights.space import Space
from ..batch import KeptChunks
from ..blocks import Blocks, OperatorBlock, rows_of
from ..contracts import Peak
from ..operators import DenseOperator
from ..stream import Source
from .common import added, check_shape, cleared, filled, floored
from .factors import CHUNK, CHUNK_CUDA, CHUNKS_CUDA
from .rounding import Rounding, in_float64

STRIPES, STRIPE = 4, 128  # in how many stripes a symmetric matrix is made, and how wide they are at least
Group = tuple[WeightRange, ...]


def add_gram(
    total: Tensor | None,
    found: Mapping[WeightRange, Matrix | Explicit],
    group: Group,
    mask: Tensor | None,
    dtype: torch.dtype,
) -> Tensor | None:
    """(P, P) in float64 and `sum J^T J` over probes and examples for a group of weights, some rows at a time."""
    pieces = tuple(found[part] if part in found else rows_of(found, part) for part in group)
    if all(piece is None for piece in pieces):
        return total
    stacked = Stacked(pieces, tuple(part.stop - part.start for part in group), mask)
    each = 3 * stacked.probes * sum(stacked.sizes) * 8
    for examples in stacked.budget.slices(stacked.examples, each):
        rows = stacked.rows(examples).flatten(0, 1)
        if total is None:
            total = rows.new_zeros(rows.shape[1], rows.shape[1], dtype=torch.float64)
        step = max(CHUNK_CUDA, -(-len(rows) // CHUNKS_CUDA)) if rows.is_cuda else CHUNK
        for some in rows.split(step):
            total = with_outer(total, some.to(torch.promote_types(rows.dtype, dtype)))
    return total


def with_outer(total: Tensor, rows: Tensor) -> Tensor:
    """`total + rows^T rows`, in place where no gradient flows: several matrices (P, P) at a time may be too many.

    In place it is made by lower blocks alone; `mirrored` fills in the others.
    """
    if total.requires_grad or rows.requires_grad:
        return mirrored(total) + rows.T @ rows
    step = max(STRIPE, -(-rows.shape[1] // STRIPES))
    for start in range(0, rows.shape[1], step):
        stop = min(start + step, rows.shape[1])
        total[start:stop, :stop] += rows[:, start:stop].T @ rows[:, :stop]
    return total


def mirrored(total: Tensor) -> Tensor:
    """With the numbers below the diagonal above it too."""
    if total.requires_grad:
        return total
    step = max(STRIPE, -(-len(total) // STRIPES))
    for start in range(0, len(total), step):
        stop = min(start + step, len(total))
        total[:start, start:stop] = total[start:stop, :start].T
    return total


def with_diagonal(matrix: Tensor, data_weight: Tensor, diagonal: Tensor) -> Tensor:
    """`data_weight matrix + diag(diagonal)`, as one new matrix where no gradient flows."""
    if matrix.requires_grad or data_weight.requires_grad or diagonal.requires_grad:
        return data_weight * matrix + torch.diag(diagonal)
    made = data_weight * matrix
    made.diagonal().add_(diagonal)
    return made


@dataclass(frozen=True)
class Block:
    """One dense matrix per module, over its weight and bias together.

    A module with P weights takes P x P numbers. `structure="block"` means `Block()`. It takes neither masks nor a
    `Subnetwork`, and has no arguments.

    Example:
        >>> pw.fit(model, (x, y), "classification", structure=pw.Block()).coverage()["0.weight"].approximation
        'dense block of its module'
    """

    masks = False

    def groups(self, space: Space) -> list[Group]:
        """Weights by the module that owns them."""
        made: dict[str, list[WeightRange]] = {}
        for part in space.parts():
            made.setdefault(part.name.rpartition(".")[0], []).append(part)
        return [tuple(parts) for parts in made.values()]

    def measure(self, source: Source) -> DenseSums:
        """(P, P) per module."""
        return measure_groups(source, self.groups(source.task.space))

    def more(self, source: Source, earlier: DenseSums) -> DenseSums:
        """Sums over earlier data and this."""
        return measure_groups(source, self.groups(source.task.space), None, earlier).after(earlier)

    def check(self, sums: DenseSums, space: Space) -> None:
        """Refuse sums that are not of these weights."""
        sums.check(self.groups(space), space)

    def curvature(self, sums: DenseSums, space: Space) -> DenseCurvature:
        """The sums are the matrices."""
        return DenseCurvature(sums.kept(space), space, "dense block of its module")


@dataclass(frozen=True)
class Full:
    """One dense matrix over all D weights.

    It takes D x D numbers. `structure="full"` means `Full()`. It takes masks and a `Subnetwork`, and has no arguments.

    Example:
        >>> pw.fit(model, (x, y), "classification", structure=pw.Full()).coverage()["0.weight"].approximation
        'full matrix'
    """

    masks = True

    def measure(self, source: Source) -> DenseSums:
        """(D, D)."""
        return self._measure(source)

    def more(self, source: Source, earlier: DenseSums) -> DenseSums:
        """Sums over earlier data and this."""
        return self._measure(source, earlier).after(earlier)

    def _measure(self, source: Source, earlier: DenseSums | None = None) -> DenseSums:
        space = source.task.space
        return measure_groups(source, [tuple(space.parts())], space.mask, earlier)

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
            raise PeewitError("The curvature was measured over other elements of the weights")
        for group, matrix in self.matrices.items():
            names = ", ".join(part.name for part in group)
            if group not in groups:
                raise PeewitError(f"{names!r} is no block of this network")
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
    """Sums of outer products for each group of weights; in float64 where that shows, or earlier ones are."""
    rounding: Rounding[Group] = Rounding(source=source)
    sums: dict[Group, Tensor] = {}
    for batch in source:
        first = rounding.begins(batch)
        probes = KeptChunks(batch, source.task.budget) if first else batch.probes()
        chosen = None if mask is None else mask.to(batch.tape.output.device)
        measure_chunks(probes, groups, chosen, rounding, sums)
        found = judge(sums, rounding) if rounding.due(batch) else set()
        if first and found:
            sums = {group: value for group, value in sums.items() if group not in found}
            again = [group for group in groups if group in found]
            measure_chunks(probes, again, chosen, rounding, sums)
        del probes  # memory, before the next batch needs it
    rounding.ended = True
    if rounding.over():
        judge(sums, rounding)
    known = {} if earlier is None else earlier.matrices
    fine = rounding.shown(sizes(sums)) | {group for group, value in known.items() if in_float64([value])}
    for group in sums:
        sums[group] = sums[group] if group in fine - rounding.lost else sums[group].float()
    return DenseSums(sums, mask)


def judge(sums: dict[Group, Tensor], rounding: Rounding[Group]) -> set[Group]:
    """Matrices that need products in float64 from now on, of those in which float32 would show."""
    shown = {group: sums[group].unsqueeze(0) for group in rounding.shown(sizes(sums))}
    ridge = 1 / rounding.strength
    return rounding.judge({group: (value, value.new_full((1,), ridge)) for group, value in shown.items()})


def sizes(sums: dict[Group, Tensor]) -> dict[Group, Tensor]:
    """About the largest eigenvalues, never less."""
    return {group: torch.linalg.vector_norm(mirrored(value.detach())) for group, value in sums.items()}


def measure_chunks(
    chunks: Iterable[Mapping[WeightRange, Matrix | Explicit]],
    groups: list[Group],
    mask: Tensor | None,
    rounding: Rounding[Group],
    sums: dict[Group, Tensor],
) -> None:
    """Add a batch's matrices to the sums."""
    for found in chunks:
        for group in groups:
            dtype = torch.float64 if group in rounding.exact else torch.float32
            made = add_gram(sums.get(group), found, group, mask, dtype)
            if made is not None:
                sums[group] = made


@dataclass(frozen=True)
class DenseCurvature:
    """Dense matrices over groups of weights."""

    matrices: dict[Group, Tensor]
    space: Space
    words: str

    elementwise = True

    def precision(self, delta: Tensor, data_weight: Tensor, numbers: Tensor | None = None) -> Blocks:
        """`data_weight H + diag(delta)` per group."""
        space = self.space
        blocks = []
        for parts, matrix in self.matrices.items():
            mask = None if space.mask is None else space.mask.to(matrix.device)
            slices = self._slices(parts)
            own = torch.cat([delta[piece] for piece in slices])
            operator = DenseOperator(with_diagonal(matrix, data_weight.to(matrix), own))
            blocks.append(OperatorBlock(parts=parts, slices=slices, operator=operator, mask=mask))
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
