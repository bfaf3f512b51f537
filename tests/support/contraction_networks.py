"""Small networks that apply matrices in other words than `F.linear`: products of matrices, and `torch.einsum`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from networks import Network, parameter


class Addmm(nn.Module):
    """The layer of GPT-2: a weight (I, O) and a bias, applied to all positions as rows of one matrix."""

    def __init__(self, given: int, made: int) -> None:
        """Random weights."""
        super().__init__()
        self.weight, self.bias = parameter(given, made), parameter(made)

    def forward(self, x: Tensor) -> Tensor:
        """Return (..., O)."""
        flat = torch.addmm(self.bias, x.reshape(-1, x.shape[-1]), self.weight)
        return flat.reshape(*x.shape[:-1], -1)


def addmm() -> nn.Module:
    """Layers of GPT-2, also without positions, (B, T, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mix(torch.tanh(self.enter(x)))).mean(1))

    return Network(forward, enter=Addmm(4, 5), mix=Addmm(5, 4), head=Addmm(4, 3))


def addmm_forms() -> nn.Module:
    """The method, names for arguments, biases as rows, frozen or computed, and scaling, (B, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.row.addmm(x, self.first))
        hidden = torch.tanh(torch.addmm(mat2=self.second, mat1=hidden, input=hidden))
        hidden = torch.addmm(self.still, hidden, self.third)
        hidden = torch.tanh(torch.addmm(self.shift, hidden, self.constant))
        return torch.addmm(self.out, hidden, self.scaled, beta=0.5, alpha=2.0)

    members: dict[str, Any] = {"row": parameter(1, 5), "first": parameter(4, 5), "second": parameter(5, 5)}
    members |= {"still": parameter(5).requires_grad_(False), "third": parameter(5, 5), "shift": parameter(3)}
    members |= {"constant": parameter(5, 3).requires_grad_(False), "out": parameter(3), "scaled": parameter(3, 3)}
    return Network(forward, **members)


def transposed_linear() -> nn.Module:
    """Transposes of weights, whole and in slices, with biases, (B, T, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = torch.tanh(functional.linear(x, self.first.t(), self.shift))
        left, right = self.packed[:5], self.packed[5:]
        hidden = torch.tanh(functional.linear(hidden, left.t()) + hidden @ right)
        return functional.linear(hidden, self.last.mT, self.out).mean(1)

    members = {"first": parameter(4, 5), "shift": parameter(5), "packed": parameter(10, 4)}
    return Network(forward, **members, last=parameter(4, 3), out=parameter(3))


def square_both_ways() -> nn.Module:
    """A square weight and its transpose with one bias: no joint block can hold both, (B, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = torch.tanh(functional.linear(x, self.square, self.shift))
        return self.head(torch.tanh(torch.addmm(self.shift, hidden, self.square)))

    return Network(forward, square=parameter(4, 4), shift=parameter(4), head=nn.Linear(4, 3))


def grouped(apply: Callable[[Any, Tensor], Tensor], **members: nn.Parameter) -> Callable[[], nn.Module]:
    """Return a builder of a network that has a matrix (3, 2, 4) for each of three groups, (B, T, 6) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.enter(x)).unflatten(-1, (3, 2))
        return self.head(torch.tanh(apply(self, hidden)).flatten(2)).mean(1)

    def build() -> nn.Module:
        made = {name: parameter(*each.shape) for name, each in members.items()}
        return Network(forward, enter=nn.Linear(6, 6), weight=parameter(3, 2, 4), **made, head=nn.Linear(12, 3))

    return build


def _bmm(self: Any, hidden: Tensor) -> Tensor:
    batch, length = hidden.shape[:2]
    by_group = hidden.permute(2, 0, 1, 3).reshape(3, batch * length, 2)
    return torch.bmm(by_group, self.weight).reshape(3, batch, length, 4).permute(1, 2, 0, 3)


def _baddbmm(self: Any, hidden: Tensor) -> Tensor:
    batch, length = hidden.shape[:2]
    by_group = hidden.permute(2, 1, 0, 3).reshape(3, length * batch, 2)
    made = torch.baddbmm(self.bias, by_group, self.weight)
    return made.reshape(3, length, batch, 4).permute(2, 1, 0, 3)


def _left_bmm(self: Any, hidden: Tensor) -> Tensor:
    batch, length = hidden.shape[:2]
    by_group = hidden.permute(2, 3, 0, 1).reshape(3, 2, batch * length)
    made = self.weight.mT.bmm(by_group)
    return made.reshape(3, 4, batch, length).permute(2, 3, 0, 1)


bmm = grouped(_bmm)
baddbmm = grouped(_baddbmm, bias=parameter(3, 1, 4))
left_bmm = grouped(_left_bmm)
batched_matmul = grouped(lambda self, hidden: (hidden.transpose(1, 2) @ self.weight).transpose(1, 2))
einsum_groups = grouped(lambda self, hidden: torch.einsum("btgi,gio->btgo", hidden, self.weight))


def stretched_matmul() -> nn.Module:
    """Every position through three matrices, whose results are weighted, (B, T, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        share = torch.softmax(self.gate(x), -1)
        every = torch.tanh(x.unsqueeze(1) @ self.weight)  # (B, 3, T, 4)
        return self.head((every.permute(0, 2, 1, 3) * share.unsqueeze(-1)).sum(2)).mean(1)

    return Network(forward, gate=nn.Linear(4, 3), weight=parameter(3, 4, 4), head=nn.Linear(4, 3))


def left_matmul() -> nn.Module:
    """A matrix over positions, from the left, and a vector over the rest, (B, 3, 4) to (B, 2)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        mixed = torch.tanh(torch.matmul(self.mix, torch.tanh(self.enter(x))))
        return mixed @ self.vector

    return Network(forward, enter=nn.Linear(4, 5), mix=parameter(2, 3), vector=parameter(5))


def einsum_attention() -> nn.Module:
    """Attention with projections (heads, in, width) and (heads, width, out), (B, T, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        query = torch.einsum("bti,hid->bhtd", x, self.query)
        key = torch.einsum("bsi,hid->bhds", x, self.key)
        value = torch.einsum("hid, bsi -> bhsd", self.value, x)
        shares = torch.einsum("bhtd,bhds->bhts", query, key).softmax(-1)
        mixed = torch.einsum("bhts,bhsd->bthd", shares, value)
        return self.head(x + torch.einsum("bthd,hdo->bto", mixed, self.out)).mean(1)

    members = {name: parameter(2, 4, 3) for name in ("query", "key", "value")}
    return Network(forward, **members, out=parameter(2, 3, 4), head=nn.Linear(4, 3))


def einsum_tied() -> nn.Module:
    """One weight (heads, in, width) in both directions, results in several orders, (B, T, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = torch.tanh(torch.einsum("bti,hid->bdth", x, self.both))
        x = x + torch.tanh(torch.einsum("bdth,hid->bti", hidden, self.both))
        hidden = torch.tanh(torch.einsum("hid,bti->bthd", self.both, x))
        return self.head(torch.einsum("bthd,hid->bti", hidden, self.both)).mean(1)

    return Network(forward, both=parameter(2, 4, 3), head=nn.Linear(4, 3))


def einsum_forms() -> nn.Module:
    """Dots, results in another order, no result at all, slices, and one weight both ways, (B, T, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = torch.tanh(torch.einsum("...i,oi->...o", x, self.both))
        hidden = torch.tanh(torch.einsum("bto,oi->bti", hidden, self.both))
        hidden = torch.tanh(torch.einsum("bti,io->otb", hidden, self.turned).permute(2, 1, 0))
        hidden = torch.tanh(torch.einsum("t...i,oi", [hidden.transpose(0, 1), self.packed[:4]]).transpose(1, 2))
        hidden = hidden + torch.einsum("bti,oi->bto", hidden, self.packed[4:])
        summed = torch.einsum("bti,io->bo", hidden, self.summed)  # the generic rule: summed over one operand's axis
        return torch.einsum("bi,ii->bi", summed, self.diagonal)  # and a diagonal

    members = {"both": parameter(5, 4), "turned": parameter(4, 4), "packed": parameter(8, 4)}
    return Network(forward, **members, summed=parameter(4, 3), diagonal=parameter(3, 3))
