"""What structures share: sums in a dtype that can hold them, and the way back to the flat vector."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from ..layers.base import Part
from ..space import Space

Key = TypeVar("Key", bound=Hashable)


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 at least, whatever the network's."""
    return torch.promote_types(dtype, torch.float32)


def added(total: Tensor, value: Tensor) -> Tensor:
    """A sum of our own with another value in it, in place where no gradient flows through either."""
    if total.requires_grad or value.requires_grad:
        return total + value
    return total.add_(value)


def accumulate(sums: dict[Key, Tensor], key: Key, value: Tensor) -> None:
    """Add to a sum, which begins with its first value."""
    value = value.to(sum_dtype(value.dtype))
    sums[key] = value if key not in sums else sums[key] + value


def whole(sums: Mapping[Part, Tensor], space: Space) -> Tensor:
    """(total,): values per range put into one vector; ranges never seen are zero."""
    some = next(iter(sums.values()))
    flat = some.new_zeros(space.total)
    for part, value in sums.items():
        if part.name in space.names:
            place = space.place(part)
            flat = torch.cat([flat[: place.start], flat[place] + value, flat[place.stop :]])
    return flat


def floored(diagonal: Tensor, floor: float) -> Tensor:
    """Numbers of one tensor, at least a share of their mean."""
    return diagonal.clamp(min=0) if floor == 0 else diagonal.clamp(min=0).maximum(floor * diagonal.mean())


def filled(diagonal: Tensor, floor: float) -> Tensor:
    """(D,): what is still zero, since its whole tensor is, takes the share of the mean over all (one, if all are)."""
    if floor == 0:
        return diagonal
    least = floor * diagonal.mean()
    return torch.where(diagonal > 0, diagonal, torch.where(least > 0, least, torch.ones_like(least)))


def one_number(numbers: Tensor) -> bool:
    """Whether a range of weights shares one precision."""
    return numbers.stride(0) == 0 or bool((numbers == numbers[0]).all())
