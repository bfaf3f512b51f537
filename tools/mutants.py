"""Change one thing of the library at a time and see whether the tests that run the changed line notice.

It takes a seeded sample of such mutants from each part of the library, and prints a table of what was caught and every
mutant that was not; .mutants/report.json holds all of them. Run it by `make test-mutants SEED=1 COUNT=100`.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import importlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from pathlib import Path

from mutations import Mutant, mutants

TRACING = (
    "recording",
    "tracer",
    "locating",
    "graph",
    "doubling",
    "tape",
    "verification",
    "comparison",
    "plain",
    "knowledge",
    "forward_mode",
)
PARTS = {
    "tracing": [
        *(f"peewit/tracing/{name}.py" for name in TRACING),
        "peewit/weights/vectors.py",
    ],
    "layer rules": ["peewit/tracing/layers/*.py", "peewit/tracing/layers/conv/*.py", "peewit/tracing/generic.py"],
    "structures": ["peewit/curvature/structures/*.py"],
    "operators": ["peewit/curvature/operators.py", "peewit/curvature/blocks.py", "peewit/jacobians/*.py"],
    "likelihoods": ["peewit/likelihoods/*.py"],
    "evidence": [
        "peewit/posterior/evidence.py",
        "peewit/posterior/trace.py",
        "peewit/priors/groupings.py",
        "peewit/priors/prior.py",
        "peewit/weights/groups.py",
        "peewit/tuning/*.py",
        "peewit/predictions/shared.py",
    ],
}
PRELOADED = ("torch", "torch.func", "numpy", "scipy.stats", "safetensors.torch", "rich.console", "typer", "pytest")
ENOUGH = 0.9  # the share of mutants that has to be caught
QUICKEST, CLOSEST = 12, 12  # tests that a mutant meets first: the quickest, and those that run little else
LONGER = 60.0  # seconds of further tests that a mutant meets which passed these
LEAST_TIME, SLOWER = 60.0, 15.0  # a mutant may take this many seconds, and this many times what its tests took

ALLOWED_REASONS = ("speed", "memory", "equivalent")


@dataclass(frozen=True)
class Project:
    """A folder with `src` and `tests` that is changed and tested; its parts are patterns in `src`."""

    root: Path
    parts: dict[str, list[str]]
    preloaded: tuple[str, ...] = ()

    @property
    def source(self) -> Path:
        """The folder of the packages."""
        return self.root / "src"

    @property
    def store(self) -> Path:
        """The folder where runs keep their results."""
        return self.root / ".mutants"

    def files(self, part: str) -> list[str]:
        """The files of a part, as paths in `source`."""
        paths = {path for pattern in self.parts[part] for path in self.source.glob(pattern)}
        return sorted(path.relative_to(self.source).as_posix() for path in paths)

    def allowed(self) -> dict[str, str]:
        """The reason of each mutant that no test can notice."""
        path = self.root / "tools" / "mutants_allowed.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        rows = [line.rsplit("  # ", 1) for line in lines if line.strip() and not line.startswith("#")]
        for row in rows:
            if len(row) != 2 or row[1].split(":")[0] not in ALLOWED_REASONS:
                reasons = ", ".join(ALLOWED_REASONS)
                raise SystemExit(f"{path}: expected 'path::function::change  # reason' (one of {reasons}), got {row}")
        return dict(rows)

    def digest(self) -> str:
        """A hash of all sources and tests."""
        paths = sorted([*self.source.rglob("*.py"), *(self.root / "tests").rglob("*.py")])
        return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


@dataclass(kw_only=True)
class Verdict:
    """What became of a mutant: caught, timed out, survived, or untested where no test runs its line."""

    mutant: Mutant
    outcome: str
    by: str = ""  # the first test that failed
    tests: int = 0
    seconds: float = 0.0

    @property
    def caught(self) -> bool:
        """Whether the tests noticed."""
        return self.outcome in ("caught", "timed out")


def sample(project: Project, part: str, seed: int, count: int) -> list[Mutant]:
    """Mutants of a part that some test can notice; the others stay in the sample when one leaves it."""
    allowed = project.allowed()
    every = [each for path in project.files(part) for each in mutants(path, (project.source / path).read_text())]
    kept = [each for each in every if each.name not in allowed and each.whole_function not in allowed]
    return sorted(kept, key=lambda each: hashlib.sha256(f"{seed} {each.name}".encode()).digest())[:count]


def collect(project: Project, workers: int, arguments: list[str]) -> None:
    """Run the tests once, and store which lines each of them runs."""
    shutil.rmtree(project.store, ignore_errors=True)
    project.store.mkdir()
    files = [str(project.source / path) for part in project.parts for path in project.files(part)]
    settings = {"MUTANTS_STORE": str(project.store), "MUTANTS_FILES": os.pathsep.join(files)}
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "mutants_coverage", "-p", "no:cacheprovider", *arguments]
    command += ["-n", str(workers)] if workers > 1 else []
    subprocess.run(command, cwd=project.root, env={**os.environ, **settings, "PYTHONPATH": path})
    if not list(project.store.glob("times.*.json")):
        raise SystemExit("the tests did not run: see above")
    (project.store / "digest").write_text(project.digest())


@dataclass(eq=False)
class Tests:
    """Which tests run a line, and how long each takes."""

    project: Project
    seconds: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in self.project.store.glob("times.*.json"):
            self.seconds |= json.loads(path.read_text())

    @functools.cached_property
    def data(self) -> list[object]:
        """The data of coverage, one value for each process that ran tests."""
        from coverage import CoverageData

        data = [CoverageData(str(path)) for path in sorted(self.project.store.glob("lines.*"))]
        for each in data:
            each.read()
        return data

    @functools.cache  # noqa: B019  # one value for a run
    def by_line(self, path: str) -> dict[int, set[str]]:
        """The tests that run each line of a file; tests that did not pass are left out."""
        by_line: dict[int, set[str]] = defaultdict(set)
        for each in self.data:
            for line, tests in each.contexts_by_lineno(f"{self.project.source.name}/{path}").items():
                by_line[line] |= {test for test in tests if test in self.seconds}
        return by_line

    @functools.cached_property
    def widths(self) -> Counter[str]:
        """The number of lines that each test runs."""
        files = {path for part in self.project.parts for path in self.project.files(part)}
        return Counter(test for path in files for tests in self.by_line(path).values() for test in tests)

    def of(self, mutant: Mutant) -> tuple[list[str], list[str]]:
        """The tests that a mutant meets first, and those that follow; the quickest of each function lead."""
        lines = self.by_line(mutant.path)
        running = {test for line in mutant.lines or lines for test in lines.get(line, ())}
        turns: Counter[str] = Counter()
        order = []
        for test in sorted(running, key=lambda each: (self.seconds[each], each)):
            function = test.split("[")[0]
            order.append((turns[function], len(order), test))
            turns[function] += 1
        quick = [test for _, _, test in sorted(order)]
        inside = Counter(test for tests in lines.values() for test in tests)
        close = sorted(quick, key=lambda each: -inside[each] / self.widths[each])
        first = list(dict.fromkeys(quick[:QUICKEST] + close[:CLOSEST]))
        first.sort(key=self.seconds.__getitem__)
        rest, total = [], 0.0
        for test in (each for each in quick if each not in first):
            if (total := total + self.seconds[test]) > LONGER:
                break
            rest.append(test)
        return first, rest


class Worker:
    """A process with a copy of the source, from which one process is forked for each mutant."""

    project: Project
    source: Path

    @classmethod
    def start(cls, project: Project, folder: str) -> None:
        """Copy the source, and import once the packages that every test needs."""
        cls.project, cls.source = project, Path(folder) / str(os.getpid()) / "src"
        shutil.copytree(project.source, cls.source)  # compiled files with it, whose dates stay right
        for name in project.preloaded:
            importlib.import_module(name)

    @classmethod
    def judge(cls, mutant: Mutant, first: list[str], rest: list[str], seconds: dict[str, float]) -> Verdict:
        """Run the tests on the changed source until one fails."""
        path, start = cls.source / mutant.path, time.time()
        path.write_bytes(mutant.apply(path.read_bytes()))
        verdict = Verdict(mutant=mutant, outcome="untested")
        for tests in filter(None, (first, rest)):
            outcome, by = cls.run(tests, LEAST_TIME + SLOWER * sum(seconds[test] for test in tests))
            verdict = Verdict(
                mutant=mutant,
                outcome=outcome,
                by=by,
                tests=verdict.tests + len(tests),
                seconds=round(time.time() - start, 1),
            )
            if verdict.caught:
                break
        shutil.copy2(cls.project.source / mutant.path, path)
        return verdict

    @classmethod
    def run(cls, tests: list[str], limit: float) -> tuple[str, str]:
        """The outcome of the tests, and the first that failed."""
        log = cls.source.parent / "log"
        child = os.fork()
        if not child:
            cls.run_in_child(tests, log)
        end = time.time() + limit
        while not (done := os.waitpid(child, os.WNOHANG))[0] and time.time() < end:
            time.sleep(0.02)
        if not done[0]:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "timed out", ""
        failed = re.search(r"^(?:FAILED|ERROR) (.*?)(?: - .*)?$", log.read_text(errors="replace"), re.MULTILINE)
        return ("caught" if done[1] else "survived"), failed[1] if failed else ""

    @classmethod
    def run_in_child(cls, tests: list[str], log: Path) -> None:
        """Run pytest on the worker's source in a separate process group, and end the process."""
        status = 1
        try:
            os.setsid()
            os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 1)
            os.dup2(1, 2)
            os.chdir(cls.project.root)
            os.environ["PYTHONPATH"] = str(cls.source)
            sys.dont_write_bytecode = True
            import pytest

            paths = f"pythonpath={cls.source} {cls.project.root} {cls.project.root}/tests/support"
            status = int(pytest.main(["-q", "-x", "-rfE", "-p", "no:cacheprovider", "-o", paths, *tests]))
            sys.stdout.flush()
        finally:
            os._exit(status)


def judge_all(project: Project, wanted: dict[str, list[Mutant]], workers: int) -> tuple[dict[str, list[Verdict]], str]:
    """The verdicts of each part, and which of the tests that caught something fails when nothing is changed."""
    tests = Tests(project)
    verdicts: dict[str, list[Verdict]] = {part: [] for part in wanted}
    arguments = {"max_workers": workers, "mp_context": multiprocessing.get_context("spawn")}
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(**arguments, initializer=Worker.start, initargs=(project, folder)) as pool,
    ):
        jobs = {}
        for part, each in ((part, each) for part, many in wanted.items() for each in many):
            first, rest = tests.of(each)
            took = {test: tests.seconds[test] for test in first + rest}
            jobs[pool.submit(Worker.judge, each, first, rest, took)] = part
        for job in as_completed(jobs):
            verdict = job.result()
            verdicts[jobs[job]].append(verdict)
            print(f"{verdict.outcome:9} {verdict.seconds:6.1f} s  {verdict.mutant.name}", flush=True)
        catchers = sorted({each.by for many in verdicts.values() for each in many if each.by in tests.seconds})
        outcome, by = pool.submit(Worker.run, catchers, 1800.0).result() if catchers else ("survived", "")
    return verdicts, "" if outcome == "survived" else by or outcome


def report(project: Project, verdicts: dict[str, list[Verdict]], seed: int) -> tuple[str, bool]:
    """The table with the mutants that were not caught, and whether enough were caught."""
    rows = [f"{'part':12} {'mutants':>8} {'caught':>8} {'timed out':>10} {'survived':>9} {'untested':>9} {'share':>8}"]
    missed, fine = [], True
    for part, many in verdicts.items():
        counted = Counter(each.outcome for each in many)
        share = sum(each.caught for each in many) / max(len(many), 1)
        fine &= share >= ENOUGH
        numbers = [counted[name] for name in ("caught", "timed out", "survived", "untested")]
        rows.append("{:12} {:8} {:8} {:10} {:9} {:9} {:8.1%}".format(part, len(many), *numbers, share))
        for each in sorted((each for each in many if not each.caught), key=lambda each: each.mutant.name):
            missed.append(f"{each.mutant.path}:{each.mutant.line} ({each.outcome}, {each.tests} tests)")
            missed.append("  " + each.mutant.name)
    allowed = project.allowed()
    rows += ["", *missed, "", f"seed {seed}; {len(allowed)} mutants that no test can notice are left out:"]
    rows += [f"  {name}  # {reason}" for name, reason in allowed.items()]
    parts = {part: [asdict(each) for each in many] for part, many in verdicts.items()}
    (project.store / "report.json").write_text(json.dumps({"seed": seed, "parts": parts}, indent=1))
    (project.store / "report.txt").write_text("\n".join(rows) + "\n")
    return "\n".join(rows), fine


def main() -> int:
    """Run the command; the status is 0 if enough mutants were caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="which sample")
    parser.add_argument("--count", type=int, default=100, help="mutants of each part")
    parser.add_argument("--workers", type=int, default=2, help="processes")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS), help="all of them if none is named")
    parser.add_argument("--fresh", action="store_true", help="run all tests again, even if nothing changed since")
    parser.add_argument("--keep", action="store_true", help="do not, though something changed: lines may be off")
    parser.add_argument("--tests", nargs="*", default=[], help="arguments of pytest for the tests to choose from")
    arguments = parser.parse_args()
    project = Project(Path(__file__).resolve().parent.parent, PARTS, PRELOADED)
    start, digest = time.time(), project.store / "digest"
    current = digest.exists() and digest.read_text() == project.digest()
    if arguments.fresh or not (current or arguments.keep):
        collect(project, arguments.workers, arguments.tests)
    wanted = {part: sample(project, part, arguments.seed, arguments.count) for part in arguments.parts}
    verdicts, broken = judge_all(project, wanted, arguments.workers)
    text, fine = report(project, verdicts, arguments.seed)
    print(f"\n{text}\n{time.time() - start:.0f} s")
    if broken:
        print(f"{broken} fails without any change: what it caught does not count")
    if not fine:
        print(f"less than {ENOUGH:.0%} of a part were caught")
    return 0 if fine and not broken else 1


if __name__ == "__main__":
    sys.exit(main())
