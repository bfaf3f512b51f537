"""Data of a command: arrays, tables, tensors, folders of images, or the result of a function."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from ..posterior.schema import Schema
from . import tables
from .images import folder
from .networks import FORM, call_named
from .output import Problem
from .settings import is_function

KINDS = f"expected .npz, .csv, .safetensors, a folder of images, or {FORM}"
INPUTS = ("x", "inputs", "images", "data", "X", "features")
TARGETS = ("y", "targets", "labels", "target", "Y", "label")
# Tables of other programs, and what of pandas reads them.
TABLES = {
    ".parquet": "read_parquet",
    ".xlsx": "read_excel",
    ".xls": "read_excel",
    ".feather": "read_feather",
    ".tsv": "read_table",
    ".txt": "read_table",
}
CHUNK = 1000  # inputs of a batch
RESOLVED = 0.01  # of a column's deviation, which rounding may be at most
SAID = 150  # characters of what a network says about its inputs


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """How to read files: the network, the target columns, the classes and sizes."""

    dtype: torch.dtype = torch.float32
    categorical: bool = False
    labels: bool = True  # whether targets are needed
    inputs: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    size: tuple[int, int] | None = None
    batch: int = CHUNK
    model: nn.Module | None = None
    header: bool | None = None  # whether tables have one; None to guess
    schema: Schema | None = None  # of the fit; None before the fit, which finds it

    @staticmethod
    def of(
        settings: Mapping[str, Any],
        model: nn.Module,
        categorical: bool,
        labels: bool = True,
        schema: Schema | None = None,
    ) -> Wanted:
        """Read from the settings of a run."""
        classes, size = settings.get("classes"), settings.get("size")
        if size is not None and (len(size) != 2 or not all(type(each) is int and each > 0 for each in size)):
            raise Problem(f"size = {size!r} was given; expected height and width, such as [32, 32].")
        if (batch := settings.get("batch", CHUNK)) < 1:
            raise Problem(f"batch = {batch!r} was given; expected a positive whole number.")
        if classes is not None and len(set(map(str, classes))) < len(classes):
            raise Problem(f"classes = {', '.join(map(str, classes))} was given; expected distinct names.")
        classes = None if classes is None else tuple(map(str, classes))
        if schema is not None and schema.classes is not None:
            if classes not in (None, schema.classes):
                raise Problem(
                    f"classes = {', '.join(classes)} was given; the posterior was fitted with "
                    f"{', '.join(schema.classes)}. Leave --classes out."
                )
            classes = schema.classes
        first = next((each for each in model.parameters() if each.is_floating_point()), None)
        return Wanted(
            dtype=torch.float32 if first is None else first.dtype,
            categorical=categorical,
            labels=labels,
            inputs=names_of(settings, "inputs"),
            target=names_of(settings, "target"),
            classes=classes,
            size=None if size is None else (size[0], size[1]),
            batch=batch,
            model=model,
            header=settings.get("header"),
            schema=schema,
        )


def names_of(settings: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """One name, or several."""
    value = settings.get(name, ())
    return (value,) if isinstance(value, str) else tuple(map(str, value))


@dataclass(frozen=True)
class LoadedData:
    """Inputs and targets, or what a function returned, with names of columns and classes."""

    source: str
    value: Any  # a pair (x, y), or batches as peewit.fit takes them; x alone without targets
    schema: Schema = field(default_factory=Schema)
    batch: int = CHUNK

    def chunks(self) -> tuple[Iterator[Any], int | None]:
        """Batches of inputs, and their number if it is known."""
        value = self.value
        if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], Tensor):
            value = value[0]
        if isinstance(value, Tensor):
            return iter(value.split(self.batch)), -(-len(value) // self.batch)
        if not hasattr(value, "__iter__"):
            raise Problem(f"{self.source} returned a {type(value).__name__}; expected a tensor, or batches of inputs.")
        count = len(value) if hasattr(value, "__len__") else None
        return ((batch[0] if isinstance(batch, tuple | list) else batch) for batch in value), count

    def inputs(self) -> Tensor:
        """All inputs in one tensor."""
        pieces = list(self.chunks()[0])
        if not pieces or not all(isinstance(each, Tensor) for each in pieces):
            raise Problem(f"{self.source} does not return tensors; expected batches of tensors.")
        return torch.cat(pieces)


def load(source: str, wanted: Wanted) -> LoadedData:
    """Load data from a file, a folder or a function."""
    if is_function(source) and not Path(source).exists():
        batches = call_named(source, "data")
        if batches is None:
            raise Problem(f"data {source!r} returned None; expected a DataLoader, batches, or a pair of tensors.")
        return LoadedData(source, batches, Schema(classes=wanted.classes), wanted.batch)
    path = Path(source).expanduser()
    if path.is_dir():
        x, y, classes = folder(path, wanted.size, wanted.classes, wanted.labels)
        return with_targets(source, x.to(wanted.dtype), y, Schema(classes=classes), wanted)
    if not path.is_file():
        raise Problem(f"There is no file or folder {source}; {KINDS}.")
    readers = {".npz": arrays, ".csv": columns, ".safetensors": tensors}
    if path.suffix.lower() not in readers:
        reader = TABLES.get(path.suffix.lower())
        line = f"pandas.{reader}({path.name!r}).to_csv({path.with_suffix('.csv').name!r}, index=False)"
        advice = "" if reader is None else f" Write the table as .csv, such as {line}."
        raise Problem(f"{source} has the suffix {path.suffix!r}; {KINDS}.{advice}")
    x, y, schema = readers[path.suffix.lower()](path, wanted)
    if len(x) == 0:
        raise Problem(f"{source} holds no examples.")
    if y is None and wanted.labels:
        raise Problem(f"{source} has no targets; expected them beside the inputs.")
    if y is not None and len(y) != len(x):
        raise Problem(f"{source} has {len(x)} inputs and {len(y)} targets; expected equal numbers.")
    if y is not None and not wanted.categorical:
        y = shape_targets(x, y, wanted.model)
    return with_targets(source, x, y, schema, wanted)


def with_targets(source: str, x: Tensor, y: Tensor | None, schema: Schema, wanted: Wanted) -> LoadedData:
    """Inputs with their targets; refuse named classes if the posterior does not know which output each has."""
    if wanted.schema is not None and wanted.classes is None and schema.classes is not None:
        raise Problem(
            f"{source} has the classes {tables.list_names(schema.classes)}; the posterior was fitted with numbered "
            "classes. Name all classes with --classes, in the order of the outputs."
        )
    return LoadedData(source, x if y is None else (x, y), schema, wanted.batch)


def shape_targets(x: Tensor, y: Tensor, model: nn.Module | None) -> Tensor:
    """Reshape targets (N,) to (N, 1), or back, if the network's outputs have that shape."""
    if model is None or y.dim() > 2 or y[:1].numel() != 1:
        return y
    out = outputs_of(model, x[:1])  # the command itself will report an error
    one = isinstance(out, Tensor) and out.numel() == 1 and 1 <= out.dim() <= 2
    return y.reshape(len(y), *out.shape[1:]) if one else y


def outputs_of(model: nn.Module, x: Tensor) -> Any:
    """Outputs of the network in evaluation mode, or the error where it does not take these inputs."""
    modes = {module: module.training for module in model.modules()}
    first = next(model.parameters(), x)
    try:
        with torch.no_grad():
            return model.eval()(x.to(first.device))
    except Exception as error:
        return error
    finally:
        for module, training in modes.items():
            module.training = training


Read = tuple[Tensor, "Tensor | None", Schema]


def arrays(path: Path, wanted: Wanted) -> Read:
    """An .npz file with `x` and `y`, without pickled objects."""
    try:
        # Opened here, because numpy does not close files that it cannot read.
        with open(path, "rb") as file, numpy.load(file, allow_pickle=False) as read:
            arrays_by_name = {name: read[name] for name in read.files}
    except Exception as error:  # zip, numpy and the disk raise different ones
        why = "it holds Python objects, which are not read" if "pickle" in str(error) else str(error)
        why = "it is one array, as numpy.save writes it" if "context manager" in why else why
        raise Problem(
            f"{path} cannot be read as .npz: {why}. Expected what numpy.savez(path, x=..., y=...) writes."
        ) from error
    for name in (*wanted.inputs, *INPUTS, *TARGETS, *wanted.target):
        if name in arrays_by_name and arrays_by_name[name].dtype.kind not in "biuf":
            raise Problem(
                f"{path}: {name} holds {arrays_by_name[name].dtype}; expected numbers, with classes as 0, 1, 2, ..."
            )
    numeric = {name: tensor_of(array) for name, array in arrays_by_name.items() if array.dtype.kind in "biuf"}
    return inputs_and_targets(numeric, path, wanted)


def tensor_of(array: numpy.ndarray[Any, Any]) -> Tensor:
    """A tensor with a copy of the data, in a dtype and a byte order that torch can compute with."""
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(numpy.int64)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        array = array.astype(numpy.float64)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.from_numpy(numpy.ascontiguousarray(array))


def tensors(path: Path, wanted: Wanted) -> Read:
    """A .safetensors file with `x` and `y`."""
    from safetensors.torch import load_file

    try:
        tensors_by_name = load_file(path)
    except Exception as error:
        raise Problem(f"{path} cannot be read as .safetensors: {error}") from error
    return inputs_and_targets(tensors_by_name, path, wanted)


def inputs_and_targets(tensors_by_name: Mapping[str, Tensor], path: Path, wanted: Wanted) -> Read:
    """Inputs and targets, by their usual names."""
    if len(wanted.inputs) > 1 or not set(wanted.inputs) <= set(tensors_by_name):
        raise Problem(
            f"{path} holds {', '.join(tensors_by_name) or 'nothing'}; --inputs names one of these arrays, or columns "
            "of a table."
        )
    x = next((tensors_by_name[name] for name in (*wanted.inputs, *INPUTS) if name in tensors_by_name), None)
    y = next((tensors_by_name[name] for name in (*wanted.target, *TARGETS) if name in tensors_by_name), None)
    if x is None or x.dim() == 0 or (y is not None and y.dim() == 0):
        raise Problem(
            f"{path} holds {', '.join(tensors_by_name) or 'nothing'}; expected arrays named x (inputs) and y (targets)."
        )
    if x.dtype == torch.uint8:  # pixels
        x = x.to(wanted.dtype) / 255
    x = x.to(wanted.dtype) if x.is_floating_point() else x
    return x, None if y is None else targets(y, path, wanted), Schema(classes=wanted.classes)


def targets(y: Tensor, path: Path, wanted: Wanted) -> Tensor:
    """Classes as whole numbers, other targets in the network's dtype."""
    if not wanted.categorical:
        return y.to(wanted.dtype)
    if y.is_floating_point() and y.dim() > 1:
        return y.to(wanted.dtype)  # probabilities
    if y.is_floating_point() and not bool((y == y.round()).all()):
        raise Problem(f"{path} has targets such as {float(y[y != y.round()][0]):g}; expected classes: 0, 1, 2, ...")
    return y.long()


def columns(path: Path, wanted: Wanted) -> Read:
    """A table of numbers; the last column is the target unless others are named."""
    known = wanted.schema or Schema()
    table = tables.read(path, wanted.header, wanted.labels, replace(known, classes=wanted.classes))
    inputs, chosen = tables.split(table, wanted.inputs, wanted.target, wanted.labels, known)
    x = columns_of(table, inputs, wanted)
    if not known.columns:
        refuse_inputs(table, inputs, chosen, x, wanted)
    if not chosen:
        return x, None, Schema(classes=wanted.classes)
    schema = Schema(
        columns=table.names,
        targets=tuple(chosen),
        header=table.header,
        named_inputs=tuple(inputs) if wanted.inputs else (),
        classes=wanted.classes,
    )
    if not wanted.categorical:
        return x, columns_of(table, chosen, wanted, targets=True), schema
    if len(chosen) > 1:
        raise Problem(f"{len(chosen)} target columns were named; classification expects one, with the class.")
    words = table.words(chosen[0])
    if wanted.classes is None and all(map(tables.is_number, words)):
        return x, targets(table.numbers(chosen)[:, 0], path, wanted), schema
    classes = wanted.classes or tuple(sorted(set(words)))
    return x, indices(words, classes, str(path)), replace(schema, classes=classes)


def columns_of(table: tables.Table, names: Sequence[str], wanted: Wanted, targets: bool = False) -> Tensor:
    """(rows, names): columns in the network's dtype; for a fit, refuse those whose differences it cannot hold."""
    exact = table.numbers(names, targets)
    columns = exact.to(wanted.dtype)
    error = (columns.double() - exact).square().mean(0).sqrt()
    lost = error > RESOLVED * exact.std(0, correction=0)
    if wanted.schema is None and len(exact) > 1 and bool(lost.any()):
        worst = int(lost.nonzero()[0])
        kind = str(wanted.dtype).removeprefix("torch.")
        raise Problem(
            f"{table.path}: the numbers of column {names[worst]!r}, such as {table.column(names[worst])[0]}, are too "
            f"close to each other for {kind}, in which the network computes. Subtract one number from the column, in "
            "all tables."
        )
    return columns


def refuse_inputs(table: tables.Table, inputs: Sequence[str], chosen: Sequence[str], x: Tensor, wanted: Wanted) -> None:
    """Refuse columns that the network does not take, such as those of a table with the target where none is needed."""
    out = None if wanted.model is None else outputs_of(wanted.model, x[:1])
    if wanted.model is None or not isinstance(out, Exception):
        return
    if not chosen and len(inputs) > 1 and not isinstance(outputs_of(wanted.model, x[:1, :-1]), Exception):
        raise Problem(
            f"{table.path} has {len(inputs)} columns ({tables.list_names(inputs)}), and the network takes "
            f"{len(inputs) - 1} inputs. If the table has the target, name it: --target {inputs[-1]}, or another column."
        )
    why = " ".join(str(out).split())[:SAID]
    target = f" and the target {tables.list_names(chosen)}" if chosen else ""
    raise Problem(
        f"{table.path} has the inputs {tables.list_names(inputs)}{target}, and the network does not take {len(inputs)} "
        f"inputs ({why}). Name its inputs in their order, --inputs A,B,..., and the target, --target C."
    )


def indices(words: Sequence[str], classes: Sequence[str], where: str) -> Tensor:
    """(n,): classes as numbers."""
    if unknown := sorted(set(words) - set(classes)):
        raise Problem(f"{where} has the class {unknown[0]!r}; expected one of {', '.join(classes)}.")
    places = {name: number for number, name in enumerate(classes)}
    return torch.tensor([places[word] for word in words], dtype=torch.int64)
