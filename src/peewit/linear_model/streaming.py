"""The solver for data whose outputs do not fit into memory: every pass computes them again, in any order.

It knows the loss in the plane of two directions to second order only. Where the next pass finds that a step did not
lower the loss, the step is halved.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..likelihoods import score
from .objective import Target, norm
from .plane import Terms, energy_terms
from .stopping import SolverLog, Stopping, add_facts, check_finite, check_transpose, energy_and_size, rounding
from .walk import Walk

HALVINGS = 30


@dataclass(eq=False, kw_only=True)
class StreamingSolver(Walk):
    """With nothing kept that is as large as the data."""

    last: float = math.nan  # the energy found by the last pass
    slack: float = 0.0  # the rounding of the loss

    def solve(self, target: Target, tolerance: float, steps: int) -> SolverLog:
        """Walk downhill until the decrement is below the tolerance, or for so many steps."""
        log, stopping, before = SolverLog(), Stopping(tolerance=tolerance), math.inf
        for step in range(steps + 1):
            loss, g = self._accept(target, before, stopping.slack)
            stopping.gain = before - loss if step else 0.0
            stopping.slack = self.slack
            before, length = loss, norm(g)
            squared = target.precondition(g)  # g is now the direction
            check_finite(squared, loss)
            log.note(loss, 0.5 * squared, length, self.products)
            if stopping.ends(0.5 * squared, log):
                return log
            if step < steps:
                self._advance(target, g, squared)
        log.stopped = f"{steps} steps were not enough"
        return log

    def energy(self) -> float:
        """Energy of the linear model, at noise precision 1."""
        return self.last

    def refresh(self) -> None:
        """Nothing to do: no outputs are kept."""

    def _accept(self, target: Target, before: float, slack: float) -> tuple[float, Tensor]:
        """Loss and gradient where the last step led, or at the longest piece of it that lowers the loss."""
        for _ in range(HALVINGS):
            loss, g = self._pass(target)
            if self.d is None or before == math.inf or loss <= before + slack:
                return loss, g
            del g
            self.d.mul_(0.5)
            self.e -= self.d
        assert self.d is not None
        self.e -= self.d  # back to where it came from
        self.d = None
        return self._pass(target)

    def _pass(self, target: Target) -> tuple[float, Tensor]:
        """Loss and gradient (D,): one product with J and one with J^T."""
        total = self._empty_gradient()
        first = not self.facts.examples
        energy = torch.zeros(2, dtype=torch.float64, device=self.e.device)
        for piece in self.passes.pieces.pass_over("gradient"):
            f, pushed = self.passes.push(piece, self.e)
            if first:
                add_facts(self.facts, piece, f)
            u = f + pushed
            energy += energy_and_size(piece.labels.energy(u))
            probe = score(piece.labels.likelihood, u, piece.labels.y) * target.data_weight
            self.passes.pull(piece, functools.partial(ignore_outputs, probe), total)
        self.products += 1.0
        g = self._with_prior(target, total)
        self.last, size = energy.tolist()
        half = target.products(self.e, ())[0]
        self.slack = rounding(target.data_weight * size + half, self.e.dtype)
        loss = target.data_weight * self.last + half
        return (loss if math.isfinite(loss) else math.inf), g

    def _advance(self, target: Target, z: Tensor, squared: float) -> None:
        """Newton's step in the plane of z and the last direction, by one pass."""
        vectors = [z] if self.d is None else [z, self.d]
        number = len(vectors)
        zero = torch.zeros(number, dtype=torch.float64, device="cpu")
        total = torch.zeros(1 + number + number * number, dtype=torch.float64, device=self.e.device)
        for piece in self.passes.pieces.pass_over("product"):
            f, pushed = self.passes.push(piece, self.e)
            along = [self.passes.push(piece, vector)[1] for vector in vectors]
            total += energy_terms(piece.labels.likelihood, f + pushed, along, piece.labels.y, zero)
        self.products += 0.5 * (1 + number)
        _, linear, gram = target.products(self.e, vectors)
        sums = target.data_weight * total.cpu()
        hessian = sums[1 + number :].reshape(number, number)
        terms = Terms(0.0, sums[1 : 1 + number] + linear, lambda: 0.5 * (hessian + hessian.T) + gram)
        if self.d is None:
            check_transpose(float(terms.gradient[0]), squared, float(linear[0]), self.e.dtype)
        numbers = terms.step().tolist()
        self.e += self._turn(z, numbers)


def ignore_outputs(probe: Tensor, f: Tensor) -> Tensor:
    """A probe that is known before the outputs are."""
    return probe
