"""Devices by name: those that are not there are refused with what to type."""

from __future__ import annotations

import pytest
import torch

import peewit as pw
from peewit.runtime.device import device_named


def test_a_gpu_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """By any name, in estimators too: torch's own message is an assertion."""
    for number, name, there in ((0, "cuda", "no GPU here"), (0, "cuda:1", "no GPU here"), (2, "cuda:2", "sees 2 GPUs")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda number=number: number)
        with pytest.raises(pw.PeewitError, match=rf"device='{name}' was given, and .*{there}; .*device='cpu'"):
            device_named(name)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_named("cuda:1") == torch.device("cuda", 1) and device_named("cpu").type == "cpu"


def test_a_gpu_that_is_not_there_in_an_estimator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is trained."""
    pytest.importorskip("sklearn")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    x = torch.arange(20.0)[:, None].numpy()
    with pytest.raises(pw.PeewitError, match=r"torch sees no GPU here; .*device='cpu'"):
        pw.sklearn.LaplaceRegressor(device="cuda").fit(x, x[:, 0])
