"""Heteroscedastic regression: a network that predicts mean and noise, and the uncertainty of its weights.

Run it with `python examples/heteroscedastic.py`. It takes a few seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import peewit as pw


def noise(x: Tensor) -> Tensor:
    """The standard deviation of the noise: small on the left, large on the right."""
    return 0.1 + 0.4 * torch.sigmoid(3 * x)


def main(steps: int = 500, points: int = 300) -> tuple[pw.Laplace, dict[str, Tensor]]:
    """Train, fit, tune and predict; returns the posterior and what was printed."""
    torch.manual_seed(0)
    x = 4 * torch.rand(points, 1) - 2
    y = torch.sin(2 * x) + noise(x) * torch.randn_like(x)
    model = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 2))  # mean and log variance: (B, 2 K)
    # The default, "raw", has a convex energy. Most networks return this one, and it extrapolates gently.
    likelihood = pw.HeteroscedasticGaussian(parameters="mean_log_variance")
    # The decay of a prior precision of .1: training then ends at the mode that the posterior is built around.
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=0.1 / len(x))
    for _ in range(steps):
        optimiser.zero_grad()
        # The likelihood defines the meaning of the outputs, so its energy is the loss.
        likelihood.energy(model(x)[:, None], y[:, None]).mean().backward()
        optimiser.step()

    la = pw.fit(model, (x, y), likelihood, structure="full").tune()

    asked = torch.tensor([[-1.5], [0.0], [1.5], [3.0]])
    pred = la.predict(asked)
    low, high = pred.interval(0.9)
    print(f"{la}, prior precision {la.prior.precision.item():.3g}")
    print("   x   mean   noise (true)   not knowing   90 % of new points")
    for row in range(len(asked)):
        print(
            f"{asked[row].item():4.1f}  {pred.mean[row].item():5.2f}   {pred.aleatoric[row].sqrt().item():.2f} "
            f"({noise(asked[row]).item():.2f})         {pred.epistemic[row].sqrt().item():.2f}      "
            f"{low[row].item():5.2f} to {high[row].item():.2f}"
        )
    new = 4 * torch.rand(300, 1) - 2
    low, high = la.predict(new).interval(0.9)
    observed = torch.sin(2 * new) + noise(new) * torch.randn_like(new)
    covered = ((low <= observed) & (observed <= high)).float().mean()
    print(f"the intervals hold {covered:.1%} of new points among the data")
    return la, {"noise": pred.aleatoric.sqrt()[:, 0], "unknown": pred.epistemic.sqrt()[:, 0], "covered": covered}


if __name__ == "__main__":
    main()
