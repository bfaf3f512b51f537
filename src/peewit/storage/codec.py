"""Values as JSON and named tensors, and back by their types alone: nothing that a file says is imported or called.

A dataclass is written under its name, and read only where that name is expected and known. Dictionaries become lists
of pairs, since their keys are weights; a tensor is a reference to one beside the JSON, named by the way to it.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..messages.errors import ArgumentTypeError, PeewitError

TENSOR, CLASS, FIELDS = "tensor", "class", "fields"


class Unsaveable(ArgumentTypeError):
    """A value, or something inside it, has no place in a file."""


class Encoder:
    """Turns values of known classes into JSON, and gathers their tensors."""

    def __init__(self, known: Iterable[type]) -> None:
        self.known = {each.__name__: each for each in known}
        self.tensors: dict[str, Tensor] = {}

    def encode(self, value: Any, path: str) -> Any:
        """JSON for a value; its tensors are named by `path` and what follows."""
        if isinstance(value, Tensor):
            while path in self.tensors:  # parameters may have any names
                path += "'"
            self.tensors[path] = value
            return {TENSOR: path}
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float):
            if not math.isfinite(value):
                raise Unsaveable(f"{path} is {value}")
            return value
        if isinstance(value, list | tuple):  # ranges of weights and shapes too
            return [self.encode(each, f"{path}/{number}") for number, each in enumerate(value)]
        if isinstance(value, frozenset):
            return [self.encode(each, f"{path}/{each}") for each in sorted(value)]
        if isinstance(value, Mapping):
            return [[self.encode(key, path), self.encode(each, f"{path}/{words(key)}")] for key, each in value.items()]
        name = type(value).__name__
        if self.known.get(name) is not type(value):
            raise Unsaveable(f"{path} is a {type(value).__module__}.{name}")
        return {
            CLASS: name,
            FIELDS: {
                field.name: self.encode(getattr(value, field.name), f"{path}/{field.name}")
                for field in dataclasses.fields(typing.cast(Any, value))
            },
        }


def words(key: Any) -> str:
    """A key of a dictionary as part of a tensor's name: ranges of weights by the name of the parameter."""
    if isinstance(key, tuple) and hasattr(key, "_fields"):
        return f"{key[0]}[{key[1]}:{key[2]}]"
    return " ".join(words(each) for each in key) if isinstance(key, tuple) else str(key)


def is_integer(value: Any) -> bool:
    """Whether a value is an integer that torch can hold."""
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63


# Types that stand in a file as they are, and whether a value is of one of them.
PLAIN: dict[Any, Callable[[Any], bool]] = {
    None: lambda value: value is None,
    type(None): lambda value: value is None,
    float: lambda value: isinstance(value, float) or is_integer(value),
    int: is_integer,
    bool: lambda value: isinstance(value, bool),
    str: lambda value: isinstance(value, str),
}


class Decoder:
    """Turns JSON back into values of the types that are expected; anything else is a ValueError."""

    def __init__(self, known: Iterable[type], tensors: Mapping[str, Tensor]) -> None:
        self.known = {each.__name__: each for each in known}
        self.tensors = tensors

    def one_of(self, value: Any, classes: Iterable[type], path: str) -> Any:
        """A value of one of several classes, whichever the file names."""
        allowed = {each.__name__: each for each in classes}
        name = value.get(CLASS) if isinstance(value, dict) else None
        if not isinstance(name, str) or name not in allowed:
            raise PeewitError(f"{path} is {short(name)}; expected one of {', '.join(allowed)}")
        return self.decode(value, allowed[name], path)

    def decode(self, value: Any, hint: Any, path: str) -> Any:
        """The value of a type: plain ones, tensors, tuples, dictionaries, sets, and known dataclasses."""
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin in (typing.Union, types.UnionType):
            return self._union(value, arguments, path)
        if origin is typing.Literal:
            right = any(value == each and type(value) is type(each) for each in arguments)
            return self._plain(value, right, hint, path)
        if hint in PLAIN:
            return self._plain(value, PLAIN[hint](value), hint, path)
        if hint is Tensor:
            return self._tensor(value, path)
        if inspect.isabstract(hint):  # any known class that keeps the contract
            return self.one_of(value, [each for each in self.known.values() if issubclass(each, hint)], path)
        if dataclasses.is_dataclass(hint):
            return self._dataclass(value, hint, path)
        return self._collection(value, hint, path)

    def _plain(self, value: Any, right: bool, hint: Any, path: str) -> Any:
        if not right:
            raise PeewitError(f"{path} is {short(value)}; expected {getattr(hint, '__name__', hint)}")
        return value

    def _union(self, value: Any, options: tuple[Any, ...], path: str) -> Any:
        complaints = []
        for option in options:
            try:
                return self.decode(value, option, path)
            except ValueError as error:
                complaints.append(str(error))
        raise PeewitError(complaints[0])

    def _tensor(self, value: Any, path: str) -> Tensor:
        name = value.get(TENSOR) if isinstance(value, dict) and len(value) == 1 else None
        if not isinstance(name, str):
            raise PeewitError(f"{path} is {short(value)}; expected a tensor")
        if name not in self.tensors:
            raise PeewitError(f"{path} is the tensor {name!r}, which the file does not hold")
        return self.tensors[name]

    def _dict(self, value: list[Any], arguments: tuple[Any, ...], path: str) -> dict[Any, Any]:
        decoded = {}
        for pair in value:
            if not isinstance(pair, list) or len(pair) != 2:
                raise PeewitError(f"{path} holds {short(pair)}; expected pairs")
            key = self.decode(pair[0], arguments[0], f"{path}, a key")
            decoded[key] = self.decode(pair[1], arguments[1], f"{path}/{words(key)}")
        if len(decoded) < len(value):
            raise PeewitError(f"{path} holds a key twice")
        return decoded

    def _collection(self, value: Any, hint: Any, path: str) -> Any:
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if not isinstance(value, list):
            raise PeewitError(f"{path} is {short(value)}; expected a list")
        if origin is collections.abc.Mapping or origin is dict:
            return self._dict(value, arguments, path)
        if origin is frozenset:
            return frozenset(self.decode(each, arguments[0], path) for each in value)
        return self._sequence(value, hint, origin, arguments, path)

    def _sequence(self, value: list[Any], hint: Any, origin: Any, arguments: tuple[Any, ...], path: str) -> Any:
        if hint is torch.Size:
            return torch.Size([self.decode(each, int, path) for each in value])
        named = getattr(hint, "_fields", None)  # a range of a weight
        kinds = tuple(typing.get_type_hints(hint)[field] for field in named) if named else arguments
        if origin is not tuple and not named:
            raise PeewitError(f"{path} has a type that files do not hold")
        if not named and len(kinds) == 2 and kinds[1] is Ellipsis:
            kinds = kinds[:1] * len(value)
        if len(value) != len(kinds):
            raise PeewitError(f"{path} has {len(value)} values; expected {len(kinds)}")
        pairs = enumerate(zip(value, kinds, strict=True))
        decoded = [self.decode(each, kind, f"{path}/{number}") for number, (each, kind) in pairs]
        return hint(*decoded) if named else tuple(decoded)

    def _dataclass(self, value: Any, hint: Any, path: str) -> Any:
        if not isinstance(value, dict) or value.get(CLASS) != hint.__name__ or set(value) != {CLASS, FIELDS}:
            raise PeewitError(f"{path} is {short(value)}; expected {hint.__name__}")
        expected: Any = self.known.get(hint.__name__)
        if expected is not hint:
            raise PeewitError(f"{path} is a {hint.__name__}, which files do not hold")
        fields = value[FIELDS]
        kinds = typing.get_type_hints(hint)
        names = {field.name for field in dataclasses.fields(expected)}
        if not isinstance(fields, dict) or set(fields) != names:
            names_given = sorted(map(str, fields)) if isinstance(fields, dict) else fields
            raise PeewitError(f"{path} has the fields {short(names_given)}; expected {sorted(names)}")
        try:
            return expected(**{name: self.decode(each, kinds[name], f"{path}/{name}") for name, each in fields.items()})
        except (TypeError, RuntimeError, OverflowError) as error:  # a class's own check of its values
            raise PeewitError(f"{path}: {error}") from error


def short(value: Any) -> str:
    """A value in at most sixty characters: a file may hold anything."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
