"""Measure ways to predict on real tasks: `python -m benchmarks.quality.run --data DIR`; what is there is skipped."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import os
import platform
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import peer
from benchmarks.measure import Failure, attempt, device_name
from benchmarks.quality import store
from benchmarks.quality.answers import KINDS, Way
from benchmarks.quality.board import PLAIN
from benchmarks.quality.cases import Case, Task, Training
from benchmarks.quality.measure import Record, fingerprint, measure, plain_passes
from benchmarks.quality.pool import Job, run_all, say
from benchmarks.quality.store import RESULTS
from benchmarks.quality.tasks import TASKS
from benchmarks.quality.ways import WAYS

TRAININGS: tuple[Training, ...] = ("early", "fixed", "pretrained")
REDUCED = Path("bench/quality-reduced")  # where reduced runs write: their networks are others
REDUCED_SPLITS = {"table": 3, "text": 1, "image": 1}
ORDER = {"image": 0, "text": 1, "table": 2}  # the longest first, where several processes share the work
EVERY = 5.0  # seconds of work after which results are written


@dataclass(frozen=True, kw_only=True)
class Options:
    """What is measured, and where the results go."""

    data: Path | None
    out: Path
    tasks: tuple[str, ...]
    ways: tuple[str, ...]
    chosen: bool  # whether ways were named: these run on every kind of task
    splits: range | None
    renew: bool  # whether every way is measured again where the files are of networks that cannot be trained here
    beside: bool  # whether only splits are measured that the plain network has
    trainings: tuple[Training, ...]
    reduced: bool
    again: bool
    failed: bool
    device: str
    processes: int


def parse(arguments: Sequence[str] | None = None) -> Options:
    """The command line."""
    parser = argparse.ArgumentParser(prog="benchmarks.quality.run", description=__doc__)
    aside = [store.short(task.name) for task in TASKS if task.by_name] or ["none"]
    named = "names with commas between them; spaces may be written as hyphens"
    parser.add_argument("--data", type=Path, default=os.environ.get("PEEWIT_DATA"), help="the folder with data sets")
    parser.add_argument("--out", type=Path, help=f"{RESULTS} if not given, {REDUCED} with --reduced")
    parser.add_argument("--tasks", help=f"all but {', '.join(aside)} where none is named; {named}")
    parser.add_argument("--ways", help=f"those for the kind of task where none is named; {named}")
    parser.add_argument("--splits", help="N for the first N, or A-B for A to B inclusive, from 0")
    parser.add_argument("--kinds", help="table, text or image: tasks of these kinds alone; all where none is named")
    parser.add_argument("--beside", action="store_true", help="no new splits: only those that the plain network has")
    again = "where the files are of networks that were trained elsewhere, measure every way again; else leave it out"
    parser.add_argument("--renew", action="store_true", help=again)
    parser.add_argument("--training", help="early, fixed or pretrained; all where none is named")
    parser.add_argument("--reduced", action="store_true", help="few tasks, splits and ways: ten minutes on two cores")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--processes", type=int, default=1, help="splits measured at a time, each on one thread")
    parser.add_argument("--again", action="store_true", help="measure what is there already, too")
    parser.add_argument("--failed", action="store_true", help="measure what failed before, too")
    parser.add_argument("--merge", type=Path, help="only add the files of this folder to those of --out")
    given = parser.parse_args(arguments)
    out = given.out or (REDUCED if given.reduced else RESULTS)
    if given.merge is not None:
        print(f"{store.merge(given.merge, out)} files merged into {out}")
        sys.exit()
    kinds = picked(parser, given.kinds, KINDS, KINDS)
    tasks = [task.name for task in TASKS if not task.by_name and (task.reduced or not given.reduced)]
    ways = [name for name, way in WAYS.items() if way.main or not given.reduced]
    named_tasks = picked(parser, given.tasks, [task.name for task in TASKS], tasks)
    return Options(
        data=None if given.data is None else Path(given.data),
        out=out,
        tasks=tuple(task.name for task in TASKS if task.name in named_tasks and task.kind in kinds),
        ways=picked(parser, given.ways, list(WAYS), ways),
        chosen=given.ways is not None,
        splits=None if given.splits is None else splits_of(parser, given.splits),
        beside=given.beside,
        renew=given.renew,
        trainings=picked(parser, given.training, TRAININGS, TRAININGS),
        reduced=given.reduced,
        again=given.again,
        failed=given.failed,
        device=given.device,
        processes=given.processes,
    )


def picked(parser: argparse.ArgumentParser, text: str | None, known: Sequence[Any], default: Sequence[Any]) -> Any:
    """The names in a text; a comma before a space belongs to a name."""
    if text is None:
        return tuple(default)
    by_short = {store.short(name): name for name in known}
    wanted = [store.short(part.strip()) for part in re.split(r",(?! )", text)]
    for name in wanted:
        if name not in by_short:
            parser.error(f"{name} was given; expected {', '.join(by_short)}")
    return tuple(by_short[name] for name in wanted)


def splits_of(parser: argparse.ArgumentParser, text: str) -> range:
    """N or A-B."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)", text)
    if match is None:
        parser.error(f"--splits {text} was given; expected N for the first N, or A-B for A to B inclusive")
    first, last = match.groups()
    return range(int(last)) if first is None else range(int(first), int(last) + 1)


def jobs_of(options: Options) -> list[Job]:
    """Tasks and splits; the longest first where several processes share the work."""
    tasks = [task for task in TASKS if task.name in options.tasks]
    if options.processes > 1:
        tasks.sort(key=lambda task: ORDER[task.kind])
    return [(task.name, split) for task in tasks for split in splits_for(task, options)]


def splits_for(task: Task, options: Options) -> list[int]:
    """The splits of a task that are asked for."""
    number = min(task.splits, REDUCED_SPLITS[task.kind]) if options.reduced else task.splits
    splits = [split for split in range(number) if options.splits is None or split in options.splits]
    if not options.beside:
        return splits
    cases = store.read(store.path_of(options.out, task.name, PLAIN))["cases"]
    return [split for split in splits if any(key.endswith(f"/{split}") for key in cases)]


def ways_for(task: Task, options: Options) -> list[Way]:
    """Ways that can do a task; those named are measured on tasks of all kinds."""
    return [
        way
        for name in options.ways
        if task.likelihood in (way := WAYS[name]).likelihoods
        if options.chosen or task.kind in way.kinds
        if not way.needs or importlib.util.find_spec(way.needs) is not None
    ]


@dataclass(eq=False, kw_only=True)
class Results:
    """What is in the files of a task, and what is still to be written into them."""

    options: Options
    task: Task
    stored: Mapping[str, store.Content]
    new: dict[str, dict[str, Record]] = field(default_factory=dict)
    written: float = field(default_factory=time.perf_counter)

    @classmethod
    def of(cls, options: Options, task: Task) -> Results:
        """Read the files of the wanted ways."""
        names = [way.name for way in ways_for(task, options)]
        stored = {name: store.read(store.path_of(options.out, task.name, name)) for name in names}
        return cls(options=options, task=task, stored=stored)

    def lacks(self, way: Way, key: str) -> bool:
        """Whether a case is to be measured."""
        record = self.stored[way.name]["cases"].get(key)
        return self.options.again or record is None or (self.options.failed and "failure" in record)

    def is_done(self, split: int) -> bool:
        """Whether no case of a split is to be measured, as far as one can tell without training its networks."""
        if self.options.again:
            return False
        wanted = {f"{training}/{split}" for training in self.task.trainings if training in self.options.trainings}
        return all(wanted <= set(content["done"]) and not self.retries(content, split) for content in self.contents)

    def retries(self, content: store.Content, split: int) -> bool:
        """Whether something of a split failed and is to be measured once more."""
        cases = content["cases"].items()
        return self.options.failed and any("failure" in each for key, each in cases if key.endswith(f"/{split}"))

    @property
    def contents(self) -> list[store.Content]:
        return list(self.stored.values())

    def add(self, way: Way, case: Case, record: Record) -> None:
        """Keep a record, and write all of them every few seconds."""
        self.new.setdefault(way.name, {})[case.key] = record
        if time.perf_counter() > self.written + EVERY:
            self.write()

    def write(self, done: Sequence[str] = ()) -> None:
        """Put into the files what is new."""
        for name in self.stored if done else tuple(self.new):
            cases = self.new.pop(name, {})
            store.add(self.options.out, self.task.name, name, header_of(self.task, name, self.options), cases, done)
        self.written = time.perf_counter()


def header_of(task: Task, way: str, options: Options) -> dict[str, Any]:
    """What holds for every case of a file."""
    return {
        "likelihood": task.likelihood,
        "kind": task.kind,
        "half": task.half,
        "validated": WAYS[way].validated,
        "reduced": options.reduced,
        "machine": {
            "device": device_name(torch.device(options.device)),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "laplace-torch": peer.version(),
        },
    }


def run_split(options: Options, name: str, split: int) -> None:
    """Train the networks of a split and measure all ways on them."""
    task = next(task for task in TASKS if task.name == name)
    results = Results.of(options, task)
    if not results.stored or results.is_done(split):
        return
    if task.kind != "image":
        torch.set_num_threads(1)  # quicker for small products, and the same networks wherever it runs
    began = time.perf_counter()
    keys = [f"{training}/{split}" for training in task.trainings if training in options.trainings]
    whole = True
    for case in task.cases(options.data, range(split, split + 1), torch.device(options.device), options.reduced):
        if case.training in options.trainings:
            whole = measure_case(results, case, began) and whole
        began = time.perf_counter()
    if whole:
        results.write(done=keys)


def measure_case(results: Results, case: Case, began: float) -> bool:
    """Measure on one case what is not there, and return whether nothing had to be left out."""
    ways = [way for way in ways_for(results.task, results.options) if results.lacks(way, case.key)]
    if not ways:
        return True
    if is_of_others(results, case, ways):
        if not results.options.renew:
            say(f"{case.task} {case.key}: left out: the files are of a network that was trained elsewhere; see --renew")
            return False
        ways = ways_for(results.task, replace(results.options, ways=tuple(WAYS), chosen=False))
    trained = time.perf_counter()
    passes, failures = plain_passes(case), []
    try:
        for way in ways:
            record = measure(way, case, passes)
            if record is None:
                continue
            results.add(way, case, record)
            if "failure" in record:
                failures.append(f"\n    {way.name}: {record['failure']}")
    finally:
        results.write()
    training, measuring = trained - began, time.perf_counter() - trained
    times = f"{training:.1f} s for the networks, {measuring:.1f} s for {len(ways)} ways"
    say(f"{case.task} {case.key}: {times}{''.join(failures)}")
    return True


def is_of_others(results: Results, case: Case, ways: Sequence[Way]) -> bool:
    """Whether the files of a case are of a network that was trained elsewhere: what is new could not be compared."""
    if results.options.again and any(way.name == PLAIN for way in ways):
        return False
    network = fingerprint(case.networks.plain)
    path = store.path_of(results.options.out, case.task, PLAIN)
    stored = store.read(path)["cases"].get(case.key, {}).get("network", network)
    return bool(stored != network)


def run_job(options: Options, job: Job) -> str | None:
    """Measure a split, and return why that was not possible."""
    outcome = attempt(lambda: run_split(options, *job))
    if isinstance(outcome, Failure):
        say(f"{job[0]}, split {job[1]}: left out: {outcome.reason}")
        return outcome.reason
    return None


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write after every few seconds of work."""
    options = parse(arguments)
    began = time.perf_counter()
    for name in options.ways:
        if WAYS[name].needs and importlib.util.find_spec(WAYS[name].needs) is None:
            say(f"{name} is not measured: there is no package {WAYS[name].needs} here")
    failed = run_all(functools.partial(run_job, options), jobs_of(options), options.processes)
    say(f"{time.perf_counter() - began:.0f} s; results are in {options.out}")
    if failed:
        raise SystemExit(f"{failed} splits could not be measured; the lines above say why.")


if __name__ == "__main__":
    main()
