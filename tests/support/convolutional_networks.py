"""Small networks of convolutions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from networks import Network, body
from peewit.tracing.layers.conv.patches import Window


def window_of(
    kernel: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...] | str,
    dilation: tuple[int, ...],
    groups: int,
    output_padding: tuple[int, ...] = (),
) -> Window:
    """The options of a convolution, without keywords."""
    options: dict[str, Any] = {"kernel": kernel, "stride": stride, "padding": padding, "dilation": dilation}
    return Window(**options, groups=groups, output_padding=output_padding)


def pooled() -> nn.Module:
    """Return a module from (B, C, H, W) to the means (B, C)."""
    return body(nn.AdaptiveAvgPool2d(1), nn.Flatten())


def conv1d() -> nn.Module:
    """Stride, padding and dilation, (B, 2, 8) to (B, 3)."""
    layers = [nn.Conv1d(2, 4, 3, stride=2, padding=1), nn.Tanh(), nn.Conv1d(4, 3, 2, dilation=2), nn.GELU()]
    return body(*layers, nn.Flatten(), nn.Linear(6, 3))


def conv2d() -> nn.Module:
    """Settings that differ between axes, (B, 2, H, W) to (B, 3)."""
    first = nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2))
    return body(first, nn.Tanh(), nn.Conv2d(3, 4, 2, padding=1), nn.GELU(), pooled(), nn.Linear(4, 3))


def conv2d_same() -> nn.Module:
    """Padding by name, uneven for an even kernel, (B, 1, H, W) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch tells that an even kernel pads one side more, which is wanted here
            return self.layers(x)

    layers = [nn.Conv2d(1, 3, (2, 3), padding="same"), nn.Tanh(), nn.Conv2d(3, 3, 3, padding="same", dilation=2)]
    return Network(forward, layers=body(*layers, nn.Tanh(), pooled(), nn.Linear(3, 3)))


def conv2d_padded(mode: str) -> Callable[[], nn.Module]:
    """Return a builder of a network with the given padding mode, (B, 2, H, W) to (B, 2)."""

    def build() -> nn.Module:
        layers = [nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode), nn.Tanh(), nn.Conv2d(3, 2, 2), nn.Tanh()]
        return body(*layers, pooled(), nn.Linear(2, 2))

    return build


def conv2d_groups() -> nn.Module:
    """Two groups, (B, 4, H, W) to (B, 3)."""
    layers = [nn.Conv2d(4, 6, 2, groups=2, padding=1), nn.Tanh(), nn.Conv2d(6, 4, 1, groups=2, bias=False), nn.Tanh()]
    return body(*layers, pooled(), nn.Linear(4, 3))


def depthwise() -> nn.Module:
    """Two outputs for every channel and a pointwise mix, (B, 3, H, W) to (B, 3)."""
    layers = [nn.Conv2d(3, 6, 3, groups=3, padding=1), nn.Tanh(), nn.Conv2d(6, 4, 1), nn.Tanh()]
    return body(*layers, pooled(), nn.Linear(4, 3))


def conv3d() -> nn.Module:
    """Volumes, (B, 1, 3, 4, 3) to (B, 3)."""
    layers = [nn.Conv3d(1, 3, 2, stride=(1, 2, 1), padding=(0, 1, 0)), nn.Tanh(), nn.AdaptiveAvgPool3d((1, 1, 2))]
    return body(*layers, nn.Flatten(), nn.Linear(6, 3))


def conv_no_bias() -> nn.Module:
    """Convolutions without bias, (B, 2, 4, 4) to (B, 2)."""
    layers = [nn.Conv2d(2, 4, 3, bias=False), nn.ReLU(inplace=True), nn.Conv2d(4, 3, 1, bias=False), nn.Tanh()]
    return body(*layers, nn.Flatten(), nn.Linear(12, 2))


def conv_transpose1d() -> nn.Module:
    """Stride, output padding and dilation, (B, 2, 3) to (B, 6)."""
    layers = [nn.ConvTranspose1d(2, 4, 3, stride=2, padding=1, output_padding=1), nn.Tanh()]
    return body(*layers, nn.ConvTranspose1d(4, 1, 2, dilation=2, padding=1), nn.Flatten())


def conv_transpose2d() -> nn.Module:
    """Two groups and settings that differ between axes, (B, 4, H, W) to (B, 3)."""
    first = nn.ConvTranspose2d(4, 6, (3, 2), stride=2, padding=(1, 0), output_padding=(1, 0), groups=2)
    second = nn.ConvTranspose2d(6, 4, 2, dilation=(1, 2), groups=2, bias=False)
    return body(first, nn.Tanh(), second, nn.GELU(), pooled(), nn.Linear(4, 3))


def conv_transpose3d() -> nn.Module:
    """Volumes, (B, 2, 2, 3, 2) to (B, 2)."""
    layers = [nn.ConvTranspose3d(2, 3, 2, stride=(2, 1, 1), padding=(0, 1, 0)), nn.Tanh(), nn.AdaptiveAvgPool3d(1)]
    return body(*layers, nn.Flatten(), nn.Linear(3, 2))


def residual_cnn() -> nn.Module:
    """A block with a strided shortcut, (B, 2, H, W) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = self.second(torch.tanh(self.first(x))) + self.down(x)
        return self.head(torch.tanh(hidden).mean((2, 3)))

    members = {"first": nn.Conv2d(2, 3, 3, stride=2, padding=1), "second": nn.Conv2d(3, 3, 3, padding=1)}
    return Network(forward, **members, down=nn.Conv2d(2, 3, 1, stride=2), head=nn.Linear(3, 3))


def resnet() -> nn.Module:
    """A block with BatchNorm and overwriting activations, (B, 1, H, W) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.relu(self.norm(self.stem(x)))
        hidden = self.norm_2(self.conv_2(self.relu(self.norm_1(self.conv_1(x)))))
        hidden += self.norm_down(self.down(x))
        return self.head(self.relu(hidden).mean((2, 3)))

    convolutions = {
        "stem": nn.Conv2d(1, 3, 3, padding=1, bias=False),
        "conv_1": nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False),
        "conv_2": nn.Conv2d(4, 4, 3, padding=1, bias=False),
        "down": nn.Conv2d(3, 4, 1, stride=2, bias=False),
    }
    channels = {"norm": 3, "norm_1": 4, "norm_2": 4, "norm_down": 4}
    norms = {name: nn.BatchNorm2d(count) for name, count in channels.items()}
    return Network(forward, **convolutions, **norms, relu=nn.ReLU(inplace=True), head=nn.Linear(4, 3))


def unet() -> nn.Module:
    """One level down and up with a skip, (B, 1, H, W) to (B, 1, H, W)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        above = torch.tanh(self.enter(x))
        below = torch.tanh(self.up(torch.tanh(self.down(above))))
        return self.leave(torch.cat([above, below], 1))

    members = {"enter": nn.Conv2d(1, 3, 3, padding=1), "down": nn.Conv2d(3, 4, 2, stride=2)}
    return Network(forward, **members, up=nn.ConvTranspose2d(4, 2, 2, stride=2), leave=nn.Conv2d(5, 1, 1))


def segmentation() -> nn.Module:
    """Classes along the second axis, (B, 2, H, W) to (B, 3, H, W)."""
    return body(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Conv2d(4, 3, 1))


def inverted_residual() -> nn.Module:
    """Expand, depthwise, project, (B, 3, H, W) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head((x + self.block(x)).mean((2, 3)))

    layers = [nn.Conv2d(3, 6, 1, bias=False), nn.BatchNorm2d(6), nn.ReLU6(inplace=True)]
    layers += [nn.Conv2d(6, 6, 3, padding=1, groups=6, bias=False), nn.BatchNorm2d(6), nn.ReLU6(inplace=True)]
    layers += [nn.Conv2d(6, 3, 1, bias=False), nn.BatchNorm2d(3)]
    return Network(forward, block=body(*layers), head=nn.Linear(3, 3))


def squeeze_excite() -> nn.Module:
    """Channels gated by their means, (B, 2, H, W) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        x = torch.tanh(self.conv(x))
        gate = torch.sigmoid(self.excite(functional.gelu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        return self.head((x * gate).mean((2, 3)))

    members = {"conv": nn.Conv2d(2, 4, 3, padding=1), "squeeze": nn.Conv2d(4, 2, 1), "excite": nn.Conv2d(2, 4, 1)}
    return Network(forward, **members, head=nn.Linear(4, 3))


def image_norm(norm: Callable[[int], nn.Module]) -> Callable[[], nn.Module]:
    """Return a builder of a network with the given norm of 4 channels, (B, 2, H, W) to (B, 3)."""

    def build() -> nn.Module:
        return body(nn.Conv2d(2, 4, 2), norm(4), nn.ReLU(inplace=True), nn.Conv2d(4, 3, 2), pooled(), nn.Linear(3, 3))

    return build


def group_norm(channels: int) -> nn.Module:
    """Return a GroupNorm of two groups."""
    return nn.GroupNorm(2, channels)


def instance_norm(channels: int) -> nn.Module:
    """Return an InstanceNorm with scale and shift."""
    return nn.InstanceNorm2d(channels, affine=True)
