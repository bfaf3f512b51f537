"""What was learnt about a network, compared once with the derivative that training used.

For two examples, each alone and inside a batch, `u^T J` for a random u by plain reverse mode, without recording and
without transforms, parameter by parameter. Weights that disagree take the next slower rule, which is compared likewise.
So neither a use that the recording misreads nor a transform of torch's that is wrong goes unnoticed.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from .arithmetic import convolutions_rounded, products_rounded
from .batches import Inputs, call, copied_buffers, count, map_tensors, quantised, take, under
from .diagnosis import FAILURES
from .jacobians import Explicit, Matrix
from .layers.base import Part
from .plan import DEPENDENT, Signature, signature
from .tape import Tape

if TYPE_CHECKING:
    from .tracer import Tracer

EXAMPLES = 2
LENGTHS = 3  # signatures with equal numbers of axes and dtypes of which each is compared
SHARE = 0.5  # two columns are pulled back at once, and compared by the first plus this share of the second
COPIES = 6  # of a weight, held at the same time


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
    if dtypes & {torch.float16, torch.bfloat16} or quantised(tape.model):
        return ROUGH
    if torch.float32 not in dtypes:
        return EXACT
    return ROUGH if tape.output.is_cuda and (convolutions_rounded() or products_rounded()) else SINGLE


def kind(shapes: Signature) -> tuple[tuple[str, str, int], ...]:
    """What inputs of other lengths have in common."""
    return tuple((where, dtype, len(shape)) for where, dtype, shape in shapes)


def verify(tracer: Tracer, inputs: Inputs, allowed: Bounds) -> None:
    """Compare a network's plan with plain derivatives on inputs of a new kind; raises where no rule is right."""
    plan, shapes = tracer.plan, signature(inputs)
    alike = [each for each in plan.verified if kind(each) == kind(shapes)]
    if shapes in alike or len(alike) >= LENGTHS:
        return
    some = take(inputs, slice(0, EXAMPLES))
    if count(some) < EXAMPLES:
        some = map_tensors(lambda tensor: torch.cat([tensor] * EXAMPLES), some)
    comparison = Comparison(tracer, map_tensors(torch.detach, some), allowed, others(inputs))
    with warnings.catch_warnings():
        # Autograd's own thread may meet the GPU for the first time here; torch sets it up and says so.
        warnings.filterwarnings("ignore", message="Attempting to run cuBLAS")
        plan.verified[shapes] = comparison.outcome()


def others(inputs: Inputs) -> Inputs:
    """The first example beside another one than the second: the third, or itself."""
    last = min(EXAMPLES, count(inputs) - 1) if count(inputs) != EXAMPLES else 0
    return map_tensors(lambda tensor: torch.cat([tensor[:1], tensor[last : last + 1]]).detach(), inputs)


@dataclass
class Comparison:
    """A network's derivatives at some examples, as the plan has them and as torch alone has them."""

    tracer: Tracer
    inputs: Inputs
    allowed: Bounds
    others: Inputs  # the first of them beside another one

    def outcome(self) -> str:
        """What was compared and what came out, in words; the plan is changed where it was wrong."""
        plan = self.tracer.plan
        if not bool(torch.isfinite(self.output).all()):
            return "nothing, since the network's output was not finite"  # said elsewhere, with the examples concerned
        if not self.output.requires_grad:
            return "nothing, since the output does not depend on the weights"
        coupled = self._coupled()
        if coupled and self._repeatable(self.allowed.output):
            raise ValueError(f"One input has another output in another batch: {DEPENDENT}")
        for _ in range(len(self.tracer.names) + 4):
            vectorised = plan.vectorised
            wrong = self._wrong()
            if not wrong:
                break
            if coupled or not self._repeatable(self.allowed.own):
                return "nothing, since the network's output is not the same for the same inputs"
            self._step_back(wrong, vectorised)
        plan.references |= self._references()
        where = "in a batch and alone" if self.alone is not None else "in a batch"
        return f"derivatives of {EXAMPLES} examples, {where}, agree with plain reverse mode to {self.allowed.own:.0e}"

    def _call(self, inputs: Inputs) -> Tensor:
        with copied_buffers(self.tracer.model):
            return call(self.tracer.model, inputs)

    @cached_property
    def output(self) -> Tensor:
        """(B, ...), with its graph and nothing recorded."""
        return self._call(self.inputs)

    @cached_property
    def alone(self) -> Tensor | None:
        """(...) of the first example; None where the network does not take a single one as it takes several."""
        try:
            with torch.no_grad():
                output = self._call(take(self.inputs, slice(0, 1)))
        except FAILURES:
            return None
        return output[0] if output.shape == self.output[:1].shape else None

    def _near(self, output: Tensor, bound: float) -> bool:
        """Whether an output of the first example is that inside the batch, up to a share of the largest number."""
        inside = self.output.detach()
        return bool((output.detach() - inside[0]).abs().max() <= bound * inside.abs().max())

    @cached_property
    def norms(self) -> dict[str, Tensor]:
        """Of the weights, in float64."""
        own = self.tracer.parameters
        return dict(zip(own, stacked_norms([each.detach() for each in own.values()]), strict=True))

    @cached_property
    def columns(self) -> Tensor:
        """(K, B, ...): random cotangents."""
        generator = torch.Generator("cpu").manual_seed(0)
        shape = (2, *self.output.shape)
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(self.output)

    @cached_property
    def cotangent(self) -> Tensor:
        """(B, ...): the combination of columns that is compared."""
        return combined(self.columns)

    def _of(self, example: int) -> Tensor:
        """(B, ...): the cotangent of one example, zero for the others."""
        chosen = torch.arange(EXAMPLES, device=self.output.device) == example
        return self.cotangent * chosen.reshape(-1, *[1] * (self.output.dim() - 1))

    @cached_property
    def groups(self) -> list[list[str]]:
        """Names of the weights, as many at a time as fit the budget."""
        made: list[list[str]] = []
        room = 0
        for name, parameter in self.tracer.parameters.items():
            size = COPIES * EXAMPLES * parameter.numel() * self.tracer.dtype.itemsize
            if not made or size > room:
                made.append([])
                room = self.tracer.budget.bytes
            made[-1].append(name)
            room -= size
        return made

    def _plain(self, output: Tensor, cotangent: Tensor, names: list[str]) -> list[Tensor]:
        """Flat gradients of the named weights."""
        parameters = [self.tracer.parameters[name] for name in names]
        found = torch.autograd.grad(output, parameters, cotangent, retain_graph=True, allow_unused=True)
        return [self._flat(each, own) for each, own in zip(found, parameters, strict=True)]

    def _flat(self, gradient: Tensor | None, parameter: Tensor) -> Tensor:
        dtype = self.tracer.dtype
        if gradient is None:
            return torch.zeros(parameter.numel(), dtype=dtype, device=parameter.device)
        return gradient.detach().to_dense().flatten().to(dtype)

    @cached_property
    def _kept(self) -> list[list[Tensor]]:
        """By example: plain gradients of all weights, where they fit the budget together."""
        return [self._plain(self.output, self._of(example), self.groups[0]) for example in range(EXAMPLES)]

    def _inside(self, example: int, names: list[str]) -> list[Tensor]:
        """Plain gradients of one example's output inside its batch."""
        if len(self.groups) == 1:
            return self._kept[example]
        return self._plain(self.output, self._of(example), names)

    def _coupled(self) -> bool:
        """Whether the first example's output depends on which other stands beside it, or on whether one does.

        The same kernels give the same numbers for it, whatever the other is; for a batch of another size they may not.
        """
        with torch.no_grad():
            beside = self._call(self.others)
        if beside.shape != self.output.shape:
            return False  # lengths that follow the batch
        if not self._near(beside[0], self.allowed.output):
            return True
        return self.alone is not None and not self._near(self.alone, ROUGH.own)

    def _wrong(self) -> list[str]:
        """Weights whose rows of the Jacobian, by the plan, are not the plain ones; one example is looked at alone."""
        wrong = self._wrong_in(self.tracer.trace(self.inputs), range(EXAMPLES))
        if self.alone is not None:
            wrong |= self._wrong_in(self.tracer.trace(take(self.inputs, slice(0, 1))), range(1))
        return [name for name in self.tracer.names if name in wrong]

    def _wrong_in(self, tape: Tape, examples: range) -> set[str]:
        found = tape.pull(self.columns[:, examples.start : examples.stop])
        wrong: set[str] = set()
        for names in self.groups:
            own = {name: [each for each in found.items() if each[0].name == name] for name in names}
            rows = [self._rows(name, own[name], len(examples)) for name in names]
            plain = [gradient for example in examples for gradient in self._inside(example, names)]
            ours = [each[place] for place in range(len(examples)) for each in rows]
            wrong.update(self._apart(ours, plain, names * len(examples)))
        return wrong

    def _rows(self, name: str, found: list[tuple[Part, Matrix | Explicit]], number: int) -> Tensor:
        """(b, P): the combination of columns for one weight, from its ranges."""
        size = self.tracer.parameters[name].numel()
        each = [(part, combined(jacobian.rows(slice(0, number)).detach())) for part, jacobian in found]
        if len(each) == 1 and each[0][1].shape[-1] == size:
            return each[0][1]
        made = torch.zeros(number, size, dtype=self.tracer.dtype, device=self.output.device)
        for part, rows in each:
            made[:, part.start : part.stop] += rows
        return made

    def _apart(self, ours: list[Tensor], plain: list[Tensor], names: list[str]) -> list[str]:
        """Names of weights whose two derivatives differ by more than rounding.

        Where derivatives cancel, rounding errors have the size of what cancels: of the largest derivative, or of what
        outputs have beyond an offset that all examples share, over the weight.
        """
        differences = stacked_norms(torch._foreach_sub(ours, plain))
        sizes = stacked_norms(plain).maximum(stacked_norms(ours))
        finite = torch.isfinite(sizes)  # what is not is said elsewhere, with the weights
        weights = torch.stack([self.norms[name] for name in names])
        output = self.output.detach()
        through = (self.cotangent * (output - output.mean(0))).norm().double() / weights
        unit = torch.where(weights > 0, through, 0.0).maximum(torch.where(finite, sizes, 0.0).max())
        allowed = self.allowed.own * sizes + self.allowed.largest * unit
        off = (finite & ~(differences <= allowed)).tolist()  # one answer for all: the device is waited for
        return [name for name, wrong in zip(names, off, strict=True) if wrong]

    def _repeatable(self, bound: float) -> bool:
        """Whether the network's output is the same again."""
        first, again = self.output.detach(), self._call(self.inputs).detach()
        return again.shape == first.shape and bool((again - first).abs().max() <= bound * first.abs().max())

    def _step_back(self, wrong: list[str], vectorised: bool) -> None:
        """Take the next slower way for weights whose derivatives are wrong; the generic ones were `vectorised`."""
        plan = self.tracer.plan
        recorded = [name for name in wrong if name not in plan.generic]
        if recorded and plan.batched and not self._pulled(self.tracer.trace(self.inputs)):
            plan.batched = False
            plan.corrections += ("columns of the Jacobian go one by one, since several at once were off",)
        elif recorded:
            plan.generic.update(recorded)
            plan.corrections += (f"{', '.join(recorded)} took the generic rule, since the recorded ones were off",)
        elif vectorised:
            plan.vectorised = False
            plan.corrections += ("the generic rule takes examples one by one, since several at once were off",)
        else:
            raise ValueError(
                f"{', '.join(wrong)}: the derivatives of single examples are not those of plain reverse mode; expected "
                "a network whose output is the same for the same inputs."
            )

    def _pulled(self, tape: Tape) -> bool:
        """Whether several cotangents pulled back at once give what each gives by itself."""
        edges = [*(use.edge for use in tape.direct), *(lift.edge for lift in tape.lifts)]
        made = tape.pulled(tape.output, self.columns, edges)
        for column, cotangent in enumerate(self.columns):
            single = tape.pulled(tape.output, cotangent[None], edges)
            for ours, plain in zip(made, single, strict=True):
                if ours is None or plain is None:
                    continue
                if not bool((ours[column] - plain[0]).norm() <= self.allowed.own * plain.norm()):
                    return False
        return True

    def _references(self) -> set[str]:
        """Weights that the network also reaches otherwise than by its modules' attributes."""
        found: set[str] = set()
        for names in self.groups:
            leaves = {name: self.tracer.parameters[name].detach().clone().requires_grad_() for name in names}
            with copied_buffers(self.tracer.model):
                output = call(under(self.tracer.model, leaves, saved=False), self.inputs)
            gradients: tuple[Tensor | None, ...] = (None,) * len(names)
            if output.requires_grad:
                gradients = torch.autograd.grad(output, list(leaves.values()), self.cotangent, allow_unused=True)
            reached = [self._flat(each, own) for each, own in zip(gradients, leaves.values(), strict=True)]
            every = [self._inside(example, names) for example in range(EXAMPLES)]
            plain = [sum(pieces[1:], pieces[0]) for pieces in zip(*every, strict=True)]
            found.update(self._apart(reached, plain, names))
        return found


def combined(columns: Tensor) -> Tensor:
    """(2, ...) -> (...): one combination of both columns."""
    return torch.add(columns[0], columns[1], alpha=SHARE)


def stacked_norms(tensors: Sequence[Tensor]) -> Tensor:
    """(n,) in float64."""
    return torch.stack([each.double() for each in torch._foreach_norm(list(tensors))])
