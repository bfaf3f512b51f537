"""Passes over the data: factors of Kronecker blocks, and second moments in their eigenbases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..curvature import Batch, Source
from ..jacobians import Explicit, Matrix
from ..layers.base import Part
from .ahead import samples, take_apart
from .common import sum_dtype
from .factors import (
    NONE,
    Apart,
    Key,
    KronSums,
    Own,
    Products,
    Side,
    add_gradients,
    add_inputs,
    add_other,
    counted_positions,
)
from .rounding import SMALL, Rounding, norm

Chunk = dict[Part, Matrix | Explicit]
Chunks = Iterable[Chunk]


def measure_factors(approx: str, bias: str, source: Source, earlier: KronSums | None = None) -> KronSums:
    """Sums of both factors over all data; in float64 what earlier sums have in it."""
    measurement = Measurement(approx, bias, Rounding(source))
    for batch in source:
        measurement.add(batch)
    return measurement.finished(set() if earlier is None else earlier.fine())


@dataclass
class Measurement:
    """Sums over batches."""

    approx: str
    bias: str
    rounding: Rounding[Side]
    sums: KronSums = field(default_factory=KronSums)
    small: set[Own] = field(default_factory=set)  # blocks both of whose sides are

    def add(self, batch: Batch) -> None:
        """Measure a batch; if it is the first, again what needs products in float64."""
        first = not self.rounding.judged
        held = list(batch.columns()) if first and batch.at_once else None
        self._measure(batch, held or batch.columns())
        if not self.rounding.due(batch):
            return
        found = self._judge(self._shown())
        if first and found:
            self.sums.drop(found)
            self._measure(batch, held or batch.columns(), found)

    def finished(self, fine: set[Own | Part]) -> KronSums:
        """The sums of all data, in float64 where it shows or where they are small."""
        if self.rounding.wide:
            return self.sums
        if self.rounding.over():
            self._judge(self._shown())
        self.sums.restore(self.rounding.apart)
        self.rounding.apart.clear()
        fine = fine | self._shown() | self.small
        self.sums.narrow(fine - {own for own, _ in self.rounding.lost})
        return self.sums

    def _judge(self, shown: set[Own | Part]) -> set[Side]:
        """Sides that need products in float64 from now on, of blocks in which float32 would show."""
        shown = shown | {own for own, _ in self.rounding.apart}
        matrices = dict(watched(self.sums, shown, self.rounding))
        found = self.rounding.judge(matrices)
        modules = {module_of(own) for own, side in found if side == "gradients"}  # a bias has those of its weight
        alike: set[Side] = {
            side for side in matrices if side[1] == "gradients" and module_of(side[0]) in modules
        } - self.rounding.exact
        self.rounding.take(alike, matrices)
        return found | alike

    def _shown(self) -> set[Own | Part]:
        """Blocks in which float32 would show, with all of their module."""
        sizes = largest(self.sums, self.rounding.apart)
        modules = {module_of(own) for own in self.rounding.shown(sizes)}
        return {own for own in sizes if module_of(own) in modules}

    def _measure(self, batch: Batch, chunks: Chunks, chosen: set[Side] | None = None) -> None:
        """All sides, or the chosen ones."""

        def asked(side: Side) -> torch.dtype | None:
            if chosen is not None and side not in chosen:
                return None
            return torch.float64 if side in self.rounding.exact else batch.tape.dtype

        reduced = self.approx == "reduce" or (self.approx == "auto" and batch.view.form.positions == 1)
        pairs = batch.tape.pairs() if self.bias == "joint" else {}
        last: dict[Key, Matrix] = {}
        apart = self.rounding.apart
        ahead = not self.rounding.judged and chosen is None
        ahead &= self.rounding.takes_apart(batch.tape.dtype, batch.tape.output.device)
        alive: dict[tuple[Key, int], Tensor] = {}
        for found in chunks:
            products: Products = {}  # of this chunk: a bias has the gradients of its weight
            if ahead:
                self._look_ahead(found, pairs, batch, reduced)
            ahead = False
            for part, jacobian in found.items():
                if isinstance(jacobian, Explicit):
                    if jacobian.size <= SMALL and not self.rounding.judged:
                        self.rounding.exact.add((part, "other"))
                    add_other(self.sums, part, jacobian, asked, apart)
                    continue
                key, matrix = joined(part, jacobian, pairs)
                if key is None or matrix is None:
                    continue
                last[key] = matrix
                if not self.rounding.judged:
                    self._note(key, matrix)
                if len(key) == 2:
                    self.sums.weights[key] = jacobian.upright().layout
                add_gradients(self.sums, key, matrix, reduced, products, asked, apart)
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
            add_inputs(self.sums, key, matrix, weights, reduced, asked, apart)

    def _look_ahead(self, found: Chunk, pairs: dict[Part, Part], batch: Batch, reduced: bool) -> None:
        """Take nearly dependent columns apart before the first of them are summed."""
        matrices: dict[Key, Matrix] = {}
        for part, jacobian in found.items():
            key, matrix = (None, None) if isinstance(jacobian, Explicit) else joined(part, jacobian, pairs)
            if key is not None and matrix is not None:
                matrices[key] = matrix
        others = {part: jacobian for part, jacobian in found.items() if isinstance(jacobian, Explicit)}
        blocks = list(samples(matrices, batch.total, reduced))
        take_apart(self.rounding, blocks, others, self.rounding.expected(batch.examples))

    def _note(self, key: Key, matrix: Matrix) -> None:
        """Small sides have products in float64 from the first, which costs nothing."""
        for flipped in {term.flipped for term in matrix.terms}:
            terms = [term for term in matrix.terms if term.flipped == flipped]
            if any(term.acts.positions > 1 for term in terms):
                continue
            small = (terms[0].acts.width <= SMALL, terms[0].grad.shape[-1] <= SMALL)
            own = key, flipped
            if small[0]:
                self.rounding.exact.add((own, "inputs"))
            if small[1]:
                self.rounding.exact.add((own, "gradients"))
            if all(small):
                self.small.add(own)


def module_of(own: Own | Part) -> str:
    """The module that owns a weight."""
    name = own.name if isinstance(own, Part) else own[0][0].name
    return name.rpartition(".")[0]


def norms(sums: KronSums, own: Own, apart: Apart) -> tuple[Tensor, Tensor]:
    """(G,) each: about the largest eigenvalues of both sides over their own columns, never less."""
    factors = sums.factors[own]
    inputs, gradients = apart.get((own, "inputs")), apart.get((own, "gradients"))
    return (
        norm(factors.inputs if inputs is None else inputs.restored(factors.inputs)),
        norm(factors.gradients if gradients is None else gradients.restored(factors.gradients)),
    )


def largest(sums: KronSums, apart: Apart = NONE) -> dict[Own | Part, Tensor]:
    """About the largest eigenvalue of every block that is no diagonal."""
    made: dict[Own | Part, Tensor] = {}
    for own, factors in sums.factors.items():
        inputs, gradients = norms(sums, own, apart)
        made[own] = (inputs * gradients).amax() / max(factors.count, 1.0)
    for part, value in sums.others.items():
        if value.dim() == 2:  # a sum of squares loses nothing
            made[part] = torch.linalg.vector_norm(value.detach())
    return made


def watched(
    sums: KronSums, chosen: set[Own | Part], rounding: Rounding[Side]
) -> Iterator[tuple[Side, tuple[Tensor, Tensor]]]:
    """Sides (G, n, n) of some blocks with products in float32, and what the prior adds to their diagonals (G,).

    It is the least beside the largest eigenvalue of the other side, which brings rounding with it.
    """
    for own in chosen:
        if isinstance(own, Part):
            value = sums.others[own]
            if rounding.watches((own, "other")):
                yield (own, "other"), (value.unsqueeze(0), value.new_full((1,), 1 / rounding.strength))
            continue
        factors = sums.factors[own]
        count = max(factors.count, 1.0) / rounding.strength
        inputs: Side = own, "inputs"
        gradients: Side = own, "gradients"
        sizes = norms(sums, own, rounding.apart)
        for name, side, other in ((inputs, factors.inputs, sizes[1]), (gradients, factors.gradients, sizes[0])):
            if side.dim() == 3 and side.shape[-1] > 1 and rounding.watches(name):
                yield name, (side, count / other.clamp(min=1e-30))


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
