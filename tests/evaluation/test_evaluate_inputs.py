"""Corrupted and attacked inputs against scipy and closed forms."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import peewit as pw
from environment import DEVICE
from peewit.evaluation.attacks import Attack
from peewit.evaluation.corruptions import BLUR, CORRUPTIONS, NOISE, ROTATION, InputRange, corrupt_images
from peewit.evaluation.variations import variations_of
from peewit.likelihoods import Form
from snapshots import changed, snapshot

ndimage = pytest.importorskip("scipy.ndimage")

UNIT = InputRange(0.0, 1.0)


def images(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.rand(*shape, dtype=torch.float64).to(DEVICE, dtype)


@pytest.mark.parametrize("name", CORRUPTIONS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
def test_corruptions_keep_the_shape_and_grow_with_their_strength(name: str, dtype: torch.dtype) -> None:
    rows = torch.linspace(0, 1, 12, dtype=torch.float64)[:, None].to(DEVICE)
    x = (0.2 * images(3, 2, 12, 10) + 0.8 * rows).to(dtype)
    before = x.clone()
    made = [corrupt_images(name, x, strength, UNIT, 0, 0) for strength in (0.0, 1.0, 3.0, 5.0)]
    assert torch.equal(x, before)
    assert all(each.shape == x.shape and each.dtype == dtype and each.device == x.device for each in made)
    assert torch.allclose(made[0].double(), x.double(), atol=2e-3 if dtype == torch.float16 else 1e-6)
    distances = [float((each.double() - x.double()).square().mean()) for each in made]
    assert distances[1] < distances[2] < distances[3]
    assert all(float(each.min()) >= -1e-6 and float(each.max()) <= 1 + 1e-6 for each in made)


def test_blur_is_that_of_scipy() -> None:
    x = images(2, 3, 20, 16)
    deviation = 4 * BLUR * 16
    reach = math.ceil(4 * deviation)
    expected = ndimage.gaussian_filter(x.cpu().numpy(), (0, 0, deviation, deviation), mode="nearest", radius=reach)
    torch.testing.assert_close(corrupt_images("blur", x, 4, UNIT, 0, 0).cpu(), torch.from_numpy(expected))


@pytest.mark.parametrize("shape", [(12, 12), (9, 14)])
def test_rotation_is_that_of_scipy(shape: tuple[int, int]) -> None:
    """Counter-clockwise about the centre, with the least value coming in."""
    x = images(1, 1, *shape) * 2 + 3
    angle = math.radians(ROTATION * 2)
    turn = [[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]]
    centre = [(side - 1) / 2 for side in shape]
    offset = [centre[i] - sum(turn[i][j] * centre[j] for j in range(2)) for i in range(2)]
    expected = ndimage.affine_transform(x[0, 0].cpu().numpy(), turn, offset, order=1, mode="grid-constant", cval=3.0)
    found = corrupt_images("rotation", x, 2, InputRange(3.0, 5.0), 0, 0)[0, 0].cpu()
    torch.testing.assert_close(found, torch.from_numpy(expected), rtol=1e-6, atol=1e-6)
    square = images(1, 1, 8, 8)
    quarter = corrupt_images("rotation", square, 90 / ROTATION, UNIT, 0, 0)
    torch.testing.assert_close(quarter, torch.rot90(square, 1, (-2, -1)), rtol=1e-6, atol=1e-6)


def test_contrast_shrinks_about_each_channel() -> None:
    x = images(2, 3, 6, 6)
    found = corrupt_images("contrast", x, 2.5, UNIT, 0, 0)
    torch.testing.assert_close(found.mean((2, 3)), x.mean((2, 3)))
    torch.testing.assert_close(found.std((2, 3)), x.std((2, 3)) * (1 - 0.18 * 2.5))
    assert float(corrupt_images("contrast", x, 9, UNIT, 0, 0).std((2, 3)).max()) < 1e-12


def test_noise_belongs_to_the_example() -> None:
    """The same however batches are cut, on any inputs, and of the size it says."""
    x = images(6, 1, 30, 30) * 4 - 2
    limits = InputRange.of(x)
    whole = corrupt_images("noise", x, 2, limits, 0, 7)
    parts = [corrupt_images("noise", x[:2], 2, limits, 0, 7), corrupt_images("noise", x[2:], 2, limits, 2, 7)]
    assert torch.equal(whole, torch.cat(parts))
    assert float((whole - x).std()) == pytest.approx(2 * NOISE * (limits.high - limits.low), rel=0.05)
    assert not torch.equal(whole, corrupt_images("noise", x, 2, limits, 0, 8))
    doubled = corrupt_images("noise", x, 4, limits, 0, 7)
    torch.testing.assert_close(doubled - x, 2 * (whole - x))
    rows, state = images(4, 3), torch.get_rng_state()
    assert corrupt_images("noise", rows, 1, UNIT, 0, 0).shape == rows.shape
    assert torch.equal(torch.get_rng_state(), state)


def test_the_range_of_inputs() -> None:
    assert InputRange.of(torch.tensor([0.1, 0.9])) == UNIT
    assert InputRange.of(torch.tensor([-1.0, 3.0])) == InputRange(-1.0, 3.0)
    assert InputRange.of(torch.zeros(3) + 7).span == 1.0
    x = torch.tensor([-0.5, 1.5])
    assert torch.equal(UNIT.clip(x), torch.tensor([0.0, 1.0])) and torch.equal(InputRange(0.0, 2.0).clip(x), x)


def attack(model: nn.Module, limits: InputRange) -> Attack:
    return Attack(model, pw.Categorical(), Form(0, (2,)), limits)


def test_attacks_on_a_linear_network_are_the_sign_of_its_weights() -> None:
    model = nn.Linear(4, 2).double().to(DEVICE)
    x, y = torch.randn(5, 4, dtype=torch.float64, device=DEVICE), torch.randint(2, (5,), device=DEVICE)
    before = snapshot(model)
    own = attack(model, InputRange(-2.0, 2.0))
    weight = model.weight.detach()
    away = torch.where((y == 0)[:, None], (weight[1] - weight[0]).sign(), (weight[0] - weight[1]).sign())
    for name in ("fgsm", "pgd"):
        for epsilon, made in getattr(own, name)(x, y, (0.1, 0.3)):
            torch.testing.assert_close(made, x + 4 * epsilon * away)
    assert changed(model, before) == []


def test_attacks_stay_near_and_inside_and_raise_the_loss() -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2)).double().to(DEVICE)
    x, y = images(30, 6), torch.randint(2, (30,), device=DEVICE)
    own = attack(model, UNIT)

    def loss(inputs: torch.Tensor) -> float:
        return nn.functional.cross_entropy(model(inputs), y).item()

    one, ten = (dict(each(x, y, (0.05, 0.2))) for each in (own.fgsm, own.pgd))
    for epsilon in (0.05, 0.2):
        for made in (one[epsilon], ten[epsilon]):
            assert float((made - x).abs().max()) <= epsilon + 1e-12
            assert float(made.min()) >= 0 and float(made.max()) <= 1
        assert loss(x) < loss(one[epsilon]) <= loss(ten[epsilon]) + 1e-3


def test_a_network_that_ignores_its_inputs_is_refused() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.value = nn.Parameter(torch.zeros(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.value.expand(len(x), 2)

    x, y = torch.zeros(2, 3, device=DEVICE), torch.tensor([0, 1], device=DEVICE)
    with pytest.raises(ValueError, match="no gradient in its inputs"):
        attack(Constant().to(DEVICE), UNIT).gradient(x, y)


def test_forms_that_shifts_are_asked_for_in() -> None:
    def own(x: torch.Tensor, strength: float) -> torch.Tensor:
        return x

    names = [(one.name, one.strengths) for one in variations_of(["noise", "blur"], "shifts")]
    assert names == [("noise", (1, 2, 3, 4, 5)), ("blur", (1, 2, 3, 4, 5))]
    (one,) = variations_of({"noise": [3, 1, 0, 1]}, "shifts")
    assert one.strengths == (1.0, 3.0)  # 0 is always there
    (one,) = variations_of({"fog": own}, "shifts")
    assert one.change is own and len(one.strengths) == 5
    (one,) = variations_of({"fog": (own, [2])}, "shifts")
    assert one.strengths == (2.0,)
    (one,) = variations_of({"fog": {2: None, 1: None}}, "shifts")
    assert one.strengths == (1.0, 2.0) and one.ready is not None
    (one,) = variations_of("fgsm", "attacks")
    assert one.strengths[0] == 1 / 255
    (one,) = variations_of({"pgd": 0.5}, "attacks")
    assert one.strengths == (0.5,)
    assert variations_of(None, "shifts") == []
