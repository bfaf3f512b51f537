"""Dense matrices under a prior."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from ...weights.groups import Groups
from ...weights.space import Space
from ..blocks import Blocks, OperatorBlock
from ..contracts import Curvature, Peak
from ..operators import DenseOperator
from .common import apply_floor, clear_rounding, fill_zeros
from .dense_sums import Group


@dataclass(frozen=True)
class DenseCurvature(Curvature):
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
            group_delta = torch.cat([delta[piece] for piece in slices])
            operator = DenseOperator(add_diagonal(matrix, data_weight.to(matrix), group_delta))
            blocks.append(OperatorBlock(parts=parts, slices=slices, operator=operator, mask=mask))
        return Blocks(blocks, space.size)

    def _slices(self, parts: Group) -> tuple[slice, ...]:
        """Where a group's weights are in the vector of D."""
        masked = self.space.mask is not None
        return (slice(0, self.space.size),) if masked else tuple(self.space.slice_of(part) for part in parts)

    def diag(self, floor: float = 0.0) -> Tensor:
        """(D,): the matrices' diagonals, each tensor with a floor of its own."""
        pieces: list[tuple[int, Tensor]] = []
        mask = self.space.mask
        for parts, matrix in self.matrices.items():
            places = self._slices(parts)
            if mask is not None:  # one range holds the selected elements of all tensors
                ends = list(itertools.accumulate(int(mask[self.space.slice_of(part)].sum()) for part in parts))
                places = tuple(slice(start, stop) for start, stop in zip([0, *ends[:-1]], ends, strict=True))
            values = matrix.diagonal().split([elements.stop - elements.start for elements in places])
            pieces += [
                (elements.start, apply_floor(each, floor)) for elements, each in zip(places, values, strict=True)
            ]
        ordered = [each for _, each in sorted(pieces, key=lambda piece: piece[0])]
        return fill_zeros(torch.cat(clear_rounding(ordered) if floor else ordered), floor)

    def spectrum(self, groups: Groups, base: Tensor | None = None) -> Tensor | None:
        """Eigenvalues of every matrix, where all its weights share one precision."""
        pieces: list[tuple[int, Tensor]] = []
        for parts, matrix in self.matrices.items():
            places = self._slices(parts)
            if not groups.share_one(*places):
                return None
            wide = matrix.detach().double()
            if base is not None:
                root = torch.cat([base[elements] for elements in places]).to(wide).rsqrt()
                wide = root[:, None] * wide * root
            values = torch.linalg.eigvalsh(wide).split([elements.stop - elements.start for elements in places])
            pieces += [(elements.start, each) for elements, each in zip(places, values, strict=True)]
        return torch.cat([each for _, each in sorted(pieces, key=lambda piece: piece[0])])

    def peaks(self) -> list[Peak]:
        """Largest eigenvalue of every matrix, or little more, and the dtype of its sums."""
        return [
            Peak(parts, torch.linalg.vector_norm(matrix.detach()), matrix.dtype)
            for parts, matrix in self.matrices.items()
        ]

    def approximation(self, name: str) -> str:
        """For the coverage table."""
        return self.words


def add_diagonal(matrix: Tensor, data_weight: Tensor, diagonal: Tensor) -> Tensor:
    """`data_weight matrix + diag(diagonal)`, as one new matrix where no gradient flows."""
    if matrix.requires_grad or data_weight.requires_grad or diagonal.requires_grad:
        return data_weight * matrix + torch.diag(diagonal)
    total = data_weight * matrix
    total.diagonal().add_(diagonal)
    return total
