"""Values and options as Python that a user types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def keywords(options: Mapping[str, Any]) -> list[str]:
    """Options as they are typed."""
    return [f"{name}={write_value(value)}" for name, value in options.items()]


def write_value(value: Any) -> str:
    """A value as it is typed: texts in double quotes, values of the library's own with its name before theirs."""
    if isinstance(value, str):
        return f'"{value}"'
    return f"pw.{value!r}" if type(value).__module__.partition(".")[0] == __name__.partition(".")[0] else repr(value)
