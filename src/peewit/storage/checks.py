"""Refusals of numbers in a file that do not fit each other or the network."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..curvature.contracts import Structure
from ..curvature.kinds import CurvatureKind, Hessian
from ..curvature.totals import Totals
from ..messages.errors import PeewitError
from ..posterior.linear_mode import LinearMode
from ..priors.prior import Prior
from ..runtime.arithmetic import Arithmetic
from ..tracing.forward_mode import ROWS
from ..tracing.knowledge import Knowledge
from ..weights.space import Space
from .codec import short


def check_linear(linear: LinearMode | None, mode: Tensor, space: Space) -> None:
    """Refuse a mode of the linear model that is not of these weights."""
    if linear is None:
        return
    shape, dtype = linear.displacement.shape, linear.displacement.dtype
    if shape != mode.shape or dtype != mode.dtype:
        raise PeewitError(f"its linear mode is {dtype} of shape {tuple(shape)}; expected {mode.dtype} {len(mode)}")
    report = (linear.losses, linear.decrements, linear.gradients, linear.passes)
    if len({len(each) for each in report}) != 1 or not linear.losses:
        raise PeewitError("its linear mode's report has columns of different lengths")
    if not linear.noise_precision > 0 or not linear.temperature > 0:
        words = f"noise precision {linear.noise_precision} and temperature {linear.temperature}"
        raise PeewitError(f"its linear mode has {words}")
    check_prior(linear.prior, space)


def check_space(space: Space, model: nn.Module) -> None:
    """Refuse weights that the network does not have."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    ordered = tuple(name for name in shapes if name in set(space.names))
    if not space.names or space.names != ordered or len(space.shapes) != len(ordered):
        raise PeewitError(f"its weights {short(space.names)} are not those of the network")
    for name, shape in zip(space.names, space.shapes, strict=True):
        if shapes[name] != shape:
            raise PeewitError(f"{name!r} has shape {tuple(shape)}; the network's has {tuple(shapes[name])}")
    mask = space.mask
    if mask is not None and (mask.dtype != torch.bool or mask.shape != (space.total,) or not bool(mask.any())):
        raise PeewitError(f"its mask has shape {tuple(mask.shape)}; expected ({space.total},) booleans")


def check_values(
    values: dict[str, Any],
    kind: CurvatureKind | Hessian,
    structure: Structure,
    space: Space,
    model: nn.Module,
    arithmetic: Arithmetic,
) -> None:
    """Refuse numbers that do not fit each other."""
    check_curvature(kind, structure, space)
    check_weights(values["weights"], space.vector(model), arithmetic)
    check_totals(values["totals"])
    if not values.get("temperature", 1.0) > 0:
        raise PeewitError(f"its temperature is {values['temperature']}")
    check_knowledge(values["knowledge"])
    if set(values["rules"]) != set(values["asked"].names):
        raise PeewitError("its rules are not those of its weights")
    sets = values["prior"].sets
    if (
        not all(sets)
        or not {name for invariant_set in sets for name in invariant_set} <= dict(model.named_parameters()).keys()
    ):
        raise PeewitError(f"its prior has sets of weights, {short(sets)}, that the network does not have")
    check_prior(values["prior"], space)


def check_curvature(kind: CurvatureKind | Hessian, structure: Structure, space: Space) -> None:
    """Refuse a curvature that its structure or a mask excludes."""
    if isinstance(kind, Hessian) and not structure.holds_hessian:
        raise PeewitError(f"a Hessian with structure {type(structure).__name__}")
    if space.mask is not None and not structure.masks:
        raise PeewitError(f"a mask with structure {type(structure).__name__}")


def check_weights(weights: Tensor, expected: Tensor, arithmetic: Arithmetic) -> None:
    """Refuse trained weights that are not the network's."""
    dtype = torch.promote_types(expected.dtype, arithmetic.dtype)
    if weights.shape != expected.shape or weights.dtype != dtype:
        raise PeewitError(
            f"its weights are {weights.dtype} of shape {tuple(weights.shape)}; expected {dtype} {len(expected)}"
        )
    if not torch.equal(weights, expected.detach().to(weights)):
        raise PeewitError("its weights are not those of the network")


def check_totals(totals: Totals) -> None:
    """Refuse counts of data that cannot be, and a form of outputs that does not fit its axis."""
    if totals.examples < 1 or totals.scalars < 0 or totals.form is None:
        raise PeewitError(f"it counts {totals.examples} examples and {totals.scalars} scalars")
    if totals.form.axis is not None and not 0 <= totals.form.axis < len(totals.form.shape):
        raise PeewitError(f"its outputs have axis {totals.form.axis} of {len(totals.form.shape)}")


def check_knowledge(known: Knowledge) -> None:
    """Refuse what cannot be known of a network."""
    folds = {axis.fold for axis in known.axes.values() if axis is not None}
    wrong = any(cost < 1 for cost, _ in known.costs.values()) or not set(known.push.values()) <= {*range(ROWS + 1)}
    if not folds <= {"none", "major", "minor", "whole", "owned"} or wrong:
        what = f"{short(known.axes)}, {short(known.costs)}, {short(known.push)}"
        raise PeewitError(f"it knows impossible things of the network ({what})")


def check_prior(prior: Prior, space: Space) -> None:
    """Refuse a prior that is not of these weights."""
    if not prior.precision.is_floating_point() or not bool((prior.precision > 0).all()):
        raise PeewitError(f"its prior is {short(prior.grouping.name)} with precisions {short(prior.precision)}")
    prior.count(space)
