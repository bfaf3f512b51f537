"""What `fit` returns: a Gaussian over the weights of a trained network."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .curvature.blocks import Blocks
from .curvature.contracts import Structure
from .curvature.kinds import CurvatureKind, Hessian
from .diagnostics.diagnosis import Diagnosis, diagnose
from .likelihoods import Likelihood, LikelihoodName
from .linear_model import find
from .messages.arguments import check_generator, one_input
from .messages.elsewhere import POSTERIOR
from .messages.errors import ArgumentTypeError
from .messages.names import unknown
from .network.arrays import ready
from .network.batches import Batches, input_batches, is_loader, without_labels
from .network.isolation import entry_point, unaffected
from .network.modules import unwrap
from .network.nests import Array, Data, InputData, Inputs, join
from .network.values import own_copy
from .posterior.coverage import Coverage, coverage_of
from .posterior.evidence import Evidence
from .posterior.linear_mode import At, LinearMode
from .posterior.network import network_of
from .posterior.resolution import warn_of_rounding
from .posterior.schema import Schema
from .posterior.state import PosteriorState
from .posterior.trace import Trace, TuneMethod
from .posterior.update import in_arithmetic, move, update
from .predictions.classes import Classes
from .predictions.covariance import Functional
from .predictions.functional import functional, functional_batches, functional_samples
from .predictions.options import PredictMethod, PredictOptions
from .predictions.predict import predict, predict_batches
from .predictions.prediction import LinkName, Prediction
from .predictions.regression import Regression
from .priors.prior import Number, Prior
from .runtime.arithmetic import ArithmeticName
from .runtime.device import device_named
from .runtime.progress import Progress
from .runtime.random import drawing
from .serving.predictor import Predictor
from .storage import load as loading
from .storage.save import save
from .tuning import options as tuning
from .tuning import validation
from .tuning.tune import tune
from .weights.space import Space


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Laplace:
    """A Gaussian posterior over the weights of a network.

    `pw.fit`, `pw.load` and methods of other posteriors return it. Asking it anything changes nothing: methods such as
    `tune` return a new value.

    Attributes:
        model: The network, which is never changed.
        likelihood: The likelihood, with the noise where it has one.
        structure: How curvature is stored: `Kron()`, `EKFAC()`, `Diag()`, `Block()` or `Full()`.
        curvature: Which curvature was measured: `GGN()`, `MonteCarlo()`, `Empirical()` or `Hessian()`.
        prior: The prior of the weights.
        temperature: What log-likelihood and curvature are divided by.
        weights: Trained values (D,) of the uncertain weights, the mean of the posterior, in the order of `space`.
        space: Which weights are uncertain, and in which order they stand in vectors (D,), a `pw.Space`.
        D: Number of uncertain weights.
        N: Number of examples seen.
        precision: The posterior precision at this prior and noise, a `pw.Blocks` that acts on vectors (..., D):
            `precision.solve(v)` is the covariance times v, and `precision.variance()` the variances (D,).
        arithmetic: How products are rounded.
        timings: Seconds that measuring and decomposing the curvature took.
        trace: How `tune` came to this very posterior; None for any other, such as what `with_prior` makes of it.
        schema: A `pw.Schema`: names of columns, where a data frame was fitted, and those of classes, where the command
            line fitted a table, with the `scaling` of its columns after `--standardise`; None elsewhere.
        linear_mode: The mode of the linear model, where evidence is then taken; None where it was not looked for.

    Example:
        >>> la
        Laplace(D=51, N=60, Kron, ggn, Categorical)
        >>> la.weights.shape, la.precision.variance().shape
        (torch.Size([51]), torch.Size([51]))
    """

    state: PosteriorState

    def __init__(self, *states: Any, **options: Any) -> None:
        """`fit`, `load` and other posteriors make one; users do not."""
        if options or len(states) != 1 or not isinstance(states[0], PosteriorState):
            raise ArgumentTypeError(
                "Laplace(...) was called; expected peewit.fit(model, data, likelihood), which measures and returns one."
            )
        object.__setattr__(self, "state", states[0])

    @property
    def model(self) -> nn.Module:
        """The network, which is never changed."""
        return self.state.model

    @property
    def likelihood(self) -> Likelihood:
        """The likelihood, with the noise where it has one."""
        return own_copy(self.state.likelihood)

    @property
    def structure(self) -> Structure:
        """How curvature is stored: Kron(), EKFAC(), Diag(), Block() or Full()."""
        return self.state.structure

    @property
    def curvature(self) -> CurvatureKind | Hessian:
        """Which curvature was measured: GGN(), MonteCarlo(), Empirical() or Hessian()."""
        return self.state.curvature_kind

    @property
    @unaffected
    def prior(self) -> Prior:
        """The prior of the weights."""
        return replace(self.state.prior)  # which copies its tensors

    @property
    def temperature(self) -> float:
        """What log-likelihood and curvature are divided by."""
        return self.state.temperature

    @property
    def weights(self) -> Tensor:
        """(D,): the trained values of the uncertain weights, the posterior's mean, in the order of `space`: a copy."""
        return own_copy(self.state.weights)

    @property
    def space(self) -> Space:
        """Which weights are uncertain, and in which order they stand in vectors (D,)."""
        return own_copy(self.state.space)

    @property
    def D(self) -> int:
        """Uncertain weights."""
        return self.state.D

    @property
    def N(self) -> int:
        """Examples seen."""
        return self.state.N

    @property
    @unaffected
    def precision(self) -> Blocks:
        """The posterior precision at this prior and noise, as an operator on vectors (..., D)."""
        return self.state.precision

    @property
    def arithmetic(self) -> ArithmeticName:
        """How products are rounded."""
        return self.state.arithmetic

    @property
    def timings(self) -> Mapping[str, float]:
        """Seconds that measuring and decomposing the curvature took."""
        return self.state.measurement.timings

    @property
    def trace(self) -> Trace | None:
        """How `tune` came to this very posterior; None for any other."""
        return own_copy(self.state.trace)

    @property
    def schema(self) -> Schema | None:
        """Names of columns and classes, where a table was fitted, and the scaling of its columns."""
        return self.state.schema

    @property
    def linear_mode(self) -> LinearMode | None:
        """The mode of the linearised model, where evidence is then taken; None where it was not looked for."""
        return own_copy(self.state.linear_mode)

    @entry_point
    def with_prior(self, prior: Prior | Number) -> Laplace:
        """Keep the curvature and take another prior: a new value; refused where the structure cannot hold it.

        Args:
            prior: A `pw.Prior`; a positive number, one precision for all weights; or a tensor with one precision per
                group of the present prior.

        Returns:
            A new `Laplace`, whose `trace` is None.

        Raises:
            PeewitError: The prior does not fit the weights, or the structure cannot hold it.
            ArgumentTypeError: `prior` is neither a number nor a `pw.Prior`.

        Example:
            >>> la.with_prior(10.0).prior.precision.item()
            10.0
        """
        return Laplace(self.state.with_prior(own_copy(prior)))

    @entry_point
    def with_noise(self, noise: float | Tensor) -> Laplace:
        """Keep the curvature and take another noise: a new value.

        Args:
            noise: The standard deviation: one number, or one per output with the ratios that they had at the fit.

        Returns:
            A new `Laplace`, whose `trace` is None.

        Raises:
            PeewitError: The likelihood has no noise, `noise` is not positive, or the ratios between outputs are not
                those of the fit.

        Example:
            >>> line.with_noise(0.2).likelihood.noise
            0.2
        """
        return Laplace(self.state.with_noise(own_copy(noise)))

    @entry_point
    def with_temperature(self, temperature: float) -> Laplace:
        """Divide log-likelihood and curvature by a temperature, not the prior: a new value.

        Args:
            temperature: A positive number; 1 is Bayes' rule. It replaces the present temperature.

        Returns:
            A new `Laplace`, whose `trace` is None.

        Raises:
            PeewitError: `temperature` is not a positive number.

        Example:
            >>> la.with_temperature(0.5).temperature
            0.5
        """
        return Laplace(self.state.with_temperature(tuning.as_temperature(temperature)))

    @entry_point
    def with_arithmetic(self, arithmetic: ArithmeticName) -> Laplace:
        """Evaluate the same posterior at another rounding: a new value.

        From "float64" to another, curvature that is already in float64 stays in it.

        Args:
            arithmetic: "auto", "float32", "tf32", "bf16" or "float64".

        Returns:
            A new `Laplace`, whose `trace` is None.

        Raises:
            PeewitError: The name is unknown.
            ArgumentTypeError: `arithmetic` is not a known name.

        Example:
            >>> la.with_arithmetic("float64").weights.dtype
            torch.float64
        """
        return Laplace(in_arithmetic(self.state, arithmetic))

    @entry_point
    def at_linear_mode(
        self,
        train: Data,
        *,
        tolerance: float = find.TOLERANCE,
        steps: int = find.STEPS,
        memory: float | None = None,
        progress: bool = False,
    ) -> Laplace:
        """Find the mode of the linear model's own loss on the training data, where evidence is then taken: a new value.

        A mode that was found before is where it starts.

        Args:
            train: The data that the posterior was fitted to: all of it, after an update.
            tolerance: The search stops once the loss is about so many nats above its minimum.
            steps: The most steps, of one product with the Jacobian and one with its transpose each. Products for a slow
                solve's preconditioner are not among them.
            memory: Bytes for data and outputs that are kept between passes. None for a limit that fits the device.
            progress: Whether to show a progress bar.

        Returns:
            A new `Laplace`, whose `linear_mode` is what was found, and whose `trace` is None.

        Raises:
            PeewitError: `tolerance` or `steps` is not positive, or the data has another number of examples than that of
                the fit.
            MismatchError: The network has changed since the fit.
            NotFiniteError: The data, or the network's outputs, hold NaN or Inf.

        Warns:
            TuningWarning: The mode was not reached, or the network's loss on the data is not that of the fit.

        Example:
            >>> la.at_linear_mode((x, y)).linear_mode.converged
            True
        """
        return Laplace(find.find(self.state, self._in_order(train), tolerance, steps, memory, progress))

    @entry_point
    def log_evidence(self, prior: Prior | Number | None = None, noise: float | Tensor | None = None) -> Tensor:
        """Compute the log marginal likelihood, here or at another prior and noise.

        Args:
            prior: A `pw.Prior`, or precisions as in `with_prior`; they may require gradients. None for the posterior's
                own.
            noise: The standard deviation; it may require gradients. None for that of the likelihood.

        Returns:
            The log evidence in nats, a tensor ().

        Raises:
            PeewitError: The prior does not fit the weights or the structure, or the likelihood has no such noise.

        Example:
            >>> precision = torch.tensor(2.0, requires_grad=True)
            >>> la.log_evidence(prior=precision).backward()
            >>> precision.grad.shape
            torch.Size([])
        """
        return self.state.log_evidence(prior, noise)

    @entry_point
    def evidence(self, prior: Prior | Number | None = None, noise: float | Tensor | None = None) -> Evidence:
        """Compute the log evidence in parts, with the effective dimensions of each group of the prior.

        Args:
            prior: A `pw.Prior`, or precisions as in `with_prior`. None for the posterior's own.
            noise: The standard deviation. None for that of the likelihood.

        Returns:
            A `pw.Evidence`.

        Raises:
            PeewitError: The prior does not fit the weights or the structure, or the likelihood has no such noise.

        Example:
            >>> la.evidence(prior=2.0).effective_dimensions.shape
            torch.Size([1])
        """
        return self.state.evidence(prior, noise)

    @entry_point
    def tune(
        self,
        method: TuneMethod | None = None,
        *,
        parameters: Sequence[tuning.TuneParameter] | None = None,
        train: Data | None = None,
        validation: Data | None = None,
        start: Prior | Number | None = None,
        grid: tuning.Grid | None = None,
        steps: int | None = None,
        tolerance: float | None = None,
        limits: tuple[float, float] | None = None,
        predict: Mapping[str, Any] | None = None,
        at: At | None = None,
        memory: float | None = None,
        progress: bool = False,
    ) -> Laplace:
        """Choose prior precisions, and the noise where there is one: a new value.

        For good predictions give data: `tune(validation=...)` with data that the network was not trained on, or
        `tune(train=...)` with the training data where there is none to spare. `tune()` alone takes the best evidence,
        which compares models; it needs no data, unless the posterior is at its linear mode.

        Args:
            method: "training" (the evidence, as far as predictions explain `train`), "validation" (the NLL on
                `validation`), "evidence" (Newton's method), "fixed_point" (MacKay's updates), or "grid" (the best of
                all combinations in `grid`, by the NLL on `validation` where it is given, else by the evidence). None
                takes "grid" with `grid`, else "validation" with `validation`, else "training" with `train` and without
                `at`, else "evidence".
            parameters: What to tune, some of "prior", "noise" and "temperature". By default the prior, and the noise
                where the likelihood has one; on a grid, what the grid has values for. The evidence cannot choose a
                temperature, and neither can "training".
            train: The training data, all of it. "training" needs it: with a noise it takes the evidence at the linear
                mode; without, it takes the evidence at the trained weights, and raises the precisions by one factor
                until predictions of up to 512 examples lose at most 0.01 nats per label, compared with the network.
                Every search for a linear mode needs it too.
            validation: Data that the network was not trained on, for "validation" and "grid". Both also try the
                network without uncertain weights; "validation" tries no noise below the residuals of the training data.
            start: The prior, or precisions, to begin from; by default those of the posterior.
            grid: Precisions, or a mapping from names of parameters to values, for "grid".
            steps: The most steps; by default enough for each method. For "training", those of the evidence.
            tolerance: How exact log precisions are to be; by default fit for each method.
            limits: The smallest and the largest precision that are tried; what "training" raises may go beyond. None
                for 1e-10 and 1e10, and for "validation" no less than a thousandth of the precision that the size of the
                weights suggests: on smaller ones these data decide nothing, and inputs unlike them would get variances
                without bound. "validation" and "grid" also try 1e10, the network itself, whatever the limits.
            predict: Options of `predict` for the predictions that are scored, such as {"link": "mc"}.
            at: The weights at which the evidence is taken: "trained_weights", or "linear_mode", the mode of the
                linearised model, which is found on `train` and changes with the precisions. None: where the posterior
                has it, and for "training" at the linear mode too where there is a noise. With "validation" and "grid",
                whose scores do not depend on the mode, a posterior that has one gets that of the tuned prior
                afterwards; give `train` then. One that was tuned by "training" leaves its mode without `train`.
            memory: Bytes for data and outputs that are kept between passes to the linear mode, and for temporary
                results of predictions on `train` or `validation`. None for a limit that fits. The evidence at the
                trained weights takes none.
            progress: Whether to show progress bars.

        Returns:
            A new `Laplace` with the tuned values. Its `trace` says how they were found; `trace.raised` is the factor of
            "training".

        Raises:
            PeewitError: Options that do not belong together, or data that are missing: `train` for "training" or a
                posterior at its linear mode, `validation` for "validation". `train` has another number of examples than
                that of the fit.
            NotFiniteError: The data, or the network's outputs, hold NaN or Inf.
            MismatchError: The network has changed since the fit.

        Warns:
            UnderconfidenceWarning: The evidence alone chose, and predictions may be much less sure than they should be.
            TuningWarning: An optimum at a limit, a search that did not converge, groups without effect, a noise above
                the deviation of the training targets, or a likelihood whose predictions cannot be scored.
            RoundingWarning: Rounding is as large as the tuned prior precision.

        Example:
            >>> tuned = la.tune(train=(x, y))
            >>> tuned.trace.method, tuned.trace.raised >= 1
            ('training', True)
        """
        passes = tuning.Passing(at, memory, progress)
        train, validation = self._in_order(train), self._in_order(validation)
        settings = tuning.check_settings(
            self.state, method, parameters, train, validation, grid, steps, tolerance, limits, predict, passes
        )
        return Laplace(tune(self.state, settings, own_copy(start)))

    @entry_point
    def sample(self, samples: int, generator: torch.Generator | None = None) -> Tensor:
        """Draw weights from the posterior, around the trained ones.

        Args:
            samples: Number of draws.
            generator: Source of random numbers. None for torch's global generator.

        Returns:
            Weights (S, D), one row per draw, in the order of `space`.

        Raises:
            PeewitError: `samples` is not a positive whole number.
            ArgumentTypeError: `generator` is not a torch.Generator.

        Example:
            >>> la.sample(10).shape
            torch.Size([10, 51])
        """
        check_generator(generator)
        with drawing(generator, self.state.weights.device):
            return self.state.weights + self.state.deviations(samples, generator)

    @entry_point
    def functional(
        self,
        x: InputData,
        *,
        joint: bool = False,
        variance_only: bool = False,
        memory: float | None = None,
        generator: torch.Generator | None = None,
        create_graph: bool = False,
        at: At = "trained_weights",
        progress: bool = False,
    ) -> Functional:
        """Compute mean and covariance of the outputs at x, noise excluded.

        Above 256 outputs per example the covariance is estimated from 64 samples, with a relative error of
        sqrt(2 / 64), unless the last layer alone is uncertain: then variances are exact, and covariances of outputs
        without positions.

        Args:
            x: Inputs of the network, B of them, or a DataLoader, as in `predict`.
            joint: Whether to compute covariances between inputs too.
            variance_only: Whether to compute variances alone.
            memory: Bytes for temporary results. None for the limit that the posterior has.
            generator: Source of random numbers for a covariance that is estimated. None for a fixed seed.
            create_graph: Whether mean and covariance can be differentiated in x, which has to require gradients; also
                under `no_grad`.
            at: The weights at which the mean is taken: "trained_weights" for the network's own output, or "linear_mode"
                for the output of the linear model at its mode (see `at_linear_mode`).
            progress: Whether to show a progress bar.

        Returns:
            A `pw.Functional`: `mean` (B, ...) and `cov` (B, *positions, C, C). `cov` is (B, C, B, C) over flattened
            outputs with `joint`, and has the outputs' shape with `variance_only`.

        Raises:
            PeewitError: `joint` and `variance_only` are both given, `joint` or `create_graph` is asked of more than 256
                outputs per example, `x` has no examples or does not require gradients with `create_graph`, or the
                posterior has no linear mode and `at` asks for it.
            MismatchError: The network has changed since the fit.
            ArgumentTypeError: `x` holds no tensors, or `generator` is not a torch.Generator.
            NotFiniteError: `x`, the outputs or their covariance hold NaN or Inf.

        Example:
            >>> la.functional(x[:5], joint=True).cov.shape
            torch.Size([5, 3, 5, 3])
        """
        asked = self._ready(x)
        ask: Callable[..., Functional] = functional_batches if isinstance(asked, Batches) else functional
        return ask(
            self.state,
            asked,
            joint=joint,
            variance_only=variance_only,
            memory=memory,
            generator=generator,
            create_graph=create_graph,
            at=at,
            progress=progress,
        )

    @entry_point
    def functional_samples(
        self,
        x: InputData,
        samples: int,
        generator: torch.Generator | None = None,
        *,
        at: At = "trained_weights",
        memory: float | None = None,
        progress: bool = False,
    ) -> Tensor:
        """Draw outputs of the linearised network, at n draws of the weights; each draw is the same at all inputs.

        Args:
            x: Inputs of the network, B of them, or a DataLoader, as in `predict`.
            samples: Number of draws.
            generator: Source of random numbers. None for torch's global generator.
            at: "trained_weights" for draws around the trained weights, or "linear_mode" for draws around the mode of
                the linear model.
            memory: Bytes for temporary results. None for the limit that the posterior has.
            progress: Whether to show a progress bar.

        Returns:
            Outputs (S, B, ...), S draws.

        Raises:
            PeewitError: `samples` is not a positive whole number, `x` has no examples, or the posterior has no linear
                mode and `at` asks for it.
            MismatchError: The network has changed since the fit.
            ArgumentTypeError: `x` holds no tensors, or `generator` is not a torch.Generator.
            NotFiniteError: `x` or the outputs hold NaN or Inf.

        Example:
            >>> la.functional_samples(x[:5], 10).shape
            torch.Size([10, 5, 3])
        """
        asked = self._ready(x)
        asked = join([each for each, _ in asked]) if isinstance(asked, Batches) else asked
        return functional_samples(self.state, asked, samples, generator, at=at, memory=memory, progress=progress)

    @entry_point
    def predict(
        self,
        x: InputData | None = None,
        *,
        method: PredictMethod = "linearised",
        link: LinkName | None = None,
        samples: int | None = None,
        joint: bool = False,
        memory: float | None = None,
        generator: torch.Generator | None = None,
        create_graph: bool = False,
        at: At = "trained_weights",
        progress: bool = False,
        **inputs: Tensor | Array | list[Any],
    ) -> Prediction:
        """Predict the labels at x: probabilities, or a mean and its variance, with the uncertainty in parts.

        Args:
            x: Inputs of the network, N of them: tensors, numpy arrays or a data frame, whose columns go by name where
                the fit had names. The "labels" of a batch that is a mapping are left out. Or a DataLoader, a Dataset,
                a list of mappings or another iterable of batches, with targets or without, which are predicted batch
                by batch.
            method: "linearised" for outputs of the linearised network, or "sampled" for outputs of the network itself
                at `samples` draws of the weights.
            link: How outputs become labels: "probit", "bridge", "bridge_normalised", "exact", "natural", "mean" or
                "mc". None for the default of the likelihood. "mc" averages over outputs, and is the only link of
                "sampled".
            samples: Number of outputs that averages are taken over. None for the default of the method.
            joint: Whether outputs are correlated between inputs.
            memory: Bytes for temporary results. None for the limit that the posterior has.
            generator: Source of random numbers. None for a fixed seed, so that the same question has the same answer.
            create_graph: Whether the prediction can be differentiated in x, which has to require gradients.
            at: "trained_weights" to predict around the network's own outputs, or "linear_mode" to predict around those
                of the linear model at its mode.
            progress: Whether to show a progress bar.
            inputs: Inputs by name in place of x, as in `la.predict(**batch)`: tensors, arrays, or the lists that a
                tokenizer returns.

        Returns:
            A `pw.Prediction`. The likelihood decides its class: `pw.Classes`, `pw.Binary`, `pw.Regression`,
            `pw.Mixture` or `pw.Outputs`.

        Raises:
            PeewitError: A name is unknown or is not for this likelihood and method, options exclude each other, `joint`
                or `create_graph` is asked of more than 256 outputs per example, `x` has no examples, or the posterior
                has no linear mode and `at` asks for it.
            MismatchError: The network has changed since the fit.
            ArgumentTypeError: `x` holds no tensors, or `generator` is not a torch.Generator.
            NotFiniteError: `x`, the outputs or their covariance hold NaN or Inf.

        Example:
            >>> pred = la.predict(x[:5])
            >>> pred.probs.shape, pred.epistemic.shape
            (torch.Size([5, 3]), torch.Size([5]))
        """
        if not isinstance(self, Laplace):  # x may be left out, so Python itself does not miss it
            raise ArgumentTypeError(
                f"Laplace.predict was called on the class with a {type(self).__name__}; expected la.predict(x), where "
                "la is what pw.fit returned."
            )
        asked = self._ready(one_input(x, inputs))
        ask: Callable[..., Prediction] = predict_batches if isinstance(asked, Batches) else predict
        return ask(
            self.state,
            asked,
            method=method,
            link=link,
            samples=samples,
            joint=joint,
            memory=memory,
            generator=generator,
            create_graph=create_graph,
            at=at,
            progress=progress,
        )

    @entry_point
    def predictor(
        self,
        x: Inputs | None = None,
        *,
        method: PredictMethod = "linearised",
        link: LinkName | None = None,
        samples: int | None = None,
        joint: bool = False,
        memory: float | None = None,
        at: At = "trained_weights",
        **inputs: Tensor | Array | list[Any],
    ) -> Predictor:
        """Prepare predictions for one kind of input and one way to predict: each then takes less time.

        It predicts at x once, with all checks of `predict`, and keeps what does not depend on x. It is quickest where
        the last layer alone is uncertain, `fit(..., weights="last_layer")`.

        Args:
            x: One or more inputs of the network, as they will come: dtypes and shapes are fixed, their number is not.
            method: As in `predict`.
            link: As in `predict`.
            samples: As in `predict`.
            joint: As in `predict`.
            memory: As in `predict`.
            at: As in `predict`.
            inputs: Inputs by name in place of x, as in `la.predictor(**batch)`.

        Returns:
            A `pw.Predictor`: `predictor(x)` is `la.predict(x)` with these options, up to rounding.

        Raises:
            PeewitError: As `predict`.
            MismatchError: The network has changed since the fit.
            ArgumentTypeError: `x` holds no tensors.
            NotFiniteError: `x`, the outputs or their covariance hold NaN or Inf.

        Example:
            >>> predictor = la.predictor(x[:1], link="mc")
            >>> predictor(x[:5]).probs.shape
            torch.Size([5, 3])
        """
        x = ready(self.model, self._in_order(one_input(x, inputs, "la.predictor")))
        x = without_labels(self.model, x)
        options = PredictOptions.of(self.state.likelihood.for_inputs(x), method, link, samples, joint, False, at)
        return Predictor(self.state, x, options, memory)

    def _ready(self, x: Any) -> Any:
        """Inputs that are asked about as tensors, or as batches of them; columns of frames in the order of the fit."""
        if is_loader(x):
            return input_batches(x, self.model)
        return ready(self.model, self._in_order(x))

    def _in_order(self, data: Any) -> Any:
        """Data, or inputs, whose columns are in the order of the fit, where both have names."""
        return data if self.schema is None else self.schema.in_order(data)

    def coverage(self) -> Coverage:
        """List for every parameter the rule and the approximation it got.

        Returns:
            A `pw.Coverage`, a table with one row per parameter.

        Example:
            >>> la.coverage()["0.weight"].rule
            'linear'
        """
        return coverage_of(self.state)

    @entry_point
    def diagnose(self, train: Data, *, memory: float | None = None, progress: bool = False) -> Diagnosis:
        """Check whether the network is fit for this, in sentences with what to do.

        Args:
            train: The training data, as in `pw.fit`; one pass is made over it. A one-shot iterator is refused.
            memory: Bytes for temporary results: batches are cut into pieces that fit. None for batches as they come.
            progress: Whether to show a progress bar.

        Returns:
            A `pw.Diagnosis`.

        Raises:
            PeewitError: The data is a one-shot iterator or has another number of examples than that of the fit.
            MismatchError: The network has changed since the fit.
            NotFiniteError: The data, or the network's outputs, hold NaN or Inf.

        Warns:
            TuningWarning: The network's loss on the data is not that of the fit.

        Example:
            >>> isinstance(la.diagnose((x, y)), pw.Diagnosis)
            True
        """
        return diagnose(self.state, self._in_order(train), memory, progress)

    @entry_point
    def update(self, data: Data, *, memory: float | None = None, progress: bool = False) -> Laplace:
        """Add more data, as if the posterior was fitted to all of it: a new value (EKFAC keeps its eigenvectors).

        Args:
            data: The further data, as in `pw.fit`.
            memory: Bytes for temporary results. None for the limit that the posterior has.
            progress: Whether to show a progress bar.

        Returns:
            A new `Laplace`, whose `trace` and `linear_mode` are None.

        Raises:
            PeewitError: The data has no examples, its targets do not fit the outputs, or it uses weights that the prior
                has no precision for.
            MismatchError: The network has changed since the fit.
            ArgumentTypeError: The data has the wrong type.
            NotFiniteError: The data, or the network's outputs, hold NaN or Inf.

        Warns:
            RoundingWarning: Rounding is as large as the prior precision.

        Example:
            >>> first = pw.fit(model, (x[:40], y[:40]), "classification")
            >>> first.update((x[40:], y[40:])).N
            60
        """
        network = network_of(self.state, memory, progress)
        state = update(self.state, self._in_order(data), network)
        warn_of_rounding(state)
        return Laplace(state)

    @entry_point
    def to(self, device: str | torch.device, model: nn.Module | None = None) -> Laplace:
        """Move the posterior to another device, where its network must be already: a new value.

        Args:
            device: Name of the device, such as "cuda:0", or a torch.device.
            model: A copy of the network on that device. None for the network itself.

        Returns:
            A new `Laplace`.

        Raises:
            PeewitError: The device is unknown, the network is not there, or `model` is not a copy of the network.

        Example:
            >>> la.to("cpu").weights.device
            device(type='cpu')
        """
        network = self.model if model is None else unwrap(model)
        return Laplace(move(self.state, device_named(device), network))

    @entry_point
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the network to a safetensors file, which `pw.load` reads; whole or not at all.

        A likelihood that files cannot hold, such as `pw.Custom`, is saved by its name: give it to `pw.load` again.

        Args:
            path: The file; one that exists is replaced.

        Raises:
            PeewitError: The posterior holds what files cannot.
            MismatchError: The network has changed since the fit.
            OSError: The file cannot be written.

        Example:
            >>> la.save("posterior.safetensors")
            >>> pw.load("posterior.safetensors", model)
            Laplace(D=51, N=60, Kron, ggn, Categorical)
        """
        network_of(self.state, None)  # refuses a network that has changed
        save(self.state, path)

    if not TYPE_CHECKING:  # else a type checker would take any name for one of ours, and calls for right

        def __getattr__(self, name: str) -> Any:
            """Say what there is: predictions have probabilities, a posterior has not."""
            if name in POSTERIOR:
                raise AttributeError(f"A Laplace has no {name!r}; {POSTERIOR[name]}.")
            if name.startswith("_") or hasattr(type(self), name):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            if hasattr(Classes, name) or hasattr(Regression, name):
                raise AttributeError(f"A Laplace has no {name!r}, and its predictions may: use la.predict(x).{name}.")
            known = dir(self)
            raise AttributeError(
                f"A Laplace has no {name!r}{unknown(name, known, POSTERIOR)}It has {', '.join(known)}."
            )

        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            """Predictions have a name: this one says so."""
            raise ArgumentTypeError(
                "A Laplace is not called; use la.predict(x), or la.functional(x) for mean and covariance."
            )

    def __dir__(self) -> list[str]:
        """What is for users."""
        return sorted(name for name in dir(type(self)) if not name.startswith("_") and name != "state")

    def __repr__(self) -> str:
        """One line: what was fitted to how much."""
        return (
            f"Laplace(D={self.D:,}, N={self.N:,}, {type(self.structure).__name__}, {self.curvature.name}, "
            f"{type(self.state.likelihood).__name__})"
        )


@entry_point
def load(
    path: str | os.PathLike[str],
    model: nn.Module,
    likelihood: LikelihoodName | Likelihood | None = None,
    *,
    memory: float | None = None,
    progress: bool = False,
) -> Laplace:
    """Read a saved posterior of this very network: other weights, a damaged file or a newer format is refused.

    A file that `peewit fit --standardise` wrote holds the scaling of its table. `load` then puts it around the network:
    the posterior takes raw columns and answers in the units of the targets, and `la.schema.scaling` has the means and
    deviations. Do not standardise its inputs.

    Args:
        path: The file that `Laplace.save` or `peewit fit` wrote.
        model: The network that the posterior was fitted to, with the same weights and buffers.
        likelihood: The likelihood of the fit, where the file could not hold it, as with `pw.Custom`. None else.
        memory: Bytes for temporary results. None for a limit that fits the device.
        progress: Whether to show a bar while the curvature is decomposed.

    Returns:
        The posterior, a `pw.Laplace`, on the network's device. Its `model` is the network that was given, with the
        scaling around it where the file holds one.

    Raises:
        MismatchError: The file has another format, belongs to another network or other weights, or `likelihood` is
            missing or is not that of the fit.
        PeewitError: The file is damaged.
        FileNotFoundError: There is no such file.
        IsADirectoryError: `path` is a folder.

    Example:
        >>> la.save("posterior.safetensors")
        >>> again = pw.load("posterior.safetensors", model)
        >>> torch.equal(again.predict(x).probs, la.predict(x).probs)
        True
    """
    return Laplace(loading.load(path, model, likelihood, memory, progress))


def validation_nll(
    la: Laplace, data: Data, *, memory: float | None = None, progress: bool = False, **predict: Any
) -> float:
    """Compute the mean negative log probability per example of the predictive, over all batches of `data`.

    Args:
        la: The posterior.
        data: Data that the network was not trained on, as in `pw.fit`.
        memory: Bytes for temporary results. None for the limit that the posterior has.
        progress: Whether to show a progress bar.
        **predict: Options of `la.predict`, such as `link="mc"`.

    Returns:
        A number in nats; lower is better. Targets of an example are summed over its labelled positions.

    Raises:
        PeewitError: The data has no examples, its targets do not fit the outputs, or an option is wrong.
        ArgumentTypeError: The data has the wrong type, or `la.predict` has no such option.
        NotFiniteError: The data, or the network's outputs, hold NaN or Inf.

    Example:
        >>> pw.validation_nll(la, (x, y)) > 0
        True
    """
    return validation.validation_nll(la.state, la._in_order(data), {"memory": memory, **predict}, Progress(progress))
