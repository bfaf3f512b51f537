"""The study of the linear mode with BatchNorm: its networks, its ways and its table."""

from __future__ import annotations

import json
import math
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.quality import batchnorm
from benchmarks.quality.cases import Likelihood
from benchmarks.quality.training import Recipe
from quality_tables import table_of

SHORT = Recipe(hidden=(6,), steps=120, batch=16)


@pytest.mark.parametrize("likelihood", ["classification", "regression"])
def test_every_way_on_a_small_table(likelihood: Likelihood, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, loss_of = [], batchnorm.stopping_loss

    def note(*arguments: Any) -> float:
        seen.append(loss_of(*arguments))
        return seen[-1]

    monkeypatch.setattr(batchnorm, "stopping_loss", note)
    parts, outputs = batchnorm.split_of(table_of(likelihood), likelihood, 0)
    assert outputs == (3 if likelihood == "classification" else 1)
    networks = batchnorm.train(parts, likelihood, outputs, SHORT, seed=0)
    assert list(networks) == ["early", "fixed"]
    for network in networks.values():
        assert not network.training and any(isinstance(layer, nn.BatchNorm1d) for layer in network)  # type: ignore[attr-defined]
    assert len(seen) == 2 and loss_of(networks["early"], parts.stop, likelihood) == pytest.approx(min(seen))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        record = batchnorm.measure(networks["fixed"], parts, likelihood)
    assert tuple(record["nll"]) == batchnorm.WAYS
    assert all(math.isfinite(value) for value in record["nll"].values())
    assert len({round(value, 6) for value in record["nll"].values()}) >= 6  # the ways differ


def test_the_plain_network_has_the_noise_of_its_training_residuals() -> None:
    parts, _ = batchnorm.split_of(table_of("regression"), "regression", 0)
    network = nn.Linear(3, 1)
    with torch.no_grad():
        noise = (network(parts.train[0]) - parts.train[1]).square().mean()
        squares = (network(parts.test[0]) - parts.test[1]).square()
        expected = 0.5 * (squares / noise + (2 * math.pi * noise).log()).mean()
    assert batchnorm.plain_nll(network, parts, "regression") == pytest.approx(float(expected), rel=1e-5)


def record_of(likelihood: str, base: float, shift: float, off: list[str]) -> batchnorm.Record:
    nll = dict.fromkeys(batchnorm.WAYS, base) | {batchnorm.ONE: base + shift}
    return {"likelihood": likelihood, "nll": nll, "switched off": off}


def test_table_counts_tasks_and_runs_below_the_evidence() -> None:
    results = {
        "first/early/0": record_of("classification", 1.0, -0.3, []),
        "first/fixed/0": record_of("classification", 2.0, 0.1, []),
        "second/early/0": record_of("classification", 1.0, 0.2, []),
        "third/early/0": record_of("regression", 4.0, -1.0, [batchnorm.SETS]),
    }
    rows = {row[0]: row[1:] for row in batchnorm.table(results).rows}
    assert tuple(rows) == batchnorm.WAYS
    assert rows[batchnorm.ONE] == ("1", "1.300", "1", "3.000", "2 of 4", "+0.200")
    assert rows[batchnorm.BASE] == ("", "1.250", "", "4.000", "", "")


def test_what_is_done_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def read(_: Path | None) -> tuple[np.ndarray, np.ndarray, None]:
        return table_of("regression")

    monkeypatch.setattr(batchnorm, "TABLES", {"classification": {}, "regression": {"tiny": read}})
    monkeypatch.setattr(batchnorm, "Recipe", lambda: SHORT)
    target = tmp_path / "results.json"
    monkeypatch.setattr(sys, "argv", ["batchnorm", "--data", str(tmp_path), "--splits", "1", "--out", str(target)])
    batchnorm.main()
    content = json.loads(target.read_text(encoding="utf-8"))
    assert list(content) == ["tiny/early/0", "tiny/fixed/0"]
    monkeypatch.setattr(batchnorm, "measure", None)
    batchnorm.main()
    assert json.loads(target.read_text(encoding="utf-8")) == content
    assert "| linear mode |" in capsys.readouterr().out
