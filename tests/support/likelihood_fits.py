"""Likelihoods on small outputs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

import peewit as pw
from fitting import fitted
from likelihood_cases import CASES, LikelihoodCase
from peewit.likelihoods import Form

DRAWABLE = [case.name for case in CASES if case.likelihood.draws]


def fit(case: LikelihoodCase, structure: Any, curvature: Any = "ggn", **options: Any) -> pw.Laplace:
    """A fit of a case on the device under test."""
    return fitted(case.model, case.x, case.y, case.likelihood, structure, curvature=curvature, **options)


def form_of(case: LikelihoodCase, f: Tensor | None = None) -> Form:
    """Where the outputs are, found by the likelihood."""
    return case.likelihood.form(case.f if f is None else f, case.y)
