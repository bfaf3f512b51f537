"""What modules keep beside weights and buffers, and how it is put back."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.utils.checkpoint
from torch import Tensor, nn


@dataclass(frozen=True)
class Attributes:
    """What a module holds beside weights, buffers and modules, as it was: a network may keep what it computed there.

    Attention biases that are made once in evaluation mode would be those of other weights in the next pass.
    """

    own: dict[str, Any]  # of the module itself
    values: dict[str, Any]
    contents: list[tuple[str, Any, Any]]  # lists and dictionaries, with copies of them

    @staticmethod
    def of(module: nn.Module) -> Attributes:
        """As they are now."""
        own = vars(module)
        values = {} if isinstance(module, torch.jit.ScriptModule) else {k: v for k, v in own.items() if k not in INSIDE}
        listed = [(name, each, each.copy()) for name, each in values.items() if type(each) in (list, dict)]
        return Attributes(own, values, listed)

    def restore(self) -> dict[str, tuple[Any, list[Tensor]]]:
        """Put the same objects back; those that were not there are taken away.

        Where something held tensors that it did not hold before, all that had changed is returned, as it was before:
        flags and lengths beside a tensor say that it was made. The tensors are returned with it.
        """
        own, values = self.own, self.values
        made: dict[str, tuple[Any, list[Tensor]]] = {}
        for name, value in values.items():
            if own.get(name, INSIDE) is not value:
                made[name] = value, holding(own.get(name))
                own[name] = value
        if values and len(own) > len(values) + len(INSIDE):
            for name in own.keys() - values.keys() - INSIDE:
                made[name] = INSIDE, holding(own.pop(name))
        for name, each, kept in self.contents:
            if len(each) != len(kept) or not all(map(operator.is_, entries(each), entries(kept))):
                made[name] = kept, holding(each)
                refill(each, kept)
        fresh = {name: each for name, each in made.items() if not holding(each[0])}
        return fresh if any(tensors for _, tensors in fresh.values()) else {}


INSIDE = frozenset(vars(nn.Module()))  # attributes of every module, which torch keeps
CLEAR = "Clear what the network keeps (some do by model.train() and model.eval()) and fit again."


# By module that kept tensors: attributes that a pass changed, as they were before. The network makes them again.
_MADE: weakref.WeakKeyDictionary[nn.Module, dict[str, Any]] = weakref.WeakKeyDictionary()


# And how often its weights were written to, with the tensors that the first pass at these kept; large ones are let go.
REMEMBERED = 1 << 20
_FIRST: weakref.WeakKeyDictionary[nn.Module, tuple[int, dict[str, list[Tensor]]]] = weakref.WeakKeyDictionary()


def entries(container: list[Any] | tuple[Any, ...] | dict[Any, Any]) -> Iterable[Any]:
    """The values of a list or of a dictionary."""
    return container.values() if isinstance(container, dict) else container


def refill(container: Any, contents: Any) -> None:
    """Give a list or a dictionary other contents."""
    container.clear()
    container.update(contents) if type(container) is dict else container.extend(contents)


def holding(value: Any) -> list[Tensor]:
    """The tensors that an attribute holds."""
    values = entries(value) if isinstance(value, list | tuple | dict) else [value]
    return [each for each in values if isinstance(each, Tensor)]


def kept_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Tensors that modules hold beside weights and buffers, by module and attribute."""
    for prefix, module in model.named_modules():
        for name, value in vars(module).items():
            if name not in INSIDE:
                yield from ((f"{prefix}.{name}".lstrip("."), each) for each in holding(value))


def remembered(tensors: list[Tensor]) -> list[Tensor]:
    """Copies of small tensors; none of what a transform made, which nobody can read after it."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor
    return [each.detach().clone() for each in tensors if not wrapped(each) and each.numel() <= REMEMBERED]


def changes(module: nn.Module) -> int:
    """How often weights were written to."""
    return sum(parameter._version for parameter in module.parameters())


def forget_made(modules: list[nn.Module], known: dict[nn.Module, dict[str, Any]]) -> None:
    """What passes kept is as it was known before."""
    for module in modules:
        _MADE.pop(module, None)
        if module in known:
            _MADE[module] = known[module]
        else:
            _FIRST.pop(module, None)


def set_by_user(module: nn.Module) -> bool:
    """Whether all tensors in place of those that a pass kept are others of the same shapes: no pass made them.

    Where weights have changed since, a pass may have.
    """
    number, every = _FIRST.get(module, (-1, {}))
    pairs = []
    for name, first in every.items() if number == changes(module) else ():
        now = holding(vars(module).get(name))
        pairs += [(a, b) for a, b in zip(first, now, strict=False) if a.shape == b.shape and a.dtype == b.dtype]
    return bool(pairs) and not any(torch.equal(first, now.detach().to(first.device)) for first, now in pairs)


def hide_made(module: nn.Module) -> Attributes:
    """Take away what an earlier pass kept, and made of other weights perhaps; what to restore is returned."""
    kept = Attributes.of(module)
    made = _MADE[module]
    held = any(holding(kept.own.get(name)) for name in made)
    try:
        for name, before in made.items() if held and not set_by_user(module) else ():
            now = kept.own.get(name)
            if before is INSIDE:
                kept.own.pop(name, None)
            elif type(now) is type(before) and type(now) in (list, dict):
                refill(now, before)
            else:
                kept.own[name] = before
    except BaseException:
        kept.restore()
        raise
    return kept


@contextmanager
def _hidden(modules: list[nn.Module]) -> Iterator[None]:
    """Without what earlier passes kept; it is there again afterwards, also where hiding it fails half-way."""
    hidden: list[Attributes] = []
    try:
        for module in modules:
            if module in _MADE:
                hidden.append(hide_made(module))
        yield
    finally:
        for attributes in reversed(hidden):  # what several modules share was whole for the first of them alone
            attributes.restore()
