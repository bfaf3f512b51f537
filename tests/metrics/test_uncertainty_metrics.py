"""Metrics of evaluations against scikit-learn, torchmetrics, scipy and loops."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable

import numpy
import pytest
import torch
from torch import Tensor

import peewit as pw
from environment import DEVICE
from peewit.metrics import (
    aupr,
    aurc,
    auroc,
    crps_gaussian,
    crps_samples,
    ece,
    ece_adaptive,
    ece_classwise,
    fpr95,
    mce,
    reliability,
)
from peewit.metrics.bootstrap import Resampling
from peewit.metrics.calibration import risk_area, risk_coverage
from peewit.metrics.positions import Positions
from peewit.metrics.regression import crps_mixture, pit_deviation, pit_shares

oracle = pytest.importorskip("torchmetrics.functional.classification")
scipy_stats = pytest.importorskip("scipy.stats")
integrate = pytest.importorskip("scipy.integrate")


def positions_of(values: dict[str, Tensor]) -> Positions:
    """Numbers of examples with one position each."""
    size = len(next(iter(values.values())))
    return Positions(owner=torch.arange(size), examples=size, values=values)


def drawn(examples: int, classes: int, sharpness: float, decimals: int | None = None) -> tuple[Tensor, Tensor]:
    """Probabilities and labels; with few decimals there are ties, and the last class is never a label."""
    labels = torch.randint(max(1, classes - 1), (examples,))
    logits = sharpness * (torch.randn(examples, classes) + torch.nn.functional.one_hot(labels, classes))
    logits = logits if decimals is None else logits.round(decimals=decimals)
    return logits.double().softmax(-1).to(DEVICE), labels.to(DEVICE)


CASES = {
    "plain": lambda: drawn(300, 5, 1.5),
    "ties": lambda: drawn(200, 3, 1.0, 0),
    "two classes": lambda: drawn(150, 2, 0.7),
    "one example": lambda: drawn(1, 4, 1.0),
    "sure": lambda: (torch.eye(3, device=DEVICE)[torch.randint(3, (40,))], torch.randint(3, (40,), device=DEVICE)),
    "even": lambda: (torch.full((12, 4), 0.25, device=DEVICE), torch.randint(4, (12,), device=DEVICE)),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor]:
    return CASES[request.param]()


def bins_of(confidence: list[float], bins: int) -> list[int]:
    """By counting edges, the last bin closed."""
    return [min(bins - 1, sum(c * bins >= edge for edge in range(1, bins))) for c in confidence]


def top(probs: Tensor, labels: Tensor) -> tuple[list[float], list[bool]]:
    confidence, predicted = probs.double().cpu().max(-1)
    return confidence.tolist(), (predicted == labels.cpu()).tolist()


def test_bins_add_up_to_the_calibration_errors(case: tuple[Tensor, Tensor]) -> None:
    """ECE, MCE and the diagram are of the same bins, counted here one by one."""
    probs, labels = case
    confidence, right = top(probs, labels)
    place = bins_of(confidence, 15)
    gaps, found = [], reliability(probs, labels)
    for number in range(15):
        own = [i for i, each in enumerate(place) if each == number]
        assert found.count[number] == len(own)
        if own:
            sure, correct = (sum(values[i] for i in own) / len(own) for values in (confidence, right))
            assert (found.confidence[number], found.accuracy[number]) == pytest.approx((sure, correct))
            gaps.append((len(own), abs(sure - correct)))
    assert ece(probs, labels) == pytest.approx(sum(n * gap for n, gap in gaps) / len(labels), abs=1e-12)
    assert mce(probs, labels) == pytest.approx(max(gap for _, gap in gaps), abs=1e-12)
    assert found.edges == pytest.approx([k / 15 for k in range(16)])


@pytest.mark.parametrize("bins", [5, 15])
def test_largest_and_classwise_errors_are_those_of_torchmetrics(bins: int) -> None:
    probs, labels = (each.cpu() for each in drawn(400, 4, 1.5))
    expected = oracle.multiclass_calibration_error(probs, labels, 4, n_bins=bins, norm="max")
    assert mce(probs, labels, bins) == pytest.approx(expected.item(), rel=1e-5)
    each = [
        oracle.binary_calibration_error(probs[:, k].clone(), (labels == k).long(), n_bins=bins, norm="l1").item()
        for k in range(4)
    ]
    assert ece_classwise(probs, labels, bins) == pytest.approx(sum(each) / 4, rel=1e-5)


def test_classwise_errors_one_by_one(case: tuple[Tensor, Tensor]) -> None:
    probs, labels = case[0].double().cpu(), case[1].cpu()
    total = 0.0
    for k in range(probs.shape[1]):
        gaps = [0.0] * 15
        for p, label in zip(probs[:, k].tolist(), labels.tolist(), strict=True):
            gaps[bins_of([p], 15)[0]] += p - (label == k)
        total += sum(map(abs, gaps)) / len(labels)
    assert ece_classwise(*case) == pytest.approx(total / probs.shape[1], abs=1e-12)


def test_adaptive_bins_hold_equally_many(case: tuple[Tensor, Tensor]) -> None:
    """Without ties: sorted and cut; with ties: all equal confidences in the bin of the first of them."""
    confidence, right = top(*case)
    order = sorted(range(len(confidence)), key=lambda i: confidence[i])
    gaps = [0.0] * 15
    for i in order:
        rank = sum(each < confidence[i] for each in confidence)
        gaps[rank * 15 // len(confidence)] += confidence[i] - right[i]
    assert ece_adaptive(*case) == pytest.approx(sum(map(abs, gaps)) / len(confidence), abs=1e-12)
    if len(set(confidence)) == len(confidence) > 100:
        cut = numpy.array_split(numpy.array([confidence[i] - right[i] for i in order]), 15)
        assert ece_adaptive(*case) == pytest.approx(sum(abs(c.sum()) for c in cut) / len(confidence), abs=2e-3)


def test_area_under_risk_and_coverage_is_the_mean_over_all_orders_of_ties() -> None:
    confidence = [0.9, 0.7, 0.7, 0.7, 0.5]
    right = [1, 0, 1, 1, 0]
    probs = torch.tensor([[c, 1 - c] if c >= 0.5 else [1 - c, c] for c in confidence], dtype=torch.float64)
    labels = torch.tensor([0 if r else 1 for r in right])
    areas = []
    for order in itertools.permutations(range(5)):
        if [confidence[i] for i in order] != sorted(confidence, reverse=True):
            continue
        wrong = [1 - right[i] for i in order]
        areas.append(sum(sum(wrong[: k + 1]) / (k + 1) for k in range(5)) / 5)
    assert aurc(probs.to(DEVICE), labels.to(DEVICE)) == pytest.approx(sum(areas) / len(areas), rel=1e-12)


def test_area_is_the_mean_of_the_curve(case: tuple[Tensor, Tensor]) -> None:
    """With at most 200 examples the curve has a point for each, and ends with the error rate."""
    probs, labels = case[0][:200], case[1][:200]
    confidence, predicted = probs.double().cpu().max(-1)
    curve = risk_coverage(positions_of({"confidence": confidence, "correct": (predicted == labels.cpu()).double()}))
    assert aurc(probs, labels) == pytest.approx(sum(curve.y) / len(curve.y), rel=1e-10)
    assert curve.y[-1] == pytest.approx(float((predicted != labels.cpu()).double().mean()))
    assert curve.x[-1] == 1.0 and len(curve.x) == len(labels)


def test_area_of_a_perfect_order_and_of_many_examples() -> None:
    """Grouped values are for intervals alone: the number is of every example."""
    risk = torch.cat([torch.zeros(2500), torch.ones(2500)]).double()
    doubt = torch.arange(5000).double()
    positions = positions_of({"confidence": -doubt, "correct": 1 - risk})
    expected = float((risk.cumsum(0) / torch.arange(1, 5001)).mean())
    found = risk_area(positions, Resampling(5000, 20, 0)).estimate
    assert found.value == pytest.approx(expected, rel=1e-12)
    assert found.low < expected < found.high and found.high - found.low < 0.1
    assert len(risk_coverage(positions).x) == 200


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("sizes", [(60, 40), (1, 1), (3, 200), (200, 3)])
def test_detection_is_that_of_scikit_learn(sizes: tuple[int, int], ties: bool) -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    known, unknown = torch.randn(sizes[0]).double(), torch.randn(sizes[1]).double() + 0.8
    if ties:
        known, unknown = known.round(), unknown.round()
    score = torch.cat([known, unknown]).numpy()
    truth = numpy.array([0] * sizes[0] + [1] * sizes[1])
    own = known.to(DEVICE), unknown.to(DEVICE)
    assert aupr(*own) == pytest.approx(sklearn.average_precision_score(truth, score), rel=1e-12)
    assert auroc(*own) == pytest.approx(sklearn.roc_auc_score(truth, score), rel=1e-12)
    false, true, _ = sklearn.roc_curve(truth, score, drop_intermediate=False)
    assert fpr95(*own) == pytest.approx(false[true >= 0.95 - 1e-12].min(), rel=1e-12)


def test_detection_is_that_of_torchmetrics() -> None:
    known, unknown = torch.rand(100).double(), (torch.rand(80).double() + 0.3).clamp(max=1)
    score, truth = torch.cat([known, unknown]), torch.tensor([0] * 100 + [1] * 80)
    assert aupr(known, unknown) == pytest.approx(oracle.binary_average_precision(score, truth).item(), rel=1e-5)


def test_false_alarms_count_at_exactly_the_share() -> None:
    """19 of 20 unknown inputs are 95 %: the twentieth, which looks known, does not cost all known inputs."""
    unknown = torch.tensor([1.0] * 19 + [-1.0])
    assert fpr95(torch.zeros(10), unknown) == 0.0
    assert fpr95(torch.zeros(10), torch.tensor([1.0] * 18 + [-1.0] * 2)) == 1.0


def crps_by_quadrature(mean: float, deviation: float, y: float) -> float:
    """Its definition, the integral of `(F(z) - [z >= y])^2`."""
    low, high = min(mean - 12 * deviation, y), max(mean + 12 * deviation, y)
    cdf = scipy_stats.norm(mean, deviation).cdf
    below = integrate.quad(lambda z: cdf(z) ** 2, low, y, limit=200)[0]
    return below + integrate.quad(lambda z: (1 - cdf(z)) ** 2, y, high, limit=200)[0]


def test_crps_of_a_gaussian_is_its_integral() -> None:
    mean, deviation = torch.tensor([0.0, 1.0, -2.0, 0.5]).double(), torch.tensor([1.0, 0.3, 2.0, 1e-3]).double()
    y = torch.tensor([0.3, 2.0, -2.0, 0.6]).double()
    expected = [crps_by_quadrature(*map(float, each)) for each in zip(mean, deviation, y, strict=True)]
    found = crps_gaussian(mean.to(DEVICE), deviation.to(DEVICE), y.to(DEVICE))
    assert found.tolist() == pytest.approx(expected, rel=1e-6)
    assert crps_gaussian(torch.tensor([2.0]), torch.tensor([0.0]), torch.tensor([5.0])).tolist() == [3.0]


def test_crps_of_mixtures_and_of_samples() -> None:
    """Mixtures against an integral; samples against the pairs they are made of."""
    means, deviations = torch.tensor([[0.0], [2.0], [-1.0]]).double(), torch.tensor([[1.0], [0.5], [0.2]]).double()
    parts = [scipy_stats.norm(float(m), float(s)) for m, s in zip(means, deviations, strict=True)]

    def cdf(z: float) -> float:
        return float(sum(part.cdf(z) for part in parts)) / 3

    expected = integrate.quad(lambda z: cdf(z) ** 2, -12, 0.7, limit=400)[0]
    expected += integrate.quad(lambda z: (1 - cdf(z)) ** 2, 0.7, 12, limit=400)[0]
    y = torch.tensor([0.7]).double()
    assert crps_mixture(means.to(DEVICE), deviations.to(DEVICE), y.to(DEVICE)).item() == pytest.approx(
        expected, rel=1e-7
    )
    samples = torch.randn(7, 3).double()
    found = crps_samples(samples.to(DEVICE), torch.zeros(3, dtype=torch.float64, device=DEVICE))
    pairs = (samples[:, None] - samples[None]).abs().sum((0, 1)) / (7 * 6)
    assert found.cpu() == pytest.approx((samples.abs().mean(0) - 0.5 * pairs).numpy())


@pytest.mark.parametrize("size", [1, 50, 3000])
def test_deviation_of_the_transform_is_that_of_kolmogorov_and_smirnov(size: int) -> None:
    pit = torch.rand(size).double() ** 1.3
    positions = positions_of({"pit": pit})
    expected = scipy_stats.kstest(pit.numpy(), "uniform").statistic
    found = pit_deviation(positions, Resampling(size, 50, 0)).estimate
    assert found.value == pytest.approx(expected, rel=1e-9)
    assert found.low <= found.value <= found.high


def test_shares_of_the_transform() -> None:
    pit = torch.tensor([0.0, 0.049, 0.051, 0.5, 1.0]).double()
    found = pit_shares(pit)
    assert len(found) == 20 and sum(found) == pytest.approx(1)
    assert (found[0], found[1], found[10], found[19]) == pytest.approx((0.4, 0.2, 0.2, 0.2))


def test_what_does_not_fit_is_refused() -> None:
    probs, labels = drawn(4, 3, 1.0)
    for metric in (ece_adaptive, ece_classwise, mce, aurc, reliability):
        with pytest.raises(ValueError, match="softmax"):
            metric(probs * 3, labels)
        with pytest.raises(ValueError, match="expected 0 to 2"):
            metric(probs, labels + 5)
    for metric in (ece_adaptive, ece_classwise, mce, reliability):
        with pytest.raises(ValueError, match="positive whole number"):
            metric(probs, labels, 0)
    for detect in (aupr, fpr95):
        with pytest.raises(ValueError, match="some of each"):
            detect(torch.zeros(0), torch.zeros(2))
        with pytest.raises(ValueError, match="NaN"):
            detect(torch.tensor([math.nan]), torch.zeros(2))


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (
            lambda: crps_gaussian(torch.zeros(3, 1), torch.ones(3), torch.zeros(3)),
            "mean has shape (3, 1)",
        ),
        (lambda: crps_gaussian(torch.zeros(3), torch.tensor([1.0, -1.0, 1.0]), torch.zeros(3)), "negative"),
        (lambda: crps_gaussian(torch.zeros(2), torch.ones(2), torch.tensor([0.0, torch.nan])), "y holds NaN or Inf"),
        (lambda: crps_samples(torch.zeros(4, 2), torch.zeros(3)), "samples has shape (4, 2); expected (4, 3)"),
        (lambda: crps_samples(torch.zeros(0, 3), torch.zeros(3)), "samples has shape (0, 3); expected (1, 3)"),
        (lambda: crps_samples(torch.tensor(1.0), torch.tensor(1.0)), "samples has shape (); expected (1,)"),
        (lambda: crps_samples(torch.full((2, 3), torch.inf), torch.zeros(3)), "samples holds NaN or Inf"),
    ],
)
def test_scores_of_numbers_refuse_what_does_not_fit(ask: Callable[[], Tensor], says: str) -> None:
    with pytest.raises(pw.PeewitError, match=re.escape(says)):
        ask()
