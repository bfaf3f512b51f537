"""The scripts that compare where the evidence is taken run in their quick form, and their tables say what they mean."""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "evidence"
NAMES = {"mnist_mlps": "mlp-mnist", "lenet": "lenet", "transformer": "transformer", "unet": "unet", "large": "large"}


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> object:
    """Scripts as modules that find their common parts; without a folder of data sets."""
    monkeypatch.delenv("LAPWING_DATA", raising=False)
    monkeypatch.syspath_prepend(str(FOLDER))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for path in FOLDER.glob("*.py"):
        sys.modules.pop(path.stem, None)


def rows(folder: Path, name: str) -> dict[str, dict]:
    """What a script wrote, by row."""
    return {row["name"]: row for row in json.loads((folder / f"{name}.json").read_text())["rows"]}


@pytest.mark.parametrize("name", list(NAMES))
def test_script_compares_the_ways(name: str, script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.manual_seed(3)
    script(name).main(["--quick", "--out", str(tmp_path)])
    made = rows(tmp_path, NAMES[name])
    assert list(made)[0] == "MAP"
    for way in ("theta~, one precision", "theta~, one per tensor", "theta*, one precision", "theta*, one per tensor"):
        scores = made[f"evidence at {way}"]["scores"]
        assert all(math.isfinite(scores[each]) for each in ("nll", "evidence", "gamma", "seconds"))
    # One number is a special case of one per tensor, so the best of the latter has the larger evidence; and the mode of
    # the linear model has the least loss of all weights, so its evidence at the same precision is no smaller.
    evidence = {way: row["scores"].get("evidence") for way, row in made.items()}
    assert evidence["evidence at theta~, one per tensor"] >= evidence["evidence at theta~, one precision"] - 1e-3
    assert evidence["evidence at theta*, one precision"] >= evidence["evidence at theta~, one precision"] - 0.5
    printed = capsys.readouterr().out
    assert "evidence at theta*, one per tensor" in printed and "test NLL" in printed
