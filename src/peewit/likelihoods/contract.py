"""What a likelihood is: `-log p(y | f) = scale * energy(f, y) + log_z(y)`; curvature is taken of the energy.

Outputs and targets are brought into one form first: outputs (N, T, C), targets (N, T) or (N, T, ...), with T the
positions of an example (one where there are none).
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..runtime.random import Hashed
from .form import ALL, Form


@runtime_checkable
class Likelihood(Protocol):
    """What inference needs to know of a likelihood."""

    @property
    def scale(self) -> Tensor:
        """1 / noise variance; 1 where there is no noise."""
        ...

    @property
    def link_family(self) -> str:
        """Which closed forms its predictions have: 'categorical', 'gaussian', ... or 'other'."""
        ...

    @property
    def caveat(self) -> str:
        """Why the evidence is not a marginal likelihood, where it is not."""
        ...

    @property
    def domain(self) -> str:
        """What is wrong where finite outputs have no finite energy, for those likelihoods that can have such."""
        ...

    def form(self, f: Tensor, y: Tensor, like: Form | None = None) -> Form:
        """Where the outputs are, the same as in an earlier batch's `like`; raises where targets do not fit."""
        ...

    def bound(self, form: Form) -> Likelihood:
        """The same likelihood, knowing the shape of the outputs."""
        ...

    def targets(self, y: Tensor, form: Form) -> Tensor:
        """(N, ...) -> (N, T) or (N, T, ...), with the right dtype."""
        ...

    def valid(self, y: Tensor, form: Form) -> Tensor:
        """() boolean: whether all targets have a likelihood; asked without waiting for a GPU's answer."""
        ...

    def complaint(self, y: Tensor, form: Form) -> str:
        """What is wrong with targets that are not valid."""
        ...

    def labelled(self, y: Tensor) -> Tensor:
        """(N, T) booleans: which positions count."""
        ...

    def energy(self, f: Tensor, y: Tensor) -> Tensor:
        """(N, T, C) and targets -> (N,): summed over labelled positions."""
        ...

    def root(self, f: Tensor, y: Tensor, columns: slice = ALL) -> Tensor:
        """(N, T, C, R): root root^T = Fisher information of f at scale 1, zero where not labelled; or some columns."""
        ...

    def drawn_score(self, f: Tensor, y: Tensor, draws: Hashed, create_graph: bool = False) -> Tensor:
        """(N, T, C): a gradient at a label drawn at scale 1, with `root root^T` as its mean outer product."""
        ...

    def scalars(self, y: Tensor) -> Tensor:
        """How many labelled scalars there are in targets."""
        ...

    def rest(self, y: Tensor) -> Tensor:
        """(): the part of -log p(y | f) that depends on the targets alone, summed."""
        ...

    def log_z(self, scalars: float, scale: Tensor) -> Tensor:
        """The rest of -log p(y | f) that depends on the scale, summed over labelled scalars."""
        ...

    def distribution(self, f: Tensor) -> Distribution | None:
        """Of a target given outputs (..., T, C), at the likelihood's own noise; None where it is not known."""
        ...


def score(likelihood: Likelihood, f: Tensor, y: Tensor, create_graph: bool = False) -> Tensor:
    """(N, T, C): the gradient of the energy in the outputs."""
    with torch.enable_grad():
        variable = f if create_graph and f.requires_grad else f.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(likelihood.energy(variable, y).sum(), variable, create_graph=create_graph)
    return gradient


def filled(value: float, like: Tensor) -> Tensor:
    """() in float64 on a tensor's device: written there, without a copy that would be waited for."""
    return torch.full((), value, dtype=torch.float64, device=like.device)


def widened(f: Tensor) -> Tensor:
    """Outputs in float32 at least: energies are sums, and their exponentials overflow, in lower precision."""
    return f.to(torch.promote_types(f.dtype, torch.float32))


def unit_scale() -> Tensor:
    """The scale of a likelihood without noise."""
    return torch.ones((), dtype=torch.float64, device="cpu")


def every_position(y: Tensor) -> Tensor:
    """(N, T) booleans, all true."""
    return torch.ones(y.shape[:2], dtype=torch.bool, device=y.device)


def diagonal_root(values: Tensor, columns: slice) -> Tensor:
    """(..., C) -> (..., C, R): some columns of diagonal matrices."""
    identity = torch.eye(values.shape[-1], dtype=values.dtype, device=values.device)[:, columns]
    return values[..., None] * identity


def checked_noise(value: object, what: str) -> Tensor:
    """A positive finite standard deviation, or several, in float64."""
    try:
        made = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(
            f"{what}: noise is a {type(value).__name__}; expected a positive standard deviation, or one per output."
        ) from None
    if made.dim() > 1 or made.numel() == 0 or not bool(torch.isfinite(made).all()) or not bool((made > 0).all()):
        raise ValueError(
            f"{what}: noise={value!r} was given; expected a positive standard deviation, or one per output."
        )
    return made
