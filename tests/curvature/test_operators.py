"""Posterior precisions as operators against the dense matrices they stand for."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from environment import DEVICE
from jacobian_cases import (
    EXAMPLES,
    GROUPED,
    LITTLE,
    PLAIN,
    PLENTY,
    PROBES,
    matrix_of,
    normal,
    outermost_of,
    places,
)
from known_batches import ROOM
from peewit.curvature.blocks import Blocks, OperatorBlock, rows_of, share
from peewit.curvature.operators import DenseOperator, DiagonalOperator, Dual, RotatedOperator, squares
from peewit.jacobians.explicit import Explicit
from peewit.jacobians.factored import Matrix
from peewit.jacobians.inputs import Acts
from peewit.jacobians.layout import Layout
from peewit.jacobians.output_layer import covariance_of_spectra
from peewit.jacobians.stacked import Stacked
from peewit.weights.ranges import WeightRange

close = torch.testing.assert_close


def eye(size: int) -> Tensor:
    """The identity."""
    return torch.eye(size, dtype=torch.float64, device=DEVICE)


def orthogonal(groups: int, size: int, seed: int) -> Tensor:
    """Random rotations."""
    return torch.linalg.qr(normal(groups, size, size, seed=seed))[0]


def definite(size: int, seed: int = 0) -> Tensor:
    """A random positive definite matrix."""
    root = normal(size, size, seed=seed)
    return root @ root.T + eye(size)


def rotated(layout: Layout, sides: str, dual: bool = False, seed: int = 0) -> tuple[RotatedOperator, Tensor]:
    """An operator with bases on these sides, and its dense covariance in the order of the tensor."""
    groups, rows, columns = layout.matrix
    values = normal(groups, rows, columns, seed=seed).square() + 0.5
    made: list[Tensor | None] = []
    for side, size in (("l", rows), ("r", columns)):
        basis = orthogonal(groups, size, seed + 1 + size)
        basis = basis * (1 + normal(groups, size, 1, seed=seed + 2 + size).square()) if dual else basis
        made.append(basis if side in sides else None)
    left, right = made
    blocks = []
    for g in range(groups):
        basis = torch.kron(
            eye(rows) if left is None else left[g].contiguous(),
            eye(columns) if right is None else right[g].contiguous(),
        )
        blocks.append(basis @ torch.diag(1 / values[g].flatten()) @ basis.T)
    index = places(layout).flatten()
    covariance = torch.empty(len(index), len(index), dtype=torch.float64, device=DEVICE)
    covariance[index[:, None], index] = torch.block_diag(*blocks)
    inverses = [None if each is None else torch.linalg.inv(each).mT for each in made]
    volume = -torch.logdet(covariance) - values.log().sum()
    return RotatedOperator(
        values=values, layout=layout, left=left, right=right, dual=Dual(*inverses, volume) if dual else None
    ), covariance


def diagonal() -> tuple[DiagonalOperator, Tensor]:
    """Independent weights."""
    values = normal(24, seed=3).square() + 0.5
    return DiagonalOperator(values), torch.diag(1 / values)


def dense() -> tuple[DenseOperator, Tensor]:
    """A matrix."""
    matrix = definite(24)
    return DenseOperator(matrix), torch.linalg.inv(matrix)


OPERATORS = {
    **{f"rotated {sides or 'not'}": (lambda sides=sides: rotated(GROUPED, sides)) for sides in ("", "l", "r", "lr")},
    **{f"scaled {sides}": (lambda sides=sides: rotated(GROUPED, sides, True)) for sides in ("l", "r", "lr")},
    "diagonal": diagonal,
    "dense": dense,
}


@pytest.mark.parametrize("kind", OPERATORS)
def test_products_with_vectors(kind: str) -> None:
    """Products, solutions, roots, log-determinants and variances, with any leading axes."""
    operator, covariance = OPERATORS[kind]()
    precision = torch.linalg.inv(covariance)
    vectors = normal(2, 3, 24, seed=9)
    for v in (vectors, vectors[0], vectors[0, 0]):
        close(operator.mv(v), v @ precision)
        close(operator.solve(v), v @ covariance)
        assert operator.root(v).shape == v.shape
    root = operator.root(eye(24))
    close(root.T @ root, covariance)
    close(operator.logdet(), torch.logdet(precision))
    close(operator.variance(), covariance.diagonal())
    if isinstance(operator, RotatedOperator):
        white = operator.whiten(eye(24))
        close(white @ white.T, covariance)
        close(operator.inverse, 1 / operator.values)


def jacobians() -> dict[str, Any]:
    """Of 24 weights each."""
    return {
        "same layout": matrix_of("positions in groups", LITTLE),
        "one position": matrix_of("one position in groups", PLENTY),
        "another layout": matrix_of("positions", LITTLE),
        "rows": Explicit(normal(PROBES, EXAMPLES, 24), LITTLE),
        "stacked": Stacked((Explicit(normal(PROBES, EXAMPLES, 20), LITTLE), None), (20, 4)),
        "outermost": outermost_of("groups", LITTLE)[0],
    }


@pytest.mark.parametrize("kind", OPERATORS)
def test_covariances_of_outputs(kind: str) -> None:
    """`J P^-1 J^T` and its halves, whatever form the Jacobian has."""
    operator, covariance = OPERATORS[kind]()
    for jacobian in jacobians().values():
        rows = jacobian.rows(slice(0, EXAMPLES)).transpose(0, 1)
        cov = rows @ covariance @ rows.mT
        close(operator.quad(jacobian), cov)
        close(operator.quad(jacobian, variance_only=True), cov.diagonal(dim1=1, dim2=2))
        half = operator.half(jacobian, slice(1, 3))
        close(half @ half.mT, cov[1:])


@pytest.mark.parametrize("sides", ["", "l", "r", "lr"])
@pytest.mark.parametrize("kind", ["positions", "positions, flipped", "groups at positions"])
def test_covariances_of_outermost_layers(kind: str, sides: str) -> None:
    """In the bases of an operator with their own layout."""
    jacobian, written = outermost_of(kind, PLENTY)
    operator, covariance = rotated(jacobian.layout, sides)
    rows = written.flatten(2)
    cov = rows @ covariance @ rows.mT
    close(operator.quad(jacobian), cov)
    close(operator.quad(jacobian, variance_only=True), cov.diagonal(dim1=1, dim2=2))
    half = operator.half(jacobian, slice(1, 3))
    close(half @ half.mT, cov[1:])


def test_rows_of_a_basis_have_length_one() -> None:
    """Variances come out right where a basis is orthogonal but for its length, whichever rounding it had."""
    basis = orthogonal(2, 3, 0)
    close(squares(2 * basis, None), basis.square())
    other = normal(2, 3, 3, seed=1)
    inverse = torch.linalg.inv(other).mT
    close(squares(2 * other, inverse), 2 * other.square())


def test_weights_that_are_selected() -> None:
    """A mask leaves the others certain."""
    mask = torch.arange(24, device=DEVICE) % 3 != 1
    values = normal(int(mask.sum()), seed=3).square() + 0.5
    operator = DiagonalOperator(values, mask)
    covariance = torch.zeros(24, dtype=torch.float64, device=DEVICE)
    covariance[mask] = 1 / values
    assert torch.equal(operator.weight(GROUPED), covariance[places(GROUPED)])
    for name, jacobian in jacobians().items():
        rows = jacobian.rows(slice(0, EXAMPLES)).transpose(0, 1)
        cov = torch.einsum("bkp,p,blp->bkl", rows, covariance, rows)
        half = operator.half(jacobian, slice(0, 2))
        close(half @ half.mT, cov[:2])
        if name != "stacked":  # it leaves them out itself
            close(operator.quad(jacobian), cov)
            close(operator.quad(jacobian, variance_only=True), cov.diagonal(dim1=1, dim2=2))


def test_a_matrix_in_other_precision_than_the_vectors() -> None:
    """Answers have the precision of what is asked about; roots of inverses are made in float64."""
    matrix = definite(24)
    operator, narrow = DenseOperator(matrix), DenseOperator(matrix.float())
    vectors = normal(3, 24).float()
    jacobian = Explicit(normal(PROBES, EXAMPLES, 24).float(), PLENTY)
    for made in (operator.mv(vectors), operator.solve(vectors), operator.root(vectors)):
        assert made.dtype == torch.float32
    assert operator.half(jacobian, slice(0, 2)).dtype == torch.float32
    assert narrow.variance().dtype == torch.float32 and narrow.logdet().dtype == torch.float64
    inverse = torch.linalg.inv(matrix)
    close(operator.inverse_root @ operator.inverse_root.T, inverse)
    close(torch.linalg.inv(operator.inverse_root).T.tril(), operator.cholesky)
    assert narrow.inverse_root.dtype == torch.float64


def test_a_factor_that_fails_in_single_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is made in double precision, and rounded."""
    factorise = torch.linalg.cholesky_ex
    tried = []

    def unlucky(matrix: Tensor) -> tuple[Tensor, Tensor]:
        tried.append(matrix.dtype)
        factor, failed = factorise(matrix)
        return factor, torch.ones_like(failed) if matrix.dtype == torch.float32 else failed

    monkeypatch.setattr(torch.linalg, "cholesky_ex", unlucky)
    matrix = definite(5)
    found = DenseOperator(matrix.float()).cholesky
    assert tried == [torch.float32, torch.float64] and found.dtype == torch.float32
    close(found.double(), torch.linalg.cholesky(matrix), rtol=1e-5, atol=1e-5)


def test_matrices_without_a_factor() -> None:
    """What is wrong with them is said, with the ends of their spectrum."""
    with pytest.raises(ValueError, match=r"smallest eigenvalue is -3\. Its largest is 2\. Use a larger prior"):
        DenseOperator(torch.diag(torch.tensor([2.0, -3.0, 1.0], device=DEVICE))).logdet()
    with pytest.raises(ValueError, match=r"precision holds NaN or Inf.* too large for torch\.float32"):
        DenseOperator(torch.tensor([[1.0, torch.inf], [torch.inf, 1.0]], device=DEVICE)).logdet()


@pytest.mark.parametrize("kinds", [("positions",), ("positions", "positions, flipped"), ("groups",)])
def test_variances_under_a_matrix(kinds: tuple[str, ...]) -> None:
    """With roots of an outermost layer's rows, which are kept by the layer's layout, or without."""
    pieces = [outermost_of(kind, PLENTY, seed) for seed, kind in enumerate(kinds)]
    size = sum(piece.size for piece, _ in pieces)
    matrix = definite(size)
    operator = DenseOperator(matrix)
    jacobian: Any = Stacked(tuple(piece for piece, _ in pieces), tuple(piece.size for piece, _ in pieces))
    rows = torch.cat([written.flatten(2) for _, written in pieces], -1)
    expected = torch.einsum("bkp,pq,bkq->bk", rows, torch.linalg.inv(matrix), rows)
    for _ in range(2):
        close(operator.quad(jacobian, variance_only=True), expected)
    assert len(operator.roots) == (kinds != ("groups",))
    assert "roots" not in repr(operator) and hash(operator) == hash(operator)
    if len(kinds) == 2:  # the same sizes, and the weights elsewhere
        other = Stacked(jacobian.pieces[::-1], jacobian.sizes[::-1])
        turned = torch.cat([rows[..., pieces[0][0].size :], rows[..., : pieces[0][0].size]], -1)
        expected = torch.einsum("bkp,pq,bkq->bk", turned, torch.linalg.inv(matrix), turned)
        close(operator.quad(other, variance_only=True), expected)


def test_variances_have_gradients_in_the_matrix() -> None:
    """As evidence and tuning ask for them."""
    jacobian, written = outermost_of("positions", PLENTY)
    rows, matrix = written.flatten(2), definite(jacobian.size).requires_grad_()
    expected = torch.einsum("bkp,pq,bkq->bk", rows, torch.linalg.inv(matrix), rows).sum()
    made = DenseOperator(matrix).quad(jacobian, variance_only=True).sum()
    wanted, found = (torch.autograd.grad(each, matrix)[0] for each in (expected, made))
    close(found + found.T, wanted + wanted.T)


def pieces_of(**ranges: Any) -> dict[WeightRange, Any]:
    """Explicit rows for ranges such as w=[(0, 4), (4, 8)]."""
    made = {}
    for name, spans in ranges.items():
        for start, stop in spans:
            made[WeightRange(name, start, stop)] = Explicit(normal(PROBES, EXAMPLES, stop - start, seed=start), PLENTY)
    return made


def test_rows_of_part_of_a_weight() -> None:
    """Put together from whatever overlaps it; ranges that overlap each other add up."""
    found = pieces_of(w=[(0, 8), (4, 12)], v=[(0, 12)])
    whole = torch.zeros(PROBES, EXAMPLES, 12, dtype=torch.float64, device=DEVICE)
    for part, jacobian in found.items():
        if part.name == "w":
            whole[..., part.start : part.stop] += jacobian.value
    for start, stop in ((0, 12), (2, 10), (4, 8), (8, 12), (0, 4), (7, 9)):
        made = rows_of(found, WeightRange("w", start, stop))
        assert made is not None
        close(made.value, whole[..., start:stop])
        assert made.budget is PLENTY
    assert rows_of(found, WeightRange("u", 0, 12)) is None
    assert rows_of(pieces_of(w=[(0, 4)]), WeightRange("w", 4, 8)) is None
    wider = rows_of(pieces_of(w=[(2, 4)]), WeightRange("w", 0, 6))
    assert wider is not None and torch.equal(wider.value[..., [0, 1, 4, 5]], torch.zeros_like(whole[..., :4]))


def joint_block(layout: Layout, start: int, seed: int) -> tuple[OperatorBlock, Tensor]:
    """A weight and its bias as one matrix, and the covariance of both in their own order."""
    groups, rows, columns = layout.matrix
    size = groups * rows * columns
    operator, joined = rotated(Layout.plain(groups, rows, columns + 1), "lr", seed=seed)
    parts = WeightRange("w", 0, size), WeightRange("b", 0, groups * rows)
    slices = slice(start, start + size), slice(start + size, start + size + groups * rows)
    # Where each element of the weight, then of the bias, is in the joint matrix.
    own = torch.arange(groups * rows * (columns + 1), device=DEVICE).reshape(groups, rows, columns + 1)
    index = torch.empty(size, dtype=torch.long, device=DEVICE)
    index[places(layout)] = own[..., :-1]
    index = torch.cat([index, own[..., -1].flatten()])
    return OperatorBlock(parts=parts, slices=slices, operator=operator, joint=layout), joined[index][:, index]


def several() -> tuple[Blocks, Tensor, dict[WeightRange, Any]]:
    """Blocks whose places in the vector are not in their order, the dense covariance, and Jacobians."""
    size = 24
    joint, first = joint_block(GROUPED, 0, seed=3)
    matrix = definite(9, seed=4)
    mask = torch.arange(8, device=DEVICE) % 3 != 0
    dense = OperatorBlock(
        parts=(WeightRange("d", 0, 6), WeightRange("e", 0, 3)),
        slices=(slice(35, 41), slice(30, 33)),
        operator=DenseOperator(matrix),
    )
    values = normal(2, seed=5).square() + 0.5
    chosen = OperatorBlock(parts=(WeightRange("f", 0, 2),), slices=(slice(33, 35),), operator=DiagonalOperator(values))
    kept = normal(int(mask.sum()), seed=6).square() + 0.5
    masked = OperatorBlock(
        parts=(WeightRange("m", 0, 8),), slices=(slice(41, 46),), operator=DiagonalOperator(kept), mask=mask
    )
    covariance = torch.zeros(46, 46, dtype=torch.float64, device=DEVICE)
    covariance[:30, :30] = first
    place = torch.cat([torch.arange(35, 41), torch.arange(30, 33)]).to(DEVICE)
    covariance[place[:, None], place] = torch.linalg.inv(matrix)
    covariance[33:35, 33:35] = torch.diag(1 / values)
    covariance[41:, 41:] = torch.diag(1 / kept)
    found = pieces_of(d=[(0, 2), (2, 6)], e=[(0, 3)], f=[(0, 2)], m=[(0, 8)])
    weight = matrix_of("positions in groups", LITTLE)
    found[WeightRange("w", 0, size)] = weight
    found[WeightRange("b", 0, 6)] = Explicit(weight.terms[0].grad.sum(3).flatten(2), LITTLE)
    return Blocks([masked, dense, joint, chosen], 46), covariance, found


def rows_in_order(found: dict[WeightRange, Any]) -> Tensor:
    """(B, K, D): the Jacobian of `several`, weights that nothing was found of at zero."""
    layout = {"w": 0, "b": 24, "d": 35, "e": 30, "f": 33, "m": 41}
    whole = torch.zeros(EXAMPLES, PROBES, 46, dtype=torch.float64, device=DEVICE)
    for part, jacobian in found.items():
        rows = jacobian.rows(slice(0, EXAMPLES)).transpose(0, 1)
        rows = rows[..., torch.arange(8, device=DEVICE) % 3 != 0] if part.name == "m" else rows
        start = layout[part.name] + part.start
        whole[..., start : start + rows.shape[-1]] = rows
    return whole


def test_blocks_side_by_side() -> None:
    """Vectors are taken apart and put together in the order of the weights."""
    blocks, covariance, _ = several()
    precision = torch.linalg.inv(covariance)
    vectors = normal(2, 3, 46, seed=9)
    for v in (vectors, vectors[0, 0]):
        close(blocks.mv(v), v @ precision)
        close(blocks.solve(v), v @ covariance)
    root = blocks.root(eye(46))
    close(root.T @ root, covariance)
    close(blocks.logdet(), torch.logdet(precision))
    close(blocks.variance(), covariance.diagonal())
    with pytest.raises(ValueError, match=r"shape \(2, 45\) was given; expected \(\.\.\., 46\) weights"):
        blocks.mv(vectors[0, :2, :45])


@pytest.mark.parametrize("absent", ["", "w", "b", "wb", "d", "de", "bdfm", "wbdefm"])
def test_covariances_over_blocks(absent: str) -> None:
    """Summed over the blocks, some of whose weights these inputs may not have used."""
    blocks, covariance, found = several()
    found = {part: jacobian for part, jacobian in found.items() if part.name not in absent}
    if not found:
        for ask in (lambda: blocks.quad(found), lambda: blocks.cross(found, found)):
            with pytest.raises(ValueError, match="None of the selected weights was used by these inputs"):
                ask()
        return
    rows = rows_in_order(found)
    cov = rows @ covariance @ rows.mT
    close(blocks.quad(found), cov)
    close(blocks.quad(found, variance_only=True), cov.diagonal(dim1=1, dim2=2))
    close(blocks.cross(found, found), torch.einsum("akp,pq,blq->akbl", rows, covariance, rows))


def test_covariances_between_other_examples() -> None:
    """The first set's examples come first; weights that only one of them used say nothing."""
    blocks, covariance, first = several()
    second = {part: Explicit(jacobian.rows(slice(0, 2)) * 1.5, PLENTY) for part, jacobian in first.items()}
    second = {part: jacobian for part, jacobian in second.items() if part.name != "f"}
    rows, others = rows_in_order(first), torch.zeros(2, PROBES, 46, dtype=torch.float64, device=DEVICE)
    others[:] = 1.5 * rows[:2]
    others[..., 33:35] = 0
    close(blocks.cross(first, second), torch.einsum("akp,pq,blq->akbl", rows, covariance, others))


@pytest.mark.parametrize("basis", ["same", "other", "absent"])
@pytest.mark.parametrize("kind", ["one position", "one position in groups", "positions"])
def test_a_weight_and_a_bias_with_the_same_gradients(kind: str, basis: str) -> None:
    """One product may serve both: the covariance is the sum of both, whichever bases they have."""
    weight = matrix_of(kind, PLENTY)
    grad, (groups, rows, _) = weight.terms[0].grad, weight.layout.matrix
    layout = Layout.plain(groups, rows, 1)
    ones = grad.new_ones(EXAMPLES, groups, grad.shape[3], 1)
    acts = Acts(make=lambda some: ones[some], width=1, positions=grad.shape[3], constant=True)
    bias = Matrix((type(weight.terms[0])(acts, grad),), layout, PLENTY)
    sides = "" if basis == "absent" else "l"
    first, covariance = rotated(weight.layout, sides)
    second, other = rotated(layout, sides, seed=0 if basis == "same" else 5)
    if basis == "same":
        assert torch.equal(first.left, second.left)
        second = RotatedOperator(values=second.values, layout=layout, left=first.left)
    size = weight.size
    blocks = Blocks(
        [
            OperatorBlock(parts=(WeightRange("w", 0, size),), slices=(slice(0, size),), operator=first),
            OperatorBlock(
                parts=(WeightRange("b", 0, groups * rows),),
                slices=(slice(size, size + groups * rows),),
                operator=second,
            ),
        ],
        size + groups * rows,
    )
    found: dict[WeightRange, Any] = {WeightRange("w", 0, size): weight, WeightRange("b", 0, groups * rows): bias}
    own, its = (each.rows(slice(0, EXAMPLES)).transpose(0, 1) for each in (weight, bias))
    cov = own @ covariance @ own.mT + its @ other @ its.mT
    close(blocks.quad(found), cov)
    close(blocks.quad(found, variance_only=True), cov.diagonal(dim1=1, dim2=2))


def test_what_one_product_serves() -> None:
    """Kronecker blocks of one group at one position, in their own layout; their weights add up."""
    operator, _ = rotated(PLAIN, "lr")
    jacobian = matrix_of("one position", PLENTY)
    shared: dict[tuple[int, int], Any] = {}
    found = jacobian.inner(operator.inverse, operator.right)
    assert found is not None
    for times in (1, 2):
        assert share(operator, jacobian, shared)
        ((grad, own, inner),) = shared.values()
        assert grad is jacobian.terms[0].grad and own is operator
        close(inner, times * found[1])
    others: list[tuple[Any, Any]] = [
        (DiagonalOperator(normal(12).square()), jacobian),
        (operator, Explicit(normal(PROBES, EXAMPLES, 12), PLENTY)),
        (operator, outermost_of("positions", PLENTY)[0]),
        (rotated(Layout.plain(1, 4, 3), "lr")[0], jacobian),
        (rotated(GROUPED, "lr")[0], matrix_of("one position in groups", PLENTY)),
        (rotated(PLAIN, "lr")[0], matrix_of("many positions in one group", PLENTY)),
    ]
    for other, found_ in others:
        assert not share(other, found_, shared)
    assert len(shared) == 1


def outermost_blocks(kind: str, operators: list[Any]) -> tuple[Blocks, dict[WeightRange, Any]]:
    """A block for each operator, over Jacobians of an outermost layer."""
    found: dict[WeightRange, Any] = {}
    blocks = []
    for place, operator in enumerate(operators):
        jacobian, _ = outermost_of(kind, PLENTY, seed=place)
        part = WeightRange("wvu"[place], 0, jacobian.size)
        found[part] = jacobian
        blocks.append(
            OperatorBlock(
                parts=(part,), slices=(slice(place * jacobian.size, (place + 1) * jacobian.size),), operator=operator
            )
        )
    return Blocks(blocks, sum(jacobian.size for jacobian in found.values())), found


@pytest.mark.parametrize("kind", ["one position", "positions"])
def test_spectra_of_outputs(kind: str) -> None:
    """At each position the covariance is a sum over bases; equal bases have their weights added."""
    layout = Layout.plain(1, 3, 4)
    first, _ = rotated(layout, "lr")
    second = RotatedOperator(
        values=rotated(layout, "r", seed=7)[0].values,
        layout=layout,
        left=first.left,
        right=rotated(layout, "r", seed=7)[0].right,
    )
    third = DiagonalOperator(normal(12, seed=8).square() + 0.5)
    blocks, found = outermost_blocks(kind, [first, second, third])
    spectra = blocks.spectra(found)
    assert spectra is not None and len(spectra) == 2
    cov = blocks.quad(found)
    positions = cov.shape[1] // 3
    for t in range(positions):  # outputs have their positions last
        close(
            covariance_of_spectra([(basis, weights[:, t]) for basis, weights in spectra]),
            cov[:, t::positions, t::positions],
        )
    assert blocks.spectra({}) is None
    only = {part: jacobian for part, jacobian in found.items() if part.name == "v"}
    fewer = blocks.spectra(only)
    assert fewer is not None and len(fewer) == 1
    close(covariance_of_spectra([(fewer[0][0], fewer[0][1][:, 0])]), blocks.quad(only)[:, ::positions, ::positions])


def test_no_spectra() -> None:
    """Under a dense matrix, another layout, groups, or a Jacobian with rows of its own."""
    layout = Layout.plain(1, 3, 4)
    fitting = rotated(layout, "lr")[0]
    for operators in ([fitting, DenseOperator(definite(12))], [fitting, rotated(Layout.plain(1, 4, 3), "lr")[0]]):
        blocks, found = outermost_blocks("positions", operators)
        assert blocks.spectra(found) is None
    blocks, found = outermost_blocks("groups", [DiagonalOperator(normal(24).square() + 0.5)])
    assert blocks.spectra(found) is None
    blocks, found = outermost_blocks("positions", [fitting])
    assert blocks.spectra({part: Explicit(normal(6, EXAMPLES, 12), PLENTY) for part in found}) is None


def test_jacobians_of_blocks() -> None:
    """As they were found where a block is one weight; made of what overlaps it otherwise."""
    weight = matrix_of("one position", PLENTY)
    whole = WeightRange("w", 0, weight.size)
    operator = DiagonalOperator(normal(weight.size).square())
    found: dict[WeightRange, Any] = {whole: weight}
    plain = OperatorBlock(parts=(whole,), slices=(slice(0, weight.size),), operator=operator)
    assert plain.jacobian(found) is weight and plain.jacobian({}) is None
    mask = torch.arange(weight.size, device=DEVICE) < 5
    masked = OperatorBlock(parts=(whole,), slices=(slice(0, 5),), operator=operator, mask=mask).jacobian(found)
    assert isinstance(masked, Stacked) and masked.size == 5
    joint = OperatorBlock(
        parts=(whole, WeightRange("b", 0, 3)), slices=(slice(0, 12), slice(12, 15)), operator=operator, joint=PLAIN
    )
    assert isinstance(joint.jacobian({**found, WeightRange("b", 0, 3): weight}), Matrix)
    alone = joint.jacobian(found)
    assert isinstance(alone, Stacked) and torch.equal(
        alone.rows(slice(0, 1)).unflatten(-1, (3, 5))[..., -1], torch.zeros(2, 1, 3, dtype=torch.float64, device=DEVICE)
    )


def test_a_range_that_was_not_used_has_zeros() -> None:
    """As many as it has weights, wherever it begins."""
    parts = WeightRange("a", 0, 2), WeightRange("b", 2, 5)
    block = OperatorBlock(
        parts=parts, slices=(slice(0, 2), slice(2, 5)), operator=DiagonalOperator(torch.ones(5, device=DEVICE))
    )
    value = normal(2, 4, 2)
    made = block.jacobian({parts[0]: Explicit(value, ROOM)})
    assert made is not None
    rows = made.rows(slice(0, 4))
    assert torch.equal(rows, torch.cat([value, torch.zeros(2, 4, 3, dtype=torch.float64, device=DEVICE)], -1))
