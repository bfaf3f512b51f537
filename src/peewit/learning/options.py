"""Options of a learner, checked before any work is done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import torch
from torch import nn

from ..curvature.contracts import Structure
from ..curvature.kinds import Auto, CurvatureKind, Hessian
from ..likelihoods import Likelihood, WithNoise
from ..messages.arguments import is_count
from ..messages.errors import ArgumentTypeError, PeewitError
from ..messages.names import check_name
from ..priors.prior import Prior
from ..runtime.arithmetic import ArithmeticName
from ..tracing.selection import Weights
from ..weights.space import Space

LearntParameter: TypeAlias = Literal["prior", "noise"]
"""What a learner may change."""
LEARNT: tuple[LearntParameter, ...] = get_args(LearntParameter)
Rate: TypeAlias = float | Callable[[int], float]
"""A learning rate, or a function that returns it for the number of steps taken so far."""


@dataclass(frozen=True, kw_only=True)
class Measuring:
    """How the curvature is measured, again and again."""

    weights: Weights
    structure: Structure
    curvature: CurvatureKind | Hessian | Auto
    share: float  # of the data
    running: float  # what earlier sums count beside new ones
    memory: float | None
    arithmetic: ArithmeticName
    seed: int


@dataclass(frozen=True, kw_only=True)
class Ascending:
    """How hyperparameters climb the evidence with the curvature held."""

    prior: bool  # whether it is learnt
    noise: bool
    steps: int
    rate: Rate

    def rate_at(self, number: int) -> float:
        """The learning rate after so many steps."""
        value = self.rate(number) if callable(self.rate) else self.rate
        return check_rate(value, f"rate({number})" if callable(self.rate) else "rate")


def check_rate(value: Any, what: str) -> float:
    """A learning rate is finite and not negative; zero leaves everything as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise PeewitError(f"{what}={value!r}: expected a finite number that is not negative.")
    return float(value)


def cosine(start: float, end: float, steps: int) -> Callable[[int], float]:
    """A schedule for `rate=`: from one learning rate to another along half a cosine.

    Args:
        start: The learning rate of the first step.
        end: That of all steps from number `steps` on.
        steps: How many steps the way takes, those of all hyper-steps together.

    Returns:
        A function of the number of steps taken so far.

    Raises:
        PeewitError: A rate is negative, or `steps` is not a positive whole number.

    Example:
        >>> rate = pw.learning.cosine(0.1, 0.001, 100)
        >>> rate(0), round(rate(50), 4), rate(100)
        (0.1, 0.0505, 0.001)
    """
    first, last = check_rate(start, "start"), check_rate(end, "end")
    if not is_count(steps):
        raise PeewitError(f"steps={steps!r} was given; expected a positive whole number.")

    def rate(number: int) -> float:
        turn = math.cos(math.pi * min(number, steps) / steps)
        return last + (first - last) * (1 + turn) / 2

    return rate


def ascending(parameters: Iterable[str] | None, likelihood: Likelihood, steps: int, rate: Rate) -> Ascending:
    """Which hyperparameters are learnt, and how."""
    noisy = isinstance(likelihood, WithNoise)
    if isinstance(parameters, str):
        parameters = [parameters]
    names = list(LEARNT if parameters is None else parameters)
    for name in names:
        check_name(name, LEARNT, "parameters")
    if parameters is not None and "noise" in names and not noisy:
        raise PeewitError(f"parameters={names!r} has 'noise', and {type(likelihood).__name__} has no noise.")
    if not is_count(steps):
        raise PeewitError(f"steps={steps!r} was given; expected a positive whole number.")
    if not callable(rate):
        check_rate(rate, "rate")
    return Ascending(prior="prior" in names, noise="noise" in names and noisy, steps=steps, rate=rate)


def check_share(share: Any, running: Any) -> None:
    """A share is above 0 and at most 1; what earlier sums count is from 0 up to, but not, 1."""
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise PeewitError(f"share={share!r} was given; expected a number above 0, and at most 1 for all data.")
    if isinstance(running, bool) or not isinstance(running, int | float) or not 0 <= running < 1:
        raise PeewitError(f"running={running!r} was given; expected a number from 0, for no memory, to below 1.")


def refuse_kept_bases(measuring: Measuring) -> None:
    """Refuse sums along eigenvectors of weights that training has long left."""
    if measuring.running and measuring.structure.keeps_bases:
        raise PeewitError(
            f"running={measuring.running} with structure={type(measuring.structure).__name__}, which would keep the "
            "eigenvectors of the first step; use structure='kron', or running=0."
        )


PARALLEL = (
    "Hyperparameters cannot be learnt under DistributedDataParallel or FSDP yet: every process would see its own part "
    "of the data alone. Train in one process, or fit and tune after training."
)


def refuse_parallel(model: nn.Module) -> None:
    """Refuse training over several processes: each would learn from its own part of the data alone."""
    wrapped = isinstance(model, nn.parallel.DistributedDataParallel) or type(model).__name__.startswith(
        ("FullyShardedDataParallel", "FSDP")
    )
    sharded = any(type(parameter).__name__ == "DTensor" for parameter in model.parameters())
    several = torch.distributed.is_available() and torch.distributed.is_initialized()
    if wrapped or sharded or (several and torch.distributed.get_world_size() > 1):
        raise PeewitError(PARALLEL)


def check_space(space: Space, prior: Prior) -> None:
    """Refuse what cannot change as training goes on."""
    if space.mask is not None:
        raise PeewitError(
            "weights= selects single elements of a tensor, and a prior that is learnt holds whole tensors; use names "
            "of parameters, 'all', 'last_layer' or 'lora'."
        )
    if prior.grouping.by_curvature:
        raise PeewitError(
            "Prior.g_prior takes its ratios from the curvature, which changes as the network trains; use "
            "Prior.scalar, layerwise, unitwise, inputwise or diagonal."
        )


def check_stepped(scheduler: Any) -> tuple[Any, ...]:
    """Schedulers: one, several or none."""
    several = tuple(scheduler) if isinstance(scheduler, list | tuple) else () if scheduler is None else (scheduler,)
    for each in several:
        if not hasattr(each, "step") or not hasattr(each, "state_dict"):
            raise ArgumentTypeError(
                f"scheduler is a {type(each).__name__}; expected a scheduler of torch.optim.lr_scheduler, or a list."
            )
    return several
