"""GGN, Monte Carlo Fisher, empirical Fisher and Hessian: which factor the outputs have."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..likelihoods import Form, Likelihood, score
from ..messages.arguments import is_count
from ..runtime.random import Hashed

AUTO_LIMIT = 64  # columns up to which `auto` takes the exact curvature


class Kind(Protocol):
    """A choice of output-space factor: `degree` is its power in the likelihood's scale."""

    @property
    def name(self) -> str:
        """As `curvature=` takes it."""
        ...

    @property
    def degree(self) -> int:
        """Power of the scale."""
        ...

    def count(self, form: Form, likelihood: Likelihood) -> int:
        """K: columns per example."""
        ...

    def columns(self, view: View, start: int, stop: int) -> Tensor:
        """(k, N, T, C): columns start..stop of S."""
        ...


@dataclass(frozen=True)
class View:
    """A batch's outputs and targets in the likelihood's form, with what drawing labels needs."""

    likelihood: Likelihood
    f: Tensor  # (N, T, C)
    y: Tensor
    form: Form
    examples: Tensor  # (N,): numbers of the examples
    seed: int
    create_graph: bool = False


@dataclass(frozen=True)
class GGN:
    """The exact generalised Gauss-Newton: a column per position and root column."""

    name: str = "ggn"
    degree: int = 1

    def count(self, form: Form, likelihood: Likelihood) -> int:
        """T x R: the rank of the curvature at a position."""
        return form.positions * likelihood.rank(form.outputs)

    def columns(self, view: View, start: int, stop: int) -> Tensor:
        """Each column has one position's root and zeros elsewhere: sharing one leaves cross terms."""
        examples, positions, width = view.f.shape
        rank = view.likelihood.rank(width)
        made = view.f.new_zeros(stop - start, examples, positions, width)
        for position in range(start // rank, -(-stop // rank)):
            own = slice(max(start - position * rank, 0), min(stop - position * rank, rank))
            here = slice(position, position + 1)
            root = view.likelihood.root(view.f[:, here], view.y[:, here], own)  # (N, 1, C, r)
            first = position * rank + own.start - start
            made[first : first + root.shape[-1], :, position] = root[:, 0].permute(2, 0, 1)
        return made


@dataclass(frozen=True)
class MonteCarlo:
    """The Fisher by labels drawn from the network, independently at every position: unbiased."""

    samples: int = 1
    name: str = "fisher"
    degree: int = 1

    def __post_init__(self) -> None:
        if not is_count(self.samples):
            raise ValueError(f"MonteCarlo(samples={self.samples!r}): expected a positive whole number.")

    def count(self, form: Form, likelihood: Likelihood) -> int:
        """One column per sample."""
        return self.samples

    def columns(self, view: View, start: int, stop: int) -> Tensor:
        """Gradients at drawn labels, divided by sqrt(samples)."""
        made = []
        for sample in range(start, stop):
            draws = Hashed(view.seed, view.examples, view.form.positions, sample)
            made.append(view.likelihood.drawn_score(view.f, view.y, draws, view.create_graph))
        return torch.stack(made) / math.sqrt(self.samples)


@dataclass(frozen=True)
class Empirical:
    """The empirical Fisher: the gradient at the observed label, one column per example."""

    name: str = "empirical"
    degree: int = 2

    def count(self, form: Form, likelihood: Likelihood) -> int:
        """One."""
        return 1

    def columns(self, view: View, start: int, stop: int) -> Tensor:
        """The observed gradient."""
        return score(view.likelihood, view.f, view.y, view.create_graph)[None]


@dataclass(frozen=True)
class Hessian:
    """The Hessian of the energy: it has products, and a full matrix; `clip` drops negative eigenvalues."""

    clip: bool = False
    name: str = "hessian"
    degree: int = 1


@dataclass(frozen=True)
class Auto:
    """Exact while that takes at most 64 columns, else Monte Carlo with one sample."""

    name: str = "auto"

    def choose(self, form: Form, likelihood: Likelihood) -> tuple[Kind, str]:
        """The choice and its reason."""
        columns = GGN().count(form, likelihood)
        if columns > AUTO_LIMIT and not likelihood.draws:
            return GGN(), f"exact GGN: {columns} columns per example, and the likelihood has no `sample` to draw labels"
        if columns <= AUTO_LIMIT:
            return GGN(), f"exact GGN: {columns} column{'s' if columns > 1 else ''} per example, at most {AUTO_LIMIT}"
        return MonteCarlo(1), f"Monte Carlo Fisher with 1 sample: exact would take {columns} columns per example"


NAMES = {"auto": Auto, "ggn": GGN, "fisher": MonteCarlo, "empirical": Empirical, "hessian": Hessian}
