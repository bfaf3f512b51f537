"""Which weights share a prior precision, and sums over those that do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

FEW = 1024  # stretches up to which each is summed on its own where the numbers are
WIDEST = 4096  # numbers in a row
CACHED = 1 << 16  # numbers that a CPU works on at a time


@dataclass(frozen=True, eq=False)
class Groups:
    """The group of each of D weights, as stretches of neighbours in one group: a network has few, a vector is long."""

    numbers: Tensor  # (stretches,) on the CPU
    lengths: Tensor  # (stretches,) on the CPU, none of them zero
    count: int  # groups, some perhaps without a weight

    @staticmethod
    def of(vector: Tensor, count: int) -> Groups:
        """The groups, from the number of each weight's group (D,)."""
        numbers, lengths = torch.unique_consecutive(vector.cpu(), return_counts=True)
        return Groups(numbers, lengths, count)

    @cached_property
    def ends(self) -> Tensor:
        """(stretches,): where each ends."""
        return self.lengths.cumsum(0)

    @cached_property
    def sizes(self) -> Tensor:
        """(groups,): weights."""
        return torch.zeros(self.count, dtype=torch.long, device="cpu").index_add_(0, self.numbers, self.lengths)

    def vector(self) -> Tensor:
        """(D,) on the CPU: the number of each weight's group."""
        if len(self.numbers) == 1:
            return self.numbers.expand(int(self.lengths))
        return self.numbers.repeat_interleave(self.lengths)

    def spread(self, values: Tensor) -> Tensor:
        """(groups,) -> (D,): the value of each weight's group, on the values' device."""
        lengths, numbers = self.lengths.to(values.device), self.numbers.to(values.device)
        return values[numbers].repeat_interleave(lengths, output_size=int(self.ends[-1]))

    def part(self, values: Tensor, chosen: slice) -> Tensor:
        """(groups,) -> (stop - start,): what `spread` has there, without the rest."""
        bounds = torch.tensor([chosen.start, chosen.stop - 1], device="cpu")
        first, last = torch.searchsorted(self.ends, bounds, right=True).tolist()
        ends = self.ends[first : last + 1].clamp(max=chosen.stop)
        lengths = ends.diff(prepend=ends.new_tensor([chosen.start]))
        pieces = values[self.numbers[first : last + 1].to(values.device)]
        return pieces.repeat_interleave(lengths.to(values.device), output_size=chosen.stop - chosen.start)

    def share_one(self, *places: slice) -> bool:
        """Whether all weights in some ranges are in one group."""
        if len(self.numbers) == 1:
            return True
        bounds = torch.tensor([[place.start, place.stop - 1] for place in places], device="cpu")
        bounds_of_groups = torch.searchsorted(self.ends, bounds, right=True).tolist()
        if len({number for pair in bounds_of_groups for number in pair}) == 1:
            return True
        numbers = torch.cat([self.numbers[first : last + 1] for first, last in bounds_of_groups])
        return bool((numbers == numbers[0]).all())

    def sums(self, values: Tensor) -> Tensor:
        """(D,) -> (groups,) on the CPU in float64, the same every time (no sums in an order that varies)."""
        if self.count == 1:
            return values.sum(dtype=torch.float64)[None].cpu()
        sums = torch.zeros(self.count, dtype=torch.float64, device="cpu")
        if len(self.numbers) > FEW:
            return sums.index_add_(0, self.vector(), values.double().cpu())
        by_stretch = [piece.sum(dtype=torch.float64) for piece in values.split(self.lengths.tolist())]
        return sums.index_add_(0, self.numbers, torch.stack(by_stretch).cpu())

    def sort(self, values: Tensor) -> Tensor:
        """(D,) -> (D,): one group after the other."""
        if bool((self.numbers[1:] >= self.numbers[:-1]).all()):
            return values
        pieces = values.split(self.lengths.tolist())
        return torch.cat([pieces[number] for number in self.numbers.argsort(stable=True).tolist()])


@dataclass(frozen=True, eq=False)
class GroupRows:
    """Numbers in rows that belong to one group each, filled up with zeros: sums over groups in a few calls."""

    values: Tensor  # (rows, width)
    owners: Tensor  # (rows,) on the CPU: the groups, in order
    count: int

    @staticmethod
    def of(values: Tensor, groups: Groups) -> GroupRows:
        """Numbers (D,), zeros left out: where they are, they add nothing."""
        values = groups.sort(values)
        kept = values != 0
        sizes = groups.sizes
        counts = Groups(torch.arange(groups.count, device="cpu")[sizes > 0], sizes[sizes > 0], groups.count).sums(kept)
        counts, values = counts.long(), values[kept]
        width = 1
        while 2 * width <= WIDEST and 8 * width * groups.count <= len(values):  # at most a quarter more in zeros
            width *= 2
        rows = (counts + width - 1).div(width, rounding_mode="floor")
        owners = torch.arange(groups.count, device="cpu").repeat_interleave(rows)
        if width == 1:
            return GroupRows(values[:, None], owners, groups.count)
        shifts = width * (rows.cumsum(0) - rows) - (counts.cumsum(0) - counts)
        places = shifts.to(values.device).repeat_interleave(counts.to(values.device), output_size=len(values))
        places += torch.arange(len(values), device=values.device)
        filled = values.new_zeros(len(owners) * width)
        filled[places] = values
        return GroupRows(filled.reshape(-1, width), owners, groups.count)

    def parts(self, factors: Tensor) -> Iterator[Tensor]:
        """Numbers times a factor of each group (groups,): all at once, or on a CPU as many as its cache holds."""
        spread = self.spread(factors)
        step = len(spread) if spread.is_cuda else max(1, CACHED // self.values.shape[1])
        for values, factor in zip(self.values.split(step), spread.split(step), strict=True):
            yield values * factor

    def spread(self, values: Tensor) -> Tensor:
        """(groups,) on the CPU -> (rows, 1): of each row's group."""
        return values[self.owners][:, None].to(self.values.device)

    def sums(self, rows: Tensor) -> Tensor:
        """(..., rows) on the CPU -> (..., groups)."""
        sums = rows.new_zeros(*rows.shape[:-1], self.count)
        return sums.index_add_(-1, self.owners, rows)
