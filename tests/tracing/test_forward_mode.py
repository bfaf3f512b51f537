"""Products `J v`: every way to push, and which of them agree with the backward pass."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd.graph import get_gradient_edge

import reference_dense as dense
from environment import DEVICE
from jacobian_cases import normal
from peewit.tracing import forward_mode
from peewit.tracing.forward_mode import Push
from peewit.weights.vectors import flatten, unflatten
from tracing_parts import push_of, tracer_of

close = torch.testing.assert_close


RIGHT = forward_mode.WAYS[1]


def wrong(change: Callable[..., Tensor]) -> Any:
    """A way that changes the vectors first."""
    return lambda run, weights, given: RIGHT(run, weights, {name: change(name, each) for name, each in given.items()})


class Scaled(nn.Module):
    """Two tensors, the second of little effect, and one that nothing depends on."""

    def __init__(self, effect: float = 0.01, size: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(3, 2))
        self.unread, self.effect, self.size = nn.Parameter(torch.randn(2)), effect, size

    def forward(self, x: Tensor) -> Tensor:
        """(B, 3) -> (B, 2)."""
        return self.size * ((x @ self.first.to(x.dtype)).tanh() + self.effect * (x @ self.second))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("way", range(forward_mode.ROWS + 1))
def test_every_way_to_push(way: int, masked: bool) -> None:
    """Outputs and products with the dense Jacobian, for several vectors and one."""
    model, x = Scaled().double().to(DEVICE), normal(5, 3)
    mask = torch.arange(14) % 3 != 1 if masked else None
    push = push_of(model, mask, memory=1)
    jacobian = dense.jacobian(model.cpu(), x.cpu(), list(push.space.names))
    model.to(DEVICE)
    jacobian = (jacobian if mask is None else jacobian[..., mask]).to(DEVICE)
    for count in (3, 1):
        vectors = normal(count, push.space.size, seed=4)
        output, pushed = push._rows(x, vectors) if way == forward_mode.ROWS else push._by(way, x, vectors, None)
        assert output.shape == (5, 2) and not output.requires_grad and not pushed.requires_grad
        close(output, model(x).detach())
        close(pushed, torch.einsum("bkp,sp->sbk", jacobian, vectors))
        found = push._agrees(way, x) if way < forward_mode.ROWS else True
        assert found
    close(flatten(unflatten(vectors[0], push.space), push.space), vectors[0])


def test_vectors_of_named_weights() -> None:
    """The others are held fixed."""
    model, x = Scaled().double().to(DEVICE), normal(5, 3)
    push, vectors = push_of(model), torch.zeros(2, 14, dtype=torch.float64, device=DEVICE)
    vectors[:, 6:12] = normal(2, 6)
    asked = []
    for names in (["second"], None):
        close(push(x, vectors, names)[1], 0.01 * torch.einsum("bi,sio->sbo", x, vectors[:, 6:12].reshape(2, 3, 2)))
        asked.append(push.learner.knowledge.push)
    assert asked[0] == {True: 0}


@pytest.mark.parametrize(
    ("dtype", "effect", "change", "agrees"),
    [
        (torch.float64, 0.01, lambda name, each: each, True),
        (torch.float64, 0.01, lambda name, each: each * (1 + 1e-9), True),
        (torch.float64, 0.01, lambda name, each: each * (1 + 1e-5), False),
        (torch.float64, 0.01, lambda name, each: each if name != "second" else 0 * each, False),
        (torch.float64, 1e-2, lambda name, each: each if name != "second" else each * (1 + 1e-4), False),
        (torch.float64, 1e-14, lambda name, each: each if name != "second" else 0 * each, True),
        (torch.float64, 0.01, lambda name, each: each if name != "unread" else 0 * each, True),
        (torch.float32, 0.01, lambda name, each: each * (1 + 1e-4), True),
        (torch.float32, 0.01, lambda name, each: each * 1.2, False),
        (torch.float64, 0.01, lambda name, each: each if name != "second" else each * (1 + 2e-6), False),
    ],
)
def test_ways_that_agree_with_the_backward_pass(
    dtype: torch.dtype, effect: float, change: Any, agrees: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within rounding, each tensor's share brought to the size of the largest unless it may be rounding itself."""
    model = Scaled(effect).to(DEVICE, dtype)
    monkeypatch.setattr(forward_mode, "WAYS", (wrong(change),) * 3)
    push, x = push_of(model), normal(9, 3).to(dtype)
    assert push._agrees(0, x) is agrees
    assert push._agrees(2, x) is agrees


@pytest.mark.parametrize("size", [1e-6, 1e6])
def test_ways_agree_whatever_the_size_of_outputs(size: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is compared is relative to the largest gradient; and to the coarsest dtype among weights and outputs."""
    x = normal(9, 3)
    model = Scaled(1e-14, size).double().to(DEVICE)
    monkeypatch.setattr(forward_mode, "WAYS", (wrong(lambda name, each: each if name != "second" else 0 * each),) * 3)
    assert push_of(model)._agrees(1, x)
    model = Scaled(0.01, size).double().to(DEVICE)
    for error, agrees in ((1e-9, True), (1e-4, False)):
        monkeypatch.setattr(forward_mode, "WAYS", (wrong(lambda name, each, by=1 + error: by * each),) * 3)
        assert push_of(model)._agrees(1, x) is agrees
    model.first.data = model.first.data.float()
    assert push_of(model)._agrees(1, x)


def test_ways_that_are_right_for_one_vector_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """All vectors count where they go at once."""
    monkeypatch.setattr(forward_mode, "WAYS", (wrong(lambda name, each: torch.cat([each[:1], 2 * each[1:]])),) * 3)
    push = push_of(Scaled().double().to(DEVICE))
    assert not push._agrees(0, normal(9, 3)) and push._agrees(1, normal(9, 3))


def test_how_ways_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each on four examples with three vectors, at once or one by one; the first that agrees is kept for its kind."""
    asked: list[tuple[str, int, int]] = []

    def way(name: str, made: Any) -> Any:
        def run_way(run: Any, weights: Any, tangents: Any) -> Any:
            asked.append((name, len(run(weights)), len(tangents["first"])))
            return made(run, weights, tangents)

        return run_way

    fails = iter([False] * 3 + [True] * 9)

    def sometimes(run: Any, weights: Any, tangents: Any) -> Any:
        return None if next(fails) else RIGHT(run, weights, tangents)

    ways = way("none", lambda *given: None), way("sometimes", sometimes), way("right", RIGHT)
    monkeypatch.setattr(forward_mode, "WAYS", ways)
    model, x = Scaled().double().to(DEVICE), normal(9, 3)
    push = push_of(model)
    expected = torch.einsum(
        "bkp,sp->sbk", dense.jacobian(model.cpu(), x.cpu(), list(push.space.names)), normal(2, 14).cpu()
    )
    model.to(DEVICE)
    close(push(x, normal(2, 14))[1].cpu(), expected)
    tried = (
        [("none", 4, 3)] + [("sometimes", 4, 1)] * 3 + [("sometimes", 9, 2)] + [("right", 4, 1)] * 3 + [("right", 9, 2)]
    )
    assert asked == tried and push.learner.knowledge.push == {True: 2}
    asked.clear()
    close(push(x, normal(2, 14))[1].cpu(), expected)
    assert asked == [("right", 9, 2)]
    asked.clear()
    close(push(x, normal(2, 14)[:1])[1].cpu(), expected[:1])
    assert asked == [("sometimes", 4, 1)] + [("right", 4, 1)] * 3 + [("right", 9, 1)]  # the first is for several
    assert push.learner.knowledge.push == {True: 2, False: 2}
    monkeypatch.setattr(forward_mode, "WAYS", (lambda *given: None,) * 3)
    other = push_of(model)
    close(other(x, normal(2, 14))[1].cpu(), expected)
    assert other.learner.knowledge.push == {True: forward_mode.ROWS}


@pytest.mark.parametrize(
    ("dtype", "share", "scale"),
    [
        (torch.float64, 2**-8, 2**8),
        (torch.float64, 2**-12, 1e3),
        (torch.float16, 2**-4, 1 / (100 * 2**-10)),
        (torch.bfloat16, 2**-1, 1 / (100 * 2**-7)),
    ],
)
def test_shares_of_small_gradients(
    dtype: torch.dtype, share: float, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are brought to the largest, whose norm float16 cannot hold here, up to a thousand times or rounding."""
    largest = torch.full((3, 2), 40960.0, dtype=dtype, device=DEVICE)
    gradients = {"first": largest, "second": share * largest, "unread": 0 * largest[0]}
    monkeypatch.setattr(Push, "_pull", lambda self, inputs: (normal(4, 2).to(dtype), gradients))
    monkeypatch.setattr(Push, "_by", lambda *given: None)
    asked: list[list[float]] = []
    monkeypatch.setattr(Push, "_draw", lambda self, number, scales, generator: asked.append(scales) or normal(3, 14))
    assert not push_of(Scaled().to(DEVICE))._agrees(0, normal(4, 3))
    assert asked[0] == pytest.approx([1.0, scale, 1000.0 if dtype == torch.float64 else scale], rel=1e-12)


@pytest.mark.parametrize(("error", "agrees"), [(1.0, True), (-1.0, True), (1.001, False), (-1.001, False)])
def test_how_far_ways_may_be_apart(error: float, agrees: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tensors round three times: the largest gradient's norm, here 2, by 1e-7 and the root of three."""
    push, output = push_of(Scaled().double().to(DEVICE)), normal(4, 2)
    gradients = {"first": torch.zeros(3, 2), "second": torch.zeros(3, 2), "unread": torch.tensor([2.0, 0.0])}
    gradients = {name: each.double().to(DEVICE) for name, each in gradients.items()}
    pushed = torch.zeros_like(output)
    pushed[2, 1] = error * (1e-7 * 2.0 * math.sqrt(3))
    monkeypatch.setattr(Push, "_probe", lambda self, output: torch.ones_like(output))
    monkeypatch.setattr(Push, "_pull", lambda self, inputs: (output, gradients))
    monkeypatch.setattr(Push, "_draw", lambda self, number, *given: torch.zeros(number, 14))
    monkeypatch.setattr(Push, "_by", lambda self, way, inputs, v, names: (output, pushed.expand(len(v), 4, 2)))
    for way in range(forward_mode.ROWS):
        assert push._agrees(way, normal(4, 3)) is agrees


def test_nothing_to_compare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients that are zero, or not finite, say nothing against a way; without any weights outputs stay."""
    monkeypatch.setattr(forward_mode, "WAYS", (lambda *given: None,) * 3)
    model = Scaled().double().to(DEVICE)
    assert push_of(model)._agrees(1, 0 * normal(4, 3))
    assert push_of(model)._agrees(1, normal(4, 3) / 0)
    assert not push_of(model)._agrees(1, normal(4, 3))


def test_rounding_of_products() -> None:
    """By the dtype of the numbers: half of the digits of float64, and ten bits of float32."""
    assert [forward_mode.rounding(dtype) for dtype in (torch.float64, torch.float32, torch.float16)] == [
        1e-7,
        1e-2,
        0.1,
    ]


SILENT = [("There is a performance drop because of x", UserWarning)]


SAID = [("`torch.jit.script` is old", UserWarning), ("another", DeprecationWarning), ("another", UserWarning)]


@pytest.mark.parametrize(
    ("message", "category", "heard"),
    [
        *((*each, False) for each in [*SILENT, ("`torch.jit.script` is old", DeprecationWarning)]),
        *((*each, True) for each in SAID),
    ],
)
def test_warnings_inside_forward_mode(message: str, category: type[Warning], heard: bool) -> None:
    """Those of torch about itself are not for users; a network's own are."""

    def push() -> tuple[int, int]:
        warnings.warn(message, category, stacklevel=1)
        return 1, 2

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert forward_mode._forward(push) == (1, 2)
    assert [str(each.message) for each in caught] == [message] * heard


@pytest.mark.parametrize(
    ("message", "heard"),
    [
        ("There is a performance drop", False),
        ("Attempting to run cuBLAS, but", False),
        ("Attempting to run cuFFT, but", False),
        ("another", True),
    ],
)
def test_warnings_inside_backward_passes(message: str, heard: bool) -> None:
    """Likewise, where several probes are pulled back at once; one warns as it does."""
    model, x = nn.Linear(3, 2).double().to(DEVICE), normal(3, 3)
    tape = tracer_of(model).trace(x)
    made = model(x)
    made.register_hook(lambda gradient: warnings.warn(message, UserWarning, stacklevel=1))
    edges = [get_gradient_edge(model.weight)]
    for count in (2, 1):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            (found,) = tape.pull_back(made * 2, normal(count, 3, 2), edges)
        assert {str(each.message) for each in caught} == ({message} if heard or count == 1 else set())
        close(found, 2 * torch.einsum("kbo,bi->koi", normal(count, 3, 2), x))


def test_several_vectors_meet_the_same_random_numbers() -> None:
    """Of a network that draws some."""
    weights = {"w": normal(3)}
    made = forward_mode.WAYS[0](
        lambda given: given["w"] * torch.rand(3, device=DEVICE), weights, {"w": normal(2, 3, seed=1)}
    )
    assert made is not None
    close(made[1], made[0] / normal(3) * normal(2, 3, seed=1))
