"""The posterior precision `P = scale^degree H + diag(delta)` as an operator, in the few forms all structures need.

Every operator answers `mv`, `solve`, `root`, `logdet`, `variance` for vectors (..., P) and `quad` for Jacobians;
evidence, sampling and functional covariances are written once on top of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from .core import Precision
from .jacobians import Explicit, Jacobian, Layout, Matrix, Stacked, join, part_ways, turned, weighted_gram
from .layers.base import Part
from .outermost import (
    Outermost,
    Piece,
    Spectrum,
    outermost_pieces,
    rooted_variance,
    row_places,
    row_roots,
)

WORTH_ROOTS = 0.125  # rows of a Jacobian, as a share of the weights, from which roots of a layer's rows pay


@dataclass(frozen=True)
class Dual:
    """The inverse transposes of bases that are not orthogonal, and the log-determinant that they bring."""

    left: Tensor | None
    right: Tensor | None
    logdet: Tensor


@dataclass(frozen=True)
class Rotated:
    """`P^-1 = U diag(1 / values) U^T` with `U = left (x) right`; an absent basis is the identity: KFAC and EKFAC.

    The bases are orthogonal, unless the prior differs between rows or columns: then they carry `D^-1/2`, and `dual`
    holds `U^-T` and `log |U^-T|`.
    """

    values: Tensor  # (G, O, I)
    layout: Layout
    left: Tensor | None = None  # (G, O, O)
    right: Tensor | None = None  # (G, I, I)
    dual: Dual | None = None

    @cached_property
    def inverse(self) -> Tensor:
        """(G, O, I): the eigenvalues of P^-1."""
        return 1 / self.values

    def _spectral(self, v: Tensor, weight: Tensor, forth: bool = True, back: bool = True, dual: bool = False) -> Tensor:
        """Rotate into the basis, weigh, rotate out."""
        left, right = (self.dual.left, self.dual.right) if dual and self.dual is not None else (self.left, self.right)
        matrix = self.layout.to_matrix(v)
        if forth:
            matrix = matrix if left is None else left.mT @ matrix
            matrix = matrix if right is None else matrix @ right
        matrix = matrix * weight
        if back:
            matrix = matrix if left is None else left @ matrix
            matrix = matrix if right is None else matrix @ right.mT
        return self.layout.to_flat(matrix)

    def mv(self, v: Tensor) -> Tensor:
        """P v."""
        return self._spectral(v, self.values, dual=True)

    def solve(self, v: Tensor) -> Tensor:
        """P^-1 v."""
        return self._spectral(v, self.inverse)

    def root(self, eps: Tensor) -> Tensor:
        """R eps with R R^T = P^-1."""
        return self._spectral(eps, self.values.rsqrt(), forth=False)

    def logdet(self) -> Tensor:
        """Log |P|."""
        total = self.values.double().log().sum()
        return total if self.dual is None else total + self.dual.logdet

    def whiten(self, v: Tensor) -> Tensor:
        """R^T v, in some order of its own."""
        return self._spectral(v, self.values.rsqrt(), back=False)

    def half(self, jacobian: Jacobian, examples: slice) -> Tensor:
        """(b, K, P): `J R`, so that `half half^T` is the covariance."""
        if not isinstance(jacobian, Matrix | Outermost) or jacobian.layout != self.layout:
            return self.whiten(jacobian.rows(examples).transpose(0, 1))
        product = jacobian.product(examples, self.left, self.right)
        return (product * self.values.rsqrt()[:, None]).transpose(1, 2).flatten(2)

    def variance(self) -> Tensor:
        """(P,): the diagonal of P^-1."""
        left, right = (None, None) if self.dual is None else (self.dual.left, self.dual.right)
        inverse = self.inverse if self.left is None else squares(self.left, left) @ self.inverse
        inverse = inverse if self.right is None else inverse @ squares(self.right, right).mT
        return self.layout.to_flat(inverse)

    def quad(self, jacobian: Jacobian, variance_only: bool = False) -> Tensor:
        """(B, K, K), or (B, K) with `variance_only`: `J P^-1 J^T` per example."""
        if not isinstance(jacobian, Matrix | Outermost) or jacobian.layout != self.layout:
            return quad_by_rows(self, jacobian, variance_only)
        if variance_only:
            return jacobian.variance(self.inverse, self.left, self.right)
        return jacobian.quad(self.inverse, self.left, self.right)


def squares(basis: Tensor, dual: Tensor | None) -> Tensor:
    """(G, n, n): of a basis, whose rows have length one in exact arithmetic: effective dimensions rest on it."""
    return basis.square() / (basis * (basis if dual is None else dual)).sum(-1, keepdim=True)


@dataclass(frozen=True)
class Diagonal:
    """Independent weights; it meets a factored Jacobian in the Jacobian's own layout."""

    values: Tensor  # (P,), or as many as the mask selects
    mask: Tensor | None = None  # (P,) booleans: which elements of the tensor are selected

    def mv(self, v: Tensor) -> Tensor:
        """P v."""
        return v * self.values

    def solve(self, v: Tensor) -> Tensor:
        """P^-1 v."""
        return v / self.values

    def root(self, eps: Tensor) -> Tensor:
        """R eps with R R^T = P^-1."""
        return eps * self.values.rsqrt()

    def logdet(self) -> Tensor:
        """Log |P|."""
        return self.values.double().log().sum()

    def half(self, jacobian: Jacobian, examples: slice) -> Tensor:
        """(b, K, P): `J R`."""
        rows = jacobian.rows(examples).transpose(0, 1)
        return (rows if self.mask is None else rows[..., self.mask]) * self.values.rsqrt()

    def variance(self) -> Tensor:
        """(P,): the diagonal of P^-1."""
        return 1 / self.values

    def quad(self, jacobian: Jacobian, variance_only: bool = False) -> Tensor:
        """(B, K, K), or (B, K)."""
        if isinstance(jacobian, Stacked):
            return quad_by_rows(self, jacobian, variance_only)
        weight = self.weight(jacobian.layout)
        return jacobian.variance(weight) if variance_only else jacobian.quad(weight)

    def weight(self, layout: Layout) -> Tensor:
        """(G, O, I): the variances in a layout; elements that are not selected are certain."""
        flat = 1 / self.values
        if self.mask is not None:
            flat = flat.new_zeros(self.mask.shape).masked_scatter(self.mask, flat)
        return layout.to_matrix(flat)


SMALL = 2048  # weights of a dense block whose inverse root is kept


@dataclass(frozen=True)
class Dense:
    """A matrix (P, P): full curvature, blocks, norm layers; in float64 where vectors in float32 are asked about."""

    matrix: Tensor
    roots: dict[tuple[tuple[Layout, bool], ...], Tensor] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def cholesky(self) -> Tensor:
        """Lower factor; retried in float64, since a sum in float32 can lose definiteness to rounding."""
        factor: Tensor
        for dtype in (self.matrix.dtype, torch.float64):
            factor, failed = torch.linalg.cholesky_ex(self.matrix.to(dtype))
            if not bool(failed):
                return factor.to(self.matrix.dtype)
        wide = self.matrix.detach().double()
        if not bool(torch.isfinite(wide).all()):
            raise ValueError(
                "The posterior precision holds NaN or Inf: the prior's or the noise's is too large for "
                f"{self.matrix.dtype}. Use a smaller prior precision, a larger noise, or a network in float64."
            )
        values = torch.linalg.eigvalsh(wide)
        raise ValueError(
            f"The posterior precision is not positive definite: its smallest eigenvalue is {float(values[0]):.3g}. "
            f"Its largest is {float(values[-1]):.3g}. Use a larger prior precision; where the curvature is a Hessian, "
            "`curvature='ggn'` or `Hessian(clip=True)`; where it was summed in float32, fit again with this prior and "
            "noise, or with arithmetic='float64'."
        )

    @cached_property
    def inverse_root(self) -> Tensor:
        """L^-T in float64: on a GPU many small solves take longer than products, also in that precision."""
        identity = torch.eye(len(self.matrix), dtype=torch.float64, device=self.matrix.device)
        made: Tensor = torch.linalg.solve_triangular(self.cholesky.double(), identity, upper=False)
        return made.mT

    def mv(self, v: Tensor) -> Tensor:
        """P v."""
        return (v.to(self.matrix.dtype) @ self.matrix).to(v.dtype)

    def solve(self, v: Tensor) -> Tensor:
        """P^-1 v."""
        flat = v.reshape(-1, v.shape[-1]).to(self.matrix.dtype)
        return torch.cholesky_solve(flat.T, self.cholesky).T.reshape(v.shape).to(v.dtype)

    def root(self, eps: Tensor) -> Tensor:
        """R eps with R = L^-T."""
        flat = eps.reshape(-1, eps.shape[-1]).to(self.matrix.dtype)
        solved: Tensor = torch.linalg.solve_triangular(self.cholesky.mT, flat.T, upper=True)
        return solved.T.reshape(eps.shape).to(eps.dtype)

    def logdet(self) -> Tensor:
        """Log |P|."""
        return 2 * self.cholesky.diagonal().double().log().sum()

    def variance(self) -> Tensor:
        """(P,): the diagonal of P^-1."""
        identity = torch.eye(len(self.matrix), dtype=self.matrix.dtype, device=self.matrix.device)
        inverse: Tensor = torch.linalg.solve_triangular(self.cholesky, identity, upper=False)
        return inverse.square().sum(0)

    def quad(self, jacobian: Jacobian, variance_only: bool = False) -> Tensor:
        """(B, K, K), or (B, K)."""
        found = outermost_pieces(jacobian) if variance_only and not self.matrix.requires_grad else None
        if found is None or jacobian.examples * jacobian.columns < len(self.matrix) * WORTH_ROOTS:
            return quad_by_rows(self, jacobian, variance_only)
        key = tuple((piece.layout, piece.flipped) for piece in found)
        if key not in self.roots:  # as dear as the Cholesky factor, and kept like it
            self.roots[key] = row_roots(self.cholesky, row_places(found), jacobian.budget)
        return rooted_variance(found, self.roots[key])

    def half(self, jacobian: Jacobian, examples: slice) -> Tensor:
        """(b, K, P): `J R`."""
        rows = jacobian.rows(examples).transpose(0, 1)
        if self.matrix.is_cuda and len(self.matrix) <= SMALL:
            return (rows.double() @ self.inverse_root).to(rows.dtype)
        flat = rows.reshape(-1, rows.shape[-1]).to(self.matrix.dtype)
        solved: Tensor = torch.linalg.solve_triangular(self.cholesky, flat.T, upper=False)
        return solved.T.reshape(rows.shape).to(rows.dtype)


def quad_by_rows(precision: Precision, jacobian: Jacobian, variance_only: bool) -> Tensor:
    """The definition of `quad`, for pairs that have no faster way."""
    made = []
    for examples in jacobian.budget.slices(jacobian.examples, 32 * jacobian.columns * jacobian.size):
        half = precision.half(jacobian, examples)
        made.append(half.square().sum(-1) if variance_only else half @ half.mT)
    return torch.cat(made)


@dataclass(frozen=True)
class Block:
    """One operator and the ranges of the flat weight vector that it acts on."""

    parts: tuple[Part, ...]
    slices: tuple[slice, ...]
    operator: Precision
    joint: Layout | None = None  # the weight's, where weight (O, I) and bias (O,) are one matrix (O, I + 1)
    mask: Tensor | None = None  # over the parts' elements: which of them the operator holds

    def take(self, v: Tensor) -> Tensor:
        """(..., D) -> (..., P)."""
        return self.joined([v[..., piece] for piece in self.slices])

    def joined(self, pieces: Sequence[Tensor]) -> Tensor:
        """Pieces of a vector (..., D) in the places of the slices -> (..., P)."""
        if self.joint is not None:
            return join(pieces[0], pieces[1], self.joint)
        return pieces[0] if len(pieces) == 1 else torch.cat([*pieces], -1)

    def put(self, v: Tensor) -> list[tuple[slice, Tensor]]:
        """(..., P) -> pieces with their places."""
        if self.joint is not None:
            weight, bias = part_ways(v, self.joint)
            return list(zip(self.slices, (weight, bias), strict=True))
        sizes = [piece.stop - piece.start for piece in self.slices]
        return list(zip(self.slices, v.split(sizes, -1), strict=True))

    def jacobian(self, found: Mapping[Part, Piece]) -> Jacobian | None:
        """The Jacobian of this block's weights, in its order; None where none of them was used."""
        if self.joint is not None:
            weight = found.get(self.parts[0])
            if isinstance(weight, Matrix | Outermost) and self.parts[1] in found:
                return weight.with_bias()
        elif len(self.parts) == 1 and self.mask is None and self.parts[0] in found:
            return found[self.parts[0]]
        pieces = tuple(found[part] if part in found else rows_of(found, part) for part in self.parts)
        if all(piece is None for piece in pieces):
            return None
        sizes = tuple(part.stop - part.start for part in self.parts)
        return Stacked(pieces, sizes, self.mask, self.joint)


def rows_of(found: Mapping[Part, Piece], part: Part) -> Explicit | None:
    """Explicit rows for a range of a weight, from whichever Jacobians of that weight overlap it."""
    made: Explicit | None = None
    for own, jacobian in found.items():
        start, stop = max(own.start, part.start), min(own.stop, part.stop)
        if own.name != part.name or start >= stop:
            continue
        rows = jacobian.rows(slice(0, jacobian.examples))[..., start - own.start : stop - own.start]
        rows = torch.nn.functional.pad(rows, (start - part.start, part.stop - stop))
        made = Explicit(rows if made is None else made.value + rows, jacobian.budget)
    return made


def share(
    operator: Precision, jacobian: Jacobian, shared: dict[tuple[int, int], tuple[Tensor, Rotated, Tensor]]
) -> bool:
    """Put blocks with the same gradients and row basis together, a weight and its bias: one product serves both."""
    if not isinstance(operator, Rotated) or not isinstance(jacobian, Matrix) or jacobian.layout.matrix[0] != 1:
        return False
    if jacobian.layout != operator.layout:
        return False
    found = jacobian.inner(operator.inverse, operator.right)
    if found is None:
        return False
    grad, inner = found
    key = id(grad), id(operator.left)
    earlier = shared.get(key)
    shared[key] = (grad, operator, inner if earlier is None else earlier[2] + inner)
    return True


@dataclass(frozen=True)
class Blocks:
    """Operators side by side on a vector of D weights."""

    blocks: Sequence[Block]
    size: int

    def _map(self, method: str, v: Tensor) -> Tensor:
        if v.shape[-1] != self.size:
            raise ValueError(f"A vector of shape {tuple(v.shape)} was given; expected (..., {self.size}) weights.")
        pieces: list[tuple[slice, Tensor]] = []
        for block in self.blocks:
            pieces += block.put(getattr(block.operator, method)(block.take(v)))
        pieces.sort(key=lambda piece: piece[0].start)
        return torch.cat([value for _, value in pieces], -1)

    def mv(self, v: Tensor) -> Tensor:
        """P v."""
        return self._map("mv", v)

    def solve(self, v: Tensor) -> Tensor:
        """P^-1 v."""
        return self._map("solve", v)

    def root(self, eps: Tensor) -> Tensor:
        """R eps with R R^T = P^-1."""
        return self._map("root", eps)

    def logdet(self) -> Tensor:
        """Log |P|."""
        return torch.stack([block.operator.logdet() for block in self.blocks]).sum()

    def variance(self) -> Tensor:
        """(D,): the diagonal of P^-1."""
        pieces = [piece for block in self.blocks for piece in block.put(block.operator.variance())]
        pieces.sort(key=lambda piece: piece[0].start)
        return torch.cat([value for _, value in pieces])

    def spectra(self, found: Mapping[Part, Piece]) -> list[Spectrum] | None:
        """Bases (O, R) and weights (B, T, R) whose `basis diag(weights) basis^T` add up to the outputs' covariance.

        Of an outermost layer without groups under Kronecker or diagonal blocks; None where there is no such form.
        """
        made: dict[int, Spectrum] = {}
        for block in self.blocks:
            jacobian, operator = block.jacobian(found), block.operator
            if jacobian is None:
                continue
            if not isinstance(jacobian, Outermost) or jacobian.groups != 1:
                return None
            if isinstance(operator, Rotated) and operator.layout == jacobian.layout:
                basis, inner = jacobian.inner(operator.inverse, operator.left, operator.right)
            elif isinstance(operator, Diagonal):
                basis, inner = jacobian.inner(operator.weight(jacobian.layout), None, None)
            else:
                return None
            earlier = made.get(id(basis))  # a weight and its bias have the row side in common
            weights = inner[:, 0] if earlier is None else earlier[1] + inner[:, 0]
            made[id(basis)] = (basis if basis is None else basis[0], weights)
        return list(made.values()) or None

    def quad(self, found: Mapping[Part, Piece], variance_only: bool = False) -> Tensor:
        """(B, K, K), or (B, K): the covariance of the outputs, summed over blocks."""
        total: Tensor | None = None
        shared: dict[tuple[int, int], tuple[Tensor, Rotated, Tensor]] = {}
        for block in self.blocks:
            jacobian = block.jacobian(found)
            if jacobian is None or (not variance_only and share(block.operator, jacobian, shared)):
                continue
            made = block.operator.quad(jacobian, variance_only)
            total = made if total is None else total + made
        for grad, operator, inner in shared.values():
            rotated = grad if operator.left is None else turned(grad, operator.left)
            made = weighted_gram(rotated[:, :, :, 0], inner)
            total = made if total is None else total + made
        if total is None:
            raise ValueError("None of the selected weights was used by these inputs.")
        return total

    def cross(self, first: Mapping[Part, Piece], second: Mapping[Part, Piece]) -> Tensor:
        """(B, K, b, k): the covariance between the outputs of two sets of examples."""
        total: Tensor | None = None
        for block in self.blocks:
            left, right = block.jacobian(first), block.jacobian(second)
            if left is None or right is None:
                continue
            made = torch.cat(
                [
                    torch.cat(
                        [
                            torch.einsum("akp,blp->akbl", half, block.operator.half(right, columns))
                            for columns in right.budget.slices(right.examples, 64 * right.columns * right.size)
                        ],
                        2,
                    )
                    for rows in left.budget.slices(left.examples, 64 * left.columns * left.size)
                    for half in [block.operator.half(left, rows)]
                ]
            )
            total = made if total is None else total + made
        if total is None:
            raise ValueError("None of the selected weights was used by these inputs.")
        return total
