"""Figures of speed and memory that pages quote are those of docs/benchmarks.md."""

from __future__ import annotations

import re

from environment import ROOT

PREDICTIVE = "closed-form predictive, `kron`, all weights: inputs/s over laplace-torch's, equal precision"
IN_DEFAULTS = "closed-form predictive, `kron`, all weights: inputs/s over laplace-torch's, both in their defaults"
MEMORY = "memory of that predictive per input: laplace-torch's over ours"
FIT = "fit, exact, with decompositions: laplace-torch's time over ours"
PASSES = "fit, exact, likewise, over forward and backward"


def reached(what: str, column: int) -> list[float]:
    """What was reached of a goal on the GPU, network by network; columns are counted from that of the goal."""
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    rows = page[page.index(f"\n| {what} |") + 1 :].splitlines()
    last = next(number for number, row in enumerate(rows[1:], 1) if not row.startswith("|  |"))
    cells = [row.split("|")[3 + column] for row in rows[:last]]
    return [float(re.sub(r"x: .*", "", cell).replace(",", "")) for cell in cells]


def times(values: list[float]) -> list[str]:
    """In whole numbers."""
    return [f"{value:,.0f}x" for value in values]


def test_the_table_of_factored_jacobians() -> None:
    """Of the networks that were compared; a dash stands for those that were not."""
    page = (ROOT / "docs" / "factored.md").read_text(encoding="utf-8")
    fits, passes = [f"{value}x" for value in reached(FIT, 1)], [f"{value:.1f}" for value in reached(PASSES, 1)]
    for cells in (
        times(reached(PREDICTIVE, 1)),
        times(reached(IN_DEFAULTS, 4)),
        [f"1/{value:,.0f}" for value in reached(MEMORY, 1)],
        [*fits[:3], "–", fits[3]],
        [*passes[:3], "–", passes[3]],
    ):
        assert len(cells) == 5 and f"| {' | '.join(cells)} |" in page


def test_the_row_of_the_readme() -> None:
    """The least and the most of five networks."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    speed, memory = reached(PREDICTIVE, 1), reached(MEMORY, 1)
    assert f"{min(speed):,.0f} to {max(speed):,.0f} times as many per second as laplace-torch" in readme
    assert f"in 1/{min(memory):,.0f} to 1/{max(memory):,.0f} of its memory per input" in readme
