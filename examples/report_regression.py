"""A report on a regression: are the intervals calibrated, and does the network detect inputs without data?

Run it with `python examples/report_regression.py [page.html]`. The network learns a curve from points on both sides of
a gap. The report measures the coverage of its intervals, and whether its uncertainty grows in the gap and beyond the
data. It is written as a page for a browser.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import peewit as pw

NOISE = 0.15


def points(low: float, high: float, count: int) -> tuple[Tensor, Tensor]:
    """Inputs (count, 1) between two bounds, and noisy values of a curve (count, 1)."""
    x = low + (high - low) * torch.rand(count, 1)
    return x, torch.sin(2 * x) + 0.3 * x + NOISE * torch.randn_like(x)


def joined(*parts: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Several sets of points as one."""
    return torch.cat([x for x, _ in parts]), torch.cat([y for _, y in parts])


def train(x: Tensor, y: Tensor, steps: int) -> nn.Sequential:
    """Plain training."""
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimiser.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimiser.step()
    return model


def main(path: str | Path = "report-regression.html", steps: int = 1500) -> pw.Report:
    """Train, fit, tune, evaluate, and write the page."""
    torch.manual_seed(0)
    x, y = joined(points(-3, -0.5, 60), points(1.5, 3, 40))
    model = train(x, y, steps)
    la = pw.fit(model, (x, y), "regression", structure="full").tune(train=(x, y))
    report = pw.evaluate(
        la,
        joined(points(-3, -0.5, 300), points(1.5, 3, 200)),
        ood={"the gap": points(-0.2, 1.2, 200)[0], "beyond the data": points(4, 6, 200)[0]},
        title="A curve with a gap",
    )
    for scores in report.methods:
        held, nll = scores.metrics["coverage90"], scores.metrics["nll"]
        extent = f"{nll.low:.2f} to {nll.high:.2f}"
        print(f"{scores.name}: 90 % intervals held {held.value:.0%} of the targets, NLL {nll.value:.2f} ({extent})")
    print(f"The report: {report.to_html(path)}")
    return report


if __name__ == "__main__":
    main(*sys.argv[1:2])
