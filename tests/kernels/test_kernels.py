"""Fused kernels for Jacobians with several positions, against sums written out in float64.

On a GPU they run as they are; without one, where Triton is installed, its interpreter runs them.
"""

from __future__ import annotations

import copy
import importlib.util
import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from peewit.jacobians.factored import Matrix, Term
from peewit.jacobians.inputs import Acts
from peewit.jacobians.layout import Layout
from peewit.kernels import available
from peewit.kernels import gradients as kernel_gradients
from peewit.kernels import jacobians as kernel_jacobians
from peewit.kernels import operands as kernel_operands
from peewit.kernels import products as kernel_products
from peewit.runtime.arithmetic import Arithmetic
from peewit.runtime.memory import Budget

ON_GPU = torch.device(DEVICE).type == "cuda"
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

# K probes, B examples, G groups, T positions, O rows, I columns of the weight; whether positions are contiguous.
SHAPES = [
    (10, 3, 1, 5, 7, 9, False),
    (10, 2, 1, 40, 70, 65, True),
    (3, 2, 2, 20, 9, 33, True),
    (1, 4, 1, 70, 130, 20, False),
    (20, 2, 1, 17, 5, 130, True),
    (40, 2, 1, 16, 3, 20, True),
    (70, 2, 1, 9, 2, 20, False),
    (70, 1, 1, 40, 3, 200, True),
    (130, 1, 1, 20, 2, 300, True),
    (1, 1, 1, 2, 1, 1, False),
    (2, 1, 1, 16, 4, 700, False),
]
# Relative errors: of products as exact as float32's, with 11 bits, with 8 bits.
BOUNDS = {"float32": 3e-5, "tf32": 2e-3, "bf16": 2e-2}


@pytest.fixture(autouse=True)
def interpreter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Triton's interpreter where there is no GPU."""
    if not ON_GPU:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    available.kernels.cache_clear()
    monkeypatch.setattr(kernel_jacobians, "worthwhile", lambda jacobian, operands: True)  # small ones too
    yield
    available.kernels.cache_clear()
    available.broken.clear()


def operands(shape: tuple[int, ...], contiguous: bool) -> tuple[Tensor, ...]:
    """Gradients (K, B, G, T, O), inputs (B, G, T, I), bases of both sides and weights (G, O, I), in float32."""
    probes, examples, groups, positions, rows, width = shape
    torch.manual_seed(sum(shape))
    if contiguous:
        grad = torch.randn(probes, examples, groups, rows, positions).transpose(-1, -2)
    else:
        grad = torch.randn(probes, examples, groups, positions, rows)
    act = torch.randn(examples, groups, positions, width)
    left = torch.linalg.qr(torch.randn(groups, rows, rows))[0]
    right = torch.linalg.qr(torch.randn(groups, width, width))[0]
    return tuple(each.to(DEVICE) for each in (grad, act, left, right, torch.rand(groups, rows, width)))


def matrix(grad: Tensor, act: Tensor, arithmetic: str, memory: float = 1e9) -> Matrix:
    """The Jacobian with these gradients and inputs."""
    layout = Layout.plain(grad.shape[2], grad.shape[4], act.shape[3])
    acts = Acts(make=lambda examples: act[examples], width=act.shape[3], positions=act.shape[2])
    return Matrix((Term(acts, grad),), layout, Budget(int(memory), Arithmetic(arithmetic)))


def written_out(grad: Tensor, act: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """(B, K, G, O, I) in float64."""
    grad, act = grad.double(), act.double()
    made = torch.einsum("kbgto,bgti->bkgoi", grad, act)
    made = made if left is None else torch.einsum("bkgoi,gop->bkgpi", made, left.double())
    return made if right is None else torch.einsum("bkgoi,gij->bkgoj", made, right.double())


def worst(found: Tensor, expected: Tensor) -> float:
    """The largest error of an example, relative to its own size."""
    found, expected = found.double().flatten(1), expected.flatten(1)
    return float(((found - expected).norm(dim=1) / expected.norm(dim=1)).max())


@pytest.mark.parametrize("arithmetic", list(BOUNDS))
@pytest.mark.parametrize(("shape", "contiguous"), [(each[:6], each[6]) for each in SHAPES])
def test_kernels(shape: tuple[int, ...], contiguous: bool, arithmetic: str) -> None:
    """Covariances, variances and squares, in bases and without; examples of very different sizes."""
    if arithmetic == "bf16" and not ON_GPU:
        pytest.skip("Triton's interpreter has no products of bfloat16")
    grad, act, left, right, weight = operands(shape, contiguous)
    grad[:, -1] *= 1e-7
    act[0] *= 1e5
    asked = matrix(grad, act, arithmetic)
    assert asked._fusable()
    for bases in ((left, right), (None, right), (left, None), (None, None)):
        rows = written_out(grad, act, *bases)
        scaled = rows * weight.double().sqrt()
        flat = scaled.flatten(2)
        assert worst(asked.quad(weight, *bases), flat @ flat.mT) < BOUNDS[arithmetic]
        assert worst(asked.variance(weight, *bases), flat.square().sum(-1)) < BOUNDS[arithmetic]
        squares = rows.square().sum((0, 1))
        assert worst(asked.square_sum(*bases)[None], squares[None]) < BOUNDS[arithmetic]
    assert not available.broken


def test_transposed_weights() -> None:
    """Of a weight (I, O) the same, with both sides exchanged."""
    grad, act, left, right, weight = operands((10, 3, 2, 5, 7, 9), False)
    acts = Acts(make=lambda examples: act[examples], width=9, positions=5)
    budget = Budget(10**9, Arithmetic("float32"))
    asked = Matrix((Term(acts, grad, flipped=True),), Layout.plain(2, 9, 7), budget)
    assert asked.upright()._fusable()
    rows = written_out(grad, act, left, right)
    flat = (rows * weight.double().sqrt()).flatten(2)
    assert worst(asked.quad(weight.mT, right, left), flat @ flat.mT) < BOUNDS["float32"]
    assert worst(asked.variance(weight.mT, right, left), flat.square().sum(-1)) < BOUNDS["float32"]
    assert worst(asked.square_sum(right, left)[None], rows.square().sum((0, 1)).mT[None]) < BOUNDS["float32"]
    assert not available.broken


def test_examples_apart() -> None:
    """NaN in one example stays there; splitting by memory changes nothing."""
    grad, act, left, right, weight = operands((4, 5, 1, 20, 24, 40), True)
    whole = matrix(grad, act, "float32").quad(weight, left, right)
    torch.testing.assert_close(matrix(grad, act, "float32", 2e4).quad(weight, left, right), whole, rtol=1e-5, atol=0)
    grad[1, 2, 0, 3, 4] = math.nan
    found = matrix(grad, act, "float32").quad(weight, left, right)
    assert bool(torch.isnan(found[2]).any())
    others = [0, 1, 3, 4]
    torch.testing.assert_close(found[others], whole[others], rtol=1e-6, atol=0)


def test_kernels_that_fail_leave_the_slower_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers, and one warning."""
    grad, act, left, right, weight = operands((4, 3, 1, 20, 24, 40), False)
    expected = matrix(grad, act, "float32").quad(weight, left, right)

    def fails(*_: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(kernel_operands, "split", fails)
    with pytest.warns(UserWarning, match="fused GPU kernels do not run here .*no compiler"):
        found = matrix(grad, act, "float32").quad(weight, left, right)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6 * float(expected.abs().max()))
    matrix(grad, act, "float32").variance(weight, left, right)


@pytest.mark.parametrize("in_parts", [False, True], ids=["rotated", "in_parts"])
@pytest.mark.parametrize("structure", ["kron", "ekfac", "diag"])
def test_networks(structure: str, in_parts: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions with strides, padding, dilation and groups, and linear maps over positions, whole fits."""
    if in_parts:  # rotations in 16 bits, which only large ones are worth
        monkeypatch.setattr(kernel_operands, "WORTH_SPLITTING", 1)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(6, 8, 3, stride=2, dilation=2, padding=2, groups=2),
        nn.Tanh(),
        nn.Flatten(2),
        nn.Linear(9, 4),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(32, 3),
    ).to(DEVICE)
    x, y = torch.randn(6, 2, 6, 6, device=DEVICE), torch.arange(6, device=DEVICE) % 3
    wide = pw.fit(model.double(), (x.double(), y), "classification", structure=structure).functional(x.double())
    model.float()
    for arithmetic, bound in (("float32", 1e-4), ("auto", 3e-3), ("tf32", 3e-3)):
        la = pw.fit(model, (x, y), "classification", structure=structure, arithmetic=arithmetic)
        made = la.functional(x)
        assert worst(made.cov, wide.cov) < bound
        variances = la.functional(x, variance_only=True).cov
        assert worst(variances, wide.cov.diagonal(dim1=1, dim2=2)) < bound
    assert not available.broken


def test_gradients_of_covariances() -> None:
    """Kernels leave graphs alone: gradients in the inputs go through layer inputs too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(12, 2)).to(DEVICE)
    x, y = torch.randn(4, 2, 6, device=DEVICE), torch.arange(4, device=DEVICE) % 2
    la = pw.fit(model, (x, y), "classification", arithmetic="float32")
    asked = x[:1].clone().requires_grad_()
    (found,) = torch.autograd.grad(la.functional(asked, create_graph=True).cov.sum(), asked)
    wide = copy.deepcopy(model).double()
    la = pw.fit(wide, (x.double(), y), "classification")
    asked = x[:1].double().requires_grad_()
    (expected,) = torch.autograd.grad(la.functional(asked, create_graph=True).cov.sum(), asked)
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-5)


def test_examples_of_one_product_apart() -> None:
    """In products of gradients with weights too."""
    torch.manual_seed(0)
    grad, weight = torch.randn(6, 20, device=DEVICE), torch.randn(20, 8, device=DEVICE)
    grad[1] *= 1e-9
    grad[2] *= 1e9
    expected = grad.double() @ weight.double()
    assert worst(kernel_products.product(grad, weight), expected) < 1e-5
    grad[3, 0] = math.nan
    found = kernel_products.product(grad, weight)
    assert bool(torch.isnan(found[3]).all()) and worst(found[[0, 1, 2, 4, 5]], expected[[0, 1, 2, 4, 5]]) < 1e-5


def test_kernels_that_fail_leave_torchs_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also inside a backward pass, which comes before all else."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 2)).to(DEVICE)
    x, y = torch.randn(5, 4, 3, device=DEVICE), torch.zeros(5, 4, dtype=torch.long, device=DEVICE)
    expected = pw.fit(model, (x, y), "classification", arithmetic="tf32").log_evidence()
    monkeypatch.setattr(kernel_products, "WORTH_PARTS", 1.0)

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(available, "launch", fails)
    with pytest.warns(UserWarning, match="no compiler"):
        la = pw.fit(model, (x, y), "classification", arithmetic="float32")
    assert float(la.log_evidence()) == pytest.approx(float(expected), rel=1e-3)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 3, 2500), (4, 1, 1), (1, 6, 64)])
def test_split(shape: tuple[int, ...], axis: int) -> None:
    """Two parts are the number to 22 bits, whatever the examples' sizes; NaN stays with its own."""
    torch.manual_seed(sum(shape))
    x = torch.randn(shape, device=DEVICE)
    sizes = [1] * 3
    sizes[axis] = -1
    x = x * (10.0 ** (torch.arange(shape[axis], device=DEVICE) % 9)).reshape(sizes)
    for given in (x, x.mT.contiguous().mT):
        made = kernel_operands.split(given, axis, True, torch.float16)
        assert made.high.stride() == given.stride() and made.high.dtype == torch.float16
        found = (made.high.double() + made.low.double()) / made.scale.double().reshape(sizes)
        largest = given.double().abs().amax([each for each in range(3) if each != axis], keepdim=True)
        assert float(((found - given).abs() / largest).max()) < 2.0**-21
        assert torch.equal(made.scale.log2(), made.scale.log2().round())


@pytest.mark.parametrize("shape", [(5, 7), (3, 2048), (2, 3000), (70, 1), (1, 384)])
def test_split_rows(shape: tuple[int, ...]) -> None:
    """Every row on its own, of very different sizes, of zeros, and with NaN in one."""
    torch.manual_seed(sum(shape))
    x = torch.randn(shape, device=DEVICE) * (10.0 ** -torch.arange(shape[0], device=DEVICE).clamp(max=10))[:, None]
    x[-1] = 0.0
    made = kernel_operands.split_rows(x)
    found = (made.high.double() + made.low.double()) / made.scale.double()[:, None]
    assert float(((found - x).abs().amax(1) / x.double().abs().amax(1).clamp(min=1e-30)).max()) < 2.0**-21
    if shape[1] > 1:  # Triton's interpreter takes no largest number of NaN alone
        x[0, 0] = math.nan
        again = kernel_operands.split_rows(x)
        assert bool(again.high[0, 0].isnan()) and torch.equal(again.high[1:], made.high[1:])


HEADS = [(2, 3, 5, 6, 4, 7), (1, 2, 20, 17, 16, 16), (2, 1, 3, 70, 33, 5)]  # B, H, T, S, d, e


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("probes", [1, 3])
@pytest.mark.parametrize("sizes", HEADS)
def test_attention(sizes: tuple[int, ...], probes: int, exact: bool) -> None:
    """Gradients of every probe beside torch's own in float64, from tensors that are views of others."""
    examples, heads, positions, seen, own, width = sizes
    torch.manual_seed(sum(sizes))

    def apart(length: int, wide: int, *lead: int) -> Tensor:  # (B, T, H, d) in memory
        return torch.randn(*lead, examples, length, heads, wide, device=DEVICE).transpose(-2, -3)

    query, key, value = apart(positions, own), apart(seen, own), apart(seen, width)
    grad = apart(positions, width, probes)
    wide = [each.double().requires_grad_() for each in (query, key, value)]
    shares = (wide[0] @ wide[1].mT * 0.3).softmax(-1)
    output = shares @ wide[2]
    found = kernel_gradients.attention(query, key, value, shares.detach().float(), 0.3, grad, exact)
    for probe in range(probes):
        expected = torch.autograd.grad(output, wide, grad[probe].double(), retain_graph=True)
        for one, right in zip(found, expected, strict=True):
            assert one[probe].shape == right.shape
            # Numbers that are cut off in place of rounded would be wrong by more, and all in one direction.
            assert worst(one[probe][None], right[None]) < (3e-6 if exact else 6e-4)
            if not exact:
                shrunk = (one[probe].double() * right).sum() / right.square().sum()
                assert abs(float(shrunk) - 1) < 4e-4


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0x7FC00000, -1])
@pytest.mark.parametrize("exact", [True, False])
def test_no_nan_is_lost_in_attention(exact: bool, bits: int) -> None:
    """Whatever its bits: those that a GPU makes are not those that a processor makes."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 1, 5, 4, device=DEVICE) for _ in range(3))
    grad = torch.randn(2, 2, 1, 5, 4, device=DEVICE)
    grad[1, 0, 0, 2] = torch.tensor(bits, dtype=torch.int32).view(torch.float32)
    found = kernel_gradients.attention(
        query, key, value, torch.full((2, 1, 5, 5), 0.2, device=DEVICE), 0.5, grad, exact
    )
    for made in found:
        assert bool(made[1, 0].isnan().any()) and not bool(made[0].isnan().any() | made[1, 1].isnan().any())


@pytest.mark.parametrize("dense", ["widths", "positions", "neither"])
@pytest.mark.parametrize("shape", [(3, 2, 5, 7), (1, 2, 33, 300), (2, 1, 1100, 3), (1, 1, 1, 1), (2, 2, 3, 3)])
def test_moments(shape: tuple[int, ...], dense: str) -> None:
    """Sums over positions, with either axis side by side in memory, or real parts of complex numbers."""
    torch.manual_seed(sum(shape))
    probes, examples, positions, width = shape
    grad = torch.randn(probes, examples, positions, width, 2, device=DEVICE)
    grad = grad[..., 0] if dense == "neither" else grad[..., 0].contiguous()
    grad = grad.mT.contiguous().mT if dense == "positions" else grad
    other = torch.randn(examples, positions, width, device=DEVICE)
    products, sums = (grad.double() * other.double()).sum(2), grad.double().sum(2)
    both = kernel_gradients.moments(grad, other, True)
    for given, found, expected in (
        (both, 0, products),
        (both, 1, sums),
        (kernel_gradients.moments(grad, other, False), 0, products),
        (kernel_gradients.moments(grad, None, True), 1, sums),
    ):
        made = given[found]
        assert made is not None
        torch.testing.assert_close(made.double(), expected, rtol=1e-5, atol=2e-4)
    assert (
        kernel_gradients.moments(grad, other, False)[1] is None
        and kernel_gradients.moments(grad, None, True)[0] is None
    )


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 1, 300), (1, 4, 1), (4, 2, 1024)])
def test_layer_norm(shape: tuple[int, ...], affine: bool) -> None:
    """Gradients through rows that are far from zero, beside torch's own in float64."""
    torch.manual_seed(sum(shape))
    probes, number, width = shape
    rows = (torch.randn(number, width, device=DEVICE) + 10).double().requires_grad_()
    weight = torch.randn(width, device=DEVICE).double() if affine else None
    grad = torch.randn(shape, device=DEVICE)
    output = nn.functional.layer_norm(rows, (width,), weight, None, 1e-5)
    mean = rows.detach().mean(-1, keepdim=True)
    slope = (rows.detach().var(-1, correction=0, keepdim=True) + 1e-5).rsqrt()
    given = (rows.detach(), mean, slope, weight)
    found = kernel_gradients.layer_norm(grad, *(None if each is None else each.float() for each in given))
    for probe in range(probes):
        (expected,) = torch.autograd.grad(output, rows, grad[probe].double(), retain_graph=True)
        torch.testing.assert_close(found[probe].double(), expected, rtol=1e-4, atol=1e-4)


def test_transformers_and_norms() -> None:
    """A posterior of a network with attention and both kinds of norm, by the kernels and without them."""
    torch.manual_seed(0)

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patches, self.batch = nn.Conv2d(1, 8, 2, 2), nn.BatchNorm2d(8)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True)
            self.head = nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layer(self.batch(self.patches(x)).flatten(2).mT).mean(1))

    model = Small().to(DEVICE).eval()
    x, y = torch.randn(6, 1, 6, 6, device=DEVICE), torch.randint(3, (6,), device=DEVICE)
    la = pw.fit(model, (x, y), "classification", arithmetic="float32")
    found = la.functional(x).cov
    assert not available.broken
    reference = pw.fit(copy.deepcopy(model).double(), (x.double(), y), "classification").functional(x.double())
    assert worst(found, reference.cov) < 1e-4
