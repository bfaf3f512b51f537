"""Numbers of the benchmark of quality in README.md and docs/ are those of its files."""

from __future__ import annotations

import math
import re
import statistics
from functools import cache
from pathlib import Path

import pytest

from benchmarks.quality import batchnorm, goals, harm, linear_mode, measured, online, page, sections, unknown
from benchmarks.quality.board import (
    ENSEMBLE,
    PLAIN,
    RECIPE,
    TEMPERATURE,
    VALIDATED,
    Board,
    Estimate,
    Reader,
    TaskInfo,
    auroc,
    average,
    figure,
    mean_over,
)
from benchmarks.quality.cells import mean_of
from benchmarks.quality.store import RESULTS
from benchmarks.quality.tasks import BY_NAME, TASKS
from benchmarks.quality.ways import WAYS
from benchmarks.tables import Table, markdown
from peewit.tuning.by_validation import CERTAIN

ROOT = Path(__file__).resolve().parents[2]
ENTROPY = auroc("entropy")
COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


@cache
def board() -> Board:
    return Board.read(RESULTS)


@cache
def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def flat(name: str) -> str:
    """A page with single spaces, so that lines may break anywhere."""
    return re.sub(r"\s+", " ", text_of(name))


def task(name: str) -> TaskInfo:
    return next(each for each in board().tasks if each.name == name)


def value(name: str, way: str, figure_name: str) -> float:
    """The mean of a figure over the splits; "auroc" is by entropy."""
    read = ENTROPY if figure_name == "auroc" else figure(figure_name)
    mean = mean_of(board(), task(name), way, read, None if figure_name == "auroc" else "whole")
    assert mean is not None
    return mean


def short(number: float, digits: int = 3) -> str:
    """As the pages write it: .277."""
    return f"{number:.{digits}f}".replace("0.", ".", 1) if abs(number) < 1 else f"{number:.{digits}f}"


def rows_of(table: Table) -> list[str]:
    return [line for line in markdown(table) if line.startswith("| ")]


def test_the_page_is_what_the_files_say() -> None:
    written = [line for line in text_of("docs/quality.md").splitlines() if not line.startswith("![")]
    expected = page.page(board()).splitlines()
    assert [line for line in written if line] == [line for line in expected if line]
    assert text_of("docs/quality_tables.md") == page.long_tables(board())


@pytest.mark.parametrize("network", ["resnet20", "resnet56"])
def test_the_table_of_the_readme(network: str) -> None:
    name, title = f"cifar10 {network}", f"ResNet-{network.removeprefix('resnet')}"
    for way, label in ((PLAIN, title), (RECIPE, f"{title} with `.tune(train=...)`")):
        cells = [short(value(name, way, each)) for each in ("nll", "ece", "auroc")]
        row = " | ".join(cells if way == PLAIN else [f"**{cell}**" for cell in cells])
        assert f"| {label} | {row} |" in text_of("README.md")
        lost = value(name, PLAIN, "accuracy") - value(name, RECIPE, "accuracy")
        assert lost <= 0.0025 and "Accuracy falls by at most .2 percentage points" in flat("README.md")


def test_sentences_of_the_readme() -> None:
    numbers = [short(value("cifar10 resnet56", TEMPERATURE, each)) for each in ("nll", "ece", "auroc")]
    assert f"takes ResNet-56 to {numbers[0]}, {numbers[1]} and {numbers[2]}" in flat("README.md")
    for name, way, words in (
        ("resnet20", TEMPERATURE, "ResNet-20 to {}, {} and {}"),
        ("resnet20", "laplace-torch", "laplace-torch's defaults with ResNet-20 ({}, {} and {})"),
        ("resnet56", "laplace-torch", "not with ResNet-56 ({}, {} and {})"),
    ):
        numbers = [short(value(f"cifar10 {name}", way, each)) for each in ("nll", "ece", "auroc")]
        assert words.format(*numbers) in flat("README.md")
    gaps = {way: goals.against_plain(board(), board().tasks, way) for way in (RECIPE, "laplace-torch")}
    better = {way: sum(gap.holds for gap in found) for way, found in gaps.items()}
    words = f"on {better[RECIPE]} of {len(board().tasks)} tasks (laplace-torch's defaults: {better['laplace-torch']})"
    assert words in flat("README.md")
    tables = linear_mode_below("linear mode")
    assert f"below that of the evidence at the trained weights on {tables} tasks" in flat("README.md")
    assert "its mean NLL is lower than that of temperature scaling and of the plain network" in flat("README.md")
    assert goals.nll_on_the_mean(board(), board().tasks).met
    assert "it notices unknown inputs better on most tasks" in flat("README.md")
    gaps = goals.detection(board(), board().tasks, VALIDATED, (PLAIN, TEMPERATURE))
    assert sum(gap.holds for gap in gaps) > 0.6 * len(gaps)


def test_tables_of_the_page_on_evidence() -> None:
    for table in (linear_mode.table(board()), batchnorm.table(batchnorm.read_results(batchnorm.RESULTS))):
        for row in rows_of(table):
            assert row in text_of("docs/evidence.md")
    off, runs = linear_mode.switched_off(board(), "linear mode, layerwise")
    assert flat("docs/evidence.md").count(f"in {off} of {runs} runs") == 2


def linear_mode_below(way: str) -> str:
    """On how many tasks of the table of docs/evidence.md the NLL of a way is below that of the evidence."""
    kinds = [linear_mode.measured(board(), name) for name in ("classification", "regression")]
    below = sum(int(linear_mode.below(board(), tasks, way)) for tasks in kinds)
    return f"{below} of {sum(map(len, kinds))}"


def test_rules_of_the_page_on_evidence() -> None:
    said, nll = flat("docs/evidence.md"), figure("nll")
    assert f"Without normalisation it was lower on {linear_mode_below('linear mode')} tasks" in said
    lower, tasks = linear_mode_below("linear mode, layerwise").split(" of ")
    assert f"worse than the evidence at the trained weights on {int(tasks) - int(lower)} of {tasks} tasks" in said
    classes = linear_mode.measured(board(), "classification")
    own = {each.name: difference_of(each, "linear mode, its own mean", "evidence") for each in classes}
    (lower_on,) = [name for name, gap in own.items() if gap < 0]
    assert lower_on == "trec" and f"nine of ten tasks; on TREC it was lower by {short(-own[lower_on])}" in said
    assert len(own) == 10
    gaps = {each.name: average(board().differences(each.name, RECIPE, "evidence", nll)) for each in classes}
    above = {name: gap for name, gap in gaps.items() if gap is not None and gap.mean > 0}
    assert sorted(above) == ["australian", "glass", "vehicle", "waveform"]
    assert [name for name, gap in above.items() if gap.mean < gap.error] == ["vehicle"]
    assert "(australian, glass, waveform; on vehicle by less than two standard errors)" in said


def difference_of(info: TaskInfo, way: str, base: str) -> float:
    """The NLL of a way less another one's, the mean over the splits."""
    difference = average(board().differences(info.name, way, base, figure("nll")))
    assert difference is not None
    return difference.mean


def test_sentences_of_the_page_on_structures() -> None:
    said = flat("docs/structures.md")
    both = [each for each in board().tasks if board().cases(each.name, "diagonal, evidence")]
    above = sum(difference_of(each, "diagonal, evidence", "evidence") > 0 for each in both)
    assert f"its NLL was above that of `kron` on {above} of the {len(both)} tasks" in said
    classes = [each for each in board().tasks if each.classes and board().cases(each.name, "last layer, validation")]
    gaps = [difference_of(each, "last layer, validation", VALIDATED) for each in classes if both_validated(each)]
    assert f"on the mean {short(statistics.fmean(gaps))} nats above all weights" in said
    numbers = [each.name for each in board().tasks if not each.classes]
    last, all_weights = (
        100 * statistics.fmean(value(name, way, "coverage") for name in numbers)
        for way in ("last layer, linear mode", RECIPE)
    )
    assert f"held {last:.0f} % of the test targets on the mean, and those of all weights {all_weights:.0f} %" in said


def both_validated(info: TaskInfo) -> bool:
    """Whether the last layer and all weights were tuned on validation data for some network."""
    return bool(board().differences(info.name, "last layer, validation", VALIDATED, figure("nll")))


def test_the_example_of_the_page_on_limits() -> None:
    ways = (PLAIN, "evidence", RECIPE, VALIDATED)
    plain, evidence, recipe, validated = (short(value("cifar10 resnet20", way, "nll"), 2) for way in ways)
    assert f"The NLL of the network is {plain}, by the evidence it is {evidence}" in flat("docs/limits.md")
    assert f"by `tune(train=...)` {recipe} and by `tune(validation=...)` {validated}" in flat("docs/limits.md")
    scores = [short(value("cifar10 resnet20", way, "auroc"), 2) for way in ways]
    assert f"(an AUROC of {scores[0]}, {scores[1]}, {scores[2]} and {scores[3]})" in flat("docs/limits.md")


@pytest.mark.parametrize("name", ["docs/limits.md", "docs/evidence.md"])
def test_how_far_the_recipe_is_above_the_network(name: str) -> None:
    """On the mean of a task, and in a single run."""
    assert max(gap.difference.mean for gap in goals.against_plain(board(), board().tasks)) <= 0.005
    said = f"on no task's mean more than .005 nats above the network, in a single run up to {largest_harm()}"
    assert said in flat(name), said


def largest_harm() -> str:
    """Of a run of the recipe without validation data, as the pages write it."""
    parts = []
    for kind, likelihood in (("numbers", "regression"), ("classes", "classification")):
        runs = goals.runs(board(), [each for each in board().tasks if each.likelihood == likelihood])
        worst = max(runs, key=lambda run: run.difference)
        parts.append(f"{short(worst.difference)} for {kind} ({worst.task})")
    return " and ".join(parts)


def test_intervals_of_the_page_on_limits() -> None:
    numbers = [each for each in board().tasks if not each.classes]
    held = {way: statistics.fmean(value(each.name, way, "coverage") for each in numbers) for way in (PLAIN, RECIPE)}
    validated = statistics.fmean(value(each.name, VALIDATED, "coverage") for each in numbers)
    said = flat("docs/limits.md")
    assert f"its 90 % intervals held {100 * held[RECIPE]:.0f} % of the test targets on the mean" in said
    assert f"residuals held {100 * held[PLAIN]:.0f} % on the mean" in said
    assert f"tuned on validation data {100 * validated:.0f} %" in said
    shares = [f"{100 * value(name, RECIPE, 'coverage'):.1f}".removesuffix(".0") for name in ("energy", "yacht")]
    assert f"On energy and yacht they held {shares[0]} and {shares[1]} %" in said
    ratios = [value(name, RECIPE, "width") / value(name, VALIDATED, "width") for name in ("energy", "yacht")]
    times = " and ".join(COUNTS[round(ratio)] for ratio in ratios)
    assert f"at {times} times the width" in said
    worse = [each.name for each in numbers if detected(each) < 0.5]
    assert f"four of the benchmark's nine tables of numbers ({', '.join(worse)})" in said


def test_findings_on_the_page() -> None:
    """What is written by hand on the page of the benchmark."""
    said = flat("benchmarks/quality/findings.md")
    nll = figure("nll")
    (miss,) = [gap for gap in goals.against_both(board(), board().tasks) if not gap.holds]
    sampled = average(board().differences("vehicle", "validation, mc", miss.base, nll))
    assert miss.task.name == "vehicle" and sampled is not None and sampled.mean <= goals.allowed(sampled)
    assert f"{signed(sampled.mean)} instead of {signed(miss.difference.mean)}" in said
    gaps = [
        gap.mean
        for each in board().tasks
        if each.classes and (gap := average(board().differences(each.name, "validation, mc", VALIDATED, nll)))
    ]
    assert f"On {sum(gap > 0 for gap in gaps)} of the {len(gaps)} tasks of classes" in said
    assert f"by {short(statistics.fmean(gaps))} nats on the mean of all {COUNTS[len(gaps)]}" in said
    runs = goals.runs(board(), board().tasks)
    assert not any(run.warnings for run in runs if run.worse) and "No run that got worse was warned" in said
    large = [run.task for run in runs if run.difference > sections.MUCH]
    assert f"all {len(large)} runs that got worse by .1 nats are of energy, yacht, boston and concrete" in said
    assert set(large) == {"energy", "yacht", "boston", "concrete"}
    assert all(run.improved for run in runs if run.warnings) and "it never came in a run that got worse" in said
    warned = [run for run in runs if run.warnings]
    gains = [board().differences(run.task, RECIPE, VALIDATED, nll)[run.key] for run in warned]
    assert f"in all {len(warned)} runs that it named" in said
    assert f"would have gained {short(min(gains), 1)} to {short(max(gains), 1)} nats" in said


def test_findings_on_the_least_precision() -> None:
    """Silent, since a warning would come in more than one of ten runs of numbers that improved."""
    said = flat("benchmarks/quality/findings.md")

    def at_least(chosen: list[goals.Warned]) -> list[goals.Warned]:
        records = [board().cases(run.task, VALIDATED)[run.key] for run in chosen]
        return [run for run, record in zip(chosen, records, strict=True) if record["settings"]["precision"] <= 0.05]

    runs = goals.runs(board(), board().tasks, VALIDATED)
    numbers = {each.name for each in board().tasks if not each.classes}
    groups = [
        [run for run in runs if run.improved and run.task not in numbers],
        [run for run in runs if run.improved and run.task in numbers],
        [run for run in runs if run.worse],
    ]
    counts = [(len(at_least(group)), len(group)) for group in groups]
    share = counts[1][0] / counts[1][1]
    words = "in {} of {} runs of classes that improved, but in {} of {} runs of numbers ({:.0f} %), and in {} of the {}"
    assert words.format(*counts[0], *counts[1], 100 * share, *counts[2]) in said, counts
    assert share > goals.WARNED


def test_findings_on_the_evidence_alone() -> None:
    said = flat("benchmarks/quality/findings.md")
    (row,) = [row for row in sections.warnings_by_way(board()).rows if row[0] == "evidence"]
    assert f"caught {row[2].rstrip('%')} % of the summed harm, and {row[3].replace('of', 'of the')} runs" in said
    assert f"it came in {row[4]} runs that improved" in said
    for way, label in WAYS_OUT.items():
        assert f"| {' | '.join((label, *way_out(way)))} |" in said
    classes = [each for each in board().tasks if each.classes]
    harmed = [run for run in out_of_warned("last layer, evidence") if run.difference > sections.MUCH]
    assert {run.task for run in harmed} <= {each.name for each in classes}
    assert "none for classes, where all of its harm of that size is" in said
    for way in (VALIDATED, RECIPE):  # those that the warning names
        assert int(way_out(way)[2]) < 0.05 * len(out_of_warned(way)), "a way out that does harm"


WAYS_OUT = {
    VALIDATED: "`tune(validation=...)`",
    RECIPE: "`tune(train=...)`",
    "last layer, evidence": '`weights="last_layer"` and `tune()`',
}


def test_findings_on_what_else_was_tried() -> None:
    said = flat("benchmarks/quality/findings.md")
    tasks = [each for each in board().tasks if board().cases(each.name, "largest variances, evidence")]
    names = ", ".join(sorted(each.name for each in tasks))
    assert f"on {COUNTS[len(tasks)]} tasks ({names.replace(', yacht', ' and yacht')}" in said
    gaps = {
        way: {gap.task.name: gap.difference.mean for gap in goals.against_plain(board(), tasks, way)}
        for way in WAYS
        if any(board().cases(each.name, way) for each in tasks)
    }
    classes = [each.name for each in tasks if each.classes]
    assert all(abs(gaps["evidence, prior at the weights"][name]) < 5e-4 for name in classes)
    cap = "evidence, dimensions at most {} N"
    ways = ("evidence, prior halfway to the weights", "evidence", cap.format(0.1), cap.format(0.5))
    half, alone, tenth, more = (short(gaps[way]["digits"], 2) for way in ways)
    assert f"takes the NLL of digits {half} nats above the network's" in said
    assert (
        f"is {alone} nats above the network, {tenth} with at most .1 of the number of labels, and {more} with .5"
        in said
    )
    above = {way: sorted(name for name, gap in of.items() if gap > 5e-4) for way, of in gaps.items()}
    assert above["largest variances, evidence"] == [] and f"on none of the {COUNTS[len(tasks)]}" in said
    weights, layers = (above[f"{way}, evidence"] for way in ("largest weights", "all but the last layer"))
    assert f"Over the largest weights it was on {COUNTS[len(weights)]} ({', '.join(weights)})" in said
    assert f"all but the last layer on the {COUNTS[len(layers)]} ({', '.join(layers)})" in said
    assert layers == above["evidence"]
    for way in ("last layer, recipe", "last layer kron, recipe"):
        assert max(gaps[way].values()) > 1000
    for way in (RECIPE, VALIDATED, "last layer kron, validation"):
        assert max(gaps[way].values()) < 0.01


@cache
def warned_by_evidence() -> dict[tuple[str, str], float]:
    """Runs that the evidence alone was warned in, with how far it is from the plain network."""
    runs = goals.runs(board(), board().tasks, "evidence")
    return {(run.task, run.key): run.difference for run in runs if run.warnings}


def out_of_warned(way: str) -> list[goals.Warned]:
    """The same runs by another way."""
    return [run for run in goals.runs(board(), board().tasks, way) if (run.task, run.key) in warned_by_evidence()]


def way_out(way: str) -> list[str]:
    """Cells of its row."""
    out = out_of_warned(way)
    lower = sum(run.difference < warned_by_evidence()[run.task, run.key] for run in out)
    harmed = [run for run in out if run.difference > sections.MUCH]
    silent = sum(not run.warnings for run in harmed)
    above = sum(run.worse for run in out)
    return [f"{lower} of {len(out)}", f"{above} of {len(out)}", str(len(harmed)), str(silent)]


@cache
def detection_gaps(way: str, mutual: bool = False) -> dict[str, goals.Gap]:
    """How far the AUROC is above the best of what the goal names, by task."""
    bases = (PLAIN, TEMPERATURE) if way == VALIDATED else (PLAIN,)
    return {gap.task.name: gap for gap in goals.detection(board(), board().tasks, way, bases, mutual)}


def test_findings_on_missed_detection() -> None:
    said = flat("benchmarks/quality/findings.md")
    gaps = {way: detection_gaps(way) for way in (VALIDATED, RECIPE)}
    counts, needed, classes, numbers, mutual = ([] for _ in range(5))
    for way, own in gaps.items():
        counts.append(held(list(own.values())))
        needed.append(math.ceil(goals.SHARE_AUROC * len(own) - 1e-9))
        assert sum(gap.holds for gap in own.values()) < needed[-1]
        classes.append(held([gap for gap in own.values() if gap.task.classes]))
        numbers.append(held([gap for gap in own.values() if not gap.task.classes]))
        mutual.append(held([*detection_gaps(way, True).values()]))
    assert f"and that of temperature scaling on {counts[0]} tasks, where four of five are {needed[0]}." in said
    assert f"above the plain network's on {counts[1]}, where four of five are {needed[1]}." in said
    assert f"({classes[0]} and {classes[1]}). Numbers do not ({numbers[0]} and {numbers[1]})" in said
    assert f"missed with {mutual[0]} and {mutual[1]} tasks" in said
    missed = [{name for name, gap in own.items() if not gap.holds} for own in gaps.values()]
    assert missed == [{*NO_TUNING_HELPS, "power", "subj"}, {*NO_TUNING_HELPS, "boston", "yacht", "subj"}]


NO_TUNING_HELPS = ("red wine", "diabetes", "kin8nm")


def held(gaps: list[goals.Gap]) -> str:
    return f"{sum(gap.holds for gap in gaps)} of {len(gaps)}"


def test_findings_on_why_detection_is_missed() -> None:
    said = flat("benchmarks/quality/findings.md")
    below = [-detection_gaps(way)[name].difference.mean for way in (VALIDATED, RECIPE) for name in NO_TUNING_HELPS]
    assert f"both recipes are {short(min(below))} to {short(max(below))} below chance" in said
    for name in NO_TUNING_HELPS:
        assert all(variance_auroc(name, way) < 0.5 for way in ("evidence", "dropout", unknown.PEER))
    ensemble = [variance_auroc(name, ENSEMBLE) for name in NO_TUNING_HELPS]
    assert f"no more than {short(min(ensemble))} to {short(max(ensemble))}" in said
    power = detection_gaps(VALIDATED)["power"].difference
    precisions = {way: sorted(left_out("power", way, "precision")) for way in (VALIDATED, RECIPE)}
    chosen = " and ".join(f"{each:,.0f}" for each in precisions[VALIDATED])
    assert power.splits == 1 and f"Validation data chose precisions of {chosen} there" in said
    assert all(round(each, -1) == 50 for each in precisions[RECIPE])
    assert f"the AUROC is {short(variance_auroc('power', VALIDATED))}. The recipe" in said
    assert f"has about 50 and an AUROC of {short(variance_auroc('power', RECIPE))}" in said
    gap = average(board().differences("power", VALIDATED, RECIPE, figure("nll")))
    assert gap is not None and gap.mean < gap.error
    assert f"it differs by {short(gap.mean)} ± {short(gap.error)} nats" in said
    some = [detection_gaps(RECIPE)[name].difference for name in ("boston", "yacht")]
    assert f"by {short(-some[0].mean)} and {short(-some[1].mean)}; on yacht" in said and -some[1].mean < some[1].error
    noises = [
        [short(statistics.median(left_out(name, way, "noise")), 2) for name in ("boston", "yacht")]
        for way in (RECIPE, VALIDATED)
    ]
    words = "(medians of {} and {} against {} and {})"
    assert words.format(*noises[0], *noises[1]) in said
    scores = [short(variance_auroc(name, VALIDATED)) for name in ("boston", "yacht")]
    assert f"With validation data the AUROC is {scores[0]} and {scores[1]}" in said
    subj = [detection_gaps(way)["subj"].difference for way in (VALIDATED, RECIPE)]
    assert f"Subj is missed by {short(-subj[0].mean)} and {short(-subj[1].mean)}" in said
    assert all(-each.mean < each.error and COUNTS[each.splits] == "three" for each in subj)


def variance_auroc(name: str, way: str) -> float:
    """Of the epistemic variance."""
    mean = unknown.detected(board(), task(name), way, "variance")
    assert mean is not None
    return mean


def left_out(name: str, way: str, setting: str) -> list[float]:
    """What was chosen for the networks that were trained without a range."""
    return [*board().values(name, way, lambda record: record["settings"].get(setting), "left out").values()]


LEAST, WITHIN_ERROR = "validation, least within 0.002", "validation, least within one error"


def test_findings_on_the_least_precision_that_is_as_good() -> None:
    said = text_of("benchmarks/quality/findings.md")
    tasks = [each for each in board().tasks if board().cases(each.name, LEAST)]
    for row in [row for each in tasks for row in least_rows(each)]:
        assert row in said, row
    assert f"on some splits of {COUNTS[len(tasks)]}" in flat("benchmarks/quality/findings.md")
    losses = {each.name: least_difference(each, figure("nll"), "whole") for each in tasks}
    assert all(gap.mean < 0 for gap in losses.values()) and f"lower on all {COUNTS[len(tasks)]}" in said
    assert [name for name, gap in losses.items() if -gap.mean > gap.error] == ["diabetes"]
    scored = [each for each in tasks if each.name != "breast cancer"]
    gaps = {
        each.name: [least_difference(each, auroc(score), None) for score in LEAST_SCORES[each.classes]]
        for each in scored
    }
    assert all(gap.mean > 0 for own in gaps.values() for gap in own)
    assert [name for name, own in gaps.items() if any(gap.mean > gap.error for gap in own)] == ["diabetes"]
    assert variance_auroc("diabetes", LEAST) < 0.5
    error = least_difference(task("breast cancer"), figure("nll"), "whole", WITHIN_ERROR)
    words = f"above that of the best, by {short(error.mean)} ± {short(error.error)}"
    assert words in flat("benchmarks/quality/findings.md")
    others = (least_difference(task(name), figure("nll"), "whole", WITHIN_ERROR) for name in ("digits", "diabetes"))
    assert all(gap.mean < 0 for gap in others)


LEAST_SCORES = {True: ("entropy", goals.MUTUAL), False: ("variance",)}


def least_rows(info: TaskInfo) -> list[str]:
    """Rows of a table: the NLL once, and a row for each score of unknown inputs."""
    nll = least_cells(info, figure("nll"), "whole")
    assert nll is not None
    scores = [(score, least_cells(info, auroc(score), None)) for score in LEAST_SCORES[info.classes]]
    known = [(score, cells) for score, cells in scores if cells is not None] or [("none", ["", "", ""])]
    starts = [[info.name, str(least_difference(info, figure("nll"), "whole").splits), *nll], [""] * 5]
    return [f"| {' | '.join((*starts[min(index, 1)], score, *cells))} |" for index, (score, cells) in enumerate(known)]


def least_difference(info: TaskInfo, read: Reader, variant: str | None, way: str = LEAST) -> Estimate:
    difference = average(board().differences(info.name, way, VALIDATED, read, variant=variant))
    assert difference is not None
    return difference


def least_cells(info: TaskInfo, read: Reader, variant: str | None) -> list[str] | None:
    """By the best precision and by the least one, in the same cases, and how far they are apart."""
    own = board().values(info.name, LEAST, read, variant)
    every = board().values(info.name, VALIDATED, read, variant)
    best = average({key: every[key] for key in own if key in every})
    least = average(own)
    if best is None or least is None:
        return None
    gap = least_difference(info, read, variant)
    return [short(best.mean), short(least.mean), f"{signed(gap.mean)} ± {short(gap.error)}"]


def test_findings_on_unknown_inputs() -> None:
    said = flat("benchmarks/quality/findings.md")
    better = [unknown.above(board(), ENSEMBLE, way) for way in (VALIDATED, RECIPE)]
    assert f"on {better[0][0]} of {better[0][1]} tasks, and above that of the recipe without on {better[1][0]}." in said
    numbers, classes = (unknown.compared(board(), each) for each in ("regression", "classification"))
    ways = (ENSEMBLE, unknown.PEER, VALIDATED, RECIPE)
    for way in (VALIDATED, RECIPE):
        assert all(unknown.detected(board(), each, way, "variance") < rival for each, rival in rivals(numbers))
    assert len(numbers) == 9 and "above both recipes on all nine tables" in said
    first = [short(mean_over(board(), numbers, (way,), auroc("variance"), None)[way]) for way in ways]
    assert f"its AUROC is {first[0]} and that of laplace-torch {first[1]}, while our recipes have {first[2]}" in said
    assert f"with validation data and {first[3]} without" in said
    worse = [each.name for each in numbers if detected(each) < 0.5]
    assert f"on {COUNTS[len(worse)]} tables ({', '.join(worse)})" in said
    ways = (VALIDATED, RECIPE, ENSEMBLE, unknown.PEER, PLAIN, "evidence")
    second = [short(mean_over(board(), classes, (way,), ENTROPY, None)[way]) for way in ways]
    assert f"over {len(classes)} tasks, the recipes have {second[0]} with validation data and {second[1]}" in said
    assert f"the ensemble {second[2]}, laplace-torch {second[3]} and the plain network {second[4]}" in said
    counts = [
        sum(value(each.name, way, "auroc") > value(each.name, ENSEMBLE, "auroc") for each in classes)
        for way in (VALIDATED, RECIPE)
    ]
    assert f"above the ensemble on {counts[0]} of the {len(classes)}, the one without on {counts[1]}" in said
    harm = [
        gap.mean
        for each in classes
        if (gap := average(board().differences(each.name, "evidence", PLAIN, figure("nll"), training="early")))
    ]
    assert f"has the highest AUROC for classes, {second[5]}" in said and second[5] == max(second)
    assert f"on {sum(gap > 0 for gap in harm)} of these {len(classes)} tasks its NLL is above" in said
    assert f"by up to {short(max(harm), 1)} nats" in said


def test_scores_of_the_page_on_unknown_inputs() -> None:
    """Entropy or `pred.epistemic`, from the same files."""
    said = flat("docs/unknown_inputs.md")
    bases = {RECIPE: (PLAIN,), VALIDATED: (PLAIN, TEMPERATURE)}
    counts, lower, higher, means, most = {}, {}, {}, {}, 0.0
    for way, others in bases.items():
        by_entropy, by_mutual = (
            [gap for gap in goals.detection(board(), board().tasks, way, others, mutual) if gap.task.classes]
            for mutual in (False, True)
        )
        counts[way] = f"{sum(gap.holds for gap in by_entropy)} of {len(by_entropy)}"
        (miss,) = [gap for gap in by_entropy if not gap.holds]
        assert miss.task.name == "subj" and -miss.difference.mean < miss.difference.error
        most = max(most, -miss.difference.mean)
        lower[way] = f"{sum(not gap.holds for gap in by_mutual)} of {len(by_mutual)}"
        scores = [
            [unknown.detected(board(), gap.task, way, score) or 0.0 for score in (goals.MUTUAL, "entropy")]
            for gap in by_mutual
        ]
        higher[way] = f"{sum(mutual > entropy for mutual, entropy in scores)} of {len(scores)}"
        means[way] = " against ".join(short(statistics.fmean(column)) for column in zip(*scores, strict=True))
    assert f"above the network's on {counts[RECIPE]} tasks with `tune(train=...)`" in said
    assert f"on {counts[VALIDATED]} with `tune(validation=...)` above the network and temperature scaling" in said
    assert f"the exception, subj, is below by {short(most)} at most, less than two standard errors" in said
    assert f"on {higher[RECIPE]} tasks with `tune(train=...)` ({means[RECIPE]} on the mean)" in said
    assert f"on {higher[VALIDATED]} with `tune(validation=...)` ({means[VALIDATED]})" in said
    assert f"own entropy on {lower[RECIPE]}, and below the better of both on {lower[VALIDATED]}" in said
    numbers = unknown.compared(board(), "regression", (*bases, ENSEMBLE))
    own = {way: [unknown.detected(board(), each, way, "variance") or 0.0 for each in numbers] for way in bases}
    above = [f"{sum(score > 0.5 for score in scores)} of {len(numbers)}" for scores in own.values()]
    assert f"above chance on {above[0]} tables with `tune(train=...)`" in said
    assert f"and on {above[1]} with `tune(validation=...)`" in said
    assert all(rival > max(column) for (_, rival), *column in zip(rivals(numbers), *own.values(), strict=True))
    first = short(statistics.fmean(rival for _, rival in rivals(numbers)))
    second, third = (short(statistics.fmean(scores)) for scores in own.values())
    assert f"on {len(numbers)} of {len(numbers)} tables ({first} on the mean, against {second} and {third})" in said


def test_scores_where_validation_data_chose_the_network() -> None:
    """No uncertainty of the weights: what is left of the epistemic part is rounding."""
    said = flat("docs/unknown_inputs.md")
    classes, numbers = (certain_runs(likelihood) for likelihood in ("classification", "regression"))
    mutual = short(statistics.fmean(scores[goals.MUTUAL] for _, scores in classes), 2)
    assert (
        f"In {len(classes)} such runs of classes on the benchmark, the AUROC of `pred.epistemic` was {mutual}" in said
    )
    digits = [scores for name, scores in classes if name == "digits"]
    entropy, mutual = (
        short(statistics.fmean(scores[name] for scores in digits), 2) for name in ("entropy", goals.MUTUAL)
    )
    assert f"on digits the entropy had {entropy} and `pred.epistemic` {mutual}" in said
    variance = short(statistics.fmean(scores["variance"] for _, scores in numbers), 2)
    assert f"In {len(numbers)} runs of numbers it was {variance}" in said


def certain_runs(likelihood: str) -> list[tuple[str, dict[str, float]]]:
    """Tasks with the AUROC of each score, of the runs in which validation data chose no epistemic variance."""
    found = []
    for each in (each for each in board().tasks if each.likelihood == likelihood):
        for record in board().cases(each.name, VALIDATED).values():
            if "failure" not in record and record["unknown"] and record["settings"]["precision"] > 0.9 * CERTAIN:
                scores = [*record["unknown"].values()]
                means = {name: statistics.fmean(values[name] for values in scores) for name in scores[0]}
                found.append((each.name, means))
    return found


def rivals(tasks: list[TaskInfo]) -> list[tuple[TaskInfo, float]]:
    """Tasks with the AUROC of the ensemble."""
    return [(each, mean) for each in tasks if (mean := unknown.detected(board(), each, ENSEMBLE, "variance"))]


def test_what_was_measured() -> None:
    """The files hold the first splits of all tasks, but for those that are measured only by name."""
    assert {each.name for each in board().tasks} == {each.name for each in TASKS if not each.by_name}
    for each in board().tasks:
        counts = {int(key.rsplit("/", 1)[1]) for key in board().cases(each.name, PLAIN)}
        assert counts == set(range(len(counts))) and len(counts) <= BY_NAME[each.name].splits
        two = (
            each.kind != "image"
            and each.classes
            and not any("left out" in key for key in board().cases(each.name, PLAIN))
        )
        assert two == (each.name in measured.TWO_CLASSES)


def test_findings_on_signals_of_harm() -> None:
    said = flat("benchmarks/quality/findings.md")
    numbers, classes = (
        {row[0]: row for row in harm.signal_table(harm.read_results(harm.RESULTS), each, "").rows}
        for each in (harm.NUMBERS, harm.CLASSES)
    )
    several = "noise over the targets' deviation"
    caught = {name: float(re.search(r"\((\d+)%\)", row[4])[1]) for name, row in numbers.items()}  # type: ignore[index]
    assert all(share < 10 for name, share in caught.items() if name != several) and caught[several] > 10
    assert float(numbers[several][6].rstrip("%")) > 10 and "none of them](#what-training" in said.replace(
        "[none", "none"
    )
    assert float(numbers["noise over residuals"][-1]) > 0.95
    few = classes["effective dimensions per label"]
    assert few[1] == "low" and float(re.search(r"\((\d+)%\)", few[4])[1]) > 50 and few[5].startswith("0 of ")  # type: ignore[index]


def signed(number: float) -> str:
    """As the pages write it: +.012."""
    return f"{number:+.3f}".replace("0.", ".", 1)


def detected(info: TaskInfo) -> float:
    """The AUROC of the variance, tuned on validation data."""
    mean = mean_of(board(), info, VALIDATED, auroc("variance"), None)
    assert mean is not None
    return mean


def online_differences(way: str, training: str | None = None) -> dict[str, Estimate]:
    """By task: the NLL of training with online evidence less a way's."""
    found = {
        each.name: average(board().differences(each.name, goals.ONLINE, way, figure("nll"), training=training))
        for each in board().tasks
    }
    return {name: estimate for name, estimate in found.items() if estimate is not None}


def test_findings_on_training_with_online_evidence() -> None:
    said = flat("benchmarks/quality/findings.md").partition("**Trained with online evidence.**")[2]
    plain, scaled, recipe = (online_differences(way) for way in (PLAIN, TEMPERATURE, RECIPE))
    above = [name for name, each in scaled.items() if not (each.mean <= goals.EQUAL or each.mean <= each.error)]
    assert above == ["energy", "power", "protein"]
    assert f"On {len(plain)} tables" in said and f"on {len(above)} of the {len(scaled)}" in said
    below = sum(each.mean < 0 for each in plain.values())
    assert f"below the plain network's on {below}, one fewer than the goal" in said
    assert math.ceil(0.9 * len(plain)) == below + 1
    much = [sum(each.mean < -0.1 for each in found.values()) for found in (plain, recipe)]
    assert f"by .1 nats and more on {much[0]} of the {len(plain)} tables, and below the recipe's by as much on" in said
    assert f"as much on {much[1]}." in said
    early = online_differences(TEMPERATURE, "early")
    worse = [name for name, each in early.items() if each.mean > each.error]
    assert set(worse) == {"glass", "waveform", "energy"} and "on glass, waveform and energy." in said
    assert f"are above its NLL on {sum(each.mean < 0 for each in early.values())} tables" in said
    decays = online_differences("weight decay, temperature")
    fewer = sum(each.mean < 0 for each in decays.values())
    assert f"of {len(decays)} tables it is below them on {fewer}, by up to .07 nats" in said
    assert f"above on {len(decays) - fewer}, by {short(decays['energy'].mean, 2)} on energy and" in said
    assert f"{short(decays['yacht'].mean, 2)} on yacht" in said
    assert f"missed by {short(scaled['power'].mean)} and {short(scaled['protein'].mean)} nats" in said
    assert f"here {short(plain['wine'].mean)} nats" in said
    ratios = [float(row[2]) for row in online.times(board(), [task(name) for name in plain]).rows]
    assert f"takes {min(ratios)} to {max(ratios)} times the seconds" in said
