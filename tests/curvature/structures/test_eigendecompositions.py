"""Eigendecompositions: those that are done inside a larger matrix on a GPU, here with the question taken away."""

from __future__ import annotations

import pytest
import torch

from environment import DEVICE
from peewit.curvature.structures import eigen


@pytest.fixture
def padded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a larger matrix on every device."""
    monkeypatch.setattr(eigen, "needs_padding", lambda side: True)


@pytest.mark.parametrize("size", [1.0, 1e-26, 1e20])
@pytest.mark.parametrize("rank", [400, 30, 0])
def test_larger_matrices_have_the_same_eigenvectors(rank: int, size: float, padded: None) -> None:
    """Orthogonal ones, for matrices of any rank and size, zero included: of all 400 directions."""
    torch.manual_seed(0)
    rows = torch.randn(2, max(rank, 1), 400, device=DEVICE) * (rank > 0)
    side = size * (rows.mT @ rows)
    values, vectors = eigen.eigh(side)
    assert values.shape == (2, 400) and vectors.shape == (2, 400, 400)
    wide = vectors.double()
    identity = torch.eye(400, dtype=torch.float64, device=DEVICE)
    torch.testing.assert_close(wide.mT @ wide, identity.expand(2, -1, -1), rtol=0, atol=1e-4)
    made = (wide * values.double()[:, None, :]) @ wide.mT
    largest = float(side.abs().max())
    torch.testing.assert_close(made, side.double(), rtol=0, atol=1e-4 * largest)
    expected = torch.linalg.eigvalsh(side.double()).clamp(min=0)
    torch.testing.assert_close(eigen.eigenvalues(side).double(), expected, rtol=0, atol=1e-3 * largest)


def test_the_padding_is_needed_to_be_below(padded: None) -> None:
    """Eigenvalues come in order, the added ones first: none of them is left among the others."""
    side = torch.diag(torch.linspace(0.0, 1.0, 330, device=DEVICE))[None]
    values, vectors = eigen.eigh(side)
    torch.testing.assert_close(values[0], side[0].diagonal(), rtol=0, atol=1e-5)
    assert float(vectors.square().sum(1).min()) > 0.999
