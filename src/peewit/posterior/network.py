"""A network with its uncertain weights, as questions about its outputs need it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from ..likelihoods import Form
from ..messages.arguments import refuse_inputs
from ..messages.errors import MismatchError, PeewitError
from ..network.batches import without_labels
from ..network.failures import refuse_axes
from ..network.finite import refuse_broken
from ..network.isolation import isolated
from ..network.nests import Inputs, count, map_tensors, take
from ..runtime.arithmetic import as_arithmetic
from ..runtime.memory import Budget, budget
from ..runtime.progress import Progress
from ..tracing.forward_mode import Push
from ..tracing.knowledge import Knowledge, KnowledgeLearner
from ..tracing.tape import Tape
from ..tracing.tracer import Tracer
from ..tracing.verification import is_awaited
from ..weights.space import Space
from .resolution import ill_conditioned
from .state import PosteriorState

EXACT_OUTPUTS = 256  # outputs per example up to which the covariance is exact, whatever the weights


class TooManyOutputs(Exception):
    """Raised where covariances would be too large, to switch to samples."""

    def __init__(self, outputs: int) -> None:
        super().__init__(f"{outputs} outputs per example")

    def refuse(self, joint: bool, create_graph: bool, instead: str) -> None:
        """Say so to the user where samples would not do, with what to use instead."""
        if joint or create_graph:
            which = "joint=True" if joint else "create_graph=True"
            raise PeewitError(f"{which} with {self}; expected at most {EXACT_OUTPUTS}. {instead}") from None


def is_exact(outputs: int, closed_form: bool = False) -> bool:
    """Whether covariances of so many outputs per example are exact: there are few, or they have a closed form."""
    return closed_form or outputs <= EXACT_OUTPUTS


def require_exact(outputs: int, closed_form: bool = False) -> None:
    """Raise where they are not."""
    if not is_exact(outputs, closed_form):
        raise TooManyOutputs(outputs)


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network with its uncertain weights, as predictions need it."""

    model: nn.Module
    space: Space
    learner: KnowledgeLearner
    budget: Budget
    axis: int | None  # of the outputs, in one example's output
    progress: Progress = field(default_factory=Progress)

    @property
    def knowledge(self) -> Knowledge:
        """What is known of the network by now."""
        return self.learner.knowledge

    def prepare(self, x: Inputs) -> Inputs:
        """Inputs on the network's device, usable in a graph."""
        device = self.model.get_parameter(self.space.names[0]).device

        def move(tensor: Tensor) -> Tensor:
            on_device = tensor.to(device)
            return on_device.clone() if on_device.is_inference() else on_device

        x = without_labels(self.model, x)
        refuse_inputs(x)
        refuse_axes(x, list(self.knowledge.costs))
        if not count(x):
            raise PeewitError("x has no examples; expected at least one.")
        moved: Inputs = map_tensors(move, x)
        return moved

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """The network in evaluation mode; what a question that fails teaches about it is forgotten."""
        before = self.learner.knowledge
        try:
            with isolated(self.model, self.selected), self.budget.arithmetic.passes():
                yield
        except TooManyOutputs:
            raise
        except BaseException:
            self.learner.knowledge = before
            raise
        finally:
            self.progress.close()

    def refuse_broken(self, values: Sequence[Tensor], x: Inputs) -> None:
        """Refuse outputs, or then their variances, that are NaN or Inf: waits for the device."""
        refuse_broken(values, x)

    def form(self, output: Tensor) -> Form:
        """Where the outputs are in this network's output."""
        return Form(self.axis, tuple(output.shape[1:]))

    def slices(self, x: Inputs, probes: int | None = None) -> Iterator[slice]:
        """Slices of the examples whose output gradients (some probes) fit the budget; call inside `isolated`."""
        outputs = max(1, min(EXACT_OUTPUTS, self.outputs(x))) if probes is None else probes
        return self.pieces(x, self.pulled_bytes(x, outputs), 0.75)

    def pulled_bytes(self, x: Inputs, probes: int) -> float:
        """Bytes of one example's layer outputs and of some output gradients; inputs of their kind have been seen."""
        return (4 + 1.25 * probes) * self.knowledge.cost(x)

    def pieces(self, x: Inputs, bytes_each: float, share: float = 0.5) -> Iterator[slice]:
        """Slices of the examples that take so many bytes each, with a bar where progress is shown."""
        slices = list(self.budget.slices(count(x), bytes_each, share))
        return self.progress.track(slices, len(slices), "outputs")

    def tapes(self, x: Inputs, create_graph: bool = False, probes: int | None = None) -> Iterator[Tape]:
        """Forward passes over those slices."""
        tracer = Tracer(self.model, self.space.names, self.budget, self.learner, create_graph, predicting=True)
        for chosen in self.slices(x, probes):
            yield tracer.trace(take(x, chosen))

    def is_closed(self, x: Inputs) -> bool:
        """Whether all uncertain weights are in the layer whose output is the network's; call inside `isolated`."""
        self.outputs(x)
        return self.knowledge.is_closed(x)

    def outputs(self, x: Inputs) -> int:
        """Numbers in one example's output; call inside `isolated`."""
        if not self.knowledge.knows(x) or is_awaited(self.knowledge, x):
            Tracer(self.model, self.space.names, self.budget, self.learner, predicting=True).cost(x)
        return math.prod(self.knowledge.shape(x))

    def cost(self, x: Inputs) -> int:
        """Bytes of one example's layer outputs; call inside `isolated`."""
        self.outputs(x)
        return self.knowledge.cost(x)

    @property
    def push(self) -> Push:
        """Products with the Jacobian; call inside `isolated`, under the plain attention kernel."""
        return Push(self.model, self.space, self.learner, self.budget)

    @property
    def selected(self) -> list[Tensor]:
        """The uncertain parameters."""
        return [self.model.get_parameter(name) for name in self.space.names]


def network_of(
    state: PosteriorState, memory: float | None, progress: bool = False, *, quickly: bool = False
) -> Network:
    """The network of a posterior, ready for a question; refused where it has changed since the fit.

    `quickly`: for questions that may come often, see `Identity.seems_same`.
    """
    if not (state.identity.seems_same if quickly else state.identity.is_same)(state.model):
        raise MismatchError(
            "The network's weights or buffers, their dtype or device are no longer those it was fitted with; "
            "fit again, or restore them."
        )
    stored = state.budget
    limit = stored if memory is None else budget(memory, state.weights.device, stored.arithmetic)
    if state.arithmetic == "auto" and ill_conditioned(state):
        limit = replace(limit, arithmetic=as_arithmetic("float32"))
    return Network(
        model=state.model,
        space=state.space,
        learner=state.knowledge.questions,
        budget=limit,
        axis=state.axis,
        progress=Progress(progress),
    )
