"""Which revision of the library a benchmark measured."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

import peewit as pw

DATE = ("log", "-1", "--date=format:%Y-%m-%dT%H:%M", "--format=%cd")


def git(*arguments: str) -> str | None:
    """What git says about this folder; None outside a repository."""
    root = Path(__file__).resolve().parent
    try:
        done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def commit() -> str | None:
    """The commit that was measured, with `+` for changes; None outside a repository."""
    return git("describe", "--always", "--dirty=+")


@functools.cache
def revision() -> str:
    """The version, and in a repository when the commit was made, and its name: 0.1.0 2026-11-20T14:50 80fe068."""
    return " ".join(part for part in (pw.__version__, git(*DATE), commit()) if part)
