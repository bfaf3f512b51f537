"""What tests of tracing share: tracers, Jacobians as matrices, and small parts of what they know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from environment import DEVICE
from jacobian_cases import normal
from networks import Network
from peewit.jacobians.explicit import Explicit
from peewit.jacobians.output_layer import identity_probes
from peewit.runtime.memory import Budget
from peewit.tracing.forward_mode import Push
from peewit.tracing.knowledge import KnowledgeLearner
from peewit.tracing.layers.examples import BatchAxis
from peewit.tracing.tape import Tape
from peewit.tracing.tracer import Tracer
from peewit.weights.ranges import WeightRange
from peewit.weights.space import make_space


def numbers(*values: int) -> Tensor:
    """Whole numbers on the device under test."""
    return torch.tensor(values, device=DEVICE)


def zeros() -> Tensor:
    """Four examples of three numbers."""
    return torch.zeros(4, 3, dtype=torch.float64, device=DEVICE)


def tracer_of(model: nn.Module, **options: Any) -> Tracer:
    """For all of its weights."""
    return Tracer(model, tuple(name for name, _ in model.named_parameters()), Budget(1 << 24), **options)


def jacobian_of(tape: Tape) -> Tensor:
    """(B, F, D), in the order of the parameters; zero where nothing was found."""
    made = []
    found = tape.pull(identity_probes(tape.output))
    for name, weight in tape.parameters.items():
        rows = torch.zeros(tape.output[0].numel(), tape.examples, weight.numel(), dtype=tape.dtype, device=DEVICE)
        for part, jacobian in found.items():
            if part.name == name:
                rows[..., part.start : part.stop] += jacobian.rows(slice(0, tape.examples))
        made.append(rows)
    return torch.cat(made, -1).transpose(0, 1)


PLACES = [BatchAxis(axis, "none") for axis in range(3)]


def rows_at(*spans: tuple[int, int], name: str = "weight") -> dict[WeightRange, Any]:
    """Jacobians as rows."""
    return {WeightRange(name, start, stop): Explicit(normal(2, 3, stop - start), Budget(1)) for start, stop in spans}


def push_of(model: nn.Module, mask: Tensor | None = None, memory: int = 1 << 24) -> Push:
    """For all of its weights."""
    space = make_space(model, [name for name, _ in model.named_parameters()], mask)
    return Push(model, space, KnowledgeLearner(), Budget(memory))


def network(forward: Callable[[Any, Tensor], Tensor], **parts: Any) -> nn.Module:
    """A network in double precision, on the device under test."""
    torch.manual_seed(1)
    return Network(forward, **parts).double().to(DEVICE)
