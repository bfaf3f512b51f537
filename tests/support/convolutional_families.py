"""Convolutional architectures in plain torch, with a width and a depth to shrink them by."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv_norm(channels_in: int, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution without bias and its BatchNorm."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(channels),
    )


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions around a shortcut, with in-place activations as they are commonly written."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.reduce = conv_norm(channels_in, channels, 1)
        self.spatial = conv_norm(channels, channels, 3, stride)
        self.expand = conv_norm(channels, 4 * channels, 1)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != 4 * channels:
            self.shortcut = conv_norm(channels_in, 4 * channels, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.spatial(self.relu(self.reduce(x))))
        y = self.expand(y)
        y += self.shortcut(x)
        return self.relu(y)


def resnet50(classes: int = 10, width: int = 64, depths: tuple[int, ...] = (3, 4, 6, 3)) -> nn.Module:
    """ResNet-50: 23.5M weights at width 64 with 10 classes."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels_in = width
    for stage, depth in enumerate(depths):
        for index in range(depth):
            stride = 2 if stage > 0 and index == 0 else 1
            layers.append(Bottleneck(channels_in, width * 2**stage, stride))
            channels_in = 4 * width * 2**stage
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels_in, classes)]
    return nn.Sequential(*layers)


class InvertedResidual(nn.Module):
    """Expand, depthwise, project: the block of MobileNetV2."""

    def __init__(self, channels_in: int, channels: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = channels_in * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += [conv_norm(channels_in, hidden, 1), nn.ReLU6(inplace=True)]
        layers += [conv_norm(hidden, hidden, 3, stride, groups=hidden), nn.ReLU6(inplace=True)]
        layers.append(conv_norm(hidden, channels, 1))
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and channels_in == channels

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


MOBILENET_STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2(
    classes: int = 10, width: float = 1.0, stages: tuple[tuple[int, int, int, int], ...] = MOBILENET_STAGES
) -> nn.Module:
    """MobileNetV2; a stage is (expansion, channels, blocks, stride)."""
    channels_in = int(32 * width)
    layers: list[nn.Module] = [conv_norm(3, channels_in, 3, 2), nn.ReLU6(inplace=True)]
    for expansion, channels, blocks, stride in stages:
        for index in range(blocks):
            layers.append(InvertedResidual(channels_in, int(channels * width), stride if index == 0 else 1, expansion))
            channels_in = int(channels * width)
    last = int(1280 * width)
    layers += [conv_norm(channels_in, last, 1), nn.ReLU6(inplace=True)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(last, classes)]
    return nn.Sequential(*layers)


class SqueezeExcite(nn.Module):
    """Channels rescaled by a gate computed from their means."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.excite = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = F.silu(self.squeeze(x.mean((2, 3), keepdim=True)))
        return x * torch.sigmoid(self.excite(gate))


class MBConv(nn.Module):
    """The block of EfficientNet: expand, depthwise, squeeze and excite, project."""

    def __init__(self, channels_in: int, channels: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = channels_in * expansion
        layers: list[nn.Module] = []
        if expansion != 1:
            layers += [conv_norm(channels_in, hidden, 1), nn.SiLU(inplace=True)]
        layers += [conv_norm(hidden, hidden, kernel, stride, groups=hidden), nn.SiLU(inplace=True)]
        layers += [SqueezeExcite(hidden, max(1, channels_in // 4)), conv_norm(hidden, channels, 1)]
        self.layers = nn.Sequential(*layers)
        self.residual = stride == 1 and channels_in == channels

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layers(x) if self.residual else self.layers(x)


EFFICIENTNET_STAGES = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)


def efficientnet_b0(
    classes: int = 10, width: float = 1.0, stages: tuple[tuple[int, int, int, int, int], ...] = EFFICIENTNET_STAGES
) -> nn.Module:
    """EfficientNet-B0; a stage is (expansion, channels, blocks, stride, kernel)."""
    channels_in = int(32 * width)
    layers: list[nn.Module] = [conv_norm(3, channels_in, 3, 2), nn.SiLU(inplace=True)]
    for expansion, channels, blocks, stride, kernel in stages:
        for index in range(blocks):
            first_stride = stride if index == 0 else 1
            layers.append(MBConv(channels_in, int(channels * width), kernel, first_stride, expansion))
            channels_in = int(channels * width)
    last = int(1280 * width)
    layers += [conv_norm(channels_in, last, 1), nn.SiLU(inplace=True)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(last, classes)]
    return nn.Sequential(*layers)


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of a (B, C, H, W) tensor."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """Depthwise 7×7, then Linear layers on channels-last features, scaled by a parameter."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels)
        self.expand = nn.Linear(channels, 4 * channels)
        self.project = nn.Linear(4 * channels, channels)
        self.layer_scale = nn.Parameter(torch.full((channels,), 0.1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.layer_scale * self.project(F.gelu(self.expand(y)))
        return x + y.permute(0, 3, 1, 2)


def convnext(classes: int = 10, width: int = 96, depths: tuple[int, ...] = (3, 3, 9, 3), patch: int = 4) -> nn.Module:
    """ConvNeXt: a patch convolution, stages of blocks, and a norm and a strided convolution between stages."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, patch, patch), ChannelNorm(width)]
    channels = width
    for stage, depth in enumerate(depths):
        if stage > 0:
            layers += [ChannelNorm(channels), nn.Conv2d(channels, 2 * channels, 2, 2)]
            channels *= 2
        layers += [ConvNeXtBlock(channels) for _ in range(depth)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(channels), nn.Linear(channels, classes)]
    return nn.Sequential(*layers)


class DoubleConv(nn.Sequential):
    """Two 3×3 convolutions, each with its norm and an in-place ReLU."""

    def __init__(self, channels_in: int, channels: int, norm: str) -> None:
        layers: list[nn.Module] = []
        for source in (channels_in, channels):
            layers.append(nn.Conv2d(source, channels, 3, padding=1, bias=norm == "group"))
            layers.append(nn.GroupNorm(2, channels) if norm == "group" else nn.BatchNorm2d(channels))
            layers.append(nn.ReLU(inplace=True))
        super().__init__(*layers)


class UNet(nn.Module):
    """An encoder, a decoder that upsamples by ConvTranspose2d, and skip connections between them."""

    def __init__(self, classes: int, width: int, depth: int, norm: str) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(depth + 1)]
        self.first = DoubleConv(3, sizes[0], norm)
        pairs = list(itertools.pairwise(sizes))
        self.down = nn.ModuleList([DoubleConv(fine, coarse, norm) for fine, coarse in pairs])
        self.up = nn.ModuleList([nn.ConvTranspose2d(coarse, fine, 2, 2) for fine, coarse in reversed(pairs)])
        self.merge = nn.ModuleList([DoubleConv(2 * fine, fine, norm) for fine, _ in reversed(pairs)])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        skips = [self.first(x)]
        for down in self.down:
            skips.append(down(F.max_pool2d(skips[-1], 2)))
        x = skips.pop()
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        return self.head(x)


def unet(classes: int = 3, width: int = 64, depth: int = 4, norm: str = "batch") -> nn.Module:
    """A U-Net with (B, classes, H, W) outputs; norm is "batch" or "group"."""
    return UNet(classes, width, depth, norm)
