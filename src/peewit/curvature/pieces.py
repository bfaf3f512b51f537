"""Data with labels in pieces whose activations fit the budget: small batches are put together, large ones are cut."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from ..likelihoods import Form, Labelled, Likelihood
from ..network.batches import Batches, merge_batches
from ..network.failures import output_of
from ..network.finite import InExample, Watch
from ..network.nests import Inputs, count, take, tensors
from ..runtime.memory import Budget
from ..runtime.progress import Progress
from ..tracing.knowledge import Knowledge

Item = TypeVar("Item")
MERGED_EXAMPLES = 2048  # small batches are put together up to so many examples
MERGED_CPU, MERGED_CUDA = 64 << 20, 24 << 30  # and so many bytes of activations, or the budget
ACTIVATIONS = 7  # bytes that a pass takes for each byte of layer outputs


class Measured(Protocol):
    """A network that knows what its examples take."""

    @property
    def knowledge(self) -> Knowledge:
        """What was learnt about it."""
        ...

    def cost(self, inputs: Inputs) -> int:
        """Bytes of one example's layer outputs."""
        ...


@dataclass(frozen=True)
class LabelledPiece:
    """Some examples, with targets in the likelihood's form."""

    inputs: Inputs
    labels: Labelled
    ignored: bool = False  # whether some labels of its batch are ignored

    def some(self, chosen: slice) -> LabelledPiece:
        """Some of the examples."""
        return LabelledPiece(take(self.inputs, chosen), self.labels.some(chosen), self.ignored)


class LabelCheck:
    """What was asked about a batch of targets: answers are waited for only when they are read."""

    def __init__(self, inputs: Inputs, labels: Labelled) -> None:
        self.inputs, self.labels = inputs, labels
        flags = torch.stack([labels.valid(), labels.likelihood.labelled(labels.y).all()])
        self.flags = flags.to("cpu", non_blocking=True)
        self.event = torch.cuda.Event() if flags.is_cuda else None
        if self.event is not None:
            self.event.record()

    def wait(self) -> LabelledPiece:
        """The batch, once the answer has come; raises where some targets are wrong."""
        if self.event is not None:
            self.event.synchronize()
        valid, labelled = self.flags.tolist()
        if not valid:
            raise self.labels.wrong()
        return LabelledPiece(self.inputs, self.labels, not labelled)


@dataclass(frozen=True, kw_only=True)
class Pieces:
    """Data under a likelihood, for passes of a network over it; every pass has the same pieces."""

    data: Batches
    likelihood: Likelihood
    network: Measured
    budget: Budget
    form: Form | None  # of the outputs of earlier data
    progress: Progress = field(default_factory=Progress)

    def pass_over(self, title: str, watch: Watch | None = None, form: Form | None = None) -> Iterator[LabelledPiece]:
        """All examples, once; `form` is that of an earlier pass, if there was one."""
        watch, seen = watch or Watch(), 0
        batches = watch.count_batches(self.progress.track(self.data, len(self.data), title))
        merged = merge_batches(batches, lambda inputs: self._most(inputs, watch), self.data.stored)
        for check in read_ahead(self._checks(merged, form or self.form)):
            number = count(check.inputs)
            cost = self.network.cost(check.inputs)  # examples that differ may come with the last of those put together
            try:
                whole = check.wait()
            except InExample as error:
                raise watch.locate(error, seen) from None
            seen += number
            for chosen in self.budget.slices(number, ACTIVATIONS * cost, 1.0):
                yield whole.some(chosen)

    def _most(self, inputs: Inputs, watch: Watch) -> int:
        """Up to how many examples small batches are put together: beyond this size it saves no time."""
        try:
            cost = self.network.cost(inputs)
        except InExample as error:
            raise watch.locate(error) from None
        cap = MERGED_CUDA if tensors(inputs)[0].device.type == "cuda" else MERGED_CPU
        return min(MERGED_EXAMPLES, int(min(cap, self.budget.bytes) / (ACTIVATIONS * cost)))

    def _checks(self, batches: Iterable[tuple[Inputs, Tensor]], form: Form | None) -> Iterator[LabelCheck]:
        """Bring targets into form, as those before, and ask without waiting whether they are right or ignored."""
        for inputs, targets in batches:
            shape = (count(self.likelihood.check_inputs(inputs)), *self.network.knowledge.shape(inputs))
            labels = Labelled.of(self.likelihood, torch.empty(shape, device="meta"), targets, form)
            form = labels.form
            yield LabelCheck(inputs, labels)


def labelled_outputs(
    model: nn.Module, pieces: Iterable[tuple[Inputs, Tensor]], likelihood: Likelihood, form: Form | None, watch: Watch
) -> Iterator[tuple[Inputs, Tensor, Labelled]]:
    """Inputs, the network's outputs with their graph, and labels: of batches that `watch` counts, or parts of them."""
    passed = 0
    for inputs, targets in pieces:
        try:
            output = output_of(model, likelihood.check_inputs(inputs))
            labels = Labelled.of(likelihood, output, targets, form).check()
        except InExample as error:
            raise watch.locate(error, passed) from None
        form, passed = labels.form, passed + len(output)
        yield inputs, output, labels


def read_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """The same items, each fetched while the one before is worked on: answers from a GPU are then there in time."""
    waiting: list[Item] = []
    for item in items:
        if waiting:
            yield waiting.pop()
        waiting.append(item)
    yield from waiting
