"""Random numbers that are a function of (seed, example, position): the same in every batching and on every device."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ..messages.arguments import check_generator

DEFAULT_SEED = 0x1A9  # of everything that is drawn where no generator was given
_MULTIPLIERS = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)  # splitmix64's, as signed numbers
_STEP = -0x61C8864680B583EB


def _mix(value: Tensor) -> Tensor:
    """The finaliser of splitmix64 on int64, whose products wrap around."""
    value = (value ^ _shift(value, 30)) * _MULTIPLIERS[0]
    value = (value ^ _shift(value, 27)) * _MULTIPLIERS[1]
    return value ^ _shift(value, 31)


def _shift(value: Tensor, bits: int) -> Tensor:
    """A logical shift to the right: torch's keeps the sign."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


@contextmanager
def drawing(generator: torch.Generator | None, device: torch.device) -> Iterator[None]:
    """Draw from a generator, or from the device's own; if the block raises, the generator is set back."""
    if generator is None and device.type == "cuda":
        number = torch.cuda.current_device() if device.index is None else device.index
        generator = torch.cuda.default_generators[number]
    generator = torch.default_generator if generator is None else generator
    state = generator.get_state()
    try:
        yield
    except BaseException:
        generator.set_state(state)
        raise


@dataclass(frozen=True)
class Hashed:
    """Draws for examples (N,) at T positions, for one of several samples."""

    seed: int
    examples: Tensor  # (N,): numbers of the examples in the order they were seen
    positions: int
    sample: int = 0

    def uniform(self, width: int, stream: int = 0) -> Tensor:
        """(N, T, width) in (0, 1), float64."""
        device = self.examples.device
        state = _mix(torch.full((1, 1, 1), self.seed, dtype=torch.int64, device=device) * _STEP + self.sample)
        state = _mix(state + _STEP * (self.examples.long()[:, None, None] + 1))
        position = torch.arange(self.positions, device=device)[None, :, None]
        state = _mix(state + _STEP * (position + 1))
        number = torch.arange(width, device=device)[None, None, :] + stream * width
        state = _mix(state + _STEP * (number + 1))
        return (_shift(state, 11).double() + 0.5) / (1 << 53)

    def normal(self, width: int) -> Tensor:
        """(N, T, width) standard normal, float64, by Box and Muller."""
        radius = (-2 * self.uniform(width, 0).log()).sqrt()
        return radius * (2 * math.pi * self.uniform(width, 1)).cos()


def seed_of(generator: torch.Generator | None, bits: int, fixed: int = DEFAULT_SEED) -> int:
    """The fixed seed, or a seed of so many bits drawn from a generator."""
    check_generator(generator)
    if generator is None:
        return fixed
    return int(torch.randint(1 << bits, (1,), generator=generator, device=generator.device))


def generator_of(generator: torch.Generator | None) -> torch.Generator:
    """The generator that was given, or a new one with a fixed seed."""
    check_generator(generator)
    return torch.Generator().manual_seed(0) if generator is None else generator
