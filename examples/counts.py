"""Counts: a network that predicts the logarithm of a rate, with a Poisson likelihood.

Run it with `python examples/counts.py`. It takes a few seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import peewit as pw


def rate(x: Tensor) -> Tensor:
    """The true rate of events."""
    return torch.exp(1 + torch.sin(2 * x))


def main(steps: int = 600, points: int = 200) -> tuple[pw.Laplace, dict[str, Tensor]]:
    """Train, fit, tune and predict; returns the posterior and what was printed."""
    torch.manual_seed(0)
    x = 4 * torch.rand(points, 1) - 2
    y = torch.poisson(rate(x))
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
    # The decay of a prior precision of .1: training then ends at the mode that the posterior is built around.
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=0.1 / len(x))
    loss = nn.PoissonNLLLoss(log_input=True)
    for _ in range(steps):
        optimiser.zero_grad()
        loss(model(x), y).backward()
        optimiser.step()

    la = pw.fit(model, (x, y), "count", structure="full").tune()  # the same as pw.Poisson()

    asked = torch.tensor([[-1.0], [0.0], [1.0], [3.0]])
    pred = la.predict(asked)
    low, high = pred.interval(0.9)
    print(f"{la}, prior precision {la.prior.precision.item():.3g}")
    print("   x   true rate   rate   by chance   not knowing   90 % of new counts")
    for row in range(len(asked)):
        print(
            f"{asked[row].item():4.1f}      {rate(asked[row]).item():5.2f}  {pred.mean[row].item():5.2f}       "
            f"{pred.aleatoric[row].sqrt().item():5.2f}         {pred.epistemic[row].sqrt().item():5.2f}   "
            f"{low[row].item():3.0f} to {high[row].item():.0f}"
        )
    new = 4 * torch.rand(300, 1) - 2
    low, high = la.predict(new).interval(0.9)
    observed = torch.poisson(rate(new))
    covered = ((low <= observed) & (observed <= high)).float().mean()
    print(f"the intervals hold {covered:.1%} of new counts among the data")
    return la, {"mean": pred.mean[:, 0], "unknown": pred.epistemic.sqrt()[:, 0], "covered": covered}


if __name__ == "__main__":
    main()
