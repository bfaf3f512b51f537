"""Passes over the data: which sides are measured in which dtype, against dense sums of batches that are known."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from fitting import built, fitted, normal
from known_batches import ROOM, batch_of, source_of
from peewit.curvature.structures import passes, rounding
from peewit.curvature.structures.factors import KronFactors, KronSums
from peewit.curvature.structures.passes import KronMeasurement, measure_corrections, measure_factors
from peewit.curvature.structures.rounding import Rounding
from peewit.jacobians.explicit import Explicit
from peewit.jacobians.factored import Matrix, Term
from peewit.jacobians.inputs import Acts
from peewit.jacobians.layout import Layout
from peewit.weights.ranges import WeightRange
from structure_numbers import close
from tables import curvature_of, relative

WEIGHT, BIAS, NORM = WeightRange("m.weight", 0, 6), WeightRange("m.bias", 0, 3), WeightRange("n.weight", 0, 4)
OTHER = WeightRange("o.weight", 0, 2)


def matrix_of(values: Tensor, grad: Tensor, flipped: bool = False, **options: Any) -> Matrix:
    """One use with inputs (B, G, T, I) and gradients (K, B, G, T, O)."""
    acts = Acts(make=lambda chosen: values[chosen], width=values.shape[-1], positions=values.shape[2], **options)
    sizes = (grad.shape[-1], values.shape[-1])
    layout = Layout.plain(values.shape[1], *(sizes[::-1] if flipped else sizes))
    return Matrix((Term(acts, grad, flipped),), layout, ROOM)


def bias_of(grad: Tensor) -> Matrix:
    """Of a bias with these gradients."""
    examples, groups, positions = grad.shape[1:4]
    return matrix_of(grad.new_ones(examples, groups, positions, 1), grad, constant=True)


def squared(rows: Tensor) -> Tensor:
    """(.., G, T, n) -> (G, n, n)."""
    flat = rows.reshape(-1, *rows.shape[-3:])
    return torch.einsum("bgti,bgtj->gij", flat, flat)


def layer(examples: int, positions: int = 1, seed: int = 1) -> tuple[list[Any], Tensor, Tensor, Tensor]:
    """Chunks of two and one probes for a layer and a norm; inputs, gradients, and the norm's rows."""
    values = normal(examples, 1, positions, 2, seed=seed)
    grad, rows = normal(3, examples, 1, positions, 3, seed=seed + 20), normal(3, examples, 4, seed=seed + 40)
    chunks = [
        {
            WEIGHT: matrix_of(values, grad[own]),
            BIAS: bias_of(grad[own]),
            NORM: Explicit(rows[own], ROOM),
        }
        for own in (slice(0, 2), slice(2, 3))
    ]
    return chunks, values, grad, rows


@pytest.mark.parametrize("bias", ["separate", "joint"])
def test_batches_and_chunks_are_added(bias: str) -> None:
    """Gradients of all chunks, inputs of a batch once, norms densely; a bias apart or with its weight."""
    made = [layer(5, seed=1), layer(4, seed=2)]
    batches = [batch_of(len(own[1]), *own[0], dtype=torch.float64, pairs={WEIGHT: BIAS}) for own in made]
    sums = measure_factors("expand", bias, source_of(*batches))
    gradients = sum(squared(grad) for _, _, grad, _ in made)
    close(sums.others[NORM], sum(torch.einsum("kbp,kbq->pq", rows, rows) for *_, rows in made))
    if bias == "separate":
        close(sums.factors[(WEIGHT,), False].inputs, sum(squared(values) for _, values, _, _ in made))
        assert sums.factors[(BIAS,), False].inputs.tolist() == [[[9.0]]] and sums.weights == {}
        keys = {(WEIGHT,): (1, 3, 2), (BIAS,): (1, 3, 1)}
    else:
        padded = [torch.nn.functional.pad(values, (0, 1), value=1.0) for _, values, _, _ in made]
        close(sums.factors[(WEIGHT, BIAS), False].inputs, sum(squared(values) for values in padded))
        assert sums.weights == {(WEIGHT, BIAS): Layout.plain(1, 3, 2)}
        keys = {(WEIGHT, BIAS): (1, 3, 3)}
    assert {key: layout.matrix for key, layout in sums.layouts.items()} == keys
    assert set(sums.factors) == {(key, False) for key in keys}
    for own in sums.factors.values():
        close(own.gradients, gradients)
        assert own.count == 9.0
    assert all(batch.probes.calls == 1 for batch in batches)


def test_which_fits_average_over_positions() -> None:
    """Those that are asked to, and `auto` where an example has one output: by the positions that are counted."""
    for approx, positions, count in (
        ("reduce", 1, 5.0),
        ("reduce", 2, 5.0),
        ("auto", 1, 5.0),
        ("auto", 2, 15.0),
        ("auto", 3, 15.0),
        ("expand", 1, 15.0),
        ("expand", 2, 15.0),
    ):
        chunks = layer(5, positions=3)[0]
        sums = measure_factors(approx, "separate", source_of(batch_of(5, *chunks, positions=positions)))
        assert sums.factors[(WEIGHT,), False].count == count


def test_positions_of_examples_with_ignored_labels() -> None:
    """Those without a gradient in any probe, group and output do not enter the inputs."""
    values, grad = normal(3, 2, 4, 2), torch.zeros(3, 3, 2, 4, 3, dtype=torch.float64)
    grad[:, 1] = 1.0
    grad[0, 0, 0, 0, 1] = 2.0  # one probe, group and output
    grad[2, 0, 1, 1, 2] = 3.0  # another chunk
    grad[:, 0, :, 3] = 1.0
    grad[1, 2, 0, 2] = 1.0
    chunks = [{WEIGHT: matrix_of(values, grad[:2])}, {WEIGHT: matrix_of(values, grad[2:])}]
    counted = torch.tensor([[1, 1, 0, 1], [1, 1, 1, 1], [1, 1, 1, 1]])
    for masked, expected in (
        ([True, False, False], counted),
        ([True, False, True], torch.tensor([[1, 1, 0, 1], [1, 1, 1, 1], [0, 0, 1, 0]])),
        (None, torch.ones(3, 4)),
    ):
        given = None if masked is None else torch.tensor(masked)
        batch = batch_of(3, *chunks, dtype=torch.float64, masked=given)
        made = measure_factors("expand", "separate", source_of(batch)).factors[(WEIGHT,), False]
        close(made.inputs, squared(values * expected.double()[:, None, :, None]))
        assert made.count == float(expected.sum())


# Which products are in float64


def wide_layer(examples: int, seed: int = 1) -> tuple[dict[Any, Any], Tensor, Tensor, Tensor]:
    """In float32, with sides that are not small; inputs, gradients and the norm's rows."""
    values, grad = normal(examples, 1, 1, 40, seed=seed).float(), normal(2, examples, 1, 1, 34, seed=seed + 9).float()
    rows = normal(2, examples, 33, seed=seed + 5).float()
    return {WEIGHT: matrix_of(values, grad), NORM: Explicit(rows, ROOM)}, values, grad, rows


@pytest.mark.parametrize("at_once", [True, False])
def test_the_first_batch_is_measured_again(at_once: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With products in float64, where those in float32 would change variances; later batches have them at once."""
    monkeypatch.setattr(rounding, "amplification", lambda matrix, ridge, before: torch.tensor(1e9))
    made = [wide_layer(5, seed=seed) for seed in (1, 2)]
    batches = [batch_of(5, own[0]) for own in made]
    for batch in batches:
        batch.at_once = at_once
    source = source_of(*batches, likelihood=SimpleNamespace(noise_precision=1e9))
    sums = measure_factors("expand", "separate", source)
    own = sums.factors[(WEIGHT,), False]
    close(own.inputs, sum(squared(values.double()) for _, values, _, _ in made))
    close(own.gradients, sum(squared(grad.double()) for _, _, grad, _ in made))
    close(sums.others[NORM], sum(torch.einsum("kbp,kbq->pq", rows.double(), rows.double()) for *_, rows in made))
    assert own.count == 10.0 and [batch.probes.calls for batch in batches] == [1 if at_once else 2, 1]


def test_later_batches_are_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they show is for those to come; what was summed before stays."""
    monkeypatch.setattr(rounding, "amplification", lambda matrix, ridge, before: 1e-12 * matrix[0, 0, 0])
    parts = [matrix_of(torch.full((n, 1, 1, 40), 1.0), torch.full((1, n, 1, 1, 34), 1.0)) for n in (1, 9)]
    batches = [batch_of(part.examples, {WEIGHT: part}) for part in parts]
    monkeypatch.setattr(rounding, "PRODUCTS", 0.1 / 5 / 40**0.5 * 1e12)  # between the numbers 1 and 10 of both looks
    source = source_of(*batches, likelihood=SimpleNamespace(noise_precision=1e9), one_shot=True)
    made = KronMeasurement(approx="expand", bias="separate", rounding=Rounding(source=source))
    for batch in batches:
        made.add(batch)
    own = made.sums.factors[(WEIGHT,), False]
    assert (((WEIGHT,), False), "inputs") in made.rounding.exact and set(
        made.rounding.rounded_diagonals
    ) == made.rounding.exact
    assert own.count == 10.0 and bool((own.inputs == 10.0).all()) and bool((own.gradients == 10.0).all())


def test_sums_in_which_nothing_shows_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """To float32, unless earlier ones are in float64; in a network of float64 none."""
    monkeypatch.setattr(rounding, "amplification", lambda matrix, ridge, before: torch.tensor(1e9))
    found, values, grad, _ = wide_layer(5)
    batch = batch_of(5, found)
    sums = measure_factors("expand", "separate", source_of(batch))
    own = sums.factors[(WEIGHT,), False]
    assert own.inputs.dtype == own.gradients.dtype == sums.others[NORM].dtype == torch.float32
    assert batch.probes.calls == 1
    torch.testing.assert_close(own.inputs, squared(values))
    torch.testing.assert_close(own.gradients, squared(grad))
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    earlier = KronSums(factors={((WEIGHT,), False): KronFactors(one, one)})
    later = measure_factors("expand", "separate", source_of(batch_of(5, found)), earlier)
    assert later.factors[(WEIGHT,), False].inputs.dtype == torch.float64
    assert later.others[NORM].dtype == torch.float32
    wide = measure_factors("expand", "separate", source_of(batch_of(5, found, dtype=torch.float64)))
    assert wide.others[NORM].dtype == torch.float64


def measurement_of(sums: KronSums, **options: Any) -> KronMeasurement:
    """With sums that are there, of data that were looked at or not."""
    source = source_of(likelihood=SimpleNamespace(noise_precision=options.pop("scale", 1.0)), one_shot=True)
    return KronMeasurement(approx="expand", bias="separate", rounding=Rounding(source=source, **options), sums=sums)


def side(number: float, size: int = 2) -> Tensor:
    """(1, n, n) with one number everywhere."""
    return torch.full((1, size, size), number, dtype=torch.float64)


def test_a_bias_follows_its_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gradients are those of the weight, and so have the same products: no other side, and no other module's."""
    monkeypatch.setattr(rounding, "amplification", lambda matrix, ridge, before: matrix[0, 0, 0])
    other = (WeightRange("k.weight", 0, 4),)
    weight, bias = ((WEIGHT,), False), ((BIAS,), False)
    for large, expected in (
        ("gradients", {(weight, "gradients"), (bias, "gradients")}),
        ("inputs", {(weight, "inputs")}),
    ):
        sums = KronSums(
            factors={
                weight: KronFactors(*(side(1e9 if name == large else 1.0) for name in ("inputs", "gradients"))),
                bias: KronFactors(side(3.0, 1), side(2.0)),
                (other, False): KronFactors(side(1.0), side(1.0)),
            },
            others={WeightRange("m.scale", 0, 2): side(1.0)[0]},
        )
        own = measurement_of(sums, seen=10, judged=2)
        assert own._judge(set(sums.factors) | set(sums.others)) == expected
        assert own.rounding.exact == expected and set(own.rounding.rounded_diagonals) == expected


def test_blocks_are_shown_with_their_module() -> None:
    """If one of its blocks has a large eigenvalue, all of them."""
    small, large = ((BIAS,), False), ((WEIGHT,), True)
    other = ((WeightRange("k.weight", 0, 4),), False)
    sums = KronSums(
        factors={small: KronFactors(side(1.0), side(1.0), 1.0), large: KronFactors(side(1e3), side(1e3), 1.0)},
        others={WeightRange("m.scale", 0, 2): side(1.0)[0], WeightRange("n.scale", 0, 2): side(1.0)[0]},
    )
    sums.factors[other] = KronFactors(side(1.0), side(1.0), 1.0)
    assert measurement_of(sums)._find_visible() == {small, large, WeightRange("m.scale", 0, 2)}


def test_what_stays_in_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """What shows, is small, or was in it; not what came too late. Sums are looked at once more if there was more."""
    monkeypatch.setattr(rounding, "amplification", lambda matrix, ridge, before: torch.tensor(1e9))
    names = ("shown", "small", "before", "plain")
    owns = {name: ((WeightRange(f"{name}.weight", 0, 4),), False) for name in names}
    for seen, dtypes in ((4, "ddd"), (5, "fdd")):
        sums = KronSums(factors={own: KronFactors(side(1.0), side(1.0), 1.0) for own in owns.values()})
        sums.factors[owns["shown"]] = KronFactors(side(1e3), side(1e3), 1.0)
        made = measurement_of(sums, seen=seen, judged=4)
        made.small.add(owns["small"])
        result = made.finish({owns["before"]})
        kinds = {name: result.factors[own].inputs.dtype for name, own in owns.items()}
        wide = {name: letter == "d" for name, letter in zip(names, dtypes + "f", strict=True)}
        assert {name: kind == torch.float64 for name, kind in kinds.items()} == wide
        assert bool(made.rounding.lost) is (seen == 5)
    sums = KronSums(factors={owns["plain"]: KronFactors(side(1.0), side(1.0), 1.0)})
    assert measurement_of(sums, wide=True, seen=5).finish(set()).factors[owns["plain"]].inputs.dtype == torch.float64
    assert KronSums() == KronMeasurement(approx="expand", bias="separate", rounding=Rounding(source=source_of())).sums


def test_small_sides_have_products_in_float64() -> None:
    """With one position and up to 32 numbers, from the first batch; of each side on its own."""
    key = (WEIGHT,)
    for width, height, positions, exact, small in (
        (32, 32, 1, {"inputs", "gradients"}, True),
        (33, 32, 1, {"gradients"}, False),
        (32, 33, 1, {"inputs"}, False),
        (33, 33, 1, set(), False),
        (2, 2, 2, set(), False),
    ):
        for flipped in (False, True):
            values = torch.zeros(40, 50, positions, width)
            matrix = matrix_of(values, torch.zeros(60, 40, 50, positions, height), flipped)
            made = measurement_of(KronSums())
            made._note(key, matrix)
            assert made.rounding.exact == {((key, flipped), each) for each in exact}
            assert made.small == ({(key, flipped)} if small else set())
    one, two = (
        matrix_of(torch.zeros(3, 1, t, 2), torch.zeros(1, 3, 1, t, 2), f).terms[0] for t, f in ((1, True), (3, False))
    )
    again = matrix_of(torch.zeros(3, 1, 2, 2), torch.zeros(1, 3, 1, 2, 2), True).terms[0]
    made = measurement_of(KronSums())
    made._note(key, Matrix((one, two), Layout.plain(1, 2, 2), ROOM))
    assert made.small == {(key, True)}
    made = measurement_of(KronSums())
    made._note(key, Matrix((one, again), Layout.plain(1, 2, 2), ROOM))
    assert made.small == set() and made.rounding.exact == set()


def test_small_sides_of_the_first_batch_only() -> None:
    """Later, what was summed before is in float32 already."""
    late = WeightRange("l.weight", 0, 6)
    found = {WEIGHT: matrix_of(normal(3, 1, 1, 2).float(), normal(1, 3, 1, 1, 3).float())}
    found[NORM] = Explicit(normal(1, 3, 32).float(), ROOM)
    found[WeightRange("w", 0, 33)] = Explicit(normal(1, 3, 33).float(), ROOM)
    made = measurement_of(KronSums())
    made.add(batch_of(3, found))
    exact = {(((WEIGHT,), False), "inputs"), (((WEIGHT,), False), "gradients"), (NORM, "other")}
    assert made.rounding.exact == exact and made.small == {((WEIGHT,), False)} and made.rounding.judged == 3
    more = {late: found[WEIGHT], WeightRange("x", 0, 32): found[NORM]}
    made.add(batch_of(3, more))
    assert made.rounding.exact == exact and made.small == {((WEIGHT,), False)}


def test_names_and_sizes_of_blocks() -> None:
    """The module that owns a weight; the product of both sides' norms over the count; a dense block's own norm."""
    own = ((WeightRange("a.b.weight", 0, 4), WeightRange("c.bias", 0, 2)), True)
    assert passes.module_of(own) == "a.b" and passes.module_of(WeightRange("c.d.e", 0, 1)) == "c.d"
    assert passes.module_of(WeightRange("e", 0, 1)) == ""
    inputs, gradients, dense = normal(2, 3, 3), normal(2, 4).abs(), normal(3, 3)
    for count, least in ((0.0, 1.0), (1.0, 1.0), (5.0, 5.0)):
        sums = KronSums(factors={own: KronFactors(inputs, gradients, count)}, others={NORM: dense, BIAS: dense[0]})
        made = passes.largest(sums)
        assert set(made) == {own, NORM}
        sizes = inputs.square().sum((1, 2)).sqrt() * gradients.max(1).values
        close(made[own], sizes.max() / least)
        close(made[NORM], dense.square().sum().sqrt())


def test_sides_that_are_watched() -> None:
    """Matrices with products in float32, with the prior over the other side's size; no diagonals or single numbers."""
    own, one, flat = (((WeightRange(name, 0, 4),), False) for name in "abc")
    inputs, gradients = normal(2, 3, 3), normal(2, 2, 2)
    zero = torch.zeros(1, 3, dtype=torch.float64)
    for count, least in ((0.0, 1.0), (1.0, 1.0), (6.0, 6.0)):
        sums = KronSums(
            factors={
                own: KronFactors(inputs, gradients, count),
                one: KronFactors(side(2.0, 1), side(1.0, 2), count),
                flat: KronFactors(zero, side(1.0, 2), count),
            },
            others={NORM: side(1.0)[0], BIAS: side(1.0)[0]},
        )
        made = measurement_of(sums, scale=4.0, exact={(BIAS, "other"), (one, "gradients")})
        found = dict(passes.sides_to_watch(sums, set(sums.factors) | set(sums.others), made.rounding))
        assert set(found) == {(own, "inputs"), (own, "gradients"), (flat, "gradients"), (NORM, "other")}
        close(found[own, "inputs"][1], least / 4 / gradients.square().sum((1, 2)).sqrt())
        close(found[own, "gradients"][1], least / 4 / inputs.square().sum((1, 2)).sqrt())
        close(1e-30 * found[flat, "gradients"][1], torch.full((1,), least / 4, dtype=torch.float64))
        assert found[own, "inputs"][0] is inputs and found[own, "gradients"][0] is gradients
        matrix, ridge = found[NORM, "other"]
        assert matrix.shape == (1, 2, 2) and ridge.tolist() == [0.25]
        assert dict(passes.sides_to_watch(sums, {NORM}, made.rounding)).keys() == {(NORM, "other")}


def test_weights_with_their_bias() -> None:
    """As one block; the bias alone is left out, and others stay as they are."""
    matrix = matrix_of(normal(3, 1, 1, 2), normal(1, 3, 1, 1, 3))
    pairs = {WEIGHT: BIAS}
    rows = Explicit(normal(2, 3, 2), ROOM)
    blocks = dict(passes.join_biases({WEIGHT: matrix, BIAS: matrix, NORM: matrix, OTHER: rows}, pairs))
    assert set(blocks) == {(WEIGHT, BIAS), (NORM,), (OTHER,)}
    assert blocks[WEIGHT, BIAS].layout.matrix == (1, 3, 3)
    assert blocks[(NORM,)] is matrix and blocks[(OTHER,)] is rows


@pytest.mark.parametrize("joint", [False, True])
def test_second_moments_in_bases(joint: bool) -> None:
    """Of the Jacobian, summed over probes, examples and batches; bases in float64, and none for a diagonal side."""
    made = [layer(5, positions=2, seed=1), layer(4, positions=2, seed=2)]
    batches = [batch_of(len(own[1]), *own[0], dtype=torch.float64) for own in made]
    left, right = torch.linalg.qr(normal(1, 3, 3))[0], torch.linalg.qr(normal(1, 2 + joint, 2 + joint, seed=4))[0]
    both = {(WEIGHT, BIAS): (left, right)}
    apart = {(WEIGHT,): (left, None), (BIAS,): (None, None)}
    sums = KronSums(bases=both if joint else apart)
    assert measure_corrections(sums, source_of(*batches)) is sums and set(sums.corrected) == set(sums.bases)
    expected = dict.fromkeys(sums.bases, torch.zeros(1).double())
    for _, values, grad, _ in made:
        padded = torch.nn.functional.pad(values, (0, 1), value=1.0)
        turned = grad if not joint else grad @ left
        for key in sums.bases:
            inputs = padded if joint else padded[..., :2] if key == (WEIGHT,) else padded[..., 2:]
            inputs = inputs @ right if joint else inputs
            rows = grad @ left if key == (WEIGHT,) else turned
            expected[key] = expected[key] + torch.einsum("kbgto,bgti->kbgoi", rows, inputs).square().sum((0, 1))
    for key, value in expected.items():
        close(sums.corrected[key], value)
    narrow = KronSums(bases={(WEIGHT,): (left, right[:, :2, :2] if not joint else None)})
    values, grad = normal(3, 1, 1, 2).float(), normal(1, 3, 1, 1, 3).float()
    batch = batch_of(3, {WEIGHT: matrix_of(values, grad), NORM: Explicit(normal(1, 3, 4).float(), ROOM)})
    assert measure_corrections(narrow, source_of(batch)).corrected[(WEIGHT,)].dtype == torch.float32


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
