"""Dense curvature in pieces, against matrices in float64: sums by stripes, checks, masks, precisions and diagonals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import peewit as pw
from fitting import normal
from known_batches import ROOM, batch_of, source_of
from peewit.curvature.structures import common, dense_curvature, dense_sums, grams, rounding
from peewit.curvature.structures.dense_curvature import DenseCurvature
from peewit.curvature.structures.dense_sums import DenseSums, measure_groups
from peewit.jacobians.explicit import Explicit
from peewit.network.finite import NotFiniteCurvature
from peewit.runtime.memory import Budget
from peewit.weights.groups import Groups
from peewit.weights.ranges import WeightRange
from peewit.weights.space import Space
from structure_numbers import close

A, B, C = WeightRange("m.weight", 0, 4), WeightRange("m.bias", 0, 2), WeightRange("n.weight", 0, 3)
SPACE = Space(("m.weight", "m.bias", "n.weight"), (torch.Size([2, 2]), torch.Size([2]), torch.Size([3])))
MASK = torch.tensor([True, False, True, True, False, True, True, True, False])


def positive(size: int, seed: int = 1) -> Tensor:
    """(n, n): positive definite."""
    rows = normal(size + 2, size, seed=seed)
    return rows.T @ rows


# Sums


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 13, 20])
def test_symmetric_sums_by_stripes(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower blocks in place, and the others by `mirrored`; with a gradient all at once and another tensor."""
    monkeypatch.setattr(grams, "STRIPE", 3)
    rows, before = normal(5, size), positive(size, 3)
    total = before.clone()
    made = grams.add_outer(grams.add_outer(total, rows), 2 * rows)
    assert made is total
    close(grams.mirror(made), before + 5 * rows.T @ rows)
    for first, second in ((before.clone().requires_grad_(), rows), (before.clone(), rows.clone().requires_grad_())):
        made = grams.add_outer(first, second)
        assert made is not first and made.requires_grad and grams.mirror(made) is made
        close(made, before + rows.T @ rows)
        close(first.detach(), before)
    monkeypatch.setattr(grams, "STRIPE", 1000)
    for stripes in (1, 4):
        monkeypatch.setattr(grams, "STRIPES", stripes)
        close(grams.mirror(grams.add_outer(before.clone(), rows)), before + rows.T @ rows)


def test_scaled_matrices_with_a_diagonal() -> None:
    """A new matrix, also where a gradient flows through one of the three."""
    matrix, scale, diagonal = positive(4), torch.tensor(3.0, dtype=torch.float64), normal(4)
    expected = 3 * matrix + torch.diag(diagonal)
    before = matrix.clone()
    close(dense_curvature.add_diagonal(matrix, scale, diagonal), expected)
    close(matrix, before)
    for place in range(3):
        given = [each.clone().requires_grad_(number == place) for number, each in enumerate((matrix, scale, diagonal))]
        made = dense_curvature.add_diagonal(given[0], given[1], given[2])
        close(made, expected)
        slope = torch.autograd.grad(made.square().sum(), given[place])[0]
        close(slope, [6 * expected, 2 * (expected * matrix).sum(), 2 * expected.diagonal()][place])


@pytest.mark.parametrize("room", [ROOM, Budget(1)])
@pytest.mark.parametrize("masked", [False, True])
def test_outer_products_of_a_group(masked: bool, room: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over probes and examples, of all its weights side by side; one that has no Jacobian has zeros."""
    monkeypatch.setattr(grams, "CHUNK", 4)
    half, later, absent = WeightRange("n.weight", 4, 6), WeightRange("n.weight", 2, 6), WeightRange("m.bias", 1, 3)
    mask = torch.tensor([True, False, True, True, False, True, True, False, True, True]) if masked else None
    first, second = normal(2, 3, 4), normal(2, 3, 2, seed=2)
    found: dict[WeightRange, Any] = {A: Explicit(first, room), half: Explicit(second, room)}
    rows = torch.cat([first, torch.zeros(2, 3, 2), torch.zeros(2, 3, 2), second], 2).flatten(0, 1)
    rows = rows if mask is None else rows[:, mask]
    made = dense_sums.add_gram(None, found, (A, absent, later), mask, torch.float32)
    assert made is not None
    close(grams.mirror(made), rows.T @ rows)
    again = dense_sums.add_gram(made, found, (A, absent, later), mask, torch.float32)
    assert again is not None
    close(grams.mirror(again), 2 * rows.T @ rows)
    assert dense_sums.add_gram(None, found, (B,), None, torch.float32) is None
    kept = torch.ones(2, 2)
    assert dense_sums.add_gram(kept, found, (B,), None, torch.float32) is kept
    narrow = {A: Explicit(first.float(), room)}
    wide = first.float().double().flatten(0, 1)
    made = dense_sums.add_gram(None, narrow, (A,), None, torch.float64)
    assert made is not None
    close(grams.mirror(made), wide.T @ wide)
    made = dense_sums.add_gram(None, narrow, (A,), None, torch.float32)
    assert made is not None and made.dtype == torch.float64


def test_groups_of_modules() -> None:
    """A weight with its bias; all of them for a full matrix, which alone takes chosen elements."""
    assert pw.Block().groups(SPACE) == [(A, B), (C,)]
    assert not pw.Block().masks and pw.Full().masks
    sums = DenseSums({(A, B): positive(6), (C,): positive(3)})
    pw.Block().check(sums, SPACE)
    with pytest.raises(ValueError, match=r"'m.weight, m.bias' is not a block of this network"):
        pw.Full().check(sums, SPACE)
    with pytest.raises(ValueError, match=r"'m.weight, m.bias, n.weight' is not a block of this network"):
        pw.Block().check(DenseSums({(A, B, C): positive(9)}), SPACE)
    pw.Full().check(DenseSums({(A, B, C): positive(9)}), SPACE)


def batches_of(*sizes: int, dtype: torch.dtype = torch.float64, chunks: int = 2) -> tuple[list[Any], Tensor]:
    """Batches of three probes in chunks, and all of their rows (n, 9)."""
    made, rows = [], []
    for number, size in enumerate(sizes):
        own = normal(3, size, 9, seed=number + 1).to(dtype)
        rows.append(own.flatten(0, 1))
        parts = [own] if chunks == 1 else [own[:2], own[2:]]
        found = [
            {A: Explicit(each[..., :4], ROOM), B: Explicit(each[..., 4:6], ROOM), C: Explicit(each[..., 6:], ROOM)}
            for each in parts
        ]
        made.append(batch_of(size, *found, dtype=dtype))
    return made, torch.cat(rows)


def test_dense_sums_of_batches() -> None:
    """One matrix for each group, or for the chosen elements of all; later data are added to earlier."""
    batches, rows = batches_of(5, 4)
    matrix = rows.T @ rows
    made = pw.Block().measure(source_of(*batches, space=SPACE))
    assert made.mask is None and set(made.matrices) == {(A, B), (C,)}
    close(made.matrices[(A, B)], matrix[:6, :6])
    close(made.matrices[(C,)], matrix[6:, 6:])
    more = pw.Block().more(source_of(*batches_of(5, 4)[0], space=SPACE), made)
    close(more.matrices[(A, B)], 2 * matrix[:6, :6])
    close(made.matrices[(A, B)], matrix[:6, :6])
    space = replace(SPACE, mask=MASK)
    full = pw.Full().measure(source_of(*batches, space=space))
    assert full.mask is MASK
    close(full.matrices[(A, B, C)], matrix[MASK][:, MASK])
    more = pw.Full().more(source_of(*batches_of(5, 4)[0], space=space), full)
    close(more.matrices[(A, B, C)], 2 * matrix[MASK][:, MASK])
    other = DenseSums({(C,): positive(3)}).after(DenseSums({(A, B): positive(6)}))
    assert set(other.matrices) == {(A, B), (C,)}


@pytest.mark.parametrize("at_once", [True, False])
def test_dense_products_in_float64(at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those in which float32 would change variances, the first batch's made again; the others are rounded."""
    given: list[float] = []

    def amplified(matrix: Tensor, ridge: Tensor, before: Tensor | None) -> Tensor:
        given.extend(ridge.tolist())
        return torch.tensor(1e9 if matrix.shape == (1, 6, 6) else 1.0)

    monkeypatch.setattr(rounding, "amplification", amplified)
    batches, rows = batches_of(5, 5, dtype=torch.float32, chunks=1 if at_once else 2)
    source = source_of(*batches, likelihood=SimpleNamespace(noise_precision=1e8), space=SPACE)
    made = pw.Block().measure(source)
    wide = rows.double()
    close(made.matrices[(A, B)], wide[:, :6].T @ wide[:, :6])
    assert made.matrices[(C,)].dtype == torch.float64
    torch.testing.assert_close(made.matrices[(C,)], wide[:, 6:].T @ wide[:, 6:], rtol=1e-5, atol=1e-5)
    assert given == pytest.approx([1e-14, 1e-14, 1e-11], rel=1e-6, abs=0)  # a thousandth, of a thousand times the data
    assert [batch.probes.calls for batch in batches] == [1 if at_once else 2, 1]


def test_later_batches_stay_in_dense_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although they show that products of those to come are better in float64."""
    errors = iter([0.0, 0.05, 0.0])
    monkeypatch.setattr(rounding, "amplification", lambda matrix, ridge, before: torch.tensor(next(errors) / 4e-8 / 3))
    batches, rows = batches_of(2, 6, 1, dtype=torch.float32)
    source = source_of(*batches, likelihood=SimpleNamespace(noise_precision=1e8))
    made = measure_groups(source, [(A, B, C)])
    wide = rows.double()
    torch.testing.assert_close(made.matrices[(A, B, C)], wide.T @ wide, rtol=1e-5, atol=1e-4)
    assert next(errors, None) is None


def test_dense_sums_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where float32 does not show and earlier sums are not in float64, or where it came too late."""
    large = 0.0
    monkeypatch.setattr(rounding, "amplification", lambda matrix, ridge, before: torch.tensor(large))
    groups = [(A, B), (C,)]
    made = measure_groups(source_of(*batches_of(5, dtype=torch.float32)[0]), groups)
    assert {value.dtype for value in made.matrices.values()} == {torch.float32}
    earlier = DenseSums({(A, B): positive(6).float(), (C,): positive(3)})
    made = measure_groups(source_of(*batches_of(5, dtype=torch.float32)[0]), groups, None, earlier)
    assert [made.matrices[group].dtype for group in groups] == [torch.float32, torch.float64]
    strong = {"likelihood": SimpleNamespace(noise_precision=1e8), "one_shot": True}
    batches, _ = batches_of(5, 4, dtype=torch.float32)
    assert measure_groups(source_of(*batches, **strong), groups).matrices[(C,)].dtype == torch.float64

    def late() -> Iterator[Any]:
        nonlocal large
        for number, batch in enumerate(batches):
            large = 1e9 * number
            yield batch

    assert measure_groups(source_of(batches=late(), **strong), groups).matrices[(C,)].dtype == torch.float32
    wide, rows = batches_of(5, 4)
    close(measure_groups(source_of(*wide), groups).matrices[(C,)], (rows.T @ rows)[6:, 6:])


def test_negative_eigenvalues_are_dropped() -> None:
    """The rest of the matrix stays, with its mask."""
    vectors = torch.linalg.qr(normal(4, 4))[0]
    values = torch.tensor([-2.0, -1e-3, 0.5, 3.0], dtype=torch.float64)
    made = DenseSums({(A,): (vectors * values) @ vectors.T}, MASK).clip()
    close(made.matrices[(A,)], (vectors * values.clamp(min=0)) @ vectors.T)
    assert made.mask is MASK


def test_dense_sums_that_are_refused() -> None:
    """Of other elements, other groups or other sizes; parts of weights have theirs."""
    words = "The curvature was measured over other elements of the weights"
    chosen = replace(SPACE, mask=MASK)
    group = (A, B, C)
    good = DenseSums({group: positive(6)}, MASK)
    good.check([group], chosen)
    for sums, space in (
        (good, SPACE),
        (DenseSums({group: positive(9)}), chosen),
        (good, replace(SPACE, mask=~MASK)),
    ):
        with pytest.raises(ValueError, match=words):
            sums.check([group], space)
    with pytest.raises(ValueError, match=r"'m.weight, m.bias, n.weight' has shape \(9, 9\); expected \(6, 6\)"):
        DenseSums({group: positive(9)}, MASK).check([group], chosen)
    half = (WeightRange("m.weight", 1, 4), B)
    DenseSums({half: positive(5)}).check([half], SPACE)
    with pytest.raises(ValueError, match=r"The curvature of 'm.weight, m.bias' has shape \(4, 4\); expected \(5, 5\)"):
        DenseSums({half: positive(4)}).check([half], SPACE)


@pytest.mark.parametrize("masked", [False, True])
def test_weights_that_were_never_used_leave(masked: bool) -> None:
    """Their rows and columns; groups of which nothing is left, too."""
    half = WeightRange("m.weight", 1, 4)
    mask = torch.tensor([True, False, True, True, False, True, True, False]) if masked else None
    matrix = positive(8)
    matrix = matrix if mask is None else matrix[mask][:, mask]
    sums = DenseSums({(half, B, C): matrix}, mask)
    made = sums.of_used(SPACE)
    assert set(made) == {(half, B, C)} and torch.equal(made[(half, B, C)], matrix)
    left = SPACE.only(["m.weight", "n.weight"])
    keep = torch.tensor([0, 1, 3, 4]) if masked else torch.tensor([0, 1, 2, 5, 6, 7])
    made = sums.of_used(left)
    assert set(made) == {(half, C)} and torch.equal(made[(half, C)], matrix[keep][:, keep])
    assert sums.of_used(SPACE.only([])) == {}


@pytest.mark.parametrize("masked", [False, True])
def test_weights_without_finite_curvature_are_named(masked: bool) -> None:
    """By the diagonal where that shows them, else by their rows."""
    mask = torch.tensor([True, False, True, True, False, True, True, False]) if masked else None
    half = WeightRange("m.weight", 1, 4)
    place = 2 if masked else 3  # the first element of the bias
    for number in (torch.nan, torch.inf):
        matrix = positive(8)
        matrix = matrix if mask is None else matrix[mask][:, mask]
        matrix[place, place] = matrix[place, 0] = matrix[0, place] = number
        with pytest.raises(NotFiniteCurvature, match=r"The curvature of 'm.bias' holds NaN or Inf"):
            DenseSums({(half, B, C): matrix}, mask).of_used(SPACE)
        matrix[place, place] = 1.0
        matrix[0, place] = 1.0
        with pytest.raises(NotFiniteCurvature, match=r"The curvature of 'm.bias' holds NaN or Inf"):
            DenseSums({(half, B, C): matrix}, mask).of_used(SPACE)
    DenseSums({(half, B, C): positive(8)}).of_used(SPACE)


# Curvature


def curvature_of(masked: bool) -> tuple[DenseCurvature, Tensor]:
    """Two groups, the later first, or the chosen elements of all weights; and the whole matrix."""
    if masked:
        matrix = positive(6)
        return DenseCurvature({(A, B, C): matrix}, replace(SPACE, mask=MASK), "words"), matrix
    first, second = positive(6), positive(3, 2)
    return DenseCurvature({(C,): second, (A, B): first}, SPACE, "words"), torch.block_diag(first, second)


@pytest.mark.parametrize("masked", [False, True])
def test_dense_precisions(masked: bool) -> None:
    """`scale H + diag(delta)`, as products with vectors."""
    made, matrix = curvature_of(masked)
    delta = torch.arange(1.0, len(matrix) + 1).double()
    precision = made.precision(delta, torch.tensor(3.0, dtype=torch.float64))
    vector = normal(len(matrix))
    close(precision.mv(vector), 3 * matrix @ vector + delta * vector)
    assert precision.blocks[0].mask is made.space.mask
    assert made.elementwise and made.approximation("m.bias") == "words"


@pytest.mark.parametrize("masked", [False, True])
def test_dense_diagonals(masked: bool) -> None:
    """In the order of the weights; with a floor for each tensor on its own."""
    made, matrix = curvature_of(masked)
    sizes = (3, 1, 2) if masked else (4, 2, 3)
    plain = made.diag()
    close(plain, matrix.diagonal())
    pieces = [common.apply_floor(each, 0.9) for each in matrix.diagonal().split(sizes)]
    close(made.diag(0.9), common.fill_zeros(torch.cat(pieces), 0.9))
    for own in made.matrices.values():
        own.zero_()
    some = next(iter(made.matrices.values()))
    some[0, 0], some[1, 1], some[2, 2] = 2.0, 3.0, 4.0
    expected = torch.full((len(matrix),), 0.1 * 9.0 / len(matrix), dtype=torch.float64)
    expected[slice(0, 3) if masked else slice(6, 9)] = torch.tensor([2.0, 3.0, 4.0]).double()
    close(made.diag(0.1), expected)
    some[2, 2] = some[1, 1] = 0.0
    assert made.diag().tolist().count(0.0) == len(matrix) - 1
    tiny = 1e-26
    some[-1, -1] = some[0, 0] = 0.0
    next(reversed(made.matrices.values()))[0, 0], some[-1, -1] = 1.0, tiny
    assert tiny in made.diag().tolist() and tiny not in made.diag(0.1).tolist()


@pytest.mark.parametrize("masked", [False, True])
def test_dense_eigenvalues(masked: bool) -> None:
    """Of each matrix, relative to a base or not; none where a group has several precisions."""
    made, matrix = curvature_of(masked)
    size = len(matrix)
    one = Groups.of(torch.zeros(size, dtype=torch.long), 1)
    base = torch.arange(1.0, size + 1).double()
    for own in (None, base):
        found = made.spectrum(one, own)
        assert found is not None
        root = torch.ones(size).double() if own is None else own.rsqrt()
        scaled = root[:, None] * matrix * root
        for place in (slice(0, 6), slice(6, None)):
            close(found[place], torch.linalg.eigvalsh(scaled[place, place]))
    numbers = torch.zeros(size, dtype=torch.long)
    numbers[0] = 1
    assert made.spectrum(Groups.of(numbers, 2)) is None
    if not masked:
        numbers = torch.tensor([0] * 6 + [1] * 3)
        assert made.spectrum(Groups.of(numbers, 2)) is not None
    for peak, own in zip(made.peaks(), made.matrices.values(), strict=True):
        close(peak.largest, own.square().sum().sqrt())
        assert peak.dtype == torch.float64
