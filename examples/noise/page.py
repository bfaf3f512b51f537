"""Write the tables of `docs/heteroscedastic.md` from the numbers in `results`, after `published.py` and `compare.py`.

python examples/noise/page.py
"""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
PAGE = HERE.parents[1] / "docs" / "heteroscedastic.md"
FIGURES = ("-log evidence / N", "LL, plug-in", "LL, natural", "LL, mean", "test MSE")
SCORES = {"ll": "log likelihood", "rmse": "RMSE", "covered": "inside 90 % intervals"}


def row(cells: Sequence[str]) -> str:
    """A row of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def head(titles: Sequence[str]) -> list[str]:
    """Its first two rows; numbers are on the right."""
    return [row(titles), row(["---", *["---:"] * (len(titles) - 1)])]


def published(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Published figures, and under each what came out here with the relative difference."""
    lines = head(["set, seed", *FIGURES, "largest relative difference"])
    for each in rows:
        name = each["row"].replace(":", ", ")
        lines.append(row([f"{name}: published", *(f"{value:.6f}" for value in each["published"]), ""]))
        lines.append(row(["here", *(f"{value:.6f}" for value in each["here"]), f"{max(each['difference']):.0e}"]))
    return lines


def consistent(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The figures with test data that are scaled as the training data are."""
    lines = head(["set, seed", *FIGURES[1:]])
    return lines + [
        row([each["row"].replace(":", ", "), *(f"{value:.6f}" for value in each["consistent"][1:])]) for each in rows
    ]


def spread(values: Sequence[float]) -> str:
    """Mean and standard error."""
    error = f" ± {statistics.stdev(values) / math.sqrt(len(values)):.3f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.3f}{error}"


def compared(content: Mapping[str, Any]) -> list[str]:
    """A row per way, over seeds."""
    runs = content["runs"]
    lines = head(["", *SCORES.values()])
    return lines + [row([way, *(spread([run[way][score] for run in runs]) for score in SCORES)]) for way in runs[0]]


def tables(folder: Path = RESULTS) -> dict[str, list[str]]:
    """Every table by its name on the page."""
    content = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}
    rows = content.pop("published", [])
    made = {"published": published(rows), "consistent": consistent(rows)}
    return made | {name: compared(each) for name, each in content.items()}


def filled(text: str, made: Mapping[str, Sequence[str]]) -> str:
    """The page with its tables between their marks."""
    for name, lines in made.items():
        mark = rf"(<!-- table {re.escape(name)} -->\n).*?(<!-- end -->)"
        text = re.sub(
            mark, lambda found, lines=lines: f"{found[1]}\n{chr(10).join(lines)}\n\n{found[2]}", text, flags=re.S
        )
    return text


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables()), encoding="utf-8")
