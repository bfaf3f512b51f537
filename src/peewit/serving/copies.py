"""Copies of a network that share its weights: each is used by one thread at a time, and the user's is left alone."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from ..network.calling import run_plainly
from ..network.isolation import isolated, outside_caller_modes
from ..network.kept import Attributes, kept_tensors
from ..network.modules import every_module, parameters_and_buffers
from ..network.nests import Inputs, Pair, map_tensors
from ..network.workarounds import plain_checkpoints

Item = TypeVar("Item")


class Pool(Generic[Item]):
    """Items that are made when all others are in use, so that nobody waits."""

    def __init__(self, make: Callable[[], Item]) -> None:
        self.make = make
        self.idle: deque[Item] = deque()  # its ends may be used by several threads

    @contextmanager
    def borrow(self) -> Iterator[Item]:
        """An item for the caller alone."""
        try:
            item = self.idle.pop()
        except IndexError:
            item = self.make()
        try:
            yield item
        finally:
            self.idle.append(item)


def copy_sharing_weights(model: nn.Module, selected: set[str]) -> nn.Module | None:
    """The same network with modules of its own, in evaluation mode; gradients for the selected weights alone.

    All tensors share their memory with the user's. None where modules cannot be copied.
    """
    if any(
        isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod") for module in every_module(model)
    ):
        return None  # scripted and compiled modules hold on to their own weights
    shared: dict[int, Tensor] = {id(tensor): tensor.detach() for _, tensor in kept_tensors(model)}
    shared.update((id(tensor), tensor.detach()) for tensor in parameters_and_buffers(model))
    for name, parameter in model.named_parameters():
        if type(parameter) is not nn.Parameter:
            return None
        shared[id(parameter)] = nn.Parameter(parameter.detach(), requires_grad=name in selected)
    try:
        copied = copy.deepcopy(model, dict(shared))
    except Exception:  # locks, files, generators and what else modules may hold
        return None
    for module in every_module(copied):
        module.__dict__["training"] = False
    pairs = zip(parameters_and_buffers(model), parameters_and_buffers(copied), strict=True)
    return copied if all(one.data_ptr() == other.data_ptr() for one, other in pairs) else None


def leaves_no_trace(model: nn.Module, inputs: Inputs) -> bool:
    """Whether a pass changes neither buffers and attributes of modules nor the state of random numbers.

    Checkpointed blocks count as a trace: they run only under repairs of torch that are the whole process's.
    """
    with outside_caller_modes(), isolated(model, []), plain_checkpoints() as checkpoints, torch.no_grad():
        modules, tensors = every_module(model), parameters_and_buffers(model)
        before = [Attributes.of(module) for module in modules]
        writes = [tensor._version for tensor in tensors]
        random = _random_states(tensors[0].device)
        for each in inputs if isinstance(inputs, Pair) else (inputs,):
            run_plainly(model, map_tensors(torch.clone, each))
        same = all(attributes.unchanged for attributes in before)
        same = same and list(map(id, parameters_and_buffers(model))) == list(map(id, tensors))
        same = same and [tensor._version for tensor in tensors] == writes
        states = zip(random, _random_states(tensors[0].device), strict=True)
        return same and not checkpoints and all(torch.equal(one, other) for one, other in states)


def _random_states(device: torch.device) -> list[Tensor]:
    cuda = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [torch.get_rng_state(), *cuda]
