"""From weights to outputs: functional covariances and samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from ..curvature.blocks import Blocks
from ..jacobians.explicit import Explicit
from ..jacobians.factored import Matrix
from ..jacobians.output_layer import (
    OutputLayerJacobian,
    OutputSpectrum,
    Piece,
    covariance_of_spectra,
    identity_probes,
    variance_of_spectra,
)
from ..likelihoods import Form
from ..messages.errors import PeewitError
from ..network.nests import Inputs, take, tensors
from ..posterior.network import Network, require_exact
from ..tracing.tape import Tape
from ..tracing.tracer import Tracer
from ..weights.ranges import WeightRange


class Functional(NamedTuple):
    """The Gaussian over the network's outputs, without noise.

    `la.functional(x)` returns it. B is the number of inputs and C the number of outputs.

    Attributes:
        mean: Mean of the outputs (B, ...), in the outputs' shape.
        cov: Covariance of the outputs (B, *positions, C, C); (B, C, B, C) over flattened outputs with `joint=True`; the
            variances (B, ...) with `variance_only=True`.

    Example:
        >>> mean, cov = la.functional(x[:5])
        >>> mean.shape, cov.shape
        (torch.Size([5, 3]), torch.Size([5, 3, 3]))
    """

    mean: Tensor
    cov: Tensor


def exact_functional(
    network: Network, precision: Blocks, x: Inputs, joint: bool, variance_only: bool, create_graph: bool = False
) -> Functional:
    """Mean and covariance of the outputs under the linearised network; with their graph back to x on request."""
    with prepare_inputs(network, x, create_graph) as ready:
        return _functional(network, precision, ready, joint, variance_only, create_graph)


def compact(
    network: Network, precision: Blocks, x: Inputs, joint: bool, create_graph: bool = False
) -> Functional | Spectral:
    """The same, without a covariance for every example where it has such a form."""
    with prepare_inputs(network, x, create_graph) as ready:
        spectral = None if joint else _spectral(network, precision, ready, create_graph)
        return _functional(network, precision, ready, joint, False, create_graph) if spectral is None else spectral


@contextmanager
def prepare_inputs(network: Network, x: Inputs, create_graph: bool) -> Iterator[Inputs]:
    """Inputs that are ready to be asked about, inside `Network.isolated`."""
    with torch.set_grad_enabled(create_graph or torch.is_grad_enabled()):
        x = network.prepare(x)
    if create_graph:
        require_gradients(x)
    with network.isolated():
        yield x


def _functional(
    network: Network, precision: Blocks, x: Inputs, joint: bool, variance_only: bool, create_graph: bool
) -> Functional:
    keep = alone if create_graph else torch.detach
    closed = network.is_closed(x) and not joint
    require_exact(network.outputs(x), closed)
    if joint:
        return finite(network, _joint(network, precision, x, create_graph), x)
    means, covariances = [], []
    probes = None if not closed else 1 if variance_only else Form(network.axis, network.knowledge.shape(x)).outputs
    for tape in network.tapes(x, create_graph, probes):
        form = network.form(tape.output)
        covariance = _covariance(precision, tape, form, variance_only)
        means.append(keep(tape.output))
        covariances.append(_arrange(keep(covariance), form, variance_only))
    return finite(network, Functional(torch.cat(means), torch.cat(covariances)), x)


def _covariance(precision: Blocks, tape: Tape, form: Form, variance_only: bool) -> Tensor:
    """(B, F, F), (B, F) variances, or (B, T, C, C) where the outermost layer alone is uncertain."""
    with tape.budget.arithmetic.passes(predicting=True):
        jacobians = tape.pull_outputs()
    spectra = aligned_spectra(precision, jacobians, form) if tape.closed else None
    if spectra is not None:
        if not variance_only:
            return covariance_of_spectra(spectra)
        return form.restore(variance_of_spectra(spectra)).reshape(tape.examples, -1)
    # Variances have a closed form whatever the structure; so have covariances of outputs without positions.
    require_exact(math.prod(form.shape), variance_only or all(map(without_positions, jacobians.values())))
    return precision.quad(jacobians, variance_only or (form.positions > 1 and form.outputs == 1))


def covariance_blocks(precision: Blocks, tape: Tape, form: Form) -> Tensor:
    """(B, T, C, C): covariances of the outputs at every position."""
    covariance = _arrange(_covariance(precision, tape, form, False), form, False)
    return covariance.detach().reshape(tape.examples, form.positions, form.outputs, form.outputs)


def aligned_spectra(
    precision: Blocks, jacobians: Mapping[WeightRange, Piece], form: Form
) -> list[OutputSpectrum] | None:
    """Bases (C, R) and weights (B, T, R) of the covariance, where rows of the weight are outputs of the likelihood."""
    return precision.spectra(jacobians) if are_aligned(jacobians, form) else None


def are_aligned(jacobians: Mapping[WeightRange, Piece], form: Form) -> bool:
    """Whether rows of an outermost layer's weights are outputs of the likelihood."""
    order = form.flatten(torch.arange(math.prod(form.shape), device="cpu").reshape(form.shape))
    return all(
        isinstance(piece, OutputLayerJacobian) and piece.groups == 1 and torch.equal(piece.order[0], order)
        for piece in jacobians.values()
    )


def without_positions(piece: Piece) -> bool:
    """Whether a Jacobian is of an outermost layer that is applied once."""
    return isinstance(piece, OutputLayerJacobian) and piece.order.shape[:2] == (1, 1)


class Spectral(NamedTuple):
    """The Gaussian over the outputs as `basis diag(deviation^2) basis^T` at every place: never C x C for each."""

    mean: Tensor  # (B, ...)
    basis: Tensor | None  # (C, R); None: the identity
    deviation: Tensor  # (B, T, R)


def _spectral(network: Network, precision: Blocks, x: Inputs, create_graph: bool) -> Spectral | None:
    """The Gaussian over the outputs in that form; None where it has none."""
    if not network.is_closed(x):
        return None
    keep = alone if create_graph else torch.detach
    means: list[Tensor] = []
    weights: list[Tensor] = []
    bases: list[Tensor] = []
    for tape in network.tapes(x, create_graph, 1):
        form = network.form(tape.output)
        spectra = aligned_spectra(precision, tape.pull_outputs(), form) if tape.closed else None
        if spectra is None:
            return None
        means.append(keep(tape.output))
        if all(basis is None for basis, _ in spectra):  # independent outputs: their variances add up
            weights.append(keep(torch.stack([part for _, part in spectra]).sum(0)))
            continue
        weights.append(keep(torch.cat([part for _, part in spectra], -1)))
        bases = [_basis(basis, form.outputs, weights[0]) for basis, _ in spectra]
    mean, weight = torch.cat(means), torch.cat(weights)
    network.refuse_broken([mean, weight], x)
    # The square root has no derivative at zero.
    deviation = torch.where(weight > 0, weight, 1.0).sqrt() * (weight > 0)
    return Spectral(mean, torch.cat(bases, -1).detach() if bases else None, deviation)


def _basis(basis: Tensor | None, outputs: int, like: Tensor) -> Tensor:
    """(C, R): the identity where there is none."""
    return torch.eye(outputs, dtype=like.dtype, device=like.device) if basis is None else basis


Jacobians = Mapping[WeightRange, Matrix | Explicit]


def each_jacobian(network: Network, x: Inputs, use: Callable[[Inputs, slice, Tensor, Jacobians], None]) -> None:
    """Call `use` with some of the inputs, which they are, their outputs and Jacobians, until all were used."""
    x = network.prepare(x)
    with network.isolated():
        require_exact(network.outputs(x))
        tracer = Tracer(network.model, network.space.names, network.budget, network.learner, predicting=True)
        for chosen in network.slices(x):
            some = take(x, chosen)
            tape = tracer.trace(some)
            with network.budget.arithmetic.passes(predicting=True):
                jacobians = tape.pull(identity_probes(tape.output))
            use(some, chosen, tape.output.detach(), jacobians)


def functional_of_jacobians(
    network: Network, precision: Blocks, mean: Tensor, jacobians: Jacobians, x: Inputs
) -> Functional:
    """What `functional` says of inputs whose outputs and Jacobians are known."""
    form = network.form(mean)
    with network.budget.arithmetic.passes():
        covariance = precision.quad(jacobians, form.positions > 1 and form.outputs == 1)
    return finite(network, Functional(mean, _arrange(covariance.detach(), form, False)), x)


def alone(tensor: Tensor) -> Tensor:
    """The tensor with its graph."""
    return tensor


def require_gradients(x: Inputs) -> None:
    """Refuse inputs that no graph could lead back to."""
    if not any(tensor.requires_grad for tensor in tensors(x)):
        raise PeewitError(
            "create_graph=True, but no tensor of x requires gradients; call x.requires_grad_() first. A tensor made "
            "under inference_mode cannot."
        )


def finite(network: Network, gaussian: Functional, x: Inputs) -> Functional:
    """The same, unless inputs, outputs or their covariance hold NaN or Inf."""
    network.refuse_broken([gaussian.mean, gaussian.cov], x)
    return gaussian


def _arrange(cov: Tensor, form: Form, variance_only: bool) -> Tensor:
    """(B, F, F) or (B, F) in the network's own order -> (B, *positions, C, C) or (B, *shape)."""
    examples = cov.shape[0]
    if cov.dim() == 4:  # the blocks themselves
        positions = () if form.axis is None else form.shape[: form.axis] + form.shape[form.axis + 1 :]
        return cov.reshape(examples, *positions, *cov.shape[-2:])
    if variance_only:
        return cov.reshape(examples, *form.shape)
    if form.axis is None:
        return cov.reshape(examples, 1, 1)
    positions = form.shape[: form.axis] + form.shape[form.axis + 1 :]
    if cov.dim() == 2:  # one output per position: the variances are the blocks
        return cov.reshape(examples, *positions, 1, 1)
    if form.positions == 1:
        return cov.reshape(examples, *positions, form.outputs, form.outputs)
    order = form.flatten(torch.arange(math.prod(form.shape), device=cov.device).reshape(form.shape))
    blocks = torch.stack([cov[:, block][:, :, block] for block in order], 1)
    return blocks.reshape(examples, *positions, form.outputs, form.outputs)


def _joint(network: Network, precision: Blocks, x: Inputs, create_graph: bool = False) -> Functional:
    """All pairs of examples, by pairs of slices that fit the budget: earlier slices are passed forward again."""
    means, lines, earlier = [], [], list[slice]()
    tracer = Tracer(network.model, network.space.names, network.budget, network.learner, create_graph, predicting=True)
    keep = alone if create_graph else torch.detach

    def pull(chosen: slice) -> tuple[Tensor, dict[WeightRange, Piece]]:
        tape = tracer.trace(take(x, chosen))
        return keep(tape.output), tape.pull_outputs()

    for rows in network.slices(x):
        mean, jacobians = pull(rows)
        means.append(mean)
        line = [keep(precision.cross(jacobians, pull(columns)[1])) for columns in earlier]
        lines.append([*line, keep(precision.cross(jacobians, jacobians))])
        earlier.append(rows)
    full_rows = [
        torch.cat([lines[i][j] if j <= i else lines[j][i].permute(2, 3, 0, 1) for j in range(len(lines))], 2)
        for i in range(len(lines))
    ]
    return Functional(torch.cat(means), torch.cat(full_rows))
