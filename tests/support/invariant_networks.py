"""Networks with the sets of their weights whose scale does not matter, known by construction."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations

Sets = set[frozenset[str]]


class Block(nn.Module):
    """Attention and an MLP, each after its own normalisation, added to a stream."""

    def __init__(self, width: int, bias: bool, activation: nn.Module, scale: float | None = None) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=bias) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width, bias=bias), nn.Linear(2 * width, width, bias=bias)
        self.activation = activation
        self.scale = None if scale is None else nn.Parameter(torch.full((width,), scale))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        x = x + self.out(functional.scaled_dot_product_attention(self.query(h), self.key(h), self.value(h)))
        made = self.down(self.activation(self.up(self.second(x))))
        return x + (made if self.scale is None else self.scale * made)


class Stream(nn.Module):
    """A transformer over tokens whose only normalisations are before each branch and at the end."""

    def __init__(
        self, bias: bool = True, activation: nn.Module | None = None, tied: bool = False, blocks: int = 2
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(7, 4)
        self.places = nn.Parameter(torch.randn(5, 4))
        self.blocks = nn.Sequential(*(Block(4, bias, activation or nn.GELU()) for _ in range(blocks)))
        self.norm = nn.LayerNorm(4)
        self.head = nn.Linear(4, 7 if tied else 3, bias=bias)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.tokens(x) + self.places)).mean(1))


class Residual(nn.Module):
    """Two convolutions with batch normalisation beside a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        narrow = inputs == outputs
        self.short = nn.Identity() if narrow else nn.Sequential(nn.Conv2d(inputs, outputs, 1), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.short(x) + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class ResNet(nn.Module):
    """A stem, a residual block on its stream, and one that begins another stream."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3)
        self.first, self.second = Residual(3, 3), Residual(3, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.second(self.first(torch.relu(self.bn(self.stem(x))))).mean((2, 3)))


class Cosine(nn.Module):
    """A classifier by angles, an unused layer, and a temperature."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.unused = nn.Linear(4, 5), nn.Linear(2, 2)
        self.weight = nn.Parameter(torch.randn(3, 5))
        self.temperature = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor) -> Tensor:
        x = functional.normalize(torch.tanh(self.body(x)), dim=-1)
        return self.temperature * functional.linear(x, functional.normalize(self.weight, dim=-1))


class NormalisedKeys(nn.Module):
    """Attention whose queries and keys are normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(4, 4) for _ in range(3))
        self.norms = nn.ModuleList([nn.RMSNorm(4), nn.RMSNorm(4)])

    def forward(self, x: Tensor) -> Tensor:
        query, key = self.norms[0](self.query(x)), self.norms[1](self.key(x))
        return functional.scaled_dot_product_attention(query, key, self.value(x)).mean(1)


def mlp(norm: Callable[[int], nn.Module], bias: bool = True, activation: type[nn.Module] = nn.Tanh) -> nn.Module:
    """Two normalised layers and a plain one."""
    layers = [nn.Linear(4, 6, bias=bias), norm(6), activation(), nn.Linear(6, 6, bias=bias), norm(6), activation()]
    return nn.Sequential(*layers, nn.Linear(6, 3))


def cnn(norm: Callable[[int], nn.Module], bias: bool = True) -> nn.Module:
    """Two normalised convolutions and a linear layer."""
    first, second = nn.Conv2d(2, 4, 3, bias=bias), nn.Conv2d(4, 4, 3, bias=bias)
    layers = [first, norm(4), nn.ReLU(), second, norm(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(4, 3))


def old_weight_norm() -> nn.Module:
    """By torch's former way, which keeps a plain tensor on the module."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3))


def torch_encoder() -> nn.Module:
    """Torch's own pre-norm encoder between linear layers."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=True)
    encoder = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(4), enable_nested_tensor=False)
    return nn.Sequential(nn.Linear(4, 4), encoder, nn.Flatten(), nn.Linear(20, 3))


def post_norm(activation: str) -> nn.Module:
    """Normalised after the sum: an MLP adds what grows in proportion only if it is homogeneous, biases included."""
    layer = nn.TransformerEncoderLayer(4, 2, 8, activation=activation, batch_first=True, norm_first=False)
    return nn.Sequential(nn.Linear(4, 4), layer, nn.Flatten(), nn.Linear(20, 3))


@dataclass(frozen=True)
class Known:
    """A network, inputs for it, and its sets."""

    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    sets: Sets


def pairs(*names: str) -> Sets:
    """Weight and bias of modules."""
    return {frozenset({f"{name}.weight", f"{name}.bias"}) for name in names}


def alone(*names: str) -> Sets:
    """Single tensors."""
    return {frozenset({name}) for name in names}


def writers(*names: str, bias: bool = True) -> set[str]:
    """Weights, and biases where there are some."""
    return {f"{name}.{kind}" for name in names for kind in (("weight", "bias") if bias else ("weight",))}


def flat() -> Tensor:
    return torch.randn(24, 4)


def images() -> Tensor:
    return torch.randn(12, 2, 7, 7)


def sentences() -> Tensor:
    return torch.randint(7, (24, 5))


def rows() -> Tensor:
    return torch.randn(24, 5, 4)


BRANCHES = [f"blocks.{number}.{name}" for number in range(2) for name in ("out", "down")]
LAYERS = [f"1.layers.{number}.{name}" for number in range(2) for name in ("self_attn.out_proj", "linear2")]
STREAM = frozenset({"tokens.weight", "places", *writers(*BRANCHES)})
BARE = frozenset({"tokens.weight", "places", *writers(*BRANCHES, bias=False)})
HOMOGENEOUS = frozenset({"1.norm1.weight", "1.norm1.bias", "1.linear1.bias", "1.linear2.bias"})
CONVOLUTIONS = [f"{block}.conv{number}.weight" for block in ("first", "second") for number in (1, 2)]
RESNET = (
    alone(*CONVOLUTIONS) | pairs("stem", "first.bn1", "second.bn1", "second.short.0")
    # The first stream ends before normalised convolutions, one of which has a bias that would have to grow with it.
)


def group(channels: int) -> nn.Module:
    return nn.GroupNorm(2, channels)


def tracked(channels: int) -> nn.Module:
    return nn.InstanceNorm2d(channels, affine=True, track_running_stats=True)


NETWORKS: dict[str, Known] = {
    "plain": Known(lambda: mlp(lambda _: nn.Identity(), activation=nn.ReLU), flat, set()),
    "layer norm": Known(lambda: mlp(nn.LayerNorm), flat, pairs("0", "3")),
    "layer norm, relu": Known(lambda: mlp(nn.LayerNorm, activation=nn.ReLU), flat, pairs("0", "3")),
    "rms norm": Known(lambda: mlp(nn.RMSNorm), flat, pairs("0", "3")),
    "batch norm": Known(lambda: mlp(nn.BatchNorm1d), flat, pairs("0", "3")),
    "batch norm, relu, no bias": Known(
        lambda: mlp(nn.BatchNorm1d, False, nn.ReLU), flat, alone("0.weight", "3.weight") | pairs("1")
    ),
    "cnn": Known(lambda: cnn(nn.BatchNorm2d), images, pairs("0", "3")),
    "cnn, no bias": Known(lambda: cnn(nn.BatchNorm2d, False), images, alone("0.weight", "3.weight") | pairs("1")),
    "cnn, synchronised": Known(
        lambda: nn.SyncBatchNorm.convert_sync_batchnorm(cnn(nn.BatchNorm2d)), images, pairs("0", "3")
    ),
    "cnn, groups": Known(lambda: cnn(group), images, pairs("0", "3")),
    "cnn, instances": Known(lambda: cnn(tracked), images, pairs("0", "3")),
    "resnet": Known(ResNet, images, RESNET),
    "transformer": Known(Stream, sentences, {STREAM}),
    "transformer, relu": Known(lambda: Stream(activation=nn.ReLU()), sentences, {STREAM}),
    "transformer, no bias": Known(lambda: Stream(False, nn.ReLU()), sentences, {BARE}),
    "transformer, tied": Known(lambda: Stream(tied=True), sentences, set()),
    "encoder": Known(torch_encoder, rows, {frozenset({*writers("0", *LAYERS)})}),
    "post norm": Known(lambda: post_norm("gelu"), rows, set()),
    "post norm, relu": Known(lambda: post_norm("relu"), rows, {HOMOGENEOUS}),
    "weight norm": Known(
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3)),
        flat,
        alone("0.parametrizations.weight.original1"),
    ),
    "weight norm, layer norm": Known(
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(4, 5)), nn.LayerNorm(5), nn.Linear(5, 3)),
        flat,
        alone("0.parametrizations.weight.original1") | {frozenset({"0.parametrizations.weight.original0", "0.bias"})},
    ),
    "old weight norm": Known(old_weight_norm, flat, alone("0.weight_v")),
    "spectral norm": Known(
        lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3)),
        flat,
        alone("0.parametrizations.weight.original"),
    ),
    "cosine": Known(Cosine, flat, alone("weight")),
    "normalised keys": Known(NormalisedKeys, rows, pairs("query", "key")),
}
