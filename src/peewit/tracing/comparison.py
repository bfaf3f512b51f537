"""Derivatives as the rules have them beside those of plain reverse mode, weight by weight."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..jacobians.explicit import Explicit
from ..jacobians.factored import Matrix
from ..messages.errors import PeewitError
from ..messages.names import first_names
from ..network.failures import FAILURES
from ..network.kept import CLEAR, kept_tensors
from ..network.nests import Inputs, map_tensors, take, tensors
from ..weights.ranges import WeightRange
from .knowledge import DEPENDENT
from .plain import EXACT, EXAMPLES, NOISE, ROUGH, SHARE, Bounds, PlainDerivatives, stacked_norms
from .recording import walk
from .tape import Tape

if TYPE_CHECKING:
    from .tracer import Tracer

ALIKE = 1e-6  # outputs that differ by less, beside the largest, may be of equal examples
EQUAL = "; no batch had two examples that differ"  # until one has
COPIES = 14  # of a weight, held at the same time


def first_other(inputs: Inputs) -> int:
    """The number of the first example that is not equal to the first; 0 where there is none."""
    differ = [(tensor != tensor[:1]).reshape(len(tensor), -1).any(1) for tensor in tensors(inputs)]
    return int(torch.stack(differ).any(0).int().argmax())


def unlike(inputs: Inputs) -> Inputs | None:
    """The first example beside the first that is not equal to it, and they again; None where it is the second."""
    example = first_other(inputs)
    return None if example < 2 else map_tensors(lambda tensor: tensor[[0, example, example, 0]].detach(), inputs)


class ComparisonResult(NamedTuple):
    """What one comparison shows."""

    finite: bool  # whether the outputs are
    alike: bool  # whether both examples have the same output
    coupled: bool  # whether the first example's output depends on which other stands beside it, or on whether one does
    alone: bool  # whether the network takes a single example as it takes several
    wrong: list[str]  # weights whose rows of the Jacobian, as they are computed, are not the plain ones
    faint: list[str]  # weights that are used, and whose derivatives are too small to tell


@dataclass(kw_only=True)
class DerivativeComparison:
    """A network's derivatives at some examples, as the rules have them and as torch alone has them."""

    tracer: Tracer
    batch: Inputs  # all that there are
    several: Inputs  # four examples or six, of which the first two are compared
    allowed: Bounds
    tape: Tape | None  # of these, where it serves for the first comparison

    def outcome(self) -> str:
        """What was compared and what came out, in words; slower rules are taken where it was wrong."""
        if not self.plain.output.requires_grad:
            return "nothing, since the output does not depend on the weights"
        self._refuse_kept()
        for _ in range(len(self.tracer.names) + 4):
            vectorised = self.tracer.learner.knowledge.vectorised
            comparison = self._compare()
            if (comparison.alike or not comparison.finite) and (several := unlike(self.batch)) is not None:
                return replace(self, batch=several, several=several, tape=None).outcome()
            if not comparison.finite:
                return "nothing, since the network's output was not finite"  # said elsewhere, with the examples
            if (comparison.coupled or comparison.wrong) and self._is_rounding():
                equal = EQUAL if not first_other(self.batch) else ""
                return f"nothing, since the network's output was zero but for rounding{equal}"
            if comparison.coupled and self.plain.is_repeatable(self.allowed.output):
                raise PeewitError(f"One input has another output in another batch: {DEPENDENT}")
            if not comparison.wrong:
                break
            if comparison.coupled or not self.plain.is_repeatable(self.allowed.relative):
                return "nothing, since the network's output is not the same for the same inputs"
            self._step_back(comparison.wrong, vectorised)
        where = "in a batch and alone" if comparison.alone else "in a batch"
        words = (
            f"derivatives of {EXAMPLES} examples, {where}, agree with plain reverse mode to {self.allowed.relative:.0e}"
        )
        words += f"; too small there to tell: {first_names(comparison.faint)}" if comparison.faint else ""
        return words + (EQUAL if comparison.alike and not first_other(self.batch) else "")

    def _refuse_kept(self) -> None:
        """Tensors that the network made of the selected weights and keeps, and takes for its output, do not follow."""
        caches = {
            tensor.grad_fn: name for name, tensor in kept_tensors(self.tracer.model) if tensor.grad_fn is not None
        }
        selected = {id(parameter) for parameter in self.tracer.selected}
        for node in walk([self.plain.output.grad_fn], lambda node: False) if caches else ():
            below = walk([node] if node in caches else [], lambda node: False)
            if any(id(getattr(each, "variable", None)) in selected for each in below):
                raise PeewitError(
                    f"The network's output takes {caches[node]!r}, which an earlier pass computed from its weights and "
                    f"kept: at other weights it would be wrong. {CLEAR}"
                )

    @cached_property
    def inputs(self) -> Inputs:
        """The examples that are compared."""
        return take(self.several, slice(0, EXAMPLES))

    @cached_property
    def plain(self) -> PlainDerivatives:
        """Their derivatives as torch alone has them."""
        tracer = self.tracer
        return PlainDerivatives(
            model=tracer.model,
            parameters=tracer.parameters,
            dtype=tracer.dtype,
            inputs=self.inputs,
            allowed=self.allowed,
        )

    @cached_property
    def beside(self) -> Tensor:
        """(B, ...): the first example beside itself, which is the fourth too."""
        with torch.no_grad():
            return self.plain.call(take(self.several, slice(0, 4, 3)))

    def _alone(self) -> Tape | None:
        """Of the first example; None where the network does not take a single one as it takes several."""
        single = take(self.inputs, slice(0, 1))
        try:
            tape = self.tracer.trace(single)
        except FAILURES:
            if self._shape(single) == self.plain.output[:1].shape:
                raise
            return None
        return tape if tape.output.shape == self.plain.output[:1].shape else None

    def _shape(self, inputs: Inputs) -> tuple[int, ...] | None:
        """The shape of the output, where there is one."""
        try:
            with torch.no_grad():
                return self.plain.call(inputs).shape
        except FAILURES:
            return None

    @cached_property
    def groups(self) -> list[slice]:
        """Of the weights, as many at a time as fit the budget."""
        starts: list[int] = []
        room = 0
        for number, parameter in enumerate(self.tracer.selected):
            size = COPIES * parameter.numel() * self.tracer.dtype.itemsize
            if not starts or size > room:
                starts.append(number)
                room = self.tracer.budget.bytes
            room -= size
        return [slice(*ends) for ends in itertools.pairwise([*starts, len(self.tracer.selected)])]

    @cached_property
    def _kept(self) -> list[Tensor]:
        """Plain gradients of all weights, where they fit the budget together."""
        return self.plain.inside(self.tracer.selected[self.groups[0]])

    def _compare(self) -> ComparisonResult:
        """One comparison; the first example is looked at alone too. The device is waited for once."""
        inside, probes = self.plain.output.detach(), self.plain.probes
        tape = self.tracer.trace(self.inputs) if self.tape is None else self.tape
        self.tape = None  # the next one follows what was learnt
        alone = self._alone()
        jacobians = [tape.pull(torch.cat([probes] * (tape.examples // EXAMPLES), 1))]
        jacobians += [] if alone is None else [alone.pull(probes[:, :1])]
        others = [inside[1]]
        if self.beside.shape == inside.shape:  # else lengths follow the batch
            others += [self.beside[0], *(each.output[0].detach() for each in (alone,) if each is not None)]
        with torch.no_grad():
            sizes = [torch.linalg.vector_norm(inside, math.inf), *(torch.dist(inside[0], o, math.inf) for o in others)]
            norms = torch.cat([self._norms(jacobians, group) for group in self.groups], -1)
            shown = torch.cat([torch.stack(sizes).double(), norms.flatten()]).cpu()
        (largest, gap, *gaps), norms = shown[: len(sizes)].tolist(), shown[len(sizes) :].reshape(norms.shape)
        # The same kernels give the same numbers, whatever the other is; for a batch of another size they may not.
        limits = [bound * largest for bound in (self.allowed.output, ROUGH.relative)[: len(gaps)]]
        coupled = any(not gap <= limit for gap, limit in zip(gaps, limits, strict=True))
        if coupled and math.isfinite(largest):  # what is left where numbers cancel may be rounding, even in float64
            coupled = any(
                not gap <= max(limit, self.plain.last_digits) for gap, limit in zip(gaps, limits, strict=True)
            )
        wrong, faint = self._judge(norms[0], norms[1:].amax(0))
        return ComparisonResult(
            math.isfinite(largest), gap <= ALIKE * largest, coupled, alone is not None, wrong, faint
        )

    def _is_rounding(self) -> bool:
        """Whether nothing is left of the outputs but rounding of what cancels in them. Zeros cancel nothing."""
        return float(self.plain.output.detach().abs().max()) <= self.plain.last_digits > 0

    def _norms(self, jacobians: list[dict[WeightRange, Matrix | Explicit]], group: slice) -> Tensor:
        """(3, examples, weights): of differences, of derivatives by the rules, in a batch and alone, of plain ones."""
        plain = self._kept if len(self.groups) == 1 else self.plain.inside(self.tracer.selected[group])
        number = len(plain) // EXAMPLES
        plain = plain + plain[: number * (len(jacobians) - 1)]
        rows = self._rows(jacobians[0], group, EXAMPLES)
        rows += [row for alone in jacobians[1:] for row in self._rows(alone, group, 1)]
        return stacked_norms([*torch._foreach_sub(rows, plain), *rows, *plain]).reshape(3, -1, number)

    def _judge(self, differences: Tensor, sizes: Tensor) -> tuple[list[str], list[str]]:
        """Weights whose differences (examples, weights) are beyond rounding, and those whose derivatives are not.

        Where derivatives cancel, rounding errors have the size of what cancels: of the largest derivative, or of what
        outputs have beyond an offset that all examples share, over the weight.
        """
        finite = torch.isfinite(sizes)  # what is not is said elsewhere, with the weights
        unit = torch.where(finite, sizes, 0.0).amax(1, keepdim=True)
        allowed = self.allowed.relative * sizes + self.allowed.largest * unit
        if bool((differences > allowed).any()):
            allowed = allowed.maximum(self.allowed.relative * sizes + self.allowed.largest * self.plain.cancelling())
        suspected = (differences > allowed).any(0).nonzero().flatten().tolist()
        if suspected:
            names = [[*self.tracer.parameters][number] for number in suspected]
            noise = self.plain.shifts(names) if self.allowed is EXACT else self.plain.noise(names)
            allowed[:, suspected] = allowed[:, suspected].maximum(NOISE * noise)
        off, small = (differences > allowed).any(0).tolist(), (finite & (sizes <= allowed)).all(0).tolist()
        names, used = [*self.tracer.parameters], self.tracer.learner.knowledge.used
        faint = [name for name, each in zip(names, small, strict=True) if each and name in used]
        return [name for name, each in zip(names, off, strict=True) if each], faint

    def _rows(self, jacobians: dict[WeightRange, Matrix | Explicit], group: slice, examples: int) -> list[Tensor]:
        """Flat derivatives of one example's output after the other: the combination of probes, from all ranges."""
        sizes = {name: parameter.numel() for name, parameter in [*self.tracer.parameters.items()][group]}
        parts = [part for part in jacobians if part.name in sizes]
        by_probe = [jacobians[part].rows(slice(0, examples)).unbind() for part in parts]
        pieces = torch._foreach_add(*zip(*by_probe, strict=True), alpha=SHARE) if parts else ()
        by_name: dict[str, Tensor] = {}
        for part, piece in zip(parts, pieces, strict=True):
            if part.stop - part.start != sizes[part.name]:
                piece = torch.nn.functional.pad(piece, (part.start, sizes[part.name] - part.stop))
            by_name[part.name] = by_name[part.name] + piece if part.name in by_name else piece
        zeros = self.plain.probes.new_zeros((), dtype=self.tracer.dtype)
        rows = [by_name[name] if name in by_name else zeros.expand(examples, size) for name, size in sizes.items()]
        return [row for example in zip(*(each.unbind() for each in rows), strict=True) for row in example]

    def _step_back(self, wrong: list[str], vectorised: bool) -> None:
        """Take the next slower way for weights whose derivatives are wrong; the generic ones were `vectorised`."""
        learner, known = self.tracer.learner, self.tracer.learner.knowledge
        recorded = [name for name in wrong if name not in known.generic]
        if recorded and known.batched and not self._pulls_alike(self.tracer.trace(self.inputs)):
            learner.learn(batched=False)
            correction = "probes of the Jacobian go one by one, since several at once were off"
        elif recorded:
            learner.make_generic(recorded)
            correction = f"{', '.join(recorded)} took the generic rule, since the recorded ones were off"
        elif vectorised:
            learner.learn(vectorised=False)
            correction = "the generic rule takes examples one by one, since several at once were off"
        else:
            raise PeewitError(
                f"{', '.join(wrong)}: the derivatives of single examples are not those of plain reverse mode; expected "
                "a network whose output is the same for the same inputs."
            )
        learner.learn(corrections=(*known.corrections, correction))

    def _pulls_alike(self, tape: Tape) -> bool:
        """Whether several probes pulled back at once give what each gives on its own."""
        edges = [*(use.edge for use in tape.direct), *(lift.edge for lift in tape.lifts)]
        probes = self.plain.probes[:, :EXAMPLES]
        gradients = tape.pull_back(tape.output, probes, edges)
        for number, probe in enumerate(probes):
            single = tape.pull_back(tape.output, probe[None], edges)
            for gradient, plain in zip(gradients, single, strict=True):
                if gradient is None or plain is None:
                    continue
                if not bool((gradient[number] - plain[0]).norm() <= self.allowed.relative * plain.norm()):
                    return False
        return True
