"""Dataclasses of plain values as JSON text and back, by the types of their fields; files are written whole."""

from __future__ import annotations

import json
import math
import os
import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ..messages.errors import ArgumentTypeError, PeewitError
from ..storage.atomic import writable, writing

Value = TypeVar("Value")
UNENDING = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_text(value: Any, version: int) -> str:
    """A dataclass as JSON that every reader takes: numbers that are not finite become words."""
    return json.dumps({"format": version, **_encode(value)}, allow_nan=False)


def from_text(cls: type[Value], text: str, version: int) -> Value:
    """The dataclass again; refuses text that is none, or of another format."""
    what = f"the JSON text of a {cls.__name__}, as to_json writes it"
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise PeewitError(f"This is not JSON ({error}); expected {what}.") from None
    if not isinstance(content, dict) or "format" not in content:
        raise PeewitError(f"JSON without a format number was given; expected {what}.")
    if content["format"] != version:
        raise PeewitError(
            f"This has format {content['format']!r}, and this version of peewit reads format {version}; read it with "
            "the version that wrote it, or write it again."
        )
    try:
        value: Value = _decode(content, cls)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PeewitError(f"This does not hold what it should ({error!r}); expected {what}.") from None
    return value


def _encode(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name: _encode(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): _encode(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _decode(value: Any, kind: Any) -> Any:
    """A JSON value as the type that a field has."""
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        build: Any = kind
        later = {field.name for field in fields(kind) if field.default_factory is not MISSING}  # may not be there yet
        present = {name: hint for name, hint in hints.items() if name in value or name not in later}
        return build(**{name: _decode(value[name], hint) for name, hint in present.items()})
    if kind is Any:
        return _anything(value)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        rest = [hint for hint in inner if hint is not types.NoneType]
        return _decode(value, float if float in rest and not isinstance(value, int) else rest[0])
    if origin is tuple:
        return tuple(_decode(hint, inner[0]) for hint in value)
    if origin is dict:
        return {key: _decode(hint, inner[1]) for key, hint in value.items()}
    if kind is float:
        return UNENDING[value] if isinstance(value, str) else float(value)
    if value not in inner if origin is Literal else not isinstance(value, kind):
        raise ArgumentTypeError(f"{value!r} is not of type {getattr(kind, '__name__', kind)}")
    return value


def _anything(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _anything(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_anything(each) for each in value]
    return UNENDING.get(value, value) if isinstance(value, str) else value


def read(path_or_text: str | os.PathLike[str]) -> str:
    """The text itself, or that of the file it names."""
    if isinstance(path_or_text, str) and path_or_text.lstrip().startswith("{"):
        return path_or_text
    source = Path(os.fsdecode(path_or_text))
    if not source.is_file():
        raise FileNotFoundError(f"There is no file {source}; expected the path of a report's JSON, or its text.")
    return source.read_text(encoding="utf-8")


def write(text: str, path: str | os.PathLike[str] | None) -> str:
    """The text, also written into a file where one is named: whole, or an earlier file stays."""
    if path is None:
        return text
    with writing(writable(path, "report.json")) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return text
