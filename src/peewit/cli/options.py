"""The options that commands share, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .. import likelihoods
from ..curvature import kinds, structures
from .output import Problem

RUN, SHOW = "The run", "What is shown"


def _names(known: Any) -> Any:
    """Completion of names in a shell."""
    return lambda incomplete: [name for name in known if name.startswith(incomplete)]


Model = Annotated[
    str | None,
    typer.Option(
        "--model", "-m", metavar="MODULE:FUNCTION", help="Function that makes the network.", rich_help_panel=RUN
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option("--weights", "-w", help="Trained weights: .safetensors or a state dict.", rich_help_panel=RUN),
]
Likelihood = Annotated[
    str | None,
    typer.Option(
        "--likelihood",
        "-l",
        help=f"What the outputs mean: {', '.join(likelihoods.NAMES)}.",
        autocompletion=_names(likelihoods.NAMES),
        rich_help_panel=RUN,
    ),
]
Posterior = Annotated[
    Path | None, typer.Option("--posterior", "-p", help="Posterior that `peewit fit` wrote.", rich_help_panel=RUN)
]
DATA = "A file (.npz, .csv, .safetensors), a folder of images, or MODULE:FUNCTION."
Train = Annotated[
    str | None, typer.Option("--train", metavar="DATA", help=f"Training data. {DATA}", rich_help_panel=RUN)
]
Validation = Annotated[
    str | None, typer.Option("--validation", metavar="DATA", help="Validation data.", rich_help_panel=RUN)
]
Test = Annotated[str | None, typer.Option("--test", metavar="DATA", help=f"Test data. {DATA}", rich_help_panel=RUN)]
Ood = Annotated[
    list[str] | None,
    typer.Option(
        "--ood", metavar="NAME=DATA", help="Inputs of a kind never seen, to see if it notices.", rich_help_panel=RUN
    ),
]
Ensemble = Annotated[
    list[Path] | None,
    typer.Option(
        "--ensemble",
        metavar="WEIGHTS",
        help="Weights of the same network trained apart, to compare with a deep ensemble; repeat for more.",
        rich_help_panel=RUN,
    ),
]
Target = Annotated[
    list[str] | None,
    typer.Option(
        "--target", metavar="COLUMN", help="Target column of .csv files (default: the last).", rich_help_panel=RUN
    ),
]
Classes = Annotated[
    str | None, typer.Option("--classes", metavar="A,B,...", help="Names of the classes in order.", rich_help_panel=RUN)
]
Header = Annotated[
    bool | None,
    typer.Option(
        "--header/--no-header",
        help="Whether .csv files begin with the names of columns (default: as the first row looks).",
        rich_help_panel=RUN,
    ),
]
Size = Annotated[
    tuple[int, int] | None,
    typer.Option("--size", metavar="H W", help="Bring images to this size.", rich_help_panel=RUN),
]
Config = Annotated[
    Path | None, typer.Option("--config", "-c", help="TOML file with settings of the run.", rich_help_panel=RUN)
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting, such as fit.structure=diag.", rich_help_panel=RUN),
]
Device = Annotated[
    str | None, typer.Option("--device", "-d", help="cpu, cuda, ... (default: cpu).", rich_help_panel=RUN)
]
Seed = Annotated[
    int | None, typer.Option("--seed", help="Seed of everything random (default: a fixed one).", rich_help_panel=RUN)
]
Structure = Annotated[
    str | None,
    typer.Option(
        "--structure",
        "-s",
        help=f"How curvature is kept: {', '.join(structures.NAMES)} (default: kron).",
        autocompletion=_names(structures.NAMES),
    ),
]
Curvature = Annotated[
    str | None,
    typer.Option(
        "--curvature",
        help=f"Which curvature: {', '.join(kinds.NAMES)} (default: auto).",
        autocompletion=_names(kinds.NAMES),
    ),
]
Title = Annotated[str | None, typer.Option("--title", help="Title of the report.")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON on stdout, and nothing else there.", rich_help_panel=SHOW)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no remarks.", rich_help_panel=SHOW)]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.", rich_help_panel=SHOW)]


def pairs(texts: list[str] | None) -> dict[str, str]:
    """`NAME=DATA`, several times."""
    made = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise Problem(f"--ood {text}: expected NAME=DATA, such as --ood noise=noise.npz.")
        made[name] = value
    return made


def words(text: str | None) -> list[str] | None:
    """Names with commas between them."""
    return None if text is None else [word.strip() for word in text.split(",")]


def examples(*lines: str) -> str:
    """The end of a help page."""
    return "\n\n".join(["[bold]Examples[/]", *(f"  {line}" for line in lines)])
