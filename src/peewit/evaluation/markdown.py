"""A report as tables in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ..metrics import catalogue
from ..metrics.results import Estimate, MethodScores, Results, Shift
from ..report.words import number, setting_text

ARROWS = {1: " ↑", -1: " ↓", 0: ""}  # to where it is better


def page(report: Results) -> str:
    """The whole report."""
    parts = [f"# {report.title}", *_methods(report.methods)]
    parts += _detections(report.methods)
    parts += _shifts(report.methods, "shifts", "Corrupted inputs")
    parts += _shifts(report.methods, "attacks", "Adversarial inputs")
    parts += _coverage(report)
    settings = [(key, setting_text(setting)) for key, setting in report.settings.items()]
    settings += [(f"version of {name}", version) for name, version in report.versions.items()]
    parts += ["## Settings", _table(("setting", "value"), settings)]
    if report.notes:
        parts += ["## Notes", "\n".join(f"- {note}" for note in report.notes)]
    return "\n\n".join(parts) + "\n"


def label(name: str) -> str:
    """A metric's name for people, with an arrow to where it is better."""
    kind = catalogue.describe(name)
    return kind.short + ARROWS[kind.better]


def estimate(value: Estimate) -> str:
    """A number with its interval."""
    if value.low == value.high == value.value or math.isnan(value.low):
        return number(value.value)
    return f"{number(value.value)} ({number(value.low)} to {number(value.high)})"


def _methods(methods: Sequence[MethodScores]) -> list[str]:
    names = list(dict.fromkeys(name for method in methods for name in method.metrics))
    rows = [
        (
            method.name,
            *(estimate(method.metrics[name]) if name in method.metrics else "–" for name in names),
            f"{method.seconds:.2f}",
        )
        for method in methods
    ]
    return [
        "## Methods",
        "Each number has its 95 % interval when the examples are resampled (bootstrap).",
        _table(("method", *map(label, names), "seconds"), rows),
        "\n".join(f"- **{method.name}**: {method.description}" for method in methods),
    ]


def _detections(methods: Sequence[MethodScores]) -> list[str]:
    rows = [
        (known, method.name, score, *map(estimate, (detection.auroc, detection.aupr, detection.fpr95)))
        for known in dict.fromkeys(known for method in methods for known in method.detection)
        for method in methods
        for score, detection in method.detection.get(known, {}).items()
    ]
    if not rows:
        return []
    return [
        "## Unknown inputs",
        "How well a score separates unknown inputs (the positives) from those of the test set.",
        _table(("data", "method", "score", *map(label, ("auroc", "aupr", "fpr95"))), rows),
    ]


def _shifts(methods: Sequence[MethodScores], kind: str, title: str) -> list[str]:
    parts: list[str] = []
    for name in dict.fromkeys(name for method in methods for name in getattr(method, kind)):
        shifts: dict[str, Shift] = {
            method.name: getattr(method, kind)[name] for method in methods if name in getattr(method, kind)
        }
        first = next(iter(shifts.values()))
        for metric in first.metrics:
            rows = [
                (method, *(number(entry.value) for entry in shift.metrics[metric]))
                for method, shift in shifts.items()
                if metric in shift.metrics
            ]
            head = (label(metric), *(f"{strength:.3g}" for strength in first.strengths))
            parts += [f"**{name}**, {label(metric)} by strength", _table(head, rows)]
    return [f"## {title}", *parts] if parts else []


def _coverage(report: Results) -> list[str]:
    if not report.coverage:
        return []
    head = list(report.coverage[0])
    return ["## Weights", _table(head, [[row.get(key, "") for key in head] for row in report.coverage])]


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    names = list(head)
    return "\n".join([line(names), line("---" for _ in names), *map(line, rows)])
