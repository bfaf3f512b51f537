"""Likelihoods as `-log p(y | f) = scale * energy(f, y) + log_z(y)`: curvature is taken of the energy.

Outputs and targets are brought into one form first: outputs (N, T, C), targets (N, T) or (N, T, C), with T the
positions of an example (one where there are none).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from .random import Hashed

ALL = slice(None)


@dataclass(frozen=True)
class Form:
    """Where the classes or outputs are in a network's output (N, ...)."""

    axis: int | None  # None: the network returns (N,), one output without an axis
    shape: tuple[int, ...]  # of one example's output

    def flatten(self, f: Tensor) -> Tensor:
        """(..., *shape) with any leading axes -> (..., T, C)."""
        lead = f.dim() - len(self.shape)
        if self.axis is None:
            return f.reshape(*f.shape[:lead], 1, 1)
        moved = f.movedim(lead + self.axis, -1)
        return moved.reshape(*moved.shape[:lead], -1, moved.shape[-1])

    def restore(self, flat: Tensor) -> Tensor:
        """(..., T, C) -> (..., *shape)."""
        lead = flat.shape[:-2]
        if self.axis is None:
            return flat.reshape(*lead, *self.shape)
        positions = self.shape[: self.axis] + self.shape[self.axis + 1 :]
        return flat.reshape(*lead, *positions, flat.shape[-1]).movedim(-1, len(lead) + self.axis)

    @property
    def positions(self) -> int:
        """T."""
        return math.prod(self.shape) // self.outputs

    @property
    def outputs(self) -> int:
        """C."""
        return 1 if self.axis is None else self.shape[self.axis]


@runtime_checkable
class Likelihood(Protocol):
    """What inference needs to know of a likelihood."""

    @property
    def scale(self) -> Tensor:
        """1 / noise variance; 1 where there is no noise."""
        ...

    def form(self, f: Tensor, y: Tensor, like: Form | None = None) -> Form:
        """Where the outputs are, the same as in an earlier batch's `like`; raises where targets do not fit."""
        ...

    def targets(self, y: Tensor, form: Form) -> Tensor:
        """(N, ...) -> (N, T) or (N, T, C), with the right dtype."""
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

    def sample(self, f: Tensor, y: Tensor, draws: Hashed) -> Tensor:
        """Targets like `y`, drawn at scale 1; positions without a label keep none."""
        ...

    def scalars(self, y: Tensor) -> Tensor:
        """How many labelled scalars there are in targets."""
        ...

    def log_z(self, scalars: float, scale: Tensor) -> Tensor:
        """The rest of -log p(y | f), summed over labelled scalars."""
        ...

    @property
    def link_family(self) -> str:
        """How outputs become labels: categorical, bernoulli, gaussian, heteroscedastic, poisson, or other."""
        ...

    def distribution(self, f: Tensor) -> torch.distributions.Distribution | None:
        """Of y given outputs (..., T, C), noise included; None where the likelihood does not say."""
        ...


@dataclass(frozen=True)
class Categorical:
    """Classes with a softmax; labels equal to `ignore_index` have no likelihood."""

    ignore_index: int = -100
    axis: int | None = None

    @property
    def scale(self) -> Tensor:
        """There is no noise."""
        return torch.ones((), dtype=torch.float64, device="cpu")

    def form(self, f: Tensor, y: Tensor, like: Form | None = None) -> Form:
        """The class axis is the one whose removal leaves the target's shape."""
        if f.dim() < 2:
            raise ValueError(
                f"classification: the network's output has shape {tuple(f.shape)}; expected logits (N, C) or "
                "(N, T, C). A network with one logit is binary."
            )
        shape = tuple(f.shape)
        if self.axis is None and (shape[1:] == (1,) or (f.dim() == y.dim() + 1 and shape[-1] == 1)):
            raise ValueError(
                f"classification: the network has one output, {shape}, whose softmax is always 1; expected one output "
                "per class. A network with one logit needs a binary likelihood."
            )
        fitting = [axis for axis in range(1, f.dim()) if shape[:axis] + shape[axis + 1 :] == tuple(y.shape)]
        axis = self.axis % f.dim() if self.axis is not None else None
        if axis is None and like is not None and like.axis is not None and fitting:
            axis = like.axis + 1
            if axis not in fitting:
                raise ValueError(
                    f"classification: outputs {shape} and labels {tuple(y.shape)} have their classes on axis "
                    f"{fitting[0]}, those of an earlier batch on axis {axis} as well or instead; "
                    "say which with Categorical(axis=...)."
                )
        if axis is None and fitting:
            preferred = f.dim() - 1 if f.dim() <= 3 else 1
            axis = preferred if preferred in fitting else fitting[0]
        if axis is None or axis not in fitting:
            raise ValueError(
                f"classification: outputs {shape} and labels {tuple(y.shape)} do not fit; expected labels shaped like "
                "the outputs without their class axis."
            )
        return Form(axis - 1, shape[1:])

    def targets(self, y: Tensor, form: Form) -> Tensor:
        """(N, T) class numbers."""
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise TypeError(f"classification: labels have dtype {y.dtype}; expected integers (class numbers).")
        return y.reshape(y.shape[0], -1).long()

    def _wrong(self, y: Tensor, form: Form) -> Tensor:
        return (y != self.ignore_index) & ((y < 0) | (y >= form.outputs))

    def valid(self, y: Tensor, form: Form) -> Tensor:
        """No label is out of range."""
        return ~self._wrong(y, form).any()

    def complaint(self, y: Tensor, form: Form) -> str:
        """The first label that is out of range."""
        return (
            f"classification: label {int(y[self._wrong(y, form)][0])} is outside 0..{form.outputs - 1} "
            f"(the network has {form.outputs} outputs; {self.ignore_index} is ignored)."
        )

    def labelled(self, y: Tensor) -> Tensor:
        """(N, T)."""
        return y != self.ignore_index

    def energy(self, f: Tensor, y: Tensor) -> Tensor:
        """Cross entropy, (N,)."""
        known = self.labelled(y)
        picked = f.gather(-1, torch.where(known, y, 0)[..., None])[..., 0]
        return ((f.logsumexp(-1) - picked) * known).sum(1)

    def root(self, f: Tensor, y: Tensor, columns: slice = ALL) -> Tensor:
        """`diag(p) - p p^T = S S^T` with `S_cr = sqrt(p_r) (1[c = r] - p_c)`."""
        p = f.softmax(-1)
        identity = torch.eye(f.shape[-1], dtype=f.dtype, device=f.device)[:, columns]
        root = (identity - p[..., :, None]) * p.sqrt()[..., None, columns]
        return root * self.labelled(y)[..., None, None]

    def sample(self, f: Tensor, y: Tensor, draws: Hashed) -> Tensor:
        """By inverting the distribution function at one uniform number per position."""
        below = f.double().softmax(-1).cumsum(-1)
        drawn = (below < draws.uniform(1)).sum(-1).clamp(max=f.shape[-1] - 1)
        return torch.where(self.labelled(y), drawn, self.ignore_index)

    def scalars(self, y: Tensor) -> Tensor:
        """Labelled positions."""
        return self.labelled(y).sum()

    def log_z(self, scalars: float, scale: Tensor) -> Tensor:
        """Probabilities sum to one."""
        return torch.zeros((), dtype=scale.dtype, device=scale.device)

    @property
    def link_family(self) -> str:
        """A softmax."""
        return "categorical"

    def distribution(self, f: Tensor) -> torch.distributions.Distribution:
        """(..., T) labels."""
        return torch.distributions.Categorical(logits=f)


@dataclass(frozen=True)
class Gaussian:
    """Regression with one standard deviation `noise`."""

    noise: float | Tensor = 1.0

    def __post_init__(self) -> None:
        value = torch.as_tensor(self.noise)
        if value.numel() != 1 or not bool(torch.isfinite(value).all()) or not bool((value > 0).all()):
            raise ValueError(f"Gaussian(noise={self.noise!r}): expected one positive standard deviation.")

    @property
    def scale(self) -> Tensor:
        """1 / noise^2."""
        return torch.as_tensor(self.noise, dtype=torch.float64).reshape(()).pow(-2)

    def form(self, f: Tensor, y: Tensor, like: Form | None = None) -> Form:
        """Targets have exactly the outputs' shape: nothing is broadcast."""
        if f.shape != y.shape:
            raise ValueError(
                f"regression: outputs {tuple(f.shape)} and targets {tuple(y.shape)} differ; expected equal shapes."
            )
        if f.dim() == 1:
            return Form(None, ())
        return Form(f.dim() - 2 if f.dim() <= 3 else 0, tuple(f.shape[1:]))

    def targets(self, y: Tensor, form: Form) -> Tensor:
        """(N, T, C)."""
        if not y.is_floating_point():
            raise TypeError(f"regression: targets have dtype {y.dtype}; expected floating point numbers.")
        return form.flatten(y)

    def valid(self, y: Tensor, form: Form) -> Tensor:
        """All targets are finite."""
        return torch.isfinite(y).all()

    def complaint(self, y: Tensor, form: Form) -> str:
        """There is one thing that can be wrong."""
        return "regression: targets hold NaN or Inf; expected finite numbers."

    def labelled(self, y: Tensor) -> Tensor:
        """All positions count."""
        return torch.ones(y.shape[:2], dtype=torch.bool, device=y.device)

    def energy(self, f: Tensor, y: Tensor) -> Tensor:
        """`1/2 |f - y|^2`, (N,)."""
        return 0.5 * (f - y.to(f.dtype)).square().sum((1, 2))

    def root(self, f: Tensor, y: Tensor, columns: slice = ALL) -> Tensor:
        """The identity."""
        identity = torch.eye(f.shape[-1], dtype=f.dtype, device=f.device)[:, columns]
        return identity.expand(*f.shape, identity.shape[1])

    def sample(self, f: Tensor, y: Tensor, draws: Hashed) -> Tensor:
        """`f` plus standard normal noise."""
        return f + draws.normal(f.shape[-1]).to(f.dtype)

    def scalars(self, y: Tensor) -> Tensor:
        """All numbers."""
        return torch.tensor(y.numel(), device=y.device)

    def log_z(self, scalars: float, scale: Tensor) -> Tensor:
        """`1/2 log(2 pi / scale)` per scalar target."""
        return 0.5 * scalars * (math.log(2 * math.pi) - scale.log())

    @property
    def link_family(self) -> str:
        """The identity."""
        return "gaussian"

    def distribution(self, f: Tensor) -> torch.distributions.Distribution:
        """(..., T, C) numbers."""
        return torch.distributions.Normal(f, self.scale.to(f).rsqrt().expand(f.shape))


def score(likelihood: Likelihood, f: Tensor, y: Tensor, create_graph: bool = False) -> Tensor:
    """(N, T, C): the gradient of the energy in the outputs."""
    with torch.enable_grad():
        variable = f if create_graph and f.requires_grad else f.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(likelihood.energy(variable, y).sum(), variable, create_graph=create_graph)
    return gradient


NAMES = {"classification": Categorical, "regression": Gaussian}
