"""`fit`: from a network, data and a likelihood to a posterior; and `products`, which needs none."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from . import likelihoods
from .curvature import kinds as curvatures
from .curvature import structures
from .curvature.contracts import Structure
from .curvature.kinds import Auto, CurvatureKind, CurvatureName, Hessian
from .curvature.products import Products
from .curvature.stream import MeasurementTask, Source
from .curvature.structures import StructureName
from .laplace import Laplace
from .likelihoods import Likelihood, LikelihoodName, WithNoise, like_own_loss
from .messages.arguments import check_generator
from .messages.errors import NotFiniteError, PeewitError
from .messages.names import resolve_name
from .messages.warnings import FitWarning, warn
from .network.batches import Batches
from .network.identity import Identity
from .network.isolation import entry_point
from .network.kept import CLEAR, kept_tensors
from .network.modules import device_of, quantised_modules, unwrap
from .network.nests import Data
from .network.values import own_copy
from .posterior.linear_mode import At, check_at
from .posterior.measure import curvature_of, sums_of, with_residual_noise
from .posterior.measurement import Measurement
from .posterior.resolution import warn_of_rounding
from .posterior.schema import Schema
from .posterior.state import PosteriorState
from .priors.prior import Number, Prior, as_prior
from .runtime.arithmetic import ArithmeticName
from .runtime.memory import Budget, budget
from .runtime.progress import Progress
from .runtime.random import seed_of
from .tracing.selection import Weights, select
from .weights.space import Space, trainable


@entry_point
def fit(
    model: nn.Module,
    data: Data,
    likelihood: LikelihoodName | Likelihood,
    *,
    weights: Weights = "all",
    structure: StructureName | Structure = "kron",
    curvature: CurvatureName | CurvatureKind | Hessian | Auto = "auto",
    prior: Prior | Number = 1.0,
    memory: float | None = None,
    arithmetic: ArithmeticName = "auto",
    progress: bool = False,
    generator: torch.Generator | None = None,
    at: At = "trained_weights",
) -> Laplace:
    """Measure the curvature of a trained network on its training data: a Gaussian posterior over its weights.

    The network is not changed.

    Args:
        model: The trained network.
        data: The training data: a pair (inputs, targets) of tensors, numpy arrays, data frames or lists; a DataLoader,
            a Dataset, or an iterable of batches. A batch is `(x, y)`, `((x1, x2), y)`, or a mapping with "labels".
            Numbers get the dtype of the network where it does not take them as they are, and targets of a network
            with one output may be (N,) or (N, 1).
        likelihood: How targets are distributed given the outputs: "classification", "binary", "regression",
            "heteroscedastic", "count" or "preference", or a value such as `pw.Gaussian(0.1)`.
        weights: The uncertain weights; all others stay fixed. "all" (the trainable ones), "last_layer", "lora", names
            or patterns of parameters, a mask (a tensor, or a mapping from names to tensors), or a `pw.Subnetwork`.
        structure: How curvature is stored: "kron", "ekfac", "diag", "block" or "full", or a value such as `pw.Kron()`.
        curvature: Which curvature is measured: "auto", "ggn", "fisher", "empirical" or "hessian", or a value such as
            `pw.MonteCarlo(3)`. "auto" takes the exact GGN while that is cheap; see `pw.Auto`.
        prior: A positive number, the prior precision of all weights, or a `pw.Prior`.
        memory: Bytes for temporary results. None for a limit that fits the device.
        arithmetic: How products are rounded: "auto", "float32", "tf32", "bf16" or "float64".
        progress: Whether to show a progress bar.
        generator: Source of the seed for drawn labels, which the Fisher matrix needs. None for a fixed seed.
        at: The weights at which the evidence is taken: "trained_weights", or "linear_mode", the mode of the linear
            model, which is then found on the same data.

    Returns:
        The posterior, a `pw.Laplace`.

    Raises:
        PeewitError: A name is unknown, the data has no examples, the targets do not fit the outputs, the output does
            not depend on the selected weights, the prior does not fit the weights, the structure cannot hold the prior
            or a mask, or a one-shot iterator was given where `fit` passes over the data several times.
        ArgumentTypeError: An argument has the wrong type, such as a loss as `likelihood`, or the data hold words.
        NotFiniteError: The data, the network or its outputs hold NaN or Inf.

    Warns:
        FitWarning: The likelihood, the labels or the weights may not be those of the training.
        RoundingWarning: Rounding is as large as the prior precision.
        TuningWarning: The search for the linear mode did not converge.

    Example:
        >>> pw.fit(model, (x, y), "classification", structure="diag")
        Laplace(D=51, N=60, Diag, ggn, Categorical)
    """
    request = resolve(model, data, likelihood, weights, structure, curvature, prior, memory, arithmetic, generator, at)
    source = Source(request.task, progress=Progress(progress))
    began = time.perf_counter()
    sums = sums_of(source, request.structure)
    state = assemble(request, source, sums, time.perf_counter() - began)
    state = replace(state, schema=Schema.of_frames(data))
    warn_of_rounding(state)
    la = Laplace(state)
    return la if at == "trained_weights" else la.at_linear_mode(data, memory=memory, progress=progress)


@dataclass(frozen=True, kw_only=True)
class Request:
    """What `fit` was asked for, checked before any work is done."""

    task: MeasurementTask
    structure: Structure
    prior: Prior
    budget: Budget  # for questions; that of the task may be smaller
    identity: Identity


def resolve(
    model: nn.Module,
    data: Data,
    likelihood: LikelihoodName | Likelihood,
    weights: Weights,
    structure: StructureName | Structure,
    curvature: CurvatureName | CurvatureKind | Hessian | Auto,
    prior: Prior | Number,
    memory: float | None,
    arithmetic: ArithmeticName,
    generator: torch.Generator | None,
    at: At,
) -> Request:
    """Turn names into values and refuse what does not fit."""
    check_at(at)
    model = unwrap(model)
    family: Likelihood = own_copy(resolve_name(likelihood, likelihoods.NAMES, "likelihood", Likelihood))
    shape: Structure = resolve_name(structure, structures.NAMES, "structure", Structure)
    kind: CurvatureKind | Hessian | Auto = resolve_name(curvature, curvatures.NAMES, "curvature", "name")
    check_generator(generator)
    start = own_copy(as_prior(prior))
    device = device_of(model)
    limit = budget(memory, device, arithmetic)
    batches = Batches(data, model)
    if at == "linear_mode":
        batches.refuse_one_shot("at='linear_mode' passes over the data many times")
    if isinstance(family, WithNoise) and family.awaits_residuals:
        family = with_residual_noise(model, family, batches)
    family = like_own_loss(model, family, batches.first)

    def variance() -> Tensor:
        batches.refuse_one_shot("Subnetwork.largest_variance passes over the data twice")
        elementwise = start.base is not None or (start.grouping.within_tensors and start.precision.numel() > 1)
        single = Prior.scalar(1.0) if elementwise else start
        diagonal = fit(
            model, data, family, structure="diag", curvature=kind, prior=single, memory=memory, arithmetic=arithmetic
        )
        return variance_of_trainable(diagonal, model)

    space = select(model, weights, lambda: batches.first()[0], limit, variance)
    if space.mask is not None and not shape.masks:
        raise PeewitError(
            f"structure={type(shape).__name__} cannot hold single elements of a tensor; "
            "use structure='diag' or 'full' with masks and subnetworks."
        )
    identity = Identity.of(model)
    if not math.isfinite(identity.norm):
        bad = [name for name, tensor in model.state_dict().items() if not bool(torch.isfinite(tensor).all())]
        what = f"{', '.join(bad)} holds NaN or Inf" if bad else "weights are so large that their norm overflows"
        raise NotFiniteError(f"The network's {what}; expected a trained network.")
    start.refuse_unknown(name for name, _ in model.named_parameters())
    start.count(space)  # a prior that does not fit is refused before any work is done
    task = MeasurementTask(
        model=model,
        space=space,
        data=batches,
        likelihood=family,
        kind=kind,
        budget=limit if memory is not None else limit.at_most(limit.bytes if shape.enough is None else shape.enough),
        seed=seed_of(generator, 62),
        least=start.least,
    )
    return Request(task=task, structure=shape, prior=start, budget=limit, identity=identity)


def assemble(request: Request, source: Source, sums: Any, seconds: float) -> PosteriorState:
    """The posterior of what was measured in some seconds."""
    began, task = time.perf_counter(), request.task
    space = task.space.only(source.knowledge.used)
    check_used(task.model, task.space, space)
    curvature = curvature_of(source, request.structure, sums, space)
    kind, totals = source.kind, source.totals
    assert totals is not None and totals.form is not None and not isinstance(kind, Auto)
    trained = space.vector(task.model)
    state = PosteriorState(
        model=task.model,
        space=space,
        likelihood=task.likelihood.bind(totals.form),
        structure=request.structure,
        curvature_kind=kind,
        curvature=curvature,
        prior=request.prior.only(task.space, space).bind(curvature, totals.examples),
        weights=trained.to(torch.promote_types(trained.dtype, request.budget.arithmetic.dtype)),
        knowledge=source.knowledge,
        budget=request.budget,
        identity=request.identity,
        measurement=Measurement(
            asked=task.space,
            sums=sums,
            totals=totals,
            rules={name: " + ".join(sorted(source.knowledge.used.get(name, ()))) for name in task.space.names},
            reason=source.choice.reason or f"{kind.name}, as asked",
            seed=task.seed,
            timings={"measure": seconds, "decompose": time.perf_counter() - began},
        ),
    )
    if not state.prior.grouping.one_for_all and not curvature.elementwise:
        _ = state.precision  # kept for the first question; a prior that the structure cannot hold is refused here
    return state


def check_used(model: nn.Module, selected: Space, used: Space) -> None:
    """Refuse weights that quantised layers hide, and a network that uses none of those that were asked for."""
    unused = [name for name in selected.names if name not in used.names]
    quantised = quantised_modules(model) if unused else []
    if quantised:
        raise PeewitError(
            f"{', '.join(unused[:3])} has no gradient, and the network has quantised layers "
            f"({', '.join(quantised[:3])}), through which none passes. Fit the network from before it was quantised, "
            "or choose weights= after its last quantised layer."
        )
    if not used.names:
        raise PeewitError("The network's output does not depend on the selected weights.")
    caches = {name.rpartition(".")[0]: name for name, _ in kept_tensors(model)} if unused else {}
    for name in unused:
        owner = name.rpartition(".")[0]
        if owner in caches:
            warn(
                f"{name} has no gradient, and beside it {caches[owner]!r} holds a tensor: if that was computed from it "
                f"in an earlier pass, the weight counts as fixed. {CLEAR}",
                FitWarning,
            )
            return


def variance_of_trainable(diagonal: Laplace, model: nn.Module) -> Tensor:
    """Variances over all trainable weights: unused ones are never chosen."""
    sizes = [shape.numel() for shape in diagonal.space.shapes]
    variances = dict(zip(diagonal.space.names, diagonal.precision.variance().split(sizes), strict=True))
    return torch.cat(
        [
            variances[name]
            if name in variances
            else diagonal.state.weights.new_full((model.get_parameter(name).numel(),), -1.0)
            for name in trainable(model)
        ]
    )


@entry_point
def products(
    model: nn.Module,
    data: Data,
    likelihood: LikelihoodName | Likelihood,
    *,
    weights: Weights = "all",
    curvature: CurvatureName | CurvatureKind | Hessian | Auto = "ggn",
    memory: float | None = None,
    progress: bool = False,
    generator: torch.Generator | None = None,
) -> Products:
    """Multiply vectors by the curvature of the energy, matrix-free: `products(...).mv(v)` passes over the data once.

    The energy is the sum of all losses: the negative log-likelihood without its noise precision, 1 / noise^2, for
    Gaussian noise. The prior is left out.

    Args:
        model: The trained network.
        data: The training data, as in `pw.fit`, except that a one-shot iterator is refused.
        likelihood: How targets are distributed given the outputs, as in `pw.fit`.
        weights: The weights that vectors hold, as in `pw.fit`, except that `pw.Subnetwork.largest_variance` is refused.
        curvature: Which curvature: "ggn", "fisher", "empirical", "hessian" or "auto", or a value such as
            `pw.MonteCarlo(3)`.
        memory: Bytes for temporary results of a product. None for whole batches and all vectors at once.
        progress: Whether products show a progress bar.
        generator: Source of the seed for drawn labels, which the Fisher matrix needs. None for a fixed seed.

    Returns:
        A `pw.Products`, whose `mv` multiplies.

    Raises:
        PeewitError: A name is unknown, the data is a one-shot iterator, or the curvature is `Hessian(clip=True)`.
        ArgumentTypeError: An argument has the wrong type.

    Example:
        >>> products = pw.products(model, (x, y), "classification")
        >>> products.mv(torch.ones(51)).shape
        torch.Size([51])
    """
    model = unwrap(model)
    kind: CurvatureKind | Hessian | Auto = resolve_name(curvature, curvatures.NAMES, "curvature", "name")
    if isinstance(kind, Hessian) and kind.clip:
        raise PeewitError(
            "curvature=Hessian(clip=True) in products, which hold no matrix whose eigenvalues could be clipped; use "
            "Hessian() here, or fit with structure='full'."
        )
    check_generator(generator)
    batches = Batches(data, model)
    batches.refuse_one_shot("Products pass over the data every time")
    limit = budget(memory, device_of(model))
    family: Likelihood = resolve_name(likelihood, likelihoods.NAMES, "likelihood", Likelihood)

    def variance() -> Tensor:
        raise PeewitError("Subnetwork.largest_variance needs a fit; use its mask here.")

    return Products(
        model,
        select(model, weights, lambda: batches.first()[0], limit, variance),
        batches,
        like_own_loss(model, family, batches.first),
        kind,
        seed=seed_of(generator, 62),
        memory=memory,
        progress=Progress(progress),
    )
