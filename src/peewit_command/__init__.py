"""Where the command `peewit` starts: outside the package, since Ctrl-C may come while it is imported."""

from __future__ import annotations

import os
import signal
from typing import Any


def main() -> int:
    """Run a command; returns the exit status."""
    before = signal.signal(signal.SIGINT, stop)
    from peewit.cli import main as run

    signal.signal(signal.SIGINT, before)
    return run()


def stop(*_: Any) -> None:
    """End at once, with one line: some modules go on after an interrupt of their import, and no file is open yet."""
    os.write(2, b"Interrupted; nothing was written.\n")
    os._exit(130)
