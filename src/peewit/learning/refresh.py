"""The curvature at the present weights: from all data, from a share of them, or beside sums of earlier shares."""

from __future__ import annotations

import time
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from ..curvature.contracts import Structure
from ..curvature.stream import Source
from ..fitting import assemble, resolve
from ..likelihoods import Likelihood
from ..posterior.measure import sums_of
from ..posterior.state import PosteriorState
from ..priors.prior import Prior
from ..runtime.progress import Progress
from ..storage.codec import Decoder, Encoder
from ..storage.format import KNOWN
from .examples import share_of
from .options import Measuring


@dataclass(frozen=True, eq=False)
class RunningSums:
    """Sums over recent batches, older ones with less weight, and how many examples they amount to."""

    sums: Any
    examples: float


def refresh(
    model: nn.Module,
    data: Any,
    likelihood: Likelihood,
    prior: Prior,
    measuring: Measuring,
    number: int,
    total: int,
    earlier: RunningSums | None,
    progress: Progress,
) -> tuple[PosteriorState, RunningSums | None]:
    """The posterior at the present weights under a prior; measurement `number`, of N = `total` examples.

    A share of n examples counts as all N: its log-likelihood and curvature are multiplied by N / n, which is what a
    temperature of n / N does.
    """
    began = time.perf_counter()
    chosen = share_of(data, model, measuring.share, measuring.seed + number)
    request = resolve(
        model,
        chosen,
        likelihood,
        measuring.weights,
        measuring.structure,
        measuring.curvature,
        prior,
        measuring.memory,
        measuring.arithmetic,
        None,
        "trained_weights",
    )
    request = replace(request, task=replace(request.task, seed=request.task.seed + number))  # other drawn labels
    source, structure = Source(request.task, progress=progress), request.structure
    kept = None if earlier is None else structure.scale(earlier.sums, measuring.running)
    sums = sums_of(source, structure, kept)
    assert source.totals is not None
    seen = source.totals.examples
    running = None
    if measuring.running:
        examples = seen + (0.0 if earlier is None else measuring.running * earlier.examples)
        running = RunningSums(sums, examples)
        sums = sums if examples == seen else structure.scale(sums, seen / examples)
    state = assemble(request, source, sums, time.perf_counter() - began)
    return (state if seen == total else state.with_temperature(seen / total)), running


def encoded(running: RunningSums | None) -> dict[str, Any] | None:
    """Sums as plain values and named tensors."""
    if running is None:
        return None
    encoder = Encoder(KNOWN)
    return {"sums": encoder.encode(running.sums, "sums"), "tensors": encoder.tensors, "examples": running.examples}


def decoded(content: Mapping[str, Any] | None, structure: Structure, device: Any) -> RunningSums | None:
    """The other way round."""
    if content is None:
        return None
    tensors: dict[str, Tensor] = {name: tensor.to(device) for name, tensor in content["tensors"].items()}
    hint = typing.get_type_hints(type(structure).measure)["return"]
    return RunningSums(Decoder(KNOWN, tensors).decode(content["sums"], hint, "sums"), content["examples"])
