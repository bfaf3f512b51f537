"""How much memory a computation may take beyond its inputs and results, and how to split work to keep to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from ..messages.errors import PeewitError
from .arithmetic import AUTO, Arithmetic, ArithmeticName, as_arithmetic

# More than this buys no speed: products are then long past the size at which they run at full rate. On a CPU larger
# pieces leave its caches: LeNet's predictions were 1.5 times faster at 128 MiB than at 1 GiB, the MLP's as fast.
CPU_LIMIT = 1 << 27
CUDA_LIMIT = 24 << 30


@dataclass(frozen=True)
class Budget:
    """Bytes for temporary results and how products are rounded; neither changes what is computed."""

    bytes: int
    arithmetic: Arithmetic = AUTO
    spare: int = 0  # bytes for results that are kept only to save time

    def at_most(self, limit: int) -> Budget:
        """This budget, no larger than a limit."""
        return replace(self, bytes=min(self.bytes, limit))

    def count(self, bytes_each: float, most: int, share: float = 1.0) -> int:
        """How many items of `bytes_each` fit into a share of the budget: at least 1, at most `most`."""
        return max(1, min(most, int(self.bytes * share / max(bytes_each, 1.0))))

    def slices(self, total: int, bytes_each: float, share: float = 0.5) -> Iterator[slice]:
        """Slices that cover `total` items, as even as they can be."""
        step = self.count(bytes_each, total, share)
        parts = -(-total // step)
        step = -(-total // parts) if parts else 1
        for start in range(0, total, step):
            yield slice(start, min(start + step, total))


def budget(
    memory: int | float | None, device: torch.device, arithmetic: ArithmeticName | Arithmetic = "auto"
) -> Budget:
    """The budget that `memory=` asks for, or a share of what is free on the device."""
    most = limit(memory, device)
    scarce = memory is not None or device.type == "cuda"  # a CPU's limit is there for speed alone
    return Budget(most, as_arithmetic(arithmetic), most // 8 if scarce else most)


def limit(memory: int | float | None, device: torch.device) -> int:
    """Bytes."""
    if memory is not None:
        if isinstance(memory, bool) or not isinstance(memory, int | float) or not 0 < memory < float("inf"):
            raise PeewitError(f"memory={memory!r} was given; expected a positive number of bytes, such as 2e9.")
        return int(memory)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(min(CUDA_LIMIT, 0.4 * (free + held)))
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not every system tells
        free = 2 * CPU_LIMIT
    return int(min(CPU_LIMIT, 0.4 * free))
