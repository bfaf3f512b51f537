"""Sums of factors over the data, each against dense products in float64: sides, counts, masks, orientations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from fitting import normal
from known_batches import ROOM, batch_of, source_of
from peewit.curvature.batch import KeptChunks, bytes_of
from peewit.curvature.restart import PassRestart
from peewit.curvature.structures import contributions, grams, rounding
from peewit.curvature.structures.contributions import add_gradients, add_inputs, add_other
from peewit.curvature.structures.factors import KronFactors, KronSums
from peewit.curvature.structures.rounding import Rounding
from peewit.jacobians.explicit import Explicit
from peewit.jacobians.factored import Matrix, Term
from peewit.jacobians.inputs import Acts
from peewit.jacobians.layout import Layout
from peewit.kernels import available
from peewit.kernels import products as kernel_products
from peewit.runtime.arithmetic import Arithmetic
from peewit.runtime.memory import Budget, budget
from peewit.weights.ranges import WeightRange
from structure_numbers import close

KEY = (WeightRange("a.weight", 0, 84),)
PROBES, EXAMPLES, GROUPS, ROWS, WIDTH = 3, 5, 2, 6, 7


def whole(*shape: int, seed: int = 1) -> Tensor:
    """Whole numbers, whose sums of products are exact in any order and in float32."""
    return (3 * normal(*shape, seed=seed)).round()


# Products of rows with themselves


@pytest.mark.parametrize(("number", "width"), [(4, 3), (8, 3), (9, 3), (8, 5), (11, 5)])
def test_rows_in_chunks(number: int, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the dtype of the rows where they are few, else summed in float64; products in float64 where asked."""
    monkeypatch.setattr(grams, "CHUNK", 4)
    monkeypatch.setattr(grams, "NARROW", 3)
    rows = whole(5, number, width)
    expected = torch.einsum("gni,gnj->gij", rows, rows)
    made = grams.outer(rows.float(), ROOM)
    assert made.dtype == (torch.float32 if number == 4 else torch.float64) and torch.equal(made.double(), expected)
    fine = normal(2, number, width).float()
    close(grams.outer(fine, ROOM, torch.float64), torch.einsum("gni,gnj->gij", fine.double(), fine.double()))
    close(grams.outer(fine.double(), ROOM), torch.einsum("gni,gnj->gij", fine.double(), fine.double()))


def test_sides_too_long_to_square() -> None:
    """16,384 numbers are squared, one more are not; the same for weights without a Kronecker form, from 1,024."""
    for width, shape in ((16_384, (1, 16_384, 16_384)), (16_385, (1, 16_385))):
        assert grams.outer(torch.empty(1, 2, width, device="meta"), ROOM).shape == shape
    rows = whole(2, 3, 16_385)
    assert torch.equal(grams.outer(rows.float(), ROOM), rows.square().sum(1).float())
    for tall, wide, gradients, inputs in (
        (16_384, 1, (1, 16_384, 16_384), (1, 1, 1)),
        (16_385, 1, (1, 16_385), (1, 1, 1)),
        (1, 16_384, (1, 1, 1), (1, 16_384, 16_384)),
        (1, 16_385, (1, 1, 1), (1, 16_385)),
    ):
        term = Term(
            Acts(make=lambda chosen: torch.empty(0), width=wide, positions=1),
            torch.empty(1, 1, 1, 1, tall, device="meta"),
        )
        sums = KronSums()
        add_gradients(sums, KEY, Matrix((term,), Layout.plain(1, tall, wide), ROOM), False, {}, lambda side: None)
        made = sums.factors[KEY, False]
        assert made.gradients.shape == gradients and made.inputs.shape == inputs
        assert made.gradients.dtype == made.inputs.dtype == torch.float64
    for size, shape in ((1_024, (1_024, 1_024)), (1_025, (1_025,))):
        sums = KronSums()
        add_other(sums, WeightRange("a", 0, size), Explicit(torch.empty(1, 2, size, device="meta"), ROOM))
        assert sums.others[WeightRange("a", 0, size)].shape == shape


def test_products_by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one group, wide enough and in two parts, if they run; they are asked by the number of products."""
    asked: list[tuple[Tensor, float]] = []
    monkeypatch.setattr(kernel_products, "in_parts", lambda rows, number: asked.append((rows, number)) or True)
    monkeypatch.setattr(available, "attempt", lambda compute: compute())
    monkeypatch.setattr(kernel_products, "outer", lambda rows: 2.0 * rows.T @ rows)
    auto, coarse = replace(ROOM, arithmetic=Arithmetic("auto")), replace(ROOM, arithmetic=Arithmetic("tf32"))
    for groups, width, room, times in (
        (1, 128, auto, 2.0),
        (1, 129, auto, 2.0),
        (1, 127, auto, 1.0),
        (2, 128, auto, 1.0),
        (1, 128, coarse, 1.0),
    ):
        asked.clear()
        rows = whole(groups, 3, width).float()
        assert torch.equal(grams.product(rows, room), times * (rows.mT @ rows))
        assert len(asked) == (times == 2.0)
        if asked:
            assert asked[0][0] is rows and asked[0][1] == 3 * width**2
    monkeypatch.setattr(available, "attempt", lambda compute: None)
    rows = whole(1, 3, 128).float()
    assert torch.equal(grams.product(rows, auto), rows.mT @ rows)
    monkeypatch.setattr(kernel_products, "in_parts", lambda rows, number: False)
    monkeypatch.setattr(available, "attempt", lambda compute: compute())
    assert torch.equal(grams.product(rows, auto), rows.mT @ rows)


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_products_by_lower_blocks(number: int) -> None:
    """The same matrix, whatever the number of pieces and whether the last of them is shorter."""
    rows = whole(4, 5, 10)
    assert torch.equal(grams.symmetric(rows, number), torch.einsum("gni,gnj->gij", rows, rows))


@pytest.mark.parametrize(("number", "width", "split"), [(512, 128, True), (511, 128, False), (512, 127, False)])
def test_where_lower_blocks_pay(number: int, width: int, split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """From 128 columns and 512 rows on, in four stripes."""
    asked: list[int] = []
    monkeypatch.setattr(grams, "symmetric", lambda rows, stripes: asked.append(stripes) or rows.mT @ rows)
    rows = whole(1, number, width).float()
    assert torch.equal(grams.product(rows, ROOM), rows.mT @ rows)
    assert asked == ([4] if split else [])


# Weights without a Kronecker form


@pytest.mark.parametrize("dense", [True, False])
def test_rows_of_other_weights(dense: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A dense block or its diagonal, in float64; each call adds, and what is left out stays as it was."""
    monkeypatch.setattr(contributions, "LARGEST_DENSE", 4 if dense else 3)
    part, sums = WeightRange("a", 0, 4), KronSums()
    first, second = normal(2, 3, 4), normal(2, 5, 4, seed=2)
    add_other(sums, part, Explicit(first, ROOM), lambda side: None)
    assert not sums.others
    sides: list[Any] = []
    add_other(sums, part, Explicit(first, ROOM), lambda side: sides.append(side) or torch.float32)
    assert sides == [(part, "other")]
    rows = first.flatten(0, 1)
    expected = rows.T @ rows
    close(sums.others[part], expected if dense else expected.diagonal())
    add_other(sums, part, Explicit(second, ROOM))
    rows = second.flatten(0, 1)
    expected = expected + rows.T @ rows
    close(sums.others[part], expected if dense else expected.diagonal())
    add_other(sums, part, Explicit(second, ROOM), lambda side: None)
    close(sums.others[part], expected if dense else expected.diagonal())
    narrow = KronSums()
    add_other(narrow, part, Explicit(first.float(), ROOM), lambda side: torch.float64)
    rows = first.float().double().flatten(0, 1)
    assert narrow.others[part].dtype == torch.float64
    if dense:
        close(narrow.others[part], rows.T @ rows)


def test_counted_positions() -> None:
    """Those that are no padding; of examples with ignored labels, those with a gradient."""
    term = Term(Acts(make=lambda chosen: torch.empty(0), width=1, positions=3), torch.empty(0))
    masked = torch.tensor([True, False])
    alive = torch.tensor([[True, False, True], [False, True, False]])
    valid = torch.tensor([[True, False, True], [True, True, True]])
    padded = torch.tensor([[True, True, False], [True, False, False]])
    assert contributions.counted_positions(term, None, None) is None
    assert contributions.counted_positions(term, masked, None) is None
    assert contributions.counted_positions(term, None, alive) is None
    made = contributions.counted_positions(term, masked, alive)
    assert made is not None and torch.equal(made, valid)
    own = replace(term, counted=padded)
    for given in ((None, None), (masked, None), (None, alive)):
        assert contributions.counted_positions(own, *given) is padded
    made = contributions.counted_positions(own, masked, alive)
    assert made is not None and made.tolist() == [[True, False, False], [True, False, False]]


# Gradients and inputs


def acts_of(values: Tensor, **options: Any) -> Acts:
    """Inputs (B, G, T, width) that are there."""
    return Acts(make=lambda chosen: values[chosen], width=values.shape[-1], positions=values.shape[2], **options)


def term_of(positions: int, flipped: bool = False, seed: int = 1, **options: Any) -> tuple[Term, Tensor]:
    """One use, and its inputs."""
    wide, tall = (ROWS, WIDTH) if flipped else (WIDTH, ROWS)
    values = normal(EXAMPLES, GROUPS, positions, wide, seed=seed)
    grad = normal(PROBES, EXAMPLES, GROUPS, positions, tall, seed=seed + 50)
    return Term(acts_of(values, **options), grad, flipped), values


def matrix_of(*terms: Term, room: Budget = ROOM) -> Matrix:
    """All uses of one weight (2, 6, 7)."""
    return Matrix(terms, Layout.plain(GROUPS, ROWS, WIDTH), room)


def squared(rows: Tensor) -> Tensor:
    """(.., G, T, n) -> (G, n, n)."""
    flat = rows.reshape(-1, *rows.shape[-3:])
    return torch.einsum("bgti,bgtj->gij", flat, flat)


def reduced_inputs(*values: Tensor, weights: list[Tensor | None] | None = None) -> Tensor:
    """(G, n, n) of averages over the counted positions of all uses."""
    given = [1.0 if own is None else own.double()[:, None, :, None] for own in weights or [None] * len(values)]
    total = torch.cat([each * torch.as_tensor(own) for each, own in zip(values, given, strict=True)], 2).sum(2)
    number = torch.cat([torch.ones_like(each[:, :1, :, :1]) * own for each, own in zip(values, given, strict=True)], 2)
    mean = total / number.sum(2).clamp(min=1)
    return torch.einsum("bgi,bgj->gij", mean, mean)


@pytest.mark.parametrize("reduced", [False, True])
def test_gradients_by_orientation(reduced: bool) -> None:
    """Over probes, examples, positions and uses; per use and position, or summed over them first."""
    (first, _), (second, _), (third, _) = term_of(2), term_of(4, seed=2), term_of(3, True, seed=3)
    matrix, sums = matrix_of(first, second, third), KronSums()
    sides: list[Any] = []
    for _ in range(2):
        add_gradients(sums, KEY, matrix, reduced, {}, lambda side: sides.append(side) or torch.float32)
    assert set(sides) == {((KEY, False), "gradients"), ((KEY, True), "gradients")} and len(sides) == 4
    assert sums.layouts == {KEY: matrix.layout}
    if reduced:
        straight = squared((first.grad.sum(3) + second.grad.sum(3)).unsqueeze(3))
        turned = squared(third.grad.sum(3, keepdim=True))
    else:
        straight, turned = squared(first.grad) + squared(second.grad), squared(third.grad)
    for flipped, expected in ((False, straight), (True, turned)):
        made = sums.factors[KEY, flipped]
        close(made.gradients, 2 * expected)
        wide = ROWS if flipped else WIDTH
        assert torch.equal(made.inputs, torch.zeros(GROUPS, wide, wide, dtype=torch.float64)) and made.count == 0.0
    add_gradients(sums, KEY, matrix, reduced, {}, lambda side: None)
    close(sums.factors[KEY, False].gradients, 2 * straight)


def test_gradients_of_weight_and_bias_are_squared_once() -> None:
    """By which they are and the dtype of their products: a bias takes those of its weight."""
    term, _ = term_of(2)
    bias, products, sums = (WeightRange("a.bias", 0, 12),), {}, KronSums()
    matrix = matrix_of(replace(term, grad=term.grad.float()))
    add_gradients(sums, KEY, matrix, False, products)
    (made,) = products.values()
    made += 1
    ones = matrix_of(Term(acts_of(torch.ones(EXAMPLES, GROUPS, 2, 1)), matrix.terms[0].grad))
    ones = replace(ones, layout=Layout.plain(GROUPS, ROWS, 1))
    add_gradients(sums, bias, ones, False, products)
    close(sums.factors[bias, False].gradients, made.double())
    add_gradients(sums, bias, ones, False, products, lambda side: torch.float64)
    assert len(products) == 2
    close(sums.factors[bias, False].gradients, made.double() + squared(matrix.terms[0].grad.double()))
    assert sums.layouts == {KEY: matrix.layout, bias: ones.layout}


def tokens_of(flipped: bool = False, **options: Any) -> tuple[Term, Tensor]:
    """A use with one-hot inputs, of which the last is never there; and the inputs."""
    wide = ROWS if flipped else WIDTH
    index = torch.tensor([[0, 1, 1], [2, 4, 0], [1, 1, 1], [4, 3, 0], [0, 0, 2]])
    values = torch.nn.functional.one_hot(index, wide).double().unsqueeze(1)
    grad = normal(PROBES, EXAMPLES, 1, 3, WIDTH if flipped else ROWS)
    return Term(acts_of(values, index=index, **options), grad, flipped), values


def test_one_hot_inputs_are_counted() -> None:
    """As a diagonal where all uses of an orientation have them, else among the others; with padding less."""
    (token, values), layout = tokens_of(), Layout.plain(1, ROWS, WIDTH)
    plain = replace(term_of(2)[0], acts=acts_of(normal(EXAMPLES, 1, 2, WIDTH)))
    plain = replace(plain, grad=plain.grad[:, :, :1])
    turned = replace(plain, acts=acts_of(normal(EXAMPLES, 1, 2, ROWS)), grad=normal(3, 5, 1, 2, WIDTH), flipped=True)
    counts = values.sum((0, 1, 2))
    kept = torch.tensor([[True, False, True]] * 3 + [[False, False, False]] * 2)
    for weight, expected, number in ((None, counts, 15.0), (kept, (values[:, 0] * kept[..., None]).sum((0, 1)), 6.0)):
        for others, shape in (((), (1, WIDTH)), ((turned,), (1, WIDTH)), ((plain,), (1, WIDTH, WIDTH))):
            matrix, sums = Matrix((token, *others), layout, ROOM), KronSums()
            add_gradients(sums, KEY, matrix, False, {})
            made = sums.factors[KEY, False]
            assert made.inputs.shape == shape
            for times in (1, 2):
                add_inputs(sums, KEY, matrix, [weight, *[None for _ in others]], False)
                whole = torch.diag(times * expected)[None]
                if plain in others:
                    whole = whole + times * squared(plain.acts(slice(0, EXAMPLES)))
                close(made.inputs, whole if len(shape) == 3 else times * expected[None])
                assert made.count == times * (number + (10.0 if plain in others else 0.0))
            if turned in others:
                assert sums.factors[KEY, True].inputs.shape == (1, ROWS, ROWS)
    matrix, sums = Matrix((token,), layout, ROOM), KronSums()
    add_gradients(sums, KEY, matrix, True, {})
    add_inputs(sums, KEY, matrix, [None], True)
    close(sums.factors[KEY, False].inputs, reduced_inputs(values))
    joint = replace(token, acts=token.acts.with_ones())
    own = KronFactors(torch.zeros(1, WIDTH + 1, WIDTH + 1, dtype=torch.float64), torch.zeros(1))
    add_inputs(KronSums(factors={(KEY, False): own}), KEY, Matrix((joint,), layout, ROOM), [None], False)
    close(own.inputs, squared(torch.nn.functional.pad(values, (0, 1), value=1.0)))


@pytest.mark.parametrize("room", [ROOM, Budget(1)])
@pytest.mark.parametrize("reduced", [False, True])
def test_inputs_by_orientation(reduced: bool, room: Budget) -> None:
    """Of counted positions; averages over the positions of all uses, per example, where they are reduced."""
    (first, one), (second, two), (third, three) = term_of(2), term_of(4, seed=2), term_of(3, True, seed=3)
    matrix, sums = matrix_of(first, second, third, room=room), KronSums()
    add_gradients(sums, KEY, matrix, reduced, {})
    straight, turned = sums.factors[KEY, False], sums.factors[KEY, True]
    for own in (straight, turned):
        own.inputs += 1
    add_inputs(sums, KEY, matrix, [None] * 3, reduced, lambda side: None)
    assert straight.count == turned.count == 0.0 and bool((straight.inputs == 1).all())
    sides: list[Any] = []
    add_inputs(sums, KEY, matrix, [None] * 3, reduced, lambda side: sides.append(side) or torch.float32)
    assert set(sides) == {((KEY, False), "inputs"), ((KEY, True), "inputs")}
    close(straight.inputs, 1 + (reduced_inputs(one, two) if reduced else squared(one) + squared(two)))
    close(turned.inputs, 1 + (reduced_inputs(three) if reduced else squared(three)))
    assert (straight.count, turned.count) == ((5.0, 5.0) if reduced else (30.0, 15.0))
    some = torch.tensor([[True, False], [False, False], [True, True], [False, True], [True, True]])
    more = torch.tensor([[True, False, True, True], [False] * 4, [True] * 4, [False] * 4, [False, True, True, False]])
    before = straight.inputs.clone()
    for weights, number in (
        ([some, more, None], 4.0 if reduced else 15.0),
        ([some, None, None], 5.0 if reduced else 26),
    ):
        straight.inputs, straight.count = before.clone(), 0.0
        add_inputs(sums, KEY, matrix, weights, reduced)
        if reduced:
            expected = reduced_inputs(one, two, weights=weights[:2])
        else:
            parts = zip((one, two), weights[:2], strict=True)
            expected = sum(squared(own if w is None else own * w[:, None, :, None]) for own, w in parts)
        close(straight.inputs, before + expected)
        assert straight.count == number


def test_products_of_inputs_in_float64() -> None:
    """Where asked, of inputs in float32; averages too."""
    term, values = term_of(2)
    values = values.float()
    term = replace(term, acts=acts_of(values), grad=term.grad.float())
    for reduced in (False, True):
        sums = KronSums()
        add_gradients(sums, KEY, matrix_of(term), reduced, {})
        add_inputs(sums, KEY, matrix_of(term), [None], reduced, lambda side: torch.float64)
        wide = values.double()
        close(sums.factors[KEY, False].inputs, reduced_inputs(wide) if reduced else squared(wide))


def test_inputs_that_are_ones() -> None:
    """A bias on its own: as many as there are positions that count."""
    ones = Acts(make=lambda chosen: pytest.fail("never made"), width=1, positions=3, constant=True)
    matrix = Matrix((Term(ones, normal(PROBES, EXAMPLES, 1, 3, ROWS)),), Layout.plain(1, ROWS, 1), ROOM)
    sums = KronSums()
    add_gradients(sums, KEY, matrix, False, {})
    add_inputs(sums, KEY, matrix, [None], False)
    made = sums.factors[KEY, False]
    assert made.inputs.tolist() == [[[15.0]]] and made.count == 15.0
    add_inputs(sums, KEY, matrix, [torch.eye(5, 3, dtype=torch.bool)], False)
    assert made.inputs.tolist() == [[[18.0]]] and made.count == 18.0


@dataclass
class Known:
    """Sums over positions that are known, of inputs (B, G, T, I) with I as some axes."""

    values: Tensor
    axes: tuple[int, ...]
    cheaper: bool = True

    def first(self, examples: slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """(b, G, I)."""
        return self.values[examples].sum(2).to(dtype)

    def second(self, budget: Budget, dtype: torch.dtype = torch.float32) -> Tensor:
        """(G, *axes, *axes)."""
        return squared(self.values).to(dtype).reshape(self.values.shape[1], *self.axes, *self.axes)


@pytest.mark.parametrize("axes", [(6,), (2, 3)])
@pytest.mark.parametrize("ones", [False, True])
@pytest.mark.parametrize("graph", [False, True])
def test_inputs_whose_sums_are_known(axes: tuple[int, ...], ones: bool, graph: bool) -> None:
    """Without making them; with a column of ones their sums beside it, and in place where no gradient flows."""
    values = normal(EXAMPLES, 4, 3, 6).requires_grad_(graph)
    width = 6 + ones
    acts = Acts(
        make=lambda chosen: pytest.fail("never made"), width=width, positions=3, ones=ones, moments=Known(values, axes)
    )
    matrix = Matrix((Term(acts, torch.zeros(1, EXAMPLES, 4, 3, 2)),), Layout.plain(4, 2, width), Budget(4))
    before = torch.ones(4, width, width, dtype=torch.float64)
    own = KronFactors(before, torch.zeros(1))
    sums = KronSums(factors={(KEY, False): own})
    add_inputs(sums, KEY, matrix, [None], False, lambda side: torch.float64)
    padded = torch.nn.functional.pad(values, (0, 1), value=1.0) if ones else values
    close(own.inputs, 1 + squared(padded))
    assert own.count == 15.0 and (own.inputs is before) is not graph and own.inputs.requires_grad is graph
    if graph:
        assert bool((before == 1).all())
        (slope,) = torch.autograd.grad(own.inputs.square().sum(), values)
        (expected,) = torch.autograd.grad((1 + squared(padded)).square().sum(), values)
        close(slope, expected)
    averaged = KronFactors(torch.zeros(4, width, width, dtype=torch.float64), torch.zeros(1))
    sums = KronSums(factors={(KEY, False): averaged})
    add_inputs(sums, KEY, matrix, [None], True, lambda side: torch.float64)
    close(averaged.inputs, reduced_inputs(padded))
    assert averaged.count == 5.0


def test_inputs_are_made_where_known_sums_do_not_serve() -> None:
    """Where not all positions count, only a diagonal is kept, or making them is quicker."""
    values, other = normal(EXAMPLES, GROUPS, 3, WIDTH), normal(EXAMPLES, GROUPS, 3, WIDTH, seed=7)
    kept = torch.tensor([[True, False, True], [True, True, True], [False] * 3, [True, False, False], [True] * 3])
    for cheaper, weight, reduced in ((True, kept, False), (False, None, False), (True, kept, True)):
        acts = acts_of(values, moments=Known(other, (WIDTH,), cheaper))
        matrix = matrix_of(Term(acts, torch.zeros(1, EXAMPLES, GROUPS, 3, ROWS)))
        own = KronFactors(torch.zeros(GROUPS, WIDTH, WIDTH, dtype=torch.float64), torch.zeros(1))
        add_inputs(KronSums(factors={(KEY, False): own}), KEY, matrix, [weight], reduced)
        shares = values if weight is None else values * weight[:, None, :, None]
        close(own.inputs, reduced_inputs(values, weights=[weight]) if reduced else squared(shares))
    diagonal = KronFactors(torch.zeros(GROUPS, WIDTH, dtype=torch.float64), torch.zeros(1))
    acts = acts_of(values, moments=Known(other, (WIDTH,)))
    matrix = matrix_of(Term(acts, torch.zeros(1, EXAMPLES, GROUPS, 3, ROWS)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grams, "LARGEST_SIDE", WIDTH - 1)
        add_inputs(KronSums(factors={(KEY, False): diagonal}), KEY, matrix, [None], False)
        close(diagonal.inputs, squared(values).diagonal(dim1=-2, dim2=-1))
        diagonal.inputs = torch.zeros(GROUPS, WIDTH, dtype=torch.float64)
        plain = matrix_of(Term(acts_of(values), torch.zeros(1, EXAMPLES, GROUPS, 3, ROWS)))
        add_inputs(KronSums(factors={(KEY, False): diagonal}), KEY, plain, [None], True)
        close(diagonal.inputs, reduced_inputs(values).diagonal(dim1=-2, dim2=-1))
    diagonal.inputs = torch.zeros(GROUPS, WIDTH, dtype=torch.float64)
    add_inputs(KronSums(factors={(KEY, False): diagonal}), KEY, plain, [None], True)
    close(diagonal.inputs, reduced_inputs(values).diagonal(dim1=-2, dim2=-1))


# Sums as a whole


def test_factors_of_both_measurements() -> None:
    """Sides and counts are added."""
    one = KronFactors(torch.ones(1, 2, 2), torch.full((1, 3), 2.0), 3.0)
    made = one.plus(KronFactors(torch.full((1, 2, 2), 4.0), torch.full((1, 3), 5.0), 6.0))
    assert made.inputs.unique().tolist() == [5.0] and made.gradients.unique().tolist() == [7.0] and made.count == 9.0
    assert KronFactors(torch.ones(1), torch.ones(1)).count == 0.0


def test_what_is_in_float64() -> None:
    """Factors, both orientations of a block with such a basis, and other weights; the rest is rounded."""
    keys = [(WeightRange(name, 0, 4),) for name in "abcd"]
    narrow, wide = torch.ones(1, 2, 2), torch.ones(1, 2, 2, dtype=torch.float64)
    parts = WeightRange("n", 0, 2), WeightRange("m", 0, 2)
    sums = KronSums(
        factors={(keys[0], False): KronFactors(wide, wide), (keys[0], True): KronFactors(narrow, narrow)},
        others={parts[0]: wide[0], parts[1]: narrow[0]},
        bases={keys[1]: (None, wide), keys[2]: (narrow, None), keys[3]: (None, None)},
    )
    assert sums.fine() == {(keys[0], False), (keys[1], False), (keys[1], True), parts[0]}
    assert set(sums.of(keys[0])) == {False, True} and sums.of(keys[0])[True] is sums.factors[keys[0], True]
    assert sums.of(keys[1]) == {} and KronSums().fine() == set() and KronSums().corrected == {}
    sums.factors[keys[0], True] = KronFactors(wide.clone(), wide.clone())
    sums.others[parts[1]] = wide[0]
    assert set(KronSums(factors={(keys[0], True): KronFactors(wide, wide)}).of(keys[0])) == {True}
    sums.narrow({(keys[0], False), parts[1]})
    kept, rounded = sums.factors[keys[0], False], sums.factors[keys[0], True]
    assert kept.inputs.dtype == kept.gradients.dtype == sums.others[parts[1]].dtype == torch.float64
    assert rounded.inputs.dtype == rounded.gradients.dtype == sums.others[parts[0]].dtype == torch.float32


def test_sides_that_are_begun_again() -> None:
    """Inputs with their count, gradients, or another weight's sum; the others stay."""
    key, part, other = (WeightRange("a", 0, 4),), WeightRange("n", 0, 2), WeightRange("m", 0, 2)
    sums = KronSums(
        factors={
            (key, flipped): KronFactors(torch.ones(1, 2, 2), torch.ones(1, 2, 2), 3.0) for flipped in (False, True)
        },
        others={part: torch.ones(2), other: torch.ones(2)},
    )
    sums.drop({((key, False), "inputs"), ((key, True), "gradients"), (part, "other")})
    straight, turned = sums.factors[key, False], sums.factors[key, True]
    assert float(straight.inputs.sum()) == straight.count == 0.0 and float(straight.gradients.sum()) == 4.0
    assert float(turned.gradients.sum()) == 0.0 and float(turned.inputs.sum()) == 4.0 and turned.count == 3.0
    assert set(sums.others) == {other}


# Probes that are gone through again


def chunk(size: int) -> dict[WeightRange, Any]:
    """A weight and its bias with the same gradients, and another weight: 8 and 12 numbers."""
    grad = torch.zeros(1, 1, 1, 1, 8 * size)
    acts = Acts(make=lambda chosen: torch.ones(1, 1, 1, 1)[chosen], width=1, positions=1)
    own = [Matrix((Term(acts, grad),), Layout.plain(1, 8 * size, 1), ROOM) for _ in range(2)]
    other = Explicit(torch.zeros(1, 1, 12 * size), ROOM)
    return {WeightRange("a", 0, 1): own[0], WeightRange("b", 0, 1): own[1], WeightRange("c", 0, 1): other}


def test_probes_are_kept_where_they_fit() -> None:
    """All of them or none, by the bytes of their gradients; those of one chunk always."""
    one, two = chunk(1), chunk(1)
    assert bytes_of(one) == 80
    for room, calls in ((160, 1), (159, 2)):
        batch = batch_of(1, one, two)
        held = KeptChunks(batch, replace(ROOM, spare=room))
        assert list(held) == [one, two] and list(held) == [one, two] and batch.probes.calls == calls
    batch = batch_of(1, one)
    held = KeptChunks(batch, replace(ROOM, spare=0))
    assert list(held) == list(held) == [one] and batch.probes.calls == 1
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    assert budget(800, cpu).spare == budget(800, gpu).spare == 100  # memory that was asked for is scarce
    assert budget(None, cpu).spare == budget(None, cpu).bytes


def test_probes_that_a_reader_leaves() -> None:
    """What was gone through in part is not kept."""
    batch = batch_of(1, chunk(1), chunk(1))
    held = KeptChunks(batch, replace(ROOM, spare=1 << 20))
    next(iter(held))
    assert not held.kept and len(list(held)) == 2 and batch.probes.calls == 2


# Which products are made in float64


def test_when_sums_are_looked_at() -> None:
    """At first, then each time there are four times the data; after the last, if there was more; in float64 never."""
    own: Rounding[str] = Rounding(source=source_of(exact={"b"}), exact={"a"})
    assert own.exact == {"a", "b"} and not own.wide and not own.over()
    assert (own.rounded_diagonals, own.lost, own.seen, own.judged) == ({}, set(), 0, 0)
    assert own.begins(batch_of(10)) and not own.begins(batch_of(10, dtype=torch.float64))
    assert own.due(batch_of(10)) and own.seen == 10 and own.over()
    assert own.judge({}) == set() and own.judged == 10 and not own.over() and not own.begins(batch_of(10))
    assert not own.due(batch_of(29)) and own.over()
    assert own.due(batch_of(1)) and own.seen == 40
    assert not own.due(batch_of(1000, dtype=torch.float64)) and own.wide and not own.over()


def test_blocks_in_which_float32_shows() -> None:
    """By 1e-7 of their largest eigenvalue, beside 3 % of the prior precision over the noise precision."""
    sizes = {
        "a": torch.tensor(2.5e5),
        "b": torch.tensor(3.5e5),
        "c": torch.tensor(torch.inf),
        "d": torch.tensor(torch.nan),
    }
    assert Rounding(source=source_of(expected=1)).find_visible(sizes) == {"b"}
    assert Rounding(source=source_of(), wide=True).find_visible(sizes) == set("abcd")
    assert Rounding(source=source_of()).find_visible({}) == set()
    # With all data numbers are larger: as many times as is known, or a thousand.
    fewer = {key: value / 100 for key, value in sizes.items()}
    assert Rounding(source=source_of(expected=1_000), seen=10).find_visible(fewer) == {"b"}
    assert Rounding(source=source_of(expected=1_000), seen=1_000).find_visible(fewer) == set()
    assert Rounding(source=source_of(), seen=10).find_visible({key: value / 10 for key, value in fewer.items()}) == {
        "b"
    }
    assert Rounding(source=source_of(), seen=10, ended=True).find_visible(sizes) == {"b"}
    assert [Rounding(source=source_of(expected=8), seen=seen).growth for seen in (0, 2, 9)] == [8.0, 4.0, 1.0]
    for degree, scale, least, strength in ((1, 3.0, 0.5, 6.0), (2, 3.0, 0.5, 18.0), (1, 3.0, 2.0, 1.5)):
        settings = {
            "kind": SimpleNamespace(degree=degree),
            "likelihood": SimpleNamespace(noise_precision=scale),
            "least": least,
        }
        own: Rounding[str] = Rounding(source=source_of(**settings, expected=1))
        assert own.strength == pytest.approx(strength)
        given = {"a": torch.tensor(2.5e5 / strength), "b": torch.tensor(3.5e5 / strength)}
        assert own.find_visible(given) == {"b"}


def of_errors(**errors: float) -> dict[str, tuple[Tensor, Tensor]]:
    """Matrices (2, 4, 4) that stand for the error of a variance, in float32 arithmetic."""
    return {name: (torch.full((2, 4, 4), error / 8e-8), torch.zeros(2)) for name, error in errors.items()}


def test_matrices_with_products_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the first batch those whose variances may be off by 3 %; later ones keep what was summed before."""
    given: list[Any] = []

    def amplified(matrix: Tensor, ridge: Tensor, before: Tensor | None) -> Tensor:
        given.append(before)
        return matrix[0, 0, 0]

    monkeypatch.setattr(rounding, "amplification", amplified)
    own: Rounding[str] = Rounding(source=source_of(one_shot=True), exact={"e"})
    own.due(batch_of(10))
    assert own.judge(of_errors(a=0.025, b=0.035, c=0.08, e=9.0)) == {"b", "c"}
    assert own.first and own.exact == {"b", "c", "e"} and own.rounded_diagonals == {} and own.lost == set()
    assert given == [None] * 3
    assert [own.watches(name) for name in "abe"] == [True, False, False]
    own.due(batch_of(30))
    matrices = of_errors(a=0.025, d=0.035, f=0.08, b=9.0)
    assert own.judge(matrices) == {"d", "f"} and not own.first and own.judged == 40
    assert set(own.rounded_diagonals) == {"d", "f"} and torch.equal(own.rounded_diagonals["d"], matrices["d"][0][:, 0])
    matrices["d"][0].zero_()
    assert float(own.rounded_diagonals["d"].min()) > 0
    assert own.exact == set("bcdef") and own.lost == set() and own.watches("d")
    own.due(batch_of(120))
    given.clear()
    assert own.judge(of_errors(d=0.05, f=0.4, a=0.35, g=0.02)) == {"a"}
    assert own.lost == set() and given[0] is own.rounded_diagonals["d"] and given[3] is None  # data to come may help
    own.ended = True
    assert own.judge(of_errors(d=0.25, f=0.4, a=0.05, g=0.35)) == {"g"}
    assert own.lost == {"f", "g"} and [own.watches(name) for name in "dfag"] == [True, False, True, False]
    fresh: Rounding[str] = Rounding(source=source_of())
    fresh.take({"a"}, of_errors(a=1.0))
    assert fresh.exact == {"a"} and fresh.rounded_diagonals == {}


def test_data_are_passed_over_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a matrix turns out too late to need products in float64, and the data can be: from the first batch on."""
    monkeypatch.setattr(rounding, "amplification", lambda matrix, ridge, before: matrix[0, 0, 0])
    source = source_of(exact={"s"})
    own: Rounding[str] = Rounding(source=source, exact={"e"})
    own.due(batch_of(1))
    assert own.judge(of_errors(a=0.5, b=0.01)) == {"a"}
    own.due(batch_of(3))
    assert own.judge(of_errors(b=0.08)) == {"b"}
    own.due(batch_of(12))
    with pytest.raises(PassRestart, match="A weight turned out to need products in float64") as caught:
        own.judge(of_errors(b=0.12, c=0.08, d=0.02))
    assert caught.value.exact == {"s", "e", "a", "b", "c"}


def test_errors_of_products() -> None:
    """4e-8 times the root of the width; on tensor cores 2e-4: of an amplification that is known."""
    near = torch.eye(9, dtype=torch.float64).repeat(2, 1, 1)
    near[1, 0, 1] = near[1, 1, 0] = 1 - 1 / 50
    for name, share in (("auto", 4e-8), ("float32", 4e-8), ("tf32", 2e-4)):
        own: Rounding[str] = Rounding(source=source_of(budget=replace(ROOM, arithmetic=Arithmetic(name))))
        assert float(own._error("a", near, torch.zeros(2))) == pytest.approx(share * 3 * 50, rel=0.05)
    coarse: Rounding[str] = Rounding(source=source_of(budget=replace(ROOM, arithmetic=Arithmetic("tf32"))))
    assert coarse.judge({"a": (near, torch.zeros(2).double())}) == {"a"}  # 2e-4 times 150
    coarse.rounded_diagonals["a"] = 100 * torch.ones(2, 9)
    assert float(coarse._error("a", near, torch.zeros(2).double())) == pytest.approx(2e-4 * 3 * 5000, rel=0.05)


def test_errors_beside_the_prior(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousandth of it, since it may be tuned, and no more of that than was seen of the data."""
    given: list[float] = []

    def amplified(matrix: Tensor, ridge: Tensor, before: Tensor | None) -> Tensor:
        given.extend(ridge.tolist())
        return torch.zeros(())

    monkeypatch.setattr(rounding, "amplification", amplified)
    for expected, seen, ended in ((40, 10, False), (40, 40, False), (0, 10, False), (0, 10, True)):
        own: Rounding[str] = Rounding(source=source_of(expected=expected), seen=seen, ended=ended)
        own._error("a", torch.eye(2)[None], torch.tensor([8.0]))
    own._error("a", torch.eye(2)[None], torch.tensor([8.0]), less=0.5)
    assert given == pytest.approx([2e-3, 8e-3, 8e-6, 8e-3, 4.0])


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("ridge", [[0.0, 0.0], [3.0, 400.0], [400.0, 0.1]])
def test_amplification(ridge: list[float], before: bool) -> None:
    """The largest eigenvalue of two matrices, with what the prior adds to their diagonals; not finite if undecided."""
    rows = normal(2, 12, 5) * torch.tensor([1.0, 3.0, 0.5, 8.0, 2.0])
    matrix, added = rows.mT @ rows, torch.tensor(ridge, dtype=torch.float64)
    size = matrix.diagonal(dim1=-2, dim2=-1)
    root = (
        size * torch.rand(2, 5, generator=torch.Generator().manual_seed(3)) if before else size + added[:, None]
    ).sqrt()
    inner = torch.linalg.inv(matrix + torch.diag_embed(added[:, None].expand(2, 5)))
    expected = torch.linalg.eigvalsh(root[:, :, None] * inner * root[:, None, :]).amax()
    made = rounding.amplification(matrix, added, root.square() if before else None)
    assert 0.75 * expected < made < 1.001 * expected
    matrix[1, 0, 1] = matrix[1, 1, 0] = 1e3
    assert float(rounding.amplification(matrix, 0 * added, root.square() if before else None)) == torch.inf


def test_amplification_of_one_direction_among_many() -> None:
    """Three steps find it among a hundred, in one of many matrices; whatever torch makes by default."""
    width = 100
    share = 0.8 / (width - 1)
    identity = torch.eye(width, dtype=torch.float64)
    matrix = torch.stack([(1 + share) * identity - share, *[identity] * 50])
    expected = 1 / (1 + share - width * share)
    for dtype in (torch.float32, torch.float64):
        torch.set_default_dtype(dtype)
        try:
            made = float(rounding.amplification(matrix, torch.zeros(51, dtype=torch.float64), None))
        finally:
            torch.set_default_dtype(torch.float32)
        assert 0.8 * expected < made < 1.001 * expected


def test_sizes_of_sides() -> None:
    """The largest number of a diagonal, the norm of a matrix; by group."""
    matrix, vector = normal(3, 2, 2), normal(3, 2)
    close(rounding.norm(matrix), matrix.square().sum((1, 2)).sqrt())
    close(rounding.norm(vector), vector.max(1).values)
    close(rounding.diagonal(matrix), torch.stack([matrix[:, 0, 0], matrix[:, 1, 1]], 1))
    assert rounding.in_float64([vector.float(), vector]) and not rounding.in_float64([vector.float()])
    assert not rounding.in_float64([])
