"""`--standardise`: the columns of the training table are scaled as in training, inside the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import peewit as pw

from ..likelihoods import WithNatural
from ..messages.names import first_names
from ..network.scaling import Scaling, Standardised, unscale
from ..posterior.schema import Schema
from .datasets import LoadedData
from .networks import likelihood_value
from .output import Problem, Voice

INPUTS = "inputs"  # in place of true: targets stay as they are
PREFIX = "network."  # of the weights inside


def standardise(
    settings: Mapping[str, Any], net: nn.Module, data: LoadedData, likelihood: Any, voice: Voice
) -> tuple[nn.Module, LoadedData, Any]:
    """The network with the scaling inside, a schema that keeps it, and a noise in the targets' units."""
    what = settings.get("standardise", False)
    if what is False:
        return net, data, likelihood
    if what not in (True, INPUTS):
        raise Problem(f"standardise = {what!r} was given; expected true, false or {INPUTS!r}.")
    x, y = table_of(data)
    value = likelihood_value(likelihood)
    if what is True and isinstance(value, WithNatural):
        raise Problem(
            "--standardise scales one output per target, and heteroscedastic networks have two; let the network scale "
            f"the targets, and use --set standardise={INPUTS}."
        )
    targets = y if what is True and value is not None and value.in_target_units else None
    if targets is not None and (same := constants(targets)):
        names = data.schema.targets or [str(number) for number in range(len(same))]
        raise Problem(
            f"--standardise was given, and the target {names[same[0]]!r} of {data.source} has one value in all "
            f"{len(y)} rows; expected targets that differ. Give the table of the training."
        )
    if same := constants(x):
        names = data.schema.inputs or [str(number) for number in range(x.shape[1])]
        shown = first_names([names[number] for number in same])
        voice.say(f"note: {data.source}: {shown} has one value in all rows, and is only shifted by it.")
    scaling = Scaling.of(x, targets)
    if targets is not None and likelihood == "regression":  # a deviation of one, in the targets' units
        deviations = torch.tensor(scaling.target_deviations, dtype=torch.float64)
        likelihood = pw.Gaussian(noise=deviations if len(deviations) > 1 else float(deviations))
    return Standardised(net, scaling), replace(data, schema=replace(data.schema, scaling=scaling)), likelihood


def table_of(data: LoadedData) -> tuple[Tensor, Tensor]:
    """Inputs (N, D) and targets; refuse what has no columns, and columns without a deviation."""
    x, y = data.value if isinstance(data.value, tuple) and len(data.value) == 2 else (None, None)
    if not isinstance(x, Tensor) or not isinstance(y, Tensor) or x.dim() != 2 or not x.is_floating_point():
        raise Problem(
            f"--standardise was given, and {data.source} is not a table of numbers; expected inputs (N, columns). Let "
            "the network scale images and tokens."
        )
    for what, numbers in (("inputs", x), ("targets", y.double().reshape(len(y), -1))):
        if len(bad := (~torch.isfinite(numbers).all(1)).nonzero()):
            raise Problem(
                f"--standardise was given, and the {what} of {data.source} hold NaN or Inf in {len(bad)} of {len(x)} "
                f"rows, first in row {int(bad[0]) + 1}. Fill them in as for the training, or leave such rows out."
            )
    return x, y


def constants(columns: Tensor) -> list[int]:
    """Numbers of the columns that have one value."""
    return (columns == columns[:1]).reshape(len(columns), -1).all(0).nonzero().flatten().tolist()


def check_scaling(settings: Mapping[str, Any], schema: Schema) -> None:
    """Refuse settings that contradict the scaling that a posterior was fitted with."""
    fitted = schema.scaling is not None
    if bool(settings.get("standardise", fitted)) != fitted:
        with_it = "with standardised columns" if fitted else "without"
        raise Problem(
            f"standardise = {str(settings['standardise']).lower()} was given, and the posterior was fitted {with_it}. "
            "Leave the setting out, or fit again."
        )


def as_inner(weights: Any, net: nn.Module) -> Any:
    """Names of uncertain weights as they are in a network with the scaling around it."""
    if weights in ("all", "last_layer", "lora"):
        return weights
    if not isinstance(weights, str):
        return [as_inner(name, net) for name in weights]
    inner = any(name.startswith(PREFIX) for name, _ in unscale(net).named_parameters())
    return weights if weights.startswith(PREFIX) and not inner else f"{PREFIX}{weights}"
