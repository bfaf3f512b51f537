"""Kronecker factors of whole fits: sides that are too long, positions that count, several uses, priors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
import reference
import reference_dense as dense
from environment import DEVICE
from peewit.curvature.structures import grams
from tables import curvature_of, relative, table


def without_rest(factor: Tensor, longest: int) -> Tensor:
    """A factor, or its diagonal where a side is longer than that."""
    return torch.diag(factor.diagonal()) if len(factor) > longest else factor


@pytest.mark.parametrize("bias", ["separate", "joint"])
@pytest.mark.parametrize("approx", ["expand", "reduce"])
@pytest.mark.parametrize("longest", [1, 3])
@pytest.mark.parametrize("name", ["token_regression", "residual_cnn", "embedding_sparse", "called_twice_unevenly"])
def test_long_sides_keep_their_diagonal(
    name: str, longest: int, approx: str, bias: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Factors made by loops, each with its diagonal alone where it has more rows than there may be."""
    monkeypatch.setattr(grams, "LARGEST_SIDE", longest)
    case = table(name)
    la = case.fit(pw.Kron(approx=approx, bias=bias))
    blocks, whole = case.blocks(approx=approx, bias=bias)
    shorter = [
        block
        if block.exact is not None
        else replace(
            block,
            row_factor=without_rest(block.row_factor, longest),
            column_factor=without_rest(block.column_factor, longest),
        )
        for block in blocks
    ]
    index = case.index(la)
    expected = reference.kron_of(shorter, whole)[index][:, index]
    assert relative(curvature_of(la), expected) < 1e-8


@pytest.mark.parametrize("approx", ["expand", "reduce"])
def test_a_position_with_some_gradient_counts(approx: str) -> None:
    """Beside ignored labels, a token with units that are off has zeros in its gradient, and is not ignored itself."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 3)).double().to(DEVICE)
    x, y = torch.randn(4, 5, 3).double().to(DEVICE), torch.randint(3, (4, 5)).to(DEVICE)
    y[1:3, ::2] = -100
    assert bool((model[:2](x) == 0).any(-1).all())
    la = pw.fit(model, (x, y), pw.Categorical(axis=-1), structure=pw.Kron(approx=approx))
    names = [name for name, _ in model.named_parameters()]
    expected = reference.kron(model.cpu(), x.cpu(), y.cpu(), "classification", names, approx=approx)
    assert relative(curvature_of(la), expected) < 1e-8


def test_the_table_names_sides_that_are_diagonal(monkeypatch: pytest.MonkeyPatch) -> None:
    """The side that is too long, or both."""
    monkeypatch.setattr(grams, "LARGEST_SIDE", 3)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 2), nn.Tanh(), nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 4), nn.Linear(4, 3))
    model = model.to(DEVICE)
    x, y = torch.randn(6, 5, device=DEVICE), torch.randn(6, 3, device=DEVICE)
    rows = {row.name: row.approximation for row in pw.fit(model, (x, y), "regression").coverage()}
    assert rows["0.weight"].endswith(", columns diagonal")
    assert rows["2.weight"].endswith(", rows diagonal")
    assert rows["4.weight"].endswith(", rows and columns diagonal")
    assert rows["5.weight"].endswith(", columns diagonal")
    assert "diagonal" not in rows["0.bias"]


class Packed(nn.Module):
    """A weight used whole, and again its first rows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.weight, self.unread = nn.Parameter(torch.randn(4, 3)), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 4)."""
        self.unread(x)
        made = nn.functional.linear(x, self.weight)
        return made + nn.functional.pad(nn.functional.linear(x.tanh(), self.weight[:2]).sin(), (0, 2))


def test_a_weight_used_whole_and_in_part() -> None:
    """Its first rows are a block of their own, with both uses as positions; what nothing depends on is left out."""
    model = Packed().double().to(DEVICE)
    x, y = torch.randn(6, 3).double().to(DEVICE), torch.randn(6, 4).double().to(DEVICE)
    full, kron = (pw.fit(model, (x, y), "regression", structure=structure) for structure in ("full", "kron"))
    assert full.space.names == kron.space.names == ("weight",)
    model, x, y = model.cpu(), x.cpu(), y.cpu()
    assert relative(curvature_of(full), dense.ggn(model, x, y, "regression", ["weight"])) < 1e-8

    expected = torch.zeros(12, 12, dtype=torch.float64)
    slopes = (x.tanh() @ model.weight[:2].T).cos()
    for rows, inputs, slope in (
        (slice(0, 6), [x, x.tanh()], [torch.ones_like(slopes), slopes]),
        (slice(6, 12), [x], [torch.ones_like(slopes)]),
    ):
        gradients = torch.diag(sum(each.square().sum(0) for each in slope))
        expected[rows, rows] = torch.kron(gradients, sum(each.T @ each for each in inputs)) / (len(x) * len(inputs))
    assert relative(curvature_of(kron), expected.detach()) < 1e-8


@pytest.mark.parametrize("lengths", [(3, 1), (1, 3)])
def test_batches_of_single_tokens_and_of_sequences(lengths: tuple[int, int]) -> None:
    """Batch by batch another approximation, which is exact in both for one layer on tokens."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(5, 2), nn.Linear(2, 3, bias=False)).double().to(DEVICE)
    batches = [(torch.randint(4, (4, length)).to(DEVICE), torch.randn(4, length, 3).double()) for length in lengths]
    batches = [(tokens, y.to(DEVICE)) for tokens, y in batches]
    la = pw.fit(model, batches, "regression", structure=pw.Kron(approx="auto"))
    tokens = torch.cat([each.flatten() for each, _ in batches]).cpu()
    table_, weight = (each.detach().cpu() for each in model.parameters())
    counts = torch.bincount(tokens, minlength=5).double()
    rows = table_[tokens]
    expected = torch.block_diag(
        torch.kron(torch.diag(counts), weight.T @ weight), torch.kron(torch.eye(3).double(), rows.T @ rows)
    )
    assert relative(curvature_of(la), expected) < 1e-8


@pytest.mark.parametrize(
    ("bias", "prior", "words"),
    [
        ("separate", pw.Prior.unitwise([1.0, 2.0, 3.0, 4.0]), "use structure='kron', or a scalar or layerwise prior"),
        (
            "joint",
            pw.Prior.layerwise([1.0, 2.0]),
            r"use EKFAC\(bias='separate'\) with a layerwise prior, structure='kron', or a scalar prior",
        ),
    ],
)
def test_a_prior_that_ekfac_cannot_hold_names_what_can(bias: Any, prior: pw.Prior, words: str) -> None:
    """A joint block has a weight and a bias, which a layerwise prior tells apart."""
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double().to(DEVICE)
    data = torch.randn(6, 3).double().to(DEVICE), torch.randn(6, 2).double().to(DEVICE)
    la = pw.fit(model, data, "regression", structure=pw.EKFAC(bias=bias))
    with pytest.raises(ValueError, match=words):
        la.with_prior(prior).log_evidence()
