"""Files of exported predictors."""

from __future__ import annotations

import importlib.util
import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from ..messages.errors import MissingPackageError, PeewitError
from ..network.nests import Inputs, tensors
from ..storage.atomic import writable, writing

SUFFIXES = (".pt2", ".onnx")
PACKAGES = ("onnx", "onnxscript")  # that torch needs to write ONNX
TALKATIVE = ("torch.onnx._internal.exporter._registration", "torch._subclasses.fake_tensor")
LARGEST = 2**31 - 2**20  # bytes of numbers in one file of ONNX


def target_path(path: str | os.PathLike[str]) -> Path:
    """Where to write; a package that is missing is found before the work."""
    target = writable(path, "model.onnx", SUFFIXES)
    if Path(os.fsdecode(path)).suffix.lower() == ".onnx":
        missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
        if missing:
            raise MissingPackageError(
                f"A file of ONNX needs {' and '.join(missing)}, not installed here: pip install {' '.join(missing)}"
            )
    return target


def write(program: ExportedProgram, names: tuple[str, ...], x: Inputs, target: Path) -> None:
    """The file, whole or not at all."""
    if target.suffix.lower() == ".pt2":
        with quiet(), writing(target) as temporary, open(temporary, "wb") as file:
            torch.export.save(program, file)
        return
    size = sum(tensor.nbytes for tensor in (*program.state_dict.values(), *program.constants.values()))
    if size > LARGEST:
        raise PeewitError(
            f"The program holds {size / 2**30:.1f} GiB of numbers, and a file of ONNX at most 2 GiB; write a .pt2 file."
        )
    named = list(x) if isinstance(x, Mapping) and len(x) == len(tensors(x)) else None
    number = len(tensors(x))
    inputs = named or (["x"] if number == 1 else [f"x_{each}" for each in range(number)])
    with quiet():
        converted = torch.onnx.export(program, dynamo=True, verbose=False)
    assert converted is not None
    name_ends(converted.model.graph, inputs, names)
    with writing(target) as temporary:
        converted.save(temporary)


def name_ends(graph: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
    """Name inputs and outputs; what torch has called so in between, as the result of a mean, gets another name."""
    ends = dict(zip((*graph.inputs, *graph.outputs), (*inputs, *outputs), strict=True))
    values = [*graph.inputs, *graph.initializers.values(), *(value for node in graph for value in node.outputs)]
    for number, value in enumerate(values):
        if value in ends or value.name in ends.values():
            value.name = f"between_{number}"
    for value, name in ends.items():
        value.name = name


@contextmanager
def quiet() -> Iterator[None]:
    """Without what torch says about its own insides: what fails is said by an error."""
    loggers = [logging.getLogger(name) for name in TALKATIVE]
    levels = [each.level for each in loggers]
    with warnings.catch_warnings():
        for category in (DeprecationWarning, FutureWarning, UserWarning):
            warnings.filterwarnings("ignore", category=category)
        for each in loggers:
            each.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for each, level in zip(loggers, levels, strict=True):
                each.setLevel(level)
