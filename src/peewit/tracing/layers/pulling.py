"""Gradients of our own for many probes at once: one operation under `torch.vmap`, where torch would go one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class ProbeFunction(torch.autograd.Function):
    """A function of gradients with probes in front, as an operation that takes a batch of probes as it is."""

    @staticmethod
    def forward(function: Callable[..., Any], grad: Tensor, *rest: Any) -> Any:
        """One probe."""
        made = function(grad.unsqueeze(0), *rest)
        return made[0] if isinstance(made, Tensor) else tuple(each[0] for each in made)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: where gradients are differentiated, torch's own are taken."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, function: Callable[..., Any], grad: Tensor, *rest: Any) -> Any:
        """Only gradients come in batches: the rest is the forward pass's."""
        made = function(grad.movedim(in_dims[1], 0), *rest)
        return made, 0 if isinstance(made, Tensor) else (0,) * len(made)


def apply_to_probes(function: Callable[..., Any], grad: Tensor, *rest: Any) -> Any:
    """`function(grad, *rest)` for one probe; it takes gradients (K, ...) and gives one tensor (K, ...) or several."""
    return ProbeFunction.apply(function, grad, *rest)  # type: ignore[no-untyped-call]  # torch does not annotate it
