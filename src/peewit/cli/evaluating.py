"""The work of `peewit evaluate`, `report` and `compare`: how good predictions are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import peewit as pw

from ..comparison.assessment import assess
from ..comparison.call import INTERVALS
from ..comparison.result import ComparedPosterior, rank
from ..comparison.table import cells
from ..evaluation.call import EvaluationOptions
from ..evaluation.report import Report
from ..laplace import Laplace
from ..metrics.results import Estimate
from ..report.words import has_interval
from ..storage.atomic import writing
from .checking import as_commands, check_weights, find_misfit, refuse_misfit
from .datasets import Wanted, load
from .networks import ensemble as members
from .networks import generator, is_classification, network, posterior
from .networks import likelihood as chosen_likelihood
from .output import Problem, Voice, check_writable, print_result, table
from .posteriors import summary, wanted_by
from .runs import Run
from .settings import read, require_setting, section

SUFFIXES = (".html", ".json", ".md")
COLUMNS = ("accuracy", "rmse", "nll", "brier", "ece", "crps", "coverage90", "aurc")


def evaluate(run: Run, out: list[Path]) -> None:
    """Measure, write the report in every form that was asked for, and show it."""
    for path in out:
        check_writable(path, SUFFIXES)
    finish(measure(run.settings, run.voice), out, run.voice)


def report(run: Run, source: Path | None, out: Path) -> None:
    """Read a report or measure one, and write the page."""
    check_writable(out, (".html",))
    finish(measure(run.settings, run.voice) if source is None else read_report(source, run), [out], run.voice)


def read_report(source: Path, run: Run) -> Report:
    """A report that was written before; only its title can be another."""
    if unread := [name.rpartition(".")[2] for name in run.options if name != "title"]:
        raise Problem(
            f"{source} was given, and --{unread[0]}; expected a report in JSON, or what to measure, not both."
        )
    if not source.is_file():
        raise Problem(f"There is no file {source}; expected a report in JSON, as `peewit evaluate -o` writes it.")
    try:
        stored = Report.from_json(source)
    except UnicodeDecodeError as error:
        raise Problem(f"{source} is not text; expected a report in JSON, as `peewit evaluate -o` writes it.") from error
    except ValueError as error:
        raise Problem(f"{source}: {error}") from error
    if not stored.methods:
        raise Problem(f"{source} holds a report without methods; expected at least one.")
    return replace(stored, title=run.settings["title"]) if "title" in run.settings else stored


def finish(result: Report, out: list[Path], voice: Voice) -> None:
    """Write the report and show it."""
    write(result, out)
    show(voice, result, out)


def measure(settings: Mapping[str, Any], voice: Voice) -> Report:
    """The report on a posterior, or on the network alone."""
    arguments: dict[str, Any] = {name: settings[name] for name in ("title",) if name in settings}
    if "posterior" in settings:
        subject: Any = posterior(settings)
        wanted, model = wanted_by(settings, subject), subject.model
    else:
        subject = model = network(settings)
        check_weights(settings, model)
        if settings.get("standardise", False):
            raise Problem("standardise is kept by a posterior: fit one with it, and give --posterior FILE.")
        arguments["likelihood"] = chosen_likelihood(settings)
        wanted = Wanted.of(settings, model, is_classification(arguments["likelihood"]))
    data = load(require_setting(settings, "test", "--test DATA"), wanted)
    likelihood = subject.likelihood if isinstance(subject, Laplace) else arguments["likelihood"]
    refuse_misfit(model, data.value, likelihood, settings, "test")
    if "validation" in settings:
        arguments["validation"] = load(settings["validation"], wanted).value
    if not isinstance(subject, Laplace) and data.schema.header:
        arguments["columns"] = data.schema.inputs
    unlabelled = replace(wanted, labels=False)
    ood = {name: load(source, unlabelled).inputs() for name, source in settings.get("ood", {}).items()}
    if isinstance(subject, Laplace) and (predict := section(settings, "predict")):
        arguments["predict"] = {name: value for name, value in predict.items() if name != "level"}
    with voice.stage("the evaluation", with_bar=False):
        return pw.evaluate(
            subject,
            data.value,
            ood=ood or None,
            ensemble=members(settings, model),
            classes=data.schema.classes,
            generator=generator(settings),
            progress=voice.progress,
            **arguments,
            **section(settings, "evaluate"),
        )


def write(result: Report, out: list[Path]) -> None:
    """All files at once: none takes its place before all are written."""
    writers: dict[str, Callable[[Path], object]] = {
        ".html": result.to_html,
        ".json": result.to_json,
        ".md": result.to_markdown,
    }
    with ExitStack() as stack:
        for path in out:
            writers[path.suffix.lower()](stack.enter_context(writing(path)))


def estimate(value: Estimate | None) -> str:
    """A number, and below it its interval."""
    if value is None:
        return "–"
    if not has_interval(value):
        return f"{value.value:.3f}"
    dash = "–" if value.low >= 0 else " to "
    return f"{value.value:.3f}\n{value.low:.3f}{dash}{value.high:.3f}"


def show(voice: Voice, result: Report, out: list[Path]) -> None:
    """The methods in a table, and where the files are; with --json the whole report."""
    if voice.as_json:
        print_result(result.to_json())
        return
    names = [name for name in COLUMNS if name in result.methods[0].metrics][:4]
    rows = [[scores.name, *(estimate(scores.metrics.get(name)) for name in names)] for scores in result.methods]
    voice.answer({}, table(["method", *names], rows), *(f"written to {path}" for path in out))


def compare(run: Run, posteriors: list[Path]) -> None:
    """One row per posterior, the best first, with remarks."""
    common, voice = run.settings, run.voice
    common.pop("posterior", None)
    names = names_of(posteriors)
    compared = {name: compare_one(name, source, common, voice) for name, source in zip(names, posteriors, strict=True)}
    comparison = rank([row for row, _ in compared.values()])
    misfits = [
        f"{row.name}: {compared[row.name][1]['misfit']}" for row in comparison if "misfit" in compared[row.name][1]
    ]
    notes = [as_commands(note) for note in (*misfits, *comparison.notes)]
    head, rows = cells(comparison.rows)
    metrics = [name for name in COLUMNS if all(name in row.metrics for row in comparison)][:4]
    scored = [
        [*line, *(estimate(row.metrics[name]) for name in metrics)] for line, row in zip(rows, comparison, strict=True)
    ]
    values = [compared[row.name][1] | values_of(row) for row in comparison]
    voice.answer({"posteriors": values, "notes": notes}, table([*head, *metrics], scored), *notes)


def names_of(sources: list[Path]) -> list[str]:
    """Names of files without their endings; whole paths where two have the same."""
    stems = [source.stem for source in sources]
    if repeated := [source for source in sources if sources.count(source) > 1]:
        raise Problem(f"{repeated[0]} was given twice; expected each posterior once.")
    return [stem if stems.count(stem) == 1 else str(source) for stem, source in zip(stems, sources, strict=True)]


def values_of(row: ComparedPosterior) -> dict[str, Any]:
    """A row as JSON holds it; what `summary` says too has its name there."""
    names = ("name", "rank", "log_evidence", "behind", "log_evidence_per_example", "log_likelihood", "complexity")
    more = ("distance", "log_volume", "effective_dimensions", "fixed", "where")
    values: dict[str, Any] = {name: getattr(row, name) for name in (*names, *more)}
    if row.test_log_likelihood is not None:
        values["metrics"] = {name: asdict(value) for name, value in row.metrics.items()}
        values["test_log_likelihood"] = row.test_log_likelihood
    return values


def compare_one(
    name: str, source: Path, common: Mapping[str, Any], voice: Voice
) -> tuple[ComparedPosterior, dict[str, Any]]:
    """One posterior as a row, with what else JSON says of it; it is not kept beside the next."""
    if source.suffix.lower() == ".toml":
        settings = {**read(source), **common}
        require_setting(settings, "posterior", f"posterior = ... in {source}")
    else:
        settings = {**common, "posterior": str(source)}
    la = posterior(settings)
    options = EvaluationOptions.of(INTERVALS, generator(settings), None, None)
    if "test" not in settings:
        return assess(name, la, None, options), summary(la)
    data = load(settings["test"], wanted_by(settings, la)).value
    with voice.stage(f"{name} on the test data", with_bar=False):
        row = assess(name, la, data, options, progress=voice.progress)
    misfit = find_misfit(la.model, data, la.likelihood, "test")
    return row, summary(la) | ({"misfit": misfit.sentence} if misfit else {})
