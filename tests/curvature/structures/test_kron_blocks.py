"""Kronecker blocks and their sides, against dense matrices in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from fitting import normal
from peewit.curvature.structures import common, eigen, grams, kron_curvature, kron_spectrum, sides
from peewit.curvature.structures.factors import KronFactors
from peewit.jacobians.layout import Layout
from peewit.weights.groups import Groups
from peewit.weights.ranges import WeightRange
from structure_numbers import close, positive, space_of

WEIGHT, BIAS = WeightRange("a.weight", 0, 12), WeightRange("a.bias", 0, 6)
LAYOUT = Layout.plain(2, 3, 2)


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
    assert made._gaps() == [
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
