"""What was learnt about a network, compared once with the derivative that training used.

For two examples, each alone and inside a batch, `u^T J` for a random u by plain reverse mode, without recording and
without transforms, parameter by parameter. Weights that disagree take the next slower rule, which is compared likewise.
So neither a use that the recording misreads nor a transform of torch's that is wrong goes unnoticed.
"""

from __future__ import annotations

import copy
import itertools
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from ..jacobians.explicit import Explicit
from ..jacobians.factored import Matrix
from ..messages.errors import PeewitError
from ..network.buffers import copied_buffers
from ..network.calling import call, with_weights
from ..network.failures import FAILURES
from ..network.kept import CLEAR, kept_tensors
from ..network.modules import quantised_modules
from ..network.nests import Inputs, count, map_tensors, take, tensors
from ..runtime.arithmetic import convolutions_rounded, products_rounded
from ..weights.ranges import WeightRange
from .knowledge import DEPENDENT, Knowledge, Signature, signature
from .recording import following
from .tape import Tape

if TYPE_CHECKING:
    from .tracer import Tracer

EXAMPLES = 2
LENGTHS = 3  # signatures with equal numbers of axes and dtypes of which each is compared
PROBES, SHARE = 2, 0.5  # pulled back at once, and compared by the first plus this share of the second
ALIKE = 1e-6  # outputs that differ by less, beside the largest, may be of equal examples
EQUAL = "; no batch had two examples that differ"  # until one has
NAMED = 3  # weights, where there may be many
LEAST = 1e-6  # the size of outputs, beside the probes, below which what cancels in them may have been larger
NOISE = 4.0  # times the rounding of plain derivatives, which may be off themselves where they cancel
DRAWS = 8  # of other last digits of the weights: what is left of terms that cancel may be nothing by luck
VIEWS = (slice(0, 2), slice(0, 1), slice(1, 2))  # both examples, and each of them alone
COPIES = 14  # of a weight, held at the same time


class Bounds(NamedTuple):
    """How far derivatives may be apart, by their own size and the largest's, and outputs of the same kernels."""

    own: float
    largest: float
    output: float


# Rounding errors of deep networks are some hundred times those of one product; a misread weight is off by its own size.
EXACT, SINGLE, ROUGH = Bounds(1e-5, 1e-9, 1e-9), Bounds(2e-2, 1e-5, 1e-4), Bounds(2e-1, 2e-2, 1e-1)


def bounds(tape: Tape) -> Bounds:
    """By the least exact arithmetic that the network uses."""
    dtypes = {tape.output.dtype, *(use.dtype for use in tape.uses), *(p.dtype for p in tape.parameters.values())}
    if dtypes & {torch.float16, torch.bfloat16} or quantised_modules(tape.model):
        return ROUGH
    if torch.float32 not in dtypes:
        return EXACT
    return ROUGH if tape.output.is_cuda and (convolutions_rounded() or products_rounded()) else SINGLE


def kind(shapes: Signature) -> tuple[tuple[str, str, int], ...]:
    """What inputs of other lengths have in common."""
    return tuple((where, dtype, len(shape)) for where, dtype, shape in shapes)


def verify(tracer: Tracer, inputs: Inputs, tape: Tape) -> None:
    """Compare a network's derivatives with plain ones on inputs of a new kind; raises where no rule is right.

    `tape`: of the first examples, as `doubled` has them.
    """
    known, shapes = tracer.learner.knowledge, signature(inputs)
    alike = [each for each in known.verified if kind(each) == kind(shapes)]
    if not is_awaited(known, inputs) and (shapes in alike or len(alike) >= LENGTHS):
        return
    several, single = map_tensors(torch.detach, tape.inputs), tape.examples == 1
    if single:
        several = map_tensors(lambda tensor: torch.cat([tensor] * 4), several)
    # The generic rule, and large outputs of layers, are for two examples better than for six.
    large = PROBES * tape.numbers_per_probe() * tape.output.element_size() > tracer.budget.bytes
    comparison = Comparison(tracer, inputs, several, bounds(tape), None if single or tape.generic or large else tape)
    with warnings.catch_warnings():
        # Autograd's own thread may meet the GPU for the first time here; torch sets it up and says so.
        warnings.filterwarnings("ignore", message="Attempting to run cu")
        outcome = comparison.outcome()
    tracer.learner.learn(verified={**tracer.learner.knowledge.verified, shapes: outcome})


def first_other(inputs: Inputs) -> int:
    """The number of the first example that is not equal to the first; 0 where there is none."""
    differ = [(each != each[:1]).reshape(len(each), -1).any(1) for each in tensors(inputs)]
    return int(torch.stack(differ).any(0).int().argmax())


def is_awaited(known: Knowledge, inputs: Inputs) -> bool:
    """Whether these are the first examples of their shapes that are not all equal: only they show dependences."""
    return known.verified.get(signature(inputs), "").endswith(EQUAL) and first_other(inputs) > 0


def unlike(inputs: Inputs) -> Inputs | None:
    """The first example beside the first that is not equal to it, and they again; None where it is the second."""
    place = first_other(inputs)
    return None if place < 2 else map_tensors(lambda tensor: tensor[[0, place, place, 0]].detach(), inputs)


class Seen(NamedTuple):
    """What one comparison shows."""

    finite: bool  # whether the outputs are
    alike: bool  # whether both examples have the same output
    coupled: bool  # whether the first example's output depends on which other stands beside it, or on whether one does
    alone: bool  # whether the network takes a single example as it takes several
    wrong: list[str]  # weights whose rows of the Jacobian, as they are computed, are not the plain ones
    faint: list[str]  # weights that are used, and whose derivatives are too small to tell


@dataclass
class Comparison:
    """A network's derivatives at some examples, as the rules have them and as torch alone has them."""

    tracer: Tracer
    every: Inputs  # all that there are
    several: Inputs  # four examples or six, of which the first two are compared
    allowed: Bounds
    tape: Tape | None  # of these, where it serves for the first comparison

    def outcome(self) -> str:
        """What was compared and what came out, in words; slower rules are taken where it was wrong."""
        if not self.output.requires_grad:
            return "nothing, since the output does not depend on the weights"
        self._refuse_kept()
        for _ in range(len(self.tracer.names) + 4):
            vectorised = self.tracer.learner.knowledge.vectorised
            seen = self._seen()
            if (seen.alike or not seen.finite) and (several := unlike(self.every)) is not None:
                return replace(self, every=several, several=several, tape=None).outcome()
            if not seen.finite:
                return "nothing, since the network's output was not finite"  # said elsewhere, with the examples
            if (seen.coupled or seen.wrong) and self._is_rounding():
                equal = EQUAL if not first_other(self.every) else ""
                return f"nothing, since the network's output was zero but for rounding{equal}"
            if seen.coupled and self._repeatable(self.allowed.output):
                raise PeewitError(f"One input has another output in another batch: {DEPENDENT}")
            if not seen.wrong:
                break
            if seen.coupled or not self._repeatable(self.allowed.own):
                return "nothing, since the network's output is not the same for the same inputs"
            self._step_back(seen.wrong, vectorised)
        where = "in a batch and alone" if seen.alone else "in a batch"
        words = f"derivatives of {EXAMPLES} examples, {where}, agree with plain reverse mode to {self.allowed.own:.0e}"
        words += f"; too small there to tell: {listed(seen.faint)}" if seen.faint else ""
        return words + (EQUAL if seen.alike and not first_other(self.every) else "")

    def _call(self, inputs: Inputs) -> Tensor:
        with copied_buffers(self.tracer.model):
            return call(self.tracer.model, inputs)

    def _refuse_kept(self) -> None:
        """Tensors that the network made of the selected weights and keeps, and takes for its output, do not follow."""
        kept = {tensor.grad_fn: name for name, tensor in kept_tensors(self.tracer.model) if tensor.grad_fn is not None}
        selected = {id(parameter) for parameter in self.tracer.selected}
        for node in following([self.output.grad_fn], lambda node: False) if kept else ():
            below = following([node] if node in kept else [], lambda node: False)
            if any(id(getattr(each, "variable", None)) in selected for each in below):
                raise PeewitError(
                    f"The network's output takes {kept[node]!r}, which an earlier pass computed from its weights and "
                    f"kept: at other weights it would be wrong. {CLEAR}"
                )

    @cached_property
    def inputs(self) -> Inputs:
        """The examples that are compared."""
        return take(self.several, slice(0, EXAMPLES))

    @cached_property
    def output(self) -> Tensor:
        """(B, ...), with its graph and nothing recorded."""
        return self._call(self.inputs)

    @cached_property
    def beside(self) -> Tensor:
        """(B, ...): the first example beside itself, which is the fourth too."""
        with torch.no_grad():
            return self._call(take(self.several, slice(0, 4, 3)))

    def _alone(self) -> Tape | None:
        """Of the first example; None where the network does not take a single one as it takes several."""
        one = take(self.inputs, slice(0, 1))
        try:
            tape = self.tracer.trace(one)
        except FAILURES:
            if self._shape(one) == self.output[:1].shape:
                raise
            return None
        return tape if tape.output.shape == self.output[:1].shape else None

    def _shape(self, inputs: Inputs) -> tuple[int, ...] | None:
        """Of the output, where there is one."""
        try:
            with torch.no_grad():
                return self._call(inputs).shape
        except FAILURES:
            return None

    @cached_property
    def probes(self) -> Tensor:
        """(K, B, ...): random ones."""
        generator = torch.Generator("cpu").manual_seed(0)
        shape = (PROBES, *self.output.shape)
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(self.output)

    @cached_property
    def combined(self) -> Tensor:
        """(B, B, ...): the combination of probes that is compared, by the example whose it is, and zeros."""
        made = self.output.new_zeros(EXAMPLES**2, *self.output.shape[1:])
        made[:: EXAMPLES + 1] = torch.add(*self.probes, alpha=SHARE)
        return made.reshape(EXAMPLES, *self.output.shape)

    @cached_property
    def groups(self) -> list[slice]:
        """Of the weights, as many at a time as fit the budget."""
        starts: list[int] = []
        room = 0
        for place, parameter in enumerate(self.tracer.selected):
            size = COPIES * parameter.numel() * self.tracer.dtype.itemsize
            if not starts or size > room:
                starts.append(place)
                room = self.tracer.budget.bytes
            room -= size
        return [slice(*ends) for ends in itertools.pairwise([*starts, len(self.tracer.selected)])]

    def _plain(self, group: slice) -> list[Tensor]:
        """Flat gradients of one example's output after the other, inside their batch."""
        parameters = self.tracer.selected[group]
        return [each for probe in self.combined for each in self._gradients(self.output, parameters, probe)]

    def _gradients(self, output: Tensor, parameters: Sequence[Tensor], probe: Tensor) -> list[Tensor]:
        found = torch.autograd.grad(output, parameters, probe, retain_graph=True, allow_unused=True)
        return [self._flat(each, own) for each, own in zip(found, parameters, strict=True)]

    def _flat(self, gradient: Tensor | None, parameter: Tensor) -> Tensor:
        if gradient is None:
            return torch.zeros(parameter.numel(), dtype=self.tracer.dtype, device=parameter.device)
        return (gradient.to_dense() if gradient.is_sparse else gradient).flatten().to(self.tracer.dtype)

    @cached_property
    def _kept(self) -> list[Tensor]:
        """Plain gradients of all weights, where they fit the budget together."""
        return self._plain(self.groups[0])

    def _seen(self) -> Seen:
        """One comparison; the first example is looked at alone too. The device is waited for once."""
        inside, probes = self.output.detach(), self.probes
        tape = self.tracer.trace(self.inputs) if self.tape is None else self.tape
        self.tape = None  # the next one follows what was learnt
        alone = self._alone()
        found = [tape.pull(torch.cat([probes] * (tape.examples // EXAMPLES), 1))]
        found += [] if alone is None else [alone.pull(probes[:, :1])]
        others = [inside[1]]
        if self.beside.shape == inside.shape:  # else lengths follow the batch
            others += [self.beside[0], *(each.output[0].detach() for each in (alone,) if each is not None)]
        with torch.no_grad():
            sizes = [torch.linalg.vector_norm(inside, math.inf), *(torch.dist(inside[0], o, math.inf) for o in others)]
            norms = torch.cat([self._norms(found, group) for group in self.groups], -1)
            shown = torch.cat([torch.stack(sizes).double(), norms.flatten()]).cpu()
        (largest, gap, *gaps), norms = shown[: len(sizes)].tolist(), shown[len(sizes) :].reshape(norms.shape)
        # The same kernels give the same numbers, whatever the other is; for a batch of another size they may not.
        limits = [bound * largest for bound in (self.allowed.output, ROUGH.own)[: len(gaps)]]
        coupled = any(not gap <= limit for gap, limit in zip(gaps, limits, strict=True))
        if coupled and math.isfinite(largest):  # what is left where numbers cancel may be rounding, even in float64
            coupled = any(not gap <= max(limit, self.last_digits) for gap, limit in zip(gaps, limits, strict=True))
        wrong, faint = self._judged(norms[0], norms[1:].amax(0))
        return Seen(math.isfinite(largest), gap <= ALIKE * largest, coupled, alone is not None, wrong, faint)

    def _nudged(self) -> Iterator[dict[str, Tensor]]:
        """Weights whose last digits are others, a few times; never where outputs change by themselves."""
        given = [(name, each.detach()) for name, each in self.tracer.model.named_parameters()]
        generators = {each.device: torch.Generator(each.device).manual_seed(0) for _, each in given}
        for _ in range(DRAWS if self._repeatable(self.allowed.output) else 0):
            others = ((name, nudged(each, generators[each.device])) for name, each in given if each.is_floating_point())
            # As parameters: a network that makes parameters of other tensors, as slices of lists do, loses their graph.
            yield {name: nn.Parameter(each.detach()) for name, each in others}

    def _at(self, weights: dict[str, Tensor], inputs: Inputs) -> Tensor | None:
        """The output with other weights, where the network takes them and its output depends on them."""
        try:
            with copied_buffers(self.tracer.model):
                made = call(with_weights(self.tracer.model, weights), inputs)
        except FAILURES:
            return None
        return made if made.requires_grad and made.shape == (count(inputs), *self.output.shape[1:]) else None

    @cached_property
    def last_digits(self) -> float:
        """How far rounding may take the outputs: a few times as far as other last digits of the weights take them."""
        every = (self._at(weights, self.inputs) for weights in self._nudged())
        moves = [float((made - self.output).detach().abs().max()) for made in every if made is not None]
        return NOISE * max((each for each in moves if math.isfinite(each)), default=0.0)

    def _shifts(self, names: list[str]) -> Tensor:
        """(weights,): how far other last digits of the weights take plain derivatives, in the batch and alone."""
        shifts = torch.zeros(len(names), dtype=torch.float64)
        for view in VIEWS:
            first: list[Tensor] = []
            probes, generator = self.probes, torch.Generator(self.probes.device).manual_seed(0)
            own: dict[str, Tensor] = dict(self.tracer.model.named_parameters())
            for weights in itertools.chain([own], self._nudged()):
                output = self._at(weights, take(self.inputs, view))
                if output is None:
                    break
                rows = self._each(output, [weights[name] for name in names], probes[:, view])
                first, probes = first or rows, nudged(self.probes, generator).detach()
                shifts = shifts.maximum(furthest(first, rows, len(names)))
        return shifts

    def _each(self, output: Tensor, parameters: Sequence[Tensor], probes: Tensor) -> list[Tensor]:
        """Plain derivatives of outputs (B, ...), each example's alone, by the probes (K, B, ...) and as compared."""
        rows: list[Tensor] = []
        for probe in (*probes, torch.add(*probes, alpha=SHARE)):
            for place, own in enumerate(probe.to(output)):
                alone = torch.zeros_like(output)
                alone[place] = own
                rows += self._gradients(output, parameters, alone)
        return rows

    def _is_rounding(self) -> bool:
        """Whether nothing is left of the outputs but rounding of what cancels in them. Zeros cancel nothing."""
        return float(self.output.detach().abs().max()) <= self.last_digits > 0

    def _norms(self, found: list[dict[WeightRange, Matrix | Explicit]], group: slice) -> Tensor:
        """(3, examples, weights): of differences, of derivatives by the rules, in a batch and alone, of plain ones."""
        plain = self._kept if len(self.groups) == 1 else self._plain(group)
        number = len(plain) // EXAMPLES
        plain = plain + plain[: number * (len(found) - 1)]
        ours = self._rows(found[0], group, EXAMPLES)
        ours += [row for alone in found[1:] for row in self._rows(alone, group, 1)]
        return stacked_norms([*torch._foreach_sub(ours, plain), *ours, *plain]).reshape(3, -1, number)

    def _judged(self, differences: Tensor, sizes: Tensor) -> tuple[list[str], list[str]]:
        """Weights whose differences (examples, weights) are beyond rounding, and those whose derivatives are not.

        Where derivatives cancel, rounding errors have the size of what cancels: of the largest derivative, or of what
        outputs have beyond an offset that all examples share, over the weight.
        """
        finite = torch.isfinite(sizes)  # what is not is said elsewhere, with the weights
        unit = torch.where(finite, sizes, 0.0).amax(1, keepdim=True)
        allowed = self.allowed.own * sizes + self.allowed.largest * unit
        if bool((differences > allowed).any()):
            allowed = allowed.maximum(self.allowed.own * sizes + self.allowed.largest * self._cancelling())
        suspected = (differences > allowed).any(0).nonzero().flatten().tolist()
        if suspected:
            names = [[*self.tracer.parameters][place] for place in suspected]
            noise = self._shifts(names) if self.allowed is EXACT else self._noise(names)
            allowed[:, suspected] = allowed[:, suspected].maximum(NOISE * noise)
        off, small = (differences > allowed).any(0).tolist(), (finite & (sizes <= allowed)).all(0).tolist()
        names, used = [*self.tracer.parameters], self.tracer.learner.knowledge.used
        faint = [name for name, each in zip(names, small, strict=True) if each and name in used]
        return [name for name, each in zip(names, off, strict=True) if each], faint

    def _cancelling(self) -> Tensor:
        """(weights,): the size of derivatives that cancel, by what outputs have beyond an offset that they share."""
        norms, output = stacked_norms([each.detach() for each in self.tracer.selected]), self.output.detach()
        probes = self.combined.sum(0)
        through = (probes * (output - output.mean(0))).norm().maximum(LEAST * probes.norm()).double()
        return torch.where(norms > 0, through / norms, 0.0).cpu()

    def _noise(self, names: list[str]) -> Tensor:
        """(weights,): how far plain derivatives, in the batch and alone, are from those of the network in float64.

        What is left of terms that cancel may be nothing for one of them. Zeros where it does not run in float64.
        """
        kept = {id(tensor): tensor.detach() for _, tensor in kept_tensors(self.tracer.model)}  # with a graph: no copies
        noise = torch.zeros(len(names), dtype=torch.float64)
        try:
            twin = copy.deepcopy(self.tracer.model, kept).double()
            wide = map_tensors(lambda t: t.double() if t.is_floating_point() else t, self.inputs)
            plain, exact = ([each.get_parameter(name) for name in names] for each in (self.tracer.model, twin))
            for view in VIEWS:
                probes = self.probes[:, view]
                rows = self._each(self._call(take(self.inputs, view)), plain, probes)
                others = self._each(call(twin, take(wide, view)), exact, probes)
                noise = noise.maximum(furthest(rows, others, len(names)))
        except Exception:  # whatever the network says to float64, or to a single example
            return noise
        return noise

    def _rows(self, found: dict[WeightRange, Matrix | Explicit], group: slice, examples: int) -> list[Tensor]:
        """Flat derivatives of one example's output after the other: the combination of probes, from all ranges."""
        sizes = {name: own.numel() for name, own in [*self.tracer.parameters.items()][group]}
        parts = [part for part in found if part.name in sizes]
        by_probe = [found[part].rows(slice(0, examples)).unbind() for part in parts]
        pieces = torch._foreach_add(*zip(*by_probe, strict=True), alpha=SHARE) if parts else ()
        made: dict[str, Tensor] = {}
        for part, piece in zip(parts, pieces, strict=True):
            if part.stop - part.start != sizes[part.name]:
                piece = torch.nn.functional.pad(piece, (part.start, sizes[part.name] - part.stop))
            made[part.name] = made[part.name] + piece if part.name in made else piece
        zeros = self.probes.new_zeros((), dtype=self.tracer.dtype)
        rows = [made[name] if name in made else zeros.expand(examples, size) for name, size in sizes.items()]
        return [row for example in zip(*(each.unbind() for each in rows), strict=True) for row in example]

    def _repeatable(self, bound: float) -> bool:
        """Whether the network's output is the same again."""
        first, again = self.output.detach(), self._call(self.inputs).detach()
        return again.shape == first.shape and bool((again - first).abs().max() <= bound * first.abs().max())

    def _step_back(self, wrong: list[str], vectorised: bool) -> None:
        """Take the next slower way for weights whose derivatives are wrong; the generic ones were `vectorised`."""
        learner, known = self.tracer.learner, self.tracer.learner.knowledge
        recorded = [name for name in wrong if name not in known.generic]
        if recorded and known.batched and not self._pulled(self.tracer.trace(self.inputs)):
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

    def _pulled(self, tape: Tape) -> bool:
        """Whether several probes pulled back at once give what each gives by itself."""
        edges = [*(use.edge for use in tape.direct), *(lift.edge for lift in tape.lifts)]
        probes = self.probes[:, :EXAMPLES]
        made = tape.pulled(tape.output, probes, edges)
        for place, probe in enumerate(probes):
            single = tape.pulled(tape.output, probe[None], edges)
            for ours, plain in zip(made, single, strict=True):
                if ours is None or plain is None:
                    continue
                if not bool((ours[place] - plain[0]).norm() <= self.allowed.own * plain.norm()):
                    return False
        return True


def furthest(rows: list[Tensor], others: list[Tensor], number: int) -> Tensor:
    """(weights,) on the CPU: norms of differences of derivatives, of the example for which they are largest."""
    norms = stacked_norms([*torch._foreach_sub(rows, others)]).reshape(-1, number)
    return norms.nan_to_num(0.0, 0.0).amax(0).cpu()


def nudged(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """The same numbers with other last digits."""
    share = torch.rand(tensor.shape, generator=generator, dtype=torch.float32, device=tensor.device).to(tensor.dtype)
    return (tensor + tensor * (torch.finfo(tensor.dtype).eps * (4 * share - 2))).requires_grad_()


def listed(names: list[str]) -> str:
    """The first few of them."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def stacked_norms(tensors: list[Tensor]) -> Tensor:
    """(n,) in float64."""
    return torch.stack(torch._foreach_norm(tensors)).double()
