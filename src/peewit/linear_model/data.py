"""Training data that are passed over many times: kept in memory in one order, or read again and again."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..messages.errors import PeewitError
from ..network.batches import Batches
from ..network.nests import map_tensors, tensors
from ..runtime.memory import limit

SHARE = 0.25  # of the free memory, for data and outputs that are kept; `memory=` says another number
UNKNOWN = 1 << 32  # bytes that are taken to be free where the system does not tell


@dataclass(frozen=True)
class Examples:
    """Batches, and whether they come in the same order in every pass."""

    batches: Batches
    ordered: bool


def room(memory: float | None, device: torch.device) -> int:
    """Bytes for what is kept there: `memory`, or a quarter of what is free."""
    if memory is not None:
        return limit(memory, device)
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return int(SHARE * free)
    try:
        return int(SHARE * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (ValueError, OSError, AttributeError):  # not every system tells
        return int(SHARE * UNKNOWN)


def keep_order(data: Any, model: nn.Module, memory: float | None) -> Examples:
    """Tensors and lists as they are; what may come in another order next time is copied, where it fits."""
    batches = Batches(data, model)
    if batches.stored:
        return Examples(batches, True)
    left = room(memory, torch.device("cpu"))
    copies: list[Any] = []
    with torch.random.fork_rng(devices=[]):  # a shuffled loader draws from the global generator
        for batch in batches.tensors():
            left -= sum(tensor.nbytes for tensor in tensors(batch))
            if left < 0:
                break
            copies.append(map_tensors(_copy, batch))  # a reader may write the next batch over this one
        else:
            return Examples(Batches(copies, model), True)
    if batches.one_shot:
        raise PeewitError(
            "data is a one-shot iterator whose batches do not fit into the memory for them; the mode of the linear "
            "model takes many passes. Give a DataLoader, a list of batches or tensors, or a larger memory=."
        )
    return Examples(batches, False)


def _copy(tensor: Tensor) -> Tensor:
    return tensor.detach().clone()
