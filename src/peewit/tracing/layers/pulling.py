"""Gradients of our own for several probes at once: one operation under `torch.vmap`, where torch would loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class ProbeFunction(torch.autograd.Function):
    """A function of gradients (K, ...) as an operation for which `torch.vmap` hands over all probes at once."""

    @staticmethod
    def forward(function: Callable[..., Any], grad: Tensor, *rest: Any) -> Any:
        """One probe."""
        result = function(grad.unsqueeze(0), *rest)
        return result[0] if isinstance(result, Tensor) else tuple(each[0] for each in result)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing: where gradients are differentiated, torch's own are used."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, function: Callable[..., Any], grad: Tensor, *rest: Any) -> Any:
        """All probes; the rest is from the forward pass and has no axis of probes."""
        result = function(grad.movedim(in_dims[1], 0), *rest)
        return result, 0 if isinstance(result, Tensor) else (0,) * len(result)


def apply_to_probes(function: Callable[..., Any], grad: Tensor, *rest: Any) -> Any:
    """`function(grad, *rest)` of one probe; the function maps gradients (K, ...) to one tensor (K, ...) or several."""
    return ProbeFunction.apply(function, grad, *rest)  # type: ignore[no-untyped-call]  # torch does not annotate it
