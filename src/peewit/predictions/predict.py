"""From a posterior and inputs to a prediction: which belief about the outputs, and which link to labels."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..likelihoods import Form
from ..messages.arguments import checked_generator
from ..messages.errors import PeewitError
from ..network.buffers import restore_buffers
from ..network.calling import call, with_weights
from ..network.finite import refuse_broken
from ..network.isolation import entry_point
from ..network.nests import Inputs, count, take
from ..posterior import network
from ..posterior.linear_mode import At
from ..posterior.network import EXACT_OUTPUTS, TooManyOutputs, network_of
from ..runtime.random import DEFAULT_SEED, seed_of
from ..weights.vectors import unflatten
from . import covariance, means, samples
from .families import made_of
from .options import Question
from .outputs import Belief, Normal, Samples
from .prediction import Prediction

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState


@entry_point
def predict(
    la: PosteriorState,
    x: Inputs,
    *,
    method: str = "linearised",
    link: str | None = None,
    samples: int | None = None,
    joint: bool = False,
    memory: float | None = None,
    generator: torch.Generator | None = None,
    create_graph: bool = False,
    at: At = "trained_weights",
) -> Prediction:
    """The belief about the outputs, and the prediction made of it; `Laplace.predict` explains the options."""
    question = Question.of(la.likelihood, method, link, samples, joint, create_graph, at)
    checked_generator(generator)
    with torch.set_grad_enabled(question.create_graph):
        ask: Callable[..., Belief] = sampled if question.method == "sampled" else linearised
        return made_of(ask(la, x, question, memory, generator), la.likelihood, question.link)


def linearised(
    la: PosteriorState, x: Inputs, question: Question, memory: float | None, generator: torch.Generator | None
) -> Normal:
    """The Gaussian over the outputs of the linearised network."""
    shift = means.displacement(la, question.at)
    network = network_of(la, memory)
    seed = seed_of(generator, 31)
    mean = None if shift is None else means.linear(network, x, shift, question.create_graph)
    try:
        made = covariance.compact(network, la.precision, x, question.joint, question.create_graph)
    except TooManyOutputs as many:
        if question.joint or question.create_graph:
            which = "joint=True" if question.joint else "create_graph=True"
            raise PeewitError(
                f"{which} with {many} outputs per example; expected at most {EXACT_OUTPUTS}. "
                "method='sampled' has no such limit."
            ) from None
        return _estimated(la, network, x, question, seed, mean)
    made = made if mean is None else made._replace(mean=mean)
    if isinstance(made, covariance.Functional) and not question.joint:
        return normal(network, made, question, seed)
    form = network.form(made.mean)
    mean = form.flatten(made.mean)
    mean = mean.to(torch.promote_types(mean.dtype, torch.float32))
    if isinstance(made, covariance.Spectral):
        basis = None if made.basis is None else made.basis.to(mean.dtype)
        deviation = made.deviation.to(mean.dtype)
        return Normal(form, network.budget, mean, None, question.samples, seed, basis=basis, deviation=deviation)
    examples, positions, outputs = mean.shape
    order = form.flatten(torch.arange(positions * outputs, device=mean.device).reshape(form.shape))
    each = torch.arange(examples, device=mean.device)[:, None, None, None]
    blocks = made.cov[each, order[:, :, None], each, order[:, None, :]].to(mean.dtype)
    return Normal(form, network.budget, mean, blocks, question.samples, seed, joint=made.cov)


def normal(network: network.Network, made: covariance.Functional, question: Question, seed: int) -> Normal:
    """A mean and covariances of the outputs, in flat form."""
    form = network.form(made.mean)
    mean = form.flatten(made.mean)
    mean = mean.to(torch.promote_types(mean.dtype, torch.float32))
    blocks = made.cov.reshape(*mean.shape, -1).to(mean.dtype)
    return Normal(form, network.budget, mean, blocks, question.samples, seed)


def _estimated(
    la: PosteriorState, network: network.Network, x: Inputs, question: Question, seed: int, shifted: Tensor | None
) -> Normal:
    """With many outputs: the covariance of a fixed set of samples, as a factor where that is smaller than blocks."""
    form = Form(network.axis, network.plan.shape(x))
    if form.outputs <= samples.SAMPLES:
        made = samples.sampled_functional(network, la.precision, x, DEFAULT_SEED, False)
        mean = form.flatten(made.mean if shifted is None else shifted).to(made.cov.dtype)
        return Normal(form, network.budget, mean, made.cov.reshape(*mean.shape, -1), question.samples, seed)
    made = samples.sampled_factor(network, la.precision, x, DEFAULT_SEED)
    mean = form.flatten(made.mean if shifted is None else shifted).to(made.cov.dtype)
    return Normal(form, network.budget, mean, None, question.samples, seed, made.cov)


def sampled(
    la: PosteriorState, x: Inputs, question: Question, memory: float | None, generator: torch.Generator | None
) -> Samples:
    """Outputs of the network itself at weights drawn from the posterior, the same draws at all inputs."""
    network = network_of(la, memory)
    x = network.prepare(x)
    if question.create_graph:
        covariance.require_gradients(x)
    if generator is None:
        generator = torch.Generator(la.weights.device).manual_seed(DEFAULT_SEED)
    with network.asked(), torch.set_grad_enabled(question.create_graph):
        with torch.enable_grad():
            network.outputs(x)  # so that its cost is known
        cost = network.plan.cost(x)
        step = network.budget.count(8.0 * la.D * la.weights.element_size(), question.samples, 0.4)
        rows = []
        for some in torch.arange(question.samples, device="cpu").split(step):
            deviations = _deviations(la, len(some), generator)
            parts = network.budget.slices(count(x), 2.0 * cost * len(some), 0.4)
            rows.append(torch.cat([_at(network, take(x, chosen), deviations) for chosen in parts], 1))
        values = torch.cat(rows)
        refuse_broken([values.detach().transpose(0, 1)], x)
    form = Form(network.axis, tuple(values.shape[2:]))
    flat = form.flatten(values)
    return Samples(form, network.budget, flat.to(torch.promote_types(flat.dtype, torch.float32)))


def _deviations(la: PosteriorState, number: int, generator: torch.Generator) -> Tensor:
    """(S, D) from the mode; drawn one by one, so that they do not depend on how many fit the budget."""
    dtype, device = la.weights.dtype, generator.device
    eps = [torch.randn(la.D, generator=generator, dtype=dtype, device=device) for _ in range(number)]
    return la.spread(torch.stack(eps))


def _at(network: network.Network, x: Inputs, deviations: Tensor) -> Tensor:
    """(S, B, ...): outputs at the network's weights plus deviations; its own weights are never written to."""
    own = {name: network.model.get_parameter(name).detach() for name in network.space.names}

    def run(deviation: Tensor) -> Tensor:
        shifts = unflatten(deviation, network.space)
        return call(
            with_weights(network.model, {name: own[name] + shifts[name].to(own[name].dtype) for name in own}), x
        )

    # Fused attention has no batching rule.
    with sdpa_kernel([SDPBackend.MATH]), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        warnings.filterwarnings("ignore", message="An output with one or more elements was resized")  # torch's own
        try:
            made: Tensor = vmap(run, randomness="same")(deviations)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError):  # what cannot be mapped over weights: one after the other
            restore_buffers(network.model)
            made = torch.stack([run(deviation) for deviation in deviations])
    restore_buffers(network.model)
    return made
