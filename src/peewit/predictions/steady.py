"""Values that are worked out when they are asked for: the same whatever mode the caller is in by then."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ..messages.names import spelled
from ..network.isolation import outside_caller_modes

Class = TypeVar("Class", bound=type)


def steady(cls: Class) -> Class:
    """A class of predictions whose public properties and methods do not depend on the caller's mode.

    Methods answer unknown options with the nearest known one.
    """
    for name, member in list(vars(cls).items()):
        if name.startswith("_") and name != "__repr__":
            continue
        if isinstance(member, property) and member.fget is not None:
            setattr(cls, name, property(_steadily(member.fget)))
        elif inspect.isfunction(member):
            setattr(cls, name, _steadily(spelled(member)))
    return cls


def _steadily(function: Callable[..., Any]) -> Callable[..., Any]:
    """With the graph that the outputs have, and outside of inference mode and autocast: results are kept for later."""

    @functools.wraps(function)
    def inner(self: Any, *args: Any, **kwargs: Any) -> Any:
        with_graph = torch.is_grad_enabled()
        with outside_caller_modes(), torch.set_grad_enabled(with_graph or self.belief.mean.requires_grad):
            return function(self, *args, **kwargs)

    return inner
