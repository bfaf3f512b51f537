"""Data of a run without code: arrays, tables, tensors and folders of images; or from a function."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from .images import folder
from .networks import FORM, called
from .output import Problem
from .settings import is_function

KINDS = f"expected .npz, .csv, .safetensors, a folder of images, or {FORM}"
INPUTS = ("x", "inputs", "images", "data", "X", "features")
TARGETS = ("y", "targets", "labels", "target", "Y", "label")
SEPARATORS = {";": "semicolons", "\t": "tabs", "|": "bars"}
CHUNK = 1000  # inputs asked about at a time


@dataclass(frozen=True)
class Wanted:
    """How files are read: for which network, with which columns as targets and which classes."""

    dtype: torch.dtype = torch.float32
    categorical: bool = False
    labels: bool = True  # whether targets are needed
    target: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    size: tuple[int, int] | None = None
    batch: int = CHUNK
    model: nn.Module | None = None

    @staticmethod
    def of(settings: Mapping[str, Any], model: nn.Module, categorical: bool, labels: bool = True) -> Wanted:
        """From the settings of a run."""
        target, classes, size = settings.get("target", ()), settings.get("classes"), settings.get("size")
        if size is not None and (len(size) != 2 or not all(type(each) is int and each > 0 for each in size)):
            raise Problem(f"size = {size!r} was given; expected height and width, such as [32, 32].")
        if (batch := settings.get("batch", CHUNK)) < 1:
            raise Problem(f"batch = {batch!r} was given; expected a positive whole number.")
        if classes is not None and len(set(map(str, classes))) < len(classes):
            raise Problem(f"classes = {', '.join(map(str, classes))} was given; expected a name of its own for each.")
        first = next((each for each in model.parameters() if each.is_floating_point()), None)
        return Wanted(
            torch.float32 if first is None else first.dtype,
            categorical,
            labels,
            (target,) if isinstance(target, str) else tuple(map(str, target)),
            None if classes is None else tuple(map(str, classes)),
            None if size is None else (size[0], size[1]),
            batch,
            model,
        )


@dataclass(frozen=True)
class Data:
    """What was read: inputs and targets, or what a function gave; with the names of classes where there are some."""

    source: str
    value: Any  # a pair (x, y), or any iterable of batches, as lapwing.fit takes; x alone where there are no targets
    classes: tuple[str, ...] | None = None
    batch: int = CHUNK

    def chunks(self) -> tuple[Iterator[Any], int | None]:
        """Inputs some at a time, and how many times, where that is known."""
        value = self.value
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], Tensor):
            value = value[0]
        if isinstance(value, Tensor):
            return iter(value.split(self.batch)), -(-len(value) // self.batch)
        if not hasattr(value, "__iter__"):
            raise Problem(f"{self.source} gave a {type(value).__name__}; expected a tensor, or batches of inputs.")
        count = len(value) if hasattr(value, "__len__") else None
        return ((each[0] if isinstance(each, tuple | list) else each) for each in value), count

    def inputs(self) -> Tensor:
        """All inputs in one tensor."""
        pieces = list(self.chunks()[0])
        if not pieces or not all(isinstance(each, Tensor) for each in pieces):
            raise Problem(f"{self.source} does not give tensors of inputs; expected batches of tensors.")
        return torch.cat(pieces)


def load(source: str, wanted: Wanted) -> Data:
    """Data by the name of a file, a folder or a function."""
    if is_function(source) and not Path(source).exists():
        made = called(source, "data")
        if made is None:
            raise Problem(f"data {source!r} gave nothing; expected a DataLoader, batches, or a pair of tensors.")
        return Data(source, made, wanted.classes, wanted.batch)
    path = Path(source).expanduser()
    if path.is_dir():
        x, names, classes = folder(path, wanted.size, wanted.classes, wanted.labels)
        x = x.to(wanted.dtype)
        return Data(source, x if names is None else (x, names), classes, wanted.batch)
    if not path.is_file():
        raise Problem(f"There is no file or folder {source}; {KINDS}.")
    readers = {".npz": arrays, ".csv": columns, ".safetensors": tensors}
    if path.suffix.lower() not in readers:
        raise Problem(f"{source} ends in {path.suffix or 'nothing'!r}; {KINDS}.")
    x, y, classes = readers[path.suffix.lower()](path, wanted)
    if len(x) == 0:
        raise Problem(f"{source} holds no examples.")
    if y is None and wanted.labels:
        raise Problem(f"{source} has no targets; expected them beside the inputs.")
    if y is not None and len(y) != len(x):
        raise Problem(f"{source} has {len(x)} inputs and {len(y)} targets; expected as many of both.")
    if y is not None and not wanted.categorical:
        y = shaped(x, y, wanted.model)
    return Data(source, x if y is None else (x, y), classes, wanted.batch)


def shaped(x: Tensor, y: Tensor, model: nn.Module | None) -> Tensor:
    """Targets (N,) as (N, 1), or the other way round, where the network's outputs are so: files do not tell."""
    if model is None or y.dim() > 2 or y[:1].numel() != 1:
        return y
    modes = {each: each.training for each in model.modules()}
    first = next(model.parameters(), x)
    try:
        with torch.no_grad():
            out = model.eval()(x[:1].to(first.device))
    except Exception:  # the work itself says what is wrong
        return y
    finally:
        for each, training in modes.items():
            each.training = training
    one = isinstance(out, Tensor) and out.numel() == 1 and 1 <= out.dim() <= 2
    return y.reshape(len(y), *out.shape[1:]) if one else y


Read = tuple[Tensor, "Tensor | None", "tuple[str, ...] | None"]


def arrays(path: Path, wanted: Wanted) -> Read:
    """An .npz file with `x` and `y`, without pickled objects."""
    try:
        # Opened here: numpy leaves open what it cannot read.
        with open(path, "rb") as file, numpy.load(file, allow_pickle=False) as read:
            found = {name: read[name] for name in read.files}
    except Exception as error:  # zip, numpy and the disk have their own
        why = "it holds Python objects, which are not read" if "pickle" in str(error) else str(error)
        why = "it is one array, as numpy.save writes it" if "context manager" in why else why
        raise Problem(
            f"{path} cannot be read as .npz: {why}. Expected what numpy.savez(path, x=..., y=...) writes."
        ) from error
    for name in (*INPUTS, *TARGETS, *wanted.target):
        if name in found and found[name].dtype.kind not in "biuf":
            raise Problem(
                f"{path}: {name} holds {found[name].dtype}; expected numbers, and classes as 0, 1, 2 and so on."
            )
    numeric = {name: tensor_of(each) for name, each in found.items() if each.dtype.kind in "biuf"}
    return named(numeric, path, wanted)


def tensor_of(array: numpy.ndarray[Any, Any]) -> Tensor:
    """A tensor of its own; torch has no unsigned numbers above 8 bits to compute with."""
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(numpy.int64)
    return torch.from_numpy(numpy.ascontiguousarray(array))


def tensors(path: Path, wanted: Wanted) -> Read:
    """A .safetensors file with `x` and `y`."""
    from safetensors.torch import load_file

    try:
        found = load_file(path)
    except Exception as error:
        raise Problem(f"{path} cannot be read as .safetensors: {error}") from error
    return named(found, path, wanted)


def named(found: Mapping[str, Tensor], path: Path, wanted: Wanted) -> Read:
    """Inputs and targets by the names they usually have."""
    x = next((found[name] for name in INPUTS if name in found), None)
    y = next((found[name] for name in (*wanted.target, *TARGETS) if name in found), None)
    if x is None or x.dim() == 0 or (y is not None and y.dim() == 0):
        raise Problem(
            f"{path} holds {', '.join(found) or 'nothing'}; expected arrays named x (inputs) and y (targets)."
        )
    if x.dtype == torch.uint8:  # pixels
        x = x.to(wanted.dtype) / 255
    x = x.to(wanted.dtype) if x.is_floating_point() else x
    return x, None if y is None else targets(y, path, wanted), wanted.classes


def targets(y: Tensor, path: Path, wanted: Wanted) -> Tensor:
    """Classes as whole numbers, all else in the network's dtype."""
    if not wanted.categorical:
        return y.to(wanted.dtype)
    if y.is_floating_point() and y.dim() > 1:
        return y.to(wanted.dtype)  # probabilities
    if y.is_floating_point() and not bool((y == y.round()).all()):
        raise Problem(
            f"{path} has targets such as {float(y[y != y.round()][0]):g}; expected classes: 0, 1, 2 and so on."
        )
    return y.long()


def columns(path: Path, wanted: Wanted) -> Read:
    """A table of numbers: the last column is the target unless others are named; inputs alone where none is needed."""
    names, rows = table(path)
    chosen = [name for name in wanted.target if name in names]
    if missing := [name for name in wanted.target if name not in names]:
        if wanted.labels:
            raise Problem(f"{path} has no column {missing[0]!r}; it has {', '.join(names)}.")
    elif not wanted.target and wanted.labels:
        chosen = [names[-1]]
    inputs = [name for name in names if name not in chosen]
    if not inputs:
        mark = next((word for mark, word in SEPARATORS.items() if len(names) == 1 and mark in names[0]), None)
        why = f", with {mark} in it; cells are separated by commas" if mark else ""
        raise Problem(f"{path} has the columns {', '.join(names)}{why}; expected inputs beside the target.")
    x = numbers(path, rows, [names.index(name) for name in inputs], names).to(wanted.dtype)
    if not chosen:
        return x, None, wanted.classes
    places = [names.index(name) for name in chosen]
    if not wanted.categorical:
        return x, numbers(path, rows, places, names).to(wanted.dtype), wanted.classes
    if len(places) > 1:
        raise Problem(f"{len(places)} target columns were named for classification; expected one, with the class.")
    words = [row[places[0]] for row in rows]
    if wanted.classes is None and all(is_number(word) for word in words):
        return x, targets(numbers(path, rows, places, names)[:, 0], path, wanted), None
    classes = wanted.classes or tuple(sorted(set(words)))
    return x, indices(words, classes, str(path)), classes


def table(path: Path) -> tuple[list[str], list[list[str]]]:
    """Names of columns and the rows; a first row of numbers is data, and columns are then numbered."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            rows = [[cell.strip() for cell in row] for row in csv.reader(file) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise Problem(f"{path} cannot be read as a table of text: {error}.") from error
    if not rows:
        raise Problem(f"{path} is empty; expected a table.")
    names = [str(place) for place in range(len(rows[0]))]
    if not all(is_number(cell) for cell in rows[0]):
        names, rows = rows[0], rows[1:]
    if twice := [name for name in names if names.count(name) > 1]:
        raise Problem(f"{path} has {names.count(twice[0])} columns {twice[0]!r}; expected a name of its own for each.")
    if not rows:
        raise Problem(f"{path} has the columns {', '.join(names)} and no rows; expected examples.")
    for number, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise Problem(f"{path}: row {number} has {len(row)} cells; expected {len(names)} like the first.")
    return names, rows


def is_number(word: str) -> bool:
    """Whether a cell holds a number."""
    try:
        float(word)
    except ValueError:
        return False
    return True


def numbers(path: Path, rows: Sequence[Sequence[str]], places: Sequence[int], names: Sequence[str]) -> Tensor:
    """(rows, places) in float64."""
    for number, row in enumerate(rows, 1):
        for place in places:
            if not is_number(row[place]):
                raise Problem(
                    f"{path}: row {number}, column {names[place]!r} holds {row[place]!r}; expected a number. "
                    "The column of the target is named by --target."
                )
    return torch.tensor([[float(row[place]) for place in places] for row in rows], dtype=torch.float64)


def indices(words: Sequence[str], classes: Sequence[str], where: str) -> Tensor:
    """(n,): the number of each class."""
    if unknown := sorted(set(words) - set(classes)):
        raise Problem(f"{where} has the class {unknown[0]!r}; expected one of {', '.join(classes)}.")
    places = {name: number for number, name in enumerate(classes)}
    return torch.tensor([places[word] for word in words], dtype=torch.int64)
