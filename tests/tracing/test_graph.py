"""Gradients flow through inputs, output gradients and factors: learning what comes before the network needs them."""

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
from fitting import measured, seeded
from peewit.weights.space import make_space
from tables import Table, moved, relative, table

NAMES = (
    "mlp",
    "mlp_regression",
    "conv2d",
    "conv2d_groups",
    "batch_norm2d",
    "encoder_layer",
    "layer_norm",
    "self_attention",
    "addmm",
    "baddbmm",
    "einsum_attention",
)
STEP = 1e-5


def scaling(case: Table) -> Tensor:
    """One factor per number of an example."""
    generator = seeded(3)
    return torch.rand(case.x.shape[1:], generator=generator, dtype=torch.float64) + 0.5


def sums_at(case: Table, scale: Tensor, structure: Any, **options: Any) -> Any:
    """Sums of a structure on `x * scale`, with their graph."""
    data = [(moved(case.x) * scale, moved(case.y))]
    return measured(case.model, data, case.likelihood, structure, create_graph=True, **options)


def along(function: Callable[[Tensor], Tensor], at: Tensor, direction: Tensor) -> Tensor:
    """The derivative of a dense definition along a direction, by central differences."""
    return (function(at + STEP * direction) - function(at - STEP * direction)) / (2 * STEP)


def check(case: Table, found: Callable[[Tensor], Tensor], definition: Callable[[Tensor], Tensor]) -> None:
    """Our value and its derivative along a random direction equal the definition's."""
    at = scaling(case)
    scale = at.to(DEVICE).requires_grad_()
    value = found(scale)
    assert relative(value.detach(), definition(at)) < 1e-8
    (gradient,) = torch.autograd.grad(value, scale)
    direction = torch.randn(at.shape, generator=seeded(4), dtype=torch.float64)
    assert relative((gradient.cpu() * direction).sum(), along(definition, at, direction)) < 1e-5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("approx", ["expand", "reduce"])
def test_kronecker_factors(name: str, approx: str) -> None:
    """`v^T (G (x) A) v` of every block, from both factors, for a random v."""
    case = table(name)
    v = torch.randn(len(case.ggn), generator=seeded(5), dtype=torch.float64)

    def found(scale: Tensor) -> Tensor:
        sums = sums_at(case, scale, pw.Kron(approx=approx))
        space = make_space(case.model, case.names)
        total = torch.zeros((), dtype=torch.float64, device=DEVICE)
        for (key, flipped), factors in sums.factors.items():
            matrix = sums.layouts[key].to_matrix(moved(v)[space.slice_of(key[0])])
            matrix = matrix.mT if flipped else matrix
            total = total + (matrix * (factors.gradients @ matrix @ (factors.inputs / factors.count))).sum()
        for part, value in sums.others.items():
            own = moved(v)[space.slice_of(part)]
            total = total + (own @ value @ own if value.dim() == 2 else (own.square() * value).sum())
        return total

    def definition(scale: Tensor) -> Tensor:
        case_of = case.case
        matrix = reference.kron(
            case.model, case.x * scale, case.y, case_of.likelihood, case.names, approx=approx, axis=case_of.axis
        )
        return v @ matrix @ v

    check(case, found, definition)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "structure", [pw.Diag(), pw.Block(), pw.Full(), pw.Kron()], ids=["diag", "block", "full", "kron"]
)
def test_log_determinants(name: str, structure: Any) -> None:
    """The part of the evidence that depends on the curvature, as a function of the inputs."""
    case = table(name)
    owner = [each.rpartition(".")[0] for each in case.names]
    sizes = torch.tensor([case.model.get_parameter(each).numel() for each in case.names])
    number = torch.tensor([owner.index(each) for each in owner]).repeat_interleave(sizes)

    def found(scale: Tensor) -> Tensor:
        space = make_space(case.model, case.names)
        curvature = structure.curvature(sums_at(case, scale, structure), space)
        delta = torch.full((space.size,), 0.7, dtype=torch.float64, device=DEVICE)
        return curvature.precision(delta, torch.ones((), dtype=torch.float64, device=DEVICE)).logdet()

    def definition(scale: Tensor) -> Tensor:
        case_of = case.case
        arguments = case.model, case.x * scale, case.y, case_of.likelihood, case.names
        if isinstance(structure, pw.Kron):
            matrix = reference.kron(*arguments, axis=case_of.axis)
        else:
            matrix = dense.ggn(*arguments, case_of.axis)
        if isinstance(structure, pw.Diag):
            matrix = torch.diag(matrix.diagonal())
        elif isinstance(structure, pw.Block):
            matrix = matrix * (number[:, None] == number)
        return torch.logdet(matrix + 0.7 * torch.eye(len(matrix), dtype=torch.float64))

    check(case, found, definition)


@pytest.mark.parametrize("name", ["mlp", "mlp_regression", "conv2d"])
def test_the_empirical_fisher(name: str) -> None:
    """The gradient at the observed label depends on the outputs, and so on the inputs."""
    case = table(name)
    space = make_space(case.model, case.names)

    def found(scale: Tensor) -> Tensor:
        sums = sums_at(case, scale, pw.Diag(), kind=pw.Empirical())
        return pw.Diag().curvature(sums, space).diagonal.sqrt().sum()

    def definition(scale: Tensor) -> Tensor:
        case_of = case.case
        matrix = dense.empirical(case.model, case.x * scale, case.y, case_of.likelihood, case.names, case_of.axis)
        return matrix.diagonal().sqrt().sum()

    check(case, found, definition)


@pytest.mark.parametrize("structure", [pw.Diag(), pw.Kron(), pw.Full()], ids=["diag", "kron", "full"])
def test_values_do_not_depend_on_the_graph(structure: Any) -> None:
    """Keeping the graph changes no number, and without it nothing requires gradients."""
    case = table("conv2d")
    with_graph = sums_at(case, scaling(case).to(DEVICE).requires_grad_(), structure)
    data = [(moved(case.x * scaling(case)), moved(case.y))]
    without = measured(case.model, data, case.likelihood, structure)
    space = make_space(case.model, case.names)
    ones = torch.ones(space.size, dtype=torch.float64, device=DEVICE)
    left, right = (structure.curvature(each, space).precision(ones, ones[0]) for each in (with_graph, without))
    assert relative(left.mv(ones).detach(), right.mv(ones).cpu()) < 1e-12
    assert left.logdet().requires_grad and not right.logdet().requires_grad
