"""A U-Net that denoises images: a regression with one output per pixel.

    python examples/evidence/unet.py --data DIR
    python examples/evidence/unet.py --data DIR --exact --images 30

NLL and MSE are per pixel. Covariances of 784 outputs are too large to be exact: variances are estimated from 64
samples, and every prediction warns about that. The noise is tuned with the prior. `--exact` looks for the linear mode
of a network half as wide with KFAC, with one exact block per module, and with the full GGN, and says how far the first
two are from the third: about five minutes on two cores.
"""

from __future__ import annotations

import torch
from common import BASIC, CONSOLE, Row, finish, folder, options, train
from readers import Pair, Task, digits
from torch import Tensor, nn
from torch.nn import functional as F

import peewit as pw

SOLVE = 250  # steps towards the linear mode
SHARES = (0.0, 0.01, 0.1, 0.5, 1.0)  # of the eigenvalues that are smaller than the one that is shown
STEPS = 800  # of conjugate gradients with dense matrices


class UNet(nn.Module):
    """Two levels down and up, with skip connections; BatchNorm after every convolution but the last."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.down1, self.down2 = convolution(1, width), convolution(width, 2 * width)
        self.middle = convolution(2 * width, 2 * width)
        self.wide2, self.wide1 = (nn.ConvTranspose2d(2 * width, width, 2, 2) for _ in range(2))
        self.up2, self.up1 = convolution(3 * width, 2 * width), convolution(2 * width, width)
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 1, 28, 28) -> (B, 1, 28, 28)."""
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        low = self.middle(F.max_pool2d(two, 2))
        up = self.up2(torch.cat([self.wide2(low), two], 1))
        return self.last(self.up1(torch.cat([self.wide1(up), one], 1)))


def convolution(inputs: int, outputs: int) -> nn.Sequential:
    """A convolution with BatchNorm."""
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU())


def noisy(task: Task, seed: int, deviation: float = 0.4) -> Task:
    """Noisy images as inputs, clean images as targets."""
    generator = torch.Generator().manual_seed(seed)

    def pair(x: Tensor) -> Pair:
        return x + deviation * torch.randn(x.shape, generator=generator), x

    parts = [pair(x) for x, _ in (task.train, task.validation, task.test)]
    return Task(f"{task.name}, noisy", *parts)


def solves(model: nn.Module, task: Task) -> dict[str, pw.LinearMode]:
    """The linear mode by structure, under a prior precision of 1 and a noise of .1."""
    found = {}
    exact = pw.fit(model, task.train, pw.Gaussian(0.1), structure="full", curvature="ggn")
    for structure in ("full", "kron", "block"):
        other = structure != "full"
        la = pw.fit(model, task.train, exact.likelihood, structure=structure, curvature="ggn") if other else exact
        mode = la.at_linear_mode(task.train, steps=SOLVE).linear_mode
        assert mode is not None
        CONSOLE.print(f"{structure}, {la.D:,} weights: {mode}", highlight=False)
        found[structure] = mode
        if other:
            compare_precisions(la, exact, found["full"].displacement)
    tuned = pw.fit(model, task.train, "regression", structure="full", curvature="ggn")
    CONSOLE.print(tuned.tune(at="linear_mode", train=task.train).trace, highlight=False)
    return found


def compare_precisions(la: pw.Laplace, exact: pw.Laplace, mode: Tensor) -> None:
    """How a posterior's precision P does as the only preconditioner for the exact one, A: dense, in float64."""
    identity = torch.eye(la.D, device=la.weights.device)
    own, full = (posterior.precision.mv(identity).double() for posterior in (la, exact))
    root = torch.linalg.cholesky(own)
    half = torch.linalg.solve_triangular(root, full, upper=False)
    values = torch.linalg.eigvalsh(torch.linalg.solve_triangular(root, half.mT, upper=False))
    shown = ", ".join(f"{float(values.quantile(share)):.2g}" for share in SHARES)
    CONSOLE.print(f"  smallest, 1 %, 10 %, median and largest eigenvalue of P^-1 A: {shown}", highlight=False)
    left = conjugate_gradients(root, full, mode.double())
    CONSOLE.print(f"  nats left after {STEPS} steps of conjugate gradients: {left:.2g}", highlight=False)


def conjugate_gradients(root: Tensor, matrix: Tensor, mode: Tensor) -> float:
    """What is left of the loss when `A e = A mode` is solved for e from zero, with the Cholesky factor of P."""

    def precondition(v: Tensor) -> Tensor:
        return torch.cholesky_solve(v[:, None], root)[:, 0]

    e, residual = torch.zeros_like(mode), matrix @ mode
    direction = z = precondition(residual)
    for _ in range(STEPS):
        product, before = matrix @ direction, residual @ z
        length = before / (direction @ product)
        e, residual = e + length * direction, residual - length * product
        z = precondition(residual)
        direction = z + residual @ z / before * direction
    return float((e - mode) @ matrix @ (e - mode)) / 2


def main(arguments: list[str] | None = None) -> list[Row] | dict[str, pw.LinearMode]:
    """Train, compare, print and draw."""
    parser = options(__doc__)
    parser.add_argument("--exact", action="store_true", help="only look for the linear mode, in two ways")
    asked = parser.parse_args(arguments)
    task = digits(folder(asked, "fashion_mnist"), "fashion_mnist")
    task = noisy(
        task.cut(12, 4) if asked.quick else task.cut(asked.images or 100, 2_000 if asked.images else 20), asked.seed
    ).to(asked.device)
    torch.manual_seed(asked.seed)
    model = UNet(2 if asked.quick else 4 if asked.exact else 8).to(asked.device)
    train(model, task.train, F.mse_loss, epochs=10 if asked.quick else 40, rate=1e-2)
    if asked.exact:
        return solves(model, task)
    ways = [way for way in BASIC if way.mode != "validation"]
    return finish(asked, "unet", model, task, "U-Net", likelihood="regression", ways=ways)


if __name__ == "__main__":
    main()
