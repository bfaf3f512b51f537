"""The command `peewit`: `main` runs it; every command is a thin layer over the library."""

from .program import main

__all__ = ["main"]
