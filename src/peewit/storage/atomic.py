"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from ..messages.errors import PeewitError


def writable(path: str | os.PathLike[str], example: str, suffixes: Sequence[str] = ()) -> Path:
    """Where to write; refuses what is not a place for a file or has another ending, and names what would do."""
    name = Path(os.fsdecode(path))
    if suffixes and name.suffix.lower() not in suffixes:
        raise PeewitError(
            f"{name.name!r} ends in {name.suffix!r}; expected a name that ends in {' or '.join(suffixes)}."
        )
    target = Path(os.path.realpath(os.fsdecode(path)))
    if target.is_dir():
        raise IsADirectoryError(f"{target} is a folder; expected the name of a file, such as {example!r}.")
    if target.exists() and not target.is_file():  # it would be replaced, as a file is
        raise PeewitError(f"{target} is a device, a pipe or a socket; expected the name of a file.")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"The folder {target.parent} does not exist; make it first.")
    return target


def beside(target: Path) -> Path:
    """A name in the same folder that nobody has."""
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")


@contextmanager
def writing(target: Path) -> Iterator[Path]:
    """A name beside the file: what is written there takes its place once it is on the disk, or is gone."""
    temporary = beside(target)
    try:
        yield temporary
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if hasattr(os, "O_DIRECTORY"):  # the new name itself
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        with suppress(OSError):
            os.fsync(folder)
        os.close(folder)
