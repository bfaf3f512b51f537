"""The log marginal likelihood of the Laplace approximation, with all constants."""

from __future__ import annotations

import torch
from torch import Tensor

from .core import Curvature
from .curvature import Totals
from .likelihoods import Gaussian, Likelihood
from .priors import Prior
from .space import Space


def noise_scale(likelihood: Likelihood, noise: float | Tensor | None) -> Tensor:
    """The likelihood's scale, or that of another noise (which may require gradients)."""
    if noise is None:
        return likelihood.scale
    if not isinstance(likelihood, Gaussian):
        raise ValueError(f"noise={noise!r} was given, but {type(likelihood).__name__} has no noise.")
    value = torch.as_tensor(noise, dtype=torch.float64).reshape(())
    if not bool(torch.isfinite(value)) or not bool(value > 0):
        raise ValueError(f"noise={noise!r}: expected a positive standard deviation.")
    return value.pow(-2)


def log_evidence(
    curvature: Curvature,
    degree: int,
    mode: Tensor,
    space: Space,
    prior: Prior,
    likelihood: Likelihood,
    totals: Totals,
    noise: float | Tensor | None = None,
) -> Tensor:
    """`log p(D | theta) - 1/2 |theta - mu|^2_delta + 1/2 log |delta| - 1/2 log |P|`, differentiable in both."""
    if prior.kind == "diagonal" and prior.precision.requires_grad and not curvature.elementwise:
        raise ValueError(
            "A gradient in one prior precision per weight was asked for, which Kronecker blocks do not have; "
            "use a scalar or layerwise prior, or structure='diag', 'block' or 'full'."
        )
    scale = noise_scale(likelihood, noise).to(mode.device)
    delta = prior.delta(space, mode)
    fit = -(scale * totals.energy + likelihood.log_z(totals.scalars, scale) + totals.rest)
    distance = (delta * (mode - prior.centre(space, mode)).square()).sum()
    volume = delta.log().sum() - curvature.precision(delta, scale.pow(degree)).logdet()
    return fit + 0.5 * (volume - distance)
