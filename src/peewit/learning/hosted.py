"""A learner inside a training loop of another library: when it steps, and state that waits for it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..likelihoods import Likelihood
from ..messages.arguments import is_count
from ..messages.errors import PeewitError
from ..messages.names import check_name
from ..network.calling import output_in
from .learner import Learner, set_loss_factor
from .losses import factor_between, gradient, mean_energy
from .records import History, LearningRecord

FIXED = ("self", "model", "data", "likelihood", "optimizer")  # of a learner: not options of what hosts one
OPTIONS = tuple(name for name in inspect.signature(Learner).parameters if name not in FIXED)
READ = "give loss=, a function of outputs and targets or a factor of the mean energy per example"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """When hyper-steps are due, in epochs or in steps of training."""

    every: int
    burn_in: int | None  # None: a tenth of the run

    def __post_init__(self) -> None:
        if not is_count(self.every):
            raise PeewitError(f"every={self.every!r} was given; expected a positive whole number.")
        if self.burn_in is not None and self.burn_in != 0 and not is_count(self.burn_in):
            raise PeewitError(f"burn_in={self.burn_in!r} was given; expected a whole number that is not negative.")

    def due(self, number: int, total: int) -> bool:
        """After so many of `total`, which is not positive where it is unknown."""
        first = max(-(-total // 10), 0) if self.burn_in is None else self.burn_in
        return number >= first and number % self.every == 0


@dataclass(eq=False, kw_only=True)
class HostedLearner:
    """A learner that comes and goes with runs of another library's loop."""

    schedule: Schedule
    options: Mapping[str, Any]
    learner: Learner | None = None
    stepped_at: int = -1  # the number of optimizer's steps at the last hyper-step
    waiting: Mapping[str, Any] | None = field(default=None, repr=False)  # for the learner of the next run
    continues: bool = False  # whether the learner goes on from an earlier one, whose loss is known

    def __post_init__(self) -> None:
        for name in self.options:
            check_name(name, OPTIONS, "option")

    @property
    def history(self) -> History:
        """All records; none before the run has begun."""
        return History() if self.learner is None else self.learner.history

    def begin(self, resumed: bool, *args: Any, **kwargs: Any) -> Learner:
        """Make the learner; of a run that resumes, it goes on from the state that waits, or from the learner before."""
        state, self.waiting = self.waiting, None
        if state is None and self.learner is not None:
            state = self.state_dict()
        self.end()
        self.learner = Learner(*args, **kwargs)
        self.stepped_at, self.continues = -1, resumed and state is not None
        if self.continues and state is not None:
            try:
                self.learner.load_state_dict(state["learner"])
            except BaseException:
                self.end()
                raise
            set_loss_factor(self.learner, state["loss_factor"])
            self.stepped_at = state["stepped_at"]
        return self.learner

    def step(self, at: int, epoch: int) -> LearningRecord | None:
        """A hyper-step after so many steps of the optimizer, unless there was one already."""
        if self.learner is None or at == self.stepped_at:
            return None
        record = self.learner.step(epoch=epoch)
        self.stepped_at = at
        return record

    def end(self) -> None:
        """Training is over, or failed: the optimizer's steps are plain again. The learner stays for questions."""
        if self.learner is not None:
            self.learner.detach()

    def state_dict(self) -> dict[str, Any]:
        """What the learner has learnt, and when it stepped; nothing before it was made."""
        if self.learner is None:
            return dict(self.waiting or {})
        factor = self.learner.loss_factor
        return {"learner": self.learner.state_dict(), "stepped_at": self.stepped_at, "loss_factor": factor}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep it for the learner of the next run."""
        self.waiting = dict(state) or None

    def present(self, begin: str) -> Learner:
        """The learner, where there is one; `begin` says in words how to get there."""
        if self.learner is None:
            raise PeewitError(f"There is no learner before training begins: {begin}")
        return self.learner


@dataclass(eq=False)
class LossReading:
    """Reads the loss of one training step beside the outputs that it is computed from."""

    network: nn.Module
    outputs: list[Tensor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.handle = self.network.register_forward_hook(self._note)

    def _note(self, network: nn.Module, args: Any, result: Any) -> None:
        if torch.is_grad_enabled():
            self.outputs.append(output_in(result))

    def factor(self, loss: Tensor, targets: Tensor, likelihood: Likelihood) -> float:
        """The factor c of `loss = c * mean energy per example`."""
        self.handle.remove()
        if len(self.outputs) != 1:
            raise PeewitError(
                f"The network ran {len(self.outputs)} times in a training step, so that its loss cannot be "
                f"compared with the energy; expected one run. Say which network it is, or {READ}."
            )
        return factor_of(loss, self.outputs.pop(), targets, likelihood)


def factor_of(loss: Tensor, outputs: Tensor, targets: Tensor, likelihood: Likelihood) -> float:
    """The factor c of `loss = c * mean energy per example`, from gradients at the outputs, to which the loss leads."""
    (slope,) = torch.autograd.grad(loss, outputs, retain_graph=True, allow_unused=True)
    if slope is None:
        raise PeewitError(f"The loss of training does not depend on the outputs of the network; {READ}.")
    ours = gradient(lambda f: mean_energy(likelihood, f, targets), outputs.detach())
    return factor_between(slope.double(), ours, likelihood, len(targets), outputs.dtype)
