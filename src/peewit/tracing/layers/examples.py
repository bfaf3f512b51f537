"""Where the examples are in a tensor."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ...jacobians.factored import Term


@dataclass(frozen=True)
class BatchAxis:
    """Where the examples are in a tensor: an axis of their own, or folded into one before or after other positions."""

    axis: int
    # "none", "major" (example varies slowest), "minor" (fastest), "whole" (a single example, no axis), or "owned": rows
    # are found to be this or that example's in each batch, and split by `Owned`.
    fold: str

    def split(self, tensor: Tensor, examples: int, skip: int = 0) -> Tensor:
        """Move the examples to axis `skip`; a folded axis leaves its other part in its place."""
        if self.fold == "whole":
            return tensor.unsqueeze(skip)
        axis = self.axis + skip
        if self.fold == "none":
            return tensor.movedim(axis, skip)
        sizes = (examples, -1) if self.fold == "major" else (-1, examples)
        parted: Tensor = tensor.unflatten(axis, sizes)
        return parted.movedim(axis if self.fold == "major" else axis + 1, skip)

    def fits(self, shape: torch.Size | tuple[int, ...], examples: int) -> bool:
        """Whether a tensor of this shape can have its examples here."""
        if self.fold == "whole":
            return examples == 1
        if self.axis >= len(shape):
            return False
        if self.fold == "owned":
            return True
        size = shape[self.axis]
        return size == examples if self.fold == "none" else size % examples == 0 and size > examples


@dataclass(frozen=True)
class Owned:
    """Rows of one batch along an axis, each of one example: T places for each example, of which some are empty."""

    axis: int
    rows: Tensor  # (B, T): numbers of rows; how many rows there are, where a place is empty
    counted: Tensor  # (B, T): places that are not empty
    fold: ClassVar[str] = "owned"

    @staticmethod
    def of(axis: int, owners: Tensor, examples: int) -> Owned:
        """From each row's example (R,); at least one place, so that no product is empty."""
        order = owners.argsort(stable=True)
        counts = owners.bincount(minlength=examples)
        sorted_owners = owners[order]
        places = torch.arange(len(owners), device=owners.device) - (counts.cumsum(0) - counts)[sorted_owners]
        size = max(1, int(counts.max()))
        rows = owners.new_full((examples, size), len(owners)).index_put((sorted_owners, places), order)
        return Owned(axis, rows, rows < len(owners))

    def split(self, tensor: Tensor, examples: int, skip: int = 0) -> Tensor:
        """Move the examples to axis `skip`, and leave T places in place of the rows: zeros where they are empty."""
        axis = self.axis + skip
        shape = [*tensor.shape]
        shape[axis] = 1
        padded = torch.cat([tensor, tensor.new_zeros(shape)], axis)
        parted: Tensor = padded.index_select(axis, self.rows.flatten()).unflatten(axis, self.rows.shape)
        return parted.movedim(axis, skip)

    def counts(self, term: Term) -> Term:
        """The term, with empty places left out of its input factor; places vary slower than its other positions."""
        every = self.counted.repeat_interleave(term.acts.positions // self.counted.shape[1], 1)
        return replace(term, counted=every if term.counted is None else every & term.counted)


def batch_axes(shape: tuple[int, ...], axes: tuple[int, ...], examples: int) -> list[BatchAxis]:
    """All places where the examples could be, the likeliest first."""
    found = [BatchAxis(axis, "none") for axis in axes]
    found += [BatchAxis(axis, fold) for axis in axes for fold in ("major", "minor")]
    return [place for place in found if place.fits(shape, examples)]


def _product(sizes: torch.Size | tuple[int, ...]) -> int:
    made = 1
    for size in sizes:
        made *= size
    return made
