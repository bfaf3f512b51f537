"""A line on the terminal that says how far a run is."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from .records import LearningRecord


class StatusLine:
    """A bar over the epochs with the last record beside it; nothing unless it was asked for."""

    def __init__(self, epochs: int, finished: int, show: bool) -> None:
        self.epochs, self.finished, self.wanted = epochs, finished, show
        self.bars: Any = None
        self.task: Any = None

    def __enter__(self) -> StatusLine:
        if self.wanted:
            from rich.console import Console  # only when shown: it costs import time
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bars

            columns = (MofNCompleteColumn(), BarColumn(bar_width=20), TimeRemainingColumn())
            self.bars = Bars(*columns, TextColumn("{task.description}"), console=Console(stderr=True), transient=True)
            self.bars.start()
            self.task = self.bars.add_task("", total=self.epochs, completed=self.finished)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.bars is not None:
            self.bars.stop()

    def show(self, record: LearningRecord) -> None:
        """One epoch further; the evidence stays on the line until the next one."""
        if self.bars is not None:
            text = {} if record.log_evidence is None else {"description": str(record)}
            self.bars.update(self.task, advance=1, **text)
