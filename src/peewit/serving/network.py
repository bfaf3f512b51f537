"""A copy of a network that answers questions without holding the user's: nothing that other threads see is changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..network.calling import output_in, run_plainly
from ..network.modules import every_module
from ..network.nests import Inputs, count, map_tensors, take
from ..network.workarounds import UnchangedTables
from ..posterior.network import Network
from ..tracing.knowledge import KnowledgeLearner
from ..tracing.layers.contract import Use
from ..tracing.tape import Tape
from ..tracing.tracer import Tracer

FAST_PATHS = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


class SlowPaths(TorchFunctionMode):
    """Under any mode torch leaves its fused encoder alone, which sets padded positions to zero."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function."""
        return func(*args, **(kwargs or {}))


def mode_for(model: nn.Module) -> type[TorchFunctionMode] | None:
    """What this thread has to set while the network runs without gradients; None for most networks."""
    modules = every_module(model)
    if any(getattr(each, "max_norm", None) is not None for each in modules):
        return UnchangedTables
    return SlowPaths if any(isinstance(each, FAST_PATHS) for each in modules) else None


@dataclass(frozen=True, kw_only=True)
class ServedNetwork(Network):
    """A copy for one thread, whose passes are recorded: any uncertain weights."""

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """With gradients; a copy needs no other care."""
        with torch.enable_grad(), nullcontext() if self._mode is None else self._mode():
            yield

    def refuse_broken(self, values: Sequence[Tensor], x: Inputs) -> None:
        """Nothing is looked at: that would wait for the device."""

    @cached_property
    def _mode(self) -> type[TorchFunctionMode] | None:
        mode = mode_for(self.model)
        return None if mode is SlowPaths else mode  # recordings are modes

    @cached_property
    def _tracer(self) -> Tracer:
        return Tracer(self.model, self.space.names, self.budget, self.learner, predicting=True)

    def tapes(self, x: Inputs, create_graph: bool = False, probes: int | None = None) -> Iterator[Tape]:
        """Forward passes over slices of the examples."""
        for chosen in self.slices(x, probes):
            yield self._tracer.trace(take(x, chosen))


@dataclass(frozen=True, kw_only=True)
class LastLayer:
    """The layer of a copy whose output is the network's own; it keeps its inputs."""

    layer: nn.Module
    inputs: list[Tensor]  # of the pass at hand
    shapes: list[tuple[int, ...]]

    @staticmethod
    def of(layer: nn.Module, copied: bool) -> LastLayer:
        """Watch a layer of a copy; `copied`: the network changes the layer's inputs later, in place."""
        inputs, shapes, forward = list[Tensor](), list[tuple[int, ...]](), layer.forward

        def keep(x: Tensor) -> Tensor:
            output: Tensor = forward(x)
            inputs.append(x.clone() if copied else x)
            shapes.append(tuple(output.shape))
            return output

        layer.__dict__["forward"] = keep
        return LastLayer(layer=layer, inputs=inputs, shapes=shapes)

    def take(self) -> tuple[Tensor, tuple[int, ...]]:
        """Its inputs, and the shape of its output, once per pass."""
        (x,), (shape,) = self.inputs, self.shapes
        self.clear()
        return x, shape

    def clear(self) -> None:
        """Forget a pass that did not end."""
        self.inputs.clear()
        self.shapes.clear()


@dataclass(frozen=True, kw_only=True)
class ClosedNetwork(ServedNetwork):
    """A copy whose uncertain weights are all in its last layer: plain passes without gradients do."""

    last: LastLayer
    use: Use  # of the last layer, as a recording notes it

    @cached_property
    def _plain_mode(self) -> type[TorchFunctionMode] | None:
        return mode_for(self.model)

    def plain_pass(self, x: Inputs) -> tuple[Tensor, Tensor, tuple[int, ...]]:
        """The network's output, and the inputs of its last layer, with the shape of that layer's output."""
        self.last.clear()
        with torch.no_grad(), nullcontext() if self._plain_mode is None else self._plain_mode():
            output = output_in(run_plainly(self.model, map_tensors(torch.clone, x)))
        return output, *self.last.take()

    def tapes(self, x: Inputs, create_graph: bool = False, probes: int | None = None) -> Iterator[Tape]:
        """Plain passes over slices of the examples, as recordings of the last layer."""
        for chosen in self.slices(x, probes):
            some = take(x, chosen)
            yield self.tape(some, *self.plain_pass(some))

    def tape(self, x: Inputs, output: Tensor, layer_inputs: Tensor, shape: tuple[int, ...]) -> Tape:
        """A recording of the last layer from a plain pass."""
        tape = Tape(
            model=self.model,
            parameters=self._tracer.parameters,
            inputs=x,
            examples=count(x),
            output=output,
            uses=[replace(self.use, inputs=(layer_inputs,), shape=shape, versions=(layer_inputs._version,), cache={})],
            lifts=[],
            generic=(),
            learner=KnowledgeLearner(self.knowledge),
            budget=self.budget,
            dtype=self._tracer.dtype,
        )
        tape.__dict__["outermost"] = tape.uses[0]  # known: there is no graph in which to look for it
        return tape
