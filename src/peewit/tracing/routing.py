"""Rows that are this or that example's, as the data has it: whose each row is, found anew in every batch.

A mixture of experts applies a weight to the tokens that were sent to it, and no axis of such rows holds the examples.
Gradients tell: the outputs of one example alone reach its own rows. Rows that no output depends on, such as those
behind dead units, are found by value in forward passes of single examples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..network.failures import FAILURES
from ..network.nests import Inputs, take
from .layers.contract import Use
from .layers.examples import OwnedRows
from .recording import Shown
from .tape import Tape

BASE = 32  # powers of two up to 2 ** 31 scale gradients in float32 without rounding them
ROUNDING = 8.0  # units of the last place, by which a scaled gradient may be off


def gradients_of(tape: Tape, edges: list[Any], chosen: Tensor) -> tuple[Tensor | None, ...]:
    """Gradients of some examples' outputs alone, or of outputs times a number for each example (B,), at the edges.

    Outputs are weighted at random: their plain sum has no gradient behind a softmax.
    """
    generator = torch.Generator("cpu").manual_seed(0)
    weight = torch.rand(tape.output.shape[1:], generator=generator, dtype=torch.float64, device="cpu") + 0.5
    probe = weight.to(tape.output) * chosen.to(tape.output).reshape(-1, *[1] * (tape.output.dim() - 1))
    return torch.autograd.grad(tape.output, edges, probe, retain_graph=True, allow_unused=True)


def powers(examples: int) -> list[Tensor]:
    """Powers of two (B,) each, which together tell examples apart: by the digits of their numbers in base `BASE`."""
    numbers = torch.arange(examples, device="cpu")
    scales: list[Tensor] = []
    while BASE ** len(scales) < examples:
        scales.append(2.0 ** (numbers // BASE ** len(scales) % BASE).double())
    return scales


def by_bits(examples: int) -> list[Tensor]:
    """Booleans (B,) each: for every binary digit of the examples' numbers, those that have it and those that do not."""
    numbers = torch.arange(examples, device="cpu")
    having = [(numbers >> bit) % 2 == 1 for bit in range((examples - 1).bit_length())]
    return [each for mask in having for each in (mask, ~mask)]


def whose(hits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """From which of `by_bits` reach each row, (2 digits, R): its example (R,), whether it has one, or none."""
    having, lacking = hits[::2], hits[1::2]
    digits = torch.arange(len(having), device=hits.device)[:, None]
    owners = (having.long() << digits).sum(0)
    return owners, (having ^ lacking).all(0), ~hits.any(0)


@dataclass
class Routing:
    """One batch of a network, looked at for rows that are not where they are known to be."""

    tape: Tape
    watch: Callable[[Inputs], Shown]  # what a forward pass of other inputs shows

    def own_empty(self) -> None:
        """Uses without any row have nothing to find."""
        for use in self.tape.direct:
            if use.axes and use.shape[use.axes[0]] == 0:
                self._assign(use, torch.zeros(0, dtype=torch.long, device=self.tape.output.device))

    def look(self, shuffles: bool) -> None:
        """Find whose each row is where that is to be found; where that fails, the weight takes the generic rule.

        A network that may reorder its examples may do so in some batches only: gradients of one half of the examples
        must not reach what is known as rows of the other half. A use where they do is routed too.
        """
        tape = self.tape
        routed = [use for use in tape.direct if self._is_routed(use)]
        if not routed and not shuffles:
            return
        self.own_empty()
        routed = [use for use in routed if use.key not in tape.owned]
        fixed = [use for use in tape.direct if shuffles and self._is_fixed(use)]
        if not routed and not fixed:
            return
        if not self._find_by_scale(routed, fixed):
            self._find_by_reach(routed, fixed, shuffles)

    def _find_by_scale(self, routed: list[Use], fixed: list[Use]) -> bool:
        """Find rows' examples in few passes: outputs times powers of two give gradients times the same powers.

        Whether that told all: a row that several examples reach is not scaled by any of their powers, nor are gradients
        that overflow. A share in a row that is lost in rounding is not seen.
        """
        tape, device = self.tape, self.tape.output.device
        edges = [use.edge for use in (*routed, *fixed)]
        plain = gradients_of(tape, edges, torch.ones(tape.examples, device=device))
        owners = [torch.zeros(use.shape[use.axes[0]], dtype=torch.long, device=device) for use in routed]
        right: list[Tensor] = []
        for digit, scales in enumerate(powers(tape.examples)):
            scales = scales.to(device)
            scaled = gradients_of(tape, edges, scales)
            for number, (use, first, gradient) in enumerate(zip((*routed, *fixed), plain, scaled, strict=True)):
                if first is None or gradient is None:
                    continue
                both = [tensor.reshape(use.shape) for tensor in (first, gradient)]
                if number < len(routed):
                    one, other = (flat(tensor.movedim(use.axes[0], 0)) for tensor in both)
                    numbers = (sizes(other) / sizes(one)).log2().round().nan_to_num(0.0).clamp(0, BASE - 1)
                    owners[number] += numbers.long() * BASE**digit
                    right.append(is_scaled(one, other, 2.0**numbers))
                else:
                    where: Any = tape.axis(use.key)
                    one, other = (flat(where.split(tensor, tape.examples)) for tensor in both)
                    right.append(is_scaled(one, other, scales))
        right += [(rows < tape.examples).all() for rows in owners]
        if right and not bool(torch.stack(right).all()):
            return False
        for number, use in enumerate(routed):
            first = plain[number]
            none = torch.ones_like(owners[number], dtype=torch.bool) if first is None else ~self._rows_hit(use, first)
            self._settle(use, owners[number], none)
        return True

    def _find_by_reach(self, routed: list[Use], fixed: list[Use], shuffles: bool) -> None:
        """Find rows' examples by which of `by_bits` reach them: nothing rests on rounding."""
        tape = self.tape
        hits: dict[str, list[Tensor]] = {use.key: [] for use in routed}
        astray: list[Tensor] = []
        for half in by_bits(tape.examples):
            chosen = half.to(tape.output.device)
            gradients = gradients_of(tape, [use.edge for use in (*routed, *fixed)], chosen)
            for use, gradient in zip(routed, gradients, strict=False):
                hits[use.key].append(self._rows_hit(use, gradient))
            others = gradients[len(routed) :]
            astray += [self._strays(*each, chosen) for each in zip(fixed, others, strict=True)]
        strays = torch.stack(astray).reshape(-1, len(fixed)).any(0).tolist() if fixed else []
        for use in (use for use, stray in zip(fixed, strays, strict=True) if stray):
            tape.learner.expect_owned(use, tape.signature)
        if any(strays):
            self.look(shuffles)
            return
        for use in routed:
            owners, single, none = whose(torch.stack(hits[use.key]))
            if bool((single | none).all()):
                self._settle(use, owners, none)
            else:
                self.tape.learner.make_generic(use.names)

    def _is_routed(self, use: Use) -> bool:
        axis = self.tape.axis(use.key)
        return axis is not None and axis.fold == "owned"

    def _is_fixed(self, use: Use) -> bool:
        axis = self.tape.axis(use.key)
        if axis is None or axis.fold == "owned" or set(use.names) & self.tape.learner.knowledge.generic:
            return False
        return self.tape.learner.knowledge.fits(use, self.tape.signature, self.tape.examples)

    def _rows_hit(self, use: Use, gradient: Tensor | None) -> Tensor:
        """(R,): rows that a gradient reaches."""
        axis = use.axes[0]
        if gradient is None:
            return torch.zeros(use.shape[axis], dtype=torch.bool, device=self.tape.output.device)
        return (flat(gradient.reshape(use.shape).movedim(axis, 0)) != 0).any(1)

    def _strays(self, use: Use, gradient: Tensor | None, chosen: Tensor) -> Tensor:
        """Whether the gradient of the chosen examples reaches the rows of others."""
        axis = self.tape.axis(use.key)
        if gradient is None or axis is None:
            return torch.zeros((), dtype=torch.bool, device=chosen.device)
        return (axis.split(gradient.reshape(use.shape), self.tape.examples)[~chosen] != 0).any()

    def _assign(self, use: Use, owners: Tensor) -> None:
        self.tape.owned[use.key] = OwnedRows.of(use.axes[0], owners, self.tape.examples)

    def _settle(self, use: Use, owners: Tensor, none: Tensor) -> None:
        examples = self._by_value(use, owners, none) if bool(none.any()) else owners
        if examples is None:
            self.tape.learner.make_generic(use.names)
        else:
            self._assign(use, examples)

    @cached_property
    def _alone(self) -> list[Shown] | None:
        """What each example alone shows of every use; None where the network does not take a single one."""
        tape = self.tape
        try:
            return [self.watch(take(tape.inputs, slice(each, each + 1))) for each in range(tape.examples)]
        except FAILURES:
            return None

    def _by_value(self, use: Use, owners: Tensor, none: Tensor) -> Tensor | None:
        """Examples of all rows (R,): rows without a gradient have the inputs that their example has alone.

        None where what examples have alone is not what they have together.
        """
        if not use.rule.matrix or not use.inputs:
            return owners  # without a gradient such rows are zero, whoever has them
        if self._alone is None:
            return None
        rows = by_row(use.inputs, use.axes[0])
        bound = 1e-2 if use.dtype in (torch.float16, torch.bfloat16) else 1e-4
        allowed = bound * float(rows.abs().max())
        examples, free = owners.tolist(), none.nonzero().flatten().tolist()
        reached = (~none).cpu()
        for example, seen in enumerate(self._alone):
            rows_alone = by_row(seen[use.key], use.axes[0]) if use.key in seen else rows[:0]
            unmatched = list(range(len(rows_alone)))
            for row in (reached & (owners.cpu() == example)).nonzero().flatten().tolist():
                if take_nearest(rows[row], rows_alone, unmatched, allowed) is None:
                    return None
            for number in unmatched:
                row = take_nearest(rows_alone[number], rows, free, allowed)
                if row is None:
                    return None
                examples[row] = example
        return None if free else torch.tensor(examples, device=owners.device)


def flat(rows: Tensor) -> Tensor:
    """(R, ...) -> (R, real numbers)."""
    real = torch.view_as_real(rows) if rows.is_complex() else rows
    return real.reshape(len(rows), -1)


def sizes(rows: Tensor) -> Tensor:
    """(R, numbers) -> (R,): the largest of each row."""
    largest: Tensor = torch.linalg.vector_norm(rows, torch.inf, 1)
    return largest.double()


def is_scaled(rows: Tensor, others: Tensor, scales: Tensor) -> Tensor:
    """Whether others are the rows (R, numbers) times the scales (R,), but for rounding."""
    allowed = ROUNDING * torch.finfo(rows.dtype).eps * scales * sizes(rows)
    return (sizes(others.double() - rows.double() * scales[:, None]) <= allowed).all()


def by_row(inputs: tuple[Tensor, ...], axis: int) -> Tensor:
    """(R, numbers): what a use was given for each row, on the CPU."""
    rows = [tensor.detach().movedim(axis, 0).reshape(tensor.shape[axis], -1) for tensor in inputs if tensor.numel()]
    return torch.cat(rows, 1).double().cpu() if rows else torch.zeros(0, 1, dtype=torch.float64, device="cpu")


def take_nearest(target: Tensor, rows: Tensor, pool: list[int], allowed: float) -> int | None:
    """The row of the pool that is nearest to the wanted one, taken out of it; None where none is near."""
    if not pool:
        return None
    gaps = (rows[pool] - target).abs().amax(1)
    best = int(gaps.argmin())
    return pool.pop(best) if float(gaps[best]) <= allowed else None
