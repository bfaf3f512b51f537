"""Whether there are kernels for some numbers, and how they are run."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..messages.warnings import warn

Made = TypeVar("Made")
PROGRAMS = 528  # four on each of 132 processors
broken: list[str] = []  # why kernels are not used although they could be


@cache
def kernels() -> Any:
    """The kernels' module, or None where Triton is not there."""
    try:
        from . import programs as made
    except Exception:  # not there, or not in working order
        return None
    return made


def is_interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on the CPU: for tests."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def usable(grad: Tensor, probes: int = 1) -> bool:
    """Whether there are kernels for such numbers, and so many probes of them."""
    if grad.dtype != torch.float32 or grad.requires_grad or broken or probes > 256 or not grad.numel():
        return False
    if not is_interpreted() and (not grad.is_cuda or torch.cuda.get_device_capability(grad.device)[0] < 8):
        return False
    return kernels() is not None


def attempt(compute: Callable[[], Made]) -> Made | None:
    """Run kernels; return None, with one warning, where they fail: the caller then takes a slower way."""
    try:
        return compute()
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        broken.append(f"{type(error).__name__}: {error}")
        warn(
            f"The fused GPU kernels do not run here ({type(error).__name__}: {str(error)[:200]}); slower ones are "
            "used. The numbers are the same."
        )
        return None


def launch(name: str, grid: tuple[int, ...], *tensors: Any, **options: Any) -> None:
    """Run a kernel on the device of its first tensor, whichever is the current one."""
    with torch.cuda.device_of(tensors[0]):
        getattr(kernels(), name)[grid](*tensors, **options)


def power_of_two(number: int) -> int:
    """The smallest power of two that is not below the number."""
    return 1 << (number - 1).bit_length()
