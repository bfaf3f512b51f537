"""Progress of long work, shown with rich when asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

Item = TypeVar("Item")


@dataclass(frozen=True)
class Progress:
    """Off by default: a library does not print unasked."""

    show: bool = False
    bars: list[Any] = field(default_factory=list, compare=False)

    def track(self, items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
        """Pass items on, with a bar."""
        if not self.show:
            yield from items
            return
        from rich.console import Console  # only when shown: it costs import time
        from rich.progress import track

        bar = Console(stderr=True)  # stdout is for results
        self.bars.append(track(items, description=what, total=total or None, transient=True, console=bar))
        yield from self.bars[-1]

    @contextmanager
    def working(self, what: str) -> Iterator[None]:
        """A bar that moves while the block lasts, for work whose length is not known."""
        try:
            for _ in self.track([None], 0, what):
                yield
        finally:
            self.close()

    def close(self) -> None:
        """Take bars down that an exception left standing."""
        while self.bars:
            self.bars.pop().close()


QUIET = Progress()
