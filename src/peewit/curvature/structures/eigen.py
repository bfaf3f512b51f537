"""Eigendecompositions of many symmetric matrices: on a GPU several at a time, since one alone leaves it idle."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from ...messages.errors import PeewitError
from ...network.finite import refuse_broken_curvature

STREAMS = 4
JACOBI = (320, 512)  # sizes for which torch takes a slow algorithm on a GPU, and a larger matrix is faster
Name = TypeVar("Name", bound=Hashable)
EigenSide = tuple[Tensor | None, Tensor]  # eigenvectors (G, n, n), or None for a diagonal side, and eigenvalues (G, n)


def decompose_sides(sides: Sequence[tuple[str, Tensor]]) -> list[EigenSide]:
    """Of named sides (G, n, n), or (G, n) where they are diagonal; no eigenvalue is negative."""
    refuse_broken_curvature(sides)
    large = [number for number, (_, side) in enumerate(sides) if needs_stream(side)]
    decomposed: dict[int, EigenSide] = {}
    if len(large) > 1:
        decomposed = decompose_in_streams(sides, sorted(large, key=lambda number: -sides[number][1].shape[-1]))
    return [
        decomposed[number] if number in decomposed else decompose_matrix(side, name)
        for number, (name, side) in enumerate(sides)
    ]


def needs_stream(side: Tensor) -> bool:
    """Whether a stream of its own saves time; a side with a gradient stays on the stream of its graph."""
    return side.is_cuda and side.dim() == 3 and side.shape[-1] > 1 and not side.requires_grad


def decompose_in_streams(sides: Sequence[tuple[str, Tensor]], order: list[int]) -> dict[int, EigenSide]:
    """Decompose the largest first on a few streams, with a thread for each, since torch waits for every result."""
    device = sides[order[0]][1].device
    current = torch.cuda.current_stream(device)
    ready = current.record_event()
    waiting = deque(order)
    decomposed: dict[int, EigenSide] = {}

    def work() -> torch.cuda.Event:
        stream = torch.cuda.Stream(device)
        with torch.no_grad(), torch.cuda.device(device), torch.cuda.stream(stream):
            stream.wait_event(ready)
            while True:
                try:
                    number = waiting.popleft()
                except IndexError:
                    done: torch.cuda.Event = stream.record_event()
                    return done
                name, side = sides[number]
                decomposed[number] = decompose_matrix(side, name)
                for tensor in decomposed[number]:
                    if tensor is not None:
                        tensor.record_stream(current)  # so that its memory is not reused too early

    with ThreadPoolExecutor(min(STREAMS, len(order))) as pool:
        for done in [pool.submit(work) for _ in range(min(STREAMS, len(order)))]:
            current.wait_event(done.result())
    return decomposed


def decompose_side(side: Tensor, name: str) -> EigenSide:
    """Decompose one named side."""
    return decompose_sides([(name, side)])[0]


def needs_padding(side: Tensor) -> bool:
    """Whether torch is faster at a larger matrix."""
    return side.is_cuda and side.dtype == torch.float32 and JACOBI[0] <= side.shape[-1] <= JACOBI[1]


def enlarge(side: Tensor) -> tuple[Tensor, int, Tensor]:
    """Pad (G, n, n) to a size that torch is fast at.

    Also return how many eigenvalues that adds below all others, and the largest entries (G, 1), by which it divides.

    Numbers are divided by the largest, so that those added are neither lost beside them nor the other way round.
    """
    size = side.shape[-1]
    if not needs_padding(side):
        return side, 0, side.new_ones(())
    largest = side.abs().amax((-2, -1), keepdim=True)
    largest = torch.where(largest > 0, largest, 1.0)
    # A block of its own below all others: its eigenvectors come first and meet none of the rest.
    added = JACOBI[1] + 16 - size
    padded = torch.nn.functional.pad(side / largest, (0, added, 0, added))
    padded.diagonal(dim1=-2, dim2=-1)[:, size:] = -1.0
    return padded, added, largest[:, 0]


def eigh(side: Tensor) -> tuple[Tensor, Tensor]:
    """Torch's eigenvalues and eigenvectors of (G, n, n)."""
    large, added, unit = enlarge(side)
    values, vectors = torch.linalg.eigh(large)
    if not added:
        return values, vectors
    return values[:, added:] * unit, vectors[:, : side.shape[-1], added:].contiguous()


def eigenvalues(side: Tensor) -> Tensor:
    """Torch's eigenvalues of (G, n, n), none negative; in float64 where float32 fails to converge."""
    large, added, unit = enlarge(side)
    try:
        values = torch.linalg.eigvalsh(large)[:, added:] * unit
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        values = torch.linalg.eigvalsh(side.double()).to(side.dtype)
    positive: Tensor = values.clamp(min=0)
    return positive


def decompose_matrix(side: Tensor, name: str) -> EigenSide:
    """Eigenvectors and eigenvalues of one side, in float64 where float32 does not converge."""
    if side.dim() == 2:
        return None, side.clamp(min=0)
    if side.shape[-1] == 1:
        return torch.ones_like(side), side[..., 0].clamp(min=0)
    try:
        values, vectors = eigh(side)
        if not bool(torch.isfinite(values).all()):
            raise RuntimeError("not finite")
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:
        try:
            wide, basis = torch.linalg.eigh(side.double())
        except RuntimeError as error:
            raise PeewitError(f"The curvature of {name!r} could not be decomposed, in float64 either.") from error
        values, vectors = wide.to(side.dtype), basis.to(side.dtype)
    return vectors, values.clamp(min=0)


def eigenvalues_meanwhile(blocks: dict[Name, Tensor]) -> Callable[[], dict[Name, Tensor]]:
    """Eigenvalues in float64 of small matrices, none negative; on a GPU they are found while others are.

    There they are as exact as the matrices, whose own sums are in the precision that they come in.
    """
    some = next(iter(blocks.values()), None)
    if some is None or not some.is_cuda:
        return lambda: stacked_eigenvalues(blocks)
    device = some.device
    current = torch.cuda.current_stream(device)
    ready = current.record_event()

    def work(block: Tensor) -> tuple[Tensor, torch.cuda.Event]:
        stream = torch.cuda.Stream(device)
        with torch.no_grad(), torch.cuda.device(device), torch.cuda.stream(stream):
            stream.wait_event(ready)
            values = eigenvalues(block.detach().unsqueeze(0))[0].double()
            values.record_stream(current)
            return values, stream.record_event()

    pool = ThreadPoolExecutor(2)
    waiting = {name: pool.submit(work, block) for name, block in blocks.items()}
    pool.shutdown(wait=False)

    def gather() -> dict[Name, Tensor]:
        results = {}
        for name, job in waiting.items():
            results[name], done = job.result()
            current.wait_event(done)
        return results

    return gather


def stacked_eigenvalues(blocks: dict[Name, Tensor]) -> dict[Name, Tensor]:
    """Eigenvalues on this thread, with one call for all matrices of a size."""
    sizes: dict[int, list[Name]] = {}
    for name, block in blocks.items():
        sizes.setdefault(len(block), []).append(name)
    by_name: dict[Name, Tensor] = {}
    for size, names in sizes.items():
        step = max(1, (1 << 23) // size**2)  # 64 MiB at a time
        for some in (names[start : start + step] for start in range(0, len(names), step)):
            values = torch.linalg.eigvalsh(torch.stack([blocks[name].detach().double() for name in some]))
            by_name.update(zip(some, values, strict=True))
    return by_name
