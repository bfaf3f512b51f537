"""Every network of the table against dense float64 loops: curvature in every structure, and what follows from it."""

from __future__ import annotations

import pytest
import torch

import peewit as pw
import reference
import reference_dense as dense
from peewit.curvature.structures import NAMES as STRUCTURES
from peewit.posterior.network import network_of
from peewit.runtime.random import Hashed
from tables import NAMES, ROUTED, curvature_of, moved, own_bases, relative, table, tolerance

EVERY = pytest.mark.parametrize("name", NAMES)
EXACT = 1e-8


@EVERY
def test_full_diag_and_block_are_the_exact_curvature(name: str) -> None:
    """Equal to the dense GGN, its diagonal, and its blocks by module; weights left out have no curvature."""
    case = table(name)
    la = case.fit("full")
    index = case.index(la)
    left_out = [place for place in range(len(case.ggn)) if place not in set(index.tolist())]
    assert case.ggn[left_out].abs().sum() == 0
    exact = case.ggn[index][:, index]
    assert relative(curvature_of(la), exact) < tolerance(name, EXACT)
    assert relative(curvature_of(case.fit("diag")), torch.diag(exact.diagonal())) < tolerance(name, EXACT)
    modules = torch.tensor(
        [
            place
            for name in la.space.names
            for place in [sorted({n.rpartition(".")[0] for n in la.space.names}).index(name.rpartition(".")[0])]
            * case.model.get_parameter(name).numel()
        ]
    )
    blocks = exact * (modules[:, None] == modules[None, :])
    assert relative(curvature_of(case.fit("block")), blocks) < tolerance(name, EXACT)


@EVERY
@pytest.mark.parametrize("bias", ["separate", "joint"])
@pytest.mark.parametrize("approx", ["expand", "reduce"])
def test_kron_is_the_dense_kronecker_product(name: str, approx: str, bias: str) -> None:
    """Equal to the Kronecker products of factors made by loops."""
    case = table(name)
    la = case.fit(pw.Kron(approx=approx, bias=bias))
    index = case.index(la)
    generic = frozenset(row.name for row in la.coverage() if row.rule == "generic") if name in ROUTED else frozenset()
    expected = case.kron(generic, approx=approx, bias=bias)[index][:, index]
    assert relative(curvature_of(la), expected) < tolerance(name, EXACT)


@EVERY
def test_ekfac_is_the_dense_corrected_kronecker_product(name: str) -> None:
    """Our bases diagonalise factors made by loops, and the curvature has the exact second moments along them."""
    case = table(name)
    bias = ("separate", "joint")[NAMES.index(name) % 2]
    la = case.fit(pw.EKFAC(bias=bias))
    index = case.index(la)
    generic = frozenset(row.name for row in la.coverage() if row.rule == "generic") if name in ROUTED else frozenset()
    blocks, whole = case.blocks(generic, bias=bias)
    bases = {}
    for block in blocks:
        if block.exact is None and (found := own_bases(la, block.index, index)) is not None:
            bases[block.key] = found
            for basis, factor in zip(found, (block.row_factor, block.column_factor), strict=True):
                turned = basis.T @ factor @ basis
                assert relative(turned, torch.diag(turned.diagonal())) < tolerance(name, 1e-8)
                assert relative(basis.T @ basis, torch.eye(len(basis), dtype=torch.float64)) < 1e-8
    assert bases or all(block.exact is not None for block in blocks)
    expected = reference.ekfac_of(blocks, whole, bases)[index][:, index]
    assert relative(curvature_of(la), expected) < tolerance(name, EXACT)


@EVERY
def test_other_curvatures(name: str) -> None:
    """Empirical and Monte Carlo Fisher equal loops over the same labels; structures take turns over the table."""
    case = table(name)
    settings = case.case.likelihood, case.names, case.case.axis
    la = case.fit("full", "empirical")
    index = case.index(la)
    expected = dense.empirical(case.model, case.x, case.y, *settings)[index][:, index]
    assert relative(curvature_of(la), expected) < tolerance(name, EXACT)
    factored = case.fit(pw.Kron(), "empirical")
    generic = frozenset(row.name for row in la.coverage() if row.rule == "generic") if name in ROUTED else frozenset()
    assert relative(curvature_of(factored), case.kron(generic, curvature="empirical")[index][:, index]) < tolerance(
        name, EXACT
    )

    samples = 3
    la = case.fit("full", pw.MonteCarlo(samples))
    f = dense.outputs(case.model, case.x)
    form = case.likelihood.form(f, case.y)
    targets = case.likelihood.targets(case.y, form)
    drawn = []
    for sample in range(samples):
        draws = Hashed(0x1A9, torch.arange(len(f)), form.positions, sample)
        labels = case.likelihood.sample(form.flatten(f), targets, draws)
        drawn.append(form.restore(labels) if labels.dim() == 3 else labels.reshape(case.y.shape))
    expected = dense.fisher(case.model, case.x, drawn, *settings)[index][:, index]
    assert relative(curvature_of(la), expected) < tolerance(name, EXACT)


@EVERY
@pytest.mark.parametrize("structure", STRUCTURES)
def test_posterior_and_functional_covariance(name: str, structure: str) -> None:
    """From the operator's own dense curvature: every method, and output covariances against the dense Jacobian."""
    case = table(name)
    la = case.fit(structure).with_prior(0.7)
    curvature = curvature_of(la.with_prior(1.0))
    index = case.index(la)
    covariance = dense.posterior(curvature, torch.full((la.D,), 0.7, dtype=torch.float64))
    identity = torch.eye(la.D, dtype=la.weights.dtype, device=la.weights.device)
    root = la.precision.root(identity)
    assert relative(la.precision.solve(identity), covariance) < 1e-8
    assert relative(root.T @ root, covariance) < 1e-8
    assert relative(la.precision.variance(), covariance.diagonal()) < 1e-8
    assert relative(la.precision.logdet(), -torch.logdet(covariance)) < 1e-8

    jacobian = case.jacobian[:, :, index]
    examples, outputs = jacobian.shape[:2]
    x = moved(case.x)
    joint = la.functional(x, joint=True)
    assert relative(joint.mean, dense.outputs(case.model, case.x)) < tolerance(name, 1e-10)
    expected = dense.joint_functional_covariance(jacobian, covariance)
    assert relative(joint.cov.reshape(examples * outputs, -1), expected) < tolerance(name, EXACT)
    marginal = dense.functional_covariance(jacobian, covariance)
    variance = la.functional(x, variance_only=True).cov.reshape(examples, -1)
    assert relative(variance, marginal.diagonal(dim1=1, dim2=2)) < tolerance(name, EXACT)
    places = network_of(la.state, None).form(joint.mean)
    order = places.flatten(torch.arange(outputs).reshape(places.shape))
    blocks = torch.stack([marginal[:, place][:, :, place] for place in order], 1)
    cov = la.functional(x).cov
    assert relative(cov.reshape(blocks.shape), blocks) < tolerance(name, EXACT)
    # Function samples are J times a draw: the same draw of the weights, pushed through the dense Jacobian.
    draws = la.sample(3, generator=torch.Generator().manual_seed(1)) - la.weights
    samples = la.functional_samples(x, 3, generator=torch.Generator().manual_seed(1)) - joint.mean
    pushed = torch.einsum("nfd,sd->snf", jacobian, draws.cpu())
    assert relative(samples.reshape(pushed.shape), pushed) < tolerance(name, EXACT)
