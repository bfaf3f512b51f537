"""From the numbers of all positions to the scores of one method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..metrics import calibration, regression
from ..metrics.bootstrap import MetricDraws, Resampling, estimate
from ..metrics.catalogue import METRICS
from ..metrics.detection import detection
from ..metrics.positions import Positions
from ..metrics.results import Curve, Detection, Estimate, MethodScores, Shift
from .gathering import MethodNumbers
from .methods import Method

SHOWN = 2000  # values of a score that are kept for histograms
# What curves against the strength of a shift show, by the numbers whose mean it is.
CURVES = {
    "correct": "accuracy", "squared": "rmse", "nll": "nll", "confidence": "confidence",
    "overconfidence": "overconfidence",
    "entropy": "uncertainty", "deviation": "uncertainty",
}  # fmt: skip


def metrics_of(positions: Positions, drawn: Resampling) -> dict[str, MetricDraws]:
    """All metrics that the positions allow."""
    allowed = {
        name: metric.of
        for name, metric in METRICS.items()
        if metric.of is not None and any(need in positions for need in metric.needs or (metric.of,))
    }
    means = positions.draw([of for of in allowed.values() if isinstance(of, str)], drawn)
    return {name: means[of] if isinstance(of, str) else of(positions, drawn) for name, of in allowed.items()}


def score_methods(
    methods: Sequence[Method],
    numbers: Sequence[MethodNumbers],
    unknown: Mapping[str, Sequence[Mapping[str, Tensor]]],
    drawn: Resampling,
) -> tuple[MethodScores, ...]:
    """All results of every method, from the same drawn sets; `unknown` has the scores of unknown inputs by method."""
    others = {
        name: Resampling(len(next(iter(scores[0].values()))), drawn.draws, drawn.seed + 1)
        for name, scores in unknown.items()
    }
    positions = [method_numbers.positions() for method_numbers in numbers]
    metrics = [metrics_of(method_positions, drawn) for method_positions in positions]
    return tuple(
        replace(
            _scores(method, method_numbers, positions[number], drawn),
            metrics={name: draws.estimate for name, draws in metrics[number].items()},
            differences=differences(metrics[number], metrics[0]) if number else {},
            uncertainty={
                "test": _some(method_numbers.values()),
                **{name: _some(method_scores[number]) for name, method_scores in unknown.items()},
            },
            detection={
                name: _detections(method_numbers.values(), scores[number], (drawn, others[name]))
                for name, scores in unknown.items()
            },
        )
        for number, (method, method_numbers) in enumerate(zip(methods, numbers, strict=True))
    )


def _scores(method: Method, numbers: MethodNumbers, positions: Positions, drawn: Resampling) -> MethodScores:
    """The results of one method that need no other method and no unknown inputs."""
    classes = "correct" in positions
    risk = classes or "squared" in positions
    return MethodScores(
        name=method.name,
        description=method.description,
        metrics={},
        reliability=calibration.reliability_of(positions["confidence"], positions["correct"]) if classes else None,
        risk_coverage=calibration.risk_coverage(positions) if risk else Curve((), ()),
        pit=regression.pit_shares(positions["pit"]) if "pit" in positions else None,
        uncertainty={},
        detection={},
        shifts=_shifts(positions, numbers, "shifts", drawn),
        attacks=_shifts(positions, numbers, "attacks", drawn),
        seconds=numbers.seconds,
    )


def differences(metrics: Mapping[str, MetricDraws], first: Mapping[str, MetricDraws]) -> dict[str, Estimate]:
    """Metrics less those of the first method, from the same drawn sets: chance that both share cancels.

    Of a coverage, which should be one number, it is the distances from that number that are compared.
    """
    pairs = {
        name: distance_from_ideal(name, draws).less(distance_from_ideal(name, first[name]))
        for name, draws in metrics.items()
        if name in first
    }
    return {name: draws.estimate for name, draws in pairs.items() if draws is not None}


def distance_from_ideal(name: str, draws: MetricDraws) -> MetricDraws:
    """What of a metric is smaller or larger where a method is better."""
    ideal = METRICS[name].ideal
    return draws if ideal is None else draws.distance(ideal)


def _some(scores: Mapping[str, Tensor]) -> dict[str, tuple[float, ...]]:
    """At most 2,000 values of each score, evenly from first to last."""
    quantiles = {}
    for name, values in scores.items():
        places = torch.linspace(0, len(values) - 1, min(SHOWN, len(values)), dtype=torch.float64, device="cpu")
        # Six digits are more than a histogram shows, and a third of the file.
        quantiles[name] = tuple(float(f"{value:.6g}") for value in values[places.round().long()].tolist())
    return quantiles


def _detections(
    known: Mapping[str, Tensor], unknown: Mapping[str, Tensor], drawn: tuple[Resampling, Resampling]
) -> dict[str, Detection]:
    """Detection by each score; less confidence means unknown."""
    signs = {name: -1.0 if name == "confidence" else 1.0 for name in known}
    return {name: detection(sign * known[name], sign * unknown[name], drawn) for name, sign in signs.items()}


def _shifts(clean: Positions, numbers: MethodNumbers, kind: str, drawn: Resampling) -> dict[str, Shift]:
    """Results by the name of the change, with the clean data first."""
    curves: dict[str, dict[float, Positions]] = {}
    some = Positions.join(numbers.clean) if numbers.clean else clean
    for (own_kind, name, strength), batches in numbers.changed.items():
        if own_kind == kind:
            start = clean if (kind, name) in numbers.ready else some
            curves.setdefault(name, {0.0: start})[strength] = Positions.join(batches)
    return {name: _shift(by_strength, drawn) for name, by_strength in curves.items()}


def _shift(by_strength: Mapping[float, Positions], drawn: Resampling) -> Shift:
    strengths = tuple(sorted(by_strength))
    rows = [curve_values(by_strength[strength], drawn) for strength in strengths]
    return Shift(strengths, {name: tuple(row[name] for row in rows) for name in rows[0]})


def curve_values(positions: Positions, drawn: Resampling) -> dict[str, Estimate]:
    """Accuracy or RMSE, NLL, confidence, what of it is too much, and uncertainty."""
    if positions.examples != drawn.examples:  # a data set of its own
        drawn = Resampling(positions.examples, drawn.draws, drawn.seed)
    names = [name for name in CURVES if name in positions]
    rows = zip(names, positions.means(names, drawn).T, strict=True)
    return {CURVES[name]: estimate(row.sqrt() if name == "squared" else row) for name, row in rows}
