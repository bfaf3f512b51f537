"""Regression whose noise depends on the input: the network returns two numbers per target."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.distributions import Normal

from ..messages.errors import ArgumentTypeError, PeewitError
from ..messages.names import spelled_class
from ..runtime.random import Hashed
from .comparison import ConstantComparison, Energies, compare_densities
from .contract import WithNatural, constant_like, score
from .form import ALL, Form, as_floating, usual_axis

Parameters = Literal["raw", "natural", "mean_variance", "mean_log_variance"]
"""What the two outputs of a head mean."""
PARAMETERS = ("raw", "natural", "mean_variance", "mean_log_variance")
FLOOR = 1e-8  # keeps the precision of the raw head away from zero


@spelled_class
@dataclass(frozen=True)
class HeteroscedasticGaussian(WithNatural):
    """Regression whose noise depends on the input: the network returns two numbers per target.

    `pw.fit(..., "heteroscedastic")` takes it. Outputs are (..., 2K) for targets (..., K): first the first number of
    every target, then the second of every target. A single target may lack its axis.

    What the two numbers `o1` and `o2` of a target are, by `parameters`:

    - "raw": natural parameters `eta1 = o1` and `eta2 = -(softplus(o2) + 1e-8) / 2`. Any outputs are valid, and the
      energy is convex in `eta`.
    - "natural": `eta1 = mean / variance` and `eta2 = -1 / (2 variance)`, which has to be below zero.
    - "mean_variance": mean and variance, which has to be above zero.
    - "mean_log_variance": mean and logarithm of the variance.

    Args:
        parameters: "raw", "natural", "mean_variance" or "mean_log_variance".

    Raises:
        PeewitError: `parameters` is none of these; by `pw.fit`, where outputs and targets do not fit.

    Example:
        >>> two = torch.nn.Sequential(torch.nn.Linear(1, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))
        >>> la = pw.fit(two, (t, z), pw.HeteroscedasticGaussian("mean_log_variance"))
        >>> la.predict(t).mean.shape
        torch.Size([40, 1])
    """

    parameters: Parameters = "raw"

    title = link_family = "heteroscedastic"
    draws = True
    residual_advice = "Train the variances longer, or stop earlier where they follow single targets."
    uneven_advice = "Train the variances longer, or scale the targets to a common size."

    def __post_init__(self) -> None:
        if self.parameters not in PARAMETERS:
            raise PeewitError(f"HeteroscedasticGaussian(parameters={self.parameters!r}): expected one of {PARAMETERS}.")

    @property
    def domain(self) -> str:
        """Two of the heads have a sign."""
        needs = {"natural": "eta2, must be below zero", "mean_variance": "the variances, must be above zero"}
        if self.parameters not in needs:
            return ""
        return (
            f"outputs are not what parameters={self.parameters!r} takes: their second half, {needs[self.parameters]} "
            "(parameters='raw' takes any outputs)"
        )

    def prepare(self, f: Tensor, y: Tensor) -> Tensor:
        # Whole numbers are numbers.
        return as_floating(y)

    def form(self, f: Tensor, y: Tensor, like: Form | None = None) -> Form:
        # Twice as many outputs as targets along the output axis, which a single target need not have.
        axis = usual_axis(f.dim())
        shape = tuple(f.shape)
        expected: list[tuple[int, ...]] = []
        if axis is not None and shape[axis + 1] % 2 == 0:
            half = shape[axis + 1] // 2
            expected.append(shape[: axis + 1] + (half,) + shape[axis + 2 :])
            if half == 1:
                expected.append(shape[: axis + 1] + shape[axis + 2 :])
        if axis is None or tuple(y.shape) not in expected:
            wanted = f"targets of shape {' or '.join(map(str, expected))}" if expected else "an even number of outputs"
            raise PeewitError(
                f"heteroscedastic: outputs {shape} and targets {tuple(y.shape)} do not fit; expected {wanted}: the "
                "network returns two numbers per target, all first ones and then all second ones."
            )
        return Form(axis, shape[1:])

    def targets(self, y: Tensor, form: Form) -> Tensor:
        if not y.is_floating_point():
            raise ArgumentTypeError(
                f"heteroscedastic: targets have dtype {y.dtype}; expected numbers, such as y.float(), or "
                "y.astype(float) of an array."
            )
        axis, dims = form.axis, len(form.shape)
        assert axis is not None
        if y.dim() == dims:  # one target without an axis
            y = y.unsqueeze(axis + 1)
        target_form = Form(axis, tuple(y.shape[1:]))
        return target_form.flatten(y)

    def natural(self, f: Tensor) -> tuple[Tensor, Tensor]:
        # (..., 2K) -> eta1 and eta2, (..., K) each.
        first, second = f.chunk(2, -1)
        if self.parameters == "raw":
            return first, -0.5 * (torch.nn.functional.softplus(second) + FLOOR)
        if self.parameters == "natural":
            return first, second
        variance = second if self.parameters == "mean_variance" else second.exp()
        return first / variance, -0.5 / variance

    def moments(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the mean and the variance of each target.

        Args:
            f: Outputs (..., 2K).

        Returns:
            Mean and variance, (..., K) each.
        """
        first, second = f.chunk(2, -1)
        if self.parameters == "mean_variance":
            return first, second
        if self.parameters == "mean_log_variance":
            return first, second.exp()
        first, second = self.natural(f)
        variance = -0.5 / second
        return first * variance, variance

    def energy(self, f: Tensor, y: Tensor) -> Tensor:
        # `1/2 ((y - mean)^2 / variance + log variance)`, (N,); not finite where a variance is not positive.
        mean, variance = self.moments(f)
        return 0.5 * ((y.to(f.dtype) - mean).square() / variance + variance.log()).sum((1, 2))

    def root(self, f: Tensor, y: Tensor, probes: slice = ALL) -> Tensor:
        # `(d eta / d f)^T` times the root of the Hessian of the log-partition function, target by target.
        mean, variance = self.moments(f)
        deviation = variance.sqrt()
        zero = torch.zeros_like(mean)
        if self.parameters in ("raw", "natural"):
            # The covariance of (y, y^2) is L L^T with L = [[s, 0], [2 m s, sqrt(2) s^2]].
            slope = torch.ones_like(mean)
            if self.parameters == "raw":
                slope = -0.5 * f.chunk(2, -1)[1].sigmoid()
            corner, last = 2 * mean * deviation * slope, math.sqrt(2) * variance * slope
            first = deviation
        else:
            first, corner = 1 / deviation, zero
            last = 1 / (math.sqrt(2) * variance)
            if self.parameters == "mean_log_variance":
                last = torch.full_like(mean, 1 / math.sqrt(2))
        blocks = [[first, zero], [corner, last]]
        lines = [torch.cat([torch.diag_embed(block) for block in line], -1) for line in blocks]
        return torch.cat(lines, -2)[..., probes]

    def sample(self, f: Tensor, y: Tensor, draws: Hashed) -> Tensor:
        """(N, T, K)."""
        mean, variance = self.moments(f.detach())
        return mean + variance.sqrt() * draws.normal(mean.shape[-1]).to(f.dtype)

    def drawn_score(self, f: Tensor, y: Tensor, draws: Hashed, create_graph: bool = False) -> Tensor:
        # The gradient at a drawn target.
        return score(self, f, self.sample(f, y, draws), create_graph)

    def rest(self, y: Tensor) -> Tensor:
        # `1/2 log 2 pi` per scalar target.
        return constant_like(0.5 * math.log(2 * math.pi) * y.numel(), y)

    def distribution(self, f: Tensor) -> Normal:
        mean, variance = self.moments(f)
        return Normal(mean, variance.sqrt(), validate_args=False)

    def beside_constant(self, f: Tensor, y: Tensor, energies: Energies, where: str) -> ConstantComparison:
        """By NLL."""
        rest, number = float(self.rest(y)), float(self.scalars(y))
        per_number = Energies(*((energy + rest) / number for energy in energies))
        return compare_densities(self.distribution(f).mean, y, per_number, where)
