"""A network's derivatives as training has them: plain reverse mode, without recording and without transforms.

With them comes how far rounding may take them, and the outputs: more than usual where numbers cancel.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..network.buffers import copied_buffers
from ..network.calling import call, with_weights
from ..network.failures import FAILURES
from ..network.kept import kept_tensors
from ..network.modules import quantised_modules
from ..network.nests import Inputs, count, map_tensors, take
from ..runtime.arithmetic import convolutions_rounded, products_rounded
from .tape import Tape

EXAMPLES = 2
PROBES, SHARE = 2, 0.5  # pulled back at once, and compared by the first plus this share of the second
LEAST = 1e-6  # the size of outputs, beside the probes, below which what cancels in them may have been larger
NOISE = 4.0  # times the rounding of plain derivatives, which may be off themselves where they cancel
DRAWS = 8  # of other last digits of the weights: what is left of terms that cancel may be nothing by luck
VIEWS = (slice(0, 2), slice(0, 1), slice(1, 2))  # both examples, and each of them alone


class Bounds(NamedTuple):
    """How far derivatives may be apart, by their own size and the largest's, and outputs of the same kernels."""

    relative: float
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


@dataclass(kw_only=True)
class PlainDerivatives:
    """A network at two examples, and its derivatives by all selected weights."""

    model: nn.Module
    parameters: dict[str, nn.Parameter]  # the selected ones
    dtype: torch.dtype  # of derivatives
    inputs: Inputs
    allowed: Bounds

    def call(self, inputs: Inputs) -> Tensor:
        """The outputs (B, ...); the network's buffers stay as they are."""
        with copied_buffers(self.model):
            return call(self.model, inputs)

    @cached_property
    def output(self) -> Tensor:
        """(B, ...), with its graph and nothing recorded."""
        return self.call(self.inputs)

    @cached_property
    def probes(self) -> Tensor:
        """(K, B, ...): random ones."""
        generator = torch.Generator("cpu").manual_seed(0)
        shape = (PROBES, *self.output.shape)
        return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu").to(self.output)

    @cached_property
    def combined(self) -> Tensor:
        """(B, B, ...): the combination of probes that is compared, by the example whose it is, and zeros."""
        sums = self.output.new_zeros(EXAMPLES**2, *self.output.shape[1:])
        sums[:: EXAMPLES + 1] = torch.add(*self.probes, alpha=SHARE)
        return sums.reshape(EXAMPLES, *self.output.shape)

    def inside(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """Flat gradients of one example's output after the other, inside their batch."""
        return [each for probe in self.combined for each in self.gradients(self.output, parameters, probe)]

    def gradients(self, output: Tensor, parameters: Sequence[Tensor], probe: Tensor) -> list[Tensor]:
        """Of the outputs times a probe (B, ...), flat, by each parameter."""
        gradients = torch.autograd.grad(output, parameters, probe, retain_graph=True, allow_unused=True)
        return [self._flat(each, parameter) for each, parameter in zip(gradients, parameters, strict=True)]

    def _flat(self, gradient: Tensor | None, parameter: Tensor) -> Tensor:
        if gradient is None:
            return torch.zeros(parameter.numel(), dtype=self.dtype, device=parameter.device)
        return (gradient.to_dense() if gradient.is_sparse else gradient).flatten().to(self.dtype)

    def is_repeatable(self, bound: float) -> bool:
        """Whether the network's output is the same again."""
        first, again = self.output.detach(), self.call(self.inputs).detach()
        return again.shape == first.shape and bool((again - first).abs().max() <= bound * first.abs().max())

    def _nudged_weights(self) -> Iterator[dict[str, Tensor]]:
        """Weights whose last digits are others, a few times; never where outputs change on their own."""
        weights = [(name, weight.detach()) for name, weight in self.model.named_parameters()]
        generators = {weight.device: torch.Generator(weight.device).manual_seed(0) for _, weight in weights}
        for _ in range(DRAWS if self.is_repeatable(self.allowed.output) else 0):
            others = (
                (name, nudge(weight, generators[weight.device]))
                for name, weight in weights
                if weight.is_floating_point()
            )
            # As parameters: a network that makes parameters of other tensors, as slices of lists do, loses their graph.
            yield {name: nn.Parameter(weight.detach()) for name, weight in others}

    def _at(self, weights: dict[str, Tensor], inputs: Inputs) -> Tensor | None:
        """The output with other weights, where the network takes them and its output depends on them."""
        try:
            with copied_buffers(self.model):
                output = call(with_weights(self.model, weights), inputs)
        except FAILURES:
            return None
        return output if output.requires_grad and output.shape == (count(inputs), *self.output.shape[1:]) else None

    @cached_property
    def last_digits(self) -> float:
        """How far rounding may take the outputs: a few times as far as other last digits of the weights take them."""
        outputs = (self._at(weights, self.inputs) for weights in self._nudged_weights())
        moves = [float((output - self.output).detach().abs().max()) for output in outputs if output is not None]
        return NOISE * max((each for each in moves if math.isfinite(each)), default=0.0)

    def shifts(self, names: list[str]) -> Tensor:
        """(weights,): how far other last digits of the weights take plain derivatives, in the batch and alone."""
        shifts = torch.zeros(len(names), dtype=torch.float64)
        for view in VIEWS:
            first: list[Tensor] = []
            probes, generator = self.probes, torch.Generator(self.probes.device).manual_seed(0)
            trained: dict[str, Tensor] = dict(self.model.named_parameters())
            for weights in itertools.chain([trained], self._nudged_weights()):
                output = self._at(weights, take(self.inputs, view))
                if output is None:
                    break
                rows = self._each(output, [weights[name] for name in names], probes[:, view])
                first, probes = first or rows, nudge(self.probes, generator).detach()
                shifts = shifts.maximum(furthest(first, rows, len(names)))
        return shifts

    def _each(self, output: Tensor, parameters: Sequence[Tensor], probes: Tensor) -> list[Tensor]:
        """Plain derivatives of outputs (B, ...), each example's alone, by the probes (K, B, ...) and as compared."""
        rows: list[Tensor] = []
        for probe in (*probes, torch.add(*probes, alpha=SHARE)):
            for number, row in enumerate(probe.to(output)):
                alone = torch.zeros_like(output)
                alone[number] = row
                rows += self.gradients(output, parameters, alone)
        return rows

    def cancelling(self) -> Tensor:
        """(weights,): the size of derivatives that cancel, by what outputs have beyond an offset that they share."""
        norms, output = stacked_norms([each.detach() for each in self.parameters.values()]), self.output.detach()
        probes = self.combined.sum(0)
        through = (probes * (output - output.mean(0))).norm().maximum(LEAST * probes.norm()).double()
        return torch.where(norms > 0, through / norms, 0.0).cpu()

    def noise(self, names: list[str]) -> Tensor:
        """(weights,): how far plain derivatives, in the batch and alone, are from those of the network in float64.

        What is left of terms that cancel may be nothing for one of them. Zeros where it does not run in float64.
        """
        kept = {id(tensor): tensor.detach() for _, tensor in kept_tensors(self.model)}  # with a graph: no copies
        noise = torch.zeros(len(names), dtype=torch.float64)
        try:
            twin = copy.deepcopy(self.model, kept).double()
            wide = map_tensors(lambda t: t.double() if t.is_floating_point() else t, self.inputs)
            plain, exact = ([each.get_parameter(name) for name in names] for each in (self.model, twin))
            for view in VIEWS:
                probes = self.probes[:, view]
                rows = self._each(self.call(take(self.inputs, view)), plain, probes)
                others = self._each(call(twin, take(wide, view)), exact, probes)
                noise = noise.maximum(furthest(rows, others, len(names)))
        except Exception:  # whatever the network says to float64, or to a single example
            return noise
        return noise


def furthest(rows: list[Tensor], others: list[Tensor], number: int) -> Tensor:
    """(weights,) on the CPU: norms of differences of derivatives, of the example for which they are largest."""
    norms = stacked_norms([*torch._foreach_sub(rows, others)]).reshape(-1, number)
    return norms.nan_to_num(0.0, 0.0).amax(0).cpu()


def nudge(tensor: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers with other last digits."""
    share = torch.rand(tensor.shape, generator=generator, dtype=torch.float32, device=tensor.device).to(tensor.dtype)
    return (tensor + tensor * (torch.finfo(tensor.dtype).eps * (4 * share - 2))).requires_grad_()


def stacked_norms(tensors: list[Tensor]) -> Tensor:
    """(n,) in float64."""
    return torch.stack(torch._foreach_norm(tensors)).double()
