"""Directions in the space of weights: random ones with the norms of the weights, and eigenvectors of curvature."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from ..messages.errors import PeewitError
from ..messages.names import check_name
from ..weights.vectors import flatten, unflatten

if TYPE_CHECKING:
    from ..laplace import Laplace

DirectionName: TypeAlias = Literal["eigen", "random"]
"""Directions in the space of the weights: the stiffest of the curvature, or random ones."""
DENSE = 2_000  # weights up to which the whole matrix is decomposed
STEPS = 100  # of the Lanczos method, above that


def choose(la: Laplace, directions: DirectionName | Tensor, count: int, generator: torch.Generator) -> Tensor:
    """(count, D) in float64: directions by name, or the caller's own, checked."""
    if isinstance(directions, Tensor):
        return check_directions(la, directions, count)
    check_name(directions, get_args(DirectionName), "directions")
    if count > la.D:
        raise PeewitError(f"dimensions={count} was given; the posterior has only {la.D} uncertain weight.")
    return filter_normalised(la, count, generator) if directions == "random" else eigen(la, count, generator)


def check_directions(la: Laplace, directions: Tensor, count: int) -> Tensor:
    """The caller's directions in float64; refuse other shapes, zeros, and numbers that are not finite."""
    rows = directions.detach().to(device=la.state.weights.device, dtype=torch.float64)
    if rows.shape != (count, la.D) or not bool(torch.isfinite(rows).all()) or not bool((rows != 0).any(1).all()):
        raise PeewitError(
            f"directions has shape {tuple(directions.shape)}; expected ({count}, {la.D}) finite numbers "
            "and no row of zeros."
        )
    return rows


def filter_normalised(la: Laplace, count: int, generator: torch.Generator) -> Tensor:
    """(count, D): normal numbers, with each filter (row of a weight) scaled to the norm of the trained one.

    Biases and other vectors stay fixed: their random directions would dominate the others (Li et al. 2018).
    """
    drawn = normal((count, la.D), generator, la.state.weights.device)
    trained = unflatten(la.state.weights.double(), la.state.space)
    matrices = any(weight.dim() > 1 for weight in trained.values())
    rows = []
    for row in drawn:
        pieces = unflatten(row, la.state.space)
        scaled = {name: as_long(pieces[name], weight, matrices) for name, weight in trained.items()}
        rows.append(flatten(scaled, la.state.space))
    return torch.stack(rows)


def normal(shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> Tensor:
    """Normal numbers in float64, drawn on the generator's device."""
    return torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device).to(device)


def as_long(drawn: Tensor, trained: Tensor, matrices: bool) -> Tensor:
    """Scale the filters of one tensor to the norms of the trained ones; vectors are zero unless all are vectors."""
    if trained.dim() <= 1:
        if matrices:
            return torch.zeros_like(drawn)
        return drawn * (length(trained.flatten()[None]) / length(drawn.flatten()[None]).clamp(min=1e-300))[0]
    ratio = length(trained.flatten(1)) / length(drawn.flatten(1)).clamp(min=1e-300)
    return drawn * ratio.reshape(-1, *[1] * (trained.dim() - 1))


def length(rows: Tensor) -> Tensor:
    """(n, P) -> (n,)."""
    return rows.square().sum(1).sqrt()


def eigen(la: Laplace, count: int, generator: torch.Generator, dense: int = DENSE) -> Tensor:
    """(count, D): eigenvectors of the posterior precision with the largest eigenvalues, one standard deviation long.

    The data determine these directions best: the loss rises fastest along them.
    """

    def product(v: Tensor) -> Tensor:
        return la.precision.mv(v.to(la.state.weights.dtype)).double()

    values, vectors = extreme(product, la.D, count, generator, la.state.weights.device, dense)
    return vectors / values.sqrt()[:, None]


def extreme(
    product: Callable[[Tensor], Tensor],
    size: int,
    count: int,
    generator: torch.Generator,
    device: torch.device,
    dense: int = DENSE,
) -> tuple[Tensor, Tensor]:
    """(count,) and (count, size): the largest eigenvalues of a symmetric matrix and their eigenvectors."""
    if size <= dense:
        whole = product(torch.eye(size, dtype=torch.float64, device=device))
        values, vectors = torch.linalg.eigh(0.5 * (whole + whole.mT))
        return values.flip(0)[:count], fix_signs(vectors.mT.flip(0)[:count])
    basis, matrix = lanczos(product, size, min(STEPS, size), generator, device)
    values, vectors = torch.linalg.eigh(matrix)
    return values.flip(0)[:count], fix_signs(vectors.mT.flip(0)[:count] @ basis)


def lanczos(
    product: Callable[[Tensor], Tensor], size: int, steps: int, generator: torch.Generator, device: torch.device
) -> tuple[Tensor, Tensor]:
    """(k, size) orthonormal rows of a Krylov space, orthogonalised twice per step, and the matrix (k, k) in it."""
    start = normal((size,), generator, device)
    rows, images = [start / start.norm()], []
    for _ in range(steps):
        images.append(product(rows[-1]))
        rest = images[-1]
        for _ in range(2):
            known = torch.stack(rows)
            rest = rest - (known @ rest) @ known
        if len(rows) == steps or float(rest.norm()) < 1e-10 * float(images[-1].norm()):
            break
        rows.append(rest / rest.norm())
    basis = torch.stack(rows)
    matrix = basis @ torch.stack(images).mT
    return basis, 0.5 * (matrix + matrix.mT)


def fix_signs(vectors: Tensor) -> Tensor:
    """Flip rows so that their largest number is positive: the sign of an eigenvector is arbitrary."""
    largest = vectors.gather(1, vectors.abs().argmax(1, keepdim=True))
    return vectors * largest.sign()
