"""Sums over groups of weights, whichever way they are made: against a loop over the weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import peewit as pw
from environment import DEVICE
from fitting import normal
from peewit.weights.groups import GroupRows, Groups
from peewit.weights.space import Space
from tables import moved, relative

SHAPES = {"a.weight": (7, 3, 5), "a.bias": (7,), "b.weight": (40, 31), "b.bias": (40,), "c": ()}
PRIORS: dict[str, pw.Prior] = {
    "scalar": pw.Prior.scalar(2.0),
    "layerwise": pw.Prior.layerwise([1.0, 2.0, 3.0, 4.0, 5.0]),
    "unitwise": pw.Prior.unitwise(3.0),
    "diagonal": pw.Prior.diagonal(3.0),
    "patterns": pw.Prior.groups({"*.bias": 1.0, "nothing": 5.0, "b": 2.0, "*": 3.0}),
}


def space(mask: bool) -> Space:
    """A few tensors, with some of their elements where a mask is asked for."""
    shapes = tuple(map(torch.Size, SHAPES.values()))
    total = sum(shape.numel() for shape in shapes)
    return Space(tuple(SHAPES), shapes, normal(total) > 0.3 if mask else None)


def expected_groups(prior: str, own: Space) -> list[int]:
    """Written out weight by weight."""
    made, units = [], 0
    for place, (name, shape) in enumerate(SHAPES.items()):
        rows = shape[0] if shape else 1
        for element in range(torch.Size(shape).numel()):
            unit = units + element * rows // torch.Size(shape).numel()
            pattern = 0 if name.endswith(".bias") else 2 if name.startswith("b.") else 3
            made.append({"scalar": 0, "layerwise": place, "unitwise": unit, "patterns": pattern}.get(prior, len(made)))
        units += rows
    kept = made if own.mask is None else [made[place] for place in own.mask.nonzero()[:, 0].tolist()]
    return list(range(len(kept))) if prior == "diagonal" else kept


def looped(values: Tensor, numbers: list[int], count: int) -> Tensor:
    """(groups,): one after the other."""
    made = [0.0] * count
    for number, value in zip(numbers, values.tolist(), strict=True):
        made[number] += value
    return torch.tensor(made, dtype=torch.float64)


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("prior", PRIORS)
def test_sums_over_groups(prior: str, mask: bool, monkeypatch: Any) -> None:
    """By stretches, by single weights, and in rows; zeros among the numbers, groups without any."""
    own = space(mask)
    groups, numbers = PRIORS[prior].stretches(own), expected_groups(prior, own)
    assert groups.vector().tolist() == numbers == PRIORS[prior].group(own).tolist()
    assert groups.sizes.tolist() == [numbers.count(place) for place in range(groups.count)]
    values = normal(len(numbers), seed=4) * (normal(len(numbers), seed=5) > 0)
    right = looped(values, numbers, groups.count)
    for few in (0, 10**6):
        monkeypatch.setattr("peewit.weights.groups.FEW", few)
        assert relative(groups.sums(moved(values)), right) < 1e-14
        rows = GroupRows.of(moved(values), groups)
        assert relative(rows.sums(rows.values.sum(1).cpu()), right) < 1e-14
        assert rows.values.numel() <= 1.25 * int((values != 0).sum())
    each = normal(groups.count, seed=6)
    assert groups.spread(moved(each)).cpu().tolist() == each[numbers].tolist()
    assert relative(rows.sums((rows.values * rows.spread(each)).sum(1).cpu()), right * each) < 1e-14


def test_rows_are_wide_where_groups_are_large() -> None:
    """A few calls over all numbers, and few sums to fetch."""
    groups = Groups(torch.tensor([0, 1, 2]), torch.tensor([60_000, 9, 70_000]), 3)
    values = normal(130_009)
    rows = GroupRows.of(moved(values), groups)
    assert rows.values.shape[1] == 4096 and rows.values.device.type == torch.device(DEVICE).type
    assert rows.owners.tolist() == [0] * 15 + [1] + [2] * 18
    right = torch.stack([piece.sum() for piece in values.split([60_000, 9, 70_000])])
    assert relative(rows.sums(rows.values.sum(1).cpu()), right) < 1e-12


@pytest.mark.parametrize("mask", [False, True])
@pytest.mark.parametrize("prior", PRIORS)
def test_which_ranges_share_a_group(prior: str, mask: bool) -> None:
    """As the numbers of their weights say."""
    own = space(mask)
    groups, numbers = PRIORS[prior].stretches(own), expected_groups(prior, own)
    edges = [0, 1, 2, 21, 40, 90, 105, 112, 113, 300, len(numbers) - 41, len(numbers) - 1, len(numbers)]
    ranges = [slice(a, b) for a in edges for b in edges if a < b]
    for place, first in enumerate(ranges):
        assert groups.share_one(first) == (len(set(numbers[first])) == 1)
        second = ranges[(5 * place + 3) % len(ranges)]
        assert groups.share_one(first, second) == (len({*numbers[first], *numbers[second]}) == 1)


def test_a_part_is_what_all_have_there() -> None:
    """Whatever the range: inside a stretch, over several, at the ends."""
    groups = Groups(torch.tensor([2, 0, 1, 0]), torch.tensor([3, 1, 4, 2]), 3)
    values = torch.tensor([0.5, 1.5, 2.5], dtype=torch.float64)
    everything = groups.spread(values)
    for start in range(10):
        for stop in range(start + 1, 11):
            assert torch.equal(groups.part(values, slice(start, stop)), everything[start:stop])


def test_ranges_over_stretches_of_one_group() -> None:
    """Neighbours and others of one group, two stretches and more: as a loop over all weights says."""
    stretches = [([0, 0, 1, 0, 2, 1, 2], [2, 3, 1, 2, 1, 2, 1]), ([0, 1], [2, 3]), ([1, 1], [1, 2]), ([0], [4])]
    for numbers, lengths in stretches:
        groups = Groups(torch.tensor(numbers), torch.tensor(lengths), 3)
        every = groups.vector().tolist()
        assert every == [number for number, length in zip(numbers, lengths, strict=True) for _ in range(length)]
        ranges = [slice(a, b) for a in range(len(every)) for b in range(a + 1, len(every) + 1)]
        for first in ranges:
            assert groups.share_one(first) == (len(set(every[first])) == 1)
            for second in ranges[::3]:
                assert groups.share_one(first, second) == (len({*every[first], *every[second]}) == 1)


@pytest.mark.parametrize(("numbers", "count"), [([0, 2, 1, 2, 0], 3), ([1, 0, 1], 2), ([0, 0, 0], 1), ([2, 1, 0], 4)])
def test_sums_in_any_order_of_groups(numbers: list[int], count: int) -> None:
    """In float64 whatever the numbers are in, of several kinds of sums at once, times a factor of each group."""
    groups = Groups(torch.tensor(numbers), torch.arange(2, 2 + len(numbers)), count)
    values = 1 + normal(int(groups.ends[-1])).abs()
    right = looped(values, groups.vector().tolist(), count)
    assert relative(groups.sums(values), right) < 1e-14
    narrow = values.float()
    assert relative(groups.sums(narrow), looped(narrow, groups.vector().tolist(), count)) < 1e-14
    rows = GroupRows.of(values, groups)
    kinds = torch.stack([rows.values.sum(1), 2 * rows.values.sum(1)])
    assert relative(rows.sums(kinds), torch.stack([right, 2 * right])) < 1e-14
    factors = 1 + normal(count, seed=7).abs()
    parts = torch.cat([part.sum(1) for part in rows.parts(factors)])
    assert relative(rows.sums(parts), right * factors) < 1e-14
