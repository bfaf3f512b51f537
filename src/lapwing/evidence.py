"""The log marginal likelihood of the Laplace approximation, with all constants."""

from __future__ import annotations

import torch
from torch import Tensor

from .core import Curvature
from .curvature import Totals
from .likelihoods import Gaussian, Likelihood
from .likelihoods.base import checked_noise
from .priors import Prior
from .space import Space


def noise_scale(likelihood: Likelihood, noise: float | Tensor | None) -> Tensor:
    """The likelihood's scale, or that of another noise (which may require gradients)."""
    if noise is None:
        return likelihood.scale
    if not isinstance(likelihood, Gaussian):
        raise ValueError(f"noise={noise!r} was given, but {type(likelihood).__name__} has no noise; leave it out.")
    value = checked_noise(noise, "log_evidence")
    if value.numel() != 1:
        raise ValueError(
            f"log_evidence: noise has {value.numel()} numbers; expected one, the common factor of all outputs."
        )
    return value.reshape(()).pow(-2)


def strength(scale: Tensor, degree: int, like: Tensor) -> Tensor:
    """(): what the curvature is multiplied with, `scale^degree`, if the weights' dtype can hold it."""
    made = scale.pow(degree)
    narrow = made.detach().to(like.dtype)
    if not bool(torch.isfinite(narrow)) or not bool(narrow > 0):
        raise ValueError(
            f"The noise {float(scale.detach()) ** -0.5:.3g} multiplies the curvature by {float(made.detach()):.3g}, "
            f"outside the range of {like.dtype}; use another noise, rescale the targets, or use a network in float64."
        )
    return made.to(like.device)


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
    own = noise_scale(likelihood, noise)
    scale = own.to(mode.device)
    delta = prior.delta(space, mode)
    fit = -(scale * totals.energy + likelihood.log_z(totals.scalars, scale) + totals.rest)
    distance = (delta * (mode - prior.centre(space, mode)).square()).sum()
    volume = delta.log().sum() - curvature.precision(delta, strength(own, degree, mode)).logdet()
    return fit + 0.5 * (volume - distance)
