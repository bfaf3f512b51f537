"""What a forward pass is seen to do: where examples are, and whose rows are whose, piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import reference_dense as dense
from conftest import DEVICE
from lapwing.memory import Budget
from lapwing.outermost import identity_cotangents
from lapwing.tape import Tape
from lapwing.tracer import Tracer, reorders

close = torch.testing.assert_close


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers on the device under test."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(DEVICE)


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
    found = tape.pull(identity_cotangents(tape.output))
    for name, parameter in tape.parameters.items():
        rows = torch.zeros(tape.output[0].numel(), tape.examples, parameter.numel(), dtype=tape.dtype, device=DEVICE)
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
