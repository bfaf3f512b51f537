"""Attention and recurrent architectures in plain torch, with a width and a depth to shrink them by."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.networks import TransformerBlock


class WindowAttention(nn.Module):
    """Attention inside windows, shifted by a roll, with a bias looked up in a table of relative positions."""

    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        self.bias_table = nn.Parameter(0.02 * torch.randn((2 * window - 1) ** 2, heads))
        places = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        offset = places[:, :, None] - places[:, None, :] + window - 1
        self.register_buffer("bias_index", offset[0] * (2 * window - 1) + offset[1])

    def mask(self, height: int, width: int, device: torch.device) -> Tensor:
        """(windows, 1, T, T): False between places that were not neighbours before the roll."""
        region = torch.zeros(1, height, width, 1, device=device)
        cuts = (slice(0, -self.window), slice(-self.window, -self.shift), slice(-self.shift, None))
        for row in range(3):
            for column in range(3):
                region[:, cuts[row], cuts[column]] = 3 * row + column
        region = self.split(region).squeeze(-1)
        return (region[:, :, None] == region[:, None, :]).unsqueeze(1)

    def split(self, x: Tensor) -> Tensor:
        """(B, H, W, C) to (B × windows, T, C)."""
        batch, height, width, channels = x.shape
        x = x.reshape(batch, height // self.window, self.window, width // self.window, self.window, channels)
        return x.transpose(2, 3).reshape(-1, self.window**2, channels)

    def forward(self, x: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        if self.shift:
            x = x.roll((-self.shift, -self.shift), (1, 2))
        packed = self.project_in(self.split(x))
        packed = packed.reshape(-1, self.window**2, 3, self.heads, channels // self.heads)
        query, key, value = packed.permute(2, 0, 3, 1, 4).unbind(0)
        scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        scores = scores + self.bias_table[self.bias_index].permute(2, 0, 1)
        if self.shift:
            allowed = self.mask(height, width, x.device).repeat(batch, 1, 1, 1)
            scores = scores.masked_fill(~allowed, -torch.inf)
        mixed = self.project_out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))
        mixed = mixed.reshape(batch, height // self.window, width // self.window, self.window, self.window, channels)
        x = mixed.transpose(2, 3).reshape(batch, height, width, channels)
        return x.roll((self.shift, self.shift), (1, 2)) if self.shift else x


class SwinBlock(nn.Module):
    """Window attention and a perceptron, each behind a LayerNorm and around a shortcut."""

    def __init__(self, width: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = WindowAttention(width, heads, window, shift)
        self.norm2 = nn.LayerNorm(width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.perceptron(self.norm2(x))


class PatchMerging(nn.Module):
    """Four neighbouring places become one of twice the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduce = nn.Linear(4 * width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        corners = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduce(self.norm(torch.cat(corners, dim=-1)))


class Swin(nn.Module):
    """Patches, stages of plain and shifted window attention with patch merging between them, mean and head."""

    def __init__(
        self, classes: int, width: int, depths: tuple[int, ...], heads: tuple[int, ...], window: int, patch: int
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        layers: list[nn.Module] = [nn.LayerNorm(width)]
        for stage, (depth, count) in enumerate(zip(depths, heads, strict=True)):
            if stage > 0:
                layers.append(PatchMerging(width))
                width *= 2
            layers += [SwinBlock(width, count, window, (index % 2) * (window // 2)) for index in range(depth)]
        self.layers = nn.Sequential(*layers, nn.LayerNorm(width))
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.patches(x).permute(0, 2, 3, 1))
        return self.head(x.mean((1, 2)))


def swin(
    classes: int = 10,
    width: int = 96,
    depths: tuple[int, ...] = (2, 2, 6, 2),
    heads: tuple[int, ...] = (3, 6, 12, 24),
    window: int = 7,
    patch: int = 4,
) -> nn.Module:
    """Swin; every stage's side has to be a multiple of the window."""
    return Swin(classes, width, depths, heads, window, patch)


class GPT(nn.Module):
    """Token and position embeddings, causal blocks, and a head that may share the token embedding's weight."""

    def __init__(self, vocabulary: int, context: int, width: int, blocks: int, heads: int, tied: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[TransformerBlock(width, heads, causal=True) for _ in range(blocks)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        # The usual small start: tied weights are read as a head too, where N(0, 1) entries would saturate the softmax.
        nn.init.normal_(self.tokens.weight, std=0.1)
        nn.init.normal_(self.positions.weight, std=0.1)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return self.head(self.norm(self.blocks(x)))


def gpt(
    vocabulary: int = 50_257,
    context: int = 1_024,
    width: int = 768,
    blocks: int = 12,
    heads: int = 12,
    tied: bool = True,
) -> nn.Module:
    """A GPT with (B, T, vocabulary) outputs."""
    return GPT(vocabulary, context, width, blocks, heads, tied)


class RecurrentClassifier(nn.Module):
    """Embedded tokens through a recurrent network; the last place is classified."""

    def __init__(self, recurrent: type[nn.GRU] | type[nn.LSTM], vocabulary: int, classes: int, width: int, layers: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.recurrent = recurrent(width, width, num_layers=layers, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:
        places, _ = self.recurrent(self.embedding(ids))
        return self.head(F.relu(places[:, -1]))


def gru_classifier(vocabulary: int = 1_000, classes: int = 4, width: int = 128, layers: int = 1) -> nn.Module:
    """A GRU over tokens with (B, classes) outputs."""
    return RecurrentClassifier(nn.GRU, vocabulary, classes, width, layers)


def lstm_classifier(vocabulary: int = 1_000, classes: int = 4, width: int = 128, layers: int = 1) -> nn.Module:
    """An LSTM over tokens with (B, classes) outputs."""
    return RecurrentClassifier(nn.LSTM, vocabulary, classes, width, layers)
