"""Misreadings that were repaired, put back one at a time: random networks tell each of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

import repairs
from random_cases import KEPT
from random_checks import ALWAYS, failures, some_checks
from random_count import COUNT
from random_grammar import random_network

FEW = 12  # networks that have the step in question


@dataclass(frozen=True)
class Misreading:
    """What puts it back, the steps of the grammar that it concerns, and the networks kept because of it."""

    put_back: Callable[[pytest.MonkeyPatch], None]
    options: set[str]
    kept: tuple[str, ...]


MISREADINGS = {
    each.put_back.__name__: each
    for each in (
        Misreading(
            repairs.ways_around_a_use,
            {"autograd.grad inside", "energy and its gradient"},
            ("a gradient inside the forward pass", "an energy and its gradient"),
        ),
        Misreading(
            repairs.weights_in_other_strides,
            {"channels_last weights", "weights stored transposed"},
            ("channels_last weights", "linear weights stored transposed"),
        ),
        Misreading(
            repairs.mapped_distances,
            {"cdist to a buffer", "cdist to weights", "cdist with p = 1"},
            ("distances to prototypes",),
        ),
        Misreading(
            repairs.tables_changed_in_place,
            {"table scaled in place", "table relu_", "first row written"},
            (
                "a table of positions scaled in place",
                "a table of positions changed by relu_",
                "a table of positions with a row written",
            ),
        ),
        Misreading(repairs.tables_turned, {"table transposed"}, ("a table of positions added as a transpose",)),
        Misreading(
            repairs.sums_in_parts,
            {"add_ to a slice", "add_ to a column", "add_ to a transpose"},
            (
                "a weight added in place to a slice",
                "a weight added in place to a column",
                "a weight added in place to a transpose",
            ),
        ),
        Misreading(
            repairs.sums_in_another_order,
            {"+= to a permuted base"},
            ("a weight added in place to a permuted base",),
        ),
        Misreading(
            repairs.places_in_memory,
            {"channels_last weights", "weights stored transposed"},
            ("weights stored transposed in a full posterior",),
        ),
        Misreading(repairs.complex_views, {"complex gain"}, ("a complex gain",)),
        Misreading(repairs.complex_products, {"real gain of a spectrum"}, ("a real gain of a spectrum",)),
    )
}


@pytest.mark.parametrize("verified", [True, False])
@pytest.mark.parametrize("name", MISREADINGS)
def test_kept_networks_notice_each_misreading(name: str, verified: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All that were kept because of it: by what the verification corrects, and without it by wrong numbers."""
    MISREADINGS[name].put_back(monkeypatch)
    if not verified:
        repairs.unverified(monkeypatch)
    assert all(failures(KEPT[kept], only=(*ALWAYS, "layouts")) for kept in MISREADINGS[name].kept)


@pytest.mark.parametrize("name", MISREADINGS)
def test_random_networks_notice_each_misreading(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of the first that have the step in question, by the checks that it gets."""
    options = MISREADINGS[name].options
    seeds = [seed for seed in range(COUNT) if options & set(random_network(seed).options)][:FEW]
    MISREADINGS[name].put_back(monkeypatch)
    assert any(failures(random_network(seed), only=some_checks(seed)) for seed in seeds)
