"""The benchmark of quality measures what is missing, and only that; on networks of a few weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import peewit as pw
from benchmarks.quality import answers, baselines, run, store, tables, ways
from benchmarks.quality.cases import Case, Networks, Parts, Task
from benchmarks.quality.measure import fingerprint, measure, plain_passes
from benchmarks.quality.training import Recipe
from benchmarks.revision import revision

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@dataclass
class Counter:
    """Makes cases of a network with two weights per class, and counts how often it is asked to."""

    calls: int = 0
    seed: int = 0

    def __call__(self, task: Task, data: Path | None, splits: range, device: torch.device) -> Iterator[Case]:
        self.calls += 1
        for split in splits:
            torch.manual_seed(self.seed + split)
            x, y = torch.randn(40, 2), torch.randint(0, 3, (40,))
            examples = (x, y)
            parts = Parts(
                train=examples,
                stop=examples,
                validation=examples,
                test=examples,
                unknown={"far": 10 * x},
                shifted={"noise": (x + 0.1, y)},
            )
            for training in task.trainings:
                yield Case(
                    task=task.name,
                    likelihood="classification",
                    training=training,
                    variant="whole",
                    split=split,
                    parts=parts,
                    networks=Networks((nn.Sequential(nn.Linear(2, 3)),), None),
                )


@dataclass(frozen=True, kw_only=True)
class Broken(answers.WayOptions):
    """A way that fails."""

    name: str = "broken"

    def fit(self, case: Case) -> answers.Prepared:
        raise ValueError("there is nothing to fit")


@dataclass(frozen=True, kw_only=True)
class NotANumber(answers.WayOptions):
    """A way whose predictions are NaN."""

    name: str = "not a number"

    def fit(self, case: Case) -> answers.Prepared:
        return answers.Prepared(lambda x: answers.of_classes(torch.full((len(x), 3), math.nan)))


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    made = Counter()
    task = Task(
        name="tiny", likelihood="classification", kind="table", half="choose", splits=2, reduced=True, make=made
    )
    other = replace(task, name="other", reduced=False)
    absent = replace(baselines.Plain(), name="absent", needs="a_package_that_is_nowhere")
    monkeypatch.setattr(run, "TASKS", [task, other])
    added = {way.name: way for way in (Broken(), NotANumber(), absent)}
    monkeypatch.setattr(run, "WAYS", {**ways.WAYS, **added})
    return made


def read(folder: Path, way: str, task: str = "tiny") -> dict[str, Any]:
    return store.read(store.path_of(folder, task, way))


def test_what_is_there_is_skipped(counter: Counter, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--tasks", "tiny", "--out", str(tmp_path), "--splits", "1"]
    run.main([*common, "--ways", "plain"])
    assert (counter.calls, read(tmp_path, "plain")["done"]) == (1, ["early/0", "fixed/0"])
    before = read(tmp_path, "plain")
    run.main([*common, "--ways", "plain"])
    assert counter.calls == 1
    run.main([*common, "--ways", "plain,temperature"])
    assert (counter.calls, read(tmp_path, "plain")) == (2, before)
    assert "1 ways" in capsys.readouterr().out
    run.main(["--tasks", "tiny", "--out", str(tmp_path), "--splits", "0-1", "--ways", "plain"])
    assert counter.calls == 3
    assert set(read(tmp_path, "plain")["cases"]) == {f"{how}/whole/{n}" for how in ("early", "fixed") for n in (0, 1)}
    run.main([*common, "--ways", "plain", "--again"])
    assert counter.calls == 4


def test_a_split_that_was_interrupted_goes_on(counter: Counter, tmp_path: Path) -> None:
    common = ["--tasks", "tiny", "--out", str(tmp_path), "--splits", "1", "--ways", "plain"]
    run.main([*common, "--training", "early"])
    assert set(read(tmp_path, "plain")["cases"]) == {"early/whole/0"}
    run.main(common)
    assert set(read(tmp_path, "plain")["cases"]) == {"early/whole/0", "fixed/whole/0"}
    assert counter.calls == 2


def test_a_revision_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version alone."""

    def absent(*_: object, **__: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr("benchmarks.revision.subprocess.run", absent)
    assert revision.__wrapped__() == pw.__version__


def test_a_way_that_fails_is_a_row(counter: Counter, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ["--tasks", "tiny", "--out", str(tmp_path), "--splits", "1", "--training", "fixed"]
    run.main([*common, "--ways", "broken,not-a-number,plain,dropout,absent"])
    assert read(tmp_path, "broken")["cases"]["fixed/whole/0"]["failure"] == "ValueError: there is nothing to fit"
    assert "not finite" in read(tmp_path, "not a number")["cases"]["fixed/whole/0"]["failure"]
    assert "figures" in read(tmp_path, "plain")["cases"]["fixed/whole/0"]
    assert not read(tmp_path, "dropout")["cases"]  # there is no such network
    assert not store.path_of(tmp_path, "tiny", "absent").exists()
    said = capsys.readouterr().out
    assert "broken: ValueError" in said and "absent is not measured" in said
    run.main([*common, "--ways", "broken"])
    assert counter.calls == 1
    run.main([*common, "--ways", "broken", "--failed"])
    assert counter.calls == 2


def test_a_task_that_cannot_be_made_does_not_end_the_run(
    counter: Counter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> Iterator[Case]:
        raise SystemExit("This task needs --data DIR")

    monkeypatch.setattr(run, "TASKS", [replace(run.TASKS[0], make=fail), run.TASKS[1]])
    with pytest.raises(SystemExit, match="2 splits"):
        run.main(["--out", str(tmp_path), "--ways", "plain"])
    assert "tiny, split 1: left out: SystemExit: This task needs --data DIR" in capsys.readouterr().out
    assert len(read(tmp_path, "plain", "other")["cases"]) == 4


def test_networks_that_were_trained_elsewhere_are_left_out(
    counter: Counter, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--tasks", "tiny", "--out", str(tmp_path), "--splits", "1", "--training", "fixed"]
    run.main([*common, "--ways", "plain,dropout,evidence"])
    counter.seed = 100
    for arguments in ([], ["--again"]):
        run.main([*common, "--ways", "temperature", *arguments])
        assert "left out: the files are of a network that was trained elsewhere" in capsys.readouterr().out
        assert not read(tmp_path, "temperature")["cases"] and not read(tmp_path, "temperature")["done"]


def test_networks_that_were_trained_elsewhere_are_renewed(
    counter: Counter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every way is measured again, not only those that were asked for; the same network is not."""
    few = {name: run.WAYS[name] for name in ("plain", "temperature", "evidence")}
    monkeypatch.setattr(run, "WAYS", few)
    common = ["--tasks", "tiny", "--out", str(tmp_path), "--splits", "1", "--training", "fixed"]
    run.main([*common, "--ways", "plain,evidence"])
    before = read(tmp_path, "evidence")["cases"]
    run.main([*common, "--ways", "temperature", "--renew"])
    assert read(tmp_path, "evidence")["cases"] == before
    counter.seed = 100
    run.main([*common, "--ways", "temperature", "--again", "--renew"])
    networks = {read(tmp_path, name)["cases"]["fixed/whole/0"]["network"] for name in few}
    assert len(networks) == 1 and networks != {before["fixed/whole/0"]["network"]}


def test_a_record_has_all_there_is_to_know(counter: Counter) -> None:
    case = next(counter(run.TASKS[0], None, range(1), CPU))
    for way in (baselines.Plain(), ways.WAYS["validation"], ways.WAYS["evidence"]):
        record = measure(way, case, plain_passes(case))
        assert record is not None
        assert set(record["figures"]) == {"nll", "brier", "ece", "accuracy"} == set(record["shifted"]["noise"])
        assert record["unknown"]["far"].keys() >= {"entropy"}
        assert record["network"] == fingerprint(case.networks.plain)
        assert record["revision"].split()[0] == pw.__version__ and record["revision"] == revision()
        assert record["cost"].keys() == {"fit", "predict", "seconds"}
        assert ("error" in record) == (way.name != "plain") and record.get("error", 1.0) > 0
    assert record["unknown"]["far"].keys() == {"entropy", "mutual information"}
    assert record["settings"].keys() == {"precision", "effective dimensions", "examples", "weights"}


def test_the_reduced_run_has_the_main_ways_and_few_splits() -> None:
    options = run.parse(["--reduced"])
    assert options.out == run.REDUCED
    assert {"plain", "temperature", ways.RECIPE, ways.VALIDATED} <= set(options.ways) < set(ways.WAYS)
    jobs = run.jobs_of(options)
    assert {name for name, _ in jobs} == {"digits", "diabetes", "wine", "fashion mlp"}
    assert jobs.count(("fashion mlp", 0)) == 1 and len(jobs) == 10


def test_a_task_that_runs_only_by_name(counter: Counter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "TASKS", [run.TASKS[0], replace(run.TASKS[1], by_name=True, reduced=True)])
    for arguments in ([], ["--reduced"]):
        assert run.parse(arguments).tasks == ("tiny",)
    assert run.parse(["--tasks", "other"]).tasks == ("other",)


def test_ways_beside_the_splits_that_are_there(counter: Counter, tmp_path: Path) -> None:
    common = ["--tasks", "tiny", "--out", str(tmp_path)]
    run.main([*common, "--splits", "1-1", "--ways", "plain"])
    run.main([*common, "--beside", "--ways", "temperature"])
    assert set(read(tmp_path, "temperature")["cases"]) == {"early/whole/1", "fixed/whole/1"}
    run.main([*common, "--ways", "temperature"])
    assert len(read(tmp_path, "temperature")["cases"]) == 4


def test_tasks_of_some_kinds() -> None:
    assert run.parse(["--kinds", "text"]).tasks == ("trec", "sst2", "subj")
    assert run.parse(["--kinds", "text,table", "--tasks", "trec,wine,mnist-cnn"]).tasks == ("wine", "trec")


def test_names_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    options = run.parse(["--ways", "linear mode, its own mean,plain,last-layer-evidence", "--tasks", "red-wine"])
    assert options.ways == ("linear mode, its own mean", "plain", "last layer, evidence")
    assert (options.tasks, options.splits) == (("red wine",), None)
    assert run.parse(["--splits", "3-5"]).splits == range(3, 6)
    for wrong, said in ((["--ways", "plane"], "plane was given; expected plain"), (["--splits", "x"], "expected N")):
        with pytest.raises(SystemExit):
            run.parse(wrong)
        assert said in capsys.readouterr().err


def test_ways_for_images_are_few_unless_named() -> None:
    image = replace(run.TASKS[0], kind="image")
    assert "linear mode" not in [way.name for way in run.ways_for(image, run.parse([]))]
    assert [way.name for way in run.ways_for(image, run.parse(["--ways", "linear mode"]))] == ["linear mode"]
    numbers = replace(image, kind="table", likelihood="regression")
    assert "evidence, bridge" not in [way.name for way in run.ways_for(numbers, run.parse([]))]


def test_a_real_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(tables.RECIPES, "wine", Recipe(hidden=(8,), steps=100))
    run.main(["--tasks", "wine", "--splits", "1", "--ways", "plain,validation", "--out", str(tmp_path)])
    content = read(tmp_path, "validation", "wine")
    assert content.keys() >= {"format", "task", "way", "likelihood", "kind", "half", "validated", "machine", "done"}
    assert len(content["cases"]) == 4
    for key, record in content["cases"].items():
        assert record["figures"]["accuracy"] > 0.7
        assert bool(record["unknown"]) == ("left out" in key)
