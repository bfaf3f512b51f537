"""What is said about arguments that cannot be used: what was given, what was expected, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .errors import ArgumentTypeError, PeewitError

FORMS = "expected (inputs, targets) as a tuple of tensors, arrays or frames, a DataLoader, or an iterable of batches"


def is_array(value: Any) -> bool:
    """Whether something holds numbers as numpy does: arrays, data frames, columns."""
    return hasattr(value, "__array__") and not isinstance(value, Tensor) and bool(getattr(value, "shape", ()))


def only_numbers(value: Any) -> bool:
    """Whether lists in lists end in a plain number."""
    while isinstance(value, list | tuple) and value:
        value = value[0]
    return isinstance(value, int | float)


def describe_value(value: Any) -> str:
    """What something is, in a few words."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and {value.dtype}"
    if isinstance(value, Mapping):
        return f"a mapping of {{{', '.join(f'{key!r}: {describe_value(each)}' for key, each in value.items())}}}"
    if isinstance(value, list | tuple) and 0 < len(value) <= 4:
        return f"a {type(value).__name__} of ({', '.join(map(describe_value, value))})"
    return f"a {type(value).__name__}"


def refuse_inputs(x: Any) -> None:
    """Refuse inputs without tensors."""
    if not isinstance(x, Tensor | Mapping | list | tuple) or only_numbers(x):
        raise ArgumentTypeError(
            f"x is a {type(x).__name__}; expected a tensor, an array or a frame with a leading axis of examples, a "
            "tuple or mapping of tensors, as the network takes them, or a DataLoader."
        )


def one_input(x: Any, named: Mapping[str, Any], call: str = "la.predict") -> Any:
    """The inputs, which were given as one argument or each by its name."""
    if x is not None and named:
        raise ArgumentTypeError(
            f"{call} was given x and also {', '.join(named)}; expected {call}(x), or {call}(**batch) with all inputs "
            "by name."
        )
    if x is None and not named:
        raise ArgumentTypeError(
            "x is a NoneType, and there are no inputs by name; expected a tensor or what else the network takes, as "
            f"in {call}(x), or all inputs by name, as in {call}(**batch)."
        )
    if isinstance(x, list | tuple | Mapping) and not x:
        raise PeewitError(
            f"x is an empty {type(x).__name__}; expected inputs of the network, with a leading axis of examples."
        )
    return named if x is None else x


def refuse_data(data: Any) -> None:
    """Data that is neither a pair of tensors nor an iterable of batches."""
    if isinstance(data, Mapping):
        raise ArgumentTypeError(
            f"data is one mapping with keys {sorted(map(str, data))}; {FORMS}. A single batch goes in as [data]."
        )
    if isinstance(data, str | bytes):
        raise ArgumentTypeError(f"data is the text {data!r}; {FORMS}.")
    if is_array(data):
        shape = tuple(getattr(data, "shape", ()))
        raise ArgumentTypeError(
            f"data is one {type(data).__name__} of shape {shape}; {FORMS}. Inputs and targets go in as (x, y)."
        )
    if isinstance(data, list | tuple) and data:
        if isinstance(data[0], Tensor) or is_array(data[0]):
            raise ArgumentTypeError(
                f"data is a {type(data).__name__} of {len(data)}, first a {type(data[0]).__name__}; {FORMS}. "
                "Inputs and targets go in as (x, y), several inputs as ((x1, x2), y)."
            )
        if only_numbers(data[0]) and not isinstance(data[0], tuple):
            raise ArgumentTypeError(f"data is made of lists of numbers; {FORMS}. Inputs and targets go in as (x, y).")


def is_count(number: Any) -> bool:
    """Whether something is a positive whole number."""
    return isinstance(number, int) and not isinstance(number, bool) and number >= 1


def check_samples(samples: Any) -> int:
    """A positive whole number of draws."""
    if not is_count(samples):
        raise PeewitError(f"samples={samples!r} was given; expected a positive whole number.")
    return int(samples)


def check_generator(generator: Any) -> None:
    """Random numbers come from torch's generators."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise ArgumentTypeError(
            f"generator is a {type(generator).__name__}; expected a torch.Generator, such as "
            "torch.Generator().manual_seed(0), or None."
        )
