"""Targets that a likelihood does not take, by their example."""

from __future__ import annotations

from torch import Tensor

from ..network.finite import InExample
from . import Form, Likelihood


def wrong_target(likelihood: Likelihood, y: Tensor, form: Form) -> InExample:
    """The first target that is not valid."""
    first = next(place for place in range(len(y)) if not bool(likelihood.valid(y[place : place + 1], form)))
    return InExample(first, likelihood.complaint(y, form))
