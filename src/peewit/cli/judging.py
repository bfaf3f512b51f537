"""`peewit evaluate`, `report` and `compare`: how good predictions are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

import peewit as pw

from ..evaluation.report import Report
from ..laplace import Laplace
from ..metrics.results import Estimate
from ..report.words import extent
from ..storage.atomic import writing
from .asking import Option, Run, asks
from .datasets import Wanted, load
from .networks import ensemble as members
from .networks import likelihood as chosen_likelihood
from .networks import network, posterior
from .options import examples, words
from .output import Problem, Voice, place, printed, table
from .posteriors import matched, summary
from .settings import generator, needed, read, section

EVALUATE = examples(
    "peewit evaluate -c run.toml -p posterior.safetensors --test test.npz -o report.html -o report.json",
    "peewit evaluate -c run.toml -p posterior.safetensors --ood letters=letters.npz --json > report.json",
    "peewit evaluate -m networks:lenet -w lenet.safetensors -l classification --test test/  (the network alone)",
)
REPORT = examples(
    "peewit report report.json -o report.html",
    "peewit report -c run.toml -p posterior.safetensors --test test.npz",
)
COMPARE = examples(
    "peewit compare kron.safetensors diag.safetensors full.safetensors -c run.toml --test test.npz",
    "peewit compare small.toml large.toml  (each with its own model, weights and posterior)",
)
SUFFIXES = (".html", ".json", ".md")
COLUMNS = ("accuracy", "rmse", "nll", "brier", "ece", "crps", "coverage95", "aurc")

SHIFTS = ("noise", "blur", "contrast", "rotation")
ATTACKS = ("fgsm", "pgd")
Shifts = Annotated[
    str | None,
    typer.Option("--shifts", metavar="NAMES", help=f"Corrupt the inputs: all, or some of {', '.join(SHIFTS)}."),
]
Attacks = Annotated[
    str | None,
    typer.Option("--attacks", metavar="NAMES", help=f"Inputs made to deceive: all, or some of {', '.join(ATTACKS)}."),
]
JUDGED = (
    "posterior",
    "model",
    "weights",
    "likelihood",
    "test",
    "validation",
    "ood",
    "ensemble",
    "title",
    "target",
    "classes",
    "header",
    "size",
    "seed",
    "device",
)


def several(every: tuple[str, ...]) -> Callable[[str | None], list[str] | None]:
    """Names with commas between them, or all."""
    return lambda text: list(every) if text is not None and text.strip() == "all" else words(text)


HARMED = {
    "shifts": Option("evaluate.shifts", Shifts, several(SHIFTS)),
    "attacks": Option("evaluate.attacks", Attacks, several(ATTACKS)),
}


@asks(*JUDGED, **HARMED)
def evaluate(
    run: Run,
    out: Annotated[
        list[Path] | None, typer.Option("--out", "-o", help="Where to write it: .html, .json or .md; repeat for more.")
    ] = None,
) -> None:
    """Measure predictions on test data, beside the plain network and other ways to predict."""
    for each in out or []:
        place(each, SUFFIXES)
    told(measured(run.settings, run.voice), out or [], run.voice)


@asks(*JUDGED, **HARMED)
def report(
    run: Run,
    source: Annotated[Path | None, typer.Argument(help="A report in JSON, as `peewit evaluate -o` writes it.")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Where to write the page (.html).")] = Path("report.html"),
) -> None:
    """Write the page that says whether to trust the network: from a report in JSON, or from a posterior and data."""
    place(out, (".html",))
    made = measured(run.settings, run.voice) if source is None else stored(source, run)
    told(made, [out], run.voice)


def stored(source: Path, run: Run) -> Report:
    """A report that was written before; only its title can be another."""
    if unread := [name.rpartition(".")[2] for name in run.options if name != "title"]:
        raise Problem(
            f"{source} was given, and --{unread[0]}; expected a report in JSON, or what to measure, not both."
        )
    if not source.is_file():
        raise Problem(f"There is no file {source}; expected a report in JSON, as `peewit evaluate -o` writes it.")
    try:
        made = Report.from_json(source)
    except UnicodeDecodeError as error:
        raise Problem(f"{source} is no text; expected a report in JSON, as `peewit evaluate -o` writes it.") from error
    except ValueError as error:
        raise Problem(f"{source}: {error}") from error
    if not made.methods:
        raise Problem(f"{source} holds a report without methods; expected at least one.")
    return replace(made, title=run.settings["title"]) if "title" in run.settings else made


def told(made: Report, out: list[Path], voice: Voice) -> None:
    """Written and shown."""
    write(made, out)
    show(voice, made, out)


def measured(settings: Mapping[str, Any], voice: Voice) -> Report:
    """The report on a posterior, or on the network alone."""
    asked: dict[str, Any] = {}
    if "posterior" in settings:
        subject: Any = posterior(settings)
        wanted, net = matched(settings, subject), subject.model
    else:
        subject = net = network(settings)
        asked["likelihood"] = chosen_likelihood(settings)
        categorical = asked["likelihood"] == "classification" or isinstance(asked["likelihood"], pw.Categorical)
        wanted = Wanted.of(settings, net, categorical)
    data = load(needed(settings, "test", "--test DATA"), wanted)
    if "validation" in settings:
        asked["validation"] = load(settings["validation"], wanted).value
    unlabelled = replace(wanted, labels=False)
    asked["ood"] = {name: load(each, unlabelled).inputs() for name, each in settings.get("ood", {}).items()} or None
    asked["ensemble"] = members(settings, net)
    asked |= {name: settings[name] for name in ("title",) if name in settings}
    asked |= {"generator": generator(settings)} | section(settings, "evaluate")
    if isinstance(subject, Laplace) and (options := section(settings, "predict")):
        asked["predict"] = {name: each for name, each in options.items() if name != "level"}
    with voice.stage("the evaluation", own=False):
        made: Report = pw.evaluate(subject, data.value, classes=data.schema.classes, progress=voice.progress, **asked)
    return made


def write(made: Report, out: list[Path]) -> None:
    """All files at once: none takes its place before all are written."""
    with ExitStack() as stack:
        for each in out:
            temporary = stack.enter_context(writing(each))
            if each.suffix.lower() == ".html":
                made.to_html(temporary)
            elif each.suffix.lower() == ".json":
                made.to_json(temporary)
            else:
                made.to_markdown(temporary)


def estimate(value: Estimate | None) -> str:
    """A number, and below it its interval."""
    if value is None:
        return "–"
    if not extent(value):
        return f"{value.value:.3f}"
    dash = "–" if value.low >= 0 else " to "
    return f"{value.value:.3f}\n{value.low:.3f}{dash}{value.high:.3f}"


def show(voice: Voice, made: Report, out: list[Path]) -> None:
    """The methods in a table, and where the files are; with --json the whole report."""
    if voice.as_json:
        printed(made.to_json())
        return
    names = [name for name in COLUMNS if name in made.methods[0].metrics][:4]
    rows = [[each.name, *(estimate(each.metrics.get(name)) for name in names)] for each in made.methods]
    voice.answer({}, table(["method", *names], rows), *(f"written to {each}" for each in out))


@asks("model", "weights", "test", "target", "classes", "header", "size", "seed", "device")
def compare(
    run: Run,
    posteriors: Annotated[
        list[Path], typer.Argument(help="Posteriors (.safetensors), or settings (.toml) that name one each.")
    ],
) -> None:
    """Compare posteriors by their evidence, and on test data where some are given."""
    common, voice = run.settings, run.voice
    common.pop("posterior", None)
    found = [compared(each, common, voice) for each in posteriors]
    found.sort(key=lambda row: -row["log_evidence"])
    for row in found:
        row["behind"] = found[0]["log_evidence"] - row["log_evidence"]
    notes = remarks(found)
    names = [name for name in COLUMNS if all(name in row.get("metrics", {}) for row in found)][:4]
    head = ["posterior", "structure", "weights", "log evidence", "behind", "effective weights", *names]
    rows = [
        [
            row["name"],
            row["structure"],
            f"{row['weights']:,}",
            f"{row['log_evidence']:.1f}",
            f"{row['behind']:.1f}",
            f"{row['effective_dimensions']:.1f}",
            *(estimate(Estimate(**row["metrics"][name])) for name in names),
        ]
        for row in found
    ]
    voice.answer({"posteriors": found, "notes": notes}, table(head, rows), *notes)


def compared(source: Path, common: Mapping[str, Any], voice: Voice) -> dict[str, Any]:
    """One posterior in numbers."""
    if source.suffix.lower() == ".toml":
        settings = {**read(source), **common}
        needed(settings, "posterior", f"posterior = ... in {source}")
    else:
        settings = {**common, "posterior": str(source)}
    la = posterior(settings)
    made: dict[str, Any] = {"name": source.stem, **summary(la)}
    if "test" in settings:
        data = load(settings["test"], matched(settings, la))
        with voice.stage(f"{source.stem} on the test data"):
            judged = pw.evaluate(la, data.value, baselines=(), generator=generator(settings))
        own = judged.methods[0].metrics
        made["metrics"] = {
            name: {"value": each.value, "low": each.low, "high": each.high} for name, each in own.items()
        }
    return made


def remarks(found: list[dict[str, Any]]) -> list[str]:
    """What to know before reading the table."""
    made = []
    if len({row["examples"] for row in found}) > 1:
        counts = ", ".join(f"{row['name']} {row['examples']:,}" for row in found)
        made.append(f"Fitted to different numbers of examples ({counts}): their evidences cannot be compared.")
    if len({row["likelihood"] for row in found}) > 1:
        made.append("Different likelihoods: evidences can be compared only where they are of the same targets.")
    if len({row["weights"] for row in found}) > 1:
        made.append(
            "Different weights are uncertain: weights that are fixed count as certain, without a prior's price."
        )
    if len(found) > 1 and found[1]["behind"] < 3:
        made.append("The first two are within 3 nats, a factor of 20 in probability: weak grounds to prefer one.")
    return made
