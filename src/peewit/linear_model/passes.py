"""Passes of a network over its training data: products with its Jacobian and with the transpose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..curvature.stream import MERGED_CPU, MERGED_CUDA, MERGED_EXAMPLES
from ..likelihoods import Form, Labelled, Likelihood
from ..network.batches import Batches, merge_batches
from ..network.buffers import restore_buffers
from ..network.calling import call
from ..network.finite import InExample, Watch
from ..network.nests import Inputs, count, take, tensors
from ..posterior.network import Network
from ..runtime.progress import Progress


@dataclass(frozen=True)
class Part:
    """Some examples, with targets in the likelihood's form."""

    inputs: Inputs
    labels: Labelled


@dataclass(eq=False)
class Passes:
    """A network, its likelihood and data; call inside `asked`."""

    network: Network
    likelihood: Likelihood
    batches: Batches
    like: Form | None  # of the fit's outputs
    progress: Progress

    @contextmanager
    def asked(self) -> Iterator[None]:
        """The network in evaluation mode, as for any question."""
        # Fused attention has no forward mode; one kernel for both products keeps them transposes of each other.
        with self.network.asked(), sdpa_kernel([SDPBackend.MATH]):
            yield

    def parts(self, what: str) -> Iterator[Part]:
        """All examples, in pieces whose activations fit the budget: the same ones in every pass."""
        watch = Watch()
        source = self.progress.track(self.batches, len(self.batches), what)
        seen = 0
        for inputs, targets in merge_batches(watch.count_batches(source), self._most, self.batches.stored):
            try:
                labels = self._checked(inputs, targets)
            except InExample as error:
                raise watch.locate(error, seen) from None
            seen += count(inputs)
            step = self.network.budget.count(7 * self.network.plan.cost(inputs), count(inputs))
            for start in range(0, count(inputs), step):
                chosen = slice(start, start + step)
                yield Part(take(inputs, chosen), labels.some(chosen))

    def _most(self, inputs: Inputs) -> int:
        """Up to how many examples small batches are put together."""
        self.network.outputs(inputs)  # so that its cost is known
        cap = MERGED_CUDA if tensors(inputs)[0].device.type == "cuda" else MERGED_CPU
        bytes_ = min(cap, self.network.budget.bytes)
        return max(1, min(MERGED_EXAMPLES, int(bytes_ / (7 * self.network.plan.cost(inputs)))))

    def _checked(self, inputs: Inputs, targets: Tensor) -> Labelled:
        shape = (count(inputs), *self.network.plan.shape(inputs))
        return Labelled.of(self.likelihood, torch.empty(shape, device="meta"), targets, self.like).checked()

    def push(self, part: Part, vector: Tensor, names: Collection[str] | None = None) -> tuple[Tensor, Tensor]:
        """Outputs and `J v`, (N, T, C) each, for a vector (D,), which is zero but for the named weights, if any are."""
        output, pushed = self.network.push(part.inputs, vector[None], names)
        return part.labels.flat(output), part.labels.flat(pushed[0])

    def pull(self, part: Part, probe: Callable[[Tensor], Tensor], total: Tensor) -> None:
        """Add `J^T c` to a vector over all elements of the named tensors; c (N, T, C) is a function of the outputs."""
        model, space = self.network.model, self.network.space
        leaves = {name: model.get_parameter(name).detach().requires_grad_() for name in space.names}
        places = {
            name: total[place].view(shape)
            for (name, place), shape in zip(space.slices().items(), space.shapes, strict=True)
        }
        direct = all(leaf.dtype == total.dtype for leaf in leaves.values())
        for name, leaf in leaves.items() if direct else ():
            leaf.grad = places[name]  # gradients are added where they belong, one tensor after the other
        with torch.enable_grad():
            output = call(self.network.plan.with_weights(model, leaves, part.inputs), part.inputs)
        given = part.labels.form.restore(probe(part.labels.flat(output.detach()))).to(output.dtype)
        if direct:
            torch.autograd.backward(output, given, inputs=list(leaves.values()))
            for name, leaf in leaves.items():
                if leaf.grad is not None and leaf.grad.data_ptr() != places[name].data_ptr():
                    places[name].copy_(leaf.grad)
        else:
            found = torch.autograd.grad(output, list(leaves.values()), given, allow_unused=True)
            for name, gradient in zip(leaves, found, strict=True):
                if gradient is not None:
                    places[name].add_(gradient.to_dense())
        restore_buffers(model)
