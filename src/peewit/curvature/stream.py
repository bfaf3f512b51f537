"""GGN, Monte Carlo Fisher and empirical Fisher as one thing: `sum_n J_n^T S_n S_n^T J_n` with three factors S.

A `Source` passes over the data and hands every structure the same stream: per batch, chunks of probes (the columns of
`S`), pulled back to the selected weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..likelihoods import Form, Likelihood, warn_of_copied_labels, warn_of_probabilities
from ..messages.errors import PeewitError
from ..network.batches import Batches
from ..network.finite import Watch
from ..runtime.memory import Budget
from ..runtime.progress import Progress
from ..tracing.knowledge import Knowledge, KnowledgeLearner
from ..tracing.tape import Tape
from ..tracing.tracer import Tracer
from ..weights.space import Space
from .batch import Batch
from .choice import KindChoice
from .kinds import Auto, CurvatureKind, Hessian, OutputView
from .pieces import LabelledPiece, Pieces
from .restart import PassRestart
from .totals import Totals, TotalsCounter


@dataclass(frozen=True, kw_only=True)
class MeasurementTask:
    """What is measured: the curvature of a network in its selected weights, on data under a likelihood."""

    model: nn.Module
    space: Space
    data: Batches
    likelihood: Likelihood
    kind: CurvatureKind | Auto | Hessian
    budget: Budget
    seed: int = 0  # of drawn labels
    first: int = 0  # the number of the first example: curvature added later draws other labels
    form: Form | None = None  # of earlier data's outputs
    least: float = 1.0  # the prior precision beside which rounding must not show
    create_graph: bool = False


class Source:
    """Passes over the data of a task; what one pass teaches is there for the next."""

    def __init__(
        self, task: MeasurementTask, learner: KnowledgeLearner | None = None, progress: Progress | None = None
    ) -> None:
        self.task = task
        self.progress = Progress() if progress is None else progress
        self.tracer = Tracer(task.model, task.space.names, task.budget, learner, task.create_graph)
        self.pieces = Pieces(
            data=task.data,
            likelihood=task.likelihood,
            network=self.tracer,
            budget=task.budget,
            form=task.form,
            progress=self.progress,
        )
        self.choice = KindChoice(task.kind)
        self.totals: Totals | None = None  # of the last whole pass
        self.remark = ""  # on inputs that were not finite, although likelihoods were
        self.exact: frozenset[Any] = frozenset()  # sums whose products are in float64 from the first batch on
        self._generic: frozenset[str] | None = None  # weights with the generic rule in the last measured batch
        self._form = task.form  # of the outputs of the batch before
        self._looked = False  # whether the first batch's outputs were looked at

    @property
    def knowledge(self) -> Knowledge:
        """What was learnt about the network."""
        return self.tracer.knowledge

    @property
    def kind(self) -> CurvatureKind | Auto | Hessian:
        """The kind of curvature, once the first batch decided where that was left open."""
        return self.choice.kind

    def __iter__(self) -> Iterator[Batch]:
        """Batches, cut so that their activations fit the budget; totals are known after the first whole pass."""
        counter, watch = TotalsCounter(), Watch()
        for piece in self.pieces.pass_over("curvature", watch, self._form):
            batch = self._measure(piece, self.task.first + counter.examples)
            energy = piece.labels.energy(batch.view.f.detach())
            watch.note(piece.inputs, batch.view.f, energy)
            counter.add(piece.labels, energy)
            yield batch
        self.remark = watch.finish(batch.view.f.dtype, self.task.likelihood.domain)
        before, self.totals = self.totals, counter.total()
        if before is not None:
            before.compare(self.totals, batch.tape.output)

    def restart(self, reason: PassRestart) -> None:
        """Forget the pass that was begun, and keep what it taught."""
        self.exact |= reason.exact
        self.totals = self._generic = None
        self.tracer.learner.learn(used={})

    def _measure(self, piece: LabelledPiece, first: int) -> Batch:
        """A forward pass over some examples, which are numbered from `first` on."""
        task, labels = self.task, piece.labels
        self._form = labels.form
        kind = self._choose_kind(labels.form)
        self.tracer.probes = kind.count(labels.form, labels.likelihood) > 1
        tape = self.tracer.trace(piece.inputs)
        self._refuse_other_rules()
        if not tape.output.requires_grad:
            raise PeewitError("The network's output does not depend on the selected weights.")
        output = tape.output if task.create_graph else tape.output.detach()
        if not self._looked:
            self._looked = True  # once: the answer is waited for
            warn_of_probabilities(task.likelihood, labels.form.flatten(output.detach()), tape.output.grad_fn)
            warn_of_copied_labels(task.likelihood, piece.inputs, labels)
        view = OutputView(
            likelihood=labels.likelihood,
            f=labels.flat(output),
            y=labels.y,
            form=labels.form,
            examples=torch.arange(first, first + tape.examples, device=labels.y.device),
            seed=task.seed,
            create_graph=task.create_graph,
        )
        masked = ~task.likelihood.labelled(labels.y).all(1) if piece.ignored else None
        return Batch(tape=tape, view=view, kind=kind, masked=masked, step=self._step(tape))

    def _choose_kind(self, form: Form) -> CurvatureKind:
        """The kind of curvature for a batch; begin again where earlier batches were measured in another."""
        earlier, self.choice = self.choice, self.choice.after(form, self.task.likelihood)
        kind = self.choice.kind
        assert not isinstance(kind, Auto | Hessian)
        if earlier.auto and kind != earlier.kind:
            raise PassRestart(f"curvature='auto': {self.choice.reason}, which was seen")
        return kind

    def _refuse_other_rules(self) -> None:
        """Begin again where a weight turned out to need the generic rule after batches were measured otherwise."""
        generic = self.knowledge.generic
        if self._generic is not None and generic != self._generic:
            new = ", ".join(sorted(generic - self._generic))
            raise PassRestart(f"{new} turned out to need the generic rule")
        self._generic = generic

    def _step(self, tape: Tape) -> int:
        """How many probes of a batch fit the budget at once, beside its activations."""
        cost = self.knowledge.cost(tape.inputs) * tape.examples
        return max(1, int((self.task.budget.bytes - 4 * cost) / (3 * cost)))
