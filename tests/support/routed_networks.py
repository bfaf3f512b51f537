"""Small networks that apply weights to rows chosen by the data: mixtures of experts, written in several ways."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from networks import Network, parameter


def switch_masks(classes: int = 3) -> nn.Module:
    """Each token takes one expert, chosen by a boolean mask, of one parameter (E, I, O), (B, T, 4) to (B, classes)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        h = torch.tanh(self.enter(x))
        gate = torch.softmax(self.gate(h), -1)
        chosen = gate.argmax(-1)
        mixed = torch.zeros_like(h)
        for number in range(len(self.weight)):
            mask = chosen == number
            mixed[mask] = torch.tanh(h[mask] @ self.weight[number] + self.bias[number]) * gate[mask][:, number, None]
        return self.head((h + mixed).mean(1))

    return Network(
        forward,
        enter=nn.Linear(4, 4),
        gate=nn.Linear(4, 3),
        weight=parameter(3, 4, 4),
        bias=parameter(3, 4),
        head=nn.Linear(4, classes),
    )


def top_two(classes: int = 3) -> nn.Module:
    """Each token takes two experts with ReLU, and experts without tokens are not called, (B, T, 4) to (B, classes)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        values, chosen = torch.softmax(self.gate(rows), -1).topk(2, -1)
        mixed = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            mine, rank = torch.where(chosen == number)
            if len(mine):
                mixed = mixed.index_add(0, mine, expert(rows[mine]) * values[mine, rank, None])
        return self.head((rows + mixed).reshape(x.shape).mean(1))

    members = nn.ModuleList(nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 4)) for _ in range(4))
    return Network(forward, gate=nn.Linear(4, 4), experts=members, head=nn.Linear(4, classes))


def dead_rows(classes: int = 3) -> nn.Module:
    """Experts whose units are dead for many tokens, (B, T, 4) to (B, classes)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        gate = torch.softmax(self.gate(rows), -1)
        mixed = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            mine = (gate.argmax(-1) == number).nonzero().squeeze(-1)
            made = self.leave(F.relu(expert(rows[mine]) - 0.3)) * gate[mine, number, None]
            mixed = mixed.index_add(0, mine, made)
        return self.head((rows + mixed).reshape(x.shape).mean(1))

    members = nn.ModuleList(nn.Linear(4, 2) for _ in range(2))
    leave = nn.Linear(2, 4)
    return Network(forward, gate=nn.Linear(4, 2), experts=members, leave=leave, head=nn.Linear(4, classes))


def first_token(classes: int = 3) -> nn.Module:
    """The output reads the first token alone: experts' other rows have no gradient, (B, T, 4) to (B, classes)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        h = self.enter(x)
        gate = torch.softmax(self.gate(h), -1)
        mixed = torch.zeros_like(h)
        for number, expert in enumerate(self.experts):
            mask = gate.argmax(-1) == number
            mixed = mixed.masked_scatter(mask[..., None], torch.tanh(expert(h[mask])))
        return self.head((h + mixed * gate.amax(-1, keepdim=True))[:, 0])

    members = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
    return Network(forward, enter=nn.Linear(4, 4), gate=nn.Linear(4, 2), experts=members, head=nn.Linear(4, classes))


def where_experts(classes: int = 3) -> nn.Module:
    """Every expert sees every token, and `where` keeps what was asked for, (B, T, 4) to (B, classes)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        chosen = self.gate(x).argmax(-1, keepdim=True)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            mixed = torch.where(chosen == number, torch.tanh(expert(x)), mixed)
        return self.head((x + mixed).mean(1))

    members = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    return Network(forward, gate=nn.Linear(4, 3), experts=members, head=nn.Linear(4, classes))


def sorted_experts(classes: int = 3) -> nn.Module:
    """Tokens sorted by expert, one slice for each, and put back in order, (B, T, 4) to (B, T, classes)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        rows = self.norm(x.reshape(-1, x.shape[-1]))
        gate = torch.softmax(self.gate(rows), -1)
        order = gate.argmax(-1).argsort(stable=True)
        sizes = gate.argmax(-1).bincount(minlength=3).tolist()
        made = []
        for number, own in enumerate(rows[order].split(sizes)):
            made.append(self.norms[number](torch.einsum("ti,io->to", own, self.weight[number])))
        mixed = torch.cat(made)[order.argsort()] * gate.amax(-1, keepdim=True)
        return self.head(rows + mixed).reshape(*x.shape[:-1], -1)

    return Network(
        forward,
        norm=nn.LayerNorm(4),
        gate=nn.Linear(4, 3),
        weight=parameter(3, 4, 4),
        norms=nn.ModuleList(nn.LayerNorm(4) for _ in range(3)),
        head=nn.Linear(4, classes),
    )


def by_length() -> nn.Module:
    """Positions that are not padding go through the layers as one list of rows, (B, T, 3) and a mask to (B, 2)."""

    def forward(self: Any, x: Tensor, hidden: Tensor) -> Tensor:
        keep = ~hidden
        rows = self.middle(torch.tanh(self.enter(x[keep])))
        made = x.new_zeros(*x.shape[:2], rows.shape[-1])
        made[keep] = torch.tanh(rows)
        return self.head(made.sum(1))

    return Network(forward, enter=nn.Linear(3, 4), middle=nn.Linear(4, 4), head=nn.Linear(4, 2))
