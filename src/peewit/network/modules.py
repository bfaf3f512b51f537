"""The module inside wrappers, its device, and modules whose weights are quantised."""

from __future__ import annotations

import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..messages.errors import ArgumentTypeError, PeewitError


def device_of(model: nn.Module) -> torch.device:
    """The one device of a network's weights."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"model is a {type(model).__name__}; expected a torch.nn.Module.")
    if isinstance(model, torch.jit.ScriptModule):
        raise PeewitError(
            f"model is a {type(model).__name__}; expected a plain torch.nn.Module, since scripted or traced networks "
            "hide their layers. Pass the module that it was made from."
        )
    if any(is_lazy(parameter) for parameter in model.parameters()):
        raise PeewitError("The network has lazy layers without weights; run it once on data before fitting.")
    devices = {parameter.device for parameter in model.parameters()}
    if not devices:
        names = quantised_modules(model)
        why = f": its weights are quantised ({', '.join(names[:3])}), and have no gradients" if names else ""
        raise PeewitError(f"The network has no parameters{why}; expected one with trainable weights.")
    if len(devices) > 1:
        raise PeewitError(
            f"The network's weights are on {sorted(map(str, devices))}; expected one device: move it by model.to(...)."
        )
    device = devices.pop()
    if device.type == "meta":
        raise PeewitError(
            "The network's weights are on the meta device: they have no values. Give them some by model.to_empty and "
            "load_state_dict."
        )
    return device


def every_module(model: nn.Module) -> list[nn.Module]:
    """What `model.modules()` lists, without its names, which take most of its time."""
    modules: dict[int, nn.Module] = {}
    stack = [model]
    while stack:
        module = stack.pop()
        if id(module) not in modules:
            modules[id(module)] = module
            stack += [each for each in [*module._modules.values()][::-1] if each is not None]
    return [*modules.values()]


def parameters_and_buffers(model: nn.Module) -> list[Tensor]:
    """All parameters and then all buffers, each once."""
    modules = every_module(model)
    held = [tensor for module in modules for tensor in module._parameters.values() if tensor is not None]
    buffers = [tensor for module in modules for tensor in module._buffers.values() if tensor is not None]
    return [*{id(tensor): tensor for tensor in (*held, *buffers)}.values()]


def quantised_modules(model: nn.Module) -> list[str]:
    """Names of modules whose weights torch has quantised: no gradient passes through them."""
    named = [name for name, module in model.named_modules() if ".quantized" in type(module).__module__]
    return [name for name in named if name.rpartition(".")[2] != "_packed_params"]  # where such a module keeps them


def unwrap(model: nn.Module) -> nn.Module:
    """The network inside wrappers of `torch.compile` and of data parallelism, whose parameters have their own names."""
    inner = getattr(model, "_orig_mod", None)
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        inner = model.module
    return unwrap(inner) if isinstance(inner, nn.Module) else model
