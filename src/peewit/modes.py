"""Modes of the caller that would change what is computed, or what can be done with it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

import torch

from .batches import LOCK
from .complaints import spelled

Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")


@contextmanager
def plain_mode() -> Iterator[None]:
    """Outside of inference mode and autocast."""
    with (
        torch.inference_mode(False),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
    ):
        yield


def plainly(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """A function that does not depend on the caller's modes; unknown options are answered with the nearest one."""
    checked = spelled(function)

    @functools.wraps(function)
    def inner(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        # One at a time: networks are shared between threads, and held in evaluation mode meanwhile.
        with LOCK, plain_mode():
            return checked(*args, **kwargs)

    return inner
