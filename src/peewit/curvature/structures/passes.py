"""Passes over the data: factors of Kronecker blocks, and second moments in their eigenbases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...jacobians.explicit import Explicit
from ...jacobians.factored import Matrix
from ...weights.ranges import WeightRange
from ..batch import Batch, Chunk, KeptChunks
from ..stream import Source
from .common import accumulate
from .contributions import DtypeOf, GradientProducts, add_gradients, add_inputs, add_other, counted_positions
from .factors import Key, KronSums, Own, Side
from .rounding import SMALL, Rounding, norm


def measure_factors(approx: str, bias: str, source: Source, earlier: KronSums | None = None) -> KronSums:
    """Sums of both factors over all data; in float64 what earlier sums have in it."""
    measurement = KronMeasurement(approx=approx, bias=bias, rounding=Rounding(source=source))
    for batch in source:
        measurement.add(batch)
    return measurement.finish(set() if earlier is None else earlier.fine())


@dataclass(kw_only=True)
class KronMeasurement:
    """Sums over batches."""

    approx: str
    bias: str
    rounding: Rounding[Side]
    sums: KronSums = field(default_factory=KronSums)
    small: set[Own] = field(default_factory=set)  # blocks both of whose sides are

    def add(self, batch: Batch) -> None:
        """Measure a batch; if it is the first, again what needs products in float64."""
        first = self.rounding.begins(batch)
        probes = KeptChunks(batch, self.rounding.source.task.budget) if first else batch.probes()
        self._measure(batch, probes)
        if not self.rounding.due(batch):
            return
        needed = self._judge(self._find_visible())
        if first and needed:
            self.sums.drop(needed)
            self._measure(batch, probes, needed)

    def finish(self, fine: set[Own | WeightRange]) -> KronSums:
        """The sums over all data, in float64 where rounding would show and where the blocks are small."""
        if self.rounding.wide:
            return self.sums
        self.rounding.ended = True
        if self.rounding.over():
            self._judge(self._find_visible())
        fine = fine | self._find_visible() | self.small
        self.sums.narrow(fine - {own for own, _ in self.rounding.lost})
        return self.sums

    def _judge(self, shown: set[Own | WeightRange]) -> set[Side]:
        """Sides that need products in float64 from now on, of blocks in which float32 would show."""
        matrices = dict(sides_to_watch(self.sums, shown, self.rounding))
        needed = self.rounding.judge(matrices)
        modules = {module_of(own) for own, side in needed if side == "gradients"}  # a bias has those of its weight
        alike: set[Side] = {
            side for side in matrices if side[1] == "gradients" and module_of(side[0]) in modules
        } - self.rounding.exact
        self.rounding.take(alike, matrices)
        return needed | alike

    def _find_visible(self) -> set[Own | WeightRange]:
        """Blocks in which float32 would show, with all of their module."""
        sizes = largest(self.sums)
        modules = {module_of(own) for own in self.rounding.find_visible(sizes)}
        return {own for own in sizes if module_of(own) in modules}

    def _measure(self, batch: Batch, chunks: Iterable[Chunk], chosen: set[Side] | None = None) -> None:
        """Add a batch to all sides, or to the chosen ones."""
        dtype_of = self._dtypes(chosen, batch.tape.dtype)
        reduced = self.approx == "reduce" or (self.approx == "auto" and batch.view.form.positions == 1)
        pairs = batch.tape.pairs() if self.bias == "joint" else {}
        last: dict[Key, Matrix] = {}
        alive: dict[tuple[Key, int], Tensor] = {}
        for chunk in chunks:
            products: GradientProducts = {}  # of this chunk: a bias has the gradients of its weight
            for key, jacobian in join_biases(chunk, pairs):
                if isinstance(jacobian, Explicit):
                    if jacobian.size <= SMALL and not self.rounding.judged:
                        self.rounding.exact.add((key[0], "other"))
                    add_other(self.sums, key[0], jacobian, dtype_of)
                    continue
                last[key] = jacobian
                if not self.rounding.judged:
                    self._note(key, jacobian)
                weight = chunk[key[0]]
                if len(key) == 2 and isinstance(weight, Matrix):
                    self.sums.weights[key] = weight.upright().layout
                add_gradients(self.sums, key, jacobian, reduced, products, dtype_of)
                if batch.masked is not None:
                    note_alive(alive, key, jacobian)
        for key, matrix in last.items():
            weights = [
                counted_positions(term, batch.masked, alive.get((key, number)))
                for number, term in enumerate(matrix.terms)
            ]
            add_inputs(self.sums, key, matrix, weights, reduced, dtype_of)

    def _dtypes(self, chosen: set[Side] | None, dtype: torch.dtype) -> DtypeOf:
        """The dtype in which each side has its products."""

        def of_side(side: Side) -> torch.dtype | None:
            if chosen is not None and side not in chosen:
                return None
            return torch.float64 if side in self.rounding.exact else dtype

        return of_side

    def _note(self, key: Key, matrix: Matrix) -> None:
        """Small sides have products in float64 from the first, which costs nothing."""
        for flipped in {term.flipped for term in matrix.terms}:
            terms = [term for term in matrix.terms if term.flipped == flipped]
            if any(term.acts.positions > 1 for term in terms):
                continue
            small = (terms[0].acts.width <= SMALL, terms[0].grad.shape[-1] <= SMALL)
            block = key, flipped
            if small[0]:
                self.rounding.exact.add((block, "inputs"))
            if small[1]:
                self.rounding.exact.add((block, "gradients"))
            if all(small):
                self.small.add(block)


def module_of(block: Own | WeightRange) -> str:
    """The module that owns a weight."""
    name = block.name if isinstance(block, WeightRange) else block[0][0].name
    return name.rpartition(".")[0]


def largest(sums: KronSums) -> dict[Own | WeightRange, Tensor]:
    """About the largest eigenvalue of every block that is not diagonal."""
    norms: dict[Own | WeightRange, Tensor] = {}
    for block, factors in sums.factors.items():
        norms[block] = (norm(factors.inputs) * norm(factors.gradients)).amax() / max(factors.count, 1.0)
    for part, value in sums.others.items():
        if value.dim() == 2:  # a sum of squares loses nothing
            norms[part] = torch.linalg.vector_norm(value.detach())
    return norms


def sides_to_watch(
    sums: KronSums, chosen: set[Own | WeightRange], rounding: Rounding[Side]
) -> Iterator[tuple[Side, tuple[Tensor, Tensor]]]:
    """Sides (G, n, n) of some blocks with products in float32, and what the prior adds to their diagonals (G,).

    It is the least beside the largest eigenvalue of the other side, which brings rounding with it.
    """
    for block in chosen:
        if isinstance(block, WeightRange):
            value = sums.others[block]
            if rounding.watches((block, "other")):
                yield (block, "other"), (value.unsqueeze(0), value.new_full((1,), 1 / rounding.strength))
            continue
        factors = sums.factors[block]
        count = max(factors.count, 1.0) / rounding.strength
        inputs: Side = block, "inputs"
        gradients: Side = block, "gradients"
        for name, side, other in (
            (inputs, factors.inputs, norm(factors.gradients)),
            (gradients, factors.gradients, norm(factors.inputs)),
        ):
            if side.dim() == 3 and side.shape[-1] > 1 and rounding.watches(name):
                yield name, (side, count / other.clamp(min=1e-30))


def note_alive(alive: dict[tuple[Key, int], Tensor], key: Key, matrix: Matrix) -> None:
    """(B, T) booleans for each use of a weight: which positions had a gradient so far."""
    for number, term in enumerate(matrix.terms):
        nonzero = (term.grad != 0).any(0).any(-1).any(1)
        earlier = alive.get((key, number))
        alive[key, number] = nonzero if earlier is None else earlier | nonzero


def join_biases(chunk: Chunk, pairs: dict[WeightRange, WeightRange]) -> Iterator[tuple[Key, Matrix | Explicit]]:
    """Jacobians by block: a weight with its bias where `pairs` has them, each other range on its own."""
    biases = set(pairs.values())
    for part, jacobian in chunk.items():
        if isinstance(jacobian, Explicit):
            yield (part,), jacobian
        elif part in pairs:
            yield (part, pairs[part]), jacobian.with_bias()
        elif part not in biases:
            yield (part,), jacobian


def measure_corrections(sums: KronSums, source: Source) -> KronSums:
    """Second moments of the Jacobian in the eigenbases: the second pass of EKFAC."""
    paired = {key[0]: key[1] for key in sums.bases if len(key) == 2}
    for batch in source:
        for chunk in batch.probes():
            for key, matrix in join_biases(chunk, paired):
                if isinstance(matrix, Matrix):
                    bases = [None if basis is None else basis.to(matrix.dtype) for basis in sums.bases[key]]
                    accumulate(sums.corrected, key, matrix.square_sum(*bases))
    return sums
