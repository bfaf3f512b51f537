"""Measurements as flat records, written to a file after each one."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measure import Failure

FORMAT = 2
# What a measurement is of: a later record with the same of these replaces an earlier one.
IDENTITY = (
    "section",
    "network",
    "library",
    "task",
    "structure",
    "curvature",
    "weights",
    "axis",
    "size",
    "batch",
    "reference",
)
RUN_IDENTITY = ("machine", "device", "precision", "quick")

Record = dict[str, Any]


@dataclass
class Journal:
    """The measurements of one run."""

    header: dict[str, Any]
    path: Path | None = None
    records: list[Record] = field(default_factory=list)

    def add(self, outcome: Any, **identity: Any) -> Record:
        """Note a measurement or a failure, and write everything so far."""
        values = outcome.as_dict() if hasattr(outcome, "as_dict") else outcome
        record = {**identity, **values}
        self.records.append(record)
        self.write()
        return record

    def write(self) -> None:
        """Write the file whole or not at all, so that a run that is cut short leaves its records."""
        if self.path is None:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_name(self.path.name + ".part")
        beside.write_text(json.dumps(self.as_dict(), indent=1) + "\n", encoding="utf-8")
        os.replace(beside, self.path)

    def as_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, **self.header, "records": self.records}


def identity(record: Record) -> tuple[Any, ...]:
    """The fields that identify a record within its run."""
    return tuple(record.get(key) for key in IDENTITY)


def failed(outcome: Any) -> bool:
    """Whether there is no measurement."""
    return isinstance(outcome, Failure)


@dataclass(frozen=True)
class Run:
    """Records of one machine at one precision, from one file or several."""

    header: dict[str, Any]
    records: tuple[Record, ...]

    def find(self, **wanted: Any) -> list[Record]:
        """The records with these values, failures included."""
        return [record for record in self.records if all(record.get(key) == value for key, value in wanted.items())]

    def one(self, **wanted: Any) -> Record | None:
        """The first record that is not a failure."""
        return next((record for record in self.find(**wanted) if "failure" not in record), None)


def read(path: Path) -> dict[str, Any]:
    """Read a file that a journal wrote."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(
            f"{path} is no file of measurements in format {FORMAT}; make it with python -m benchmarks.run."
        )
    return content


def merge(files: list[dict[str, Any]]) -> list[Run]:
    """Runs by machine and precision; of two records of the same thing, the later one counts."""
    headers: dict[tuple[Any, ...], dict[str, Any]] = {}
    found: dict[tuple[Any, ...], dict[tuple[Any, ...], Record]] = {}
    for content in files:
        key = tuple(content.get(each) for each in RUN_IDENTITY)
        header = {name: value for name, value in content.items() if name not in ("records", "format")}
        headers[key] = {**headers.get(key, {}), **header}
        own = found.setdefault(key, {})
        for record in content["records"]:
            own.pop(identity(record), None)  # to its new place in the order
            own[identity(record)] = record
    return [Run(headers[key], tuple(own.values())) for key, own in found.items()]
