"""What `fit` returns: a Gaussian over the weights of a trained network."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .curvature.blocks import Blocks
from .curvature.contracts import Structure
from .curvature.kinds import Hessian, Kind
from .diagnostics.diagnosis import Diagnosis, diagnose
from .likelihoods import Likelihood
from .linear_model import find
from .messages.arguments import checked_generator
from .messages.names import nearest
from .network.isolation import plainly
from .network.modules import unwrapped
from .network.nests import Inputs
from .posterior import resolution
from .posterior.coverage import Coverage, coverage_of
from .posterior.evidence import Evidence
from .posterior.linear_mode import LinearMode
from .posterior.network import network_of
from .posterior.state import PosteriorState
from .posterior.trace import Trace
from .posterior.update import in_arithmetic, moved, updated
from .predictions.covariance import Functional
from .predictions.functional import functional, functional_samples
from .predictions.labels import Classes
from .predictions.numbers import Regression
from .predictions.predict import predict
from .predictions.prediction import Prediction
from .priors.prior import Number, Prior
from .runtime.device import device_named
from .runtime.progress import Progress
from .runtime.random import drawing
from .storage import load as loading
from .storage.save import save
from .tuning import options as tuning
from .tuning import validation
from .tuning.tune import tune
from .weights.space import Space


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Laplace:
    """A Gaussian posterior over the weights of a network: what `fit` returns. Asking it anything changes nothing."""

    state: PosteriorState

    def __init__(self, *given: Any, **options: Any) -> None:
        """`fit`, `load` and other posteriors make one; users do not."""
        if options or len(given) != 1 or not isinstance(given[0], PosteriorState):
            raise TypeError(
                "Laplace(...) was called; expected peewit.fit(model, data, likelihood), which measures and returns one."
            )
        object.__setattr__(self, "state", given[0])

    @property
    def model(self) -> nn.Module:
        """The network, which is never changed."""
        return self.state.model

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood, with the noise where it has one."""
        return self.state.likelihood

    @property
    def structure(self) -> Structure:
        """How curvature is stored: Kron(), EKFAC(), Diag(), Block() or Full()."""
        return self.state.structure

    @property
    def curvature(self) -> Kind | Hessian:
        """Which curvature was measured: GGN(), MonteCarlo(), Empirical() or Hessian()."""
        return self.state.curvature_kind

    @property
    def prior(self) -> Prior:
        """The prior of the weights."""
        return self.state.prior

    @property
    def temperature(self) -> float:
        """What log-likelihood and curvature are divided by."""
        return self.state.temperature

    @property
    def weights(self) -> Tensor:
        """(D,): the trained values of the uncertain weights, in the order of `space`."""
        return self.state.weights

    @property
    def space(self) -> Space:
        """Which weights are uncertain, and in which order they stand in vectors (D,)."""
        return self.state.space

    @property
    def D(self) -> int:
        """Uncertain weights."""
        return self.state.D

    @property
    def N(self) -> int:
        """Examples seen."""
        return self.state.N

    @property
    def precision(self) -> Blocks:
        """The posterior precision at this prior and noise, as an operator on vectors (..., D)."""
        return self.state.precision

    @property
    def arithmetic(self) -> str:
        """How products are rounded."""
        return self.state.arithmetic

    @property
    def timings(self) -> dict[str, float]:
        """Seconds that measuring and decomposing the curvature took."""
        return self.state.timings

    @property
    def trace(self) -> Trace | None:
        """How `tune` came here; None where it did not."""
        return self.state.trace

    @property
    def linear_mode(self) -> LinearMode | None:
        """The mode of the linearised model, where evidence is then taken; None where it was not looked for."""
        return self.state.linear_mode

    @plainly
    def with_prior(self, prior: Prior | Number) -> Laplace:
        """The same curvature under another prior: a new value; refused where the structure cannot hold it."""
        return Laplace(self.state.with_prior(prior))

    def with_noise(self, noise: float | Tensor) -> Laplace:
        """The same curvature under another noise: a new value."""
        return Laplace(self.state.with_noise(noise))

    def with_temperature(self, temperature: float) -> Laplace:
        """Log-likelihood and curvature divided by it, not the prior: a new value."""
        return Laplace(self.state.with_temperature(tuning.checked_temperature(temperature)))

    def with_arithmetic(self, arithmetic: str) -> Laplace:
        """The same posterior, evaluated at another rounding: 'auto', 'float32', 'tf32', 'bf16', 'float64'.

        From 'float64' to another, curvature that is already in float64 stays in it.
        """
        return Laplace(in_arithmetic(self.state, arithmetic))

    @plainly
    def at_linear_mode(
        self,
        train: Any,
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
        return Laplace(find.find(self.state, train, tolerance, steps, memory, progress))

    @plainly
    def log_evidence(self, prior: Prior | Number | None = None, noise: float | Tensor | None = None) -> Tensor:
        """The log marginal likelihood, here or at another prior and noise; tensors may require gradients."""
        return self.state.log_evidence(prior, noise)

    @plainly
    def evidence(self, prior: Prior | Number | None = None, noise: float | Tensor | None = None) -> Evidence:
        """The log evidence in parts, with the effective dimensions of each group of the prior."""
        return self.state.evidence(prior, noise)

    @plainly
    def tune(
        self,
        method: tuning.Method = "evidence",
        *,
        parameters: Sequence[tuning.Parameter] | None = None,
        train: Any = None,
        validation: Any = None,
        start: Prior | Number | None = None,
        grid: tuning.Grid | None = None,
        steps: int | None = None,
        tolerance: float | None = None,
        limits: tuple[float, float] = tuning.LIMITS,
        predict: Mapping[str, Any] | None = None,
        at: tuning.At = "trained_weights",
        memory: float | None = None,
        progress: bool = False,
    ) -> Laplace:
        """Choose prior precisions, and the noise where there is one, without the training data: a new value.

        Args:
            method: "evidence" (Newton's method), "fixed_point" (MacKay's updates), "validation" (the NLL on
                `validation`), or "grid" (the best of all combinations in `grid`, by the NLL on `validation` where it is
                given, else by the evidence).
            parameters: what to tune, some of "prior", "noise" and "temperature". By default the prior, and the noise
                where the likelihood has one; on a grid, what the grid has values for. The evidence cannot choose a
                temperature.
            train: the training data, which only `at="linear_mode"` passes over.
            validation: data that the network was not trained on, for "validation" and "grid".
            start: the prior, or precisions, to begin from; by default those of the posterior.
            grid: precisions, or a mapping from names of parameters to values, for "grid".
            steps: the most steps; by default enough for each method.
            tolerance: how exact log precisions are to be; by default fit for each method.
            limits: the smallest and the largest precision allowed.
            predict: options of `predict` for the predictions that are scored, such as {"link": "mc"}.
            at: the weights at which the evidence is taken: "trained_weights", or "linear_mode", the mode of the
                linearised model, which is found on `train` and changes with the precisions.
            memory: bytes for data and outputs that are kept between passes, with `at="linear_mode"`.
            progress: whether to show a bar, with `at="linear_mode"`.

        Returns:
            A new `Laplace` with the tuned values; its `trace` says how they were found.

        Raises:
            ValueError: options that do not belong together, or data that are missing.

        Warns:
            TuningWarning: an optimum at a limit, a search that did not converge, groups without effect.
        """
        passes = tuning.Passing(at, memory, progress)
        asked = tuning.checked(
            self.state, method, parameters, train, validation, grid, steps, tolerance, limits, predict, passes
        )
        return Laplace(resolution.warned(tune(self.state, asked, start), 5))

    @plainly
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(n, D): weights drawn from the posterior, around the trained ones."""
        checked_generator(generator)
        with drawing(generator, self.weights.device):
            return self.weights + self.state.deviations(n, generator)

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
    ) -> Functional:
        """Mean and covariance of the outputs at x, noise excluded.

        `cov` is (B, *positions, C, C); joint: (B, C, B, C) over flattened outputs; `variance_only`: the outputs' shape.
        Above 256 outputs per example it is estimated from 64 samples, with a relative error of sqrt(2 / 64), unless
        the last layer alone is uncertain: then variances are exact, and covariances of outputs without positions.
        `create_graph`: both can be differentiated in x, which has to require gradients; also under `no_grad`.
        `mean`: the network's own output, or the output of the linear model at its mode (see `at_linear_mode`).
        """
        return functional(self.state, x, joint, variance_only, memory, create_graph, mean)

    @plainly
    def functional_samples(
        self, x: Inputs, n: int, generator: torch.Generator | None = None, *, mean: str = "network"
    ) -> Tensor:
        """(n, B, ...): outputs of the linearised network at n draws of the weights, the same draw at all inputs.

        `mean`: draws around the trained weights, or around the mode of the linear model.
        """
        return functional_samples(self.state, x, n, generator, mean)

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
        return predict(
            self.state,
            x,
            method=method,
            link=link,
            samples=samples,
            joint=joint,
            memory=memory,
            generator=generator,
            create_graph=create_graph,
            mean=mean,
        )

    def coverage(self) -> Coverage:
        """For every parameter the rule and the approximation it got."""
        return coverage_of(self.state)

    @plainly
    def diagnose(self, train: Any) -> Diagnosis:
        """Whether the network is fit for this, in sentences with what to do, from one pass over its training data."""
        network_of(self.state, None)  # refuses a network that has changed
        return diagnose(self.state, train)

    @plainly
    def update(self, data: Any, *, memory: float | None = None, progress: bool = False) -> Laplace:
        """The posterior after more data, as if fitted to all of it: a new value (EKFAC keeps its eigenvectors)."""
        network = network_of(self.state, memory)
        return Laplace(resolution.warned(updated(self.state, data, network, Progress(progress)), 5))

    @plainly
    def to(self, device: str | torch.device, model: nn.Module | None = None) -> Laplace:
        """The same posterior on another device, where its network (or `model`, a copy of it) must be: a new value."""
        own = self.model if model is None else unwrapped(model)
        return Laplace(moved(self.state, device_named(device), own))

    @plainly
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the network to a safetensors file, which `load` reads; whole or not at all."""
        network_of(self.state, None)  # refuses a network that has changed
        save(self.state, path)

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
            f"Laplace(D={self.D:,}, N={self.N:,}, {type(self.structure).__name__}, {self.curvature.name}, "
            f"{type(self.likelihood).__name__})"
        )


@plainly
def load(
    path: str | os.PathLike[str],
    model: nn.Module,
    likelihood: str | Likelihood | None = None,
    *,
    memory: float | None = None,
) -> Laplace:
    """A saved posterior of this very network: other weights, a damaged file or a newer format is refused."""
    return Laplace(loading.load(path, model, likelihood, memory))


def validation_nll(la: Laplace, data: Any, **predict: Any) -> float:
    """The mean negative log probability per example of the predictive, over all batches of `data`."""
    return validation.validation_nll(la.state, data, **predict)
