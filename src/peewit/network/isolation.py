"""The network held in evaluation mode and handed back as it was, outside of the modes of the caller."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ParamSpec, TypeVar

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from ..messages.names import spelled
from ..runtime.threads import LOCK
from .buffers import _HELD, Buffers, restore_buffers
from .kept import _MADE, _hidden, forget_made
from .workarounds import _plain_attention, _plain_lists, _without_checkpoints


@contextmanager
def evaluation(model: nn.Module, selected: Iterable[Tensor] | None = None) -> Iterator[None]:
    """Evaluation mode, gradients for the selected weights alone, and everything as it was afterwards.

    What is restored, also after an exception: mode of every module, `requires_grad`, buffers, hooks on the gradients of
    parameters, which are left out meanwhile, and the random generators. Parameters and `.grad` are never written to.
    """
    with ExitStack() as stack:
        stack.enter_context(LOCK)  # another thread may hold this very network in evaluation mode
        stack.enter_context(_hidden(list(model.modules())))  # before buffers and attributes are noted as they are
        stack.enter_context(_held(model, selected))
        yield


def _own(module: nn.Module, name: str) -> Any:
    """A plain attribute, or None, without torch's slow search among parameters and modules."""
    return vars(module).get(name, getattr(type(module), name, None))


@contextmanager
def _held(model: nn.Module, selected: Iterable[Tensor] | None) -> Iterator[None]:
    modes = [(module, module.training) for module in model.modules()]
    parameters = list(model.parameters())
    hooked = [(parameter, parameter._backward_hooks) for parameter in parameters if parameter._backward_hooks]
    flags = [parameter.requires_grad for parameter in parameters]
    outer = _HELD.get(id(model))
    known = {module: _MADE[module].copy() for module, _ in modes if module in _MADE}
    failed = True
    held = [Buffers.of(module) for module, _ in modes]
    with _torch_state([module for module, _ in modes], parameters):
        try:
            _HELD[id(model)] = held
            for parameter, _ in hooked:
                parameter._backward_hooks = None  # they change steps of training, not the function
            for module, _ in modes:
                module.__dict__["training"] = False  # past torch's own, slow, way to set an attribute
            if selected is not None:
                chosen = {id(tensor) for tensor in selected}
                _set_gradients(parameters, [id(parameter) in chosen for parameter in parameters])
            yield
            failed = False
        finally:
            for module, mode in modes:
                module.__dict__["training"] = mode
            _set_gradients(parameters, flags)
            for parameter, hooks in hooked:
                parameter._backward_hooks = hooks
            restore_buffers(model)
            if failed:  # what a refused network kept may be right after another pass of the user's
                forget_made([module for module, _ in modes], known)
            if outer is None:
                del _HELD[id(model)]
            else:
                _HELD[id(model)] = outer


def _set_gradients(parameters: Iterable[nn.Parameter], flags: Iterable[bool]) -> None:
    for parameter, flag in zip(parameters, flags, strict=True):
        if parameter.requires_grad != flag:
            parameter.requires_grad_(flag)


@contextmanager
def _torch_state(modules: list[nn.Module], parameters: list[nn.Parameter]) -> Iterator[None]:
    """Torch's own modes, as the derivatives of these modules need them."""
    devices = [parameter.device for parameter in parameters[:1] if parameter.device.type == "cuda"]
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.random.fork_rng(devices=devices))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_without_checkpoints())
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(_plain_attention())
        if any(_own(module, "max_norm") is not None or _own(module, "scale_grad_by_freq") for module in modules):
            from .workarounds import KeptTables  # which needs this file

            stack.enter_context(KeptTables())
        if any(isinstance(module, nn.ParameterList | nn.ParameterDict) for module in modules):
            stack.enter_context(_plain_lists())
        if any(isinstance(module, nn.RNNBase) for module in modules) and devices:
            # cuDNN refuses a backward pass through a recurrent network in evaluation mode.
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        yield


Answer = TypeVar("Answer")
Arguments = ParamSpec("Arguments")


@contextmanager
def plain_mode() -> Iterator[None]:
    """Outside of inference mode and autocast."""
    with (
        torch.inference_mode(False),
        torch.autocast("cpu", enabled=False),
        torch.autocast("cuda", enabled=False),
    ):
        yield


def plainly(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
    """A function that does not depend on the caller's modes; unknown options are answered with the nearest one."""
    checked = spelled(function)

    @functools.wraps(function)
    def inner(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
        # One at a time: networks are shared between threads, and held in evaluation mode meanwhile.
        with LOCK, plain_mode():
            return checked(*args, **kwargs)

    return inner
