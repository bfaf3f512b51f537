"""Repairs of torch that are in place while a network runs: where it computes other than what training computed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..runtime.threads import LOCK


@contextmanager
def plain_checkpoints() -> Iterator[list[Any]]:
    """Run checkpointed blocks without checkpoints: a backward pass would run them again, outside the recording.

    The list that it yields fills with those that ran.
    """
    module, blocks = torch.utils.checkpoint, list[Any]()
    with LOCK:

        class PlainCheckpoint:
            """Replaces re-entrant checkpointing, which autograd cannot differentiate in part."""

            @staticmethod
            def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
                blocks.append(function)
                return function(*args)

        def plain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[None]:
            blocks.append(function)
            yield

        stand_ins = {"CheckpointFunction": PlainCheckpoint, "_checkpoint_without_reentrant_generator": plain}
        originals = {name: getattr(module, name) for name in stand_ins}
        try:
            for name, stand_in in stand_ins.items():
                setattr(module, name, stand_in)
            yield blocks
        finally:
            for name, original in originals.items():
                setattr(module, name, original)


class _AnyTensor(type):
    """A class whose instances are all tensors."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, Tensor)


class _Parameter(metaclass=_AnyTensor):
    """Replaces `nn.Parameter` in lists of parameters, whose slices would wrap tensors anew without their graph."""


@contextmanager
def plain_lists() -> Iterator[None]:
    """Let slices of lists of parameters hold the very tensors that replace weights."""
    module: Any = torch.nn.modules.container
    with LOCK:
        original = module.Parameter
        try:
            module.Parameter = _Parameter
            yield
        finally:
            module.Parameter = original


@contextmanager
def plain_attention() -> Iterator[None]:
    """Without the fused encoder, which runs only without gradients, and then sets padded positions to zero."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)


BROKEN = (F.group_norm, F.instance_norm, torch.group_norm, torch.instance_norm, torch.native_group_norm)


class DenseNorms(TorchFunctionMode):
    """Networks run under this on a CPU, where torch's backward pass of group and instance norms may fail.

    The group norm's crashes for inputs in channels_last that need no gradient; the instance norm's misreads gradients
    in channels_last of a single example.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Make inputs and gradients of norms contiguous."""
        kwargs = kwargs or {}
        if func not in BROKEN:
            return func(*args, **kwargs)
        # The input alone: a weight has to stay the tensor that the recording knows.
        args = (*(each.contiguous() for each in args[:1]), *args[1:])
        result = func(*args, **{name: each.contiguous() if name == "input" else each for name, each in kwargs.items()})
        output, *others = result if isinstance(result, tuple) else (result,)
        output = output.reshape(-1).view(output.shape)  # gradients of a view are in its order
        return (output, *others) if isinstance(result, tuple) else output


def shrink_rows(weight: Tensor, limit: float, norm: float) -> Tensor:
    """Scale long rows of a table down to the norm `limit`, as torch's `max_norm` does to the user's own, in place."""
    norms = torch.linalg.vector_norm(weight.detach(), norm, dim=1, keepdim=True)
    factor = torch.where(norms > limit, limit / (norms + 1e-7), torch.ones_like(norms))
    return weight + (weight * (factor - 1)).detach()  # torch's is in place: its derivative has no such factor


SIGNATURES = {function: inspect.signature(function) for function in (F.embedding, F.embedding_bag)}


def look_up(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call `F.embedding` or `F.embedding_bag` without its changes to the weight, and to its gradient."""
    values = SIGNATURES[func].bind(*args, **kwargs).arguments
    values.pop("scale_grad_by_freq", None)  # a step size per row, not a derivative
    if values.get("max_norm") is not None:
        values["weight"] = shrink_rows(values["weight"], values.pop("max_norm"), values.pop("norm_type", 2.0))
    return func(**values)


class UnchangedTables(TorchFunctionMode):
    """Networks with `max_norm` or `scale_grad_by_freq` run under this: tables stay, and have plain gradients."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Look up without changes."""
        if func in SIGNATURES:
            return look_up(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


class ConstantPadding(TorchFunctionMode):
    """Forward mode runs under this: as in a backward pass, the vector of a padding token has no derivative."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Detach what is looked up for the padding token."""
        output = func(*args, **(kwargs or {}))
        if func is not F.embedding:
            return output
        values = SIGNATURES[func].bind(*args, **(kwargs or {})).arguments
        padding = values.get("padding_idx")
        if padding is None:
            return output
        padded = values["input"] == padding % values["weight"].shape[0]
        return torch.where(padded.unsqueeze(-1), output.detach(), output)
