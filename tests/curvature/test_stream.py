"""What a pass over the data is made of: pieces with labels, totals, the choice of the curvature, what restarts it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import peewit as pw
from fitting import classes, normal
from peewit.curvature.choice import KindChoice
from peewit.curvature.kinds import GGN, Auto, Hessian, MonteCarlo
from peewit.curvature.pieces import Pieces, read_ahead
from peewit.curvature.restart import PassRestart
from peewit.curvature.totals import Totals
from peewit.likelihoods import Form
from peewit.network.batches import Batches
from peewit.network.nests import count
from peewit.runtime.memory import Budget

CPU = torch.device("cpu")


def pieces_of(data: Any, size: int, outputs: int = 3) -> Pieces:
    """Of a network whose examples take 1,000 bytes each, for a budget of so many examples."""
    network: Any = SimpleNamespace(
        cost=lambda inputs: 1_000, knowledge=SimpleNamespace(shape=lambda inputs: (outputs,))
    )
    budget = Budget(7_000 * size)
    return Pieces(data=Batches(data, CPU), likelihood=pw.Categorical(), network=network, budget=budget, form=None)


def sizes(pieces: Pieces) -> list[int]:
    """Of the pieces of one pass."""
    return [count(piece.inputs) for piece in pieces.pass_over("a test")]


def test_small_batches_are_put_together_and_large_ones_cut() -> None:
    """Up to the budget, in pieces as even as they can be; every pass has the same ones."""
    x, y = normal(20, 2), classes(3, 20)
    batches = [(x[start : start + 4], y[start : start + 4]) for start in range(0, 20, 4)]
    pieces = pieces_of(batches, 8)
    assert sizes(pieces) == sizes(pieces) == [8, 8, 4]
    assert sizes(pieces_of((x, y), 6)) == [5, 5, 5, 5]
    found = list(pieces_of(batches, 8).pass_over("a test"))
    assert torch.equal(torch.cat([piece.inputs for piece in found]), x)
    assert torch.equal(torch.cat([piece.labels.y for piece in found])[:, 0], y)


def test_which_labels_are_ignored_and_which_are_wrong() -> None:
    """Pieces know whether their batch has ignored labels; a wrong one is named by its place in the data."""
    x, y = normal(12, 2), classes(3, 12)
    ignored = y.clone()
    ignored[7] = -100
    found = pieces_of([(x[:6], ignored[:6]), (x[6:], ignored[6:])], 6).pass_over("a test")
    assert [piece.ignored for piece in found] == [False, True]
    wrong = y.clone()
    wrong[9] = 3
    with pytest.raises(pw.PeewitError, match=r"At example 9, in batch 1 \(examples 6 to 11, counted from 0\)"):
        sizes(pieces_of([(x[:6], wrong[:6]), (x[6:], wrong[6:])], 6))


def test_items_are_fetched_ahead() -> None:
    """One by one, each before the one in front of it is worked on."""
    log: list[str] = []

    def items() -> Iterator[int]:
        for number in range(3):
            log.append(f"fetch {number}")
            yield number

    for number in read_ahead(items()):
        log.append(f"use {number}")
    assert log == ["fetch 0", "fetch 1", "use 0", "fetch 2", "use 1", "use 2"]


def test_totals_of_two_data_sets_and_of_two_passes() -> None:
    """They add up; another energy in a second pass is said."""
    form = Form(0, (3,))
    first = Totals(examples=10, scalars=10.0, energy=5.0, rest=1.0, form=form)
    both = first + Totals(examples=2, scalars=4.0, energy=0.5, rest=0.25)
    assert both == Totals(examples=12, scalars=14.0, energy=5.5, rest=1.25, form=form)
    like = torch.zeros(1)
    first.compare(Totals(examples=10, energy=5.0 + 1e-5, rest=1.0), like)
    with pytest.warns(UserWarning, match="energy was 5 in the first pass over the data and 5.1"):
        first.compare(Totals(examples=10, energy=5.1, rest=1.0), like)


def test_the_kind_of_curvature_is_chosen_by_the_first_batch() -> None:
    """A later one for which the exact curvature is too expensive begins the pass again."""
    small, large = Form(0, (3,)), Form(0, (100,))
    choice = KindChoice(Auto())
    assert choice.of(small, pw.Categorical()) == GGN() == choice.kind and "at most 64" in choice.reason
    with pytest.raises(PassRestart, match="exact would take 99 probes per example, which was seen"):
        choice.of(large, pw.Categorical())
    assert choice.of(small, pw.Categorical()) == MonteCarlo(1)
    assert KindChoice(GGN()).of(large, pw.Categorical()) == GGN()
    with pytest.raises(pw.PeewitError, match="has no factor"):
        KindChoice(Hessian()).of(small, pw.Categorical())
