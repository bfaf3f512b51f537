"""What the HTTP example serves: a small network on images of clothes, its posterior, and a threshold for "unknown".

Run it with `python examples/serving/train.py`. It takes less than a minute, and writes three files into the folder
`served`. Then start [app.py](app.py).
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import peewit as pw
from peewit.data import fashion_mnist

KNOWN = 8  # classes that the network learns; bags and ankle boots are the unknown ones
QUANTILE = 0.95  # of the epistemic part of usual images: one of twenty raises a false alarm


def network() -> nn.Module:
    """A LeNet."""
    return nn.Sequential(
        nn.Conv2d(1, 8, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 5),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
        nn.Linear(64, KNOWN),
    )


def main(folder: str | Path = "served", images: int = 4000, epochs: int = 12) -> tuple[pw.Laplace, dict[str, float]]:
    """Train, fit, tune, choose the threshold and write files; returns the posterior and what was printed."""
    torch.manual_seed(0)
    (x, y), (new, labels) = fashion_mnist()
    x, y = x[y < KNOWN][:images], y[y < KNOWN][:images]
    usual, unknown = new[labels < KNOWN], new[labels >= KNOWN]
    validation, usual = usual[:1000], usual[1000:]

    model = network()
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for some in torch.randperm(len(x)).split(64):
            optimiser.zero_grad()
            F.cross_entropy(model(x[some]), y[some]).backward()
            optimiser.step()
    la = pw.fit(model.eval(), (x, y), "classification", weights="last_layer").tune(train=(x, y))

    threshold = float(la.predict(validation).epistemic.quantile(QUANTILE))
    said = {
        "usual": float((la.predict(usual).epistemic > threshold).float().mean()),
        "unknown": float((la.predict(unknown).epistemic > threshold).float().mean()),
    }
    path = Path(folder)
    path.mkdir(exist_ok=True)
    torch.save(model.state_dict(), path / "network.pt")
    la.save(path / "posterior.safetensors")
    rule = f"the {QUANTILE:.0%} quantile of the epistemic part of {len(validation)} validation images, in nats"
    (path / "threshold.json").write_text(json.dumps({"value": threshold, "rule": rule}))
    print(f"{la}, in {path}")
    print(f"flagged as unknown: {said['usual']:.0%} of usual images, {said['unknown']:.0%} of bags and ankle boots")
    return la, said


if __name__ == "__main__":
    main()
