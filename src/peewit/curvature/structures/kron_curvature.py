"""Kronecker blocks side by side, with dense or diagonal ones for the rest."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...jacobians.layout import join, part_ways
from ...network.finite import refuse_broken_curvature
from ...weights.groups import Groups
from ...weights.ranges import WeightRange
from ...weights.space import Space
from ..blocks import Blocks, OperatorBlock
from ..contracts import Curvature, Peak
from ..operators import DenseOperator, DiagonalOperator
from .common import apply_floor, fill_zeros
from .eigen import eigenvalues_meanwhile
from .factors import Key, KronSums
from .grams import too_long
from .kron_spectrum import KronSpectrum
from .sides import eigenvectors_of


def decompose(sums: KronSums, space: Space, words: str) -> KronCurvature:
    """All blocks, ready for any prior."""
    blocks: dict[Key, KronSpectrum] = {}
    refuse_broken_curvature((part.name, value) for part, value in sums.others.items())
    refuse_broken_curvature((key[0].name, value) for key, value in sums.corrected.items())
    others = {part: value for part, value in sums.others.items() if part.name in space.names}
    dense = eigenvalues_meanwhile({part: value for part, value in others.items() if value.dim() == 2})
    sides = {} if sums.bases else eigenvectors_of(sums)
    for key, layout in sums.layouts.items():
        if key[0].name not in space.names:
            continue
        if sums.bases:  # corrected: the eigenvectors were needed to measure
            left, right = sums.bases[key]
            values, factors = sums.corrected[key], None
        else:
            left, right, row_values, column_values = sides[key]
            values, factors = row_values[:, :, None] * column_values[:, None, :], sums.of(key)
        blocks[key] = KronSpectrum(
            layout=layout, left=left, right=right, values=values, weight=sums.weights.get(key), factors=factors
        )
    return KronCurvature(blocks=blocks, others=others, space=space, words=words, eigenvalues=dense())


@dataclass(frozen=True, kw_only=True)
class KronCurvature(Curvature):
    """Kronecker blocks, and dense or diagonal ones for the rest."""

    blocks: dict[Key, KronSpectrum]
    others: dict[WeightRange, Tensor]
    space: Space
    words: str
    eigenvalues: dict[WeightRange, Tensor]  # in float64, of the others that are matrices

    def precision(self, delta: Tensor, data_weight: Tensor, numbers: Tensor | None = None) -> Blocks:
        """`data_weight H + diag(delta)`: one precision per weight keeps the eigenbases."""
        blocks = []
        for key, spectrum in self.blocks.items():
            slices = tuple(self.space.slice_of(part) for part in key)
            matrix = None if numbers is None else self._matrix(numbers, key, spectrum)
            operator = spectrum.precision(self._matrix(delta, key, spectrum), data_weight, key, matrix)
            blocks.append(OperatorBlock(parts=key, slices=slices, operator=operator, joint=spectrum.weight))
        for part, value in self.others.items():
            span = self.space.slice_of(part)
            if value.dim() == 2:
                blocks.append(
                    OperatorBlock(
                        parts=(part,),
                        slices=(span,),
                        operator=DenseOperator(data_weight.to(value) * value + torch.diag(delta[span])),
                    )
                )
            else:
                blocks.append(
                    OperatorBlock(
                        parts=(part,),
                        slices=(span,),
                        operator=DiagonalOperator(data_weight.to(value) * value + delta[span]),
                    )
                )
        for span, part in self._gaps():
            blocks.append(OperatorBlock(parts=(part,), slices=(span,), operator=DiagonalOperator(delta[span])))
        return Blocks(blocks, self.space.size)

    def _matrix(self, flat: Tensor, key: Key, spectrum: KronSpectrum) -> Tensor:
        """(D,) -> (G, O, I): the numbers of one block."""
        pieces = [flat[self.space.slice_of(part)] for part in key]
        return spectrum.layout.to_matrix(
            pieces[0] if spectrum.weight is None else join(pieces[0], pieces[1], spectrum.weight)
        )

    def diag(self, floor: float = 0.0) -> Tensor:
        """(D,): of a Kronecker block rows times columns."""
        diagonal = self._some.new_zeros(self.space.size)
        for key, spectrum in self.blocks.items():
            flat = spectrum.layout.to_flat(spectrum.diagonal(floor))
            pieces = (flat,) if spectrum.weight is None else part_ways(flat, spectrum.weight)
            for part, piece in zip(key, pieces, strict=True):
                diagonal[self.space.slice_of(part)] = piece
        for part, value in self.others.items():
            diagonal[self.space.slice_of(part)] = apply_floor(value.diagonal() if value.dim() == 2 else value, floor)
        return fill_zeros(diagonal, floor)

    def spectrum(self, groups: Groups, base: Tensor | None = None) -> Tensor | None:
        """The blocks' eigenvalues, where each has one precision."""
        eigenvalues = torch.zeros(self.space.size, dtype=torch.float64, device=self._some.device)
        for key, block in self.blocks.items():
            places = [self.space.slice_of(part) for part in key]
            if not groups.share_one(*places):
                return None
            values = block.eigenvalues(None if base is None else self._matrix(base, key, block), key).detach()
            pieces = values.split([span.stop - span.start for span in places])
            for span, piece in zip(places, pieces, strict=True):
                eigenvalues[span] = piece
        for part, value in self.others.items():
            span = self.space.slice_of(part)
            unit = None if base is None else base[span].to(device=eigenvalues.device, dtype=torch.float64)
            if value.dim() == 1:
                eigenvalues[span] = value.detach() if unit is None else value.detach().double() / unit
                continue
            if not groups.share_one(span):
                return None
            if unit is None:
                eigenvalues[span] = self.eigenvalues[part]
            else:
                eigenvalues[span] = torch.linalg.eigvalsh(value.detach().double() / (unit[:, None] * unit).sqrt())
        return eigenvalues

    def peaks(self) -> list[Peak]:
        """Largest eigenvalue of every block that is not diagonal, and the dtype of its sums."""
        peaks = [peak for key, spectrum in self.blocks.items() for peak in spectrum.peaks(key)]
        dense = [(part, value) for part, value in self.others.items() if value.dim() == 2]
        return peaks + [Peak((part,), self.eigenvalues[part].amax(), value.dtype) for part, value in dense]

    @property
    def _some(self) -> Tensor:
        """Any tensor of the curvature: its dtype and device are those of all."""
        return next(iter([*(each.values for each in self.blocks.values()), *self.others.values()]))

    def _gaps(self) -> list[tuple[slice, WeightRange]]:
        """Ranges of used weights that no data touched (rows of a packed weight): the prior's alone."""
        seen = sorted([*(part for key in self.blocks for part in key), *self.others])
        gaps = []
        for whole in self.space.parts():
            start = 0
            for part in [
                *(part for part in seen if part.name == whole.name),
                WeightRange(whole.name, whole.stop, whole.stop),
            ]:
                if part.start > start:
                    gap = WeightRange(whole.name, start, part.start)
                    gaps.append((self.space.slice_of(gap), gap))
                start = max(start, part.stop)
        return gaps

    def approximation(self, name: str) -> str:
        """For the coverage table."""
        for key, spectrum in self.blocks.items():
            if any(part.name == name for part in key):
                long = [
                    side
                    for side, basis, size in (
                        ("rows", spectrum.left, spectrum.layout.matrix[1]),
                        ("columns", spectrum.right, spectrum.layout.matrix[2]),
                    )
                    if basis is None and too_long(size)
                ]
                return self.words + (f", {' and '.join(long)} diagonal" if long else "")
        dense = any(part.name == name and value.dim() == 2 for part, value in self.others.items())
        return "dense block" if dense else "diagonal"
