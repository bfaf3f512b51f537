"""Devices by name, and waiting for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from ..messages.errors import PeewitError


def device_named(device: Any) -> torch.device:
    """A device of torch's, by name or number."""
    try:
        if isinstance(device, torch.dtype | nn.Module):
            raise TypeError
        chosen = torch.device(device)
    except (RuntimeError, TypeError):
        raise PeewitError(
            f"device={device!r} was given; expected a name such as 'cpu' or 'cuda:0', or a torch.device. The dtype of "
            "a posterior is that of its network: fit again for another."
        ) from None
    number = torch.cuda.device_count() if chosen.type == "cuda" else 0
    if chosen.type == "cuda" and (chosen.index or 0) >= number:
        there = f"torch sees {number} GPUs" if number else "torch sees no GPU here"
        raise PeewitError(
            f"device={device!r} was given, and {there}; expected one that is there, such as device='cpu'. "
            "torch.cuda.is_available() tells whether torch can use one."
        )
    return chosen


def wait(device: torch.device) -> None:
    """Let queued work finish, so that timings mean something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
