"""Buffers as they were before a forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch.utils.checkpoint
from torch import Tensor, nn

from .kept import _FIRST, _MADE, Attributes, changes, remembered

_HELD: dict[int, list[Buffers]] = {}  # by network: its buffers while it is held in evaluation mode


@dataclass
class Held:
    """A buffer as it was: the object, its version, and a copy of its values."""

    buffer: Tensor
    version: int
    value: Tensor

    def restore(self) -> None:
        """Put the values back."""
        if self.buffer._version != self.version:
            self.buffer.copy_(self.value)
            self.version = self.buffer._version


@dataclass(frozen=True)
class Buffers:
    """The buffers of a module as they were; some may have been empty, and filled by a forward pass."""

    module: nn.Module
    values: dict[str, Tensor | None]
    held: list[Held]
    others: Attributes

    @staticmethod
    def of(module: nn.Module) -> Buffers:
        """As they are now."""
        values = dict(module._buffers)
        held = [Held(each, each._version, each.detach().clone()) for each in values.values() if each is not None]
        return Buffers(module, values, held, Attributes.of(module))

    def restore(self) -> None:
        """Put the same objects back, with their values; buffers that were not there are taken away."""
        own = self.module._buffers
        for name in own.keys() - self.values.keys():
            del own[name]
            self.module._non_persistent_buffers_set.discard(name)
        for name, value in self.values.items():
            if name not in own or own[name] is not value:  # a network may replace its buffers instead of changing them
                own[name] = value
        for each in self.held:
            each.restore()
        made = self.others.restore()
        if made:
            _MADE.setdefault(self.module, {}).update({name: before for name, (before, _) in made.items()})
            if self.module not in _FIRST or _FIRST[self.module][0] != changes(self.module):
                kept_first = {name: remembered(kept) for name, (_, kept) in made.items()}
                _FIRST[self.module] = changes(self.module), kept_first


def restore_buffers(model: nn.Module) -> None:
    """Put back what a forward pass changed, so that the next one starts from the same network."""
    with torch.no_grad():
        for buffers in _HELD.get(id(model), ()):
            buffers.restore()


@contextmanager
def copied_buffers(model: nn.Module) -> Iterator[None]:
    """Let a forward pass change copies of the buffers: graphs that hold them stay valid when buffers are put back."""
    try:
        for buffers in _HELD.get(id(model), ()):
            copies = iter([each.value.clone() for each in buffers.held])
            for name, each in buffers.values.items():
                if each is not None:
                    buffers.module._buffers[name] = next(copies)
        yield
    finally:
        restore_buffers(model)
