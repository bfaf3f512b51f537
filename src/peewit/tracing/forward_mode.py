"""Products with the Jacobian, `J v`, by the first of several ways that agrees with the network's backward pass.

The backward pass is the derivative that training used, and the one that every fit has. Forward mode may know another:
it sees what `torch.no_grad` hides, and a custom function has a formula of its own for it. Two backward passes miss what
can be differentiated only once. Rows of the Jacobian are of the backward pass itself.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import jvp, vmap

from ..jacobians.output_layer import Piece
from ..network.buffers import restore_buffers
from ..network.calling import call
from ..network.nests import Inputs, take
from ..network.workarounds import ConstantPadding
from ..runtime.memory import Budget
from ..weights.ranges import WeightRange
from ..weights.space import Space
from ..weights.vectors import NamedTensors, fill_mask, unflatten
from .knowledge import KnowledgeLearner
from .tracer import Tracer

OutputsAt = Callable[[NamedTensors], Tensor]
Pushed = tuple[Tensor, Tensor]  # outputs (B, ...) and `J v` (S, B, ...)
EXAMPLES = 4  # that a way is tried on
TRIALS = 3  # vectors that a way is tried with
FAINT = 1e-3  # of the largest gradient: smaller ones may be rounding


def apply(jacobians: Mapping[WeightRange, Piece], space: Space, vectors: Tensor) -> Tensor:
    """`J v` for (S, D) -> (S, K, B), summed over the weights."""
    vectors = fill_mask(vectors, space)
    pieces = [
        jacobian.apply(vectors[:, space.slice_of(part)])
        for part, jacobian in jacobians.items()
        if part.name in space.names
    ]
    return torch.stack(pieces).sum(0)


def forward_mode(run: Callable[[Any], Tensor], weights: Any, tangents: Any) -> Pushed | None:
    """Outputs and `J v` by forward mode; None where the network has none. Call under the plain attention kernel."""
    return _forward(lambda: jvp(run, (weights,), (tangents,)))


def _map_vectors(run: OutputsAt, weights: NamedTensors, tangents: NamedTensors) -> Pushed | None:
    """Products with several vectors at once."""
    outs: Any = (None, 0)  # outputs depend on no vector
    push = vmap(lambda vector: jvp(run, (weights,), (vector,)), out_dims=outs, randomness="same")
    return _forward(lambda: push(tangents))


def _forward(push: Callable[[], Any]) -> Pushed | None:
    with torch.no_grad(), warnings.catch_warnings(), ConstantPadding():
        # Forward mode's own decompositions still use what torch has deprecated.
        for category in (DeprecationWarning, FutureWarning):  # the latter from torch 2.15 on
            warnings.filterwarnings("ignore", message="`torch.jit.script", category=category)
        warnings.filterwarnings("ignore", message="There is a performance drop")
        try:
            outputs = push()
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError, ValueError):  # an operation without a forward formula, or vmap's own
            return None
    return outputs[0], outputs[1]


def double_backward(run: OutputsAt, weights: NamedTensors, tangents: NamedTensors) -> Pushed | None:
    """Outputs, and `J v` as the gradient of `(u^T J) v` in u; None where the network has no second derivatives."""
    with torch.enable_grad():
        leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        try:
            output = run(leaves)
            dummy = torch.zeros_like(output, requires_grad=True)
            pulled = torch.autograd.grad(output, list(leaves.values()), dummy, create_graph=True, allow_unused=True)
            parts = [
                (gradient * tangents[name]).sum()
                for gradient, name in zip(pulled, leaves, strict=True)
                if gradient is not None
            ]
            total = torch.stack(parts).sum() if parts else output.new_zeros(())
            product = torch.autograd.grad(total, dummy)[0] if total.requires_grad else torch.zeros_like(output)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError):  # no second derivative: another way is taken
            return None
    return output.detach(), product.detach()


def _each(
    way: Callable[[OutputsAt, NamedTensors, NamedTensors], Pushed | None],
) -> Callable[[OutputsAt, NamedTensors, NamedTensors], Pushed | None]:
    """A way for one vector as one for several, one after the other."""

    def repeat(run: OutputsAt, weights: NamedTensors, tangents: NamedTensors) -> Pushed | None:
        pairs, number = [], len(next(iter(tangents.values())))
        for row in range(number):
            pair = way(run, weights, {name: tangent[row] for name, tangent in tangents.items()})
            if pair is None:
                return None
            pairs.append(pair)
        return pairs[0][0], torch.stack([pushed for _, pushed in pairs])

    return repeat


WAYS: tuple[Callable[[OutputsAt, NamedTensors, NamedTensors], Pushed | None], ...] = (
    _map_vectors,
    _each(forward_mode),
    _each(double_backward),
)
ROWS = len(WAYS)  # the number of the last way, which needs no trial


def rounding(dtype: torch.dtype) -> float:
    """How far the same product by two ways may be apart, relative to its size."""
    # Half of the digits of float64; products of float32 may be rounded to 10 bits on a GPU.
    return {torch.float64: 1e-7, torch.float32: 1e-2}.get(dtype, 0.1)


@dataclass(frozen=True, eq=False)
class Push:
    """`J v` of a network; call inside `isolated` of the selected weights, under the plain attention kernel."""

    model: nn.Module
    space: Space
    learner: KnowledgeLearner
    budget: Budget

    def __call__(self, inputs: Inputs, vectors: Tensor, names: Collection[str] | None = None) -> Pushed:
        """Outputs (B, ...) and `J v` (S, B, ...), for vectors (S, D) that are zero but for the named weights."""
        several = len(vectors) > 1
        way = self.learner.knowledge.push.get(several)
        way = self._next(inputs, several, 0 if several else 1) if way is None else way
        while way < ROWS:
            pushed = self._by(way, inputs, vectors, names)
            if pushed is not None:
                return pushed
            way = self._next(inputs, several, way + 1)
        return self._rows(inputs, vectors)

    def _next(self, inputs: Inputs, several: bool, start: int) -> int:
        """The first way, from one on, that agrees with the backward pass on some examples; it is learnt."""
        some = take(inputs, slice(0, EXAMPLES))
        if any(each is not None and not bool(each.any()) for each in self._gradients(some)[1]):
            some = inputs  # few examples may leave a weight without a gradient, behind units that are off
        way = next((way for way in range(start, ROWS) if self._agrees(way, some)), ROWS)
        self.learner.learn(push={**self.learner.knowledge.push, several: way})
        return way

    def _by(self, way: int, inputs: Inputs, vectors: Tensor, names: Collection[str] | None) -> Pushed | None:
        chosen = self.space.names if names is None else names
        weights = {name: self.model.get_parameter(name).detach() for name in chosen}
        pieces = unflatten(vectors, self.space)
        tangents = {name: pieces[name].to(weights[name].dtype) for name in chosen}
        pushed = WAYS[way](
            lambda tensors: call(self.learner.with_weights(self.model, tensors, inputs), inputs), weights, tangents
        )
        restore_buffers(self.model)
        return pushed

    def _agrees(self, way: int, inputs: Inputs) -> bool:
        """Whether `u^T (J v)` is `(J^T u)^T v`, for random u and v that have all tensors in the same proportion."""
        output, pulled = self._pull(inputs)
        sizes = torch.stack([each.norm(dtype=torch.float64) for each in pulled.values()])
        unit = float(sizes.max())
        if unit == 0 or not math.isfinite(unit):
            return True  # nothing to compare; what is not finite is said elsewhere
        coarsest = max((output, *pulled.values()), key=lambda each: torch.finfo(each.dtype).eps).dtype
        faint = max(FAINT, 100 * torch.finfo(coarsest).eps)
        scales = unit / sizes.clamp(min=faint * unit)
        bound = rounding(coarsest) * unit * math.sqrt(len(pulled))
        generator = torch.Generator("cpu").manual_seed(1)
        for number in (TRIALS,) if way == 0 else (1,) * TRIALS:  # the first way is for several vectors at once
            v = self._draw(number, scales.tolist(), generator).to(output.device, coarsest)
            with self._repeat_randomness():
                pushed = self._by(way, inputs, v, None)
            if pushed is None:
                return False
            forward = (pushed[1].double() * self._probe(output).double()).flatten(1).sum(1)
            pieces = unflatten(v, self.space)
            shares = [pieces[name].reshape(number, -1).double() @ g.flatten().double() for name, g in pulled.items()]
            if not bool(((forward - torch.stack(shares).sum(0)).abs() <= bound).all()):
                return False
        return True

    def _draw(self, number: int, scales: list[float], generator: torch.Generator) -> Tensor:
        """(S, D): normal numbers, times a scale for each tensor."""
        drawn = [
            scale * torch.randn(number, shape.numel(), generator=generator, dtype=torch.float32, device="cpu")
            for scale, shape in zip(scales, self.space.shapes, strict=True)
        ]
        v = torch.cat(drawn, 1)
        return v if self.space.mask is None else v[:, self.space.mask]

    @staticmethod
    def _probe(output: Tensor) -> Tensor:
        """Random numbers in the shape of the outputs, the same every time."""
        generator = torch.Generator("cpu").manual_seed(0)
        return torch.randn(output.shape, generator=generator, dtype=torch.float64, device="cpu").to(output)

    def _pull(self, inputs: Inputs) -> tuple[Tensor, NamedTensors]:
        """Outputs, and `J^T u` as a tensor per weight, by the network's own backward pass."""
        output, gradients = self._gradients(inputs)
        filled = {
            name: torch.zeros_like(self.model.get_parameter(name)) if gradient is None else gradient
            for name, gradient in zip(self.space.names, gradients, strict=True)
        }
        return output, filled

    def _gradients(self, inputs: Inputs) -> tuple[Tensor, list[Tensor | None]]:
        """The same; None for weights that the outputs do not depend on."""
        parameters = [self.model.get_parameter(name) for name in self.space.names]
        with torch.enable_grad(), self._repeat_randomness():
            output = call(self.model, inputs)
            gradients: Any = [None] * len(parameters)
            if output.requires_grad:
                gradients = torch.autograd.grad(output, parameters, self._probe(output), allow_unused=True)
        restore_buffers(self.model)
        return output.detach(), [None if each is None else each.to_dense() for each in gradients]

    def _repeat_randomness(self) -> Any:
        """Random numbers as they are now, and again afterwards: a network that draws some draws the same twice."""
        device = self.model.get_parameter(self.space.names[0]).device
        return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])

    def _rows(self, inputs: Inputs, vectors: Tensor) -> Pushed:
        """By rows of the Jacobian, some outputs at a time: as many backward passes as the network has outputs."""
        tracer = Tracer(self.model, self.space.names, self.budget, self.learner)
        with torch.enable_grad():
            cost = tracer.cost(inputs)
            tape = tracer.trace(inputs)
            output = tape.output
            number = output[0].numel()
            step = self.budget.count(3 * cost * len(output), number)
            pieces = []
            for start in range(0, number if output.requires_grad else 0, step):
                places = torch.arange(start, min(start + step, number), device=output.device)
                chosen = torch.nn.functional.one_hot(places, number).to(output.dtype)
                probes = chosen.reshape(-1, 1, *output.shape[1:]).expand(-1, *output.shape)
                pieces.append(apply(tape.pull(probes), self.space, vectors.to(tape.dtype)).detach())
        output = output.detach()
        if not pieces:
            return output, output.new_zeros(len(vectors), *output.shape)
        pushed = torch.cat(pieces, 1).transpose(1, 2)  # (S, B, numbers)
        return output, pushed.reshape(len(vectors), *output.shape).to(output.dtype)
