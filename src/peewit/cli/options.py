"""Options of commands, each with the setting that it gives; those that several commands share are written once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from .output import Problem

RUN, SHOW = "The run", "What is shown"  # parts of a help page
# What the library knows by name: written here too, so that help need not load it. A test compares them.
LIKELIHOODS = ("classification", "binary", "regression", "heteroscedastic", "count", "preference")
STRUCTURES = ("diag", "block", "full", "kron", "ekfac")
CURVATURES = ("auto", "ggn", "fisher", "empirical", "hessian")
SHIFTS = ("noise", "blur", "contrast", "rotation")
ATTACKS = ("fgsm", "pgd")
LEVEL = 0.9  # of intervals in regression
DATA = "A file (.npz, .csv, .safetensors), a folder of images, or MODULE:FUNCTION."


class Option(NamedTuple):
    """An option of the command line, and the setting that it gives."""

    name: str
    setting: str
    annotation: Any
    convert: Callable[[Any], Any]  # to what settings hold


def option(
    setting: str,
    kind: Any,
    *flags: str,
    help: str,
    metavar: str | None = None,
    names: Iterable[str] = (),
    panel: str | None = None,
    convert: Callable[[Any], Any] = lambda value: value,
) -> Option:
    """An option that is called like its setting, unless flags say otherwise; `names` are completed in a shell."""
    flags = flags or (f"--{setting.rpartition('.')[2]}",)

    def complete(incomplete: str) -> list[str]:
        return [name for name in names if name.startswith(incomplete)]

    completion = complete if names else None
    info = typer.Option(*flags, help=help, metavar=metavar, autocompletion=completion, rich_help_panel=panel)
    annotated: Any = Annotated
    return Option(flags[0].partition("/")[0].removeprefix("--"), setting, annotated[kind | None, info], convert)


def path_text(path: Path | None) -> str | None:
    """A path as settings hold it."""
    return None if path is None else str(path)


def path_texts(paths: list[Path] | None) -> list[str]:
    """Several paths as settings hold them."""
    return [str(path) for path in paths or ()]


def pairs(texts: list[str] | None) -> dict[str, str]:
    """`NAME=DATA`, several times."""
    data_by_name = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise Problem(f"--ood {text}: expected NAME=DATA, such as --ood noise=noise.npz.")
        data_by_name[name] = value
    return data_by_name


def words(text: str | None) -> list[str] | None:
    """Names with commas between them."""
    return None if text is None else [word.strip() for word in text.split(",")]


def all_or_some(known: Iterable[str]) -> Callable[[str | None], list[str] | None]:
    """Names with commas between them, or "all"."""
    return lambda text: list(known) if text is not None and text.strip() == "all" else words(text)


# In the order of help pages.
SHARED = {
    shared.name: shared
    for shared in (
        option(
            "posterior", Path, "--posterior", "-p", help="Posterior that `peewit fit` wrote.", panel=RUN,
            convert=path_text,
        ),
        option(
            "model", str, "--model", "-m", metavar="MODULE:FUNCTION", help="Function that makes the network.",
            panel=RUN,
        ),
        option(
            "checkpoint", Path, "--checkpoint", "-w", metavar="FILE", panel=RUN, convert=path_text,
            help="Trained weights: .safetensors or a state dict.",
        ),
        option(
            "likelihood", str, "--likelihood", "-l", help=f"What the outputs mean: {', '.join(LIKELIHOODS)}.",
            names=LIKELIHOODS, panel=RUN,
        ),
        option("train", str, metavar="DATA", help=f"Training data. {DATA}", panel=RUN),
        option("validation", str, metavar="DATA", help="Validation data.", panel=RUN),
        option("test", str, metavar="DATA", help=f"Test data. {DATA}", panel=RUN),
        option(
            "ood", list[str], metavar="NAME=DATA", help="Inputs of a kind never seen, to see if it notices.",
            panel=RUN, convert=pairs,
        ),
        option(
            "ensemble", list[Path], metavar="FILE", panel=RUN, convert=path_texts,
            help="Weights of the same network trained apart, to compare with a deep ensemble; repeat for more.",
        ),
        option(
            "target", list[str], metavar="COLUMN", help="Target column of .csv files (default: the last).", panel=RUN
        ),
        option(
            "inputs", str, metavar="A,B,...", panel=RUN, convert=words,
            help="Input columns of .csv files, in the network's order (default: all but the target).",
        ),
        option("classes", str, metavar="A,B,...", help="Names of the classes in order.", panel=RUN, convert=words),
        option(
            "header", bool, "--header/--no-header", panel=RUN,
            help="Whether .csv files begin with the names of columns (default: as the first row looks).",
        ),
        option("size", tuple[int, int], metavar="H W", help="Bring images to this size.", panel=RUN),
        option("seed", int, help="Seed of everything random (default: a fixed one).", panel=RUN),
        option(
            "standardise", bool, "--standardise/--no-standardise", panel=RUN,
            help="For a network that was trained on standardised columns: scale inputs, and targets in regression, by "
            "the training table. The posterior keeps the scaling.",
        ),
        option(
            "anyway", bool, "--anyway", panel=RUN,
            help="Go on with a network whose weights are random, or that is worse than a constant.",
        ),
        option("title", str, help="Title of the report."),
        option("device", str, "--device", "-d", help="cpu, cuda, ... (default: cpu).", panel=RUN),
    )
}  # fmt: skip
NETWORK_AND_DATA = ("model", "checkpoint", "inputs", "target", "classes", "header", "size", "device")  # of every run

Config = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML file with settings of the run.", rich_help_panel=RUN)
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting, such as fit.structure=diag.", rich_help_panel=RUN),
]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout, and nothing else there.", rich_help_panel=SHOW)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no remarks.", rich_help_panel=SHOW)]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=SHOW)]


def examples(*lines: str) -> str:
    """The end of a help page."""
    return "\n\n".join(["[bold]Examples[/]", *(f"  {line}" for line in lines)])
