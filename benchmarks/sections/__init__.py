"""The sections of the benchmark, one file each: `measure(bench)` writes records to the bench's journal."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.cases import Bench
from benchmarks.sections import agreement, diag, fits, growth, last, learning, linear, predictives, single, tuning

SECTIONS: dict[str, Callable[[Bench], None]] = {
    "fits": fits.measure,
    "predictives": predictives.measure,
    "single": single.measure,
    "diag": diag.measure,
    "last": last.measure,
    "tuning": tuning.measure,
    "learning": learning.measure,
    "linear": linear.measure,
    "agreement": agreement.measure,
    "growth": growth.measure,
}
