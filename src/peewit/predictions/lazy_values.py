"""Prediction classes whose lazily computed values do not depend on the caller's autograd modes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ..messages.names import spelled
from ..network.isolation import outside_caller_modes

Class = TypeVar("Class", bound=type)


def isolate(cls: Class) -> Class:
    """Make a class's public properties and methods independent of the caller's autograd modes.

    Methods answer unknown options with the nearest known one, and inherit docstrings.
    """
    for name, member in list(vars(cls).items()):
        if name.startswith("_") and name != "__repr__":
            continue
        if isinstance(member, property) and member.fget is not None:
            setattr(cls, name, property(_outside_modes(member.fget)))
        elif inspect.isfunction(member):
            member.__doc__ = member.__doc__ or getattr(cls.__mro__[1], name).__doc__
            setattr(cls, name, _outside_modes(spelled(member)))
    return cls


def _outside_modes(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run with the outputs' graph, outside inference mode and autocast, since results are cached."""

    @functools.wraps(function)
    def inner(self: Any, *args: Any, **kwargs: Any) -> Any:
        with_graph = torch.is_grad_enabled()
        with outside_caller_modes(), torch.set_grad_enabled(with_graph or self.belief.mean.requires_grad):
            return function(self, *args, **kwargs)

    return inner
