"""What a check found: a sentence, with advice and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Severity = Literal["fine", "note", "warning", "problem"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One question about a trained network with its answer, advice, and the numbers behind it.

    Attributes:
        topic: The question in one word, such as "fit", "mode", "evidence" or "rounding".
        severity: "fine", "note", "warning", or "problem", which has to be mended before predictions can be used.
        sentence: The answer.
        advice: What to do about it; "" where there is nothing to do.
        numbers: Numbers behind the answer, by name.

    Example:
        >>> finding = la.diagnose((x, y))["fit"]
        >>> finding.topic, finding.severity, finding.sentence[:11]
        ('fit', 'fine', 'The network')
    """

    topic: str
    severity: Severity
    sentence: str
    advice: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)

    def __str__(self) -> str:
        """Two lines at most."""
        lines = [f"[{self.severity}] {self.topic}: {self.sentence}"]
        return "\n".join([*lines, f"    What to do: {self.advice}"] if self.advice else lines)


def fine(topic: str, sentence: str, numbers: Mapping[str, float]) -> Finding:
    """Nothing to do."""
    return Finding(topic=topic, severity="fine", sentence=sentence, numbers=numbers)


def note(topic: str, sentence: str, advice: str, numbers: Mapping[str, float] | None = None) -> Finding:
    """Something to know."""
    return Finding(topic=topic, severity="note", sentence=sentence, advice=advice, numbers=numbers or {})


def warning(topic: str, sentence: str, advice: str, numbers: Mapping[str, float]) -> Finding:
    """Something to mend."""
    return Finding(topic=topic, severity="warning", sentence=sentence, advice=advice, numbers=numbers)


def problem(topic: str, sentence: str, advice: str, numbers: Mapping[str, float]) -> Finding:
    """Something to mend before anything else is asked."""
    return Finding(topic=topic, severity="problem", sentence=sentence, advice=advice, numbers=numbers)
