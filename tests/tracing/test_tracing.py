"""What a forward pass is seen to do: where examples are, and whose rows are whose, piece by piece."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

import reference_dense as dense
from environment import DEVICE
from jacobian_cases import EXAMPLES, PROBES, normal, places, term_of, written_out
from networks import Network, parameter
from peewit.jacobians.explicit import Explicit
from peewit.jacobians.factored import Matrix, Term
from peewit.jacobians.layout import Layout
from peewit.jacobians.output_layer import OutputLayerJacobian, identity_probes
from peewit.network.isolation import isolated
from peewit.runtime.arithmetic import as_arithmetic
from peewit.runtime.memory import Budget
from peewit.tracing import forward_mode, routing
from peewit.tracing.doubling import double, reach, repeats, rows_of_examples, second_places
from peewit.tracing.forward_mode import Push
from peewit.tracing.graph import cut_of, reorders
from peewit.tracing.knowledge import Knowledge, Learner, signature
from peewit.tracing.layers.contract import Contribution
from peewit.tracing.layers.examples import BatchAxis
from peewit.tracing.layers.unbind import Unbind
from peewit.tracing.locating import FittingPlace, Locating
from peewit.tracing.recording import Again, Recording, walk
from peewit.tracing.tape import Tape, merge
from peewit.tracing.tracer import Tracer
from peewit.tracing.verification import LENGTHS
from peewit.weights.ranges import WeightRange
from peewit.weights.space import make_space
from peewit.weights.vectors import flatten, unflatten

close = torch.testing.assert_close


def numbers(*values: int) -> Tensor:
    """Whole numbers on the device under test."""
    return torch.tensor(values, device=DEVICE)


TURNED = (1, 0, 3, 2)


def zeros() -> Tensor:
    """Four examples of three numbers."""
    return torch.zeros(4, 3, dtype=torch.float64, device=DEVICE)


def down() -> Tensor:
    """(4, 3): another example for each, in all columns."""
    return numbers(*TURNED)[:, None].expand(4, 3)


# What is done to four examples of three numbers, and whether it may change their order.
STEPS: dict[str, tuple[Callable[[Tensor], Tensor], bool]] = {
    "a sum": (lambda x: x + 1, False),
    "a median": (lambda x: x.median(1)[0], False),
    "flip": (lambda x: x.flip(0), True),
    "flip from the end": (lambda x: x.flip(-2), True),
    "flip both": (lambda x: x.flip(-1, -2), True),
    "flip columns": (lambda x: x.flip(1), False),
    "flip columns from the end": (lambda x: x.flip(-1), False),
    "flip of a vector": (lambda x: x[:, 0].flip(-1), True),
    "roll": (lambda x: x.roll(1, 0), True),
    "roll from the end": (lambda x: x.roll(1, -2), True),
    "roll of everything": (lambda x: x.roll(1), True),
    "roll columns": (lambda x: x.roll(1, 1), False),
    "roll columns from the end": (lambda x: x.roll(1, -1), False),
    "select": (lambda x: x.index_select(0, numbers(*TURNED)), True),
    "select from the end": (lambda x: x.index_select(-2, numbers(*TURNED)), True),
    "select columns": (lambda x: x.index_select(1, numbers(1, 0)), False),
    "select columns from the end": (lambda x: x.index_select(-1, numbers(1, 0)), False),
    "gather": (lambda x: x.gather(0, down()), True),
    "gather from the end": (lambda x: x.gather(-2, down()), True),
    "gather columns": (lambda x: x.gather(-1, numbers(1, 0, 2, 2)[:, None]), False),
    "sort": (lambda x: x.sort(0)[0], True),
    "sort from the end": (lambda x: x.sort(-2)[0], True),
    "sort columns": (lambda x: x.sort(-1)[0], False),
    "largest": (lambda x: x.topk(4, 0)[0], True),
    "largest from the end": (lambda x: x.topk(4, -2)[0], True),
    "largest columns": (lambda x: x.topk(2)[0], False),
    "scatter": (lambda x: zeros().scatter(0, down(), x), True),
    "scatter from the end": (lambda x: zeros().scatter_add(-2, down(), x), True),
    "scatter columns": (lambda x: zeros().scatter(1, numbers(1, 0, 2)[None].expand(4, 3), x), False),
    "add": (lambda x: zeros().index_add(0, numbers(*TURNED), x), True),
    "add from the end": (lambda x: zeros().index_add(-2, numbers(*TURNED), x), True),
    "add columns": (lambda x: zeros().index_add(-1, numbers(1, 0, 2), x), False),
    "copy": (lambda x: zeros().index_copy(-2, numbers(*TURNED), x), True),
    "copy columns": (lambda x: zeros().index_copy(1, numbers(1, 0, 2), x), False),
    "index": (lambda x: x[numbers(*TURNED)], True),
    "index in order": (lambda x: x[numbers(0, 1, 2, 3)], False),
    "index some in order": (lambda x: x[numbers(0, 1)], False),
    "index columns": (lambda x: x[:, numbers(1, 0, 2)], False),
    "index as many columns as examples": (lambda x: torch.cat([x, x[:, :1]], 1)[:, numbers(*TURNED)], True),
    "index a number of each example": (lambda x: x[numbers(0, 1, 2, 3), numbers(2, 0, 1, 1)], False),
    "index one of several of each": (lambda x: torch.cat([x, x], 0).T[numbers(0, 1), numbers(5, 1)], True),
    "one of four of each": (lambda x: torch.cat([x, x], 1)[:, :4][numbers(0, 1, 2, 3), numbers(*TURNED)], False),
    "two of four of some": (lambda x: torch.cat([x, x], 1)[:, :4][numbers(0, 1), numbers(3, 1)], True),
    "index by a mask": (lambda x: x[numbers(1, 1, 0, 1).bool()], True),
    "index columns by a mask": (lambda x: x[:, numbers(1, 1, 0).bool()], False),
    "put": (lambda x: zeros().index_put((numbers(*TURNED),), x), True),
    "put in order": (lambda x: zeros().index_put((numbers(0, 1, 2, 3),), x), False),
    "put a number of each": (lambda x: zeros().index_put((numbers(0, 1, 2, 3), numbers(2, 0, 1, 1)), x[:, 0]), False),
    "a number alone": (lambda x: x.sum().sort(-1)[0], True),
}


@pytest.mark.parametrize("step", STEPS)
def test_steps_that_may_reorder(step: str) -> None:
    """An axis may be counted from either end; what an example does among its own numbers is no matter."""
    make, expected = STEPS[step]
    made = make(normal(4, 3).requires_grad_())
    assert made.grad_fn is not None
    assert reorders(made.grad_fn, 4) is expected


def tracer_of(model: nn.Module, **options: Any) -> Tracer:
    """For all of its weights."""
    return Tracer(model, tuple(name for name, _ in model.named_parameters()), Budget(1 << 24), **options)


def jacobian_of(tape: Tape) -> Tensor:
    """(B, F, D), in the order of the parameters; zero where nothing was found."""
    made = []
    found = tape.pull(identity_probes(tape.output))
    for name, weight in tape.parameters.items():
        rows = torch.zeros(tape.output[0].numel(), tape.examples, weight.numel(), dtype=tape.dtype, device=DEVICE)
        for part, jacobian in found.items():
            if part.name == name:
                rows[..., part.start : part.stop] += jacobian.rows(slice(0, tape.examples))
        made.append(rows)
    return torch.cat(made, -1).transpose(0, 1)


class Turning(nn.Module):
    """A network that turns its batch round where its first number is positive, and its outputs back."""

    def __init__(self, back: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.back = nn.Linear(3, 4), nn.Linear(4, 2), back

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 2)."""
        order = torch.arange(len(x), device=x.device)
        order = order.flip(0) if float(x[0, 0]) > 0 else order
        return self.back(self.second(self.first(x[order]).tanh()), order)


@pytest.mark.parametrize(
    "back",
    [
        lambda made, order: made[order],
        lambda made, order: made.index_select(0, order),
        lambda made, order: made.index_select(-2, order),
        lambda made, order: made.gather(-2, order[:, None].expand_as(made)),
        lambda made, order: torch.zeros_like(made).scatter(-2, order[:, None].expand_as(made), made),
        lambda made, order: torch.zeros_like(made).index_add(-2, order, made),
        lambda made, order: torch.zeros_like(made).index_put((order,), made),
        lambda made, order: made.flip(-2) if int(order[0]) else made,
    ],
    ids=["index", "select", "select -2", "gather -2", "scatter -2", "add -2", "put", "flip -2"],
)
def test_a_later_batch_that_is_reordered(back: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Each example has its own Jacobian, whichever axis the network gives for the examples."""
    model = Turning(back).double().to(DEVICE)
    x = normal(12, 3)
    x[:, 0] = x[:, 0].abs() * torch.tensor([-1.0] * 6 + [1.0] * 6, device=DEVICE)
    tracer = tracer_of(model)
    tracer.cost(x[:6])
    for some in (x[:6], x[6:]):
        found = jacobian_of(tracer.trace(some)).cpu()
        close(found, dense.jacobian(model.cpu(), some.cpu(), list(tracer.names)))
        model.to(DEVICE)


def into_slices(h: Tensor, k: int) -> Tensor:
    """Rotated by k, piece by piece in place."""
    made = torch.zeros_like(h)
    made[: len(h) - k] = h[k:]
    made[len(h) - k :] = h[:k]
    return made


# Examples rotated by k: no step looks as if it changed their order.
ROTATED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "slices": lambda h, k: torch.cat([h[k:], h[:k]]),
    "slices from the end": lambda h, k: torch.cat([h.narrow(-2, k, len(h) - k), h.narrow(-2, 0, k)], -2),
    "pieces that are bent": lambda h, k: torch.vstack([h[k:] * 2, h[:k] * 2]) / 2,
    "split": lambda h, k: torch.cat(h.split([k, len(h) - k])[::-1]),
    "tensor_split": lambda h, k: torch.cat(h.tensor_split((k,))[::-1]),
    "one by one": lambda h, k: torch.stack([h[(each + k) % len(h)] for each in range(len(h))]),
    "unbind": lambda h, k: torch.stack([h.unbind()[(each + k) % len(h)] for each in range(len(h))]),
    "halves swapped or kept": lambda h, k: torch.cat((h[3:], h[:3]) if k % 6 else (h[:3], h[3:])) if k != 6 else h,
    "into slices": into_slices,
}


class Rotating(nn.Module):
    """A network that begins with its largest example, and puts its outputs back."""

    def __init__(self, rotated: Callable[[Tensor, int], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.rotated = nn.Linear(3, 4), nn.Linear(4, 2), rotated

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 2)."""
        k = int(x[:, 0].argmax())
        made = self.second(self.first(self.rotated(x, k)).tanh())
        return self.rotated(made, len(x) - k)


def looks_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Backward passes that ask whose rows are whose, as they come."""
    asked: list[int] = []
    plain = routing.gradients_of

    def counted(*given: Any) -> Any:
        asked.append(1)
        return plain(*given)

    monkeypatch.setattr(routing, "gradients_of", counted)
    return asked


@pytest.mark.parametrize("way", ROTATED)
def test_later_batches_that_are_rotated(way: str) -> None:
    """By numbers in them: each example has its own Jacobian, after batches that were in order and others."""
    model = Rotating(ROTATED[way]).double().to(DEVICE)
    tracer, x = tracer_of(model), normal(36, 3)
    places = (0, 0, 3, 3, 0, 3) if "halves" in way else (0, 0, 3, 1, 3, 0)
    for number, place in enumerate(places):
        x[6 * number + place, 0] = 10.0
    tracer.cost(x[:6])
    for some in x.split(6):
        found = jacobian_of(tracer.trace(some)).cpu()
        close(found, dense.jacobian(model.cpu(), some.cpu(), list(tracer.names)))
        model.to(DEVICE)
    assert not tracer.learner.knowledge.generic


def halves(net: Any, x: Tensor) -> Tensor:
    hidden = net.first(x)
    return net.second(torch.cat([hidden[:3].tanh(), hidden[3:].tanh()]))


def wider(net: Any, x: Tensor) -> Tensor:
    hidden = net.first(x)
    return net.third(torch.cat([hidden[:, 2:].tanh(), hidden, x[:, : 1 + int(x[0, 0] > 0)].mean(1, True)], 1))


@pytest.mark.parametrize(("forward", "asked"), [(halves, [2, 0, 0, 2, 0, 0]), (wider, [2, 0, 0, 0, 0, 0])])
def test_batches_that_are_cut_as_before_are_not_looked_at(
    forward: Any, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look takes two backward passes: one for each number of examples where these are cut, else one at all."""
    layers = {"first": nn.Linear(3, 4), "second": nn.Linear(4, 2), "third": nn.Linear(7, 2)}
    model = Network(forward, **layers).double().to(DEVICE)
    tracer, x = tracer_of(model), normal(33, 3)
    tracer.cost(x[:6])
    made = looks_of(monkeypatch)
    counts = []
    for some in x.split([6, 6, 6, 5, 5, 5]):
        before = len(made)
        tracer.trace(some)
        counts.append(len(made) - before)
    assert counts == asked
    assert len(tracer.learner.knowledge.cuts) == (2 if forward is halves else 0)


# What is done to four examples of three numbers, and how many cuts along the examples it makes.
CUTTING: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "nothing": (lambda x: x.tanh() + 1, 0),
    "a slice": (lambda x: x[1:3], 1),
    "a slice from the end": (lambda x: x.narrow(-2, 1, 2), 1),
    "a slice of columns": (lambda x: x[:, 1:], 0),
    "columns joined": (lambda x: torch.cat([x[:, 1:], x[:, :1]], -1), 0),
    "joined": (lambda x: torch.cat([x.tanh(), x.sin()]), 1),
    "joined to another length": (lambda x: torch.cat([x.tanh(), x.sum(0)[None]]), 0),
    "one of them": (lambda x: x[2], 1),
    "one column": (lambda x: x[:, 2], 0),
    "split": (lambda x: x.split(2)[1], 1),
    "split columns": (lambda x: x.split(2, -1)[1], 0),
    "unbound": (lambda x: x.unbind()[3], 1),
    "unbound columns": (lambda x: x.unbind(-1)[2], 0),
    "stacked": (lambda x: torch.stack([x[3], x[1], x[2], x[0]]), 5),
    "a row of a table": (lambda x: x.sum(0)[1:], 0),
}


def cut(make: Callable[[Tensor], Tensor]) -> tuple[Any, ...]:
    """How a step cuts four examples of three numbers."""
    made = make(normal(4, 3).requires_grad_() * 1)
    return cut_of([*walk([made.grad_fn], lambda node: False)], 4)


@pytest.mark.parametrize("step", CUTTING)
def test_cuts_along_the_examples(step: str) -> None:
    """An axis may be counted from either end; the same step is the same cut."""
    make, number = CUTTING[step]
    found = cut(make)
    assert len([each for each in found if isinstance(each[0], str)]) == number
    assert found == cut(make) and (number or found == ())


class SliceOfMine(torch.autograd.Function):
    """A step of a user's whose name is like torch's."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        return z.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0]


def test_cuts_of_other_functions() -> None:
    """Our own `unbind`, which keeps its axis, is one; what only has such a name is none."""
    for axis, number in ((0, 1), (1, 0)):
        found = cut(lambda x, axis=axis: Unbind.apply(x, axis)[1])  # type: ignore[misc]
        assert len([each for each in found if isinstance(each[0], str)]) == number
    assert cut(SliceOfMine.apply) == ()


def test_other_cuts() -> None:
    """Other places, another order of the pieces, and other pieces of those that one step makes."""
    makes: list[Callable[[Tensor], Tensor]] = [
        lambda x: torch.cat([x[1:], x[:1]]),
        lambda x: torch.cat([x[2:], x[:2]]),
        lambda x: torch.cat([x[:2], x[2:]]),
        lambda x: torch.cat(x.split(2)),
        lambda x: torch.cat(x.split(2)[::-1]),
        lambda x: torch.cat(x.split(3)),
        lambda x: torch.cat(x.split([1, 3])),
        lambda x: torch.cat(x.split([3, 1])),
        lambda x: torch.stack(x.unbind()),
        lambda x: torch.stack(x.unbind()[::-1]),
        lambda x: torch.cat([each.tanh() for each in x.split(2)]),
        lambda x: torch.cat([each.tanh() for each in x.split(2)[::-1]]),
        lambda x: x[::2],
        lambda x: x[1::2],
        lambda x: x[0],
        lambda x: x[3],
    ]
    assert len({cut(make) for make in makes}) == len(makes)


def batch(examples: int, shapes: Any = (), **more: Any) -> Any:
    """A recorded batch, as far as it is asked about."""
    return SimpleNamespace(examples=examples, signature=shapes, output=zeros(), **more)


def locating_in(learner: Learner, examples: int, shapes: Any = (), **more: Any) -> Locating:
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


PLACES = [BatchAxis(axis, "none") for axis in range(3)]


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
    learner = Learner()
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
        locating = locating_in(Learner(), 6)
        assert locating._choose(("weight",), [FittingPlace(place, False, hits)], 3) == (place if reached == 3 else None)


def test_places_that_hold_for_inputs_of_other_shapes() -> None:
    """They are tried first, and kept where equal examples have equal rows and others differ."""
    learner = Learner()
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


def test_what_is_known_of_a_use() -> None:
    """Where the examples are, for inputs of these shapes; or that it has none."""
    learner = Learner()
    learner.locate({"placed": PLACES[1], "none": None}, cast(Any, "shapes"))
    learner.locate({"placed": PLACES[0]}, cast(Any, "others"))

    def fits(key: str, shape: tuple[int, ...]) -> bool:
        return learner.knowledge.fits(cast(Any, SimpleNamespace(key=key, shape=shape)), cast(Any, "shapes"), 4)

    assert fits("placed", (3, 4)) and not fits("placed", (4, 3))
    assert fits("none", (4, 3)) and not fits("new", (4, 3))


def test_rows_that_change_in_number() -> None:
    """Their use is routed from then on; where it has no axes its weights take the generic rule."""
    learner = Learner()
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
    with pytest.raises(RuntimeError, match="applies its weights differently in every forward pass; expected it to be"):
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
    learner = Learner(known)
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
    learner, shapes = Learner(known), signature(x)
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


def rows_at(*spans: tuple[int, int], name: str = "weight") -> dict[WeightRange, Any]:
    """Jacobians as rows."""
    return {WeightRange(name, start, stop): Explicit(normal(2, 3, stop - start), Budget(1)) for start, stop in spans}


def test_jacobians_of_another_form() -> None:
    """Weights whose ranges overlap earlier ones without being the same, or are held otherwise, become generic."""
    learner = Learner()
    assert learner.note_forms(rows_at((0, 4), (4, 8))) == [] and learner.note_forms(rows_at((4, 8), (8, 12))) == []
    assert learner.knowledge.forms == {
        "weight": {(0, 4): "Explicit (1, 4, 1)", (4, 8): "Explicit (1, 4, 1)", (8, 12): "Explicit (1, 4, 1)"}
    }
    for spans in (((0, 8),), ((3, 5),), ((5, 7),), ((0, 3),), ((11, 13),), ((0, 4), (2, 6))):
        other = Learner(learner.knowledge)
        assert other.note_forms(rows_at(*spans) | rows_at((0, 2), name="bias")) == ["weight"]
        assert other.knowledge.generic == {"weight"} and set(other.knowledge.forms) == {"bias"}
    matrix = Matrix((), Layout.plain(1, 4, 1), Budget(1))
    assert learner.note_forms({WeightRange("weight", 12, 16): matrix}) == []
    assert learner.note_forms({WeightRange("weight", 0, 4): matrix}) == ["weight"]


class Scaled(nn.Module):
    """Two tensors, the second of little effect, and one that nothing depends on."""

    def __init__(self, effect: float = 0.01, size: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(3, 2))
        self.unread, self.effect, self.size = nn.Parameter(torch.randn(2)), effect, size

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 2)."""
        return self.size * ((x @ self.first.to(x.dtype)).tanh() + self.effect * (x @ self.second))


def push_of(model: nn.Module, mask: Tensor | None = None, memory: int = 1 << 24) -> Push:
    """For all of its weights."""
    space = make_space(model, [name for name, _ in model.named_parameters()], mask)
    return Push(model, space, Learner(), Budget(memory))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("way", range(forward_mode.ROWS + 1))
def test_every_way_to_push(way: int, masked: bool) -> None:
    """Outputs and products with the dense Jacobian, for several vectors and one."""
    model, x = Scaled().double().to(DEVICE), normal(5, 3)
    mask = torch.arange(14) % 3 != 1 if masked else None
    push = push_of(model, mask, memory=1)
    jacobian = dense.jacobian(model.cpu(), x.cpu(), list(push.space.names))
    model.to(DEVICE)
    jacobian = (jacobian if mask is None else jacobian[..., mask]).to(DEVICE)
    for count in (3, 1):
        vectors = normal(count, push.space.size, seed=4)
        output, pushed = push._rows(x, vectors) if way == forward_mode.ROWS else push._by(way, x, vectors, None)
        assert output.shape == (5, 2) and not output.requires_grad and not pushed.requires_grad
        close(output, model(x).detach())
        close(pushed, torch.einsum("bkp,sp->sbk", jacobian, vectors))
        found = push._agrees(way, x) if way < forward_mode.ROWS else True
        assert found
    close(flatten(unflatten(vectors[0], push.space), push.space), vectors[0])


def test_vectors_of_named_weights() -> None:
    """The others are held fixed."""
    model, x = Scaled().double().to(DEVICE), normal(5, 3)
    push, vectors = push_of(model), torch.zeros(2, 14, dtype=torch.float64, device=DEVICE)
    vectors[:, 6:12] = normal(2, 6)
    asked = []
    for names in (["second"], None):
        close(push(x, vectors, names)[1], 0.01 * torch.einsum("bi,sio->sbo", x, vectors[:, 6:12].reshape(2, 3, 2)))
        asked.append(push.learner.knowledge.push)
    assert asked[0] == {True: 0}


RIGHT = forward_mode.WAYS[1]


def wrong(change: Callable[..., Tensor]) -> Any:
    """A way that changes the vectors first."""
    return lambda run, weights, given: RIGHT(run, weights, {name: change(name, each) for name, each in given.items()})


@pytest.mark.parametrize(
    ("dtype", "effect", "change", "agrees"),
    [
        (torch.float64, 0.01, lambda name, each: each, True),
        (torch.float64, 0.01, lambda name, each: each * (1 + 1e-9), True),
        (torch.float64, 0.01, lambda name, each: each * (1 + 1e-5), False),
        (torch.float64, 0.01, lambda name, each: each if name != "second" else 0 * each, False),
        (torch.float64, 1e-2, lambda name, each: each if name != "second" else each * (1 + 1e-4), False),
        (torch.float64, 1e-14, lambda name, each: each if name != "second" else 0 * each, True),
        (torch.float64, 0.01, lambda name, each: each if name != "unread" else 0 * each, True),
        (torch.float32, 0.01, lambda name, each: each * (1 + 1e-4), True),
        (torch.float32, 0.01, lambda name, each: each * 1.2, False),
        (torch.float64, 0.01, lambda name, each: each if name != "second" else each * (1 + 2e-6), False),
    ],
)
def test_ways_that_agree_with_the_backward_pass(
    dtype: torch.dtype, effect: float, change: Any, agrees: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within rounding, each tensor's share brought to the size of the largest unless it may be rounding itself."""
    model = Scaled(effect).to(DEVICE, dtype)
    monkeypatch.setattr(forward_mode, "WAYS", (wrong(change),) * 3)
    push, x = push_of(model), normal(9, 3).to(dtype)
    assert push._agrees(0, x) is agrees
    assert push._agrees(2, x) is agrees


@pytest.mark.parametrize("size", [1e-6, 1e6])
def test_ways_agree_whatever_the_size_of_outputs(size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared is relative to the largest gradient; and to the coarsest dtype among weights and outputs."""
    x = normal(9, 3)
    model = Scaled(1e-14, size).double().to(DEVICE)
    monkeypatch.setattr(forward_mode, "WAYS", (wrong(lambda name, each: each if name != "second" else 0 * each),) * 3)
    assert push_of(model)._agrees(1, x)
    model = Scaled(0.01, size).double().to(DEVICE)
    for error, agrees in ((1e-9, True), (1e-4, False)):
        monkeypatch.setattr(forward_mode, "WAYS", (wrong(lambda name, each, by=1 + error: by * each),) * 3)
        assert push_of(model)._agrees(1, x) is agrees
    model.first.data = model.first.data.float()
    assert push_of(model)._agrees(1, x)


def test_ways_that_are_right_for_one_vector_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """All vectors count where they go at once."""
    monkeypatch.setattr(forward_mode, "WAYS", (wrong(lambda name, each: torch.cat([each[:1], 2 * each[1:]])),) * 3)
    push = push_of(Scaled().double().to(DEVICE))
    assert not push._agrees(0, normal(9, 3)) and push._agrees(1, normal(9, 3))


def test_how_ways_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each on four examples with three vectors, at once or one by one; the first that agrees is kept for its kind."""
    asked: list[tuple[str, int, int]] = []

    def way(name: str, made: Any) -> Any:
        def run_way(run: Any, weights: Any, tangents: Any) -> Any:
            asked.append((name, len(run(weights)), len(tangents["first"])))
            return made(run, weights, tangents)

        return run_way

    fails = iter([False] * 3 + [True] * 9)

    def sometimes(run: Any, weights: Any, tangents: Any) -> Any:
        return None if next(fails) else RIGHT(run, weights, tangents)

    ways = way("none", lambda *given: None), way("sometimes", sometimes), way("right", RIGHT)
    monkeypatch.setattr(forward_mode, "WAYS", ways)
    model, x = Scaled().double().to(DEVICE), normal(9, 3)
    push = push_of(model)
    expected = torch.einsum(
        "bkp,sp->sbk", dense.jacobian(model.cpu(), x.cpu(), list(push.space.names)), normal(2, 14).cpu()
    )
    model.to(DEVICE)
    close(push(x, normal(2, 14))[1].cpu(), expected)
    tried = (
        [("none", 4, 3)] + [("sometimes", 4, 1)] * 3 + [("sometimes", 9, 2)] + [("right", 4, 1)] * 3 + [("right", 9, 2)]
    )
    assert asked == tried and push.learner.knowledge.push == {True: 2}
    asked.clear()
    close(push(x, normal(2, 14))[1].cpu(), expected)
    assert asked == [("right", 9, 2)]
    asked.clear()
    close(push(x, normal(2, 14)[:1])[1].cpu(), expected[:1])
    assert asked == [("sometimes", 4, 1)] + [("right", 4, 1)] * 3 + [("right", 9, 1)]  # the first is for several
    assert push.learner.knowledge.push == {True: 2, False: 2}
    monkeypatch.setattr(forward_mode, "WAYS", (lambda *given: None,) * 3)
    other = push_of(model)
    close(other(x, normal(2, 14))[1].cpu(), expected)
    assert other.learner.knowledge.push == {True: forward_mode.ROWS}


@pytest.mark.parametrize(
    ("dtype", "share", "scale"),
    [
        (torch.float64, 2**-8, 2**8),
        (torch.float64, 2**-12, 1e3),
        (torch.float16, 2**-4, 1 / (100 * 2**-10)),
        (torch.bfloat16, 2**-1, 1 / (100 * 2**-7)),
    ],
)
def test_shares_of_small_gradients(
    dtype: torch.dtype, share: float, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are brought to the largest, whose norm float16 cannot hold here, up to a thousand times or rounding."""
    largest = torch.full((3, 2), 40960.0, dtype=dtype, device=DEVICE)
    gradients = {"first": largest, "second": share * largest, "unread": 0 * largest[0]}
    monkeypatch.setattr(Push, "_pull", lambda self, inputs: (normal(4, 2).to(dtype), gradients))
    monkeypatch.setattr(Push, "_by", lambda *given: None)
    asked: list[list[float]] = []
    monkeypatch.setattr(Push, "_draw", lambda self, number, scales, generator: asked.append(scales) or normal(3, 14))
    assert not push_of(Scaled().to(DEVICE))._agrees(0, normal(4, 3))
    assert asked[0] == pytest.approx([1.0, scale, 1000.0 if dtype == torch.float64 else scale], rel=1e-12)


@pytest.mark.parametrize(("error", "agrees"), [(1.0, True), (-1.0, True), (1.001, False), (-1.001, False)])
def test_how_far_ways_may_be_apart(error: float, agrees: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tensors round three times: the largest gradient's norm, here 2, by 1e-7 and the root of three."""
    push, output = push_of(Scaled().double().to(DEVICE)), normal(4, 2)
    gradients = {"first": torch.zeros(3, 2), "second": torch.zeros(3, 2), "unread": torch.tensor([2.0, 0.0])}
    gradients = {name: each.double().to(DEVICE) for name, each in gradients.items()}
    pushed = torch.zeros_like(output)
    pushed[2, 1] = error * (1e-7 * 2.0 * math.sqrt(3))
    monkeypatch.setattr(Push, "_probe", lambda self, output: torch.ones_like(output))
    monkeypatch.setattr(Push, "_pull", lambda self, inputs: (output, gradients))
    monkeypatch.setattr(Push, "_draw", lambda self, number, *given: torch.zeros(number, 14))
    monkeypatch.setattr(Push, "_by", lambda self, way, inputs, v, names: (output, pushed.expand(len(v), 4, 2)))
    for way in range(forward_mode.ROWS):
        assert push._agrees(way, normal(4, 3)) is agrees


def test_nothing_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients that are zero, or not finite, say nothing against a way; without any weights outputs stay."""
    monkeypatch.setattr(forward_mode, "WAYS", (lambda *given: None,) * 3)
    model = Scaled().double().to(DEVICE)
    assert push_of(model)._agrees(1, 0 * normal(4, 3))
    assert push_of(model)._agrees(1, normal(4, 3) / 0)
    assert not push_of(model)._agrees(1, normal(4, 3))


def test_rounding_of_products() -> None:
    """By the dtype of the numbers: half of the digits of float64, and ten bits of float32."""
    assert [forward_mode.rounding(dtype) for dtype in (torch.float64, torch.float32, torch.float16)] == [
        1e-7,
        1e-2,
        0.1,
    ]


SILENT = [("There is a performance drop because of x", UserWarning)]
SAID = [("`torch.jit.script` is old", UserWarning), ("another", DeprecationWarning), ("another", UserWarning)]


@pytest.mark.parametrize(
    ("message", "category", "heard"),
    [
        *((*each, False) for each in [*SILENT, ("`torch.jit.script` is old", DeprecationWarning)]),
        *((*each, True) for each in SAID),
    ],
)
def test_warnings_inside_forward_mode(message: str, category: type[Warning], heard: bool) -> None:
    """Those of torch about itself are not for users; a network's own are."""

    def push() -> tuple[int, int]:
        warnings.warn(message, category, stacklevel=1)
        return 1, 2

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert forward_mode._forward(push) == (1, 2)
    assert [str(each.message) for each in caught] == [message] * heard


@pytest.mark.parametrize(
    ("message", "heard"),
    [
        ("There is a performance drop", False),
        ("Attempting to run cuBLAS, but", False),
        ("Attempting to run cuFFT, but", False),
        ("another", True),
    ],
)
def test_warnings_inside_backward_passes(message: str, heard: bool) -> None:
    """Likewise, where several probes are pulled back at once; one warns as it does."""
    model, x = nn.Linear(3, 2).double().to(DEVICE), normal(3, 3)
    tape = tracer_of(model).trace(x)
    made = model(x)
    made.register_hook(lambda gradient: warnings.warn(message, UserWarning, stacklevel=1))
    edges = [get_gradient_edge(model.weight)]
    for count in (2, 1):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            (found,) = tape.pull_back(made * 2, normal(count, 3, 2), edges)
        assert {str(each.message) for each in caught} == ({message} if heard or count == 1 else set())
        close(found, 2 * torch.einsum("kbo,bi->koi", normal(count, 3, 2), x))


def test_several_vectors_meet_the_same_random_numbers() -> None:
    """Of a network that draws some."""
    weights = {"w": normal(3)}
    made = forward_mode.WAYS[0](
        lambda given: given["w"] * torch.rand(3, device=DEVICE), weights, {"w": normal(2, 3, seed=1)}
    )
    assert made is not None
    close(made[1], made[0] / normal(3) * normal(2, 3, seed=1))


def piece(start: int, rows: int, width: int = 4, **kind: Any) -> Contribution:
    """One use's share in rows of a weight (6, 4), from an element on."""
    layout = kind.pop("layout", None) or Layout.plain(1, rows, width)
    seed = kind.pop("seed", start)
    value: Any = term_of(layout, 2, seed, **kind)
    if kind.get("explicit"):
        value = normal(PROBES, EXAMPLES, rows * width, seed=seed)
    return Contribution(WeightRange("weight", start, start + rows * width), value, layout)


TURNED_LAYOUT = Layout((4, 6), (1, 0), (1, 6, 4))
# Shares in a weight of 24 numbers, and the ranges that are kept apart; rows of all of it where there are none.
SHARES: dict[str, tuple[list[Contribution], list[tuple[int, int]]]] = {
    "one": ([piece(0, 6)], [(0, 24)]),
    "twice": ([piece(0, 6), piece(0, 6, seed=9)], [(0, 24)]),
    "part of it": ([piece(8, 2)], [(8, 16)]),
    "side by side": ([piece(0, 2), piece(8, 4)], [(0, 8), (8, 24)]),
    "with a gap": ([piece(16, 2), piece(0, 2)], [(0, 8), (16, 24)]),
    "whole and first rows": ([piece(0, 6), piece(0, 2, seed=9)], [(0, 8), (8, 24)]),
    "whole and middle rows": ([piece(8, 2), piece(0, 6, seed=9)], [(0, 8), (8, 16), (16, 24)]),
    "overlapping": ([piece(0, 4), piece(8, 4)], [(0, 8), (8, 16), (16, 24)]),
    "not whole rows": ([piece(0, 6), piece(2, 2)], []),
    "other rows": ([piece(0, 6), piece(0, 4, 2)], []),
    "whole, and turned in part": ([piece(0, 6), piece(0, 2, flipped=True)], []),
    "turned layout in part": ([piece(0, 6, layout=TURNED_LAYOUT), piece(0, 2, seed=9)], []),
    "two layouts": ([piece(0, 6), piece(0, 6, layout=TURNED_LAYOUT, seed=9)], []),
    "rows made": ([piece(0, 6, explicit=True)], []),
    "rows made of some": ([piece(4, 3, explicit=True)], []),
    "rows and a product": ([piece(0, 6), piece(0, 6, explicit=True, seed=9)], []),
    "rows of some and a product": ([piece(0, 6), piece(8, 2, explicit=True)], []),
    "both ways": ([piece(0, 6), piece(0, 6, flipped=True, seed=9)], [(0, 24)]),
}


@pytest.mark.parametrize("kind", SHARES)
def test_shares_of_one_weight_add_up(kind: str) -> None:
    """Factored where ranges are the same or can be cut at whole rows; as rows of all the weight otherwise."""
    shares, expected = SHARES[kind]
    whole = torch.zeros(PROBES, EXAMPLES, 24, dtype=torch.float64, device=DEVICE)
    for part, value, layout in shares:
        if isinstance(value, Term):
            rows = torch.empty(PROBES, EXAMPLES, part.stop - part.start, dtype=torch.float64, device=DEVICE)
            rows[..., places(layout).flatten()] = written_out((value,)).flatten(2).transpose(0, 1)
        else:
            rows = value
        whole[..., part.start : part.stop] += rows
    made = merge("weight", shares, 24, Budget(1 << 20))
    assert [part[1:] for part in made] == (expected or [(0, 24)])
    found = torch.zeros_like(whole)
    for part, jacobian in made.items():
        assert isinstance(jacobian, Matrix if expected else Explicit) and part.name == "weight"
        found[..., part.start : part.stop] += jacobian.rows(slice(0, EXAMPLES))
        assert not isinstance(jacobian, Matrix) or not jacobian.graph
    close(found, whole)
    for jacobian in merge("weight", shares, 24, Budget(1 << 20), graph=True).values():
        assert not isinstance(jacobian, Matrix) or jacobian.graph


class Unheeded(nn.Module):
    """A table that is added to what examples have, and of which the output takes nothing."""

    def __init__(self, heeded: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.table, self.heeded = nn.Linear(4, 10), nn.Embedding(5, 2), heeded

    def forward(self, x: Tensor) -> Tensor:
        """(B, 4) -> (B, 10)."""
        hidden = self.layer(x).view(-1, 5, 2)
        table = self.table(torch.arange(5, device=x.device))
        first, second = (hidden + table).tanh(), (hidden.sin() + table.sin()).cos()
        return (first if self.heeded else hidden.tanh()).flatten(1) + 0 * second.detach().flatten(1)


@pytest.mark.parametrize("heeded", [True, False])
def test_sums_that_the_output_does_not_take(heeded: bool) -> None:
    """Have no share in the Jacobian; others of the same table have theirs."""
    model, x = Unheeded(heeded).double().to(DEVICE), normal(6, 4)
    tape = tracer_of(model).trace(x)
    assert tape.lifts and not tape.generic
    close(jacobian_of(tape).cpu(), dense.jacobian(model.cpu(), x.cpu(), list(tape.parameters)))
    expected = {"layer.weight", "table.weight"} if heeded else {"layer.weight"}
    assert {name for use in tape.uses if use.key in tape.reached_uses() for name in use.names} == {
        *expected,
        "layer.bias",
    }


class Counted(nn.Module):
    """A layer, with weights that no rule knows where they are asked for."""

    def __init__(self, further: int = 0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.passes = nn.Linear(3, 2), 0
        self.more = nn.Parameter(torch.randn(further)) if further else None

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 2)."""
        self.passes += 1
        made = self.layer(x)
        return made if self.more is None else made + self.more.cumsum(0).sin().sum()


@pytest.mark.parametrize(("examples", "doubled_to"), [(1, 1), (2, 4), (9, 6)])
def test_bytes_of_an_example(examples: int, doubled_to: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its numbers in the layers and the output, and three rows of each weight that has the generic rule."""
    verified: list[Any] = []
    monkeypatch.setattr("peewit.tracing.tracer.verify", lambda *given: verified.append(given))
    model, x = Counted().double().to(DEVICE), normal(examples, 3)
    tracer = tracer_of(model)
    assert tracer.cost(x) == tracer.cost(x[:1]) == 8 * (2 + 2)
    assert model.passes == 1  # over what is learnt from, and none for another question
    assert tracer.learner.knowledge.shape(x) == (2,) and tracer.learner.knowledge.is_closed(x)
    ((several, given, _),) = verified
    assert several.probes and several.learner is tracer.learner and given is x and not tracer.probes
    other = tracer_of(Counted(5).double().to(DEVICE))
    assert other.cost(x) == 8 * (2 + 2 + 3 * 5) and not other.learner.knowledge.is_closed(x)
    assert other.trace(double(x)).examples == doubled_to


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (lambda net, x: net.a(x) / 0 * 0, r"output is NaN, although the input is finite"),
        (lambda net, x: net.a(x)[:, :0], r"^The network has no outputs: its shape is \(N, 0\)"),
    ],
)
def test_outputs_that_nothing_can_be_learnt_from(forward: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are refused before anything is compared."""
    compared: list[Any] = []
    monkeypatch.setattr("peewit.tracing.tracer.verify", lambda *given: compared.append(given))
    with pytest.raises(ValueError, match=words):
        tracer_of(network(forward, a=nn.Linear(4, 4))).cost(normal(5, 4))
    assert not compared


def sloped(net: Any, x: Tensor) -> Tensor:
    with torch.enable_grad():
        given = x.detach().requires_grad_()
        return torch.autograd.grad(net.a(given).tanh().sum(), given, create_graph=True)[0]


@pytest.mark.parametrize(("forward", "second"), [(sloped, True), (lambda net, x: net.a(x).tanh(), False)])
def test_networks_that_differentiate_themselves(forward: Any, second: bool) -> None:
    """It is known after one pass, which was begun again."""
    model, x = network(forward, a=nn.Linear(4, 4)), normal(5, 4)
    tracer = tracer_of(model)
    found = jacobian_of(tracer.trace(x))
    assert tracer.learner.knowledge.second is second
    recording = Recording({}, Learner(Knowledge(second=second)), 5, signature(x), watch=False, probes=False)
    with nullcontext() if second else pytest.raises(Again):
        recording._begin_again()
    assert recording.learner.knowledge.second
    close(found, dense.jacobian(model.cpu(), x.cpu(), list(tracer.parameters)).to(DEVICE))


@pytest.mark.parametrize(
    ("step", "vectorised", "batched"),
    [
        (lambda x: x.tanh(), True, True),
        (lambda x: nn.functional.prelu(x, torch.tensor([0.3]).to(x)), False, True),
        (lambda x: torch.cdist(x[:, None], torch.ones(1, 2).to(x))[:, 0], False, False),
    ],
    ids=["tanh", "prelu", "cdist"],
)
def test_steps_that_torch_maps_wrongly(step: Callable[[Tensor], Tensor], vectorised: bool, batched: bool) -> None:
    """Are not mapped over, in this batch and later ones."""
    model, x = Counted().double().to(DEVICE), normal(6, 3)
    whole = nn.Sequential(model, nn.Identity())
    whole[1].forward = step  # type: ignore[method-assign]
    tracer = tracer_of(whole)
    close(jacobian_of(tracer.trace(x)).cpu(), dense.jacobian(whole.cpu(), x.cpu(), list(tracer.names)))
    whole.to(DEVICE)
    assert (tracer.learner.knowledge.vectorised, tracer.learner.knowledge.batched) == (vectorised, batched)
    whole[1].forward = lambda x: x  # type: ignore[method-assign]
    tracer.trace(x)
    assert (tracer.learner.knowledge.vectorised, tracer.learner.knowledge.batched) == (vectorised, batched)


class Large(nn.Module):
    """A network that turns batches of more than six examples round, by steps that are in every network."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 2)."""
        if len(x) <= 6:
            return self.second(self.first(x).tanh())
        made = self.second(self.first(torch.cat([x[4:], x[:4]])).tanh())
        return torch.cat([made[len(x) - 4 :], made[: len(x) - 4]])


def test_the_first_whole_batch_may_be_reordered() -> None:
    """It is looked at whatever its steps; so the Jacobian is each example's own, also where nothing was watched."""
    model, x = Large().double().to(DEVICE), normal(9, 3)
    tracer = tracer_of(model)
    tracer.cost(x)
    tape = tracer.trace(x)
    assert not tape.generic
    close(jacobian_of(tape).cpu(), dense.jacobian(model.cpu(), x.cpu(), list(tracer.names)))


def test_what_is_selected() -> None:
    """Parameters by name, in the network's order; products have the widest dtype, and float32 at least."""
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)).to(DEVICE)
    tracer = Tracer(model, ("1.weight", "0.bias"), Budget(1 << 20))
    assert list(tracer.parameters) == ["0.bias", "1.weight"] and tracer.selected[0] is model[0].bias
    assert (tracer.create_graph, tracer.probes, tracer.dtype) == (False, False, torch.float32)
    model[1].weight.data = model[1].weight.data.double()
    model[0].bias.data = model[0].bias.data.half()
    assert Tracer(model, ("1.weight", "0.bias"), Budget(1 << 20)).dtype == torch.float64
    assert Tracer(model, ("0.bias",), Budget(1 << 20)).dtype == torch.float32
    learner = Learner()
    assert Tracer(model, ("0.bias",), Budget(1), learner).learner is learner
    for name, predicting, exact in (("float32", True, True), ("tf32", False, False), ("auto", True, False)):
        budget = Budget(1, as_arithmetic(name))
        assert Tracer(model, ("0.bias",), budget, predicting=predicting).exact is exact


class Varied(nn.Module):
    """A layer called twice and once without gradients, a parameter that is multiplied, and a table without examples."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.factor, self.table = nn.Linear(3, 3), nn.Parameter(torch.randn(3)), nn.Embedding(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 3)."""
        hidden = self.layer(self.layer(x).tanh()).tanh() * self.factor
        with torch.no_grad():
            self.layer(x)
        return hidden + self.table(torch.arange(2, device=x.device)).sum(0)


KEYS = ["linear/layer.weight/layer.bias/1", "linear/layer.weight/layer.bias/2"]
KEYS += ["multiplied parameter/factor/1", "embedding/table.weight/1"]
LIFTED = "lift/embedding/table.weight/1/1"


@pytest.mark.parametrize("examples", [1, 5])
def test_what_a_pass_is_seen_to_use(examples: int) -> None:
    """Each call by its rule, weights and number; not those without gradients, nor those of weights not selected."""
    model, x = Varied().double().to(DEVICE), normal(examples, 3)
    tape = tracer_of(model).trace(x)
    assert [use.key for use in tape.uses] == KEYS and not tape.generic and not tape.learner.knowledge.copied
    assert [use.lifted for use in tape.uses] == [False] * 3 + [examples > 1]
    assert [lift.key for lift in tape.lifts] == [LIFTED] * (examples > 1)
    assert [len(use.below) for use in tape.uses] == [0, 1, 0, 0]
    assert [use.shape for use in tape.uses] == [(examples, 3)] * 3 + [(2, 3)]
    assert {use.dtype for use in tape.uses} == {torch.float64}
    close(jacobian_of(tape).cpu(), dense.jacobian(model.cpu(), x.cpu(), list(tape.parameters)))
    model.to(DEVICE)
    fewer = Tracer(model, ("factor",), Budget(1 << 20)).trace(x)
    assert [use.key for use in fewer.uses] == KEYS[2:3]
    generic = tracer_of(model)
    generic.learner.make_generic(["layer.weight"])
    kept = [use.key for use in generic.trace(x).uses]
    assert not any("layer.weight" in key for key in kept) and KEYS[2] in kept


def test_what_a_pass_shows() -> None:
    """The inputs of each use; the results of steps whose operands were broadcast to the examples."""
    model, x = Varied().double().to(DEVICE), normal(5, 3)
    tracer = tracer_of(model)
    seen = tracer.watch(x)
    first = model.layer(x).tanh()
    scaled = model.layer(first).tanh() * model.factor
    expected = {KEYS[0]: x, KEYS[1]: first, KEYS[2]: scaled, KEYS[3]: numbers(0, 1)}
    expected[LIFTED] = model(x)
    assert set(seen) == set(expected)
    for key, (found,) in seen.items():
        close(found.double(), expected[key].detach().double())
        assert not found.requires_grad
    assert "lift" not in "".join(tracer.watch(x[:1]))


def network(forward: Callable[[Any, Tensor], Tensor], **parts: Any) -> nn.Module:
    """A network in double precision, on the device under test."""
    torch.manual_seed(1)
    return Network(forward, **parts).double().to(DEVICE)


def tied(net: Any, x: Tensor) -> Tensor:
    return net.a(nn.functional.linear(x, net.a.weight).tanh())


# Networks on four numbers; the outermost layer, if any; whether it is all of them; weights with their biases.
OUTER: dict[str, tuple[Callable[[], nn.Module], str | None, bool, list[tuple[str, str]]]] = {
    "one layer": (lambda: network(lambda net, x: net.a(x), a=nn.Linear(4, 4)), "a", True, [("a.weight", "a.bias")]),
    "without a bias": (lambda: network(lambda net, x: net.a(x), a=nn.Linear(4, 4, bias=False)), "a", True, []),
    "two layers": (
        lambda: network(lambda net, x: net.b(net.a(x).tanh()), a=nn.Linear(4, 4), b=nn.Linear(4, 4)),
        "b",
        False,
        [("a.weight", "a.bias"), ("b.weight", "b.bias")],
    ),
    "a step at the end": (
        lambda: network(lambda net, x: net.a(x).tanh(), a=nn.Linear(4, 4)),
        None,
        False,
        [("a.weight", "a.bias")],
    ),
    "seen otherwise": (
        lambda: network(lambda net, x: net.a(x).reshape(len(x), -1, 2), a=nn.Linear(4, 4)),
        "a",
        True,
        [("a.weight", "a.bias")],
    ),
    "positions as rows": (
        lambda: network(lambda net, x: net.a(x.reshape(-1, 4)).reshape(len(x), -1), a=nn.Linear(4, 4)),
        "a",
        True,
        [("a.weight", "a.bias")],
    ),
    "a vector": (
        lambda: network(lambda net, x: x.reshape(len(x), -1, 2) @ net.a.weight[0], a=nn.Linear(2, 1, bias=False)),
        "a",
        True,
        [],
    ),
    "from the left": (
        lambda: network(lambda net, x: net.a.weight @ x.reshape(len(x), 4, -1), a=nn.Linear(4, 3, bias=False)),
        "a",
        True,
        [],
    ),
    "a convolution": (
        lambda: network(lambda net, x: net.a(x.reshape(len(x), 1, -1)), a=nn.Conv1d(1, 2, 2)),
        "a",
        True,
        [("a.weight", "a.bias")],
    ),
    "turned": (
        lambda: network(lambda net, x: net.a(x).reshape(len(x), -1, 2).mT, a=nn.Linear(4, 4)),
        None,
        False,
        [("a.weight", "a.bias")],
    ),
    "one weight twice": (lambda: network(tied, a=nn.Linear(4, 4)), None, False, []),
    "one bias for two": (
        lambda: network(
            lambda net, x: nn.functional.linear(nn.functional.linear(x, net.v, net.c).tanh(), net.w, net.c),
            v=parameter(4, 4),
            w=parameter(4, 4),
            c=parameter(4),
        ),
        None,
        False,
        [],
    ),
    "two biases for one": (
        lambda: network(
            lambda net, x: nn.functional.linear(nn.functional.linear(x, net.v, net.b).tanh(), net.v, net.c),
            v=parameter(4, 4),
            b=parameter(4),
            c=parameter(4),
        ),
        None,
        False,
        [],
    ),
    "weights that no rule knows beside": (
        lambda: network(lambda net, x: net.a(x + net.p.cumsum(0).sin().sum()), a=nn.Linear(4, 4), p=parameter(3)),
        "a",
        False,
        [("a.weight", "a.bias")],
    ),
    "a bias that is also met otherwise": (
        lambda: network(lambda net, x: net.a(x + net.a.bias.cumsum(0).sin().sum()), a=nn.Linear(4, 4)),
        "a",
        False,
        [],
    ),
}


@pytest.mark.parametrize("shape", [(5, 4), (5, 3, 4), (1, 4), (1, 3, 4), (2, 4), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("kind", OUTER)
def test_the_layer_whose_output_is_the_networks(kind: str, shape: tuple[int, ...]) -> None:
    """Its Jacobian is known; those of others are pulled back beside it."""
    make, outer, closed, pairs = OUTER[kind]
    model, x = make(), normal(*shape)
    tape = tracer_of(model).trace(x)
    used = tape.outermost
    assert (None if used is None else used.views["weight"].name) == (None if outer is None else f"{outer}.weight")
    assert tape.closed is closed
    assert sorted((weight.name, bias.name) for weight, bias in tape.pairs().items()) == pairs
    expected = dense.jacobian(copy.deepcopy(model).cpu(), x.cpu(), list(tape.parameters)).to(DEVICE)
    starts = {name: place.start for name, place in make_space(model, tape.parameters).slices().items()}
    found = torch.zeros_like(expected)
    for part, jacobian in tape.pull_outputs().items():
        assert isinstance(jacobian, OutputLayerJacobian) is (used is not None and part.name in used.names)
        rows = jacobian.rows(slice(0, len(x))).transpose(0, 1)
        found[..., starts[part.name] + part.start : starts[part.name] + part.stop] += rows
    close(found, expected)
    close(jacobian_of(tape), expected)


def test_rows_of_a_layer_in_half_precision() -> None:
    """They are those of the inputs, in float32, where sums of many of them are."""
    model, x = nn.Linear(4, 3).to(DEVICE, torch.bfloat16), normal(5, 4).bfloat16()
    rows = {part.name: each.rows(slice(0, 5)) for part, each in tracer_of(model).trace(x).pull_outputs().items()}
    eye = torch.eye(3, device=DEVICE)
    close(rows["weight"], torch.einsum("ko,bi->kboi", eye, x.float()).flatten(2))
    close(rows["bias"], eye[:, None].expand(3, 5, 3))


class Itemised(torch.autograd.Function):
    """The identity, whose gradient looks at a number: it cannot be mapped over."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """As it is."""
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Likewise."""
        return gradients[0] * (2 if gradients[0].flatten()[0].item() > 1e9 else 1)


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("batched", [True, False, "not at all"])
def test_probes_pulled_back(batched: Any, count: int, graph: bool) -> None:
    """At once or one by one, with a graph or without; None for what does not matter."""
    model, x = nn.Linear(3, 2).double().to(DEVICE), normal(4, 3).requires_grad_()
    tracer = tracer_of(model, graph=graph)
    tape = tracer.trace(x)
    tape.learner.learn(batched=bool(batched))
    other = nn.Linear(1, 1).to(DEVICE)
    hidden = model(x)
    made = (Itemised.apply(hidden) if batched == "not at all" else hidden.clone()) * 2
    probes = normal(count, 4, 2, seed=5)
    edges = [get_gradient_edge(each) for each in (model.weight, other.weight, hidden)]
    weight, unused, inside = tape.pull_back(made, probes, edges)
    assert unused is None and weight is not None and inside is not None
    close(weight, 2 * torch.einsum("kbo,bi->koi", probes, x))
    close(inside, 2 * probes)
    assert weight.requires_grad is graph
    assert tape.learner.knowledge.batched is (batched is True or (batched == "not at all" and count == 1))
    assert tape.pull_back(made, probes, []) == []


class Numbered(nn.Module):
    """A network that counts its passes in a buffer, and adds the count to its outputs."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)
        self.count: Tensor
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 2)."""
        with torch.no_grad():
            self.count += 1
        return self.layer(x) + self.count.clone()


def test_every_pass_starts_from_the_same_network() -> None:
    """Whichever pass it is, and also where it fails: what it changed is put back before the next."""
    model, x = Numbered().double().to(DEVICE), normal(4, 3)
    tracer, push = tracer_of(model), push_of(model)
    vectors = normal(2, 8)
    with isolated(model, list(model.parameters())):
        for step in (
            lambda: tracer.trace(x),
            lambda: tracer.watch(x),
            lambda: push._pull(x),
            lambda: push._by(0, x, vectors, None),
            lambda: push._by(2, x, vectors, None),
        ):
            step()
            assert float(model.count) == 0
        with pytest.raises(RuntimeError):
            tracer.trace(x[:, :2])
        assert float(model.count) == 0


@pytest.mark.parametrize("finite", [0, 1])
def test_gradients_that_are_not_finite_say_nothing(finite: int) -> None:
    """About which example they reach: where the examples are is told by the rows alone."""
    model = network(lambda net, x: net.a(x).abs().sqrt(), a=nn.Linear(3, 2))
    x = normal(3, 3)  # as few as are not looked at again
    x[finite:, 0] = 0
    with torch.no_grad():
        model.a.weight[:, 1:], model.a.bias[:] = 0, 0
    tape = tracer_of(model).trace(x)
    (use,) = tape.uses
    assert tape.axis(use.key) == BatchAxis(0, "none") and not tape.generic


@pytest.mark.parametrize(
    ("examples", "rows"), [(1, [0]), (2, [0, 1, 1, 0]), (3, [0, 1, 2, 0, 2, 1]), (5, [0, 1, 2, 0, 2, 1])]
)
def test_examples_are_doubled_in_another_order(examples: int, rows: list[int]) -> None:
    """Up to three of them; the second order is no flip and no roll of the first, so that neither passes for it."""
    inputs = {"x": 10.0 * torch.arange(examples)[:, None], "y": torch.arange(examples)}
    made: Any = double(inputs)
    assert made["y"].tolist() == rows
    assert made["x"].flatten().tolist() == [10.0 * row for row in rows]
