"""The rule for everything else: per-example rows of the Jacobian of one weight by differentiating the whole network."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from ..batches import Inputs, call, map_tensors, take
from ..memory import Budget

if TYPE_CHECKING:
    from ..tape import Plan


def generic_rows(
    model: nn.Module,
    inputs: Inputs,
    names: tuple[str, ...],
    cotangents: Tensor,
    budget: Budget,
    plan: Plan,
    output: Tensor,
    create_graph: bool = False,
) -> dict[str, Tensor]:
    """Rows (K, B, P) per named weight, from cotangents (K, B, ...); `output` (B, ...) is that of the whole batch."""
    scripted = [name for name, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule)]
    if scripted:
        raise ValueError(
            f"{', '.join(names)} can only be reached by the generic rule, which cannot look into scripted or traced "
            f"modules ({scripted[0] or 'the network itself'!r}); expected the plain module."
        )
    if not plan.independent:
        check_independence(model, inputs, output)
        plan.independent = True
    if plan.vectorised and not create_graph:
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.filterwarnings("ignore", message="There is a performance drop")
                return _vectorised(model, inputs, names, cotangents, budget)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError, TypeError):
            # Control flow that depends on the data, in-place writes, operations without a batching rule: one by one.
            plan.vectorised = False
    return _one_by_one(model, inputs, names, cotangents, create_graph)


def check_independence(model: nn.Module, inputs: Inputs, output: Tensor) -> None:
    """Refuse a network whose output for one example depends on the others: none then has a likelihood of its own."""
    example = len(output) // 2
    with torch.no_grad():
        alone = call(model, take(inputs, slice(example, example + 1)))[0]
    together = output.detach()[example]
    if not bool(torch.isfinite(together).all()):
        return  # said elsewhere, with the examples that it concerns
    if not torch.allclose(alone, together, rtol=1e-2, atol=1e-2 * float(together.abs().max().clamp(min=1e-6))):
        raise ValueError(
            "The network's output for an example depends on the other examples of its batch (by "
            f"{float((alone - together).abs().max()):.3g} here), as with batch statistics in evaluation mode; "
            "expected examples to be independent."
        )


def _network(model: nn.Module) -> Any:
    def run(weights: dict[str, Tensor], example: Inputs) -> Tensor:
        """One example, with an axis of length one in front, under other weights."""

        def forward(*args: Any, **kwargs: Any) -> Any:
            return functional_call(model, weights, args, kwargs)

        return call(forward, example)[0]

    return run


def _vectorised(
    model: nn.Module, inputs: Inputs, names: tuple[str, ...], cotangents: Tensor, budget: Budget
) -> dict[str, Tensor]:
    run = _network(model)
    weights = {name: model.get_parameter(name).detach() for name in names}

    def one(example: Inputs, columns: Tensor) -> dict[str, Tensor]:
        pull: Any
        _, pull = vjp(lambda given: run(given, map_tensors(lambda tensor: tensor[None], example)), weights)  # type: ignore[misc]  # three values only with has_aux
        rows: dict[str, Tensor] = vmap(lambda column: pull(column)[0])(columns)
        return rows

    size = sum(weight.numel() for weight in weights.values())
    each = 3 * cotangents.shape[0] * size * cotangents.element_size()
    step = budget.count(each, cotangents.shape[1], 0.5)
    rows = vmap(one, in_dims=(0, 1), out_dims=1, randomness="same", chunk_size=step)(inputs, cotangents)
    wide = torch.promote_types(cotangents.dtype, torch.float32)
    return {name: value.reshape(*value.shape[:2], -1).to(wide) for name, value in rows.items()}


def _one_by_one(
    model: nn.Module, inputs: Inputs, names: tuple[str, ...], cotangents: Tensor, create_graph: bool
) -> dict[str, Tensor]:
    run = _network(model)
    made: dict[str, list[Tensor]] = {name: [] for name in names}
    for example in range(cotangents.shape[1]):
        weights = {
            name: model.get_parameter(name) if create_graph else model.get_parameter(name).detach().requires_grad_()
            for name in names
        }
        output = run(weights, take(inputs, slice(example, example + 1)))
        columns = []
        for column in cotangents[:, example]:
            gradients = (
                torch.autograd.grad(
                    output,
                    list(weights.values()),
                    column,
                    retain_graph=True,
                    create_graph=create_graph,
                    allow_unused=True,
                )
                if output.requires_grad
                else [None] * len(names)
            )
            columns.append(
                [
                    torch.zeros_like(weight) if gradient is None else gradient
                    for gradient, weight in zip(gradients, weights.values(), strict=True)
                ]
            )
        for position, name in enumerate(names):
            made[name].append(torch.stack([column[position].flatten() for column in columns]))
    wide = torch.promote_types(cotangents.dtype, torch.float32)
    return {name: torch.stack(rows, 1).to(wide) for name, rows in made.items()}
