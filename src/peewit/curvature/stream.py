"""GGN, Monte Carlo Fisher and empirical Fisher as one thing: `sum_n J_n^T S_n S_n^T J_n` with three factors S.

A `Source` passes over the data and hands every structure the same stream: per batch, chunks of probes (the columns of
`S`), pulled back to the selected weights.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..jacobians.explicit import Explicit
from ..jacobians.factored import Matrix
from ..likelihoods import Form, Labelled, Likelihood, warn_of_probabilities
from ..messages.errors import PeewitError
from ..messages.warnings import warn
from ..network.batches import Batches, merge_batches
from ..network.finite import InExample, Watch
from ..network.nests import Inputs, count, take, tensors
from ..runtime.memory import Budget
from ..runtime.progress import Progress
from ..tracing.knowledge import Plan
from ..tracing.tape import Tape
from ..tracing.tracer import Tracer
from ..weights.ranges import WeightRange
from ..weights.space import Space
from .kinds import AUTO_LIMIT, GGN, Auto, CurvatureKind, Hessian, OutputView

Item = TypeVar("Item")
Chunk = dict[WeightRange, Matrix | Explicit]  # rows of `S^T J` for some probes, per range of each weight
MERGED_EXAMPLES = 2048  # small batches are put together up to so many examples
MERGED_CPU, MERGED_CUDA = 64 << 20, 24 << 30  # and so many bytes of activations, or the budget


@dataclass
class Totals:
    """What the evidence needs of the data besides curvature."""

    examples: int = 0
    scalars: float = 0.0
    energy: float = 0.0
    rest: float = 0.0  # of -log p, depending on the targets alone
    form: Form | None = None


def apart(first: float, second: float, examples: int, like: Tensor) -> bool:
    """Whether the energies of two passes over some examples differ by more than rounding.

    `like` is a tensor of the network. An energy that is small may be a difference of larger numbers.
    """
    share = {torch.float64: 1e-8, torch.float32: 1e-3 if like.is_cuda else 1e-4}.get(like.dtype, 1e-2)
    return abs(first - second) > share * (abs(first) + 0.1 * examples)


@dataclass(frozen=True)
class Batch:
    """Some examples after their forward pass: what structures measure."""

    tape: Tape
    view: OutputView
    kind: CurvatureKind
    masked: Tensor | None  # (N,): examples with ignored labels; None where there are none
    step: int  # probes at a time

    @property
    def examples(self) -> int:
        """N."""
        return self.tape.examples

    @property
    def total(self) -> int:
        """K: all probes."""
        return self.kind.count(self.view.form, self.view.likelihood)

    @property
    def at_once(self) -> bool:
        """Whether all probes are in one chunk."""
        return self.step >= self.total

    def probes(self) -> Iterator[Chunk]:
        """`S^T J`, a chunk of probes at a time, per range of each weight."""
        total = self.total
        for start in range(0, total, self.step):
            probes = self.kind.probes(self.view, start, min(start + self.step, total))
            found = self.tape.pull(self.view.form.restore(probes).to(self.tape.output.dtype))
            changed = self.tape.plan.reformed(found)
            if changed:
                raise PlanChanged(f"{', '.join(changed)} turned out to be applied in several ways")
            yield found


class Held:
    """A batch's probes for several passes: kept where they fit into spare memory, else made again in each pass."""

    def __init__(self, batch: Batch, budget: Budget) -> None:
        self.batch, self.kept = batch, list[Chunk]()
        self.room = math.inf if batch.at_once else budget.spare

    def __iter__(self) -> Iterator[Chunk]:
        if self.kept:
            yield from self.kept
            return
        kept, room = list[Chunk](), self.room
        for found in self.batch.probes():
            room -= held_bytes(found)
            kept = [*kept, found] if room >= 0 else []
            yield found
        self.kept = kept


def held_bytes(found: Chunk) -> int:
    """Bytes of the gradients in a chunk of probes; a bias shares those of its weight."""
    matrices = [each for each in found.values() if isinstance(each, Matrix)]
    values = [each.value for each in found.values() if isinstance(each, Explicit)]
    once = {id(each): each for each in [*values, *(term.grad for own in matrices for term in own.terms)]}
    return sum(each.numel() * each.element_size() for each in once.values())


class PlanChanged(Exception):
    """A weight turned out to need the generic rule after some batches had been measured otherwise."""


class Answer:
    """Booleans on their way from the device: waited for only when they are read."""

    def __init__(self, flags: Tensor) -> None:
        self.flags = flags.to("cpu", non_blocking=True)
        self.event = torch.cuda.Event() if flags.is_cuda else None
        if self.event is not None:
            self.event.record()

    def read(self) -> list[bool]:
        """The values."""
        if self.event is not None:
            self.event.synchronize()
        return [bool(flag) for flag in self.flags]


@dataclass(frozen=True)
class Checked:
    """Targets in the likelihood's form, with what was asked about them."""

    labels: Labelled
    answer: Answer

    def ignored(self) -> bool:
        """Whether some labels are ignored; raises where some are wrong."""
        valid, labelled = self.answer.read()
        if not valid:
            raise self.labels.wrong()
        return not labelled


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The same items, each fetched while the one before is worked on: answers from a GPU are then there in time."""
    held: list[Item] = []
    for item in items:
        if held:
            yield held.pop()
        held.append(item)
    yield from held


@dataclass
class Source:
    """A network, its selected weights, data and likelihood: iterating passes over the data once."""

    model: nn.Module
    space: Space
    data: Batches
    likelihood: Likelihood
    kind: CurvatureKind | Auto | Hessian
    budget: Budget
    plan: Plan = field(default_factory=Plan)
    seed: int = 0
    progress: Progress = field(default_factory=Progress)
    create_graph: bool = False
    totals: Totals | None = None
    reason: str = ""
    form: Form | None = None  # of the batch before
    auto: bool = False  # whether the kind of curvature was chosen here
    measured: set[str] | None = None  # weights that had the generic rule in the last batch that was measured
    looked: bool = False  # whether the first batch's outputs were looked at
    first: int = 0  # the number of the first example: curvature added later draws other labels
    remark: str = ""  # on inputs that were not finite, although likelihoods were
    least: float = 1.0  # the prior precision beside which rounding must not show
    exact: set[Any] = field(default_factory=set)  # sums whose products are in float64 from the first batch on
    expected: int = 0  # about how many examples a pass has, once the first batch came; 0 where it cannot be told

    def __iter__(self) -> Iterator[Batch]:
        """Batches, cut so that their activations fit the budget; totals are known after the first whole pass."""
        tracer = Tracer(self.model, self.space.names, self.budget, self.plan, self.create_graph)
        totals, energies, seen = Totals(), [], self.first
        scalars: list[Tensor] = []
        rests: list[Tensor] = []
        watch = Watch()
        batches = watch.count_batches(self.progress.track(self.data, len(self.data), "curvature"))
        joined = merge_batches(batches, lambda given: self._examples(tracer, given, watch), self.data.stored)
        for inputs, checked in ahead(self._check(*batch) for batch in joined):
            number = count(inputs)
            cost = tracer.cost(inputs)  # of batches put together: examples that differ may come with the last of them
            step = self.budget.count(7 * cost, number)
            try:
                ignored = checked.ignored()
            except InExample as error:
                raise watch.locate(error, seen - self.first) from None
            totals.form = checked.labels.form if totals.form is None else totals.form
            for start in range(0, number, step):
                chosen = slice(start, min(start + step, number))
                labels = checked.labels.some(chosen)
                batch = self._batch(tracer, take(inputs, chosen), labels, ignored, seen)
                batch = self._with_step(batch, cost)
                energy = batch.view.likelihood.energy(batch.view.f.detach(), batch.view.y)
                watch.note(batch.tape.inputs, batch.view.f, energy)
                energies.append(energy.double().sum())
                scalars.append(self.likelihood.scalars(batch.view.y))
                rests.append(self.likelihood.rest(batch.view.y))
                seen += batch.examples
                yield batch
        if not energies:
            raise PeewitError(
                "The data has no examples: the loader is empty, or was a one-shot iterator already used up."
            )
        self.remark = watch.finish(batch.view.f.dtype, self.likelihood.domain)
        totals.examples = seen - self.first
        totals.energy = float(torch.stack(energies).sum())
        totals.scalars = float(torch.stack(scalars).sum())
        totals.rest = float(torch.stack(rests).sum())
        if self.totals is not None and self.totals.examples != totals.examples:
            raise PeewitError(
                f"The data had {self.totals.examples} examples in the first pass and {totals.examples} in the second; "
                "expected the same data every time (a sampler or drop_last with shuffling changes it)."
            )
        before, self.totals = self.totals, totals
        if before is not None and any(
            apart(first, second, totals.examples, batch.tape.output)
            for first, second in ((before.energy, totals.energy), (before.rest, totals.rest))
        ):
            warn(
                f"The network's energy was {before.energy:.6g} in the first pass over the data and {totals.energy:.6g} "
                "in the second: other examples, or augmentations drawn anew? The eigenvectors are of the first, and "
                "the moments along them of the second. Give tensors, a list of batches or a loader that repeats "
                "itself, or use structure='kron', which passes over the data once.",
            )

    def _examples(self, tracer: Tracer, inputs: Inputs, watch: Watch) -> int:
        """Up to how many examples small batches are put together: beyond this size it saves no time."""
        try:
            cost = tracer.cost(inputs)
        except InExample as error:
            raise watch.locate(error) from None
        self.expected = self.expected or self.data.expected(count(inputs))
        cap = MERGED_CUDA if tensors(inputs)[0].device.type == "cuda" else MERGED_CPU
        return min(MERGED_EXAMPLES, int(min(cap, self.budget.bytes) / (7 * cost)))

    def _check(self, inputs: Inputs, targets: Tensor) -> tuple[Inputs, Checked]:
        """Bring targets into form and ask, without waiting, whether they are right and whether some are ignored."""
        shape = (count(inputs), *self.plan.shape(inputs))
        labels = Labelled.of(self.likelihood, torch.empty(shape, device="meta"), targets, self.form)
        self.form = labels.form
        flags = torch.stack([labels.valid(), labels.likelihood.labelled(labels.y).all()])
        return inputs, Checked(labels, Answer(flags))

    def _batch(self, tracer: Tracer, inputs: Inputs, labels: Labelled, ignored: bool, seen: int) -> Batch:
        form, y = labels.form, labels.y
        kind = self._choose(form)
        tracer.probes = kind.count(form, labels.likelihood) > 1
        tape = tracer.trace(inputs)
        if self.measured is not None and self.plan.generic != self.measured:
            new = ", ".join(sorted(self.plan.generic - self.measured))
            raise PlanChanged(f"{new} turned out to need the generic rule")
        self.measured = set(self.plan.generic)
        if not tape.output.requires_grad:
            raise PeewitError("The network's output does not depend on the selected weights.")
        output = tape.output if self.create_graph else tape.output.detach()
        numbers = torch.arange(seen, seen + tape.examples, device=y.device)
        if not self.looked:
            self.looked = True  # once: the answer is waited for
            warn_of_probabilities(self.likelihood, form.flatten(output.detach()), tape.output.grad_fn)
        view = OutputView(labels.likelihood, labels.flat(output), y, form, numbers, self.seed, self.create_graph)
        masked = ~self.likelihood.labelled(y).all(1) if ignored else None
        return Batch(tape, view, kind, masked, 1)

    def _choose(self, form: Form) -> CurvatureKind:
        """The kind of curvature, chosen by the first batch where it is left open."""
        kind = self.kind
        if isinstance(kind, Auto):
            kind, self.reason = kind.choose(form, self.likelihood)
            self.kind, self.auto = kind, True
        elif self.auto and kind.name == "ggn" and GGN().count(form, self.likelihood) > AUTO_LIMIT:
            self.kind, self.reason = Auto().choose(form, self.likelihood)
            if self.kind.name != "ggn":
                raise PlanChanged(f"curvature='auto': {self.reason}, which was seen")
        if isinstance(kind, Hessian):
            raise PeewitError("curvature='hessian' has no factor; use structure='full', or products.")
        return kind

    def _with_step(self, batch: Batch, cost: int) -> Batch:
        held = 4 * cost * batch.examples
        step = int((self.budget.bytes - held) / (3 * cost * batch.examples))
        return Batch(batch.tape, batch.view, batch.kind, batch.masked, max(1, step))
