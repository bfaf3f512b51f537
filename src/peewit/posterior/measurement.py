"""What passes over the data left: sums, totals, and how they came about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..curvature.totals import Totals
from ..weights.space import Space

TABLES = ("rules", "timings")  # mappings that nobody may write to


@dataclass(frozen=True, eq=False, kw_only=True)
class Measurement:
    """Made by a fit, and by an update that adds later data; prior, noise and temperature do not change it."""

    asked: Space  # the weights that were asked for, unused ones included
    sums: Any  # the structure's, over all weights that were asked for: what files hold and later data are added to
    totals: Totals
    rules: Mapping[str, str]  # by parameter that was asked for: the rule that applied, "" for an unused one
    reason: str  # for the kind of curvature
    seed: int  # of drawn labels
    timings: Mapping[str, float]  # seconds

    def __post_init__(self) -> None:
        for name in TABLES:
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def __getstate__(self) -> dict[str, Any]:
        """For pickle and copy, which refuse read-only views."""
        return {**vars(self), **{name: dict(getattr(self, name)) for name in TABLES}}

    def __setstate__(self, fields: dict[str, Any]) -> None:
        vars(self).update(fields)
        self.__post_init__()
