"""All commands: their options, help pages and examples; what they do is in modules that are loaded when they run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import (
    ATTACKS,
    CURVATURES,
    DATA,
    LEVEL,
    SHIFTS,
    STRUCTURES,
    Debug,
    all_or_some,
    examples,
    option,
    words,
)
from .output import check_sources, check_writable, require_packages_for
from .runs import Run, loading, reads

DEMO = examples("peewit demo", "peewit demo --seed 1 --report demo.html", "peewit demo --quick --no-report")
RECOMMEND = examples(
    "peewit recommend -c run.toml --validation held_out.npz -o posterior.safetensors",
    "peewit recommend -m networks:lenet -w lenet.safetensors -l classification --train train.npz --seconds 60",
    "peewit recommend -c run.toml --validation held_out.npz --ood letters=letters.npz --json",
)
FIT = examples(
    "peewit fit -m networks:lenet -w lenet.safetensors -l classification --train train.npz -o posterior.safetensors",
    "peewit fit -c run.toml --weights last_layer --structure full --tune",
    "peewit fit -m networks:mlp -w mlp.safetensors -l regression --train houses.csv --target price --standardise",
)
TUNE = examples(
    "peewit tune -c run.toml -p posterior.safetensors -o tuned.safetensors",
    "peewit tune -c run.toml -p posterior.safetensors --method validation --validation held_out.npz",
    "peewit tune -c run.toml -p posterior.safetensors --at linear_mode --train train.npz",
)
DIAGNOSE = examples(
    "peewit diagnose -c run.toml -p posterior.safetensors",
    "peewit diagnose -m networks:mlp -w mlp.safetensors -p posterior.safetensors --train houses.csv --json",
)
PREDICT = examples(
    "peewit predict -c run.toml -p posterior.safetensors --data new.npz -o predictions.csv",
    "peewit predict -c run.toml -p posterior.safetensors --data photos/ --size 32 32 --json",
)
EVALUATE = examples(
    "peewit evaluate -c run.toml -p posterior.safetensors --test test.npz -o report.html -o report.json",
    "peewit evaluate -c run.toml -p posterior.safetensors --ood letters=letters.npz --json > report.json",
    "peewit evaluate -m networks:lenet -w lenet.safetensors -l classification --test test/  (the network alone)",
)
REPORT = examples(
    "peewit report report.json -o report.html", "peewit report -c run.toml -p posterior.safetensors --test test.npz"
)
COMPARE = examples(
    "peewit compare kron.safetensors diag.safetensors full.safetensors -c run.toml --test test.npz",
    "peewit compare small.toml large.toml  (each with its own model, weights and posterior)",
)
LANDSCAPE = examples(
    "peewit landscape -c run.toml -p posterior.safetensors --train train.npz -o landscape.html",
    "peewit landscape -c run.toml -p posterior.safetensors --directions random --points 21",
)

Out = Annotated[Path, typer.Option("--out", "-o", help="Where to write the posterior (.safetensors).")]
NOISE = option("noise", float, help="Standard deviation in regression.")
DIAGNOSED = option(
    "diagnose", bool, "--diagnose/--no-diagnose",
    help="Whether to check the network on its training data, in one more pass (default: yes).",
)  # fmt: skip
EVALUATED = (
    "posterior", "likelihood", "validation", "test", "ood", "ensemble", "seed", "title", "anyway",
    option(
        "evaluate.shifts", str, metavar="NAMES", convert=all_or_some(SHIFTS),
        help=f"Corrupt the inputs: all, or some of {', '.join(SHIFTS)}.",
    ),
    option(
        "evaluate.attacks", str, metavar="NAMES", convert=all_or_some(ATTACKS),
        help=f"Inputs made to deceive: all, or some of {', '.join(ATTACKS)}.",
    ),
)  # fmt: skip


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
    place = None if no_report else check_writable(report, (".html",))
    with loading():
        from ..demo import run
    run(quick=quick, seed=seed, report=place)


@reads(
    "likelihood", "train", "standardise", "validation", "ood", "seed", NOISE, "anyway", DIAGNOSED,
    option(
        "recommend.seconds", float,
        help="Time limit: recipes that would take longer than what is left are not started (default: try all).",
    ),
)  # fmt: skip
def recommend(
    run: Run,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to write the best posterior (.safetensors).")
    ] = None,
) -> None:
    """Try a few recipes, show how good each is, and say which to use and why; -o writes the best posterior."""
    with loading():
        from . import recommending
    recommending.recommend(run, out)


@reads(
    "likelihood", "train", "standardise", "seed", NOISE, "anyway", DIAGNOSED,
    option(
        "fit.structure", str, "--structure", "-s", names=STRUCTURES,
        help=f"How curvature is kept: {', '.join(STRUCTURES)} (default: kron).",
    ),
    option("fit.weights", str, help="Uncertain weights: all, last_layer, lora, or a module's name."),
    option(
        "fit.curvature", str, names=CURVATURES, help=f"Which curvature: {', '.join(CURVATURES)} (default: auto)."
    ),
    option("fit.prior", float, help="Prior precision, 1 / variance (default: 1)."),
    option(
        "fit.at", str,
        help="Weights at which the evidence is taken: trained_weights (default), or linear_mode, the mode of the "
        "linearised model, which --tune keeps.",
    ),
)  # fmt: skip
def fit(
    run: Run,
    out: Out = Path("posterior.safetensors"),
    tuned: Annotated[bool, typer.Option("--tune", help="Choose prior and noise on the training data at once.")] = False,
) -> None:
    """Measure a trained network's curvature on its training data: a posterior over its weights, in a file."""
    with loading():
        from . import posteriors
    posteriors.fit(run, out, tuned)


@reads(
    "posterior", "train", "validation", "anyway",
    option(
        "tune.method", str,
        help="evidence, fixed_point, training, validation or grid (default: validation with --validation, training "
        "with --train, else evidence).",
    ),
    option(
        "tune.parameters", str, metavar="A,B,...", convert=words,
        help="What to tune: some of prior, noise and temperature (default: prior, and noise where there is one).",
    ),
    option(
        "tune.at", str,
        help="Weights at which the evidence is taken: trained_weights, or linear_mode, the mode of the linearised "
        "model, which needs --train (default: where the posterior has it).",
    ),
)  # fmt: skip
def tune(run: Run, out: Out = Path("tuned.safetensors")) -> None:
    """Choose the prior precision, and the noise, of a posterior: on validation or training data, or by the evidence."""
    with loading():
        from . import posteriors
    posteriors.tune(run, out)


@reads("posterior", "train")
def diagnose(run: Run) -> None:
    """Say what may be wrong with the network, the prior or the likelihood, from one pass over the training data."""
    with loading():
        from . import diagnosing
    diagnosing.diagnose(run)


@reads(
    "posterior", "seed",
    option("predict.method", str, help="linearised or sampled (default: linearised)."),
    option("predict.link", str, help="How outputs become labels: probit, mc, bridge, ..."),
    option("predict.level", float, help=f"Probability of intervals in regression (default: {LEVEL})."),
)  # fmt: skip
def predict(
    run: Run,
    data: Annotated[str, typer.Option("--data", "-x", metavar="DATA", help=f"Inputs. {DATA}")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write them: .csv, .npz or .json.")] = None,
) -> None:
    """Predict new inputs, and say how sure each prediction is."""
    check_sources([data])
    with loading():
        from . import predicting
    predicting.predict(run, data, out)


@reads(*EVALUATED)
def evaluate(
    run: Run,
    out: Annotated[
        list[Path] | None, typer.Option("--out", "-o", help="Where to write it: .html, .json or .md; repeat for more.")
    ] = None,
) -> None:
    """Measure predictions on test data, beside the plain network and other ways to predict."""
    require_packages_for(*out or [])
    with loading():
        from . import evaluating
    evaluating.evaluate(run, out or [])


@reads(*EVALUATED)
def report(
    run: Run,
    source: Annotated[Path | None, typer.Argument(help="A report in JSON, as `peewit evaluate -o` writes it.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the page (.html).")] = Path("report.html"),
) -> None:
    """Write the page that says whether to trust the network: from a report in JSON, or from a posterior and data."""
    require_packages_for(out)
    with loading():
        from . import evaluating
    evaluating.report(run, source, out)


@reads("test", "seed")
def compare(
    run: Run,
    posteriors: Annotated[
        list[Path], typer.Argument(help="Posteriors (.safetensors), or settings (.toml) that name one each.")
    ],
) -> None:
    """Compare posteriors by their evidence, and on test data where some are given."""
    with loading():
        from . import evaluating
    evaluating.compare(run, posteriors)


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
    require_packages_for(out)
    with loading():
        from . import showing
    showing.landscape(run, out)


# With the ends of their help pages, in the order in which they are listed.
ALL = (
    (demo, DEMO),
    (recommend, RECOMMEND),
    (fit, FIT),
    (tune, TUNE),
    (diagnose, DIAGNOSE),
    (predict, PREDICT),
    (evaluate, EVALUATE),
    (report, REPORT),
    (compare, COMPARE),
    (landscape, LANDSCAPE),
)
