"""The diagonal structure, against numbers by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from peewit.curvature.structures.diag import Diag, DiagCurvature
from peewit.weights.groups import Groups
from peewit.weights.ranges import WeightRange
from structure_numbers import close, space_of


def test_diagonals() -> None:
    """Precisions, floors and eigenvalues of chosen elements, and sums that are refused."""
    own = replace(space_of(a=3, b=2), mask=torch.tensor([True, False, True, False, True]))
    curvature = DiagCurvature(torch.tensor([1.0, 2.0, 3.0, 4.0, 0.0], dtype=torch.float64), own)
    delta = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    made = curvature.precision(delta, torch.tensor(2.0, dtype=torch.float64))
    close(made.mv(torch.ones(3, dtype=torch.float64)), torch.tensor([2.1, 6.2, 0.3], dtype=torch.float64))
    assert curvature.diag().tolist() == [1.0, 3.0, 0.0]
    assert curvature.diag(0.5).tolist() == pytest.approx([1.0, 3.0, 0.5 * 4.0 / 3])
    rounding = DiagCurvature(torch.tensor([1.0, 1.0, 1.0, 1e-30, 1e-30], dtype=torch.float64), replace(own, mask=None))
    assert rounding.diag()[-1] == 1e-30 and rounding.diag(0.5)[-1] == pytest.approx(0.5 * 3 / 5)
    groups = Groups.of(torch.zeros(3, dtype=torch.long), 1)
    assert curvature.spectrum(groups, torch.tensor([2.0, 2.0, 1.0])).tolist() == [0.5, 1.5, 0.0]
    for part, value, words in (
        (WeightRange("a", 0, 3), torch.tensor([1.0, -1e-3, 0.0]), "The diagonal of 'a' has negative numbers"),
        (WeightRange("a", 0, 3), torch.zeros(2), r"The diagonal of 'a' has shape \(2,\); expected \(3,\)"),
        (WeightRange("a", 1, 4), torch.zeros(3), "'a' has no range 1:4"),
    ):
        with pytest.raises(ValueError, match=words):
            Diag().check({part: value}, own)
    Diag().check({WeightRange("a", 1, 3): torch.zeros(2)}, own)
