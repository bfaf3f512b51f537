"""The log evidence against its dense definition, and its gradients against finite differences of that definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import peewit as pw
import reference_dense as dense
from environment import DEVICE
from evidence_cases import EVERY, EXACT, curvature, definition, differences, fit, positive, sizes
from fitting import seeded, weights_of
from peewit.jacobians.layout import part_ways
from peewit.posterior.evidence import Evidence, EvidenceProblem, data_weight, noise_precision_at, shared_numbers
from peewit.weights.space import Space
from tables import curvature_of, moved, relative, table

CASES = pytest.mark.parametrize(
    "name", ["mlp", "mlp_regression", "token_classifier", "token_regression", "batch_norm1d"]
)


@EVERY
@CASES
@pytest.mark.parametrize("kind", ["ggn", "empirical"])
def test_the_log_evidence_is_its_definition(name: str, structure: str, kind: str) -> None:
    """For every kind of prior, with means, and at other noises, equal to the dense value."""
    case = table(name)
    expected = definition(case, structure, kind)
    weights = len(weights_of(case.model))
    ones = torch.ones(weights, dtype=torch.float64)
    la = fit(case, structure, kind, prior=pw.Prior.scalar(0.7, mean=0.2))
    assert relative(la.log_evidence(), expected(0.7 * ones, 0.2)) < EXACT
    mean = torch.randn(weights, generator=seeded(5), dtype=torch.float64)
    assert relative(la.log_evidence(prior=pw.Prior.scalar(3.0, mean=mean)), expected(3 * ones, mean)) < EXACT
    assert relative(la.log_evidence(prior=5.0), expected(5 * ones, 0.2)) < EXACT
    assert relative(la.with_prior(5.0).log_evidence(), expected(5 * ones, 0.2)) < EXACT
    assert relative(la.with_prior(pw.Prior.scalar(5.0)).log_evidence(), expected(5 * ones)) < EXACT
    if case.case.likelihood == "regression":
        assert relative(la.log_evidence(noise=1.3), expected(0.7 * ones, 0.2, 1.3)) < EXACT
    if structure != "kron joint":  # one precision per block
        each = positive(len(case.names))
        layered = pw.Prior.layerwise(each, mean=0.1)
        assert relative(la.log_evidence(prior=layered), expected(each.repeat_interleave(sizes(case)), 0.1)) < EXACT
    first = case.names[0].rpartition(".")[0]
    groups = torch.tensor([2.5 if each.startswith(first + ".") else 0.4 for each in case.names], dtype=torch.float64)
    grouped = la.with_prior(pw.Prior.groups({first: 2.5, "*": 0.4}))
    assert relative(grouped.log_evidence(), expected(groups.repeat_interleave(sizes(case)))) < EXACT
    if structure in ("diag", "full", "block"):
        elementwise = positive(weights)
        assert relative(la.log_evidence(prior=pw.Prior.diagonal(elementwise)), expected(elementwise)) < EXACT


@EVERY
@pytest.mark.parametrize("name", ["mlp", "mlp_regression", "token_regression"])
@pytest.mark.parametrize("kind", ["ggn", "empirical"])
def test_gradients_of_the_evidence(name: str, structure: str, kind: str) -> None:
    """In one precision, in one per tensor and in the noise: those of the dense definition by finite differences."""
    case = table(name)
    value = definition(case, structure, kind)
    ones = torch.ones(len(weights_of(case.model)), dtype=torch.float64)
    la = fit(case, structure, kind)

    scalar = torch.tensor(0.6, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(la.log_evidence(prior=scalar), scalar)
    expected = differences(lambda at: value(at * ones), scalar.detach()[None])[0]
    assert relative(gradient, expected) < 1e-6

    if structure != "kron joint":
        layered = positive(len(case.names)).requires_grad_()
        made = la.with_prior(pw.Prior.layerwise(1.0)).log_evidence(prior=layered)
        (gradient,) = torch.autograd.grad(made, layered)
        expected = differences(lambda at: value(at.repeat_interleave(sizes(case))), layered.detach())
        assert relative(gradient, expected) < 1e-6
        again = pw.Prior.layerwise(layered)
        assert torch.equal(torch.autograd.grad(la.log_evidence(prior=again), layered)[0], gradient)

    if case.case.likelihood == "regression":
        noise = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(la.log_evidence(noise=noise), noise)
        expected = differences(lambda at: value(ones, noise=float(at)), noise.detach()[None])[0]
        assert relative(gradient, expected) < 1e-6
        both = torch.autograd.grad(la.log_evidence(prior=scalar, noise=noise), (scalar, noise))
        expected = differences(
            lambda at: value(at[0] * ones, noise=float(at[1])), torch.tensor([0.6, 0.8], dtype=torch.float64)
        )
        assert relative(torch.stack(both), expected) < 1e-6


@EVERY
def test_gradients_of_the_log_determinant(structure: str) -> None:
    """`d logdet P / d delta = diag P^-1` and `d logdet P / d data_weight = tr P^-1 H`, summed by number."""
    case = table("mlp")
    la = fit(case, structure)
    matrix = curvature(case, structure, "ggn")
    count = len(matrix)
    free = structure in ("diag", "full", "block")
    owner = [name.rpartition(".")[0] for name in case.names]
    group = torch.tensor([owner.index(each) for each in owner]).repeat_interleave(sizes(case))
    group = torch.arange(count) if free else group
    values = positive(int(group.max()) + 1).to(DEVICE).requires_grad_()
    scale = torch.tensor(1.3, dtype=torch.float64, device=DEVICE, requires_grad=True)
    logdet = la.state.curvature.precision(values[group.to(DEVICE)], scale).logdet()
    dense_precision = 1.3 * matrix + torch.diag(values.detach().cpu()[group])
    assert relative(logdet.detach(), torch.logdet(dense_precision)) < EXACT
    first, second = torch.autograd.grad(logdet, (values, scale))
    inverse = torch.linalg.inv(dense_precision)
    expected = torch.zeros(len(values), dtype=torch.float64).index_add(0, group, inverse.diagonal())
    assert relative(first, expected) < 1e-8
    assert relative(second, (inverse * matrix).sum()) < 1e-8


@pytest.mark.parametrize("structure", ["kron", "kron joint", "ekfac"])
def test_kronecker_blocks_refuse_elementwise_priors(structure: str) -> None:
    """With the weight that cannot hold it and the alternatives, when asked for evidence and for covariances."""
    case = table("mlp")
    prior = pw.Prior.diagonal(positive(len(weights_of(case.model))))
    la = fit(case, structure)
    for ask in (
        lambda: la.log_evidence(prior=prior),
        lambda: la.with_prior(prior).functional(moved(case.x)),
        lambda: la.with_prior(prior).sample(1),
    ):
        with pytest.raises(
            ValueError, match=r"different precisions inside '0.weight'.*layerwise prior.*'diag'.*'full'"
        ):
            ask()
    # An elementwise prior whose numbers agree within each weight is a layerwise one.
    even = (
        positive(len(case.names))
        if structure != "kron joint"
        else torch.full((len(case.names),), 0.6, dtype=torch.float64)
    )
    delta = even.repeat_interleave(sizes(case))
    assert relative(la.log_evidence(prior=pw.Prior.diagonal(delta)), definition(case, structure)(delta)) < EXACT


def test_joint_blocks_hold_layerwise_priors() -> None:
    """Weight and bias are one block whose last column has another precision: exact, with its gradient."""
    case = table("mlp")
    la = fit(case, "kron joint")
    precisions = positive(len(case.names)).requires_grad_()
    value = la.log_evidence(prior=la.prior.layerwise(precisions))
    delta = torch.repeat_interleave(precisions.detach(), torch.tensor([p.numel() for p in case.model.parameters()]))
    matrix = curvature_of(la) + torch.diag(delta)
    expected = 0.5 * (delta.log().sum() - torch.logdet(matrix) - (delta * weights_of(case.model).square()).sum())
    expected = expected - la.state.totals.energy
    assert abs(float(value.detach()) - float(expected)) < 1e-9 * abs(float(expected))
    (gradient,) = torch.autograd.grad(value, precisions)
    inner = 0.5 * (1 / delta - torch.linalg.inv(matrix).diagonal() - weights_of(case.model).square())
    sizes = [parameter.numel() for parameter in case.model.parameters()]
    assert relative(gradient, torch.stack([piece.sum() for piece in inner.split(sizes)])) < 1e-9


@pytest.mark.parametrize("structure", ["kron", "kron joint"])
@pytest.mark.parametrize("name", ["mlp", "conv2d_groups", "conv_transpose2d", "embedding_padding", "tied_gpt"])
def test_priors_of_rows_times_columns_are_exact(name: str, structure: str) -> None:
    """One precision per row times one per column keeps the Kronecker form: every method equals the dense one."""
    case = table(name)
    la = fit(case, structure)
    generator = seeded(7)
    factors = {
        key: [
            (torch.rand(shape, generator=generator, dtype=torch.float64) + 0.5).requires_grad_()
            for shape in ((groups, rows, 1), (groups, 1, columns))
        ]
        for key, spectrum in la.state.curvature.blocks.items()
        for groups, rows, columns in [spectrum.layout.matrix]
    }
    pieces: dict[int, torch.Tensor] = {}
    for key, spectrum in la.state.curvature.blocks.items():
        flat = spectrum.layout.to_flat(factors[key][0] * factors[key][1])
        own = (flat,) if spectrum.weight is None else part_ways(flat, spectrum.weight)
        pieces |= {la.space.slice_of(part).start: value for part, value in zip(key, own, strict=True)}
    for part in la.state.curvature.others:
        pieces[la.space.slice_of(part).start] = torch.full((part.stop - part.start,), 0.8, dtype=torch.float64)
    delta = torch.cat([pieces[start] for start in sorted(pieces)])
    matrix = curvature_of(la) + torch.diag(delta.detach())
    covariance = torch.linalg.inv(matrix)
    chosen = la.with_prior(pw.Prior.diagonal(delta.detach()))
    identity = torch.eye(la.D, dtype=torch.float64, device=la.weights.device)
    root = chosen.precision.root(identity)
    assert relative(chosen.precision.mv(identity), matrix) < 1e-9
    assert relative(chosen.precision.solve(identity), covariance) < 1e-9
    assert relative(root.T @ root, covariance) < 1e-9
    assert relative(chosen.precision.variance(), covariance.diagonal()) < 1e-9
    jacobian = case.jacobian[:, :, case.index(la)].flatten(0, 1)
    joint = chosen.functional(moved(case.x), joint=True).cov
    assert relative(joint.reshape(len(jacobian), -1), jacobian @ covariance @ jacobian.T) < 1e-9
    logdet = la.state.curvature.precision(delta.to(la.weights.device), torch.ones((), dtype=torch.float64)).logdet()
    assert relative(logdet.detach(), torch.logdet(matrix)) < 1e-9
    # Along the factors of the prior the gradient is the variance, summed over what each factor scales.
    every = [factor for pair in factors.values() for factor in pair]
    expected = torch.autograd.grad((delta * covariance.diagonal()).sum(), every, retain_graph=True)
    for own, other in zip(torch.autograd.grad(logdet, every), expected, strict=True):
        assert relative(own, other) < 1e-7


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), torch.tensor([1.0, -2.0])], ids=str)
def test_precisions_that_are_not_positive(value: Any) -> None:
    """Refused wherever a prior can be given."""
    case = table("mlp")
    la = fit(case, "diag")
    for ask in (
        lambda: la.log_evidence(prior=pw.Prior.layerwise(value)),
        lambda: fit(case, "diag", prior=pw.Prior.layerwise(value)),
        lambda: la.with_prior(pw.Prior.diagonal(value)),
    ):
        with pytest.raises(ValueError, match="positive finite"):
            ask()


def test_priors_and_noises_that_do_not_fit() -> None:
    """Wrong counts, unknown groups, types and noises are refused with what was expected."""
    case = table("mlp_regression")
    la = fit(case, "full")
    refused: list[tuple[Callable[[], Any], type[Exception], str]] = [
        (lambda: la.log_evidence(prior=pw.Prior.layerwise([1.0, 2.0])), ValueError, "expected 1 or 4"),
        (lambda: la.log_evidence(prior=pw.Prior.diagonal([1.0, 2.0])), ValueError, f"expected 1 or {la.D}"),
        (lambda: la.log_evidence(prior=pw.Prior.scalar(1.0, mean=torch.zeros(3))), ValueError, "mean has 3 numbers"),
        (lambda: la.log_evidence(prior=pw.Prior.groups({"0": 1.0})), ValueError, r"fits '2\.weight'"),
        (lambda: la.log_evidence(prior=torch.ones(2)), ValueError, "2 precisions"),
        (lambda: la.log_evidence(prior="big"), TypeError, "str"),
        (lambda: la.log_evidence(noise=-1.0), ValueError, "positive standard deviation"),
        (lambda: pw.Gaussian(noise=0.0), ValueError, "positive standard deviation"),
        (lambda: table("mlp").fit("diag").log_evidence(noise=1.0), ValueError, "no noise"),
    ]
    for ask, error, message in refused:
        with pytest.raises(error, match=message):
            ask()


def test_the_evidence_of_weights_that_are_used() -> None:
    """Layers that are never run leave the evidence and the count of weights."""
    case = table("unused_layer")
    la = case.fit("full", prior=2.0)
    index = case.index(la)
    theta = weights_of(case.model)[index]
    energy = dense.energy(case.model, case.x, case.y, "classification")
    delta = torch.full_like(theta, 2.0)
    expected = dense.log_evidence(-energy, case.ggn[index][:, index], theta, torch.zeros_like(theta), delta)
    assert relative(la.log_evidence(), expected) < EXACT
    assert len(case.ggn) > la.D == len(index)


@pytest.mark.parametrize("structure", ["kron", "kron joint", "ekfac", "diag", "full"])
def test_elementwise_gradients_are_right_or_refused(structure: str) -> None:
    """One precision per weight, all equal: its gradient is `1/2 (1/delta - variance - theta^2)`, element by element."""
    case = table("mlp")
    la = fit(case, structure)
    theta = weights_of(case.model)
    delta = torch.full_like(theta, 0.8).requires_grad_()
    covariance = torch.linalg.inv(curvature(case, structure, "ggn") + 0.8 * torch.eye(len(theta), dtype=torch.float64))
    expected = 0.5 * (1 / 0.8 - covariance.diagonal() - theta.square())
    try:
        value = la.log_evidence(prior=pw.Prior.diagonal(delta))
    except ValueError as error:
        assert structure not in ("diag", "full")
        assert "layerwise" in str(error)
        return
    assert relative(torch.autograd.grad(value, delta)[0], expected) < 1e-8


def test_noises_and_strengths() -> None:
    """What multiplies the energy and the curvature, and what is refused."""
    own = pw.Gaussian(0.5)
    assert float(noise_precision_at(own, None)) == 4.0
    assert float(noise_precision_at(own, 0.25)) == 16.0 and noise_precision_at(own, torch.tensor([0.25])).shape == ()
    with pytest.raises(ValueError, match="noise has 2 numbers; expected one: the standard deviation"):
        noise_precision_at(own, torch.tensor([1.0, 2.0]))
    with pytest.raises(ValueError, match=r"noise=0\.5 was given, but Categorical has no noise; leave it out"):
        noise_precision_at(pw.Categorical(), 0.5)
    scale = torch.tensor(16.0, dtype=torch.float64)
    for degree, temperature, expected in ((1, 1.0, 16.0), (2, 1.0, 256.0), (1, 4.0, 4.0), (0, 2.0, 0.5)):
        assert float(data_weight(scale, degree, temperature, torch.zeros(1))) == expected
    for tiny, words in (
        (1e-30, r"The noise 1e-30 multiplies the curvature by 1e\+60, outside the range of torch.float32"),
        (1e30, r"The noise 1e\+30 multiplies the curvature by 1e-60"),
    ):
        other = torch.tensor(tiny, dtype=torch.float64).pow(-2)
        with pytest.raises(ValueError, match=words):
            data_weight(other, 1, 1.0, torch.zeros(1))
        assert float(data_weight(other, 1, 1.0, torch.zeros(1).double())) == pytest.approx(tiny**-2)


def test_which_weights_share_a_precision() -> None:
    """Asked for by blocks alone, where gradients in several precisions are wanted; one each is refused."""
    own = Space(("a", "b"), (torch.Size([2]), torch.Size([1])))
    blocks: Any = SimpleNamespace(elementwise=False)
    device = torch.device("cpu")
    several = pw.Prior.layerwise([1.0, 2.0])
    grown = several.with_precision(several.precision.clone().requires_grad_())
    assert shared_numbers(blocks, several, own, device) is None
    assert shared_numbers(SimpleNamespace(elementwise=True), grown, own, device) is None  # type: ignore[arg-type]
    assert shared_numbers(blocks, pw.Prior.scalar(torch.ones(1, requires_grad=True)), own, device) is None
    numbers = shared_numbers(blocks, grown, own, device)
    assert numbers is not None and numbers.tolist() == [0, 0, 1]
    each = pw.Prior.diagonal(torch.ones(3, requires_grad=True))
    with pytest.raises(ValueError, match="A gradient in one prior precision per weight was asked for, which Kronecker"):
        shared_numbers(blocks, each, own, device)


def test_the_evidence_in_words() -> None:
    """Its parts, the groups up to forty, where it was taken, and why it is not a marginal likelihood."""
    own = Space(("a", "bias"), (torch.Size([1500]), torch.Size([4])))
    prior = pw.Prior.layerwise([1.0, 2.0])
    made = Evidence(
        log_likelihood=-10.0,
        distance=3.0,
        log_volume=5.0,
        effective_dimensions=torch.tensor([7.5, 1.25]),
        note="",
        prior=prior,
        space=own,
    )
    assert (made.complexity, made.total, made.gamma, made.is_marginal_likelihood) == (-4.0, -14.0, 8.75, True)
    assert repr(made).split("\n") == [
        "log evidence                -14.0000",
        "  log likelihood            -10.0000",
        "  complexity                 -4.0000   -1/2 (distance 3.0000 + log volume 5.0000)",
        "effective dimensions          8.7500   of 1,504 weights",
        "  a           7.5000   of 1,500",
        "  bias        1.2500   of 4",
    ]
    told = repr(replace(made, note="why", where="elsewhere")).split("\n")
    assert told[1] == "  at elsewhere" and told[-1] == "not a marginal likelihood: why" and len(told) == 8
    assert not replace(made, note="why").is_marginal_likelihood
    one = replace(made, effective_dimensions=torch.tensor([7.5]), prior=pw.Prior.scalar())
    assert len(repr(one).split("\n")) == 4
    for count, lines in ((2, 6), (40, 44), (41, 4)):
        wide = Space(("a",), (torch.Size([count]),))
        many = replace(made, effective_dimensions=torch.ones(count), prior=pw.Prior.diagonal(), space=wide)
        assert len(repr(many).split("\n")) == lines


def test_why_it_is_no_marginal_likelihood() -> None:
    """A temperature, a likelihood with a caveat, both, or nothing."""
    for temperature, caveat, words in (
        (1.0, "", ""),
        (1.0, "odd", "odd"),
        (0.5, "", "at temperature 0.5 the likelihood is raised to 1/0.5 and does not sum to one"),
        (0.5, "odd", "at temperature 0.5 the likelihood is raised to 1/0.5 and does not sum to one; odd"),
    ):
        given: Any = SimpleNamespace(temperature=temperature, likelihood=SimpleNamespace(caveat=caveat))
        assert EvidenceProblem.note(given) == words
