"""Gradients through convolutions in parts of 11 bits, against float64."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import peewit as pw
from environment import DEVICE
from peewit.kernels import available
from peewit.kernels import products as kernel_products
from peewit.tracing.layers import linear
from peewit.tracing.layers.conv import gradients
from peewit.tracing.layers.conv.gradients import (
    Convolution,
    GradientGeometry,
    gradient_by_torch,
    gradient_in_parts,
    gradient_of_probes,
    input_gradient,
)
from peewit.tracing.layers.pulling import apply_to_probes

GEOMETRIES = {
    "plain": ((5, 9, 7), (8, 5, 3, 3), GradientGeometry((5, 9, 7), (1, 1), (0, 0), (1, 1))),
    "padded": ((40, 6, 6), (70, 40, 3, 3), GradientGeometry((40, 6, 6), (1, 1), (1, 1), (1, 1))),
    "strided": ((33, 9, 8), (12, 33, 3, 2), GradientGeometry((33, 9, 8), (2, 3), (1, 0), (1, 1))),
    "dilated": ((4, 11, 11), (65, 4, 3, 3), GradientGeometry((4, 11, 11), (1, 2), (2, 1), (2, 3))),
    "of one pixel": ((64, 4, 4), (64, 64, 1, 1), GradientGeometry((64, 4, 4), (2, 2), (0, 0), (1, 1))),
}


def case(name: str, examples: int = 3) -> tuple[Tensor, Tensor, Tensor, GradientGeometry]:
    """Inputs, weight, output gradients and geometry."""
    torch.manual_seed(0)
    shape, kernel, geometry = GEOMETRIES[name]
    given, weight = torch.randn(examples, *shape, device=DEVICE), torch.randn(*kernel, device=DEVICE)
    output = F.conv2d(given, weight, None, geometry.stride, geometry.padding, geometry.dilation)
    return given, weight, torch.randn_like(output), geometry


def expected(given: Tensor, weight: Tensor, grad: Tensor, geometry: GradientGeometry) -> Tensor:
    """By autograd in float64."""
    wide = given.double().requires_grad_()
    output = F.conv2d(wide, weight.double(), None, geometry.stride, geometry.padding, geometry.dilation)
    return torch.autograd.grad(output, wide, grad.double())[0]


def error(found: Tensor, right: Tensor) -> float:
    """The norm of the difference relative to that of the right answer."""
    return float((found.double() - right).norm() / right.norm())


@pytest.mark.parametrize("piece", [1 << 26, 1], ids=["at once", "one by one"])
@pytest.mark.parametrize("name", GEOMETRIES)
def test_as_exact_as_float32(name: str, piece: int) -> None:
    """Any geometry, all examples at once and one at a time; products of 11 bits would be wrong by 3e-4."""
    given, weight, grad, geometry = case(name)
    right = expected(given, weight, grad, geometry)
    geometry = geometry._replace(piece=piece)
    assert error(gradient_in_parts(grad, weight, geometry), right) < 3e-6
    assert error(gradient_by_torch(grad.double(), weight.double(), geometry), right) < 1e-13
    assert input_gradient(grad[:0], weight, geometry).shape == (0, *geometry.shape)


def test_parts_are_taken_where_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32 where they are asked for; else, and where kernels fail, one convolution or product is."""
    given, weight, grad, geometry = case("strided")
    right, matrix = expected(given, weight, grad, geometry), torch.randn(grad.shape[-1], 4, device=DEVICE)
    asked: list[str] = []

    def parts(*given: Tensor | GradientGeometry) -> Tensor:
        asked.append("convolution" if len(given) == 3 else "product")
        return gradient_by_torch(*given) if len(given) == 3 else given[0] @ given[1]

    monkeypatch.setattr(gradients, "gradient_in_parts", parts)
    monkeypatch.setattr(kernel_products, "product", parts)

    def both(dtype: torch.dtype = torch.float32, **change: bool) -> list[str]:
        asked.clear()
        made = input_gradient(grad.to(dtype), weight.to(dtype), geometry._replace(**change))
        assert error(made, right) < 1e-5
        torch.testing.assert_close(
            linear.exact_product(grad.to(dtype), matrix.to(dtype)), grad.to(dtype) @ matrix.to(dtype)
        )
        return list(asked)

    assert both() == ["convolution", "product"]
    assert both(parts=False) == ["product"]
    assert both(torch.float64) == []
    with monkeypatch.context() as patched:
        patched.setattr(available, "broken", ["no compiler"])
        assert both() == []
        patched.setattr(available, "broken", [])
        patched.setattr(available, "attempt", lambda _: None)
        assert both() == []


def test_parts_of_numbers() -> None:
    """11 bits each, with the sum as it was, at any size."""
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3, 7, device=DEVICE) * torch.logspace(-30, 30, 7, device=DEVICE)
    x[0, 0, 0] = 0.0
    high, low = kernel_products.round_to_eleven_bits(x)
    assert torch.equal(high + low, x)
    assert not bool((high.contiguous().view(torch.int32) & 0x1FFF).any())
    assert bool((low.abs() <= x.abs() * 2**-11).all())


def test_each_part_counts() -> None:
    """Without either small product the error is that of 11 bits."""
    given, weight, grad, geometry = case("padded")
    right = expected(given, weight, grad, geometry)
    head, rest = kernel_products.round_to_eleven_bits(grad)
    high, low = kernel_products.round_to_eleven_bits(weight)
    parts = [geometry.back(*pair, given).double() for pair in ((head, high), (rest, high), (head, low))]
    assert error(sum(parts[1:], parts[0]), right) < 1e-3
    for left_out in (1, 2):
        rest_of = [part for number, part in enumerate(parts) if number != left_out]
        assert error(rest_of[0] + rest_of[1], right) > 5e-5


def test_probes_are_examples() -> None:
    """Gradients of many outputs at once, and one at a time."""
    given, weight, grad, geometry = case("strided")
    probes = torch.stack([grad, 2 * grad.flip(0), -grad])
    at_once = torch.vmap(lambda each: apply_to_probes(gradient_of_probes, each, weight, geometry))(probes)
    for made, each in zip(at_once, probes, strict=True):
        assert error(made, expected(given, weight, each, geometry)) < 3e-6
    inner = torch.vmap(lambda each: apply_to_probes(gradient_of_probes, each, weight, geometry), in_dims=1)(
        probes.transpose(0, 1)
    )
    torch.testing.assert_close(inner, at_once)
    asked = given.clone().requires_grad_()
    output = Convolution.apply(asked, weight, None, geometry)
    torch.testing.assert_close(
        output, F.conv2d(given, weight, None, geometry.stride, geometry.padding, geometry.dilation)
    )
    (found,) = torch.autograd.grad(output, asked, grad)
    torch.testing.assert_close(found, at_once[0], rtol=1e-5, atol=1e-5)


def test_how_gradients_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """In parts where they are wide and are to be exact; in pieces where memory is short; as torch does them else."""
    asked: list[float] = []
    monkeypatch.setattr(gradients, "on_gpu", lambda _: True)
    monkeypatch.setattr(gradients, "convolutions_rounded", lambda: False)
    monkeypatch.setattr(
        kernel_products, "in_parts", lambda x, operations: not x.requires_grad and (asked.append(operations) or True)
    )
    own = GradientGeometry((64, 6, 5), (1, 2), (1, 0), (2, 1))
    given = torch.empty(2, 64, 6, 5)

    def found(
        weight: tuple[int, ...] = (64, 64, 3, 2), exact: bool = True, room: float = 8 << 30
    ) -> GradientGeometry | None:
        recorder: Any = SimpleNamespace(exact=exact, room=room)
        return gradients.choose_geometry(recorder, given, torch.empty(weight, requires_grad=True), own)

    roomy, least = gradients.ROOMY, gradients.PIECE
    assert found() == own._replace(parts=True, piece=8 << 25) and asked == [2 * 6 * 5 * 64 * 64 * 3 * 2]
    assert found(room=1 << 40) == own._replace(parts=True, piece=least)
    assert found(room=1) == own._replace(parts=True, piece=1)
    short = roomy - 64
    for narrow in ({"exact": False}, {"weight": (63, 64, 3, 2)}, {"weight": (64, 63, 3, 2)}):
        assert found(**narrow) is None and found(**narrow, room=roomy) is None
        assert found(**narrow, room=short) == own._replace(parts=False, piece=short // 32)
    monkeypatch.setattr(gradients, "convolutions_rounded", lambda: True)
    assert found() is None and found(room=short) == own._replace(parts=False, piece=short // 32)
    monkeypatch.setattr(gradients, "on_gpu", lambda _: False)
    assert found(room=short) is None


def network() -> nn.Module:
    """Convolutions that are wide enough if the bound is lowered, and some that never are."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, padding=1),
        nn.Tanh(),
        nn.Conv2d(6, 8, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Conv2d(8, 8, 3, padding="same", bias=False),
        nn.Tanh(),
        nn.Conv2d(8, 8, 3, padding=1, groups=2),
        nn.Tanh(),
        nn.Conv2d(8, 4, 1),
        nn.Flatten(),
        nn.Linear(36, 3),
    ).to(DEVICE)


def noted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[int, ...], bool]]:
    """Weights and ways of all gradients to come, with the CPU taken for a GPU and nothing too small."""
    calls: list[tuple[tuple[int, ...], bool]] = []

    def note(grad: Tensor, weight: Tensor, geometry: GradientGeometry) -> Tensor:
        calls.append((tuple(weight.shape), geometry.parts))
        return input_gradient(grad, weight, geometry)

    monkeypatch.setattr(gradients, "input_gradient", note)
    monkeypatch.setattr(gradients, "on_gpu", lambda _: True)
    monkeypatch.setattr(gradients, "NARROWEST", 1)
    monkeypatch.setattr(gradients, "convolutions_rounded", lambda: False)
    monkeypatch.setattr(kernel_products, "in_parts", lambda *_: True)
    monkeypatch.setattr(
        kernel_products, "product", lambda x, weight: x @ weight
    )  # the linear map's, which needs the kernels
    return calls


ALONE = {(8, 6, 3, 3), (4, 8, 1, 1)}  # neither grouped nor padded by a word; and the first needs no gradients


@pytest.mark.parametrize("memory", [None, 2e5], ids=["roomy", "bounded"])
@pytest.mark.parametrize("curvature", ["ggn", "fisher"])
@pytest.mark.parametrize("arithmetic", ["float32", "tf32"])
def test_whole_fits(arithmetic: str, curvature: str, memory: float | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Curvature and covariances of a network whose convolutions are all taken so, against float64."""
    calls = noted(monkeypatch)
    model = network()
    x, y = torch.randn(6, 2, 6, 6, device=DEVICE), torch.arange(6, device=DEVICE) % 3
    options = {"curvature": curvature, "structure": "kron"}
    la = pw.fit(model, (x, y), "classification", arithmetic=arithmetic, memory=memory or 8e9, **options)
    exact = arithmetic == "float32"
    assert set(calls) == ({(shape, exact) for shape in ALONE} if exact or memory else set())
    wide = pw.fit(copy.deepcopy(model).double(), (x.double(), y), "classification", **options)
    bound = 1e-5 if exact or DEVICE == "cpu" else 1e-2
    assert error(la.functional(x).cov, wide.functional(x.double()).cov) < bound
    assert float(la.log_evidence()) == pytest.approx(float(wide.log_evidence()), rel=bound)


def test_where_torch_does_well_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three convolutions for what torch may do in one would be slower, and so would narrow ones; and on a CPU."""
    calls = noted(monkeypatch)
    model = network()
    x, y = torch.randn(6, 2, 6, 6, device=DEVICE), torch.arange(6, device=DEVICE) % 3

    def fit() -> None:
        pw.fit(model, (x, y), "classification", arithmetic="float32", memory=8e9)

    for name, value in (("NARROWEST", 64), ("convolutions_rounded", lambda: True), ("on_gpu", lambda _: False)):
        with monkeypatch.context() as patched:
            patched.setattr(gradients, name, value)
            fit()
    assert not calls
    fit()
    assert calls
