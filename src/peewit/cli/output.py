"""What a command says and writes: files whole or not at all, JSON alone on stdout, words for people on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stdout
from contextvars import ContextVar
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from ..runtime.progress import stage
from ..storage.atomic import beside


class Problem(Exception):
    """Something that was given cannot be used: one line says what, and what to do."""


@dataclass(frozen=True)
class Voice:
    """Where a command speaks: results to stdout, all else to stderr, which `quiet` silences."""

    as_json: bool = False
    quiet: bool = False
    out: Console = field(default_factory=Console)
    err: Console = field(default_factory=lambda: Console(stderr=True))

    @property
    def progress(self) -> bool:
        """Whether bars are shown: to people at a terminal."""
        return self.err.is_terminal and not self.quiet

    def say(self, text: str) -> None:
        """A line for people."""
        if not self.quiet:
            self.err.print(text, highlight=False, markup=False, soft_wrap=True)

    def answer(self, values: dict[str, Any], *lines: Any) -> None:
        """The result: as JSON, or as lines and tables for people."""
        if self.as_json:
            print_result(json.dumps(finite(values), allow_nan=False))
            return
        for line in lines:
            if isinstance(line, Table):  # whole, where need be wider than the terminal
                everything = self.out.options.update(max_width=1000)
                self.out.width = max(self.out.width, Measurement.get(self.out, everything, line).maximum)
            self.out.print(line, highlight=False, markup=False, soft_wrap=isinstance(line, str))

    def stage(
        self, what: str, total: int | None = None, with_bar: bool = True
    ) -> AbstractContextManager[Callable[[], None]]:
        """Show a step of the command, and how long it took; without a bar if the step draws its own."""
        return stage(self.err, what, total, with_bar and self.progress, self.say)


OWN: ContextVar[TextIO | None] = ContextVar("OWN", default=None)


@contextmanager
def stdout_for_json(as_json: bool) -> Iterator[None]:
    """With JSON, all else that is printed goes to stderr: networks and data of users may print, too."""
    before = OWN.set(sys.stdout if as_json else None)
    try:
        with redirect_stdout(sys.stderr) if as_json else nullcontext():
            yield
    finally:
        OWN.reset(before)


def print_result(text: str) -> None:
    """A line on stdout itself."""
    print(text, file=OWN.get() or sys.stdout)


def finite(value: Any) -> Any:
    """The same with words for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {str(key): finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """The first column to the left, numbers to the right."""
    shown = Table(box=SIMPLE_HEAD)
    for column, name in enumerate(head):
        shown.add_column(name, justify="right" if column else "left", no_wrap=column == 0)
    for row in rows:
        shown.add_row(*row)
    return shown


def check_writable(path: Path, suffixes: Sequence[str] = ()) -> Path:
    """Where a file will be written; refused before any work is done, not after it."""
    if suffixes and path.suffix.lower() not in suffixes:
        raise Problem(
            f"{path} would be written as {path.suffix or 'a file without an ending'}; expected "
            f"{list_choices(suffixes)}."
        )
    if path.is_dir():
        raise Problem(f"{path} is a folder; expected the name of a file to write.")
    if path.exists() and not path.is_file():
        raise Problem(f"{path} is not a plain file; expected the name of a file to write.")
    if path.parent.exists() and not path.parent.is_dir():
        raise Problem(f"{path.parent} is a file; expected a folder for {path.name}.")
    if not path.parent.is_dir():
        raise Problem(f"The folder {path.parent} of {path.name} does not exist; make it first.")
    trial = beside(path)
    try:  # permissions alone do not tell: disks are full or read-only, folders belong to others
        trial.touch(exist_ok=False)
    except OSError as error:
        raise Problem(f"{path} cannot be written: {error.strerror or error}. Choose another place.") from error
    trial.unlink()
    return path


def require_package(module: str, what: str, package: str) -> None:
    """Refuse work that needs an extra which cannot be imported, before any of it is done."""
    if find_spec(module) is None:
        raise Problem(f"{what} need {package}, which is not installed: pip install {package.lower()}.")
    try:
        import_module(module)
    except Exception as error:  # of another version, or half installed
        raise Problem(
            f"{what} need {package}, which is installed but cannot be imported: {error}. Try pip install -U "
            f"{package.lower()}."
        ) from error


def require_packages_for(*paths: Path) -> None:
    """What pages and pictures are drawn with."""
    if any(path.suffix.lower() in (".html", ".png") for path in paths):
        require_package("plotly", "Pages and pictures (.html, .png)", "plotly")
    if any(path.suffix.lower() == ".png" for path in paths):
        require_package("kaleido", "Pictures (.png)", "kaleido")


def check_sources(sources: Iterable[str]) -> None:
    """What folders of images are read with."""
    if any(Path(source).expanduser().is_dir() for source in sources):
        require_package("PIL", "Folders of images", "Pillow")


def list_choices(names: Sequence[str]) -> str:
    """`a, b or c`."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else list(names))
