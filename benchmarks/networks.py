"""The networks that the tables are measured on; smaller variants of some also serve the tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def perceptron(inputs: int, width: int, classes: int) -> nn.Module:
    """Two hidden layers with ReLU."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)
    )


def mlp(classes: int = 10, width: int = 512) -> nn.Module:
    """784-512-512-classes with ReLU: 670k weights."""
    return perceptron(784, width, classes)


def lenet(classes: int = 10) -> nn.Module:
    """Two convolutions of 5×5 with 16 and 32 channels, then 128 units, for 28×28 images: 215k weights."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, classes),
    )


class BasicBlock(nn.Module):
    """Two 3×3 convolutions with BatchNorm around a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


def resnet18(classes: int = 10, width: int = 64) -> nn.Module:
    """ResNet-18 with the 3×3 stem for 32×32 images: 11.2M weights at width 64."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    channels_in = width
    for stage in range(4):
        channels = width * 2**stage
        layers.append(BasicBlock(channels_in, channels, stride=1 if stage == 0 else 2))
        layers.append(BasicBlock(channels, channels, stride=1))
        channels_in = channels
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels_in, classes)]
    return nn.Sequential(*layers)


class SelfAttention(nn.Module):
    """Multi-head attention from two Linear layers: packed projections in, one projection out."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, positions, width = x.shape
        packed = self.project_in(x).reshape(batch, positions, 3, self.heads, width // self.heads)
        query, key, value = packed.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.project_out(mixed.transpose(1, 2).reshape(batch, positions, width))


class TransformerBlock(nn.Module):
    """Attention and a two-layer perceptron, each behind a LayerNorm and around a shortcut."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, causal)
        self.norm2 = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.perceptron(self.norm2(x))


class VisionTransformer(nn.Module):
    """Patches, a position parameter, blocks, then the mean over patches or a class token."""

    def __init__(
        self, classes: int, width: int, blocks: int, heads: int, patch: int, size: int, class_token: bool
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.position = nn.Parameter(0.02 * torch.randn(1, (size // patch) ** 2 + class_token, width))
        self.token = nn.Parameter(0.02 * torch.randn(1, 1, width)) if class_token else None
        self.blocks = nn.Sequential(*[TransformerBlock(width, heads) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        if self.token is not None:
            x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], dim=1)
        x = self.norm(self.blocks(x + self.position))
        return self.head(x.mean(1) if self.token is None else x[:, 0])


def vit(
    classes: int = 10,
    width: int = 384,
    blocks: int = 6,
    heads: int = 6,
    patch: int = 4,
    size: int = 32,
    class_token: bool = False,
) -> nn.Module:
    """A vision transformer; 10.7M weights and 64 positions as it stands."""
    return VisionTransformer(classes, width, blocks, heads, patch, size, class_token)


class TokenModel(nn.Module):
    """Embedded tokens and positions, causal blocks, and the next token's logits at every position."""

    def __init__(self, vocabulary: int, width: int, blocks: int, heads: int, tokens: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.02 * torch.randn(1, tokens, width))
        self.blocks = nn.Sequential(*[TransformerBlock(width, heads, causal=True) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.embedding(tokens) + self.position)))


def gpt(vocabulary: int = 1000, width: int = 256, blocks: int = 4, heads: int = 4, tokens: int = 64) -> nn.Module:
    """A token model: 3.7M weights as it stands; (B, T) tokens to (B, T, vocabulary) logits."""
    return TokenModel(vocabulary, width, blocks, heads, tokens)


class Pooled(nn.Module):
    """A transformer over vectors whose outputs are averaged: as many positions as the input has."""

    def __init__(self, channels: int, width: int, blocks: int, heads: int, classes: int) -> None:
        super().__init__()
        self.project = nn.Linear(channels, width)
        self.blocks = nn.Sequential(*[TransformerBlock(width, heads) for _ in range(blocks)])
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.project(x)).mean(1))


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network of the tables: how to build it, its inputs, and the number of examples."""

    title: str
    build: Callable[[], nn.Module]
    quick: Callable[[], nn.Module]  # a small one of the same kind, to see that everything runs
    shape: tuple[int, ...]
    classes: int
    examples: int
    quick_classes: int = 10
    tokens: bool = False  # inputs are tokens, and the next one is to be named at every position


SMALL_VIT = partial(vit, width=32, blocks=2, heads=2, patch=8)
NETWORKS = {
    "mlp": Network(
        title="MLP 784-512-512", build=mlp, quick=partial(mlp, width=32), shape=(1, 28, 28), classes=10, examples=10_000
    ),
    "lenet": Network(title="LeNet", build=lenet, quick=lenet, shape=(1, 28, 28), classes=10, examples=10_000),
    "resnet18": Network(
        title="ResNet-18",
        build=resnet18,
        quick=partial(resnet18, width=4),
        shape=(3, 32, 32),
        classes=10,
        examples=4_096,
    ),
    "resnet18-100": Network(
        title="ResNet-18, 100 classes",
        build=partial(resnet18, 100),
        quick=partial(resnet18, 20, 4),
        shape=(3, 32, 32),
        classes=100,
        examples=4_096,
        quick_classes=20,
    ),
    "vit": Network(
        title="ViT, width 384, 6 blocks", build=vit, quick=SMALL_VIT, shape=(3, 32, 32), classes=10, examples=4_096
    ),
    "gpt": Network(
        title="GPT, width 256, 4 blocks, 64 tokens",
        build=gpt,
        quick=partial(gpt, 50, 16, 1, 2),
        shape=(64,),
        classes=1_000,
        examples=4_096,
        quick_classes=50,
        tokens=True,
    ),
}
# The last layer alone, behind a network whose other weights are taken as certain.
LAST = {
    "last-10": Network(
        title="ResNet-18, last layer",
        build=resnet18,
        quick=partial(resnet18, width=4),
        shape=(3, 32, 32),
        classes=10,
        examples=4_096,
    ),
    "last-100": Network(
        title="ResNet-18 of width 16, last layer",
        build=partial(resnet18, 100, 16),
        quick=partial(resnet18, 20, 4),
        shape=(3, 32, 32),
        classes=100,
        examples=4_096,
        quick_classes=20,
    ),
    "last-1000": Network(
        title="ResNet-18, last layer",
        build=partial(resnet18, 1_000),
        quick=partial(resnet18, 300, 4),
        shape=(3, 32, 32),
        classes=1_000,
        examples=4_096,
        quick_classes=300,
    ),
}
