"""`fit`: from a network, data and a likelihood to a posterior; and `products`, which needs none."""

from __future__ import annotations

import math
import time
import warnings
from contextlib import closing
from typing import Any

import torch
from torch import Tensor, nn

from . import likelihoods
from .curvature import kinds as curvatures
from .curvature import structures
from .curvature.contracts import Structure
from .curvature.kinds import Auto, Hessian, Kind
from .curvature.products import Products
from .curvature.stream import Source
from .laplace import Laplace
from .likelihoods import Gaussian, Likelihood
from .messages.arguments import checked_generator
from .messages.names import named, nearest, spelled
from .network.batches import Batches
from .network.finite import remarks
from .network.identity import Identity
from .network.isolation import evaluation, plainly
from .network.kept import CLEAR, kept_tensors
from .network.modules import device_of, quantised, unwrapped
from .posterior.measure import decompose, measure, measure_hessian, with_residuals
from .posterior.resolution import warned
from .posterior.state import PosteriorState
from .priors.prior import Number, Prior, as_prior
from .runtime.device import wait
from .runtime.memory import budget
from .runtime.progress import Progress
from .runtime.random import DEFAULT_SEED
from .tracing.knowledge import Plan
from .tracing.selection import Weights, select
from .tuning.options import MODES, Mode
from .weights.space import Space, trainable


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
    arithmetic: str = "auto",
    progress: bool = False,
    generator: torch.Generator | None = None,
    mode: Mode = "trained",
) -> Laplace:
    """Measure the curvature of a trained network on its training data: a Gaussian posterior over its weights.

    `mode="linear"`: evidence is taken at the mode of the linear model, which is then found on the same data.
    """
    if mode not in MODES:
        near = nearest(mode, MODES) if isinstance(mode, str) else ""
        raise ValueError(f"mode={mode!r} is not known; {near}Known: {', '.join(MODES)}.")
    model = unwrapped(model)
    family: Likelihood = named(likelihood, likelihoods.NAMES, "likelihood", Likelihood)
    shape: Structure = named(structure, structures.NAMES, "structure", "measure")
    kind: Kind | Hessian | Auto = named(curvature, curvatures.NAMES, "curvature", "name")
    checked_generator(generator)
    start = as_prior(prior)
    device = device_of(model)
    limit = budget(memory, device, arithmetic)
    batches = Batches(data, device)
    if mode == "linear" and batches.one_shot:
        raise ValueError(
            "mode='linear' passes over the data many times; a one-shot iterator was given. Give a DataLoader, a list "
            "of batches or tensors."
        )

    def variance() -> Tensor:
        if batches.one_shot:
            raise ValueError("Subnetwork.largest_variance passes over the data twice; a one-shot iterator was given.")
        own = start.base is not None or (start.kind in ("diagonal", "unitwise") and start.precision.numel() > 1)
        usual = Prior.scalar(1.0) if own else start
        diagonal = fit(
            model, data, family, structure="diag", curvature=kind, prior=usual, memory=memory, arithmetic=arithmetic
        )
        return spread_variance(diagonal, model)

    if isinstance(family, Gaussian) and isinstance(family.noise, str):
        family = with_residuals(model, batches)
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
    working = limit if memory is not None else limit.at_most(getattr(shape, "enough", limit.bytes))
    source = Source(model, space, batches, family, kind, working, plan, seed, Progress(progress), least=start.least)
    began = time.perf_counter()
    selected = [model.get_parameter(name) for name in space.names]
    with evaluation(model, selected), closing(source.progress), remarks(source), limit.arithmetic.passes():
        sums = measure_hessian(source, shape) if isinstance(kind, Hessian) else measure(source, shape.measure)
        wait(device)
    measured = time.perf_counter()
    asked, space = space, space.only(plan.used)
    check_used(model, asked, space)
    start = start.only(asked, space)
    with remarks(source), limit.arithmetic.passes():
        made = decompose(shape, source.kind, sums, space)
    assert source.totals is not None and source.totals.form is not None
    start = start.bound(made, source.totals.examples)
    wait(device)
    timings = {"measure": measured - began, "decompose": time.perf_counter() - measured}
    chosen = source.kind
    assert not isinstance(chosen, Auto)
    family = family.bound(source.totals.form)
    reason = source.reason or f"{chosen.name}, as asked"
    trained = space.vector(model)
    trained = trained.to(torch.promote_types(trained.dtype, limit.arithmetic.dtype))
    state = PosteriorState(
        model=model,
        space=space,
        likelihood=family,
        structure=shape,
        curvature_kind=chosen,
        curvature=made,
        prior=start,
        totals=source.totals,
        weights=trained,
        plan=plan,
        budget=limit,
        reason=reason,
        rules={name: " + ".join(sorted(plan.used.get(name, ()))) for name in asked.names},
        timings=timings,
        identity=identity,
        sums=sums,
        asked=asked,
        seed=seed,
    )
    if start.kind != "scalar" and not made.elementwise:
        _ = state.precision  # kept for the first question; a prior that the structure cannot hold is refused here
    la = Laplace(warned(state, 5))
    return la if mode == "trained" else la.at_linear_mode(data, memory=memory, progress=progress)


def check_used(model: nn.Module, asked: Space, used: Space) -> None:
    """Refuse weights that quantised layers hide, and a network that uses none of those that were asked for."""
    unused = [name for name in asked.names if name not in used.names]
    found = quantised(model) if unused else []
    if found:
        raise ValueError(
            f"{', '.join(unused[:3])} has no gradient, and the network has quantised layers ({', '.join(found[:3])}), "
            "through which none passes. Fit the network from before it was quantised, or choose weights= after its "
            "last quantised layer."
        )
    if not used.names:
        raise ValueError("The network's output does not depend on the selected weights.")
    kept = {name.rpartition(".")[0]: name for name, _ in kept_tensors(model)} if unused else {}
    for name in unused:
        owner = name.rpartition(".")[0]
        if owner in kept:
            warnings.warn(
                f"{name} has no gradient, and beside it {kept[owner]!r} holds a tensor: if that was computed from it "
                f"in an earlier pass, the weight counts as fixed. {CLEAR}",
                UserWarning,
                stacklevel=4,
            )
            return


def spread_variance(diagonal: Laplace, model: nn.Module) -> Tensor:
    """Variances over all trainable weights: unused ones are never chosen."""
    sizes = [shape.numel() for shape in diagonal.space.shapes]
    found = dict(zip(diagonal.space.names, diagonal.precision.variance().split(sizes), strict=True))
    return torch.cat(
        [
            found[name] if name in found else diagonal.weights.new_full((model.get_parameter(name).numel(),), -1.0)
            for name in trainable(model)
        ]
    )


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
        named(likelihood, likelihoods.NAMES, "likelihood", Likelihood),
        named(curvature, curvatures.NAMES, "curvature", "name"),
        DEFAULT_SEED,
    )
