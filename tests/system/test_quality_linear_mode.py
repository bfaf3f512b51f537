"""The table of the linear mode in docs/evidence.md, from files made up here."""

from __future__ import annotations

from pathlib import Path

from benchmarks.quality import linear_mode, store
from benchmarks.quality.board import Board

SPLITS = range(3)


def write(folder: Path, task: str, way: str, nlls: list[float], likelihood: str, warned: list[str]) -> None:
    """One case per split, all early-stopped."""
    cases = {
        f"early/whole/{split}": {"network": "abc", "figures": {"nll": nlls[split]}, "warned": warned}
        for split in SPLITS
    }
    header = {"likelihood": likelihood, "kind": "table", "half": "choose", "validated": False, "reduced": False}
    store.add(folder, task, way, header, cases)


def test_table_counts_tasks_and_runs_below_the_evidence(tmp_path: Path) -> None:
    shifts = {"linear mode": [-0.1, -0.2, 0.05], "linear mode, layerwise": [0.3, 0.3, -0.1]}
    for task, likelihood in (("first", "classification"), ("second", "classification"), ("third", "regression")):
        base = 1.0 if likelihood == "classification" else 2.0
        for way in linear_mode.WAYS:
            warned = ["TuningWarning: '0.bias' switched off"] if "layerwise" in way and task == "first" else []
            nlls = [base + shift for shift in shifts.get(way, [0.0] * 3)]
            write(tmp_path, task, way, nlls, likelihood, warned)
    write(tmp_path, "fourth", "evidence", [9.0] * 3, "classification", [])  # without the other ways: left out
    board = Board.read(tmp_path)
    made = linear_mode.table(board)
    rows = {row[0]: row[1:] for row in made.rows}
    assert made.columns[1].startswith("2 tasks") and made.columns[3].startswith("1 task")
    assert rows["linear mode"] == ("2", "0.917", "1", "1.917", "6 of 9", "+0.050")
    assert rows["linear mode, layerwise"] == ("0", "1.167", "0", "2.167", "3 of 9", "+0.300")
    assert rows["evidence"] == ("", "1.000", "", "2.000", "", "")
    assert linear_mode.switched_off(board, "linear mode, layerwise") == (3, 9)
