"""The rule for everything else: per-example rows of the Jacobian of one weight by differentiating the whole network."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import vjp, vmap

from ..messages.errors import PeewitError
from ..network.buffers import restore_buffers
from ..network.calling import call
from ..network.nests import Inputs, map_tensors, take
from ..runtime.memory import Budget

if TYPE_CHECKING:
    from .knowledge import KnowledgeLearner


def generic_rows(
    model: nn.Module,
    inputs: Inputs,
    names: tuple[str, ...],
    probes: Tensor,
    budget: Budget,
    learner: KnowledgeLearner,
    create_graph: bool = False,
) -> dict[str, Tensor]:
    """Rows (K, B, P) per named weight, from probes (K, B, ...)."""
    scripted = [name for name, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule)]
    if scripted:
        raise PeewitError(
            f"{', '.join(names)} can only be reached by the generic rule, which cannot look into scripted or traced "
            f"modules ({scripted[0] or 'the network itself'!r}); expected the plain module."
        )
    if learner.knowledge.vectorised and not create_graph:
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.filterwarnings("ignore", message="There is a performance drop")
                rows = _map_examples(model, inputs, names, probes, budget, learner)
            if all(each.shape[:2] == probes.shape[:2] for each in rows.values()):
                return rows  # torch's rule for some operations gets the axes wrong
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError):
            pass
        # Control flow that depends on the data, in-place writes, operations without a batching rule: one by one.
        learner.learn(vectorised=False)
    return _one_by_one(model, inputs, names, probes, create_graph)


def _map_examples(
    model: nn.Module, inputs: Inputs, names: tuple[str, ...], probes: Tensor, budget: Budget, learner: KnowledgeLearner
) -> dict[str, Tensor]:
    weights = {name: model.get_parameter(name).detach() for name in names}

    def one(example: Inputs, probes: Tensor) -> dict[str, Tensor]:
        pull: Any
        single = map_tensors(lambda tensor: tensor[None], example)
        _, pull = vjp(lambda tensors: call(learner.with_weights(model, tensors, single), single)[0], weights)  # type: ignore[misc]  # with has_aux: 3
        rows: dict[str, Tensor] = vmap(lambda probe: pull(probe)[0])(probes)
        return rows

    size = sum(weight.numel() for weight in weights.values())
    bytes_per_example = 3 * probes.shape[0] * size * probes.element_size()
    step = budget.count(bytes_per_example, probes.shape[1], 0.5)
    rows = vmap(one, in_dims=(0, 1), out_dims=1, randomness="same", chunk_size=step)(inputs, probes)
    wide = torch.promote_types(probes.dtype, torch.float32)
    return {name: value.reshape(*value.shape[:2], -1).to(wide) for name, value in rows.items()}


def _one_by_one(
    model: nn.Module, inputs: Inputs, names: tuple[str, ...], probes: Tensor, create_graph: bool
) -> dict[str, Tensor]:
    parameters = [model.get_parameter(name) for name in names]
    jacobians: list[list[Tensor]] = [[] for _ in names]
    for example in range(probes.shape[1]):
        output = call(model, take(inputs, slice(example, example + 1)))[0]
        restore_buffers(model)
        rows: list[list[Tensor]] = [[] for _ in names]
        for probe in probes[:, example]:
            gradients: Any = [None] * len(names)
            if output.requires_grad:
                gradients = torch.autograd.grad(
                    output, parameters, probe, retain_graph=True, create_graph=create_graph, allow_unused=True
                )
            for row, parameter, gradient in zip(rows, parameters, gradients, strict=True):
                row.append((torch.zeros_like(parameter) if gradient is None else gradient.to_dense()).flatten())
        for jacobian, row in zip(jacobians, rows, strict=True):
            jacobian.append(torch.stack(row))
    wide = torch.promote_types(probes.dtype, torch.float32)
    return {name: torch.stack(jacobian, 1).to(wide) for name, jacobian in zip(names, jacobians, strict=True)}
