"""Training networks of one shape all at once, each on its own examples: layer by layer, by batched products."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.quality.cases import Examples

LOOK = 256  # examples of each network at once when nothing is learnt


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """One network that is to be trained."""

    seed: int
    dropout: float
    train: Examples  # which rows of the inputs, and their labels
    stop: Examples
    build: Callable[[], nn.Sequential]  # the network; it may have fewer outputs or words than the common shape


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """How long and how fast networks learn."""

    epochs: int = 30
    batch: int = 128
    rate: float = 1e-3


class Bag(nn.Module):
    """The mean of the embeddings of words, padding left out."""

    def __init__(self, words: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width, padding_idx=0)
        with torch.no_grad():
            self.embedding.weight.mul_(0.1)

    def forward(self, ids: Tensor) -> Tensor:
        """(B, T) -> (B, width)."""
        there = (ids != 0).to(self.embedding.weight.dtype)[..., None]
        vectors: Tensor = self.embedding(ids)
        return (vectors * there).sum(1) / there.sum(1).clamp(min=1)


class Stack:
    """K networks of one shape. Images lie as (K, channels, B, H, W) inside, all else as (K, B, ...)."""

    def __init__(self, build: Callable[[], nn.Sequential], runs: Sequence[Run], device: torch.device) -> None:
        models = []
        with torch.random.fork_rng(devices=[]):
            for run in runs:
                torch.manual_seed(run.seed)
                models.append(build())
        self.layers = list(models[0].named_children())
        parameters, buffers = torch.func.stack_module_state(models)
        self.parameters = {name: value.detach().to(device).requires_grad_() for name, value in parameters.items()}
        self.buffers = {name: value.to(device) for name, value in buffers.items()}
        self.dropout = torch.tensor([run.dropout for run in runs], device=device)[:, None, None]

    def __call__(self, x: Tensor, training: bool = False) -> Tensor:
        """(K, B, ...) -> (K, B, outputs)."""
        if x.dim() == 5:
            x = x.transpose(1, 2)
        for name, layer in self.layers:
            x = self.through(layer, name, x, training)
        return x

    def through(self, layer: nn.Module, name: str, x: Tensor, training: bool) -> Tensor:
        own = self.parameters
        if isinstance(layer, nn.Linear):
            return torch.baddbmm(own[f"{name}.bias"][:, None], x, own[f"{name}.weight"].mT)
        if isinstance(layer, nn.Conv2d):
            return convolution(x, own[f"{name}.weight"])
        if isinstance(layer, nn.BatchNorm2d):
            kept = [self.buffers[f"{name}.running_{kind}"].view(-1) for kind in ("mean", "var")]
            weight, bias = own[f"{name}.weight"].flatten(), own[f"{name}.bias"].flatten()
            rows = x.reshape(1, len(weight), -1)
            return F.batch_norm(rows, kept[0], kept[1], weight, bias, training).view(x.shape)
        if isinstance(layer, nn.MaxPool2d):
            smaller: Tensor = F.max_pool2d(x.flatten(0, 1), 2)
            return smaller.view(*x.shape[:2], *smaller.shape[1:])
        if isinstance(layer, nn.Flatten):
            return x.transpose(1, 2).flatten(2)
        if isinstance(layer, nn.Dropout):
            return x * (torch.rand_like(x) >= self.dropout) / (1 - self.dropout) if training else x
        if isinstance(layer, Bag):
            return bag(x, own[f"{name}.embedding.weight"])
        if isinstance(layer, nn.ReLU):
            return x.relu()
        raise TypeError(f"{type(layer).__name__} is not among the layers that are trained together")

    def state(self) -> list[Tensor]:
        return [*(value.detach() for value in self.parameters.values()), *self.buffers.values()]


def convolution(x: Tensor, weight: Tensor) -> Tensor:
    """3x3 with padding 1: (K, C, B, H, W), (K, O, C, 3, 3) -> (K, O, B, H, W), as one product per network."""
    height, width = x.shape[-2:]
    wide = F.pad(x, (1, 1, 1, 1))
    moved = [wide[..., i : i + height, j : j + width] for i in range(3) for j in range(3)]
    columns = torch.stack(moved, 2).reshape(len(x), -1, x[0, 0].numel())
    return torch.bmm(weight.flatten(2), columns).view(len(x), weight.shape[1], *x.shape[2:])


def bag(ids: Tensor, weight: Tensor) -> Tensor:
    """(K, B, T), (K, words, width) -> (K, B, width)."""
    there = (ids != 0).to(weight.dtype)[..., None]
    first = torch.arange(len(ids), device=ids.device)[:, None, None] * weight.shape[1]
    return (F.embedding(ids + first, weight.flatten(0, 1)) * there).sum(2) / there.sum(2).clamp(min=1)


def rectangle(examples: Sequence[Examples], device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(K, most) rows and labels, those of short networks repeated, and (K, most) booleans: which are not."""
    most = max(len(rows) for rows, _ in examples)
    places = torch.arange(most)
    rows, labels = (torch.stack([pair[half][places % len(pair[0])] for pair in examples]) for half in (0, 1))
    there = torch.stack([places < len(pair[0]) for pair in examples])
    return rows.to(device), labels.to(device), there.to(device)


def stopping_losses(stack: Stack, x: Tensor, stop: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """(K,): mean cross entropies."""
    total = torch.zeros(len(stop[0]), device=x.device)
    with torch.no_grad():
        for rows, labels, there in zip(*(each.split(LOOK, 1) for each in stop), strict=True):
            losses = F.cross_entropy(stack(x[rows]).movedim(2, 1), labels, reduction="none")
            total += (losses * there).sum(1)
    return total / stop[2].sum(1)


def train_together(
    build: Callable[[], nn.Sequential], x: Tensor, runs: Sequence[Run], lesson: Lesson
) -> tuple[list[nn.Sequential], list[nn.Sequential]]:
    """Train by Adam with a falling rate: networks where the stopping data are fitted best, and those after all epochs.

    `build` makes the common shape, with a dropout layer wherever one of the runs has one; `x` are the inputs of all.
    An epoch is one of the run with most examples: shorter ones begin anew.
    """
    stack = Stack(build, runs, x.device)
    rows, labels, _ = rectangle([run.train for run in runs], x.device)
    stop = rectangle([run.stop for run in runs], x.device)
    batch = min(lesson.batch, rows.shape[1])
    steps = rows.shape[1] // batch
    optimizer = torch.optim.Adam(stack.parameters.values(), lr=lesson.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps * lesson.epochs)
    generators = [torch.Generator().manual_seed(run.seed) for run in runs]
    best = torch.full((len(runs),), math.inf, device=x.device)
    kept = [value.clone() for value in stack.state()]
    torch.manual_seed(runs[0].seed)
    for _ in range(lesson.epochs):
        orders = [torch.randperm(len(run.train[0]), generator=each) for run, each in zip(runs, generators, strict=True)]
        places = torch.stack([order[torch.arange(steps * batch) % len(order)] for order in orders]).to(x.device)
        for chosen in places.split(batch, 1):
            optimizer.zero_grad()
            outputs = stack(x[rows.gather(1, chosen)], training=True)
            loss = F.cross_entropy(outputs.flatten(0, 1), labels.gather(1, chosen).flatten(), reduction="sum") / batch
            torch.autograd.backward([loss])
            optimizer.step()
            schedule.step()
        value = stopping_losses(stack, x, stop)
        better = value < best
        best = torch.where(better, value, best)
        for old, new in zip(kept, stack.state(), strict=True):
            old[better] = new[better]
    last = stack.state()
    return [taken(run, kept, k) for k, run in enumerate(runs)], [taken(run, last, k) for k, run in enumerate(runs)]


def taken(run: Run, state: Sequence[Tensor], number: int) -> nn.Sequential:
    """The network of a run; what it has fewer of are the last outputs or words."""
    model = run.build()
    with torch.no_grad():
        for own, value in zip([*model.parameters(), *model.buffers()], state, strict=True):
            own.copy_(value[number][tuple(slice(size) for size in own.shape)])
    return model.to(state[0].device).eval()
