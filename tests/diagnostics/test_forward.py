"""Whether a network fits data at all, by one pass forward."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from peewit.diagnostics import forward
from peewit.diagnostics.forward import check_outputs


def line() -> tuple[nn.Linear, Tensor, Tensor]:
    """A network that explains most of its targets."""
    torch.manual_seed(0)
    x = torch.randn(300, 2)
    net = nn.Linear(2, 1)
    return net, x, net(x).detach() + 0.1 * torch.randn(300, 1)


def test_the_finding_is_that_of_a_diagnosis() -> None:
    """For numbers and classes, of tensors and of batches; the network stays as it was."""
    net, x, y = line()
    labels = (y[:, 0] > 0).long()
    two = nn.Sequential(net, nn.Linear(1, 2)).train()
    for model, targets, likelihood in ((net, y, "regression"), (two, labels, "classification")):
        wanted = pw.fit(model, (x, targets), likelihood).diagnose((x, targets))["fit"]
        batches = list(zip(x.split(70), targets.split(70), strict=True))
        for data in ((x, targets), batches):
            found = check_outputs(model, data, likelihood)
            assert found is not None and found.severity == wanted.severity and found.topic == "fit"
            assert dict(found.numbers) == pytest.approx(dict(wanted.numbers), rel=1e-4)
    assert two.training and two[0].weight.requires_grad


def test_r_squared_by_hand() -> None:
    net, x, y = line()
    wanted = 1 - float((y - net(x).detach()).square().sum() / (y - y.mean()).square().sum())
    found = check_outputs(net, (x, y), "regression", "on the test data")
    assert found is not None and found.numbers["r2"] == pytest.approx(wanted, rel=1e-5)
    assert "on the test data" in found.sentence
    found = check_outputs(net, (x, y.flip(0) + 9), "regression")
    assert found is not None and found.severity == "problem" and "on its training data" in found.sentence


def test_few_of_many_examples_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every n-th, whatever the batches: sorted targets are in the sample as they are in the data."""
    net, x, y = line()
    order = y[:, 0].argsort()
    x, y = x[order], y[order]
    for limit in ("ROWS", "NUMBERS"):
        with monkeypatch.context() as patch:
            patch.setattr(forward, limit, 50)
            for size in (1, 7, 300):
                patch.setattr(forward, "check_fit", lambda _, kept, __: kept)
                kept = check_outputs(net, list(zip(x.split(size), y.split(size), strict=True)), "regression")
                assert isinstance(kept, list)
                torch.testing.assert_close(torch.cat([f for f, _ in kept])[:, 0], net(x[::8]).detach())
                assert torch.equal(torch.cat([targets for _, targets in kept])[:, 0], y[::8])


def test_one_example_may_have_more_positions_than_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "ROWS", 50)
    x = torch.randn(1, 100, 2)
    assert check_outputs(nn.Linear(2, 2), (x, (x[..., 0] > 0).long()), "classification") is not None


def test_data_that_can_be_passed_over_once() -> None:
    """It is left alone: the fit needs it."""
    net, x, y = line()

    def stream() -> Iterator[tuple[Tensor, Tensor]]:
        yield x, y

    data = stream()
    assert check_outputs(net, data, "regression") is None and len(list(data)) == 1
