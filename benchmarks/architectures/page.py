"""The tables of docs/architectures.md, from the files that `benchmarks.architectures.run` wrote."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.journal import Record, read
from benchmarks.report import write_page
from benchmarks.tables import Table, gibibytes, markdown, number

RESULTS = Path(__file__).resolve().parent / "results"
# Kinds of approximations, by how their words in the coverage table begin.
KEPT = {"Kronecker": "Kronecker", "dense": "dense", "diagonal": "diagonal"}


def page_lines(contents: Sequence[dict[str, Any]]) -> list[str]:
    """What stands between the markers: a part for each machine, GPUs first."""
    ordered = sorted(contents, key=lambda content: str(content["device"]) != "cuda")
    return [line for content in ordered for line in part_lines(content)]


def part_lines(content: dict[str, Any]) -> list[str]:
    """What was measured on one machine."""
    records: list[Record] = content["records"]
    where = ", ".join(f"{name} {number}" for name, number in sorted(content["libraries"].items()) if number)
    sizes = "a few narrow layers of each" if content["small"] else "usual sizes"
    clock = "" if content["device"] == "cuda" else ", seconds of the processor on one thread"
    lines = [
        f"## {content['machine']}: {sizes}",
        "",
        f"With torch {content['torch']}, {where}, on {content['date']}: {content['examples']} examples in batches of "
        f"{content['batch_size']}, weights and data random{clock}.",
        "",
        *summary(records),
        "",
    ]
    for make in (whole_table, last_table):
        for library in ("timm", "transformers"):
            own = [record for record in records if record["library"] == library]
            lines += markdown(make(library, own)) if own else []
    return lines


def summary(records: Sequence[Record]) -> list[str]:
    """How many have a rule for every weight, and which weights of the others have none."""
    fitted = [record for record in records if "rules" in record.get("all", {})]
    without = [record for record in fitted if record["all"]["generic"]]
    failed = [record for record in records if record not in fitted]
    lines = [
        f"{len(fitted)} of {len(records)} architectures were fitted with all weights, unchanged. "
        f"In {len(fitted) - len(without)} of them every weight has a rule of its own."
    ]
    if without or failed:
        lines[0] += " The others:"
        lines.append("")
    for record in without:
        lines.append(f"- {record['what']}: {share(record)} take the generic rule: {names(record['all']['generic'])}.")
    for record in failed:
        lines.append(f"- {record['what']} was not fitted: {failure(record, 'all')}.")
    return lines


def share(record: Record) -> str:
    """The weights that take the generic rule, of all that are uncertain."""
    without = sum(size for rule, size in record["all"]["rules"].items() if "generic" in rule)
    return f"{without:,} of {record['all']['D']:,} weights"


def names(generic: Sequence[str]) -> str:
    """The names of the weights in their modules, each once."""
    found = list(dict.fromkeys(f"`{'.'.join(name.split('.')[-2:])}`" for name in generic))
    return ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")


def failure(record: Record, weights: str) -> str:
    """Why there are no numbers."""
    return str(record.get(weights, {}).get("failure") or record.get("failure") or "not measured")


def kept(record: Record) -> str:
    """The shares of weights by what their curvature became, in percent."""
    sizes = {
        words: sum(size for name, size in record["all"]["approximations"].items() if name.startswith(begin))
        for begin, words in KEPT.items()
    }
    total = sum(sizes.values())
    return ", ".join(f"{words} {percent(size / total)}" for words, size in sizes.items() if size)


def percent(value: float) -> str:
    """A share that is never rounded to all or nothing."""
    if value in (0.0, 1.0):
        return f"{100 * value:.0f} %"
    return f"{100 * value:.1f} %" if 0.0005 <= value < 0.9995 else ("< 0.1 %" if value < 0.5 else "> 99.9 %")


def whole_table(library: str, records: Sequence[Record]) -> Table:
    """All weights."""
    columns = (
        "architecture",
        "weights",
        "generic rule",
        "approximations",
        "plain pass, ms",
        "fit without decompositions, passes",
        "decompositions, s",
        "fit, GiB",
        "prediction, ms",
        "prediction, GiB",
    )
    return Table(f"{library}, all weights", columns, tuple(whole_row(record) for record in records))


def whole_row(record: Record) -> tuple[str, ...]:
    """One network; a failure in the place of the first number that it cost."""
    own = record.get("all", {})
    head = (described(record), f"{record.get('parameters', 0):,}")
    if "fit_seconds" not in own:
        return (*head, "", "", number(1000 * record.get("pass_seconds", 0.0)), failure(record, "all"), *[""] * 4)
    generic = sum(size for rule, size in own["rules"].items() if "generic" in rule)
    unit = record["pass_seconds"]
    return (
        *head,
        percent(generic / own["D"]) if generic else "",
        kept(record),
        number(1000 * unit),
        number((own["fit_seconds"] - own["decompose_seconds"]) / unit),
        number(own["decompose_seconds"]),
        gibibytes({"peak_bytes": own["fit_bytes"], "extra_bytes": 0}),
        *prediction(own),
    )


def last_table(library: str, records: Sequence[Record]) -> Table:
    """The last layer alone."""
    columns = (
        "architecture",
        "uncertain weights",
        "fit, ms",
        "fit, passes",
        "fit, GiB",
        "prediction, ms",
        "prediction, GiB",
    )
    return Table(f"{library}, the last layer", columns, tuple(last_row(record) for record in records))


def last_row(record: Record) -> tuple[str, ...]:
    """One network."""
    own = record.get("last_layer", {})
    if "fit_seconds" not in own:
        return (described(record), failure(record, "last_layer"), *[""] * 5)
    return (
        described(record),
        f"{own['D']:,}",
        number(1000 * own["fit_seconds"]),
        number(own["fit_seconds"] / record["pass_seconds"]),
        gibibytes({"peak_bytes": own["fit_bytes"], "extra_bytes": 0}),
        *prediction(own),
    )


def prediction(own: Record) -> tuple[str, str]:
    """Milliseconds for a batch and memory, or why there are none."""
    if "predict_seconds" not in own:
        return own.get("prediction", "not measured"), ""
    return number(1000 * own["predict_seconds"]), gibibytes({"peak_bytes": own["predict_bytes"], "extra_bytes": 0})


def described(record: Record) -> str:
    """The name that people use and the one that the library uses."""
    return f"{record['what']}, `{record['built']}`"


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="benchmarks.architectures.page", description=__doc__)
    parser.add_argument("files", type=Path, nargs="*", default=sorted(RESULTS.glob("*.json")))
    parser.add_argument("--markdown", type=Path, default=Path("docs/architectures.md"))
    options = parser.parse_args(arguments)
    write_page(options.markdown, page_lines([read(file) for file in options.files]))


if __name__ == "__main__":
    main()
