"""Around which outputs predictions are made: the network's own, or those of the linear model at its mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..messages.errors import PeewitError
from ..messages.warnings import TuningWarning, warn
from ..network.nests import Inputs
from ..posterior import network
from ..posterior.linear_mode import At, check_at
from ..tracing.forward_mode import apply
from . import covariance, samples

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState


def displacement(la: PosteriorState, at: At) -> Tensor | None:
    """(D,): from the trained weights to those that the mean is taken at; None for none."""
    check_at(at)
    if at == "trained_weights":
        return None
    if la.linear_mode is None:
        raise PeewitError(
            "at='linear_mode' was asked of a posterior without a mode of the linear model; find it by "
            "la.at_linear_mode(train), la.tune(at='linear_mode', train=...) or fit(..., at='linear_mode')."
        )
    if not la.has_own_linear_mode:
        warn(
            "at='linear_mode': the mode of the linear model was found under another prior, noise or temperature than "
            "this posterior has; find its own by la.at_linear_mode(train).",
            TuningWarning,
        )
    return la.linear_mode.displacement


def linear(network: network.Network, x: Inputs, shift: Tensor, create_graph: bool) -> Tensor:
    """(B, ...): `f(x) + J(x) shift`, with its graph back to x on request."""
    if not create_graph:
        with torch.no_grad():
            return samples.shifted_outputs(network, x, shift)
    outputs = []
    with covariance.prepare_inputs(network, x, create_graph) as ready:
        for tape in network.tapes(ready, create_graph):
            change = apply(tape.pull_outputs(), network.space, shift[None])[0].T
            outputs.append(tape.output + change.reshape(tape.output.shape).to(tape.output.dtype))
    return torch.cat(outputs)
