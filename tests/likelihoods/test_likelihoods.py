"""Every likelihood with every curvature and structure against its definition by torch, example by example."""

from __future__ import annotations

import copy
import functools
import warnings
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
import reference
import reference_dense as dense
from environment import DEVICE
from fitting import built, fitted, normal, weights_of
from likelihood_cases import BY_NAME, CASES, EXAMPLES, LikelihoodCase
from likelihood_fits import DRAWABLE, fit, form_of
from peewit.likelihoods import Form, WithNoise, score
from peewit.runtime.random import DEFAULT_SEED, Hashed
from tables import curvature_of, moved, own_bases, relative

EXACT = 1e-8
DRAWS = 3
EVERY = pytest.mark.parametrize("name", BY_NAME)
STRUCTURES: dict[str, Any] = {
    "full": pw.Full(),
    "block": pw.Block(),
    "diag": pw.Diag(),
    "kron": pw.Kron(),
    "kron reduce": pw.Kron(approx="reduce"),
    "kron joint": pw.Kron(bias="joint"),
    "ekfac": pw.EKFAC(),
}


def drawn(case: LikelihoodCase, sample: int, seed: int = DEFAULT_SEED) -> Tensor:
    """Targets (N, ...) that a fit draws from the network."""
    form = form_of(case)
    likelihood, f = case.likelihood.bind(form), form.flatten(case.f)
    draws = Hashed(seed, torch.arange(len(f)), form.positions, sample)
    if isinstance(likelihood, pw.Custom):
        assert likelihood.sample is not None
        return likelihood.sample(case.f, draws.uniform(f.shape[-1])[:, 0])
    labels = likelihood.sample(f, likelihood.targets(case.y, form), draws)
    if isinstance(likelihood, pw.Categorical):
        shape = [size for axis, size in enumerate(case.f.shape) if axis != (form.axis or 0) + 1]
        return labels.reshape(shape)
    if form.axis is None:
        return labels.reshape(case.y.shape)
    positions = form.shape[: form.axis] + form.shape[form.axis + 1 :]
    return labels.reshape(len(f), *positions, -1).movedim(-1, form.axis + 1).reshape(case.y.shape)


@functools.cache
def probes(name: str, kind: str) -> Tensor:
    """(N, F, K): of the output curvature, by the definition."""
    case = BY_NAME[name]
    return case.probes(kind, [drawn(case, sample) for sample in range(DRAWS)] if kind == "fisher" else None)


def expected(case: LikelihoodCase, structure: str, kind: str, la: pw.Laplace) -> Tensor:
    """(D, D): the dense curvature of a structure, noise included."""
    if kind == "hessian":
        return case.hessian
    if structure.startswith("kron") or structure == "ekfac":
        approx = "reduce" if "reduce" in structure else "expand"
        bias = "joint" if "joint" in structure else "separate"
        blocks, whole = case.blocks(probes(case.name, kind), approx=approx, bias=bias)
        if structure != "ekfac":
            return reference.kron_of(blocks, whole)
        bases = {block.key: own_bases(la, block.index, torch.arange(la.D)) for block in blocks}
        return reference.ekfac_of(blocks, whole, {key: own for key, own in bases.items() if own is not None})
    exact = case.full(probes(case.name, kind))
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
        la = fit(case, STRUCTURES[structure], pw.MonteCarlo(DRAWS) if kind == "fisher" else kind, prior=1.0)
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
    assert la.N == EXAMPLES and la.state.totals.form == form_of(case)


@EVERY
def test_products_with_every_curvature(name: str) -> None:
    """At noise_precision one, without a matrix."""
    case = BY_NAME[name]
    v = normal(2, len(weights_of(case.model)), seed=7)
    for kind in kinds_of(case, "full"):
        curvature = pw.MonteCarlo(DRAWS) if kind == "fisher" else kind
        data = moved(case.x), moved(case.y)
        made = pw.products(copy.deepcopy(case.model).to(DEVICE), data, case.likelihood, curvature=curvature)
        degree = 2 if kind == "empirical" else 1
        exact = case.hessian if kind == "hessian" else case.full(probes(name, kind))
        assert relative(made.mv(moved(v)) * float(case.likelihood.noise_precision) ** degree, v @ exact) < EXACT, kind


def test_data_whose_labels_are_all_ignored() -> None:
    """Nothing is learnt, and nothing fails."""
    case = BY_NAME["categorical tokens, ignored"]
    none = torch.full_like(case.y, -100)
    for structure in STRUCTURES.values():
        la = fitted(case.model, case.x, none, case.likelihood, structure, prior=2.0)
        assert float((curvature_of(la) - torch.eye(la.D)).abs().max()) == 0
        assert relative(la.log_evidence(), -weights_of(case.model).square().sum()) < 1e-12


# Definitions, without a network


def whole_energy(case: LikelihoodCase, f: Tensor, y: Tensor) -> Tensor:
    """`noise_precision * energy + log_z + rest`: what the library takes for the negative log-likelihood of all data."""
    form = case.likelihood.form(f, y)
    likelihood = case.likelihood.bind(form)
    flat, targets = form.flatten(f), likelihood.targets(y, form)
    assert bool(likelihood.valid(targets, form))
    noise_precision, scalars = likelihood.noise_precision, float(likelihood.scalars(targets))
    energy = likelihood.energy(flat, targets)
    assert energy.shape == (len(f),)
    return noise_precision * energy.sum() + likelihood.log_z(scalars, noise_precision) + likelihood.rest(targets)


@EVERY
def test_energies_and_constants_are_the_definition(name: str) -> None:
    """Of all examples together, at ordinary outputs and at large ones."""
    case = BY_NAME[name]
    assert relative(whole_energy(case, case.f, case.y), case.total) < 1e-12
    if not isinstance(case.likelihood, (pw.Poisson, pw.HeteroscedasticGaussian)):
        large = 12 * case.f
        total = sum(case.nll(f, y) for f, y in zip(large, case.y, strict=True))
        assert relative(whole_energy(case, large, case.y), total) < 1e-12


@pytest.mark.parametrize("size", [1.0, 10.0, 60.0, 500.0])
def test_roots_of_sure_networks(size: float) -> None:
    """In float32 too, curvature is exact to its own size, and finite, where one minus a probability would be zero."""
    torch.manual_seed(0)
    f = (size * torch.randn(40, 1, 6)).float()
    root = pw.Categorical().root(f, torch.zeros(40, 1, dtype=torch.long)).double()
    assert root.shape[-1] == 5 and bool(torch.isfinite(root).all())
    p = f.double().softmax(-1)
    others = (1 - torch.eye(6, dtype=torch.float64)) @ p[..., None]
    expected = torch.diag_embed(p * others[..., 0]) - torch.triu(p[..., :, None] * p[..., None, :], 1)
    expected = torch.triu(expected) + torch.triu(expected, 1).mT
    made = root @ root.mT
    sizes = expected.diagonal(dim1=-2, dim2=-1).sqrt()
    bound = 1e-4 * sizes[..., :, None] * sizes[..., None, :] + 1e-36
    assert bool(((made - expected).abs() <= bound).all())


@EVERY
def test_roots_are_the_output_curvature(name: str) -> None:
    """For all probes at once and for some of them, at noise precision one; nothing at ignored labels."""
    case = BY_NAME[name]
    form = form_of(case)
    likelihood, f = case.likelihood.bind(form), form.flatten(case.f)
    y = likelihood.targets(case.y, form)
    root = likelihood.root(f, y)
    assert root.shape[:3] == f.shape
    pieces = [likelihood.root(f, y, slice(start, start + 2)) for start in range(0, root.shape[-1], 2)]
    assert torch.equal(torch.cat(pieces, -1), root)
    made = root @ root.mT * likelihood.noise_precision
    exact = case.hessians(case.f)
    order = torch.arange(exact.shape[-1]).reshape(form.shape)
    for position, places in enumerate(form.flatten(order[None])[0]):
        assert relative(made[:, position], exact[:, places][:, :, places]) < 1e-10
        exact[:, places[:, None], places] = 0
    assert float(exact.abs().max()) < 1e-12  # positions are independent, or all in one
    unlabelled = ~likelihood.labelled(y)
    assert float(root[unlabelled].abs().sum()) == 0
    assert bool(unlabelled.any()) == any(case.ignoring(y) for y in case.y)


PROPER = [case.name for case in CASES if not isinstance(case.likelihood, pw.Custom) and not case.likelihood.caveat]


@pytest.mark.parametrize("name", PROPER)
def test_distributions_are_the_definition(name: str) -> None:
    """The log probability of the targets is the negative energy with all constants."""
    case = BY_NAME[name]
    form = form_of(case)
    f, y = form.flatten(case.f), case.likelihood.targets(case.y, form)
    distribution = case.likelihood.distribution(f)
    assert distribution is not None
    if isinstance(case.likelihood, pw.Categorical):
        assert relative(distribution.probs, torch.softmax(f, -1)) < 1e-12
        if y.is_floating_point():
            return
        known = y >= 0
        made = distribution.log_prob(y.clamp(min=0))[known].sum()
    else:
        known = y >= 0 if isinstance(case.likelihood, pw.Bernoulli) else torch.ones_like(y, dtype=torch.bool)
        made = distribution.log_prob(y.to(f))[known].sum()
    assert relative(-made, case.total) < 1e-12


@pytest.mark.parametrize("name", [name for name in PROPER if name.startswith(("regression", "hetero"))])
def test_densities_integrate_to_one(name: str) -> None:
    """Over a grid of targets, one after the other: the constants are those of a density."""
    case = BY_NAME[name]
    f = case.f[:1]
    form = case.likelihood.form(f, case.y[:1])
    mean = case.likelihood.distribution(form.flatten(f)).mean.flatten()
    deviation = case.likelihood.distribution(form.flatten(f)).stddev.flatten()
    grid = torch.linspace(-12, 12, 4001, dtype=torch.float64)
    # The targets but the first stay at their means, where their own densities are known.
    targets = case.y.new_zeros(len(grid), *case.y.shape[1:]).reshape(len(grid), -1)
    order = Form(form.axis, tuple(case.y.shape[1:])) if case.y.dim() == case.f.dim() else None
    flat = mean if order is None else order.restore(mean.reshape(1, -1, order.outputs)).flatten()
    spread = deviation if order is None else order.restore(deviation.reshape(1, -1, order.outputs)).flatten()
    targets[:] = flat
    targets[:, 0] += spread[0] * grid
    y = targets.reshape(len(grid), *case.y.shape[1:])
    likelihood, wide = case.likelihood, f.expand(len(grid), *f.shape[1:])
    prepared = likelihood.targets(y, form)
    one = likelihood.targets(y[:1], form)
    rest = likelihood.log_z(float(likelihood.scalars(one)), likelihood.noise_precision) + likelihood.rest(one)
    density = torch.exp(-(likelihood.noise_precision * likelihood.energy(form.flatten(wide), prepared) + rest))
    total = torch.trapezoid(density, targets[:, 0])
    others = 0.5 * torch.log(2 * torch.pi * spread[1:].square()).sum()
    assert abs(float(total.log() + others)) < 1e-10


def test_probabilities_sum_to_one() -> None:
    """Over all classes, over yes and no, and over counts."""
    f = torch.tensor([[[0.3, -1.2, 2.0]]], dtype=torch.float64)
    every = torch.arange(3)[:, None]
    assert torch.allclose(pw.Categorical().energy(f.expand(3, 1, 3), every).neg().exp().sum(), torch.ones(()).double())
    both = torch.tensor([0.0, 1.0])[:, None, None]
    one = f[:, :, :1].expand(2, 1, 1)
    assert torch.allclose(pw.Bernoulli().energy(one, both).neg().exp().sum(), torch.ones(()).double())
    counts = torch.arange(80.0, dtype=torch.float64)[:, None, None]
    poisson = pw.Poisson()
    rest = torch.stack([poisson.rest(count) for count in counts])
    total = (-poisson.energy(f[:, :, 2:].expand(80, 1, 1), counts) - rest).exp().sum()
    assert torch.allclose(total, torch.ones(()).double(), atol=1e-12)


@pytest.mark.parametrize("logit", [0.0, 19.9, 20.1, 40.0, -40.0, 300.0])
def test_sure_answers_keep_their_digits(logit: float) -> None:
    """Far from zero an energy is `exp(-|f|)`, not a difference that rounds to zero."""
    f = torch.tensor([[[logit]]], dtype=torch.float64)
    made = pw.Bernoulli().energy(f, torch.tensor([[[float(logit > 0)]]]))
    expected = torch.log1p(torch.exp(-torch.tensor(abs(logit), dtype=torch.float64)))
    assert relative(made, expected[None]) < 1e-12
    root = pw.Bernoulli().root(f, torch.ones(1, 1, 1))
    assert relative(root[0, 0, 0], (torch.exp(-abs(f)) / (1 + torch.exp(-abs(f))) ** 2).sqrt()[0, 0]) < 1e-12


# Noise


NOISY = [case.name for case in CASES if isinstance(case.likelihood, pw.Gaussian)]


@pytest.mark.parametrize("kind", ["ggn", "fisher", "empirical", "hessian"])
def test_noise_enters_as_a_power_of_the_scale(kind: str) -> None:
    """The curvature falls with `noise^-2`, the empirical Fisher with `noise^-4`; ratios do not move."""
    for name in ("regression row", "regression image, each"):
        case = BY_NAME[name]
        degree = 2 if kind == "empirical" else 1
        at_one = fitted(case.model, case.x, case.y, case.likelihood.with_noise(1.0), "full", curvature=kind)
        at_third = fitted(case.model, case.x, case.y, case.likelihood.with_noise(0.3), "full", curvature=kind)
        assert relative(curvature_of(at_third), curvature_of(at_one) * 0.3 ** (-2 * degree)) < 1e-12
        assert abs(float(at_third.likelihood.noise_precision) - 0.3**-2) < 1e-12


def test_equal_noises_are_one_noise() -> None:
    """Curvature, evidence and gradients of both."""
    case = BY_NAME["regression row"]
    for structure in ("kron", "full"):
        for kind in ("ggn", "fisher", "empirical"):
            one, each = (
                fitted(case.model, case.x, case.y, pw.Gaussian(noise), structure, curvature=kind)
                for noise in (0.375, torch.full((3,), 0.375))  # the same in float32
            )
            assert relative(curvature_of(each), curvature_of(one)) < 1e-12
            assert relative(each.log_evidence(), one.log_evidence().cpu()) < 1e-12


def test_a_common_factor_leaves_ratios() -> None:
    """`with_noise` of one number is the geometric mean; several numbers replace all."""
    noise = torch.tensor([0.4, 1.5, 0.9], dtype=torch.float64)
    likelihood = pw.Gaussian(noise)
    assert abs(float(likelihood.factor) - (0.4 * 1.5 * 0.9) ** (1 / 3)) < 1e-12
    made = likelihood.with_noise(2.0)
    assert torch.allclose(made.noise / made.noise[0], noise / noise[0], rtol=1e-12)
    assert abs(float(made.noise.prod()) - 8.0) < 1e-12 and abs(float(made.noise_precision) - 0.25) < 1e-12
    assert torch.equal(likelihood.with_noise(torch.tensor([1.0, 2.0, 3.0])).noise, torch.tensor([1.0, 2.0, 3.0]))
    assert pw.Gaussian(0.3).with_noise(0.5).noise == 0.5
    assert torch.equal(likelihood.noise, noise)
    noise *= 2  # the caller's tensor, not the likelihood's
    assert abs(float(likelihood.factor) - (0.4 * 1.5 * 0.9) ** (1 / 3)) < 1e-12
    spread = likelihood.distribution(torch.zeros(2, 1, 3, dtype=torch.float64)).stddev
    assert torch.allclose(spread, torch.tensor([0.4, 1.5, 0.9], dtype=torch.float64).expand(2, 1, 3))


@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag", "full"])
@pytest.mark.parametrize("name", NOISY)
def test_the_evidence_at_another_common_factor(name: str, structure: str) -> None:
    """Equal to a fit with that noise, with its gradient; several numbers are refused."""
    case = BY_NAME[name]
    for kind in ("ggn", "empirical"):
        la = fit(case, structure, kind)
        again = fitted(case.model, case.x, case.y, case.likelihood.with_noise(0.8), structure, curvature=kind)
        noise = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
        value = la.log_evidence(noise=noise)
        assert relative(value.detach(), again.log_evidence().cpu()) < 1e-12
        step = 1e-5
        slope = (la.log_evidence(noise=0.8 + step) - la.log_evidence(noise=0.8 - step)) / (2 * step)
        assert relative(torch.autograd.grad(value, noise)[0], slope.cpu()) < 1e-6
    with pytest.raises(ValueError, match=r"2 numbers; expected one.*common factor"):
        la.log_evidence(noise=torch.tensor([1.0, 2.0]))


@pytest.mark.parametrize("name", NOISY)
def test_noise_from_residuals(name: str) -> None:
    """One per output: the root mean square of the residuals over examples and positions."""
    case = BY_NAME[name]
    la = fitted(case.model, case.x, case.y, pw.Gaussian("residuals"), "diag")
    form = form_of(case)
    residuals = form.flatten(case.f - case.y).reshape(-1, form.outputs)
    noise = torch.stack([(column @ column / len(column)).sqrt() for column in residuals.T])
    assert isinstance(la.likelihood, pw.Gaussian)
    made = torch.as_tensor(la.likelihood.noise, dtype=torch.float64).reshape(-1)
    assert relative(made, noise) < 1e-12
    again = fitted(case.model, case.x, case.y, pw.Gaussian(noise), "diag")
    assert relative(curvature_of(la), curvature_of(again)) < 1e-12


@dataclass(frozen=True)
class Waiting(WithNoise):
    """A likelihood of a user that leaves its noise to `fit`."""

    noise: float | Tensor | str = "residuals"
    awaits_residuals = True
    in_target_units = True
    noise_precision = torch.ones((), dtype=torch.float64)

    def energy(self, f: Tensor, y: Tensor) -> Tensor:
        """Half the squares."""
        return 0.5 * (f - y).square().sum((1, 2))

    def root(self, f: Tensor, y: Tensor, probes: slice = slice(None)) -> Tensor:
        """The identity."""
        return torch.diag_embed(torch.ones_like(f))[..., probes]

    def with_noise(self, noise: float | Tensor) -> WithNoise:
        """A fixed one."""
        return pw.Gaussian(noise)


def test_any_likelihood_may_leave_its_noise_to_the_residuals() -> None:
    """It says so, and gets one number per output, or one number of one."""
    case = BY_NAME[NOISY[0]]
    made = fitted(case.model, case.x, case.y, Waiting(), "diag").likelihood
    expected = fitted(case.model, case.x, case.y, pw.Gaussian("residuals"), "diag").likelihood
    assert isinstance(made, pw.Gaussian) and isinstance(expected, pw.Gaussian)
    noises = (torch.as_tensor(each.noise, dtype=torch.float64).reshape(-1) for each in (made, expected))
    assert torch.equal(*noises)


# Networks of lower precision


LOWER = {torch.float32: 2e-4, torch.bfloat16: 0.15, torch.float16: 0.03}
LOW = (
    "categorical weights, smoothing, ignored",
    "binary labels, missing",
    "regression tokens, each",
    "heteroscedastic raw",
    "count image",
    "custom row",
)


@pytest.mark.parametrize("dtype", LOWER, ids=str)
@pytest.mark.parametrize("name", LOW)
def test_likelihoods_of_networks_of_lower_precision(name: str, dtype: torch.dtype) -> None:
    """Curvature and evidence are near those in float64, and float32 at least."""
    case = BY_NAME[name]
    model = network_in(case, dtype)
    x = case.x.to(dtype) if case.x.is_floating_point() else case.x
    for kind in ("ggn", "fisher", "empirical", "hessian") if name != "custom row" else ("ggn", "empirical"):
        if kind == "hessian" and dtype != torch.float32:
            continue
        la = fitted(model, x, case.y, case.likelihood, "full", curvature=kind)
        assert la.weights.dtype == torch.float32
        exact = fit(case, "full", kind)
        difference = curvature_of(la).double() - curvature_of(exact)
        if kind != "fisher":  # a label near the boundary may be drawn differently
            assert float(difference.norm() / curvature_of(exact).norm()) < LOWER[dtype], kind
        assert abs(la.state.totals.energy - exact.state.totals.energy) < 0.2 * LOWER[dtype] * abs(
            exact.state.totals.energy
        )


def network_in(case: LikelihoodCase, dtype: torch.dtype) -> nn.Module:
    """The network of a case in another type."""
    return copy.deepcopy(case.model).to(dtype)


def test_energies_beyond_half_precision() -> None:
    """A sum of squares above 65,504 is an ordinary energy."""
    model = built(nn.Linear(3, 2)).half()
    x, y = normal(4, 3).half(), torch.full((4, 2), 400.0)
    la = fitted(model, x, y, "regression", "diag", curvature="ggn")
    exact = 0.5 * (model.double()(x.double()).detach() - 400).square().sum()
    assert abs(la.state.totals.energy - float(exact)) < 1e-3 * float(exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@EVERY
def test_constants_are_in_double_precision(name: str, dtype: torch.dtype) -> None:
    """Whatever the outputs are in; what depends on the noise precision is in its own."""
    case = BY_NAME[name]
    form = form_of(case)
    likelihood = case.likelihood.bind(form)
    y = likelihood.targets(case.y.to(dtype) if case.y.is_floating_point() else case.y, form)
    for made in (likelihood.noise_precision, likelihood.rest(y)):
        assert made.dtype == torch.float64 and made.shape == ()
    assert likelihood.log_z(3.0, likelihood.noise_precision.to(dtype)).dtype == dtype
    labelled = likelihood.labelled(y)
    counted = {pw.Custom: len(y), pw.Categorical: int(labelled.sum()), pw.Bernoulli: int((y >= 0).sum())}
    assert float(likelihood.scalars(y)) == counted.get(type(likelihood), y.numel())
    assert labelled.dtype == torch.bool and labelled.shape == y.shape[:2]


@pytest.mark.parametrize(
    "likelihood",
    [pw.Categorical(), pw.Bernoulli(), pw.Gaussian(), pw.HeteroscedasticGaussian("mean_variance"), pw.Poisson()],
    ids=lambda each: type(each).__name__,
)
def test_distributions_of_outputs_that_are_not_finite(likelihood: Any) -> None:
    """Are NaN, as the outputs are, and no error."""
    made = likelihood.distribution(torch.full((2, 1, 4), torch.nan))
    assert bool(torch.isnan(made.log_prob(torch.zeros(made.batch_shape))).all())


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("soft", [False, True])
def test_cross_entropies_are_torchs(soft: bool, weighted: bool, smoothing: float) -> None:
    """With class weights, of which one is zero, smoothing and soft targets; labels of -1 do not count."""
    torch.manual_seed(0)
    f = torch.randn(6, 4, 3, dtype=torch.float64)
    weight = torch.tensor([0.5, 0.0, 2.0], dtype=torch.float64) if weighted else None
    y = torch.randn(6, 4, 3, dtype=torch.float64).softmax(-1) if soft else torch.randint(-1, 3, (6, 4))
    likelihood = pw.Categorical(ignore_index=-1, weight=weight, label_smoothing=smoothing)
    if weight is not None:
        own = weight.clone()
        weight *= 7  # the caller's tensor, not the likelihood's
        weight = own
    expected = torch.stack(
        [
            torch.nn.functional.cross_entropy(
                each, labels, weight, ignore_index=-1, reduction="sum", label_smoothing=smoothing
            )
            for each, labels in zip(f, y, strict=True)
        ]
    )
    form = likelihood.form(f, y)
    torch.testing.assert_close(likelihood.energy(f, likelihood.targets(y, form)), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_a_single_class_is_sure(smoothing: float) -> None:
    """Beside labels that are ignored too: nothing is to be learnt, and nothing fails."""
    likelihood = pw.Categorical(axis=-1, label_smoothing=smoothing)
    f, y = torch.randn(2, 3, 1, dtype=torch.float64), torch.tensor([[0, -100, 0], [-100, 0, 0]])
    assert likelihood.form(f, y).outputs == 1
    draws = Hashed(DEFAULT_SEED, torch.arange(2), 3)
    for made in (likelihood.energy(f, y), likelihood.root(f, y), likelihood.drawn_score(f, y, draws)):
        assert float(made.abs().max()) < 1e-12
    assert likelihood.root(f, y).shape == (2, 3, 1, 1)
    assert [pw.Categorical().rank(outputs) for outputs in (1, 2, 3, 7)] == [1, 1, 2, 6]


def test_one_noise_stays_a_number() -> None:
    """And a posterior that is stored has one; several stay a tensor."""
    for noise in (0.3, torch.tensor(0.3), torch.tensor([0.3])):
        made = pw.Gaussian(noise).with_noise(torch.tensor([0.5], dtype=torch.float64))
        assert type(made.noise) is float and made == pw.Gaussian(0.5)
    assert float(pw.Gaussian().noise_precision) == 1 and float(pw.Gaussian(0.1).noise_precision) == pytest.approx(
        100, rel=1e-14
    )
    several = pw.Gaussian(torch.tensor([0.5, 2.0])).with_noise(3.0)
    assert isinstance(several.noise, Tensor)
    torch.testing.assert_close(several.noise, torch.tensor([1.5, 6.0], dtype=torch.float64))


def test_ratios_of_noises() -> None:
    """A common factor leaves them; a millionth beside each other is more than rounding."""
    noise = torch.tensor([0.4, 1.5, 0.9], dtype=torch.float64)
    likelihood = pw.Gaussian(noise)
    assert likelihood.same_ratios(pw.Gaussian(7 * noise)) and pw.Gaussian(2.0).same_ratios(pw.Gaussian(0.1))
    for place, factor in ((0, 1.1), (1, 0.9), (2, 1 + 2e-6)):
        other = noise.clone()
        other[place] *= factor
        assert not likelihood.same_ratios(pw.Gaussian(other)) and not pw.Gaussian(other).same_ratios(likelihood)
    other = noise * torch.tensor([1 + 3e-7, 1.0, 1.0], dtype=torch.float64)
    assert likelihood.same_ratios(pw.Gaussian(other))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@EVERY
def test_roots_are_in_the_precision_of_the_outputs(name: str, dtype: torch.dtype) -> None:
    """With one noise or several, and whatever the targets are in."""
    case = BY_NAME[name]
    form = form_of(case)
    likelihood, f = case.likelihood.bind(form), form.flatten(case.f).to(dtype)
    if isinstance(likelihood, pw.Custom):
        return
    assert likelihood.root(f, likelihood.targets(case.y, form)).dtype == dtype


@EVERY
def test_scores_are_gradients_of_the_energy(name: str) -> None:
    """Without a graph unless one is asked for, whatever the outputs have."""
    case = BY_NAME[name]
    form = form_of(case)
    likelihood, f = case.likelihood.bind(form), form.flatten(case.f).clone()
    y = likelihood.targets(case.y, form)
    exact = torch.stack([case.gradient(f, y) for f, y in zip(case.f, case.y, strict=True)])
    for given in (f, f.clone().requires_grad_()):
        made = score(likelihood, given, y)
        assert not made.requires_grad
        assert relative(form.restore(made).reshape(exact.shape) * likelihood.noise_precision, exact) < 1e-10
    assert score(likelihood, given, y, create_graph=True).requires_grad


HALVES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((5, 4), (5, 2)),
    ((5, 2), (5, 1)),
    ((5, 2), (5,)),
    ((5, 3, 4), (5, 3, 2)),
    ((5, 3, 2), (5, 3)),
    ((5, 4, 2, 3), (5, 2, 2, 3)),
    ((5, 2, 4, 3), (5, 1, 4, 3)),
    ((5, 2, 4, 3), (5, 4, 3)),
]


@pytest.mark.parametrize(("shape", "given"), HALVES)
def test_half_as_many_targets_as_outputs(shape: tuple[int, ...], given: tuple[int, ...]) -> None:
    """Of which a single one need not have an axis."""
    likelihood, y = pw.HeteroscedasticGaussian(), torch.randn(given)
    axis = 1 if len(shape) > 3 else len(shape) - 1
    form = likelihood.form(torch.zeros(shape), y)
    assert form == Form(axis - 1, shape[1:])
    whole = y if y.dim() == len(shape) else y.unsqueeze(axis)
    expected = whole.movedim(axis, -1).reshape(5, form.positions, -1)
    assert torch.equal(likelihood.targets(y, form), expected)


CURVED = torch.tensor([[2.0, 0.5, 0.0], [0.5, 1.0, 0.3], [0.0, 0.3, 3.0]], dtype=torch.float64)


def test_hessians_of_custom_energies() -> None:
    """In closed form; differentiable where the outputs are, and zero where only something else is differentiable."""
    torch.manual_seed(0)
    f, y = torch.randn(4, 1, 3, dtype=torch.float64), torch.randn(4, 1, 3, dtype=torch.float64)
    cubic = pw.Custom(lambda f, y: (f @ CURVED * f).sum(1) / 2 + f.pow(3).sum(1) * 5)
    expected = CURVED + torch.diag_embed(30 * f)
    torch.testing.assert_close(cubic.hessian(f, y), expected)
    assert not cubic.hessian(f, y).requires_grad
    asked = f.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(cubic.hessian(asked, y).sum(), asked)
    torch.testing.assert_close(gradient, torch.full_like(f, 30))
    share = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    for energy in (lambda f, y: (f * y).sum(1), lambda f, y: (f * y).sum(1) * share):
        found = pw.Custom(energy).hessian(f, y)
        assert found.shape == (4, 1, 3, 3) and not bool(found.any())
    with torch.no_grad():
        assert cubic.energy(asked, y).shape == (4,)
    assert pw.Custom(lambda f, y: y.sum(1)).energy(f, y).shape == (4,)


@pytest.mark.parametrize(("lowest", "said"), [(-1.5e-4, True), (-0.7e-4, False), (0.0, False)])
def test_a_warning_for_negative_curvature_beyond_rounding(lowest: float, said: bool) -> None:
    """From a ten-thousandth of the largest on, of whatever size that is; and where it was asked for."""
    f, y = torch.zeros(2, 1, 2, dtype=torch.float64), torch.zeros(2, 1, 2, dtype=torch.float64)
    for size in (1e-3, 1.0, 1e3):
        values = size * torch.tensor([1.0, lowest], dtype=torch.float64)
        likelihood = pw.Custom(lambda f, y, values=values: (f.square() * values).sum(1) / 2)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            root = likelihood.root(f, y)
        assert [each.filename for each in caught] == [__file__] * said
        assert all(f"(down to {size * lowest:.3g})" in str(each.message) for each in caught)
        torch.testing.assert_close(root @ root.mT, torch.diag(values.clamp(min=0)).expand(2, 1, 2, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not bool(pw.Custom(lambda f, y: (f * y).sum(1)).root(f, y).any())


def test_custom_distributions_take_outputs_in_their_shape() -> None:
    """Behind any leading axes; in one axis where no data were seen."""
    seen: list[Tensor] = []
    likelihood = pw.Custom(lambda f, y: f.sum((1, 2)), predictive=seen.append)
    f = torch.randn(7, 5, 1, 6)
    likelihood.distribution(f)
    likelihood.bind(Form(1, (2, 3), whole=True)).distribution(f)
    assert torch.equal(seen[0], f[:, :, 0]) and torch.equal(seen[1], f.reshape(7, 5, 2, 3))
    assert pw.Custom(lambda f, y: f.sum(1)).distribution(f) is None


@pytest.mark.parametrize("parameters", ["natural", "mean_variance", "mean_log_variance"])
def test_every_form_of_a_gaussian_has_its_natural_parameters(parameters: str) -> None:
    """Mean over variance, and minus half of one over variance."""
    mean, variance = torch.tensor([[0.3, -2.0]]).double(), torch.tensor([[0.5, 4.0]]).double()
    outputs = {
        "natural": (mean / variance, -0.5 / variance),
        "mean_variance": (mean, variance),
        "mean_log_variance": (mean, variance.log()),
    }
    first, second = pw.HeteroscedasticGaussian(parameters).natural(torch.cat(outputs[parameters], -1))
    torch.testing.assert_close(first, mean / variance)
    torch.testing.assert_close(second, -0.5 / variance)


@pytest.mark.parametrize("outputs", [1, 2, 3, 5])
def test_natural_parameters_of_any_number_of_outputs(outputs: int) -> None:
    """The first half of the outputs, and the second."""
    f = normal(4, 2 * outputs)
    first, second = pw.HeteroscedasticGaussian(parameters="natural").natural(f)
    assert torch.equal(first, f[:, :outputs]) and torch.equal(second, f[:, outputs:])


def test_one_deviation_for_each_output() -> None:
    """Or one for all, or one that is yet to be found."""
    f = y = torch.zeros(4, 2)
    for noise in (0.1, "residuals", [0.1, 0.2]):
        assert pw.Gaussian(noise).form(f, y).outputs == 2
    with pytest.raises(ValueError, match="has 3 numbers, and the network 2 outputs"):
        pw.Gaussian([0.1, 0.2, 0.3]).form(f, y)
