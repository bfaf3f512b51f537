"""Intervals: every metric of every drawn set is that of a list of the drawn examples."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from peewit.metrics import aupr, aurc, auroc, ece, fpr95, mce
from peewit.metrics import bootstrap as boot
from peewit.metrics.bootstrap import MetricDraws, Ranking, Resampling, estimate
from peewit.metrics.calibration import _gaps, adaptive, classwise, equal_mass, equal_width, risk_area
from peewit.metrics.detection import _area as detection_area
from peewit.metrics.detection import _average_precision, _false_alarms, _sum_by_group, detection
from peewit.metrics.positions import Positions
from peewit.metrics.regression import pit_deviation

scipy_stats = pytest.importorskip("scipy.stats")

N, C, R = 60, 3, 12


def counts_of(drawn: Resampling) -> Tensor:
    """(N, 1 + R)."""
    return torch.cat(list(drawn._sets()), 1)


def lists(drawn: Resampling) -> list[Tensor]:
    """The examples of every set, each as often as it was drawn."""
    return [torch.arange(drawn.examples).repeat_interleave(each.long()) for each in counts_of(drawn).T]


def positions() -> Positions:
    labels = torch.randint(C, (N,))
    probs = (torch.randn(N, C) + torch.nn.functional.one_hot(labels, C)).round(decimals=1).double().softmax(-1)
    confidence, predicted = probs.max(-1)
    values = {"confidence": confidence, "correct": (predicted == labels).double(), "pit": torch.rand(N).double()}
    return Positions(owner=torch.arange(N), examples=N, values=values, probs=probs, labels=labels)


def test_sets_are_as_large_as_the_data_and_the_same_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = Resampling(N, R, 3)
    counts = counts_of(drawn)
    assert counts.shape == (N, 1 + R) and bool((counts.sum(0) == N).all()) and bool((counts[:, 0] == 1).all())
    assert torch.equal(counts, counts_of(Resampling(N, R, 3)))
    assert not torch.equal(counts, counts_of(Resampling(N, R, 4)))
    monkeypatch.setattr(boot, "KEPT", 1)
    assert torch.equal(counts, counts_of(Resampling(N, R, 3)))
    large = counts_of(Resampling(400, 50, 0))
    assert float(large[:, 1:].var()) == pytest.approx(1 - 1 / 400, rel=0.05)


def test_sums_are_those_of_lists_and_infinite_where_they_must() -> None:
    values = torch.randn(N, 4).double()
    values[3, 1], values[4, 2], values[5, 3] = math.inf, -math.inf, math.nan
    drawn = Resampling(N, R, 0)
    expected = torch.stack([values[chosen].sum(0) for chosen in lists(drawn)])
    torch.testing.assert_close(drawn.sums(values), expected, equal_nan=True)


def test_binned_and_ranked_metrics_of_every_set() -> None:
    own, drawn = positions(), Resampling(N, R, 0)
    gaps, counts = _gaps(own, drawn, equal_width(own["confidence"], 15), 15)
    areas, deviations = ([draws.value, *draws.rows] for draws in (risk_area(own, drawn), pit_deviation(own, drawn)))
    assert own.probs is not None and own.labels is not None
    for number, chosen in enumerate(lists(drawn)):
        some = own.probs[chosen], own.labels[chosen]
        assert float(gaps[number].abs().sum() / N) == pytest.approx(ece(*some), abs=1e-12)
        assert float((gaps[number].abs() / counts[number].clamp(min=1)).max()) == pytest.approx(mce(*some))
        assert float(areas[number]) == pytest.approx(aurc(*some), rel=1e-10)
        expected = scipy_stats.kstest(own["pit"][chosen].numpy(), "uniform").statistic
        assert float(deviations[number]) == pytest.approx(expected, rel=1e-10)


def test_detection_of_every_set() -> None:
    known, unknown = torch.randn(30).round(decimals=1), torch.randn(20).round(decimals=1) + 0.5
    sets = Resampling(30, R, 0), Resampling(20, R, 1)
    counts = _sum_by_group(Ranking.of(torch.cat([known, unknown])), *sets)
    for number, (left, right) in enumerate(zip(lists(sets[0]), lists(sets[1]), strict=True)):
        own = known[left], unknown[right]
        assert float(detection_area(*counts)[number]) == pytest.approx(auroc(*own))
        assert float(_average_precision(*counts)[number]) == pytest.approx(aupr(*own))
        assert float(_false_alarms(*counts)[number]) == pytest.approx(fpr95(*own))


def test_positions_of_an_example_stay_together() -> None:
    """A mean over positions, and an error in bins, where sets are drawn by example."""
    owner = torch.tensor([0, 0, 0, 1, 3, 3])
    values = {"v": torch.randn(6).double(), "confidence": torch.rand(6).double(), "correct": torch.ones(6).double()}
    own, drawn = Positions(owner=owner, examples=4, values=values), Resampling(4, R, 0)
    means = own.means(("v",), drawn)[:, 0]
    gaps, counts = _gaps(own, drawn, equal_mass(own["confidence"], 3), 3)
    for number, weight in enumerate(counts_of(drawn).T):
        each = weight[owner]
        if each.sum():
            assert float(means[number]) == pytest.approx(float((each * own["v"]).sum() / each.sum()))
        else:
            assert means[number].isnan()
        place = equal_mass(own["confidence"], 3)
        for k in range(3):
            here = each * (place == k)
            assert float(gaps[number, k]) == pytest.approx(float((here * (own["confidence"] - 1)).sum()), abs=1e-12)
            assert float(counts[number, k]) == float(here.sum())


def test_intervals_hold_the_number_and_95_percent_of_the_sets() -> None:
    rows = torch.cat([torch.tensor([0.5]), torch.linspace(0, 1, 1001)]).double()
    found = estimate(rows)
    assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.025, 0.975))
    assert estimate(torch.tensor([2.0, 0.0, 1.0])).high == 2.0
    assert estimate(torch.tensor([1.0])) == estimate(torch.tensor([1.0, math.nan]))
    infinite = estimate(torch.tensor([math.inf, 1.0, math.inf, 2.0]))
    assert (infinite.low, infinite.high) == (1.0, math.inf)


def test_intervals_cover_a_mean_as_often_as_they_say() -> None:
    """Of 400 data sets about 95 % of the intervals of the mean hold the true one."""
    inside = 0
    for seed in range(400):
        values = torch.randn(50, generator=torch.Generator().manual_seed(seed)).double()
        positions = Positions(owner=torch.arange(50), examples=50, values={"v": values})
        own = positions.draw(("v",), Resampling(50, 300, seed))["v"].estimate
        inside += own.low <= 0 <= own.high
    assert 0.90 < inside / 400 < 0.97


def test_metrics_with_intervals_are_the_metrics() -> None:
    """Whatever the number of draws, one example included; grouped rankings change the interval alone."""
    own = positions()
    assert own.probs is not None and own.labels is not None
    for draws in (0, 30):
        drawn = Resampling(N, draws, 0)
        for found in (adaptive(own, drawn).estimate, classwise(own, drawn).estimate):
            assert found.low <= found.value <= found.high and (draws > 0) == (found.low < found.high)
    known, unknown = torch.randn(3000), torch.randn(2500) + 1
    found = detection(known, unknown, (Resampling(3000, 40, 0), Resampling(2500, 40, 1)))
    assert found.auroc.value == auroc(known, unknown) and found.aupr.value == aupr(known, unknown)
    assert found.fpr95.value == fpr95(known, unknown)
    for each in (found.auroc, found.aupr, found.fpr95):
        assert each.low < each.value < each.high and each.high - each.low < 0.1
    one = detection(torch.zeros(1), torch.ones(1), (Resampling(1, 10, 0), Resampling(1, 10, 1)))
    assert (one.auroc.low, one.auroc.value, one.auroc.high) == (1.0, 1.0, 1.0)


def test_rankings_group_neighbours_where_there_are_many() -> None:
    values = torch.randn(5000).double()
    found = Ranking.of(values, 100)
    assert not found.exact and 90 <= found.groups <= 100
    assert bool((found.first[found.group] <= values).all()) and bool((values <= found.last[found.group]).all())
    assert bool((found.first[1:] > found.last[:-1]).all())
    assert torch.bincount(found.group).max() <= 60
    alone = Ranking.of(values)
    assert alone.groups <= 2048
    assert Ranking.of(torch.zeros(10)).groups == 1


def test_differences_are_of_the_same_drawn_sets() -> None:
    """Two methods that are wrong on the same examples: their intervals overlap, that of the difference is narrow."""
    torch.manual_seed(0)
    hard = torch.randn(N).double()
    drawn = Resampling(N, 200, 0)
    one, other = (
        Positions(owner=torch.arange(N), examples=N, values={"nll": values}).draw(("nll",), drawn)["nll"]
        for values in (hard + 0.1 + 0.01 * torch.randn(N).double(), hard)
    )
    found = one.less(other)
    assert found is not None
    expected = [float((one.rows - other.rows)[number]) for number in range(200)]
    loops = [float((hard[chosen]).mean()) for chosen in lists(drawn)[1:]]
    assert other.rows.tolist() == pytest.approx(loops)
    assert found.estimate.value == pytest.approx(one.value - other.value)
    assert found.estimate.low == pytest.approx(sorted(expected)[math.floor(0.025 * 199)])
    assert found.estimate.low > 0 and one.estimate.low < other.estimate.high
    assert one.less(MetricDraws(0.0, torch.zeros(3))) is None
