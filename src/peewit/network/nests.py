"""Nests of tensors, such as the inputs of a network: tuples, lists and mappings of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import torch.utils.checkpoint
from torch import Tensor
from torch.utils.data import Dataset

from ..messages.errors import ArgumentTypeError, PeewitError


class Array(Protocol):
    """What numpy can read: its arrays, and the columns and frames of pandas and polars."""

    def __array__(self) -> Any:
        """The numbers as an array of numpy's."""


Inputs: TypeAlias = Tensor | Array | tuple[Any, ...] | list[Any] | Mapping[str, Any]
"""Inputs of the network: a tensor, an array, a data frame or lists of numbers, with a leading axis of examples; or
tuples, lists and mappings of tensors or arrays, as the network takes them."""

InputData: TypeAlias = Inputs | Iterable[Any] | Dataset[Any]
"""Inputs to predict at: `Inputs`; or a DataLoader, a Dataset or another iterable of batches, with targets or
without."""

Targets: TypeAlias = Tensor | Array | list[Any]
"""Targets, one per example: a tensor, an array, a column of a data frame or a list of numbers."""

DataBatch: TypeAlias = Sequence[Any] | Mapping[str, Any]
"""Some examples: `(x, y)`, `((x1, x2), y)`, a mapping with "labels", or a `pw.Pair`."""

Data: TypeAlias = tuple[Inputs, Targets] | Iterable[DataBatch] | Dataset[Any]
"""Inputs with targets: a pair of `Inputs` and `Targets`; a DataLoader, a Dataset, or another iterable of
`DataBatch`."""


class Pair(NamedTuple):
    """Two inputs of a network that are compared: its output is that for the first less that for the second.

    Reward models are fitted to pairs, by `pw.fit(model, pairs, "preference")`. A batch of pairs is `pw.Pair(chosen,
    rejected)`, where the first input was preferred in every example, or `(pw.Pair(first, second), y)` with y (N,) one
    where it was, zero where it was not, and a number between for ties. A mapping with "input_ids_chosen",
    "input_ids_rejected" and so on is a pair too, and so is one with "chosen_input_ids" and "rejected_input_ids".

    Attributes:
        first: Inputs of the network, N of them: a tensor, or a tuple or mapping of tensors.
        second: Inputs of the same kind, N of them.

    Example:
        >>> reward = torch.nn.Linear(2, 1, bias=False)
        >>> la = pw.fit(reward, pw.Pair(x[:30], x[30:]), "preference")
        >>> la.predict(pw.Pair(x[:5], x[5:10])).probs.shape, la.predict(x[:5]).mean.shape
        (torch.Size([5, 1]), torch.Size([5, 1]))
    """

    first: Any
    second: Any


def map_tensors(function: Callable[[Tensor], Any], value: Any) -> Any:
    """Apply a function to every tensor in nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, Mapping):
        # Mappings of other libraries (tokenizer outputs) become plain ones: the network is called with keywords.
        return {key: map_tensors(function, each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(map_tensors(function, each) for each in value))
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(function, each) for each in value)
    return value


def tensors(value: Any) -> list[Tensor]:
    """All tensors in nested tuples, lists and mappings."""
    leaves: list[Tensor] = []
    map_tensors(leaves.append, value)
    return leaves


def count(inputs: Inputs) -> int:
    """N: the length of the leading axis, which all tensors must share."""
    sizes = {tensor.shape[0] if tensor.dim() else None for tensor in tensors(inputs)}
    if not sizes:
        raise ArgumentTypeError(
            f"A batch holds no tensor: got {type(inputs).__name__}; expected a tensor or a nest of tensors, with a "
            "leading axis of examples."
        )
    if len(sizes) > 1 or None in sizes:
        shapes = [tuple(tensor.shape) for tensor in tensors(inputs)]
        raise PeewitError(
            f"The tensors of a batch have shapes {shapes}; expected one leading axis of examples, equal for all."
        )
    return cast(int, sizes.pop())


def take(inputs: Inputs, examples: slice) -> Inputs:
    """A slice of the examples."""
    part: Inputs = map_tensors(lambda tensor: tensor[examples], inputs)
    return part


def have_same_form(first: Any, second: Any) -> bool:
    """Whether two nests of tensors have the same structure, dtypes and shapes beyond the examples."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return first.dtype == second.dtype and first.shape[1:] == second.shape[1:]
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return first.keys() == second.keys() and all(have_same_form(first[key], second[key]) for key in first)
    if isinstance(first, list | tuple) and isinstance(second, list | tuple):
        return len(first) == len(second) and all(map(have_same_form, first, second))
    return first is second  # something else in the batch: only the very same object is surely equal


def join(batches: list[Any]) -> Any:
    """Several nests of tensors as one, examples after examples."""
    first = batches[0]
    if len(batches) == 1:
        return first
    if isinstance(first, Tensor):
        return torch.cat(batches)
    if isinstance(first, Mapping):
        return {key: join([batch[key] for batch in batches]) for key in first}
    if isinstance(first, list | tuple):
        joined = [join(list(each)) for each in zip(*batches, strict=True)]
        return type(first)(*joined) if hasattr(first, "_fields") else type(first)(joined)
    return first
