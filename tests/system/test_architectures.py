"""The run over architectures measures, survives crashes and slow networks, and its page says what its file says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.architectures import networks, page, run
from environment import ROOT

pytest.importorskip("transformers")

OPTIONS = ["--small", "--examples", "8", "--batch-size", "4"]


def measured(path: Path, *more: str) -> list[dict[str, Any]]:
    """The records of a run over small networks."""
    return run.run(run.parse([*OPTIONS, "--json", str(path), *more])).records


def test_rules_and_times_are_noted_and_a_run_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file.json"
    (bert,) = measured(path, "--networks", "BertForSequenceClassification")
    whole, last = bert["all"], bert["last_layer"]
    assert whole["D"] == bert["parameters"] == sum(whole["rules"].values()) == sum(whole["approximations"].values())
    assert last["D"] == 2 * 64 + 2 and last["rules"]["linear"] == last["D"]
    assert whole["generic"] == [] and whole["finite"] and whole["warnings"] == []
    assert 0 < whole["decompose_seconds"] < whole["fit_seconds"] and bert["pass_seconds"] > 0
    both = measured(path, "--networks", "BertForSequenceClassification", "T5ForTokenClassification")
    assert both[0]["all"] == whole  # not measured again
    (bias,) = both[1]["all"]["generic"]
    assert bias.endswith("relative_attention_bias.weight")
    assert "128 generic" in capsys.readouterr().out
    lines = "\n".join(page.page_lines([run.read(path)]))
    assert "In 1 of them every weight has a rule" in lines
    assert "T5's encoder: 128 of 130,114 weights take the generic rule" in lines


def test_crashes_and_slow_networks_end_nothing_else(tmp_path: Path) -> None:
    options = run.parse([*OPTIONS, "--json", str(tmp_path / "file.json")])
    worker = run.Worker(options)
    try:
        options.limit = 0.001
        assert worker.measured("T5ForTokenClassification")["failure"] == "stopped after 0 seconds"
        options.limit = 120.0
        worker.process.kill()
        worker.process.join()
        assert worker.measured("T5ForTokenClassification")["failure"] == "the process ended"
        assert "fit_seconds" in worker.measured("T5ForTokenClassification")["all"]
    finally:
        worker.end()


def test_a_network_that_fails_says_why() -> None:
    said: dict[str, Any] = {}

    class Refused(networks.Architecture):
        def build(self, small: bool = False) -> torch.nn.Module:
            raise ValueError("no such layer")

    refused = Refused(name="none", library="transformers", what="None", inputs="text")
    failed = run.attempt(lambda: run.measure(refused, run.parse([*OPTIONS, "--json", "x"]), said.update))
    assert failed.as_dict() == {"failure": "ValueError: no such layer"}


def test_the_page_shows_failures_and_shares() -> None:
    whole = {
        "D": 1000,
        "rules": {"linear": 900, "generic": 75, "embedding + generic": 25},
        "approximations": {"Kronecker (expand)": 900, "diagonal": 100},
        "generic": ["a.0.bias", "a.1.bias"],
        "fit_seconds": 3.0,
        "decompose_seconds": 1.0,
        "fit_bytes": 2**30,
        "predict_seconds": 0.25,
        "predict_bytes": 2**29,
    }
    slow = {"failure": "stopped after 60 seconds", "parameters": 5, "pass_seconds": 0.1}
    good = {"all": whole, "last_layer": {"failure": "PeewitError: no"}, "parameters": 1000, "pass_seconds": 0.5}
    about = {"library": "timm", "what": "Net", "network": "net", "built": "small_net"}
    content = {
        "machine": "abacus",
        "device": "cuda",
        "small": False,
        "torch": "2",
        "libraries": {"timm": "1", "transformers": None},
        "date": "today",
        "examples": 8,
        "batch_size": 4,
        "records": [{**about, **good}, {**about, **slow}],
    }
    lines = page.page_lines([{**content, "machine": "fingers", "device": "cpu", "small": True}, content])
    assert lines[0] == "## abacus: usual sizes" and "## fingers: a few narrow layers of each" in lines
    assert "1 of 2 architectures were fitted" in lines[4] and "In 0 of them" in lines[4]
    assert "- Net: 100 of 1,000 weights take the generic rule: `0.bias`, `1.bias`." in lines
    assert "- Net was not fitted: stopped after 60 seconds." in lines
    assert any("| Net, `small_net` |" in line for line in lines)
    row = next(line for line in lines if "1,000 | 10.0 %" in line)
    assert row.split(" | ")[3:] == ["Kronecker 90.0 %, diagonal 10.0 %", "500", "4", "1", "1.00", "250", "0.50 |"]
    assert any("PeewitError: no" in line for line in lines)
    assert [page.percent(each) for each in (1.0, 0.9999, 0.0001)] == ["100 %", "> 99.9 %", "< 0.1 %"]


def test_batch_norms_get_the_statistics_of_a_batch() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(3, momentum=0.2), torch.nn.Linear(3, 2)).eval()
    x = 5 + 2 * torch.randn(64, 3)
    networks.settled(model, {"x": x})
    norm: Any = model[0]
    assert not norm.training and norm.momentum == 0.2
    torch.testing.assert_close(norm.running_mean, x.mean(0))
    torch.testing.assert_close(norm.running_var, x.var(0))


def test_the_page_is_that_of_the_files() -> None:
    contents = [run.read(file) for file in sorted(page.RESULTS.glob("*.json"))]
    assert contents and all(len(content["records"]) > 25 for content in contents)
    text = (ROOT / "docs" / "architectures.md").read_text(encoding="utf-8")
    assert "\n".join(page.page_lines(contents)) in text
