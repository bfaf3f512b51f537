"""Images made worse, at strengths from 0 (as they are) to 5, in plain torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from ..messages.errors import ArgumentTypeError, PeewitError

STRENGTHS = (1.0, 2.0, 3.0, 4.0, 5.0)
NOISE = 0.06  # standard deviation per strength, as a share of the inputs' range
BLUR = 0.012  # standard deviation per strength, as a share of the shorter side
CONTRAST = 0.18  # share of the contrast that is lost per strength
ROTATION = 15.0  # degrees per strength


@dataclass(frozen=True)
class InputRange:
    """The values that inputs have: exactly 0 to 1 for images in it, else those of the first batch."""

    low: float
    high: float

    @staticmethod
    def of(x: Tensor) -> InputRange:
        """The ranges of a first batch."""
        low, high = float(x.min()), float(x.max())
        return InputRange(0.0, 1.0) if low >= 0 and high <= 1 else InputRange(low, high)

    @property
    def span(self) -> float:
        """1 where all inputs are the same."""
        return (self.high - self.low) or 1.0

    def clip(self, x: Tensor) -> Tensor:
        """Images in 0 to 1 stay there; other inputs have no known limits."""
        return x.clamp(0, 1) if (self.low, self.high) == (0.0, 1.0) else x


def noise(x: Tensor, strength: float, limits: InputRange, first: int, seed: int) -> Tensor:
    """Gaussian noise; every example has its own, the same at all strengths and however batches are cut."""
    generator = torch.Generator("cpu")
    drawn = []
    for number in range(first, first + len(x)):
        generator.manual_seed((seed * 1_000_003 + number) % (1 << 63))
        drawn.append(torch.randn(x.shape[1:], generator=generator, dtype=torch.float32, device="cpu"))
    return limits.clip(x + strength * NOISE * limits.span * torch.stack(drawn).to(x))


def blur(x: Tensor, strength: float, limits: InputRange, first: int, seed: int) -> Tensor:
    """A Gaussian filter, rows and then columns, with the border repeated."""
    deviation = strength * BLUR * min(x.shape[-2:])
    if deviation == 0:
        return x
    reach = max(1, math.ceil(4 * deviation))
    places = torch.arange(-reach, reach + 1, device=x.device, dtype=torch.float64)
    kernel = (-0.5 * (places / deviation).square()).exp()
    kernel = (kernel / kernel.sum()).to(x.dtype)
    channels = x.shape[1]
    for axis in (-2, -1):
        shape = [1, 1, 1, 1]
        shape[axis] = len(kernel)
        weight = kernel.reshape(shape).expand(channels, 1, *shape[2:])
        pad = (reach, reach, 0, 0) if axis == -1 else (0, 0, reach, reach)
        x = F.conv2d(F.pad(x, pad, mode="replicate"), weight, groups=channels)
    return x


def contrast(x: Tensor, strength: float, limits: InputRange, first: int, seed: int) -> Tensor:
    """Closer to the mean of each image and channel."""
    centre = x.mean((-2, -1), keepdim=True)
    return centre + (x - centre) * max(0.0, 1 - CONTRAST * strength)


def rotation(x: Tensor, strength: float, limits: InputRange, first: int, seed: int) -> Tensor:
    """Turned about the centre, counter-clockwise; what comes in at the corners has the least value there is."""
    angle = math.radians(ROTATION * strength)
    rows, columns = x.shape[-2:]
    turn = [
        [math.cos(angle), -math.sin(angle) * rows / columns, 0.0],
        [math.sin(angle) * columns / rows, math.cos(angle), 0.0],
    ]
    theta = torch.tensor(turn, dtype=x.dtype, device=x.device).expand(len(x), 2, 3)
    grid = F.affine_grid(theta, list(x.shape), align_corners=False)
    return F.grid_sample(x - limits.low, grid, mode="bilinear", padding_mode="zeros", align_corners=False) + limits.low


CORRUPTIONS = {"noise": noise, "blur": blur, "contrast": contrast, "rotation": rotation}


def corrupt_images(name: str, x: Tensor, strength: float, limits: InputRange, first: int, seed: int) -> Tensor:
    """Inputs of the same shape and dtype; `first` is the number of the first example."""
    wide = x.detach().to(torch.promote_types(x.dtype, torch.float32))
    return CORRUPTIONS[name](wide, strength, limits, first, seed).to(x.dtype)


def check_images(name: str, x: object, what: str = "shifts") -> None:
    """Refuse inputs that a corruption has no meaning for."""
    hint = "; give your own as a function of (x, strength)"
    if not isinstance(x, Tensor):
        raise ArgumentTypeError(
            f"{what}: {name!r} takes one tensor of inputs, and these are a {type(x).__name__}{hint}."
        )
    if not x.is_floating_point():
        raise ArgumentTypeError(f"{what}: {name!r} takes floating point inputs, and these have dtype {x.dtype}{hint}.")
    if name in ("blur", "contrast", "rotation") and x.dim() != 4:
        raise PeewitError(
            f"{what}: {name!r} takes images (N, channels, rows, columns), and the inputs have shape "
            f"{tuple(x.shape)}{hint}."
        )
