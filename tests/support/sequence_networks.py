"""Small networks with embeddings, attention and recurrence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from networks import Network, body, parameter


def causal(length: int, like: Tensor) -> Tensor:
    """Return the mask (T, T) that lets a position attend to itself and earlier ones."""
    return torch.full((length, length), float("-inf"), dtype=like.dtype, device=like.device).triu(1)


# Embeddings


def embedding_padding() -> nn.Module:
    """A padding index and a mean over tokens, (B, T) to (B, 3)."""

    def forward(self: Any, tokens: Tensor) -> Tensor:
        hidden = self.embedding(tokens)
        return self.head(torch.tanh(self.enter(hidden)).mean(1))

    return Network(forward, embedding=nn.Embedding(6, 4, padding_idx=0), enter=nn.Linear(4, 5), head=nn.Linear(5, 3))


def embedding_sparse() -> nn.Module:
    """Sparse gradients of the table, (B, T) to (B, 3)."""

    def forward(self: Any, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embedding(tokens)).mean(1))

    return Network(forward, embedding=nn.Embedding(6, 4, sparse=True), head=nn.Linear(4, 3))


def gpt_positions() -> nn.Module:
    """A table of positions, looked up without a batch axis, (B, 3) to (B, 3, 3)."""

    def forward(self: Any, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.token(tokens) + self.position(places)
        return self.head(torch.tanh(self.mix(torch.tanh(hidden).cumsum(1))))

    members = {"token": nn.Embedding(5, 4), "position": nn.Embedding(3, 4)}
    return Network(forward, **members, mix=nn.Linear(4, 5), head=nn.Linear(5, 3))


def layered_positions() -> nn.Module:
    """Positions that go through layers of their own before any example, (B, 3) to (B, 3)."""

    def forward(self: Any, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.token(tokens) + self.project(self.position)
        hidden = hidden + self.norm(self.table(places)) + self.norm(self.scaled * 2)
        return self.head(torch.tanh(hidden).mean(1))

    members = {"token": nn.Embedding(5, 4), "position": parameter(3, 2), "project": nn.Linear(2, 4)}
    members |= {"table": nn.Embedding(3, 4), "norm": nn.LayerNorm(4), "scaled": parameter(3, 4)}
    return Network(forward, **members, head=nn.Linear(4, 3))


def tied_gpt() -> nn.Module:
    """A table of tokens that is also the head, (B, 3) to (B, 3, 4)."""

    def forward(self: Any, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        hidden = self.token(tokens) + self.position(places)
        hidden = self.layer(hidden, src_mask=causal(tokens.shape[1], hidden))
        return self.head(hidden)

    token, head = nn.Embedding(4, 4), nn.Linear(4, 4, bias=False)
    head.weight = token.weight
    layer = nn.TransformerEncoderLayer(4, 2, 5, activation="gelu", batch_first=True, norm_first=True)
    return Network(forward, token=token, position=nn.Embedding(3, 4), layer=layer, head=head)


def tied_functional() -> nn.Module:
    """A table of tokens and a product with its transpose, (B, T) to (B, T, 4)."""

    def forward(self: Any, tokens: Tensor) -> Tensor:
        hidden = torch.tanh(self.mix(self.token(tokens).cumsum(1)))
        return hidden @ self.token.weight.T

    return Network(forward, token=nn.Embedding(4, 5), mix=nn.Linear(5, 5))


def token_classifier() -> nn.Module:
    """Classes of separate tokens, (B, T) to (B, T, 3)."""

    def forward(self: Any, tokens: Tensor) -> Tensor:
        hidden = self.norm(self.token(tokens))
        hidden = hidden + self.down(functional.gelu(self.up(hidden)))
        return self.head(hidden)

    members = {"token": nn.Embedding(5, 4), "norm": nn.LayerNorm(4), "up": nn.Linear(4, 6), "down": nn.Linear(6, 4)}
    return Network(forward, **members, head=nn.Linear(4, 3))


def vision_transformer() -> nn.Module:
    """Patches, a class token and position parameters, (B, 1, 4, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        patches = self.patch(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(len(x), -1, -1), patches], 1) + self.position
        tokens = tokens + self.attention(*[self.norm(tokens)] * 3, need_weights=False)[0]
        return self.head(torch.tanh(tokens[:, 0]))

    members = {"patch": nn.Conv2d(1, 4, 2, stride=2), "class_token": parameter(1, 1, 4), "position": parameter(1, 5, 4)}
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    return Network(forward, **members, norm=nn.LayerNorm(4), attention=attention, head=nn.Linear(4, 3))


# Attention


def self_attention(batch_first: bool, **settings: Any) -> Callable[[], nn.Module]:
    """Return a builder of attention among T positions, (B, T, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        x = x if batch_first else x.transpose(0, 1)
        mixed = self.attention(x, x, x)[0]
        return self.head(torch.tanh(mixed).mean(1 if batch_first else 0))

    def build() -> nn.Module:
        attention = nn.MultiheadAttention(4, 2, batch_first=batch_first, **settings)
        return Network(forward, attention=attention, head=nn.Linear(4, 3))

    return build


def masked_attention() -> nn.Module:
    """Attention with padded positions, (B, T, 4) and (B, T) to (B, 3)."""

    def forward(self: Any, x: Tensor, padded: Tensor) -> Tensor:
        mixed = self.attention(x, x, x, key_padding_mask=padded, need_weights=False)[0]
        return self.head(torch.tanh(mixed).mean(1))

    return Network(forward, attention=nn.MultiheadAttention(4, 2, batch_first=True), head=nn.Linear(4, 3))


def cross_attention(**settings: Any) -> Callable[[], nn.Module]:
    """Return a builder of attention to other inputs, (B, S, 4) and (B, T, E) to (B, 3)."""

    def forward(self: Any, query: Tensor, key: Tensor, value: Tensor | None = None) -> Tensor:
        mixed = self.attention(query, key, key if value is None else value)[0]
        return self.head(torch.tanh(mixed).mean(1))

    def build() -> nn.Module:
        attention = nn.MultiheadAttention(4, 2, batch_first=True, **settings)
        return Network(forward, attention=attention, head=nn.Linear(4, 3))

    return build


def encoder_layer(batch_first: bool) -> Callable[[], nn.Module]:
    """Return a builder with one encoder layer, (B, T, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        mixed = self.layer(x if batch_first else x.transpose(0, 1))
        return self.head(mixed.select(1 if batch_first else 0, 0))

    def build() -> nn.Module:
        layer = nn.TransformerEncoderLayer(4, 2, 5, activation="gelu", batch_first=batch_first)
        return Network(forward, layer=layer, head=nn.Linear(4, 3))

    return build


def decoder_layer() -> nn.Module:
    """One decoder layer, (B, S, 4) and (B, T, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor, memory: Tensor) -> Tensor:
        return self.head(self.layer(x, memory)[:, -1])

    layer = nn.TransformerDecoderLayer(4, 2, 5, activation="gelu", batch_first=True)
    return Network(forward, layer=layer, head=nn.Linear(4, 3))


def encoder() -> nn.Module:
    """Two encoder layers, (B, T, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(self.layers(x)[:, 0])

    layer = nn.TransformerEncoderLayer(4, 2, 5, activation="gelu", batch_first=True)
    layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return Network(forward, layers=layers, head=nn.Linear(4, 3))


def written_attention() -> nn.Module:
    """Causal attention from a packed projection, (B, T, 4) to (B, T, 2)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.project(x).reshape(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.head(torch.tanh(self.leave(mixed.transpose(1, 2).reshape(batch, length, width))))

    return Network(forward, project=nn.Linear(4, 12), leave=nn.Linear(4, 4), head=nn.Linear(4, 2))


# Recurrence


def lstm() -> nn.Module:
    """Long short-term memory, (B, T, 3) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(self.cells(x)[0][:, -1])

    return Network(forward, cells=nn.LSTM(3, 4, batch_first=True), head=nn.Linear(4, 3))


def gru() -> nn.Module:
    """Gated recurrent unit, (B, T, 2) to (B, 2)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(self.cells(torch.tanh(self.enter(x)))[0][:, -1])

    return Network(forward, enter=nn.Linear(2, 3), cells=nn.GRU(3, 4, batch_first=True), head=nn.Linear(4, 2))


def written_recurrence() -> nn.Module:
    """Layers called at every step, (B, T, 3) to (B, 2)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 4)
        for step in x.unbind(1):
            state = torch.tanh(self.enter(step) + self.again(state))
        return self.head(state)

    return Network(forward, enter=nn.Linear(3, 4), again=nn.Linear(4, 4, bias=False), head=nn.Linear(4, 2))


def embedding_rows() -> nn.Module:
    """Return a network whose embedding is also used in a way that is no matrix product."""

    def forward(self: Any, tokens: Tensor) -> Tensor:
        return self.head(self.token(tokens).mean(1) * self.token.weight.square().mean(0))

    return body(Network(forward, token=nn.Embedding(4, 3), head=nn.Linear(3, 2)))
