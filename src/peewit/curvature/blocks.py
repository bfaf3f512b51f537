"""Operators side by side on the vector of all weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..jacobians.explicit import Explicit
from ..jacobians.factored import Matrix, weighted_gram
from ..jacobians.layout import Layout, join, part_ways, rotate
from ..jacobians.output_layer import OutputLayerJacobian, OutputSpectrum, Piece
from ..jacobians.stacked import Jacobian, Stacked
from ..messages.errors import PeewitError
from ..messages.names import names_for_users
from ..network.isolation import unaffected
from ..weights.ranges import WeightRange
from .contracts import Precision
from .operators import DiagonalOperator, RotatedOperator

ENGINE = {"spectra", "quad", "cross"}  # what predictions ask: `dir` shows the rest


class DiagonalForm(NamedTuple):
    """An operator that is diagonal in bases of the rows and columns of an outermost layer's weight."""

    jacobian: OutputLayerJacobian
    weight: Tensor  # (G, O, I): the inverse of the operator in these bases
    left: Tensor | None  # (G, O, O); None: the identity
    right: Tensor | None  # (G, I, I)


def diagonal_form(operator: Precision, jacobian: Jacobian) -> DiagonalForm | None:
    """Of a layer without groups, and a diagonal operator or one of Kronecker factors in its layout; else None."""
    if isinstance(jacobian, OutputLayerJacobian) and jacobian.groups == 1:
        if isinstance(operator, RotatedOperator) and operator.layout == jacobian.layout:
            return DiagonalForm(jacobian, operator.inverse, operator.left, operator.right)
        if isinstance(operator, DiagonalOperator):
            return DiagonalForm(jacobian, operator.weight(jacobian.layout), None, None)
    return None


@dataclass(frozen=True, kw_only=True)
class OperatorBlock:
    """One operator and the ranges of the flat weight vector that it acts on."""

    parts: tuple[WeightRange, ...]
    slices: tuple[slice, ...]
    operator: Precision
    joint: Layout | None = None  # the weight's, where weight (O, I) and bias (O,) are one matrix (O, I + 1)
    mask: Tensor | None = None  # over the parts' elements: which of them the operator holds

    def take(self, v: Tensor) -> Tensor:
        """(..., D) -> (..., P)."""
        return self.join([v[..., piece] for piece in self.slices])

    def join(self, pieces: Sequence[Tensor]) -> Tensor:
        """Pieces of a vector (..., D) in the places of the slices -> (..., P)."""
        if self.joint is not None:
            return join(pieces[0], pieces[1], self.joint)
        return pieces[0] if len(pieces) == 1 else torch.cat([*pieces], -1)

    def split(self, v: Tensor) -> list[tuple[slice, Tensor]]:
        """(..., P) -> pieces with their places."""
        if self.joint is not None:
            weight, bias = part_ways(v, self.joint)
            return list(zip(self.slices, (weight, bias), strict=True))
        sizes = [piece.stop - piece.start for piece in self.slices]
        return list(zip(self.slices, v.split(sizes, -1), strict=True))

    def jacobian(self, jacobians: Mapping[WeightRange, Piece]) -> Jacobian | None:
        """The Jacobian of this block's weights, in its order; None where none of them was used."""
        if self.joint is not None:
            weight = jacobians.get(self.parts[0])
            if isinstance(weight, Matrix | OutputLayerJacobian) and self.parts[1] in jacobians:
                return weight.with_bias()
        elif len(self.parts) == 1 and self.mask is None and self.parts[0] in jacobians:
            return jacobians[self.parts[0]]
        pieces = tuple(jacobians[part] if part in jacobians else rows_of(jacobians, part) for part in self.parts)
        if all(piece is None for piece in pieces):
            return None
        sizes = tuple(part.stop - part.start for part in self.parts)
        return Stacked(pieces, sizes, self.mask, self.joint)


def rows_of(jacobians: Mapping[WeightRange, Piece], part: WeightRange) -> Explicit | None:
    """Explicit rows for a range of a weight, from whichever Jacobians of that weight overlap it."""
    total: Explicit | None = None
    for other, jacobian in jacobians.items():
        start, stop = max(other.start, part.start), min(other.stop, part.stop)
        if other.name != part.name or start >= stop:
            continue
        rows = jacobian.rows(slice(0, jacobian.examples))[..., start - other.start : stop - other.start]
        rows = torch.nn.functional.pad(rows, (start - part.start, part.stop - stop))
        total = Explicit(rows if total is None else total.value + rows, jacobian.budget)
    return total


def share(
    operator: Precision, jacobian: Jacobian, shared: dict[tuple[int, int], tuple[Tensor, RotatedOperator, Tensor]]
) -> bool:
    """Collect blocks with the same gradients and row basis, such as a weight and its bias: one product serves both."""
    if not isinstance(operator, RotatedOperator) or not isinstance(jacobian, Matrix) or jacobian.layout.matrix[0] != 1:
        return False
    if jacobian.layout != operator.layout:
        return False
    pair = jacobian.inner(operator.inverse, operator.right)
    if pair is None:
        return False
    grad, inner = pair
    key = id(grad), id(operator.left)
    earlier = shared.get(key)
    shared[key] = (grad, operator, inner if earlier is None else earlier[2] + inner)
    return True


@dataclass(frozen=True)
class Blocks:
    """A symmetric positive matrix P over D weights, as operators on vectors; it is never built.

    `la.precision` is one: the precision of the posterior, whose inverse is the covariance of the weights. Vectors have
    the order of `la.space`, and any leading axes.

    Attributes:
        size: Number D of weights.
        blocks: The operators, and the weights that each acts on.

    Example:
        >>> v = torch.ones(la.D)
        >>> torch.allclose(la.precision.solve(la.precision.mv(v)), v, atol=1e-4)
        True
    """

    blocks: Sequence[OperatorBlock]
    size: int

    def __dir__(self) -> list[str]:
        """What is for users."""
        return names_for_users(self, ENGINE)

    def _map(self, method: str, v: Tensor) -> Tensor:
        if v.shape[-1] != self.size:
            raise PeewitError(f"A vector of shape {tuple(v.shape)} was given; expected (..., {self.size}) weights.")
        pieces: list[tuple[slice, Tensor]] = []
        for block in self.blocks:
            pieces += block.split(getattr(block.operator, method)(block.take(v)))
        pieces.sort(key=lambda piece: piece[0].start)
        return torch.cat([value for _, value in pieces], -1)

    @unaffected
    def mv(self, v: Tensor) -> Tensor:
        """Multiply vectors by the matrix: `P v`.

        Args:
            v: Vectors (..., D).

        Returns:
            Vectors (..., D).

        Raises:
            PeewitError: The last axis is not D long.

        Example:
            >>> la.precision.mv(torch.ones(4, la.D)).shape
            torch.Size([4, 51])
        """
        return self._map("mv", v)

    @unaffected
    def solve(self, v: Tensor) -> Tensor:
        """Multiply vectors by the inverse: `P^-1 v`, the covariance times v.

        Args:
            v: Vectors (..., D).

        Returns:
            Vectors (..., D).

        Raises:
            PeewitError: The last axis is not D long.

        Example:
            >>> first = torch.eye(la.D)[0]
            >>> torch.allclose(la.precision.solve(first)[0], la.precision.variance()[0])
            True
        """
        return self._map("solve", v)

    @unaffected
    def root(self, eps: Tensor) -> Tensor:
        """Turn standard normal numbers into draws with covariance `P^-1`: `R eps` with `R R^T = P^-1`.

        Args:
            eps: Standard normal vectors (..., D).

        Returns:
            Vectors (..., D): deviations of the weights from their mean.

        Raises:
            PeewitError: The last axis is not D long.

        Example:
            >>> weights = la.weights + la.precision.root(torch.randn(10, la.D))
            >>> weights.shape
            torch.Size([10, 51])
        """
        return self._map("root", eps)

    @unaffected
    def logdet(self) -> Tensor:
        """Compute the logarithm of the determinant of the matrix.

        Returns:
            A number ().

        Example:
            >>> la.precision.logdet().shape
            torch.Size([])
        """
        return torch.stack([block.operator.logdet() for block in self.blocks]).sum()

    @unaffected
    def variance(self) -> Tensor:
        """Compute the diagonal of the inverse: the variance of each weight.

        Returns:
            Variances (D,).

        Example:
            >>> la.precision.variance().shape
            torch.Size([51])
        """
        pieces = [piece for block in self.blocks for piece in block.split(block.operator.variance())]
        pieces.sort(key=lambda piece: piece[0].start)
        return torch.cat([value for _, value in pieces])

    def spectra(self, jacobians: Mapping[WeightRange, Piece]) -> list[OutputSpectrum] | None:
        """Bases (O, R) and weights (B, T, R) whose `basis diag(weights) basis^T` add up to the outputs' covariance.

        Of an outermost layer without groups under Kronecker or diagonal blocks; None where there is no such form.
        """
        spectra: dict[int, OutputSpectrum] = {}
        for block in self.blocks:
            jacobian = block.jacobian(jacobians)
            if jacobian is None:
                continue
            form = diagonal_form(block.operator, jacobian)
            if form is None:
                return None
            basis, inner = form.jacobian.inner(form.weight, form.left, form.right)
            earlier = spectra.get(id(basis))  # a weight and its bias have the row side in common
            weights = inner[:, 0] if earlier is None else earlier[1] + inner[:, 0]
            spectra[id(basis)] = (basis if basis is None else basis[0], weights)
        return list(spectra.values()) or None

    def quad(self, jacobians: Mapping[WeightRange, Piece], variance_only: bool = False) -> Tensor:
        """(B, K, K), or (B, K): the covariance of the outputs, summed over blocks."""
        total: Tensor | None = None
        shared: dict[tuple[int, int], tuple[Tensor, RotatedOperator, Tensor]] = {}
        for block in self.blocks:
            jacobian = block.jacobian(jacobians)
            if jacobian is None or (not variance_only and share(block.operator, jacobian, shared)):
                continue
            covariance = block.operator.quad(jacobian, variance_only)
            total = covariance if total is None else total + covariance
        for grad, operator, inner in shared.values():
            rotated = grad if operator.left is None else rotate(grad, operator.left)
            covariance = weighted_gram(rotated[:, :, :, 0], inner)
            total = covariance if total is None else total + covariance
        if total is None:
            raise PeewitError("None of the selected weights was used by these inputs.")
        return total

    def cross(self, first: Mapping[WeightRange, Piece], second: Mapping[WeightRange, Piece]) -> Tensor:
        """(B, K, b, k): the covariance between the outputs of two sets of examples."""
        total: Tensor | None = None
        for block in self.blocks:
            left, right = block.jacobian(first), block.jacobian(second)
            if left is None or right is None:
                continue
            covariance = torch.cat(
                [
                    torch.cat(
                        [
                            torch.einsum("akp,blp->akbl", half, block.operator.half(right, columns))
                            for columns in right.budget.slices(right.examples, 64 * right.probes * right.size)
                        ],
                        2,
                    )
                    for rows in left.budget.slices(left.examples, 64 * left.probes * left.size)
                    for half in [block.operator.half(left, rows)]
                ]
            )
            total = covariance if total is None else total + covariance
        if total is None:
            raise PeewitError("None of the selected weights was used by these inputs.")
        return total
