"""Last-layer Laplace on ResNets trained on CIFAR-10: published results beside ours.

    python examples/cifar10_resnets.py --data DIR [--network resnet20 resnet56] [--cache DIR]

DIR (or PEEWIT_DATA) holds `cifar10/` with the images and labels and `weights_cifar10/` with the state dicts of the
networks. A pass over 60,000 images takes minutes on a CPU, so the script computes the inputs of the last layer once per
network. `pw.fit` gets only the last layer and these inputs, in float64. The posterior is the same as with
`weights="last_layer"` on the whole network.
"""

from __future__ import annotations

import argparse
import lzma
import os
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw

CONSOLE = Console(width=130)
MEAN, DEVIATION = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
BLOCKS = {"resnet20": 3, "resnet56": 9}
PARTS = ("first10000", "10000-20000", "20000-30000", "30000-40000", "40000-50000")
STRUCTURES = {"full": pw.Full(), "KFAC": pw.Kron(), "KFAC, joint bias": pw.Kron(bias="joint")}
# Published result files, and an independent float64 computation on the same data and weights.
KNOWN: dict[tuple[str, str], tuple[str, str]] = {
    ("resnet20", "MAP NLL"): (".281522", ".281522"),
    ("resnet20", "MAP ECE"): ("", ".0390"),
    ("resnet20", "full: precision, 100 Adam steps"): ("1.917382", "1.917363"),
    ("resnet20", "full: precision, optimum"): ("", "1.935"),
    ("resnet20", "full: NLL, probit"): ("", ".23838"),
    ("resnet20", "full: ECE, probit"): ("", ".0228"),
    ("resnet20", "full: NLL, Monte Carlo"): ("", ".2707"),
    ("resnet20", "full: NLL, factor transposed"): (".256627", ".2569"),
    ("resnet20", "KFAC: precision, 100 Adam steps"): ("2.282716", "2.282681"),
    ("resnet20", "KFAC: precision, optimum"): ("", "2.270"),
    ("resnet20", "KFAC: NLL, probit"): ("", ".24140"),
    ("resnet20", "KFAC: NLL, Monte Carlo"): ("", ".2732"),
    ("resnet20", "KFAC: NLL, factor transposed"): (".265879", ".2658"),
    ("resnet20", "KFAC, joint bias: NLL, probit"): ("", ".24073"),
    ("resnet56", "MAP NLL"): (".252327", ".252327"),
    ("resnet56", "full: precision, 100 Adam steps"): ("2.154", ""),
    ("resnet56", "full: NLL, factor transposed"): (".200181", ""),
    ("resnet56", "KFAC: precision, 100 Adam steps"): ("2.655", ""),
    ("resnet56", "KFAC: NLL, factor transposed"): (".203735", ""),
}


class Residual(nn.Module):
    """Two convolutions with BatchNorm, and a short cut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.downsample = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(B, inputs, H, W) -> (B, outputs, H / stride, W / stride)."""
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class ResNet(nn.Module):
    """The ResNets for CIFAR: three stages with 16, 32 and 64 channels."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        for place, (inputs, outputs, stride) in enumerate(((16, 16, 1), (16, 32, 2), (32, 64, 2)), 1):
            first = Residual(inputs, outputs, stride)
            self.add_module(
                f"layer{place}", nn.Sequential(first, *(Residual(outputs, outputs, 1) for _ in range(blocks - 1)))
            )
        self.fc = nn.Linear(64, 10)

    def features(self, x: Tensor) -> Tensor:
        """(B, 3, 32, 32) -> (B, 64): the features, which the last layer takes."""
        x = F.relu(self.bn1(self.conv1(x)))
        for name in ("layer1", "layer2", "layer3"):
            x = self.get_submodule(name)(x)
        return x.mean((2, 3))


def images(path: Path) -> np.ndarray:
    """(N, 32, 32, 3) from a file of differences: R-G, G, B-G, each differenced along rows and columns, modulo 256."""
    with lzma.open(path) as file:
        planes = np.load(file)
    planes = np.cumsum(np.cumsum(planes, axis=3, dtype=np.uint8), axis=2, dtype=np.uint8)
    planes[0] += planes[1]
    planes[2] += planes[1]
    return np.ascontiguousarray(planes.transpose(1, 2, 3, 0))


def passed(model: ResNet, pixels: np.ndarray, what: str) -> Tensor:
    """(N, 64) in float64: features of scaled images."""
    made = []
    for start in track(range(0, len(pixels), 500), what, console=CONSOLE, transient=True):
        x = torch.from_numpy(pixels[start : start + 500]).float() / 255
        x = (x - torch.tensor(MEAN)) / torch.tensor(DEVIATION)
        with torch.no_grad():
            made.append(model.features(x.permute(0, 3, 1, 2)).double())
    return torch.cat(made)


def features(folder: Path, network: str, cache: Path | None) -> tuple[nn.Linear, Tensor, Tensor]:
    """The last layer in float64, and the features of the training and test images."""
    model = ResNet(BLOCKS[network])
    state = torch.load(folder / "weights_cifar10" / f"chenyaofo_cifar10_{network}.pt", weights_only=True)
    model.load_state_dict(state)
    model.eval()
    kept = None if cache is None else cache / f"{network}.npz"
    if kept is not None and kept.is_file():
        held = np.load(kept)
        return model.fc.double(), torch.from_numpy(held["train"]), torch.from_numpy(held["test"])
    files = [folder / "cifar10" / f"train-images-{part}.rgbd2.npy.xz" for part in PARTS]
    train = torch.cat([passed(model, images(file), f"{network}, {file.name}") for file in files])
    test = passed(model, images(folder / "cifar10" / "test-images.rgbd2.npy.xz"), f"{network}, test images")
    if kept is not None:
        kept.parent.mkdir(parents=True, exist_ok=True)
        np.savez(kept, train=train.numpy(), test=test.numpy())
    return model.fc.double(), train, test


def nll(probabilities: Tensor, y: Tensor) -> float:
    """The mean negative log probability of the labels."""
    return float(-probabilities[torch.arange(len(y)), y].log().mean())


def ece(probabilities: Tensor, y: Tensor, bins: int = 15) -> float:
    """Expected calibration error over bins of equal width."""
    confidence, guess = probabilities.max(-1)
    place = (confidence * bins).ceil().long().clamp(1, bins) - 1
    gaps = torch.zeros(bins, dtype=torch.float64).index_add(0, place, (guess == y).double() - confidence)
    return float(gaps.abs().sum() / len(y))


def monte_carlo(la: pw.Laplace, x: Tensor, y: Tensor, samples: int, transposed: bool = False) -> float:
    """NLL of the mean softmax over `f + L eps` with `cov = L L^T`; transposed: over `f + L^T eps`, which is wrong."""
    generator = torch.Generator().manual_seed(0)
    total = 0.0
    for chosen in torch.arange(len(x)).split(500):
        mean, cov = la.functional(x[chosen])
        factor = torch.linalg.cholesky(cov)
        eps = torch.randn(samples, *mean.shape, generator=generator, dtype=mean.dtype)
        factor = factor.mT if transposed else factor
        drawn = mean + torch.einsum("bij,sbj->sbi", factor, eps)
        total += nll(drawn.softmax(-1).mean(0), y[chosen]) * len(chosen)
    return total / len(x)


def by_adam(la: pw.Laplace, steps: int = 100, rate: float = 0.1) -> float:
    """The published method for one precision: Adam on its logarithm, from 1."""
    logarithm = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.Adam([logarithm], lr=rate)
    for _ in range(steps):
        optimiser.zero_grad()
        (-la.log_evidence(prior=logarithm.exp())).backward()
        optimiser.step()
    return float(logarithm.detach().exp())


def figures(folder: Path, network: str, cache: Path | None, samples: int) -> dict[str, float]:
    """All results for one network."""
    head, train, test = features(folder, network, cache)
    labels = np.load(folder / "cifar10" / "labels.npz")
    y_train, y_test = (torch.from_numpy(labels[name]).long() for name in ("y_train", "y_test"))
    with torch.no_grad():
        plain = head(test).softmax(-1)
    made = {"MAP NLL": nll(plain, y_test), "MAP ECE": ece(plain, y_test)}
    for name, structure in STRUCTURES.items():
        la = pw.fit(head, (train, y_train), "classification", structure=structure, curvature="ggn", prior=1.0)
        adam = by_adam(la)
        tuned = la.tune()
        made[f"{name}: precision, 100 Adam steps"] = adam
        made[f"{name}: precision, optimum"] = float(tuned.prior.precision)
        at_adam = la.with_prior(adam)
        probit = at_adam.predict(test).probs
        assert probit is not None
        made[f"{name}: NLL, probit"] = nll(probit, y_test)
        made[f"{name}: ECE, probit"] = ece(probit, y_test)
        made[f"{name}: NLL, Monte Carlo"] = monte_carlo(at_adam, test, y_test, samples)
        made[f"{name}: NLL, factor transposed"] = monte_carlo(at_adam, test, y_test, samples, transposed=True)
        at_optimum = tuned.predict(test).probs
        assert at_optimum is not None
        made[f"{name}: NLL, probit, at the optimum"] = nll(at_optimum, y_test)
        CONSOLE.print(tuned.trace, highlight=False)
    return made


def main() -> None:
    """Read, compute, and print one table per network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("PEEWIT_DATA", ""), help="folder with the data sets")
    parser.add_argument("--network", nargs="+", choices=list(BLOCKS), default=["resnet20"])
    parser.add_argument("--cache", type=Path, default=None, help="folder to keep features in")
    parser.add_argument("--samples", type=int, default=512, help="Monte Carlo samples")
    asked = parser.parse_args()
    if not asked.data or not Path(asked.data, "cifar10").is_dir():
        parser.error("expected --data DIR (or PEEWIT_DATA) with cifar10/ and weights_cifar10/ in it")
    for network in asked.network:
        made = figures(Path(asked.data), network, asked.cache, asked.samples)
        table = Table("figure", "published", "checked", "here", title=network)
        for name, value in made.items():
            table.add_row(name, *KNOWN.get((network, name), ("", "")), f"{value:.5f}")
        CONSOLE.print(table)


if __name__ == "__main__":
    main()
