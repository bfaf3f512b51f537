"""Variances of a linear last layer from its inputs alone: all that does not depend on them is worked out once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..curvature.blocks import Blocks, OperatorBlock
from ..curvature.operators import DenseOperator, DiagonalOperator, RotatedOperator
from ..jacobians.output_layer import OutputLayerJacobian, Piece, outermost_pieces, row_places, row_roots
from ..likelihoods import Form
from ..predictions import links
from ..predictions.outputs import GaussianOutputs
from ..runtime.memory import Budget
from ..weights.ranges import WeightRange

ROOTS = 1 << 27  # numbers of roots of rows that are kept
# Makes covariances (B, T, C, C) from the inputs of a last layer.
Later = Callable[[], Tensor]


@dataclass(frozen=True, kw_only=True)
class BeliefOptions:
    """What all Gaussians over the outputs of one predictor have in common."""

    form: Form
    budget: Budget
    points: int
    seed: int


@dataclass(frozen=True, eq=False, kw_only=True)
class DeferredOutputs(GaussianOutputs):
    """A Gaussian whose covariances are made when something asks for them: probabilities may need variances alone."""

    now: Tensor  # (N, T, C): variances
    later: Later

    @cached_property
    def variance(self) -> Tensor:
        """(N, T, C)."""
        return self.now

    @cached_property
    def covariance(self) -> Tensor:
        """(N, T, C, C)."""
        return self.later()

    @cached_property
    def root(self) -> Tensor:
        """(N, T, C, R): `root root^T` is the covariance."""
        return links.root(self.covariance)

    def some(self, chosen: slice) -> GaussianOutputs:
        """The belief about some of the inputs, each by itself."""
        return GaussianOutputs(
            form=self.form,
            budget=self.budget,
            centre=self.centre[chosen],
            blocks=self.covariance[chosen],
            points=self.points,
            seed=self.seed,
        )


@dataclass(frozen=True, kw_only=True)
class Turned:
    """What one block adds to the weights of a basis: `(a turn)^2 table`."""

    turn: Tensor | None  # (I, I)
    table: Tensor  # (I, R)
    ones: bool  # whether a one is appended to the inputs

    def __call__(self, inputs: Tensor) -> Tensor:
        """(B, T, R)."""
        if self.ones:
            inputs = torch.cat([inputs, inputs.new_ones(*inputs.shape[:-1], 1)], -1)
        turned = inputs if self.turn is None else inputs @ self.turn
        return turned.square() @ self.table


@dataclass(frozen=True, kw_only=True)
class Basis:
    """Blocks whose outputs have one basis in common, such as a weight and its bias."""

    basis: Tensor | None  # (C, R); None: the identity
    parts: list[Turned]
    constant: Tensor | None  # (R,): of the bias

    def weights(self, inputs: Tensor) -> Tensor:
        """(B, T, R): variances along the basis."""
        total = self.constant
        for part in self.parts:
            value = part(inputs)
            total = value if total is None else total + value
        assert total is not None
        return total if self.parts else total.expand(*inputs.shape[:-1], -1)


@dataclass(frozen=True, kw_only=True)
class SpectralForm:
    """Under Kronecker and diagonal blocks: `basis diag(deviation^2) basis^T`."""

    bases: list[Basis]
    basis: Tensor | None  # (C, R): of all of them; None: the identity
    dtype: torch.dtype  # of the inputs

    def gaussian(self, common: BeliefOptions, inputs: Tensor, mean: Tensor, later: Later) -> GaussianOutputs:
        """The Gaussian with this mean (B, T, C), from the inputs (B, T, I) of the last layer."""
        weights = [basis.weights(inputs.to(self.dtype)) for basis in self.bases]
        if self.basis is None:
            weight = weights[0] if len(weights) == 1 else torch.stack(weights).sum(0)
        else:
            weight = torch.cat(weights, -1) if len(weights) > 1 else weights[0]
        deviation = weight.clamp(min=0).sqrt().to(mean.dtype)
        return GaussianOutputs(
            form=common.form,
            budget=common.budget,
            centre=mean,
            blocks=None,
            basis=self.basis,
            deviation=deviation,
            points=common.points,
            seed=common.seed,
        )


def spectral_form(precision: Blocks, jacobians: dict[WeightRange, Piece], mean: Tensor) -> SpectralForm | None:
    """The form of aligned Jacobians of one example; None where blocks have none."""
    bases: dict[int, Basis] = {}
    dtype = torch.float32
    for block in precision.blocks:
        jacobian, operator = block.jacobian(jacobians), block.operator
        if jacobian is None:
            continue
        if not isinstance(jacobian, OutputLayerJacobian) or jacobian.groups != 1:
            return None
        if isinstance(operator, RotatedOperator) and operator.layout == jacobian.layout:
            weight, left, right = operator.inverse, operator.left, operator.right
        elif isinstance(operator, DiagonalOperator):
            weight, left, right = operator.weight(jacobian.layout), None, None
        else:
            return None
        dtype = jacobian.dtype
        basis, turn, table = (right, left, weight) if jacobian.flipped else (left, right, weight.mT)
        known = bases.setdefault(id(basis), Basis(basis=None if basis is None else basis[0], parts=[], constant=None))
        if jacobian.acts.constant:
            constant = jacobian.inner(weight, left, right)[1][0, 0, 0]
            constant = constant if known.constant is None else known.constant + constant
            bases[id(basis)] = replace(known, constant=constant)
        else:
            turned = Turned(turn=None if turn is None else turn[0], table=table[0], ones=jacobian.acts.ones)
            known.parts.append(turned)
    all_bases = [*bases.values()]
    if not all_bases:
        return None
    if all(each.basis is None for each in all_bases):
        return SpectralForm(bases=all_bases, basis=None, dtype=dtype)
    identity = torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
    columns = [identity if each.basis is None else each.basis.to(mean.dtype) for each in all_bases]
    return SpectralForm(bases=all_bases, basis=torch.cat(columns, -1).detach(), dtype=dtype)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Roots of the covariance of each row of a dense block."""

    table: Tensor  # (I, C H)
    outputs: int
    ones: list[bool]  # of the block's tensors: whether it is a bias

    def variances(self, inputs: Tensor) -> Tensor:
        """(B, T, C)."""
        one = inputs.new_ones(*inputs.shape[:-1], 1)
        sides = [one if bias else inputs for bias in self.ones]
        roots = (sides[0] if len(sides) == 1 else torch.cat(sides, -1)) @ self.table
        variances: Tensor = roots.unflatten(-1, (self.outputs, -1)).square().sum(-1)
        return variances


@dataclass(frozen=True, kw_only=True)
class DenseForm:
    """Under full and block curvature: variances at once, covariances where something asks for them."""

    blocks: list[Rows]
    dtype: torch.dtype

    def gaussian(self, common: BeliefOptions, inputs: Tensor, mean: Tensor, later: Later) -> GaussianOutputs:
        """The Gaussian with this mean (B, T, C), from the inputs (B, T, I) of the last layer."""
        wide = inputs.to(self.dtype)
        variance = self.blocks[0].variances(wide)
        for block in self.blocks[1:]:
            variance = variance + block.variances(wide)
        return DeferredOutputs(
            form=common.form,
            budget=common.budget,
            centre=mean,
            blocks=None,
            points=common.points,
            seed=common.seed,
            now=variance.to(mean.dtype),
            later=later,
        )


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
    table = roots.flatten(0, 1).T.to(pieces[0].dtype).contiguous()
    return Rows(table=table, outputs=len(roots), ones=[each.acts.constant for each in pieces]), pieces[0].dtype
