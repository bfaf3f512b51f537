"""The posterior as a value: what was measured, and what follows from it without another pass over data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from ..curvature.blocks import Blocks
from ..curvature.contracts import Curvature, Peak, Structure
from ..curvature.kinds import CurvatureKind, Hessian
from ..curvature.totals import Totals
from ..likelihoods import Likelihood, WithNoise
from ..messages.arguments import check_samples
from ..messages.errors import PeewitError
from ..network.identity import Identity
from ..priors.prior import Number, Prior, as_prior
from ..runtime.arithmetic import ArithmeticName
from ..runtime.memory import Budget
from ..tracing.knowledge import Knowledge
from ..weights.space import Space, padding_rows
from .evidence import Evidence, EvidenceProblem
from .linear_mode import LinearMode
from .measurement import Measurement
from .schema import Schema
from .trace import Trace


@dataclass(frozen=True, eq=False, kw_only=True)
class PosteriorState:
    """A Gaussian over the weights of a network, with all that questions about it need."""

    model: nn.Module
    space: Space  # the uncertain weights
    likelihood: Likelihood
    structure: Structure
    curvature_kind: CurvatureKind | Hessian
    curvature: Curvature  # decomposed
    prior: Prior
    weights: Tensor  # (D,): the trained ones
    knowledge: Knowledge  # of the network, as the fit left it
    budget: Budget
    identity: Identity
    measurement: Measurement
    temperature: float = 1.0  # above one: log-likelihood and curvature count less
    trace: Trace | None = None  # how `tune` came to this very posterior
    linear_mode: LinearMode | None = None  # where evidence is then taken
    schema: Schema | None = None  # names of columns and classes, which the command line keeps here

    @property
    def D(self) -> int:
        """Uncertain weights."""
        return self.space.size

    @property
    def totals(self) -> Totals:
        """Over the data."""
        return self.measurement.totals

    @property
    def N(self) -> int:
        """Examples seen."""
        return self.totals.examples

    @property
    def arithmetic(self) -> ArithmeticName:
        """How products are rounded."""
        return self.budget.arithmetic.name

    @property
    def axis(self) -> int | None:
        """Where the classes or outputs are in one example's output."""
        return None if self.totals.form is None else self.totals.form.axis

    @property
    def problem(self) -> EvidenceProblem:
        """What the evidence depends on besides prior and noise."""
        weights, totals, linear = self.weights, self.totals, self.linear_mode
        if linear is not None:
            weights, totals = weights + linear.displacement, replace(totals, energy=linear.energy, rest=linear.rest)
        degree = self.curvature_kind.degree
        return EvidenceProblem(
            curvature=self.curvature,
            degree=degree,
            weights=weights,
            space=self.space,
            likelihood=self.likelihood,
            totals=totals,
            temperature=self.temperature,
            linear_mode=linear,
        )

    @cached_property
    def precision(self) -> Blocks:
        """The posterior precision at this prior and noise."""
        data_weight = self.problem.data_weight(self.likelihood.noise_precision)
        return self.curvature.precision(self.prior.delta(self.space, self.weights), data_weight)

    @cached_property
    def conditions(self) -> tuple[tuple[Peak, float], ...]:
        """Every block with its largest eigenvalue over its prior precision, the mean where it has several."""
        return tuple(self._conditions())

    def _conditions(self) -> Iterator[tuple[Peak, float]]:
        peaks = self.curvature.peaks()
        if not peaks:
            return
        data_weight = self.problem.data_weight(self.likelihood.noise_precision).detach().double()
        delta = self.prior.delta(self.space, self.weights).detach()
        whole = self.space.mask is not None
        means = [
            torch.cat([delta if whole else delta[self.space.slice_of(part)] for part in peak.parts]).mean()
            for peak in peaks
        ]
        values = torch.stack([peak.largest.detach().double() for peak in peaks]) / torch.stack(means).double()
        yield from zip(peaks, (values * data_weight.to(values.device)).tolist(), strict=True)

    @property
    def has_own_linear_mode(self) -> bool:
        """Whether the linear mode was found under this very prior, noise and temperature."""
        linear = self.linear_mode
        return linear is not None and linear.under(
            self.prior, float(self.likelihood.noise_precision), self.temperature, self.space
        )

    def check_prior(self, prior: Prior | Number) -> Prior:
        """A prior for these weights: refused here, not when asked."""
        chosen = as_prior(prior, self.prior)
        chosen.count(self.space)
        chosen.refuse_unknown(name for name, _ in self.model.named_parameters())
        return chosen.bind(self.curvature, self.N)

    def with_prior(self, prior: Prior | Number) -> PosteriorState:
        """The same curvature under another prior; refused where the structure cannot hold it."""
        state = replace(self, prior=self.check_prior(prior), trace=None)
        if not state.prior.grouping.one_for_all:
            _ = state.precision  # kept for the first question, and refused here
        return state

    def with_noise(self, noise: float | Tensor) -> PosteriorState:
        """The posterior of this curvature under another noise."""
        if not isinstance(self.likelihood, WithNoise):
            raise PeewitError(f"noise={noise!r} was given, but {type(self.likelihood).__name__} has no noise.")
        likelihood = self.likelihood
        changed = likelihood.with_noise(noise)
        if not changed.same_ratios(likelihood):
            raise PeewitError(
                f"noise={noise!r} has other ratios between outputs than the noise at the fit, {likelihood.noise!r}, "
                "with which the curvature was measured; give one number, their common factor, or fit again with "
                "Gaussian(noise=...)."
            )
        return replace(self, likelihood=changed, trace=None)

    def with_temperature(self, temperature: float) -> PosteriorState:
        """Log-likelihood and curvature divided by it, not the prior."""
        return replace(self, temperature=temperature, trace=None)

    def log_evidence(self, prior: Prior | Number | None = None, noise: float | Tensor | None = None) -> Tensor:
        """The log marginal likelihood, here or at another prior and noise."""
        return self.problem.log_evidence(self.prior if prior is None else self.check_prior(prior), noise)

    def evidence(self, prior: Prior | Number | None = None, noise: float | Tensor | None = None) -> Evidence:
        """The log evidence in parts."""
        return self.problem.evidence(self.prior if prior is None else self.check_prior(prior), noise)

    def deviations(self, samples: int, generator: torch.Generator | None, one_by_one: bool = False) -> Tensor:
        """(S, D): draws of the weights, less the trained ones; those that never train have none.

        One by one they do not depend on how many are drawn together.
        """
        rows = [1] * check_samples(samples) if one_by_one else [check_samples(samples)]
        device = self.weights.device if generator is None else generator.device
        dtype = self.weights.dtype
        eps = torch.cat([torch.randn(some, self.D, generator=generator, dtype=dtype, device=device) for some in rows])
        drawn = self.precision.root(eps.to(self.weights.device)).detach()
        return drawn if self._untrained is None else drawn.masked_fill(self._untrained, 0.0)

    @cached_property
    def _untrained(self) -> Tensor | None:
        """(D,) booleans: rows of padding tokens, which have no gradient; None where there are none."""
        rows = padding_rows(self.model, self.space)
        return None if rows is None else rows.to(self.weights.device) & (self.curvature.diag() == 0)
