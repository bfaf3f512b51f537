"""Every likelihood with every curvature and structure against its definition by torch, example by example."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

import lapwing as lw
import reference
import reference_dense as dense
from fitting import fitted, weights_of
from lapwing.laplace import DEFAULT_SEED
from lapwing.likelihoods import Form
from lapwing.random import Hashed
from likelihood_cases import BY_NAME, CASES, EXAMPLES, LikelihoodCase
from tables import curvature_of, moved, own_bases, relative

EXACT = 1e-8
DRAWS = 3
EVERY = pytest.mark.parametrize("name", BY_NAME)
STRUCTURES: dict[str, Any] = {
    "full": lw.Full(),
    "block": lw.Block(),
    "diag": lw.Diag(),
    "kron": lw.Kron(),
    "kron reduce": lw.Kron(approx="reduce"),
    "kron joint": lw.Kron(bias="joint"),
    "ekfac": lw.EKFAC(),
}
DRAWABLE = [case.name for case in CASES if not isinstance(case.likelihood, lw.Custom) or case.likelihood.sample]


def fit(case: LikelihoodCase, structure: Any, curvature: Any = "ggn", **options: Any) -> lw.Laplace:
    """A fit of a case on the device under test."""
    return fitted(case.model, case.x, case.y, case.likelihood, structure, curvature=curvature, **options)


def form_of(case: LikelihoodCase, f: Tensor | None = None) -> Form:
    """Where the outputs are, found by the likelihood."""
    return case.likelihood.form(case.f if f is None else f, case.y)


def drawn(case: LikelihoodCase, sample: int, seed: int = DEFAULT_SEED) -> Tensor:
    """Targets (N, ...) that a fit draws from the network."""
    form = form_of(case)
    likelihood, f = case.likelihood.bound(form), form.flatten(case.f)
    draws = Hashed(seed, torch.arange(len(f)), form.positions, sample)
    if isinstance(likelihood, lw.Custom):
        assert likelihood.sample is not None
        return likelihood.sample(case.f, draws.uniform(f.shape[-1])[:, 0])
    labels = likelihood.sample(f, likelihood.targets(case.y, form), draws)
    if isinstance(likelihood, lw.Categorical):
        shape = [size for axis, size in enumerate(case.f.shape) if axis != (form.axis or 0) + 1]
        return labels.reshape(shape)
    if form.axis is None:
        return labels.reshape(case.y.shape)
    positions = form.shape[: form.axis] + form.shape[form.axis + 1 :]
    return labels.reshape(len(f), *positions, -1).movedim(-1, form.axis + 1).reshape(case.y.shape)


@functools.cache
def columns(name: str, kind: str) -> Tensor:
    """(N, F, K): of the output curvature, by the definition."""
    case = BY_NAME[name]
    return case.columns(kind, [drawn(case, sample) for sample in range(DRAWS)] if kind == "fisher" else None)


def expected(case: LikelihoodCase, structure: str, kind: str, la: lw.Laplace) -> Tensor:
    """(D, D): the dense curvature of a structure, noise included."""
    if kind == "hessian":
        return case.hessian
    if structure.startswith("kron") or structure == "ekfac":
        approx = "reduce" if "reduce" in structure else "expand"
        bias = "joint" if "joint" in structure else "separate"
        blocks, whole = case.blocks(columns(case.name, kind), approx=approx, bias=bias)
        if structure != "ekfac":
            return reference.kron_of(blocks, whole)
        bases = {block.key: own_bases(la, block.index, torch.arange(la.D)) for block in blocks}
        return reference.ekfac_of(blocks, whole, {key: own for key, own in bases.items() if own is not None})
    exact = case.full(columns(case.name, kind))
    if structure == "diag":
        return torch.diag(exact.diagonal())
    if structure == "block":
        sizes = torch.tensor([case.model.get_parameter(name).numel() for name in case.names])
        owner = [name.rpartition(".")[0] for name in case.names]
        number = torch.tensor([owner.index(each) for each in owner]).repeat_interleave(sizes)
        return exact * (number[:, None] == number)
    return exact


def kinds_of(case: LikelihoodCase, structure: str) -> list[str]:
    """Curvatures that a structure has of a likelihood."""
    kinds = ["ggn", "empirical"]
    if case.name in DRAWABLE:
        kinds.append("fisher")
    return [*kinds, "hessian"] if structure == "full" else kinds


@EVERY
@pytest.mark.parametrize("structure", STRUCTURES)
def test_curvature_evidence_and_covariance(name: str, structure: str) -> None:
    """Precision, log evidence with all constants and joint covariance of the outputs equal the dense ones."""
    case = BY_NAME[name]
    theta = weights_of(case.model)
    ones = torch.ones_like(theta)
    for kind in kinds_of(case, structure):
        la = fit(case, STRUCTURES[structure], lw.MonteCarlo(DRAWS) if kind == "fisher" else kind, prior=1.0)
        dense_curvature = expected(case, structure, kind, la)
        assert relative(curvature_of(la), dense_curvature) < EXACT, kind
        delta = 0.7 if kind != "hessian" else 1 - 2 * float(torch.linalg.eigvalsh(dense_curvature)[0].clamp(max=0))
        la = la.with_prior(delta)
        evidence = dense.log_evidence(-case.total, dense_curvature, theta, 0 * ones, delta * ones)
        assert relative(la.log_evidence(), evidence) < EXACT, kind
        covariance = dense.posterior(dense_curvature, delta * ones)
        joint = dense.joint_functional_covariance(case.jacobian, covariance)
        made = la.functional(moved(case.x), joint=True)
        assert relative(made.cov.reshape(joint.shape), joint) < EXACT, kind
        assert relative(made.mean, case.f) < 1e-12
    assert la.N == EXAMPLES and la.totals.form == form_of(case)
