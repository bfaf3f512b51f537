"""The cost of the engine's own checks: `python -m benchmarks.checks --device cuda`.

Two tables, each beside a default fit in the same run: the verification of a network's derivatives, and the care that is
taken of rounding where inputs are not standardised, with how far variances and evidence are from float64.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import time
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import peewit as pw
from benchmarks.measure import synchronise
from benchmarks.networks import lenet, mlp, resnet18, vit
from peewit.curvature.structures import rounding
from peewit.tracing import tracer

VERIFIED: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "perceptron 10-32-10": (lambda: nn.Sequential(nn.Linear(10, 32), nn.Tanh(), nn.Linear(32, 10)), (10,)),
    "MLP": (mlp, (784,)),
    "LeNet": (lenet, (1, 28, 28)),
    "ResNet-18, 16 channels": (partial(resnet18, width=16), (3, 32, 32)),
    "ViT": (vit, (3, 32, 32)),
}
TABLES = ("verification", "rounding")
ON_CPU = 3  # networks, the small ones: of a larger one the share is smaller still


class Watch:
    """Counts the seconds of a function's calls."""

    def __init__(self, function: Callable[..., Any], device: torch.device) -> None:
        self.function, self.device, self.seconds = function, device, 0.0

    def __call__(self, *arguments: Any) -> Any:
        """Call it."""
        synchronise(self.device)
        start = time.perf_counter()
        made = self.function(*arguments)
        synchronise(self.device)
        self.seconds += time.perf_counter() - start
        return made


def verification(name: str, examples: int, loader: bool, repeats: int, device: torch.device) -> tuple[float, float]:
    """Least seconds of the verification, and of a whole fit."""
    make, shape = VERIFIED[name]
    torch.manual_seed(0)
    model = make().to(device).eval()
    x, y = torch.randn(examples, *shape), torch.randint(10, (examples,))
    data: Any = DataLoader(TensorDataset(x, y), batch_size=128) if loader else (x.to(device), y.to(device))
    checks, fits = [], []
    for _ in range(repeats + 1):  # the first one warms up
        watch = Watch(tracer.verify, device)
        tracer.verify, kept = watch, tracer.verify
        try:
            whole = Watch(partial(pw.fit, model, data, "classification"), device)
            whole()
        finally:
            tracer.verify = kept
        checks.append(watch.seconds)
        fits.append(whole.seconds)
    return min(checks[1:]), min(fits[1:])


@dataclass(frozen=True, kw_only=True)
class Raw:
    """A network and data, standardised or not."""

    model: nn.Module
    x: Tensor
    y: Tensor
    likelihood: Any
    structure: str = "kron"

    def fit(self) -> pw.Laplace:
        """With the decompositions of factors."""
        return pw.fit(self.model, (self.x, self.y), self.likelihood, structure=self.structure)

    def in_float64(self) -> Raw:
        """The same network in float64."""
        y = self.y.double() if self.y.is_floating_point() else self.y
        return Raw(
            model=copy.deepcopy(self.model).double(),
            x=self.x.double(),
            y=y,
            likelihood=self.likelihood,
            structure=self.structure,
        )


def perceptron(*widths: int, activation: type[nn.Module] = nn.Tanh, scale: float = 1.0) -> nn.Sequential:
    """Linear layers with activations between them, the first one scaled."""
    layers = [each for one, two in itertools.pairwise(widths) for each in (nn.Linear(one, two), activation())]
    made = nn.Sequential(*layers[:-1])
    made[0].weight.data.mul_(scale)
    return made


def raws(examples: int) -> Iterator[tuple[str, Raw]]:
    """Tables of ten columns, and images."""
    z = torch.randn(examples, 10)
    y = torch.sin(z[:, :1]) + 0.1 * torch.randn(examples, 1)
    far = torch.linspace(0, 2000, 10) + torch.linspace(1, 10, 10) * z
    one, low = pw.Gaussian(1.0), pw.Gaussian(0.1)
    yield "perceptron 10-64-64-1", Raw(model=perceptron(10, 64, 64, 1), x=z, y=y, likelihood=one)
    yield "the same, noise 0.1", Raw(model=perceptron(10, 64, 64, 1), x=z, y=y, likelihood=low)
    yield (
        "the same, inputs around 0 to 2,000",
        Raw(model=perceptron(10, 64, 64, 1, scale=0.01), x=far, y=y, likelihood=low),
    )
    yield (
        "the same, ekfac",
        Raw(model=perceptron(10, 64, 64, 1, scale=0.01), x=far, y=y, likelihood=low, structure="ekfac"),
    )
    yield "10-64-1, block", Raw(model=perceptron(10, 64, 1), x=z, y=y, likelihood=low, structure="block")
    yield (
        "10-64-1, such inputs, block",
        Raw(model=perceptron(10, 64, 1, scale=0.01), x=far, y=y, likelihood=low, structure="block"),
    )
    yield (
        "10-32-1, such inputs, full",
        Raw(model=perceptron(10, 32, 1, scale=0.01), x=far, y=y, likelihood=low, structure="full"),
    )
    labels = torch.randint(10, (examples,))
    smooth = nn.functional.interpolate(torch.rand(examples, 1, 7, 7), (28, 28), mode="bilinear").flatten(1)
    network = partial(perceptron, 784, 512, 512, 10, activation=nn.ReLU)
    yield "MLP, smooth images", Raw(model=network(), x=smooth, y=labels, likelihood="classification")
    yield (
        "MLP, smooth images from 0 to 255",
        Raw(model=network(), x=255 * smooth, y=labels, likelihood="classification"),
    )
    yield (
        "MLP, independent pixels from 0 to 255",
        Raw(model=network(), x=255 * torch.rand(examples, 784), y=labels, likelihood="classification"),
    )


@contextmanager
def plainly() -> Iterator[None]:
    """All sums end in float32, and no product is in float64."""
    kept = rounding.SHOWS
    rounding.SHOWS = math.inf
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pw.RoundingWarning)
            yield
    finally:
        rounding.SHOWS = kept


def error(la: pw.Laplace, exact: pw.Laplace, x: Tensor) -> tuple[str, str]:
    """The worst relative error of 200 variances, and that of the log evidence in nats."""
    try:
        made, expected = (
            own.functional(given[:200]).cov.double().diagonal(dim1=-2, dim2=-1)
            for own, given in ((la, x), (exact, x.double()))
        )
        evidence = float(la.log_evidence() - exact.log_evidence())
        return f"{float((made / expected - 1).abs().max()):.0e}", f"{evidence:.2f}"
    except ValueError:
        return "refused", "refused"


def rounded(raw: Raw, repeats: int, device: torch.device) -> list[str]:
    """Seconds without and with the care for rounding, their ratio, and the errors of both."""
    raw = Raw(
        model=raw.model.to(device),
        x=raw.x.to(device),
        y=raw.y.to(device),
        likelihood=raw.likelihood,
        structure=raw.structure,
    )
    plain, careful = [], []
    for _ in range(repeats + 1):
        with plainly():
            plain.append(watched(raw, device))
        careful.append(watched(raw, device))
    exact = raw.in_float64().fit()
    without, seconds = (min(each for each, _ in times[1:]) for times in (plain, careful))
    errors = [error(times[-1][1], exact, raw.x) for times in (plain, careful)]
    first, second = zip(*errors, strict=True)
    return [f"{without:.3f}", f"{seconds:.3f}", f"{seconds / without:.2f}", *first, *second]


def watched(raw: Raw, device: torch.device) -> tuple[float, pw.Laplace]:
    """Seconds of a fit, and the posterior."""
    watch = Watch(raw.fit, device)
    la = watch()
    return watch.seconds, la


def main(arguments: list[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="benchmarks.checks", description=__doc__)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    parser.add_argument("--quick", action="store_true", help="few data and one network: does it run?")
    options = parser.parse_args(arguments)
    device, console = torch.device(options.device), Console()
    console.width = max(console.width, 120)
    examples, repeats = (60, 1) if options.quick else (options.examples, options.repeats)
    if "verification" in options.tables:
        most = 1 if options.quick else ON_CPU if device.type == "cpu" else len(VERIFIED)
        names = list(VERIFIED)[:most]
        console.print(verifications(names, examples, repeats, device))
    if "rounding" in options.tables:
        chosen = (2, 5) if options.quick else range(10)
        console.print(roundings(chosen, examples, repeats, device))


def verifications(names: list[str], examples: int, repeats: int, device: torch.device) -> Table:
    """How long the verification takes beside a fit."""
    table = Table(
        "network", "data", "verification, ms", "fit, ms", "share", title=f"Verification, {examples:,} examples"
    )
    for name in names:
        for loader in (False, True):
            check, fit = verification(name, examples, loader, repeats, device)
            words = "loader, batches of 128" if loader else "tensors on the device"
            table.add_row(name, words, f"{1e3 * check:.1f}", f"{1e3 * fit:.0f}", f"{check / fit:.1%}")
    return table


def roundings(chosen: Collection[int], examples: int, repeats: int, device: torch.device) -> Table:
    """How long fits take without and with care for rounding, and how far they are off."""
    titles = ("without, s", "with, s", "ratio", "variances", "", "evidence", "")
    table = Table("network", *titles, title=f"Rounding, {examples:,} examples")
    torch.manual_seed(0)
    for place, (name, raw) in enumerate(raws(examples)):
        if place in chosen:
            table.add_row(name, *rounded(raw, repeats, device))
    return table


if __name__ == "__main__":
    main()
