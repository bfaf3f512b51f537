"""curvlinops and laplace-torch where they are right: small networks without groups, norms or tied weights."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import peewit as pw
from environment import DEVICE
from fitting import built, classes, fitted, normal
from tables import curvature_of, moved, relative

curvlinops = pytest.importorskip("curvlinops")

NETWORKS = ("mlp", "cnn")
LIKELIHOODS = ("classification", "regression")
ONE_OF_EACH = [pytest.param(name, likelihood) for name in NETWORKS for likelihood in LIKELIHOODS]
EVERY = pytest.mark.parametrize(("name", "likelihood"), ONE_OF_EACH)


def made(name: str, likelihood: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A small network with data, float64 on the CPU."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        if name == "mlp":
            model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
            x = normal(9, 4)
        else:
            layers = [nn.Conv2d(2, 3, 3, padding=1, stride=2), nn.Tanh(), nn.Conv2d(3, 4, 2), nn.Tanh(), nn.Flatten()]
            model = nn.Sequential(*layers, nn.Linear(4, 3))
            x = normal(9, 2, 4, 4)
        model = built(model)
    return model, x, classes(3, 9) if likelihood == "classification" else normal(9, 3, seed=2)


def dense_of(operator: Any, size: int) -> Tensor:
    """(D, D) of a linear operator."""
    return (operator @ torch.eye(size, dtype=torch.float64, device=DEVICE)).detach().cpu()


def arguments(model: nn.Module, x: Tensor, y: Tensor, likelihood: str) -> tuple[Any, ...]:
    """What curvlinops takes, with sums over the data."""
    model = copy.deepcopy(model).to(DEVICE)
    loss = nn.CrossEntropyLoss(reduction="sum") if likelihood == "classification" else nn.MSELoss(reduction="sum")
    batches = [(moved(x[:4]), moved(y[:4])), (moved(x[4:]), moved(y[4:]))]
    return model, loss.to(DEVICE), list(model.parameters()), batches


@EVERY
@pytest.mark.parametrize("kind", ["ggn", "empirical", "hessian"])
def test_curvlinops_full_matrices(name: str, likelihood: str, kind: str) -> None:
    """Its squared error has no half: twice the curvature, and four times the empirical Fisher."""
    model, x, y = made(name, likelihood)
    operators = {
        "ggn": curvlinops.GGNLinearOperator,
        "empirical": curvlinops.EFLinearOperator,
        "hessian": curvlinops.HessianLinearOperator,
    }
    la = fitted(model, x, y, likelihood, "full", curvature=kind)
    factor = {"classification": 1, "regression": 4 if kind == "empirical" else 2}[likelihood]
    expected = dense_of(operators[kind](*arguments(model, x, y, likelihood)), la.D) / factor
    assert relative(curvature_of(la), expected) < 1e-7
    diagonal = fitted(model, x, y, likelihood, "diag", curvature=kind if kind != "hessian" else "ggn")
    if kind != "hessian":
        assert relative(curvature_of(diagonal).diagonal(), expected.diagonal()) < 1e-7


@EVERY
@pytest.mark.parametrize("approx", ["expand", "reduce"])
@pytest.mark.parametrize("bias", ["separate", "joint"])
@pytest.mark.parametrize("kind", ["ggn", "empirical"])
def test_curvlinops_kronecker_factors(name: str, likelihood: str, approx: str, bias: str, kind: str) -> None:
    """KFAC with the exact output curvature, or with observed labels."""
    model, x, y = made(name, likelihood)
    operator = curvlinops.KFACLinearOperator(
        *arguments(model, x, y, likelihood),
        fisher_type="type-2" if kind == "ggn" else "empirical",
        kfac_approx=approx,
        separate_weight_and_bias=bias == "separate",
    )
    la = fitted(model, x, y, likelihood, pw.Kron(approx=approx, bias=bias), curvature=kind)
    factor = {"classification": 1, "regression": 4 if kind == "empirical" else 2}[likelihood]
    assert relative(curvature_of(la), dense_of(operator, la.D) / factor) < 1e-7


@EVERY
def test_curvlinops_corrected_eigenvalues(name: str, likelihood: str) -> None:
    """EKFAC with the exact output curvature."""
    model, x, y = made(name, likelihood)
    operator = curvlinops.EKFACLinearOperator(*arguments(model, x, y, likelihood), fisher_type="type-2")
    la = fitted(model, x, y, likelihood, "ekfac")
    factor = 1 if likelihood == "classification" else 2
    assert relative(curvature_of(la), dense_of(operator, la.D) / factor) < 1e-7


@contextlib.contextmanager
def double() -> Iterator[None]:
    """For laplace-torch, which makes its own tensors in the default type."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(default)


def laplace_of(
    model: nn.Module, x: Tensor, y: Tensor, likelihood: str, backend: str, structure: str, **options: Any
) -> Any:
    """A fit by laplace-torch with one of its backends."""
    laplace = pytest.importorskip("laplace")
    theirs = laplace.Laplace(
        copy.deepcopy(model),
        likelihood,
        hessian_structure=structure,
        backend=getattr(laplace.curvature, backend),
        **options,
    )
    theirs.fit(DataLoader(TensorDataset(x, y), batch_size=9))
    return theirs


@EVERY
@pytest.mark.parametrize("structure", ["full", "diag", "kron"])
@pytest.mark.parametrize("weights", ["all", "last_layer"])
def test_laplace_torch(name: str, likelihood: str, structure: str, weights: str) -> None:
    """Posterior precision, functional covariance and log marginal likelihood."""
    model, x, y = made(name, likelihood)
    sigma = 1.0 if likelihood == "classification" else 0.6
    with double():
        options = {"subset_of_weights": weights, "prior_precision": 1.3, "sigma_noise": sigma}
        theirs = laplace_of(model, x, y, likelihood, "CurvlinopsGGN", structure, **options)
        evidence = theirs.log_marginal_likelihood().detach()
        mean, cov = theirs._glm_predictive_distribution(x)
    family = pw.Gaussian(noise=sigma) if likelihood == "regression" else likelihood
    la = fitted(model, x, y, family, structure, weights=weights, prior=1.3)
    made_of = la.functional(moved(x))
    assert relative(made_of.mean, mean.detach()) < 1e-10
    assert relative(made_of.cov, cov.detach()) < 1e-6
    assert relative(la.log_evidence(), evidence) < 1e-7


BACKENDS = [("AsdlGGN", "ggn", "full"), ("AsdlGGN", "ggn", "diag"), ("AsdlGGN", "ggn", "kron")]
BACKENDS += [("AsdlEF", "empirical", "full"), ("AsdlEF", "empirical", "diag"), ("AsdlEF", "empirical", "kron")]
BACKENDS += [("AsdlHessian", "hessian", "full")]


@EVERY
@pytest.mark.parametrize(("backend", "kind", "structure"), BACKENDS)
@pytest.mark.filterwarnings("ignore:Using a non-full backward hook:FutureWarning:torch.nn.modules.module")
def test_laplace_torch_on_asdl(name: str, likelihood: str, backend: str, kind: str, structure: str) -> None:
    """With the version that it asks for. Its empirical Fisher of a squared error is twice that of half of it."""
    pytest.importorskip("asdl")
    model, x, y = made(name, likelihood)
    prior = 1.3 if kind != "hessian" else 40.0  # above the most negative curvature
    with double():
        options = {"subset_of_weights": "all", "prior_precision": prior}
        theirs = laplace_of(model, x, y, likelihood, backend, structure, **options)
        found = theirs.posterior_precision
        dense = found.to_matrix() if structure == "kron" else found.diag() if structure == "diag" else found
        jacobian, mean = theirs.backend.jacobians(x)
        cov = theirs.functional_variance(jacobian)
    factor = 2 if kind == "empirical" and likelihood == "regression" else 1
    la = fitted(model, x, y, likelihood, structure, curvature=kind, prior=prior / factor)
    identity = torch.eye(la.D, dtype=torch.float64, device=DEVICE)
    assert relative(factor * la.precision.mv(identity), dense.detach()) < 1e-10
    made_of = la.functional(moved(x))
    assert relative(made_of.mean, mean.detach()) < 1e-10
    assert relative(made_of.cov / factor, cov.detach()) < 1e-10
