"""Progress bars of long work, drawn by rich if the caller wants them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

Item = TypeVar("Item")


@dataclass(frozen=True)
class Progress:
    """Progress bars, off by default: a library prints only on request."""

    show: bool = False
    bars: list[Any] = field(default_factory=list, compare=False)

    def track(self, items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
        """Yield the items, with a bar."""
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


@contextmanager
def stage(
    console: Console, what: str, total: int | None, bar: bool, say: Callable[[str], None]
) -> Iterator[Callable[[], None]]:
    """Show a bar for one step of a command, with the time left if `total` is known; say how long the step took."""
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    began = time.perf_counter()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    left = () if total is None else (TextColumn("left"), TimeRemainingColumn())
    with Bars(*columns, *left, console=console, transient=True, disable=not bar) as bars:
        task = bars.add_task(what, total=total)
        yield lambda: bars.advance(task)
    say(f"  {what}: {time.perf_counter() - began:.1f} s")
