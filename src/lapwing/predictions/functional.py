"""From weights to outputs: functional covariances and samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..batches import Inputs, call, count, evaluation, map_tensors, take, tensors
from ..complaints import refuse_inputs
from ..diagnosis import refuse_axes, refuse_broken
from ..jacobians import Explicit, Matrix
from ..layers.base import Part
from ..likelihoods import Form
from ..memory import Budget
from ..operators import Blocks
from ..products import jacobian_vectors
from ..space import Space
from ..tape import Plan, Tape
from ..tracer import Tracer

EXACT_OUTPUTS = 256  # outputs per example up to which the covariance is exact
SAMPLES = 64  # forward-mode samples above that


class Functional(NamedTuple):
    """The Gaussian over the network's outputs, noise excluded.

    `cov` is (B, *positions, C, C), (B, C, B, C) when joint, or the variances (B, ...) when only they were asked for.
    """

    mean: Tensor
    cov: Tensor


@dataclass(frozen=True)
class Network:
    """A network with its uncertain weights, as predictions need it."""

    model: nn.Module
    space: Space
    plan: Plan
    budget: Budget
    axis: int | None  # of the outputs, in one example's output

    def prepare(self, x: Inputs) -> Inputs:
        """Inputs on the network's device, usable in a graph."""
        device = self.model.get_parameter(self.space.names[0]).device

        def move(tensor: Tensor) -> Tensor:
            moved = tensor.to(device)
            return moved.clone() if moved.is_inference() else moved

        refuse_inputs(x)
        refuse_axes(x, list(self.plan.costs))
        if not count(x):
            raise ValueError("x has no examples; expected at least one.")
        return map_tensors(move, x)

    @contextmanager
    def asked(self) -> Iterator[None]:
        """The network in evaluation mode; what a question that fails teaches about it is forgotten."""
        kept = self.plan.copy()
        try:
            with evaluation(self.model, self.selected), self.budget.arithmetic.passes():
                yield
        except TooManyOutputs:
            raise
        except BaseException:
            self.plan.restore(kept)
            raise

    def form(self, output: Tensor) -> Form:
        """Where the outputs are in this network's output."""
        return Form(self.axis, tuple(output.shape[1:]))

    def slices(self, x: Inputs) -> Iterator[slice]:
        """Slices of the examples whose output gradients fit the budget; call inside `evaluation`."""
        outputs = max(1, min(EXACT_OUTPUTS, self.outputs(x)))
        return self.budget.slices(count(x), (4 + 2 * outputs) * self.plan.cost(x), 0.6)

    def tapes(self, x: Inputs, create_graph: bool = False) -> Iterator[tuple[slice, Tape]]:
        """Forward passes over those slices."""
        tracer = Tracer(self.model, self.space.names, self.budget, self.plan, create_graph)
        for chosen in self.slices(x):
            yield chosen, tracer.trace(take(x, chosen))

    def outputs(self, x: Inputs) -> int:
        """Numbers in one example's output; call inside `evaluation`."""
        if not self.plan.knows(x):
            Tracer(self.model, self.space.names, self.budget, self.plan).cost(x)
        return math.prod(self.plan.shape(x))

    @property
    def selected(self) -> list[Tensor]:
        """The uncertain parameters."""
        return [self.model.get_parameter(name) for name in self.space.names]


def identity_cotangents(output: Tensor) -> Tensor:
    """(F, B, ...): one per output number, so that pulled-back rows are the Jacobian's."""
    number = output[0].numel()
    eye = torch.eye(number, dtype=output.dtype, device=output.device)
    return eye.reshape(number, 1, *output.shape[1:]).expand(number, *output.shape)


def functional(
    network: Network, precision: Blocks, x: Inputs, joint: bool, variance_only: bool, create_graph: bool = False
) -> Functional:
    """Mean and covariance of the outputs under the linearised network; with their graph back to x on request."""
    with torch.set_grad_enabled(create_graph or torch.is_grad_enabled()):
        x = network.prepare(x)
    if create_graph:
        require_gradients(x)
    kept = alone if create_graph else torch.detach
    with network.asked():
        if network.outputs(x) > EXACT_OUTPUTS:
            raise TooManyOutputs(network.outputs(x))
        if joint:
            return finite(_joint(network, precision, x, create_graph), x)
        means, covariances = [], []
        for _, tape in network.tapes(x, create_graph):
            form = network.form(tape.output)
            with network.budget.arithmetic.passes(predicting=True):
                found = tape.pull(identity_cotangents(tape.output))
                made = precision.quad(found, variance_only or (form.positions > 1 and form.outputs == 1))
            means.append(kept(tape.output))
            covariances.append(_arrange(kept(made), form, variance_only))
        return finite(Functional(torch.cat(means), torch.cat(covariances)), x)


Jacobians = Mapping[Part, Matrix | Explicit]


def each_jacobian(network: Network, x: Inputs, use: Callable[[Inputs, slice, Tensor, Jacobians], None]) -> None:
    """Call `use` with some of the inputs, which they are, their outputs and Jacobians, until all were used."""
    x = network.prepare(x)
    with network.asked():
        if network.outputs(x) > EXACT_OUTPUTS:
            raise TooManyOutputs(network.outputs(x))
        for chosen, tape in network.tapes(x):
            with network.budget.arithmetic.passes(predicting=True):
                found = tape.pull(identity_cotangents(tape.output))
            use(take(x, chosen), chosen, tape.output.detach(), found)


def given(network: Network, precision: Blocks, mean: Tensor, found: Jacobians, x: Inputs) -> Functional:
    """What `functional` says of inputs whose outputs and Jacobians are known."""
    form = network.form(mean)
    with network.budget.arithmetic.passes(predicting=True):
        made = precision.quad(found, form.positions > 1 and form.outputs == 1)
    return finite(Functional(mean, _arrange(made.detach(), form, False)), x)


def alone(tensor: Tensor) -> Tensor:
    """The tensor with its graph."""
    return tensor


def require_gradients(x: Inputs) -> None:
    """Refuse inputs that no graph could lead back to."""
    if not any(tensor.requires_grad for tensor in tensors(x)):
        raise ValueError(
            "create_graph=True, but no tensor of x requires gradients; call x.requires_grad_() first. A tensor made "
            "under inference_mode cannot."
        )


def finite(made: Functional, x: Inputs) -> Functional:
    """The same, unless inputs, outputs or their covariance hold NaN or Inf."""
    refuse_broken([made.mean, made.cov], x)
    return made


class TooManyOutputs(Exception):
    """Raised inside `functional` to switch to samples."""


def _arrange(made: Tensor, form: Form, variance_only: bool) -> Tensor:
    """(B, F, F) or (B, F) in the network's own order -> (B, *positions, C, C) or (B, *shape)."""
    examples = made.shape[0]
    if variance_only:
        return made.reshape(examples, *form.shape)
    if form.axis is None:
        return made.reshape(examples, 1, 1)
    positions = form.shape[: form.axis] + form.shape[form.axis + 1 :]
    if made.dim() == 2:  # one output per position: the variances are the blocks
        return made.reshape(examples, *positions, 1, 1)
    if form.positions == 1:
        return made.reshape(examples, *positions, form.outputs, form.outputs)
    order = form.flatten(torch.arange(math.prod(form.shape), device=made.device).reshape(form.shape))
    blocks = torch.stack([made[:, place][:, :, place] for place in order], 1)
    return blocks.reshape(examples, *positions, form.outputs, form.outputs)


def _joint(network: Network, precision: Blocks, x: Inputs, create_graph: bool = False) -> Functional:
    """All pairs of examples, by pairs of slices that fit the budget: earlier slices are passed forward again."""
    means, lines = [], []
    slices = list(network.slices(x))
    tracer = Tracer(network.model, network.space.names, network.budget, network.plan, create_graph)
    kept = alone if create_graph else torch.detach

    def pulled(chosen: slice) -> tuple[Tensor, dict[Part, Matrix | Explicit]]:
        tape = tracer.trace(take(x, chosen))
        return kept(tape.output), tape.pull(identity_cotangents(tape.output))

    for place, rows in enumerate(slices):
        mean, found = pulled(rows)
        means.append(mean)
        line = [kept(precision.cross(found, pulled(columns)[1])) for columns in slices[:place]]
        lines.append([*line, kept(precision.cross(found, found))])
    whole = [
        torch.cat([lines[i][j] if j <= i else lines[j][i].permute(2, 3, 0, 1) for j in range(len(slices))], 2)
        for i in range(len(slices))
    ]
    return Functional(torch.cat(means), torch.cat(whole))


def functional_samples(network: Network, x: Inputs, deviations: Tensor) -> Tensor:
    """(S, D) deviations from the mode -> (S, B, ...): outputs of the linearised network, jointly right over inputs."""
    x = network.prepare(x)
    made = []
    with network.asked():
        if network.outputs(x) > EXACT_OUTPUTS:
            return _finite_samples(_pushed(network, x, deviations), x)
        for _, tape in network.tapes(x):
            mean = tape.output.detach()
            shift = apply(tape.pull(identity_cotangents(tape.output)), network.space, deviations)
            shift = shift.transpose(1, 2).reshape(len(deviations), *mean.shape)
            made.append(mean + shift.detach().to(mean.dtype))
        return _finite_samples(torch.cat(made, 1), x)


def _finite_samples(made: Tensor, x: Inputs) -> Tensor:
    """The same (S, B, ...), unless they hold NaN or Inf."""
    refuse_broken([made.transpose(0, 1)], x)
    return made


def _pushed(network: Network, x: Inputs, deviations: Tensor) -> Tensor:
    """The same for networks with many outputs: forward mode, whose cost does not grow with them."""
    cost = network.plan.cost(x)
    made = []
    for chosen in network.budget.slices(count(x), 8 * cost):
        part = take(x, chosen)
        with torch.no_grad():
            mean = call(network.model, part)
        step = network.budget.count(8 * cost * count(part), len(deviations))
        shifts = [jacobian_vectors(network.model, part, network.space, some) for some in deviations.split(step)]
        made.append(mean + torch.cat(shifts).to(mean.dtype))
    return torch.cat(made, 1)


def apply(found: Mapping[Part, Matrix | Explicit], space: Space, vectors: Tensor) -> Tensor:
    """`J v` for (S, D) -> (S, K, B), summed over the weights."""
    if space.mask is not None:
        whole = vectors.new_zeros(vectors.shape[0], space.total)
        whole[:, space.mask.to(vectors.device)] = vectors
        vectors = whole
    pieces = [
        jacobian.apply(vectors[:, space.place(part)]) for part, jacobian in found.items() if part.name in space.names
    ]
    return torch.stack(pieces).sum(0)


def sampled_functional(network: Network, precision: Blocks, x: Inputs, seed: int, variance_only: bool) -> Functional:
    """The covariance from a fixed set of samples of the outputs: for networks with many."""
    x = network.prepare(x)
    mean = _outputs(network, x)
    form = network.form(mean)
    total: Tensor | None = None
    for flat in _spreads(network, precision, x, mean, seed):
        made = flat.square().sum(0) if variance_only else torch.einsum("sbtc,sbtd->btcd", flat, flat)
        total = made if total is None else total + made
    assert total is not None
    if variance_only:
        return Functional(mean, form.restore(total / SAMPLES))
    positions = () if form.axis is None else form.shape[: form.axis] + form.shape[form.axis + 1 :]
    return Functional(mean, (total / SAMPLES).reshape(mean.shape[0], *positions, *total.shape[-2:]))


def sampled_factor(network: Network, precision: Blocks, x: Inputs, seed: int) -> Functional:
    """The same covariance as a factor (B, T, C, S): `factor factor^T`, smaller where there are more outputs than S."""
    x = network.prepare(x)
    mean = _outputs(network, x)
    spread = torch.cat(list(_spreads(network, precision, x, mean, seed)))
    return Functional(mean, spread.movedim(0, -1) / math.sqrt(SAMPLES))


def _outputs(network: Network, x: Inputs) -> Tensor:
    """(B, ...): the network's outputs, without a graph."""
    with network.asked():
        parts = list(network.slices(x))
        with torch.no_grad():
            return torch.cat([call(network.model, take(x, chosen)) for chosen in parts])


def _spreads(network: Network, precision: Blocks, x: Inputs, mean: Tensor, seed: int) -> Iterator[Tensor]:
    """(s, B, T, C): deviations of the outputs from their mean, SAMPLES in all, in parts that fit the budget."""
    device = network.selected[0].device
    generator = torch.Generator(device).manual_seed(seed)
    form = network.form(mean)
    dtype = torch.promote_types(mean.dtype, torch.float32)
    step = network.budget.count(3 * precision.size * dtype.itemsize, SAMPLES)
    for some in torch.arange(SAMPLES, device="cpu").split(step):
        eps = torch.randn(len(some), precision.size, generator=generator, device=device, dtype=dtype)
        samples = functional_samples(network, x, precision.root(eps).detach())
        yield form.flatten(samples - mean).to(dtype)
