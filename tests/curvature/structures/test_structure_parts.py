"""The pieces that structures are made of, each against dense matrices in float64: sums, sides, spectra, checks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from fitting import built, classes, fitted, measured, normal
from peewit.curvature.structures import common, eigen, grams, kron_curvature, kron_spectrum, sides
from peewit.curvature.structures.diag import Diag, DiagCurvature
from peewit.curvature.structures.factors import KronFactors, KronSums
from peewit.curvature.structures.sums import check_sums, join_sums
from peewit.jacobians.layout import Layout
from peewit.runtime.memory import budget
from peewit.weights.groups import Groups
from peewit.weights.ranges import WeightRange
from peewit.weights.space import Space
from tables import curvature_of, moved, relative

WEIGHT, BIAS = WeightRange("a.weight", 0, 12), WeightRange("a.bias", 0, 6)
LAYOUT = Layout.plain(2, 3, 2)


def close(one: Tensor, other: Tensor) -> None:
    """Equal but for rounding in float64."""
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def positive(groups: int, size: int, seed: int = 1) -> Tensor:
    """(G, n, n): positive definite."""
    rows = normal(groups, size + 2, size, seed=seed)
    return rows.mT @ rows


def space_of(**sizes: int) -> Space:
    """Vectors by name; two underscores stand for a dot."""
    return Space(tuple(name.replace("__", ".") for name in sizes), tuple(torch.Size([size]) for size in sizes.values()))


# What structures share


def test_sums_hold_what_they_are_given() -> None:
    """In place only where nothing is lost: no gradient, and no digits."""
    total, value = torch.ones(2), torch.full((2,), 2.0)
    assert common.add_to(total, value) is total and total.tolist() == [3.0, 3.0]
    wide = common.add_to(total, value.double())
    assert wide.dtype == torch.float64 and wide.tolist() == [5.0, 5.0] and total.tolist() == [3.0, 3.0]
    assert common.add_to(total.double(), value).dtype == torch.float64
    for one, other in ((total.clone().requires_grad_(), value), (total, value.clone().requires_grad_())):
        made = common.add_to(one, other)
        assert made is not one and made.requires_grad and made.tolist() == [5.0, 5.0]
    sums: dict[str, Tensor] = {}
    common.accumulate(sums, "a", torch.ones(2, dtype=torch.float16))
    first = sums["a"]
    common.accumulate(sums, "a", torch.full((2,), 3.0, dtype=torch.float16))
    assert first.dtype == torch.float32 and first.tolist() == [1.0, 1.0] and sums["a"].tolist() == [4.0, 4.0]


def test_narrow_bases_are_made_once() -> None:
    """One for all who ask while the wide one is there; a basis that is differentiated is made anew."""
    basis = normal(1, 3, 3)
    narrow = common.narrow_basis(basis, torch.float32)
    assert narrow is not None and narrow.dtype == torch.float32 and common.narrow_basis(basis, torch.float32) is narrow
    half = common.narrow_basis(basis, torch.bfloat16)
    assert half is not None and half.dtype == torch.bfloat16
    assert common.narrow_basis(basis, torch.float64) is basis and common.narrow_basis(None, torch.float32) is None
    own = basis.clone().requires_grad_()
    made = common.narrow_basis(own, torch.float32)
    assert made is not None and made.requires_grad and own not in common.narrower


def test_ranges_that_are_refused() -> None:
    """By name and place."""
    own = space_of(a=5, b=4)
    common.check_parts([WeightRange("a", 0, 2), WeightRange("a", 2, 5), WeightRange("b", 0, 4)], own)
    for parts, words in (
        ([WeightRange("c", 0, 2)], "'c' is not one of the selected weights"),
        ([WeightRange("a", 0, 5), WeightRange("b", 0, 5)], "'b' has no range 0:5"),
        ([WeightRange("b", -1, 2)], "'b' has no range -1:2"),
        ([WeightRange("b", 2, 2)], "'b' has no range 2:2"),
        ([WeightRange("a", 2, 5), WeightRange("a", 0, 3)], r"ranges \(0, 3\) and \(2, 5\) of 'a' overlap"),
    ):
        with pytest.raises(ValueError, match=words):
            common.check_parts(parts, own)
    common.check_shape(torch.zeros(2, 3), "It", (3,), (2, 3))
    with pytest.raises(ValueError, match=r"It has shape \(2, 3\); expected \(3,\) or \(2, 2\)"):
        common.check_shape(torch.zeros(2, 3), "It", (3,), (2, 2))
    with pytest.raises(ValueError, match=r"It has dtype torch.int64; expected float32 or float64"):
        common.check_shape(torch.zeros(2, dtype=torch.long), "It", (2,))


def test_ranges_in_one_vector() -> None:
    """Each at its place, twice added where it comes twice; weights outside are left out."""
    own = space_of(a=3, b=2)
    sums = {
        WeightRange("b", 0, 2): torch.tensor([4.0, 5.0]),
        WeightRange("c", 0, 1): torch.ones(1),
        WeightRange("a", 1, 3): torch.ones(2),
    }
    assert common.assemble_vector(sums, own).tolist() == [0.0, 1.0, 1.0, 4.0, 5.0]


def test_floors() -> None:
    """A share of a tensor's mean; rounding errors of a tensor beside others are zero; zeros take a share of all."""
    numbers = torch.tensor([-1.0, 0.0, 3.0, 6.0], dtype=torch.float64)
    assert common.apply_floor(numbers, 0.0).tolist() == [0.0, 0.0, 3.0, 6.0]
    assert common.apply_floor(numbers, 0.1).tolist() == pytest.approx([0.2, 0.2, 3.0, 6.0])
    assert common.apply_floor(numbers, 1.0).tolist() == pytest.approx([2.0, 2.0, 3.0, 6.0])
    pieces = [torch.tensor(own, dtype=torch.float64) for own in ([100.0, 300.0], [1e-21, 3e-21], [1e-22] * 100)]
    assert [piece.tolist() for piece in common.clear_rounding(pieces)] == [[100.0, 300.0], [1e-21, 3e-21], [0.0] * 100]
    mixed = torch.tensor([0.0, 2.0, 4.0], dtype=torch.float64)
    assert common.fill_zeros(mixed, 0.1).tolist() == pytest.approx([0.2, 2.0, 4.0])
    assert common.fill_zeros(mixed, 0.0) is mixed and common.fill_zeros(torch.zeros(2), 0.1).tolist() == [1.0, 1.0]


def test_diagonals() -> None:
    """Precisions, floors and eigenvalues of chosen elements, and sums that are refused."""
    own = replace(space_of(a=3, b=2), mask=torch.tensor([True, False, True, False, True]))
    curvature = DiagCurvature(torch.tensor([1.0, 2.0, 3.0, 4.0, 0.0], dtype=torch.float64), own)
    delta = torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64)
    made = curvature.precision(delta, torch.tensor(2.0, dtype=torch.float64))
    close(made.mv(torch.ones(3, dtype=torch.float64)), torch.tensor([2.1, 6.2, 0.3], dtype=torch.float64))
    assert curvature.diag().tolist() == [1.0, 3.0, 0.0]
    assert curvature.diag(0.5).tolist() == pytest.approx([1.0, 3.0, 0.5 * 4.0 / 3])
    rounding = DiagCurvature(torch.tensor([1.0, 1.0, 1.0, 1e-30, 1e-30], dtype=torch.float64), replace(own, mask=None))
    assert rounding.diag()[-1] == 1e-30 and rounding.diag(0.5)[-1] == pytest.approx(0.5 * 3 / 5)
    groups = Groups.of(torch.zeros(3, dtype=torch.long), 1)
    assert curvature.spectrum(groups, torch.tensor([2.0, 2.0, 1.0])).tolist() == [0.5, 1.5, 0.0]
    for part, value, words in (
        (WeightRange("a", 0, 3), torch.tensor([1.0, -1e-3, 0.0]), "The diagonal of 'a' has negative numbers"),
        (WeightRange("a", 0, 3), torch.zeros(2), r"The diagonal of 'a' has shape \(2,\); expected \(3,\)"),
        (WeightRange("a", 1, 4), torch.zeros(3), "'a' has no range 1:4"),
    ):
        with pytest.raises(ValueError, match=words):
            Diag().check({part: value}, own)
    Diag().check({WeightRange("a", 1, 3): torch.zeros(2)}, own)


# Eigendecompositions


def failing(error: Callable[[], Exception] | None, also_wide: bool = False) -> Callable[..., Any]:
    """Torch's decomposition, but in float32 with an error, or without finite numbers."""
    eigh = torch.linalg.eigh

    def made(side: Tensor) -> Any:
        if side.dtype == torch.float64 and not also_wide:
            return eigh(side)
        if error is not None:
            raise error()
        values, vectors = eigh(side)
        return values * torch.tensor([1.0, torch.nan, 1.0]), vectors

    return made


@pytest.mark.parametrize("error", [None, lambda: RuntimeError("did not converge")])
def test_float64_where_float32_does_not_converge(error: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same eigenvalues and vectors, in the dtype of the side."""
    side = positive(2, 3).float()
    monkeypatch.setattr(torch.linalg, "eigh", failing(error))
    vectors, values = eigen.decompose_matrix(side, "a")
    assert vectors is not None and vectors.dtype == values.dtype == torch.float32
    torch.testing.assert_close((vectors * values[:, None]) @ vectors.mT, side)
    monkeypatch.setattr(torch.linalg, "eigh", failing(lambda: RuntimeError("no"), also_wide=True))
    with pytest.raises(ValueError, match="The curvature of 'a' could not be decomposed, in float64 either"):
        eigen.decompose_matrix(side, "a")
    monkeypatch.setattr(torch.linalg, "eigh", failing(torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError):
        eigen.decompose_matrix(side, "a")


def test_eigenvalues_in_float64_where_float32_does_not_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    """None negative; memory that ran out is said."""
    side, own = positive(1, 3).float() - 2 * torch.eye(3), torch.linalg.eigvalsh
    expected = own(side).clamp(min=0)
    torch.testing.assert_close(eigen.eigenvalues(side), expected)

    def broken(error: type[Exception]) -> Callable[[Tensor], Tensor]:
        def made(given: Tensor) -> Tensor:
            if given.dtype == torch.float32:
                raise error("no")
            return own(given)

        return made

    monkeypatch.setattr(torch.linalg, "eigvalsh", broken(RuntimeError))
    torch.testing.assert_close(eigen.eigenvalues(side), expected)
    monkeypatch.setattr(torch.linalg, "eigvalsh", broken(torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError):
        eigen.eigenvalues(side)


def test_sides_that_are_diagonal_or_single() -> None:
    """Without eigenvectors, and with the only one there is; negative numbers are zeros."""
    vectors, values = eigen.decompose_side(torch.tensor([[1.0, -2.0]]), "a")
    assert vectors is None and values.tolist() == [[1.0, 0.0]]
    vectors, values = eigen.decompose_side(torch.tensor([[[2.0]], [[-3.0]]]), "a")
    assert vectors is not None and vectors.tolist() == [[[1.0]], [[1.0]]] and values.tolist() == [[2.0], [0.0]]
    indefinite = torch.diag(torch.tensor([1.0, -1.0]))[None]
    assert eigen.decompose_side(indefinite, "a")[1].tolist() == [[0.0, 1.0]]
    with pytest.raises(ValueError, match="b"):
        eigen.decompose_sides([("a", indefinite), ("b", indefinite * torch.nan)])


def test_eigenvalues_of_many_sizes() -> None:
    """Each under its name, whatever others have its size."""
    blocks = {f"{size}.{place}": positive(1, size, seed=place)[0] for place, size in enumerate((3, 2, 3, 1, 2))}
    made = eigen.eigenvalues_meanwhile(blocks)()
    assert set(made) == set(blocks)
    for name, block in blocks.items():
        close(made[name], torch.linalg.eigvalsh(block))
    assert eigen.eigenvalues_meanwhile({})() == {}


class Streams:
    """Streams of a device that is not there: what waits for what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits: list[tuple[str, str]] = []
        self.kept: list[Tensor] = []
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.stream("here"))
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: self.stream("own"))
        monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: self.kept.append(tensor))

    def stream(self, name: str) -> Any:
        """One that notes what it waits for."""
        return SimpleNamespace(
            record_event=lambda: name, wait_event=lambda event: self.waits.append((name, event)), name=name
        )


def test_sides_on_streams_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the same as one by one, the largest first, and nobody reads before it is there."""
    streams = Streams(monkeypatch)
    sides = [(f"{place}", positive(1, size, seed=place)) for place, size in enumerate((2, 5, 3, 4, 6, 2, 3))]
    sides.append(("long", normal(1, 4).abs()))
    expected = [eigen.decompose_matrix(side, name) for name, side in sides]
    order: list[str] = []
    own = eigen.decompose_matrix
    monkeypatch.setattr(eigen, "decompose_matrix", lambda side, name: order.append(name) or own(side, name))
    assert not eigen.needs_stream(sides[0][1])
    monkeypatch.setattr(eigen, "needs_stream", lambda side: side.dim() == 3)
    monkeypatch.setattr(eigen, "STREAMS", 1)
    for found in (eigen.decompose_sides(sides), eigen.decompose_sides([sides[-1], sides[0]])):
        for (basis, values), (vectors, right) in zip(
            found, expected if len(found) > 2 else [expected[-1], expected[0]], strict=True
        ):
            close(values, right)
            assert (basis is None) == (vectors is None)
    assert order[:8] == ["4", "1", "3", "2", "6", "0", "5", "long"]
    assert len(streams.kept) == 14 and streams.waits == [("own", "here"), ("here", "own")]
    monkeypatch.setattr(eigen, "STREAMS", 3)
    streams.waits.clear()
    eigen.decompose_sides(sides)
    assert sorted(streams.waits) == [("here", "own")] * 3 + [("own", "here")] * 3
    streams.waits.clear()
    eigen.decompose_sides(sides[:2])
    assert len(streams.waits) == 4


def test_eigenvalues_while_others_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: in float64, and nobody reads before they are there."""
    streams = Streams(monkeypatch)
    blocks = {"a": positive(1, 3)[0].float().requires_grad_(), "b": positive(1, 2, seed=2)[0].float()}
    expected = {name: torch.linalg.eigvalsh(block.detach()).double() for name, block in blocks.items()}
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    found = eigen.eigenvalues_meanwhile(blocks)()
    monkeypatch.undo()
    for name, values in expected.items():
        assert found[name].dtype == torch.float64 and not found[name].requires_grad
        torch.testing.assert_close(found[name], values, rtol=1e-5, atol=1e-6)
    assert len(streams.kept) == 2 and sorted(streams.waits) == [("here", "own")] * 2 + [("own", "here")] * 2


# Kronecker blocks


def factors_of(inputs: Tensor, gradients: Tensor, count: float) -> KronFactors:
    """Sums over so many positions."""
    return KronFactors(inputs=inputs, gradients=gradients, count=count)


def spread(side: Tensor) -> Tensor:
    """(G, n, n)."""
    return torch.diag_embed(side) if side.dim() == 2 else side


def dense(rows: Tensor, columns: Tensor) -> Tensor:
    """(P, P): `rows (x) columns`, group by group."""
    pairs = zip(spread(rows), spread(columns), strict=True)
    return torch.block_diag(*(torch.kron(row.contiguous(), column.contiguous()) for row, column in pairs))


@pytest.mark.parametrize("flipped", [False, True])
def test_sides_of_one_orientation(flipped: bool) -> None:
    """Inputs by position; rows are the gradients' unless the weight is applied transposed."""
    inputs, gradients = positive(2, 2), positive(2, 3, seed=2)
    for count, divided in ((4.0, 4.0), (0.0, 1.0)):
        rows, columns = sides.sides({flipped: factors_of(inputs, gradients, count)})
        close(columns if not flipped else rows, inputs / divided)
        close(rows if not flipped else columns, gradients)


@pytest.mark.parametrize("straight", ["matrices", "diagonal rows", "diagonal columns", "diagonals"])
@pytest.mark.parametrize("turned", ["matrices", "diagonal rows", "diagonal columns", "diagonals"])
def test_sides_of_both_orientations(straight: str, turned: str) -> None:
    """Strengths add up, and shapes are averaged by them: one formula for each group, written out."""

    def made(kind: str, seed: int) -> tuple[Tensor, Tensor]:
        rows, columns = positive(2, 3, seed=seed), positive(2, 2, seed=seed + 1)
        rows = rows.diagonal(dim1=-2, dim2=-1) if kind in ("diagonal rows", "diagonals") else rows
        return rows, columns.diagonal(dim1=-2, dim2=-1) if kind in ("diagonal columns", "diagonals") else columns

    first, second = made(straight, 1), made(turned, 5)
    found = sides.sides(
        {False: factors_of(5 * first[1], first[0], 5.0), True: factors_of(2 * second[0], second[1], 2.0)}
    )
    for group in range(2):
        pairs = [(spread(rows)[group], spread(columns)[group]) for rows, columns in (first, second)]
        strengths = [float(rows.trace() * columns.trace()) for rows, columns in pairs]
        rows = sum(s / sum(strengths) * row / row.trace() for s, (row, _) in zip(strengths, pairs, strict=True))
        columns = sum(row.trace() * column for row, column in pairs)
        close(spread(found[0])[group], torch.as_tensor(rows))
        close(spread(found[1])[group], torch.as_tensor(columns))
    assert (found[0].dim() == 2) == (
        straight in ("diagonal rows", "diagonals") and turned in ("diagonal rows", "diagonals")
    )


def test_sides_of_an_orientation_without_gradients() -> None:
    """The other is all there is, and nothing at all is zero."""
    rows, columns = positive(2, 3), positive(2, 2, seed=2)
    nothing = factors_of(torch.zeros(2, 3, 3).double(), torch.zeros(2, 2, 2).double(), 0.0)
    found = sides.sides({False: factors_of(columns, rows, 1.0), True: nothing})
    close(dense(*found), dense(rows, columns))
    empty = factors_of(torch.zeros(2, 2, 2).double(), torch.zeros(2, 3, 3).double(), 0.0)
    assert all(bool((side == 0).all()) for side in sides.sides({False: empty, True: nothing}))


KINDS = ["matrices", "diagonal rows", "diagonal columns", "diagonals"]


def spectrum_of(kind: str) -> tuple[kron_spectrum.KronSpectrum, Tensor]:
    """A block of two groups of three rows and two columns, and its dense matrix."""
    rows, columns = positive(2, 3), positive(2, 2, seed=2)
    rows = rows.diagonal(dim1=-2, dim2=-1) if kind in ("diagonal rows", "diagonals") else rows
    columns = columns.diagonal(dim1=-2, dim2=-1) if kind in ("diagonal columns", "diagonals") else columns
    left, upper = eigen.decompose_side(rows, "a")
    right, lower = eigen.decompose_side(columns, "a")
    own = {False: factors_of(columns, rows, 1.0)}
    values = upper[:, :, None] * lower[:, None, :]
    return kron_spectrum.KronSpectrum(
        layout=LAYOUT, left=left, right=right, values=values, weight=None, factors=own
    ), dense(rows, columns)


def deltas() -> dict[str, Tensor]:
    """(G, O, I): precisions that a block can hold, by what they differ between."""
    rows, columns = 1 + normal(2, 3, 1, seed=7).abs(), 1 + normal(2, 1, 2, seed=8).abs()
    one = torch.full((2, 3, 2), 0.7, dtype=torch.float64)
    return {
        "one": one,
        "one number": torch.tensor(0.7, dtype=torch.float64).expand(2, 3, 2),
        "groups": torch.tensor([0.5, 2.0], dtype=torch.float64).reshape(2, 1, 1).expand(2, 3, 2).clone(),
        "rows": rows.expand(2, 3, 2),
        "columns": columns.expand(2, 3, 2).clone(),
        "product": rows * columns,
        "first row": one + torch.tensor([1.0, 0, 0]).double().reshape(1, 3, 1),
        "last column": one + torch.tensor([0, 1.0]).double().reshape(1, 1, 2),
    }


@pytest.mark.parametrize("delta", deltas())
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_under_priors_that_they_hold(kind: str, delta: str) -> None:
    """Products, solutions, determinants and relative eigenvalues against the dense matrix."""
    block, matrix = spectrum_of(kind)
    own = deltas()[delta]
    scale = torch.tensor(1.7)
    expected = 1.7 * matrix + torch.diag(own.flatten())
    identity = torch.eye(12, dtype=torch.float64)
    numbers = None if delta == "product" else own.mul(1e6).round().long()
    for given in (None, numbers):
        made = block.precision(own, scale, (WEIGHT,), given)
        torch.testing.assert_close(made.mv(identity), expected, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(made.solve(expected), identity, rtol=1e-6, atol=1e-6)
        assert float(made.logdet()) == pytest.approx(float(torch.logdet(expected)), rel=1e-6)
    found = block.eigenvalues(own, (WEIGHT,))
    root = own.flatten().rsqrt()
    close(found.sort().values, torch.linalg.eigvalsh(root[:, None] * matrix * root))
    close(block.eigenvalues(None, (WEIGHT,)).sort().values, torch.linalg.eigvalsh(matrix))


def test_blocks_under_priors_that_they_do_not_hold() -> None:
    """A product to six digits in float64 and five in float32; where gradients are wanted, rows or columns alone."""
    block, _ = spectrum_of("matrices")
    scale = torch.ones(())
    for dtype, digit in ((torch.float64, 1e-6), (torch.float32, 1e-5)):
        own = deltas()["product"].clone()
        own[1, 2, 1] *= 1 + 0.6 * digit
        block.precision(own.to(dtype), scale, (WEIGHT,))
        own[1, 2, 1] *= 1 + 0.9 * digit
        with pytest.raises(
            ValueError, match=r"different precisions inside 'a.weight' that are not the product.*; use a scalar"
        ):
            block.precision(own.to(dtype), scale, (WEIGHT,))
    with pytest.raises(ValueError, match=r"use Kron\(bias='separate'\), a scalar or layerwise"):
        block.precision(own, scale, (WEIGHT, BIAS))
    with pytest.raises(ValueError, match="not the product"):
        block.precision(deltas()["product"], scale, (WEIGHT,), torch.arange(12).reshape(2, 3, 2))
    corrected = replace(block, factors=None)
    assert corrected.sides is None and block.sides is not None
    for key, words in (
        ((WEIGHT,), "use structure='kron', or a scalar or layerwise prior"),
        ((WEIGHT, BIAS), "use EKFAC"),
    ):
        with pytest.raises(ValueError, match=words):
            corrected.precision(deltas()["rows"], scale, key)
    close(corrected.precision(deltas()["one"], scale, (WEIGHT,)).values, block.values + 0.7)
    close(corrected.eigenvalues(deltas()["one"], (WEIGHT,)), block.values.flatten() / 0.7)
    small = 1e-9 * deltas()["product"]
    small[0, 1, 1] *= 1.01
    with pytest.raises(ValueError, match="not the product"):
        block.precision(small, scale, (WEIGHT,))


@pytest.mark.parametrize("kind", KINDS)
def test_diagonals_of_blocks(kind: str) -> None:
    """By the factors or by the eigenvectors; a floor on each side, or on what they make."""
    block, matrix = spectrum_of(kind)
    expected = matrix.diagonal()
    for own in (block, replace(block, factors=None)):
        close(own.diagonal(0.0).flatten(), expected)
    assert block.sides is not None
    rows, columns = (common.apply_floor(spread(side).diagonal(dim1=-2, dim2=-1), 0.9) for side in block.sides)
    close(block.diagonal(0.9), rows[:, :, None] * columns[:, None, :])
    close(replace(block, factors=None).diagonal(0.9).flatten(), expected.maximum(0.9 * expected.mean()))


def test_peaks_of_blocks() -> None:
    """The largest eigenvalue, in the dtype of its eigenvectors; none of a diagonal or of single rows and columns."""
    block, matrix = spectrum_of("matrices")
    (peak,) = block.peaks((WEIGHT,))
    close(peak.largest, torch.linalg.eigvalsh(matrix)[-1])
    assert peak.parts == (WEIGHT,) and peak.dtype == torch.float64
    assert block.left is not None and block.right is not None
    for left, right in (
        (block.left.float(), block.right),
        (block.left, block.right.float()),
        (None, block.right.float()),
    ):
        (peak,) = replace(block, left=left, right=right).peaks((WEIGHT,))
        assert peak.dtype == torch.float32
    single = torch.ones(2, 1, 1)
    (peak,) = replace(block, left=single).peaks((WEIGHT,))
    assert peak.dtype == torch.float64
    assert (
        spectrum_of("diagonals")[0].peaks((WEIGHT,)) == [] == replace(block, left=single, right=None).peaks((WEIGHT,))
    )


def curvature() -> tuple[kron_curvature.KronCurvature, Tensor]:
    """A Kronecker block inside a weight, a dense and a diagonal one, and ranges that no data touched."""
    block, matrix = spectrum_of("matrices")
    own = space_of(a__weight=17, b=3, c=2)
    small, vector = positive(1, 3, seed=5)[0], torch.tensor([2.0, 5.0], dtype=torch.float64)
    others = {WeightRange("b", 0, 3): small, WeightRange("c", 0, 2): vector}
    values = {WeightRange("b", 0, 3): torch.linalg.eigvalsh(small)}
    made = kron_curvature.KronCurvature(
        blocks={(WeightRange("a.weight", 2, 14),): block}, others=others, space=own, words="words", eigenvalues=values
    )
    zeros = torch.zeros(2, 2).double(), torch.zeros(3, 3).double()
    return made, torch.block_diag(zeros[0], matrix, zeros[1], small, torch.diag(vector))


def test_blocks_side_by_side() -> None:
    """Precisions, diagonals and eigenvalues of all weights; gaps have the prior alone."""
    made, matrix = curvature()
    delta = torch.full((22,), 0.3, dtype=torch.float64)
    delta[17:] = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5]).double()
    delta[[0, 1, 14, 15, 16]] = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0]).double()
    found = made.precision(delta, torch.tensor(2.0))
    torch.testing.assert_close(found.mv(torch.eye(22).double()), 2 * matrix + torch.diag(delta), rtol=1e-6, atol=1e-6)
    close(made.diag(), matrix.diagonal())
    gaps = made.diag(0.1)
    assert gaps[0] == gaps[16] == pytest.approx(0.1 * float(_floored(made).mean()))
    close(gaps[17:20], common.apply_floor(matrix.diagonal()[17:20], 0.1))
    assert made._unseen() == [
        (slice(0, 2), WeightRange("a.weight", 0, 2)),
        (slice(14, 17), WeightRange("a.weight", 14, 17)),
    ]


def _floored(made: kron_curvature.KronCurvature) -> Tensor:
    """(D,): diagonals with their floors, before the gaps are filled."""
    whole = torch.zeros(22, dtype=torch.float64)
    whole[2:14] = next(iter(made.blocks.values())).diagonal(0.1).flatten()
    whole[17:20] = common.apply_floor(made.others[WeightRange("b", 0, 3)].diagonal(), 0.1)
    whole[20:] = torch.tensor([2.0, 5.0])
    return whole


def test_eigenvalues_side_by_side() -> None:
    """Relative to a base or not; none where a block has several precisions."""
    made, matrix = curvature()
    one = Groups.of(torch.zeros(22, dtype=torch.long), 1)
    base = torch.full((22,), 2.0, dtype=torch.float64)
    base[17:] = torch.tensor([1.0, 2.0, 4.0, 8.0, 3.0]).double()
    for own in (None, base):
        found = made.spectrum(one, own)
        assert found is not None and found.dtype == torch.float64
        root = torch.ones(22).double() if own is None else own.rsqrt()
        scaled = root[:, None] * matrix * root
        for place in (slice(0, 2), slice(2, 14), slice(14, 17), slice(17, 20)):
            close(found[place].sort().values, torch.linalg.eigvalsh(scaled[place, place]))
        close(found[20:], scaled.diagonal()[20:])
    numbers = torch.zeros(22, dtype=torch.long)
    for place, whole in ((0, True), (5, False), (18, False), (21, True), (16, True)):
        numbers.zero_()[place] = 1
        assert (made.spectrum(Groups.of(numbers, 2)) is not None) is whole
    first, second = made.peaks()
    close(first.largest, torch.linalg.eigvalsh(matrix[2:14, 2:14])[-1])
    close(second.largest, torch.linalg.eigvalsh(matrix[17:20, 17:20])[-1])
    assert second.parts == (WeightRange("b", 0, 3),) and second.dtype == torch.float64


def test_names_of_approximations(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the coverage table; sides that were too long are said."""
    made, _ = curvature()
    assert [made.approximation(name) for name in ("a.weight", "b", "c")] == ["words", "dense block", "diagonal"]
    key = next(iter(made.blocks))
    for kind, longest, words in (
        ("diagonal rows", 2, "words, rows diagonal"),
        ("diagonal rows", 3, "words"),
        ("diagonal columns", 1, "words, columns diagonal"),
        ("diagonals", 1, "words, rows and columns diagonal"),
        ("diagonals", 2, "words, rows diagonal"),
        ("matrices", 1, "words"),
    ):
        monkeypatch.setattr(grams, "LARGEST_SIDE", longest)
        assert replace(made, blocks={key: spectrum_of(kind)[0]}).approximation("a.weight") == words


# Sums of several measurements, and of files


def network_sums(structure: Any, bias: str = "separate") -> tuple[KronSums, Space]:
    """Of a network with a layer, a norm and an embedding; and its weights."""
    torch.manual_seed(0)
    model = built(nn.Sequential(nn.Embedding(5, 3), nn.LayerNorm(3), nn.Linear(3, 2)))
    data = moved(classes(5, 12)), moved(classes(2, 12))
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    sums = measured(model, data, pw.Categorical(), structure(bias=bias))
    return sums, Space(tuple(shapes), tuple(shapes.values()))


LINEAR = (WeightRange("2.weight", 0, 6),)


def altered(sums: KronSums, **changes: Callable[[Any], Any]) -> KronSums:
    """A copy of sums with some of its dictionaries changed."""
    return replace(sums, **{name: change(dict(getattr(sums, name))) for name, change in changes.items()})


def without(key: Any) -> Callable[[Any], Any]:
    """A dictionary less one key."""
    return lambda own: {each: value for each, value in own.items() if each != key}


def instead(key: Any, change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A dictionary with one value changed."""
    return lambda own: {each: change(value) if each == key else value for each, value in own.items()}


def test_sums_that_fit_are_taken() -> None:
    """Of both structures, with biases apart or not."""
    for bias in ("separate", "joint"):
        for structure, corrected in ((pw.Kron, False), (pw.EKFAC, True)):
            sums, own = network_sums(structure, bias)
            check_sums(sums, own, corrected)
            structure(bias=bias).check(sums, own)
            with pytest.raises(ValueError, match="The factors are not those of the blocks"):
                check_sums(sums, own, not corrected)


NORM = WeightRange("1.weight", 0, 3)
STRAIGHT = (LINEAR, False)
WRONG_FACTORS: dict[str, tuple[dict[str, Any], str]] = {
    "factors": ({"factors": without(STRAIGHT)}, "The factors are not those of the blocks"),
    "layouts": ({"weights": lambda own: {LINEAR: Layout.plain(1, 2, 3)}}, "The layouts of joint blocks are not those"),
    "inputs": (
        {"factors": instead(STRAIGHT, lambda own: replace(own, inputs=own.inputs[:, :2, :2]))},
        r"The input factor of '2.weight' has shape \(1, 2, 2\); expected \(1, 3\) or \(1, 3, 3\)",
    ),
    "gradients": (
        {"factors": instead(STRAIGHT, lambda own: replace(own, gradients=torch.zeros(1, 3, 3)))},
        r"The gradient factor of '2.weight' has shape \(1, 3, 3\); expected \(1, 2\) or \(1, 2, 2\)",
    ),
    "negative inputs": (
        {"factors": instead(STRAIGHT, lambda own: replace(own, inputs=-own.inputs))},
        "The curvature of '2.weight' has negative numbers on its diagonal",
    ),
    "negative gradients": (
        {"factors": instead(STRAIGHT, lambda own: replace(own, gradients=torch.tensor([[1.0, -1.0]])))},
        "The curvature of '2.weight' has negative numbers on its diagonal",
    ),
    "count": (
        {"factors": instead(STRAIGHT, lambda own: replace(own, count=-1.0))},
        "The input factor of '2.weight' has -1.0 positions",
    ),
    "endless count": (
        {"factors": instead(STRAIGHT, lambda own: replace(own, count=float("inf")))},
        "The input factor of '2.weight' has inf positions",
    ),
    "others": (
        {"others": instead(NORM, lambda own: own[:2, :2])},
        r"The curvature of '1.weight' has shape \(2, 2\); expected \(3,\) or \(3, 3\)",
    ),
    "negative others": (
        {"others": instead(NORM, lambda own: -own)},
        "The curvature of '1.weight' has negative numbers",
    ),
    "another's": (
        {"others": lambda own: {WeightRange("x", 0, 3): torch.ones(3)}},
        "'x' is not one of the selected weights",
    ),
    "a part of others": (
        {"others": lambda own: {WeightRange("1.weight", 1, 3): torch.ones(4, 4)}},
        r"The curvature of '1.weight' has shape \(4, 4\); expected \(2,\) or \(2, 2\)",
    ),
    "empty layout": (
        {"layouts": instead(LINEAR, lambda own: Layout((0, 6), (0, 1), (1, 2, 3)))},
        "The layout of '2.weight' has an empty side",
    ),
    "empty matrix": (
        {"layouts": instead(LINEAR, lambda own: Layout((2, 3), (0, 1), (0, 2, 3)))},
        "The layout of '2.weight' has an empty side",
    ),
    "no split": (
        {"layouts": instead(LINEAR, lambda own: Layout((), (), (1, 2, 3)))},
        "The layout of '2.weight' has an empty side",
    ),
    "small layout": (
        {"layouts": instead(LINEAR, lambda own: Layout((2, 3), (0, 1), (1, 2, 2)))},
        "The layout of '2.weight' holds 4 weights; expected 6",
    ),
    "small split": (
        {"layouts": instead(LINEAR, lambda own: Layout((2, 2), (0, 1), (1, 2, 3)))},
        "The layout of '2.weight' holds 6 weights; expected 6",
    ),
    "axes": (
        {"layouts": instead(LINEAR, lambda own: Layout((2, 3), (0, 0), (1, 2, 3)))},
        r"The layout of '2.weight' has axes \(0, 0\)",
    ),
}


@pytest.mark.parametrize("name", WRONG_FACTORS)
def test_factors_that_do_not_fit_are_refused(name: str) -> None:
    """By what is wrong with them."""
    changes, words = WRONG_FACTORS[name]
    sums, own = network_sums(pw.Kron)
    with pytest.raises(ValueError, match=words):
        check_sums(altered(sums, **changes), own, corrected=False)


def test_other_sums_that_do_not_fit_are_refused() -> None:
    """Second moments, their bases, and layouts of blocks with a bias."""
    sums, own = network_sums(pw.EKFAC)
    none = instead(LINEAR, lambda pair: (None, None))
    check_sums(altered(sums, bases=none), own, corrected=True)
    for changes, words in (
        (
            {"corrected": instead(LINEAR, lambda value: value[:, :1])},
            r"The second moments of '2.weight' has shape \(1, 1, 3\)",
        ),
        ({"corrected": instead(LINEAR, lambda value: -value)}, "The curvature of '2.weight' has negative numbers"),
        (
            {"bases": instead(LINEAR, lambda pair: pair[::-1])},
            r"A basis of '2.weight' has shape \(1, 3, 3\); expected \(1, 2, 2\)",
        ),
        (
            {"bases": instead(LINEAR, lambda pair: (None, pair[0]))},
            r"A basis of '2.weight' has shape \(1, 2, 2\); expected \(1, 3, 3\)",
        ),
        ({"bases": without(LINEAR)}, "The factors are not those of the blocks"),
        ({"corrected": without(LINEAR)}, "The factors are not those of the blocks"),
    ):
        with pytest.raises(ValueError, match=words):
            check_sums(altered(sums, **changes), own, corrected=True)
    sums, own = network_sums(pw.Kron, "joint")
    key = next(key for key in sums.layouts if len(key) == 2)
    for layout, words in (
        (Layout.plain(1, 3, 2), r"The layout of '2.weight' with its bias is \(1, 2, 4\)"),
        (Layout.plain(1, 2, 2), "The layout of '2.weight' holds 4 weights; expected 6"),
        (Layout((2, 3), (1, 1), (1, 2, 3)), r"The layout of '2.weight' has axes \(1, 1\)"),
    ):
        with pytest.raises(ValueError, match=words):
            check_sums(altered(sums, weights=instead(key, lambda own, layout=layout: layout)), own, corrected=False)


def test_sums_of_parts_of_weights() -> None:
    """Blocks that begin inside a weight, with nothing counted yet; no block has three parts."""
    own = space_of(a=7, b=2, c=2)
    key = (WeightRange("a", 3, 7),)
    empty = factors_of(torch.zeros(1, 2), torch.zeros(1, 2, 2), 0.0)
    check_sums(
        KronSums(
            layouts={key: Layout.plain(1, 2, 2)},
            weights={},
            factors={(key, False): empty},
            others={WeightRange("a", 1, 3): torch.ones(2)},
        ),
        own,
        False,
    )
    three = (WeightRange("a", 0, 4), WeightRange("b", 0, 1), WeightRange("c", 0, 1))
    wide = factors_of(torch.zeros(1, 3), torch.zeros(1, 2), 0.0)
    with pytest.raises(ValueError, match="The layout of 'a'"):
        check_sums(
            KronSums(layouts={three: Layout.plain(1, 2, 3)}, weights={}, factors={(three, False): wide}), own, False
        )


def test_joined_sums_are_those_of_both() -> None:
    """Each added, what only one of them has is taken, and the earlier ones stay as they were."""
    earlier, own = network_sums(pw.Kron)
    before = earlier.factors[STRAIGHT].inputs.clone(), earlier.others[NORM].clone()
    later, _ = network_sums(pw.Kron)
    twice = join_sums(earlier, later, own)
    close(twice.factors[STRAIGHT].inputs, 2 * before[0])
    close(twice.others[NORM], 2 * before[1])
    assert twice.factors[STRAIGHT].count == 2 * earlier.factors[STRAIGHT].count
    close(earlier.factors[STRAIGHT].inputs, before[0])
    close(earlier.others[NORM], before[1])
    fresh, _ = network_sums(pw.Kron)
    some = altered(fresh, factors=without(STRAIGHT), layouts=without(LINEAR), others=without(NORM))
    for one, other in ((earlier, some), (some, network_sums(pw.Kron)[0])):
        made = join_sums(one, other, own)
        close(made.factors[STRAIGHT].inputs, before[0])
        close(made.others[NORM], before[1])
        assert set(made.layouts) == set(earlier.layouts)
    corrected, _ = network_sums(pw.EKFAC)
    again = join_sums(corrected, network_sums(pw.EKFAC)[0], own)
    close(again.corrected[LINEAR], 2 * corrected.corrected[LINEAR])
    lacking = altered(corrected, corrected=without(LINEAR))
    close(join_sums(lacking, corrected, own).corrected[LINEAR], corrected.corrected[LINEAR])


def test_sums_of_another_use_are_refused() -> None:
    """Another layout, another shape, or ranges that overlap: by the weight."""
    sums, own = network_sums(pw.Kron)
    half = (WeightRange("2.weight", 0, 3),)
    for changes in (
        {"layouts": instead(LINEAR, lambda layout: Layout((2, 3), (1, 0), (1, 3, 2)))},
        {"factors": instead(STRAIGHT, lambda each: replace(each, inputs=torch.zeros(1, 3)))},
        {"factors": instead(STRAIGHT, lambda each: replace(each, gradients=torch.zeros(1, 2)))},
        {"layouts": lambda layouts: {half if key == LINEAR else key: layout for key, layout in layouts.items()}},
    ):
        with pytest.raises(ValueError, match=r"another way than to the data before \(.*2.weight.*cannot be added"):
            join_sums(sums, altered(sums, **changes), own)


# Products of gradients and inputs


@pytest.mark.parametrize(("groups", "width"), [(1, 3), (2, 5), (1, 512), (2, 515)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_of_rows_with_themselves(
    dtype: torch.dtype, groups: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one product, by blocks, or some rows at a time in float64: `rows^T rows`, in the dtype that was asked for."""
    monkeypatch.setattr(grams, "MANY", 0)
    rows = (4 * normal(groups, width + 2, width)).round()  # sums of whole numbers are exact in any order
    room = replace(budget(None, torch.device("cpu")), bytes=16 * groups * width * (100 if width > 500 else 2))
    expected = rows.mT @ rows
    made = grams.outer(rows.to(dtype), room, dtype)
    assert made.dtype == dtype and torch.equal(made.double(), expected)
    wide = grams.outer(rows.float(), room, torch.float64)
    assert wide.dtype == torch.float64 and torch.equal(wide, expected)
    half = grams.outer(rows.half(), room)
    assert half.dtype == torch.float64 and torch.equal(half, expected)  # several pieces
    half = grams.outer(rows.half(), replace(room, bytes=1 << 27))
    assert half.dtype == torch.float32 and torch.equal(half.double(), expected)
    monkeypatch.setattr(grams, "LARGEST_SIDE", width - 1)
    long = grams.outer(rows.to(dtype), room, torch.float64)
    assert long.dtype == torch.float64 and torch.equal(long, expected.diagonal(dim1=-2, dim2=-1))


class Pooled(nn.Module):
    """A head on each token, or on their mean."""

    def __init__(self, pooled: bool) -> None:
        super().__init__()
        self.first, self.head, self.pooled = nn.Linear(3, 4), nn.Linear(4, 2), pooled

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, 3) -> (B, 2) or (B, T, 2)."""
        hidden = self.first(x).tanh()
        return self.head(hidden.mean(1) if self.pooled else hidden)


@pytest.mark.parametrize("pooled", [True, False])
def test_auto_reduces_where_an_example_has_one_output(pooled: bool) -> None:
    """And expands where each of its positions has one."""
    torch.manual_seed(0)
    model, x = built(Pooled(pooled)), normal(5, 3, 3)
    y = normal(5, 2, seed=2) if pooled else normal(5, 3, 2, seed=2)
    made = {
        approx: curvature_of(fitted(model, x, y, pw.Gaussian(1.0), pw.Kron(approx=approx)))  # type: ignore[arg-type]
        for approx in ("auto", "reduce", "expand")
    }
    assert relative(made["reduce"], made["expand"]) > 1e-2
    assert relative(made["auto"], made["reduce" if pooled else "expand"]) < 1e-12
