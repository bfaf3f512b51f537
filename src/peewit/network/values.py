"""The tensors inside frozen values, changed or copied all at once."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

from torch import Tensor

from .isolation import unaffected

Value = TypeVar("Value")


def change_tensors(value: Value, change: Callable[[Tensor], Tensor], done: dict[int, Any] | None = None) -> Value:
    """A value with its tensors changed, through dictionaries, tuples and dataclasses; what is shared stays shared.

    `done` holds the changed values by the identity of the old ones.
    """
    done = {} if done is None else done
    if id(value) not in done:
        done[id(value)] = _change(value, change, done)
    result: Value = done[id(value)]
    return result


@unaffected
def own_copy(value: Value) -> Value:
    """A value with tensors of its own, which later changes of the old ones do not reach; gradients do."""
    return change_tensors(value, Tensor.clone)


def _change(value: Any, change: Callable[[Tensor], Tensor], done: dict[int, Any]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: change_tensors(each, change, done) for key, each in value.items()}
    if type(value) is tuple:
        return tuple(change_tensors(each, change, done) for each in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    changed = {name: change_tensors(each, change, done) for name, each in fields.items()}
    different = {name: each for name, each in changed.items() if each is not fields[name]}
    return _with_fields(value, different) if different else value


def _with_fields(value: Any, fields: dict[str, Any]) -> Any:
    """A dataclass with other fields. Its `__post_init__` does not run again: it may change what it was given."""
    new = copy.copy(value)
    for name, each in fields.items():
        object.__setattr__(new, name, each)
    kept = getattr(new, "__dict__", {})
    for name in [name for name in kept if isinstance(getattr(type(new), name, None), cached_property)]:
        del kept[name]  # computed from the old fields
    return new
