"""What a batch adds to the sums of Kronecker factors."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ...jacobians.explicit import Explicit
from ...jacobians.factored import Matrix, Term
from ...jacobians.inputs import Acts, InputMoments
from ...weights.ranges import WeightRange
from .common import add_to, sum_dtype
from .factors import Key, KronFactors, KronSums, Side
from .grams import outer, too_long

LARGEST_DENSE = 1_024  # norm and generic weights up to this size get a dense block
GradientProducts = dict[tuple[tuple[int, ...], torch.dtype], Tensor]  # of gradients, by which they are and how made
DtypeOf = Callable[[Side], torch.dtype | None]  # of the products of a side, at least; None: leave it out


def plainly(side: Side) -> torch.dtype:
    """Float32 for the products of every side."""
    return torch.float32


def add_other(sums: KronSums, part: WeightRange, jacobian: Explicit, dtype_of: DtypeOf = plainly) -> None:
    """Curvature of a weight without a Kronecker form: dense where small, else diagonal."""
    dtype = dtype_of((part, "other"))
    if dtype is None:
        return
    rows = jacobian.value.flatten(0, 1)
    if jacobian.size <= LARGEST_DENSE:
        curvature = outer(rows.unsqueeze(0), jacobian.budget, dtype)[0]
    else:
        curvature = rows.to(sum_dtype(rows.dtype)).square().sum(0)
    sums.others[part] = curvature.double() if part not in sums.others else add_to(sums.others[part], curvature)


def counted_positions(term: Term, masked: Tensor | None, alive: Tensor | None) -> Tensor | None:
    """(B, T) booleans: positions that enter the input factor; None where all do.

    Of examples with ignored labels, positions without any gradient leave it.
    """
    counted = term.counted
    if masked is not None and alive is not None:
        valid = alive | ~masked[:, None]
        counted = valid if counted is None else counted & valid
    return counted


def add_gradients(
    sums: KronSums, key: Key, matrix: Matrix, reduced: bool, products: GradientProducts, dtype_of: DtypeOf = plainly
) -> None:
    """`sum g g^T` over probes, examples and positions (summed over positions first when reduced)."""
    sums.layouts.setdefault(key, matrix.layout)
    for flipped in {term.flipped for term in matrix.terms}:
        grads = [term.grad for term in matrix.terms if term.flipped == flipped]
        factors = _factors(sums, key, flipped, matrix, grads[0], reduced)
        dtype = dtype_of(((key, flipped), "gradients"))
        if dtype is None:
            continue
        same = tuple(id(grad) for grad in grads), dtype  # all alive as long as this chunk is
        if same not in products:
            summed = [torch.stack([grad.sum(3) for grad in grads]).sum(0).unsqueeze(3)] if reduced else grads
            grams = [outer(gradient_rows(grad), matrix.budget, dtype) for grad in summed]
            products[same] = sum(grams[1:], grams[0])
        factors.gradients = add_to(factors.gradients, products[same])


def gradient_rows(grad: Tensor) -> Tensor:
    """(K, B, G, T, width) -> (G, K B T, width)."""
    return grad.permute(2, 0, 1, 3, 4).reshape(grad.shape[2], -1, grad.shape[4])


def _factors(sums: KronSums, key: Key, flipped: bool, matrix: Matrix, like: Tensor, reduced: bool) -> KronFactors:
    if (key, flipped) not in sums.factors:
        groups, rows, columns = matrix.layout.matrix
        wide, tall = (rows, columns) if flipped else (columns, rows)
        # One-hot inputs have a diagonal factor; their averages over positions do not.
        tokens = not reduced and all(term.acts.index is not None for term in matrix.terms if term.flipped == flipped)

        def zeros(size: int, diagonal: bool) -> Tensor:
            shape = (groups, size) if diagonal else (groups, size, size)
            return torch.zeros(shape, dtype=torch.float64, device=like.device)

        sums.factors[key, flipped] = KronFactors(zeros(wide, tokens or too_long(wide)), zeros(tall, too_long(tall)))
    return sums.factors[key, flipped]


def add_inputs(
    sums: KronSums, key: Key, matrix: Matrix, weights: list[Tensor | None], reduced: bool, dtype_of: DtypeOf = plainly
) -> None:
    """`sum a a^T` over examples and counted positions (averaged over positions first when reduced)."""
    for flipped in {term.flipped for term in matrix.terms}:
        uses = [(term, weight) for term, weight in zip(matrix.terms, weights, strict=True) if term.flipped == flipped]
        factors, dtype = sums.factors[key, flipped], dtype_of(((key, flipped), "inputs"))
        if dtype is not None and reduced:
            _add_reduced(factors, matrix, uses, dtype)
        elif dtype is not None:
            for term, weight in uses:
                _add_expanded(factors, matrix, term, weight, dtype)


def _add_expanded(factors: KronFactors, matrix: Matrix, term: Term, weight: Tensor | None, dtype: torch.dtype) -> None:
    examples = matrix.examples
    positions = examples * term.acts.positions if weight is None else weight.sum().item()
    factors.count += positions
    if term.acts.index is not None and not term.acts.ones:
        tokens = term.acts.index if weight is None else term.acts.index[weight]
        counts = torch.bincount(tokens.flatten(), minlength=term.acts.width).to(factors.inputs.dtype)
        factors.inputs = factors.inputs + (counts[None] if factors.inputs.dim() == 2 else torch.diag(counts)[None])
        return
    if term.acts.constant:
        factors.inputs = factors.inputs + positions
        return
    moments = term.acts.moments
    if moments is not None and weight is None and factors.inputs.dim() == 3 and moments.cheaper:
        _add_moments(factors, term.acts, moments, matrix, dtype)
        return
    groups = matrix.layout.matrix[0]
    bytes_per_example = (term.acts.scratch + 2 * groups * term.acts.positions * term.acts.width) * 4
    for chosen in matrix.budget.slices(examples, bytes_per_example):
        act = term.acts(chosen)
        if weight is not None:
            act = act * weight[chosen, None, :, None]
        factors.inputs = add_to(
            factors.inputs, outer(act.transpose(0, 1).reshape(groups, -1, act.shape[-1]), matrix.budget, dtype)
        )


def _add_moments(factors: KronFactors, acts: Acts, moments: InputMoments, matrix: Matrix, dtype: torch.dtype) -> None:
    """`sum a a^T` where it is known without the inputs; with a column of ones, their sums beside it."""
    second = moments.second(matrix.budget, dtype)
    rows = second.shape[1 : (second.dim() + 1) // 2]
    groups, width = second.shape[0], math.prod(rows)
    first: Tensor | None = None
    if acts.ones:
        bytes_per_example = acts.scratch * second.dtype.itemsize
        parts = [
            moments.first(chosen, dtype).sum(0) for chosen in matrix.budget.slices(matrix.examples, bytes_per_example)
        ]
        first = torch.stack(parts).sum(0)
    count = matrix.examples * acts.positions
    total = factors.inputs
    if total.requires_grad or second.requires_grad:
        gram = second.reshape(groups, width, width)
        if first is not None:
            last = torch.nn.functional.pad(first, (0, 1), value=float(count))
            gram = torch.cat([torch.cat([gram, first[:, None]], 1), last[:, :, None]], 2)
        factors.inputs = total + gram
        return
    # Into a view of the sum: the result is large where there are many channels, and its axes in another order.
    total[:, :width, :width].unflatten(2, rows).unflatten(1, rows).add_(second)
    if first is not None:
        total[:, width, :width] += first
        total[:, :width, width] += first
        total[:, width, width] += count


def _add_reduced(
    factors: KronFactors, matrix: Matrix, uses: list[tuple[Term, Tensor | None]], dtype: torch.dtype
) -> None:
    """All uses' positions are averaged together, per example."""
    examples, groups = matrix.examples, matrix.layout.matrix[0]
    device = factors.inputs.device
    total = torch.zeros(examples, device=device, dtype=dtype)
    for term, weight in uses:
        total = total + (term.acts.positions if weight is None else weight.sum(1))
    factors.count += examples if all(weight is None for _, weight in uses) else float((total > 0).sum())
    bytes_per_example = max(
        (term.acts.scratch + 2 * groups * term.acts.positions * term.acts.width) * 4 for term, _ in uses
    )
    for chosen in matrix.budget.slices(examples, bytes_per_example):
        mean: Tensor | None = None
        for term, weight in uses:
            if term.acts.moments is not None and weight is None:
                summed = term.acts.moments.first(chosen, dtype)
                if term.acts.ones:
                    summed = torch.nn.functional.pad(summed, (0, 1), value=float(term.acts.positions))
            else:
                act = term.acts(chosen)
                act = act.to(torch.promote_types(act.dtype, dtype))
                summed = (act if weight is None else act * weight[chosen, None, :, None]).sum(2)
            mean = summed if mean is None else mean + summed
        assert mean is not None
        mean = mean / total[chosen].clamp(min=1)[:, None, None]
        gram = outer(mean.transpose(0, 1), matrix.budget, dtype)
        if factors.inputs.dim() == 2 and gram.dim() == 3:
            gram = gram.diagonal(dim1=-2, dim2=-1)
        factors.inputs = add_to(factors.inputs, gram)
