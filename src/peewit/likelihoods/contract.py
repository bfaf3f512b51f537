"""What a likelihood is: `-log p(y | f) = noise_precision * energy(f, y) + log_z(y)`; curvature is taken of the energy.

Outputs and targets are brought into one form first: outputs (N, T, C), targets (N, T) or (N, T, ...), with T the
positions of an example (one where there are none).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..messages.errors import ArgumentTypeError, PeewitError
from ..messages.names import names_for_users
from ..runtime.random import Hashed
from .comparison import ConstantComparison, Decisions, Energies, compare_energies
from .form import ALL, Form, equal_form

# What the library asks of a likelihood, and what extensions override: `dir` shows the rest.
ENGINE = {
    "title", "caveat", "domain", "prepare", "form", "check_inputs", "for_inputs", "bind", "targets", "valid",
    "complaint", "known", "labelled", "scalars", "rest", "log_z", "draws", "drawn_score", "sample", "root",
    "rank", "link_family", "decisions", "constant", "beside_constant", "in_target_units", "residual_advice",
    "uneven_advice", "same_ratios", "awaits_residuals",
}  # fmt: skip


class Likelihood(ABC):
    """What inference needs to know of a likelihood: `energy` and `root`; all else is optional and has a default.

    Derive a class from it for targets that none of the public likelihoods fits and that `pw.Custom` is too slow for.
    Outputs come as f (N, T, C): N examples, T positions (one where there are none), C outputs. Targets come as y
    (N, T), or (N, T, ...), as `targets` returns them.

    Attributes:
        title: What messages about targets call it. By default the name of the class.
        link_family: Which closed forms its predictions have, a name in `peewit.predictions.families`. By default
            "other", which averages `distribution` over the outputs.
        draws: Whether labels can be drawn by `drawn_score`, which `curvature="fisher"` needs. By default not.
        noise_precision: One over the noise variance, (), which multiplies the energy. By default 1.
        domain: What is wrong where finite outputs have no finite energy. By default "": that cannot be.
        caveat: Why the evidence is not a marginal likelihood. By default "": it is one.
        constant: The outputs of the best constant where targets cannot change them. By default None: it is searched.
        in_target_units: Whether outputs are in the units of the targets, one each. By default not.
        residual_advice: What a diagnosis advises where residuals are of another size than predicted.
        uneven_advice: What a diagnosis advises where residuals of some outputs are, and those of others are not.

    Example:
        >>> from peewit.likelihoods import Likelihood
        >>> class Exponential(Likelihood):  # waiting times; the output is the logarithm of their rate
        ...     def energy(self, f, y):
        ...         return (f.exp() * y - f).sum((1, 2))
        ...
        ...     def root(self, f, y, probes=slice(None)):
        ...         return torch.eye(f.shape[-1])[:, probes].expand(*f.shape[:2], -1, -1)
        ...
        ...     def distribution(self, f):
        ...         return torch.distributions.Exponential(f.exp())
        >>> pw.fit(line_model, (t, t.exp()), Exponential()).predict(t).mean.shape
        torch.Size([40, 1])
    """

    @abstractmethod
    def energy(self, f: Tensor, y: Tensor) -> Tensor:
        """Compute the energy of each example: `-log p(y | f)` without the noise precision and what f does not change.

        Args:
            f: Outputs (N, T, C).
            y: Targets, as `targets` returns them.

        Returns:
            Energies (N,), summed over labelled positions; differentiable in f.

        Raises:
            PeewitError: The energy of `pw.Custom` does not return one number per example.
        """

    @abstractmethod
    def root(self, f: Tensor, y: Tensor, probes: slice = ALL) -> Tensor:
        """Compute a root S of the Fisher information of the outputs, `S S^T`, at noise precision 1.

        Where the information is diagonal, `diagonal_root` of `peewit.likelihoods.contract` makes S from the roots of
        its entries.

        Args:
            f: Outputs (N, T, C).
            y: Targets, as `targets` returns them. Most roots do not depend on them.
            probes: Which of the R columns are wanted.

        Returns:
            The columns (N, T, C, R), or those of `probes`.

        Raises:
            NotFiniteError: A root that is computed from derivatives of the energy has NaN or Inf.
        """

    def rank(self, outputs: int) -> int:
        """Count the columns R of the root: as many as outputs, unless this says that they are fewer.

        Args:
            outputs: Number C of outputs.

        Returns:
            R.
        """
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
        """Turn targets that are meant without doubt into what `form` takes, such as whole numbers into real ones.

        Args:
            f: Outputs (N, ...), as the network returns them.
            y: Targets (N, ...), as the user gives them.

        Returns:
            Targets (N, ...). By default y.
        """
        return y

    def form(self, f: Tensor, y: Tensor, like: Form | None = None) -> Form:
        """Find where the outputs are in what the network returns. By default targets have the shape of the outputs.

        Args:
            f: Outputs (N, ...), as the network returns them.
            y: Targets (N, ...), as `prepare` returns them.
            like: The form of an earlier batch, or None.

        Returns:
            The `peewit.likelihoods.Form`.

        Raises:
            PeewitError: The targets do not fit the outputs.
        """
        return equal_form(f, y, self.title)

    def check_inputs(self, inputs: Any) -> Any:
        """Refuse inputs of a data set that are not of the kind that the likelihood is about. By default any are.

        Args:
            inputs: Inputs of the network.

        Returns:
            The inputs.

        Raises:
            PeewitError: The inputs are of another kind.
        """
        return inputs

    def for_inputs(self, inputs: Any) -> Likelihood:
        """Choose the likelihood of predictions at inputs: itself, unless they are of another kind than the data's.

        Args:
            inputs: Inputs of the network.

        Returns:
            A likelihood.
        """
        return self

    def bind(self, form: Form) -> Likelihood:
        """The same likelihood, knowing the shape of the outputs: itself where it need not know."""
        return self

    def targets(self, y: Tensor, form: Form) -> Tensor:
        """Bring targets into the form of the outputs, with the dtype that the energy takes.

        Args:
            y: Targets (N, ...), as `prepare` returns them.
            form: Where the outputs are.

        Returns:
            Targets (N, T) or (N, T, ...). By default (N, T, C), as the outputs.

        Raises:
            ArgumentTypeError: The targets have a dtype that the likelihood does not take.
        """
        return form.flatten(y)

    def valid(self, y: Tensor, form: Form) -> Tensor:
        """Tell whether all targets can be observed. By default finite numbers can.

        Args:
            y: Targets, as `targets` returns them.
            form: Where the outputs are.

        Returns:
            A boolean tensor (), so that the answer of a GPU is not waited for.
        """
        return torch.isfinite(y).all()

    def complaint(self, y: Tensor, form: Form) -> str:
        """Say what is wrong with targets that are not valid.

        Args:
            y: Targets, as `targets` returns them.
            form: Where the outputs are.

        Returns:
            A sentence with what was given and what was expected.
        """
        return f"{self.title}: targets hold NaN or Inf; expected finite numbers."

    def known(self, y: Tensor) -> Tensor:
        """Tell which labels are known. By default all are.

        Args:
            y: Targets, as `targets` returns them.

        Returns:
            Booleans (N, T) or (N, T, ...), one per label.
        """
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
        """Sum the part of `-log p(y | f)` that depends on the targets alone. By default there is none.

        Args:
            y: Targets, as `targets` returns them.

        Returns:
            A number () in float64.
        """
        return torch.zeros((), dtype=torch.float64, device=y.device)

    def log_z(self, scalars: float, noise_precision: Tensor) -> Tensor:
        """Sum the part of `-log p(y | f)` that depends on the noise alone. By default there is none.

        Args:
            scalars: Number of labelled scalars.
            noise_precision: One over the noise variance, ().

        Returns:
            A number ().
        """
        return torch.zeros((), dtype=noise_precision.dtype, device=noise_precision.device)

    @property
    def draws(self) -> bool:
        """Whether labels can be drawn, by `drawn_score`."""
        return False

    def drawn_score(self, f: Tensor, y: Tensor, draws: Hashed, create_graph: bool = False) -> Tensor:
        """Compute the energy's gradient at labels drawn from the network at noise precision 1; needs `draws = True`.

        Args:
            f: Outputs (N, T, C).
            y: Observed targets, which say what is labelled.
            draws: Source of random numbers: `draws.uniform(C)` and `draws.normal(C)` are (N, T, C).
            create_graph: Whether the result is to be differentiable in f.

        Returns:
            Gradients (N, T, C), whose mean outer product over draws is `S S^T` of `root`.

        Raises:
            PeewitError: The likelihood draws no labels.
        """
        raise PeewitError(
            f"curvature='fisher' draws labels from the network, and {type(self).__name__} has no `drawn_score`; use "
            "curvature='ggn' or 'empirical'."
        )

    @property
    def link_family(self) -> str:
        """Which closed forms its predictions have, a name in `predictions.families`: those of any likelihood."""
        return "other"

    def distribution(self, f: Tensor) -> Distribution | None:
        """Give the distribution of targets given the outputs, at the likelihood's own noise.

        Args:
            f: Outputs (..., T, C).

        Returns:
            A `torch.distributions.Distribution`. None, the default, where it is not known: predictions are then
            `pw.Outputs`.
        """
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

    def __dir__(self) -> list[str]:
        """What is for users."""
        return names_for_users(self, ENGINE)


class WithNoise(Likelihood):
    """A likelihood whose noise can be learnt; its energy does not depend on it.

    Attributes:
        noise: The standard deviation, or one per output.
        factor: The standard deviation, or the common factor of several, ().
        awaits_residuals: Whether `fit` has to find the noise, from the network's residuals; `with_noise` then takes one
            per output. By default not.
        residual_advice: What a diagnosis advises where residuals are of another size than predicted.
        uneven_advice: What a diagnosis advises where residuals of some outputs are, and those of others are not.

    Example:
        >>> from peewit.likelihoods.contract import WithNoise
        >>> isinstance(pw.Gaussian(0.1), WithNoise), isinstance(pw.Poisson(), WithNoise)
        (True, False)
    """

    @property
    @abstractmethod
    def noise(self) -> float | Tensor | Literal["residuals"]:
        """The standard deviation, or one per output, or how to find it."""

    @property
    def awaits_residuals(self) -> bool:
        """Whether `fit` has to find the noise, from the network's residuals; `with_noise` then takes one per output."""
        return False

    @abstractmethod
    def with_noise(self, noise: float | Tensor) -> WithNoise:
        """Return the same likelihood with another noise.

        Args:
            noise: The standard deviation: one number, which is the common factor where each output has its own, or one
                per output.

        Returns:
            A new likelihood.

        Raises:
            PeewitError: `noise` is not positive.
        """

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
        """Compute the natural parameters of the Gaussian over each target.

        Args:
            f: Outputs (..., 2K).

        Returns:
            The parameters eta1 and eta2, (..., K) each: mean over variance, and -1/2 over the variance.
        """


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
