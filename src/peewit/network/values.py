"""The tensors inside frozen values, changed all at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

Value = TypeVar("Value")


def changed(value: Value, change: Callable[[Tensor], Tensor], held: dict[int, Any] | None = None) -> Value:
    """A value with its tensors changed, through dictionaries, tuples and dataclasses; what is shared stays shared."""
    held = {} if held is None else held
    if id(value) not in held:
        held[id(value)] = _changed(value, change, held)
    found: Value = held[id(value)]
    return found


def _changed(value: Any, change: Callable[[Tensor], Tensor], held: dict[int, Any]) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: changed(each, change, held) for key, each in value.items()}
    if type(value) is tuple:
        return tuple(changed(each, change, held) for each in value)
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return value
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    there = {name: changed(each, change, held) for name, each in fields.items()}
    moved = {name: each for name, each in there.items() if each is not fields[name]}
    return dataclasses.replace(value, **moved) if moved else value
