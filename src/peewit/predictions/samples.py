"""Outputs of the linearised network at drawn weights, and covariances estimated from them."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..messages.warnings import warn
from ..network.buffers import restore_buffers
from ..network.calling import call, with_weights
from ..network.nests import Inputs, count, take
from ..posterior.network import EXACT_OUTPUTS, Network, is_exact
from ..tracing.forward_mode import apply
from ..weights.vectors import unflatten
from .covariance import Functional, require_gradients

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

SAMPLES = 64  # forward-mode samples above that


def linearised_samples(network: Network, x: Inputs, deviations: Tensor) -> Tensor:
    """(S, D) deviations from the weights -> (S, B, ...): the linearised network, jointly right over inputs."""
    x = network.prepare(x)
    outputs = []
    with network.isolated():
        closed = network.is_closed(x)
        if not is_exact(network.outputs(x), closed):
            return _finite_samples(network, _pushed_samples(network, x, deviations), x)
        for tape in network.tapes(x, probes=len(deviations) if closed else None):
            mean = tape.output.detach()
            shift = apply(tape.pull_outputs(), network.space, deviations)
            shift = shift.transpose(1, 2).reshape(len(deviations), *mean.shape)
            outputs.append(mean + shift.detach().to(mean.dtype))
        return _finite_samples(network, torch.cat(outputs, 1), x)


def _finite_samples(network: Network, outputs: Tensor, x: Inputs) -> Tensor:
    """The same (S, B, ...), unless they hold NaN or Inf."""
    network.refuse_broken([outputs.transpose(0, 1)], x)
    return outputs


def _pushed_samples(network: Network, x: Inputs, deviations: Tensor) -> Tensor:
    """The same for networks with many outputs: forward mode, whose cost does not grow with them."""
    cost = network.knowledge.cost(x)
    outputs = []
    # Fused attention has no forward mode.
    with sdpa_kernel([SDPBackend.MATH]):
        for chosen in network.pieces(x, 8 * cost):
            part = take(x, chosen)
            step = network.budget.count(8 * cost * count(part), len(deviations))
            pushed = [network.push(part, some) for some in deviations.split(step)]
            mean = pushed[0][0]
            outputs.append(mean + torch.cat([shift for _, shift in pushed]).to(mean.dtype))
    return torch.cat(outputs, 1)


def shifted_outputs(network: Network, x: Inputs, shift: Tensor) -> Tensor:
    """(B, ...): `f + J v` for one vector (D,), by forward mode."""
    x = network.prepare(x)
    with network.isolated():
        network.outputs(x)  # so that its cost is known
        outputs = _pushed_samples(network, x, shift[None])[0]
    network.refuse_broken([outputs], x)
    return outputs


def network_samples(network: Network, x: Inputs, deviations: Iterable[Tensor], create_graph: bool = False) -> Tensor:
    """(S, B, ...): outputs of the network itself at deviations (s, D) from its weights, which come some at a time."""
    x = network.prepare(x)
    if create_graph:
        require_gradients(x)
    rows = []
    with network.isolated(), torch.set_grad_enabled(create_graph):
        with torch.enable_grad():
            network.outputs(x)  # so that its cost is known
        for some in deviations:
            slices = network.pieces(x, 2.0 * network.knowledge.cost(x) * len(some), 0.4)
            rows.append(torch.cat([_at(network, take(x, chosen), some) for chosen in slices], 1))
        outputs = torch.cat(rows)
        network.refuse_broken([outputs.detach().transpose(0, 1)], x)
        return outputs


def _at(network: Network, x: Inputs, deviations: Tensor) -> Tensor:
    """(S, B, ...): outputs at the network's weights plus deviations; its own weights are never written to."""
    trained = {name: network.model.get_parameter(name).detach() for name in network.space.names}

    def run(deviation: Tensor) -> Tensor:
        shifts = unflatten(deviation, network.space)
        weights = {name: weight + shifts[name].to(weight.dtype) for name, weight in trained.items()}
        return call(with_weights(network.model, weights), x)

    # Fused attention has no batching rule.
    with sdpa_kernel([SDPBackend.MATH]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        warnings.filterwarnings("ignore", message="An output with one or more elements was resized")  # torch's own
        try:
            outputs: Tensor = vmap(run, randomness="same")(deviations)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError):  # what cannot be mapped over weights: one after the other
            restore_buffers(network.model)
            outputs = torch.stack([run(deviation) for deviation in deviations])
    restore_buffers(network.model)
    return outputs


def sampled_functional(network: Network, la: PosteriorState, x: Inputs, seed: int, variance_only: bool) -> Functional:
    """The covariance from a fixed set of samples of the outputs: for networks with many."""
    x = network.prepare(x)
    mean = _outputs(network, x)
    form = network.form(mean)
    total: Tensor | None = None
    for flat in _spreads(network, la, x, mean, seed):
        products = flat.square().sum(0) if variance_only else torch.einsum("sbtc,sbtd->btcd", flat, flat)
        total = products if total is None else total + products
    assert total is not None
    if variance_only:
        return Functional(mean, form.restore(total / SAMPLES))
    positions = () if form.axis is None else form.shape[: form.axis] + form.shape[form.axis + 1 :]
    return Functional(mean, (total / SAMPLES).reshape(mean.shape[0], *positions, *total.shape[-2:]))


def sampled_factor(network: Network, la: PosteriorState, x: Inputs, seed: int) -> Functional:
    """The same covariance as a factor (B, T, C, S): `factor factor^T`, smaller where there are more outputs than S."""
    x = network.prepare(x)
    mean = _outputs(network, x)
    spread = torch.cat(list(_spreads(network, la, x, mean, seed)))
    return Functional(mean, spread.movedim(0, -1) / math.sqrt(SAMPLES))


def _outputs(network: Network, x: Inputs) -> Tensor:
    """(B, ...): the network's outputs, without a graph."""
    with network.isolated():
        parts = network.slices(x)
        with torch.no_grad():
            return torch.cat([call(network.model, take(x, chosen)) for chosen in parts])


def _spreads(network: Network, la: PosteriorState, x: Inputs, mean: Tensor, seed: int) -> Iterator[Tensor]:
    """(s, B, T, C): deviations of the outputs from their mean, SAMPLES in all, in parts that fit the budget."""
    warn(
        f"Covariances of {mean[0].numel()} outputs per example are estimated from {SAMPLES} samples, with a relative "
        f"error of about {math.sqrt(2 / SAMPLES):.0%}. They are exact up to {EXACT_OUTPUTS} outputs, and for variances "
        "where the last layer alone is uncertain (weights='last_layer')."
    )
    generator = torch.Generator(la.weights.device).manual_seed(seed)
    form = network.form(mean)
    step = network.budget.count(3 * la.D * la.weights.itemsize, SAMPLES)
    for some in torch.arange(SAMPLES, device="cpu").split(step):
        samples = linearised_samples(network, x, la.deviations(len(some), generator))
        yield form.flatten(samples - mean).to(torch.promote_types(mean.dtype, torch.float32))
