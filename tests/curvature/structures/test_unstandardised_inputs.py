"""Inputs that are far from zero, of different sizes or nearly dependent: float32 networks against dense float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import peewit as pw
from fitting import normal
from peewit.curvature.structures.rounding import amplification
from peewit.posterior.network import network_of
from peewit.tracing.layers.conv.moments import PatchMoments

STRUCTURES = ("kron", "ekfac", "block", "full", "diag")


def weather(examples: int = 300, hidden: int = 16, offset: float = 101.325) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A year, kelvin, kilopascal and a number around 0."""
    g = torch.Generator().manual_seed(0)
    normal = torch.randn(examples, 4, generator=g)
    year = 2000 + 20 * torch.rand(examples, generator=g)
    x = torch.stack([year, 290 + 5 * normal[:, 0], offset + 0.3 * normal[:, 1], normal[:, 2]], 1)
    y = torch.sin((x[:, :1] - 2010) / 4) + 0.1 * normal[:, 3:]
    return perceptron(4, hidden, g), x, y


def collinear(examples: int = 300) -> tuple[nn.Sequential, Tensor, Tensor]:
    """Six inputs that are three directions, times 100."""
    g = torch.Generator().manual_seed(1)
    z = torch.randn(examples, 3, generator=g)
    x = 100 * z @ torch.randn(3, 6, generator=g)
    return perceptron(6, 16, g), x, torch.sin(z[:, :1])


def perceptron(inputs: int, hidden: int, g: torch.Generator) -> nn.Sequential:
    """Two layers with small first weights."""
    net = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 1))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=g))
        net[0].weight.mul_(0.01)
    return net


CASES = {
    "noise 0.01": (weather, (), 0.01, 1.0),
    "noise 0.1": (weather, (), 0.1, 1.0),
    "small prior": (weather, (), 0.1, 0.01),
    "other pressure": (weather, (300, 16, 101.0), 0.01, 1.0),
    "wide": (weather, (300, 40), 0.1, 0.1),
    "collinear": (collinear, (), 1.0, 1e-4),
}


@dataclass
class Perceptron:
    """Inputs, gradients and Jacobians of both layers in float64, from the network's own weights, in closed form."""

    net: nn.Sequential
    x: Tensor

    def __post_init__(self) -> None:
        w, b, v, c = (parameter.detach().double() for parameter in self.net.parameters())
        self.inputs = self.x.double()
        self.hidden = torch.tanh(self.inputs @ w.T + b)
        self.output = self.hidden @ v.T + c
        self.weights = torch.cat([each.flatten() for each in (w, b, v, c)])
        self.slope = v * (1 - self.hidden.square())  # (N, H): the output's gradient in the hidden units' arguments
        self.one = torch.ones(len(self.x), 1, dtype=torch.float64)

    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """Gradients and inputs of the four tensors: weight, bias, weight, bias."""
        return [(self.slope, self.inputs), (self.slope, self.one), (self.one, self.hidden), (self.one, self.one)]

    def jacobians(self) -> list[Tensor]:
        """(N, P) for every tensor."""
        return [torch.einsum("no,ni->noi", g, a).flatten(1) for g, a in self.layers()]

    def curvature(self, structure: str) -> list[tuple[tuple[int, ...], Tensor]]:
        """Which tensors a block is over, and its dense matrix."""
        found = self.jacobians()
        if structure == "kron":
            return [((place,), torch.kron(g.T @ g, a.T @ a / len(a))) for place, (g, a) in enumerate(self.layers())]
        if structure == "ekfac":
            made = []
            for place, (g, a) in enumerate(self.layers()):
                basis = torch.kron(torch.linalg.eigh(g.T @ g)[1], torch.linalg.eigh(a.T @ a)[1])
                made.append(((place,), basis * (found[place] @ basis).square().sum(0) @ basis.T))
            return made
        if structure == "diag":
            return [((place,), torch.diag(each.square().sum(0))) for place, each in enumerate(found)]
        groups = [(0, 1), (2, 3)] if structure == "block" else [(0, 1, 2, 3)]
        return [(group, self.rows(group).T @ self.rows(group)) for group in groups]

    def rows(self, group: tuple[int, ...]) -> Tensor:
        """(N, P) of some tensors side by side."""
        return torch.cat([self.jacobians()[place] for place in group], 1)

    def answers(self, structure: str, noise: float, prior: float, y: Tensor) -> tuple[Tensor, float]:
        """(N,) variances of the outputs, and the log evidence."""
        variance = torch.zeros(len(self.x), dtype=torch.float64)
        volume = 0.0
        for group, matrix in self.curvature(structure):
            precision = matrix / noise**2 + prior * torch.eye(len(matrix), dtype=torch.float64)
            rows = self.rows(group)
            variance += (torch.linalg.solve(precision, rows.T).T * rows).sum(1)
            volume += float(torch.linalg.slogdet(precision)[1]) - len(matrix) * math.log(prior)
        squares = float((self.output - y.double()).square().sum())
        fit = -0.5 * squares / noise**2 - 0.5 * len(y) * math.log(2 * math.pi * noise**2)
        return variance, fit - 0.5 * volume - 0.5 * prior * float(self.weights.square().sum())


def off(made: Tensor, expected: Tensor) -> float:
    """The largest relative difference."""
    return float((made.double().flatten() / expected.flatten() - 1).abs().max())


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("case", CASES)
def test_variances_and_evidence(case: str, structure: str) -> None:
    """By default, in a float32 network, both are those of dense matrices in float64."""
    make, arguments, noise, prior = CASES[case]
    net, x, y = make(*arguments)
    variance, evidence = Perceptron(net, x).answers(structure, noise, prior, y)
    la = pw.fit(net, (x, y), pw.Gaussian(noise), structure=structure, prior=prior)
    made = la.functional(x)
    assert made.cov.dtype == made.mean.dtype == torch.float32
    assert off(made.cov, variance) < 0.05  # the network's own rounding is part of it
    assert off(la.functional(x, variance_only=True).cov, variance) < 0.05
    joint = la.functional(x[:5], joint=True).cov.reshape(5, 5).diagonal()
    assert off(joint, variance[:5]) < 0.05
    assert abs(float(la.log_evidence()) - evidence) < 0.1 + 1e-7 * abs(evidence)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_samples_and_tuning_agree_with_float64(structure: str) -> None:
    """Samples, other priors and noises, and tuning agree with the same network in float64."""
    net, x, y = weather(200, 40)
    la = pw.fit(net, (x, y), pw.Gaussian(0.5), structure=structure)
    wide = pw.fit(copy.deepcopy(net).double(), (x.double(), y.double()), pw.Gaussian(0.5), structure=structure)
    tuned, expected = la.tune(), wide.tune()
    assert off(tuned.prior.precision, expected.prior.precision) < 0.01
    assert abs(float(tuned.likelihood.noise) / float(expected.likelihood.noise) - 1) < 0.01
    assert off(tuned.functional(x).cov, expected.functional(x.double()).cov) < 0.03
    assert abs(la.evidence().gamma - wide.evidence().gamma) < 0.05
    draws = la.functional_samples(x[:20], 4000, torch.Generator().manual_seed(0))
    assert off(draws.var(0), wide.functional(x[:20].double()).cov) < 0.2
    assert la.sample(2).dtype == torch.float32
    v = torch.randn(3, la.D, generator=torch.Generator().manual_seed(0))
    again = la.precision.mv(la.precision.solve(v.double() if v.dtype != la.weights.dtype else v))
    assert again.dtype == la.weights.dtype


@pytest.mark.parametrize("structure", ["kron", "block", "full"])
def test_batches_of_any_size(structure: str) -> None:
    """In small batches, from an iterator that can be read once, and added later: the same."""
    net, x, y = weather(240, 40)
    variance, _ = Perceptron(net, x).answers(structure, 0.1, 0.1, y)
    batches = [(x[start : start + 16], y[start : start + 16]) for start in range(0, 240, 16)]

    def once() -> Iterator[tuple[Tensor, Tensor]]:
        yield from batches

    family = pw.Gaussian(0.1)
    for memory in (None, 2e5):  # the second cuts batches
        la = pw.fit(net, once(), family, structure=structure, prior=0.1, memory=memory)
        assert off(la.functional(x).cov, variance) < 0.05
    first = pw.fit(net, batches[:3], family, structure=structure, prior=0.1)
    assert off(first.update(batches[3:]).functional(x).cov, variance) < 0.05


@pytest.mark.parametrize("structure", ["kron", "block"])
@pytest.mark.parametrize("scale", [1e-3, 1e-5])
def test_small_numbers_first(structure: str, scale: float) -> None:
    """Rounding that comes to matter when much was summed, also where the data come once."""
    net, x, y = weather(240, 40)
    x = torch.cat([x[:200] * scale, x[200:]])
    variance, _ = Perceptron(net, x).answers(structure, 0.1, 0.1, y)
    batches = [(x[start : start + 8], y[start : start + 8]) for start in range(0, 240, 8)]
    for data in (batches, iter(batches)):
        la = pw.fit(net, data, pw.Gaussian(0.1), structure=structure, prior=0.1, memory=1e4)
        assert off(la.functional(x).cov, variance) < 0.05


def test_joint_bias() -> None:
    """The column of ones is in the same factor."""
    net, x, y = weather()
    own = Perceptron(net, x)
    total = torch.zeros(len(x), dtype=torch.float64)
    for gradients, inputs in ((own.slope, own.inputs), (own.one, own.hidden)):
        inputs = torch.cat([inputs, own.one], 1)
        matrix = torch.kron(gradients.T @ gradients, inputs.T @ inputs / len(x)) / 0.1**2
        rows = torch.einsum("no,ni->noi", gradients, inputs).flatten(1)
        precision = matrix + 0.1 * torch.eye(len(matrix), dtype=torch.float64)
        total += (torch.linalg.solve(precision, rows.T).T * rows).sum(1)
    la = pw.fit(net, (x, y), pw.Gaussian(0.1), structure=pw.Kron(bias="joint"), prior=0.1)
    assert off(la.functional(x).cov, total) < 0.05


@pytest.mark.parametrize("approx", ["expand", "reduce"])
@pytest.mark.parametrize("offsets", [False, True])
def test_convolutions_of_large_pixels(approx: str, offsets: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution of bright pixels and its bias: from patches, or without them by offsets of its taps."""
    monkeypatch.setattr(PatchMoments, "cheaper", offsets)
    channels, size = 2, 8
    g = torch.Generator().manual_seed(0)
    x = 250 + 0.1 * torch.rand(40, channels, size, size, generator=g)
    net = nn.Sequential(
        nn.Conv2d(channels, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(3 * (size - 2) ** 2, 1, bias=False)
    )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=g))
        net[0].weight.mul_(0.01)
        net[3].weight.mul_(1 / size)
    structure = pw.Kron(approx=approx, bias="joint")
    zeros = torch.zeros(40, 1)
    la = pw.fit(net, (x, zeros), pw.Gaussian(0.01), structure=structure, weights=["0.weight", "0.bias"], prior=0.01)
    w, b, v = (parameter.detach().double() for parameter in net.parameters())
    patches = F.unfold(x.double(), 3).mT  # (N, T, I)
    hidden = torch.tanh(patches @ w.flatten(1).T + b)  # (N, T, O)
    patches = F.pad(patches, (0, 1), value=1.0)
    slope = v.reshape(3, -1).T * (1 - hidden.square())
    inputs = patches.flatten(0, 1) if approx == "expand" else patches.mean(1)
    gradients = slope.flatten(0, 1) if approx == "expand" else slope.sum(1)
    matrix = torch.kron(gradients.T @ gradients, inputs.T @ inputs / len(inputs)) / 0.01**2
    precision = matrix + 0.01 * torch.eye(len(matrix), dtype=torch.float64)
    rows = torch.einsum("nto,nti->noi", slope, patches).flatten(1)
    expected = (torch.linalg.solve(precision, rows.T).T * rows).sum(1)
    assert off(la.functional(x).cov, expected) < 0.05
    assert abs(float(la.precision.logdet() - torch.linalg.slogdet(precision)[1])) < 0.1


def test_precisions_of_rows() -> None:
    """A prior that differs inside a block, under which factors are decomposed again."""
    net, x, y = weather(200, 40)
    prior = pw.Prior.unitwise(torch.logspace(-2, 0, 82))
    la = pw.fit(net, (x, y), pw.Gaussian(0.1), prior=prior)
    delta = prior.delta(la.space, la.weights).double()
    own, start = Perceptron(net, x), 0
    total = torch.zeros(len(x), dtype=torch.float64)
    for (place,), matrix in own.curvature("kron"):
        precision = matrix / 0.1**2 + torch.diag(delta[start : start + len(matrix)])
        rows = own.jacobians()[place]
        total += (torch.linalg.solve(precision, rows.T).T * rows).sum(1)
        start += len(matrix)
    assert off(la.functional(x).cov, total) < 0.05


class Gains(nn.Module):
    """A parameter that no Kronecker form fits."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor([1.0, -2.0, 0.5, 1.5]))

    def forward(self, x: Tensor) -> Tensor:
        """(N, 4) -> (N, 1)."""
        return (x * self.gain).sum(1, keepdim=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["linear", "gains"])
def test_linear_models(kind: str, dtype: torch.dtype) -> None:
    """The posterior of a linear model is known, also of one in half precision, whose inputs are exact in it."""
    _, x, y = weather(200)
    x = x.to(dtype)
    net = nn.Linear(4, 1, bias=False) if kind == "linear" else Gains()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(1e-3)
    la = pw.fit(net.to(dtype), (x, y.to(dtype)), pw.Gaussian(0.1), prior=0.01)
    wide = x.double()
    precision = wide.T @ wide / 0.1**2 + 0.01 * torch.eye(4, dtype=torch.float64)
    expected = (torch.linalg.solve(precision, wide.T).T * wide).sum(1)
    assert off(la.functional(x).cov, expected) < 0.05
    assert abs(float(la.precision.logdet() - torch.linalg.slogdet(precision)[1])) < 0.01


@pytest.mark.parametrize("structure", ["kron", "ekfac", "block"])
def test_files_and_other_arithmetics_lose_nothing(structure: str, tmp_path: object) -> None:
    """Files and other arithmetics lose nothing."""
    net, x, y = weather(150, 40)
    variance, _ = Perceptron(net, x).answers(structure, 0.1, 0.1, y)
    la = pw.fit(net, (x, y), pw.Gaussian(0.1), structure=structure, prior=0.1)
    la.save(f"{tmp_path}/kept.safetensors")
    for made in (
        pw.load(f"{tmp_path}/kept.safetensors", net),
        la.with_arithmetic("float32"),
        la.with_arithmetic("float64").with_arithmetic("auto"),
    ):
        assert off(made.functional(x).cov, variance) < 0.05
        assert off(made.update([(x[:1], y[:1])]).functional(x[1:]).cov, variance[1:]) < 0.2


def test_gradients_in_the_inputs() -> None:
    """Covariances can be differentiated in the inputs as those of the network in float64."""
    net, x, y = weather(150, 40)
    slopes = []
    for model, dtype in ((net, torch.float32), (copy.deepcopy(net).double(), torch.float64)):
        la = pw.fit(model, (x.to(dtype), y.to(dtype)), pw.Gaussian(0.1))
        given = x[:5].to(dtype).requires_grad_()
        (slope,) = torch.autograd.grad(la.functional(given, create_graph=True).cov.log().sum(), given)
        slopes.append(slope.double())
    assert float((slopes[0] - slopes[1]).norm() / slopes[1].norm()) < 0.05


@pytest.mark.parametrize("before", [False, True])
def test_amplified_errors(before: bool) -> None:
    """The number that decides on products in float64: an eigenvalue, of two matrices at once, the larger one."""
    g = torch.Generator().manual_seed(0)
    rows = torch.randn(2, 50, 8, generator=g, dtype=torch.float64) * torch.logspace(-3, 3, 8, dtype=torch.float64)
    rows[0, :, 1] = rows[0, :, 0] * (1 + 0.01 * torch.randn(50, generator=g))
    matrix, ridge = rows.mT @ rows, torch.tensor([1e-9, 1e-3], dtype=torch.float64)
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    some = diagonal * torch.rand(2, 8, generator=g) if before else diagonal
    inner = torch.linalg.inv(matrix + torch.diag_embed(ridge[:, None].expand(2, 8)))
    expected = torch.linalg.eigvalsh(some.sqrt()[:, :, None] * inner * some.sqrt()[:, None, :]).amax()
    made = amplification(matrix, ridge, some if before else None)
    assert 0.8 * expected < made < 1.01 * expected
    rows[0, :, 1] = rows[0, :, 0]
    assert float(amplification(rows.mT @ rows, 0 * ridge, None)) > 1e5


def standardised() -> tuple[nn.Sequential, Tensor, Tensor]:
    """Benign inputs, and a hidden layer that is not small."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200, 4, generator=g)
    net = perceptron(4, 40, g)
    return net, x, net(x).detach() + torch.randn(200, 1, generator=g)


@pytest.mark.parametrize("structure", ["kron", "block", "full"])
def test_plain_inputs_stay_in_float32(structure: str) -> None:
    """Where rounding does not show nothing is paid, and nothing said."""
    net, x, y = standardised()
    la = pw.fit(net, (x, y), pw.Gaussian(1.0), structure=structure)
    if structure == "kron":
        assert {
            each.inputs.dtype
            for (key, _), each in la.state.measurement.sums.factors.items()
            if key[0].name == "0.weight"
        } == {torch.float32}
    else:
        assert {each.dtype for each in la.state.measurement.sums.matrices.values()} == {torch.float32}
    found = la.diagnose((x, y))["rounding"]
    assert found.severity == "fine" and found.numbers["share"] < 0.1
    assert network_of(la.state, None).budget.arithmetic.name == "auto"


def test_a_finding_where_rounding_shows() -> None:
    """A prior far below that of the fit: a finding says so, and another fit needs none."""
    net, x, y = standardised()
    la = pw.fit(net, (x, y), pw.Gaussian(1.0))
    smaller = la.with_prior(1e-6)
    found = smaller.diagnose((x, y))["rounding"]
    assert found.severity == "warning" and "arithmetic='float64'" in found.advice and "Fit again" in found.advice
    assert network_of(smaller.state, None).budget.arithmetic.name == "float32"
    again = pw.fit(net, (x, y), pw.Gaussian(1.0), prior=1e-6)
    assert again.diagnose((x, y))["rounding"].severity == "fine"


def test_a_warning_where_rounding_shows() -> None:
    """What a float32 network cannot resolve at all is said at the fit, at an update and after tuning."""
    net, x, y = weather(100)
    far = 1e4 * x
    with torch.no_grad():
        net[0].weight.mul_(1e-4)
    with pytest.warns(pw.RoundingWarning, match=r"times the prior precision of '0.weight'.*Standardise") as caught:
        la = pw.fit(net, (far, y), pw.Gaussian(0.01), prior=1e-3)
    assert caught[0].filename == __file__
    with pytest.warns(pw.RoundingWarning) as caught:
        la.update((far, y))
    assert caught[0].filename == __file__
    with pytest.warns(pw.RoundingWarning) as caught:
        la.tune(parameters=["noise"])
    assert caught[-1].filename == __file__
    assert la.diagnose((far, y))["rounding"].severity == "warning"


# More data than one batch holds


def raw(examples: int = 3000, inputs: int = 6, hidden: int = 40) -> tuple[nn.Sequential, Tensor, Tensor]:
    """Inputs from around 0 to around 1,000."""
    g = torch.Generator().manual_seed(0)
    z = torch.randn(examples, inputs, generator=g)
    x = torch.linspace(0, 1000, inputs) + torch.linspace(1, 5, inputs) * z
    net = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, 1))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=g))
        net[0].weight.mul_(0.01)
    return net, x, torch.sin(z[:, :1]) + 0.1 * torch.randn(examples, 1, generator=g)


def batches(x: Tensor, y: Tensor, size: int = 256) -> Iterator[tuple[Tensor, Tensor]]:
    """One after the other, once."""
    yield from zip(x.split(size), y.split(size), strict=True)


@pytest.mark.parametrize("data", ["pair", "iterator", "in order"])
@pytest.mark.parametrize("structure", ["kron", "ekfac", "block", "full"])
def test_inputs_far_from_zero(structure: str, data: str) -> None:
    """Variances and evidence of the network in float64, from tensors, one-shot batches, and a first batch apart."""
    net, x, y = raw()
    if data == "in order":  # the first batch has other inputs than the others
        order = x[:, 3].argsort()
        x, y = x[order], y[order]
    exact = pw.fit(copy.deepcopy(net).double(), (x.double(), y.double()), pw.Gaussian(0.1), structure=structure)
    given: Any = batches(x, y) if data == "iterator" and structure != "ekfac" else (x, y)
    la = pw.fit(net, given, pw.Gaussian(0.1), structure=structure)
    ratio = la.functional(x[::30]).cov.double() / exact.functional(x[::30].double()).cov
    assert float((ratio - 1).abs().max()) < 0.02
    assert abs(float(la.log_evidence() - exact.log_evidence())) < 0.3


def test_convolutions_of_raw_pixels() -> None:
    """Patches of smooth images from 0 to 255, whose factors may be made without their rows or averaged first."""
    g = torch.Generator().manual_seed(0)
    small = torch.rand(200, 3, 3, 3, generator=g)
    x = 255 * nn.functional.interpolate(small, (9, 9), mode="bilinear")
    net = nn.Sequential(nn.Conv2d(3, 34, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(34, 3))
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=g))
        net[0].weight.mul_(0.01)
    y = torch.randint(3, (200,), generator=g)
    wide = copy.deepcopy(net).double()
    for structure in (pw.Kron(), pw.Kron(approx="reduce"), pw.Kron(bias="joint"), pw.Block()):
        la = pw.fit(net, (x, y), "classification", structure=structure, prior=1e-3)
        exact = pw.fit(wide, (x.double(), y), "classification", structure=structure, prior=1e-3)
        made, expected = (
            own.functional(given[:20]).cov.double().diagonal(dim1=-2, dim2=-1)
            for own, given in ((la, x), (exact, x.double()))
        )
        assert float((made / expected - 1).abs().max()) < 0.02


@pytest.mark.parametrize("structure", ["kron", "block"])
def test_updates_of_raw_inputs(structure: str) -> None:
    """Half of the data first, and half later: as the network in float64."""
    net, x, y = raw(2000)
    la, exact = (
        pw.fit(own, (x[:1000].to(dtype), y[:1000].to(dtype)), pw.Gaussian(0.1), structure=structure).update(
            (x[1000:].to(dtype), y[1000:].to(dtype))
        )
        for own, dtype in ((net, torch.float32), (copy.deepcopy(net).double(), torch.float64))
    )
    ratio = la.functional(x[::20]).cov.double() / exact.functional(x[::20].double()).cov
    assert float((ratio - 1).abs().max()) < 0.02
    assert abs(float(la.log_evidence() - exact.log_evidence())) < 0.1


@pytest.mark.parametrize(
    ("structure", "hidden"),
    [*((pw.Kron(bias=bias), hidden) for bias in ("separate", "joint") for hidden in (60, 150)), (pw.Block(), 60)],
    ids=str,
)
def test_smaller_priors(structure: Any, hidden: int) -> None:
    """A prior that is chosen after the fit may be a thousand times smaller: what the sums hold is enough for it."""
    _, x, y = raw(2500)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, 1))
    with torch.no_grad():
        net[0].weight.mul_(0.01)
    if isinstance(structure, pw.Block):
        net = net[:2].append(nn.Linear(hidden, 1))
    la = pw.fit(net, (x, y), pw.Gaussian(0.3), structure=structure)
    exact = pw.fit(copy.deepcopy(net).double(), (x.double(), y.double()), pw.Gaussian(0.3), structure=structure)
    for prior in (1.0, 0.1, 0.01, 0.001):
        one, two = la.with_prior(prior), exact.with_prior(prior)
        ratio = one.functional(x[::50]).cov.double() / two.functional(x[::50].double()).cov
        assert float((ratio - 1).abs().max()) < 0.03
        assert abs(float(one.log_evidence() - two.log_evidence())) < 0.3


@pytest.mark.parametrize(
    ("width", "prior", "noise", "codes"), [(299, 1e-3, 1e-2, 1), (400, 1e-5, 1.0, 1), (300, 1.0, 1e-2, 3)]
)
@pytest.mark.parametrize("structure", ["full", "kron"])
def test_columns_that_are_exactly_dependent(structure: str, width: int, prior: float, noise: float, codes: int) -> None:
    """One-hot codes add up to ones: only the prior decides there, and rounding of products would take its place."""
    g = torch.Generator().manual_seed(1)
    some = [torch.randint(0, width // codes, (2000,), generator=g) for _ in range(codes)]
    x = 0.3 * torch.cat([nn.functional.one_hot(each, width // codes).float() for each in some], 1)  # rounded products
    y = torch.randn(2000, 1, generator=g)
    torch.manual_seed(0)
    net = nn.Linear(x.shape[1], 1)
    wide, unseen = copy.deepcopy(net).double(), torch.zeros(1, x.shape[1])
    la = pw.fit(net, (x, y), pw.Gaussian(noise), structure=structure, prior=prior)
    exact = pw.fit(wide, (x.double(), y.double()), pw.Gaussian(noise), structure=structure, prior=prior)
    assert float(la.functional(unseen).cov / exact.functional(unseen.double()).cov) == pytest.approx(1, abs=0.02)
    assert abs(float(la.log_evidence() - exact.log_evidence())) < 0.1


class Gated(nn.Module):
    """A matrix for each of two groups, one of which is off in some examples."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(0.02 * normal(2, 140, 40).float())
        self.h = nn.Linear(80, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 2, 140) -> (N, 2)."""
        made = torch.einsum("bgi,gio->bgo", x, self.w)
        gate = (x[:, 1, :1] < 600).to(made)
        return self.h(torch.tanh(torch.stack([made[:, 0], made[:, 1] * gate], 1) * 1e-2).flatten(1))


def test_a_group_without_gradients_in_the_first_batch() -> None:
    """Nothing becomes infinite, and the evidence is that of the network in float64."""
    torch.manual_seed(0)
    net, x, y = Gated(), torch.randn(600, 2, 140) + 500, torch.randn(600, 2)
    x[:300, 1] += 200
    for data, wide in (((x, y), (x.double(), y.double())), (list(batches(x, y, 100)), None)):
        la = pw.fit(net, data, "regression", prior=1e-3)
        exact = pw.fit(copy.deepcopy(net).double(), wide or (x.double(), y.double()), "regression", prior=1e-3)
        assert abs(float(la.log_evidence() - exact.log_evidence())) < 0.1
