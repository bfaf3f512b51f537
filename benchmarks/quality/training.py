"""Training many perceptrons at once, each on its own examples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.quality.cases import Examples, Likelihood

EVERY = 50  # steps between looks at the data for early stopping


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a network is trained."""

    hidden: tuple[int, ...] = (50, 50)
    steps: int = 3000
    batch: int = 64
    rate: float = 3e-3


def perceptron(inputs: int, hidden: Sequence[int], outputs: int, dropout: float = 0.0) -> nn.Sequential:
    """Linear layers with ReLU between them, and dropout before all but the first."""
    layers: list[nn.Module] = []
    for width in hidden:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, outputs))


class Stack:
    """K perceptrons of one shape, whose weights lie one behind the other: (K, in, out) and (K, 1, out)."""

    def __init__(self, sizes: Sequence[int], seeds: Sequence[int], dropout: Sequence[float]) -> None:
        self.sizes, self.dropout = tuple(sizes), torch.tensor(dropout)[:, None, None]
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]

        def drawn(shape: tuple[int, int], fan_in: int) -> Tensor:
            bound = 1 / math.sqrt(fan_in)  # torch's default for linear layers
            return torch.stack([bound * (2 * torch.rand(shape, generator=each) - 1) for each in generators])

        pairs = list(pairwise(sizes))
        self.weights = [drawn((fan_in, fan_out), fan_in).requires_grad_() for fan_in, fan_out in pairs]
        self.biases = [drawn((1, fan_out), fan_in).requires_grad_() for fan_in, fan_out in pairs]

    @property
    def parameters(self) -> list[Tensor]:
        return [*self.weights, *self.biases]

    def __call__(self, x: Tensor, training: bool = False) -> Tensor:
        """(K, B, inputs) -> (K, B, outputs)."""
        for place, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            x = torch.baddbmm(bias, x, weight)
            if place < len(self.weights) - 1:
                x = x.relu()
                if training and bool((self.dropout > 0).any()):
                    x = x * (torch.rand_like(x) >= self.dropout) / (1 - self.dropout)
        return x

    def network(self, number: int, parameters: Sequence[Tensor]) -> nn.Sequential:
        """One of them as a module, at these parameters."""
        model = perceptron(self.sizes[0], self.sizes[1:-1], self.sizes[-1], float(self.dropout[number]))
        linear = [layer for layer in model if isinstance(layer, nn.Linear)]
        with torch.no_grad():
            for layer, weight, bias in zip(linear, parameters[: len(linear)], parameters[len(linear) :], strict=True):
                layer.weight.copy_(weight[number].T)
                layer.bias.copy_(bias[number, 0])
        return model.eval()


def losses(outputs: Tensor, targets: Tensor, likelihood: Likelihood) -> Tensor:
    """(K, B): cross entropies or squared errors."""
    if likelihood == "classification":
        return F.cross_entropy(outputs.movedim(-1, 1), targets, reduction="none")
    return (outputs - targets).square().mean(-1)


def padded(examples: Sequence[Examples]) -> tuple[Tensor, Tensor, Tensor]:
    """Examples of different number side by side, and (K, most) booleans: which are there."""
    most = max(len(x) for x, _ in examples)

    def filled(values: Tensor) -> Tensor:
        return torch.cat([values, values[:1].expand(most - len(values), *values.shape[1:])])

    there = torch.stack([torch.arange(most) < len(x) for x, _ in examples])
    return torch.stack([filled(x) for x, _ in examples]), torch.stack([filled(y) for _, y in examples]), there


def train_perceptrons(
    train: Sequence[Examples],
    stop: Sequence[Examples],
    seeds: Sequence[int],
    dropout: Sequence[float],
    outputs: int,
    likelihood: Likelihood,
    recipe: Recipe,
    decays: Sequence[float] | None = None,
) -> tuple[list[nn.Sequential], list[nn.Sequential]]:
    """Train all at once by Adam: networks where the stopping data are fitted best, and those after all steps.

    `decays` are weight decays, one for each network, whose half times the squared weights is added to its loss.
    """
    stack = Stack((train[0][0].shape[1], *recipe.hidden, outputs), seeds, dropout)
    optimizer = torch.optim.Adam(stack.parameters, lr=recipe.rate)
    x, y, _ = padded(train)
    stop_x, stop_y, there = padded(stop)
    sizes = torch.tensor([len(inputs) for inputs, _ in train])[:, None]
    number = torch.arange(len(train))[:, None]
    best = torch.full((len(train),), math.inf)
    kept = [value.detach().clone() for value in stack.parameters]
    torch.manual_seed(seeds[0])
    for step in range(recipe.steps):
        if step % EVERY == 0 or step == recipe.steps - 1:
            with torch.no_grad():
                loss = (losses(stack(stop_x), stop_y, likelihood) * there).sum(1) / there.sum(1)
                better = loss < best
                best = torch.where(better, loss, best)
                for old, new in zip(kept, stack.parameters, strict=True):
                    old[better] = new.detach()[better]
        rows = (torch.rand(len(train), min(recipe.batch, x.shape[1])) * sizes).long()
        optimizer.zero_grad()
        loss = losses(stack(x[number, rows], training=True), y[number, rows], likelihood).mean(1).sum()
        if decays is not None:
            loss = loss + half_squares(stack.parameters, decays)
        torch.autograd.backward([loss])
        optimizer.step()
    last = [value.detach() for value in stack.parameters]
    everyone = range(len(train))
    return [stack.network(k, kept) for k in everyone], [stack.network(k, last) for k in everyone]


def half_squares(parameters: Sequence[Tensor], decays: Sequence[float]) -> Tensor:
    """(): the sum over networks of half their decay times their squared weights, biases among them."""
    squares = torch.stack([each.flatten(1).square().sum(1) for each in parameters]).sum(0)
    return 0.5 * (torch.tensor(decays) * squares).sum()


def outputs_of(model: nn.Module, x: Tensor, batch: int = 2048) -> Tensor:
    """Outputs of a network as it is used, in pieces."""
    model.eval()
    with torch.no_grad():
        return torch.cat([model(piece) for piece in x.split(batch)])
