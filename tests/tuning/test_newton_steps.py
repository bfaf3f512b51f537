"""Newton's step for priors and noise at the linear mode, against the dense system."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from peewit.tuning.steps import newton


def profile_at(spread: list[float], pull: list[float], surprise: float, degree: float) -> tuple[Any, Any]:
    """A question and a point of it, as far as Newton's step looks."""
    point = SimpleNamespace(spread=torch.tensor(spread).double(), pull=torch.tensor(pull).double(), surprise=surprise)
    return SimpleNamespace(problem=SimpleNamespace(degree=degree)), point


@pytest.mark.parametrize("degree", [1.0, 0.5])
@pytest.mark.parametrize("noise", [True, False])
def test_a_newton_step_solves_the_dense_system(noise: bool, degree: float) -> None:
    """Against the matrix of all second derivatives, as docs and docstring have them."""
    problem, point = profile_at([2.0, 3.0, 0.5], [4.0, 1.0, 0.7], 9.0, degree)
    answers = torch.tensor([0.3, 0.2, 0.1]).double()
    gradient = torch.tensor([0.4, -0.8, 0.2, 0.5]).double()
    open_ = torch.tensor([True, True, True, noise])
    matrix = torch.diag(0.5 * (point.spread + point.pull) - answers)
    expected = torch.linalg.solve(matrix, gradient[:3])
    if noise:
        cross = (answers - 0.5 * degree * point.spread)[:, None]
        corner = point.surprise - answers.sum() + 0.5 * degree**2 * point.spread.sum()
        whole = torch.cat([torch.cat([matrix, cross], 1), torch.cat([cross.T, corner.reshape(1, 1)], 1)])
        expected = torch.linalg.solve(whole, gradient)
    step = newton(problem, point, answers, gradient, open_)
    torch.testing.assert_close(step[: len(expected)], expected)
    assert noise or float(step[-1]) == 0.0


def test_a_newton_step_is_taken_where_a_fifth_of_the_curvature_is_left() -> None:
    """Of the second derivative with the mode held fixed, in every group and, with noise, of the noise precision."""
    problem, point = profile_at([8.0, 8.0, 0.1], [4.0, 4.0, 0.1], 9.0, 1.0)
    answers = torch.tensor([6.0 * 0.79, 6.0 * 0.81, 0.1 * 0.79]).double()
    gradient = torch.ones(4).double()
    step = newton(problem, point, answers, gradient, torch.tensor([True, True, True, False]))
    assert torch.isfinite(step).tolist() == [True, False, True, True]

    corner = 1.0 + 0.5 * 2.0  # of one group with spread 2, of which `left` keeps a fifth
    for share, taken in ((0.21, True), (0.19, False)):
        problem, point = profile_at([2.0], [1000.0], 1.0, 1.0)
        # corner - answer - (answer - 1)^2 / (501 - answer) = share corner
        answer = corner * (1 - share)
        for _ in range(50):
            answer = corner * (1 - share) - (answer - 1.0) ** 2 / (501.0 - answer)
        step = newton(problem, point, torch.tensor([answer]).double(), torch.ones(2).double(), torch.tensor([True] * 2))
        assert math.isfinite(float(step[1])) is taken
        assert math.isfinite(float(step[0]))
