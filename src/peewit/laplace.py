"""What `fit` returns: a Gaussian over the weights of a trained network."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .curvature.blocks import Blocks
from .curvature.contracts import Curvature, Structure
from .curvature.kinds import Hessian, Kind
from .curvature.stream import Totals
from .likelihoods import Gaussian, Likelihood
from .linear_model import find
from .messages.arguments import checked_count, checked_generator, made_by
from .messages.names import nearest
from .network.identity import Identity
from .network.isolation import plainly
from .network.modules import unwrapped
from .network.nests import Inputs
from .network.values import changed
from .posterior import network, resolution
from .posterior.coverage import Coverage, Row, scales
from .posterior.evidence import Evidence, Question
from .posterior.linear_mode import LinearMode
from .posterior.network import EXACT_OUTPUTS, TooManyOutputs
from .posterior.schema import Schema
from .posterior.trace import Trace
from .posterior.update import moved, updated
from .predictions import covariance, means, samples
from .predictions import options as predicting
from .predictions.labels import Classes
from .predictions.numbers import Regression
from .predictions.predict import predict
from .predictions.prediction import Prediction
from .priors.prior import Number, Prior, as_prior
from .runtime.arithmetic import as_arithmetic
from .runtime.device import device_named
from .runtime.memory import Budget, budget
from .runtime.progress import Progress
from .runtime.random import DEFAULT_SEED, drawing
from .tracing.knowledge import Plan
from .tuning import options as tuning
from .tuning.tune import tune
from .weights.space import Space, padding_rows

if TYPE_CHECKING:
    from .diagnostics.diagnosis import Diagnosis


@made_by("peewit.fit(model, data, likelihood)")
@dataclass(frozen=True, eq=False)
class Laplace:
    """A Gaussian posterior over the weights; asking it anything changes nothing."""

    model: nn.Module
    space: Space
    likelihood: Likelihood
    structure: Structure
    kind: Kind | Hessian
    curvature: Curvature
    prior: Prior
    totals: Totals
    mode: Tensor  # (D,)
    plan: Plan
    budget: Budget
    reason: str
    rules: dict[str, str]  # by parameter that was asked for: the rule that applied, "" for an unused one
    timings: dict[str, float]
    identity: Identity
    sums: Any  # the structure's, over all weights that were asked for: what files hold and later data are added to
    asked: Space  # the weights that were asked for, unused ones included
    seed: int  # of drawn labels
    temperature: float = 1.0  # above one: log-likelihood and curvature count less
    trace: Trace | None = None  # how `tune` came here
    linear: LinearMode | None = None  # the mode of the linear model, where evidence is then taken
    schema: Schema | None = None  # names of columns and classes, which the command line keeps here

    @property
    def D(self) -> int:
        """Uncertain weights."""
        return self.space.size

    @property
    def N(self) -> int:
        """Examples seen."""
        return self.totals.examples

    @cached_property
    def precision(self) -> Blocks:
        """The posterior precision at this prior and noise."""
        scale = self._question.strength(self.likelihood.scale)
        return self.curvature.precision(self.prior.delta(self.space, self.mode), scale)

    @plainly
    def with_prior(self, prior: Prior | Number) -> Laplace:
        """The same curvature under another prior: a new value; refused where the structure cannot hold it."""
        made = replace(self, prior=self._prior(prior), trace=None)
        if made.prior.kind != "scalar":
            _ = made.precision  # kept for the first question, and refused here
        return made

    def with_noise(self, noise: float | Tensor) -> Laplace:
        """The same curvature under another noise: a new value."""
        if not hasattr(self.likelihood, "with_noise"):
            raise ValueError(f"noise={noise!r} was given, but {type(self.likelihood).__name__} has no noise.")
        own = self.likelihood
        made = own.with_noise(noise)
        if isinstance(own, Gaussian) and isinstance(made, Gaussian) and not made.same_ratios(own):
            raise ValueError(
                f"noise={noise!r} has other ratios between outputs than the noise at the fit, {own.noise!r}, with "
                "which the curvature was measured; give one number, their common factor, or fit again with "
                "Gaussian(noise=...)."
            )
        return replace(self, likelihood=made, trace=None)

    def with_temperature(self, temperature: float) -> Laplace:
        """Log-likelihood and curvature divided by it, not the prior: a new value."""
        return replace(self, temperature=tuning.checked_temperature(temperature), trace=None)

    def with_arithmetic(self, arithmetic: str) -> Laplace:
        """The posterior asked with products of another precision: 'auto', 'float32', 'tf32', 'bf16', 'float64'.

        From 'float64' to another, curvature that is already in float64 stays in it.
        """
        made = as_arithmetic(arithmetic)
        dtype = made.dtype
        for name in self.space.names:
            dtype = torch.promote_types(dtype, self.model.get_parameter(name).dtype)

        def cast(tensor: Tensor) -> Tensor:
            return tensor.to(dtype) if tensor.dtype == torch.float32 else tensor

        return replace(
            self,
            budget=replace(self.budget, arithmetic=made),
            curvature=changed(self.curvature, cast),
            sums=changed(self.sums, cast),
            mode=self.mode.to(dtype),
            linear=self.linear and replace(self.linear, displacement=self.linear.displacement.to(dtype)),
        )

    @property
    def arithmetic(self) -> str:
        """How products are rounded."""
        return self.budget.arithmetic.name

    def _prior(self, prior: Prior | Number) -> Prior:
        """A prior for these weights: refused here, not when asked."""
        chosen = as_prior(prior, self.prior)
        chosen.count(self.space)
        chosen.known(name for name, _ in self.model.named_parameters())
        return chosen.bound(self.curvature, self.N)

    @property
    def _question(self) -> Question:
        """What the evidence depends on besides prior and noise."""
        mode, totals, linear = self.mode, self.totals, self.linear
        if linear is not None:
            mode, totals = mode + linear.displacement, replace(totals, energy=linear.energy, rest=linear.rest)
        return Question(
            self.curvature, self.kind.degree, mode, self.space, self.likelihood, totals, self.temperature, linear
        )

    @plainly
    def at_linear_mode(
        self,
        data: Any,
        *,
        tolerance: float = find.TOLERANCE,
        steps: int = find.STEPS,
        memory: float | None = None,
        progress: bool = False,
    ) -> Laplace:
        """Find the mode of the linear model's own loss on the training data, where evidence is then taken: a new value.

        It stops once the loss is about `tolerance` nats above its minimum, or after some `steps` of one product with
        the Jacobian and one with its transpose. `memory`: bytes for data and outputs that are kept between passes. A
        mode that was found before is where it starts.
        """
        return find.find(self, data, tolerance, steps, memory, progress)

    @plainly
    def log_evidence(self, prior: Prior | Number | None = None, noise: float | Tensor | None = None) -> Tensor:
        """The log marginal likelihood, here or at another prior and noise; tensors may require gradients."""
        return self._question.log_evidence(self.prior if prior is None else self._prior(prior), noise)

    @plainly
    def evidence(self, prior: Prior | Number | None = None, noise: float | Tensor | None = None) -> Evidence:
        """The log evidence in parts, with the effective dimensions of each group of the prior."""
        return self._question.evidence(self.prior if prior is None else self._prior(prior), noise)

    @plainly
    def tune(
        self,
        method: tuning.Method = "evidence",
        *,
        prior: bool = True,
        noise: bool | None = None,
        temperature: bool = False,
        data: Any = None,
        start: Prior | Number | None = None,
        grid: tuning.Grid | None = None,
        steps: int | None = None,
        tolerance: float | None = None,
        limits: tuple[float, float] = tuning.LIMITS,
        predict: Mapping[str, Any] | None = None,
        mode: tuning.Mode = "trained",
        memory: float | None = None,
        progress: bool = False,
    ) -> Laplace:
        """Choose prior precisions, and the noise where there is one, without the training data: a new value.

        By the `evidence` or MacKay's `fixed_point`, by the NLL on validation `data`, or on a `grid`; see `trace`.
        `mode="linear"`: by the evidence at the mode of the linear model, which takes the training data as `data`.
        """
        passes = tuning.Passing(mode, memory, progress)
        asked = tuning.checked(
            self, method, prior, noise, temperature, data, grid, steps, tolerance, limits, predict, passes
        )
        return resolution.warned(tune(self, asked, start), 5)

    @plainly
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(n, D): weights drawn from the posterior, around the trained ones."""
        checked_generator(generator)
        with drawing(generator, self.mode.device):
            return self.mode + self._deviations(n, generator)

    def _deviations(self, n: int, generator: torch.Generator | None) -> Tensor:
        device = self.mode.device if generator is None else generator.device
        eps = torch.randn(checked_count(n), self.D, generator=generator, dtype=self.mode.dtype, device=device)
        return self._spread(eps)

    def _spread(self, eps: Tensor) -> Tensor:
        """Standard normal numbers (S, D) as deviations from the mode; weights that never train have none."""
        made = self.precision.root(eps.to(self.mode.device)).detach()
        return made if self._untrained is None else made.masked_fill(self._untrained, 0.0)

    @cached_property
    def _untrained(self) -> Tensor | None:
        """(D,) booleans: rows of padding tokens, which have no gradient; None where there are none."""
        rows = padding_rows(self.model, self.space)
        return None if rows is None else rows.to(self.mode.device) & (self.curvature.diag() == 0)

    @plainly
    def functional(
        self,
        x: Inputs,
        *,
        joint: bool = False,
        variance_only: bool = False,
        memory: float | None = None,
        create_graph: bool = False,
        mean: str = "network",
    ) -> covariance.Functional:
        """Mean and covariance of the outputs at x, noise excluded.

        `cov` is (B, *positions, C, C); joint: (B, C, B, C) over flattened outputs; `variance_only`: the outputs' shape.
        Above 256 outputs per example it is estimated from 64 samples, with a relative error of sqrt(2 / 64), unless
        the last layer alone is uncertain: then variances are exact, and covariances of outputs without positions.
        `create_graph`: both can be differentiated in x, which has to require gradients; also under `no_grad`.
        `mean`: the network's own output, or the output of the linear model at its mode (see `at_linear_mode`).
        """
        shift = means.displacement(self, mean)
        if joint and variance_only:
            raise ValueError("joint=True and variance_only=True exclude each other; expected at most one of them.")
        network = self._network(memory)
        try:
            made = covariance.functional(network, self.precision, x, joint, variance_only, create_graph)
        except TooManyOutputs as many:
            if joint or create_graph:
                raise ValueError(
                    f"{'joint' if joint else 'create_graph'}=True with {many} outputs per example; expected at most "
                    f"{EXACT_OUTPUTS}. Use functional_samples, which is jointly right at any size."
                ) from None
            made = samples.sampled_functional(network, self.precision, x, DEFAULT_SEED, variance_only)
        return made if shift is None else made._replace(mean=means.linear(network, x, shift, create_graph))

    @plainly
    def functional_samples(
        self, x: Inputs, n: int, generator: torch.Generator | None = None, *, mean: str = "network"
    ) -> Tensor:
        """(n, B, ...): outputs of the linearised network at n draws of the weights, the same draw at all inputs.

        `mean`: draws around the trained weights, or around the mode of the linear model.
        """
        checked_generator(generator)
        shift = means.displacement(self, mean)
        with drawing(generator, self.mode.device):
            deviations = self._deviations(n, generator)
            deviations = deviations if shift is None else deviations + shift
            return samples.functional_samples(self._network(None), x, deviations)

    @plainly
    def predict(
        self,
        x: Inputs,
        *,
        method: str = "linearised",
        link: str | None = None,
        samples: int | None = None,
        joint: bool = False,
        memory: float | None = None,
        generator: torch.Generator | None = None,
        create_graph: bool = False,
        mean: str = "network",
    ) -> Prediction:
        """What is known of the labels at x: probabilities, or a mean and its variance, with the uncertainty in parts.

        `method`: outputs of the linearised network, or of the network itself at `samples` draws of the weights.
        `link`: how outputs become labels ("probit", "bridge", "bridge_normalised", "mc", "natural", "mean"); each
        likelihood has its own default. `joint`: outputs are correlated between inputs. `create_graph`: the answer can
        be differentiated in x. `mean`: around the network's own outputs, or those of the linear model at its mode.
        """
        question = predicting.Question.of(self.likelihood, method, link, samples, joint, create_graph, mean)
        return predict(self, x, question, memory, generator)

    def coverage(self) -> Coverage:
        """For every parameter the rule and the approximation it got."""
        rows = []
        invariant = scales(self.prior.sets, self.prior.straddling(self.space))
        for name, parameter in self.model.named_parameters():
            if name in self.space.names:
                rule, words = self.rules[name], self.curvature.approximation(name) + self.space.selected(name)
            elif name in self.rules:
                rule, words = "unused", "left out"
            else:
                rule, words = "not selected", "fixed"
            rows.append(Row(name, tuple(parameter.shape), rule, words, invariant.get(name, "")))
        return Coverage(tuple(rows), self.reason, self.plan.words())

    @plainly
    def diagnose(self, data: Any) -> Diagnosis:
        """Whether the network is fit for this, in sentences with what to do, from one pass over its training data."""
        from .diagnostics.diagnosis import diagnose  # which needs much of the engine

        self._network(None)  # refuses a network that has changed
        return diagnose(self, data)

    @plainly
    def update(self, data: Any, *, memory: float | None = None, progress: bool = False) -> Laplace:
        """The posterior after more data, as if fitted to all of it: a new value (EKFAC keeps its eigenvectors)."""
        return resolution.warned(updated(self, data, self._network(memory), Progress(progress)), 5)

    @plainly
    def to(self, device: str | torch.device, model: nn.Module | None = None) -> Laplace:
        """The same posterior on another device, where its network (or `model`, a copy of it) must be: a new value."""
        return moved(self, device_named(device), self.model if model is None else unwrapped(model))

    @plainly
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the network to a safetensors file, which `load` reads; whole or not at all."""
        from .storage.save import save  # which needs this file

        self._network(None)  # refuses a network that has changed
        save(self, path)

    def _network(self, memory: float | None) -> network.Network:
        if not self.identity.still(self.model):
            raise ValueError(
                "The network's weights or buffers, their dtype or device are no longer those it was fitted with; "
                "fit again, or restore them."
            )
        limit = self.budget if memory is None else budget(memory, self.mode.device, self.budget.arithmetic)
        if self.arithmetic == "auto" and self._ill_conditioned:
            limit = replace(limit, arithmetic=as_arithmetic("float32"))
        return network.Network(self.model, self.space, self.plan, limit, self._axis)

    @cached_property
    def _ill_conditioned(self) -> bool:
        """Whether predictions need products as exact as float32's."""
        return resolution.ill_conditioned(self)

    @property
    def _axis(self) -> int | None:
        """Where the classes or outputs are in one example's output."""
        return None if self.totals.form is None else self.totals.form.axis

    def __getattr__(self, name: str) -> Any:
        """Say what there is: predictions have probabilities, a posterior has not."""
        if name.startswith("_") or hasattr(type(self), name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
        if hasattr(Classes, name) or hasattr(Regression, name):
            raise AttributeError(f"A Laplace has no {name!r}, and its predictions may: use la.predict(x).{name}.")
        known = [each for each in dir(self) if not each.startswith("_")]
        raise AttributeError(f"A Laplace has no {name!r}; {nearest(name, known)}It has {', '.join(known)}.")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Predictions have a name: this one says so."""
        raise TypeError("A Laplace is not called; use la.predict(x), or la.functional(x) for mean and covariance.")

    def __repr__(self) -> str:
        """One line: what was fitted to how much."""
        return (
            f"Laplace(D={self.D:,}, N={self.N:,}, {type(self.structure).__name__}, {self.kind.name}, "
            f"{type(self.likelihood).__name__})"
        )
