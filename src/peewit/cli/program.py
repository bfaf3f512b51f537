"""The program: all commands, and what becomes of errors: one line, and an exit status that says whose fault it was."""

from __future__ import annotations

import contextlib
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from ..messages.names import nearest
from ..runtime.version import __version__
from . import commands
from .output import Problem, stdout_for_json
from .settings import importing

DONE, FAILED, REFUSED, INTERRUPTED = 0, 1, 2, 130  # 130 is what shells expect after Ctrl-C
INPUT = (Problem, ValueError, TypeError, OSError, ImportError)  # the library's own words name what was given
LONGEST = 1000  # characters of a message

HELP = """Laplace approximations for any PyTorch network: posterior, evidence and calibrated predictions.

Exit status: 0 done, 1 the computation failed, 2 what was given cannot be used, 130 interrupted."""

app = typer.Typer(
    name="peewit",
    help=HELP,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command, epilog in commands.ALL:
    app.command(epilog=epilog)(command)


def show_version(wanted: bool) -> None:
    """Print the version and stop."""
    if wanted:
        print(f"peewit {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Without a command, all commands are listed."""
    if context.invoked_subcommand is None:
        print(context.get_help())


start.__doc__ = HELP


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    try:
        refuse_unknown(words)
        only_json = "--json" in words and not {"-h", "--help"} & set(words)
        with importing(Path.cwd()), plain_warnings("--quiet" in words or "-q" in words), stdout_for_json(only_json):
            status: Any = app(words, prog_name="peewit", standalone_mode=False)
    except KeyboardInterrupt:
        status = INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exc()
        complain(error)
        return FAILED if not is_refusal(error) else REFUSED
    if status == INTERRUPTED:
        print("Interrupted; nothing was written.", file=sys.stderr)
    return status if isinstance(status, int) else DONE


def refuse_unknown(words: Sequence[str]) -> None:
    """Name the nearest command where an unknown one was given, and the options that have other names."""
    known = [command.__name__ for command, _ in commands.ALL]
    if words and not words[0].startswith("-") and words[0] not in known:
        raise Problem(f"{words[0]!r} is not a command; {nearest(words[0], known)}Known: {', '.join(known)}.")
    for word in words:
        option = word.partition("=")[0]
        if option == "--select":
            raise Problem("--select is now --weights: all, last_layer, lora, or a module's name.")
        if option == "--weights" and words[0] != "fit":
            raise Problem(
                "--weights chooses the uncertain weights, which `peewit fit` alone takes; the file of trained weights "
                "is --checkpoint FILE, or -w FILE."
            )


def is_refusal(error: Exception) -> bool:
    """Whether it is what was given, not the computation, that was wrong."""
    return isinstance(error, INPUT) or hasattr(error, "format_message")  # the latter: options that do not parse


def complain(error: Exception) -> None:
    """One line."""
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    text = " ".join(text.split()) or type(error).__name__
    if isinstance(error, KeyError):
        text = f"KeyError: {text}"
    elif not is_refusal(error):
        text = f"{type(error).__name__}: {text}"
    if context := getattr(error, "ctx", None):
        text = f"{text.rstrip('.')}. See '{context.command_path} --help'."
    print(f"peewit: {text[:LONGEST]}", file=sys.stderr)


@contextlib.contextmanager
def plain_warnings(quiet: bool) -> Iterator[None]:
    """Warnings are for people too: one line each, without the place in the code."""

    def show(message: Warning | str, *_: Any, **__: Any) -> None:
        if not quiet:
            from .checking import as_commands  # needs torch, which warnings of the library have imported

            print(f"note: {as_commands(' '.join(str(message).split()))}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield
