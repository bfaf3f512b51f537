"""The posterior precision `P = data_weight H + diag(delta)` as an operator, in the few forms all structures need.

Every operator answers `mv`, `solve`, `root`, `logdet`, `variance` for vectors (..., P) and `quad` for Jacobians;
evidence, sampling and functional covariances are written once on top of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from ..jacobians.factored import Matrix
from ..jacobians.layout import Layout
from ..jacobians.output_layer import OutputLayerJacobian, outermost_pieces, rooted_variance, row_places, row_roots
from ..jacobians.stacked import Jacobian, Stacked
from ..messages.errors import NotFiniteError, PeewitError
from .contracts import Precision

WORTH_ROOTS = 0.125  # rows of a Jacobian, as a share of the weights, from which roots of a layer's rows pay


@dataclass(frozen=True)
class Dual:
    """The inverse transposes of bases that are not orthogonal, and the log-determinant that they bring."""

    left: Tensor | None
    right: Tensor | None
    logdet: Tensor


@dataclass(frozen=True, kw_only=True)
class RotatedOperator:
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
        if not isinstance(jacobian, Matrix | OutputLayerJacobian) or jacobian.layout != self.layout:
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
        if not isinstance(jacobian, Matrix | OutputLayerJacobian) or jacobian.layout != self.layout:
            return quad_by_rows(self, jacobian, variance_only)
        if variance_only:
            return jacobian.variance(self.inverse, self.left, self.right)
        return jacobian.quad(self.inverse, self.left, self.right)


def squares(basis: Tensor, dual: Tensor | None) -> Tensor:
    """(G, n, n): of a basis, whose rows have length one in exact arithmetic: effective dimensions rest on it."""
    return basis.square() / (basis * (basis if dual is None else dual)).sum(-1, keepdim=True)


@dataclass(frozen=True)
class DiagonalOperator:
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
class DenseOperator:
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
            raise NotFiniteError(
                "The posterior precision holds NaN or Inf: the prior's or the noise's is too large for "
                f"{self.matrix.dtype}. Use a smaller prior precision, a larger noise, or a network in float64."
            )
        values = torch.linalg.eigvalsh(wide)
        raise PeewitError(
            f"The posterior precision is not positive definite: its smallest eigenvalue is {float(values[0]):.3g}. "
            f"Its largest is {float(values[-1]):.3g}. Use a larger prior precision; where the curvature is a Hessian, "
            "`curvature='ggn'` or `Hessian(clip=True)`; where it was summed in float32, fit again with this prior and "
            "noise, or with arithmetic='float64'."
        )

    @cached_property
    def inverse_root(self) -> Tensor:
        """L^-T in float64: on a GPU many small solves take longer than products, also in that precision."""
        identity = torch.eye(len(self.matrix), dtype=torch.float64, device=self.matrix.device)
        root: Tensor = torch.linalg.solve_triangular(self.cholesky.double(), identity, upper=False)
        return root.mT

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
        pieces = outermost_pieces(jacobian) if variance_only and not self.matrix.requires_grad else None
        if pieces is None or jacobian.examples * jacobian.probes < len(self.matrix) * WORTH_ROOTS:
            return quad_by_rows(self, jacobian, variance_only)
        key = tuple((piece.layout, piece.flipped) for piece in pieces)
        if key not in self.roots:  # as expensive as the Cholesky factor, and kept like it
            self.roots[key] = row_roots(self.cholesky, row_places(pieces), jacobian.budget)
        return rooted_variance(pieces, self.roots[key])

    def half(self, jacobian: Jacobian, examples: slice) -> Tensor:
        """(b, K, P): `J R`."""
        rows = jacobian.rows(examples).transpose(0, 1)
        if self.matrix.is_cuda and len(self.matrix) <= SMALL:
            return (rows.double() @ self.inverse_root).to(rows.dtype)
        flat = rows.reshape(-1, rows.shape[-1]).to(self.matrix.dtype)
        solved: Tensor = torch.linalg.solve_triangular(self.cholesky, flat.T, upper=False)
        return solved.T.reshape(rows.shape).to(rows.dtype)


def quad_by_rows(precision: Precision, jacobian: Jacobian, variance_only: bool) -> Tensor:
    """`quad` by its definition, where no faster way fits the operator and the Jacobian."""
    covariances = []
    for examples in jacobian.budget.slices(jacobian.examples, 32 * jacobian.probes * jacobian.size):
        half = precision.half(jacobian, examples)
        covariances.append(half.square().sum(-1) if variance_only else half @ half.mT)
    return torch.cat(covariances)
