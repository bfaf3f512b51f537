"""The measurements as tables, for a terminal and for a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table as RichTable

from benchmarks.goals import GOALS, OURS, PEER, Goal, growth, measure_seconds, over_counted, per_input, time_slope
from benchmarks.journal import Record, Run

Row = tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """A heading, the names of the columns, and rows."""

    title: str
    columns: Row
    rows: tuple[Row, ...]


def number(value: float | None) -> str:
    """Three significant digits without an exponent; empty for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def gibibytes(record: Record) -> str:
    """The allocator's peak where the device has one, else the growth of the process."""
    return f"{(record['peak_bytes'] or record['extra_bytes']) / 2**30:.2f}"


def mebibytes(value: float) -> str:
    return number(value / 2**20)


def seconds(time: dict[str, Any]) -> str:
    """The median with its spread, or a mark where there was one repeat only."""
    if time["repeats"] == 1:
        return f"{number(time['median'])} (1 run)"
    return f"{number(time['median'])} ± {time['spread']:.1g}"


def by_network(runs: Sequence[Run], section: str) -> Iterator[tuple[Run, str, list[Record]]]:
    """The records of a section: of each network in turn, of each precision in turn."""
    names = dict.fromkeys(each["network"] for run in runs for each in run.find(section=section) if "network" in each)
    for name in names:
        for run in runs:
            found = run.find(section=section, network=name)
            if found:
                yield run, run.header["precision"], found


def fit_table(runs: Sequence[Run]) -> Table:
    """Plain passes and fits of all weights."""
    columns = ("network", "N", "precision", "fit", "seconds", "without eigh", "× fwd+bwd", "× counted operations")
    rows: list[Row] = []
    for _, precision, found in by_network(runs, "fits"):
        theirs = {each["curvature"]: each for each in found if each.get("library") == PEER and "time" in each}
        for record in found:
            start = titles(record, precision)
            name = fit_name(record)
            if "time" not in record:
                rows.append((*start, name, record["failure"], "", "", "", "", ""))
                continue
            own = measure_seconds(record)
            unit = record.get("unit_seconds")
            beside = theirs.get(record.get("curvature", ""))
            comparable = beside is not None and record.get("structure") == "kron"
            rows.append(
                (
                    *start,
                    name,
                    seconds(record["time"]),
                    # An eigenvalue-corrected fit decomposes in the middle of it.
                    number(own) if "decompositions" in record and record.get("structure") != "ekfac" else "",
                    number(own / unit) if unit and own is not None else "1" if record["library"] == "torch" else "",
                    number(over_counted(record)),
                    number(beside["time"]["median"] / record["time"]["median"]) if beside and comparable else "",
                    gibibytes(record),
                )
            )
    return Table("Fits", (*columns, f"{PEER} / this", "peak GiB"), tuple(rows))


def titles(record: Record, precision: str) -> Row:
    """Network, examples and precision."""
    return (f"{record['title']} ({record['parameters'] / 1e6:.2g}M)", f"{record['examples']:,}", precision)


def fit_name(record: Record) -> str:
    """The structure, weights and curvature of a fit."""
    if record["library"] == "torch":
        return str(record["task"])
    return f"{record['library']}, {record['structure']}, {record['curvature']}"


def predictive_table(runs: Sequence[Run]) -> Table:
    """Inputs per second at the best batch."""
    columns = ("network", "precision", "predictive", "inputs/s", "at batch", "at batch 1, ms", "MiB per input")
    rows: list[Row] = []
    for _, precision, found in by_network(runs, "predictives"):
        theirs = next((each["best"] for each in found if each["library"] == PEER and "best" in each), None)
        for record in found:
            start = (record["title"], precision, record["library"])
            if "best" not in record:
                rows.append((*start, record["failure"], "", "", "", "", "", ""))
                continue
            best, last = record["best"], record["points"][-1]
            single = next((each for each in record["points"] if each["batch"] == 1 and "time" in each), None)
            stopped = f"{last['failure']} at batch {last['batch']}" if "failure" in last else ""
            rows.append(
                (
                    *start,
                    number(best["per_second"]),
                    str(best["batch"]),
                    number(1000 * single["time"]["median"]) if single else "",
                    mebibytes(per_input(best)),
                    number(best["per_second"] / theirs["per_second"]) if theirs else "",
                    number(per_input(theirs) / per_input(best)) if theirs and per_input(best) > 0 else "",
                    "; ".join(filter(None, (stopped, record.get("note", "")))),
                )
            )
    more = (f"inputs/s over {PEER}'s", f"{PEER}'s memory over this", "note")
    return Table("Predictives", (*columns, *more), tuple(rows))


def single_table(runs: Sequence[Run]) -> Table:
    """Latencies at batch one."""
    columns = ("network", "uncertain", "precision", "way", "median, ms", "90 %", "99 %", "calls", "× forward pass")
    rows: list[Row] = []
    for _, precision, found in by_network(runs, "single"):
        for record in found:
            start = (record["title"], record["weights"].replace("_", " "), precision)
            if "ways" not in record:
                rows.append((*start, record["failure"], *[""] * 6))
                continue
            ways = record["ways"]
            forward, theirs = ways["forward pass"]["p50"], ways.get(PEER, {}).get("p50")
            for name, own in ways.items():
                if "failure" in own:
                    rows.append((*start, name, own["failure"], *[""] * 5))
                    continue
                cells = [number(1000 * own[key]) for key in ("p50", "p90", "p99")]
                ratio = number(theirs / own["p50"]) if theirs and name != "forward pass" else ""
                rows.append((*start, name, *cells, str(own["repeats"]), number(own["p50"] / forward), ratio))
    where = "" if any(run.header["device"] == "cuda" for run in runs) else ", on the CPU"
    return Table(f"One input at a time{where}", (*columns, f"{PEER} / this"), tuple(rows))


def diagonal_table(runs: Sequence[Run]) -> Table:
    """Diagonal fits."""
    columns = ("network", "N", "precision", "fit", "seconds", "× fwd+bwd", "× counted operations", "peak GiB")
    rows: list[Row] = []
    for _, precision, found in by_network(runs, "diag"):
        for record in found:
            start = (*titles(record, precision), fit_name(record))
            if "time" not in record:
                rows.append((*start, record["failure"], "", "", ""))
                continue
            unit = record.get("unit_seconds")
            ratio = number(record["time"]["median"] / unit) if unit else ""
            rows.append((*start, seconds(record["time"]), ratio, number(over_counted(record)), gibibytes(record)))
    return Table("Diagonal fits", columns, tuple(rows))


def last_table(runs: Sequence[Run]) -> Table:
    """Fits of the last layer, and variances beside a forward pass."""
    columns = ("network", "outputs", "precision", "fit", "fit, seconds", "variances, ms", "batch", "× forward pass")
    rows: list[Row] = []
    for _, precision, found in by_network(runs, "last"):
        for record in found:
            start = (record["title"], f"{record['classes']:,}", precision, fit_name(record))
            if "time" not in record:
                rows.append((*start, record["failure"], "", "", "", ""))
                continue
            inner = record["variances"]
            if "failure" in inner:
                rows.append((*start, seconds(record["time"]), inner["failure"], "", "", ""))
                continue
            own, plain = inner["time"]["median"], inner["forward"]["time"]["median"]
            cells = (number(1000 * own), str(inner["batch"]), number(own / plain), mebibytes(inner["extra_bytes"]))
            rows.append((*start, seconds(record["time"]), *cells))
    return Table("The last layer alone", (*columns, "MiB of variances"), tuple(rows))


def tuning_table(runs: Sequence[Run]) -> Table:
    """Times of choosing the prior precision."""
    columns = ("network", "precision", "library", "seconds", "prior precision found", f"{PEER} / this")
    rows: list[Row] = []
    for _, precision, found in by_network(runs, "tuning"):
        theirs = next((each["time"]["median"] for each in found if each["library"] == PEER and "time" in each), None)
        for record in found:
            start = (record["title"], precision, record["library"])
            if "time" not in record:
                rows.append((*start, record["failure"], "", ""))
                continue
            ratio = number(theirs / record["time"]["median"]) if theirs else ""
            rows.append((*start, seconds(record["time"]), number(record["precision"]), ratio))
    return Table("Tuning the prior by the evidence", columns, tuple(rows))


def learning_table(runs: Sequence[Run]) -> Table:
    """Training with hyper-steps over plain training."""
    columns = (
        "network",
        "N",
        "precision",
        "way",
        "an epoch",
        "a hyper-step",
        "of it eigh",
        "every",
        "× plain",
        "memory",
    )
    rows: list[Row] = []
    for _, precision, found in by_network(runs, "learning"):
        for record in found:
            start = (*titles(record, precision), record["way"])
            if "time" not in record:
                rows.append((*start, "", record["failure"], "", "", "", ""))
                continue
            memory = "" if record["memory"] is None else f"× {record['memory']:.2f}"
            rows.append(
                (
                    *start,
                    f"{record['epoch_seconds']:.3g} s",
                    f"{record['time']['median']:.3g} s",
                    f"{record['decomposing']:.0%}",
                    f"{record['every']} epochs" if record["every"] > 1 else "epoch",
                    f"{record['ratio']:.2f}",
                    memory,
                )
            )
    return Table("Learning hyperparameters while training", columns, tuple(rows))


def linear_table(runs: Sequence[Run]) -> Table:
    """The mode of the linear model: what so many products reach in one solve, and in tuning."""
    columns = ("network", "N", "precision", "what", "products", "decrement, nats", "largest error of a log precision")
    rows: list[Row] = []
    for _, precision, found in by_network(runs, "linear"):
        for record in found:
            start = titles(record, precision)
            if "points" not in record:
                rows.append((*start, record["failure"], "", "", ""))
                continue
            rows += [
                (
                    *start,
                    f"one solve from {point['start']}",
                    number(point["products"]),
                    f"{point['decrement']:.2g}",
                    f"{point['precision_error']:.2g}",
                )
                for point in record["points"]
            ]
            own = record["tuning"]
            words = f"tuning, {own['turns']} solves, {number(own['seconds'])} s"
            rows.append((*start, words, number(own["products"]), "", f"{own['precision_error']:.2g}"))
    return Table("The mode of the linear model", columns, tuple(rows))


def agreement_table(runs: Sequence[Run]) -> Table:
    """How far peewit is from its references."""
    columns = (
        "network",
        "precision",
        "fit",
        "beside",
        "variances differ by",
        "log evidence",
        "beside it",
        "differs by",
    )
    rows: list[Row] = []
    for _, precision, found in by_network(runs, "agreement"):
        for record in found:
            fitted = f"{record.get('structure', '')}, {record.get('weights', '')}" if "structure" in record else ""
            start = (record["title"], precision, fitted, record["reference"])
            if "failure" in record:
                rows.append((*start, record["failure"], "", "", "", ""))
                continue
            rows.append(
                (
                    *start,
                    f"{record['variance_difference']:.1e}",
                    f"{record['evidence']:,.3f}",
                    f"{record['reference_evidence']:,.3f}",
                    f"{record['evidence_difference']:.1e}",
                    "yes" if record["agrees"] else "**no**",
                )
            )
    return Table("Agreement", (*columns, "within 1e-3"), tuple(rows))


def growth_table(runs: Sequence[Run]) -> Table:
    """Slopes of the curves: 1 is linear."""
    rows: list[Row] = []
    for run in runs:
        found = run.find(section="growth")
        kinds = dict.fromkeys(
            (each["axis"], each["task"], each["library"], each["curvature"])
            for each in found
            if each.get("task") in ("fit", "predictive") and each.get("axis") != "memory"
        )
        for axis, task, library, curvature in kinds:
            points = growth(run, axis, task, library, curvature)
            if len(points) < 2:
                continue
            fitted = time_slope(run, axis, task=task, library=library, curvature=curvature)
            ends = [f"{each['size']:,}" for each in (points[0], points[-1])]
            times = [number(1000 * each["time"]["median"]) for each in (points[0], points[-1])]
            memory = [mebibytes(each["extra_bytes"]) for each in (points[0], points[-1])]
            head = (run.header["precision"], axis, f"{library}, {task}" + (f", {curvature}" if task == "fit" else ""))
            rows.append((*head, " to ".join(ends), " to ".join(times), f"{fitted:.2f}", " to ".join(memory)))
    columns = ("precision", "growing", "curve", "sizes", "ms", "slope of time", "MiB")
    return Table("Growth", columns, tuple(rows))


def failure_table(runs: Sequence[Run]) -> Table:
    """Sections that ended early."""
    rows = [
        (run.header["precision"], each["section"], each["failure"])
        for run in runs
        for each in run.records
        if "failure" in each and "network" not in each and "axis" not in each
    ]
    return Table("Sections that failed", ("precision", "section", "why"), tuple(rows))


def goal_table(runs: Sequence[Run], goals: Sequence[Goal] = GOALS) -> Table:
    """Every goal that this machine measured something of, with a column for each precision."""
    rows: list[Row] = []
    before = ""
    for goal in goals:
        outcomes = [goal.outcome(run) if goal.concerns(run) else None for run in runs]
        if all(outcome is None or outcome.met is None for outcome in outcomes):
            continue
        words = ["" if outcome is None else outcome.words for outcome in outcomes]
        rows.append((goal.what if goal.what != before else "", goal.case, goal.words, *words))
        before = goal.what
    return Table("Goals", ("what", "of", "goal", *[run.header["precision"] for run in runs]), tuple(rows))


MAKERS = (
    fit_table,
    predictive_table,
    single_table,
    diagonal_table,
    last_table,
    tuning_table,
    learning_table,
    linear_table,
    agreement_table,
    growth_table,
    failure_table,
)


MAIN = (predictive_table, single_table)  # beside the goals on the page that readers open


def tables(runs: Sequence[Run]) -> list[Table]:
    """The tables of the sections that were measured."""
    return [table for table in (make(runs) for make in MAKERS) if table.rows]


def main_tables(runs: Sequence[Run]) -> list[Table]:
    """Those that readers ask for first."""
    return [table for table in (make(runs) for make in MAKERS if make in MAIN) if table.rows]


def other_tables(runs: Sequence[Run]) -> list[Table]:
    """All others."""
    return [table for table in (make(runs) for make in MAKERS if make not in MAIN) if table.rows]


def thinned(rows: Sequence[Row], columns: int = 3) -> list[Row]:
    """Rows whose first cells are left empty where they repeat the row above."""
    made: list[Row] = []
    before: Row = ()
    for row in rows:
        same = 0
        while same < min(columns, len(before)) and row[same] == before[same]:
            same += 1
        made.append(("",) * same + row[same:])
        before = row
    return made


def heading(run: Run) -> str:
    """The machine and how it was used."""
    header = run.header
    quick = ", quick run: too few data to judge by" if header["quick"] else ""
    return f"{header['machine']}, torch {header['torch']}, batches of {header['batch_size']}{quick}"


def show(run: Run, console: Console) -> None:
    """Print all tables of a run."""
    for table in (*tables([run]), goal_table([run])):
        printed = RichTable(title=f"{table.title}: {heading(run)}", title_justify="left")
        for column in table.columns:
            printed.add_column(column, overflow="fold")
        for row in thinned(table.rows):
            printed.add_row(*[escape(cell.replace("**", "")) for cell in row])
        console.print(printed)


def markdown(table: Table, level: str = "###") -> list[str]:
    """The lines of a page."""
    lines = [f"{level} {table.title}", "", "| " + " | ".join(table.columns) + " |", "|" + "---|" * len(table.columns)]
    # A bar in a reported error must not open a new cell.
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in thinned(table.rows)]
    return [*lines, ""]


NOTES = (
    "Seconds are medians with half the range, by CUDA events on a GPU; data are on the device before the clock starts.",
    "Fits include the eigendecompositions; the column beside and the ratios after it leave them out.",
    f"peewit fits all weights; {PEER} those of Linear and Conv2d, the others frozen, since it refuses them.",
    f"{OURS}'s exact fits use the exact GGN; MC(1) is the Monte Carlo Fisher with one sample.",
    "Counted operations: one forward pass, a backward pass per probe with respect to layer outputs, and both factors, "
    "from the shapes of Linear and Conv layers, at the rate of the plain pass.",
    "Predictives are (N, C, C) functional covariances at the best of several batch sizes.",
    "One input at a time: from an input on the device to probabilities on the device, by the wall clock, until the "
    "device is done; all ways by turns.",
    "Peak memory is the allocator's on a GPU, model and data included; on a CPU the growth of the process, sampled. "
    "Memory per input is what a call takes beyond what was held before.",
)
