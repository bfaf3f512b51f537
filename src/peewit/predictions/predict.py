"""From a posterior and inputs to a prediction: which belief about the outputs, and which link to labels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..likelihoods import Form, Likelihood
from ..messages.arguments import check_generator
from ..messages.names import spelled
from ..network.batches import Batches, without_labels
from ..network.nests import Inputs, join
from ..posterior.linear_mode import At
from ..posterior.network import Network, TooManyOutputs, network_of
from ..runtime.progress import Progress
from ..runtime.random import DEFAULT_SEED, seed_of
from . import covariance, means, samples
from .families import make_prediction
from .options import PredictMethod, PredictOptions
from .outputs import Belief, GaussianOutputs, Samples, join_beliefs
from .prediction import LinkName, Prediction

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState


@spelled
def predict(
    la: PosteriorState,
    x: Inputs,
    *,
    method: PredictMethod = "linearised",
    link: LinkName | None = None,
    samples: int | None = None,
    joint: bool = False,
    memory: float | None = None,
    generator: torch.Generator | None = None,
    create_graph: bool = False,
    at: At = "trained_weights",
    progress: bool = False,
) -> Prediction:
    """The belief about the outputs, and the prediction made of it; `Laplace.predict` explains the options."""
    x = without_labels(la.model, x)
    likelihood = la.likelihood.for_inputs(x)
    options = PredictOptions.of(likelihood, method, link, samples, joint, create_graph, at)
    check_generator(generator)
    belief = belief_about(la, network_of(la, memory, progress, quickly=True), x, options, generator)
    return prediction_of(belief, likelihood, options)


def belief_about(
    la: PosteriorState, network: Network, x: Inputs, options: PredictOptions, generator: torch.Generator | None
) -> Belief:
    """The belief about the outputs, by the method that was asked for."""
    with torch.set_grad_enabled(options.create_graph):
        ask: Callable[..., Belief] = sampled_belief if options.method == "sampled" else linearised_belief
        return ask(la, network, x, options, generator)


def prediction_of(belief: Belief, likelihood: Likelihood, options: PredictOptions) -> Prediction:
    """The prediction that is made of a belief."""
    with torch.set_grad_enabled(options.create_graph):
        return make_prediction(belief, likelihood, options.link)


@spelled
def predict_batches(
    la: PosteriorState,
    batches: Batches,
    *,
    memory: float | None = None,
    generator: torch.Generator | None = None,
    progress: bool = False,
    method: PredictMethod = "linearised",
    link: LinkName | None = None,
    samples: int | None = None,
    joint: bool = False,
    create_graph: bool = False,
    at: At = "trained_weights",
) -> Prediction:
    """One prediction for the inputs of all batches: beliefs about them, one after the other, put together."""
    likelihood = la.likelihood
    options = PredictOptions.of(likelihood, method, link, samples, joint, create_graph, at)
    check_generator(generator)
    seed = None if generator is None else seed_of(generator, 62)  # each batch sees the same draws
    network, beliefs = network_of(la, memory, quickly=True), list[Belief]()
    for inputs in each_batch(batches, joint, progress):
        x = without_labels(la.model, inputs)
        if not beliefs:
            likelihood = la.likelihood.for_inputs(x)
            options = PredictOptions.of(likelihood, method, link, samples, joint, create_graph, at)
        again = None if seed is None else torch.Generator(la.weights.device).manual_seed(seed)
        beliefs.append(belief_about(la, network, x, options, again))
    return prediction_of(join_beliefs(beliefs), likelihood, options)


def each_batch(batches: Batches, joint: bool, progress: bool) -> Iterator[Inputs]:
    """The inputs batch by batch, or all of them at once where they belong together."""
    bars = Progress(progress)
    with torch.random.fork_rng(devices=[]), closing(bars):  # a shuffled loader draws from the global generator
        inputs = (inputs for inputs, _ in bars.track(batches, len(batches), "batches"))
        if joint:
            yield join(list(inputs))
        else:
            yield from inputs


def linearised_belief(
    la: PosteriorState, network: Network, x: Inputs, options: PredictOptions, generator: torch.Generator | None
) -> GaussianOutputs:
    """The Gaussian over the outputs of the linearised network."""
    shift = means.displacement(la, options.at)
    seed = seed_of(generator, 31)
    mean = None if shift is None else means.linear(network, x, shift, options.create_graph)
    try:
        gaussian = covariance.compact(network, la.precision, x, options.joint, options.create_graph)
    except TooManyOutputs as many:
        many.refuse(options.joint, options.create_graph, "method='sampled' has no such limit.")
        return _estimated_belief(la, network, x, options, seed, mean)
    gaussian = gaussian if mean is None else gaussian._replace(mean=mean)
    if isinstance(gaussian, covariance.Functional) and not options.joint:
        return normal(network, gaussian, options, seed)
    form = network.form(gaussian.mean)
    mean = flat_outputs(form, gaussian.mean)
    outputs_with = partial(GaussianOutputs, form, network.budget, centre=mean, points=options.samples, seed=seed)
    if isinstance(gaussian, covariance.Spectral):
        basis = None if gaussian.basis is None else gaussian.basis.to(mean.dtype)
        return outputs_with(blocks=None, basis=basis, deviation=gaussian.deviation.to(mean.dtype))
    examples, positions, outputs = mean.shape
    order = form.flatten(torch.arange(positions * outputs, device=mean.device).reshape(form.shape))
    example = torch.arange(examples, device=mean.device)[:, None, None, None]
    blocks = gaussian.cov[example, order[:, :, None], example, order[:, None, :]].to(mean.dtype)
    return outputs_with(blocks=blocks, joint=gaussian.cov)


def normal(network: Network, gaussian: covariance.Functional, options: PredictOptions, seed: int) -> GaussianOutputs:
    """A mean and covariances of the outputs, in flat form."""
    form = network.form(gaussian.mean)
    mean = flat_outputs(form, gaussian.mean)
    blocks = gaussian.cov.reshape(*mean.shape, -1).to(mean.dtype)
    return GaussianOutputs(form, network.budget, centre=mean, blocks=blocks, points=options.samples, seed=seed)


def _estimated_belief(
    la: PosteriorState, network: Network, x: Inputs, options: PredictOptions, seed: int, shifted: Tensor | None
) -> GaussianOutputs:
    """With many outputs: the covariance of a fixed set of samples, as a factor where that is smaller than blocks."""
    form = Form(network.axis, network.knowledge.shape(x))
    few = form.outputs <= samples.SAMPLES
    if few:
        estimate = samples.sampled_functional(network, la, x, seed, False)
    else:
        estimate = samples.sampled_factor(network, la, x, seed)
    mean = form.flatten(estimate.mean if shifted is None else shifted).to(estimate.cov.dtype)
    outputs_with = partial(GaussianOutputs, form, network.budget, centre=mean, points=options.samples, seed=seed)
    if few:
        return outputs_with(blocks=estimate.cov.reshape(*mean.shape, -1))
    return outputs_with(blocks=None, factor=estimate.cov)


def sampled_belief(
    la: PosteriorState, network: Network, x: Inputs, options: PredictOptions, generator: torch.Generator | None
) -> Samples:
    """Outputs of the network itself at weights drawn from the posterior, the same draws at all inputs."""
    if generator is None:
        generator = torch.Generator(la.weights.device).manual_seed(DEFAULT_SEED)
    step = network.budget.count(8.0 * la.D * la.weights.element_size(), options.samples, 0.4)
    steps = torch.arange(options.samples, device="cpu").split(step)
    deviations = (la.deviations(len(some), generator, one_by_one=True) for some in steps)
    values = samples.network_samples(network, x, deviations, options.create_graph)
    form = Form(network.axis, tuple(values.shape[2:]))
    return Samples(form, network.budget, flat_outputs(form, values))


def flat_outputs(form: Form, values: Tensor) -> Tensor:
    """Outputs (..., T, C), in float32 at least."""
    flat = form.flatten(values)
    return flat.to(torch.promote_types(flat.dtype, torch.float32))
