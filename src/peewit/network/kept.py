"""Tensors that modules keep beside weights and buffers: how they are found, hidden and put back.

A network may keep what it computed, such as attention biases that it makes once in evaluation mode. In the next pass
these would be those of other weights.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.utils.checkpoint
from torch import Tensor, nn

INSIDE = frozenset(vars(nn.Module()))  # attributes of every module, which torch keeps
CLEAR = "Clear what the network keeps (some do by model.train() and model.eval()) and fit again."
REMEMBERED = 1 << 20  # numbers: larger tensors are not copied to be compared later

Record = dict[str, Any]  # attributes that a pass changed, with their values before it (INSIDE: there was none)

# By module that keeps tensors: what a pass changed. The network makes it again.
_RECORDS: weakref.WeakKeyDictionary[nn.Module, Record] = weakref.WeakKeyDictionary()
# How often its weights had been written to, with the tensors that the first pass at these weights kept.
_FIRST: weakref.WeakKeyDictionary[nn.Module, tuple[int, dict[str, list[Tensor]]]] = weakref.WeakKeyDictionary()


@dataclass(frozen=True)
class Attributes:
    """What a module held beside weights, buffers and modules."""

    current: dict[str, Any]  # the module's own dictionary
    values: dict[str, Any]
    contents: list[tuple[str, Any, Any]]  # lists and dictionaries, with copies of them
    whole: dict[str, Any]  # a copy of the module's own dictionary

    @staticmethod
    def of(module: nn.Module) -> Attributes:
        """The attributes as they are now."""
        current = vars(module)
        scripted = isinstance(module, torch.jit.ScriptModule)
        values = {} if scripted else {name: value for name, value in current.items() if name not in INSIDE}
        contents = [(name, value, value.copy()) for name, value in values.items() if type(value) in (list, dict)]
        return Attributes(current, values, contents, {} if scripted else current.copy())

    @property
    def unchanged(self) -> bool:
        """Whether the module still holds the same objects, in lists and dictionaries too."""
        current, whole = self.current, self.whole
        return (
            len(current) == len(whole)
            and all(map(operator.is_, current.values(), whole.values()))
            and all(has_same_entries(container, copied) for _, container, copied in self.contents)
        )

    def restore(self) -> dict[str, tuple[Any, list[Tensor]]]:
        """Put the same objects back; those that were not there are taken away.

        Where something held tensors that it did not hold before, all changes are returned, each as it was before and
        with the tensors it held: flags and lengths beside a tensor say that it was made.
        """
        if self.unchanged:
            return {}  # as nearly always, and found out quickly
        current, values = self.current, self.values
        changed: dict[str, tuple[Any, list[Tensor]]] = {}
        for name, value in values.items():
            if current.get(name, INSIDE) is not value:
                changed[name] = value, tensors_in(current.get(name))
                current[name] = value
        if values and len(current) > len(values) + len(INSIDE):
            for name in current.keys() - values.keys() - INSIDE:
                changed[name] = INSIDE, tensors_in(current.pop(name))
        for name, container, copied in self.contents:
            if not has_same_entries(container, copied):
                changed[name] = copied, tensors_in(container)
                refill(container, copied)
        fresh = {name: change for name, change in changed.items() if not tensors_in(change[0])}
        return fresh if any(tensors for _, tensors in fresh.values()) else {}


def entries(container: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> Iterable[Any]:
    """The values of a list or of a dictionary."""
    return container.values() if isinstance(container, dict) else container


def has_same_entries(container: Any, copied: Any) -> bool:
    """Whether a list or dictionary holds the very objects that a copy of it holds."""
    return len(container) == len(copied) and all(map(operator.is_, entries(container), entries(copied)))


def refill(container: Any, contents: Any) -> None:
    """Give a list or a dictionary other contents."""
    container.clear()
    container.update(contents) if type(container) is dict else container.extend(contents)


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors that an attribute holds."""
    values = entries(value) if isinstance(value, list | tuple | dict) else [value]
    return [each for each in values if isinstance(each, Tensor)]


def kept_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Tensors that modules hold beside weights and buffers, by module and attribute."""
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in INSIDE:
                yield from ((f"{prefix}.{name}".lstrip("."), tensor) for tensor in tensors_in(value))


def copy_small(tensors: list[Tensor]) -> list[Tensor]:
    """Copies of small tensors; none of what a transform made, which nobody can read after it."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return [tensor.detach().clone() for tensor in tensors if not wrapped(tensor) and tensor.numel() <= REMEMBERED]


def count_writes(module: nn.Module) -> int:
    """How often weights were written to."""
    return sum(parameter._version for parameter in module.parameters())


def record_kept(module: nn.Module, changes: dict[str, tuple[Any, list[Tensor]]]) -> None:
    """Remember what a pass changed, as `Attributes.restore` returns it."""
    if not changes:
        return
    _RECORDS.setdefault(module, {}).update({name: before for name, (before, _) in changes.items()})
    if module not in _FIRST or _FIRST[module][0] != count_writes(module):
        _FIRST[module] = count_writes(module), {name: copy_small(tensors) for name, (_, tensors) in changes.items()}


def copy_records(modules: list[nn.Module]) -> dict[nn.Module, Record]:
    """What passes up to now changed in these modules."""
    return {module: _RECORDS[module].copy() for module in modules if module in _RECORDS}


def restore_records(modules: list[nn.Module], records: dict[nn.Module, Record]) -> None:
    """Forget what passes changed since `copy_records`."""
    for module in modules:
        _RECORDS.pop(module, None)
        if module in records:
            _RECORDS[module] = records[module]
        else:
            _FIRST.pop(module, None)


def is_set_by_user(module: nn.Module) -> bool:
    """Whether all tensors in place of those that a pass kept are others of the same shapes: no pass made them.

    Where weights have changed since, a pass may have.
    """
    writes, first_kept = _FIRST.get(module, (-1, {}))
    pairs = []
    for name, first in first_kept.items() if writes == count_writes(module) else ():
        now = tensors_in(vars(module).get(name))
        pairs += [(a, b) for a, b in zip(first, now, strict=False) if a.shape == b.shape and a.dtype == b.dtype]
    return bool(pairs) and not any(torch.equal(first, now.detach().to(first.device)) for first, now in pairs)


def hide_kept(module: nn.Module) -> Attributes:
    """Take away what an earlier pass kept, perhaps at other weights; return what to restore."""
    attributes = Attributes.of(module)
    record = _RECORDS[module]
    held = any(tensors_in(attributes.current.get(name)) for name in record)
    try:
        for name, before in record.items() if held and not is_set_by_user(module) else ():
            current = attributes.current.get(name)
            if before is INSIDE:
                attributes.current.pop(name, None)
            elif type(current) is type(before) and type(current) in (list, dict):
                refill(current, before)
            else:
                attributes.current[name] = before
    except BaseException:
        attributes.restore()
        raise
    return attributes


@contextmanager
def without_kept(modules: list[nn.Module]) -> Iterator[None]:
    """Hide what earlier passes kept, and put it back afterwards, also where hiding fails half-way."""
    hidden: list[Attributes] = []
    try:
        for module in modules:
            if module in _RECORDS:
                hidden.append(hide_kept(module))
        yield
    finally:
        for attributes in reversed(hidden):  # what several modules share was whole for the first of them alone
            attributes.restore()
