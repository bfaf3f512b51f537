"""Sums over patches by offsets between taps, against patches cut out one tap at a time."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import peewit as pw
from convolutional_networks import window_of
from environment import DEVICE
from fitting import built, fitted, normal
from peewit.curvature.structures.contributions import add_gradients, add_inputs
from peewit.curvature.structures.factors import KronSums
from peewit.jacobians.factored import Matrix, Term
from peewit.jacobians.inputs import Acts
from peewit.jacobians.layout import Layout
from peewit.runtime.memory import Budget
from peewit.tracing.layers.conv import geometry
from peewit.tracing.layers.conv import moments as patch_moments
from peewit.tracing.layers.conv.geometry import Axis, TapGroup
from peewit.tracing.layers.conv.moments import PatchMoments
from peewit.tracing.layers.conv.patches import Window, unfold
from peewit.weights.ranges import WeightRange
from tables import curvature_of, relative, table

LARGE = Budget(1 << 30)
KERNELS = [(1, 1), (2, 2), (3, 3), (5, 5), (3, 1), (1, 7), (2, 3)]
PADDINGS: list[Any] = [(0, 0), (1, 1), (3, 2), (2, 7), "same", "valid"]
DILATIONS = [(1, 1), (2, 2), (1, 3)]
STRIDES = [(1, 1), (2, 2), (1, 3)]


def cut_out(x: Tensor, window: Window) -> Tensor:
    """(G, n * T, C / G * kernel): patches by their definition, one slice of the padded images per tap."""
    pads = window.pads()
    padded = functional.pad(x, pads)
    dims = len(window.kernel)
    places = [
        (padded.shape[2 + axis] - window.dilation[axis] * (window.kernel[axis] - 1) - 1) // window.stride[axis] + 1
        for axis in range(dims)
    ]
    made = []
    for tap in itertools.product(*(range(size) for size in window.kernel)):
        starts = [each * dilation for each, dilation in zip(tap, window.dilation, strict=True)]
        seen = [
            slice(start, start + (number - 1) * stride + 1, stride)
            for start, number, stride in zip(starts, places, window.stride, strict=True)
        ]
        made.append(padded[(slice(None), slice(None), *seen)].flatten(2))
    count, channels, groups = x.shape[0], x.shape[1], window.groups
    stacked = torch.stack(made, 2).reshape(count, groups, channels // groups * len(made), math.prod(places))
    return stacked.permute(1, 0, 3, 2).flatten(1, 2)


def outer(rows: Tensor) -> Tensor:
    """(G, n, width) -> (G, width, width)."""
    return rows.mT @ rows


def fits(window: Window, sizes: tuple[int, ...]) -> bool:
    """Whether a convolution has any output."""
    return all(axis.size + axis.before + axis.after > axis.reach for axis in window.axes(sizes))


def moments(x: Tensor, window: Window) -> PatchMoments:
    """What is under test."""
    return PatchMoments(x.to(DEVICE), window.axes(tuple(x.shape[2:])), window.groups)


def check(x: Tensor, window: Window, budget: Budget = LARGE, tolerance: float = 1e-12) -> None:
    """First and second moments of one geometry, and exact symmetry."""
    rows = cut_out(x.double(), window)
    expected = outer(rows)
    sums = moments(x, window)
    made = sums.second(budget).reshape(expected.shape)
    assert torch.equal(made, made.mT)
    assert relative(made, expected) < tolerance or expected.abs().max() == 0 == made.abs().max()
    first = rows.reshape(window.groups, len(x), -1, rows.shape[-1]).sum(2).transpose(0, 1)
    assert float((sums.first(slice(0, len(x))).cpu() - first).abs().max()) <= 100 * tolerance * float(rows.abs().max())


@pytest.mark.parametrize("sizes", [(6, 9), (4, 4), (2, 3), (1, 1)], ids=str)
@pytest.mark.parametrize("stride", STRIDES, ids=str)
def test_images(sizes: tuple[int, ...], stride: tuple[int, int]) -> None:
    """Kernels of all sizes, padding up to more than the kernel, dilation, groups, images smaller than the reach."""
    seen = 0
    for kernel, padding, dilation in itertools.product(KERNELS, PADDINGS, DILATIONS):
        for groups in (1, 2, 4):
            window = window_of(kernel, stride, padding, dilation, groups)
            if fits(window, sizes) and (padding != "same" or stride == (1, 1)):
                check(normal(2, 4, *sizes, seed=seen), window)
                seen += 1
    assert seen > 80


@pytest.mark.parametrize("size", [1, 2, 5, 11])
def test_sequences(size: int) -> None:
    """One axis."""
    for kernel, stride, padding, dilation, groups in itertools.product((1, 2, 3, 5), (1, 2), (0, 1, 3), (1, 3), (1, 3)):
        window = window_of((kernel,), (stride,), (padding,), (dilation,), groups)
        if fits(window, (size,)):
            check(normal(3, 3, size, seed=kernel), window)


@pytest.mark.parametrize("stride", [(1, 1, 1), (1, 2, 1), (2, 2, 2)], ids=str)
def test_volumes(stride: tuple[int, ...]) -> None:
    """Three axes."""
    for kernel, padding in itertools.product([(1, 2, 3), (2, 2, 2), (3, 3, 3)], [(0, 0, 0), (1, 1, 1), (0, 1, 2)]):
        check(normal(2, 2, 3, 4, 5), window_of(kernel, stride, padding, (1, 1, 1), 1))
        check(normal(1, 4, 4, 3, 4), window_of(kernel, stride, padding, (1, 1, 1), 2))


def test_single_examples_and_small_budgets() -> None:
    """One image, and one image at a time."""
    window = window_of((3, 3), (1, 1), (1, 1), (1, 1), 1)
    check(normal(1, 3, 5, 6), window)
    for budget in (1, 5_000, 20_000):
        check(normal(7, 3, 5, 6), window, Budget(budget))
        check(normal(7, 4, 6, 5), window_of((3, 2), (2, 1), (1, 0), (1, 2), 2), Budget(budget))


def test_lower_precision() -> None:
    """Single precision to 1e-6, or summed in double; half precision is summed in single."""
    window = window_of((3, 3), (1, 1), (1, 1), (1, 1), 1)
    x = normal(16, 8, 20, 20).relu()
    check(x.float(), window, tolerance=1e-6)
    wide = moments(x.float(), window).second(LARGE, torch.float64)
    expected = outer(cut_out(x.float().double(), window))
    assert wide.dtype == torch.float64 and relative(wide.reshape(expected.shape), expected) < 1e-13
    rounded = x.to(torch.bfloat16)
    made = moments(rounded, window).second(LARGE)
    assert made.dtype == torch.float32
    expected = outer(cut_out(rounded.double(), window))
    assert relative(made.reshape(expected.shape), expected) < 1e-6


def test_eigenvalues_stay_positive() -> None:
    """Images of one pixel each leave most of the factor without rank; rounding does not make that negative."""
    x = torch.zeros(4, 3, 6, 6, dtype=torch.float64)
    x[torch.arange(4), 0, torch.arange(4), 2] = 1.0
    x = x + 1e-3 * normal(4, 3, 1, 1)
    for padding in (0, 1, 2):
        made = moments(x, window_of((3, 3), (1, 1), (padding, padding), (1, 1), 1)).second(LARGE)
        values = torch.linalg.eigvalsh(made.reshape(1, 27, 27))
        assert float(values.min()) > -1e-13 * float(values.max())


def test_large_matrices_are_mirrored_in_squares(monkeypatch: pytest.MonkeyPatch) -> None:
    """Squares that do not divide the width, and groups."""
    monkeypatch.setattr(patch_moments, "TILE", 7)
    check(normal(2, 6, 5, 4), window_of((3, 3), (1, 1), (1, 1), (1, 1), 1))
    check(normal(2, 6, 5, 4), window_of((3, 2), (1, 2), (1, 0), (1, 1), 2))


def test_long_sums_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU takes long sums in parts."""
    monkeypatch.setattr(patch_moments, "count_pieces", lambda left, right: 2 if left.shape[1] % 2 == 0 else 1)
    check(normal(2, 3, 5, 4), window_of((3, 3), (1, 1), (1, 1), (1, 1), 1))
    check(normal(4, 3, 9), window_of((3,), (2,), (1,), (1,), 1))


@pytest.mark.parametrize(
    ("long", "channels", "width", "parts"),
    [
        (1 << 20, 64, 64, 256),  # as many as there is work for, on one tile
        (1 << 20, 65, 64, 128),
        (1 << 20, 128, 64, 128),
        (1 << 20, 129, 64, 64),  # of 85, the next that leaves equal parts
        (1 << 20, 64, 65, 128),
        (1 << 20, 64, 128, 128),
        (1 << 20, 128, 128, 64),
        (255 * 512, 1, 1, 255),
        (3 * 512, 8, 8, 3),
        (3 * 512 - 1, 8, 8, 1),
        (4 * 511, 8, 8, 2),
        (1024, 8, 8, 2),
        (1023, 8, 8, 1),
        (257 * 1024, 1, 1, 256),
        (5 * 521, 8, 8, 5),
        (1 << 20, 64 * 256, 128, 1),
        (0, 8, 8, 1),
    ],
)
def test_how_many_pieces(long: int, channels: int, width: int, parts: int) -> None:
    """On a GPU equal ones of 512 rows at least, as many as 256 tiles of 64 x 64 numbers take; one on a CPU."""
    left, right = (SimpleNamespace(shape=(1, long, each), is_cuda=True) for each in (channels, width))
    assert patch_moments.count_pieces(left, right) == parts
    assert patch_moments.count_pieces(SimpleNamespace(is_cuda=False), right) == 1


def test_gradients_flow_through_the_sums() -> None:
    """The gradient of a function of the factor, as that of unfolded patches."""
    window = window_of((3, 2), (1, 2), (1, 1), (1, 1), 1)
    x = normal(4, 2, 4, 5).to(DEVICE).requires_grad_()
    weight = normal(12, 12).to(DEVICE)
    for budget in (LARGE, Budget(1)):
        made = moments(x, window).second(budget).reshape(12, 12)
        (ours,) = torch.autograd.grad((made * weight).sum(), x)
        (expected,) = torch.autograd.grad((outer(cut_out(x, window))[0] * weight).sum(), x)
        assert relative(ours, expected.cpu()) < 1e-12
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(patch_moments, "TILE", 5)
        (tiled,) = torch.autograd.grad((moments(x, window).second(LARGE).reshape(12, 12) * weight).sum(), x)
        assert relative(tiled, expected.cpu()) < 1e-12


def factor(x: Tensor, window: Window, bias: bool, weight: Tensor | None, reduced: bool, fast: bool) -> Tensor:
    """(G, I, I): the input factor of images (B, F, C, H, W), several to an example, from patches or from their sums."""
    folds, groups = x.shape[1], window.groups

    def act(chosen: slice) -> Tensor:
        rows = cut_out(x[chosen].flatten(0, 1), window)
        return rows.reshape(groups, len(x[chosen]), -1, rows.shape[-1]).transpose(0, 1)

    _, _, positions, width = act(slice(0, 1)).shape
    given = PatchMoments(x, window.axes(tuple(x.shape[3:])), groups) if fast else None
    assert folds > 1
    term = Term(
        Acts(make=act, width=width, positions=positions, moments=given),
        normal(1, len(x), groups, positions, 2).to(DEVICE),
    )
    matrix = Matrix((term,), Layout.plain(groups, 2, width), Budget(30_000))
    matrix = matrix.with_bias() if bias else matrix
    sums, key = KronSums(), (WeightRange("weight", 0, 1),)
    add_gradients(sums, key, matrix, reduced, {})
    add_inputs(sums, key, matrix, [weight], reduced)
    add_inputs(sums, key, matrix, [weight], reduced)
    return sums.factors[key, False].inputs


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("reduced", [False, True])
def test_factors_with_ones_masks_and_gradients(
    groups: int, bias: bool, reduced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every element of the factor and its gradient, with several images to an example, and some positions left out."""
    monkeypatch.setattr(patch_moments, "is_worthwhile", lambda *given: True)
    window = window_of((3, 2), (1, 2), (1, 0), (1, 1), groups)
    x = normal(3, 2, 4, 5, 6).to(DEVICE)
    mask = (normal(3, 2 * 15) > 0).to(DEVICE)
    for weight in (None, mask):
        for traced in (False, True):
            x = x.detach().requires_grad_(traced)
            ours, expected = (factor(x, window, bias, weight, reduced, fast) for fast in (True, False))
            assert relative(ours.detach(), expected.detach().cpu()) < 1e-12
            if traced:
                numbers = normal(*ours.shape).to(DEVICE)
                left, right = (torch.autograd.grad((made * numbers).sum(), x)[0] for made in (ours, expected))
                assert relative(left, right.cpu()) < 1e-12


NETWORKS = ["conv1d", "conv2d", "conv2d_same", "conv2d_groups", "depthwise", "conv3d", "residual_cnn", "segmentation"]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("bias", ["separate", "joint"])
def test_fits_by_offsets_are_those_of_the_definition(name: str, bias: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole fits of the networks in the table against dense loops, with offsets wherever they can be."""
    used = []
    monkeypatch.setattr(patch_moments, "is_worthwhile", lambda *given: used.append(given) or True)
    case = table(name)
    expected = case.kron(bias=bias)
    for memory in (None, 1):
        la = case.fit(pw.Kron(bias=bias), memory=memory)
        expected_here = expected[case.index(la)][:, case.index(la)]
        assert relative(curvature_of(la), expected_here) < 1e-9
    assert used


@pytest.mark.parametrize("bias", ["separate", "joint"])
def test_reduced_fits_by_sums_over_windows(bias: str) -> None:
    """Averages over positions come from sums of pixels, not from patches."""
    for name in NETWORKS[:-1]:
        case = table(name)
        la = case.fit(pw.Kron(approx="reduce", bias=bias))
        expected = case.kron(approx="reduce", bias=bias)[case.index(la)][:, case.index(la)]
        assert relative(curvature_of(la), expected) < 1e-9


def test_the_cheaper_way_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets where operations are saved; patches where there are none to save, and in small layers."""

    def taken(channels: int, size: int, kernel: int, images: int, cuda: bool = False) -> bool:
        axis = Axis(kernel=kernel, stride=1, dilation=1, before=kernel // 2, after=kernel // 2, size=size)
        return geometry.is_worthwhile((axis, axis), images, channels, 1, cuda)

    assert taken(64, 32, 3, 32) and taken(128, 16, 3, 32) and taken(256, 8, 3, 128) and taken(512, 4, 3, 128)
    assert taken(16, 14, 5, 128) and not taken(64, 32, 3, 128, cuda=True)
    assert not taken(512, 4, 3, 1) and not taken(64, 32, 1, 128) and not taken(1, 28, 5, 128)
    calls: list[Any] = []
    kept = patch_moments.second_moments
    monkeypatch.setattr(patch_moments, "second_moments", lambda *given: calls.append(given) or kept(*given))
    wide = built(nn.Sequential(nn.Conv2d(32, 2, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten()))
    fitted(wide, normal(24, 32, 12, 12), normal(24, 2), "regression")
    assert len(calls) == (0 if DEVICE.startswith("cuda") else 1)


def test_operations_are_counted() -> None:
    """13 offsets of a 3 x 3 kernel at most, less what lies outside of the image."""
    axis = Axis(kernel=3, stride=1, dilation=1, before=1, after=1, size=10)
    columns = [3 * 10, 5 * 10, 5 * 10]  # moved copies have zeros at the border, rows end there
    assert geometry.count_costs((axis, axis))[0] == sum(
        wide * tall for wide, tall in zip(columns, (10, 9, 8), strict=True)
    )
    strided = replace(axis, stride=2)
    assert geometry.count_costs((strided, strided))[0] < 0.55 * 81 * strided.places**2


def test_budgets_hold() -> None:
    """Copies of no more images at a time than fit half of the budget."""
    x = normal(64, 4, 9, 9)
    axes = window_of((3, 3), (1, 1), (1, 1), (1, 1), 1).axes((9, 9))
    each = geometry.count_copies(axes, 4) * x.dtype.itemsize
    for budget in (1, 4 * each, 20 * each):
        slices = list(patch_moments.example_blocks(x, axes, 1, Budget(budget)))
        assert [index for chosen in slices for index in range(64)[chosen]] == list(range(64))
        assert max(chosen.stop - chosen.start for chosen in slices) <= max(1, budget // (2 * each))


def test_pointwise_kernels_make_no_patches() -> None:
    """A kernel of one tap sees the image itself, with a stride or without."""
    x = normal(2, 3, 5, 4)
    for stride in (1, 2):
        seen = unfold(x, window_of((1, 1), (stride, stride), (0, 0), (1, 1), 1))
        assert seen.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() or stride == 2
        assert torch.equal(seen[:, 0].mT.reshape(2, 3, -1), x[:, :, ::stride, ::stride].flatten(2))


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        (((0, 2), (2, 4), (4, 5), (5, 6)), [(0, 2, 2), (4, 1, 2)]),
        (((0, 2), (2, 3), (3, 5)), [(0, 2, 1), (2, 1, 1), (3, 2, 1)]),
        (((0, 2), (3, 5), (5, 7)), [(0, 2, 1), (3, 2, 2)]),
    ],
)
def test_neighbours_of_equal_length_are_one_product(intervals: Any, expected: list[tuple[int, int, int]]) -> None:
    """Start, length and number of each; a gap or another length begins a new one."""
    assert TapGroup(phase=0, offset=0, taps=(), intervals=intervals, runs=()).batches() == expected
