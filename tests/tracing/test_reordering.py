"""Batches whose examples the network reorders, cuts or rotates, and how a later pass sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import reference_dense as dense
from environment import DEVICE
from jacobian_cases import normal
from networks import Network
from peewit.tracing import routing
from peewit.tracing.graph import cut_of, reorders
from peewit.tracing.layers.unbind import Unbind
from peewit.tracing.recording import walk
from tracing_parts import jacobian_of, numbers, tracer_of, zeros

close = torch.testing.assert_close


TURNED = (1, 0, 3, 2)


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
