"""Regression with one standard deviation, or one per output."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.distributions import Normal

from ..messages.errors import ArgumentTypeError, PeewitError
from ..messages.names import spelled_class
from ..runtime.random import Hashed
from .comparison import ConstantComparison, Energies, compare_means
from .contract import Likelihood, WithNoise, as_noise, diagonal_root, score
from .form import ALL, Form, as_floating, hold_one_each

RESIDUALS = "residuals"


@spelled_class
@dataclass(frozen=True)
class Gaussian(WithNoise):
    """Regression: targets are the outputs plus Gaussian noise, the same for all inputs.

    `pw.fit(..., "regression")` takes it with noise 1. Targets are floating point numbers with the outputs' shape.
    Tuning learns one number: the noise, or the common factor of several, which is their geometric mean.

    Args:
        noise: The standard deviation of the noise: one number, one per output (C,), or "residuals", which takes one per
            output from the residuals of the network on the data that it is fitted to.

    Attributes:
        factor: The common factor of all standard deviations, ().
        noise_precision: One over the square of `factor`, ().
        awaits_residuals: Whether `noise` is "residuals".

    Raises:
        PeewitError: `noise` is not a positive finite number, several of them, or "residuals".

    Example:
        >>> la = pw.fit(line_model, (t, z), pw.Gaussian(noise="residuals"))
        >>> 0 < float(la.likelihood.noise) < 1
        True
        >>> pw.Gaussian(0.5).with_noise(0.1)
        Gaussian(noise=0.1)
    """

    noise: float | Tensor | Literal["residuals"] = 1.0

    def __post_init__(self) -> None:
        if isinstance(self.noise, str):
            if self.noise != RESIDUALS:
                raise PeewitError(f"Gaussian(noise={self.noise!r}): expected a number, one per output, or 'residuals'.")
        else:
            as_noise(self.noise, "Gaussian")
            if isinstance(self.noise, Tensor):  # a value: later changes by the caller stay outside
                object.__setattr__(self, "noise", self.noise.cpu().clone())

    title = "regression"
    link_family = "gaussian"
    draws = in_target_units = True
    uneven_advice = (
        "Fit again with a noise for each output, pw.Gaussian(noise='residuals'), and tune their common factor"
    )

    def _values(self) -> Tensor:
        """() or (C,), float64."""
        if isinstance(self.noise, str):
            raise PeewitError("Gaussian(noise='residuals') has no value before it is fitted.")
        return as_noise(self.noise, "Gaussian")

    @property
    def awaits_residuals(self) -> bool:
        """As asked for by "residuals"."""
        return isinstance(self.noise, str)

    @property
    def factor(self) -> Tensor:
        """(): the common factor of all standard deviations."""
        values = self._values()
        return values.reshape(()) if values.numel() == 1 else values.log().mean().exp()

    def _ratios(self, f: Tensor) -> Tensor | None:
        """(C,): standard deviations over their common factor; None where there is one for all."""
        values = self._values()
        return None if values.numel() == 1 else (values / self.factor).to(f, non_blocking=True)

    @property
    def noise_precision(self) -> Tensor:
        """1 / factor^2."""
        return self.factor.pow(-2)

    def with_noise(self, noise: float | Tensor) -> Gaussian:
        # Another noise; one number is the common factor where each output has its own.
        value = as_noise(noise, "with_noise")
        values = value if self.awaits_residuals else self._values()
        if value.numel() == 1 and values.numel() > 1:
            value = value.reshape(()).to(values) * values / self.factor
        return replace(self, noise=value if value.numel() > 1 else float(value))

    def same_ratios(self, other: Likelihood) -> bool:
        """Whether standard deviations differ from another's by a common factor alone."""
        assert isinstance(other, Gaussian)
        ratios = self._values().cpu() / self.factor.cpu() * (other.factor.cpu() / other._values().cpu())
        return bool((ratios - 1).abs().max() < 1e-6)

    def prepare(self, f: Tensor, y: Tensor) -> Tensor:
        # Whole numbers are numbers, where there is one for each output.
        return as_floating(y) if f.shape == y.shape or hold_one_each(f, y) else y

    def form(self, f: Tensor, y: Tensor, like: Form | None = None) -> Form:
        # Targets have the outputs' shape, or are one for each example: nothing is broadcast.
        form = super().form(f, y, like)
        number = 1 if self.awaits_residuals else self._values().numel()
        if number not in (1, form.outputs):
            raise PeewitError(
                f"Gaussian(noise=...) has {number} numbers, and the network {form.outputs} outputs; expected one "
                "number, or one per output."
            )
        return form

    def targets(self, y: Tensor, form: Form) -> Tensor:
        if not y.is_floating_point():
            raise ArgumentTypeError(
                f"regression: targets have dtype {y.dtype}; expected numbers, such as y.float(), or y.astype(float) of "
                "an array."
            )
        return form.flatten(y)

    def energy(self, f: Tensor, y: Tensor) -> Tensor:
        # `1/2 |(f - y) / ratio|^2`, (N,).
        ratios = self._ratios(f)
        residual = f - y.to(f.dtype)
        return 0.5 * (residual if ratios is None else residual / ratios).square().sum((1, 2))

    def root(self, f: Tensor, y: Tensor, probes: slice = ALL) -> Tensor:
        # The identity, over the ratios.
        ratios = self._ratios(f)
        if ratios is not None:
            return diagonal_root((1 / ratios).expand(f.shape), probes)
        identity = torch.eye(f.shape[-1], dtype=f.dtype, device=f.device)[:, probes]
        return identity.expand(*f.shape, identity.shape[1])

    def sample(self, f: Tensor, y: Tensor, draws: Hashed) -> Tensor:
        """`f` plus normal noise with the ratios as its standard deviations."""
        ratios = self._ratios(f)
        noise = draws.normal(f.shape[-1]).to(f.dtype)
        return f.detach() + (noise if ratios is None else noise * ratios)

    def drawn_score(self, f: Tensor, y: Tensor, draws: Hashed, create_graph: bool = False) -> Tensor:
        # The gradient at a drawn target.
        return score(self, f, self.sample(f, y, draws), create_graph)

    def log_z(self, scalars: float, noise_precision: Tensor) -> Tensor:
        # `1/2 log(2 pi / noise_precision)` per scalar target: the ratios' logarithms have mean zero.
        return 0.5 * scalars * (math.log(2 * math.pi) - noise_precision.log())

    def distribution(self, f: Tensor) -> Normal:
        return Normal(f, self._values().to(f).expand(f.shape), validate_args=False)

    def beside_constant(self, f: Tensor, y: Tensor, energies: Energies, where: str) -> ConstantComparison:
        """By R^2."""
        return compare_means(f, y, 1 - energies.network / energies.constant, where)
