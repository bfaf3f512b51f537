"""Passes over the data: factors of Kronecker blocks, and second moments in their eigenbases."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..curvature import Batch, Source
from ..jacobians import Explicit, Matrix
from ..layers.base import Part
from .common import sum_dtype
from .factors import Factors, Key, KronSums, Products, Watched, add_gradients, add_inputs, add_other, counted_positions
from .rounding import SMALL, Rounding, in_float64, norm

Norms = tuple[Tensor, Tensor]  # (G,) of the input side and of the gradient side


def measure_factors(approx: str, bias: str, source: Source, earlier: KronSums | None = None) -> KronSums:
    """Sums of both factors over all data; in float64 what earlier sums have in it."""
    known = KronSums() if earlier is None else earlier
    measurement = Measurement(approx, bias, Rounding(source, known.fine()))
    for batch in source:
        measurement.add(batch)
    measurement.finish()
    return measurement.sums


@dataclass
class Measurement:
    """Sums over batches, and those of the last batch that may have to be made again in float64."""

    approx: str
    bias: str
    rounding: Rounding[Watched]
    sums: KronSums = field(default_factory=KronSums)
    fresh: KronSums = field(default_factory=KronSums)
    coarse: dict[tuple[Key, bool], Norms] = field(default_factory=dict)  # of what was in float32 before

    def add(self, batch: Batch) -> None:
        """Measure a batch, and again what needs float64."""
        self._measure(batch)
        watched = self.fresh.watched()
        if self.rounding.due(batch.examples, bool(watched)):
            found = self.rounding.judge(largest(self.sums, self.fresh, self.coarse))
            modules = {module_of(key) for key in found}  # a bias has the gradients of its weight
            found |= {key for key in self.sums.watched() | watched if module_of(key) in modules} - self.rounding.fine
            found -= self.rounding.lost
            self.rounding.fine |= found
            self.coarse |= {own: norms(factors) for own, factors in self.sums.factors.items() if own[0] in found}
            self.sums.widen(found)
            if found & watched:
                self.fresh.drop(found)
                self._measure(batch, found & watched)
        self.sums.take(self.fresh)
        self.fresh = KronSums()
        self.rounding.fine |= self.sums.fine() - self.rounding.lost

    def finish(self) -> None:
        """Look at the sums of all data."""
        if self.rounding.over():
            self.sums.widen(self.rounding.judge(largest(self.sums, self.fresh, self.coarse)))
        self.sums.narrow(self.rounding.lost)

    def into(self, key: Watched) -> KronSums:
        """Where the products of this batch go."""
        return self.sums if self.rounding.settled(key) else self.fresh

    def dtype(self, key: Watched) -> torch.dtype:
        """Of the block's sums, at least."""
        return torch.float64 if key in self.rounding.fine else torch.float32

    def _measure(self, batch: Batch, chosen: set[Watched] | None = None) -> None:
        """All blocks, or the chosen ones."""
        reduced = self.approx == "reduce" or (self.approx == "auto" and batch.view.form.positions == 1)
        pairs = batch.tape.pairs() if self.bias == "joint" else {}
        last: dict[Key, Matrix] = {}
        alive: dict[tuple[Key, int], Tensor] = {}
        for found in batch.columns():
            products: Products = {}  # of this chunk: a bias has the gradients of its weight
            for part, jacobian in found.items():
                if isinstance(jacobian, Explicit):
                    if chosen is None or part in chosen:
                        add_other(self.into(part), part, jacobian, self.dtype(part))
                    continue
                key, matrix = joined(part, jacobian, pairs)
                if key is None or matrix is None or (chosen is not None and key not in chosen):
                    continue
                last[key] = matrix
                if small(matrix):
                    self.rounding.fine.add(key)
                sums = self.into(key)
                if len(key) == 2:
                    sums.weights[key] = jacobian.upright().layout
                add_gradients(sums, key, matrix, reduced, products, self.dtype(key))
                if batch.masked is not None:
                    for place, term in enumerate(matrix.terms):
                        nonzero = (term.grad != 0).any(0).any(-1).any(1)
                        earlier = alive.get((key, place))
                        alive[key, place] = nonzero if earlier is None else earlier | nonzero
        for key, matrix in last.items():
            weights = [
                counted_positions(term, batch.masked, alive.get((key, place)))
                for place, term in enumerate(matrix.terms)
            ]
            add_inputs(self.into(key), key, matrix, weights, reduced)


def small(matrix: Matrix) -> bool:
    """Whether float64 costs nothing."""
    return max(matrix.layout.matrix) <= SMALL and all(term.acts.positions == 1 for term in matrix.terms)


def module_of(key: Watched) -> str:
    """The module that owns a weight."""
    name = key.name if isinstance(key, Part) else key[0].name
    return name.rpartition(".")[0]


def norms(*sums: Factors) -> Norms:
    """About the largest eigenvalues of both sides."""
    inputs, gradients = ([norm(getattr(own, side)) for own in sums] for side in ("inputs", "gradients"))
    return torch.stack(inputs).sum(0), torch.stack(gradients).sum(0)


def largest(sums: KronSums, fresh: KronSums, coarse: dict[tuple[Key, bool], Norms]) -> dict[Watched, Tensor]:
    """About the largest eigenvalue of what is in float32 of every block, the last batch's included.

    Of a product it is either side's in float32 times the whole other side's: earlier gradients meet later inputs.
    """
    made: dict[Watched, Tensor] = {}
    for own in {**sums.factors, **fresh.factors}:
        both = [each.factors[own] for each in (sums, fresh) if own in each.factors]
        wide = in_float64([each.inputs for each in both])
        if wide and own not in coarse:
            continue
        inputs, gradients = norms(*both)
        some, others = coarse[own] if wide else (inputs, gradients)
        count = max(sum(each.count for each in both), 1.0)
        value = (some * gradients + inputs * others).amax() / (2 * count)
        made[own[0]] = made[own[0]] + value if own[0] in made else value
    for part in {**sums.others, **fresh.others}:
        values = [each.others[part] for each in (sums, fresh) if part in each.others]
        if values[0].dim() == 2 and not in_float64(values):  # a sum of squares loses nothing
            made[part] = torch.stack([torch.linalg.vector_norm(value.detach()) for value in values]).sum()
    return made


def joined(part: Part, jacobian: Matrix, pairs: dict[Part, Part]) -> tuple[Key | None, Matrix | None]:
    """A weight with its bias where they are one block; the bias alone is then left out."""
    if part in pairs:
        return (part, pairs[part]), jacobian.with_bias()
    if part in pairs.values():
        return None, None
    return (part,), jacobian


def measure_corrections(sums: KronSums, source: Source) -> KronSums:
    """Second moments of the Jacobian in the eigenbases: the second pass of EKFAC."""
    paired = {key[0]: key[1] for key in sums.bases if len(key) == 2}
    for batch in source:
        for found in batch.columns():
            for part, jacobian in found.items():
                if isinstance(jacobian, Explicit):
                    continue
                key, matrix = joined(part, jacobian, paired)
                if key is None or matrix is None:
                    continue
                left, right = sums.bases[key]
                cast = [None if basis is None else basis.to(matrix.dtype) for basis in (left, right)]
                made = matrix.square_sum(*cast)
                made = made.to(sum_dtype(made.dtype))
                sums.corrected[key] = made if key not in sums.corrected else sums.corrected[key] + made
    return sums
