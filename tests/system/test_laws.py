"""Exact laws: closed forms, weight space against function space, and sums over parts of the data."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
import reference_dense as dense
from environment import DEVICE
from fitting import built, classes, cut, fitted, measured, names_of, normal
from peewit.runtime.random import DEFAULT_SEED
from tables import curvature_of, moved, relative, table

EXACT = 1e-9
EXACT_FOR_LINEAR = ("full", "block", pw.Kron(bias="joint"), pw.EKFAC(bias="joint"))
LAW_CASES = ("mlp", "conv2d", "token_regression", "layer_norm", "gpt_positions")


# 1: the linear model with Gaussian noise has a closed form


@pytest.mark.parametrize("structure", EXACT_FOR_LINEAR, ids=str)
@pytest.mark.parametrize("outputs", [1, 3])
def test_law_1_bayesian_linear_regression(structure: object, outputs: int) -> None:
    """Posterior, functional covariance and evidence of a linear network equal the textbook's."""
    sigma, precision, centre = 0.4, 1.7, 0.3
    x, y, new = normal(12, 3), normal(12, outputs, seed=2), normal(4, 3, seed=3)
    design, design_new = (torch.cat([given, torch.ones(len(given), 1)], 1).double() for given in (x, new))
    posterior = torch.linalg.inv(design.T @ design / sigma**2 + precision * torch.eye(4, dtype=torch.float64))
    mean = posterior @ (design.T @ y / sigma**2 + precision * centre)  # (4, outputs)
    model = nn.Linear(3, outputs).double()
    with torch.no_grad():
        model.weight.copy_(mean[:3].T)
        model.bias.copy_(mean[3])
    prior = pw.Prior.scalar(precision, mean=centre)
    la = fitted(model, x, y, pw.Gaussian(noise=sigma), structure, prior=prior)

    assert relative(la.precision.solve(torch.eye(la.D).to(la.weights))[0, 0].cpu(), posterior[0, 0]) < EXACT
    variances = torch.cat([posterior.diagonal()[:3].repeat(outputs), posterior[3, 3].repeat(outputs)])
    assert relative(la.precision.variance(), variances) < EXACT
    expected = design_new @ posterior @ design_new.T  # (4, 4), the same for every output
    joint = la.functional(moved(new), joint=True)
    assert relative(joint.mean, design_new @ mean) < EXACT
    assert relative(joint.cov, torch.einsum("ab,cd->acbd", expected, torch.eye(outputs, dtype=torch.float64))) < EXACT
    made = la.predict(moved(new))
    assert relative(made.variance, (expected.diagonal() + sigma**2)[:, None].expand(-1, outputs)) < EXACT

    marginal = design @ design.T / precision + sigma**2 * torch.eye(12, dtype=torch.float64)
    residual = y - centre * design.sum(1, keepdim=True)
    evidence = -0.5 * (
        (residual * torch.linalg.solve(marginal, residual)).sum()
        + outputs * torch.logdet(marginal)
        + 12 * outputs * math.log(2 * math.pi)
    )
    assert relative(la.log_evidence(), evidence) < EXACT


# 2 and 8: weight space and function space say the same


@pytest.mark.parametrize("name", LAW_CASES)
def test_law_2_log_determinants_in_function_space(name: str) -> None:
    """`logdet(H + D) - logdet(D) = logdet(I + S^T J D^-1 J^T S)` with `S S^T` the output Hessian."""
    case = table(name)
    la = case.fit("full", prior=pw.Prior.layerwise([0.5 + 0.25 * i for i in range(len(case.names))]))
    delta = la.prior.delta(la.space, la.weights).cpu()
    rows = scaled_rows(case)
    kernel = (rows / delta) @ rows.T
    expected = torch.logdet(torch.eye(len(kernel), dtype=torch.float64) + kernel)
    assert relative(la.precision.logdet().cpu() - delta.log().sum(), expected) < EXACT


def scaled_rows(case: object) -> Tensor:
    """(N F, D): `S^T J` of all examples."""
    root = dense.output_root(case.case.likelihood, dense.outputs(case.model, case.x), case.y, case.case.axis)
    return torch.cat([s.T @ j for s, j in zip(root, case.jacobian, strict=True)])


@pytest.mark.parametrize("name", LAW_CASES)
def test_law_8_the_function_space_posterior(name: str) -> None:
    """Gaussian process regression with the kernel `J D^-1 J^T` on all N points gives the same covariance."""
    case = table(name)
    la = case.fit("full", prior=0.6)
    rows, jacobian = scaled_rows(case), case.jacobian.flatten(0, 1)
    inner = torch.eye(len(rows), dtype=torch.float64) + rows @ rows.T / 0.6
    cross = jacobian @ rows.T / 0.6
    expected = jacobian @ jacobian.T / 0.6 - cross @ torch.linalg.solve(inner, cross.T)
    made = la.functional(moved(case.x), joint=True).cov
    assert relative(made.reshape(expected.shape), expected) < 1e-8


# 4: where Kronecker factors lose nothing


def block_diagonal(model: nn.Module, matrix: Tensor) -> Tensor:
    """The matrix with zeros between different modules."""
    owners = [name.rpartition(".")[0] for name in names_of(model)]
    sizes = torch.tensor([model.get_parameter(name).numel() for name in names_of(model)])
    number = torch.tensor([owners.index(owner) for owner in owners]).repeat_interleave(sizes)
    return matrix * (number[:, None] == number[None, :])


class Pooled(nn.Module):
    """The mean over positions of a linear network."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, I) to (B, O)."""
        return self.body(x).mean(1)


def linear_layers(bias: bool) -> nn.Sequential:
    """Three layers without activations."""
    return nn.Sequential(nn.Linear(3, 4, bias=bias), nn.Linear(4, 4, bias=bias), nn.Linear(4, 2, bias=bias))


@pytest.mark.parametrize("structure", [pw.Kron, pw.EKFAC])
@pytest.mark.parametrize("approx", ["expand", "reduce"])
@pytest.mark.parametrize("bias", [True, False])
def test_law_4_one_example(structure: type, approx: str, bias: bool) -> None:
    """One example without shared positions: every block is the exact one."""
    layers = [nn.Linear(3, 5, bias=bias), nn.Tanh(), nn.Linear(5, 4, bias=bias), nn.GELU(), nn.Linear(4, 3, bias=bias)]
    model = built(nn.Sequential(*layers))
    x, y = normal(1, 3), classes(3, 1)
    expected = block_diagonal(model, dense.ggn(model, x, y, "classification", names_of(model)))
    la = fitted(model, x, y, "classification", structure(approx=approx, bias="joint"))
    assert relative(curvature_of(la), expected) < EXACT


@pytest.mark.parametrize("structure", [pw.Kron, pw.EKFAC])
@pytest.mark.parametrize("approx", ["expand", "reduce"])
@pytest.mark.parametrize("bias", [True, False])
def test_law_4_deep_linear_networks(structure: type, approx: str, bias: bool) -> None:
    """Squared loss per position with `expand`, or of the mean over positions with `reduce`: exact blocks."""
    body = built(linear_layers(bias))
    model = body if approx == "expand" else Pooled(body)
    x, y = normal(6, 4, 3), normal(6, 4, 2, seed=2) if approx == "expand" else normal(6, 2, seed=2)
    expected = block_diagonal(model, dense.ggn(model, x, y, "regression", names_of(model)))
    la = fitted(model, x, y, "regression", structure(approx=approx, bias="joint"))
    assert relative(curvature_of(la), expected) < EXACT
    # The other way of sharing is not exact here, so that the test above could fail.
    other = pw.Kron(approx="reduce" if approx == "expand" else "expand", bias="joint")
    assert relative(curvature_of(fitted(model, x, y, "regression", other)), expected) > 1e-2


CLOSER = (
    "mlp",
    "conv2d",
    "conv2d_groups",
    "token_classifier",
    "tied_linears",
    "self_attention",
    "called_twice",
    "unet",
)


@pytest.mark.parametrize("name", CLOSER)
@pytest.mark.parametrize("bias", ["separate", "joint"])
def test_law_4_the_correction_comes_closer(name: str, bias: str) -> None:
    """`|H - EKFAC|_F <= |H - KFAC|_F`."""
    case = table(name)
    distances = []
    for structure in (pw.EKFAC(bias=bias), pw.Kron(bias=bias)):
        la = case.fit(structure)
        index = case.index(la)
        distances.append(float((curvature_of(la) - case.ggn[index][:, index]).norm()))
    assert distances[0] <= distances[1] * (1 + 1e-9)


# 5 and 6


@pytest.mark.parametrize("name", [*LAW_CASES, "lstm", "tied_gpt", "unused_layer", "conv2d_groups"])
@pytest.mark.parametrize("prior", [0.3, 20.0])
def test_law_5_evidence_grows_with_the_structure(name: str, prior: float) -> None:
    """`evidence(diag) <= evidence(block) <= evidence(full)` at equal prior, each equal to the dense value."""
    case = table(name)
    found = {structure: case.fit(structure, prior=prior) for structure in ("diag", "block", "full")}
    values = [float(la.log_evidence()) for la in found.values()]
    assert values[0] <= values[1] + 1e-9 and values[1] <= values[2] + 1e-9
    assert values[2] - values[0] > 1e-3
    full = found["full"]
    index = case.index(full)
    total = dense.energy(case.model, case.x, case.y, case.case.likelihood, case.case.axis)
    likelihood = dense.log_likelihood(case.case.likelihood, total, case.y.numel())
    expected = dense.log_evidence(
        likelihood,
        case.ggn[index][:, index],
        full.weights.cpu(),
        torch.zeros(full.D, dtype=torch.float64),
        torch.full((full.D,), prior, dtype=torch.float64),
    )
    assert relative(full.log_evidence(), expected) < EXACT


@pytest.mark.parametrize("name", ["mlp", "token_classifier", "mlp_regression"])
def test_law_6_sampled_labels_tend_to_the_exact_curvature(name: str) -> None:
    """The error of the Monte Carlo Fisher falls like one over the root of the samples; the empirical one stays."""
    case = table(name)

    def error(samples: int) -> float:
        squares = [
            (
                curvature_of(case.fit("diag", pw.MonteCarlo(samples), generator=torch.Generator().manual_seed(seed)))
                - exact
            )
            .square()
            .sum()
            for seed in range(8)
        ]
        return math.sqrt(sum(map(float, squares)) / len(squares))

    exact = torch.diag(case.ggn.diagonal())
    few, many = error(8), error(512)
    assert 8 * 0.6 < few / many < 8 * 1.6  # sqrt(512 / 8)
    assert many / float(exact.norm()) < 0.1
    observed = float((curvature_of(case.fit("diag", "empirical")) - exact).norm())
    assert observed > 2 * many and observed / float(exact.norm()) > 0.1


# 9: sums over parts of the data, and batches that do not matter

HALVED = ("mlp", "conv2d", "ignored_labels", "gpt_positions", "batch_norm1d", "tied_functional")


@pytest.mark.parametrize("name", HALVED)
@pytest.mark.parametrize("structure", ["diag", "block", "full"])
def test_law_9_halves_add_up(name: str, structure: str) -> None:
    """The curvature of two parts of the data adds up to the dense one of all."""
    case = table(name)
    parts = cut(case.x, case.y, [2, 3])
    total = sum(
        curvature_of(
            pw.fit(case.case.make()[0].to(DEVICE), [part], case.likelihood, structure=structure, curvature="ggn")
        )
        for part in parts
    )
    expected = {
        "diag": torch.diag(case.ggn.diagonal()),
        "block": block_diagonal(case.model, case.ggn),
        "full": case.ggn,
    }[structure]
    assert relative(total, expected) < EXACT


@pytest.mark.parametrize("name", HALVED)
@pytest.mark.parametrize("approx", ["expand", "reduce"])
def test_law_9_halves_of_factors_add_up(name: str, approx: str) -> None:
    """Both factors and the counts of two parts add up; together they make the dense Kronecker product."""
    case = table(name)
    structure = pw.Kron(approx=approx)
    first, second = (measured(case.model, [part], case.likelihood, structure) for part in cut(case.x, case.y, [2, 3]))
    assert first.factors.keys() == second.factors.keys()
    for key, factors in first.factors.items():
        factors.inputs = factors.inputs + second.factors[key].inputs
        factors.gradients = factors.gradients + second.factors[key].gradients
        factors.count += second.factors[key].count
    for part in first.others:
        first.others[part] = first.others[part] + second.others[part]
    la = case.fit(structure)
    made = structure.curvature(first, la.space).precision(torch.ones_like(la.weights), torch.ones(()).to(la.weights))
    identity = torch.eye(la.D).to(la.weights)
    assert relative((made.mv(identity) - identity).cpu(), case.kron(approx=approx)) < EXACT


@pytest.mark.parametrize("name", ["mlp", "token_classifier"])
def test_law_9_resumed_runs_draw_other_labels(name: str) -> None:
    """Monte Carlo sums of two runs add up to one run's when the second continues the numbering of examples."""
    case = table(name)
    sums = [
        measured(case.model, [part], case.likelihood, pw.Full(), kind=pw.MonteCarlo(2), seed=DEFAULT_SEED, first=first)
        for part, first in zip(cut(case.x, case.y, [2, 3]), (0, 2), strict=True)
    ]
    expected = curvature_of(case.fit("full", pw.MonteCarlo(2)))
    (first,), (second,) = (each.matrices.values() for each in sums)
    assert relative((first + second).cpu(), expected) < EXACT
