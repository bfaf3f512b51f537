"""Forward passes of one network, recorded; what has to be known about it is learnt on the way and kept.

Weights whose use the recording does not see, or whose rows belong to no example, take the generic rule.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..messages.errors import PeewitError
from ..network.buffers import copied_buffers, restore_buffers
from ..network.calling import call
from ..network.failures import FAILURES, explain_failure
from ..network.finite import refuse_empty, refuse_nan
from ..network.nests import Inputs, count
from ..runtime.memory import Budget
from .comparison import unlike
from .doubling import ORDERS, double
from .graph import cut_of, find_unrecorded, reorders
from .knowledge import DEPENDENT, Knowledge, KnowledgeLearner, signature
from .layers.contract import Use
from .locating import Locating
from .recording import Again, Recording, Shown
from .routing import Routing
from .tape import Tape
from .verification import LENGTHS, is_awaited, verify

CUTS = 1024  # ways of cutting batches that are remembered
# `torch.vmap` over these gradients is wrong, of the second where it is nested, and may look right for some examples.
MISMAPPED = ("CdistBackward", "PreluKernelBackward")


class Tracer:
    """Records forward passes of one network for one choice of weights, learning about it on the way."""

    def __init__(
        self,
        model: nn.Module,
        names: tuple[str, ...],
        budget: Budget,
        learner: KnowledgeLearner | None = None,
        graph: bool = False,
        predicting: bool = False,
    ) -> None:
        self.model = model
        self.names = names
        self.budget = budget
        self.learner = learner if learner is not None else KnowledgeLearner()
        self.create_graph = graph
        self.exact = budget.arithmetic.parts(predicting) == 2
        self.probes = predicting  # whether several gradients will be pulled back at once
        wanted = set(names)
        self.parameters = {name: each for name, each in model.named_parameters() if name in wanted}
        self.dtype = budget.arithmetic.dtype
        for parameter in self.parameters.values():
            self.dtype = torch.promote_types(self.dtype, parameter.dtype)
        self._by_id = {id(parameter): name for name, parameter in self.parameters.items()}

    @property
    def knowledge(self) -> Knowledge:
        """What is known of the network by now."""
        return self.learner.knowledge

    @property
    def selected(self) -> list[Tensor]:
        """The selected parameters."""
        return list(self.parameters.values())

    def cost(self, inputs: Inputs) -> int:
        """Bytes of one example's layer outputs, from a pass over a doubled batch the first time.

        That pass also learns where the examples are, so that larger batches need not ask.
        """
        if not self.knowledge.knows(inputs):
            some = double(inputs)
            several = Tracer(self.model, self.names, self.budget, self.learner, predicting=True)
            try:
                tape = several.trace(some, watch=True)
            except torch.OutOfMemoryError:
                raise
            except FAILURES as error:
                reason = explain_failure(self.model, inputs, count(some), error, list(self.knowledge.costs))
                if reason is None:
                    raise
                raise reason from error
            # Said at once: nothing can be learnt from numbers that are not equal to themselves.
            refuse_empty(tape.output)
            self._refuse_statistics(tape.output, inputs)
            refuse_nan(tape.output, some)
            # The generic rule makes whole rows, for every example and probe.
            rows = 3 * tape.examples * sum(self.parameters[name].numel() for name in tape.generic)
            bytes_all = (tape.numbers_per_probe() + rows) * tape.output.element_size()
            verify(several, inputs, tape)
            known, shapes = self.knowledge, signature(inputs)
            cost = (-(-bytes_all // tape.examples), tuple(tape.output.shape[1:]))
            self.learner.learn(closed={**known.closed, shapes: tape.closed}, costs={**known.costs, shapes: cost})
        elif is_awaited(self.knowledge, inputs):
            several = Tracer(self.model, self.names, self.budget, self.learner, predicting=True)
            verify(several, inputs, several.trace(double(inputs)))
        return self.knowledge.cost(inputs)

    def _refuse_statistics(self, output: Tensor, inputs: Inputs) -> None:
        """Outputs that are NaN since the first examples are equal: beside another one the same example has numbers."""
        others = unlike(inputs) if bool(output.isnan().any()) else None
        if others is None:
            return
        with torch.no_grad(), copied_buffers(self.model):
            beside = call(self.model, others)
        if bool(output[0].isnan().any()) and not bool(beside[0].isnan().any()):
            raise PeewitError(f"One input has another output in another batch: {DEPENDENT}")

    def trace(self, inputs: Inputs, watch: bool = False) -> Tape:
        """Forward a batch; again where the first pass taught something about the network.

        A doubled batch may be watched: what is seen of it then tells where the examples are.
        """
        examples, shapes = count(inputs), signature(inputs)
        for _ in range(8):
            recording = Recording(
                self._by_id,
                self.learner,
                examples,
                shapes,
                watch=watch,
                probes=self.probes,
                second=self.create_graph,
                exact=self.exact,
                room=self.budget.bytes,
            )
            # Fused attention has no second derivative; its plain form does.
            kernels = sdpa_kernel([SDPBackend.MATH]) if recording.second else nullcontext()
            try:
                with recording, kernels:
                    output = call(self.model, inputs)
            except Again:
                continue
            finally:
                restore_buffers(self.model)
            if output.dim() == 0 or output.shape[0] != examples:
                raise PeewitError(
                    f"The network returned shape {tuple(output.shape)} for {examples} examples; expected a leading "
                    f"axis of {examples}. A squeeze() without an axis drops it for single examples."
                )
            tape = self._finish(recording, output, inputs, examples)
            if tape is not None:
                return tape
        raise PeewitError(
            "The network applies its weights differently in every forward pass; expected it to be repeatable."
        )

    def _finish(self, recording: Recording, output: Tensor, inputs: Inputs, examples: int) -> Tape | None:
        """The tape, or None when the pass has to be repeated with what was learnt."""
        before = self.knowledge
        tape = self._tape(recording, output, inputs, examples)
        if not output.requires_grad:
            return tape
        unseen, nodes = find_unrecorded(output, recording)
        wrong = {kind for node in nodes for kind in MISMAPPED if node.name().startswith(kind)}
        changed = {use.key for use in recording.uses if use.versions != tuple(each._version for each in use.inputs)}
        self.learner.learn(
            generic=before.generic | unseen,
            copied=before.copied | changed,
            vectorised=before.vectorised and not wrong,
            batched=before.batched and "CdistBackward" not in wrong,
        )
        if examples == 1:
            Routing(tape, self.watch).own_empty()
        else:
            Locating(tape, self.watch).locate(recording.shown)
            if self._has_misplaced(tape, recording.watch, nodes):
                return None
            if not self._is_stale(before):
                unlooked = not recording.watch and self._is_unlooked(tape)
                recut = not recording.watch and self._is_recut(tape, nodes)
                Routing(tape, self.watch).look(unlooked or recut or any(reorders(node, examples) for node in nodes))
        return None if self._is_stale(before) else tape

    def _is_stale(self, known: Knowledge) -> bool:
        """Whether a pass recorded weights or inputs otherwise than they would be now."""
        return (self.knowledge.generic, self.knowledge.copied) != (known.generic, known.copied)

    def _is_unlooked(self, tape: Tape) -> bool:
        """Whether this is one of the first whole batches: there are many ways to reorder examples."""
        looked = self.knowledge.looked
        if tape.examples <= len(ORDERS) or tape.signature in looked or len(looked) >= LENGTHS:
            return False
        self.learner.learn(looked=looked | {tape.signature})
        return True

    def _is_recut(self, tape: Tape, nodes: Collection[Any]) -> bool:
        """Whether examples are cut and joined as in no batch before: a network may rotate them by a number in them."""
        cuts = cut_of(nodes, tape.examples)
        if not cuts:
            return False
        known, number = self.knowledge.cuts, zlib.crc32(repr((tape.signature, tape.examples, cuts)).encode())
        if number in known:
            return False
        if len(known) < CUTS:
            self.learner.learn(cuts=known | {number})
        return True

    def _has_misplaced(self, tape: Tape, watched: bool, nodes: Collection[Any]) -> bool:
        """Whether some use was recorded as if its examples were elsewhere: the next pass knows better."""
        lifted = {use.key for lift in tape.lifts if tape.axis(lift.key) is not None for use in lift.uses}
        lost = {use.key for lift in tape.lifts if tape.axis(lift.key) is None for use in lift.uses}
        routed: list[Use] = []
        repeat = False
        for use in tape.uses:
            if use.lifted != (tape.axis(use.key) is None):
                repeat = True  # it looked as if it had examples: the next pass knows to lift it
            # An output without examples has gradients per example only where it was lifted to them.
            elif use.lifted and (use.key not in lifted - lost or use.edge.node in nodes):
                routed.append(use)
        if routed:
            self._route(tape, routed, watched)
        return repeat or bool(routed)

    def _route(self, tape: Tape, uses: list[Use], watched: bool) -> None:
        """Expect rows of these uses to be this or that example's, which each batch will tell.

        What has no examples at all shows in a doubled batch: equal examples share its rows.
        """
        for use in uses:
            self.learner.expect_owned(use, tape.signature)
        if not watched:
            self.trace(double(tape.inputs))

    def _tape(self, recording: Recording, output: Tensor, inputs: Inputs, examples: int) -> Tape:
        generic = tuple(name for name in self.names if name in self.knowledge.generic)
        return Tape(
            model=self.model,
            parameters=self.parameters,
            inputs=inputs,
            examples=examples,
            output=output,
            uses=recording.uses,
            lifts=recording.lifts,
            generic=generic,
            learner=self.learner,
            budget=self.budget,
            dtype=self.dtype,
            create_graph=self.create_graph,
        )

    def watch(self, inputs: Inputs) -> Shown:
        """What a forward pass shows of every use, by key."""
        recording = Recording(self._by_id, self.learner, count(inputs), signature(inputs), watch=True, probes=False)
        with recording:
            call(self.model, inputs)
        restore_buffers(self.model)
        return recording.shown
