"""The measurements as tables, for a terminal and for a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

PEER = "laplace-torch"
FIT_COLUMNS = ("network", "N", "fit", "seconds", "without eigh", "× fwd+bwd", f"{PEER} / this", "peak GiB")
PREDICTION_COLUMNS = ("network", "predictive", "inputs/s", "at batch", "peak GiB", f"this / {PEER}", "stopped by")


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def gibibytes(value: int) -> str:
    return f"{value / 2**30:.2f}"


def seconds(time: dict[str, Any]) -> str:
    """The median with its spread, or a mark where there was one repeat only."""
    if time["repeats"] == 1:
        return f"{number(time['median'])} (1 run)"
    return f"{number(time['median'])} ± {time['spread']:.1g}"


def fit_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row for the plain pass and one per fit."""
    baseline = result["forward_backward"]
    title = f"{result['title']} ({result['parameters'] / 1e6:.2g}M)"
    rows = [(title, f"{result['examples']:,}", "forward and backward", seconds(baseline), "", "1", "", "")]
    theirs = result["fits"].get(PEER, {}).get("time")
    for name, fit in result["fits"].items():
        if "failure" in fit:
            rows.append(("", "", name, fit["failure"], "", "", "", ""))
            continue
        median = fit["time"]["median"]
        decompositions = fit.get("decompositions")
        rows.append(
            (
                "",
                "",
                name,
                seconds(fit["time"]),
                number(median - decompositions["median"]) if decompositions else "",
                number(median / baseline["median"]),
                number(theirs["median"] / median) if theirs else "",
                gibibytes(fit["peak_bytes"]),
            )
        )
    return rows


def prediction_rows(result: dict[str, Any]) -> list[tuple[str, ...]]:
    """One row per library, at its best batch size."""
    rows = []
    theirs = result["predictions"].get(PEER, {}).get("best")
    for index, (name, prediction) in enumerate(result["predictions"].items()):
        title = result["title"] if index == 0 else ""
        if "best" not in prediction:
            rows.append((title, name, prediction["failure"], "", "", "", ""))
            continue
        best, last = prediction["best"], prediction["points"][-1]
        stopped = f"{last['failure']} at batch {last['batch']}" if "failure" in last else ""
        ratio = number(best["per_second"] / theirs["per_second"]) if theirs else ""
        rows.append(
            (title, name, number(best["per_second"]), str(best["batch"]), gibibytes(best["peak_bytes"]), ratio, stopped)
        )
    return rows


def agreement_line(result: dict[str, Any]) -> str:
    """How far the two libraries are apart on the same weights."""
    outcome = result["agreement"]
    if "failure" in outcome:
        return f"{result['title']}: functional covariances not compared ({outcome['failure']})"
    difference = outcome["relative_difference"]
    return f"{result['title']}: functional covariances of {PEER} and lapwing differ by {difference:.1e} (relative)"


def heading(report: dict[str, Any]) -> str:
    quick = ", quick run: too few data to judge by" if report["quick"] else ""
    return (
        f"{report['machine']}, torch {report['torch']}, {report['precision']}, {report['classes']} outputs, "
        f"batches of {report['batch_size']}{quick}"
    )


def notes(report: dict[str, Any]) -> list[str]:
    """What the columns mean."""
    on_gpu = report["device"] == "cuda"
    peak = "the allocator's, model and data included" if on_gpu else "growth of the process, sampled"
    return [
        "Seconds are medians with half the range; data are on the device before the clock starts.",
        "Fits include the eigendecompositions; the column beside leaves them out, where they are known.",
        f"lapwing fits all weights; {PEER} fits those of Linear and Conv2d, the others frozen, since it refuses them.",
        f"Predictives are full (N, C, C) functional covariances. Peak memory: {peak}.",
    ]


def show(report: dict[str, Any], console: Console) -> None:
    """Print the tables."""
    for title, columns, make_rows in (
        ("Fits", FIT_COLUMNS, fit_rows),
        ("Predictives", PREDICTION_COLUMNS, prediction_rows),
    ):
        table = Table(title=f"{title}: {heading(report)}", title_justify="left")
        for column in columns:
            table.add_column(column, overflow="fold")
        for result in report["results"]:
            for row in make_rows(result):
                table.add_row(*[escape(cell) for cell in row])
            table.add_section()
        console.print(table)
    for result in report["results"]:
        console.print(agreement_line(result), highlight=False, markup=False)
    for line in notes(report):
        console.print(line, style="dim", highlight=False)


def markdown_table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    # A bar in a reported error must not open a new cell.
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return lines


def write_markdown(report: dict[str, Any], path: Path) -> None:
    """Write the tables as a page."""
    results = report["results"]
    lines = ["# Speed", "", f"{heading(report)}.", "", *[f"- {line}" for line in notes(report)], "", "## Fits", ""]
    lines += markdown_table(FIT_COLUMNS, [row for result in results for row in fit_rows(result)])
    lines += ["", "## Predictives", ""]
    lines += markdown_table(PREDICTION_COLUMNS, [row for result in results for row in prediction_rows(result)])
    lines += ["", "## Agreement", "", *[f"- {agreement_line(result)}" for result in results], ""]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines), encoding="utf-8")
