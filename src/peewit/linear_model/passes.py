"""Passes of a network over its training data: products with its Jacobian and with the transpose."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..curvature.pieces import LabelledPiece, Pieces
from ..likelihoods import Form, Likelihood
from ..network.batches import Batches
from ..network.buffers import restore_buffers
from ..network.calling import call
from ..posterior.network import Network
from ..runtime.progress import Progress


class Passes:
    """Passes over data, each with the same pieces; call inside `isolated`."""

    def __init__(
        self, network: Network, likelihood: Likelihood, data: Batches, form: Form | None, progress: Progress
    ) -> None:
        self.network = network
        self.pieces = Pieces(
            data=data, likelihood=likelihood, network=network, budget=network.budget, form=form, progress=progress
        )

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """The network in evaluation mode, as for any question."""
        # Fused attention has no forward mode; one kernel for both products keeps them transposes of each other.
        with self.network.isolated(), sdpa_kernel([SDPBackend.MATH]):
            yield

    def push(self, piece: LabelledPiece, vector: Tensor, names: Collection[str] | None = None) -> tuple[Tensor, Tensor]:
        """Outputs and `J v`, (N, T, C) each, for a vector (D,), which is zero but for the named weights, if any are."""
        output, pushed = self.network.push(piece.inputs, vector[None], names)
        return piece.labels.flat(output), piece.labels.flat(pushed[0])

    def pull(self, piece: LabelledPiece, probe: Callable[[Tensor], Tensor], total: Tensor) -> None:
        """Add `J^T c` to a vector over all elements of the named tensors; c (N, T, C) is a function of the outputs."""
        model, space = self.network.model, self.network.space
        leaves = {name: model.get_parameter(name).detach().requires_grad_() for name in space.names}
        places = {
            name: total[elements].view(shape)
            for (name, elements), shape in zip(space.slices().items(), space.shapes, strict=True)
        }
        direct = all(leaf.dtype == total.dtype for leaf in leaves.values())
        for name, leaf in leaves.items() if direct else ():
            leaf.grad = places[name]  # gradients are added where they belong, one tensor after the other
        with torch.enable_grad():
            output = call(self.network.learner.with_weights(model, leaves, piece.inputs), piece.inputs)
        values = piece.labels.form.restore(probe(piece.labels.flat(output.detach()))).to(output.dtype)
        if direct:
            torch.autograd.backward(output, values, inputs=list(leaves.values()))
            for name, leaf in leaves.items():
                if leaf.grad is not None and leaf.grad.data_ptr() != places[name].data_ptr():
                    places[name].copy_(leaf.grad)
        else:
            pulled = torch.autograd.grad(output, list(leaves.values()), values, allow_unused=True)
            for name, gradient in zip(leaves, pulled, strict=True):
                if gradient is not None:
                    places[name].add_(gradient.to_dense())
        restore_buffers(model)
