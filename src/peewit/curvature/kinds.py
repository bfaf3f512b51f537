"""GGN, Monte Carlo Fisher, empirical Fisher and Hessian: which factor the outputs have."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from ..likelihoods import Form, Likelihood, score
from ..messages.arguments import is_count
from ..messages.errors import PeewitError
from ..messages.names import spelled_class
from ..runtime.random import Hashed

AUTO_LIMIT = 64  # probes up to which `auto` takes the exact curvature


class CurvatureKind(Protocol):
    """Which factor S the curvature of the outputs has, in `H = sum J^T S S^T J` over the examples.

    Attributes:
        name: What `curvature=` calls it.
        degree: Power of the noise precision (1 / noise variance) that multiplies the curvature: 1 for what is quadratic
            in residuals over the noise, 2 for what is quartic.

    Example:
        >>> pw.GGN().degree, pw.Empirical().degree
        (1, 2)
    """

    name: ClassVar[str]
    degree: ClassVar[int]

    def count(self, form: Form, likelihood: Likelihood) -> int:
        """Count the probes per example, the columns of S.

        Args:
            form: Where the outputs are; it has their number `form.outputs` and that of positions, `form.positions`.
            likelihood: The likelihood.

        Returns:
            Their number K.
        """
        ...

    def probes(self, view: OutputView, start: int, stop: int) -> Tensor:
        """Compute some of the probes.

        Args:
            view: Outputs `view.f` (N, T, C), targets `view.y`, and the likelihood.
            start: Number of the first probe.
            stop: Number after the last one.

        Returns:
            Probes (k, N, T, C).
        """
        ...


@dataclass(frozen=True, kw_only=True)
class OutputView:
    """A batch's outputs and targets in the likelihood's form, with what drawing labels needs."""

    likelihood: Likelihood
    f: Tensor  # (N, T, C)
    y: Tensor
    form: Form
    examples: Tensor  # (N,): numbers of the examples
    seed: int
    create_graph: bool = False


@dataclass(frozen=True)
class GGN(CurvatureKind):
    """The exact generalised Gauss-Newton (GGN) matrix, with one probe per position and column of the likelihood's root.

    `curvature="ggn"` means `GGN()`.

    Attributes:
        name: What `curvature=` calls it.
        degree: Power of the noise precision (1 / noise variance) that multiplies the curvature.

    Example:
        >>> pw.fit(model, (x, y), "classification", curvature=pw.GGN()).coverage().curvature
        'ggn, as asked'
    """

    name: ClassVar[str] = "ggn"
    degree: ClassVar[int] = 1

    def count(self, form: Form, likelihood: Likelihood) -> int:
        # T x R: the rank of the curvature at a position.
        return form.positions * likelihood.rank(form.outputs)

    def probes(self, view: OutputView, start: int, stop: int) -> Tensor:
        # Each probe has one position's root and zeros elsewhere: sharing one leaves cross terms.
        examples, positions, width = view.f.shape
        rank = view.likelihood.rank(width)
        probes = view.f.new_zeros(stop - start, examples, positions, width)
        for position in range(start // rank, -(-stop // rank)):
            chosen = slice(max(start - position * rank, 0), min(stop - position * rank, rank))
            at = slice(position, position + 1)
            root = view.likelihood.root(view.f[:, at], view.y[:, at], chosen)  # (N, 1, C, r)
            first = position * rank + chosen.start - start
            probes[first : first + root.shape[-1], :, position] = root[:, 0].permute(2, 0, 1)
        return probes


@spelled_class
@dataclass(frozen=True)
class MonteCarlo(CurvatureKind):
    """An unbiased estimate of the Fisher matrix, from labels drawn from the network independently at every position.

    `curvature="fisher"` means `MonteCarlo()`. The `generator` of `pw.fit` sets the seed of the draws.

    Args:
        samples: Labels drawn per position; each is one probe per example.

    Attributes:
        name: What `curvature=` calls it.
        degree: Power of the noise precision (1 / noise variance) that multiplies the curvature.

    Raises:
        PeewitError: `samples` is not a positive whole number.

    Example:
        >>> pw.fit(model, (x, y), "classification", curvature=pw.MonteCarlo(samples=4)).curvature.samples
        4
    """

    samples: int = 1
    name: ClassVar[str] = "fisher"
    degree: ClassVar[int] = 1

    def __post_init__(self) -> None:
        if not is_count(self.samples):
            raise PeewitError(f"MonteCarlo(samples={self.samples!r}): expected a positive whole number.")

    def count(self, form: Form, likelihood: Likelihood) -> int:
        return self.samples

    def probes(self, view: OutputView, start: int, stop: int) -> Tensor:
        # Gradients at drawn labels, divided by sqrt(samples).
        scores = []
        for sample in range(start, stop):
            draws = Hashed(view.seed, view.examples, view.form.positions, sample)
            scores.append(view.likelihood.drawn_score(view.f, view.y, draws, view.create_graph))
        return torch.stack(scores) / math.sqrt(self.samples)


@dataclass(frozen=True)
class Empirical(CurvatureKind):
    """The empirical Fisher matrix, from the gradient at the observed label: one probe per example.

    `curvature="empirical"` means `Empirical()`.

    Attributes:
        name: What `curvature=` calls it.
        degree: Power of the noise precision (1 / noise variance) that multiplies the curvature.

    Example:
        >>> pw.fit(model, (x, y), "classification", curvature=pw.Empirical()).coverage().curvature
        'empirical, as asked'
    """

    name: ClassVar[str] = "empirical"
    degree: ClassVar[int] = 2

    def count(self, form: Form, likelihood: Likelihood) -> int:
        return 1

    def probes(self, view: OutputView, start: int, stop: int) -> Tensor:
        # The observed gradient.
        return score(view.likelihood, view.f, view.y, view.create_graph)[None]


@spelled_class
@dataclass(frozen=True)
class Hessian:
    """The Hessian of the energy, for `structure="full"` and for `pw.products`.

    Its eigenvalues can be negative; a posterior needs a positive definite precision. `curvature="hessian"` means
    `Hessian()`. A fit passes over the data several times, so it refuses one-shot iterators.

    Args:
        clip: True sets negative eigenvalues to 0 in a fit; products refuse it, since they hold no matrix.

    Attributes:
        name: What `curvature=` calls it.
        degree: Power of the noise precision (1 / noise variance) that multiplies the curvature.

    Example:
        >>> la = pw.fit(model, (x, y), "classification", structure="full", curvature=pw.Hessian(clip=True))
        >>> la.curvature
        Hessian(clip=True)
    """

    clip: bool = False
    name: ClassVar[str] = "hessian"
    degree: ClassVar[int] = 1


@dataclass(frozen=True)
class Auto:
    """The exact GGN while it takes at most 64 probes per example, else the Fisher matrix with one drawn label.

    `curvature="auto"` means `Auto()`, the default of `pw.fit`. The GGN is also taken where the likelihood cannot draw
    labels: `Custom` without `sample`. `la.coverage().curvature` says what was chosen and why.

    Attributes:
        name: What `curvature=` calls it.
        degree: Power of the noise precision (1 / noise variance) that multiplies either of them.

    Example:
        >>> pw.fit(model, (x, y), "classification", curvature=pw.Auto()).coverage().curvature
        'exact GGN: 2 probes per example, at most 64'
    """

    name: ClassVar[str] = "auto"
    degree: ClassVar[int] = 1

    def choose(self, form: Form, likelihood: Likelihood) -> tuple[CurvatureKind, str]:
        """The choice and its reason."""
        probes = GGN().count(form, likelihood)
        if probes > AUTO_LIMIT and not likelihood.draws:
            return GGN(), f"exact GGN: {probes} probes per example, and the likelihood has no `sample` to draw labels"
        if probes <= AUTO_LIMIT:
            return GGN(), f"exact GGN: {probes} probe{'s' if probes > 1 else ''} per example, at most {AUTO_LIMIT}"
        return MonteCarlo(1), f"Monte Carlo Fisher with 1 sample: exact would take {probes} probes per example"


CurvatureName: TypeAlias = Literal["auto", "ggn", "fisher", "empirical", "hessian"]
"""Which curvature is measured: the classes are `pw.Auto`, `pw.GGN`, `pw.MonteCarlo`, `pw.Empirical`, `pw.Hessian`."""
NAMES: dict[CurvatureName, type[Auto | GGN | MonteCarlo | Empirical | Hessian]] = {
    "auto": Auto,
    "ggn": GGN,
    "fisher": MonteCarlo,
    "empirical": Empirical,
    "hessian": Hessian,
}
