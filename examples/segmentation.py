"""Segmentation: a small U-Net with outputs (B, C, H, W), and labels (B, H, W) of which some pixels are ignored.

Run it with `python examples/segmentation.py`. It takes a few seconds.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw

IGNORED = 255  # as in many data sets: the outline of an object has no class
SIDE = 16


class UNet(nn.Module):
    """One level down, one up, and a skip connection."""

    def __init__(self, classes: int = 3, width: int = 8) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(1, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.middle = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU()
        )
        self.up = nn.ConvTranspose2d(2 * width, width, 2, 2)
        self.head = nn.Conv2d(2 * width, classes, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.down(x)
        return self.head(torch.cat([fine, self.up(self.middle(fine))], 1))


def scenes(n: int) -> tuple[Tensor, Tensor]:
    """Images (n, 1, H, W) of a disc or a square in noise; labels (n, H, W): 0 background, 1 disc, 2 square."""
    grid = torch.arange(SIDE)
    centre = torch.randint(5, SIDE - 5, (2, n, 1, 1))
    across, along = (grid[None, :, None] - centre[0]).abs(), (grid[None, None, :] - centre[1]).abs()
    square = torch.arange(n)[:, None, None] % 2 == 1
    radius = torch.where(
        square, torch.maximum(across, along).float(), (across.square() + along.square()).float().sqrt()
    )
    labels = torch.where(radius < 3.5, torch.where(square, 2, 1), 0)
    labels = torch.where((radius >= 3.5) & (radius < 4.5), IGNORED, labels)
    images = (radius < 4).float() + 0.1 * torch.randn(n, SIDE, SIDE)
    return images[:, None], labels


def main(steps: int = 100, images: int = 64) -> tuple[pw.Laplace, dict[str, float]]:
    """Train, fit, tune and predict; returns the posterior and what was printed."""
    torch.manual_seed(0)
    x, y = scenes(images)
    model = UNet()
    # The decay of a prior precision of 1: training then ends at the mode that the posterior is built around.
    decay = 1 / int((y != IGNORED).sum())
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=decay)
    for _ in range(steps):
        optimiser.zero_grad()
        F.cross_entropy(model(x), y, ignore_index=IGNORED).backward()
        optimiser.step()

    la = pw.fit(model, (x, y), pw.Categorical(ignore_index=IGNORED)).tune(train=(x, y))

    new, truth = scenes(8)
    pred = la.predict(new)
    labelled = truth != IGNORED
    seen = {
        "accuracy": (pred.argmax == truth)[labelled].float().mean().item(),
        "labelled": pred.epistemic[labelled].mean().item(),
        "outlines": pred.epistemic[~labelled].mean().item(),
    }
    print(f"{la}, prior precision {la.prior.precision.item():.3g}")
    print(f"class probabilities {tuple(pred.probs.shape)}, right on {seen['accuracy']:.1%} of the labelled pixels")
    print(f"epistemic uncertainty of labelled pixels: {seen['labelled']:.3f} nats, of outlines: {seen['outlines']:.3f}")
    return la, seen


if __name__ == "__main__":
    main()
