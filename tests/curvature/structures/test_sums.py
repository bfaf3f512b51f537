"""Sums of several measurements, and of files: put together and checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import peewit as pw
from fitting import built, classes, measured
from peewit.curvature.structures.factors import KronFactors, KronSums
from peewit.curvature.structures.sums import check_sums, join_sums
from peewit.jacobians.layout import Layout
from peewit.weights.ranges import WeightRange
from peewit.weights.space import Space
from structure_numbers import close, space_of
from tables import moved


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
    empty = KronFactors(inputs=torch.zeros(1, 2), gradients=torch.zeros(1, 2, 2), count=0.0)
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
    wide = KronFactors(inputs=torch.zeros(1, 3), gradients=torch.zeros(1, 2), count=0.0)
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
