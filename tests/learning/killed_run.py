"""A run for `test_checkpoint`, which kills it: `killed_run.py CHECKPOINT ANSWERS [slowly]`."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import nn

import peewit as pw


def main(checkpoint: Path, out: Path, pause: float) -> None:
    """Train, and write what came out."""
    torch.manual_seed(0)
    x = torch.randn(60, 4)
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    training = pw.learning.train(
        model, (x, y), "classification", optimizer, epochs=8, every=2, batch_size=16, checkpoint=checkpoint, resume=True
    )
    for _ in training:
        time.sleep(pause)
    precision = training.posterior().prior.precision
    torch.save([*model.state_dict().values(), precision], out)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), 0.5 if "slowly" in sys.argv else 0.0)
