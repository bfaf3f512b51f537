"""Buffers and other attributes of modules, as they were before a forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch.utils.checkpoint
from torch import Tensor, nn

from .kept import Attributes, copy_records, record_kept, restore_records
from .modules import every_module

_HELD: dict[int, list[Buffers]] = {}  # by network: its buffers while it is isolated


@dataclass
class BufferCopy:
    """A buffer, its version, and a copy of its values."""

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
    copies: list[BufferCopy]
    attributes: Attributes

    @staticmethod
    def of(module: nn.Module) -> Buffers:
        """The buffers as they are now."""
        values = dict(module._buffers)
        copies = [
            BufferCopy(buffer, buffer._version, buffer.detach().clone())
            for buffer in values.values()
            if buffer is not None
        ]
        return Buffers(module, values, copies, Attributes.of(module))

    def restore(self) -> None:
        """Put the same objects back, with their values; buffers that were not there are taken away."""
        current = self.module._buffers
        for name in current.keys() - self.values.keys():
            del current[name]
            self.module._non_persistent_buffers_set.discard(name)
        for name, value in self.values.items():
            if name not in current or current[name] is not value:  # replaced by another tensor instead of changed
                current[name] = value
        for copied in self.copies:
            copied.restore()
        record_kept(self.module, self.attributes.restore())


@contextmanager
def held_buffers(model: nn.Module) -> Iterator[None]:
    """Note buffers and attributes as they are, and put them back afterwards."""
    modules = every_module(model)
    outer, records = _HELD.get(id(model)), copy_records(modules)
    buffers = [Buffers.of(module) for module in modules]
    failed = True
    try:
        _HELD[id(model)] = buffers
        yield
        failed = False
    finally:
        restore_buffers(model)
        if failed:  # what a refused network kept may be right after another pass of the user's
            restore_records(modules, records)
        if outer is None:
            del _HELD[id(model)]
        else:
            _HELD[id(model)] = outer


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
            copies = iter([copied.value.clone() for copied in buffers.copies])
            for name, value in buffers.values.items():
                if value is not None:
                    buffers.module._buffers[name] = next(copies)
        yield
    finally:
        restore_buffers(model)
