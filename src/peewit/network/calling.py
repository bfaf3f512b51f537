"""Calls of the network: with inputs of any form, and with other weights in place of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch.utils.checkpoint
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from ..messages.errors import ArgumentTypeError
from .nests import Inputs, Pair, map_tensors, tensors
from .workarounds import DenseNorms


def run(network: Callable[..., Any], inputs: Inputs) -> Any:
    """Call a network: mappings become keyword arguments, tuples and lists positional ones; pairs are two calls.

    It gets a copy of the inputs: some networks write into theirs, and these are the user's data.
    """
    if isinstance(inputs, Pair):
        first, second = (output_in(run(network, each)) for each in inputs)
        return first - second
    inputs = map_tensors(torch.clone, inputs)
    with nullcontext() if any(each.is_cuda for each in tensors(inputs)) else DenseNorms():
        return run_plainly(network, inputs)


def run_plainly(network: Callable[..., Any], inputs: Inputs) -> Any:
    """Call a network that may write into these inputs, and whose norms need no derivative."""
    if isinstance(inputs, Mapping):
        return network(**inputs)
    if isinstance(inputs, list | tuple):
        return network(*inputs)
    return network(inputs)


def call(network: Callable[..., Any], inputs: Inputs) -> Tensor:
    """Call a network, and find its output: the tensor it returns, or the `logits` in it."""
    return output_in(run(network, inputs))


def output_in(result: Any) -> Tensor:
    """The output in what a network returned."""
    if isinstance(result, Tensor):
        return result
    output = result.get("logits") if isinstance(result, Mapping) else getattr(result, "logits", None)
    if output is None and isinstance(result, list | tuple) and len(result) == 1:
        output = result[0]
    if not isinstance(output, Tensor):
        what = f" with keys {[*result]}" if isinstance(result, Mapping) else ""
        what = f" of {len(result)}" if isinstance(result, list | tuple) else what
        raise ArgumentTypeError(
            f"The network returned {type(result).__name__}{what}; expected a tensor, or something with `logits`. "
            "Wrap it in a module that returns the tensor the likelihood is defined on."
        )
    return output


def with_weights(model: nn.Module, weights: dict[str, Tensor], direct: set[str] | None = None) -> Callable[..., Any]:
    """The network with other weights in place of its own, to be given to `call`.

    It also takes them where it reaches its weights through references that it saved, such as a list. `direct` holds
    names of weights that no earlier pass reached so; each pass adds to them.
    """
    replaced = at_every_place(model, weights)
    identities = {name: id(tensor_at(model, name)) for name in weights}

    def forward(*args: Any, **kwargs: Any) -> Any:
        if direct is not None and direct.issuperset(weights):
            return functional_call(model, replaced, args, kwargs, tie_weights=False)
        with Replacement({identities[name]: weight for name, weight in weights.items()}) as replacement:
            result = functional_call(model, replaced, args, kwargs, tie_weights=False)
        if direct is not None:
            direct.update(name for name in weights if identities[name] not in replacement.used)
        return result

    return forward


class Replacement(TorchFunctionMode):
    """Puts other tensors in place of parameters wherever a torch function is given one."""

    def __init__(self, tensors: dict[int, Tensor]) -> None:
        super().__init__()
        self.tensors = tensors  # by the identity of the parameter
        self.used: set[int] = set()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function with the other tensors."""
        return func(*self._replace(args), **self._replace(kwargs or {}))

    def _replace(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in self.tensors:
                return value
            self.used.add(id(value))
            return self.tensors[id(value)]
        if type(value) in (tuple, list):
            return type(value)(self._replace(each) for each in value)
        if type(value) is dict:
            return {key: self._replace(each) for key, each in value.items()}
        return value


def tensor_at(model: nn.Module, name: str) -> Any:
    """The parameter or buffer with a name."""
    prefix, _, last = name.rpartition(".")
    return getattr(model.get_submodule(prefix), last)


def at_every_place(model: nn.Module, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights and buffers under the name of every place that holds them, each place once.

    Torch ties them by names. A module with two names is then changed twice, and put back in the wrong order: the
    network would be left with the given tensors in place of its parameters.
    """
    by_identity = {id(tensor_at(model, name)): weight for name, weight in weights.items()}
    return {
        f"{prefix}.{name}" if prefix else name: by_identity[id(tensor)]
        for prefix, module in model.named_modules()
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if id(tensor) in by_identity
    }
