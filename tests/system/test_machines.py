"""The tests as other machines would run them: settings take effect, and one target goes through all of them."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import conftest
from environment import ROOT

VECTORS = os.environ.get("ATEN_CPU_CAPABILITY", "")
# In place of Python: says what it was asked, and fails under the settings with a 3.
STANDIN = """#!/bin/sh
echo "ran $FIRST$SECOND with $OMP_NUM_THREADS threads: $*"
test "$FIRST$SECOND" != 3
"""


@pytest.mark.skipif(not os.environ.get("OMP_NUM_THREADS", "").isdigit(), reason="OMP_NUM_THREADS is not set")
def test_threads_are_those_of_the_setting() -> None:
    assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"])


@pytest.mark.skipif(VECTORS not in ("default", "avx2"), reason="ATEN_CPU_CAPABILITY is not set")
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="another family of processors")
def test_vector_instructions_are_those_of_the_setting() -> None:
    assert torch.backends.cpu.get_cpu_capability() == VECTORS.upper()


def order(seed: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    class Item:
        def __init__(self, name: str) -> None:
            self.name = name

        def get_closest_marker(self, name: str) -> None:
            """No marker."""

    monkeypatch.setattr(conftest, "ORDER", seed)
    items = [Item(str(number)) for number in range(50)]
    conftest.pytest_collection_modifyitems(items)  # type: ignore[arg-type]
    return [item.name for item in items]


def test_the_order_is_that_of_its_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    written = order("", monkeypatch)
    assert written == [str(number) for number in range(50)]
    first, second = order("1", monkeypatch), order("2", monkeypatch)
    assert first == order("1", monkeypatch) and sorted(first) == sorted(second) == sorted(written)
    assert len({tuple(first), tuple(second), tuple(written)}) == 3


def made(settings: str, folder: Path) -> subprocess.CompletedProcess[str]:
    standin = folder / "python"
    standin.write_text(STANDIN)
    standin.chmod(0o755)
    asked = ["make", "-C", str(ROOT), "--no-print-directory", "test-machines", "NO_INSTALL=1", f"PYTHON={standin}"]
    return subprocess.run([*asked, f"SETTINGS={settings}", "ARGS=-k some"], capture_output=True, text=True)


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
def test_a_setting_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    good = made("FIRST=1 OMP_NUM_THREADS=2", tmp_path)
    lines = good.stdout.splitlines()
    assert good.returncode == 0 and "passed with: FIRST=1 OMP_NUM_THREADS=2" in lines
    assert [line.split(":")[0] for line in lines if "ran" in line] == ["ran 1 with 1 threads", "ran  with 2 threads"]
    assert all(line.endswith("-k some") for line in lines if "ran" in line)
    bad = made("FIRST=3 FIRST=2,SECOND=1 SECOND=3", tmp_path)
    assert bad.returncode != 0 and bad.stdout.count("ran ") == 3 and "ran 21 with 1 threads" in bad.stdout
    assert "failed with: FIRST=3 SECOND=3" in bad.stdout.splitlines()
