"""What a trace and warnings of tuning say."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from peewit.posterior.trace import Trace, TuningStep
from peewit.tuning.by_evidence import complaints, list_groups
from peewit.tuning.profile import Hyperparameters


def steps_of(values: list[float], **more: Any) -> list[TuningStep]:
    """Steps of two groups with some values."""
    return [
        TuningStep(
            value=value,
            precision=torch.tensor([place + 1.0, 2.0]),
            noise=0.5 + place,
            temperature=1.0 + 0.5 * place,
            gamma=None,
            **more,
        )
        for place, value in enumerate(values)
    ]


def test_a_trace_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best step with its settings, more or less being better; steps without a number are never the best."""
    told = ["One.", "Two."]
    trace = Trace.of("grid", "validation NLL", ("a", "b"), steps_of([3.0, 1.5, math.nan, 2.0]), "why", False, told)
    assert trace.best == 1 and len(trace) == 4 and trace.effective_dimensions is None and trace.products == ()
    assert repr(trace) == (
        "Trace(grid: 4 steps, not converged: why)\n  validation NLL 3 -> 1.5\n  precision: a 2, b 2\n  noise 1.5\n"
        "  temperature 1.5\n  warning: One.\n  warning: Two."
    )
    more = {"decrement": 0.1, "gradient": 0.2, "products": 7.0}
    trace = Trace.of("evidence", "log evidence", ("a", "b"), steps_of([3.0, 1.5], **more), "why", True, [])
    assert trace.best == 0 and trace.decrements == (0.1, 0.1) and trace.gradients == (0.2, 0.2)
    assert repr(trace) == (
        "Trace(evidence: 2 steps, converged: why)\n  log evidence 3 -> 3\n  precision: a 1, b 2\n"
        "  7 products over the data\n  noise 0.5"
    )
    assert repr(trace.with_warning("Three.")).endswith("\n  warning: Three.")
    monkeypatch.setattr("peewit.posterior.trace.KEPT", 6)
    assert len(Trace.of("grid", "log evidence", ("a", "b"), steps_of([1.0] * 3), "", True, []).precisions) == 3
    cut_short = Trace.of("grid", "log evidence", ("a", "b"), steps_of([1.0] * 4), "", True, [])
    assert cut_short.precisions[:, 0].tolist() == [1.0, 4.0] and len(cut_short) == 4
    assert "precision" not in repr(cut_short)
    for groups in (8, 9):
        names = [f"g{place}" for place in range(groups)]
        alone = [TuningStep(value=1.0, precision=torch.ones(1), noise=None, temperature=1.0, gamma=None)]
        monkeypatch.setattr("peewit.posterior.trace.KEPT", 100)
        assert ("  precision: g0 1, g1 1" in repr(Trace.of("grid", "log evidence", names, alone, "", True, []))) == (
            groups == 8
        )


def test_names_of_groups_in_warnings() -> None:
    """Three of them, and how many more."""
    names = ["a", "b", "c", "d", "e"]
    assert list_groups(names, torch.tensor([False, True, False, True, False])) == "'b', 'd'"
    assert list_groups(names, torch.tensor([True, True, True, False, False])) == "'a', 'b', 'c'"
    assert list_groups(names, torch.arange(5) > 0) == "'b', 'c', 'd' and 1 more groups"
    assert list_groups(names, torch.ones(5, dtype=torch.bool)) == "'a', 'b', 'c' and 2 more groups"


def test_warnings_about_precisions() -> None:
    """Without curvature, switched off, or at one of the limits; what was not free is not spoken of."""
    names = ["without", "off", "low", "high", "fine", "fixed"]
    place = Hyperparameters(torch.tensor([1.0, 0.01, 0.01, 100.0, 1.0, 100.0], dtype=torch.float64).log(), 0.0)
    gamma = torch.tensor([0.0, 9e-4, 1e-3, 2.0, 2.0, 0.0], dtype=torch.float64)
    free = torch.tensor([False, True, True, True, True, False, True])
    without = torch.tensor([True, False, False, False, False, False])
    asked: Any = SimpleNamespace(ends=(0.01, 100.0))
    assert complaints(names, place, gamma, free, without, asked) == [
        "The data say nothing about 'without': no curvature; the precision was left as it is.",
        "'off' switched off: less than 0.001 effective dimensions, so the prior alone holds it.",
        "The precision of 'high' is at the largest allowed, 100.",
        "The precision of 'low' is at the smallest allowed, 0.01.",
    ]
    inside = Hyperparameters(place.log_precision + torch.tensor([0, 0, 1.5e-9, -1.5e-9, 0, 0]).double(), 0.0)
    assert len(complaints(names, inside, gamma, free, without, asked)) == 2
    rounded_ = Hyperparameters(place.log_precision + torch.tensor([0, 0, 1e-10, -1e-10, 0, 0]).double(), 0.0)
    assert len(complaints(names, rounded_, gamma, free, without, asked)) == 4
    assert complaints(names, place, gamma + 1, torch.zeros(7, dtype=torch.bool), without & False, asked) == []
