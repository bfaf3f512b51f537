"""The evidence by its definition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import peewit as pw
import reference
import reference_dense as dense
from environment import DEVICE
from fitting import seeded, weights_of
from peewit.curvature import structures
from tables import Table, moved

EXACT = 1e-9


STRUCTURES: dict[str, Any] = {
    **{name: structure() for name, structure in structures.NAMES.items()},
    "kron reduce": pw.Kron(approx="reduce"),
    "kron joint": pw.Kron(bias="joint"),
}


EVERY = pytest.mark.parametrize("structure", STRUCTURES)


NOISE = 0.45


def curvature(case: Table, structure: str, kind: str) -> Tensor:
    """(D, D): the dense curvature of a structure at scale one."""
    settings: dict[str, Any] = {"curvature": kind}
    if structure.startswith("kron"):
        settings["approx"] = "reduce" if "reduce" in structure else "expand"
        settings["bias"] = "joint" if "joint" in structure else "separate"
        return case.kron(**settings)
    if structure == "ekfac":
        return reference.ekfac_of(*case.blocks(**settings))
    exact = case.ggn
    if kind == "empirical":
        exact = dense.empirical(case.model, case.x, case.y, case.case.likelihood, case.names, case.case.axis)
    if structure == "diag":
        return torch.diag(exact.diagonal())
    if structure == "block":
        owner = [name.rpartition(".")[0] for name in case.names]
        number = torch.tensor([owner.index(each) for each in owner]).repeat_interleave(sizes(case))
        return exact * (number[:, None] == number)
    assert structure == "full", f"what {structure!r} approximates is missing here"
    return exact


def sizes(case: Table) -> Tensor:
    """Numbers of weights per tensor."""
    return torch.tensor([case.model.get_parameter(name).numel() for name in case.names])


def definition(case: Table, structure: str, kind: str = "ggn") -> Callable[..., Tensor]:
    """The dense log evidence as a function of the prior precision (D,), its mean (D,) and the noise."""
    matrix, theta = curvature(case, structure, kind), weights_of(case.model)
    regression = case.case.likelihood == "regression"
    total = dense.energy(case.model, case.x, case.y, case.case.likelihood, case.case.axis)
    degree = 2 if kind == "empirical" else 1

    def value(delta: Tensor, mean: Tensor | float = 0.0, noise: float = NOISE) -> Tensor:
        scale = noise ** (-2 * degree) if regression else 1.0
        fit = dense.log_likelihood(case.case.likelihood, total, case.y.numel(), noise)
        return dense.log_evidence(fit, matrix, theta, mean * torch.ones_like(theta), delta, scale)

    return value


def fit(case: Table, structure: str, kind: str = "ggn", **options: Any) -> pw.Laplace:
    """A fit with noise that is not one."""
    likelihood = pw.Gaussian(noise=NOISE) if case.case.likelihood == "regression" else case.likelihood
    data = moved(case.x), moved(case.y)
    model = case.case.make()[0].to(DEVICE)
    return pw.fit(model, data, likelihood, structure=STRUCTURES[structure], curvature=kind, **options)


def positive(count: int, seed: int = 3) -> Tensor:
    """Numbers between 0.5 and 1.5."""
    return torch.rand(count, generator=seeded(seed), dtype=torch.float64) + 0.5


def differences(function: Callable[[Tensor], Tensor], at: Tensor, step: float = 1e-5) -> Tensor:
    """Central differences of a function of a vector."""
    made = []
    for place in range(len(at)):
        shift = torch.zeros_like(at)
        shift[place] = step * float(at[place])
        made.append((function(at + shift) - function(at - shift)) / (2 * shift[place]))
    return torch.stack(made)
