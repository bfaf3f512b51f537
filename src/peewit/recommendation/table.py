"""The table of recipes: as text, and on a terminal while it grows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..metrics.results import Estimate

if TYPE_CHECKING:
    from rich.console import RenderableType

    from .result import TriedRecipe

FIGURES = {"nll": "NLL", "accuracy": "accuracy", "rmse": "RMSE", "ece": "ECE"}
Show = Callable[[Sequence["TriedRecipe"], str], None]  # the rows so far, and what is at work


def cells(rows: Sequence[TriedRecipe], known: str) -> tuple[list[str], list[list[str]]]:
    """The head, and the rows; figures that none has are left out."""
    figures = {
        name: title
        for name, title in FIGURES.items()
        if any(row.scores is not None and name in row.scores.metrics for row in rows)
    }
    head = ["recipe", *figures.values()]
    if figures and known == "training":
        head[1] += " (training)"
    unknown = any(row.auroc is not None for row in rows)
    head += ["AUROC"] * unknown + ["log evidence", "seconds", ""]
    body = []
    for row in rows:
        metrics = {} if row.scores is None else row.scores.metrics
        line = [row.name, *(number(metrics.get(name)) for name in figures)]
        line += [number(row.auroc)] * unknown
        shown = row.log_evidence is not None and not row.tuned_on_validation  # for which it chose nothing
        line.append(f"{row.log_evidence:.1f}" if shown else "")
        body.append([*line, f"{row.seconds:.1f}" if row.seconds else "", remark(row)])
    return head, body


def number(estimate: Estimate | None) -> str:
    """Three digits; nothing where there is no number."""
    return "" if estimate is None else f"{estimate.value:.3f}"


def remark(row: TriedRecipe) -> str:
    """What to know of a row, in a word or two."""
    if row.problem:
        return next((state for state in ("not tried", "not scored") if row.problem.startswith(state)), "failed")
    return f"{len(row.warnings)} warning{'s' * (len(row.warnings) > 1)}" if row.warnings else ""


def remarks(rows: Sequence[TriedRecipe]) -> list[str]:
    """What went wrong, one line each."""
    told = [f"{row.name}: {row.problem}" for row in rows if row.problem]
    return told + [f"{row.name}: warning: {text}" for row in rows for text in row.warnings]


def text(rows: Sequence[TriedRecipe], known: str) -> list[str]:
    """Lines: the first column to the left, numbers to the right; then what went wrong."""
    head, body = cells(rows, known)
    widths = [max(map(len, column)) for column in zip(head, *body, strict=True)]
    lines = []
    for row in (head, *body):
        aligned = [
            cell.ljust(width) if place in (0, len(head) - 1) else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(aligned).rstrip())
    return lines + remarks(rows)


@contextmanager
def grow_table(show: bool, recipes: int, known: str) -> Iterator[Show]:
    """A table on stderr that is drawn anew as rows are done, above a bar; gone at the end."""
    if not show:
        yield lambda rows, at_work: None
        return
    from rich.box import SIMPLE_HEAD
    from rich.console import Console  # only when shown: it costs import time
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.table import Table

    done: list[TriedRecipe] = []

    class Growing(Progress):
        """A bar with the table above it."""

        def get_renderables(self) -> Iterator[RenderableType]:
            """The table and the progress bar."""
            head, body = cells(done, known)
            drawn = Table(box=SIMPLE_HEAD)
            for place, title in enumerate(head):
                drawn.add_column(title, justify="right" if 0 < place < len(head) - 1 else "left", no_wrap=place > 0)
            for row in body:
                drawn.add_row(*row)
            yield drawn
            yield from super().get_renderables()

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Growing(*columns, console=Console(stderr=True), transient=True) as bar:  # stdout is for results
        task = bar.add_task("", total=recipes)

        def update(rows: Sequence[TriedRecipe], at_work: str) -> None:
            done[:] = rows
            bar.update(task, completed=len(rows), description=at_work, refresh=True)

        yield update
