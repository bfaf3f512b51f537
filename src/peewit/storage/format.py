"""What files hold, and under which names."""

from __future__ import annotations

import hashlib
from typing import Any

from torch import Tensor, nn

from .. import likelihoods
from ..curvature import kinds, structures
from ..curvature.structures.dense_sums import DenseSums
from ..curvature.structures.factors import KronFactors, KronSums
from ..curvature.totals import Totals
from ..jacobians import layout
from ..network.identity import digest, named_tensors
from ..network.scaling import Scaling
from ..posterior.linear_mode import LinearMode
from ..posterior.schema import Schema
from ..priors import groupings
from ..priors.prior import Prior
from ..tracing.knowledge import Knowledge
from ..tracing.layers.examples import BatchAxis
from ..weights.space import Space
from .saved_trace import SavedTrace

FORMAT = 9  # raised whenever an older peewit could misread a file


# Every class that a file may name. A class with a function inside it is noted by its name, and asked for by `load`.
LIKELIHOODS: tuple[type, ...] = tuple(likelihoods.NAMES.values())
STRUCTURES: tuple[type, ...] = tuple(structures.NAMES.values())
KINDS: tuple[type, ...] = tuple(kind for kind in kinds.NAMES.values() if kind is not kinds.Auto)
PARTS: tuple[type, ...] = (
    Prior,
    Totals,
    Space,
    Knowledge,
    BatchAxis,
    KronSums,
    DenseSums,
    KronFactors,
    layout.Layout,
    likelihoods.Form,
    LinearMode,
    SavedTrace,
    Schema,
    Scaling,
    *groupings.NAMES.values(),
)
KNOWN = (*LIKELIHOODS, *STRUCTURES, *KINDS, *PARTS)


# What is written under its own name, and read by the annotation of the field.
MEASURED = ("totals", "asked", "reason", "rules", "seed")  # fields of the measurement
PLAIN = ("prior", "totals", "asked", "knowledge", "reason", "rules", "seed", "weights", "temperature")
MAYBE = ("linear_mode", "schema")  # likewise, where there is one
TRACE = "trace"  # a `SavedTrace`, where it was tuned


def shapes_of(model: nn.Module) -> dict[str, list[Any]]:
    """Shapes and dtypes by name: for messages that say more than that a fingerprint differs."""
    return {name: [list(tensor.shape), str(tensor.dtype)] for name, tensor in named_tensors(model).items()}


def checksum(texts: dict[str, str], tensors: dict[str, Tensor]) -> str:
    """A hash of all texts and all tensors: bits that fell over are seen."""
    hasher = hashlib.sha256()
    for name in sorted(texts):
        hasher.update(f"{name} {len(texts[name])} {texts[name]} ".encode())
    for name in sorted(tensors):
        hasher.update(f"{name} {digest(tensors[name])} ".encode())
    return hasher.hexdigest()
