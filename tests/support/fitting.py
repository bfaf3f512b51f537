"""Fits of networks that are not rows of the table, on the device under test, and what tests compare them with."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import peewit as pw
from cases import randomise
from environment import DEVICE
from peewit.curvature.kinds import GGN
from peewit.curvature.stream import MeasurementTask, Source
from peewit.network.batches import Batches
from peewit.network.isolation import isolated
from peewit.network.modules import device_of
from peewit.network.nests import take
from peewit.runtime.memory import budget
from peewit.weights.space import make_space, trainable
from tables import moved


def seeded(seed: int) -> torch.Generator:
    """A generator on the CPU."""
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 1) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def classes(count: int, *shape: int, seed: int = 2) -> Tensor:
    """Class numbers."""
    return torch.randint(count, shape, generator=seeded(seed))


def built(model: nn.Module) -> nn.Module:
    """A network in float64 on the CPU whose biases and norms are not zeros and ones."""
    model = model.double()
    randomise(model)
    return model


def fitted(model: nn.Module, x: Any, y: Tensor, likelihood: Any, structure: Any = "kron", **options: Any) -> pw.Laplace:
    """A fit of a copy on the device under test; exact curvature unless another is asked for."""
    options.setdefault("curvature", "ggn")
    return pw.fit(copy.deepcopy(model).to(DEVICE), (moved(x), moved(y)), likelihood, structure=structure, **options)


def names_of(model: nn.Module) -> list[str]:
    """Trainable parameters."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def weights_of(model: nn.Module) -> Tensor:
    """(D,): trainable weights on the CPU, flat."""
    return torch.cat([p.detach().reshape(-1).cpu() for p in model.parameters() if p.requires_grad])


def cut(x: Any, y: Tensor, sizes: list[int]) -> list[tuple[Any, Tensor]]:
    """Batches of the given sizes, on the device under test."""
    made, start = [], 0
    for size in sizes:
        chosen = slice(start, start + size)
        made.append((moved(take(x, chosen)), moved(y[chosen])))
        start += size
    assert start == len(y)
    return made


def measured(model: nn.Module, data: Any, likelihood: Any, structure: Any, **options: Any) -> Any:
    """The additive sums of a structure, before they are decomposed."""
    model = copy.deepcopy(model).to(DEVICE)
    device = device_of(model)
    space = make_space(model, trainable(model))
    task = MeasurementTask(
        model=model,
        space=space,
        data=Batches(data, device),
        likelihood=likelihood,
        kind=options.pop("kind", GGN()),
        budget=budget(None, device),
        **options,
    )
    with isolated(model, [model.get_parameter(name) for name in space.names]):
        return structure.measure(Source(task))


def covered(values: Tensor, expected: Tensor, deviations: float = 5.0) -> bool:
    """Whether a sample covariance of (S, F) Gaussian values agrees with the exact one within its Monte Carlo error."""
    found = torch.cov(values.T.cpu())
    error = ((expected.diagonal()[:, None] * expected.diagonal() + expected.square()) / len(values)).sqrt()
    return bool(((found - expected).abs() < deviations * error).all())


class Broken:
    """Batches that end with an exception after some of them were handed out."""

    def __init__(self, batches: list[Any], error: BaseException) -> None:
        self.batches = batches
        self.error = error

    def __iter__(self) -> Iterator[Any]:
        """All batches, then the exception."""
        yield from self.batches
        raise self.error


class Gained(nn.Module):
    """A network with a weight that has no axes."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.gain = nn.Linear(2, 3), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.gain
