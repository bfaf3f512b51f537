"""What structures share: sums in a dtype that can hold them, and the way back to the flat vector."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from ...messages.errors import PeewitError
from ...weights.ranges import WeightRange
from ...weights.space import Space

AnyKey = TypeVar("AnyKey", bound=Hashable)


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 at least, whatever the network's."""
    return torch.promote_types(dtype, torch.float32)


def add_to(total: Tensor, value: Tensor) -> Tensor:
    """`total + value`, in place where no gradient flows through either and the dtype of `total` can hold the sum."""
    if total.requires_grad or value.requires_grad or torch.promote_types(total.dtype, value.dtype) != total.dtype:
        return total + value
    return total.add_(value)


narrower: Any = WeakTensorKeyDictionary()  # of bases that are in use: they never change


def narrow_basis(basis: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Eigenvectors in the dtype of the weights; the copy is cached, since a weight and its bias share it."""
    if basis is None or basis.dtype == dtype or basis.requires_grad:
        return basis if basis is None else basis.to(dtype)
    kept: Tensor | None = narrower.get(basis)
    if kept is None or kept.dtype != dtype:
        kept = narrower[basis] = basis.to(dtype)
    return kept


def accumulate(sums: dict[AnyKey, Tensor], key: AnyKey, value: Tensor) -> None:
    """Add to a sum, which begins with its first value."""
    value = value.to(sum_dtype(value.dtype))
    sums[key] = value if key not in sums else sums[key] + value


def outside(part: WeightRange, space: Space) -> str:
    """Say what is wrong with a range of a weight: an empty text if nothing is."""
    whole = space.slices().get(part.name)
    if whole is None:
        return f"{part.name!r} is not one of the selected weights"
    if not 0 <= part.start < part.stop <= whole.stop - whole.start:
        return f"{part.name!r} has no range {part.start}:{part.stop}"
    return ""


def check_shape(value: Tensor, what: str, *shapes: tuple[int, ...]) -> None:
    """Refuse sums that are not in float32 or float64, or whose shape does not fit their weights."""
    if value.dtype not in (torch.float32, torch.float64):
        raise PeewitError(f"{what} has dtype {value.dtype}; expected float32 or float64")
    if tuple(value.shape) not in shapes:
        raise PeewitError(f"{what} has shape {tuple(value.shape)}; expected {' or '.join(map(str, shapes))}")


def check_parts(parts: Iterable[WeightRange], space: Space) -> None:
    """Refuse ranges that are outside of the selected weights, or that overlap."""
    ordered = sorted(parts)
    wrong = next(filter(None, (outside(part, space) for part in ordered)), "")
    if wrong:
        raise PeewitError(wrong)
    for first, second in itertools.pairwise(ordered):
        if first.name == second.name and second.start < first.stop:
            raise PeewitError(f"ranges {first[1:]} and {second[1:]} of {first.name!r} overlap")


def assemble_vector(sums: Mapping[WeightRange, Tensor], space: Space) -> Tensor:
    """(total,): put the values of all ranges into one vector, with zeros for ranges that no data touched."""
    some = next(iter(sums.values()))
    flat = some.new_zeros(space.total)
    for part, value in sums.items():
        if part.name in space.names:
            elements = space.slice_of(part)
            flat = torch.cat([flat[: elements.start], flat[elements] + value, flat[elements.stop :]])
    return flat


def apply_floor(diagonal: Tensor, floor: float) -> Tensor:
    """Numbers of one tensor, at least a share of their mean."""
    return diagonal.clamp(min=0) if floor == 0 else diagonal.clamp(min=0).maximum(floor * diagonal.mean())


def clear_rounding(pieces: Sequence[Tensor]) -> list[Tensor]:
    """Diagonals by tensor; a tensor whose diagonal is only rounding error beside the others gets zeros.

    The bias of attention's keys is an example: it has no curvature, and rounding error is not a scale for its weights.
    """
    means = torch.stack([piece.mean() for piece in pieces])
    noise = torch.finfo(means.dtype).eps ** 1.5 * means.max()
    return [torch.where(mean > noise, piece, 0.0) for mean, piece in zip(means, pieces, strict=True)]


def fill_zeros(diagonal: Tensor, floor: float) -> Tensor:
    """(D,): replace zeros, which whole tensors have, by `floor` times the mean over all weights; by one if all are."""
    if floor == 0:
        return diagonal
    least = floor * diagonal.mean()
    return torch.where(diagonal > 0, diagonal, torch.where(least > 0, least, torch.ones_like(least)))
