"""The network in evaluation mode, handed back as it was; and calls that the caller's modes do not change."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, ParamSpec, TypeVar

import torch
import torch.utils.checkpoint
from torch import Tensor, nn

from ..messages.names import spelled
from ..runtime.threads import LOCK
from .buffers import held_buffers
from .kept import without_kept
from .modules import every_module
from .workarounds import UnchangedTables, plain_attention, plain_checkpoints, plain_lists


@contextmanager
def isolated(model: nn.Module, selected: Iterable[Tensor] | None = None) -> Iterator[None]:
    """Evaluation mode, gradients for the selected weights alone, and everything as it was afterwards.

    What is restored, also after an exception: mode of every module, `requires_grad`, buffers, hooks on the gradients of
    parameters, which are left out meanwhile, and the random generators. Parameters and `.grad` are never written to.
    """
    modules = every_module(model)
    with ExitStack() as stack:
        stack.enter_context(LOCK)  # another thread may have isolated this very network
        stack.enter_context(without_kept(modules))  # before buffers and attributes are noted as they are
        for setting in _torch_settings(modules):
            stack.enter_context(setting)
        stack.enter_context(held_buffers(model))
        stack.enter_context(_held_parameters(list(model.parameters()), selected))
        stack.enter_context(_evaluation_mode(modules))
        yield


def _torch_settings(modules: list[nn.Module]) -> Iterator[AbstractContextManager[Any]]:
    """What torch is set to while the network runs, one after the other: some act when they are made."""
    parameter = next(modules[0].parameters(), None)
    cuda = parameter is not None and parameter.device.type == "cuda"
    yield torch.inference_mode(False)
    yield torch.random.fork_rng(devices=[parameter.device] if cuda and parameter is not None else [])
    yield torch.enable_grad()
    yield plain_checkpoints()
    yield torch.compiler.set_stance("force_eager")
    yield plain_attention()
    if any(_attribute(each, "max_norm") is not None or _attribute(each, "scale_grad_by_freq") for each in modules):
        yield UnchangedTables()
    if any(isinstance(module, nn.ParameterList | nn.ParameterDict) for module in modules):
        yield plain_lists()
    if cuda and any(isinstance(module, nn.RNNBase) for module in modules):
        # cuDNN refuses a backward pass through a recurrent network in evaluation mode.
        yield torch.backends.cudnn.flags(enabled=False)


def _attribute(module: nn.Module, name: str) -> Any:
    """A plain attribute, or None, without torch's slow search among parameters and modules."""
    return vars(module).get(name, getattr(type(module), name, None))


@contextmanager
def _evaluation_mode(modules: list[nn.Module]) -> Iterator[None]:
    training = [module.training for module in modules]
    try:
        for module in modules:
            module.__dict__["training"] = False  # past torch's own, slow, way to set an attribute
        yield
    finally:
        for module, mode in zip(modules, training, strict=True):
            module.__dict__["training"] = mode


@contextmanager
def _held_parameters(parameters: list[nn.Parameter], selected: Iterable[Tensor] | None) -> Iterator[None]:
    """Without hooks, and with gradients for the selected ones alone; all as they are where none are selected."""
    flags = [parameter.requires_grad for parameter in parameters]
    hooked = [(parameter, parameter._backward_hooks) for parameter in parameters if parameter._backward_hooks]
    try:
        for parameter, _ in hooked:
            parameter._backward_hooks = None  # they change steps of training, not the function
        if selected is not None:
            chosen = {id(tensor) for tensor in selected}
            _set_gradients(parameters, [id(parameter) in chosen for parameter in parameters])
        yield
    finally:
        _set_gradients(parameters, flags)
        for parameter, hooks in hooked:
            parameter._backward_hooks = hooks


def _set_gradients(parameters: list[nn.Parameter], flags: list[bool]) -> None:
    for parameter, flag in zip(parameters, flags, strict=True):
        if parameter.requires_grad != flag:
            parameter.requires_grad_(flag)


Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


def outside_caller_modes() -> AbstractContextManager[Any]:
    """Outside of inference mode and autocast, with gradients; in no time where neither is on."""
    if torch.is_inference_mode_enabled() or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        return _outside_modes()
    return torch.enable_grad()


@contextmanager
def _outside_modes() -> Iterator[None]:
    with torch.inference_mode(False), torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False):
        yield


def unaffected(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The same function outside of the caller's inference mode and autocast, with the caller's choice of gradients."""

    @functools.wraps(function)
    def inner(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        recording = torch.is_grad_enabled()  # leaving inference mode turns it on
        with outside_caller_modes(), torch.set_grad_enabled(recording):
            return function(*args, **kwargs)

    return inner


def entry_point(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A public function that the caller's modes do not change; unknown options are answered with the nearest one."""
    checked = spelled(function)

    @functools.wraps(function)
    def inner(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        # One at a time: networks are shared between threads, and isolated meanwhile.
        with LOCK, outside_caller_modes():
            return checked(*args, **kwargs)

    return inner
