"""What a pass over the data is made of: pieces with labels, totals, the choice of the curvature, what restarts it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import peewit as pw
from environment import DEVICE
from fitting import built, classes, normal
from peewit.curvature.choice import KindChoice
from peewit.curvature.kinds import GGN, Auto, Hessian, MonteCarlo
from peewit.curvature.pieces import Pieces, read_ahead
from peewit.curvature.totals import Totals
from peewit.likelihoods import Form
from peewit.network.batches import Batches
from peewit.network.nests import count
from peewit.runtime.memory import Budget
from tables import moved

CPU = torch.device("cpu")


def pieces_of(data: Any, size: int, *outputs: int) -> Pieces:
    """Of a network whose examples take 1,000 bytes each, for a budget of so many examples."""
    network: Any = SimpleNamespace(
        cost=lambda inputs: 1_000, knowledge=SimpleNamespace(shape=lambda inputs: outputs or (3,))
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


def test_a_pass_leaves_no_trace_in_the_pieces() -> None:
    """Where the classes are is asked in every pass anew, unless it is told what an earlier one found."""
    pieces = pieces_of((normal(4, 2), classes(3, 4, 3)), 4, 3, 3)
    for _ in range(2):
        with pytest.warns(UserWarning, match="fit with the classes on axis 1"):
            (found,) = pieces.pass_over("a test")
    (again,) = pieces.pass_over("a test", form=found.labels.form)
    assert pieces.form is None and again.labels.form == found.labels.form


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
    first = KindChoice(Auto()).after(small, pw.Categorical())
    assert first.kind == GGN() and "at most 64" in first.reason
    assert first.after(small, pw.Categorical()) == first
    later = first.after(large, pw.Categorical())
    assert later.kind == MonteCarlo(1) and "exact would take 99 probes per example" in later.reason
    assert later.after(small, pw.Categorical()) == later
    assert KindChoice(GGN()).after(large, pw.Categorical()) == KindChoice(GGN())
    with pytest.raises(pw.PeewitError, match="has no factor"):
        KindChoice(Hessian()).after(small, pw.Categorical())


def test_a_fit_begins_again_where_a_later_batch_has_too_many_probes() -> None:
    """All batches are then measured alike, and one that cannot come again is said to be needed."""
    model = built(nn.Linear(3, 4)).to(DEVICE)
    batches = [(normal(5, length, 3, seed=length), classes(4, 5, length)) for length in (2, 30)]
    moved_batches = [(moved(x), moved(y)) for x, y in batches]
    likelihood = pw.Categorical(axis=-1)
    la = pw.fit(model, moved_batches, likelihood, structure="diag")
    assert la.coverage().curvature == "Monte Carlo Fisher with 1 sample: exact would take 90 probes per example"
    asked = pw.fit(model, moved_batches, likelihood, structure="diag", curvature="fisher")
    assert torch.equal(la.precision.variance(), asked.precision.variance())
    with pytest.raises(pw.PeewitError, match=r"curvature='auto': .*, which was seen only in a later batch"):
        pw.fit(model, iter(moved_batches), likelihood, structure="diag")
