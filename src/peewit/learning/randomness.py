"""Every source of random numbers that training may draw from: read, set back, and seeded for a while."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

DEVICES = ("cuda", "xpu")  # whose generators are torch's own, beside the one of the CPU


def generators_in(data: Any) -> list[torch.Generator]:
    """Generators of a loader and its samplers, each once."""
    owners = [data, getattr(data, "sampler", None), getattr(data, "batch_sampler", None)]
    owners.append(getattr(owners[-1], "sampler", None))
    found = [getattr(owner, "generator", None) for owner in owners]
    return [*{id(each): each for each in found if isinstance(each, torch.Generator)}.values()]


def random_state(*data: Any) -> dict[str, Any]:
    """The state of every source: torch, its devices, Python, numpy where it is loaded, and those of loaders."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "python": list(random.getstate())}
    for device in DEVICES:
        module = getattr(torch, device, None)
        if module is not None and module.is_available() and module.is_initialized():
            state[device] = module.get_rng_state_all()
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        state["numpy"] = [name, torch.from_numpy(keys.astype("int64")), *rest]
    state["loaders"] = [generator.get_state() for each in data for generator in generators_in(each)]
    return state


def set_random_state(state: dict[str, Any], *data: Any) -> None:
    """Set all sources back."""
    torch.set_rng_state(state["torch"])
    version, internal, following = state["python"]
    random.setstate((version, tuple(internal), following))
    for device in DEVICES:
        if device in state:
            getattr(torch, device).set_rng_state_all(state[device])
    if "numpy" in state:
        import numpy

        name, keys, *rest = state["numpy"]
        numpy.random.set_state((name, keys.numpy().astype("uint32"), *rest))
    generators = [generator for each in data for generator in generators_in(each)]
    for generator, saved in zip(generators, state["loaders"], strict=True):
        generator.set_state(saved)


@contextmanager
def preserved_randomness(*data: Any) -> Iterator[None]:
    """Whatever is drawn inside, training goes on as if it had not been; also after an exception."""
    state = random_state(*data)
    try:
        yield
    finally:
        set_random_state(state, *data)


def seed_all(seed: int, *data: Any) -> None:
    """Begin every source anew."""
    torch.manual_seed(seed)
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % (1 << 32))
    for generator in (generator for each in data for generator in generators_in(each)):
        generator.manual_seed(seed)
