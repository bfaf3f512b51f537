"""Parameters that are not in memory as they are read: the same posterior as of the same network stored plainly."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
import reference_dense as dense
from cases import BY_NAME
from environment import DEVICE
from fitting import built, names_of, normal, weights_of
from networks import Network, parameter
from peewit.curvature.structures import NAMES as STRUCTURES
from peewit.tracing.layers.examples import BatchAxis
from peewit.tracing.layers.weight_views import WeightView
from tables import NAMES, ROUTED, curvature_of, moved, relative, table, tolerance

EVERY = pytest.mark.parametrize("name", NAMES)
IMAGES = [name for name in NAMES if any(p.dim() == 4 for p in BY_NAME[name].make()[0].parameters())]
EXACT = 1e-8


def with_gaps(tensor: Tensor) -> Tensor:
    """The same numbers, with others between them in memory."""
    return torch.stack([tensor, torch.full_like(tensor, 7.0)], -1)[..., 0]


def turned(tensor: Tensor) -> Tensor:
    """The same numbers, with the last axis outermost in memory; of a vector, with gaps."""
    axes = tuple(reversed(range(tensor.dim())))
    return tensor.permute(axes).contiguous().permute(axes) if tensor.dim() > 1 else with_gaps(tensor)


def stored(model: nn.Module, how: Callable[[Tensor], Tensor]) -> nn.Module:
    """The network with every parameter stored in another way.

    Those of batch norms stay: torch's own gradient through a batch norm is wrong where its scale has gaps in memory.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    kept = {id(each) for module in norms for each in module.parameters()}
    for each in model.parameters():
        if id(each) not in kept:
            each.data = how(each.data)
    return model


def refitted(name: str, model: nn.Module, structure: Any) -> pw.Laplace:
    """A row of the table fitted with another network."""
    case = table(name)
    data = (moved(case.x), moved(case.y))
    return pw.fit(model, data, case.likelihood, structure=structure, curvature="ggn")


def rules(la: pw.Laplace) -> dict[str, str]:
    """The rule of every weight."""
    return {row.name: row.rule for row in la.coverage()}


@EVERY
def test_every_network_with_parameters_in_another_order(name: str) -> None:
    """Curvatures equal the dense ones, in the order of `p.flatten()`, and every weight keeps its rule."""
    case = table(name)
    model = stored(case.case.make()[0].to(DEVICE), turned)
    assert not all(each.is_contiguous() for each in model.parameters())
    la = refitted(name, model, "kron")
    index = case.index(la)
    assert rules(la) == rules(case.fit("kron"))
    generic = frozenset(row.name for row in la.coverage() if row.rule == "generic") if name in ROUTED else frozenset()
    assert relative(curvature_of(la), case.kron(generic)[index][:, index]) < tolerance(name, EXACT)
    assert relative(curvature_of(refitted(name, model, "full")), case.ggn[index][:, index]) < tolerance(name, EXACT)
    # Bases of EKFAC are not unique where eigenvalues are equal; its variances of the outputs are as good as unique.
    for structure in ("diag", "block", "ekfac")[NAMES.index(name) % 3 :][:1]:
        plain, other = case.fit(structure), refitted(name, model, structure)
        assert relative(curvature_of(other), curvature_of(plain)) < 1e-6


@pytest.mark.parametrize("name", IMAGES)
def test_channels_last(name: str) -> None:
    """Networks of images in the layout of fast convolutions are what they are in the plain one."""
    case = table(name)
    model = case.case.make()[0].to(DEVICE).to(memory_format=torch.channels_last)
    plain, other = case.fit("kron"), refitted(name, model, "kron")
    assert rules(plain) == rules(other)
    index = case.index(other)
    assert relative(curvature_of(other), case.kron()[index][:, index]) < tolerance(name, EXACT)
    x = moved(case.x)
    assert relative(other.functional(x).cov, plain.functional(x).cov.cpu()) < tolerance(name, EXACT)
    assert relative(other.log_evidence(), plain.log_evidence().cpu()) < tolerance(name, EXACT)


# Views of such parameters


def as_it_is(p: Tensor) -> Tensor:
    """The parameter."""
    return p


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": as_it_is,
    "rows": lambda p: p[1:3],
    "one row": lambda p: p[2],
    "one column": lambda p: p[:, 1],
    "every other": lambda p: p[::2],
    "transpose": lambda p: p.transpose(0, 1),
    "reversed axes": lambda p: p.permute(2, 1, 0),
    "corner": lambda p: p[1:, 1:, :1],
    "repeated": lambda p: p[:, :1].expand(-1, 3, -1),
    "axes of one": lambda p: p[None, :, :, None],
    "windows": lambda p: p.unfold(0, 2, 1),
    "diagonal": lambda p: p.diagonal(),
    "chunk": lambda p: p.chunk(2, 1)[1],
    "unbound": lambda p: p.unbind(2)[1],
}
ORDERS = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("gaps", [False, True])
def test_places_of_views(view: str, gaps: bool) -> None:
    """A view's elements are found where the same view of the parameter's own numbering has them."""
    numbers = torch.arange(4 * 3 * 2).reshape(4, 3, 2)
    for order in ORDERS:
        inverse = tuple(order.index(axis) for axis in range(3))
        p = nn.Parameter(torch.empty(4, 3, 2).permute(order).contiguous().permute(inverse))
        if gaps:
            p.data = with_gaps(p.data)
        seen, expected = VIEWS[view](p), VIEWS[view](numbers)
        found = WeightView.of("p", seen, p)
        assert found is not None
        assert torch.equal(found.index(), expected)
        flat = expected.flatten()
        assert found.is_rows == torch.equal(flat, torch.arange(flat[0], flat[0] + len(flat)))


def test_views_without_a_place() -> None:
    """Elements that share memory, that are another dtype's, or that are not the parameter's have no place in it."""
    spread = nn.Parameter(torch.randn(4, 1).expand(4, 3))
    assert WeightView.of("p", spread, spread) is not None
    assert WeightView.of("p", spread[1:], spread) is None
    pairs = nn.Parameter(torch.randn(3, 2))
    assert WeightView.of("p", torch.view_as_complex(pairs), pairs) is None
    part = nn.Parameter(torch.randn(10)[2:6])
    assert WeightView.of("p", part.as_strided((3,), (1,), 3), part) is not None
    assert WeightView.of("p", part.as_strided((3,), (1,), 4), part) is None  # beyond its end
    assert WeightView.of("p", part.as_strided((3,), (1,), 0), part) is None  # before its beginning
    apart = nn.Parameter(torch.randn(4, 6)[:, ::2])
    assert WeightView.of("p", apart.as_strided((2,), (2,), 0), apart) is not None
    assert WeightView.of("p", apart.as_strided((2,), (1,), 0), apart) is None  # between its elements
    last = nn.Parameter(torch.randn(2, 3, 4).transpose(1, 2))  # in memory the second axis is the innermost
    assert WeightView.of("p", last.transpose(1, 2).flatten(1), last) is None  # 0, 3, 6, 9, 1, ...: not evenly apart


@pytest.mark.parametrize(
    ("shape", "view", "turned"),
    [
        ((5, 4), as_it_is, False),
        ((4, 5), lambda p: p.T, True),
        ((5, 1), as_it_is, False),
        ((5, 1), lambda p: p.T, True),
        ((5,), as_it_is, False),
        ((2, 5, 4), lambda p: p.mT, True),
        ((2, 5, 4), lambda p: p.transpose(0, 1), False),
        ((6, 4), lambda p: p[2:5].T, True),
    ],
)
def test_which_views_are_transposed(shape: tuple[int, ...], view: Callable[[Tensor], Tensor], turned: bool) -> None:
    """By the order of the last two axes in the parameter; of an axis of one the other is taken for the first."""
    p = nn.Parameter(torch.randn(shape))
    found = WeightView.of("p", view(p), p)
    assert found is not None and found.transposed == turned


def test_empty_views() -> None:
    """They are at the beginning, in order; so are parameters without elements."""
    for p in (nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(3, 4).T), nn.Parameter(torch.randn(0, 3))):
        found = WeightView.of("p", p[p.shape[0] :, 1:], p)
        assert found is not None and found.is_rows and (found.start, found.steps) == (0, (2, 1))


@pytest.mark.parametrize(
    ("axis", "fold", "shape", "examples", "fits"),
    [
        (0, "whole", (5, 3), 1, True),
        (0, "whole", (5, 3), 2, False),
        (1, "whole", (0,), 1, True),
        (2, "none", (4, 4), 4, False),
        (1, "none", (2, 4), 4, True),
        (1, "none", (4, 8), 4, False),
        (0, "major", (8, 3), 4, True),
        (0, "minor", (4, 3), 4, False),
        (0, "minor", (6, 3), 4, False),
        (0, "major", (0, 3), 4, False),
        (2, "major", (8, 8), 4, False),
        (1, "owned", (2, 3), 4, True),
        (2, "owned", (2, 3), 4, False),
    ],
)
def test_where_examples_can_be(axis: int, fold: str, shape: tuple[int, ...], examples: int, fits: bool) -> None:
    """On an axis as long as there are examples, or a multiple where they are folded; anywhere where one is all."""
    assert BatchAxis(axis, fold).fits(shape, examples) == fits


def sum_positions(p: nn.Parameter, apply: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    """A layer whose outputs (B, 4, 3, 2) meet a parameter (4, 3, 2), (B, 4) to (B, 2)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = self.enter(x).reshape(-1, 4, 3, 2)
        return self.head(torch.tanh(apply(hidden, self.p)).flatten(1))

    return Network(forward, enter=nn.Linear(4, 24), p=p, head=nn.Linear(24, 2))


MEETINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "added": lambda h, p: h + p,
    "multiplied": lambda h, p: h * p,
    "row added": lambda h, p: h + p[2],
    "column multiplied": lambda h, p: h * p[:, 1:2],
    "turned": lambda h, p: (h.transpose(1, 3) + p.permute(2, 1, 0)).transpose(1, 3),
    "expanded": lambda h, p: h * p[None].expand_as(h),
    "linear": lambda h, p: torch.nn.functional.linear(h, p[0, :2, :]).sum(-1, keepdim=True) + h,
    "product": lambda h, p: h + (h @ p[1].T) @ p[:3, :, 0].T @ p[2],
    "conv": lambda h, p: torch.nn.functional.conv1d(h.flatten(2), p[:, None, :, 0], padding=1, groups=4).unflatten(
        2, (3, 2)
    ),
}


@pytest.mark.parametrize("meeting", MEETINGS)
@pytest.mark.parametrize("order", ORDERS[1:], ids=str)
def test_posteriors_of_views(meeting: str, order: tuple[int, ...]) -> None:
    """Precision, covariance and its diagonal equal dense ones, under a precision of its own for every weight."""
    inverse = tuple(order.index(axis) for axis in range(3))
    values = normal(4, 3, 2, seed=5)
    model = built(sum_positions(nn.Parameter(values), MEETINGS[meeting]))
    x, y = normal(6, 4), normal(6, 2, seed=3)
    names = names_of(model)
    exact, jacobian = dense.ggn(model, x, y, "regression", names), dense.jacobian(model, x, names)
    model.p.data = model.p.data.permute(order).contiguous().permute(inverse)
    assert not model.p.is_contiguous()
    delta = 0.5 + torch.arange(len(exact)).double()
    model = model.to(DEVICE)
    la = pw.fit(model, (moved(x), moved(y)), pw.Gaussian(), structure="full", curvature="ggn")
    la = la.with_prior(pw.Prior.diagonal(delta))
    precision = exact + torch.diag(delta)
    assert relative(la.precision.mv(torch.eye(la.D, dtype=torch.float64, device=DEVICE)), precision) < EXACT
    expected = jacobian @ torch.linalg.inv(precision) @ jacobian.mT
    assert relative(la.functional(moved(x)).cov, expected) < EXACT


def test_priors_masks_and_samples_in_the_order_of_the_weights() -> None:
    """Precisions by unit, prior means, masks, drawn weights and sampled predictions are those of the plain network."""
    case = table("layer_scale")
    plain, other = case.case.make()[0].to(DEVICE), stored(case.case.make()[0].to(DEVICE), turned)
    x, data = moved(case.x), (moved(case.x), moved(case.y))
    size = len(case.ggn)
    units = sum(len(each) for each in plain.parameters())
    priors = [
        pw.Prior.unitwise(0.5 + torch.arange(units).double(), mean=0.3),
        pw.Prior.diagonal(0.5 + torch.arange(size).double(), mean=-0.2),
    ]
    for prior in priors:
        fits = [
            pw.fit(each, data, "classification", structure="full", curvature="ggn", prior=prior)
            for each in (plain, other)
        ]
        assert torch.equal(fits[0].weights, fits[1].weights)
        drawn = [la.sample(3, torch.Generator(DEVICE).manual_seed(1)) for la in fits]
        assert relative(drawn[1], drawn[0].cpu()) < EXACT
        assert relative(fits[1].log_evidence(), fits[0].log_evidence().cpu()) < EXACT
        probs = [
            la.predict(x, method="sampled", samples=20, generator=torch.Generator(DEVICE).manual_seed(1)).probs
            for la in fits
        ]
        assert relative(probs[1], probs[0].cpu()) < EXACT
    mask = torch.arange(size) % 3 == 1
    for structure in ("diag", "full"):
        la = pw.fit(other, data, "classification", structure=structure, curvature="ggn", weights=mask)
        exact = case.ggn[mask][:, mask]
        assert relative(curvature_of(la), torch.diag(exact.diagonal()) if structure == "diag" else exact) < EXACT
    assert torch.equal(weights_of(plain), weights_of(other))


def test_elements_that_share_memory() -> None:
    """A parameter whose elements are one number in memory is as many weights as it has elements, in any use."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.enter(x).reshape(-1, 4, 3) * self.p + self.p[1]).flatten(1))

    members = {"enter": nn.Linear(4, 12), "p": parameter(4, 3), "head": nn.Linear(12, 2)}
    model = built(Network(forward, **members))
    model.p.data = normal(4, 1, seed=4).expand(4, 3)
    x, y = normal(6, 4), normal(6, 2, seed=3)
    expected = dense.ggn(model, x, y, "regression", names_of(model))
    model = model.to(DEVICE)
    la = pw.fit(model, (moved(x), moved(y)), pw.Gaussian(), structure="full", curvature="ggn")
    assert relative(curvature_of(la), expected) < EXACT


# Complex numbers


def spectral(change: Callable[[Any, Tensor], Tensor], **members: Any) -> nn.Module:
    """A change to the spectrum (B, 4) of a layer's outputs, (B, 4) to (B, 2)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(torch.tanh(torch.fft.irfft(change(self, torch.fft.rfft(self.enter(x))), n=6)))

    return built(Network(forward, enter=nn.Linear(4, 6), **members, head=nn.Linear(6, 2)))


SPECTRA: dict[str, Callable[[], nn.Module]] = {
    "pairs as numbers": lambda: spectral(lambda self, s: s * torch.view_as_complex(self.p), p=parameter(4, 2)),
    "pairs added": lambda: spectral(lambda self, s: torch.view_as_complex(self.p) + s, p=parameter(4, 2)),
    "pairs expanded": lambda: spectral(
        lambda self, s: s * torch.view_as_complex(self.p).expand_as(s), p=parameter(1, 4, 2)
    ),
    "real gain": lambda: spectral(lambda self, s: s * self.p, p=parameter(4)),
    "gain in front": lambda: spectral(lambda self, s: self.p * s, p=parameter(1, 4)),
    "real shift": lambda: spectral(lambda self, s: s + self.p, p=parameter(4)),
    "complex matrix": lambda: spectral(lambda self, s: s @ torch.view_as_complex(self.p), p=parameter(4, 4, 2)),
}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("structure", STRUCTURES)
def test_complex_numbers(name: str, structure: str) -> None:
    """Real weights of complex numbers have real variances, and curvatures equal to dense ones."""
    model = SPECTRA[name]()
    x, y = normal(6, 4), normal(6, 2, seed=3)
    names = names_of(model)
    exact = dense.ggn(model, x, y, "regression", names)
    model = model.to(DEVICE)
    la = pw.fit(model, (moved(x), moved(y)), pw.Gaussian(), structure=structure, curvature="ggn")
    assert (rules(la)["p"] == "generic") == (name not in ("real gain", "gain in front", "real shift"))
    assert not la.functional(moved(x)).cov.is_complex()
    found = curvature_of(la)
    places = torch.cat([torch.full((model.get_parameter(each).numel(),), each == "p") for each in names])
    own = exact[places][:, places]
    assert relative(found[places][:, places], torch.diag(own.diagonal()) if structure == "diag" else own) < EXACT
    if structure == "full":
        precision = exact + torch.eye(len(exact), dtype=torch.float64)
        assert relative(found, exact) < EXACT
        assert relative(la.precision.logdet(), torch.logdet(precision)) < EXACT
        jacobian = dense.jacobian(copy.deepcopy(model).cpu(), x, names)
        expected = jacobian @ torch.linalg.inv(precision) @ jacobian.mT
        assert relative(la.functional(moved(x)).cov, expected) < EXACT


def test_complex_weights_are_refused() -> None:
    """Weights that are complex themselves have no real Gaussian: the message says what to do."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head((x * self.p).abs())

    model = Network(forward, p=nn.Parameter(torch.randn(4, dtype=torch.complex128)), head=nn.Linear(4, 2).double())
    data = (normal(6, 4), normal(6, 2, seed=3))
    with pytest.raises(ValueError, match=r"'p' is torch.complex128.*view_as_complex"):
        pw.fit(model, data, "regression")
    la = pw.fit(model, data, "regression", weights=["head"])
    assert la.D == 10
    assert la.state.identity.is_same(model)
    with torch.no_grad():
        model.p.imag.neg_()
    assert not la.state.identity.is_same(model)


@pytest.mark.parametrize("named", [False, True])
def test_group_norms_of_inputs_in_channels_last(named: bool) -> None:
    """Torch's own backward pass ends the process here, on a CPU: the input needs no gradient."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.head = nn.GroupNorm(2, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            own = {"weight": self.norm.weight, "bias": self.norm.bias}
            h = nn.functional.group_norm(input=x, num_groups=2, **own) if named else self.norm(x)
            return self.head(torch.tanh(h).mean((2, 3)))

    torch.manual_seed(0)
    model, y = Net().double().to(DEVICE), torch.randint(3, (5,), device=DEVICE)
    x = torch.randn(5, 4, 2, 3, dtype=torch.float64, device=DEVICE)
    la = pw.fit(model, (x.contiguous(memory_format=torch.channels_last), y), "classification", structure="full")
    expected = pw.fit(model, (x, y), "classification", structure="full")
    assert rules(la)["norm.weight"] == "group norm" and "agree with plain reverse mode" in la.coverage().verified
    torch.testing.assert_close(curvature_of(la), curvature_of(expected), rtol=1e-9, atol=1e-12)


BARE = """
import torch
import torch.nn.functional as F
from torch import nn

import peewit as pw

CALLS = {
    "F.group_norm": lambda x, w, b: F.group_norm(x, 2, w, b),
    "F.group_norm by name": lambda x, w, b: F.group_norm(input=x, num_groups=2, weight=w, bias=b),
    "torch.group_norm": lambda x, w, b: torch.group_norm(x, 2, w, b),
    "torch.native_group_norm": lambda x, w, b: torch.native_group_norm(x, w, b, len(x), 4, 6, 2, 1e-5)[0],
    "F.instance_norm": lambda x, w, b: F.instance_norm(x, weight=w, bias=b),
    "torch.instance_norm": lambda x, w, b: torch.instance_norm(x, w, b, None, None, True, 0.1, 1e-5, False),
}


class Net(nn.Module):
    def __init__(self, norm, scaled):
        super().__init__()
        self.norm, self.scaled = norm, scaled
        self.scale, self.shift = nn.Parameter(torch.rand(4) + 0.5), nn.Parameter(torch.randn(4))
        self.gain, self.conv = nn.Parameter(torch.rand(1, 4, 1, 1) + 0.5), nn.Conv2d(4, 3, 2)

    def forward(self, x):
        h = (x * self.gain).contiguous(memory_format=torch.channels_last) if self.scaled else x
        return self.conv(torch.tanh(self.norm(h, self.scale, self.shift))).mean((2, 3))


def jacobian(model, x, names):
    parameters = [model.get_parameter(name) for name in names]
    made = []
    for output in model(x).flatten():
        row = torch.autograd.grad(output, parameters, retain_graph=True)
        made.append(torch.cat([each.flatten() for each in row]))
    return torch.stack(made).reshape(len(x), 3, -1)


for name, norm in CALLS.items():
    for scaled in (False, True):
        print(name, scaled, flush=True)
        torch.manual_seed(0)
        model = Net(norm, scaled).double()
        x, y = torch.randn(5, 4, 2, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)
        turned = x.contiguous(memory_format=torch.channels_last)
        model.conv.to(memory_format=torch.channels_last)
        la = pw.fit(model, (turned, y), "regression", structure="full", curvature="ggn")
        assert not la.state.knowledge.corrections, la.state.knowledge.corrections
        plain = Net(norm, False).double()
        plain.load_state_dict(model.state_dict())
        if scaled:
            plain.norm = lambda x, w, b: norm(x * plain.gain, w, b)
        J = jacobian(plain, x, la.space.names)
        precision = torch.eye(la.D).double() + torch.einsum("nkd,nke->de", J, J)
        expected = J @ torch.linalg.inv(precision) @ J.transpose(1, 2)
        torch.testing.assert_close(la.functional(turned).cov, expected, rtol=1e-8, atol=1e-12)
        for place in range(5):
            one = la.functional(turned[place : place + 1]).cov[0]
            torch.testing.assert_close(one, expected[place], rtol=1e-8, atol=1e-12)
        pw.fit(model, (turned, y), "regression", structure="full", curvature="hessian")
        la.diagnose((turned, y))
        la.at_linear_mode((turned, y))
"""


def test_bare_norms_of_inputs_in_channels_last() -> None:
    """Calls without a module, in a process of their own: on a CPU, torch alone would end it."""
    paths = [str(Path(pw.__file__).parents[1]), *sys.path]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""}
    made = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", BARE], env=environment, capture_output=True, text=True, timeout=300
    )
    assert made.returncode == 0, (made.returncode, made.stdout, made.stderr)
    assert len(made.stdout.splitlines()) == 12


@pytest.mark.parametrize("strided", [False, True])
def test_bare_norms_keep_their_rule(strided: bool) -> None:
    """The weight of a bare call is recorded as it is, in any memory layout."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            both = torch.rand(4, 2) + 0.5
            self.scale, self.head = nn.Parameter(both[:, 0] if strided else both[:, 0].clone()), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(torch.tanh(nn.functional.group_norm(x, 2, self.scale)).mean((2, 3)))

    model = Net().double().to(DEVICE)
    x, y = torch.randn(5, 4, 2, 3).double().to(DEVICE), torch.randint(3, (5,), device=DEVICE)
    la = pw.fit(model, (x, y), "classification", structure="full")
    assert rules(la)["scale"] == "group norm"
