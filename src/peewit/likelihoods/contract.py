"""What a likelihood is: `-log p(y | f) = noise_precision * energy(f, y) + log_z(y)`; curvature is taken of the energy.

Outputs and targets are brought into one form first: outputs (N, T, C), targets (N, T) or (N, T, ...), with T the
positions of an example (one where there are none).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..messages.errors import ArgumentTypeError, PeewitError
from ..runtime.random import Hashed
from .comparison import ConstantComparison, Decisions, Energies, compare_energies
from .form import ALL, Form, equal_form


class Likelihood(ABC):
    """What inference needs to know of a likelihood: `energy` and `root`; all else is optional and has a default."""

    @abstractmethod
    def energy(self, f: Tensor, y: Tensor) -> Tensor:
        """(N, T, C) and targets -> (N,): summed over labelled positions."""

    @abstractmethod
    def root(self, f: Tensor, y: Tensor, probes: slice = ALL) -> Tensor:
        """(N, T, C, R), or some probes: root root^T is f's Fisher information at noise precision 1, 0 unlabelled."""

    def rank(self, outputs: int) -> int:
        """R: columns of the root, as many as outputs unless they are fewer."""
        return outputs

    @property
    def title(self) -> str:
        """What messages about targets call it: the name of its class."""
        return type(self).__name__

    @property
    def caveat(self) -> str:
        """Why the evidence is not a marginal likelihood; nothing where it is one."""
        return ""

    @property
    def domain(self) -> str:
        """What is wrong where finite outputs have no finite energy; nothing where that cannot be."""
        return ""

    def prepare(self, f: Tensor, y: Tensor) -> Tensor:
        """Targets as `form` takes them, where others are meant without doubt: as they are."""
        return y

    def form(self, f: Tensor, y: Tensor, like: Form | None = None) -> Form:
        """Where the outputs are, as in an earlier batch's `like`; raises where targets do not have their shape."""
        return equal_form(f, y, self.title)

    def check_inputs(self, inputs: Any) -> Any:
        """Inputs of data; raises where they are not of the kind that the likelihood is about: any are."""
        return inputs

    def asked(self, inputs: Any) -> Likelihood:
        """The likelihood of what is asked about inputs: itself, unless they are of another kind than the data's."""
        return self

    def bind(self, form: Form) -> Likelihood:
        """The same likelihood, knowing the shape of the outputs: itself where it need not know."""
        return self

    def targets(self, y: Tensor, form: Form) -> Tensor:
        """(N, ...) -> (N, T) or (N, T, ...), with the right dtype: any, in the outputs' form."""
        return form.flatten(y)

    def valid(self, y: Tensor, form: Form) -> Tensor:
        """() boolean: whether all targets have a likelihood, as finite ones do; a GPU's answer is not waited for."""
        return torch.isfinite(y).all()

    def complaint(self, y: Tensor, form: Form) -> str:
        """What is wrong with targets that are not valid."""
        return f"{self.title}: targets hold NaN or Inf; expected finite numbers."

    def known(self, y: Tensor) -> Tensor:
        """Booleans, one per label: which of them are known, all unless some can be missing."""
        return torch.ones_like(y, dtype=torch.bool)

    def labelled(self, y: Tensor) -> Tensor:
        """(N, T) booleans: which positions count, those where any label is known."""
        known = self.known(y)
        return known if known.dim() < 3 else known.flatten(2).any(-1)

    def scalars(self, y: Tensor) -> Tensor:
        """How many labelled scalars there are in targets: all numbers."""
        return constant_like(y.numel(), y)

    @property
    def noise_precision(self) -> Tensor:
        """1 / noise variance; 1 where there is no noise."""
        return torch.ones((), dtype=torch.float64, device="cpu")

    def rest(self, y: Tensor) -> Tensor:
        """(): the part of -log p(y | f) that depends on the targets alone, summed: nothing."""
        return torch.zeros((), dtype=torch.float64, device=y.device)

    def log_z(self, scalars: float, noise_precision: Tensor) -> Tensor:
        """The rest of -log p(y | f) that depends on the noise, summed over labelled scalars: nothing without noise."""
        return torch.zeros((), dtype=noise_precision.dtype, device=noise_precision.device)

    @property
    def draws(self) -> bool:
        """Whether labels can be drawn, by `drawn_score`."""
        return False

    def drawn_score(self, f: Tensor, y: Tensor, draws: Hashed, create_graph: bool = False) -> Tensor:
        """(N, T, C): a gradient at a label drawn at noise precision 1, with `root root^T` as its mean outer product."""
        raise PeewitError(
            f"curvature='fisher' draws labels from the network, and {type(self).__name__} has no `drawn_score`; use "
            "curvature='ggn' or 'empirical'."
        )

    @property
    def link_family(self) -> str:
        """Which closed forms its predictions have, a name in `predictions.families`: those of any likelihood."""
        return "other"

    def distribution(self, f: Tensor) -> Distribution | None:
        """Of a target given outputs (..., T, C), at the likelihood's own noise; None where it is not known."""
        return None

    def decisions(self, f: Tensor, y: Tensor) -> Decisions | None:
        """What the outputs decide and what the targets say; None where nothing is decided."""
        return None

    @property
    def constant(self) -> float | None:
        """The outputs of the best constant where targets cannot change them; None where it has to be searched."""
        return None

    def beside_constant(self, f: Tensor, y: Tensor, energies: Energies, where: str) -> ConstantComparison:
        """The network beside the best constant, in words for a diagnosis; `where` is said of the data."""
        return compare_energies(energies, where)

    @property
    def in_target_units(self) -> bool:
        """Whether outputs are in the targets' units, one each: then scaling targets scales outputs."""
        return False

    @property
    def residual_advice(self) -> str:
        """What to do where residuals are of another size than predicted."""
        return "Give the likelihood a predictive distribution that is as wide as the residuals."

    @property
    def uneven_advice(self) -> str:
        """What to do where residuals of some outputs are of another size than predicted, and others are not."""
        return "Give the likelihood a predictive distribution that is as wide as the residuals of each output."


class WithNoise(Likelihood):
    """A likelihood whose noise can be another, and be learnt; its energy does not depend on their common factor."""

    @property
    @abstractmethod
    def noise(self) -> float | Tensor | str:
        """The standard deviation, or one per output, or how to find it."""

    @property
    def awaits_residuals(self) -> bool:
        """Whether `fit` has to find the noise, from the network's residuals; `with_noise` then takes one per output."""
        return False

    @abstractmethod
    def with_noise(self, noise: float | Tensor) -> WithNoise:
        """Another noise."""

    @property
    def factor(self) -> Tensor:
        """(): the standard deviation, or the common factor of several."""
        return self.noise_precision.rsqrt()

    @property
    def residual_advice(self) -> str:
        """Tune the noise: diagnoses add how."""
        return "Tune it"

    @property
    def uneven_advice(self) -> str:
        """Change the ratios, and tune the common factor: diagnoses add how."""
        return "Scale the targets until their residuals are of one size, and tune the noise"

    def same_ratios(self, other: Likelihood) -> bool:
        """Whether the noise differs from another's by a common factor alone, so that curvature holds for both."""
        return True


class WithNatural(Likelihood):
    """A likelihood that is Gaussian in a target, with outputs for its mean and its variance."""

    @abstractmethod
    def natural(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """(..., 2K) -> eta1 and eta2, (..., K) each."""


def score(likelihood: Likelihood, f: Tensor, y: Tensor, create_graph: bool = False) -> Tensor:
    """(N, T, C): the gradient of the energy in the outputs."""
    with torch.enable_grad():
        variable = f if create_graph and f.requires_grad else f.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(likelihood.energy(variable, y).sum(), variable, create_graph=create_graph)
    return gradient


def constant_like(value: float, like: Tensor) -> Tensor:
    """() in float64 on a tensor's device: written there, without a copy that would be waited for."""
    return torch.full((), value, dtype=torch.float64, device=like.device)


def diagonal_root(values: Tensor, probes: slice) -> Tensor:
    """(..., C) -> (..., C, R): some columns of diagonal matrices."""
    identity = torch.eye(values.shape[-1], dtype=values.dtype, device=values.device)[:, probes]
    return values[..., None] * identity


def as_noise(value: object, what: str) -> Tensor:
    """A positive finite standard deviation, or several, in float64."""
    try:
        noise = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        raise ArgumentTypeError(
            f"{what}: noise is a {type(value).__name__}; expected a positive standard deviation, or one per output."
        ) from None
    if noise.dim() > 1 or noise.numel() == 0 or not bool(torch.isfinite(noise).all()) or not bool((noise > 0).all()):
        raise PeewitError(
            f"{what}: noise={value!r} was given; expected a positive standard deviation, or one per output."
        )
    return noise
