"""Records of a run: lines, tables, files and TensorBoard."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from peewit.learning.records import MOST


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30, 2, generator=generator)
    return x, x.sum(1, keepdim=True)


def run(epochs: int = 4, **options: object) -> pw.learning.Training:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return pw.learning.train(
        model,
        data(),
        "regression",
        optimizer,
        **{"epochs": epochs, "every": 2, "prior": pw.Prior.layerwise(), **options},
    )


def test_every_epoch_has_a_record_and_every_second_an_evidence() -> None:
    training = run()
    records = list(training)
    assert [record.epoch for record in records] == [1, 2, 3, 4]
    assert [record.hyper_step for record in records] == [0, 1, 1, 2]
    assert [record.log_evidence is None for record in records] == [True, False, True, False]
    assert all(record.loss is not None and record.loss > 0 for record in records)
    assert tuple(training.history) == tuple(records)
    assert training.history.best in records
    kept = max((record for record in records if record.kept), key=lambda record: record.epoch)
    assert kept == training.history.best


def test_the_last_epoch_has_a_step_and_none_comes_before_the_burn_in() -> None:
    steps = [record.epoch for record in run(5, every=2, burn_in=3) if record.log_evidence is not None]
    assert steps == [4, 5]
    assert [record.epoch for record in run(20, every=1).history] == []
    assert next(record.epoch for record in run(20, every=1) if record.log_evidence is not None) == 2


def test_a_line_says_what_came_out() -> None:
    training = run().finish()
    line = str(training.history[-1])
    for words in ("epoch 4, loss ", "log evidence ", "(fit ", "precision ", "noise ", "effective dimensions "):
        assert words in line
    assert "evidence" not in str(training.history[0])
    assert "layerwise prior" in repr(training.learner)


def test_a_table_has_a_column_for_each_group() -> None:
    pytest.importorskip("pandas")
    training = run().finish()
    table = training.history.to_pandas()
    assert len(table) == 4
    assert list(table["epoch"]) == [1, 2, 3, 4]
    last = training.history[-1]
    for number, name in enumerate(("0.weight", "0.bias", "2.weight", "2.bias")):
        assert table[f"precision of {name}"].iloc[-1] == float(last.precision[number])
        assert table[f"effective dimensions of {name}"].isna().tolist() == [True, False, True, False]


def test_records_stream_into_lines_of_json(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    for number, _ in enumerate(run(log=path, checkpoint=tmp_path / "run.pt"), 1):
        lines = path.read_text().splitlines()
        assert len(lines) == number  # while training goes on
    read = [json.loads(line) for line in lines]
    assert [each["epoch"] for each in read] == [1, 2, 3, 4]
    assert len(read[-1]["precision"]) == 4
    again = run(6, log=path, checkpoint=tmp_path / "run.pt", resume=True)
    again.finish()
    assert [json.loads(line)["epoch"] for line in path.read_text().splitlines()] == [1, 2, 3, 4, 5, 6]
    again.history.save(tmp_path / "whole.jsonl")
    assert (tmp_path / "whole.jsonl").read_text() == path.read_text()


def test_records_go_to_tensorboard(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written: list[tuple[str, float, int]] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            self.folder = folder

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def flush(self) -> None: ...

    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    training = run(tensorboard=tmp_path / "board").finish()
    last = training.history[-1]
    assert ("learning/log_evidence", last.log_evidence, 4) in written
    assert ("precision/2.bias", float(last.precision[3]), 4) in written
    assert ("learning/loss", training.history[0].loss, 1) in written


def test_without_tensorboard_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(pw.MissingPackageError, match="pip install tensorboard"):
        run(tensorboard=tmp_path)


def test_progress_is_shown_on_request_alone(capsys: pytest.CaptureFixture[str]) -> None:
    run().finish()
    assert capsys.readouterr() == ("", "")
    run(progress=True).finish()
    assert capsys.readouterr().out == ""


def test_very_many_precisions_are_not_copied_into_every_record() -> None:
    torch.manual_seed(0)
    model = nn.Linear(MOST, 1)
    x = torch.randn(4, MOST)
    learner = pw.learning.Learner(
        model,
        (x, torch.zeros(4, 1)),
        "regression",
        torch.optim.SGD(model.parameters(), lr=0.1),
        prior=pw.Prior.diagonal(),
        structure="diag",
        steps=2,
    )
    record = learner.step()
    assert record.precision is None
    assert record.effective_dimensions.shape == (1,)
    assert learner.history.groups == ()
    assert len(learner.prior.precision) == MOST + 1
    assert "precision" not in str(record)
