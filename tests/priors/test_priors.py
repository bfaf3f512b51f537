"""Priors by unit and by curvature, and the temperature: against dense matrices, with gradients by differences."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
import reference_dense as dense
from environment import DEVICE
from evidence_cases import EVERY, EXACT, NOISE, curvature, definition, differences, fit, positive, sizes
from fitting import built, classes, fitted, normal, weights_of
from peewit.priors.groupings import GROUPINGS, NAMES, Layerwise, ScaleInvariant, together
from peewit.priors.prior import FLOOR, as_prior
from peewit.weights.space import Space
from tables import Table, curvature_of, moved, relative, table

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
    prior = pw.Prior.unitwise(precisions, mean=0.1)
    regression = case.case.likelihood == "regression"
    made = la.log_evidence(prior=prior, noise=noise if regression else None)
    at = precisions.detach()
    assert relative(made.detach(), value(at[group], 0.1, 0.8)) < EXACT
    gradient = torch.autograd.grad(made, [precisions, noise] if regression else [precisions])
    assert relative(gradient[0], differences(lambda p: value(p[group], 0.1, 0.8), at)) < 1e-6
    if regression:
        expected = differences(lambda n: value(at[group], 0.1, float(n)), noise.detach()[None])[0]
        assert relative(gradient[1], expected) < 1e-6


def inputs(case: Table) -> Tensor:
    """(D,): the number of each weight's input, counted by hand; a tensor with one axis is one."""
    numbers, start = [], 0
    for name in case.names:
        parameter = case.model.get_parameter(name)
        count = parameter.shape[1] if parameter.dim() > 1 else 1
        for place in range(parameter.numel()):
            indices = torch.unravel_index(torch.tensor(place), parameter.shape)
            numbers.append(start + (int(indices[1]) if len(indices) > 1 else 0))
        start += count
    return torch.tensor(numbers)


@EVERY
@pytest.mark.parametrize("name", ["mlp", "mlp_regression", "conv2d_groups", "batch_norm1d"])
def test_inputwise_priors(name: str, structure: str) -> None:
    """Evidence, its gradient in every input's precision, also where all agree, and variances: the dense ones."""
    case = table(name)
    if structure.startswith("ekfac"):
        la = fit(case, structure)
        with pytest.raises(ValueError, match="structure='kron'"):
            la.log_evidence(prior=pw.Prior.inputwise(positive(pw.Prior.inputwise().count(la.space))))
        return
    value, group = definition(case, structure), inputs(case)
    la = fit(case, structure)
    for numbers in (positive(int(group.max()) + 1), torch.full((int(group.max()) + 1,), 0.7, dtype=torch.float64)):
        precisions = numbers.clone().requires_grad_()
        prior = pw.Prior.inputwise(precisions, mean=0.1)
        assert torch.equal(prior.group(la.space), group)
        made = la.log_evidence(prior=prior, noise=0.8 if case.case.likelihood == "regression" else None)
        assert relative(made.detach(), value(numbers[group], 0.1, 0.8)) < EXACT
        (gradient,) = torch.autograd.grad(made, [precisions])
        assert relative(gradient, differences(lambda p: value(p[group], 0.1, 0.8), numbers)) < 1e-6
    chosen = la.with_prior(pw.Prior.inputwise(positive(int(group.max()) + 1)))
    covariance = torch.linalg.inv(curvature_of(la) + torch.diag(chosen.prior.delta(la.space, la.weights).cpu()))
    assert relative(chosen.precision.variance(), covariance.diagonal()) < 1e-9


def test_inputs_and_their_names() -> None:
    """Columns of matrices, channels that a convolution takes; one group where there are none, or not asked for."""
    shapes = tuple(map(torch.Size, ([2, 3, 2], [2], [], [3, 2], [4, 1])))
    space = Space(("conv.weight", "conv.bias", "gain", "fc.weight", "one.weight"), shapes)
    every, first = pw.Prior.inputwise(), pw.Prior.inputwise(weights=["conv"])
    channels = [0, 0, 1, 1, 2, 2] * 2
    assert every.group(space).tolist() == [*channels, 3, 3, 4, *[5, 6] * 3, *[7] * 4]
    assert first.group(space).tolist() == [*channels, 3, 3, 4, *[5] * 6, *[6] * 4]
    names = ["conv.weight[:, 0]", "conv.weight[:, 1]", "conv.weight[:, 2]", "conv.bias", "gain"]
    assert [*every.names(space)] == [*names, "fc.weight[:, 0]", "fc.weight[:, 1]", "one.weight"]
    assert [*first.names(space)] == [*names, "fc.weight", "one.weight"]
    kept = space.only(["gain", "fc.weight"])
    assert every.with_precision(torch.arange(1.0, 9.0)).only(space, kept).precision.tolist() == [5.0, 6.0, 7.0]
    with pytest.raises(ValueError, match=r"Prior.inputwise: 'fcc' fits no parameter of the network"):
        pw.Prior.inputwise(weights=["fc.weight", "fcc"]).refuse_unknown(["fc.weight", "fc.bias"])
    for wrong in ([], 3, [3]):
        with pytest.raises(TypeError, match=r"weights=.* expected the name of a parameter"):
            pw.Prior.inputwise(weights=wrong)  # type: ignore[arg-type]


def test_inputs_that_the_network_ignores_are_switched_off() -> None:
    """MacKay's automatic relevance determination: the evidence itself tells noise from signal."""
    x, _ = normal(60, 4), None
    y = x[:, :1] - 2 * x[:, 2:3] + 0.1 * normal(60, 1, seed=3)
    model = nn.Linear(4, 1, bias=False).double()
    with torch.no_grad():
        model.weight.copy_(torch.linalg.lstsq(x, y).solution.T)
    la = fitted(model, x, y, pw.Gaussian(0.1), "kron", prior=pw.Prior.inputwise()).tune(parameters=["prior"])
    wanted, unwanted = la.prior.precision[[0, 2]], la.prior.precision[[1, 3]]
    assert float(unwanted.min()) > 100 * float(wanted.max())


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
    (gradient,) = torch.autograd.grad(la.log_evidence(prior=pw.Prior.unitwise(precisions)), precisions)
    assert relative(gradient, differences(lambda p: value(p[group]), precisions.detach())) < 1e-6


@pytest.mark.parametrize("name", ["mlp", "conv2d_groups", "conv_transpose2d", "embedding_padding"])
@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_covariances_under_unitwise_priors(name: str, structure: str) -> None:
    """The posterior covariance and that of the outputs are the dense ones."""
    case = table(name)
    la = fit(case, structure)
    prior = pw.Prior.unitwise(positive(pw.Prior.unitwise().count(la.space)))
    chosen = la.with_prior(prior)
    delta = prior.delta(la.space, la.weights).cpu()
    covariance = torch.linalg.inv(curvature_of(la) + torch.diag(delta))
    assert relative(chosen.precision.variance(), covariance.diagonal()) < 1e-9
    expected = dense.functional_covariance(case.jacobian[:, :, case.index(la)], covariance)
    made = chosen.functional(moved(case.x))
    if made.mean.dim() == 2:
        assert relative(made.cov, expected) < 1e-9


@pytest.mark.parametrize(
    ("structure", "words"),
    [("kron joint", r"not the product of one per row.*Kron\(bias='separate'\).*'full'"), ("ekfac", "structure='kron'")],
)
def test_unitwise_priors_that_are_refused(structure: str, words: str) -> None:
    """With the alternatives; also where all units have the same precision and a gradient or tuning is asked for."""
    la = fit(table("mlp"), structure)
    count = pw.Prior.unitwise().count(la.space)
    even = torch.full((count,), 0.5, dtype=torch.float64)
    for ask in (
        lambda: la.log_evidence(prior=pw.Prior.unitwise(positive(count))),
        lambda: la.log_evidence(prior=pw.Prior.unitwise(even.clone().requires_grad_())),
        lambda: la.with_prior(pw.Prior.unitwise(even)).tune(),
        lambda: la.with_prior(pw.Prior.unitwise(2.0)).tune("fixed_point"),
    ):
        with pytest.raises(ValueError, match=words):
            ask()
    # One number for all units is a scalar prior, which every structure holds.
    assert torch.equal(la.log_evidence(prior=pw.Prior.unitwise(even)), la.log_evidence(prior=0.5))


def test_units_and_their_names() -> None:
    """Rows of a matrix, channels of a convolution, elements of a vector; with masks those that are selected."""
    space = Space(("conv.weight", "conv.bias", "gain"), (torch.Size([2, 3, 2]), torch.Size([2]), torch.Size([])))
    prior = pw.Prior.unitwise(torch.arange(1.0, 6.0))
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
    assert list(pw.Prior.diagonal().names(masked)) == ["conv.weight[1]", "conv.bias[0]", "gain[0]"]
    assert list(pw.Prior.diagonal().names(space)[11:14]) == ["conv.weight[11]", "conv.bias[0]", "conv.bias[1]"]
    assert pw.Prior.unitwise(torch.arange(1.0, 6.0)).only(masked, masked.only(["conv.bias"])).precision.tolist() == [
        3,
        4,
    ]
    for wrong in ([1.0, 2.0], -1.0, float("nan")):
        with pytest.raises(ValueError, match=r"expected 1 or 5|positive"):
            pw.Prior.unitwise(wrong).count(space)


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
            fit(case, structure, prior=pw.Prior.g_prior(2.0)).log_evidence()
        return
    if structure == "kron joint" and name == "batch_norm1d":
        return
    la = fit(case, structure, prior=pw.Prior.g_prior(2.0))
    exact = curvature(case, structure, "ggn").diagonal()
    base = la.prior.delta(la.space, la.weights).cpu() / 2.0
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


def test_a_g_prior_that_a_structure_cannot_hold_is_refused_in_float32() -> None:
    """With its sentence: eigenvectors may be in float64 where second moments are not."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)).to(DEVICE)
    data = torch.randn(30, 3).to(DEVICE), (torch.arange(30) % 2).to(DEVICE)
    with pytest.raises(ValueError, match="different precisions inside"):
        pw.fit(model, data, "classification", structure="ekfac", prior=pw.Prior.g_prior(2.0))


def test_g_priors_are_bound_once() -> None:
    """At the fit, by `with_prior` or when asked; unbound ones and those of other weights say what to do."""
    case = table("mlp")
    la = case.fit("full")
    bound = la.with_prior(pw.Prior.g_prior(3.0))
    assert bound.prior.base is not None and bound.state.prior.bind(la.curvature, 7) is bound.state.prior
    assert torch.equal(la.log_evidence(prior=pw.Prior.g_prior(3.0)), bound.log_evidence())
    assert torch.equal(case.fit("full", prior=pw.Prior.g_prior(3.0)).log_evidence(), bound.log_evidence())
    assert torch.equal(bound.with_prior(bound.prior.with_precision(3.0)).log_evidence(), bound.log_evidence())
    with pytest.raises(ValueError, match=r"Prior.g_prior takes its ratios from a curvature; use la.with_prior"):
        pw.Prior.g_prior(1.0).delta(la.space, la.weights)
    with pytest.raises(ValueError, match=r"was bound to the curvature of \d+ weights.*give an unbound"):
        table("mlp_regression").fit("full", prior=bound.prior)
    with pytest.raises(ValueError, match="expected one factor"):
        pw.Prior.g_prior(torch.ones(2))


@pytest.mark.parametrize("structure", ["kron", "diag", "full"])
def test_g_priors_of_weights_without_curvature(structure: str) -> None:
    """A floor holds them: finite, and the same predictions in other units of a feature."""
    model = built(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    x = normal(9, 3)
    x[:, 1] = 0.0  # no curvature in a column of the first weight
    la = fitted(model, x, classes(2, 9), "classification", structure, prior=pw.Prior.g_prior(0.3))
    delta = la.prior.delta(la.space, la.weights)
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
    prior = pw.Prior.g_prior(0.3)
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
    """It divides log-likelihood and curvature once, also where the noise precision enters squared, not the prior."""
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
    again = pw.fit(model, (moved(case.x), moved(case.y)), pw.Gaussian(0.3), structure="kron", curvature="ggn")
    x = moved(case.x)
    assert relative(other.functional(x).cov, again.functional(x).cov.cpu()) < EXACT
    assert relative(other.predict(x).variance, again.predict(x).variance.cpu()) < EXACT
    assert float(la.likelihood.noise_precision) == 1.0
    refused: list[tuple[Any, Any, str]] = [
        (la, -1.0, "positive standard deviation"),
        (la, float("nan"), "positive standard deviation"),
        (table("mlp").fit("diag"), 1.0, "Categorical has no noise"),
    ]
    for which, noise, words in refused:
        with pytest.raises(ValueError, match=words):
            which.with_noise(noise)


SPACE = Space(("a.weight", "a.bias", "b", "c"), tuple(map(torch.Size, ([3, 2], [3], [], [2]))))
MASKED = Space(SPACE.names, SPACE.shapes, torch.tensor([1, 0, 0, 0, 0, 1, 0, 1, 0, 1, 1, 0], dtype=torch.bool))
EVERY_GROUPING: dict[str, tuple[pw.Prior, list[int], list[str]]] = {
    "scalar": (pw.Prior.scalar(2.0), [0] * 12, ["all"]),
    "g_prior": (replace(pw.Prior.g_prior(2.0), base=torch.arange(1.0, 13.0)), [0] * 12, ["all"]),
    "layerwise": (pw.Prior.layerwise([1.0, 2.0, 3.0, 4.0]), [0] * 6 + [1] * 3 + [2, 3, 3], [*SPACE.names]),
    "unitwise": (
        pw.Prior.unitwise(torch.arange(1.0, 10.0)),
        [0, 0, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8],
        [f"a.weight[{i}]" for i in range(3)] + [f"a.bias[{i}]" for i in range(3)] + ["b[0]", "c[0]", "c[1]"],
    ),
    "inputwise": (
        pw.Prior.inputwise(torch.arange(1.0, 6.0)),
        [0, 1] * 3 + [2] * 3 + [3, 4, 4],
        ["a.weight[:, 0]", "a.weight[:, 1]", "a.bias", "b", "c"],
    ),
    "diagonal": (
        pw.Prior.diagonal(torch.arange(1.0, 13.0)),
        [*range(12)],
        [f"a.weight[{i}]" for i in range(6)] + [f"a.bias[{i}]" for i in range(3)] + ["b[0]", "c[0]", "c[1]"],
    ),
    "groups": (
        pw.Prior.groups({"a.b*": 5.0, "a": 6.0, "none": 7.0, "*": 8.0}),
        [1] * 6 + [0] * 3 + [3] * 3,
        ["a.b*", "a", "none", "*"],
    ),
    "scale_invariant": (
        pw.Prior(ScaleInvariant((("a.bias", "c"), ("b",))), torch.tensor([1.0, 2.0, 3.0])),
        [0] * 6 + [1] * 3 + [2] + [1] * 2,
        ["a.weight", "a.bias + c", "b"],
    ),
}


@pytest.mark.parametrize("name", NAMES)
def test_groupings_keep_their_contract(name: str) -> None:
    """Each is a value of its own, says which group each weight is in, and answers what others ask about it."""
    own = EVERY_GROUPING[name][0].grouping
    assert type(own) is NAMES[name] and own.name == name and own == replace(own) and hash(own) == hash(replace(own))
    assert repr(own).startswith(type(own).__name__) and [*NAMES].index(name) == GROUPINGS.index(type(own))
    for space in (SPACE, MASKED):
        groups = own.stretches(space)
        assert groups.count == len(own.names(space)) and int(groups.sizes.sum()) == space.size
        assert own.find_numbers(space, space).tolist() == [*range(groups.count)] and own.carry_over(space, space) in (
            None,
            [0, 1, 2],
        )
    asked = (own.one_for_all, own.one_per_weight, own.within_tensors, own.by_curvature)
    special = {"scalar": (1, 0, 0, 0), "diagonal": (0, 1, 1, 0), "unitwise": (0, 0, 1, 0), "g_prior": (0, 0, 0, 1)}
    special["inputwise"] = special["unitwise"]
    assert asked == special.get(name, (0, 0, 0, 0))
    assert list(own.tensors(SPACE)) == ([] if own.within_tensors else [*SPACE.names])
    assert pw.Prior(name, torch.ones(1)).grouping == NAMES[name]() and pw.Prior(own, torch.ones(1)).grouping is own


@pytest.mark.parametrize("grouping", EVERY_GROUPING)
def test_precisions_weight_by_weight(grouping: str) -> None:
    """Groups, names, precisions and parts of them, with gradients or not, of all weights and of some."""
    prior, numbers, names = EVERY_GROUPING[grouping]
    base = torch.ones(12) if prior.base is None else prior.base
    expected = (prior.precision[torch.tensor(numbers)] * base).float()
    like = torch.zeros(12)
    assert prior.group(SPACE).tolist() == numbers and list(prior.names(SPACE)) == names
    assert prior.count(SPACE) == len(names) == len(prior.names(SPACE))
    torch.testing.assert_close(prior.delta(SPACE, like), expected)
    wide = prior.delta(SPACE, like.double())
    assert wide.dtype == torch.float64
    grown = replace(prior, precision=prior.precision.clone().requires_grad_())
    made = grown.delta(SPACE, like)
    torch.testing.assert_close(made.detach(), expected)
    (slope,) = torch.autograd.grad((made * torch.arange(12.0)).sum(), grown.precision)
    right = torch.zeros(len(prior.precision)).index_add_(0, torch.tensor(numbers), torch.arange(12.0) * base)
    torch.testing.assert_close(slope.float(), right)
    parts = prior.parts(SPACE, like)
    for chosen in (slice(0, 12), slice(2, 3), slice(4, 11)):
        torch.testing.assert_close(parts(chosen), expected[chosen])
    if grouping in ("scalar", "g_prior", "diagonal"):
        return
    shared = replace(prior, precision=torch.tensor([3.0]))
    assert (
        shared.delta(SPACE, like).tolist() == [3.0] * 12
        and shared.parts(SPACE, like)(slice(1, 4)).tolist() == [3.0] * 3
    )
    assert MASKED.mask is not None
    assert prior.delta(MASKED, torch.zeros(5)).tolist() == expected[MASKED.mask].tolist()
    assert prior.group(MASKED).tolist() == torch.tensor(numbers)[MASKED.mask].tolist()


@pytest.mark.parametrize("grouping", EVERY_GROUPING)
@pytest.mark.parametrize("kept", [["a.weight", "b", "c"], ["a.bias"], ["b", "c"], [*SPACE.names]])
def test_precisions_of_the_weights_that_are_left(kept: list[str], grouping: str) -> None:
    """Each of those that stay keeps its precision, mean and ratio."""
    prior, _, _ = EVERY_GROUPING[grouping]
    prior = replace(prior, mean=torch.arange(12.0))
    fewer = SPACE.only(kept)
    left = torch.cat([torch.arange(12)[SPACE.slices()[name]] for name in SPACE.names if name in kept])
    made = prior.only(SPACE, fewer)
    torch.testing.assert_close(made.delta(fewer, torch.zeros(len(left))), prior.delta(SPACE, torch.zeros(12))[left])
    assert made.centre(fewer, torch.zeros(len(left))).tolist() == left.tolist()
    assert (made is prior) is (len(kept) == 4)
    one = replace(prior, precision=torch.tensor([2.0]), mean=0.5).only(SPACE, fewer)
    assert one.precision.tolist() == [2.0] and one.mean == 0.5
    if grouping not in ("diagonal", "g_prior"):
        return
    size = MASKED.size
    numbers = torch.arange(1.0, size + 1)
    own = pw.Prior.diagonal(numbers) if grouping == "diagonal" else replace(prior, base=numbers, mean=0.0)
    assert MASKED.mask is not None
    there = torch.zeros(12, dtype=torch.bool)
    there[left] = True
    fewer = MASKED.only(kept)
    made = own.only(MASKED, fewer)
    expected = own.delta(MASKED, torch.zeros(size))[there[MASKED.mask]]
    torch.testing.assert_close(made.delta(fewer, torch.zeros(fewer.size)), expected)


def test_priors_of_two_weights_and_of_empty_ones() -> None:
    """The least there is: two groups, some elements of them, tensors without elements, no tensor at all."""
    two = Space(("a", "b"), (torch.Size([2]), torch.Size([2])), torch.tensor([True, False, True, True]))
    layers = pw.Prior.layerwise([1.0, 2.0])
    assert layers.delta(two, torch.zeros(3)).tolist() == [1.0, 2.0, 2.0]
    assert layers.only(two, two.only(["b"])).precision.tolist() == [2.0]
    for prior in (pw.Prior.scalar(3.0), pw.Prior.g_prior(3.0), pw.Prior.groups({"*": 3.0}), pw.Prior.unitwise(3.0)):
        assert prior.group(two).numel() == int(prior.stretches(two).sizes.sum()) == 3
    half = Space(("a",), (torch.Size([4]),), torch.tensor([True, False, True, False]))
    assert pw.Prior.layerwise(3.0).group(half).tolist() == [0, 0]  # the elements that are selected, in one group too
    single = Space(("a", "b"), (torch.Size([1]), torch.Size([1])))
    for name in ("layerwise", "diagonal", "unitwise", "scale_invariant"):
        own = pw.Prior(NAMES[name](), torch.tensor([1.0, 2.0]), mean=torch.tensor([3.0, 4.0]))
        left = own.only(single, single.only(["b"]))
        assert left.precision.tolist() == [2.0] and torch.as_tensor(left.mean).tolist() == [4.0]
    one = pw.Prior.scalar(1.0, mean=torch.tensor(0.5)).only(single, single.only(["b"]))
    assert torch.as_tensor(one.mean).tolist() == 0.5
    empty = Space(("a", "b"), (torch.Size([0, 3]), torch.Size([2])))
    for prior in (layers, pw.Prior.unitwise([1.0, 2.0])):
        assert prior.stretches(empty).lengths.min() > 0 and prior.group(empty).numel() == 2
    nothing = pw.Prior(ScaleInvariant(), torch.ones(1))
    assert nothing.count(Space((), ())) == 0
    ratios = replace(pw.Prior.g_prior(2.0), base=torch.ones(2, dtype=torch.float64))
    assert ratios.delta(single, torch.zeros(2)).dtype == torch.float32


def test_precisions_of_weights_that_come_later() -> None:
    """Numbers go along with the names of their sets; a set that nobody has seen is missing."""
    prior = pw.Prior(ScaleInvariant((("a.weight", "c"),)), torch.tensor([5.0, 6.0]))
    early = SPACE.only(["b", "c"])
    assert prior.delta(early, torch.zeros(3)).tolist() == [5.0, 6.0, 6.0]
    carried = prior.carry_over(early, SPACE.only(["a.weight", "b", "c"]))
    assert carried.precision.tolist() == [6.0, 5.0]
    with pytest.raises(ValueError, match=r"has no precision for a\.bias, which earlier data did not use"):
        prior.carry_over(early, SPACE)
    alone = replace(prior, precision=torch.tensor([5.0]))
    assert alone.carry_over(early, SPACE) is alone
    layers = pw.Prior.layerwise([1.0, 2.0])
    assert layers.carry_over(early, SPACE) is layers


def test_priors_that_do_not_fit_their_weights() -> None:
    """By what was given and what was expected."""
    bound = replace(pw.Prior.g_prior(1.0), base=torch.ones(5))
    refused: list[tuple[Any, type[Exception], str]] = [
        (lambda: pw.Prior.scalar([1.0, 2.0]), ValueError, "Prior.scalar: 2 precisions were given; expected one. See"),
        (
            lambda: pw.Prior.g_prior([1.0, 2.0]),
            ValueError,
            "Prior.g_prior: 2 precisions were given; expected one factor",
        ),
        (lambda: pw.Prior.layerwise([]), ValueError, r"Prior.layerwise: prior precision \[\] was given"),
        (lambda: pw.Prior.unitwise([1.0, math.inf]), ValueError, "Prior.unitwise: prior precision .* positive finite"),
        (lambda: pw.Prior.layerwise([1.0, -1.0]), ValueError, "Prior.layerwise: prior precision .* positive finite"),
        (lambda: pw.Prior.diagonal("x"), TypeError, "Prior.diagonal: prior precision is a str, 'x'; expected numbers"),
        (lambda: pw.Prior.scalar(1.0, mean="x"), TypeError, "The prior's mean is a str"),
        (lambda: pw.Prior.scalar(1.0, mean=math.nan), ValueError, "The prior's mean nan was given; expected finite"),
        (
            lambda: pw.Prior("layerwize", torch.ones(1)),
            ValueError,
            r"'layerwize'\) is not known; did you mean 'layerwise'",
        ),
        (lambda: pw.Prior.groups({}), TypeError, "expected a mapping from patterns"),
        (lambda: pw.Prior.groups({1: 2.0}), TypeError, "expected a mapping from patterns"),
        (lambda: pw.Prior.groups([1.0]), TypeError, "expected a mapping from patterns"),
        (lambda: pw.Prior.groups({"a": 1.0}).count(SPACE), ValueError, r"no pattern of \['a'\] fits 'b'"),
        (lambda: pw.Prior.layerwise([1.0, 2.0]).count(SPACE), ValueError, "2 precisions were given; expected 1 or 4"),
        (lambda: pw.Prior.layerwise([1.0, 2.0]).count(SPACE.only(["b"])), ValueError, "given; expected 1 for the sel"),
        (lambda: pw.Prior.unitwise([1.0, 2.0]).count(SPACE), ValueError, "expected 1 or 9"),
        (lambda: pw.Prior.diagonal([1.0, 2.0]).count(MASKED), ValueError, "expected 1 or 5"),
        (lambda: pw.Prior.scalar(1.0, mean=torch.zeros(3)).count(SPACE), ValueError, "3 numbers; expected 1 or 12"),
        (lambda: bound.count(SPACE), ValueError, "bound to the curvature of 5 weights, and 12 are"),
        (lambda: pw.Prior.g_prior().delta(SPACE, torch.zeros(12)), ValueError, "takes its ratios from a curvature"),
        (
            lambda: pw.Prior.scalar(1e300).delta(SPACE, torch.zeros(12)),
            ValueError,
            r"from 1e\+300 to 1e\+300 are outside",
        ),
        (
            lambda: pw.Prior.scalar(1e-60).delta(SPACE, torch.zeros(12)),
            ValueError,
            "outside the range of torch.float32",
        ),
        (lambda: pw.Prior.layerwise([1e300, 1, 1, 1]).delta(SPACE, torch.zeros(12)), ValueError, "outside the range"),
        (lambda: pw.Prior.layerwise([1e-60, 1, 1, 1]).delta(SPACE, torch.zeros(12)), ValueError, "outside the range"),
        (lambda: pw.Prior.g_prior().parts(SPACE, torch.zeros(12)), ValueError, "takes its ratios from a curvature"),
        (
            lambda: pw.Prior.scalar(1.0, mean=torch.zeros(3)).centre(SPACE, torch.zeros(12)),
            ValueError,
            "expected 1 or 12",
        ),
        (lambda: as_prior(True), TypeError, "prior is a bool; expected a positive number or a Prior"),
        (lambda: as_prior("x"), TypeError, "prior is a str"),
        (
            lambda: pw.Prior.groups({"a": 1.0, "d": 2.0}).refuse_unknown(SPACE.names),
            ValueError,
            "'d' fits no parameter.*are a.weight, a.bias, b, c\\.",
        ),
        (
            lambda: pw.Prior.groups({"d": 2.0}).refuse_unknown([*SPACE.names, "e"]),
            ValueError,
            "are a.weight, a.bias, b, c, \\.\\.\\.",
        ),
        (
            lambda: pw.Prior(Layerwise((("a.bias", "x"),)), torch.ones(1)).refuse_unknown(SPACE.names),
            ValueError,
            "Prior.scale_invariant has sets with x, which the network does not have",
        ),
    ]
    for ask, error, words in refused:
        with pytest.raises(error, match=words):
            ask()
    pw.Prior.groups({"a": 1.0, "b": 2.0, "c*": 1.0}).refuse_unknown(SPACE.names)


def test_numbers_as_priors() -> None:
    """One for all weights, or one for each group of another prior; both have its mean."""
    own = pw.Prior.layerwise([1.0, 2.0], mean=0.25)
    assert as_prior(own) is own
    assert (
        as_prior(3.0).grouping.name == "scalar"
        and as_prior(3.0).precision.tolist() == [3.0]
        and as_prior(3).mean == 0.0
    )
    several = as_prior(torch.tensor([3.0, 4.0]), own)
    assert several.grouping.name == "layerwise" and several.precision.tolist() == [3.0, 4.0] and several.mean == 0.25
    one = as_prior(torch.tensor([3.0]), own)
    assert one.grouping.name == "scalar" and one.precision.tolist() == [3.0] and one.mean == 0.25
    for made in (pw.Prior.scalar(), pw.Prior.layerwise(), pw.Prior.diagonal(), pw.Prior.unitwise(), pw.Prior.g_prior()):
        assert made.precision.tolist() == [1.0] and made.precision.dtype == torch.float64 and made.mean == 0.0
        assert made.with_precision(0.7).precision.tolist() == [0.7]
    assert pw.Prior.scalar(torch.tensor(2)).precision.dtype == torch.float64
    assert pw.Prior.scalar(torch.tensor(2.0)).precision.dtype == torch.float32
    assert pw.Prior.groups({"a": 2.0}, mean=0.5).mean == 0.5 and pw.Prior.unitwise(1.0, mean=0.5).mean == 0.5
    assert pw.Prior.layerwise([0.5, 3.0]).least == 0.5 and pw.Prior.layerwise([2.0, 3.0]).least == 1.0
    for shape in ([2, 2], [4]):
        made = pw.Prior.layerwise(torch.ones(shape))
        assert made.precision.shape == (4,) == made.with_precision(torch.ones(shape)).precision.shape


def test_centres() -> None:
    """One number for all weights, or one each, in the dtype of the weights."""
    for mean in (0.1, torch.tensor(0.1, dtype=torch.float64), torch.full((3, 4), 0.1, dtype=torch.float64)):
        for dtype in (torch.float64, torch.float32):
            made = pw.Prior.scalar(1.0, mean=mean).centre(SPACE, torch.zeros(12, dtype=dtype))
            assert made.dtype == dtype and made.tolist() == torch.full((12,), 0.1, dtype=dtype).tolist()


def test_names_in_a_few_words() -> None:
    """All of three, or the first and how many more."""
    assert (
        together(["a"]) == "a" and together(["a", "b", "c"]) == "a + b + c" and together(list("abcd")) == "a and 3 more"
    )
    names = pw.Prior.unitwise().names(SPACE)
    assert names[-1] == "c[1]" and names[2:4] == ["a.weight[2]", "a.bias[0]"] and len(names) == 9
    with pytest.raises(IndexError):
        names[9]
    some = pw.Prior.diagonal().names(MASKED)
    assert list(some) == ["a.weight[0]", "a.weight[5]", "a.bias[1]", "b[0]", "c[0]"] and len(some) == 5


class Unread(nn.Module):
    """Weights that nothing depends on, before two that are used."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.unread, self.first = nn.Linear(3, 4, bias=False), nn.Linear(3, 4, bias=False)
        self.second = nn.Linear(4, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 2)."""
        return self.second(self.first(x).tanh())


@pytest.mark.parametrize(("precision", "left"), [(2.0, [2.0]), ([2.0, 3.0, 4.0], [3.0, 4.0])])
def test_precisions_of_unused_weights_are_dropped(precision: Any, left: list[float]) -> None:
    """One for all stays one; of several, those of the weights that are used stay."""
    model = Unread().double().to(DEVICE)
    data = torch.randn(6, 3).double().to(DEVICE), torch.randn(6, 2).double().to(DEVICE)
    for prior in (pw.Prior.layerwise(precision), pw.Prior.scale_invariant(model, data, precision=precision)):
        la = pw.fit(model, data, "regression", prior=prior)
        assert la.space.names == ("first.weight", "second.weight")
        assert la.prior.precision.reshape(-1).tolist() == left
        expected = torch.tensor(left).expand(2).double().repeat_interleave(torch.tensor([12, 8]))
        torch.testing.assert_close(la.prior.delta(la.space, la.weights).cpu(), expected)


def test_a_prior_is_around_zero() -> None:
    """Unless it is told otherwise."""
    assert pw.Prior("scalar", torch.ones(1)).mean == 0.0
