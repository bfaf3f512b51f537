"""The pieces that tuning is made of, each against its definition: steps, searches, limits, words and settings."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import scipy.optimize
import torch
from torch import Tensor

import peewit as pw
from fitting import normal
from peewit.posterior.trace import Trace, TuningStep
from peewit.tuning import alternate, ascent, by_grid, by_validation
from peewit.tuning.ascent import Path, TuningRange
from peewit.tuning.by_evidence import bounds, complaints, list_groups, noise_at_its_limit, noise_limits
from peewit.tuning.by_grid import axes
from peewit.tuning.options import Passing, as_limits, check_settings, listable, positive
from peewit.tuning.profile import EvidencePoint, Hyperparameters, Profile, clip_rounding
from peewit.tuning.steps import exactness
from peewit.tuning.validation import minimise, scan
from peewit.weights.groups import GroupRows, Groups
from peewit.weights.space import Space

BENT: dict[str, tuple[Callable[[Any], float], list[float]]] = {
    "valley": (lambda z: (1 - z[0]) ** 2 + 20 * (z[1] - z[0] ** 2) ** 2, [-1.0, 1.0]),
    "waves": (lambda z: math.sin(9 * z[0]) + math.cos(7 * z[1] + 1) + 0.3 * sum(v * v for v in z), [0.4, -0.3, 1.0]),
    "parabola": (lambda z: (z[0] - 3.1) ** 2, [0.0]),
}


@pytest.mark.parametrize("steps", [3, 25, 200])
@pytest.mark.parametrize("name", BENT)
def test_the_simplex_is_nelder_and_meads(name: str, steps: int) -> None:
    """Asked for the same points as that of SciPy, one by one, until it is as small as the tolerance."""
    function, start = BENT[name]
    ours: list[list[float]] = []
    theirs: list[list[float]] = []
    coming: list[list[float]] = []

    def asked(z: Any) -> float:
        ours.append(list(z))
        assert not coming or coming.pop(0) == list(z)
        return function(z)

    converged = minimise(asked, start, 0.7, 1e-5, steps, lambda points: coming.extend(map(list, points)))
    corners = [start, *([v + 0.7 * (i == j) for j, v in enumerate(start)] for i in range(len(start)))]
    options = {"initial_simplex": corners, "maxiter": steps + 1, "maxfev": 10**6, "xatol": 1e-5, "fatol": math.inf}
    found = scipy.optimize.minimize(
        lambda z: theirs.append(list(z)) or function(z), start, method="Nelder-Mead", options=options
    )
    assert converged == found.success and not coming
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert one == pytest.approx(other, abs=1e-9)


def test_the_simplex_on_a_plain() -> None:
    """Where all scores are equal nothing is an improvement: it shrinks towards the first corner."""
    asked: list[float] = []
    told: list[Any] = []
    assert not minimise(lambda z: asked.append(z[0]) or 1.0, [0.0], -1.0, 1e-3, 2, told.append)
    assert asked == [0.0, -1.0, 1.0, -0.5, -0.5, 0.5, -0.25, -0.25]
    assert told == [[[0.0], [-1.0]], [[-0.5]], [[-0.25]]]
    assert minimise(lambda z: 1.0, [0.0], 1.0, 0.25, 3) and not minimise(lambda z: 1.0, [0.0], 1.0, 0.25, 2)


def test_the_simplex_goes_further_where_that_is_as_good() -> None:
    """Of two steps with one score the longer is taken."""
    asked: list[float] = []
    scores = {0.0: 1.0, -1.0: 2.0, 1.0: 0.5, 2.0: 0.5}
    minimise(lambda z: asked.append(z[0]) or scores.get(z[0], 3.0), [0.0], -1.0, 1e-3, 2)
    assert asked[:5] == [0.0, -1.0, 1.0, 2.0, 4.0]


def test_a_scan_takes_the_best_of_each_line() -> None:
    """One coordinate after the other, from where the one before left off; of equal scores the first."""
    asked: list[list[list[float]]] = []

    def score(z: Any) -> float:
        return abs(z[0] - 2) + abs(z[1] + 1)

    found = scan(score, [0.0, 0.0], {0: (-1.0, 1.0, 3.0), 1: (-0.5, 0.5)}, lambda points: asked.append(list(points)))
    assert found == [1.0, -0.5]
    assert asked == [[[0.0, 0.0], [-1.0, 0.0], [1.0, 0.0], [3.0, 0.0]], [[1.0, 0.0], [1.0, -0.5], [1.0, 0.5]]]
    assert scan(score, [2.0, -1.0], {0: (-1.0, 1.0), 1: (1.0,)}, lambda points: None) == [2.0, -1.0]


def steps_of(values: list[float], **more: Any) -> list[TuningStep]:
    """Steps of two groups with some values."""
    return [
        TuningStep(
            value=value,
            precision=torch.tensor([place + 1.0, 2.0]),
            noise=0.5 + place,
            temperature=1.0 + 0.5 * place,
            gamma=None,
            **more,
        )
        for place, value in enumerate(values)
    ]


def test_a_trace_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best step with its settings, more or less being better; steps without a number are never the best."""
    told = ["One.", "Two."]
    trace = Trace.of("grid", "validation NLL", ("a", "b"), steps_of([3.0, 1.5, math.nan, 2.0]), "why", False, told)
    assert trace.best == 1 and len(trace) == 4 and trace.effective_dimensions is None and trace.products == ()
    assert repr(trace) == (
        "Trace(grid: 4 steps, not converged: why)\n  validation NLL 3 -> 1.5\n  precision: a 2, b 2\n  noise 1.5\n"
        "  temperature 1.5\n  warning: One.\n  warning: Two."
    )
    more = {"decrement": 0.1, "gradient": 0.2, "products": 7.0}
    trace = Trace.of("evidence", "log evidence", ("a", "b"), steps_of([3.0, 1.5], **more), "why", True, [])
    assert trace.best == 0 and trace.decrements == (0.1, 0.1) and trace.gradients == (0.2, 0.2)
    assert repr(trace) == (
        "Trace(evidence: 2 steps, converged: why)\n  log evidence 3 -> 3\n  precision: a 1, b 2\n"
        "  7 products over the data\n  noise 0.5"
    )
    assert repr(trace.with_warning("Three.")).endswith("\n  warning: Three.")
    monkeypatch.setattr("peewit.posterior.trace.KEPT", 6)
    assert len(Trace.of("grid", "log evidence", ("a", "b"), steps_of([1.0] * 3), "", True, []).precisions) == 3
    cut_short = Trace.of("grid", "log evidence", ("a", "b"), steps_of([1.0] * 4), "", True, [])
    assert cut_short.precisions[:, 0].tolist() == [1.0, 4.0] and len(cut_short) == 4
    assert "precision" not in repr(cut_short)
    for groups in (8, 9):
        names = [f"g{place}" for place in range(groups)]
        alone = [TuningStep(value=1.0, precision=torch.ones(1), noise=None, temperature=1.0, gamma=None)]
        monkeypatch.setattr("peewit.posterior.trace.KEPT", 100)
        assert ("  precision: g0 1, g1 1" in repr(Trace.of("grid", "log evidence", names, alone, "", True, []))) == (
            groups == 8
        )


def test_names_of_groups_in_warnings() -> None:
    """Three of them, and how many more."""
    names = ["a", "b", "c", "d", "e"]
    assert list_groups(names, torch.tensor([False, True, False, True, False])) == "'b', 'd'"
    assert list_groups(names, torch.tensor([True, True, True, False, False])) == "'a', 'b', 'c'"
    assert list_groups(names, torch.arange(5) > 0) == "'b', 'c', 'd' and 1 more groups"
    assert list_groups(names, torch.ones(5, dtype=torch.bool)) == "'a', 'b', 'c' and 2 more groups"


def test_warnings_about_precisions() -> None:
    """Without curvature, switched off, or at one of the limits; what was not free is not spoken of."""
    names = ["without", "off", "low", "high", "fine", "fixed"]
    place = Hyperparameters(torch.tensor([1.0, 0.01, 0.01, 100.0, 1.0, 100.0], dtype=torch.float64).log(), 0.0)
    gamma = torch.tensor([0.0, 9e-4, 1e-3, 2.0, 2.0, 0.0], dtype=torch.float64)
    free = torch.tensor([False, True, True, True, True, False, True])
    without = torch.tensor([True, False, False, False, False, False])
    asked: Any = SimpleNamespace(ends=(0.01, 100.0))
    assert complaints(names, place, gamma, free, without, asked) == [
        "The data say nothing about 'without': no curvature; the precision was left as it is.",
        "'off' switched off: less than 0.001 effective dimensions, so the prior alone holds it.",
        "The precision of 'high' is at the largest allowed, 100.",
        "The precision of 'low' is at the smallest allowed, 0.01.",
    ]
    inside = Hyperparameters(place.log_precision + torch.tensor([0, 0, 1.5e-9, -1.5e-9, 0, 0]).double(), 0.0)
    assert len(complaints(names, inside, gamma, free, without, asked)) == 2
    rounded_ = Hyperparameters(place.log_precision + torch.tensor([0, 0, 1e-10, -1e-10, 0, 0]).double(), 0.0)
    assert len(complaints(names, rounded_, gamma, free, without, asked)) == 4
    assert complaints(names, place, gamma + 1, torch.zeros(7, dtype=torch.bool), without & False, asked) == []


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


EVERY = ("prior", "noise", "temperature")


def settings(noise_there: bool = True, **given: Any) -> Any:
    """What `tune` makes of what it was asked for."""
    likelihood = pw.Gaussian() if noise_there else pw.Poisson()
    usual: dict[str, Any] = {"method": "evidence", "parameters": None, "train": None, "validation": None}
    usual |= {
        "grid": None,
        "steps": None,
        "tolerance": None,
        "limits": (0.1, 10),
        "predict": None,
        "passing": Passing(),
    }
    return check_settings(SimpleNamespace(likelihood=likelihood, linear_mode=None), **usual | given)  # type: ignore[arg-type]


def test_defaults_of_tune() -> None:
    """Noise where there is one, on a grid where it has values; steps for each number that is searched."""
    linear = Passing("linear_mode")
    for given, noise, steps, tolerance in (
        ({}, True, 400, 1e-6),
        ({"parameters": ["prior"]}, False, 200, 1e-6),
        ({"noise_there": False}, False, 200, 1e-6),
        ({"method": "fixed_point"}, True, 2000, 1e-7),
        ({"method": "validation", "validation": ()}, True, 120, 1e-3),
        ({"method": "validation", "validation": (), "parameters": EVERY}, True, 180, 1e-3),
        ({"method": "grid"}, False, 0, 0.0),
        ({"method": "grid", "grid": {"prior": [1.0], "noise": [1.0]}}, True, 0, 0.0),
        ({"method": "grid", "parameters": ("prior", "noise")}, True, 0, 0.0),
        ({"passing": linear, "train": ()}, True, 100, 1e-2),
        ({"passing": linear, "train": (), "method": "fixed_point", "steps": 7, "tolerance": 0.5}, True, 7, 0.5),
        ({"parameters": ["noise"]}, True, 200, 1e-6),
    ):
        made = settings(**given)
        assert (made.noise, made.steps, made.tolerance) == (noise, steps, tolerance), given
        assert (
            made.limits == (0.1, 10.0)
            and made.predict == {}
            and made.prior is ("prior" in given.get("parameters", EVERY))
        )
    assert settings(method="grid", validation=(), grid={"temperature": [1.0]}).temperature is True
    assert not settings(method="grid", grid=[1.0]).temperature and settings(steps=1).steps == 1
    assert (
        settings(method="validation", validation=(), predict={"link": "mc", "at": "trained_weights"}).predict["link"]
        == "mc"
    )
    assert pw.tuning.options.LIMITS == (1e-10, 1e10) and pw.tuning.options.TEMPERATURES == (1e-4, 1e4)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"method": 3}, TypeError, r"method is a int; expected one of evidence, .*training, validation, grid\. Val"),
        ({"method": "gridd"}, ValueError, "method='gridd' is not known; did you mean 'grid'. Known: evidence"),
        (
            {"passing": Passing("linear_mode")},
            ValueError,
            "at='linear_mode' passes over the training data; give it as train=",
        ),
        ({"passing": Passing(memory=1.0)}, ValueError, "memory= is for passes over data"),
        (
            {"method": "grid", "validation": (), "predict": {"memory": 1.0}},
            ValueError,
            "memory= is an option of tune itself",
        ),
        (
            {"passing": Passing("linear_mode"), "method": "validation"},
            ValueError,
            "whose score does not depend on a mode",
        ),
        ({"passing": Passing("far")}, ValueError, "at='far' is not known; .*Known: trained_weights, linear_mode"),
        ({"parameters": "prior"}, TypeError, r"parameters='prior': expected a list, such as \['prior', 'noise'\]"),
        ({"parameters": 1}, TypeError, "parameters=1: expected a list"),
        ({"parameters": ["nois"]}, ValueError, "parameters has 'nois'; did you mean 'noise'. Known: prior, noise"),
        ({"parameters": [1]}, ValueError, "parameters has 1; Known: prior, noise, temperature"),
        ({"train": ()}, ValueError, "train= was given, but nothing here passes over the training data"),
        ({"steps": True}, ValueError, "steps=True: expected a positive whole number"),
        ({"steps": 0}, ValueError, "steps=0: expected a positive whole number"),
        ({"steps": 1.5}, ValueError, "steps=1.5: expected"),
        ({"tolerance": 0.0}, ValueError, "tolerance=0.0: expected a positive number"),
        ({"predict": [1]}, TypeError, r"predict=\[1\]: expected a mapping"),
        ({"predict": {"link": "mc"}}, ValueError, "predict= was given, but method='evidence' makes no predictions"),
        (
            {"method": "grid", "validation": (), "predict": {"at": "linear_mode"}},
            ValueError,
            "leave at= out",
        ),
        ({"method": "grid", "grid": 1.0}, TypeError, "grid=1.0: expected numbers, or a mapping"),
        ({"method": "grid", "grid": {}}, ValueError, "grid has no values"),
        (
            {"method": "grid", "grid": [1.0], "parameters": ["noise"]},
            ValueError,
            r"The grid has values for prior, which parameters=\['noise'\] leaves out",
        ),
        (
            {"method": "grid", "grid": {"noise": [1.0]}, "parameters": ["prior"]},
            ValueError,
            "The grid has values for noise, which",
        ),
        (
            {"parameters": ["noise"], "noise_there": False},
            ValueError,
            "parameters has 'noise', but Poisson has none",
        ),
        ({"parameters": EVERY}, ValueError, "The evidence cannot choose a temperature"),
        ({"parameters": EVERY, "method": "fixed_point"}, ValueError, "The evidence cannot choose a temperature"),
        ({"parameters": EVERY, "method": "grid"}, ValueError, "The evidence cannot choose a temperature"),
        (
            {"parameters": EVERY, "passing": Passing("linear_mode"), "train": ()},
            ValueError,
            "The evidence cannot choose",
        ),
        ({"validation": ()}, ValueError, "validation= was given, but method='evidence' needs none"),
        (
            {"validation": (), "method": "fixed_point"},
            ValueError,
            "validation= was given, but method='fixed_point' needs none",
        ),
        ({"grid": [1.0]}, ValueError, "grid= was given, but method='evidence' has none"),
        ({"grid": [1.0], "method": "validation", "validation": ()}, ValueError, "but method='validation' has none"),
        ({"parameters": []}, ValueError, "there is nothing to tune"),
        ({"limits": (1.0,)}, ValueError, r"limits=\(1.0,\): expected two positive precisions"),
    ],
    ids=str,
)
def test_refusals_of_tune(given: dict[str, Any], error: type[Exception], words: str) -> None:
    """Each by what was given, with what to do."""
    with pytest.raises(error, match=words):
        settings(**given)


def test_numbers_that_are_positive() -> None:
    """Finite, and numbers at all."""
    assert positive(2) == 2.0 and positive(torch.tensor(0.5)) == 0.5 and positive(1e-300) == 1e-300
    assert all(positive(value) is None for value in (0, -1.0, math.inf, math.nan, True, "1", None, torch.ones(2)))
    assert (
        listable([1])
        and listable(torch.ones(1))
        and listable({})
        and not listable(torch.ones(()))
        and not listable("a")
    )
    assert not listable(3) and as_limits([1, 2.5]) == (1.0, 2.5)
    for limits in ((1.0, 1.0), (2.0, 1.0), (0.0, 1.0), (1.0, math.inf), (1.0, 2.0, 3.0), 5.0, "12"):
        with pytest.raises(ValueError, match="expected two positive precisions, the smaller first"):
            as_limits(limits)


def test_axes_of_a_grid() -> None:
    """Forty-one precisions from 1e-4 to 1e4, or what was given; what has no values stays where it is."""
    la: Any = SimpleNamespace(likelihood=SimpleNamespace(noise_precision=torch.tensor(4.0)), temperature=1.5)

    def made(grid: Any, prior: bool = True, noise: bool = False) -> dict[str, list[float]]:
        return axes(la, SimpleNamespace(grid=grid, prior=prior, noise=noise), 3.0)  # type: ignore[arg-type]

    usual = made(None)
    assert usual["prior"] == pytest.approx(
        [10**power for power in torch.linspace(-4, 4, 41).double().tolist()], rel=1e-5
    )
    assert (usual["noise"], usual["temperature"]) == ([0.5], [1.5]) and [*usual] == ["prior", "noise", "temperature"]
    assert made([1, 2.0])["prior"] == [1.0, 2.0] and made(torch.tensor([1.0, 2.0]))["prior"] == [1.0, 2.0]
    assert made({"noise": [0.3], "temperature": (2.0, 1.0)}, noise=True) == {
        "prior": [3.0],
        "noise": [0.3],
        "temperature": [2.0, 1.0],
    }
    for given, words in (
        ({"grid": None, "prior": False}, "A grid without the prior needs the values of what is tuned"),
        ({"grid": {"precision": [1.0]}}, r"grid has values for \['precision'\]; expected 'prior'"),
        ({"grid": [1.0], "noise": True}, "The noise on a grid needs its values"),
        ({"grid": {"prior": []}}, r"grid: the values for 'prior' are \[\]; expected positive numbers"),
        ({"grid": {"noise": [1.0, -1.0]}}, "the values for 'noise' are"),
        ({"grid": {"noise": 1.0}}, "the values for 'noise' are 1.0"),
    ):
        with pytest.raises(ValueError, match=words):
            made(**given)


@dataclass(frozen=True)
class Scored:
    """As much of a posterior as searches by scores look at: a prior, a noise and a temperature."""

    prior: pw.Prior
    noise: float = 0.5
    temperature: float = 1.0
    trace: Any = None

    space = Space(("a", "b"), (torch.Size([2]), torch.Size([3])))
    weights = SimpleNamespace(device=None)
    totals = SimpleNamespace(energy=0.02, scalars=4.0)  # residuals of 0.1

    @property
    def likelihood(self) -> Any:
        """With a noise."""
        return pw.Gaussian(self.noise)

    def with_prior(self, prior: pw.Prior) -> Scored:
        """Another prior."""
        return replace(self, prior=prior)

    def with_noise(self, noise: float) -> Scored:
        """Another noise."""
        return replace(self, noise=noise)

    def with_temperature(self, temperature: float) -> Scored:
        """Another temperature."""
        return replace(self, temperature=temperature)

    @property
    def logarithms(self) -> list[float]:
        """Of the geometric mean of the precisions, of the noise and of the temperature."""
        return [float(self.prior.precision.log().mean()), math.log(self.noise), math.log(self.temperature)]


def scored(
    monkeypatch: pytest.MonkeyPatch, score: Callable[[Scored], float], by: str, **given: Any
) -> tuple[Any, list[Scored]]:
    """What a search finds by a score, and all that were scored."""
    tried: list[Scored] = []

    def mean_nlls(shared: Any, settings: Any) -> list[float]:
        made = [setting() for setting in settings]
        tried.extend(made)
        return [score(each) for each in made]

    for module in (by_validation, by_grid):
        monkeypatch.setattr(module, "mean_nlls", mean_nlls)
        monkeypatch.setattr(module, "shared_predictions", lambda la, asked: None)
    usual = {
        "method": by,
        "prior": True,
        "noise": True,
        "temperature": True,
        "validation": (),
        "grid": None,
        "steps": 300,
    }
    usual |= {"tolerance": 1e-4, "limits": (1e-3, 1e3), "predict": {}} | given
    la = Scored(given.get("start", pw.Prior.layerwise([4.0, 1.0])))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = (by_validation.by_validation if by == "validation" else by_grid.by_grid)(la, SimpleNamespace(**usual))  # type: ignore[arg-type]
    return found, tried


def bowl(*centre: float) -> Callable[[Scored], float]:
    """A score with its least value at some logarithms."""
    return lambda la: sum((own - there) ** 2 for own, there in zip(la.logarithms, centre, strict=True))


def test_a_search_by_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least score of all three numbers, from the best of some values of each; no setting is scored twice."""
    found, tried = scored(monkeypatch, bowl(2.0, -1.3, 0.7), "validation", limits=(1e-5, 1e5))
    assert found.logarithms == pytest.approx([2.0, -1.3, 0.7], abs=1e-3)
    assert found.prior.precision.tolist() == pytest.approx([2 * math.exp(2.0), 0.5 * math.exp(2.0)], rel=1e-2)
    trace = found.trace
    assert trace.converged and "steps are smaller than 0.0001," in trace.stopped and trace.warnings == ()
    assert (trace.method, trace.objective, trace.groups) == ("validation", "validation NLL", ("a", "b"))
    assert len({tuple(each.logarithms) for each in tried}) == len(tried) == len(trace)
    for place, each in enumerate(tried):
        assert trace.precisions[place].tolist() == pytest.approx(each.prior.precision.tolist())
        assert (trace.noises[place], trace.temperatures[place]) == pytest.approx((each.noise, each.temperature))
        assert trace.values[place] == pytest.approx(bowl(2.0, -1.3, 0.7)(each))
    start = torch.tensor([math.log(2.0), math.log(0.5), 0.0], dtype=torch.float64)
    lines = [
        (0, [0.0, 0.0, 0.0], [0.0, -6.9, -4.6, -2.3, 2.3, 4.6, 6.9]),
        (1, [2.3, 0.0, 0.0], [-1.4, -0.7, 0.7, 1.4]),
        (2, [2.3, -0.7, 0.0], [-2.3, -1.1, 1.1, 2.3]),
    ]
    places = iter(tried)
    for axis, kept, offsets in lines:
        for offset in offsets:
            there = start + torch.tensor(kept, dtype=torch.float64)
            there[axis] += offset
            assert next(places).logarithms == pytest.approx(there.tolist(), abs=1e-9)
    first = start + torch.tensor([2.3, -0.7, 1.1], dtype=torch.float64)
    for axis in range(3):  # the simplex there
        corner = first + 0.7 * (torch.arange(3) == axis).double()
        assert next(places).logarithms == pytest.approx(corner.tolist(), abs=1e-9)


@pytest.mark.parametrize("free", ["prior", "noise", "temperature"])
def test_a_search_of_one_number(free: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others stay as they are."""
    switches = {name: name == free for name in ("prior", "noise", "temperature")}
    found, _ = scored(monkeypatch, bowl(1.0, -1.0, 0.4), "validation", **switches)
    expected = [math.log(2.0), math.log(0.5), 0.0]
    place = [*switches].index(free)
    expected[place] = [1.0, -1.0, 0.4][place]
    assert found.logarithms == pytest.approx(expected, abs=1e-3)
    assert found.prior.precision[0] / found.prior.precision[1] == pytest.approx(4.0)
    assert found.prior.precision.tolist() == [4.0, 1.0] or switches["prior"]


def test_a_search_that_ends_at_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or that was too short; scores without a number are the worst."""
    found, _ = scored(monkeypatch, bowl(9.0, -1.0, 12.0), "validation")
    assert found.trace.warnings == (
        "The geometric mean of the precisions is at the largest allowed, 1e+03.",
        "The temperature is at the largest allowed, 1e+04.",
    )
    found, _ = scored(monkeypatch, bowl(30.0, -1.0, 0.0), "validation")  # nearer to it than to the limit
    assert found.logarithms == pytest.approx([math.log(1e10), -1.0, 0.0], abs=1e-3)
    assert found.trace.warnings == (
        "The geometric mean of the precisions is 1e+10: on these data no uncertainty of the weights is best, and "
        "predictions are the network's own.",
    )
    found, _ = scored(monkeypatch, bowl(-9.0, -30.0, 0.0), "validation")
    assert found.trace.warnings == ("The geometric mean of the precisions is at the smallest allowed, 0.001.",)
    assert found.noise == pytest.approx(0.1)  # that of the training residuals
    found, _ = scored(monkeypatch, bowl(2.0, -1.0, 0.7), "validation", steps=2)
    assert found.trace.warnings == ("Tuning did not converge: 2 steps were not enough.",) and not found.trace.converged
    assert (
        found.trace.stopped == "2 steps were not enough"
        and min(found.trace.values) == found.trace.values[found.trace.best]
    )
    odd, _ = scored(
        monkeypatch, lambda la: math.nan if la.temperature > 1.5 else bowl(2.0, -1.0, 0.7)(la), "validation"
    )
    assert odd.temperature <= 1.5 and math.inf in odd.trace.values


def test_a_grid_by_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every combination once, and the network itself with each; the best, and what is odd about it."""
    grid = {"prior": [1.0, 7.0, 50.0], "noise": [0.3, 0.4], "temperature": [1.0]}
    found, tried = scored(monkeypatch, bowl(2.0, -1.0, 0.0), "grid", grid=grid)
    assert [(round(math.exp(each.logarithms[0]), 9), each.noise) for each in tried] == [
        (precision, noise) for precision in (1.0, 7.0, 50.0, pytest.approx(1e10)) for noise in (0.3, 0.4)
    ]
    assert math.exp(found.logarithms[0]) == pytest.approx(7.0) and found.noise == 0.4
    assert found.trace.warnings == ("The best noise is at the largest value of its grid, 0.4.",)
    assert found.trace.converged and found.trace.stopped == "every setting was scored"
    assert found.trace.values == pytest.approx([bowl(2.0, -1.0, 0.0)(each) for each in tried])
    for place, each in enumerate(tried):
        assert found.trace.precisions[place].tolist() == pytest.approx(each.prior.precision.tolist())
    assert found.trace.noises == (0.3, 0.4) * 4 and found.trace.temperatures == (1.0,) * 8
    alone, _ = scored(monkeypatch, bowl(2.0, -1.0, 0.0), "grid", grid=grid, start=pw.Prior.layerwise(4.0))
    assert alone.trace.groups == ("all",) and found.trace.groups == ("a", "b")
    low, _ = scored(
        monkeypatch, bowl(-2.0, -1.0, 0.0), "grid", grid={"prior": [1.0, 7.0]}, noise=False, temperature=False
    )
    assert low.trace.warnings == ("The best prior is at the smallest value of its grid, 1.",) and low.noise == 0.5
    certain, _ = scored(
        monkeypatch, bowl(30.0, -1.0, 0.0), "grid", grid={"prior": [1.0, 7.0]}, noise=False, temperature=False
    )
    assert certain.logarithms[0] == pytest.approx(math.log(1e10)) and certain.trace.warnings == (
        "The network itself is best, a precision of 1e+10: on these data no uncertainty of the weights is best, and "
        "predictions are the network's own.",
    )
    kept, _ = scored(
        monkeypatch, bowl(-2.0, -1.0, 0.0), "grid", grid={"noise": [0.1, 0.4, 0.9]}, prior=False, temperature=False
    )
    assert kept.prior.precision.tolist() == [4.0, 1.0] and kept.noise == 0.4 and kept.trace.warnings == ()
    some, _ = scored(
        monkeypatch, lambda la: math.inf if la.noise > 0.35 else bowl(2.0, -1.0, 0.0)(la), "grid", grid=grid
    )
    assert some.noise == 0.3 and "4 settings of the grid have no finite score and were left out." in some.trace.warnings
    with pytest.raises(ValueError, match="No setting of the grid has a finite score"):
        scored(monkeypatch, lambda la: math.nan, "grid", grid=grid)
