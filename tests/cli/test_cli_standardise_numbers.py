"""`--standardise` beside a fit that is standardised by hand: dense loops in float64, which use nothing of ours."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("typer", reason="no typer")

from commands import furnished, run

MODULE = """
import torch
from torch import nn

def net(outputs=1):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, outputs)).double()
"""
PRECISION, NOISE = 0.7, 0.4  # the noise in standardised units
N = 24
FEW = "--set evaluate.intervals=5"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for module in furnished(tmp_path, monkeypatch):
        (tmp_path / f"{module}_double.py").write_text(MODULE)
        yield f"{module}_double"


def network(outputs: int) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, outputs)).double()


def table() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Raw x (N, 2) and y (N, 1), and the same by hand: less their means, over their deviations."""
    normal = torch.randn(N, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    x = torch.tensor([1e3, -4.0]) + torch.tensor([250.0, 0.01]) * normal
    y = 5e4 + 3e3 * (normal[:, :1] + 0.5 * normal[:, 1:] ** 2)
    return x, y, by_hand(x), by_hand(y)


def by_hand(columns: Tensor) -> Tensor:
    out = torch.empty_like(columns)
    for column in range(columns.shape[1]):
        values = columns[:, column].tolist()
        mean = sum(values) / len(values)
        deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values))
        out[:, column] = torch.tensor([(value - mean) / deviation for value in values], dtype=torch.float64)
    return out


def jacobian(net: nn.Module, z: Tensor) -> Tensor:
    """(outputs, D) of one example (2,)."""
    rows = []
    for output in net(z[None])[0]:
        gradients = torch.autograd.grad(output, list(net.parameters()), retain_graph=True)
        rows.append(torch.cat([gradient.flatten() for gradient in gradients]))
    return torch.stack(rows)


def posterior(net: nn.Module, z: Tensor, hessians: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Precision (D, D), and the log prior density and half the log determinants of the evidence."""
    weights = torch.cat([each.detach().flatten() for each in net.parameters()])
    precision = PRECISION * torch.eye(len(weights), dtype=torch.float64)
    for example, hessian in zip(z, hessians, strict=True):
        rows = jacobian(net, example)
        precision = precision + rows.T @ hessian @ rows
    occam = -0.5 * PRECISION * weights @ weights + 0.5 * len(weights) * math.log(PRECISION)
    return precision, occam - 0.5 * torch.logdet(precision)


def test_numbers_are_those_of_standardised_ones_in_their_units(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Means and deviations by the scale, variances by its square, densities with its Jacobian."""
    x, y, z, t = table()
    net, scale = network(1), float(y.std(correction=0))
    numpy.savez("train.npz", x=x.numpy(), y=y.numpy())
    given = f"fit -m {place}:net -l regression --train train.npz --standardise --structure full --prior {PRECISION}"
    assert run(f"{given} --noise {NOISE * scale} -o made.safetensors --json", place) == 0
    told = json.loads(capsys.readouterr().out)
    precision, rest = posterior(net, z, [torch.eye(1, dtype=torch.float64) / NOISE**2] * N)
    f = net(z).detach()
    energy = ((t - f) ** 2).sum() / (2 * NOISE**2) + N * math.log(NOISE * math.sqrt(2 * math.pi))
    assert told["log_evidence"] == pytest.approx(float(rest - energy) - N * math.log(scale), rel=1e-9)

    assert run(f"predict -m {place}:net -p made.safetensors --data train.npz -o p.npz -q", place) == 0
    covariance = torch.linalg.inv(precision)
    epistemic = torch.stack([(rows := jacobian(net, each)) @ covariance @ rows.T for each in z])[:, 0]
    variance = epistemic + NOISE**2
    with numpy.load("p.npz") as found:
        for name, wanted in (
            ("mean", float(y.mean()) + scale * f),
            ("epistemic", scale**2 * epistemic),
            ("aleatoric", torch.full((N, 1), (scale * NOISE) ** 2)),
            ("deviation", scale * variance.sqrt()),
            ("lower", float(y.mean()) + scale * (f - 1.6448536269514722 * variance.sqrt())),
            ("upper", float(y.mean()) + scale * (f + 1.6448536269514722 * variance.sqrt())),
        ):
            numpy.testing.assert_allclose(found[name], wanted.detach().numpy(), rtol=1e-7, err_msg=name)

    capsys.readouterr()
    assert run(f"evaluate -m {place}:net -p made.safetensors --test train.npz {FEW} --json", place) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["settings"]["network"] == "Sequential" and report["title"] == "Uncertainty report"
    assert "la = pw.load(" in report["code"] and "pw.fit(" not in report["code"], "which knows no scaling"
    methods = {each["name"]: each["metrics"] for each in report["methods"]}
    surprise = 0.5 * (t - f) ** 2 / variance + 0.5 * (2 * math.pi * variance).log()
    inside = ((t - f).abs() <= 1.6448536269514722 * variance.sqrt()).double().mean()
    for name, value in (
        ("nll", float(surprise.mean()) + math.log(scale)),
        ("rmse", scale * float(((t - f) ** 2).mean().sqrt())),
        ("coverage90", float(inside)),
    ):
        assert methods["Laplace"][name]["value"] == pytest.approx(value, rel=1e-6), name


def test_classes_have_no_scale(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Evidence and probabilities are those of standardised inputs."""
    x, _, z, t = table()
    net, labels = network(3), (t[:, 0] > 0).long() + (t[:, 0] > 0.7).long()
    numpy.savez("train.npz", x=x.numpy(), y=labels.numpy())
    common = f"-m {place}:net --set arguments.outputs=3"
    given = f"fit {common} -l classification --train train.npz --standardise --structure full --prior {PRECISION}"
    assert run(f"{given} -o made.safetensors --json", place) == 0
    told = json.loads(capsys.readouterr().out)
    probs = torch.softmax(net(z).detach(), 1)
    precision, rest = posterior(net, z, [torch.diag(p) - torch.outer(p, p) for p in probs])
    energy = -probs[torch.arange(N), labels].log().sum()
    assert told["log_evidence"] == pytest.approx(float(rest - energy), rel=1e-9)
    assert told["standardised"] == ["inputs"] and told["noise"] is None
    assert run(f"predict {common} -p made.safetensors --data train.npz --link probit -o p.npz -q", place) == 0
    covariance = torch.linalg.inv(precision)
    with numpy.load("p.npz") as found:
        for number, example in enumerate(z):
            rows, f = jacobian(net, example), net(example[None])[0].detach()
            variance = (rows @ covariance @ rows.T).diagonal().detach()
            wanted = torch.softmax(f / (1 + math.pi / 8 * variance).sqrt(), 0)
            numpy.testing.assert_allclose(found["probability"][number], wanted.numpy(), rtol=1e-7)
