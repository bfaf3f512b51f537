"""Runs that are interrupted go on as if they had not been, bit for bit on one thread; and files that cannot be used."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import peewit as pw

SCRIPT = Path(__file__).with_name("killed_run.py")


def data() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator)
    return x, (x[:, 0] + 0.5 * torch.randn(60, generator=generator) > 0).long()


def run(epochs: int, checkpoint: Path | None = None, resume: bool = False, **options: object) -> pw.learning.Training:
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12)
    loader = DataLoader(TensorDataset(*data()), batch_size=16, shuffle=True, generator=torch.Generator().manual_seed(7))
    return pw.learning.train(
        model,
        loader,
        "classification",
        optimizer,
        epochs=epochs,
        every=2,
        burn_in=1,
        scheduler=schedule,
        checkpoint=checkpoint,
        resume=resume,
        prior=pw.Prior.layerwise(),
        **options,
    )


def answers(training: pw.learning.Training) -> list[torch.Tensor]:
    """Everything that two runs may differ in."""
    numbers = [record.plain() for record in training.history]
    for each in numbers:
        for name in ("seconds", "measuring", "decomposing"):
            each.pop(name)
    last = [*training.learner.model.state_dict().values()]
    posterior = training.posterior()
    kept = [*training.learner.model.state_dict().values()]
    texts = torch.tensor([ord(letter) for letter in json.dumps(numbers)])
    return [*last, *kept, texts, posterior.prior.precision, posterior.log_evidence().detach()]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    "options",
    [{}, {"share": 0.5, "running": 0.5}, {"structure": "diag", "running": 0.5}, {"structure": "full", "running": 0.3}],
    ids=str,
)
def test_a_run_that_goes_on_is_the_run_that_never_stopped(tmp_path: Path, options: dict[str, object]) -> None:
    whole = run(6, **options).finish()
    first = run(6, tmp_path / "run.pt", **options)
    for record in first:
        if record.epoch == 3:  # between two hyper-steps
            break
    torch.manual_seed(99)
    second = run(6, tmp_path / "run.pt", resume=True, **options)
    assert second.epoch == 3
    assert same(answers(whole), answers(second.finish()))


def test_a_run_that_was_killed_goes_on(tmp_path: Path) -> None:
    """SIGKILL at any moment leaves a whole file."""
    checkpoint, out = tmp_path / "run.pt", tmp_path / "answers.pt"
    command = [sys.executable, str(SCRIPT), str(checkpoint), str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([*command, "slowly"], env=environment) as process:
        deadline = time.monotonic() + 120
        while not checkpoint.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        process.send_signal(signal.SIGKILL)
    assert checkpoint.exists()
    assert not out.exists()
    subprocess.run(command, env=environment, check=True)
    resumed = torch.load(out)
    checkpoint.unlink()
    subprocess.run(command, env=environment, check=True)
    assert same(torch.load(out), resumed)


def test_a_file_is_not_overwritten_by_a_new_run(tmp_path: Path) -> None:
    run(1, tmp_path / "run.pt").finish()
    with pytest.raises(pw.PeewitError, match=r"exists already.*resume=True"):
        run(1, tmp_path / "run.pt")
    assert run(1, tmp_path / "run.pt", resume=True).finish().epoch == 1
    assert run(1, tmp_path / "other.pt", resume=True).finish().epoch == 1  # a job that may begin anew


def test_files_of_others_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    path.write_bytes(b"not a file of torch")
    with pytest.raises(pw.PeewitError, match="cannot be read"):
        run(1, path, resume=True)
    torch.save({"model": 1}, path)
    with pytest.raises(pw.MismatchError, match="is not the state of a run"):
        run(1, path, resume=True)
    path.unlink()
    run(1, path).finish()
    model = nn.Linear(4, 2)
    with pytest.raises(pw.MismatchError, match="is of another network"):
        pw.learning.train(
            model,
            data(),
            "classification",
            torch.optim.Adam(model.parameters()),
            epochs=2,
            checkpoint=path,
            resume=True,
        )
    assert path.read_bytes()


def test_the_state_of_another_prior_is_refused() -> None:
    model = nn.Linear(4, 2)
    learner = pw.learning.Learner(model, data(), "classification", torch.optim.Adam(model.parameters()))
    other = nn.Linear(4, 2)
    layers = pw.learning.Learner(
        other, data(), "classification", torch.optim.Adam(other.parameters()), prior=pw.Prior.layerwise()
    )
    with pytest.raises(pw.MismatchError, match="groups"):
        layers.load_state_dict(learner.state_dict())


def test_a_full_disk_stops_safely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.pt"
    training = run(4, path)
    plain = torch.save
    records = iter(training)
    next(records)
    before = path.read_bytes()

    def full(state: object, target: Path) -> None:
        plain(state, target)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(pw.PeewitError, match=r"epoch 2 could not be written.*No space.*epoch 1 is whole"):
        next(records)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["run.pt"]
    monkeypatch.undo()
    assert run(4, path, resume=True).finish().epoch == 4
