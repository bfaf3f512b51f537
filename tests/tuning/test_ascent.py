"""The evidence in logarithms, and the steps, line searches and limits of its ascent, each against its definition."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import peewit as pw
from fitting import normal
from peewit.tuning import alternate, ascent
from peewit.tuning.ascent import Path, TuningRange
from peewit.tuning.by_evidence import bounds, noise_at_its_limit, noise_limits
from peewit.tuning.profile import EvidencePoint, Hyperparameters, Profile, clip_rounding
from peewit.tuning.steps import exactness
from peewit.weights.groups import GroupRows, Groups


@pytest.mark.parametrize(("energy", "scalars", "middle"), [(8.0, 4.0, 2.0), (8.0, 0.5, 4.0), (0.0, 4.0, 0.25)])
def test_limits_of_the_noise(energy: float, scalars: float, middle: float) -> None:
    """A million times the root mean square of the residuals either way, of the noise itself where they are zero."""
    totals, likelihood = (
        SimpleNamespace(energy=energy, scalars=scalars),
        SimpleNamespace(noise_precision=torch.tensor(16.0)),
    )
    la: Any = SimpleNamespace(totals=totals, likelihood=likelihood)
    quiet, loud = noise_limits(la)
    assert (quiet, loud) == pytest.approx((middle * 1e-6, middle * 1e6), rel=1e-12)
    asked: Any = SimpleNamespace(noise=True)

    def told(noise: float) -> list[str]:
        return noise_at_its_limit(la, Hyperparameters(torch.zeros(1), -2 * math.log(noise)), asked)

    assert told(quiet) == [f"The noise is at the smallest allowed, {quiet:.3g}: the residuals are zero, or nearly."]
    assert told(loud * (1 - 5e-7)) == [
        f"The noise is at the largest allowed, {loud:.3g}: the weights explain all targets."
    ]
    assert told(middle) == told(quiet * (1 + 1.5e-6)) == told(loud * (1 - 1.5e-6)) == []
    asked.noise = False
    assert told(quiet) == []


def bounded(sizes: list[int], flat: list[bool], prior: bool, noise: bool) -> tuple[TuningRange, Tensor]:
    """What may change of some groups."""
    totals = SimpleNamespace(energy=8.0, scalars=4.0)
    la: Any = SimpleNamespace(totals=totals, likelihood=SimpleNamespace(noise_precision=torch.tensor(16.0)))
    asked: Any = SimpleNamespace(prior=prior, noise=noise, ends=(0.01, 1000.0))
    return bounds(la, asked, SimpleNamespace(sizes=torch.tensor(sizes), flat=torch.tensor(flat)))  # type: ignore[arg-type]


def test_parameters_that_may_change_and_their_limits() -> None:
    """Groups with weights and curvature within the limits, and the noise within its own."""
    sizes, flat = [3, 0, 2, 5, 0], [False, False, True, False, True]
    allowed, without = bounded(sizes, flat, True, True)
    assert allowed.free.tolist() == [True, False, False, True, False, True]
    assert without.tolist() == [False, False, True, False, False]
    assert allowed.low.tolist() == pytest.approx([math.log(0.01)] * 5 + [-2 * math.log(2e6)])
    assert allowed.high.tolist() == pytest.approx([math.log(1000.0)] * 5 + [-2 * math.log(2e-6)])
    assert allowed.low.dtype == allowed.high.dtype == torch.float64
    allowed, without = bounded(sizes, flat, False, True)
    assert allowed.free.tolist() == [False] * 5 + [True] and not bool(without.any())
    allowed, _ = bounded(sizes, flat, True, False)
    assert allowed.free.tolist() == [True, False, False, True, False, False]
    assert allowed.low[-1] == math.log(0.01) and allowed.high[-1] == math.log(1000.0)


EIGENVALUES = [3.0, 0.0, 0.5, 20.0, 0.1, 7.0]
GROUPS = [0, 0, 0, 1, 1, 2]


def spectral(degree: int = 1, temperature: float = 1.0, **more: Any) -> Profile:
    """Three groups with known eigenvalues and distances, for a Gaussian likelihood of 10 numbers."""
    totals = SimpleNamespace(scalars=10.0, energy=4.0, rest=0.25)
    constant = 0.5 * math.log(2 * math.pi)
    likelihood = SimpleNamespace(
        noise_precision=torch.tensor(2.0), log_z=lambda scalars, beta: scalars * (constant - 0.5 * beta.log())
    )
    question: Any = SimpleNamespace(degree=degree, temperature=temperature, totals=totals, likelihood=likelihood)
    groups = Groups.of(torch.tensor(GROUPS), 3)
    rows = GroupRows.of(torch.tensor(EIGENVALUES, dtype=torch.float64), groups)
    squares = torch.tensor([1.5, 0.7, 0.2], dtype=torch.float64)
    return replace(
        Profile(
            problem=question,
            prior=pw.Prior.layerwise([0.5, 1.0, 2.0]),
            sizes=groups.sizes,
            squares=squares,
            eigenvalues=rows,
        ),
        **more,
    )


def evidence_at(problem: Profile, z: Tensor) -> Tensor:
    """The evidence of `spectral`, weight by weight."""
    question: Any = problem.problem
    beta, precision = z[-1].exp(), z[:-1].exp()[GROUPS]
    values = torch.tensor(EIGENVALUES, dtype=torch.float64)
    volume = (beta**question.degree / question.temperature * values / precision).log1p().sum()
    fit = -(beta * 4.0 + 10.0 * (0.5 * math.log(2 * math.pi) - 0.5 * z[-1]) + 0.25) / question.temperature
    return fit - 0.5 * ((z[:-1].exp() * problem.squares).sum() + volume)


HERE = torch.tensor([0.3, -0.4, 0.8, 0.6], dtype=torch.float64)
ALL = TuningRange(torch.ones(4, dtype=torch.bool), torch.full((4,), -20.0).double(), torch.full((4,), 20.0).double())


@pytest.mark.parametrize(("degree", "temperature"), [(1, 1.0), (2, 0.7), (1, 3.0)])
def test_the_evidence_as_a_function_of_logarithms(degree: int, temperature: float) -> None:
    """Value, first and second derivatives against those of a sum over weights; Newton's step solves their system."""
    problem = spectral(degree, temperature)
    assert problem.exact and ascent.vector(problem.start()).tolist() == pytest.approx(
        [math.log(0.5), 0.0, math.log(2.0), math.log(2.0)]
    )
    place = ascent.hyperparameters_of(HERE)
    assert place.noise == pytest.approx(math.exp(-0.3)) and ascent.vector(place).tolist() == HERE.tolist()
    point = problem.at(place)
    assert point.finite and point.value == pytest.approx(float(evidence_at(problem, HERE)), rel=1e-12)
    gradient = torch.autograd.functional.jacobian(lambda z: evidence_at(problem, z), HERE)
    matrix = -torch.autograd.functional.hessian(lambda z: evidence_at(problem, z), HERE)
    torch.testing.assert_close(ascent.gradient_of(problem, point), gradient, rtol=1e-10, atol=1e-12)
    for open_ in ([True] * 4, [True, False, True, True], [True, False, True, False]):
        chosen = torch.tensor(open_)
        step = ascent.newton(problem, point, gradient, chosen)
        own = matrix.clone()
        if open_[-1]:  # spreads of what is held still count towards the noise precision
            own[1, 3] = own[3, 1] = 0.0 if not open_[1] else own[1, 3]
        expected = torch.linalg.solve(own[chosen][:, chosen], gradient[chosen])
        torch.testing.assert_close(step[chosen], expected, rtol=1e-8, atol=1e-10)
        assert bool((step[~chosen] == 0).all())


def test_where_there_is_no_posterior() -> None:
    """The value or one effective dimension is not a number."""
    place, fine = Hyperparameters(torch.zeros(2), 0.0), torch.ones(2)
    assert EvidencePoint(hyperparameters=place, value=1.0, gamma=fine, spread=fine, pull=fine, surprise=0.0).finite
    assert not EvidencePoint(
        hyperparameters=place, value=math.inf, gamma=fine, spread=fine, pull=fine, surprise=0.0
    ).finite
    assert not EvidencePoint(
        hyperparameters=place, value=1.0, gamma=torch.tensor([1.0, math.nan]), spread=fine, pull=fine, surprise=0.0
    ).finite


def test_groups_without_curvature() -> None:
    """By their mean eigenvalue, beside the largest of the groups; a group without weights has none."""
    groups = Groups(torch.tensor([0, 1, 2]), torch.tensor([2, 4, 2]), 4)
    values = torch.tensor([1.0, 3.0, 1e-14, -1e-14, 1e-14, 1e-14, 3e-14, 3e-14], dtype=torch.float64)
    problem = spectral(sizes=groups.sizes, eigenvalues=GroupRows.of(values, groups))
    assert problem.flat.tolist() == [False, True, False, True]


@pytest.mark.parametrize("cached", [4, 1 << 16])
def test_many_eigenvalues_in_rows(cached: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several of a group beside each other: sums over all of them, at once or in parts."""
    monkeypatch.setattr("peewit.weights.groups.CACHED", cached)
    values, groups = normal(64).abs(), Groups(torch.tensor([0, 1, 2]), torch.tensor([40, 23, 1]), 3)
    problem = spectral(sizes=groups.sizes, eigenvalues=GroupRows.of(values, groups))
    assert problem.eigenvalues is not None and problem.eigenvalues.values.shape[1] > 1
    point = problem.at(ascent.hyperparameters_of(HERE))
    ratio = HERE[3].exp() * values / HERE[:3].exp()[groups.vector()]
    shares = ratio / (1 + ratio)
    torch.testing.assert_close(point.gamma, groups.sums(shares))
    torch.testing.assert_close(point.spread, groups.sums(shares * (1 - shares)))
    fewer = problem.at(ascent.hyperparameters_of(HERE + torch.tensor([0, 0, 0, -40.0]).double()))
    volume = float(ratio.log1p().sum())
    assert point.value - fewer.value == pytest.approx(
        -0.5 * volume - 4.0 * math.exp(0.6) + 4.0 * math.exp(0.6 - 40) + 5.0 * 40.0, rel=1e-9
    )
    assert not bool(problem.flat.any())
    sizes = torch.tensor([2, 1, 1])
    alone = GroupRows.of(torch.tensor([1.0, 1.0, 1.5e-14, 0.9e-14]).double(), Groups(torch.arange(3), sizes, 3))
    assert spectral(sizes=sizes, eigenvalues=alone).flat.tolist() == [False, False, True]


def test_eigenvalues_below_zero_by_rounding() -> None:
    """Down to a millionth of the largest they are zeros; beyond that they stay."""
    values = torch.tensor([2.0, -1e-6, -1.9e-6, -2.1e-6, -5.0, 1e-9, 0.0], dtype=torch.float64)
    assert clip_rounding(values[[0, 1, 2, 3, 5, 6]]).tolist() == [2.0, 0.0, 0.0, -2.1e-6, 1e-9, 0.0]
    assert clip_rounding(values)[4] == -5.0 and clip_rounding(values)[3] == 0.0


def test_free_parameters_of_an_ascent() -> None:
    """Free, and not at a limit that the slope leads out of."""
    free = torch.tensor([True, True, True, True, False, True, True])
    allowed = TuningRange(free, torch.zeros(7), torch.ones(7))
    z = torch.tensor([0.0, 0.0, 1.0, 1.0, 0.5, 1.0, 0.0])
    slope = torch.tensor([-1.0, 1.0, -1.0, 1.0, 1.0, 0.0, 0.0])
    assert allowed.open(z, slope).tolist() == [False, True, True, False, False, True, True]
    assert allowed.clip(torch.tensor([-1.0, 2.0, 0.5, 1.0, 9.0, 0.0, -3.0])).tolist() == [0, 1, 0.5, 1, 9, 0, 0]


@pytest.mark.parametrize(
    ("gamma", "temperature", "degree"), [(2.0, 1.0, 1), (4.5, 1.0, 1), (2.0, 3.0, 1), (2.0, 1.0, 2)]
)
def test_mackays_update(gamma: float, temperature: float, degree: int) -> None:
    """The docstring's formulas on either side of half the numbers; a group at its mean without a use stays."""
    problem = spectral(degree, temperature, squares=torch.tensor([1.5, 0.0, 0.0]).double())
    place = ascent.hyperparameters_of(HERE)
    own = torch.tensor([gamma - 0.5, 0.5, 0.0], dtype=torch.float64)
    point = EvidencePoint(hyperparameters=place, value=0.0, gamma=own, spread=own, pull=own, surprise=1.0)
    taken = degree * temperature * gamma
    variance = 8.0 / (10.0 - taken) if taken <= 5.0 else (8.0 + taken * math.exp(-0.6)) / 10.0
    expected = [math.log((gamma - 0.5) / 1.5), 20.0, 0.8, -math.log(variance)]
    assert ascent.mackay(problem, ALL, point).tolist() == pytest.approx(expected, rel=1e-12)
    held = replace(ALL, free=torch.tensor([False, True, True, False]))
    assert ascent.mackay(problem, held, point).tolist() == pytest.approx([0.3, 20.0, 0.8, 0.6], rel=1e-12)


def test_mackays_update_at_half_the_numbers() -> None:
    """Both formulas hold there; the first is taken."""
    problem, own = spectral(), torch.tensor([5.0, 0.0, 0.0], dtype=torch.float64)
    point = EvidencePoint(
        hyperparameters=ascent.hyperparameters_of(HERE), value=0.0, gamma=own, spread=own, pull=own, surprise=1.0
    )
    assert float(ascent.mackay(problem, ALL, point)[-1]) == pytest.approx(-math.log(8.0 / 5.0))
    below = replace(point, gamma=-own)
    assert float(ascent.mackay(problem, ALL, below)[0]) == -20.0


def stepping(rate: float, first: float, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A profile whose updates come nearer to zero by a rate."""
    monkeypatch.setattr(ascent, "mackay", lambda problem, allowed, point: rate * ascent.vector(point.hyperparameters))
    nothing = torch.zeros(1, dtype=torch.float64)
    start = Hyperparameters(torch.tensor([first], dtype=torch.float64), 0.0)
    return SimpleNamespace(
        start=lambda: start,
        at=lambda place: EvidencePoint(
            hyperparameters=place, value=0.0, gamma=nothing, spread=nothing, pull=nothing, surprise=0.0
        ),
    )


@pytest.mark.parametrize(
    ("rate", "first", "tolerance"), [(0.5, 1.0, 1e-4), (0.9, 1.0, 1e-2), (-0.3, 2.0, 1e-6), (0.2, 1.0, 0.3)]
)
def test_the_fixed_point_ends_where_little_is_left(
    rate: float, first: float, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps shrink by a rate: what is left of them is a geometric sum, known from the second step on."""
    allowed = TuningRange(
        torch.ones(2, dtype=torch.bool), torch.full((2,), -9.0).double(), torch.full((2,), 9.0).double()
    )
    problem = stepping(rate, first, monkeypatch)
    path = ascent.fixed_point(problem, allowed, 300, tolerance)
    moves = [abs(first * rate**k * (rate - 1)) for k in range(300)]
    shrink = abs(rate)
    expected = next(
        k for k in range(1, 300) if moves[k] * shrink / (1 - shrink) <= tolerance and moves[k] <= math.sqrt(tolerance)
    )
    assert path.converged and len(path.points) == expected + 2
    assert path.stopped == f"what is left of the updates changes no logarithm by more than {tolerance:g}"
    short = ascent.fixed_point(problem, allowed, expected, tolerance)
    assert not short.converged and short.stopped == f"{expected} steps were not enough"
    assert len(short.points) == expected + 1


def test_the_fixed_point_at_the_optimum_and_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing moves: it ends at once. No posterior: it says so."""
    problem = stepping(1.0, 1.0, monkeypatch)
    allowed = TuningRange(
        torch.ones(2, dtype=torch.bool), torch.full((2,), -9.0).double(), torch.full((2,), 9.0).double()
    )
    assert ascent.fixed_point(problem, allowed, 5, 1e-6).converged
    growing = stepping(1.5, 1e-6, monkeypatch)
    assert not ascent.fixed_point(growing, allowed, 5, 1e-4).converged
    problem.at = lambda place: EvidencePoint(
        hyperparameters=place,
        value=math.nan,
        gamma=torch.zeros(1),
        spread=torch.zeros(1),
        pull=torch.zeros(1),
        surprise=0.0,
    )
    path = ascent.fixed_point(problem, allowed, 5, 1e-6)
    assert not path.converged and len(path.points) == 1 and "left the range" in path.stopped


def test_jumps_end_where_they_do_not_climb(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four at most, each to a finite and larger value."""
    nothing = torch.zeros(1, dtype=torch.float64)

    def jumped(values: list[float]) -> int:
        coming = iter(values)

        def at(place: Hyperparameters) -> EvidencePoint:
            return EvidencePoint(
                hyperparameters=place, value=next(coming), gamma=nothing, spread=nothing, pull=nothing, surprise=0.0
            )

        path = Path([at(Hyperparameters(nothing, 0.0))])
        ascent._jump(SimpleNamespace(at=at), ALL, path)  # type: ignore[arg-type]
        return len(path.points)

    monkeypatch.setattr(ascent, "mackay", lambda problem, allowed, point: torch.zeros(2))
    assert jumped([0.0, 1.0, 2.0, 3.0, 4.0, 5.0]) == 5
    assert jumped([0.0, 1.0, 1.0, 2.0]) == 2 and jumped([0.0, -1.0, 2.0]) == 1
    assert jumped([0.0, math.inf, 1.0]) == 1 and jumped([-math.inf, 1.0, 2.0]) == 1


def searched(
    value: Callable[[float], float], direction: float, slope: float, after: float = 0.0
) -> tuple[list[float], float | None]:
    """How far a line search from two went along one logarithm, and what it took; `after`: the slope there.

    The other logarithm is held, whatever its slope.
    """
    tried: list[float] = []
    zero, start = torch.zeros(1, dtype=torch.float64), torch.full((1,), 2.0, dtype=torch.float64)
    question: Any = SimpleNamespace(totals=SimpleNamespace(scalars=100.0), temperature=1.0, degree=1)

    def at(place: Hyperparameters) -> EvidencePoint:
        tried.append(float(place.log_precision) - 2.0)
        return EvidencePoint(
            hyperparameters=place, value=value(tried[-1]), gamma=zero + 2 * after, spread=zero, pull=zero, surprise=0.0
        )

    problem: Any = SimpleNamespace(at=at, problem=question)
    allowed = TuningRange(
        torch.tensor([True, False]), torch.full((2,), -50.0).double(), torch.full((2,), 50.0).double()
    )
    point = EvidencePoint(
        hyperparameters=Hyperparameters(start, 0.0), value=value(0.0), gamma=zero, spread=zero, pull=zero, surprise=0.0
    )
    steps = [torch.tensor([number, 0.0], dtype=torch.float64) for number in (direction, slope)]
    found = ascent._search(problem, allowed, point, *steps)
    return tried, None if found is None else float(found.hyperparameters.log_precision) - 2.0


def test_a_line_search_halves_its_step() -> None:
    """From a factor of e^6 at most, until enough of the promised gain is kept."""
    assert searched(lambda z: z, 1.0, 1.0) == ([1.0], 1.0)
    assert searched(lambda z: z, 24.0, 1.0) == ([6.0], 6.0)
    assert searched(lambda z: z - z * z, 3.0, 1.0) == ([3.0, 1.5, 0.75], 0.75)
    assert searched(lambda z: 2e-4 * z, 1.0, 1.0)[1] == 1.0  # of a promised gain of one, a ten-thousandth is enough
    assert searched(lambda z: 0.5e-4 * z, 1.0, 1.0, after=2.0)[1] is None
    assert searched(lambda z: math.nan if z > 0.3 else z, 1.0, 1.0) == ([1.0, 0.5, 0.25], 0.25)
    assert searched(lambda z: -z, 1.0, 1.0)[1] is None


def test_a_line_search_near_the_top_looks_at_the_slope() -> None:
    """Where a gain would be lost in rounding, a step that flattens the slope will do."""
    nowhere, slack = Hyperparameters(torch.zeros(1), 0.0), 1e-13 * 1e6
    own = EvidencePoint(
        hyperparameters=nowhere, value=-3.0, gamma=ALL.low, spread=ALL.low, pull=torch.tensor([2.0, 5.0]), surprise=0.0
    )
    assert ascent.rounding(own) == pytest.approx(1e-12, rel=1e-9, abs=0)
    assert searched(lambda z: 1e6, 1.0, 900 * slack) == ([1.0], 1.0)
    assert searched(lambda z: 1e6, 1.0, 900 * slack, after=0.89 * 900 * slack) == ([1.0], 1.0)
    assert searched(lambda z: 1e6, 1.0, 900 * slack, after=0.91 * 900 * slack)[1] is None
    assert searched(lambda z: 1e6, 1.0, 1100 * slack) == ([1.0, 0.5], 0.5)  # the first would show
    assert searched(lambda z: 1e6 - 2e-7 * (z > 0.1), 1.0, 0.5 * slack) == ([1.0], None)
    assert searched(lambda z: 1e6 - 2e-7 * (z > 0.6), 1.0, 900 * slack) == ([1.0, 0.5], 0.5)


def test_limited_memory_is_that_of_bfgs() -> None:
    """Against the matrices of the updates."""
    steps, changes = normal(3, 4), normal(3, 4, seed=2)
    pairs = [(s, c if float(s @ c) > 0 else -c) for s, c in zip(steps, changes, strict=True)]
    inverse = torch.diag(torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64))
    expected = inverse.clone()
    for s, c in pairs:
        left = torch.eye(4, dtype=torch.float64) - torch.outer(s, c) / (s @ c)
        expected = left @ expected @ left.T + torch.outer(s, s) / (s @ c)
    given = normal(4, seed=3)
    torch.testing.assert_close(ascent.quasi_newton(pairs, given, lambda q: inverse @ q), expected @ given)


def test_climbing_to_the_top_inside_the_limits() -> None:
    """Where the slope is zero, or at an edge; said in words."""
    problem = spectral()
    path = ascent.ascend(problem, ALL, 50, 1e-9)
    assert path.converged and path.stopped == "the next step would change no logarithm by more than 1e-09"
    best = ascent.vector(path.points[-1].hyperparameters)
    slope = torch.autograd.functional.jacobian(lambda z: evidence_at(problem, z), best)
    inside = (best < 19.0) & (best > -19.0)
    assert float(slope[inside].abs().max()) < 1e-8
    assert all(a.value <= b.value + 1e-12 for a, b in itertools.pairwise(path.points))
    low = torch.tensor([5.0, -20.0, -20.0, -20.0], dtype=torch.float64)
    path = ascent.ascend(problem, TuningRange(torch.tensor([True, False, False, False]), low, ALL.high), 50, 1e-9)
    assert path.converged and "edge of its range" in path.stopped
    assert ascent.vector(path.points[-1].hyperparameters).tolist() == pytest.approx(
        [5.0, 0.0, math.log(2.0), math.log(2.0)]
    )
    path = ascent.ascend(problem, replace(ALL, low=low), 50, 1e-9)
    best = ascent.vector(path.points[-1].hyperparameters)
    slope = torch.autograd.functional.jacobian(lambda z: evidence_at(problem, z), best)
    assert path.converged and best[0] == 5.0 and float(slope[0]) < 0
    assert float(slope[[1, 3]].abs().max()) < 1e-8
    short = ascent.ascend(problem, ALL, 1, 1e-9)
    assert not short.converged and short.stopped == "1 steps were not enough"
    jump = ascent.mackay(problem, ALL, short.points[0])
    assert ascent.vector(short.points[1].hyperparameters).tolist() == jump.tolist()


@pytest.mark.parametrize("tolerance", [0.3, 0.03, 1e-3])
def test_the_last_step_is_taken(tolerance: float) -> None:
    """It ends at the first step within the tolerance in every logarithm, and after that step."""
    problem = spectral()
    points = ascent.ascend(problem, ALL, 50, tolerance).points
    steps = [ascent.newton(problem, each, ascent.gradient_of(problem, each), ALL.free) for each in points]
    lengths = [float(step.abs().max()) for step in steps]
    assert lengths[-2] <= tolerance and all(length > tolerance for length in lengths[5:-2])
    torch.testing.assert_close(
        ascent.vector(points[-1].hyperparameters), ascent.vector(points[-2].hyperparameters) + steps[-2]
    )


def test_steps_before_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where spreads are not exact: the last few steps with the changes of the slope, oldest first."""
    seen: list[list[tuple[Tensor, Tensor]]] = []
    own = ascent.quasi_newton

    def watched(pairs: Any, given: Tensor, base: Any) -> Tensor:
        seen.append(list(pairs))
        return own(pairs, given, base)

    monkeypatch.setattr(Profile, "exact", property(lambda self: False))
    monkeypatch.setattr(ascent, "quasi_newton", watched)
    monkeypatch.setattr(ascent, "HISTORY", 2)
    monkeypatch.setattr(ascent, "_jump", lambda problem, allowed, path: None)
    problem = spectral()
    path = ascent.ascend(problem, ALL, 50, 1e-9)
    assert path.converged and [len(pairs) for pairs in seen[:4]] == [1, 2, 2, 2]
    z = [ascent.vector(point.hyperparameters) for point in path.points]
    slopes = [ascent.gradient_of(problem, point) for point in path.points]
    for turn, pairs in enumerate(seen[:4]):
        for back, (step, change) in enumerate(reversed(pairs)):
            torch.testing.assert_close(step, z[turn + 1 - back] - z[turn - back])
            torch.testing.assert_close(change, slopes[turn - back] - slopes[turn + 1 - back])


def test_newtons_step_where_nothing_is_curved() -> None:
    """Uphill, however far."""
    zero = torch.zeros(3, dtype=torch.float64)
    point = EvidencePoint(
        hyperparameters=ascent.hyperparameters_of(HERE), value=0.0, gamma=zero, spread=zero, pull=zero, surprise=0.0
    )
    step = ascent.newton(spectral(), point, torch.tensor([1.0, -1.0, 0.0, 1.0]).double(), ALL.free)
    assert step.tolist() == pytest.approx([1e12, -1e12, 0.0, 1e12], rel=1e-9)


def test_a_path_begins_empty() -> None:
    """And has not arrived."""
    assert Path().points == [] and not Path().converged and Path().points is not Path().points


@pytest.mark.parametrize(
    ("gamma", "error", "expected"),
    [
        ([2.0, 3.0, 9.0], 0.05, 0.125 * 5 * 0.05**2),
        ([0.1, 0.2, 9.0], 0.05, 0.125 * 0.5 * 0.05**2),
        ([2.0, 3.0, 9.0], 0.4, 0.125 * 5 * 0.1**2),
        ([2.0, 3.0, 9.0], 1e-9, 1e-14),
    ],
)
def test_how_exact_a_mode_has_to_be(gamma: list[float], error: float, expected: float) -> None:
    """By the effective dimensions of what is free, half a dimension at least, and never beyond rounding."""
    free = torch.tensor([True, True, False, True])
    assert exactness(torch.tensor(gamma), free, error) == pytest.approx(expected, rel=1e-6)


def test_precisions_to_begin_with() -> None:
    """As many weights as a group has by its distance, within the limits; the prior's own where that says nothing."""
    problem = spectral(
        squares=torch.tensor([1.5, 0.0, 1e-9]).double(),
        sizes=torch.tensor([3, 2, 1]),
        prior=pw.Prior.layerwise([7.0, 8.0, 9.0]),
    )
    asked: Any = SimpleNamespace(ends=(1e-3, 1e3))
    assert alternate.from_weights(problem, asked).prior.precision.tolist() == [2.0, 8.0, 1e3]
    flat = spectral(
        sizes=torch.tensor([3, 2, 1]),
        eigenvalues=GroupRows.of(torch.tensor([0.0, 0, 0, 1, 1, 1]).double(), Groups.of(torch.tensor(GROUPS), 3)),
    )
    assert alternate.from_weights(flat, asked).prior.precision.tolist() == pytest.approx([0.5, 2 / 0.7, 1 / 0.2])
