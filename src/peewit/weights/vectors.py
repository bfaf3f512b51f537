"""Vectors of all selected weights, and one tensor for each weight."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from .space import Space

NamedTensors = dict[str, Tensor]


def unflatten(vectors: Tensor, space: Space) -> NamedTensors:
    """(..., D) -> one tensor (..., *shape) per weight; weights outside a mask get zero."""
    vectors = fill_mask(vectors, space)
    return {
        name: vectors[..., elements].reshape((*vectors.shape[:-1], *shape))
        for (name, elements), shape in zip(space.slices().items(), space.shapes, strict=True)
    }


def fill_mask(vectors: Tensor, space: Space) -> Tensor:
    """(..., D) -> (..., total): zero outside of a mask."""
    if space.mask is None:
        return vectors
    whole = vectors.new_zeros(*vectors.shape[:-1], space.total)
    whole[..., space.mask.to(vectors.device)] = vectors
    return whole


def flatten_gradients(gradients: Sequence[Tensor | None], model: nn.Module, space: Space) -> Tensor:
    """One gradient per weight -> (D,): zero where there is none."""
    pairs = zip(space.names, gradients, strict=True)
    return flatten(
        {
            name: torch.zeros_like(model.get_parameter(name)) if gradient is None else gradient.detach().to_dense()
            for name, gradient in pairs
        },
        space,
    )


def flatten(tensors: NamedTensors, space: Space) -> Tensor:
    """Flatten one tensor per weight -> (D,)."""
    flat = torch.cat([tensors[name].flatten() for name in space.names])
    return flat if space.mask is None else flat[space.mask.to(flat.device)]
