"""What was learnt about a network: a value that stays as it is, and what questions learn beside it."""

from __future__ import annotations

from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

import torch
from torch import nn

from environment import DEVICE
from jacobian_cases import normal
from peewit.tracing.knowledge import Knowledge, KnowledgeLearner, signature
from tracing_parts import PLACES, rows_at


def test_what_is_known_of_a_use() -> None:
    """Where the examples are, for inputs of these shapes; or that it has none."""
    learner = KnowledgeLearner()
    learner.locate({"placed": PLACES[1], "none": None}, cast(Any, "shapes"))
    learner.locate({"placed": PLACES[0]}, cast(Any, "others"))

    def fits(key: str, shape: tuple[int, ...]) -> bool:
        return learner.knowledge.fits(cast(Any, SimpleNamespace(key=key, shape=shape)), cast(Any, "shapes"), 4)

    assert fits("placed", (3, 4)) and not fits("placed", (4, 3))
    assert fits("none", (4, 3)) and not fits("new", (4, 3))


def learnt() -> Knowledge:
    """Something in each of its fields."""
    shapes: Any = (("", "torch.float64", (3,)),)
    return Knowledge(
        axes={("use", shapes): PLACES[0]},
        latest={"use": PLACES[0]},
        rows={("use", shapes): 1.0},
        forms={"weight": {(0, 6): "Matrix"}},
        generic=frozenset({"bias"}),
        copied=frozenset({"use"}),
        used={"weight": frozenset({"linear"})},
        costs={shapes: (8, (2,))},
        looked=frozenset({shapes}),
        cuts=frozenset({1}),
        second=True,
        batched=False,
        vectorised=False,
        verified={shapes: "two examples"},
        corrections=("a weight",),
        direct={shapes: frozenset({"bias"})},
        closed={shapes: True},
        push={True: 1},
    )


def test_what_is_known_stays_as_it_is() -> None:
    """Whatever is learnt from it on: a learner puts another value in its place."""
    known, x = learnt(), normal(4, 3)
    usual = Knowledge()
    assert all(getattr(known, each.name) != getattr(usual, each.name) for each in fields(known))
    learner = KnowledgeLearner(known)
    learner.learn(second=False, batched=True, corrections=(), push={})
    learner.locate({"use": None, "other": PLACES[1]}, signature(x))
    learner.make_generic(["weight"])
    learner.note_rules({"weight": {"norm"}, "bias": {"linear"}})
    learner.note_generic_rules(["other"])
    assert learner.note_forms(rows_at((0, 6))) == ["weight"] and learner.note_forms(rows_at((0, 2), name="bias")) == []
    model = nn.Linear(3, 2).double().to(DEVICE)
    learner.with_weights(model, {"weight": 2 * model.weight}, x)(x)
    assert known == learnt()
    assert learner.knowledge.used == {
        "weight": {"linear", "norm"},
        "bias": {"linear"},
        "other": {"generic"},
    }
    assert learner.knowledge.direct == {signature(x): {"bias", "weight"}}
    assert learner.knowledge.forms.keys() == {"bias"} and learner.knowledge.generic == {"weight", "bias"}


def test_what_questions_learn_stands_beside_what_is_known() -> None:
    """Once for all questions, and nothing of it in the value."""
    known = learnt()
    known.questions.make_generic(["weight"])
    assert known.questions.knowledge.generic == {"weight", "bias"} and known == learnt()


def test_what_is_asked_of_knowledge() -> None:
    """Of inputs that were looked at, and of those that were not."""
    known, x = learnt(), normal(4, 3)
    assert known.words() == "two examples; a weight" and Knowledge().words() == ""
    assert known.knows(x) and known.knows(x[:1]) and not known.knows(x.float()) and not known.knows(x[:, :2])
    assert known.cost(x) == 8 and known.shape(x) == (2,) and known.is_closed(x)
    learner, shapes = KnowledgeLearner(known), signature(x)
    assert known.is_located("use", shapes) and not known.is_located("use", ()) and not known.is_located("other", shapes)
    learner.locate({"other": None}, ())
    assert learner.knowledge.axis("other", ()) is None and learner.knowledge.latest["other"] is None
    assert (Knowledge().second, Knowledge().batched, Knowledge().vectorised) == (False, True, True)


def test_shapes_of_inputs() -> None:
    """Of one example: names or positions, dtypes and sizes, also of tensors inside."""
    x, tokens = normal(4, 3, 2), torch.zeros(4, 5, dtype=torch.long)
    assert signature(x) == (("", "torch.float64", (3, 2)),)
    both = (("0", "torch.float64", (3, 2)), ("1", "torch.int64", (5,)))
    assert signature((x, tokens)) == both and signature([x, tokens]) == both
    assert signature({"a": tokens, "b": x}) == (("a", "torch.int64", (5,)), ("b", "torch.float64", (3, 2)))
