"""What is known of the network's outputs f: a Gaussian, or a set of samples; every prediction is made from one.

Flat form throughout: outputs (N, T, C) with T positions and C outputs each, and M = N T places in a row.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..jacobians.output_layer import covariance_of_spectra
from ..likelihoods import Form
from ..messages.arguments import check_generator
from ..messages.errors import PeewitError
from ..runtime.memory import Budget
from . import links


def normals(shape: tuple[int, ...], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Standard normal numbers of the dtype and on the device of `like`, from a generator on any device."""
    check_generator(generator)
    device = like.device if generator is None else generator.device
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=device).to(like.device)


@dataclass(frozen=True, eq=False)
class Belief(ABC):
    """The distribution of the outputs of N inputs."""

    form: Form
    budget: Budget

    @property
    @abstractmethod
    def mean(self) -> Tensor:
        """(N, T, C)."""

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """(N, T, C)."""

    @property
    @abstractmethod
    def covariance(self) -> Tensor:
        """(N, T, C, C)."""

    @property
    def row_sums(self) -> Tensor:
        """(N, T, C): of the covariance."""
        return self.covariance.sum(-1)

    @property
    @abstractmethod
    def number(self) -> int:
        """S: points that averages are taken over."""

    @abstractmethod
    def draws(self, chosen: slice, elementwise: bool) -> tuple[Tensor, Tensor]:
        """(S, m, C) outputs at some of the places, and (S, 1, 1) log weights; always the same ones.

        `elementwise`: right for each output on its own, which is all that functions of single outputs need.
        """

    @abstractmethod
    def random(self, n: int, generator: torch.Generator | None) -> Tensor:
        """(S, N, T, C) fresh draws."""

    def gather(self, function: Callable[[Tensor, Tensor, slice], Tensor], elementwise: bool = False) -> Tensor:
        """(N, T, ...): a function of (draws, log weights, places) that gives (m, ...), in parts that fit the budget."""
        examples, positions, outputs = self.mean.shape
        points = links.NODES if elementwise else self.number
        pieces = [
            function(*self.draws(chosen, elementwise), chosen)
            for chosen in self.budget.slices(examples * positions, 48.0 * points * outputs)
        ]
        whole = torch.cat(pieces)
        return whole.reshape(examples, positions, *whole.shape[1:])


@dataclass(frozen=True, eq=False, kw_only=True)
class GaussianOutputs(Belief):
    """A Gaussian, as the linearised network has it."""

    centre: Tensor  # (N, T, C)
    blocks: Tensor | None  # (N, T, C, C): its covariance at every place
    points: int
    seed: int
    factor: Tensor | None = None  # (N, T, C, R) with `factor factor^T` the covariance, where there are no blocks
    joint: Tensor | None = None  # (N, F, N, F) over all inputs, in the network's own order of outputs
    deviation: Tensor | None = None  # (N, T, R): the factor is `basis diag(deviation)`, and is not made for all places
    basis: Tensor | None = None  # (C, R); None: the identity, outputs are independent

    @property
    def mean(self) -> Tensor:
        """(N, T, C)."""
        return self.centre

    @cached_property
    def variance(self) -> Tensor:
        """(N, T, C): never below zero, where rounding would take it."""
        if self.deviation is not None:
            return self.deviation.square() if self.basis is None else self.deviation.square() @ self.basis.square().mT
        if self.blocks is None:
            return self.root.square().sum(-1)
        return self.blocks.diagonal(dim1=-2, dim2=-1).clamp(min=0)

    @property
    def covariance(self) -> Tensor:
        """(N, T, C, C)."""
        if self.deviation is not None:
            variances = self.deviation.square()
            return (
                torch.diag_embed(variances) if self.basis is None else covariance_of_spectra([(self.basis, variances)])
            )
        return self.root @ self.root.mT if self.blocks is None else self.blocks

    @property
    def row_sums(self) -> Tensor:
        """(N, T, C): of the covariance."""
        if self.deviation is not None and self.basis is None:
            return self.deviation.square()
        if self.deviation is not None and self.basis is not None:
            return (self.deviation.square() * self.basis.sum(0)) @ self.basis.mT
        return self.covariance.sum(-1)

    @property
    def number(self) -> int:
        """S."""
        return self.points

    @cached_property
    def root(self) -> Tensor:
        """(N, T, C, R): `root root^T` is the covariance."""
        if self.factor is not None:
            return self.factor
        assert self.blocks is not None
        return links.root(self.blocks)

    def some(self, chosen: slice) -> GaussianOutputs:
        """The belief about some of the inputs, each on its own."""
        blocks, factor, deviation = (
            None if part is None else part[chosen] for part in (self.blocks, self.factor, self.deviation)
        )
        return replace(self, centre=self.centre[chosen], blocks=blocks, factor=factor, joint=None, deviation=deviation)

    @property
    def rank(self) -> int:
        """R: normal numbers that a draw of one place's outputs takes."""
        return self.root.shape[-1] if self.deviation is None else self.deviation.shape[-1]

    def _spread(self, eps: Tensor, chosen: slice) -> Tensor:
        """`root eps` at some of the places: (S, m or 1, R) -> (S, m, C)."""
        with torch.autocast(self.mean.device.type, enabled=False):
            if self.deviation is not None:
                steps = eps * self.deviation.flatten(0, 1)[chosen]
                return steps if self.basis is None else steps @ self.basis.mT
            root = self.root.flatten(0, 1)[chosen]
            if eps.shape[1] == 1:
                return torch.einsum("mcr,sr->smc", root, eps[:, 0])
            return torch.einsum("mcr,smr->smc", root, eps)

    def draws(self, chosen: slice, elementwise: bool) -> tuple[Tensor, Tensor]:
        """`mean + root eps` at quasi-random points, or `mean + deviation z` on a line."""
        mean = self.mean.flatten(0, 1)[chosen]
        if elementwise:
            nodes, log_weights = (each.to(mean)[:, None, None] for each in links.line_points())
            variance = self.variance.flatten(0, 1)[chosen]
            # The square root has no derivative at zero.
            deviation = torch.where(variance > 0, variance, 1.0).sqrt() * (variance > 0)
            return mean + deviation * nodes, log_weights
        eps = links.normal_points(self.points, self.rank, self.seed).to(mean)
        values = mean + self._spread(eps[:, None], chosen)
        return values, mean.new_full((self.points, 1, 1), -math.log(self.points))

    def random(self, n: int, generator: torch.Generator | None) -> Tensor:
        """`mean + root eps`: over all inputs where the joint covariance is known, else each place on its own."""
        if self.joint is None:
            eps = normals((n, *self.mean.shape[:2], self.rank), self.mean, generator)
            return self.mean + self._spread(eps.flatten(1, 2), slice(None)).reshape(n, *self.mean.shape)
        size = self.joint.shape[0] * self.joint.shape[1]
        root = links.root(self.joint.reshape(size, size).to(self.mean.dtype))
        with torch.autocast(self.mean.device.type, enabled=False):
            spread = normals((n, size), self.mean, generator) @ root.mT
        return self.mean + self.form.flatten(spread.reshape(n, len(self.mean), *self.form.shape))


@dataclass(frozen=True, eq=False)
class Samples(Belief):
    """Outputs at weights drawn from the posterior, the same draws at all inputs."""

    values: Tensor  # (S, N, T, C)

    @cached_property
    def mean(self) -> Tensor:
        """(N, T, C)."""
        return self.values.mean(0)

    @cached_property
    def variance(self) -> Tensor:
        """(N, T, C), over S."""
        return self.values.var(0, correction=0)

    @cached_property
    def covariance(self) -> Tensor:
        """(N, T, C, C), over S."""
        spread = self.values - self.mean
        return torch.einsum("sntc,sntd->ntcd", spread, spread) / len(spread)

    @property
    def number(self) -> int:
        """S."""
        return len(self.values)

    def draws(self, chosen: slice, elementwise: bool) -> tuple[Tensor, Tensor]:
        """The samples themselves."""
        values = self.values.flatten(1, 2)[:, chosen]
        return values, values.new_full((len(values), 1, 1), -math.log(len(values)))

    def random(self, n: int, generator: torch.Generator | None) -> Tensor:
        """Samples picked at random, each for all inputs."""
        check_generator(generator)
        device = self.values.device if generator is None else generator.device
        picked = torch.randint(len(self.values), (n,), generator=generator, device=device)
        return self.values[picked.to(self.values.device)]


def join_beliefs(beliefs: Sequence[Belief]) -> Belief:
    """The beliefs about the inputs of several batches as one."""
    first = beliefs[0]
    shapes = list(dict.fromkeys(belief.form.shape for belief in beliefs))
    if len(shapes) > 1:
        raise PeewitError(
            f"An example's outputs have shape {shapes[0]} in one batch and {shapes[1]} in another; expected one shape, "
            "since all go into one prediction. Predict batch by batch, or pad the inputs to one length."
        )
    if len(beliefs) == 1:
        return first
    if isinstance(first, Samples):
        return replace(first, values=torch.cat([each.values for each in beliefs if isinstance(each, Samples)], 1))
    assert isinstance(first, GaussianOutputs)
    centre = torch.cat([belief.mean for belief in beliefs])
    blocks, factor, deviation = (
        None if getattr(first, name) is None else torch.cat([getattr(belief, name) for belief in beliefs])
        for name in ("blocks", "factor", "deviation")
    )
    return replace(first, centre=centre, blocks=blocks, factor=factor, deviation=deviation)
