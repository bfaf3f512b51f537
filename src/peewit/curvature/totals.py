"""What the evidence needs of the data besides curvature: totals over all examples."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..likelihoods import Form, Labelled
from ..messages.warnings import FitWarning, warn


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over the data."""

    examples: int = 0
    scalars: float = 0.0
    energy: float = 0.0
    rest: float = 0.0  # of -log p, depending on the targets alone
    form: Form | None = None

    def __add__(self, later: Totals) -> Totals:
        """The totals of both data sets, in the form of the first."""
        return Totals(
            examples=self.examples + later.examples,
            scalars=self.scalars + later.scalars,
            energy=self.energy + later.energy,
            rest=self.rest + later.rest,
            form=self.form,
        )

    def compare(self, second: Totals, like: Tensor) -> None:
        """Warn where a second pass over the data found other energies; `like` is a tensor of the network."""
        pairs = ((self.energy, second.energy), (self.rest, second.rest))
        if any(differ(before, after, self.examples, like) for before, after in pairs):
            warn(
                f"The network's energy was {self.energy:.6g} in the first pass over the data and {second.energy:.6g} "
                "in the second: other examples, or augmentations drawn anew? The eigenvectors are of the first, and "
                "the moments along them of the second. Give tensors, a list of batches or a loader that repeats "
                "itself, or use structure='kron', which passes over the data once.",
                FitWarning,
            )


def differ(first: float, second: float, examples: int, like: Tensor) -> bool:
    """Whether the energies of two passes over some examples differ by more than rounding.

    `like` is a tensor of the network. An energy that is small may be a difference of larger numbers.
    """
    share = {torch.float64: 1e-8, torch.float32: 1e-3 if like.is_cuda else 1e-4}.get(like.dtype, 1e-2)
    return abs(first - second) > share * (abs(first) + 0.1 * examples)


@dataclass(kw_only=True)
class TotalsCounter:
    """Totals as examples come; numbers stay on the device until the end."""

    form: Form | None = None  # of the first examples
    examples: int = 0
    energies: list[Tensor] = field(default_factory=list)
    scalars: list[Tensor] = field(default_factory=list)
    rests: list[Tensor] = field(default_factory=list)

    def add(self, labels: Labelled, energy: Tensor) -> None:
        """Count some examples, with their energy (N,)."""
        self.form = self.form or labels.form
        self.examples += len(energy)
        self.energies.append(energy.double().sum())
        self.scalars.append(labels.likelihood.scalars(labels.y))
        self.rests.append(labels.likelihood.rest(labels.y))

    def total(self) -> Totals:
        """The totals of all examples."""
        energy, scalars, rest = (float(torch.stack(each).sum()) for each in (self.energies, self.scalars, self.rests))
        return Totals(examples=self.examples, scalars=scalars, energy=energy, rest=rest, form=self.form)
