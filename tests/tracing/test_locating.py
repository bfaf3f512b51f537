"""Where the examples are: places that doubled batches fit, and outputs without examples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

from environment import DEVICE
from jacobian_cases import normal
from peewit.messages.errors import PeewitError
from peewit.tracing import forward_mode
from peewit.tracing.doubling import double, reach, repeats, rows_of_examples, second_places
from peewit.tracing.knowledge import KnowledgeLearner
from peewit.tracing.layers.examples import BatchAxis
from peewit.tracing.locating import FittingPlace, Locating
from peewit.tracing.verification import LENGTHS
from tracing_parts import PLACES, numbers, tracer_of, zeros


def batch(examples: int, shapes: Any = (), **more: Any) -> Any:
    """A recorded batch, as far as it is asked about."""
    return SimpleNamespace(examples=examples, signature=shapes, output=zeros(), **more)


def locating_in(learner: KnowledgeLearner, examples: int, shapes: Any = (), **more: Any) -> Locating:
    """What looks for the examples in such a batch."""
    return Locating(batch(examples, shapes, learner=learner, **more), watch=lambda inputs: {})


def test_where_the_doubled_examples_stand_again() -> None:
    """The rows of the second half that equal each of the first."""
    for examples in (4, 6):
        again = second_places(examples, torch.device(DEVICE)).tolist()
        rows: Any = double(torch.arange(examples // 2)[:, None])
        assert [rows[place] for place in again] == [rows[place] for place in range(examples // 2)]
        assert min(again) >= examples // 2


def test_rows_of_examples() -> None:
    """Real numbers for each example, wherever it is; nothing at all counts as zero."""
    last, folded = BatchAxis(1, "none"), BatchAxis(0, "minor")
    x = normal(3, 4)
    assert torch.equal(rows_of_examples(last, 4, x), x.T)
    assert torch.equal(
        rows_of_examples(folded, 3, normal(6, 2)), normal(6, 2).reshape(2, 3, 2).transpose(0, 1).flatten(1)
    )
    pair = torch.complex(x, 2 * x)
    assert torch.equal(rows_of_examples(last, 4, pair), torch.stack([x.T, 2 * x.T], -1).flatten(1))
    assert rows_of_examples(last, 4, numbers(1, 2, 3, 4)[None]).dtype == torch.float64
    assert torch.equal(rows_of_examples(last, 4, x[:0]), torch.zeros(4, 1, dtype=torch.float64, device=DEVICE))
    assert rows_of_examples(last, 4, x.half()).dtype == torch.float16


@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-4), (torch.float32, 1e-4), (torch.bfloat16, 1e-2)])
def test_rows_that_repeat(dtype: torch.dtype, bound: float) -> None:
    """Equal within a share of the largest number anywhere in the tensor; and whether the first two differ at all."""
    place = BatchAxis(0, "none")
    x = torch.tensor([[1.0, 0.0], [2.0, 64.0], [3.0, 0.0]], device=DEVICE, dtype=torch.float64)
    equal = torch.cat([x, x[[0, 2, 1]]])
    near, apart = equal.clone(), equal.clone()
    near[5, 0] += 0.8 * bound * 64
    apart[4, 0] += 1.5 * bound * 64
    alike, ones = torch.ones_like(equal), torch.ones_like(equal)
    ones[:, 0] = torch.tensor([1.0, 2.0, 3.0, 1.0, 3.0, 2.0])
    swapped = torch.cat([x, x])
    questions = [(place, each.to(dtype)) for each in (equal, near, apart, alike, ones, swapped, 0 * x.repeat(2, 1))]
    wanted = [[True, True], [True, True], [False, True], [True, False], [True, True], [False, True], [True, False]]
    assert repeats(questions, 6) == wanted
    if dtype == torch.float64:  # which holds the limit itself: 64 times it has the same digits
        equal[3, 1] = bound * 64
        assert repeats([(place, equal)], 6) == [[True, True]]


def test_examples_that_a_gradient_reaches() -> None:
    """The largest of each; nothing is said where there is none."""
    gradient = torch.tensor([[1.0, -4.0], [0.0, 0.0], [2.0, 3.0]], device=DEVICE)
    found = reach(BatchAxis(0, "none"), gradient.flatten(), (3, 2), 3, zeros())
    assert found.tolist() == [4.0, 0.0, 3.0] and found.dtype == torch.float64
    none = reach(BatchAxis(0, "none"), None, (3, 2), 3, zeros())
    assert none.tolist() == [0.0] * 3 and none.dtype == torch.float64


@pytest.mark.parametrize(
    ("fitting", "found", "generic"),
    [
        ([], None, False),
        ([(True, [0, 1, 0])], 0, False),
        ([(True, [0, 0, 0])], 0, False),
        ([(True, [1, 1, 0]), (True, [0, 1, 0])], 1, False),
        ([(True, [0, 1, 1]), (True, [0, 1, 0])], 1, False),
        ([(True, [0, 1, 0]), (True, [1, 1, 1])], 0, False),
        ([(True, [0, 1, 0]), (False, [0, 1, 0])], 0, True),
        ([(False, [1, 1, 1])], None, False),
        ([(True, [1, 0, 0])], None, False),
        ([(True, [0, 0, 1])], None, False),
        ([(True, [1, 1, 0])], "depends on the other examples", False),
        ([(False, [1, 1, 1]), (True, [0, 1, 1])], "depends on the other examples", False),
    ],
)
def test_the_place_of_examples(fitting: list[tuple[bool, list[int]]], found: Any, generic: bool) -> None:
    """One that only the example in the middle reaches; of several the first, and the generic rule.

    Rows that differ, and that several examples reach, are no example's own.
    """
    learner = KnowledgeLearner()
    locating = locating_in(learner, 3)
    given = [
        FittingPlace(place, differ, [bool(hit) for hit in hits])
        for place, (differ, hits) in zip(PLACES, fitting, strict=False)
    ]
    if isinstance(found, str):
        with pytest.raises(ValueError, match=f"^'weight': .*{found}"):
            locating._choose(("weight", "bias"), given, 1)
        return
    assert locating._choose(("weight", "bias"), given, 1) == (None if found is None else PLACES[found])
    assert learner.knowledge.generic == ({"weight", "bias"} if generic else set())


def test_the_middle_of_many_examples() -> None:
    """Those after the middle one are looked at to the last, and so are those before it."""
    place = PLACES[0]
    for reached in range(6):
        hits = [example == reached for example in range(6)]
        locating = locating_in(KnowledgeLearner(), 6)
        assert locating._choose(("weight",), [FittingPlace(place, False, hits)], 3) == (place if reached == 3 else None)


def test_places_that_hold_for_inputs_of_other_shapes() -> None:
    """They are tried first, and kept where equal examples have equal rows and others differ."""
    learner = KnowledgeLearner()
    x = normal(3, 2)
    right, wrong = torch.cat([x, x[[0, 2, 1]]]), torch.cat([x, x])
    seen: Any = {
        "right": (right, right),
        "partly": (right, wrong),
        "alike": (torch.ones_like(right),),
        "rows": (right,),
        "elsewhere": (right,),
        "unfit": (right[:5],),
        "partly unfit": (right, right[:5]),
        "owned": (right,),
        "new": (right,),
        "nothing": (),
        "none": (right,),
    }
    latest: dict[str, BatchAxis | None] = {key: PLACES[0] for key in (*seen, "unseen") if key != "new"}
    latest |= {"owned": BatchAxis(0, "owned"), "none": None, "elsewhere": PLACES[1]}
    learner.learn(latest=latest)
    unknown: list[Any] = [SimpleNamespace(key=key, shape=(5 if key == "rows" else 6, 2)) for key in [*seen, "unseen"]]
    left = locating_in(learner, 6, "shapes")._try_latest(unknown, seen, 6)
    assert {key for key, _ in learner.knowledge.axes} == {"right", "owned"}
    assert {each.key for each in left} == {*seen, "unseen"} - {"right", "owned"}
    assert learner.knowledge.axes["right", "shapes"] == PLACES[0]
    assert learner.knowledge.axes["owned", "shapes"] == BatchAxis(0, "owned")


def test_rows_that_change_in_number() -> None:
    """Their use is routed from then on; where it has no axes its weights take the generic rule."""
    learner = KnowledgeLearner()
    folds = {"fixed": "major", "grown": "major", "flat": "major", "own": "none", "owned": "owned", "whole": "whole"}
    places = {key: BatchAxis(1, fold) for key, fold in folds.items()}
    learner.locate({**places, "none": None}, cast(Any, "shapes"))

    def use(key: str, rows: int) -> Any:
        axes = () if key == "flat" else (1,)
        return SimpleNamespace(key=key, shape=(7, rows), axes=axes, names=("weight",) if key == "flat" else ("bias",))

    keys = [*folds, "none", "new"]
    locating_in(learner, 2, "shapes", uses=[use(key, 4) for key in keys])._distrust()
    assert learner.knowledge.rows == {(key, "shapes"): 2.0 for key in ("fixed", "grown", "flat", "own")}
    uses = [use(key, 6 if key in ("fixed", "own") else 9) for key in keys]
    locating_in(learner, 3, "shapes", uses=uses)._distrust()
    known = learner.knowledge
    assert known.generic == {"weight"}
    assert {key for (key, _), place in known.axes.items() if place and place.fold == "owned"} == {"grown", "owned"}
    assert known.axes["grown", "shapes"] == BatchAxis(1, "owned")


def test_the_first_whole_batches_are_looked_at() -> None:
    """Of four shapes, each once; not those as small as what was learnt from."""
    tracer = tracer_of(nn.Linear(2, 2))
    assert [tracer._is_unlooked(batch(examples, "a")) for examples in (1, 3, 4, 4, 9)] == [
        False,
        False,
        True,
        False,
        False,
    ]
    asked = [tracer._is_unlooked(batch(4, shapes)) for shapes in range(LENGTHS + 3)]
    assert asked == [True] * (LENGTHS - 1) + [False] * 4
    assert tracer.learner.knowledge.looked == {"a", *range(LENGTHS - 1)}


class Restless(nn.Module):
    """A network that applies another of its weights in a way of its own in each pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)
        self.more = nn.ParameterList([nn.Parameter(torch.randn(2)) for _ in range(30)])
        self.passes, self.until = 0, 30

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 2)."""
        self.passes += 1
        return self.layer(x) + self.more[min(self.passes, self.until) - 1].cumsum(0).sin()


def test_networks_that_are_never_twice_the_same() -> None:
    """After eight passes it is given up."""
    model = Restless().double().to(DEVICE)
    with pytest.raises(PeewitError, match="applies its weights differently in every forward pass; expected it to be"):
        tracer_of(model).trace(normal(1, 3))
    assert model.passes == 8
    model.passes, model.until = 0, 7
    assert len(tracer_of(model).trace(normal(1, 3)).generic) == 7


@pytest.mark.parametrize("shape", [(), (2,), (1, 2), (6, 1)])
def test_outputs_without_examples_in_front(shape: tuple[int, ...]) -> None:
    """What came and what was expected are said."""
    model = nn.Linear(3, 2).double().to(DEVICE)
    model.forward = lambda x: nn.functional.linear(x, model.weight).sum() * torch.ones(shape, device=DEVICE)  # type: ignore[method-assign]
    words = rf"returned shape \({', '.join(map(str, shape))},?\) for 3 examples; expected a leading axis of 3"
    with pytest.raises(ValueError, match=words):
        tracer_of(model).trace(normal(3, 3))


class Full(nn.Module):
    """A network that runs out of memory, forward or backward."""

    def __init__(self, forward: bool) -> None:
        super().__init__()
        self.layer, self.at_once = nn.Linear(3, 2), forward

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 2)."""
        if self.at_once:
            raise torch.OutOfMemoryError("no room")
        made = self.layer(x)
        made.register_hook(self._full)
        return made * 2

    @staticmethod
    def _full(gradient: Tensor) -> None:
        raise torch.OutOfMemoryError("no room")


def test_the_error_when_memory_runs_out() -> None:
    """By whatever pass it was: no slower way and no other explanation."""
    x, model = normal(3, 3), Full(True).double().to(DEVICE)
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        tracer_of(model).cost(x)
    names = {name: each.detach() for name, each in model.named_parameters()}

    def run(weights: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(model, weights, x)

    several = {name: torch.stack([each, each]) for name, each in names.items()}
    for way in forward_mode.WAYS:
        with pytest.raises(torch.OutOfMemoryError, match="no room"):
            way(run, names, several)
    model = Full(False).double().to(DEVICE)
    output = model(x)
    tape = tracer_of(model)._tape(SimpleNamespace(uses=[], lifts=[]), output, x, 3)  # type: ignore[arg-type]
    with pytest.raises(torch.OutOfMemoryError, match="no room"):
        tape.pull_back(output, normal(2, 3, 2), [get_gradient_edge(model.layer.weight)])
    assert tape.learner.knowledge.batched


@pytest.mark.parametrize(
    ("examples", "rows"), [(1, [0]), (2, [0, 1, 1, 0]), (3, [0, 1, 2, 0, 2, 1]), (5, [0, 1, 2, 0, 2, 1])]
)
def test_examples_are_doubled_in_another_order(examples: int, rows: list[int]) -> None:
    """Up to three of them; the second order is no flip and no roll of the first, so that neither passes for it."""
    inputs = {"x": 10.0 * torch.arange(examples)[:, None], "y": torch.arange(examples)}
    made: Any = double(inputs)
    assert made["y"].tolist() == rows
    assert made["x"].flatten().tolist() == [10.0 * row for row in rows]
