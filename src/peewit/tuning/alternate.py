"""Prior precisions and noise by the evidence at the mode of the linear model: the mode, then the precisions, in turn.

At a mode that belongs to its precisions the partial derivative of the evidence is the total one, so both meet at a
maximum of the evidence itself. A turn takes the mode, then either MacKay's update, or Newton's step on the evidence
with the mode's answer to it by the fitted posterior, `d theta_lin / d log delta_g = - P^-1 Lambda_g (theta_lin - mu)`.
The mode answers more strongly than that says, so groups that keep their direction go further with every turn.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..linear_model.find import check_data, linear_mode_of, open_solver
from ..linear_model.objective import Target, chunks
from ..linear_model.solver import Solver
from ..linear_model.stopping import SolverLog
from ..linear_model.streaming import StreamingSolver
from ..posterior.trace import Trace, TuningStep
from ..priors.prior import Number, Prior
from .ascent import TuningRange, gradient_of, hyperparameters_of, mackay, vector
from .by_evidence import OFF, bounds, complaints, noise_at_its_limit, noise_of, posterior_at
from .options import TuningSettings
from .profile import EvidencePoint, Hyperparameters, Profile, profile_of
from .steps import LOOSE, Pace, exactness, newton, prior_dominated, switched_off

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

SOLVE = 9  # steps that a turn takes towards the mode at most, less than ten products: the next goes on from there
TIGHT = 1e-3  # that share at least: it is halved by turns that do not come nearer
LONGEST, CAREFUL = 3.0, 1.5  # the longest step in a logarithm; and where the mode is not yet near its own


@dataclass(eq=False, kw_only=True)
class Turns:
    """One posterior and its data, with all that goes from one turn to the next."""

    la: PosteriorState
    settings: TuningSettings
    solver: Solver | StreamingSolver
    profile: Profile  # at the trained weights
    allowed: TuningRange
    off: Tensor  # (groups,) booleans: switched off, and left
    log: SolverLog = field(default_factory=SolverLog)
    steps: list[TuningStep] = field(default_factory=list)
    pace: Pace = field(default_factory=Pace)

    def at(self, hyperparameters: Hyperparameters) -> PosteriorState:
        """The posterior at some precisions and noise."""
        return replace(posterior_at(self.la, self.profile, hyperparameters, self.settings), linear_mode=None)

    def mode(self, hyperparameters: Hyperparameters, tolerance: float) -> tuple[Profile, Tensor]:
        """The evidence as a function of precisions and noise at the mode of the linear model that these have.

        And (groups,) how strongly the mode answers: `c_g = sum_g v P^-1 v` with `v = Lambda (theta_lin - mu)`.
        """
        target = Target.of(self.at(hyperparameters))
        self.log.extend(self.solver.solve(target, tolerance, SOLVE))
        prior, space = self.profile.prior, self.la.space
        groups, e = prior.stretches(space), self.solver.e
        room = torch.zeros_like(e)  # one vector for both
        target.add_gradient(e, room)
        target.precondition(room)
        for chosen in chunks(len(e)):
            room[chosen] *= target.pull(e, chosen)
        answers = groups.sums(room)
        for chosen in chunks(len(e)):
            torch.square(target.residual(e, chosen), out=room[chosen])
        if prior.base is not None:
            room *= prior.base.to(room)
        squares = groups.sums(room)
        problem = self.profile.problem
        totals = replace(problem.totals, energy=self.solver.energy(), rest=self.solver.facts.rest)
        return replace(self.profile, problem=replace(problem, totals=totals), squares=squares), answers

    def note(self, point: EvidencePoint) -> None:
        """One turn: the evidence where precisions and mode belong together."""
        hyperparameters, log = point.hyperparameters, self.log
        noise = noise_of(self.la, hyperparameters.noise)
        self.steps.append(
            TuningStep(
                value=point.value,
                precision=hyperparameters.log_precision.exp(),
                noise=noise,
                temperature=self.la.temperature,
                gamma=point.gamma,
                decrement=log.decrements[-1],
                gradient=log.gradients[-1],
                products=log.passes[-1],
            )
        )

    def better(self, profile: Profile, point: EvidencePoint, answers: Tensor) -> tuple[Tensor, float]:
        """(groups + 1,): precisions and noise that raise the evidence; and how far they are, paced or not."""
        z, allowed = vector(point.hyperparameters), self.range()
        update = mackay(profile, allowed, point)
        step = update - z
        if self.settings.method == "evidence":
            gradient = gradient_of(profile, point)
            step = newton(profile, point, answers, gradient, allowed.open(z, gradient))
            # Where the evidence is not concave it goes on uphill all the same.
            step = torch.where(torch.isfinite(step), step, 2 * (update - z)).clamp(-LONGEST, LONGEST)
        near = self.log.left <= exactness(point.gamma, allowed.free, LOOSE)
        longest = LONGEST if near else CAREFUL
        fallen, gone = prior_dominated(point, answers, self.pace.steady), (2 * point.gamma / OFF).log().clamp(min=1.0)

        def move(step: Tensor) -> Tensor:
            change = torch.cat([torch.where(fallen, gone, step[:-1]), step[-1:]]).clamp(-longest, longest)
            return allowed.clip(torch.where(allowed.free, z + change, z))

        plain, paced = move(step), move(self.pace.of(step))
        return paced, float(torch.stack([plain - z, paced - z]).abs().max())

    def range(self) -> TuningRange:
        """What may still change, and how far."""
        open_ = torch.cat([~self.off, torch.ones(1, dtype=torch.bool, device="cpu")])
        return replace(self.allowed, free=self.allowed.free & open_)


def from_weights(profile: Profile, settings: TuningSettings) -> Profile:
    """Under `delta_g = P_g / |theta_g - mu_g|^2`, which makes the turns covariant under a rescaling of the weights."""
    precision = profile.sizes.double() / profile.squares
    low, high = settings.ends
    good = torch.isfinite(precision) & (precision > 0) & ~profile.flat
    current = profile.prior.precision
    start = torch.where(good, precision.clamp(low, high), current)
    return replace(profile, prior=profile.prior.with_precision(start))


def alternate(la: PosteriorState, settings: TuningSettings, start: Prior | Number | None) -> PosteriorState:
    """Mode and precisions in turn until neither moves."""
    profile = profile_of(replace(la, linear_mode=None).problem, la.prior)
    if settings.prior and start is None:
        profile = from_weights(profile, settings)
        la = replace(la, prior=profile.prior)
    allowed, without = bounds(la, settings, profile)
    with open_solver(la, settings.train, settings.passing.memory, settings.passing.progress) as solver:
        turns = Turns(
            la=la, settings=settings, solver=solver, profile=profile, allowed=allowed, off=torch.zeros_like(without)
        )
        hyperparameters, stopped, converged = take_turns(turns)
        last = turns.at(hyperparameters)
        linear_mode = linear_mode_of(solver, Target.of(last), replace(turns.log, converged=converged, stopped=stopped))
    gamma = turns.steps[-1].gamma
    assert gamma is not None
    names = profile.prior.names(la.space)
    free = torch.cat([allowed.free[:-1], torch.ones(1, dtype=torch.bool, device="cpu")])
    warnings = complaints(names, hyperparameters, gamma, free, without, settings) + noise_at_its_limit(
        la, hyperparameters, settings
    )
    if not converged:
        warnings.append(f"Tuning did not converge: {stopped}.")
    trace = Trace.of(settings.method, "log evidence", names, turns.steps, stopped, converged, warnings)
    return replace(last, linear_mode=linear_mode, trace=trace)


def take_turns(turns: Turns) -> tuple[Hyperparameters, str, bool]:
    """The turns; where it ends precisions and mode belong together."""
    settings = turns.settings
    hyperparameters = hyperparameters_of(turns.allowed.clip(vector(turns.profile.start())))
    gamma, moved, share = turns.profile.at(hyperparameters).gamma, 1.0, 1.0
    best: Tensor | None = None  # the last hyperparameters that were kept, and their value
    value = -math.inf
    for _ in range(settings.steps):
        profile, answers = turns.mode(hyperparameters, exactness(gamma, turns.range().free, share * moved))
        point, z = profile.at(hyperparameters), vector(hyperparameters)
        if best is None:
            check_data(turns.la, turns.solver.facts)
            if not point.finite:
                turns.at(hyperparameters).log_evidence()  # says what is wrong
        elif not point.value >= value - turns.log.left - turns.log.slack - 1e-12 * abs(value):
            # Too far: ever shorter turns, and the next ones at a slower pace.
            turns.pace.slow()
            hyperparameters = hyperparameters_of(best + 0.5 * (z - best))
            continue
        turns.note(point)
        gamma = point.gamma
        turns.off |= switched_off(point) & turns.allowed.free[:-1]
        best, value, before = z, point.value, moved
        following, moved = turns.better(profile, point, answers)
        if moved > 0.5 * before:  # steps that do not shrink may be those of an inexact mode
            share = max(0.5 * share, TIGHT)
        near = turns.log.converged or turns.log.left <= exactness(gamma, turns.range().free, settings.tolerance)
        if near and moved <= settings.tolerance:
            return hyperparameters, f"the next turn would change no logarithm by more than {settings.tolerance:g}", True
        hyperparameters = hyperparameters_of(following)
    if best is not None:  # the last ones that were kept, not some that are yet to be tried
        hyperparameters = hyperparameters_of(best)
    turns.note(turns.mode(hyperparameters, exactness(gamma, turns.range().free, share * moved))[0].at(hyperparameters))
    return hyperparameters, f"{settings.steps} turns were not enough", False
