"""Stiff directions of single blocks, with their products with J: what blocks side by side cannot know of each other.

Where layers explain the same outputs, the loss hardly changes as one of them takes over what another gives up, and
the preconditioner, which knows each layer on its own, holds both moves to be steep. There are as many such moves as the
layers have directions in which the data outweigh the prior. Those are eigenvectors of the fitted blocks, the same ones
under every prior that has one precision per block. Once their products with J are known, a minimum over all of them
takes no pass through the network.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..curvature.blocks import OperatorBlock
from ..curvature.operators import DenseOperator, RotatedOperator
from ..runtime.arithmetic import use_rounding
from .block_directions import BlockDirections, DenseDirections, OuterDirections, basis_columns
from .objective import Target

STIFF = 2.0  # curvature over the prior's precision from which a direction is worth knowing
HELD = 1.2  # and below which it is forgotten: its layer is on its way to being switched off
LARGEST = 2048  # weights of a dense block whose eigenvectors are made
MOST = 128  # directions in all


@dataclass(frozen=True)
class Candidate:
    """A direction that is not known yet."""

    ratio: float  # of curvature and prior to the prior alone
    block: int
    index: int  # in the block's basis


@dataclass(eq=False)
class KnownDirections:
    """The known directions of one block."""

    columns: BlockDirections
    places: list[int]  # in the block's basis
    outputs: list[Tensor]  # (R, N, T, C) for each part of the data: J u


@dataclass(eq=False)
class Directions:
    """All that are known, block after block."""

    known: dict[int, KnownDirections] = field(default_factory=dict)  # by the number of the block
    eigen: dict[int, Tensor] = field(default_factory=dict)  # (P, MOST) at most: of a dense block, in columns

    def __len__(self) -> int:
        """R."""
        return sum(len(directions.places) for directions in self.known.values())

    def ratios(self, target: Target) -> dict[int, Tensor]:
        """By block (P,): curvature and prior over the prior alone, along the block's own basis."""
        if len(target.blocks.blocks) < 2:  # the preconditioner knows all there is to know
            return {}
        ratios = {number: self._ratios(number, block, target) for number, block in enumerate(target.blocks.blocks)}
        return {number: block_ratios for number, block_ratios in ratios.items() if block_ratios is not None}

    def candidates(self, ratios: dict[int, Tensor], number: int) -> list[Candidate]:
        """The stiffest that are not known."""
        candidates: list[Candidate] = []
        for block, of_block in ratios.items():
            places = set(self.known[block].places) if block in self.known else set()
            values, indices = of_block.topk(min(number + len(places), len(of_block)))
            pairs = zip(values.tolist(), indices.tolist(), strict=True)
            candidates += [
                Candidate(value, block, index) for value, index in pairs if value > STIFF and index not in places
            ]
        return sorted(candidates, key=lambda candidate: -candidate.ratio)[:number]

    def find_outweighed(self, ratios: dict[int, Tensor]) -> Tensor:
        """(R,) booleans on the CPU: those that the prior has come to hold."""
        return torch.cat(
            [(ratios[number][directions.places] < HELD).cpu() for number, directions in self.known.items()]
        )

    def _ratios(self, number: int, block: OperatorBlock, target: Target) -> Tensor | None:
        operator = block.operator
        if isinstance(operator, RotatedOperator):
            values = operator.values.detach()
            if operator.dual is None:
                start = block.slices[0].start
                return (values / target.delta(slice(start, start + 1))).flatten()
            prior = operator.layout.to_matrix(elements_of(block, target.delta))
            prior = prior if operator.left is None else operator.left.square().mT @ prior
            prior = prior if operator.right is None else prior @ operator.right.square()
            return (values / prior).flatten()
        if isinstance(operator, DenseOperator) and len(operator.matrix) <= LARGEST:
            matrix, delta = operator.matrix.detach(), elements_of(block, target.delta)
            if number not in self.eigen:
                _, vectors = torch.linalg.eigh(matrix.double() - delta.double().diag())
                self.eigen[number] = vectors[:, -MOST:].to(delta)
            vectors, matrix = self.eigen[number], matrix.to(delta)  # sums are in float64 where rounding would show
            return (vectors * (matrix @ vectors)).sum(0) / (vectors.square() * delta[:, None]).sum(0)
        return None  # a diagonal has no directions but the weights themselves

    def columns(self, number: int, block: OperatorBlock, places: Sequence[int]) -> BlockDirections:
        """Directions of a block's basis."""
        operator = block.operator
        if not isinstance(operator, RotatedOperator):
            return DenseDirections(self.eigen[number][:, list(places)].T.contiguous())
        values = operator.values.detach()
        _, rows, columns = values.shape
        chosen = torch.tensor(places, device=values.device)
        group, row, column = chosen // (rows * columns), chosen // columns % rows, chosen % columns
        return OuterDirections(
            operator.layout,
            group,
            basis_columns(operator.left, group, row, rows, values),
            basis_columns(operator.right, group, column, columns, values),
        )

    def add(self, number: int, columns: BlockDirections, places: list[int], outputs: list[Tensor]) -> None:
        """More directions of a block, with their products with J."""
        known = self.known.get(number)
        if known is None:
            self.known[number] = KnownDirections(columns, places, outputs)
            return
        known.columns = known.columns.with_more(columns)
        known.places += places
        known.outputs = [torch.cat(pair) for pair in zip(known.outputs, outputs, strict=True)]

    def outputs(self, part: int) -> list[Tensor]:
        """Of (R, N, T, C) in all: J u of one part of the data."""
        return [directions.outputs[part] for directions in self.known.values()]

    def coordinates(self, target: Target, v: Callable[[slice], Tensor]) -> Tensor:
        """(R,) in float64: `u^T v` for a vector (D,)."""
        products = []
        with use_rounding("ieee"):
            for number, known in self.known.items():
                products.append(known.columns.coordinates(elements_of(target.blocks.blocks[number], v)).double())
        return torch.cat(products).cpu() if products else torch.zeros(0, dtype=torch.float64, device="cpu")

    def gram(self, target: Target) -> Tensor:
        """(R, R) in float64: `u^T Lambda u`."""
        grams = []
        with use_rounding("ieee"):
            for number, known in self.known.items():
                delta = elements_of(target.blocks.blocks[number], target.delta)
                if bool((delta == delta[0]).all()):
                    grams.append(known.columns.gram().double() * delta[0])
                    continue
                units = torch.eye(len(known.places), dtype=delta.dtype, device=delta.device)
                rows = [known.columns.coordinates(known.columns.combine(unit) * delta) for unit in units]
                grams.append(torch.stack(rows).double())
        return torch.block_diag(*grams).cpu() if grams else torch.zeros(0, 0, dtype=torch.float64, device="cpu")

    def add_to(self, v: Tensor, c: Tensor, target: Target) -> None:
        """`v += sum_r c_r u_r`, for v (D,) and c (R,)."""
        numbers = c.to(v).split([len(known.places) for known in self.known.values()])
        with use_rounding("ieee"):
            for (number, known), weights in zip(self.known.items(), numbers, strict=True):
                for chosen, value in target.blocks.blocks[number].split(known.columns.combine(weights)):
                    v[chosen] += value

    def forget(self, lost: Tensor) -> None:
        """Forget some directions, by (R,) booleans on the CPU."""
        start = 0
        for number, known in list(self.known.items()):
            chosen = (~lost[start : start + len(known.places)]).nonzero()[:, 0]
            start += len(known.places)
            if len(chosen) == 0:
                del self.known[number]
            elif len(chosen) < len(known.places):
                known.places = [known.places[each] for each in chosen.tolist()]
                index = chosen.to(known.outputs[0].device)
                known.columns = known.columns.select(index)
                known.outputs = [each[index] for each in known.outputs]


def elements_of(block: OperatorBlock, v: Callable[[slice], Tensor]) -> Tensor:
    """(P,): a block's own of a vector (D,) that is made as it is needed."""
    return block.join([v(chosen) for chosen in block.slices])
