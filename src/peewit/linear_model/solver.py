"""Locally optimal conjugate gradients on the linear model's loss, with the outputs of all examples kept.

One step takes the gradient (one product with J^T), multiplies it by the inverse of the fitted posterior precision,
takes one product with J, and then minimises the loss exactly over the plane of this direction and the last: that needs
no pass through the network. For Gaussian likelihoods these are preconditioned conjugate gradients. Where that is slow,
stiff directions of the blocks are added to the plane, and stay in it. Where that is slow too, a matrix over all weights
takes their place and the preconditioner's, if it fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from ..curvature.pieces import LabelledPiece
from ..likelihoods import score
from ..runtime.arithmetic import use_rounding
from .objective import Target, norm
from .plane import Terms, descend, energy_terms
from .sketch import PROBE, SLOW, Sketch, SketchPlan
from .stiff_directions import Candidate, Directions
from .stopping import MORE, SolverLog, Stopping, add_facts, check_finite, check_transpose, energy_and_size, rounding
from .walk import Walk

REFRESH = 50  # steps after which the outputs are made anew from the weights: roundings add up
PATIENCE = 4  # steps before directions are added, and again before more are


@dataclass(eq=False, kw_only=True)
class Solver(Walk):
    """With the outputs of all examples at the weights and along the last direction."""

    pieces: list[LabelledPiece] = field(default_factory=list)  # without their inputs
    u: list[Tensor] = field(default_factory=list)  # f + J e
    w: list[Tensor] = field(default_factory=list)  # J d
    old: int = 0  # steps since the outputs were made from the weights
    most: int = 0  # directions that there is room for
    spare: int = 0  # steps of a solve that are left for directions to be of use in, where no other solve follows
    directions: Directions = field(default_factory=Directions)
    patience: int = field(default_factory=lambda: PATIENCE)  # steps until the next directions
    gram: tuple[Target, Tensor] | None = None  # of the directions under a target
    plan: SketchPlan | None = None  # of a matrix over all weights, until it is made or given up
    sketch: Sketch | None = None
    price: float = math.inf  # of that matrix, in products
    settled: float = 0.0  # products until the last solve that came to its end

    def solve(self, target: Target, tolerance: float, steps: int) -> SolverLog:
        """Walk downhill until the decrement is below the tolerance, or for so many steps; two directions cost one."""
        log, stopping = SolverLog(), Stopping(tolerance=tolerance)
        if not self.u and bool((self.e != 0).any()):
            self.refresh()
        remaining = steps
        target = self._sketched(target)
        while True:
            if self._is_slow() and remaining > 0:
                target, stopping = self._draw(target), Stopping(tolerance=tolerance)
            g = self._gradient(target)
            length = norm(g)
            squared = target.precondition(g)  # g is now the direction
            loss, stopping.slack = self._loss(target)
            check_finite(squared, loss)
            log.note(loss, 0.5 * squared, length, self.products)
            if stopping.ends(0.5 * squared, log):
                self.settled = self.products
                return log
            if remaining == 0:
                log.stopped = f"{steps} steps were not enough"
                return log
            stopping.gain = self._advance(target, g, squared, stopping.slack)
            del g
            remaining -= 1
            self.patience -= 1
            if self.patience <= 0:
                remaining -= self._learn(target, 2 * (remaining - self.spare))

    def _is_slow(self) -> bool:
        """Whether as much was spent without coming to an end as the matrix over all weights costs."""
        spent = self.products - self.settled
        if self.plan is None or spent < SLOW:
            return False
        if self.price == math.inf:
            self.price = self.plan.cost(next(iter(self.passes.pieces.pass_over("cost"))), self.facts.examples)
        return spent >= self.price

    def _draw(self, target: Target) -> Target:
        """Make the matrix over all weights, which leaves directions nothing to know, and begin anew with it."""
        assert self.plan is not None
        self.most, self.directions, self.gram, self.d = 0, Directions(), None, None  # the matrix takes their room
        self.sketch = self.plan.draw()
        self.products += PROBE * self.plan.probes
        self.plan = None
        return self._sketched(target)

    def _sketched(self, target: Target) -> Target:
        """With that matrix as the preconditioner, where there is one."""
        blocks = None if self.sketch is None else self.sketch.blocks(target)
        return target if blocks is None else replace(target, blocks=blocks)

    def _learn(self, target: Target, number: int) -> int:
        """Add the stiffest directions that are not known, up to a number; says how many steps that cost."""
        if number <= 0:
            return 0
        self.patience = PATIENCE  # also where none are found: looking for them takes its time
        candidates = self._candidates(target, number)
        if not candidates:
            return 0
        by_block: dict[int, list[int]] = {}
        for candidate in candidates:
            by_block.setdefault(candidate.block, []).append(candidate.index)
        blocks = target.blocks.blocks
        columns = {block: self.directions.columns(block, blocks[block], places) for block, places in by_block.items()}
        outputs: dict[int, list[Tensor]] = {block: [] for block in by_block}
        vector = torch.zeros_like(self.e)
        for piece in self.passes.pieces.pass_over("directions"):
            for block, directions in columns.items():
                names = {part.name for part in blocks[block].parts}
                pushed = []
                for unit in torch.eye(len(by_block[block]), dtype=self.e.dtype, device=self.e.device):
                    pieces = blocks[block].split(directions.combine(unit))
                    for chosen, value in pieces:
                        vector[chosen] = value
                    pushed.append(self.passes.push(piece, vector, names)[1])
                    for chosen, _ in pieces:
                        vector[chosen] = 0
                outputs[block].append(torch.stack(pushed))
        for block, directions in columns.items():
            self.directions.add(block, directions, by_block[block], outputs[block])
        self.gram = None
        self.products += 0.5 * len(candidates)
        return (len(candidates) + 1) // 2

    def _candidates(self, target: Target, number: int) -> list[Candidate]:
        """Directions to add; those that the prior has come to hold make room for them."""
        if not self.most:
            return []
        with use_rounding("ieee"):
            ratios = self.directions.ratios(target)
        if len(self.directions):
            self.directions.forget(self.directions.find_outweighed(ratios))
        self.gram = None
        number = min(number, MORE, self.most - len(self.directions))
        return self.directions.candidates(ratios, number) if number > 0 else []

    def _gradient(self, target: Target) -> Tensor:
        """(D,): one product with J^T. The first of all passes also takes the outputs."""
        total = self._empty_gradient()
        first = not self.u
        for number, piece in enumerate(self.passes.pieces.pass_over("gradient")):

            def probe(f: Tensor, number: int = number, piece: LabelledPiece = piece) -> Tensor:
                if first:
                    self._keep(piece, f, f)
                return score(piece.labels.likelihood, self.u[number], piece.labels.y) * target.data_weight

            self.passes.pull(piece, probe, total)
        self.products += 0.5
        return self._with_prior(target, total)

    def _keep(self, piece: LabelledPiece, f: Tensor, u: Tensor) -> None:
        """An example's outputs, and its share of the facts."""
        self.pieces.append(replace(piece, inputs=()))
        self.u.append(u.clone() if u is f else u)  # f may be the network's own memory
        add_facts(self.facts, piece, f)

    def refresh(self) -> None:
        """The outputs of the linear model from the weights themselves: one product with J."""
        first = not self.u
        for number, piece in enumerate(self.passes.pieces.pass_over("outputs")):
            f, pushed = self.passes.push(piece, self.e)
            if first:
                self._keep(piece, f, f + pushed)
            else:
                self.u[number] = f + pushed
        self.products += 0.5
        self.old = 0

    def energy(self) -> float:
        """Energy of the linear model, at noise precision 1."""
        return self._energies()[0]

    def _energies(self) -> tuple[float, float]:
        """Summed, and the sum of their sizes."""
        total = torch.zeros(2, dtype=torch.float64, device=self.e.device)
        for piece, u in zip(self.pieces, self.u, strict=True):
            total += energy_and_size(piece.labels.energy(u))
        energy, size = total.tolist()
        return energy, size

    def _loss(self, target: Target) -> tuple[float, float]:
        """The loss, and how far rounding takes it."""
        energy, size = self._energies()
        half = target.products(self.e, ())[0]
        return target.data_weight * energy + half, rounding(target.data_weight * size + half, self.u[0].dtype)

    def _advance(self, target: Target, z: Tensor, squared: float, slack: float) -> float:
        """To the least loss over z, the last step and the directions: one product with J; says what it gained."""
        q = [self.passes.push(piece, z)[1] for piece in self.passes.pieces.pass_over("product")]
        self.products += 0.5
        vectors = [z] if self.d is None else [z, self.d]
        outputs = [q] if self.d is None else [q, self.w]
        half, linear, gram = self._products(target, vectors)
        number = len(linear)
        stiff = [self.directions.outputs(index) for index in range(len(self.pieces))]

        def along(c: Tensor, second: bool) -> Tensor:
            parts = [
                energy_terms(piece.labels.likelihood, u, moves, piece.labels.y, c, more, second)
                for piece, u, more, *moves in zip(self.pieces, self.u, stiff, *outputs, strict=True)
            ]
            return target.data_weight * torch.stack(parts).sum(0).cpu()

        def terms(c: Tensor) -> Terms:
            total = along(c, False)
            value = float(total[0]) + half + float(linear @ c + 0.5 * c @ gram @ c)

            def curve() -> Tensor:
                hessian = along(c, True)[1 + number :].reshape(number, number)
                return 0.5 * (hessian + hessian.T) + gram

            return Terms(value, total[1:] + linear + gram @ c, curve)

        c, first, last = descend(terms, number, slack)
        if self.d is None:
            check_transpose(float(first.gradient[0]), squared, float(linear[0]), self.e.dtype)
        numbers, others = c[: len(vectors)].tolist(), c[len(vectors) :]
        d = self._turn(z, numbers)
        self.w = combine(outputs, numbers)
        if len(others):
            self.directions.add_to(d, others, target)
            for move, more in zip(self.w, stiff, strict=True):
                weights = others.to(move).split([len(each) for each in more])
                with use_rounding("ieee"):
                    for directions, weight in zip(more, weights, strict=True):
                        move += (weight @ directions.flatten(1)).view_as(move)
        self.e += d
        for index, move in enumerate(self.w):
            self.u[index] += move
        self.old += 1
        if self.old >= REFRESH:
            self.refresh()
        return first.value - last.value

    def _products(self, target: Target, vectors: list[Tensor]) -> tuple[float, Tensor, Tensor]:
        """As of the target, with the known directions after the vectors."""
        half, linear, gram = target.products(self.e, vectors)
        if not len(self.directions):
            return half, linear, gram
        with_pull = self.directions.coordinates(target, partial(target.pull, self.e))
        weighted = [partial(target.weigh, vector) for vector in vectors]
        across = torch.stack([self.directions.coordinates(target, vector) for vector in weighted])
        if self.gram is None or self.gram[0] is not target:
            self.gram = target, self.directions.gram(target)
        lower = torch.cat([across.T, self.gram[1]], 1)
        return half, torch.cat([linear, with_pull]), torch.cat([torch.cat([gram, across], 1), lower])


def combine(outputs: list[list[Tensor]], numbers: list[float]) -> list[Tensor]:
    """`c_i v_i`, piece by piece; the vectors are used up."""
    sums = [total.mul_(numbers[0]) for total in outputs[0]]
    for more, number in zip(outputs[1:], numbers[1:], strict=True):
        for total, other in zip(sums, more, strict=True):
            total.add_(other, alpha=number)
    return sums
