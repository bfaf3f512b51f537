"""Factored Jacobians against the same sums written out over positions, for every question that structures ask."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from environment import DEVICE
from jacobian_cases import (
    ACROSS,
    BIAS,
    EXAMPLES,
    GROUPED,
    KINDS,
    LITTLE,
    OUTERMOST,
    PLAIN,
    PLENTY,
    PROBES,
    matrix_of,
    normal,
    one_hot,
    outermost_of,
    places,
    written_out,
)
from known_batches import ROOM
from peewit.jacobians import factored, layout
from peewit.jacobians.explicit import Explicit
from peewit.jacobians.factored import LARGEST_GRID, Matrix, Term
from peewit.jacobians.inputs import Acts
from peewit.jacobians.layout import Layout, join, part_ways
from peewit.jacobians.output_layer import (
    OutputLayerJacobian,
    covariance_of_spectra,
    identity_probes,
    outermost_pieces,
    rooted_variance,
    row_places,
    row_roots,
    variance_of_spectra,
)
from peewit.jacobians.stacked import Stacked
from peewit.kernels import available, operands
from peewit.kernels import jacobians as kernel_jacobians
from peewit.runtime.memory import Budget


def bases(layout: Layout, asked: str) -> dict[str, Tensor | None]:
    """Those of the sides that are asked for; a bias has none of its columns."""
    groups, rows, columns = layout.matrix
    left = normal(groups, rows, rows, seed=91) if "l" in asked else None
    right = normal(groups, columns, columns, seed=92) if "r" in asked and columns > 1 else None
    return {"left": left, "right": right}


def in_bases(rows: Tensor, left: Tensor | None = None, right: Tensor | None = None) -> Tensor:
    """(B, K, G, O, I) turned on both sides."""
    rows = rows if left is None else torch.einsum("bkgoi,gor->bkgri", rows, left)
    return rows if right is None else torch.einsum("bkgoi,gir->bkgor", rows, right)


@pytest.mark.parametrize("budget", [LITTLE, PLENTY], ids=["little memory", "plenty"])
@pytest.mark.parametrize("asked", ["", "l", "r", "lr"])
@pytest.mark.parametrize("kind", KINDS)
def test_questions_in_bases(kind: str, asked: str, budget: Budget) -> None:
    """Squares, covariances and variances in any bases, and the product itself."""
    jacobian = matrix_of(kind, budget)
    chosen = bases(jacobian.layout, asked)
    expected = in_bases(written_out(jacobian.terms), **chosen)
    weight = normal(*jacobian.layout.matrix, seed=93).square()
    cov = torch.einsum("bkgoi,goi,blgoi->bkl", expected, weight, expected)
    torch.testing.assert_close(jacobian.product(slice(1, 3), **chosen), expected[1:].transpose(1, 2))
    torch.testing.assert_close(jacobian.square_sum(**chosen), expected.square().sum((0, 1)))
    torch.testing.assert_close(jacobian.quad(weight, **chosen), cov)
    torch.testing.assert_close(jacobian.variance(weight, **chosen), cov.diagonal(dim1=1, dim2=2))


@pytest.mark.parametrize("budget", [LITTLE, PLENTY], ids=["little memory", "plenty"])
@pytest.mark.parametrize("kind", KINDS)
def test_questions_in_the_order_of_the_tensor(kind: str, budget: Budget) -> None:
    """Rows, products with vectors, and sizes."""
    jacobian = matrix_of(kind, budget)
    found = written_out(jacobian.terms)
    expected = torch.empty(EXAMPLES, PROBES, jacobian.size, dtype=torch.float64, device=DEVICE)
    expected[..., places(jacobian.layout).flatten()] = found.flatten(2)
    vectors = normal(4, jacobian.size, seed=94)
    assert (jacobian.examples, jacobian.probes, jacobian.dtype) == (EXAMPLES, PROBES, torch.float64)
    assert jacobian.size == found[0, 0].numel()
    torch.testing.assert_close(jacobian.rows(slice(1, 3)), expected[1:].transpose(0, 1))
    torch.testing.assert_close(jacobian.apply(vectors), torch.einsum("bkp,sp->skb", expected, vectors))


@pytest.mark.parametrize(
    "layout",
    [
        GROUPED,
        ACROSS,
        PLAIN,
        BIAS,
        Layout.plain(1, 1, 5),
        Layout((4,), (0,), (4, 1, 1)),
        Layout((2, 3), (0, 1), (2, 3, 1)),
    ],
)
def test_layouts(layout: Layout) -> None:
    """There and back again, with and without leading axes; and the other way round."""
    index = places(layout)
    flat = normal(3, 2, index.numel())
    for lead in (flat[0, 0], flat[0], flat):
        matrix = layout.to_matrix(lead)
        assert torch.equal(matrix, lead[..., index])
        assert torch.equal(layout.to_flat(matrix), lead)
        assert torch.equal(layout.transpose().to_matrix(lead), matrix.mT)
    assert layout.transpose().matrix == (layout.matrix[0], layout.matrix[2], layout.matrix[1])


@pytest.mark.parametrize("kind", ["one position", "positions in groups", "one position, flipped", "two flipped uses"])
def test_a_bias_joins_its_weight(kind: str) -> None:
    """As a further column of ones, of rows that hold the gradients."""
    jacobian = matrix_of(kind, PLENTY)
    joined = jacobian.with_bias()
    flipped = jacobian.terms[0].flipped
    weight = written_out(jacobian.terms)
    bias = sum(term.grad.sum(3).transpose(0, 1) for term in jacobian.terms)
    expected = torch.cat([weight.mT if flipped else weight, bias[..., None]], -1)
    assert joined.layout == Layout.plain(*expected.shape[2:])
    assert all(term.acts.width == expected.shape[-1] for term in joined.terms)
    torch.testing.assert_close(joined.rows(slice(0, EXAMPLES)), expected.flatten(2).transpose(0, 1))
    right = normal(*expected.shape[2:3], *expected.shape[-1:] * 2, seed=95)
    torch.testing.assert_close(joined.square_sum(None, right), in_bases(expected, None, right).square().sum((0, 1)))


def test_inputs_that_know_a_shorter_way_into_a_basis() -> None:
    """It is taken where there is a basis and no ones are appended."""
    given, basis = normal(EXAMPLES, 2, 3, 4), normal(2, 4, 4, seed=1)
    acts = Acts(
        make=lambda some: given[some], width=4, positions=3, make_in_basis=lambda some, basis: 2 * given[some] @ basis
    )
    some = slice(0, 2)
    torch.testing.assert_close(acts(some), given[some])
    torch.testing.assert_close(acts(some, basis), 2 * given[some] @ basis)
    wider = normal(2, 5, 5, seed=2)
    ones = torch.cat([given[some], torch.ones(2, 2, 3, 1, dtype=torch.float64, device=DEVICE)], -1)
    torch.testing.assert_close(acts.with_ones()(some), ones)
    torch.testing.assert_close(acts.with_ones()(some, wider), ones @ wider)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("width", [1, 3])
def test_rows_and_columns_in_a_basis(width: int, groups: int) -> None:
    """Each group in its own."""
    basis = normal(groups, width, width, seed=1)
    rows, matrices = normal(EXAMPLES, groups, 4, width), normal(EXAMPLES, groups, PROBES, 4, width)
    torch.testing.assert_close(layout.rotate(rows, basis), torch.einsum("bgti,gij->bgtj", rows, basis))
    found = layout.rotate_columns(matrices, basis)
    torch.testing.assert_close(found, torch.einsum("bgkoi,gij->bgkoj", matrices, basis))


def test_a_bias_with_its_positions_summed() -> None:
    """Is one at a single position, whose input is one."""
    plain = matrix_of("bias at positions", PLENTY)._plain()
    acts = plain.terms[0].acts
    assert (acts.width, acts.positions, acts.constant) == (1, 1, True)
    assert torch.equal(acts(slice(1, 3)), torch.ones(2, 1, 1, 1, dtype=torch.float64, device=DEVICE))
    assert plain._plain() is plain and plain.upright() is plain


def test_inputs_that_are_tokens() -> None:
    """One-hot vectors, or rows of the basis."""
    acts, basis = matrix_of("tokens", PLENTY).terms[0].acts, normal(1, 3, 3)
    expected = one_hot(matrix_of("tokens", PLENTY).terms[0])[1:]
    assert torch.equal(acts(slice(1, 3)).double(), expected)
    torch.testing.assert_close(acts(slice(1, 3), basis), expected @ basis)


def test_inputs_have_the_dtype_of_the_gradients() -> None:
    """Whatever asks for them: token numbers and inputs in half precision among them."""
    for kind in ("one position", "positions", "tokens", "tokens and a product"):
        jacobian = matrix_of(kind, PLENTY)
        terms = tuple(replace(term, grad=term.grad.float()) for term in jacobian.terms)
        narrow, weight = replace(jacobian, terms=terms), torch.ones(jacobian.layout.matrix, device=DEVICE)
        vectors = normal(2, jacobian.size).float()
        made = [narrow.square_sum(), narrow.quad(weight), narrow.variance(weight), narrow.apply(vectors)]
        made.append(narrow.rows(slice(0, 1)))
        assert {each.dtype for each in made} == {torch.float32}


@pytest.mark.parametrize("right", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_gradients(kind: str, right: bool) -> None:
    """`inner` splits a covariance into gradients and their weights where there is one position, not flipped."""
    jacobian = matrix_of(kind, PLENTY)
    basis = bases(jacobian.layout, "r" if right else "")["right"]
    weight = normal(*jacobian.layout.matrix, seed=93).square()
    found = jacobian.inner(weight, basis)
    if kind not in ("one position", "one position in groups", "bias"):
        assert found is None
        return
    assert found is not None
    grad, inner = found
    assert grad is jacobian.terms[0].grad
    expected = in_bases(written_out(jacobian.terms), None, basis)
    cov = torch.einsum("bkgoi,goi,blgoi->bkl", expected, weight, expected)
    rows = grad[:, :, :, 0]
    torch.testing.assert_close(torch.einsum("kbgo,bgo,lbgo->bkl", rows, inner, rows), cov)


def test_gradients_in_products_and_weights() -> None:
    """Covariances can be differentiated in the weight, and in the gradients."""
    jacobian = matrix_of("positions", PLENTY)
    weight = normal(*jacobian.layout.matrix, seed=93).square().requires_grad_()
    term = jacobian.terms[0]
    leaf = term.grad.clone().requires_grad_()
    for own, at in ((jacobian, weight), (replace(jacobian, terms=(replace(term, grad=leaf),)), leaf)):
        expected = written_out(own.terms)
        cov = torch.einsum("bkgoi,goi,blgoi->bkl", expected, weight, expected)
        made = own.quad(weight if at is weight else weight.detach())
        direction = normal(*cov.shape, seed=97)
        (wanted,) = torch.autograd.grad(cov, at, direction, retain_graph=True)
        (found,) = torch.autograd.grad(made, at, direction)
        torch.testing.assert_close(found, wanted)


@dataclass
class Kernels:
    """Stands in for the fused kernels: the same questions, answered with whole products."""

    asked: list[tuple[str, bool]]

    def rotate(self, grad: Tensor, basis: Tensor | None, axis: int, two: bool, half: torch.dtype) -> Tensor:
        """(K, b, G, T, O)."""
        assert axis == 1 and half == torch.float16
        self.asked.append(("gradients", two))
        return grad if basis is None else grad @ basis

    def operand(self, acts: Acts, examples: slice, basis: Tensor | None, two: bool, half: torch.dtype) -> Tensor:
        """(b, G, T, I)."""
        assert half == torch.float16
        self.asked.append(("inputs", two))
        return acts(examples, basis)

    def square_sums(self, grad: Tensor, act: Tensor) -> Tensor:
        """(G, O, I)."""
        return torch.einsum("kbgto,bgti->kbgoi", grad, act).square().sum((0, 1))

    def inner_products(self, grad: Tensor, act: Tensor, weight: Tensor, diagonal: bool) -> Tensor:
        """(b, K, K), or (b, K)."""
        rows = torch.einsum("kbgto,bgti->bkgoi", grad, act)
        cov = torch.einsum("bkgoi,goi,blgoi->bkl", rows, weight, rows)
        return cov.diagonal(dim1=1, dim2=2) if diagonal else cov


def with_kernels(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bool]]:
    """Pretend that there are kernels; what they are asked for, and whether in two parts."""
    kernels = Kernels([])
    monkeypatch.setattr(operands, "rotate", kernels.rotate)
    monkeypatch.setattr(Acts, "operand", lambda acts, *given: kernels.operand(acts, *given))
    for name in ("square_sums", "inner_products"):
        monkeypatch.setattr(kernel_jacobians, name, getattr(kernels, name))
    monkeypatch.setattr(available, "usable", lambda grad, probes: probes == PROBES)
    return kernels.asked


@pytest.mark.parametrize("budget", [LITTLE, PLENTY], ids=["little memory", "plenty"])
def test_what_the_kernels_are_asked(budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits ask for two parts, predictions for one; the answers are put together over the examples."""
    asked = with_kernels(monkeypatch)
    jacobian = matrix_of("positions in groups", budget)
    chosen = bases(jacobian.layout, "lr")
    expected = in_bases(written_out(jacobian.terms), **chosen)
    weight = normal(*jacobian.layout.matrix, seed=93).square()
    cov = torch.einsum("bkgoi,goi,blgoi->bkl", expected, weight, expected)
    for made, wanted, two in (
        (lambda: jacobian.square_sum(**chosen), expected.square().sum((0, 1)), True),
        (lambda: jacobian.quad(weight, **chosen), cov, False),
        (lambda: jacobian.variance(weight, **chosen), cov.diagonal(dim1=1, dim2=2), False),
    ):
        asked.clear()
        torch.testing.assert_close(made(), wanted)
        assert set(asked) == {("gradients", two), ("inputs", two)}


def test_where_kernels_do_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two uses, tokens, other sides, gradients that are asked for, too many rows, or operands that are larger."""
    asked = with_kernels(monkeypatch)
    usual = matrix_of("positions", PLENTY)
    weight = normal(*usual.layout.matrix, seed=93).square()
    for jacobian in (matrix_of(kind, PLENTY) for kind in ("two uses", "either way", "tokens twice", "one position")):
        jacobian.square_sum()
    replace(usual, graph=True).square_sum()
    token = replace(usual.terms[0], acts=replace(usual.terms[0].acts, index=torch.zeros(3, 3, dtype=torch.long)))
    assert not replace(usual, terms=(token,))._fusable()
    usual.quad(weight.clone().requires_grad_())
    usual.variance(weight.clone().requires_grad_())
    monkeypatch.setattr(factored, "LARGEST_GRID", usual.layout.matrix[1] - 1)
    usual.quad(weight)
    assert not asked
    monkeypatch.setattr(factored, "LARGEST_GRID", usual.layout.matrix[1])
    sizes = []
    monkeypatch.setattr(kernel_jacobians, "worthwhile", lambda *given: sizes.append(given))
    grouped = matrix_of("positions in groups", PLENTY)
    grouped.square_sum()
    alone = replace(grouped.terms[0], grad=grouped.terms[0].grad[:, :1])
    assert not replace(grouped, terms=(alone,))._fusable()
    assert sizes == [(PROBES * 24, PROBES * 2 * 3 * 3 + 2 * 3 * 4)] * 2 and not asked
    assert LARGEST_GRID == 2**16 - 1  # as CUDA has it
    usual.quad(weight)
    assert not asked


def test_kernels_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """The slower way gives the same."""
    with_kernels(monkeypatch)
    monkeypatch.setattr(available, "attempt", lambda compute: None)
    jacobian = matrix_of("positions in groups", PLENTY)
    weight = normal(*jacobian.layout.matrix, seed=93).square()
    expected = written_out(jacobian.terms)
    cov = torch.einsum("bkgoi,goi,blgoi->bkl", expected, weight, expected)
    torch.testing.assert_close(jacobian.square_sum(), expected.square().sum((0, 1)))
    torch.testing.assert_close(jacobian.quad(weight), cov)
    torch.testing.assert_close(jacobian.variance(weight), cov.diagonal(dim1=1, dim2=2))


def test_explicit_rows() -> None:
    """The same questions of rows that are there; they have one probe."""
    value = normal(PROBES, EXAMPLES, 5)
    jacobian, weight, vectors = Explicit(value, PLENTY), normal(1, 5, 1, seed=1).square(), normal(4, 5, seed=2)
    assert (jacobian.probes, jacobian.examples, jacobian.size) == (PROBES, EXAMPLES, 5)
    assert jacobian.layout == Layout.plain(1, 5, 1)
    cov = torch.einsum("kbp,p,lbp->bkl", value, weight.flatten(), value)
    torch.testing.assert_close(jacobian.square_sum(), torch.einsum("kbp,kbp->p", value, value)[None, :, None])
    torch.testing.assert_close(jacobian.quad(weight), cov)
    torch.testing.assert_close(jacobian.variance(weight), cov.diagonal(dim1=1, dim2=2))
    torch.testing.assert_close(jacobian.apply(vectors), torch.einsum("kbp,sp->skb", value, vectors))
    assert torch.equal(jacobian.rows(slice(1, 3)), value[:, 1:])


def test_weights_side_by_side() -> None:
    """An absent one is zero; a mask leaves elements out; a weight and its bias are one matrix."""
    first, third = normal(PROBES, EXAMPLES, 4), normal(PROBES, EXAMPLES, 2, seed=1)
    pieces = None, Explicit(first, LITTLE), Explicit(third, PLENTY)
    whole = torch.cat([torch.zeros_like(first)[..., :3], first, third], -1)
    mask = torch.tensor([True, False, True] * 3, device=DEVICE)
    for own, rows in ((None, whole), (mask, whole[..., mask])):
        stacked = Stacked(pieces, (3, 4, 2), own)
        assert (stacked.probes, stacked.examples, stacked.size) == (PROBES, EXAMPLES, rows.shape[-1])
        assert stacked.budget is LITTLE
        assert torch.equal(stacked.rows(slice(1, 3)), rows[:, 1:])
        vectors = normal(5, rows.shape[-1], seed=2)
        torch.testing.assert_close(stacked.apply(vectors), torch.einsum("kbp,sp->skb", rows, vectors))

    weight, bias = normal(PROBES, EXAMPLES, 24), normal(PROBES, EXAMPLES, 6, seed=1)
    joined = torch.cat([weight[..., places(GROUPED)], bias.unflatten(-1, (2, 3, 1))], -1).flatten(-3)
    assert torch.equal(join(weight, bias, GROUPED), joined)
    assert all(map(torch.equal, part_ways(joined, GROUPED), (weight, bias)))
    assert all(map(torch.equal, part_ways(joined[0, 0], GROUPED), (weight[0, 0], bias[0, 0])))
    stacked = Stacked((Explicit(weight, PLENTY), Explicit(bias, PLENTY)), (24, 6), joint=GROUPED)
    assert torch.equal(stacked.rows(slice(0, 2)), joined[:, :2])


@pytest.mark.parametrize("budget", [LITTLE, PLENTY], ids=["little memory", "plenty"])
@pytest.mark.parametrize("asked", ["", "l", "r", "lr"])
@pytest.mark.parametrize("kind", OUTERMOST)
def test_outermost_layers(kind: str, asked: str, budget: Budget) -> None:
    """Every question, in any bases, without the gradients."""
    jacobian, dense = outermost_of(kind, budget)
    chosen = bases(jacobian.layout, asked)
    expected = in_bases(dense, **chosen)
    weight = normal(*jacobian.layout.matrix, seed=93).square()
    cov = torch.einsum("bkgoi,goi,blgoi->bkl", expected, weight, expected)
    torch.testing.assert_close(jacobian.quad(weight, **chosen), cov)
    torch.testing.assert_close(jacobian.variance(weight, **chosen), cov.diagonal(dim1=1, dim2=2))
    torch.testing.assert_close(jacobian.product(slice(1, 3), **chosen), expected[1:].transpose(1, 2))
    rows, vectors = dense.flatten(2), normal(4, jacobian.size, seed=94)
    assert (jacobian.examples, jacobian.probes) == rows.shape[:2]
    assert (jacobian.size, jacobian.groups, jacobian.dtype) == (rows.shape[2], dense.shape[2], torch.float64)
    torch.testing.assert_close(jacobian.rows(slice(0, 2)), rows[:2].transpose(0, 1))
    torch.testing.assert_close(jacobian.apply(vectors), torch.einsum("bkp,sp->skb", rows, vectors))


@pytest.mark.parametrize("budget", [LITTLE, PLENTY], ids=["little memory", "plenty"])
@pytest.mark.parametrize("kind", OUTERMOST)
def test_outermost_biases(kind: str, budget: Budget) -> None:
    """By themselves their inputs are ones; joined to their weight they are its last column."""
    jacobian, dense = outermost_of(kind, budget)
    groups, positions, rows, flipped = OUTERMOST[kind]
    upright = dense.mT if flipped else dense
    layout = Layout.plain(groups, rows, 1)
    like = torch.empty((), dtype=torch.float64, device=DEVICE)
    term = Term(
        Acts(make=lambda some: normal(1), width=1, positions=positions, constant=True), jacobian.order[None, None]
    )
    bias = OutputLayerJacobian.of(term, layout, EXAMPLES, like, budget)
    marks = torch.zeros(*upright.shape[:-1], 1, dtype=torch.float64, device=DEVICE)
    for g in range(groups):
        for t in range(positions):
            for o in range(rows):
                marks[:, int(jacobian.order[g, t, o]), g, o] = 1
    torch.testing.assert_close(bias.rows(slice(1, 3)), marks[1:].flatten(2).transpose(0, 1))
    weight = normal(groups, rows, 1, seed=93).square()
    torch.testing.assert_close(bias.variance(weight), torch.einsum("bkgoi,goi->bk", marks, weight))
    joined = jacobian.with_bias()
    assert joined.layout == Layout.plain(groups, rows, 5)
    whole = torch.cat([upright, marks], -1).flatten(2)
    torch.testing.assert_close(joined.rows(slice(0, EXAMPLES)), whole.transpose(0, 1))


@pytest.mark.parametrize("budget", [LITTLE, PLENTY], ids=["little memory", "plenty"])
@pytest.mark.parametrize("kind", ["one position", "positions", "positions, flipped"])
def test_variances_from_roots_of_rows(kind: str, budget: Budget) -> None:
    """Of a layer's weight and another's with the same outputs, under any precision of both."""
    pieces = tuple(outermost_of(kind, budget, seed)[0] for seed in (0, 1))
    rows = torch.cat([outermost_of(kind, budget, seed)[1].flatten(2) for seed in (0, 1)], -1)
    size = rows.shape[-1]
    precision = normal(size, size, seed=5) @ normal(size, size, seed=5).T + 0.1 * torch.eye(size, device=DEVICE)
    covariance = torch.linalg.inv(precision)
    own = row_places(pieces)
    for place in own:
        hit = torch.zeros(size, dtype=torch.bool, device=DEVICE)
        hit[place.to(DEVICE)] = True
        assert int(hit.sum()) == 8
    roots = row_roots(torch.linalg.cholesky(precision), own, budget)
    blocks = torch.stack([covariance[place][:, place] for place in own.to(DEVICE)])
    torch.testing.assert_close(roots.mT @ roots, blocks)
    expected = torch.einsum("bkp,pq,bkq->bk", rows, covariance, rows)
    torch.testing.assert_close(rooted_variance(pieces, roots), expected)
    first, size = pieces[:1], size // 2
    alone = row_roots(torch.linalg.cholesky(precision[:size, :size]), row_places(first), budget)
    variance = torch.einsum(
        "bkp,pq,bkq->bk", rows[..., :size], torch.linalg.inv(precision[:size, :size]), rows[..., :size]
    )
    torch.testing.assert_close(rooted_variance(first, alone), variance)


def test_which_jacobians_are_outermost_alone() -> None:
    """Not where some piece is another, in groups, absent, masked or joined to its bias."""
    own, grouped = (outermost_of(kind, PLENTY)[0] for kind in ("positions", "groups"))
    sizes = (own.size, own.size)
    other = Explicit(normal(PROBES, EXAMPLES, own.size), PLENTY)
    assert outermost_pieces(own) == (own,)
    assert outermost_pieces(Stacked((own, own), sizes)) == (own, own)
    assert outermost_pieces(grouped) is None and outermost_pieces(other) is None
    for pieces in ((own, grouped), (own, other), (own, None)):
        assert outermost_pieces(Stacked(pieces, sizes)) is None
    assert outermost_pieces(Stacked((own, own), sizes, mask=torch.ones(2 * own.size, dtype=torch.bool))) is None
    assert outermost_pieces(Stacked((own, own), sizes, joint=own.layout)) is None


def test_spectra_add_up() -> None:
    """Bases and weights of several blocks, one of them without a basis."""
    basis, weights, other = normal(3, 4), normal(2, 5, 4, seed=1), normal(2, 5, 3, seed=2)
    expected = torch.einsum("or,btr,pr->btop", basis, weights, basis) + torch.diag_embed(other)
    spectra: Any = [(basis, weights), (None, other)]
    for order in (spectra, spectra[::-1]):
        torch.testing.assert_close(covariance_of_spectra(order), expected)
        torch.testing.assert_close(variance_of_spectra(order), expected.diagonal(dim1=-2, dim2=-1))


def test_one_probe_for_each_output() -> None:
    """For every example alike."""
    output = normal(EXAMPLES, 2, 3)
    made = identity_probes(output)
    assert made.shape == (6, EXAMPLES, 2, 3) and made.dtype == output.dtype
    for number in range(6):
        expected = torch.zeros(6, dtype=torch.float64, device=DEVICE)
        expected[number] = 1
        assert torch.equal(made[number].flatten(1), expected.expand(EXAMPLES, 6))
    assert torch.equal(identity_probes(output[:1]), made[:, :1])


def used_twice(tokens: bool) -> Matrix:
    """A bias of a layer that is applied twice, to several positions, or an embedding that is."""
    terms = []
    for seed, positions in ((1, 3), (2, 2)):
        grad = normal(2, 4, 1, positions, 5, seed=seed)
        if tokens:
            index = torch.randint(3, (4, positions), generator=torch.Generator().manual_seed(seed)).to(DEVICE)
            hot = torch.nn.functional.one_hot(index, 3).double().unsqueeze(1)
            acts = Acts(make=lambda chosen, hot=hot: hot[chosen], width=3, positions=positions, index=index)
        else:
            ones = torch.ones(4, 1, positions, 1, dtype=torch.float64, device=DEVICE)
            acts = Acts(make=lambda chosen, ones=ones: ones[chosen], width=1, positions=positions, constant=True)
        terms.append(Term(acts, grad))
    return Matrix(tuple(terms), Layout.plain(1, 5, 3 if tokens else 1), ROOM)


@pytest.mark.parametrize("tokens", [False, True])
def test_every_use_of_a_weight_counts(tokens: bool) -> None:
    """Squares, covariances and variances, from loops over examples, uses and positions."""
    matrix = used_twice(tokens)
    rows = torch.zeros(2, 4, 5, matrix.layout.matrix[2], dtype=torch.float64, device=DEVICE)
    for term in matrix.terms:
        acts = term.acts(slice(0, 4))
        for example, position in itertools.product(range(4), range(term.acts.positions)):
            for probe in range(2):
                rows[probe, example] += torch.outer(term.grad[probe, example, 0, position], acts[example, 0, position])
    weight = normal(1, 5, matrix.layout.matrix[2], seed=3).square()
    covariance = torch.einsum("kboi,oi,lboi->bkl", rows, weight[0], rows)
    torch.testing.assert_close(matrix.square_sum()[0], rows.square().sum((0, 1)))
    torch.testing.assert_close(matrix.quad(weight), covariance)
    torch.testing.assert_close(matrix.variance(weight), covariance.diagonal(dim1=-2, dim2=-1))
