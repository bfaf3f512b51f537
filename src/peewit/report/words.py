"""Numbers as text, and comparisons of methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ..figures.style import strength
from ..metrics.catalogue import describe, merit
from ..metrics.results import Detection, Estimate, MethodScores, Results

PERCENT = "\N{NO-BREAK SPACE}%"
PLAIN = "Plain network"  # as `evaluate` names it
SCORES = {
    "confidence": "confidence",
    "entropy": "entropy",
    "variance": "variance",
    "mutual_information": "mutual information",
    "epistemic_variance": "epistemic variance",
}


def score(name: str) -> str:
    """A measure of uncertainty in words."""
    return SCORES.get(name, name.replace("_", " "))


def main_score(detections: Mapping[str, Detection]) -> str | None:
    """The score that is compared: what comes from uncertain weights where there is such; not chosen by its result."""
    order = ("mutual_information", "epistemic_variance", "entropy", "variance", "confidence")
    return next((name for name in order if name in detections), next(iter(detections), None))


def variation(name: str) -> str:
    """A corruption or an attack in words."""
    return name.upper() if name in ("fgsm", "pgd") else name.replace("_", " ")


def number(value: float, percent: bool = False) -> str:
    """A number with three digits, or a percentage with one after the point."""
    if not math.isfinite(value):
        return {math.inf: "∞", -math.inf: "−∞"}.get(value, "–")
    if percent:
        return f"{100 * value:.1f}{PERCENT}"
    return f"{value:.3f}" if 5e-4 <= abs(value) < 1000 or value == 0 else f"{value:.3g}"


def setting_text(value: Any) -> str:
    """The value of a setting in words."""
    if isinstance(value, list | tuple):
        return ", ".join(strength(each) if isinstance(each, float) else setting_text(each) for each in value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{key}: {setting_text(each)}" for key, each in value.items()) or "none"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def interval(value: Estimate, percent: bool = False) -> str:
    """`low–high`; empty without an interval."""
    if not has_interval(value):
        return ""
    low, high = number(value.low, percent), number(value.high, percent)
    return f"{low.removesuffix(PERCENT)}{'–' if value.low >= 0 else ' to '}{high}"


def in_percent(value: float) -> str:
    """A whole percentage, with one digit after the point near 0 and 100."""
    return f"{100 * value:.{1 if 0 < value < 0.02 or 0.98 < value < 1 else 0}f}{PERCENT}"


def has_interval(value: Estimate) -> bool:
    """Whether there is an interval: its ends are equal if none was computed, or for a single example."""
    return math.isfinite(value.low) and math.isfinite(value.high) and value.low < value.high


def apart(one: Estimate, other: Estimate) -> bool:
    """Whether there are intervals, and they do not overlap: the difference is then hardly chance."""
    return (has_interval(one) or has_interval(other)) and (one.high < other.low or other.high < one.low)


def differ(name: str, first: MethodScores, other: MethodScores) -> bool:
    """Whether a metric of two methods differs by more than chance explains; `first` is the report's first one.

    It compares on the same resampled inputs if the report has the differences: chance that both share cancels.
    """
    known = other.differences.get(name)
    if known is None:
        return apart(*(distance(name, each.metrics[name]) for each in (first, other)))
    return has_interval(known) and (known.low > 0 or known.high < 0)


def distance(name: str, value: Estimate) -> Estimate:
    """How far a coverage is from the share that it should be; any other metric as it is."""
    ideal = describe(name).ideal
    if ideal is None:
        return value
    ends = sorted(abs(each - ideal) for each in (value.low, value.high))
    inside = value.low <= ideal <= value.high
    return Estimate(abs(value.value - ideal), 0.0 if inside and has_interval(value) else ends[0], ends[1])


def wrong_width(scores: MethodScores) -> str:
    """Whether 90 % intervals are "too narrow" or "too wide" by more than chance explains; "" where they are not."""
    held = scores.metrics.get("coverage90")
    if held is None or not math.isfinite(held.value):
        return ""
    right = held.low <= 0.9 <= held.high if has_interval(held) else abs(held.value - 0.9) < 0.05
    return "" if right else "too narrow" if held.value < 0.9 else "too wide"


def has_training_noise(report: Results) -> bool:
    """Whether the plain network has the noise of its residuals on the training data: `Subject.plain` decides it."""
    beside_posterior = bool(report.posterior) and "noise" in report.settings
    return beside_posterior and not has_validation(report) and plain(report) is not None


def has_validation(report: Results) -> bool:
    """Whether the evaluation was given validation data."""
    return report.settings.get("validation data") is True


def best(name: str, methods: Sequence[MethodScores]) -> list[bool]:
    """Which methods have the best value of a metric, in the digits shown; none if all are equal."""
    kind = describe(name)
    values = [each.metrics[name].value if name in each.metrics else math.nan for each in methods]
    if kind.better == 0 and kind.ideal is None:
        return [False] * len(values)
    merits = [merit(name, value) for value in values]
    known = [index for index, each in enumerate(merits) if math.isfinite(each)]
    shown = [number(value, kind.percent) for value in values]
    if len({shown[index] for index in known}) < 2:
        return [False] * len(values)
    top = max(known, key=lambda index: merits[index])
    return [each == shown[top] for each in shown]


def plain(report: Results) -> MethodScores | None:
    """The plain network, among the methods."""
    return next((each for each in report.methods if is_plain(each)), None)


def is_plain(scores: MethodScores) -> bool:
    """Whether a method is the network without anything added."""
    return scores.name == PLAIN


def examples(report: Results) -> int | None:
    """The number of test inputs, if the report has it."""
    bins, total = report.methods[0].reliability, report.settings.get("test examples")
    return total if isinstance(total, int) else None if bins is None else sum(bins.count)
