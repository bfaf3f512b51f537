"""Mean, covariance and draws of the outputs of a posterior's linearised network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..messages.arguments import check_generator
from ..messages.errors import PeewitError
from ..network.batches import Batches
from ..network.nests import Inputs
from ..posterior.linear_mode import At
from ..posterior.network import TooManyOutputs, network_of
from ..posterior.state import PosteriorState
from ..runtime.random import drawing, seed_of
from . import covariance, means, samples
from .covariance import Functional
from .predict import each_batch


def functional(
    la: PosteriorState,
    x: Inputs,
    *,
    joint: bool,
    variance_only: bool,
    memory: float | None,
    generator: torch.Generator | None,
    create_graph: bool,
    at: At,
    progress: bool,
) -> Functional:
    """The Gaussian over the outputs at x; estimated from samples where there are many outputs."""
    shift = means.displacement(la, at)
    if joint and variance_only:
        raise PeewitError("joint=True and variance_only=True exclude each other; expected at most one of them.")
    check_generator(generator)
    network = network_of(la, memory, progress, quickly=True)
    try:
        gaussian = covariance.exact_functional(network, la.precision, x, joint, variance_only, create_graph)
    except TooManyOutputs as many:
        many.refuse(joint, create_graph, "Use functional_samples, which is jointly right at any size.")
        gaussian = samples.sampled_functional(network, la, x, seed_of(generator, 31), variance_only)
    return gaussian if shift is None else gaussian._replace(mean=means.linear(network, x, shift, create_graph))


def functional_batches(
    la: PosteriorState, batches: Batches, *, joint: bool, progress: bool, **options: Any
) -> Functional:
    """The same for the inputs of all batches, put together."""
    parts = [
        functional(la, inputs, joint=joint, progress=False, **options)
        for inputs in each_batch(batches, joint, progress)
    ]
    return Functional(*(torch.cat(each) for each in zip(*parts, strict=True)))


def functional_samples(
    la: PosteriorState,
    x: Inputs,
    number: int,
    generator: torch.Generator | None,
    *,
    at: At,
    memory: float | None,
    progress: bool,
) -> Tensor:
    """(S, B, ...): outputs of the linearised network at S draws of the weights, the same draw at all inputs."""
    check_generator(generator)
    shift = means.displacement(la, at)
    with drawing(generator, la.weights.device):
        deviations = la.deviations(number, generator)
        deviations = deviations if shift is None else deviations + shift
        return samples.linearised_samples(network_of(la, memory, progress, quickly=True), x, deviations)
