"""From the numbers of all positions to the scores of one method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..metrics import calibration, regression
from ..metrics.bootstrap import Draws, Resampling, estimate
from ..metrics.columns import Columns
from ..metrics.detection import detection
from ..metrics.kinds import METRICS
from ..metrics.results import Curve, Detection, Estimate, Scores, Shift
from .answers import joined
from .gathering import Gathered
from .methods import Method

SHOWN = 2000  # values of a score that are kept for histograms
# What curves against the strength of a shift show, by the column it is the mean of.
CURVES = {"correct": "accuracy", "squared": "rmse", "nll": "nll", "confidence": "confidence"}
DOUBTS = {"entropy": "uncertainty", "deviation": "uncertainty"}


def metrics_of(columns: Columns, drawn: Resampling) -> dict[str, Draws]:
    """All metrics that the columns allow."""
    allowed = {
        name: metric.of
        for name, metric in METRICS.items()
        if metric.of is not None and any(need in columns for need in metric.needs or (metric.of,))
    }
    means = columns.drawn([of for of in allowed.values() if isinstance(of, str)], drawn)
    return {name: means[of] if isinstance(of, str) else of(columns, drawn) for name, of in allowed.items()}


def scores_of(
    method: Method,
    own: Gathered,
    columns: Columns,
    unknown: Mapping[str, Mapping[str, Tensor]],
    drawn: Resampling,
    others: Mapping[str, Resampling],
    metrics: Mapping[str, Draws],
    asked: Mapping[str, Draws],
) -> Scores:
    """Everything about one method; `others` draws the unknown data anew, `asked` are the metrics to compare with."""
    values = own.values()
    classes = "correct" in columns
    shifts, attacks = (_shifts(columns, own, kind, drawn) for kind in ("shifts", "attacks"))
    risk_coverage = Curve((), ())
    if "correct" in columns or "squared" in columns:
        risk_coverage = calibration.risk_coverage(*calibration.doubt_and_risk(columns))
    return Scores(
        name=method.name,
        description=method.description,
        metrics={name: each.estimate for name, each in metrics.items()},
        differences=differences(metrics, asked),
        reliability=calibration.reliability_of(columns["confidence"], columns["correct"]) if classes else None,
        risk_coverage=risk_coverage,
        pit=regression.pit_shares(columns["pit"]) if "pit" in columns else None,
        uncertainty={name: _some(each) for name, each in {"test": values, **unknown}.items()},
        detection={name: _detections(values, each, (drawn, others[name])) for name, each in unknown.items()},
        shifts=shifts,
        attacks=attacks,
        seconds=own.seconds,
    )


def differences(metrics: Mapping[str, Draws], asked: Mapping[str, Draws]) -> dict[str, Estimate]:
    """Of every metric that both have, from the same drawn sets: what two methods share of chance cancels."""
    pairs = {name: each.less(asked[name]) for name, each in metrics.items() if name in asked}
    return {name: each.estimate for name, each in pairs.items() if each is not None}


def _some(values: Mapping[str, Tensor]) -> dict[str, tuple[float, ...]]:
    """At most 2,000 of them, evenly from first to last."""
    made = {}
    for name, each in values.items():
        picked = torch.linspace(0, len(each) - 1, min(SHOWN, len(each)), dtype=torch.float64, device="cpu")
        # Six digits are more than a histogram shows, and a third of the file.
        made[name] = tuple(float(f"{value:.6g}") for value in each[picked.round().long()].tolist())
    return made


def _detections(
    known: Mapping[str, Tensor], unknown: Mapping[str, Tensor], drawn: tuple[Resampling, Resampling]
) -> dict[str, Detection]:
    """By score; less confidence means unknown."""
    made = {}
    for name in known:
        sign = -1.0 if name == "confidence" else 1.0
        made[name] = detection(sign * known[name], sign * unknown[name], drawn)
    return made


def _shifts(clean: Columns, own: Gathered, kind: str, drawn: Resampling) -> dict[str, Shift]:
    """By name, with the clean data first."""
    found: dict[str, dict[float, Columns]] = {}
    some = joined(own.clean) if own.clean else clean
    for (of, name, strength), parts in own.changed.items():
        if of == kind:
            start = clean if (of, name) in own.ready else some
            found.setdefault(name, {0.0: start})[strength] = joined(parts)
    return {name: _shift(by_strength, drawn) for name, by_strength in found.items()}


def _shift(by_strength: Mapping[float, Columns], drawn: Resampling) -> Shift:
    strengths = tuple(sorted(by_strength))
    rows = [curve_values(by_strength[strength], drawn) for strength in strengths]
    return Shift(strengths, {name: tuple(row[name] for row in rows) for name in rows[0]})


def curve_values(columns: Columns, drawn: Resampling) -> dict[str, Estimate]:
    """Accuracy or RMSE, NLL, confidence and uncertainty."""
    if columns.examples != drawn.examples:  # a data set of its own
        drawn = Resampling(columns.examples, drawn.draws, drawn.seed)
    names: Sequence[str] = [name for name in (*CURVES, *DOUBTS) if name in columns.values]
    means = columns.means(names, drawn)
    made = {}
    for name, row in zip(names, means.T, strict=True):
        made[CURVES.get(name) or DOUBTS[name]] = estimate(row.sqrt() if name == "squared" else row)
    return made
