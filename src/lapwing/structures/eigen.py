"""Eigendecompositions of many symmetric matrices: on a GPU several at a time, since one alone leaves it idle."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from ..diagnosis import finite_curvature

STREAMS = 4
Side = tuple[Tensor | None, Tensor]  # eigenvectors (G, n, n), or None for a diagonal side, and eigenvalues (G, n)


def decompose_sides(sides: Sequence[tuple[str, Tensor]]) -> list[Side]:
    """Of named sides (G, n, n), or (G, n) where they are diagonal; no eigenvalue is negative."""
    finite_curvature(sides)
    large = [place for place, (_, side) in enumerate(sides) if side.is_cuda and side.dim() == 3 and side.shape[-1] > 1]
    made: dict[int, Side] = {}
    if len(large) > 1:
        made = side_by_side(sides, sorted(large, key=lambda place: -sides[place][1].shape[-1]))
    return [made[place] if place in made else decomposed(side, name) for place, (name, side) in enumerate(sides)]


def side_by_side(sides: Sequence[tuple[str, Tensor]], order: list[int]) -> dict[int, Side]:
    """The largest first, each on one of a few streams: a thread each, since torch waits for every answer."""
    device = sides[order[0]][1].device
    here = torch.cuda.current_stream(device)
    ready = here.record_event()
    waiting = deque(order)
    made: dict[int, Side] = {}

    def work() -> torch.cuda.Event:
        own = torch.cuda.Stream(device)
        with torch.no_grad(), torch.cuda.device(device), torch.cuda.stream(own):
            own.wait_event(ready)
            while True:
                try:
                    place = waiting.popleft()
                except IndexError:
                    done: torch.cuda.Event = own.record_event()
                    return done
                name, side = sides[place]
                made[place] = decomposed(side, name)
                for each in made[place]:
                    if each is not None:
                        each.record_stream(here)  # so that its memory is not reused too early

    with ThreadPoolExecutor(min(STREAMS, len(order))) as pool:
        for done in [pool.submit(work) for _ in range(min(STREAMS, len(order)))]:
            here.wait_event(done.result())
    return made


def decompose_side(side: Tensor, name: str) -> Side:
    """The same for one."""
    return decompose_sides([(name, side)])[0]


def decomposed(side: Tensor, name: str) -> Side:
    """Torch's, in float64 where float32 fails to converge."""
    if side.dim() == 2:
        return None, side.clamp(min=0)
    if side.shape[-1] == 1:
        return torch.ones_like(side), side[..., 0].clamp(min=0)
    try:
        values, vectors = torch.linalg.eigh(side)
        if not bool(torch.isfinite(values).all()):
            raise RuntimeError("not finite")
    except RuntimeError:
        try:
            wide, basis = torch.linalg.eigh(side.double())
        except RuntimeError as error:
            raise ValueError(f"The curvature of {name!r} could not be decomposed, in float64 either.") from error
        values, vectors = wide.to(side.dtype), basis.to(side.dtype)
    return vectors, values.clamp(min=0)
