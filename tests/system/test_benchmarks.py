"""The benchmark counts, measures, judges and reports as it says; on networks of a few weights."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from benchmarks import checks, count, goals, measure, networks, ours, peer, report, run, sections, tables
from benchmarks.cases import Bench, Case, Settings, forward_backward
from benchmarks.journal import Journal, Run, merge, read
from benchmarks.sections import agreement, growth, predictives
from environment import DEVICE, ROOT

TINY = networks.Network(
    title="tiny",
    build=partial(networks.perceptron, 4, 5, 3),
    quick=partial(networks.perceptron, 4, 5, 3),
    shape=(4,),
    classes=3,
    examples=32,
    quick_classes=3,
)
HEADER = {
    "machine": "abacus",
    "device": "cuda",
    "torch": "2",
    "precision": "fp32",
    "batch_size": 128,
    "quick": False,
}


def times(*seconds: float) -> dict[str, Any]:
    return measure.Timing(seconds).as_dict()


def made(*records: dict[str, Any], **header: Any) -> Run:
    """A run with these records."""
    return Run({**HEADER, **header}, records)


# --- counted operations


def test_operations_of_a_perceptron_by_hand() -> None:
    shapes = count.layer_shapes(networks.mlp(), torch.zeros(1, 1, 28, 28))
    assert [(each.positions, each.inputs, each.outputs, each.first) for each in shapes] == [
        (1, 784, 512, True),
        (1, 512, 512, False),
        (1, 512, 10, False),
    ]
    forward = 2 * (784 * 512 + 512 * 512 + 512 * 10)
    inner = 2 * (512 * 512 + 512 * 10)
    assert count.plain_pass(shapes, 7) == count.Operations(
        forward=7 * forward, backward=7 * (inner + forward), inputs=0, gradients=0
    )
    made = count.fit(shapes, 7, probes=10, structure="kron")
    assert made.forward == 7 * forward and made.backward == 7 * 10 * inner
    assert made.inputs == 7 * 2 * (784**2 + 512**2 + 512**2)
    assert made.gradients == 7 * 10 * 2 * (512**2 + 512**2 + 10**2)
    assert made.total == made.forward + made.backward + made.inputs + made.gradients
    diagonal = count.fit(shapes, 7, probes=10, structure="diag")
    assert diagonal.total == 7 * (forward + 10 * inner + 10 * forward)
    twice = count.fit(shapes, 7, probes=10, structure="ekfac")
    assert twice.total == 2 * made.total + 7 * 10 * forward
    with pytest.raises(ValueError, match="full"):
        count.fit(shapes, 7, 10, "full")


def test_operations_of_convolutions_by_hand() -> None:
    shapes = count.layer_shapes(networks.lenet(), torch.zeros(2, 1, 28, 28))
    assert [(each.positions, each.inputs, each.outputs) for each in shapes] == [
        (784, 25, 16),
        (196, 400, 32),
        (1, 1568, 128),
        (1, 128, 10),
    ]
    made = count.fit(shapes, 1, probes=1, structure="kron")
    assert made.inputs == 2 * (784 * 25**2 + 196 * 400**2 + 1568**2 + 128**2)
    assert made.gradients == 2 * (784 * 16**2 + 196 * 32**2 + 128**2 + 10**2)
    grouped = nn.Conv2d(6, 4, 3, stride=2, padding=1, groups=2)
    (shape,) = count.layer_shapes(grouped, torch.zeros(1, 6, 8, 8))
    assert shape == count.LayerShape(name="", positions=16, inputs=27, outputs=2, groups=2, first=True)
    assert shape.product == 2 * 2 * 16 * 27 * 2
    (positions,) = count.layer_shapes(nn.Linear(3, 5), torch.zeros(1, 7, 3))
    assert positions.positions == 7


@pytest.mark.parametrize(
    ("model", "shape"),
    [(networks.lenet(), (1, 28, 28)), (networks.resnet18(width=4), (3, 32, 32)), (networks.mlp(width=8), (784,))],
)
def test_operations_of_a_plain_pass_are_those_that_torch_counts(model: nn.Module, shape: tuple[int, ...]) -> None:
    x = torch.randn(3, *shape)
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model.eval()(x), torch.tensor([0, 1, 2]), reduction="sum").backward()
    counted = count.plain_pass(count.layer_shapes(model, x), 3)
    assert counted.total == counter.get_total_flops()


# --- measuring


def test_a_failure_is_a_value() -> None:
    def fails(error: BaseException) -> measure.Failure:
        def function() -> None:
            raise error

        made = measure.attempt(function)
        assert isinstance(made, measure.Failure)
        return made

    assert fails(torch.OutOfMemoryError("CUDA out of memory")).reason == "out of memory"
    assert fails(MemoryError()).reason == "out of memory"
    assert fails(RuntimeError("[enforce fail] can't allocate memory: 7 bytes")).reason == "out of memory"
    assert fails(ValueError("what was\n given")).reason == "ValueError: what was given"
    assert fails(SystemExit("their exit")).reason == "SystemExit: their exit"
    with pytest.raises(KeyboardInterrupt):
        fails(KeyboardInterrupt())


def test_repeats_end_with_patience() -> None:
    device = torch.device("cpu")
    calls: list[int] = []
    assert len(measure.timed(lambda: calls.append(1), device, 4, 60.0).seconds) == 4
    assert len(measure.timed(lambda: calls.append(1), device, 4, 0.0).seconds) == 1
    assert len(calls) == 5
    once = measure.measured(lambda: calls.append(1), device, 4, 0.0)
    assert len(calls) == 6 and len(once.timing.seconds) == 1
    timing = measure.Timing((1.0, 4.0, 2.0), (2.0, 3.0, 2.5))
    assert timing.median == 2.0 and timing.spread == 1.5 and timing.as_dict()["processor"] == 2.5


def test_memory_of_a_call_is_seen() -> None:
    device = torch.device(DEVICE)

    def allocate() -> None:
        torch.ones(1 << 24, device=device).sum()

    allocate()
    found = measure.measured(allocate, device, 1, 1.0)
    assert 0.9 * (1 << 26) < found.extra < 3 * (1 << 26)


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="the limit is the system's")
def test_too_much_memory_fails_and_the_limit_is_lifted() -> None:
    def allocate() -> None:
        torch.empty(measure.available_bytes(), dtype=torch.uint8, device="cpu")  # asked for, never touched

    with measure.within_memory(torch.device("cpu"), share=0.5):
        found = measure.attempt(allocate)
        assert isinstance(found, measure.Failure) and found.reason == "out of memory"
        assert not isinstance(measure.attempt(lambda: torch.ones(1 << 20)), measure.Failure)
    assert measure.attempt(allocate) is None


def test_precisions_are_set_or_refused() -> None:
    flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    kept = measure.chosen[0]
    expected = {
        "tf32": (True, True, "tf32"),
        "bf16": (True, True, "bf16"),
        "default": (False, True, "auto"),
        "fp32": (False, False, "float32"),
    }
    try:
        for name, (matrices, convolutions, arithmetic) in expected.items():
            measure.set_precision(name)
            assert torch.backends.cuda.matmul.allow_tf32 == matrices
            assert torch.backends.cudnn.allow_tf32 == convolutions
            assert measure.arithmetic() == arithmetic
        with pytest.raises(ValueError, match="fp31"):
            measure.set_precision("fp31")
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = flags
        measure.chosen[0] = kept


def test_only_the_figures_need_matplotlib() -> None:
    sources = (ROOT / "benchmarks").glob("**/*.py")
    assert {each.name for each in sources if "matplotlib import" in each.read_text().replace(".", " ")} <= {
        "figures.py"
    }
    assert "\nfrom matplotlib" not in (ROOT / "benchmarks" / "figures.py").read_text()  # inside a function only


# --- cases and sections


def test_a_case_of_tokens_names_the_next_one() -> None:
    network = replace(networks.NETWORKS["gpt"], quick=partial(networks.gpt, 7, 8, 1, 2, 5), shape=(5,), quick_classes=7)
    case = Case.of("gpt", network, Settings(device=torch.device(DEVICE), quick=True))
    x, y = case.batches[0]
    assert x.shape == y.shape == (16, 5) and x.dtype == torch.int64
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert case.model(x).shape == (16, 5, 7)
    changed = x.clone()
    changed[:, -1] = (x[:, -1] + 1) % 7
    assert torch.allclose(case.model(x)[:, :-1], case.model(changed)[:, :-1], atol=1e-5)  # causal
    forward_backward(case.model, case.batches)
    assert all(parameter.grad is None for parameter in case.model.parameters())


def quick_run(tmp_path: Path, *arguments: str) -> Run:
    """A run of the whole command on tiny networks."""
    path = tmp_path / "made.json"
    options = ["--quick", "--device", DEVICE, "--precision", "fp32", "--repeats", "1", "--json", str(path)]
    run.main([*options, *arguments])
    (found,) = merge([read(path)])
    assert list(tmp_path.iterdir()) == [path]  # nothing half written beside it
    return found


def test_one_command_measures_every_precision(capsys: pytest.CaptureFixture[str]) -> None:
    """On a GPU, of each what depends on it; one file has room for one of them."""
    assert run.parse(["--device", "cpu"]).precision == ["fp32"]
    every = run.parse(["--device", "cuda"])
    assert every.precision == list(measure.PRECISIONS)
    found = {name: run.scope(every, name) for name in every.precision}
    assert {section for each in found.values() for section in each.sections} == set(sections.SECTIONS)
    assert not found["bf16"].peer and found["fp32"].structures == ("kron", "ekfac")
    some = run.parse(["--device", "cuda", "--precision", "fp32", "tf32", "--sections", "growth", "fits", "--skip-peer"])
    assert run.scope(some, "fp32") == run.Scope(("fits", "growth"), ("kron", "ekfac"), False)
    assert run.scope(some, "tf32") == run.Scope(("fits",), ("kron",), False)
    alone = run.parse(["--device", "cuda", "--precision", "bf16"])
    assert run.scope(alone, "bf16").sections == tuple(sections.SECTIONS)
    with pytest.raises(SystemExit):
        run.parse(["--device", "cuda", "--json", "one.json"])
    assert "name one --precision" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        run.parse(["--device", "cuda", "--precision", "tf32", "bf16", "--sections", "diag", "fits"])
    assert "of diag nothing depends on these precisions" in capsys.readouterr().err


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiny networks in place of those of the tables."""
    monkeypatch.setitem(networks.NETWORKS, "mlp", TINY)
    monkeypatch.setitem(networks.LAST, "last-10", TINY)
    points = [replace(axis, sizes=axis.sizes[:2]) for axis in growth.AXES if axis.name in ("examples", "outputs")]
    monkeypatch.setattr(growth, "AXES", tuple(points))
    monkeypatch.setattr(growth, "LIMITS", growth.LIMITS[:1])


@pytest.mark.usefixtures("tiny")
def test_all_sections_run_beside_the_peer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("laplace")
    found = quick_run(tmp_path, "--networks", "mlp", "last-10")
    failures = [each for each in found.records if "failure" in each]
    if DEVICE == "cpu":
        assert failures == []
    assert {each["section"] for each in found.records} == set(sections.SECTIONS)
    assert {each["library"] for each in found.records if "library" in each} == {"torch", ours.NAME, peer.NAME}
    for record in found.find(section="agreement"):
        assert record["agrees"] and record["variance_difference"] < 1e-4, record
    fitted = found.one(section="fits", library=ours.NAME, structure="kron", curvature="exact")
    assert fitted is not None and fitted["decompositions"]["median"] < fitted["time"]["median"]
    assert fitted["operations"]["total"] > fitted["unit_operations"] > 0
    predicted = found.one(section="predictives", library=ours.NAME)
    assert predicted is not None and [each["batch"] for each in predicted["points"]] == [1, 8]
    (baseline,) = found.find(section="fits", library="torch")
    assert baseline["time"]["median"] == fitted["unit_seconds"]
    printed = capsys.readouterr().out
    for words in (
        "Fits:",
        "Predictives:",
        "Diagonal fits:",
        "The last layer alone:",
        "The mode of the linear model:",
        "Agreement:",
        "Growth:",
        "Goals:",
    ):
        assert words in printed


@pytest.mark.usefixtures("tiny")
def test_one_failing_section_does_not_lose_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(bench: Bench) -> None:
        bench.journal.add({"seconds": 1.0}, section="fits", axis="none")
        raise RuntimeError("in the middle")

    monkeypatch.setitem(sections.SECTIONS, "fits", breaks)
    monkeypatch.setattr(ours, "fit", lambda *given, **more: (_ for _ in ()).throw(torch.OutOfMemoryError("full")))
    found = quick_run(tmp_path, "--networks", "mlp", "--skip-peer", "--sections", "fits", "tuning", "predictives")
    assert found.records[0]["seconds"] == 1.0
    assert [each["failure"] for each in found.records[1:]] == [
        "RuntimeError: in the middle",
        "out of memory",
        "out of memory",
    ]
    assert [row[1:] for row in tables.failure_table([found]).rows] == [("fits", "RuntimeError: in the middle")]


@pytest.mark.usefixtures("tiny")
def test_batch_sizes_end_where_memory_does() -> None:
    case = Case.of("mlp", TINY, Settings(device=torch.device(DEVICE), quick=True, repeats=1))

    def functional(x: torch.Tensor) -> None:
        if len(x) > 4:
            raise torch.OutOfMemoryError("too many")

    found = predictives.curve(case, functional, (1, 4, 8, 16))
    assert [each["batch"] for each in found["points"]] == [1, 4, 8]
    assert found["points"][-1]["failure"] == "out of memory" and found["best"]["batch"] in (1, 4)
    nothing = predictives.curve(case, functional, (8,))
    assert nothing["failure"] == "out of memory" and "best" not in nothing


def test_disagreement_is_seen() -> None:
    right = torch.eye(3).expand(2, 3, 3).clone()
    same = agreement.difference(right, right, -10.0, -10.0)
    assert same["agrees"] and same["variance_difference"] == 0
    wrong = right.clone()
    wrong[1, 2, 2] = 1.01  # one variance in six
    found = agreement.difference(wrong, right, -10.0, -10.0)
    assert not found["agrees"] and found["variance_difference"] == pytest.approx(0.01, rel=1e-4)
    found = agreement.difference(right, right, -10.1, -10.0)
    assert not found["agrees"] and found["evidence_difference"] == pytest.approx(0.01)


# --- files, goals and pages


def test_files_are_whole_and_merge(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file.json"
    journal = Journal(HEADER, path)
    for size in (1, 2):
        journal.add({"value": size}, section="growth", axis="batch", size=size)
        assert len(json.loads(path.read_text())["records"]) == size
    journal.add(measure.Failure("no"), section="fits", network="mlp")
    later = Journal(HEADER, tmp_path / "later.json")
    later.add({"value": 20}, section="growth", axis="batch", size=2)
    other = Journal({**HEADER, "precision": "tf32"}, tmp_path / "other.json")
    other.add({"value": 7}, section="growth", axis="batch", size=2)
    first, second = merge([read(each.path) for each in (journal, later, other) if each.path])
    assert [each.get("value") for each in first.records] == [1, None, 20]
    assert first.one(section="fits") is None and first.find(section="fits")[0]["failure"] == "no"
    assert second.header["precision"] == "tf32" and [each["value"] for each in second.records] == [7]
    (tmp_path / "old.json").write_text('{"results": []}')
    with pytest.raises(ValueError, match=r"old\.json"):
        read(tmp_path / "old.json")


def test_slopes_are_those_of_power_laws() -> None:
    assert goals.slope([(size, 3 * size**1.5) for size in (2, 4, 16)]) == pytest.approx(1.5)
    assert goals.slope([(2, 1.0)]) is None
    points = [
        {
            "section": "growth",
            "axis": "examples",
            "task": "fit",
            "library": "peewit",
            "curvature": "exact",
            "size": size,
            "time": times(1e-3 * size),
            "extra_bytes": 100 + size / 100,
        }
        for size in (1024, 512, 2048)
    ]
    grown = made(*points)
    assert goals.time_slope(grown) == pytest.approx(1.0)
    assert list(tables.growth_table([grown]).rows[0][:5]) == [
        "fp32",
        "examples",
        "peewit, fit, exact",
        "512 to 2,048",
        "512 to 2,048",
    ]


def fit_record(library: str, curvature: str, seconds: float, decompositions: float, **more: Any) -> dict[str, Any]:
    return {
        "section": "fits",
        "network": "resnet18",
        "title": "ResNet-18",
        "parameters": 11_000_000,
        "examples": 4096,
        "classes": 10,
        "library": library,
        "task": "fit",
        "structure": "kron",
        "curvature": curvature,
        "time": times(seconds),
        "decompositions": times(decompositions),
        "peak_bytes": 2**30,
        "extra_bytes": 2**29,
        "unit_seconds": 0.5,
        "unit_operations": 100,
        **more,
    }


def judged(found: Run, what: str, case: str) -> goals.Outcome:
    """The outcome of one goal."""
    (goal,) = (
        each for each in goals.GOALS if each.what.startswith(what) and each.case == case and each.concerns(found)
    )
    return goal.outcome(found)


def test_goals_are_judged_by_the_numbers() -> None:
    found = made(
        fit_record("peewit", "exact", 2.5, 0.5, operations={"total": 200}),
        fit_record("peewit", "MC(1)", 2.5, 0.5),
        fit_record("laplace-torch", "exact", 20.0, 0.5),
    )
    exact = judged(found, "fit, exact, likewise, over forward and backward", "ResNet-18")
    assert exact.value == pytest.approx(4.0) and exact.met and exact.words == "4x: **met**"
    drawn = judged(found, "fit, MC(1), without decompositions", "ResNet-18")
    assert drawn.met is False and drawn.missed_by == pytest.approx(4.0 / 2.5)
    assert drawn.words == "4x: **missed** by 1.6x" and drawn.goal.words == "≤ 2.5x"
    counted = judged(found, "fit, exact, likewise, over its counted operations", "ResNet-18")
    assert counted.value == pytest.approx(2.0 / (0.5 * 200 / 100))
    beside = judged(found, "fit, exact, with decompositions", "ResNet-18")
    assert beside.value == pytest.approx(8.0) and beside.met
    slow = judged(found, "decompositions of ResNet-18", "`kron`")
    assert slow.value == 0.5 and slow.words == "0.5 s: **missed** by 1.25x"
    assert judged(found, "fit, exact, with decompositions", "ViT").words == "–"


def test_one_input_at_a_time_has_percentiles_and_says_where_no_gpu_measured_it() -> None:
    way = {"p50": 0.001, "p90": 0.002, "p99": 0.004, "repeats": 500}
    ways = {"forward pass": way, "la.predictor": {**way, "p50": 0.0012}, "laplace-torch": {**way, "p50": 0.003}}
    record = {"section": "single", "network": "mlp", "title": "MLP", "weights": "last_layer", "ways": ways}
    for device, title in (("cpu", "One input at a time, on the CPU"), ("cuda", "One input at a time")):
        table = tables.single_table([made(record, device=device)])
        assert table.title == title
        assert table.rows[1] == ("MLP", "last layer", "fp32", "la.predictor", "1.2", "2", "4", "500", "1.2", "2.5")


def test_goals_of_predictions_compare_the_best_batches() -> None:
    def record(library: str, rate: float, batch: int, extra: int) -> dict[str, Any]:
        best = {"batch": batch, "per_second": rate, "extra_bytes": extra, "time": times(batch / rate)}
        return {
            "section": "predictives",
            "network": "vit",
            "title": "ViT",
            "library": library,
            "best": best,
            "points": [best],
        }

    found = made(record("peewit", 900.0, 100, 2000), record("laplace-torch", 20.0, 4, 1000))
    rate = judged(found, "closed-form predictive", "ViT")
    assert rate.value == 45 and rate.met
    memory = judged(found, "memory of that predictive", "ViT")
    assert memory.value == pytest.approx(250 / 20) and memory.met is False
    assert goals.processor_ratio(found, "vit") is None
    for each, busy in zip(found.records, (10.0, 8.0), strict=True):
        each["best"]["time"]["processor"] = busy
    assert goals.processor_ratio(found, "vit") == pytest.approx((8 / 4) / (10 / 100))
    default = Run({**found.header, "precision": "default"}, found.records)
    rate = judged(default, "closed-form predictive", "ViT")  # another bound
    assert rate.met is False and rate.missed_by == pytest.approx(100 / 45)
    (row, other) = tables.predictive_table([found]).rows
    assert row[3:5] == ("900", "100") and row[7:9] == ("45", "12.5") and other[7:9] == ("1", "1")


def test_every_goal_can_be_asked_of_a_run_without_records() -> None:
    for device in ("cpu", "cuda"):
        for precision in measure.PRECISIONS:
            empty = made(device=device, precision=precision)
            for goal in goals.GOALS:
                outcome = goal.outcome(empty)
                assert outcome.met is None and outcome.words == "–"
    assert math.isinf(goals.Outcome(goals.GOALS[0], 0.0).missed_by)


def test_pages_keep_what_was_written_by_hand(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Speed\n\nby hand\n\n{report.BEGIN}\nold\n{report.END}\n\nalso by hand\n")
    found = [
        made(fit_record("peewit", "exact", 2.5, 0.5)),
        made(fit_record("peewit", "exact", 1.5, 0.5), precision="tf32"),
    ]
    for _ in range(2):  # the second time changes nothing
        report.write_page(page, report.measured_part(found))
        text = page.read_text()
        assert "old" not in text and text.startswith("# Speed\n\nby hand\n") and text.endswith("\n\nalso by hand\n")
        assert "abacus" in text and "### Fits" not in text
        assert "| what | of | goal | fp32 | tf32 |" in text
    assert text == (page.write_text(text), page.read_text())[1]
    others = report.second_page(found)
    assert "abacus" in others and "| fp32 | peewit, kron, exact | 2.5 (1 run) | 2 | 4 |" in others
    assert "| tf32 | peewit, kron, exact | 1.5 (1 run) | 1 | 2 |" in others
    page.write_text(f"{report.BEGIN} {report.BEGIN} {report.END}")
    with pytest.raises(ValueError, match="expected one each"):
        report.write_page(page, [])
    report.write_page(tmp_path / "new.md", ["made"])
    assert report.BEGIN in (tmp_path / "new.md").read_text()


def test_figures_are_written_and_linked(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "run.json"
    journal = Journal(HEADER, path)
    for library, power in (("peewit", 1), ("laplace-torch", 2)):
        for task in ("fit", "predictive"):
            for size in (8, 32, 128):
                journal.add(
                    {"time": times(1e-4 * size**power), "extra_bytes": 2**20 * size, "peak_bytes": 0},
                    section="growth",
                    axis="weights",
                    size=size,
                    library=library,
                    task=task,
                    curvature="exact",
                )
    page, folder = tmp_path / "docs" / "page.md", tmp_path / "docs" / "figures"
    report.main([str(path), "--markdown", str(page), "--figures", str(folder)])
    (picture,) = folder.iterdir()
    assert picture.name == "weights-cuda-fp32.png" and picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000
    assert "](figures/weights-cuda-fp32.png)" in page.read_text()
    assert "### Growth" in page.with_name(report.OTHERS).read_text() and "### Growth" not in page.read_text()


def test_inputs_to_predict_at_are_not_among_the_data() -> None:
    case = Case.of("mlp", TINY, Settings(device=torch.device(DEVICE), quick=True))
    seen = torch.cat([inputs for inputs, _ in case.batches])
    assert float((case.inputs(4)[:, None] - seen).abs().amax(-1).min()) > 0.01


# --- what the engine's own checks cost


def test_costs_of_the_checks(capsys: pytest.CaptureFixture[str]) -> None:
    """Both tables have their rows, and what is replaced for a measurement is put back."""
    kept = checks.tracer.verify, checks.rounding.SHOWS
    checks.main(["--quick", "--device", str(DEVICE)])
    assert (checks.tracer.verify, checks.rounding.SHOWS) == kept
    shown = capsys.readouterr().out
    assert shown.count("perceptron 10-32-10") == 2 and "loader, batches of 128" in shown
    assert "10-64-1, such inputs, block" in shown and "refused" in shown


def test_a_watch_adds_up_what_it_sees() -> None:
    watch = checks.Watch(lambda number: number + 1, torch.device("cpu"))
    assert watch(1) == 2 and 0 < watch.seconds < 1
    before = watch.seconds
    assert watch(2) == 3 and watch.seconds > before
