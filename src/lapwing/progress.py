"""Progress of long work, shown with rich when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Progress:
    """Off by default: a library does not print unasked."""

    show: bool = False

    def track(self, items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
        """Pass items on, with a bar."""
        if not self.show:
            yield from items
            return
        from rich.progress import track  # only when shown: it costs import time

        yield from track(items, description=what, total=total or None, transient=True)
