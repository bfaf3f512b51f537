"""What every test shares: the device, the folder with data sets, the order, and one thread per test process."""

from __future__ import annotations

import importlib.util
import os
import random
from pathlib import Path

import pytest
import torch
from rich.progress import Progress as Bars

from environment import DATA, DEVICE, ORDER


def pytest_configure(config: pytest.Config) -> None:
    """Set up torch for the whole process."""
    if DEVICE.startswith("cuda") and not torch.cuda.is_available():
        raise pytest.UsageError(f"PEEWIT_TEST_DEVICE={DEVICE}, but torch sees no CUDA device")
    # TF32 would hide errors that the tolerances are there to find.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    if "PYTEST_XDIST_WORKER" in os.environ and "OMP_NUM_THREADS" not in os.environ:
        # Several processes with several threads each are slower than one thread per process.
        torch.set_num_threads(1)
    if not DEVICE.startswith("cuda") and importlib.util.find_spec("triton"):
        # For test_kernels.py: Triton's own functions are interpreted only if it is imported under this variable.
        os.environ["TRITON_INTERPRET"] = "1"
        importlib.import_module("triton.language")
        del os.environ["TRITON_INTERPRET"]


def pytest_report_header() -> str:
    """What results may depend on besides the code."""
    vectors, threads = torch.backends.cpu.get_cpu_capability(), torch.get_num_threads()
    return f"numbers: {vectors} in ATen, {threads} threads; order: {ORDER or 'as written'}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffle by PEEWIT_TEST_ORDER, alike in every process, and skip what this run has no device or no data for."""
    if ORDER:
        random.Random(ORDER).shuffle(items)
    for item in items:
        if item.get_closest_marker("cuda") and not DEVICE.startswith("cuda"):
            item.add_marker(pytest.mark.skip(reason="set PEEWIT_TEST_DEVICE=cuda"))
        if item.get_closest_marker("data") and not DATA:
            item.add_marker(pytest.mark.skip(reason="set PEEWIT_DATA to the folder with the data sets"))


@pytest.fixture(scope="session")
def device() -> torch.device:
    """The device that the tables run on."""
    return torch.device(DEVICE)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """The folder with data sets; the test is skipped where there is none."""
    if not DATA:
        pytest.skip("set PEEWIT_DATA to the folder with the data sets")
    if not Path(DATA).is_dir():
        pytest.fail(f"PEEWIT_DATA={DATA} is not a folder")
    return Path(DATA)


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Every test starts from the same global random state, whatever ran before it in the process."""
    torch.manual_seed(0)


@pytest.fixture
def bars(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many progress bars were shown, and how many still are."""
    counts = [0, 0]
    start, stop = Bars.start, Bars.stop

    def count_start(self: Bars) -> None:
        counts[0] += 1
        counts[1] += 1
        start(self)

    def count_stop(self: Bars) -> None:
        counts[1] -= 1
        stop(self)

    monkeypatch.setattr(Bars, "start", count_start)
    monkeypatch.setattr(Bars, "stop", count_stop)
    return counts
