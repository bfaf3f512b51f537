"""`peewit landscape` and `peewit demo`: things to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from .datasets import load
from .networks import posterior
from .options import Debug, examples, option
from .output import check_writable
from .posteriors import wanted_by
from .runs import Run, reads
from .settings import generator, require_setting, section

LANDSCAPE = examples(
    "peewit landscape -c run.toml -p posterior.safetensors --train train.npz -o landscape.html",
    "peewit landscape -c run.toml -p posterior.safetensors --directions random --points 21",
)
DEMO = examples("peewit demo", "peewit demo --seed 1 --report demo.html", "peewit demo --quick --no-report")


@reads(
    "posterior", "train", "seed",
    option("landscape.directions", str, help="eigen or random, filter by filter (default: eigen)."),
    option("landscape.reach", float, help="How far to go, in units of the directions."),
    option("landscape.points", int, help="Points along each direction."),
)  # fmt: skip
def landscape(
    run: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write it: .html or .png.")] = Path(
        "landscape.html"
    ),
) -> None:
    """Draw the loss around the trained weights, and what the posterior makes of it: an interactive page."""
    settings, voice = run.settings, run.voice
    check_writable(out, (".html", ".png"))
    la = posterior(settings)
    data = load(require_setting(settings, "train", "--train DATA"), wanted_by(settings, la))
    from .. import figures  # plotly, which is an extra

    with voice.stage("the landscape", with_bar=False):
        figure = figures.landscape_2d(
            la, data.value, generator=generator(settings), progress=voice.progress, **section(settings, "landscape")
        )
    figures.save(figure, out)
    voice.answer({"landscape": str(out)}, f"written to {out}")


def demo(
    seed: Annotated[int, typer.Option("--seed", help="Of the weights and the order of images.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few images and epochs: checks that it runs, no more.")
    ] = False,
    report: Annotated[Path, typer.Option("--report", help="Where to write the report.")] = Path("peewit-demo.html"),
    no_report: Annotated[bool, typer.Option("--no-report", help="Write nothing: the table alone.")] = False,
    debug: Debug = False,
) -> None:
    """Train a small network on real images, compare ways to predict with it, and write a report.

    A CNN learns eight of the ten classes of Fashion-MNIST, which comes with the package. The network as it is,
    temperature scaling and Laplace approximations are compared, also on the two classes it never saw.
    """
    from ..demo import run  # inside, so that an interrupted import prints one line too

    run(quick=quick, seed=seed, console=Console(), report=None if no_report else check_writable(report, (".html",)))
