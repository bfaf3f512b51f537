"""A plugin of pytest that stores which lines each test runs, and for how long, for tools/mutants.py."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Watch in the processes that run tests: not in the one that only hands them out."""
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        config.pluginmanager.register(Watch(Path(os.environ["MUTANTS_STORE"]), os.environ["MUTANTS_FILES"]))


class Watch:
    """Coverage with a test's identifier as the context, and the seconds of each test that passes."""

    def __init__(self, store: Path, files: str) -> None:
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()
        self.times = store / f"times.{os.getpid()}.json"
        self.coverage: Any = coverage.Coverage(
            data_file=str(store / f"lines.{os.getpid()}"), include=files.split(os.pathsep), config_file=False
        )
        # Tests of other things run none of the files; a warning would be an error where pytest makes it one.
        self.coverage.set_option("run:disable_warnings", ["no-data-collected"])
        self.coverage.set_option("run:relative_files", True)  # what was stored holds for another clone
        self.coverage.start()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Attribute the lines that run from now on to this test."""
        self.coverage.switch_context(item.nodeid)
        answer = yield
        self.coverage.switch_context("")
        return answer

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add up a test's setup, call and teardown."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if not report.passed:
            self.failed.add(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write the lines and the seconds to files."""
        self.coverage.stop()
        self.coverage.save()
        passed = {test: seconds for test, seconds in self.seconds.items() if test not in self.failed}
        self.times.write_text(json.dumps(passed))
