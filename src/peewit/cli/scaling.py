"""`--standardise`: the columns of the training table are scaled as in training, inside the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

import peewit as pw

from ..network.scaling import Scaling, Standardised
from .datasets import LoadedData
from .networks import is_regression
from .output import Problem

INPUTS = "inputs"  # in place of true: targets stay as they are


def standardise(
    settings: Mapping[str, Any], net: nn.Module, data: LoadedData, likelihood: Any
) -> tuple[nn.Module, LoadedData, Any]:
    """The network with the scaling inside, a schema that keeps it, and a noise in the targets' units."""
    what = settings.get("standardise", False)
    if what is False:
        return net, data, likelihood
    if what not in (True, INPUTS):
        raise Problem(f"standardise = {what!r} was given; expected true, false or {INPUTS!r}.")
    x, y = data.value if isinstance(data.value, tuple) and len(data.value) == 2 else (None, None)
    if not isinstance(x, Tensor) or not isinstance(y, Tensor) or x.dim() != 2 or not x.is_floating_point():
        raise Problem(
            f"--standardise was given, and {data.source} is no table of numbers; expected inputs (N, columns). Let the "
            "network scale images and tokens."
        )
    two = likelihood == "heteroscedastic" or isinstance(likelihood, pw.HeteroscedasticGaussian)
    if two and what is True:
        raise Problem(
            "--standardise scales one output per target, and heteroscedastic networks have two; let the network scale "
            f"the targets, and use --set standardise={INPUTS}."
        )
    targets = y if what is True and is_regression(likelihood) else None
    scaling = Scaling.of(x, targets)
    if targets is not None and likelihood == "regression":  # a deviation of one, in the targets' units
        deviations = torch.tensor(scaling.target_deviations, dtype=torch.float64)
        likelihood = pw.Gaussian(noise=deviations if len(deviations) > 1 else float(deviations))
    return Standardised(net, scaling), replace(data, schema=replace(data.schema, scaling=scaling)), likelihood


def as_inner(weights: Any) -> Any:
    """Names of uncertain weights as they are in a network with the scaling around it."""
    if isinstance(weights, str):
        return weights if weights in ("all", "last_layer", "lora") else f"network.{weights}"
    return [f"network.{name}" for name in weights]
