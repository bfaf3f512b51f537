"""Searches by scores: the simplex, scans, validation data and grids, each against its definition."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import scipy.optimize
import torch

import peewit as pw
from peewit.tuning import by_grid, by_validation
from peewit.tuning.validation import minimise, scan
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
        "The geometric mean of the precisions is 1e+10: on these data predictions are best without "
        "uncertainty of the weights: they are the network's own.",
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
        "The network itself is best, a precision of 1e+10: on these data predictions are best without "
        "uncertainty of the weights: they are the network's own.",
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
