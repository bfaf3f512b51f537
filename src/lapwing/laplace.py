"""`fit` and the value it returns: a Gaussian over the weights of a trained network."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn

from . import curvature as curvatures
from . import likelihoods, structures
from .batches import LOCK, Batches, Inputs, device_of, evaluation
from .complaints import checked_generator, made_by, nearest, spelled
from .core import Curvature, Structure
from .coverage import Coverage, Row
from .curvature import Auto, Hessian, Kind, PlanChanged, Source, Totals
from .diagnosis import output_of, remarks
from .evidence import Evidence, Question
from .identity import Identity
from .likelihoods import Gaussian, Likelihood
from .memory import Budget, budget
from .operators import Blocks
from .predictions import functional as outputs
from .predictions import question as questions
from .predictions.observations import Regression
from .predictions.prediction import Classes, Prediction
from .priors import Number, Prior, as_prior
from .products import Products, hessian_matrix
from .progress import Progress
from .random import drawing
from .selection import Weights, select
from .space import Space, trainable
from .structures.block import DenseSums, Full
from .tape import Plan
from .tuning import search
from .tuning.trace import Trace

DEFAULT_SEED = 0x1A9
LOSSES: dict[type, str] = {  # what users may give in place of a likelihood
    nn.CrossEntropyLoss: "classification",
    nn.NLLLoss: "classification",
    nn.BCEWithLogitsLoss: "binary",
    nn.MSELoss: "regression",
    nn.GaussianNLLLoss: "heteroscedastic",
    nn.PoissonNLLLoss: "count",
}


Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")


def plainly(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """Outside of a caller's inference mode and autocast, which would change what is computed or can be done with it."""

    @functools.wraps(function)
    def inner(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        # One at a time: networks are shared between threads, and held in evaluation mode meanwhile.
        with (
            LOCK,
            torch.inference_mode(False),
            torch.autocast("cpu", enabled=False),
            torch.autocast("cuda", enabled=False),
        ):
            return checked(*args, **kwargs)

    checked = spelled(function)
    return inner


def named(value: Any, names: Mapping[str, Callable[[], Any]], what: str, method: str) -> Any:
    """A value, or the one that a name stands for; all of them have some method."""
    if not isinstance(value, str):
        made = value() if isinstance(value, type) else value
        if not hasattr(made, method):
            hint = f" Did you mean {LOSSES[type(made)]!r}?" if type(made) in LOSSES else ""
            raise TypeError(
                f"{what} is a {type(made).__name__}; expected one of the names {', '.join(names)}, or a value of "
                f"lapwing's own kinds.{hint}"
            )
        return made
    if value not in names:
        raise ValueError(f"{what}={value!r} is not known; {nearest(value, names)}Known: {', '.join(names)}.")
    return names[value]()


@made_by("lapwing.fit(model, data, likelihood)")
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
        made = replace(self, prior=self._prior(as_prior(prior, self.prior)), trace=None)
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
        return replace(self, temperature=search.checked_temperature(temperature), trace=None)

    def _prior(self, prior: Prior | Number | None) -> Prior:
        """A prior for these weights: refused here, not when asked."""
        chosen = self.prior if prior is None else as_prior(prior, self.prior)
        chosen.count(self.space)
        chosen.known(name for name, _ in self.model.named_parameters())
        return chosen.bound(self.curvature, self.N)

    @property
    def _question(self) -> Question:
        """What the evidence depends on besides prior and noise."""
        return Question(
            self.curvature, self.kind.degree, self.mode, self.space, self.likelihood, self.totals, self.temperature
        )

    @plainly
    def log_evidence(self, prior: Prior | Number | None = None, noise: float | Tensor | None = None) -> Tensor:
        """The log marginal likelihood, here or at another prior and noise; tensors may require gradients."""
        return self._question.log_evidence(self._prior(prior), noise)

    @plainly
    def evidence(self, prior: Prior | Number | None = None, noise: float | Tensor | None = None) -> Evidence:
        """The log evidence in parts, with the effective dimensions of each group of the prior."""
        return self._question.evidence(self._prior(prior), noise)

    @plainly
    def tune(
        self,
        method: search.Method = "evidence",
        *,
        prior: bool = True,
        noise: bool | None = None,
        temperature: bool = False,
        data: Any = None,
        start: Prior | Number | None = None,
        grid: search.Grid | None = None,
        steps: int | None = None,
        tolerance: float | None = None,
        limits: tuple[float, float] = search.LIMITS,
        predict: Mapping[str, Any] | None = None,
    ) -> Laplace:
        """Choose prior precisions, and the noise where there is one, without the training data: a new value.

        By the `evidence` or MacKay's `fixed_point`, by the NLL on validation `data`, or on a `grid`; see `trace`.
        """
        asked = search.settings(self, method, prior, noise, temperature, data, grid, steps, tolerance, limits, predict)
        return search.tune(self, asked, start)

    @plainly
    def sample(self, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(n, D): weights drawn from the posterior."""
        checked_generator(generator)
        with drawing(generator, self.mode.device):
            return self.mode + self._deviations(n, generator)

    def _deviations(self, n: int, generator: torch.Generator | None) -> Tensor:
        if isinstance(n, bool) or not isinstance(n, int) or n < 1:
            raise ValueError(f"{n!r} samples were asked for; expected a positive whole number.")
        device = self.mode.device if generator is None else generator.device
        eps = torch.randn(n, self.D, generator=generator, dtype=self.mode.dtype, device=device)
        return self.precision.root(eps.to(self.mode.device)).detach()

    @plainly
    def functional(
        self,
        x: Inputs,
        *,
        joint: bool = False,
        variance_only: bool = False,
        memory: float | None = None,
        create_graph: bool = False,
    ) -> outputs.Functional:
        """Mean and covariance of the outputs at x, noise excluded.

        `cov` is (B, *positions, C, C); joint: (B, C, B, C) over flattened outputs; `variance_only`: the outputs' shape.
        Above 256 outputs per example it is estimated from 64 samples, with a relative error of sqrt(2 / 64).
        `create_graph`: both can be differentiated in x, which has to require gradients; also under `no_grad`.
        """
        if joint and variance_only:
            raise ValueError("joint=True and variance_only=True exclude each other; expected at most one of them.")
        network = self._network(memory)
        try:
            return outputs.functional(network, self.precision, x, joint, variance_only, create_graph)
        except outputs.TooManyOutputs as many:
            if joint or create_graph:
                raise ValueError(
                    f"{'joint' if joint else 'create_graph'}=True with {many} outputs per example; expected at most "
                    f"{outputs.EXACT_OUTPUTS}. Use functional_samples, which is jointly right at any size."
                ) from None
            return outputs.sampled_functional(network, self.precision, x, DEFAULT_SEED, variance_only)

    @plainly
    def functional_samples(self, x: Inputs, n: int, generator: torch.Generator | None = None) -> Tensor:
        """(n, B, ...): outputs of the linearised network at n draws of the weights, the same draw at all inputs."""
        checked_generator(generator)
        with drawing(generator, self.mode.device):
            return outputs.functional_samples(self._network(None), x, self._deviations(n, generator))

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
    ) -> Prediction:
        """What is known of the labels at x: probabilities, or a mean and its variance, with the uncertainty in parts.

        `method`: outputs of the linearised network, or of the network itself at `samples` draws of the weights.
        `link`: how outputs become labels ("probit", "bridge", "bridge_normalised", "mc", "natural", "mean"); each
        likelihood has its own default. `joint`: outputs are correlated between inputs. `create_graph`: the answer can
        be differentiated in x.
        """
        question = questions.Question.of(self.likelihood, method, link, samples, joint, create_graph)
        return questions.predict(self, x, question, memory, generator)

    def coverage(self) -> Coverage:
        """For every parameter the rule and the approximation it got."""
        rows = []
        for name, parameter in self.model.named_parameters():
            if name in self.space.names:
                rule, words = self.rules[name], self.curvature.approximation(name) + self.space.selected(name)
            elif name in self.rules:
                rule, words = "unused", "left out"
            else:
                rule, words = "not selected", "fixed"
            rows.append(Row(name, tuple(parameter.shape), rule, words))
        return Coverage(tuple(rows), self.reason)

    @plainly
    def update(self, data: Any, *, memory: float | None = None, progress: bool = False) -> Laplace:
        """The posterior after more data, as if fitted to all of it: a new value (EKFAC keeps its eigenvectors)."""
        from .continuing import updated  # which needs this file

        return updated(self, data, self._network(memory), Progress(progress))

    @plainly
    def to(self, device: str | torch.device, model: nn.Module | None = None) -> Laplace:
        """The same posterior on another device, where its network (or `model`, a copy of it) must be: a new value."""
        from .continuing import device_named, moved  # which needs this file

        return moved(self, device_named(device), self.model if model is None else unwrapped(model))

    @plainly
    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything but the network to a safetensors file, which `load` reads; whole or not at all."""
        from .files import save  # which needs this file

        self._network(None)  # refuses a network that has changed
        save(self, path)

    def _network(self, memory: float | None) -> outputs.Network:
        if not self.identity.still(self.model):
            raise ValueError(
                "The network's weights or buffers, their dtype or device are no longer those it was fitted with; "
                "fit again, or restore them."
            )
        limit = self.budget if memory is None else budget(memory, self.mode.device)
        return outputs.Network(self.model, self.space, self.plan, limit, self._axis)

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


@plainly
def fit(
    model: nn.Module,
    data: Any,
    likelihood: str | Likelihood,
    *,
    weights: Weights = "all",
    structure: str | Structure = "kron",
    curvature: str | Kind | Hessian | Auto = "auto",
    prior: Prior | Number = 1.0,
    memory: float | None = None,
    progress: bool = False,
    generator: torch.Generator | None = None,
) -> Laplace:
    """Measure the curvature of a trained network on its training data: a Gaussian posterior over its weights."""
    model = unwrapped(model)
    family: Likelihood = named(likelihood, likelihoods.NAMES, "likelihood", "energy")
    shape: Structure = named(structure, structures.NAMES, "structure", "measure")
    kind: Kind | Hessian | Auto = named(curvature, curvatures.NAMES, "curvature", "name")
    checked_generator(generator)
    start = as_prior(prior)
    device = device_of(model)
    limit = budget(memory, device)
    batches = Batches(data, device)

    def variance() -> Tensor:
        if batches.one_shot:
            raise ValueError("Subnetwork.largest_variance passes over the data twice; a one-shot iterator was given.")
        own = start.base is not None or (start.kind in ("diagonal", "unitwise") and start.precision.numel() > 1)
        usual = Prior.scalar(1.0) if own else start
        diagonal = fit(model, data, family, structure="diag", curvature=kind, prior=usual, memory=memory)
        return spread_variance(diagonal, model)

    if isinstance(family, Gaussian) and isinstance(family.noise, str):
        family = with_residuals(family, model, batches)
    space = select(model, weights, batches.first, limit, variance)
    if space.mask is not None and not getattr(shape, "masks", False):
        raise ValueError(
            f"structure={type(shape).__name__} cannot hold single elements of a tensor; "
            "use structure='diag' or 'full' with masks and subnetworks."
        )
    identity = Identity.of(model)
    if not math.isfinite(identity.norm):
        bad = [name for name, tensor in model.state_dict().items() if not bool(torch.isfinite(tensor).all())]
        raise ValueError(f"The network's {', '.join(bad)} holds NaN or Inf; expected a trained network.")
    start.known(name for name, _ in model.named_parameters())
    start.count(space)  # a prior that does not fit is refused before any work is done
    seed = DEFAULT_SEED
    if generator is not None:
        seed = int(torch.randint(1 << 62, (1,), generator=generator, device=generator.device))
    plan = Plan()
    source = Source(model, space, batches, family, kind, limit, plan, seed, Progress(progress))
    began = time.perf_counter()
    selected = [model.get_parameter(name) for name in space.names]
    with evaluation(model, selected), closing(source.progress), remarks(source):
        sums = measure_hessian(source, shape) if isinstance(kind, Hessian) else measure(source, shape.measure)
        wait(device)
    measured = time.perf_counter()
    asked, space = space, space.only(plan.used)
    start = start.only(asked, space)
    with remarks(source):
        made = decompose(shape, source.kind, sums, space)
    assert source.totals is not None
    start = start.bound(made, source.totals.examples)
    wait(device)
    timings = {"measure": measured - began, "decompose": time.perf_counter() - measured}
    chosen = source.kind
    assert not isinstance(chosen, Auto) and source.totals is not None
    assert source.totals.form is not None
    family = family.bound(source.totals.form)
    reason = source.reason or f"{chosen.name}, as asked"
    mode = space.vector(model)
    mode = mode.to(torch.promote_types(mode.dtype, torch.float32))
    return Laplace(
        model,
        space,
        family,
        shape,
        chosen,
        made,
        start,
        source.totals,
        mode,
        plan,
        limit,
        reason,
        {name: " + ".join(sorted(plan.used.get(name, ()))) for name in asked.names},
        timings,
        identity,
        sums,
        asked,
        seed,
    )


def with_residuals(family: Gaussian, model: nn.Module, batches: Batches) -> Gaussian:
    """The noise of every output as the root mean square of the network's residuals there."""
    if batches.one_shot:
        raise ValueError("Gaussian(noise='residuals') passes over the data twice; a one-shot iterator was given.")
    total, number = None, 0
    plain = Gaussian()
    with evaluation(model), torch.no_grad():
        for inputs, targets in batches:
            output = output_of(model, inputs)
            form = plain.form(output, targets)
            squares = (form.flatten(output).double() - plain.targets(targets, form).double()).square()
            total = squares.sum((0, 1)) if total is None else total + squares.sum((0, 1))
            number += squares.shape[0] * squares.shape[1]
    if total is None:
        raise ValueError("The data has no examples: the loader is empty.")
    noise = (total / number).sqrt().cpu()
    if not bool(torch.isfinite(noise).all()) or not bool((noise > 0).all()):
        raise ValueError(
            f"Gaussian(noise='residuals'): the residuals' standard deviations are {noise.tolist()}; expected positive "
            "finite ones. Give a noise instead."
        )
    return Gaussian(noise if noise.numel() > 1 else float(noise))


def decompose(structure: Structure, kind: Kind | Hessian | Auto, sums: Any, space: Space) -> Curvature:
    """The curvature of sums; a Hessian's negative eigenvalues are clipped here, for its sums must add up."""
    if isinstance(kind, Hessian) and kind.clip:
        sums = sums.clipped()
    return structure.curvature(sums, space)


def measure(source: Source, measurement: Callable[[Source], Any]) -> Any:
    """One measurement of the data; begun again where a batch taught something about the network that came too late."""
    for _ in range(8):
        try:
            return measurement(source)
        except PlanChanged as change:
            if source.data.one_shot:
                raise ValueError(
                    f"{change} only in a later batch, and the data is a one-shot iterator; expected a DataLoader, a "
                    "list of batches or tensors, which can be passed over again."
                ) from None
            source.totals = source.measured = None
            source.plan.used.clear()
    raise ValueError("The network applies its weights differently in every pass over the data.")


def wait(device: torch.device) -> None:
    """Let queued work finish, so that timings mean something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def unwrapped(model: nn.Module) -> nn.Module:
    """The network inside `torch.compile`'s wrapper, whose parameters have their own names."""
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) else model


def spread_variance(diagonal: Laplace, model: nn.Module) -> Tensor:
    """Variances over all trainable weights: unused ones are never chosen."""
    sizes = [shape.numel() for shape in diagonal.space.shapes]
    found = dict(zip(diagonal.space.names, diagonal.precision.variance().split(sizes), strict=True))
    return torch.cat(
        [
            found[name] if name in found else diagonal.mode.new_full((model.get_parameter(name).numel(),), -1.0)
            for name in trainable(model)
        ]
    )


def measure_hessian(source: Source, structure: Structure) -> Any:
    """The full Hessian of the energy, in place of a structure's own measurement."""
    if not isinstance(structure, Full):
        raise ValueError(
            f"curvature='hessian' with structure={type(structure).__name__}: the Hessian has a full matrix and "
            "products only; use structure='full', or curvature='ggn'."
        )
    if source.data.one_shot:
        raise ValueError("curvature='hessian' passes over the data several times; a one-shot iterator was given.")
    assert isinstance(source.kind, Hessian)
    probe = replace(source, kind=curvatures.Empirical())
    for batch in probe:  # totals, and which weights are used
        for _ in batch.columns():
            pass
    source.totals = probe.totals
    matrix = hessian_matrix(source.model, source.space, source.data, source.likelihood)
    return DenseSums({tuple(source.space.parts()): matrix}, source.space.mask)


@spelled
def products(
    model: nn.Module,
    data: Any,
    likelihood: str | Likelihood,
    *,
    weights: Weights = "all",
    curvature: str | Kind | Hessian | Auto = "ggn",
) -> Products:
    """Products with the curvature of the energy, matrix-free: `products(...).mv(v)` passes over the data once."""
    model = unwrapped(model)
    batches = Batches(data, device_of(model))
    if batches.one_shot:
        raise ValueError("Products pass over the data every time; a one-shot iterator was given.")
    limit = budget(None, device_of(model))

    def variance() -> Tensor:
        raise ValueError("Subnetwork.largest_variance needs a fit; use its mask here.")

    return Products(
        model,
        select(model, weights, batches.first, limit, variance),
        batches,
        named(likelihood, likelihoods.NAMES, "likelihood", "energy"),
        named(curvature, curvatures.NAMES, "curvature", "name"),
        DEFAULT_SEED,
    )
