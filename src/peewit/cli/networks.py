"""The network of a run: a function that makes it, its weights from a file, and posteriors of it."""

from __future__ import annotations

import copy
import importlib
import os
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import peewit as pw

from .. import likelihoods
from ..laplace import Laplace
from ..likelihoods import Likelihood, WithNoise
from ..messages.errors import PeewitError
from ..messages.names import first_names, nearest, resolve_name
from ..network.scaling import unscale
from .output import Problem
from .settings import is_function, require_setting

FORM = "package.module:function"


def import_named(text: str, what: str) -> Any:
    """What `package.module:name` stands for."""
    if not is_function(text):
        raise Problem(f"{what} {text!r} was given; expected {FORM}, such as networks:lenet.")
    module_name, _, path = text.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if module_name.endswith(".py"):
            meant = f"{module_name.removesuffix('.py')}:{path}"
            raise Problem(f"{what} {text!r}: a module is named without its ending; give {meant}.") from error
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise Problem(
                f"{what} {text!r}: there is no module {error.name!r}, neither installed nor in {os.getcwd()}, nor "
                "beside a file of settings."
            ) from error
        raise Problem(f"{what} {text!r}: importing it failed: {error}.") from error
    except Exception as error:
        raise Problem(f"{what} {text!r}: importing it failed: {type(error).__name__}: {error}") from error
    for part in path.split("."):
        if not hasattr(value, part):
            known = [name for name in vars(value) if not name.startswith("_")] if hasattr(value, "__dict__") else []
            raise Problem(f"{what} {text!r}: {module_name} has no {path!r}; {nearest(part, known)}".rstrip("; "))
        value = getattr(value, part)
    return value


def call_named(text: str, what: str, arguments: Mapping[str, Any] | None = None) -> Any:
    """The result of a function that was named, or the value itself."""
    value = import_named(text, what)
    if isinstance(value, nn.Module) or not callable(value):
        return value
    try:
        return value(**(arguments or {}))
    except Exception as error:
        raise Problem(f"{what} {text!r} raised {type(error).__name__}: {error}") from error


def network(settings: Mapping[str, Any]) -> nn.Module:
    """The trained network, on its device."""
    text = require_setting(settings, "model", f"--model {FORM}")
    if Path(text).suffix in (".pt", ".pth", ".pt2", ".ts", ".onnx", ".safetensors"):
        raise Problem(
            f"--model {text} is a file. Exported networks (TorchScript, torch.export, ONNX) are not read, since their "
            f"layers cannot be told apart; give the function that makes the network, {FORM}, and its weights "
            "with --checkpoint."
        )
    model = call_named(text, "--model", settings.get("arguments"))
    if not isinstance(model, nn.Module):
        raise Problem(f"--model {text} returned a {type(model).__name__}; expected a torch.nn.Module.")
    if "checkpoint" in settings:
        load_weights(model, Path(settings["checkpoint"]))
    return model.to(device(settings))


def is_made_anew(settings: Mapping[str, Any], model: nn.Module) -> bool:
    """Whether the function that makes the network gives it other weights each time: they are random."""
    try:
        with torch.random.fork_rng(devices=[]):
            other = call_named(settings["model"], "--model", settings.get("arguments"))
    except Problem:  # it can be made once
        return False
    if not isinstance(other, nn.Module) or other is model:
        return False
    weights, others = dict(model.named_parameters()), dict(other.named_parameters())
    return weights.keys() == others.keys() and any(
        not torch.equal(weight.cpu(), others[name].cpu()) for name, weight in weights.items()
    )


def ensemble(settings: Mapping[str, Any], model: nn.Module) -> list[nn.Module] | None:
    """The network and its copies with other weights; None where none were given."""
    models = [model]
    for path in settings.get("ensemble", ()):
        models.append(copy.deepcopy(model))
        load_weights(unscale(models[-1]), Path(path))
    return models if len(models) > 1 else None


def generator(settings: Mapping[str, Any]) -> torch.Generator | None:
    """Random numbers from the seed of the settings; None, for the fixed seed of the library, where there is none."""
    return torch.Generator().manual_seed(settings["seed"]) if "seed" in settings else None


def device(settings: Mapping[str, Any]) -> torch.device:
    """Where to compute; a device that is not there is refused."""
    name = settings.get("device", "cpu")
    try:
        chosen = torch.device(name)
        torch.empty(0, device=chosen)
    except Exception as error:  # each device has its own kinds
        first = str(error).strip().splitlines()[0]
        raise Problem(f"--device {name} cannot be used: {first}") from error
    return chosen


def load_weights(model: nn.Module, path: Path) -> None:
    """Put the weights of a file into a network; all of them, and no others."""
    state = weights_of(path)
    weights = model.state_dict()
    for names, where in (
        ([name for name in weights if name not in state], "lacks"),
        ([name for name in state if name not in weights], "has, and the network has not,"),
    ):
        if names:
            raise Problem(f"{path} does not fit the network: it {where} {first_names([*map(repr, names)])}.")
    for name, tensor in weights.items():
        if state[name].shape != tensor.shape:
            raise Problem(
                f"{path} does not fit the network: {name!r} has shape {tuple(state[name].shape)}, and the network's "
                f"{tuple(tensor.shape)}."
            )
    model.load_state_dict(state)


def weights_of(path: Path) -> dict[str, Tensor]:
    """A state dict from safetensors or from torch.save, without running what a file may hold besides."""
    if not path.is_file():
        raise Problem(f"There is no file {path}; expected weights as .safetensors or a state dict by torch.save.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # both libraries have many kinds
        first = (str(error).strip().splitlines() or [type(error).__name__])[0][:160]
        if isinstance(error, pickle.UnpicklingError):  # whose words say how to run it nevertheless
            first = "it is damaged, or holds other Python objects than tensors, which may run code and are not loaded"
        raise Problem(
            f"{path} cannot be read as weights ({first}). Expected .safetensors, or a state dict written by "
            "torch.save(model.state_dict(), path)."
        ) from error
    for key in ("state_dict", "model_state_dict", "model"):  # checkpoints of the usual trainers
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not state or not all(isinstance(tensor, Tensor) for tensor in state.values()):
        raise Problem(f"{path} holds {type(state).__name__}; expected a state dict: names and tensors.")
    return dict(state)


def likelihood(settings: Mapping[str, Any]) -> Any:
    """The likelihood's name, or a value where a noise is given with it."""
    name = require_setting(settings, "likelihood", "--likelihood classification (or regression, binary, count, ...)")
    if is_function(name):
        return call_named(name, "--likelihood")
    if "noise" not in settings:
        return name
    noisy: dict[str, Any] = {each: kind for each, kind in likelihoods.NAMES.items() if issubclass(kind, WithNoise)}
    if name not in noisy:
        raise Problem(f"noise = {settings['noise']!r} is for --likelihood {' or '.join(noisy)}; {name!r} was given.")
    return noisy[name](noise=settings["noise"])


def likelihood_value(likelihood: Any) -> Likelihood | None:
    """A likelihood, or the one with a name; None for what `pw.fit` refuses."""
    try:
        value: Likelihood = resolve_name(likelihood, likelihoods.NAMES, "likelihood", Likelihood)
    except PeewitError:
        return None
    return value


def is_classification(likelihood: Any) -> bool:
    """Whether targets are classes."""
    value = likelihood_value(likelihood)
    return value is not None and value.link_family == "categorical"


def posterior(settings: Mapping[str, Any]) -> Laplace:
    """A saved posterior of the network."""
    path = Path(require_setting(settings, "posterior", "--posterior FILE"))
    name = settings.get("likelihood", "")
    family = call_named(name, "--likelihood") if is_function(name) else None
    try:
        return pw.load(path, network(settings), family)
    except pw.MismatchError as error:
        if "checkpoint" in settings:
            raise
        raise Problem(f"{error} No trained weights were given; --checkpoint FILE loads them.") from error
