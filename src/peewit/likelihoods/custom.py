"""Any loss: a likelihood from its energy function alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..messages.errors import ArgumentTypeError, NotFiniteError, PeewitError
from ..messages.names import spelled_class
from ..messages.warnings import FitWarning, warn
from ..runtime.random import Hashed
from .contract import Likelihood, constant_like, score
from .form import ALL, Form, usual_axis

NEGATIVE = 1e-4  # eigenvalues below this share of the largest are more than rounding


@spelled_class
@dataclass(frozen=True)
class Custom(Likelihood):
    """Any loss that is `-log p(y | f)` up to a constant, as a function of the network's outputs f and targets y.

    The function gets outputs and targets as the network and the data have them, in any shape, with the examples first.
    Where the loss is not convex in the outputs, negative eigenvalues of its Hessian count as zero, with a warning.

    Args:
        energy_function: `(f, y) -> (N,)`, one number per example, twice differentiable in f (N, ...).
        sample: `(f, uniform) -> y` draws targets from the network's own distribution, by uniform numbers (N, F),
            where F counts the outputs of an example. `curvature="fisher"` needs it.
        predictive: `f -> torch.distributions.Distribution` of a target, given outputs (..., *shape). Without it
            predictions have moments of the outputs alone.
        shape: The shape of one example's outputs. Leave it out: `pw.fit` finds it in the data.

    Attributes:
        draws: Whether there is a `sample`.

    Raises:
        ArgumentTypeError: `energy_function` cannot be called.
        PeewitError: By `pw.fit`, where it does not return (N,), or cannot be differentiated.

    Example:
        >>> def huber(f, y):
        ...     return torch.nn.functional.huber_loss(f, y, reduction="none").sum(1)
        >>> la = pw.fit(line_model, (t, z), pw.Custom(huber))
        >>> la.functional(t).mean.shape
        torch.Size([40, 1])
    """

    energy_function: Callable[[Tensor, Tensor], Tensor]
    sample: Callable[[Tensor, Tensor], Tensor] | None = None
    predictive: Callable[[Tensor], Distribution] | None = None
    shape: tuple[int, ...] | None = None  # of one example's outputs: known once data were seen

    title = "custom likelihood"
    caveat = "the energy is known up to a constant"
    domain = "the energy function is not finite at the outputs and targets it was given"

    def __post_init__(self) -> None:
        if not callable(self.energy_function):
            raise ArgumentTypeError(
                f"Custom({type(self.energy_function).__name__}): expected a function of outputs and targets that "
                "returns one number per example."
            )

    @property
    def draws(self) -> bool:
        """Whether a function that draws labels was given."""
        return self.sample is not None

    def form(self, f: Tensor, y: Tensor, like: Form | None = None) -> Form:
        # All numbers of an example together: an unknown loss may tie any of them.
        return Form(usual_axis(f.dim()), tuple(f.shape[1:]), whole=True)

    def bind(self, form: Form) -> Likelihood:
        """With the shape in which the energy takes its outputs."""
        return replace(self, shape=form.shape)

    def targets(self, y: Tensor, form: Form) -> Tensor:
        # (N, 1, ...): the one position.
        return y.unsqueeze(1)

    def _restore(self, f: Tensor) -> Tensor:
        """(N, 1, F) -> (N, *shape)."""
        return f.reshape(f.shape[0], *(f.shape[2:] if self.shape is None else self.shape))

    def energy(self, f: Tensor, y: Tensor) -> Tensor:
        energy: Any = self.energy_function(self._restore(f), y[:, 0])
        if not isinstance(energy, Tensor) or energy.shape != (f.shape[0],):
            what = tuple(energy.shape) if isinstance(energy, Tensor) else type(energy).__name__
            raise PeewitError(
                f"The energy of a custom likelihood returned {what} for {f.shape[0]} examples; expected shape "
                f"({f.shape[0]},): one number per example, neither summed nor averaged over them."
            )
        if torch.is_grad_enabled() and f.requires_grad and not energy.requires_grad:
            raise PeewitError(
                "The energy of a custom likelihood does not depend on the outputs in a way that can be differentiated; "
                "expected a function made of torch's differentiable operations."
            )
        return energy

    def hessian(self, f: Tensor, y: Tensor) -> Tensor:
        """(N, 1, F, F): of the energy in the outputs, a row at a time for all examples."""
        with torch.enable_grad():
            variable = f if f.requires_grad else f.detach().requires_grad_()
            energy = self.energy(variable, y).sum()
            (gradient,) = torch.autograd.grad(energy, variable, create_graph=True)
            if not gradient.requires_grad:
                return f.new_zeros(*f.shape, f.shape[-1])  # linear in the outputs
            rows = [
                torch.autograd.grad(
                    gradient[..., output].sum(), variable, retain_graph=True, create_graph=True, materialize_grads=True
                )[0]
                for output in range(f.shape[-1])
            ]
        hessian = torch.stack(rows, -2)
        return hessian if f.requires_grad else hessian.detach()

    def root(self, f: Tensor, y: Tensor, probes: slice = ALL) -> Tensor:
        # Of the Hessian; negative eigenvalues are dropped, with a warning.
        hessian = self.hessian(f, y)
        if not bool(torch.isfinite(hessian.detach()).all()):
            raise NotFiniteError(
                "The Hessian of a custom likelihood's energy holds NaN or Inf; check that inputs and outputs are "
                "finite and that the energy function is twice differentiable at them."
            )
        values, vectors = torch.linalg.eigh(0.5 * (hessian + hessian.mT))
        if bool((values.detach() < -NEGATIVE * values.detach().abs().max()).any()):
            warn(
                "The energy of the custom likelihood is not convex in the outputs: negative eigenvalues of its Hessian "
                f"(down to {float(values.detach().min()):.3g}) are set to zero.",
                FitWarning,
            )
        root: Tensor = vectors * values.clamp(min=0).sqrt()[..., None, :]
        return root[..., probes]

    def drawn_score(self, f: Tensor, y: Tensor, draws: Hashed, create_graph: bool = False) -> Tensor:
        # The gradient at a drawn target.
        if self.sample is None:
            raise PeewitError(
                "curvature='fisher' draws labels from the network, and this custom likelihood has no `sample`; give "
                "one with Custom(energy, sample=...), or use curvature='ggn' or 'empirical'."
            )
        uniform = draws.uniform(f.shape[-1])[:, 0].to(f.dtype)
        small = torch.finfo(f.dtype).eps / 2
        drawn = self.sample(self._restore(f.detach()), uniform.clamp(small, 1 - small))  # neither 0 nor 1 by rounding
        return score(self, f, drawn.unsqueeze(1), create_graph)

    def scalars(self, y: Tensor) -> Tensor:
        """Examples: what one target consists of is not known."""
        return constant_like(y.shape[0], y)

    def distribution(self, f: Tensor) -> Distribution | None:
        # The distribution of a target, where a function for it was given.
        if self.predictive is None:
            return None
        return self.predictive(f.reshape(*f.shape[:-2], *(f.shape[-1:] if self.shape is None else self.shape)))
