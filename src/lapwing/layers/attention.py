"""`F.multi_head_attention_forward` hides its projections from the recording; its body is run in the open instead."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch.nn.functional as F

from .base import Handler


def _open_body(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function without its first question, whether someone wants to take the whole call over.

    We do, and then want to see the projections inside: the packed weight, whole or in slices, and the output's.
    """
    assert isinstance(function, types.FunctionType)
    seen = {**function.__globals__, "has_torch_function": lambda *_: False}
    made = types.FunctionType(function.__code__, seen, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


_ATTENTION = _open_body(F.multi_head_attention_forward)


def attention(recorder: Any, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the body under the recording."""
    with recorder:
        return _ATTENTION(*args, **kwargs)


HANDLERS: dict[Any, Handler] = {F.multi_head_attention_forward: attention}
