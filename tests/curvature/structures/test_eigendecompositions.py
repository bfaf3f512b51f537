"""Eigendecompositions: inside larger matrices, in float64 where float32 does not converge, on streams."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from environment import DEVICE
from fitting import normal
from peewit.curvature.structures import eigen
from structure_numbers import close, positive


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


def failing(error: Callable[[], Exception] | None, also_wide: bool = False) -> Callable[..., Any]:
    """Torch's decomposition, but in float32 with an error, or without finite numbers."""
    eigh = torch.linalg.eigh

    def made(side: Tensor) -> Any:
        if side.dtype == torch.float64 and not also_wide:
            return eigh(side)
        if error is not None:
            raise error()
        values, vectors = eigh(side)
        return values * torch.tensor([1.0, torch.nan, 1.0]), vectors

    return made


@pytest.mark.parametrize("error", [None, lambda: RuntimeError("did not converge")])
def test_float64_where_float32_does_not_converge(error: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same eigenvalues and vectors, in the dtype of the side."""
    side = positive(2, 3).float()
    monkeypatch.setattr(torch.linalg, "eigh", failing(error))
    vectors, values = eigen.decompose_matrix(side, "a")
    assert vectors is not None and vectors.dtype == values.dtype == torch.float32
    torch.testing.assert_close((vectors * values[:, None]) @ vectors.mT, side)
    monkeypatch.setattr(torch.linalg, "eigh", failing(lambda: RuntimeError("no"), also_wide=True))
    with pytest.raises(ValueError, match="The curvature of 'a' could not be decomposed, in float64 either"):
        eigen.decompose_matrix(side, "a")
    monkeypatch.setattr(torch.linalg, "eigh", failing(torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError):
        eigen.decompose_matrix(side, "a")


def test_eigenvalues_in_float64_where_float32_does_not_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    """None negative; memory that ran out is said."""
    side, own = positive(1, 3).float() - 2 * torch.eye(3), torch.linalg.eigvalsh
    expected = own(side).clamp(min=0)
    torch.testing.assert_close(eigen.eigenvalues(side), expected)

    def broken(error: type[Exception]) -> Callable[[Tensor], Tensor]:
        def made(given: Tensor) -> Tensor:
            if given.dtype == torch.float32:
                raise error("no")
            return own(given)

        return made

    monkeypatch.setattr(torch.linalg, "eigvalsh", broken(RuntimeError))
    torch.testing.assert_close(eigen.eigenvalues(side), expected)
    monkeypatch.setattr(torch.linalg, "eigvalsh", broken(torch.OutOfMemoryError))
    with pytest.raises(torch.OutOfMemoryError):
        eigen.eigenvalues(side)


def test_sides_that_are_diagonal_or_single() -> None:
    """Without eigenvectors, and with the only one there is; negative numbers are zeros."""
    vectors, values = eigen.decompose_side(torch.tensor([[1.0, -2.0]]), "a")
    assert vectors is None and values.tolist() == [[1.0, 0.0]]
    vectors, values = eigen.decompose_side(torch.tensor([[[2.0]], [[-3.0]]]), "a")
    assert vectors is not None and vectors.tolist() == [[[1.0]], [[1.0]]] and values.tolist() == [[2.0], [0.0]]
    indefinite = torch.diag(torch.tensor([1.0, -1.0]))[None]
    assert eigen.decompose_side(indefinite, "a")[1].tolist() == [[0.0, 1.0]]
    with pytest.raises(ValueError, match="b"):
        eigen.decompose_sides([("a", indefinite), ("b", indefinite * torch.nan)])


def test_eigenvalues_of_many_sizes() -> None:
    """Each under its name, whatever others have its size."""
    blocks = {f"{size}.{place}": positive(1, size, seed=place)[0] for place, size in enumerate((3, 2, 3, 1, 2))}
    made = eigen.eigenvalues_meanwhile(blocks)()
    assert set(made) == set(blocks)
    for name, block in blocks.items():
        close(made[name], torch.linalg.eigvalsh(block))
    assert eigen.eigenvalues_meanwhile({})() == {}


class Streams:
    """Streams of a device that is not there: what waits for what."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits: list[tuple[str, str]] = []
        self.kept: list[Tensor] = []
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self.stream("here"))
        monkeypatch.setattr(torch.cuda, "Stream", lambda device: self.stream("own"))
        monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
        monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda tensor, stream: self.kept.append(tensor))

    def stream(self, name: str) -> Any:
        """One that notes what it waits for."""
        return SimpleNamespace(
            record_event=lambda: name, wait_event=lambda event: self.waits.append((name, event)), name=name
        )


def test_sides_on_streams_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the same as one by one, the largest first, and nobody reads before it is there."""
    streams = Streams(monkeypatch)
    sides = [(f"{place}", positive(1, size, seed=place)) for place, size in enumerate((2, 5, 3, 4, 6, 2, 3))]
    sides.append(("long", normal(1, 4).abs()))
    expected = [eigen.decompose_matrix(side, name) for name, side in sides]
    order: list[str] = []
    own = eigen.decompose_matrix
    monkeypatch.setattr(eigen, "decompose_matrix", lambda side, name: order.append(name) or own(side, name))
    assert not eigen.needs_stream(sides[0][1])
    monkeypatch.setattr(eigen, "needs_stream", lambda side: side.dim() == 3)
    monkeypatch.setattr(eigen, "STREAMS", 1)
    for found in (eigen.decompose_sides(sides), eigen.decompose_sides([sides[-1], sides[0]])):
        for (basis, values), (vectors, right) in zip(
            found, expected if len(found) > 2 else [expected[-1], expected[0]], strict=True
        ):
            close(values, right)
            assert (basis is None) == (vectors is None)
    assert order[:8] == ["4", "1", "3", "2", "6", "0", "5", "long"]
    assert len(streams.kept) == 14 and streams.waits == [("own", "here"), ("here", "own")]
    monkeypatch.setattr(eigen, "STREAMS", 3)
    streams.waits.clear()
    eigen.decompose_sides(sides)
    assert sorted(streams.waits) == [("here", "own")] * 3 + [("own", "here")] * 3
    streams.waits.clear()
    eigen.decompose_sides(sides[:2])
    assert len(streams.waits) == 4


def test_eigenvalues_while_others_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: in float64, and nobody reads before they are there."""
    streams = Streams(monkeypatch)
    blocks = {"a": positive(1, 3)[0].float().requires_grad_(), "b": positive(1, 2, seed=2)[0].float()}
    expected = {name: torch.linalg.eigvalsh(block.detach()).double() for name, block in blocks.items()}
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    found = eigen.eigenvalues_meanwhile(blocks)()
    monkeypatch.undo()
    for name, values in expected.items():
        assert found[name].dtype == torch.float64 and not found[name].requires_grad
        torch.testing.assert_close(found[name], values, rtol=1e-5, atol=1e-6)
    assert len(streams.kept) == 2 and sorted(streams.waits) == [("here", "own")] * 2 + [("own", "here")] * 2
