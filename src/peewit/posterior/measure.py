"""Passes over the data: the curvature of a structure, the full Hessian, and the noise of the residuals."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ..curvature.contracts import Curvature, Structure
from ..curvature.kinds import Auto, CurvatureKind, Empirical, Hessian
from ..curvature.pieces import labelled_outputs
from ..curvature.products import hessian_matrix
from ..curvature.restart import PassRestart
from ..curvature.stream import Source
from ..curvature.structures.dense_sums import DenseSums
from ..likelihoods import WithNoise
from ..messages.errors import PeewitError
from ..network.batches import Batches
from ..network.finite import Watch, add_remark
from ..network.isolation import isolated
from ..network.modules import device_of
from ..runtime.device import wait
from ..weights.space import Space


def decompose(structure: Structure, kind: CurvatureKind | Hessian | Auto, sums: Any, space: Space) -> Curvature:
    """The curvature of sums; a Hessian's negative eigenvalues are clipped here, for its sums must add up."""
    if isinstance(kind, Hessian) and kind.clip:
        sums = sums.clip()
    return structure.curvature(sums, space)


def sums_of(source: Source, structure: Structure, earlier: Any = None) -> Any:
    """A structure's sums over the data, or over these and earlier ones; the network is held in evaluation mode."""
    task = source.task
    selected = [task.model.get_parameter(name) for name in task.space.names]
    passes = task.budget.arithmetic.passes()
    with isolated(task.model, selected), closing(source.progress), add_remark(source), passes:
        if isinstance(source.kind, Hessian):
            sums = measure_hessian(source, structure)
            sums = sums if earlier is None else sums.after(earlier)
        elif earlier is None:
            sums = measure(source, structure.measure)
        else:
            sums = measure(source, lambda source: structure.more(source, earlier))
        wait(device_of(task.model))
    return sums


def curvature_of(source: Source, structure: Structure, sums: Any, space: Space) -> Curvature:
    """The sums decomposed for the weights that are used."""
    with add_remark(source), source.progress.working("decomposition"), source.task.budget.arithmetic.passes():
        curvature = decompose(structure, source.kind, sums, space)
    wait(device_of(source.task.model))
    return curvature


def measure(source: Source, measurement: Callable[[Source], Any]) -> Any:
    """One measurement of the data; begun again where a batch taught something about the network that came too late."""
    for _ in range(8):
        try:
            return measurement(source)
        except PassRestart as reason:
            source.task.data.refuse_one_shot(f"{reason} only in a later batch")
            source.restart(reason)
    raise PeewitError("The network applies its weights differently in every pass over the data.")


def measure_hessian(source: Source, structure: Structure) -> Any:
    """The full Hessian of the energy, in place of a structure's own measurement."""
    task = source.task
    if not structure.holds_hessian:
        raise PeewitError(
            f"curvature='hessian' with structure={type(structure).__name__}: the Hessian has a full matrix and "
            "products only; use structure='full', or curvature='ggn'."
        )
    task.data.refuse_one_shot("curvature='hessian' passes over the data several times")
    gradients = Source(replace(task, kind=Empirical()), source.tracer.learner, source.progress)
    measure(gradients, pull_all)  # totals, and which weights are used
    source.totals, source.remark = gradients.totals, gradients.remark
    matrix = hessian_matrix(task.model, task.space, task.data, task.likelihood)
    return DenseSums({tuple(task.space.parts()): matrix}, task.space.mask)


def pull_all(source: Source) -> None:
    """Pull all probes back, and add nothing up."""
    for batch in source:
        for _ in batch.probes():
            pass


def with_residual_noise(model: nn.Module, likelihood: WithNoise, batches: Batches) -> WithNoise:
    """With the noise of every output as the root mean square of the network's residuals there."""
    what = f"{type(likelihood).__name__}(noise='residuals')"
    batches.refuse_one_shot(f"{what} passes over the data twice")
    total, number = None, 0
    with isolated(model), torch.no_grad():
        watch = Watch()
        for _, output, labels in labelled_outputs(model, watch.count_batches(batches), likelihood, None, watch):
            squares = (labels.flat(output).double() - labels.y.double()).square()
            total = squares.sum((0, 1)) if total is None else total + squares.sum((0, 1))
            number += squares.shape[0] * squares.shape[1]
    assert total is not None
    noise = (total / number).sqrt().cpu()
    if not bool(torch.isfinite(noise).all()) or not bool((noise > 0).all()):
        raise PeewitError(
            f"{what}: the residuals' standard deviations are {noise.tolist()}; expected positive "
            "finite ones. Give a noise instead."
        )
    return likelihood.with_noise(noise)
