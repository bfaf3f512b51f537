"""A posterior carried on: with more data, or on another device. Always a new value."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from ..curvature.stream import MeasurementTask, Source
from ..messages.errors import PeewitError
from ..network.batches import Batches
from ..network.identity import Identity
from ..network.modules import device_of
from ..network.values import change_tensors
from ..priors.prior import Prior
from ..runtime.arithmetic import ArithmeticName, as_arithmetic
from ..runtime.memory import budget
from ..tracing.knowledge import KnowledgeLearner
from ..weights.space import Space
from .measure import curvature_of, sums_of

if TYPE_CHECKING:
    from .network import Network
    from .state import PosteriorState


Value = TypeVar("Value")
OLD_BASES = "later data measured along the eigenvectors of the first"


def update(la: PosteriorState, data: Any, network: Network) -> PosteriorState:
    """Measure more data and add it: labels are drawn, and unused weights told, as in one fit to all of it."""
    earlier = la.measurement
    learner = KnowledgeLearner(replace(la.knowledge, used={}))  # which weights later data use is asked anew
    task = MeasurementTask(
        model=la.model,
        space=earlier.asked,
        data=Batches(data, la.model),
        likelihood=la.likelihood,
        kind=la.curvature_kind,
        budget=network.budget,
        seed=earlier.seed,
        first=la.N,
        form=earlier.totals.form,
        least=la.prior.least,
    )
    source = Source(task, learner, network.progress)
    began = time.perf_counter()
    sums = sums_of(source, la.structure, earlier.sums)
    measured = time.perf_counter()
    used = {name: frozenset(earlier.rules[name].split(" + ")) for name in la.space.names}
    for name, rules in learner.knowledge.used.items():
        used[name] = used.get(name, frozenset()) | rules
    space = earlier.asked.only(used)
    weights = space.vector(la.model).to(la.weights.dtype) if space.names != la.space.names else la.weights
    curvature = curvature_of(source, la.structure, sums, space)
    assert source.totals is not None
    totals = earlier.totals + source.totals
    return replace(
        la,
        space=space,
        curvature=curvature,
        # A g-prior follows the curvature, which is now that of all data.
        prior=replace(prior_of(la, space), base=None).bind(curvature, totals.examples),
        weights=weights,
        knowledge=replace(learner.knowledge, used=used),
        measurement=replace(
            earlier,
            sums=sums,
            totals=totals,
            rules={name: " + ".join(sorted(used.get(name, ()))) for name in earlier.asked.names},
            reason=reason_of(la),
            timings={"measure": measured - began, "decompose": time.perf_counter() - measured},
        ),
        trace=None,
        linear_mode=None,  # that of the earlier data
    )


def prior_of(la: PosteriorState, space: Space) -> Prior:
    """The prior, which must say what weights get that the earlier data never used."""
    if space.names == la.space.names:
        return la.prior
    try:
        la.prior.count(space)
    except ValueError as error:
        new = [name for name in space.names if name not in la.space.names]
        raise PeewitError(
            f"{', '.join(new)} was not used by the earlier data and is by this, and the prior holds numbers for the "
            f"earlier weights alone ({error}) Use with_prior(...) with one precision, or one per named group, before "
            "the update, or fit to all data at once."
        ) from None
    return la.prior.carry_over(la.space, space)


def reason_of(la: PosteriorState) -> str:
    """A structure that measures later data along old eigenvectors says so."""
    if la.structure.keeps_bases and OLD_BASES not in la.measurement.reason:
        return f"{la.measurement.reason}; {OLD_BASES}"
    return la.measurement.reason


def move(la: PosteriorState, device: torch.device, model: nn.Module) -> PosteriorState:
    """All tensors of a posterior on a device; the network is the user's, and must be there already."""
    where = device_of(model)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    if where != device:
        raise PeewitError(
            f"The posterior was asked to move to {device}, and its network is on {where}. The network is yours and is "
            f"never moved: call model.to({str(device)!r}) first, or give a copy that is there, as in "
            f"la.to({str(device)!r}, model=copy.deepcopy(model).to({str(device)!r}))."
        )
    if model is la.model and la.identity.is_same(model):
        identity = la.identity
    else:
        asked = la.measurement.asked
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        same = all(shapes.get(name) == shape for name, shape in zip(asked.names, asked.shapes, strict=True))
        if not same or not la.identity.is_close(model):
            raise PeewitError(
                "The network's weights or buffers or their dtype are not those the posterior was fitted with; "
                "expected the same network on another device."
            )
        identity = Identity.of(model)
    held: dict[int, Any] = {}  # curvature and sums share tensors, and go on doing so

    def on(value: Value) -> Value:
        # Masks stay where they are: they choose among weights, on the CPU.
        return change_tensors(value, lambda tensor: tensor if tensor.dtype == torch.bool else tensor.to(device), held)

    return replace(
        la,
        model=model,
        curvature=on(la.curvature),
        weights=on(la.weights),
        measurement=replace(la.measurement, sums=on(la.measurement.sums)),
        prior=on(la.prior),
        likelihood=on(la.likelihood),
        linear_mode=on(la.linear_mode),
        budget=la.budget if device == la.weights.device else budget(None, device, la.budget.arithmetic),
        identity=identity,
    )


def in_arithmetic(la: PosteriorState, arithmetic: ArithmeticName) -> PosteriorState:
    """The same posterior, evaluated at another rounding."""
    setting = as_arithmetic(arithmetic)
    dtype = setting.dtype
    for name in la.space.names:
        dtype = torch.promote_types(dtype, la.model.get_parameter(name).dtype)

    def cast(tensor: Tensor) -> Tensor:
        return tensor.to(dtype) if tensor.dtype == torch.float32 else tensor

    linear = la.linear_mode
    return replace(
        la,
        budget=replace(la.budget, arithmetic=setting),
        curvature=change_tensors(la.curvature, cast),
        measurement=replace(la.measurement, sums=change_tensors(la.measurement.sums, cast)),
        weights=la.weights.to(dtype),
        linear_mode=linear and replace(linear, displacement=linear.displacement.to(dtype)),
        trace=None,
    )
