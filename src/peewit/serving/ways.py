"""The ways in which a predictor may make its predictions, the quickest that fits first."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from ..likelihoods import Form
from ..network.isolation import outside_caller_modes
from ..network.modules import every_module
from ..network.nests import Inputs, take
from ..posterior.network import Network, is_exact
from ..predictions import means
from ..predictions.covariance import are_aligned, covariance_blocks
from ..predictions.families import family_of, make_prediction
from ..predictions.options import PredictOptions
from ..predictions.outputs import GaussianOutputs
from ..predictions.predict import flat_outputs, linearised_belief, predict, sampled_belief
from ..predictions.prediction import Prediction
from ..runtime.random import seed_of
from ..runtime.threads import LOCK
from ..tracing.forward_mode import apply
from ..tracing.knowledge import KnowledgeLearner
from ..tracing.layers.linear import LinearRule
from ..tracing.tape import Tape
from .copies import Pool, copy_sharing_weights, leaves_no_trace
from .last_layer import BeliefOptions, DeferredOutputs, DenseForm, SpectralForm, dense_form, spectral_form
from .network import ClosedNetwork, LastLayer, ServedNetwork

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

Served = TypeVar("Served", bound=ServedNetwork)


@dataclass(frozen=True)
class Way:
    """One way to predict, and what it is called."""

    words: str
    predict: Callable[[Inputs], Prediction]
    closed: ClosedForm | None = None  # what it is made of, where that is a closed form

    def __call__(self, x: Inputs) -> Prediction:
        """The prediction at inputs of the right kind."""
        return self.predict(x)


def way_of(state: PosteriorState, network: Network, x: Inputs, options: PredictOptions, memory: float | None) -> Way:
    """The quickest way for inputs like these; the network is asked about them once, with every check."""
    whole = whole_way(state, options, memory)
    whole(x)
    if not leaves_no_trace(state.model, x):
        return whole
    closed = None
    if options.method == "linearised" and not options.joint and network.knowledge.is_closed(x):
        closed = closed_pool(network, x)
    if closed is not None:
        return closed_form_way(state, closed, x, options) or served_way(state, closed, x, options)
    recurrent = any(isinstance(module, nn.RNNBase) for module in every_module(state.model))
    served = served_pool(network)
    if served is None or (recurrent and state.weights.is_cuda):  # cuDNN is switched off for them, for the whole process
        return whole
    return served_way(state, served, x, options)


def whole_way(state: PosteriorState, options: PredictOptions, memory: float | None) -> Way:
    """As `la.predict` does it, one call at a time."""

    def run(x: Inputs) -> Prediction:
        with LOCK, outside_caller_modes():
            return predict(
                state,
                x,
                method=options.method,
                link=options.link,
                samples=options.samples,
                joint=options.joint,
                memory=memory,
                at=options.at,
            )

    return Way("as la.predict, one call at a time", run)


def served_pool(network: Network) -> Pool[ServedNetwork] | None:
    """Copies of the network whose passes are recorded; None where it cannot be copied."""
    knowledge = network.knowledge

    def make() -> ServedNetwork | None:
        copied = copy_sharing_weights(network.model, set(network.space.names))
        if copied is None:
            return None
        return ServedNetwork(**{**fields_of(network), "model": copied, "learner": KnowledgeLearner(knowledge)})

    return pool_of(make)


def closed_pool(network: Network, x: Inputs) -> Pool[ClosedNetwork] | None:
    """Copies of a network whose last layer alone is uncertain; None where its calls cannot be watched."""
    recorded = copy_sharing_weights(network.model, set(network.space.names))
    if recorded is None:
        return None
    served = ServedNetwork(**{**fields_of(network), "model": recorded, "learner": KnowledgeLearner(network.knowledge)})
    with served.isolated():
        tape = next(served.tapes(x))
    use, knowledge = tape.outermost, served.knowledge
    if use is None or len(use.inputs) != 1:
        return None
    copied = use.key in knowledge.copied

    def make() -> ClosedNetwork | None:
        plain = copy_sharing_weights(network.model, set())
        owners = [] if plain is None else owners_of(plain, use.names)
        if plain is None or len(owners) != 1:
            return None
        last = LastLayer.of(owners[0], copied)
        return ClosedNetwork(
            **{**fields_of(network), "model": plain, "learner": KnowledgeLearner(knowledge), "last": last, "use": use}
        )

    pool = pool_of(make)
    if pool is None or not agrees(pool, tape):
        return None
    return pool


def owners_of(model: nn.Module, names: Collection[str]) -> list[nn.Module]:
    """The modules that hold some parameters themselves."""
    wanted = {id(parameter) for name, parameter in model.named_parameters() if name in names}
    return [each for each in every_module(model) if wanted.intersection(map(id, each._parameters.values()))]


def agrees(pool: Pool[ClosedNetwork], tape: Tape) -> bool:
    """Whether a plain pass gives the output that a recording gave, and the last layer the same inputs."""
    (layer_inputs,) = tape.uses[0].inputs
    with pool.borrow() as network:
        try:
            output, seen, shape = network.plain_pass(tape.inputs)
        except (TypeError, ValueError):  # the layer is called with other arguments, never, or several times
            return False
    same = seen.shape == layer_inputs.shape and seen.dtype == layer_inputs.dtype and shape == tuple(tape.uses[0].shape)
    bound = 1e-3 * float(layer_inputs.abs().max()) + 1e-6
    return same and output.shape == tape.output.shape and torch.allclose(seen, layer_inputs, rtol=1e-3, atol=bound)


def pool_of(make: Callable[[], Served | None]) -> Pool[Served] | None:
    """A pool with one item; None where there is none to be had."""
    first = make()
    if first is None:
        return None
    pool: Pool[Served] = Pool(lambda: require(make()))
    pool.idle.append(first)
    return pool


def require(item: Served | None) -> Served:
    """What was there once is there again."""
    assert item is not None
    return item


def fields_of(network: Network) -> dict[str, Any]:
    """By name."""
    return {each.name: getattr(network, each.name) for each in fields(Network)}


def served_way(state: PosteriorState, pool: Pool[Any], x: Inputs, options: PredictOptions) -> Way:
    """By the same steps as `la.predict`, on copies of the network."""
    with pool.borrow() as network:
        exclusive = needs_settings(state, network, x, options)
    ask = sampled_belief if options.method == "sampled" else linearised_belief
    likelihood = state.likelihood.for_inputs(x)

    def run(x: Inputs) -> Prediction:
        with ExitStack() as stack:
            if exclusive:
                stack.enter_context(LOCK)
            network = stack.enter_context(pool.borrow())
            if exclusive:
                stack.enter_context(network.budget.arithmetic.passes())
            with torch.no_grad():
                return make_prediction(ask(state, network, x, options, None), likelihood, options.link)

    words = "recorded passes" if options.method == "linearised" else "sampled weights"
    return Way(f"{words}{', one call at a time' if exclusive else ''}", run)


def needs_settings(state: PosteriorState, network: Network, x: Inputs, options: PredictOptions) -> bool:
    """Whether torch's settings for the whole process have to be changed meanwhile: which attention, which rounding."""
    known = network.knowledge
    many = not is_exact(math.prod(known.shape(x)))
    pushed = options.method == "sampled" or options.at == "linear_mode" or many or known.second
    return pushed or (state.weights.is_cuda and network.budget.arithmetic.name != "float64")


def closed_form_way(state: PosteriorState, pool: Pool[ClosedNetwork], x: Inputs, options: PredictOptions) -> Way | None:
    """A plain pass, and a few products with what was worked out here; None where the last layer is not a linear map."""
    with pool.borrow() as network, torch.no_grad():
        if type(network.use.rule) is not LinearRule or network.use.options is not None:
            return None
        form = Form(network.axis, network.knowledge.shape(x))
        output, layer_inputs, shape = network.plain_pass(x)
        gaussian_form = form_of(state, network.tape(x, output, layer_inputs, shape), form)
        budget, arithmetic = network.budget, network.budget.arithmetic
    if gaussian_form is None:
        return None
    likelihood = state.likelihood.for_inputs(x)
    closed = ClosedForm(
        state=state,
        pool=pool,
        common=BeliefOptions(form=form, budget=budget, points=options.samples, seed=seed_of(None, 31)),
        form=gaussian_form,
        by_variance=form.outputs <= family_of(likelihood).links[options.link].by_variance,
        shift=means.displacement(state, options.at),
        cost=network.pulled_bytes(x, 1),
    )
    exclusive = state.weights.is_cuda and arithmetic.name not in ("auto", "float64")

    def run(x: Inputs) -> Prediction:
        with torch.no_grad():
            with LOCK if exclusive else nullcontext(), arithmetic.passes() if exclusive else nullcontext():
                belief = closed(x)
            return make_prediction(belief, likelihood, options.link)

    return Way(f"the last layer in closed form{', one call at a time' if exclusive else ''}", run, closed)


def form_of(state: PosteriorState, tape: Tape, form: Form) -> SpectralForm | DenseForm | None:
    """The form of a last layer whose rows are the outputs of the likelihood."""
    jacobians = tape.pull_outputs()
    if not are_aligned(jacobians, form):
        return None
    spectral = spectral_form(state.precision, jacobians, flat_outputs(form, tape.output))
    if spectral is None and is_exact(math.prod(form.shape), form.positions == 1):
        return dense_form(state.precision, jacobians)
    return spectral


@dataclass(frozen=True, kw_only=True)
class ClosedForm:
    """The Gaussian over the outputs from plain passes."""

    state: PosteriorState
    pool: Pool[ClosedNetwork]
    common: BeliefOptions
    form: SpectralForm | DenseForm
    by_variance: bool  # whether predictions need the variances alone, as a rule
    shift: Tensor | None  # (D,): to the linear mode
    cost: float  # bytes that a pass takes for one example

    def __call__(self, x: Inputs) -> GaussianOutputs:
        """At inputs of the right kind; with covariances when something asks for them."""
        with self.pool.borrow() as network:
            parts = [network.plain_pass(take(x, chosen)) for chosen in network.pieces(x, self.cost, 0.75)]
        output, layer_inputs, shape = parts[0]
        if len(parts) > 1:
            output, layer_inputs = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
            shape = (sum(part[2][0] for part in parts), *shape[1:])
        common, form = self.common, self.form
        mean = flat_outputs(common.form, output)
        if self.shift is not None:
            pieces = network.tape(x, output, layer_inputs, shape).pull_outputs()
            change = apply(pieces, self.state.space, self.shift[None])[0].T.reshape(output.shape)
            mean = flat_outputs(common.form, output + change.to(output.dtype))
        inputs = layer_inputs.reshape(len(mean), -1, layer_inputs.shape[-1])

        def whole() -> GaussianOutputs:
            with torch.no_grad():
                if isinstance(form, SpectralForm):
                    return form.gaussian(common, inputs, mean)
                tape = network.tape(x, output, layer_inputs, shape)
                blocks = covariance_blocks(self.state.precision, tape, common.form).to(mean.dtype)
                return common.gaussian(mean, blocks=blocks)

        if not self.by_variance and isinstance(form, SpectralForm):
            return whole()
        return common.gaussian(mean, DeferredOutputs, blocks=None, now=form.variance(inputs, mean.dtype), later=whole)
