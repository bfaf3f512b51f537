"""Priors by unit and by curvature, and the temperature: against dense matrices, with gradients by differences."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lapwing as lw
import reference_dense as dense
from conftest import DEVICE
from fitting import built, classes, fitted, normal, weights_of
from lapwing.priors import FLOOR
from lapwing.space import Space
from tables import Table, curvature_of, moved, relative, table
from test_evidence import EVERY, EXACT, NOISE, curvature, definition, differences, fit, positive, sizes

ELEMENTWISE = ("diag", "block", "full")
NETWORKS = pytest.mark.parametrize("name", ["mlp", "mlp_regression", "token_regression", "batch_norm1d"])


def units(case: Table) -> Tensor:
    """(D,): the number of each weight's unit, counted by hand."""
    numbers, start = [], 0
    for name in case.names:
        parameter = case.model.get_parameter(name)
        rows = torch.arange(start, start + len(parameter)).reshape(-1, *[1] * (parameter.dim() - 1))
        numbers.append(rows.expand_as(parameter).flatten())
        start += len(parameter)
    return torch.cat(numbers)


def holds_units(structure: str) -> bool:
    """Whether a structure has one precision per row of a weight and another per element of its bias."""
    return structure in ELEMENTWISE or structure in ("kron", "kron reduce")


@EVERY
@NETWORKS
@pytest.mark.parametrize("kind", ["ggn", "empirical"])
def test_unitwise_priors(name: str, structure: str, kind: str) -> None:
    """Evidence, its gradient in every unit and in the noise, and covariances: those of the dense definition."""
    if not holds_units(structure):
        return
    case = table(name)
    value, group = definition(case, structure, kind), units(case)
    precisions = positive(int(group.max()) + 1).requires_grad_()
    noise = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    la = fit(case, structure, kind)
    prior = lw.Prior.unitwise(precisions, mean=0.1)
    regression = case.case.likelihood == "regression"
    made = la.log_evidence(prior=prior, noise=noise if regression else None)
    at = precisions.detach()
    assert relative(made.detach(), value(at[group], 0.1, 0.8)) < EXACT
    gradient = torch.autograd.grad(made, [precisions, noise] if regression else [precisions])
    assert relative(gradient[0], differences(lambda p: value(p[group], 0.1, 0.8), at)) < 1e-6
    if regression:
        expected = differences(lambda n: value(at[group], 0.1, float(n)), noise.detach()[None])[0]
        assert relative(gradient[1], expected) < 1e-6


@EVERY
@pytest.mark.parametrize("name", ["mlp", "mlp_regression", "conv2d_groups", "conv_transpose2d", "embedding_padding"])
def test_gradients_of_units_that_happen_to_agree(name: str, structure: str) -> None:
    """At equal precisions every unit has its own gradient, not one of them all."""
    case = table(name)
    if not holds_units(structure):
        return
    value, group = definition(case, structure), units(case)
    precisions = torch.full((int(group.max()) + 1,), 0.7, dtype=torch.float64, requires_grad=True)
    la = fit(case, structure)
    (gradient,) = torch.autograd.grad(la.log_evidence(prior=lw.Prior.unitwise(precisions)), precisions)
    assert relative(gradient, differences(lambda p: value(p[group]), precisions.detach())) < 1e-6


@pytest.mark.parametrize("name", ["mlp", "conv2d_groups", "conv_transpose2d", "embedding_padding"])
@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_covariances_under_unitwise_priors(name: str, structure: str) -> None:
    """The posterior covariance and that of the outputs are the dense ones."""
    case = table(name)
    la = fit(case, structure)
    prior = lw.Prior.unitwise(positive(lw.Prior.unitwise().count(la.space)))
    chosen = la.with_prior(prior)
    delta = prior.delta(la.space, la.mode).cpu()
    covariance = torch.linalg.inv(curvature_of(la) + torch.diag(delta))
    assert relative(chosen.precision.variance(), covariance.diagonal()) < 1e-9
    expected = dense.functional_covariance(case.jacobian[:, :, case.index(la)], covariance)
    made = chosen.functional(moved(case.x))
    if made.mean.dim() == 2:
        assert relative(made.cov, expected) < 1e-9


@pytest.mark.parametrize(
    ("structure", "words"),
    [("kron joint", r"no product of one per row.*Kron\(bias='separate'\).*'full'"), ("ekfac", "structure='kron'")],
)
def test_unitwise_priors_that_are_refused(structure: str, words: str) -> None:
    """With the alternatives; also where all units have the same precision and a gradient or tuning is asked for."""
    la = fit(table("mlp"), structure)
    count = lw.Prior.unitwise().count(la.space)
    even = torch.full((count,), 0.5, dtype=torch.float64)
    for ask in (
        lambda: la.log_evidence(prior=lw.Prior.unitwise(positive(count))),
        lambda: la.log_evidence(prior=lw.Prior.unitwise(even.clone().requires_grad_())),
        lambda: la.with_prior(lw.Prior.unitwise(even)).tune(),
        lambda: la.with_prior(lw.Prior.unitwise(2.0)).tune("fixed_point"),
    ):
        with pytest.raises(ValueError, match=words):
            ask()
    # One number for all units is a scalar prior, which every structure holds.
    assert torch.equal(la.log_evidence(prior=lw.Prior.unitwise(even)), la.log_evidence(prior=0.5))


def test_units_and_their_names() -> None:
    """Rows of a matrix, channels of a convolution, elements of a vector; with masks those that are selected."""
    space = Space(("conv.weight", "conv.bias", "gain"), (torch.Size([2, 3, 2]), torch.Size([2]), torch.Size([])))
    prior = lw.Prior.unitwise(torch.arange(1.0, 6.0))
    assert prior.count(space) == 5
    assert prior.group(space).tolist() == [0] * 6 + [1] * 6 + [2, 3, 4]
    assert list(prior.names(space)) == ["conv.weight[0]", "conv.weight[1]", "conv.bias[0]", "conv.bias[1]", "gain[0]"]
    kept = space.only(["conv.bias", "gain"])
    assert prior.only(space, kept).precision.tolist() == [3.0, 4.0, 5.0]
    mask = torch.zeros(15, dtype=torch.bool)
    mask[[1, 12, 14]] = True
    masked = Space(space.names, space.shapes, mask)
    assert prior.group(masked).tolist() == [0, 2, 4]
    assert prior.delta(masked, torch.zeros(3)).tolist() == [1.0, 3.0, 5.0]
    assert list(lw.Prior.diagonal().names(masked)) == ["conv.weight[1]", "conv.bias[0]", "gain[0]"]
    assert list(lw.Prior.diagonal().names(space)[11:14]) == ["conv.weight[11]", "conv.bias[0]", "conv.bias[1]"]
    assert lw.Prior.unitwise(torch.arange(1.0, 6.0)).only(masked, masked.only(["conv.bias"])).precision.tolist() == [
        3,
        4,
    ]
    for wrong in ([1.0, 2.0], -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"expected 1 or 5|positive"):
            lw.Prior.unitwise(wrong).count(space)


def floor_by_hand(diagonal: Tensor, lengths: list[int]) -> Tensor:
    """At least a share of each tensor's mean."""
    return torch.cat([piece.maximum(FLOOR * piece.mean()) for piece in diagonal.split(lengths)])


@EVERY
@NETWORKS
def test_g_priors(name: str, structure: str) -> None:
    """`delta = factor diag(H) / N`: ratios of the curvature that is used, the evidence and its gradient dense ones."""
    case = table(name)
    if structure == "ekfac":
        with pytest.raises(
            ValueError, match=r"cannot hold exactly; use a scalar or layerwise prior, or structure='diag'"
        ):
            fit(case, structure, prior=lw.Prior.g_prior(2.0)).log_evidence()
        return
    if structure == "kron joint" and name == "batch_norm1d":
        return
    la = fit(case, structure, prior=lw.Prior.g_prior(2.0))
    exact = curvature(case, structure, "ggn").diagonal()
    base = la.prior.delta(la.space, la.mode).cpu() / 2.0
    expected = floor_by_hand(exact, sizes(case).tolist()) / la.N
    if structure in ELEMENTWISE:
        assert relative(base, expected) < EXACT
    clear = exact > 0.1 * exact.mean()  # no floor, on either side of a product
    assert bool(((base / (exact / la.N) - 1).abs()[clear] < 1e-8).all())
    assert bool((base > 0).all())
    value = definition(case, structure)
    factor = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    made = la.log_evidence(prior=la.prior.with_precision(factor))
    assert relative(made.detach(), value(0.6 * base)) < EXACT
    (gradient,) = torch.autograd.grad(made, factor)
    assert relative(gradient, differences(lambda p: value(p * base), factor.detach()[None])[0]) < 1e-6


def test_g_priors_are_bound_once() -> None:
    """At the fit, by `with_prior` or when asked; unbound ones and those of other weights say what to do."""
    case = table("mlp")
    la = case.fit("full")
    bound = la.with_prior(lw.Prior.g_prior(3.0))
    assert bound.prior.base is not None and bound.prior.bound(la.curvature, 7) is bound.prior
    assert torch.equal(la.log_evidence(prior=lw.Prior.g_prior(3.0)), bound.log_evidence())
    assert torch.equal(case.fit("full", prior=lw.Prior.g_prior(3.0)).log_evidence(), bound.log_evidence())
    assert torch.equal(bound.with_prior(bound.prior.with_precision(3.0)).log_evidence(), bound.log_evidence())
    with pytest.raises(ValueError, match=r"Prior.g_prior takes its ratios from a curvature; use la.with_prior"):
        lw.Prior.g_prior(1.0).delta(la.space, la.mode)
    with pytest.raises(ValueError, match=r"was bound to the curvature of \d+ weights.*give an unbound"):
        table("mlp_regression").fit("full", prior=bound.prior)
    with pytest.raises(ValueError, match="expected one factor"):
        lw.Prior.g_prior(torch.ones(2))


@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_g_priors_of_weights_without_curvature(structure: str) -> None:
    """A floor holds them: finite, and the same predictions in other units of a feature."""
    model = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    x = normal(9, 3)
    x[:, 1] = 0.0  # no curvature in a column of the first weight
    la = fitted(model, x, classes(2, 9), "classification", structure, prior=lw.Prior.g_prior(0.3))
    delta = la.prior.delta(la.space, la.mode)
    assert bool((delta > 0).all()) and bool(torch.isfinite(la.log_evidence()))
    assert bool(torch.isfinite(la.functional(moved(normal(2, 3, seed=4))).cov).all())


@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_g_priors_follow_the_units_of_the_inputs(structure: str) -> None:
    """Inputs in other units, weights in the inverse ones: no evidence and no covariance changes."""
    model = built(nn.Linear(3, 2))  # no unit without curvature, which the floor would hold
    x, y = normal(9, 3), classes(2, 9)
    factors = torch.tensor([0.5, 3.0, 4.0], dtype=torch.float64)
    other = built(nn.Linear(3, 2))
    other.load_state_dict(model.state_dict())
    with torch.no_grad():
        other.weight /= factors
    prior = lw.Prior.g_prior(0.3)
    first = fitted(model, x, y, "classification", structure, prior=prior)
    second = fitted(other, x * factors, y, "classification", structure, prior=prior)
    assert relative(second.log_evidence(), first.log_evidence().cpu()) < EXACT
    new = normal(2, 3, seed=4)
    assert relative(second.functional(moved(new * factors)).cov, first.functional(moved(new)).cov.cpu()) < EXACT
    assert relative(second.with_prior(0.3).log_evidence(), first.with_prior(0.3).log_evidence().cpu()) > 1e-3


@EVERY
@pytest.mark.parametrize("kind", ["ggn", "empirical"])
@pytest.mark.parametrize("name", ["mlp", "mlp_regression"])
def test_temperature(name: str, structure: str, kind: str) -> None:
    """Log-likelihood and curvature are divided by it once, also where the scale enters squared; the prior is not."""
    case = table(name)
    la = fit(case, structure, kind, prior=0.7)
    warm = la.with_temperature(2.5)
    assert la.temperature == 1.0 and warm.temperature == 2.5
    regression = case.case.likelihood == "regression"
    strength = (NOISE ** (-2 * (2 if kind == "empirical" else 1)) if regression else 1.0) / 2.5
    matrix, theta = curvature(case, structure, kind), weights_of(case.model)
    identity = torch.eye(len(theta), dtype=torch.float64)
    assert relative(warm.precision.mv(moved(identity)), strength * matrix + 0.7 * identity) < EXACT
    energy = dense.energy(case.model, case.x, case.y, case.case.likelihood, case.case.axis)
    likelihood = dense.log_likelihood(case.case.likelihood, energy, case.y.numel(), NOISE)
    ones = torch.ones_like(theta)
    expected = dense.log_evidence(likelihood / 2.5, matrix, theta, 0 * ones, 0.7 * ones, strength)
    assert relative(warm.log_evidence(), expected) < EXACT
    assert torch.equal(warm.with_temperature(1.0).log_evidence(), la.log_evidence())
    if regression:  # the link keeps its noise
        made = warm.predict(moved(case.x))
        assert made.aleatoric is not None
        assert relative(made.aleatoric, torch.full_like(made.aleatoric.cpu(), NOISE**2)) < EXACT


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_temperatures_that_are_refused(value: float) -> None:
    """Not positive, or not finite."""
    with pytest.raises(ValueError, match="expected a positive number"):
        table("mlp").fit("diag").with_temperature(value)


def test_with_noise() -> None:
    """Another noise is another value, equal to a fit with it; a likelihood without noise has none."""
    case = table("mlp_regression")
    la = case.fit("kron")
    other = la.with_noise(0.3)
    assert relative(other.log_evidence(), la.log_evidence(noise=0.3).cpu()) < 1e-12
    model = case.case.make()[0].to(DEVICE)
    again = lw.fit(model, (moved(case.x), moved(case.y)), lw.Gaussian(0.3), structure="kron", curvature="ggn")
    x = moved(case.x)
    assert relative(other.functional(x).cov, again.functional(x).cov.cpu()) < EXACT
    assert relative(other.predict(x).variance, again.predict(x).variance.cpu()) < EXACT
    assert float(la.likelihood.scale) == 1.0
    refused: list[tuple[Any, Any, str]] = [
        (la, -1.0, "positive standard deviation"),
        (la, float("nan"), "positive standard deviation"),
        (table("mlp").fit("diag"), 1.0, "Categorical has no noise"),
    ]
    for which, noise, words in refused:
        with pytest.raises(ValueError, match=words):
            which.with_noise(noise)
