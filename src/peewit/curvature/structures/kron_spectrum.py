"""One Kronecker block in its eigenbases, under any prior that keeps it one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...jacobians.layout import Layout
from ...messages.errors import PeewitError
from ..contracts import Peak
from ..operators import Dual, RotatedOperator
from .common import apply_floor, narrow_basis
from .eigen import decompose_side
from .factors import Key, KronFactors
from .sides import sides


@dataclass(frozen=True, kw_only=True)
class KronSpectrum:
    """One weight's eigenbases (row side, column side) and eigenvalues (G, O, I)."""

    layout: Layout
    left: Tensor | None
    right: Tensor | None
    values: Tensor
    weight: Layout | None = None  # the weight's own layout, in a block that it shares with its bias
    factors: dict[bool, KronFactors] | None = None  # the sums themselves, where the product of factors is the block

    @property
    def sides(self) -> tuple[Tensor, Tensor] | None:
        """The factors, made when a prior needs them: the sums are held anyway."""
        return None if self.factors is None else sides(self.factors)

    def precision(self, delta: Tensor, data_weight: Tensor, key: Key, numbers: Tensor | None = None) -> RotatedOperator:
        """`data_weight H + diag(delta)` for delta (G, O, I); `numbers` alike: which of them are one number."""
        data_weight = data_weight.to(self.values)
        same = delta.detach() if numbers is None else numbers
        if not any(same.stride()) or bool((same == same[:1, :1, :1]).all()):
            return self._rotate(data_weight * self.values + delta[:1, :1, :1], self.left, self.right, delta.dtype)
        rows, columns = self._product(delta, key, numbers)
        return self._scale(rows, columns, data_weight, key)

    def _rotate(
        self, values: Tensor, left: Tensor | None, right: Tensor | None, dtype: torch.dtype, dual: Dual | None = None
    ) -> RotatedOperator:
        """The operator in the dtype of the weights: only finding eigenvectors needs float64."""
        return RotatedOperator(
            values=values.to(dtype),
            layout=self.layout,
            left=narrow_basis(left, dtype),
            right=narrow_basis(right, dtype),
            dual=dual,
        )

    def _product(self, delta: Tensor, key: Key, numbers: Tensor | None) -> tuple[Tensor, Tensor]:
        """Factor delta into (G, O, 1) and (G, 1, I); raises where it is not a product of two such tensors."""
        if numbers is not None:
            if bool((numbers == numbers[:, :, :1]).all()):
                return delta[:, :, :1], torch.ones_like(delta[:, :1, :])
            if bool((numbers == numbers[:, :1, :]).all()):
                return torch.ones_like(delta[:, :, :1]), delta[:, :1, :]
        rows, columns = delta[:, :, :1], delta[:, :1, :] / delta[:, :1, :1]
        rtol = 1e-6 if delta.dtype == torch.float64 else 1e-5  # a base may come of a fit in float32
        if numbers is not None or not torch.allclose(rows * columns, delta, rtol=rtol, atol=0):
            alternative = "" if len(key) == 1 else "Kron(bias='separate'), "
            raise PeewitError(
                f"The prior has different precisions inside {key[0].name!r} that are not the product of one per row "
                f"and one per column, which a Kronecker block cannot hold exactly; use {alternative}a scalar or "
                "layerwise prior, or structure='diag', 'block' or 'full'."
            )
        return rows, columns

    def eigenvalues(self, base: Tensor | None, key: Key) -> Tensor:
        """(P,): of the block, or of `B^-1/2 block B^-1/2` with base (G, O, I)."""
        if base is None:
            return self.values.flatten()
        if bool((base == base[:1, :1, :1]).all()):
            return (self.values / base[:1, :1, :1]).flatten()
        rows, columns = self._product(base, key, None)
        (_, _, left, above), (_, _, right, beside) = self._whiten(rows, columns, key)
        return ((left / above)[:, :, None] * (right / beside)[:, None, :]).flatten()

    def peaks(self, key: Key) -> list[Peak]:
        """Of this block; its eigenvectors are as exact as its sums."""
        sides = [basis for basis in (self.left, self.right) if basis is not None and basis.shape[-1] > 1]
        coarse = any(basis.dtype == torch.float32 for basis in sides)
        dtype = torch.float32 if coarse else torch.float64
        return [Peak(key, self.values.detach().amax(), dtype)] if sides else []

    def diagonal(self, floor: float) -> Tensor:
        """(G, O, I): with a floor on each side where the block is a product, so that it stays one."""
        pair = self.sides
        if pair is None:
            moments = self.values.double()  # bases may be in float64 where the moments are not
            moments = moments if self.left is None else self.left.double().square() @ moments
            moments = moments if self.right is None else moments @ self.right.double().square().mT
            return apply_floor(moments.to(self.values.dtype), floor)
        rows, columns = (
            apply_floor(side if side.dim() == 2 else side.diagonal(dim1=-2, dim2=-1), floor) for side in pair
        )
        return rows[:, :, None] * columns[:, None, :]

    def _whiten(self, rows: Tensor, columns: Tensor, key: Key) -> tuple[Whitened, Whitened]:
        """Both sides under their share of the prior."""
        pair = self.sides
        if pair is None:
            alternative = "structure='kron', or a scalar or layerwise prior"
            if len(key) > 1:
                alternative = "EKFAC(bias='separate') with a layerwise prior, structure='kron', or a scalar prior"
            raise PeewitError(
                f"The prior has different precisions inside {key[0].name!r}, which an eigenvalue-corrected block "
                f"cannot hold exactly; use {alternative}."
            )
        return (
            whiten(pair[0], self.left, rows[:, :, 0], key[0].name),
            whiten(pair[1], self.right, columns[:, 0, :], key[0].name),
        )

    def _scale(self, rows: Tensor, columns: Tensor, data_weight: Tensor, key: Key) -> RotatedOperator:
        """`D^1/2 (data_weight D^-1/2 H D^-1/2 + I) D^1/2` with `D = rows (x) columns`: exact, and Kronecker again."""
        sides = self._whiten(rows, columns, key)
        (left, dual_left, left_values, above), (right, dual_right, right_values, beside) = sides
        values = (
            data_weight * left_values[:, :, None] * right_values[:, None, :] + above[:, :, None] * beside[:, None, :]
        )
        _, height, width = self.layout.matrix
        volume = values.new_zeros((), dtype=torch.float64)
        for side, held, times in ((rows[:, :, 0], above, width), (columns[:, 0, :], beside, height)):
            change = side.double().log() - held.double().expand(side.shape).log()
            volume = volume + times * change.sum()
        dtype = rows.dtype
        dual = Dual(narrow_basis(dual_left, dtype), narrow_basis(dual_right, dtype), volume)
        return self._rotate(values, left, right, dtype, dual)


Whitened = tuple[Tensor | None, Tensor | None, Tensor, Tensor]


def whiten(side: Tensor, basis: Tensor | None, precision: Tensor, name: str) -> Whitened:
    """Basis, its inverse transpose, eigenvalues and remaining precision of a factor under its side of the prior.

    A diagonal side keeps its precisions beside the eigenvalues; another takes them into its basis as `D^-1/2`.
    """
    precision = precision.expand(side.shape[:2]).to(side.dtype)  # roots that are rounded otherwise spoil the side
    if basis is None:
        return None, None, side.clamp(min=0), precision
    root = precision.sqrt()
    vectors, values = decompose_side(side / (root[:, :, None] * root[:, None, :]), name)
    assert vectors is not None
    vectors = vectors.detach()
    return vectors / root[:, :, None], vectors * root[:, :, None], values, torch.ones_like(precision)
