"""The diagonal of the curvature."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...messages.errors import PeewitError
from ...messages.names import spelled_class
from ...network.finite import refuse_broken_curvature
from ...weights.groups import Groups
from ...weights.ranges import WeightRange
from ...weights.space import Space
from ..blocks import Blocks, OperatorBlock
from ..contracts import Curvature, Structure
from ..operators import DiagonalOperator
from ..stream import Source
from .common import accumulate, apply_floor, assemble_vector, check_parts, check_shape, clear_rounding, fill_zeros


@spelled_class
@dataclass(frozen=True)
class Diag(Structure):
    """The diagonal of the curvature: independent weights, with the squares of Jacobian entries summed.

    `structure="diag"` means `Diag()`. It takes masks and a `Subnetwork`, and has no arguments.

    Example:
        >>> pw.fit(model, (x, y), "classification", structure=pw.Diag()).coverage()["0.weight"].approximation
        'diagonal'
    """

    masks = True
    enough = 10 << 30  # bytes; about half of it is taken

    def measure(self, source: Source) -> dict[WeightRange, Tensor]:
        # (P,) per range of each weight.
        sums: dict[WeightRange, Tensor] = {}
        for batch in source:
            for jacobians in batch.probes():
                for part, jacobian in jacobians.items():
                    accumulate(sums, part, jacobian.layout.to_flat(jacobian.square_sum()))
        return sums

    def more(self, source: Source, earlier: dict[WeightRange, Tensor]) -> dict[WeightRange, Tensor]:
        sums = dict(earlier)
        for part, value in self.measure(source).items():
            accumulate(sums, part, value)
        return sums

    def check(self, sums: dict[WeightRange, Tensor], space: Space) -> None:
        for part, value in sums.items():
            check_parts([part], space)
            check_shape(value, f"The diagonal of {part.name!r}", (part.stop - part.start,))
            if bool((value < 0).any()):
                raise PeewitError(f"The diagonal of {part.name!r} has negative numbers")

    def curvature(self, sums: dict[WeightRange, Tensor], space: Space) -> DiagCurvature:
        # One vector over all weights.
        refuse_broken_curvature((part.name, value) for part, value in sums.items())
        return DiagCurvature(assemble_vector(sums, space), space)


@dataclass(frozen=True)
class DiagCurvature(Curvature):
    """`diag(H)` over all elements of the named tensors."""

    diagonal: Tensor  # (total,)
    space: Space

    elementwise = True

    def precision(self, delta: Tensor, data_weight: Tensor, numbers: Tensor | None = None) -> Blocks:
        """One diagonal operator per weight tensor."""
        space, start, blocks = self.space, 0, []
        for part in space.parts():
            elements = space.slice_of(part)
            mask = None if space.mask is None else space.mask[elements].to(self.diagonal.device)
            diagonal = self.diagonal[elements] if mask is None else self.diagonal[elements][mask]
            selected = slice(start, start + diagonal.numel())
            start = selected.stop
            operator = DiagonalOperator((data_weight.to(diagonal) * diagonal + delta[selected]).to(delta.dtype), mask)
            blocks.append(OperatorBlock(parts=(part,), slices=(selected,), operator=operator))
        return Blocks(blocks, space.size)

    def diag(self, floor: float = 0.0) -> Tensor:
        """(D,)."""
        pieces = []
        for part in self.space.parts():
            elements = self.space.slice_of(part)
            values = self.diagonal[elements]
            values = values if self.space.mask is None else values[self.space.mask[elements].to(values.device)]
            pieces.append(apply_floor(values, floor))
        return fill_zeros(torch.cat(clear_rounding(pieces) if floor else pieces), floor)

    def spectrum(self, groups: Groups, base: Tensor | None = None) -> Tensor:
        """Independent weights have any prior."""
        values = self.diag()
        return values if base is None else values / base

    def approximation(self, name: str) -> str:
        """For the coverage table."""
        return "diagonal"
