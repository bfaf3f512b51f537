"""What structures share: sums, narrow bases, ranges of weights, floors."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fitting import normal
from peewit.curvature.structures import common
from peewit.weights.ranges import WeightRange
from structure_numbers import space_of


def test_sums_hold_what_they_are_given() -> None:
    """In place only where nothing is lost: no gradient, and no digits."""
    total, value = torch.ones(2), torch.full((2,), 2.0)
    assert common.add_to(total, value) is total and total.tolist() == [3.0, 3.0]
    wide = common.add_to(total, value.double())
    assert wide.dtype == torch.float64 and wide.tolist() == [5.0, 5.0] and total.tolist() == [3.0, 3.0]
    assert common.add_to(total.double(), value).dtype == torch.float64
    for one, other in ((total.clone().requires_grad_(), value), (total, value.clone().requires_grad_())):
        made = common.add_to(one, other)
        assert made is not one and made.requires_grad and made.tolist() == [5.0, 5.0]
    sums: dict[str, Tensor] = {}
    common.accumulate(sums, "a", torch.ones(2, dtype=torch.float16))
    first = sums["a"]
    common.accumulate(sums, "a", torch.full((2,), 3.0, dtype=torch.float16))
    assert first.dtype == torch.float32 and first.tolist() == [1.0, 1.0] and sums["a"].tolist() == [4.0, 4.0]


def test_narrow_bases_are_made_once() -> None:
    """One for all who ask while the wide one is there; a basis that is differentiated is made anew."""
    basis = normal(1, 3, 3)
    narrow = common.narrow_basis(basis, torch.float32)
    assert narrow is not None and narrow.dtype == torch.float32 and common.narrow_basis(basis, torch.float32) is narrow
    half = common.narrow_basis(basis, torch.bfloat16)
    assert half is not None and half.dtype == torch.bfloat16
    assert common.narrow_basis(basis, torch.float64) is basis and common.narrow_basis(None, torch.float32) is None
    own = basis.clone().requires_grad_()
    made = common.narrow_basis(own, torch.float32)
    assert made is not None and made.requires_grad and own not in common.narrower


def test_ranges_that_are_refused() -> None:
    """By name and place."""
    own = space_of(a=5, b=4)
    common.check_parts([WeightRange("a", 0, 2), WeightRange("a", 2, 5), WeightRange("b", 0, 4)], own)
    for parts, words in (
        ([WeightRange("c", 0, 2)], "'c' is not one of the selected weights"),
        ([WeightRange("a", 0, 5), WeightRange("b", 0, 5)], "'b' has no range 0:5"),
        ([WeightRange("b", -1, 2)], "'b' has no range -1:2"),
        ([WeightRange("b", 2, 2)], "'b' has no range 2:2"),
        ([WeightRange("a", 2, 5), WeightRange("a", 0, 3)], r"ranges \(0, 3\) and \(2, 5\) of 'a' overlap"),
    ):
        with pytest.raises(ValueError, match=words):
            common.check_parts(parts, own)
    common.check_shape(torch.zeros(2, 3), "It", (3,), (2, 3))
    with pytest.raises(ValueError, match=r"It has shape \(2, 3\); expected \(3,\) or \(2, 2\)"):
        common.check_shape(torch.zeros(2, 3), "It", (3,), (2, 2))
    with pytest.raises(ValueError, match=r"It has dtype torch.int64; expected float32 or float64"):
        common.check_shape(torch.zeros(2, dtype=torch.long), "It", (2,))


def test_ranges_in_one_vector() -> None:
    """Each at its place, twice added where it comes twice; weights outside are left out."""
    own = space_of(a=3, b=2)
    sums = {
        WeightRange("b", 0, 2): torch.tensor([4.0, 5.0]),
        WeightRange("c", 0, 1): torch.ones(1),
        WeightRange("a", 1, 3): torch.ones(2),
    }
    assert common.assemble_vector(sums, own).tolist() == [0.0, 1.0, 1.0, 4.0, 5.0]


def test_floors() -> None:
    """A share of a tensor's mean; rounding errors of a tensor beside others are zero; zeros take a share of all."""
    numbers = torch.tensor([-1.0, 0.0, 3.0, 6.0], dtype=torch.float64)
    assert common.apply_floor(numbers, 0.0).tolist() == [0.0, 0.0, 3.0, 6.0]
    assert common.apply_floor(numbers, 0.1).tolist() == pytest.approx([0.2, 0.2, 3.0, 6.0])
    assert common.apply_floor(numbers, 1.0).tolist() == pytest.approx([2.0, 2.0, 3.0, 6.0])
    pieces = [torch.tensor(own, dtype=torch.float64) for own in ([100.0, 300.0], [1e-21, 3e-21], [1e-22] * 100)]
    assert [piece.tolist() for piece in common.clear_rounding(pieces)] == [[100.0, 300.0], [1e-21, 3e-21], [0.0] * 100]
    mixed = torch.tensor([0.0, 2.0, 4.0], dtype=torch.float64)
    assert common.fill_zeros(mixed, 0.1).tolist() == pytest.approx([0.2, 2.0, 4.0])
    assert common.fill_zeros(mixed, 0.0) is mixed and common.fill_zeros(torch.zeros(2), 0.1).tolist() == [1.0, 1.0]
