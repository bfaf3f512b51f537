"""The page and its figures from the files alone: `python -m benchmarks.quality.page --markdown docs/quality.md`.

A second page beside it, `quality_tables.md`, has the long tables.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.quality import by_task, harm, measured, online, overview, sections, unknown
from benchmarks.quality.batchnorm import read_results
from benchmarks.quality.board import Board
from benchmarks.quality.cells import halves
from benchmarks.quality.goals import GOALS
from benchmarks.quality.store import RESULTS
from benchmarks.tables import Table, markdown

FINDINGS = Path(__file__).with_name("findings.md")  # written by hand
TABLES = "quality_tables.md"  # the second page
LONG = ("What was tried", "Other figures", "Stopping data instead of validation data", "Cost", "What was measured",
        "By task")  # fmt: skip
ALL = """# Quality: ways, cost and tasks

The long tables of [quality of predictions](quality.md), which says what the ways are and how all of it was measured.
"""
WORDS = {True: "met", False: "**missed**", None: ""}
INTRODUCTION = """# Quality of predictions

Do predictions get better, on real tasks and for ordinary networks? This page compares the plain network, temperature
scaling, MC dropout, a deep ensemble, laplace-torch and many ways to use peewit. Every number on it comes from the
files in `benchmarks/quality/results`, one for each task and way; [one section](#what-training-data-tell-of-harm) has a
file of its own, `benchmarks/quality/harm.json`.

```bash
make quality ARGS="--data DIR"                    # measures what is not in the files yet; --help for the options
make quality ARGS="--data DIR --beside --renew"   # new ways on old splits; all ways on networks of other machines
make quality ARGS="--data DIR --reduced"          # ten minutes on two cores, into bench/quality-reduced
make quality-page                                 # writes this page and its figures from the files
```
"""
NOTES = """## How it was measured

- Each task belongs to one half, which was named before the first run: defaults were chosen on `choose` and confirmed
  on `confirm`.
- A *run* is one split of one task under one way of training, with all classes and values among the training data.
  Networks are trained for a fixed number of steps ("fixed"), or stopped where the loss on stopping data is smallest
  ("early"). The ResNets are pretrained. A task counts once: its number is the mean over its splits, and the number of
  a split is the mean over both ways of training. [One table](#what-was-measured) has the splits of each task, and
  says what is missing and why.
- `±` is two standard errors over the splits. Differences are paired: both ways used the same network and the same
  data. Splits of one table share examples, so these errors are too small rather than too large.
- "recipe" is `fit(...).tune(train=...)`. "validation" is `fit(...).tune("validation", validation=...)`. The validation
  data are neither training data nor those that stopped training, except where the name ends in "stop data".
- "online evidence" is `pw.learning.train` on tables: its network starts where the plain one did and trains for as many
  steps, with the same batches' size and rate and about twenty hyper-steps. It sees neither the data for stopping nor
  those for validation, so that one network stands beside both plain ones. "recipe" then tunes its posterior by
  `tune(train=...)`. No class or range is left out for these ways.
- For tasks of numbers the plain network has one noise, from the residuals of the training data, and "temperature" has
  one from the residuals of the validation data. Targets are in units of their standard deviation in the training
  data. A network that was trained for a fixed number of steps may fit every training target: then its noise is next to
  nothing, and the NLL of the plain network in the hundreds or thousands.
- AUROC: how often an unknown input has a higher score than a known one. The score is the predictive entropy for
  classes and the epistemic variance for numbers; MI is the mutual information. A network with one noise for all inputs
  has no such score: its AUROC is 0.5. Unknown inputs are another data set, or a class or the middle third of a feature
  that was left out of training.
- Differences below 0.0005 nats from the plain network count as none in "not above" and "worse".
- A plain pass is one forward pass over the test data for predictions, and one forward and backward pass over the
  training data for fits.
"""


EXPLAINED = {
    **overview.EXPLAINED,
    **sections.EXPLAINED,
    **online.EXPLAINED,
    **harm.EXPLAINED,
    **unknown.EXPLAINED,
    **by_task.EXPLAINED,
    **measured.EXPLAINED,
}


def summary(board: Board) -> list[str]:
    """A sentence for each goal and set of tasks."""
    lines = ["## The goals", ""]
    for goal in GOALS:
        lines.append(f"- {goal.text}:")
        for name, tasks in halves(board):
            verdict = goal.judge(board, tasks)
            word = WORDS[verdict.met]
            lines.append(f"  - {name}: {word}{', ' if word else ''}{verdict.text}.")
    return [*lines, ""]


def findings() -> list[str]:
    """What is written by hand."""
    return [FINDINGS.read_text(encoding="utf-8").rstrip(), ""] if FINDINGS.is_file() else []


def completeness(board: Board) -> list[str]:
    """How much was measured, and on what."""
    cases = sum(len(content["cases"]) for content in board.contents.values())
    failed = sum("failure" in record for content in board.contents.values() for record in content["cases"].values())
    machines = sorted({machine_of(content["machine"]) for content in board.contents.values()})
    lines = [
        f"{len(board.tasks)} tasks, {len(board.ways)} ways, {cases:,} cases of a way on a network, of which "
        f"{failed:,} failed. Measured on {'; '.join(machines)}.",
    ]
    strangers = board.strangers()
    if strangers:
        lines.append(f"{strangers:,} cases are of networks that were trained elsewhere; no difference has them.")
    if board.reduced:
        lines.append("**These are results of a reduced run: too few data to judge by.**")
    return [" ".join(lines), ""]


def machine_of(machine: dict[str, str | None]) -> str:
    """A machine and its versions."""
    versions = [f"{name} {machine[name]}" for name in ("torch", "laplace-torch") if machine.get(name)]
    return f"{machine['device']} ({', '.join(versions)})"


def tables(board: Board) -> list[tuple[str, list[Table]]]:
    """The sections of the page."""
    every = [overview.all_ways(board, *key) for key in overview.PARTS]
    return [
        (
            "With validation data",
            [sections.validated_nll(board), sections.misses_by_way(board), sections.intervals(board)],
        ),
        ("Without validation data", [sections.unvalidated_nll(board), *sections.warning_tables(board)]),
        ("Trained with online evidence", online.tables(board)),
        ("What training data tell of harm", [] if board.reduced else harm.harm_tables(read_results(harm.RESULTS))),
        ("Unknown inputs", unknown.tables(board)),
        ("What was tried", [overview.ways_in_short(board), *every]),
        ("Other figures", [overview.other_figures(board, name) for name in overview.LIKELIHOODS]),
        ("Stopping data instead of validation data", [overview.on_stopping_data(board)]),
        ("Cost", [overview.costs(board)]),
        ("What was measured", measured.tables(board)),
        ("By task", by_task.tables(board)),
    ]


def page(board: Board, pictures: Sequence[tuple[str, str]] = ()) -> str:
    """The page that readers open; pictures are titles with paths."""
    lines = [INTRODUCTION, *completeness(board), *summary(board), *([] if board.reduced else findings())]
    for title, path in pictures:
        lines += [f"![{title}]({path})", ""]
    lines += [NOTES, *sections_of(board, long=False), "## More tables", ""]
    lines += [
        f"Every way, other figures, the cost, what was measured, and every task are in [long tables]({TABLES}).",
        "",
    ]
    return linked(lines, sections_of(board, long=True), TABLES)


def long_tables(board: Board) -> str:
    """The second page."""
    return linked([ALL, *sections_of(board, long=True)], sections_of(board, long=False), "quality.md")


def sections_of(board: Board, long: bool) -> list[str]:
    """The sections of one of the two pages."""
    lines: list[str] = []
    for title, own in tables(board):
        shown = [table for table in own if table.rows]
        if shown and (title in LONG) == long:
            lines += [f"## {title}", ""]
            for table in shown:
                lines += markdown(table)
                lines += [EXPLAINED[table.title], ""] if table.title in EXPLAINED else []
    return lines


def linked(lines: Sequence[str], other: Sequence[str], name: str) -> str:
    """The text of a page, whose links to headings of the other page lead there."""
    text = "\n".join(lines).rstrip() + "\n"
    headings = [line.lstrip("# ").lower() for line in other if line.startswith("#")]
    for anchor in (re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings):
        text = text.replace(f"](#{anchor})", f"]({name}#{anchor})")
    return text


def draw(board: Board, folder: Path, start: Path) -> list[tuple[str, str]]:
    """Draw the figures; their paths are as the page sees them."""
    from benchmarks.quality.drawing import figures  # needs matplotlib, which the page does not

    return [(title, Path(os.path.relpath(path, start)).as_posix()) for title, path in figures(board, folder)]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the wanted files, or print the page."""
    parser = argparse.ArgumentParser(prog="benchmarks.quality.page", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder with the files of a run")
    parser.add_argument("--markdown", type=Path, help="the page to write; printed if not given")
    parser.add_argument("--figures", type=Path, help="the folder that figures are written to")
    options = parser.parse_args(arguments)
    board = Board.read(options.results)
    if not board.contents:
        raise SystemExit(f"There are no results in {options.results}; measure first: python -m benchmarks.quality.run")
    start = options.markdown.parent if options.markdown else Path(".")
    text = page(board, draw(board, options.figures, start) if options.figures else ())
    if options.markdown is None:
        print(text, long_tables(board), sep="\n")
        return
    options.markdown.parent.mkdir(parents=True, exist_ok=True)
    options.markdown.write_text(text, encoding="utf-8")
    options.markdown.with_name(TABLES).write_text(long_tables(board), encoding="utf-8")


if __name__ == "__main__":
    main()
