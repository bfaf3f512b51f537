"""Jacobians of every form, and the same written out."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from environment import DEVICE
from peewit.jacobians.factored import Matrix, Term
from peewit.jacobians.inputs import Acts
from peewit.jacobians.layout import Layout
from peewit.jacobians.output_layer import (
    OutputLayerJacobian,
)
from peewit.runtime.memory import Budget

EXAMPLES, PROBES = 3, 2


LITTLE, PLENTY = Budget(1), Budget(1 << 24)


# A tensor (2, 3, 2, 2) as two groups of matrices (3, 4), whose columns are its last axes, the last first.
GROUPED = Layout((2, 3, 2, 2), (0, 1, 3, 2), (2, 3, 4))


ACROSS = Layout((4, 3, 1, 2), (2, 1, 3, 0), (1, 3, 8))


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Random numbers on the device under test."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(DEVICE)


def places(layout: Layout) -> Tensor:
    """Where each element (G, O, I) is in the tensor, one by one."""
    strides = [int(torch.Size(layout.split[axis + 1 :]).numel()) for axis in range(len(layout.split))]
    made = [0]
    for axis in layout.order:
        made = [start + strides[axis] * step for start in made for step in range(layout.split[axis])]
    return torch.tensor(made, device=DEVICE).reshape(layout.matrix)


def term_of(layout: Layout, positions: int, seed: int, **kind: bool) -> Term:
    """A use with random inputs and gradients."""
    groups, rows, columns = layout.matrix
    flipped = kind.get("flipped", False)
    width, height = (rows, columns) if flipped else (columns, rows)
    grad = normal(PROBES, EXAMPLES, groups, positions, height, seed=seed)
    if kind.get("neighbours"):  # in memory positions are neighbours
        grad = grad.mT.contiguous().mT
    if kind.get("tokens"):
        index = torch.tensor([[2, 0, 2, 1], [1, 1, 1, 0], [0, 3, 1, 2]], device=DEVICE)[:, :positions] % width
        made = torch.nn.functional.one_hot(index, width).unsqueeze(1)
        return Term(Acts(make=lambda some: made[some], width=width, positions=positions, index=index), grad, flipped)
    if kind.get("constant"):
        ones = grad.new_ones(EXAMPLES, groups, positions, 1)
        return Term(Acts(make=lambda some: ones[some], width=1, positions=positions, constant=True), grad)
    given = normal(EXAMPLES, groups, positions, width, seed=seed + 50)
    return Term(Acts(make=lambda some: given[some], width=width, positions=positions), grad, flipped)


def one_hot(term: Term) -> Tensor:
    """(B, G, T, width): a use's inputs."""
    acts = term.acts
    if acts.index is None:
        return acts.make(slice(0, EXAMPLES))
    return (acts.index[..., None] == torch.arange(acts.width, device=DEVICE)).double()[:, None]


def written_out(terms: tuple[Term, ...]) -> Tensor:
    """(B, K, G, O, I): the sum over uses and positions, one by one."""
    total: Any = 0
    for term in terms:
        inputs = one_hot(term)
        for t in range(term.grad.shape[3]):
            grad, act = term.grad[:, :, :, t].transpose(0, 1), inputs[:, None, :, t]
            outer = grad[..., :, None] * act[..., None, :]
            total = total + (outer.mT if term.flipped else outer)
    return total


PLAIN = Layout.plain(1, 3, 4)


BIAS = Layout.plain(2, 3, 1)


# A layout, and positions and kind of each use.
KINDS: dict[str, tuple[Layout, list[tuple[int, dict[str, bool]]]]] = {
    "one position": (PLAIN, [(1, {})]),
    "one position in groups": (GROUPED, [(1, {})]),
    "one position, flipped": (GROUPED, [(1, {"flipped": True})]),
    "positions": (ACROSS, [(3, {})]),
    "positions in groups": (GROUPED, [(3, {})]),
    "many positions": (GROUPED, [(9, {})]),
    "many positions, flipped": (ACROSS, [(17, {"flipped": True})]),
    "neighbours": (GROUPED, [(4, {"neighbours": True})]),
    "neighbours in one group": (ACROSS, [(6, {"neighbours": True})]),
    "flipped": (GROUPED, [(2, {"flipped": True})]),
    "two uses": (GROUPED, [(2, {}), (1, {})]),
    "two single uses": (GROUPED, [(1, {}), (1, {})]),
    "two flipped uses": (GROUPED, [(2, {"flipped": True}), (3, {"flipped": True})]),
    "either way": (GROUPED, [(1, {"flipped": True}), (3, {})]),
    "tokens": (PLAIN, [(4, {"flipped": True, "tokens": True})]),
    "one token": (PLAIN, [(1, {"flipped": True, "tokens": True})]),
    "many positions in one group": (PLAIN, [(9, {})]),
    "tokens twice": (PLAIN, [(4, {"flipped": True, "tokens": True}), (2, {"flipped": True, "tokens": True})]),
    "tokens and a product": (PLAIN, [(4, {"flipped": True, "tokens": True}), (2, {})]),
    "bias": (BIAS, [(1, {"constant": True})]),
    "bias at positions": (BIAS, [(3, {"constant": True})]),
    "two biases": (BIAS, [(3, {"constant": True}), (2, {"constant": True})]),
}


def matrix_of(kind: str, budget: Budget) -> Matrix:
    """The Jacobian of a row of the table."""
    layout, uses = KINDS[kind]
    terms = tuple(term_of(layout, positions, 7 * place, **how) for place, (positions, how) in enumerate(uses))
    return Matrix(terms, layout, budget)


# Groups, positions and rows of an outermost layer, and whether its weight is (I, O).
OUTERMOST = {
    "one position": (1, 1, 3, False),
    "one position, flipped": (1, 1, 3, True),
    "positions": (1, 2, 3, False),
    "positions, flipped": (1, 2, 3, True),
    "groups": (2, 1, 3, False),
    "groups at positions": (2, 2, 3, False),
}


def outermost_of(kind: str, budget: Budget, seed: int = 0) -> tuple[OutputLayerJacobian, Tensor]:
    """The Jacobian of such a layer with four inputs, and the same written out, (B, F, G, O, I) or (B, F, G, I, O)."""
    groups, positions, rows, flipped = OUTERMOST[kind]
    number = groups * positions * rows
    # In the network's own order positions come last, unless there is one.
    order = torch.arange(number).reshape(groups, rows, positions).transpose(1, 2)
    given = normal(EXAMPLES, groups, positions, 4, seed=seed)
    term = Term(Acts(make=lambda some: given[some], width=4, positions=positions), order[None, None], flipped)
    layout = Layout.plain(groups, 4, rows) if flipped else Layout.plain(groups, rows, 4)
    like = torch.empty((), dtype=torch.float64, device=DEVICE)
    dense = torch.zeros(EXAMPLES, number, *layout.matrix, dtype=torch.float64, device=DEVICE)
    for g in range(groups):
        for t in range(positions):
            for o in range(rows):
                where = (g, slice(None), o) if flipped else (g, o)
                dense[(slice(None), int(order[g, t, o]), *where)] = given[:, g, t]
    return OutputLayerJacobian.of(term, layout, EXAMPLES, like, budget), dense
