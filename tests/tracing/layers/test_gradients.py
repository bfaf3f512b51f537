"""Gradients of many outputs at once: operations with a gradient of our own, against torch's, one output at a time."""

from __future__ import annotations

import copy
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import peewit as pw
from convolutional_networks import window_of
from environment import DEVICE
from peewit.kernels import available, operands
from peewit.kernels import gradients as kernel_gradients
from peewit.posterior.network import network_of
from peewit.runtime.memory import Budget
from peewit.tracing.layers import HANDLERS, attention
from peewit.tracing.layers.attention import Attention, gradients, gradients_of_probes
from peewit.tracing.layers.conv import patches as conv_patches
from peewit.tracing.layers.conv import rule as conv
from peewit.tracing.layers.conv.patches import Window, rotate_patches, unfold
from peewit.tracing.layers.norm import frozen_batch_norm, layer_norm, sum_positions
from peewit.tracing.layers.pooling import ScatteredMaxPool, TiledMaxPool, max_pool
from peewit.tracing.layers.unbind import Unbind
from peewit.tracing.layers.weight_views import WeightView
from peewit.tracing.tracer import Tracer


def normal(*shape: int) -> Tensor:
    """Numbers in float64 that require gradients."""
    return torch.randn(*shape, dtype=torch.float64, device=DEVICE).requires_grad_()


def same_gradients(ours: Tensor, theirs: Tensor, inputs: list[Tensor], probes: int = 4) -> None:
    """Equal outputs; equal gradients, one probe at a time and all at once."""
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)
    grads = torch.randn(probes, *ours.shape, dtype=ours.dtype, device=ours.device)
    expected = [torch.autograd.grad(theirs, inputs, grad, retain_graph=True) for grad in grads]

    def back(grad: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(ours, inputs, grad, retain_graph=True)

    at_once = torch.vmap(back)(grads)
    for probe, reference in enumerate(expected):
        for one, many, right in zip(back(grads[probe]), at_once, reference, strict=True):
            torch.testing.assert_close(one, right, rtol=1e-9, atol=1e-12)
            torch.testing.assert_close(many[probe], right, rtol=1e-9, atol=1e-12)


def masks() -> dict[str, dict[str, Any]]:
    """Options of attention over 5 positions that look at 6."""
    torch.manual_seed(3)
    chosen = torch.rand(2, 3, 5, 6, device=DEVICE) < 0.6
    chosen[..., 0] = True
    return {
        "plain": {},
        "scale": {"scale": 0.3},
        "causal": {"is_causal": True},
        "booleans": {"attn_mask": chosen},
        "numbers": {"attn_mask": torch.randn(5, 6, dtype=torch.float64, device=DEVICE)},
        "per example": {"attn_mask": torch.randn(2, 1, 1, 6, dtype=torch.float64, device=DEVICE)},
    }


@pytest.mark.parametrize("name", list(masks()))
def test_attention(name: str) -> None:
    """With every kind of mask."""
    torch.manual_seed(0)
    options = masks()[name]
    query, key, value = normal(2, 3, 5, 4), normal(2, 3, 6, 4), normal(2, 3, 6, 7)
    ours = Attention.apply(query, key, value, options)
    same_gradients(ours, F.scaled_dot_product_attention(query, key, value, **options), [query, key, value])


@pytest.mark.parametrize("lead", [(), (2,), (2, 3), (2, 1, 3)])
def test_attention_with_any_leading_axes(lead: tuple[int, ...]) -> None:
    """None at all too, as where examples are gone through one by one."""
    torch.manual_seed(0)
    query, key, value = normal(*lead, 5, 4), normal(*lead, 6, 4), normal(*lead, 6, 7)
    ours = Attention.apply(query, key, value, {})
    same_gradients(ours, F.scaled_dot_product_attention(query, key, value), [query, key, value])


@pytest.mark.parametrize("lead", [(), (2,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("rounded", [True, False])
def test_attention_by_kernels(lead: tuple[int, ...], rounded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are given examples and heads apart, and whether to be exact; where they fail, the slower way is left."""
    torch.manual_seed(0)
    query, key, value = normal(*lead, 5, 4), normal(*lead, 6, 4), normal(*lead, 6, 7)
    shares = (0.5 * query @ key.mT).softmax(-1)
    grad = torch.randn(8, *lead, 5, 7, dtype=torch.float64, device=DEVICE)
    expected = torch.autograd.grad(shares @ value, [query, key, value], grad, is_grads_batched=True)
    asked: list[tuple[int, ...]] = []

    def kernel(q: Tensor, k: Tensor, v: Tensor, own: Tensor, scale: float, grad: Tensor, exact: bool) -> Any:
        asked.append(tuple(q.shape[:2]))
        assert exact is not rounded and {len(part.shape) for part in (q, k, v, own)} == {4}
        flat = [part.flatten(0, 1) for part in (q, k, v, own)]
        made = gradients(*flat, scale, grad.flatten(1, 2).movedim(0, 1))
        return tuple(part.movedim(1, 0).unflatten(1, q.shape[:2]) for part in made)

    monkeypatch.setattr(kernel_gradients, "attends", lambda *_: True)
    monkeypatch.setattr(kernel_gradients, "attention", kernel)
    monkeypatch.setattr(attention, "products_rounded", lambda: rounded)
    for attempted in (available.attempt, lambda _: None):
        monkeypatch.setattr(available, "attempt", attempted)
        found = gradients_of_probes(grad, *(part.detach() for part in (query, key, value, shares)), 0.5)
        for one, right in zip(found, expected, strict=True):
            torch.testing.assert_close(one, right, rtol=1e-9, atol=1e-12)
    assert asked == [lead if len(lead) == 2 else (math.prod(lead), 1)]


def test_shares_of_attention() -> None:
    """A position that may look nowhere has none; numbers are added to scores, and later positions are hidden."""
    torch.manual_seed(0)
    query, key = (normal(2, 5, 4).detach() for _ in range(2))
    scores = 0.3 * torch.einsum("btd,bsd->bts", query, key)
    torch.testing.assert_close(attention.weights(query, key, {}, 0.3), scores.softmax(-1))
    numbers = torch.randn(5, 5, dtype=torch.float64, device=DEVICE)
    found = attention.weights(query, key, {"attn_mask": numbers}, 0.3)
    torch.testing.assert_close(found, (scores + numbers).softmax(-1))
    later = torch.arange(5, device=DEVICE)[None] > torch.arange(5, device=DEVICE)[:, None]
    causal = scores.masked_fill(later, -math.inf).softmax(-1)
    torch.testing.assert_close(attention.weights(query, key, {"is_causal": True}, 0.3), causal)
    chosen = ~later
    chosen[2] = False
    for mask in (chosen, torch.zeros(5, 5).to(scores).masked_fill(~chosen, -math.inf)):
        found = attention.weights(query, key, {"attn_mask": mask, "is_causal": False}, 0.3)
        assert not bool(found[:, 2].any())
        torch.testing.assert_close(found[:, [0, 1, 3, 4]], causal[:, [0, 1, 3, 4]])


def attended(recorder: Any, *args: Any, **options: Any) -> bool:
    """Whether a call of attention has our gradient; its numbers are torch's either way."""
    func = F.scaled_dot_product_attention
    made = HANDLERS[func](recorder, func, args, options)
    if not options.get("dropout_p"):
        torch.testing.assert_close(made, func(*args, **options), rtol=1e-9, atol=1e-9)
    return made.grad_fn is not None and made.grad_fn.name() == "AttentionBackward"


def test_which_attention_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many probes in full precision, up to a size; with options by their place or by their name."""
    torch.manual_seed(0)
    monkeypatch.setattr(attention, "LARGEST_CPU", 30)
    monkeypatch.setattr(attention, "LARGEST_CUDA", 30)
    query, key, value = normal(2, 3, 5, 4), normal(2, 3, 6, 4), normal(2, 3, 6, 7)
    mask = torch.randn(5, 6, dtype=torch.float64, device=DEVICE)
    every = (query, key, value)
    assert attended(RECORDER, *every) and attended(RECORDER, *every, mask, 0.0, False)
    assert attended(RECORDER, *every, None, 0.0, True) and attended(RECORDER, *every, attn_mask=mask, scale=0.3)
    assert attended(RECORDER, *(each.detach().float().requires_grad_() for each in every))
    assert not attended(SimpleNamespace(probes=True, second=True), *every)
    assert not attended(SimpleNamespace(probes=False, second=False), *every)
    assert not attended(RECORDER, query.detach(), key, value)
    assert not attended(RECORDER, *every, mask.clone().requires_grad_())
    assert not attended(RECORDER, *every, dropout_p=0.1)
    assert not attended(RECORDER, *every, enable_gqa=True)
    assert not attended(RECORDER, query, key[:1], value[:1]) and not attended(RECORDER, query, key, value[:, :1])
    assert not attended(RECORDER, *(each.detach().bfloat16().requires_grad_() for each in every))
    assert not attended(RECORDER, query[:, :, :0], key, value)
    assert not attended(RECORDER, normal(2, 3, 31, 4), key[:, :, :1], value[:, :, :1])
    with torch.autocast(DEVICE, torch.bfloat16):
        assert not attended(RECORDER, *every)


def test_masks_are_those_of_the_call() -> None:
    """What is written to a mask later does not matter, and the mask that was given is left alone."""
    torch.manual_seed(0)
    query, key, value = normal(2, 5, 4), normal(2, 6, 4), normal(2, 6, 7)
    mask = torch.randn(5, 6, dtype=torch.float64, device=DEVICE)
    theirs = F.scaled_dot_product_attention(query, key, value, mask.clone())
    ours = HANDLERS[F.scaled_dot_product_attention](RECORDER, None, (query, key, value, mask), {})
    mask.zero_()
    same_gradients(ours, theirs, [query, key, value])


def by_rows(grad: Tensor, rows: Tensor, mean: Tensor, slope: Tensor, weight: Tensor | None) -> Tensor:
    """What the kernel of layer norms gives: gradients (K, R, P), by autograd."""
    with torch.enable_grad():
        rows = rows.detach().requires_grad_()
        spread = (rows - rows.mean(1, keepdim=True)).square().mean(1, keepdim=True)
        eps = (slope.pow(-2) - spread).detach()
        made = (rows - rows.mean(1, keepdim=True)) / (spread + eps).sqrt() * (1 if weight is None else weight)
        assert mean.shape == slope.shape == (len(rows), 1)
        return torch.autograd.grad(made, rows, grad, is_grads_batched=True)[0]


RECORDER = SimpleNamespace(probes=True, second=False, open=False)


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", [(5,), (3, 5)])
def test_layer_norm_by_rows(
    shape: tuple[int, ...], affine: bool, kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over one axis and two, with kernels and where they fail; rows so even that `eps` counts."""
    torch.manual_seed(0)
    monkeypatch.setattr(available, "usable", lambda *_: True)
    monkeypatch.setattr(kernel_gradients, "layer_norm", by_rows)
    if not kernels:
        monkeypatch.setattr(available, "attempt", lambda _: None)
    given = (0.004 * normal(4, 2, *shape) + 0.01).detach().requires_grad_()
    values: dict[str, Any] = {"input": given, "normalized_shape": shape}
    values |= {"weight": normal(*shape), "bias": normal(*shape)} if affine else {}
    for options in ({}, {"eps": 1e-3}):
        ours = layer_norm(RECORDER, values | options)
        assert "FrozenLayerNorm" in ours.grad_fn.name()
        same_gradients(ours, F.layer_norm(**values, **options), [given])


def test_where_layer_norms_are_torchs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One probe, second derivatives, inputs without gradients, mixed dtypes, wide rows, and without kernels."""
    monkeypatch.setattr(kernel_gradients, "WIDEST_ROW", 5)
    monkeypatch.setattr(available, "usable", lambda given: not given.requires_grad and bool(given.dim()))
    given = normal(3, 5)
    plain: dict[str, Any] = {"input": given, "normalized_shape": (5,)}

    def ours(recorder: Any = RECORDER, **values: Any) -> bool:
        made = layer_norm(recorder, plain | values)
        return made.grad_fn is not None and "FrozenLayerNorm" in made.grad_fn.name()

    assert ours() and ours(weight=normal(5)) and ours(bias=normal(5))
    assert not ours(SimpleNamespace(probes=False, second=False))
    assert not ours(SimpleNamespace(probes=True, second=True))
    assert not ours(input=given.detach())
    assert not ours(input=normal(3, 6), normalized_shape=(6,))
    if DEVICE == "cpu":  # torch has no such norm on a GPU
        low = given.detach().bfloat16().requires_grad_()
        assert not ours(input=low, weight=normal(5).float(), bias=normal(5).float())
    with torch.autocast(DEVICE, torch.bfloat16):
        assert not ours()
    monkeypatch.setattr(available, "usable", lambda _: False)
    assert not ours()


@pytest.mark.parametrize("sums", [True, False])
def test_sums_over_positions(sums: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By kernels where they run and nothing is differentiated again, and the same without."""
    torch.manual_seed(0)
    grad, beside = torch.randn(2, 3, 4, 5, device=DEVICE), torch.randn(3, 4, 5, device=DEVICE)
    asked: list[Any] = []

    def moments(grad: Tensor, other: Tensor | None, sums: bool) -> tuple[Tensor | None, Tensor | None]:
        asked.append(other)
        product = None if other is None else torch.einsum("kbtp,btp->kbp", grad, other)
        return product, torch.einsum("kbtp->kbp", grad) if sums else None

    monkeypatch.setattr(available, "usable", lambda _: True)
    monkeypatch.setattr(kernel_gradients, "moments", moments)
    later, kept = beside.clone().requires_grad_(), available.attempt
    for attempted in (kept, lambda _: None):
        monkeypatch.setattr(available, "attempt", attempted)
        for other in (beside, None, later):
            asked.clear()
            found = sum_positions(grad, other, sums)
            assert asked == ([other] if attempted is kept and other is not later else [])
            for one, right in zip(found, moments(grad, other, sums), strict=True):
                assert (one is None) == (right is None)
                if one is not None:
                    torch.testing.assert_close(one, right)


@pytest.mark.parametrize("shape", [(3, 4), (3, 4, 5), (3, 4, 5, 6)])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm(shape: tuple[int, ...], affine: bool) -> None:
    """With running statistics, in any number of dimensions."""
    torch.manual_seed(0)
    given = normal(*shape)
    values: dict[str, Any] = {
        "input": given,
        "running_mean": torch.randn(4, dtype=torch.float64, device=DEVICE),
        "running_var": torch.rand(4, dtype=torch.float64, device=DEVICE) + 0.1,
        "weight": normal(4) if affine else None,
        "bias": normal(4) if affine else None,
        "training": False,
        "eps": 1e-3,
    }
    same_gradients(frozen_batch_norm(values), F.batch_norm(**values), [given])


@pytest.mark.parametrize(("kernel", "shape"), [((2, 2), (3, 2, 6, 8)), ((2, 3), (2, 1, 4, 9)), ((1, 4), (2, 3, 5, 8))])
def test_max_pooling(kernel: tuple[int, int], shape: tuple[int, ...]) -> None:
    """Equal numbers in a window too: the first of them takes the gradient, as in torch."""
    torch.manual_seed(0)
    given = torch.randint(0, 3, shape, device=DEVICE).double().requires_grad_()
    same_gradients(TiledMaxPool.apply(given, *kernel), F.max_pool2d(given, kernel), [given])


WINDOWS: dict[str, tuple[bool, dict[str, Any]]] = {
    "side by side": (True, {"kernel_size": 2}),
    "with gaps": (True, {"kernel_size": (2, 1), "stride": (3, 2)}),
    "meeting": (False, {"kernel_size": 3, "stride": 2, "padding": 1}),
    "every place": (False, {"kernel_size": 2, "stride": 1}),
    "meeting along one axis": (False, {"kernel_size": (3, 2), "stride": (1, 2)}),
    "meeting along the other": (False, {"kernel_size": 2, "stride": (3, 1)}),
    "dilated": (False, {"kernel_size": 2, "stride": 2, "dilation": 2}),
    "over the edge": (True, {"kernel_size": 3, "ceil_mode": True}),
}


@pytest.mark.parametrize("name", list(WINDOWS))
@pytest.mark.parametrize("shape", [(3, 2, 7, 8), (2, 7, 8)])
def test_max_pooling_over_any_windows(name: str, shape: tuple[int, ...]) -> None:
    """Where windows meet, a number takes the gradients of all that it is the largest of."""
    torch.manual_seed(0)
    given = torch.randint(0, 3, shape, device=DEVICE).double().requires_grad_()
    apart, options = WINDOWS[name]
    same_gradients(ScatteredMaxPool.apply(given, apart, options), F.max_pool2d(given, **options), [given])


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU scatters nothing")
@pytest.mark.parametrize("name", list(WINDOWS))
def test_which_windows_meet(name: str) -> None:
    """Found from the options, in whatever form; torch's own gradient is left where it is asked for."""
    torch.manual_seed(0)
    given = torch.randint(0, 3, (3, 2, 7, 8)).double().requires_grad_()
    apart, options = WINDOWS[name]
    ours = max_pool(RECORDER, F.max_pool2d, (given,), options)
    assert ours.grad_fn.name() == "ScatteredMaxPoolBackward" and ours.grad_fn.apart == apart
    same_gradients(ours, F.max_pool2d(given, **options), [given])
    plain = [
        max_pool(SimpleNamespace(probes=True, second=True), F.max_pool2d, (given,), options),
        max_pool(SimpleNamespace(probes=False, second=False), F.max_pool2d, (given,), options),
        max_pool(RECORDER, F.max_pool2d, (given[:0],), options),
        max_pool(RECORDER, F.max_pool2d, (given,), options | {"return_indices": True})[0],
        max_pool(RECORDER, F.max_pool2d, (given.detach(),), options),
    ]
    assert not any("Placed" in str(each.grad_fn) for each in plain)


class OnGpu(Tensor):
    """Numbers that say they are on a GPU."""

    is_cuda = True


SIDE_BY_SIDE: list[tuple[bool, tuple[int, ...], tuple[Any, ...], dict[str, Any]]] = [
    (True, (3, 5, 6, 8), (2,), {}),
    (True, (2, 1, 6, 8), ((3, 2),), {}),
    (True, (2, 1, 6, 8), ((3, 2), (3, 2), 0), {}),
    (True, (1, 7, 4, 10), (), {"kernel_size": (2, 5), "stride": [], "padding": (0, 0), "dilation": (1, 1)}),
    (False, (4, 6, 8), (2,), {}),
    (False, (2, 2, 6, 8), ((2, 3),), {}),
    (False, (2, 2, 8, 6), ((3, 2),), {}),
    (False, (2, 2, 6, 8), (2, (2, 1)), {}),
    (False, (2, 2, 6, 8), (2, 2, (1, 0)), {}),
    (False, (2, 2, 6, 8), (2, 2, (0, 1)), {}),
    (False, (2, 2, 6, 8), (2, 2, 0, (2, 1)), {}),
    (False, (2, 2, 6, 8), (2, 2, 0, (1, 2)), {}),
]


@pytest.mark.parametrize(("ours", "shape", "args", "options"), SIDE_BY_SIDE)
def test_which_windows_are_pooled_on_a_gpu(
    ours: bool, shape: tuple[int, ...], args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    """Those side by side that fill an image; torch pools the others."""
    torch.manual_seed(0)
    given = torch.randn(shape, dtype=torch.float64, device=DEVICE).as_subclass(OnGpu).requires_grad_()
    with torch._C.DisableTorchFunctionSubclass():
        found = max_pool(RECORDER, F.max_pool2d, (given, *args), options)
        assert (found.grad_fn.name() == "TiledMaxPoolBackward") == ours
        assert torch.equal(found, F.max_pool2d(given, *args, **options))


class Pooled(nn.Module):
    """Max pooling in every way of writing it."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 3, 3, padding=1), nn.Linear(3 * 4 * 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        both, _ = F.max_pool2d(hidden, 2, return_indices=True)
        made = both + F.max_pool2d(hidden, 3, 2, 1) + F.max_pool2d(input=hidden, kernel_size=(2, 2), stride=[])
        return self.second((made + F.max_pool2d(hidden, 2, None, 0, 1, False)).flatten(1))


def test_pooling_in_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same posterior and predictions as by torch's own gradients; its own are taken where windows are pooled."""
    torch.manual_seed(0)
    model = Pooled().double().to(DEVICE).eval()
    x = torch.randn(6, 1, 8, 8, dtype=torch.float64, device=DEVICE)
    y = torch.randint(3, (6,), device=DEVICE)

    def answers() -> tuple[Tensor, Tensor]:
        la = pw.fit(model, [(x, y)], "classification", structure="full")
        return la.log_evidence(), la.functional(x)[1]

    ours = answers()
    monkeypatch.delitem(HANDLERS, F.max_pool2d)
    for one, other in zip(ours, answers(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("stride", [np.int64(2), torch.tensor(2), (np.int64(2), 2), [2]])
def test_strides_of_any_kind_of_number(stride: Any) -> None:
    """Whatever torch takes: the covariances are those of a plain number."""
    x = torch.randn(5, 1, 9, 9, device=DEVICE)
    y = torch.randint(2, (5,), device=DEVICE)
    try:
        F.conv2d(x, x[:1, :, :2, :2], None, stride)
    except RuntimeError:
        pytest.skip("this torch does not take the stride itself")  # a tensor: 2.6

    def covariance(step: Any) -> Tensor:
        class Stepped(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.second = nn.Conv2d(1, 3, 2), nn.Linear(12, 2)

            def forward(self, x: Tensor) -> Tensor:
                hidden = F.conv2d(x, self.first.weight, self.first.bias, step)
                return self.second(F.max_pool2d(hidden, 2, step).flatten(1))

        torch.manual_seed(0)
        model = Stepped().eval().to(DEVICE)
        return pw.fit(model, [(x, y)], "classification").functional(x)[1]

    torch.testing.assert_close(covariance(stride), covariance(2))


class Inside(nn.Module):
    """Operations with a gradient of our own inside the network's own `torch.func.grad`."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.second = kind, nn.Conv2d(2, 4, 3, padding=1), nn.Linear(4 * 4 * 4, 3)
        self.norm = nn.BatchNorm2d(4)

    def score(self, hidden: Tensor) -> Tensor:
        made = F.max_pool2d(hidden, 2) if self.kind == "pooling" else self.norm(hidden)
        return made.pow(3).sum()

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.func.grad(self.score)(self.first(x)).flatten(1))


@pytest.mark.parametrize("kind", ["pooling", "norm"])
def test_inside_transforms_of_the_network(kind: str) -> None:
    """Covariances of all weights, those inside the transform too, by the dense formula."""
    torch.manual_seed(0)
    model = Inside(kind).double().to(DEVICE).eval()
    x, y = torch.randn(5, 2, 4, 4, dtype=torch.float64, device=DEVICE), torch.randint(3, (5,), device=DEVICE)
    found = pw.fit(model, [(x, y)], "classification", structure="full", prior=1.0).functional(x)[1]
    weights = {name: each.detach() for name, each in model.named_parameters()}
    made = torch.func.jacrev(lambda given: torch.func.functional_call(model, given, (x,)))(weights)
    jacobian = torch.cat([each.flatten(2) for each in made.values()], 2)
    shares = model(x).detach().softmax(-1)
    hessian = torch.diag_embed(shares) - shares[:, :, None] * shares[:, None, :]
    precision = torch.einsum("nci,ncd,ndj->ij", jacobian, hessian, jacobian)
    precision = precision + torch.eye(len(precision), dtype=precision.dtype, device=DEVICE)
    expected = jacobian @ torch.linalg.solve(precision, jacobian.mT)
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-8)


class Folded(nn.Module):
    """A convolution over one axis, or two, of several pieces of each example."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        kind = nn.Conv1d if dims == 1 else nn.Conv2d
        self.first, self.second = kind(3, 16, 3, padding=1), nn.Linear(2 * 16 * 6**dims, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x.flatten(0, 1)).relu().reshape(x.shape[0], -1))


@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("fold", [True, False])
def test_convolutions_of_pieces_and_of_one_example(dims: int, fold: bool) -> None:
    """In float32, whose shortest way is another than float64's: the same covariances, also of a single example."""
    torch.manual_seed(0)
    if fold:
        model: nn.Module = Folded(dims).eval().to(DEVICE)
        x = torch.randn(7, 2, 3, *[6] * dims, device=DEVICE)
    else:
        kind = nn.Conv1d if dims == 1 else nn.Conv2d
        model = nn.Sequential(kind(3, 16, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 6**dims, 4))
        model = model.eval().to(DEVICE)
        x = torch.randn(7, 3, *[6] * dims, device=DEVICE)
    y = torch.randint(4, (7,), device=DEVICE)
    la = pw.fit(model, [(x, y)], "classification", arithmetic="float32")
    double = pw.fit(copy.deepcopy(model).double(), [(x.double(), y)], "classification")
    for given in (x, x[:1]):
        found, expected = la.functional(given)[1], double.functional(given.double())[1]
        assert float((found - expected).norm() / expected.norm()) < 1e-4


@pytest.mark.parametrize(
    "window",
    [
        window_of((3, 2), (1, 1), (1, 0), (1, 1), 1),
        window_of((3, 3), (2, 1), (0, 2), (1, 2), 1),
        window_of((2, 2), (1, 1), "same", (1, 1), 1),
        window_of((3, 1), (1, 1), "valid", (2, 1), 1),
        window_of((3,), (2,), (1,), (1,), 1),
        window_of((2, 1, 3), (1, 1, 2), (0, 1, 1), (1, 1, 1), 1),
        window_of((2, 3), (1, 1), (1, 0), (1, 2), 5),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_patches_in_a_basis(window: Window, turned: bool) -> None:
    """By a convolution with the basis as kernels, of images in any order of memory."""
    torch.manual_seed(0)
    given = torch.randn(4, 5, *(7, 9, 4)[: len(window.kernel)])
    given = given.contiguous(memory_format=conv_patches.LAST[given.dim()]) if turned else given
    width = 5 // window.groups * math.prod(window.kernel)
    basis = torch.randn(window.groups, width, width)
    expected = unfold(given.double(), window) @ basis.double()
    found = rotate_patches(given, window, basis)
    assert found.shape == expected.shape
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


KINDS: dict[int, Any] = {1: (F.conv1d, F.conv_transpose1d), 2: (F.conv2d, F.conv_transpose2d), 3: (F.conv3d, None)}
CONVOLUTIONS = {
    "sequence": window_of((3,), (2,), (1,), (2,), 2),
    "image": window_of((3, 2), (2, 1), (1, 0), (1, 2), 1),
    "groups": window_of((2, 3), (1, 2), (0, 2), (2, 1), 2),
    "same": window_of((2, 4), (1, 1), "same", (1, 2), 2),
    "valid": window_of((2, 2), (1, 2), "valid", (1, 1), 1),
    "volume": window_of((2, 1, 3), (1, 2, 1), (1, 0, 2), (1, 1, 1), 2),
    "transposed sequence": window_of((3,), (2,), (1,), (2,), 2, (1,)),
    "transposed image": window_of((3, 2), (2, 3), (1, 0), (1, 2), 1, (1, 2)),
    "transposed groups": window_of((2, 3), (1, 2), (0, 1), (1, 1), 2, (0, 1)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_of_pieces(name: str) -> None:
    """Three of each example: factors in their layout make torch's gradients of weight and bias."""
    torch.manual_seed(0)
    window, transposed = CONVOLUTIONS[name], name.startswith("transposed")
    dims, groups, folds = len(window.kernel), window.groups, 3
    ins, outs = 4, 6
    weight = normal(*((ins, outs // groups) if transposed else (outs, ins // groups)), *window.kernel)
    bias = normal(outs)
    given = normal(2, folds, ins, *(7, 6, 5)[:dims]).detach()
    options: dict[str, Any] = {"stride": window.stride, "padding": window.padding, "dilation": window.dilation}
    options |= {"groups": groups} | ({"output_padding": window.output_padding} if transposed else {})
    outputs = [KINDS[dims][transposed](each, weight, bias, **options) for each in given]
    grads = torch.randn(3, 2, *outputs[0].shape, dtype=torch.float64, device=DEVICE)
    views = {"weight": WeightView.of("weight", weight, weight), "bias": WeightView.of("bias", bias, bias)}
    rule = conv.CONV_TRANSPOSED if transposed else conv.CONV
    use: Any = SimpleNamespace(options=window, views=views)
    for each in rule.contributions(use, (given,), grads):
        term = each.value
        acts = term.acts(slice(None))
        assert acts.shape == (2, acts.shape[1], term.acts.positions, term.acts.width)
        found = each.layout.to_flat(torch.einsum("kbgto,bgti->kbgoi", term.grad, acts))
        own = weight if each.part.name == "weight" else bias
        assert each.part == (each.part.name, 0, own.numel())
        for probe, example in np.ndindex(3, 2):
            (right,) = torch.autograd.grad(outputs[example], own, grads[probe, example], retain_graph=True)
            torch.testing.assert_close(found[probe, example], right.flatten(), rtol=1e-9, atol=1e-11)


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU has kernels for it")
@pytest.mark.parametrize("folds", [(), (3,)])
def test_large_images_are_turned_by_a_convolution(folds: tuple[int, ...]) -> None:
    """In float32 alone, and beside what is asked of patches: pieces are more positions."""
    torch.manual_seed(0)
    window, own = window_of((3, 2), (1, 1), (1, 0), (1, 1), 1), torch.randn(2, 4, 3, 2)
    given, basis = torch.randn(5, *folds, 4, 6, 6), torch.randn(1, 24, 24)
    use: Any = SimpleNamespace(options=window, views={"weight": WeightView.of("weight", own, own)})

    def acts(given: Tensor) -> Any:
        (made,) = conv.CONV.contributions(use, (given,), torch.randn(1, 5, *folds, 2, 6, 5))
        return made.value.acts

    expected = (acts(given)(slice(1, 4)).double()) @ basis.double()
    assert expected.shape == (3, 1, 30 * math.prod(folds), 24)
    torch.testing.assert_close(acts(given).make_in_basis(slice(1, 4), basis).double(), expected, rtol=1e-4, atol=1e-4)
    assert acts(given.double()).make_in_basis is None and acts(given[..., :1, :2]).make_in_basis is None
    assert (acts(given).make_operand is None) == bool(folds)


def scaled_up(x: Tensor, axis: int, two: bool, half: torch.dtype, top: int = 3) -> operands.Operand:
    """In place of a kernel: an operand that stays in its precision, scaled by what is asked for."""
    scale = torch.full((x.shape[axis],), 2.0**top, dtype=x.dtype)
    high = x * scale.reshape(-1, *[1] * (x.dim() - 1 - axis))
    return operands.Operand(high, high, scale, two)


@pytest.mark.parametrize("two", [True, False])
@pytest.mark.parametrize("large", [True, False])
@pytest.mark.parametrize("gpu", [True, False])
def test_patches_in_a_basis_for_kernels(two: bool, large: bool, gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scaled as an operand says: from patches where parts pay, by a convolution of short numbers, or in float32."""
    torch.manual_seed(0)
    window = window_of((3, 2), (1, 1), (1, 0), (1, 1), 1)
    weight = torch.randn(2, 4, 3, 2)
    given = torch.randn(5, 4, 6, 5)
    basis = torch.randn(1, 24, 24)
    asked, kept = [], conv_patches.rotate_operand

    def rotate(x: Tensor, basis: Tensor, axis: int, two: bool, half: torch.dtype) -> operands.Operand:
        asked.append("patches")
        return scaled_up(x @ basis, axis, two, half)

    def shorten(basis: Tensor, half: torch.dtype) -> tuple[Tensor, Tensor]:
        asked.append("short")
        return basis / 4, torch.tensor([0.25])

    monkeypatch.setattr(operands, "split", scaled_up)
    monkeypatch.setattr(operands, "rotate", rotate)
    monkeypatch.setattr(operands, "shorten", shorten)
    monkeypatch.setattr(operands, "rotation_top", {24: 5}.__getitem__)
    monkeypatch.setattr(operands, "worth_parts", lambda *_: large)
    use: Any = SimpleNamespace(options=window, views={"weight": WeightView.of("weight", weight, weight)})
    shown = given.as_subclass(OnGpu) if gpu else given
    with torch._C.DisableTorchFunctionSubclass():
        (made,) = conv.CONV.contributions(use, (shown,), torch.randn(1, 5, 2, 6, 4))
        # Slices keep saying that they are on a GPU.
        monkeypatch.setattr(
            conv_patches, "rotate_operand", lambda x, *rest: kept(x.as_subclass(OnGpu) if gpu else x, *rest)
        )
        operand = made.value.acts.make_operand(slice(1, 4), basis, two, torch.float16)
    assert asked == (["patches"] if two and large else ["short"] if gpu and not two else [])
    assert operand.two == two and operand.scale.shape == (3,)
    expected = unfold(given[1:4].double(), window) @ basis.double()
    for part in (operand.high, operand.low):
        found = part.double() / operand.scale.double()[:, None, None, None]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(DEVICE != "cpu", reason="a GPU has kernels for it")
def test_networks_take_patches_in_a_basis(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, with the covariances of float64; wide layers on small images make their patches."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 6, 2), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(24, 3)).eval()
    x, y = torch.randn(8, 2, 6, 6), torch.randint(3, (8,))
    asked: list[int] = []

    def counted(given: Tensor, window: Window, basis: Tensor) -> Tensor:
        asked.append(basis.shape[-1])
        return rotate_patches(given, window, basis)

    monkeypatch.setattr(conv_patches, "rotate_patches", counted)
    found = pw.fit(model, [(x, y)], "classification").functional(x)[1]
    assert set(asked) == {18}  # the second layer sees 64 numbers at each of four positions
    double = copy.deepcopy(model).double()
    expected = pw.fit(double, [(x.double(), y)], "classification").functional(x.double())[1]
    assert float((found - expected).norm() / expected.norm()) < 1e-5
    assert set(asked) == {18}


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_unbind(axis: int) -> None:
    """Along any axis of a tensor in another order; a part that nothing depends on has zeros."""
    torch.manual_seed(0)
    given = normal(2, 5, 3, 4)
    turned = given.permute(2, 0, 3, 1)

    def mixed(parts: tuple[Tensor, ...]) -> Tensor:
        return parts[0] * parts[1].cos()

    ours, theirs = mixed(Unbind.apply(turned, axis % 4)), mixed(turned.unbind(axis))
    same_gradients(ours, theirs, [given])
    grads = torch.randn(4, *ours.shape, dtype=ours.dtype, device=ours.device)
    (made,) = torch.vmap(lambda grad: torch.autograd.grad(ours, [turned], grad, retain_graph=True))(grads)
    assert made[0].stride() == turned.stride()  # so that nobody copies it back


def test_which_tensors_are_taken_apart_by_us() -> None:
    """Computed ones whose parts are not in the order of memory."""
    torch.manual_seed(0)
    given = normal(4, 2, 3)
    turned = (2 * given).permute(2, 0, 1)

    def ours(tensor: Any, *args: Any, recorder: Any = RECORDER, **options: Any) -> bool:
        made = HANDLERS[torch.unbind](recorder, torch.unbind, (tensor, *args), options)
        expected = torch.unbind(tensor, *args, **options)
        assert len(made) == len(expected) and all(map(torch.equal, made, expected))
        return bool(made) and made[0].grad_fn is not None and made[0].grad_fn.name() == "UnbindBackward"

    assert ours(turned) and ours(turned, 0) and ours(turned, dim=2) and ours(turned, -1) and ours(turned, -3)
    assert not ours(turned, 1) and not ours(turned, -2) and not ours(2 * given)
    assert ours(2 * given, 1)
    assert not ours(turned, recorder=SimpleNamespace(probes=False, second=False))
    assert not ours(turned, recorder=SimpleNamespace(probes=True, second=True))
    assert not ours(given.detach().permute(2, 0, 1)) and not ours(given.permute(2, 0, 1))
    assert not ours(turned[:, :0]) and not ours((2 * given)[..., :1].expand(4, 2, 3).permute(2, 0, 1))
    assert not ours(torch.complex(turned, turned))
    for axis in (3, -4):
        with pytest.raises(IndexError):
            HANDLERS[torch.unbind](RECORDER, torch.unbind, (turned, axis), {})


class Packed(nn.Module):
    """Attention whose packed projections are taken apart by `unbind`, the weight itself too."""

    def __init__(self, apart: bool) -> None:
        super().__init__()
        self.project, self.scales, self.apart = nn.Linear(4, 12), nn.Parameter(torch.randn(2, 4)), apart
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        packed = self.project(x).reshape(*x.shape[:2], 3, 2, 2).permute(2, 0, 3, 1, 4)
        query, key, value = packed.unbind(0) if self.apart else (packed[0], packed[1], packed[2])
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        first, second = self.scales.unbind(0) if self.apart else (self.scales[0], self.scales[1])
        return self.head((mixed * first + second).mean(1))


def test_unbind_in_networks() -> None:
    """The same posterior and predictions as with indices."""
    torch.manual_seed(0)
    model = Packed(True).double().to(DEVICE).eval()
    other = Packed(False).double().to(DEVICE).eval()
    other.load_state_dict(model.state_dict())
    x = torch.randn(6, 5, 4, dtype=torch.float64, device=DEVICE)
    y = torch.randint(3, (6,), device=DEVICE)
    for structure in ("kron", "full"):
        found, expected = (pw.fit(each, (x, y), "classification", structure=structure) for each in (model, other))
        assert not any(row.rule == "generic" for row in found.coverage())
        torch.testing.assert_close(found.functional(x).cov, expected.functional(x).cov, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(found.log_evidence(), expected.log_evidence())


POOLS = {
    "side by side": nn.MaxPool2d(2),
    "overlapping": nn.MaxPool2d(3, 2, padding=1),
    "rest": nn.MaxPool2d(2, ceil_mode=True),
    "dilated": nn.MaxPool2d(2, dilation=2),
}


@pytest.mark.parametrize("name", list(POOLS))
def test_pools_in_networks(name: str) -> None:
    """Those with a gradient of ours and the others."""
    torch.manual_seed(0)
    size = 7 if name == "rest" else 8
    model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), POOLS[name], nn.Flatten(), nn.LazyLinear(3))
    model(torch.randn(1, 1, size, size))
    model = model.double().to(DEVICE)
    x = torch.randn(4, 1, size, size, dtype=torch.float64, device=DEVICE)
    la = pw.fit(model, (x, torch.tensor([0, 1, 2, 0], device=DEVICE)), "classification", structure="diag")
    rows = jacobian(model, x)
    expected = torch.einsum("bkp,p,blp->bkl", rows, la.precision.variance(), rows)
    torch.testing.assert_close(la.functional(x).cov, expected)


def jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """(B, K, D), one output of one example at a time."""
    rows = []
    for output in model(x):
        grads = [torch.autograd.grad(each, list(model.parameters()), retain_graph=True) for each in output]
        rows.append(torch.stack([torch.cat([part.flatten() for part in grad]) for grad in grads]))
    return torch.stack(rows)


def test_probes_pass_every_operation_together() -> None:
    """No operation of a residual network with norms, pools and attention is done once per probe."""
    torch.manual_seed(0)

    class Mixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Conv2d(1, 4, 3, padding=1)
            self.norm = nn.BatchNorm2d(4)
            self.layer = nn.LayerNorm(4)
            self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
            self.last = nn.Linear(4, 6)

        def forward(self, x: Tensor) -> Tensor:
            x = F.max_pool2d(F.gelu(self.norm(self.first(x))), 2).flatten(2).mT
            x = self.layer(x)
            return self.last((x + self.attention(x, x, x, need_weights=False)[0]).mean(1))

    model = Mixed().to(DEVICE).eval()
    tracer = Tracer(model, tuple(name for name, _ in model.named_parameters()), Budget(10**9), predicting=True)
    x = torch.randn(3, 1, 8, 8, device=DEVICE)
    tracer.cost(x)
    tape = tracer.trace(x)
    counts = []
    for number in (2, 6):
        probes = torch.eye(6, device=DEVICE)[:number, None].expand(number, 3, 6)
        tape.pull(probes)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True) as profile:
            tape.pull(probes)
        counts.append(sum(event.count for event in profile.key_averages() if event.key.startswith("aten::")))
    assert counts[0] == counts[1]


def test_second_derivatives_are_torchs() -> None:
    """The gradient of a covariance in the inputs, through attention and batch norm, by finite differences."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    model = nn.Sequential(layer, nn.BatchNorm1d(3), nn.Flatten(), nn.Linear(12, 2)).double().to(DEVICE).eval()
    x = torch.randn(4, 3, 4, dtype=torch.float64, device=DEVICE)
    la = pw.fit(model, (x, torch.randn(4, 2, dtype=torch.float64, device=DEVICE)), "regression", structure="diag")
    asked = x[:1].clone().requires_grad_()
    (found,) = torch.autograd.grad(la.functional(asked, create_graph=True).cov.sum(), asked)
    step, place = 1e-5, (0, 1, 2)
    shifted = [x[:1].clone() for _ in range(2)]
    shifted[0][place] += step
    shifted[1][place] -= step
    high, low = (float(la.functional(each).cov.sum()) for each in shifted)
    assert float(found[place]) == pytest.approx((high - low) / (2 * step), rel=1e-5)


class Gamma(nn.Module):
    """Any positive scale."""

    def forward(self, raw: Tensor) -> Tensor:
        return raw.exp()


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_scales_that_are_computed_keep_their_path(name: str) -> None:
    """Scale or shift of a batch norm as a function of a weight, the other one plain."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2)).double().to(DEVICE).eval()
    nn.utils.parametrize.register_parametrization(model[1], name, Gamma())
    x = torch.randn(5, 3, dtype=torch.float64, device=DEVICE)
    la = pw.fit(model, (x, torch.arange(5, device=DEVICE) % 2), "classification", structure="diag")
    assert sum(parameter.numel() for parameter in model.parameters()) == la.D
    rows = jacobian(model, x)
    order = dict(zip((name for name, _ in model.named_parameters()), sizes(model), strict=True))
    starts = {each: sum(list(order.values())[:place]) for place, each in enumerate(order)}
    index = torch.cat([torch.arange(starts[each], starts[each] + order[each]) for each in la.space.names]).to(DEVICE)
    rows = rows[..., index]
    torch.testing.assert_close(
        la.functional(x).cov, torch.einsum("bkp,p,blp->bkl", rows, la.precision.variance(), rows)
    )


def sizes(model: nn.Module) -> list[int]:
    """Numbers of every parameter."""
    return [parameter.numel() for parameter in model.parameters()]


class Masked(nn.Module):
    """Attention whose mask is a buffer that every forward pass fills; it is put back afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.out = nn.Linear(4, 4), nn.Linear(4, 2)
        self.register_buffer("mask", torch.zeros(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        query = self.query(x).unsqueeze(1)
        self.mask.copy_(torch.tensor([[0.0, -1, 2], [1, 0, 0], [0, 3, 0]]))
        made = F.scaled_dot_product_attention(query, query, x.unsqueeze(1), attn_mask=self.mask)
        return self.out(made.squeeze(1).mean(1))


def test_masks_as_they_were_in_the_forward_pass() -> None:
    """Buffers are put back before gradients are asked for."""
    torch.manual_seed(0)
    model = Masked().double().to(DEVICE)
    x = torch.randn(4, 3, 4, dtype=torch.float64, device=DEVICE)
    la = pw.fit(model, (x, torch.arange(4, device=DEVICE) % 2), "classification", structure="diag")
    step = 1e-6
    other = copy.deepcopy(model)  # a plain call leaves the mask filled
    parameter = other.query.weight
    gradient = []
    for sign in (1, -1):
        with torch.no_grad():
            parameter[0, 1] += sign * step
            gradient.append(other(x).clone())
            parameter[0, 1] -= sign * step
    slope = (gradient[0] - gradient[1]) / (2 * step)
    (place,) = (index for index, name in enumerate(la.space.names) if name == "query.weight")
    start = sum(sizes_of(la)[:place])
    vectors = torch.zeros(1, la.D, dtype=torch.float64, device=DEVICE)
    vectors[0, start + 1] = 1.0
    moved = pw.predictions.samples.linearised_samples(network_of(la.state, None), x, vectors)[0] - other(x)
    torch.testing.assert_close(moved, slope, rtol=1e-6, atol=1e-8)


def sizes_of(la: pw.Laplace) -> list[int]:
    """Numbers of every uncertain weight."""
    return [shape.numel() for shape in la.space.shapes]


def test_attention_in_parts() -> None:
    """The same gradients where all probes do not fit at once."""
    torch.manual_seed(0)
    query, key, value = normal(6, 5, 4), normal(6, 7, 4), normal(6, 7, 3)
    shares = ((query @ key.mT) * 0.5).softmax(-1)
    grad = normal(6, 3, 5, 3)
    with torch.no_grad():
        whole = attention.gradients(query, key, value, shares, 0.5, grad)
        kept = attention.AT_ONCE_CPU, attention.AT_ONCE_CUDA
        try:
            attention.AT_ONCE_CPU = attention.AT_ONCE_CUDA = 4 * 3 * 35 * 2
            parts = attention.gradients(query, key, value, shares, 0.5, grad)
        finally:
            attention.AT_ONCE_CPU, attention.AT_ONCE_CUDA = kept
    for one, other in zip(parts, whole, strict=True):
        torch.testing.assert_close(one, other)


def test_networks_with_autocast_inside() -> None:
    """Torch's own gradients serve there."""

    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.out = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            query = self.query(x).unsqueeze(1)
            with torch.autocast(torch.device(DEVICE).type, torch.bfloat16):
                made = F.scaled_dot_product_attention(query, query, query)
            return self.out(made.float().squeeze(1).mean(1))

    torch.manual_seed(0)
    model, x = Half().to(DEVICE), torch.randn(4, 3, 4, device=DEVICE)
    la = pw.fit(model, (x, torch.arange(4, device=DEVICE) % 2), "classification", structure="diag")
    rows = jacobian(model, x)
    expected = torch.einsum("bkp,p,blp->bkl", rows, la.precision.variance(), rows)
    torch.testing.assert_close(la.functional(x).cov, expected, rtol=2e-2, atol=2e-3 * float(expected.abs().max()))
