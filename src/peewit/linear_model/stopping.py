"""When the solver stops, and its log."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..curvature.pieces import LabelledPiece
from ..messages.errors import PeewitError

ROUNDING = 1e3  # of the loss's own rounding: decrements below it are as good as none
EXACT = 1e-3  # the share of the tolerance below which a decrement is believed
WINDOWS = (1, 2, 5)  # steps over which gains are added up to see how they fall
RECENT = 3  # steps whose gains are compared with what was expected of them
SLOWEST = 0.95  # the least that gains are taken to fall by from one such sum to the next
STALE = 5  # steps without a better gradient, once rounding hides what they gain
MORE = 10  # directions that are added at a time, for as many products with J
ENDLESS = 1e30  # decrements over the loss that no loss with a minimum has


@dataclass(kw_only=True)
class SolverLog:
    """One entry for each gradient that the solver took."""

    losses: list[float] = field(default_factory=list)
    decrements: list[float] = field(default_factory=list)
    gradients: list[float] = field(default_factory=list)
    passes: list[float] = field(default_factory=list)
    stopped: str = ""
    converged: bool = False
    left: float = math.inf  # nats to the minimum, about
    slack: float = 0.0  # and how far rounding takes the loss

    def note(self, loss: float, decrement: float, gradient: float, products: float) -> None:
        """Note one gradient."""
        self.losses.append(loss)
        self.decrements.append(decrement)
        self.gradients.append(gradient)
        self.passes.append(products)

    def extend(self, other: SolverLog) -> None:
        """Append a later log."""
        for name in ("losses", "decrements", "gradients", "passes"):
            getattr(self, name).extend(getattr(other, name))
        self.stopped, self.converged = other.stopped, other.converged
        self.left, self.slack = other.left, other.slack


@dataclass
class DataFacts:
    """What the first pass says of the data."""

    examples: int = 0
    energy: float = 0.0  # of the network itself
    rest: float = 0.0


@dataclass(kw_only=True)
class Stopping:
    """When to stop: little is left to gain, or rounding hides all that is left.

    What is left is the decrement, times the most that one of the last steps gained over its own where that was more:
    the preconditioner may think too much of the curvature. Or it is what further steps gain if gains go on to fall as
    they do.
    """

    tolerance: float
    slack: float = 0.0
    gain: float = 0.0  # of the last step
    before: float = 0.0  # the decrement then
    best: float = math.inf
    stale: int = 0
    gains: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)  # of gains in the decrements before them

    def remaining(self, decrement: float) -> float:
        """Nats to the minimum, about."""
        nats = decrement * max([1.0, *self.shares[-RECENT:]])
        if decrement <= EXACT * self.tolerance or len(self.gains) < 2:
            return nats
        return max(nats, *(self.ahead(window) for window in WINDOWS if 2 * window <= len(self.gains)))

    def ahead(self, window: int) -> float:
        """Nats still to gain if gains keep falling as their last two sums over `window` steps did."""
        last, earlier = sum(self.gains[-window:]), sum(self.gains[-2 * window : -window])
        if last <= window * self.slack:
            return 0.0
        rate = min(last / earlier, SLOWEST) if earlier > 0 else SLOWEST
        return last * rate / (1 - rate)

    def ends(self, decrement: float, log: SolverLog) -> bool:
        """Whether to stop; the log then says why."""
        if self.before > 0:
            self.gains.append(self.gain)
            self.shares.append(self.gain / self.before if self.gain > self.slack else 1.0)
        log.left, log.slack = self.remaining(decrement), self.slack
        self.before = decrement
        if log.left <= self.tolerance:
            log.converged, log.stopped = True, f"at most {self.tolerance:g} nats are left"
            return True
        self.stale = self.stale + 1 if self.gain <= self.slack and decrement > 0.5 * self.best else 0
        self.best = min(self.best, decrement)
        if self.stale >= STALE:
            log.converged = decrement <= max(self.tolerance, ROUNDING * self.slack)
            log.stopped = "no step lowers the loss beyond rounding"
        return self.stale >= STALE


def add_facts(facts: DataFacts, piece: LabelledPiece, f: Tensor) -> None:
    """Add an example's share to the facts."""
    facts.examples += len(f)
    facts.energy += float(piece.labels.energy(f).sum(dtype=torch.float64))
    facts.rest += float(piece.labels.likelihood.rest(piece.labels.y))


def energy_and_size(energy: Tensor) -> Tensor:
    """(2,): the sum of energies (N,), and of their sizes, in float64."""
    return torch.stack([energy.sum(dtype=torch.float64), energy.abs().sum(dtype=torch.float64)])


def rounding(size: float, dtype: torch.dtype) -> float:
    """How far two evaluations of the same sum may be apart."""
    return 4 * torch.finfo(dtype).eps * size


def check_finite(squared: float, loss: float) -> None:
    """Refuse gradients and losses that are not finite, or on their way there."""
    if not squared <= ENDLESS * (1 + abs(loss)) or not math.isfinite(loss):
        raise PeewitError(
            f"The linear model's loss is {loss:g} and its squared gradient {squared:g}; expected finite numbers. Use a "
            "larger prior precision, or a network in float64. A likelihood that is not convex in its outputs (a "
            "variance among them) may have no minimum."
        )


def check_transpose(forward: float, backward: float, prior: float, dtype: torch.dtype) -> None:
    """Refuse passes that are not over the same data and network: `g^T z` must be the same by J and by J^T."""
    size = abs(forward - prior) + abs(backward - prior) + abs(prior)
    if abs(forward - backward) > max(1e-2, 1e3 * torch.finfo(dtype).eps) * size:
        raise PeewitError(
            f"A derivative of the linear model's loss is {forward:.6g} in one pass and {backward:.6g} in another; "
            "expected the same. The data must come in the same order with the same values in every pass, and the "
            "network must give the same outputs every time (dropout that is on in evaluation mode?)."
        )
