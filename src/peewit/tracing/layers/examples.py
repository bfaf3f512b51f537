"""Where a tensor has its examples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ...jacobians.factored import Term


@dataclass(frozen=True)
class BatchAxis:
    """Where a tensor has its examples: along an axis of their own, or folded into one with other positions."""

    axis: int
    # "none", "major" (examples vary slowest), "minor" (fastest), "whole" (a single example, no axis), or "owned": each
    # batch tells which example a row belongs to, and `OwnedRows` splits it.
    fold: str

    def split(self, tensor: Tensor, examples: int, skip: int = 0) -> Tensor:
        """Move the examples to axis `skip`; a folded axis leaves its other part in its place."""
        if self.fold == "whole":
            return tensor.unsqueeze(skip)
        axis = self.axis + skip
        if self.fold == "none":
            return tensor.movedim(axis, skip)
        sizes = (examples, -1) if self.fold == "major" else (-1, examples)
        unfolded: Tensor = tensor.unflatten(axis, sizes)
        return unfolded.movedim(axis if self.fold == "major" else axis + 1, skip)

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
class OwnedRows:
    """The rows of a batch along an axis, each of which belongs to one example: T places for each, some empty."""

    axis: int
    rows: Tensor  # (B, T): numbers of rows; how many rows there are, where a place is empty
    counted: Tensor  # (B, T): places that are not empty
    fold: ClassVar[str] = "owned"

    @staticmethod
    def of(axis: int, owners: Tensor, examples: int) -> OwnedRows:
        """From the example of each row (R,); at least one place, so that no product is empty."""
        order = owners.argsort(stable=True)
        counts = owners.bincount(minlength=examples)
        sorted_owners = owners[order]
        places = torch.arange(len(owners), device=owners.device) - (counts.cumsum(0) - counts)[sorted_owners]
        size = max(1, int(counts.max()))
        rows = owners.new_full((examples, size), len(owners)).index_put((sorted_owners, places), order)
        return OwnedRows(axis, rows, rows < len(owners))

    def split(self, tensor: Tensor, examples: int, skip: int = 0) -> Tensor:
        """Move the examples to axis `skip`, and leave T places in place of the rows: zeros where they are empty."""
        axis = self.axis + skip
        shape = [*tensor.shape]
        shape[axis] = 1
        padded = torch.cat([tensor, tensor.new_zeros(shape)], axis)
        places: Tensor = padded.index_select(axis, self.rows.flatten()).unflatten(axis, self.rows.shape)
        return places.movedim(axis, skip)

    def mask(self, term: Term) -> Term:
        """Leave empty places out of a term's input factor; places vary slower than its other positions."""
        counted = self.counted.repeat_interleave(term.acts.positions // self.counted.shape[1], 1)
        return replace(term, counted=counted if term.counted is None else counted & term.counted)


def batch_axes(shape: tuple[int, ...], axes: tuple[int, ...], examples: int) -> list[BatchAxis]:
    """All places where the examples could be, the likeliest first."""
    places = [BatchAxis(axis, "none") for axis in axes]
    places += [BatchAxis(axis, fold) for axis in axes for fold in ("major", "minor")]
    return [axis for axis in places if axis.fits(shape, examples)]
