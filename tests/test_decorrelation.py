"""Nearly dependent columns that are taken apart before their products are summed."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
from fitting import normal
from lapwing.arithmetic import Arithmetic, float64_is_fast
from lapwing.jacobians import Acts, Explicit, Layout, Matrix, Term
from lapwing.layers.base import Part
from lapwing.memory import Budget
from lapwing.structures import ahead, block, decorrelation, factors, passes, rounding
from lapwing.structures.decorrelation import Decorrelation, chosen, parents, pivots, sizes
from lapwing.structures.factors import Factors, KronSums
from lapwing.structures.rounding import Rounding
from stand_ins import ROOM, batch_of, source_of


def offsets(examples: int, width: int, seed: int = 0, groups: int = 1) -> Tensor:
    """(G, n, P) far from zero: every column is nearly a multiple of every other."""
    far = 500 + 400 * normal(groups, 1, width, seed=seed + 1).abs()
    return far + normal(groups, examples, width, seed=seed)


def few(examples: int, width: int, rank: int = 5, noise: float = 1e-3, seed: int = 0, groups: int = 1) -> Tensor:
    """(G, n, P) of a few directions and little else: no two columns need be alike."""
    made = normal(groups, examples, rank, seed=seed) @ normal(groups, rank, width, seed=seed + 1)
    return made + noise * normal(groups, examples, width, seed=seed + 2)


def found(rows: Tensor, ridge: float = 1e-6) -> Decorrelation:
    """How these columns are taken apart."""
    made = decorrelation.decorrelation(rows, torch.full((len(rows),), ridge))
    assert made is not None
    return made


def change(own: Decorrelation) -> Tensor:
    """(G, P, P): the matrix that new rows are old ones times, by a loop over columns."""
    groups, width = own.parents.shape
    made = torch.zeros(groups, width, width, dtype=torch.float64)
    for group in range(groups):
        first = torch.eye(width, dtype=torch.float64)
        for place, pivot in enumerate(own.pivots[group].tolist()):
            first[pivot] -= own.explained[group, place]
        second = torch.eye(width, dtype=torch.float64)
        for column in range(width):
            second[own.parents[group, column], column] -= own.shares[group, column]
        made[group] = first @ second
    return made


CASES = {
    "offsets": lambda width, groups: offsets(300, width, groups=groups),
    "few": lambda width, groups: few(300, width, groups=groups),
}


@pytest.mark.parametrize(
    ("kind", "width", "groups"),
    [
        ("offsets", 40, 1),
        ("offsets", 40, 3),
        ("offsets", 128, 1),
        ("offsets", 129, 1),
        ("offsets", 150, 2),
        ("few", 129, 1),
        ("few", 150, 2),
    ],
)
def test_what_is_changed_can_be_undone(kind: str, width: int, groups: int) -> None:
    """New rows, the unit matrix and sums over the new columns, and sums over the old ones made of them again."""
    rows = CASES[kind](width, groups)
    own = found(rows)
    matrix = change(own)
    torch.testing.assert_close(own.rows(rows), rows @ matrix)
    torch.testing.assert_close(own.ridge.double(), matrix.mT @ matrix, rtol=1e-3, atol=1e-4 * width)
    assert own.ridge.dtype == torch.float32
    new, old = (rows @ matrix).mT @ (rows @ matrix), rows.mT @ rows
    torch.testing.assert_close(own.restored(new), old, rtol=1e-9, atol=1e-9 * float(old.abs().max()))
    assert own.pivots.shape == (groups, 8 if width > 128 else 0)
    assert own.explained.shape == (groups, own.pivots.shape[1], width)
    assert own.explained.dtype == own.shares.dtype == torch.float64
    for numbers in (own.explained, own.shares):  # rows in float32 are changed by these very numbers
        assert torch.equal(numbers.float().double(), numbers)


@pytest.mark.parametrize("width", [50, 140])
def test_sums_of_old_columns_are_differentiable(width: int) -> None:
    """As those that were never taken apart."""
    rows = offsets(60, width).requires_grad_()
    own = found(rows.detach())
    weight = normal(1, width, width, seed=5)
    new = own.rows(rows)
    made = (own.restored(new.mT @ new) * weight).sum()
    expected = ((rows.mT @ rows) * weight).sum()
    slopes = [torch.autograd.grad(each, rows)[0] for each in (made, expected)]
    torch.testing.assert_close(*slopes, rtol=1e-7, atol=1e-7 * float(slopes[1].abs().max()))


@pytest.mark.parametrize("groups", [1, 3])
def test_chosen_columns(groups: int) -> None:
    """Of every group its own."""
    rows, columns = normal(groups, 4, 6), torch.tensor([[5, 0], [1, 1], [2, 4]])[:groups]
    expected = torch.stack([rows[group][:, columns[group]] for group in range(groups)])
    assert torch.equal(chosen(rows, columns), expected)


def test_parents() -> None:
    """The larger column that explains most of one, with its least-squares share; the largest has none."""
    rows = normal(2, 30, 9, seed=3) * torch.linspace(3.0, 0.5, 9, dtype=torch.float64)[torch.randperm(9)]
    rows[0, :, 4] = 0.3 * rows[0, :, 2] + 1e-3 * rows[0, :, 4]
    ridge = torch.tensor([1e-3, 0.5], dtype=torch.float64)
    size = sizes(rows, ridge)
    torch.testing.assert_close(size, rows.square().sum(1) + ridge[:, None])
    above, shares, left = parents(rows, size)
    for group in range(2):
        products = rows[group].T @ rows[group]
        for column in range(9):
            larger = [each for each in range(9) if size[group, each] > size[group, column]]
            if not larger:
                assert float(shares[group, column]) == 0.0
                assert float(left[group, column]) == pytest.approx(float(size[group, column]))
                continue
            explained = {each: float(products[each, column] ** 2 / size[group, each]) for each in larger}
            best = max(explained, key=lambda each: explained[each])
            assert int(above[group, column]) == best
            assert float(shares[group, column]) == pytest.approx(float(products[best, column] / size[group, best]))
            assert float(left[group, column]) == pytest.approx(float(size[group, column]) - explained[best])


def test_columns_of_one_size_have_parents_in_their_order() -> None:
    """Equal columns: the first has none, and nothing goes round in a circle."""
    rows = normal(1, 20, 1).expand(1, 20, 40).contiguous()
    own = found(rows)
    assert float(own.shares[0, 0]) == 0.0 and own.parents[0, 1:].tolist() == [0] * 39
    torch.testing.assert_close(own.shares[0, 1:], torch.ones(39, dtype=torch.float64), atol=1e-6, rtol=0)
    new = own.rows(rows)
    torch.testing.assert_close(own.restored(new.mT @ new), rows.mT @ rows)


def test_dead_columns() -> None:
    """Columns of zeros, without a prior: nothing is divided by them."""
    rows = offsets(50, 140)
    rows[:, :, ::3] = 0.0
    own = found(rows, 0.0)
    assert all(bool(torch.isfinite(each).all()) for each in (own.explained, own.shares, own.ridge))
    new = own.rows(rows)
    torch.testing.assert_close(own.restored(new.mT @ new), rows.mT @ rows)


def test_pivots() -> None:
    """Columns that explain the most, and least squares on them; those that explain themselves alone do not count."""
    rows = normal(2, 200, 200, seed=2)
    shared = normal(2, 200, 3, seed=7)
    rows[0] = shared[0] @ normal(3, 200, seed=8) + 1e-3 * rows[0]  # three directions; the other group has none
    size = sizes(rows, torch.full((2,), 1e-9))
    columns, explained, dependent = pivots(rows, size)
    assert bool(dependent) and columns.shape == (2, 8) and explained.shape == (2, 8, 200)
    used = explained[0].abs().sum(1) > 0
    assert used.tolist() == [True] * 3 + [False] * 5
    chosen_rows = rows[0][:, columns[0, :3]]
    expected = torch.linalg.lstsq(chosen_rows, rows[0]).solution
    others = torch.ones(200, dtype=torch.bool).index_fill(0, columns[0, :3], False)
    torch.testing.assert_close(explained[0, :3][:, others], expected[:, others], rtol=1e-3, atol=1e-4)
    assert float(explained[0][:, columns[0, :3]].abs().sum()) == 0.0
    left = rows[0] - rows[0][:, columns[0]] @ explained[0]
    assert float(left[:, others].square().sum() / rows[0].square().sum()) < 1e-4
    scaled = rows[0] / size[0].sqrt()
    gains = (scaled.T @ scaled).square().sum(1)
    assert float(gains[columns[0, 0]]) > 0.9 * float(gains.max())  # the best of the candidates, if not of all


@pytest.mark.parametrize(("noise", "expected"), [(0.02, True), (0.1, False)])
@pytest.mark.parametrize("width", [40, 200])
def test_which_columns_are_nearly_dependent(width: int, noise: float, expected: bool) -> None:
    """With less than a thousandth left, in squares, of one that resembles another, or some pivots."""
    plain = normal(1, 2000, width)
    assert decorrelation.decorrelation(plain, torch.zeros(1)) is None
    pair = plain.clone()
    order = pair.square().sum(1)[0].argsort(descending=True)
    pair[..., order[1]] = pair[..., order[0]] + noise * normal(1, 2000, seed=9)
    assert (decorrelation.decorrelation(pair, torch.zeros(1)) is not None) is expected
    pair[..., order[1]] *= -1
    assert (decorrelation.decorrelation(pair, torch.zeros(1)) is not None) is expected
    if width > 128:
        sum_of_few = few(2000, width, 6, 2.5 * noise)
        assert (decorrelation.decorrelation(sum_of_few, torch.zeros(1)) is not None) is expected
    # The prior makes columns different that are below it.
    assert decorrelation.decorrelation(pair, torch.full((1,), 1e3)) is None


# Sums


@pytest.mark.parametrize(("kind", "width"), [("offsets", 40), ("offsets", 100), ("offsets", 200), ("few", 200)])
def test_sums_in_float32_are_those_in_float64(kind: str, width: int) -> None:
    """Covariances with a weak prior, also of many rows: plain sums of products in float32 lose them."""
    rows = few(5000, width) if kind == "few" else offsets(5000, width)
    rows = rows.float()
    own = found(rows[:, ::20])
    exact = rows.double().mT @ rows.double()
    prior = 1e-5 * torch.eye(width, dtype=torch.float64)
    expected = torch.linalg.inv(exact + prior)[0].diagonal()
    errors = []
    for apart in (None, own):
        made = factors.outer(rows, ROOM, torch.float32, apart).double()
        made = made if apart is None else apart.restored(made)
        errors.append(float((torch.linalg.inv(made + prior)[0].diagonal() / expected - 1).abs().max()))
    assert errors[1] < 1e-3 < 0.03 < errors[0]


@pytest.mark.parametrize("number", [100, 5000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outer_products_over_other_columns(number: int, dtype: torch.dtype) -> None:
    """In one piece or in several, in either dtype."""
    for width in (50, 140):
        rows = offsets(number, width, groups=2).float()
        own = found(rows)
        made = factors.outer(rows, ROOM, dtype, own)
        assert made.dtype == (torch.float64 if number > 2048 else dtype)
        new = rows.double() @ change(own)
        tolerance = 1e-12 if dtype == torch.float64 else 1e-4
        torch.testing.assert_close(
            made.double(), new.mT @ new, rtol=0, atol=tolerance * float((new.mT @ new).abs().max())
        )


WEIGHT, BIAS, NORM = Part("m.weight", 0, 1), Part("m.bias", 0, 1), Part("n.gain", 0, 1)


def layer(
    examples: int, positions: int = 1, columns: int = 2, width: int = 40, height: int = 36, groups: int = 1
) -> tuple[Matrix, Matrix, Tensor, Tensor]:
    """A weight and its bias with nearly dependent inputs and gradients, and both of these."""
    values = offsets(examples * positions, width, 3, groups).reshape(groups, examples, positions, width)
    values = values.transpose(0, 1).float()
    grad = offsets(columns * examples * positions, height, 4, groups)
    grad = grad.reshape(groups, columns, examples, positions, height).permute(1, 2, 0, 3, 4).float()
    acts = Acts(lambda chosen: values[chosen], width, positions)
    ones = Acts(lambda chosen: torch.ones(examples, groups, positions, 1)[chosen], 1, positions, constant=True)
    weight = Matrix((Term(acts, grad),), Layout.plain(groups, height, width), ROOM)
    return weight, Matrix((Term(ones, grad),), Layout.plain(groups, height, 1), ROOM), values, grad


def squared(values: Tensor) -> Tensor:
    """(.., G, T, width) -> (G, width, width) in float64, over the rest."""
    return torch.einsum("...gti,...gtj->gij", values.double(), values.double())


def strong(*batches: Any, **options: Any) -> Any:
    """A source beside whose prior rounding shows."""
    likelihood = lw.Gaussian(1e-4)
    return source_of(*batches, **{"likelihood": likelihood, **options})


@pytest.mark.parametrize("approx", ["expand", "reduce"])
@pytest.mark.parametrize(("positions", "groups"), [(1, 1), (3, 1), (3, 2)])
def test_factors_with_nearly_dependent_sides(approx: str, positions: int, groups: int) -> None:
    """Sums of both sides, of a bias and of another weight, over two batches, with products in float32 alone."""
    made = [layer(60, positions, groups=groups) for _ in range(2)]
    rows = offsets(2 * 60, 45, 9)[0].reshape(2, 60, 45).float()
    chunks = [{WEIGHT: one, BIAS: two, NORM: Explicit(rows, ROOM)} for one, two, _, _ in made]
    batches = [batch_of(60, chunk, positions=positions) for chunk in chunks]
    dtypes = set()
    kept = factors.product

    def product(given: Tensor, budget: Budget) -> Tensor:
        dtypes.add((given.shape[-1], given.dtype))
        return kept(given, budget)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(factors, "product", product)
        source = strong(*batches, expected=120)
        sums = passes.measure_factors(approx, "separate", source)
    assert {each for each in dtypes if each[0] > 1} == {(size, torch.float32) for size in (40, 36, 45)}
    weight, bias = sums.factors[(WEIGHT,), False], sums.factors[(BIAS,), False]
    inputs = [each[2].mean(2, keepdim=True) if approx == "reduce" else each[2] for each in made]
    grads = [each[3].sum(3, keepdim=True) if approx == "reduce" else each[3] for each in made]
    for own, expected in (
        (weight.inputs, sum(squared(each) for each in inputs)),
        (weight.gradients, sum(squared(each) for each in grads)),
        (bias.gradients, sum(squared(each) for each in grads)),
        (sums.others[NORM][None], 2 * rows.double().flatten(0, 1).T @ rows.double().flatten(0, 1)),
    ):
        assert isinstance(expected, Tensor) and own.dtype == torch.float64
        ridge = 1e-6 * torch.eye(own.shape[-1], dtype=torch.float64)
        ratio = torch.linalg.inv(own + ridge).diagonal(dim1=-2, dim2=-1)
        expected = expected[None] if expected.dim() == 2 else expected
        ratio = ratio / torch.linalg.inv(expected + ridge).diagonal(dim1=-2, dim2=-1)
        torch.testing.assert_close(ratio, torch.ones_like(ratio), rtol=0, atol=0.01)


def test_a_bias_is_taken_apart_like_its_weight() -> None:
    """They have the same gradients, and so the same products; others have their own."""
    one, two, _, _ = layer(60)
    other, _, _, _ = layer(60, width=50, height=48)
    key, alone = (Part("k.weight", 0, 1),), (Part("b.bias", 0, 1),)
    far = Matrix((Term(two.terms[0].acts, 1e-9 * two.terms[0].grad),), two.layout, ROOM)
    own: Rounding[Any] = Rounding(strong())
    matrices = {(WEIGHT,): one, (BIAS,): two, key: other, alone: far}
    ahead.take_apart(own, list(ahead.samples(matrices, 2, False)), {}, 1000)
    weight, bias = ((WEIGHT,), False), ((BIAS,), False)
    assert own.apart[weight, "gradients"] is own.apart[bias, "gradients"]
    assert set(own.apart) == {
        (weight, "inputs"),
        (weight, "gradients"),
        (bias, "gradients"),
        ((key, False), "inputs"),
        ((key, False), "gradients"),
    }


def test_sizes_of_samples() -> None:
    """Traces of what is summed for one example, by the first few."""
    one, two, values, grad = layer(300, 3, columns=4)
    (sample,) = ahead.samples({(WEIGHT,): one}, 8, False)  # four of eight columns are in this chunk
    first = sample.examples
    assert first == slice(0, 86) and sample.positions == 3 and sample.own == ((WEIGHT,), False)
    torch.testing.assert_close(sample.input_size(), values[first].square().sum(3).mean((0, 2)))
    torch.testing.assert_close(sample.gradient_size(), 2 * grad[:, first].square().sum((0, 3, 4)).mean(0))
    (sample,) = ahead.samples({(WEIGHT,): one}, 8, True)
    assert sample.positions == 1
    torch.testing.assert_close(sample.input_size(), values[first].mean(2).square().sum(2).mean(0))
    torch.testing.assert_close(sample.gradient_size(), 2 * grad[:, first].sum(3).square().sum((0, 3)).mean(0))
    (sample,) = ahead.samples({(BIAS,): two}, 8, False)
    assert sample.inputs is None and float(sample.input_size()) == 1.0
    wide, *_ = layer(300, 1)
    (sample,) = ahead.samples({(WEIGHT,): wide}, 8, False)
    assert sample.examples == slice(0, 256)
    long, *_ = layer(20, 200)
    (sample,) = ahead.samples({(WEIGHT,): long}, 8, False)
    assert sample.examples == slice(0, 16)


def test_several_uses_are_sampled_together() -> None:
    """Of each orientation by itself."""
    one, _, values, grad = layer(20)
    other, _, more, also = layer(20, positions=2)
    flipped = Term(Acts(lambda chosen: grad[0, chosen], 36, 1), values[None], flipped=True)
    matrix = Matrix((one.terms[0], other.terms[0], flipped), one.layout, ROOM)
    straight, turned = ahead.samples({(WEIGHT,): matrix}, 2, False)
    assert (straight.own, turned.own) == (((WEIGHT,), False), ((WEIGHT,), True))
    assert straight.positions == 3 and turned.positions == 1 and len(turned.terms) == 1
    assert straight.inputs is not None and straight.inputs.shape == (1, 60, 40)
    assert straight.gradients.shape == (1, 2 * 20 * 3, 36)
    torch.testing.assert_close(
        straight.inputs, torch.cat([values.transpose(0, 1).flatten(1, 2), more.transpose(0, 1).flatten(1, 2)], 1)
    )
    (together,) = ahead.samples({(WEIGHT,): Matrix(matrix.terms[:2], one.layout, ROOM)}, 2, True)
    assert together.inputs is not None
    torch.testing.assert_close(together.inputs[0], torch.cat([values[:, 0], more[:, 0]], 1).mean(1))
    torch.testing.assert_close(together.gradients[0], (grad[:, :, 0].sum(2) + also[:, :, 0].sum(2)).flatten(0, 1))


class Known:
    """Sums of inputs that are known in another way."""

    def __init__(self, cheaper: bool) -> None:
        self.cheaper = cheaper


@pytest.mark.parametrize("cheaper", [True, False])
def test_sums_that_are_not_made_of_rows(cheaper: bool) -> None:
    """Such inputs are not taken apart, unless they are averaged first; nor are tokens."""
    one, _, values, grad = layer(60)
    acts = Acts(lambda chosen: values[chosen], 40, 1, moments=Known(cheaper))  # type: ignore[arg-type]
    matrix = Matrix((Term(acts, grad),), one.layout, ROOM)
    side = ((WEIGHT,), False), "inputs"
    for reduced in (False, True):
        own: Rounding[Any] = Rounding(strong())
        ahead.take_apart(own, list(ahead.samples({(WEIGHT,): matrix}, 2, reduced)), {}, 1000)
        assert (side in own.apart) is (reduced or not cheaper)
    tokens = Acts(lambda chosen: values[chosen], 40, 1, index=torch.zeros(60, 1, dtype=torch.int64))
    own = Rounding(strong())
    ahead.take_apart(
        own, list(ahead.samples({(WEIGHT,): Matrix((Term(tokens, grad),), one.layout, ROOM)}, 2, False)), {}, 1000
    )
    assert set(own.apart) == {(((WEIGHT,), False), "gradients")}


def test_what_is_not_taken_apart() -> None:
    """Few or too many columns, float64, products in float64 already, and products of 11 bits."""
    rows = offsets(300, 40).float()

    def taken(given: Tensor = rows, **options: Any) -> bool:
        own: Rounding[str] = Rounding(strong(**options), {"e"})
        for name in "ae":
            own.take_apart(name, given, 1e-9)
        assert "e" not in own.apart
        return "a" in own.apart

    assert taken() and not taken(rows[..., :32]) and taken(rows[..., :33]) and not taken(normal(1, 300, 40).float())
    coarse = strong(budget=Budget(1 << 20, Arithmetic("tf32")))
    cpu = torch.device("cpu")
    assert Rounding(strong()).takes_apart(torch.float32, cpu)
    assert not Rounding(strong()).takes_apart(torch.float64, cpu)
    assert not Rounding(coarse).takes_apart(torch.float32, cpu)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounding, "WIDEST", 39)
        assert not taken()
        patch.setattr(rounding, "WIDEST", 40)
        assert taken()


@pytest.mark.parametrize(
    ("capability", "fast"), [((7, 0), True), ((9, 0), True), ((10, 0), True), ((8, 6), False), ((12, 0), False)]
)
def test_graphics_cards_with_fast_float64(
    capability: tuple[int, int], fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of data centres: products in float64 cost less there than taking columns apart."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert float64_is_fast(torch.device("cuda")) is fast
    for switched in (False, True):
        monkeypatch.setattr(rounding, "products_rounded", lambda switched=switched: switched)
        asked = Rounding(strong()).takes_apart(torch.float32, torch.device("cuda"))
        assert asked is not (fast or switched)


def test_sampled_rows() -> None:
    """A few hundred, from all of them, with as much of the prior as belongs to them."""
    given: list[tuple[Tensor, Tensor]] = []
    own: Rounding[str] = Rounding(strong())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounding, "decorrelation", lambda rows, ridge: given.append((rows, ridge)))
        for number in (100, 1000):
            rows = offsets(number, 40, groups=2).float()
            own.take_apart("a", rows, torch.tensor([1.0, 2.0]))
    assert own.apart == {}
    assert given[0][0].shape == (2, 100, 40) and given[0][1].tolist() == [100.0, 200.0]
    assert torch.equal(given[1][0], rows[:, ::4]) and given[1][1].tolist() == [250.0, 500.0]


def test_how_columns_that_were_taken_apart_are_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a prior over the same columns; where they are still too close, the first batch is measured as it was."""
    asked: list[tuple[Tensor, Tensor]] = []

    def amplified(matrix: Tensor, ridge: Tensor, before: Tensor | None) -> Tensor:
        asked.append((matrix, ridge))
        return matrix[0, 0, 0]

    monkeypatch.setattr(rounding, "amplified", amplified)
    columns = found(offsets(100, 4))
    error = torch.full((1, 4, 4), 1.0 / 8e-8)  # all of a variance
    matrices = {name: (share * error, torch.ones(1)) for name, share in (("a", 0.09), ("b", 0.09), ("c", 0.12))}
    own: Rounding[str] = Rounding(source_of(expected=40), apart={"a": columns, "c": columns})
    assert own.due(batch_of(10)) and own.judge(matrices) == {"c"}
    assert torch.equal(asked[0][1], 0.25 * columns.ridge) and torch.equal(asked[1][1], torch.tensor([0.25]))
    assert own.apart == {"a": columns} and own.exact == {"c"}
    assert not own.due(batch_of(30)) and own.over()  # the last look comes anyway
    assert own.judge({"a": (0.12 * error, torch.ones(1))}) == {"a"} and torch.equal(asked[-1][1], columns.ridge)
    assert own.apart == {"a": columns} and set(own.rounded) == {"a"}  # what was summed stays over these columns


def test_looks_before_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """None in the second half of the data, whose end is looked at anyway."""
    own: Rounding[str] = Rounding(source_of(expected=100))
    assert own.due(batch_of(10)) and own.judge({}) == set()
    assert own.due(batch_of(40)) and own.judge({}) == set()
    own = Rounding(source_of(expected=100))
    assert own.due(batch_of(10)) and own.judge({}) == set()
    assert not own.due(batch_of(41))
    own = Rounding(source_of(expected=15))
    assert own.due(batch_of(10))  # the first is always looked at


def test_how_many_examples_are_expected() -> None:
    """As the data say, and never fewer than a batch; four times the first batch where they do not."""
    assert Rounding(source_of(expected=100)).expected(10) == 100
    assert Rounding(source_of(expected=100)).expected(200) == 200
    assert Rounding(source_of()).expected(10) == 40


def test_errors_beside_a_prior_over_other_columns() -> None:
    """The eigenvalue that decides, of a matrix whose prior has numbers beside its diagonal."""
    rows = offsets(200, 40)
    columns = found(rows[:, ::2])
    new = columns.rows(rows)
    matrix = new.mT @ new
    ridge = 1e-3 * columns.ridge.double()
    total = matrix + ridge
    root = total.diagonal(dim1=-2, dim2=-1).rsqrt()
    expected = 1 / torch.linalg.eigvalsh(total * root[:, :, None] * root[:, None])[0, 0]
    assert 0.7 * expected < rounding.amplified(matrix, ridge, None) < 1.01 * expected
    near = torch.ones(1, 40, 40, dtype=torch.float64) + 1e-9 * torch.eye(40, dtype=torch.float64)
    # float32 cannot decompose it, and float64 can.
    assert float(rounding.amplified(near, 0 * ridge, None)) == pytest.approx(1e9, rel=0.3)
    assert float(rounding.amplified(near, torch.zeros(1), None)) > 1e6


def test_norms_of_sums_over_other_columns() -> None:
    """Those of the sums over the original columns."""
    rows = [offsets(80, 40, 1), offsets(80, 50, 2)]
    columns = [found(each) for each in rows]
    old = [each.mT @ each for each in rows]
    new = [own.rows(each).mT @ own.rows(each) for own, each in zip(columns, rows, strict=True)]
    own = ((WEIGHT,), False)
    expected = float(old[0].norm() * old[1].norm() / 4)
    for place, sums in ((0, (new[0], old[1])), (1, (old[0], new[1]))):
        side: Any = own, ("inputs", "gradients")[place]
        made = KronSums(factors={own: Factors(*sums, 4.0)})
        assert float(passes.largest(made, {side: columns[place]})[own]) == pytest.approx(expected)
        assert float(passes.largest(made)[own]) < 0.9 * expected
        judge: Rounding[Any] = Rounding(source_of(), apart={side: columns[place]})
        ridges = {name: float(ridge) for (_, name), (_, ridge) in passes.watched(made, {own}, judge)}
        assert ridges["inputs"] == pytest.approx(4 / float(old[1].norm()))
        assert ridges["gradients"] == pytest.approx(4 / float(old[0].norm()))


def test_restored_sums() -> None:
    """Each side by its own columns; the others stay as they are."""
    rows = [offsets(80, width, width) for width in (40, 50, 60)]
    columns = [found(each) for each in rows]
    new = [own.rows(each) for own, each in zip(columns, rows, strict=True)]
    first, second, third = (each.mT @ each for each in new)
    own, part = ((WEIGHT,), False), NORM
    sums = KronSums(factors={own: Factors(first, second, 1.0)}, others={part: third[0]})
    sums.restore({(own, "inputs"): columns[0], (own, "gradients"): columns[1], (part, "other"): columns[2]})
    made = [sums.factors[own].inputs, sums.factors[own].gradients, sums.others[part][None]]
    for each, old in zip(made, rows, strict=True):
        torch.testing.assert_close(each, old.mT @ old)


# Whole fits


def raw(examples: int = 3000, inputs: int = 6, hidden: int = 40) -> tuple[nn.Sequential, Tensor, Tensor]:
    """Inputs from around 0 to around 1,000."""
    g = torch.Generator().manual_seed(0)
    z = torch.randn(examples, inputs, generator=g)
    x = torch.linspace(0, 1000, inputs) + torch.linspace(1, 5, inputs) * z
    net = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 1))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=g))
        net[0].weight.mul_(0.01)
    return net, x, torch.sin(z[:, :1]) + 0.1 * torch.randn(examples, 1, generator=g)


def batches(x: Tensor, y: Tensor, size: int = 256) -> Iterator[tuple[Tensor, Tensor]]:
    """One after the other, once."""
    yield from zip(x.split(size), y.split(size), strict=True)


def dtypes_of_products(patch: pytest.MonkeyPatch) -> set[tuple[int, torch.dtype]]:
    """Widths above the small ones and dtypes of the products that a fit makes, as it makes them."""
    seen: set[tuple[int, torch.dtype]] = set()
    products, outer = factors.product, block.with_outer

    def product(rows: Tensor, budget: Budget) -> Tensor:
        seen.add((rows.shape[-1], rows.dtype))
        return products(rows, budget)

    def with_outer(total: Tensor, rows: Tensor) -> Tensor:
        seen.add((rows.shape[-1], rows.dtype))
        return outer(total, rows)

    patch.setattr(factors, "product", product)
    patch.setattr(block, "with_outer", with_outer)
    return seen


@pytest.mark.parametrize("data", ["pair", "iterator", "in order"])
@pytest.mark.parametrize("structure", ["kron", "ekfac", "block", "full"])
def test_inputs_far_from_zero(structure: str, data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variances and evidence of the network in float64, by products in float32 of what was taken apart."""
    net, x, y = raw()
    if data == "in order":  # the first batch has other inputs than the others
        order = x[:, 3].argsort()
        x, y = x[order], y[order]
    exact = lw.fit(copy.deepcopy(net).double(), (x.double(), y.double()), lw.Gaussian(0.1), structure=structure)
    seen = dtypes_of_products(monkeypatch)
    given: Any = batches(x, y) if data == "iterator" and structure != "ekfac" else (x, y)
    la = lw.fit(net, given, lw.Gaussian(0.1), structure=structure)
    if data == "pair" and structure in ("kron", "ekfac"):
        assert {dtype for width, dtype in seen if width > 32} == {torch.float32}
    ratio = la.functional(x[::30]).cov.double() / exact.functional(x[::30].double()).cov
    assert float((ratio - 1).abs().max()) < 0.02
    assert abs(float(la.log_evidence() - exact.log_evidence())) < 0.3


def test_convolutions_of_raw_pixels() -> None:
    """Patches of smooth images from 0 to 255, whose factors may be made without their rows or averaged first."""
    g = torch.Generator().manual_seed(0)
    small = torch.rand(200, 3, 3, 3, generator=g)
    x = 255 * nn.functional.interpolate(small, (9, 9), mode="bilinear")
    net = nn.Sequential(nn.Conv2d(3, 34, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(34, 3))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=g))
        net[0].weight.mul_(0.01)
    y = torch.randint(3, (200,), generator=g)
    wide = copy.deepcopy(net).double()
    for structure in (lw.Kron(), lw.Kron(approx="reduce"), lw.Kron(bias="joint"), lw.Block()):
        la = lw.fit(net, (x, y), "classification", structure=structure, prior=1e-3)
        exact = lw.fit(wide, (x.double(), y), "classification", structure=structure, prior=1e-3)
        made, expected = (
            own.functional(given[:20]).cov.double().diagonal(dim1=-2, dim2=-1)
            for own, given in ((la, x), (exact, x.double()))
        )
        assert float((made / expected - 1).abs().max()) < 0.02


@pytest.mark.parametrize("structure", ["kron", "block"])
def test_updates_of_raw_inputs(structure: str) -> None:
    """Half of the data first, and half later: as all at once."""
    net, x, y = raw(2000)
    once = lw.fit(net, (x, y), lw.Gaussian(0.1), structure=structure)
    twice = lw.fit(net, (x[:1000], y[:1000]), lw.Gaussian(0.1), structure=structure).update((x[1000:], y[1000:]))
    if structure == "kron":  # factors add up, their product does not: each by itself
        for key, own in once.sums.factors.items():
            for name in ("inputs", "gradients"):
                one, two = (getattr(sums.factors[key], name).double() for sums in (once.sums, twice.sums))
                torch.testing.assert_close(one, two, rtol=1e-4, atol=1e-5 * float(one.abs().max()))
            assert own.count == twice.sums.factors[key].count
        return
    ratio = twice.functional(x[::20]).cov / once.functional(x[::20]).cov
    assert float((ratio - 1).abs().max()) < 0.02


@pytest.mark.parametrize(
    ("width", "prior", "noise", "codes"), [(299, 1e-3, 1e-2, 1), (400, 1e-5, 1.0, 1), (300, 1.0, 1e-2, 3)]
)
@pytest.mark.parametrize("structure", ["full", "kron"])
def test_columns_that_are_exactly_dependent(structure: str, width: int, prior: float, noise: float, codes: int) -> None:
    """One-hot codes add up to ones: only the prior decides there, and rounding of products would take its place."""
    g = torch.Generator().manual_seed(1)
    some = [torch.randint(0, width // codes, (2000,), generator=g) for _ in range(codes)]
    x = torch.cat([nn.functional.one_hot(each, width // codes).float() for each in some], 1)
    y = torch.randn(2000, 1, generator=g)
    torch.manual_seed(0)
    net = nn.Linear(x.shape[1], 1)
    wide, unseen = copy.deepcopy(net).double(), torch.zeros(1, x.shape[1])
    la = lw.fit(net, (x, y), lw.Gaussian(noise), structure=structure, prior=prior)
    exact = lw.fit(wide, (x.double(), y.double()), lw.Gaussian(noise), structure=structure, prior=prior)
    assert float(la.functional(unseen).cov / exact.functional(unseen.double()).cov) == pytest.approx(1, abs=0.02)
    assert abs(float(la.log_evidence() - exact.log_evidence())) < 0.1


class Gated(nn.Module):
    """A matrix for each of two groups, one of which is off in some examples."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(0.02 * normal(2, 140, 40).float())
        self.h = nn.Linear(80, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 2, 140) -> (N, 2)."""
        made = torch.einsum("bgi,gio->bgo", x, self.w)
        gate = (x[:, 1, :1] < 600).to(made)
        return self.h(torch.tanh(torch.stack([made[:, 0], made[:, 1] * gate], 1) * 1e-2).flatten(1))


def test_a_group_without_gradients_in_the_first_batch() -> None:
    """Nothing becomes infinite, and the evidence is that of the network in float64."""
    torch.manual_seed(0)
    net, x, y = Gated(), torch.randn(600, 2, 140) + 500, torch.randn(600, 2)
    x[:300, 1] += 200
    for data, wide in (((x, y), (x.double(), y.double())), (list(batches(x, y, 100)), None)):
        la = lw.fit(net, data, "regression", prior=1e-3)
        exact = lw.fit(copy.deepcopy(net).double(), wide or (x.double(), y.double()), "regression", prior=1e-3)
        assert abs(float(la.log_evidence() - exact.log_evidence())) < 0.1
    rows = offsets(100, 140, groups=2).float()
    rows[1] = 0.0
    own: Rounding[str] = Rounding(strong())
    own.take_apart("a", rows, torch.tensor([1e-9, torch.inf]))
    assert all(bool(torch.isfinite(each).all()) for each in (own.apart["a"].explained, own.apart["a"].shares))
