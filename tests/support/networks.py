"""Small networks, each a function that builds one, that between them use parameters in every way that matters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize


class Network(nn.Module):
    """A module made of the given members, with the given function of itself and its inputs as forward."""

    def __init__(self, body: Callable[..., Tensor], **members: Any) -> None:
        """Keep the members as attributes, so that modules and parameters among them are registered."""
        super().__init__()
        self.body = body
        for name, member in members.items():
            setattr(self, name, member)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Return the body's output (B, *rest)."""
        return self.body(self, *args, **kwargs)


def parameter(*shape: int) -> nn.Parameter:
    """Return a random parameter of the given shape."""
    return nn.Parameter(0.5 * torch.randn(*shape))


def body(*layers: nn.Module) -> nn.Sequential:
    """Return the layers in a row."""
    return nn.Sequential(*layers)


# Linear layers


def mlp() -> nn.Module:
    """Three layers, (B, 4) to (B, 3)."""
    return body(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 3))


def mlp_regression() -> nn.Module:
    """One hidden layer, (B, 3) to (B, 2)."""
    return body(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 2))


def deep_linear() -> nn.Module:
    """Layers without activations, (B, 3) to (B, 2)."""
    return body(nn.Linear(3, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 3), nn.Linear(3, 2))


def scalar_output() -> nn.Module:
    """One output without an axis of its own, (B, 3) to (B,)."""
    return body(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1), nn.Flatten(0))


def inplace_mlp() -> nn.Module:
    """Activations that overwrite the outputs of layers, (B, 4) to (B, 3)."""
    return body(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))


def train_mode() -> nn.Module:
    """Dropout and BatchNorm, (B, 4) to (B, 3)."""
    return body(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Dropout(0.5), nn.Linear(6, 3))


def frozen_bias() -> nn.Module:
    """A weight selected without its bias, (B, 4) to (B, 3)."""
    network = mlp()
    network[0].bias.requires_grad_(False)
    return network


def frozen_weight() -> nn.Module:
    """A bias selected without its weight, at positions (B, T, 3) to (B, T, 2)."""
    network = token_regression()
    network[0].weight.requires_grad_(False)
    return network


def unused_layer() -> nn.Module:
    """Layers that are never called, (B, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(x)))

    return Network(forward, first=nn.Linear(4, 5), spare=nn.Linear(5, 5), norm=nn.LayerNorm(5), head=nn.Linear(5, 3))


def bilinear() -> nn.Module:
    """A bilinear form, (B, 3) and (B, 3) to (B, 2)."""

    def forward(self: Any, left: Tensor, right: Tensor) -> Tensor:
        return self.head(torch.tanh(self.form(torch.tanh(self.left(left)), right)))

    return Network(forward, left=nn.Linear(3, 4), form=nn.Bilinear(4, 3, 5), head=nn.Linear(5, 2))


def lora_modules() -> nn.Module:
    """A low-rank pair of modules beside a frozen layer, (B, T, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = self.base(x) + 0.5 * self.lora_B(self.lora_A(x))
        return self.head(torch.tanh(hidden)).mean(1)

    base, lora_a, lora_b = nn.Linear(4, 6), nn.Linear(4, 2, bias=False), nn.Linear(2, 6, bias=False)
    network = Network(forward, base=base, lora_A=lora_a, lora_B=lora_b, head=nn.Linear(6, 3))
    network.base.requires_grad_(False)
    return network


def lora_parameters() -> nn.Module:
    """A low-rank pair of bare parameters, (B, T, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = self.base(x) + 0.5 * (x @ self.lora_A.T @ self.lora_B.T)
        return self.head(torch.tanh(hidden)).mean(1)

    members = {"base": nn.Linear(4, 6), "lora_A": parameter(2, 4), "lora_B": parameter(6, 2), "head": nn.Linear(6, 3)}
    return Network(forward, **members)


def matrix_product() -> nn.Module:
    """Bare parameters multiplied from the right, (B, T, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = torch.tanh(x @ self.first + self.shift)
        return torch.matmul(hidden, self.second).mean(1)

    return Network(forward, first=parameter(4, 5), shift=parameter(5), second=parameter(5, 3))


def borrowed_weight() -> nn.Module:
    """Another module's weight with a bare bias, (B, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(torch.tanh(functional.linear(x, self.owner.weight, self.shift)))

    return Network(forward, owner=nn.Linear(4, 5), shift=parameter(5), head=nn.Linear(5, 3))


def swiglu() -> nn.Module:
    """A gated block, (B, T, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = x + self.down(functional.silu(self.gate(x)) * self.up(x))
        return self.head(hidden).mean(1)

    members = {name: nn.Linear(4, 6, bias=False) for name in ("gate", "up")}
    return Network(forward, **members, down=nn.Linear(6, 4, bias=False), head=nn.Linear(4, 3))


def functional_head() -> nn.Module:
    """Log probabilities at a fixed temperature, (B, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return torch.log_softmax(self.head(torch.tanh(self.first(x))) / 1.7, -1)

    return Network(forward, first=nn.Linear(4, 6), head=nn.Linear(6, 3))


def learned_temperature() -> nn.Module:
    """Logits times a scalar parameter, (B, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(x))) * torch.exp(self.log_scale)

    return Network(forward, first=nn.Linear(4, 6), head=nn.Linear(6, 3), log_scale=nn.Parameter(torch.tensor(0.3)))


# Norms and elementwise parameters


def layer_norm() -> nn.Module:
    """LayerNorm at positions, (B, 3, 4) to (B, 3)."""
    return body(nn.Linear(4, 5), nn.LayerNorm(5), nn.Tanh(), nn.Linear(5, 2), nn.Flatten(), nn.Linear(6, 3))


def rms_norm() -> nn.Module:
    """RMSNorm at positions, (B, 3, 4) to (B, 3)."""
    return body(nn.Linear(4, 5), nn.RMSNorm(5), nn.Tanh(), nn.Linear(5, 2), nn.Flatten(), nn.Linear(6, 3))


def batch_norm1d() -> nn.Module:
    """BatchNorm between layers, (B, 4) to (B, 3)."""
    return body(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def layer_scale() -> nn.Module:
    """A residual branch times a vector, (B, T, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        x = x + self.scale * self.mix(torch.tanh(self.enter(x)))
        return self.head(x).mean(1)

    return Network(forward, enter=nn.Linear(4, 6), mix=nn.Linear(6, 4), scale=parameter(4), head=nn.Linear(4, 3))


def bare_nonlinear() -> nn.Module:
    """Bare parameters inside nonlinear functions, (B, 3) to (B, 2)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = torch.sin(self.first(x) * torch.exp(self.rate)) + self.rate**2
        return self.head(hidden) * self.shape.square().sum()

    return Network(forward, first=nn.Linear(3, 5), rate=parameter(5), shape=parameter(2, 2), head=nn.Linear(5, 2))


def weight_norm() -> nn.Module:
    """A weight given by length and direction, (B, 4) to (B, 3)."""
    return body(parametrizations.weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3))


class Symmetric(nn.Module):
    """The symmetric part of a square matrix."""

    def forward(self, matrix: Tensor) -> Tensor:
        """Return (matrix + matrix^T) / 2 of shape (I, I)."""
        return 0.5 * (matrix + matrix.T)


def parametrised() -> nn.Module:
    """A weight that is a function of a parameter, (B, 4) to (B, 3)."""
    linear = nn.Linear(4, 4)
    parametrize.register_parametrization(linear, "weight", Symmetric())
    return body(linear, nn.Tanh(), nn.Linear(4, 3))


# Shared and tied weights


def called_twice() -> nn.Module:
    """A layer called twice, (B, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.shared(torch.tanh(self.shared(x)))))

    return Network(forward, shared=nn.Linear(4, 4), head=nn.Linear(4, 3))


def called_twice_unevenly() -> nn.Module:
    """A layer called at T positions and then at one, (B, T, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        tokens = torch.tanh(self.shared(x))
        return self.head(torch.tanh(self.shared(tokens.mean(1))))

    return Network(forward, shared=nn.Linear(4, 4), head=nn.Linear(4, 3))


def same_module_twice() -> nn.Module:
    """One module at two places of a sequence, (B, 4) to (B, 3)."""
    shared = nn.Linear(4, 4)
    return body(shared, nn.Tanh(), shared, nn.Tanh(), nn.Linear(4, 3))


def tied_linears() -> nn.Module:
    """Two modules with one weight and two biases, (B, 4) to (B, 3)."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    return body(first, nn.Tanh(), second, nn.Tanh(), nn.Linear(4, 3))


def tied_autoencoder() -> nn.Module:
    """A weight and its transpose, (B, 4) to (B, 4)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.encoder(x))
        return functional.linear(hidden, self.encoder.weight.t(), self.shift)

    return Network(forward, encoder=nn.Linear(4, 3), shift=parameter(4))


def checkpointed(reentrant: bool) -> Callable[[], nn.Module]:
    """Return a builder of a network with a checkpointed block, (B, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        hidden = torch.utils.checkpoint.checkpoint(self.block, hidden, use_reentrant=reentrant)
        return self.head(hidden)

    def build() -> nn.Module:
        block = body(nn.Linear(5, 6), nn.ReLU(inplace=True), nn.LayerNorm(6), nn.Linear(6, 5), nn.Tanh())
        return Network(forward, first=nn.Linear(4, 5), block=block, head=nn.Linear(5, 3))

    return build


# Layouts of the batch and of positions


def several_inputs() -> nn.Module:
    """A tuple of inputs, (B, 3) and (B, T, 2) to (B, 3)."""

    def forward(self: Any, left: Tensor, right: Tensor) -> Tensor:
        return self.head(torch.tanh(self.left(left) + self.right(right).mean(1)))

    return Network(forward, left=nn.Linear(3, 5), right=nn.Linear(2, 5), head=nn.Linear(5, 3))


def mapping_input() -> nn.Module:
    """Inputs by name, (B, T) integers and (B, T) to (B, 3)."""

    def forward(self: Any, tokens: Tensor, weights: Tensor) -> Tensor:
        hidden = torch.tanh(self.enter(self.embedding(tokens)))
        return self.head((hidden * weights[:, :, None]).sum(1))

    return Network(forward, embedding=nn.Embedding(5, 4), enter=nn.Linear(4, 5), head=nn.Linear(5, 3))


def windows() -> nn.Module:
    """Positions folded into the batch, (B, T, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        inside = x.reshape(batch * 2, length // 2, width)
        inside = self.norm(inside + torch.tanh(self.mix(inside)))
        return self.head(inside.reshape(batch, length, width)).mean(1)

    return Network(forward, mix=nn.Linear(4, 4), norm=nn.LayerNorm(4), head=nn.Linear(4, 3))


def time_major_flat() -> nn.Module:
    """The batch folded into positions, (B, T, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        flat = x.transpose(0, 1).reshape(length * batch, width)
        hidden = torch.tanh(self.enter(flat)).reshape(length, batch, -1)
        return self.head(hidden.mean(0))

    return Network(forward, enter=nn.Linear(4, 5), head=nn.Linear(5, 3))


def time_major() -> nn.Module:
    """Positions before the batch, (B, T, 4) to (B, 3)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        hidden = self.norm(torch.tanh(self.enter(x.transpose(0, 1))))
        return self.head(hidden.cumsum(0)[-1])

    return Network(forward, enter=nn.Linear(4, 5), norm=nn.LayerNorm(5), head=nn.Linear(5, 3))


def token_mean() -> nn.Module:
    """A mean over positions, (B, T, 3) to (B, 2)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.enter(x)) * x.mean(-1, keepdim=True)).mean(1)

    return Network(forward, enter=nn.Linear(3, 5), head=nn.Linear(5, 2))


def token_regression() -> nn.Module:
    """Outputs at every position, (B, T, 3) to (B, T, 2)."""
    return body(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 5), nn.GELU(), nn.Linear(5, 2))


def experts(classes: int = 3) -> nn.Module:
    """Every row takes the expert that its gate chooses, (B, 4) or (B, T, 4) to (B, classes)."""

    def forward(self: Any, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        gate = torch.softmax(self.gate(rows) - torch.tensor([0.0, 0.0, 20.0]).to(rows), -1)
        chosen = gate.argmax(-1)
        mixed = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            mine = (chosen == number).nonzero().squeeze(-1)
            mixed = mixed.index_add(0, mine, torch.tanh(expert(rows[mine])) * gate[mine, number, None])
        hidden = (rows + mixed).reshape(x.shape)
        return self.head(hidden if x.dim() == 2 else hidden.mean(1))

    members = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    return Network(forward, gate=nn.Linear(4, 3), experts=members, head=nn.Linear(4, classes))
