"""Variances of a linear last layer from its inputs alone: all that does not depend on them is worked out once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear

from ..curvature.blocks import Blocks, OperatorBlock, diagonal_form
from ..curvature.operators import DenseOperator
from ..jacobians.output_layer import Piece, outermost_pieces, row_places, row_roots
from ..likelihoods import Form
from ..predictions.outputs import GaussianOutputs
from ..runtime.memory import Budget
from ..weights.ranges import WeightRange

ROOTS = 1 << 27  # numbers of roots of rows that are kept


@dataclass(frozen=True, kw_only=True)
class BeliefOptions:
    """What all Gaussians over the outputs of one predictor have in common."""

    form: Form
    budget: Budget
    points: int
    seed: int

    def gaussian(self, mean: Tensor, kind: type[GaussianOutputs] = GaussianOutputs, **more: Any) -> GaussianOutputs:
        """A Gaussian of a kind with this mean (N, T, C)."""
        return kind(form=self.form, budget=self.budget, centre=mean, points=self.points, seed=self.seed, **more)


@dataclass(frozen=True, eq=False, kw_only=True)
class DeferredOutputs(GaussianOutputs):
    """A Gaussian of which the variances are known: the rest is made when something asks for it."""

    now: Tensor  # (N, T, C): variances
    later: Callable[[], GaussianOutputs]

    @cached_property
    def whole(self) -> GaussianOutputs:
        """The same Gaussian with its covariances."""
        return self.later()

    @cached_property
    def variance(self) -> Tensor:
        """(N, T, C)."""
        return self.now

    @property
    def covariance(self) -> Tensor:
        """(N, T, C, C)."""
        return self.whole.covariance

    @property
    def row_sums(self) -> Tensor:
        """(N, T, C): of the covariance."""
        return self.whole.row_sums

    @cached_property
    def root(self) -> Tensor:
        """(N, T, C, R): `root root^T` is the covariance."""
        return self.whole.root

    @property
    def rank(self) -> int:
        """R."""
        return self.whole.rank

    def some(self, chosen: slice) -> GaussianOutputs:
        """The belief about some of the inputs, each on its own."""
        return self.whole.some(chosen)

    def _spread(self, eps: Tensor, chosen: slice) -> Tensor:
        return self.whole._spread(eps, chosen)


@dataclass(frozen=True, kw_only=True)
class Turned:
    """What one block adds to the weights of a basis: `(a turn + shift)^2 table`."""

    turn: Tensor | None  # (R', I)
    shift: Tensor | None  # (R',): of a one that is appended to the inputs
    table: Tensor  # (R, R')

    def __call__(self, inputs: Tensor, constant: Tensor | None = None) -> Tensor:
        """(B, T, R), added to a constant (R,)."""
        turned = inputs if self.turn is None else linear(inputs, self.turn, self.shift)
        return linear(turned.square(), self.table, constant)


@dataclass(frozen=True, kw_only=True)
class BasisWeights:
    """Variances along one basis, as a function of the inputs."""

    parts: list[Turned]
    constant: Tensor | None  # (R,): of the bias

    def __call__(self, inputs: Tensor) -> Tensor:
        """(B, T, R)."""
        if not self.parts:
            assert self.constant is not None
            return self.constant.expand(*inputs.shape[:-1], -1)
        total = self.parts[0](inputs, self.constant)
        for part in self.parts[1:]:
            total = total + part(inputs)
        return total

    def plus(self, others: BasisWeights) -> BasisWeights:
        """The sum of both."""
        constants = [each.constant for each in (self, others) if each.constant is not None]
        constant = torch.stack(constants).sum(0) if constants else None
        return BasisWeights(parts=[*self.parts, *others.parts], constant=constant)

    def project(self, basis: Tensor | None) -> BasisWeights:
        """The variances of the outputs that they make: of `basis diag(weights) basis^T`, with (C, R)."""
        if basis is None:
            return self
        squares = basis.square()
        parts = [replace(part, table=squares.to(part.table.dtype) @ part.table) for part in self.parts]
        constant = None if self.constant is None else squares.to(self.constant.dtype) @ self.constant
        return BasisWeights(parts=parts, constant=constant)


@dataclass(frozen=True, kw_only=True)
class Basis:
    """Blocks whose outputs have one basis in common, such as a weight and its bias."""

    basis: Tensor | None  # (C, R); None: the identity
    weights: BasisWeights


@dataclass(frozen=True, kw_only=True)
class SpectralForm:
    """Under Kronecker and diagonal blocks: `basis diag(deviation^2) basis^T`."""

    bases: list[Basis]
    basis: Tensor | None  # (C, R): of all of them; None: the identity
    variances: BasisWeights  # of the outputs themselves
    dtype: torch.dtype  # of the inputs

    def variance(self, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        """(B, T, C), from the inputs (B, T, I) of the last layer."""
        return self.variances(inputs.to(self.dtype)).to(dtype)

    def gaussian(self, common: BeliefOptions, inputs: Tensor, mean: Tensor) -> GaussianOutputs:
        """The Gaussian with this mean (B, T, C), from the inputs (B, T, I) of the last layer."""
        weights = [basis.weights(inputs.to(self.dtype)) for basis in self.bases]
        if self.basis is None:
            weight = weights[0] if len(weights) == 1 else torch.stack(weights).sum(0)
        else:
            weight = torch.cat(weights, -1) if len(weights) > 1 else weights[0]
        deviation = weight.clamp(min=0).sqrt().to(mean.dtype)
        return common.gaussian(mean, blocks=None, basis=self.basis, deviation=deviation)


def spectral_form(precision: Blocks, jacobians: dict[WeightRange, Piece], mean: Tensor) -> SpectralForm | None:
    """The form of aligned Jacobians of one example; None where blocks have none."""
    bases: dict[int, Basis] = {}
    dtype = torch.float32
    for block in precision.blocks:
        found = block.jacobian(jacobians)
        if found is None:
            continue
        form = diagonal_form(block.operator, found)
        if form is None:
            return None
        jacobian, weight, left, right = form
        dtype = jacobian.dtype
        basis, turn, table = (right, left, weight) if jacobian.flipped else (left, right, weight.mT)
        nothing = Basis(basis=None if basis is None else basis[0], weights=BasisWeights(parts=[], constant=None))
        known = bases.setdefault(id(basis), nothing)
        if jacobian.acts.constant:
            constant = jacobian.inner(weight, left, right)[1][0, 0, 0]
            weights = known.weights.plus(BasisWeights(parts=[], constant=constant))
        else:
            weights = known.weights.plus(_squares(None if turn is None else turn[0], table[0], jacobian.acts.ones))
        bases[id(basis)] = replace(known, weights=weights)
    all_bases = [*bases.values()]
    if not all_bases:
        return None
    variances = BasisWeights(parts=[], constant=None)
    for each in all_bases:
        variances = variances.plus(each.weights.project(each.basis))
    if all(each.basis is None for each in all_bases):
        return SpectralForm(bases=all_bases, basis=None, variances=variances, dtype=dtype)
    identity = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
    columns = [identity if each.basis is None else each.basis.to(mean.dtype) for each in all_bases]
    basis = torch.cat(columns, -1).detach()
    return SpectralForm(bases=all_bases, basis=basis, variances=variances, dtype=dtype)


def _squares(turn: Tensor | None, table: Tensor, ones: bool) -> BasisWeights:
    """`(a turn)^2 table`; `ones`: a one is appended to the inputs a."""
    turn, table = None if turn is None else turn.T.contiguous(), table.T.contiguous()
    if not ones:
        return BasisWeights(parts=[Turned(turn=turn, shift=None, table=table)], constant=None)
    if turn is None:
        return BasisWeights(parts=[Turned(turn=None, shift=None, table=table[:, :-1])], constant=table[:, -1])
    part = Turned(turn=turn[:, :-1].contiguous(), shift=turn[:, -1].contiguous(), table=table)
    return BasisWeights(parts=[part], constant=None)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Roots of the covariance of each row of a dense block, as a linear map of the layer's inputs."""

    turn: Tensor | None  # (C H, I)
    shift: Tensor | None  # (C H,): of the bias
    outputs: int

    def variances(self, inputs: Tensor) -> Tensor:
        """(B, T, C)."""
        if self.turn is None:
            assert self.shift is not None
            roots = self.shift.expand(*inputs.shape[:-1], -1)
        else:
            roots = linear(inputs, self.turn, self.shift)
        variances: Tensor = roots.unflatten(-1, (self.outputs, -1)).square().sum(-1)
        return variances


@dataclass(frozen=True, kw_only=True)
class DenseForm:
    """Under full and block curvature."""

    blocks: list[Rows]
    dtype: torch.dtype

    def variance(self, inputs: Tensor, dtype: torch.dtype) -> Tensor:
        """(B, T, C), from the inputs (B, T, I) of the last layer."""
        wide = inputs.to(self.dtype)
        variance = self.blocks[0].variances(wide)
        for block in self.blocks[1:]:
            variance = variance + block.variances(wide)
        return variance.to(dtype)


def dense_form(precision: Blocks, jacobians: dict[WeightRange, Piece]) -> DenseForm | None:
    """The form of aligned Jacobians of one example; None where blocks have none, or it would be too large."""
    blocks, dtype = [], torch.float32
    for block in precision.blocks:
        rows = _rows(block, jacobians)
        if rows is None:
            return None
        blocks.append(rows[0])
        dtype = rows[1]
    return DenseForm(blocks=blocks, dtype=dtype) if blocks else None


def _rows(block: OperatorBlock, jacobians: dict[WeightRange, Piece]) -> tuple[Rows, torch.dtype] | None:
    jacobian, operator = block.jacobian(jacobians), block.operator
    pieces = None if jacobian is None else outermost_pieces(jacobian)
    if not isinstance(operator, DenseOperator) or pieces is None:
        return None
    places = row_places(pieces)
    if places.numel() * places.shape[1] > ROOTS:
        return None
    roots = row_roots(operator.cholesky, places, pieces[0].budget)  # (O, H, I)
    columns = roots.flatten(0, 1).to(pieces[0].dtype).split([piece.acts.width for piece in pieces], -1)
    turns = [part for part, piece in zip(columns, pieces, strict=True) if not piece.acts.constant]
    shifts = [part[:, 0] for part, piece in zip(columns, pieces, strict=True) if piece.acts.constant]
    turn, shift = (torch.stack(each).sum(0) if each else None for each in (turns, shifts))
    return Rows(turn=turn, shift=shift, outputs=len(roots)), pieces[0].dtype
