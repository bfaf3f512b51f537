"""`peewit landscape` and `peewit demo`: things to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from . import options as given
from .asking import Option, Run, asks
from .datasets import load
from .networks import posterior
from .options import examples
from .output import place
from .posteriors import matched
from .settings import generator, needed, section

LANDSCAPE = examples(
    "peewit landscape -c run.toml -p posterior.safetensors --train train.npz -o landscape.html",
    "peewit landscape -c run.toml -p posterior.safetensors --directions random --points 21",
)
DEMO = examples("peewit demo", "peewit demo --seed 1 --report demo.html", "peewit demo --quick --no-report")


@asks(
    "posterior",
    "model",
    "weights",
    "train",
    "target",
    "classes",
    "header",
    "size",
    "seed",
    "device",
    directions=Option(
        "landscape.directions",
        Annotated[str | None, typer.Option("--directions", help="eigen or random, filter by filter (default: eigen).")],
    ),
    reach=Option(
        "landscape.reach",
        Annotated[float | None, typer.Option("--reach", help="How far to go, in units of the directions.")],
    ),
    points=Option(
        "landscape.points", Annotated[int | None, typer.Option("--points", help="Points along each direction.")]
    ),
)
def landscape(
    run: Run,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write it: .html or .png.")] = Path(
        "landscape.html"
    ),
) -> None:
    """Draw the loss around the trained weights, and what the posterior makes of it: an interactive page."""
    settings, voice = run.settings, run.voice
    place(out, (".html", ".png"))
    la = posterior(settings)
    data = load(needed(settings, "train", "--train DATA"), matched(settings, la))
    from .. import figures  # plotly, which is an extra

    asked = section(settings, "landscape") | {"generator": generator(settings)}
    with voice.stage("the landscape"):
        figure = figures.landscape_2d(la, data.value, **asked)
    figures.save(figure, out)
    voice.answer({"landscape": str(out)}, f"written to {out}")


def demo(
    seed: Annotated[int, typer.Option("--seed", help="Of the weights and the order of images.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few images and epochs: checks that it runs, no more.")
    ] = False,
    report: Annotated[Path, typer.Option("--report", help="Where to write the report.")] = Path("peewit-demo.html"),
    no_report: Annotated[bool, typer.Option("--no-report", help="Write nothing: the table alone.")] = False,
    debug: given.Debug = False,
) -> None:
    """Train a small network on real images, compare ways to predict with it, and write a report.

    A CNN learns eight of the ten classes of Fashion-MNIST, which comes with the package. The network as it is,
    temperature scaling and Laplace approximations are compared, also on the two classes it never saw.
    """
    from ..demo import run  # inside, so that an interrupted import prints one line too

    run(quick=quick, seed=seed, console=Console(), report=None if no_report else place(report, (".html",)))
