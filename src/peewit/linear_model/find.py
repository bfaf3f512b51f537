"""Finds the mode of the linear model from a posterior and its training data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ..curvature.totals import differ
from ..messages.arguments import is_count
from ..messages.errors import PeewitError
from ..messages.warnings import TuningWarning, warn
from ..posterior.linear_mode import LinearMode
from ..posterior.network import network_of
from ..runtime.progress import Progress
from .data import keep_order, room
from .objective import Target
from .passes import Passes
from .sketch import SketchPlan
from .solver import PATIENCE, Solver
from .stiff_directions import MOST
from .stopping import DataFacts, SolverLog
from .streaming import StreamingSolver

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

TOLERANCE = 1e-2  # nats
STEPS = 200


def check_options(tolerance: Any, steps: Any) -> None:
    """Refuse a tolerance or a number of steps that cannot be used."""
    good = isinstance(tolerance, int | float) and not isinstance(tolerance, bool) and math.isfinite(tolerance)
    if not good or tolerance <= 0:
        raise PeewitError(f"tolerance={tolerance!r}: expected a positive number of nats, such as 0.01.")
    if not is_count(steps):
        raise PeewitError(f"steps={steps!r}: expected a positive whole number.")


@contextmanager
def open_solver(
    la: PosteriorState, data: Any, memory: float | None, progress: bool, spare: int = 0
) -> Iterator[Solver | StreamingSolver]:
    """A solver on the data, which starts where the posterior's last linear mode was, if it has one."""
    network = network_of(la, memory)
    device = la.weights.device
    examples = keep_order(data, la.model, memory)
    bar = Progress(progress)
    passes = Passes(network, la.likelihood, examples.batches, la.totals.form, bar)
    e = torch.zeros_like(la.weights) if la.linear_mode is None else la.linear_mode.displacement.to(la.weights).clone()
    assert la.totals.form is not None
    numbers = la.N * math.prod(la.totals.form.shape)
    itemsize = torch.promote_types(network.selected[0].dtype, torch.float32).itemsize
    spare_vectors = room(memory, device) // (numbers * itemsize) - 3  # of all outputs, beyond those that are needed
    outputs_fit = examples.ordered and spare_vectors >= 0
    # In half precision products with J are wrong by more than what directions make of them.
    exact = all(weight.dtype.itemsize >= 4 for weight in network.selected)
    with closing(bar), passes.isolated():
        if not outputs_fit:
            yield StreamingSolver(passes=passes, e=e)
            return
        most = min(MOST, spare_vectors // 2) if exact else 0
        plan = SketchPlan.of(la, network, examples.batches, spare_vectors * numbers * itemsize) if exact else None
        yield Solver(passes=passes, e=e, most=most, spare=spare, plan=plan)


def find(
    la: PosteriorState, data: Any, tolerance: float, steps: int, memory: float | None, progress: bool
) -> PosteriorState:
    """The posterior with the mode of its linear model under its prior."""
    check_options(tolerance, steps)
    target = Target.of(la)
    with open_solver(la, data, memory, progress, spare=PATIENCE) as solver:
        log = solver.solve(target, tolerance, steps)
        check_data(la, solver.facts)
        mode = linear_mode_of(solver, target, log)
    if not mode.converged:
        warn(
            f"The mode of the linear model was not reached: {mode.stopped}, and the loss is still about "
            f"{log.left:.3g} nats above its minimum; use more steps=, or a larger tolerance=.",
            TuningWarning,
        )
    return replace(la, linear_mode=mode, trace=None)


def linear_mode_of(solver: Solver | StreamingSolver, target: Target, log: SolverLog) -> LinearMode:
    """The linear mode that a solver has reached."""
    solver.refresh()
    return LinearMode(
        displacement=solver.e,
        energy=solver.energy(),
        rest=solver.facts.rest,
        prior=target.prior,
        noise_precision=target.noise_precision,
        temperature=target.temperature,
        losses=tuple(log.losses),
        decrements=tuple(log.decrements),
        gradients=tuple(log.gradients),
        passes=tuple(log.passes),
        products=solver.products,
        converged=log.converged,
        stopped=log.stopped,
    )


def check_data(la: PosteriorState, facts: DataFacts) -> None:
    """Refuse data of another size than those of the fit; warn where only the loss differs."""
    if facts.examples != la.N:
        raise PeewitError(
            f"data has {facts.examples} examples, and the posterior was fitted to {la.N}; expected the data that it "
            "was fitted to (all of it, after an update)."
        )
    check_energy(la, facts.energy)


def check_energy(la: PosteriorState, energy: float) -> None:
    """Warn where the network has another energy on this data than on the data of the fit."""
    weights = [la.model.get_parameter(name) for name in la.space.names]
    coarsest = max(weights, key=lambda weight: torch.finfo(weight.dtype).eps)
    if differ(la.totals.energy, energy, la.N, coarsest):
        warn(
            f"The network's energy is {energy:.6g} on this data and was {la.totals.energy:.6g} on the data it was "
            "fitted to: other data, or augmentations drawn anew? What is said here is of this data.",
            TuningWarning,
        )
