"""The ways in which a predictor may make its predictions, the quickest that fits first."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
from torch import Tensor, nn

from ..jacobians.output_layer import OutputLayerJacobian
from ..likelihoods import Form
from ..messages.errors import PeewitError
from ..network.isolation import outside_caller_modes
from ..network.modules import every_module
from ..network.nests import Inputs, count, map_tensors, take
from ..posterior.network import EXACT_OUTPUTS, Network
from ..predictions import means
from ..predictions.covariance import covariance_blocks
from ..predictions.families import make_prediction
from ..predictions.options import PredictOptions
from ..predictions.outputs import Belief, GaussianOutputs
from ..predictions.predict import flat_outputs, linearised_belief, predict, sampled_belief
from ..predictions.prediction import Prediction
from ..runtime.random import seed_of
from ..runtime.threads import LOCK
from ..tracing.forward_mode import apply
from ..tracing.knowledge import Learner
from ..tracing.layers.linear import LinearRule
from ..tracing.tape import Tape
from .captured import Captured
from .closed import BeliefOptions, DeferredOutputs, DenseForm, SpectralForm, dense_form, spectral_form
from .copies import Pool, copy_sharing_weights, leaves_no_trace
from .network import ClosedNetwork, LastLayer, ServedNetwork

if TYPE_CHECKING:
    from ..posterior.state import PosteriorState

Served = TypeVar("Served", bound=ServedNetwork)


@dataclass(frozen=True)
class Way:
    """One way to predict, and what it is called."""

    words: str
    predict: Callable[[Inputs], Prediction]

    def __call__(self, x: Inputs) -> Prediction:
        """The prediction at inputs of the right kind."""
        return self.predict(x)


def way_of(
    state: PosteriorState, network: Network, x: Inputs, options: PredictOptions, memory: float | None, graph: bool
) -> Way:
    """The quickest way for inputs like these; the network is asked about them once, with every check."""
    whole = whole_way(state, options, memory)
    whole(x)
    if not leaves_no_trace(state.model, x):
        return whole if not graph else refuse_graph("the network changes its own state, or checkpoints blocks")
    closed = None
    if options.method == "linearised" and not options.joint and network.knowledge.is_closed(x):
        closed = closed_pool(network, x)
    if closed is not None:
        way = closed_form_way(state, closed, x, options, graph)
        return way or served_way(state, closed, x, options, graph)
    recurrent = any(isinstance(module, nn.RNNBase) for module in every_module(state.model))
    served = served_pool(network)
    if served is None or (recurrent and state.weights.is_cuda):  # cuDNN is switched off for them, for the whole process
        return whole if not graph else refuse_graph("the network cannot be copied, or has recurrent layers")
    return served_way(state, served, x, options, graph)


def refuse_graph(reason: str) -> NoReturn:
    """A CUDA graph was asked for, and there cannot be one."""
    raise PeewitError(f"cuda_graph=True, but {reason}; leave cuda_graph out.")


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
        return ServedNetwork(**{**fields_of(network), "model": copied, "learner": Learner(knowledge)})

    return pool_of(make)


def closed_pool(network: Network, x: Inputs) -> Pool[ClosedNetwork] | None:
    """Copies of a network whose last layer alone is uncertain; None where its calls cannot be watched."""
    recorded = copy_sharing_weights(network.model, set(network.space.names))
    if recorded is None:
        return None
    served = ServedNetwork(**{**fields_of(network), "model": recorded, "learner": Learner(network.knowledge)})
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
            **{**fields_of(network), "model": plain, "learner": Learner(knowledge), "last": last, "use": use}
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
    pool: Pool[Served] = Pool(lambda: required(make()))
    pool.idle.append(first)
    return pool


def required(item: Served | None) -> Served:
    """What was there once is there again."""
    assert item is not None
    return item


def fields_of(network: Network) -> dict[str, Any]:
    """By name."""
    return {each.name: getattr(network, each.name) for each in fields(Network)}


def served_way(state: PosteriorState, pool: Pool[Any], x: Inputs, options: PredictOptions, graph: bool) -> Way:
    """By the same steps as `la.predict`, on copies of the network."""
    with pool.borrow() as network:
        exclusive = needs_settings(state, network, x, options)
        many = math.prod(network.knowledge.shape(x)) > EXACT_OUTPUTS
    if graph and (options.method == "sampled" or options.joint or many):
        refuse_graph("predictions from samples, and of many inputs together, cannot be captured")
    ask = sampled_belief if options.method == "sampled" else linearised_belief

    def believe(x: Inputs) -> Belief:
        with ExitStack() as stack:
            if exclusive:
                stack.enter_context(LOCK)
            network = stack.enter_context(pool.borrow())
            if exclusive:
                stack.enter_context(network.budget.arithmetic.passes())
            return ask(state, network, x, options, None)

    words = "recorded passes" if options.method == "linearised" else "sampled weights"
    return captured_way(state, options, words, exclusive, believe, lambda x, belief: belief, x, graph)


Found = TypeVar("Found")


def captured_way(
    state: PosteriorState,
    options: PredictOptions,
    words: str,
    exclusive: bool,
    compute: Callable[[Inputs], Found],
    believe: Callable[[Inputs, Found], Belief],
    x: Inputs,
    graph: bool,
) -> Way:
    """A way in two steps, the first of them as a CUDA graph if that was asked for."""
    captured: Captured[Found] | None = None
    if graph:
        with torch.no_grad():
            captured = Captured(compute, map_tensors(lambda each: each.to(state.weights.device), x))

    def run(x: Inputs) -> Prediction:
        with torch.no_grad():
            found = captured(x) if captured is not None and captured.fits(x) else None
            belief = believe(x, compute(x) if found is None else found)
            return make_prediction(belief, state.likelihood, options.link)

    if captured is not None:
        return Way(f"{words}, {count(x)} at a time as a CUDA graph", run)
    return Way(f"{words}{', one call at a time' if exclusive else ''}", run)


def needs_settings(state: PosteriorState, network: Network, x: Inputs, options: PredictOptions) -> bool:
    """Whether torch's settings for the whole process have to be changed meanwhile: which attention, which rounding."""
    known = network.knowledge
    many = math.prod(known.shape(x)) > EXACT_OUTPUTS
    pushed = options.method == "sampled" or options.at == "linear_mode" or many or known.second
    return pushed or (state.weights.is_cuda and network.budget.arithmetic.name != "float64")


def closed_form_way(
    state: PosteriorState, pool: Pool[ClosedNetwork], x: Inputs, options: PredictOptions, graph: bool
) -> Way | None:
    """A plain pass, and a few products with what was worked out here; None where the last layer is no linear map."""
    with pool.borrow() as network, torch.no_grad():
        if type(network.use.rule) is not LinearRule or network.use.options is not None:
            return None
        form = Form(network.axis, network.knowledge.shape(x))
        output, layer_inputs, shape = network.plain_pass(x)
        gaussian_form = form_of(state, network.tape(x, output, layer_inputs, shape), form)
        budget, arithmetic = network.budget, network.budget.arithmetic
    if gaussian_form is None:
        return None
    closed = ClosedForm(
        state=state,
        pool=pool,
        common=BeliefOptions(form=form, budget=budget, points=options.samples, seed=seed_of(None, 31)),
        form=gaussian_form,
        by_variance=options.link == "probit" or (options.link == "exact" and form.outputs == 1),
        shift=means.displacement(state, options.at),
        cost=5.25 * network.knowledge.cost(x),
    )
    exclusive = state.weights.is_cuda and arithmetic.name not in ("auto", "float64")

    def compute(x: Inputs) -> Passed:
        with LOCK if exclusive else nullcontext(), arithmetic.passes() if exclusive else nullcontext():
            return closed.compute(x)

    return captured_way(state, options, "the last layer in closed form", exclusive, compute, closed.believe, x, graph)


def form_of(state: PosteriorState, tape: Tape, form: Form) -> SpectralForm | DenseForm | None:
    """The form of a last layer whose rows are the outputs of the likelihood."""
    jacobians = tape.pull_outputs()
    order = form.flatten(torch.arange(math.prod(form.shape), device="cpu").reshape(form.shape))
    for piece in jacobians.values():
        if not isinstance(piece, OutputLayerJacobian) or piece.groups != 1 or not torch.equal(piece.order[0], order):
            return None
    spectral = spectral_form(state.precision, jacobians, flat_outputs(form, tape.output))
    if spectral is None and (math.prod(form.shape) <= EXACT_OUTPUTS or form.positions == 1):
        return dense_form(state.precision, jacobians)
    return spectral


@dataclass(frozen=True, kw_only=True)
class Passed:
    """What a pass and the closed form give."""

    output: Tensor
    layer_inputs: Tensor
    shape: tuple[int, ...]  # of the layer's output
    mean: Tensor  # (B, T, C)
    variance: Tensor | None  # (B, T, C), where the rest can wait


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

    def compute(self, x: Inputs) -> Passed:
        """Passes at inputs of the right kind."""
        with self.pool.borrow() as network:
            parts = [network.plain_pass(some) for some in self._slices(x)]
        output, layer_inputs, shape = parts[0]
        if len(parts) > 1:
            output, layer_inputs = torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])
            shape = (sum(part[2][0] for part in parts), *shape[1:])
        mean = flat_outputs(self.common.form, output)
        if self.shift is not None:
            pieces = network.tape(x, output, layer_inputs, shape).pull_outputs()
            change = apply(pieces, self.state.space, self.shift[None])[0].T.reshape(output.shape)
            mean = flat_outputs(self.common.form, output + change.to(output.dtype))
        variance = None
        if self.by_variance or isinstance(self.form, DenseForm):
            variance = self.form.variance(self._flat(layer_inputs, mean), mean.dtype)
        return Passed(output=output, layer_inputs=layer_inputs, shape=shape, mean=mean, variance=variance)

    def believe(self, x: Inputs, passed: Passed) -> GaussianOutputs:
        """The Gaussian, with covariances when something asks for them."""
        common, mean = self.common, passed.mean
        outputs_with = partial(
            GaussianOutputs, form=common.form, budget=common.budget, points=common.points, seed=common.seed, centre=mean
        )

        def whole() -> GaussianOutputs:
            with torch.no_grad():
                if isinstance(self.form, SpectralForm):
                    return self.form.gaussian(common, self._flat(passed.layer_inputs, mean), mean)
                with self.pool.borrow() as network:
                    tape = network.tape(x, passed.output, passed.layer_inputs, passed.shape)
                blocks = covariance_blocks(self.state.precision, tape, common.form).to(mean.dtype)
                return outputs_with(blocks=blocks)

        if passed.variance is None:
            return whole()
        return DeferredOutputs(
            form=common.form,
            budget=common.budget,
            centre=mean,
            blocks=None,
            points=common.points,
            seed=common.seed,
            now=passed.variance,
            later=whole,
        )

    @staticmethod
    def _flat(layer_inputs: Tensor, mean: Tensor) -> Tensor:
        """(B, T, I)."""
        return layer_inputs.reshape(len(mean), -1, layer_inputs.shape[-1])

    def _slices(self, x: Inputs) -> list[Inputs]:
        """Parts of the inputs that fit the budget: nearly always all of them."""
        slices = list(self.common.budget.slices(count(x), self.cost, 0.75))
        return [x] if len(slices) == 1 else [take(x, chosen) for chosen in slices]
